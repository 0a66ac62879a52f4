"""Derivatives of functions of NumPy that stay calls in a graph (`_arrays.vjp`).

A rule takes the gradients of the results and the arguments of the call, by NumPy's names. It gives pairs of an argument and its gradient;
None in a pair is a gradient of zero. A keyword that a rule does not list is an error, and so is an argument that it has no pair for."""


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


def _added_up(grads, a, axis, keepdims, initial, where):
    import numpy as np

    x = np.asarray(a)
    return [*_items([np.where(where, _spread(grads[0], x, axis, keepdims), 0)], a), (initial, np.sum(grads[0]))]


def _sum(grads, a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True):
    return _added_up(grads, a, axis, keepdims, initial, where)


def _mean(grads, a, axis=None, dtype=None, out=None, keepdims=False, where=True):
    import numpy as np

    x = np.asarray(a)
    count = np.broadcast_to(where, x.shape).sum(axis=axis, keepdims=True)
    return _items([np.where(where, _spread(grads[0], x, axis, keepdims) / count, 0)], a)


def _extreme(which):
    def rule(grads, a, axis=None, out=None, keepdims=False, initial=None, where=True):
        import numpy as np

        x, start = np.asarray(a), {} if initial is None else {"initial": initial}
        best = getattr(x, which)(axis=axis, keepdims=True, where=where, **start)
        hits, first = (x == best) & where, best == initial
        shares = hits.sum(axis=axis, keepdims=True) + first
        grad = _spread(grads[0], x, axis, keepdims) if x.size else 0
        of_start = np.sum(np.reshape(grads[0], best.shape) * first / shares)
        return [*_items([grad * hits / shares], a), (initial, of_start)]

    return rule


def _taken(grads, a, indices, axis=None, out=None, mode="raise"):
    import numpy as np

    flat = a.size if axis is None else a.shape[axis]
    at = np.clip(indices, 0, flat - 1) if mode == "clip" else np.asarray(indices) % flat
    if axis is None:
        return [(a, np.bincount(at.reshape(-1), grads[0].reshape(-1), flat).reshape(a.shape))]
    rows = np.zeros((flat, *np.delete(a.shape, axis)), grads[0].dtype)
    places = range(axis % a.ndim, axis % a.ndim + at.ndim)
    np.add.at(rows, at, np.moveaxis(grads[0], tuple(places), tuple(range(at.ndim))))
    return [(a, np.moveaxis(rows, 0, axis))]


def _padded(grads, array, pad_width, mode="constant", constant_values=0):
    import numpy as np

    if mode != "constant":
        raise NotImplementedError(f"it has a rule for mode='constant' alone, not for mode={mode!r}")
    grad, widths = grads[0], np.broadcast_to(np.asarray(pad_width), (array.ndim, 2))
    inner = [slice(low, low + n) for (low, _), n in zip(widths, array.shape)]
    by_values = np.zeros((array.ndim, 2))
    for i, own in enumerate(inner):  # the values of a later axis lie over those of an earlier one
        for side, part in enumerate((slice(0, own.start), slice(own.stop, None))):
            by_values[i, side] = grad[(slice(None),) * i + (part, *inner[i + 1 :])].sum()
    return [(array, grad[tuple(inner)]), *_items([_reduced(by_values, np.shape(constant_values))], constant_values)]


def _same(grads, a, dtype=None, order=None, subok=False):  # the second may be dtype or order
    return _items([grads[0]], a)


def _heaviside(grads, x1, x2):
    import numpy as np

    return [(x1, None), (x2, _reduced(np.where(x1 == 0, grads[0], 0), np.shape(x2)))]


def _items(grads, values, dtype=None, copy=None, order=None, subok=False, ndmin=0, device=None):
    """Of an array that was made of numbers and arrays in lists."""
    import numpy as np

    def walk(tree, grad):
        if isinstance(tree, (list, tuple)):
            return [pair for i, item in enumerate(tree) for pair in walk(item, grad[i])]
        return [(tree, grad)]

    return walk(values, np.reshape(grads[0], np.shape(values)))


def _reduce(grads, a, axis=0, dtype=None, out=None, keepdims=False, initial=None, where=True):
    return _added_up(grads, a, axis, keepdims, initial, where)


def _extreme_reduce(which):
    rule = _extreme(which)

    def of_ufunc(grads, a, axis=0, dtype=None, out=None, keepdims=False, initial=None, where=True):
        return rule(grads, a, axis, None, keepdims, initial, where)

    return of_ufunc


def _broadcast(grads, array, shape, subok=False):
    return [(array, _reduced(grads[0], array.shape))]


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


def _outer(grads, a, b):
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

    vector = x.ndim == 1 if axis is None else np.size(axis) == 1
    if ord is not None and ord != ("fro" if not vector else 2):
        raise NotImplementedError(f"it has no rule for ord={ord!r} of {'vectors' if vector else 'matrices'}")
    length = _spread(np.sqrt((x * x).sum(axis=axis)), x, axis, False)
    return [(x, np.where(length == 0, 0, _spread(grads[0], x, axis, keepdims) * x / np.where(length == 0, 1, length)))]


def _concatenated(grads, arrays, axis=0, out=None, dtype=None, casting=None):
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


def _put(grads, a, ind, v, mode="raise"):
    import numpy as np

    flat, grad = np.asarray(ind).reshape(-1), grads[0].reshape(-1)
    flat = np.clip(flat, 0, a.size - 1) if mode == "clip" else flat % a.size
    (_, kept), (_, mine) = _stored([grad], grad, flat, np.resize(v, flat.shape))
    by_values = np.zeros(np.size(v), grad.dtype)
    np.add.at(by_values, np.arange(flat.size) % np.size(v), mine)
    return [(a, kept.reshape(a.shape)), *_items([by_values], v)]


def _trace(grads, a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    import numpy as np

    diagonal = np.eye(a.shape[axis1], a.shape[axis2], offset)
    return [(a, np.moveaxis(np.multiply.outer(grads[0], diagonal), (-2, -1), (axis1, axis2)))]


def _einsum(grads, subscripts, *operands, out=None, dtype=None, order=None, casting=None, optimize=False):
    import numpy as np

    if not isinstance(subscripts, str) or "..." in subscripts:
        raise NotImplementedError("it has no rule for subscripts with '...' or as lists")
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


def _sort(grads, a, axis=-1, kind=None, order=None, stable=None):
    import numpy as np

    if axis is None:
        return [(a, _sort(grads, a.reshape(-1))[0][1].reshape(a.shape))]
    places, grad = np.argsort(a, axis, kind="stable"), np.empty_like(grads[0])
    np.put_along_axis(grad, places, grads[0], axis)
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
    return [(target, np.where(kept, grads[0], 0)), *_items([_reduced(grad.reshape(part), np.shape(value))], value)]


def _added(grads, target, key, value):
    import numpy as np

    return [(target, grads[0]), *_items([_reduced(grads[0][key], np.shape(value))], value)]


def _inv(grads, a):
    import numpy as np

    y = _swapped(np.linalg.inv(a))
    return [(a, -y @ grads[0] @ y)]


def _det(grads, a):
    import numpy as np

    det = np.linalg.det(a)
    if np.all(det != 0):
        return [(a, (grads[0] * det)[..., None, None] * _swapped(np.linalg.inv(a)))]
    # A singular matrix has no inverse, but its cofactors: products of all singular values but one.
    u, s, v = np.linalg.svd(a)
    others = np.stack([np.delete(s, i, -1).prod(axis=-1) for i in range(s.shape[-1])], -1)
    sign = np.linalg.det(u) * np.linalg.det(v)
    return [(a, (grads[0] * sign)[..., None, None] * ((u * others[..., None, :]) @ v))]


def _slogdet(grads, a):
    import numpy as np

    grad = grads[1]
    return [(a, np.zeros_like(a) if grad is None else np.asarray(grad)[..., None, None] * _swapped(np.linalg.inv(a)))]


def _solve(grads, a, b):
    import numpy as np

    vector = b.ndim == 1
    x, grad = np.linalg.solve(a, b), grads[0]
    if vector:
        x, grad = x[..., None], grad[..., None]
    right = np.linalg.solve(_swapped(a), grad)
    return [(a, _reduced(-right @ _swapped(x), a.shape)), (b, _reduced(right[..., 0] if vector else right, b.shape))]


def _cholesky(grads, a, upper=False):
    import numpy as np

    lower = _swapped(np.linalg.cholesky(a, upper=True)) if upper else np.linalg.cholesky(a)
    inner = np.tril(_swapped(lower) @ (_swapped(grads[0]) if upper else grads[0]))
    inner[..., np.arange(a.shape[-1]), np.arange(a.shape[-1])] /= 2
    inverse = np.linalg.inv(lower)
    whole = _swapped(inverse) @ inner @ inverse
    return [(a, (whole + _swapped(whole)) / 2)]


def _interp(grads, x, xp, fp, left=None, right=None):
    import numpy as np

    at_x, points, values = (np.asarray(v, np.float64) for v in (x, xp, fp))
    at = np.clip(np.searchsorted(points, at_x, side="right") - 1, 0, max(len(points) - 2, 0))
    after = np.minimum(at + 1, len(points) - 1)
    width = points[after] - points[at]
    width = np.where(width == 0, 1, width)
    low, high = at_x < points[0], at_x > points[-1]
    weight = np.where(at_x >= points[-1], 1, np.where(low, 0, (at_x - points[at]) / width))
    along = np.where((at_x >= points[0]) & (at_x < points[-1]), grads[0] * (values[after] - values[at]) / width, 0)
    to = np.where((low & (left is not None)) | (high & (right is not None)), 0, grads[0])
    by_points, by_values = np.zeros(points.shape), np.zeros(values.shape)
    for places, share in ((at, 1 - weight), (after, weight)):
        np.add.at(by_points, places, np.where(along == 0, 0, -along * share))
        np.add.at(by_values, places, to * share)
    ends = [(left, np.sum(grads[0] * low)), (right, np.sum(grads[0] * high))]
    return [pair for grad, v in ((along, x), (by_points, xp), (by_values, fp)) for pair in _items([grad], v)] + ends


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
    "numpy.heaviside": _heaviside,
    "numpy.inner": _inner,
    "numpy.multiply.outer": _outer,
    "numpy.put": _put,
    "numpy.roll": _rolled,
    "numpy.vdot": _vdot,
}
for _name, _rule in (("sum", _sum), ("mean", _mean), ("max", _extreme("max")), ("min", _extreme("min")), ("take", _taken), ("trace", _trace),
                     ("cumprod", _cumprod), ("repeat", _repeat)):  # fmt: skip
    DERIVATIVES[f"numpy.{_name}"] = DERIVATIVES[f"numpy.ndarray.{_name}"] = _rule
