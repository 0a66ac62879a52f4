"""Dicts from outside that are read and written by tuples."""

import collections
import enum

import pytest

torch = pytest.importorskip("torch")


def test_tuples_of_numbers_and_texts_as_keys(fresh):
    """A dict that is read by such a key is guarded at that key alone: what else is put into it is no matter."""
    Point = collections.namedtuple("Point", "h w")
    cache = {("other", 1): 3}

    def f(x):
        key = (*x.shape, str(x.dtype))
        if key not in cache:
            cache[key] = torch.arange(x.numel(), dtype=x.dtype).view(x.shape)
        return x + cache[key] + cache.get((x.shape[0], None), 0)

    def g(x):
        try:
            return x * cache[x.shape[0], x.shape[1]]
        except KeyError:
            return x + cache.setdefault((x.shape[0], x.shape[1]), x.amax()) + cache.pop(("one", x.shape[1]), 1)

    for program in (f, g):
        cache.clear()
        told = fresh.explain(program)(torch.ones(4, 5))
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        cache.clear()
        compiled = fresh.compile(program)
        theirs, ours = {("other", 1): 3}, {("other", 1): 3}

        def both(x):
            out = []
            for call, own in ((program, theirs), (compiled, ours)):
                cache.clear()
                cache.update(own)
                out.append(call(x))
                own.clear()
                own.update(cache)
            assert torch.equal(*out) and list(theirs) == list(ours)

        for shape in ((2, 3), (2, 3), (4, 2), (2, 3), (4, 2)):
            both(torch.randn(shape))
        before = fresh.cache_info(compiled)["captures"]
        for own in (theirs, ours):
            own["unseen", 2] = 1
        both(torch.randn(2, 3))
        assert fresh.cache_info(compiled)["captures"] == before
        for key in ((2, None), (2.0, 3), Point(4, 2), ("one", 2)):
            for own in (theirs, ours):
                own[key] = 7
            for shape in ((2, 3), (4, 2), (2, 3)):
                both(torch.randn(shape))


class Text(str):
    pass


@pytest.mark.parametrize("tuples", [False, True])
def test_keys_that_are_found_by_what_they_are(fresh, tuples):
    """A NaN is found by identity, and texts of the program's own class may hash otherwise later."""
    nan, text = float("nan"), Text("a")
    now, d = [nan], {(nan, 1) if tuples else nan: 3, ("a", 1) if tuples else "a": 7}

    def f(x):
        key = (now[0], 1) if tuples else now[0]
        return x * d.get(key, 5)

    compiled = fresh.compile(f, fullgraph=True)
    x = torch.ones(2)
    for now[0] in (nan, nan, float("nan"), nan, float("inf") - float("inf"), text, text):
        assert torch.equal(compiled(x), f(x))
    try:
        for Text.__hash__ in (lambda _: 5, str.__hash__, lambda _: 6):
            assert torch.equal(compiled(x), f(x))
    finally:
        Text.__hash__ = str.__hash__


class Half(enum.IntEnum):
    ONE = 1


class Same:
    def __hash__(self):
        return hash(1)

    def __eq__(self, other):
        return other == 1


@pytest.mark.parametrize("named", [(Half.ONE, 2), (Same(), 2), ((1.0,), 2), ((Half.ONE,), 2), 1.0, True, Half.ONE, Same()])
def test_keys_that_say_that_they_equal_another(fresh, named):
    """The graph that found no such key is not run where one that is equal has come, of whatever class."""
    key = 1 if not isinstance(named, tuple) else ((1,), 2) if isinstance(named[0], tuple) else (1, 2)

    def read(d, x):
        try:
            return x + d[key]
        except KeyError:
            return x

    def gone(d, x):
        del d[key]
        return x * len(d)

    for f in (read, gone):
        compiled = fresh.compile(f)
        for has in (False, False, True, True, False) if f is read else (True, True):
            theirs, ours = ({"other": 1, **({named: 5} if has else {})} for _ in range(2))
            assert torch.equal(f(theirs, torch.ones(2)), compiled(ours, torch.ones(2)))
            assert list(theirs) == list(ours)


NANS = {
    "float": lambda v: v,
    "tuple": lambda v: ("k", v),
    "complex": lambda v: complex(v, 1.0),
    **{name: lambda v, name=name: getattr(pytest.importorskip("numpy"), name)(v) for name in ("float64", "float32", "float16", "complex128")},
    "tuple of NumPy's": lambda v: ("k", pytest.importorskip("numpy").float64(v)),
}


@pytest.mark.parametrize("key", NANS.values(), ids=NANS)
def test_keys_that_are_no_numbers_are_told_apart(fresh, key):
    """A nan equals itself alone, whatever its bits are."""
    first, second, third = (key(float("nan")) for _ in range(3))

    def f(a, d, p, q):
        return a + d.get(p, 7.0), a + d.get(q, 8.0), p in d, q in d, len(d)

    def g(a, d):
        return [a + v for v in d.values()], [a + d[k] for k in d]

    def h(a, d, k):
        return a + 1, list(d).count(k), k in list(d), [x is k for x in d], [k] == list(d)

    def put(a, d, k):
        d[k] = d.get(k, 0) + 1
        return a + len(d), len(d)

    a, one, two = torch.arange(3.0), torch.ones(3), torch.full((3,), 5.0)
    tables = [{first: one, second: two}, {second: one, first: two}, {first: one}, {second: one}, {third: two}, {first: two, third: one}, {}]
    call, other, among, puts = (fresh.compile(x) for x in (f, g, h, put))
    for _ in range(2):
        for d in tables:
            for p, q in ((first, second), (second, first), (first, first), (third, second)):
                assert str(call(a, d, p, q)) == str(f(a, d, p, q))
            assert str(other(a, d)) == str(g(a, d))
            for k in (first, second, third):
                assert str(among(a, d, k)) == str(h(a, d, k))
                assert str(puts(a, {k: 1 for k in d}, k)) == str(put(a, {k: 1 for k in d}, k))


def test_what_lies_under_a_nan_of_each_call(fresh):
    def f(a, table, text):
        k = (text, float(text))
        if k not in table:
            table[k] = len(table)
        return a * table[k], len(table)

    call, seen = fresh.compile(f), []
    for g in (f, call):
        table = {}
        seen.append([str(g(torch.arange(3.0), table, text)) for text in ("1", "nan", "1", "nan", "inf", "inf", "nan")])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", ["ints", "floats", "tuples", "texts and ints"])
def test_many_keys_are_gone_through_once(fresh, kind):
    """What a call and a capture cost does not grow with the square of the number of keys: that would take minutes here."""
    import time

    np = pytest.importorskip("numpy")
    n = 40_000
    d = {{"ints": i + 1000, "floats": i + 0.5, "tuples": (i, "a"), "texts and ints": i if i % 2 else str(i)}[kind]: None for i in range(n)}

    def f(x, d):
        return list(d), x + 1

    def g(x, d):
        return list(d.values()), x + 1

    for program in (f, g):
        compiled, x = fresh.compile(program), np.ones(3)
        begin = time.perf_counter()
        for _ in range(3):
            got, y = compiled(x, d)
            assert all(a is b for a, b in zip(got, program(x, d)[0], strict=True)) and y.tolist() == [2, 2, 2]
        d[0, 0, 0] = None  # the dict is another one, and is looked up again
        assert len(compiled(x, d)[0]) == n + 1
        del d[0, 0, 0]
        assert len(compiled(x, d)[0]) == n
        assert fresh.cache_info(compiled)["outcomes"]["run"].get("graph", 0) >= 1
        assert time.perf_counter() - begin < 15


def test_a_key_is_found_by_its_hash(fresh):
    """Tables of all sizes, with holes, and keys that have one hash."""
    np = pytest.importorskip("numpy")

    class Odd:
        def __hash__(self):
            return hash(7)

        def __eq__(self, other):
            return self is other

    for extra in (3, 300, 70_000):
        d = {i * 2**61: i for i in range(extra)}  # of few hashes modulo 2**61 - 1
        d |= {-1: "a", -2: "b", 7.0: "c", True: "d", (1, -1): "e", (1, -2): "f", "text": "g", None: "h", np.int64(5): "i", torch.float32: "j"}
        for gone in list(d)[: extra // 2]:
            del d[gone]

        def f(x, key):
            return x + 1, d.get(key, "none")

        compiled, x = fresh.compile(f), np.ones(2)
        for key in (-1, -2, 7, 1, 1.0, (1, -1), (1, -2), (1.0, -2), "text", None, 5, torch.float32, torch.int8, "other", 8, (extra - 1) * 2**61):
            for _ in range(2):
                assert compiled(x, key)[1] == f(x, key)[1], key
        d[7.0] = d[-2] = "changed"
        for key in (-2, 7, -1):
            assert compiled(x, key)[1] == f(x, key)[1]
        d[Odd()] = 1
        for key in (7, 7.0, -2):
            assert compiled(x, key)[1] == f(x, key)[1]
