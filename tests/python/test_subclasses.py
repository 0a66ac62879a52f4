"""Subclasses of tensors that torch treats as plain tensors: their instances come in as what they are, and results are plain."""

import pytest

import framejit

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


class Tagged(torch.nn.Parameter):
    scale = 3

    def __new__(cls, data, tag=0):
        self = super().__new__(cls, data)
        self.tag = tag
        return self

    def twice(self):
        return self * 2


class Quiet(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = Tagged(torch.randn(4, 4), tag=5)
        self.same = self.weight

    def forward(self, x):
        w = self.weight
        known = type(w).__name__, isinstance(w, Tagged), isinstance(w, torch.nn.Parameter), w.tag, w is self.same
        return torch.nn.functional.linear(x, w.twice()) * w.tag + w.scale, w, w.detach(), known


def one_graph(compiled):
    info = framejit.cache_info(compiled)
    return info["captures"] == 1 and info["breaks"] == 0


def test_a_subclass_of_parameter_is_one_graph():
    net, other, x = Net(), Net(), torch.randn(2, 4)
    compiled = framejit.compile(net, fullgraph=True)
    for _ in range(3):
        got, expected = compiled(x), other(x)
        torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-5)
        assert got[1] is net.weight and type(got[2]) is torch.Tensor and got[2].data_ptr() == net.weight.data_ptr()
        assert got[3] == expected[3]
        got[0].square().mean().backward()
        expected[0].square().mean().backward()
        torch.testing.assert_close(net.weight.grad, other.weight.grad, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            net.weight.sub_(0.1 * net.weight.grad)
            other.weight.sub_(0.1 * other.weight.grad)
    assert one_graph(compiled)


def test_what_belongs_to_the_object_and_its_class_is_guarded(monkeypatch):
    net, x = Net(), torch.randn(2, 4)
    compiled = framejit.compile(net)

    def check():
        got, expected = compiled(x), net(x)
        torch.testing.assert_close(got[0], expected[0])
        assert got[3] == expected[3]

    check()
    net.weight.tag = 7
    check()
    monkeypatch.setattr(Tagged, "scale", 4)
    check()
    monkeypatch.setattr(Tagged, "twice", lambda self: self * 3)
    check()
    monkeypatch.setattr(Tagged, "__mul__", lambda self, other: torch.mul(self, other) + 1, raising=False)
    check()
    monkeypatch.undo()
    net.weight = Tagged(torch.randn(4, 4), tag=1)
    check()
    net.weight.__class__ = torch.nn.Parameter
    net.forward = lambda x: (x @ net.weight, None, None, type(net.weight))
    assert compiled(x)[3] is torch.nn.Parameter


def test_plain_and_quiet_tensors_have_versions_of_their_own():
    def f(x):
        kind = type(x)
        return x.add_(1), x[1:], x + 1, kind, kind is torch.Tensor

    compiled = framejit.compile(f, fullgraph=True)

    class Other(Quiet):
        pass

    for _ in range(2):
        for kind in (torch.Tensor, Quiet, Other):
            x = torch.ones(3).as_subclass(kind)
            y = torch.ones(3).as_subclass(kind)
            same, view, new, *known = compiled(x)
            assert same is x and known == list(f(y)[3:]) and type(view) is type(new) is torch.Tensor
            assert view.data_ptr() == x.data_ptr() + 4 and torch.equal(new, y + 1) and torch.equal(x, y)
            assert type(x) is kind
    assert framejit.cache_info(compiled)["captures"] == 3


def test_what_a_subclass_overrides_is_asked():
    class Shifted(torch.nn.Parameter):
        def __add__(self, other):
            return torch.mul(self, other)

    class Hidden(torch.nn.Parameter):
        def __getattr__(self, name):
            return len(name)

    compiled = framejit.compile(lambda p: p + 3)
    assert torch.equal(compiled(Shifted(torch.full((2,), 5.0))), torch.full((2,), 15.0))
    assert framejit.cache_info(compiled)["breaks"] >= 1
    compiled = framejit.compile(lambda p: p * p.seven77)
    assert torch.equal(compiled(Hidden(torch.ones(2))), torch.full((2,), 7.0))


def test_an_optimizer_of_such_parameters():
    def train(compile_):
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            net(x)[0].square().mean().backward()
            optimizer.step()

        step = compile_(step)
        for _ in range(4):
            step(torch.ones(2, 4))
        return net.weight

    ours, theirs = train(framejit.compile), train(lambda f: f)
    assert type(ours) is Tagged and ours.tag == 5
    torch.testing.assert_close(ours, theirs)


class Sphere(Quiet):
    """Has methods of its own in front of torch.Tensor's, as geoopt's tensors have."""

    def __new__(cls, data, radius=1.0, requires_grad=False):
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.radius = radius
        return made

    def dist(self, other, p=2):
        return (self * self.radius - other).abs().amax() if p == "g" else super().dist(other, p)

    def numel(self):
        return 7

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.detach().clone(), self.radius, self.requires_grad)
        return memo[id(self)]


class SphereParameter(Sphere, torch.nn.Parameter):
    def __new__(cls, data, radius=1.0, requires_grad=True):
        return Sphere.__new__(cls, data, radius, requires_grad)


@pytest.mark.parametrize("kind", [Sphere, SphereParameter])
def test_methods_of_its_own_in_front_of_the_tensors(kind):
    def f(p, x):
        return p.dist(x), p.dist(x, p="g"), torch.dist(p, x), torch.numel(p), p.numel(), p.shape.numel(), (p + 1).numel(), p * 2, type(p)

    compiled = framejit.compile(f)
    for radius in (1.0, 1.0, 2.0):
        p, x = kind(torch.randn(3, 4), radius), torch.randn(3, 4)
        got, want = compiled(p, x), f(p, x)
        torch.testing.assert_close(got[:3], want[:3])
        assert got[3:7] == want[3:7] and torch.equal(got[7], want[7]) and type(got[7]) is torch.Tensor and got[8] is kind
        if p.requires_grad:
            mine, theirs = torch.autograd.grad(got[1] + got[7].sum(), p), torch.autograd.grad(want[1] + want[7].sum(), p)
            torch.testing.assert_close(mine, theirs)
    assert framejit.cache_info(compiled)["breaks"] == 0


@pytest.mark.parametrize("kind", [Sphere, SphereParameter])
def test_made_inside(kind):
    def f(x, radius):
        p = kind(x * 2, radius)
        return p, p.dist(x, "g"), type(p), isinstance(p, torch.nn.Parameter), p.requires_grad, p.is_leaf, p.numel()

    compiled = framejit.compile(f)
    for radius in (1.0, 1.0, 3.0):
        x = torch.randn(3)
        got, want = compiled(x, radius), f(x, radius)
        assert type(got[0]) is kind and got[0].radius == radius and got[2:] == want[2:]
        assert torch.equal(got[0].detach(), want[0].detach()) and (got[0].requires_grad, got[0].is_leaf) == (want[0].requires_grad, want[0].is_leaf)
        torch.testing.assert_close(got[1], want[1])
        assert got[1].requires_grad == want[1].requires_grad
        if got[1].requires_grad:
            got[1].backward()
            want[1].backward()
            torch.testing.assert_close(got[0].grad, want[0].grad)
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_copied_inside():
    import copy

    def f(p, x):
        q = copy.deepcopy([p, p])
        return q[0] is q[1], q[0] is p, type(q[0]), q[0].radius, q[0] * x

    compiled = framejit.compile(f)
    for radius in (1.0, 2.0, 1.0):
        p, x = Sphere(torch.randn(3), radius), torch.randn(3)
        got, want = compiled(p, x), f(p, x)
        assert got[:4] == want[:4] and torch.equal(got[4], want[4])
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_properties_of_its_own_in_front_of_the_tensors():
    """What no method is ends the graph: the rows know torch's."""

    class Shaped(Quiet):
        @property
        def shape(self):
            return (9, 9)

        def __len__(self):
            return 4

    def f(p):
        return p.shape, p.size(), len(p), p + 1

    compiled = framejit.compile(f)
    for n in (3, 3, 5):
        p = torch.ones(n).as_subclass(Shaped)
        got, want = compiled(p), f(p)
        assert got[:3] == want[:3] and torch.equal(got[3], want[3])
