"""`framejit.grad`, `value_and_grad`, `jvp` and `vmap` of NumPy functions. They are captured as they are written here; what NumPy cannot say
are the functions `leaf`, `gradients`, `sample` and `batched` of `_arrays`, which become nodes of the graph (src/surface/numpy_transforms.cc)."""

import functools
import sys
import types

from . import _arrays, _framejit, _weak
from ._compile import compile
from .errors import BreakError


_WHOLE = {"leave": False, "max_entries": 1 << 20}  # nobody but the graph can do this


# --- trees: arrays in tuples, lists and dicts --------------------------------------------------------------------------
def _leaves(tree, into):
    if isinstance(tree, dict):
        for value in tree.values():
            _leaves(value, into)
    elif isinstance(tree, (tuple, list)):
        for value in tree:
            _leaves(value, into)
    elif tree is not None:
        into.append(tree)
    return into


def _rebuilt(tree, leaves):
    """The tree with these in place of its leaves; they are taken out of the list."""
    if isinstance(tree, dict):
        return {key: _rebuilt(value, leaves) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        items = [_rebuilt(value, leaves) for value in tree]
        if isinstance(tree, list):
            return items
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return None if tree is None else leaves.pop(0)


def _shape_of(tree):
    """What two trees that fit have in common."""
    if isinstance(tree, dict):
        return {key: _shape_of(value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return tuple([_shape_of(value) for value in tree])
    return tree is None


# --- what is asked for, before it is compiled --------------------------------------------------------------------------
def _floats(tree, what):
    """The tree with arrays of floats as its leaves; Python's and NumPy's floats become arrays of no dimensions."""
    import numpy as np

    def one(x):
        if isinstance(x, np.ndarray) and x.dtype.kind == "f":
            return x
        if isinstance(x, np.floating):
            return _arrays.leaf(x)  # which a derivative around this one goes through
        if isinstance(x, float):
            return np.asarray(x)
        kind = f"an array of {x.dtype}" if isinstance(x, (np.ndarray, np.generic)) else type(x).__name__
        hint = ": write it as floats, such as x.astype(float)" if kind[-1].isdigit() or kind in ("int", "bool") else ""
        raise TypeError(f"{what} must hold floats, not {kind}{hint}")

    if isinstance(tree, np.ndarray) and tree.dtype.kind == "f":
        return tree
    return _rebuilt(tree, [one(x) for x in _leaves(tree, [])])


def _positions(argnums, count, name):
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    if not all(-count <= i < count for i in numbers):
        raise ValueError(f"{name}: argnums={argnums} of a call with {count} positional arguments")
    return [i % count for i in numbers]


def _named(run, fun, name):
    """The function that is compiled, with a code object of its own, since what is compiled belongs to that."""
    told = f"{name} of {getattr(fun, '__name__', type(fun).__name__)}"
    code = run.__code__.replace(co_name=told, co_qualname=told)
    own = types.FunctionType(code, run.__globals__, told, run.__defaults__, run.__closure__)
    return compile(own, fullgraph=True, options=_WHOLE)


def _checked(fun, name):
    if not _framejit.is_compiling() and not callable(fun):
        raise TypeError(f"{name} takes a function, not {type(fun).__name__}")


_ONE_FOR_ALL = "out_axes=None of a result that differs from sample to sample"  # as src/surface/numpy_transforms.cc says it
_OF_BATCHES = (_ONE_FOR_ALL, "an array that all samples share", "an array of one sample of framejit.vmap", "which all samples would share")
_compiled = _weak.WeakIdMap()  # by function (of a method: its object): {(what is made of it, ...): the compiled function}


def _kept(make, fun, more, name):
    """By identity: equal callables may compute different things. The function is an argument of what is compiled, which so does not keep it alive."""
    method = isinstance(fun, types.MethodType)
    try:
        mine = _compiled.setdefault(fun.__self__ if method else fun, {})
    except TypeError:  # there are no weak references to it
        mine = {}
    key = make, fun.__func__ if method else None, repr(more)
    if key not in mine:
        mine[key] = _named(make(*more), fun, name)
    return mine[key]


def _run(make, name, fun, more, args, plain):
    """What `make(*more)` makes of the function and the arguments, compiled, also where a debugger or a profiler of Python's would have it
    run as written. name: of that. plain: calls `fun` as it is, where it cannot be compiled: it may raise an error of its own."""
    if _framejit.is_compiling():  # a part of the graph of whoever calls this
        return make(*more)(fun, *args)
    compiled = _kept(make, fun, more, name)
    tracer, profiler = sys.gettrace(), sys.getprofile()
    if tracer or profiler:
        sys.settrace(None), sys.setprofile(None)
    try:
        return compiled(fun, *args)
    except BreakError as error:
        if not any(text in str(error) for text in _OF_BATCHES):  # an error of the batch's, and not of what one sample does
            plain()
        raise
    finally:
        if tracer or profiler:
            sys.settrace(tracer), sys.setprofile(profiler)


def _copied(trees):
    """For a call that may write into its arguments."""
    return [_rebuilt(tree, [_arrays.leaf(x) for x in _leaves(tree, [])]) for tree in trees]


# --- derivatives -------------------------------------------------------------------------------------------------------
def _number(value):
    """As what a derivative starts from; a text: why it is none."""
    import numpy as np

    if not isinstance(value, (np.ndarray, np.generic)):
        if isinstance(value, float):
            return np.asarray(value)
        return f"the function must return a float, not {type(value).__name__}"
    if value.dtype.kind != "f":
        return f"the function must return a float, not {value.dtype}"
    if value.shape != ():
        return f"the function must return a number, not an array of the shape {value.shape}: take its sum, or use framejit.jvp"
    return value


def _reverse(has_aux):
    def differentiate(fun, args, kwargs, numbers):
        import numpy as np

        args, inputs = list(args), []
        for i in numbers:
            leaves = [_arrays.leaf(x) for x in _leaves(args[i], [])]
            inputs.extend(leaves)
            args[i] = _rebuilt(args[i], [_arrays.leaf(x) for x in leaves])  # which the function may write into
        value, aux = fun(*args, **kwargs), None
        if has_aux:
            if not isinstance(value, tuple) or len(value) != 2:
                return "with has_aux=True the function must return a pair", None, None, None
            value, aux = value
        start = _number(value)
        if isinstance(start, str):
            return start, None, None, None
        grads = _arrays.gradients([start], [np.ones_like(start)], inputs) if inputs else []
        return None, value, grads, aux

    return differentiate


def value_and_grad(fun, argnums=0, has_aux=False):
    """A function that returns what `fun` returns, and its gradient.

    fun:     takes NumPy arrays of floats (of any shape), Python floats, or tuples, lists and dicts of them at `argnums`, anything
             elsewhere, and returns a number: a float, or an array of floats of the shape ().
    argnums: the position of the argument that it is differentiated by, or a tuple of positions.
    has_aux: True: `fun` returns (number, more), and `more` is handed through.

    Returns a function of the same arguments, whose result is (value, gradient), or ((value, more), gradient). The gradient has the
    structure, the shapes and the dtypes of the argument (a `numpy.float64` for a Python float); with a tuple of positions it is a
    tuple. What `fun` writes into such an argument is not seen outside: it gets a copy.

    The function is compiled as one graph, with its derivative; loops are unrolled. Raises TypeError for arguments that hold no floats
    and for a `fun` that does not return a number, ValueError for positions that there are not, and `framejit.BreakError`, which
    names the operation and its line, where `fun` does what no graph holds or what has no derivative here. Floating-point
    warnings of NumPy are not given.
    """
    _checked(fun, "framejit.value_and_grad")

    @functools.wraps(fun)
    def both(*args, **kwargs):
        given, numbers = list(args), _positions(argnums, len(args), "framejit.value_and_grad")
        for i in numbers:
            given[i] = _floats(args[i], f"argument {i} of {getattr(fun, '__name__', 'the function')}, which is differentiated by,")
        problem, value, grads, aux = _run(
            _reverse, "gradient", fun, (bool(has_aux),), (tuple(given), kwargs, tuple(numbers)),
            lambda: fun(*[_copied([x])[0] if i in numbers else x for i, x in enumerate(given)], **kwargs),
        )  # fmt: skip
        if problem is not None:
            raise TypeError(f"framejit.value_and_grad: {problem}")
        trees = [_rebuilt(args[i], _as_given(args[i], grads)) for i in numbers]
        return (value, aux) if has_aux else value, tuple(trees) if isinstance(argnums, tuple) else trees[0]

    return both


def _as_given(tree, grads):
    """The next ones, for the leaves of the tree: of a number a number."""
    import numpy as np

    mine = []
    for leaf in _leaves(tree, []):
        grad = grads.pop(0)
        mine.append(grad if isinstance(leaf, np.ndarray) else grad[()])
    return mine


def grad(fun, argnums=0, has_aux=False):
    """A function that returns the gradient of `fun`, which returns a number.

    The arguments and errors are those of `framejit.value_and_grad`; the result is the gradient alone, or (gradient, more) with
    has_aux=True. `framejit.grad(framejit.grad(f))` is the second derivative of a function of one number.
    """
    _checked(fun, "framejit.grad")
    both = value_and_grad(fun, argnums, has_aux)

    @functools.wraps(fun)
    def gradient(*args, **kwargs):
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient


def _forward():
    def push(fun, primals, tangents):
        import numpy as np

        inputs = [_arrays.leaf(x) for x in _leaves(primals, [])]
        value = fun(*_rebuilt(primals, [_arrays.leaf(x) for x in inputs]))
        results, along = _leaves(value, []), []
        for y in results:
            if not isinstance(y, (np.ndarray, np.generic, float)):
                return f"the function must return floats, not {type(y).__name__}", None, None
        results = [y if isinstance(y, (np.ndarray, np.generic)) else np.asarray(y) for y in results]
        for y in results:
            if y.dtype.kind != "f":
                return f"the function must return floats, not {y.dtype}", None, None
            along.append(_arrays.leaf(np.zeros(y.shape, y.dtype)))
        # The gradients along `along` are linear in it: their derivative by it, along the tangents, is the tangent.
        if inputs and results:
            pulled = _arrays.gradients(results, along, inputs)
            along = _arrays.gradients(pulled, _leaves(tangents, []), along)
        return None, value, along

    return push


def jvp(fun, primals, tangents):
    """The value of `fun` and its derivative along a direction.

    fun:      takes NumPy arrays of floats, Python floats, or tuples, lists and dicts of them, and returns arrays of floats or trees of them.
    primals:  a tuple or list, the arguments of `fun`.
    tangents: the direction: of the structure, the shapes and the dtypes of `primals`.

    Returns (fun(*primals), tangent), where the tangent has the structure, the shapes and the dtypes of the value.
    Raises TypeError where `primals` and `tangents` do not fit or hold no floats, and `framejit.BreakError` as
    `framejit.value_and_grad` does; so do functions whose second derivative has no formula here.
    """
    import numpy as np

    _checked(fun, "framejit.jvp")
    for what, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise TypeError(f"framejit.jvp: {what} must be a tuple or list, not {type(given).__name__}")
    if _shape_of(tuple(primals)) != _shape_of(tuple(tangents)):
        raise TypeError("framejit.jvp: primals and tangents are of different structure")
    at, along = (_floats(tuple(given), f"framejit.jvp: {what}") for what, given in (("primals", primals), ("tangents", tangents)))
    for x, t in zip(_leaves(at, []), _leaves(along, [])):
        if x.shape != t.shape or x.dtype != t.dtype:
            raise TypeError(f"framejit.jvp: a tangent {t.dtype}{list(t.shape)} beside a primal {x.dtype}{list(x.shape)}")
    problem, value, out = _run(_forward, "tangent", fun, (), (at, along), lambda: fun(*_copied(at)))
    if problem is not None:
        raise TypeError(f"framejit.jvp: {problem}")
    leaves = [t if isinstance(y, np.ndarray) else t[()] for y, t in zip(_leaves(value, []), out)]
    return value, _rebuilt(value, leaves)


# --- batches -----------------------------------------------------------------------------------------------------------
def _axes(tree, axes, what, into):
    """By leaf of the tree: its axis, or None. `axes` is a prefix of the tree."""
    if axes is None or isinstance(axes, int):
        into.extend([axes] * len(_leaves(tree, [])))
        return into
    both_dicts = isinstance(axes, dict) and isinstance(tree, dict) and set(axes) == set(tree)
    both_lists = isinstance(axes, (tuple, list)) and isinstance(tree, (tuple, list)) and len(axes) == len(tree)
    if not both_dicts and not both_lists:
        raise ValueError(f"framejit.vmap: {what}={axes!r} does not fit the structure of what it is for")
    for key in axes if both_dicts else range(len(axes)):
        _axes(tree[key], axes[key], what, into)
    return into


def _batches(out_axes):
    def run(fun, args, kwargs, in_axes, size):
        import numpy as np

        leaves, samples, wholes, dims = _leaves(args, []), [], [], []
        for i, axis in enumerate(in_axes):
            if axis is not None:
                sample = _arrays.sample(leaves[i], axis)
                samples.append(sample), wholes.append(leaves[i]), dims.append(axis)
                leaves[i] = sample
        for i, axis in enumerate(in_axes):  # copies, which the function may write into; all else is older than the last sample
            if axis is not None:
                leaves[i] = _arrays.leaf(leaves[i])
        value = fun(*_rebuilt(args, leaves), **kwargs)
        results = _leaves(value, [])
        for y in results:
            if not isinstance(y, (np.ndarray, np.generic, float, int)):
                return f"the function must return arrays, not {type(y).__name__}", None
        results = [y if isinstance(y, (np.ndarray, np.generic)) else np.asarray(y) for y in results]
        axes = _axes(value, out_axes, "out_axes", [])
        same = [i for i, axis in enumerate(axes) if axis is None]
        made = _arrays.batched(results, samples, wholes, dims, size, same)
        moved = []
        for whole, one, axis in zip(made, _leaves(value, []), axes):
            if axis is None:  # the same for all samples
                moved.append(one)
            else:
                moved.append(whole if axis == 0 else np.moveaxis(whole, 0, axis))
        return None, _rebuilt(value, moved)

    return run


def vmap(fun, in_axes=0, out_axes=0):
    """A function that does for a whole batch what `fun` does for one sample.

    fun:      takes and returns NumPy arrays, or tuples, lists and dicts of them.
    in_axes:  which axis of the arrays counts the samples: an int for all arguments, None for what is the same for all samples, or a
              tuple with one of these, or a tree of them, for each positional argument. Keyword arguments are the same for all samples.
    out_axes: likewise, where that axis lies in the results. None: a result that is the same for all samples, given once.

    Returns a function of the same arguments. Its results are those of `fun` for each sample, stacked along `out_axes`; the code is
    that of the batch, not a loop over samples. Raises ValueError where axes do not fit or sizes of batches differ or are zero, and
    `framejit.BreakError`, which names the operation and its line, where `fun` calls what has no rule for batches or decides by data.

    `fun` runs once, not once for each sample: what it prints or counts happens once. It must not write into arrays from outside, keep
    arrays of a sample (in a list or an attribute) or draw random numbers, which are such errors, too; `out_axes=None` of a result that
    differs from sample to sample is a ValueError.
    """
    _checked(fun, "framejit.vmap")

    @functools.wraps(fun)
    def batch(*args, **kwargs):
        import numpy as np

        axes = _axes(args, tuple(in_axes) if isinstance(in_axes, list) else in_axes, "in_axes", [])
        sizes, given = set(), []
        for x, axis in zip(_leaves(args, []), axes):
            if axis is not None:
                x = np.asarray(x)
                if not -x.ndim <= axis < x.ndim:
                    raise ValueError(f"framejit.vmap: axis {axis} of an array of the shape {x.shape}")
                axis %= x.ndim
                sizes.add(x.shape[axis])
            given.append((x, axis))
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"framejit.vmap: batches of the sizes {sorted(sizes)}" if sizes else "framejit.vmap: no argument has a batch")
        whole, at = _rebuilt(args, [x for x, _ in given]), tuple([axis for _, axis in given])

        def one():
            first = [x if axis is None else _arrays.sample(x, axis) for x, axis in given]
            return fun(*_rebuilt(args, first), **kwargs)

        try:
            problem, value = _run(_batches, "batch", fun, (out_axes,), (whole, kwargs, at, sizes.pop()), one)
        except BreakError as error:
            if _ONE_FOR_ALL not in str(error):
                raise
            raise ValueError(f"framejit.vmap: {_ONE_FOR_ALL}") from error
        if problem is not None:
            raise TypeError(f"framejit.vmap: {problem}")
        return value

    return batch


