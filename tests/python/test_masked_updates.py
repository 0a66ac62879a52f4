"""Elements under a mask that are computed anew and put back are computed where they are: no size that data decides, no call of NumPy."""

import warnings

import framejit
import numpy as np
import pytest


def inverse(x, y):
    r = x * 2.0
    r[r > 0] = 1.0 / r[r > 0]
    return r


def power(x, y):
    r = x**2 + 0.1
    r[r > 0] = r[r > 0] ** -1.5
    return r


def two_arrays(x, y):
    m = np.abs(x) < 1
    x[m] = np.sqrt(1 - x[m] ** 2) * y[m]
    return x


def in_place(x, y):
    x[x < 0] *= -0.5
    x[x > 2] = 2 - (x[x > 2] - 2) * 0.25
    return x - 0.7


def of_a_view(x, y):
    v = x[1:, ::2]
    v[v > y[1:, ::2]] -= 1.0
    return v.sum(axis=0)


def picked(x, y):
    r = x + y
    r[x > 0] = np.where(y[x > 0] > 0.5, r[x > 0], -r[x > 0])
    return r


def single(x, y):
    r = x.astype(np.float32)
    r[r < 0] = np.exp(r[r < 0])
    return r


def integers(x, y):
    k = (x * 100).astype(np.int32)
    k[k > 3] *= -2
    k[k < 0] = (k[k < 0] & 63) ^ 5
    b = (k % 251).astype(np.uint8)
    m = y > 0
    b[m] = np.where(b[m] > 100, b[m] + np.uint8(200), ~b[m]) << 1
    b[m] = np.minimum(b[m], k[m].astype(np.uint8))
    return k, b


def floats_of_integers(x, y):
    """Each would raise if it were computed of some integer that is not under the mask, or of a whole number in its place."""
    r, k = x.copy(), (x * 100).astype(np.int64) + 1
    k[0], k[1] = 0, 97
    m = (k > 0) & (k != 97)
    r[m] = 1 / k[m] + 2.0 / (k[m] - 97)
    some = k < 80
    r[some] = np.sqrt(80 - k[some])
    r[some] = r[some] / ((k[some] < 80) | (k[some] == 97))
    return r


# What the others do is NumPy's as before.
def divided(x, y):
    k = (x * 3).astype(np.int64)
    k[k > 0] = 100 // k[k > 0]
    k[y > 0] = k[y > 0] // (k[y > 0] - 97)
    return k



def counted(x, y):
    r = x * 2.0
    m = r > 0.25
    n = len(r[m])
    r[m] = r[m] - 1.0
    return r, n


def shaped(x, y):
    r = x * 2.0
    picked = r[r > 0.25]
    r[r > 0.25] = picked - 1.0
    kept = {"n": [picked.shape[0] + 1]}
    return r, kept["n"][0], picked.size * 2


def other_mask(x, y):
    r = x * 2.0
    r[y > 0] = np.sort(r[y > 0])
    r[x > 0.5] = r[x > 0.5] + r[x > 0.5].sum()
    return r


def unread(x, y):
    r = x * 2.0
    m = r > -9
    z = 1.0 / r[m]  # nobody reads it, but NumPy tells of a zero
    r[m] = r[m] + 1.0
    del z
    return r


def refused(x, y):
    r = x * 2.0
    r[x > 0] = r[x > 0] + r[y > 0]
    return r


def seen(function, args):
    args = [a.copy() for a in args]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*args)
        except ValueError as error:
            result = str(error)
    result = result if isinstance(result, tuple) else (result,)
    return (
        [(type(v), getattr(v, "dtype", 0), getattr(v, "strides", 0), np.asarray(v)) for v in (*result, *args)],
        [(str(w.message), w.lineno) for w in caught],
    )


def arrays(shape=(90, 80)):
    r = np.random.default_rng(3)
    plain = r.standard_normal(shape), r.standard_normal(shape)
    none, every = (-np.abs(plain[0]) - 3, plain[1]), (np.abs(plain[0]) + 0.5, np.abs(plain[1]) + 0.6)
    odd = plain[0].copy(), plain[1].copy()
    odd[0][0, :6] = np.nan, np.inf, -np.inf, 0.0, -0.0, 1e308
    odd[1][0, :6] = 1e308, 0.0, np.inf, np.nan, -1.0, 1e308
    return plain, none, every, odd, plain


def same(a, b, powers=False):
    exact = a[3].dtype != np.float32  # NumPy's own exp of float32 has an error of its own, as its power of vectors has
    bound = {"rtol": 3e-7, "atol": 1e-7} if a[3].dtype == np.float32 else {"rtol": 3e-16, "atol": 0}
    return a[:3] == b[:3] and (
        np.array_equal(a[3], b[3], equal_nan=a[3].dtype.kind == "f")
        if exact and not powers
        else np.allclose(a[3], b[3], **bound, equal_nan=True)
    )


@pytest.mark.parametrize(
    "program", [inverse, power, two_arrays, in_place, of_a_view, picked, single, integers, floats_of_integers, divided, counted, shaped, other_mask, unread, refused]
)
def test_same_as_numpy(program):
    compiled = framejit.compile(program)
    for args in arrays():
        for _ in range(2):
            got, wanted = seen(compiled, args), seen(program, args)
            assert all(same(g, w, program is power) for g, w in zip(got[0], wanted[0], strict=True)) and got[1] == wanted[1]


@pytest.mark.parametrize(
    ("program", "kernels"),
    [(inverse, 1), (power, 1), (two_arrays, 1), (in_place, 1), (of_a_view, 3), (picked, 1), (single, 1), (integers, 1), (floats_of_integers, 2)],
)
def test_one_graph_without_calls(fresh, program, kernels):
    compiled = fresh.compile(program)
    args = arrays()[0]
    for _ in range(3):
        compiled(*(a.copy() for a in args))
    info = compiled.cache_info()
    assert (info["captures"], info["breaks"]) == (1, 0), info
    assert info["kernels"] == kernels
    assert "told" not in info["outcomes"]["run"]  # no kernel raised what NumPy does not tell of


# A mask that is read several times has one size: of complex numbers NumPy takes and stores the elements.
def quadratic(z, c):
    m = np.less(abs(z), 1.5)
    z[m] = z[m] ** 2 + c[m]
    return z


def masked_at_once(z, c):
    m = abs(z) < 1.5
    z = z * 2
    z[m] = z[m] * c[m]
    np.logical_not(m, m)
    z[m] = c[m] - z[m]  # as many as it says now
    return z, z[m] * c[m], m


def written_again(z, c):
    m = (z.real > 0).ravel()
    a, b = z.ravel()[m], m.nonzero()[0]
    m[:7] = True
    return a * b, c.ravel()[m] * z.ravel().compress(m), np.argwhere(m)[:, 0] + m.nonzero()[0]


def complex_arrays(n):
    r = np.random.default_rng(n)
    return tuple(r.standard_normal((n, 5)) + 1j * r.standard_normal((n, 5)) for _ in range(2))


@pytest.mark.parametrize("program", [quadratic, masked_at_once, written_again])
def test_one_size_of_one_mask(fresh, program):
    compiled = fresh.compile(program)
    for n in (9, 12, 9, 1, 30, 2, 0, 11):
        for scale in (1, 100, 1e-3):  # some, few or none, all
            args = tuple(a * scale for a in complex_arrays(n))
            got, wanted = seen(compiled, args), seen(program, args)
            for g, w in zip(got[0], wanted[0], strict=True):
                assert g[:3] == w[:3] and g[3].shape == w[3].shape and np.array_equal(g[3], w[3])
            assert got[1] == wanted[1]
    told = fresh.explain(compiled)(*complex_arrays(9))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


# Where a ufunc's result goes, said by its place.
def by_place(x, y):
    r = x + 1.0
    got = np.multiply(r, y, r)
    m = r > 0
    np.logical_not(m, m)
    np.add(x, m, r, where=m)
    np.negative(y, y)
    np.power(r[0], 2, r[1])
    return r, m, got is r


def warns_by_place(x, y):
    np.maximum(x, 0.5, y)
    return y


def refused_by_place(x, y):
    r = x + 1.0
    np.add(x, y, r, out=r)
    return r


def wrong_by_place(x, y):
    m = x > 0
    np.add(x, y, m)
    return m


@pytest.mark.parametrize(("program", "breaks"), [(by_place, 0), (warns_by_place, None), (refused_by_place, None), (wrong_by_place, None)])
def test_results_by_place(fresh, program, breaks):
    compiled = fresh.compile(program)
    for shape in ((6, 5), (6, 5), (2, 9), (3, 0), (4, 1)):
        args = arrays((max(shape[0], 2), 6))[0]
        args = tuple(a[:, : shape[1]].copy() if shape[1] <= 6 else np.tile(a, 2)[:, :9] for a in args)
        got, wanted = told_of(compiled, args), told_of(program, args)
        assert got == wanted
    if breaks is not None:
        assert compiled.cache_info()["breaks"] == breaks


def told_of(program, args):
    args = [a.copy() for a in args]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = program(*args)
        except (TypeError, ValueError) as error:
            return type(error), str(error), [a.tobytes() for a in args]
    result = (*result, len(caught)) if isinstance(result, tuple) else (result, len(caught))
    return [(v.tobytes(), v.dtype, v.strides) if hasattr(v, "dtype") else v for v in (*result, *args)]
