"""Compiled functions on CUDA tensors against eager. Needs a GPU: `tools/dev gpu-test`; not collected otherwise."""

import os

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

import framejit  # noqa: E402
import oracle  # noqa: E402

F = torch.nn.functional
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTS = [torch.int64, torch.int32, torch.uint8, torch.bool]


def tensor(*shape, dtype=torch.float32, low=-2.0, high=2.0):
    if dtype.is_floating_point:
        return (torch.rand(shape, device="cuda", dtype=torch.float64) * (high - low) + low).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, device="cuda") > 0.5
    return torch.randint(0 if dtype == torch.uint8 else -20, 20, shape, device="cuda").to(dtype)


def flat(x):
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for item in (x.values() if hasattr(x, "values") and not callable(getattr(x, "layout", None)) else x) for t in flat(item)]


def double(x):
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def clones(arguments):
    return [a.clone() if isinstance(a, torch.Tensor) and a._base is None else a for a in arguments]


def check(function, *arguments, graphs=1, calls=3, reference=True):
    """Compiled, called several times, must be as good as eager, in one graph, without the interpreter."""
    compiled = framejit.compile(function, dynamic=False)
    compiled.clear()  # segments belong to the code object, which a parametrised test shares
    with torch.no_grad():
        for _ in range(calls):
            for_eager, for_us = clones(arguments), clones(arguments)
            eager = flat(function(*for_eager))
            got = flat(compiled(*for_us))
            truth = flat(function(*[double(a) for a in clones(arguments)])) if reference else [None] * len(eager)
            torch.cuda.synchronize()
            assert len(got) == len(eager)
            for g, e, t in zip(got, eager, truth):
                assert (g.dtype, g.device, g.shape, g.stride()) == (e.dtype, e.device, e.shape, e.stride())
                if e.dtype == torch.float64:
                    torch.testing.assert_close(g, e, rtol=1e-12, atol=1e-13, equal_nan=True)
                elif not reference:  # convolutions: other algorithms for other layouts
                    torch.testing.assert_close(g, e, rtol=0.05, atol=0.02 * e.abs().max().item())
                else:
                    oracle.check(g, e, t if t is not None and t.is_floating_point() else None)
            for a, b in zip(for_eager, for_us):
                if isinstance(a, torch.Tensor):
                    oracle.check(b, a, what="an argument after the call")
    if graphs is not None:
        assert len(compiled.graphs) == graphs, f"{len(compiled.graphs)} graphs"
    return compiled


@pytest.fixture(autouse=True)
def sticky_errors():
    """Inputs that can be made again. After an illegal access nothing works in the process: end it, and pytest-xdist starts another."""
    torch.manual_seed(0)
    yield
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(3)


# --- pointwise
POINTWISE = {
    "chain": lambda x, y: torch.tanh(x * y + 1) * torch.sigmoid(x) - y.abs(),
    "where": lambda x, y: torch.where(x > y, x, y * 2),
    "gelu": lambda x, y: F.gelu(x) + F.gelu(y, approximate="tanh"),
    "silu": lambda x, y: F.silu(x) * y,
    "clamp": lambda x, y: x.clamp(-1, 1).maximum(y),
    "exp_log": lambda x, y: torch.log1p(torch.exp(x)) + torch.expm1(y) + torch.erf(x),
    "trig": lambda x, y: torch.sin(x) + torch.cos(y * 3) + torch.atan(x),
    "pow": lambda x, y: (x.abs() + 0.5) ** y + x**2 + x**3,
    "round": lambda x, y: torch.round(x) + torch.floor(y) + torch.trunc(x) + torch.sign(y),
    "div": lambda x, y: x / (y.abs() + 1) + torch.rsqrt(y.abs() + 1) + torch.sqrt(x.abs()),
    "mod": lambda x, y: torch.remainder(x, y.abs() + 0.3) + torch.fmod(x, y.abs() + 0.3),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name, dtype):
    for shape in ((4, 1024), (33, 77), (5,), ()):
        check(POINTWISE[name], tensor(*shape, dtype=dtype), tensor(*shape, dtype=dtype))


UNARY = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sqrt rsqrt reciprocal".split()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_special_values(name, dtype):
    special = [0.0, -0.0, 1.0, -1.0, 0.5, float("inf"), -float("inf"), float("nan"), 1e-30, -1e-30, 1e30, 3.0, 88.5, -103.0, 1e6, 12345.678]
    x = torch.cat([torch.tensor(special, device="cuda", dtype=dtype), tensor(5000, dtype=dtype, low=-10, high=10)])
    function = getattr(torch, name)
    check(lambda x: function(x), x)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers(dtype):
    x, y = tensor(100, 33, dtype=dtype), tensor(100, 33, dtype=dtype)
    check(lambda x, y: (x & y) | (x ^ y), x, y)
    check(lambda x, y: torch.maximum(x, y), x, y)
    check(lambda x, y: x == y, x, y)
    if dtype != torch.bool:
        check(lambda x, y: x * y + x - y, x, y)
        check(lambda x, y: torch.where(y == 0, x, x // torch.where(y == 0, 1, y)), x, y)
        check(lambda x, y: x % torch.where(y == 0, 7, y), x, y)


@pytest.mark.parametrize("to", FLOATS + INTS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=str)
def test_casts(dtype, to):
    check(lambda x: x.to(to), tensor(1000, dtype=dtype, low=0, high=100), reference=False)


def test_broadcast_and_strides():
    check(lambda x, y: x + y, tensor(64, 1), tensor(1, 128))
    check(lambda x, y: x * y, tensor(8, 16, 32).transpose(1, 2), tensor(8, 32, 16))
    check(lambda x: x[1:, ::2] * 2, tensor(33, 64))
    check(lambda x: x[3:] + 1, tensor(1027))  # an address between two vectors
    check(lambda x: torch.cat([x, x * 2, x[:, :5]], 1), tensor(12, 37))
    check(lambda x: F.pad(x, (3, 2, 1, 1), value=1.5) + 1, tensor(10, 20))
    check(lambda x: x.flip(0) + 1, tensor(100, 3))
    check(lambda x: torch.cat((-x[..., 32:], x[..., :32]), -1) * 2, tensor(4, 8, 16, 64, dtype=torch.bfloat16))
    check(lambda x: x.t().contiguous() + 1, tensor(300, 500))
    check(lambda x: x.reshape(8, 16, 4, 8).permute(0, 2, 1, 3) + 1, tensor(8, 16, 32))


def test_creation():
    check(lambda x: torch.arange(x.shape[0], device=x.device) + x, tensor(100))
    check(lambda x: x + torch.ones_like(x) * torch.zeros(7, device=x.device), tensor(5, 7))
    check(lambda x: torch.full((3, 4), 2.5, device=x.device), tensor(5, 7))
    check(lambda x: x.new_zeros(5), tensor(3))
    check(lambda x: torch.tril(x), tensor(33, 33))
    check(lambda x: (torch.arange(5).to(x.device), x + 1), tensor(5))
    check(lambda x: x.masked_fill(torch.ones(9, 9, device=x.device, dtype=torch.bool).triu(1), float("-inf")), tensor(9, 9))


# --- reductions
SHAPES = [(7, 5), (64, 768), (33, 1000), (16, 4096), (5, 50257), (3, 70000), (1000, 4), (2, 262144), (3, 20000), (5, 32768), (2, 50256), (1, 600000)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows(shape, dtype):
    x, wide = tensor(*shape, dtype=dtype), torch.promote_types(dtype, torch.float32)
    check(lambda x: torch.softmax(x, -1), x)
    check(lambda x: x.sum(-1), x)
    check(lambda x: (x.amax(-1), x.amin(-1), x.mean(-1)), x)
    check(lambda x: F.layer_norm(x, x.shape[-1:]), x)
    check(lambda x: x * torch.rsqrt((x.to(wide) ** 2).mean(-1, keepdim=True) + 1e-6).to(x.dtype), x)


@pytest.mark.parametrize("shape", [(5, 7), (768, 64), (1000, 33), (4096, 300), (50000, 5), (8192, 768)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_columns(shape, dtype):
    x = tensor(*shape, dtype=dtype)
    check(lambda x: x.sum(0), x)
    check(lambda x: (x.amax(0), x.mean(0)), x)
    check(lambda x: torch.softmax(x, 0), x)


def test_reductions():
    x = tensor(64, 129)
    check(lambda x: (x.argmax(1), x.argmin(0)), x)
    check(lambda x: x.sum(), tensor(1000003))
    check(lambda x: x.sum(), tensor(4096, 1024))
    check(lambda x: (x.max(), x.mean(), x.var()), tensor(512, 512))
    check(lambda x: x.sum((0, 2)), tensor(16, 32, 64))
    check(lambda x: x.mean((2, 3)), tensor(8, 64, 14, 14))
    check(lambda x: (x > 0).any(1), x)
    check(lambda x: (x > 0).all(), x)
    check(lambda x: x.sum(1), tensor(9, 100, dtype=torch.int32))
    check(lambda x: x.prod(1), tensor(9, 12))
    check(lambda x: x.logsumexp(1), x)
    check(lambda x: torch.cumsum(x, 1), tensor(33, 500))
    check(lambda x: torch.cumsum(x, 0), tensor(33, 50, dtype=torch.int64))
    check(lambda x: x.std(0), x)
    check(lambda x: x.sum(1), tensor(0, 5))
    check(lambda x: x.sum(1), tensor(5, 0))
    nan = tensor(8, 100)
    nan[2, 5] = float("nan")
    check(lambda x: (x.amax(1), x.argmax(1)), nan)


def test_norms():
    x, w, b = tensor(32, 128, 768, dtype=torch.bfloat16), tensor(768, dtype=torch.bfloat16), tensor(768, dtype=torch.bfloat16)
    check(lambda x, w, b: F.layer_norm(F.gelu(x) + x, (768,), w, b), x, w, b)
    check(lambda x, w, b: F.layer_norm(x, (768,), w, b), x.float(), w.float(), b.float())
    check(lambda x, t: F.cross_entropy(x, t), tensor(512, 32000), torch.randint(0, 32000, (512,), device="cuda"), reference=False)
    check(lambda x: F.group_norm(x, 4), tensor(4, 16, 9, 9))


def test_indexing():
    table, at = tensor(1000, 768, dtype=torch.bfloat16), torch.randint(0, 1000, (16, 33), device="cuda")
    check(lambda t, i: F.embedding(i, t) * 2, table, at)
    check(lambda x, i: x.gather(1, i), tensor(20, 50), torch.randint(0, 50, (20, 9), device="cuda"))
    check(lambda x, i: x[i], tensor(20, 50), torch.randint(0, 20, (9,), device="cuda"))
    check(lambda x, i: x.index_select(0, i) + 1, tensor(20, 50), torch.randint(0, 20, (9,), device="cuda"))
    check(lambda x: torch.topk(x, 3).values, tensor(20, 50))
    check(lambda x: torch.sort(x, -1).values + 1, tensor(20, 50))


def test_results_that_are_written_over():
    check(lambda x: (x.clone().zero_(), torch.empty_like(x).fill_(2), x.new_empty(3).copy_(torch.ones(3, device=x.device)), torch.zeros_like(x).add_(1)), tensor(4, 5))
    check(lambda x: (x.clone().zero_(), torch.empty_like(x).fill_(2)), tensor())


def test_layouts_of_single_elements():
    """A picture of one element lies in both layouts; a GPU's libraries keep the channels last."""
    norm = torch.nn.BatchNorm2d(8, device="cuda").eval()
    conv = torch.nn.Conv1d(1, 4, 3, padding=1, device="cuda")
    check(lambda x: norm(x), tensor(2, 8, 1, 1).contiguous(memory_format=torch.channels_last), reference=False)
    check(lambda x: conv(x.transpose(1, 2)), tensor(2, 16, 1), reference=False)
    check(lambda x: conv(x), tensor(2, 1, 16), reference=False)


def test_layouts_of_convolutions():
    """cuDNN keeps the channels last where a picture or the weights have them so, but not of doubles; lines are made dense first."""
    for dtype in (torch.float32, torch.float64, torch.float16):
        for last_x, last_w in ((0, 1), (1, 0), (1, 1)):
            x, w = tensor(2, 8, 6, 6, dtype=dtype), tensor(8, 8, 3, 3, dtype=dtype)
            x, w = (t.contiguous(memory_format=torch.channels_last) if last else t for t, last in ((x, last_x), (w, last_w)))
            check(lambda x, w: F.conv2d(x, w, padding=1), x, w, reference=False)
        line, taps = tensor(2, 6, 8, dtype=dtype), tensor(8, 3, 8, dtype=dtype)
        check(lambda x, w: F.conv1d(x.transpose(1, 2), w), line, tensor(8, 8, 3, dtype=dtype), reference=False)
        check(lambda x, w: F.conv1d(x, w.transpose(1, 2)), tensor(2, 8, 6, dtype=dtype), taps, reference=False)


def test_lists_of_numbers_as_indices():
    """Numbers that change are symbols; which the stand-ins of a call have is not asked of a GPU, where it would end the context."""
    f = lambda x, k: x[k] * 2  # noqa: E731
    for k in (([0, 2, 3], [1, 3, 3], [0, 0, 2]), ([0, 0, 3], [1, 1, 3], [0, 0, 2]), ([[0, 0], [4, 2]], [1, 0])):
        x = tensor(5, 5, 5, dtype=torch.float64).requires_grad_()
        compiled = framejit.compile(f)
        expected, got = f(x, k), compiled(x, k)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, expected)))


def test_pivots_are_not_made_up():
    lu, pivots = torch.linalg.lu_factor(tensor(3, 3))
    compiled = framejit.compile(torch.lu_unpack)
    for mine, theirs in zip(compiled(lu, pivots), torch.lu_unpack(lu, pivots), strict=True):
        torch.testing.assert_close(mine, theirs)
    torch.cuda.synchronize()


def test_in_place():
    def f(x, y):
        x.mul_(2).add_(y)
        return x.sum(1)

    check(f, tensor(50, 60), tensor(50, 60))

    def g(x):
        x[1:3] = 0
        x[:, 2] += 1
        return x * 2

    check(g, tensor(6, 7))

    def h(x):  # overlapping views of one tensor
        x[1:] += x[:-1].clone()
        return x

    check(h, tensor(3000))


# --- library calls
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_contractions(dtype):
    x, w, b = tensor(16, 33, 64, dtype=dtype, low=-0.2, high=0.2), tensor(128, 64, dtype=dtype, low=-0.2, high=0.2), tensor(128, dtype=dtype)
    check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b)
    check(lambda x, w: x @ w.t() + 1, x, w)
    check(lambda x: x @ x.transpose(1, 2), x)
    check(lambda x: torch.einsum("bij,bkj->bik", x, x), x)
    check(lambda x, w: F.conv2d(x, w, padding=1).relu(), tensor(2, 8, 16, 16, dtype=dtype), tensor(12, 8, 3, 3, dtype=dtype, low=-0.1, high=0.1))


@pytest.mark.parametrize("columns", [5002, 5003, 5004, 5001])
def test_rows_that_are_not_aligned(columns):
    x, w = tensor(2, 300, 512, dtype=torch.bfloat16, low=-0.1, high=0.1), tensor(columns, 512, dtype=torch.bfloat16)
    check(lambda x, w: F.linear(x, w), x, w)
    check(lambda x, w: F.linear(x, w).relu() + 1, x, w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("channels, size, stride, padding, dilation", [(64, 3, 1, 1, 1), (72, 5, 2, 2, 1), (36, 3, 2, 0, 2), (33, 5, 1, 3, 1)])
def test_depthwise_convolutions(dtype, channels, size, stride, padding, dilation):
    first, last = tensor(channels, 32, 1, 1, dtype=dtype, low=-0.2, high=0.2), tensor(16, channels, 1, 1, dtype=dtype, low=-0.2, high=0.2)
    w, bias = tensor(channels, 1, size, size, dtype=dtype), tensor(channels, dtype=dtype)
    conv = {"stride": stride, "padding": padding, "dilation": dilation, "groups": channels}

    def net(x):
        x = F.hardswish(F.conv2d(x, first))
        return F.conv2d(F.relu(F.conv2d(x, w, **conv)), last), F.conv2d(x, w, bias, **conv).mean((2, 3))

    check(net, tensor(3, 32, 15, 18, dtype=dtype), graphs=None, reference=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_convolutions_in_a_row(dtype):
    image = tensor(2, 3, 32, 32, dtype=dtype)
    w = [tensor(*shape, dtype=dtype, low=-0.1, high=0.1) for shape in ((16, 3, 3, 3), (32, 16, 3, 3), (32, 1, 3, 3), (16, 32, 1, 1))]
    bias, scale = tensor(32, dtype=dtype), tensor(16, dtype=dtype)

    def net(x):
        x = F.relu(F.conv2d(x, w[0], padding=1))
        y = F.max_pool2d(x, 2)
        z = F.relu(F.conv2d(y, w[1], bias, padding=1))
        z = F.conv2d(z, w[2], padding=1, groups=32) + z
        z = F.conv2d(F.relu(z), w[3]) + y
        z = F.batch_norm(z, scale, scale * scale + 1, scale, scale)
        return x, z, F.relu(z).mean((2, 3)), F.layer_norm(z.permute(0, 2, 3, 1), (16,)).permute(0, 3, 1, 2)

    check(net, image, graphs=None, reference=False)
    check(lambda x: F.conv2d(x, w[1], bias), tensor(2, 16, 9, 9, dtype=dtype).to(memory_format=torch.channels_last), graphs=None, reference=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("classes", [10, 1000, 32000])
def test_cross_entropy(classes, dtype):
    x, target, weight = tensor(65, classes, dtype=dtype, low=-9, high=9), torch.randint(0, classes, (65,), device="cuda"), tensor(classes, dtype=dtype, low=0.1)
    target[3] = -100
    check(lambda x, t: F.cross_entropy(x, t), x, target)
    check(lambda x, t: F.cross_entropy(x, t, reduction="none"), x, target)
    check(lambda x, t, w: F.cross_entropy(x, t, w, reduction="sum"), x, target, weight)
    check(lambda x, t: F.nll_loss(F.log_softmax(x, 1), t), x, target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_addmm(dtype):
    bias, x, w = tensor(72, dtype=dtype), tensor(40, 64, dtype=dtype, low=-0.2, high=0.2), tensor(64, 72, dtype=dtype, low=-0.2, high=0.2)
    check(torch.addmm, bias, x, w)
    check(lambda b, x, w: [F.gelu(t) for t in torch.addmm(b, x, w).split(24, 1)], bias, x, w)
    check(lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2), tensor(40, 72, dtype=dtype), x, w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "narrow", "bool"])
def test_attention(kind, dtype):
    width = 48 if kind == "narrow" else 64
    q, k, v = (tensor(2, 4, 40, width, dtype=dtype) for _ in range(3))
    mask = tensor(2, 1, 40, 40, dtype=dtype) if kind == "masked" else torch.ones(40, 40, device="cuda").tril().bool() if kind == "bool" else None

    def f(q, k, v):
        return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask.to(q.dtype) if kind == "masked" else mask, is_causal=kind == "causal")

    check(f, q, k, v, graphs=None)


# --- shapes, streams, devices, errors
def test_dynamic_shapes():
    def f(x, w):
        return F.layer_norm(torch.relu(x) + 1, x.shape[-1:]) * w

    compiled = framejit.compile(f, dynamic=True)
    with torch.no_grad():
        for rows, columns in ((4, 64), (9, 64), (5, 63), (1, 1000), (1000, 8), (3, 4097), (0, 8)):
            x, w = tensor(rows, columns), tensor(columns)
            oracle.check(compiled(x, w), f(x, w), f(x.double(), w.double()))
    pointwise = framejit.compile(lambda x: torch.tanh(x) * 3, dynamic=True)
    for n in (4, 7, 1000, 1023, 1, 0, 4096):
        x = tensor(n)
        oracle.check(pointwise(x), torch.tanh(x) * 3, torch.tanh(x.double()) * 3)


def test_streams():
    f = framejit.compile(lambda x: torch.softmax(x * 2, -1).sum(0))
    x = tensor(512, 1024)
    want = torch.softmax(x * 2, -1).sum(0)
    f(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 0
        got = [f(y) for _ in range(20)]
    torch.cuda.current_stream().wait_stream(side)
    for g in got:
        oracle.check(g, want)


def test_the_users_own_cuda_graph():
    f = framejit.compile(lambda x: torch.softmax(x * 2, -1).sum(0) + 1)
    x = tensor(64, 256)
    f(x), f(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
    x.copy_(tensor(64, 256))
    graph.replay()
    oracle.check(y, torch.softmax(x * 2, -1).sum(0) + 1)


def mlp(x, w, v):
    for _ in range(3):
        x = F.gelu(x @ w) @ v + x
    return x, x.sum(-1)


def close(got, want):
    for g, w in zip(flat(got), flat(want), strict=True):
        torch.testing.assert_close(g, w, rtol=2e-3, atol=2e-3)


def captures(capfd):
    return capfd.readouterr().err.count("CUDA graph(s)")


@pytest.fixture
def perf_log():
    with framejit.config.patch(log="perf", measure=framejit.config.measure):  # mode="max-autotune" turns the latter on
        yield


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_cuda_graphs(mode, capfd, perf_log):
    f = framejit.compile(mlp, mode=mode, dynamic=False)
    f.clear()
    w, v = tensor(64, 256, low=-0.1, high=0.1), tensor(256, 64, low=-0.1, high=0.1)
    xs = [tensor(32, 64) for _ in range(8)]

    def same(calls=1):
        kept = [(f(x, w, v), mlp(x, w, v)) for x in xs * calls]  # results of one call stay valid after the next
        for got, want in kept:
            close(got, want)

    with torch.no_grad():
        same(2)
        assert captures(capfd) in ([0] if "no" in mode else [1, 2])  # the second once x is known to move
        w.mul_(0.5)  # the same memory
        same()
        assert captures(capfd) == 0
        w, v = w + 0.1, v.clone()  # other memory, which library calls read
        same()
        assert captures(capfd) == (0 if "no" in mode else 1)
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            f(xs[0], w, v)
            assert captures(capfd) == (0 if "no" in mode else 1)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        same()


def test_cuda_graphs_on_other_streams_and_threads():
    import threading

    f = framejit.compile(mlp, mode="reduce-overhead", dynamic=False)
    f.clear()
    w, v = tensor(64, 256, low=-0.1, high=0.1), tensor(256, 64, low=-0.1, high=0.1)
    xs = [tensor(32, 64) for _ in range(6)]
    failures = []

    def work(stream):
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                for _ in range(5):
                    for x in xs:
                        close(f(x, w, v), mlp(x, w, v))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    torch.cuda.synchronize()
    work(torch.cuda.current_stream())
    threads = [threading.Thread(target=work, args=(s,)) for s in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream())]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = f(xs[0], w, v)
    xs[0].copy_(xs[1])
    graph.replay()
    close(y, mlp(xs[1], w, v))


def test_cuda_graphs_beside_what_they_cannot_hold(capfd, perf_log):
    def g(x, w, v, mask):
        y = mlp(x, w, v)[0]
        y = F.conv2d(y.view(2, 4, 16, 16), torch.ones(4, 4, 3, 3, device="cuda"), padding=1) + 1
        a = F.scaled_dot_product_attention(y, y, y, attn_mask=mask)
        n = torch.bincount((a.flatten() > 0).long(), minlength=2)  # the framework's
        x.add_(1)
        return F.relu(a) + mlp(x, w, v)[0].view(2, 4, 16, 16), n, y

    f = framejit.compile(g, mode="reduce-overhead", dynamic=False)
    w, v = tensor(64, 256, low=-0.1, high=0.1), tensor(256, 64, low=-0.1, high=0.1)
    kept = []
    with torch.no_grad():
        for i in range(12):
            x, mask = tensor(32, 64), tensor(2, 1, 16, 16)
            z = x.clone()
            kept.append((f(x, w, v, mask), g(z, w, v, mask), x, z))
        for got, want, x, z in kept:
            close(got, want)
            assert torch.equal(x, z)
    assert captures(capfd) >= 1


def test_results_stay_valid():
    f = framejit.compile(lambda x: F.gelu(x @ x) + 1)
    xs = [tensor(64, 64) for _ in range(8)]
    kept = [f(x) for x in xs]
    for x, y in zip(xs, kept):
        oracle.check(y, F.gelu(x @ x) + 1)


def test_memory_that_is_not_there():
    def f(x):
        return x.expand(1 << 44) + 1

    x = torch.ones(1, device="cuda")
    for function in (f, framejit.compile(f, dynamic=False)):
        for _ in range(3):
            with pytest.raises(torch.OutOfMemoryError):
                function(x)
    check(lambda x: x * 2, tensor(64))  # and all goes on


def test_long_rows_with_infinities():
    inf = float("inf")
    x = tensor(6, 70000)
    x[1] = -inf
    x[2, :40000] = -inf
    x[3, 5] = inf
    x[4, 69999] = float("nan")
    x[5] *= 1e4
    for dtype in (torch.float32, torch.bfloat16):
        check(lambda x: (torch.softmax(x, -1), torch.logsumexp(x.float(), -1), torch.log_softmax(x.float(), -1)[:, :3]), x.to(dtype), graphs=None)


def test_small_numbers_in_rows_of_unknown_length():
    """Threads without an element have no maximum."""
    compiled = framejit.compile(lambda x: torch.softmax(x, -1), dynamic=True)
    with torch.no_grad():
        for length in (100, 37, 7, 300):
            x = tensor(5, length) - 1e4
            torch.testing.assert_close(compiled(x), torch.softmax(x, -1))


def test_code_on_disk(tmp_path):
    """A second process compiles nothing."""
    import subprocess
    import sys

    program = """
import framejit, torch
with torch.no_grad():
    x = torch.randn(300, 500, device="cuda")
    y = framejit.compile(lambda x: torch.softmax(x, -1) + x.t().sum())(x)
torch.testing.assert_close(y, torch.softmax(x, -1) + x.t().sum(), rtol=1e-4, atol=1e-4)
print(sorted(__import__("os").listdir(__import__("os").environ["FRAMEJIT_CACHE_DIR"])), framejit.cache_info()["compile_seconds"])
"""
    env = {**os.environ, "FRAMEJIT_CACHE_DIR": str(tmp_path / "kept")}
    runs = [subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True) for _ in range(2)]
    assert not any(r.returncode for r in runs), runs[0].stderr + runs[1].stderr
    first, second = (r.stdout.rsplit(" ", 1) for r in runs)
    assert first[0] == second[0] != "[]" and float(second[1]) < float(first[1]) / 4, (first, second)


def measured(run, calls=20):
    """Seconds that one call takes the GPU, by torch's own events around many."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    run()
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls


def alike(seconds, expected):
    """Within a factor of two: other tests may use the GPU meanwhile. What the host takes for a launch is far less than any of these."""
    return expected / 2 < seconds < 2 * expected


def test_steps_are_timed_where_they_run():
    def f(x, w):
        return torch.softmax(x * 2 + 1, -1), x @ w

    compiled = framejit.compile(f, dynamic=False)
    compiled.clear()
    x, w = tensor(8192, 8192), tensor(8192, 8192)
    with torch.no_grad():
        for _ in range(4):
            compiled(x, w)
        one = framejit.compile(lambda x: torch.softmax(x * 2 + 1, -1))
        alone = {"kernel": measured(lambda: one(x)), "matmul": measured(lambda: x @ w)}
        with framejit.profile() as p:
            for _ in range(10):
                compiled(x, w)
        steps = {s.by: s for s in p.steps}
        assert set(steps) == {"kernel", "matmul"} and len(p.steps) == 2, p.steps
        for by, step in steps.items():
            assert step.device == "cuda:0" and step.runs == 10
            assert alike(step.seconds / 10, alone[by]), (by, step.seconds / 10, alone[by])
        assert steps["matmul"].flops == 10 * 2 * 8192**3
        peak = p.peak_of("cuda:0")
        assert alike(steps["kernel"].bandwidth, peak), (steps["kernel"].bandwidth, peak)
        assert " cuda:0 " in str(p) and "of peak" in str(p)


def test_steps_of_cuda_graphs_share_the_time_of_the_whole():
    f = framejit.compile(mlp, mode="reduce-overhead", dynamic=False)
    f.clear()
    x, w, v = tensor(4096, 2048), tensor(2048, 4096, low=-0.1, high=0.1), tensor(4096, 2048, low=-0.1, high=0.1)
    with torch.no_grad():
        for _ in range(6):
            f(x, w, v)
        whole = measured(lambda: f(x, w, v))
        with framejit.profile() as p:
            for _ in range(10):
                f(x, w, v)
        assert all(s.runs % 10 == 0 for s in p.steps) and {s.device for s in p.steps} == {"cuda:0"}, p.steps
        assert alike(sum(s.seconds for s in p.steps) / 10, whole), (p.steps, whole)
        products = [s for s in p.steps if s.flops]
        assert products and sum(s.seconds for s in products) > 0.5 * sum(s.seconds for s in p.steps), p.steps
        for got, wanted in zip(f(x, w, v), mlp(x, w, v), strict=True):  # sums that cancel: as exact as the largest of them
            assert (got - wanted).abs().max() <= 2e-3 * wanted.abs().max()


def test_timed_runs_in_captures_of_the_user():
    f = framejit.compile(mlp, dynamic=False)
    f.clear()
    w, v = tensor(64, 256, low=-0.1, high=0.1), tensor(256, 64, low=-0.1, high=0.1)
    x, other = tensor(32, 64), tensor(32, 64)
    with torch.no_grad():
        for _ in range(4):
            f(x, w, v)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with framejit.profile() as p:
            f(x, w, v)  # not read yet when the capture begins
            with torch.cuda.graph(graph):
                y = f(x, w, v)
            f(x, w, v)
        assert all(s.runs % 2 == 0 for s in p.steps), p.steps
        x.copy_(other)
        graph.replay()
        close(y, mlp(other, w, v))


def test_the_report_has_times_on_the_gpu(tmp_path):
    import json
    import subprocess
    import sys

    (tmp_path / "program.py").write_text("""
import framejit, torch

def f(x, w):
    for _ in range(4):
        x = torch.tanh(x @ w) * 0.5 + torch.softmax(x, -1)
    return x

f, x, w = framejit.compile(f), torch.randn(2048, 2048, device="cuda"), torch.randn(2048, 2048, device="cuda")
with torch.no_grad():
    for _ in range(200):
        f(x, w)
torch.cuda.synchronize()
""")
    env = {**os.environ, "FRAMEJIT_EVENTS": str(tmp_path / "trace")}
    subprocess.run([sys.executable, "program.py"], env=env, cwd=tmp_path, check=True)
    done = subprocess.run([sys.executable, "-m", "framejit", "report", "trace", "--json", "-"], cwd=tmp_path, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    steps = [s for s in told["steps"] if s["device"] == "cuda:0"]
    products = [s for s in steps if s["flops"]]
    assert products and [s for s in steps if s["by"] == "kernel"], told["steps"]
    x, w = tensor(2048, 2048), tensor(2048, 2048)
    one = measured(lambda: x @ w)
    assert alike(sum(s["seconds"] for s in products) / sum(s["runs"] for s in products), one), (products, one)
    assert told["time"]["devices"] == pytest.approx(sum(s["seconds"] for s in steps))
    shown = subprocess.run([sys.executable, "-m", "framejit", "report", "trace"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "meanwhile on GPUs, in compiled graphs" in shown and "cuda:0" in shown


def test_device_guard():
    f = framejit.compile(lambda x: x * 2 + 1)
    for _ in range(2):
        assert f(torch.ones(3)).device.type == "cpu"
        assert f(torch.ones(3, device="cuda")).device.type == "cuda"


def gelu_by_hand(x):
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["relu", "gelu", "by hand"])
def test_functions_in_a_products_kernel(name, dtype):
    """Between two products: no kernel of ours. Not of a result, where it is read twice, in float32."""
    f = {"relu": F.relu, "gelu": lambda x: F.gelu(x, approximate="tanh"), "by hand": gelu_by_hand}[name]
    x, w, b, v = tensor(4, 96, 64, dtype=dtype), tensor(256, 64, dtype=dtype) / 8, tensor(256, dtype=dtype), tensor(64, 256, dtype=dtype) / 16

    def mlp(x, w, b, v):
        return F.linear(f(F.linear(x, w, b)), v)

    def flat(x, w, b, v):
        return f(torch.addmm(b, x.view(-1, 64), w.t())).view(4, 96, 256) @ v.t()

    for g in (mlp, flat):
        assert check(g, x, w, b, v).cache_info()["kernels"] == 0
    assert check(lambda x, w, b: f(F.linear(x, w, b)), x, w, b).cache_info()["kernels"] == 1
    assert check(lambda x, w, b, v: (y := F.linear(x, w, b), F.linear(f(y), v)), x, w, b, v).cache_info()["kernels"] == 1
    check(mlp, x.float(), w.float(), b.float(), v.float())
    check(mlp, x, w[:100], b[:100], v[:, :100])  # rows that are not aligned
    odd = x.clone()
    odd[0, 0, 0] = float("nan")
    odd[1, 1] = 300
    with torch.no_grad():
        got, want = framejit.compile(mlp)(odd, w, b, v), mlp(odd, w, b, v)
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
    got, want = (t.float().nan_to_num(0, 0, 0) for t in (got, want))
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.02 * want.abs().max().item())
    p = [t.clone().requires_grad_() for t in (x, w, b, v)]
    q = [t.clone().requires_grad_() for t in (x, w, b, v)]
    framejit.compile(mlp)(*p).float().square().mean().backward()
    mlp(*q).float().square().mean().backward()
    for mine, theirs in zip(p, q):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0.05, atol=0.02 * theirs.grad.abs().max().item())


def test_mixed_devices():
    check(lambda x, s: x * s, tensor(10), torch.tensor(2.0))
    check(lambda x: (x * 2).cpu() + 1, tensor(10), graphs=None)
    with pytest.raises(RuntimeError):
        framejit.compile(lambda x, y: x + y)(tensor(3), torch.ones(3))


def test_dropout_and_training():
    torch.manual_seed(0)
    want = F.dropout(tensor(100).fill_(1), 0.5)
    torch.manual_seed(0)
    got = framejit.compile(lambda x: F.dropout(x, 0.5))(tensor(100).fill_(1))
    assert got.shape == want.shape
    x = tensor(5, 4).requires_grad_()
    y = framejit.compile(lambda x: (x * x).sum())(x)
    y.backward()
    oracle.check(x.grad, 2 * x)


@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_attention_of_lengths_that_keep_coming(mask):
    """As with a cache that grows by every token."""

    def f(q, k, v, m):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m)

    compiled = framejit.compile(f, dynamic=True)
    for length in [*range(20, 34), 64, 20]:
        q, k, v = (torch.randn(2, 4, n, 64, device="cuda", dtype=torch.bfloat16) for n in (1, length, length))
        m = None
        if mask:
            m = torch.rand(2, 1, 1, length, device="cuda") > 0.3
            m[..., 0] = True
            if mask == "float":
                m = torch.where(m, 0.0, -10.0).to(q.dtype)
        with torch.no_grad():
            truth = f(q.double(), k.double(), v.double(), m.double() if mask == "float" else m)
            oracle.check(compiled(q, k, v, m), f(q, k, v, m), truth)


# --- models
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["BertModel", "GPT2LMHeadModel", "LlamaModel", "ViTModel", "ResNetModel", "T5EncoderModel"])
def test_models(name, dtype, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # layouts decide how much it loses
    import copy
    import sys
    import types

    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    from bench import models

    torch.manual_seed(0)
    module, keywords = models.build(name, small=True)
    keywords = {k: v.cuda().to(dtype) if v.is_floating_point() else v.cuda() for k, v in keywords.items()}
    reference = copy.deepcopy(module).double().cuda()
    module = module.to(dtype).cuda()
    with torch.no_grad():
        told = framejit.explain(module)(**keywords)
        assert told.graph_count == 1 and told.graph_break_count == 0, "\n".join(told.break_reasons)
        compiled = framejit.compile(module)
        want, truth = models.flatten(module(**keywords)), models.flatten(reference(**models.in_float64(keywords)))
        for _ in range(3):
            got = models.flatten(compiled(**keywords))
            for key in want:
                assert got[key].stride() == want[key].stride()
                oracle.check(got[key], want[key], truth[key], what=key)


@pytest.mark.parametrize("inside", [False, True])
def test_numpy_under_the_default_device(inside):
    np = pytest.importorskip("numpy")

    def f(a, b):
        c = np.exp(a[:, ::2]) * b
        a[0] = 3
        return c, c.sum(axis=1), c.max(), np.where(b > 0, a[:, ::2], -1).T

    def scoped(a, b):
        with torch.device("cuda"):
            return f(a, b)

    compiled = framejit.compile(scoped if inside else f)
    compiled.clear()
    for n in (64, 64, 33):
        generator = np.random.default_rng(n)
        a, b = generator.standard_normal((n, 100), dtype=np.float32), generator.standard_normal((n, 50))
        mine, before = a.copy(), torch.cuda.memory_stats().get("allocation.all.allocated", 0)
        with torch.device("cpu" if inside else "cuda"):
            got = compiled(mine, b)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] > before  # it ran there
        for x, y in zip((*got, mine), (*f(a, b), a), strict=True):
            assert type(x) is type(y) and x.dtype == y.dtype and x.strides == y.strides
            np.testing.assert_allclose(x, y, rtol=1e-5)
    assert not framejit.cache_info(compiled)["notes"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_the_current_device_among_several():
    def f(x):
        y = torch.arange(4, device="cuda") + torch.ones(4, device=torch.device("cuda"))
        return y.sum() + torch.zeros((), device=y.device), x.to("cuda") * 2, x.cuda() + 1, torch.cuda.current_device()

    compiled = framejit.compile(f)
    compiled.clear()
    for current in (0, 1, 0, 1):
        with torch.cuda.device(current):
            x = tensor(3).to(f"cuda:{current}")
            told = framejit.explain(f)(x)
            assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
            for given in (x, x.cpu()):
                for mine, theirs in zip(compiled(given), f(given), strict=True):
                    torch.testing.assert_close(mine, theirs)
                    assert not isinstance(theirs, torch.Tensor) or mine.device == theirs.device == torch.device("cuda", current)


def test_numpy_and_torch_on_a_gpu():
    np = pytest.importorskip("numpy")

    def f(x, a):
        y = (x + torch.from_numpy(np.exp(a)).to("cuda")).relu()
        return y, np.tanh(y.cpu().numpy()), a * 2

    compiled = framejit.compile(f, fullgraph=True)
    compiled.clear()
    for _ in range(3):
        x, a = tensor(5, 7), np.linspace(-1, 1, 7, dtype=np.float32)
        for mine, theirs in zip(compiled(x, a), f(x, a), strict=True):
            assert type(mine) is type(theirs) and mine.dtype == theirs.dtype
            torch.testing.assert_close(torch.as_tensor(mine), torch.as_tensor(theirs))
