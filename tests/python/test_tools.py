"""Tools around compiled functions: debuggers, coverage, profilers, picklers."""

import copy
import cProfile
import io
import marshal
import pickle
import pstats
import sys
import time
import types

import pytest

framejit = pytest.importorskip("framejit")
torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def helper(x):
    return torch.tanh(x) * 2


def broken(x):
    y = helper(x + 1)
    time.sleep(0)
    return helper(y + 1)


def whole(x):
    y = helper(x + 1)
    return y.sum()


def seen_by(tool, install, f, x):
    events = []
    mine = {helper.__code__, broken.__code__, whole.__code__}

    def note(frame, event, arg):
        if frame.f_code in mine:
            events.append((frame.f_code.co_name, event, frame.f_lineno))
        return note

    install(note)
    try:
        f(x)
    finally:
        install(None)
    return events


# --- who watches sees the function as it is written --------------------------------------------------------------------
@pytest.mark.parametrize("f", [whole, broken])
@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
@pytest.mark.parametrize("warm", [0, 3])
def test_tracers_and_profile_functions_see_every_line(fresh, f, install, warm):
    x = torch.ones(3)
    compiled = fresh.compile(f)
    for _ in range(warm):
        compiled(x)
    assert len(compiled.graphs) == (0 if not warm else 1 if f is whole else 2)
    assert seen_by(None, install, compiled, x) == seen_by(None, install, f, x) != []
    runs = len(compiled.graphs)
    torch.testing.assert_close(compiled(x), f(x))
    assert len(compiled.graphs) >= max(1, runs)


def test_an_exception_of_the_tracer_arrives(fresh):
    x = torch.ones(3)
    compiled = fresh.compile(whole)
    compiled(x)

    def refuse(frame, event, arg):
        if frame.f_code is whole.__code__:
            raise ValueError("of the tracer")

    sys.settrace(refuse)
    try:
        with pytest.raises(ValueError, match="of the tracer"):
            compiled(x)
    finally:
        sys.settrace(None)
    torch.testing.assert_close(compiled(x), whole(x))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring")
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("tool", [0, 2])
def test_monitoring_sees_every_line(fresh, local, tool):
    m = sys.monitoring
    x = torch.ones(3)
    compiled = fresh.compile(whole)
    compiled(x)
    lines = []
    m.use_tool_id(tool, "test")
    try:
        m.register_callback(tool, m.events.LINE, lambda code, line: lines.append((code.co_name, line)))
        if local:
            m.set_local_events(tool, whole.__code__, m.events.LINE)
        else:
            m.set_events(tool, m.events.LINE)
        compiled(x)
        of_compiled = [e for e in lines if e[0] in ("whole", "helper")]
        lines.clear()
        whole(x)
        assert of_compiled == [e for e in lines if e[0] in ("whole", "helper")] != []
    finally:
        m.set_events(tool, 0)
        m.set_local_events(tool, whole.__code__, 0)
        m.free_tool_id(tool)


# --- who measures sees what runs ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("f, graphs", [(whole, 1), (broken, 2)])
def test_cprofile_measures_compiled_code(fresh, f, graphs):
    x = torch.ones(3)
    compiled = fresh.compile(f)

    def inner(x):
        return compiled(x)

    def outer():
        for _ in range(5):
            inner(x)

    profile = cProfile.Profile()
    profile.runcall(outer)  # from the first call on
    assert len(compiled.graphs) == graphs and compiled.cache_info()["captures"] <= 4
    calls = {name: ncalls for (_, _, name), (ncalls, *_) in pstats.Stats(profile, stream=io.StringIO()).stats.items()}
    callers = {k[2]: {c[2] for c in v[4]} for k, v in pstats.Stats(profile, stream=io.StringIO()).stats.items()}
    assert calls["inner"] == 5 and calls["outer"] == 1 and callers["inner"] == {"outer"}
    assert "helper" not in calls


def test_cprofile_of_frames_that_are_handed_over(fresh):
    def left(n, x):  # nothing to compile
        total = 0
        for i in range(n):
            total += i if print(end="") is None else 1
        return total

    compiled = fresh.compile(left)

    def caller():
        return [compiled(n, None) for n in range(6)]

    def outer():
        return caller()

    profile = cProfile.Profile()
    assert profile.runcall(outer) == [left(n, None) for n in range(6)]
    stats = pstats.Stats(profile, stream=io.StringIO()).stats
    assert {k[2]: {c[2] for c in v[4]} for k, v in stats.items()}["caller"] == {"outer"}


def test_torch_profiler_names_what_runs(fresh):
    x = torch.ones(3)
    compiled = fresh.compile(broken)
    compiled(x)
    first = broken.__code__.co_firstlineno
    with torch.profiler.profile(with_stack=True) as profile:
        compiled(x)
    names = [e.name for e in profile.events() if e.name.startswith("framejit")]
    assert names == [f"framejit: broken ({__file__}:{first + line})" for line in (1, 2)]


def test_steps_have_names_in_the_profiler(fresh):
    def f(x, w):
        return torch.softmax(torch.tanh(x @ w) + 1, -1)

    compiled = fresh.compile(f)
    x, w = torch.ones(4, 8), torch.ones(8, 16)
    compiled(x, w)
    with torch.profiler.profile() as profile:
        compiled(x, w)
    events = {e.name: e for e in profile.events()}
    (whole,) = [e for name, e in events.items() if name.startswith("framejit: ")]
    steps = [e for name, e in events.items() if "@test_tools.py:" in name]
    assert sorted(e.name.split()[0] for e in steps) == ["kernel", "matmul"] and any("tanh" in e.name for e in steps)
    for e in steps:
        assert whole.time_range.start <= e.time_range.start <= e.time_range.end <= whole.time_range.end


def test_torch_profiler_started_inside(fresh):
    def f(x):
        y = x + 1
        with torch.profiler.profile() as profile:
            y = torch.sin(y) * 3 + y
        return y, profile

    compiled = fresh.compile(f)
    for _ in range(3):
        y, profile = compiled(torch.ones(3))
        assert [e.name.split(" (")[0] for e in profile.events() if "framejit" in e.name] == [f"framejit: {f.__qualname__}"]
        torch.testing.assert_close(y, f(torch.ones(3))[0])
    assert len(compiled.graphs) == 2


# --- pickles -----------------------------------------------------------------------------------------------------------
@framejit.compile
def decorated(x):
    return x * 2 + 1


undecorated = framejit.compile(helper, dynamic=False)


def rebuilt(code, cells):
    return types.FunctionType(marshal.loads(code), globals(), closure=tuple(map(types.CellType, cells)) or None)


class ByValue(pickle.Pickler):  # as cloudpickle
    def reducer_override(self, o):
        if not isinstance(o, types.FunctionType) or o is rebuilt or o.__module__.startswith("framejit"):
            return NotImplemented
        return rebuilt, (marshal.dumps(o.__code__), tuple(c.cell_contents for c in o.__closure__ or ()))

    def all(self, o):
        self.dump(o)


def by_value(o):
    out = io.BytesIO()
    ByValue(out).all(o)
    return pickle.loads(out.getvalue())


def works(f):
    x = torch.ones(2)
    result = f(x)
    assert len(f.graphs) == 1
    return result.tolist()


def test_pickled_by_name_or_with_its_function():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    undecorated.note = [1]
    again, listed = pickle.loads(pickle.dumps([undecorated, undecorated]))
    assert again is listed is not undecorated and again.note == [1] and again.options == undecorated.options
    assert again.__wrapped__ is helper
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(framejit.compile(lambda x: x))
    del undecorated.note


def test_pickled_by_value_where_functions_are():
    def closure(k):
        return framejit.compile(lambda x: x * k)

    four = closure(4)
    again = by_value(four)
    assert again is not four and works(again) == works(four) == [4, 4]
    assert by_value(decorated) is decorated  # a module that can be imported
    decorated.__wrapped__.__module__ = "__main__"
    sys.modules["__main__"].decorated = decorated
    try:
        again = by_value(decorated)
        assert again is not decorated and again.__wrapped__ is not decorated.__wrapped__ and works(again) == [3, 3]
        assert pickle.loads(pickle.dumps(decorated)) is decorated
    finally:
        decorated.__wrapped__.__module__ = __name__
        del sys.modules["__main__"].decorated


def test_copies_of_compiled_functions_are_the_function():
    assert copy.copy(undecorated) is undecorated and copy.deepcopy([undecorated])[0] is undecorated
