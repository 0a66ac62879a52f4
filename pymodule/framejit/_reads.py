"""What Python code that torch runs while a capture goes on could read or change of the program: the code of a class of wrappers on a tape
(src/capture/wrappers/tape.h). It is real code, run at the capture alone. So what its names reach is looked through before it runs: lists, dicts, attributes
and variables become guards (`Tape::GuardReads`), and where one is another afterwards, the code has an effect that no graph repeats: it is undone, and the graph
ends before the call. Code that reaches what cannot be compared (files, clocks, random numbers) is not run at all."""

import abc
import builtins
import collections
import dis
import enum
import functools
import re
import sys
import types

import torch

MISSING = object()
HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
MOST = 10_000  # values that are looked through
SCALARS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range, slice)
SWITCHES = torch.utils._contextlib._DecoratorContextManager  # of torch's modes
# Types whose objects are what they are, and tell nothing of others.
PLAIN = {*SCALARS, torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo}
PLAIN |= {types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType}
PLAIN |= {type(collections.namedtuple("_Named", "field").field)}
# Modules whose code keeps nothing of the program's and reads nothing that changes, but for the names below.
TRUSTED = {"torch", "torchao", "framejit", "numpy"}
PURE = {"abc", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "itertools", "math", "numbers", "operator"}
PURE |= {"re", "string", "types", "typing", "typing_extensions", "_operator", "_functools", "_collections", "_collections_abc", "__future__"}
STATEFUL = {"rand", "randn", "randint", "randperm", "normal", "random", "seed", "manual_seed", "initial_seed", "save", "load", "Generator", "default_generator"}
STATEFUL |= {"get_rng_state", "set_rng_state", "__subclasses__", "set_default_dtype", "set_default_device", "set_num_threads", "set_printoptions", "backends", "num_threads"}
STATEFUL |= {"get_num_threads", "get_num_interop_threads", "get_float32_matmul_precision", "set_float32_matmul_precision", "use_deterministic_algorithms"}
STATEFUL |= {"are_deterministic_algorithms_enabled", "is_deterministic_algorithms_warn_only_enabled", "get_deterministic_debug_mode", "is_warn_always_enabled"}
STATEFUL |= {"geterr", "seterr", "geterrcall", "seterrcall", "errstate", "get_printoptions", "printoptions", "getbufsize", "setbufsize"}
# Functions of Python with effects, or that reach what no name tells.
REFUSED = {"print", "open", "input", "exec", "eval", "compile", "globals", "locals", "breakpoint", "__import__", "setattr", "delattr", "help", "id", "memoryview"}
BY_NAME = {"getattr", "hasattr", "vars", "dir", "__dict__", "__getattribute__", "__setattr__", "__delattr__", "attrgetter", "methodcaller"}
BY_NAME |= {"copy", "deepcopy", "asdict", "astuple", "replace"}
# Methods and functions that change a container.
CHANGING = {"append", "extend", "insert", "pop", "popitem", "remove", "discard", "clear", "sort", "reverse", "add", "update", "setdefault", "setitem", "delitem"}
CHANGING |= {"difference_update", "intersection_update", "symmetric_difference_update", "iadd", "iand", "iconcat", "imul", "ior", "isub", "ixor"}
CHANGING |= {"appendleft", "extendleft", "popleft", "rotate", "move_to_end", "subtract", "heappush", "heappop", "heapreplace", "heappushpop", "heapify"}
CHANGING |= {"insort", "insort_left", "insort_right", "shuffle", "put", "copyto", "resize", "itemset", "fill"}
CHANGING |= {f"__{name}__" for name in ("setitem", "delitem", "iadd", "iand", "imul", "ior", "isub", "ixor", "setstate")}
UNREAD = {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__", "__name__", "__slots__", "__init_subclass__", "__abstractmethods__"}
UNREAD |= {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__deepcopy__", "__copy__", "__parameters__", "__orig_bases__", "__match_args__"}
UNREAD |= {"__dataclass_fields__", "__dataclass_params__", "__firstlineno__", "__static_attributes__", "__annotate__", "__class_getitem__", "_abc_impl", "__slotnames__"}
# Attributes of functions and of classes that lie in none of their dicts.
ASKED = {types.FunctionType: {"__name__", "__qualname__", "__doc__", "__module__", "__annotations__"}, type: {"__name__", "__qualname__"}}


def _top(module):
    return module.partition(".")[0] if isinstance(module, str) else ""


def _known(cls):
    """Is it a class of Python's or of a library whose code is known? One that was made without a module says that it is a built-in."""
    top = _top(cls.__module__)
    return top in TRUSTED | PURE and not (top == "builtins" and cls.__flags__ & HEAP)


def _same(a, b):
    """Is it the same object, or a number or text like it?"""
    return a is b or (type(a) is type(b) and isinstance(a, SCALARS) and repr(a) == repr(b))


def _all_same(a, b):
    return len(a) == len(b) and all(map(_same, a, b))


def _same_dict(a, b):
    return all(map(_same, a, b)) and _all_same(list(a.values()), list(b.values())) and len(a) == len(b)


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


def _set_dict(d, _, value):
    d.clear()
    d.update(value)


def _differing(a, b):
    return [name for name in {**a, **b} if not _same(a.get(name, MISSING), b.get(name, MISSING))]


def _class(cls, _):
    return {n: v for n, v in vars(cls).items() if n not in UNREAD}


def _set_class(cls, _, value):
    for name in _differing(_class(cls, None), value):
        if name in value:
            type.__setattr__(cls, name, value[name])
        else:
            type.__delattr__(cls, name)


def _set_list(a, _, value):
    a[:] = value


def _set_set(a, _, value):
    a.clear()
    a.update(value)


def _set_function(f, _, value):
    f.__code__, f.__defaults__, f.__kwdefaults__ = value


def _set_kind(o, _, value):
    object.__setattr__(o, "__class__", value)


def _set_object(o, _, value):
    _set_dict(vars(o), None, value)


def _asked(o, name):
    """The descriptor that reads and writes what lies in no dict."""
    return vars(type if isinstance(o, type) else types.FunctionType)[name]


def _typed(x):
    return type(x), x


# What is compared, by kind: how it is read, compared, and put back.
KINDS = {
    "item": (lambda d, name: d.get(name, MISSING), _same, _set_item),
    "class": (_class, _same_dict, _set_class),
    "asked": (lambda o, name: _asked(o, name).__get__(o), _same, lambda o, name, value: _asked(o, name).__set__(o, value)),
    "abstract": (lambda token, _: token(), _same, None),
    "kind": (lambda o, _: type(o), _same, _set_kind),
    "object": (lambda o, _: dict(vars(o)), _same_dict, _set_object),
    "cell": (_cell, _same, _set_cell),
    "list": (lambda a, _: list(a), _all_same, _set_list),
    "dict": (lambda d, _: dict(d), _same_dict, _set_dict),
    "set": (lambda a, _: frozenset(a), lambda a, b: a == b and set(map(_typed, a)) == set(map(_typed, b)), _set_set),
    "function": (lambda f, _: (f.__code__, f.__defaults__, f.__kwdefaults__), _all_same, _set_function),
}


NAMES = {"forward", "backward", "setup_context", "vjp", "jvp"}  # that are read in any case


# Since 3.14, in the words of the versions before.
_FORMER = {
    "LOAD_FAST_BORROW": "LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST_LOAD_FAST",
    "LOAD_SMALL_INT": "LOAD_CONST",
    "NOT_TAKEN": "NOP",
    "POP_ITER": "POP_TOP",
}


def instructions(code):
    """Those of dis."""
    for step in dis.get_instructions(code):
        subscript = step.opname == "BINARY_OP" and step.argrepr == "[]"
        former = "BINARY_SUBSCR" if subscript else _FORMER.get(step.opname)
        yield step._replace(opname=former) if former else step


class Unfollowed(Exception):
    """It reaches what cannot be compared."""


class Reads:
    def __init__(self):
        self.entries, self.known = [], set()  # (kind, owner, name, value)
        self.seen = {}  # what has been looked at, by its id; kept alive
        self.names, self.by_name = set(NAMES), False  # of attributes that are read; all are
        self.stored, self.binds, self.changes = set(), False, False  # names that are written; are variables of functions, or containers?
        self.spaces = []  # classes and modules, whose attributes are read by name
        self.functions = []
        self.doubles = []  # (wrapper, its attributes)
        self.roots, self.drawn = [], None

    # --- looking through
    def _unread(self, space):
        return UNREAD

    def _refuse(self, what):
        raise Unfollowed(what)

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
        while before != (before := (len(self.names), len(self.spaces), len(self.functions), self.by_name)):
            for o in (*self.functions, *self.spaces):
                for name in ASKED.get(type if isinstance(o, type) else type(o), set()) & self.names:
                    if isinstance(o, type) and any(name in vars(c) for c in type(o).__mro__ if not _known(c)):
                        self._refuse(f"the {name} of a {type(o).__name__}")
                    self._value(self._note("asked", o, name))
            for space in list(self.spaces):
                is_class, held = isinstance(space, type), vars(space)
                known = not is_class and _top(space.__name__) in TRUSTED | PURE
                every = self.by_name and not known
                names = {n for n in held if every or n in self.names or (is_class and n.startswith("__") and n.endswith("__"))} - (self._unread(space) - self.names)
                for name in names if is_class else names | self.names | {"__getattr__"}:
                    if (id(space), name) not in done:
                        done.add((id(space), name))
                        value = held[name] if is_class else self._note("item", held, name)
                        if value is not MISSING and (not known or isinstance(value, (types.FunctionType, types.ModuleType, abc.ABCMeta))):
                            self._value(value)

    def _value(self, o):
        if type(o) in PLAIN or id(o) in self.seen:
            return
        self.seen[id(o)] = o
        if len(self.seen) > MOST:
            self._refuse(f"more than {MOST} values")
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
        else:
            self._contents(o)

    def _contents(self, o):
        kinds = {list: "list", dict: "dict", set: "set", collections.OrderedDict: "dict", collections.defaultdict: "dict"}
        kind = kinds.get(type(o))
        if kind:
            if len(o) > MOST:
                self._refuse(f"more than {MOST} values")
            held = self._note(kind, o)
            for x in held:
                self._value(x)
            if kind == "dict":
                for x in held.values():
                    self._value(x)
            if type(o) is collections.defaultdict:
                self.changes = True
                self._value(o.default_factory)
        elif isinstance(o, (tuple, frozenset)) and (type(o) in (tuple, frozenset, torch.Size) or hasattr(type(o), "_fields")):
            self._class(type(o))
            for x in o:
                self._value(x)
        elif isinstance(o, enum.Enum) or self._plain(type(o)):
            self._class(self._note("kind", o))
            for x in self._note("object", o).values():
                self._value(x)
        elif type(o) in (types.GenericAlias, types.UnionType) or (isinstance(o, SWITCHES) and not followed(type(o))) or _top(type(o).__module__).startswith("typing"):
            return
        else:
            self._other(o)

    def _import(self, name):
        self._refuse(f"an import of {name}")

    def _other(self, o):
        self._refuse(f"a {type(o).__name__}")

    def _plain(self, cls):
        """A class of the program's or a library's in Python, whose objects are their attributes."""
        own = [c for c in cls.__mro__ if c is not object]
        plain = all(not vars(c).get("__slots__") and c.__flags__ & HEAP and _top(c.__module__) not in TRUSTED for c in own)
        return plain and cls.__basicsize__ <= object.__basicsize__ + 16  # a dict, and weak references

    def _module(self, m):
        if m.__name__ == "numpy.random" or (_top(m.__name__) not in TRUSTED | PURE and _top(m.__name__) in sys.stdlib_module_names):
            self._refuse(f"the module {m.__name__}")
        self.spaces.append(m)

    def _class(self, cls):
        if isinstance(cls, abc.ABCMeta):  # which classes are its own is a matter of registrations, too
            self._note("abstract", abc.get_cache_token)
        for c in cls.__mro__:
            if _known(c):
                self.by_name |= c.__name__ in BY_NAME
                continue
            if not c.__flags__ & HEAP:  # made in C
                self._refuse(f"the class {c.__name__}")
            if not any(c is known for known in self.spaces):
                self.spaces.append(c)
                self._note("class", c)
        if type(cls) is not type:
            self._value(type(cls))

    def _builtin(self, f):
        owner = f.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            self._python(f.__name__)
            if _top(f.__module__ or "") not in TRUSTED | PURE or f.__name__ in STATEFUL:
                self._refuse(f"{f.__module__}.{f.__name__}")
        else:
            self.changes |= f.__name__ in CHANGING
            self._value(owner)

    def _python(self, name):
        if name in REFUSED:
            self._refuse(f"{name}()")
        self.by_name |= name in BY_NAME
        self.changes |= name in CHANGING

    def _function(self, f):
        trusted = _top(f.__globals__.get("__name__")) in TRUSTED | PURE
        if not trusted:
            self._note("function", f)
            self.functions.append(f)
            self._code(f.__code__, f.__globals__, f.__builtins__)
            for x in self._note("object", f).values():
                self._value(x)
        elif f.__name__ in STATEFUL:
            self._refuse(f"{f.__module__}.{f.__name__}")
        else:
            self.by_name |= f.__name__ in BY_NAME
        if not {_top(f.__globals__.get("__name__")), _top(f.__module__)} <= TRUSTED:  # a decorator keeps what it was given
            for cell in f.__closure__ or ():
                value = self._note("cell", cell)
                if value is not MISSING:
                    self._value(value)
            for value in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
                self._value(value)

    def _code(self, code, scope, built_in):
        for step in instructions(code):
            name, op = step.argval, step.opname
            if op in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
                self._global(name, scope, built_in)
                self.stored |= {name} if op[:4] != "LOAD" else set()
            elif op in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
                self.names.add(name)
                self.by_name |= name in BY_NAME
                self.changes |= name in CHANGING
                if name in STATEFUL:
                    self._refuse(f"something's {name}")
            elif op in ("STORE_ATTR", "DELETE_ATTR"):
                self.names.add(name)
                self.stored.add(name)
            elif op == "IMPORT_NAME" and _top(name) not in TRUSTED | PURE:
                self._import(name)
            elif op == "LOAD_BUILD_CLASS":
                self._refuse("a class that is made there")
            self.by_name |= op == "MATCH_CLASS"
            self.binds |= op in ("STORE_DEREF", "DELETE_DEREF")
            self.changes |= op in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE") or self._in_place(step, code, scope)
        self._constants(code.co_consts, scope, built_in)

    def _in_place(self, step, code, scope):
        return step.opname == "BINARY_OP" and step.argrepr.endswith("=")

    def _constants(self, constants, scope, built_in):
        """Texts may be names of attributes, also in a format."""
        for const in constants:
            if isinstance(const, types.CodeType):
                self._code(const, scope, built_in)
            elif isinstance(const, tuple):
                self._constants(const, scope, built_in)
            elif isinstance(const, str):
                self.names.update(re.findall(r"[^\W\d]\w*", const))

    def _global(self, name, scope, built_in):
        value = self._note("item", scope, name)
        if value is MISSING:
            value = self._note("item", built_in, name)
            if value is not MISSING and value is not vars(builtins).get(name):
                self._value(value)
            return self._python(name)
        if isinstance(value, types.BuiltinFunctionType):
            self._python(value.__name__)
        self._value(value)

    # --- comparing
    def begin(self):
        """Before the code runs. Gives what holds what is read: nothing of it may wait to be written."""
        if others := self._changed():
            raise Unfollowed(f"{others[0][2] or 'a ' + others[0][0]}, which another thread changes")
        self.drawn = torch.default_generator.get_state() if self.entries else None  # from which code may draw that names nothing of it
        return tuple({id(owner): vars(owner) if kind == "object" else owner for kind, owner, _, _ in self.entries}.values())

    def _changed(self):
        """The entries that are others now."""
        return [e for e in self.entries if not KINDS[e[0]][1](KINDS[e[0]][0](e[1], e[2]), e[3])]

    def _writes(self, kind, owner, name, value):
        """Could the code have changed it? Otherwise it was another thread."""
        if kind in ("list", "dict", "set"):
            return self.changes
        if kind == "cell":
            return self.binds
        if kind in ("class", "object"):
            names = _differing(KINDS[kind][0](owner, name), value)
        else:
            names = {"item": [name], "asked": [name], "abstract": [], "kind": ["__class__"], "function": ["__code__", "__defaults__", "__kwdefaults__"]}[kind]
        return self.by_name or bool(self.stored.intersection(names))

    def undo(self):
        """What the code changed, if anything: it is put back."""
        changed = None
        for kind, owner, name, value in self._changed():
            changed = changed or f"{name or 'a ' + kind}"
            if self._writes(kind, owner, name, value):
                KINDS[kind][2](owner, name, value)
        for wrapper, attributes in self.doubles:
            if not _same_dict(vars(wrapper), attributes):
                changed = changed or f"an attribute of a {type(wrapper).__name__}"
                _set_dict(vars(wrapper), None, attributes)
        if self.drawn is not None and not torch.equal(self.drawn, torch.default_generator.get_state()):
            changed = changed or "the random numbers"
            torch.default_generator.set_state(self.drawn)
        return changed


def followed(cls):
    """Is it the program's own code, and no library's that is known to keep to itself?"""
    return _top(getattr(cls, "__module__", None)) not in TRUSTED
