"""Names of back ends: what runs a captured graph."""

from . import _framejit
from .errors import OptionError, unknown

_BUILTIN = ["llvm", "eager", "interpreter"]
# Names that torch users type. Accepted as ours where ours does the same job.
_ALIASES = {
    "inductor": "llvm",
    "aot_eager": "eager",
    "eager_noexcept": "eager",
    "aot_eager_decomp_partition": "interpreter",
}
_REPLACED = {
    "cudagraphs": 'use mode="reduce-overhead"',
    "onnxrt": "use framejit.register_backend to run graphs elsewhere",
    "openxla": "use framejit.register_backend to run graphs elsewhere",
    "tensorrt": "use framejit.register_backend to run graphs elsewhere",
    "torch_tensorrt": "use framejit.register_backend to run graphs elsewhere",
    "tvm": "use framejit.register_backend to run graphs elsewhere",
    "ipex": 'use backend="llvm"',
    "hpu_backend": "use framejit.register_backend to run graphs elsewhere",
    "ts": 'use backend="eager"',
    "nvfuser": 'use backend="llvm"',
}
_registered = {}


def list_backends():
    """Names that `framejit.compile(backend=...)` takes; torch.compile's names that mean the same are not listed."""
    return _BUILTIN + [name for name in _registered if "@" not in name]


def register_backend(name, backend=None):
    """Give a Python callable a name as a back end; also a decorator.

    `backend(graph, example_inputs)` gets the captured graph and the tensors of the call that made it, and returns a
    callable that takes such inputs and returns the graph's outputs as a tuple.
    """
    if backend is None and callable(name):
        return register_backend(name.__name__, name)
    if backend is None:
        return lambda fn: register_backend(name, fn)
    if not isinstance(name, str):
        raise TypeError(f"a backend's name is a string, not {type(name).__name__}")
    if name in _BUILTIN or name in _ALIASES:
        raise OptionError(f"backend {name!r} is built in")
    if not callable(backend):
        raise TypeError(f"backend {name!r} must be callable, not {type(backend).__name__}")
    _framejit.register_backend(name, backend)
    _registered[name] = backend
    return backend


def resolve(backend):
    """The C side's name of what the user passed as `backend=`. Raises OptionError."""
    if isinstance(backend, str):
        name = _ALIASES.get(backend, backend)
        if name in _BUILTIN or name in _registered:
            return name
        raise OptionError(unknown("backend", backend, list_backends(), _REPLACED.get(backend, "")))
    if not callable(backend):
        raise OptionError(f"backend must be a name or a callable, not {backend!r} (valid: {list_backends()})")
    name = f"{getattr(backend, '__qualname__', type(backend).__qualname__)}@{id(backend):x}"
    if name not in _registered:  # kept for good, so the id stays unique
        register_backend(name, backend)
    return name
