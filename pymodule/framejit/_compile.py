"""`framejit.compile`: checks its arguments, finds out what kind of thing it was given, and hands functions to the C side.
No semantics live here."""

import sys
import types

from . import _framejit
from ._config import _TABLE, encode
from .errors import OptionError, unknown

_COROUTINE = 0x80  # inspect.CO_COROUTINE
_PROCESS_WIDE = {"log", "events", "events_log", "events_limit", "disable", "install", "cache_dir", "cache_limit", "num_threads", "measure"}
_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
# What each mode says in terms of options.
MODES = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": "true"},
    "background": {"background": "1"},
    "max-autotune": {"tune": "1"},
    "max-autotune-no-cudagraphs": {"tune": "1", "cuda_graphs": "false"},
}


def compile(
    model=None, *, fullgraph=False, dynamic=None, backend="llvm", mode=None, options=None, disable=False
):  # noqa: A001
    """Make a function, a method, a callable object or a `torch.nn.Module` fast. Also a decorator, bare or with arguments.

    fullgraph: True: whatever does not fit into one graph raises `framejit.BreakError` instead of splitting it.
    dynamic:   None: sizes and whole numbers that change become symbolic on the second compile; True: from the start, those above 1;
               False: never.
    backend:   "llvm" (machine code), "eager" (the framework runs the captured graph), "interpreter" (reference), a name
               of `register_backend`, or a callable taking (graph, example_inputs).
    mode:      None or "default"; "background": another thread compiles, and until it is done the framework makes the calls
               (`framejit.synchronize()` waits for that); "reduce-overhead": CUDA graphs wherever one can be captured; "max-autotune": every shape of
               a matrix product is measured in all libraries (up to 40 s of a process), and on a CPU the first runs of a graph
               take turns among its forms (without a layout, a packing, fusion ...) until the fastest is known;
               "max-autotune-no-cudagraphs": the same, and no CUDA graphs.
    options:   fields of `framejit.config` for this function only (not log, events, disable and others of the process).
    disable:   True: return `model` as it is.

    Returns the same kind of thing: a function keeps binding, signature and `__wrapped__`; a module gives a module that
    shares the state of the original. The result computes what the original computes, and raises what it raises.
    Raises OptionError for unknown names (valid ones are listed) and TypeError for what cannot be called.
    """
    settings = _check(fullgraph, dynamic, backend, mode, options)
    if _framejit.get_option("events"):
        from ._collectives import watch

        watch()
    if model is None:
        return lambda target: target if disable else _compile_any(target, settings)
    return model if disable else _compile_any(model, settings)


def _check(fullgraph, dynamic, backend, mode, options):
    for name, value, valid in (("fullgraph", fullgraph, (True, False)), ("dynamic", dynamic, (None, True, False))):
        if not any(value is v for v in valid):
            raise OptionError(f"{name} must be one of {', '.join(map(str, valid))}, not {value!r}")
    if mode is not None and mode not in MODES:
        raise OptionError(unknown("mode", mode, list(MODES)))
    if backend != "llvm":
        from ._backends import resolve

        backend = resolve(backend)
    if options:
        if not isinstance(options, dict):
            raise OptionError(f"options must be a dictionary, not {type(options).__name__}")
        for field in options:
            if field not in _TABLE:
                raise OptionError(unknown("option", field, list(_TABLE)))
            if field in _PROCESS_WIDE:
                raise OptionError(f"option {field!r} holds for the whole process: set framejit.config.{field}")
        options = {field: encode(field, value) for field, value in options.items()}
    if mode and mode.startswith("max-autotune"):
        _framejit.set_option("measure", "1")  # verdicts are the process's
    options = {**MODES.get(mode, {}), **(options or {})}
    return {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode or "default",
        "options": options,
    }


def _compile_any(target, settings):
    if isinstance(target, _framejit.CompiledFunction):
        return target if target.options == settings else _framejit.compile_function(target.__wrapped__, settings)
    if isinstance(target, types.FunctionType):
        told = target.__dict__
        if told.get("_torchdynamo_wrapper_id") == id(target) and not told.get("_torchdynamo_disable"):
            return _compile_any(told["_torchdynamo_orig_callable"], settings)  # torch.compile's: it is compiled here instead
        compiled = _framejit.compile_function(target, settings)
        return _marked(compiled) if target.__code__.co_flags & _COROUTINE else compiled
    if isinstance(target, types.MethodType):
        return _compile_any(target.__func__, settings).__get__(target.__self__, type(target.__self__))
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(_compile_any(target.__func__, settings))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, getattr(getattr(torch, "nn", None), "Module", ())):
        from ._module import compile_module

        return compile_module(target, settings)
    if isinstance(target, type):
        raise TypeError(f"framejit.compile takes a function, a method or a module, not the class {target.__name__!r}: decorate its methods")
    if not callable(target):
        raise TypeError(f"framejit.compile takes a function, a method or a module, not {type(target).__name__!r}")
    functools = sys.modules.get("functools")
    if functools is not None and isinstance(target, functools.partial):
        compiled = functools.partial(_compile_any(target.func, settings))
        # The dicts are the target's own, so that what is written there later holds here, too.
        compiled.__setstate__((compiled.func, target.args, target.keywords, target.__dict__))
        return compiled
    call = getattr(type(target), "__call__", None)
    if isinstance(call, types.FunctionType):  # an object with __call__
        return _framejit.compile_function(call, settings).__get__(target, type(target))
    return _framejit.compile_function(_forwarder(target), settings)  # written in C: torch.add, numpy.exp


def _marked(compiled):
    """asyncio and inspect know a coroutine function by a flag of its code, or else by a mark."""
    import asyncio.coroutines
    import inspect

    if hasattr(inspect, "markcoroutinefunction"):  # since 3.12
        inspect.markcoroutinefunction(compiled)
    compiled._is_coroutine = asyncio.coroutines._is_coroutine
    return compiled


def _forwarder(target):
    owner, method = getattr(target, "__self__", None), None
    if not isinstance(owner, (type(None), type, types.ModuleType)):
        method = getattr(type(owner), getattr(target, "__name__", ""), None)
        if not isinstance(method, _C_METHODS) or method.__get__(owner, type(owner)) != target:
            method = None  # the class has another one of this name

    def call(*args, **kwargs):
        return target(*args, **kwargs)

    def call_method(*args, **kwargs):
        return method(owner, *args, **kwargs)

    made = call if method is None else call_method
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        value = getattr(target, name, None)
        if isinstance(value, str):
            setattr(made, name, value)
    made.__code__ = made.__code__.replace(co_name=made.__name__)  # what is compiled is found by the code: each has its own
    made.__wrapped__ = target
    return made


def synchronize():
    """Wait until everything that `mode="background"` has begun to compile is compiled. The next calls run it."""
    _framejit.synchronize()


def reset():
    """Forget everything that was compiled in this process (kernels included). The next call compiles anew."""
    _framejit.reset()
