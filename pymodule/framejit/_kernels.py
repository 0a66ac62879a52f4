"""What kernels of torch.library that are functions of Python could read or change of the program. They run when the graph runs, on what is there by
then: writes of the captured function that they could read must not wait behind them, and what they could change is not read behind them in one graph."""

import collections
import gc
import re
import sys
import types
import weakref

import numpy
import torch

from . import _operators
from ._keeping import KEEPING, METHODS, Keeping
from ._reads import CHANGING, PURE, SCALARS, TRUSTED, UNREAD, Reads, Unfollowed, _top, instructions

ESCAPES = {"exec", "eval", "globals", "locals", "breakpoint", "__import__", "compile"}  # what these reach is not known
ESCAPING = {"sys", "gc", "inspect", "importlib", "ctypes", "pickle", "builtins", "__main__"}
SETTING = {"setattr", "delattr", "vars", "__dict__", "__setattr__", "__delattr__", "__setstate__", "requires_grad_"}
SETTING |= {"register_buffer", "register_parameter", "register_module", "add_module"}
SWITCHING = {"train", "eval"}  # methods of modules that set `training`
MAKING = {"type", "__class__", "replace"}  # what makes objects of classes that the code does not name
MODULES_OWN = {"_parameters", "_buffers", "_modules"}
SKIPPED = (types.CodeType, types.FrameType, types.GetSetDescriptorType, types.MemberDescriptorType, torch.library.Library)
MOST = 20_000
SCHEMA = {"int", "SymInt", "float", "bool", "str", "number", "Device"}  # types of arguments that are no tensors
GRADIENTS = {"requires_grad", "is_leaf", "grad_fn", "grad"}  # what the run's tensors, which have values only, do not tell
FACTS = {"is_leaf", "grad_fn", "_version", "_base", "_is_view", "is_view", "output_nr", "retain_grad", "retains_grad", "register_hook", "Parameter"}
UNCOUNTED = {"data", "numpy", "__array__", "asarray", "data_ptr", "untyped_storage", "to_dlpack", "from_dlpack", "set_"}  # what may lead to writes that no version counts
asking, wondering = set(), set()  # the operators whose kernels read one of GRADIENTS, of the other FACTS
LYING = {"set_", "resize_", "resize_as_", "swap_tensors", "_swap_tensors"}  # what has a tensor lie in other memory, where the run would not look for it
moving = set()  # the operators whose kernels call one of these, or set `data`
WATCHED = {"item", "cell", "list", "dict", "set", "object", "class", "function"}  # entries that hold objects


def _of_python(module):
    """Is it the code of a library that keeps to itself: Python's own, torch's?"""
    return _top(module) in TRUSTED | PURE | sys.stdlib_module_names and _top(module) != "__main__"


def _all_operators():
    """(namespace, name) of those that torch does not define itself."""
    names = (name.partition(".")[0].partition("::") for name in torch._C._dispatch_get_all_op_names())
    return {(space, name) for space, _, name in names if space not in ("aten", "prim", "prims", "quantized", "_quantized")}


def _own_stores(code):
    """The attributes that a function sets of its first argument and of nothing else."""
    steps = list(instructions(code))
    own, others = set(), set()
    for before, step in zip(steps, steps[1:]):
        if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
            loaded = before.argval if isinstance(before.argval, tuple) else (before.argval,)  # one instruction may load two
            (own if before.opname.startswith("LOAD_FAST") and loaded[-1] == code.co_varnames[0] else others).add(step.argval)
    return own - others


class KernelReads(Reads):
    """What cannot be compared is of no concern here, unless it leads to what no name tells."""

    def __init__(self):
        super().__init__()
        self.everything = self.sets_by_name = self.writes = False  # writes: to tensors
        self.keeps = False  # could it store a tensor that it is given or gives, where it changes things? Not told by the code in keeping.
        self.keeping, self.named = Keeping(), None  # the second: what is looked at next, by its name alone
        self.names = set()
        self.others, self.tensors, self.inner = [], [], []
        self.made = {}  # classes that the code names, and may make objects of
        self.makes = self.draws = False  # objects of any class that is reached; random numbers that are not torch's

    def _refuse(self, what):
        if len(self.seen) > MOST:
            raise Unfollowed(what)

    def _python(self, name):
        self.everything |= name in ESCAPES
        self.sets_by_name |= name in SETTING
        self.changes |= name == "next"
        self.keeps |= name in SETTING
        self.makes |= name in MAKING
        super()._python(name)

    def _unread(self, space):
        return UNREAD if self.makes or id(space) in self.made else UNREAD | {"__init__", "__new__", "__post_init__"}

    def _in_place(self, step, code, scope):
        """A number in a global variable has another one then."""
        if not super()._in_place(step, code, scope):
            return False
        store = next(s for s in instructions(code) if s.offset > step.offset and s.opname != "CACHE")
        return store.opname != "STORE_GLOBAL" or not isinstance(scope.get(store.argval), SCALARS)

    def _import(self, name):
        module = sys.modules.get(name)
        self._value(module) if module else self._refuse(name)
        self.everything |= module is None

    def _module(self, module):
        self.draws |= module.__name__ in ("random", "numpy.random")
        self.everything |= module.__name__ in ESCAPING and _top(module.__name__) != "__main__"
        if _top(module.__name__) in TRUSTED or not _of_python(module.__name__):
            self.spaces.append(module)

    def _code(self, code, scope, built_in):
        before = set(self.stored)
        super()._code(code, scope, built_in)
        if code.co_name in ("__init__", "__post_init__"):  # what an object is given while it is made
            self.stored -= _own_stores(code) - before
        names = {*code.co_names}
        self.keeping.add(code, scope)
        self.keeps |= bool(SETTING & names)
        self.changes |= any(step.opname in METHODS and step.argval in KEEPING for step in instructions(code))
        self.sets_by_name |= bool(SETTING & names)
        self.makes |= bool(MAKING & names)
        if SWITCHING & names:
            self.stored.add("training")
        self.writes |= self.changes or any(n == "data" or (n.endswith("_") and not n.endswith("__")) for n in code.co_names)
        self.writes |= any(c == "out" or (isinstance(c, tuple) and "out" in c) for c in code.co_consts)

    def _constants(self, constants, scope, built_in):
        for const in constants:
            if isinstance(const, types.CodeType):  # of functions that are made there
                self.keeping.enter(const)
        super()._constants(constants, scope, built_in)

    def _global(self, name, scope, built_in):
        self.named = scope.get(name)
        super()._global(name, scope, built_in)

    def _builtin(self, f):
        self.keeps |= f.__name__ in CHANGING  # under whatever name it is called
        super()._builtin(f)

    def _function(self, f):
        if not _of_python(f.__globals__.get("__name__")):
            return super()._function(f)
        for cell in f.__closure__ or () if not {_top(f.__globals__.get("__name__")), _top(f.__module__)} <= TRUSTED else ():
            try:
                self._value(cell.cell_contents)
            except ValueError:
                pass  # it is empty

    def _class(self, cls):
        if not _of_python(cls.__module__):
            super()._class(cls)

    def _spaces(self):
        called = set()
        while True:
            super()._spaces()
            spaces = {m.name for m in self.spaces if isinstance(m, torch._ops._OpNamespace)} | self.names
            names = {pair for pair in _all_operators() if pair[0] in spaces and pair[1] in self.names} - called
            if not names:
                return
            called |= names
            for space, name in names:
                self._value(getattr(getattr(torch.ops, space), name))

    def _value(self, o):
        if isinstance(o, torch._library.custom_ops.CustomOpDef):
            o = o._opoverload
        if isinstance(o, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)) and id(o) not in self.seen:
            self.seen[id(o)] = o
            kernels = kernels_of(o)
            self.everything |= kernels is None
            for kernel in kernels or ():
                if isinstance(kernel, types.FunctionType):
                    self.keeping.enter(kernel.__code__, _kinds(o, kernel.__code__))
                    self.named = kernel
                self._value(kernel)
            return
        named, self.named = self.named, None
        if isinstance(o, types.FunctionType) and o is not named:
            self.keeping.enter(o.__code__)
        if isinstance(o, type):
            self.made.update((id(c), c) for c in o.__mro__)
        self.makes |= isinstance(o, classmethod)
        super()._value(o)

    def _contents(self, o):
        if type(o) in (list, dict, set, tuple, frozenset, collections.OrderedDict, collections.defaultdict):
            return super()._contents(o)
        if isinstance(o, SKIPPED):
            return
        self._class(type(o))
        self.draws |= type(o).__module__.startswith(("random", "_random", "numpy.random"))
        if isinstance(o, weakref.ref):  # which no garbage collector follows
            self._value(o())
        # To ask a tensor for its dict makes one.
        has_dict = not isinstance(o, torch.Tensor) or any(not isinstance(x, (type, collections.OrderedDict)) for x in gc.get_referents(o))
        if has_dict and isinstance(attributes := getattr(o, "__dict__", None), dict):
            self.seen[id(attributes)] = attributes  # no dict like any other
            if isinstance(o, torch.nn.Module):  # whose attributes lie in dicts of theirs
                own = [d for name, d in attributes.items() if name in MODULES_OWN and id(d) not in self.seen]
                self.inner += own
                self.seen.update((id(d), d) for d in own)
                for x in [x for d in own for x in d.values()]:
                    self._value(x)
            for x in self._note("object", o).values():
                self._value(x)
        if isinstance(o, (torch.Tensor, numpy.ndarray)):
            return self.tensors.append(o)
        self.others.append(o)  # what has slots, and what is written in C
        for x in gc.get_referents(o):
            if not isinstance(x, type):
                self._value(x)

    def places(self):
        """(owner, name or None: all of it; None: it stays as it is; True: the code could change it; a set: such attributes of it)"""
        stored = None if not (self.stored or self.sets_by_name) else True if self.sets_by_name else frozenset(self.stored)
        changes = {"list": self.changes, "dict": self.changes, "set": self.changes, "cell": self.binds, "class": stored, "object": stored}
        for kind, owner, name, _ in self.entries:
            if kind == "item":
                yield owner, name, (stored is True or name in self.stored) or None
            elif kind in changes:
                yield (vars(owner) if kind == "object" else owner), None, changes[kind] or None
        for d in self.inner:
            yield d, None, stored
        for o in self.others:
            yield o, None, True if self.changes or self.sets_by_name else stored

    def watched(self):
        """(kind, owner, name) of what has to hold nothing else when the graph runs; all that it holds now; dicts, each before the object that has it"""
        places = [(kind, owner, name) for kind, owner, name, _ in self.entries if kind in WATCHED]
        places += [("inner", d, None) for d in self.inner] + [("others", o, None) for o in self.others]
        held, own = [*self.seen.values(), *(x for o in self.others for x in gc.get_referents(o))], []
        for kind, owner, _, value in self.entries:
            if kind == "class":  # also what its entry leaves out
                held += vars(owner).values()
            elif kind in ("dict", "object"):
                held += [*value, *value.values()]
            elif kind in WATCHED:
                held += value if kind in ("list", "set", "function") else [value]
            if kind == "object":
                own += [vars(owner), owner]
                held.append(type(owner))
        dicts = set(map(id, own[::2]))
        return tuple(places), tuple(x for x in held if id(x) not in dicts), tuple(own)

    def memory(self):
        """(first address, the one behind the last, could the code write there?) of the tensors that are reached"""
        for o in self.tensors:  # no kernel writes to parameters
            yield *memory_of(o), self.writes and not isinstance(o, torch.nn.Parameter)


def memory_of(o):
    """(first address, the one behind the last) of the memory in which a tensor lies, with all its views; (0, 0): it is not known"""
    try:
        if isinstance(o, numpy.ndarray):
            while isinstance(o.base, numpy.ndarray):
                o = o.base
            return numpy.lib.array_utils.byte_bounds(o) if hasattr(numpy.lib, "array_utils") else numpy.byte_bounds(o)
        with torch._C.DisableTorchFunctionSubclass():
            storage = o.untyped_storage()
            return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    except (RuntimeError, NotImplementedError):  # it has no memory of that kind
        return 0, 0


class _Seen(BaseException):
    """The kernel is known."""


def _called(call):
    """What code of Python is entered first by a call, which ends there: the functions that have it, and what they are given; empty: none is."""
    found = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code is not call.__code__:
            functions = [f for f in gc.get_referrers(frame.f_code) if isinstance(f, types.FunctionType) and f.__globals__ is frame.f_globals]
            found.extend((*functions, *frame.f_locals.values()))
            raise _Seen

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    except _Seen:
        pass
    except Exception:  # a kernel that is none of Python's
        found.clear()
    finally:
        sys.setprofile(before)
    return found


def _kinds(op, code):
    """What a kernel is given by the dispatcher, by the names of its parameters: those that are no tensor, and those that are one; None: it has others."""
    op, _, _ = _operators.overload_of(op)
    declared = {a.name: set(re.findall(r"\w+", str(a.type))) - {"Optional"} for a in op._schema.arguments} if op is not None else {}
    if [*declared] != [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]] or code.co_flags & 12:
        return None
    return {name: "tensor" if kind == {"Tensor"} else "plain" if kind - {"List"} <= SCHEMA else None for name, kind in declared.items()}


def _stand_in(kind):
    kind = str(kind)
    plain = {"Tensor": torch.empty(0), "int": 0, "SymInt": 0, "float": 0.0, "bool": False, "str": "", "number": 0, "Device": torch.device("cpu")}
    return None if kind.startswith("Optional") else [] if kind.startswith("List") else plain.get(kind)


def _in_the_dispatcher(op):
    """Kernels that torch's dispatcher alone holds: they are called with stand-ins, and do not get as far as their first instruction."""
    found, dispatch, given = [], op._handle.redispatch_boxed, [_stand_in(a.type) for a in op._schema.arguments]
    for key in _operators.python_keys(op.name()):
        keys = torch._C.DispatchKeySet(torch._C._parse_dispatch_key(key))
        found.append(_called(lambda keys=keys: dispatch(keys, *given)))
    return [x for one in found for x in one if not isinstance(x, torch._C.DispatchKeySet)] if all(found) else None


def _of_the_program(f):
    """The functions of the program's that torch's own ones around a kernel call."""
    if not isinstance(f, types.FunctionType) or not _of_python(f.__globals__.get("__name__")):
        return [] if isinstance(f, torch._library.custom_ops.CustomOpDef) else [f]
    held = [cell.cell_contents for cell in f.__closure__ or ()]
    return [x for kernel in held if callable(kernel) for x in _of_the_program(kernel)]


_found = {}  # what _in_the_dispatcher gave, by operator and the kernels that it had


def kernels_of(op):
    """Kernels in Python of an operator, with what they hold; None: not all are known."""
    op, _, defined = _operators.overload_of(op)
    if op is None or not _operators.has_python_kernel(op):
        return []
    if defined:
        return [x for f in defined._backend_fns.values() for x in _of_the_program(f)]
    key = op.name(), torch._C._dispatch_dump(op.name())
    if key not in _found:
        _found[key] = _in_the_dispatcher(op)
    return _found[key]


def composite_of(op):
    """The function of Python into which torch breaks an operator down, with the names of its arguments, their defaults, and what stands where there is
    none; None: it has none; False: it is not known."""
    op, _, _ = _operators.overload_of(op)
    lines = torch._C._dispatch_dump(op.name()).splitlines() if op is not None else ()
    if not any(line.startswith("CompositeImplicitAutograd") and ".py:" in line for line in lines):
        return None
    dispatch, given = op._handle.redispatch_boxed, [_stand_in(a.type) for a in op._schema.arguments]
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    f, *others = _called(lambda: dispatch(keys, *given)) or (None,)
    if not isinstance(f, types.FunctionType) or any(isinstance(x, types.FunctionType) and x.__code__ is f.__code__ for x in others):
        return False
    if f.__code__.co_argcount != len(given) or f.__code__.co_kwonlyargcount:
        return False
    absent, arguments = object(), op._schema.arguments
    return f, tuple(a.name for a in arguments), tuple(a.default_value if a.has_default_value() else absent for a in arguments), absent


def manner(function):
    """Of a backward function: (could it ask what its tensors are to others: how they were made, how often they were written, whose views they are? A run
    has tensors of its own for it, with the same values; could it write to tensors?; in a way that their versions do not count?)"""
    reads = KernelReads()
    try:
        reads._value(function)
        reads._spaces()
    except Unfollowed:
        reads.everything = True
    return not FACTS.isdisjoint(reads.names), reads.writes or reads.everything, reads.everything or not UNCOUNTED.isdisjoint(reads.names)


def reached(op, tensors):
    """What the kernels of an operator, which is given these tensors, reach: (can it read whatever there is?; can it change things?; does it draw
    random numbers that are not torch's?; does it write to tensors?; could it keep tensors that it is given or gives?; that it is given?; places; memory,
    as KernelReads says; the names of attributes that are read, or None: all; what is watched, as KernelReads says; the tensors)"""
    reads = KernelReads()
    try:
        reads._value(op)
        for t in tensors:
            for x in reads._note("object", t).values():
                reads._value(x)
        reads._spaces()
    except Unfollowed:
        reads.everything = True
    reads.everything |= "__class__" in reads.stored
    changes = bool(reads.stored or reads.binds or reads.changes or reads.sets_by_name)
    keeps_given = reads.keeps or reads.everything or reads.keeping.keeps(new=True)
    keeps = keeps_given or reads.keeping.keeps(new=False)
    names = None if reads.by_name else frozenset(reads.names)
    (asking.discard if GRADIENTS.isdisjoint(reads.names) else asking.add)(op)
    (wondering.add if reads.names & (FACTS - GRADIENTS) else wondering.discard)(op)
    (moving.discard if LYING.isdisjoint(reads.names) and "data" not in reads.stored else moving.add)(op)
    return reads.everything, changes, reads.draws, reads.writes, keeps, keeps_given, tuple(reads.places()), tuple(reads.memory()), names, *reads.watched(), tuple(reads.tensors)
