"""Checks of loop code that are asked once before a loop, or once behind it: where they hold in all rounds, and where they fail in one of them."""

import platform

import numpy as np
import pytest

from bench.scalar_programs import histogram, matrix_product, running_sum, sieve
from tests.python.test_loops_compiled import check, llvm_of, scalar_loops  # noqa: F401 (a fixture)


def copy_up_to(x, y, n):
    for i in range(n):
        y[i] = x[i] + 1
    return y


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1500, 3000])
def test_an_index_that_leaves_one_of_two_arrays(n):
    x, y = np.arange(3000.0), np.zeros(2000)
    check(copy_up_to, (x, y, 1999), (x, y, 2001), (x, y, 3001), (y, x, 2001))
    check(copy_up_to, (np.arange(8), np.zeros(9, np.int64), 8), (np.arange(8), np.zeros(9, np.int64), n))


def windows(x, low, high):
    total = 0.0
    for i in range(low, high):
        total += x[i - 2] * x[2 * i + 1] - x[-i]
    return total


def test_indices_that_begin_below_zero_or_end_behind_the_array():
    x = np.arange(40.0)
    check(windows, (x, 2, 19), (x, 0, 19), (x, -3, 19), (x, 2, 20), (x, 2, 30), (x, 5, 5), (x, 30, 2), (x, 2, 21))


def fixed_places(x, places, n):
    for i in range(n):
        x[places[0]] += x[places[1]] + i
        x[places[2]] = i
    return x


def test_indices_that_do_not_change():
    x = np.arange(6)
    check(fixed_places, (x, [1, 2, 3], 50), (x, [-1, -6, 5], 50), (x, [0, 6, 1], 50), (x, [0, 1, -7], 50), (x, [0, 1, 6], 0))


def downwards(x, n):
    for i in range(n, -1, -1):
        x[i] = x[i - 1] + 1
    return x


def test_indices_that_go_down():
    check(downwards, (np.arange(9), 8), (np.arange(9), 0), (np.arange(9), 9), (np.arange(3), 60), (np.arange(3), -1))


def counts(values, count, step):
    odd = 0
    for v in values:
        count += 1
        if v & 1:
            odd += step
        count -= 3 * (v > 2)
    return count, odd


@pytest.mark.parametrize("start", [0, 2**60 - 3, 2**60 + 3, 2**62, 2**63 - 4, -(2**60) - 2, -(2**63) + 1, 2**63 + 5, 2**70])
def test_counters_keep_to_pythons_integers(start):
    values = [k % 5 for k in range(70)]
    check(counts, (values, 0, 1), (values, start, 1), (values, 5, start), (values, start, -(2**62)))


def powers(n, by):
    a, b, c = 1, 1, 0
    for _ in range(n):
        a, b, c = b, (a + b) * by, c - a
    return a, b, c


def test_sums_of_sums_are_no_counters():
    check(powers, (40, 1), (91, 1), (120, 1), (60, 2), (100, -3))


def masked(n, seed):
    odd = even = 0
    for _ in range(n):
        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
        if seed & 65536:
            odd += seed >> 3
        else:
            even += (seed // 3) % 17
    return odd, even, seed


def test_masks_bound_what_they_mask():
    check(masked, (500, 42), (500, 2**61), (500, -5), (500, 2**64 + 1))


def table(n, m):
    out = np.zeros((n, m), np.int64)
    for i in range(n):
        for j in range(m):
            out[i, j] = out[i, j - 1] + out[i - 1, j] + 1
    return out


def test_tables_that_wrap_around():
    check(table, (6, 9), (1, 40), (40, 1), (0, 3), (3, 0), (34, 34), (60, 60))


def totals(values):
    total, low = 0, 0
    for v in values:
        total += v
        if v < low:
            low = v
    return total, low, v


@pytest.mark.parametrize("odd", [0, -1, 2**30 - 1, 2**30, -(2**30), 2**62, -(2**63), 2**63, -(2**90), True, 1.5, np.int64(3)])
def test_ints_of_any_length_in_lists(odd):
    check(totals, ([3, -4, 0, 2**31, 5] * 9,), ([1] * 20 + [odd] + [7] * 20,), ([odd],), ([-(2**40), 5, -7] * 5,))


def remainders(x, n):
    out = np.zeros((n, n), np.int64)
    for i in range(n):
        for j in range(n):
            out[i, j] = x[(i - 1) % n, (j + 1) % n] + (i - j) // n + (j == n) + (i < -1)
    return out


def test_comparisons_that_bounds_decide():
    x = np.arange(49).reshape(7, 7)
    check(remainders, (x, 7), (x, 1), (x, 0), (x, 5), (x, -2), (x[::-1, ::2], 4))


# --- infinities and not-a-numbers, behind the loop ---------------------------------------------------------------------------------
SPECIAL = [np.inf, -np.inf, np.nan, 1.7e308, -1.7e308]


def with_one(n, at, special, dtype="float64"):
    x = np.linspace(0.5, 1.5, n).astype(dtype)
    x[at] = special
    return x


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("at", [0, 1, 29, 1023, 1024, 1499])
def test_a_sum_in_an_element_is_put_back_and_made_again(special, at):
    """NumPy warns in the round in which it comes, and the elements are what they were until then."""

    def program(c, a, b):
        for k in range(len(a)):
            c[2] += a[k] * b[k]
        return c[2]

    c, a, b = np.arange(5.0), with_one(1500, at, special), with_one(1500, max(at - 1, 0), 1.6e308)
    check(program, (c, np.ones(1500), np.ones(1500)), (c, a, np.ones(1500)), (c, a, b), (c, b, a))
    check(program, (c, a, a), (a, a, c.repeat(300)), (a, a, a))


@pytest.mark.parametrize("special", SPECIAL)
def test_a_product_of_matrices_with_a_special_element(special):
    a, b = np.linspace(1, 2, 63).reshape(9, 7), np.linspace(-1, 2, 56).reshape(7, 8)
    other = a.copy()
    other[4, 3] = special
    check(matrix_product, (a, b), (other, b), (b.T, other.T), (other, b[:, ::2]), (other * 0 + 1e308, b * 1e308))


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("at", [0, 1, 700, 1023, 1024, 1025, 2499])
def test_a_part_that_was_written_is_put_back(special, at):
    def downwards(x, y):
        s = 0.0
        for i in range(len(x) - 1, -1, -1):
            s = s + x[i] * 2.0
            y[i] = s
        return s

    x = with_one(2500, at, special)
    check(running_sum, (np.ones(2500),), (x,), (x[::-1],), (x.astype(np.float32),))
    check(downwards, (np.ones(2500), np.zeros(2500)), (x, np.zeros(2500)), (x[::-1], np.zeros(2500)))
    both = np.linspace(0, 1, 2600)
    both[at + 50] = special
    check(downwards, (both[50:2550], both[40:2540]), (both[40:2540], both[50:2550]), (both, both))


@pytest.mark.parametrize("special", SPECIAL)
def test_a_loop_that_is_left_early(special):
    def program(x, limit):
        s = np.float64(0.0)
        for i in range(len(x)):
            if x[i] > limit:
                break
            s -= x[i] * x[i]
        return i, s

    x = np.linspace(0, 1, 300)
    other = with_one(300, 200, special)
    check(program, (x, 2.0), (x, 0.5), (other, 1e300), (other, 0.6), (other, 1.7e308), (other, 1.8))


def test_what_is_special_but_not_new_is_no_warning():
    def program(x):
        s, t = x[0], np.float64(1.0)
        for i in range(1, len(x)):
            s = s + x[i]
            t = t * x[i]
        return s, t

    check(program, (np.ones(90),), (with_one(90, 0, np.inf),), (with_one(90, 0, np.nan),), (with_one(90, 40, np.inf),))


def test_errors_instead_of_warnings():
    def program(c, a):
        for k in range(len(a)):
            c[k % 1] += a[k] * a[k]
        return c

    with np.errstate(all="raise"):
        check(program, (np.zeros(1), np.ones(80)), (np.zeros(1), with_one(80, 60, 1e200)), (np.zeros(1), with_one(80, 0, np.inf)), runs=0)


@pytest.mark.parametrize("special", [*SPECIAL, 0.0, 5e-324, 1e200])
@pytest.mark.parametrize("at", [0, 1, 150, 299])
def test_special_numbers_that_results_do_not_show(special, at):
    """One divided by an infinity is a number again; a comparison with what was special decides what is carried on."""

    def reciprocals(x):
        s = np.float64(0.0)
        for i in range(len(x)):
            s += 1.0 / (x[i] * x[i])
        return s

    def carried(x):
        s = np.float64(1.0)
        for i in range(len(x)):
            s = 1.0 / (s * x[i] + 1.5)
        return s

    def decided(x):
        s, n = np.float64(0.0), 0
        for i in range(len(x)):
            t = x[i] * x[i]
            if t > 1.5 or t != t:  # noqa: PLR0124
                n += 1
            else:
                s += t
        return s, n

    def stored(x, y):
        for i in range(len(x)):
            y[i] = 1.0 / (x[i] * 3.0)
        return y

    x = with_one(300, at, special)
    for program in (reciprocals, carried, decided):
        check(program, (np.ones(300),), (x,), (x[::-1],))
    both = with_one(310, at, special)
    check(stored, (np.ones(300), np.ones(300)), (both[:300], both[:300]), (both[3:303], both[2:302]), (both[:300], both[299::-1]))


def test_ints_of_special_numbers():
    x = np.linspace(0, 0.99, 60)
    check(histogram, (x, 7), *((with_one(60, 45, s) - 0.2, 7) for s in [*SPECIAL, 1e19, -1e19, 4e18, -4e18, 9.3e18]))


# --- more of what is asked before ------------------------------------------------------------------------------------------------------
def strided(x, start, stop, step):
    for i in range(start, stop, step):
        x[i] += 1
    return x


def test_steps_that_are_numbers_of_the_program():
    x = np.arange(70)
    steps = [(0, 70, 3), (69, -1, -2), (5, 71, 7), (-70, 70, 9), (-71, 3, 2), (3, 80, 11), (60, -71, -5), (60, -90, -5), (0, 70, 0)]
    check(strided, *((x, *s) for s in steps), (x, 0, 2**62, 2**40), (x, 0, 2**62, 2**61), (x, 2**62, 0, -(2**61)), (x, 69, -(2**62), -(2**50)))
    check(sieve, (100,), (2,))


def test_a_bound_that_a_counter_reaches():
    def program(a, b, n):
        total = 0
        for i in range(len(a)):
            for k in range(i, n):
                total += a[i] * b[k]
        return total

    a, b = np.arange(20), np.arange(40)
    check(program, (a, b, 40), (a, b, 41), (a, b, 60), (a, b, 5), (a, b[:3], 3), (a, b[:0], 1), (a, b, 20))


def neighbours(x, n, m, by):
    out = np.zeros((len(x), len(x)), np.int64)
    for i in range(len(x)):
        for j in range(len(x)):
            for di in range(-1, 2):
                for dj in range(-1, 2):
                    out[i, j] += x[(i + di) % n, (j + dj * by) % m]
    return out


def test_remainders_that_do_not_change_in_a_loop():
    """They are computed before it, though it may not come to them."""
    x = np.arange(64).reshape(8, 8)
    check(neighbours, (x, 8, 8, 1), (x, 8, 9, 1), (x, 9, 8, 1), (x, -8, -3, 5), (x, 8, 0, 1), (x, 0, 8, 1), (x[:0], 0, 0, 1), (x, -1, 1, 2**61), (x, 8, 7, -3))

    def unwanted(a, b, low):
        total = 0
        for i in range(len(a)):
            if a[i] > low:
                total += low % b
        return total

    check(unwanted, (np.arange(40), 7, 5), (np.arange(40), 0, 50), (np.arange(40), 0, 5), (np.arange(40), -1, -(2**63)), (np.arange(40), -1, 100), (np.arange(40), -7, 5))


# --- vectorised, with what is looked at behind the loop ------------------------------------------------------------------------------
def add_scaled(x, y, a):
    for i in range(len(x)):
        y[i] = y[i] + a * x[i]
    return y


def clipped_halves(x, y, a):
    for i in range(len(x)):
        v = x[i]
        if v > a:
            v = v * 0.5
        elif v < -a:
            v = v * 2.0 + a
        y[i] = v
    return y


def least_ways(x, y, a):
    for i in range(len(x)):
        y[i] = min(y[i], y[a] + x[i])
    return y


@pytest.mark.parametrize("program", [add_scaled, clipped_halves])
@pytest.mark.parametrize("special", SPECIAL)
def test_elements_that_are_written_are_put_back(program, special):
    for at in (0, 1, 17, 1023, 1024, 1290, 1299):
        x, y = with_one(1300, at, special), np.linspace(-2, 2, 1300)
        check(program, (x * 0 + 1, y.copy(), 1.5), (x, y.copy(), 1.5), (y, x, 1.5), (x, x, 1e308), (x[:at], y, 0.5), (x[::-1], y[::-1], -0.5))
        both = with_one(1310, at, special)
        check(program, (np.ones(1300), y.copy(), 0.5), (both[:1300], both[1:1301], 0.5), (both[1:1301], both[:1300], 0.5), (both[:1300], both[8:1308], 2.0), (both[8:1308], both[:1300], 2.0))


def test_elements_that_are_written_when_an_error_comes():
    with np.errstate(all="raise"):
        for at in (0, 63, 80, 99):
            check(add_scaled, (np.ones(100), np.ones(100), 2.0), (with_one(100, at, 1.7e308), np.ones(100), 2.0), runs=0)


@pytest.mark.parametrize("n", range(40))
def test_loops_of_every_length(n):
    x, y = np.linspace(-1, 1, 40), np.linspace(2, -2, 40)
    for program in (add_scaled, clipped_halves):
        check(program, (x, y.copy(), 0.5), (x[:n], y.copy(), 0.5))
    check(least_ways, (x, y.copy(), 3), (x, y.copy(), n), (x[:n], y.copy(), 5))


@pytest.mark.parametrize("special", [*SPECIAL, 0.0, -0.0, -3.0])
def test_an_element_that_is_read_in_each_round_and_written_in_one(special):
    """It is taken to stay as it is: `special` decides whether it does."""
    x, y = np.linspace(0.1, 2, 200), np.linspace(2, 1, 200)
    for at in (0, 1, 100, 199, -1):
        x[at] = special
        check(least_ways, (np.ones(200), y.copy(), 3), (x, y.copy(), at), (x, x, at), (y, y, at), (x[::-1], y.copy(), at))
    both = np.linspace(3, 1, 260).view(np.uint8)[3:-5].view(np.float64)  # elements that overlap by halves
    check(least_ways, (x, y.copy(), 0), (x, both[:200], 5), (both[50:250], both[:200], 20), (both[:200], both[50:250], 20))


def counted_and_summed(x, low, n, step):
    total = 0
    for i in range(len(x)):
        if x[i] > low:
            n += i
            total -= step
        elif x[i] < -low:
            n = n - 3
    return n, total


@pytest.mark.parametrize("start", [0, -5, 2**60, 2**61 - 1, 2**61, -(2**61), 2**63 - 4000, -(2**63) + 2, 2**63, -(2**70)])
def test_what_is_added_in_all_rounds_is_bounded_before_the_loop(start):
    x = np.linspace(-1, 1, 1500)
    steps = (1, 2**36 - 1, 2**36, -(2**36), 2**53, 2**62, -(2**63))
    check(counted_and_summed, (x, 0.5, 0, 1), *((x, 0.5, start, step) for step in steps), (x, np.nan, start, 1), (x * np.nan, 0.5, start, 1))


def clipped_sum(x, low, start, broken):
    total, n = start, 0
    for v in x:
        if v < low:
            total += low
        elif v == broken:
            break
        else:
            total = total + v
        n += 1
    for i in range(len(x)):
        total = max(total, x[i]) if i % 7 else total + 0.5
    return total, n


@pytest.mark.parametrize("at", [0, 1, 2, 500, 1023, 1024, 1025, 2047, 2999])
def test_kinds_that_change_in_the_middle_of_a_chunk(at):
    """From Python's floats to NumPy's, at the first element that is large enough."""
    x = np.zeros(3000)
    x[at:] = np.linspace(0.5, 1.5, 3000 - at)
    for low in (0.25, np.float32(0.25)):
        check(clipped_sum, (x, low, 0.0, -1.0), (x, low, 1, x[2000]), (x, low, np.float64(0), -1.0), (x, low, 2**62, x[at]), (x, 5.0, 0.0, 1.0))


def escapes(x, n):
    z = 0j
    for i in range(n):
        z = z * z + complex(x[i], 0.5)
        if abs(z) > x[0] + 2.0:
            z = 0j
    return z


def checksums(data, poly):
    """What is added, or not, hangs on the number to which it is."""
    a, b, c, d = 0xFFFF, 1, 7, 0
    for byte in data:
        byte = int(byte * 255)
        for k in range(8):
            a = (a >> 1) ^ poly if (a ^ byte >> k) & 1 else a >> 1
            if b & 5 == byte & 5:
                b = (b >> 1) + poly
            else:
                b = b >> 1
            c = (c >> 3) - poly if c & 2 else c >> 3
            d = (d & 0xFF) | poly if d & 1 == 0 else d & 0xFF
    return int(a), int(b), int(c), int(d)


def test_what_is_added_or_not():
    data = np.random.default_rng(3).random(300)
    check(checksums, (data, 0x8408), (data[:1], 3), (data[:0], 3), (data, 0), (data, -5), (data.astype(np.float32), 2**40), (data.tolist(), 2**62), (data, 2**70))


def steps_to_one(numbers):
    n, steps = int(numbers[-1] * 837799), 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def collatz_numbers(starts, low):
    """Of numbers that are huge, and odd or even: a transaction that takes them for too large is undone, and Python's ints go on."""
    total = 0
    for start in starts:
        n, steps = start, 0
        while n != 1 and steps < 400:
            n = n // 2 if n % 2 == 0 or n < low else 3 * n + 1
            steps += 1
        total += steps
    return total, n


def test_huge_numbers_on_the_way_that_does_not_check():
    small = list(range(1, 40))
    check(collatz_numbers, (small, 0), ([2**61 + 2**60], 0), ([2**62 + 2**40, *small], 0), ([2**61 + 1, *small], 0), ([2**62 - 1, *small], 2**63 - 1), ([3 * 2**60 + 1, *small], 0), ([(2**63 - 2) // 3, (2**63 + 1) // 3], 0), ([-1, -(2**62)], -(2**63)), ([2**63], 0), ([2**70 + 1], 0))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("floyd_warshall_scalar", "again:"),
        ("sieve", ".slow:"),
        ("nussinov", ".slow:"),
        ("with_helpers", "double 6.250000e-02, double"),
        ("audio_filter", " = phi double"),
        ("steps_to_one", "%checked.first = "),
        ("floyd_warshall_scalar", "x double>"),
        ("add_scaled", "x double>"),
        ("clipped_halves", "x double>"),
        ("least_ways", "x double>"),
        ("counted_and_summed", "x i64>"),
        ("nearest", 'asm sideeffect "", "x"'),
        ("weighted_sums", "!framejit.sure"),
        ("collatz", "icmp ugt i64"),
        ("running_sum", "\ngrouped:"),
        ("in_nines", ".8:"),
        ("escapes", "0x3D719799812DEA11"),
        ("checksums", "%unfolded = xor i64"),
        ("nussinov", "@llvm.smax.v"),
    ],
)
def test_loops_have_a_copy_without_checks(name, wanted):
    calls = {"add_scaled": "(x.copy(), 0.5)", "clipped_halves": "(x.copy(), 0.5)", "least_ways": "(x.copy(), 5)", "counted_and_summed": "(0.5, 0, 1)", "weighted_sums": "(np.arange(3), x.copy(), 2000)", "in_nines": "(np.zeros(3000, int), np.ones((9, 9), int))", "escapes": "(3000,)", "checksums": "(0x8408,)", "steps_to_one": "()"}
    program = f"""
import framejit, numpy as np
from bench.loop_programs import PROGRAMS
import test_loops_checks
function, make = PROGRAMS.get({name!r}) or (getattr(test_loops_checks, {name!r}), lambda: (x, *{calls.get(name)}))
x = np.linspace(0, 1, 3000)
compiled = framejit.compile(function)
for _ in range(3): compiled(*make())
assert compiled.cache_info()["scalar_runs"]
"""
    text = llvm_of(program)
    last = name == "with_helpers"  # the version whose sum is Python's float at first
    assert wanted in text[(text.rindex if last else text.index)("define i64 @fj_scalar") :]


def column_updates(a, b, n):
    for k in range(n):
        for j in range(a.shape[1]):
            a[1:, j] -= b[:-1, k] * 0.5 + a[:-1, k] * b[k, j]


def rows_of_columns(a, b, n):
    for k in range(n):
        for i in range(a.shape[0]):
            a[i, : i + 1] += b[i, k] * b[: i + 1, k]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="vectors of four")
@pytest.mark.parametrize("name", ["column_updates", "rows_of_columns"])
def test_addresses_far_apart_are_sums(name):
    program = f"""
import framejit, numpy as np
import test_loops_checks
function = getattr(test_loops_checks, {name!r})
compiled = framejit.compile(function)
for size in (40, 40, 40, 9, 3, 2):
    a, b = np.random.default_rng(size).normal(size=(2, size, size))
    expected = a.copy()
    function(expected, b, size)
    compiled(a, b, size)
    assert expected.tobytes() == a.tobytes()
assert compiled.cache_info()["scalar_runs"]
"""
    text = llvm_of(program)
    text = text[text.rindex("define i64 @fj_scalar") :]
    assert "fmul <4 x double>" in text
    assert "extractelement <4 x i64>" not in text and "mul <4 x i64>" not in text and "masked.scatter" not in text


# --- numbers that are equal when code is made ----------------------------------------------------------------------------
def blended(a, b, c, n):
    for i in range(n):
        for j in range(a.shape[1]):
            c[i, j] = a[i, j] + b[j, i]
    return c


def test_sizes_that_were_equal_no_longer_are():
    def square(n):
        return np.arange(n * n * 1.0).reshape(n, n)

    def zeros(*shape):
        return np.zeros(shape)

    a, b, c = square(5), square(6), square(9)
    check(blended, (a, a, zeros(5, 5), 5), (b, b, zeros(6, 6), 6), (b, c, zeros(6, 6), 6), (a, a, zeros(5, 5), 6), (b, a, zeros(6, 6), 5), (a, a, zeros(5, 4), 5), (a, a, zeros(4, 5), 5), (a, a, zeros(5, 5), 3))


def distances(points, queries, out):
    for i in range(len(queries)):
        for j in range(len(points)):
            d = 0.0
            for k in range(points.shape[1]):
                t = points[j, k] - queries[i, k]
                d += t * t
            out[i, j] = d
    return out


def test_sizes_that_were_small_no_longer_are():
    def points(n, m):
        return np.arange(n * m * 1.0).reshape(n, m) % 7

    check(distances, *[(points(9, p), points(8, q), np.zeros((8, 9))) for p, q in [(3, 3), (2, 2), (3, 2), (2, 3), (4, 9), (1, 1), (0, 3), (3, 0), (70, 70)]])


def test_an_int_that_bounds_a_loop_was_a_size():
    def sums(x, n):
        total = 0
        for i in range(9):
            for k in range(n):
                total += x[k] * i
        return total, k

    x = np.arange(7)
    check(sums, (x, 7), (x, 8), (x[:6], 7), (x, 6), (x, 7), (x, 2**70))


# --- remainders ----------------------------------------------------------------------------------------------------------
def wraps(x, n, shift):
    total = 0
    for _ in range(3):
        for i in range(n):
            total = total * 3 % 1000003 + x[(i + shift) % n] + x[(i * shift) % len(x)]
    return total


@pytest.mark.parametrize("shift", [0, 1, -1, -7, 30])
def test_an_index_that_is_a_remainder(shift):
    x = np.arange(7, 20)
    check(wraps, (x, 13, shift), (x, 12, shift), (x, 14, shift), (x[:9], 9, shift), (x, -3, shift))
    check(wraps, (x, 13, shift), (x[:0], 5, shift))


def residues(values, divisors):
    out = []
    for i in range(len(values)):
        for d in divisors:
            out.append(values[i] % d)
            out.append(values[i] // d)
            out.append(i % d)
            out.append(i // d)
    return out


def test_remainders_of_all_signs():
    values = [0, 1, 5, -5, 6, -6, 2**62, -(2**63), 2**63 - 1, 17, -1] * 3
    check(residues, (values, [3, -3, 1, -1, 7]), (values, [2**62, -(2**62), 2**63 - 1]), (values, [3, 0]), (values[:1] * 20, [5]), (values, [-1]))


def remainders_of_counts(n, m):
    total = 0
    for i in range(n):
        for k in range(m, 0, -1):
            total += i % k + i // k
        for k in range(m):
            total += i % k
    return total


def test_counts_divided_by_counts():
    check(remainders_of_counts, (30, 0), (30, 5), (0, 4))


def spread(values, n):
    total = 0
    for i in range(n):
        v = values[i]
        total += abs(v // 4 - i // 4) + (v // 3) + (v >> 1) + (v >> n) - v // n
        total -= (v >> 1) + v // 3
    return total, abs(v // 1), v // 2 + v // 2 + v // 2


def test_quotients_are_smaller():
    edges = [-(2**63), -(2**63) + 1, -4, -1, 0, 3, 2**63 - 1, 2**62]
    check(spread, (edges, 8), (edges[::-1], 8), (edges[1:], 1), (edges[:1] * 3, 3), (edges[6:], 2), (edges, 9))
    check(spread, (np.arange(-40, 40), 80), (np.array(edges), 8), (np.arange(70), 70))


def in_nines(order, found, cells):
    for i in range(len(order)):
        r, c = i % 9, i % 5
        d = cells[r, c]
        for k in range(9):
            if cells[r, k] == d or cells[k, c] == d or cells[3 * (r // 3) + k // 3, 3 * (c // 3) + k % 3] == d:
                found[i] = k
                break
            found[i] -= cells[k, 8 - k] * d + k * r
        else:
            found[i] += 100
    return i, k, found


def test_loops_of_nine_rounds():
    cells = np.random.default_rng(3).integers(0, 4, (9, 9))
    cells[2] = 9
    order, found = np.arange(40.0), np.zeros(40, np.int64)
    check(in_nines, (order, found, cells), (order, found, -cells), (order, found, cells[:8].copy()), (order, found, cells[:, :7].copy()))
    check(in_nines, (order, found[:33], cells), (order, found, cells.astype(np.int16)), (order[:0], found, cells), (order, found, cells << 61))


# --- loops over very few numbers -----------------------------------------------------------------------------------------
def around(a, weights, out, first):
    k = 0
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            total = 0
            for di in range(first, 2):
                for dj in (-1, 0, 1):
                    if not di and not dj:
                        continue
                    total += a[i + di, j - dj] * weights[di + 1, dj + 1]
                    k = max(di, dj, k)
                if total > 1 << 40:
                    break
            else:
                out[i, j] = total
    return out, k, di, dj


def test_a_few_around():
    a = np.arange(56 * 68).reshape(56, 68) % 11
    inner, out = a[:55, :67], np.zeros((56, 68), np.int64)
    check(around, (a, np.ones((3, 3), np.int64), np.zeros((60, 70)), -1), (a, a[:3, :3], np.zeros((56, 68)), -1))
    check(around, (a, a[:3, :3] * 0.5, out, 0), (a, a[:3, :3] << 58, out, -1), (a, a[:3, :2], out, -1), (inner, a[3:6, 3:6], out, -1))


def over_few(values, out):
    n = 0
    for v in values:
        for k in range(2, -1, -1):
            for by in range(0, 4, 2):
                out.append(k or by)
                out.append(abs(by - k) - k)
                out.append(v // (k + by))
            n += k
        for k in range(3, 3):
            n -= 1
        for k in range(1):
            n += v
    return n, k, by


def test_very_few_numbers_downwards_and_by_twos():
    """The last of them divides by zero."""
    check(over_few, (list(range(400)), [7]), ([5] * 30, [1.5]))

    def good(values, out):
        for v in values:
            for k in range(2, -1, -1):
                for by in (1, 3):
                    out.append(k or by)
                    out.append(max(k, by, v) - k)
                    out.append(v // (k + by))
        return k, by

    check(good, (list(range(400)), [7]), ([5] * 30, [7]), ([2**63 - 1, 7] * 9, [7]), ([True, False] * 9, [7]), ([1.5] * 30, []))


# --- what an inner loop over few numbers leaves out ----------------------------------------------------------------------
def best_pairs(a, b, start, n):
    out, at = np.zeros(len(a)), np.zeros(len(a), np.int64)
    last = None
    for i in range(len(a)):
        best, where = start, -1
        for k in range(n):
            p = a[i, k] + b[k, i]
            if p > best:
                best, where = p, k
        out[i], at[i] = best, where
        last = best
    return out, at, last


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1.7e308])
@pytest.mark.parametrize("start", [-1e300, float("nan"), float("inf"), -5, np.float64(0.5), np.float64("nan")])
def test_the_greatest_of_sums_some_of_which_are_special(special, start):
    own = np.random.default_rng(3)
    a, b = own.random((7, 9)), own.random((9, 7))
    calls = [(a, b, start, 9), (a, b, start, 0), (a, b, start, 10)]
    for i, k in [(6, 8), (6, 0), (0, 4)]:
        x, y = a.copy(), b.copy()
        x[i, k] = special
        y[k, i] = special if special != 1.7e308 else 1.7e308
        calls += [(x, b, start, 9), (x, y, start, 9), (a - 9, y, start, 9), (x - 9, -y, start, 9)]
    check(best_pairs, *calls)


def rows_summed(a, n):
    out = np.zeros(len(a))
    for i in range(len(a)):
        for k in range(n):
            out[i] += a[i, k % 5] * k
    return out


def rows_listed(a, n):
    out = []
    for i in range(len(a)):
        s = 0.0
        for k in range(n):
            s += a[i, k % 5] * k
        out.append(s)
    return out


@pytest.mark.parametrize(("program", "loops"), [(rows_listed, 2), (rows_summed, 1)])
def test_an_inner_loop_that_was_brief_no_longer_is(program, loops):
    a = np.arange(60.0).reshape(12, 5)
    compiled = check(program, (a, 9), (a, 1024), (a, 1025), (a, 5000), (a, 3), loops=loops)  # code that was left is made anew, once
    for _ in range(12):  # until the whole function is one code
        compiled(a, 5000), compiled(a, 9)
    info = compiled.cache_info()
    for _ in range(6):
        compiled(a, 5000), compiled(a, 9)
    after = compiled.cache_info()
    assert after["scalar_loops"] == info["scalar_loops"] <= loops + 1 and after["scalar_runs"] > info["scalar_runs"]


def weighted_sums(x, w, out, n):
    for i in range(1, n):
        out[i] = w[0] * x[i - 1] + w[1] * x[i] + w[-1] * x[i + 1]
    return out


def test_elements_of_small_arrays_that_stay_the_same():
    x, w = np.arange(30.0), np.array([1, -2, 1])
    check(weighted_sums, (x, w, np.zeros(30), 29), (x, w, x, 29), (x, x[3:6], x, 29), (x, w[:2], np.zeros(30), 29), (x, w[::-1], np.zeros(30), 30), (x, w, w, 30), (x, w[:0], np.zeros(30), 29), (x, w[:0], np.zeros(30), 1))


def filtered(image, kernel, out, write):
    for y in range(1, image.shape[0] - 1):
        for x in range(1, image.shape[1] - 1):
            g = 0
            for dy in (-1, 0, 1):
                for dx in range(-1, 2):
                    g += kernel[dy + 1, dx + 1] * int(image[y + dy, x + dx])
            out[y, x] = g * 2
            if write:
                kernel[1, 2] = (x + y) % 3
    return out


@pytest.mark.parametrize("scale", [1, 2**30, 2**31, 2**40, 2**54, 2**55, 2**62, -(2**63)])
def test_products_with_numbers_that_stay_the_same(scale):
    image = np.random.default_rng(5).integers(0, 256, (9, 8)).astype(np.uint8)
    kernel = np.array([[1, 0, -1], [1, 1, -1], [1, 0, -1]]) * scale if scale > -(2**63) else np.full((3, 3), scale)
    out = np.zeros((9, 8), np.int64)
    check(filtered, (image, kernel // 2**20, out, False), (image, kernel, out, False), (image, kernel, out, True), (image // 200, kernel, out, True))


def test_elements_that_are_written_between_reads():
    image = np.random.default_rng(5).integers(0, 256, (9, 8)).astype(np.uint8)
    kernel = np.arange(9).reshape(3, 3)
    own = np.arange(72).reshape(9, 8)
    check(filtered, (image, kernel, np.zeros((9, 8), np.int64), True), (own, kernel, own, False), (own, own[2:5, 3:6], own, False), (image, own[:3, :3], own, True), (image, kernel[:2], own, False))


def scaled(x, n):
    total = 0
    for _ in range(n):
        x = 3 * x + 1
        total += 5 * (x & 7) - x * 9 + (x << 1)
    return x, total, x * 4, 8 * total


@pytest.mark.parametrize("start", [1, -1, 2**62 // 27, 2**62 // 9, 2**62, 2**63 // 3, -(2**62) // 3 - 1, -(2**63) // 3, 2**63 - 1, -(2**63), 2**70])
def test_products_with_small_constants_keep_to_pythons_integers(start):
    check(scaled, (1, 20), (start, 3), (start + 1, 3), (start, 20), (-start, 45), (start // 81, 30), (1, 70))
