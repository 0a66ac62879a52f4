"""Runs a program three times as written and three times compiled, each on fresh arguments, and compares everything that
its user could see: values, types, dtypes, strides, which results share memory with which arguments, identity, mutated
arguments and their version counters, gradients, standard output, warnings, exceptions with the lines they came through,
random state, and the switches of the thread.

A program is a function without arguments that builds the function under test and a maker of fresh arguments:

    @program
    def adds_in_place():
        def f(x):
            x.add_(1)
            return x
        return f, lambda: (torch.ones(3),)

It is built once for each side, so that its own state (closures, instances) is not shared between the two.
"""

import contextlib
import gc
import io
import random
import sys
import traceback
import types
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import oracle

HERE = str(Path(__file__).resolve().parent)
CALLS = 3


def is_ours(file):
    """Is it a program's? What is made of text has no file."""
    return file.startswith((HERE, "<")) and not file.startswith("<frozen")


class Programs(dict):
    """Decorator that collects programs by name; `needs`: modules without which one is skipped."""

    def __init__(self, *needs):
        super().__init__()
        self.needs = needs

    def __call__(self, build):
        assert build.__name__ not in self, f"two programs are called {build.__name__}"
        self[build.__name__] = build
        return build


@dataclass
class Seen:
    """What one call showed. `shape` is compared exactly; `values` (path, value) by the oracle."""

    shape: dict = field(default_factory=dict)
    values: list = field(default_factory=list)


def _torch():
    return sys.modules.get("torch")


def _numpy():
    return sys.modules.get("numpy")


def _tensor_facts(tensor):
    torch = _torch()
    facts = [type(tensor).__name__, str(tensor.dtype), tuple(tensor.shape), str(tensor.device), str(tensor.layout)]
    if tensor.layout is torch.strided:
        facts += [tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()]
    facts += [tensor.requires_grad, tensor.is_leaf, tensor.is_inference()]
    return tuple(facts)


def _array_facts(array):
    flags = array.flags
    return (type(array).__name__, str(array.dtype), array.shape, array.strides, flags.writeable, flags.owndata or "view")


class _Walk:
    """Describes a tree of objects: a hashable form, its tensors and arrays in order, and who is the same object."""

    def __init__(self, seen):
        self.seen = seen
        self.order = {}  # id -> number of first visit
        self.memory = []  # (path, first byte, past the last byte, storage key)
        self.alive = []

    def describe(self, value, path, depth=0):
        torch, numpy = _torch(), _numpy()
        if isinstance(value, (bool, int, str, bytes, type(None), type(Ellipsis), range, slice)):
            return value if type(value) in (bool, int, str, bytes) else (type(value).__name__, repr(value))
        if isinstance(value, (float, complex)) and not (numpy is not None and isinstance(value, numpy.generic)):
            self.seen.values.append((path, value))
            return type(value).__name__
        if isinstance(value, type) or callable(value) and hasattr(value, "__qualname__"):
            return ("named", value.__qualname__)
        if id(value) in self.order:
            return ("same object as", self.order[id(value)])
        self.order[id(value)] = path
        self.alive.append(value)
        if torch is not None and isinstance(value, torch.Tensor):
            self.seen.values.append((path, value.detach().clone()))
            if value.layout is torch.strided and value.numel():
                self._note_memory(path, value.untyped_storage().data_ptr(), value.storage_offset() * value.element_size())
            return ("tensor", *_tensor_facts(value))
        if numpy is not None and isinstance(value, numpy.ndarray):
            self.seen.values.append((path, value.copy()))
            if value.size:
                base = value
                while isinstance(base.base, numpy.ndarray):
                    base = base.base
                self._note_memory(path, base.__array_interface__["data"][0], value.__array_interface__["data"][0] - base.__array_interface__["data"][0])
            return ("array", *_array_facts(value))
        if numpy is not None and isinstance(value, numpy.generic):
            if value.dtype.kind in "fc":
                self.seen.values.append((path, value))
                return ("scalar", type(value).__name__)
            return ("scalar", type(value).__name__, repr(value))
        if isinstance(value, types.GeneratorType):
            return ("generator", self.describe(list(value), path, depth + 1))
        if depth > 8:
            return ("deep", type(value).__name__)
        down = depth + 1
        if isinstance(value, dict):
            items = [(self.describe(k, f"{path}.key", down), self.describe(v, f"{path}[{k!r}]" if isinstance(k, (str, int)) else f"{path}[?]", down)) for k, v in value.items()]
            return (type(value).__name__, tuple(items))
        if isinstance(value, (list, tuple)):
            return (type(value).__name__, tuple(self.describe(v, f"{path}[{i}]", down) for i, v in enumerate(value)))
        if isinstance(value, (set, frozenset)):
            return (type(value).__name__, tuple(sorted(map(repr, value))))
        if isinstance(value, BaseException):
            return (type(value).__name__, self.describe(list(value.args), f"{path}.args", down))
        state = getattr(value, "__dict__", None)
        if isinstance(state, dict):
            keys = [k for k in state if not k.startswith("_framejit")]
            return (type(value).__name__, tuple((k, self.describe(state[k], f"{path}.{k}", down)) for k in keys))
        return (type(value).__name__,)

    def _note_memory(self, path, base, offset):
        self.memory.append((path, base, offset))

    def sharing(self):
        """Groups of paths whose memory has one owner, with their offsets in it."""
        groups = {}
        for path, base, offset in self.memory:
            groups.setdefault(base, []).append((path, offset))
        return sorted(tuple(g) for g in groups.values() if len(g) > 1)


def _user_frames(tb):
    """(function, line) of the traceback's frames in test programs."""
    return [(f.name, f.lineno) for f in traceback.extract_tb(tb) if f.filename.startswith(HERE) and f.filename != __file__]


def _exception_facts(error):
    facts = []
    while error is not None and len(facts) < 5:
        facts.append((type(error).__name__, str(error), _user_frames(error.__traceback__), getattr(error, "__notes__", [])))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return facts


def _thread_state():
    torch, numpy = _torch(), _numpy()
    state = {}
    if torch is not None:
        state["torch"] = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), str(torch.get_default_dtype()),
                          torch.is_autocast_enabled("cpu"), torch.are_deterministic_algorithms_enabled())
        state["torch random"] = hash(bytes(torch.get_rng_state().numpy().tobytes()))
    if numpy is not None:
        kind, keys, position, *_ = numpy.random.get_state()
        state["numpy"] = (tuple(sorted(numpy.geterr().items())), hash(keys.tobytes()), position)
    state["random"] = hash(random.getstate())
    return state


@contextlib.contextmanager
def _restored_thread_state():
    torch, numpy = _torch(), _numpy()
    random.seed(7)
    if torch is not None:
        grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
        torch.manual_seed(7)
        torch.set_warn_always(True)
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            gc.collect()  # torch's checkpoint leaves its hooks where a forward pass raised, until its generator is collected
    if numpy is not None:
        numpy.random.seed(7)
        errors = numpy.geterr()
    try:
        yield
    finally:
        if torch is not None:
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)
        if numpy is not None:
            numpy.seterr(**errors)


def _gradients(result_walk, arguments, seen):
    """Gradients of the result's differentiable tensors with respect to the leaves among the arguments."""
    torch = _torch()
    if torch is None:
        return
    outputs = [t for t in result_walk.alive if isinstance(t, torch.Tensor) and t.requires_grad and t.grad_fn is not None and t.dtype.is_floating_point]
    leaves = [t for t in arguments.alive if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
    if not outputs or not leaves:
        return
    try:
        total = sum((t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in outputs)
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    except RuntimeError as error:  # saved tensor modified in place, and so on: must be the same error
        seen.shape["gradient error"] = str(error).splitlines()[0]
        return
    seen.shape["gradients"] = [None if g is None else tuple(g.shape) for g in found]
    seen.values += [(f"gradient {i}", g.detach()) for i, g in enumerate(found) if g is not None]


def observe(fn, make):
    """Seen of fn(*make()); make may return a tuple, or (tuple, dict)."""
    torch = _torch()
    made = make()
    args, kwargs = made if len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict) else (made, {})
    seen = Seen()
    output = io.StringIO()
    before = {}
    if torch is not None:
        fresh = _Walk(Seen())
        fresh.describe([*args, kwargs], "arguments")
        before = {id(t): t._version for t in fresh.alive if isinstance(t, torch.Tensor) and not t.is_inference()}
    result = error = None
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(output):
        warnings.simplefilter("always")
        try:
            result = fn(*args, **kwargs)
        except Exception as raised:  # compared below
            error = raised
    seen.shape["output"] = output.getvalue()
    seen.shape["warnings"] = [(w.category.__name__, str(w.message), Path(w.filename).name, w.lineno) for w in caught]
    seen.shape["exception"] = _exception_facts(error)
    seen.shape["thread"] = _thread_state()
    walk = _Walk(seen)
    seen.shape["arguments"] = walk.describe([*args, kwargs], "arguments")
    if torch is not None:
        # Bumped or not: autograd compares versions for equality only, so how often does not matter.
        seen.shape["versions"] = [t._version > before.get(id(t), 0) for t in walk.alive if isinstance(t, torch.Tensor) and not t.is_inference()]
    result_walk = walk
    seen.shape["result"] = result_walk.describe(result, "result")
    seen.shape["sharing"] = walk.sharing()
    _gradients(walk, walk, seen)
    return seen


def compare(name, number, compiled, eager, wide=dict, again=list):
    """wide: gives {path: value} of the same in float64. again: gives what the program as written shows when it is run from the beginning,
    twice; then for operands that were rounded otherwise. Where the first two differ, nothing is promised (addresses); by how much the others
    differ, so unsure are its floats."""
    where = f"{name}, call {number + 1}"
    for aspect, expected in eager.shape.items():
        got = compiled.shape.get(aspect)
        if got != expected and len(runs := again()) > 1 and runs[0].shape.get(aspect) != runs[1].shape.get(aspect):
            continue
        assert got == expected, f"{where}: {aspect}\n  framejit: {got}\n  eager:    {expected}"
    extra = set(compiled.shape) - set(eager.shape)
    assert not extra, f"{where}: {extra} only with framejit"
    assert [p for p, _ in compiled.values] == [p for p, _ in eager.values], where
    for (path, got), (_, expected) in zip(compiled.values, eager.values):
        try:
            oracle.check(got, expected, what=f"{where}: {path}")
        except AssertionError:
            # A chain of derivatives, or sums that cancel: eager's own error can be more than two eps, so it is measured.
            truth = wide().get(path) if path.startswith("gradient ") else None
            runs = [dict(seen.values) for seen in again()]
            noise = [(runs[0][path], run[path]) for run in runs[1:] if path in runs[0] and path in run]
            if truth is None and not noise:
                raise
            oracle.check(got, expected, truth, what=f"{where}: {path}", noise=noise)


def _in_float64(build, other=None):
    """{path: value} of the program as written on float64 operands; empty where it does not take them. other: of the arguments."""
    import torch

    fn, make = build()
    try:
        for cell in getattr(fn, "__closure__", None) or ():
            if isinstance(cell.cell_contents, torch.nn.Module):
                cell.cell_contents.double()
        args = [
            oracle.in_float64(a).requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a.double() if isinstance(a, torch.nn.Module) else a
            for a in (other(make()) if other else make())
        ]
        return dict(observe(fn, lambda: tuple(args)).values)
    except Exception:
        return {}


def rounded_otherwise(value, draw):
    """The argument with every float in it moved by an eps, up or down as draw() < 0.5 says: in place where it has memory."""
    torch, numpy = _torch(), _numpy()
    with contextlib.suppress(Exception):  # several elements in one place, no memory: it stays as it is
        if torch is not None and isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            signs = torch.tensor([draw() < 0.5 for _ in range(value.numel())]).view(value.shape)
            with torch.no_grad():
                value.mul_(torch.where(signs, 1, -1).to(value.dtype).mul_(torch.finfo(value.dtype).eps).add_(1))
        elif numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "fc":
            signs = numpy.array([draw() < 0.5 for _ in range(value.size)]).reshape(value.shape)
            value *= 1 + numpy.finfo(value.dtype).eps * numpy.where(signs, 1, -1).astype(value.dtype)
        elif type(value) is float:
            return value * (1 + sys.float_info.epsilon * (1 if draw() < 0.5 else -1))
        elif type(value) in (list, tuple):
            return type(value)(rounded_otherwise(v, draw) for v in value)
        elif type(value) is dict:
            return {k: rounded_otherwise(v, draw) for k, v in value.items()}
    return value


def run_program(build, compile, name=None):  # noqa: A002
    """Compares CALLS calls of the built program with and without `compile`. Returns the compiled function."""
    sides = []
    for wrap in (lambda f: f, lambda f: f, compile):  # the first side only warms up imports and warnings shown once
        with _restored_thread_state():
            fn, make = build()
            fn = wrap(fn)
            sides.append([observe(fn, make) for _ in range(CALLS)])
    for number, (eager, compiled) in enumerate(zip(*sides[1:])):
        compare(name or build.__name__, number, compiled, eager, lambda: _in_float64(build))
    return fn


def one_line_bodies(text):
    """{name: body of a function} of lines `name: statement; statement; value that is returned`."""
    bodies = {}
    for line in text.strip().splitlines():
        name, source = line.split(": ", 1)
        *body, last = source.split("; ")
        bodies[name] = "\n".join([*body, f"return {last}"])
    return bodies
