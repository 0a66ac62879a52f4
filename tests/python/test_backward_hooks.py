"""Modules with hooks of their backward pass (register_full_backward_hook, register_full_backward_pre_hook): one graph, and the hooks are told, and
change, what they are told and change in eager."""

import gc
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


class Reader:
    def __init__(self, log):
        self.log, self.calls = log, 0

    def hook(self, module, grad_input, grad_output):
        self.calls += 1
        self.log.append((type(module).__name__, self.calls, grad_input, grad_output))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()
        self.body = nn.Linear(4, 3)

    def forward(self, x):
        return self.loss(self.body(x), torch.arange(x.shape[0], device=x.device) % 3)


def noted(m, log):
    m[0].register_full_backward_hook(lambda mod, gi, go: log.append((gi, go[0].sum())))


def changed(m, log):
    m[2].register_full_backward_hook(lambda mod, gi, go: (gi[0] * go[0].sum(),))


def before(m, log):
    m[2].register_full_backward_pre_hook(lambda mod, go: (go[0] * 3,))


def both(m, log):
    m[2].register_full_backward_pre_hook(lambda mod, go: (go[0].clamp(max=1),))
    m[2].register_full_backward_hook(lambda mod, gi, go: log.append((gi, go)))
    m[2].register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2,))


def guided(m, log):
    m[1].register_full_backward_hook(lambda mod, gi, go: (gi[0].clamp(min=0),))


def everywhere(m, log):
    for k in m:
        k.register_full_backward_hook(Reader(log).hook)


def whole(m, log):
    m.register_full_backward_hook(Reader(log).hook)


def beside(m, log):  # arguments without gradients, one of them of integers
    m.loss.register_full_backward_hook(Reader(log).hook)


def close(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            close(x, y)
    else:
        assert a == b


def trained(run, m, log, grad):
    seen = []
    for n in (2, 2, 5, 1):
        x = torch.arange(4.0 * n).reshape(n, 4).sin().requires_grad_(grad)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            y = run(x)
            y.pow(2).sum().backward()
        seen.append((y.detach(), x.grad, [(str(w.message), w.filename, w.lineno) for w in told]))
    return seen, [p.grad for p in m.parameters()], log


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("register", [noted, changed, before, both, guided, everywhere, whole, beside])
def test_hooks_are_told_what_they_are_in_eager(fresh, register, grad):
    if not grad and register is everywhere:
        grad = True  # the first layer's hooks say no word then: their own test
    results = []
    for compiles in (False, True):
        m, log = Two() if register is beside else net(), []
        if register is beside:
            torch.manual_seed(0)
            m.body.reset_parameters()
        register(m, log)
        f = fresh.compile(lambda x: m(x)) if compiles else lambda x: m(x)
        results.append(trained(f, m, log, grad))
    close(results[1], results[0])
    assert f.cache_info()["breaks"] == 0, f.cache_info()
    assert len(f.graphs) >= 1


def test_a_hook_may_be_removed_and_another_one_come(fresh):
    logs = []
    for compiles in (False, True):
        m, log = net(), []
        f = fresh.compile(lambda x: m(x)) if compiles else lambda x: m(x)
        x = torch.ones(2, 4, requires_grad=True)
        handle = m[1].register_full_backward_hook(lambda mod, gi, go: log.append(("a", gi, go)))
        y = f(x)
        handle.remove()  # those of a call are those that it began with
        y.sum().backward()
        f(x).sum().backward()
        m[1].register_full_backward_hook(lambda mod, gi, go: log.append(("b", gi, go)))
        f(x).sum().backward()
        logs.append(log)
    close(logs[1], logs[0])


def test_passes_to_some_inputs_and_two_calls_at_once(fresh):
    logs = []
    for compiles in (False, True):
        m, log = net(), []
        for k in m:
            k.register_full_backward_hook(Reader(log).hook)
        f = fresh.compile(lambda x: m(x)) if compiles else lambda x: m(x)
        x, u = torch.ones(2, 4, requires_grad=True), torch.full((2, 4), 0.5, requires_grad=True)
        y, z = f(x), f(u)  # the backward pass of the first comes last
        log.append(torch.autograd.grad(z.sum(), u, retain_graph=True))
        y.sum().backward()
        z.pow(2).sum().backward()
        logs.append(log)
    close(logs[1], logs[0])


@pytest.mark.parametrize("wrong", ["too many", "raises"])
def test_what_eager_refuses(fresh, wrong):
    def hook(mod, gi, go):
        if wrong == "raises":
            raise ValueError("no")
        return gi + gi

    told = []
    for compiles in (False, True):
        m = net()
        m[1].register_full_backward_hook(hook)
        f = fresh.compile(lambda x: m(x)) if compiles else lambda x: m(x)
        for _ in range(3):
            with pytest.raises((RuntimeError, ValueError)) as e:
                f(torch.ones(2, 4, requires_grad=True)).sum().backward()
            told.append(str(e.value))
    assert told[:3] == told[3:]


def test_hooks_that_look_at_gradients_of_leaves_see_them(fresh):
    logs = []
    for compiles in (False, True):
        m, log = net(), []
        m[0].register_full_backward_hook(lambda mod, gi, go: log.append(mod.weight.grad.clone()))
        f = fresh.compile(lambda x: m(x)) if compiles else lambda x: m(x)
        for _ in range(3):
            f(torch.ones(2, 4, requires_grad=True)).sum().backward()
        logs.append(log)
    close(logs[1], logs[0])


def test_gradients_of_gradients(fresh):
    results = []
    for compiles in (False, True):
        m, log = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), []
        torch.manual_seed(0)
        for p in m.parameters():
            nn.init.normal_(p)
        m[1].register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2,))
        f = fresh.compile(lambda x: m(x)) if compiles else lambda x: m(x)
        for _ in range(3):
            x = torch.ones(2, 4, requires_grad=True)
            (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            g.pow(2).sum().backward()
            log.append((g.detach(), x.grad))
        results.append((log, [p.grad for p in m.parameters()]))
    close(results[1], results[0])


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.out(self.rows(x)[0][:, -1])


def test_a_module_with_several_results_is_torchs_as_a_whole(fresh):
    logs = []
    for compiles in (False, True):
        torch.manual_seed(0)
        m, log = Last(), []
        m.rows.register_full_backward_hook(Reader(log).hook)
        f = fresh.compile(lambda x: m(x)) if compiles else lambda x: m(x)
        for n in (2, 2, 3):
            f(torch.ones(n, 6, 4, requires_grad=True)).sum().backward()
        logs.append(log)
    assert len(logs[0]) == 3
    close(logs[1], logs[0])


@pytest.mark.parametrize("looks_for", ["2.weight", "0.weight", "2.bias 0.bias", "x", "0.weight x"])
@pytest.mark.parametrize("how", ["grad", "backward", "differentiated"])
def test_a_pass_comes_by_no_hook_that_leads_to_nothing_it_looks_for(fresh, looks_for, how):
    def outcome(wrap):
        log, m = [], net()
        for k in m:
            k.register_full_backward_hook(lambda mod, gi, go: log.append((type(mod).__name__, gi[0].shape, round(go[0].sum().item(), 3))))
        compiled, x = wrap(lambda x: m(x) * 2), torch.ones(2, 4, requires_grad=True)
        of = [x if name == "x" else m.get_parameter(name) for name in looks_for.split()]
        for _ in range(2):
            loss = compiled(x).square().sum()
            if how == "backward":
                loss.backward(inputs=of, retain_graph=True)
            else:
                log.append([round(g.sum().item(), 3) for g in torch.autograd.grad(loss, of, create_graph=how == "differentiated", retain_graph=True)])
            loss.backward()  # all of them
            log.append([round(t.grad.sum().item(), 3) for t in (x, *m.parameters())])
        if wrap is fresh.compile:
            assert compiled.cache_info()["segments"] == 1 and not compiled.cache_info()["breaks"]
        return log

    assert str(outcome(fresh.compile)) == str(outcome(lambda f: f))


@pytest.mark.parametrize("hook", ["function", "method", "object"])
def test_a_module_with_hooks_dies_when_nobody_can_come_by_them(fresh, hook):
    class Linear(nn.Linear):
        def told(self, mod, gi, go):
            log.append(mod is self)

    class Object:
        __slots__ = ()

        def __call__(self, mod, gi, go):
            log.append(True)

    log, compiled = [], fresh.compile(lambda m, x: m(x) * 2)
    m = Linear(3, 3)
    m.register_full_backward_hook({"function": lambda mod, gi, go: log.append(mod.weight.shape == (3, 3)), "method": m.told, "object": Object()}[hook])
    gone = weakref.ref(m)
    for _ in range(2):
        compiled(m, torch.ones(2, 3, requires_grad=True)).sum().backward()
    x = torch.ones(2, 3, requires_grad=True)
    result, other = compiled(m, x).exp(), compiled(m, x).exp()
    del m
    gc.collect()
    result.sum().backward()
    (g,) = torch.autograd.grad(other.sum(), x, create_graph=True)
    del other
    gc.collect()
    g.sum().backward()
    assert gone() is not None and log == [True] * 5
    del result, g
    gc.collect()
    assert gone() is None
    assert compiled.cache_info()["breaks"] == 0


OF_OLD_KIND = {
    "of all": lambda m, log: m.register_backward_hook(log),
    "inside": lambda m, log: m[0].register_backward_hook(log),
    "that answer": lambda m, log: m[2].register_backward_hook(lambda *args: log(*args) or tuple(g if g is None else g * 2 for g in args[1])),
    "of every module": lambda m, log: nn.modules.module.register_module_backward_hook(log),
}


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("register", OF_OLD_KIND)
def test_hooks_of_the_old_kind_are_told_what_the_last_operation_gives(fresh, register):
    """They hang on the framework's own node: of a compiled graph's they would see what that gives."""
    logs, runs = [], []
    for compiles in (False, True):
        torch.manual_seed(0)
        m, log = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), []
        f = fresh.compile(m) if compiles else m

        def note(module, given, got, log=log):
            log.append([type(module).__name__, *(g if g is None else g.clone() for g in (*given, *got))])

        def steps():
            for n in (2, 5):
                x = torch.ones(n, 3, requires_grad=True)  # noqa: B023
                f(x).square().sum().backward()  # noqa: B023
                log.append([x.grad, *(p.grad.clone() for p in m.parameters())])  # noqa: B023

        steps()
        handle = OF_OLD_KIND[register](m, note)
        steps()
        with torch.no_grad():
            log.append([f(torch.ones(2, 3))])
        handle.remove()
        nn.modules.module._global_is_full_backward_hook = None  # which torch leaves behind
        before = fresh.cache_info(f)["outcomes"]["run"].get("graph", 0) if compiles else 0
        steps()
        logs.append(log)
        if compiles:
            runs.append(fresh.cache_info(f)["outcomes"]["run"]["graph"] - before)
    assert len(logs[0]) > 7 and [len(row) for row in logs[0]] == [len(row) for row in logs[1]] and runs[0] >= 2, runs
    for mine, theirs in zip(logs[1], logs[0]):
        for a, b in zip(mine, theirs):
            assert a is b or a == b if a is None or isinstance(a, str) else a.shape == b.shape and torch.allclose(a, b, atol=1e-6)
