"""A captured graph as a Python program, which can be printed, run and cut down."""

_BINARY = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "matmul": "@", "and": "&", "or": "|", "xor": "^",
           "lshift": "<<", "rshift": ">>", "pow": "**"}  # fmt: skip
_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}
_UNARY = {"neg": "-", "pos": "+", "invert": "~"}
_METHODS = ("torch.Tensor.", "numpy.ndarray.")


class Unprintable(Exception):
    """An argument has no text that makes it again."""


class Name:
    """A tensor of the graph, in arguments and results."""

    __slots__ = ("text",)

    def __init__(self, number):
        self.text = f"t{number}"

    def __repr__(self):
        return self.text


def literal(value, objects=None):
    """Python's text for an argument. What has none gets a name in `objects`; without that Unprintable is raised."""
    kind, module = type(value), type(value).__module__.partition(".")[0]
    if kind in (tuple, list):
        inner = ", ".join(literal(v, objects) for v in value)
        return f"[{inner}]" if kind is list else f"({inner},)" if len(value) == 1 else f"({inner})"
    if kind is dict:
        return "{" + ", ".join(f"{literal(k, objects)}: {literal(v, objects)}" for k, v in value.items()) + "}"
    if kind is slice:
        return f"slice({literal(value.start, objects)}, {literal(value.stop, objects)}, {literal(value.step, objects)})"
    if kind is float and (value != value or value in (float("inf"), -float("inf"))):
        return f"float('{value}')"
    if kind in (Name, bool, int, float, complex, str, bytes, type(None)):
        return repr(value)
    if value is Ellipsis:
        return "..."
    if module == "torch" and kind.__name__ in ("dtype", "layout", "memory_format"):
        return str(value)
    if module == "torch" and kind.__name__ == "device":
        return f"torch.device({str(value)!r})"
    if module == "torch" and kind.__name__ == "Size":
        return f"torch.Size({list(value)})"
    if module == "numpy" and hasattr(value, "char"):  # a dtype
        return f"numpy.dtype({value.str!r})"
    if module == "numpy" and hasattr(value, "item") and not getattr(value, "shape", 1):
        return f"numpy.{kind.__name__}({literal(value.item())})"
    path = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    if path.startswith(("torch.", "numpy.", "builtins.")) and "<" not in path:
        return path.removeprefix("builtins.")
    if objects is not None:
        name = next((name for name, known in objects.items() if known is value), f"object{len(objects)}")
        objects[name] = value
        return name
    raise Unprintable(f"{kind.__module__}.{kind.__qualname__} as an argument")


def _operand(text):
    return f"({text})" if text.startswith("-") else text


class Call:
    """One call of the framework: `results` are names; `line` and `file` are the user's."""

    def __init__(self, parts):
        self.callee, self.args, self.kwargs = parts["callee"], parts["args"], parts["kwargs"]
        self.structure = parts["result"]
        self.results = [f"t{number}" for number in parts["results"]]
        self.mode = "torch.inference_mode()" if parts["inference"] else None if parts["grad"] else "torch.no_grad()"
        self.file, self.line = parts["file"], parts["line"]

    def operands(self):
        found, todo = set(), [*self.args, *self.kwargs.values()]
        while todo:
            value = todo.pop()
            if isinstance(value, Name):
                found.add(value.text)
            elif isinstance(value, (tuple, list)):
                todo += value
            elif isinstance(value, dict):
                todo += [*value, *value.values()]
            elif isinstance(value, slice):
                todo += [value.start, value.stop, value.step]
        return found

    @property
    def _last(self):
        return self.callee.rpartition(".")[2]

    @property
    def writes(self):
        """It changes an operand."""
        last = self._last
        plain = last.endswith("_") and not last.endswith("__")
        return plain or last == "__setitem__" or "out" in self.kwargs or bool(self.operands() & set(self.results))

    def _operator(self, args):
        """Python's text for an operator; None: it is none."""
        last = self._last
        if not (last.startswith("__") and last.endswith("__")) or self.kwargs:
            return None
        name = last.strip("_")
        if name == "get" and len(args) == 1:
            return f"{args[0]}.{self.callee.split('.')[-2]}"
        if name in _UNARY and len(args) == 1:
            return _UNARY[name] + args[0]
        if name == "abs":
            return f"abs({args[0]})"
        if len(args) != 2:
            return None
        a, b = map(_operand, args)
        if name == "getitem":
            return f"{a}[{args[1]}]"
        for known in (_BINARY, _COMPARE):
            if name in known:
                return f"{a} {known[name]} {b}"
        return f"{b} {_BINARY[name[1:]]} {a}" if name[:1] == "r" and name[1:] in _BINARY else None

    def statements(self, objects=None):
        if "(" in self.callee:
            raise Unprintable(f"{self.callee}, which has no name,")
        args = [literal(a, objects) for a in self.args]
        last = self._last
        if last == "__setitem__":
            return [f"{args[0]}[{args[1]}] = {args[2]}"]
        if last.startswith("__i") and last[3:-2] in _BINARY and not self.kwargs:
            same = [] if self.results == [args[0]] else [f"{self.results[0]} = {args[0]}"]
            return [f"{args[0]} {_BINARY[last[3:-2]]}= {args[1]}", *same]
        text = self._operator(args)
        if text is None:
            given = [*args, *(f"{name}={literal(value, objects)}" for name, value in self.kwargs.items())]
            method = next((m for m in _METHODS if self.callee.startswith(m)), None)
            if method and args and isinstance(self.args[0], Name):
                text = f"{args[0]}.{self.callee.removeprefix(method)}({', '.join(given[1:])})"
            else:
                text = f"{self.callee}({', '.join(given)})"
        return [f"{literal(self.structure)} = {text}" if self.results else text]


class Program:
    """Calls between inputs and outputs. What it is cut to is a new one."""

    def __init__(self, inputs, calls, outputs):
        self.inputs, self.calls, self.outputs = list(inputs), list(calls), list(outputs)

    @classmethod
    def of(cls, graph):
        parts = graph.parts(Name)
        return cls([f"t{i}" for i in parts["inputs"]], map(Call, parts["calls"]), [f"t{i}" for i in parts["outputs"]])

    def cut(self, outputs, calls=None):
        """Only what these outputs need, and what writes."""
        needed, kept = set(outputs), []
        for call in reversed(self.calls if calls is None else calls):
            if call.writes or needed & set(call.results):
                kept.append(call)
                needed |= call.operands()
        kept.reverse()
        made = {name for call in kept for name in call.results if name not in call.operands()}
        fed = [name for name in self.inputs if name in needed]
        return Program([*fed, *sorted(needed - made - set(fed), key=lambda name: int(name[1:]))], kept, outputs)

    def first(self, count):
        """The first calls, with what the last of them makes."""
        return self.cut([name for name in self.calls[count - 1].results], self.calls[:count])

    def without(self, gone):
        """Without the calls at these places: what they make is given."""
        return self.cut(self.outputs, [call for place, call in enumerate(self.calls) if place not in gone])

    def source(self, name="segment", objects=None):
        """The text of a function of the inputs that returns a tuple of the outputs. objects: as for literal()."""
        import os

        lines, mode = [f"def {name}({', '.join(self.inputs)}):"], None
        for call in self.calls:
            if call.mode != mode and call.mode:
                lines.append(f"    with {call.mode}:")
            mode = call.mode
            where = f"  # {os.path.basename(call.file)}:{call.line}" if call.file else ""
            lines += [("        " if mode else "    ") + text + where for text in call.statements(objects)]
        lines.append(f"    return ({''.join(f'{output}, ' for output in self.outputs).rstrip()})")
        return "\n".join(lines) + "\n"

    def function(self, file="segment.py"):
        """It, made of its text."""
        import linecache
        import sys

        source = self.source(objects=(objects := {}))
        # Calls name what they call from the top; torch.ops and the like are attributes.
        space = {name: sys.modules[name] for name in ("torch", "numpy", "cupy", "scipy", "framejit") if name in sys.modules} | objects
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), space)
        return space["segment"]
