"""When two results count as the same: `framejit._numerics.check` says how, which the option check_numerics uses too. Indices that
come from floats have `check_index`."""

from framejit._numerics import check


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
