"""Loops that carry on what they write: quotients of divisors that stay the same are made of two products, to the last bit (codegen/quotients.h),
elements that a round writes twice stay in registers, and ranges that count down tell that their numbers are no negative indices."""

import math

import framejit
import numpy as np
import pytest
from test_loops_compiled import check, llvm_of


@pytest.fixture(autouse=True)
def scalar_loops():
    with framejit.config.patch(scalar_loops=True):
        yield


def smoothed(x, y):
    for i in range(1, len(x)):
        x[i] += x[i - 1]
        x[i] /= 9.0


def divided(x, y):
    for _ in range(2):
        for i in range(1, len(x)):
            x[i] = (x[i - 1] * 0.75 + x[i]) / y


def twice(x, y):
    s = 0.0
    for i in range(len(x)):
        s = (s - x[i]) / y / 7.0
        x[i] = s
    return s


def both_ways(x, y):
    for _ in range(2):
        for i in range(1, len(x)):
            x[i] = (x[i] - x[i - 1]) / 3.0
        for i in range(len(x) - 2, -1, -1):
            x[i] = (x[i] - x[i + 1]) / y


QUOTIENTS = [smoothed, divided, twice, both_ways]
# Some are small odd numbers times a power of two, some are none, some of these lie too far from 1.
DIVISORS = [9.0, -3.0, 10.0, 0.1, 1.0, 0.5, float(2**48 - 1), float(2**49 - 1), float(2**53 - 1), 3.0 * 2.0**-99, 3.0 * 2.0**-102, 3.0 * 2.0**99, 3.0 * 2.0**101, 5e-324, math.inf, math.nan]  # fmt: skip
SPECIALS = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, -1e-310, 2.0**-700, 2.0**-701, 2.0**701, 1.7e308]


def numbers(n, seed, special=None):
    r = np.random.default_rng(seed)
    x = r.standard_normal(n) * 2.0 ** r.integers(-40, 40, n)
    if special is not None and n > 3:
        x[n // 3] = special
        x[-2:] *= special
    return x


@pytest.mark.parametrize("program", QUOTIENTS)
def test_quotients_are_the_divisions(program):
    check(program, *[(numbers(300, k), y) for k, y in enumerate(DIVISORS)], *[(numbers(n, n), 9.0) for n in (0, 1, 2, 5, 40)])


@pytest.mark.parametrize("program", QUOTIENTS)
@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.filterwarnings("ignore")
def test_quotients_of_special_numbers(program, special):
    check(program, (numbers(200, 1), 9.0), (numbers(200, 2, special), 9.0), (numbers(200, 3), np.float64(7.0)), (numbers(200, 4) * 1e-305, 11.0), (numbers(200, 5, special), 6.0))


def test_many_quotients():
    r = np.random.default_rng(5)
    compiled = framejit.compile(divided)
    for n in range(60):
        y = float(r.integers(1, 1 << int(r.integers(1, 53))))
        x = r.standard_normal(2000) * 2.0 ** r.integers(-600, 600)
        expected, got = x.copy(), x.copy()
        divided(expected, y)
        compiled(got, y)
        assert expected.tobytes() == got.tobytes(), (n, y)
    assert compiled.cache_info()["scalar_runs"]


def written_twice(x, y):
    for _ in range(3):
        for i in range(1, len(x)):
            x[i] += x[i - 1]
            x[i] *= 0.5


def written_twice_at_a_distance(x, y):
    for i in range(2, len(x)):
        x[i] = x[i - 2] + 1.0
        x[i] = x[i - 1] * 0.5


def written_on_one_way(x, y):
    for i in range(1, len(x)):
        x[i] += x[i - 1] * 0.25
        x[i] = min(x[i], y)


def written_through_another(x, y):
    for i in range(1, len(x)):
        x[i] += x[i - 1]
        y[i] = x[i] * 0.5
        x[i] = y[i - 1] + 1.0


@pytest.mark.parametrize("program", [written_twice, written_twice_at_a_distance, written_on_one_way])
def test_elements_that_are_written_twice(program):
    x = numbers(100, 3)
    check(program, *[(x[:n], 1.5) for n in (0, 1, 2, 3, 100)], (x[::-1], 1.5), (x[::3], 0.5), (np.lib.stride_tricks.as_strided(x.copy(), (50,), (0,)), 1.0), (numbers(60, 4, math.inf), 1.0))


def test_elements_that_another_name_writes():
    compiled = framejit.compile(written_through_another)
    for n in range(6):
        for of in (lambda x: x[:40], lambda x: x[1:41], lambda x: x[39::-1], lambda x: np.arange(40.0)):
            a, b = numbers(41, n), numbers(41, n)
            written_through_another(a[:40], of(a))
            compiled(b[:40], of(b))
            assert a.tobytes() == b.tobytes()
    assert compiled.cache_info()["scalar_runs"]


def downwards(x, first, last, step):
    s = 0.0
    for i in range(first, last, step):
        for j in range(len(x)):
            s += x[i] * x[j]
        x[i] = x[i] * 0.5 + i
    return s


def whole_downwards(x, last, step):
    n = 0
    for i in range(len(x) - 1, -1, -1):
        for j in range(i + 1, len(x)):
            x[i] = max(x[i], x[j] - 1.0)
            n += i
    for k in range(len(x) - 1, last, step):
        n += k
        x[k] += 1.0
    return n


def test_ranges_that_count_down():
    x = numbers(30, 6)
    check(downwards, (x, 29, -1, -1), (x, 29, -1, -2), (x, 29, 3, -3), (x, 28, -1, -9), (x, 0, -1, -1), (x, -1, -1, -1), (x, 5, 9, -1))
    check(downwards, (x, 29, -1, -1), (x, 29, -8, -1), (x, 3, -31, -1), (x, 3, -32, -1), (x, -1, -6, -2), (x, 40, -1, -1))
    check(downwards, (x, 0, 30, 2), (x, -4, 30, 3), (x, 1, 30, 7), (x, -30, 0, 4), (x, 0, 31, 5))
    check(downwards, (x, 29, -31, -7), (x, 29, -1, -1), (x, 29, -2**62, -(2**61)), (x, 2**62, -1, -(2**62)))


def test_ranges_of_whole_functions():
    compiled = framejit.compile(whole_downwards)
    for last, step in [(-1, -1)] * 6 + [(-1, -2), (4, -1), (-5, -1), (-41, -1), (-1, -1), (40, 1), (50, -1)]:
        for n in (40, 40, 7):
            for same in range(2):
                a, b = numbers(n, n), numbers(n, n)
                results = []
                for f, x in ((whole_downwards, a), (compiled, b)):
                    try:
                        results.append(f(x, last, step))
                    except IndexError as error:
                        results.append(str(error))
                assert results[0] == results[1], (last, step, n, same)
                assert a.tobytes() == b.tobytes()
    assert compiled.cache_info()["scalar_runs"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("smoothed", "call double @llvm.fma.f64"),
        ("divided", "call double @llvm.fma.f64"),
        ("written_twice", "%carried = phi double"),
    ],
)
def test_what_code_is_made(name, wanted):
    program = f"""
import framejit, numpy as np
import test_loops_recurrences
compiled = framejit.compile(test_loops_recurrences.{name})
for _ in range(3): compiled(np.linspace(0, 1, 3000), 9.0)
assert compiled.cache_info()["scalar_runs"]
"""
    text = llvm_of(program)
    assert wanted in text[text.index("define i64 @fj_scalar") :]
