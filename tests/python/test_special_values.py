"""Infinities, not-a-numbers, zeros and numbers near the ends of their types: results and gradients are of the same class as eager's.

Left out: what eager itself answers differently for the first and the last elements of a tensor."""

import pytest

torch = pytest.importorskip("torch")

F = torch.nn.functional
inf, nan = float("inf"), float("nan")
VALUES = [inf, -inf, nan, 0.0, 1.0, -1.0, 5.0, -5.0, 100.0, -100.0, 1e4, -1e4, 6e4, -6e4, 3.4e38, -3.4e38]
POINTWISE = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": lambda x: F.softplus(x, 2.0, 3.0),
    "threshold": lambda x: F.threshold(x, 0.1, 20),
    "sqrt_by_pow": lambda x: x**0.5,
    "cube": lambda x: x**3,
    "pow": lambda x: x**1.7,
    "rpow": lambda x: 2.5**x,
    "clamp": lambda x: x.clamp(-1, 1),
    "fmod": lambda x: torch.fmod(x, 2.5),
    "remainder": lambda x: torch.remainder(x, 2.5),
    "atan2": lambda x: torch.atan2(x, x.flip(0)),
    **{n: getattr(F, n) for n in ("silu", "mish", "hardswish", "logsigmoid", "elu", "selu", "celu", "hardtanh", "relu6", "leaky_relu")},
    **{
        n: getattr(torch, n)
        for n in ("erf", "erfc", "erfinv", "tanh", "sigmoid", "exp", "expm1", "log", "log1p", "rsqrt", "sin", "atan", "sinh", "asinh", "logit", "frac")
    },
}
ROWS = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(-1),
    "var": lambda x: x.var(-1),
    "mean": lambda x: x.mean(-1),
    "norm": lambda x: x.norm(dim=-1),
    "cumsum": lambda x: x.cumsum(-1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long), reduction="none"),
}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def classes(t):
    """Not-a-number, infinite with its sign, zero, or finite; tiny numbers and zeros are one."""
    t = t.detach().double()
    return [None if v != v else v if abs(v) == inf else 0.0 for v in t.flatten().tolist()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*POINTWISE, *ROWS])
def test_classes(fresh, name, dtype):
    if name in POINTWISE:
        f, x = POINTWISE[name], torch.tensor(VALUES, dtype=torch.float64).to(dtype).repeat(4)
    else:
        f, x = ROWS[name], torch.randn(9, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        for row, value in enumerate((-inf, inf, nan)):
            x[row] = value
        x[3, 0], x[4, 1], x[5, 2], x[6, 0], x[6, 1], x[7] = inf, -inf, nan, inf, -inf, 0
        x = x.to(dtype)
    assert classes(fresh.compile(f)(x)) == classes(f(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["elu", "selu", "celu", "hardswish", "hardtanh", "relu6", "logit", "silu", "mish", "gelu_tanh", "logsigmoid"])
def test_gradients(fresh, name, dtype):
    f = POINTWISE.get(name) or getattr(F, name)
    x = torch.tensor([v for v in VALUES if v == v and abs(v) < 1e4] + [nan] * 7, dtype=torch.float64).to(dtype).repeat(16)
    grads = []
    for g in (f, fresh.compile(f)):
        leaf = x.clone().requires_grad_()
        y = g(leaf)
        y.backward(torch.ones_like(y))
        grads.append(classes(leaf.grad)[:32])
    assert grads[0] == grads[1]
