"""Guards: what changes behind a tag or watcher is seen, classes and functions that change, objects that die."""

import collections
import gc
import operator
import sys
import weakref

import pytest
from guards import S0, S1, Thing, attr, build, hits, item, misses


# --- what changes behind a tag --------------------------------------------------------------------------------------------------


def test_mutation_falls_back_and_stamps_again():
    d = {"k": 1, "other": 0}
    g = build(("equals", item(S0, "k"), 1), ("absent", item(S0, "no")))
    for i in range(50):  # past any back-off
        hits(g, d)
        d["other"] = i
        hits(g, d)
        d["k"] = 2
        misses(g, d)
        d["k"] = 1
        hits(g, d)
        d["no"] = 1
        misses(g, d)
        del d["no"]
    hits(g, d)


MUTATIONS = {
    "store": lambda d: d.__setitem__("k", 2),
    "delete": lambda d: d.__delitem__("k"),
    "pop": lambda d: d.pop("k"),
    "popitem": lambda d: d.popitem(),
    "clear": lambda d: d.clear(),
    "update": lambda d: d.update(k=2),
    "or": lambda d: operator.ior(d, {"k": 2}),
}


@pytest.mark.parametrize("how", MUTATIONS)
@pytest.mark.parametrize("make", [dict, collections.OrderedDict, lambda **kw: Thing(**kw).__dict__])
def test_every_mutation_is_seen(how, make):
    d = make(k=1)
    g = build(("equals", item(S0, "k"), 1))
    hits(g, d, times=5)
    MUTATIONS[how](d)
    misses(g, d)


def test_instance_stores_are_seen():
    """Specialised stores into inline values and into materialised dicts alike."""
    g = build(("equals", attr(S0, "x"), 1))

    class P:
        def __init__(self):
            self.x = 1
            self.y = 0

    def store(o, v):
        o.x = v

    p = P()
    for _ in range(100):
        store(P(), 3)  # let the interpreter specialise
    for _ in range(20):
        store(p, 1)
        hits(g, p, times=5)
        store(p, 2)
        misses(g, p)
    store(p, 1)
    hits(g, p)
    p.__dict__["x"] = 5
    misses(g, p)
    p.__dict__["x"] = 1
    hits(g, p)
    setattr(p, "x", 2)
    misses(g, p)
    p.__dict__ = {"x": 1}
    hits(g, p)
    for _ in range(100):
        store(p, 1)
    hits(g, p, times=5)
    store(p, 2)
    misses(g, p)
    p.__dict__ = {"x": 2}
    misses(g, p)
    p.__dict__ = {}
    misses(g, p)


def test_replaced_dict_and_object_addresses_reused():
    g = build(("equals", attr(S0, "x"), 1), ("type is", S0, Thing))
    for i in range(300):
        o = Thing(x=i % 2)
        assert (g.check(o) is not None) == (i % 2 == 1)
        assert (g.check(o) is not None) == (i % 2 == 1)
        del o


def test_dicts_that_come_and_go():
    g = build(("equals", item(S0, "k"), 1))
    for i in range(300):
        d = {"k": i % 3}
        for _ in range(3):
            assert (g.check(d) is not None) == (i % 3 == 1)
        del d


def test_alternating_objects_do_not_mix():
    """Stamps and remembered values belong together, also after a check that failed half way."""
    v, w = Thing(n=1), Thing(n=1)
    a, b, c = Thing(p=v, q=v), Thing(p=w, q=w), Thing(p=w, q=1)
    g = build(("equals", attr(attr(S0, "p"), "n"), 1), ("type is", attr(S0, "q"), Thing), inputs=[attr(S0, "p"), attr(S0, "q")])
    for _ in range(20):
        hits(g, a)
        assert g.check(a)[0] == (v, v)
        misses(g, c)
        assert g.check(a)[0] == (v, v)
        assert g.check(b)[0] == (w, w)
        assert g.check(a)[0] == (v, v)


def test_deeper_dict_below_a_fresh_one():
    inner = Thing(x=1)
    outer = Thing(inner=inner)
    g = build(("equals", attr(attr(S0, "inner"), "x"), 1))
    hits(g, outer, times=5)
    inner.x = 2  # outer's dict did not change
    misses(g, outer)
    outer.inner = Thing(x=1)
    hits(g, outer)


def test_class_assignment_below_a_fresh_dict():
    class Other(Thing):
        pass

    inner = Thing()
    outer = Thing(inner=inner)
    g = build(("type is", attr(S0, "inner"), Thing))
    hits(g, outer, times=5)
    inner.__class__ = Other
    misses(g, outer)
    inner.__class__ = Thing
    hits(g, outer)


def test_list_below_a_fresh_dict():
    o = Thing(items=[1, 2])
    g = build(("len", attr(S0, "items"), 2), ("equals", ("item", attr(S0, "items"), 0), 1))
    hits(g, o, times=5)
    o.items.append(3)
    misses(g, o)
    o.items.pop()
    o.items[0] = 9
    misses(g, o)


def test_globals_with_unrelated_stores():
    globals_ = {"__name__": "user", "k": 1, "step": 0}
    g = build(("equals", item(("const", globals_), "k"), 1))
    for i in range(1000):
        globals_["step"] = i
        assert g.check() is not None
    globals_["k"] = 2
    misses(g, text="user.k: expected 1, got 2")


# --- types, functions ---------------------------------------------------------------------------------------------------------------


def fresh_class():
    class Base:
        def inherited(self):
            pass

    class C(Base):
        x = 1

        def m(self):
            pass

    return Base, C


def test_type_version():
    base, c = fresh_class()
    g = build(("type version", ("type", S0), c))
    o = c()
    hits(g, o)
    old = c.m
    c.m = lambda self: 1
    misses(g, o, text="the class, or one of its bases, was changed")
    c.m = old  # back as it was: holds again
    hits(g, o)
    old = base.inherited
    base.inherited = lambda self: 2
    misses(g, o)
    base.inherited = old
    hits(g, o)
    c.added = 1
    misses(g, o)
    del c.added
    hits(g, o)
    c.__bases__ = (type("Other", (base,), {}),)
    misses(g, o)
    misses(g, base())


def test_type_version_of_one_attribute():
    base, c = fresh_class()
    g = build(("type version", ("const", c), c, "m"), ("type version", ("const", c), c, "missing"))
    hits(g)
    c.x = 5  # not ours
    hits(g)
    c.missing = 1
    misses(g)
    del c.missing
    hits(g)
    base.m = 1  # hidden by c.m
    hits(g)
    c.m = lambda self: 1
    misses(g)


def test_type_version_when_tags_run_out():
    """3.13 gives a class at most 1000 version tags; after that only the slow comparison is left."""
    _, c = fresh_class()
    g = build(("type version", ("const", c), c))
    for i in range(1100):
        c.x = i
        c().x
    misses(g)
    c.x = 1
    hits(g)
    g = build(("type version", ("const", c), c))
    hits(g)
    c.x = 3
    misses(g)


def test_metaclass_change():
    class Meta(type):
        def hook(cls):
            pass

    class C(metaclass=Meta):
        pass

    g = build(("type is", S0, Meta), ("type version", ("type", S0), Meta))
    hits(g, C)
    Meta.hook = None
    misses(g, C)


def test_function():
    def f(a, b=[1], *, k=1, l="x"):
        return a

    def other(a, b=None, *, k=1, l="x"):
        return b

    g = build(("function", S0, f))
    hits(g, f)
    misses(g, other, text="code changed")
    misses(g, len)
    code, defaults, kwdefaults = f.__code__, f.__defaults__, f.__kwdefaults__
    f.__code__ = other.__code__
    misses(g, f)
    f.__code__ = code
    hits(g, f)
    f.__defaults__ = ([1],)  # another list, which may be written to apart
    misses(g, f, text="defaults changed")
    f.__defaults__ = defaults
    hits(g, f)
    f.__kwdefaults__["k"] = 2
    misses(g, f)
    f.__kwdefaults__["k"] = 1
    hits(g, f)
    f.__kwdefaults__ = {"k": 1, "l": "x"}
    hits(g, f)
    f.__kwdefaults__ = None
    misses(g, f)
    f.__kwdefaults__ = kwdefaults
    hits(g, f)


def test_function_made_anew():
    def make(scale):
        return lambda x, s=1: x * scale * s

    g = build(("function", S0, make(1)), ("equals", ("cell", ("closure", S0, 0)), 3))
    hits(g, make(3))
    misses(g, make(4), text="cell_contents: expected 3, got 4")


def test_closure_cell_rebound():
    x = 1

    def f():
        return x

    def rebind(v):
        nonlocal x
        x = v

    g = build(("equals", ("cell", ("closure", S0, 0)), 1))
    hits(g, f)
    rebind(2)
    misses(g, f)
    rebind(1)
    hits(g, f)


# --- lifetime -------------------------------------------------------------------------------------------------------------------------


def test_identity_guards_keep_nothing_alive():
    o = Thing()
    alive = weakref.ref(o)
    g = build(("is", S0, o), ("equals", attr(("const", o), "x"), 1))
    o.x = 1
    hits(g, o)
    assert not g.dead()
    del o
    gc.collect()
    assert alive() is None
    assert g.dead()
    misses(g, Thing(x=1), text="no longer exists")
    misses(g, None)
    g.describe()


def test_dead_object_and_a_new_one_at_its_address():
    for _ in range(200):
        o = Thing(x=1)
        g = build(("is", S0, o))
        del o
        assert g.check(Thing(x=1)) is None


def test_a_dead_type():
    t = type("T", (), {})
    g = build(("type is", S0, t))
    hits(g, t())
    del t
    gc.collect()
    assert g.dead()
    misses(g, type("T", (), {})())


def test_references_are_balanced():
    key, value, d = "some key" * 2, Thing(), {}
    d[key] = value
    d["n"] = 12345678

    def f(a=value, *, k=value):
        pass

    before = [sys.getrefcount(x) for x in (key, value, d, f, f.__code__, f.__defaults__)]

    def once():
        g = build(
            ("is", item(S0, key), value),
            ("equals", item(S0, "n"), 12345678),
            ("keys", S0, (key, "n")),
            ("function", S1, f),
            ("type is", item(S0, key), Thing),
            ("equals", S0, d),
            inputs=[item(S0, key)],
        )
        for _ in range(4):
            assert g.check(d, f) is not None
            assert g.check({}, f) is None
            g.explain({}, f)
            g.describe()
            g.resolve(0, d, f)

    once()
    for _ in range(50):
        once()
    gc.collect()
    assert [sys.getrefcount(x) for x in (key, value, d, f, f.__code__, f.__defaults__)] == before


def test_no_growth():
    """Builds, stamps and drops sets over fresh dicts; the number of live objects must not grow."""
    def once():
        o = Thing(x=1, d={"k": [1]})
        g = build(("equals", attr(S0, "x"), 1), ("len", item(attr(S0, "d"), "k"), 1), ("type version", ("type", S0), Thing))
        for _ in range(5):
            assert g.check(o) is not None
        o.x = 2
        assert g.check(o) is None

    for _ in range(20):
        once()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(500):
        once()
    gc.collect()
    assert sys.getallocatedblocks() - before < 100


def test_traverse_reports_what_is_held():
    def f(a=[1]):
        pass

    key, value, d = "key" * 3, Thing(), {}
    g = build(("is", item(S0, key), value), ("function", S1, f), ("keys", ("const", d), ()), ("equals", ("slot", 2), (1, 2.5)))
    held = g.referents()
    for o in (key, f.__code__, f.__defaults__[0], d):
        assert sum(x is o for x in held) >= 1
    assert not any(x is value or x is f for x in held)  # weakly
    assert any(isinstance(x, weakref.ref) and x() is value for x in held)


def test_set_dies_before_and_after_its_dict():
    d = {"k": 1}
    g, h = build(("equals", item(S0, "k"), 1)), build(("equals", item(S0, "k"), 1))
    hits(g, d)
    hits(h, d)
    del g
    d["k"] = 2
    misses(h, d)
    d["k"] = 1
    hits(h, d)
    del d
    hits(h, {"k": 1})


# --- a dict that is looked up with one key --------------------------------------------------------------------------------------


class Pretender:
    """As a key it is found where `of` is looked for."""

    def __init__(self, of):
        self.of = of

    def __hash__(self):
        return hash(self.of)

    def __eq__(self, other):
        return other is self.of


def sorter():  # a function as a key
    pass


@pytest.mark.parametrize("key", [int, 3, "name", sorter], ids=["type", "integer", "text", "function"])
@pytest.mark.parametrize("way", ["item", "get", "contains"])
def test_a_constant_key_is_guarded_alone(fresh, torch, key, way):
    table = {float: 1.0, len: 3.0, key: 2.0}
    others = iter([bool, dict, "x", 7])

    def f(x):
        if way == "contains":
            return x + 1 if key in table else x - 1
        return x + (table[key] if way == "item" and key in table else table.get(key, 9.0))

    compiled, x = fresh.compile(f), torch.zeros(2)

    def step(same=False):
        before = compiled.cache_info()["segments"]
        assert torch.equal(compiled(x), f(x))
        assert compiled.cache_info()["segments"] == before or not same

    step()
    table[next(others)] = 5.0  # another key
    step(same=True)
    table[key] = 4.0
    step()
    table[next(others)] = 5.0
    del table[float]
    step(same=True)
    del table[key]
    step()
    assert torch.equal(compiled(x), x - 1 if way == "contains" else x + 9)
    table[next(others)] = 5.0
    step(same=True)
    if isinstance(key, type):
        table[Pretender(key)] = 6.0
        step()
        assert torch.equal(compiled(x), x + 1 if way == "contains" else x + 6)
        table.clear()
        step()
    table[key] = 8.0
    step()


def test_a_key_that_is_another_type_the_next_time(fresh, torch):
    table = {int: 1.0, float: 2.0}

    def f(x, k):
        return x * table.get(type(k), -1.0)

    compiled, x = fresh.compile(f), torch.ones(2)
    for k in (1, 1.5, "a", 1, None, 2.5):
        assert torch.equal(compiled(x, k), f(x, k))
    table[str] = 7.0
    for k in ("a", 1):
        assert torch.equal(compiled(x, k), f(x, k))


SCALE = "def scale(v):\n    return v * K\n"


def namespaces():
    code = compile(SCALE, "<scale>", "exec")
    spaces = [{"K": k} for k in (2, 3, 2.5, 7)]
    for space in spaces:
        exec(code, space)  # noqa: S102
    return [space["scale"] for space in spaces]


def test_one_code_in_several_namespaces(fresh, torch):
    x = torch.ones(3)
    functions = namespaces()
    for _ in range(4):
        for f in functions:
            compiled = fresh.compile(f)
            assert torch.equal(compiled(x), x * f.__globals__["K"])
    assert all(fresh.compile(f).cache_info()["outcomes"]["run"]["graph"] > 0 for f in functions)


def test_a_callee_with_other_globals_is_compiled(fresh, torch):
    code = compile("def f(x):\n    y = x.sin() * K\n    sys.getrefcount(x)\n    return (y + K).cos()", "callee", "exec")
    functions = []
    for k in (2.0, 3.0, 5.0):
        space = {"K": k, "sys": sys}
        exec(code, space)
        functions.append(space["f"])

    def root(f, x):
        return f(x) * 2

    x = torch.ones(3)
    with fresh.config.patch(leave=False):
        compiled = fresh.compile(root)
        for call in range(3):
            for f in functions:
                assert torch.allclose(compiled(f, x), root(f, x))
        before = compiled.cache_info()
        for f in functions:
            compiled(f, x)
        after = compiled.cache_info()
        assert after["outcomes"]["run"]["graph"] - before["outcomes"]["run"]["graph"] == 9  # the callee's two parts, and the caller's end
        assert after["captures"] == before["captures"]
        functions[1].__globals__["K"] = 7.0
        assert torch.allclose(compiled(functions[1], x), root(functions[1], x))


def test_namespaces_without_end_run_in_python(fresh, torch):
    code = compile("def f(x):\n    y = x.sin() * K\n    sys.getrefcount(x)\n    return (y + K).cos()", "callee", "exec")

    def root(f, x):
        return f(x) * 2

    compiled, x = fresh.compile(root), torch.ones(3)
    for k in range(200):
        space = {"K": k, "sys": sys}
        exec(code, space)
        assert torch.allclose(compiled(space["f"], x), root(space["f"], x))
    assert compiled.cache_info()["captures"] < 60


@pytest.mark.parametrize("scalar_loops", [True, False])
def test_a_callee_with_the_code_of_another_namespace(fresh, torch, scalar_loops):
    def total(f, x):
        s = 0.0
        for i in range(len(x)):
            s += f(x[i])
        return s

    x = torch.ones(60, dtype=torch.float64).numpy()
    with fresh.config.patch(scalar_loops=scalar_loops):
        compiled = fresh.compile(total)
        for f in namespaces() + namespaces()[::-1]:
            for _ in range(3):
                assert compiled(f, x) == 60 * f.__globals__["K"]
