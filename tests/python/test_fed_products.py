"""Products of a vector and a matrix that is made for them alone, which is never stored: the last bits are those of NumPy's product of the whole."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from test_dots_ahead import blas_threads

import framejit

FED = "as the product reads it"


def scaled(a, x, s):
    return s * a @ x


def two(a, x, s):
    return s * a @ x + (a - s) @ x


def several_operations(a, x, s):
    return (a * s + a / 3.0 - 1.0) @ x


def of_rows(a, x, s):
    return (a * x[: a.shape[0], None]) @ x


def kept_besides(a, x, s):
    b = a + s
    return b, (s * b) @ x


def written(a, x, s):
    a += np.outer(x[: a.shape[0]], x)
    return s * a @ x


def over_an_argument(a, x, s):
    y = s * a @ x
    x[: y.shape[0]] = y
    return y


PROGRAMS = [scaled, two, several_operations, of_rows, kept_besides, written, over_an_argument]


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    put, get = blas_threads()
    before = get()
    put(request.param)
    yield request.param
    put(before)


def bits(x):
    return [bits(y) for y in x] if isinstance(x, tuple) else x.tobytes()


def check(program, shape, s=1.25, calls=3):
    compiled = framejit.compile(program)
    for k in range(calls):
        r = np.random.default_rng(k)
        a, x = r.normal(size=shape), r.normal(size=shape[1])
        b, y = a.copy(), x.copy()
        expected, got = program(a, x, s), compiled(b, y, s)
        assert bits(expected) == bits(got), (program.__name__, shape, k)
        assert a.tobytes() == b.tobytes() and x.tobytes() == y.tobytes()
    assert compiled.cache_info()["kernels"] > 0


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shape", [(301, 1001), (803, 1031), (129, 263), (1, 70000), (17, 2500)])
def test_bits_are_numpys(program, shape, threads):
    if threads == 3 and shape[0] not in (803, 301):
        return
    check(program, shape)


def test_poison(monkeypatch):
    """The matrix is stored then, and holds the pattern before it is made, not behind that."""
    monkeypatch.setattr(framejit.config, "poison", True)
    for program in (scaled, two):
        check(program, (301, 1001))


@pytest.mark.parametrize("shape", [(1500, 40), (5000, 200), (33000, 1), (9, 60001), (70000, 8)])
def test_other_shapes(shape):
    for program in (scaled, two, several_operations):
        check(program, shape)


def test_sizes_change():
    compiled = framejit.compile(scaled)
    r = np.random.default_rng(0)
    for shape in [(300, 301), (400, 299), (0, 5), (5, 0), (1, 1), (2, 200), (513, 512), (300, 301), (1024, 64)]:
        a, x = r.normal(size=shape), r.normal(size=shape[1])
        assert compiled(a, x, 3.0).tobytes() == scaled(a, x, 3.0).tobytes()


def test_views_and_other_types():
    r = np.random.default_rng(0)
    a, x = r.normal(size=(800, 802)), r.normal(size=1604)
    compiled = framejit.compile(scaled)
    for b, y in [(a[::2], x[:802]), (a[:, ::2], x[:401]), (a[::-1], x[::2]), (a, x[1604:0:-2]), (a.astype(np.float32), x[:802].astype(np.float32)), (a.astype(np.complex128), x[:802])]:
        assert compiled(b, y, 3.0).tobytes() == scaled(b, y, 3.0).tobytes()


@pytest.mark.parametrize("special", [np.inf, np.nan, 1e308, 1e-310, -0.0])
def test_special_numbers_and_what_numpy_tells(special):
    def some(a, x):
        a[200, 100] = special
        x[7] = special

    def told(f, *args):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            result = f(*args)
        return bits(result), sorted({str(w.message) for w in seen})

    compiled = framejit.compile(scaled)
    for state in ({}, {"all": "ignore"}, {"under": "warn"}):
        with np.errstate(**state):
            for _ in range(3):
                r = np.random.default_rng(1)
                a, x = r.normal(size=(300, 301)), r.normal(size=301)
                some(a, x)
                assert told(compiled, a, x, 1.25) == told(scaled, a, x, 1.25)
    with np.errstate(all="raise"):
        try:
            expected = scaled(a, x, 1.25)
        except FloatingPointError as e:
            with pytest.raises(FloatingPointError, match=str(e)):
                compiled(a, x, 1.25)
        else:
            assert compiled(a, x, 1.25).tobytes() == expected.tobytes()


def test_the_plan_says_so():
    program = """
import numpy as np, framejit
@framejit.compile
def f(a, x, s, t):
    b = a + t
    a[:] = b
    return s * b @ x
a, x = np.ones((300, 300)), np.ones(300)
f(a, x, 2.0, 3.0)
"""
    env = os.environ | {"FRAMEJIT_LOG": "graph", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    text = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stderr
    assert text.count(FED) == 1, text
