"""Loops with masks (`z[m] = z[m] ** 2 + c[m]`), rows of what they choose, arrays of indices that say what is written, and ufuncs that
write into an array: machine code, with NumPy's values to the last bit."""

import numpy as np
import pytest
from test_loops_compiled import check, rng, scalar_loops  # noqa: F401


def normal(*sizes):
    return rng().standard_normal(sizes)


def whole(*sizes):
    return rng().integers(-9, 9, sizes)


def decay(x, n):
    for i in range(n):
        m = x > 0.1 * i
        x[m] = x[m] * 0.5 - i
        x[x < -3] = 0.25
    return x


@pytest.mark.parametrize("sizes", [(40,), (0,), (1,), (7, 9), (3, 4, 5)])
def test_stores_under_a_mask(sizes):
    check(decay, (normal(*sizes), 30), (normal(*sizes), 3))


def test_masks_of_views():
    check(decay, (normal(30)[::2], 25))
    check(lambda x, n: decay(x.T, n), (normal(8, 6), 25))
    check(lambda x, n: decay(x[1:, ::-1], n), (normal(8, 6), 25), runs=0, loops=0)


def test_what_is_not_a_number_lies_under_no_mask():
    check(decay, (np.full(5, np.nan), 25))


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "int32"])
def test_integers_under_masks(dtype):
    def program(x, n):
        c = np.zeros(x.shape, np.int64)
        for i in range(n):
            m = x == i % 5
            c[m] += 1
            x[~m] += 1
            x[x > 100] = 0
        return x, c

    check(program, (whole(5, 6).astype(dtype), 25))


def test_masks_of_masks():
    def program(x, y, n):
        out = np.zeros(x.shape)
        for i in range(n):
            m = (x > y) & (y < 1.0)
            out[m] = x[m] * y[m] + out[m]
            k = np.logical_or(m, x < 0)
            np.logical_not(k, k)
            out[k] -= y[k]
            x[m] = y[m]
        return out, x

    check(program, (normal(50), normal(50), 20), (normal(1), normal(1), 20))
    check(program, (normal(50), normal(51), 20), loops=0, runs=0)  # NumPy's error


def test_a_mask_that_is_written_under_another():
    def program(m, k, n):
        for i in range(n):
            m[k] = False
            m[m] = True
            k[:-1][m[1:]] = True
            k[k] = m[k]
            m[::3] = True
        return m, k

    check(program, (normal(40) > 0, normal(40) > 0, 20))


def test_a_mask_made_of_a_shifted_view_of_what_is_written():
    def program(x, n):
        for i in range(n):
            x[1:][x[:-1] > 0] = -1.0
            x[:-1][x[1:] < 0] = 0.5
        return x

    check(program, (normal(40), 20))


def test_rows_of_what_a_mask_chooses():
    def program(x, n):
        t = 0.0
        for i in range(n):
            y = x[x > 0.1 * i]
            if len(y) == 0:
                break
            t += y.sum()
            z = y * 2.0
            t += len(z)
            x = x[x > 0.2 * i - 10]
        return t, x

    check(program, (normal(90), 20), (normal(0), 20))
    check(program, (normal(90, 3), 1), loops=0, runs=0)


@pytest.mark.parametrize(
    "z",
    [normal(30) + 1j * normal(30), normal(5, 6) + 1j * normal(6), normal(0) + 0j, np.array([2 + 0j, -2, 2j, 1 + 1j]), np.array([1e200 + 1e200j, 1e-200, np.inf])],
    ids=["row", "plane", "none", "equal", "extreme"],
)
def test_how_magnitudes_compare(z):
    def program(z, n):
        c, k = z.copy(), np.zeros(z.shape, np.int64)
        for i in range(n):
            m = abs(z) < 2.0
            k[m] = i
            z[m] = z[m] ** 2 + c[m]
            b = np.greater_equal(np.abs(z), 2)
            k[b] += 1
        return z, k

    check(program, (z, 25))


def test_magnitudes_that_are_kept():
    def program(z, n):
        t = 0.0
        for i in range(n):
            a = abs(z)
            t += a[a > 1.0].sum()
            z = z[a > 0.1] * 0.9
            w = abs(z) + 1
            t += w.sum()
        return t, z

    check(program, (normal(30) + 1j * normal(30), 25))


@pytest.mark.parametrize("places", [whole(12) % 30, np.array([31, 2]), np.array([-31, 2]), np.zeros(0, np.int64), np.array([1, 1, 2, -1])])
def test_arrays_of_indices_say_what_is_written(places):
    def program(x, at, n):
        for i in range(n):
            x[at] = i
            x[at] = 0.5 * at - i
        return x

    check(program, (normal(30), places, 20))


def test_several_arrays_of_indices():
    def program(x, a, b, n):
        for i in range(n):
            m = a > i % 4
            x[a[m], b[m]] = i * 1.5
            x[a, b] = x[0, 0] + a
            b[b] = 8 - b
        return x, b

    check(program, (normal(9, 9), whole(12) % 9, whole(12) % 9, 20))
    check(program, (normal(9, 9), whole(12) % 9, np.full(12, 9), 20))


def test_what_numpy_tells_of_is_under_the_mask_alone():
    def program(x, n):
        for i in range(n):
            m = x != 0
            x[m] = 1.0 / x[m]
            x[i] = 0.0
            if i == n - 1:
                x[~m] = 1.0 / x[~m]  # warns
        return x

    check(program, (normal(40), 30))


def test_ufuncs_that_write_into_an_array():
    def program(x, n):
        y, b = np.zeros(x.shape), np.zeros(x.shape, bool)
        for i in range(n):
            np.multiply(x, 1.1, y)
            np.greater(y, 0.3, b)
            np.add(y, x, x)
            x[b] = 0.0
            np.subtract(x, 1, y)
        return x, y, b

    check(program, (normal(40), 30))

    def refused(x, n):
        for i in range(n):
            np.add(x, 1.5, x)

    check(refused, (whole(40), 30), loops=0, runs=0)


def test_elements_that_are_one_in_memory():
    def program(x, n):
        m = np.zeros(x.shape, bool)
        m[::2] = True
        for i in range(n):
            x[m] = i * 1.0
            x[m] = x[m] + 0.5
        return x.copy()

    def shared(n):
        return program(np.lib.stride_tricks.as_strided(np.arange(4.0), (10,), (0,)), n)

    check(shared, (20,), loops=0, runs=0)


def test_a_row_for_what_is_under_a_mask_is_numpys():
    def program(x, n):
        for i in range(n):
            m = x > 0
            x[m] = np.arange(m.sum()) - 1.5
            x[0] = 1.0
        return x

    check(program, (normal(10), 25), loops=0, runs=0)
