"""Named tuples of tensors that come from outside: fields, items, unpacking, methods of their own."""

import collections
import typing

import framejit
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")

Plain = collections.namedtuple("Plain", "a b rest")


class Typed(typing.NamedTuple):
    a: torch.Tensor
    b: torch.Tensor
    rest: object = None


class Derived(Plain):
    def __new__(cls, a, b=None, rest=None):
        return super().__new__(cls, a, b, rest)

    def total(self):
        return self.a + 2 * self.b


class Own(Plain):  # its class answers by Python code
    def __getitem__(self, i):
        return tuple.__getitem__(self, 0)


def unpacked(t):
    a, b, _ = t
    return a - b


def starred(t):
    return (lambda a, b, rest: a * b)(*t)


def gone_through(t):
    total = 0
    for x in t:
        if x is not None:
            total = total + x
    return total


def zipped(t):
    return sum(x * k for x, k in zip(t, (2, 3)))


USES = [
    lambda t: t.a + t.b,
    lambda t: t[0] - t[-2],
    unpacked,
    starred,
    gone_through,
    zipped,
    lambda t: t.a if t.rest is None else t.b,
    lambda t: t.a * len(t),
    lambda t: torch.stack(list(t)[:2]),
]


@pytest.mark.parametrize("use", range(len(USES)))
@pytest.mark.parametrize("kind", [Plain, Typed, Derived])
def test_one_graph(kind, use):
    f = USES[use]
    compiled = framejit.compile(f)
    for k in range(3):
        t = kind(torch.arange(3.0) + k, torch.ones(3), None)
        torch.testing.assert_close(compiled(t), f(t))
    info = framejit.cache_info(compiled)
    assert (info["breaks"], info["segments"]) == (0, 1), framejit.explain(f)(t).break_reasons
    with_rest = kind(torch.zeros(3), torch.ones(3), torch.ones(3))
    if use != 3:
        torch.testing.assert_close(compiled(with_rest), f(with_rest))


def test_methods_and_nesting():
    def f(pair):
        return pair[0].total() + pair[1].a

    compiled = framejit.compile(f)
    t = [Derived(torch.ones(2), torch.ones(2)), Typed(torch.ones(2), torch.ones(2))]
    assert torch.equal(compiled(t), f(t))
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_another_class_and_length_are_seen():
    def f(t):
        return t[0] + len(t)

    compiled, x = framejit.compile(f), torch.ones(2)
    for t in (Plain(x, x, None), Own(x * 2, x, None), (x, x), Derived(x), Own(x, 5, 6)):
        assert torch.equal(compiled(t), f(t))


def test_methods_of_c_may_break_but_are_right():
    def f(t):
        return t._replace(a=t.b).a + t.a, t.index(None), t._asdict()["b"]

    x = torch.arange(3.0)
    got, expected = framejit.compile(f)(Plain(x, x * 2, None)), f(Plain(x, x * 2, None))
    assert torch.equal(got[0], expected[0]) and got[1] == 2 and torch.equal(got[2], x * 2)


def test_gradients_go_through_the_fields():
    def f(t):
        return (t.a * t.b).sum()

    x, y = torch.ones(3, requires_grad=True), torch.arange(3.0, requires_grad=True)
    framejit.compile(f)(Plain(x, y, None)).backward()
    assert torch.equal(x.grad, y.detach()) and torch.equal(y.grad, x.detach())
