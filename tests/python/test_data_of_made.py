"""`p.data = u` of tensors and parameters that the compiled function makes, and what operator.methodcaller calls."""

import copy
import operator

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


def weight_of_a_module(x, w):
    layer = nn.Linear(4, 4)
    layer.weight.data = w
    return layer(x), layer.weight


def in_no_grad(x, w):
    with torch.no_grad():
        layer = nn.Linear(4, 4)
        layer.weight.data = w * 2
        return layer(x)


def written_behind(x, w):
    p = nn.Parameter(torch.zeros(4, 4))
    p.data = w
    with torch.no_grad():
        p.mul_(2)
    return x @ p, p, w


def what_it_got_is_written(x, w):
    p = nn.Parameter(torch.zeros(4, 4))
    p.data = w
    y = x @ p
    p.data.add_(1)
    w.mul_(2)
    return y, p


def attributes_and_names(x, w):
    p = nn.Parameter(torch.zeros(4, 4))
    p.foo = 3
    q, held = p, [p]
    p.data = w * 2
    p.bar = 4
    return q is p, held[0] is p, p.foo, p.bar, type(q) is nn.Parameter, q, {p: 5}[q]


def other_shape_and_strides(x, w):
    p = nn.Parameter(torch.zeros(4, 4))
    p.data = w[:, ::2].t()
    return x @ p.t(), p


def its_former_memory(x, w):
    p = nn.Parameter(w.clone())
    former = p.data
    p.data = w * 3
    former.add_(1)
    return p, former, x @ p


def without_gradients(x, w):
    p = w.clone()
    q = p * 2
    p.data = w
    p += 1
    return p, q, w


def several_times(x, w):
    p = nn.Parameter(torch.zeros(4, 4))
    for k in range(3):
        p.data = p.data + w * k
    return x @ p, p


def other_dtype(x, w):
    layer = nn.Linear(4, 4).double()
    return layer(x.double()), layer.weight


def of_a_copy(x, w):
    layer = nn.Linear(4, 4)
    other = nn.Linear(4, 4)
    other.weight.data = layer.weight.data
    layer.weight.data.zero_()
    return other(layer(x)), copy.copy(other).weight is other.weight


CAPTURED = [weight_of_a_module, in_no_grad, written_behind, what_it_got_is_written, attributes_and_names, other_shape_and_strides, its_former_memory,
            without_gradients, several_times, other_dtype, of_a_copy]  # fmt: skip


def read_before(x, w):
    layer = nn.Linear(4, 4)
    y = layer(x)
    layer.weight.data = w
    return y + layer(x), layer.weight


def seen_before(x, w):
    p = nn.Parameter(w.clone())
    q = p.view(16)
    p.data = w * 2
    return q.sum() + p.sum(), p


def hooked(x, w):
    p = nn.Parameter(w.clone())
    p.register_hook(lambda g: g * 3)
    p.data = w * 3
    return x @ p, p


def no_leaf(x, w):
    p = w * x.sum()
    p.data = w
    return p * 3


BROKEN = [read_before, seen_before, hooked, no_leaf]


def outcome(f, seed):
    torch.manual_seed(seed)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
    got = f(x, w)
    got = got if isinstance(got, tuple) else (got,)
    for loss in [r.pow(2).sum() for r in got if isinstance(r, torch.Tensor) and r.requires_grad]:
        loss.backward(retain_graph=True)
    tensors = [*got, w, x.grad]
    shared = [r.untyped_storage().data_ptr() == w.untyped_storage().data_ptr() for r in got if isinstance(r, torch.Tensor)]
    leaves = [r.grad for r in got if isinstance(r, torch.Tensor) and r.is_leaf]
    return tensors + leaves, shared


def same(a, b):
    if not isinstance(b, torch.Tensor):
        return a == b
    return (type(a), a.shape, a.stride(), a.dtype, a.requires_grad, a.is_leaf) == (type(b), b.shape, b.stride(), b.dtype, b.requires_grad, b.is_leaf) and (
        torch.allclose(a, b, 1e-5, 1e-6)
    )


@pytest.mark.parametrize("f", CAPTURED + BROKEN)
def test_data_of_what_is_made(f, fresh):
    compiled = fresh.compile(f)
    for seed in range(3):
        (got, shared), (expected, also) = outcome(compiled, seed), outcome(f, seed)
        assert len(got) == len(expected) and all(map(same, got, expected)), (got, expected)
        assert shared == also
    info = compiled.cache_info()
    assert info["breaks"] == (0 if f in CAPTURED else 1)
    assert len(compiled.graphs) >= 1


items, rounded, upper = operator.methodcaller("items"), operator.methodcaller("sum", 0, keepdim=True), operator.methodcaller("upper")


def test_calls_of_a_method_by_its_name(fresh):
    def f(x, d, log):
        added = operator.methodcaller("append", len(d))
        added(log)
        sizes = {k: v for k, v in items(d)}
        texts = list(map(upper, d))
        return rounded(x) * sum(sizes.values()), texts, operator.methodcaller("clamp", min=0)(x), list(log)

    compiled = fresh.compile(f)
    for k in (1, 2, 3):
        x, ours, theirs = torch.randn(2, 3), [], []
        got, expected = compiled(x, {"a": 1, "b": k}, ours), f(x, {"a": 1, "b": k}, theirs)
        assert torch.equal(got[0], expected[0]) and torch.equal(got[2], expected[2])
        assert (got[1], got[3], ours) == (expected[1], expected[3], theirs)
    assert compiled.cache_info()["breaks"] == 0 and len(compiled.graphs) >= 1

    def missing(x):
        return operator.methodcaller("nothing")(x)

    with pytest.raises(AttributeError, match="nothing"):
        fresh.compile(missing)(torch.ones(2))
