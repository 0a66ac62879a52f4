"""Guards: every source and guard kind hit and missed, hostile keys, reports."""

import collections
import contextvars
import copy
import sys
import threading
import types
import weakref

import framejit
import pytest
from guards import S0, S1, UNBOUND, Thing, attr, build, hits, item, misses


# --- sources ---------------------------------------------------------------------------------------------------------------


def make_sources():
    a, b = Thing(), Thing()

    class Slotted:
        __slots__ = ("x", "y")

    slotted, other_slotted = Slotted(), Slotted()
    slotted.x, other_slotted.x = a, b

    def closing(value):
        return lambda: value

    def with_default(value):
        return lambda p=value, *, k=value: p

    def with_dict(value):
        def f():
            pass

        f.note = value
        return f

    def cell(value):
        return closing(value).__closure__[0]

    class Method:
        def m(self):
            pass

    ma, mb = Method(), Method()
    fa, fb = types.MethodType(with_default(1), ma), types.MethodType(with_default(1), ma)
    return {
        "slot": (S0, a, [a], [b]),
        "const": (("const", a), a, [], None),
        "instance dict": (attr(S0, "x"), a, [Thing(x=a)], [Thing(x=b)]),
        "dict item": (item(S0, "k"), a, [{"k": a}], [{"k": b}]),
        "dict item, int key": (item(S0, 7), a, [{7: a}], [{7: b}]),
        "dict item, tuple key": (item(S0, (1, "x")), a, [{(1, "x"): a}], [{}]),
        "dict subclass": (item(S0, "k"), a, [collections.OrderedDict(k=a)], [collections.OrderedDict(k=b)]),
        "defaultdict": (item(S0, "k"), a, [collections.defaultdict(list, k=a)], [collections.defaultdict(list)]),
        "list": (("item", S0, 1), a, [[0, a]], [[0, b]]),
        "short list": (("item", S0, 1), a, [[0, a]], [[0]]),
        "tuple": (("item", S0, 0), a, [(a,)], [(b,)]),
        "cell": (("cell", S0), a, [cell(a)], [cell(b)]),
        "closure": (("cell", ("closure", S0, 0)), a, [closing(a)], [closing(b)]),
        "defaults": (("item", ("defaults", S0), 0), a, [with_default(a)], [with_default(b)]),
        "kwdefaults": (item(("kwdefaults", S0), "k"), a, [with_default(a)], [with_default(b)]),
        "function dict": (item(("func_dict", S0), "note"), a, [with_dict(a)], [with_dict(b)]),
        "bound self": (("__self__", S0), ma, [ma.m], [mb.m]),
        "bound self of a C method": (("__self__", S0), sys, [sys.getrefcount], [len]),
        "bound function": (("__func__", S0), fa.__func__, [fa], [fb]),
        "member": (("member", S0, "x"), a, [slotted], [other_slotted]),
        "type": (("type", S0), Thing, [a], [1]),
        "module dict": (attr(S0, "maxsize"), sys.maxsize, [sys], [types.ModuleType("m")]),
        "class dict": (attr(S0, "__init__"), Thing.__init__, [Thing], [Method]),
    }


@pytest.mark.parametrize("name", make_sources())
def test_source(name):
    path, expected, good, bad = make_sources()[name]
    # The table is built twice (once for its names); take the expected object out of the same build as the slots.
    g = build(("is", path, expected), inputs=[path])
    hits(g, *good)
    assert g.check(*good)[0][0] is expected
    assert g.resolve(0, *good) is expected
    if bad is not None:
        misses(g, *bad)
        hits(g, *good)
    if good:
        misses(g, 5)  # nothing of the kind
        misses(g, UNBOUND)
        hits(g, *good)


def test_member_follows_the_type():
    class A:
        __slots__ = ("p", "x")

    class B:
        __slots__ = ("x",)

    a, b, v = A(), B(), Thing()
    a.x = b.x = v
    a.p = 1
    g = build(("is", ("member", S0, "x"), v))
    for _ in range(2):
        hits(g, a)
        hits(g, b)
    del b.x
    misses(g, b)
    A.x = property(lambda self: v)  # no member any more
    misses(g, a)


def test_context_variable():
    var = contextvars.ContextVar("var")
    value = Thing()
    path = ("contextvar", ("const", var))
    absent, present = build(("absent", path)), build(("is", path, value))

    def inside():
        hits(absent)
        misses(present)
        var.set(value)
        misses(absent)
        hits(present)

    contextvars.Context().run(inside)
    hits(absent)


def test_one_prefix_many_leaves():
    x = Thing(a=Thing(u=1, v=2), b=[Thing(w=3)])
    g = build(
        ("equals", attr(attr(S0, "a"), "u"), 1),
        ("equals", attr(attr(S0, "a"), "v"), 2),
        ("equals", attr(("item", attr(S0, "b"), 0), "w"), 3),
    )
    hits(g, x)
    x.b[0].w = 4
    misses(g, x, text="slot[0].b[0].w: expected 3, got 4")
    x.b[0].w = 3
    hits(g, x)
    x.b[0] = Thing(w=5)
    misses(g, x)


def test_values_of_which_the_same_is_asked_share_their_tests():
    things = [Thing(k=1, kept={}) for _ in range(50)]
    rows = []
    for i in range(50):
        thing = ("item", S0, i)
        rows += [("type is", thing, Thing), ("equals", attr(thing, "k"), 1), ("absent", attr(thing, "gone"))]
        rows += [("no items", attr(thing, "kept")), ("is", attr(thing, "own"), things[i].__dict__.setdefault("own", object()))]
    g = build(*rows, ("type is", ("item", S0, 50), int))
    values = [*things, 0]
    hits(g, values)
    held = [id(o) for o in g.referents()]
    assert held.count(id(weakref.ref(Thing))) == 1
    assert {id(t.own) for t in things} <= set(held)
    for i in (0, 1, 30, 49):
        own = things[i].own
        for change, back, text in [
            (lambda t: setattr(t, "k", 2), lambda t: setattr(t, "k", 1), "k: expected 1, got 2"),
            (lambda t: setattr(t, "gone", 2), lambda t: delattr(t, "gone"), "gone: was not there"),
            (lambda t: t.kept.update(a=1), lambda t: t.kept.clear(), "kept: was empty"),
            (lambda t: setattr(t, "own", things[i - 1].own), lambda t, own=own: setattr(t, "own", own), "own: expected"),
        ]:
            change(things[i])
            misses(g, values, text=f"slot[0][{i}].{text}")
            back(things[i])
            hits(g, values)
        values[i] = 0
        misses(g, values, text=f"slot[0][{i}]: type")
        values[i] = things[i]
    values[50] = things[0]
    misses(g, values, text="slot[0][50]: type")


# --- guard kinds -------------------------------------------------------------------------------------------------------------

NAN = float("nan")
EQUAL = [
    (1, 1, [2, True, 1.0, "1", None]),
    (2**70, 2**70, [2**70 + 1]),
    (True, True, [False, 1]),
    (0.0, 0.0, [-0.0, 0, False]),
    (NAN, float("nan"), [1.0]),
    (1.5, 3.0 / 2, [1.25]),
    ("abc", "".join(["a", "bc"]), ["abd", b"abc"]),
    ("é名", "é" + "名", ["é"]),
    (b"xy", bytes(bytearray(b"xy")), [b"xz", "xy"]),
    (None, None, [0, False]),
    (..., ..., [None]),
    (1 + 2j, complex(1, 2), [complex(1, -2), complex(1, 3)]),
    (0j, 0j, [complex(0.0, -0.0)]),
    ((1, (2.0, "x")), (1, (2.0, "x")), [(1, (2, "x")), (1,), [1]]),
    (range(0, 6, 2), range(0, 5, 2), [range(0, 7, 2)]),
    (slice(1, None, 2), slice(1, None, 2), [slice(1, 3, 2)]),
    (frozenset({1, 2}), {2, 1}, [{1}, {1, 3}, {1, 2, 3}, [1, 2], {1.0, 2}]),
    (frozenset(), frozenset(), [{1}]),
]


@pytest.mark.parametrize("expected, same, others", EQUAL, ids=[repr(e[0]) for e in EQUAL])
def test_equal(expected, same, others):
    g = build(("equals", S0, expected))
    hits(g, expected)
    hits(g, same)
    for o in others:
        misses(g, o)
    nested = build(("equals", item(S0, "k"), expected))
    d = {"k": same}
    hits(nested, d)
    d["k"] = others[0]
    misses(nested, d)
    d["k"] = same
    hits(nested, d)


def test_equal_never_calls_python():
    class Loud:
        def __eq__(self, other):
            raise AssertionError("called")

        __hash__ = None

    g = build(("equals", S0, 1), ("equals", ("slot", 1), "s"))
    misses(g, Loud(), Loud())
    o = Loud()
    by_identity = build(("equals", S0, o))
    hits(by_identity, o)
    misses(by_identity, Loud())
    in_tuple = build(("equals", S0, (o,)))
    hits(in_tuple, (o,))
    misses(in_tuple, (Loud(),))


def test_type_is():
    g = build(("type is", S0, dict))
    hits(g, {})
    misses(g, collections.OrderedDict(), text="type: expected class dict, got class collections.OrderedDict")
    mine = build(("type is", S0, Thing))
    hits(mine, Thing())
    misses(mine, type("Thing", (Thing,), {})())


def test_absent():
    g = build(("absent", item(S0, "k")), ("absent", attr(("slot", 1), "a")), ("absent", ("cell", ("slot", 2))))
    cell = types.CellType()
    d, o = {}, Thing()
    hits(g, d, o, cell)
    d["k"] = None
    misses(g, d, o, cell, text="was not there, now is None")
    del d["k"]
    hits(g, d, o, cell)
    o.a = 1
    misses(g, d, o, cell)
    del o.a
    cell.cell_contents = 3
    misses(g, d, o, cell)
    del cell.cell_contents
    hits(g, d, o, cell)
    misses(g, [], o, cell)  # not a dict: nothing can be said about its keys
    hits(build(("absent", S0)), UNBOUND)
    misses(build(("absent", S0)), 1)


def test_absent_where_there_is_no_dict():
    def f():
        pass

    g = build(("absent", item(("func_dict", S0), "k")), ("len", ("func_dict", S0), 0))
    hits(g, f)
    f.k = 1
    misses(g, f)
    misses(build(("absent", item(item(S0, "a"), "b"))), {})  # the base itself is gone
    misses(build(("len", item(S0, "a"), 0)), {})


@pytest.mark.parametrize(
    "container, other",
    [([1, 2], [1]), ((1, 2), (1, 2, 3)), ({1: 1, 2: 2}, {}), ({1, 2}, {1}), (collections.OrderedDict(a=1, b=2), {}), ("ab", "abc")],
)
def test_length(container, other):
    g = build(("len", S0, 2))
    hits(g, container)
    misses(g, other, text=f"length: expected 2, got {len(other)}")
    misses(g, 5)


def test_no_items():
    g = build(("no items", item(S0, "a")))
    empty, full = {}, {1: 1}
    hits(g, {"a": empty})
    hits(g, {"a": collections.OrderedDict()})
    misses(g, {"a": full}, text="was empty")
    misses(g, {"a": collections.defaultdict(list)})  # a subclass has a truth of its own
    misses(g, {"a": []})
    misses(g, {})
    holder = {"a": empty}
    hits(g, holder)
    empty[1] = 1  # the dict that holds it does not change
    misses(g, holder)


@pytest.mark.parametrize("dicts", [False, True])
def test_entries(dicts):
    def thing(**attributes):
        made = Thing(**attributes)
        return made if not dicts else vars(made) and made

    names = (("gone", "far"), ("kept", "more"))
    g = build(("entries", ("__dict__", S0), names), ("equals", attr(S0, "k"), 1), ("no items", attr(S0, "own")))
    good = {"kept": {}, "more": collections.OrderedDict(), "k": 1, "own": {}}
    hits(g, thing(**good))
    hits(g, thing(other=1, **good))
    for name, value, text in [
        ("gone", 1, "gone: was not there, now is 1"),
        ("far", None, "far: was not there"),
        ("kept", {1: 1}, "kept: was empty, now is dict object, length 1"),
        ("more", [], "more: was empty"),
        ("more", collections.defaultdict(list), "more: was empty"),  # a subclass has a truth of its own
        ("own", {1: 1}, "own: was empty"),
        ("k", 2, "k: expected 1, got 2"),
    ]:
        misses(g, thing(**{**good, name: value}), text=f"slot[0].{text}")
        changing = thing(**good)
        hits(g, changing)
        before = vars(changing).get(name) if dicts else getattr(changing, name, None)
        setattr(changing, name, value)
        misses(g, changing, text=f"slot[0].{text}")
        if name in good:
            setattr(changing, name, before)
        else:
            delattr(changing, name)
        hits(g, changing)
    for name in names[1]:
        misses(g, thing(**{k: v for k, v in good.items() if k != name}), text=f"slot[0].{name}: not there")
    kept = thing(**good)
    hits(g, kept)
    kept.more["x"] = 1  # the dict that holds it does not change
    misses(g, kept, text="more: was empty")
    del kept.more["x"]
    hits(g, kept)
    misses(g, 5)
    misses(g, {})
    lines = [line.split("  #")[0].strip() for line in g.describe()]
    assert [line for line in lines if "gone" in line or "more" in line] == ["slot[0].gone: absent", "slot[0].more: no items"]


def test_entries_of_a_dict_itself():
    g = build(("entries", S0, (("gone",), ("kept",))))
    hits(g, {"kept": {}})
    hits(g, collections.OrderedDict(kept={}))
    misses(g, {"kept": {}, "gone": 1}, text="gone")
    misses(g, {}, text="kept")
    misses(g, [], text="")
    hits(build(("entries", ("__dict__", S0), (("gone",), ()))), Thing())
    misses(build(("entries", item(S0, "a"), (("gone",), ()))), {})  # the base itself is gone
    misses(build(("entries", item(S0, "a"), (("gone",), ()))), {"a": 5})


def test_keys():
    g = build(("keys", S0, ("a", "b", 3)))
    d = {"a": 1, "b": 2, 3: 3}
    hits(g, d)
    d["a"] = 7
    hits(g, d)
    d["c"] = 1
    misses(g, d, text="in this order, got ['a', 'b', 3, 'c']")
    del d["c"]
    hits(g, d)
    del d["a"]
    d["a"] = 1
    misses(g, d)  # another order
    misses(g, {"a": 1, "b": 2, 3.0: 3})
    misses(g, [1])
    hits(build(("keys", S0, ())), {})


def test_keys_of_an_ordered_dict():
    d = collections.OrderedDict(a=1, b=2, c=3)
    g = build(("keys", S0, ("a", "b", "c")), ("equals", item(S0, "a"), 1))
    hits(g, d)
    d.move_to_end("a")  # the dict part does not notice
    misses(g, d)
    d.move_to_end("a", last=False)
    hits(g, d)
    moved = collections.OrderedDict(b=2, c=3, a=1)
    moved.move_to_end("a", last=False)
    hits(g, moved)

    class Loud(collections.OrderedDict):
        def __iter__(self):
            raise AssertionError("called")

    hits(g, Loud(a=1, b=2, c=3))


def test_keys_of_a_set():
    s = {1, 2, "x"}
    g = build(("keys", S0, tuple(s), 8))  # a copy has as many places as a set of so few items
    hits(g, s)
    s.add(5)
    misses(g, s)
    s.remove(5)
    s.discard(1)
    misses(g, s)


def test_same_and_different_object():
    same, different = build(("same object", S0, S1)), build(("different objects", S0, S1))
    a, b = Thing(), Thing()
    hits(same, a, a)
    misses(same, a, b, text="were one object")
    hits(different, a, b)
    misses(different, a, a, text="were two objects")
    deep = build(("same object", attr(S0, "x"), item(S1, "x")))
    o, d = Thing(x=a), {"x": a}
    hits(deep, o, d)
    o.x = b
    misses(deep, o, d)
    d["x"] = b
    hits(deep, o, d)


def test_int_symbols_and_relations():
    rows = [("int", S0, 0), ("int", S1, 1), ("shape", "s0", "==", "(s1*2)", {"where": "a.py:3"}), ("shape", "s1", "<", "100")]
    g = build(*rows, symbols=[(4, 2, 1000), (2, 0, 1000)])
    assert g.check(4, 2)[1] == (4, 2)
    assert g.check(20, 10)[1] == (20, 10)
    misses(g, 5, 2, text="(a.py:3)")
    misses(g, 0, 0, text="expected an int >= 2 and <= 1000, got 0")
    misses(g, 2000, 1000)
    misses(g, 200, 100)
    misses(g, True, 2)
    misses(g, 4.0, 2)
    misses(g, 2**80, 2)
    twice = build(("int", S0, 0), ("int", S1, 0), symbols=[(4, 0, 100)])
    hits(twice, 4, 4)
    misses(twice, 4, 5)


def test_a_relation_needs_its_symbols_bound():
    with pytest.raises(RuntimeError, match="no input binds"):
        build(("int", S0, 0), ("shape", "s0", "==", "s1"), symbols=[(1, 0, 9), (1, 0, 9)])


# --- keys and values of the user's own classes ---------------------------------------------------------------------------------


class Clashing:
    """Has the hash of another key; being compared would be Python code in the middle of a check."""

    def __init__(self, key):
        self.key = key

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        raise AssertionError("compared")


@pytest.mark.parametrize("key", ["k", 5, (1, 2), 2.5])
def test_lookups_never_compare_in_python(key):
    hostile = Clashing(key)
    d = {hostile: 0}
    absent, present = build(("absent", item(S0, key))), build(("equals", item(S0, key), 1))
    misses(absent, d)  # it might say that it is equal
    misses(present, d)
    hits(absent, {Clashing("elsewhere"): 0})
    own = build(("equals", item(S0, hostile), 0))
    hits(own, d)
    misses(own, {Clashing(key): 0})
    other = {key: 1}
    other[Clashing("elsewhere")] = 0
    hits(present, other)
    misses(absent, other)


def test_keys_never_compare_in_python():
    class Loud:
        def __eq__(self, other):
            raise AssertionError("called")

        __hash__ = object.__hash__

    k = Loud()
    g = build(("keys", S0, (k, "a")), ("equals", S1, frozenset({k, 1})))
    hits(g, {k: 1, "a": 2}, {1, k})
    misses(g, {Loud(): 1, "a": 2}, {1, k})
    misses(g, {k: 1, "a": 2}, {1, Loud()})


def test_a_dict_that_another_thread_changes():
    d = {"k": 1, "v": 1}
    g = build(("equals", item(S0, "k"), 1), inputs=[item(S0, "v")])
    stop = threading.Event()

    def change():
        i = 0
        while not stop.is_set():
            i += 1
            d["v"] = [i]
            d["k"] = 1 + i % 2
            d["k"] = 1

    t = threading.Thread(target=change)
    t.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        seen = {type(r) for r in (g.check(d) for _ in range(20000))}
    finally:
        sys.setswitchinterval(before)
        stop.set()
        t.join()
    assert tuple in seen
    hits(g, d)
    assert g.check(d)[0][0] is d["v"]


# --- reports ----------------------------------------------------------------------------------------------------------------------------


def test_explain_names_the_place():
    o = Thing(cfg=Thing(layers=[Thing(width=3)]))
    path = attr(("item", attr(attr(S0, "cfg"), "layers"), 0), "width")
    g = build(("equals", path, 3, {"where": "train.py:12"}), varnames=("self",))
    hits(g, o)
    o.cfg.layers[0].width = 4
    assert g.explain(o).startswith("L['self'].cfg.layers[0].width: expected 3, got 4 (train.py:12)")
    assert g.dynamic_ints(o) == ["slot[0].cfg.layers[0].width"]
    assert g.dynamic_ints(Thing()) == []


def test_module_paths_read_as_written():
    path = item(("__dict__", item(item(("__dict__", item(item(("__dict__", S0), "_modules"), "layers")), "_modules"), "3")), "training")
    g = build(("is", path, True), varnames=("self",))
    assert g.describe()[-1].strip() == "L['self'].layers[3].training: is True"


def test_describe_lists_every_guard_once():
    rows = [
        ("type is", S0, Thing),
        ("equals", attr(S0, "a"), 1),
        ("is", attr(S0, "b"), None),
        ("type is", attr(S0, "b"), type(None)),
        ("len", attr(S0, "c"), 2),
        ("keys", attr(S0, "d"), ("x", "y")),
        ("absent", attr(S0, "e")),
        ("same object", S0, S1),
        ("int", ("slot", 2), 0),
        ("shape", "s0", "<", "10"),
    ]
    g = build(*rows, *rows, symbols=[(1, 0, 100)])
    text = "\n".join(g.describe())
    for word in ("type is class Thing", "equals 1", "is None", "len 2", "keys ('x', 'y')", "absent", "same object", "int s0", "s0"):
        assert word in text, (word, text)
    for line in set(g.describe()):
        assert g.describe().count(line) == 1, line


def test_wrong_paths_are_refused():
    for path in [("slot",), ("nothing", S0), ("item", S0, -1), ("dict_item", S0)]:
        with pytest.raises((ValueError, RuntimeError)):
            build(("is", path, 1))


class _Plain:
    def __init__(self, scale):
        self.scale = scale


_Pair = collections.namedtuple("_Pair", "first second")


def test_copies_and_named_tuples_in_graphs():
    """Types that look different in each version of CPython."""
    np = pytest.importorskip("numpy")

    def f(x, plain, pair):
        other = copy.copy(plain)
        other.scale = pair.second
        return x * other.scale + plain.scale + pair.first

    compiled = framejit.compile(f, fullgraph=True)
    x = np.arange(5.0)
    for plain, pair in ((_Plain(2.0), _Pair(3.0, 4.0)), (_Plain(5.0), _Pair(6.0, 7.0))):
        assert np.array_equal(compiled(x, plain, pair), f(x, plain, pair))
        assert plain.scale in (2.0, 5.0)
