"""Could code that changes things outside itself keep a tensor there which it is given or gives? A store of what is plainly a number, a text or a tuple of
such keeps none: kernels that count their calls or note shapes are no reason to end a graph. Nor does one keep what it is given that stores what was made there."""

import builtins
import types

import torch

from ._reads import CHANGING, SCALARS, instructions

LEFT_OUT = {"CACHE", "NOP", "PRECALL", "PUSH_NULL", "RESUME", "EXTENDED_ARG", "KW_NAMES"}  # what moves no value that counts here
PLAIN = {"shape", "dtype", "device", "layout", "ndim", "is_cuda", "nbytes", "itemsize"}  # attributes
GIVE_PLAIN = {"item", "tolist", "size", "stride", "numel", "dim", "data_ptr", "element_size", "is_contiguous", "time", "perf_counter", "monotonic"}  # methods
MAKE_PLAIN = {"int", "float", "bool", "str", "repr", "len", "id", "hash", "isinstance", "format"}  # built-in functions, whatever they are given
OF_PLAIN = {"tuple", "list", "range", "abs", "round", "sum", "max", "min", "sorted"}  # of what is plain itself
STORES = {"STORE_GLOBAL": 0, "STORE_DEREF": 0, "STORE_ATTR": 1, "STORE_SUBSCR": 2, "STORE_SLICE": 3}  # how many values lie above what is stored
MAKE_NEW = {"clone", "sum", "mean", "norm", "std", "var"}  # methods whose results are no argument and no view of one
NEW_WITH_NUMBERS = {"+", "-", "/", "//", "%", "**"}  # with a number on one side: no list is in the result, nor a tensor that was there
KEEPING = {"set", "send", "put_nowait", "set_result", "submit", "apply_async"}  # further methods that may store what they are given
TWO = {"BINARY_OP", "COMPARE_OP", "BINARY_SUBSCR"}
BUILDS = {"BUILD_TUPLE", "BUILD_LIST", "BUILD_STRING", "BUILD_SLICE"}
FRESH = {"BUILD_LIST", "BUILD_MAP", "BUILD_SET"}
CALLS = {"CALL", "CALL_KW", "CALL_NAMED"}  # the last: the names of arguments were told before (3.11, 3.12)
METHODS = {"LOAD_ATTR", "LOAD_METHOD"}
CALLEES = {"LOAD_GLOBAL", *METHODS}


class _Unclear(Exception):
    """What is computed there is not known."""


def _steps(code):
    """(operation, argument, its meaning, may another step than the one before lead here?)"""
    target = named = False
    for step in instructions(code):
        target |= step.is_jump_target
        named |= step.opname == "KW_NAMES"
        if step.opname in LEFT_OUT:
            continue
        several = isinstance(step.argval, tuple) and "_FAST_" in step.opname  # one instruction of two
        for name, op in zip(step.argval, step.opname.replace("FAST_", "FAST ").split()) if several else [(step.argval, step.opname)]:
            is_named = named and op == "CALL"
            yield "CALL_NAMED" if is_named else op, step.arg, step.argrepr if op == "BINARY_OP" else name, target
            target, named = False, named and not is_named


def _given(code):
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


class _Code:
    """kinds: of parameters, "plain" or "tensor". new: what was made there counts as plain, too, as long as it holds nothing that the code was given."""

    def __init__(self, code, scope, kinds, new):
        self.steps, self.scope, self.new = list(_steps(code)), scope, new
        self.called = {}  # steps that load what is called, of calls that were looked at: the kinds of arguments; None: not all are plain, and they have names
        given = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        given = set(code.co_varnames[:given])
        stores = [(i, name) for i, (op, _, name, _) in enumerate(self.steps) if op == "STORE_FAST"]
        self.fresh = {name for _, name in stores} - given - {name for i, name in stores if self.steps[i][3] or self.steps[i - 1][0] not in FRESH}
        self.plain, self.tensors = ({name for _, name in stores} - given - self.fresh | {n for n, k in kinds.items() if k == kind} for kind in ("plain", "tensor"))
        for names, fits in (self.plain, self.is_plain), (self.tensors, self._is_tensor_below):
            while others := {name for i, name in stores if name in names and not fits(i)}:
                names -= others
        for i, (op, _, _, _) in enumerate(self.steps):
            if op in CALLS:
                try:
                    self._only_way(i)
                    _, callee, plain = self.call(i)
                    kinds = self._kinds(i - 1, plain)
                    self.called[callee] = kinds if op == "CALL" or all(plain) else None
                except _Unclear:
                    pass  # what is called is not known

    def is_plain(self, i, above=0):
        """Is that plain which lies on the stack, below so many values, when this step runs?"""
        try:
            self._only_way(i)
            for _ in range(above):
                i = self.value(i - 1)[0]
                self._only_way(i)
            return self.value(i - 1)[1]
        except _Unclear:
            return False

    def _kinds(self, end, plain):
        kinds = []
        for one in reversed(plain):
            kinds.insert(0, "plain" if one else "tensor" if self._is_tensor(end) else None)
            end = self.value(end)[0] - 1
        return kinds

    def _is_tensor_below(self, i):
        try:
            self._only_way(i)
            return self._is_tensor(i - 1)
        except _Unclear:
            return False

    def _is_tensor(self, end):
        """Does this step give a tensor that the code was given, or what a method of torch's makes of one? It is no container of the program's."""
        op, _, name, _ = self.steps[end]
        if op.startswith("LOAD_FAST"):
            return name in self.tensors
        if op in CALLS:
            callee = self.call(end)[1]
            return self.steps[callee][0] in METHODS and self._is_tensor(callee)
        if op == "BINARY_SLICE":
            return self._is_tensor(self.values(end - 1, 2)[0] - 1)
        if op == "BINARY_SUBSCR":
            return self._is_tensor(self.value(end - 1)[0] - 1)
        return op in METHODS and hasattr(torch.Tensor, name) and self._is_tensor_below(end)

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
            return begin, all(plain) or (self.new and name in NEW_WITH_NUMBERS and self._has_number(end))
        if op == "BINARY_SLICE":
            begin, plain = self.values(end - 1, 3)
            return begin, all(plain)
        if op in BUILDS:
            begin, plain = self.values(end - 1, arg) if arg else (end, [])
            return begin, op == "BUILD_STRING" or all(plain)
        if op.startswith(("FORMAT_", "CONVERT_")):  # with a format above the value, or none
            return self.values(end - 1, 2 if op == "FORMAT_WITH_SPEC" or (op == "FORMAT_VALUE" and arg & 4) else 1)[0], True
        if op in CALLS:
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

    def _has_number(self, end):
        """Is one of the two operands of this step a constant number?"""
        right = self.value(end - 1)[0]
        ends = {end - 1: right, right - 1: self.value(right - 1)[0]}
        return any(begin == last and self.steps[last][0] == "LOAD_CONST" and isinstance(self.steps[last][2], (int, float)) for last, begin in ends.items())

    def _gives_plain(self, callee, plain):
        op, _, name, _ = self.steps[callee]
        if self.new and op in METHODS and name in MAKE_NEW:
            return True
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
            if op == "STORE_NAME":
                return True
            if op in CALLEES and (name in CHANGING or (op in METHODS and name in KEEPING)) and not self._harmless(i):
                return True
        return False

    def _harmless(self, callee):
        """Is it a call with plain arguments, or of a list that was made there and lies nowhere else?"""
        kinds = self.called.get(callee)
        if kinds is not None and all(kind == "plain" for kind in kinds):
            return True
        return self.steps[callee][0] in METHODS and not self.steps[callee][3] and self._keeps_none(callee - 1)

    def _keeps_none(self, end):
        """Is that which this step gives a tensor, or a container that was made there and lies nowhere else?"""
        op, _, name, _ = self.steps[end]
        try:
            return (op.startswith("LOAD_FAST") and name in self.fresh) or self._is_tensor(end)
        except _Unclear:
            return False

    def calls(self):
        """(a function of the program's that the code names, what `called` says of its arguments, or None: it is not called)"""
        for i, (op, _, name, _) in enumerate(self.steps):
            if op in ("LOAD_GLOBAL", "LOAD_NAME") and isinstance(f := self.scope.get(name), types.FunctionType):
                yield f, self.called.get(i)

    def _in_place(self, i):
        return self.steps[i][2].endswith("=")

    def _stores_plain(self, i, above):
        before = i - 1
        while before >= 0 and self.steps[before][0] == "SWAP":
            before -= 1
        if self.steps[before][0] == "BINARY_OP" and self._in_place(before):  # what is on its right was looked at
            return not any(self.steps[k][3] for k in range(before + 1, i + 1))
        if above > 1 and self._keeps_none_below(i, above - 1):
            return True
        return before == i - 1 and self.is_plain(i, above) and (above < 2 or self.is_plain(i))

    def _keeps_none_below(self, i, above):
        """The same of the container of a store, with so many values above it."""
        try:
            self._only_way(i)
            begin, _ = self.values(i - 1, above)
            self._only_way(begin)
            return self._keeps_none(begin - 1)
        except _Unclear:
            return False


class Keeping:
    """The code that was reached. What is known of the arguments of a function is what all of its calls by name give it."""

    def __init__(self):
        self.scopes, self.kinds = {}, {}  # by code: global variables; by parameter, what all calls give it: "plain", "tensor" or None
        self.changed = set()  # code of which less is known than before

    def add(self, code, scope):
        self.scopes[code] = scope

    def enter(self, code, kinds=None):
        """It is called with arguments of these kinds, by their names; None: with any."""
        known = self.kinds.setdefault(code, {})
        for name in _given(code):
            kind = kinds.get(name) if kinds else None
            if name not in known or known[name] not in (kind, None):
                known[name] = None if name in known else kind
                self.changed.add(code)

    def _call(self, f, kinds):
        code, defaults = f.__code__, f.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        if kinds is None or len(kinds) > len(names):
            return self.enter(code)
        values = {**dict(zip(names[len(names) - len(defaults) :], defaults)), **(f.__kwdefaults__ or {})}
        self.enter(code, {**{n: "plain" if isinstance(v, SCALARS) else None for n, v in values.items()}, **dict(zip(names, kinds))})

    def keeps(self, new):
        def missing(called):
            return [c for c in self.scopes if c not in seen and (c in self.kinds or not called)]

        waiting, seen = [], {}
        while waiting := waiting or missing(called=True) or missing(called=False):  # helpers behind those that call them
            code = waiting.pop()
            self.changed.clear()
            made = new and not any(c == "out" or (isinstance(c, tuple) and "out" in c) for c in code.co_consts)
            seen[code] = _Code(code, self.scopes[code], self.kinds.get(code) or {}, made)
            for f, kinds in seen[code].calls():
                self._call(f, kinds)
            waiting += [c for c in self.scopes if c in self.changed and c in seen and c not in waiting]
        return any(c.keeps() for c in seen.values())
