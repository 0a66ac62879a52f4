"""Whole training steps in one compiled function: zero_grad, forward, loss, backward, clipping, the optimizer, a scheduler."""

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

OPTIMIZERS = {
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=0.1, **k),
    "momentum": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01, **k),
    "nesterov": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True, **k),
    "Adam": lambda p, **k: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, lr=1e-2, **k),
    "amsgrad": lambda p, **k: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, **k),
    "tensor lr": lambda p, **k: torch.optim.Adam(p, lr=torch.tensor(1e-2), **{**k, "foreach": False}),
    "RMSprop": lambda p, **k: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, **k),
    "groups": lambda p, **k: torch.optim.AdamW([{"params": p[:2], "lr": 1e-3, "weight_decay": 0.0}, {"params": p[2:]}], lr=1e-2, **k),
}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 4)
        self.unused = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.out(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def train(compile, make, foreach, n=6, last=False, dtype=torch.float32, watch=None):
    torch.manual_seed(0)
    model = Net().to(dtype)
    if last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = make(list(model.parameters()), foreach=foreach)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    x, y, losses, steps = torch.randn(8, 3, 6, 6, dtype=dtype), torch.randint(0, 4, (8,)), [], []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), norm

    f = compile(step)
    for k in range(n):
        if k == 3 and watch:
            watch(f)
        losses.extend(f(x, y))
        scheduler.step()
    assert len(steps) == n
    state = [t for p in model.parameters() for t in optimizer.state[p].values() if isinstance(t, torch.Tensor)]
    return losses, [p.detach() for p in model.parameters()], state, [p.grad is None for p in model.parameters()], list(model.buffers())


def versions(f):
    info = f.cache_info()
    return info["segments"], info["recompiles"]


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(fresh, name, foreach):
    seen = []
    expected, got = train(lambda f: f, OPTIMIZERS[name], foreach), train(fresh.compile, OPTIMIZERS[name], foreach, watch=lambda f: seen.append((f, versions(f))))
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)
    (f, before), *_ = seen
    if name != "tensor lr" and name != "RMSprop":
        assert versions(f) == before, "a learning rate that changes is captured again"


@pytest.mark.parametrize("name", ["nesterov", "AdamW"])
@pytest.mark.parametrize("how", [{"last": True}, {"dtype": torch.float64}])
def test_layouts(fresh, name, how):
    torch.testing.assert_close(train(fresh.compile, OPTIMIZERS[name], None, **how), train(lambda f: f, OPTIMIZERS[name], None, **how), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("foreach", [False, True])
def test_one_pass(fresh, monkeypatch, foreach):
    """The update runs as the framework's fused kernel."""
    import torch.optim.adam as adam

    calls = []
    monkeypatch.setattr(adam, "_fused_adam", lambda *a, inner=adam._fused_adam, **k: (calls.append(len(a[0])), inner(*a, **k))[1])
    train(fresh.compile, OPTIMIZERS["AdamW"], foreach)
    assert calls == [5] * 6
    train(lambda f: f, OPTIMIZERS["AdamW"], None)
    assert len(calls) == 6


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "groups"])
def test_a_group_without_gradients(fresh, name, foreach):
    """As of frozen layers: the optimizer's function is called with empty lists."""

    def run(compile):
        torch.manual_seed(0)
        a, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        optimizer = OPTIMIZERS[name]([{"params": [a]}, {"params": [b]}], foreach=foreach)

        def step(x):
            a.grad = None
            (a.sin() * x).sum().backward()
            optimizer.step()

        f = compile(step)
        for k in range(4):
            f(torch.full((4,), float(k)))
            b.grad = torch.ones(4) if k == 2 else None
        return a.detach(), b.detach(), len(optimizer.state)

    torch.testing.assert_close(run(fresh.compile), run(lambda f: f))


def test_momentum_that_some_parameters_lack(fresh):
    def run(compile):
        torch.manual_seed(0)
        a, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        optimizer = torch.optim.SGD([a, b], lr=0.1, momentum=0.9)

        def step(both):
            optimizer.zero_grad()
            (a.sin().sum() + (b.cos().sum() if both else 0)).backward()
            optimizer.step()

        f = compile(step)
        for k in range(4):
            f(k > 1)
        return a.detach(), b.detach()

    torch.testing.assert_close(run(fresh.compile), run(lambda f: f))


def test_closure(fresh):
    def run(compile):
        torch.manual_seed(0)
        w = torch.randn(4, requires_grad=True)
        optimizer = torch.optim.AdamW([w], lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = (w * w).sum()
            loss.backward()
            return loss

        f = compile(lambda: optimizer.step(closure))
        return [f().detach() for _ in range(3)], w.detach()

    torch.testing.assert_close(run(fresh.compile), run(lambda f: f))


def test_accumulation_hooks_and_retained_graphs(fresh):
    def run(compile):
        torch.manual_seed(0)
        w, seen = torch.randn(4, 4, requires_grad=True), []
        w.register_hook(lambda g: g * 2)
        w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm().detach()))

        def step(x):
            for k in range(2):
                y = (x @ w).tanh()
                y.sum().backward(retain_graph=True)
                y.square().mean().backward()
            g = w.grad.clone()
            w.grad = None
            return g

        f = compile(step)
        return [f(torch.randn(3, 4)) for _ in range(3)], seen

    torch.testing.assert_close(run(fresh.compile), run(lambda f: f))


@pytest.mark.parametrize("make", ["momentum", "AdamW"])
@pytest.mark.parametrize("clip", [False, True])
def test_a_step_with_a_gradient_scaler(fresh, make, clip):
    """float16 on the CPU: scale, unscale_, step (left out where gradients are infinite) and update, all in one compiled function."""

    def train(compile):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))
        optimizer = OPTIMIZERS[make](list(model.parameters()))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        f, losses, scales, captures = compile(step), [], [], []
        for k in range(8):
            x, y = torch.randn(8, 8) * (1e6 if k == 3 else 1), torch.randint(0, 4, (8,))
            losses.append(f(x, y))
            scales.append(scaler.get_scale())
            captures.append(fresh.cache_info(f)["captures"] if compile is fresh.compile else 0)
        return losses, scales, [p.detach() for p in model.parameters()], captures

    expected, got = train(lambda f: f), train(fresh.compile)
    assert got[1] == expected[1] and min(b / a for a, b in zip(got[1], got[1][1:])) == 0.5
    torch.testing.assert_close(got[0], expected[0], rtol=2e-3, atol=1e-3, equal_nan=True)
    torch.testing.assert_close(got[2], expected[2], rtol=2e-3, atol=1e-3)
    assert len(set(got[3][4:])) == 1  # nothing is captured anew


def stepped(name, foreach, compile, told=None, n=4):
    """Some steps of an optimizer after two of eager, with gradients that are there."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(3)]
    for p in params:
        p.grad = torch.randn(4, 4)
    how = {"momentum": 0.9} if name == "SGD" else {}
    if name not in ("Adafactor", "Muon"):
        how["foreach"] = foreach
    optimizer = getattr(torch.optim, name)(params, lr=0.01, **how)
    optimizer.step()
    optimizer.step()

    def f():
        optimizer.step()

    if told is not None:
        told.append(compile(f))
        return None
    step = compile(f)
    for k in range(n):
        for p in params:
            p.grad.mul_(0.5)
        step()
    return [p.detach() for p in params] + [t for p in params for t in optimizer.state[p].values() if isinstance(t, torch.Tensor)]


STEPS = ["SGD", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD", "Adafactor"]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_one_graph(fresh, name, foreach):
    """And its numbers are those of eager, whose step sizes are Python's floats of 64 bits."""
    told = []
    stepped(name, foreach, lambda f: fresh.explain(f)(), told)
    assert (told[0].graph_count, told[0].graph_break_count) == (1, 0), str(told[0])
    fresh.reset()
    expected, got = stepped(name, foreach, lambda f: f), stepped(name, foreach, fresh.compile)
    torch.testing.assert_close(got, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_of_adam_whole(fresh, foreach):
    """fullgraph=True has the update in the graph, which else is the framework's fused kernel."""
    expected, got = stepped("AdamW", foreach, lambda f: f), stepped("AdamW", foreach, lambda f: fresh.compile(f, fullgraph=True))
    torch.testing.assert_close(got, expected, rtol=2e-6, atol=1e-7)
