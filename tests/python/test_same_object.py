"""What comes back is the very object that went in where eager gives that, also where a number became a symbol, and a compiled module is of
the class that its original has now."""

import copy
import gc
import math
import types

import framejit
import numpy as np
import pytest

FLOATS = (1.5, 2.5, 3.5, 4.5, 5.25)
INTS = (1001, 2002, 3003, 40004, 50005)
ROUTES = {
    "an argument": "def f(a, x, o, d):\n    return a * x, x, [x, {'k': x}]\n",
    "plus": "def f(a, x, o, d):\n    return a * x, +x, [x, {'k': +x}]\n",
    "an attribute": "def f(a, x, o, d):\n    return a * o.x, o.x, [o.x, {'k': o.x}]\n",
    "an item": "def f(a, x, o, d):\n    v = d['x'][0]\n    return a * v, v, [v, {'k': v}]\n",
    "stored": "def f(a, x, o, d):\n    o.y = x\n    d['y'] = x\n    return a * x, o.y, [x, {'k': d['y']}]\n",
    "a default": "def f(a, x, o, d, v=None):\n    return a * v, v, [v, {'k': v}]\n",
    "the larger": "def f(a, x, o, d):\n    v = max(x, 1)\n    return a * v, v, [x, {'k': v}]\n",
    "a closure": "def f(a, x, o, d):\n    def g():\n        return x\n    return a * g(), g(), [x, {'k': g()}]\n",
}


class Holder:
    pass


@pytest.mark.parametrize("numbers", [FLOATS, INTS], ids=["floats", "integers"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_number_that_became_a_symbol_is_the_one_that_was_given(route, numbers):
    space = {}
    exec(ROUTES[route], space)
    f = space["f"]
    g = framejit.compile(f)
    a = np.arange(2000.0)
    for x in numbers:
        o = Holder()
        o.x, d = x, {"x": [x]}
        if route == "a default":
            f.__defaults__ = (x,)
        product, again, (item, held) = g(a, x, o, d)
        np.testing.assert_array_equal(product, a * x)
        assert again is x and item is x and held["k"] is x
    info = framejit.cache_info(g)
    assert info["breaks"] == 0 and info["captures"] <= 3, info


def test_what_is_computed_of_a_symbol_is_another_object():
    @framejit.compile
    def f(a, n, x):
        return a * n * x, n + 1 - 1, x + 0.0

    for n, x in zip(INTS, FLOATS, strict=True):
        _, m, y = f(np.arange(2000.0), n, x)
        assert m == n and m is not n and y == x and y is not x
    assert framejit.cache_info(f)["captures"] <= 3


@pytest.mark.parametrize("numbers", [FLOATS, INTS], ids=["floats", "integers"])
def test_which_of_two_numbers_that_became_symbols_is_one_object(numbers):
    def f(a, o, p, both):
        y = a * o.x
        o.y = o.x
        found = [o.y is o.x, o.y is not o.x, o.x + 1 is o.x]
        return (y * p.x, [*found, o.x is p.x]) if both else (y, found)

    def outcome(call, x, other, both):
        o, p = Holder(), Holder()
        o.x, p.x = x, other
        return call(np.arange(2000.0), o, p, both)[1]

    compiled = framejit.compile(f)
    before = framejit.cache_info(compiled)  # of the other numbers, as the code is the same
    for x in numbers:
        assert outcome(compiled, x, x, False) == outcome(f, x, x, False)
    after = framejit.cache_info(compiled)
    assert after["breaks"] == before["breaks"] and after["captures"] <= before["captures"] + 3
    for x in numbers:
        for other in (x, x + 1, type(x)(str(x))):
            assert outcome(compiled, x, other, True) == outcome(f, x, other, True)


def test_what_a_positive_integer_is_without_its_sign():
    @framejit.compile
    def f(a, n):
        return a * n, abs(n), abs(-n)

    for n in INTS:
        _, m, other = f(np.arange(2000.0), n)
        assert m is n and other == n and other is not n
    assert framejit.cache_info(f)["captures"] <= 3


def modules():
    """torch, a class of modules, and one that is made of it."""
    torch = pytest.importorskip("torch")

    class A(torch.nn.Module):
        def forward(self, x):
            return x * 2

    class B(A):
        def forward(self, x):
            return super().forward(x) + 1

        def more(self):
            return type(self).__name__

    return torch, A, B


def test_a_module_whose_class_is_set_after_it_was_compiled():
    torch, A, B = modules()
    m = A()
    g = framejit.compile(m)
    x = torch.ones(3)
    for _ in range(3):
        assert torch.equal(g(x), x * 2)
    m.__class__ = B
    for _ in range(3):
        assert torch.equal(g(x), x * 3)
    assert isinstance(g, B) and g.more() == "B" and framejit.compile(m) is g
    assert framejit.cache_info(type(g).__call__)["captures"] == 1 and framejit.cache_info(type(g).__call__)["breaks"] == 0
    assert torch.equal(copy.deepcopy(g)(x), x * 3)
    m.__class__ = A
    assert torch.equal(g(x), x * 2) and type(framejit.compile(m)).__mro__[2] is A


def test_methods_after_a_class_was_set_are_those_of_the_class():
    """Before the compiled module is called again, too."""
    torch = pytest.importorskip("torch")

    class A(torch.nn.Module):
        kind = "A"

        def forward(self, x):
            return x * 2

        def twice(self, x):
            return self(x) * 2

    class B(A):
        kind = "B"

        def forward(self, x):
            return x * 3

        def twice(self, x):
            return self(x) + self(x) + 1

        @property
        def more(self):
            return self.kind + "!"

    m, x = A(), torch.ones(3)
    g = framejit.compile(m)
    assert torch.equal(g.twice(x), x * 4) and g.kind == "A"
    m.__class__ = B
    assert g.kind == "B" and g.more == "B!" and isinstance(g, B)
    m.__class__ = A
    assert not hasattr(g, "more") and not isinstance(g, B)
    m.__class__ = B
    for _ in range(3):
        assert torch.equal(g.twice(x), x * 7)
    info = framejit.cache_info(type(g).__call__)
    assert (info["captures"], info["breaks"]) == (1, 0)


def test_what_python_asks_of_a_class_alone_is_that_of_the_class_set():
    """Before any attribute is read, and for all that the compiled module is given to."""
    torch = pytest.importorskip("torch")

    class A(torch.nn.Module):
        def forward(self, x):
            return x * 2

    class B(A):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return i + 1

        def __setattr__(self, name, value):
            super().__setattr__(name, ("B", value) if name == "kept" else value)

        def __eq__(self, other):
            return "equal"

        __hash__ = A.__hash__

        def __enter__(self):
            return "entered"

        def __exit__(self, *error):
            pass

    def entered(o):
        with o as what:
            return what

    def stored(o):
        o.kept = 1
        return o.__dict__["kept"]

    asks = [len, lambda o: o[4], lambda o: o == 1, lambda o: isinstance(o, B), lambda o: type(o).__mro__[2] is B, entered, stored]
    length = framejit.compile(lambda o: (len(o), o[1]))
    for ask, expected in zip([*asks, length], [3, 5, "equal", True, True, "entered", ("B", 1), (3, 2)], strict=True):
        m = A()
        g = framejit.compile(m)
        assert torch.equal(g(torch.ones(3)), torch.full((3,), 2.0))
        m.__class__ = B
        assert ask(g) == expected
        m.__class__ = A
        with pytest.raises((TypeError, KeyError, AssertionError)):
            assert ask(g) == expected
    object.__setattr__(m, "__class__", B)
    assert len(g) == 3 and framejit.compile(m) is g and framejit.cache_info(length)["segments"] > 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_class_that_the_compiled_module_cannot_follow():
    """The class is set, as in eager: that the compiled module stays what it was is told and not raised."""
    torch = pytest.importorskip("torch")

    class A(torch.nn.Module):
        def forward(self, x):
            return x * 2

    class Final(A):
        def __init_subclass__(cls):
            raise TypeError("no subclasses")

    m = A()
    g = framejit.compile(m)
    m.__class__ = Final
    assert type(m) is Final and torch.equal(g(torch.ones(3)), torch.full((3,), 2.0))


def test_a_module_that_sets_its_class_while_it_is_called():
    torch = pytest.importorskip("torch")

    class A(torch.nn.Module):
        def forward(self, x):
            change()
            return x * 2

    class B(A):
        def forward(self, x):
            return x * 3

        def __len__(self):
            return 7

    @framejit.disable
    def change():
        m.__class__ = B

    m, x = A(), torch.ones(3)
    g = framejit.compile(m)
    assert torch.equal(g(x), x * 2) and len(g) == 7 and torch.equal(g(x), x * 3)


def test_a_module_that_is_compiled_again_after_its_class_was_set():
    torch = pytest.importorskip("torch")

    class A(torch.nn.Module):
        def forward(self, x):
            return x * 2

    class B(torch.nn.Module):
        def forward(self, x):
            return x * 5

    m = A()
    g = framejit.compile(m)
    m.__class__ = B
    assert framejit.compile(m) is g and isinstance(g, B) and not isinstance(g, A)
    assert torch.equal(g(torch.ones(3)), torch.full((3,), 5.0))


def test_classes_that_a_compiled_module_had_are_let_go_of():
    torch, A, B = modules()

    def classes():
        gc.collect()
        return [c for written in (A, B) for c in written.__subclasses__() if c is not B]

    m, x = A(), torch.ones(3)
    g = framejit.compile(m)
    for k in range(8):
        m.__class__ = (A, B)[k % 2]
        for _ in range(2):
            assert torch.equal(g(x), x * (2 + k % 2))
    assert classes() == [type(g)]
    del m, g
    assert classes() == []


def test_a_parametrization_that_comes_after_compiling():
    torch = pytest.importorskip("torch")
    parametrize = torch.nn.utils.parametrize

    class Twice(torch.nn.Module):
        def forward(self, w):
            return w * 2

    m = torch.nn.Linear(4, 4)
    g = framejit.compile(m)
    x = torch.ones(2, 4)
    g(x), g(x)
    parametrize.register_parametrization(m, "weight", Twice())
    for _ in range(3):
        torch.testing.assert_close(g(x), m(x))
    g(x).sum().backward()
    assert m.parametrizations.weight.original.grad is not None
    parametrize.remove_parametrizations(m, "weight")
    torch.testing.assert_close(g(x), m(x))


def test_a_dict_that_is_listed_written_and_counted():
    torch = pytest.importorskip("torch")

    def f(t, d):
        before = list(d)
        d.pop("a", None)
        d.setdefault("w", t)
        return before, len(d), t.sum() * 2

    g = framejit.compile(f)
    for d in ({"a": 1, "t": torch.ones(2)}, {"a": 2, "t": torch.ones(2)}, {"t": torch.ones(2)}, {"b": 3, "t": torch.ones(2)}):
        mine, its = dict(d), dict(d)
        assert str(g(torch.ones(2), mine)) == str(f(torch.ones(2), its)) and list(mine) == list(its)


def gives_a_literal(x, c):
    return x + 1, c, (1, 2, "a b"), 1234.5, "a text"


def in_a_callee(x, c):
    return *gives_a_literal(x, c), c


LITERALS = {"a tuple": ((1, 2, "a b"), lambda c: tuple(list(c))), "a float": (1234.5, lambda c: float(repr(c))), "a text": ("a text", lambda c: "".join(list(c)))}


@pytest.mark.parametrize("f", [gives_a_literal, in_a_callee])
@pytest.mark.parametrize("name", LITERALS)
@pytest.mark.parametrize("first", ["literal", "another"])
def test_an_argument_that_is_a_literal_of_the_code(fresh, f, name, first):
    value, new = LITERALS[name]
    literal = next(c for c in gives_a_literal.__code__.co_consts if c == value)
    compiled, x = fresh.compile(f, fullgraph=True), np.ones(3)
    for i in range(4):
        c = literal if (i % 2 == 0) == (first == "literal") else new(literal)
        mine, theirs = compiled(x, c)[1:], f(x, c)[1:]
        assert mine == theirs and [[r is o for o in (c, literal)] for r in mine] == [[r is o for o in (c, literal)] for r in theirs]
    assert fresh.cache_info(compiled)["captures"] <= 2


def test_a_tuple_that_is_a_literal_is_one_object():
    def f(x):
        return x + 1, (1, 2, (3, 4)), [(5, 6)]

    compiled, x = framejit.compile(f, fullgraph=True), np.ones(3)
    for _ in range(3):
        mine, theirs = compiled(x), f(x)
        assert mine[1] is theirs[1] and mine[2][0] is theirs[2][0]


MADE = {
    "of a text": "float('nan')",
    "of an argument": "float(s)",
    "computed": "len(s) * 1000.5",
    "infinite": "-float('inf')",
    "complex": "complex(0, float('nan'))",
    "of the library": "math.sqrt(5.0)",
}


@pytest.mark.parametrize("made", MADE)
def test_a_float_that_is_made_is_a_new_object_in_each_call(made):
    """One that is no number is found, and equal in containers, by what object it is."""
    space = {"math": math, "table": {}, "kept": [], "holder": Holder()}
    exec(
        f"def f(a, s):\n    k = {MADE[made]}\n    table[k] = len(kept)\n    kept.append(k)\n    last = holder.k\n    holder.k = k\n"
        "    return a + 1, k, [k, {'k': k}], k in [k], [k] == [k], last is k, last in [k]\n",
        space,
    )

    def run(f):
        space["table"].clear()
        space["kept"].clear()
        space["holder"].k, seen = 0.0, []
        for _ in range(6):
            _, k, (same, held), *answers = f(np.arange(3.0), "nan")
            assert same is k and held["k"] is k and space["holder"].k is k and space["kept"][-1] is k
            seen.append((k, answers))
        return len(space["table"]), [[x[0] is y[0] for x in seen] for y in seen], [answers for _, answers in seen]

    f, expected = framejit.compile(space["f"]), run(space["f"])
    assert run(f) == expected
    info = framejit.cache_info(f)
    assert info["segments"] >= 1 and info["breaks"] == 0, info


def test_a_float_from_elsewhere_is_the_one_that_lies_there():
    def f(a, x):
        return a + 1, math.nan, max(x, 1.0), 2.5, float(x), np.nan

    call = framejit.compile(f)
    for x in (3.5, 4.5, 5.5):
        got, expected = call(np.arange(3.0), x), f(np.arange(3.0), x)
        assert all(a is b for a, b in zip(got[1:], expected[1:], strict=True))


class TestCompiledFunctionsAsObjects:
    """Which compiled function a name, an argument or an attribute has is guarded, as it is of functions."""

    def functions(self, fresh):
        return [fresh.compile(f) for f in (lambda x: x * 2, lambda x: x * 3)]

    def test_argument(self, fresh, torch):
        twice, thrice = self.functions(fresh)
        f = fresh.compile(lambda x, g: g(x) + 1)
        for g, expected in ((twice, 3), (thrice, 4), (twice, 3), (thrice, 4)):
            assert f(torch.ones(2), g).tolist() == [expected] * 2
        told = fresh.explain(f)(torch.ones(2), twice)
        assert (told.graph_count, told.graph_break_count) == (1, 0)

    def test_attribute_item_and_variable(self, fresh, torch):
        held, listed, other = types.SimpleNamespace(), [None], None

        def f(x):
            return held.g(x), listed[0](x), other(x)

        compiled = fresh.compile(f)
        for g in self.functions(fresh) * 2:
            held.g = listed[0] = other = g
            assert [y.tolist() for y in compiled(torch.ones(2))] == [g(torch.ones(2)).tolist()] * 3


VALUES = ["float('1.5')", "float('nan')", "complex('1+2j')", "bytes([1, 2])", "'a b' + str(len(held))", "(1, float('2.5'))"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("asked", ["held[0] is held[1]", "held[0] is not held[1]", "id(held[0]) == id(held[1])", "o.a is held[0]"])
def test_equal_values_that_become_one_object(value, asked):
    space = {"o": Holder(), "held": [0, 0]}
    exec(f"def make(): return {value}\ndef f(x): return x * 2, {asked}", space)
    g = framejit.compile(space["f"])
    a, held, o = np.arange(3.0), space["held"], space["o"]

    def check():
        double, got = g(a)
        np.testing.assert_array_equal(double, a * 2)
        assert got is space["f"](a)[1]

    for _ in range(2):
        held[:], o.a = [space["make"](), space["make"]()], space["make"]()
        check()  # three equal ones
        held[1] = o.a = held[0]
        check()  # one
        o.a = space["make"]()
        check()
        held[1] = space["make"]()
        check()
    assert framejit.cache_info(g)["outcomes"]["run"]["graph"] >= 3


def test_a_dtype_of_another_byte_order_becomes_the_usual_one():
    space = {"usual": np.dtype("f4"), "held": [np.dtype(">f4")]}
    exec("def f(x): return x * 2, held[0] is usual, held[0] == usual", space)
    g = framejit.compile(space["f"])
    for dtype in (">f4", ">f4", "f4", "i4", ">f4", "f4"):
        space["held"][0] = np.dtype(dtype)
        assert g(np.arange(3.0))[1:] == space["f"](np.arange(3.0))[1:]
    assert framejit.cache_info(g)["outcomes"]["run"]["graph"] >= 4
