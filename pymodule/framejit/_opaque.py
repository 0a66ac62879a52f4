"""Stand-ins for sparse and quantised tensors, of which a capture knows the form alone (src/tensor/opaque.h)."""

import torch

_MOST = 1 << 24  # elements that a stand-in has memory for

# What a tensor of one form and size answers whatever it holds.
_ATTRIBUTES = frozenset(
    ["dtype", "device", "layout", "is_sparse", "is_sparse_csr", "is_quantized", "is_cpu", "is_cuda", "is_meta", "itemsize", "is_nested", "is_mkldnn", "is_mps", "is_xpu", "is_xla"]
)
_METHODS = frozenset(
    ["dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "is_signed", "get_device", "is_conj", "is_neg"]
    + ["sparse_dim", "dense_dim", "qscheme", "q_per_channel_axis", "type"]
)
_OF_STRIDED = frozenset(["is_contiguous", "stride"])
_OF_FORM = frozenset(["q_scale", "q_zero_point", "is_coalesced"])  # if it ends with a question mark, that is not known


def _quantized(dtype, scheme, first, second, size, stride, number):
    """Laid out by `stride`, that of a tensor without gaps whose dimensions may stand in another order."""
    order = sorted(range(len(size)), key=lambda d: (-stride[d], -size[d]))
    values = torch.full([size[d] for d in order], float(number))
    if scheme == "per_tensor_affine":
        scale, zero_point = ((1.0, 0), (0.5, 1))[number] if first == "?" else (float(first), int(second))
        made = torch.quantize_per_tensor(values, scale, zero_point, dtype)
    else:
        channels = torch.arange(size[int(first)])
        scales, zero_points = (1 + channels.double() / 8) / (1 + number), (channels + number) % 8
        made = torch.quantize_per_channel(values, scales, zero_points, order.index(int(first)), dtype)
    return made if order == sorted(order) else made.permute([order.index(d) for d in range(len(size))])


def _coo(dtype, sparse, dense, coalesced, size, number):
    """With elements at the first two places, once if it is coalesced; where that is not known, the other one has none at all."""
    sparse = int(sparse)
    room = 1
    for n in size[:sparse]:
        room *= n
    places = [0, 1, 0, 1, 1][: 2 if coalesced == "True" else 3 + number]
    if number and coalesced != "False":
        places = []
    if places and not room or (coalesced == "True" and room < 2):
        raise ValueError("too small for a stand-in")
    places, count = [p % room for p in places], len(places)
    rows = []
    for n in reversed(size[:sparse]):
        rows.append([p % n for p in places])
        places = [p // n for p in places]
    indices = torch.tensor(list(reversed(rows)), dtype=torch.int64).reshape(sparse, count)
    values = torch.full([count, *size[sparse:]], number, dtype=dtype)
    return torch.sparse_coo_tensor(indices, values, size, is_coalesced=coalesced == "True" or not count)


def _compressed(layout, dtype, index, size, number):
    rows, columns = size if layout == "sparse_csr" else reversed(size)
    if rows < 1 or columns < 2:
        raise ValueError("too small for a stand-in")
    index = getattr(torch, index)
    offsets = torch.zeros(rows + 1, dtype=index)
    offsets[1:] = 1 + number
    places = torch.arange(1 + number, dtype=index)
    make = torch.sparse_csr_tensor if layout == "sparse_csr" else torch.sparse_csc_tensor
    return make(offsets, places, torch.full([1 + number], number, dtype=dtype), size)


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
    known = name in _METHODS or (name in _OF_STRIDED and one.is_quantized) or name in _OF_FORM
    if name in _OF_FORM and form.endswith("?"):
        return NotImplemented
    return getattr(one, name)() if known else NotImplemented
