"""NumPy's floating-point errors in compiled code: what eager tells of is told, and ordinary numbers end no run early."""

import itertools
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
        assert np.array_equal(np.isnan(result), np.isnan(eager)), args


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY + BINARY)
def test_special_values(fresh, np, name, dtype):
    with np.errstate(over="ignore"):
        values = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, np.inf, -np.inf, np.nan, 1e308, -800.0]).astype(dtype)
    ufunc = getattr(np, name)
    for case in itertools.product(values, repeat=ufunc.nin):
        if name == "power" and np.isinf(case[1]):
            continue  # NumPy's own answer depends on the processor
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
            compiled(*args), compiled(*args)
            assert compiled.cache_info()["segments"], f
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
                run(lambda x: (np.log(x)[1:] - np.log(x)[:-1]) / x[1:], x)
                run(lambda x: np.where(x > 0.5, np.sqrt(x), 1 / x), x)
        print("done")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=170,
                          env={**__import__("os").environ, "FRAMEJIT_LOG": "perf", "PYTHONPATH": ":".join(p for p in sys.path if p)})  # fmt: skip
    assert "done" in done.stdout, done.stderr[-2000:]
    assert "ended early" not in done.stderr + done.stdout
