"""Calls with gradients are measured together with the backward pass through what they made (policy/timing.h, tensor/pass_clock.h)."""

import pytest

torch = pytest.importorskip("torch")

NOTE = "not faster than Python: left to it"


def steps(call, make, count):
    for _ in range(count):
        result = call(make())
        (result[0] if isinstance(result, tuple) else result).square().mean().backward()


def test_a_slow_pass(fresh):
    """The framework's derivative of a recurrent layer runs the layer again: eager has kept what it made."""
    torch.manual_seed(0)
    layer = torch.nn.GRU(4, 4, 2)
    with fresh.config.patch(leave=True):
        compiled = fresh.compile(layer)
        steps(compiled, lambda: torch.rand(4, 4, 4), 60)
    assert NOTE in fresh.cache_info(compiled)["notes"]


def test_a_fast_pass(fresh):
    def chain(x):
        for _ in range(20):
            x = torch.sin(x) * 0.5 + torch.cos(x)
        return x

    with fresh.config.patch(leave=True):
        compiled = fresh.compile(chain)
        x, y, z = (torch.linspace(0, 1, 20000).view(100, 200).requires_grad_() for _ in range(3))
        steps(compiled, lambda: x, 30)
        steps(compiled, lambda: y * 2, 10)
    info = fresh.cache_info(compiled)
    assert not info["notes"] and info["breaks"] == 0
    steps(chain, lambda: z * 2, 10)
    torch.testing.assert_close(y.grad, z.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("way", ["several calls", "never", "twice", "inside", "error"])
def test_other_passes(fresh, way):
    """Passes of several calls, none, two of one call, those inside of another compiled call, and those that raise: the same gradients."""

    def cell(x, h):
        return torch.tanh(x @ x.T + h)

    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise ValueError("no")

    def run(call, rounds):
        torch.manual_seed(1)
        x, made = torch.rand(5, 5, requires_grad=True), []
        for _ in range(rounds):
            h = torch.zeros(5, 5)
            for _ in range(30 if way == "several calls" else 1):
                h = call(x, h)
            if way == "error":
                with pytest.raises(ValueError, match="no"):
                    (h + Refuses.apply(h)).sum().backward()
            elif way != "never":
                h.sum().backward(retain_graph=way == "twice")
            if way == "twice":
                h.sum().backward()
            made.append(h.detach())
        return made, x.grad

    with fresh.config.patch(leave=True):
        compiled = fresh.compile(cell)
        call = fresh.compile(lambda x, h: compiled(x * 2, h)) if way == "inside" else compiled
        made, gradient = run(call, 30)
    expected, wanted = run((lambda x, h: cell(x * 2, h)) if way == "inside" else cell, 30)
    torch.testing.assert_close(made, expected)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)
