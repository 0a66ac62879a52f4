"""What Python code that torch runs while a capture goes on could read or change of the program: the code of a class of wrappers on a tape
(src/capture/wrappers/tape.h). It is real code, run at the capture alone. So what its names reach is looked through before it runs: lists, dicts, attributes
and variables become guards, and where one is another afterwards, the code has an effect that no graph repeats: it is undone, and the graph ends
before the call. Code that reaches what cannot be compared (files, clocks, random numbers) is not run at all."""

import builtins
import collections
import dis
import enum
import functools
import sys
import types

import torch

MISSING = object()
HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
SCALARS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range, slice)
OPAQUE = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo)
SWITCHES = torch.utils._contextlib._DecoratorContextManager  # of torch's modes
DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType)
DESCRIPTORS += (types.ClassMethodDescriptorType, types.MethodWrapperType)
# Modules whose code keeps nothing of the program's and reads nothing that changes, but for the attributes named below.
TRUSTED = {"torch", "torchao", "framejit", "numpy"}
PURE = {"abc", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "itertools", "math", "numbers", "operator"}
PURE |= {"re", "string", "types", "typing", "typing_extensions", "_operator", "_functools", "_collections", "_collections_abc", "__future__"}
STATEFUL = {"rand", "randn", "randint", "randperm", "normal", "random", "seed", "manual_seed", "initial_seed", "save", "load"}
STATEFUL |= {"get_rng_state", "set_rng_state", "set_default_dtype", "set_default_device", "set_num_threads", "set_printoptions"}
# Functions of Python with effects, or that reach what no name tells.
REFUSED = {"print", "open", "input", "exec", "eval", "compile", "globals", "locals", "breakpoint", "__import__", "setattr", "delattr", "help", "id", "memoryview"}
BY_NAME = {"getattr", "hasattr", "vars", "dir", "__dict__", "__getattribute__", "__setattr__", "__delattr__", "attrgetter", "methodcaller"}
UNREAD = {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__", "__name__", "__slots__", "__init_subclass__", "__abstractmethods__"}
UNREAD |= {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__deepcopy__", "__copy__", "__parameters__", "__orig_bases__", "__match_args__"}
UNREAD |= {"__dataclass_fields__", "__dataclass_params__", "__firstlineno__", "__static_attributes__", "__annotate__", "__class_getitem__", "_abc_impl"}


def _top(module):
    return module.partition(".")[0] if isinstance(module, str) else ""


def _same(a, b):
    """Is it the same object, or a number or text like it?"""
    return a is b or (type(a) is type(b) and isinstance(a, SCALARS) and repr(a) == repr(b))


def _all_same(a, b):
    return len(a) == len(b) and all(map(_same, a, b))


def _flat(d):
    return [x for item in d.items() for x in item]


def _cell(cell, _):
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _set_cell(cell, _, value):
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _set_item(d, name, value):
    if value is MISSING:
        d.pop(name, None)
    else:
        d[name] = value


def _set_class(cls, name, value):
    if value is MISSING:
        type.__delattr__(cls, name)
    else:
        type.__setattr__(cls, name, value)


def _set_dict(d, _, value):
    d.clear()
    d.update(zip(value[::2], value[1::2]))


def _set_list(a, _, value):
    a[:] = value


def _set_set(a, _, value):
    a.clear()
    a.update(value)


def _set_deque(a, _, value):
    a.clear()
    a.extend(value)


def _set_function(f, _, value):
    f.__code__, f.__defaults__, f.__kwdefaults__ = value


def _typed(x):
    return type(x), x


# What is compared, by kind: how it is read, compared, and put back.
KINDS = {
    "item": (lambda d, name: d.get(name, MISSING), _same, _set_item),
    "class": (lambda c, name: c.__dict__.get(name, MISSING), _same, _set_class),
    "cell": (_cell, _same, _set_cell),
    "list": (lambda a, _: list(a), _all_same, _set_list),
    "deque": (lambda a, _: list(a), _all_same, _set_deque),
    "dict": (lambda d, _: _flat(d), _all_same, _set_dict),
    "set": (lambda a, _: frozenset(a), lambda a, b: a == b and set(map(_typed, a)) == set(map(_typed, b)), _set_set),
    "function": (lambda f, _: (f.__code__, f.__defaults__, f.__kwdefaults__), _all_same, _set_function),
}


NAMES = {"forward", "backward", "setup_context", "vjp", "jvp"}  # that are read in any case


class Unfollowed(Exception):
    """It reaches what cannot be compared."""


class Reads:
    def __init__(self):
        self.entries, self.known = [], set()  # (kind, owner, name, value)
        self.seen = {}  # what has been looked at, by its id; kept alive
        self.names, self.stored, self.by_name = set(NAMES), set(), False
        self.spaces = []  # (class, module or object, are all its attributes read?)
        self.doubles = []  # (wrapper, its attributes)
        self.roots = []

    # --- looking through
    def add(self, *roots):
        """Raises Unfollowed."""
        new = [r for r in roots if not any(r is known for known in self.roots)]
        for root in sorted(new, key=lambda r: isinstance(r, torch.nn.Module)):
            # Hooks that torch itself makes (of parallel styles) get the module that they belong to, and read nothing of it.
            if not isinstance(root, torch.nn.Module) or self.names != NAMES:
                self._value(root)
        if new:
            self._spaces()
            self.roots += new

    def _note(self, kind, owner, name=None):
        value = KINDS[kind][0](owner, name)
        if (key := (kind, id(owner), name)) not in self.known:
            self.known.add(key)
            self.entries.append((kind, owner, name, value))
        return value

    def _spaces(self):
        """Looks through attributes until no new name and no new place is found."""
        before, done = None, set()
        while before != (before := (len(self.names), len(self.stored), len(self.spaces), self.by_name)):
            for space, whole in list(self.spaces):
                held, is_class = vars(space), isinstance(space, type)
                for name in [*held, *self.stored - held.keys()]:
                    special = is_class and name.startswith("__") and name.endswith("__")
                    wanted = whole or self.by_name or special or name in self.names or name in self.stored
                    if not wanted or name in UNREAD or (id(space), name) in done:
                        continue
                    done.add((id(space), name))
                    value = self._note("class", space, name) if is_class else self._note("item", held, name)
                    if value is not MISSING:
                        self._value(value)

    def _value(self, o):
        if isinstance(o, (*SCALARS, *OPAQUE, *DESCRIPTORS)) and type(o).__module__ in ("builtins", "types", "torch", "torch._ops"):
            return
        if id(o) in self.seen:
            return
        self.seen[id(o)] = o
        if isinstance(o, types.ModuleType):
            self._module(o)
        elif isinstance(o, type):
            self._class(o)
        elif isinstance(o, types.FunctionType):
            self._function(o)
        elif isinstance(o, types.BuiltinFunctionType):
            self._builtin(o)
        elif isinstance(o, (types.MethodType, types.MethodWrapperType)):
            self._value(o.__self__)
            if isinstance(o, types.MethodType):
                self._value(o.__func__)
        elif isinstance(o, (staticmethod, classmethod)):
            self._value(o.__func__)
        elif isinstance(o, property):
            for part in (o.fget, o.fset, o.fdel):
                self._value(part)
        elif type(o) is functools.partial:
            for part in (o.func, o.args, o.keywords):
                self._value(part)
        elif isinstance(o, functools._lru_cache_wrapper):
            self._value(o.__wrapped__)
        else:
            self._contents(o)

    def _contents(self, o):
        kinds = {list: "list", dict: "dict", set: "set", collections.OrderedDict: "dict", collections.defaultdict: "dict", collections.deque: "deque"}
        kind = kinds.get(type(o))
        if kind:
            for x in self._note(kind, o):
                self._value(x)
            if type(o) is collections.defaultdict:
                self._value(o.default_factory)
        elif isinstance(o, (tuple, frozenset)) and (type(o) in (tuple, frozenset, torch.Size) or hasattr(type(o), "_fields")):
            self._class(type(o))
            for x in o:
                self._value(x)
        elif isinstance(o, enum.Enum):
            self._class(type(o))
            self.spaces.append((o, True))
        elif type(o) in (types.GenericAlias, types.UnionType) or (isinstance(o, SWITCHES) and not followed(type(o))) or _top(type(o).__module__).startswith("typing"):
            return
        elif self._plain(type(o)):
            self._class(type(o))
            self.spaces.append((o, True))
        else:
            raise Unfollowed(f"a {type(o).__name__}")

    def _plain(self, cls):
        """A class of the program's or a library's in Python, whose objects are their attributes."""
        own = [c for c in cls.__mro__ if c is not object]
        plain = all(not vars(c).get("__slots__") and c.__flags__ & HEAP and _top(c.__module__) not in TRUSTED for c in own)
        return plain and cls.__basicsize__ <= object.__basicsize__ + 16  # a dict, and weak references

    def _module(self, m):
        if _top(m.__name__) not in TRUSTED | PURE:
            if m.__name__ in sys.stdlib_module_names or _top(m.__name__) in sys.stdlib_module_names:
                raise Unfollowed(f"the module {m.__name__}")
            self.spaces.append((m, False))

    def _class(self, cls):
        for c in cls.__mro__:
            if _top(c.__module__) in TRUSTED | PURE:
                continue
            if not c.__flags__ & HEAP:  # made in C
                raise Unfollowed(f"the class {c.__name__}")
            if not any(c is known for known, _ in self.spaces):
                self.spaces.append((c, False))
        if type(cls) is not type:
            self._value(type(cls))

    def _builtin(self, f):
        owner = f.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            self._python(f.__name__) if f.__module__ == "builtins" else None
            if _top(f.__module__ or "") not in TRUSTED | PURE or f.__name__ in STATEFUL:
                raise Unfollowed(f"{f.__module__}.{f.__name__}")
        else:
            self._value(owner)

    def _python(self, name):
        if name in REFUSED:
            raise Unfollowed(f"{name}()")
        self.by_name |= name in BY_NAME

    def _function(self, f):
        trusted = _top(f.__globals__.get("__name__")) in TRUSTED | PURE
        if not trusted:
            self._note("function", f)
            self._code(f.__code__, f.__globals__, f.__builtins__)
            self.spaces.append((f, False))
        elif f.__name__ in STATEFUL:
            raise Unfollowed(f"{f.__module__}.{f.__name__}")
        if not trusted or f.__closure__ and _top(f.__module__) not in TRUSTED | PURE:
            for cell in f.__closure__ or ():
                value = self._note("cell", cell)
                if value is not MISSING:
                    self._value(value)
            for value in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
                self._value(value)

    def _code(self, code, scope, built_in):
        steps = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
        for at, step in enumerate(steps):
            name, op = step.argval, step.opname
            if op in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
                after = steps[at + 1] if at + 1 < len(steps) else None
                self._global(name, scope, built_in, after)
            elif op in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
                self.names.add(name)
                self.by_name |= name in BY_NAME
            elif op in ("STORE_ATTR", "DELETE_ATTR"):
                self.names.add(name)
                self.stored.add(name)
            elif op == "IMPORT_NAME" and _top(name) not in TRUSTED | PURE:
                raise Unfollowed(f"an import of {name}")
            elif op == "LOAD_BUILD_CLASS":
                raise Unfollowed("a class that is made there")
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                self._code(const, scope, built_in)

    def _global(self, name, scope, built_in, after):
        value = self._note("item", scope, name)
        if value is MISSING:
            value = built_in.get(name, MISSING)
            if value is not MISSING and value is not vars(builtins).get(name):
                self._value(value)
            return self._python(name)
        attribute = after.argval if after is not None and after.opname in ("LOAD_ATTR", "LOAD_METHOD") else None
        if isinstance(value, types.ModuleType) and attribute in STATEFUL and _top(value.__name__) in TRUSTED | PURE:
            raise Unfollowed(f"{value.__name__}.{attribute}")
        if isinstance(value, types.BuiltinFunctionType) and value.__module__ == "builtins":
            self._python(value.__name__)
        self._value(value)

    # --- comparing
    def owners(self):
        """What holds what is read. Nothing of it may wait to be written when the code runs."""
        return tuple({id(owner): owner for _, owner, _, _ in self.entries}.values())

    def __call__(self, _):
        """Of a guard: is everything as it was?"""
        try:
            return all(KINDS[kind][1](KINDS[kind][0](owner, name), value) for kind, owner, name, value in self.entries)
        except Exception:
            return False

    def undo(self):
        """What the code changed, if anything: it is put back."""
        changed = None
        for kind, owner, name, value in self.entries:
            read, same, put = KINDS[kind]
            if not same(read(owner, name), value):
                changed = changed or f"{name or 'a ' + kind}"
                put(owner, name, value)
        for wrapper, attributes in self.doubles:
            if not _all_same(_flat(vars(wrapper)), _flat(attributes)):
                changed = changed or f"an attribute of a {type(wrapper).__name__}"
                _set_dict(vars(wrapper), None, _flat(attributes))
        return changed


def followed(cls):
    """Is it the program's own code, and no library's that is known to keep to itself?"""
    return _top(getattr(cls, "__module__", None)) not in TRUSTED
