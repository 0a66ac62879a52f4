"""Calls with gradients are measured together with the backward pass through what they made (policy/timing.h, tensor/pass_clock.h)."""

import pytest

torch = pytest.importorskip("torch")

NOTE = "not faster than Python: left to it"
CALLS = "the framework's own calls and derivatives are faster than graphs: they run"


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
    info = fresh.cache_info(compiled)  # the module has much to do around the layer
    assert {NOTE, CALLS} & {*info["notes"]} and info["outcomes"]["run"]["graph"] < 30


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


def recurrent(fresh):
    """A compiled function that the framework's calls are the fastest way for: our derivative of the layer makes it again, and Python has much to do around it."""
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, 4)

    def f(x):
        return layer(x)[0] * (1 + sum(range(8000)) % 7)

    compiled = fresh.compile(f, options={"leave": True})
    steps(compiled, lambda: torch.rand(4, 4, 4), 80)
    layer.zero_grad()
    return layer, f, compiled


def by_calls(fresh, compiled, run):
    """What `run` gives of a call that makes the framework's calls."""
    before = fresh.cache_info(compiled)["outcomes"]["run"]["framework"]
    made = run(compiled)
    assert fresh.cache_info(compiled)["outcomes"]["run"]["framework"] == before + 1
    return made


@pytest.mark.clock
def test_calls_of_the_framework_are_a_third_way(fresh):
    """Where graphs gain nothing, the calls that were captured run with the framework's own derivatives: all that programs see of these is as in eager."""
    layer, f, compiled = recurrent(fresh)
    info = fresh.cache_info(compiled)
    assert CALLS in info["notes"] and info["outcomes"]["run"]["framework"] > 40 and info["breaks"] == 0

    def twice(call):
        x, told = torch.ones(4, 4, 4), []
        y = call(x)
        y.register_hook(lambda g: told.append(g.clone()) or g * 2)
        y.retain_grad()
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.sum().backward()
        gradients = [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        return [y.grad, *told, *gradients, y.detach()], y.grad_fn.name(), y.stride(), y._version

    assert str(by_calls(fresh, compiled, twice)) == str(twice(f))

    def written(call):
        x = torch.ones(4, 4, 4)
        y = call(x)
        with torch.no_grad():
            layer.weight_hh_l0.mul_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        return y

    torch.testing.assert_close(by_calls(fresh, compiled, written), written(f))


@pytest.mark.clock
def test_saved_tensors_and_other_sizes_of_calls(fresh):
    """Hooks on saved tensors see those of eager, since Python runs the call; other sizes are measured for themselves, and graphs run meanwhile."""
    layer, f, compiled = recurrent(fresh)

    def packed(call):
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(tuple(t.shape)) or t, lambda t: t):
            call(torch.ones(4, 4, 4)).sum().backward()
        return shapes

    assert packed(compiled) == packed(f)
    before = fresh.cache_info(compiled)["outcomes"]["run"]
    x = torch.rand(400, 4, 4)
    torch.testing.assert_close(compiled(x), f(x))
    after = fresh.cache_info(compiled)["outcomes"]["run"]
    assert after["framework"] == before["framework"] and after["graph"] == before["graph"] + 1
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.ones(4, 4, 4)), f(torch.ones(4, 4, 4)))
