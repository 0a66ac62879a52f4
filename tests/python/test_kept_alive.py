"""What a capture has seen is not kept alive by what was made of it: modules, tensors, closures and classes of earlier calls die."""

import copy
import copyreg
import functools
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402


def closure(o, x):
    return (lambda t: o(t)), x * 2


def partial(o, x):
    return functools.partial(o, x), x * 2


def default(o, x):
    def g(t, m=o):
        return m(t)

    return g, x * 2


def keyword_default(o, x):
    def g(t, *, m=o):
        return m(t)

    return g, x * 2


def attribute(o, x):
    def g(t):
        return t

    g.m = o
    return g, x * 2


def of_a_property(o, x):
    return property(lambda s: o), x * 2


def of_a_checkpoint(o, x):
    checkpoint(lambda t: o(t), x, use_reentrant=False).sum().backward()
    return x * 2


def of_a_partial_of_a_checkpoint(o, x):
    return checkpoint(functools.partial(lambda m, t: m(t), o), x, use_reentrant=False).sum()


def of_a_reentrant_checkpoint(o, x):
    return checkpoint(lambda t: o(t), x, use_reentrant=True).sum()


def of_a_hook(o, x):
    y = x * 2
    y.register_hook(lambda g: g * o.weight.sum())
    return y.sum()


def of_a_class_statement(o, x):
    class C:
        m = o

    return C().m(x)


def of_a_method(o, x):
    class C:
        def m(self, t):
            return o(t)

    return C().m(x)


def of_a_copy(o, x):
    return copy.copy(o)(x)


@pytest.mark.parametrize(
    "f",
    [closure, partial, default, keyword_default, attribute, of_a_property, of_a_checkpoint, of_a_partial_of_a_checkpoint,
     of_a_reentrant_checkpoint, of_a_hook, of_a_class_statement, of_a_method, of_a_copy],
)  # fmt: skip
def test_modules_of_earlier_calls_die(f, fresh):
    compiled, told = fresh.compile(f), []
    for _ in range(6):
        o, x = torch.nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
        told += [weakref.ref(o), weakref.ref(x), *map(weakref.ref, o.parameters())]
        compiled(o, x)
        del o, x
    gc.collect()
    assert [t() for t in told] == [None] * 24
    assert compiled.cache_info()["segments"] >= 1


def test_a_class_that_was_an_argument_dies(fresh):
    def f(x, c):
        return x * c().m

    compiled, told = fresh.compile(f), []
    for k in range(6):
        c = type("C", (), {"m": k})
        told.append(weakref.ref(c))
        assert compiled(torch.ones(2), c).tolist() == [k, k]
        del c
    gc.collect()
    assert [t() for t in told] == [None] * 6
    assert compiled.cache_info()["breaks"] == 0 and compiled.cache_info()["segments"] >= 1


def get_one(self):
    """Of one."""
    return 1


def test_a_property_is_that_of_its_call(fresh):
    def f(o, x):
        def get(self):
            """What it gives."""
            return o

        def put(self, value):
            o.append(value)

        return property(get).setter(put), property(doc="its own"), x * 2

    compiled = fresh.compile(f)
    for k in range(3):
        made, without, y = compiled([k], torch.ones(2))
        assert made.fget(None) == [k] and made.__doc__ == "What it gives." and made.fdel is None
        assert made.getter(lambda self: 0).__doc__ is None and without.getter(get_one).__doc__ == "its own"
        made.fset(None, 5)
        assert made.fget(None) == [k, 5]
        assert without.fget is None and without.__doc__ == "its own" and y.tolist() == [2.0, 2.0]
    assert fresh.explain(f)([1], torch.ones(2)).graph_count == 1 and compiled.cache_info()["breaks"] == 0


def test_a_copy_of_a_module(fresh):
    """`in` asks a copied dict for its keys, not for what lies in the containers that it holds."""

    def f(o, x):
        made = copy.copy(o)
        return x * made.weight, made, o.__reduce_ex__(4)[0]

    compiled = fresh.compile(f)
    for _ in range(3):
        o, x = torch.nn.Linear(4, 4), torch.randn(4, 4)
        y, made, how = compiled(o, x)
        assert torch.equal(y, x * o.weight) and type(made) is torch.nn.Linear and made is not o
        assert made.weight is o.weight and made._parameters is o._parameters and how is copyreg.__newobj__
    assert compiled.cache_info()["breaks"] == 0 and len(compiled.graphs) == 1


@pytest.mark.parametrize("held", [lambda t: {"a": {"b": t}}, lambda t: {"a": [t]}, lambda t: [[t], {"c": t}]])
def test_containers_of_tensors_that_are_compared(held, fresh):
    def f(x, o):
        d = dict(o) if isinstance(o, dict) else list(o)
        return x * 2, "z" in d, d == 3, len(d)

    compiled, t = fresh.compile(f), torch.ones(2)
    for _ in range(2):
        got, expected = compiled(t, held(t)), f(t, held(t))
        assert got[0].tolist() == [2.0, 2.0] and got[1:] == expected[1:]
    assert compiled.cache_info()["breaks"] == 0
