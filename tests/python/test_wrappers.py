"""Tensors of classes with a `__torch_dispatch__` and a `__tensor_flatten__`: one graph each without gradients, results as eager makes them."""

import framejit
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")
aten = torch.ops.aten


@pytest.fixture(scope="module")
def two():
    return pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor


class Scaled(torch.Tensor):
    """An int8 weight: int8 values and a scale for each row. Handlers are kept in a table, as torchao's are."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    handlers = {}

    @staticmethod
    def __new__(cls, values, scale, kind="int8"):
        return torch.Tensor._make_wrapper_subclass(
            cls, values.size(), strides=values.stride(), dtype=scale.dtype, device=values.device, requires_grad=False
        )

    def __init__(self, values, scale, kind="int8"):
        self.values_, self.scale, self.kind = values, scale, kind

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def __tensor_flatten__(self):
        return ["values_", "scale"], [self.kind]

    @staticmethod
    def __tensor_unflatten__(inner, meta, outer_size, outer_stride):
        return Scaled(inner["values_"], inner["scale"], meta[0])

    def full(self):
        return self.values_.to(self.scale.dtype) * self.scale

    @classmethod
    def handles(cls, *ops):
        def decorate(f):
            for op in ops:
                cls.handlers[op] = f
            return f

        return decorate

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in cls.handlers:
            return cls.handlers[func](func, types, args, kwargs or {})
        return NotImplemented


@Scaled.handles(aten.t.default, aten.detach.default, aten.clone.default)
def _(func, types, args, kwargs):
    w = args[0]
    return type(w)(func(w.values_, **kwargs), func(w.scale, **kwargs), w.kind)


@Scaled.handles(aten.mm.default)
def _(func, types, args, kwargs):
    x, w = args
    return func(x, w.full())


@Scaled.handles(aten.addmm.default)
def _(func, types, args, kwargs):
    bias, x, w = args
    return func(bias, x, w.full())


@Scaled.handles(aten.linear.default)
def _(func, types, args, kwargs):
    x, w, *bias = args
    return (x @ w.values_.t().to(x.dtype)) * w.scale.view(-1) + (bias[0] if bias else 0)


@Scaled.handles(aten._to_copy.default)
def _(func, types, args, kwargs):
    return type(args[0])(args[0].values_, args[0].scale.to(kwargs["dtype"]), args[0].kind)


class Weight(Scaled):
    """The same, as a parameter whose functions are taken over above autograd."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.nn.functional.linear:
            x, w, bias = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("bias")
            return torch.nn.functional.linear(x, w.full(), bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def same(a, b, inner=False):
    if isinstance(a, torch.Tensor):
        assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        assert a.requires_grad == b.requires_grad and a.is_inference() == b.is_inference()
        # Of what it computes beneath autograd, torch does not note of what it is a view.
        assert inner or (a._is_view() == b._is_view() and (a._base is None) == (b._base is None))
        if type(a) is torch.Tensor:
            torch.testing.assert_close(a, b)
        else:
            assert sorted(a.__dict__) == sorted(b.__dict__)
            for name in a.__dict__:
                same(a.__dict__[name], b.__dict__[name], inner=True)
    elif isinstance(a, (tuple, list)):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b and type(a) is type(b)


def check(f, make, calls=3, captures=1, context=torch.no_grad):
    compiled = framejit.compile(f, fullgraph=True)
    for i in range(calls):
        (torch.manual_seed(i), torch.manual_seed(i))
        torch.manual_seed(i)
        a = make()
        torch.manual_seed(i)
        b = make()
        with context():
            expected = f(*a)
            got = compiled(*b)
        same(expected, got)
        same(list(a), list(b))
    info = framejit.cache_info(compiled)
    assert (info["captures"], info["breaks"]) == (captures, 0)
    assert info["outcomes"]["run"] == {"graph": calls}
    return compiled


def test_two_tensors(two):
    def f(x, y):
        z = torch.tanh(x @ y + 1)
        return z, 2 - z, torch.cat([z, x]), z.sum(0), z.shape, isinstance(z, two), type(z).__name__, (z.a - z.b).abs() * 2

    check(f, lambda: (two(torch.randn(3, 3), torch.randn(3, 3)), two(torch.randn(3, 3), torch.randn(3, 3))))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_quantized_weight(context):
    def f(x, w, b):
        return torch.nn.functional.linear(x, w, b).relu() + torch.nn.functional.linear(x, w), x @ w.t(), w.kind, w.dtype

    def g(x, w, b):  # in inference mode eager cannot make a view of such a wrapper
        return torch.nn.functional.linear(x, w, b).relu()

    check(g if context is torch.inference_mode else f, lambda: (torch.randn(2, 4), Scaled.of(torch.randn(3, 4)), torch.randn(3)), context=context)


def test_a_model_of_quantized_weights():
    def net():
        torch.manual_seed(0)
        made = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        for layer in (made[0], made[2]):
            layer.weight = torch.nn.Parameter(Scaled.of(layer.weight.detach()), requires_grad=False)
        return made.eval()

    ours, theirs = framejit.compile(net(), fullgraph=True), net()
    for _ in range(3):
        x = torch.randn(5, 4)
        with torch.no_grad():
            same(theirs(x), ours(x))
    assert framejit.cache_info(ours)["captures"] == 1
    ours[0].weight = torch.nn.Parameter(Scaled.of(torch.randn(8, 4)), requires_grad=False)  # another weight, the same code
    theirs[0].weight = ours[0].weight
    with torch.no_grad():
        same(theirs(x), ours(x))
    assert framejit.cache_info(ours)["captures"] == 1


def test_gradients_of_ordinary_inputs():
    def run(compiled):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        net[0].weight = torch.nn.Parameter(Weight.of(net[0].weight.detach()), requires_grad=False)
        f = framejit.compile(net, fullgraph=True) if compiled else net
        results = []
        for _ in range(3):
            x = torch.randn(3, 4, requires_grad=True)
            f(x).pow(2).sum().backward()
            results += [x.grad, *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
        if compiled:
            assert framejit.cache_info(f)["captures"] == 1
            assert framejit.cache_info(f)["breaks"] == 0
        return results

    same(run(False), run(True))


def test_gradients_above_the_dispatcher_break(two):
    compiled = framejit.compile(lambda x: (x * 2).sin() + 1)
    for _ in range(2):
        x, y = (two(torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)) for _ in range(2))
        a, b = (x * 2).sin() + 1, compiled(y)
        a.sum().backward()
        b.sum().backward()
        same(x.grad, y.grad)
        same(a.detach(), b.detach())
    assert framejit.cache_info(compiled)["breaks"] > 0


def test_what_a_wrapper_says_is_guarded(two):
    compiled = framejit.compile(lambda x: x * x.shape[0] + (1 if x.requires_grad else 2))
    with torch.no_grad():
        for x in (two(torch.ones(2), torch.ones(2)), two(torch.ones(3), torch.ones(3)), two(torch.ones(2).double(), torch.ones(2).double())):
            same(x * x.shape[0] + 2, compiled(x))
        same(torch.ones(2) * 2 + 2, compiled(torch.ones(2)))
        x = two(torch.ones(2), torch.ones(2))
        x.a = torch.full((2,), 5.0)
        same(x * 2 + 2, compiled(x))
    kinds = framejit.compile(lambda w: w.kind + "!")
    for kind in ("int8", "int4", "int8"):
        assert kinds(Scaled(torch.ones(2, 2, dtype=torch.int8), torch.ones(2, 1), kind)) == kind + "!"


class Grown(torch.Tensor):
    """Its class says what its sizes are; what the tensor itself has are those that it was made with."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner, policy):
        return torch.Tensor._make_wrapper_subclass(cls, (2,), strides=(1,), dtype=inner.dtype, dispatch_sizes_strides_policy=policy)

    def __init__(self, inner, policy):
        self.inner, self.policy = inner, policy

    def __tensor_flatten__(self):
        return ["inner"], self.policy

    @staticmethod
    def __tensor_unflatten__(inner, policy, outer_size, outer_stride):
        return Grown(inner["inner"], policy)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(a.inner if isinstance(a, Grown) else a for a in args), **(kwargs or {}))


def test_a_class_that_answers_for_its_sizes_is_asked():
    def f(x):
        return x.shape[0], x * 2, x.stride()

    compiled = framejit.compile(f)
    with torch.no_grad():
        plain = Grown(torch.ones(2), None)
        for x in (plain, Grown(torch.ones(5), "sizes"), Grown(torch.ones(3), "sizes"), plain, Grown(torch.ones(4)[::2], "strides")):
            for _ in range(2):
                same(f(x), compiled(x))
        assert f(Grown(torch.ones(5), "sizes"))[0] == 5
        explained = framejit.explain(f)(Grown(torch.ones(5), "sizes"))
    assert "answers for its sizes" in str(explained)
    with torch.no_grad():
        told = framejit.explain(f)(plain)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_views_and_writes(two):
    def f(x):
        y = x * 2
        t = y.t()
        t.add_(1)
        return y, t, x.t(), x[0]

    check(f, lambda: (two(torch.randn(3, 2), torch.randn(3, 2)),))

    def write(x):
        x.mul_(2)
        x[0] = 5
        return x

    compiled = framejit.compile(write, fullgraph=True)
    for _ in range(3):
        a, b = (two(torch.ones(3, 2), torch.ones(3, 2)) for _ in range(2))
        with torch.no_grad():
            write(a)
            assert compiled(b) is b
        same(a, b)
        assert a._version == b._version
    assert framejit.cache_info(compiled)["captures"] == 1


def test_wrappers_in_wrappers(two):
    def make():
        return (two(two(torch.randn(2), torch.randn(2)), two(torch.randn(2), torch.randn(2))),)

    check(lambda x: (x.exp() + 1, x.a * 2), make)


def test_where_a_graph_ends_between(two):
    def f(x):
        y = x * 2
        print(end="", file=None)
        return y + x, y.a

    compiled = framejit.compile(f)
    for _ in range(3):
        x = two(torch.randn(2), torch.randn(2))
        with torch.no_grad():
            same(f(x), compiled(x))


def test_a_handler_that_refuses_raises_as_in_eager():
    compiled = framejit.compile(lambda w: w.sin())
    for _ in range(2):
        with torch.no_grad(), pytest.raises(TypeError, match="NotImplemented|no implementation found"):
            compiled(Scaled.of(torch.randn(2, 2)))
