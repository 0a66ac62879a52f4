"""Checks of loop code that are asked once before a loop: where they hold in all rounds, and where they fail in one of them."""

import numpy as np
import pytest

from tests.python.test_loops_compiled import check, scalar_loops  # noqa: F401 (a fixture)


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
