"""Gradients of programs whose sizes data decides: compiled, equal to eager's for every number of elements."""

import copy
import os
import sys

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from bench import models  # noqa: E402, F401

F, nn = torch.nn.functional, torch.nn


def equal(mine, theirs, **tolerance):
    assert [g is None for g in mine] == [g is None for g in theirs]
    for a, b in zip(mine, theirs):
        if b is not None:
            torch.testing.assert_close(a, b, **tolerance)


class Experts(nn.Module):
    def __init__(self, width=16, experts=4, top=2):
        super().__init__()
        self.gate, self.top = nn.Linear(width, experts, bias=False), top
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 24), nn.SiLU(), nn.Linear(24, width)) for _ in range(experts))

    def forward(self, x):
        rows = x.view(-1, x.shape[-1])
        weights, chosen = F.softmax(self.gate(rows), -1).topk(self.top, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(rows)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            place, row = torch.where(mask[number])
            out.index_add_(0, row, expert(rows[row]) * weights[row, place, None])
        return out.view(x.shape)


class Layers(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.first, self.moe, self.second, self.last, self.p = nn.Linear(16, 16), Experts(), Experts(), nn.Linear(16, 16), p

    def forward(self, x):
        x = F.dropout(self.first(x), self.p)
        x = x + self.moe(x)
        return self.last(F.dropout(x + self.second(x), self.p)).square().mean()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_experts(fresh, optimizer, p):
    torch.manual_seed(0)
    model = Layers(p).double()
    with torch.no_grad():
        model.second.gate.weight[3:] = 0
        model.second.gate.weight[2:3] = 0  # hardly chosen, or by nobody
    other = copy.deepcopy(model)
    compiled = fresh.compile(model)
    optimizers = [optimizer(m.parameters(), lr=0.05) for m in (model, other)]
    for step in range(5):
        x = torch.randn(2, 1 + step % 3, 16, dtype=torch.float64)
        losses = []
        for m, o in zip((compiled, other), optimizers):
            torch.manual_seed(step)
            o.zero_grad()
            losses.append(m(x))
            losses[-1].backward()
        torch.testing.assert_close(*losses)
        equal([q.grad for q in model.parameters()], [q.grad for q in other.parameters()])
        for o in optimizers:
            o.step()
    equal(list(model.parameters()), list(other.parameters()))
    assert "runs through the framework" not in str(fresh.explain(model)(x))


def test_mixtral(fresh):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                        num_local_experts=4)  # fmt: skip
    for implementation in ("eager", "grouped_mm"):
        config._experts_implementation = implementation
        model = transformers.MixtralForCausalLM(config).train()
        other = copy.deepcopy(model)
        compiled = fresh.compile(model)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
        for _ in range(3):
            tokens = torch.randint(100, (2, 12))
            losses = [m(input_ids=tokens, labels=tokens, use_cache=False).loss for m in (compiled, other)]
            torch.testing.assert_close(*losses)
            for loss, optimizer in zip(losses, optimizers):
                optimizer.zero_grad()
                loss.backward()
            equal([q.grad for q in model.parameters()], [q.grad for q in other.parameters()], rtol=1e-3, atol=1e-5)
            for optimizer in optimizers:
                optimizer.step()


def put(x, w):
    y = x * 2
    y[x > 0] = (w.sum() * x[x > 0]).exp()
    return y.sum(0)


def rows(x, w):
    index = (x[:, 0] > 0).nonzero().squeeze(1)
    return (x[index] @ w).tanh().sum(0) + x.mean()


def both(x, w):
    kept = x[x[:, 0] > 0]
    rest = x[~(x[:, 0] > 0)]
    return torch.cat([kept @ w, rest * 2]).softmax(0)


def weights(x, w):
    kept = x[x[:, 0] > 0]
    return (kept @ w).relu() @ w.t(), kept.shape[0] * x.sum()


def asks(x, w):
    kept = x[x[:, 0] > 0]
    if kept.shape[0] > 2:
        return (kept @ w).sum()
    return kept.sum() * w.mean()


def normalised(x, w):
    kept = x[x[:, 0] > 0]
    return F.layer_norm(kept, (4,), w[0], w[1]).square().sum() + F.softmax(kept @ w, -1).log().sum()


PROGRAMS = {
    "put": put, "rows": rows, "both": both, "weights": weights, "asks": asks, "normalised": normalised,
    "selected": lambda x, w: torch.masked_select(x, x > 0).square().sum() + w.sum(),
    "gathered": lambda x, w: (x.t()[:, x[:, 0] > 0].sum(1) * w).exp(),
    "distinct": lambda x, w: (w[x[:, 0].detach().round().long().abs().clamp(max=3).unique()] * 2).sum() + x.sum(),
    "scattered": lambda x, w: torch.zeros(4, 4, dtype=x.dtype).index_add(0, torch.arange(6)[x[:, 0] > 0] % 4, x[x[:, 0] > 0] @ w),
    "mean": lambda x, w: x[x > 0].mean() * w.sum(),
    "attention": lambda x, w: F.scaled_dot_product_attention(*[(x[x[:, 0] > 0] @ m)[None, None] for m in (w, w.t(), w * 2)]).sum(),
    "loss": lambda x, w: F.cross_entropy((x @ w)[x[:, 1] > 0], torch.zeros(6, dtype=torch.long)[x[:, 1] > 0], reduction="sum"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(fresh, name, dtype):
    f = PROGRAMS[name]
    compiled = fresh.compile(f)
    for positive in (3, 6, 1, 0, 2, 5, 3):
        torch.manual_seed(positive)
        results = []
        x = torch.randn(6, 4, dtype=dtype).abs()
        x[positive:] *= -1
        w = torch.randn(4, 4, dtype=dtype).requires_grad_()
        x.requires_grad_()
        for g in (f, compiled):
            outs = g(x, w)
            outs = [o for o in (outs if isinstance(outs, tuple) else (outs,)) if o.requires_grad]
            tangents = [torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view(o.shape) for o in outs]
            results.append([*(o.detach() for o in outs), *torch.autograd.grad(outs, (x, w), tangents, allow_unused=True)])
        equal(results[1], results[0], equal_nan=True)


def test_what_is_compiled(fresh):
    x, w = torch.randn(6, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    for name in ("put", "rows", "both", "weights", "selected", "gathered", "scattered"):
        assert "runs through the framework" not in str(fresh.explain(PROGRAMS[name])(x, w)), name


def test_twice(fresh):
    x, w = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for g in (rows, fresh.compile(rows)):
        (first,) = torch.autograd.grad(g(x, w).square().sum(), x, create_graph=True)
        results.append([first.detach(), *torch.autograd.grad(first.square().sum(), (x, w))])
    equal(results[1], results[0])


def test_in_a_checkpoint(fresh):
    from torch.utils.checkpoint import checkpoint

    f = lambda x, w: checkpoint(rows, x, w, use_reentrant=False).sum()  # noqa: E731
    compiled = fresh.compile(f)
    for seed in range(3):
        torch.manual_seed(seed)
        x, w = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
        equal(*(torch.autograd.grad(g(x, w), (x, w)) for g in (compiled, f)))
