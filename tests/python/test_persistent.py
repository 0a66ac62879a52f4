"""Immutable containers of libraries in C (pyrsistent, rpds): private objects of the graph, guarded by identity where they come from outside."""

import pytest

torch = pytest.importorskip("torch")


class Held:
    def __init__(self, factor):
        self.factor = factor


def whole(fj, f, *states):
    """One graph whatever the state is, right where it is another object, and again the former one."""
    compiled = fj.compile(f)
    for state in states + states[:1]:
        x = torch.arange(3.0)
        assert str(compiled(x, state)) == str(f(x, state))
    assert compiled.cache_info()["breaks"] == 0 and compiled.graphs


def test_vectors(fj):
    pytest.importorskip("pvectorc")
    from pyrsistent import m, pmap, v

    def made(x, start):
        state = m(scale=2.0, seen=v())
        for i in range(3):
            state = state.set("seen", state["seen"].append(start + i)).set("scale", state["scale"] + 0.5)
        old = pmap({"a": 1}).update({"b": 2})
        return x * state["scale"], state, list(state["seen"]), dict(old), len(old.remove("a"))

    def of_tensors(x, start):
        y = v(x, 2 * x).set(1, x + start)
        return y[0] + y[1], y, y[1:], len(y)

    def from_outside(x, vector):
        return x * vector[1], vector, vector.append(4), vector + [1], list(vector), vector == v(1, 2), hash(vector)

    def changed(x, vector):
        e = vector.evolver()
        e[0] = 7
        first = e.append(9).persistent()
        e.append(10)
        return first, e.persistent(), vector, x + len(e)

    whole(fj, made, 1)
    whole(fj, of_tensors, 1)
    whole(fj, from_outside, v(1, 2), v(1, 3, 5), v(1.0, 2))
    whole(fj, changed, v(1, 2), v(3))


def test_maps(fj):
    rpds = pytest.importorskip("rpds")

    def of_maps(x, h):
        more = h.insert("c", 3)
        return x * more["b"].factor, sorted(more), h.get("z"), "a" in h, len(h), more.remove("a")["c"]

    def of_sets(x, given):
        return x + len(given.insert(3)), sorted(given), given.push_front(0).first if isinstance(given, rpds.List) else 3 in given

    held = Held(5.0)
    whole(fj, of_maps, rpds.HashTrieMap({"a": 1, "b": held}), rpds.HashTrieMap({"a": 1, "b": Held(6.0)}))
    whole(fj, of_sets, rpds.HashTrieSet([1, 2]), rpds.HashTrieSet([3]))
    compiled, state = fj.compile(of_maps), rpds.HashTrieMap({"a": 1, "b": held})
    for factor in (5.0, 6.0, 7.0):  # what is in it may change, although it does not
        held.factor = factor
        assert str(compiled(torch.ones(2), state)) == str(of_maps(torch.ones(2), state))


def test_what_is_not_read(fj):
    pytest.importorskip("pvectorc")
    from pyrsistent import v

    def f(x, vector):
        vector[0].append(1)
        return x + len(vector[0]), vector

    def tensors(x, vector):
        return x + vector[0], vector[1] is x

    compiled, of_tensors, x = fj.compile(f), fj.compile(tensors), torch.ones(3)
    for _ in range(3):
        mine, theirs = v([1], x), v([1], x)
        assert str(compiled(x, mine)) == str(f(x, theirs)) and mine == theirs
        assert str(of_tensors(x, v(2 * x, x))) == str(tensors(x, v(2 * x, x)))
