"""Tensors of classes with a `__torch_function__`: it is captured, and results are of the classes that eager gives."""

import framejit
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


class Kept(torch.Tensor):
    """torch.Tensor's own `__torch_function__`: results are of this class."""


class Child(Kept):
    def twice(self):
        return self * 2


class Counted(torch.Tensor):
    """A result knows how deep it was made of such tensors."""

    depth = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs)
        if isinstance(out, Counted):
            out.depth = 1 + max(a.depth for a in args if isinstance(a, Counted))
        return out


class Meter(torch.Tensor):
    """Units: `add` wants equal ones, `mul` joins them, some functions refuse, the rest gives plain tensors."""

    def __new__(cls, data, unit):
        self = torch.as_tensor(data).as_subclass(cls)
        self.unit = unit
        return self

    @property
    def described(self):
        return f"in {self.unit}"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        units = [a.unit if isinstance(a, Meter) else "" for a in args]
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs)
        if func in (torch.add, torch.Tensor.add, torch.Tensor.sub):
            if units[0] != units[1]:
                raise ValueError(f"{units[0]} and {units[1]}")
            return Meter(out, units[0])
        if func in (torch.mul, torch.Tensor.mul):
            return Meter(out, "*".join(u for u in units if u))
        return out


class Plain(torch.Tensor):
    """Never asked: it hands all to another class, or says no."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def same(a, b):
    if isinstance(a, torch.Tensor):
        assert type(a) is type(b) and a.dtype == b.dtype and a.stride() == b.stride() and a.requires_grad == b.requires_grad
        assert a._is_view() == b._is_view()
        with torch._C.DisableTorchFunctionSubclass():
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        assert {k: v for k, v in a.__dict__.items()} == {k: v for k, v in b.__dict__.items()}
    elif isinstance(a, (tuple, list)):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif isinstance(a, dict):
        same(list(a.items()), list(b.items()))
    else:
        assert a == b and type(a) is type(b)


def check(f, make, calls=3, captures=1, fullgraph=True):
    compiled = framejit.compile(f, fullgraph=fullgraph)
    for _ in range(calls):
        a, b = (torch.manual_seed(0) and make() for _ in range(2))
        same(f(*a), compiled(*b))
        same(list(a), list(b))
    info = framejit.cache_info(compiled)
    assert (info["captures"], info["breaks"]) == (captures, 0)
    return compiled


def of(cls, *sizes):
    return torch.randn(*sizes).as_subclass(cls)


@pytest.mark.parametrize("cls", [Kept, Child])
def test_results_keep_their_class(cls):
    def f(x, w):
        y = torch.tanh(x @ w + 1)
        return y, y.sum(0), torch.stack([y, y * 2]), y.shape, y.t()[1:], 2 - x, x == w, isinstance(y, cls), type(y).__name__

    check(f, lambda: (of(cls, 4, 4), torch.randn(4, 4)))


def test_methods_of_the_class_and_keywords():
    def f(x, y):
        a = x.twice()
        return a, torch.sum(input=a, dim=0, keepdim=True), torch.clamp(a, min=y), a.size(0), a.dtype, a.mean(dim=(0,)), a.T

    check(f, lambda: (of(Child, 3, 3), of(Kept, 3, 3)))


def test_writes_and_views_of_the_input():
    def f(x):
        view = x[1:]
        x.mul_(2)
        view += 1
        x[0] = 5
        return view, x

    compiled = framejit.compile(f, fullgraph=True)
    for _ in range(3):
        a = of(Kept, 3, 2)
        b = a.clone()
        view, back = compiled(b)
        expected, _ = f(a)
        assert back is b and type(view) is Kept and view.data_ptr() == b.data_ptr() + 8
        same(expected, view)
        same(a, b)
    assert framejit.cache_info(compiled)["captures"] == 1


def test_what_becomes_of_an_input_is_another_object():
    x = torch.randn(3)
    compiled = framejit.compile(lambda x: x.as_subclass(Kept), fullgraph=True)
    for _ in range(2):
        y = compiled(x)
        assert type(y) is Kept and type(x) is torch.Tensor and y.data_ptr() == x.data_ptr() and y is not x


def test_attributes_of_results():
    check(lambda x, y: (x + y, (x * y).sin(), (x + 1).depth, x.depth), lambda: (of(Counted, 3), of(Counted, 3)))


def test_a_class_that_computes_by_rules_of_its_own():
    def make():
        return Meter([1.0, 2.0], "m"), Meter([3.0, 4.0], "m"), torch.ones(2)

    def f(x, y, z):
        s = x + y
        p = s * x * z
        return s, p, p.unit, torch.exp(x), p.described, s.unit == x.unit

    check(f, make)
    compiled = framejit.compile(lambda x, y: x + y)
    for _ in range(2):
        with pytest.raises(ValueError, match="m and s"):
            compiled(Meter([1.0], "m"), Meter([1.0], "s"))
    changed = framejit.compile(lambda x: x * x)
    assert changed(Meter([1.0], "m")).unit == "m*m" and changed(Meter([1.0], "s")).unit == "s*s"


def test_gradients():
    def f(x, w):
        return (torch.sigmoid(x @ w) * x).sum()

    compiled = framejit.compile(f, fullgraph=True)
    for _ in range(3):
        torch.manual_seed(0)
        leaves = [of(Kept, 3, 3).detach().requires_grad_() for _ in range(2)]
        weights = [torch.randn(3, 3, requires_grad=True) for _ in range(1)] * 2
        weights[1] = weights[0].detach().clone().requires_grad_()
        leaves[1] = leaves[0].detach().clone().requires_grad_()
        results = []
        for g, x, w in ((f, leaves[0], weights[0]), (compiled, leaves[1], weights[1])):
            y = g(x, w)
            y.backward()
            results.append((y.detach(), x.grad, w.grad))
        same(*results)
    assert framejit.cache_info(compiled)["captures"] == 1


def test_what_the_class_says_is_guarded(monkeypatch):
    compiled = framejit.compile(lambda x: x + x)
    x = of(Counted, 2)
    assert compiled(x).depth == 1
    assert type(compiled(torch.ones(2))) is torch.Tensor
    assert type(compiled(of(Kept, 2))) is Kept
    x.depth = 4
    assert compiled(x).depth == 5
    monkeypatch.setattr(Counted, "__torch_function__", torch._C._disabled_torch_function_impl)
    assert type(compiled(x)) is torch.Tensor
    monkeypatch.undo()
    assert compiled(x).depth == 5


def test_order_of_classes_and_refusals():
    check(lambda x, y: (x + y, y + x, x < y), lambda: (of(Kept, 2), of(Child, 2)))
    compiled = framejit.compile(lambda x, y: x + y)
    for _ in range(2):
        with pytest.raises(TypeError):
            compiled(of(Plain, 2), torch.ones(2))


def test_values_that_are_asked_for():
    def f(x):
        if x.sum() > 0:
            return x + 1, len(x), [row * 2 for row in x], x.sum().item(), bool(x.any())
        return x - 1

    compiled = framejit.compile(f)
    for sign in (1, -1, 1):
        x = (torch.ones(2, 2) * sign).as_subclass(Kept)
        same(f(x), compiled(x))


def test_beside_modules():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    check(lambda x: torch.nn.functional.softmax(net(x), -1), lambda: (of(Kept, 3, 4),))


def test_by_a_function_of_the_framework_that_is_not_captured():
    def f(x):
        y = torch.quantile(x, 0.5)
        return y + torch.linalg.norm(x), torch.nn.functional.interpolate(x[None, None], scale_factor=2.0)

    compiled = framejit.compile(f)
    for _ in range(2):
        x = of(Kept, 4)
        same(f(x), compiled(x))


class Boxes(torch.Tensor):
    """As torchvision's: results are plain tensors, but for a few functions; what it is made of is an attribute."""

    @classmethod
    def _wrap(cls, tensor, *, size):
        boxes = tensor.as_subclass(cls)
        boxes.size_of_picture = size
        return boxes

    def __new__(cls, data, *, size):
        return cls._wrap(torch.as_tensor(data, dtype=torch.float32), size=size)

    @staticmethod
    def _wraps(func):
        return func in {torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach, torch.Tensor.requires_grad_}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(cls, t) for t in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            output = func(*args, **kwargs or {})
        if cls._wraps(func) and isinstance(args[0], cls):
            return cls._wrap(output, size=args[0].size_of_picture)
        if func in {torch.Tensor.add_, torch.Tensor.mul_} and isinstance(output, cls):
            return output.as_subclass(torch.Tensor)
        return output

    @property
    def area(self):
        with torch._C.DisableTorchFunctionSubclass():
            return (self[:, 2] - self[:, 0]) * (self[:, 3] - self[:, 1])


def test_picture_boxes():
    def f(b):
        c = b.clone()
        d = c.to(torch.float64)
        e = b + 1
        c.add_(1)
        return c, d, e, b.area, d.size_of_picture, torch.stack([b, b]), Boxes(e * 2, size=(1, 2)), b.shape, b.ndim, b.device

    def make():
        return (Boxes([[0.0, 1.0, 2.0, 3.0]], size=(5, 6)),)

    check(f, make)
    compiled = framejit.compile(lambda b: b.clone().size_of_picture)
    for size in ((5, 6), (7, 8), (5, 6)):
        assert compiled(Boxes([[0.0, 1.0, 2.0, 3.0]], size=size)) == size


calls = []


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        calls.append((func.__name__, [t.__name__ for t in types], len(args), sorted(kwargs or {})))
        return super().__torch_function__(func, types, args, kwargs)


def test_what_the_class_is_told_and_when():
    def f(x, y):
        z = x + 1
        z -= y
        z = torch.where(z > 0, z, y)
        z[0] = 3
        z = torch.add(input=z, other=y, alpha=2)
        z = torch.cat([z, y[None, :2].reshape(-1)])
        return torch.nn.functional.layer_norm(-z, (len(z.shape) and z.numel(),)), 1 / z, z @ z, z**2, z[None].T, z.view(-1, 1).squeeze(), z.requires_grad

    compiled = framejit.compile(f, fullgraph=True)
    for _ in range(3):
        torch.manual_seed(1)
        x = of(Logged, 4)
        y = torch.randn(4)
        calls.clear()
        expected = f(x, y)
        theirs = list(calls)
        calls.clear()
        got = compiled(x, y)
        ours = list(calls)
        calls.clear()
        same(expected, got)
        calls.clear()
        assert ours == theirs and len(ours) > 15
    assert framejit.cache_info(compiled)["captures"] == 1


class Packed(torch.nn.Parameter):
    """A parameter with a `__torch_function__`."""

    def __new__(cls, data, scale):
        self = torch.Tensor._make_subclass(cls, data, data.is_floating_point())
        self.scale = scale
        return self

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            x, w, *rest = args
            with torch._C.DisableTorchFunctionSubclass():
                return func(x, w * w.scale, *rest, **kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})


def test_a_parameter_with_rules_of_its_own():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weight = Packed(torch.randn(4, 4), 3.0)

        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight).relu() + self.weight.sum(), isinstance(self.weight, torch.nn.Parameter)

    net, other, x = Net(), Net(), torch.randn(2, 4)
    compiled = framejit.compile(net, fullgraph=True)
    for _ in range(3):
        a, b = compiled(x), other(x)
        same(a, b)
        a[0].sum().backward()
        b[0].sum().backward()
        same(net.weight.grad, other.weight.grad)
    assert framejit.cache_info(compiled)["captures"] == 1


def test_sizes_that_change():
    def f(x):
        return (x * x.shape[0]).reshape(-1), x.sum(1)

    compiled = framejit.compile(f, fullgraph=True)
    for n in (2, 3, 5, 7):
        x = of(Kept, n, 3)
        same(f(x), compiled(x))
    assert framejit.cache_info(compiled)["captures"] == 2


def test_where_a_graph_ends_between():
    def f(x):
        y = x * 2
        print(end="")
        z = y + x
        with torch._C.DisableTorchFunctionSubclass():
            w = z + 1
            print(end="", file=None)
            v = w * y
        return y, z, w, v

    compiled = framejit.compile(f)
    for _ in range(3):
        x = of(Counted, 2)
        same(f(x), compiled(x))


def test_vmap_and_derivatives_of_such_tensors():
    for f in (
        lambda x: torch.vmap(lambda a: a * 2)(x),
        lambda x: torch.func.grad(lambda a: a.sin().sum())(x),
        lambda x: torch.utils.checkpoint.checkpoint(lambda a: a.sin(), x, use_reentrant=False),
    ):
        compiled = framejit.compile(f)
        for _ in range(2):
            x = of(Kept, 3)
            same(f(x), compiled(x))
