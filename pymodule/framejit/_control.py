"""Switches and marks: `disable`, `stance`, `mark_dynamic`, `mark_static`."""

from . import _framejit
from ._weak import WeakIdMap
from .errors import OptionError, unknown


def disable(fn=None, *, reason=None):
    """Run a function, and what it calls, as written, also when compiled code calls it. A decorator, bare or with
    arguments. reason: shown in the break report of the caller."""
    if fn is None:
        return lambda target: disable(target, reason=reason)
    if not callable(fn):
        raise TypeError(f"framejit.disable takes a callable, not {type(fn).__name__!r}")
    import functools

    if isinstance(fn, _framejit.CompiledFunction):
        fn = fn.__wrapped__
    call_eager = _framejit.call_eager

    @functools.wraps(fn, updated=("__dict__",) if hasattr(fn, "__dict__") else ())
    def disabled(*args, **kwargs):
        return call_eager(fn, args, kwargs)

    disabled._torchdynamo_disable, disabled._torchdynamo_disable_msg = True, reason  # torch.compile stays out as well
    return disabled


class stance:  # noqa: N801 (used like a function)
    """What compiled functions do from now on; also a context manager and a decorator.

    "default"             compile what is new
    "force_eager"         run everything as written
    "eager_on_recompile"  use what is compiled, run the rest as written
    "fail_on_recompile"   raise framejit.RecompileError where something would be compiled
    """

    NAMES = ["default", "force_eager", "eager_on_recompile", "fail_on_recompile"]
    _current = "default"

    def __init__(self, name="default"):
        if name not in self.NAMES:
            raise OptionError(unknown("stance", name, self.NAMES))
        self._name = name
        self._before = [stance._current]
        self._set(name)

    @staticmethod
    def _set(name):
        _framejit.set_stance(name)
        stance._current = name

    def __enter__(self):
        if stance._current != self._name:  # entered again
            self._before.append(stance._current)
            self._set(self._name)
        return self

    def __exit__(self, *exc_info):
        self._set(self._before.pop() if len(self._before) > 1 else self._before[0])

    def __call__(self, fn):
        import functools

        self._set(self._before[0])  # as a decorator it acts during calls only
        name = self._name

        @functools.wraps(fn)
        def under_stance(*args, **kwargs):
            with stance(name):
                return fn(*args, **kwargs)

        return under_stance


_marks = WeakIdMap()  # tensor -> {dim: ("dynamic", min, max) or ("static",)}


def _mark(tensor, dims, mark):
    shape = getattr(tensor, "shape", None)
    if shape is None:
        raise TypeError(f"expected a tensor or an array, not {type(tensor).__name__!r}")
    rank = len(shape)
    for dim in range(rank) if dims is None else (dims,) if isinstance(dims, int) else dims:
        if not -rank <= dim < rank:
            raise IndexError(f"dimension {dim} of a tensor with {rank} dimensions")
        _marks.setdefault(tensor, {})[dim % rank] = mark


def mark_dynamic(tensor, dim, min=None, max=None):  # noqa: A002
    """Make dimension `dim` (an int or several) of this tensor or array a symbol in whatever is captured with it.

    min, max: promised bounds of the size; other sizes compile another version. Raises IndexError for a dimension that
    the tensor has not.
    """
    if min is not None and max is not None and min > max:
        raise OptionError(f"min={min} is more than max={max}")
    _mark(tensor, dim, ("dynamic", min, max))


def mark_static(tensor, dim=None):
    """Never make dimension `dim` (default: any) of this tensor or array a symbol."""
    _mark(tensor, dim, ("static",))


def marks_of(tensor):
    """{dim: ("dynamic", min, max) or ("static",)} of a tensor that was marked, or None. Capture asks."""
    return _marks.get(tensor)
