"""Class statements in compiled functions: what is made with such a class is in the graph, and nothing of it leaves."""

import abc
import copy
import csv
import gc
import io
import logging
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

SCALE = 2.0


class Base:
    made = 0

    def __init__(self, value):
        self.value = value

    def doubled(self):
        return self.value * 2


class Registers:
    known = []

    def __init_subclass__(cls):
        Registers.known.append(cls.__name__)


def outcome(f, *args):
    try:
        return f(*args)
    except Exception as e:
        return type(e).__name__, str(e)


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b


def whole(fresh, f, *calls, breaks=0):
    told = fresh.explain(f)(*calls[0])
    assert (told.graph_count, told.graph_break_count) == (1, breaks), str(told)
    compiled = fresh.compile(f)
    for call in (*calls, *calls):
        same(outcome(compiled, *call), outcome(f, *call))
    return compiled


def plain(x, n):
    class Local:
        factor = 3
        scale = SCALE

        def __init__(self, v, more=(1, 2)):
            self.v, self.more = v, more

        def go(self, by=2):
            return self.v * by + self.factor * n

        @property
        def half(self):
            return self.v / 2 * self.scale

        @half.setter
        def half(self, v):
            self.v = v

        @staticmethod
        def added(a, b):
            return a + b

        @classmethod
        def of(cls, v):
            made = cls(v)
            made.half = v + cls.factor
            return made

        def __add__(self, other):
            return self.v + other.v

        def __len__(self):
            return n

        def __repr__(self):
            return f"Local {n}"

    a, b = Local(x), Local.of(x)
    return a.go(), b.half, Local.added(a.v, 1), a + b, len(a), repr(a), a.more, type(a).__name__, isinstance(a, Local), Local.__module__ == __name__


def make_derived(n):
    class Base:
        made = 0

        def __init__(self, value):
            self.value = value

        def doubled(self):
            return self.value * 2

    class Middle(Base):
        made = 1

        def doubled(self):
            return super().doubled() + n

    class Last(Middle):
        __slots__ = ("extra",)

        def doubled(self):
            self.extra = super(Last, self).doubled()
            return self.extra * self.made

    return Base, Middle, Last


def derived(x, n):
    Base, Middle, Last = make_derived(n)
    Last.made = 5
    Last.later = lambda self: self.value - 1
    o = Last(x)
    return o.doubled(), o.later(), Last.__mro__[2] is Base, [c.__name__ for c in Last.__mro__[:3]], hasattr(Middle, "later"), Base.made


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self):
        pass

    def twice(self):
        return self.area() * 2


def abstract(x, n):
    class Square(Shape):
        def __init__(self, side):
            self.side = side

        def area(self):
            return self.side * self.side

    class Nothing(Shape):
        pass

    try:
        Nothing()
        refused = ""
    except TypeError as e:
        refused = str(e)
    o = Square(x)
    return o.twice(), isinstance(o, Shape), issubclass(Square, Shape), isinstance(o, Nothing), refused


def module(x, n):
    class Net(torch.nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        def forward(self, x):
            return (x * self.k).relu()

    net = torch.nn.Sequential(Net(n), Net(n + 1))
    return net(x), len(list(net.modules()))


def raises(x, n):
    class Refused(ValueError):
        pass

    try:
        if n > 2:
            raise Refused("much")
        y = x + 1
    except ValueError as e:
        y = x * len(str(e))
    return y


def closed(x, n):
    def make(k):
        class Counter:
            def __init__(self):
                self.n = k

            def up(self):
                nonlocal k
                k += 1
                self.n += k
                return self

        return Counter

    A, B = make(n), make(1)
    a = A()
    return x * a.up().up().n, A is B, issubclass(A, B), x + B().up().n


@pytest.mark.parametrize("f", [plain, derived, module, raises, closed])
def test_in_one_graph(fresh, f):
    whole(fresh, f, (torch.ones(3), 2), (torch.arange(3.0), 2), (torch.ones(3), 5), (torch.ones(2, 2), 5))


def test_what_it_is_made_of_may_change(fresh):
    global SCALE
    compiled = fresh.compile(plain)
    kept = SCALE
    x = torch.ones(2)
    same(compiled(x, 1), plain(x, 1))
    try:
        SCALE = 7.0
        same(compiled(x, 1), plain(x, 1))
    finally:
        SCALE = kept
    same(compiled(x, 1), plain(x, 1))


def test_gradients_go_through_it(fresh):
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
    compiled = fresh.compile(plain)
    for _ in range(2):
        compiled(a, 2)[0].sum().backward()
        plain(b, 2)[0].sum().backward()
        assert torch.equal(a.grad, b.grad)


def leaves(x, n):
    class Local:
        def __init__(self, v):
            self.v = v

        def get(self):
            return self.v

    return x * n, Local(x), Local


def leaves_in_a_function(x, n):
    class Local:
        def get(self):
            return n

    return x + 1, lambda: Local().get()


def names_itself(x, n):
    class Local:
        def again(self, k):
            return Local().again(k - 1) + 1 if k else 0

    return x + Local().again(n)


def test_what_leaves_is_made_anew(fresh):
    compiled = fresh.compile(names_itself)  # at the exit the frame's variable has the class
    for n in (2, 2, 3):
        same(compiled(torch.ones(2), n), names_itself(torch.ones(2), n))
    compiled = fresh.compile(leaves)
    made = [compiled(torch.ones(2), n) for n in (1, 1, 2, 2)]
    assert len({id(kind) for _, _, kind in made}) == 4 and len({id(o) for _, o, _ in made}) == 4
    for y, o, kind in made:
        assert type(o) is kind and kind.__qualname__ == "leaves.<locals>.Local" and torch.equal(o.get(), torch.ones(2))
    compiled = fresh.compile(leaves_in_a_function)
    assert [compiled(torch.ones(2), n)[1]() for n in (1, 2, 2, 3)] == [1, 2, 2, 3]


KEPT = []


def test_what_is_stored_outside(fresh):
    def f(x):
        class Local:
            pass

        KEPT.append(Local())
        Base.local = Local
        return x + 1

    compiled = fresh.compile(f)
    for i in range(3):
        compiled(torch.ones(2))
        assert type(KEPT[i]) is Base.local
    assert len(set(map(type, KEPT))) == 3
    KEPT.clear()
    del Base.local


def judged(fresh, ran, functions):
    """Three calls each, and what they have run."""
    for f in functions:
        expected = []
        for g in (f, fresh.compile(f)):
            ran.clear()
            Registers.known.clear()
            got = [outcome(g, torch.ones(2)) for _ in range(3)]
            got.append(list(ran))
            expected = expected or got
            same(got, expected)


def test_bodies_and_bases_that_run_code(fresh):
    ran = []

    def calls(x):
        class Local:
            n = len(ran)

        return x * Local.n

    def registers(x):
        class Local(Registers):
            pass

        return x + len(Registers.known)

    def loops(x):
        class Local:
            total = 0
            for i in range(3):
                total += i

        return x + Local.total

    class Named:
        def __set_name__(self, owner, name):
            ran.append(name)

    globals()["NAMED"] = Named()

    def named(x):
        class Local:
            attribute = NAMED  # noqa: F821

        return x + len(ran)

    def meta(x):
        class Local(metaclass=type("Meta", (type,), {"__call__": lambda cls: 4})):
            pass

        return x + Local()

    judged(fresh, ran, (calls, registers, loops, named, meta, lambda x: abstract(x, 2)[0]))
    del globals()["NAMED"]


def test_bodies_that_call_or_read_variables(fresh):
    ran = []

    def decorated(x):
        def twice(f):
            ran.append(1)
            return lambda self: 2 * f(self)

        class Local:
            @twice
            def get(self):
                return 3

        return x + Local().get()

    def own_decorator(x):
        class Local:
            def twice(f):
                ran.append(1)
                return lambda self: 2 * f(self)

            @twice
            def get(self):
                return 3

        return x + Local().get()

    def given(x):
        class Local:
            get = WITH_SETTER  # noqa: F821

            @get.setter
            def put(self):
                return 3

        return x + Local().put()

    class WithSetter:
        def setter(self, f):
            ran.append(1)
            return f

    globals()["WITH_SETTER"] = WithSetter()

    def enclosed(x):
        n = x.shape[0]

        class Local:
            factor = n
            y = x * 2

        return Local.y * Local.factor

    def annotated(x):
        class Local:
            a: int = 3
            b: str

        return x + Local.a + len(Local.__annotations__)

    def missing(x):
        class Local:
            a = no_such_name  # noqa: F821

        return x

    def refused(x):
        class Local(bool):
            pass

        return x

    def no_order(x):
        class Local(object, Base):
            pass

        return x

    judged(fresh, ran, (decorated, own_decorator, given, enclosed, annotated, missing, refused, no_order))
    del globals()["WITH_SETTER"]


def test_property_of_that_name_in_the_surroundings(fresh):
    globals()["property"] = lambda f: 5

    def f(x):
        class Local:
            @property
            def get(self):
                return 3

        return x + Local().get

    try:
        same(fresh.compile(f)(torch.ones(2)), f(torch.ones(2)))
    finally:
        del globals()["property"]
    compiled = fresh.compile(f)
    same(compiled(torch.ones(2)), f(torch.ones(2)))
    globals()["staticmethod"] = globals()["property"] = lambda f: 7
    try:
        same(compiled(torch.ones(2)), f(torch.ones(2)))
    finally:
        del globals()["property"], globals()["staticmethod"]


def test_stores_to_metaclasses_are_seen_through_their_classes(fresh):
    class M(type):
        def f(cls):
            return 1

    class A(metaclass=M):
        pass

    kept = M.f

    def stores(x):
        M.f = lambda cls: 2
        M.c = 5
        return x + A.f(), hasattr(A, "c"), getattr(A, "c", None)

    for g in (stores, fresh.compile(stores), fresh.compile(stores)):
        M.f = kept
        if hasattr(M, "c"):
            del M.c
        got = g(torch.zeros(2))
        assert got[0].tolist() == [2.0, 2.0] and got[1:] == (True, 5)


def test_stores_to_classes_of_logging_are_there_when_it_writes(fresh, caplog):
    told, kept = [], logging.StreamHandler.emit
    log = logging.getLogger("of a store to a class")
    log.handlers, log.propagate = [logging.StreamHandler(io.StringIO())], False

    def stores(x):
        logging.StreamHandler.emit = lambda self, record: told.append(record.getMessage())
        log.error("one")
        logging.StreamHandler.emit = kept
        log.error("two")
        return x + 1

    for g in (stores, *[fresh.compile(stores)] * 3):
        g(torch.zeros(2))
    assert told == ["one"] * 4 and log.handlers[0].stream.getvalue() == "two\n" * 4


def test_functions_that_are_stored_to_a_class_do_not_stay(fresh):
    class Big:
        pass

    def store(x, kind, g):
        kind.f = g
        return x + kind().f()

    def once():
        big = Big()

        class A:
            def f(self):
                return (big, 1)[1]

        compiled = fresh.compile(store)
        compiled(torch.ones(2), A, lambda self: 2)
        compiled.clear()
        return weakref.ref(big)

    gone = [once() for _ in range(3)]
    gc.collect()
    assert [r() for r in gone] == [None] * 3


@pytest.mark.parametrize("make", [threading.Lock, lambda: csv.reader([])])
def test_what_c_does_not_copy(fresh, make):
    def copies(x, o):
        try:
            return x + 1, copy.deepcopy(o)
        except TypeError as e:
            return x + 1, str(e)

    o = make()
    assert fresh.compile(copies)(torch.ones(2), o)[1] == copies(torch.ones(2), o)[1]
