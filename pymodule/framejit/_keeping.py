"""Could code that changes things outside itself keep a tensor there which it is given or gives? A store of what is plainly a number, a text or a tuple of
such keeps none: kernels that count their calls or note shapes are no reason to end a graph."""

import builtins
import dis

from ._reads import CHANGING

LEFT_OUT = {"CACHE", "NOP", "PRECALL", "PUSH_NULL", "RESUME", "EXTENDED_ARG", "KW_NAMES"}  # what moves no value that counts here
PLAIN = {"shape", "dtype", "device", "layout", "ndim", "is_cuda", "nbytes", "itemsize"}  # attributes
GIVE_PLAIN = {"item", "tolist", "size", "stride", "numel", "dim", "data_ptr", "element_size", "is_contiguous", "time", "perf_counter", "monotonic"}  # methods
MAKE_PLAIN = {"int", "float", "bool", "str", "repr", "len", "id", "hash", "isinstance", "format"}  # built-in functions, whatever they are given
OF_PLAIN = {"tuple", "list", "range", "abs", "round", "sum", "max", "min", "sorted"}  # of what is plain itself
STORES = {"STORE_GLOBAL": 0, "STORE_DEREF": 0, "STORE_ATTR": 1, "STORE_SUBSCR": 2}  # how many values lie above what is stored
TWO = {"BINARY_OP", "COMPARE_OP", "BINARY_SUBSCR"}
BUILDS = {"BUILD_TUPLE", "BUILD_LIST", "BUILD_STRING"}
CALLEES = {"LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"}


class _Unclear(Exception):
    """What is computed there is not known."""


def _steps(code):
    """(operation, argument, its meaning, may another step than the one before lead here?)"""
    target = False
    for step in dis.get_instructions(code):
        target |= step.is_jump_target
        if step.opname in LEFT_OUT:
            continue
        several = isinstance(step.argval, tuple) and "_FAST_" in step.opname  # one instruction of two
        for name, op in zip(step.argval, step.opname.replace("FAST_", "FAST ").split()) if several else [(step.argval, step.opname)]:
            yield op, step.arg, name, target
            target = False


class _Code:
    def __init__(self, code, scope):
        self.steps, self.scope = list(_steps(code)), scope
        self.called = set()  # steps that load what is called: calls that were looked at
        given = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        stores = [(i, name) for i, (op, _, name, _) in enumerate(self.steps) if op == "STORE_FAST"]
        self.plain = {name for _, name in stores} - set(code.co_varnames[:given])
        while others := {name for i, name in stores if name in self.plain and not self.is_plain(i)}:
            self.plain -= others

    def is_plain(self, i, above=0):
        """Is that plain which lies on the stack, below so many values, when this step runs?"""
        try:
            self._only_way(i)
            for _ in range(above):
                i = self.value(i - 1)[0]
            return self.value(i - 1)[1]
        except _Unclear:
            return False

    def _only_way(self, i):
        if i < 0 or self.steps[i][3]:
            raise _Unclear

    def values(self, end, count):
        """The same as `value` of the last of several: (where the first begins, is each plain?)"""
        plain = []
        for _ in range(count):
            begin, one = self.value(end)
            plain.append(one)
            if len(plain) < count:
                self._only_way(begin)
            end = begin - 1
        return end + 1, plain[::-1]

    def value(self, end):
        """(the first step of the computation that this step ends, is its value plain?)"""
        if end < 0:
            raise _Unclear
        op, arg, name, _ = self.steps[end]
        if op == "LOAD_CONST":
            return end, True
        if op.startswith("LOAD_FAST"):
            return end, name in self.plain
        if op in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME"):
            return end, False
        self._only_way(end)
        if op in ("LOAD_ATTR", "LOAD_METHOD"):
            begin, plain = self.value(end - 1)
            return begin, plain or name in PLAIN
        if op.startswith("UNARY_") or op == "TO_BOOL":
            return self.value(end - 1)
        if op in TWO:
            begin, plain = self.values(end - 1, 2)
            return begin, all(plain)
        if op in BUILDS:
            begin, plain = self.values(end - 1, arg) if arg else (end, [])
            return begin, op == "BUILD_STRING" or all(plain)
        if op.startswith(("FORMAT_", "CONVERT_")):  # with a format above the value, or none
            return self.values(end - 1, 2 if op == "FORMAT_WITH_SPEC" or (op == "FORMAT_VALUE" and arg & 4) else 1)[0], True
        if op in ("CALL", "CALL_KW"):
            begin, callee, plain = self.call(end)
            return begin, self._gives_plain(callee, plain)
        raise _Unclear

    def call(self, end):
        """(where it begins, the step that loads what is called, is each argument plain?)"""
        op, arg, _, _ = self.steps[end]
        count = arg + (op == "CALL_KW")
        begin, plain = self.values(end - 1, count) if count else (end, [])
        self._only_way(begin)
        callee = begin - 1
        begin, _ = self.value(callee)
        return begin, callee, plain

    def _gives_plain(self, callee, plain):
        op, _, name, _ = self.steps[callee]
        if op == "LOAD_GLOBAL":
            is_built_in = name not in self.scope and hasattr(builtins, name)
            return is_built_in and (name in MAKE_PLAIN or (name in OF_PLAIN and all(plain)))
        return op in CALLEES and all(plain) and (name in GIVE_PLAIN or self.value(callee)[1])

    def keeps(self):
        for i, (op, _, name, _) in enumerate(self.steps):
            in_place = op == "BINARY_OP" and self._in_place(i)
            if in_place and not self.is_plain(i):  # what is on the right
                return True
            if op in STORES and not self._stores_plain(i, STORES[op]):
                return True
            if op in ("CALL", "CALL_KW"):
                try:
                    self._only_way(i)
                    _, callee, plain = self.call(i)
                    self.called |= {callee} if all(plain) else set()
                except _Unclear:
                    pass  # what is called is not known
            if op in ("STORE_SLICE", "STORE_NAME", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE"):
                return True
        return any(op in CALLEES and name in CHANGING and i not in self.called for i, (op, _, name, _) in enumerate(self.steps))

    def _in_place(self, i):
        return self.steps[i][1] >= 13  # NB_INPLACE_ADD, the first of those that end in "="

    def _stores_plain(self, i, above):
        before = i - 1
        while before >= 0 and self.steps[before][0] == "SWAP":
            before -= 1
        if self.steps[before][0] == "BINARY_OP" and self._in_place(before):  # what is on its right was looked at
            return not any(self.steps[k][3] for k in range(before + 1, i + 1))
        return before == i - 1 and self.is_plain(i, above) and (above < 2 or self.is_plain(i))


def keeps(code, scope):
    """code of a function with these global variables, without that of functions in it"""
    return _Code(code, scope).keeps()
