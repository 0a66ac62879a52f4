"""torch's higher-order operators in compiled functions: what they mean is captured, in one graph."""

import copy

import pytest

import framejit

torch = pytest.importorskip("torch")
from oracle import gradients_agree  # noqa: E402
from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402
from torch._higher_order_ops.map import map as each  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")
torch.manual_seed(0)


def rows(*sizes):
    return torch.randn(*sizes)


def branches(x, y):
    up, down = torch.cond(x.sum() > 0, lambda a, b: (a.sin(), b + 1), lambda a, b: (a.cos(), b - 1), (x, y))
    return up * 2 + x, down


def nested(x):
    def inner(a):
        return torch.cond(a.amax() > 1, lambda b: b * 2, lambda b: b * 3, (a,))

    return torch.cond(x.shape[0] > 3, lambda a: inner(a) + 1, lambda a: inner(a) - 1, (x,))


def doubled(i, x):
    return while_loop(lambda i, x: x.sum() < 100, lambda i, x: (i + 1, x * 2), (i, x))


WHOLE = {
    "cond": (branches, torch.ones(4), rows(3)),
    "cond of cond": (nested, torch.ones(4)),
    "while": (doubled, torch.tensor(0), torch.full((4,), 5.0)),
    "while, never": (doubled, torch.tensor(0), torch.full((4,), 50.0)),
    "scan": (lambda c, x: scan(lambda c, x: (c + x, (c * x).sin()), c, x), rows(3), rows(5, 3)),
    "scan of trees": (lambda a, b, x: scan(lambda c, x: ((c[0] * x, c[1] + x), {"sum": c[0] + c[1]}), (a, b), x), rows(3), rows(3), rows(5, 3)),
    "scan from behind": (lambda c, x: scan(lambda c, x: (c + x, c * x), c, x, dim=1, reverse=True), rows(3), rows(3, 5)),
    "associative scan": (lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"), rows(5, 3)),
    "map": (lambda x, y: each(lambda a, b: (a * b).sum(), x, y), rows(5, 3), rows(3)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name):
    f, *arguments = WHOLE[name]
    told = framejit.explain(f)(*copy.deepcopy(arguments))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled, expected = framejit.compile(f), f(*copy.deepcopy(arguments))
    for _ in range(3):
        torch.testing.assert_close(compiled(*copy.deepcopy(arguments)), expected, check_stride=True)


def test_the_other_branch_and_other_numbers_of_rounds():
    compiled, loop, y = framejit.compile(branches), framejit.compile(doubled), rows(3)
    for x in (torch.ones(4), -torch.ones(4), torch.ones(4), -torch.ones(4), torch.full((4,), 2.0)):
        torch.testing.assert_close(compiled(x, y), branches(x, y))
    for start in (5.0, 1.0, 50.0, 5.0, 0.1):
        torch.testing.assert_close(loop(torch.tensor(0), torch.full((4,), start)), doubled(torch.tensor(0), torch.full((4,), start)))


@pytest.mark.parametrize("f", [
    lambda x: torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)),
    lambda x: each(lambda a: (a * a).sum(), x),
    lambda x: scan(lambda c, a: (c + a, c * a), x.sum(0), x)[1],
])  # fmt: skip
def test_gradients(f):
    gradients_agree(framejit.compile(f), f, torch.rand(4, 3))


def causal(b, h, q, k):
    return q >= k


MASK = create_block_mask(causal, None, None, 256, 256, device="cpu")
BIAS = rows(2)


def distances(score, b, h, q, k):
    return score + (q - k) * 0.1 * BIAS[h]


ATTENTION = {
    "plain": lambda q, k, v: flex_attention(q, k, v),
    "scores": lambda q, k, v: flex_attention(q, k, v, score_mod=distances, scale=0.3),
    "mask": lambda q, k, v: flex_attention(q, k, v, block_mask=MASK),
    "both, sums": lambda q, k, v: flex_attention(q, k, v, score_mod=distances, block_mask=MASK, return_lse=True),
    "mask made inside": lambda q, k, v: flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, 256, 256, device="cpu")),
    "heads turned": lambda q, k, v: flex_attention(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, block_mask=MASK),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.filterwarnings("ignore")
def test_flex_attention(name):
    f, arguments = ATTENTION[name], [rows(1, 2, 256, 8) for _ in range(3)]
    told = framejit.explain(f)(*arguments)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled, expected = framejit.compile(f), f(*arguments)
    for _ in range(2):
        torch.testing.assert_close(compiled(*arguments), expected, rtol=1e-4, atol=1e-5, check_stride=True)


def test_gradients_of_flex_attention_are_refused_on_the_cpu_as_torch_does():
    q, k, v = [rows(1, 2, 256, 8).requires_grad_() for _ in range(3)]
    for f in (ATTENTION["mask"], framejit.compile(ATTENTION["mask"])):
        with pytest.raises(NotImplementedError):
            f(q, k, v)
