"""Products of vectors that a loop asks for one after the other, some of which are computed before they are asked for."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

import framejit


def triangular(a, b, out):
    for i in range(b.shape[0]):
        for j in range(b.shape[1]):
            b[i, j] += np.dot(a[i + 1 :, i], b[i + 1 :, j])


def moves_on_the_left(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            out[i, j] = b[:, j] @ a[:, i]


def writes_the_next(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1] - 1):
            out[i, j] = np.dot(a[:, i], b[:, j])
            b[3, j + 1] = out[i, j] * 0.01


def writes_one_far_ahead(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1] - 5):
            out[i, j] = np.dot(a[:, i], b[:, j])
            if j % 7 == 2:
                b[0, j + 5] += 1.0


def writes_columns(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1] - 1):
            out[i, j] = np.dot(a[:, i], b[:, j])
            b[:, j + 1] *= 0.5


def orthogonal(a, b, out):
    for i in range(b.shape[1]):
        out[:, i] = b[:, i] / np.sqrt(np.dot(b[:, i], b[:, i]))
        for j in range(i + 1, b.shape[1]):
            a[i % a.shape[0], j % a.shape[1]] = np.dot(out[:, i], b[:, j])
            b[:, j] -= out[:, i] * a[i % a.shape[0], j % a.shape[1]]


def orthogonal_in_place(a, b, out):
    for i in range(b.shape[1]):
        for j in range(i + 1, b.shape[1]):
            b[:, j] -= b[:, i] * (np.dot(b[:, i], b[:, j]) / 32.0)


def writes_columns_behind(a, b, out):
    for i in range(a.shape[1]):
        for j in range(2, b.shape[1]):
            out[i, j] = np.dot(a[:, i], b[:, j])
            b[::-1, j - 2] *= 0.5


def writes_columns_far_ahead(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            out[i, j] = np.dot(a[:, i], b[:, j])
            b[::-1, (j + 7) % b.shape[1]] *= 0.5


def writes_half_columns(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1] - 1):
            out[i, j] = np.dot(a[1::2, i], b[1::2, j])
            b[::2, j + 1] *= 0.5
            b[1::2, j] += 1.0


def writes_rows(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            out[i, j] = np.dot(a[:, i], b[:, j])
            b[j % b.shape[0], j + 1 :: 2] *= 0.5


def writes_a_column_that_stays(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            out[i, j] = np.dot(a[:, i], b[:, j])
            a[:, (i + j) % a.shape[1]] *= 0.75


def writes_what_stays(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            out[i, j] = np.dot(a[:, i], b[:, j])
            a[j % a.shape[0], i] += 0.25


def through_another_array(a, b, out):
    view = out[: b.shape[0], : b.shape[1]]
    for i in range(a.shape[1]):
        for j in range(b.shape[1] - 1):
            s = np.dot(a[:, i], view[:, j])
            b[1, j + 1] = s * 0.01


def the_same_again(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            out[i, j] = np.dot(a[:, i], b[:, j]) + np.dot(a[:, i], b[:, b.shape[1] - 1 - j])


def rows_that_shrink(a, b, out):
    for i in range(a.shape[1]):
        for j in range(i, b.shape[1]):
            out[i, j] = np.dot(a[:, i], b[:, j])


def rows_that_grow(a, b, out):
    for i in range(a.shape[1]):
        for j in range(min(2 * i, b.shape[1])):
            out[i, j] = b[i:, j] @ a[i:, i]


def rows_that_jump(a, b, out):
    for i in range(a.shape[1]):
        for j in range(i * 7 % 5, b.shape[1] - i * 5 % 11):
            out[i, j] = np.dot(a[:, i], b[:, j])
            if i % 4 == 1:
                b[i, j] += 0.5


def rows_that_are_written(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            out[i, j] = np.dot(a[:, i], b[:, j])
        b[i, 0] = out[i, 0]
        a[i, (i + 1) % a.shape[1]] -= 0.5


def rows_of_two_kinds(a, b, out):
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            out[i, j] = np.dot(a[:, i], b[:, j])
        for j in range(b.shape[1]):
            out[i, j] += b[:, j] @ a[:, (i + 1) % a.shape[1]]


def columns_and_matrices(a, b, out):
    for i in range(a.shape[1]):
        row = b[:, i % b.shape[1]] @ a
        for j in range(b.shape[1]):
            out[i, j] = np.dot(a[:, i], b[:, j]) + row[j % a.shape[1]]
        a[i, i] += 0.5


def rows_of_a_triangle(a, b, out):
    for i in range(a.shape[1]):
        out[i:, i] = out[i, i:] = a[:, i] @ a[:, i:] / 3.0


def rows_of_all(a, b, out):
    for i in range(a.shape[0]):
        out[i] = b[i] @ a


def rows_of_columns(a, b, out):
    for i in range(b.shape[1]):
        out[:, i] = b[:, i] @ a + b[i] @ a


def writes_a_later_vector(a, b, out):
    for i in range(a.shape[1] - 3):
        out[i] = a[:, i] @ a
        a[2, i + 3] += out[i, 0] * 0.01


def writes_the_matrix(a, b, out):
    for i in range(a.shape[0]):
        out[i] = b[i] @ a
        if i % 7 == 3:
            a[1::2, ::-3] *= 0.5


def writes_a_part_backwards(a, b, out):
    for i in range(a.shape[0]):
        out[i] = b[i] @ a
        a[::-1, i] = out[i]


def through_another_matrix(a, b, out):
    view = out[: a.shape[0]]
    for i in range(a.shape[0] - 1):
        s = a[:, i] @ view
        out[i, i:] += s[i:] * 0.01


ROWS = [rows_of_a_triangle, rows_of_all, rows_of_columns, writes_a_later_vector, writes_the_matrix, writes_a_part_backwards, through_another_matrix]  # fmt: skip
PROGRAMS = [triangular, moves_on_the_left, writes_the_next, writes_one_far_ahead, writes_columns, writes_columns_behind, writes_columns_far_ahead, writes_half_columns, writes_rows, writes_a_column_that_stays, writes_what_stays, the_same_again, rows_that_shrink, rows_that_grow, rows_that_jump, rows_that_are_written, rows_of_two_kinds, columns_and_matrices]  # fmt: skip


def arrays(n, width, seed=0):
    r = np.random.default_rng(seed)
    return r.normal(size=(n, n)), r.normal(size=(n, width)), np.zeros((n, width))


def check(program, make, calls=4):
    framejit.reset()  # where it has often been left for a warning, a loop is NumPy's and a graph's, which have other last bits
    compiled = framejit.compile(program)
    for _ in range(calls):
        expected, got = make(), make()
        program(*expected)
        compiled(*got)
        for x, y in zip(expected, got, strict=True):
            assert x.tobytes() == y.tobytes()
    assert compiled.cache_info()["scalar_runs"] > 0, compiled.cache_info()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("width", [1, 5, 6, 13, 55])
def test_products_ahead_are_numpys(program, width):
    check(program, lambda: arrays(23, width))


@pytest.mark.parametrize("program", [orthogonal, orthogonal_in_place])
@pytest.mark.parametrize(("n", "width"), [(23, 13), (23, 55), (40, 33), (70, 60)])  # of fewer columns the loops are graphs, whose last bits differ
def test_columns_are_written_once_they_have_been_asked_for(program, n, width):
    check(program, lambda: arrays(n, width))


@pytest.mark.parametrize("n", [2, 3, 4, 7, 40])
def test_lengths(n):
    check(triangular, lambda: arrays(n, 19, n))
    check(moves_on_the_left, lambda: arrays(n, 19, n))


def test_arrays_that_share_memory():
    def make():
        a, _, out = arrays(20, 20)
        out += 1.5
        return a, out[:20, :20], out

    check(through_another_array, make)


def test_views_that_lie_otherwise():
    def make(of):
        a, b, out = arrays(24, 31)
        return of(a), of(b), out

    for of in (lambda x: x[::2], lambda x: x[:, ::-1], lambda x: np.asfortranarray(x), lambda x: x[::-1]):
        check(moves_on_the_left, lambda: make(of))


@pytest.mark.parametrize("special", [np.inf, np.nan, 1e308, -0.0])
@pytest.mark.filterwarnings("ignore")
def test_special_numbers(special):
    def make():
        a, b, out = arrays(16, 21)
        b[:, 12] = special
        b[9, 5] = special
        return a, b, out

    check(triangular, make)
    check(moves_on_the_left, make)


@pytest.mark.parametrize("program", ROWS)
@pytest.mark.parametrize("n", [26, 40, 41, 42, 43, 67])
def test_rows_ahead_are_numpys(program, n):
    def make():
        r = np.random.default_rng(n)
        return r.normal(size=(n, n)), r.normal(size=(n, n)), np.zeros((n, n))

    check(program, make)


@pytest.mark.parametrize("of", [lambda x: x[::2, ::2], lambda x: x[:, ::-1], lambda x: x[::-1], lambda x: x.T], ids=["strided", "reversed", "upside", "turned"])
def test_rows_of_views(of):
    def make():
        r = np.random.default_rng(3)
        a, b, out = r.normal(size=(60, 60)), r.normal(size=(60, 60)), np.zeros((60, 60))
        return of(a), of(b), of(out)

    check(rows_of_a_triangle, make)
    check(rows_of_all, make)


@pytest.mark.parametrize("special", [np.inf, np.nan, 1e308, 1e-310, -0.0])
@pytest.mark.filterwarnings("ignore")
def test_special_numbers_in_rows(special):
    def make():
        r = np.random.default_rng(5)
        a, b, out = r.normal(size=(50, 50)), r.normal(size=(50, 50)), np.zeros((50, 50))
        a[12, 30] = b[31] = special
        a[5] *= special
        return a, b, out

    check(rows_of_a_triangle, make)
    check(rows_of_all, make)


def blas_threads():
    """NumPy's OpenBLAS's functions that set and say how many threads it has."""
    for path in (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*"):
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_", "openblas_{}_num_threads"):
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("set")), getattr(library, name.format("get"))
    return pytest.skip("no OpenBLAS of NumPy's own")


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("shape", [(1031, 527), (5003, 119)])
def test_rows_that_the_blas_shares_between_threads(threads, shape):
    def some(a, out):
        for i in range(26):
            out[i, i:] = a[:, i] @ a[:, i:]

    a = np.random.default_rng(8).normal(size=shape)
    put, get = blas_threads()
    before = get()
    put(threads)
    try:
        framejit.reset()
        compiled = framejit.compile(some)
        expected = np.zeros((26, shape[1]))
        some(a, expected)
        for _ in range(3):
            got = np.zeros_like(expected)
            compiled(a, got)
            assert got.tobytes() == expected.tobytes()
        assert compiled.cache_info()["scalar_runs"] > 0, compiled.cache_info()
    finally:
        put(before)
