"""Stand-ins for sparse and quantised tensors, of which a capture knows the form alone (src/tensor/opaque.h)."""

import torch

_MOST = 1 << 24  # elements that a stand-in has memory for

# What a tensor of one form and size answers whatever it holds.
_ATTRIBUTES = frozenset(
    ["dtype", "device", "layout", "is_sparse", "is_sparse_csr", "is_quantized", "is_cpu", "is_cuda", "is_meta", "itemsize", "is_nested", "is_mkldnn", "is_mps", "is_xpu", "is_xla"]
)
_METHODS = frozenset(
    ["dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "is_signed", "get_device", "is_conj", "is_neg"]
    + ["sparse_dim", "dense_dim", "is_coalesced", "qscheme", "q_per_channel_axis", "type"]
)
_OF_STRIDED = frozenset(["is_contiguous", "stride"])
_OF_SCALE = frozenset(["q_scale", "q_zero_point"])


def _quantized(dtype, scheme, first, second, size, stride, number):
    """Laid out by `stride`, that of a tensor without gaps whose dimensions may stand in another order."""
    order = sorted(range(len(size)), key=lambda d: (-stride[d], -size[d]))
    zeros = torch.zeros([size[d] for d in order])
    if scheme == "per_tensor_affine":
        known = first != "?"
        scale, zero_point = (float(first), int(second)) if known else ((1.0, 0), (0.5, 1))[number]
        made = torch.quantize_per_tensor(zeros, scale, zero_point, dtype)
    else:
        n = size[int(first)]
        axis = order.index(int(first))
        made = torch.quantize_per_channel(zeros, torch.ones(n, dtype=torch.float64), torch.zeros(n, dtype=torch.int64), axis, dtype)
    return made if order == sorted(order) else made.permute([order.index(d) for d in range(len(size))])


def _coo(dtype, sparse, dense, coalesced, size, number):
    """With two or three elements, whose places differ if it is coalesced."""
    sparse = int(sparse)
    room = 1
    for n in size[:sparse]:
        room *= n
    count = 2 + number
    if not room or (coalesced == "True" and room < count):
        raise ValueError("too small for a stand-in")
    places = [divmod(k if coalesced == "True" else 0, room)[1] for k in range(count)]
    rows = []
    for n in reversed(size[:sparse]):
        rows.append([p % n for p in places])
        places = [p // n for p in places]
    indices = torch.tensor(list(reversed(rows)), dtype=torch.int64).reshape(sparse, count)
    values = torch.zeros([count, *size[sparse:]], dtype=dtype)
    return torch.sparse_coo_tensor(indices, values, size, is_coalesced=coalesced == "True")


def _compressed(layout, dtype, index, size, number):
    rows, columns = size if layout == "sparse_csr" else reversed(size)
    if rows < 1 or columns < 2:
        raise ValueError("too small for a stand-in")
    index = getattr(torch, index)
    offsets = torch.zeros(rows + 1, dtype=index)
    offsets[1:] = 1 + number
    places = torch.arange(1 + number, dtype=index)
    make = torch.sparse_csr_tensor if layout == "sparse_csr" else torch.sparse_csc_tensor
    return make(offsets, places, torch.zeros(1 + number, dtype=dtype), size)


def stand_in(form, size, stride, number):
    """A tensor of that form; of two numbers the contents, and what the form leaves open, differ."""
    kind, dtype, *rest = form.split()
    dtype = getattr(torch, dtype)
    memory = 1
    for n in size if kind == "quantized" else size[int(rest[0]) :] if kind == "sparse_coo" else size[:1]:
        memory *= n
    if memory > _MOST:
        raise ValueError("too large for a stand-in")
    size, stride = list(size), list(stride)
    if kind == "quantized":
        made = _quantized(dtype, *rest, size, stride, number)
        if list(made.stride()) != stride and memory > 1:
            raise ValueError("laid out as no stand-in is")
    elif kind == "sparse_coo":
        made = _coo(dtype, *rest, size, number)
    else:
        made = _compressed(kind, dtype, *rest, size, number)
    return made


_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
}


def share_memory(a, b):
    """Do the two have a storage in common?"""
    own = [{p.untyped_storage()._cdata for p in ([getattr(t, n)() for n in _PARTS[t.layout]] if t.layout in _PARTS else [t])} for t in (a, b)]
    return bool(own[0] & own[1])


def fact(one, name, form, method):
    """What every tensor of the stand-in's form answers, or NotImplemented."""
    if not method:
        return getattr(one, name) if name in _ATTRIBUTES else NotImplemented
    known = name in _METHODS or (name in _OF_STRIDED and one.is_quantized) or (name in _OF_SCALE and not form.endswith("? ?"))
    return getattr(one, name)() if known else NotImplemented
