"""Scalar programs that textbooks have, and what they needed: ints of which the lowest bits are asked, NumPy's small ints, rows that are
unpacked, floats that become indices."""

import math
import types

import framejit
import numpy as np
import pytest
from test_loops_compiled import DTYPES, check, copied, rng, scalar_loops  # noqa: F401 (a fixture for this file, too)
from textbook_loops import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_textbook_programs(name):
    function, make = PROGRAMS[name]
    check(function, make())


def one_run(program, *args):
    """Nothing of the loop is left to Python, but for calls that are Python's as a whole, which are timed."""
    own = types.FunctionType(
        program.__code__.replace(), program.__globals__
    )  # nothing of it is known
    compiled = framejit.compile(own)
    runs = [0]
    for _ in range(8):
        compiled(*map(copied, args))
        runs.append(compiled.cache_info()["scalar_runs"])
    assert max(np.diff(runs[3:])) == 1, runs


# --- the lowest bits of sums and products -------------------------------------------------------------------------------------
def hashed(values, more):
    h, t = 5381, 0
    for i in range(len(values)):
        v = values[i]
        h = (
            (h * 0x9E3779B97F4A7C15 + v) & 0x7FFFFFFF
            if more
            else (h * 6364136223846793005 + v) & 0xFFFFFFFF
        )
        t = 0xFFFF & ((v * v - h * 3) ^ (v * 0x7FFFFFFFFFFFFFF | h))
    return h, t


def test_lowest_bits_of_products():
    values = [int(v) for v in rng().integers(-(2**62), 2**62, 300)]
    one_run(hashed, values, False)
    check(hashed, (values, False), ([2**40, -(2**62), 3], False), (values, True))


def mixed(values, factor):
    h = 1
    for i in range(len(values)):
        h = (h * factor + values[i]) & 0xFFFFFFFF
    return h


def test_lowest_bits_of_numpys_ints_warn_where_they_overflow():
    values = rng().integers(-(2**20), 2**20, 80)
    one_run(mixed, values, 31)
    large = np.array([2**62, 2**63 - 1, -(2**63), 5, 2**32] * 16)
    for factor in (31, 0x9E3779B1):
        check(mixed, (values, factor), (large, factor), (large.tolist(), factor))


def looked_up_and_kept(table, n):
    k, total = 3, 0
    for _ in range(n):
        k = (k | 1) * 5
        total += table[k & 7]
    return k, total


def test_lowest_bits_are_not_all_that_a_later_block_asks():
    one_run(looked_up_and_kept, [1, 2, 3, 4] * 2, 25)
    check(looked_up_and_kept, ([1, 2, 3, 4] * 2, 25), ([1, 2, 3, 4] * 2, 60))


def turned(values):
    a, b = 1, 0
    for v in values:
        a = ((a << 7 | a >> 25) ^ (v << 40)) & 0xFFFFFFFF
        b ^= (a << (v & 31)) & 0xFFFF
    return a, b


def test_lowest_bits_of_shifts():
    values = [int(v) for v in rng().integers(-(2**62), 2**62, 200)]
    one_run(turned, values)
    check(turned, (values,), ([2**62, -1, 5] * 30,))


def looked_up(values, table, size):
    total = 0
    for i in range(len(values)):
        total += (values[i] * values[i] + table[(values[i] * 7919) & size]) & 0xFFFFFF
    return total


def kept(values):
    total = last = 0
    for v in values:
        p = v * v
        total += p & 0xFF
        last = p
    return total, last


def signed(values):
    total = 0
    for v in values:
        total ^= (v * v) & -256
    return total


def test_products_that_are_wanted_as_a_whole():
    large = [3, 2**33, -(2**40), 5] * 30
    check(kept, ([1, 2, 3] * 40,), (large,))
    check(signed, ([1, 2, 3] * 40,), (large,))
    table = np.arange(16)
    check(
        looked_up, (large, table, 15), (large, table, 255), ([2**62, 1] * 40, table, 16)
    )


# --- NumPy's ints ---------------------------------------------------------------------------------------------------------------
def shifted(x, by, out):
    for i in range(len(x)):
        out[i] = x[i] << by[i % len(by)]
    return out


def shifted_back(x, n):
    h = x[0]
    for i in range(n):
        h ^= h << x[i % len(x)]
        h ^= h >> x[(i + 1) % len(x)]
    return h


@pytest.mark.parametrize(
    "dtype", [t for t in DTYPES if np.dtype(t).kind in "iu" and t != "uint64"]
)
def test_shifts_lose_what_leaves_the_type(dtype):
    info = np.iinfo(dtype)
    x = np.concatenate(
        [
            rng().integers(info.min, info.max, 60, dtype=dtype),
            np.array([info.min, info.max, 0, 1], dtype),
        ]
    )
    bits = 8 * x.itemsize
    one_run(shifted, np.tile(x, 20), np.arange(bits).astype(dtype), np.tile(x, 20))
    check(
        shifted,
        (x, np.arange(bits).astype(dtype), x.copy()),
        (x, np.array([bits - 1, bits, 1], dtype), x.copy()),
    )
    check(shifted_back, (np.array([3, 1, 2, 5], dtype), 80))


def cast(values, t, n):
    last = t(1)
    for i in range(n):
        last = t(values[i % len(values)])
    return last


CASTS = [
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.float32,
    np.float64,
]


@pytest.mark.parametrize("to", CASTS, ids=lambda t: t.__name__)
def test_numbers_become_numpys(to):
    whole = np.array([-(2**40), 2**31, -1, 3, 300, 70000])
    check(cast, ([1, 2, 3], to, 60), ([True, False], to, 60), loops=1)
    check(
        cast,
        (whole, to, 60),
        (whole[2:4], to, 60),
        (np.array([200, 3], np.uint8), to, 60),
    )
    check(cast, ([1, 2, 3] * 40, to, 60), ([1, 2, 300, -1, 2**31, 2**70] * 20, to, 60))
    if to in (np.float32, np.float64):
        check(
            cast,
            (np.array([0.1, 2.5, np.nan, np.inf]), to, 60),
            (np.array([0.1, 1e300, 2.5]), to, 60),
        )


# --- rows ---------------------------------------------------------------------------------------------------------------------------
def pairs(edges):
    total = 0
    for i in range(len(edges)):
        a, b = edges[i]
        total += a * b - a
    return total


def planes(x):
    total = 0.0
    for i in range(len(x)):
        top, bottom = x[i]
        for j in range(len(top)):
            total += top[j] - bottom[j]
    return total


def fives(x):
    total = 0
    for row in x:
        a, b, c, d, e = row
        total += a - b * c + d * e
    return total


def test_rows_are_unpacked():
    edges = rng().integers(0, 9, (50, 2))
    one_run(pairs, edges)
    check(
        pairs,
        (edges,),
        (edges[:, ::-1],),
        (np.zeros((50, 3), int),),
        (np.zeros((50, 1)),),
    )
    check(planes, (rng().random((40, 2, 6)),))
    fifth = rng().integers(0, 9, (60, 10))
    one_run(fives, fifth[:, :5])
    check(fives, (fifth[:, ::2],), (fifth[:, :5],), (fifth,), (fifth[:, :4],))


# --- floats that become indices -----------------------------------------------------------------------------------------------------
def counted(x, counts):
    for v in x:
        k = int(v)
        if 0 <= k < len(counts):
            counts[k] += 1
    return counts


def picked(x, counts):
    for v in x:
        counts[int(v)] += 1
    return counts


def above(x, least):
    n = 0
    for v in x:
        if int(v) > least:
            n += 1
    return n


@pytest.mark.parametrize(
    "odd",
    [
        np.nan,
        np.inf,
        -np.inf,
        1e300,
        -1e300,
        2.0**63,
        -(2.0**63),
        -(2.0**62),
        -3.5,
        100.0,
    ],
)
def test_floats_that_are_no_index(odd):
    x = rng().random(200) * 9
    other = x.copy()
    other[150] = odd
    for program in (counted, picked):
        check(
            program,
            (x, np.zeros(10, int)),
            (other, np.zeros(10, int)),
            (x, np.zeros(4, int)),
        )
    check(above, (x, 4), (other, 4), (other, -5))


# --- kinds that change between rounds of an outer loop --------------------------------------------------------------------------------
def largest(x):
    best = 0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            best = max(best, x[i, j])
    return best


def to_and_fro(x, rounds):
    s = 0
    for i in range(rounds):
        for j in range(len(x)):
            s += x[j] if i % 2 else 1
        s = int(s) if i % 2 else float(s)
    return s


def runs_of_each_call(program, *args):
    compiled = framejit.compile(
        types.FunctionType(program.__code__.replace(), program.__globals__)
    )
    runs = [0]
    for _ in range(10):
        compiled(*map(copied, args))
        runs.append(compiled.cache_info()["scalar_runs"])
    return np.diff(runs)


def test_code_of_its_own_for_each_kind():
    x = rng().integers(-5, 100, (40, 30))
    assert max(runs_of_each_call(largest, x * 0.5)[4:]) == 2
    assert max(runs_of_each_call(largest, x)[4:]) == 1  # an int of either kind
    check(largest, (x,), (-abs(x),), (x * 0.5,), (x[:, :0],))


def test_kinds_that_come_and_go_are_one_code():
    x = rng().random(30)
    assert max(runs_of_each_call(to_and_fro, x, 40)[4:]) <= 2
    check(to_and_fro, (x, 40), (x, 3), (np.arange(9), 12))


# --- what is asked under a condition of the program's --------------------------------------------------------------------------------
def two_before(x):
    best = 0
    for i in range(1, len(x)):
        v = x[i] + x[i - 1]
        if i > 1 and x[i - 2] > v:
            v = x[i - 2]
        if i + 1 < len(x) and x[i + 1] < v:
            v += 1
        best += v
    return best


def test_indices_that_a_condition_guards():
    check(
        two_before,
        (rng().integers(0, 50, 200),),
        (rng().integers(0, 50, 3),),
        (np.array([5]),),
        (rng().random(64),),
    )


# --- what math raises --------------------------------------------------------------------------------------------------------------------
def roots(x, out):
    for i in range(len(x)):
        out[i] = math.sqrt(x[i] * 2.0 + 1.0)
    return out


def logs(x):
    s = 0.0
    for i in range(len(x)):
        s += math.log(x[i]) + math.sqrt(x[i])
    return s


@pytest.mark.parametrize(
    "odd", [-3.0, -0.5, -0.0, 0.0, np.inf, -np.inf, np.nan, 1e308, 5e-324]
)
def test_errors_of_math(odd):
    x = rng().random(100)
    other = x.copy()
    other[70] = odd
    check(roots, (x, x.copy()), (other, x.copy()))
    check(logs, (x,), (other,))
