"""What a call of a program reads, written down while the interpreter of frames runs it (src/frame/recorder.cc), and changes of just these places.

mutate.py walks from a function to what it may read. Here nothing is guessed: whatever an instruction of the function, or of a Python function
that it calls, took from an object that outlives the call is changed at each place where Python looks for it: the object, its class, the
classes above, the metaclass, a `__getattr__` that was not there, the built-in behind a global, `object.__class__`.
"""

import builtins
import collections
import contextlib
import contextvars
import functools
import io
import os
import sys
import types
import warnings

import harness
from mutate import LIBRARIES, MAKERS, OF_TORCH, _double, others

MISSING = object()
FIVE = property(lambda self: 5)
PLAIN = (bool, int, float, str, type(None))
CONTAINERS = (collections.OrderedDict, list, dict, set, collections.deque)
IMMUTABLE = (*PLAIN, bytes, complex, tuple, frozenset, slice, range, types.CodeType, types.BuiltinFunctionType, types.GeneratorType, types.CellType)


def _raw(function, make, extension):
    """The recorder's list of one call."""
    reads = []
    with harness._restored_thread_state(), warnings.catch_warnings(record=True), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        made = make()
        args, kwargs = made if len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict) else (made, {})
        extension.frame_record(reads)
        try:
            function(*args, **kwargs)
        except Exception:  # a program may raise
            pass
        finally:
            extension.frame_sweep_off()
    return reads


def _single(reads):
    """(kind, owner, key) with a single owner each: what calls and operators read of their operands. What code of libraries reads counts where it
    is the program's: torch's and NumPy's functions are known by what they do, not by their code."""
    for kind, owner, key, code in reads:
        yield from _state(kind, owner, key)
        if not harness.is_ours(code.co_filename) and not _of_program(owner):
            continue
        if kind == "call":
            if (owner is getattr or owner is hasattr) and len(key) > 1 and isinstance(key[1], str):
                yield "attribute", key[0], key[1]
            else:
                yield "called", owner, None
                yield from (("operate", a, None) for a in (*key, getattr(owner, "__self__", None)))
        elif kind == "operate":
            yield from ((kind, a, None) for a in (owner, key))
        else:
            yield kind, owner, key
            if kind in ("item", "contains"):
                yield "operate", key, None


def _state(kind, owner, key):
    """Variables of the environment and of contexts, also where code of Python's library reads them."""
    operands = (getattr(owner, "__self__", None), *key) if kind == "call" else (owner, key)
    for what, name in zip(operands, (*operands[1:], None)):
        if what is os.environ and isinstance(name, str) and kind in ("call", "item", "contains"):
            yield "environment", what, name
        elif isinstance(what, contextvars.ContextVar):
            yield "context", what, None


def recorded(function, make, extension):
    """[(kind, owner, key)] of what a call reads in objects that are there before it and after it: two calls have both read them."""
    calls = [list(_single(_raw(function, make, extension))) for _ in range(2)]
    lasting = {id(owner) for _, owner, _ in calls[0]} & {id(owner) for _, owner, _ in calls[1]}
    found = {}
    for kind, owner, key in calls[0]:
        if id(owner) in lasting and (kind == "variable" or not isinstance(owner, IMMUTABLE)):
            found.setdefault((kind, id(owner), key if isinstance(key, (str, int)) else id(key)), (kind, owner, key))
    return list(found.values())


def _of_program(owner):
    torch = sys.modules.get("torch")
    kind = owner if isinstance(owner, type) else type(owner)
    return _is_ours(kind) and not isinstance(owner, types.ModuleType) or torch is not None and isinstance(owner, torch.nn.Module)


# --- namespaces ---------------------------------------------------------------------------------------------------------------------
def _lying(owner, name):
    """The value of the name in this very object, or MISSING."""
    if name in getattr(owner, "__dict__", ()):
        return vars(owner)[name]
    if not isinstance(owner, type) and isinstance(getattr(type(owner), name, None), types.MemberDescriptorType):
        with contextlib.suppress(AttributeError):
            return object.__getattribute__(owner, name)
    return MISSING


def _lay(owner, name, value):
    if isinstance(owner, type):
        return type.__delattr__(owner, name) if value is MISSING else type.__setattr__(owner, name, value)
    space = getattr(owner, "__dict__", None)
    if space is None or name not in space and isinstance(getattr(type(owner), name, None), types.MemberDescriptorType):
        return object.__delattr__(owner, name) if value is MISSING else object.__setattr__(owner, name, value)
    if value is MISSING:
        del space[name]
    else:
        space[name] = value


def _lay_item(owner, key, value):
    kind = next(k for k in CONTAINERS if isinstance(owner, k))  # whatever its class makes of it
    if value is MISSING:
        kind.__delitem__(owner, key)
    else:
        kind.__setitem__(owner, key, value)


def _lay_item_of(owner, key, value):
    if value is MISSING:
        del owner[key]
    else:
        owner[key] = value if isinstance(value, str) else "3"


def _set_context(variable):
    before = variable.get(MISSING)
    token = variable.set((_other_values(before) if before is not MISSING else [("", 3)])[0][1])
    return lambda: variable.reset(token)


def _lay_variable(cell, _, value):
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _change(lay, owner, key, before, after):
    """The change of one place and the way back."""

    def change():
        lay(owner, key, after)
        return lambda: lay(owner, key, before)

    return change


def _other_values(value):
    if isinstance(value, (staticmethod, classmethod)):
        return [("doubled", type(value)(_double(value.__func__)))]
    if isinstance(value, property):
        return [("doubled", property(_double(value.fget), value.fset))] if value.fget else []
    if isinstance(value, functools.cached_property):
        made = functools.cached_property(_double(value.func))
        made.attrname = value.attrname
        return [("doubled", made)]
    return [(what, other(value)) for what, other in others(value)] or [("None", None)]


def _values(lay, owner, key, before, plain_only=False):
    """Changes of a place: others, or none."""
    if before is MISSING:
        yield "added", _change(lay, owner, key, MISSING, 3)
        return
    if plain_only and not isinstance(before, PLAIN):
        return
    for what, value in _other_values(before):
        yield what, _change(lay, owner, key, before, value)
    if not plain_only:
        yield "removed", _change(lay, owner, key, before, MISSING)


def _is_library(module):
    """Of its variables only plain values are changed: much else stands on the others."""
    name = str(module.__name__).split(".")[0]  # a program may set it to anything
    return name in LIBRARIES or name in sys.builtin_module_names or not harness.is_ours(str(getattr(module, "__file__", "<")))


def _is_ours(kind):
    module = sys.modules.get(kind.__module__)
    return kind.__module__ not in LIBRARIES if module is None else not _is_library(module)


def _attribute(owner, name):
    if name.startswith("__"):
        return
    if isinstance(owner, types.ModuleType):
        if name in vars(owner) or not _is_library(owner):
            yield from _values(_lay, owner, name, vars(owner).get(name, MISSING), _is_library(owner))
        return
    kind = owner if isinstance(owner, type) else type(owner)
    if kind is not owner and (hasattr(owner, "__dict__") or isinstance(getattr(kind, name, None), types.MemberDescriptorType)):
        yield from ((f"in the object: {what}", c) for what, c in _values(_lay, owner, name, _lying(owner, name)))
    for above in [*kind.__mro__, *(type(kind).__mro__ if kind is owner else ())]:
        if not _is_ours(above):
            continue
        lying = vars(above).get(name, MISSING)
        if not isinstance(lying, types.MemberDescriptorType):
            yield from ((f"in {above.__name__}: {what}", c) for what, c in _values(_lay, above, name, lying))
            yield f"in {above.__name__}: a property", _change(_lay, above, name, lying, FIVE)
    meta = type(owner)
    if _is_ours(meta):
        if "__getattr__" not in vars(meta):
            yield f"__getattr__ of {meta.__name__}", _change(_lay, meta, "__getattr__", MISSING, lambda self, n: 7)

        def asked(self, n, base=meta.__getattribute__):
            return 9 if n == name else base(self, n)

        if "__getattribute__" not in vars(meta):
            yield f"__getattribute__ of {meta.__name__}", _change(_lay, meta, "__getattribute__", MISSING, asked)
    if kind is not owner and _is_ours(kind):
        yield "another class", functools.partial(_reclass, owner, {name: 11})


def _reclass(owner, body):
    before = type(owner)
    after = type(before)(before.__name__ + "Other", (before,), dict(body) if hasattr(owner, "__dict__") else {**body, "__slots__": ()})
    object.__setattr__(owner, "__class__", after)
    return lambda: object.__setattr__(owner, "__class__", before)


def _contents(owner):
    """Another length, for a container."""

    def change(to, back):
        def changed():
            to()
            return back

        return changed

    kind = next((k for k in CONTAINERS if isinstance(owner, k)), None)
    if isinstance(owner, dict):
        yield "a key more", change(lambda: kind.__setitem__(owner, "a new key", 1), lambda: kind.__delitem__(owner, "a new key"))
        kept = dict(owner)
        yield "empty", change(lambda: kind.clear(owner), lambda: kind.update(owner, kept))
    elif isinstance(owner, (list, collections.deque)) and len(owner):
        yield "an item more", change(lambda: kind.append(owner, owner[-1]), lambda: kind.pop(owner))
        kept = list(owner)
        yield "empty", change(lambda: kind.clear(owner), lambda: kind.extend(owner, kept))
    elif isinstance(owner, set):
        yield "a member more", change(lambda: set.add(owner, 12345), lambda: set.discard(owner, 12345))


def _operators(owner):
    """What operators and built-ins ask of an object: its length, or special methods of its class."""
    yield from _contents(owner)
    kind = type(owner)
    if _is_ours(kind) and not isinstance(owner, (type, types.ModuleType)):
        for above in kind.__mro__:
            for name, value in list(vars(above).items()) if _is_ours(above) else ():
                if name.startswith("__") and isinstance(value, types.FunctionType) and name not in ("__init__", "__new__", "__getattr__", "__getattribute__"):
                    yield f"{name} of {above.__name__}: doubled", _change(_lay, above, name, value, _double(value))
        yield "another class", functools.partial(_reclass, owner, {})
        for name in ("__len__", "__bool__", "__eq__", "__iter__", "__index__", "__call__"):
            if not hasattr(kind, name) or name == "__eq__" and "__eq__" not in vars(kind):
                yield f"{name} added", _change(_lay, kind, name, MISSING, lambda self, *a: 0)


def _special(kind, name):
    """A special method of a class, by name."""
    lying = vars(kind).get(name, MISSING)
    if lying is MISSING:
        yield "added", _change(_lay, kind, name, MISSING, lambda self, *a: 0)
    elif isinstance(lying, types.FunctionType) and name not in MAKERS:
        yield "doubled", _change(_lay, kind, name, lying, _double(lying))


def _called(owner):
    if isinstance(owner, types.MethodType):
        owner = owner.__func__
    if isinstance(owner, types.FunctionType) and harness.is_ours(owner.__code__.co_filename):
        if owner.__defaults__:
            yield "defaults", _change(lambda f, _, v: setattr(f, "__defaults__", v), owner, None, owner.__defaults__, tuple(2 if isinstance(d, PLAIN) else d for d in owner.__defaults__))
        if owner.__kwdefaults__:
            for name, value in owner.__kwdefaults__.items():
                yield from ((f"default {name}: {what}", c) for what, c in _values(_lay_item, owner.__kwdefaults__, name, value))
        if not owner.__code__.co_freevars:
            yield "code", _change(lambda f, _, v: setattr(f, "__code__", v), owner, None, owner.__code__, (lambda *a, **k: 3).__code__)


def _changes(kind, owner, key):
    if isinstance(key, str) and key in OF_TORCH:
        return
    if owner is warnings or owner is vars(warnings):  # the harness's own
        return
    if kind == "attribute":
        yield from _attribute(owner, key)
    elif kind == "special":
        yield from _special(owner, key)
    elif kind == "environment":
        yield from _values(_lay_item_of, owner, key, owner.get(key, MISSING))
    elif kind == "context":
        yield "another value", functools.partial(_set_context, owner)
    elif kind == "global":
        lying, library = owner.get(key, MISSING), not harness.is_ours(str(owner.get("__file__", "<"))) or str(owner.get("__name__")).startswith("namedtuple_")
        if lying is MISSING and library:
            return
        if lying is MISSING and hasattr(builtins, key):
            behind = getattr(builtins, key)
            yield "in front of the built-in", _change(_lay_item, owner, key, MISSING, _double(behind) if callable(behind) and not isinstance(behind, type) else 3)
        else:
            yield from _values(_lay_item, owner, key, lying, library)
    elif kind == "variable":
        try:
            lying = owner.cell_contents
        except ValueError:
            lying = MISSING
        yield from _values(_lay_variable, owner, None, lying)
    elif kind == "called":
        yield from _called(owner)
        yield from _operators(owner)
    else:
        if kind in ("item", "contains") and isinstance(owner, dict):
            yield from _values(_lay_item, owner, key, dict.get(owner, key, MISSING))
        elif kind == "item" and isinstance(owner, (list, collections.deque)) and isinstance(key, int) and -len(owner) <= key < len(owner):
            yield from ((what, c) for what, c in _values(_lay_item, owner, key, owner[key]) if what != "removed")
        elif kind == "contains" and isinstance(owner, set):
            yield "member", functools.partial(_toggle, owner, key)
        yield from _operators(owner)


def _toggle(owner, member):
    before = member in owner
    (set.discard if before else set.add)(owner, member)
    return lambda: (set.add if before else set.discard)(owner, member)


def changes(reads):
    """{description: (owner, change() -> undo)} of everything that was read."""
    found, count = {}, collections.Counter()
    for kind, owner, key in reads:
        label = f"{kind} {type(owner).__name__} {getattr(owner, '__name__', '') if not isinstance(owner, dict) else ''}"
        label += f".{key}" if isinstance(key, (str, int)) else ""
        with contextlib.suppress(Exception):  # an object that answers nothing
            for what, change in _changes(kind, owner, key):
                text = f"{label}: {what}"
                count[text] += 1
                place = owner if key is None or isinstance(key, (str, int)) else (owner, key)  # two sides may have it in common
                found[f"{text} #{count[text]}" if count[text] > 1 else text] = (place, change)
    return found
