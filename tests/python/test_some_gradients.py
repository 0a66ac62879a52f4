"""Gradients of some inputs (torch.autograd.grad) through graphs with results that are made of each other, as loops leave them."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")


def chain(x, w):
    h1 = torch.tanh(x @ w)
    h2 = torch.tanh(h1 @ w + x)
    h3 = torch.tanh(h2 @ w + h1)
    return [h1, h2, h3]


def inputs():
    torch.manual_seed(0)
    return torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.randn(4, 4, dtype=torch.float64, requires_grad=True)


def nobody_holds(f, x, w):
    return torch.autograd.grad(torch.stack(f(x, w)).square().sum(), (x, w))


def one_is_looked_for(f, x, w):
    h1, h2, h3 = f(x, w)
    return torch.autograd.grad((h2 + h3).sum(), (h1, x, w))


def one_is_held(f, x, w):
    results = f(x, w)
    held = results[0]
    loss = torch.stack(results).square().sum()
    del results
    return *torch.autograd.grad(loss, (x, w)), held.detach()


def an_edge_is_looked_for(f, x, w):
    results = f(x, w)
    edges = [torch.autograd.graph.get_gradient_edge(h) for h in results[:2]]
    loss = torch.stack(results).square().sum()
    del results
    return torch.autograd.grad(loss, (*edges, x))


def an_edge_of_the_second(f, x, w):
    results = f(x, w)
    edge = torch.autograd.graph.get_gradient_edge(results[1])
    loss = torch.stack(results).square().sum()
    del results
    return torch.autograd.grad(loss, (edge, w))


def its_hooks_stay(f, x, w):
    told = []
    results = f(x, w)
    results[0].register_hook(lambda g: told.append(g.clone()) or g * 2)
    results[1].register_hook(lambda g: told.append(g.clone()) or g * 3)
    loss = torch.stack(results).square().sum()
    del results
    return *torch.autograd.grad(loss, (x, w)), *told


def twice(f, x, w):
    loss = torch.stack(f(x, w)).square().sum()
    return *torch.autograd.grad(loss, (x, w), retain_graph=True), *torch.autograd.grad(loss, w)


def of_gradients(f, x, w):
    grads = torch.autograd.grad(torch.stack(f(x, w)).square().sum(), (x, w), create_graph=True)
    return *grads, *torch.autograd.grad(sum(g.square().sum() for g in grads), (x, w))


def kept(f, x, w):
    results = f(x, w)
    results[1].retain_grad()
    loss = torch.stack(results).square().sum()
    grads = torch.autograd.grad(loss, (x, w), retain_graph=True)
    return *grads, results[1].grad, *torch.autograd.grad(loss, results[1])


def backward_of_some(f, x, w):
    torch.stack(f(x, w)).square().sum().backward(inputs=[w])
    return w.grad, x.grad


USES = [nobody_holds, one_is_looked_for, one_is_held, an_edge_is_looked_for, an_edge_of_the_second, its_hooks_stay, twice, of_gradients, kept, backward_of_some]


def with_views(x, w):
    h = torch.tanh(x @ w)
    v = h.t()
    return [h, v.t() * 2, torch.tanh(v).t()]


def two_ways(x, w):
    a1, b1 = torch.tanh(x @ w), torch.sin(x * 2)
    return [a1, torch.tanh(a1 @ w), b1 * a1]


@pytest.mark.parametrize("f", [chain, with_views, two_ways], ids=lambda f: f.__name__)
@pytest.mark.parametrize("use", USES, ids=lambda f: f.__name__)
def test_as_eager(fj, use, f):
    c = fj.compile(f, fullgraph=True)
    for _ in range(3):
        want, got = use(f, *inputs()), use(c, *inputs())
        assert len(want) == len(got)
        for a, b in zip(want, got):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


COUNT = """
import sys, torch, framejit

def chain(x, w):
    results = [x]
    for _ in range(12):
        results.append(torch.tanh(results[-1] @ w))
    return results[1:]

def loop(x, w):
    h, results = x, []
    for _ in range(200):
        h = torch.tanh(h @ w)
        results.append(h)
    return torch.stack(results)

x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
if sys.argv[1] == "chain":
    f, g = framejit.compile(chain, fullgraph=True), torch.stack
else:
    f, g = framejit.compile(loop), lambda y: y
for _ in range(8):
    torch.autograd.grad(g(f(x, w)).sum(), (x, w))
"""


@pytest.mark.parametrize("program, graphs", [("chain", 2), ("loop", 20)])
def test_one_backward_graph(tmp_path, program, graphs):
    """No graph for each way from one result to those before it. A loop has some versions of its rounds, each with a derivative."""
    subprocess.run([sys.executable, "-c", COUNT, program], env={**os.environ, "FRAMEJIT_EVENTS": str(tmp_path)}, check=True)
    events = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    made = len([e for e in events if e["kind"] == "pass" and e["name"] == "fuse"])
    assert made == graphs if program == "chain" else made <= graphs


@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("inputs_of_backward", [False, True])
def test_a_second_pass_for_others(fj, first, second, inputs_of_backward):
    """What a pass for one input has freed is refused, and nothing else is."""

    def f(x, w):
        return x.tanh() + w.exp()

    compiled, told = fj.compile(f), []
    for function in (f, compiled, compiled):
        both = inputs()[0], inputs()[0]
        loss = function(*both).sum()
        if inputs_of_backward:
            loss.backward(inputs=[both[first]])
        else:
            torch.autograd.grad(loss, both[first])
        try:
            told.append(torch.autograd.grad(loss, both[second])[0])
        except RuntimeError as error:
            assert "a second time" in str(error)
            told.append(None)
    assert (told[0] is None) == (told[1] is None) == (told[2] is None) == (first == second)
    if first != second:
        torch.testing.assert_close(told[1], told[0])


@pytest.mark.parametrize("asked", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("order", [((0,), (0, 1, 2)), ((0, 1, 2), (1,)), ((1, 2), (0, 1, 2), (0,)), ((2,), (0, 1), (0, 1, 2))])
def test_passes_of_other_results(fj, order, asked):
    """What planning has made of the derivative serves a first pass that all results have a part in, and no other one."""
    fj.reset()  # equal functions share what is compiled, and the first pass is meant
    compiled, found = fj.compile(chain), []
    for function in (chain, compiled):
        given = inputs()
        results, grads = function(*given), []
        for number, of in enumerate(order):
            loss = sum(results[i].square().sum() for i in of)
            grads += torch.autograd.grad(loss, [given[i] for i in asked], retain_graph=True, create_graph=number == 1)
        results = function(*given)  # again, as the last pass was
        grads += torch.autograd.grad(sum(results[i].square().sum() for i in order[-1]), [given[i] for i in asked])
        found.append(grads)
    torch.testing.assert_close(found[1], found[0])
    assert [g.stride() for g in found[1]] == [g.stride() for g in found[0]]
    info = fj.cache_info(compiled)
    assert info["captures"] == 1 and info["outcomes"]["run"] == {"graph": 2}
