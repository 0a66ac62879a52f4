"""Short searches in code that is a transaction: what ends them, what is wrong in them, and that all they look at is looked at."""

import copy

import framejit
import numpy as np
import pytest


def matches(data, pattern, longest):
    found = np.zeros(len(data), np.int64)
    for i in range(len(data)):
        k = 0
        while k < longest and pattern[k] == data[i + k]:
            k += 1
        found[i] = k
    return found


def sorted_in_place(order, key):
    for i in range(1, len(order)):
        v = order[i]
        j = i
        while j > 0 and key[order[j - 1]] > key[v]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = v
    return order


def set_bits(x):
    total = 0
    for i in range(len(x)):
        n = int(x[i])
        while n:
            n &= n - 1
            total += 1
    return total


def first_from(x, start, wanted):
    at = np.zeros(len(start), np.int64)
    for i in range(len(start)):
        j = start[i]
        while x[j] != wanted and j < 1 << 19:
            j += 1
        at[i] = j
    return at


def _same(a, b):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and a == b


def _result(f, arguments):
    try:
        return f(*arguments), arguments
    except IndexError as e:
        return str(e), arguments


R = np.random.default_rng(7)
LONG = np.zeros(400_000, np.int8)
LONG[-1] = 1
USUAL = {
    matches: (np.append(R.integers(0, 2, 200), [9] * 12), np.array([0, 1, 0, 1, 1, 7]), 6),
    sorted_in_place: (np.arange(80), R.random(80)),
    set_bits: (R.integers(0, 1 << 62, 200),),
    first_from: (np.tile([0, 0, 1], 100), np.arange(290), 1),
}
OTHER = [
    (matches, (np.array([0, 1] * 40), np.array([0, 1, 0, 1]), 4)),  # the last ones look behind the end
    (matches, (np.array([0, 1] * 40 + [5] * 9), np.array([0, 1, 0]), 30)),  # the pattern ends
    (matches, (np.zeros(0, np.int64), np.array([0, 1]), 2)),
    (matches, (np.array([1]), np.array([0]), 1)),
    (matches, (np.array([3, 4, 5, 6, 7] * 9), np.array([5, 9]), 0)),
    (sorted_in_place, (np.arange(0), R.random(1))),
    (sorted_in_place, (np.arange(1), R.random(1))),
    (sorted_in_place, (np.arange(50)[::-1].copy(), np.arange(50.0))),
    (sorted_in_place, (np.arange(-40, 0), R.random(40))),  # indices from the end
    (sorted_in_place, (np.arange(60), np.append(R.random(40), [np.nan] * 20))),
    (sorted_in_place, (np.arange(60), R.random(30))),  # too few keys
    (set_bits, (np.array([0, 1, 2**63 - 1, 2**62]),)),
    (set_bits, (np.zeros(0, np.int64),)),
    (first_from, (np.tile([0, 0, 1], 100), np.arange(-290, 0), 1)),
    (first_from, (np.tile([0, 0, 1], 100), np.arange(290), 2)),  # runs out
    (first_from, (LONG, np.array([0, 5, 399_998]), 1)),  # more rounds than a transaction has
]


@pytest.mark.parametrize(("f", "arguments"), OTHER, ids=lambda v: getattr(v, "__name__", ""))
def test_searches(f, arguments):
    compiled = framejit.compile(f)
    for _ in range(40):
        got, want = _result(compiled, copy.deepcopy(USUAL[f])), _result(f, copy.deepcopy(USUAL[f]))
        assert _same(got, want)
    assert compiled.cache_info()["scalar_runs"] > 0
    for given in (arguments, USUAL[f], arguments):
        assert _same(_result(compiled, copy.deepcopy(given)), _result(f, copy.deepcopy(given)))
