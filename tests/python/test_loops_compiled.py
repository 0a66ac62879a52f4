"""Loops over numbers and elements of arrays that become machine code: values, types, arrays, exceptions and their lines, output,
all as in Python, and the code is asserted to have run."""

import contextlib
import io
import math
import os
import subprocess
import sys
import traceback
import warnings

import framejit
import fuzzing
import numpy as np
import pytest

from bench.scalar_programs import (
    bisect,
    bubble_sort,
    cholesky,
    collatz,
    crc16,
    edit_distance,
    euler,
    first_above,
    floyd_warshall,
    gcd_table,
    generator,
    histogram,
    integrate,
    kalman,
    knapsack,
    life,
    mandelbrot,
    matrix_product,
    nearest,
    nussinov,
    queens,
    running_sum,
    seidel,
    sieve,
    smooth,
    sums_of_a_list,
    with_helpers,
)
from tests.python.fuzz_loops import DTYPES, one


@pytest.fixture(autouse=True)
def scalar_loops():
    with framejit.config.patch(scalar_loops=True):
        yield


def llvm_of(program):
    """The text of all code that LLVM is given where this program, which may import the tests, runs in a process of its own."""
    path = os.pathsep.join([os.getcwd(), os.path.dirname(__file__), *filter(None, sys.path)])
    env = {**os.environ, "FRAMEJIT_LOG": "llvm", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def rng(seed=7):
    return np.random.default_rng(seed)


def copied(x):
    if isinstance(x, np.ndarray):
        own = fuzzing.guarded if fuzzing.POISON else lambda a: a
        if x.ndim == 1 and x.strides[0] > x.itemsize:
            return own(np.repeat(x, 2)[:-1])[::2]
        return own(x.copy(order="K"))
    return list(x) if isinstance(x, list) else x


def described(x):
    """Types and bits."""
    if isinstance(x, (tuple, list)):
        return type(x), [described(v) for v in x]
    if isinstance(x, np.ndarray):
        # Which nan it is is nobody's promise. Large ints would not be the same as floats.
        bits = np.where(x != x, np.nan, x).astype(x.dtype) if x.dtype.kind in "fc" else x  # noqa: PLR0124
        return type(x), x.dtype, x.shape, x.strides, bits.tobytes()
    if isinstance(x, (float, np.floating)):
        return type(x), "nan" if x != x else (float(x).hex(), math.copysign(1, x))  # noqa: PLR0124
    if isinstance(x, complex):
        return type(x), described(float(x.real)), described(float(x.imag))
    return type(x), x


def observed(function, plain, args, file=__file__):
    """All that a call does. Lines of the traceback are those of the function that was written."""
    same = {id(a): copied(a) for a in args}
    args = tuple(same[id(a)] for a in args)
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        try:
            result = described(function(*args))
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001
            lines = [
                f.lineno
                for f in traceback.extract_tb(error.__traceback__)
                if f.filename == file and f.name == plain.__name__
            ]
            if isinstance(error, UnboundLocalError):  # CPython 3.11 itself tells the line before, once it is warm
                lines = len(lines)
            result = type(error), str(error), lines
    return (
        result,
        [described(a) for a in args],
        out.getvalue(),
        [(w.category, str(w.message), w.lineno) for w in caught],
    )


def check(program, *calls, runs=1, loops=1):
    """Each call several times, against Python; code is made for `loops` loops at least, and runs."""
    compiled = framejit.compile(program)
    for args in calls:
        for _ in range(3):
            assert observed(compiled, program, args) == observed(program, program, args)
    info = compiled.cache_info()
    assert info["scalar_loops"] >= loops and info["scalar_runs"] >= runs, info
    return compiled


# --- programs ----------------------------------------------------------------------------------------------------------------
PROGRAMS = {
    running_sum: (rng().random(200),),
    crc16: (0x1021, rng().integers(0, 256, 300, dtype=np.uint8)),
    nussinov: (24, rng().integers(0, 4, 24)),
    seidel: (3, rng().random((14, 14))),
    floyd_warshall: (rng().random((16, 16)),),
    edit_distance: (
        rng().integers(0, 5, 30).tolist(),
        rng().integers(0, 5, 25).tolist(),
    ),
    mandelbrot: (30, 20, 30),
    cholesky: ((lambda a: a @ a.T + 12 * np.eye(12))(rng().random((12, 12))),),  # noqa: PLC3002
    queens: (6,),
    life: ((rng().random((12, 10)) > 0.6).astype(np.int8), 4),
    generator: (3000, 42),
    collatz: (300,),
    sieve: (500,),
    sums_of_a_list: (rng().integers(0, 20000, 500).tolist(),),
    bubble_sort: (rng().random(40),),
    bisect: (np.sort(rng().random(100)), rng().random(60)),
    euler: (2000,),
    smooth: (rng().standard_normal(300), 0.05),
    histogram: (rng().random(400), 12),
    gcd_table: (20,),
    matrix_product: (rng().random((9, 8)), rng().random((8, 7))),
    with_helpers: (rng().random(200),),
    integrate: (2000,),
    kalman: (rng().standard_normal(300), 0.1, 0.01, 0.5),
    knapsack: (
        rng().integers(1, 12, 15).tolist(),
        rng().integers(1, 50, 15).tolist(),
        60,
    ),
    nearest: (rng().random((40, 3)), rng().random((12, 3))),
    first_above: (rng().random(100), 0.99),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs(program):
    check(program, PROGRAMS[program])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type(dtype):
    def program(x, y, k):
        total = x[0]
        for i in range(len(x)):
            if x[i] != y[i]:
                total = x[i]
            if x[i] > k:
                y[i] = x[i]
        return total, y

    x = (rng().random(60) * 90).astype(dtype)
    check(program, (x, x[::-1].copy(), 40))


@pytest.mark.parametrize("dtype", [t for t in DTYPES if t != "bool"])
@pytest.mark.parametrize(
    "other",
    [
        "1",
        "2.5",
        "x.dtype.type(3)",
        "np.float32(1.5)",
        "np.int64(2)",
        "np.float64(0.3)",
        "True",
    ],
)
def test_arithmetic_of_numpys_scalars(dtype, other):
    """Results have NumPy's types, and what overflows is done by NumPy, with its warning."""

    def program(x, o):
        a = b = c = d = e = x[0]
        for i in range(len(x)):
            v = x[i]
            a, b, c = v + o, v - o, v * o
            d = v / o
            if v != 0:
                e = v // o
                e = v % o
        return a, b, c, d, e

    x = (rng().random(40) * 7 + 3).astype(dtype)
    check(program, (x, eval(other)))


def test_segments_before_a_loop_end_at_it():
    """A first round that a segment began, up to a branch, was left to Python for good: 300 rounds of the loop inside."""

    def program(points, queries):
        points = points * 2.0
        out = np.zeros(len(queries), np.int64)
        for q in range(len(queries)):
            best, at = 1e300, -1
            for p in range(len(points)):
                d = 0.0
                for k in range(points.shape[1]):
                    t = points[p, k] - queries[q, k]
                    d += t * t
                if d < best:
                    best, at = d, p
            out[q] = at
        return out

    compiled = check(program, (rng().random((300, 3)), rng().random((40, 3))))
    assert any("mul" in str(g) and "__lt__" not in str(g) for g in compiled.graphs)


def test_few_rounds_over_elements_are_no_graph():
    """Twelve rounds of stores were unrolled, each of which copied an array, and so was what stood before the first branch."""

    def program(start, seen, trans):
        n = len(start)
        score = np.zeros((len(seen), n))
        for s in range(n):
            score[0, s] = start[s] + seen[0]
        for k in range(1, len(seen)):
            for s in range(n):
                best = -np.inf
                for p in range(n):
                    v = score[k - 1, p] + trans[p, s]
                    if v > best:  # noqa: PLR1730
                        best = v
                score[k, s] = best
        return score

    args = rng().random(12), rng().random(30), rng().random((12, 12))
    info = check(program, args, loops=2).cache_info()
    assert info["kernels"] == 0, info


def test_what_is_skipped_before_a_loop():
    """Instructions without anything to compile run in one go: exceptions, handlers and resets in the middle of them."""

    def fails(n):
        if n > 2:
            raise ValueError(n)
        return n

    def program(x, n):
        out = np.zeros(len(x))
        try:
            k = fails(n)
        except ValueError as e:
            k = int(str(e)) * 10
        for i in range(len(x)):
            out[i] = x[i] * k
        if k > 100:
            raise KeyError(k)
        return out, k

    x = rng().random(40)
    check(program, (x, 1), (x, 5), (x, 11))

    def resets(x, reset):
        out = np.zeros(len(x))
        reset()
        for i in range(len(x)):
            out[i] = x[i] * 2.0
        return out

    compiled = framejit.compile(resets)
    for k in range(12):
        np.testing.assert_array_equal(compiled(x, framejit.reset if k % 4 == 3 else dict), x * 2.0)


# --- where Python goes on ----------------------------------------------------------------------------------------------------
def test_an_index_out_of_range():
    def program(x, n):
        for i in range(n):
            x[i] = i * 2
        return x

    check(program, (np.zeros(50), 50), (np.zeros(50), 53))


def test_negative_indices():
    def program(x):
        s = 0.0
        for i in range(-len(x), len(x)):
            s += x[i] * i
        return s, x[-1]

    check(program, (rng().random(40),))


def test_division_by_zero_in_the_middle():
    def program(x, divisors):
        done = 0
        for i in range(len(x)):
            x[i] = 10 // divisors[i]
            done += 1
        return done

    check(program, (np.zeros(60), [1] * 40 + [0] + [2] * 19), (np.zeros(60), [1] * 60))


def test_integers_that_grow_past_64_bits():
    def program(n):
        a, b = 1, 1
        for _ in range(n):
            a, b = b, a + b
        return a

    check(program, (80,), (200,))

    def powers(n):
        out = 1
        for i in range(n):
            out = out * 3
            if i % 50 == 49:
                out = 1
        return out

    check(powers, (300,))


def test_numpys_overflow_warns_at_its_line():
    def program(x):
        s = x[0]
        for i in range(len(x)):
            s = s + x[i]
        return s

    for most, dtype in (
        (100, np.int8),
        (2**62, np.int64),
        (1.7e308, np.float64),
        (3.3e38, np.float32),
        (2**31, np.uint32),
    ):
        x = np.ones(60, dtype)
        x[[20, 40]] = most
        check(program, (x,))
    x = np.ones(60)
    x[20], x[40] = np.inf, -np.inf
    check(program, (x,))


def test_numpys_division_by_zero_warns():
    def program(x, y):
        for i in range(len(x)):
            x[i] = x[i] / y[i]
        return x

    y = np.ones(50)
    y[30] = 0
    check(program, (rng().random(50), y))
    check(program, (np.arange(50), y.astype(np.int64) + 1))


def test_a_negative_square_root():
    def program(x):
        s = 0.0
        for i in range(len(x)):
            s += math.sqrt(x[i])
        return s

    x = rng().random(50)
    check(program, (x,))
    x[33] = -1
    check(program, (x,))


def test_stores_that_do_not_fit():
    def program(out, values):
        for i in range(len(values)):
            out[i] = values[i]
        return out

    check(program, (np.zeros(40, np.int8), list(range(100, 140))))
    check(program, (np.zeros(40, np.int8), [1.5] * 30 + [float("nan")] + [2.0] * 9))
    check(program, (np.zeros(40, np.float32), [1.5] * 30 + [1e300] + [2.0] * 9))
    check(program, (np.zeros(40, np.uint8), [3] * 30 + [-1] + [2] * 9))


def test_an_array_that_cannot_be_written():
    def program(x):
        for i in range(len(x)):
            x[i] += 1
        return x

    check(program, (np.zeros(40),))
    compiled = framejit.compile(program)
    for _ in range(3):
        compiled(np.zeros(40))
    x = np.zeros(40)
    x.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        compiled(x)


def test_exceptions_are_handled_in_the_loop():
    def program(x, at):
        log = 0
        for i in range(len(x)):
            try:
                x[i] = 1 / (i - at)
            except ZeroDivisionError:
                log += 100 + i
            finally:
                log += 1
        return log, x

    check(program, (np.zeros(60), 45), (np.zeros(60), -1))


def test_raise_in_the_loop():
    def program(x):
        n = 0
        for i in range(len(x)):
            n += 1
            if x[i] > 0.97:
                raise ValueError(n)
        return n

    check(program, (rng().random(300),), runs=0, loops=0)  # an `if` that only raises is guessed: segments run it


def test_prints_in_the_loop():
    def program(x):
        s = 0.0
        for i in range(len(x)):
            s += x[i]
            if i % 50 == 49:
                print(i, s)
        return s

    check(program, (rng().random(300),), runs=5)


def test_arrays_that_are_one_and_arrays_that_overlap():
    def program(a, b):
        for i in range(1, len(a)):
            a[i] = b[i - 1] + 1
        return a

    x = np.zeros(60)
    compiled = framejit.compile(program)
    for first, second in (
        (slice(0, 50), slice(0, 50)),
        (slice(0, 50), slice(5, 55)),
        (slice(0, 50), slice(50, 0, -1)),
    ):
        for _ in range(2):
            ours, theirs = x.copy(), x.copy()
            compiled(ours[first], ours[second]), program(theirs[first], theirs[second])
            assert np.array_equal(ours, theirs)
    assert compiled.cache_info()["scalar_runs"]


def test_strides_and_types_that_change_between_calls():
    def program(a):
        s = a[0, 0] - a[0, 0]
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                s = s + a[i, j]
        return s

    a = rng().random((20, 24))
    check(
        program,
        (a,),
        (a.T,),
        (np.asfortranarray(a),),
        (a[::2, ::-1],),
        (a.astype(np.float32),),
        (np.arange(480).reshape(20, 24),),
    )


def test_slices_of_nothing_lie_as_numpys():
    def program(m, n):
        for i in range(n):
            w = m[8:2:-2, i % 3]
            v = m[i % 2 : 1 : -3, ::2]
            u = m[5:5:7]
        return w, v, u

    check(program, (np.zeros((4, 6)), 40), (np.zeros((20, 6)), 40), (np.zeros((3, 0)), 40))


def test_generators_and_other_iterators_go_on_in_python():
    def program(x):
        s = 0.0
        for i, v in enumerate(x):
            for k in range(20):
                s += v * k + i
        return s

    check(program, (rng().random(30),))


def test_globals_that_change():
    namespace = {"SCALE": 2.0, "np": np}
    exec(  # noqa: S102
        "def program(x):\n    s = 0.0\n    for i in range(len(x)):\n        s += x[i] * SCALE\n    return s",
        namespace,
    )
    program, x = namespace["program"], rng().random(60)
    compiled = framejit.compile(program)
    for scale in (2.0, 2.0, 3.0, 5, np.float64(1.5)):
        namespace["SCALE"] = scale
        assert described(compiled(x)) == described(program(x))
    namespace["range"] = lambda n: [0, 1]
    assert described(compiled(x)) == described(program(x))


def test_closures():
    def make(k):
        def program(x):
            s = 0.0
            for i in range(len(x)):
                s += x[i] * k
            return s

        return program

    x = rng().random(60)
    for k in (2.0, 3, np.float32(1.5)):
        check(make(k), (x,))


def test_interrupts():
    """A loop without end sees its signals."""
    import signal

    def program(n):
        i = 0
        while True:
            i = (i + 1) % n

    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    compiled = framejit.compile(program)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        for _ in range(3):
            signal.setitimer(signal.ITIMER_REAL, 0.6)
            with pytest.raises(Alarm):
                compiled(1000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert compiled.cache_info()["scalar_runs"]


def test_threads_get_their_turn():
    import threading

    def program(stop, n):
        i = 0
        while stop[0] == 0 and i < n:
            i += 1
        return i

    stop = np.zeros(1, np.int64)
    compiled = framejit.compile(program)
    compiled(stop, 100), compiled(stop, 100)
    timer = threading.Timer(0.2, lambda: stop.__setitem__(0, 1))
    timer.start()
    assert compiled(stop, 2**62) < 2**62
    timer.join()


def test_locals_after_an_exception():
    def program(x):
        a = 1
        b = 2.5
        for i in range(100):
            a += i
            c = x[i] * 2
        return a, b, c

    def frame_of(function):
        try:
            function(np.arange(60))
        except IndexError as error:
            tb = error.__traceback__
            while tb.tb_frame.f_code is not program.__code__:
                tb = tb.tb_next
            return {
                k: described(v) for k, v in tb.tb_frame.f_locals.items()
            }, tb.tb_lineno

    compiled = framejit.compile(program)
    for _ in range(3):
        assert frame_of(compiled) == frame_of(program)
    assert compiled.cache_info()["scalar_runs"]


def test_objects_stay_themselves():
    def program(x, marker, n):
        keep = marker
        for i in range(n):
            x[i] = i
        return keep, marker, x

    compiled = framejit.compile(program)
    marker, x = np.float64(3.5), np.zeros(50)
    for _ in range(3):
        keep, same, y = compiled(x, marker, 50)
        assert keep is marker and same is marker and y is x


def test_the_option():
    def program(x):
        return running_sum(x)

    with framejit.config.patch(scalar_loops=False):
        compiled = framejit.compile(program)
        for _ in range(2):
            compiled(rng().random(100))
        assert compiled.cache_info()["scalar_runs"] == 0


def test_explain_says_which_loops_are_machine_code():
    lines = running_sum.__code__.co_firstlineno
    notes = framejit.explain(running_sum)(rng().random(200)).notes
    assert any(f"the loop at line {lines + 2} of running_sum is machine code" in note for note in notes), notes


def test_large_code_waits_for_a_loop_that_pays():
    """A body of many branches is not compiled for a few rounds of a few instructions, but where it goes on."""

    branches = "".join(f"        if x[{k}] > i:\n            n += {k}\n" for k in range(20))
    namespace = {}
    exec(f"def program(x, rounds):\n    n = 0\n    for i in range(rounds):\n{branches}    return n\n", namespace)  # noqa: S102
    program = namespace["program"]
    x = rng().random(20) * 30
    few, many = framejit.compile(program), framejit.compile(program, options={"leave": False})
    assert few(x, 20) == program(x, 20)
    assert few.cache_info()["scalar_loops"] == 0
    for _ in range(2):
        assert many(x, 40_000) == program(x, 40_000)
    assert many.cache_info()["scalar_loops"] >= 1 and many.cache_info()["scalar_runs"] >= 1


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    difference, _ = one(seed, observed)
    assert difference is None, difference


@pytest.mark.fuzz
@pytest.mark.slow
def test_many_random_programs(fresh):
    ran = []

    def check(seed):
        difference, compiled = one(seed, observed)
        ran.append(compiled.cache_info()["scalar_runs"] > 0)
        assert difference is None, difference

    fuzzing.check(check, fresh, 60)
    assert sum(ran) > len(ran) / 3 or len(ran) < 10, f"scalar code in {sum(ran)} of {len(ran)} programs"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "sinh", "arctan", "cbrt", "floor"])
def test_numpys_functions_of_one_number(name, dtype):
    """The same bits as NumPy's, and its warnings."""
    namespace = {"np": np}
    source = f"def program(x, y):\n    for i in range(len(x)):\n        y[i] = np.{name}(x[i]) + np.{name}(0.5)\n    return y\n"
    exec(source, namespace)  # noqa: S102
    x = (rng().random(300) * 20 - (0 if name.startswith("log") else 10)).astype(dtype)
    check(namespace["program"], (x, np.zeros_like(x)), (np.r_[x[:200], np.array([-2, 1e30, np.nan, np.inf, -np.inf, -0.0], dtype)], np.zeros(206, dtype)))


def test_rounds_without_rounds_are_no_reason_for_code():
    """Where an inner loop's body is left to Python, the outer one gains nothing by code for the case that the inner one is empty."""

    def program(a, b):
        for i in range(b.shape[0]):
            for j in range(b.shape[1]):
                b[i, j] += np.prod(a[i + 1 :, i] + b[i + 1 :, j])
        return b

    compiled = framejit.compile(program)
    for _ in range(2):
        a, b = rng().random((18, 18)), rng().random((18, 18))
        expected = program(a, b.copy())
        assert np.allclose(compiled(a, b), expected)
    assert compiled.cache_info()["scalar_loops"] == 0
