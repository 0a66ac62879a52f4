"""Derivatives of functions of NumPy that stay calls in a graph (`_arrays.vjp`)."""


def _reduced(grad, shape):
    """Of what was broadcast from that shape."""
    import numpy as np

    grad = np.sum(grad, axis=tuple(range(np.ndim(grad) - len(shape))))
    return np.sum(grad, axis=tuple(i for i, n in enumerate(shape) if n == 1 and grad.shape[i] != 1), keepdims=True).reshape(shape)


def _spread(grad, a, axis, keepdims):
    """Of a reduction's result, for each element of a."""
    import numpy as np

    if axis is not None and not keepdims:
        axes = [i % a.ndim for i in (axis if isinstance(axis, tuple) else (axis,))]
        grad = np.expand_dims(grad, tuple(axes))
    return np.broadcast_to(grad, a.shape)


def _sum(grads, a, axis=None, dtype=None, out=None, keepdims=False):
    import numpy as np

    if not isinstance(a, np.ndarray):
        return _items([_spread(grads[0], np.asarray(a), axis, keepdims)], a)
    return [(a, _spread(grads[0], a, axis, keepdims))]


def _mean(grads, a, axis=None, dtype=None, out=None, keepdims=False):
    return [(a, _spread(grads[0], a, axis, keepdims) * (grads[0].size / a.size))]


def _extreme(which):
    def rule(grads, a, axis=None, out=None, keepdims=False):
        hits = a == getattr(a, which)(axis=axis, keepdims=True)
        return [(a, _spread(grads[0], a, axis, keepdims) * hits / hits.sum(axis=axis, keepdims=True))]

    return rule


def _taken(grads, a, indices, axis=None, **kwargs):
    import numpy as np

    flat = a.size if axis is None else a.shape[axis]
    at = np.asarray(indices) % flat
    if axis is None:
        return [(a, np.bincount(at.reshape(-1), grads[0].reshape(-1), flat).reshape(a.shape))]
    rows = np.zeros((flat, *np.delete(a.shape, axis)), grads[0].dtype)
    places = range(axis % a.ndim, axis % a.ndim + at.ndim)
    np.add.at(rows, at, np.moveaxis(grads[0], tuple(places), tuple(range(at.ndim))))
    return [(a, np.moveaxis(rows, 0, axis))]


def _padded(grads, a, pad_width, mode="constant", **kwargs):
    import numpy as np

    if mode != "constant":
        raise NotImplementedError(f"the derivative of numpy.pad with mode={mode!r}")
    low = np.broadcast_to(np.asarray(pad_width), (a.ndim, 2))[:, 0]
    return [(a, grads[0][tuple(slice(i, i + n) for i, n in zip(low, a.shape))])]


def _same(grads, a, *args, **kwargs):
    return [(a, grads[0])]


def _none(grads, *args, **kwargs):
    return []


def _items(grads, values, *args, **kwargs):
    """Of an array that was made of numbers and arrays in lists."""

    def walk(tree, grad):
        if isinstance(tree, (list, tuple)):
            return [pair for i, item in enumerate(tree) for pair in walk(item, grad[i])]
        return [(tree, grad)]

    return walk(values, grads[0])


def _reduce(grads, a, axis=0, dtype=None, out=None, keepdims=False, **kwargs):
    return [(a, _spread(grads[0], a, axis, keepdims))]


def _extreme_reduce(which):
    rule = _extreme(which)
    return lambda grads, a, axis=0, dtype=None, out=None, keepdims=False, **kwargs: rule(grads, a, axis, None, keepdims)


def _broadcast(grads, a, shape, **kwargs):
    return [(a, _reduced(grads[0], a.shape))]


def _cbrt(grads, x):
    import numpy as np

    return [(x, grads[0] / (3 * np.cbrt(x) ** 2))]


def _float_power(grads, x, y):
    import numpy as np

    slope, log = grads[0] * y * np.float_power(x, np.subtract(y, 1)), grads[0] * np.float_power(x, y) * np.log(x)
    return [(x, _reduced(slope, np.shape(x))), (y, _reduced(log, np.shape(y)))]


def _convolve(grads, a, v, mode="full"):
    import numpy as np

    n, m = np.size(a), np.size(v)
    low = {"full": 0, "same": (min(n, m) - 1) // 2, "valid": min(n, m) - 1}[mode]
    whole = np.zeros(n + m - 1, grads[0].dtype)
    whole[low : low + grads[0].size] = grads[0]
    return [(a, np.correlate(whole, v, "valid")), (v, np.correlate(whole, a, "valid"))]


def _cumprod(grads, a, axis=None, dtype=None, out=None):
    import numpy as np

    x = np.reshape(a, -1) if axis is None else np.moveaxis(a, axis, -1)
    g = grads[0] if axis is None else np.moveaxis(grads[0], axis, -1)
    n, made = x.shape[-1], np.zeros(x.shape, g.dtype)
    for i in range(n):  # without a division: elements may be zero
        others = x.copy()
        others[..., i] = 1
        made[..., i] = (g[..., i:] * np.cumprod(others, axis=-1)[..., i:]).sum(axis=-1)
    return [(a, made.reshape(a.shape) if axis is None else np.moveaxis(made, -1, axis))]


def _diagonal(grads, a, offset=0, axis1=0, axis2=1):
    import numpy as np

    made = np.zeros(a.shape, grads[0].dtype)
    at = np.arange(grads[0].shape[-1])
    np.moveaxis(made, (axis1, axis2), (-2, -1))[..., at + max(-offset, 0), at + max(offset, 0)] = grads[0]
    return [(a, made)]


def _diag(grads, v, k=0):
    import numpy as np

    return [(v, np.diagonal(grads[0], k))] if v.ndim == 1 else _diagonal(grads, v, k)


def _inner(grads, a, b):
    import numpy as np

    return _tensordot(grads, a, b, (a.ndim - 1, b.ndim - 1)) if np.ndim(a) and np.ndim(b) else [
        (a, _reduced(grads[0] * b, np.shape(a))), (b, _reduced(grads[0] * a, np.shape(b)))
    ]  # fmt: skip


def _vdot(grads, a, b):
    return [(a, (grads[0] * b.reshape(-1)).reshape(a.shape)), (b, (grads[0] * a.reshape(-1)).reshape(b.shape))]


def _outer(grads, a, b, **kwargs):
    import numpy as np

    by_a = (grads[0] * b).sum(axis=tuple(range(np.ndim(a), np.ndim(grads[0]))))
    by_b = np.tensordot(a, grads[0], np.ndim(a))
    return [(a, by_a), (b, by_b)]


def _repeat(grads, a, repeats, axis=None):
    import numpy as np

    n = a.size if axis is None else a.shape[axis]
    at = np.repeat(np.arange(n), repeats)
    if axis is None:
        return [(a, np.bincount(at, grads[0], n).reshape(a.shape))]
    made = np.zeros((n, *np.delete(a.shape, axis)), grads[0].dtype)
    np.add.at(made, at, np.moveaxis(grads[0], axis, 0))
    return [(a, np.moveaxis(made, 0, axis))]


def _norm(grads, x, ord=None, axis=None, keepdims=False):
    import numpy as np

    if ord not in (None, 2, "fro") or (ord == 2 and axis is None and x.ndim > 1) or (ord == "fro" and axis is None and x.ndim != 2):
        raise NotImplementedError(f"the derivative of numpy.linalg.norm with ord={ord!r}")
    length = _spread(np.sqrt((x * x).sum(axis=axis)), x, axis, False)
    return [(x, np.where(length == 0, 0, _spread(grads[0], x, axis, keepdims) * x / np.where(length == 0, 1, length)))]


def _concatenated(grads, arrays, axis=0, **kwargs):
    import numpy as np

    made, at = [], 0
    for x in arrays:
        n = x.size if axis is None else x.shape[axis]
        part = np.take(grads[0], range(at, at + n), 0 if axis is None else axis)
        made.append((x, part.reshape(x.shape)))
        at += n
    return made


def _rolled(grads, a, shift, axis=None):
    import numpy as np

    return [(a, np.roll(grads[0], np.negative(shift), axis))]


def _put(grads, target, indices, values, mode="raise"):
    import numpy as np

    flat, grad = np.asarray(indices).reshape(-1) % target.size, grads[0].reshape(-1)
    (_, kept), (_, mine) = _stored([grad], grad, flat, np.resize(values, flat.shape))
    by_values = np.zeros(np.size(values), grad.dtype)
    np.add.at(by_values, np.arange(flat.size) % np.size(values), mine)
    return [(target, kept.reshape(target.shape)), (values, by_values.reshape(np.shape(values)))]


def _trace(grads, a, offset=0, axis1=0, axis2=1, **kwargs):
    import numpy as np

    diagonal = np.eye(a.shape[axis1], a.shape[axis2], offset)
    return [(a, np.moveaxis(np.multiply.outer(grads[0], diagonal), (-2, -1), (axis1, axis2)))]


def _einsum(grads, subscripts, *operands, **kwargs):
    import numpy as np

    terms, _, out = subscripts.replace(" ", "").partition("->")
    terms = terms.split(",")
    if "->" not in subscripts:
        letters = "".join(terms)
        out = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    sizes = {c: n for term, x in zip(terms, operands) for c, n in zip(term, x.shape)}
    made = []
    for i, (term, x) in enumerate(zip(terms, operands)):
        own = "".join(dict.fromkeys(term))
        others = [(t, y) for k, (t, y) in enumerate(zip(terms, operands)) if k != i]
        seen = out + "".join(t for t, _ in others)
        others += [(c, np.ones(sizes[c], x.dtype)) for c in own if c not in seen]  # summed here alone
        spec = ",".join([out, *(t for t, _ in others)]) + "->" + own
        grad = np.einsum(spec, grads[0], *(y for _, y in others))
        if own != term:  # of a diagonal
            whole = np.zeros(x.shape, grad.dtype)
            np.einsum(f"{term}->{own}", whole)[...] = grad
            grad = whole
        made.append((x, grad))
    return made


def _tensordot(grads, a, b, axes=2):
    a_axes, b_axes = (range(a.ndim - axes, a.ndim), range(axes)) if isinstance(axes, int) else axes
    a_axes, b_axes = ((x,) if isinstance(x, int) else tuple(x) for x in (a_axes, b_axes))
    mine = [chr(97 + i) for i in range(a.ndim)]
    theirs = [chr(65 + i) for i in range(b.ndim)]
    for i, k in zip(a_axes, b_axes):
        theirs[k % b.ndim] = mine[i % a.ndim]
    out = [c for c in mine if c not in theirs] + [c for c in theirs if c not in mine]
    return _einsum(grads, f"{''.join(mine)},{''.join(theirs)}->{''.join(out)}", a, b)


def _swapped(x):
    import numpy as np

    return np.swapaxes(x, -1, -2)


def _sort(grads, a, axis=-1, **kwargs):
    import numpy as np

    order, grad = np.argsort(a, axis, kind="stable"), np.empty_like(grads[0])
    np.put_along_axis(grad, order, grads[0], axis)
    return [(a, grad)]


def _stored(grads, target, key, value):
    """Of target[key] = value; the last of equal indices counts."""
    import numpy as np

    last = np.full(target.shape, -1)
    part = last[key].shape
    last[key] = np.arange(last[key].size).reshape(part)
    kept = last < 0
    grad = np.zeros(last[key].size, grads[0].dtype)
    grad[last[~kept]] = grads[0][~kept]
    return [(target, np.where(kept, grads[0], 0)), (value, _reduced(grad.reshape(part), np.shape(value)))]


def _added(grads, target, key, value):
    import numpy as np

    return [(target, grads[0]), (value, _reduced(grads[0][key], np.shape(value)))]


def _inv(grads, a):
    import numpy as np

    y = _swapped(np.linalg.inv(a))
    return [(a, -y @ grads[0] @ y)]


def _det(grads, a):
    import numpy as np

    return [(a, (grads[0] * np.linalg.det(a))[..., None, None] * _swapped(np.linalg.inv(a)))]


def _slogdet(grads, a):
    import numpy as np

    grad = grads[1]
    return [(a, np.zeros_like(a) if grad is None else np.asarray(grad)[..., None, None] * _swapped(np.linalg.inv(a)))]


def _solve(grads, a, b):
    import numpy as np

    x, right = np.linalg.solve(a, b), np.linalg.solve(_swapped(a), grads[0])
    outer = right[..., :, None] * x[..., None, :] if b.ndim == 1 else right @ _swapped(x)
    return [(a, _reduced(-outer, a.shape)), (b, _reduced(right, b.shape))]


def _cholesky(grads, a, **kwargs):
    import numpy as np

    lower = np.linalg.cholesky(a)
    inner = np.tril(_swapped(lower) @ grads[0])
    inner[..., np.arange(a.shape[-1]), np.arange(a.shape[-1])] /= 2
    inverse = np.linalg.inv(lower)
    whole = _swapped(inverse) @ inner @ inverse
    return [(a, (whole + _swapped(whole)) / 2)]


def _interp(grads, x, xp, fp):
    import numpy as np

    at = np.clip(np.searchsorted(xp, x, side="right") - 1, 0, len(xp) - 2)
    width = xp[at + 1] - xp[at]
    weight = np.clip((x - xp[at]) / width, 0, 1)
    inside = (x >= xp[0]) & (x < xp[-1])
    to = np.zeros(np.shape(fp))
    np.add.at(to, at, grads[0] * (1 - weight))
    np.add.at(to, at + 1, grads[0] * weight)
    return [(x, np.where(inside, grads[0] * (fp[at + 1] - fp[at]) / width, 0)), (fp, to)]


# By name: pairs of an argument and its gradient. The names are kDerived in src/surface/numpy_transforms.cc.
DERIVATIVES = {
    "numpy.add.at": _added,
    "numpy.einsum": _einsum,
    "numpy.interp": _interp,
    "numpy.linalg.cholesky": _cholesky,
    "numpy.linalg.det": _det,
    "numpy.linalg.inv": _inv,
    "numpy.linalg.slogdet": _slogdet,
    "numpy.linalg.solve": _solve,
    "numpy.ndarray.__setitem__": _stored,
    "numpy.pad": _padded,
    "numpy.sort": _sort,
    "numpy.tensordot": _tensordot,
    "numpy.amax": _extreme("max"),
    "numpy.amin": _extreme("min"),
    "numpy.add.reduce": _reduce,
    "numpy.maximum.reduce": _extreme_reduce("max"),
    "numpy.minimum.reduce": _extreme_reduce("min"),
    "numpy.array": _items,
    "numpy.asarray": _items,
    "numpy.ascontiguousarray": _same,
    "numpy.asfortranarray": _same,
    "numpy.copy": _same,
    "numpy.broadcast_to": _broadcast,
    "numpy.cbrt": _cbrt,
    "numpy.concat": _concatenated,
    "numpy.concatenate": _concatenated,
    "numpy.convolve": _convolve,
    "numpy.linalg.norm": _norm,
    "numpy.diag": _diag,
    "numpy.float_power": _float_power,
    "numpy.heaviside": _none,
    "numpy.inner": _inner,
    "numpy.multiply.outer": _outer,
    "numpy.put": _put,
    "numpy.roll": _rolled,
    "numpy.vdot": _vdot,
}
for _name, _rule in (("sum", _sum), ("mean", _mean), ("max", _extreme("max")), ("min", _extreme("min")), ("take", _taken), ("trace", _trace),
                     ("cumprod", _cumprod), ("repeat", _repeat)):  # fmt: skip
    DERIVATIVES[f"numpy.{_name}"] = DERIVATIVES[f"numpy.ndarray.{_name}"] = _rule
