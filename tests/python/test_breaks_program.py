"""One program with print, a data-dependent branch, a caught tensor error, `with`, and a mutated list, compiled on both sides
of every break, inside loops too."""

import contextlib

import pytest
from harness import Programs, run_program

torch = pytest.importorskip("torch")
program = Programs("torch")


@contextlib.contextmanager
def logged(log, name):
    log.append(f"enter {name}")
    try:
        yield name
    finally:
        log.append(f"leave {name}")


def straight(x, w, log):
    a = torch.tanh(x) * 2
    print("after a", tuple(a.shape))
    b = a + 1
    if b.sum() > 0:
        c = b * b
    else:
        c = -b
    d = torch.sigmoid(c)
    try:
        e = d @ w
    except RuntimeError as error:
        log.append(str(error).split("\n")[0])
        e = d * 3
    f = torch.exp(-e * e)
    with logged(log, "block") as name:
        g = f + len(name)
        log.append(f"{float(g.sum() > 0)}")
        h = g / 2
    i = torch.cos(h)
    log[0] = "changed"
    return i + 1


def looped(x, w, log):
    total = torch.zeros_like(x)
    for step in range(3):
        y = torch.tanh(x * (step + 1))
        print("step", step)
        if y.mean() > 0.2:
            y = y - 0.5
            log.append(step)
        try:
            z = torch.relu(y) if step != 1 else y @ w
        except RuntimeError:
            z = y * 2
        finally:
            log.append("done")
        with logged(log, str(step)):
            total = total + torch.sin(z)
    return total * 2


def leaves(x, w, log):
    y = torch.tanh(x) + 1
    print("before")
    z = y * 2
    for n in range(2):
        with logged(log, "loop"):
            z = torch.exp(-z)
            if n == 1:
                print("now")
                z = helper(z, w)
    return z


def helper(z, w):
    q = z + 1
    print("in helper")
    return q @ w


def arguments():
    x = torch.linspace(-1, 2, 12).reshape(3, 4)
    return x, torch.ones(5, 5), []


def arguments_negative():
    return arguments()[0] - 5, torch.ones(5, 5), ["first"]


@pytest.mark.parametrize("function", [straight, looped, leaves])
@pytest.mark.parametrize("make", [arguments, arguments_negative])
def test_same_as_eager(function, make, fresh):
    if function is straight and make is arguments:
        make = lambda: (*arguments()[:2], ["first"])  # noqa: E731

    def build():
        return function, make

    run_program(build, fresh.compile, function.__name__)


def test_compiled_segments_on_both_sides(fresh):
    x, w, _ = arguments()
    told = fresh.explain(straight)(x, w, ["first"])
    text = "\n".join(told.break_reasons)
    assert told.graph_break_count >= 4, text
    for op in ("tanh", "sigmoid", "exp", "cos"):
        assert any(op in graph for graph in told.graphs), f"{op} is in no graph:\n{told}"
    for identifier in ("FJ0001", "FJ0010"):
        assert identifier in text


def test_segments_inside_a_loop_are_compiled_once(fresh):
    compiled = fresh.compile(looped)
    x, w, _ = arguments()
    compiled(x, w, [])
    compiled(x, w, [])
    graphs = len(compiled.graphs)
    compiled(x, w, [])
    assert len(compiled.graphs) == graphs
    assert any("sin" in graph for graph in compiled.graphs)


def test_gradients_through_breaks(fresh):
    def f(x):
        y = torch.tanh(x)
        print("middle")
        if y.sum() > 0:
            y = y * 3
        return (y * y).sum()

    x = torch.linspace(0, 1, 5, requires_grad=True)
    f(x).backward()
    expected, x.grad = x.grad, None
    for _ in range(3):
        fresh.compile(f)(x).backward()
        torch.testing.assert_close(x.grad, expected)
        x.grad = None


def test_traceback_is_eagers(fresh):
    import traceback

    def frames(function):
        try:
            function(*arguments())
        except RuntimeError as error:
            return str(error), [(f.name, f.lineno, f.line) for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
        raise AssertionError("nothing was raised")

    eager = frames(leaves)
    compiled = fresh.compile(leaves)
    for _ in range(3):
        message, stack = frames(compiled)
        assert message == eager[0]
        assert stack == eager[1]
