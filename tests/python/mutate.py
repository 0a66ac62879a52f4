"""Changes what a program read, and looks whether its compiled form notices.

A program (harness.py) is built twice, once as written and once compiled, and both are called twice. Then one thing that the program can
read is changed on both sides, both are called, the change is taken back, and both are called again. Every call must show the same on both sides.
What is changed: variables of enclosing functions and globals that its code names, defaults, attributes of objects and classes (changed, removed,
and names added that were absent), items of containers, memory of tensors and arrays, the arguments' dtypes, sizes, layouts and need of
gradients, switches of process and thread, and the thread itself.
"""

import contextlib
import ctypes
import decimal
import functools
import gc
import operator
import random
import re
import sys
import threading
import types
import warnings

import harness

# Of threading: the other threads of this process (a test runner's) need it whole.
LIBRARIES = ("torch", "numpy", "builtins", "typing", "types", "functools", "collections", "itertools", "enum", "abc", "contextlib", "threading")
MAKERS = ("__new__", "__init__", "__init_subclass__", "__set_name__", "__class_getitem__", "__prepare__")
MOST_WRONG = 8  # then a program is given up
# Torch believes the size without a look, and reads past the ends of its memory; the class is its own invention.
OF_TORCH = {"hidden_size", "_backward_cls"}
# What kills the process or reads past the end of memory, whoever calls it, if the sizes are others than it is told.
BOUND_TO_SIZES = {"_weight_norm", "as_strided"}
# From 3.12 on super(type, None) is no error at first, and one as soon as CPython has specialised the instruction.
PYTHONS_OWN = "super(type, obj): obj must be an instance or subtype of type"
PER_BUILD = 6  # changes that one pair of sides sees, so that a place does not run out of versions


def _torch():
    return sys.modules.get("torch")


def _is_ours(kind):
    return not (kind.__module__ or "").split(".")[0] in LIBRARIES


def _codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


class Place:
    """Where a value is: how to find it from a side's function, how to set and how to remove it."""

    def __init__(self, steps):
        self.steps = steps  # (kind, key) from the function on

    def owner(self, function):
        """What holds the value: two sides may have it in common."""
        at = self._before_last(function)
        kind, key = self.steps[-1]
        return at.__globals__ if kind == "global" else at.__closure__[key] if kind == "variable" else at

    def _before_last(self, function):
        at = function
        for kind, key in self.steps[:-1]:
            at = READ[kind](at, key)
        return at

    def get(self, function):
        kind, key = self.steps[-1]
        return READ[kind](self._before_last(function), key)

    def put(self, function, value):
        kind, key = self.steps[-1]
        WRITE[kind](self._before_last(function), key, value)

    def remove(self, function):
        kind, key = self.steps[-1]
        REMOVE[kind](self._before_last(function), key)

    def __str__(self):
        return "f" + "".join(f".{key}" if kind in ("attribute", "own") else f"[{kind} {key!r}]" for kind, key in self.steps)


def _write_default(function, key, value):
    function.__defaults__ = tuple(value if i == key else d for i, d in enumerate(function.__defaults__))


def _own(owner, key):
    """The attribute as it lies in the object: functions unbound, descriptors themselves."""
    return vars(owner)[key] if isinstance(owner, type) else object.__getattribute__(owner, key)


READ = {
    "variable": lambda f, i: f.__closure__[i].cell_contents,
    "global": lambda f, name: f.__globals__[name],
    "default": lambda f, i: f.__defaults__[i],
    "attribute": getattr,
    "own": _own,
    "class": lambda o, _: type(o),
    "function": lambda f, _: f.__func__ if hasattr(f, "__func__") else f.fget,
    "item": lambda c, key: c[key],
}
WRITE = {
    "variable": lambda f, i, value: setattr(f.__closure__[i], "cell_contents", value),
    "global": lambda f, name, value: f.__globals__.__setitem__(name, value),
    "default": _write_default,
    "attribute": setattr,
    "own": setattr,
    "item": lambda c, key, value: c.__setitem__(key, value),
}
REMOVE = {"attribute": delattr, "own": delattr, "item": lambda c, key: c.__delitem__(key), "global": lambda f, name: f.__globals__.__delitem__(name)}


def names_of_module(module):
    """Its names, also where its class has a `__getattribute__` of its own."""
    return types.ModuleType.__getattribute__(module, "__dict__")


def places(function):
    """(place, value) of everything that the function can read and that somebody may change; and (place, None) of names that are absent."""
    names = set()
    found, absent, seen = [], [], set()

    def walk(value, steps, depth):
        if id(value) in seen or depth > 5:
            return
        if isinstance(value, types.ModuleType):  # its classes that the program names may get attributes
            for name in sorted(n for n in names if isinstance(names_of_module(value).get(n), type)):
                absent.extend((names_of_module(value)[name], [*steps, ("attribute", name)], missing) for missing in names)
            return
        seen.add(id(value))
        if isinstance(value, (staticmethod, classmethod, property)) and (getattr(value, "fget", None) or hasattr(value, "__func__")):
            return walk(READ["function"](value, None), [*steps, ("function", "")], depth + 1)
        if isinstance(value, types.MethodType):
            return walk(value.__func__, [*steps, ("attribute", "__func__")], depth)
        if isinstance(value, types.FunctionType):
            if not harness.is_ours(value.__code__.co_filename):
                return
            own = {name for code in _codes(value.__code__) for name in code.co_names}
            names.update(own, (c for code in _codes(value.__code__) for c in code.co_consts if isinstance(c, str) and c.isidentifier()))
            for i, cell in enumerate(value.__closure__ or ()):
                with contextlib.suppress(ValueError):
                    add(cell.cell_contents, [*steps, ("variable", i)], depth)
            for name in sorted(own & set(value.__globals__)):
                add(value.__globals__[name], [*steps, ("global", name)], depth)
            for i, default in enumerate(value.__defaults__ or ()):
                add(default, [*steps, ("default", i)], depth)
        elif isinstance(value, type):
            if _is_ours(value):
                for name in [n for n in vars(value) if not n.startswith("__") or isinstance(vars(value)[n], types.FunctionType) and n not in MAKERS]:
                    add(vars(value)[name], [*steps, ("own", name)], depth)
                add(value.__name__, [*steps, ("attribute", "__name__")], depth)
                absent.extend((value, steps, name) for name in names)
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate((list if isinstance(value, list) else tuple).__getitem__(value, slice(4))):
                add(item, [*steps, ("item", i)], depth)
        elif isinstance(value, dict):
            for key in list(value)[:6]:
                if isinstance(key, (str, int)):
                    add(value[key], [*steps, ("item", key)], depth)
        elif _is_ours(type(value)) or _torch() and isinstance(value, _torch().nn.Module):
            for name in [n for n in getattr(value, "__dict__", {}) if isinstance(n, str) and not n.startswith("__")]:
                add(value.__dict__[name], [*steps, ("own", name)], depth)
            walk(type(value), [*steps, ("class", "")], depth + 1)
            absent.extend((value, steps, name) for name in names)

    def add(value, steps, depth):
        found.append((Place(steps), value))
        walk(value, steps, depth + 1)

    walk(function, [], 0)
    gone = [(Place([*steps, ("attribute", name)]), None) for value, steps, name in absent if not name.startswith("__") and not hasattr(value, name)]
    return found, gone


def _double(function):
    @functools.wraps(function)
    def doubled(*args, **kwargs):
        result = function(*args, **kwargs)
        if isinstance(result, bool):
            return not result
        if isinstance(result, (int, float)):
            return result + 1
        return result + result if isinstance(result, (str, list, tuple)) or _is_tensor(result) else result

    return doubled


def _is_tensor(value):
    torch, numpy = harness._torch(), harness._numpy()
    return torch is not None and isinstance(value, torch.Tensor) or numpy is not None and isinstance(value, numpy.ndarray)


def others(value):
    """(what, function of the value that gives another one)."""
    if isinstance(value, bool):
        return [("not", lambda v: not v)]
    if isinstance(value, int):
        return [("+ 1", lambda v: v + 1)]
    if isinstance(value, float):
        return [("+ .5", lambda v: v + 0.5)]
    if isinstance(value, str):
        return [("another text", lambda v: v + "x")]
    if value is None:
        return [("1 for None", lambda v: 1)]
    if type(value) is tuple:
        return [("longer", lambda v: v + (v[-1:] or (1,)))]
    if type(value) is list:
        return [("longer", lambda v: v + (v[-1:] or [1])), ("shorter", lambda v: v[:-1])]
    if type(value) is dict:
        return [("another key", lambda v: {**v, "a new key": 1}), ("a key less", lambda v: dict(list(v.items())[:-1])), ("reversed", lambda v: dict(reversed(v.items())))]
    if type(value) is set:
        return [("another member", lambda v: v | {12345})]
    if isinstance(value, types.FunctionType):
        return [("doubled", _double)]
    if _is_tensor(value) and type(value).__name__ in ("Tensor", "ndarray"):
        return [("another tensor", lambda v: v * 2 if v.dtype != bool else ~v)]
    return []


def _written(array):
    before = array.copy()
    array *= 2
    return lambda: array.__setitem__(..., before)


def _written_tensor(tensor):
    torch, before = harness._torch(), tensor.detach().clone()
    with torch.no_grad():
        tensor.copy_(before * 2 if before.dtype != torch.bool else ~before)

    def back():
        with torch.no_grad():
            tensor.copy_(before)

    return back


def _other_data(tensor):
    before = tensor.data
    tensor.data = before * 2
    return lambda: setattr(tensor, "data", before)


def _wanting(tensor):
    tensor.requires_grad_(not tensor.requires_grad)
    return lambda: tensor.requires_grad_(not tensor.requires_grad)


def of_tensors(value):
    """(what, change of the very tensor or array, which gives the way back)."""
    if type(value).__name__ == "ndarray" and value.dtype.kind in "fiu" and value.flags.writeable:
        yield "written in place", _written
    if type(value).__name__ in ("Tensor", "Parameter", "Buffer") and str(value.layout) == "torch.strided" and value.is_leaf and not value.is_inference():
        yield "written in place", _written_tensor
        if value.is_floating_point():
            yield "other data", _other_data
            yield "other need of gradients", _wanting


def of_modules(value):
    torch = harness._torch()
    if torch is None or not isinstance(value, torch.nn.Module):
        return

    def doubled(module, args, result):
        return result * 2 if isinstance(result, torch.Tensor) else result

    yield "a hook", lambda module: module.register_forward_hook(doubled).remove
    yield "a hook before it", lambda module: module.register_forward_pre_hook(lambda m, args: tuple(a * 2 if isinstance(a, torch.Tensor) else a for a in args)).remove


def changes(function):
    """{description: (owner, change() -> undo)} of everything that can be changed in what the function may read."""

    def setter(place, other):
        def change():
            before = place.get(function)
            place.put(function, other(before))
            return lambda: place.put(function, before)

        return change

    def remover(place):
        def change():
            before = place.get(function)
            place.remove(function)
            return lambda: place.put(function, before)

        return change

    def adder(place):
        def change():
            place.put(function, 3)
            return lambda: place.remove(function)

        return change

    def of_value(place, how):
        return lambda: how(place.get(function))

    made = {}
    found, absent = places(function)
    for place, value in found:
        kind, key = place.steps[-1]
        if key in OF_TORCH:
            continue
        if kind in WRITE:
            for what, other in others(value):
                made[f"{place}: {what}"] = place.owner(function), setter(place, other)
            for what, how in of_tensors(value) if _is_tensor(value) else of_modules(value):
                made[f"{place}: {what}"] = value, of_value(place, how)
        if kind in REMOVE:
            made[f"{place}: removed"] = place.owner(function), remover(place)
    for place, _ in absent:
        made[f"{place}: added"] = place.owner(function), adder(place)
    return made


# --- the world around a call -------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def _set(getter, setter, value):
    before = getter()
    setter(value)
    try:
        yield
    finally:
        setter(before)


@contextlib.contextmanager
def _warnings_raise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def _printed(torch):
    torch.set_printoptions(precision=2)
    try:
        yield
    finally:
        torch.set_printoptions(profile="default")


def _modes(torch):
    """Modes of torch that change nothing, or what an operation gives."""

    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func in (torch.sin, torch.Tensor.sin, torch.exp, torch.relu) else result

    class Operations(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func in (torch.ops.aten.sin.default, torch.ops.aten.exp.default, torch.ops.aten.relu.default) else result

    yield "a mode of functions", Functions
    yield "a mode of operations", Operations


def switches():
    """(name, context manager factory) of states of process and thread that a program may read."""
    torch, numpy = harness._torch(), harness._numpy()
    yield "recursion limit", lambda: _set(sys.getrecursionlimit, sys.setrecursionlimit, 3210)
    yield "decimal precision", lambda: decimal.localcontext(prec=7)
    yield "warnings that raise", _warnings_raise
    yield "no garbage collection", lambda: _set(gc.isenabled, lambda on: gc.enable() if on else gc.disable(), False)
    if numpy is not None:
        yield "numpy.errstate", lambda: numpy.errstate(all="ignore")
        yield "numpy errors that raise", lambda: numpy.errstate(all="raise")
        yield "numpy print options", lambda: numpy.printoptions(precision=2)
    if torch is not None:
        yield "no_grad", torch.no_grad
        yield "inference_mode", torch.inference_mode
        yield "autocast", lambda: torch.autocast("cpu", dtype=torch.bfloat16)
        yield "default dtype", lambda: _set(torch.get_default_dtype, torch.set_default_dtype, torch.float64)
        yield "matmul precision", lambda: _set(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium")
        yield "deterministic", lambda: _set(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)
        yield "threads", lambda: _set(torch.get_num_threads, torch.set_num_threads, 1)
        yield "default device", lambda: torch.device("cpu")
        yield "another default device", lambda: torch.device("meta")
        yield "autocast to float16", lambda: torch.autocast("cpu", dtype=torch.float16)
        yield "anomalies", lambda: torch.autograd.set_detect_anomaly(True)
        yield "no oneDNN", lambda: torch.backends.mkldnn.flags(enabled=False)
        yield "saved tensors packed", lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t)
        yield "torch print options", lambda: _printed(torch)
        yield from _modes(torch)


def arguments():
    """(name, function of a list of arguments that gives others)."""
    torch, numpy = harness._torch(), harness._numpy()

    def each(of_tensor, of_array):
        def change(value):
            if torch is not None and type(value) is torch.Tensor and value.layout is torch.strided:
                grad = value.requires_grad
                made = of_tensor(value.detach())
                return made.requires_grad_(grad) if grad and made.is_floating_point() else made
            if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind in "fiub":
                return of_array(value)
            return value

        return lambda made: type(made)(change(v) for v in made)

    def turned(v):
        return v.t().contiguous().t() if v.ndim == 2 else v

    def spaced(v):
        wide = v.repeat_interleave(2, -1) if v.ndim else v
        return wide[..., ::2] if v.ndim else v

    def shifted(v):
        return torch.cat([v[:1], v])[1:] if v.ndim else v

    def same_object(made):
        seen = {}
        kept = [seen.setdefault((type(v), str(v.dtype), tuple(v.shape)), v) if _is_tensor(v) else v for v in made]
        return type(made)(kept)

    yield "float64", each(lambda v: v.double() if v.is_floating_point() else v, lambda v: v.astype("f4") if v.dtype.kind == "f" else v)
    yield "int64", each(lambda v: v.long(), lambda v: v.astype("i8"))
    yield "int32", each(lambda v: v.int(), lambda v: v.astype("i4"))
    yield "other layout", each(turned, lambda v: numpy.asfortranarray(v))
    yield "every second element", each(spaced, lambda v: numpy.repeat(v, 2, -1)[..., ::2] if v.ndim else v)
    yield "in the middle of its memory", each(shifted, lambda v: numpy.concatenate([v[:1], v])[1:] if v.ndim else v)
    yield "the same row again", each(lambda v: v[:1].expand(v.shape) if v.ndim and len(v) else v, lambda v: numpy.broadcast_to(v[:1], v.shape) if v.ndim and len(v) else v)
    yield "backwards in memory", each(lambda v: v, lambda v: v[::-1].copy()[::-1] if v.ndim else v)
    yield "one object", same_object
    yield "another device", each(lambda v: v.to("meta"), lambda v: v)
    for size in (0, 1, 2):
        yield f"first size {size}", each(lambda v, n=size: v[:n].clone() if v.ndim else v, lambda v, n=size: v[:n].copy() if v.ndim else v)
        yield f"last size {size}", each(lambda v, n=size: v[..., :n].clone() if v.ndim else v, lambda v, n=size: v[..., :n].copy() if v.ndim else v)
    yield "zeros for numbers", lambda made: type(made)(type(v)(0) if type(v) in (int, float) else v for v in made)
    yield "floats for integers", lambda made: type(made)(float(v) if type(v) is int else v for v in made)
    yield "other numbers", lambda made: type(made)(v + 1 if type(v) in (int, float) else v for v in made)
    if torch is not None:
        yield "requires_grad", lambda made: type(made)(
            v.detach().requires_grad_(not v.requires_grad) if type(v) is torch.Tensor and v.is_floating_point() and v.is_leaf else v for v in made
        )


class TooDeep(Exception):
    """How deep a recursion gets is nobody's promise, and what it does on its way differs."""


class Sides:
    """A program built several times, each with state of its own, and called alike. moves: of the arguments of a side, by a function of them."""

    def __init__(self, build, compilers, moves=None):
        self.sides, self.read = [], None
        for wrap, move in zip(compilers, moves or [None] * len(compilers)):
            with harness._restored_thread_state():
                function, make = build()
                self.sides.append([function, wrap(function), make, move])

    def call(self, context=contextlib.nullcontext, other=None, thread=False):
        """[Seen] of the sides."""
        seen = []
        for _, wrapped, make, move in self.sides:

            def run(wrapped=wrapped, make=make, move=move):
                def mutated():
                    made = make()
                    with_keywords = len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict)
                    if other:
                        made = (other(made[0]), made[1]) if with_keywords else other(made)
                    return move(made) if move else made

                with harness._restored_thread_state(), context():
                    return harness.observe(wrapped, mutated)

            if thread:
                box = []
                worker = threading.Thread(target=lambda box=box, run=run: box.append(run()), name="another thread")
                worker.start()
                worker.join()
                seen.append(box[0])
            else:
                seen.append(run())
        if all(s.shape["exception"] and s.shape["exception"][0][0] == "RecursionError" for s in seen):
            raise TooDeep
        for s in seen:  # addresses, ids and hashes made of them differ between the sides
            for what in ("exception", "result"):
                s.shape[what] = re.sub(r"0x[0-9a-f]{8,}|\b\d{12,}\b", "0x", repr(s.shape.get(what)))
        return seen

    def changed(self, kind, what, how, of_reads, extension):
        """The two calls of a change: under it, and when it was taken back."""
        if kind == "under":
            yield self.call(context=how)
        elif kind == "called with":
            yield self.call(other=how)
        elif kind == "from another thread":
            yield self.call(thread=True)
        else:
            import reads

            if of_reads and not self.read:
                self.read = [of_reads(f, make, extension) for f, _, make, _ in self.sides]
            with _changed([reads.changes(r) for r in self.read] if of_reads else [changes(side[0]) for side in self.sides], what):
                seen = self.call()
            yield seen
        yield self.call()


def _memory_holds(byte, value=None):
    """The value, where memory that is allocated next holds the byte until it is written (None: whatever it does; glibc's M_PERTURB is -6): a few
    operations hand out memory that they never wrote (a linear layer of a weight on `meta`)."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(-6, 0 if byte is None else byte ^ 0xFF)
    return value


def _again(build, change, calls):
    """Of a call of the program as written, what it shows when it is built anew: twice, then with operands that were rounded otherwise."""
    rng = random.Random(1)
    move = functools.partial(harness.rounded_otherwise, draw=rng.random)
    try:
        sides = Sides(build, [lambda f: f] * 5, [functools.partial(_memory_holds, byte) for byte in (0x70, 0xF0)] + [move] * 3)
        for call in range(calls):
            seen = sides.call() if call < 2 else None
            if call == 2:
                later = sides.changed(*change)
            if call >= 2:
                seen = next(later)
        return seen
    except Exception:  # of what was changed
        return []
    finally:
        _memory_holds(None)


@contextlib.contextmanager
def _changed(found, what):
    """Makes the change of that name on every side, on what they have in common once; found: a side's {description: (owner, change)}."""
    undo, owners = [], []
    try:
        for side in found:
            owner, change = side[what]
            if not any(owner is o or isinstance(owner, tuple) and isinstance(o, tuple) and all(map(operator.is_, owner, o)) for o in owners):
                undo.append(change())
                owners.append(owner)
        yield
    finally:
        for back in reversed(undo):
            back()


def _todo(build, framejit, of_reads):
    """[(kind, what, how)] of all the program's changes."""
    function, make = build()
    if not isinstance(function, (types.FunctionType, types.MethodType)):
        return []
    for thread in (False, False, True):  # the first call imports, and warns of, what is imported or warned of once
        with contextlib.suppress(Exception):  # TooDeep
            Sides(build, [lambda f: f] * 2).call(thread=thread)
    functions = [function, *(value for _, value in places(function)[0] if isinstance(value, types.FunctionType))]
    names = {name for f in functions for code in _codes(f.__code__) for name in code.co_names}
    if of_reads:
        import reads

        found = reads.changes(of_reads(function, make, framejit._framejit))
        return [("changed", what, None) for what in found if not (what.endswith(": None") and "getrefcount" in names)]  # of which everybody has some
    todo = [("changed", what, None) for what in changes(function)]
    counts = "getrefcount" in names  # what is not collected holds objects of each side for as long as it likes
    todo += [("under", what, context) for what, context in switches() if not (counts and what == "no garbage collection")]
    layouts = (" size ", " memory", " layout", " element", " row ", "int32")  # and smaller numbers
    todo += [("called with", what, other) for what, other in arguments() if not names & BOUND_TO_SIZES or not any(l in f" {what}" for l in layouts)]
    return [*todo, ("from another thread", "", None)]


def check(build, framejit, most=None, seed=0, of_reads=None):
    """Runs the program's changes, or `most` of them by chance; of_reads: changes of what this recorder (of reads.py or lookups.py) saw it read,
    else of what it may read and of the world around the call. Returns (changes made, [what was wrong])."""
    todo = _todo(build, framejit, of_reads)
    if most is not None and len(todo) > most:
        todo = random.Random(f"{build.__name__} {seed}").sample(todo, most)
    wrong, made, pair = [], 0, None
    for number, (kind, what, how) in enumerate(todo):
        label = f"{kind} {what}".strip()
        change = (kind, what, how, of_reads, framejit._framejit)

        def compare(call, seen, label, change=change, other=how if kind == "called with" else None):
            wide = dict if label.startswith("changed") else functools.partial(harness._in_float64, build, other)
            again = functools.cache(functools.partial(_again, build, change, call + 1))
            harness.compare(f"{build.__name__}: {label}", call, seen[1], seen[0], wide, again)

        try:
            if number % PER_BUILD == 0 or pair is None:
                framejit.reset()  # functions of equal code share their versions, of which there may be so many
                pair = Sides(build, [lambda f: f, framejit.compile])
                for call in range(2):
                    compare(call, pair.call(), "as built")
            calls = pair.changed(*change)
            compare(2, next(calls), label)
            compare(3, next(calls), f"{label}, taken back")
            made += 1
        except AssertionError as error:
            pair = None
            if PYTHONS_OWN in str(error):
                continue
            wrong.append(str(error))
            if len(wrong) >= MOST_WRONG:
                break
        except Exception:  # TooDeep; the maker of arguments has only a few, or what it needs was changed
            pair = None
    return made, wrong
