"""Loops that carry on a float which is Python's at first and NumPy's then, elements that one round writes and the next one reads, and checks on one way of a
branch: results, kinds, warnings and errors are Python's."""

import math

import framejit
import numpy as np
import pytest
from test_loops_compiled import check

# --- a float of Python or of NumPy ---------------------------------------------------------------------------------------------


def products(a, b, n):
    out = np.zeros(n)
    for i in range(n):
        s = 0.0
        for k in range(a.shape[1]):
            s += a[i, k] * b[k]
        out[i] = s
    return out, s


def test_sums_that_begin_with_pythons_zero():
    a, b = np.linspace(-1, 2, 300).reshape(60, 5), np.linspace(1, 2, 5)
    check(products, (a, b, 60), (a[:, :0], b[:0], 60), (a * 1e308, b * 1e10, 60), (a, b * np.inf, 60), (a, b, 61))


def kinds_of_sums(a, n):
    s, seen = 0.0, []
    for i in range(n):
        t = s * 2
        if a[i] > 0.5:
            s = s + a[i] / 2
        if s > 3:
            s = s - 1
        u = -t
        seen.append(max(t, 0.5))
    return s, t, u, seen


def test_the_kind_of_a_float_shows():
    a = np.linspace(0, 1, 50)
    compiled = check(kinds_of_sums, (a, 50), (a, 20), (a, 27), (np.where(a > 0.8, np.inf, a), 50), (np.where(a > 0.8, np.nan, a), 50), loops=0, runs=0)
    assert [type(v) for v in compiled(a, 20)[:2]] == [float, float]
    assert [type(v) for v in compiled(a, 50)[:2]] == [np.float64, np.float64]


def quotients(a, by, n):
    s = 1.0
    for i in range(n):
        s = s / by[i]
        if i % 7 == 6:
            s += a[i]
    return s


@pytest.mark.parametrize("at", [0, 3, 6, 7, 20, 39])
def test_division_by_zero_is_pythons_error_or_numpys_warning(at):
    def by(n, zero):
        return [0.0 if i == zero else 1.5 for i in range(n)]

    a = np.linspace(1, 2, 40)
    check(quotients, (a, by(40, -1), 40), (a, by(40, at), 40), (a * np.inf, by(40, at), 40), (a * np.nan, by(40, at), 40))


def smallest(a, n):
    best, where = 1e300, -1
    for i in range(n):
        d = 0.0
        for k in range(i % 3):
            d += (a[i] - a[k]) ** 2
        if d < best and i > 4:
            best, where = d, i
    return best, where, d


def test_the_smallest_of_sums():
    check(smallest, (np.linspace(1, 2, 60), 60), (np.linspace(1, 2, 60), 3), (np.full(60, np.nan), 60), (np.linspace(1, 1e200, 60), 60))


def stored(x, n):
    v, out, ints = 0.5, np.zeros(n), np.zeros(n, np.int32)
    for i in range(n):
        out[i] = v
        ints[i] = int(v)
        w = math.sqrt(v) + float(v)
        v = v * x[i]
    return out, ints, v, w


def test_what_is_stored_and_converted():
    check(stored, (np.full(40, 1.1), 40), (np.full(40, -1.1), 40), (np.full(40, 1e30), 40), (np.full(40, np.nan), 40))


# --- names that are bound in the rounds alone ----------------------------------------------------------------------------------


def bound_late(x, n):
    for i in range(n):
        for j in range(i):
            t = x[j] * 2
            if t > 1:
                u = t
    return i, j, t, u


def test_names_that_are_not_bound_at_first():
    x = np.linspace(0, 1, 30)
    check(bound_late, (x, 30), (x, 1), (x, 2), (x * 0, 30), (x, 31), loops=0, runs=0)


def test_names_that_are_not_bound_at_first_in_new_functions():
    x = np.linspace(0, 1, 30)
    for args in [(x, 1), (x, 2), (x * 0, 30), (x, 31), (x, 0)]:
        check(bound_late, args, loops=0, runs=0)


# --- elements that the next round reads ----------------------------------------------------------------------------------------


def smoothed(x, y, alpha, start):
    for i in range(start, len(x)):
        y[i] = y[i - 1] + alpha * (x[i] - y[i - 1])
    return y


def test_the_element_before():
    x = np.linspace(-1, 1, 50) ** 3
    check(smoothed, (x, x * 0, 0.1, 1), (x, x * 0, 0.1, 0), (x, x[:20] * 0, 0.1, 1), (x, x * np.inf, 0.1, 1), (x * 1e308, -x * 1e308, 3.0, 1))


def test_the_element_before_of_one_array():
    x = np.linspace(-1, 1, 50)

    def same(x, alpha):
        return smoothed(x, x, alpha, 1)

    def shifted(x, alpha):
        return smoothed(x[1:], x[:-1], alpha, 1), x

    def broadcast(x, alpha):
        return smoothed(x, np.lib.stride_tricks.as_strided(x.copy(), x.shape, (0,)), alpha, 1)

    for program in (same, shifted, broadcast):
        check(program, (x, 0.5), (x * 2, 0.25), loops=0, runs=0)


def stored_first(x, y):
    total = 0.0
    for i in range(len(y) - 1):
        y[i + 1] = x[i]
        total += y[i]
    return total


def columns(m, k):
    total = 0.0
    for j in range(m.shape[1]):
        for i in range(1, m.shape[0]):
            m[i, j] = k * i + j
            total = total * 0.5 + m[i - 1, j]
    return total


def test_the_element_before_where_rounds_write_to_one_place():
    strided = np.lib.stride_tricks.as_strided

    def with_stride(stride):
        def program(x):
            return stored_first(x[:50], strided(x[50:], (50,), (stride,))), x

        return program

    def in_columns(strides):
        def program(x):
            return columns(strided(x, (12, 20), strides), 0.3), x

        return program

    for stride in (0, 4, 8, 16):
        check(with_stride(stride), (np.arange(300.0),), (np.arange(300.0) / 7,))
        check(in_columns((stride, 8)), (np.arange(300.0),), (np.arange(300.0) / 7,))
        check(in_columns((8, stride)), (np.arange(300.0),), (np.arange(300.0) / 7,))


def two_stores(x, n):
    for i in range(2, n):
        x[i] = x[i - 1] + 1
        x[i - 2] = x[i] * 2
    return x


def written_between(x, n):
    for i in range(1, n - 1):
        x[i] = x[i - 1] + x[i + 1]
        x[n - 1 - i] = i
    return x


def test_other_writes_between():
    for dtype in (np.float64, np.int32):
        check(two_stores, (np.arange(30).astype(dtype), 30), (np.arange(30).astype(dtype), 31))
        check(written_between, (np.arange(30).astype(dtype), 30), (np.arange(31).astype(dtype), 31))


# --- checks on one way of a branch ---------------------------------------------------------------------------------------------


def steps(n, most):
    count = 0
    while n != 1 and count < most:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    return n, count


def test_overflow_on_one_way_alone():
    # 3 * n is more than 64 bits where n is even, and where it is odd.
    check(steps, (27, 200), (2**61 + 1, 300), (2**62, 100), (2**62 + 2, 200), (3 * 2**60 + 1, 500), (-7, 60), (1, 5))


def both_ways(x, n):
    s = 1
    for i in range(n):
        s = s * 3 if x[i] > 0 else s + 2**62
    return s


def test_overflow_on_both_ways():
    x = np.zeros(100)
    y = np.ones(100)
    y[40:] = 0
    check(both_ways, (x, 100), (y, 100), (np.ones(100), 100), (y, 30), loops=0, runs=0)


def bins(x, n, wanted):
    counts = np.zeros(n, np.int64)
    for v in x:
        k = int(v * wanted)
        if 0 <= k < wanted:
            counts[k] += 1
    return counts


def test_floats_to_ints():
    x = np.linspace(-2, 3, 200)
    check(bins, (x, 30, 30), (x, 30, 31), (x * 1e19, 30, 30), (-x * 1e18, 30, 30), (x, 30, -3), (np.where(x > 2, np.nan, x), 30, 30), (np.where(x > 2, np.inf, x), 30, 30))


# --- an int of Python or of NumPy ----------------------------------------------------------------------------------------------
def last_links(links, wanted, n):
    """`j` is an int of Python at first, and one of NumPy once it was read; `best` is now this, now that, in the rounds of an inner loop."""
    best, steps = 0, np.zeros(n, np.int64)
    for i in range(n):
        j = i
        while links[j] >= 0:
            j = links[j]
            steps[i] += 1
        best = max(best, j, wanted[i])
    return best, j, steps


def test_ints_that_are_pythons_first():
    links = np.arange(-1, 59)
    links[::7] = -1
    wanted = np.arange(60) % 9 - 4
    compiled = check(last_links, (links, wanted, 60), (links, -abs(wanted), 1), (links[:8], wanted, 8), (links, wanted.astype(np.int32), 60), (links, wanted.tolist(), 60), (links, wanted * 1.5, 60), (links, wanted, 61))
    assert [type(v) for v in compiled(links, -abs(wanted), 1)[:2]] == [int, int]
    assert [type(v) for v in compiled(links, wanted, 60)[:2]] == [int, np.int64]


def computed(operate, start, a, with_what):
    """Each operator on an int that is of either kind: of NumPy behind the first element above 3."""
    v, seen = start, []
    for i in range(len(a)):
        for _ in range(2):
            if a[i] > 3:
                v = a[i]
        seen.append(operate(v, with_what))
    return v, seen


def plus(v, w):
    return v + w


def minus(v, w):
    return w - v


def times(v, w):
    return v * w


def floor(v, w):
    return v // w


def rest(v, w):
    return w % v


def over(v, w):
    return v / w


def bits(v, w):
    return (v & w) | (v ^ 5)


def left(v, w):
    return v << w


def right(v, w):
    return v >> w


def power(v, w):
    return v**w


def less(v, w):
    return 1 if v < w else 0


def equal(v, w):
    return v == w


def signs(v, w):
    return (-v, abs(v), ~v, +v, not v)


def indexed(v, w):
    return (10, 20, 30, 40, 50)[v % 5], w


def counted(v, w):
    s = 0
    for k in range(v % 7):
        s += k
    return s


@pytest.mark.parametrize("operate", [plus, minus, times, floor, rest, over, bits, left, right, power, less, equal, signs, indexed, counted])
def test_operators_on_ints_of_either_kind(operate):
    a = np.array([1, 2, 3] * 9 + [4, 1, 2, 9, 3, 2**53 + 1, 1, 2**62])
    for w in (3, 0, 2.5, np.int64(-7), np.int32(7), np.uint64(7), *([] if operate in (power, left) else [2**62])):
        check(computed, *[(operate, start, a, w) for start in (2, np.int64(5), 2**70)], (operate, -1, a[:9], w), loops=0, runs=0)


def stored_ints(x, y, z, start):
    v = start
    for i in range(len(x)):
        for k in range(2):
            if x[i] > 3:
                v = x[i]
        y[i] = v
        z[i, v % 2] = v - 1
    return v


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.float32, np.float64, np.bool_, np.complex128])
def test_ints_of_either_kind_are_stored(dtype):
    x = np.array([1, 2, 3] * 9 + [4, 1, 2, 9, 3, 200, 300, 2**40, 2**53 + 1])
    for start in (2, 300):
        check(stored_ints, *[(x[:n], np.zeros(n, dtype), np.zeros((n, 2), dtype), start) for n in (36, 20, 34)])


def highest(x, low, high):
    """max and min of a constant and an element: a number of either kind, whose kind is asked at the end."""
    most, s = 0, 0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            v = max(low, min(x[i, j], high))
            s += v * 2
            most = max(most, v)
    return most, s, v


@pytest.mark.parametrize("limits", [(0, 50), (-5, 5), (0.5, 1.5), (0, 2.5), (0, np.int64(40)), (np.float64(-0.0), 0.0), (float("nan"), 1.0)])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float64, np.float32])
def test_extremes_of_numbers_of_either_kind(limits, dtype):
    x = (np.arange(80).reshape(10, 8) * 7 % 61 - (0 if dtype == np.uint8 else 9)).astype(dtype)
    check(highest, (x, *limits), (x[:1] * 0, *limits), (x[::-1], *limits))


def _entered(rounds, times, ask):
    """An inner loop of few rounds, whose end is Python's."""
    total = 0
    for i in range(times):
        j = 0
        while True:
            total += j * i & 7
            j += 1
            if j >= rounds:
                ask[0].append(total)
                j = 0
                break
    return total


def test_code_that_replaces_few_instructions_is_entered_often():
    """Entering and leaving costs what some hundred instructions do; what lies between two runs is run in one go."""
    compiled = framejit.compile(_entered)
    with framejit.config.patch(leave=False):
        for _ in range(2):
            ours, plain = [[]], [[]]
            assert compiled(20, 300, ours) == _entered(20, 300, plain)
            assert ours == plain
    assert compiled.cache_info()["scalar_runs"] > 500, compiled.cache_info()


def test_iterators_go_on_where_code_was_left():
    """Iterators over ranges and lists that the frame has are told where the code has got to; a list may grow meanwhile."""

    def program(a, steps, seen):
        for i in range(40, -41, -steps):
            for x in a:
                if x == 3 and len(a) < 60:
                    a.append(float(i))
                elif x > 2:
                    seen.append((i, x))
            for j in range(len(seen) % 7):
                seen[0] = (i, j)
        return len(seen)

    compiled = framejit.compile(program)
    with framejit.config.patch(leave=False):
        for steps in (1, 1, 3):
            results = []
            for run in (program, compiled):
                a, seen = [1.0, 2.0, 3.0, 4.0], [(0, 0.0)]
                results.append((run(a, steps, seen), a, seen))
            assert results[0] == results[1]
    assert compiled.cache_info()["scalar_runs"] > 100, compiled.cache_info()
