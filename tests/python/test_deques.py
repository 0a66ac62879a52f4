"""Deques from outside: read, and changed, they are one graph, and afterwards they hold what eager's hold."""

import collections
import copy

import pytest

torch = pytest.importorskip("torch")

deque = collections.deque


def T(*values):
    return torch.tensor([float(v) for v in values])


def shown(o):
    """What a program can see of a deque's items."""
    return [v.tolist() if isinstance(v, torch.Tensor) else v for v in o]


def rotate(q, x):
    q.rotate(1)
    return q[0] + x


def replace(q, x):
    q[1] = x * 2
    del q[0]
    q.insert(1, x)
    return q[0] + 1


def extend(q, x):
    q += [x, x + 1]
    q.extendleft([x * 3])
    return torch.stack(list(q)).sum(0)


def through(q, x):
    for i, old in enumerate(reversed(q)):
        x = x + old * i
    q.append(x)
    return x


def pushed(q, x):
    q.append(x)
    q.popleft()
    return torch.stack([*q]).mean(0) + q[-1] - q[0]


def emptied(q, x):
    y = x + sum(q)
    q.clear()
    return y, len(q)


def only_read(q, x):
    return torch.stack(list(q)).mean(0) + q[0] - q[-1] + len(q) + (x if q else 0)


def pops(q, x):
    return q.pop() + q.popleft() * x


FULL = {"rotate": rotate, "replace": replace, "extend": extend, "through": through, "pushed": pushed, "only_read": only_read}
ONCE = {"emptied": emptied, "pops": pops, "asks": lambda q, x: (x + q.count(1), q.index(2), 3 in q), "appends": lambda q, x: q.append(x)}


@pytest.mark.parametrize("bound", [None, 3, 20])
@pytest.mark.parametrize("name", {**FULL, **ONCE})
def test_programs(fresh, name, bound):
    f = {**FULL, **ONCE}[name]
    numbers = name == "asks"
    theirs = deque([1, 2, 3] if numbers else [T(1, 2), T(3, 4), T(5, 6)], bound)
    ours = copy.deepcopy(theirs)
    told = fresh.explain(f)(copy.deepcopy(theirs), T(7, 8))
    assert (told.graph_count, told.graph_break_count) == (1, 0) or name == "appends" and not told.graph_break_count, str(told)
    compiled = fresh.compile(f)
    for k in range(5):
        if name in ONCE:
            theirs, ours = (deque([1, 2, k] if numbers else [T(k, 2), T(3, k)], bound) for _ in range(2))
        before, x = list(ours), T(k, 1 - k)
        expected, got = f(theirs, x), compiled(ours, x)
        assert repr(expected) == repr(got)
        assert shown(theirs) == shown(ours) and ours.maxlen == bound
        if name in ("only_read", "asks"):
            assert all(a is b for a, b in zip(before, ours, strict=True))


def test_what_is_in_it_and_its_bound_are_guarded(fresh):
    def f(q, x):
        q.append(x)
        return torch.stack(list(q)).sum(0), [v for v in q if not isinstance(v, torch.Tensor)]

    compiled = fresh.compile(f)
    for items, bound in (([T(1)], 2), ([T(1), T(2)], 2), ([T(1), T(2)], 3), ([T(1), T(2)], None), ([], 1), ([T(3)], 1), ([T(3)], 0 + 2)):
        theirs, ours = deque(items, bound), deque(items, bound)
        assert repr(f(theirs, T(9))) == repr(compiled(ours, T(9)))
        assert shown(theirs) == shown(ours)


def test_one_deque_under_two_names(fresh):
    def f(a, b, x):
        a.append(x)
        return b[-1] + len(b)

    compiled = fresh.compile(f)
    for same in (False, True, False, True):
        p, q = deque([T(1)], 2), deque([T(5)], 2)
        r, s = copy.deepcopy(p), copy.deepcopy(q)
        x = T(3)
        assert repr(f(p, p if same else q, x)) == repr(compiled(r, r if same else s, x))
        assert (shown(p), shown(q)) == (shown(r), shown(s))


def test_a_memory_bank_of_a_module(fresh):
    class Bank(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.bank, self.losses = torch.nn.Linear(2, 2), deque(maxlen=3), deque(maxlen=2)

        def forward(self, x):
            z = self.fc(x)
            self.bank.append(z.detach())
            self.losses.append(len(self.bank) * 0.5)
            return z + torch.stack(list(self.bank)).mean(0), sum(self.losses)

    torch.manual_seed(0)
    eager = Bank()
    ours = copy.deepcopy(eager)
    compiled = fresh.compile(ours)
    for k in range(8):
        x = torch.randn(3, 2)
        a, b = eager(x), compiled(x)
        a[0].sum().backward(), b[0].sum().backward()
        assert a[1] == b[1] and torch.allclose(a[0], b[0]) and torch.allclose(eager.fc.weight.grad, ours.fc.weight.grad)
        assert len(eager.bank) == len(ours.bank) and all(torch.allclose(p, q) for p, q in zip(eager.bank, ours.bank))
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["segments"] <= 5, info


def test_one_that_grows_without_bound(fresh):
    def f(q, x):
        q.append(x)
        return x + sum(q) / len(q)

    compiled = fresh.compile(f)
    theirs, ours = deque(), deque()
    for k in range(40):
        assert torch.allclose(f(theirs, T(k)), compiled(ours, T(k)))
        assert shown(theirs) == shown(ours)
    assert fresh.cache_info(compiled)["segments"] <= 12


def test_the_bound_of_one_that_is_empty_or_short(fresh):
    def f(q, x):
        y = q[0] + x
        q.append(y)
        return y, q.maxlen, len(q)

    compiled = fresh.compile(f)
    for bound in (2, 3, None, 2, 1, 3):
        theirs, ours = deque([T(1)], bound), deque([T(1)], bound)
        a, b = f(theirs, T(2)), compiled(ours, T(2))
        assert a[1:] == b[1:] and torch.equal(a[0], b[0]) and shown(theirs) == shown(ours)


def put(q, x):
    q[0] = q[-1] * x
    return q[0] + 1


def put_and_taken(q, x):
    q.append(x)
    q.pop()
    return q[0] + x


def turned(q, x):
    q.rotate(len(q))
    return q[0] * x


@pytest.mark.parametrize("f", [put, put_and_taken, turned])
def test_while_a_caller_goes_through_it(fresh, f):
    """Items that are replaced end no iteration; whatever else is done to a deque does, though it is as it was."""

    def gone_through(call, q):
        out = []
        try:
            for item in q:
                out.append((item.tolist(), call(q, T(2)).tolist()))
        except RuntimeError as e:
            out.append(str(e))
        return out, shown(q)

    told = fresh.explain(f)(deque([T(1), T(2), T(3)]), T(2))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for n in (3, 2, 3, 7, 2):
        theirs, ours = (deque(T(k + 1) for k in range(n)) for _ in range(2))
        assert gone_through(f, theirs) == gone_through(compiled, ours)
