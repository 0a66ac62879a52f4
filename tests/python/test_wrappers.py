"""Tensors of classes with a `__torch_dispatch__` and a `__tensor_flatten__`: one graph each, results as eager makes them. Gradients of other tensors
go through their operations; those of wrappers themselves are in test_wrapper_gradients.py."""

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


class Rough(torch.Tensor):
    """A weight whose backward, which torch gives to its class, is not the derivative of what its class does forward."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner, factor=3):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=inner.device)

    def __init__(self, inner, factor=3):
        self.inner, self.factor = inner, factor

    def __tensor_flatten__(self):
        return ["inner"], [self.factor]

    @staticmethod
    def __tensor_unflatten__(inner, meta, outer_size, outer_stride):
        return Rough(inner["inner"], meta[0])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def full(x):
            return x.inner * x.factor if isinstance(x, cls) else list(map(full, x)) if isinstance(x, (tuple, list)) else x

        kwargs = kwargs or {}
        if func in (aten.t.default, aten.detach.default, aten.view.default):
            made = cls(func(args[0].inner, *args[1:], **kwargs), args[0].factor)
            return torch.utils._python_dispatch.return_and_correct_aliasing(func, args, kwargs, made)
        if func is aten.mm.default and isinstance(args[1], cls) and args[1].inner.shape == (5, 4):  # of a backward pass
            return args[0] @ args[1].inner * 100
        return func(*map(full, args), **kwargs)


def gradients(f, make, double, calls=3):
    compiled = framejit.compile(f, fullgraph=True)
    for i in range(calls):
        results = []
        for g in (f, compiled):
            torch.manual_seed(i)
            args = make()
            leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
            made = g(*args)
            made = made if isinstance(made, tuple) else (made,)
            total = sum((t * t).sum() for t in made if t.requires_grad)
            if double:
                first = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
                total = sum((t * t).sum() for t in first if t is not None)
            total.backward()
            results.append([*(t.detach() for t in made), *(a.grad for a in leaves), *(t.requires_grad for t in made)])
        same(*results)
    info = framejit.cache_info(compiled)
    assert (info["captures"], info["breaks"], info["outcomes"]["run"]) == (1, 0, {"graph": calls})


def exact(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def leaf(*shape):
    return exact(*shape).requires_grad_()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    "f, make",
    [
        (torch.nn.functional.linear, lambda: (leaf(3, 4), Rough(exact(5, 4)))),
        (torch.nn.functional.linear, lambda: (leaf(2, 3, 4), Rough(Rough(exact(5, 4), 2)), leaf(5))),
        (lambda b, x, w: torch.addmm(b, x, w.t()).tanh(), lambda: (leaf(5), leaf(3, 4), Rough(exact(5, 4)))),
        (lambda x, w: (x * w + 1, torch.cat([x.expand(3, 4), w])), lambda: (leaf(4), Rough(exact(3, 4)))),
        (lambda x, w: torch.split(w / x, 2), lambda: (leaf(4, 3), Rough(exact(4, 3)))),
        (lambda x, w: (x.detach() * w, x * 2), lambda: (leaf(3, 4), Rough(exact(3, 4)))),
    ],
)
def test_gradients_beside_wrappers(f, make, double):
    gradients(f, make, double)


def test_low_rank_adapters():
    class Adapted(torch.nn.Module):
        def __init__(self, ins, outs):
            super().__init__()
            self.base = torch.nn.Linear(ins, outs)
            self.base.weight = torch.nn.Parameter(Scaled.of(self.base.weight.detach()), requires_grad=False)
            self.base.bias.requires_grad_(False)
            self.down, self.up = torch.nn.Linear(ins, 2, bias=False), torch.nn.Linear(2, outs, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x)) * 0.5

    def train(compiled):
        torch.manual_seed(0)
        net = torch.nn.Sequential(Adapted(4, 8), torch.nn.GELU(), Adapted(8, 8), torch.nn.Tanh(), Adapted(8, 2))
        f = framejit.compile(net, fullgraph=True) if compiled else net
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
        results = []
        for _ in range(4):
            loss = f(torch.randn(2, 3, 4)).pow(2).sum()
            loss.backward()
            results += [loss.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
            optimizer.step()
            optimizer.zero_grad()
        if compiled:
            info = framejit.cache_info(f)
            assert (info["captures"], info["breaks"], info["outcomes"]["run"]) == (1, 0, {"graph": 4})
        return results

    same(train(False), train(True))


def test_gradients_above_the_dispatcher(two):
    compiled = framejit.compile(lambda x: (x * 2).sin() + 1)
    for _ in range(2):
        x, y = (two(torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)) for _ in range(2))
        a, b = (x * 2).sin() + 1, compiled(y)
        a.sum().backward()
        b.sum().backward()
        same(x.grad, y.grad)
        same(a.detach(), b.detach())
    assert framejit.cache_info(compiled)["breaks"] == 0


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


def changing(f, make, sizes, captures, grad):
    """Of a function whose tensors beside a wrapper change their size."""
    compiled = framejit.compile(f, fullgraph=True)
    for n in sizes:
        results = []
        for g in (f, compiled):
            torch.manual_seed(n)
            args = make(n)
            with torch.set_grad_enabled(grad):
                y = g(*args)
            if grad:
                (y * y).sum().backward()
            results.append([y.detach(), args[0].grad])
        assert (results[0][1] is None) == (results[1][1] is None) == (not grad)
        same([r for r in results[0] if r is not None], [r for r in results[1] if r is not None])
    info = framejit.cache_info(compiled)
    assert (info["captures"], info["breaks"], info["outcomes"]["run"]) == (captures, 0, {"graph": len(sizes)})


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "f, make",
    [
        (torch.nn.functional.linear, lambda n: (leaf(n, 4), Rough(exact(6, 4)))),
        (torch.nn.functional.linear, lambda n: (leaf(2, n, 4), Rough(exact(6, 4)), leaf(6))),
        (lambda x, w: (torch.cat([x * w, x]) * 2)[1 : x.shape[0]], lambda n: (leaf(n, 4), Rough(exact(4)))),
        (lambda x, w: torch.chunk(x * w, 2)[0].mean(), lambda n: (leaf(n, 4), Rough(exact(4)))),
        (lambda x, w: torch.nn.functional.layer_norm(x, (4,), w), lambda n: (leaf(n, 4), Rough(exact(4)))),
        (torch.nn.functional.conv1d, lambda n: (leaf(n, 3, 8), Rough(exact(2, 3, 3)))),
    ],
)
def test_sizes_that_change_beside_a_wrapper(f, make, grad):
    changing(f, make, (3, 5, 7, 4, 9, 6), 2, grad)


def test_an_operation_that_takes_no_symbols_beside_a_wrapper(two):
    """multi_dot asks for sizes as numbers where it chooses the order of its products: a graph for each number of rows, and no break."""
    f, w = lambda x, w: torch.linalg.multi_dot([x, w, w]), two(exact(4, 4), exact(4, 4))
    compiled = framejit.compile(f)
    with torch.no_grad():
        for n in (3, 5, 7, 5):
            x = leaf(n, 4)
            same(f(x, w), compiled(x, w))
    info = framejit.cache_info(compiled)
    assert (info["breaks"], info["outcomes"]["run"]) == (0, {"graph": 4}) and 3 <= info["captures"] <= 4, info


def test_wrappers_made_of_what_changes_its_size(two):
    def f(x):
        y = two(x, x * 2) * 3
        return y, y.shape, y.size(0), y.stride(), y.numel(), y.a.shape[0]

    compiled = framejit.compile(f, fullgraph=True)
    with torch.no_grad():
        for n in (3, 5, 7, 4):
            x = torch.randn(n, 4)
            same(f(x), compiled(x))
    assert framejit.cache_info(compiled)["captures"] == 2


def test_wrappers_whose_class_is_asked_for_sizes(two):
    """They run as written, also where one that says its own sizes was captured."""

    class Asked(two):
        @staticmethod
        def __new__(cls, a, b, policy=None):
            asked = {"dispatch_sizes_strides_policy": policy} if policy else {}
            return torch.Tensor._make_wrapper_subclass(cls, (2, 3), dtype=a.dtype, device=a.device, **asked)

        def __init__(self, a, b, policy=None):
            super().__init__(a, b)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            if func in (aten.sym_size.default, aten.size.default):
                return args[0].a.shape
            if func in (aten.sym_stride.default, aten.stride.default):
                return args[0].a.stride()
            return two.__torch_dispatch__.__func__(cls, func, types, args, kwargs or {})

    def f(x):
        return x.shape[0] * 10 + x.stride(0)

    compiled, plain, other = framejit.compile(f), torch.ones(2, 3), torch.ones(5, 4)
    with torch.no_grad():
        for x in (Asked(plain, plain), Asked(other, other, "sizes"), Asked(other, other, "strides"), Asked(plain, plain)):
            assert compiled(x) == f(x)
    info = framejit.cache_info(compiled)
    assert info["breaks"] > 0 and f(x) == 23


class Int4Weight(torch.Tensor):
    """Four bits a number, packed as the framework's kernel for CPUs takes them, with scales and zero points by groups: as torchao has it."""

    @staticmethod
    def __new__(cls, packed, scales, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bfloat16, device=packed.device)

    def __init__(self, packed, scales, shape):
        self.packed, self.scales = packed, scales

    def __tensor_flatten__(self):
        return ["packed", "scales"], [self.shape]

    @classmethod
    def __tensor_unflatten__(cls, inner, attributes, size, stride):
        return cls(inner["packed"], inner["scales"], attributes[0])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            x, weight, bias = args[0], args[1], args[2] if len(args) > 2 else None
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(x.reshape(-1, x.shape[-1]), weight.packed, 32, weight.scales)
            y = y.reshape(*x.shape[:-1], y.shape[-1])
            return y if bias is None else y + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].packed, args[0].scales, args[0].shape)
        raise NotImplementedError(func)


def test_weights_of_four_bits_are_one_graph(fresh):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32)).bfloat16().eval().requires_grad_(False)
    for layer in (net[0], net[2]):
        numbers = torch.randint(0, 16, layer.weight.shape, dtype=torch.int32)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
        scales = torch.randn(layer.weight.shape[1] // 32, layer.weight.shape[0], 2).bfloat16() / 16
        layer.weight = torch.nn.Parameter(Int4Weight(packed, scales, layer.weight.shape), requires_grad=False)
    compiled = fresh.compile(net)
    with torch.no_grad():
        for shape in ((4, 64), (2, 3, 64), (7, 64)):
            x = torch.randn(*shape).bfloat16()
            assert torch.equal(compiled(x), net(x))
        told = fresh.explain(net)(torch.randn(4, 64).bfloat16())
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
