"""Programs under torch.autocast, entered inside or outside of what is compiled: the types and the casts are torch's."""


import contextlib
import re
import time

import pytest

torch = pytest.importorskip("torch")
from framejit._framejit import tensor_testing  # noqa: E402
from test_opinfo import facts, operators, run, tensors  # noqa: E402
from test_training import compiled_backward, notes  # noqa: E402

F = torch.nn.functional
TYPES = [torch.bfloat16, torch.float16]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + torch.softmax(self.b(F.gelu(self.norm(self.a(self.a(x) @ self.a.weight)))), -1)


def gradients(f, x, parameters):
    out = f(x)
    return out, torch.autograd.grad(out.float().square().sum(), parameters)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_block(fresh, where, dtype):
    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 8)

    def inside(x):
        with torch.autocast("cpu", dtype=dtype):
            return model(x)

    f = inside if where == "inside" else model
    compiled = fresh.compile(f)
    with torch.autocast("cpu", dtype=dtype, enabled=where == "outside"):
        assert fresh.explain(f)(x).graph_count == 1
    for _ in range(3):
        with torch.autocast("cpu", dtype=dtype, enabled=where == "outside"):
            expected = gradients(f, x, list(model.parameters()))
            got = gradients(compiled, x, list(model.parameters()))
        assert got[0].dtype == expected[0].dtype
        torch.testing.assert_close(got[0], expected[0], rtol=2e-2, atol=2e-2)
        for mine, theirs in zip(got[1], expected[1]):
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=5e-2)
    assert compiled_backward(compiled), notes(compiled)


def test_state_is_guarded(fresh):
    w = torch.randn(4, 4)
    compiled = fresh.compile(lambda x: x @ w)
    x = torch.randn(4, 4)
    assert compiled(x).dtype == torch.float32
    for dtype in TYPES + TYPES:
        with torch.autocast("cpu", dtype=dtype):
            assert compiled(x).dtype == dtype
            with torch.autocast("cpu", enabled=False):
                assert compiled(x).dtype == torch.float32
            with torch.no_grad(), torch.autocast("cuda", enabled=False):
                assert compiled(x).dtype == dtype
    assert compiled(x).dtype == torch.float32 and compiled.cache_info()["segments"] <= 7


def test_default_type_is_guarded(fresh):
    def f(x):
        with torch.autocast("cpu"):
            return x @ x

    compiled, x, before = fresh.compile(f), torch.randn(4, 4), torch.get_autocast_dtype("cpu")
    assert compiled(x).dtype == before
    try:
        torch.set_autocast_dtype("cpu", torch.float16)
        assert compiled(x).dtype == torch.float16
    finally:
        torch.set_autocast_dtype("cpu", before)
    assert compiled(x).dtype == before


def test_regions(fresh):
    def f(x):
        seen = [torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()]
        with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
            a = x @ x
            seen += [torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()]
            with torch.autocast("cpu", enabled=False):
                b = a.float() @ x
                seen += [torch.is_autocast_enabled("cpu")]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                c = a @ x
        return a, b, c, x @ x, seen, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    compiled, x = fresh.compile(f), torch.randn(4, 4)
    for _ in range(2):
        got, expected = compiled(x), f(x)
        assert got[4:] == expected[4:]
        for mine, theirs in zip(got[:4], expected[:4]):
            torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)
    assert fresh.explain(f)(x).graph_count == 1


@torch.autocast("cpu", dtype=torch.bfloat16)
def decorated(x):
    return x @ x


def test_decorator_and_break_inside(fresh):
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            time.sleep(0)
            y = y @ x
        return y, decorated(x), y.float() @ x

    compiled, x = fresh.compile(f), torch.randn(4, 4)
    for _ in range(3):
        for mine, theirs in zip(compiled(x), f(x)):
            torch.testing.assert_close(mine, theirs)


class Scaled(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


def test_custom_function(fresh):
    w = torch.randn(8, 8, requires_grad=True)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Scaled.apply(x @ w, w) + 1

    compiled, x = fresh.compile(f), torch.randn(4, 8)
    for _ in range(2):
        expected, got = gradients(f, x, [w]), gradients(compiled, x, [w])
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_grad_scaler(fresh):
    def train(compile):
        torch.manual_seed(0)
        model = Block()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        f, x, losses = compile(model), torch.randn(4, 8), []
        for k in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = f(x * (1e30 if k == 2 else 1)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses += [loss.detach(), torch.tensor(scaler.get_scale())]
        return losses, [p.detach() for p in model.parameters()]

    expected, got = train(lambda f: f), train(fresh.compile)
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2, equal_nan=True)


def torchs_state():
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()


def pause():
    time.sleep(0)


def leaving_at_breaks(w):
    """Functions with a break inside of regions of autocast, which torch counts."""

    def break_in_disabled(x):
        with torch.autocast("cpu", enabled=False):
            y = x @ w
            pause()
            return y @ w

    def called(x):
        return break_in_disabled(x) + 1

    def nested(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = y @ w
                pause()
                y = y @ w
            with torch.autocast("cpu", enabled=False):
                y = y.float() @ w
                pause()
                y = y @ w
        return y

    def nested_in_a_call(x):
        def inner(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = x @ w
                pause()
                return y @ w

        with torch.autocast("cpu", enabled=False):
            return inner(x) + x

    def loop(x):
        with torch.autocast("cpu", enabled=False):
            for _ in range(3):
                x = x @ w
                pause()
            return x

    def one_after_the_other(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = x @ w
            pause()
            x = x @ w
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = x @ w
            pause()
            x = x @ w
        return x

    def by_hand(x):
        scope = torch.autocast("cpu", enabled=False)
        scope.__enter__()
        y = x @ w
        pause()
        scope.__exit__(None, None, None)
        return y @ w

    @torch.autocast("cpu", enabled=False)
    def decorated(x):
        y = x @ w
        pause()
        return y @ w

    return [called, nested, nested_in_a_call, loop, one_after_the_other, by_hand, lambda x: decorated(x) + 1]


def leaving_otherwise(w):
    """Functions that leave such regions by an error, or in a generator or a checkpoint."""

    def error(x):
        with torch.autocast("cpu", enabled=False):
            y = x @ w
            raise ValueError(y.shape)

    def error_behind_a_break(x):
        with torch.autocast("cpu", enabled=False):
            y = x @ w
            pause()
            raise ValueError((y @ w).shape)

    def refused(x):
        with torch.autocast("cpu", enabled=False):
            return x[99]

    def caught(x):
        try:
            with torch.autocast("cpu", enabled=False):
                y = x @ w
                pause()
                raise KeyError
        except KeyError:
            return y @ w

    def generator(x):
        with torch.autocast("cpu", enabled=False):
            yield x @ w
            yield x @ w @ w

    def suspended(x):
        g = generator(x)
        a = next(g)
        pause()
        b = next(g)
        g.close()
        return a + b

    def checkpointed(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            f = lambda x: F.dropout(x @ w, 0.5) @ w  # noqa: E731
            return torch.utils.checkpoint.checkpoint(f, x, use_reentrant=True).float().sum()

    return [error, error_behind_a_break, refused, caught, lambda x: sum(generator(x)), suspended, checkpointed]


def leaving(w):
    return [*leaving_at_breaks(w), *leaving_otherwise(w)]


AROUND = [None, dict(dtype=torch.bfloat16), dict(enabled=False), dict(dtype=torch.bfloat16, cache_enabled=False)]


@pytest.mark.parametrize("around", AROUND, ids=str)
@pytest.mark.parametrize("number", range(14))
def test_what_torch_counts_is_left_as_eager_leaves_it(fresh, number, around):
    w = torch.randn(4, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    f = leaving(w)[number]

    def once(f):
        """The result, torch's state, and what uncompiled code computes behind: with the cast of w that torch keeps, or a new one."""
        torch.manual_seed(3)
        x = torch.randn(4, 4).requires_grad_()
        with torch.autocast("cpu", **around) if around else contextlib.nullcontext():
            try:
                result = f(x)
            except (ValueError, IndexError) as error:
                result = type(error)
            state, seen = [torchs_state()], [(x @ w).detach()]
            if isinstance(result, torch.Tensor):
                result.float().sum().backward()
                seen += [result.detach(), x.grad]
                state.append(torchs_state())
                result = result.dtype
            with torch.no_grad():
                w.add_(1)
            seen.append(x @ w)
            with torch.no_grad():
                w.sub_(1)
        state.append(torchs_state())
        return result, state, seen

    compiled = fresh.compile(f)
    for _ in range(3):
        expected, got = once(f), once(compiled)
        assert got[:2] == expected[:2]
        assert torchs_state()[0] == 0
        for mine, theirs in zip(got[2], expected[2], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=0.2)
    assert compiled.cache_info()["segments"] >= (f.__name__ not in ("error", "refused"))


# The framework draws a line between its lists and what it decides inside a kernel; results then differ in digits only.
LOOSE = dict(rtol=6e-2, atol=6e-2, equal_nan=True)
UNSTABLE = re.compile(r"linalg|svd|eig|qr|lu|cholesky|inverse|lstsq|pinv|solve|det|ormqr|geqrf|orgqr|renorm|std|cov|corrcoef|argsort|topk|sort|median|mode|unique|"
                      r"histc|histogram|bucketize|searchsorted|floor|ceil|round|trunc|frac|remainder|fmod|quantize|fake|nextafter|div")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("info", [*operators()])
def test_operator(fresh, info):
    for dtype in (torch.float32, torch.bfloat16):
        if dtype not in info.supported_dtypes("cpu"):
            continue
        for number, sample in enumerate(info.sample_inputs("cpu", dtype)):
            if number == 2:
                break

            def call(*args, **kwargs):
                return info.op(*args, **kwargs)

            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                expected, refused = run(call, sample)
                got, error = run(fresh.compile(call), sample)
            where = f"{info.name} {dtype} sample {number}: {sample}"
            assert type(error) is type(refused), f"{where}: {error!r} instead of {refused!r}"
            assert facts(got) == facts(expected), where
            if UNSTABLE.search(info.name):
                continue
            for mine, theirs in zip(tensors(got), tensors(expected)):
                torch.testing.assert_close(mine, theirs, **LOOSE, msg=lambda m, where=where: f"{where}: {m}")


def test_lists_are_torchs():
    """Every operator for which torch registers a cast has one in the effects table; which one is not compared."""
    internal = {"_lu_with_info", "_grid_sampler_2d_cpu_fallback", "multilabel_margin_loss_forward", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell",
                "cudnn_convolution", "cudnn_convolution_transpose", "_cudnn_rnn"}  # fmt: skip
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        for key in ("AutocastCPU", "AutocastCUDA"):
            try:
                listed = torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
            except RuntimeError:
                continue
            rules = tensor_testing.effects("torch.ops.aten." + schema.name[6:])
            assert not listed or "cpu=" in rules or "cuda=" in rules or schema.name[6:] in internal, f"{name} {key}"




def test_what_reads_a_kept_cast_first_does_not_decide_about_gradients(fresh):
    """A leaf's cast leads gradients to it, also where it was made for what takes none."""
    w, x = torch.nn.Parameter(torch.eye(3) * 1.001), torch.ones(3, 3)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                a = x @ w
                w.mul_(2)
            b = x @ w
        return a, b

    compiled, seen = fresh.compile(f), []
    for g in (f, compiled):
        for _ in range(3):
            with torch.no_grad():
                w.copy_(torch.eye(3) * 1.001)
            a, b = g(x)
            assert not a.requires_grad and b.requires_grad
            seen.append((a.float(), b.float(), torch.autograd.grad(b.float().sum(), w)[0]))
    for other in seen[1:]:
        for got, expected in zip(other, seen[0]):
            torch.testing.assert_close(got, expected)
    assert compiled.cache_info()["breaks"] == 0


# Functions of (wrap): what a program shows that calls wrap(f) in regions that it enters itself. w: what is written there.
def written_between(wrap, w, x):
    f = wrap(lambda x: x @ w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield f(x)
        with torch.no_grad():
            w.mul_(2)
        yield f(x)
        yield x @ w  # as written: what it has cast is what f has
        w.data = torch.full_like(w, 0.1)
        yield f(x)
    yield f(x)


def first_cast_as_written(wrap, w, x):
    f = wrap(lambda x: x @ w + 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield x @ w
        with torch.no_grad():
            w.mul_(2)
        y = f(x)
    yield y
    yield torch.autograd.grad(y.float().sum(), w)[0]


def written_inside(wrap, w, x):
    def g(x):
        a = x @ w
        with torch.no_grad():
            w.mul_(0.9)
        return a, x @ w

    f = wrap(g)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield from f(x)
        yield from f(x)


def written_first(wrap, w, x):
    def g(x):
        with torch.no_grad():
            w.mul_(0.9)
        return x @ w

    f = wrap(g)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield f(x)
        yield f(x)


def a_region_inside(wrap, w, x):
    def g(x):
        with torch.autocast("cpu", dtype=torch.float16):
            return x @ w

    f = wrap(g)
    yield f(x)
    for around in (dict(dtype=torch.bfloat16), dict(enabled=False)):
        with torch.autocast("cpu", **around):
            yield f(x)
            with torch.no_grad():
                w.mul_(2)
            yield f(x)
    yield f(x)


def another_type_inside(wrap, w, x):
    f = wrap(lambda x: x @ w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield f(x)
        with torch.autocast("cpu", dtype=torch.float16):
            try:
                yield f(x)
            except RuntimeError as error:
                yield torch.tensor(len(str(error)))
        yield f(x)


def without_gradients(wrap, w, x):
    f = wrap(lambda x: F.linear(x, w))
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            yield f(x)
            with torch.no_grad():
                w.add_(0.1)
            yield f(x)


def a_loop_inside_of_one(wrap, w, x):
    f, optimizer = wrap(lambda x: F.linear(x, w).tanh()), torch.optim.SGD([w], lr=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            optimizer.zero_grad()
            loss = f(x).float().square().mean()
            loss.backward()
            optimizer.step()
            yield loss
            yield w.grad.clone()
    yield f(x)


def written_through_another(wrap, w, x):
    def run(w, v, x):
        v.add_(1)
        return F.linear(x, w)

    f = wrap(run)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield f(w, w.detach(), x)


def views_of_it(wrap, w, x):  # which no cache keeps
    f = wrap(lambda x: torch.einsum("ij,kj->ik", x, w) + F.linear(x, w))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield f(x)
        with torch.no_grad():
            w.add_(1)
        yield f(x)


REGIONS = [views_of_it, written_through_another, written_between, first_cast_as_written, written_inside, written_first, a_region_inside, another_type_inside, without_gradients, a_loop_inside_of_one]


@pytest.mark.parametrize("leaf", [torch.nn.Parameter, torch.Tensor.requires_grad_], ids=["parameter", "tensor"])
@pytest.mark.parametrize("program", REGIONS)
def test_casts_of_a_region_entered_outside_are_torchs(fresh, program, leaf):
    """A leaf is read as it was when the region cast it first, whoever did: torch's cache of casts is asked before each run."""
    made = []

    def compiled(f):
        made.append(fresh.compile(f))
        return made[-1]

    def shown(wrap):
        w = leaf(torch.randn(8, 8, generator=torch.Generator().manual_seed(1)))
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
        return [(t.detach().clone(), t.requires_grad) for _ in range(3) for t in program(wrap, w, x)]

    expected, got = shown(lambda f: f), shown(compiled)
    assert [(t.dtype, grad) for t, grad in got] == [(t.dtype, grad) for t, grad in expected]
    for (mine, _), (theirs, _) in zip(got, expected):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
    for f in made:
        info = f.cache_info()
        assert info["segments"] and bool(info["breaks"]) == (program in (written_first, written_through_another, another_type_inside))
