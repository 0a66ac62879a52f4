"""What torch does for nested tensors of the jagged layout by going through data, in operations whose sizes are known before (framejit._tape)."""

import functools
import math
import sys

import torch

aten = torch.ops.aten


def _steps(like, n):
    return like.new_ones((n,), dtype=torch.int64).cumsum(0) - 1


def _to_jagged(padded, offsets, total_L=None):
    """The rows of a batch of padded sequences, one behind the other."""
    if len(offsets) != 1 or total_L is None:
        return None
    row, most = _steps(offsets[0], total_L), padded.shape[1]
    sequence = torch.searchsorted(offsets[0], row, right=True) - 1
    at = row - offsets[0].index_select(0, sequence)
    rows = padded.flatten(0, 1).index_select(0, sequence * most + at.clamp(max=most - 1))
    return rows.masked_fill((at >= most).view(-1, *[1] * (padded.dim() - 2)), 0)


def _to_padded(values, offsets, max_lengths, padding_value=0.0):
    """The way back from there."""
    if len(offsets) != 1 or values.shape[0] == 0:
        return None
    begin, at = offsets[0][:-1], _steps(offsets[0], max_lengths[0])
    behind = at >= (offsets[0][1:] - begin)[:, None]
    rows = (begin[:, None] + at).clamp(max=values.shape[0] - 1).flatten()
    padded = values.index_select(0, rows).view(begin.shape[0], max_lengths[0], *values.shape[1:])
    return padded.masked_fill(behind.view(*behind.shape, *[1] * (values.dim() - 1)), padding_value)


MEANINGS = {aten._padded_dense_to_jagged_forward.default: _to_jagged, aten._jagged_to_padded_dense_forward.default: _to_padded}  # of operators; where one gives None, it is what it is


def _lies_in_rows(t):
    return t._lengths is None and t._ragged_idx == 2 and t.dim() == 4 and t._max_seqlen_tensor is not None


def _product(a, b):
    """Of batches with heads. (torch.matmul asks for sizes that are plain integers before torch 2.13.)"""
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])


def _attention(query, key, value, scale):
    """By torch's formula, on padded sequences. All three have sizes [sequences, heads, ragged, numbers]."""
    heads, most_keys = query.shape[1], key._max_seqlen_tensor.shape[0]

    def padded(t):
        values = t.transpose(1, 2).values()
        rows = values.reshape(values.shape[0], -1)
        dense = _Padded.apply(rows, t._offsets, t._max_seqlen_tensor.shape[0])
        return dense.unflatten(-1, (heads, values.shape[-1])).transpose(1, 2)

    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.shape[-1]))
    lengths = key._offsets[1:] - key._offsets[:-1]
    behind = (_steps(key._offsets, most_keys) >= lengths[:, None])[:, None, None]
    scores = _product(padded(query) * root, (padded(key) * root).transpose(-2, -1)).masked_fill(behind, -math.inf)
    weights = scores.softmax(-1).masked_fill(behind, 0.0)  # also of a sequence without keys
    made = _product(weights, padded(value)).transpose(1, 2).flatten(2)
    rows = query.transpose(1, 2).values()
    made = _Rows.apply(made, query._offsets, rows.shape[0]).unflatten(-1, (heads, value.shape[-1]))
    return _like(query, made).transpose(1, 2)


class _Padded(torch.autograd.Function):
    """A batch of padded sequences, with its derivative, which torch lacks."""

    @staticmethod
    def forward(ctx, rows, offsets, most):
        ctx.save_for_backward(offsets)
        ctx.total = rows.shape[0]
        return aten._jagged_to_padded_dense_forward(rows, [offsets], [most], 0.0)

    @staticmethod
    def backward(ctx, gradient):
        return aten._padded_dense_to_jagged_forward(gradient.contiguous(), [*ctx.saved_tensors], ctx.total), None, None


class _Rows(torch.autograd.Function):
    """The way back from there."""

    @staticmethod
    def forward(ctx, padded, offsets, total):
        ctx.save_for_backward(offsets)
        ctx.most = padded.shape[1]
        return aten._padded_dense_to_jagged_forward(padded, [offsets], total)

    @staticmethod
    def backward(ctx, gradient):
        return aten._jagged_to_padded_dense_forward(gradient.contiguous(), [*ctx.saved_tensors], [ctx.most], 0.0), None, None


def _like(nested, values):
    """A nested tensor of these values in sequences as long as another's."""
    from torch.nested._internal.nested_tensor import _nt_view_dummy

    return torch._nested_view_from_jagged(
        values, nested._offsets, _nt_view_dummy(), nested._lengths, 1, nested._min_seqlen_tensor, nested._max_seqlen_tensor
    )


def _attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """None where it is not this formula that torch goes by."""
    given = query, key, value
    if not all(isinstance(t, _classes()) and _lies_in_rows(t) for t in given) or key._offsets is not value._offsets:
        return None
    plain = attn_mask is None and not dropout_p and not is_causal and not enable_gqa and not torch.is_autocast_enabled(query.device.type)
    if not plain or query.dtype not in (torch.float32, torch.float64) or query.shape[1] != key.shape[1]:
        return None
    from torch.nested._internal import sdpa

    sdpa._validate_sdpa_input(query, key, value, attn_mask, dropout_p, is_causal, scale)
    math = sdpa._select_sdp_backend(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa) is sdpa.SDPBackend.MATH
    return _attention(query, key, value, scale) if math else None


def call(function, args, kwargs):
    """A call that torch makes on a tape."""
    prepare(args)
    made = _attend(*args, **kwargs) if function is torch._C._nn.scaled_dot_product_attention else None
    made = function(*args, **kwargs) if made is None else made
    given, moved = ({t._offsets.device.type for t in _nested_in(x)} for x in ((args, kwargs), made))
    if given - {"meta"} and moved - given:  # torch's own examples of nested tensors are on no device
        raise RuntimeError("a nested tensor on another device, which keeps the sizes of the first")
    return made


def _classes():
    """The class of nested tensors, in a tuple; nothing if no program has used it."""
    module = sys.modules.get("torch.nested._internal.nested_tensor")
    return (module.NestedTensor,) if module else ()


def _nested_in(x):
    if isinstance(x, _classes()):
        return [x]
    x = x.values() if type(x) is dict else x if isinstance(x, (tuple, list)) else ()
    return [t for y in x for t in _nested_in(y)]


# --- the sizes of ragged dimensions, which torch keeps for the tensors that decide them
@functools.cache
def _ragged_class():
    from torch.nested._internal.nested_int import NestedIntNode

    class Ragged(NestedIntNode):
        """As torch's, but it takes a symbol of the capture for the number that it is: torch multiplies it by strides."""

        def mul(self, other):
            return Ragged(self.t_id, self.coeff * (other._number() if hasattr(other, "_number") else other.constant_int()))

    return Ragged


def prepare(stand_ins):
    """Those that may be offsets or lengths of nested tensors get a size of a ragged dimension that takes symbols."""
    module = sys.modules.get("torch.nested._internal.nested_tensor")
    for t in stand_ins:
        if module and isinstance(t, torch.Tensor) and t.dtype in (torch.int64, torch.int32) and t.dim() == 1 and size_by(t) is None:
            module._tensor_symint_registry[t] = torch.SymInt(_ragged_class()(module.get_tensor_symint(t).node.t_id, 1))


def size_by(tensor):
    module = sys.modules.get("torch.nested._internal.nested_tensor")
    return module and module._tensor_symint_registry.get(tensor)


def _decides(nested):
    return nested._offsets if nested._lengths is None else nested._lengths


def _renewed(nested, decides=None):
    """decides: what gives the ragged dimension its size instead."""
    names, metadata = nested.__tensor_flatten__()
    inner = {name: getattr(nested, name) for name in names}
    if decides is not None:
        inner["_offsets" if nested._lengths is None else "_lengths"] = decides
    return type(nested).__tensor_unflatten__(inner, metadata, None, None)


class Sizes:
    """While it is on, tensors give ragged dimensions the sizes that others gave them in the first pass: torch has compared the real ones."""

    def __init__(self):
        module = sys.modules.get("torch.nested._internal.nested_tensor")
        self.registry = module and module._tensor_symint_registry
        self.before, self.aliases = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for tensor, size in reversed(self.before):
            if size is None:
                del self.registry[tensor]
            else:
                self.registry[tensor] = size

    def give(self, tensor, size):
        """The tensor, with this size; where it has got another one, as one tensor in the place of two has, it is an alias."""
        if any(t is tensor and self.registry[t] is not size for t, _ in self.before):
            self.aliases.append((tensor.detach(), tensor))
            tensor = self.aliases[-1][0]
        self.before.append((tensor, self.registry.get(tensor)))
        self.registry[tensor] = size
        return tensor

    def alike(self, result, gradient):
        """The gradient of a result, with the result's sizes."""
        if not isinstance(result, _classes()) or not isinstance(gradient, _classes()):
            return gradient
        return _renewed(gradient, self.give(_decides(gradient), size_by(_decides(result))))

    def renewed(self, t):
        """Afterwards: a nested tensor with the sizes that are torch's again."""
        if not isinstance(t, _classes()):
            return t
        return _renewed(t, next((of for alias, of in self.aliases if alias is _decides(t)), None))
