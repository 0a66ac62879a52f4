"""What torch's higher-order operators mean, as functions that are captured (src/capture/higher_order.cc)."""

import torch
from torch._higher_order_ops.flex_attention import math_attention
from torch.utils._pytree import tree_flatten, tree_unflatten


def cond(pred, true_fn, false_fn, operands):
    return true_fn(*operands) if pred else false_fn(*operands)


def while_loop(cond_fn, body_fn, carried_inputs, additional_inputs):
    first = carried = tuple(carried_inputs)
    while cond_fn(*carried, *additional_inputs):
        carried = tuple(body_fn(*carried, *additional_inputs))
    if carried is first:
        carried = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in carried)
    return carried


def scan(combine_fn, init, xs, additional_inputs):
    carry, rows, form = list(init), [], None
    for i in range(xs[0].shape[0]):
        made, form = tree_flatten(combine_fn(*carry, *[x.select(0, i) for x in xs], *additional_inputs))
        carry = made[: len(init)]
        rows.append(made[len(init) :])
    return tree_unflatten([*carry, *[None if parts[0] is None else torch.stack(parts) for parts in zip(*rows)]], form)


def flex_attention(query, key, value, score_mod, block_mask, scale, kernel_options, score_mod_other_buffers=(), mask_mod_other_buffers=()):
    others = score_mod_other_buffers, mask_mod_other_buffers
    out, *sums = math_attention(query, key, value, score_mod, block_mask, scale, kernel_options, *others)
    strides, last = query.stride(), query.ndim - 1  # the result lies as the queries do, elements of a row side by side
    order = [last, *sorted([d for d in range(last)], key=lambda d: strides[d])][::-1]
    back = sorted(range(query.ndim), key=lambda d: order[d])
    return (out.permute(order).contiguous().permute(back), *sums)


_OURS = {"cond": cond, "while_loop": while_loop, "scan": scan, "flex_attention": flex_attention}
_AS_TORCH = {"associative_scan", "invoke_subgraph", "map_impl"}  # by its kernel for any device


def meaning(operator):
    """None: it is left to torch."""
    name = operator.name()
    if name in _AS_TORCH:
        return operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    return _OURS.get(name)
