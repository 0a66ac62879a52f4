"""Nested tensors of the jagged layout: one graph for batches of changing lengths, forward and backward."""

import framejit
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("fresh")
LENGTHS = (3, 5), (2, 7), (4, 4, 1), (6, 2), (5, 5, 5, 2)


def batch(*lengths, size=8):
    torch.manual_seed(sum(lengths))
    return torch.nested.nested_tensor([torch.randn(n, size) for n in lengths], layout=torch.jagged)


def parts(x):
    return [p for y in x for p in parts(y)] if isinstance(x, (tuple, list)) else [x]


def same(got, expected):
    got, expected = parts(got), parts(expected)
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        assert type(a) is type(b)
        if not isinstance(a, torch.Tensor):
            assert a == b
            continue
        assert a.requires_grad == b.requires_grad
        if a.is_nested:
            assert a._size == b._size and a._strides == b._strides and a._ragged_idx == b._ragged_idx
            assert a.offsets() is b.offsets() or torch.equal(a.offsets(), b.offsets())
            assert a._metadata_cache.keys() == b._metadata_cache.keys()
            a, b = a._values, b._values
        assert a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


class Model(torch.nn.Module):
    def __init__(self, size=8, heads=2):
        super().__init__()
        self.size, self.heads = size, heads
        self.first, self.norm, self.last = torch.nn.Linear(size, size), torch.nn.LayerNorm(size), torch.nn.Linear(size, size)
        self.query, self.key, self.value = (torch.nn.Linear(size, size) for _ in range(3))

    def forward(self, x):
        h = self.norm(F.gelu(self.first(x)))
        q, k, v = (f(h).unflatten(-1, (self.heads, self.size // self.heads)).transpose(1, 2) for f in (self.query, self.key, self.value))
        h = h + self.last(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return h.sum(1), h.to_padded_tensor(0.0), h


def test_a_model_is_one_graph_for_all_batches():
    torch.manual_seed(0)
    model = Model().eval()
    compiled = framejit.compile(model)
    with torch.no_grad():
        for lengths in LENGTHS:
            x = batch(*lengths)
            same(compiled(x), model(x))
        told = framejit.explain(compiled)(x)
    assert told.graph_count == 1 and not told.graph_break_count
    info = framejit.cache_info(compiled)
    assert info["breaks"] == 0 and info["recompiles"] <= 1


def test_a_model_in_training_is_one_graph():
    torch.manual_seed(0)
    model = Model()
    compiled = framejit.compile(model)
    for lengths in LENGTHS:
        xs = [batch(*lengths).requires_grad_() for _ in range(2)]
        found = []
        for f, x in zip((model, compiled), xs):
            _, padded, h = f(x)
            loss = (padded * padded).sum() + h.values().sin().sum()
            found.append(torch.autograd.grad(loss, [*model.parameters(), x]))
            assert found[-1][-1]._size == x._size  # its sizes are those of the batch it belongs to
        for a, b in zip(*found):
            a, b = (t._values if t.is_nested else t for t in (a, b))
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    info = framejit.cache_info(compiled)
    assert info["breaks"] == 0 and info["recompiles"] <= 1


def test_the_backward_pass_is_compiled_for_all_batches():
    """What changes becomes a symbol, one after the other."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 8))
    compiled = framejit.compile(lambda x: net(x).values())
    for lengths in LENGTHS + ((1, 1), (9, 2), (3, 1, 1, 1), (7, 6)):
        x = batch(*lengths).requires_grad_()
        y = compiled(x)
        (backward,) = y.grad_fn.tape.passes.values() or [None]
        before = backward and len(backward.graphs)
        got, expected = (torch.autograd.grad(out.sin().sum(), [*net.parameters(), x]) for out in (y, net(x).values()))
        same(got, expected)
    assert len(backward.graphs) == before <= 4  # the last batches need none
    assert not framejit.cache_info(backward)["breaks"] and not compiled.cache_info()["breaks"]


@pytest.mark.parametrize("results", (lambda x, y: x.values() * y.values(), lambda x, y: (x * 2, y * 3)), ids=("plain", "nested"))
def test_one_batch_in_the_place_of_two(results):
    """Of a graph whose backward pass knows two ragged sizes."""
    compiled = framejit.compile(results)
    given = [[batch(*n).requires_grad_() for n in lengths] for lengths in (((3, 5), (5, 3)), ((2, 4), (3, 3)))]
    given += [[x, x] for x in (batch(4, 3).requires_grad_(), batch(1, 4).requires_grad_())]
    for x, y in given:
        found = []
        for f in (compiled, results):
            out = [t.values() if t.is_nested else t for t in parts(f(x, y))]
            found.append(torch.autograd.grad(sum(t.sin().sum() for t in out), [x, y]))
        same(*found)
        assert [t._size for t in found[0]] == [x._size, y._size]
    assert not compiled.cache_info()["breaks"] and compiled.graphs


def test_many_graphs_have_backward_passes_of_their_own():
    """Each is compiled, however many there are."""
    x = batch(3, 5).requires_grad_()
    functions = lambda x: (x * 2).values(), lambda x: x.sin().values(), lambda x: x.cos().values(), lambda x: x.exp().values()
    with framejit.config.patch(max_entries=2):
        for f in functions:
            y = framejit.compile(f)(x)
            same(torch.autograd.grad(y.sum(), [x]), torch.autograd.grad(f(x).sum(), [x]))
            (backward,) = y.grad_fn.tape.passes.values()
            assert len(backward.graphs) == 1


FUNCTIONS = {
    "linear": lambda x: F.linear(x, torch.ones(4, 8)),
    "normalized": lambda x: F.layer_norm(x, (8,)).relu().sigmoid(),
    "softmax": lambda x: x.softmax(-1) + x,
    "views": lambda x: x.unflatten(-1, (2, 4)).transpose(1, 2),
    "flat again": lambda x: x.unflatten(-1, (2, 4)).transpose(1, 2).transpose(1, 2).flatten(-2),
    "joined": lambda x: torch.cat([x, x * 2], -1),
    "parts": lambda x: x.chunk(2, -1)[1] * 2,
    "sums": lambda x: (x.sum(1), x.sum(-1), x.mean(1)),
    "padded": lambda x: x.to_padded_tensor(-1.0),
    "values": lambda x: (x.values() * 2, x.offsets() + 1),
    "sizes": lambda x: (x * x.size(0) * x.shape[-1], x.dim(), x.is_nested, x.dtype),
    "ragged size": lambda x: x.view(x.shape[0], x.shape[1], 2, 4),
    "both": lambda x: (x, x * 1),
    "written": lambda x: x.clone().add_(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    f = FUNCTIONS[name]
    compiled = framejit.compile(f)
    for lengths in LENGTHS:
        x = batch(*lengths)
        same(compiled(x), f(x))
    info = compiled.cache_info()
    assert info["breaks"] == 0 and info["recompiles"] <= 1 and compiled.graphs


def test_a_batch_that_is_made_inside():
    net = torch.nn.Linear(8, 8).eval().requires_grad_(False)

    def f(values, offsets):
        x = torch.nested.nested_tensor_from_jagged(values, offsets)
        return (torch.relu(net(x)) * 2).values(), x.sum(-1).values()

    compiled = framejit.compile(f)
    for ends in ([0, 3, 8], [0, 2, 9], [0, 5, 9, 10]):
        args = torch.randn(ends[-1], 8), torch.tensor(ends)
        expected = f(*args)  # first: torch makes an example for itself, once
        same(compiled(*args), expected)
    assert compiled.cache_info()["breaks"] == 0 and compiled.graphs


def test_another_dtype_keeps_the_offsets():
    f = lambda x: x.to(torch.float64) * 2
    compiled, x = framejit.compile(f), batch(3, 5)
    got = compiled(x)
    same(got, f(x))
    assert got.offsets() is x.offsets() and compiled.graphs and not compiled.cache_info()["breaks"]


def test_attention_to_another_batch_and_to_none():
    def f(q, kv):
        q, k = (x.unflatten(-1, (2, 4)).transpose(1, 2) for x in (q, kv))
        return F.scaled_dot_product_attention(q, k, k * 2, scale=0.3)

    compiled = framejit.compile(f)
    for mine, theirs in (((3, 5), (4, 1)), ((2, 6, 2), (1, 9, 3)), ((2, 3), (5, 0))):
        q, kv = batch(*mine), batch(*theirs)
        same(compiled(q, kv), f(q, kv))
    assert not compiled.cache_info()["breaks"]


def test_a_ragged_size_that_leaves_is_the_batchs():
    def f(x):
        return x * 2, x.shape, x.size(1)

    compiled = framejit.compile(f)
    for lengths in LENGTHS[:3]:
        x = batch(*lengths)
        y, shape, ragged = compiled(x)
        assert shape == x.shape and ragged == x.shape[1] and type(shape) is torch.Size
        same(y, x * 2)


def test_what_torch_cannot_do_raises_as_in_torch():
    def f(x):
        return x.sum(1).sum()

    compiled = framejit.compile(f)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="_nested_sum_backward"):
            compiled(batch(3, 5).requires_grad_()).backward()


def test_a_write_to_a_batch_from_outside():
    def f(x):
        x.mul_(2)
        return x + 1

    compiled, x, y = framejit.compile(f), batch(3, 5), batch(3, 5)
    before = x._version, y._version
    torch.testing.assert_close(compiled(x).values(), f(y).values())
    torch.testing.assert_close(x.values(), y.values())
    assert x._version - before[0] == y._version - before[1]
