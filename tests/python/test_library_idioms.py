"""What libraries do all the time around their arrays: copies, questions about dtypes, frozen instances of attrs."""

import copy

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
