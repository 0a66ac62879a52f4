"""Switches of the framework and of NumPy that a function reads, or sets for a while; warnings in a scope."""

import contextlib
import copy
import functools
import logging
import os
import subprocess
import sys
import textwrap
import warnings

import pytest

import framejit

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
F = torch.nn.functional
cudnn = torch.backends.cudnn
pytestmark = pytest.mark.usefixtures("fresh")


def graphs(f, *arguments):
    told = framejit.explain(f)(*arguments)
    return told.graph_count, told.graph_break_count


def test_a_switch_that_is_read_is_guarded():
    def f(x):
        return x + 1 if cudnn.benchmark else x + 2

    compiled, x = framejit.compile(f), torch.zeros(3)
    for on in (False, True, False):
        with cudnn.flags(enabled=True, benchmark=on):
            assert compiled(x)[0] == f(x)[0] == 2 - on


def test_switches_for_a_while_are_in_the_graph():
    seen = []

    def inside(x):
        with cudnn.flags(enabled=False):
            seen.append(cudnn.enabled)
            return x * 2 if cudnn.enabled else x * 3

    def f(x):
        return inside(x) + cudnn.enabled

    x = torch.ones(3)
    assert graphs(f, x) == (1, 0)
    compiled = framejit.compile(f)
    for was in (True, False, True):
        torch._C._set_cudnn_enabled(was)
        try:
            seen.clear()
            assert compiled(x).tolist() == [3.0 + was] * 3
            assert cudnn.enabled is was and seen == [False]
        finally:
            torch._C._set_cudnn_enabled(True)


def test_a_switch_that_stays_changed_is_changed():
    def f(x):
        torch._C._set_cudnn_benchmark(True)
        return x * 2

    x, compiled = torch.ones(3), framejit.compile(f)
    for _ in range(3):
        torch._C._set_cudnn_benchmark(False)
        try:
            assert compiled(x).tolist() == [2.0] * 3
            assert cudnn.benchmark is True
        finally:
            torch._C._set_cudnn_benchmark(False)


@pytest.mark.parametrize("within", [False, True])
def test_attention_is_what_its_switches_make_it(within):
    math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)

    def f(q, k):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH) if within else contextlib.nullcontext():
            return F.scaled_dot_product_attention(q, k, k)

    q, k = torch.randn(2, 7, 4, 8).transpose(1, 2), torch.randn(2, 5, 4, 8).transpose(1, 2)
    compiled = framejit.compile(f)
    for off in (False, True, False):
        with math if off else contextlib.nullcontext():
            got, expected = compiled(q, k), f(q, k)
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got, expected)
        math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)


def test_errstate_in_the_function():
    def quotient(a, b):
        with np.errstate(divide="ignore", invalid="ignore"):
            return a / b

    a, b = np.ones(4), np.array([1.0, 2.0, 4.0, 8.0])
    assert graphs(quotient, a, b) == (1, 0)
    compiled = framejit.compile(quotient)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            assert compiled(a, b).tolist() == [1.0, 0.5, 0.25, 0.125]
            assert compiled(a, b * 0).tolist() == [np.inf] * 4
    assert np.geterr()["divide"] == "warn"


def test_errstate_that_sees_more_or_ends():
    def raising(a, b):
        with np.errstate(all="raise"):
            return a / b

    def twice(a, b):
        with np.errstate(divide="ignore"):
            c = a / b
        return c + a / b

    a, b = np.ones(3), np.zeros(3)
    compiled = framejit.compile(raising)
    for _ in range(3):
        assert compiled(a, a).tolist() == [1.0] * 3
        with pytest.raises(FloatingPointError):
            compiled(a, b)
    compiled = framejit.compile(twice)
    for _ in range(3):
        with pytest.warns(RuntimeWarning, match="divide") as seen:
            assert compiled(a, b).tolist() == [np.inf] * 3
        assert len(seen) == 1
    assert np.geterr()["divide"] == "warn"


def test_warnings_in_a_scope():
    def quiet(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x * 2

    def heard(x):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            if x.dim() == 2:
                warnings.warn("two")
            y = x + 1
        return y, len(seen)

    x = torch.ones(3)
    assert graphs(quiet, x) == (1, 0)
    assert graphs(heard, x) == (1, 0)
    compiled, filters = framejit.compile(heard), list(warnings.filters)
    for shape, expected in (((3,), 0), ((3, 3), 1), ((3,), 0), ((3, 3), 1)):
        assert compiled(torch.ones(shape))[1] == expected
    assert warnings.filters == filters


def test_no_exception_is_being_handled():
    def f(x):
        return x * 2 if sys.exc_info()[0] is None else x * 3

    compiled, x = framejit.compile(f), torch.ones(2)
    assert compiled(x)[0] == 2
    try:
        raise ValueError
    except ValueError:
        assert compiled(x)[0] == 3
    assert compiled(x)[0] == 2
    assert framejit.explain(compiled)(x).graph_break_count <= 1


LOGGER = logging.getLogger("test_switches")


@functools.lru_cache(None)
def say_once(logger, text):
    logger.warning(text)


def test_what_was_said_once_is_not_said_again(caplog):
    def f(x):
        say_once(LOGGER, "once")
        return x + 1

    def program(x):
        return f(x) * 2

    compiled, x = framejit.compile(program), torch.ones(2)
    for _ in range(3):
        assert compiled(x).tolist() == [4.0, 4.0]
    assert [r.message for r in caplog.records] == ["once"]
    assert graphs(program, x) == (1, 0)


def test_numbers_of_numpy_beside_tensors():
    def f(x):
        y = x * 2
        low = np.clip(0.8 + 0.1 * np.exp(-1.5), 0, 1)
        return y * low if x.shape[1] % np.lcm(4, 6) != 0 else y, low, np.lcm(4, 6)

    x, compiled = torch.ones(2, 5), framejit.compile(f)
    assert graphs(f, x) == (1, 0)
    for x in (torch.ones(2, 5), torch.ones(2, 12), torch.ones(2, 7)):
        got, expected = compiled(x), f(x)
        torch.testing.assert_close(got[0], expected[0])
        assert got[1:] == expected[1:] and list(map(type, got[1:])) == list(map(type, expected[1:]))


def test_deep_copies():
    def f(x):
        made = copy.deepcopy({"a": [1, {"b": (2, 3)}], "c": "d"})
        made["a"].append(4)
        return x + len(made["a"]), made

    x = torch.ones(2)
    assert graphs(f, x) == (1, 0)
    got, expected = framejit.compile(f)(x), f(x)
    assert got[0].tolist() == expected[0].tolist() and got[1] == expected[1]


@pytest.mark.parametrize("source", ["x.to(np.dtype('float32'))", "x.to(np.float32)", "x.flip()", "x.new_ones()", "x.tile()", "x.view()"])
def test_what_torch_refuses_is_refused(source):
    f = eval(f"lambda x: {source}")
    for call in (f, framejit.compile(f)):
        with pytest.raises(TypeError):
            call(torch.ones(2, 3))


def test_answers_of_the_framework_are_given_back():
    """Of each call one is looked at by a guard: a text, made anew."""

    def f(x):
        return x + len(torch._C._get_fp32_precision_getter("cuda", "all"))

    compiled, x = framejit.compile(f), torch.ones(2)
    for _ in range(100):
        compiled(x)
    before = sys.getallocatedblocks()
    for _ in range(1000):
        compiled(x)
    assert sys.getallocatedblocks() - before < 200


def test_memory_that_deterministic_algorithms_fill():
    """One graph, with what torch fills it with: not a number, or the largest number. What is written shows where it is not."""

    def f(x):
        out = torch.empty_like(x)
        out[..., ::2] = x[..., ::2] * 2
        dtypes = (torch.uint8, torch.int16, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
        return out, x.new_empty(2), torch.empty_like(x.t()), *(torch.empty(2, dtype=t) for t in dtypes)

    compiled, x = framejit.compile(f, fullgraph=True), torch.arange(6.0).view(2, 3)
    compiled(x)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(3):
            for ours, theirs in zip(compiled(x), f(x)):
                assert torch.equal(torch.nan_to_num(ours), torch.nan_to_num(theirs)) and torch.equal(ours.isnan(), theirs.isnan())
                assert (ours.dtype, ours.stride(), ours._version) == (theirs.dtype, theirs.stride(), theirs._version)
        before = framejit.cache_info(compiled)
        torch.utils.deterministic.fill_uninitialized_memory = False
        assert torch.equal(compiled(x)[0][..., ::2], x[..., ::2] * 2)
        assert framejit.cache_info(compiled)["recompiles"] == before["recompiles"] + 1  # the switch is guarded
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)
    info = framejit.cache_info(compiled)
    assert info["breaks"] == 0


def test_memory_that_is_given_and_filled():
    def f(x):
        held = x.clone()
        return torch.empty(3, requires_grad=True).requires_grad, torch.empty(3, out=held) is held, held.isnan().all().item(), held._version

    compiled, x = framejit.compile(f), torch.ones(3)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(3):
            assert compiled(x) == f(x) == (True, True, True, 1)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_number_of_inference_beside_gradients(capfd):
    """What the number is held in is no tensor of inference, which could not be kept for a pass."""

    def f(x):
        with torch.inference_mode():
            total = (torch.ones(3) + x).sum().item()
        return x * total

    compiled = framejit.compile(f)
    for i in range(4):
        grads = []
        for call in (compiled, f):
            x = torch.arange(3.0).add(i).requires_grad_()
            call(x).sum().backward()
            grads.append(x.grad)
        assert torch.equal(*grads)
    assert "internal error" not in "".join(capfd.readouterr())
    assert framejit.cache_info(compiled)["outcomes"]["run"].get("refused", 0) == 0


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 has no context variable")
def test_a_capture_in_a_collection_in_a_reset():
    """Before 3.12 a collection may come while a ContextVar is reset, which then remembers what is read meanwhile. A finalizer that is captured
    there must not make NumPy's state one that was left, or one that is freed."""
    program = """
        import contextvars, gc, sys
        import numpy as np
        from numpy._core.umath import _extobj_contextvar as var, _make_extobj
        import framejit

        others = [contextvars.ContextVar(str(i)) for i in range(5)]  # more than one, so that the reset allocates
        for other in others: other.set(1)
        finalized = []

        class Finalized:
            def __del__(self):
                finalized.append(gc.isenabled())

        def leave(token, enable=gc.enable, reset=var.reset):
            enable()
            reset(token)
            gc.disable()

        def f(token):
            a = np.arange(3.0) + 1
            leave(token)
            return a

        def run(f):
            gc.collect()
            gc.disable()
            thing = Finalized()
            thing.itself = thing
            del thing
            kept = [[] for _ in range(50)]
            f(var.set(_make_extobj(all="raise")))
            gc.disable()
            return np.geterr()

        gc.set_threshold(1)
        assert run(f)["divide"] == "warn"
        compiled = framejit.compile(f)
        assert run(compiled)["divide"] == "warn"
        gc.collect()
        assert len(finalized) == 2 and framejit.cache_info(compiled)["captures"]
        print("done")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=170,
                          env={**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)})  # fmt: skip
    assert "done" in done.stdout, done.stderr[-2000:]
