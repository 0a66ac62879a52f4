"""Compiled modules.

`compile(module)` must give something that *is* a module of the same class with the same state, while the original stays
eager. So: a new object whose class is a subclass of the module's, made for this one object, and whose `__dict__` is the
very dictionary of the original. State, hooks, train/eval, attributes and isinstance then hold by construction, and the
methods of the class (HF's `generate`, say) that call `self(...)` reach the compiled call.

Invariant: at most one such twin for each (original, settings), alive as long as the original is, so that compiling again
(in a request handler) finds the same compiled segments. A twin refers to its original weakly: the original's entry in
`_twins` would otherwise keep itself alive.
"""

import copy
import functools
import types
import weakref

from . import _framejit
from ._compile import _compile_any
from ._weak import WeakIdMap

_twins = WeakIdMap()  # original -> [twin, ...]


class _Twin:
    """What the class of every compiled module adds. First base, so that copying and pickling know the class is made. Without slots:
    its objects are laid out like modules, so that a program may set `__class__` to a class with a mixin in front."""

    def __init_subclass__(cls):
        pass  # registries of the user's base classes must not see the made class

    def __reduce_ex__(self, protocol):
        return compile_module, (original_of(self), type(self)._framejit_settings)

    def __deepcopy__(self, memo):
        original = original_of(self)
        if type(self) is _made(type(self)) or hasattr(type(original), "__deepcopy__"):
            copied = copy.deepcopy(original, memo)
        else:  # a class that the program set, as torch's parametrizations, which allow no other way
            copied = _share(original, type(original))
            object.__setattr__(copied, "__dict__", copy.deepcopy(original.__dict__, memo))
        return compile_module(copied, type(self)._framejit_settings)

    def __copy__(self):
        return compile_module(copy.copy(original_of(self)), type(self)._framejit_settings)


def _made(cls):
    """The class that was made by compile_module, among those of `cls`."""
    return next(c for c in cls.__mro__ if "_framejit_settings" in c.__dict__)


def _as_written(cls, made):
    """Such a class that the program has made of `made`, made of the class that the program wrote."""
    if not issubclass(cls, made):
        return cls
    if cls is made:
        return made.__mro__[2]
    slots = cls.__dict__.get("__slots__", ())
    names = {"__dict__", "__weakref__", *((slots,) if isinstance(slots, str) else slots)}
    namespace = {name: value for name, value in cls.__dict__.items() if name not in names}
    cell = types.CellType()
    namespace = {name: _in_class(value, cell) for name, value in namespace.items()}
    cell.cell_contents = types.new_class(cls.__name__, tuple(_as_written(base, made) for base in cls.__bases__), {}, lambda own: own.update(namespace))
    return cell.cell_contents


def _in_class(value, cell):
    """What stands in a class, for the class in `cell`, which `super()` and `__class__` name there."""
    if isinstance(value, (staticmethod, classmethod)):
        return type(value)(_in_class(value.__func__, cell))
    if type(value) is property:
        return property(*(_in_class(f, cell) for f in (value.fget, value.fset, value.fdel)), value.__doc__)
    if not isinstance(value, types.FunctionType) or "__class__" not in value.__code__.co_freevars:
        return value
    cells = tuple(cell if name == "__class__" else c for name, c in zip(value.__code__.co_freevars, value.__closure__, strict=True))
    made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    for name in ("__kwdefaults__", "__doc__", "__qualname__", "__module__", "__annotations__"):
        setattr(made, name, getattr(value, name))
    made.__dict__.update(value.__dict__)
    return made


@functools.cache
def _metaclass(kind):
    """That of a made class: what the program sets of `type(self)` is set of the class that it wrote. Classes that the program makes of
    a made one (torch's parametrizations, sharding) are its own."""

    class Made(kind):
        def __setattr__(cls, name, value):
            if name.startswith("_framejit_") or _made(cls) is not cls:
                return super().__setattr__(name, value)
            return setattr(cls.__mro__[2], name, value)

        def __delattr__(cls, name):
            if _made(cls) is not cls:
                return super().__delattr__(name)
            return delattr(cls.__mro__[2], name)

    Made.__name__, Made.__qualname__, Made.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    return Made


def compile_module(module, settings):
    """The twin of `module` under `settings`; the module itself if it already is one."""
    if isinstance(module, _Twin):
        if type(module)._framejit_settings == settings:
            return module
        module = original_of(module)
    for twin in _twins.get(module, ()):
        if type(twin)._framejit_settings == settings:
            return twin
    made = _class_of(module, settings)
    twin = _share(module, made)
    _twins.setdefault(module, []).append(twin)
    _forget_with(twin, made.__call__)
    return twin


def _class_of(module, settings):
    """The class of its twin."""
    cls = type(module)
    namespace = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__call__": _compiled_call(cls, module, settings),
        "_framejit_settings": settings,
        "_framejit_original": weakref.ref(module),
    }
    return _metaclass(type(cls))(cls.__name__, (_Twin, cls), namespace)


def _follow(module, before, twins=_twins):
    """The program has set `__class__` of a module: its twins get such a class, too, but for those whose own class it has set. That of a
    twin, set to what is no class of a twin (lazy modules do so in their first call), is that of the module from now on."""
    if issubclass(before, _Twin) and not isinstance(module, _Twin):
        twin, cls = module, type(module)
        object.__setattr__(twin, "__class__", before)
        module = original_of(twin)
        object.__setattr__(module, "__class__", cls)
        return
    for twin in twins.get(module, ()):
        before = _made(type(twin)) if isinstance(twin, _Twin) else None
        if type(twin) is before:
            made = _class_of(module, before._framejit_settings)
            if "_framejit_end" in before.__dict__:
                before._framejit_end()
            object.__setattr__(twin, "__class__", made)
            _forget_with(twin, made.__call__)


_framejit.tell_of_classes(_follow)


def _forget_with(twin, call):
    """Drops the segments of `call` when `twin` dies: their guards refer to the class, and the class to them."""
    if isinstance(call, _framejit.CompiledFunction):
        type(twin)._framejit_end = end = weakref.finalize(twin, call.clear)
        end.atexit = False


def _compiled_call(cls, module, settings):
    call = cls.__call__
    if isinstance(call, types.FunctionType):  # one function serves all modules: this module's segments are its own
        return _framejit.compile_function(call, settings, module)
    return _compile_any(call, settings)


def original_of(twin):
    """The module as the user made it; if it is gone, an equal view of the twin's state (always the same one)."""
    cls, made = type(twin), _made(type(twin))
    if cls is not made:  # set by the program, of the twin alone
        return _share(twin, _as_written(cls, made))
    original = made._framejit_original()
    if original is None:
        original = _share(twin, made.__mro__[2])
        made._framejit_original = lambda: original
    return original


def _share(module, cls):
    """An object of class `cls` with the state of `module`: the same `__dict__`, copies of slots."""
    other = object.__new__(cls)
    object.__setattr__(other, "__dict__", module.__dict__)
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(module, name):
                object.__setattr__(other, name, getattr(module, name))
    return other
