"""`framejit.explain` and `framejit.cache_info`."""

from . import _framejit
from ._compile import compile
from ._module import _Twin


def _segments(fn):
    """The CompiledFunction behind a compiled function, method or module; None if it is not compiled."""
    if isinstance(fn, _Twin):
        fn = type(fn).__call__
    fn = getattr(fn, "__func__", fn)
    return fn if isinstance(fn, _framejit.CompiledFunction) else None


class Explanation:
    """What became of a call: `graph_count` (graphs that ran), `graph_break_count`, `op_count`, `break_reasons` (reports with source and
    caret), `early_ends` (what ended early in this call, so that Python did its work, and why: how often), `graphs` and `guards` (text),
    `notes` (why, in this call or an earlier one, something was left to Python or to the framework), `result` (what the call returned).
    `print` it."""

    def __init__(self, data, result):
        self.graph_count = data["graph_count"]
        self.graph_break_count = data["graph_break_count"]
        self.op_count = data["op_count"]
        self.break_reasons = data["break_reasons"]
        self.early_ends = data["early_ends"]
        self.graphs = data["graphs"]
        self.guards = data["guards"]
        self.notes = data["notes"]
        self.result = result

    def _head(self):
        ended = sum(self.early_ends.values())
        early = f", {ended} run(s) ended early" if ended else ""
        return f"{self.graph_count} graph(s), {self.graph_break_count} break(s), {self.op_count} op(s){early}"

    def _early(self):
        return [f"{text} ({times} times)" if times > 1 else text for text, times in self.early_ends.items()]

    def __str__(self):
        parts = [self._head(), *self._early(), *self.break_reasons]
        if self.notes:
            parts.append("notes:\n  " + "\n  ".join(self.notes))
        for number, graph in enumerate(self.graphs):
            parts.append(f"graph {number}:\n{graph}")
        if self.guards:
            parts.append("guards:\n  " + "\n  ".join(self.guards))
        return "\n\n".join(part.rstrip() for part in parts)

    def __repr__(self):
        return f"<Explanation: {self.graph_count} graphs, {self.graph_break_count} breaks, {self.op_count} ops>"

    def _repr_html_(self):
        """For notebooks: the counts and breaks at once, graphs and guards where they are opened."""
        from html import escape

        def block(text):
            return f"<pre>{escape(text)}</pre>"

        def folded(title, text):
            return f"<details><summary>{escape(title)}</summary>{block(text)}</details>"

        parts = [f"<b>{self._head()}</b>", *map(block, [*self._early(), *self.break_reasons])]
        if self.notes:
            parts.append(folded(f"{len(self.notes)} note(s)", "\n".join(self.notes)))
        parts += [folded(f"graph {number}", graph) for number, graph in enumerate(self.graphs)]
        if self.guards:
            parts.append(folded(f"{len(self.guards)} guard(s)", "\n".join(self.guards)))
        return "".join(parts)


def explain(fn, **settings):
    """`explain(f)(*args, **kwargs)` runs the call and tells what ran and what broke in it, as an `Explanation`: in this
    call alone, compiled now or earlier.

    fn: a function, method or module, compiled or not; settings: as for `framejit.compile`. Errors of the call propagate.
    """
    compiled = fn if _segments(fn) is not None and not settings else compile(fn, **settings)
    segments = _segments(compiled)
    if segments is None:
        raise TypeError(f"framejit.explain cannot explain {type(fn).__name__!r}")

    def call(*args, **kwargs):
        _framejit.explain_begin(segments)
        result = compiled(*args, **kwargs)
        return Explanation(_framejit.explain_data(segments), result)

    return call


def cache_info(fn=None):
    """Counters as a dictionary: of the kernel cache of the process, or of one compiled function, method or module."""
    if fn is None:
        return _framejit.kernel_cache_info()
    segments = _segments(fn)
    if segments is None:
        raise TypeError(f"{fn!r} is not compiled by framejit")
    return segments.cache_info()
