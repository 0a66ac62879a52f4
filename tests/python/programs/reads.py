"""Programs that read the world outside in every way Python has. mutate.py changes what they read."""

import collections
import contextvars
import dataclasses
import decimal
import enum
import functools
import math
import operator
import os
import string
import sys
import threading
import types
import weakref

import numpy as np
import torch
from harness import Programs

program = Programs("torch")
LEVEL = 3
NAMES = ["a", "b"]
TABLE = {"a": 1.5, "b": 2}
LOCAL = threading.local()
LOCAL.rate = 2.0
CONTEXT = contextvars.ContextVar("rate", default=3)


def x():
    return (torch.arange(6.0).reshape(2, 3) - 2,)


def scale_of(level):
    return level * LEVEL


@program
def globals_through_helpers():
    def f(t):
        return t * scale_of(2) + LEVEL, len(NAMES), TABLE["a"]

    return f, x


@program
def absent_attributes_with_defaults():
    class Settings:
        __slots__ = ("given", "unset")

        def __init__(self):
            self.given = 2

    class Plain:
        pass

    slots, plain = Settings(), Plain()

    def f(t):
        try:
            extra = plain.missing
        except AttributeError:
            extra = 1
        return t * slots.given + getattr(slots, "unset", 5), hasattr(plain, "later"), extra, getattr(Plain, "unset", None)

    return f, x


@program
def attributes_of_tensors_and_modules():
    layer = torch.nn.Linear(3, 3)
    torch.nn.init.ones_(layer.weight)

    def f(t):
        return t + getattr(layer, "gain", 1) + getattr(layer.weight, "gain", 1), hasattr(t, "tag"), getattr(t, "tag", 0), hasattr(torch.Tensor, "tag")

    return f, x


@program
def values_of_the_thread():
    def f(t):
        return t * getattr(LOCAL, "rate", 7.0), hasattr(LOCAL, "other"), CONTEXT.get()

    return f, x


@program
def values_of_the_process():
    def f(t):
        return t + 1, sys.getrecursionlimit(), str(decimal.Decimal(1) / 3), torch.get_float32_matmul_precision(), os.environ.get("HOME", "") != "", torch.get_default_dtype()

    return f, x


@program
def facts_of_classes():
    class Base:
        kind = "base"

    class Derived(Base):
        """Text."""

    class Meta(type):
        pass

    class WithMeta(metaclass=Meta):
        pass

    thing = Derived()

    def f(t):
        return t + len(Derived.__name__), Derived.__qualname__[-7:], Derived.__doc__, thing.kind, isinstance(3, WithMeta), issubclass(int, WithMeta), type(thing).__mro__[1].__name__, Derived.__bases__[0] is Base

    return f, x


@program
def special_methods():
    class Position:
        def __init__(self, at):
            self.at = at

        def __index__(self):
            return self.at

        def __len__(self):
            return self.at + 1

        def __contains__(self, item):
            return item == self.at

        def __iter__(self):
            return iter((self.at, self.at + 1))

        def __call__(self, n):
            return n + self.at

        def __eq__(self, other):
            return self.at == getattr(other, "at", None)

        def __hash__(self):
            return self.at

        def __lt__(self, other):
            return self.at < other.at

        def __getitem__(self, key):
            if key > 5:  # where it stands in for __iter__
                raise IndexError(key)
            return key * 2

        def __format__(self, how):
            return f"{self.at}{how}"

        def __abs__(self):
            return self.at

    p, q = Position(1), Position(1)

    def f(t):
        return t[p] + [3, 4][p], len(p), 1 in p, list(p), p(4), p == q, hash(p), p < q, p[3], f"{p:!}", abs(p), bool(p), sorted([p, q])[0].at, {p: 1}[q], operator.index(p)

    return f, x


@program
def properties_and_descriptors():
    class Doubling:
        def __init__(self):
            self.factor = 2

        def __get__(self, instance, owner):
            return instance.value * self.factor

    class Thing:
        twice = Doubling()
        limit = 9

        def __init__(self):
            self.value = 3

        @property
        def half(self):
            return self.value / 2

        @classmethod
        def made(cls):
            return cls.limit

        @staticmethod
        def free(n):
            return n + 1

        @functools.cached_property
        def costly(self):
            return self.value * 10

    thing = Thing()

    def f(t):
        return t * thing.twice + thing.half, thing.made(), Thing.free(1), thing.costly

    return f, x


@program
def containers():
    rows, words, members, queue = [[1, 2], [3]], {"p": [1], "q": {"r": 2}}, {1, 2}, collections.deque([1, 2])
    counts, ordered, default = collections.Counter("aab"), collections.OrderedDict(a=1, b=2), collections.defaultdict(int, z=1)

    def f(t):
        total = sum(n for row in rows for n in row)
        return t + total, words["q"]["r"], 2 in members, queue[-1], counts["a"], list(ordered), default["z"], words.get("s", 4), len(rows), rows[0][1:], max(members), "p" in words, words | {"n": 1}

    return f, x


@program
def views_and_namespaces():
    class Box:
        def __init__(self):
            self.a, self.b = 1, 2

    box, table = Box(), {"k": 1, "m": 2}
    keys, items = table.keys(), table.items()
    space, proxy = types.SimpleNamespace(n=4), types.MappingProxyType(table)

    def f(t):
        return t + sum(vars(box).values()), sorted(keys), len(items), space.n, proxy["k"], sorted(box.__dict__), list(reversed(table))

    return f, x


@program
def functions_as_values():
    def first(n, by=2, *, more=1):
        return n * by + more

    partial = functools.partial(first, by=5)
    chosen = {"first": first}
    first.note = 8

    @functools.lru_cache(maxsize=2)
    def cached(n):
        return n * LEVEL

    def f(t):
        return t + first(1), partial(2), chosen["first"](3), cached(1) + cached(2) + cached(1), getattr(first, "note", 0), getattr(first, "other", 1), first.__name__, first.__defaults__

    return f, x


@program
def dataclasses_and_enums():
    @dataclasses.dataclass
    class Config:
        width: int = 2
        names: list = dataclasses.field(default_factory=lambda: ["n"])

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    Pair = collections.namedtuple("Pair", "left right")
    config, color, pair = Config(), Color.RED, Pair(1, 2)

    def f(t):
        return t * config.width + color.value, config.names, Color["BLUE"].name, pair.left, pair._replace(left=3), color is Color.RED, dataclasses.asdict(config), [c.name for c in Color]

    return f, x


@program
def weak_references_and_bound_methods():
    class Node:
        def __init__(self):
            self.value = 2

        def get(self):
            return self.value

    node = Node()
    reference, method = weakref.ref(node), node.get

    def f(t):
        return t + reference().value + method(), method.__self__ is node, reference() is None

    return f, x


@program
def modules_as_values():
    tools = types.ModuleType("tools")
    tools.factor = 3
    tools.table = {"a": 1}
    tools.act = lambda n: n + 1

    def f(t):
        return t * tools.factor, tools.act(1), tools.table["a"], getattr(tools, "missing", 5), hasattr(tools, "act")

    return f, x


@program
def modules_of_torch():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(3, 3)
            self.drop = torch.nn.Dropout(0.0)
            self.register_buffer("shift", torch.ones(3))
            self.parts = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])
            self.gain, self.names = 2, ["a"]
            with torch.no_grad():
                self.lin.weight.fill_(0.5)
                self.lin.bias.fill_(0.1)

        def forward(self, t):
            t = self.drop(self.lin(t)) * self.gain + self.shift
            for part in self.parts:
                t = part(t)
            return t + len(self.names), self.training, [n for n, _ in self.named_parameters()]

    block = Block()

    def f(t):
        return block(t)

    return f, x


@program
def numbers_in_arithmetic():
    def f(t, n, r):
        return t * n + r, n // 3, -n // 2, n % 4, divmod(n, 3), n << 2, n**2, pow(n, 3, 7), n / 2, r * 2 - 1, r // 1, int(r), round(r, 1), f"{n:03d} {r:.2f}", math.sqrt(n), n.bit_length(), n & 6, ~n, abs(-n), min(n, 5), max(r, 1.0), n == 5, r > 2, str(n), float(n), bool(n), range(n)[-1], [0] * n, "ab" * n, complex(n, r), hash(n)  # fmt: skip

    return f, lambda: (*x(), 5, 2.5)


@program
def numbers_as_sizes():
    def f(t, n):
        return t.reshape(-1)[:n], t.repeat(n, 1), torch.zeros(n, 2), torch.arange(n), t.expand(n, 2, 3), t.sum(n % 2), torch.full((n,), float(n)), np.ones(n)

    return f, lambda: (*x(), 3)


@program
def texts():
    prefix, template = "n", string.Template("$a")

    def f(t, name):
        return t + len(prefix + name), name.upper(), f"{prefix}-{name}", name.split("i"), name in NAMES, name[0], template.substitute(a=name), name == "in", "%s" % name, name.encode()

    return f, lambda: (*x(), "in")


@program
def numpy_beside_torch():
    weights = np.array([1.0, 2.0, 3.0])

    def f(t):
        return t * 2, np.dot(weights, weights), weights.sum(), weights + LEVEL, weights.dtype, weights.shape, float(weights[1])

    return f, x
