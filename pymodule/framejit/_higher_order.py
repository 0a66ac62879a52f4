"""What torch's higher-order operators mean, as functions that are captured (src/capture/higher_order.cc)."""

import sys

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


def linearize(func, *primals):
    """torch.func.linearize of tensors, which calls `func` twice: for the results, and for what is linear in the tangents. The derivative
    along the tangents is that of the gradients, which are linear in what they are given."""
    output = func(*primals)
    flat, spec = tree_flatten(output)
    if not all(isinstance(o, torch.Tensor) and o.is_floating_point() and not o.requires_grad for o in flat):
        sys._current_frames()  # ends the capture: torch's graph has gradients of its own, and takes other results
    made, pull = torch.func.vjp(lambda *at: tuple(tree_flatten(func(*at))[0]), *primals)

    def jvp_fn(*tangents):
        if len(tangents) != len(primals) or not all(isinstance(t, torch.Tensor) for t in tangents):
            given, form = tree_flatten(tangents)[1], tree_flatten(primals)[1]
            raise RuntimeError(f"Expected the tangents {given} to have the same argspec as the primals {form}")
        for i, (t, p) in enumerate(zip(tangents, primals)):
            for what in ("shape", "device", "dtype"):
                if getattr(t, what) != getattr(p, what):
                    raise RuntimeError(
                        f"tangent:{i} with {what} {getattr(t, what)} in flattened pytree doesn't match the {what} {getattr(p, what)} "
                        "of the corresponding primal."
                    )
        push = torch.func.vjp(lambda *u: pull(u), *[torch.zeros_like(m) for m in made])[1]
        return tree_unflatten(list(push(tangents)), spec)

    return output, jvp_fn


_OURS = {"cond": cond, "while_loop": while_loop, "scan": scan, "flex_attention": flex_attention}
_AS_TORCH = {"associative_scan", "invoke_subgraph", "map_impl"}  # by its kernel for any device


def meaning(operator):
    """None: it is left to torch."""
    name = operator.name()
    if name in _AS_TORCH:
        return operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    return _OURS.get(name)
