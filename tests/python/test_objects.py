"""Objects that change between calls, of many kinds: whatever the program asks of them is asked again. Two names that held two objects
may hold one in the next call."""

# ruff: noqa
import collections
import collections.abc
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import numbers
import operator
import os
import pathlib
import random
import re
import sys
import types
import typing
import weakref

import pytest

import framejit

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


class Plain:
    kind = 1

    def __init__(self, n):
        self.n = n

    def method(self):
        "first"
        return self.n

    @classmethod
    def of_class(cls):
        return cls.__name__

    @property
    def shown(self):
        return self.n


class Derived(Plain):
    kind = 2

    def method(self):
        return self.n + 1


class ByValue(Plain):
    def __eq__(self, other):
        return self.n == other.n

    def __hash__(self):
        return hash(self.n)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class SlottedMore(Slotted):
    pass


class Number(enum.IntEnum):
    ONE, TWO, THREE = 1, 2, 3


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: str = "q"


def made(n):
    def f(x, y=n, *, z=n):
        return n

    f.__name__, f.attribute = f"f{n}", n
    return f


HELD = [Plain(i) for i in range(3)]
KINDS = {
    "plain": [Plain(1), Plain(2), Derived(2)],
    "by value": [ByValue(1), ByValue(2), ByValue(1)],
    "method": [Plain(1).method, Plain(2).method, Derived(3).method],
    "class method": [Plain.of_class, Derived.of_class, Plain.of_class],
    "function": [made(1), made(2), functools.wraps(made(3))(lambda *a: 1), len],
    "partial": [functools.partial(made(1), 1), functools.partial(made(2), 2, z=3)],
    "slots": [Slotted(1, 2), Slotted(2, 2), SlottedMore("a", None)],
    "enum": list(Number),
    "named tuple": [Pair(1, 2), Pair(1, 3), Pair(2, "a")],
    "frozen": [Frozen(1), Frozen(2), Frozen(1, "z")],
    "tuple": [(HELD[0],), (HELD[1],), (HELD[0], 1)],
    "deque": [collections.deque([1, 2]), collections.deque([2, 1], maxlen=5)],
    "mapping": [collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1), collections.ChainMap({"a": 1}, {"b": 2})],
    "default": [collections.defaultdict(int, a=1), collections.defaultdict(list, a=1), collections.Counter("aab")],
    "frozenset": [frozenset({1, 2}), frozenset({1, 3})],
    "set": [{1, 2}, {1, 3}],
    "view": [{"a": 1}.items(), {"a": 2}.items(), {"a": 2}.keys()],
    "match": [re.match("(a+)(b)", "aab"), re.match("(a+)(b)", "ab"), re.compile("a")],
    "time": [datetime.timedelta(1), datetime.date(2020, 1, 1), datetime.timezone.utc, datetime.timezone(datetime.timedelta(hours=1))],
    "decimal": [decimal.Decimal("1.5"), decimal.Decimal("2.5"), fractions.Fraction(1, 2)],
    "path": [pathlib.PurePosixPath("/a/b.c"), pathlib.PurePosixPath("/c/d")],
    "weak": [weakref.ref(h) for h in HELD],
    "variable": [contextvars.ContextVar(f"v{i}", default=i) for i in range(3)],
    "signature": [inspect.signature(made(1)), inspect.signature(lambda a, b: 1)],
    "hint": [list[int], dict[str, int], int | None, str | None],
    "cell": [types.CellType(1), types.CellType(2)],
    "class": [Plain, Derived, int],
    "tensor": [torch.ones(2), torch.zeros(2)],
    "namespace": [types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)],
    "iterator": None,
}
QUESTIONS = {
    "len": lambda o, y: (len(o), y + 1)[0],
    "truth": lambda o, y: (1 if o else 0, y + 1)[0],
    "list": lambda o, y: (list(o), y + 1)[0],
    "unpacked": lambda o, y: ([*o], y + 1)[0],
    "arguments": lambda o, y: ((lambda *a: a)(*o), y + 1)[0],
    "two": lambda o, y: ([(a, b) for a, b in [o]], y + 1)[0],
    "keywords": lambda o, y: (dict(**o), y + 1)[0],
    "first": lambda o, y: (o[0], y + 1)[0],
    "item a": lambda o, y: (o["a"], y + 1)[0],
    "one in": lambda o, y: (1 in o, "a" in o, y + 1)[:2],
    "index": lambda o, y: ([5, 6, 7, 8][o], y + 1)[0],
    "slice": lambda o, y: ([5, 6, 7, 8][:o], y + 1)[0],
    "called": lambda o, y: (o(), y + 1)[0],
    "equal": lambda o, y: (o == FIRST[0], o != FIRST[0], y + 1)[:2],
    "same": lambda o, y: (o is FIRST[0], y + 1)[0],
    "hash": lambda o, y: (hash(o) == hash(FIRST[0]), y + 1)[0],
    "key": lambda o, y: ({o: 1}.get(FIRST[0]), y + 1)[0],
    "among": lambda o, y: (o in list(FIRST), y + 1)[0],
    "sum": lambda o, y: (o + o, y + 1)[0],
    "text": lambda o, y: (f"{o}", y + 1)[0],
    "returned": lambda o, y: ([o, {"k": o}], y + 1)[0],
}
FIRST = [None]


def shown(value, depth=0):
    if isinstance(value, (list, tuple)) and depth < 3:
        return type(value).__name__, [shown(v, depth + 1) for v in value]
    return type(value).__name__, re.sub(" at 0x[0-9a-f]+", "", repr(value))


def asked(f, *arguments):
    try:
        return shown(f(*arguments))
    except Exception as error:
        return "raises", type(error).__name__, re.sub("0x[0-9a-f]+", "", str(error))[:80]


def kinds(name):
    return [iter([1, 2]), iter([3, 4])] if name == "iterator" else KINDS[name]


LATELY = "__name__ __doc__ __module__ __qualname__ __self__ __func__ __wrapped__ __defaults__ __kwdefaults__ __closure__ __args__ __class__".split()
NOT = "clear pop popitem popleft detach set append appendleft add update setdefault now today utcnow rotate reverse extend extendleft".split()


@pytest.mark.parametrize("name", [k for k in KINDS if k != "tensor"])
def test_whatever_is_asked_of_an_object(name):
    objects = kinds(name)
    FIRST[0] = objects[0]
    questions = dict(QUESTIONS)
    for attribute in sorted(set().union(*map(dir, objects))):
        if (attribute.startswith("_") and attribute not in LATELY) or attribute in NOT:
            continue
        questions["." + attribute] = lambda o, y, a=attribute: ((getattr(o, a), getattr(o, a, 0))[0] if not callable(getattr(o, a)) else 0, y + 1)[0]
        questions[f".{attribute}()"] = lambda o, y, a=attribute: (getattr(o, a)(), y + 1)[0]
    x = torch.ones(1)
    for what, f in questions.items():
        framejit.reset()
        compiled = framejit.compile(f)
        if name == "iterator":
            assert [asked(compiled, o, x) for o in kinds(name)] == [asked(f, o, x) for o in kinds(name)], what
            continue
        expected = [asked(f, o, x) for o in objects]
        for o, e in list(zip(objects, expected)) * 2:
            assert asked(compiled, o, x) == e, (what, o)


TABLE = {}
RELATIONS = {
    "map": lambda a, b, y: ({a: 1, b: 2}[a], len({a: 1, b: 2}), y + 1)[:2],
    "set": lambda a, b, y: (a in {b}, len({a, b}), len(set([a, b])), len({a} - {b}), y + 1)[:4],
    "list": lambda a, b, y: (a in [b], a in (b,), [b, a].index(a), [a, b, a].count(b), y + 1)[:4],
    "equal": lambda a, b, y: (a == b, a != b, a is b, y + 1)[:3],
    "containers": lambda a, b, y: ((a, 1) == (b, 1), [a] == [b], {"k": a} == {"k": b}, y + 1)[:3],
    "keys": lambda a, b, y: (len(dict.fromkeys([a, b])), {(a, 1): 1}.get((b, 1)), len(collections.Counter([a, b])), y + 1)[:3],
    "comprehensions": lambda a, b, y: (len({z for z in (a, b)}), len({z: 1 for z in (a, b)}), y + 1)[:2],
    "filled": lambda a, b, y: ((lambda d: (d.__setitem__(a, 1), d.__setitem__(b, 2), len(d))[2])({}), collections.deque([a]).count(b), y + 1)[:2],
    "removed": lambda a, b, y: ((lambda l: (l.remove(a), len(l), l[0] is b)[1:])([b, a]), y + 1)[0],
    "outside": lambda a, b, y: (TABLE.get(a, 0), b in TABLE, y + 1)[:2],
    "hash": lambda a, b, y: (hash(a) == hash(b), id(a) == id(b), y + 1)[:2],
}


def test_attributes_of_tensors_hide_methods():
    def f(x):
        return x.t, x.own, x + 1

    x, y = torch.ones(2), torch.zeros(2)
    x.t, x.own, y.t, y.own = 1, 2, 3, 4
    compiled = framejit.compile(f)
    for a in (x, y, x):
        assert compiled(a)[:2] == f(a)[:2]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", ["tensor", "plain", "by value", "method", "function", "enum", "tuple", "frozenset", "class", "slots"])
def test_two_names_may_hold_one_object(name, relation):
    p, q, *_, r = KINDS[name] + [KINDS[name][-1]]
    TABLE.clear()
    TABLE[p] = 5
    f = RELATIONS[relation]
    compiled = framejit.compile(f)
    for a, b in [(p, q), (p, p), (q, p), (q, q), (p, r), (r, p), (p, q)]:
        assert asked(compiled, a, b, torch.ones(1)) == asked(f, a, b, torch.ones(1)), (a, b)


def test_objects_with_slots_are_made_again():
    class Node(Slotted):
        __slots__ = ("value", "missing")

    def f(x):
        node = Node(x * 2, [x])
        node.value = x + 1
        return node

    assert framejit.explain(f)(torch.ones(2)).graph_break_count == 0
    compiled = framejit.compile(f)
    for _ in range(3):
        node = compiled(torch.ones(2))
        assert node.a.tolist() == [2, 2] == node.value.tolist() and node.b[0].tolist() == [1, 1] and not hasattr(node, "missing")


def test_what_can_only_be_written_does_not_hide_the_objects_own():
    class Noted:
        def __set__(self, o, value):
            vars(o)["kept"] = value
            vars(o)["count"] = vars(o).get("count", 0) + 1

    class Meta(type):
        size = Noted()

    class Graph(metaclass=Meta):
        kept = Noted()
        size = 3

    graph = Graph()
    graph.kept = {0: 2.0}

    def f(x):
        return x * graph.kept[0] if 0 in graph.kept else x - 1

    def g(x):
        own = Graph()
        own.kept = {0: x}
        return own.kept[0] + own.count + Graph.size

    x = torch.ones(2)
    for program in (f, g):
        compiled = framejit.compile(program)
        told = framejit.explain(program)(x)
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        assert torch.equal(compiled(x), program(x)) and torch.equal(compiled(x), program(x))
    compiled = framejit.compile(f)
    compiled(x)
    graph.kept = {}
    assert torch.equal(compiled(x), f(x))
    graph.kept = {0: 5.0}
    Noted.__get__ = lambda self, o, cls: {0: 7.0}
    assert torch.equal(compiled(x), f(x)) and f(x)[0] == 7


def test_arguments_of_many_types(fresh):
    """One function is given a container of every kind in turn."""
    from torch.utils import _pytree

    Pair = collections.namedtuple("Pair", "a b")
    x = torch.arange(3.0)
    given = [x, [x], (x, 2), {"a": x, "b": (x, [x])}, Pair(x, {"c": x}), collections.OrderedDict(b=x, a=[x]), collections.defaultdict(list, a=[x]), [], {}, (), None, 3, 2.5,
             "text", [x, None, 1], {1: x, "1": x}, collections.deque([x]), (((x,),),), Pair([x], (x, {"d": x})), {"a": {"b": {"c": [x, 1.5]}}}]  # fmt: skip

    def f(tree):
        leaves, spec = _pytree.tree_flatten(tree)
        return _pytree.tree_unflatten([t * 2 + 1 if isinstance(t, torch.Tensor) else t for t in leaves], spec), len(leaves)

    def g(tree):
        return [t * 2 if isinstance(t, torch.Tensor) else t for t in (tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else [tree])]

    for program in (f, g):
        compiled = fresh.compile(program)
        for call in range(3):
            for tree in random.Random(call).sample(given, len(given)):
                assert shown(compiled(tree)) == shown(program(tree))


SEEN = {
    "an exception of a callee": ("try: twice(x, n)\n except ValueError as e: return x * 2, e", "frames"),
    "an exception of its own": ("y = x + 1\n try: raise KeyError(n)\n except KeyError as e: kept = e\n return y * 2, kept", "frames"),
    "locals": ("y = x + 1\n return y, dict(locals())", "types"),
    "a closure": ("y = x + 1\n def inner(): return x, n, y\n return y * 2, inner", "cells"),
    "a generator": ("y = x + 1\n return y * 2, (v for v in [x, y, n])", "types"),
    "its frame": ("y = x * 2\n return y, sys._getframe().f_locals.copy()", "types"),
}


@pytest.mark.parametrize("name", SEEN)
def test_no_stand_in_is_seen(name, fresh):
    """Capture runs the function with stand-ins of what it was given: whatever is left of that run holds the real ones."""
    body, how = SEEN[name]
    space = {"sys": sys, "torch": torch}
    exec(f"def twice(x, n):\n y = x * 2\n raise ValueError(n)\ndef f(x, n):\n {body}", space)

    def frames(error):
        entry, found = error.__traceback__, []
        while entry:
            if entry.tb_frame.f_code.co_filename == "<string>":
                found.append((entry.tb_lineno, {k: type(v) for k, v in entry.tb_frame.f_locals.items()}))
            entry = entry.tb_next
        return found

    look = {
        "frames": frames,
        "types": lambda v: {k: type(x) for k, x in v.items()} if isinstance(v, dict) else [type(x) for x in v],
        "cells": lambda v: [type(c.cell_contents) for c in v.__closure__],
    }[how]
    compiled = fresh.compile(space["f"])
    for _ in range(3):
        (got, left), (want, expected) = (f(torch.ones(3), 3) for f in (compiled, space["f"]))
        assert torch.equal(got, want) and look(left) == look(expected)


def test_classes_that_c_code_asks_for():
    def f(x, xs):
        kinds = tuple(map(type, xs))
        return x + 1, [t.__name__ for t in map(type, (x, x.shape[0]))], len({*map(type, [x, x + 1])}), kinds[0] is type(x), kinds

    compiled = framejit.compile(f, fullgraph=True)
    for n in (2, 3, 4):
        x = torch.ones(n)
        got, expected = compiled(x, [x, 1, "a"]), f(x, [x, 1, "a"])
        assert torch.equal(got[0], expected[0]) and got[1:] == expected[1:]


@pytest.mark.parametrize("read", [False, True])
def test_what_an_attribute_of_a_class_was_dies_when_it_is_replaced(fresh, read):
    class Told:
        def __init__(self, log, number):
            self.log, self.number = log, number

        def __del__(self):
            self.log.append(self.number)

    class Owner:
        told = None
        factor = 2

    def f(x, log, told):
        Owner.told = told
        return x * Owner.factor if read else x * 2

    def run(g):
        Owner.told, log = None, []
        for i in range(12):
            g(torch.ones(1), log, Told(log, i))
            log.append(f"end {i}")
        Owner.told = None
        return log

    compiled = fresh.compile(f)
    assert run(compiled) == run(f)
    assert compiled.cache_info()["outcomes"]["run"]["graph"] > 0


def test_a_returned_function_says_what_it_was_made_to_say(fresh):
    def f(x, n):
        x + 1

        def g(a: int, b: n = 2) -> "text":
            "says so"

        g.__module__ = "elsewhere"
        g.__name__ = "h"
        g.kept = n
        return g

    compiled = fresh.compile(f)
    for n in (1, 2, 1):
        ours, eager = compiled(torch.ones(2), n), f(torch.ones(2), n)
        for name in ("__annotations__", "__doc__", "__module__", "__name__", "__qualname__", "__defaults__", "__dict__"):
            assert getattr(ours, name) == getattr(eager, name)
    e = fresh.explain(f)(torch.ones(2), 1)
    assert (e.graph_count, e.graph_break_count) == (1, 0)


ABSTRACT = [getattr(collections.abc, n) for n in collections.abc.__all__ if n != "ByteString"]
NUMBERS = [getattr(numbers, n) for n in numbers.__all__]
OF_TYPING = [typing.Hashable, typing.Sized, typing.Iterable, typing.Sequence, typing.SupportsFloat, typing.SupportsIndex, typing.SupportsAbs, typing.SupportsBytes, typing.SupportsRound, typing.SupportsComplex, typing.SupportsInt]
ABSTRACT_KINDS = (*ABSTRACT, *NUMBERS, *OF_TYPING, os.PathLike, (str, collections.abc.Sized), int | collections.abc.Iterable)


def test_abstract_classes_ask_what_a_value_is():
    np = pytest.importorskip("numpy")

    def f(x, kinds):
        y, z = x * 2, x.sum()
        return [isinstance(v, k) for v in (x, y, z, x.shape, x.shape[0], float(z)) for k in kinds], y

    for x in (np.ones(3), np.ones((2, 2), "f4"), np.float64(3)):
        if not x.ndim:
            f = lambda x, kinds: ([isinstance(v, k) for v in (x, x * 2, x.shape) for k in kinds], x + 1)  # noqa: E731
        compiled = framejit.compile(f)
        for _ in range(3):
            assert compiled(x, ABSTRACT_KINDS)[0] == f(x, ABSTRACT_KINDS)[0]


def test_abstract_classes_ask_what_a_tensor_is():
    def f(x, n, kinds):
        return [isinstance(v, k) for v in (x, x * 2, n, n / 2, x.sum().item(), x.shape) for k in kinds], x + n

    compiled = framejit.compile(f, dynamic=True)
    for n in (3, 5, 7):
        x = torch.ones(n)
        assert compiled(x, n, ABSTRACT_KINDS)[0] == f(x, n, ABSTRACT_KINDS)[0]


def test_patterns_and_branches_by_abstract_classes():
    np = pytest.importorskip("numpy")

    def f(x):
        total = x.sum()
        match total:
            case collections.abc.Iterable():
                return list(total), x + 1
            case collections.abc.Hashable():
                return "one number", x * 2

    x = np.arange(3.0)
    compiled = framejit.compile(f)
    for _ in range(3):
        (kind, y), (expected, z) = compiled(x), f(x)
        assert kind == expected == "one number" and np.array_equal(y, z)
    told = framejit.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


class Holder:
    pass


def stored(holder):
    def f(x, t):
        holder.given = t
        return x * 2, holder.given

    return f


def found(t, how):
    if how == "attribute":
        holder = Holder()
        holder.given = t
        return holder
    return {"dict": {"given": t}, "list": [t], "tuple": (t,)}.get(how, t)


TUPLES = {
    "argument": lambda x, t: (x * 2, t),
    "read": lambda x, t: (x * t[0] + len(t), t),
    "attribute": lambda x, o: (x * 2, o.given),
    "dict": lambda x, d: (x * 2, d["given"]),
    "list": lambda x, a: (x * 2, a[0]),
    "tuple": lambda x, a: (x * 2, a[0]),
    "in a list": lambda x, t: (x * 2, [t][0]),
    "stored": stored(Holder()),
}


@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("name", TUPLES)
def test_a_tuple_from_outside_is_the_object_of_this_call(name, changing):
    f = TUPLES[name]
    compiled = framejit.compile(f)
    for i in range(6):
        t = tuple([i if changing else 3, 2.5, "a"])
        y, given = compiled(torch.ones(2), found(t, name))
        assert given is t and y.tolist() == f(torch.ones(2), found(t, name))[0].tolist()
    info = framejit.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"]["graph"] >= 3


def test_a_tuple_from_outside_behind_a_break():
    def f(x, t):
        y = x * t[0]
        print(end="")
        return y + 1, t

    compiled = framejit.compile(f)
    for _ in range(4):
        t = tuple([2, 2.5])
        assert compiled(torch.ones(2), t)[1] is t


SETS = {
    "of a literal": lambda s: {1, 9, 17, -1},
    "spread": lambda s: {*s, 33},
    "of a dict": lambda s: {*dict.fromkeys(s), 5},
    "a copy": lambda s: s.copy(),
    "a set": set,
    "a frozenset": frozenset,
    "both": lambda s: s & {1, 9, 17, -1},
    "either": lambda s: s | {100},
    "without": lambda s: s - {17},
    "copied and added to": lambda s: (t := set(s), t.add(33), t.add(65))[0],
    "copied and taken from": lambda s: (t := s.copy(), t.discard(1), t.add(25))[0],
    "filled": lambda s: (t := set(), [t.add(v) for v in (17, 1, 33, 9)])[0],
}


@pytest.mark.parametrize("name", SETS)
def test_order_of_sets(fresh, name):
    """It depends on the number of places that a set has for its items, and that on how it was made."""
    outside = {1, 2, 3}
    outside.add(9)
    outside.discard(2)
    outside |= {17, -1}

    def f(x, s):
        made = SETS[name](s)
        return x + 1, made, list(made), frozenset(made), [v for v in {*made}]

    compiled = fresh.compile(f)
    for given in (outside, {8, 0, 16, 3, 24}, set(range(0, 80, 8)), outside):
        expected, got = f(torch.ones(1), given), compiled(torch.ones(1), given)
        assert [list(e) for e in expected[1:]] == [list(g) for g in got[1:]]
        assert [type(e) for e in expected] == [type(g) for g in got]
    assert set(fresh.cache_info(compiled)["outcomes"]["run"]) == {"graph"}


MADE = """s | t ; t - s ; s ^ set(l) ; set(frozenset(t) | s) ; {x for x in s if x != 8} ; set(s | t) ; set().union(s, t) ; set.union(t, s) ;
dict.fromkeys(s).keys() ^ t ; set(frozenset(t) - s) ; Sub(s | t) ; {frozenset(s | t)}"""
CHANGES = ["v.discard(8)", "v.update(l)", "v ^= t", "v -= t; v |= s", "v.pop()", "v.clear(); v |= t", "v.intersection_update(l + [16, 0])", ""]


@pytest.mark.parametrize("made", MADE.split(";"))
def test_order_of_changed_sets(fresh, made):
    """What was taken out of a set leaves its place, which decides the order now and after what the program does next."""
    for change in CHANGES:
        namespace = {"Sub": type("Sub", (set,), {})}
        source = f"""def f(s, t, l):
            v = {made.strip()}
            {change}
            return v, list(v), v.copy(), frozenset(v), {{*v}}"""
        exec(source, namespace)
        f, compiled = namespace["f"], fresh.compile(namespace["f"])
        for given in range(3):
            seen = []
            for run in (f, compiled):
                s, t = set(range(0, 48 + 8 * given, 8)), {5, 13, 21}
                s -= {0, 16 + given * 8}
                out = run(s, t, [24, 5, 99])
                seen.append([list(o) for o in out] + [type(o) for o in out])
                for later in (7, 1000, 24, 8, 15):  # what the program finds where it goes on with the result
                    out[0].discard(later + 8)
                    out[0].add(later)
                    seen[-1].append(list(out[0]))
                seen[-1].append(out[0].pop())
            assert seen[0] == seen[1], (change, given)


def test_a_copy_of_a_set_that_once_had_more(fresh):
    """It goes through the same items in the same order, but a copy of it does not."""

    def f(s):
        return list(set(s)), list(s | {1}), list(s)

    s, compiled = {5}, fresh.compile(f)
    s.add(13)
    for _ in range(3):
        assert compiled(s) == f(s) == ([13, 5], [1, 13, 5], [13, 5])
    s.add(100)
    s.discard(100)
    for _ in range(3):
        assert compiled(s) == f(s) == ([5, 13], [1, 5, 13], [13, 5])
    assert fresh.cache_info(compiled)["captures"] == 2 and not fresh.cache_info(compiled)["breaks"]


def test_items_of_sets_are_found_by_their_own_hash(fresh):
    class Named:
        def __init__(self, name):
            self.name = name

        def __eq__(self, other):
            return self is other

        __hash__ = object.__hash__

    def f(x, n):
        y, o = x + n, Named(n)
        return {y, x, o, n}, frozenset([y, x, o]), y, o

    compiled = fresh.compile(f)
    x, kept = torch.ones(2), []
    for n in (1, 1, 2, 3):
        some, frozen, y, o = compiled(x, n)
        assert all(v in s for s in (some, frozen) for v in (x, y, o)) and n in some and (len(some), len(frozen)) == (4, 3)
        kept.append((some, frozen, y, o))
    assert fresh.cache_info(compiled)["outcomes"]["run"]["graph"]


def test_nobody_is_asked_again_for_a_hash_that_a_set_knows(fresh):
    asked = []

    class Key:
        def __init__(self, number):
            self.number = number

        def __hash__(self):
            asked.append(self.number)
            return self.number

    def f(s):
        return s.copy(), set(s), frozenset(s), s | set()

    given, compiled = {Key(8), Key(0), Key(16)}, fresh.compile(f)
    asked.clear()
    for _ in range(3):
        assert [list(o) for o in compiled(given)] == [list(o) for o in f(given)]
    assert not asked


@pytest.mark.parametrize("way", ["copied", "filled"])
def test_order_of_large_sets(fresh, way):
    """Many items are not where their hashes would have them, since others came first."""
    import random

    def f(x, items):
        if way == "copied":
            return x + 1, {*items}
        made = set()
        for v in items:
            made.add(v)
        return x + 1, made

    compiled = fresh.compile(f)
    for items in (random.Random(1).sample(range(10000), 200), *([] if way == "filled" else [range(0, 800, 8)])):
        items = items if way == "filled" else set(items)
        assert list(compiled(torch.ones(1), items)[1]) == list(f(torch.ones(1), items)[1])
    assert set(fresh.cache_info(compiled)["outcomes"]["run"]) == {"graph"}


def test_methods_of_iteration_are_asked_as_often_as_in_eager(fresh):
    """An object with `__next__` may still give another iterator, and a list that takes its items asks for their number."""

    class Items:
        def __init__(self, log):
            self.log = log

        def __iter__(self):
            self.log.append("iter")
            return iter([1, 2])

        def __next__(self):
            self.log.append("next")
            raise StopIteration

        def __len__(self):
            self.log.append("len")
            return 2

    programs = {
        "comprehension": lambda o: [x for x in o],
        "spread": lambda o: [*o, 3],
        "set": lambda o: {*o},
        "all": lambda o: (all(o), any(o), sum(o)),
        "arguments": lambda o: (lambda *a: a)(*o),
        "list": lambda o: list(o) + sorted(o),
        "unpacked": lambda o: [a + b for a, b in [o]],
    }
    for name, f in programs.items():
        seen = []
        for run in (f, fresh.compile(f)):
            items = Items([])
            seen.append([(run(items), list(items.log)) for _ in range(3)])
        assert seen[0] == seen[1], name


def test_a_metaclass_makes_each_class_once_for_each_call(fresh):
    """A class is not made while capturing: its bases and the methods that are told of it would see one too many, and a later call that very one."""
    told = []

    class Base:
        def __init_subclass__(cls):
            told.append(cls.__name__)

    class Plain(type):
        pass

    class Own(type):
        def __new__(cls, name, bases, namespace, **words):
            return type.__new__(cls, name, bases, namespace)

    class Super(type):
        def __new__(cls, name, bases, namespace):
            return super().__new__(cls, name, bases, namespace)

    for meta in (Plain, Own, Super):

        def f(base, x, meta=meta):
            made = meta("Made", (base,), {"x": x})
            return made.__bases__[0] is base, made.x, made

        compiled = fresh.compile(f)
        made = []
        for i in range(4):
            told.clear()
            base = type("Between", (Base,), {})
            its, x, cls = compiled(base, i)
            assert its and x == i and type(cls) is meta and told == ["Between", "Made"] and base.__subclasses__() == [cls]
            made.append(cls)
        assert len(set(made)) == 4
