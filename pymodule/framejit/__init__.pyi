from typing import Any, Callable, Iterable, Literal, ParamSpec, Protocol, TypeVar, overload

from . import errors as errors
from ._config import config as config
from .errors import BreakError as BreakError
from .errors import FramejitError as FramejitError
from .errors import OptionError as OptionError
from .errors import InternalError as InternalError
from .errors import RecompileError as RecompileError

__version__: str

_T = TypeVar("_T", bound=Callable[..., Any])
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Mode = Literal["default", "background", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
_Backend = str | Callable[[Any, list[Any]], Callable[..., Any]]
_Stance = Literal["default", "force_eager", "eager_on_recompile", "fail_on_recompile"]

@overload
def compile(
    model: _T,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: _Backend = "llvm",
    mode: _Mode | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> _T: ...
@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: _Backend = "llvm",
    mode: _Mode | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Callable[[_T], _T]: ...
@overload
def disable(fn: _T, *, reason: str | None = None) -> _T: ...
@overload
def disable(fn: None = None, *, reason: str | None = None) -> Callable[[_T], _T]: ...
def is_compiling() -> bool: ...
def reset() -> None: ...
def synchronize() -> None: ...
def install() -> None: ...
def uninstall() -> None: ...

class stance:
    NAMES: list[str]
    def __init__(self, name: _Stance = "default") -> None: ...
    def __enter__(self) -> stance: ...
    def __exit__(self, *exc_info: object) -> None: ...
    def __call__(self, fn: Callable[_P, _R]) -> Callable[_P, _R]: ...

def grad(fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]: ...
def value_and_grad(
    fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]: ...
def jvp(fun: Callable[..., Any], primals: tuple[Any, ...] | list[Any], tangents: tuple[Any, ...] | list[Any]) -> tuple[Any, Any]: ...
def vmap(fun: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]: ...

class _Shaped(Protocol):
    @property
    def shape(self) -> Any: ...

def mark_dynamic(tensor: _Shaped, dim: int | Iterable[int], min: int | None = None, max: int | None = None) -> None: ...
def mark_static(tensor: _Shaped, dim: int | Iterable[int] | None = None) -> None: ...

class Explanation:
    graph_count: int
    graph_break_count: int
    op_count: int
    break_reasons: list[str]
    early_ends: dict[str, int]
    graphs: list[str]
    guards: list[str]
    notes: list[str]
    result: Any
    def _repr_html_(self) -> str: ...

def explain(fn: Callable[_P, Any], **settings: Any) -> Callable[_P, Explanation]: ...
def cache_info(fn: Callable[..., Any] | None = None) -> dict[str, Any]: ...
class CostStep:
    graph: str
    name: str
    by: str
    bytes: float
    flops: float

class Cost:
    flops: float
    backward_flops: float
    bytes: float
    input_bytes: int
    output_bytes: int
    kept_bytes: int
    scratch_bytes: int
    unknown: list[str]
    steps: list[CostStep]

def cost_analysis(
    fn: Callable[_P, Any], *, dynamic: bool | None = None, mode: _Mode | None = None, options: dict[str, Any] | None = None
) -> Callable[_P, Cost]: ...
class Step:
    graph: str
    name: str
    by: str
    device: str
    runs: int
    seconds: float
    bytes: float
    flops: float
    @property
    def bandwidth(self) -> float: ...
    @property
    def rate(self) -> float: ...

class profile:
    steps: list[Step]
    def __init__(self) -> None: ...
    def __enter__(self) -> profile: ...
    def __exit__(self, *exc_info: object) -> None: ...
    @property
    def peak_bandwidth(self) -> float: ...
    def peak_of(self, device: str) -> float: ...

def list_backends() -> list[str]: ...
@overload
def register_backend(name: str, backend: _T) -> _T: ...
@overload
def register_backend(name: str, backend: None = None) -> Callable[[_T], _T]: ...
@overload
def register_backend(name: _T, backend: None = None) -> _T: ...
