"""NumPy's arrays of objects (dtype=object): containers whose elements may be arrays of the graph."""

import framejit
import pytest

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("fresh")

SIZES = (3, 3, 1, 0, 5, 5)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) and a.dtype == object:
        return (a.shape, a.strides) == (b.shape, b.strides) and all(map(same, list(a.flat), list(b.flat)))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides) and np.array_equal(a, b)
    return a == b


class Pair:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Pair(self.value + other)


def one(x):
    a = np.empty((1, 1), dtype=np.ndarray)
    a[0, 0] = x * 2
    return a[0, 0] + 1, a.shape, a.size, a.ndim, len(a), a.dtype


def filled(x):
    a = np.empty((2, 2), dtype=object)
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            a[i, j] = x * (i + j)
    return a


def mixed(x):
    a = np.empty(3, dtype=object)
    a[0], a[1], a[2] = x, [x + 1], "text"
    return a.tolist(), [type(e).__name__ for e in a]


def arithmetic(x):
    a = np.empty(2, dtype=object)
    a[0], a[1] = x, x + 1
    return a * 2, (a + a)[1], np.add(a, 1), sum(a)


def of_instances(x):
    a = np.empty(2, dtype=object)
    a[0], a[1] = Pair(x), Pair(x * 2)
    b = a + 1
    return b[0].value, b[1].value, len(b)


def reshaped(x):
    a = np.array([[1, 2], [3, None]], dtype=object)
    return x * a[0, 1], a.reshape(4), a.copy(), a.T[1, 0], a


def in_fortrans_order(x):
    a = np.zeros((2, 3), dtype=object, order="F")
    a[1, 2] = x * 2
    return a


def by_python_functions(x):
    a = np.full((2,), None, dtype=object)
    a[1] = x.sum()
    b = np.ones((1, 3), dtype=object)
    return a, np.squeeze(b).shape, np.ndim(a), x * int(b[0, 0])


def without_axes(x):
    a = np.empty((), dtype=object)
    a[()] = x
    return a, a[()] + 1, a.item() + 2


def rows(x):
    a = np.empty((2, 2), dtype=object)
    a[:] = 0
    [row for row in a][0][1] = x
    return a[0, 1] + 1


def unpacked(x):
    a = np.empty(2, dtype=object)
    a[0] = a[1] = x
    u, v = a
    return u + v, isinstance(a, np.ndarray), list(a), np.asarray(a) is a, np.equal(x, x)


@pytest.mark.parametrize("f", [one, filled, mixed, arithmetic, of_instances, reshaped, in_fortrans_order, by_python_functions, without_axes, rows, unpacked], ids=lambda f: f.__name__)  # fmt: skip
def test_made_in_the_function(f):
    compiled = framejit.compile(f)
    for n in SIZES:
        x = np.arange(n) + 1.0
        expected, got = f(x), compiled(x)
        assert same(expected, got), (n, expected, got)
    info = compiled.cache_info()
    assert info["breaks"] == 0 and compiled.graphs


def test_one_array_under_two_names():
    @framejit.compile
    def f(x):
        a = np.empty(2, dtype=object)
        a[0] = x * 2
        return a, a.reshape(1, 2), a

    for _ in range(3):
        a, view, again = f(np.ones(3))
        assert a is again and view.base is a
        view[0, 1] = "seen"
        assert a[1] == "seen"
    assert f.cache_info()["breaks"] == 0


def test_what_ends_the_graph_is_right():
    def stored_to_a_part(x):
        a = np.empty((2, 2), dtype=object)
        a[0] = [x + 1, x]
        return a

    def compared(x):
        a = np.empty(2, dtype=object)
        a[0] = a[1] = 3
        return a == 3, x + 1

    def a_part(x):
        a = np.empty(2, dtype=object)
        a[0], a[1] = x, x + 1
        part = a[:1]
        part[0] = x * 3
        return a, part

    def out_of_bounds(x):
        a = np.empty(2, dtype=object)
        try:
            a[5] = x * 2
        except IndexError as e:
            return str(e), x + 1

    def of_arrays(x):
        return np.array([x, x + 1], dtype=object), np.array([x, None], dtype=object)

    def text(x):
        a = np.empty(2, dtype=object)
        return str(a), x + 1

    for f in (stored_to_a_part, compared, a_part, out_of_bounds, of_arrays, text):
        compiled = framejit.compile(f)
        for n in (3, 3, 2, 5):
            x = np.arange(n) + 1.0
            try:
                expected = f(x)
            except ValueError as e:
                with pytest.raises(ValueError, match=str(e)[:20]):
                    compiled(x)
                continue
            assert same(expected, compiled(x)), f.__name__


class Holder:
    pass


def outside():
    held = Holder()
    held.array = np.empty((2, 2), dtype=object)
    held.array[0, 0], held.array[0, 1], held.array[1, 0], held.array[1, 1] = np.arange(3.0), 3, "text", [np.ones(3)]
    return held


def test_read_from_outside():
    held = outside()

    def f(x):
        a = held.array
        return a[0, 0] + x, a[0, 1] * x, a.shape, a[1, 1][0] * 2, a, a.tolist()[1][0]

    compiled = framejit.compile(f)

    def check():
        got = compiled(np.ones(3))
        assert same(got, f(np.ones(3))) and got[4] is held.array

    check()
    check()
    assert compiled.cache_info()["breaks"] == 0 and compiled.graphs
    held.array[0, 1] = 4
    check()
    held.array[0, 0] = np.arange(3.0) * 5
    check()
    held.array[1, 0] = "other"
    check()
    held.array[1, 1] = (np.ones(3) * 7,)
    check()
    held.array = np.array(held.array)
    check()
    held.array = np.asfortranarray(held.array)
    check()
    held.array = np.arange(4.0).reshape(2, 2)
    with pytest.raises(IndexError):
        compiled(np.ones(3))


def test_writes_to_one_from_outside_are_the_programs():
    held = outside()

    def f(x):
        held.array[0, 1] = x * 2
        y = held.array[0, 1] + 1
        held.array.fill(None)
        return y

    compiled = framejit.compile(f)
    for n in (3, 3, 4):
        assert same(compiled(np.ones(n)), np.ones(n) * 2 + 1)
        assert held.array.tolist() == [[None, None], [None, None]]


def test_views_of_one_from_outside_are_the_programs():
    held = outside()

    def f(x):
        row = held.array[0]
        row[1] = x
        return held.array.T, row[1] + 1

    compiled = framejit.compile(f)
    for n in (3, 3, 4):
        transposed, y = compiled(np.ones(n))
        assert transposed.base is held.array and held.array[0, 1].shape == (n,) and same(y, np.ones(n) + 1)


def test_lists_from_outside_are_read_in_each_call(fresh):
    """Nothing guards what NumPy reads of them: such calls are NumPy's."""
    held = [1, 2]
    programs = {
        "argument": lambda x: np.array(x, dtype=object),
        "outside": lambda x: np.array(held, dtype=object),
        "in a tuple": lambda x: np.asarray((x, x), dtype=object),
        "sizes": lambda x: np.zeros([len(x), 1], dtype=object),
    }
    for name, f in programs.items():
        compiled = fresh.compile(f)
        for x in ([1, 2], [3, 4, 5], [1.5, 2], ["a"], [1, 2]):
            want, got = f(x), compiled(x)
            assert want.tolist() == got.tolist() and want.shape == got.shape, name
        held.append(name)


def test_views_of_arrays_without_dimensions_share_memory(fresh):
    def through_view(a):
        b = a.view(np.int64)
        b[...] = 7
        return a

    def through_part(a):
        a.real[...] = 9
        return a

    def view(a):
        return a.view(np.float64)

    for f in (through_view, through_part, view):
        compiled = fresh.compile(f)
        for shape in ((), (3,), ()):
            a, b = np.full(shape, 3.0), np.full(shape, 3.0)
            want, got = f(a), compiled(b)
            np.testing.assert_array_equal(want, got)
            np.testing.assert_array_equal(a, b)
            assert np.shares_memory(want, a) == np.shares_memory(got, b)
