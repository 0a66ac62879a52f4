"""What the guard tests share: guard sets built from Python (src/guard/testing.cc), hit and missed."""

import pytest

try:
    from framejit._framejit import guard_testing
except ImportError:
    pytest.skip("framejit is not built", allow_module_level=True)

UNBOUND = NotImplemented
S0, S1 = ("slot", 0), ("slot", 1)


def build(*rows, **kwargs):
    return guard_testing.build_guards(rows, **kwargs)


def item(path, key):
    return ("dict_item", path, key)


def attr(path, name):
    return item(("__dict__", path), name)


def hits(g, *slots, times=3):
    """Holds on the way through lookups, on the stamped way, and explain says nothing."""
    for _ in range(times):
        assert g.check(*slots) is not None, g.explain(*slots)
    assert g.explain(*slots) == ""


def misses(g, *slots, text=""):
    for _ in range(3):
        assert g.check(*slots) is None
    said = g.explain(*slots)
    assert said != "" and text in said, said


class Thing:
    def __init__(self, **kw):
        self.__dict__.update(kw)
