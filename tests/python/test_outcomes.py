"""Nothing fails in silence: what ended a capture, a compilation and a run is counted, and under FRAMEJIT_STRICT what is no
documented break is an error."""

import os
import subprocess
import sys
import time

import pytest


def outcomes(framejit, f):
    return framejit.cache_info(f)["outcomes"]


@pytest.fixture
def strict(fresh):
    with fresh.config.patch(strict=True):
        yield fresh


@pytest.fixture
def lenient(fresh):
    with fresh.config.patch(strict=False):
        yield fresh


def test_one_graph_three_runs(strict, torch):
    @strict.compile
    def f(x):
        return torch.relu(x) * 2 + 1

    for n in range(3):
        f(torch.randn(4))
    assert outcomes(strict, f) == {"capture": {"segment": 1}, "compile": {"ok": 1}, "run": {"graph": 3}}


def test_a_break_is_counted(strict, torch):
    @strict.compile
    def f(x):
        y = x * 2
        time.sleep(0)
        return y + 1

    for n in range(3):
        f(torch.randn(4))
    found = outcomes(strict, f)
    assert found["run"] == {"graph": 6, "python": 3}
    assert found["capture"] == {"segment": 2, "break": 2}


def test_an_error_that_the_framework_raises(strict, torch):
    @strict.compile
    def f(x, i):
        return x[i] * 2

    x = torch.randn(4)
    f(x, torch.tensor([1, 2]))
    with pytest.raises(IndexError):
        f(x, torch.tensor([1, 9]))
    assert outcomes(strict, f)["run"] == {"graph": 1, "refused": 1}


def test_an_error_that_the_program_catches(strict, torch):
    def pick(x, i):
        try:
            return x[i] * 2
        except IndexError:
            return x

    f = strict.compile(lambda x, i: pick(x, i) + 1)
    x = torch.randn(4)
    f(x, torch.tensor([1, 2]))
    assert torch.equal(f(x, torch.tensor([1, 9])), x + 1)
    assert outcomes(strict, f)["run"]["refused"] == 1


def broken(framejit, torch, monkeypatch):
    """A function of ours that fails in every run."""
    from framejit import _functions

    def fails(*args):
        raise NameError("planted")

    monkeypatch.setattr(_functions, "index_put_copy", fails)

    def f(x, i, v):
        y = x * 2
        y[1:, i] = v
        return y

    return framejit.compile(f), (torch.randn(4, 5), torch.tensor([0, 3]), torch.tensor(7.0))


def test_a_run_that_starts_over_for_nothing(strict, torch, monkeypatch):
    f, args = broken(strict, torch, monkeypatch)
    with pytest.raises(strict.InternalError, match="planted.*in Python nothing was raised"):
        f(*args)
    with pytest.raises(strict.InternalError, match="planted"):
        f(*args)
    assert outcomes(strict, f)["run"]["internal"] == 2


def test_without_strict_it_is_told_once(lenient, torch, monkeypatch, capfd):
    f, args = broken(lenient, torch, monkeypatch)
    want = f.__wrapped__(*args)
    for n in range(3):
        assert torch.equal(f(*args), want)
    assert capfd.readouterr().err.count("internal error of framejit") == 1
    assert outcomes(lenient, f)["run"]["internal"] == 1


def test_a_backend_that_fails(strict, torch):
    def fails(graph, example_inputs):
        raise ValueError("no such graph")

    def f(x):
        return x.sin() + 1

    with pytest.raises(strict.InternalError, match="no such graph"):
        strict.compile(f, backend=fails)(torch.randn(3))
    with strict.config.patch(strict=False):
        g = strict.compile(f, backend=fails)
        x = torch.randn(3)
        assert torch.equal(g(x), f(x))
        assert outcomes(strict, g)["compile"] == {"backend_failed": 2}  # equal calls of compile share what they made


def put_rows(x, i, v):
    y = x * 2
    y[1:, i] = v
    return y


def put_rows_and_read(x, i, v):
    y = x.clone()
    y[:2, i] = v
    return y.sum(0) - y.mean()


def put_into_a_view(x, i, v):
    y = x + 1
    y.t()[i, 1:] = v
    return y


@pytest.mark.parametrize("f", [put_rows, put_rows_and_read, put_into_a_view], ids=lambda f: f.__name__)
def test_stores_by_index_run_in_the_graph(strict, torch, f):
    g = strict.compile(f)
    for n in range(3):
        args = torch.randn(4, 5), torch.tensor([0, 3]), torch.tensor(7.0 + n)
        torch.testing.assert_close(g(*args), f(*args))
    assert outcomes(strict, g) == {"capture": {"segment": 1}, "compile": {"ok": 1}, "run": {"graph": 3}}


def test_explain_speaks_of_this_call(strict, torch):
    class Stream:  # the program's own: a break
        write = flush = lambda *args: None

    stream = Stream()

    @strict.compile
    def f(x, twice):
        if twice:
            print(end="", file=stream)
            return x * 2
        y = x + 1
        y = y * 3
        y = y - 2
        return y

    f(torch.randn(3), True)
    f(torch.randn(3), True)
    told = strict.explain(f)(torch.randn(3), False)
    assert (told.graph_count, told.graph_break_count) == (1, 0)
    assert strict.explain(f)(torch.randn(3), True).graph_break_count == 1


def test_debians_torch_is_plumbing_too(strict, torch):
    def f(x):
        return x * 2 + 1

    code = f.__code__.replace(co_filename="/usr/lib/python3/dist-packages/torch/optim/made_up.py")
    g = strict.compile(type(f)(code, globals()))
    g(torch.randn(3))
    assert outcomes(strict, g)["run"] == {"python": 1}
    code = f.__code__.replace(co_filename="/usr/lib/python3/dist-packages/mine/model.py")
    g = strict.compile(type(f)(code, globals()))
    g(torch.randn(3))
    assert outcomes(strict, g)["run"] == {"graph": 1}


def test_names_of_passes_are_known(strict):
    with pytest.raises(strict.OptionError, match="did you mean 'fuse'"):
        strict.config.disabled_passes = "fuze"


def test_modes_mean_something(strict):
    with pytest.raises(strict.OptionError, match="max-autotune"):
        strict.compile(mode="fastest")
    with strict.config.patch(measure=False):
        strict.compile(mode="reduce-overhead")
        assert not strict.config.measure
        strict.compile(mode="max-autotune")
        assert strict.config.measure


def test_poison():
    """Results and scratch memory end where the next page may not be touched, and are gone when they are let go of: who still read them would die."""
    pytest.importorskip("torch")
    code = """
import ctypes
import os
import signal
import torch
import framejit

@framejit.compile(options={"leave": False})
def f(x):
    return torch.tanh(x) + 1.0

def read(at):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # not a sanitizer's
        ctypes.string_at(at, 4)
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGSEGV

with torch.no_grad():
    for size in (16, 300_000):
        x = torch.ones(size)
        y = f(x)
        assert torch.allclose(y, torch.tanh(x) + 1.0) and set(f.cache_info()["outcomes"]["run"]) == {"graph"}
        at = y.data_ptr()
        found = [read(at), read(at + 4 * size - 4), read(at + 4 * size)]
        del y
        print(framejit.config.poison, *found, read(at))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "FRAMEJIT_POISON": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True)
    assert (done.stdout, done.stderr) == ("True False False True True\n" * 2, "")


def test_poisoned_arrays_of_loops():
    """What a loop's code makes has pages of its own then; arguments of the programs are guarded at their ends, too."""
    code = """
import sys
import fuzz_made
import fuzzing
import numpy as np
import framejit
from test_loops_compiled import copied, observed

assert framejit.config.poison and fuzzing.POISON
assert np.array_equal(copied(np.arange(7)[::2]), [0, 2, 4, 6]) and copied(np.ones((3, 2), order="F")).flags.f_contiguous
runs = 0
for seed in range(8):
    program, args, file = fuzz_made.one(seed)
    compiled = framejit.compile(program)
    for _ in range(2):
        assert observed(compiled, program, args, file) == observed(program, program, args, file), seed
    runs += compiled.cache_info()["scalar_runs"]
print(runs > 0)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.path.dirname(__file__)]), "FRAMEJIT_POISON": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_a_result_that_is_larger_than_memory(strict, torch):
    """No bug of ours: torch's own error, at the user's line, and the next call is compiled as before."""

    def f(x, n):
        return x + 1, torch.zeros(n)

    compiled, x = strict.compile(f, dynamic=True), torch.ones(2)
    assert [tuple(compiled(x, n)[1].shape) for n in (3, 5)] == [(3,), (5,)]
    with pytest.raises(RuntimeError, match="allocate memory") as error:
        compiled(x, 2**58)
    assert not str(error.value).startswith("framejit")
    assert compiled(x, 4)[1].shape == (4,)
    assert outcomes(strict, compiled)["run"] == {"graph": 3, "memory": 1}


def test_runs_that_end_early_are_told(fresh):
    """A program whose every run is thrown away is not one that runs compiled."""
    np = pytest.importorskip("numpy")

    def divide(x, y):
        return x / y + 1

    compiled = fresh.compile(divide)
    good, bad = np.ones(3), np.array([1.0, 0.0, 2.0])
    told = fresh.explain(compiled)(good, good)
    assert told.graph_count == 1 and not told.early_ends and "early" not in str(told)
    assert fresh.cache_info(compiled)["early_ends"] == {}
    for n in range(1, 4):
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            told = fresh.explain(compiled)(good, bad)
        assert told.graph_count == 0
        ((text, times),) = told.early_ends.items()
        assert times == 1 and "divide" in text and "test_outcomes.py" in text and "Python did its work" in text and "divide by zero" in text
        assert str(told).startswith("0 graph(s), 0 break(s), 0 op(s), 1 run(s) ended early") and text in str(told)
        assert "1 run(s) ended early" in told._repr_html_() and "NumPy may have to tell" in told._repr_html_()
        assert fresh.cache_info(compiled)["early_ends"] == {text: n}
    compiled(good, good)
    assert fresh.explain(compiled)(good, good).early_ends == {}
    assert sum(fresh.cache_info(compiled)["early_ends"].values()) == 3
    compiled.clear()
    assert fresh.cache_info(compiled)["early_ends"] == {}


def test_why_a_run_ended_early(lenient, torch):
    np = pytest.importorskip("numpy")

    def index(x, i):
        return x[i] * 2

    def again(x):
        return np.log(x) + 1

    compiled = lenient.compile(index)
    x = torch.randn(4)
    compiled(x, torch.tensor([1]))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([9]))
    (text,) = lenient.cache_info(compiled)["early_ends"]
    assert "a call of the framework raised" in text and "out of range" in text
    compiled = lenient.compile(again)
    with lenient.config.patch(leave=False):
        for _ in range(8):
            with pytest.warns(RuntimeWarning):
                compiled(np.zeros(3))
    told = lenient.cache_info(compiled)["early_ends"]
    assert sum(told.values()) == 8 and len(told) == 2
    assert any("it was not begun" in text for text in told)


def test_a_part_that_ends_early(fresh):
    """Behind a break, and in a loop."""
    np = pytest.importorskip("numpy")

    def f(x):
        y = x * 2
        time.sleep(0)
        for _ in range(3):
            y = y / (x - 1)
            time.sleep(0)
        return y

    compiled = fresh.compile(f)
    with np.errstate(all="ignore"):
        assert compiled(np.full(3, 3.0)).tolist() == [0.75] * 3
    with pytest.warns(RuntimeWarning):
        told = fresh.explain(compiled)(np.array([1.0, 2.0]))
    assert told.graph_break_count and sum(told.early_ends.values()) >= 1, str(told)


def test_what_is_compiled_of_dropped_functions_is_freed(fresh):
    """The last ones are kept, which framejit.compile may be asked for again; the others, and what they hold, are not."""
    import gc
    import weakref

    np = pytest.importorskip("numpy")
    held = []
    for n in range(400):
        space = {}
        exec(f"def f(x): return x + {n}", space)
        assert fresh.compile(space["f"])(np.ones(2)).tolist() == [n + 1] * 2
        held.append(weakref.ref(space["f"]))
        del space
    gc.collect()
    alive = [f() is not None for f in held]
    assert sum(alive) <= 2 * 128 + 1 and not any(alive[:100])
