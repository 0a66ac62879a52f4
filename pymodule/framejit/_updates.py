"""The parameter updates of torch's optimizers under a compiled step: where an optimizer would go over its parameters in many
small calls, the framework's own fused kernel does the same update in one pass over each tensor."""

import functools
import sys
from collections.abc import Callable
from typing import NamedTuple

from . import _framejit


def _plain(lists, needed):
    """One float dtype on one device, and each parameter with its gradient and state in one dense layout."""
    return bool(lists[0]) and _framejit.same_layout(tuple(tensors for tensors, need in zip(lists, needed) if need or tensors))


def _written(*lists):
    """Fused kernels do not count their writes; autograd's checks and our guards read the counters."""
    import torch

    torch.autograd.graph.increment_version([t for tensors in lists for t in tensors if t is not None])


def _numbers(*values):
    return all(type(v) in (float, int) for v in values)


def _adam(fused, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, grad_scale, found_inf, **how):
    import torch

    if grad_scale is not None or found_inf is not None or how["capturable"] or how["differentiable"] or how["has_complex"]:
        return NotImplemented
    if not _numbers(how["lr"], how["beta1"], how["beta2"], how["weight_decay"], how["eps"]) or torch.is_grad_enabled():
        return NotImplemented
    if not _plain((params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs), (True, True, True, True, how["amsgrad"])):
        return NotImplemented
    if not _framejit.same_layout((state_steps,)) or state_steps[0].dtype != torch.float32 or state_steps[0].device.type != "cpu":
        return NotImplemented
    if params[0].device.type == "cuda":
        _adam_on_cuda(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, **how)
    else:
        fused(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, None, None, **how)
    _written(params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)


def _adam_on_cuda(*lists, decoupled_weight_decay=False, capturable, differentiable, has_complex, **how):
    """The kernel reads the numbers of steps on the device, the optimizer keeps them on the CPU. Parameters with as many steps share one."""
    import torch

    *lists, state_steps = lists
    torch._foreach_add_(state_steps, 1)
    update = torch._fused_adamw_ if decoupled_weight_decay else torch._fused_adam_
    numbers = [s.item() for s in state_steps]
    for number in set(numbers):
        some = lists if len(set(numbers)) == 1 else [[t for t, n in zip(of, numbers) if n == number] for of in lists]
        step = torch.full((), number, dtype=torch.float32, device=lists[0][0].device)
        update(*some, [step] * len(some[0]), **how)


def _sgd(fused, params, grads, momentum_buffer_list, grad_scale, found_inf, **how):
    import torch

    if grad_scale is not None or found_inf is not None or how["has_sparse_grad"] or torch.is_grad_enabled():
        return NotImplemented
    if not _numbers(how["lr"], how["momentum"], how["dampening"], how["weight_decay"]):
        return NotImplemented
    first = [b is None for b in momentum_buffer_list]
    if how["momentum"] and any(first) and not all(first):
        return NotImplemented
    buffers = momentum_buffer_list if how["momentum"] and not any(first) else []
    if not _plain((params, grads, buffers), (True, True, False)):
        return NotImplemented
    fused(params, grads, momentum_buffer_list, None, None, **how)
    _written(params, buffers)


class _Update(NamedTuple):
    kernel: str  # a function of the same module that does the same in one pass
    conditions: Callable
    ends_graph: bool  # the kernel is faster than a graph of the many small calls: what is captured ends before the update


_ROWS = {
    "torch.optim.adam": {
        "_single_tensor_adam": _Update("_fused_adam", _adam, ends_graph=True),
        "_multi_tensor_adam": _Update("_fused_adam", _adam, ends_graph=True),
    },
    "torch.optim.sgd": {
        "_single_tensor_sgd": _Update("_fused_sgd", _sgd, ends_graph=False),
        "_multi_tensor_sgd": _Update("_fused_sgd", _sgd, ends_graph=False),
    },
}


def _update_of(code):
    """(module, row) of the function with this code, or None."""
    for name, rows in _ROWS.items():
        module = sys.modules.get(name)
        for function, row in rows.items():
            if module and getattr(getattr(module, function, None), "__code__", None) is code and hasattr(module, row.kernel):
                return module, row
    return None


def instead_of(code):
    """What to call instead of the function with this code; None: nothing. It may answer NotImplemented."""
    if found := _update_of(code):
        module, row = found
        return functools.partial(row.conditions, getattr(module, row.kernel))
    return None


def ends_graph(code):
    """Is the function with this code not to be captured where a graph need not be whole?"""
    found = _update_of(code)
    return bool(found and found[1].ends_graph)
