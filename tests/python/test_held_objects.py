"""What C code takes out of objects that were not made here (a partial, a class's __dict__, a cell, annotations) was not made here
either: it is asked again in each call, and written when the program writes it."""

import contextvars
import functools
import types

import pytest

import framejit

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


def X():
    return torch.arange(6.0).reshape(2, 3)


def partial_of_dict(c):
    d = {"k": 2}
    p = functools.partial(lambda d, x: x * d["k"], d)
    f = c(lambda x: p(x))
    for k in range(4):
        d["k"] = k
        yield f(X())


def partial_writes_dict(c):
    def g(d, x):
        d["k"] += 1
        return x * d["k"]

    d = {"k": 2}
    p = functools.partial(g, d)
    f = c(lambda x: p(x))
    for _ in range(3):
        yield f(X()), dict(d)


def partial_keywords(c):
    p = functools.partial(lambda x, k: x * k, k=2)
    f = c(lambda x: p(x))
    for k in range(4):
        p.keywords["k"] = k
        yield f(X())


def partial_of_objects(c):
    class C:
        v = 1

    o, items, t = C(), [1, 2], torch.ones(3)
    p = functools.partial(lambda o, pair, t, x: (x * o.v + len(pair[0]) + pair[0][-1]) * t, o, (items, 3), t)
    f = c(lambda x: p(x))
    for k in range(4):
        o.v = k
        items.append(k)
        t.add_(1)
        yield f(X())


def partials_made_anew(c):
    f = c(lambda x, p: p(x))
    for k in (2, 3, 2):
        yield f(X(), functools.partial(torch.mul, other=k)), f(X(), functools.partial(lambda a, b: a - b, torch.ones(3) * k))


def class_dict(c):
    class C:
        values, table = [1], {"a": 1}

    f = c(lambda x: (x * C.__dict__["values"][0], vars(C)["values"][-1], x + C.__dict__.get("table")["a"], len(type(C()).__dict__["values"])))
    for k in range(4):
        C.values[0] = C.table["a"] = k
        yield f(X())


def class_dict_is_written(c):
    class C:
        values = [1]

    def g(x):
        C.__dict__["values"].append(5)
        return x + 1

    f = c(g)
    for _ in range(3):
        yield f(X()), list(C.values)


def class_dict_items(c):
    class C:
        a, b = 1, [2]

    f = c(lambda x: x * sum(v for k, v in C.__dict__.items() if k == "a") + [v for k, v in vars(C).items() if k == "b"][0][0])
    for k in range(4):
        C.a = C.b[0] = k
        yield f(X())


def cells(c):
    n, items = 1, [1]

    def g():
        return items, n

    f = c(lambda x: x * g.__closure__[1].cell_contents + g.__closure__[0].cell_contents[0] + len(g.__closure__))
    for k in range(4):
        n = items[0] = k
        yield f(X())


def annotations(c):
    class C:
        a: int = 3

    def g(a: int = 3):
        return a

    f = c(lambda x: (x * len(g.__annotations__), list(C.__annotations__), g.__annotations__.get("b")))
    yield f(X())
    g.__annotations__["b"] = C.__annotations__["b"] = 5
    yield f(X())
    g.__annotations__ = {"b": 7}
    yield f(X())


def module_dict(c):
    m = types.ModuleType("m")
    m.k, m.items = 1, [1]
    f = c(lambda x: x * vars(m)["k"] + m.__dict__["items"][0])
    for k in range(4):
        m.k = m.items[0] = k
        yield f(X())


def order_of_a_set(c):
    s = {1, 9}
    f = c(lambda x: ([x * k for k in s], list(s)))
    yield f(X())
    s.clear()
    s.add(9)
    s.add(1)
    yield f(X())


def context_variable_of_none(c):
    v = contextvars.ContextVar("v", default=7)

    def g(x):
        before = v.set(None)
        t = v.set(5)
        v.reset(t)
        seen = v.get()
        v.reset(before)
        return x + 1, seen, v.get()

    f = c(g)
    for _ in range(2):
        yield f(X())


SCENES = [partial_of_dict, partial_writes_dict, partial_keywords, partial_of_objects, partials_made_anew, class_dict, class_dict_is_written,
          class_dict_items, cells, annotations, module_dict, order_of_a_set, context_variable_of_none]  # fmt: skip


def flat(value):
    return [x for v in value for x in flat(v)] if isinstance(value, (list, tuple)) else [value]


@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.__name__)
def test_held_objects(scene):
    expected, got = flat(list(scene(lambda f: f))), flat(list(scene(framejit.compile)))
    assert len(got) == len(expected)
    for g, e in zip(got, expected):
        assert torch.equal(g, e) if isinstance(e, torch.Tensor) else g == e, f"{g} for {e}"


def test_a_partial_needs_no_break():
    t = torch.ones(3)
    p = functools.partial(lambda t, x, k: x * t + k["k"], t, k={"k": 2})
    told = framejit.explain(lambda x: p(x))(X())
    assert told.graph_break_count == 0, str(told)
