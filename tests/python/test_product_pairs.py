"""Two products of one matrix with vectors from its two sides, made as the matrix is read once: the last bits are those of NumPy's two products."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from test_dots_ahead import blas_threads

import framejit

PAIRED = "with the product behind it"


def both_sides(a, x, y):
    return y @ a, a @ x


def chained(a, x, y):
    return (a @ x) @ a


def turned(a, x, y):
    return a.T @ y, a @ x


def of_columns(a, x, y):
    return a.T @ (a @ x), y @ a


def added(a, x, y):
    z = y + a @ x
    return z, x - y @ a, z.sum()


def four(a, x, y):
    return a @ x, y @ a, a @ (x + 1.0), (y * 2.0) @ a


def not_before_its_vector(a, x, y):
    z = (a @ x) * 2.0 + 1.0
    return z @ a


def other_way_round(a, x, y):
    return a @ (y @ a)


def written(a, x, y):
    z = a @ x
    x[:] = y @ a
    y[:] = z
    return z


PAIRS = [both_sides, chained, turned, of_columns, added, four, written]
PROGRAMS = [*PAIRS, not_before_its_vector, other_way_round]


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    put, get = blas_threads()
    before = get()
    put(request.param)
    yield request.param
    put(before)


def bits(x):
    return [bits(y) for y in x] if isinstance(x, tuple) else x.tobytes()


def arguments(shape, seed=0):
    r = np.random.default_rng(seed)
    return r.normal(size=shape), r.normal(size=shape[1]), r.normal(size=shape[0])


def check(program, shape, view=lambda a, x, y: (a, x, y), calls=3):
    compiled = framejit.compile(program)
    for k in range(calls):
        given, ours = view(*arguments(shape, k)), view(*arguments(shape, k))
        expected, got = program(*given), compiled(*ours)
        assert bits(expected) == bits(got), (program.__name__, shape, k)
        assert bits(given) == bits(ours)
    assert compiled.cache_info()["breaks"] == 0


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shape", [(601, 703), (1030, 517), (66, 9001), (9001, 66)])
def test_bits_are_numpys(program, shape, threads):
    if threads == 3 and shape[0] != 601:
        return
    check(program, shape, calls=2)


@pytest.mark.parametrize(
    "view",
    [
        lambda a, x, y: (a[:, :701], x[:701], y),
        lambda a, x, y: (a[5:], x, y[5:]),
        lambda a, x, y: (a.T, y, x),
        lambda a, x, y: (np.asfortranarray(a), x, y),
        lambda a, x, y: (a[::2], x, y[::2]),
        lambda a, x, y: (a[::-1], x, y),
        lambda a, x, y: (a[:, ::-1], x, y),
        lambda a, x, y: (a, np.repeat(x, 2)[::2], np.repeat(y, 3)[::3]),
        lambda a, x, y: (a, x[::-1], y[::-1]),
        lambda a, x, y: (a, a[0], a[: y.size, 3]),
        lambda a, x, y: (a.astype(np.float32), x.astype(np.float32), y.astype(np.float32)),
        lambda a, x, y: (a.astype(np.complex128), x, y),
        lambda a, x, y: ((a * 10).astype(np.int64), (x * 10).astype(np.int64), (y * 10).astype(np.int64)),
    ],
)
def test_views_and_other_types(view):
    for program in (both_sides, chained, turned):
        check(program, (602, 703), view)


@pytest.mark.parametrize("shape", [(33, 110_003), (110_003, 35), (110_003, 32)])
def test_long_and_narrow(shape, threads):
    """What the BLAS would share in a call of its own is left to it."""
    for program in (both_sides, chained):
        check(program, shape, calls=1)


def test_sizes_change():
    for program in (both_sides, chained):
        compiled = framejit.compile(program)
        for shape in [(600, 601), (700, 599), (0, 5), (5, 0), (1, 1), (1, 300000), (300000, 1), (3, 100000), (513, 512), (512, 513), (600, 601)]:
            given = arguments(shape)
            assert bits(compiled(*given)) == bits(program(*given)), (program.__name__, shape)


@pytest.mark.parametrize("special", [np.inf, np.nan, 1e308, 1e-310, -0.0])
def test_special_numbers_and_what_numpy_tells(special):
    def given():
        a, x, y = arguments((600, 601), 1)
        a[200, 100] = special
        x[7] = y[9] = special
        return a, x, y

    def told(f, *args):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            result = f(*args)
        return bits(result), sorted({str(w.message) for w in seen})

    for program in (both_sides, chained):
        compiled = framejit.compile(program)
        for state in ({}, {"all": "ignore"}, {"under": "warn"}):
            with np.errstate(**state):
                for _ in range(3):
                    assert told(compiled, *given()) == told(program, *given())


def test_poison(monkeypatch):
    monkeypatch.setattr(framejit.config, "poison", True)
    for program in (both_sides, chained, added):
        check(program, (601, 703))


def test_from_many_threads():
    from concurrent.futures import ThreadPoolExecutor

    compiled, given = framejit.compile(chained), arguments((700, 801))
    expected = bits(chained(*given))
    compiled(*given), compiled(*given)
    with ThreadPoolExecutor(4) as pool:
        assert all(bits(r) == expected for r in pool.map(lambda _: compiled(*given), range(40)))


def plans(programs):
    """How many pairs the plans of each program have."""
    text = "import sys, framejit\nfrom test_product_pairs import *\n"
    for program in programs:
        text += f"print('of', {program.__name__!r}, file=sys.stderr, flush=True)\nframejit.compile({program.__name__})(*arguments((600, 601)))\n"
    env = os.environ | {"FRAMEJIT_LOG": "graph", "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *(p for p in sys.path if p)])}
    seen = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True).stderr
    return [part.count(PAIRED) for part in ("\n" + seen).split("\nof ")[1:]]


def test_the_plan_says_so():
    assert plans(PROGRAMS) == [1, 1, 1, 1, 1, 1, 1, 0, 1]
