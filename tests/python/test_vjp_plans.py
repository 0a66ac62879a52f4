"""The framework's derivative of a call runs without the call, where the operators of its pass are known (framejit/_vjp.py)."""

import copy

import pytest
from framejit import _vjp

torch = pytest.importorskip("torch")
F = torch.nn.functional
x0 = torch.linspace(-1, 1, 2 * 4 * 8 * 8).view(2, 4, 8, 8)

CALLS = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(9, 12), mode="bicubic", align_corners=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "average": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 4),
    "reflect": lambda x: F.pad(x, (1, 2, 3, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 2, 3, 1), mode="replicate"),
    "unfold": lambda x: F.unfold(x, 3, padding=1),
    "grid_sample": lambda x: F.grid_sample(x, x[:, :2].movedim(1, -1), align_corners=False),
    "cdist": lambda x: torch.cdist(x[0], x[-1] + 1),
    "two": lambda x: F.bilinear(x.flatten(0, 2)[:, :6], x.flatten(0, 2)[:, :6] + 1, torch.ones(3, 6, 6)),
}


def gradients(call, xs):
    made = []
    for x in xs:
        x = x.clone().requires_grad_()
        y = call(x * 1.5)
        (y * torch.linspace(0, 1, y.numel()).view(y.shape)).sum().backward()
        made.append(x.grad)
    return made


@pytest.mark.parametrize("name", CALLS)
def test_gradients(fresh, name):
    """Of other numbers and other sizes, also those that a plan was made for."""
    _vjp._plans.clear()
    compiled = fresh.compile(CALLS[name])
    xs = [x0 * (k + 1) / 7 for k in range(6)] + [x0[1:] - 1] * 5 + [x0.flip(-1)] * 2 + [x0[..., :6, :7]] * 5
    for got, expected in zip(gradients(compiled, xs), gradients(CALLS[name], xs)):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert any(type(p) is _vjp._Plan and p.sure for p in _vjp._plans.values())
    assert compiled.cache_info()["breaks"] == 0


def test_recurrent(fresh):
    """What the layer has kept for its pass it makes again where gradients are recorded."""
    _vjp._plans.clear()
    torch.manual_seed(0)
    eager = torch.nn.LSTM(4, 4, batch_first=True)
    model = copy.deepcopy(eager)
    compiled = fresh.compile(model)
    for k in range(8):
        x = torch.rand(3, 5, 4) * k
        for call in (eager, compiled):
            (call(x)[0] * x).sum().backward()
    for a, b in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


def test_lengths_are_data(fresh):
    """Sequences of other lengths and the same sizes: C++ reads the lengths where nobody sees it."""
    _vjp._plans.clear()
    torch.manual_seed(0)
    eager = torch.nn.GRU(4, 4)
    model = copy.deepcopy(eager)

    def run(layer, data, sizes):
        return torch._VF.gru(data, sizes, torch.zeros(1, 3, 4), list(layer.parameters()), True, 1, 0.0, True, False)[0]

    compiled = fresh.compile(run)
    for sizes in ([3, 2, 2],) * 5 + ([3, 3, 1],) * 2 + ([3, 2, 1, 1],):
        data = torch.rand(sum(sizes), 4)
        for call, layer in ((run, eager), (compiled, model)):
            call(layer, data, torch.tensor(sizes)).square().sum().backward()
        for a, b in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


def test_what_asks_data(fresh):
    """A derivative that goes another way for zeros among the factors."""
    _vjp._plans.clear()
    compiled = fresh.compile(lambda x: torch.linalg.vector_norm(x.cumprod(0), 1.5))
    for values in ([1.0, 2.0, 3.0],) * 5 + ([1.0, 0.0, 3.0],) * 3 + ([0.0, 0.0, 3.0],):
        pairs = []
        for call in (compiled, compiled.__wrapped__):
            x = torch.tensor(values, requires_grad=True)
            call(x * 2).backward()
            pairs.append(x.grad)
        torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("call", [lambda x: x.cumprod(1), lambda x: torch.linalg.inv(x + 10 * torch.eye(8))], ids=["cumprod", "inv"])
def test_without_plan(fresh, monkeypatch, call):
    """The call is made again, and the framework's engine is told to go at once."""
    compiled = fresh.compile(call)
    xs = [x0[k, 0] * (k + 1) for k in range(2)] * 4
    gradients(compiled, xs)

    def refused(*_, **__):
        raise AssertionError("torch.autograd.grad")

    expected = gradients(call, xs)
    with monkeypatch.context() as m:
        m.setattr(torch.autograd, "grad", refused)
        got = gradients(compiled, xs)
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert compiled.cache_info()["breaks"] == 0
