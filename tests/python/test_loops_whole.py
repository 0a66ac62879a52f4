"""Functions all of whose loops are code, and which are called often: they become one code from their first instruction on."""

import math
import sys

import framejit
import numpy as np
import pytest
from test_loops_compiled import described, llvm_of, observed, rng, scalar_loops  # noqa: F401 (a fixture for this file, too)
from textbook_loops import PROGRAMS

CALLS = 4000  # more than such a small function is called before that


def called_often(program, *args, calls=CALLS):
    compiled = framejit.compile(program, options={"leave": False})
    for _ in range(calls):
        compiled(*args)
    return compiled


def is_whole(compiled):
    return any("as a whole" in note for note in compiled.cache_info()["notes"])


def edges(image, low):
    n, m = image.shape
    out = np.zeros((n, m))
    order = np.arange(n)
    for i in range(1, n - 1):
        for j in range(1, m - 1):
            d = image[order[i + 1], j] - image[i - 1, j]
            e = image[i, j + 1] - image[i, j - 1]
            out[i, j] = math.sqrt(d * d + e * e) + low
    total = 0.0
    for i in range(n):
        total += out[i, m // 2]
    return out, total


def test_a_function_is_one_code():
    image = rng().random((24, 22))
    compiled = called_often(edges, image, -0.5)
    assert is_whole(compiled)
    before = compiled.cache_info()["scalar_runs"]
    for args in (
        (image, -0.5),
        (rng().random((17, 32)), 2.0),
        (image[::-1, ::2], 1.5),
        (image * 1e300, 0.0),
        (image * np.nan, 0.0),
        (np.zeros((0, 4)), 1.0),
        (np.zeros((3, 0)), 1.0),
        (image.astype(np.float32), 1.0),
        (image, 3),
        (rng().random((90, 80)), 0.0),  # more than such code makes
        (image[0], 1.0),
    ):
        assert observed(compiled, edges, args, __file__) == observed(
            edges, edges, args, __file__
        )
    assert compiled.cache_info()["scalar_runs"] > before


def test_each_call_is_one_run():
    image = rng().random((24, 22))
    compiled = called_often(edges, image, -0.5)
    before = compiled.cache_info()["scalar_runs"]
    for _ in range(10):
        compiled(image, -0.5)
    assert compiled.cache_info()["scalar_runs"] == before + 10


def filled(n, value, dtype):
    out = np.full(n, value, dtype=dtype)
    for i in range(1, n):
        out[i] = out[i - 1]
    return out, np.full((2, n), value), np.full_like(out, value)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
def test_full(dtype):
    compiled = called_often(filled, 40, 61, dtype)
    assert is_whole(compiled)
    for args in (
        (40, 61, dtype),
        (45, 300, dtype),
        (45, -1, dtype),
        (0, 7, dtype),
        (40, 2.5, dtype),
        (-1, 3, dtype),
        (3, True, dtype),
    ):
        assert observed(compiled, filled, args, __file__) == observed(
            filled, filled, args, __file__
        )


# --- which object a result is --------------------------------------------------------------------------------------------------
def counted(x):
    s = 0
    for i in range(len(x)):
        s += i
    return s


def gives(x, marker):
    for i in range(len(x)):
        x[i] = i
    return marker


def keeps(x, marker):
    keep = marker
    for i in range(len(x)):
        x[i] = i
    return keep, x


def chooses(x, marker):
    for i in range(len(x)):
        x[i] = i
    return marker if len(x) > 3 else 1.5


def most(x, marker):
    t = 0.0
    for i in range(len(x)):
        t = max(t, x[i])
    return max(marker, t)


@pytest.mark.parametrize("program", [gives, keeps, chooses, most])
def test_numbers_that_are_given_stay_the_objects_they_are(program):
    x = np.zeros(50)
    assert is_whole(called_often(counted, x))  # the same without such a number
    for marker in (np.float64(3000.5), 2999.5, 10**9):
        compiled = called_often(program, x, marker)
        result = compiled(x, marker)
        assert (result[0] if program is keeps else result) is marker
        assert program is not keeps or result[1] is x


def counts_down(n, x):
    left, taken = n, 0
    for i in range(len(x)):
        x[i] += taken
        if x[i] > 3:
            left -= 1
            taken = n
    x[0] = left + taken
    return n


def test_ints_that_are_given_may_have_other_names():
    x = np.arange(50.0)
    compiled = called_often(counts_down, 1000, x)
    assert is_whole(compiled)
    for n in (10**9, -7, 3, 2**62, 2**70, True, 2.5, np.int64(1000)):
        for y in (x, x * 0, x[:3], x * np.nan):
            assert observed(compiled, counts_down, (n, y), __file__) == observed(
                counts_down, counts_down, (n, y), __file__
            )
    n = 10**9
    assert compiled(n, x * 0) is n and compiled(n, x + 9) is n


def second(x, n, m):
    for i in range(len(x)):
        x[i] = i
    return m


def largest(x, n, m):
    t = 0
    for i in range(len(x)):
        x[i] = i
        t += 100
    return max(t, n)


def counted_up(x, n, m):
    for i in range(len(x)):
        x[i] = i
        n += 1 if i < len(x) // 2 else -1
    return n


@pytest.mark.parametrize("program", [second, largest, counted_up])
def test_an_int_as_large_as_a_given_one_is_another_object(program):
    x = np.zeros(50)
    compiled = called_often(program, x, int("5000"), int("5000"))
    assert is_whole(compiled) == (program is not largest)  # which may be `n`, or not
    for k in (0, 1, 50):
        n, m = int("5000"), int("5000")
        result, wanted = compiled(x[:k], n, m), program(x[:k], n, m)
        assert result == wanted
        if program is not largest or k == 50:
            assert (result is n, result is m) == (wanted is n, wanted is m)


def groups(n, x):
    left = n
    for i in range(len(x)):
        if x[i] > 0:
            left -= 1
    return left, x


def turns(n, m, x):
    for i in range(len(x)):
        if x[i] > 0:
            n, m = m, n
        else:
            m = n + 1
    return m, (n, 7)


def negative(n, m, x):
    kept = m
    for i in range(len(x)):
        if x[i] > 0:
            kept = n
    return -kept, kept


def absolute(n, m, x):
    kept = m
    for i in range(len(x)):
        if x[i] > 0:
            kept = abs(n)
    return kept, abs(m)


@pytest.mark.parametrize("program", [groups, turns, negative, absolute])
def test_which_given_number_a_name_holds_is_known(program):
    names = program.__code__.co_argcount
    x = np.ones(30)

    def which(f, args):
        def of(r):
            return tuple(map(of, r)) if isinstance(r, tuple) else (type(r), repr(r), [r is a for a in args])

        return of(f(*args))

    numbers = (int("5000"), int("70000"))
    compiled = called_often(program, *numbers[: names - 1], x)
    assert is_whole(compiled)
    before = compiled.cache_info()["scalar_runs"]
    calls = 0
    for y in (x, -x, x * 0, x[:1], np.r_[x[:4], -x[:3]], np.r_[-x[:3], x[:4]]):
        for n, m in (numbers, numbers[::-1], (int("6000"), int("6000")), (3, 4), (10**9, 10**10)):
            args = (n, m)[: names - 1]
            assert which(compiled, (*args, y.copy())) == which(program, (*args, y.copy()))
            calls += 1
    assert compiled.cache_info()["scalar_runs"] == before + calls
    for args in ((2.5, 3.5), (np.float64(2.5), np.float64(-1)), (True, 2), (2**70, 5), (10**9, -(10**9))):
        for y in (x, -x, x[:0]):  # by other code, which does not know
            given = (*args[: names - 1], y)
            assert observed(compiled, program, given) == observed(program, program, given)


def test_which_float_a_name_holds():
    """float() of a float is that very object, which a not-a-number in a list shows."""

    def f(n, x):
        t = 0.0
        for i in range(len(x)):
            if x[i] > 0:
                t = float(n)
        return [t] == [n], t

    compiled = called_often(f, 2.5, np.ones(30))
    for n in (2.5, float("nan"), -0.0):
        for x in (np.ones(30), np.zeros(30)):
            assert str(compiled(n, x)) == str(f(n, x))


# --- kinds ---------------------------------------------------------------------------------------------------------------------
def test_kinds_that_change_in_an_outer_loop():
    function, make = PROGRAMS["smith_waterman"]
    args = make()
    compiled = called_often(function, *args)
    assert is_whole(compiled)
    for args in (
        args,
        (args[0] * 0, args[1] * 0 + 1),  # the result is an int of Python
        (args[0][:1], args[1]),
        (args[0].astype(np.int32), args[1]),
        (args[0][:0], args[1]),
    ):
        assert observed(compiled, function, args) == observed(function, function, args)


# --- squares -------------------------------------------------------------------------------------------------------------------
def squares(x, y):
    for i in range(len(x)):
        y[i] = x[i] ** 2
    return y


def square_of(v, n):
    s = 0.0
    for i in range(n):
        s = (v + i) ** 2
    return s


def test_squares_are_powers():
    """pow of the C library is no product: one square in a thousand differs in its last place."""
    x = rng().standard_normal(40_000) * 10.0 ** rng().integers(-60, 60, 40_000)
    compiled = framejit.compile(squares)
    for values in (
        x,
        x,
        np.r_[x[:9], 0.0, -0.0, 1e-150, 3.0],
        np.r_[x[:9], 1e200],
        np.r_[1.0, np.inf, 2.0],
        np.r_[np.nan, 1.0],
        np.r_[2.0, 1e-170],
    ):
        args = values, np.zeros(len(values))
        assert observed(compiled, squares, args, __file__) == observed(
            squares, squares, args, __file__
        )
    assert compiled.cache_info()["scalar_runs"]
    compiled = framejit.compile(square_of)
    for v in (0.1, 0.1, -7.3, 1e160, math.inf, math.nan, 1e-200, 0.0):
        args = v, 40
        assert observed(compiled, square_of, args, __file__) == observed(
            square_of, square_of, args, __file__
        )


# --- which loop becomes code ---------------------------------------------------------------------------------------------------
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the thresholds count instructions, which other versions have others of")
def test_inner_loops_wait_for_an_outer_one_that_will_soon_be_worth_it():
    function, make = PROGRAMS["fifteen"]
    args = make()
    compiled = framejit.compile(function, options={"leave": False})
    for _ in range(8):
        assert observed(compiled, function, args) == observed(function, function, args)
    notes = [
        note for note in compiled.cache_info()["notes"] if "is machine code" in note
    ]
    assert len(notes) == 1, notes


# --- several loops over parts of one array -------------------------------------------------------------------------------------
def shifted(a, b, n):
    out = np.zeros(n)
    for i in range(n):
        out[i] = a[i]
        b[i] = out[i] * 0.5
        out[i] += a[i]
    a, b = b, a
    for i in range(n):
        a[i], b[i] = b[i], a[i] + 1
    total = 0.0
    for i in range(n):
        total += a[i] * b[n - 1 - i]
    return out, a, total


def products(a, b, n):
    """Products of columns, with stores into both matrices between them and between the loops."""
    s = 0.0
    for k in range(n):
        row, column = a[k], b[:, k]
        for j in range(n):
            s += np.dot(a[:, 0], b[:, j])
            column[j] = s * 1e-2
            row[n - 1 - j] += 1e-3
    for k in range(n):
        for j in range(n):
            s += a[:, j] @ b[:, k]
            a[j, k], b[k, j] = b[j, k], a[k, j]
    return s


def leaves(a, b, n):
    """Products, and exits in the middle of a row of them."""
    s = 0.0
    for k in range(n):
        for j in range(n):
            s += np.dot(a[k:, k], b[k:, j])
            b[k, j] = 1.0 / (s * s * 1e-3 - 1.0)
            if b[k, j] > 0:
                s = b[k, j] * 0.5
                break
    for j in range(n):
        s += np.dot(a[:, 1], b[:, j])
        a[j if abs(s) < 9 else j + n, 0] = s
    return s


def vectors(n):
    """Pairs of vectors in one array, by their slices of it."""
    ends = slice(0, n), slice(1, n + 1), slice(n - 1, None, -1), slice(0, 2 * n, 2), slice(2 * n - 1, n - 1, -1)
    return [(one, other) for one in ends for other in ends]


def matrices(n):
    ends = np.s_[:n, :n], np.s_[1 : n + 1, :n], np.s_[:n, 1 : n + 1], np.s_[n - 1 :: -1, :n], np.s_[:n, n - 1 :: -1], np.s_[: 2 * n : 2, : 2 * n : 2]
    return [(one, other) for one in ends for other in ends]


def outcome(function, base, one, other, n, turned):
    base = base.copy()
    a, b = base[one], base[other]
    try:
        result = function(a, b.T if turned else b, n)
    except (IndexError, ZeroDivisionError) as error:
        result = type(error), str(error)
    return described(result), described(base)


@pytest.mark.parametrize(
    ("program", "n", "places"), [(shifted, 40, vectors), (products, 12, matrices), (leaves, 12, matrices)], ids=["shifted", "products", "leaves"]
)
def test_parts_of_one_array_in_several_loops(program, n, places):
    base = rng().standard_normal((3 * n,) * (2 if places is matrices else 1)) * 3
    separate = [base[place].copy() * 0.01 for place in places(n)[1]]
    compiled = framejit.compile(program, options={"leave": False})
    for _ in range(CALLS):
        compiled(*(x.copy() for x in separate), n)
        if is_whole(compiled):
            break
    assert is_whole(compiled)
    before = compiled.cache_info()["scalar_runs"]
    for _ in range(2):
        for one, other in places(n):
            for turned in (False, True):
                assert outcome(compiled, base, one, other, n, turned) == outcome(program, base, one, other, n, turned), (one, other, turned)
    assert compiled.cache_info()["scalar_runs"] > before


# --- integers in arrays that the code makes: they grow slowly, or the sum is looked at -----------------------------------------
def alike(a, b, match, other, gap):
    h = np.zeros((len(a) + 1, len(b) + 1), np.int64)
    best = 0
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            s = 3 if a[i - 1] == b[j - 1] else -3
            h[i, j] = max(0, h[i - 1, j - 1] + s, h[i - 1, j] - 2, h[i, j - 1] - 2)
            best = max(best, h[i, j])
    return best, h


def alike_as_told(a, b, match, other, gap):
    h = np.full((len(a) + 1, len(b) + 1), gap)
    best = 0
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            s = match if a[i - 1] == b[j - 1] else other
            h[i, j] = max(h[i - 1, j - 1] + s, h[i - 1, j] + 1)
            best = max(best, h[i, j])
    return best, h


def doubled(a, b, match, other, gap):
    """Elements that do not grow slowly, beside some that do."""
    h = np.ones(len(a) + 1, np.int64)
    n = np.zeros(len(a) + 1, np.int64)
    for k in range(len(b)):
        for i in range(len(a)):
            t = 1 if a[i] == b[k] else 2
            h[i + 1] = h[i] + h[i + 1]
            n[i + 1] = n[i] + t
    return h, n


def doubled_elsewhere(a, b, match, other, gap):
    h = np.zeros(len(a) + 1, np.int64)
    h[0] = match
    for k in range(len(b)):
        h[0] += h[0]
        for i in range(len(a)):
            h[i + 1] = h[i] + 1
    return h


def round_about(a, b, match, other, gap):
    h = np.full(3, gap)
    for k in range(len(b)):
        for i in range(2):
            h[i + 1] = h[i] + (2 if a[k] else 1)
            h[0] = h[i + 1] - (1 if b[k] else 3)
    return h


@pytest.mark.parametrize("program", [alike, alike_as_told, doubled, doubled_elsewhere, round_about])
def test_integers_in_arrays_that_the_code_makes(program):
    a, b = rng().integers(0, 3, 12), rng().integers(0, 3, 9)
    compiled = called_often(program, a, b, 3, -3, 0, calls=2 * CALLS)
    assert is_whole(compiled)
    before = compiled.cache_info()["scalar_runs"]
    most = 2**63 - 1
    for args in (
        (a, b, 3, -3, 0),
        (a, b, most - 2, 2, 0),
        (a, b, 5, 1, most - 4),
        (a, b, -5, -1, -most + 3),
        (a, b, 2**62, 2**61, 2**60),
        (np.repeat(a, 6), np.repeat(b, 8), 2**55, 1, 1),  # what is doubled leaves 64 bits
        (a[:0], b, 1, 1, 1),
        (a, b[:0], 1, 1, 2**63),
    ):
        assert observed(compiled, program, args, __file__) == observed(program, program, args, __file__)
    assert compiled.cache_info()["scalar_runs"] > before


@pytest.mark.parametrize(("name", "checked"), [("alike", False), ("doubled", True)])
def test_no_sum_is_looked_at_where_elements_grow_slowly(name, checked):
    program = f"""
import numpy as np
import test_loops_whole as t
a = np.arange(9) % 3
assert t.is_whole(t.called_often(t.{name}, a, a[::-1], 3, -3, 0, calls=2 * t.CALLS))
"""
    text = llvm_of(program)
    whole = text[text.rindex("define i64 @fj_scalar") :]
    assert ("sadd.with.overflow" in whole) == checked
