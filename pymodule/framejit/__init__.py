"""framejit: compiles PyTorch and NumPy programs, from Python bytecode to machine code.

    import framejit

    @framejit.compile
    def step(x, w, b):
        return torch.nn.functional.gelu(x @ w + b)

Importing this needs neither torch nor NumPy and takes a few milliseconds: what is seldom used is loaded when it is.
"""

try:
    from ._framejit import is_compiling
except ImportError as error:
    import glob as _glob
    import os as _os
    import sys as _sys

    if "undefined symbol: _ZN8framejit" in str(error):
        raise ImportError(
            "framejit's libframejit.so and its extension are of different builds: build again (tools/dev build), or install again"
        ) from error
    if not (3, 11) <= _sys.version_info[:2] <= (3, 14) or _sys.implementation.name != "cpython":
        raise ImportError(f"framejit runs on CPython 3.11 to 3.14, and this is {_sys.implementation.name} {_sys.version.split()[0]}") from error
    if "free-threading build" in _sys.version:
        raise ImportError("framejit does not run on free-threaded builds of Python") from error
    _built = sorted(map(_os.path.basename, _glob.glob(_os.path.join(_os.path.dirname(__file__), "_framejit.*.so"))))
    raise ImportError(
        f"framejit's extension cannot be loaded by Python {_sys.version.split()[0]} "
        f"(built: {', '.join(_built) or 'nothing; run tools/dev build'}): {error}"
    ) from error

from . import _arrays, _functions, _gradients, _operators, _random  # noqa: F401 (compiled graphs name them)
from ._compile import compile, reset, synchronize
from ._config import config
from ._control import disable, mark_dynamic, mark_static, stance

__version__ = "0.1.0"

_LAZY = {
    "install": "_install",
    "uninstall": "_install",
    "explain": "_explain",
    "cache_info": "_explain",
    "Explanation": "_explain",
    "profile": "_profile",
    "cost_analysis": "_cost",
    "Cost": "_cost",
    "list_backends": "_backends",
    "register_backend": "_backends",
    "FramejitError": "errors",
    "BreakError": "errors",
    "RecompileError": "errors",
    "InternalError": "errors",
    "OptionError": "errors",
    "grad": "_transforms",
    "value_and_grad": "_transforms",
    "jvp": "_transforms",
    "vmap": "_transforms",
}
__all__ = [
    "compile", "config", "disable", "is_compiling", "mark_dynamic", "mark_static", "reset", "stance", "synchronize", *_LAZY,
]  # fmt: skip


def __getattr__(name):
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'framejit' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})


if config.events:
    from . import _collectives

    _collectives.of_launcher() and _collectives.prepare()

if config.install:
    from ._install import install_with_torch as _install_with_torch

    _install_with_torch()
