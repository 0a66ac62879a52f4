"""torch.vmap in compiled functions: one graph of the unbatched operations, in values and strides what torch's rules give."""
import copy
import itertools
import time

import pytest

import framejit

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from oracle import check, gradients_agree  # noqa: E402
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # noqa: E402
from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")
vmap = torch.vmap
torch.manual_seed(0)


def rows(*sizes, dtype=torch.float32):
    return torch.randn(*sizes).to(dtype)


def integers(high, *sizes):
    return torch.randint(0, high, sizes)


def leaves(result):
    if isinstance(result, dict):
        result = list(result.values())
    return [t for part in result for t in leaves(part)] if isinstance(result, (list, tuple)) else [result]


def agree(got, wanted, reference=None):
    assert type(got) is type(wanted)
    got, wanted = leaves(got), leaves(wanted)
    assert len(got) == len(wanted)
    for g, w, exact in zip(got, wanted, reference or [None] * len(got)):
        if isinstance(w, torch.Tensor):
            assert (g.shape, g.stride(), g.dtype, g.requires_grad) == (w.shape, w.stride(), w.dtype, w.requires_grad)
            check(g, w, exact)
        else:
            assert g == w


def exactly(f, arguments):
    """What f gives in float64."""
    return leaves(f(*[a.double() if a.is_floating_point() else a for a in copy.deepcopy(arguments)]))


def nested(function):
    """Over batch, head, query and key, as transformers builds attention masks."""
    for dims in [(None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)]:
        function = vmap(function, in_dims=dims)
    return function


def masked(batch, head, query, key):
    allowed = query.new_ones((), dtype=torch.bool) & (key <= query)
    return allowed & PADDING[batch, key] & (PADDING[batch, query] == PADDING[batch, key])


PADDING = torch.arange(18).reshape(2, 9) % 4 > 0
POSITIONS = [torch.arange(2), torch.arange(1), torch.arange(5), torch.arange(7)], [torch.arange(1), torch.arange(2), torch.arange(9), torch.arange(9)]


def with_torch_s_mode(*positions):
    with TransformGetItemToIndex():
        return nested(masked)(*positions)


def scan(a, b):
    return associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b), dim=1, combine_mode="generic")


def written(x, y):
    def add(a, b):
        a.mul_(2)
        a += b
        return a * 1

    return vmap(add)(x, y), x


def _store(a, i):
    y = a.new_zeros(2, 5)
    y[0, i] = a[:1]
    y[1] = 3
    y[:, 4].fill_(2)
    y.diagonal().zero_()
    return y


def _stores(x, i):
    return vmap(_store)(x, i), vmap(lambda a: a.clone().copy_(x[0]))(x)


WHOLE = {  # name: function, arguments of some calls
    "arithmetic": (lambda x, y: vmap(lambda a, b: a * b.sin() + 1)(x, y), (rows(3, 4), rows(3, 4)), (rows(5, 2), rows(5, 2))),
    "dims": (lambda x, y: vmap(lambda a, b: a * b, in_dims=(1, 0), out_dims=1)(x, y), (rows(3, 4), rows(4, 3)), (rows(5, 2), rows(2, 5))),
    "last dims": (lambda x: vmap(lambda a: (a.exp(), a * 2), in_dims=-1, out_dims=(-1, 0))(x), (rows(3, 4, 2),), (rows(2, 5, 3),)),
    "of ranks": (lambda x, y: vmap(lambda a, b: (a + b).relu(), in_dims=(0, None))(x, y), (rows(3, 4), rows(4)), (rows(3, 4), rows(2, 1, 4))),
    "padded": (lambda x, y: vmap(lambda a, b: a * b)(x, y), (rows(3, 4), rows(3, 2, 4)), (rows(3, 2, 4), rows(3, 4))),
    "structures": (lambda x: vmap(lambda a: (a.exp(), {"sum": a.sum()}))(x), (rows(3, 4),), (rows(2, 4, 3),)),
    "mask": (nested(masked), *POSITIONS),
    "mask under torch's mode": (with_torch_s_mode, *POSITIONS),
    "dimensions": (
        lambda x: vmap(
            lambda a: [a.sum(), a.sum(0), a.mean(-1, keepdim=True), a.softmax(-1), a.amax((0, 1)), a.unsqueeze(0), a.unsqueeze(-1),
                       a.transpose(0, 1), a.cumsum(0), a.flip(0), a.select(1, 0), a.squeeze(0), a.argmax(dim=1)], in_dims=1)(x),
        (rows(3, 4, 5),), (rows(2, 4, 3),)),
    "indices": (
        lambda x, j: vmap(lambda a, i: [a[0], a[:, 1:], a[None], a[..., -1], a[i], a[i, i], a[torch.tensor([1, 0])]])(x, j),
        (rows(3, 4, 5), integers(4, 3, 2)), (rows(2, 4, 3), integers(3, 2, 2)), (rows(2, 4, 3), integers(3, 2))),
    "of a table": (lambda x, i: vmap(lambda a: (x[a], x[a, a]))(i), (rows(4, 5), integers(4, 3)), (rows(4, 5), integers(4, 3, 2))),
    "types": (
        lambda x, y: vmap(lambda a, b: (a * b, b - a, b * 2, b > 1, a < b))(x, y),
        (rows(3, 4), rows(3, dtype=torch.float64)), (rows(3, 4), integers(3, 3)), (integers(3, 3, 4).int(), integers(3, 3)),
        (integers(3, 3, 4).int(), rows(3, dtype=torch.float64)), (integers(2, 3, 4).bool(), integers(3, 3))),
    "types of numbers": (
        lambda x, y: vmap(lambda a: (a * y, y - a, a / y, a > y))(x),
        (rows(3), torch.tensor(2.5, dtype=torch.float64)), (rows(3).half(), torch.tensor(2.5, dtype=torch.float64)),
        (integers(5, 3), torch.tensor(2.5)),
        (rows(3, 4).half(), torch.tensor(2.5, dtype=torch.float64))),
    "writes": (written, (rows(3, 4), rows(3, 4)), (rows(2, 4), rows(2, 4))),
    "no batch in it": (lambda x: vmap(lambda a: torch.ones(2))(x), (rows(3, 4),), (rows(2, 4),)),
    "the same": (lambda x: vmap(lambda a: a)(x) is x, (rows(3, 4),), (rows(2, 4),)),
    "shapes": (
        lambda x: vmap(lambda a: (a.reshape(-1), a.reshape(a.shape[1], a.shape[0]), a.flatten(), a[None].flatten(0, 1), a[None].flatten(start_dim=1),
                                  a.flatten(end_dim=1)), in_dims=1)(x) + vmap(lambda a: (a.view((-1, 1)), a.view(1, -1)))(x),
        (rows(3, 4, 5),), (rows(2, 4, 3),)),
    "products": (
        lambda x, w: vmap(lambda a, b: (a @ b, b.mm(a.t() + 0), torch.mv(b, a[0]), torch.dot(a[0], b[0]), a[0] @ b, b @ a[0], torch.matmul(a[None], b)))(x, w),
        (rows(3, 4, 4), rows(3, 4, 4)), (rows(2, 5, 5), rows(2, 5, 5))),
    "products with what is the same": (
        lambda x, w: vmap(lambda a: (a @ w, w @ a, w[0] @ a, a[0] @ w, torch.bmm(a[None], w[None])))(x),
        (rows(3, 4, 4), rows(4, 4)), (rows(2, 5, 5), rows(5, 5))),
    "layers": (
        lambda x, w, b: vmap(lambda a: (F.linear(a, w, b), F.linear(a, w), F.layer_norm(a, (4,), b), F.embedding(a.long() * 0 + 1, w)))(x),
        (rows(3, 4), rows(4, 4), rows(4)), (rows(2, 5, 4), rows(4, 4), rows(4))),
    "weights of their own": (
        lambda x, w, b: (vmap(F.linear)(x, w, b), vmap(F.linear, in_dims=(None, 0))(x, w), vmap(lambda a: F.linear(x, w[0], bias=a))(b)),
        (rows(3, 4), rows(3, 4, 4), rows(3, 4)), (rows(2, 4), rows(2, 5, 4), rows(2, 5))),
    "joined": (
        lambda x, y: vmap(lambda a: (torch.cat([a, y, a]), torch.cat((a, a), dim=-1), torch.stack([a, y], 1), torch.stack([y, a], dim=-1)), in_dims=1)(x),
        (rows(3, 4, 2), rows(3, 2)), (rows(2, 5, 3), rows(2, 3))),
    "einsum": (
        lambda x, w: (vmap(lambda a: torch.einsum("ij,jk->ik", a, w))(x), vmap(lambda a, b: torch.einsum("ij,kj->ki", a, b), in_dims=(0, 2))(x, w[..., None] + x[:, 0, 0])),
        (rows(3, 4, 4), rows(4, 4)),),
    "convolutions": (
        lambda x, w: (vmap(lambda a: F.conv2d(a, w, padding=1))(x), vmap(lambda a: F.conv2d(a, w, stride=2), in_dims=1)(x[:, None].repeat(1, 2, 1, 1, 1))),
        (rows(3, 2, 5, 5), rows(4, 2, 3, 3)), (rows(2, 2, 6, 7), rows(4, 2, 3, 3))),
    "losses": (lambda x, y: vmap(lambda a, b: (F.mse_loss(a, b), F.mse_loss(a, b, reduction="sum"), F.mse_loss(a, b, reduction="none")))(x, y),
        (rows(3, 4), rows(3, 4)), (rows(2, 4, 5), rows(2, 4, 5))),
    "two levels": (
        lambda x, w: vmap(lambda a: vmap(lambda b, v: (F.linear(b, v), torch.cat([b, a[0]]), b @ v), in_dims=(0, 0))(a, w))(x),
        (rows(3, 2, 4), rows(2, 4, 4)), (rows(2, 3, 5), rows(3, 5, 5))),
    "parts": (
        lambda x: vmap(lambda a: (*a.split(1), *a.split([1, 3], dim=-1), *a.chunk(2, 1), a.movedim(0, -1), a.movedim((0, 1), (1, 0)), a.unflatten(1, (2, 2)),
                                  a.expand_as(a[None]), a.diagonal(), torch.diagonal(a, 1, dim1=-2, dim2=-1)), in_dims=1)(x),
        (rows(2, 3, 4),), (rows(2, 5, 4),)),
    "stores": (_stores, (rows(3, 4), integers(4, 3, 2)), (rows(2, 4), integers(4, 2, 1))),
    "two levels of stores": (lambda x, i: vmap(vmap(_store))(x, i), (rows(2, 3, 4), integers(4, 2, 3, 2)),),
    "the same numbers for all": (lambda x: vmap(lambda a: a + torch.rand(4) * torch.randn(2, 4), randomness="same")(x), (rows(3, 4),)),
    "numbers for each": (lambda x: vmap(lambda a: a + torch.rand(4) * torch.randn((2, 4)), randomness="different")(x), (rows(3, 4),)),
    "dropout": (lambda x: vmap(lambda a: (F.dropout(a, 0.4), torch.rand_like(a)), randomness="different")(x), (rows(3, 4),)),
    "associative scan": (scan, (rows(2, 7, 3), rows(2, 7, 3)), (rows(2, 8, 3), rows(2, 8, 3))),
}  # fmt: skip


DRAWN = "the same numbers for all", "numbers for each", "dropout"  # no others in float64

BY_TORCH = {  # its own rules, as one call of the graph each
    "norms": (lambda x: vmap(lambda a: (a.norm(), torch.linalg.norm(a), torch.linalg.vector_norm(a, dim=-1), F.normalize(a, dim=0), a.std(), a.var(0)))(x), rows(3, 4, 5)),
    "losses": (lambda x, y: vmap(lambda a, b: (F.cross_entropy(a, b), F.nll_loss(a, b), F.cross_entropy(a, b, reduction="sum")))(x, y), rows(3, 4, 5), integers(5, 3, 4)),
    "binary losses": (lambda x, y: (vmap(F.binary_cross_entropy)(x.sigmoid(), y), vmap(F.binary_cross_entropy_with_logits)(x, y)), rows(3, 4), torch.rand(3, 4)),
    "orders": (lambda x: vmap(lambda a: (a.sort()[0], a.topk(2).values, a.max(), a.max(0)[1], a.argsort(), a.roll(1), a.repeat(2), torch.outer(a, a)))(x), rows(3, 4)),
    "gathered": (lambda x, i: vmap(lambda a, b: (a.gather(0, b), a.scatter(0, b, 1.0), a.index_select(0, b)))(x, i), rows(3, 4), integers(4, 3, 2)),
    "matrices": (lambda x: vmap(lambda a: (torch.linalg.inv(a), torch.linalg.det(a), torch.trace(a), a.tril(), torch.cdist(a, a)))(x), rows(3, 4, 4) + 3 * torch.eye(4)),
    "pictures": (lambda x: vmap(lambda a: (F.max_pool2d(a, 2), F.group_norm(a[None], 2)[0], F.scaled_dot_product_attention(a, a, a)))(x), rows(3, 2, 4, 4)),
    "one hot": (lambda x: vmap(lambda a: F.one_hot(a, 5))(x), integers(5, 3, 4)),
    "two levels": (lambda x, y: vmap(lambda a: vmap(lambda b, c: F.cross_entropy(b, c))(a, y))(x), rows(2, 3, 4, 5), integers(5, 3, 4)),
    "dims": (lambda x, y: vmap(lambda a, b: torch.cat([a.sort()[0], b.norm()[None]]), in_dims=(1, 0), out_dims=1)(x, y), rows(4, 3), rows(3, 4)),
}  # fmt: skip


def test_products_with_one_matrix_lie_as_torch_s():
    m, x = rows(4, 4), rows(3, 4)
    functions = [
        lambda m, x: vmap(torch.mv, (None, 0))(m, x),
        lambda m, x: vmap(torch.mv, (None, 1), 1)(x, m),
        lambda m, x: vmap(lambda a, b: a @ b, (None, 0))(m, x),
        lambda m, x: vmap(torch.mv, (0, None))(torch.stack([m, m * 2]), x[0]),
        lambda m, x: vmap(torch.mv)(torch.stack([m] * 3), x),
        lambda m, x: vmap(torch.mm, (None, 0))(m, torch.stack([m, m])),
        lambda m, x: vmap(vmap(torch.mv, (None, 0)), (0, None))(torch.stack([m, m]), x),
    ]
    for f in functions:
        compiled = framejit.compile(f, fullgraph=True)
        for k in range(2):
            got, expected = compiled(m + k, x), f(m + k, x)
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BY_TORCH)
def test_one_graph_by_rules_of_torch(name):
    f, *arguments = BY_TORCH[name]
    told = framejit.explain(f)(*arguments)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = framejit.compile(f)
    for _ in range(3):
        torch.testing.assert_close(compiled(*arguments), f(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["norms", "losses", "gathered"])
def test_gradients_by_rules_of_torch(name):
    f, x, *others = BY_TORCH[name]

    def loss(x, *others):
        return sum(t.square().sum() for t in leaves(f(x, *others)))

    compiled = framejit.compile(loss)
    ours, theirs = (torch.autograd.grad(g(leaf, *others), leaf)[0] for g in (compiled, loss) for leaf in [x.clone().requires_grad_()])
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name):
    f, *calls = WHOLE[name]
    told = framejit.explain(f)(*copy.deepcopy(calls[0]))
    assert told.graph_break_count == 0, str(told)
    compiled = framejit.compile(f)
    for arguments in [*calls, *calls]:
        torch.manual_seed(1)
        got = compiled(*copy.deepcopy(arguments))
        torch.manual_seed(1)
        agree(got, f(*copy.deepcopy(arguments)), exactly(f, arguments) if name not in DRAWN else None)


def test_gradients_of_each_sample():
    def loss(weights, x, y):
        w, v = weights
        h = F.layer_norm(torch.tanh(F.linear(x, w)), (5,))
        return F.mse_loss(torch.cat([h @ v, h.reshape(1, -1).flatten()]), y)

    def f(weights, x, y):
        return vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)

    weights = rows(5, 4), rows(5, 3)
    told = framejit.explain(f)(weights, rows(6, 4), rows(6, 8))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = framejit.compile(f)
    for n in (6, 3, 6):
        arguments = weights, rows(n, 4), rows(n, 8)
        for got, expected in zip(compiled(*arguments), f(*arguments), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def kept(x):
    seen = []
    return vmap(lambda a: (seen.append(a), a * 2)[1])(x), len(seen)


LEFT = {  # to torch
    "matmul": (lambda x, w: vmap(lambda a: a @ w)(x), rows(3, 4, 5), rows(5, 2)),
    "where of types": (lambda x, y: vmap(lambda a, b: torch.where(b > 0, a, b))(x, y), rows(3, 4), rows(3, dtype=torch.float64)),
    "random": (lambda x: vmap(lambda a: F.dropout(a, 0.5).shape[0] + a, randomness="same")(x), rows(3, 4)),
    "what leaves": (kept, rows(3, 4)),
    "gradients of one": (lambda x: vmap(torch.func.grad(lambda a: a.sin().sum()))(x), rows(3, 4)),
    "types of numbers": (lambda x, y: vmap(lambda a: torch.where(a > 0, a, y))(x), rows(3), torch.tensor(2.5, dtype=torch.float64)),
    "limits of other types": (lambda x, y: vmap(lambda a, b: torch.clamp(a, b))(x, y), rows(3, 4, dtype=torch.float16), rows(3, dtype=torch.float64)),
    "several dimensions one by one": (lambda x: vmap(lambda a: (a.flip(0, 2), a.flip(1, 0)))(x), rows(3, 4, 5, 2)),
    "requires_grad": (lambda x: vmap(lambda a: a * 2 + a.requires_grad)(x), rows(3, 4).requires_grad_()),
    "an element by number": (lambda x, y: _by_number(x, y), rows(3, 4), rows(3, 4)),
}  # fmt: skip


def _by_number(x, y):
    with TransformGetItemToIndex():
        z = x[0]  # a copy here
    z.zero_()
    return x + vmap(lambda a: a * 2)(y)


@pytest.mark.parametrize("name", LEFT)
def test_left_to_torch(name):
    f, *arguments = LEFT[name]
    compiled = framejit.compile(f)
    for _ in range(2):
        agree(compiled(*copy.deepcopy(arguments)), f(*copy.deepcopy(arguments)))


def test_gradients():
    def f(x, y):
        return vmap(lambda a, b: (a * b).sum().sin(), in_dims=(0, None))(x, y)

    torch.manual_seed(0)  # of 300 data sets 17 have a sum near 0, where the order of four terms decides
    compiled = framejit.compile(f)
    for n in (3, 4, 5):
        gradients_agree(compiled, f, rows(n, 4), rows(4))


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


@pytest.mark.parametrize("f", [
    lambda x, y: vmap(lambda a, b: a + b)(x, y),
    lambda x, y: vmap(lambda a: a * a.sum().item())(x),
    lambda x, y: vmap(lambda a: a if a.sum() > 0 else -a)(x),
    lambda x, y: vmap(lambda a: x[: a.sum().int()])(x),
    lambda x, y: vmap(OldStyle.apply)(x),
])  # fmt: skip
def test_errors_are_torch_s(f):
    x, y = rows(3, 4), rows(2, 4)
    with pytest.raises((ValueError, RuntimeError)) as wanted:
        f(x, y)
    with pytest.raises(wanted.type) as got:
        framejit.compile(f)(x, y)
    assert str(got.value) == str(wanted.value)
    assert torch._C._functorch.maybe_get_level(x) == -1 and vmap(torch.sin)(x).shape == (3, 4)


@pytest.mark.parametrize("draw", [lambda t: F.dropout(t, 0.5), lambda t: t.bernoulli(0.5), torch.randn_like, torch.rand_like, lambda t: F.dropout(t.t(), 0.5)])
@pytest.mark.parametrize("dim", [0, 1])
def test_draws_are_torch_s(draw, dim):
    f = lambda x: vmap(draw, in_dims=dim, randomness="different")(x)  # noqa: E731
    compiled, x = framejit.compile(f), torch.full((3, 4, 5), 0.5)
    for seed in range(3):
        got, wanted = (torch.manual_seed(seed) and g(x) for g in (compiled, f))
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("f", [
    lambda t: torch.cat([t, t], -3), lambda t: torch.stack([t, t], -4), lambda t: t.flatten(-3), lambda t: t.chunk(2, -3),
    lambda t: t.movedim(-3, 0), lambda t: t.diagonal(0, -3, -1),
])  # fmt: skip
def test_dimensions_of_the_sample_only(f):
    x = torch.randn(2, 3, 4)
    for call in (lambda x: vmap(f)(x), framejit.compile(lambda x: vmap(f)(x))):
        with pytest.raises(IndexError):
            call(x)


@pytest.mark.parametrize("f", [lambda t: torch.roll(t, 1, dims=0), lambda t: t.permute(dims=(1, 0)), lambda t: torch.flip(t, dims=(0,))])
def test_keywords_of_torch_s_own_rules(f):
    x = torch.randn(2, 3, 4)
    told = framejit.explain(lambda x: vmap(f)(x))(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    assert torch.equal(framejit.compile(lambda x: vmap(f)(x))(x), vmap(f)(x))


def test_a_break_inside_of_torch_s_mode():
    def f(x, i):
        with TransformGetItemToIndex():
            y = x * 2
            time.sleep(0)
            z = vmap(lambda j: y[j])(i)
        return z, x[i[0]]

    compiled, x, i = framejit.compile(f), rows(4, 3), integers(4, 5)
    for _ in range(2):
        agree(compiled(x, i), f(x, i))


def test_copies_of_plain_objects_and_type_hints_are_read():
    import typing

    class Config:
        def __init__(self, scale):
            self.scale, self.sizes = scale, [1, 2]

    config = Config(3)

    def f(x):
        other = copy.copy(config)
        other.scale += len(typing.get_args(int | None))
        return x * other.scale + config.scale + other.sizes[1], other.sizes is config.sizes

    told = framejit.explain(f)(torch.ones(2))
    assert told.graph_break_count == 0, str(told)
    compiled = framejit.compile(f)
    for scale in (3, 3, 4):
        config.scale = scale
        agree(compiled(torch.ones(2)), f(torch.ones(2)))


@pytest.mark.parametrize("f", [
    lambda a: torch.isclose(a, a), lambda a: a.masked_fill(a > 0, torch.tensor(1.0)), lambda a: a.clone().pow_(a), lambda a: a.clone().lt_(0.5),
    lambda a: a.clone().addcmul_(a, a),
])  # fmt: skip
def test_operations_without_a_rule_warn(f):
    with pytest.warns(UserWarning, match="performance drop"):
        wanted = vmap(f)(rows(3, 4))
    with pytest.warns(UserWarning, match="performance drop"):
        got = framejit.compile(lambda x: vmap(f)(x))(rows(3, 4))
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)


def test_what_torch_knows_of_containers_is_guarded_by_the_types_that_are_met():
    from torch.utils import _pytree

    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    def f(x, y):
        return vmap(lambda p: p[0] * 2 + p[1])((x, y))

    compiled, x, y = framejit.compile(f), rows(3, 4), rows(3, 4)
    agree(compiled(x, y), f(x, y))
    segments = compiled.cache_info()["segments"]
    _pytree.register_pytree_node(Pair, lambda p: ([p.a, p.b], None), lambda c, _: Pair(*c))
    try:
        agree(compiled(x, y), f(x, y))
        assert compiled.cache_info()["segments"] == segments
    finally:
        _pytree._deregister_pytree_node(Pair) if hasattr(_pytree, "_deregister_pytree_node") else _pytree.SUPPORTED_NODES.pop(Pair)
    tuples = _pytree.SUPPORTED_NODES[tuple]
    try:
        _pytree.SUPPORTED_NODES[tuple] = tuples._replace(flatten_fn=lambda t: (list(t)[::-1], None), unflatten_fn=lambda c, _: tuple(c)[::-1]) \
            if hasattr(tuples, "_replace") else tuples  # fmt: skip
        agree(compiled(x, y), f(x, y))
    finally:
        _pytree.SUPPORTED_NODES[tuple] = tuples
    agree(compiled(x, y), f(x, y))


def layouts(*sizes):
    """Every order in which the dimensions of such a tensor can lie."""
    for order in itertools.permutations(range(len(sizes))):
        back = sorted(range(len(sizes)), key=order.__getitem__)
        yield torch.arange(float(np.prod(sizes))).reshape([sizes[k] for k in order]).permute(back)


ONES = {
    "expand": lambda r: r.expand(2, *r.shape),
    "expand to what it is": lambda r: r.expand(r.shape),
    "expand_as": lambda r: r.expand_as(torch.ones(2, *r.shape)),
    "more dimensions": lambda r: r + torch.ones(4, 1, 1),
    "in place": lambda r: (r + 0).add_(r),
    "linear": lambda r: F.linear(r, torch.ones(1, r.shape[-1])),
    "unsqueeze": lambda r: r.unsqueeze(0),
}


@pytest.mark.parametrize("operation", ONES)
def test_strides_of_dimensions_of_size_1(operation, fresh):
    one = ONES[operation]

    def f(x):
        return vmap(one)(x), vmap(one, in_dims=1)(x)

    for sizes in ((1, 4), (3, 1), (2, 1, 4), (2, 3, 1), (1, 3, 4)):
        for x in layouts(*sizes):
            fresh.reset()  # a new layout is no version of another one here
            compiled = fresh.compile(f, fullgraph=True)
            agree(compiled(x), f(x))
            assert compiled.cache_info()["segments"] and set(compiled.cache_info()["outcomes"]["run"]) <= {"graph", "nothing"}


def test_a_vector_turned_is_another_object(fresh):
    def f(x):
        y = vmap(lambda r: r.t())(x)
        z = vmap(lambda r: r.t().t())(x[0])
        same = y is x
        y[0] += 1
        return same, y, z

    for make in (lambda: rows(3, 4), lambda: rows(1, 2)):
        compiled = fresh.compile(f, fullgraph=True)
        x = make()
        ours, theirs = x.clone(), x.clone()
        got, expected = compiled(ours), f(theirs)
        assert got[0] is expected[0] is False
        agree(list(got[1:]), list(expected[1:]))
        check(ours, theirs)
        got[1].mul_(2), expected[1].mul_(2)
        check(ours, theirs)
        assert compiled.cache_info()["breaks"] == 0
