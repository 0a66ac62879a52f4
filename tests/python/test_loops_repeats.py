"""What loop code has computed or looked at already, in the round before or on the way there: memory, indices, conditions, bits."""

import platform

import numpy as np
import pytest

from tests.python.test_loops_compiled import check, llvm_of, rng, scalar_loops  # noqa: F401 (a fixture)


def counted_bits(x):
    total = twice = 0
    last = -1
    for i in range(len(x)):
        v = int(x[i])
        n = v
        while n:
            n &= n - 1
            total += 1
            twice += 2
        last = n
    return total, twice, last


def kernighan(v, n, step):
    while True:
        v = v & (v - 1)
        n += 3
        step -= 1
        if v == 0:
            break
    return v, n, step


def last_bits(x):
    top = 0
    for i in range(len(x)):
        v = int(x[i])
        while v:
            top, v = v, v & (v - 1)
    return top


def marked_bits(x, seen):
    n = 0
    for i in range(len(x)):
        v = int(x[i])
        while v:
            v &= v - 1
            seen[n % len(seen)] += v
            n += 1
    return n, seen


# Of a number below 0 such a loop has no end.
def test_bits_that_are_counted_one_by_one():
    x = rng().integers(0, 2**62, 300)
    check(counted_bits, (x,), (x,), (x[:0],), (np.zeros(5, int),), (np.array([1, 2**62, 2**63 - 1, 0]),),)
    check(counted_bits, (x.astype(np.uint8),), (x.astype(np.uint8),), (np.array([2**64 - 1, 2**63], np.uint64),), (x[::3],))
    check(counted_bits, (x.tolist(),), ([2**70 - 1, 7],), ([True, 2**40],))
    for n, step in ((0, 0), (2**63 - 10, 5), (-(2**63), -(2**63) + 20), (1 << 43, 1 << 60)):
        check(kernighan, (2**40 - 1, n, step), (0, n, step), (1, n, step), (2**63 - 1, n, step), (2**64 - 1, n, step))
    check(last_bits, (x,), (x,), (np.array([6, 0]),))
    check(marked_bits, (x, np.zeros(7, int)), (x, np.zeros(7, int)), (x[:0], np.zeros(0, int)))


def sieve_of_factors(n):
    low = np.zeros(n + 1, np.int64)
    primes = np.zeros(n + 1, np.int64)
    count = 0
    for i in range(2, n + 1):
        if low[i] == 0:
            low[i] = i
            primes[count] = i
            count += 1
        j = 0
        while j < count and primes[j] <= low[i] and i * primes[j] <= n:
            low[i * primes[j]] = primes[j]
            j += 1
    return count, low, primes


def falling(x, limit):
    i = n = 0
    while x[i] * limit < 1000:
        n += x[i] * limit
        i += 1
    return i, n


def swapped(n, rounds):
    a, b = np.arange(n), np.zeros(n, np.int64)
    c = a
    for k in range(rounds):
        for i in range(1, n):
            b[i] = a[i - 1] + c[i] - k
        a, b = b, a
    return a, b, c, c is a


def one_or_other(n, which):
    a, b = np.zeros(n), np.ones(n)
    c = a if which else b
    for i in range(1, n):
        a[i] = c[i - 1] + 1.0
        b[i] = c[i] * 2.0
    return a, b, c


def made_in_rounds(n):
    total, last = 0, np.zeros(4, np.int64)
    for k in range(n):
        now = np.zeros(4, np.int64)
        for i in range(4):
            now[i] = last[3 - i] + k
            last[i] = now[i] - i
        total += now[1] * last[2]
        last = now
    return total, last


def test_made_arrays_are_apart_where_no_name_may_stand_for_two():
    check(sieve_of_factors, (500,), (500,), (1,), (0,), (2,), (3000,), (-3,))
    check(swapped, (50, 7), (50, 7), (50, 8), (1, 3), (0, 2), (2, 2))
    check(one_or_other, (50, True), (50, True), (50, False), (1, True), (0, False))
    check(made_in_rounds, (60,), (60,), (0,), (1,), (400,))


def test_what_a_round_computes_for_the_next_one():
    x = np.arange(1, 4000)
    check(falling, (x, 1), (x, 1), (x, 3), (x, -1), (-x, 2**61), (x, 2**62), (x[:3], 5), (x[:0], 1))


def knapsack(weights, values, capacity):
    best = np.zeros((len(weights) + 1, capacity + 1), np.int64)
    for i in range(len(weights)):
        for c in range(capacity + 1):
            best[i + 1, c] = best[i, c]
            if weights[i] <= c and best[i, c - weights[i]] + values[i] > best[i + 1, c]:
                best[i + 1, c] = best[i, c - weights[i]] + values[i]
    return best


def twice_from_the_end(x, places):
    total = 0
    for k in range(len(places)):
        p = places[k]
        if x[p] > 2:
            x[p] += 1
            total += x[p] * 3
        else:
            total -= x[p]
        if total % 5 < 3:
            x[p] -= 2
    return total, x


def test_an_index_that_was_looked_at():
    w, v = rng().integers(1, 30, 12), rng(8).integers(1, 90, 12)
    check(knapsack, (w, v, 100), (w, v, 100), (w, v, 0), (-w, v, 100), (w - 5, v, 20), (w * 0, v, 5), (w, v * 2**60, 90), (w[:0], v, 9))
    x, places = rng().integers(-9, 9, 20), rng(9).integers(-20, 20, 400)
    check(twice_from_the_end, (x, places), (x, places), (x, places * 0 - 20), (x, places * 0 - 21), (x, places * 0 + 20), (x[:0], places), (x, places[:0]), (x.astype(np.int8), places), (x, np.array([2**63 - 1])), (x, np.array([-(2**63)])))


def squares(values):
    total = most = 0
    for v in values:
        total += v * v % 7
        most = max(most, v)
    return total, most


def squares_of_another(values, x):
    total = 0
    for v in values:
        w = v
        v = v - x
        total += v * w % 7 + v * v // 3
    return total


def test_squares_are_not_negative():
    small = list(range(-900, 2000, 7))
    check(squares, (small,), (small,), ([],), ([2**31, -(2**31)],), ([3037000499, -3037000499],), ([3037000500],), ([2**63],), ([-(2**70), 3],), ([True, 5],), ([1.5],))
    check(squares_of_another, (small, 0), (small, 5), (small, 10**6), (small, -(2**62)), ([2**40], 2**40))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code of this machine is another one")
@pytest.mark.parametrize(
    ("call", "wanted", "unwanted"),
    [
        ("counted_bits(np.arange(3000))", "@llvm.ctpop.i64(", None),
        ("kernighan(2**62 - 1, 0, 0)", None, "@llvm.ctpop.i64("),  # too few rounds for code
        ("marked_bits(np.arange(3000), np.zeros(5, int))", None, "@llvm.ctpop.i64("),
        ("squares(list(range(3000)))", " = urem i64", " = srem i64"),
    ],
)
def test_the_code_says_so(call, wanted, unwanted):
    name, arguments = call.split("(", 1)
    text = llvm_of(f"import framejit, numpy as np\nfrom test_loops_repeats import {name}\nc = framejit.compile({name})\nfor _ in range(40): c({arguments}\n")
    assert not wanted or wanted in text
    assert not unwanted or unwanted not in text


def products_in(text):
    """How many products that may overflow the last whole function's code has."""
    return text[text.rindex("define i64 @fj_scalar") :].count("@llvm.smul.with.overflow.i64(i64 %")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code of this machine is another one")
def test_a_condition_has_computed_what_its_body_asks():
    text = llvm_of("import framejit\nfrom test_loops_repeats import sieve_of_factors\nc = framejit.compile(sieve_of_factors)\nfor _ in range(1500): c(300)\nassert c.cache_info()['notes'][-1].endswith('as a whole')\n")
    assert products_in(text) == 2  # before the first round, and for the next one
    text = llvm_of("import framejit, numpy as np\nfrom test_loops_repeats import knapsack\nc = framejit.compile(knapsack)\nw = np.arange(1, 15)\nfor _ in range(1500): c(w, w, 90)\n")
    whole = text[text.rindex("define i64 @fj_scalar") :]
    assert whole.count("@llvm.ssub.with.overflow.i64(i64 %") <= 2  # in the loop and in its copy that looks at more
