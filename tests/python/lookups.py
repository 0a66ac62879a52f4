"""Does a compiled function guard whatever Python looks up when the function runs as written?

reads.py records what instructions read. Here breakpoints on the interpreter's own lookup functions (breakpoints.cc) see what C code reads, too:
`getattr`, `isinstance`, sort keys, special methods behind `len`, NumPy asking for `__array_interface__`. What is read are places: (a class, a
name), (a dict, a key), a slot of an object, the length or the items of a list. A place of the program's own objects has to be covered by a guard of
the captured code, unless the compiled call reads it again itself, or a rule below says why not.
"""

import bisect
import collections
import contextlib
import contextvars
import functools
import importlib.util
import io
import struct
import sys
import types
import warnings
from pathlib import Path

import harness
import mutate
import reads

NO_KEY, OBJECT, MEMBER = range(3)
HEAP_TYPE = 1 << 9  # a class that somebody may change
# (symbol, what is read, number of the argument that is read from, of the key, what the key is)
LOOKUPS = [
    ("_PyType_Lookup", "class", 0, 1, OBJECT),
    ("_Py_dict_lookup", "dict", 0, 1, OBJECT),
    ("PyMember_GetOne", "slot", 0, 1, MEMBER),
    ("PyContextVar_Get", "context", 0, 0, NO_KEY),
    ("PyContextVar_Set", "context", 0, 0, NO_KEY),
    ("_PyDict_Next", "keys", 0, 0, NO_KEY),
    ("PyDict_Next", "keys", 0, 0, NO_KEY),
    ("dict_iter", "keys", 0, 0, NO_KEY),
    ("_PyDictView_New", "keys", 0, 0, NO_KEY),
    ("dict_length", "length", 0, 0, NO_KEY),
    ("PyDict_Size", "length", 0, 0, NO_KEY),
    ("list_length", "length", 0, 0, NO_KEY),
    ("list_item", "items", 0, 0, NO_KEY),
    ("list_subscript", "items", 0, 0, NO_KEY),
    ("list_iter", "items", 0, 0, NO_KEY),
    ("list_contains", "items", 0, 0, NO_KEY),
    ("set_iter", "items", 0, 0, NO_KEY),
    ("set_len", "length", 0, 0, NO_KEY),
    ("set_contains", "items", 0, 0, NO_KEY),
    ("deque_item", "items", 0, 0, NO_KEY),
    ("deque_iter", "items", 0, 0, NO_KEY),
    ("deque_len", "length", 0, 0, NO_KEY),
    ("PySequence_Fast", "items", 0, 0, NO_KEY),
    ("PySequence_List", "items", 0, 0, NO_KEY),
    ("PySequence_Tuple", "items", 0, 0, NO_KEY),
    ("list_concat", "items", 0, 0, NO_KEY),
    ("list_concat", "items", 1, 0, NO_KEY),
    ("list_richcompare", "items", 0, 0, NO_KEY),
    ("list_richcompare", "items", 1, 0, NO_KEY),
    ("dict_richcompare", "keys", 0, 0, NO_KEY),
    ("dict_richcompare", "keys", 1, 0, NO_KEY),
    ("dict_merge", "keys", 1, 0, NO_KEY),
    ("PyDict_Copy", "keys", 0, 0, NO_KEY),
    ("_PyObject_GenericGetAttrWithDict", "type", 0, 0, NO_KEY),
    ("PyObject_IsTrue", "__bool__ __len__", 0, 0, NO_KEY),
    ("PyObject_Size", "__len__", 0, 0, NO_KEY),
    ("PyObject_GetIter", "__iter__ __getitem__", 0, 0, NO_KEY),
    ("PyObject_Hash", "__hash__", 0, 0, NO_KEY),
    ("PyObject_RichCompare", "__eq__", 0, 0, NO_KEY),
    ("PyObject_RichCompare", "__eq__", 1, 0, NO_KEY),
    ("PyNumber_Index", "__index__", 0, 0, NO_KEY),
    ("PyObject_Str", "__str__ __repr__", 0, 0, NO_KEY),
    ("PyObject_Repr", "__repr__", 0, 0, NO_KEY),
    ("PySequence_Contains", "__contains__ __iter__", 0, 0, NO_KEY),
    ("PyObject_IsInstance", "type", 0, 0, NO_KEY),
]
# Callers whose lookup finds the place for a store: what lay there is not shown to the program.
STORES = ("insertdict", "PyDict_SetItem", "_PyDict_SetItem", "delitem", "PyDict_DelItem", "_PyDict_DelItem", "PyDict_SetDefault", "_PyObjectDict_SetItem", "dict_ass_sub", "PyContextVar_Set")


# --- the interpreter's symbols -------------------------------------------------------------------------------------------------------
@functools.cache
def _symbols(path, base):
    """({name: address}, addresses in order, their names) of the functions of an ELF file that lies in memory at base."""
    data = Path(path).read_bytes()
    if data[:4] != b"\x7fELF":
        return {}, [], []
    if struct.unpack_from("<H", data, 16)[0] == 2:  # a program that has its addresses
        base = 0
    at, size, number = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(number)]
    found = {}
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind != 2:  # .symtab
            continue
        texts = sections[link][4]
        for i in range(offset, offset + length, entry):
            name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, i)
            if info & 15 == 2 and section:
                text = data[texts + name : data.index(b"\0", texts + name)].decode()
                found.setdefault(text, base + value)
    ordered = sorted((address, name) for name, address in found.items())
    return found, [a for a, _ in ordered], [n for _, n in ordered]


def _extension():
    import framejit

    folder = Path(framejit._framejit.__file__).resolve().parents[2]
    for file in folder.glob("breakpoints*.so"):
        with contextlib.suppress(ImportError):
            spec = importlib.util.spec_from_file_location("breakpoints", file)
            made = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(made)
            return made


@functools.cache
def _tool():
    """(the extension, rows for it, LOOKUPS of the rows, name of the function at an address), or why there is none."""
    if sys.version_info[:2] != (3, 11):
        return "the lookup functions are those of CPython 3.11"
    extension = _extension()
    if extension is None:
        return "breakpoints.cc is built for Linux on x86-64, with the C++ tests, for the Python of the build"
    found, addresses, names = _symbols(*extension.image())
    missing = [symbol for symbol, *_ in LOOKUPS if symbol not in found]
    if missing:
        return f"this Python is stripped, or has functions inlined: {', '.join(missing)}"
    rows = [(found[symbol], subject, key, kind) for symbol, _, subject, key, kind in LOOKUPS]

    def caller(address):
        return names[max(0, bisect.bisect_right(addresses, address) - 1)]

    return extension, rows, caller


def unavailable():
    """Why lookups cannot be seen here, or None."""
    tool = _tool()
    return tool if isinstance(tool, str) else None


# --- the objects of the program ------------------------------------------------------------------------------------------------------
class World:
    """The program's own objects that a function and its arguments reach, and their namespaces: {id: object}."""

    MOST = 200  # items of a container

    def __init__(self, *roots):
        self.objects, self.names, self.owners = {}, {}, {}
        todo = collections.deque(roots)
        while todo:
            value = todo.popleft()
            if id(value) not in self.objects:
                todo.extend(self._of(value))

    def _keep(self, value):
        self.objects[id(value)] = value

    def _of(self, value):
        """Notes what is the program's, and gives what it leads to."""
        if isinstance(value, types.ModuleType):
            if not reads._is_library(value):
                self._keep(value)
                self._namespace(value, vars(value))
            return
        if isinstance(value, (types.FunctionType, types.MethodType)):
            function = getattr(value, "__func__", value)
            if isinstance(value, types.MethodType):
                yield value.__self__
            if not isinstance(function, types.FunctionType) or not harness.is_ours(function.__code__.co_filename):
                return
            self._keep(value)
            self._namespace(None, function.__globals__)
            yield from self._function(function)
        elif isinstance(value, type):
            if reads._is_ours(value) and value.__flags__ & HEAP_TYPE:
                self._keep(value)
                yield from (v for v in (*vars(value).values(), *value.__mro__, type(value)))
        elif isinstance(value, (staticmethod, classmethod, property)):
            yield from (getattr(value, name, None) for name in ("__func__", "fget", "fset", "fdel"))
        elif isinstance(value, functools.partial):
            yield from (value.func, *value.args, *value.keywords.values())
        elif isinstance(value, contextvars.ContextVar):
            self._keep(value)
        elif isinstance(value, (list, tuple, set, frozenset, dict, collections.deque)) or _is_of_program(value):
            yield from self._instance(value)

    def _function(self, function):
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):
                yield cell.cell_contents
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()
        names = {name for code in mutate._codes(function.__code__) for name in code.co_names}
        yield from (function.__globals__[name] for name in names & set(function.__globals__))

    def _instance(self, value):
        if not isinstance(value, (tuple, frozenset)):
            self._keep(value)
        yield type(value)
        space = getattr(value, "__dict__", None)
        if isinstance(space, dict):
            self._namespace(value, space)
            yield from list(space.values())
        for above in type(value).__mro__:
            for member in vars(above).values():
                if isinstance(member, types.MemberDescriptorType) and reads._is_ours(above):
                    with contextlib.suppress(AttributeError):
                        yield member.__get__(value)
        if isinstance(value, dict):
            yield from [v for item in list(dict.items(value))[: self.MOST] for v in item]
        elif isinstance(value, reads.CONTAINERS + (tuple, frozenset)):
            kind = next(k for k in (list, tuple, set, frozenset, collections.deque) if isinstance(value, k))
            yield from list(kind.__iter__(value))[: self.MOST]

    def _namespace(self, owner, space):
        self._keep(space)
        self.owners[id(space)] = owner


def _is_of_program(value):
    torch = sys.modules.get("torch")
    return reads._is_ours(type(value)) or torch is not None and isinstance(value, torch.nn.Module)


class Same:
    """A key that is this very object."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self):
        return id(self.value)


def _key(key):
    return key if isinstance(key, (*reads.PLAIN, bytes, tuple)) else Same(key)


# --- what is read ------------------------------------------------------------------------------------------------------------------
def record(function, args, kwargs, world, policy=None):
    """{(what, id, key): caller} of what a call reads in the objects of the world and did not store there before."""
    extension, rows, caller = _tool()
    watched = list(world.objects)
    if policy:
        policy.frame_record([])
    extension.arm(rows, watched)
    try:
        function(*args, **kwargs)
    except Exception:  # a program may raise
        pass
    finally:
        events, lost = extension.disarm()
        if policy:
            policy.frame_sweep_off()
    assert not lost, f"{lost} lookups found no place"
    found, stored = {}, set()
    for row, subject, key, address in events:
        by = caller(address)
        for read in _places(LOOKUPS[row][1], world.objects[subject], key, world):
            if by.startswith(STORES) or LOOKUPS[row][0] in STORES:
                stored.add(read)
            elif read not in stored:
                found.setdefault(read, f"{LOOKUPS[row][0]} from {by}")
    return found


def _places(what, owner, key, world):
    kind = type(owner)
    if what == "type" or what.startswith("__"):
        if isinstance(owner, (type, types.ModuleType, types.FunctionType)) or id(kind) not in world.objects:
            return
        yield "type", id(owner), None
        if what != "type":
            yield from (("class", id(kind), name) for name in what.split())
    elif what == "slot" and not _is_of_program(owner) or what in ("keys", "length", "items") and not isinstance(owner, reads.CONTAINERS):
        return
    else:
        yield what, id(owner), _key(key)


class Covered:
    """What the guards of captured code cover."""

    def __init__(self, rows):
        self.places, self.classes, self.tests = set(), collections.defaultdict(set), collections.defaultdict(set)
        self.kept = rows
        for kind, base, key, value, tests in rows:
            key = _key(key)
            if kind in ("dict_item", "item", "member", "contextvar"):
                self.places.add((kind, id(base), None if kind == "contextvar" else key))
                if kind == "item":
                    self.places.add(("item", id(base), None))
            if kind == "type":
                self.tests[id(base)].add("type is")
            for test, expected in tests:
                self.tests[id(value)].add(test)
                if hasattr(type(value), "_framejit_original"):  # the twin of a compiled module
                    self.tests[id(type(value)._framejit_original())].add(test)
                if test == "type version":
                    for kind in value.__mro__ if "_framejit_original" in vars(value) else (value,):
                        self.classes[id(kind)] |= {None} if expected is None else set(expected)

    def covers(self, read):
        what, owner, key = read
        tests = self.tests[owner]
        if what == "class":
            return not {None, key}.isdisjoint(self.classes[owner])
        if what == "dict":
            return ("dict_item", owner, key) in self.places or not {"keys", "no items"}.isdisjoint(tests)
        if what == "slot":
            return ("member", owner, key) in self.places
        if what == "context":
            return ("contextvar", owner, None) in self.places
        if what == "keys":
            return not {"keys", "no items", "equals"}.isdisjoint(tests)
        if what == "length":
            return not {"keys", "no items", "equals", "len"}.isdisjoint(tests)
        if what == "items":
            return ("item", owner, None) in self.places or not {"keys", "equals", "len"}.isdisjoint(tests)
        return what == "type" and not {"type is", "tensor", "equals"}.isdisjoint(tests)


def _arguments(made):
    return made if len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict) else (made, {})


def compare(build, framejit):
    """(reads of a call as written, [(what, owner, key, by whom)] of those which no guard covers and which a compiled call does not make itself, the
    world of the owners)."""
    framejit.reset()
    with contextlib.suppress(Exception):  # the first call imports what is imported once
        mutate.Sides(build, [lambda f: f]).call()
    with _quiet():
        function, make = build()
        args, kwargs = _arguments(make())
    world, extension, rows = World(function, *args, *kwargs.values()), framejit._framejit, []
    with _quiet():
        first, again = (record(function, args, kwargs, world, extension) for _ in range(2))
        compiled = framejit.compile(function)
        extension.guard_testing.cover(rows)
        try:
            for _ in range(2):
                with contextlib.suppress(Exception):
                    compiled(*args, **kwargs)
        finally:
            extension.guard_testing.cover(None)
        by_itself = record(compiled, args, kwargs, world)
    covered = Covered(rows)
    missed = [read for read in first if read in again and read not in by_itself and not covered.covers(read) and not _by_rule(read, world)]
    return len(first), [(what, world.objects[owner], key, first[what, owner, key]) for what, owner, key in missed], world


def _by_rule(read, world):
    """What need not be guarded. An import asks the module whether another thread still runs its code, and one by C code asks the globals of the
    function that runs for their built-ins."""
    what, owner, key = read
    if what == "dict" and key == "__builtins__" and "__name__" in world.objects[owner]:
        return True
    return what == "dict" and key in ("__spec__", "_initializing") and "__spec__" in world.objects[owner]


@contextlib.contextmanager
def _quiet():
    with harness._restored_thread_state(), warnings.catch_warnings(record=True), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        yield


# --- trying what is not guarded -----------------------------------------------------------------------------------------------------
def _as_read(what, owner, key, world):
    """The read in the words of reads.py."""
    if what == "dict" and id(owner) in world.owners:
        of = world.owners[id(owner)]
        return ("global", owner, key) if of is None or isinstance(of, types.ModuleType) else ("attribute", of, key)
    if what == "class":
        return ("special" if key.startswith("__") else "attribute", owner, key)
    key = key.value if isinstance(key, Same) else key
    kinds = {"dict": "item", "slot": "attribute", "context": "context", "type": "operate"}
    return kinds.get(what, "iterate"), owner, key


def _name(kind, owner, key):
    return kind, type(owner).__name__, "" if isinstance(owner, dict) else getattr(owner, "__name__", ""), key if isinstance(key, (str, int)) else None


def changes(what, owner, key, world):
    """Of one place, as reads.py makes them."""
    return reads.changes([_as_read(what, owner, key, world)])


def tried(build, framejit, missed, world):
    """(changes made, [what was wrong]) when just what is not guarded is changed between calls."""
    names = {_name(*_as_read(what, owner, key, world)) for what, owner, key, _ in missed}

    def recorded(function, make, extension):
        with _quiet():
            args, kwargs = _arguments(make())
            world = World(function, *args, *kwargs.values())
            found = record(function, args, kwargs, world, extension)
        found = [_as_read(what, world.objects[owner], key, world) for what, owner, key in found]
        return [read for read in found if _name(*read) in names]

    return mutate.check(build, framejit, of_reads=recorded)
