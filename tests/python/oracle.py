"""When two results count as the same (design section 14).

Integers, booleans, strings, shapes, strides, dtypes and types: exactly. Floats: against a reference computed in float64, the
RMS error and the largest error may be at most twice eager's own, plus one eps of the dtype times the largest reference
value. Where it is known how far eager's own result moves when its operands move by an eps (sums that cancel), that counts as
its own error, too. Not-a-numbers and infinities must stand at the same places. Indices that come from floats have
`check_index`.
"""

import math


def _as_float64(value):
    """(flat float64 or complex128 NumPy array, eps of the value's dtype or None for exact kinds)."""
    import numpy

    if type(value).__module__.startswith("torch") or hasattr(value, "detach"):
        import torch

        value = value.detach().resolve_conj().resolve_neg().cpu()
        eps = torch.finfo(value.dtype).eps if value.is_floating_point() or value.is_complex() else None
        wide = torch.complex128 if value.is_complex() else torch.float64 if eps else value.dtype
        if value.layout is not torch.strided:
            value = value.to_dense()
        return value.to(wide).contiguous().view(-1).numpy() if value.dtype != torch.bool else value.reshape(-1).numpy(), eps
    array = numpy.asarray(value)
    if array.dtype.kind in "fc":
        wide = numpy.complex128 if array.dtype.kind == "c" else numpy.longdouble if array.dtype.itemsize > 8 else numpy.float64
        return array.astype(wide).reshape(-1), float(numpy.finfo(array.dtype).eps)
    return array.reshape(-1), None


def _error(got, reference):
    import numpy

    difference = numpy.abs(got - reference)
    if difference.size == 0:
        return 0.0, 0.0
    with numpy.errstate(over="ignore"):
        return float(numpy.sqrt(numpy.mean(difference**2))), float(difference.max())


def check(got, eager, reference=None, what="result", noise=()):
    """Raises AssertionError unless `got` is as good as `eager`. reference: the same computed in float64; without it eager
    stands in, as if its own error were two eps. noise: pairs of eager's results for operands that differ by an eps, where it is
    known how sure eager itself can be. Returns (error of got, error of eager, bound), RMS, for tables."""
    import numpy

    mine, eps = _as_float64(got)
    theirs, eager_eps = _as_float64(eager)
    assert mine.shape == theirs.shape, f"{what}: {mine.shape} values, eager has {theirs.shape}"
    assert eps == eager_eps, f"{what}: another dtype than eager's"
    if eps is None:
        if not numpy.array_equal(mine, theirs):
            at = [i for i in range(len(mine)) if mine[i] != theirs[i]][0] if mine.dtype != object else "?"
            raise AssertionError(f"{what}: differs from eager at {at}: {mine[at] if at != '?' else mine} != {theirs[at] if at != '?' else theirs}")
        return 0.0, 0.0, 0.0
    finite = numpy.isfinite(theirs)
    assert numpy.array_equal(numpy.isnan(mine), numpy.isnan(theirs)), f"{what}: not-a-number at other places than eager"
    infinite = numpy.isinf(theirs)
    assert numpy.array_equal(mine[infinite], theirs[infinite]), f"{what}: infinities differ from eager"
    if not finite.any():
        return 0.0, 0.0, 0.0
    mine, theirs = mine[finite], theirs[finite]
    if reference is None:
        truth, slack = theirs, 4 * eps
    else:
        truth, truth_eps = _as_float64(reference)
        truth, slack = truth[finite], eps if truth_eps != eps else 8 * eps  # float64 has no better one than its own
    scale = float(numpy.abs(truth).max())
    got_rms, got_max = _error(mine, truth)
    eager_rms, eager_max = _error(theirs, truth)
    for one, other in noise:
        one, other = _as_float64(one)[0], _as_float64(other)[0]
        if one.shape == other.shape == finite.shape and numpy.isfinite(one[finite]).all() and numpy.isfinite(other[finite]).all():
            rms, largest = _error(one[finite], other[finite])
            eager_rms, eager_max = max(eager_rms, rms), max(eager_max, largest)
    for name, error, own in (("RMS", got_rms, eager_rms), ("largest", got_max, eager_max)):
        bound = 2 * own + slack * scale
        assert error <= bound or math.isclose(error, bound), (
            f"{what}: {name} error {error:.3g} is more than twice eager's ({own:.3g}) plus eps * {scale:.3g} = {bound:.3g}"
        )
    return got_rms, eager_rms, 2 * eager_rms + slack * scale


def with_gradients(f, tensors):
    """Results of f on leaves with the values of these tensors, then the gradients of their sum."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    results = f(*leaves)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    sum(r.sum() for r in results if r.requires_grad).backward()
    return [*results, *(t.grad for t in leaves)]


def gradients_agree(compiled, f, *tensors):
    """Results and gradients of both, as `check` compares them."""
    reference = with_gradients(f, in_float64(tensors))
    for n, (got, eager, exact) in enumerate(zip(with_gradients(compiled, tensors), with_gradients(f, tensors), reference)):
        assert (got.shape, got.stride(), got.dtype, got.requires_grad) == (eager.shape, eager.stride(), eager.dtype, eager.requires_grad)
        check(got, eager, exact, f"result or gradient {n}")


def check_index(got, eager, values, dim=-1):
    """Indices from floats (argmax, sort, top-k): another index is right if the value there is as good, within one eps."""
    import torch

    chosen, expected = (torch.take_along_dim(values, i if i.dim() == values.dim() else i.unsqueeze(dim), dim) for i in (got, eager))
    bound = torch.finfo(values.dtype).eps * values.abs().max()
    assert bool(((chosen - expected).abs() <= bound).all()), "an index points at another value than eager's"


def in_float64(value):
    """A copy of arguments with every floating tensor or array in float64 (complex: complex128); sharing is not kept."""
    import sys

    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.nn.Module):
        import copy

        return copy.deepcopy(value).double()
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().double() if value.is_floating_point() else value.detach().clone()
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value.astype(numpy.float64) if value.dtype.kind == "f" else value.copy()
    if isinstance(value, (list, tuple)):
        return type(value)(map(in_float64, value)) if not hasattr(value, "_fields") else type(value)(*map(in_float64, value))
    if isinstance(value, dict):
        return {k: in_float64(v) for k, v in value.items()}
    return value
