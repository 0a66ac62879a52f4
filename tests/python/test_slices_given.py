"""Slices that come from outside: their bounds are guarded one by one, and those that change are symbols."""

import numpy as np
import pytest

PROGRAMS = {
    "both bounds": (lambda x, s: x[s] * 2, lambda k: slice(k, k + 3)),
    "the end": (lambda x, s: x[s] * 2, lambda k: slice(None, k)),
    "in front": (lambda x, s: x[s] * 2, lambda k: slice(-k, None)),
    "the step": (lambda x, s: x[s] * 2, lambda k: slice(0, 40, k)),
    "in a tuple": (lambda x, s: x.reshape(4, 10)[s] * 2, lambda k: (slice(1, 3), slice(None, k % 10))),
    "in a dict": (lambda x, s: x[s["a"]] * 2, lambda k: {"a": slice(2, k + 3)}),
    "given back": (lambda x, s: (x[s] * 2, s), lambda k: slice(k, k + 3)),
    "its parts": (lambda x, s: (x[s] * 2, s.start + 1, s.stop, s.step), lambda k: slice(k, k + 3)),
    "compared": (lambda x, s: (x[s] * 2, s == slice(4, 7), s is s), lambda k: slice(k, k + 3)),
    "of a list": (lambda x, s: x * len([*range(30)][s]), lambda k: slice(k, 2 * k)),
    "indices": (lambda x, s: (x[s] * 2, s.indices(9)), lambda k: slice(k, k + 3)),
    "written to": (lambda x, s: x.clone().index_fill_(0, np_free(x, s), 7.0), lambda k: slice(k, k + 3)),
    "twice": (lambda x, s: (x[s[0]] + x[s[1]], s[0] is s[1]), lambda k: (slice(k, k + 3),) * 2 if k % 2 else (slice(k, k + 3), slice(k, k + 3))),
    "a bool": (lambda x, s: x[s] * 2, lambda k: slice(k > 8, k)),
}


def np_free(x, s):
    import torch

    return torch.arange(x.shape[0])[s]


def told(value):
    if isinstance(value, tuple):
        return tuple(told(v) for v in value)
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_slices_whose_bounds_change(fresh, name, dynamic):
    torch = pytest.importorskip("torch")
    body, make = PROGRAMS[name]
    f, x = fresh.compile(body, dynamic=dynamic), torch.arange(40.0)
    for k in (2, 3, 4, 5, 6, 7, 8, 9, 10, 300, 301, 2, 1, 5):
        s = make(k)
        got, expected = f(x, s), body(x, s)
        assert told(got) == told(expected), k
        if name == "given back":
            assert got[1] is s


def test_one_version_serves_all_bounds(fresh):
    torch = pytest.importorskip("torch")
    f, x = fresh.compile(lambda x, s: x[s] * 2), torch.arange(100.0)
    for k in range(2, 40):
        assert torch.equal(f(x, slice(k, k + 3)), x[k : k + 3] * 2)
    assert f.cache_info()["captures"] <= 3, f.cache_info()


def test_arrays_by_slices_from_outside(fresh):
    f, x = fresh.compile(lambda x, s: x[s] * 2), np.arange(100.0)
    for k in range(2, 40):
        assert (f(x, slice(k, k + 3)) == x[k : k + 3] * 2).all()
    assert f.cache_info()["captures"] <= 3, f.cache_info()
