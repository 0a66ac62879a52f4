"""Doors: torch.compile beside framejit and framejit in place of torch.compile."""

import copy
import os
import pickle
import subprocess
import sys
import time

import framejit
import pytest

torch = pytest.importorskip("torch")
from torch_modules import Times  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`")  # where torch imports its compiler


def test_calls_of_the_peer_do_not_make_captures():
    def f(x):
        return Times(3)(x) + 1

    peer = torch.compile(lambda x: x * 2, backend="eager")
    compiled, x = framejit.compile(f), torch.ones(3)
    with torch.no_grad():
        for _ in range(10):
            peer(x)
            assert torch.equal(compiled(x), f(x))
    info = framejit.cache_info(compiled)
    assert info["captures"] <= 2 and info["breaks"] == 0


def test_what_is_read_of_the_peer_still_counts():
    from torch._dynamo.mutation_guard import GenerationTracker

    peer = torch.compile(lambda x: x * 2, backend="eager")
    x = torch.ones(3)

    @framejit.compile
    def f(x):
        return x + GenerationTracker.generation

    for _ in range(4):
        peer(x)
        assert torch.equal(f(x), x + GenerationTracker.generation)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
        self.register_buffer("b", torch.ones(4))

    def forward(self, x):
        return torch.tanh(self.a(x)) + self.b

    @torch.no_grad()
    def predict(self, x):
        return self(x) * 2


def close(a, b):
    return torch.allclose(a, b, rtol=1e-5, atol=1e-5)


def one_graph(compiled):
    info = framejit.cache_info(compiled)
    return info["captures"] == 1 and info["breaks"] == 0


def test_functions_and_methods(installed):
    with framejit.config.patch(measure=framejit.config.measure):  # mode="max-autotune" turns it on for the process
        functions_and_methods()


def functions_and_methods():
    x = torch.randn(3)

    @torch.compile
    def f(x):
        return x.sin() * 2

    @torch.compile(fullgraph=True, dynamic=False, mode="max-autotune", name="g", isolate_recompiles=True)
    def g(x):
        return x.cos() * 2

    class C:
        k = 3

        @torch.compile
        def h(self, x):
            return x * self.k

    assert close(f(x), x.sin() * 2) and close(g(x), x.cos() * 2) and torch.equal(C().h(x), x * 3)
    assert one_graph(f) and one_graph(g) and one_graph(C.h)
    plain = f.__wrapped__
    assert torch.compile(plain, disable=True) is plain
    assert one_graph(f)


def test_a_module_is_what_the_peer_makes_of_it(installed):
    net, x = Net(), torch.randn(2, 4)
    ours = torch.compile(net)
    framejit.uninstall()
    peers = torch.compile(net)
    framejit.install()
    assert isinstance(ours, torch._dynamo.OptimizedModule) and ours._orig_mod is net
    assert list(ours.state_dict()) == list(peers.state_dict())
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in peers.named_modules()]
    assert close(ours(x), net(x)) and close(ours.predict(x), net.predict(x))
    assert one_graph(ours.forward)
    ours(x).sum().backward()
    assert net.a.weight.grad is not None
    assert ours.eval() is ours and not net.training
    copied, loaded = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))
    for other in (copied, loaded):
        assert type(other) is type(ours) and other._orig_mod is not net
        assert close(other(x), net(x))
        with torch.no_grad():
            other.a.weight.zero_()
        assert not close(other(x), ours(x))
    ours.load_state_dict(peers.state_dict())
    again = torch.compile(ours)
    assert again is ours


def test_in_place_and_forward(installed):
    x = torch.randn(2, 4)
    net, other = Net(), Net()
    expected, keys = net(x), list(net.state_dict())
    net.compile(fullgraph=True)
    assert close(net(x), expected) and one_graph(net._compiled_call_impl) and list(net.state_dict()) == keys
    assert close(copy.deepcopy(net)(x), expected)
    expected = other(x)
    other.forward = torch.compile(other.forward)
    assert close(other(x), expected) and one_graph(other.forward)


def test_the_context_of_a_module_compiles_its_other_methods(installed):
    """As Lightning does with a LightningModule's steps."""
    net, x = Net(), torch.randn(2, 4)
    context, before = torch.compile(net).dynamo_ctx, net.predict
    net.predict = context(net.predict)
    told = [name for name in dir(net.predict) if name.startswith("_torchdynamo")]
    assert told and not any(name.startswith("_torchdynamo") for name in dir(before))
    for _ in range(3):
        assert close(net.predict(x), before(x))
    assert framejit.cache_info(net.predict)["breaks"] == 0 and net.predict.graphs
    assert context(net.predict).__func__ is net.predict.__func__  # compiled once
    wrapped = net.predict._torchdynamo_orig_callable
    assert not hasattr(wrapped, "_torchdynamo_orig_callable")


def test_hooks_fire_as_often_as_with_the_peer(installed):
    def count():
        net, calls = Net(), []
        net.register_forward_hook(lambda *a: calls.append("inner"))
        compiled = torch.compile(net, backend=backend)
        compiled.register_forward_hook(lambda *a: calls.append("outer"))
        compiled(torch.ones(2, 4))
        compiled(torch.ones(2, 4))
        return calls

    backend = "inductor"
    ours = count()
    backend = "eager"
    assert ours == count()


def test_other_back_ends_stay_with_the_peer(installed):
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    x = torch.ones(3)
    assert torch.equal(torch.compile(lambda x: x + 1, backend=backend)(x), x + 1) and len(seen) == 1
    module = torch.compile(Net(), backend="eager")
    assert type(module) is torch._dynamo.OptimizedModule


def test_words_that_would_change_results_are_refused(installed):
    for words in ({"mode": "fast"}, {"options": {"unheard_of": True}}, {"dynamic": 3}):
        with pytest.raises(framejit.OptionError):
            torch.compile(lambda x: x, **words)
    with pytest.raises(RuntimeError):
        torch.compile(lambda x: x, mode="default", options={"max_autotune": True})
    with pytest.raises(TypeError):
        torch.compile(lambda x: x, unheard_of=1)
    with pytest.raises(framejit.OptionError):
        torch.compiler.set_stance(force_backend="aot_eager")
    f = torch.compile(lambda x: x + 1, options={"max_autotune": True, "triton.cudagraphs": True, "epilogue_fusion": True})
    assert f.options["options"] == {"cuda_graphs": "true"} and torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))


def test_full_graph_and_errors_on_recompiles(installed):
    @torch.compile(fullgraph=True)
    def f(x):
        time.sleep(0)  # a break
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported) as told:
        f(torch.ones(2))
    assert isinstance(told.value, framejit.BreakError) and "a break" in str(told.value)

    g = torch.compile(lambda x: x + 1)
    with torch._dynamo.config.patch(error_on_recompile=True):
        g(torch.ones(2))
        g(torch.ones(2))
        with pytest.raises(torch._dynamo.exc.RecompileError) as told:
            g(torch.ones(3))
    assert isinstance(told.value, framejit.RecompileError)
    assert torch.equal(g(torch.ones(3)), torch.full((3,), 2.0))
    h = torch.compile(lambda x, flag: x + 1 if flag == "a" else x * len(flag), recompile_limit=2)
    for i in range(6):
        assert torch.equal(h(torch.ones(2), "b" * i), torch.full((2,), float(i)))
    assert framejit.cache_info(h)["captures"] <= 2


def test_counters_tell_of_both_compilers(installed):
    from torch._dynamo.utils import counters

    counters.clear()
    f = torch.compile(lambda x: x.sin() + 1)
    for _ in range(3):
        f(torch.ones(2))
    assert counters["stats"] == {"unique_graphs": 1, "calls_captured": 2} and not counters["graph_break"]

    @torch.compile
    def g(x):
        y = x + 1
        time.sleep(0)
        return y * 2

    g(torch.ones(2))
    assert counters["stats"]["unique_graphs"] == 3 and sum(counters["graph_break"].values()) == 1
    torch.compile(lambda x: x + 2, backend="eager")(torch.ones(2))
    assert counters["stats"]["unique_graphs"] == 4
    framejit.uninstall()
    framejit.compile(lambda x: x + 3)(torch.ones(2))
    assert counters["stats"]["unique_graphs"] == 4


def test_stances_and_switches(installed):
    x = torch.ones(2)
    f = torch.compile(lambda x: x + 1)
    with torch.compiler.set_stance("force_eager"):
        f(x)
    assert framejit.cache_info(f)["captures"] == 0
    for word in ("eager_then_compile", "aot_eager_then_compile", "default"):
        with torch.compiler.set_stance(word):
            assert torch.equal(f(x), x + 1)
    assert one_graph(f)
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(framejit.RecompileError):
        f(torch.ones(2, 2, dtype=torch.float64))

    @torch.compiler.set_stance("force_eager")
    def g():
        return f(torch.ones(2, dtype=torch.int64))

    g()
    assert one_graph(f)
    seen = []

    @torch.compiler.disable
    def secret(x):
        seen.append(torch.compiler.is_compiling())
        return x * 2

    @torch.compiler.nested_compile_region
    def region(x):
        return x + 3

    h = torch.compile(lambda x: region(secret(x + 1)))
    assert torch.equal(h(x), (x + 1) * 2 + 3) and seen == [False] and framejit.cache_info(h)["breaks"] in (1, 2)
    torch.compiler.reset()
    assert framejit.cache_info(f)["captures"] == 0 or framejit.cache_info(f)["segments"] == 0
    torch.compiler.cudagraph_mark_step_begin()
    assert torch.equal(f(x), x + 1)


def test_marks(installed):
    x = torch.ones(5, 4)
    for mark in (torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic, torch._dynamo.decorators.mark_unbacked):
        f = torch.compile(lambda x: x * 2 + 1)
        y = x.clone()
        mark(y, 0)
        for t in (y, torch.ones(7, 4), torch.ones(9, 4)):
            assert torch.equal(f(t), t * 2 + 1)
        assert framejit.cache_info(f)["captures"] == 1, mark
    f, y = torch.compile(lambda x: x * 2), x.clone()
    torch._dynamo.mark_static_address(y)
    torch._dynamo.mark_static(y, 1)
    assert torch.equal(f(y), y * 2) and one_graph(f)

    @torch.compile(fullgraph=True)
    def inside(x):
        y = x + 1
        torch._dynamo.mark_static(y, 0)
        torch._dynamo.maybe_mark_dynamic(y, 1)
        torch._dynamo.comptime.comptime(lambda ctx: ctx.get_local("y").force_static())
        return y * 2

    assert torch.equal(inside(x), (x + 1) * 2) and one_graph(inside)
    told = torch._dynamo.explain(lambda x: x.sin() + 1)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0)


def test_optimizer_step(installed):
    def train(compiled):
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).square().sum().backward()
            step()
        return net.a.weight

    assert torch.allclose(train(True), train(False))


def test_uninstall_puts_everything_back():
    import torch._dynamo as peer
    from torch._dynamo import decorators, eval_frame
    from torch._dynamo.backends import registry

    def everything():
        names = {(m.__name__, n): v for m in (torch.compiler, peer, decorators, eval_frame) for n, v in vars(m).items() if not n.startswith("__")}
        return names | {("back ends", n): v for table in (registry._BACKENDS, registry._COMPILER_FNS) for n, v in table.items() if n == "framejit"}

    before, compiler = everything(), torch.compile
    config, setter = framejit.config.error_on_recompile, type(peer.config).__setattr__
    framejit.install()
    framejit.install()
    assert torch.compile is not compiler
    peer.config.error_on_recompile = True
    framejit.uninstall()
    framejit.uninstall()
    peer.config.error_on_recompile = False
    after = everything()
    assert torch.compile is compiler and [k for k in before if after.get(k) is not before[k]] == [] and set(after) == set(before)
    assert framejit.config.error_on_recompile == config and type(peer.config).__setattr__ is setter


SCRIPT = """
import sys, torch
f = torch.compile(lambda x: x + 1)
print(sys.argv[1:], __name__, type(f).__module__, f(torch.ones(1)).item())
"""


def test_from_outside(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(*words, **variables):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env={**os.environ, **variables})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    line = "['a', '--b'] __main__ framejit._framejit 2.0"
    assert run("-m", "framejit", "run", str(script), "a", "--b") == line
    code = "import framejit, sys; assert 'torch' not in sys.modules; import torch; print(torch.compile.__globals__['__name__'])"
    assert run("-c", code, FRAMEJIT_INSTALL="1") == "framejit._install"
    assert run("-c", code, FRAMEJIT_INSTALL="0") == "torch"


@pytest.mark.parametrize("dynamic", [None, True])
def test_as_a_back_end(dynamic):
    from framejit._torch_backend import framejit as backend

    net = Net()

    def f(x, memory):
        memory.add_(1)
        return net(x).sum(0) * x.shape[0] + memory

    compiled = torch.compile(f, backend=backend, dynamic=dynamic)
    ours = framejit.compile(f)
    for size in (2, 3, 5, 1):
        x = torch.randn(size, 4)
        results = []
        for g in (f, ours, compiled):
            net.zero_grad()
            memory, leaf = torch.zeros(4), x.clone().requires_grad_()
            y = g(leaf, memory)
            y.sum().backward()
            results.append((y.detach(), memory, leaf.grad, net.a.weight.grad.clone()))
        assert all(close(a, b) for a, b in zip(results[1], results[2]))
        assert all(close(a, b) for a, b in zip(results[0], results[2]))


def test_the_back_end_by_its_name(installed):
    assert "framejit" in torch._dynamo.list_backends()
    f = torch.compile(lambda x: x + 1, backend="framejit")
    assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0)) and one_graph(f)


def test_disabled_by_the_environment(tmp_path):
    """What torch's own config says only counts where it says more than its default."""
    script = "import torch, framejit\n@framejit.compile\ndef f(x):\n    return x + 1\nf(torch.ones(3))\nprint(f.cache_info()['captures'])\n"
    (tmp_path / "script.py").write_text(script)
    env = {**os.environ, "FRAMEJIT_DISABLE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-m", "framejit", "run", "script.py"], cwd=tmp_path, env=env, text=True, capture_output=True, check=True)
    assert done.stdout == "0\n"


def batch_norm():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    return net, lambda n: (torch.randn(n + 1, 3, 8, 8),)


def casts():
    def f(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ w).relu()

    return f, lambda n: (torch.randn(n, 4), torch.randn(4, 4))


def batches():
    return lambda x: torch.vmap(lambda a: a.sum() * a)(x) + torch.func.grad(lambda a: a.sin().sum())(x), lambda n: (torch.randn(n, 4),)


def sizes():
    return lambda x, k: (x.reshape(-1) * x.shape[0] + x.numel() * k, x[1:], x.t()), lambda n: (torch.randn(n + 1, 4), n + 2)


@pytest.mark.parametrize("program", [batch_norm, casts, batches, sizes])
def test_what_the_back_end_is_given_is_one_graph(program):
    from framejit._torch_backend import framejit as backend

    made = []

    def collecting(graph, inputs):
        made.append(backend(graph, inputs))
        return made[-1]

    torch.manual_seed(0)
    f, arguments = program()
    g = copy.deepcopy(f) if isinstance(f, torch.nn.Module) else f
    compiled = torch.compile(g, backend=collecting)
    for n in (2, 3, 5, 2):
        results = []
        args = arguments(n)
        for h in (f, compiled):
            leaves = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]
            out = h(*leaves)
            out = out if isinstance(out, tuple) else (out,)
            sum(o.float().square().sum() for o in out).backward()
            results.append([*out, *(a.grad for a in leaves if isinstance(a, torch.Tensor))])
        for a, b in zip(*results, strict=True):
            assert (a.dtype, a.stride(), a.requires_grad) == (b.dtype, b.stride(), b.requires_grad)
            assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)
    if isinstance(f, torch.nn.Module):
        assert all(close(a.float(), b.float()) for a, b in zip(f.state_dict().values(), g.state_dict().values()))
    infos = [framejit.cache_info(m.__func__) for m in made]
    ran = [i for i in infos if sum(i["outcomes"]["run"].values())]
    assert ran and all(i["breaks"] == 0 and set(i["outcomes"]["capture"]) == {"segment"} for i in ran)
