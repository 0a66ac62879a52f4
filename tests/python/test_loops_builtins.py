"""Functions of Python and of `math` in scalar code, and functions that return in the middle of a loop."""

import math

import framejit
import numpy as np
import pytest
from test_loops_compiled import observed, rng, scalar_loops  # noqa: F401 (a fixture for this file, too)


def of_two(x, y, out):
    for i in range(len(x)):
        out[i, 0] = math.atan2(x[i], y[i])
        out[i, 1] = math.fmod(x[i], y[i])
        out[i, 2] = math.copysign(x[i], y[i])
        out[i, 3] = math.pow(abs(x[i]), y[i] * 0.1)
    return out


def _of_two():
    x, y = rng().standard_normal(100) * 10, rng().standard_normal(100) * 3
    special = [
        (np.r_[x[:5], np.inf, x[5:9]], y[:10]),
        (x[:9], np.r_[y[:4], 0.0, y[:4]]),
        (np.r_[x[:5], 1e300, x[5:9]], y[:10] * 1e3),
        (np.r_[x[:3], np.nan], y[:4]),
        (np.array([-0.0, 0.0, 3.0]), np.array([0.0, -0.0, -2.0])),
    ]
    return [(a, b, np.zeros((len(a), 4))) for a, b in [(x, y), *special]]


def rounded(x):
    total, half = 0, 0
    for i in range(len(x)):
        total += round(x[i])
        half += round(float(x[i]) * 0.5) + round(i) + round(i > 3)
    return total, half


def _rounded():
    x = np.round(rng().standard_normal(100) * 20) / 2
    ends = ([2.0**51, 2.0**52 + 1, -(2.0**53), 1e18], [1e19], [np.nan], [-np.inf], [0.49999999999999994, 4503599627370495.5])
    return [(x,), (x + 0.5,), (x * 1e15,), (x.astype(np.float32),), *((np.r_[x[:4], end],) for end in ends)]


def divisors(a, b):
    total = 0
    for i in range(len(a)):
        total += math.gcd(a[i], int(b[i])) % 1000003
    return total


def _divisors():
    a, b = rng().integers(-1000, 1000, 100), rng().integers(1, 50, 100)
    least = np.r_[a[:4], -(2**63)]
    return [
        (a, b),
        (a * 0, b),
        (least, np.r_[b[:4], 0]),
        (least, np.r_[b[:4], -(2**63)]),
        (a.astype(np.int8), b),
        (a.astype(float), b),
    ]


def both(a, b):
    total, rest = 0, 0.0
    for i in range(len(a)):
        q, r = divmod(a[i], b[i])
        total += q * 3 + r
        q, r = divmod(int(a[i]), int(b[i]))
        total += q - r
        f, h = divmod(float(a[i]) * 0.37, float(b[i]))
        rest += f - h
    return total, rest


def _both():
    a, b = rng().integers(-1000, 1000, 100), rng().integers(1, 50, 100)
    return [
        (a, b),
        (a, -b),
        (np.r_[a[:5], 7], np.r_[b[:5], 0]),
        (np.r_[a[:5], -(2**63)], np.r_[b[:5], -1]),
        (a.astype(np.int8), b.astype(np.int8)),
        (np.array([-128, 5], np.int8), np.array([-1, 3], np.int8)),
        (a * 0.3, b * 0.7),
    ]


@pytest.mark.parametrize(("program", "cases"), [(of_two, _of_two()), (rounded, _rounded()), (divisors, _divisors()), (both, _both())])
def test_functions_of_numbers(program, cases):
    compiled = framejit.compile(program, options={"leave": False})
    for args in cases:
        for _ in range(3):
            assert observed(compiled, program, args, __file__) == observed(program, program, args, __file__)
    info = compiled.cache_info()
    assert info["scalar_runs"] >= 3, info
    assert any("is machine code" in note for note in info["notes"]), info


def first_pair(x, target):
    for i in range(len(x)):
        for j in range(i):
            if x[i] + x[j] == target:
                return i
    return -1


def pairs(x, targets, out):
    for k in range(len(targets)):
        out[k] = first_pair(x, targets[k])
    return out


def above(x, limit):
    for i, v in enumerate(x):
        if v > limit:
            return i
    return None


@pytest.mark.parametrize("program", [pairs, above])
def test_a_return_in_a_loop_is_part_of_the_code(program):
    x = rng().integers(0, 90, 40)
    cases = [(x, np.arange(10) * 15, np.zeros(10)), (x[:1], np.arange(5), np.zeros(5)), (x[:0], np.arange(5), np.zeros(5))]
    if program is above:
        cases = [(x, 80), (x, 100), (x, -1), (x[:0], 3)]
    compiled = framejit.compile(program, options={"leave": False})
    for _ in range(6000):
        compiled(*cases[0])
    assert any("as a whole" in note for note in compiled.cache_info()["notes"])
    before = compiled.cache_info()["scalar_runs"]
    compiled(*cases[0])
    assert compiled.cache_info()["scalar_runs"] == before + 1
    for args in cases:
        assert observed(compiled, program, args, __file__) == observed(program, program, args, __file__)


def scaled(x, n):
    t = 0.0
    for i in range(n):
        t += x[i % 3]
    return x * t


def scaled_or_not(x, n):
    t = 0.0
    for i in range(n):
        t += x[i % 3]
        if t > 30:
            return x * t, t
    return t, x


@pytest.mark.parametrize("program", [scaled, scaled_or_not])
def test_an_array_that_is_computed_when_it_is_returned(program):
    compiled = framejit.compile(program, options={"leave": False})
    for _ in range(3000):
        compiled(np.arange(3.0), 40)
    for args in ((np.arange(3.0), 40), (np.arange(3.0), 7), (np.arange(3.0) * np.nan, 40), (np.arange(3), 40)):
        assert observed(compiled, program, args, __file__) == observed(program, program, args, __file__)
    assert compiled.cache_info()["scalar_runs"] >= 3000
