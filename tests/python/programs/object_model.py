"""Descriptors, metaclasses, operators, hashing, copying: Python's protocols as users bend them."""

import collections
import contextvars
import copy
import dataclasses
import enum
import pickle
import threading
import typing
import weakref

import numpy as np
from harness import Programs

program = Programs("numpy")


def a(*shape):
    return (np.arange(int(np.prod(shape))) % 7 - 2.0).reshape(shape)


@program
def data_and_other_descriptors():
    class Logged:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, instance, owner):
            if instance is None:
                return self
            instance.log.append("get")
            return getattr(instance, self.name)

        def __set__(self, instance, value):
            instance.log.append("set")
            setattr(instance, self.name, value)

    class Overridable:
        def __get__(self, instance, owner):
            return 10

    class Thing:
        weight = Logged()
        bias = Overridable()

        def __init__(self):
            self.log = []
            self.weight = 3

    def f(x, thing):
        y = x * thing.weight + thing.bias
        thing.__dict__["bias"] = 20
        thing.weight = 4
        return y, x * thing.weight + thing.bias, thing.log

    return f, lambda: (a(3), Thing())


@program
def metaclass_call():
    class Counting(type):
        made = 0

        def __call__(cls, *args):
            Counting.made += 1
            return super().__call__(*args)

        def __len__(cls):
            return 42

        @property
        def doubled(cls):
            return cls.__name__ * 2

    class Thing(metaclass=Counting):
        def __init__(self, n):
            self.n = n

    def f(x):
        return x * Thing(2).n + len(Thing), Counting.made, Thing.doubled

    return f, lambda: (a(3),)


@program
def getattr_hooks():
    class Lazy:
        def __init__(self):
            self.asked = []

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            self.asked.append(name)
            return len(self.asked)

    class Total:
        def __getattribute__(self, name):
            return 7 if name == "seven" else object.__getattribute__(self, name)

    def f(x, lazy, total):
        return x + lazy.one + lazy.two + total.seven, lazy.asked, hasattr(total, "eight"), getattr(total, "nine", "no")

    return f, lambda: (a(3), Lazy(), Total())


@program
def setattr_and_delattr_hooks():
    class Strict:
        def __setattr__(self, name, value):
            if name == "bad":
                raise AttributeError("not here")
            object.__setattr__(self, name, value * 2 if isinstance(value, int) else value)

        def __delattr__(self, name):
            object.__setattr__(self, "deleted", name)

    def f(x, thing):
        thing.n = 3
        del thing.whatever
        try:
            thing.bad = 1
        except AttributeError as error:
            return x * thing.n, thing.deleted, str(error)

    return f, lambda: (a(3), Strict())


@program
def slots():
    class Point:
        __slots__ = ("x", "y")

        def __init__(self, x, y):
            self.x, self.y = x, y

    def f(p):
        q = Point(p.x * 2, p.y + 1)
        p.x = q.x
        try:
            q.z = 1
        except AttributeError:
            q.y = 0
        del p.y
        return q.x, q.y, p.x, hasattr(p, "y")

    return f, lambda: (Point(a(3), a(3)),)


@program
def property_with_effect():
    class Meter:
        def __init__(self):
            self._reads = 0

        @property
        def reads(self):
            self._reads += 1
            return self._reads

        @reads.setter
        def reads(self, value):
            self._reads = value * 10

    def f(x, m):
        y = x * m.reads + m.reads
        m.reads = 5
        return y, m.reads

    return f, lambda: (a(3), Meter())


@program
def class_attribute_changes_between_calls():
    class Settings:
        scale = 1

    def f(x):
        y = x * Settings.scale
        Settings.scale += 1
        return y, Settings.scale

    return f, lambda: (a(3),)


@program
def instance_attribute_changes_between_calls():
    class Layer:
        def __init__(self):
            self.scale = 2
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.scale

    layer = Layer()

    def f(x):
        return layer.forward(x)

    def make():
        layer.scale = layer.calls + 3
        return (a(3),)

    return f, make


@program
def method_replaced_on_instance():
    class Layer:
        def run(self, x):
            return x + 1

    layer = Layer()
    calls = []

    def f(x):
        return layer.run(x)

    def make():
        calls.append(0)
        if len(calls) == 2:
            layer.run = lambda x: x * 100
        if len(calls) == 3:
            del layer.run
        return (a(3),)

    return f, make


@program
def class_of_instance_changes():
    class One:
        def run(self, x):
            return x + 1

    class Two(One):
        def run(self, x):
            return super().run(x) * 2

    thing = One()

    def f(x):
        y = thing.run(x)
        thing.__class__ = Two
        return y, thing.run(x)

    return f, lambda: (a(3),)


@program
def super_and_mro():
    class Base:
        def run(self, x):
            return x + 1

    class Left(Base):
        def run(self, x):
            return super().run(x) * 2

    class Right(Base):
        def run(self, x):
            return super().run(x) - 5

    class Both(Left, Right):
        def run(self, x):
            return super(Both, self).run(x), [c.__name__ for c in type(self).__mro__]

    return (lambda thing, x: thing.run(x)), lambda: (Both(), a(3))


@program
def reflected_operators():
    class Unit:
        __array_ufunc__ = None

        def __init__(self, n):
            self.n = n

        def __radd__(self, other):
            return other * self.n

        def __rmatmul__(self, other):
            return "matmul", other

        def __iadd__(self, other):
            self.n += 1
            return self

        def __neg__(self):
            return Unit(-self.n)

        def __index__(self):
            return self.n

        def __mul__(self, other):
            return NotImplemented

        def __contains__(self, item):
            return item == self.n

    def f(x, unit):
        unit += 3
        y = x + unit
        try:
            unit * "s"
        except TypeError as error:
            return y, x @ unit, (-unit).n, x[unit - 0 if False else unit.n - 2], [1, 2, 3, 4][unit], 3 in unit, str(error)

    return f, lambda: (a(3), Unit(2))


@program
def truth_length_and_equality():
    class Odd:
        def __init__(self, log):
            self.log = log

        def __bool__(self):
            self.log.append("bool")
            return False

        def __eq__(self, other):
            self.log.append("eq")
            return "maybe"

        def __hash__(self):
            self.log.append("hash")
            return 1

    class Sized:
        def __len__(self):
            return 0

    def f(x, log):
        odd = Odd(log)
        y = x + 1 if odd else x - 1
        found = odd == 5
        table = {odd: 1}
        return y, found, table[odd], not Sized(), odd in [odd], log

    return f, lambda: (a(3), [])


@program
def bool_that_raises():
    class Never:
        def __bool__(self):
            raise RuntimeError("no truth here")

    def f(x, never):
        y = x * 2
        return y and (never or y)

    return f, lambda: (np.float64(2.0), Never())


@program
def class_getitem_and_generic():
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, v):
            self.v = v

        def __class_getitem__(cls, item):
            return super().__class_getitem__(item)

    def f(x):
        return Box[int](x).v * 2, isinstance(Box(1), Box), Box.__name__

    return f, lambda: (a(3),)


@program
def dataclasses_and_tuples():
    @dataclasses.dataclass
    class Config:
        scale: float
        name: str = "c"
        items: list = dataclasses.field(default_factory=list)

        def __post_init__(self):
            self.items.append(self.scale)

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        value: int

    Pair = collections.namedtuple("Pair", "first second")

    def f(x, config):
        other = dataclasses.replace(config, scale=5)
        pair = Pair(x * config.scale, second=x)
        try:
            Frozen(1).value = 2
        except dataclasses.FrozenInstanceError as error:
            message = str(error)
        return pair, pair._replace(second=0).second, other, dataclasses.astuple(Frozen(3)), message, config == Config(2.0)

    return f, lambda: (a(3), Config(2.0))


@program
def enums_and_flags():
    class Mode(enum.Enum):
        FAST = "fast"
        SLOW = "slow"

    class Bits(enum.IntFlag):
        A = 1
        B = 2

    def f(x, mode):
        scale = {Mode.FAST: 2, Mode.SLOW: 3}[mode]
        return x * scale, mode is Mode.FAST, Mode("slow").name, int(Bits.A | Bits.B), [m.value for m in Mode]

    modes = iter([Mode.FAST, Mode.SLOW, Mode.FAST])
    return f, lambda: (a(3), next(modes))


@program
def ordered_and_default_dicts():
    def f(x):
        ordered = collections.OrderedDict(a=x, b=x * 2)
        ordered.move_to_end("a")
        groups = collections.defaultdict(list)
        for i, v in enumerate(x.tolist()):
            groups[i % 2].append(v)
        counts = collections.Counter("abca")
        chain = collections.ChainMap({"p": 1}, {"p": 2, "q": 3})
        queue = collections.deque([1, 2, 3], maxlen=3)
        queue.append(4)
        return list(ordered), groups, counts.most_common(1), chain["q"] * x, list(queue), {**ordered, "c": 1}.keys() - {"a"}

    return f, lambda: (a(4),)


@program
def dict_subclass_with_missing():
    class Table(dict):
        def __missing__(self, key):
            self[key] = len(self)
            return self[key]

        def __getitem__(self, key):
            return super().__getitem__(key)

    def f(x, table):
        return x * table["a"] + table["b"], table, table.get("zzz")

    return f, lambda: (a(3), Table(q=1))


@program
def list_subclass():
    class Stack(list):
        def append(self, item):
            super().append(item)
            super().append("twice")

        def __len__(self):
            return 100

    def f(x, stack):
        stack.append(x * 2)
        return len(stack), stack[0] + 1, [type(i).__name__ for i in stack], list.__len__(stack)

    return f, lambda: (a(3), Stack())


@program
def deepcopy_keeps_sharing():
    def f(x, table):
        table["self"] = table
        twin = copy.deepcopy(table)
        twin["x"][0] = 99
        return twin["self"] is twin, twin["x"] is twin["y"], twin["x"] + x, table["x"]

    def make():
        shared = a(3)
        return a(3), {"x": shared, "y": shared}

    return f, make


@program
def copy_protocols():
    class Cloner:
        def __init__(self, n):
            self.n = n

        def __copy__(self):
            return Cloner(self.n + 1)

        def __deepcopy__(self, memo):
            return Cloner(self.n + 100)

    def f(x, c):
        return x * copy.copy(c).n, copy.deepcopy([c, c])[0].n, pickle.loads(pickle.dumps([1, "a"])), copy.copy(x)

    return f, lambda: (a(3), Cloner(1))


@program
def destructor_order():
    class Noisy:
        def __init__(self, name, log):
            self.name, self.log = name, log

        def __del__(self):
            self.log.append(self.name)

    def f(x, log):
        one = Noisy("one", log)
        Noisy("temporary", log)
        y = x + 1
        log.append("after")
        one = None
        log.append("cleared")
        two = Noisy("two", log)
        del two
        return y, list(log)

    return f, lambda: (a(3), [])


@program
def weak_references():
    class Thing:
        pass

    def f(x, log):
        thing = Thing()
        ref = weakref.ref(thing, lambda _: log.append("gone"))
        y = x * 2
        alive = ref() is thing
        del thing
        return y, alive, ref() is None, log

    return f, lambda: (a(3), [])


@program
def context_variables_and_threads():
    level = contextvars.ContextVar("level", default=1)
    local = threading.local()

    def f(x):
        token = level.set(level.get() + 1)
        local.n = getattr(local, "n", 0) + 1
        y = x * level.get()
        level.reset(token)
        out = []
        worker = threading.Thread(target=lambda: out.append(getattr(local, "n", "unset")))
        worker.start()
        worker.join()
        return y + level.get(), local.n, out, contextvars.copy_context().run(lambda: level.get())

    return f, lambda: (a(3),)


@program
def callable_objects():
    class Affine:
        def __init__(self, w):
            self.w = w

        def __call__(self, x, *, b=0):
            return x * self.w + b

    affine = Affine(3)
    return affine, lambda: ((a(3),), {"b": 2})


@program
def bound_static_and_class_methods():
    class Math:
        factor = 4

        def bound(self, x):
            return x * self.factor

        @staticmethod
        def static(x):
            return x + 1

        @classmethod
        def klass(cls, x):
            return x - cls.factor

    def f(x, m):
        g = m.bound
        return g(x), m.static(x), Math.klass(x), Math.bound(m, x), g.__self__ is m, g.__func__ is Math.bound

    return f, lambda: (a(3), Math())


@program
def decorated_with_wraps():
    import functools

    def twice(g):
        @functools.wraps(g)
        def wrapper(*args, **kwargs):
            return g(*args, **kwargs), g(*args, **kwargs)

        return wrapper

    @twice
    def double(x):
        """Doubles."""
        return x * 2

    def f(x):
        return double(x), double.__name__, double.__doc__, double.__wrapped__(x)

    return f, lambda: (a(3),)


@program
def object_state_is_rolled_back_by_user():
    class Account:
        def __init__(self):
            self.total = 0
            self.entries = []

        def add(self, x):
            self.total += 1
            self.entries.append(float(x.sum()))
            if self.total > 2:
                self.total = 0
                raise OverflowError("full")
            return x * self.total

    account = Account()

    def f(x):
        try:
            return account.add(x), account.entries
        except OverflowError as error:
            return str(error), account.total

    return f, lambda: (a(3),)


@program
def side_effects_in_order():
    class Log(list):
        pass

    def f(x, log, table, things):
        log.append("start")
        table["a"] = x + 1
        things.add(3)
        log[0] = "changed"
        log.extend([table["a"].sum(), len(log)])
        table.setdefault("b", []).append(log[1])
        del table["a"]
        log.insert(0, list(table))
        return x * len(log), log.pop(), table.pop("b")

    return f, lambda: (a(3), Log(), {}, {1})


@program
def strings_and_formats():
    class Fancy:
        def __format__(self, spec):
            return f"<{spec}>"

        def __repr__(self):
            return "Fancy()"

    def f(x, name):
        total = x.sum()
        text = f"{name!r:>8}|{total:.2f}|{x.shape}|{Fancy():abc}|{Fancy()}|{3:>{4}}"
        return text, "%s-%d" % (name, 3), "{0}{k}".format(1, k=2), "a,b".split(","), str(x.dtype), name.encode(), x * len(text)

    return f, lambda: (a(3), "nm")


@program
def integers_and_floats():
    def f(x, n):
        big = n**40
        return x * (n // 3), -n // 4, n % -3, divmod(n, 4), big, hash(n), round(2.5), int("12", 3), n / 3, float("inf") > n, (n << 3) ^ 5, True + n, n.bit_length(), 0.1 + 0.2, abs(-n), pow(n, 2, 5)

    return f, lambda: (a(3), 7)


@program
def comparisons_chain_on_array_fails():
    def f(x):
        y = x + 1
        return 0 < y < 2

    return f, lambda: (a(3),)


@program
def unpacking():
    def f(x, pairs):
        first, *middle, last = x
        (p, q), r = pairs
        rows, columns = x.reshape(2, 3).shape
        merged = [*x.tolist(), *pairs]
        return first + last, len(middle), p * q + r, rows * columns, merged, {**{"k": 1}, "m": 2}

    return f, lambda: (a(6), ((1, 2), 3))


@program
def unpacking_fails():
    def f(x):
        y = x * 2
        p, q = y
        return p

    return f, lambda: (a(3),)


@program
def class_defined_inside():
    def f(x):
        class Local:
            scale = 3

            def run(self, v):
                return v * self.scale

        return Local().run(x), Local.__qualname__

    return f, lambda: (a(3),)


@program
def isinstance_hooks():
    class Anything(type):
        def __instancecheck__(cls, instance):
            return instance == 5

    class Five(metaclass=Anything):
        pass

    def f(x):
        return x * 2 if isinstance(5, Five) else x, isinstance(6, Five), isinstance(x, np.ndarray), isinstance(True, int), issubclass(bool, int)

    return f, lambda: (a(3),)


@program
def arrays_as_keys_and_members():
    def f(x, y):
        table = {id(x): "x"}
        lists = [x, y]
        same = [v is x for v in lists]
        try:
            y in lists
            {x: 1}
        except (ValueError, TypeError) as error:
            return table[id(x)], same, type(error).__name__, x + y

    return f, lambda: (a(3), a(3) + 1)


@program
def super_of_a_class_that_is_none():
    class Base:
        size = 3

    class Derived(Base):
        def by(self):
            return super().size

    def f(x, thing, log):
        y = x * 2
        try:
            y = y * thing.by()
        except (RuntimeError, TypeError) as error:
            log.append(repr(error))
        return y

    def make():
        cell = Derived.by.__closure__[0]
        cell.cell_contents = None if cell.cell_contents is Derived else Derived
        return a(3), Derived(), []

    return f, make
