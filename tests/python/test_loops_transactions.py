"""Code of loops that is undone where Python would raise, warn or go on with larger ints: nothing is kept for the frame in its rounds.
Where that happens the code is made anew, without it: so `scalar_loops` tells."""

import itertools
import os
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from test_loops_compiled import observed

import framejit


def compare(compiled, program, *args):
    assert observed(compiled, program, args) == observed(program, program, args)
    return compiled.cache_info()["scalar_loops"]


def sums(a, out):
    total = 0
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            total += int(a[i, j]) * 3
            out[i] += a[i, j] * 2 + total % 5
    return total


def quotients(a, b, out):
    for i in range(len(a)):
        for j in range(len(b)):
            out[i, j] = int(a[i]) // int(b[j])
    return out


def places(a, at, out):
    n = 0
    for i in range(len(at)):
        for j in range(2):
            out[n] = a[at[i], j]
            n += 1
    return n


def halves(x, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] / (x[i, j] - 3.0)
    return out


def ints(*shape, least=-50, most=50):
    return np.random.default_rng(3).integers(least, most, shape)


LAST = {
    "sums": (sums, (ints(6, 7), np.zeros(6, np.int64)), lambda a, out: a.__setitem__((5, 6), 2**62)),
    "sums of the least": (sums, (ints(6, 7), np.zeros(6, np.int64)), lambda a, out: a.__setitem__((3, 2), -(2**63))),
    "quotients": (quotients, (ints(9), ints(5, least=1), np.zeros((9, 5), np.int64)), lambda a, b, out: b.__setitem__(4, 0)),
    "quotients that do not fit": (quotients, (ints(9), ints(5, least=1), np.zeros((9, 5), np.int8)), lambda a, b, out: a.__setitem__(8, 5000)),
    "places": (places, (ints(8, 2), ints(20, least=0, most=8), np.zeros(40, np.int64)), lambda a, at, out: at.__setitem__(18, 8)),
    "places from the end": (places, (ints(8, 2), ints(20, least=0, most=8), np.zeros(40, np.int64)), lambda a, at, out: at.__setitem__(18, -3)),
    "places without room": (places, (ints(8, 2), ints(20, least=0, most=8), np.zeros(37, np.int64)), None),
    "halves": (halves, (np.arange(72.0).reshape(9, 8) + 5, np.zeros((9, 8))), lambda x, out: x.__setitem__((8, 3), 3.0)),
    "halves of nothing": (halves, (np.arange(72.0).reshape(9, 8) + 5, np.zeros((9, 8))), lambda x, out: x.__setitem__((7, 1), np.inf)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LAST)
def test_what_was_written_is_put_back(name):
    """The last rounds are unlike the others: what came before them is computed again, and is there once."""
    program, args, spoil = LAST[name]
    args = tuple(np.copy(a) for a in args)
    compiled = framejit.compile(program)
    for _ in range(3):
        loops = compare(compiled, program, *args)
    assert loops >= 1
    if spoil:
        spoil(*args)
    for _ in range(3):
        loops = compare(compiled, program, *args)
    assert loops <= 4 and compiled.cache_info()["scalar_runs"] >= 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LAST)
def test_whole_functions_are_put_back(name):
    program, args, spoil = LAST[name]
    args = tuple(np.copy(a) for a in args)
    compiled = framejit.compile(program)
    fresh = lambda: tuple(np.copy(a) for a in args)  # noqa: E731
    for k in range(2500):
        if k % 97 < 2 and name != "places without room":
            compare(compiled, program, *fresh())
        else:
            try:
                compiled(*fresh())
            except IndexError:
                assert name == "places without room"
    if spoil:
        spoil(*args)
    for _ in range(4):
        compare(compiled, program, *fresh())
    assert compiled.cache_info()["scalar_runs"] > 1500 or name == "places without room"


def largest(a, b):
    best = 0
    for i in range(len(a)):
        for j in range(len(b)):
            if a[i] + b[j] > best:
                best = a[i] + b[j]
            b[j] = b[j] + 1
    return best


KINDS = [np.array(v) for v in ([1, 2, 3], [-1, 2, -3], [2**30 - 1, 2**30, 7], [-(2**30), 1, 0], [-(2**30) - 1, 1, 0], [2**62, 2**62, 1], [2**63 - 1, 0, 0], [-(2**63), 5, 1], [0, 0, 0])]


@pytest.mark.parametrize("first", range(len(KINDS)))
def test_ints_that_were_small_no_longer_are(first):
    """How large ints of an array are is looked at before the code is entered, each time."""
    compiled = framejit.compile(largest)
    order = [*KINDS[first:], *KINDS[:first]]
    for a, b in itertools.product(order, order[:3]):
        compare(compiled, largest, a, b.copy())
    assert compiled.cache_info()["scalar_runs"] > 3


def test_arrays_that_were_empty_no_longer_are():
    """One without elements tells nothing of how large its ints are."""

    def program(b, n):
        s = 0
        for _ in range(n):
            for j in range(len(b)):
                s = (s + int(b[j]) * int(b[j])) % 1000003
            s += 1
        return s

    compiled = framejit.compile(program)
    for _ in range(2):
        compare(compiled, program, np.arange(5)[:0], 3000)
    compare(compiled, program, np.full(9, 2**33 + 3), 30)
    assert compiled.cache_info()["scalar_runs"] >= 2


def test_arrays_that_lie_elsewhere():
    """Views with gaps are not copied, what shares memory is one memory, and large arrays of which little is written stay where they are."""
    compiled = framejit.compile(largest)
    for _ in range(3):
        compare(compiled, largest, np.arange(5), np.arange(9))
        compare(compiled, largest, np.arange(10)[::2], np.arange(27)[::3])
        compare(compiled, largest, np.arange(6).reshape(2, 3).T[0], np.arange(9)[::-1])
        both = np.arange(12)
        compare(compiled, largest, both[:6], both[3:9])
        compare(compiled, largest, np.arange(0), np.arange(4))
        compare(compiled, largest, np.arange(3), np.arange(0))
        compare(compiled, largest, np.arange(2), np.arange(30_000))
    assert compiled.cache_info()["scalar_runs"] >= 3


def counted(n, m, out):
    k = 0
    for i in range(n):
        for j in range(m):
            k += j & 1
        out[i % 7] = k
    return k


@pytest.mark.parametrize("size", [(3, 5), (1000, 300), (3, 1 << 19), (1 << 17, 1), (1, 1 << 18), (40, (1 << 16) + 1)])
def test_long_runs(size):
    """A run ends where the outermost loop goes round after 2^16 rounds, and is undone after 2^18 that do not come there."""
    compiled = framejit.compile(counted)
    for n, m in ((9, 8), (9, 8), size, (9, 8), size):
        out = np.zeros(7, np.int64)
        assert compiled(n, m, out) == n * (m // 2)
        assert out.tolist() == [(max((i for i in range(max(n - 7, 0), n) if i % 7 == k), default=-1) + 1) * (m // 2) for k in range(7)]
    assert compiled.cache_info()["scalar_runs"] >= 4 and compiled.cache_info()["scalar_loops"] <= 4


def test_signals_are_served():
    """The handler sees a state that the program has, and what it raises ends the loop there."""
    seen = []

    def ring(*_):
        seen.append(out.copy())
        if len(seen) == 3:
            raise TimeoutError

    compiled = framejit.compile(counted)
    out = np.zeros(7, np.int64)
    for _ in range(3):
        compiled(30, 40, out)
    before = compiled.cache_info()["scalar_runs"]
    old = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with pytest.raises(TimeoutError):
            compiled(1 << 40, 50, out)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert len(seen) == 3 and all((a <= b).all() for a, b in itertools.pairwise(seen)) and (seen[2] <= out).all()
    assert compiled.cache_info()["scalar_runs"] > before


def test_signals_are_served_between_sums_of_many_elements():
    def program(x, n):
        s = 0.0
        for _ in range(n):
            for _ in range(2):
                s += x.max() + x.sum()
        return s

    def ring(*_):
        raise TimeoutError

    compiled = framejit.compile(program)
    for _ in range(3):
        compiled(np.ones(50), 40)
    before = compiled.cache_info()["scalar_runs"]
    assert before
    x = np.ones(1_000_000)
    old = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    start = time.perf_counter()
    try:
        with pytest.raises(TimeoutError):
            compiled(x, 10_000)  # some ten seconds
    finally:
        signal.signal(signal.SIGALRM, old)
    assert time.perf_counter() - start < 3


def test_inner_loops_of_called_functions():
    def inner(x, n):
        s = 0
        for k in range(n):
            s += x * k
        return s

    def program(a, n):
        out = np.zeros(len(a), np.int64)
        for i in range(len(a)):
            for j in range(2):
                out[i] += inner(a[i], n) + j
        return out

    compiled = framejit.compile(program)
    for n in (4, 4, 4, 40, 0, 100_000, 3):
        compare(compiled, program, np.arange(5), n)
        compare(compiled, program, np.array([2**58, -(2**60), 1]), min(n, 50))
    assert compiled.cache_info()["scalar_runs"]


# --- checks of numbers behind the loop -----------------------------------------------------------------------------------
def longest(t):
    """Each round reads the row that it writes."""
    n = t.shape[0]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            for k in range(i + 1, j):
                t[i, j] = max(t[i, j], t[i, k] + t[k + 1, j])
    return t


def least_paths(a, b, out):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(a.shape[1]):
                out[i, j] = min(out[i, j], a[i, k] + b[k, j])
    return out


def row_sums(a, out):
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            out[i] += a[i, k]
    return out


def best_of_column(t, j):
    """Some rounds read the element that all of them write."""
    for i in range(t.shape[0]):
        for k in range(t.shape[1]):
            t[i, j] = max(t[i, j], t[i, k] + t[k % 2, j])
    return t


def spoiled(a, *at):
    a = a.copy()
    for place in at:
        a[place] = np.iinfo(a.dtype).max
    return a


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_sums_that_do_not_fit_in_loops_of_vectors(dtype):
    """Such a sum is seen behind the last round: what the rounds after it have written is undone, too."""

    def some(*shape):
        return ints(*shape, least=0, most=3).astype(dtype)

    t, out = some(30, 30), some(9)
    cases = [
        (longest, (t,), (some(2, 2),), (some(0, 0),), (some(60, 60)[::2, ::2],), (spoiled(t, (3, 20)),), (spoiled(t, (29, 29), (2, 5)),)),
        (least_paths, (t[:9], t[:, :7], t[:9, :7]), (t[:2, :0], t[:0, :7], t[:2, :7]), (spoiled(t[:9], (8, 29)), t[:, :7] + dtype(1), t[:9, :7]), (t[:9], t.T[:, :7], t[:9, :7])),
        (row_sums, (t[:9], out), (t[:1, :1], out[:1]), (t[:9], spoiled(out, 8)), (spoiled(t[:9], (4, 7), (4, 8)), out)),
        (best_of_column, (t, 0), (t, 17), (t, 29), (spoiled(t, (4, 7)), 3), (spoiled(t, (1, 9)), 9)),
    ]
    for program, usual, *others in cases:
        compiled = framejit.compile(program)
        for args in (usual, usual, *others, usual):
            for _ in range(2):
                compare(compiled, program, *map(np.copy, args[:-1]), args[-1] if isinstance(args[-1], int) else np.copy(args[-1]))
        assert compiled.cache_info()["scalar_runs"] >= 4


def greatest_sum_in_one(t, a):
    for i in range(len(t)):
        for k in range(len(a)):
            t[40] = max(t[40], t[i] + a[k])


def stored_where_flagged(a, b, c, flags):
    s = 0
    for i in range(len(a)):
        for k in range(len(b)):
            v = int(a[i]) - int(b[k])
            if flags[k] > 0:
                c[k] = v
            s += v
    return s


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_what_the_loop_around_reads_is_written_in_the_inner_one(dtype):
    """Round 40 of the outer loop reads, in each round of the inner one, the element that these write."""
    compiled = framejit.compile(greatest_sum_in_one)
    for _ in range(3):
        compare(compiled, greatest_sum_in_one, np.zeros(50, dtype), np.ones(5, dtype))
    assert compiled.cache_info()["scalar_runs"] >= 2


def last_sums(y, n):
    s, t = 0, 1
    for i in range(n):
        s = 0
        for j in range(i):
            s = (2 + y[-j]) + j
        t = s
    return s, t


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_a_sum_of_the_last_round_alone(dtype):
    """LLVM keeps that sum and whether it fitted in one value."""
    compiled = framejit.compile(last_sums)
    for n in (50, 50, 20, 55, 0, 1):
        compare(compiled, last_sums, np.arange(59).astype(dtype), n)
    assert compiled.cache_info()["scalar_runs"] >= 4


def test_a_number_is_narrow_where_it_was_asked_for_alone():
    compiled = framejit.compile(stored_where_flagged)
    for at in (0, 0, 1000, 1000):
        b = np.zeros(50, np.int16)
        b[7] = at
        compare(compiled, stored_where_flagged, np.zeros(40, np.int16), b, np.zeros(50, np.int8), np.zeros(50, np.int8))
    assert compiled.cache_info()["scalar_runs"] >= 2


def test_what_was_hoped_of_a_transaction():
    """A nest whose first rounds are short is made one; where the runs stay short beside the array, once more without."""

    def program(a, n):
        for i in range(n):
            for j in range(i):
                a[i, j] += a[j, i] + 1
        return a

    for n, made in ((90, 1), (3, 2)):
        a = np.ones((90, 90), np.int32)
        compiled = framejit.compile(program)
        for _ in range(12):
            compare(compiled, program, a, 90 if made == 1 else n)
        assert compiled.cache_info()["scalar_loops"] == made


def summed(a, out):
    total = 0
    for i in range(len(a)):
        total += int(a[i]) * 3
        out[i] = total % 1000
    return total


def looked_up(a, at, out):
    n = 0
    for i in at:
        out[n] = a[i] * 2
        n += 1
    return n


def ratios(x, out, n):
    most = 0.0
    for i in range(n):
        d = x[i] / (x[i] - 3.0)
        if d > most:  # noqa: PLR1730
            most = d
        out[i] = most
    return most


ONE_LOOP = {
    "sums": (summed, lambda: (ints(90), np.zeros(90, np.int64)), lambda a, out: a.__setitem__(89, 2**62)),
    "places": (looked_up, lambda: (ints(30), ints(60, least=0, most=30), np.zeros(60, np.int64)), lambda a, at, out: at.__setitem__(58, 30)),
    "ratios": (ratios, lambda: (np.arange(80.0) + 5, np.zeros(80), 80), lambda x, out, n: x.__setitem__(79, 3.0)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ONE_LOOP)
def test_one_loop_is_put_back(name):
    """A loop with no other in it and at most 2^16 rounds is one transaction, too: the first unusual run makes its code anew, and that leaves
    at the right round."""
    program, make, spoil = ONE_LOOP[name]
    compiled, args = framejit.compile(program), make()
    for _ in range(4):
        loops = compare(compiled, program, *args)
    spoil(*args)
    anew = compare(compiled, program, *args)
    assert loops < anew <= loops + 2
    assert [compare(compiled, program, *args) for _ in range(2)] == [anew] * 2
    assert compare(compiled, program, *make()) == anew


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_loop_that_writes_little_of_an_array_copies_none():
    compiled = framejit.compile(ratios)
    x, out = np.arange(80.0) + 5, np.zeros(1 << 18)
    for _ in range(4):
        loops = compare(compiled, ratios, x, out, 80)
    x[79] = 3.0
    for _ in range(3):
        assert compare(compiled, ratios, x, out, 80) == loops


@pytest.mark.parametrize("n", [0, 1, 2, 7, 5000, (1 << 16) - 1, (1 << 16) + 1, (1 << 17) + 5])
def test_one_loop_with_other_numbers_of_rounds(n):
    compiled = framejit.compile(summed)
    for size in (60, 60, n, 60, n):
        a = ints(size)
        compare(compiled, summed, a, np.zeros(size, np.int64))
    assert compiled.cache_info()["scalar_loops"] <= 4 and compiled.cache_info()["scalar_runs"] >= 2


def test_functions_that_have_computed_much_become_one_code_sooner():
    for size, calls, whole in ((20_000, 30, True), (8, 40, False)):
        compiled = framejit.compile(types.FunctionType(summed.__code__.replace(), globals()))  # nothing of it is known
        a = ints(size)
        for _ in range(calls):
            out = np.zeros(size, np.int64)
            assert compiled(a, out) == 3 * a.sum()
        assert out.tolist() == (np.cumsum(3 * a) % 1000).tolist()
        assert any("as a whole" in note for note in compiled.cache_info()["notes"]) == whole


# --- what is put back is copied to memory that is used again ----------------------------------------------------------------
def columns(a, q, r):
    for k in range(a.shape[1]):
        for j in range(k + 1, a.shape[1]):
            r[k, j] = np.dot(q[:, k], a[:, j])
            a[:, j] -= q[:, k] * r[k, j]


def test_large_arrays_are_put_back():
    given = np.random.default_rng(4).normal(size=(3, 200, 200)) / 20
    compiled = framejit.compile(columns)
    for _ in range(3):
        loops = compare(compiled, columns, *given.copy())
    given[0, 50, 199] = 1e308  # NumPy warns in the middle: all is as it was, and Python goes on from there
    given[1] *= 100
    assert compare(compiled, columns, *given) > loops


def test_copies_of_large_arrays_cost_no_fresh_pages():
    program = """
import resource
import numpy as np
import framejit
from test_loops_transactions import columns
given = np.random.default_rng(4).normal(size=(3, 200, 200)) / 20
compiled = framejit.compile(columns)
for _ in range(6):
    args = [x.copy() for x in given]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    compiled(*args)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
assert compiled.cache_info()["scalar_runs"] > 5
print(faults)
"""
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "FRAMEJIT_POISON": "0", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 200 * 200 * 8 / 4096, done.stdout
