"""Calls of functions all of which is machine code: they need no frame, and where the code is left a frame goes on from there."""

import gc
import math
import sys
import threading
import types

import framejit
import numpy as np
import pytest
from framejit import _framejit
from test_loops_compiled import observed, rng, scalar_loops  # noqa: F401 (a fixture for this file, too)
from test_loops_whole import called_often, is_whole


def frames():
    """How many frames framejit has run so far."""
    return _framejit.frame_sweep_off()["frames"]


def needs(compiled, *args, **kwargs):
    """(what a call gives, how many frames it needs); the code runs in it."""
    runs, before = compiled.cache_info()["scalar_runs"], frames()
    result = compiled(*args, **kwargs)
    assert compiled.cache_info()["scalar_runs"] > runs
    return result, frames() - before


def frame_of(raised):
    """The innermost one."""
    traceback = raised.value.__traceback__
    while traceback.tb_next:
        traceback = traceback.tb_next
    return traceback.tb_frame


SCALE = 2.0


def scaled(x, k=0.5, *, low=0.0):
    s = 0.0
    for i in range(len(x)):
        s += max(float(x[i]), low) * k * SCALE
    return s


def test_no_frame_is_needed():
    x = rng().random(30)
    compiled = called_often(scaled, x, 0.5, calls=6000)
    assert is_whole(compiled)
    for _ in range(10):
        assert needs(compiled, x, 0.5) == (scaled(x, 0.5), 0)
    assert needs(compiled, x) == (scaled(x), 0)
    assert needs(compiled, x=x, k=3.0) == (scaled(x, 3.0), 0)
    assert needs(compiled, x, low=0.25) == (scaled(x, low=0.25), 0)
    for args, kwargs in (((), {}), ((x, 1.0, 2.0), {}), ((x,), {"x": x}), ((x,), {"high": 1})):
        with pytest.raises(TypeError) as ours:
            compiled(*args, **kwargs)
        with pytest.raises(TypeError) as pythons:
            scaled(*args, **kwargs)
        assert str(ours.value) == str(pythons.value)


def test_what_a_function_reads_may_change():
    program = types.FunctionType(scaled.__code__, globals() | {"SCALE": 2.0}, "scaled", (0.5,))
    program.__kwdefaults__ = {"low": 0.0}
    x = rng().random(30)
    compiled = called_often(program, x, calls=6000)
    assert needs(compiled, x)[1] == 0
    program.__globals__["SCALE"] = 3.0
    assert compiled(x) == program(x) == scaled(x, 0.75)
    program.__globals__["SCALE"] = 2.0
    program.__globals__["max"] = min
    assert compiled(x) == program(x) == 0
    del program.__globals__["max"]
    program.__defaults__ = (4.0,)
    program.__kwdefaults__["low"] = 0.75
    assert compiled(x) == program(x) == scaled(x, 4.0, low=0.75)
    program.__globals__["len"] = lambda x: 2
    assert compiled(x) == program(x) == scaled(x[:2], 4.0, low=0.75)
    program.__code__ = (lambda x, k=0.5, *, low=0.0: (k, low)).__code__
    assert compiled(x) == (4.0, 0.75)


asked, answers = [], True


class Says(str):
    """A text that says what it is equal to."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        asked.append((str(self), other, sys._getframe().f_code.co_name))
        return answers and str.__eq__(self, other)


def test_names_of_arguments_that_say_what_they_are_equal_to():
    global asked, answers
    x, y = rng().random(30), np.zeros(30)
    wrong = np.where(np.arange(30) == 20, -1.0, x)
    compiled = called_often(filled, x, y, 30, calls=6000)
    assert needs(compiled, x, y, n=30) == (filled(x, y, 30), 0)
    for answers in (True, False):
        for given in (x, wrong):
            seen = []
            for function in (filled, compiled):
                asked = []
                try:
                    end = function(given, y, **{Says("n"): 30})[0]
                except (TypeError, ValueError) as error:
                    end = str(error)
                seen.append((end, asked))
            assert seen[0] == seen[1] and len(seen[0][1]) == 3


def enclosed():
    factor = 2.0

    def program(x, at):
        s = 0.0
        for i in range(len(x)):
            s += x[i] * factor
        x[at] = s
        return s, x

    def change(to):
        nonlocal factor
        factor = to

    return program, change


def test_variables_of_an_enclosing_function():
    program, change = enclosed()
    x = rng().random(60)
    compiled = called_often(program, x * 0, 0, calls=6000)
    assert is_whole(compiled)
    for factor in (2.0, 3.5, 7, "a", 2.0):
        change(factor)
        for at in (3, -1, 60, 10**9):
            assert observed(compiled, program, (x, at), __file__) == observed(program, program, (x, at), __file__)
    assert needs(compiled, x, 0)[1] == 0
    runs = compiled.cache_info()["scalar_runs"]
    with pytest.raises(IndexError) as raised:
        compiled(x, 60)
    assert compiled.cache_info()["scalar_runs"] > runs
    assert frame_of(raised).f_locals["factor"] == 2.0


# --- the code is left in the middle ----------------------------------------------------------------------------------------------
def filled(x, y, n):
    total = 0.0
    for i in range(n):
        y[i] = math.sqrt(x[i])
        total += y[i]
    y[0] = total / n
    return total, y


def test_a_frame_goes_on_where_the_code_is_left():
    x, y = rng().random(30), np.zeros(30)
    compiled = called_often(filled, x, y, 30, calls=6000)
    assert is_whole(compiled)
    assert needs(compiled, x, y, 30)[1] == 0
    wrong = np.where(np.arange(30) == 20, -1.0, x)
    for args in ((x, y, 31), (wrong, y, 30), (x, y[:7], 30), (x, y, 0), (x, y, 0), (x[:0], y, 3)):
        runs, before = compiled.cache_info()["scalar_runs"], frames()
        assert observed(compiled, filled, args, __file__) == observed(filled, filled, args, __file__)
        assert compiled.cache_info()["scalar_runs"] > runs and frames() > before
    with pytest.raises(IndexError) as raised:
        compiled(x, y, 31)
    left = frame_of(raised)
    assert left.f_code is filled.__code__
    assert (left.f_locals["i"], left.f_locals["n"], left.f_locals["x"] is x) == (30, 31, True)
    assert left.f_locals["total"] == sum(math.sqrt(v) for v in x)


def test_references_are_counted():
    x, y, n, short = rng().random(30), np.zeros(30), int("3000"), np.zeros(7)
    compiled = called_often(filled, x, y, 30, calls=6000)
    gc.collect()
    before = [sys.getrefcount(o) for o in (x, y, n, short)]
    for _ in range(50):
        assert compiled(x, y, 30)[1] is y
        with pytest.raises(IndexError):
            compiled(x, y, n)
        with pytest.raises(IndexError):
            compiled(x, short, 30)
    gc.collect()
    assert [sys.getrefcount(o) for o in (x, y, n, short)] == before


def test_the_limit_of_recursion():
    """At each depth a call is Python's, or raises before it has done anything."""
    x, y = rng().random(30), np.zeros(30)
    compiled = called_often(filled, x, y, 30, calls=6000)

    def at(depth, n):
        return at(depth - 1, n) if depth else compiled(x, y, n)

    kinds = set()
    for depth in range(800, 1100):
        for n in (30, 31):
            y[:] = -1
            try:
                at(depth, n)
                end = None
            except (IndexError, RecursionError) as error:
                end = type(error)
            kinds.add((n, end))
            assert (y[0] == -1) == (end is RecursionError), (depth, n, end)
    assert kinds == {(30, None), (30, RecursionError), (31, IndexError), (31, RecursionError)}


def test_other_threads_get_their_turn_in_the_middle():
    x, y = rng().random(1000), np.zeros(1000)
    many = np.tile(x, 50)
    compiled = called_often(filled, x, y, 1000, calls=6000)
    assert is_whole(compiled)
    expected, failed, start = filled(many, np.zeros(50_000), 50_000), [], frames()

    def work():
        for _ in range(40):
            total, out = compiled(many, np.zeros(50_000), 50_000)
            if total != expected[0] or out.tobytes() != expected[1].tobytes():
                failed.append(total)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed and frames() > start


# --- who watches -----------------------------------------------------------------------------------------------------------------
def test_tools_see_the_calls():
    x, y = rng().random(30), np.zeros(30)
    compiled = called_often(filled, x, y, 30, calls=6000)
    for install, events in ((sys.settrace, {"call", "line", "return"}), (sys.setprofile, {"call", "return"})):
        seen = set()

        def watch(frame, event, arg, seen=seen):
            if frame.f_code is filled.__code__:
                seen.add(event)
            return watch

        install(watch)
        try:
            compiled(x, y, 30)
        finally:
            install(None)
        assert events <= seen
    assert needs(compiled, x, y, 30)[1] == 0


def test_a_function_that_is_disabled_later():
    program = types.FunctionType(filled.__code__, globals(), "filled")
    x, y = rng().random(30), np.zeros(30)
    compiled = called_often(program, x, y, 30, calls=6000)
    assert needs(compiled, x, y, 30)[1] == 0
    program._torchdynamo_disable = True
    runs = compiled.cache_info()["scalar_runs"]
    assert compiled(x, y, 30)[0] == filled(x, y, 30)[0]
    assert compiled.cache_info()["scalar_runs"] == runs


def test_options():
    x, y = rng().random(30), np.zeros(30)
    compiled = called_often(filled, x, y, 30, calls=6000)
    with framejit.config.patch(scalar_loops=False):
        runs = compiled.cache_info()["scalar_runs"]
        assert compiled(x, y, 30)[0] == filled(x, y, 30)[0]
        assert compiled.cache_info()["scalar_runs"] == runs
    assert needs(compiled, x, y, 30)[1] == 0
