"""framejit.profile()."""

import pytest

import framejit

np = pytest.importorskip("numpy")


def light(x):
    return x + 1.0


def heavy(x):
    return np.exp(np.sin(x)) * np.log(x)


def test_every_run_is_timed(fresh):
    x = np.linspace(1.0, 2.0, 200_000)
    f, g = fresh.compile(light, options={"leave": False}), fresh.compile(heavy, options={"leave": False})
    f(x), g(x)
    with framejit.profile() as p:
        for _ in range(10):
            f(x), g(x)
    f(x)
    steps = {s.graph: s for s in p.steps}
    assert set(steps) == {"light", "heavy"} and len(p.steps) == 2
    for s in p.steps:
        assert s.by == "kernel" and s.runs == 10 and s.seconds > 0 and "@test_profile.py:" in s.name
        assert s.bytes == 10 * 2 * 8 * x.size and s.flops == 0
        assert s.bandwidth == s.bytes / s.seconds
    assert p.steps == sorted(p.steps, key=lambda s: -s.seconds)
    lines = str(p).splitlines()
    assert len(lines) == 3 and lines[0].split()[:2] == ["ms", "share"] and "of peak" in lines[0]
    assert p.peak_bandwidth > 1e8
    with framejit.profile() as nothing:
        pass
    assert nothing.steps == [] and "no step" in str(nothing)


def test_nested_and_after_an_exception(fresh):
    x = np.linspace(1.0, 2.0, 1000)
    f = fresh.compile(light, options={"leave": False})
    f(x)
    with framejit.profile() as outer:
        with pytest.raises(ZeroDivisionError), framejit.profile() as inner:
            f(x)
            1 / 0  # noqa: B018
        f(x), f(x)
    assert [s.runs for s in inner.steps] == [1] and [s.runs for s in outer.steps] == [2]
    f(x)
    assert framejit._framejit.step_times() == []  # off again


def test_products_have_their_operations(fresh):
    torch = pytest.importorskip("torch")
    a, b = torch.ones(64, 32), torch.ones(32, 48)
    f = fresh.compile(lambda a, b: torch.relu(a @ b) + 1, options={"leave": False})
    with torch.no_grad():
        f(a, b)
        with framejit.profile() as p:
            f(a, b)
    assert sum(s.flops for s in p.steps) == 2 * 64 * 32 * 48


def test_backward_passes_too(fresh):
    torch = pytest.importorskip("torch")
    x = torch.ones(64, 64, requires_grad=True)
    f = fresh.compile(lambda x: torch.tanh(x).sum())
    f(x).backward()
    with framejit.profile() as p:
        f(x).backward()
    assert {s.graph.split()[-1] for s in p.steps} >= {"forward", "backward"}
