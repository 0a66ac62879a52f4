"""State that is read in unusual ways: descriptors, metaclasses, `__getattr__` at every level, caches, registries, scopes, switches."""

import abc
import builtins
import collections
import contextlib
import contextvars
import copyreg
import dataclasses
import enum
import functools
import gc
import logging
import operator
import os
import random
import string
import sys
import threading
import types
import typing
import warnings
import weakref

import numpy as np
import torch
from harness import Programs

program = Programs("torch", "numpy")


def X():
    return (torch.arange(4.0),)


class Scaled:
    """A data descriptor with state of its own and of its owner's class."""

    factor = 2

    def __init__(self, start):
        self.start, self.reads = start, 0

    def __get__(self, owner, kind):
        if owner is None:
            return self
        self.reads += 1
        return (owner.base + self.start) * self.factor * getattr(kind, "unit", 1)

    def __set__(self, owner, value):
        owner.base = value


@program
def a_data_descriptor_with_state():
    class Holder:
        size = Scaled(3)

        def __init__(self):
            self.base = 1

    holder = Holder()
    return lambda x: (x * holder.size, Holder.size.reads), X


@program
def a_data_descriptor_that_is_written():
    class Holder:
        size = Scaled(1)
        unit = 3

    holder = Holder()
    holder.size = 2

    def f(x):
        y = x * holder.size
        holder.size = 4
        return y + holder.size

    return f, X


@program
def a_descriptor_without_set_hidden_by_the_object():
    class Lazy:
        def __get__(self, owner, kind):
            return 5

    class Holder:
        size = Lazy()
        other = Lazy()

    holder = Holder()
    holder.__dict__["other"] = 7
    return lambda x: x * holder.size + holder.other, X


@program
def a_descriptor_that_is_a_callable_object():
    class Bound:
        def __init__(self, by):
            self.by = by

        def __get__(self, owner, kind):
            return functools.partial(self.call, owner)

        def call(self, owner, x):
            return x * self.by + owner.shift

    class Holder:
        run = Bound(3)
        shift = 1

    holder = Holder()
    return lambda x: holder.run(x), X


@program
def names_that_descriptors_were_told():
    class Named:
        def __set_name__(self, kind, name):
            self.name = name

        def __get__(self, owner, kind):
            return owner.values[self.name]

    class Holder:
        a, b = Named(), Named()

        def __init__(self):
            self.values = {"a": 2, "b": 5}

    holder = Holder()
    return lambda x: x * holder.a + holder.b, X


@program
def a_metaclass_with_a_property_and_getattr():
    class Meta(type):
        level = 2

        @property
        def size(cls):
            return cls.level * len(cls.__name__)

        def __getattr__(cls, name):
            return len(name)

    class Kind(metaclass=Meta):
        pass

    return lambda x: x * Kind.size + Kind.missing + Kind.level, X


@program
def a_metaclass_that_answers_calls_len_and_items():
    class Meta(type):
        made = {"a": 2, "b": 3}

        def __len__(cls):
            return len(cls.made)

        def __getitem__(cls, key):
            return cls.made[key]

        def __contains__(cls, key):
            return key in cls.made

        def __iter__(cls):
            return iter(cls.made.values())

    class Kind(metaclass=Meta):
        pass

    return lambda x: x * len(Kind) + Kind["a"] + sum(Kind) + ("c" in Kind), X


@program
def instances_by_a_metaclass():
    class Meta(type):
        names = ["Tensor"]

        def __instancecheck__(cls, value):
            return type(value).__name__ in cls.names

        def __subclasscheck__(cls, kind):
            return kind.__name__ in cls.names

    class Kind(metaclass=Meta):
        pass

    return lambda x: (x + isinstance(x, Kind) + 2 * isinstance(3, Kind), issubclass(int, Kind)), X


@program
def a_class_that_changes_its_objects_class():
    class Off:
        def __call__(self, x):
            return x

    class On(Off):
        by = 3

        def __call__(self, x):
            return x * self.by

    switch = Off()

    def f(x):
        y = switch(x)
        switch.__class__ = On if type(switch) is Off else Off
        return y

    return f, X


@program
def the_class_of_an_object_set_elsewhere():
    class A:
        by = 2

        def run(self, x):
            return x * self.by

    class B(A):
        by = 5

    thing, calls = A(), []

    def make():
        calls.append(0)
        thing.__class__ = B if len(calls) % 2 else A
        return X()

    return lambda x: (thing.run(x), type(thing).__name__, isinstance(thing, B)), make


@program
def a_chain_of_getattr():
    class Proxy:
        def __init__(self, to):
            self._to = to

        def __getattr__(self, name):
            return getattr(self._to, name)

    class Core:
        size = 3

    core = Core()
    core.shift = 1
    outer = Proxy(Proxy(Proxy(core)))
    return lambda x: x * outer.size + outer.shift + getattr(outer, "missing", 2), X


@program
def getattr_that_makes_what_it_gives():
    class Lazy:
        made = 0

        def __getattr__(self, name):
            Lazy.made += 1
            value = len(name)
            setattr(self, name, value)
            return value

    lazy = Lazy()
    return lambda x: (x * lazy.three + lazy.fiver, Lazy.made), X


@program
def getattribute_that_counts():
    class Watched:
        by = 2
        seen = collections.Counter()

        def __getattribute__(self, name):
            if name != "__class__":  # which the harness asks for, too
                type(self).seen[name] += 1
            return object.__getattribute__(self, name)

    watched = Watched()
    return lambda x: (x * watched.by, dict(Watched.seen)), X


@program
def a_modules_getattr():
    module = types.ModuleType("state_module")
    module.table = {"alpha": 2, "beta": 3}

    def __getattr__(name):
        if name in module.table:
            return module.table[name]
        raise AttributeError(name)

    module.__getattr__ = __getattr__
    return lambda x: x * module.alpha + module.beta + getattr(module, "gamma", 10), X


@program
def a_module_of_another_class():
    class Kind(types.ModuleType):
        base = 4

        @property
        def size(self):
            return self.base + self.shift

    module = types.ModuleType("state_module")
    module.__class__ = Kind
    module.shift = 1
    return lambda x: x * module.size, X


@program
def modules_found_in_sys_modules():
    module = types.ModuleType("framejit_state_module")
    module.size = 3

    def make():
        sys.modules["framejit_state_module"] = module
        return X()

    def f(x):
        found = sys.modules.get("framejit_state_module")
        import framejit_state_module as again

        return x * found.size + (again is found) + ("framejit_no_module" in sys.modules)

    return f, make


@program
def fields_of_a_dataclass():
    @dataclasses.dataclass
    class Config:
        width: int = 3
        names: list = dataclasses.field(default_factory=lambda: ["a"])
        scale: float = dataclasses.field(default=0.5, metadata={"unit": 2})

        def __post_init__(self):
            self.area = self.width * 2

    config = Config()

    def f(x):
        unit = sum(field.metadata.get("unit", 1) for field in dataclasses.fields(config))
        return x * config.area * unit + config.scale, dataclasses.astuple(config), dataclasses.replace(config, width=5).area

    return f, X


@program
def frozen_dataclasses_as_keys():
    @dataclasses.dataclass(frozen=True)
    class Key:
        name: str
        index: int = 0

    table = {Key("a"): 2, Key("a", 1): 3}
    key = Key("a", 1)
    return lambda x: x * table[key] + table[Key("a")] + (Key("b") in table), X


@program
def a_dataclass_with_slots_and_order():
    @dataclasses.dataclass(slots=True, order=True)
    class Item:
        weight: int
        name: str = "n"

    items = [Item(3), Item(1, "b"), Item(2)]
    return lambda x: (x * min(items).weight + max(items).weight, [i.weight for i in sorted(items)], items[0] == Item(3)), X


@program
def members_of_enums():
    class Mode(enum.Enum):
        FAST = 2
        SLOW = 3

        @property
        def cost(self):
            return self.value * Mode.SLOW.value

        @classmethod
        def _missing_(cls, value):
            return cls.FAST

    class Flags(enum.Flag):
        A = enum.auto()
        B = enum.auto()

    state = types.SimpleNamespace(mode=Mode.SLOW, flags=Flags.A)

    def f(x):
        y = x * state.mode.cost + (Flags.B in state.flags) + Mode(99).value + len(Mode.__members__)
        return y, state.mode is Mode["SLOW"], state.mode.name

    return f, X


@program
def a_property_with_state_and_setter():
    class Counter:
        def __init__(self):
            self._n = 0

        @property
        def n(self):
            return self._n

        @n.setter
        def n(self, value):
            self._n = value * 2

    counter = Counter()

    def f(x):
        counter.n = counter.n + 1
        return x + counter.n

    return f, X


@program
def a_property_of_a_base_class_by_super():
    class Base:
        by = 2

        @property
        def size(self):
            return self.by

        @classmethod
        def name(cls):
            return cls.__name__

    class Derived(Base):
        @property
        def size(self):
            return super().size + 3

        @classmethod
        def name(cls):
            return "of " + super().name()

    thing = Derived()
    return lambda x: (x * thing.size, thing.name()), X


@program
def a_cached_property():
    class Holder:
        base = 2

        @functools.cached_property
        def size(self):
            self.count = getattr(self, "count", 0) + 1
            return self.base + 3

    holder = Holder()
    return lambda x: (x * holder.size + holder.count, "size" in holder.__dict__), X


@program
def a_cached_property_that_is_thrown_away():
    class Holder:
        base = 2

        @functools.cached_property
        def size(self):
            return self.base + 3

    holder = Holder()

    def f(x):
        y = x * holder.size
        del holder.size
        holder.base += 1
        return y

    return f, X


@program
def weak_references_and_their_containers():
    class Node:
        by = 2

    node, other = Node(), Node()
    reference, values, keys, members = weakref.ref(node), weakref.WeakValueDictionary(a=node), weakref.WeakKeyDictionary({node: 3}), weakref.WeakSet([node])
    return lambda x: x * reference().by + values["a"].by + keys[node] + keys.get(other, 10) + (other in members) + len(members), X


@program
def a_weak_method_and_a_proxy():
    class Node:
        by = 2

        def run(self, x):
            return x * self.by

    node = Node()
    method, proxy = weakref.WeakMethod(node.run), weakref.proxy(node)
    return lambda x: method()(x) + proxy.by + (0 if node is None else 1), X


@program
def context_variables():
    scale, shift = contextvars.ContextVar("scale", default=2), contextvars.ContextVar("shift")

    def f(x):
        token = scale.set(scale.get() + 1)
        y = x * scale.get() + shift.get(5)
        scale.reset(token)
        return y + scale.get()

    return f, X


@program
def a_context_that_runs_a_function():
    scale = contextvars.ContextVar("scale", default=2)
    context = contextvars.copy_context()
    context.run(scale.set, 7)
    return lambda x: x * context.run(scale.get) + scale.get(), X


@program
def variables_of_the_environment():
    def make():
        os.environ.setdefault("FRAMEJIT_STATE_TEST", "3")
        return X()

    def f(x):
        return x * int(os.environ["FRAMEJIT_STATE_TEST"]) + int(os.environ.get("FRAMEJIT_STATE_NONE", "1")) + ("FRAMEJIT_STATE_NONE" in os.environ), os.getenv("FRAMEJIT_STATE_TEST")

    return f, make


@program
def counters_of_a_class():
    class Layer:
        made, calls = 0, 0

        def __init__(self):
            type(self).made += 1
            self.index = Layer.made

        def __call__(self, x):
            Layer.calls += 1
            return x * self.index + Layer.calls

    first, second = Layer(), Layer()
    return lambda x: (second(first(x)), Layer.calls, Layer.made), X


@program
def default_dicts_that_grow():
    groups, counts = collections.defaultdict(list), collections.defaultdict(int)

    def f(x):
        counts[len(groups) % 2] += 1
        groups[counts[0]].append(x.shape[0])
        return x * counts[0] + counts[1], {k: list(v) for k, v in groups.items()}

    return f, X


@program
def a_default_dict_whose_factory_changes():
    table = collections.defaultdict(lambda: 3, a=2)

    def f(x):
        y = x * table["a"] + table["missing"]
        del table["missing"]
        return y

    return f, X


@program
def a_dict_with_missing():
    class Table(dict):
        fallback = 4

        def __missing__(self, key):
            return self.fallback + len(key)

    table = Table(a=2)
    return lambda x: x * table["a"] + table["bcd"] + table.get("bcd", 1), X


@program
def variables_changed_by_another_closure():
    scale, seen = 2, []

    def later():
        nonlocal scale
        scale += 1
        seen.append(scale)

    def f(x):
        y = x * scale
        later()
        return y + scale + len(seen)

    return f, X


@program
def variables_of_two_levels_of_closures():
    def outer(a):
        def middle(b):
            def inner(x):
                return x * a + b

            def bump():
                nonlocal a, b
                a, b = b, a

            return inner, bump

        return middle

    inner, bump = outer(2)(5)
    calls = []

    def make():
        calls.append(0)
        if len(calls) > 2:
            bump()
        return X()

    return lambda x: inner(x), make


@program
def a_variable_that_is_deleted_and_bound_again():
    value = 3

    def toggle(on):
        nonlocal value
        if on:
            value = 3
        else:
            del value

    def f(x):
        try:
            return x * value
        except NameError:
            return x - 1

    calls = []

    def make():
        calls.append(0)
        if len(calls) >= 2:
            toggle(len(calls) % 2)
        return X()

    return f, make


@program
def names_of_own_builtins():
    space = {"__builtins__": {"len": lambda x: 7, "abs": abs, "__build_class__": builtins.__build_class__}, "__name__": "state"}
    exec("def f(x):\n return abs(x) * len(x)", space)
    return space["f"], X


@program
def globals_that_hide_builtins():
    space = {"__name__": "state", "by": 2}
    exec("def f(x):\n global by\n by += 1\n return x * by + len([1, 2]) + max(1, 5)", space)
    return space["f"], X


@program
def globals_as_a_dict():
    space = {"__name__": "state", "size": 2}
    exec("def f(x):\n return x * globals()['size'] + globals().get('other', 1) + ('third' in globals())", space)
    return space["f"], X


@program
def the_garbage_collector():
    return lambda x: (x + gc.isenabled() + len(gc.callbacks), gc.get_debug()), X


@program
def the_filters_of_warnings():
    def f(x):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            warnings.warn("state", stacklevel=1)
        return x + len(seen), warnings.filters[0][0]

    return f, X


@program
def a_warning_given_once():
    registry = {}

    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn_explicit("once", UserWarning, "state.py", 1, registry=registry)
        return x + len(registry)

    return f, X


@program
def error_states_of_numpy():
    a = np.array([1.0, 0.0])

    def f(v):
        with np.errstate(divide="ignore"):
            y = v / a
        return y, np.geterr()["divide"], np.get_printoptions()["precision"], str(np.array([1 / 3]))

    return f, lambda: (np.arange(1.0, 3.0),)


@program
def switches_of_torch():
    def f(x):
        y = x * 2 if torch.is_grad_enabled() else x * 3
        y = y + torch.ones(2, dtype=torch.get_default_dtype()).sum() + torch.get_num_threads() * 0
        if torch.are_deterministic_algorithms_enabled() or torch.is_autocast_enabled("cpu"):
            y = y + 1
        return y, torch.get_default_dtype(), torch.tensor(1.5).dtype, torch.get_autocast_dtype("cpu")

    return f, X


@program
def switches_of_torch_set_and_reset():
    def f(x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        y = torch.ones(4)
        torch.set_default_dtype(before)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=torch.is_grad_enabled()):
            z = x[None] @ x[:, None]
        return x + y, z

    return f, X


@program
def state_of_generators():
    def f(x):
        return x + torch.rand(4) + random.random() + np.random.rand(), torch.initial_seed()

    return f, X


@program
def logging_and_its_levels():
    log, child = logging.Logger("log"), logging.Logger("child")
    child.parent, child.manager = log, logging.Manager(log)
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log.handlers = [handler]
    log.setLevel(logging.WARNING)

    def f(x):
        child.info("not seen")
        child.warning("seen %d", x.shape[0])
        return x + len(lines) + child.isEnabledFor(logging.DEBUG) + child.getEffectiveLevel()

    return f, X


@program
def state_of_a_thread():
    local = threading.local()
    local.depth = 1

    def f(x):
        local.depth += 1
        seen = getattr(local, "seen", ())
        local.seen = (*seen, local.depth)
        return x * local.depth + len(seen), threading.current_thread() is threading.main_thread()

    return f, X


@program
def dispatch_by_type():
    @functools.singledispatch
    def size(value):
        return 1

    @size.register
    def _(value: int):
        return value

    @size.register(list)
    def _(value):
        return len(value)

    items = [3, [1, 2], "s"]
    return lambda x: x * sum(size(i) for i in items), X


@program
def a_cache_and_what_it_knows():
    base = [2]

    @functools.lru_cache(maxsize=2)
    def cached(n):
        return n * base[0]

    def f(x):
        y = x * cached(1) + cached(2) + cached(3)
        return y, tuple(cached.cache_info())

    return f, X


@program
def partial_objects_with_attributes():
    def run(x, a, b=2, *, c=1):
        return x * a + b * c

    partial = functools.partial(run, a=3)
    partial.extra = 4
    method = functools.partialmethod(run, a=2)

    class Holder:
        go = method

    Holder.go_too = partial
    return lambda x: partial(x) + partial.extra + Holder.go_too(x, c=3) + partial.keywords["a"], X


@program
def a_registry_of_subclasses():
    class Base:
        def __init_subclass__(cls, by=1, **keywords):
            super().__init_subclass__(**keywords)
            cls.by = by

    class A(Base, by=2):
        pass

    class B(A, by=3):
        pass

    kinds = [A, B]
    return lambda x: x * sum(k.by for k in kinds) + len(Base.__subclasses__()) + len(A.__mro__) + (A.__bases__ == (Base,)), X


@program
def abstract_classes_with_virtual_subclasses():
    class Shape(abc.ABC):
        @classmethod
        def __subclasshook__(cls, kind):
            return True if any("area" in vars(k) for k in kind.__mro__) else NotImplemented

    class Square:
        area = 4

    class Other:
        pass

    Shape.register(Other)
    things = [Square(), Other(), 3]
    return lambda x: x * sum(isinstance(t, Shape) for t in things) + issubclass(int, Shape), X


@program
def protocols_at_run_time():
    @typing.runtime_checkable
    class Sized(typing.Protocol):
        size: int

    class Thing:
        pass

    thing = Thing()
    thing.size = 3
    return lambda x: x * thing.size + isinstance(thing, Sized) + isinstance(4, Sized), X


@program
def slots_that_may_be_unset():
    class Holder:
        __slots__ = ("a", "b", "__weakref__")

    class More(Holder):
        __slots__ = ("c",)
        d = 5

    holder = More()
    holder.a = 2
    return lambda x: x * holder.a + getattr(holder, "b", 3) + hasattr(holder, "c") + holder.d, X


@program
def objects_with_operators_of_their_own():
    class Number:
        def __init__(self, value):
            self.value = value

        def __add__(self, other):
            return self.value + other

        def __rmul__(self, other):
            return other * self.value

        def __lt__(self, other):
            return self.value < other

        def __bool__(self):
            return self.value > 1

        def __index__(self):
            return self.value

        def __format__(self, spec):
            return f"<{self.value}{spec}>"

        def __hash__(self):
            return self.value

        def __eq__(self, other):
            return self.value == getattr(other, "value", other)

    number = Number(2)
    table = {Number(2): 5, 3: 6}

    def f(x):
        y = x * number + (number + 1) + [1, 2, 3][number] + (number < 3) + table[number]
        return (y if number else -y), f"{number:x}", range(3)[number], 2 in table

    return f, X


@program
def items_of_an_object_by_operators():
    class Node:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    tree = Node(left=Node(value=2), right=Node(value=3, more=[4, 5]))
    get, item, call = operator.attrgetter("left.value", "right.value"), operator.itemgetter(1), operator.methodcaller("get", "a", 7)
    return lambda x: x * sum(get(tree)) + item(tree.right.more) + call({"a": 1}) + call(vars(tree)), X


@program
def annotations_and_documentation():
    def inner(x: int, y: "float" = 2.0) -> "text":  # noqa: F821
        """doc"""
        return x * y

    class Kind:
        a: int = 3
        b: "str"

    return lambda x: (inner(x) + len(inner.__annotations__) + len(Kind.__annotations__) + len(inner.__doc__), inner.__defaults__, Kind.__doc__), X


@program
def ways_to_call_a_method():
    class Base:
        by = 2

        def run(self, x):
            return x * self.by

    class Derived(Base):
        by = 3
        other = Base.run

    thing = Derived()
    bound = thing.run
    return lambda x: bound(x) + Base.run(thing, x) + thing.other(x) + bound.__self__.by + bound.__func__(thing, x), X


@program
def user_containers_of_the_library():
    chain = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    ordered, deque, user = collections.OrderedDict(b=1, a=2), collections.deque([1, 2], maxlen=3), collections.UserList([4, 5])

    def f(x):
        deque.append(len(deque))
        ordered.move_to_end("b")
        return x * chain["a"] + chain["b"] + deque[0] + user[-1], list(ordered), list(deque), chain.maps[0]

    return f, X


@program
def templates_and_formats():
    template, state = string.Template("$a-$b"), types.SimpleNamespace(a=1, b={"k": [7, 8]})
    return lambda x: (x + state.a, template.substitute(a=state.a, b=2), "{0.a} {0.b[k][1]}".format(state), f"{state.a:>{state.b['k'][0]}}"), X


@program
def modules_with_buffers_hooks_and_own_attributes():
    class Net(torch.nn.Module):
        scale = 2

        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.ones(4), persistent=False)
            self.inner = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4)})
            self.extra = {"on": True}

        def forward(self, x):
            y = self.inner["a"](x) * self.scale + self.shift
            if self.extra["on"] and self.training and hasattr(self, "bonus"):
                y = y + self.bonus
            return y, len(self._buffers), [n for n, _ in self.named_parameters()]

    torch.manual_seed(0)
    net = Net()
    net.inner["a"].register_forward_hook(lambda module, args, result: result * 2)
    return lambda x: net(x), X


@program
def reductions_registered_with_copyreg():
    class Kind:
        pass

    return lambda x: (x + (Kind in copyreg.dispatch_table), len([k for k in copyreg.dispatch_table if k is Kind])), X


@program
def an_object_that_is_a_mapping_for_a_call():
    class Options:
        values = {"a": 2, "b": 3}

        def keys(self):
            return self.values.keys()

        def __getitem__(self, key):
            return self.values[key] * 2

    options = Options()

    def run(x, a=1, b=1):
        return x * a + b

    return lambda x: run(x, **options) + run(x, *options.keys().__class__.__name__[:0]), X


@program
def who_asks_for_function_modes_under_a_default_device():
    def f(x):
        asked = torch.overrides.has_torch_function((x,)), torch.overrides.has_torch_function_unary(x)
        return torch.nn.functional.softmax(x, -1) + len(asked), asked

    count = []

    def run(x):
        count.append(0)
        with torch.device("cpu") if len(count) == 2 else contextlib.nullcontext():
            return f(x)

    return run, X
