"""One process that uses torch.compile and framejit, in any order: the results are eager's, and neither makes the other start over."""

import random
import threading

import framejit
import pytest

torch = pytest.importorskip("torch")
from torch_modules import Times  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:`torch.jit.script_method`"), pytest.mark.usefixtures("fresh")]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(x))) + Times(2)(x)


def pointwise(x):
    return torch.tanh(x) * 2 + x.shape[0]


def in_place(x):
    y = x.clone()
    y[1:].add_(1)
    return y.t() @ y


def with_gradients(x):
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(leaf.exp().sum(), leaf)[0]


def breaks(x):
    y = x.sin()
    if y.sum() > 0:
        return y + 1
    return y - 1


def close(a, b):
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5)


FORMS = {
    "ours": framejit.compile,
    "peer": lambda f: torch.compile(f, backend="eager", dynamic=True),
    "ours of the peer's": lambda f: framejit.compile(torch.compile(f, backend="eager")),
}


@pytest.fixture(autouse=True)
def peers_end():
    yield
    torch._dynamo.reset()


def test_random_pairs_of_calls():
    programs = [Net(), pointwise, in_place, with_gradients, breaks]
    forms = [(f, name, make(f)) for f in programs for name, make in FORMS.items()]
    draw = random.Random(5)

    def captures():
        return [framejit.cache_info(c)["captures"] for _, name, c in forms if name != "peer"]

    for n in (2, 3, 4, 5):
        for f, _, compiled in forms:
            x = torch.randn(n, 4)
            assert close(compiled(x), f(x)), f
    before = captures()
    assert min(before) > 0
    for _ in range(300):
        x = torch.randn(draw.randint(2, 5), 4)
        for f, _, compiled in draw.sample(forms, 2):
            assert close(compiled(x), f(x)), f
    assert captures() == before


def test_a_model_that_makes_modules_by_turns():
    net, other = Net(), Net()
    ours, peers = framejit.compile(net), torch.compile(other, backend="eager")
    for training in (False, True):
        for _ in range(20):
            x = torch.randn(3, 4)
            with torch.set_grad_enabled(training):
                a, b = peers(x), ours(x)
            assert close(a, b)
            if training:
                a.sum().backward()
                b.sum().backward()
        info = framejit.cache_info(ours)
        assert (info["captures"], info["breaks"]) == (1 + training, 0)
    assert all(close(p.grad, q.grad) for p, q in zip(net.parameters(), other.parameters()))


def test_what_the_peer_compiles_is_part_of_what_calls_it():
    inner = torch.compile(pointwise, backend="eager")
    net = Net()
    compiled_net = torch.compile(net, backend="eager")
    outer = framejit.compile(lambda x: compiled_net(inner(x * 2)) + 1, fullgraph=True)
    x = torch.randn(3, 4)
    for _ in range(3):
        assert close(outer(x), net(pointwise(x * 2)) + 1)
    assert framejit.cache_info(outer)["captures"] == 1


def test_ours_are_captured_where_the_peer_calls_them():
    mine = framejit.compile(pointwise)
    around = torch.compile(lambda x: mine(x * 2) + 1, backend="eager")
    for n in (2, 3, 2, 4, 3):
        x = torch.randn(n, 4)
        assert close(around(x), pointwise(x * 2) + 1)
    assert 1 <= framejit.cache_info(mine)["captures"] <= 2


def test_the_peer_behind_a_break_is_no_program_of_ours():
    """Its compiler is Python code that our frame hook sees. Neither that is captured, nor does its hook stay."""
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    peer = torch.compile(lambda x: x.cos() + 1, backend=backend)
    holder = {"peer": peer}

    def f(x):
        y = x.sin()
        seen.append(y.sum().item() > 100)  # a break: the rest of the frame runs in Python
        return eval("peer(y)", holder, {"y": y}) * 2  # a function that is not captured

    compiled = framejit.compile(f)
    x = torch.randn(3)
    assert close(compiled(x), f(x)) and any(callable(s) for s in seen)
    assert framejit.cache_info(compiled)["captures"] < 40  # it was hundreds
    after = framejit.compile(lambda x: x * 2)
    assert torch.equal(after(x), x * 2) and framejit.cache_info(after)["captures"] == 1


def failing_backend(graph, inputs):
    raise RuntimeError("the backend failed")


def interrupted_backend(graph, inputs):
    raise KeyboardInterrupt


@pytest.mark.parametrize("peer_first", [True, False])
@pytest.mark.parametrize("backend", [failing_backend, interrupted_backend])
def test_the_peer_fails_and_both_go_on(backend, peer_first, capfd):
    """After such an error torch.compile's hook stays installed for good. (In a fresh thread, so that no earlier test's error counts.)"""

    class Inner(torch.nn.Module):
        def forward(self, x):
            return torch.tanh(x) * 2

    inner, graphs = Inner(), []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def f(x):
        y = inner(x) + 1
        print(end="", flush=y.sum().item() > 100)  # a break: what follows is captured in its own frames, too
        return inner(y)

    x = torch.randn(3)
    if not peer_first:
        before = framejit.compile(lambda x: x * 3)
        assert close(before(x), x * 3)
    for n in range(3):
        broken = torch.compile(lambda x: x.sin() + 1, backend=backend)
        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            broken(x)
        ours, peers = framejit.compile(f), torch.compile(lambda x: x.cos() + n, backend=counting)
        for _ in range(3):
            assert close(ours(x), f(x)) and close(peers(x), x.cos() + n)
        info = framejit.cache_info(ours)
        assert info["segments"] >= 2 and info["captures"] < 10 and info["outcomes"]["run"]["graph"] >= 4
        assert len(graphs) == min(n, 1) + 1  # the third of these numbers is a symbol to it
        framejit.reset()
    assert "run as written" not in capfd.readouterr().err


def test_a_thread_of_the_peers_beside_ours():
    """Each takes its hook out while the other is at work."""
    ours_done, wrong = threading.Event(), []

    def peers():
        n = 0
        while not ours_done.is_set():
            n += 1
            f = torch.compile(lambda x: x.cos() + 1, backend="eager", dynamic=False)
            wrong.extend([] if close(f(torch.ones(n % 7 + 1)), torch.ones(n % 7 + 1).cos() + 1) else [n])

    thread = threading.Thread(target=peers)
    thread.start()
    try:
        calls = []
        for k in range(60):

            def helper(x, k=k):
                calls.append(k)
                return x * k

            def f(x):
                return helper(x.sin()) + 1

            compiled = framejit.compile(f)
            x = torch.randn(k % 5 + 1)
            assert close(compiled(x), x.sin() * k + 1) and close(compiled(x), x.sin() * k + 1)
        assert calls == [k for k in range(60) for _ in range(2)] and not wrong
    finally:
        ours_done.set()
        thread.join()
