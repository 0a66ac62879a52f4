"""Loops over parts of arrays that become machine code: values to the last bit, views, overlaps, warnings and errors as NumPy's, and the
code is asserted to have run."""

import platform
import warnings

import framejit
import numpy as np
import pytest
from test_loops_compiled import check, rng, scalar_loops  # noqa: F401


def matrix(n, m, dtype="float64"):
    return (rng().random((n, m)) * 9).astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "int16", "uint8"])
def test_stores_of_parts(dtype):
    def program(a, b, c):
        for i in range(1, a.shape[0]):
            for j in range(a.shape[1]):
                a[1:, j] += b[i, 1 : a.shape[0]] * c
                b[i, :j] = a[i, :j] - b[i - 1, :j]
            a[i] = b[i, ::-1] + 1
            a[i, ::2] *= 2
            b[i, -3:-1] = c
        return a, b

    check(program, (matrix(12, 12, dtype), matrix(12, 12, dtype), 1 if dtype[0] in "iu" else 0.5))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize("layout", ["rows", "columns", "turned", "steps"])
def test_products_are_numpys_own(dtype, layout):
    """dot and @ of vectors, a vector and a matrix, for every length: the same bits."""

    def program(a, b, out, wide):
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                out[i, j] = np.dot(a[i, :j], b[:j, i]) + (a[i, j:] @ b[j:, i]) + np.dot(np.flip(a[i, :j]), b[i, ::-1][:j])
            wide[i, i:] = a[i] @ b[:, i:]
            wide[i:, 0] = a[i:] @ b[i] - np.dot(a[:, i], a[i] * b[i])

    a, b = matrix(40, 40, dtype), matrix(40, 40, dtype)
    if layout == "columns":
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    elif layout == "turned":
        a, b = a[::-1, ::-1], b.T
    elif layout == "steps":
        a, b = matrix(80, 80, dtype)[::2, ::2], matrix(80, 80, dtype)[1::2, 1::2]
    for x in (a, b):
        x.setflags(write=True)
    compiled = framejit.compile(program)
    for _ in range(4):
        outs = [np.zeros((40, 40), dtype) for _ in range(4)]
        program(a, b, *outs[:2])
        compiled(a, b, *outs[2:])
    assert outs[0].tobytes() == outs[2].tobytes()
    assert outs[1].tobytes() == outs[3].tobytes()
    assert compiled.cache_info()["scalar_runs"] >= 3


def test_planes_and_blocks():
    """Stores of several axes: broadcasts, steps, in place, of other arrays and of the same one."""

    def program(a, b, c):
        for i in range(24):
            a[1:-1, 1:-1] = 0.2 * (b[1:-1, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] + b[2:, 1:-1] + b[:-2, 1:-1])
            b[:, 1:] -= 0.5 * (a[:, 1:] - b[:, :-1]) + c[None, 1:]
            a[::-1] += b * c[:, None]
            c[:] = a[i % 12, :] - b[:, i % 12]
            a[i % 3 :: 3, ::2] = 1.5
        return a, b, c

    check(program, (matrix(12, 12), matrix(12, 12), rng().random(12)))

    def cubes(a, b):
        for i in range(24):
            b[1:-1, 1:-1, 1:-1] = a[2:, 1:-1, 1:-1] - 2.0 * a[1:-1, 1:-1, 1:-1] + a[:-2, 1:-1, 1:-1]
            a[i % 4] += b[1] * 0.5
        return a

    check(cubes, (rng().random((5, 6, 7)), rng().random((5, 6, 7))))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", ["rows", "turned", "one column", "zeros", "large"])
def test_sums_over_axes_have_numpys_order(dtype, case):
    def program(x, w, out, other):
        k = w.shape[0]
        for i in range(x.shape[1] - k + 1):
            for j in range(x.shape[2] - k + 1):
                out[:, i, j, :] = np.sum(x[:, i : i + k, j : j + k, :, np.newaxis] * w[np.newaxis, :, :, :], axis=(1, 2, 3))
                other[j, :] = np.sum(w[:, 0, 0] - w[0, :, 0] / w[1, 1, :k], axis=0)
        return out

    x, w = rng().random((3, 9, 8, 3)).astype(dtype) - 0.5, rng().random((3, 3, 3, 5)).astype(dtype)
    if case == "turned":
        x, w = np.asfortranarray(x), w.transpose(1, 0, 2, 3)
    elif case == "one column":
        w = w[..., :1].copy()
    elif case == "zeros":
        x, w = x * -0.0, w + 1
    elif case == "large":
        w = rng().random((3, 3, 3, 3000)).astype(dtype)
    compiled = framejit.compile(program)
    for _ in range(3):
        outs = [np.zeros((3, 7, 6, w.shape[3]), dtype) for _ in range(2)]
        others = [np.zeros((6, w.shape[3]), dtype) for _ in range(2)]
        program(x, w, outs[0], others[0])
        compiled(x, w, outs[1], others[1])
    if case in ("turned", "one column"):  # NumPy lays them out otherwise, and its order is another: graphs and Python compute them
        assert np.allclose(outs[0], outs[1], rtol=1e-5) and np.allclose(others[0], others[1], rtol=1e-5)
    else:
        assert outs[0].tobytes() == outs[1].tobytes() and others[0].tobytes() == others[1].tobytes()
        assert compiled.cache_info()["scalar_runs"] >= 2


def test_what_is_stored_may_lie_in_what_is_read():
    """NumPy computes all of a statement before it stores."""

    def program(a):
        for i in range(1, len(a) - 4):
            a[1:] = a[:-1] * 0.5 + a[1:]
            a[:-1] += a[1:]
            a[::-1] -= a * 0.25
            a[i : i + 3] = a[i + 1 : i + 4]
        return a

    check(program, (rng().random(50),))


def test_arrays_that_share_memory():
    def program(a, b):
        for i in range(len(a)):
            a[1:] = b[:-1] * 1.5
            b[i] = a[i] + b[i - 1]
            a[i] += b[0]
        return a, b

    compiled = framejit.compile(program)
    for shared in (0, 1, 0, 1, 1, 0):
        x, y = (np.r_[rng().random(40)] for _ in range(2))
        arrays = [(v[:30], (w if shared == 0 else v)[5:35]) for v, w in ((x, y), (x.copy(), y.copy()))]
        program(*arrays[0])
        compiled(*arrays[1])
        for expected, got in zip(*arrays):
            assert expected.tobytes() == got.tobytes()
    assert compiled.cache_info()["scalar_loops"] == 2


def test_sums_over_memory_that_a_store_shares():
    """An element that is added to in each round is read again where it may be another's."""

    def program(c, a, b):
        for i in range(c.shape[0]):
            for j in range(c.shape[1]):
                for k in range(a.shape[1]):
                    c[i, j] += a[i, k] * b[k, j]
        return c

    a, b = matrix(10, 10), matrix(10, 10)
    compiled = check(program, (matrix(10, 10), a, b))
    one, other = a.copy(), a.copy()
    assert program(one, one, b).tobytes() == compiled(other, other, b).tobytes()
    one, other = a.copy(), a.copy()
    assert program(one[1:], one[:-1], b).tobytes() == compiled(other[1:], other[:-1], b).tobytes()


def test_views_are_locals():
    def program(rows, columns, values, x, out):
        for i in range(len(out)):
            where = columns[rows[i] : rows[i + 1]]
            v = values[rows[i] : rows[i + 1]]
            out[i] = v @ x[where]
            row = v[1:]
            row[:] = row + 1.0
        return where, v, row

    rows = np.r_[0, np.cumsum(rng().integers(1, 9, 60))]
    args = (rows, rng().integers(-20, 20, rows[-1]), rng().random(rows[-1]), np.arange(20.0), np.zeros(60))
    compiled = check(program, args)
    where, v, row = compiled(*args)
    assert (where.base is args[1], v.base is args[2], row.base is args[2]) == (True, True, True)
    v[0] = -1
    assert args[2][rows[-2]] == -1


def test_indices_out_of_range():
    def program(x, at, out):
        for i in range(len(out)):
            out[i, :] = x[at] * 2.0
            at[i % 4] += i // 30
        return out

    check(program, (np.arange(9.0), np.array([0, -9, 3, 8]), np.zeros((48, 4))))


@pytest.mark.parametrize("what", ["zero", "overflow", "special"])
def test_warnings_are_numpys(what):
    def program(a, b, c):
        for i in range(len(b)):
            a[i, 1:] = b[i] / a[i, :-1]
            a[i] *= c
            a[i] += a[i - 1] * a[i]
        return a

    a = matrix(24, 20) + 1
    if what == "zero":
        a[20, 5] = 0
    elif what == "special":
        a[18, 3:5] = np.nan, np.inf
    check(program, (a, rng().random(24), 1e300 if what == "overflow" else 1.5))


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("bad", [None, "first", "late"])
def test_stores_of_whole_planes_are_put_back(bad, raises):
    """NumPy tells of an overflow before it stores the plane, whatever was stored since the loop began."""

    def program(a, b, c, counts):
        left = 0.0
        for i in range(40):
            b[1:-1, 1:-1] = 0.25 * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[2:, 1:-1] + a[:-2, 1:-1])
            b[0, :] = b[1, :]
            left += b[3, 3]
            a[1:-1, 1:] = b[1:-1, 1:] * c + b[1:-1, :-1]
            counts[i] += 1
        return left

    c = {None: 0.5, "first": 1e308, "late": 1e15}[bad]
    framejit.reset()  # equal functions share their code, which is given up where it was put back once
    compiled = framejit.compile(program)
    for k in range(4):
        seen = []
        for function in (program, compiled):
            args = [matrix(14, 15) + 1, matrix(14, 15), 0.5 if k < 2 else c, np.zeros(40)]
            with warnings.catch_warnings(record=True) as caught, np.errstate(over="raise" if raises else "warn"):
                warnings.simplefilter("always")
                try:
                    result = function(*args)
                except FloatingPointError as e:
                    result = str(e)
            seen.append((repr(result), [str(w.message) for w in caught], [a.tobytes() for a in args if isinstance(a, np.ndarray)]))
        assert seen[0] == seen[1]
    info = compiled.cache_info()
    assert info["scalar_loops"] >= (1 if bad is None else 2) and info["scalar_runs"] >= 3, info


def test_lists_are_not_written_twice():
    def program(a, b, c, l):
        for _ in range(30):
            b[1:-1] = a[1:-1] * c + a[2:]
            a[1:-1] = b[:-2] * c
            l.append(1)
        return len(l)

    check(program, (rng().random(20) + 1, np.zeros(20), 0.5, []), (rng().random(20) + 1, np.zeros(20), 1e40, []))


def test_errors_are_numpys():
    def program(a, b, n):
        for i in range(len(a)):
            a[i, :3] += 1.0
            a[i, :n] = b[i : i + 4]
        return a

    check(program, (matrix(30, 8), rng().random(32), 4), (matrix(30, 8), rng().random(40), 5), (matrix(30, 8), rng().random(40), 1))


def test_steps_and_ends_of_slices():
    """For every start and stop, as Python counts them."""

    def program(x, out):
        at = 0
        for i in range(-9, 10):
            for j in range(-9, 10):
                out[at] = len(x[i:j]) + 100 * len(x[i:j:3]) + 10000 * len(x[i:j:-1]) + 1000000 * len(x[j::-2])
                out[at + 1] = x[:i].shape[0]
                at += 2
        return out

    check(program, (np.arange(7.0), np.zeros(2000)))


def test_a_stop_in_the_middle_leaves_what_was_written():
    def program(a, n):
        done = 0
        for i in range(n):
            a[i, 1:] += a[i, :-1]
            done += 1
        return done

    a = matrix(40, 6)
    compiled = check(program, (a, 40))
    one, other = a.copy(), a.copy()
    for function, x in ((program, one), (compiled, other)):
        with pytest.raises(IndexError):
            function(x, 60)
    assert one.tobytes() == other.tobytes()


def test_helpers_take_parts():
    def mean(x, y):
        return (x + y) * 0.5

    def program(a):
        for i in range(1, a.shape[0] - 1):
            a[i, 1:-1] = mean(a[i - 1, :-2], a[i + 1, 2:])
            a[i] = -abs(a[i]) ** 2 + np.sqrt(a[i - 1] ** 2)
        return a

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(program, (matrix(20, 30),))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_and_the_smallest_over_axes(dtype):
    def program(x, a, b, c):
        for i in range(x.shape[1] // 2):
            for j in range(x.shape[2] // 2):
                a[:, i, j, :] = np.max(x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, :], axis=(1, 2))
                b[:, i, j, :] = np.min(x[:, 2 * i : 2 * i + 2, j : j + 2, :] * x[:, i : i + 2, j : j + 2, :], axis=(-2, 1))
                c[i, j] = np.amax(x[0, i:, j], axis=0)
                c[i, j] += np.amin(x[1, i : i + 3, j], axis=-2)

    x = rng().standard_normal((3, 12, 14, 5)).astype(dtype)
    x[1, 2, 3, 4] = x[2, 0, 0, 0] = np.nan
    x[0, 4, 4, :3], x[0, 5, 5, 2:] = np.inf, -np.inf
    x[2, 6:8, 6:8] = -np.inf

    def arguments():
        made = lambda *s: np.zeros(s, dtype)  # noqa: E731
        return x.copy(), made(3, 6, 7, 5), made(3, 6, 7, 5), made(6, 7, 5)

    check(program, arguments(), arguments())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="which of two zeros NumPy keeps is the machine's")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_of_zeros_is_the_later_one(dtype):
    def program(x, out):
        for i in range(x.shape[0] - 1):
            for _ in range(30):
                out[0, i] = np.max(x[i : i + 2], axis=0)
                out[1, i] = np.min(x[i : i + 2], axis=0)

    for width in (1, 5, 8):
        x = np.where(rng().random((9, width)) < 0.5, 0.0, -0.0).astype(dtype)
        check(program, (x, np.ones((2, 8, width), dtype)))


def test_the_largest_of_nothing_is_an_error():
    def program(x, a, n):
        for i in range(30):
            a[i, :] = np.max(x[i : i + n, :, :], axis=(0, 1))

    compiled = framejit.compile(program)
    x = rng().random((33, 2, 4))
    for n in (2, 3, 2, 2):
        want, got = np.zeros((30, 4)), np.zeros((30, 4))
        program(x, want, n)
        compiled(x, got, n)
        assert want.tobytes() == got.tobytes()
    with pytest.raises(ValueError, match="zero-size array"):
        compiled(x, np.zeros((30, 4)), 0)
    assert compiled.cache_info()["scalar_runs"] >= 2
