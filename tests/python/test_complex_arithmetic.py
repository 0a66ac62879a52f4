"""Arithmetic of complex128 arrays of NumPy: kernels of our own have NumPy's bits, of every layout, and its warnings."""

import warnings

import numpy as np
import pytest

import framejit

# Each with two complex arrays and one of floats, all of one shape.
CASES = {
    "sum": lambda x, y, r: x + y,
    "difference": lambda x, y, r: x - y,
    "product": lambda x, y, r: x * y,
    "quotient": lambda x, y, r: x / y,
    "negative": lambda x, y, r: -x,
    "power": lambda x, y, r: x**2,
    "square": lambda x, y, r: np.square(x),
    "with_floats": lambda x, y, r: (x * r - r) / r + r * y,
    "with_numbers": lambda x, y, r: (2.5 * x - 3) / 7 + 1 / y + True,
    "one_changes": lambda x, y, r: (x * 1, x + 0.0, x / 1, x - 0, x * 0, x * -1),
    "chain": lambda x, y, r: (x * y + r) * x - y / (x + 3),
    "turned": lambda x, y, r: x.T * y.T + r.T,
    "of_two_layouts": lambda x, y, r: x[::-1] * y + r[:, ::-1],
    "strided": lambda x, y, r: x[:, ::2] * y[:, 1::2][:, : x[:, ::2].shape[1]] if x.shape[1] % 2 == 0 else x[::2] * y[::2],
    "spread": lambda x, y, r: x[:, :1] * y[:1] + r[0],
    "beside_sums": lambda x, y, r: (r.sum(), r + x, r.sum(0), r.sum(1)),
    "made": lambda x, y, r: np.zeros(x.shape, dtype=np.complex128) + x * y,
    "ufuncs": lambda x, y, r: np.true_divide(np.subtract(np.multiply(x, r), y), np.add(x, np.negative(y))),
}
SHAPES = [(3, 5), (1, 1), (17, 34), (64, 64), (300, 700)]


def numbers(shape, seed=0):
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal(shape) for _ in range(5)]
    return parts[0] + 1j * parts[1], parts[2] + 1j * parts[3], parts[4]


def special():
    values = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e308, -1e-308, 5e-324])
    z = np.empty((10, 10), np.complex128)
    z.real, z.imag = values[:, None], values[None]
    return np.broadcast_to(z.reshape(-1, 1), (100, 100)).copy(), np.broadcast_to(z.reshape(1, -1), (100, 100)).copy()


def assert_same(want, got):
    assert type(want) is type(got)
    if isinstance(want, tuple):
        for w, g in zip(want, got, strict=True):
            assert_same(w, g)
        return
    assert (want.dtype, want.shape, want.strides) == (got.dtype, got.shape, got.strides)
    w, g = (np.ascontiguousarray(z).reshape(-1).view(np.float64) for z in (want, got))
    nan = np.isnan(w)
    assert np.array_equal(nan, np.isnan(g))
    assert np.array_equal(w[~nan].view(np.int64), g[~nan].view(np.int64))  # the last bit, and the sign of zeros


def assert_no_call(compiled):
    info = compiled.cache_info()
    assert (info["breaks"], info["externs"]) == (0, 0) and info["kernels"] > 0, info
    assert set(info["outcomes"]["run"]) == {"graph"}, info


@pytest.mark.parametrize("name", CASES)
def test_has_the_bits_of_numpy(name):
    for shape in SHAPES:
        x, y, r = numbers(shape)
        compiled = framejit.compile(CASES[name], options={"leave": False})
        for _ in range(2):
            assert_same(CASES[name](x, y, r), compiled(x, y, r))
        assert_no_call(compiled)


@pytest.mark.parametrize("layout", ["columns", "strided", "between"])
@pytest.mark.parametrize("name", ["product", "quotient", "with_floats"])
def test_of_every_layout(name, layout):
    x, y, r = numbers((17, 34))
    if layout == "columns":
        x, y = np.asfortranarray(x), np.asfortranarray(y)
    elif layout == "strided":
        wide = np.zeros((34, 68), x.dtype)
        wide[::2, ::2] = x
        x = wide[::2, ::2]
    else:  # at addresses that are no multiples of the size of an element
        memory = np.zeros(x.nbytes + 8, np.uint8)[8:].view(x.dtype).reshape(x.shape)
        memory[...] = x
        x = memory
    compiled = framejit.compile(CASES[name], options={"leave": False})
    for _ in range(2):
        assert_same(CASES[name](x, y, r), compiled(x, y, r))
    assert_no_call(compiled)


@pytest.mark.parametrize("name", ["sum", "product", "quotient", "power", "chain"])
def test_of_special_numbers(name):
    x, y = special()
    compiled = framejit.compile(CASES[name], options={"leave": False})
    with np.errstate(all="ignore"):
        for _ in range(2):
            assert_same(CASES[name](x, y, y.real), compiled(x, y, y.real))


@pytest.mark.parametrize("name", ["sum", "difference", "product", "quotient", "power"])
def test_tells_what_numpy_tells(name):
    x, y = special()
    f = CASES[name]
    compiled = framejit.compile(f, options={"leave": False})
    compiled(*numbers((1, 1)))
    for i in range(0, 100, 7):  # one number by another each time
        for j in range(0, 100, 3):
            a, b = x[i : i + 1, :1], y[:1, j : j + 1]
            told = []
            for g in (f, compiled):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    result = g(a, b, b.real)
                told.append((sorted(str(w.message) for w in caught), result))
            assert told[0][0] == told[1][0], (a, b)
            assert_same(told[0][1], told[1][1])


@pytest.mark.parametrize("f", [lambda x: x / 0, lambda x: x / -0.0, lambda x: x / 0j, lambda x: x * np.inf, lambda x: 0 / x, lambda x: (x - x) / 0])
def test_tells_of_constants(f):
    for x in (numbers((3, 5))[0], np.zeros((2, 2), np.complex128)):
        compiled, told = framejit.compile(f, options={"leave": False}), []
        for g in (f, compiled, compiled):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                told.append((g(x), sorted(str(w.message) for w in caught)))
        for result, messages in told[1:]:
            assert messages == told[0][1]
            assert_same(told[0][0], result)
        with np.errstate(all="ignore"):
            assert_same(f(x), compiled(x))


def with_a_number(x, y, r):
    return x * (2.5 - 1.5j) + 1j, r * 1j, x / (1 + 2j)


def in_place(x, y, r):
    x *= y
    x += r
    x -= 1j
    x /= y
    np.multiply(x, x, x)
    np.add(x, y, out=x)
    y -= x
    return x


def made_of_parts(x, y, r):
    total, other = np.zeros(x.shape, dtype=np.complex128), np.empty(x.shape, dtype=np.complex128)
    for n in range(3):
        total += (n - 1.0) * x
    other[:] = total * y
    x += other
    y += total
    return total, other


@pytest.mark.parametrize("f", [with_a_number, in_place, made_of_parts])
def test_of_several_lines(f):
    compiled = framejit.compile(f, options={"leave": False})
    for seed in range(3):
        want, got = numbers((50, 150), seed), numbers((50, 150), seed)
        assert_same(f(*want), compiled(*got))
        assert_same(want, got)
    assert compiled.cache_info()["breaks"] == 0 and compiled.cache_info()["kernels"] > 0
    assert compiled.cache_info()["externs"] == (0 if f is made_of_parts else 4 if f is with_a_number else 1)


def test_functions_of_floats_keep_kernels_of_their_own():
    def f(x, y, r):
        return np.exp(r) * x

    compiled = framejit.compile(f, options={"leave": False})
    x, y, r = numbers((17, 34))
    np.testing.assert_allclose(compiled(x, y, r), f(x, y, r), rtol=1e-15)
    assert_no_call(compiled)
    assert compiled.cache_info()["kernels"] == 2


def test_scalars_are_numpys():
    def f(x, y):
        return x[0, 0] * y[0, 1], x[0, 0] / y[0, 1] + 1, x[0, 0] * y

    compiled = framejit.compile(f, options={"leave": False})
    x, y, _ = numbers((4, 5))
    for _ in range(2):
        assert_same(f(x, y), compiled(x, y))


def test_integers_and_narrow_numbers():
    def f(x, i, s):
        return x * i, i * x / 3, x + s, x * s, i / x

    compiled = framejit.compile(f, options={"leave": False})
    x, _, r = numbers((9, 7))
    for i in (np.arange(63).reshape(9, 7), np.arange(63, dtype=np.uint8).reshape(9, 7), r > 0):
        for s in (r.astype(np.float32), r.astype(np.float16)):
            assert_same(f(x, i, s), compiled(x, i, s))


def test_an_array_of_floats_takes_no_complex_numbers():
    def f(r, x):
        r *= x

    compiled = framejit.compile(f, options={"leave": False})
    x, _, r = numbers((3, 3))
    with pytest.raises(TypeError, match="multiply"):
        compiled(r, x)


def test_products_in_another_order_are_others():
    # One part of a product is fused, and the other is not: a * b - b * a is rounding noise, and not 0.
    def f(a, b):
        return a * b - b * a, a * b + b * a, (a * b, b * a)

    compiled = framejit.compile(f, options={"leave": False})
    a, b, _ = numbers((50,))
    for _ in range(2):
        assert_same(f(a, b)[0], compiled(a, b)[0])
        assert_same(f(a, b)[1], compiled(a, b)[1])
        assert_same(f(a, b)[2][1], compiled(a, b)[2][1])


def powers(a):
    a **= 2
    return a


def one(a):
    b = a[:1]
    b *= a[1:2]
    return b * a[2:3].reshape(1, 1)


@pytest.mark.parametrize("f", [powers, one], ids=lambda f: f.__name__)
def test_products_that_numpy_rounds_twice(f):
    # Of one element, its loop is another one.
    compiled = framejit.compile(f, options={"leave": False})
    a, _, _ = numbers((400,))
    for _ in range(2):
        assert_same(f(a.copy()), compiled(a.copy()))
