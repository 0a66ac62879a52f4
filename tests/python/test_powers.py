"""Powers and decimal logarithms of float64 arrays, which are computed by vectors: accuracy, special values, exceptions, and that it is so."""

import itertools
import os
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest


def power(x, y):
    return x**y


def compiled_power(fresh, x, y):
    with fresh.config.patch(leave=False):
        compiled = fresh.compile(power)
        result = [compiled(x, y) for _ in range(3)][-1]
        assert compiled.cache_info()["segments"] == 1
    return result


@pytest.mark.parametrize("low, high, most", [(-300, 300, 2.0), (-1e-3, 1e-3, 5e5), (-3, 4, 20.0), (-700, 700, 0.5)])
def test_accuracy(fresh, low, high, most):
    """At most a unit in the last place, and on average no further from the number than NumPy's."""
    mp = pytest.importorskip("mpmath")
    rng = np.random.default_rng(5)
    x, y = np.exp(rng.uniform(low, high, 2000)), rng.uniform(-most, most, 2000)
    with np.errstate(all="ignore"):
        result, numpys = compiled_power(fresh, x, y), power(x, y)
    normal = (numpys > 1e-290) & (numpys < 1e290)
    assert normal.sum() > 1000
    with mp.workprec(160):
        exact = [mp.mpf(float(a)) ** mp.mpf(float(b)) for a, b in zip(x[normal], y[normal], strict=True)]
        errors = [
            np.array([float(abs(mp.mpf(float(v)) - e) / float(np.spacing(v))) for v, e in zip(of[normal], exact, strict=True)]) for of in (result, numpys)
        ]
    assert errors[0].max() < 0.75
    assert errors[0].mean() <= 1.02 * errors[1].mean()


@pytest.mark.parametrize("how", ["vectors", "one by one"])
def test_special_values(fresh, how):
    some = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e-310, 1.7e308, -1.7e308, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1e17, -1e17 - 2, 1e300]
    finite = [y for y in some if not np.isinf(y)]  # what NumPy says of infinite powers depends on the processor
    pairs = np.array(list(itertools.product(some, finite)))
    rows = [pairs.T.copy()] if how == "vectors" else [np.array([[a] * 9, [b] * 9]) for a, b in pairs]
    with fresh.config.patch(leave=False):
        compiled = fresh.compile(power)
        for x, y in rows:
            told = []
            for f in (power, compiled):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    told.append((f(x, y), sorted(str(w.message) for w in caught)))
            (wanted, expected), (got, also) = told
            assert also == expected, (x, y)
            assert np.array_equal(np.isnan(got), np.isnan(wanted))
            number = ~np.isnan(wanted)
            assert np.array_equal(np.signbit(got)[number], np.signbit(wanted)[number])
            assert np.allclose(got, wanted, rtol=3e-16, atol=5e-324, equal_nan=True)


def test_ordinary_numbers_raise_nothing(fresh):
    """Zeros, ones, negative bases with whole powers: no exception is raised on the way, also where underflow is told of."""
    x = np.concatenate([np.zeros(9), np.ones(9), -np.arange(1.0, 30), np.arange(1.0, 30) * 1e-3])
    with np.errstate(all="raise"):
        for y in (2.5, 3.0, 1.0, 7.0):
            base = x if y == round(y) else np.abs(x)
            assert np.allclose(compiled_power(fresh, base, np.full(base.shape, y)), base**y, rtol=3e-16, atol=0)


def test_small_powers_raise_nothing(fresh):
    near = np.concatenate([1 + np.spacing(1.0) * np.arange(-8, 9) / 2, [1e-307, 1.7e308, 3.0, 0.1]])
    compiled = fresh.compile(power)
    with np.errstate(all="raise"), fresh.config.patch(leave=False):
        for exponent in range(-520, -1, 3):
            y = np.full(near.shape, 1.25 * 2.0**exponent)
            with np.errstate(all="ignore"):
                wanted = near**y
            assert np.allclose(compiled(near, y), wanted, rtol=3e-16, atol=0)
        assert "told" not in compiled.cache_info()["outcomes"]["run"]


def test_one_number_is_as_numpys(fresh):
    compiled = fresh.compile(lambda x, y: x[3] ** y[3])
    rng = np.random.default_rng(2)
    for _ in range(50):
        x, y = rng.uniform(0, 30, 5), rng.uniform(-5, 5, 5)
        assert compiled(x, y) == x[3] ** y[3]


def test_decimal_logarithms(fresh):
    mp = pytest.importorskip("mpmath")
    rng = np.random.default_rng(4)
    with fresh.config.patch(leave=False):
        compiled = fresh.compile(np.log10)
        tens = 10.0 ** np.arange(-22, 23)
        tens[:22] = [float(f"1e{k}") for k in range(-22, 0)]
        exact = np.arange(-22.0, 23.0)
        assert np.array_equal(compiled(tens)[22:], exact[22:])
        assert np.allclose(compiled(tens), exact, rtol=1e-16, atol=0)
        x = np.concatenate([np.exp(rng.uniform(-600, 600, 1500)), 1 + rng.uniform(-1e-3, 1e-3, 500)])
        with mp.workprec(160):
            far = [abs((mp.mpf(float(g)) - mp.log10(mp.mpf(float(v)))) / mp.mpf(float(np.spacing(abs(g))))) for g, v in zip(compiled(x), x, strict=True)]
        assert max(far) < 0.52
        for special in (0.0, -0.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 1e-310, 1.0):
            values = np.array([2.0, special, 3.0, 1000.0, 7.0, 8.0, 9.0, 10.0, 11.0])
            told = []
            for f in (np.log10, compiled):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    told.append((f(values), [str(w.message) for w in caught]))
            assert told[0][1] == told[1][1], special
            assert np.allclose(told[0][0], told[1][0], rtol=3e-16, atol=0, equal_nan=True)
        assert compiled.cache_info()["segments"] >= 1


@pytest.mark.parametrize("expression", ["x**-1.5", "np.log10(x)"])
def test_the_code_is_of_vectors(tmp_path, expression):
    program = f"""
        import numpy as np, framejit
        framejit.compile(lambda x: {expression})(np.linspace(0.1, 3, 1000))
    """
    env = {**os.environ, "FRAMEJIT_LOG": "llvm", "FRAMEJIT_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True, check=True)
    assert "@llvm.fma.v" in done.stdout + done.stderr
