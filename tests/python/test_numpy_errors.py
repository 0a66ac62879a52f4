"""NumPy's floating-point errors in compiled code: what eager tells of is told, and ordinary numbers end no run early."""

import itertools
import os
import subprocess
import sys
import textwrap
import warnings

import pytest

UNARY = ("exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh sqrt reciprocal square "
         "absolute sign floor isnan isfinite signbit negative").split()  # fmt: skip
BINARY = "add subtract multiply divide floor_divide remainder fmod power arctan2 hypot maximum minimum less equal".split()
DTYPES = ["float64", "float32", "float16"]


def told(f, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = f(*args)
    return sorted(str(w.message) for w in caught), result


def check(fresh, np, f, *args):
    compiled = fresh.compile(f)
    for _ in range(2):
        expected, eager = told(f, *args)
        got, result = told(compiled, *args)
        assert got == expected, args
        number = ~np.isnan(eager)
        assert np.array_equal(~np.isnan(result), number), args
        assert np.array_equal(np.signbit(result)[number], np.signbit(eager)[number]), args
        assert np.array_equal(np.isinf(result), np.isinf(eager)), args


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY + BINARY)
def test_special_values(fresh, np, name, dtype):
    with np.errstate(over="ignore"):
        values = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, np.inf, -np.inf, np.nan, 1e308, -800.0]).astype(dtype)
    ufunc = getattr(np, name)
    for case in itertools.product(values, repeat=ufunc.nin):
        if name == "power" and np.isinf(case[1]):
            continue  # NumPy's own answer depends on the processor
        if name in ("maximum", "minimum") and not any(case):
            continue  # which of two zeros it is depends on the size of the array
        check(fresh, np, eval(f"lambda *v: np.{name}(*v)", {"np": np}), *[np.full(5, v) for v in case])


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "std", "max", "cumsum"])
def test_reductions(fresh, np, name):
    for value in (np.inf, -np.inf, np.nan, 1e308, 0.0):
        check(fresh, np, eval(f"lambda x: x.{name}()"), np.array([value, value, 1.0, -np.inf][: 3 + (value == np.inf)]))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint32", "int64", "uint64"])
def test_integer_scalars_overflow(fresh, np, dtype):
    info = np.iinfo(dtype)
    some = [info.min, info.max, 0, 1, 2, 3, info.max // 2, info.max // 2 + 1, info.min // 2] + [-1] * (info.min < 0)
    for f in (lambda x: x[0] + x[1], lambda x: x[0] - x[1], lambda x: x[0] * x[1], lambda x: -x[0], lambda x: x[0] + 1, lambda x: 2 * x[1]):
        for a, b in itertools.product(some, repeat=2):
            check(fresh, np, f, np.array([a, b], dtype))


@pytest.mark.parametrize("to", ["int8", "int32", "int64", "float32", "float16", "bool"])
def test_conversions(fresh, np, to):
    for value in (np.inf, np.nan, 1e300, -1e39, 70000.0, 3.5):
        check(fresh, np, lambda x: x.astype(to), np.full(5, value))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
def test_rounding_of_integers_has_the_type_of_this_numpy(fresh, np, dtype):
    """NumPy 2.1 leaves integers as they are; before, these are floats."""
    a = np.arange(1, 7).astype(dtype)

    def f(a):
        return np.floor(a), np.ceil(a + 1), np.trunc(a), np.fix(a), np.round(a)

    g = fresh.compile(f)
    for _ in range(2):
        assert [(v.dtype, v.tolist()) for v in f(a)] == [(v.dtype, v.tolist()) for v in g(a)]
    assert fresh.cache_info(g)["segments"] > 0


def test_errors_before_a_library_call(fresh, np):
    check(fresh, np, lambda x, y: (np.log(x).sum() + (y @ y)).sum(), np.array([0.0, 1.0]), np.ones((3, 3)))


def test_one_element_of_many_on_any_thread(fresh, np):
    x = np.ones(3_000_001)
    compiled = fresh.compile(lambda x: 1 / x - np.log(x))
    assert told(compiled, x)[0] == []
    for at in (0, 1_500_000, -1):
        y = x.copy()
        y[at] = 0
        assert told(compiled, y)[0] == ["divide by zero encountered in divide", "divide by zero encountered in log"]
    assert told(compiled, x)[0] == []


def test_nothing_is_written_before_the_error(fresh, np):
    def f(x, y):
        x += 1
        with np.errstate(divide="raise"):
            y /= x
        return x

    compiled = fresh.compile(f)
    for _ in range(3):
        x, y = np.array([0.0, -1.0, 5.0]), np.ones(3)
        with pytest.raises(FloatingPointError):
            compiled(x, y)
        assert x.tolist() == [1, 0, 6]  # once
    x = np.arange(1.0, 4)
    compiled(x, y := np.ones(3))
    assert x.tolist() == [2, 3, 4] and np.allclose(y, 1 / x)


def in_place(np):
    def scale(a, b):
        a *= 1.5
        return a

    def two(a, b):
        a += b
        b -= 0.5
        return a[0]

    def assign(a, b):
        a[:] = b / a
        return a.shape

    def part(a, b):
        a[1:] *= b[1:]
        return b + 1

    def copy(a, b):
        a[:] = b

    return [scale, two, assign, part, copy]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(7,), (300_001,), (40, 3000), (3, 5)])
def test_in_place_writes_once_whatever_is_raised(fresh, np, shape, dynamic):
    def makers():
        big = np.random.default_rng(1).normal(size=shape) + 5
        for bad in (None, 0.0, np.inf, 1e308):
            for at in (0, -1):
                a, b = big.copy(), big.copy() * 3
                if bad is not None:
                    a.reshape(-1)[at] = bad
                    b.reshape(-1)[at] = -bad
                yield a, b
                yield np.asfortranarray(a), np.asfortranarray(b)
                yield a[::-1].copy()[::-1], b
                whole = np.concatenate([a, b])
                yield whole[1 : 1 + len(a)], whole[: len(a)]  # overlap

    for f in in_place(np):
        compiled = fresh.compile(f, dynamic=dynamic)
        for (a, b), (c, d) in zip(makers(), makers()):
            with np.errstate(invalid="ignore"):
                expected, x = told(f, a, b)
                got, y = told(compiled, c, d)
            assert got == expected, f
            assert np.array_equal(a, c, equal_nan=True) and np.array_equal(b, d, equal_nan=True), f
            assert np.array_equal(x, y, equal_nan=True) if x is not None else y is None


def test_in_place_is_written_before_it_is_raised(fresh, np):
    """As NumPy itself: the array holds the results when the error comes."""

    def f(a, b):
        a += b
        a *= 2
        return a

    compiled = fresh.compile(f)
    for call in (f, compiled, compiled, compiled):
        a, b = np.full(100_000, 1e308), np.ones(100_000)
        with warnings.catch_warnings(), pytest.raises(RuntimeWarning):
            warnings.simplefilter("error")
            call(a, b)
        assert np.isinf(a).all()
        a = np.full(100_000, 1e308)
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            call(a, b)
        assert np.isinf(a).all()


@pytest.mark.parametrize("text", ["1 / (m - m)", "(m - m) / (k - k)", "(m ^ m) / 2.0 / ((m ^ m) * 0.5)", "(m - m + 1e300).astype(np.float32)", "np.sqrt(m * 0 - 1.0)"])
def test_what_the_compiler_can_prove_constant_is_told(fresh, np, text):
    check(fresh, np, eval(f"lambda m, k: {text}", {"np": np}), np.arange(3, dtype=np.int16), np.ones(3, dtype=np.int16))


def test_a_function_that_always_fails_is_not_slowed_down_for_ever(fresh, np):
    compiled = fresh.compile(lambda x: 1 / x)
    for _ in range(200):
        assert told(compiled, np.zeros(3))[0] == ["divide by zero encountered in divide"]
    assert told(compiled, np.ones(3))[0] == []


def test_ordinary_numbers_end_no_run(np):
    """Lanes that do not exist, and functions made of polynomials, raise nothing of their own."""
    program = f"""
        import numpy as np, framejit
        def run(f, *args):
            framejit.reset()
            compiled = framejit.compile(f)
            assert np.allclose(compiled(*args), compiled(*args), equal_nan=True) and np.allclose(compiled(*args), f(*args), rtol=0.01, equal_nan=True), f
            told = compiled.cache_info()
            assert told["segments"] and told["outcomes"]["run"].get("graph") and not told["early_ends"], (f, told)
        for dtype in {DTYPES}:
            for n in (1, 3, 5, 13, 31, 1001):
                x, y = np.linspace(0.1, 0.9, n).astype(dtype), np.linspace(0.3, 0.8, n).astype(dtype)
                for name in {[n for n in UNARY if n != "arccosh"]}:
                    run(eval("lambda x: np." + name + "(x)"), x)
                for name in {BINARY}:
                    run(eval("lambda x, y: np." + name + "(x, y)"), x, y)
                run(lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(), x)
                run(lambda x: 1 / x[::2] + np.log(x[::-1][:1]), x)
                run(lambda x: (1 / (x[:, None] + x)).sum(0) / x, x)
                run(lambda x: np.concatenate([1 / x, np.log(x)]), x)
                run(lambda x, y: np.concatenate([x / y[:1], y / x[-1:], np.arange(9.0) / y[-1:]]), x, y)
                run(lambda x, y: np.concatenate([x, 1 / np.arange(1, 5), np.arange(9) / np.arange(1.0, 10.0)]), x, y)
                run(lambda x, y: np.concatenate([x % y, y / x, x[:1] / y[:1]]), (x * 9).astype(int) + 1, (y * 7).astype(int) + 1)
                run(lambda x: (np.log(x)[1:] - np.log(x)[:-1]) / x[1:], x)
                run(lambda x: np.where(x > 0.5, np.sqrt(x), 1 / x), x)
                run(lambda x, y: x[:1][1:] - np.tanh(1 / y[:1]), x, y)
                run(lambda x, y: ((x / y)[:, None] / (np.abs(y[:1][1:]) + 0.5)).sum(1), x, y)
                run(lambda x, y: (x[:0] * (y[:1] / x[:1])).sum() + 1 / x, x, y)
                run(lambda x, y: np.pad((1.5 + x) / (x + y[-1:] - 2), 1), x, y)
                run(lambda x, y: np.pad(np.log(3 - x - y[-1:] * 2) + 1, (2, 1)), x, y)
                run(lambda x, y: np.concatenate([np.sqrt(1.9 - x - y), 1 / (x + y - 2), x]), x, y)
                run(lambda x, y: np.stack([1 / (x - 1), np.log(y), x]), x, y)
                run(lambda x, y: (y[:, None] / (np.abs(np.pad(x[:2], 1)) + 0.5)).max(1), x, y)
                run(lambda x, y: np.pad(1 / (np.pad(1 / (x + y - 2), 1, constant_values=1) - 2), 2) + 1, x, y)
                run(lambda x, y: 1 / (np.concatenate([np.full(3, 4.0), 1 / (x + y - 2)]) * 3), x, y)
                run(lambda x, y: np.concatenate([1 / (np.arange(9)[::2] - 1), x]), x, y)
                run(lambda x, y: np.concatenate([x % (y - 1), (x * 2) // (y - 1), x / y]), (x * 9).astype(int) + 1, (y * 7).astype(int) + 1)
        print("done")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=170,
                          env={**__import__("os").environ, "FRAMEJIT_LOG": "perf", "PYTHONPATH": ":".join(p for p in sys.path if p)})  # fmt: skip
    assert "done" in done.stdout, done.stderr[-2000:]
    assert "ended early" not in done.stderr + done.stdout


def test_cheap_updates_of_large_arrays_are_left_to_numpy(fresh, np):
    """Compiled code would read the array twice: errors must be known before it writes."""

    def update(a, b):
        a += b

    def costly(a, b):
        a += np.exp(b) * np.sin(b)

    few = len(os.sched_getaffinity(0)) <= 2  # threads would make up for it
    for f, graphs in ((update, 0 if few else 1), (costly, 1)):
        a, b = np.ones(5000), np.full(5000, 0.5)
        expected = a.copy()
        f(expected, b)
        explained = fresh.explain(f)(a, b)
        assert explained.graph_count == graphs
        assert explained.graph_break_count == 0
        np.testing.assert_allclose(a, expected, rtol=1e-15)
    a = np.full(5000, 1e308)
    with pytest.warns(RuntimeWarning, match="overflow encountered in add"):
        fresh.compile(update)(a, a)
    assert np.isinf(a).all()


def test_a_kernel_that_writes_an_argument_and_a_result(fresh, np):
    def f(a):
        a *= 1.5
        return a + 1

    compiled = fresh.compile(f)
    for n in (4, 4, 5000):
        mine, theirs = (np.arange(n, dtype="f4") for _ in range(2))
        assert np.array_equal(compiled(mine), f(theirs)) and np.array_equal(mine, theirs)
    top = np.array([1e38, 3e38], dtype="f4")
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        compiled(top)


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("ddof", [0, 1, 3, 4])
@pytest.mark.parametrize("name", ["var", "std"])
def test_no_degrees_of_freedom(fresh, np, name, ddof, quiet):
    """NumPy's own warning does not depend on its error state."""
    with np.errstate(**({"all": "ignore"} if quiet else {})):
        for size in (3, 0, 4):
            check(fresh, np, lambda x: getattr(np, name)(x * 2, ddof=ddof), np.arange(float(size)))
            check(fresh, np, lambda x: getattr(x * 2, name)(axis=0, ddof=ddof), np.ones((size, 2)))


def test_numbers_that_their_type_cannot_hold(fresh, np):
    f4, f2 = np.ones(3, np.float32), np.ones(3, np.float16)
    cases = [
        (lambda x: x * 1e300, f4),
        (lambda x: x + 1e300, f4),
        (lambda x: x * 1e6, f2),
        (lambda x: x < 1e300, f4),
        (lambda x: np.maximum(x, 1e300), f4),
        (lambda x: np.where(x > 0, x, 1e300), f4),
        (lambda x: np.clip(x, 0, 1e300), f4),
        (lambda x: np.full(3, 1e300, np.float32) + x, f4),
        (lambda x: x.astype("f4").astype("f8") + 1, np.full(3, 1e300)),
        (lambda x: np.float32(x), 1e300),
        (lambda x: x.astype(np.float32), np.float64(1e300)),
        (lambda x: x[0].astype(np.float32), np.full(3, 1e300)),
        (lambda x: x * 1e30, np.full(3, 1e30, np.float32)),
        (lambda x: x + np.int8(1), np.int8(127)),
        (lambda x: abs(x), np.int8(-128)),
        (lambda x: -x, np.int8(-128)),
        (lambda x: x + np.uint8(200), np.uint8(100)),
    ]
    for f, x in cases:
        for state in ({}, dict(over="raise"), dict(all="ignore")):

            def run(x):
                with np.errstate(**state):  # noqa: B023
                    return f(x)  # noqa: B023

            fresh.reset()
            compiled = fresh.compile(run)
            for _ in range(3):
                seen = []
                for g in (run, compiled):
                    with warnings.catch_warnings(record=True) as caught:
                        warnings.simplefilter("always")
                        try:
                            result = np.asarray(g(x)).tolist()
                        except FloatingPointError as error:
                            result = str(error)
                    told_of = [(w.category, str(w.message), w.filename, w.lineno) for w in caught]
                    seen.append((result, told_of))
                assert seen[0] == seen[1], (f, x, state)


def test_arrays_with_dimensions_of_one_element_lie_as_numpys(fresh, np):
    a = np.arange(24.0).reshape(4, 6)
    whole = np.arange(24.0).reshape(2, 3, 4)
    arrays = [a, a.T, np.asfortranarray(a), a[::-1], a[:, ::-1], a[::-1, ::-1], a[:1, ::-1], a[::-1, :1], a[:0][::-1], a[::-2, ::3],
              np.asfortranarray(a)[::-1], whole[::-1, :, ::-1], whole.transpose(2, 0, 1)[::-1], whole[:, :1, ::-1], np.broadcast_to(a[0][::-1], (4, 6))]  # fmt: skip
    functions = [lambda x: x + 1, lambda x: x * x, lambda x: -x, lambda x: x[..., None] + x[..., None], lambda x: x[None] * 2, lambda x: x[:, None] - 1,
                 lambda x: (x + 1) * x[::-1], lambda x: np.where(x > 1, x, 0), lambda x: x.astype("f4"), lambda x: np.zeros_like(x), lambda x: x.copy("K"),
                 lambda x: x[..., None] + x[..., None].astype("f4"), lambda x: np.sqrt(x[..., None])]  # fmt: skip
    for f in functions:
        fresh.reset()
        compiled = fresh.compile(f)
        for x in arrays:
            got, expected = compiled(x), f(x)
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype) and np.array_equal(got, expected)
            assert got.strides == expected.strides, (x.shape, x.strides)
        assert compiled.cache_info()["segments"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_sign_of_a_remainder_of_zero(fresh, np, dtype):
    some = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, np.inf, -np.inf]
    for x, y in itertools.product(some, repeat=2):
        for f in (lambda a, b: a % b, lambda a, b: a[0] % b[0], lambda a, b: a // b):
            check(fresh, np, f, np.array([x], dtype), np.array([y], dtype))


def test_scalars_of_bools(fresh, np):
    """NumPy's scalars are no arrays of one element: np.bool_(True) ** 2 is an int64, the square of an array an int8."""
    for f in (lambda a: a[0] ** 2, lambda a: a[0] / 0, lambda a: (a[1] / 0) > 1, lambda a: -1.5 / a[1], lambda a: a[1] / np.float64(0)):
        compiled = fresh.compile(f)
        for _ in range(2):
            (expected, eager), (got, result) = told(f, np.array([True, False])), told(compiled, np.array([True, False]))
            assert got == expected and type(result) is type(eager) and (result == eager or result != result)  # noqa: PLR0124


def test_an_error_of_what_makes_no_difference(fresh, np):
    """0 * x is 0, and x - x: what x tells of is told all the same."""
    for f in (lambda a, k: 0 * (a[0] - 8), lambda a, k: (a[0] + a[0]) & 0, lambda a, k: k / (a[1] - a[1])):
        compiled = fresh.compile(f)
        for k in (3, 3, 4, 5):
            (expected, eager), (got, result) = told(f, np.array([1, 5], "uint8"), k), told(compiled, np.array([1, 5], "uint8"), k)
            assert got == expected and type(result) is type(eager) and result == eager


def test_elements_that_parts_read_between_them(fresh, np):
    """An array whose elements are all read, in parts, need not be there as a whole; one with an element that nothing reads is computed."""

    def differences(x):
        d = x[:, 1:] * x[:, :-1]
        e = np.where(d * x[:, 1:] > 0, 0.0, d)
        return e[1:, :] - e[:-1, :] + d[1:, :]

    def corners(x):
        d = x * 1e200
        return d[1:, 1:-1] + d[:-1, 1:-1] + d[1:, 2:]

    for f, kernels in ((differences, 1), (corners, 2)):
        compiled = fresh.compile(f)
        for at in [None, *np.ndindex(4, 5)]:
            x = np.arange(1.0, 21.0).reshape(4, 5)
            if at:
                x[at] = 1e308
            (expected, eager), (got, result) = told(f, x), told(compiled, x)
            assert got == expected and (at is None or expected), (f, at)
            assert result.tobytes() == eager.tobytes()
        assert compiled.cache_info()["kernels"] == kernels, compiled.cache_info()


def test_corners_of_a_large_array_that_nothing_reads(fresh, np):
    """They are computed for themselves: that they can tell of something is no reason to store the whole array."""

    def stencil(x):
        d = 4.0 * x[1:-1, 1:-1] - (x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2])
        return (d[1:, 1:-1] - d[:-1, 1:-1])[:, ::-1].copy() + (d[1:-1, 1:] - d[1:-1, :-1])[0, 0]

    def crossed(x):
        d = 4.0 * x[1:-1, 1:-1] - (x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2])
        return d[1:-1, 1:-1] - (d[2:, 1:-1] + d[:-2, 1:-1] + d[1:-1, 2:] + d[1:-1, :-2])

    for f, rows in ((stencil, 141), (crossed, 701)):  # 4 MB and more: what is read five times is computed as often
        compiled = fresh.compile(f)
        for at in (None, (1, 1), (1, -2), (-2, 1), (-2, -2), (0, 1), (0, 0), (70, 70)):
            x = np.arange(rows * 803.0).reshape(rows, 803) % 97
            if at:
                x[at] = 1e308
            (expected, eager), (got, result) = told(f, x), told(compiled, x)
            assert got == expected and (at in (None, (0, 1), (0, 0)) or expected), (f, at)
            assert result.tobytes() == eager.tobytes()
    assert compiled.cache_info()["kernels"] == 5, compiled.cache_info()  # the four corners are alike


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int8", "int32"])
def test_numbers_beyond_a_type(fresh, np, dtype):
    """Numbers that change between calls, compared with integers that cannot hold them."""
    x = np.arange(5).astype(dtype)
    for f in (lambda x, k: x < -k, lambda x, k: x[2] >= -k, lambda x, k: x != k * 70_000_000, lambda x, k: (x[2] > k << 40) + 1):
        compiled = fresh.compile(f)
        for k in (1, 2, 3, 60, 1000):
            expected, got = f(x, k), compiled(x, k)
            assert type(got) is type(expected) and np.array_equal(got, expected), k


def test_signed_and_unsigned_are_compared_exactly(fresh, np):
    x, y = np.array([2**63 - 1, -1, 5]), np.array([2**63, 2**64 - 1, 5], "uint64")
    for f in (lambda x, y: x < y, lambda x, y: x > y, lambda x, y: x >= y, lambda x, y: y <= x, lambda x, y: x == y):
        assert fresh.compile(f)(x, y).tolist() == f(x, y).tolist()


def test_an_array_that_is_written_while_it_is_gone_through(fresh, np):
    def plain(a):
        for x in a:
            a[int(x) % len(a)] = x + 5
        return a

    def numbered(a):
        total = 0.0
        for i, x in enumerate(a):
            a[(i + 1) % 6] += x
            total = total + x
        return total

    def pairs(a):
        for x, y in zip(a, a[::-1]):
            a[2] = x - y
        return a

    def with_a_break(a):
        seen = []
        for x in a:
            a[3:] *= 2
            seen.append(float(x))
        return seen

    for f in (plain, numbered, pairs, with_a_break):
        compiled = fresh.compile(f)
        for size in (6, 6, 7):
            one, other = np.arange(1.0, size + 1), np.arange(1.0, size + 1)
            assert str(compiled(one)) == str(f(other)) and one.tolist() == other.tolist(), f


@pytest.mark.parametrize("to", ["int8", "int16", "int32", "int64", "uint16"])
def test_scalars_that_an_element_cannot_hold(fresh, np, to):
    def element(a, v):
        a[1] = v[0]

    def added(a, v):
        a[-1] += v[0]

    def part(a, v):
        a[1:] = v[0]

    def all_of_it(a, v):
        a.fill(v[0])

    def caught(a, v):
        try:
            a[0] = v[0]
        except OverflowError:
            a[2] = 9

    some = [(300.7, "float64"), (-129.5, "float32"), (-128.5, "float64"), (300, "int64"), (2**31, "int64"), (2**63, "uint64"), (-3, "int8"),
            (65504.0, "float16"), (float("nan"), "float64"), (float("-inf"), "float32"), (70000, "uint32"), (3, "int64")]  # fmt: skip
    for f in (element, added, part, all_of_it, caught):
        compiled = fresh.compile(f)
        for value, dtype in some:
            if to == "uint16" and not 0 <= value < 2**16:
                continue  # what a cast makes of these depends on the processor
            seen = []
            for g in (f, compiled, compiled):
                a = np.arange(4).astype(to)
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    try:
                        g(a, np.array([value], dtype))
                        error = None
                    except (OverflowError, ValueError, TypeError) as e:
                        error = f"{type(e).__name__} {e}"
                seen.append((a.tolist(), error, [str(w.message) for w in told]))
            assert seen[1:] == seen[:1] * 2, (f, value, dtype)
def test_numbers_that_an_integer_type_cannot_hold(fresh, np):
    """Python's numbers that change between calls, beside integer arrays: NumPy raises, warns or compares exactly."""

    def assigned(a, v):
        a[1] = v
        return a

    def everywhere(a, v):
        a[...] = v
        return a

    def in_a_loop(a, v):
        for i in range(3):
            a[i] = v + i
        return a

    functions = [assigned, everywhere, in_a_loop, lambda a, v: a + v, lambda a, v: v * a, lambda a, v: a < v, lambda a, v: np.full_like(a, v),
                 lambda a, v: np.full(3, v, dtype=a.dtype), lambda a, v: np.clip(a, 0, v), lambda a, v: a.dtype.type(v), lambda a, v: np.where(a > 0, v, a)]  # fmt: skip
    values = [3, 5, 300, -1, -200, 2**40, 7.0, 300.0, -200.7, 1e10, float("nan"), float("inf"), 2.5]
    for f in functions:
        for dtype in ("int8", "int16", "uint8", "uint32", "int64"):
            fresh.reset()
            compiled = fresh.compile(f)
            for v in values:
                seen = []
                for g in (f, compiled):
                    a = np.arange(4).astype(dtype)
                    with warnings.catch_warnings(record=True) as caught:
                        warnings.simplefilter("always")
                        try:
                            result = g(a, v)
                            result = (str(result.dtype), str(result))
                        except (OverflowError, ValueError) as error:
                            result = type(error), str(error)
                    seen.append((result, str(a), [(w.category, str(w.message)) for w in caught]))
                assert seen[0] == seen[1], (dtype, v)
            assert compiled.cache_info()["segments"]


def test_powers_of_scalars_are_pow(fresh):
    """x ** 2 of a NumPy scalar is C's pow, which is not x * x in one of a thousand; of an array it is."""
    numpy = pytest.importorskip("numpy")
    rng = numpy.random.default_rng(3)
    a = rng.uniform(-1e3, 1e3, 4000)

    def f(a, i):
        s = a[i] * 1.0
        return s**2, abs(s) ** 0.5, s**-1, 2.5 ** (s * 1e-3), numpy.power(s, 2), s**3.0, (a[i : i + 1] ** 2)[0]

    g = fresh.compile(f)
    for i in range(0, 4000):
        assert [v.tobytes() for v in f(a, i)] == [v.tobytes() for v in g(a, i)], i
    assert fresh.cache_info(g)["segments"]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_the_smallest_integer_divided_by_minus_one(fresh, np, dtype):
    def by_number(a):
        return a // -1

    def by_scalar(a):
        return np.floor_divide(a, a.dtype.type(-1)), a % -1, -a

    def elements(a):
        return [a[i] // -1 for i in range(3)]

    for f in (by_number, by_scalar, elements, lambda a: np.divmod(a, -1)):
        fresh.reset()
        compiled = fresh.compile(f)
        for least in (np.iinfo(dtype).min, 7, np.iinfo(dtype).min):
            a = np.array([3, least, 5], dtype)
            expected, eager = told(f, a)
            got, result = told(compiled, a)
            assert got == expected and str(result) == str(eager)
            assert any("overflow" in w for w in expected) == (least < 0)
        assert fresh.cache_info(compiled)["segments"]


def test_what_only_something_empty_reads_is_told_of(fresh, np):
    """Where a size that changes is 0, a kernel of it computes nothing, also not the number that it would spread."""

    def divided(b, d, n):
        b[: b.size - n] += b[-2] // d
        return b

    def root(b, d, n):
        return b[:n] + np.sqrt(b[-2] - 5 - d)

    def rows(b, d, n):
        return b[:n, None] + np.log(b[-3:] - 10 - d)

    for f in (divided, root, rows):
        compiled = fresh.compile(f)
        for n in (5, 6, 7, 30, 0, 1, 0, 30):
            for d in (2.0, 0.0):
                for number in (0.0, 100.0):
                    b = [np.arange(30, dtype=np.float32) for _ in range(2)]
                    for x in b:
                        x[-3:] = number
                    expected, eager = told(f, b[0], d, n)
                    got, result = told(compiled, b[1], d, n)
                    assert got == expected and np.array_equal(result, eager, equal_nan=True), (f.__name__, n, d, number)
        assert fresh.cache_info(compiled)["outcomes"]["run"]["graph"] >= 4


def test_stores_to_the_same_parts_tell_of_each_division(fresh, np):
    """Rounds store to the same parts again, and edges over what was computed: what nobody reads is told of all the same."""

    def program(p, q):
        for _ in range(3):
            before = p.copy()
            p[1:-1, 1:-1] = (before[1:-1, 2:] + before[:-2, 1:-1]) / q[1:-1, 1:-1]
            p[1:-1, -1] = 1 / q[1:-1, 0] + before[1:-1, 1]
            p[:, 1] = p[:, 2]
            p[-2, :] = p[1, :]
            p[0, :] = 0
            q += 1.0
        return p * 2

    ran = 0
    for i, j in itertools.product(range(7), range(6)):
        fresh.reset()
        compiled = fresh.compile(program)
        for first in (5.0, 0.0, -1.0, -2.0):
            seen = []
            for function in (program, compiled):
                p, q = np.arange(42.0).reshape(7, 6) + 1, np.full((7, 6), 5.0)
                q[i, j] = first
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    result = function(p, q)
                seen.append((result.tobytes(), p.tobytes(), q.tobytes(), [(str(w.message), w.lineno) for w in caught]))
            assert seen[0] == seen[1], (i, j, first)
        ran += sum(compiled.cache_info()["outcomes"]["run"].get(way, 0) for way in ("graph", "told"))
    assert ran >= 3 * 42  # the code was there each time, and noticed


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_of_equal_zeros_the_one_that_numpy_gives(fresh, name):
    np = pytest.importorskip("numpy")
    extreme = getattr(np, name)

    def f(a, b):
        return extreme(a, b), extreme(b, a), extreme(a, 0.0), extreme(-0.0, b), extreme(a[::2], b[::2]), extreme(a * 1, b + 0)

    told = fresh.explain(f)(np.zeros(4), np.zeros(4))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for dtype in (np.float32, np.float64):
        for n in (1, 3, 8, 17, 33):
            a = np.where(np.arange(n) % 2, -0.0, 0.0).astype(dtype)
            for got, expected in zip(compiled(a, -a), f(a, -a)):
                assert got.dtype == expected.dtype
                np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("shape", [(5,), (7, 6), (64, 64)])
def test_what_a_choice_leaves_out_is_told(fresh, np, shape):
    """NumPy computes both sides for all elements, so the mask of the choice must not become one of the operation."""
    programs = [
        lambda x, y: np.where(y != 0, x / y, x),
        lambda x, y: np.where(y > 0, np.sqrt(y), x),
        lambda x, y: np.where(y > 0.5, y, x * y),
        lambda x, y: np.where(y < 1, x, np.where(x < 1, 1 / y, 0.5)),
    ]
    x, y = np.full(shape, 1e200), np.full(shape, -1.5)
    y[1] = 0.0
    y[2] = 1e200
    for program in programs:
        compiled = fresh.compile(program)
        for _ in range(3):
            expected = told(program, x, y)[0]
            assert expected and told(compiled, x, y)[0] == expected


@pytest.mark.parametrize("text", ["a < 70000", "70000 > a", "a == -65520", "a + 70000", "np.maximum(a, 10**6)", "np.where(a > 1, a, 70000)", "a < 65504", "np.where(a > 1, 65519, a)"])
def test_an_int_beyond_half_precision(fresh, np, text):
    """NumPy makes an int of Python's a float16 beside such an array, and warns where that overflows."""
    space = {"np": np}
    exec(f"def f(a): return {text}", space)
    compiled, a = fresh.compile(space["f"]), np.array([1, np.inf, 60000, -60000], np.float16)
    seen = []
    for g in (space["f"], compiled, compiled):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            seen.append((g(a).tolist(), [str(w.message) for w in told]))
    assert seen[1] == seen[0] and seen[2] == seen[0]
    assert bool(seen[0][1]) == (compiled.cache_info()["breaks"] == 1)
