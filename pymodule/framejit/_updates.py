"""The parameter updates of torch's optimizers under a compiled step: where an optimizer would go over its parameters in many
small calls, the framework's own fused kernel does the same update in one pass over each tensor."""

import functools
import sys


def _dense(t):
    step = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _plain(lists, needed):
    """One float dtype on one device, and each parameter with its gradient and state in one dense layout."""
    import torch

    floats = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    columns = [tensors for tensors, need in zip(lists, needed) if need or tensors]
    device = columns[0][0].device
    if device.type not in ("cpu", "cuda"):
        return False
    for row in zip(*columns, strict=True):
        first = row[0]
        if first.device != device or first.dtype not in floats or first.layout is not torch.strided:
            return False
        strides = first.stride()
        for t in row:
            if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.is_inference() or t.dtype != first.dtype or t.device != first.device:
                return False
            if t.stride() != strides or t.shape != first.shape:
                return False
        if not first.is_contiguous() and not _dense(first):
            return False
    return True


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
    if not all(type(s) is torch.Tensor and s.dtype == torch.float32 and s.device.type == "cpu" for s in state_steps):
        return NotImplemented
    if not _plain((params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs), (True, True, True, True, how["amsgrad"])):
        return NotImplemented
    if params[0].device.type == "cuda":
        _adam_on_cuda("decoupled_weight_decay" in how and how["decoupled_weight_decay"], params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, how)
    else:
        fused(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, None, None, **how)
    _written(params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)


def _adam_on_cuda(decoupled, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, how):
    """The kernel wants the numbers of steps on the device; the optimizer keeps them on the CPU. It only reads them: parameters with
    as many steps share one."""
    import torch

    torch._foreach_add_(state_steps, 1)
    update = torch._fused_adamw_ if decoupled else torch._fused_adam_
    steps = [s.item() for s in state_steps]
    for value in set(steps):
        of = [tuple(tensors) if len(set(steps)) == 1 or not tensors else [t for t, s in zip(tensors, steps, strict=True) if s == value]
              for tensors in (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)]  # fmt: skip
        step = torch.full((), value, dtype=torch.float32, device=params[0].device)
        names = ("amsgrad", "lr", "beta1", "beta2", "weight_decay", "eps", "maximize")
        update(*of, [step] * len(of[0]), **{name: how[name] for name in names})


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


_ROWS = {  # function: (what does the same in one pass, its conditions)
    "torch.optim.adam": {"_single_tensor_adam": ("_fused_adam", _adam), "_multi_tensor_adam": ("_fused_adam", _adam)},
    "torch.optim.sgd": {"_single_tensor_sgd": ("_fused_sgd", _sgd), "_multi_tensor_sgd": ("_fused_sgd", _sgd)},
}


def instead_of(code):
    """What to call instead of the function with this code; None: nothing. It may answer NotImplemented."""
    for name, rows in _ROWS.items():
        module = sys.modules.get(name)
        for function, (fused, conditions) in rows.items():
            if module and getattr(getattr(module, function, None), "__code__", None) is code and hasattr(module, fused):
                return functools.partial(conditions, getattr(module, fused))
    return None
