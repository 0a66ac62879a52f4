"""framejit as a back end of torch.compile: `torch.compile(f, backend="framejit")`. torch.compile captures, and what it hands over, the
code of an FX graph, is captured again by us as any function is: with gradients, symbolic sizes and mutation."""

from . import _framejit
from ._compile import _check


def framejit(graph, example_inputs, *, mode=None, options=None):
    """Takes a graph of torch.compile, gives what runs it. Compiles at the first call, from real inputs."""
    settings = _check(False, None, "llvm", mode, options)
    graph.code  # noqa: B018 (its forward is written now, and not when it is first called)
    return _framejit.compile_function(type(graph).forward, settings, graph).__get__(graph, type(graph))
