"""What libraries do all the time around their arrays: copies, questions about dtypes, frozen instances of attrs."""

import copy
import typing

import pytest

np = pytest.importorskip("numpy")


class Frozen:
    """As attrs writes the `__init__` of a frozen class."""

    def __init__(self, a, b):
        store = object.__setattr__.__get__(self)
        store("a", a)
        store("b", b)

    def __setattr__(self, name, value):
        raise AttributeError(name)


def frozen(x):
    o = Frozen(x, [1])
    try:
        o.a = 2
    except AttributeError as e:
        return o.a * 2, o.b, str(e)


def refused(x):
    try:
        object.__setattr__.__get__(x.shape)("z", 3)
    except AttributeError as e:
        return x + 1, str(e)


def promoted(x):
    return x.astype(np.promote_types(x.dtype, np.float32)) + 1, np.promote_types("f4", "i8").name


def shallow(x):
    y = copy.copy(x)
    y[0] = 7
    return y, x * 2, y.strides


def deep(x):
    y = copy.deepcopy({"x": x, "again": x})
    y["x"][0] = 7
    return y["x"], y["again"], x + 1, y["x"] is y["again"]


def sets(x):
    held = {1, "a"}
    one, other = copy.deepcopy([held, held])
    one.add(2)
    return x * len(other), one is other, held, copy.deepcopy(frozenset([3]))


PROGRAMS = [frozen, refused, promoted, shallow, deep, sets]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", ["C", "F"])
def test_one_graph(f, order, fj):
    compiled = fj.compile(f)
    for shape in [(3, 4), (5, 4), (1, 4), (2, 2), (3,)]:
        x = np.asarray(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), order=order)
        kept = x.copy()
        expected, got = f(x), compiled(x)
        assert str(got) == str(expected) and np.array_equal(x, kept)
        for g, e in zip(got, expected):
            if isinstance(e, np.ndarray):
                assert g.strides == e.strides and g.dtype == e.dtype and not np.shares_memory(g, x)
    assert compiled.cache_info()["breaks"] == 0 and compiled.graphs


def test_sets_from_outside(fj):
    held = {"a": {3, 1, 2}}

    def f(x):
        mine = copy.deepcopy(held)
        mine["a"].discard(3)
        return x + len(mine["a"]), sorted(mine["a"])

    compiled = fj.compile(f)
    for n in (1, 9, 3):
        held["a"].add(n)
        assert str(compiled(np.ones(3))) == str(f(np.ones(3)))
    assert 3 in held["a"]


def orders(x, order):
    return x.reshape(-1, 2, order=order) + 1, np.reshape(x, (2, -1), order=order), np.ravel(x, order=order), x.flatten(order) * 2


def written(x, order):
    flat = x.ravel(order)
    flat *= 2
    return flat, x.reshape(x.shape[::-1], order=order)


def unwrapped(x, order):
    y = x.__array__()
    return y is x, x.__array__(np.float64) + 1, x.view(np.ndarray) * 2, x.view(), x.view(np.int32)[..., :1]


def sized(x, order):
    return x.reshape(np.broadcast_shapes((1, 1), x.shape)) + 1, x * sum(np.broadcast_shapes(x.shape, (1,), 1))


def based(x, order):
    return x + (1 if x.base is None else 2), np.asarray(None).shape, np.array(None).item() is None


@typing.runtime_checkable
class ArrayOfAnyKind(typing.Protocol):
    shape: tuple

    def __array_function__(self, func, types, args, kwargs): ...


@typing.runtime_checkable
class HasUnits(typing.Protocol):
    units: str

    def mean(self): ...


def protocols(x, order):
    return x + isinstance(x, ArrayOfAnyKind) + 2 * isinstance(x, HasUnits), isinstance(x[0, 0], (HasUnits, ArrayOfAnyKind))


@pytest.mark.parametrize("f", [orders, written, unwrapped, sized, based, protocols], ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", ["C", "F", "A"])
def test_views_and_orders(f, order, fj):
    """Each layout is one graph, whose results lie, and share memory, as NumPy's own."""
    for layout in (lambda a: a, np.asfortranarray, lambda a: np.asfortranarray(a)[:, :]):
        compiled = fj.compile(f)
        for shape in [(6, 4), (8, 4), (4, 2), (2, 2)]:
            x, y = (layout(np.arange(np.prod(shape), dtype=np.float32).reshape(shape).copy()) for _ in range(2))
            expected, got = f(x, order), compiled(y, order)
            assert str(got) == str(expected) and np.array_equal(x, y)
            for g, e in zip(got, expected):
                if isinstance(e, np.ndarray):
                    assert g.strides == e.strides and np.shares_memory(g, y) == np.shares_memory(e, x)
                    assert (g.base is None) == (e.base is None)
        assert compiled.cache_info()["breaks"] == 0 and compiled.graphs


def test_what_is_left_to_numpy(fj):
    def f(x, shape, order):
        try:
            return x.reshape(shape, order=order) + 1
        except ValueError as e:
            return str(e)

    def shapes(x, *shapes):
        try:
            return np.broadcast_shapes(*shapes), x + 1
        except ValueError as e:
            return str(e)

    x = np.arange(12.0).reshape(3, 4)[:, ::2]
    compiled, compiled_shapes = fj.compile(f), fj.compile(shapes)
    for shape, order in [((2, 1, 3), "F"), ((5, 2), "F"), ((6, 1), "K"), ((3, 2), "F"), ((6, 1), "A")]:
        got, expected = compiled(x, shape, order), f(x, shape, order)
        assert str(got) == str(expected) and getattr(got, "strides", 0) == getattr(expected, "strides", 0)
    for given in [((3,), (4,)), ((2, 1), 3), ((-1,),), ((0, 1), (5,)), ([2, 1], (1, 3))]:
        assert str(compiled_shapes(x, *given)) == str(shapes(x, *given))
