"""Reference and memory counts over repeated captures and calls: `tools/dev refleak`.

Each case is run in rounds of the same length. What the first round fills (caches, pools, interned strings) stays flat after
it; a leak grows in every round. So: the smallest growth of any later round, per repetition."""

import argparse
import contextlib
import ctypes
import gc
import io
import os
import sys

import framejit

CAPTURES, CALLS, ROUNDS = 1_000, 100_000, 4
# Per repetition. Blocks and references are counted exactly, but a dictionary may grow now and then; one page of a thousand
# repetitions is noise, the same page in every round is not.
LIMITS = {"references": 0.02, "blocks": 0.02, "bytes": 64.0}

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None
if torch is not None:
    torch.set_num_threads(1)

CASES = []


def case(repetitions, needs=("numpy",)):
    """The decorated function returns what to repeat."""

    def add(make):
        if not any({"numpy": np, "torch": torch}[name] is None for name in needs):
            CASES.append((make.__name__, repetitions, make))
        return make

    return add


class Point:
    def __init__(self, x):
        self.x = x

    def scaled(self, by):
        return Point(self.x * by)


# --- captures: the function is compiled anew each time; the kernels come from the cache -------------------------------------
def captures(function, *arguments, **settings):
    compiled = framejit.compile(function, **settings)

    def once():
        compiled.clear()
        compiled(*arguments)

    return once


@case(CAPTURES)
def capture_one_graph():
    return captures(lambda x, y: (x * y + 1).sum(0), np.ones((4, 3)), np.ones(3))


@case(CAPTURES)
def capture_objects_and_containers():
    def f(x, data, *rest, **named):
        point = Point(x).scaled(by=2)
        total = {name: value * 2 for name, value in data.items()}
        total["rest"] = [r + 1 for r in rest]
        total["named"] = tuple(named.values())
        return point, total, lambda: point

    x = np.ones(5)
    return captures(f, x, {"a": x, "b": 3}, x, x)


@case(CAPTURES)
def capture_with_breaks():
    def f(x):
        y = x + 1
        print("in the middle")
        with contextlib.suppress(KeyError):
            y = y * 2
            {}["missing"]
        g = (y * i for i in range(3))
        return sum(g)

    once = captures(f, np.ones(4))

    def quiet():
        with contextlib.redirect_stdout(io.StringIO()):
            once()

    return quiet


@case(CAPTURES)
def capture_that_raises():
    def f(x):
        return x + np.ones(9)

    once = captures(f, np.ones(4))

    def caught():
        with contextlib.suppress(ValueError):
            once()

    return caught


@case(CAPTURES)
def capture_on_other_backends():
    both = [captures(lambda x: x * 3 - 1, np.ones(6), backend=name) for name in ("eager", "interpreter")]

    def once():
        for capture in both:
            capture()

    return once


@case(CAPTURES)
def capture_of_a_new_closure():
    x = np.ones(3)

    def once():
        k = 2.0
        framejit.compile(lambda y: y * k)(x)

    return once


@case(CAPTURES)
def capture_of_new_code():
    x = np.ones(3)
    code = "def f(x):\n    return x * 2 + 1\n"

    def once():
        space = {}
        exec(compile(code, "<refleak>", "exec"), space)
        framejit.compile(space["f"])(x)

    return once


@case(CAPTURES)
def recompiles_and_reset():
    compiled = framejit.compile(lambda x: x.sum())
    shapes = [np.ones(3), np.ones((2, 3)), np.ones((4, 3)), np.ones(3, dtype="float32")]

    def once():
        compiled.clear()
        for x in shapes:
            compiled(x)
        assert compiled.guards

    return once


@case(CAPTURES)
def explanations():
    x = np.ones(3)  # (np.ones itself leaks a reference to its dtype in NumPy 2.4)
    return lambda: str(framejit.explain(lambda x: x * 2)(x))


@case(CAPTURES)
def reports_of_fullgraph():
    @framejit.compile(fullgraph=True)
    def f(x):
        y = x + 1
        print("here")
        return y

    x = np.ones(3)

    def once():
        try:
            f(x)
        except framejit.BreakError:
            pass

    return once


@case(CAPTURES)
def marks():
    compiled, ones = framejit.compile(lambda x: x * 2), np.ones((5, 2))

    def once():
        x = ones.copy()
        framejit.mark_dynamic(x, 0)
        compiled.clear()
        compiled(x)

    return once


@case(CAPTURES, ["torch"])
def capture_of_a_module():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    compiled = framejit.compile(net)
    segments = type(compiled).__call__
    x = torch.ones(2, 4)

    def once():
        segments.clear()
        with torch.no_grad():
            compiled(x)

    return once


@case(CAPTURES // 5, ["torch"])
def modules_that_go():
    x = torch.ones(2, 4)

    def once():
        with torch.no_grad():
            framejit.compile(torch.nn.Linear(4, 3))(x)

    return once


@case(CAPTURES, ["torch"])
def capture_with_gradients():
    return steps(lambda x, w: (x * w).sum(), anew=True)


def steps(f, x=None, anew=False, **settings):
    """Steps of training: w gets its gradient. anew: f is captured in each."""
    compiled = framejit.compile(f, **settings)
    x, w = torch.linspace(-1, 2, 12).view(3, 4) if x is None else x, torch.ones(4, requires_grad=True)

    def once():
        if anew:
            compiled.clear()
        compiled(x, w).backward()
        w.grad = None

    return once


if torch is not None:

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    def in_a_checkpoint(x, w):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(lambda a: (a * w).tanh().sin(), x, use_reentrant=False).sum()

    def sized_by_data(x, w):
        y = (x * w)[x > 0]
        return (y * y.shape[0]).sum()

    def branch(y):
        return y * 2 if y.sum() > 0 else y - 1

    def for_each_row(x, w):
        return torch.vmap(lambda a, b: (a * b).sum(), in_dims=(0, None))(x, w).sum()

    def both_libraries(x, w):
        return (torch.from_numpy(np.exp(x.numpy())) * w).sum()

    def switched(x, w):
        with torch.backends.cudnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
            return (x @ w).float().sum()

    TRAINED = {
        "a custom function": lambda x, w: Doubled.apply(x * w).sum(),
        "a checkpoint": in_a_checkpoint,
        "sizes by data": sized_by_data,
        "a guess": lambda x, w: branch(x * w).sum(),
        "vmap": for_each_row,
        "both libraries": both_libraries,
        "switches": switched,
    }
    for name, f in TRAINED.items():
        CASES.append((f"capture of {name}", CAPTURES // 5, lambda f=f: steps(f, anew=True)))
        CASES.append((f"call of {name}", CALLS // 50, lambda f=f: steps(f)))


@case(CALLS // 50, ["torch"])
def call_of_wrong_guesses():
    f = framejit.compile(lambda x: branch(x * 2))
    x = torch.ones(3)

    def once():
        f(x)
        f(-x)

    return once


@case(CALLS // 50, ["torch"])
def call_of_second_derivatives():
    w = torch.ones(3, requires_grad=True)
    f = framejit.compile(lambda x: (x * w).sin().sum())
    x = torch.ones(3)

    def once():
        (g,) = torch.autograd.grad(f(x), w, create_graph=True)
        torch.autograd.grad(g.sum(), w)

    return once


@case(CALLS // 50, ["torch"])
def call_of_a_backward_pass_that_never_comes():
    w = torch.ones(3, requires_grad=True)
    return calls(lambda x: (x * w).sin(), torch.ones(3))


# --- calls: compiled once --------------------------------------------------------------------------------------------------
def calls(function, *arguments, **named):
    compiled = framejit.compile(function)
    return lambda: compiled(*arguments, **named)


@case(CALLS)
def call_one_array():
    return calls(lambda x, y: x * y + 1, np.ones(8), np.ones(8))


@case(CALLS)
def call_numbers():
    return calls(lambda x, k=2: (x * k, k), np.ones(3), k=3)


@case(CALLS // 5)
def call_structures():
    def f(x, data, *rest, **named):
        return {"a": [x * 2, data["b"]], "c": (rest[0] + 1, named["d"])}, Point(x)

    x = np.ones(4)
    return calls(f, x, {"b": x}, x, d=x)


@case(CALLS // 5)
def call_that_writes():
    state = {"n": np.zeros(4)}

    def f(x):
        state["n"] = x + 1
        x += 1
        return x

    return calls(f, np.ones(4))


@case(CALLS // 5)
def call_two_versions():
    compiled = framejit.compile(lambda x: x + 1)
    a, b = np.ones(3), np.ones((2, 2), dtype="float32")

    def both():
        compiled(a)
        compiled(b)

    return both


@case(CALLS // 20)
def call_through_a_break():
    class Null(io.TextIOBase):
        def write(self, text):
            return len(text)

    null = Null()

    def f(x):
        y = x + 1
        print("middle", file=null)
        for _ in range(2):
            y = y * 2
        return y

    return calls(f, np.ones(4))


@case(CALLS // 20)
def call_that_raises():
    def f(x):
        y = x + 1
        raise KeyError("always")

    once = calls(f, np.ones(4))

    def caught():
        with contextlib.suppress(KeyError):
            once()

    return caught


@case(CALLS, ["torch"])
def call_one_tensor():
    once = calls(lambda x, y: torch.relu(x @ y) + 1, torch.ones(4, 4), torch.ones(4, 4))
    return once


@case(CALLS // 5, ["torch"])
def call_views_and_writes():
    def f(x):
        y = x.t()
        x.mul_(1)
        return y, x[0], x

    return calls(f, torch.ones(3, 3))


@case(CALLS // 20, ["torch"])
def call_with_gradients():
    w = torch.ones(3, requires_grad=True)
    compiled = framejit.compile(lambda x: (x * w).sum())
    x = torch.ones(3)

    def once():
        compiled(x).backward()
        w.grad = None

    return once


# --- counting ----------------------------------------------------------------------------------------------------------------
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def references():
    """Sum of the reference counts of everything that lasts: what the garbage collector knows, small values, dtypes. (A debug
    interpreter's own total counts what its own headers compiled only: not the references that NumPy and torch give back.)"""
    values = [None, True, False, Ellipsis, NotImplemented, (), "", b"", frozenset(), *range(-5, 257), *map(chr, range(128))]
    if np is not None:
        values += [np.dtype(c) for c in "?bhilBHILefd"]
    if torch is not None:
        values += [d for d in vars(torch).values() if isinstance(d, (torch.dtype, torch.layout, torch.memory_format))]
    return sum(map(sys.getrefcount, values)) + sum(map(sys.getrefcount, gc.get_objects()))


def counts():
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # what was freed counts no more
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()  # holds names that were looked up, of any address
    return {"blocks": sys.getallocatedblocks(), "bytes": resident(), "references": references()}


def measure(make, repetitions):
    """{what: growth per repetition}: the smallest of all rounds but the first."""
    framejit.reset()
    once = make()
    smallest = {}
    for number in range(ROUNDS):
        before = counts()
        for _ in range(repetitions):
            once()
        after = counts()
        if number:
            for what in after:
                grown = (after[what] - before[what]) / repetitions
                smallest[what] = min(grown, smallest.get(what, grown))
    framejit.reset()
    return smallest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help="names of cases (default: all)")
    parser.add_argument("--scale", type=float, default=1, help="repetitions, as a part of the full number")
    arguments = parser.parse_args()
    framejit.config.max_entries = 1_000_000
    if not CASES:
        print("neither NumPy nor torch can be imported: nothing to count")
        return 1
    leaks = 0
    print(f"Python {sys.version.split()[0]}: references, allocated blocks and resident bytes, per repetition", flush=True)
    for name, repetitions, make in CASES:
        if arguments.case and name not in arguments.case:
            continue
        repetitions = max(20, int(repetitions * arguments.scale))
        grown = measure(make, repetitions)
        bad = [what for what, growth in grown.items() if growth > LIMITS[what]]
        leaks += bool(bad)
        figures = "  ".join(f"{what} {growth:+.3f}" for what, growth in sorted(grown.items()))
        print(f"{name:32} {repetitions:7}  {figures}{'  GROWS' if bad else ''}", flush=True)
    print(f"{leaks} case(s) grow" if leaks else "nothing grows")
    return 1 if leaks else 0


if __name__ == "__main__":
    sys.exit(main())
