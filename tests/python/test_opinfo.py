"""torch's own operator database: sample inputs of every operator, as written and compiled. Values to the tolerance torch
uses for its own references, or as near to float64 as eager's; dtype, shape and strides exactly; a refused input must be refused alike.
FRAMEJIT_FUZZ_DEVICE=cuda asks for it on a GPU."""

import os
import pathlib
import warnings

import pytest

import oracle
from fuzzing import DEVICE

torch = pytest.importorskip("torch")
database = pytest.importorskip("torch.testing._internal.common_methods_invocations")

SAMPLES = 4
DTYPES = [torch.float32, torch.int64, torch.bool]
# Drawn numbers, uninitialised memory, results that are no function of the operands, or another process's business.
NOT_COMPARABLE = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "rand_like", "randn", "randn_like", "randint",
                  "randint_like", "normal", "multinomial", "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "uniform", "randperm",
                  "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.alpha_dropout",
                  "nn.functional.feature_alpha_dropout", "nn.functional.rrelu", "nn.functional.fractional_max_pool2d",
                  "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention",
                  "pca_lowrank", "svd_lowrank", "torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward"}


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


def facts(value):
    return [(type(t).__name__, t.dtype, tuple(t.shape), t.stride() if t.layout is torch.strided else None) for t in tensors(value)]


def copy(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.layout is not torch.strided else torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value) if value.numel() == 0 or all(
            s > 0 for s in value.stride()) else value.detach()
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(copy, value))
    return value


def run(fn, sample):
    try:
        return fn(copy(sample.input), *copy(sample.args), **{k: copy(v) for k, v in sample.kwargs.items()}), None
    except Exception as error:  # compared
        return None, error


def operators():
    for info in database.op_db:
        if info.name in NOT_COMPARABLE or info.name.startswith(("fft.", "sparse.", "signal.", "to_sparse", "torch.ops.")) or "random" in info.name:
            continue
        yield pytest.param(info, id=info.name + ("." + info.variant_test_name if info.variant_test_name else ""))


@pytest.mark.slow
@pytest.mark.parametrize("info", [*operators()])
def test_operator(fresh, info):
    program = info.op
    for dtype in DTYPES:
        if dtype not in info.supported_dtypes(DEVICE):
            continue
        for number, sample in enumerate(info.sample_inputs(DEVICE, dtype)):
            if number == SAMPLES:
                break

            def call(*args, **kwargs):
                return program(*args, **kwargs)

            with torch.no_grad():
                expected, refused = run(call, sample)
                got, error = run(fresh.compile(call), sample)
            where = f"{info.name} {dtype} sample {number}: {sample}"
            assert type(error) is type(refused), f"{where}: {error!r} instead of {refused!r}"
            assert facts(got) == facts(expected), where
            for mine, theirs in zip(tensors(got), tensors(expected)):
                torch.testing.assert_close(mine, theirs, equal_nan=True, msg=lambda m, where=where: f"{where}: {m}")


CLOSE = {torch.complex32: (2e-3, 1e-3), torch.float16: (2e-3, 1e-3), torch.bfloat16: (1.6e-2, 1e-2), torch.float32: (1.3e-5, 1e-5), torch.float64: (1e-9, 1e-9), torch.complex64: (1.3e-5, 1e-5), torch.complex128: (1e-9, 1e-9)}
def as_good(call, sample, got, expected):
    """Are floats that differ from eager's as near to what float64 gives? Where eager alone overflows on its way (a vector's
    fmod by a tiny number, but not the single one's), float64 stands for it."""
    wide = database.SampleInput(oracle.in_float64(sample.input), args=oracle.in_float64(sample.args), kwargs=oracle.in_float64(sample.kwargs))
    exact, refused = run(call, wide)
    if refused or len(tensors(exact)) != len(tensors(expected)):
        return False
    for mine, theirs, truth in zip(tensors(got), tensors(expected), tensors(exact)):
        rounded = truth.to(theirs.dtype)
        try:
            oracle.check(mine, torch.where(theirs.isfinite(), theirs, rounded), truth)
        except AssertionError:
            return False
    return True


def told(fn, sample):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result, error = run(fn, sample)
    return result, error, [(w.category, str(w.message), w.filename, w.lineno) for w in caught]


def compare(fresh, info, dtypes, most=None):
    """How many samples there were; each of them must have run compiled."""
    count = 0
    for dtype in dtypes:
        if dtype not in info.supported_dtypes(DEVICE):
            continue
        for number, sample in enumerate(info.sample_inputs(DEVICE, dtype)):
            if number == most:
                break

            def call(*args, **kwargs):
                return info.op(*args, **kwargs)

            fresh.reset()
            compiled = fresh.compile(call)
            with torch.no_grad():
                run(call, sample)  # what torch says once is said
                expected, refused, warned = told(call, sample)
                got, error, warns = told(compiled, sample)
            where = f"{info.name} {dtype} sample {number}: {sample}"
            assert type(error) is type(refused), f"{where}: {error!r} instead of {refused!r}"
            assert facts(got) == facts(expected), where
            assert warns == warned, where
            assert compiled.cache_info()["segments"], where
            count += 1
            try:
                for mine, theirs in zip(tensors(got), tensors(expected)):
                    rtol, atol = CLOSE.get(theirs.dtype, (0, 0))
                    torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, where=where: f"{where}: {m}")
            except AssertionError:
                if not as_good(call, sample, got, expected):
                    raise
    return count


def test_the_comparison_knows_whose_error_it_is():
    """Vectors of eager's fmod overflow where its single numbers and ours do not; a wrong number of ours is still one."""
    sample = database.SampleInput(torch.full((250,), -8.4375, dtype=torch.bfloat16), args=(torch.full((250,), 1.1755e-38, dtype=torch.bfloat16),))
    exact = torch.fmod(torch.tensor(-8.4375, dtype=torch.bfloat16), torch.tensor(1.1755e-38, dtype=torch.bfloat16)).expand(250)
    overflowed = exact.clone()
    overflowed[:224] = float("nan")
    assert as_good(torch.fmod, sample, exact, overflowed)
    assert not as_good(torch.fmod, sample, overflowed, exact) and not as_good(torch.fmod, sample, exact + 1, overflowed)


@pytest.mark.slow
@pytest.mark.parametrize("info", [*operators()])
def test_every_sample(fresh, info):
    assert compare(fresh, info, sorted(info.supported_dtypes(DEVICE), key=str)) or not info.supported_dtypes(DEVICE)


SOME = ("add", "sub", "div", "floor_divide", "xlogy", "var", "std", "sum", "softmax", "nn.functional.gelu", "nn.functional.layer_norm", "where", "cumsum",
        "matmul", "index_select", "nn.functional.rms_norm")  # fmt: skip


def quick(*more):
    """All operators; `slow` but for some, and these."""
    for p in operators():
        yield pytest.param(*p.values, id=p.id, marks=[] if p.values[0].name in (*SOME, *more) else pytest.mark.slow)


@pytest.mark.parametrize("info", [p for p in operators() if p.values[0].name in SOME])
def test_some_samples(fresh, info):
    assert compare(fresh, info, (torch.float32, torch.bfloat16, torch.int64), most=2) >= 4


def leaves(value):
    """Its tensors that gradients are asked for."""
    if isinstance(value, dict):
        value = list(value.values())
    return [t for t in tensors(value) if t.requires_grad]


def tracked(value):
    if isinstance(value, torch.Tensor):
        return copy(value).requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(tracked, value))
    return value


def gradients(fn, sample):
    """Results that carry gradients, the gradients of all leaves for fixed cotangents; or the error."""
    args, kwargs = [tracked(sample.input), *tracked(sample.args)], {k: tracked(v) for k, v in sample.kwargs.items()}
    try:
        outs = [t for t in tensors(fn(*args, **kwargs)) if t.requires_grad and t.is_floating_point() and t.layout is torch.strided]
        wanted = leaves(args) + leaves(kwargs)
        if not outs or not wanted:
            return [o.detach() for o in outs], None
        cotangents = [torch.linspace(-1, 1, o.numel(), dtype=o.dtype, device=o.device).reshape(o.shape) for o in outs]
        return [*(o.detach() for o in outs), *torch.autograd.grad(outs, wanted, cotangents, allow_unused=True)], None
    except Exception as error:  # compared
        return None, error


# By operator and dtype: of how many samples gradients were compiled as one graph, at least. `FRAMEJIT_BLESS=1` adds to it
# what ran; remove it before. Another version of torch has other samples and compositions: the counts hold for the one of
# the first line.
COUNTS = pathlib.Path(__file__).with_name("op_gradients.txt")
VERSION = "torch " + torch.__version__.split("+")[0]
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-4}


def whole(fresh, compiled):
    info = fresh.cache_info(compiled)
    return bool(info["segments"]) and not info["breaks"] and not info["notes"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("info", [p for p in operators() if p.values[0].supports_autograd])
def test_gradient(fresh, info, dtype, request):
    if dtype not in info.supported_dtypes(DEVICE):
        pytest.skip("not of this dtype")
    ran = 0
    for number, sample in enumerate(info.sample_inputs(DEVICE, dtype, requires_grad=True)):

        def call(*args, **kwargs):
            return info.op(*args, **kwargs)

        if number % 24 == 0:
            fresh.reset()  # no more versions of one function
        compiled = fresh.compile(call)
        expected, refused = gradients(call, sample)
        got, error = gradients(compiled, sample)
        ran += whole(fresh, compiled)
        where = f"{info.name} {dtype} sample {number}: {sample}"
        assert type(error) is type(refused), f"{where}: {error!r} instead of {refused!r}"
        if refused:
            continue
        assert [g is None for g in got] == [g is None for g in expected], where
        bound = TOLERANCE[dtype]
        for mine, theirs in zip(got, expected):
            if theirs is not None:
                torch.testing.assert_close(mine, theirs, rtol=bound, atol=bound, equal_nan=True, msg=lambda m, where=where: f"{where}: {m}")
    name = request.node.callspec.id
    if os.environ.get("FRAMEJIT_BLESS"):
        with COUNTS.open("a") as file:
            file.write(("" if file.tell() else VERSION + "\n") + f"{name} {ran}\n")
        return
    version, *lines = COUNTS.read_text().splitlines()
    counts = dict(line.rsplit(" ", 1) for line in lines)
    if version == VERSION and DEVICE == "cpu":
        assert ran >= int(counts.get(name, 0)), f"{ran} samples of {name} in one graph, it were {counts[name]}"


def second_gradients(fn, sample):
    """Of what the first gradients make, by all leaves and by the results themselves, of which derivatives are made (1 - y * y, say)."""
    args, kwargs = [tracked(sample.input), *tracked(sample.args)], {k: tracked(v) for k, v in sample.kwargs.items()}
    outs = [t for t in tensors(fn(*args, **kwargs)) if t.requires_grad and t.is_floating_point() and t.layout is torch.strided]
    by = leaves(args) + leaves(kwargs)
    if not outs or not by:
        return []
    cotangents = [torch.linspace(-1, 1, o.numel(), dtype=o.dtype, device=o.device).reshape(o.shape) for o in outs]
    first = [g for g in torch.autograd.grad(outs, by, cotangents, create_graph=True, allow_unused=True) if g is not None and g.requires_grad]
    return torch.autograd.grad(sum((g * g.detach()).sum() for g in first), by + outs, allow_unused=True) if first else []


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("info", [p for p in quick("tanh", "linalg.qr", "logsumexp") if p.values[0].supports_gradgrad and p.values[0].supports_autograd])
def test_second_gradient(fresh, info):
    if torch.float64 not in info.supported_dtypes(DEVICE):
        pytest.skip("not of this dtype")
    for sample, _ in zip(info.sample_inputs(DEVICE, torch.float64, requires_grad=True), range(3)):

        def call(*args, **kwargs):
            return info.op(*args, **kwargs)

        try:
            expected = second_gradients(call, sample)
        except RuntimeError:  # the database says which operators may be differentiated twice, not which of their results
            continue
        fresh.reset()
        compiled = fresh.compile(call)
        got = second_gradients(compiled, sample)
        assert fresh.cache_info(compiled)["segments"]
        for mine, theirs in zip(got, expected, strict=True):
            zero = torch.zeros(()) if mine is None or theirs is None else None  # a formula of torch's may say either
            mine, theirs = (zero if g is None else g for g in (mine, theirs))
            torch.testing.assert_close(*torch.broadcast_tensors(mine, theirs), rtol=1e-6, atol=1e-8, check_dtype=False, equal_nan=True)


def _detached(call, x):
    return call(x.detach())


def _of_data(call, x):
    return call(x.data)


def _without(call, x):
    with torch.no_grad():
        y = call(x)
    return y


def _with_again(call, x):
    with torch.no_grad(), torch.enable_grad():
        y = call(x)
    return y


def _in_inference(call, x):
    with torch.inference_mode():
        y = call(x)
    return y


def _stopped(call, x):
    return [t.detach() if isinstance(t, torch.Tensor) else t for t in flat(call(x))], call(x)


def _of_a_copy(call, x):
    return call(x.clone()), call(x.detach().clone())


def flat(value):
    return [t for v in value for t in flat(v)] if isinstance(value, (list, tuple)) else [value]


def plain(value):
    return value.detach() if isinstance(value, torch.Tensor) else value


WAYS = {f.__name__[1:]: f for f in (_detached, _of_data, _without, _with_again, _in_inference, _stopped, _of_a_copy)}


def recorded(value):
    return [(t.requires_grad, t.is_leaf, t.grad_fn is None, t.is_inference(), t.dtype, tuple(t.shape)) for t in flat(value) if isinstance(t, torch.Tensor)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("info", [p for p in quick("sort", "linalg.qr", "dist") if p.values[0].supports_autograd])
def test_who_carries_gradients(fresh, info, way):
    """What the program says of gradients around an operator is what its results say, whoever computes it."""
    if way == "in_inference" and info.name.startswith("unsafe_"):
        pytest.skip("parts that torch does not know as views are views of ours there, and asking them for is_leaf raises")
    if torch.float64 not in info.supported_dtypes(DEVICE):
        pytest.skip("not of this dtype")
    for sample, _ in zip(info.sample_inputs(DEVICE, torch.float64, requires_grad=True), range(2)):
        if not isinstance(sample.input, torch.Tensor) or sample.input.layout is not torch.strided:
            continue
        # The other operands carry none, or what is done to the first would not be seen.
        args, kwargs = [plain(v) for v in sample.args], {k: plain(v) for k, v in sample.kwargs.items()}
        if any(t.requires_grad for t in tensors(args) + tensors(list(kwargs.values()))):
            continue

        def f(x, way=WAYS[way], args=args, kwargs=kwargs):
            return way(lambda v: info.op(v, *args, **kwargs), x)

        fresh.reset()
        x = sample.input.detach().requires_grad_()
        expected = f(x)
        compiled = fresh.compile(f)
        for _ in range(2):
            got = compiled(x)
            assert recorded(got) == recorded(expected), sample
            for mine, theirs in zip(flat(got), flat(expected), strict=True):
                if isinstance(mine, torch.Tensor):
                    torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-7, equal_nan=True)


def _result_written(call, x):
    x = x.clone()
    y = call(x)
    for t in flat(y)[:2]:
        t.mul_(2)
    return x, y


def _operand_written(call, x):
    x = x.clone()
    y = call(x)
    x.mul_(2)
    return x, y


def _outside_written(call, x):
    y = call(x)
    x.mul_(2)
    return y


def _called_again(call, x):
    y = call(x)
    z = call(x)
    return y, z, y is z, [a is b for a, b in zip(flat(y), flat(z))], [t is x for t in flat(y)]


WRITES = {f.__name__[1:]: f for f in (_result_written, _operand_written, _outside_written, _called_again)}


def shared(value, x):
    """Of each result: may it be seen in the operand, and in the first result?"""
    made = [t for t in flat(value) if isinstance(t, torch.Tensor) and t.layout is torch.strided]
    of = [t.untyped_storage().data_ptr() for t in made]
    return [(p == x.untyped_storage().data_ptr(), p == of[0], t.storage_offset(), t.stride()) for p, t in zip(of, made) if t.numel()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("info", [*quick("sort", "linalg.qr", "dist")])
def test_who_shares_memory(fresh, info, way):
    """What is written behind an operator is seen where eager shows it: in its result, its operand, and nowhere else."""
    for dtype in (torch.float64, torch.int64):
        if dtype not in info.supported_dtypes(DEVICE):
            continue
        for sample, _ in zip(info.sample_inputs(DEVICE, dtype), range(3)):
            if not isinstance(sample.input, torch.Tensor) or sample.input.layout is not torch.strided:
                continue

            def f(x, args, kwargs, way=WRITES[way]):
                return way(lambda v: info.op(v, *args, **kwargs), x)

            fresh.reset()
            compiled, told = fresh.compile(f), []
            for g in (f, compiled, compiled):
                x = copy(sample.input)
                try:
                    y = g(x, copy(sample.args), {k: copy(v) for k, v in sample.kwargs.items()})
                    told.append((shared(y, x), [t.clone() if isinstance(t, torch.Tensor) else t for t in flat(y)], x.clone(), ""))
                except (RuntimeError, TypeError, NotImplementedError, AttributeError, AssertionError) as error:
                    told.append(([], [], x.clone(), type(error).__name__))
            for got in told[1:]:
                assert got[0] == told[0][0] and got[3] == told[0][3], (sample, got[3], told[0][3], got[0], told[0][0])
                for mine, theirs in zip(got[1], told[0][1], strict=True):
                    if isinstance(mine, torch.Tensor):
                        torch.testing.assert_close(mine, theirs, equal_nan=True)
                    else:
                        assert mine == theirs, sample
                torch.testing.assert_close(got[2], told[0][2], equal_nan=True)
