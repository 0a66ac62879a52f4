"""What is decorated: methods of dataclasses, dispatching functions, generators and coroutines, operators of the user."""

import asyncio
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


def test_generators_and_coroutines():
    def rounds(x):
        for i in range(3):
            yield (x + i).sin() * 2

    async def wait(x):
        y = x.sin() * 2
        await asyncio.sleep(0)
        return y.cos() + 1

    x, generator, coroutine = torch.rand(4), framejit.compile(rounds), framejit.compile(wait)
    for _ in range(3):
        for got, expected in zip(generator(x), rounds(x), strict=True):
            torch.testing.assert_close(got, expected)
        torch.testing.assert_close(asyncio.run(coroutine(x)), asyncio.run(wait(x)))
    told = framejit.explain(lambda x: sum(rounds(x)))(x)  # where it is consumed
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
