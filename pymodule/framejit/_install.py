"""`framejit.install()`: torch.compile and what belongs to it answer with framejit, for libraries that call it themselves.

Only names are replaced, and each is put back by `uninstall()`. Back ends that the caller names other than torch's default stay with
torch.compile: they ask for another compiler.
"""

import functools
import sys
import types

from . import _framejit
from ._compile import _check, _compile_any
from ._compile import reset as _reset
from ._config import _TABLE
from ._control import mark_dynamic, mark_static, stance
from .errors import BreakError, OptionError, RecompileError, _instead, unknown

_before = []  # [(owner, name, value)] while installed; _ABSENT: the owner had no such name of its own
_ABSENT = object()
_OURS = ("inductor", "framejit")
# Fields of torch._dynamo.config that mean something here, and ours.
_FIELDS = {
    "error_on_recompile": "error_on_recompile",
    "recompile_limit": "max_entries",
    "cache_size_limit": "max_entries",
    "disable": "disable",
}
# Options of the peer's back end that only say how fast code is found, or tell more about it: no result depends on them.
_HINTS = (
    "max_autotune", "coordinate_descent_tuning", "epilogue_fusion", "shape_padding", "trace.", "guard_filter_fn", "triton.unique_kernel_names",
    "triton.cudagraph_trees", "force_fuse_int_mm_with_mul", "benchmark_", "combo_kernels", "fx_graph_cache", "size_asserts",
)  # fmt: skip


def install():
    """Put framejit in the place of torch.compile in this process, until `uninstall()`. Imports torch."""
    if _before:
        return
    import torch
    import torch._dynamo as peer
    from torch._dynamo import decorators, eval_frame

    mine = _replacements(torch, peer, decorators)
    try:
        _put(torch, "compile", mine.pop("compile"))
        for name, value in mine.items():
            for owner in (torch.compiler, peer, decorators, eval_frame):
                if name in vars(owner) and (owner is not torch.compiler or name in _IN_COMPILER):
                    _put(owner, name, value)
        _put(type(peer.config), "__setattr__", _config_setter(peer.config))
        _raise_as_the_peer(peer.exc)
        _count_as_the_peer(sys.modules["torch._dynamo.utils"].counters)
        for field in ("error_on_recompile", "disable"):
            if value := getattr(peer.config, field):  # where it is off there, ours stays as it was set here
                _set_field(field, value)
        registry = sys.modules["torch._dynamo.backends.registry"]
        if "framejit" not in registry._COMPILER_FNS:
            from ._torch_backend import framejit

            for table in (registry._COMPILER_FNS, registry._BACKENDS):  # where an entry point names it, it stands in the second
                _before.append((table, "framejit", table.get("framejit", _ABSENT)))
            registry.register_backend(framejit, name="framejit")
    except BaseException:
        uninstall()
        raise


def uninstall():
    """Put back what `install()` replaced. What was compiled meanwhile stays compiled."""
    _framejit.set_observer(None)
    _instead.clear()
    while _before:
        owner, name, value = _before.pop()
        if isinstance(owner, dict):
            owner.pop(name, None) if value is _ABSENT else owner.__setitem__(name, value)
        elif owner is _framejit:
            _framejit.set_option(name, value)
        elif value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


_IN_COMPILER = ("set_stance", "disable", "nested_compile_region")


def _put(owner, name, value):
    _before.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def _set_field(field, value):
    """A field of torch._dynamo.config was set: the option that means the same."""
    option = _FIELDS[field]
    if not any(owner is _framejit and name == option for owner, name, _ in _before):
        _before.append((_framejit, option, _framejit.get_option(option)))
    _framejit.set_option(option, str(int(value)))


def _raise_as_the_peer(exc):
    """What expects errors of torch.compile catches ours."""
    for ours, theirs in ((BreakError, exc.Unsupported), (RecompileError, exc.RecompileError)):
        _instead[ours.__name__] = type(ours.__name__, (ours, theirs), {"__doc__": ours.__doc__, "__module__": __name__})


def _count_as_the_peer(counters):
    """`torch._dynamo.utils.counters` tells of both compilers."""

    def told(kind, text):
        if kind == "capture":
            counters["frames"].update(total=1, ok=1)
            counters["stats"].update(unique_graphs=1, calls_captured=int(text))
        else:
            counters["graph_break"][text] += 1

    _framejit.set_observer(told)


def _config_setter(config):
    set_attribute = type(config).__setattr__

    def __setattr__(self, name, value):
        set_attribute(self, name, value)
        if self is config and name in _FIELDS:
            _set_field(name, value)

    return __setattr__


def _replacements(torch, peer, decorators):
    peers_compile, peers_disable, peers_explain = torch.compile, peer.disable, peer.explain

    @functools.wraps(peers_compile)
    def compile(model=None, **words):  # noqa: A001
        if model is None:
            return lambda target: compile(target, **words)
        settings = None if isinstance(model, type) else _settings(torch, peer, **words)
        if settings is None:
            return peers_compile(model, **words)
        return model if words.get("disable") else _compile(torch, model, settings)

    @functools.wraps(peers_disable)
    def disable_(fn=None, recursive=True, **words):
        if fn is None:
            return lambda target: disable_(target, recursive, **words)
        if isinstance(fn, _framejit.CompiledFunction):
            fn = fn.__wrapped__
        return peers_disable(fn, recursive, **words)  # capture knows its wrappers

    def both(name, ours):
        theirs = getattr(decorators, name)

        @functools.wraps(theirs)
        def marked(t, index=None, *args, **words):
            if _framejit.is_compiling():
                return  # too late for this call, and the next one has other tensors
            theirs(t, *(() if index is None else (index,)), *args, **words)
            if isinstance(t, torch.Tensor):
                ours(t, index, **{k: v for k, v in words.items() if k in ("min", "max") and ours is mark_dynamic})

        return marked

    @functools.wraps(peer.reset)
    def reset(peers_reset=peer.reset):
        peers_reset()
        _reset()

    @functools.wraps(peers_explain)
    def explain(f, *args, **kwargs):
        from ._explain import explain as ours

        told = ours(getattr(f, "_orig_mod", f))
        return told(*args, **kwargs) if args or kwargs else told

    def nested_compile_region(fn=None, *args, **words):
        """A region is compiled with what is around it."""
        return fn if fn is not None else lambda target: target

    return {
        "compile": compile,
        "disable": disable_,
        "reset": reset,
        "explain": explain,
        "set_stance": _stance_class(peer.set_stance),
        "nested_compile_region": nested_compile_region,
        "mark_dynamic": both("mark_dynamic", mark_dynamic),
        "maybe_mark_dynamic": both("maybe_mark_dynamic", mark_dynamic),
        "mark_unbacked": both("mark_unbacked", mark_dynamic),
        "mark_static": both("mark_static", mark_static),
    }


def _settings(torch, peer, *, fullgraph=False, dynamic=None, backend=None, mode=None, options=None, name=None, disable=False,
              recompile_limit=None, isolate_recompiles=False, shapes_spec=None):  # fmt: skip
    """What `framejit.compile` is told, checked; None: the call is meant for torch.compile."""
    if backend is None:
        backend = getattr(torch.compiler, "get_default_backend", lambda: "inductor")()
    if backend not in _OURS or shapes_spec is not None or torch.compiler.is_exporting():
        return None
    if mode is not None and options is not None:
        raise RuntimeError("Either mode or options can be specified, but both can't be specified at the same time.")
    if dynamic is None:
        config = peer.config
        dynamic = True if not config.assume_static_by_default else None if config.automatic_dynamic_shapes else False
    options = _options(options or {})
    if recompile_limit is not None:
        options["max_entries"] = recompile_limit
    return _check(fullgraph, dynamic, "llvm", mode, options)


def _options(options):
    ours = {}
    for name, value in options.items():
        if name == "triton.cudagraphs":
            ours["cuda_graphs"] = "true" if value else "false"
        elif name in _TABLE:
            ours[name] = value
        elif not name.startswith(_HINTS):
            raise OptionError(unknown("option", name, ["triton.cudagraphs", *_HINTS, *_TABLE]))
    return ours


def _compile(torch, model, settings):
    if isinstance(model, torch.nn.Module):
        from ._optimized import OptimizedModule, Settings

        if isinstance(model, OptimizedModule):
            if model.dynamo_ctx == settings:
                return model
            model = model._orig_mod
        return OptimizedModule(model, Settings(settings))
    if isinstance(model, types.MethodType) and isinstance(model.__self__, torch.nn.Module) and isinstance(model.__func__, types.FunctionType):
        bound = _framejit.compile_function(model.__func__, settings, model.__self__)  # one function serves all modules: its segments are its own
        compiled = bound.__get__(model.__self__, type(model.__self__))
    else:
        bound = compiled = _compile_any(model, settings)
    if isinstance(bound, _framejit.CompiledFunction):
        bound._torchdynamo_orig_callable = bound.__wrapped__  # by which libraries know that it is compiled
    return compiled


_STANCES = [*stance.NAMES, "eager_then_compile", "aot_eager_then_compile"]


def _stance_class(peers):
    class set_stance:  # noqa: N801 (the peer's name)
        """Sets the stance of both compilers; a function, a context manager and a decorator."""

        def __init__(self, stance_="default", *, skip_guard_eval_unsafe=False, force_backend=None):
            if force_backend not in (None, "eager", "inductor", "framejit"):
                raise OptionError(f"force_backend={force_backend!r} cannot be had while framejit is installed: framejit.uninstall() first")
            if stance_ not in _STANCES:
                raise OptionError(unknown("stance", stance_, _STANCES))  # the peer takes any word and fails at the next call
            self._peers = peers(stance_, skip_guard_eval_unsafe=skip_guard_eval_unsafe, force_backend=force_backend)
            # The words that begin in eager only put off what is compiled.
            word = "force_eager" if force_backend == "eager" else stance_
            self._ours = stance(word if word in stance.NAMES else "default")

        def __enter__(self):
            self._peers.__enter__()
            self._ours.__enter__()

        def __exit__(self, *exc_info):
            self._ours.__exit__(*exc_info)
            self._peers.__exit__(*exc_info)

        def __call__(self, fn):
            return self._ours(self._peers(fn))

    return set_stance


def install_with_torch():
    """`install()` now if torch is there, else as soon as it has been imported. Imports nothing itself."""
    if "torch" in sys.modules:
        return install()
    sys.meta_path.insert(0, _AfterTorch())


class _AfterTorch:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                install()

            spec.loader.exec_module = exec_module
        return spec
