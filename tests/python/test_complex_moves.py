"""Complex arrays whose elements are only put elsewhere: kernels do it, of every layout, bit by bit as the framework does."""

import numpy as np
import pytest

import framejit

# Each makes a copy: no view of the operand is its result.
MOVES = {
    "reshape": lambda x: x.T.reshape(-1),
    "ravel": lambda x: x.T.ravel(),
    "flatten": lambda x: x.flatten(),
    "turned": lambda x: x.swapaxes(0, 1).reshape(-1),
    "folded": lambda x: x.T.reshape(x.shape[0], x.shape[1], 1),
    "rolled": lambda x: np.roll(x.flatten(), 1, 0),
}
SHAPES = [(2, 3), (7, 9), (16, 32), (33, 65), (1, 5)]


def laid(base, layout):
    if layout == "columns":
        return np.asfortranarray(base)
    if layout == "strided":
        x = np.zeros((2 * base.shape[0], 2 * base.shape[1]), base.dtype)[::2, ::2]
    elif layout == "between":  # at addresses that are no multiples of the size of an element
        part = base.itemsize // 2
        x = np.zeros(base.nbytes + part, np.uint8)[part:].view(base.dtype).reshape(base.shape)
    else:
        return base
    x[...] = base
    return x


def assert_compiled(compiled):
    info = compiled.cache_info()
    assert (info["breaks"], info["externs"]) == (0, 0)
    assert set(info["outcomes"]["compile"]) == {"ok"} and set(info["outcomes"]["run"]) == {"graph"}, info


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("layout", ["rows", "columns", "strided", "between"])
@pytest.mark.parametrize("move", MOVES)
def test_complex_elements_are_moved(move, layout, dtype):
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        base = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
        base.flat[0] = complex(-0.0, np.nan)
        x = laid(base, layout)
        compiled = framejit.compile(MOVES[move], options={"leave": False})
        for _ in range(2):
            want, got = MOVES[move](x), compiled(x)
            assert (want.dtype, want.shape, want.strides, want.tobytes()) == (got.dtype, got.shape, got.strides, got.tobytes())
        assert_compiled(compiled)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_tensors_are_moved(dtype):
    torch = pytest.importorskip("torch")
    x = torch.randn(5, 6, 7, dtype={np.complex64: torch.complex64, np.complex128: torch.complex128}[dtype])
    for f in (lambda x: x.transpose(0, 2).reshape(-1), lambda x: x.permute(1, 2, 0).contiguous(), lambda x: x.narrow(1, 1, 3).reshape(5, -1)):
        compiled = framejit.compile(f, fullgraph=True, options={"leave": False})
        for _ in range(2):
            assert torch.equal(compiled(x), f(x)) and compiled(x).stride() == f(x).stride()
        assert_compiled(compiled)


def every_other(b, x):
    b[::2] += x[::2]


def columns(b, x):
    b[:, 1::3].mul_(2)


def both(b, x):
    b[:, ::2] -= x[:, ::2]
    e = b[1::2]
    e += 1


@pytest.mark.parametrize("write", [every_other, columns, both])
@pytest.mark.parametrize("n", [4, 7, 33, 64])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_parts_of_complex_tensors_are_written(fresh, write, n, dtype):
    torch = pytest.importorskip("torch")

    def f(x):
        b = x.clone()
        write(b, x)
        return b, b + x

    compiled = fresh.compile(f, fullgraph=True)
    x = torch.randn(n, n, dtype=getattr(torch, dtype))
    for mine, other in zip(compiled(x), f(x), strict=True):
        assert torch.equal(mine, other) and mine.stride() == other.stride()
    assert set(compiled.cache_info()["outcomes"]["run"]) == {"graph"}


def whole(x, y):
    y[:] = x
    return y


def between(x, y):
    y[3:9] = x[1:7]
    y[0] = x[2]
    return y, y[1:4]


def repeated(x, y):
    made = np.empty((3, x.size), x.dtype)
    made[:] = np.reshape(x, (1, -1))
    made[1, ::2] = y[::2]
    made[..., -1] = x[0]
    return made


def over_itself(x, y):
    y[1:] = y[:-1]
    part = y[2:6]
    part[:] = x[:4]
    return part


def backwards(x, y):
    y[::-1] = x
    y[5:5] = x[:0]


@pytest.mark.parametrize("write", [whole, between, repeated, over_itself, backwards])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_arrays_are_written(fresh, write, dtype):
    def given(n, view):
        rng = np.random.default_rng(n)
        x, y = ((rng.standard_normal(n) + 1j * rng.standard_normal(n)).astype(dtype) for _ in range(2))
        x[0] = complex(-0.0, np.nan)
        return view(x, y)

    compiled = fresh.compile(write, options={"leave": False})
    for n in (12, 12, 20, 6000, 12):
        for view in (lambda x, y: (x, y), lambda x, y: (x[::-1], y), lambda x, y: (np.repeat(x, 2)[::2], np.repeat(y, 2)[::2]), lambda x, y: (x, x), lambda x, y: (x[::-1], x)):
            mine, other = given(n, view), given(n, view)
            want, got = write(*mine), compiled(*other)
            want, got = ([*r, *a] if isinstance(r, tuple) else [r, *a] for r, a in ((want, mine), (got, other)))
            for a, b in zip(want, got, strict=True):
                assert a is b is None or (a.dtype, a.shape, a.strides, a.tobytes()) == (b.dtype, b.shape, b.strides, b.tobytes()), (n, view)
    apart = fresh.compile(write, fullgraph=True, options={"leave": False})
    for _ in range(2):
        apart(*given(6000, lambda x, y: (x, y)))
    info = apart.cache_info()
    assert (info["segments"], info["externs"], set(info["outcomes"]["run"])) == (1, int(write is repeated and dtype is np.complex64), {"graph"}), info
