"""Gradients through compiled functions: the same as eager's, nothing where eager has nothing, torch's own rules kept."""

import copy
import gc
import itertools
import os
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")
import oracle  # noqa: E402
import test_ops_torch as ops  # noqa: E402
from op_samples import TORCH, _describe, build  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from bench import models  # noqa: E402

F = torch.nn.functional


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [t for v in items for t in tensors(v)]


def leaves(args):
    return [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]


def gradients(f, args):
    """(outputs, gradients of the leaves among args for a fixed cotangent of each output)."""
    outs = tensors(f(*args))
    wanted = [t for t in outs if t.requires_grad]
    tangents = [torch.randn(t.shape, generator=torch.Generator().manual_seed(k)).to(t.dtype) for k, t in enumerate(wanted)]
    if not wanted or not leaves(args):
        return outs, []
    return outs, torch.autograd.grad(wanted, leaves(args), tangents, allow_unused=True)


def tracked(args, wide=False, ties=False):
    out = []
    for a in args:
        if isinstance(a, torch.Tensor) and a.is_floating_point():
            # strides stay; the value becomes a leaf
            a = a.detach()
            if ties:
                a = a.mul(2).round() if 0 in a.stride() else a.mul_(2).round_()
            a = a.double() if wide else a
            a.requires_grad_()
        out.append(a)
    return out


def check(fj, f, make, ties=False, compiled=None, where=""):
    """Returns the compiled function, or None where eager raises: it must raise the same."""
    try:
        eager = gradients(f, tracked(make(), ties=ties))
    except Exception as error:
        with pytest.raises(type(error)):
            gradients(compiled or fj.compile(f), tracked(make(), ties=ties))
        return None
    try:
        reference = gradients(f, tracked(make(), wide=True, ties=ties))
    except RuntimeError:  # the program names a dtype
        reference = tuple([None] * len(part) for part in eager)
    compiled = compiled or fj.compile(f)
    got = gradients(compiled, tracked(make(), ties=ties))
    assert [t.requires_grad for t in got[0]] == [t.requires_grad for t in eager[0]], where
    for part in (0, 1):
        assert [t is None for t in got[part]] == [t is None for t in eager[part]], where
        for mine, theirs, truth in zip(got[part], eager[part], reference[part]):
            if theirs is None:
                continue
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, where
            if theirs.dtype == torch.float64:  # no wider reference; of mixed dtypes torch computes parts in the narrow one
                mixed = len({a.dtype for a in make() if a.is_floating_point()}) > 1
                torch.testing.assert_close(mine, theirs, rtol=1e-6 if mixed else 1e-13, atol=1e-13, equal_nan=True)
                continue
            usable = truth is not None and torch.equal(torch.isfinite(truth), torch.isfinite(theirs))
            oracle.check(mine.detach(), theirs.detach(), truth.detach() if usable else None, what=f"{where}: {'gradient' if part else 'value'}")
    return compiled


def notes(compiled):
    import framejit

    return framejit.cache_info(compiled)["notes"]


def compiled_backward(compiled):
    return not notes(compiled)


SIMPLE = [(s, names) for table, operands in ((ops.ELEMENTWISE, ops.UNARY), (ops.FLOATING, ops.FLOATS), (ops.SHAPING, ops.SHAPES))
          for s in ops.rows(table) if "dtype=torch.float32" not in s for names in [[(n,) for n in operands if n in ("f", "perm", "wide", "zero", "empty", "d", "m")]]]  # fmt: skip
# Without sums of many rounded terms into one: their error is luck.
PAIRS = [(s, [p for p in ops.PAIRS if not {"b", "u8"} & {*p} and (p[1] != "zero" or p[0] == "f")]) for s in ops.rows(ops.BINARY)]
NETWORK = list(ops.NETWORK.items())


@pytest.mark.filterwarnings(r"ignore:(std|var)\(\)")
@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("source,operands", SIMPLE + PAIRS + NETWORK, ids=lambda x: x if isinstance(x, str) else "")
def test_operation(fresh, source, operands, ties):
    for names in operands:
        letters = "abcd"[: len(names)]
        make = lambda: [TORCH[n]() for n in names]  # noqa: E731, B023
        f = build(source, letters)
        check(fresh, f, make, ties, where=f"{source} on {[_describe(x) for x in make()]}")


# What must run compiled, not through the framework.
COMPILED = [
    ("torch.exp(a) * torch.tanh(b)", ("f", "g")),
    ("F.gelu(a) + F.silu(b)", ("f", "g")),
    ("F.relu(a).sum(-1)", ("f",)),
    ("torch.softmax(a, -1) * b", ("f", "g")),
    ("F.layer_norm(a, (4,), b, c)", ("f", "v", "v")),
    ("F.linear(a, b, c)", ("f", "w", "bias")),
    ("torch.matmul(a, b.transpose(-1, -2))", ("f", "g")),
    ("F.conv2d(a, b, padding=1)", ("img", "kernel")),
    ("F.conv2d(a, b, padding=1)", ("cl", "kernel")),
    ("F.max_pool2d(F.relu(a), 2)", ("img",)),
    ("F.scaled_dot_product_attention(a, b, b)", ("q", "kv")),
    ("F.scaled_dot_product_attention(a, b, b, is_causal=True)", ("q", "kv")),
    ("F.embedding(b, a, 2)", ("w", "tok")),
    ("F.cross_entropy(a, b)", ("m", "idx")),
    ("F.batch_norm(a, None, None, b, c, training=True)", ("img", "v", "v")),
    ("a.var(-1) + a.norm(dim=-1) + a.amax(-1) + a.max(-1)[0]", ("f",)),
    ("a[1:, None, ..., ::2] + a.flip(0)[:1, :, ::2]", ("f",)),
    ("torch.cat([a, b], 1).permute(2, 0, 1).reshape(4, -1)", ("f", "g")),
    ("x = a * 2; x[0] = b[1]; x.mul_(b); return_ = x.sigmoid_(); x", ("f", "g")),
]


@pytest.mark.parametrize("source,names", COMPILED, ids=[s for s, _ in COMPILED])
def test_compiled(fresh, source, names):
    make = lambda: [TORCH[n]() for n in names]  # noqa: E731
    f = build(source, "abc"[: len(names)])
    compiled = check(fresh, f, make, where=source)
    assert compiled_backward(compiled), notes(compiled)
    check(fresh, f, make, compiled=compiled, where=source)
    out = tensors(compiled(*tracked(make())))
    assert all(t.grad_fn.name() == "CompiledSegmentBackward" for t in out if t.requires_grad and not t._is_view())


# (channels, groups, out, window, stride, padding, dilation, size): convolutions and their derivatives have several forms.
WINDOWS = [(33, 33, 33, (7, 7), 1, 3, 1, (12, 9)), (20, 20, 20, (3, 5), 2, (1, 2), 1, (9, 11)), (7, 7, 7, (4, 3), 1, 2, 2, (12, 8)), (5, 5, 5, (2, 11), 1, (0, 5), 1, (3, 3)),
           (8, 8, 8, (3, 3), 1, 1, 1, (6, 6)), (4, 4, 8, (5, 5), 1, 2, 1, (6, 6)), (3, 1, 6, (2, 2), 2, 0, 1, (8, 6)), (3, 1, 5, (4, 2), (4, 2), 0, 1, (8, 6)), (4, 1, 5, (2, 2), 2, 0, 1, (7, 6)),
           (4, 2, 6, (2, 2), 2, 0, 1, (8, 6)), (4, 1, 5, (1, 1), 1, 0, 1, (3, 3)), (4, 1, 5, (1, 1), (2, 3), 0, 1, (7, 6)), (4, 1, 5, (1, 1), 1, 1, 1, (3, 4)),
           (3, 1, 40, (3, 3), 1, 1, 1, (4, 5)), (3, 1, 40, (3, 2), (2, 1), (1, 0), (1, 2), (9, 6)), (4, 1, 130, (3, 3), 1, 2, 2, (12, 9)),
           (6, 6, 6, (3, 3), (3, 2), 1, (1, 2), (11, 14)), (3, 3, 3, (3, 2), 2, 1, 1, (9, 150)), (18, 18, 18, (2, 4), (1, 3), 0, 1, (5, 40))]  # fmt: skip


@pytest.mark.parametrize("pictures", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_convolutions(fresh, case, bias, pictures):
    channels, groups, out, window, stride, padding, dilation, size = case
    for layout in (torch.contiguous_format, torch.channels_last):
        make = lambda: [torch.randn(pictures, channels, *size).contiguous(memory_format=layout), torch.randn(out, channels // groups, *window), *([torch.randn(out)] if bias else [])]  # noqa: E731, B023
        f = lambda x, w, b=None: F.conv2d(x, w, b, stride, padding, dilation, groups)  # noqa: E731
        torch.manual_seed(0)
        arguments = make()
        compiled = check(fresh, f, lambda: [a.clone() for a in arguments], where=str(case))  # noqa: B023
        assert compiled_backward(compiled), notes(compiled)
        frozen = fresh.compile(lambda x, w: f(x, w))
        for leaf in (0, 1):  # one gradient wanted, the other not
            x, w = (a.clone().requires_grad_(k == leaf) for k, a in enumerate(arguments[:2]))
            mine, theirs = (torch.autograd.grad(g(x, w).square().sum(), [(x, w)[leaf]])[0] for g in (frozen, f))
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
            assert mine.stride() == theirs.stride() or layout is torch.channels_last


# channels in and out, window, further arguments of the module
KERNELS = [
    (torch.nn.Conv2d, 4, 6, 3, {"padding": 1}),
    (torch.nn.Conv2d, 4, 6, (3, 2), {"stride": (2, 1), "dilation": (1, 2), "groups": 2, "bias": False}),
    (torch.nn.Conv1d, 4, 4, 3, {"padding": 2, "stride": 2}),
    (torch.nn.Conv3d, 4, 2, 2, {"padding": (1, 0, 1)}),
    (torch.nn.ConvTranspose2d, 4, 6, 3, {"stride": 2, "output_padding": 1, "groups": 2}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind,channels,features,window,more", KERNELS, ids=lambda v: getattr(v, "__name__", None))
def test_gradients_of_convolutions_without_python(fresh, kind, channels, features, window, more, dtype):
    """The framework's kernel is called at once: nobody asks its dispatcher for it, and the gradients are the kernel's own."""
    fj = fresh
    torch.manual_seed(0)
    plain = kind(channels, features, window, **more).to(dtype)
    ours = copy.deepcopy(plain)
    compiled = fj.compile(ours)
    sizes = (7,) * {torch.nn.Conv1d: 1, torch.nn.Conv3d: 3}.get(kind, 2)
    for made in ["usual", "usual", "expanded", "turned", "frozen", "fixed input", "long"]:
        for p in (*plain.parameters(), *ours.parameters()):
            p.grad = None
        plain.weight.requires_grad_(made != "frozen"), ours.weight.requires_grad_(made != "frozen")
        x = torch.randn(64 if made == "long" else 2, channels, *((40,) * len(sizes) if made == "long" and len(sizes) == 2 else sizes), dtype=dtype)
        got = []
        for call, module in ((plain, plain), (compiled, ours)):
            mine = x.clone().requires_grad_(made != "fixed input")
            y = call(mine)
            g = torch.randn(y.shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
            g = g.flatten()[:1].expand(y.shape) if made == "expanded" else g.transpose(0, 1).contiguous().transpose(0, 1) if made == "turned" else g
            with torch.profiler.profile() as events:
                y.backward(g)
            kernels = {e.key for e in events.key_averages()}
            assert ("aten::convolution_backward" in kernels) == (module is plain), sorted(kernels)
            assert any("CompiledSegment" in k for k in kernels) == (module is ours)
            got.append([mine.grad, *(p.grad for p in module.parameters())])
            for p in (mine, *module.parameters()):
                assert p.grad is None or (not p.grad.requires_grad and p.grad.grad_fn is None)
        for theirs, own in zip(*got):
            assert (theirs is None) == (own is None), made
            if theirs is not None:
                torch.testing.assert_close(own, theirs, rtol=1e-5 if dtype is torch.float32 else 1e-12, atol=1e-5 if dtype is torch.float32 else 1e-12)
                assert own.shape == theirs.shape and own.stride() == theirs.stride()
    assert compiled_backward(compiled)


@pytest.mark.parametrize("case", [((3, 3), 1, 1, 0, 1), ((3, 3), 2, 1, 1, 1), ((2, 5), (3, 2), (0, 2), (2, 0), (1, 2)), ((4, 1), (1, 4), 0, 0, 1)], ids=str)
def test_transposed_depthwise_convolutions(fresh, case):
    window, stride, padding, extra, dilation = case
    for channels, size in ((5, (4, 6)), (17, (3, 70))):
        f = lambda x, w, b: F.conv_transpose2d(x, w, b, stride, padding, extra, channels, dilation)  # noqa: E731, B023
        torch.manual_seed(0)
        arguments = [torch.randn(2, channels, *size), torch.randn(channels, 1, *window), torch.randn(channels)]
        check(fresh, f, lambda: [a.clone() for a in arguments], where=str(case))  # noqa: B023
        torch.testing.assert_close(fresh.compile(f)(*arguments), f(*arguments))


@pytest.mark.parametrize("case", [(2,), (3, 2, 1), ((2, 3), (1, 2), (1, 0), (2, 1)), (3, 1, 1, 2), (2, None, 0, 1, True), (5, 4, 2), ((1, 4), (3, 3), (0, 2))], ids=str)
def test_max_pool(fresh, case):
    """Which of equal elements gets the gradient, and where nans are: as in eager, bit for bit."""
    f = lambda x: F.max_pool2d(x, *case)  # noqa: E731
    compiled = fresh.compile(f)
    for shape in ((2, 3, 9, 11), (1, 5, 13, 70)):
        torch.manual_seed(0)
        x = torch.randn(shape).mul(3).round()
        x[0, 0, 3:5, 2:4] = float("nan")
        x[0, 1, :6] = -float("inf")
        for layout in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
            mine, theirs = (layout.clone().requires_grad_() for _ in range(2))
            y, z = compiled(mine), f(theirs)
            g = torch.randn_like(z).round()  # sums are exact
            y.backward(g), z.backward(g)
            torch.testing.assert_close(y, z, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0)
            torch.testing.assert_close(compiled(layout), z.detach(), rtol=0, atol=0, equal_nan=True)
            assert y.stride() == z.stride()


def test_the_gradient_of_a_large_table(fresh):
    """Its memory is nobody's before and after: zeros, whatever was done to the one of the step before."""
    table = torch.nn.Parameter(torch.randn(70_000, 128, generator=torch.Generator().manual_seed(0)))
    f = fresh.compile(lambda i: F.embedding(i, table).tanh())
    f(torch.tensor([0])).sum().backward()
    for rows in ([1, 5, 69_999, 5], [0], [1, 40_000]):
        table.grad = None
        index = torch.tensor(rows)
        f(index).sum().backward()
        expected = torch.zeros_like(table)
        expected.index_add_(0, index, 1 - F.embedding(index, table.detach()).tanh() ** 2)
        torch.testing.assert_close(table.grad, expected, rtol=1e-5, atol=1e-6)
        kept = table.grad
        f(index).sum().backward()  # added to what is there
        torch.testing.assert_close(table.grad, 2 * expected, rtol=1e-5, atol=1e-6)
        kept.fill_(7.0)
    table.grad = None
    assert kept.sum() == 7.0 * kept.numel()


TABLES = {
    "alone": lambda i, w: F.embedding(i, w),
    "padding": lambda i, w: F.embedding(i, w, 3),
    "tied": lambda i, w: F.linear(F.embedding(i, w).tanh(), w),
    "two readers": lambda i, w: F.embedding(i, w) * F.embedding(i.int(), w * 2),
    "strided": lambda i, w: F.embedding(i, w)[..., ::2].transpose(0, 1),
    "a gradient that others get too": lambda i, w: (F.embedding(i, w) + 0 * w[0]).sum() + w.sum() + (w * w).sum(),
    "nothing taken": lambda i, w: F.embedding(i[:0], w).sum() + w.sum(),
    "wide": lambda i, w: F.embedding(i, w.double()),
    "transposed": lambda i, w: F.embedding(i, w.t().contiguous().t()),
}


@pytest.mark.parametrize("backend", [None, "interpreter"])
@pytest.mark.parametrize("name", TABLES)
def test_tables_of_rows(fresh, name, backend):
    torch.manual_seed(0)
    index, table = torch.randint(0, 50, (4, 9)), torch.randn(50, 33)
    compiled = fresh.compile(TABLES[name], **({"backend": backend} if backend else {}))
    for _ in range(3):  # also into memory that has been used before
        check(fresh, TABLES[name], lambda: [index, table.clone()], compiled=compiled, where=name)
    assert compiled_backward(compiled), notes(compiled)


def test_unreached_parameters_keep_none(fresh):
    a, b, c = (torch.randn(3, requires_grad=True) for _ in range(3))
    compiled = fresh.compile(lambda a, b, c: (a.exp(), b.exp(), c.detach() * a))
    x, y, z = compiled(a, b, c)
    x.sum().backward()
    assert a.grad is not None and b.grad is None and c.grad is None
    y.sum().backward()
    torch.testing.assert_close(b.grad, b.detach().exp())
    assert c.grad is None and compiled_backward(compiled)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


OVERWRITTEN = {
    "slice": lambda y: y.__setitem__(slice(None), 3),
    "columns": lambda y: y.__setitem__((slice(None), slice(0, 1)), 3),
    "tensor": lambda y: y.__setitem__(Ellipsis, torch.ones(1)),
    "fill": lambda y: y.fill_(3),
    "zero": lambda y: y.zero_(),
    "copy": lambda y: y.copy_(torch.ones(1)),
}


@pytest.mark.parametrize("write", OVERWRITTEN)
def test_what_is_overwritten_gets_zeros_and_not_none(fresh, write):
    def f(x):
        y = x.clone()
        OVERWRITTEN[write](y)
        return y + 1

    compiled = fresh.compile(f)
    for sizes in ((2, 3), (1, 1), (2, 1), (1, 3), (0, 1)):
        x = torch.randn(sizes, requires_grad=True)
        got, want = (torch.autograd.grad(g(x).sum(), x, allow_unused=True)[0] for g in (compiled, f))
        assert torch.equal(got, want)


def test_zero_times_infinity_is_not_computed_for_outputs_without_gradients(fresh):
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    compiled = fresh.compile(lambda x: (x * 2, x.log()))
    compiled(x)[0].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_no_grad_regions_and_detach(fresh):
    def f(x, w):
        with torch.no_grad():
            scale = (x * w).exp()
        y = x * scale
        return y + w.detach() * x, y.detach()

    compiled = check(fresh, f, lambda: [TORCH["f"](), TORCH["g"]()])
    assert compiled_backward(compiled)


def test_writes_without_gradients_to_tracked_tensors(fresh):
    def f(x):
        y = x * 2
        with torch.no_grad():
            y.mul_(3)
        return y.sigmoid()

    check(fresh, f, lambda: [TORCH["f"]()])


def test_gradients_accumulate_and_hooks_run(fresh):
    def run(f):
        log = []
        x = torch.arange(3.0, requires_grad=True)
        y = x * 2
        y.register_hook(lambda g: log.append(g.tolist()) or g * 2)
        x.register_post_accumulate_grad_hook(lambda t: log.append(t.grad.tolist()))
        out = f(y)
        out.register_hook(lambda g: log.append(g.tolist()))
        out.backward(torch.ones(3), retain_graph=True)
        out.backward(torch.ones(3))
        return log, x.grad.tolist()

    f = lambda y: y * y  # noqa: E731
    assert run(fresh.compile(f)) == run(f)


def test_graph_is_freed_once(fresh):
    x = torch.randn(3, requires_grad=True)
    out = fresh.compile(lambda x: x.exp())(x)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


DETACHED = {
    "first a pass through what was detached": lambda x, w: ((w * x.exp().detach()).sum(), x.exp()),
    "a loss of a discriminator": lambda x, w: ((y := x * w), (w * y.detach()).sum(), (y * w).sum()),
    "a view": lambda x, w: ((y := x * w), (y.view(3, 1).detach() * x).exp()),
    "data": lambda x, w: ((y := x.exp()), y.data * w, y * 2),
    "both": lambda x, w: ((y := x * w), y * y.detach(), y.exp()),
    "without gradients": lambda x, w: ((y := x * w), y.detach().mul_(2) * w),
    "a part that is written": lambda x, w: ((y := torch.zeros(2, 3)).__setitem__(0, x * w), y.exp(), y * 2, y.detach() * x)[1:],
}


@pytest.mark.parametrize("program", DETACHED, ids=lambda name: name.replace(" ", "-"))
def test_passes_in_any_order_of_what_was_detached(fresh, program):
    """What shares memory with a result that was detached is no way to it: a pass through the one frees nothing of the other's."""

    def run(f, order):
        x, w = (torch.full((3,), v, requires_grad=True) for v in (1.5, 2.0))
        results, told = f(x, w), []
        for i in order:
            try:
                results[i].sum().backward()
            except RuntimeError as error:
                told.append(str(error))
        return told, x.grad, w.grad

    f, c = DETACHED[program], fresh.compile(DETACHED[program])
    count = len(f(*torch.ones(2, 3)))
    for order in itertools.product(range(count), repeat=3):
        (told, *grads), (expected, *wanted) = run(c, order), run(f, order)
        assert told == expected
        if not told:
            torch.testing.assert_close(grads, wanted)
    assert fresh.cache_info(c)["breaks"] == 0


KEEPS_NOTHING = """
x.view(2,2).t().reshape(4)  x.view(2,2).t().flatten()  x.view(2,2).t().ravel()  x.expand(2,4).reshape(8)  x.tile(2)  x.type(torch.float64)
x.type_as(torch.ones(1).double())  x.floor()  x.ceil()  x.trunc()  x.sign()  x.frac()
""".split()


@pytest.mark.parametrize("program", KEEPS_NOTHING)
def test_a_second_pass_through_what_keeps_nothing(fresh, program):
    """The graph is freed by the first pass, but the framework's nodes on this way have nothing to free."""
    f = eval(f"lambda x: ({program}, x * x)", {"torch": torch})

    def run(f):
        x = (torch.arange(4.0) + 0.5).requires_grad_()
        first, second = f(x)
        first.sum().backward()
        first.sum().backward()
        second.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            second.sum().backward()
        return x.grad

    c = fresh.compile(f)
    for _ in range(2):
        torch.testing.assert_close(run(c), run(f))
    assert fresh.cache_info(c)["breaks"] == 0


GRAD = torch.autograd.grad
LOOKED_FOR = {
    "a result": lambda o, x, w: GRAD(o[-1], o[0]),
    "one between": lambda o, x, w: GRAD(o[-1], o[-2], allow_unused=True),
    "results and inputs": lambda o, x, w: GRAD(o[-1], (x, *o, w)),
    "of two": lambda o, x, w: GRAD((o[-1], o[0]), (x, *o, w), (torch.ones_like(o[-1]), torch.full_like(o[0], 2.0))),
    "inputs": lambda o, x, w: GRAD(o[-1], (x, w)),
    "inputs, to be differentiated": lambda o, x, w: GRAD(GRAD(o[-1], x, create_graph=True)[0].sum(), w),
    "again": lambda o, x, w: (GRAD(o[-1], o[0], retain_graph=True), GRAD(o[-1], (x, w), retain_graph=True), o[-1].backward(), x.grad),
    "backward": lambda o, x, w: (o[-1].backward(inputs=[o[0], w]), o[0].grad, x.grad, w.grad),
    "kept": lambda o, x, w: ([t.retain_grad() for t in o], o[-1].backward(), [t.grad for t in o], x.grad, w.grad),
    "hooks": lambda o, x, w: ([t.register_hook(lambda g: g * 2) and 0 for t in o], o[-1].backward(), x.grad, w.grad),
    "written": lambda o, x, w: (o[-1].mul_(2), GRAD(o[-1], (x, o[0]))),
    "hooks, and that result alone": lambda o, x, w: (o[0].register_hook(lambda g: g * 2) and 0, GRAD(o[-1], o[0])),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("looked_for", LOOKED_FOR)
def test_gradients_of_one_result_by_another(fresh, looked_for):
    def two(x, w):
        y = (x @ w).tanh()
        return y, (y * y).sum() + (x * 3).sum()

    def three(x, w):
        a = (x @ w).tanh()
        b = (a * 2).exp()
        return a, b, (b + a * x).sum()

    for f in (two, three):
        compiled = fresh.compile(f)
        for seed in range(3):
            seen = []
            for g in (f, compiled):
                torch.manual_seed(seed)
                x, w = (torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
                seen.append(LOOKED_FOR[looked_for](g(x, w), x, w))
            torch.testing.assert_close(tensors(seen[1]), tensors(seen[0]))
            assert [v is None for v in seen[1]] == [v is None for v in seen[0]]


def gradients_to_differentiate(o, x, *more):
    """Of the last result by x and by all other results: what they are, and the gradients of them again."""
    first = GRAD(o[-1], [x, *o[:-1]], create_graph=True)
    return first, GRAD(sum((t**2).sum() for t in first), [x, *more])


DIFFERENTIATED = {
    "inputs and results": lambda o, x, w: gradients_to_differentiate(o, x, w),
    "where unused is allowed": lambda o, x, w: GRAD(o[-1], [x, *o[:-1]], create_graph=True, allow_unused=True),
    "a result": lambda o, x, w: GRAD(o[-1], o[0], create_graph=True),
    "a result, and again by it": lambda o, x, w: GRAD((GRAD(o[-1], o[0], create_graph=True)[0] * x).sum(), [o[0], x, w], allow_unused=True),
    "inputs, results gone": lambda o, x, w: [GRAD(GRAD(z, x, create_graph=True)[0].sum(), [x, w]) for z in [o.pop()] if o.clear() is None],
    "of two": lambda o, x, w: GRAD(GRAD([o[-1], o[0].sum()], [x, o[0]], create_graph=True)[0].sum(), [x, w]),
    "hooks": lambda o, x, w: ([t.register_hook(lambda g: g * 2) and 0 for t in o], GRAD(o[-1], [x, o[0]], create_graph=True)),
    "hooks of a plain pass": lambda o, x, w: ([t.register_hook(lambda g: g * 2) and 0 for t in o], GRAD(o[-1], [x, o[0]])),
    "then plain": lambda o, x, w: (GRAD(o[-1], x, create_graph=True), GRAD(o[-1], o[0], retain_graph=True), GRAD(o[-1], [x, *o[:-1]])),
    "twice": lambda o, x, w: (GRAD(o[-1], o[0]), GRAD(o[-1], o[0])),
    "twice, the first kept": lambda o, x, w: (GRAD(o[-1], o[0], retain_graph=True), GRAD(o[-1], o[0])),
    "a result, then inputs": lambda o, x, w: (GRAD(o[-1], o[0]), GRAD(o[-1], x)),
    "a result, then all": lambda o, x, w: (GRAD(o[-1], o[0]), o[-1].backward()),
    "a result, then through it": lambda o, x, w: (GRAD(o[-1], o[0]), GRAD(o[0].sum(), x)),
    "written": lambda o, x, w: (o[0].mul_(2), GRAD(o[-1], x, create_graph=True)),
}


def one_between(x, w):
    y = (x @ w).tanh()
    return [y, (y * y).sum() + (x * 3).sum()]


def two_between(x, w):
    a = (x @ w).tanh()
    b = (a * 2).exp()
    return [a, b, (b + a * x).sum()]


def nothing_saved(x, w):
    y = x * w * x
    return [y, (y + 1).sum()]


def written_before(x, w):
    y = x * w * x
    y.mul_(2)
    y[0] = w[1]
    return [y, (y * y).sum()]


def views_of_two(x, w):
    a, b = x * 2, w * 3
    one, other = torch.broadcast_tensors(a, b)
    return [a, b, F.mse_loss(one.tanh(), other)]


def handed_on(x, w):
    y = x * w
    z = y.relu()
    same = y.contiguous()
    return [same, z.square().sum() + same.tanh().sum()]


def read_by_a_write(x, w):
    y = x * w * x
    early, z = y**3, torch.ones_like(x)
    z[1:] = y[1:]
    z.add_(y)
    return [y, (early + z * y).sum()]


def read_by_writes_without_gradients(x, w):
    y = x * w * x
    early, z, out = y**3, torch.ones_like(x), torch.zeros_like(x)
    with torch.no_grad():
        z.mul_(y)
        torch._foreach_add_([z], [y])
        torch.mul(y, 2, out=out)
    return [y, (early + z * y + out).sum()]


def sum_of_one_number(x, w):
    y = (x * w * x).sum()
    return [y, y.sum()]


def chain(x, w):
    out = [x * w]
    for _ in range(3):
        out.append((out[-1] @ w).tanh() + x)
    return [*out, out[-1].square().sum()]


BY_RESULTS = [one_between, two_between, nothing_saved, written_before, views_of_two, handed_on, sum_of_one_number, chain]
BY_RESULTS += [read_by_a_write, read_by_writes_without_gradients]


@pytest.mark.parametrize("f", BY_RESULTS)
@pytest.mark.parametrize("looked_for", DIFFERENTIATED)
def test_gradients_by_results_that_are_differentiated(fresh, f, looked_for):
    if f is two_between and looked_for == "a result, then all":
        pytest.skip("a known gap: docs/stages/gradients.md")
    compiled, seen = fresh.compile(f), []
    for g in (f, compiled, compiled):
        torch.manual_seed(3)
        x, w = (torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
        try:
            seen.append(tensors(DIFFERENTIATED[looked_for](g(x, w), x, w)))
        except RuntimeError as error:
            seen.append(str(error)[:50])
    assert compiled.cache_info()["segments"]
    assert [type(got) for got in seen] == [type(seen[0])] * 3, seen
    for got in seen[1:]:
        torch.testing.assert_close(got, seen[0]) if isinstance(got, list) else None


def test_what_is_equal_in_eager_is_equal_in_a_replay(fresh):
    """The framework's own sums may differ from ours in the last place: a replay has them all from the framework."""

    def of_a_sum(w):
        v = w.sum()
        return v, torch.maximum(v, w.sum()) ** 3

    def of_a_mean(w):
        v = (w * 0.7).mean()
        return v, torch.maximum((w * 0.7).mean(), v + 0) ** 3

    def of_what_is_made_of_another(w):
        a = w.sum()
        b = a * 3
        return a, b, torch.where(w.sum() * 3 >= b, b, b * 5).square()

    for f in (of_a_sum, of_a_mean, of_what_is_made_of_another):
        compiled = fresh.compile(f)
        for seed in range(20):
            seen = []
            for g in (f, compiled):
                w = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)
                results = g(w)
                first = GRAD(results[-1], [w, *results[:-1]], create_graph=True, allow_unused=True)
                seen.append((first, GRAD(sum((t * t).sum() for t in first if t is not None), w, allow_unused=True)))
            torch.testing.assert_close(seen[1], seen[0])
        assert compiled.cache_info()["segments"] and not compiled.cache_info()["outcomes"].get("graph break")


@pytest.mark.parametrize("f", [lambda x: x.tanh(), lambda x: x[1:].tanh() * 2, lambda x: x.t().tanh() + x.exp()])
def test_a_write_that_counts_no_version_to_what_eager_does_not_keep(fresh, f):
    seen = []
    for g in (f, fresh.compile(f)):
        for dtype in (torch.float32, torch.float64):
            x = torch.linspace(-2, 2, 9, dtype=dtype).view(3, 3).requires_grad_()
            y = g(x)
            x.data.mul_(3)
            y.sum().backward()
            seen.append(x.grad)
    torch.testing.assert_close(seen[2:], seen[:2])


READ_AGAIN = {
    "a power of a sine": lambda x: x.sin() ** 3,
    "softmax": lambda x: x.softmax(-1) * x,
    "log_softmax": lambda x: x.log_softmax(-1) * x,
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "layer_norm with a weight": lambda x: F.layer_norm(x, (3,), torch.tensor([0.5, 2.0, -1.0], dtype=x.dtype)),
    "group_norm": lambda x: F.group_norm(x[None], 3),
    "batch_norm": lambda x: F.batch_norm(x, None, None, None, None, True),
    "a root": lambda x: (x * x + 1).sqrt(),
    "a choice": lambda x: torch.where(x > 0, x.sin(), x.cos()) * x,
    "a sum": lambda x: (x + 1).relu() * x,
    "what is inside is made again": lambda x: F.hardshrink(x) + F.silu(x) * x,
    "what is inside is kept": lambda x: F.softsign(x) + F.tanhshrink(x),
    "a part": lambda x: x[:, :2].sin() * x[:, 1:],
    "turned": lambda x: (x.t() + 1).sin() * x,
    "another type": lambda x: x.half().float().sin() * x,
}


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("written", ["x", "y", "as an array"])
@pytest.mark.parametrize("program", READ_AGAIN)
def test_what_a_backward_pass_reads_again_is_what_eager_keeps(fresh, program, written, leaf):
    f, seen = READ_AGAIN[program], []
    compiled = fresh.compile(f)
    for g in (f, compiled):
        w = torch.linspace(-2, 2, 9).view(3, 3).add(0.1).requires_grad_()
        x = w if leaf else w * 1
        y = g(x)
        if written == "as an array":
            x.detach().numpy()[...] *= 3
        else:
            (x if written == "x" else y).data.mul_(3)
        (y * torch.arange(1.0, 1 + y.numel()).view(y.shape)).sum().backward()
        seen.append(w.grad)
    torch.testing.assert_close(seen[1], seen[0])
    assert compiled.cache_info()["segments"] == 1 and not compiled.cache_info()["outcomes"].get("graph break")


# Of operations between whose passes parameters and other operands are written: what eager keeps of them is an operand, a result, or in
# between. x, w: 4x4, positive.
KEPT = """
x*w x/w x.sin()*w.exp() (x*w).sin()*w x*(w+1)**2 x.exp2() x**.5 x**-1 x**-.5 1/x x**w F.logsigmoid(x) x.tanh() F.softsign(x) F.gelu(x*w) F.glu(x)
x.norm() x.norm(dim=1) x.norm(3) x.norm(dim=1,keepdim=True)*2 x.prod() x.prod(1) x.max() x.median() x.cumprod(1) x.logcumsumexp(1) x.amax(1)
torch.dist(x,w) torch.cdist(x,w) F.pdist(x) F.pairwise_distance(x,w) F.cosine_similarity(x,w) F.cross_entropy(x,torch.arange(4)) F.cross_entropy(x,w.softmax(-1))
F.l1_loss(x,w) F.mse_loss(x,w) F.kl_div(x,w,reduction='sum',log_target=True) F.poisson_nll_loss(x,w) F.hinge_embedding_loss(x,w) F.triplet_margin_loss(x,w,x+w)
F.layer_norm(x,(4,),w[0],w[1]) F.layer_norm(x,(4,))**2 F.rms_norm(x,(4,),w[0]) F.batch_norm(x,None,None,w[0],w[1],True) F.group_norm(x,2,w[0])
F.linear(F.linear(x,w).relu(),w) F.linear(F.layer_norm(x,(4,),w[0]),w) F.linear(x,w*(w[:,:1]/w.norm(dim=1,keepdim=True))) x@w.softmax(0) torch.trapezoid(x,w)
F.instance_norm(x[None],weight=w[0],bias=w[1]) F.instance_norm(x.view(2,4,2),weight=w[0]) F.scaled_dot_product_attention(x[None],w[None],x[None],w) torch.linalg.inv(x+3*torch.eye(4)) torch.linalg.solve(x+3*torch.eye(4),w)
x.unfold(0,2,1).sin()*w[:3,:,None] x.hsplit(2)[0].sin()*w[:,:2] torch.einsum('ij->ji',x)*w x.H**2 x.as_strided((3,2),(4,1)).sin()*w[:3,:2] x.H.T.norm()*w.H x.diagonal()*w.diagonal()
torch.linalg.multi_dot([x,w,x]) x.scatter_reduce(0,torch.zeros(4,4,dtype=torch.long),w,'prod') F.embedding(torch.tensor([1,2,1]),w).sin()*x[:3]
""".split()


WIDER = ("x.prod()", "x.prod(1)")  # a known gap: the derivative reads what the result was rounded from


@pytest.mark.parametrize("parameters", [False, True])
@pytest.mark.parametrize("program", KEPT)
def test_what_a_derivative_keeps_is_what_eager_keeps(fresh, program, parameters):
    name = f"<kept {program}>"
    for text in ("{}", "({}).sin()", "(lambda x, w: {})(x * 1.1, w * 0.9)"):
        space = {"torch": torch, "F": F}
        exec(compile(f"def f(x, w):\n    return {text.format(program)}\n", name, "exec"), space)
        for written in "xw" if program in WIDER else "xwy":
            seen = []
            compiled = fresh.compile(space["f"])
            for f in (space["f"], compiled):
                makers = (torch.Generator().manual_seed(seed) for seed in (0, 1))
                x, w = (torch.rand(4, 4, generator=g) * 0.8 + 0.2 for g in makers)
                x, w = (torch.nn.Parameter(t) if parameters else t.requires_grad_() for t in (x, w))
                y = f(x, w)
                {"x": x, "w": w, "y": y}[written].data.mul_(3)
                seen.append(torch.autograd.grad((y * torch.arange(1.0, 1 + y.numel()).view(y.shape)).sum(), (x, w), allow_unused=True))
            torch.testing.assert_close(seen[1], seen[0], rtol=1e-3, atol=1e-4, equal_nan=True, msg=lambda m: f"{text} {written}: {m}")
            assert compiled.cache_info()["segments"] == 1, (text, written)


def in_place(z, x):
    z.add_(x)


def by_key(z, x):
    z[1:] = x[1:] * 2


def by_out(z, x):
    torch.mul(x, 3, out=z)


def by_a_call(z, x):
    z.index_add_(0, torch.tensor([0, 1]), x[:2])


@pytest.mark.parametrize("write", [in_place, by_key, by_out, by_a_call])
def test_what_is_written_without_gradients_leads_to_none(fresh, write):
    def f(x):
        with torch.no_grad():
            z = torch.ones(3)
            write(z, x)
        return (x.sin() * z).sum()

    compiled, seen = fresh.compile(f), []
    for g in (f, compiled):
        x = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
        g(x).backward()
        seen.append(x.grad)
    torch.testing.assert_close(seen[1], seen[0])
    assert compiled.cache_info()["segments"] == 1 and not compiled.cache_info()["outcomes"].get("graph break")


def test_running_statistics_that_are_read_lead_to_no_gradient(fresh):
    def f(x, mean, variance):
        y = F.batch_norm(x, mean, variance, None, None, True)
        return ((y - mean) ** 3 * variance).sum()

    compiled, seen = fresh.compile(f), []
    for g in (f, compiled):
        x = torch.linspace(-1, 2, 12).view(4, 3).requires_grad_()
        g(x, torch.zeros(3), torch.ones(3)).backward()
        seen.append(x.grad)
    torch.testing.assert_close(seen[1], seen[0])
    assert compiled.cache_info()["segments"] == 1


@pytest.mark.parametrize("shape", [(6, 3, 6), (4, 2, 17, 9), (64, 5), (2, 3, 3000)])
@pytest.mark.parametrize("spread", [0.0, 1e-4, 1.0])
def test_batch_norm_of_channels_that_are_nearly_constant(fresh, shape, spread):
    def f(x, mean, variance):
        return F.batch_norm(x, mean, variance, None, None, True, 0.5)

    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    compiled, made = fresh.compile(f), []
    for g, dtype in ((f, torch.float64), (f, torch.float32), (compiled, torch.float32)):
        x = (noise * spread + 1000.7).float().to(dtype)
        mean, variance = torch.zeros(shape[1], dtype=dtype), torch.ones(shape[1], dtype=dtype)
        made.append([t.double() for t in (g(x, mean, variance), mean, variance)])
    for exact, eager, ours in zip(*made):
        assert (ours - exact).norm() <= 2 * (eager - exact).norm() + 1e-7 * exact.norm()
    assert compiled.cache_info()["segments"] == 1


@pytest.mark.parametrize("size", [1e20, 1e30, 1e37])
def test_batch_norm_of_what_has_no_squares(fresh, size):
    def f(x, mean, variance):
        return F.batch_norm(x, mean, variance, None, None, True, 0.5)

    noise, seen = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * size, []
    for g in (f, fresh.compile(f)):
        x, mean, variance = noise.clone().requires_grad_(), torch.zeros(4), torch.ones(4)
        y = g(x, mean, variance)
        seen.append([y, mean, variance, *GRAD(y[0].sum(), x)])
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-5, atol=0)


@pytest.mark.parametrize("gone", ["running_mean", "running_var"])
def test_batch_norm_with_one_of_its_statistics(fresh, gone):
    norm, x = torch.nn.BatchNorm1d(2), torch.ones(3, 2)
    compiled = fresh.compile(norm)
    compiled(x)
    setattr(norm, gone, None)
    for f in (norm, compiled):
        with pytest.raises((ValueError, RuntimeError), match="running_mean and running_var must either both be None or neither be None"):
            f(x)


def test_statistics_of_a_channel_with_an_infinity(fresh):
    def f(x, mean, variance):
        return F.batch_norm(x, mean, variance, None, None, True, 0.5)

    x, seen = torch.ones(4, 2), []
    x[1, 0] = float("inf")
    for g in (f, fresh.compile(f)):
        mean, variance = torch.zeros(2), torch.ones(2)
        seen.append([g(x, mean, variance), mean, variance])
    torch.testing.assert_close(seen[1], seen[0], equal_nan=True)


def test_a_batch_of_gradients_of_what_was_drawn(fresh):
    def f(x):
        return F.dropout(x.sin(), 0.5) * x

    compiled, seen = fresh.compile(f), []
    for g in (f, compiled):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        torch.manual_seed(0)
        y = g(x)
        seen.append([y, *GRAD(y, x, torch.eye(6), is_grads_batched=True, retain_graph=True), *GRAD(y.sum(), x)])
        y = g(x)
        with pytest.raises(RuntimeError, match="random operation"):  # what was left for the replay is entered again
            torch._vmap_internals._vmap(lambda t: GRAD(y, x, t)[0] + torch.rand(6), 0, 0)(torch.eye(6))
    torch.testing.assert_close(seen[1], seen[0])
    assert compiled.cache_info()["segments"] == 1


GONE = {
    "plain": lambda o, x, w: GRAD(o[-1], [x, o[0]], retain_graph=True),
    "of two": lambda o, x, w: GRAD([o[-1], o[3].sum()], [x, o[0]], retain_graph=True),
    "differentiated": lambda o, x, w: gradients_to_differentiate([o[0], o[-1]], x, w),
    "of two, differentiated": lambda o, x, w: GRAD(GRAD([o[-1], o[3].sum()], o[0], create_graph=True)[0].sum(), [o[0], x, w]),
    "in a batch": lambda o, x, w: GRAD(o[-1], [x, o[0]], torch.arange(3.0, dtype=torch.float64), is_grads_batched=True, retain_graph=True),
    "hooks": lambda o, x, w: (o[0].register_hook(lambda g: g * 2) and 0, GRAD(o[-1], [x, o[0]], create_graph=True), o[-1].backward(), x.grad),
}


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("gone", [[1], [2], [1, 2], [1, 2, 3], []])
@pytest.mark.parametrize("looked_for", GONE)
def test_ways_between_results_lead_by_those_that_are_gone(fresh, looked_for, gone):
    compiled, seen = fresh.compile(chain), []
    for g in (chain, compiled, compiled):
        torch.manual_seed(3)
        x, w = (torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
        o = g(x, w)
        if 3 in gone and "two" in looked_for:
            pytest.skip("it is one of the two")
        for i in gone:
            o[i] = None
        try:
            seen.append(tensors(GONE[looked_for](o, x, w)))
        except RuntimeError as error:
            seen.append(str(error)[:50])
    assert compiled.cache_info()["segments"] and not isinstance(seen[0], str)
    if looked_for == "in a batch" and all(isinstance(got, str) for got in seen[1:]):
        pytest.skip("a known gap: docs/stages/gradients.md")
    for got in seen[1:]:
        torch.testing.assert_close(got, seen[0])


def test_a_result_has_an_edge_to_the_one_before_it_alone(fresh):
    def f(x, w):
        out = [x]
        for _ in range(10):
            out.append((out[-1] @ w).tanh())
        return out[1:]

    compiled = fresh.compile(f, fullgraph=True)
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    out = compiled(x, w)
    edges = [[node for node, _ in t.grad_fn.next_functions] for t in out]
    for i in range(3, 10):  # the segment's node, the one before, and one of nobody's
        assert len(edges[i]) == 3 and out[i - 1].grad_fn in edges[i] and out[i - 2].grad_fn not in edges[i]
    assert not hasattr(out[5].grad_fn, "__dict__") or not out[5].grad_fn.__dict__


def test_a_result_that_was_written_keeps_no_gradient_of_what_it_was(fresh):
    def f(x):
        y = x.sum(0)
        return y, y * 3

    for g in (f, fresh.compile(f)):
        x = torch.ones(2, 2, requires_grad=True)
        y, z = g(x)
        y.add_(1)
        y.retain_grad()
        z.sum().backward()
        assert y.grad is None and x.grad.eq(3).all()


VIEWED = {
    "unsqueeze": lambda y: y.unsqueeze_(0),
    "twice": lambda y: y.unsqueeze_(0).transpose_(0, 1),
    "squeeze": lambda y: y.squeeze_(),
    "t": lambda y: y.t_(),
    "and written": lambda y: y.mul_(2),
    "and back": lambda y: y.unsqueeze_(0).squeeze_(0),
    "detached": lambda y: y.detach_(),
}


@pytest.mark.parametrize("viewed", VIEWED)
def test_a_result_that_was_viewed_in_place_keeps_its_gradient(fresh, viewed):
    def f(x):
        y = x * 3
        return y, (y + 2).sum()

    def tell(g):
        told = []
        for back in (lambda y, z: z.backward(), lambda y, z: (z + y.sum()).backward(), lambda y, z: (z.backward(retain_graph=True), z.backward())):
            x = torch.arange(3.0).reshape(1, 3).requires_grad_()
            y, z = g(x)
            y.retain_grad()
            VIEWED[viewed](y)
            back(y, z)
            told.append((y.shape, None if y.grad is None else (y.grad.shape, y.grad.tolist()), x.grad.tolist()))
        return told

    compiled = fresh.compile(f)
    expected = tell(f)
    assert tell(compiled) == expected
    assert (expected[0][1] is None) == (viewed == "and written")
    assert compiled.cache_info()["outcomes"]["run"] == {"graph": 3}


def test_the_way_between_results_holds_nothing(fresh):
    def f(x):
        y = x.exp()
        return y, y.sum()

    compiled = fresh.compile(f)
    compiled(torch.ones(3, requires_grad=True))
    gc.collect()
    gc.disable()
    try:
        for through in (lambda y, z: None, lambda y, z: z.backward(), lambda y, z: GRAD(z, y), lambda y, z: GRAD(z, y, retain_graph=True)):
            y, z = compiled(torch.ones(3, requires_grad=True))
            through(y, z)
            gone = weakref.ref(y), weakref.ref(z)
            del y, z
            assert [r() for r in gone] == [None, None]
    finally:
        gc.enable()


def test_parts_of_the_results_are_freed_apart(fresh):
    def run(f):
        w, x, seen = torch.ones(3, 3, requires_grad=True), torch.arange(9.0).view(3, 3), []
        a, b = f(x, w)
        a.sum().backward(retain_graph=True)
        b.backward()  # not a's graph
        a.sum().backward()
        for again in (a.sum(), b):
            with pytest.raises(RuntimeError, match="second time"):
                again.backward()
        return w.grad

    def f(x, w):
        return (x @ w).tanh(), (x * w).sum()

    g = fresh.compile(f)
    for _ in range(3):
        torch.testing.assert_close(run(g), run(f))


def test_writes_to_saved_tensors_raise(fresh):
    w = torch.randn(3, requires_grad=True)
    x = torch.randn(3)
    out = fresh.compile(lambda x, w: (x * w).sum())(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_results_may_be_written(fresh):
    def f(x):
        return x * 2, x + 1

    def run(f):
        x = torch.arange(3.0, requires_grad=True)
        a, b = f(x)
        a.mul_(b.detach().clone())
        b.add_(1)
        (a.sum() + b.sum()).backward()
        return a.tolist(), b.tolist(), x.grad.tolist()

    assert run(fresh.compile(f)) == run(f)


def test_double_backward(fresh):
    def run(f):
        x = torch.linspace(0.5, 1.5, 4, requires_grad=True)
        (g,) = torch.autograd.grad(f(x * 2).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad((g * g).sum(), x)
        return g, h

    f = lambda x: x.sin() * x.exp()  # noqa: E731
    compiled = fresh.compile(f)
    for mine, theirs in zip(run(compiled), run(f)):
        torch.testing.assert_close(mine, theirs)
    assert compiled_backward(compiled)


def test_saved_tensors_hooks_and_checkpoint(fresh):
    from torch.utils.checkpoint import checkpoint

    w = torch.randn(4, 4, requires_grad=True)
    f = lambda x: F.gelu(x @ w)  # noqa: E731
    compiled = fresh.compile(f)
    x = torch.randn(2, 4, requires_grad=True)
    expected = torch.autograd.grad(f(x).sum(), (x, w))
    with torch.autograd.graph.save_on_cpu():
        out = compiled(x)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), (x, w)), expected)
    out = checkpoint(compiled, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), (x, w)), expected)


def test_memory_goes_with_the_graph(fresh):
    compiled = fresh.compile(lambda x: (x.exp() + 1).log())
    x = torch.randn(3, requires_grad=True) * 1
    ref = weakref.ref(x)
    out = compiled(x)
    out.sum().backward()
    del x, out
    gc.collect()
    assert ref() is None


def test_backward_on_another_thread(fresh):
    import threading

    x = torch.randn(3, requires_grad=True)
    out = fresh.compile(lambda x: x.exp())(x)
    t = threading.Thread(target=lambda: out.sum().backward())
    t.start()
    t.join()
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_symbolic_sizes(fresh):
    f = lambda x, w: F.softmax(F.linear(x, w), -1).mean(0)  # noqa: E731
    compiled = fresh.compile(f, dynamic=True)
    for n in (3, 5, 2, 7):
        check(fresh, f, lambda: [torch.randn(n, 4, generator=torch.Generator().manual_seed(n + 1)).double(), TORCH["w"]().double()], compiled=compiled)  # noqa: B023
    assert compiled_backward(compiled) and compiled.cache_info()["segments"] <= 2


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
        self.unused = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, y):
        return F.cross_entropy(self.b(F.gelu(self.norm(self.a(x)))), y)


def steps(model, call, optimizer, inputs, n=3):
    """Losses and parameters of n steps."""
    optimizer = optimizer(model.parameters())
    losses = []
    for _ in range(n):
        optimizer.zero_grad()
        loss = call(**inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    # The parameters as one vector: some have gradients that are zero but for rounding (biases of attention keys).
    return [torch.stack(losses)], [torch.cat([p.detach().flatten() for p in model.parameters()])], [p.grad is None for p in model.parameters()]


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-3),
}


def same_training(fresh, model, inputs, optimizer, scalar, what):
    eager, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    expected = steps(eager, lambda **k: scalar(eager(**k)), OPTIMIZERS[optimizer], inputs)
    truth = steps(wide, lambda **k: scalar(wide(**k)), OPTIMIZERS[optimizer], models.in_float64(inputs))
    compiled = fresh.compile(model)
    got = steps(model, lambda **k: scalar(compiled(**k)), OPTIMIZERS[optimizer], inputs)
    assert got[2] == expected[2], f"{what}: parameters without gradients"
    for part in (0, 1):
        for k, (mine, theirs, reference) in enumerate(zip(got[part], expected[part], truth[part])):
            oracle.check(mine, theirs, reference, what=f"{what}: {'parameter' if part else 'loss'} {k}")
    return compiled


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_mlp(fresh, optimizer):
    torch.manual_seed(0)
    inputs = {"x": torch.randn(5, 8), "y": torch.tensor([0, 3, 1, 2, 2])}
    compiled = same_training(fresh, MLP(), inputs, optimizer, lambda loss: loss, "MLP")
    assert compiled_backward(compiled), notes(compiled)


def scalar_of(output):
    total = 0
    for t in models.flatten(output).values():
        if t.requires_grad:
            total = total + (t * t).mean()
    return total


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", models.MODELS)
def test_model(fresh, name, optimizer, mode):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = models.build(name, small=True)
    if models.MODELS[name][4] == "image":
        inputs = models.make_inputs(name, small=True, batch=4, length=64 if name == "ResNetModel" else None)
    for m in model.modules():  # what draws random numbers differs between the three runs
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
        if hasattr(m, "dropout") and isinstance(m.dropout, float):
            m.dropout = 0.0
        if hasattr(m, "attention_dropout") and isinstance(m.attention_dropout, float):
            m.attention_dropout = 0.0
    model.train(mode == "train")
    compiled = same_training(fresh, model, inputs, optimizer, scalar_of, f"{name} {mode}")
    assert compiled_backward(compiled), notes(compiled)


@pytest.mark.parametrize("source,names", [("F.dropout(a, 0.3) * 2 + F.dropout(b, 0.1)", ("f", "g")), ("F.dropout(a, 0.9, inplace=False).relu()", ("zero",)),
                                          ("F.scaled_dot_product_attention(a, b, b, dropout_p=0.2)", ("q", "kv")),
                                          ("F.scaled_dot_product_attention(a, b, b, c, 0.2)", ("q", "kv", "mask"))])  # fmt: skip
def test_dropout_draws_as_eager(fresh, source, names):
    f = build(source, "abc"[: len(names)])
    compiled = fresh.compile(f)
    for seed in (0, 1, 2):
        results = []
        for g in (f, compiled):
            torch.manual_seed(seed)
            results.append((gradients(g, tracked([TORCH[n]() for n in names])), torch.get_rng_state()))
        (expected, state), (got, after) = results
        assert torch.equal(state, after)
        for part in (0, 1):
            for mine, theirs in zip(got[part], expected[part]):
                torch.testing.assert_close(mine, theirs)
    assert compiled_backward(compiled), notes(compiled)


def test_model_with_dropout(fresh):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = models.build("BertModel", small=True)
    model.train()
    eager = copy.deepcopy(model)
    compiled = fresh.compile(model)
    results = []
    for m, call in ((eager, eager), (model, compiled)):
        torch.manual_seed(1)
        results.append(steps(m, lambda **k: scalar_of(call(**k)), OPTIMIZERS["SGD"], inputs))  # noqa: B023
    for part in (0, 1):
        for mine, theirs in zip(results[1][part], results[0][part]):
            torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)
    assert compiled_backward(compiled), notes(compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length,keys,how", [(16, 16, {}), (40, 70, {"is_causal": True}), (70, 40, {"is_causal": True}), (9, 33, {"scale": 0.3}), (16, 16, {"attn_mask": True})])
def test_attention_gradients_are_the_frameworks(fresh, dtype, length, keys, how):
    """Its own kernel computes them: bit for bit, and without the scores ever being in memory. One query sees nothing."""
    g = torch.Generator().manual_seed(0)
    operands = [torch.randn(2, n, 3, 8, generator=g).to(dtype).transpose(1, 2) for n in (length, keys, keys)]
    if how.get("attn_mask"):
        mask = torch.randn(length, keys, generator=g) > -0.5
        mask[3] = False
        how = {"attn_mask": mask}
    f = lambda q, k, v: F.scaled_dot_product_attention(q * 1, k * 1, v, **how)  # noqa: E731
    compiled = fresh.compile(f)
    assert all(map(torch.equal, gradients(compiled, tracked(operands))[1], gradients(f, tracked(operands))[1]))
    assert compiled_backward(compiled), notes(compiled)


def test_what_sees_one_key_has_no_slope(fresh):
    """The weight is 1 whatever query, key and mask are: their gradients are 0, not a difference of two sums that is 0 but for rounding."""
    f = lambda q, k, v, mask: F.scaled_dot_product_attention(q * 1, k * 1, v * 1, mask * 1) * 2  # noqa: E731
    compiled, g = fresh.compile(f), torch.Generator().manual_seed(0)
    operands = [torch.randn(2, n, 3, 256, generator=g).transpose(1, 2) for n in (9, 1, 1)] + [torch.randn(1, 3, 9, 1, generator=g)]
    mine, theirs = gradients(compiled, tracked(operands))[1], gradients(f, tracked(operands))[1]
    assert [bool(t.any()) for t in mine] == [bool(t.any()) for t in theirs] == [False, False, True, False]
    assert compiled_backward(compiled), notes(compiled)


def test_gradients_through_complex_values(fresh):
    for f in (lambda x: torch.fft.fft(x * 2).real * x, lambda x: torch.view_as_real(torch.fft.rfft(x.sin())).sum(-1), lambda x: torch.fft.fftn(x, dim=(0, 1)).abs()):
        check(fresh, f, lambda: [TORCH["m"]()], where="complex")
        compiled = fresh.compile(f)
        for mine, theirs in zip(gradients(compiled, tracked([TORCH["m"]()]))[1], gradients(f, tracked([TORCH["m"]()]))[1]):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("source,names", [
    ("a.sort(-1)[0] * b", ("f", "g")), ("a.sort(0, descending=True)[0]", ("f",)), ("torch.sort(a, stable=True, dim=1)[0]", ("f",)), ("a.topk(2)[0]", ("f",)),
    ("a.topk(2, 1, largest=False)[0].exp()", ("f",)), ("x, i = a.sort(1); x * i", ("f",)), ("a.prod(-1)", ("f",)), ("a.prod()", ("m",)),
    ("torch.where(b > 0.5, a, torch.zeros_like(a)).prod(1)", ("f", "g")), ("torch.fmax(a, b)", ("f", "col")), ("torch.fmin(a, b.log())", ("f", "g")),
    ("torch.xlogy(a, b)", ("f", "g")), ("torch.xlogy(a, b.abs())", ("col", "f")), ("torch.special.sinc(a)", ("f",)), ("a.index_select(1, torch.tensor([0, 2, 2]))", ("f",)),
    ("a[torch.tensor([1, -1, 0, 1])] * 3", ("f",)), ("a.gather(2, torch.tensor([[[0, 1]], [[3, 3]]])) * 2", ("f",)), ("a.take(torch.tensor([0, 5, 5, -1]))", ("f",)),
])  # fmt: skip
def test_compiled_rarer(fresh, source, names):
    f = build(source, "abc"[: len(names)])
    compiled = check(fresh, f, lambda: [TORCH[n]() for n in names], where=source)
    assert compiled is not None and compiled_backward(compiled), notes(compiled)


def test_what_only_the_compiler_would_read_may_be_written(fresh):
    """What derivatives do not read is not kept, though other things could be computed again from it."""

    def f(x, mask):
        return torch.where(mask, torch.zeros_like(x), x * 3).exp().tanh()

    def run(f):
        w = torch.linspace(-1, 1, 6, requires_grad=True)
        x = w * 2
        y = f(x, torch.arange(6) > 2)
        with torch.no_grad():
            x.add_(1)
        y.sum().backward()
        return w.grad

    compiled = fresh.compile(f)
    for _ in range(2):
        torch.testing.assert_close(run(compiled), run(f))
    assert compiled_backward(compiled)


VIEWS = {
    "strided": lambda x: x.as_strided((3, 2, 2), (2, 1, 1)) * 2,
    "strided transposed": lambda x: (x * 2).t().as_strided((2, 3), (1, 2)).exp(),
    "strided part": lambda x: (x * 2)[1:].as_strided((2, 2), (2, 1)).exp(),
    "strided outside": lambda x: (x * 2)[1:].as_strided((3,), (2,), 1).exp(),
    "slice": lambda x: torch.ops.aten.slice(x, 0, 1, None, 2) * torch.ops.aten.slice(x, 1, 0, -1),
    "unfold": lambda x: x.unfold(0, 2, 1).exp().sum(-1),
    "diagonal": lambda x: x.diagonal(1) * 2,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(fresh, name):
    for make in (lambda: [torch.arange(12.0).view(4, 3) / 10], lambda: [torch.arange(24.0).view(3, 8).t()[::2] / 10]):
        compiled = check(fresh, VIEWS[name], make, where=name)
        if compiled:
            with torch.no_grad():
                torch.testing.assert_close(compiled(*make()), VIEWS[name](*make()))


@pytest.mark.parametrize("name", ["part", "transposed", "repeated"])
def test_dropout_of_any_layout(fresh, name):
    make = {"part": lambda x: x[:, :2], "transposed": lambda x: x.t(), "repeated": lambda x: x[:, :1].expand(4, 3)}[name]
    f = lambda x: F.dropout(make(x), 0.5)  # noqa: E731
    compiled, results = fresh.compile(f), []
    for g in (f, compiled):
        torch.manual_seed(0)
        x = torch.arange(12.0).view(4, 3).requires_grad_()
        y = g(x)
        y.sum().backward()
        results.append((y.tolist(), y.stride(), x.grad.tolist(), torch.rand(2).tolist()))
    assert results[0] == results[1]
    assert compiled_backward(compiled) or name == "repeated"


def test_functions_that_torch_wraps_in_python(fresh):
    x, y = torch.randn(4, 3), torch.randn(5, 3)
    for f, arguments in ((torch.cdist, (x, y)), (torch.cartesian_prod, (x[0], y[0]))):
        g = lambda *a: f(*a) * 2  # noqa: E731, B023
        assert fresh.explain(g)(*arguments).graph_break_count == 0, f
        torch.testing.assert_close(fresh.compile(g)(*arguments), g(*arguments))


def test_what_saves_nothing_may_be_gone_through_again(fresh):
    x = torch.ones(3, requires_grad=True)
    y = fresh.compile(lambda x: x.sum())(x)
    y.backward()
    y.backward()
    assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["exp", "sigmoid", "softmax", "layer_norm", "relu", "batch_norm", "sqrt"])
def test_writes_to_results_raise_where_the_framework_needs_them(fresh, name):
    f = {"exp": torch.exp, "sigmoid": torch.sigmoid, "softmax": lambda x: x.softmax(-1), "layer_norm": lambda x: F.layer_norm(x, (4,)), "relu": F.relu,
         "batch_norm": lambda x: F.batch_norm(x, None, None, training=True), "sqrt": torch.sqrt}[name]  # fmt: skip
    outcomes = []
    for g in (f, fresh.compile(f)):
        x = torch.linspace(0.1, 2, 12).view(3, 4).square().requires_grad_()
        y = g(x)
        with torch.no_grad():
            y.mul_(2)
        try:
            y.square().sum().backward()
            outcomes.append(x.grad)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            outcomes.append(None)
    assert (outcomes[0] is None) == (outcomes[1] is None) == (name not in ("layer_norm", "batch_norm"))
    if outcomes[0] is not None:
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-4, atol=1e-4)


def test_swapped_weights(fresh):
    m = torch.nn.Linear(3, 3)
    compiled, x = fresh.compile(m), torch.randn(2, 3)
    for _ in range(3):
        compiled(x).sum().backward()
    torch.utils.swap_tensors(m.weight, torch.nn.Parameter(torch.ones(3, 3)))
    torch.testing.assert_close(compiled(x), m(x))


def test_attention_whose_kernel_takes_one_length(fresh, monkeypatch):
    """Sizes that change stay numbers where symbols would cost the compiled backward pass."""
    from framejit import _gradients

    form, asked = _gradients.attention_form, []

    def of_one_length(*arguments):  # as cuDNN's
        asked.append(arguments[-1])
        return form(*arguments) if arguments[-1] else None

    monkeypatch.setattr(_gradients, "attention_form", of_one_length)

    def f(x, w):
        q, k, v = (x @ w).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()

    compiled = fresh.compile(f)
    for length in (8, 12, 16, 12):
        x, w = torch.randn(2, 4, length, 16), torch.randn(16, 48, requires_grad=True)
        compiled(x, w).backward()
        got, w.grad = w.grad, None
        f(x, w).backward()
        torch.testing.assert_close(got, w.grad, rtol=1e-4, atol=1e-5)
    assert asked == [True, False, True, True, True]  # the second length as a symbol, then each as a number
    assert fresh.cache_info(compiled)["segments"] == 3
    assert not any("s0" in str(g) for g in fresh.explain(compiled)(x, w).graphs)


def test_indices_that_are_computed_are_checked_where_they_are_read(fresh):
    """Parts of one tensor are gathered by indices that the kernel computes: beside its own part an index is no error."""

    def places():
        return torch.arange(4).unsqueeze(0).repeat(2, 1)

    def gathered(x, index):
        return torch.gather(x, 1, index.unsqueeze(-1).expand(-1, -1, 8))

    def parts(x, w):
        return torch.cat([torch.cat([gathered(x, places())]), torch.cat([gathered(w.repeat(2, 4, 1), places())])], 1)

    def sorted_twice(x, w):
        order = torch.argsort(torch.cat([places(), places()], 1), dim=1)
        return gathered(torch.sin(gathered(parts(x, w), order)), torch.argsort(order, dim=1))

    for f in (lambda x, w: parts(x, w).sin(), sorted_twice):
        compiled = fresh.compile(f)
        for _ in range(2):
            results = []
            for call in (f, compiled):
                x = torch.linspace(-1, 1, 64).reshape(2, 4, 8).requires_grad_()
                w = torch.arange(8.0).reshape(1, 1, 8).requires_grad_()
                y = call(x, w)
                y.square().sum().backward()
                results.append((y.detach(), x.grad, w.grad))
            torch.testing.assert_close(results[1], results[0])
        assert "run" in (told := compiled.cache_info()["outcomes"]) and set(told["run"]) == {"graph"}, told

    def too_far(x, w):
        return torch.cat([x, gathered(w.repeat(2, 4, 1), places() + 1)], 1).sin()

    with pytest.raises((RuntimeError, IndexError), match="out of (bounds|range)"):
        fresh.compile(too_far)(torch.ones(2, 4, 8), torch.ones(1, 1, 8))
