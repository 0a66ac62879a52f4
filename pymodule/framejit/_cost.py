"""`framejit.cost_analysis`: what a call would compute, move and hold, without running it."""

import sys

from . import _framejit
from ._compile import _check, _compile_any
from ._explain import _segments
from .errors import FramejitError

_SUSPENDS = 0x20 | 0x80 | 0x200  # inspect's CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR


class CostStep:
    """One step of the plan: `graph` (the function's name, with "forward" or "backward" where gradients are wanted), `name` (`what@file:line`),
    `by` ("kernel", "matmul", "extern", ...), `bytes` (that it reads and writes, each once), `flops` (of matrix products, else 0)."""

    def __init__(self, graph, name, by, read_and_written, flops):
        self.graph, self.name, self.by, self.bytes, self.flops = graph, name, by, read_and_written, flops

    def __repr__(self):
        return f"<CostStep {self.by} {self.name}: {self.bytes:.3g} bytes>"


class Cost:
    """What one call would take. Numbers are of the sizes of the arguments that were given. `print` it.

    flops:          arithmetic operations of the call: 2 for each multiply-add of a matrix product or a convolution, 1 for each element of what is
                    computed element by element or reduced. As the program says it: fusion changes nothing in it.
    backward_flops: of the backward pass, where results want gradients; else 0.
    bytes:          read and written by the steps of the plan, after fusion, forward and backward.
    input_bytes, output_bytes: of the call's tensors (a result that is an input counts as none).
    kept_bytes:     of what is kept for the backward pass.
    scratch_bytes:  the most memory that intermediate values take at once, in one pass.
    unknown:        calls that the framework makes by itself; their operations and their own memory are not in the numbers.
    steps:          a list of CostStep, forward first.
    """

    def __init__(self, data):
        forward, *backward = data["passes"]
        self.flops = data["flops"]
        self.backward_flops = sum(p["flops"] for p in backward)
        self.input_bytes, self.output_bytes = data["input_bytes"], data["output_bytes"]
        self.kept_bytes = max(0, forward["output_bytes"] - data["output_bytes"])
        self.scratch_bytes = max(p["scratch_bytes"] for p in data["passes"])
        self.unknown = data["unknown"]
        self.steps = [CostStep(p["name"], *step) for p in data["passes"] for step in p["steps"]]
        self.bytes = sum(step.bytes for step in self.steps)

    def __repr__(self):
        return f"<Cost: {self.flops + self.backward_flops:.3g} operations, {self.bytes:.3g} bytes in {len(self.steps)} steps>"

    def __str__(self):
        figures = [("operations", _short(self.flops)), ("  of the backward pass", _short(self.backward_flops)), ("read and written", _bytes(self.bytes)),
                   ("inputs", _bytes(self.input_bytes)), ("outputs", _bytes(self.output_bytes)), ("kept for the backward pass", _bytes(self.kept_bytes)),
                   ("intermediate values", _bytes(self.scratch_bytes))]  # fmt: skip
        if not any(" backward " in step.graph + " " for step in self.steps):
            figures = [row for row in figures if "backward" not in row[0]]
        lines = [f"{name:26}  {value}" for name, value in figures]
        if self.unknown:
            lines.append(f"{'not counted':26}  {', '.join(dict.fromkeys(self.unknown))}")
        rows = [("bytes", "operations", "by", "step", "of")]
        rows += [(_bytes(s.bytes), _short(s.flops) if s.flops else "", s.by, s.name, s.graph) for s in self.steps]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        table = ("  ".join(f"{cell:>{w}}" if i < 2 else f"{cell:{w}}" for i, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows)
        return "\n".join([*lines, "", *table])


def _short(value):
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:g}"


def _bytes(value):
    return _short(value) + "B" if value >= 1000 else f"{value:g} B"


def cost_analysis(fn, *, dynamic=None, mode=None, options=None):
    """`cost_analysis(f)(*args, **kwargs)` tells what that call would compute, move and hold, as a `Cost`. The call is captured and compiled, and
    nothing of it runs: no result, nothing written, nothing printed.

    fn: a function, method or module, compiled or not; dynamic, mode, options: as for `framejit.compile`, by default those of `fn`. The arguments
    are real ones: their sizes, types and devices are what is asked about.
    Raises BreakError where the call is not one graph (what comes behind a break depends on what the break does), and FramejitError where
    there is no compiled graph, with the reason.
    """
    of = _segments(fn)
    own = of.options if of is not None and dynamic is mode is options is None else _check(True, dynamic, "llvm", mode, options)
    # A key of its own: what this compiles is found by no other call.
    compiled = _compile_any(fn, {**own, "fullgraph": True, "backend": "llvm", "estimate": True})
    segments = _segments(compiled)
    if segments is None:
        raise TypeError(f"framejit.cost_analysis takes a function, a method or a module, not {type(fn).__name__!r}")

    def call(*args, **kwargs):
        if segments.__wrapped__.__code__.co_flags & _SUSPENDS:
            raise FramejitError("a generator or a coroutine cannot be estimated: what it does lies between its suspensions")
        if sys.gettrace() or sys.getprofile():
            raise FramejitError("nothing can be estimated while a tracer or a profile function is on: functions run as written then")
        try:
            return Cost(_framejit.estimate(compiled, args, kwargs))
        finally:
            segments.clear()

    return call
