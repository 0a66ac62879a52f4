"""Arrays that a loop makes, lists that it writes, iterators of several, complex numbers: as machine code, to the last bit, with the
frame as Python would have left it wherever the code is left."""

import math

import framejit
import fuzzing
import numpy as np
import pytest
from fuzz_made import one
from test_loops_compiled import check, described, observed, rng, scalar_loops  # noqa: F401


def matrix(n, m, dtype="float64"):
    return (rng().random((n, m)) * 9).astype(dtype)


# --- arrays that the program makes -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int16", "uint8"])
def test_rows_in_locals(dtype):
    def program(a, b):
        total = a[0, 0]
        row = None
        for i in range(a.shape[0]):
            row = a[i] * 2
            before = row
            row = row + b[i]
            before[1:] -= 1
            row += before
            b[i] = row - before[::-1]
            total = total + row[0]
        return total, row, before, a, b

    check(program, (matrix(20, 7, dtype) % 50, matrix(20, 7, dtype) % 50))


def test_new_arrays_and_their_views():
    def program(n, x):
        last, kept = None, np.zeros(4)
        for i in range(n):
            v = np.zeros(3)
            w = np.ones((2, 3), np.int32)
            u = np.empty_like(x)
            u[:] = x
            v[0] = i
            v[1], v[2] = v[0] + 1.0, 0.5
            v[1:] *= 2
            w[1] += i
            w[:, 0] = w[:, 1] * 3
            last = v[1:]
            if i % 3 == 0:
                kept = v
                kept[0] = -1.0
            u -= v
            x = u.copy()
        return v, w, u, last, last.base is v, kept is v, kept

    check(program, (30, rng().random(3)), (31, rng().random(3)))


def test_two_names_for_one_array():
    def program(n):
        a = np.zeros(5)
        b = a
        for i in range(n):
            c = a
            a = np.ones(5) * i
            d = a[::2]
            d[0] = 7.0
            b = c if i % 4 else a
            b[1] += 1.0
        return a, b, c, d, a is b, d.base is a

    check(program, (21,), (20,))


def test_exits_leave_arrays_that_lie_as_they_would():
    """Prints and exceptions in the middle: views and names of one array are that, too."""

    def program(x, at):
        total = 0.0
        for i in range(40):
            row = x * i
            view = row[1:]
            other = row
            view[0] = 5.0
            if i % 16 == 9:
                print(row, view, view.base is row, other is row, row.flags.owndata)
                view[1] = 8.0
                print(other)
            total += other[2] + row[at + i]
        return total, row, view

    check(program, (rng().random(50), 0), (rng().random(50), 15))


def test_errors_at_their_line_with_their_state():
    def program(x, log):
        for i in range(len(log)):
            y = x + i
            log[i] = y[0]
            y[1] = 2.0
            z = y[i]
            log[i] += z
        return log

    def divided(x, out):
        for i in range(len(out)):
            v = x - i
            out[i] = 1.0
            v = 1.0 / v
            out[i] = v[0]

    check(program, (rng().random(20), np.zeros(30)))
    check(divided, (np.arange(12.0) + 5.0, np.zeros(30)))


def test_planes_that_are_made():
    def program(a, b, n):
        total = 0.0
        for i in range(n):
            d = a[:, None] - b[None, :]
            d *= d
            e = d[1:, ::2] + i
            total += e[0, 1] + d[-1, -1]
        return total, d, e

    check(program, (rng().random(9), rng().random(8), 25))
    check(program, (rng().random(9).astype("float32"), rng().random(8).astype("float32"), 25))


def test_arrays_of_nothing_and_of_too_much():
    def program(n, size):
        total = 0
        for i in range(n):
            v = np.zeros((size, 2))
            w = v[:, 1:]
            u = np.ones(size) + i
            total += len(u) + w.shape[0]
        return total, v, w, u

    check(program, (20, 0), (20, 1), (20, 5))

    def errors(n):
        out = 0
        for i in range(n):
            v = np.zeros(20 - i)
            out += len(v)
        return out

    check(errors, (20,), (25,))


def test_helpers_that_make_arrays():
    def cross(a, b):
        c = np.empty(3)
        c[0] = a[1] * b[2] - a[2] * b[1]
        c[1] = a[2] * b[0] - a[0] * b[2]
        c[2] = a[0] * b[1] - a[1] * b[0]
        return c

    def length(v):
        s = 0.0
        for x in v:
            s += x * x
        return s**0.5

    def program(p, q):
        total, last = 0.0, None
        for i in range(len(p)):
            n = cross(p[i], q[i] - p[i - 1])
            last = n / (length(n) + 1.0)
            p[i] = last + p[i] * 0.5
            total += last[0]
        return total, last

    check(program, (rng().random((30, 3)), rng().random((30, 3))))


def test_functions_and_sums_of_vectors():
    def program(a, b):
        out = np.zeros(len(a))
        for i in range(len(a)):
            d = a[i] - b
            out[i] = np.sqrt(np.sum(d * d)) + np.exp(-d).sum() + d.max() - np.min(d) + a[i].mean() + np.abs(d).sum()
        return out, d

    for m in (1, 2, 7, 8, 9, 63, 130, 300):
        check(program, (matrix(30, m), rng().random(m)), (-matrix(30, m)[:, ::-1], rng().random(2 * m)[::2]))
    check(program, (matrix(30, 9) * 1000, rng().random(9) - 1000))  # exp of it is infinite: NumPy warns


def test_signed_zeros_of_sums():
    def program(a):
        out = np.zeros((3, len(a)))
        for i in range(len(a)):
            out[0, i], out[1, i], out[2, i] = a[i].sum(), a[i].max(), a[i].min()
        return out

    check(program, (rng().choice([0.0, -0.0], (40, 1)),), (rng().choice([0.0, -0.0], (40, 5)),), (np.full((40, 3), -0.0),), (np.full((40, 70), np.nan),))


def test_keywords():
    def program(l):
        s = 0
        for i in range(30):
            v = np.ones(3, dtype=np.int32)
            v[i % 3] = i
            s += int(v[0]) + int(v[2])
        for i, x in enumerate(l, start=2):
            s += i * x
        return s, v

    check(program, (list(range(40)),), loops=2, runs=4)


# --- chained stores ------------------------------------------------------------------------------------------------------------
def test_chained_stores():
    def program(a, b, c):
        for i in range(1, len(a)):
            a[i] = b[i - 1] = c = a[i - 1] * 0.5 + c
            a[i] += b[i - 1] * 2.0
        return c

    def rows(a, b):
        for i in range(1, len(a)):
            a[i] = b[i - 1] = a[i - 1] * 0.5 + b[i]
            a[:, 0] = b[i] = 2.5
        return a

    check(program, (rng().random(40), rng().random(40), 1.5))
    check(rows, (matrix(30, 30), matrix(30, 30)))
    a = matrix(30, 30)
    check(rows, (a, a))


# --- iterators -------------------------------------------------------------------------------------------------------------------
def test_enumerate_zip_reversed():
    def program(a, l):
        s = 0.0
        for i, x in enumerate(a):
            s += i * x
        for x, y in zip(a, l):
            s += x * y
        for x in reversed(l):
            s = s * 0.5 + x
        for x in reversed(a):
            s = s * 0.5 + x
        for i, (x, y, k) in enumerate(zip(a, l, range(5, 500, 3)), 3):
            s += i * x - y + k
        for i, x in zip(reversed(range(3, len(l), 2)), enumerate(l, 2)):
            s += l[i] / (i + 1) + x[0]
        return s

    check(program, (rng().random(60), rng().random(50).tolist()), (rng().random(6), rng().random(50).tolist()), loops=5)


def test_an_enumeration_that_begins_below_zero():
    """Whose iterator is there before the loop, so that the loop's code finds it and does not make it."""

    def program(x, y, start):
        total, products = 0, 0.0
        for (i, a), b in zip(enumerate(x, start), y):
            total += i
            products += i * a + b
        return total, products

    check(program, (rng().random(200), rng(1).random(200), -5), runs=3)


def test_iterators_are_left_in_the_middle():
    def program(a, l):
        s = 0.0
        for i, (x, y) in enumerate(zip(a, reversed(l))):
            s += i * x - y
            if i == 30:
                print(s)
            if s > 12:
                break
        for row in a.reshape(-1, 4):
            for k, v in enumerate(row):
                s += k * v
            if s > 60:
                print(row, s)
                row[0] = 5.0
        return s, i, x, y, row

    check(program, (rng().random(80), rng().random(70).tolist()), (rng().random(40), rng().random(70).tolist()), loops=2)


def test_a_list_that_grows_while_it_is_gone_through():
    def program(l, n):
        s = 0
        for x in l:
            s += x
            if len(l) < n:
                l.append(x + 1)
        for i, x in enumerate(l):
            if i > n // 2:
                l.pop()
            s += x * i
        return s

    check(program, ([1, 2, 3], 90), ([5], 60), loops=2)


def test_tuples():
    def program(g):
        n, m = g.shape
        c = 0
        for i in range(1, n - 1):
            for j in range(1, m - 1):
                for di, dj in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                    if g[i + di, j + dj] > g[i, j]:
                        c += 1
                        if c == 50:
                            print(di, dj)
        return c

    def kinds(x):
        s = x
        for i in range(40):
            for k in (1, 2.5, x):
                s = s * 0.5 + k
            if i == 30:
                print(s, k)
        return s

    check(program, (rng().random((15, 15)),))
    check(kinds, (np.float64(3),), (2.0,))


# --- lists -----------------------------------------------------------------------------------------------------------------------
def test_lists_are_written():
    def program(n):
        out, seen = [], []
        for i in range(n):
            out.append(i * 0.5)
            seen.append(i % 3 == 0)
        for i in range(1, n):
            out[i] = out[i - 1] + out[i] * 2
            out[-1] += 1.0
            if seen[i]:
                out[i], out[i - 1] = out[i - 1], out[i]
        return out, seen

    check(program, (60,), loops=2)


def test_counts_and_stacks():
    def counts(data, bins):
        h = [0] * bins
        for x in data:
            h[int(x * bins)] += 1
        return h

    def stack(n):
        todo, seen = [n], 0
        while todo:
            k = todo.pop()
            seen += 1
            if k > 1:
                todo.append(k - 1)
                if k % 3 == 0:
                    todo.append(k - 3)
        return seen, todo

    check(counts, (rng().random(200), 10))
    check(stack, (24,))


def test_lists_of_other_things():
    def program(l, a):
        for i in range(len(l)):
            l[i] = a[i]
        l.append(a[0])
        s = 0.0
        for i in range(len(l)):
            s += l[i]
            l[i] = i
        return s

    compiled = check(program, ([1.5] * 30, rng().random(40)), (["a"] * 30, rng().random(40)), ([None, 1.5] * 15, rng().random(40)))
    assert compiled.cache_info()["scalar_runs"]


def test_errors_of_lists():
    def program(l, n):
        for i in range(n):
            l[i] = l[i] + 1
            l.append(i)
            l.pop(0)
        return l

    def empty(l):
        s = 0
        for i in range(50):
            s += l.pop()
            l.append(i) if i % 2 else None
        return s

    check(program, ([1, 2, 3] * 5, 15), ([1, 2, 3] * 5, 16), ([2**62] * 20, 10), ([2**63 - 1] * 20, 10), loops=1)
    check(empty, (list(range(20)),))


def test_a_list_is_the_one_that_it_is():
    def program(a, b):
        for i in range(len(a)):
            a[i] = a[i] + b[-1 - i]
            b[i] = a[i] * 0.5
        return a, b

    l = rng().random(40).tolist()
    check(program, (l, rng().random(40).tolist()), (l, l))


# --- complex numbers -----------------------------------------------------------------------------------------------------------
def test_mandelbrot_with_complex_numbers():
    def program(w, h, n):
        out = np.zeros((h, w), np.int64)
        for y in range(h):
            for x in range(w):
                c = complex(-2 + 3 * x / w, -1 + 2 * y / h)
                z = 0j
                k = 0
                while abs(z) <= 2.0 and k < n:
                    z = z * z + c if k % 2 else z**2 + c
                    k += 1
                out[y, x] = k
        return out, z

    check(program, (20, 15, 30))


def test_complex_arithmetic():
    def program(x, y, n):
        out = []
        for i in range(n):
            z = complex(x + i, y)
            w = z * (1.5 - 2j) - 3 + z / (2j + i) * 0.5
            w = -w + w.real * 1j - w.imag + 1 / z
            if w != z and z == z:  # noqa: PLR0124
                w += True
            x, y = w.real * 0.25, w.imag / 3
            out.append(abs(w))
        return out, w, z

    check(program, (1.0, 2.0, 40), (-0.0, 0.0, 40), (1e200, -1e180, 40), (1e308, 1e308, 10))


ODD = [0.0, -0.0, 1.0, -3.0, 4.0, 0.1, 1e308, -1e308, 5e-324, 1e-160, 1e160, math.inf, -math.inf, math.nan]


def test_quotients_of_complex_numbers():
    def program(a, b, out):
        for i in range(len(a)):
            z = complex(a[i, 0], a[i, 1])
            for j in range(len(b)):
                q = z / complex(b[j, 0], b[j, 1])
                out[i, j, 0] = q.real
                out[i, j, 1] = q.imag
        return out, q

    pairs = np.array([(x, y) for x in ODD for y in ODD])
    divisors = pairs[pairs.any(1)]
    check(program, (pairs, divisors, np.zeros((len(pairs), len(divisors), 2))), (pairs[4:], pairs[3:], np.zeros((200, 200, 2))))


def test_quotients_of_complex_arrays():
    def program(a, b, out):
        for i in range(len(a)):
            if a[i, 0].real != 3:
                out[i] = out[i - 1] - a[i] / b[i]
        return out

    a, b = complex_matrix(20, 7), complex_matrix(20, 7)
    check(program, (a, b, b.copy()), (a, b.real + 0j, b.copy()), (a * 1e300, b * 1e-200, b.copy()), (a, b * (b.real > 1), b.copy()))


def test_quotients_of_complex_arrays_that_are_almost_too_large():
    """NumPy tells of the divisor's scale, which is too large where the quotients are not."""

    def program(a, b, out):
        for i in range(len(a)):
            if a[i, 0].real != 3:
                out[i] = out[i - 1] - a[i] / b[i]
        return out

    a, b = complex_matrix(20, 7), complex_matrix(20, 7)
    b[15] = complex(1e308, 1e308)
    check(program, (a, b, b.copy()), (a, np.where(b.real > 1, math.inf, b), b.copy()))


def distances(a, bounds, out):
    for i in range(len(a)):
        z = complex(a[i, 0], a[i, 1])
        for j in range(len(bounds)):
            w = float(bounds[j])
            k = 0
            if abs(z) < w:
                k += 1
            if abs(z) == w:
                k += 2
            if w < abs(z):
                k += 4
            if abs(z) >= abs(complex(w, a[i, 1])):
                k += 8
            out[i, j] = k
    return out


def test_the_order_of_distances():
    """Squares decide it but where two are almost equal, too large or too small."""
    scales = [2.0**k for k in (-1070, -600, -500, -470, -30, 0, 30, 463, 470, 510, 600, 1018)]
    points = [(3 * s, 4 * s) for s in scales] + [(s, 0.0) for s in scales] + rng().random((30, 2)).tolist()
    exact = [math.hypot(x, y) for x, y in points]
    bounds = np.array([w for x in exact for w in (np.nextafter(x, 0), x, np.nextafter(x, math.inf))] + [-1.0, 0.0, math.nan, math.inf])
    check(distances, (np.array(points), bounds, np.zeros((len(points), len(bounds)), np.int64)))


@pytest.mark.parametrize("odd", [1.7e308, math.inf, math.nan, -1e300, 0.0])
def test_a_distance_that_is_no_float(odd):
    def program(a):
        k = 0
        for i in range(len(a)):
            if abs(complex(a[i], a[i])) > 2.0:
                k += 1
        return k

    a = rng().random(60) * 4
    a[40] = odd
    check(program, (a,))


def test_complex_numbers_of_python_and_floats_of_numpy():
    def program(x, n):
        z = 0.5j
        for i in range(n):
            y = np.sin(x) * i
            w = z * y - y + 1j / np.exp(x)
            z = (w + y) * 0.1 + z
            x = x + 0.01
        return z, w, y

    def divides(x, n):
        z = 1j
        for _ in range(n):
            z = z / x
            x = x - np.float64(1)
        return z

    check(program, (0.5, 40), (np.float64(0.5), 40))
    check(divides, (np.float64(50), 30), (np.float64(20), 30))


def test_complex_arrays():
    def program(a, b):
        s = 0j
        for i in range(1, len(a)):
            a[i] = a[i] * a[i - 1] / (1.5 + 2j) + b[i] * 1j
            s = s + complex(a[i])
            b[i] = a[i].real - abs(a[i])
        return s, a[1]

    def zero(a, n):
        s = 0j
        for i in range(n):
            s += 1 / (a - i)
        return s

    check(program, (rng().random(50) + 1j * rng().random(50), rng().random(50).astype(complex)))
    check(program, ((rng().random(50) + 1j * rng().random(50)) * 1e150, rng().random(50).astype(complex)))
    check(zero, (30.0 + 0j, 20), (30.0 + 0j, 40))


def complex_matrix(n, m):
    return rng().standard_normal((n, m)) + 1j * rng(8).standard_normal((n, m))


def test_arithmetic_of_complex_arrays():
    def program(a, b, x):
        total = 0j
        for i in range(1, a.shape[0]):
            row = a[i] * b[i - 1] + x[i] * (1 - 2j)
            a[i] = row - a[i - 1, ::-1] / 3 + x[i]
            b[i, 1:] *= a[i, :-1] * x[i, 0]
            b[i] = -b[i] * a[i, 2] + row**2 / (b[i - 1] + 7j)
            b[i, ::2] = x[i, ::2]
            a[i, :3] = 2.5
            total = total + row[1]
        return total, row, a, b

    check(program, (complex_matrix(20, 7), complex_matrix(20, 7), matrix(20, 7)))
    check(program, (complex_matrix(20, 7) * 1e160, complex_matrix(20, 7), matrix(20, 7)))
    check(program, (complex_matrix(20, 7), complex_matrix(20, 7), np.zeros((20, 7))))


def test_functions_of_complex_arrays():
    def program(a, out):
        kept = None
        for i in range(a.shape[0]):
            z = np.exp(a[i] * 1j) + np.zeros(a.shape[1], dtype=complex)
            z[0] = 1 + i
            out[i] = np.abs(z - a[i]) + abs(z)
            if i == 3:
                kept = z[1:]
        return z, kept, out

    check(program, (complex_matrix(24, 9), np.zeros((24, 9))))
    check(program, (complex_matrix(24, 9) * 300, np.zeros((24, 9))))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "complex128"])
def test_products_of_small_matrices(dtype):
    """The same bits as NumPy's, of views, of what was computed, of vectors."""

    def program(a, b, v, out):
        m = a[0]
        for i in range(a.shape[0]):
            m = a[i] @ b[i].T
            out[i] += m @ (out[i] * 2) - b[i]
            v[i] = (v[i] @ m) + m @ v[i] * (v[i] @ v[i])
        return m, v, out

    def cube(scale):
        return (rng().standard_normal((24, 4, 4)) * scale).astype(dtype)

    def turned(scale):
        return cube(scale).swapaxes(1, 2)

    check(program, (cube(3), turned(2), cube(1)[0].repeat(6, 0), cube(1)))
    if dtype != "int64":
        check(program, (turned(1e19), cube(1e19), cube(1)[0].repeat(6, 0), cube(1)))


def test_products_that_do_not_fit_raise():
    def program(a, b, n):
        for i in range(n):
            c = a @ b
            if i == 24:
                b = b[:2]
        return c

    check(program, (matrix(3, 3), matrix(3, 3), 30))


def test_arrays_of_numbers():
    def numbers(x, n):
        s = np.array([1.0, x])
        for i in range(n):
            a = np.array([i, x, True])
            b = np.array([[i, 2], [3, -i]])
            c = np.array([[x * 1j, 1], [0.5, s[0]]]) @ np.array([s[0], 1j])
            d = np.array([i + 0.7, -1.5], dtype=np.int64)
            e = np.array((s[0], i), dtype=complex)
            s = np.array([s[1] - s[0] * 0.25, s[0] / (1 + a[0])])
            last = a[1:]
        return s, a, b, c, d, e, last, last.base is a

    def ragged(n):
        for i in range(n):
            a = np.array([[i, 1], [2, 3]]) if i < 24 else np.array([[i], [2, 3]])
        return a

    compiled = check(numbers, (0.5, 30), (float("inf"), 30), (float("nan"), 30))
    assert any("machine code" in note for note in compiled.cache_info()["notes"])
    check(ragged, (30,))


def test_functions_defined_anew_are_told_apart():
    def program(x, n, k):
        if k:

            def f(v):
                return v * 2.0
        else:

            def f(v):
                return v - 1.0

        for _ in range(n):
            x = f(x) * 0.5
        return x

    check(program, (1.0, 50, 1), (1.0, 50, 0), (1.0, 50, 1))


def test_an_ode_of_arrays_of_numbers_is_machine_code():
    def program(x, n, dt):
        def f(s):
            return np.array([10 * (s[1] - s[0]), s[0] * (28 - s[2]) - s[1], s[0] * s[1] - 8 / 3 * s[2]])

        out = np.empty((n, 3))
        for i in range(n):
            k1 = f(x)
            k2 = f(x + dt / 2 * k1)
            x = x + dt * k2
            out[i] = x
        return out

    compiled = check(program, (np.ones(3), 100, 0.01))
    made, before = (compiled.cache_info()[k] for k in ("scalar_loops", "scalar_runs"))
    for _ in range(4):
        compiled(np.ones(3), 100, 0.01)
    info = compiled.cache_info()
    assert info["scalar_runs"] - before <= 8  # not once for each round
    assert info["scalar_loops"] == made  # the function is another one in each call


def test_made_arrays_do_not_grow():
    """Memory is used again: as many arrays as have names, whatever the rounds."""
    import resource

    def program(x, n):
        for i in range(n):
            y = x * 2.0
            z = y - x
            x = z[::-1]
        return x

    compiled = framejit.compile(program)
    x = rng().random(20000)
    compiled(x, 20)
    expected = described(program(x, 3000))  # first: some allocators keep what it frees
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert described(compiled(x, 3000)) == expected
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20000
    assert compiled.cache_info()["scalar_runs"] >= 1


# --- what a review of whole programs found --------------------------------------------------------------------------------------
def test_one_view_with_two_names():
    def program(a, n):
        p = q = a[0]
        for i in range(n):
            q = a[:, i % 3]
            r = q
            if i % 2:
                p = q
            if i == n - 3:
                print(p is q, r is q, a[:, i % 3] is q)
        return p is q, r is q, p.base is a, r

    check(program, (matrix(6, 6), 30), (matrix(6, 6), 31))


def test_lists_of_tuples_and_lists_that_are_empty():
    def union(n, edges):
        parent, size = list(range(n)), [1] * n
        for a, b in edges:
            while parent[a] != a:
                parent[a] = parent[parent[a]]
                a = parent[a]
            while parent[b] != b:
                b = parent[b]
            if a != b:
                parent[b] = a
                size[a] += size[b]
        return parent, size

    def flood(grid, y, x):
        ys, xs, filled = [y], [x], 0
        while ys:
            y = ys.pop()
            x = xs.pop()
            if y < 0 or y >= grid.shape[0] or x < 0 or x >= grid.shape[1] or grid[y, x] != 0:
                continue
            grid[y, x] = 2
            filled += 1
            for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                ys.append(y + dy)
                xs.append(x + dx)
        return filled

    edges = [(int(a), int(b)) for a, b in rng().integers(0, 90, (80, 2))]
    check(union, (90, edges), (90, [*edges, (1, 2.0)]), (90, [*edges, (1, 2, 3)]), (90, [*edges, (1, 95)]))
    compiled = check(flood, ((rng().random((30, 30)) > 0.75).astype(np.int8), 10, 10))
    assert compiled.cache_info()["scalar_runs"] <= 12  # `continue` does not leave the code


def test_complex_numbers_and_others_compare():
    def program(n):
        k = 0
        for y in range(n):
            z = complex(y - 3, 0.0)
            if z == 0 or 2.0 == z or z != y - 3:
                k += 1
            for i, root in enumerate((1 + 0j, -0.5 + 0.75j)):
                if abs(z - root) < 1.5:
                    k += i + 1
        return k

    check(program, (40,))


def test_code_for_short_loops_is_there_for_long_ones():
    """Called with one element a hundred times, then with many."""

    def program(x):
        s = 0.0
        for v in x:
            s += v * 0.5
        return s

    compiled = framejit.compile(program)
    for _ in range(3):
        compiled(rng().random(50))
    for _ in range(100):
        compiled(rng().random(2))
    before = compiled.cache_info()["scalar_runs"]
    x = rng().random(5000)
    assert described(compiled(x)) == described(program(x))
    assert compiled.cache_info()["scalar_runs"] == before + 1


# --- one array that was not computed yet, held twice ---------------------------------------------------------------------------
def pair_of(x):
    d = x + 1.0
    return d, d


def view_of(x):
    d = x * 2.0
    return d, d[1:]


def through_a_view(x):
    d = x + 1.0
    v = d[1:]
    v[0] = 100.0
    return d


def through_a_transpose(x):
    d = x + 1.0
    e = d.T
    e[0] = 7.0
    return d


def renamed(x, i):
    y = x * 2.0
    z = y
    w = y[1:]
    if i % 3:
        w[0] += 1.0
    return z, y, w


def writes(y, i, x):
    if i % 2:
        y[0] += 1.0
    if x[i]:
        print(y)
    return y[0]


def chained(x, n):
    for i in range(n):
        a = b = x + 1.0
        a[0] = 5.0 + i
    a[1] = 55.0
    return a, b, a is b


def chained_after(x, n):
    for i in range(n):
        a = b = c = abs(x - 2.0)
    a[0] = 55.0
    return a, b, c, a is b, b is c


def packed(x, i):
    t = (x + 1.0, i)
    a = t[0]
    v = t[0][1:]
    v[0] = 100.0 + t[1]
    t[0][0] += 1.0
    return a, t[0], v


def from_a_tuple(x, n):
    for i in range(n):
        a, b, v = packed(x, i)
        a -= 1.0
    return a, b, v, a is b, v.base is a


def walrus(x, n):
    s = 0.0
    for i in range(n):
        b = (a := x + 1.0)[1:]
        b[0] = i
        (d := (c := x * 2.0))[1] = i
        s += a[1] + c[1]
        x[:] = (y := x + 1.0) * 0.5
        y[0] = i
    return a, b, c, d, s, x, y, b.base is a, c is d


def helper_pair(x, n):
    for i in range(n):
        a, b = pair_of(x)
        a[0] = i
    return a, b, a is b


def helper_view(x, n):
    for i in range(n):
        a, b = view_of(x)
        b[0] = i
    return a, b, b.base is a


def helper_writes_a_view(x, n):
    for i in range(n):
        d = through_a_view(x)
    return d


def helper_writes_a_transpose(x, n):
    s = 0.0
    for i in range(n):
        s += through_a_transpose(x)[0]
    return s


def helper_renames(x, n):
    s = 0.0
    for i in range(n):
        a, b, c = renamed(x, i)
        b[0] -= 1.0
        s += a[0] + a[1] + c[0]
    return a, b, c, s, a is b, c.base is a


def tuple_gone_through(x, n):
    s = 0.0
    for i in range(n):
        for r in (q := x * 2.0, q):
            r[0] += 1.0
        s += q[0]
    return s, q


HELD_TWICE = [chained, chained_after, from_a_tuple, walrus, helper_pair, helper_view, helper_writes_a_view, helper_writes_a_transpose, helper_renames, tuple_gone_through]


@pytest.mark.parametrize("program", HELD_TWICE)
def test_one_array_with_two_holders(program):
    check(program, (np.arange(4.0), 100), (np.arange(2.0), 7))


def test_an_argument_that_was_written_is_not_written_again():
    """The caller holds it, too: where the call is left, Python calls again with what it held then. Here the call is left to Python."""

    def program(v, x, n):
        s = 0.0
        for i in range(n):
            s += writes(v * 2.0, i, x)
        return s

    x = np.zeros(100, np.int64)
    x[39] = x[80] = 1
    check(program, (np.arange(9.0), x, 100), (np.arange(9.0), x, 70), loops=0, runs=0)


def test_what_is_returned_in_the_loop():
    def program(x, n):
        for i in range(n):
            y = x * float(i)
            if i == 50:
                return x + 1.0, y * 2.0
            if i == 70:
                return y + 1.0
        return y

    check(program, (np.arange(4.0), 100), (np.arange(4.0), 20))


def test_nans_are_the_objects_that_they_were():
    nan = float("nan")

    def program(l, x):
        kept = []
        for v in l:
            kept.append(v)
        other = [0.0] * len(l)
        for i in range(len(l)):
            other[i] = l[i]
        return kept == l, other == l, kept[0] in l, l.count(kept[-1])

    many = [nan] * 100
    check(program, ([float(i) for i in range(100)], 1), (many, 1), ([1.0, nan, 2.0, nan] * 30, 1))


NAN = float("nan")


def test_nans_in_locals_are_the_objects_that_they_were():
    """A not-a-number is equal to itself alone as an object, which a copy is."""

    def copied(x, n):
        y = z = 0.0
        for i in range(n):
            z = y
            y = x
        return y is x, x in [y], z is x, (x,) == (y,)

    def chosen(x, n):
        y, total = 1.0, 0.0
        for i in range(n):
            y = x if i % 2 else y
            total += i
        return y is x, [y] == [x], total

    def swapped(x, n):
        y, total = 2.0, 0.0
        for i in range(n):
            x, y = y, x
            total += i
        return [x, y].count(x), total, x is y

    def least(x, n):
        y, total = x, 0.0
        for i in range(n):
            y = min(y, float(i))
            total += i
        return y is x, x in [y], total

    def packed(x, n):
        t, total = (1.0, 2.0), 0.0
        for i in range(n):
            t = (x, total)
            total += i
        return x in t, t[0] is x

    def named(x, n):
        y, total = 0.0, 0.0
        for i in range(n):
            y = NAN
            total += i
        return y is NAN, y in [NAN], total

    def given(x, n):
        kept, total = {}, 0.0
        for i in range(n):
            total += i
            if i % 10 == 0:
                kept[i] = x
        return x in kept.values(), total

    def same(a):
        return a

    def called(x, n):
        y, total = 0.0, 0.0
        for i in range(n):
            y = same(x)
            total += i
        return y is x, x in [y], total

    def scaled(x, n):
        y = x
        for i in range(n):
            y = x * 2.0
        return y is x, x in [y]

    # Then with a number: code there is.
    for program in (copied, chosen, swapped, least, packed, given, called, scaled, named):
        compiled = framejit.compile(program)
        for x in (NAN, float("nan"), np.float64("nan")):
            for _ in range(3):
                assert compiled(x, 100) == program(x, 100), (program, type(x))
        for _ in range(3):
            compiled(2.5, 100)
        assert compiled.cache_info()["scalar_runs"] > 0 or program is called, program


def test_nans_in_tuples_are_the_objects_that_they_were():
    def unpacked(t, n):
        x, total = 0.0, 0.0
        for i in range(n):
            x, y = t
            total += i
        return x in t, x is t[0], total

    def gone_through(t, n):
        x, total = 0.0, 0.0
        for i in range(n):
            for v in t:
                x = v
            total += i
        return x in t, total

    for program in (unpacked, gone_through):
        compiled = framejit.compile(program)
        for values in ((NAN, 1.0), (float("nan"), 1.0), (np.float64("nan"), np.float64(1.0)), (complex("nan"), 1j)):
            for _ in range(3):
                assert compiled(values, 100) == program(values, 100), (program, values)
        for _ in range(3):
            compiled((2.5, 1.0), 100)
        assert compiled.cache_info()["scalar_runs"] > 0, program


def ran_as_code(seed):
    """Compares the program of this seed with Python. Did a loop of it run as machine code?"""
    program, args, file = one(seed)
    compiled = framejit.compile(program)
    for _ in range(3):
        assert observed(compiled, program, args, file) == observed(program, program, args, file), seed
    return compiled.cache_info()["scalar_runs"] > 0


@pytest.mark.parametrize("seeds", [range(k, k + 8) for k in range(0, 24, 8)], ids=str)
def test_random_programs(seeds):
    assert sum(map(ran_as_code, seeds)) >= 4


@pytest.mark.fuzz
@pytest.mark.slow
def test_many_random_programs(fresh):
    ran = []
    fuzzing.check(lambda seed: ran.append(ran_as_code(seed)), fresh, 60)
    assert sum(ran) > len(ran) / 3 or len(ran) < 10, f"machine code in {sum(ran)} of {len(ran)} programs"


# --- whole programs ----------------------------------------------------------------------------------------------------------------
def lcs_backtrack(a, b):
    n, m = len(a), len(b)
    t = np.zeros((n + 1, m + 1), np.int32)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            t[i, j] = t[i - 1, j - 1] + 1 if a[i - 1] == b[j - 1] else max(t[i - 1, j], t[i, j - 1])
    path = []
    i, j = n, m
    while i > 0 and j > 0:
        if a[i - 1] == b[j - 1]:
            path.append(i - 1)
            i -= 1
            j -= 1
        elif t[i - 1, j] >= t[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return path, t


def heap(values):
    h = []
    for v in values:
        h.append(v)
        k = len(h) - 1
        while k > 0 and h[(k - 1) // 2] > h[k]:
            p = (k - 1) // 2
            h[p], h[k] = h[k], h[p]
            k = p
    out = []
    while h:
        top = h[0]
        last = h.pop()
        if h:
            h[0] = last
            k = 0
            while True:
                c = 2 * k + 1
                if c >= len(h):
                    break
                if c + 1 < len(h) and h[c + 1] < h[c]:
                    c += 1
                if h[c] >= h[k]:
                    break
                h[c], h[k] = h[k], h[c]
                k = c
        out.append(top)
    return out


def fft_by_hand(x):
    n = len(x)
    j = 0
    for i in range(1, n):
        bit = n >> 1
        while j & bit:
            j ^= bit
            bit >>= 1
        j ^= bit
        if i < j:
            x[i], x[j] = x[j], x[i]
    size = 2
    while size <= n:
        w = complex(math.cos(2 * math.pi / size), -math.sin(2 * math.pi / size))
        for start in range(0, n, size):
            f = 1 + 0j
            for k in range(size // 2):
                u = x[start + k]
                v = x[start + k + size // 2] * f
                x[start + k] = u + v
                x[start + k + size // 2] = u - v
                f *= w
        size *= 2
    return x


def three_body(pos, vel, mass, steps, dt):
    n = len(mass)
    for _ in range(steps):
        for i in range(n):
            acc = np.zeros(3)
            for j in range(n):
                if i != j:
                    d = pos[j] - pos[i]
                    acc += mass[j] * d / (np.sum(d * d) + 0.01) ** 1.5
            vel[i] += dt * acc
        for i in range(n):
            pos[i] += dt * vel[i]
    return pos


def newton_fractal(n, steps):
    out = np.zeros((n, n), np.int8)
    for y in range(n):
        for x in range(n):
            z = complex(4.0 * x / n - 2.0, 4.0 * y / n - 2.0)
            for k in range(steps):
                if z == 0:
                    break
                z = z - (z**3 - 1) / (3 * z**2)
            best = 9.0
            for i, root in enumerate((1 + 0j, -0.5 + 0.8660254037844386j, -0.5 - 0.8660254037844386j)):
                if abs(z - root) < best:
                    best = abs(z - root)
                    out[y, x] = i
    return out


def run_lengths(bits):
    lengths = []
    last, count = bits[0], 0
    for b in bits:
        if b == last:
            count += 1
        else:
            lengths.append(count)
            last, count = b, 1
    lengths.append(count)
    return lengths


def moving_median(x, k):
    out = np.empty(len(x) - k + 1)
    for i in range(len(out)):
        w = x[i:i + k].copy()
        for a in range(1, k):
            v = w[a]
            b = a - 1
            while b >= 0 and w[b] > v:
                w[b + 1] = w[b]
                b -= 1
            w[b + 1] = v
        out[i] = w[k // 2]
    return out


WHOLE = {
    lcs_backtrack: (rng().integers(0, 4, 60), rng().integers(0, 4, 50)),
    heap: (rng().random(300).tolist(),),
    fft_by_hand: (rng().random(64) + 1j * rng().random(64),),
    three_body: (rng().random((5, 3)), rng().random((5, 3)), rng().random(5) + 1, 12, 0.01),
    newton_fractal: (16, 10),
    run_lengths: ((rng().random(800) > 0.7).astype(np.int8),),
    moving_median: (rng().random(200), 9),
}


@pytest.mark.parametrize("program", WHOLE, ids=lambda p: p.__name__)
def test_whole_programs(program):
    check(program, WHOLE[program])


# --- names of what is computed later -----------------------------------------------------------------------------------------
def columns(a, b, c, n):
    for k in range(1, n - 1):
        g = -0.25 * (a[1:, :, k] + a[:-1, :, k])
        h = 0.25 * (a[1:, :, k + 1] + a[:-1, :, k + 1])
        s = g * 0.5
        b[:, :, k] = h * 0.5
        d = 1.5 - s - b[:, :, k]
        e = d * c[:, :, k]
        c[:, :, k] = e / (d - b[:, :, k - 1] * s)
    return g, h, s, d, e


def test_named_arrays_of_one_shape():
    args = rng().random((5, 6, 20)), rng().random((4, 6, 20)), rng().random((4, 6, 20)), 20
    special = tuple(x.copy() if isinstance(x, np.ndarray) else x for x in args)
    special[0][2, 3, 11] = 1e308
    special[2][1, 2, 15] = np.inf
    check(columns, args, special, args)


def test_named_arrays_that_nobody_reads():
    def dropped(x, out):
        for i in range(len(out)):
            v = x / (x - i)
            v = x * 2
            out[i] = v[0]
        return v

    def deleted(x, out):
        for i in range(len(out)):
            v = x / (x - i)
            w = x + 1
            del v
            out[i] = w[1]
        return w

    def helper(x, i):
        t = x / (x - i)
        t = x / (x - i - 1)
        d = x * 0.5
        return x * 2 + np.dot(d, d)

    def in_a_helper(x, out):
        for i in range(len(out)):
            out[i] = helper(x, i)[1]
        return out

    x = np.arange(8.0)
    check(in_a_helper, (x + 0.5, np.zeros(30)), (x, np.zeros(30)))
    check(dropped, (x + 0.5, np.zeros(30)), (x, np.zeros(30)))
    check(deleted, (x + 0.5, np.zeros(30)), (x, np.zeros(30)), loops=0, runs=0)


def test_named_arrays_read_as_wholes():
    def program(x, out):
        total = 0.0
        for i in range(len(out)):
            v = x + i
            w = v * v
            for j, e in enumerate(w):
                total += e * j
            for e, f in zip(v, w):
                total -= e + f
            w += v
            same = w
            out[i] = total + len(v) + np.sum(w) + np.dot(v, w)
            same[1] = 0.25
            v = w - x[::-1]
        return total, v, w, same is w

    check(program, (rng().random(9), np.zeros(25)))


def test_named_rows_that_go_to_many():
    def program(x, y, n):
        for i in range(n):
            r = x[i % 5] * 2.0
            q = r[::-1] + x[0]
            y[:, :] = r - q
            y[i % 4] += r
            x[0, 1:] = q[1:] * 0.5
            x[0, :-1] = x[0, 1:] + r[1:] * 0.25
        return r, q

    check(program, (rng().random((5, 7)), np.zeros((4, 7)), 30))


# --- loops that search, and inner loops without rounds -------------------------------------------------------------------------
def longest_match(data, window, longest):
    """The best match before each place: short loops whose condition has several parts."""
    out = np.zeros(len(data), np.int64)
    for i in range(len(data)):
        best = 0
        for j in range(max(0, i - window), i):
            k = 0
            while k < longest and data[j + k] == data[i + k]:
                k += 1
            best = max(best, k)
        out[i] = best
    return out


def below_diagonal(a, n, lead):
    """Inner loops that have no rounds at first, and then more and more."""
    total = 0.0
    for i in range(n):
        for j in range(i - lead):
            total += a[i, j] * a[j, i]
            a[i, j] = total
    return total, a


def test_loops_that_search():
    data = rng().integers(0, 3, 80, dtype=np.uint8)
    data[-8:] = 9, 8, 7, 6, 5, 4, 3, 2
    check(
        longest_match,
        (data, 20, 9),
        (data, 3, 70),
        (data[:-8], 20, 9),  # an index behind the end
        (data[:0], 20, 9),
        (data.astype(np.int64), 100, 0),
        (data.astype(np.int64), 100, -1),
    )


def test_inner_loops_without_rounds():
    a = rng().random((40, 40))
    check(
        below_diagonal,
        (a, 40, 0),
        (a, 40, 5),
        (a, 40, 50),
        (a, 40, -1),  # the last inner loop leaves the row
        (a[:, :30], 40, 0),
        (a, 0, 0),
    )
    large = rng().random((1100, 1100))  # inner loops of more rounds than expected
    check(below_diagonal, (large, 1100, 0), (large, 1100, 1099))


def test_a_remainder_of_what_means_nothing_on_another_way(fresh):
    """An index `int(f) % n` may be computed before it is known that f is a float: its remainder must not decide anything there."""

    def program(b, l, k, f, n):
        i0 = c = 0
        while i0 < n:
            i0 += 1
            for i1 in range(2):
                for _ in range(i0):
                    f = 8
                    c += 1
                    k = l[i1 + 1]
                k, f = f, (-4 // (2.0 if i0 < 0 else (i0 * l[i1])))
                k, f = f, b[int(f) % n]
        return k, i0, f, c

    compiled = fresh.compile(program)
    for f in (np.float64(0.5), 0.5, 1):
        for _ in range(3):
            arguments = np.arange(20), [9, 2, 4, 4, 5], 0, f, 8
            assert compiled(*arguments) == program(*arguments) == (-1, 8, 7, 72)
    assert fresh.cache_info(compiled)["scalar_runs"] > 0
