"""Functions that graphs of NumPy arrays call, and those that stand for nodes of such a graph (`_transforms`). Where an array is written, it
comes first and is returned."""

import functools
import importlib
from _thread import _local  # not threading, as in _gradients


@functools.lru_cache(maxsize=None)
def _named(name):
    module, *rest = name.split(".")
    return functools.reduce(getattr, rest, importlib.import_module(module))


def written(name, target, *args, **kwargs):
    """numpy.put and the like write into their first argument."""
    _named(name)(target, *args, **kwargs)
    return target


def of_objects(items, shape, order):
    """The array of objects with these elements, or, without an order, the whole one that is given, in another shape."""
    import numpy as np

    if order is None:
        return items.reshape(shape)
    flat = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):  # NumPy looks into what it is given as a whole
        flat[i] = item
    if len(shape) == 1:
        return flat
    array = np.empty(shape, dtype=object, order=order)
    array.ravel(order)[...] = flat
    return array


def filled(name, out, *args, **kwargs):
    """The others write what they would return, where they are told to."""
    _named(name)(*args, out=out, **kwargs)
    return out


# --- nodes of the graph (src/surface/numpy_transforms.cc). Python itself comes here where a call runs as written: a run that raises is
# made again by Python, which raises at the program's own line before it needs a derivative.
def leaf(x):
    import numpy as np

    return np.array(x)


def sample(x, axis):
    import numpy as np

    return np.array(np.take(x, 0, axis))


def gradients(outputs, seeds, inputs):
    _not_here()


def batched(outputs, samples, wholes, axes, size, same):
    _not_here()


_refused = _local()  # reason: why the last run of a derivative raised an error


def _not_here():
    from .errors import FramejitError, raised

    reason = _refused.__dict__.pop("reason", None)
    if reason is not None:
        raise raised("BreakError")(reason)
    raise FramejitError(
        "framejit's derivatives and batches of NumPy functions are compiled, and this call runs as written: because of FRAMEJIT_DISABLE, "
        "framejit.stance or a tool of sys.monitoring"
    )


# --- derivatives of what stays a call in the graph -----------------------------------------------------------------------
def take(g, index, sizes, axis):
    """Of numpy.take(x, index, axis), x of these sizes: g's slices added up where they came from. Indices are not negative."""
    import numpy as np

    rows = np.zeros((sizes[axis], *sizes[:axis], *sizes[axis + 1 :]), g.dtype)
    np.add.at(rows, index, np.moveaxis(g, axis, 0))
    return np.ascontiguousarray(np.moveaxis(rows, 0, axis))


def gather(g, index, sizes, axis):
    """Of numpy.take_along_axis(x, index, axis), likewise."""
    import numpy as np

    made, at = np.zeros(sizes, g.dtype), list(np.indices(index.shape, sparse=True))
    at[axis] = index
    np.add.at(made, tuple(at), g)
    return made


def vjp(name, line, which, operands, args, kwargs, grads):
    """The gradients by operands[i], i in `which`, of a call of the function of NumPy with that name, given those of its results.
    line: where the program calls it, for errors; "" where nobody knows."""
    from ._numpy_derivatives import DERIVATIVES

    try:
        return _pulled(DERIVATIVES[name], which, operands, args, kwargs, grads)
    except Exception as error:  # the run is made again by Python, which comes to _not_here
        _refused.reason = f"no derivative of this call of {name}{line}: {error}"
        raise


def _pulled(rule, which, operands, args, kwargs, grads):
    import numpy as np

    given, made = rule(grads, *args, **kwargs), []
    for i in which:
        x = operands[i]
        mine = [g for argument, g in given if argument is x]
        if not mine:
            raise NotImplementedError("it has no rule for an argument that the derivative is taken by")
        parts = [np.asarray(g) for g in mine if g is not None]
        if any(g.shape != x.shape for g in parts):
            raise NotImplementedError("its rule does not fit the shape of an argument")
        made.append(np.asarray(sum(parts, np.zeros(x.shape, x.dtype)), x.dtype, order="C"))
    return made[0] if len(made) == 1 else tuple(made)
