"""What is decorated: methods of dataclasses, dispatching functions, operators of the user, every kind of callable."""

import dataclasses
import functools

import pytest

import framejit

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


@dataclasses.dataclass
class Wave:
    weight: torch.Tensor
    factor: float = 2.0

    def __call__(self, x):
        return (x * self.weight).sin() * self.factor


@dataclasses.dataclass(frozen=True)
class Pair:
    a: torch.Tensor
    b: torch.Tensor

    def __add__(self, other):
        return Pair(self.a + other.a, self.b + other.b)


@functools.singledispatch
def waved(x):
    return x


@waved.register
def _(x: torch.Tensor):
    return x.sin() * 2


@torch.library.custom_op("framejit_decorated::plain", mutates_args=())
def plain(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


plain.register_fake(torch.empty_like)
LIBRARY = torch.library.Library("framejit_decorated_by_name", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
torch.library.register_fake("framejit_decorated_by_name::twice", torch.empty_like)
WAVE = Wave(torch.rand(4))


@pytest.mark.parametrize("f", [
    WAVE.__call__, lambda x: (Pair(x, x * 2) + Pair(x, x)).b, lambda x: dataclasses.replace(WAVE, weight=x)(x), waved, lambda x: plain(x + 1) * 2,
    lambda x: torch.ops.framejit_decorated_by_name.twice(x + 1) * 2,
])  # fmt: skip
def test_one_graph(f):
    x = torch.rand(4)
    f(x)  # torch looks its operators up by name once
    told = framejit.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = framejit.compile(f)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), f(x))


@torch.library.custom_op("framejit_decorated::into", mutates_args=("out",))
def into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 3)


@torch.library.custom_op("framejit_decorated::squared", mutates_args=())
def squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


squared.register_fake(torch.empty_like)
squared.register_autograd(lambda ctx, g: g * 2 * ctx.saved_tensors[0], setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def test_operators_that_write_and_those_with_gradients():
    def write(x):
        out = torch.zeros_like(x)
        into(x + 1, out)
        return out * 2, out

    compiled, trained = framejit.compile(write), framejit.compile(lambda x: squared(x * 2).sum())
    for _ in range(3):
        x = torch.rand(4, requires_grad=True)
        torch.testing.assert_close(compiled(x.detach()), write(x.detach()))
        trained(x).backward()
        torch.testing.assert_close(x.grad, 8 * x.detach())


# --- the kinds of callables ------------------------------------------------------------------------------------------------
class Shapes:
    factor = 2.0

    @framejit.compile
    def method(self, x):
        return (x * self.factor).sin() + 1

    @staticmethod
    @framejit.compile
    def static(x):
        return x.sin() * 3

    @framejit.compile
    @staticmethod
    def static_outside(x):
        return x.sin() * 4

    @classmethod
    @framejit.compile
    def of_class(cls, x):
        return x.sin() * cls.factor

    @framejit.compile
    @classmethod
    def of_class_outside(cls, x):
        return x.cos() * cls.factor

    @property
    @framejit.compile
    def value(self):
        return self.x.sin() * self.factor

    @functools.singledispatchmethod
    def dispatched(self, x):
        raise TypeError

    @dispatched.register
    def _(self, x: torch.Tensor):
        return x.sin() * self.factor

    def __init__(self, x):
        self.x = x

    def __call__(self, x, *, plus=1):
        return x.cos() * self.factor + plus


def test_kinds_of_callables_are_one_graph_each():
    x, shapes = torch.rand(4), Shapes(torch.rand(4))
    kinds = {
        "method": (shapes.method, Shapes.method.__wrapped__.__get__(shapes)),
        "static": (shapes.static, lambda x: x.sin() * 3),
        "static outside": (Shapes.static_outside, lambda x: x.sin() * 4),
        "class": (Shapes.of_class, lambda x: x.sin() * 2.0),
        "class outside": (shapes.of_class_outside, lambda x: x.cos() * 2.0),
        "partial": (framejit.compile(functools.partial(shapes, plus=1)), functools.partial(shapes, plus=1)),
        "partial of a method": (framejit.compile(functools.partial(Shapes.__call__, shapes, plus=1)), functools.partial(shapes, plus=1)),
        "object": (framejit.compile(shapes), shapes),
        "bound method": (framejit.compile(shapes.__call__), shapes),
        "function of C": (framejit.compile(torch.sin), torch.sin),
        "bound method of C": (framejit.compile(x.add), x.add),
        "singledispatchmethod": (framejit.compile(shapes.dispatched), shapes.dispatched),
        "lambda": (framejit.compile(lambda x: x.sin() + 2), lambda x: x.sin() + 2),
    }
    for name, (compiled, plain) in kinds.items():
        for k in range(3):
            torch.testing.assert_close(compiled(x + k), plain(x + k), msg=lambda text, name=name: f"{name}: {text}")
        inner = compiled
        while not isinstance(inner, framejit._framejit.CompiledFunction):
            inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
        info = framejit.cache_info(inner)
        assert len(inner.graphs) == 1 and not info["breaks"] and info["outcomes"]["run"].get("graph", 0) >= 1, (name, inner.graphs, info)
    for k in range(3):
        shapes.x = torch.rand(4)
        torch.testing.assert_close(shapes.value, shapes.x.sin() * 2.0)
    assert len(Shapes.value.fget.graphs) == 1


def test_functions_of_c_have_versions_of_their_own():
    x = torch.rand(4)
    for name in ("sin", "cos", "exp", "tanh", "sqrt", "neg", "abs", "log", "floor", "ceil", "erf", "sigmoid"):  # more than one function may have
        for plain, args in ((getattr(torch, name), (x,)), (getattr(x, name), ())):
            compiled = framejit.compile(plain)
            for _ in range(3):
                torch.testing.assert_close(compiled(*args), plain(*args))
            info = framejit.cache_info(compiled)
            assert len(compiled.graphs) == 1 and not info["breaks"] and not info["recompiles"], (plain, compiled.graphs, info)


def test_a_bound_method_in_c_that_its_class_hides():
    class Table(dict):
        def get(self, key, default=None):
            return "of the class"

    class Named(torch.Tensor):
        def sin(self):
            return "of the class"

    table, named = Table(a=1), torch.ones(3).as_subclass(Named)
    for hidden, args in ((super(Table, table).get, ("a",)), (torch._C.TensorBase.sin.__get__(named), ())):
        compiled = framejit.compile(hidden)
        for _ in range(3):
            got, expected = compiled(*args), hidden(*args)
            assert type(got) is type(expected) and bool(torch.as_tensor(got == expected).all())
    x = torch.linspace(-1, 1, 5)
    seen = framejit.compile(x.sin, fullgraph=True)  # not hidden: in the graph
    for _ in range(3):
        torch.testing.assert_close(seen(), x.sin())
    assert framejit.cache_info(seen)["outcomes"]["run"] == {"graph": 3}
