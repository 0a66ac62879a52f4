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


# What each kind of step is tried with: a function, the shapes of its arguments, whether gradients are wanted.
_TRIALS = {
    "kernel": ("def f(x, y):\n    return torch.nn.functional.gelu(x) * y + 1\n", [(64, 1000), (64, 1000)], False),
    "rows": ("def f(x):\n    return torch.softmax(x, -1), x.sum(0)\n", [(200, 333)], False),
    "product": ("def f(x, w, b):\n    return torch.relu(x @ w + b)\n", [(128, 256), (256, 96), (96,)], False),
    "convolution": ("def f(x, w):\n    return torch.relu(torch.nn.functional.conv2d(x, w, padding=1))\n", [(2, 8, 20, 20), (16, 8, 3, 3)], False),
    "gradients": ("def f(x, w, y):\n    return torch.nn.functional.layer_norm(torch.tanh(x @ w), (64,), y)\n", [(32, 48), (48, 64), (64,)], True),
    "gradients that vanish": ("def f(x, w):\n    return torch.nn.functional.layer_norm(torch.tanh(x @ w), (64,))\n", [(32, 48), (48, 64)], True),
}


def _gpu():
    """Compiles, runs and compares on the first GPU."""
    try:
        import torch
    except ImportError as error:
        yield "gpu", f"FAILED: torch cannot be imported: {error}"
        return
    if not torch.cuda.is_available():
        yield "gpu", f"FAILED: torch {torch.__version__} sees no GPU"
        return
    about = torch.cuda.get_device_properties(0)
    yield "gpu", f"{about.name}, compute capability {about.major}.{about.minor}, {about.total_memory >> 30} GiB, CUDA {torch.version.cuda}"
    yield from _trials("gpu", "cuda", torch.cuda.synchronize)


def _trials(where, device, wait=lambda: None):
    """A row for each kind of step; the time of each includes its compilation."""
    import time

    import torch

    from ._numerics import compiled, copies, difference, example, with_gradients

    for name, (source, shapes, gradients) in _TRIALS.items():
        space = {"torch": torch}
        exec(compile(source, "<framejit self-test>", "exec"), space)
        inputs, wanted = [example("torch", "float32", s, seed=n).to(device) for n, s in enumerate(shapes)], [gradients] * len(shapes)
        start = time.perf_counter()
        try:
            made = compiled(space["f"])
            with_gradients(made, copies(inputs), wanted)
            wait()
            seconds, runs = time.perf_counter() - start, made.cache_info()["outcomes"]["run"]
            wrong = difference(space["f"], inputs, wanted) or ("" if runs == {"graph": 1} else f"no graph ran: {made.cache_info()['notes'] or runs}")
            yield f"{where} {name}", f"FAILED: {wrong}" if wrong else f"right, {seconds * 1e3:.0f} ms with its compilation"
        except Exception as error:  # it is the finding
            yield f"{where} {name}", f"FAILED: {type(error).__name__}: {error}"


def examine(gpu=False):
    """(rows, healthy): rows are (name, finding). gpu: the first GPU is tried, too."""
    rows = [*_versions(), *_environment()]
    rows += _framejit.doctor()
    try:
        rows.append(("self-test", _self_test()))
    except Exception as error:  # whatever went wrong is the finding
        rows.append(("self-test", f"FAILED: {type(error).__name__}: {error}"))
    if gpu:
        rows += _gpu()
    return rows, not any("FAILED" in finding for _, finding in rows)
