"""Whatever Python looks up in a program's own objects is guarded, also where C code does it (lookups.py). `slow`: all programs of the suites."""

import operator
import random
import types

import lookups
import pytest
import suites

if lookups.unavailable():
    pytest.skip(lookups.unavailable(), allow_module_level=True)

ALL = list(suites.programs())
SOME = random.Random(4).sample(ALL, 30)  # of them in the quick suite


class Thing:
    kind = 1

    def __init__(self):
        self.x, self.y = 2, 3

    def __len__(self):
        return 3


class Slots:
    __slots__ = ("a", "b")


READS = {
    "getattr of C": (lambda t, s, d, l: getattr(t, "none", 1), {("class", Thing, "none"), ("dict", "vars", "none")}),
    "hasattr": (lambda t, s, d, l: hasattr(s, "b"), {("class", Slots, "b"), ("slot", "s", "b")}),
    "attrgetter": (lambda t, s, d, l: operator.attrgetter("x")(t), {("class", Thing, "x"), ("dict", "vars", "x"), ("type", "t", None)}),
    "isinstance": (lambda t, s, d, l: isinstance(t, int), {("class", Thing, "__class__"), ("type", "t", None)}),
    "len": (lambda t, s, d, l: len(t), {("class", Thing, "__len__"), ("type", "t", None)}),
    "truth": (lambda t, s, d, l: bool(s), {("class", Slots, "__bool__"), ("class", Slots, "__len__")}),
    "sort keys": (lambda t, s, d, l: sorted(l, key=operator.attrgetter("y")), {("items", "l", None), ("dict", "vars", "y")}),
    "items by C": (lambda t, s, d, l: d.get("none"), {("dict", "d", "none")}),
    "a dict gone through": (lambda t, s, d, l: max(d), {("keys", "d", None)}),
    "NumPy": (lambda t, s, d, l: pytest.importorskip("numpy").asarray(t), {("class", Thing, "__array_interface__"), ("dict", "vars", "__array__")}),
}


@pytest.mark.parametrize("name", READS)
def test_what_c_code_reads_is_seen(fresh, name):
    f, expected = READS[name]
    thing, slots, table, items = Thing(), Slots(), {"p": 1, "q": 2}, [Thing()]
    items.append(thing)
    args = (thing, slots, table, items)
    world = lookups.World(f, *args)
    found = lookups.record(f, args, {}, world, fresh._framejit)
    names = {"t": thing, "vars": vars(thing), "s": slots, "d": table, "l": items}
    for what, owner, key in expected:
        assert (what, id(names.get(owner, owner) if isinstance(owner, str) else owner), key) in found


def test_what_a_call_stored_is_not_read_from_outside(fresh):
    def f(t):
        t.x = 5
        return t.x, t.y

    thing = Thing()
    found = lookups.record(f, (thing,), {}, lookups.World(f, thing), fresh._framejit)
    assert ("dict", id(vars(thing)), "y") in found and ("dict", id(vars(thing)), "x") not in found


def test_a_read_without_a_guard_is_told(fresh, monkeypatch):
    """Guards that say nothing cover nothing."""
    torch, level = pytest.importorskip("torch"), {"n": 2}

    def build():
        return lambda x: x * level.get("n") + level.get("m", 0), lambda: (torch.ones(2),)

    assert lookups.compare(build, fresh)[1] == []
    monkeypatch.setattr(lookups.Covered, "covers", lambda self, read: read[2] != "n")
    assert [(what, owner is level, key) for what, owner, key, _ in lookups.compare(build, fresh)[1]] == [("dict", True, "n")]


def _check(build, fresh):
    _, missed, world = lookups.compare(build, fresh)
    if not missed:
        return
    bare = [(what, type(owner).__name__, key, by) for what, owner, key, by in missed if not lookups.changes(what, owner, key, world)]
    assert not bare, f"not guarded, and nothing to try: {bare}"
    made, wrong = lookups.tried(build, fresh, missed, world)
    assert not wrong, "\n".join(wrong)
    # A module under another name cannot be tried: what makes the arguments uses it, too.
    left = [(what, key, by) for what, owner, key, by in missed if not (what == "dict" and isinstance(owner.get(key), types.ModuleType))]
    assert made or not left, f"not guarded, and not tried: {left}"


@pytest.mark.parametrize("build", SOME)
@pytest.mark.filterwarnings("ignore")
def test_what_is_read_is_guarded(build, fresh):
    _check(build, fresh)


@pytest.mark.parametrize("build", ALL)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_what_any_program_reads_is_guarded(build, fresh):
    _check(build, fresh)


def _research():
    try:
        import test_research_code as suite
    except pytest.skip.Exception:
        return

    for name, case in suite.CASES.items():

        def build(case=case):
            suite.torch.manual_seed(0)
            made, calls = case()
            return made, lambda: calls[0]

        yield pytest.param(suites._named(build, name), id=name)


@pytest.mark.parametrize("build", list(_research()))
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_what_research_code_reads_is_guarded(build, fresh):
    _check(build, fresh)
