"""Infinities, not-a-numbers, zeros and numbers near the ends of their types: results and gradients are of the same class as eager's.

Left out: what eager itself answers differently for the first and the last elements of a tensor."""

import itertools
import re
import warnings
from pathlib import Path

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


@pytest.mark.parametrize("grad", [1.0, inf, nan, 0.0])
@pytest.mark.parametrize("name", ["max", "min", "nan_to_num", "maximum", "fmin", "reciprocal", "sqrt", "abs", "sign", "where", "logit"])
def test_gradients_that_arrive(fresh, name, grad):
    """Whom they go to among special numbers, and what becomes of special gradients."""
    f = {"maximum": lambda x: torch.maximum(x, x.flip(0)), "fmin": lambda x: torch.fmin(x, -x), "where": lambda x: torch.where(x > 0, x, -x)}.get(
        name, lambda x: getattr(x, name)()
    )
    compiled = fresh.compile(f)
    for values in ([0.0, -0.0, 1.0, inf, -inf, nan, nan, 1e-45, 3e38], [1.0, inf, inf, -inf, -inf], [0.0, 2.0, 2.0, -1.0, -1.0]):
        found = []
        for g in (f, compiled):
            x = torch.tensor(values, requires_grad=True)
            y = g(x)
            found.append(classes(torch.autograd.grad(y, x, torch.full_like(y, grad))[0]))
        assert found[1] == found[0]
    assert compiled.cache_info()["segments"] and not compiled.cache_info()["notes"]


SLICES = [[0, 1, 2, 3], [0, 0, 2, 3], [0, 0, 0, 0], [-0.0, 0, 1, -1], [inf, 1, 2, 3], [inf, 0, 1, 2], [inf, inf, 1, 2], [inf, -inf, 1, 2], [nan, 1, 2, 3],
          [nan, 0, 1, 2], [nan, inf, 0, 1], [nan, nan, 1, 1], [-inf, -inf, 1, 2], [2, 2, 1, 2], [-3, 3, 1, -3], [1, 1, 1, 1], [1e20, 1e20, 1, 1]]  # fmt: skip
DERIVED = {
    **{n: (lambda x, d, n=n: getattr(x, n)(d)) for n in """sum mean prod amax amin var std logsumexp cumsum cumprod nansum nanmean logcumsumexp""".split()},
    **{n: (lambda x, d, n=n: getattr(x, n)(d).values) for n in """max min median nanmedian mode sort cummax cummin""".split()},
    **{f"all {n}": (lambda x, d, n=n: getattr(x, n)()) for n in """max min amax amin prod std var median norm""".split()},
    **{f"norm {p}": (lambda x, d, p=p: torch.linalg.vector_norm(x, p, d)) for p in (0.5, 1, 2, 3, inf, -inf, -1)},
    "kthvalue": lambda x, d: x.kthvalue(2, d).values,
    "population": lambda x, d: x.var(d, correction=0),
    "var_mean": lambda x, d: sum(torch.var_mean(x, d)),
    "aminmax": lambda x, d: torch.sub(*torch.aminmax(x, dim=d)),
    "quantile": lambda x, d: x.quantile(0.3, d),
    "normalize inf": lambda x, d: F.normalize(x, inf, d),
    "renorm": lambda x, d: x.renorm(2, d, 1.0),
    "dist": lambda x, d: torch.dist(x, x.flip(-1), inf),
    "columns": lambda x, d: torch.linalg.matrix_norm(x, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DERIVED)
def test_gradients_of_reductions(fresh, name, dtype):
    """Zeros, infinities, not-a-numbers and equal elements: each number of the gradient is eager's."""
    if dtype == torch.bfloat16 and name == "quantile":
        pytest.skip("torch has none of it")
    rows = torch.tensor(SLICES[: -1 if "prod" in name else None]).to(dtype)  # eager's product overflows, ours is wider
    layouts = [(rows[i : i + 1], -1) for i in range(len(rows))] + [(rows.t().contiguous().t(), -1), (rows.t().contiguous(), 0), (rows.repeat(1, 2)[:, ::2], -1)]
    layouts += [(rows[i], 0) for i in (1, 5, 9) if name not in ("columns", "renorm")]
    for x, dim in layouts:
        found, f = [], lambda x, dim=dim: DERIVED[name](x, dim)
        for g in (f, fresh.compile(f)):
            leaf = x.detach().requires_grad_()
            y = g(leaf)
            found.append(torch.autograd.grad(y, leaf, torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(dtype))[0].double())
        bound = 3e-2 if dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(found[1], found[0], rtol=bound, atol=bound * 1e-3, equal_nan=True, msg=lambda m, x=x: f"{x}: {m}")


# Every pointwise row of the surface and every reduction, against eager: each number of the results, zeros with their signs.
EDGES = [0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 2.5, -0.5, 1e20, -1e20, 3e38, -3e38, 6e4, -6e4, 1e-20, -1e-20, 1e-40, -1e-40, 6e-8, -3.0, 100.0]
UNARY = """abs acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh ceil cos cosh deg2rad erf erfc exp exp2 expm1 fix floor frac
    isfinite isinf isnan isneginf isposinf log log10 log1p log2 logical_not logit nan_to_num neg negative positive rad2deg reciprocal relu round rsqrt
    selu sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc absolute clone erfinv lgamma digamma i0""".split()  # fmt: skip
ACTIVATIONS = """relu relu6 silu mish softplus softsign hardtanh hardswish hardsigmoid elu selu celu leaky_relu logsigmoid softshrink hardshrink gelu
    tanhshrink""".split()  # fmt: skip
BINARY = """add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow atan2 arctan2 hypot copysign logaddexp logaddexp2 xlogy eq
    not_equal ne lt less le less_equal gt greater ge greater_equal maximum minimum fmax fmin clamp_min clamp_max nextafter heaviside ldexp float_power rsub
    logical_and logical_or logical_xor""".split()  # fmt: skip
NUMBERS = [0.0, -0.0, inf, -inf, nan, 2.0, 0.5, -1.0, 3.0, -2.0, -0.5, 1e20, 1e-40, 2, 3, -1]
BY_NUMBER = "add sub mul div floor_divide remainder fmod pow copysign clamp_min clamp_max eq lt float_power xlogy true_divide".split()
PAIRS = [[1e20, -1e20], [1e20, 1e20], [3e38, 3e38], [inf, 1.0], [-inf, 1.0], [inf, -inf], [nan, 1.0], [0.0, -0.0], [-0.0, -0.0], [1e-40, 1e-40],
         [1e-20, 2e-20], [6e4, 6e4], [-6e4, 6e4], [1.0, 2.0], [inf, inf], [-inf, -inf], [1e4, 1e4], [256.0, 256.0], [1e-23, 0.0], [3e4, -2.0]]  # fmt: skip
REDUCTIONS = {
    **{n: (lambda x, n=n: getattr(x, n)(-1)) for n in """sum mean prod amax amin argmax argmin any all var std logsumexp softmax log_softmax cumsum cumprod
        nansum nanmean count_nonzero logcumsumexp""".split()},
    "max": lambda x: x.max(-1).values,
    "min": lambda x: x.min(-1).values,
    "population": lambda x: x.var(-1, correction=0),
    "var_mean": lambda x: torch.var_mean(x, -1)[0],  # eager's mean depends on where among the numbers an infinity is
    "columns": lambda x: x.std(0),
    "norm": lambda x: x.norm(dim=-1),
    "norm1": lambda x: x.norm(p=1, dim=-1),
    "largest": lambda x: x.norm(p=inf, dim=-1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(-1), dim=-1),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
}  # fmt: skip


def differ(got, expected, zeros=True):
    """Where two results are not the same number, up to a few units in the last place."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if not expected.is_floating_point():
        return got != expected
    a, b = got.double(), expected.double()
    unit = torch.finfo(expected.dtype)
    near = (a - b).abs() <= 8 * unit.eps * b.abs() + 2 * unit.tiny * unit.eps
    same = (a == b) | (a.isnan() & b.isnan()) | (near & b.isfinite())
    return ~same | (zeros & (a == 0) & (b == 0) & (a.signbit() != b.signbit()))


def check_all(fresh, cases):
    wrong, compiled_ones = [], 0
    for name, f, args, zeros, left_out in cases:
        fresh.reset()
        compiled = fresh.compile(f)
        try:
            expected = f(*args)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                compiled(*args)
            continue
        got = compiled(*args)
        compiled_ones += compiled.cache_info()["segments"] > 0
        bad = differ(got, expected, zeros)
        if left_out is not None:
            bad &= ~left_out
        for i in bad.flatten().nonzero().flatten().tolist()[:2]:
            operands = [a.flatten()[i].item() for a in args if a.numel() == bad.numel()]
            wrong.append((name, operands, got.flatten()[i].item(), expected.flatten()[i].item()))
    assert not wrong, wrong
    return compiled_ones


def test_the_tables_know_every_row():
    source = Path(__file__).resolve().parents[2] / "src/surface/torch_pointwise.cc"
    listed = {n.split(":")[1] for rows in re.findall(r'"((?:[a-zA-Z]+:[a-z_0-9]+ ?)+)"', source.read_text()) for n in rows.split() if "m" in n.split(":")[0]}
    ours = {*UNARY, *BINARY, "clamp", "clip", "lerp", "addcmul", "addcdiv", "where", "masked_fill", "max", "min"}
    assert {n for n in listed - ours if not n.startswith("bitwise")} == set()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pointwise_rows(fresh, dtype):
    x = torch.tensor(EDGES, dtype=torch.float64).to(dtype).repeat(4)
    ends = x.abs() > 1e38  # oneDNN's gelu doubles before it halves; polynomials of tiny numbers lose their last place
    cases = [(n, lambda x, n=n: getattr(torch, n)(x), (x,), True, (x.abs() < 1e-6) if n == "erf" else None) for n in UNARY]
    cases += [(n, lambda x, n=n: getattr(F, n)(x), (x,), True, {"gelu": ends & x.isfinite() | (x == -3), "tanhshrink": x.abs() < 1e-6}.get(n)) for n in ACTIVATIONS]
    assert check_all(fresh, cases) == len(cases)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_binary_rows(fresh, dtype):
    pairs = torch.tensor(list(itertools.product(EDGES, EDGES)) + [(1.0, 1.0)] * 28, dtype=torch.float64).to(dtype)
    a, b = pairs.t().contiguous()
    ratio = (a.double() / b.double()).abs()
    far = (ratio > 1e30) & ratio.isfinite()  # eager's vectors give up on remainders there
    # of two zeros eager's vectors give the second, what is left of them the first
    cases = [(n, lambda x, y, n=n: getattr(torch, n)(x, y), (a, b), not re.match("f?m(ax|in)|clamp", n), far if n in ("fmod", "remainder") else None) for n in BINARY]
    assert check_all(fresh, cases) >= len(cases) - 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_with_numbers(fresh, dtype):
    x = torch.tensor(EDGES, dtype=torch.float64).to(dtype).repeat(4)
    cases = []
    for k in NUMBERS:
        big = x.abs() > (1e30 if abs(k) > 1e-30 else 0)
        cases += [(f"{n} {k}", lambda x, n=n, k=k: getattr(torch, n)(x, k), (x,), True, big if n in ("fmod", "remainder") else None) for n in BY_NUMBER]
        cases += [(f"{k} **", lambda x, k=k: torch.pow(k, x), (x,), True, None), (f"{k} /", lambda x, k=k: k / x, (x,), True, None)]
    for low, high in itertools.product([None, -1.0, nan, inf, -inf, 0.0, -0.0], [None, 1.0, nan, inf, -inf, 0.0, -0.0]):
        if low is not None or high is not None:
            cases.append((f"clamp {low} {high}", lambda x, low=low, high=high: x.clamp(low, high), (x,), True, None))
    assert check_all(fresh, cases) >= 0.9 * len(cases)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_of_edges(fresh, dtype):
    x = torch.tensor(PAIRS, dtype=torch.float64).to(dtype)
    cases = [(f"{n} {y.shape[1]}", f, (y,), True, None) for n, f in REDUCTIONS.items() for y in (x, x.repeat(1, 20))]
    assert check_all(fresh, cases) == len(cases)
    for pair in x:
        if pair[0] < 3e38:  # the mean of everything is rounded in eager
            assert not differ(fresh.compile(lambda x: x.std())(pair), pair.std()).any(), pair


def test_no_degrees_of_freedom(fresh):
    """Counted as torch counts: of no results at all there is no number each."""
    for f in (lambda x: x.var(1), lambda x: x.std(), lambda x: x.std(0), lambda x: x.var(1, correction=0)):
        for shape in ((0, 3), (3, 0), (1, 1), (2, 1), (2, 3)):
            x = torch.ones(shape)
            fresh.reset()
            compiled, seen = fresh.compile(f), []
            for g in (f, compiled, compiled):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    result = g(x)
                seen.append([(w.category, str(w.message), w.filename, w.lineno) for w in caught] + [str(result)])
            assert seen[0] == seen[1] == seen[2], shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gelu_of_one_infinity(fresh, dtype):
    """torch calls its library for what has more than one element."""
    compiled = fresh.compile(F.gelu)
    for sizes in ((1,), (1, 1), (2,), (5,), (1,)):
        x = torch.full(sizes, torch.inf, dtype=dtype)
        torch.testing.assert_close(compiled(x), F.gelu(x), equal_nan=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.add(x, x, alpha=2**40),
        lambda x: torch.sub(x, x, alpha=2**40),
        lambda x: torch.add(x, x, alpha=torch.tensor(2**40 + 1).item()),
        lambda x: x.clone().fill_(2**40),
        lambda x: x.masked_fill(x > 0, 2**40),
        lambda x: torch.full_like(x, 2**40),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float16, torch.float32])
def test_integers_that_do_not_fit(fresh, call, dtype):
    def told(f):
        try:
            return f(torch.ones(2, dtype=dtype)).tolist()
        except RuntimeError as error:
            return str(error)

    assert [told(fresh.compile(call)) for _ in range(2)] == [told(call)] * 2


def test_a_power_of_zero_has_a_gradient(fresh):
    for f in (lambda x: x**0, lambda x: x ** torch.zeros(()).item()):
        grads = []
        for run in (f, fresh.compile(f)):
            x = torch.ones(3, requires_grad=True)
            run(x).sum().backward()
            grads.append(x.grad)
        assert torch.equal(*grads)


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "rms_norm", "batch_norm", "instance_norm"])
def test_parameters_of_norms_are_not_broadcast(name, fresh):
    """Eager raises where a parameter has another size, 1 among them; so does the compiled function, at once and on a later call."""
    calls = {
        "layer_norm": lambda x, w: F.layer_norm(x, x.shape[-1:], w),
        "rms_norm": lambda x, w: F.rms_norm(x, x.shape[-1:], w),
        "group_norm": lambda x, w: F.group_norm(x, 2, w),
        "batch_norm": lambda x, w: F.batch_norm(x, torch.zeros(4), torch.ones(4), w),
        "instance_norm": lambda x, w: F.instance_norm(x, weight=w),
    }
    f, x, w = calls[name], torch.randn(2, 4, 4), torch.randn(4)
    compiled = fresh.compile(f)
    torch.testing.assert_close(compiled(x, w), f(x, w))
    assert fresh.cache_info(compiled)["segments"]
    for again in (compiled, fresh.compile(lambda *a: f(*a))):
        with pytest.raises(RuntimeError) as eager:
            f(x, w[:1])
        with pytest.raises(RuntimeError, match=re.escape(str(eager.value))):
            again(x, w[:1])


@pytest.mark.parametrize("value", [nan, inf, 2.0])
@pytest.mark.parametrize("name", ["amax", "amin", "max", "min"])
def test_gradients_of_the_extreme_of_a_number(fresh, name, value):
    def f(x):
        return getattr(x * 1, name)()

    def seen(f):
        x = torch.tensor(value, requires_grad=True)
        y = f(x)
        y.backward()
        return y, x.grad

    compiled = fresh.compile(f)
    for got, want in zip(seen(compiled), seen(f)):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 1}
