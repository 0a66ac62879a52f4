"""At a break the frame holds an iterator over what the same graph writes to: it goes on where the program left it."""

import collections

import pytest

torch = pytest.importorskip("torch")


def looped(x, held, over):
    out = []
    for v in over(held):
        out.append(v)
        if v and x[0] > 7:
            pass
    return out


def listed(x, held):
    held.append(1), held.append(2)
    return looped(x, held, iter)


def turned(x, held):
    held.append(1), held.append(2)
    return looped(x, held, reversed)


def counted(x, held):
    held.append(1), held.append(2)
    return looped(x, held, enumerate)


def inserted(x, held):
    held.insert(0, 5), held.insert(0, 6)
    it = iter(held)
    next(it), next(it)
    if x[0] > 7:
        pass
    return list(it)


def later(x, held):
    held.append(1), held.append(2)
    it = iter(held)
    next(it), next(it)
    if x[0] > 7:
        pass
    held.append(3)
    return list(it)


def stored(x, held, box):
    held.append(1), held.append(2)
    it = box["it"] = iter(held)
    next(it), next(it)
    if x[0] > 7:
        pass
    held.append(3)
    return list(box.pop("it"))


def inside(x, held):
    held.append(1)
    it = iter(held)
    held.append(it)
    next(it), next(it)
    if x[0] > 7:
        pass
    return [v is it for v in it]


@pytest.mark.parametrize("f", [listed, turned, counted, inserted, later, stored, inside], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", [list, collections.deque], ids=lambda k: k.__name__)
def test_an_iterator_over_what_is_written(f, kind, fresh):
    compiled, x = fresh.compile(f), torch.zeros(3)
    for _ in range(3):
        results = []
        for run in (f, compiled):
            held = kind([0])
            try:
                result = run(x, held, *([{}] if f is stored else []))
            except RuntimeError as e:  # a deque that changes under its iterator
                result = str(e)
            results.append((result, [v for v in held if isinstance(v, int)]))
        assert results[0] == results[1]


def test_an_iterator_over_a_dict_that_is_written(fresh):
    def f(x, d):
        d.pop("z")
        d["q"] = 3
        it = iter(d.items())
        first = next(it)
        if x[0] > 7:
            pass
        return first, list(it)

    compiled, x = fresh.compile(f), torch.zeros(3)
    for _ in range(3):
        assert compiled(x, {"z": 1, "y": 2}) == f(x, {"z": 1, "y": 2})


def grown(x, held):
    add = held.add if isinstance(held, set) else lambda k: held.update({k: 1}) if isinstance(held, dict) else held.append(k)
    add(5)
    it = iter(held)
    next(it)
    add(6)
    if x[0] > 7:
        pass
    return next(it)


def replaced(x, held):
    it = iter(held)
    next(it)
    held[0] = 5
    if x[0] > 7:
        pass
    return list(it)


def emptied(x, held):
    it = iter(held)
    next(it)
    held.pop()
    if x[0] > 7:
        pass
    return list(it)


def last_round(x, held):
    found = []
    for k in held:
        found.append(k)
        if x[0] > 7:
            pass
    return found


@pytest.mark.parametrize("f", [grown, replaced, emptied, last_round], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", [list, collections.deque, dict.fromkeys, set], ids=["list", "deque", "dict", "set"])
def test_an_iterator_that_notices(f, kind, fresh):
    """What is written behind an iterator's back ends it with eager's error, or is no change to it."""
    compiled, x = fresh.compile(f), torch.zeros(3)
    for _ in range(3):
        results = []
        for run in (f, compiled):
            held = kind([0, 1, 2])
            try:
                result = run(x, held)
            except (RuntimeError, TypeError) as e:
                result = str(e)
            results.append((result, list(held)))
        assert results[0] == results[1]
