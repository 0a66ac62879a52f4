"""Which class statements a capture runs as they are (src/capture/class_statement.cc): those whose body makes functions, constants and names, and does nothing else.
And what slots a class has."""

import dis
import functools

# What only moves things, in all versions of CPython.
SKIPPED = {"RESUME", "CACHE", "NOP", "EXTENDED_ARG", "COPY_FREE_VARS", "MAKE_CELL", "PUSH_NULL"}
MOVES = {"PRECALL", "CALL", "LOAD_CLOSURE", "LOAD_CONST", "LOAD_SMALL_INT", "COPY", "POP_TOP", "MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE", "BUILD_TUPLE"}
MOVES |= {"BUILD_CONST_KEY_MAP", "RETURN_VALUE", "RETURN_CONST"}
CELLS = {"LOAD_FAST", "LOAD_FAST_BORROW"}  # of 3.13 and later: a cell that functions share
DESCRIPTORS = {"property", "staticmethod", "classmethod"}
OF_PROPERTIES = {"getter", "setter", "deleter"}


@functools.lru_cache(maxsize=256)
def names_of(code):
    """The names that such a body reads of its surroundings; None: it does more. What it reads goes to another name, so all that it calls are the built-in
    descriptors, where these are what their names say, and `getter`, `setter` and `deleter` of what it has made itself."""
    stored, given, read = set(), set(), set()
    instructions = [i for i in dis.get_instructions(code) if i.opname not in SKIPPED]
    cells = {*code.co_cellvars, *code.co_freevars}
    for before, i, then in zip([None, *instructions], instructions, [*instructions[1:], None]):
        if i.opname == "STORE_NAME":
            stored.add(i.argval)
            (given.add if before.opname == "LOAD_NAME" else given.discard)(i.argval)
        elif i.opname == "LOAD_NAME":
            here = i.argval in stored
            if not here:
                read.add(i.argval)
            made = here and i.argval not in given and then.opname == "LOAD_ATTR" and then.argval in OF_PROPERTIES
            if not (then.opname == "STORE_NAME" or made or (not here and i.argval in DESCRIPTORS)):
                return None
        elif i.opname == "LOAD_ATTR":
            if before.opname != "LOAD_NAME":
                return None
        elif i.opname in CELLS:
            if i.argval not in cells:
                return None
        elif i.opname not in MOVES:
            return None
    return tuple(sorted(read))


def slot_names(cls):
    """copyreg._slotnames, which notes its answer in the class: what a capture has read of that would be outdated."""
    known = cls.__dict__.get("__slotnames__")
    if known is not None:
        return known
    names = []
    for c in cls.__mro__:
        slots = c.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            stripped = c.__name__.lstrip("_")
            private = name.startswith("__") and not name.endswith("__") and stripped
            names.append(f"_{stripped}{name}" if private else name)
    return names
