"""Numbers of which NumPy would tell, in code that asks the processor behind the run whether there were any (codegen/told_numbers.h): also of
operations whose results nobody wants."""

import math
import warnings

import framejit
import numpy as np
import pytest
from test_loops_compiled import llvm_of, observed


def dead(x, y, out):
    n = 0
    for i in range(len(x)):
        for j in range(len(y)):
            t = x[i] * y[j]
            n += 1
    return n


def overwritten(x, y, out):
    for i in range(len(x)):
        for j in range(len(y)):
            out[j] = x[i] * y[j]
            out[j] = 1.0
    return out[0]


def overwritten_all(x, y, out):
    for i in range(len(x)):
        for j in range(len(y)):
            out[0] = x[i] * y[j]
        out[0] = 2.0
    return out[0]


def overwritten_inside(x, y, out):
    for i in range(len(x)):
        out[i] = x[i] * y[i]
        for _ in range(len(y)):
            out[i] = 2.0
    return out[0]


def overwritten_both_ways(x, y, out):
    n = 0
    for i in range(len(x)):
        for j in range(len(y)):
            out[j] = x[i] * y[j]
            if j > 5:
                out[j] = 1.0
                n += 1
            else:
                out[j] = 2.0
    return n


def compared(x, y, out):
    n = 0
    for i in range(len(x)):
        for j in range(len(y)):
            if x[i] * y[j] > 3.0:
                n += 1
    return n


def squares(x, y, out):
    n = 0
    for i in range(len(x)):
        for j in range(len(y)):
            t = x[i] * x[i]
            if t < 0.0:
                n += 1
            n += j
    return n


def chosen(x, y, out):
    for i in range(len(x)):
        for j in range(len(y)):
            t = x[i] * y[j]
            out[j] = t if i & 1 else 0.0
    return out[1]


def branch(x, y, out):
    s = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            t = x[i] / y[j]
            if i == 2:
                s += t
    return s


def carried(x, y, out):
    s = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            s += x[i] * y[j]
    return s


def invariant(x, y, out):
    s = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            out[j] = x[0] / y[0]
            s += out[j]
    return s


def guarded(x, y, out):
    s = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            if y[j] != 0.0:
                s += x[i] / y[j]
            else:
                s -= 1.0
    return s


def inverse(x, y, out):
    s = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            out[j] = 1.0 / (x[i] * y[j])
        s += out[0]
    return s


def roots(x, y, out):
    s = 0
    for i in range(len(x)):
        for j in range(len(y)):
            r = np.sqrt(x[i] - y[j])
            s += 1
    return s


def logs(x, y, out):
    s = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            s += math.exp(float(x[i])) + math.log(float(y[j]))
    return s


def pythons(x, y, out):
    n = 0
    for i in range(len(x)):
        a = float(x[i])
        for j in range(len(y)):
            b = float(y[j])
            if a * b * a * b * a == math.inf:
                n += 1
            n += 1
    return n


def constants(x, y, out):
    n = 0
    for i in range(len(x)):
        for j in range(len(y)):
            t = np.float64(1e200)
            for k in range(2):
                t = t * 1e100
            n += 1
    return n


def halves_store(x, y, out):
    for i in range(len(x)):
        for j in range(len(y)):
            out[j >> 1] = x[i] * y[j]
    return out[0]


def singles(x, y, out):
    s = np.float32(0)
    for i in range(len(x)):
        for j in range(len(y)):
            s = np.float32(x[i]) * np.float32(y[j])
            out[j] = s
    return s


def last_only(x, y, out):
    t = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            t = x[i] * y[j]
    return t


def least(x, y, out):
    best = 1e300
    for i in range(len(x)):
        for j in range(len(y)):
            d = x[i] - y[j]
            d = d * d
            if d < best:
                best = d
    return best


def power(x, y, out):
    n = 0
    for i in range(len(x)):
        for j in range(len(y)):
            t = x[i] ** 2
            n += 1
    return n


def differ(x, y, out):
    n = 0
    for i in range(len(x)):
        for j in range(len(y)):
            t = x[i] - y[j]
            n += 1
    return n


def while_loop(x, y, out):
    n = 0
    i = 0
    while i < len(x):
        j = 0
        while j < len(y) and n < 1000:
            out[j] += x[i] * y[j]
            j += 1
            n += 1
        i += 1
    return n


def newton(x, y, out):
    n = 0
    for i in range(len(x)):
        v = x[i]
        while abs(v * v - y[0]) > 1e-9 and n < 500:
            v = v - (v * v - y[0]) / (2 * v)
            n += 1
        out[i % len(out)] = v
    return n


PROGRAMS = [dead, overwritten, overwritten_all, overwritten_inside, overwritten_both_ways, compared, squares, chosen, branch, carried, invariant, guarded, inverse, roots, logs, pythons, constants, halves_store, singles, last_only, least, power, differ, while_loop, newton]


def arguments():
    return np.linspace(1, 2, 9), np.linspace(3, 5, 11), np.zeros(11)


def same(compiled, program, args):
    expected = observed(program, program, [a.copy() for a in args], __file__)
    assert observed(compiled, program, [a.copy() for a in args], __file__) == expected, (program.__name__, args)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("x", "y"), [(1e200, 1e200), (1.5, 0.0), (-math.inf, math.inf), (math.nan, 1e39), (5e-324, -5e-324)])
def test_all_that_numpy_tells_of(program, x, y):
    """The last rounds are unlike the first ones, and so are later calls."""
    compiled = framejit.compile(program)
    for _ in range(3):
        same(compiled, program, arguments())
    for k in (0, 8, 4):
        args = arguments()
        args[0][k], args[1][k] = x, y
        same(compiled, program, args)
        same(compiled, program, arguments())
    assert compiled.cache_info()["scalar_runs"] >= 3


def summed(x, y):
    s = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            s += x[i] / y[j]
    return s


def test_no_number_is_looked_at():
    """And they are, once something was told of."""
    program = """
import framejit, numpy as np
from test_loops_told import summed
compiled = framejit.compile(summed)
for _ in range(3): compiled(np.ones(30), np.ones(30))
import warnings; warnings.simplefilter("ignore")
for _ in range(3): compiled(np.ones(30), np.zeros(30))
for _ in range(3): compiled(np.ones(30), np.ones(30))
"""
    first, *later = llvm_of(program).split("define i64 @fj_scalar")[1:]
    assert 'asm sideeffect "", "x"' in first and "fsub double" not in first
    assert later and "fsub double" in "".join(later)


def test_who_called_is_told_of_nothing_more():
    """np.vectorize looks at what the processor has noted behind its calls: what a run looks at is not noted for it."""

    def pairs(v):
        a, n = np.full(50, v), 0
        for i in range(50):
            for j in range(50):
                if a[i] * a[j] > 1.0:
                    n += 1
        return n

    compiled = framejit.compile(pairs)
    for _ in range(3):
        compiled(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.vectorize(compiled, otypes=[object])([1.0, np.inf, 2.0]).tolist() == [0, 2500, 2500]


def searched(x, steps):
    found = 0
    for i in range(len(steps)):
        for j in range(len(x)):
            x[j] += 1
            if x[j] > 40:
                raise IndexError(f"too much at {i} {j} {x[j]}")
            found += x[j] & 1
    return found


def caught(x, steps):
    found = 0
    for _ in range(len(steps)):
        try:
            for j in range(len(x)):
                x[j] += 1
                if x[j] % 7 == 0:
                    raise KeyError
        except KeyError:
            found += 1
    return found


@pytest.mark.parametrize("program", [searched, caught])
def test_ways_that_raise(program):
    """Where that is not caught it is no reason to leave the function to Python."""
    compiled = framejit.compile(program)
    start = np.arange(12) % 3
    for k in range(4000):
        if k % 500 == 0 or k >= 3995:
            same(compiled, program, (start, np.full(60 if k >= 3997 else 5, 1)))
        else:
            compiled(start.copy(), np.full(5, 1))
    info = compiled.cache_info()
    assert info["scalar_runs"] > 3000
    assert any("as a whole" in note for note in info["notes"]) == (program is searched)


def halved(a, b, most):
    h = b - a
    r = np.zeros((9, 9))
    for i in range(1, most):
        h *= 0.5
        s = 0.0
        for k in range(1, 2**i, 2):
            s += math.exp(-k * h)
        r[i, 0] = h * s
    return r[most - 1, 0]


def test_arguments_that_no_code_writes_keep_their_kind():
    """So whole functions become code that compute from their arguments what loops go on with."""
    compiled = framejit.compile(halved)
    for _ in range(1500):
        assert compiled(0.0, 2.0, 9) == halved(0.0, 2.0, 9)
    assert "halved is machine code as a whole" in compiled.cache_info()["notes"]
    for args in ((0.0, 2.0, 2), (1, 2, 5), (np.float64(0), 3.0, 4), (0.0, -2000.0, 9), (math.nan, 1.0, 3)):
        assert observed(compiled, halved, args, __file__) == observed(halved, halved, args, __file__)
