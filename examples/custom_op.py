"""A function with a derivative of its own, and an operator that no compiler knows. Both are used inside of a compiled function."""

import torch

import framejit


class RoundThrough(torch.autograd.Function):
    """Rounds; its derivative takes it for the identity (the straight-through estimator)."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@torch.library.custom_op("examples::rank", mutates_args=())
def rank(x: torch.Tensor) -> torch.Tensor:
    """Of each element: how many are smaller. Written in Python; to a compiler it is one call."""
    return torch.searchsorted(x.sort().values, x)


@rank.register_fake
def _(x):
    return torch.empty_like(x, dtype=torch.int64)


def quantized(x, w):
    return (RoundThrough.apply(x * 8) / 8 * w).sum()


def ranks(x):
    return torch.ops.examples.rank(x * 2) + 1


x, w = torch.linspace(0, 1, 33, requires_grad=True), torch.full((33,), 3.0)
loss = framejit.compile(quantized)(x, w)
loss.backward()
print(f"quantized sum {loss.item():.3f}; the gradient is {x.grad.unique().tolist()}")
assert torch.equal(loss, quantized(x, w)) and torch.equal(x.grad, w)

values = torch.tensor([0.3, -1.0, 2.0, 0.5])
told = framejit.explain(ranks)(values)
print(f"ranks {told.result.tolist()} in {told.graph_count} graph(s), {told.graph_break_count} break(s)")
assert told.result.tolist() == [2, 1, 4, 3]
