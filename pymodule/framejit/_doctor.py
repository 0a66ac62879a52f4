"""`python -m framejit doctor`: what this machine has, and one function compiled for real."""

import os
import platform
import sys

from . import __version__, _framejit
from ._config import _TABLE


def _versions():
    yield "framejit", __version__
    build = "free-threaded" if not getattr(sys, "_is_gil_enabled", lambda: True)() else "GIL"
    yield "python", f"{platform.python_implementation()} {platform.python_version()} ({build}), {sys.executable}"
    yield "platform", platform.platform()
    for name in ("torch", "numpy", "transformers"):
        try:
            module = __import__(name)
            yield name, module.__version__
        except ImportError as error:
            yield name, f"not installed ({error}); its functions are left out, nothing else changes"


def _environment():
    known = {env for env, *_ in _TABLE.values() if env}
    for name in sorted(os.environ):
        if name.startswith("FRAMEJIT_"):
            yield name, os.environ[name] if name in known else f"{os.environ[name]!r}: no such variable (valid: {', '.join(sorted(known))})"
    problem = _framejit.check_environment()
    if problem:
        yield "environment", f"FAILED: {problem}"


def _self_test():
    """Compiles and runs x * y + 1 with what is installed; the time includes starting LLVM."""
    import time

    from ._explain import explain

    space = {}  # framejit does not compile its own files, so the function comes from a file of nobody
    exec(compile("def kernel(x, y):\n    return x * y + 1\n", "<framejit self-test>", "exec"), space)
    try:
        import numpy as library

        make = lambda: library.arange(16, dtype="float32")  # noqa: E731
    except ImportError:
        try:
            import torch as library

            make = lambda: library.arange(16, dtype=library.float32)  # noqa: E731
        except ImportError:
            return "skipped: neither NumPy nor torch is installed"
    start = time.perf_counter()
    told = explain(space["kernel"])(make(), make())
    seconds = time.perf_counter() - start
    expected = [float(i * i + 1) for i in range(16)]
    if [float(v) for v in told.result] != expected:
        return f"FAILED: wrong result {told.result}"
    if told.graph_count != 1 or told.graph_break_count:
        return f"FAILED: {told.graph_count} graphs, {told.graph_break_count} breaks: {' '.join(told.break_reasons)}"
    return f"compiled and ran one function in {seconds * 1e3:.0f} ms"


def examine():
    """(rows, healthy): rows are (name, finding)."""
    rows = [*_versions(), *_environment()]
    rows += _framejit.doctor()
    try:
        rows.append(("self-test", _self_test()))
    except Exception as error:  # whatever went wrong is the finding
        rows.append(("self-test", f"FAILED: {type(error).__name__}: {error}"))
    return rows, not any("FAILED" in finding for _, finding in rows)
