"""The C extension. Private: the contract between it and the Python files beside it."""

from typing import Any, Callable, TypedDict

class CompileOptions(TypedDict):
    fullgraph: bool
    dynamic: bool | None
    backend: str  # a name of list_backends() or one made by register_backend
    mode: str
    options: dict[str, Any]  # fields of options(), already checked

class CompiledFunction:
    """A function that captures itself on its first call. Binds like a function (`__get__`), is called by vectorcall;
    other attributes are the wrapped function's."""

    __wrapped__: Callable[..., Any]
    options: CompileOptions
    graphs: list[str]
    guards: list[str]
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: type | None = ..., /) -> Any: ...
    def cache_info(self) -> dict[str, Any]: ...
    def clear(self) -> None: ...

class ExplainData(TypedDict):
    graph_count: int
    graph_break_count: int
    op_count: int
    break_reasons: list[str]  # rendered reports, with source and caret
    graphs: list[str]
    guards: list[str]

def compile_function(fn: Callable[..., Any], options: CompileOptions, identity: object = ..., /) -> CompiledFunction:
    """A new CompiledFunction; compiled segments are found again by code object, so this costs next to nothing.
    Errors that Python code should be able to catch are classes of framejit.errors (BreakError for fullgraph)."""

def tell_of_classes(function: Callable[[object], object], /) -> None:
    """Calls it from now on with each object whose `__class__` was set, if there is a weak reference to that."""

def call_eager(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
    """fn(*args, **kwargs) with capture and compiled functions off for this thread until it returns. Capture breaks at it."""

def is_compiling() -> bool:
    """False; capture answers True."""

def same_layout(columns: tuple[list[Any], ...]) -> bool: ...
def reset() -> None: ...
def synchronize() -> None: ...
def pause_compilations() -> None:
    """Before fork(), and for tests: what mode="background" compiles now ends, nothing else is begun."""

def resume_compilations() -> None: ...
def restart_compilations() -> None:
    """In a child of fork(), which has no thread for them."""

def end_all() -> None:
    """At exit: from now on everything runs as written."""

def options() -> list[tuple[str, str, str, str, str]]:
    """(field, environment variable or "", type b/i/s/l (l: names separated by commas), default text, help), in table order."""

def get_option(field: str, /) -> str:
    """The current value as text."""

def set_option(field: str, value: str, /) -> None:
    """ValueError names the valid values."""

def normal_option(field: str, value: str, /) -> str:
    """What set_option would set. ValueError names the valid values."""

def check_environment() -> str:
    """Empty, or what is wrong with a FRAMEJIT_* variable, naming the valid values."""

def breaks() -> list[tuple[str, str, str, str]]:
    """(id, message, explanation, hint)."""

def kernel_cache_info() -> dict[str, Any]:
    """kernels, hits, misses, compile_seconds, code_bytes, prepared_bytes."""

def explain_begin(compiled: CompiledFunction, /) -> None:
    """What the function does from here on is told by explain_data."""

def explain_data(compiled: CompiledFunction, /) -> ExplainData: ...
class PassCost(TypedDict):
    name: str
    flops: float
    input_bytes: int
    output_bytes: int
    scratch_bytes: int  # the most that intermediate values take at once
    steps: list[tuple[str, str, float, float]]  # name, kind, bytes, flops

class CallCost(TypedDict):
    flops: float
    input_bytes: int
    output_bytes: int
    unknown: list[str]  # calls of the framework
    passes: list[PassCost]  # the forward pass, then the parts of the backward pass

def estimate(compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /) -> CallCost:
    """What the call would take; it is captured and compiled, and does not run. BreakError, FramejitError: it cannot be told."""

def event(kind: str, fields: dict[str, str], /) -> None:
    """Writes an event while FRAMEJIT_EVENTS is on. The values are JSON text."""

def time_steps(on: bool, /) -> None:
    """True: the steps of every run are timed from now on, until as many calls with False."""

def step_times() -> list[tuple[str, str, str, str, float, float, float, float]]:
    """(graph, name, kind, device, runs, seconds, bytes, flops) of each step since the last call. Waits for GPUs."""

def doctor() -> list[tuple[str, str]]: ...
def set_stance(stance: str, /) -> None:
    """One of framejit.stance.NAMES."""

def set_observer(observer: Callable[[str, str], Any] | None, /) -> None:
    """Told of every capture ("capture", the number of calls in it) and of every new break ("break", its text)."""

def register_backend(name: str, backend: Callable[[Any, list[Any]], Callable[..., Any]], /) -> None: ...
