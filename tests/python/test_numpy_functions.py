"""Functions of NumPy that are operations of the graph, or whose Python body is: no call of NumPy's is left."""

import numpy as np
import pytest

import framejit

RNG = np.random.default_rng(0)
ARRAYS = {"a": RNG.random((6, 8)), "b": RNG.random((6, 8)), "v": RNG.random(9), "w": RNG.random(7), "i": RNG.integers(0, 9, (6, 5))}

FUNCTIONS = {  # of these arrays, by the letters
    "np.add.outer(v, w) * 2": "vw",
    "np.minimum.outer(a, w) * 2": "aw",
    "np.less.outer(v, v)": "v",
    "np.block([[a, b], [b, a]]) * 2": "ab",
    "np.equal(i, 3) | np.equal(a, b)[:, :5]": "abi",
    "np.equal(*a.shape[:1] * 2) & (v > 0.5)": "av",
    "np.multiply.outer(i, i[0]) + 1": "i",
    "np.roll(a, 2, axis=1) * 2": "a",
    "np.roll(a, (1, -2), (0, 1)) * 2": "a",
    "np.roll(a, (1, 2), 0) * 2": "a",
    "np.roll(v, 3) * 2": "v",
    "np.roll(i, -1, 0) + np.roll(i, 1, 1)": "i",
    "np.trace(a) * 2": "a",
    "a.trace(2) + np.trace(a, -3)": "a",
    "np.trace(i) + 1": "i",
    "np.diag(v) * 2": "v",
    "np.repeat(a, 2, axis=1) * 2": "a",
    "v.repeat(3) * 2": "v",
    "np.add.reduce(a) * 2": "a",
    "np.add.reduce(a, axis=1, keepdims=True) * 2": "a",
    "np.multiply.reduce(a, axis=None) * 2": "a",
    "np.maximum.reduce(a) - np.minimum.reduce(a)": "a",
    "np.logical_and.reduce(a > 0.01, axis=1)": "a",
    "np.logical_or.reduce(a > 0.9)": "a",
    "np.hstack((a, b)) * 2": "ab",
    "np.vstack((v, v)) * 2": "v",
    "np.append(a, b, axis=0) * 2": "ab",
    "np.tile(a, (2, 3)) * 2": "a",
    "np.diff(a, axis=1) * 2": "a",
    "np.diff(v, n=2) * 2": "v",
    "np.trapezoid(v) * 2": "v",
    "np.tensordot(a, b, axes=([1], [1])) * 2": "ab",
    "np.linalg.norm(a, axis=1) * 2": "a",
    "np.take_along_axis(a, i[:, :1] % 8, axis=1) * 2": "ai",
}


@pytest.mark.parametrize("text", FUNCTIONS)
def test_no_call_of_numpy_is_left(text):
    names = FUNCTIONS[text]
    values = [ARRAYS[name] for name in names]
    f = eval(f"lambda {', '.join(names)}: {text}", {"np": np})
    compiled = framejit.compile(f, fullgraph=True, options={"leave": False})
    want = f(*values)
    for _ in range(2):
        got = compiled(*values)
        assert type(got) is type(want) and got.dtype == want.dtype and got.strides == want.strides
        np.testing.assert_allclose(got, want, rtol=1e-13)
    info = compiled.cache_info()
    assert (info["externs"], info["breaks"]) == (0, 0) and info["kernels"] >= 1


def test_gradient_is_followed():
    def f(v, a):
        return np.gradient(v), np.gradient(a)[1], np.gradient(v, 0.5)

    compiled = framejit.compile(f, fullgraph=True)
    v, a = ARRAYS["v"], ARRAYS["a"]
    for got, want in zip(compiled(v, a), f(v, a)):
        np.testing.assert_allclose(got, want, rtol=1e-13)
    assert "= numpy.gradient(" not in str(framejit.explain(f)(v, a))


@pytest.mark.parametrize("call", ["np.ndarray((3, 4), dtype=t)", "np.ndarray(5)", "np.ndarray(shape=(2,), dtype=np.int32)"])
def test_an_array_that_is_made_by_its_type(call):
    space = {"np": np}
    exec(f"def f(t):\n    a = {call}\n    a[...] = 3\n    return a * 2, a", space)
    compiled = framejit.compile(space["f"], fullgraph=True)
    for got, want in zip(compiled(np.float32), space["f"](np.float32)):
        assert got.dtype == want.dtype and got.shape == want.shape and (got == want).all()
    assert not compiled.cache_info()["breaks"]


@pytest.mark.parametrize("name", ["roll", "trace", "outer", "diag", "hstack"])
def test_derivatives_of_every_order_and_batches(name):
    functions = {
        "roll": lambda x: np.sum(np.roll(x, 1) * x**2),
        "trace": lambda x: np.trace(np.outer(x, x**2)),
        "outer": lambda x: np.sum(np.add.outer(x, x**2) ** 2),
        "diag": lambda x: np.sum(np.diag(x) ** 3),
        "hstack": lambda x: np.sum(np.hstack((x, x**2)) ** 2),
    }
    f, x, step = functions[name], RNG.random(4) + 0.5, 1e-6
    slope = np.array([(f(x + step * e) - f(x - step * e)) / (2 * step) for e in np.eye(4)])
    np.testing.assert_allclose(framejit.grad(f)(x), slope, rtol=1e-6)
    np.testing.assert_allclose(framejit.jvp(f, (x,), (np.ones(4),))[1], slope.sum(), rtol=1e-6)
    np.testing.assert_allclose(framejit.vmap(f)(np.stack((x, 2 * x))), [f(x), f(2 * x)], rtol=1e-12)


@pytest.mark.parametrize(
    "text",
    ["np.gradient(v, v * v)", "np.gradient(v + 1j)", "np.take_along_axis(a, np.array([1, 2]), None)", "np.linalg.norm(a)", "np.roll(v + 1j, 1, 0)"],
)
def test_other_forms_do_not_break(text):
    f = eval(f"lambda a, v: {text} * 2", {"np": np})
    compiled = framejit.compile(f, fullgraph=True, options={"leave": False})
    for _ in range(2):
        np.testing.assert_allclose(compiled(ARRAYS["a"], ARRAYS["v"]), f(ARRAYS["a"], ARRAYS["v"]), rtol=1e-13)


def test_a_join_that_may_not_convert():
    def f(v, i):
        return np.concatenate((v, i), casting="no")

    with pytest.raises(TypeError):
        framejit.compile(f)(ARRAYS["v"], ARRAYS["i"][0])


@pytest.mark.parametrize("name", ["arctan2", "hypot", "copysign"])
def test_floats_of_integers_of_several_kinds(fresh, name):
    """NumPy takes the first of its loops for floats that holds each operand, which is not the float for their common integer."""
    namespace = {"np": np}
    f = eval(f"lambda a, b: np.{name}(a, b) * 2", namespace)
    for a in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?", "f2", "f4"):
        for b in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?", "f2", "f4"):
            fresh.reset()
            x, y = np.array([1, 0, 3]).astype(a), np.array([1, 2, 0]).astype(b)
            got, expected = fresh.compile(f)(x, y), f(x, y)
            assert got.dtype == expected.dtype, (a, b)
            np.testing.assert_allclose(got, expected, rtol=1e-3)


def test_half_precision_is_rounded_once(fresh):
    """Not through float32, as torch rounds."""

    def stored(a):
        made = np.zeros(a.shape, np.float16)
        made[:] = a * 1
        made[1:] += a[:-1]
        return made

    functions = [
        stored,
        lambda a: (a * 1).astype(np.float16),
        lambda a: np.where(a > 0, a, -a).astype(np.float16) * np.float16(2),
        lambda a: np.float16(a[1]) * a.astype(np.float16),
        lambda a: np.float64(1 + 2**-11 + 2**-40).astype(np.float16) * a.astype(np.float16),
    ]
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(float)
    middles = (halves[1:] + halves[:-1]) / 2
    a = np.concatenate([halves, middles, np.nextafter(middles, np.inf), np.nextafter(middles, 0), [np.inf, 1e300, 5e-324, np.nan]])
    a = np.concatenate([[0, 1 + 2**-11 + 2**-40], a, -a])
    with np.errstate(all="ignore"):
        for f in functions:
            compiled = fresh.compile(f, options={"leave": False})
            np.testing.assert_array_equal(compiled(a), f(a))
            info = fresh.cache_info(compiled)
            assert info["breaks"] == 0 and info["kernels"] > 0 and info["outcomes"]["run"] == {"graph": 1}


def test_half_precision_of_tensors_is_rounded_as_torch_rounds(fresh):
    torch = pytest.importorskip("torch")
    x = torch.tensor([1 + 2**-11 + 2**-40, 2049.0000001, 3.0], dtype=torch.float64)
    assert torch.equal(fresh.compile(lambda x: (x * 1).half() + 0)(x), x.half())


def test_protocols_of_arrays(fresh):
    """Libraries that take arrays of any kind ask an array for its module, and hand results back through it."""

    def f(x):
        xp = x.__array_namespace__()
        y = xp.cumsum(xp.exp(x))
        z = x.__array_wrap__(y)
        return z * 2, z is y, xp is np, getattr(x, "__array_namespace__")().sin(x)

    compiled = fresh.compile(f)
    for n in (3, 4, 5):
        x = np.random.default_rng(n).random(n)
        for got, want in zip(compiled(x), f(x)):
            assert np.allclose(got, want) and type(got) is type(want)
    assert fresh.cache_info(compiled)["breaks"] == 0 and len(compiled.graphs) > 0


def test_functions_of_lists(fresh):
    """NumPy calls the method of the array that it makes of the list."""

    def f(x):
        return np.argmax([1, 3, 2]), np.squeeze([1.0]) + x, np.cumsum([x[0], x[1]]), np.prod([2.0, 3.0]) * x, np.swapaxes([[1, 2], [3, 4]], 0, 1) * x[0]

    compiled = fresh.compile(f)
    for n in (2, 2, 3, 5):
        for got, want in zip(compiled(np.arange(n) + 0.5), f(np.arange(n) + 0.5)):
            assert type(got) is type(want) and got.dtype == want.dtype
            np.testing.assert_allclose(got, want)
    assert compiled.cache_info()["breaks"] == 0 and compiled.graphs
