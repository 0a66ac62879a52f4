"""Objects that contain themselves, made in a graph and needed behind it: as one object each, with what they hold."""

import collections
import time

import pytest

torch = pytest.importorskip("torch")


class Node:
    def __init__(self, value, parent=None):
        self.value, self.parent, self.children = value, parent, []
        if parent is not None:
            parent.children.append(self)


class Slotted:
    __slots__ = ("value", "other")


class Table(dict):
    pass


class Row(list):
    pass


class Ordered(collections.OrderedDict):
    pass


class Equal:
    """Its hash asks for an attribute."""

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return type(other) is Equal and self.name == other.name


def tree(x):
    root = Node(x + 1)
    Node(x * 2, Node(x * 3, root))
    return root


def a_list(x):
    made = [x + 1]
    made.append(made)
    return (made, {"in": made})


def a_dict(x):
    made = {"value": x + 1}
    made["self"] = made
    return [made, made["self"]]


def recursive(x):
    y = x + 1

    def power(n):
        return y if n == 0 else y * power(n - 1)

    return power


def slots(x):
    a, b = Slotted(), Slotted()
    a.value, a.other, b.value, b.other = x + 1, b, x + 2, a
    return b


def subclasses(x):
    table, row, ordered = Table(value=x + 1), Row([x + 2]), Ordered(z=1, a=x + 3)
    table["row"], table.ordered, ordered["table"] = row, ordered, table
    row.append(table)
    row.back = row
    ordered.move_to_end("z")
    return row


def two_names(x):
    a, b = [], []
    a.append(b)
    b.append(a)
    return b, a, x + 1


def a_method(x):
    node = Node(x + 1)
    node.call = node.__init__
    return node


def as_key(x):
    key = Equal("k")
    key.table = {key: x + 1}
    return key


def in_a_set(x):
    key = Equal("k")
    key.all = {key}
    key.value = x + 1
    return key


def in_a_deque(x):
    made = collections.deque([x + 1])
    holder = [made]
    made.append(holder)
    return holder


def default(x):
    made = collections.defaultdict(list)
    made["value"].append(x + 1)
    made["self"].append(made["value"])
    made["value"].append(made["self"])
    return made


def shown(o, seen):
    """A text of what hangs together: each object with a number, and tensors with their values."""
    if isinstance(o, torch.Tensor):
        return str(o.tolist())
    if o is None or isinstance(o, (int, str, type)):
        return repr(o)
    if id(o) in seen:
        return f"#{seen[id(o)][0]}"
    seen[id(o)] = len(seen), o
    parts = []
    if isinstance(o, dict):
        parts += [f"{shown(k, seen)}:{shown(v, seen)}" for k, v in o.items()]
    elif isinstance(o, (list, tuple, set, collections.deque)):
        parts += [shown(v, seen) for v in o]
    if hasattr(o, "__func__"):
        parts += [o.__func__.__qualname__, shown(o.__self__, seen)]
    elif hasattr(o, "__code__"):
        parts += [o.__code__.co_name, *(shown(c.cell_contents, seen) for c in o.__closure__ or ())]
    for name, value in getattr(o, "__dict__", {}).items():
        parts.append(f"{name}={shown(value, seen)}")
    for name in getattr(type(o), "__slots__", ()):
        parts.append(f"{name}={shown(getattr(o, name, None), seen)}")
    return f"{type(o).__name__}({', '.join(parts)})"


WHOLE = [tree, a_list, a_dict, recursive, slots, subclasses, two_names, a_method]
REFUSED = [as_key, in_a_set]
ALL = [*WHOLE, *REFUSED, in_a_deque, default]


@pytest.mark.parametrize("make", ALL, ids=lambda f: f.__name__)
def test_results_that_contain_themselves(fresh, make):
    f = fresh.compile(make)
    for _ in range(3):
        x = torch.arange(3.0)
        assert shown(f(x), {}) == shown(make(x), {})
    info = f.cache_info()
    if make in WHOLE:
        assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 3}


@pytest.mark.parametrize("make", ALL, ids=lambda f: f.__name__)
def test_they_wait_at_a_break(fresh, make):
    def program(x):
        made = make(x * 2)
        time.sleep(0)
        return made, x - 1

    f = fresh.compile(program)
    for _ in range(3):
        x = torch.arange(3.0)
        assert shown(f(x), {}) == shown(program(x), {})


def test_the_function_that_calls_itself_can_be_called(fresh):
    f, x = fresh.compile(recursive), torch.arange(3.0)
    assert torch.equal(f(x)(3), recursive(x)(3))
    assert f(x).__closure__[0].cell_contents is not None
