"""What C code calls for the program: functions given to map, sorted and the like, and iterators that call functions. One graph, with
eager's results, order of calls, objects and exceptions."""

import collections
import copy
import functools
import itertools
import operator

import numpy as np
import pytest

torch = pytest.importorskip("torch")


class Counter:
    def __init__(self, n):
        self.n, self.asked = n, []

    def step(self):
        self.n -= 1
        self.asked.append(self.n)
        return self.n


class Equal:
    """Equal to what its list has, and tells who asked."""

    def __init__(self, *to):
        self.to, self.seen = to, []

    def __eq__(self, other):
        self.seen.append(other)
        return other in self.to

    __hash__ = object.__hash__


def chunks(x, n):
    it = iter(functools.partial(lambda i, k: list(itertools.islice(i, k)), iter(x), n), [])
    return [torch.stack(c).sum(0) for c in it]


def counted(x):
    c = Counter(5)
    it = iter(c.step, 1)
    first = next(it)
    return x * first, list(it), c.asked, next(it, "end"), list(it), c.asked[-1], type(it).__name__, iter(it) is it


def equal_on_the_left(x):
    e, c = Equal(2), Counter(6)
    return x + sum(iter(c.step, e)), e.seen, c.asked


def the_same_object(x):
    nan = float("nan")
    values = [1.0, 2.0, nan, 3.0]
    return x * sum(iter(iter(values).__next__, nan)), list(iter([1, nan, 2].pop, nan))


def ended_by_stop(x):
    values = iter([1, 2, 3])
    it = iter(lambda: next(values) * 2, 100)
    return x + sum(it), next(it, None), list(values)


def raised_and_going_on(x):
    c = Counter(3)
    it = iter(lambda: 6 // c.step(), 9)
    out = []
    for _ in range(6):
        try:
            out.append(next(it, "end"))
        except ZeroDivisionError as e:
            out.append(str(e))
        if len(out) > 4:
            break
    return x * len(out), out, c.asked


def no_function(x):
    try:
        iter(3, 0)
    except TypeError as e:
        return x + 1, str(e)


def of_tensors(x):
    rows = collections.deque(x)
    return torch.stack(list(itertools.islice(iter(rows.popleft, None), 2))), len(rows)


def given_on(x, n):
    it = iter(Counter(n).step, 0)
    return x + next(it), it


def teed(x, n):
    a, b = itertools.tee(range(n))
    c, d, e = itertools.tee(iter(x), 3)
    next(b, None)
    return [i * j for i, j in zip(a, b)], torch.stack(list(c)) + next(d), next(e) is not None, sum(1 for _ in d)


def teed_of_what_is_given(x, items):
    a, b = itertools.tee(items)
    return torch.stack(list(a)).sum(0) * x, [s is t for s, t in zip(b, items)]


def teed_generator(x):
    told = []

    def make():
        for i in range(3):
            told.append(i)
            yield x * i

    a, b = itertools.tee(make())
    return [next(a), next(b), next(b), next(a)], told, copy.copy(a) is not a


def by_turns(x, n):
    its = map(iter, [range(3), range(n), x])
    out = []
    for active in range(3, 0, -1):
        its = itertools.cycle(itertools.islice(its, active))
        out.extend(map(next, its))
    return out


def grouped(x, n):
    return [(k, list(g)) for k, g in itertools.groupby(range(n), key=lambda i: i // 3)], x + 1


def first_of_groups(x, n):
    words = [str(i % 4) for i in range(n)]
    return list(map(next, map(operator.itemgetter(1), itertools.groupby(sorted(words))))), x * 2


def by_attribute(x, holders):
    by = sorted(holders, key=operator.attrgetter("n"))
    return [h.n for h in by], x * max(holders, key=operator.attrgetter("n")).n, min(map(operator.attrgetter("n", "asked"), holders))


def in_place(x, holders):
    names = [h for h in holders]
    names.sort(key=operator.attrgetter("n"), reverse=True)
    return x + names[0].n, [h is k for h, k in zip(names, holders)]


def of_the_frameworks(x, items):
    return functools.reduce(torch.add, items), list(map(torch.sin, items)), list(itertools.accumulate(items, torch.mul)), list(map(type, [x, 1]))


def filtered(x, n):
    return list(itertools.filterfalse(lambda i: i % 2, range(n))), list(filter(None, range(n))), x + 1


def appended(x, n):
    seen = collections.deque(range(2), maxlen=3)
    return [tuple(seen) for _ in map(seen.append, range(n))], x * 2


def holders(n):
    return [Counter(k) for k in (n, 1, n + 3)]


def rows(n, seed=0):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))


PROGRAMS = {
    "chunks": (chunks, lambda n: (rows(n), 3)),
    "counted": (counted, lambda n: (rows(n),)),
    "equal on the left": (equal_on_the_left, lambda n: (rows(n),)),
    "the same object": (the_same_object, lambda n: (rows(n),)),
    "ended by stop": (ended_by_stop, lambda n: (rows(n),)),
    "raised": (raised_and_going_on, lambda n: (rows(n),)),
    "no function": (no_function, lambda n: (rows(n),)),
    "of tensors": (of_tensors, lambda n: (rows(n),)),
    "teed": (teed, lambda n: (rows(5), n)),
    "teed, given": (teed_of_what_is_given, lambda n: (rows(3), [rows(3, k) for k in range(n)])),
    "teed generator": (teed_generator, lambda n: (rows(n),)),
    "by turns": (by_turns, lambda n: (rows(2), n)),
    "grouped": (grouped, lambda n: (rows(2), n)),
    "first of groups": (first_of_groups, lambda n: (rows(2), n)),
    "by attribute": (by_attribute, lambda n: (rows(2), holders(n))),
    "in place": (in_place, lambda n: (rows(2), holders(n))),
    "of the frameworks": (of_the_frameworks, lambda n: (rows(2), [rows(2, k) for k in range(n)])),
    "filtered": (filtered, lambda n: (rows(2), n)),
    "appended": (appended, lambda n: (rows(2), n)),
}


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, (torch.Tensor, np.ndarray)):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name, fresh):
    f, make = PROGRAMS[name]
    compiled = fresh.compile(f)
    for n in (4, 4, 7, 5, 4):
        same(compiled(*make(n)), f(*make(n)))
    assert fresh.cache_info(compiled)["breaks"] == 0
    assert len(compiled.graphs) > 0


def test_what_leaves_goes_on(fresh):
    """An iterator over calls that leaves the graph is one of Python's, in the middle of its work."""
    compiled = fresh.compile(given_on)
    for n in (4, 4, 6):
        (y, it), (want, theirs) = compiled(rows(2), n), given_on(rows(2), n)
        same(y, want)
        assert type(it) is type(theirs) and it.__reduce__()[1][1] == 0 and it.__reduce__()[1][0].__self__.n == n - 1
        assert list(it) == list(theirs)
    assert fresh.cache_info(compiled)["breaks"] == 0 and len(compiled.graphs) > 0


def test_map_that_leaves_has_its_function(fresh):
    def f(x, items):
        return x + 1, map(operator.attrgetter("n"), items), map(next, [iter([1, 2])])

    compiled = fresh.compile(f)
    for n in (2, 2, 3):
        y, names, firsts = compiled(rows(2), holders(n))
        same(y, rows(2) + 1)
        assert type(names) is map and names.__reduce__()[1][0] is not None and firsts.__reduce__()[1][0] is next
        assert list(names) == [n, 1, n + 3] and list(firsts) == [1]
    assert fresh.cache_info(compiled)["breaks"] == 0 and len(compiled.graphs) > 0


def test_calls_of_what_changes_outside(fresh):
    """The function that is called reads and writes an object of the program: guarded, and written once a call."""
    kept = Counter(9)

    def f(x):
        return x * sum(itertools.islice(iter(kept.step, -1), 2))

    compiled, results = fresh.compile(f), []
    for k in range(4):
        kept.n, kept.asked[:] = 9 + k, []
        results.append((compiled(rows(2)), kept.n, list(kept.asked)))
        kept.n, kept.asked[:] = 9 + k, []
        same(results[-1], (f(rows(2)), kept.n, list(kept.asked)))
    assert fresh.cache_info(compiled)["breaks"] == 0 and len(compiled.graphs) > 0


def test_an_iterator_of_the_caller_is_not_advanced(fresh):
    def f(x, it):
        a, b = itertools.tee(it)
        return x + next(a), b

    compiled = fresh.compile(f)
    for _ in range(3):
        mine, theirs = iter([1, 2, 3]), iter([1, 2, 3])
        (y, b), (z, c) = compiled(rows(2), mine), f(rows(2), theirs)
        same(y, z)
        assert list(b) == list(c) == [1, 2, 3] and next(mine, "end") == next(theirs, "end")
