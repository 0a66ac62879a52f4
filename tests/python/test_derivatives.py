"""Derivatives inside of compiled functions: torch.func, torch.autograd.grad, parameters from a dict. One graph, eager's results."""
import copy

import pytest

import framejit

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch.func import functional_call, grad, grad_and_value, vjp, vmap  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")
torch.manual_seed(0)
X, Y = torch.randn(5, 4), torch.randn(5, 4)


def agree(got, wanted, tolerance=2e-5):
    got, wanted = tree_leaves(got), tree_leaves(wanted)
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted):
        if isinstance(w, torch.Tensor):
            assert (g.shape, g.dtype, g.requires_grad) == (w.shape, w.dtype, w.requires_grad)
            torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance)
        else:
            assert g == w


def one_graph(f, *args, calls=3):
    """Eager's results in one graph, called several times; the compiled function."""
    wanted = f(*args)
    report = framejit.explain(f)(*args)
    assert (report.graph_count, report.graph_break_count) == (1, 0), report
    compiled = framejit.compile(f)
    for _ in range(calls):
        agree(compiled(*args), wanted)
    return compiled


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)) * self.scale)


def state(module):
    return {k: v.detach() * 1.5 for k, v in module.named_parameters()}


# --- parameters from a dict ---------------------------------------------------------------------------------------


def test_parameters_from_a_dict():
    net = Net()
    before = [(k, v, v.clone()) for k, v in net.state_dict(keep_vars=True).items()]
    compiled = one_graph(lambda p, x: functional_call(net, p, (x,)), state(net), X)
    other = {k: v + 1 for k, v in state(net).items()}
    agree(compiled(other, X), functional_call(net, other, (X,)))
    for (k, v, old), now in zip(before, net.state_dict(keep_vars=True).values()):
        assert now is v and torch.equal(v, old), k
    net.b.bias.data.add_(1)  # not read
    agree(compiled(other, X), functional_call(net, other, (X,)))


def test_some_parameters_from_two_dicts():
    net = Net()
    some = {"a.weight": torch.ones(8, 4)}
    compiled = one_graph(lambda p, b, x: functional_call(net, (p, b), x), some, {"scale": torch.tensor(3.0)}, X)
    agree(compiled({"a.weight": torch.zeros(8, 4)}, {"scale": X.sum()}, X),
          functional_call(net, ({"a.weight": torch.zeros(8, 4)}, {"scale": X.sum()}), X))
    more = {"a.weight": torch.ones(8, 4), "b.bias": torch.ones(3)}
    agree(compiled(more, {}, X), functional_call(net, (more, {}), X))
    with torch.no_grad():
        net.b.weight.add_(1)
    agree(compiled(more, {}, X), functional_call(net, (more, {}), X))


def test_tied_parameters_from_a_dict():
    net = Net()
    net.c = torch.nn.Linear(4, 8)
    net.c.weight = net.a.weight

    def f(p, x):
        return functional_call(net, p, (x,)), functional_call(net.c, {"bias": x[0, 0].expand(8)}, (x,))

    one_graph(f, {"a.weight": torch.ones(8, 4)}, X)
    assert net.c.weight is net.a.weight


def test_parameters_from_a_dict_train():
    net, mine = Net(), None
    p = {k: v.clone().requires_grad_() for k, v in state(net).items()}
    q = {k: v.detach().clone().requires_grad_() for k, v in p.items()}

    def loss(p, x):
        return functional_call(net, p, (x,)).square().sum()

    mine = framejit.compile(loss)
    for _ in range(3):
        mine(p, X).backward()
        loss(q, X).backward()
    for k in p:
        agree(p[k].grad, q[k].grad)


def test_a_failing_module_is_restored():
    net = Net()
    net.b.forward = lambda x: 1 / 0
    weight = net.a.weight
    compiled = framejit.compile(lambda p, x: functional_call(net, p, (x,)))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            compiled(state(net), X)
        assert net.a.weight is weight and net.a._parameters["weight"] is weight


def test_what_a_module_writes_goes_to_the_dict():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x):
            self.n = self.n + 1
            return x * self.n

    module, compiled = Counts(), framejit.compile(lambda p, x: functional_call(module, p, (x,)))
    mine, theirs = {"n": torch.tensor(4.0)}, {"n": torch.tensor(4.0)}
    for _ in range(3):
        agree(compiled(mine, X), functional_call(module, theirs, (X,)))
        agree(mine, theirs)
        assert module.n == 0


# --- torch.func ------------------------------------------------------------------------------------------------------


def energy(x):
    return (x.sin() * x).sum()


FUNCTIONS = [
    lambda x: grad(energy)(x),
    lambda x: grad_and_value(energy)(x),
    lambda x: grad(lambda x: (x**3).sum() * 2)(x * 2) + x,
    lambda x: grad(lambda a, b: (a * b).sum(), argnums=1)(x, x.cos()),
    lambda x: grad(lambda a, b: (a * b.exp()).sum(), argnums=(0, 1))(x, x.cos()),
    lambda x: grad(lambda p: (p["w"] * p["inner"]["b"].exp()).sum())({"w": x, "inner": {"b": x.cos()}}),
    lambda x: grad(lambda a: (energy(a), a * 2), has_aux=True)(x),
    lambda x: grad_and_value(lambda a: (energy(a), {"out": a}), has_aux=True)(x),
    lambda x: grad(lambda a: grad(energy)(a).square().sum())(x),
    lambda x: grad(lambda a: grad(lambda b: (a * b).sin().sum())(a * 2).sum())(x),
    lambda x: grad(lambda a: grad(grad(lambda b: b**4))(a.sum()))(x),
    lambda x: grad(lambda a: (a.detach() * a).sum())(x),
    lambda x: grad(lambda a: x.square().sum() + 0 * a)(x.sum()),
    lambda x: grad(lambda a: torch.relu(a).max())(x),
    lambda x: vjp(lambda a: a.sin() * a, x)[1](torch.ones_like(x)),
    lambda x: vjp(lambda a: (a.sum(0), a.exp()), x)[1]((x[0], x)),
    lambda x: vmap(grad(lambda a: (a.sin() * a).sum()))(x),
    lambda x: vmap(grad(lambda a, b: (a * b).sum().exp()), in_dims=(0, None))(x, x[0]),
    lambda x: vmap(grad(lambda a, b: (a * b).sum().exp(), argnums=1), in_dims=(0, None))(x, x[0]),
    lambda x: vmap(vmap(grad(lambda a, b: (a * b).exp(), argnums=1), in_dims=(0, None)), in_dims=(0, None))(x, x[0, 0]),
    lambda x: vmap(grad(grad(lambda a: a.sin() * a)), in_dims=1)(x[:1] * 2),
    lambda x: grad(lambda a: vmap(lambda b: (b * a).sum())(x).exp().sum())(x[0]),
    lambda x: vmap(grad(lambda a: a.square().sum()), in_dims=1, out_dims=1)(x),
]
FUNCTIONS[20] = lambda x: vmap(grad(grad(lambda a: a.sin() * a)))(x[0])


@pytest.mark.parametrize("which", range(len(FUNCTIONS)))
def test_torch_func(which):
    f = FUNCTIONS[which]
    compiled = one_graph(f, X)
    agree(compiled(Y), f(Y))
    agree(compiled(Y[:3]), f(Y[:3]))  # another size
    with torch.no_grad():
        agree(compiled(X), f(X))


@pytest.mark.parametrize("which", range(len(FUNCTIONS)))
def test_torch_func_is_differentiated(which):
    """An input that requires gradients: those of the results are torch's, in how many graphs whatever."""
    f, compiled = FUNCTIONS[which], framejit.compile(FUNCTIONS[which])
    for _ in range(2):
        mine, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
        got, wanted = compiled(mine), f(theirs)
        agree(got, wanted)
        tracked = [(g, w) for g, w in zip(tree_leaves(got), tree_leaves(wanted)) if w.requires_grad]
        if not tracked:
            continue
        sum(g.square().sum() for g, _ in tracked).backward()
        sum(w.square().sum() for _, w in tracked).backward()
        agree(mine.grad, theirs.grad)


def test_a_compiled_transform():
    compiled = framejit.compile(grad(energy))
    for x in (X, Y, X):
        agree(compiled(x), grad(energy)(x))
    report = framejit.explain(grad(energy))(X)
    assert (report.graph_count, report.graph_break_count) == (1, 0), report


def test_no_grad_inside_and_outside():
    def f(x):
        def inner(x):
            with torch.no_grad():
                c = x**2
            return (x * c).sum()

        with torch.no_grad():
            return grad(inner)(x)

    one_graph(f, X)
    mine = X.clone().requires_grad_()
    agree(framejit.compile(f)(mine), f(mine))


def test_what_changes_compiles_again():
    power = 2
    compiled = framejit.compile(lambda x: grad(lambda x: (x**power).sum())(x))
    agree(compiled(X), 2 * X)
    power = 3
    agree(compiled(X), 3 * X**2)


def test_writes_inside():
    def f(x):
        def inner(x):
            y = x * 1
            y += x
            y[0] = 0
            return y.square().sum()

        return grad(inner)(x)

    compiled = framejit.compile(f)
    for _ in range(3):
        agree(compiled(X), f(X))


def test_writes_to_what_is_captured_raise():
    buffer = torch.zeros(4)

    def f(x):
        def inner(x):
            buffer.add_(1)
            return (x * buffer).sum()

        return grad(inner)(x)

    compiled = framejit.compile(f)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="captured Tensor"):
            f(X)
        with pytest.raises(RuntimeError, match="captured Tensor"):
            compiled(X)


# --- torch.autograd.grad ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["generator", "values", "map", "parameters", "list", "module"])
def test_tensors_that_are_gone_through(of):
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    weights = torch.nn.ParameterList(net.parameters())

    def f(x, net, weights):
        y = net(x)
        p = list(net.parameters())
        given = {
            "generator": (q for q in p),
            "values": dict(net.named_parameters()).values(),
            "map": map(lambda q: q, p),
            "parameters": net.parameters(),
            "list": p,
            "module": weights,
        }[of]
        first = torch.autograd.grad((h.sum() for h in y), given, (torch.ones(()) * k for k in range(5)), retain_graph=True)
        (again,) = torch.autograd.grad(iter([y]), iter([p[0]]), iter([y.detach()]))
        return first, again

    one_graph(f, X, net, weights)


def test_tensors_that_are_gone_through_once():
    """What the call has taken is gone, also where it refuses."""

    def f(x):
        x = x.requires_grad_()
        left = iter([x, x * 2])
        try:
            torch.autograd.grad((x * 3).sum(), left)
        except RuntimeError:
            return x.detach() * 2, next(left, None)

    compiled = framejit.compile(f)
    for _ in range(3):
        agree(compiled(X.clone()), f(X.clone()))



def leaf(x):
    return x.clone().requires_grad_()


def test_gradients_of_what_is_made_inside():
    def f(x):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(energy(x), x)
        return g, (x - 0.1 * g).detach()

    one_graph(f, X)


def test_residual_of_an_equation():
    net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.SiLU(), torch.nn.Linear(16, 1))
    twin = copy.deepcopy(net)

    def loss(net, x):
        u = net(x)
        du = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
        return (ddu + u).square().mean()

    x = torch.linspace(-1, 1, 11)[:, None].requires_grad_()
    report = framejit.explain(loss)(net, x)
    assert (report.graph_count, report.graph_break_count) == (1, 0), report
    compiled = framejit.compile(loss)
    for _ in range(3):
        compiled(net, x).backward()
        mine, x.grad = x.grad, None
        loss(twin, x).backward()
        agree(mine, x.grad)
        x.grad = None
    for p, q in zip(net.parameters(), twin.parameters()):
        agree(p.grad, q.grad, 1e-4)


def test_penalty_on_gradients():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LeakyReLU(0.2), torch.nn.Linear(8, 1))
    twin = copy.deepcopy(net)

    def penalty(net, x):
        x = (x * 0.5).requires_grad_(True)
        out = net(x)
        g = torch.autograd.grad(outputs=out, inputs=x, grad_outputs=torch.ones_like(out), create_graph=True, retain_graph=True)[0]
        return ((g.norm(2, dim=1) - 1) ** 2).mean()

    compiled = framejit.compile(penalty)
    for _ in range(3):
        compiled(net, X).backward()
        penalty(twin, X).backward()
    for p, q in zip(net.parameters(), twin.parameters()):
        agree(p.grad, q.grad)


def test_several_inputs_and_unused_ones():
    def f(x, y, z):
        return torch.autograd.grad((x * y).sum(), (x, y, z), allow_unused=True)

    x, y, z = leaf(X), leaf(Y), leaf(X)
    one_graph(f, x, y, z)
    one_graph(lambda x, z: torch.autograd.grad(energy(x), [x, z], materialize_grads=True), x, z)
    raises = framejit.compile(lambda x, z: torch.autograd.grad(energy(x), [x, z]))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not have been used"):
            raises(x, z)


def test_by_what_is_no_leaf():
    def f(x):
        h = x * 2
        return torch.autograd.grad(h.exp().sum(), h)[0]

    one_graph(f, leaf(X))

    def alias(x):  # not the tensor that was used
        h = x.view(5, 4)
        return torch.autograd.grad(energy(x), h, allow_unused=True)[0]

    compiled = framejit.compile(alias)
    for _ in range(2):
        assert compiled(leaf(X)) is None


def test_twice_what_was_not_kept_raises():
    def f(x):
        y = energy(x)
        return torch.autograd.grad(y, x)[0] + torch.autograd.grad(y, x)[0]

    compiled = framejit.compile(f)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="second time"):
            compiled(leaf(X))


def test_a_leaf_that_leaves():
    def f(x):
        x = x.clone().requires_grad_()
        y = energy(x)
        g = torch.autograd.grad(y, x, retain_graph=True)[0]
        return x, y, g

    compiled = framejit.compile(f)
    for _ in range(3):
        x, y, g = compiled(X)
        assert x.is_leaf and x.requires_grad and y.requires_grad and not g.requires_grad
        y.backward()
        agree(x.grad, g)


def test_a_leaf_that_stays_inside():
    """Nobody sees its gradient: those of the other inputs are eager's, and not through what the leaf was made of."""
    w = torch.nn.Parameter(Y.clone())

    def of_an_input(x):
        h = x[:, None]
        h.requires_grad = True
        return (h * w).sin()

    def by_call(x):
        h = x * 2
        return (h.requires_grad_() * w).sin(), h.is_leaf, h.requires_grad

    def cut_off(x):
        with torch.no_grad():
            h = w * x
        h.requires_grad = True
        return (h * w.exp()).sin()

    def penalty(x):
        h = (x * 2).requires_grad_()
        y = (h * w).sin().sum()
        (g,) = torch.autograd.grad(y, h, create_graph=True)
        return (g.norm() - 1) ** 2 + y

    def without_gradients(x):
        with torch.no_grad():
            h = x * 2
            h.requires_grad = True
            y = h * w
        return y + w

    for f in (of_an_input, by_call, cut_off, penalty, without_gradients):
        compiled = one_graph(f, X)
        of_w = []
        for call in (compiled, f):
            w.grad = None
            tree_leaves(call(X))[0].sum().backward()
            of_w.append(w.grad)
        agree(*of_w)


def test_views_of_what_becomes_a_leaf():
    """The framework says of them that they have gradients, and gives them a history once the leaf is written."""
    w = torch.nn.Parameter(Y.clone())

    def told(x):
        h = x * 2
        v = h[0]
        h.requires_grad_()
        return v.requires_grad, h * w

    def written(x):
        h = x * 2
        v = h[0]
        h.requires_grad_()
        with torch.no_grad():
            h.mul_(2)
        return torch.autograd.grad((v * w).sin().sum(), h)[0], v.requires_grad

    for f in (told, written):
        compiled = framejit.compile(f)
        for _ in range(2):
            agree(compiled(X), f(X))


def test_requires_grad_is_set_of_what_is_no_leaf():
    def inside(x):
        h = x.sin()
        h.requires_grad = True
        return h

    def given(x):
        x.requires_grad = True
        return x * 2

    for f, results in ((inside, [X.clone().requires_grad_()] * 2), (given, [X.clone().requires_grad_(), X.clone().requires_grad_() * 1])):
        compiled = framejit.compile(f)
        for x in results * 2:
            if f is given and x.is_leaf:
                agree(compiled(x), f(x))
                continue
            for call in (f, compiled):
                with pytest.raises(RuntimeError, match="leaf"):
                    call(x)


def test_writes_to_what_is_detached_of_a_view_without_gradients():
    w = torch.nn.Parameter(Y.clone())

    def f(x):
        with torch.no_grad():
            p = w.index_select(0, torch.arange(w.shape[0])).view(-1).detach()
        p += x.reshape(-1).sin()
        return p.view(w.shape) * w

    x = X.clone().requires_grad_()
    compiled = one_graph(f, x)
    of = []
    for call in (compiled, f):
        x.grad = w.grad = None
        call(x).sum().backward()
        of.append([x.grad, w.grad])
    agree(*of)


def test_what_hangs_on_a_leaf_alone():
    w = torch.nn.Parameter(Y.clone())

    def alone(x):
        h = w.detach() * x
        h.requires_grad = True
        return h * 3

    def leaves(x):
        h = x * 2
        h.requires_grad = True
        return h * w, h

    for f in (alone, leaves):
        compiled = framejit.compile(f)
        for _ in range(2):
            w.grad = None
            got, wanted = tree_leaves(compiled(X)), tree_leaves(f(X))
            agree(got, wanted)
            assert [t.is_leaf for t in got] == [t.is_leaf for t in wanted]
            got[0].sum().backward()
            assert (w.grad is None) == (f is alone)


def test_backward_of_what_has_gradients_inside_twice():
    def f(x):
        return torch.autograd.grad((x**4).sum(), x, create_graph=True)[0].sum()

    compiled = framejit.compile(f)
    for _ in range(2):
        x, y = leaf(X), leaf(X)
        results = []
        for g, at in ((compiled, x), (f, y)):
            (first,) = torch.autograd.grad(g(at), at, create_graph=True)
            results.append((first.detach(), torch.autograd.grad(first.sum(), at)[0]))
        agree(*results)


# Second derivatives of what has a formula of its own, also where the first one has two branches.
SMOOTH = ["tanh", "sigmoid", "sin", "exp", "square", "softmax", "log_softmax", "logsumexp", "relu", "abs", "silu", "gelu", "softplus", "elu",
          "selu", "celu", "mish", "logsigmoid", "hardswish", "hardtanh", "leaky_relu", "erf", "prod", "norm", "std", "layer_norm", "rsqrt", "pow", "cumsum", "max", "atan2", "sinc",
          "batch_norm", "mean", "logaddexp", "xlogy", "where", "minimum", "gather", "matmul", "linear", "conv1d", "embedding", "clamp", "expm1", "log1p", "cosh"]
POINTS = torch.tensor([[-120.0, -3.0, -1.0, -0.5], [0.0, 0.5, 1.0, 2.0], [3.0, 30.0, 90.0, 120.0]])


def smooth(name, x):
    if name in ("softmax", "log_softmax"):
        return getattr(F, name)(x, -1)
    if name in ("logsumexp", "norm", "std", "cumsum", "prod"):
        return getattr(torch, name)(x, dim=-1)
    if name == "max":
        return x.max(-1).values
    if name == "rsqrt":
        return (x.square() + 1).rsqrt()
    if name == "log1p":
        return x.square().log1p()
    if name in ("exp", "expm1", "cosh"):
        return getattr(torch, name)(x / 100)
    if name == "pow":
        return x**3
    if name == "where":
        return torch.where(x > 0, x.square(), x.sin())
    if name in ("atan2", "minimum", "logaddexp"):
        return getattr(torch, name)(x, x.roll(1, -1) * 0.7)
    if name == "xlogy":
        return torch.xlogy(x, x.square() + 1)
    if name == "layer_norm":
        return F.layer_norm(x, (4,)) * x
    if name == "batch_norm":
        return F.batch_norm(x, None, None, training=True) * x
    if name == "gather":
        return x.gather(1, torch.tensor([[0, 1], [1, 1], [3, 0]])).square()
    if name == "matmul":
        return x @ x.T
    if name == "linear":
        return F.linear(x, x, x[:, 0])
    if name == "conv1d":
        return F.conv1d(x[None], x[None, :, :2])
    if name == "embedding":
        return F.embedding(torch.tensor([0, 2, 0]), x).square()
    if name == "clamp":
        return x.clamp(-1, 1) * x
    if name in ("square", "abs", "sin", "erf", "sinc", "mean"):
        return getattr(torch, name)(x)
    return getattr(F, name, None)(x) if hasattr(F, name) else getattr(torch, name)(x)


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives(name):
    """Of the sum of squares of the gradient; in float64 and at points where branches that are not taken overflow in float32."""
    weight = torch.randn(3, 4)

    def f(x):
        (first,) = torch.autograd.grad((smooth(name, x) * (1 if smooth(name, x).shape != x.shape else weight.to(x.dtype))).sum(), x, create_graph=True)
        if not first.requires_grad:
            return first
        second = torch.autograd.grad((first * weight.to(x.dtype)).sum(), x, create_graph=True, allow_unused=True)[0]
        return first, second

    for points in (X[:3], POINTS, POINTS.double() / 10, torch.zeros(3, 4)):
        x = leaf(points)
        wanted = [t.detach() for t in tree_leaves(f(x)) if t is not None]
        compiled = framejit.compile(f)
        for _ in range(2):
            got = [t.detach() for t in tree_leaves(compiled(x)) if t is not None]
            assert len(got) == len(wanted)
            for g, w in zip(got, wanted):
                torch.testing.assert_close(g, w, rtol=2e-4, atol=2e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_second_derivative_of_tanh_in_other_types(dtype):
    def f(x):
        y = (x @ x.T).tanh()
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    x = X[:3].to(dtype).requires_grad_()
    compiled = framejit.compile(f)
    torch.testing.assert_close(compiled(x), f(x), rtol=16 * torch.finfo(dtype).eps, atol=16 * torch.finfo(dtype).eps)
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_third_derivative_of_tanh():
    f = lambda x: grad(grad(grad(torch.tanh)))(x)  # noqa: E731
    for x in (0.0, 0.3, -2.0):
        agree(framejit.compile(f)(torch.tensor(x)), f(torch.tensor(x)), 1e-4)


MADE_OF_RESULTS = {name: (lambda x, name=name: getattr(torch, name)(x)) for name in ("tanh", "sigmoid", "exp", "sqrt", "rsqrt", "reciprocal", "relu", "tan")}
MADE_OF_RESULTS |= {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumprod": lambda x: x.cumprod(0),
    "norm": lambda x: x.norm(),
    "std": lambda x: x.std(0),
    "power": lambda x: torch.pow(x, x),
    "inverse": lambda x: torch.linalg.inv(x[:3, :3] + torch.eye(3)),
    "two of one call": lambda x: torch.linalg.qr(x[:3, :3] + torch.eye(3)),
    "one of the other": lambda x: (lambda y: (y, y * y * x))(torch.tanh(x)),
    "two": lambda x: (x.exp() * 2, x.sqrt(), x * x),
    "within": lambda x: x.exp().tanh() + 1,
}


@pytest.mark.parametrize("name", MADE_OF_RESULTS)
def test_by_the_result_that_a_derivative_is_made_of(fresh, name):
    """1 - y * y, say: by y, by x, and by x once more."""
    program = MADE_OF_RESULTS[name]

    def asked(f, dtype):
        x = (torch.arange(1.0, 13.0, dtype=dtype).reshape(3, 4) / 10).requires_grad_()
        results = f(x)
        results = tuple(results) if isinstance(results, tuple) else (results,)
        weighed = sum((r * torch.arange(1.0, r.numel() + 1, dtype=dtype).reshape(r.shape)).sum() for r in results)
        (first,) = torch.autograd.grad(weighed, x, create_graph=True)
        seconds = [torch.autograd.grad((first * first).sum(), of, retain_graph=True, create_graph=True, allow_unused=True)[0] for of in (x, *results)]
        third = torch.autograd.grad(seconds[0].sum(), x, allow_unused=True)[0] if seconds[0].requires_grad else None
        return [*results, first, *seconds, third]

    compiled = fresh.compile(program)
    expected, exact, got = asked(program, torch.float32), asked(program, torch.float64), asked(compiled, torch.float32)
    for mine, theirs, truth in zip(got, expected, exact, strict=True):
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            assert mine.shape == theirs.shape and mine.requires_grad == theirs.requires_grad
            torch.testing.assert_close(mine.double(), truth.double(), rtol=2e-3, atol=2e-3)
    assert fresh.cache_info(compiled)["segments"] == 1


@pytest.mark.parametrize("order", [2, -2, "nuc"])
def test_norms_of_matrices_that_keep_their_axes(fresh, order):
    """The singular values that an extreme is compared with are made again, and so must be the extreme, also behind views of it: nan else."""
    x = torch.randn(5, 5, dtype=torch.float64).requires_grad_()
    f = lambda x: torch.linalg.matrix_norm(x, order, keepdim=True)  # noqa: E731
    expected, got = (torch.autograd.grad(g(x).sum(), x)[0] for g in (f, fresh.compile(f)))
    torch.testing.assert_close(got, expected)


# --- squared errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_squared_errors(reduction, dtype):
    def f(x, y):
        loss = F.mse_loss(x * 2, y.t(), reduction=reduction)
        return loss.detach(), *torch.autograd.grad(loss.sum() * 3, (x, y))

    compiled = framejit.compile(f)
    torch.manual_seed(1)
    for shape in ((5, 4), (5, 4), (7, 3), (1, 1), (1, 6), (6, 1), (0, 3), (33, 65)):
        x, y = torch.randn(shape, dtype=dtype, requires_grad=True), torch.randn(shape[::-1], dtype=dtype, requires_grad=True)
        exact = f(x.detach().double().requires_grad_(), y.detach().double().requires_grad_())
        for got, wanted, right in zip(compiled(x, y), f(x, y), exact):
            assert (got.dtype, got.shape, got.requires_grad) == (wanted.dtype, wanted.shape, wanted.requires_grad)
            assert got.grad_fn is None or got.stride() == wanted.stride()
            off, theirs = ((t.double() - right).abs().nan_to_num(0).amax() if t.numel() else 0 for t in (got.detach(), wanted.detach()))
            assert off <= 2 * theirs + 4 * torch.finfo(dtype).eps * (right.abs().nan_to_num(0).amax() if right.numel() else 0)
            assert torch.equal(got.isnan(), wanted.isnan())
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told


def test_squared_errors_of_other_kinds():
    """Sizes that broadcast, with their warning; types that differ; integers, which torch refuses."""
    compiled = framejit.compile(lambda x, y: F.mse_loss(x, y))
    for y in (torch.randn(4), torch.randn(5, 1), torch.randn(5, 4, dtype=torch.float64)):
        for _ in range(2):
            got = pytest.warns(UserWarning, compiled, X, y) if y.shape != X.shape else compiled(X, y)
            wanted = pytest.warns(UserWarning, F.mse_loss, X, y) if y.shape != X.shape else F.mse_loss(X, y)
            agree(got, wanted)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            compiled(X.long(), X.long())


def test_a_target_that_is_written_behind_a_squared_error():
    compiled = framejit.compile(lambda x, y: F.mse_loss(x, y))
    for f in (F.mse_loss, compiled, compiled):
        x, y = X.clone().requires_grad_(), Y.clone()
        loss = f(x, y)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_steps_within_steps():
    """Meta-learning: some steps of gradient descent, through which the outer loss is differentiated."""

    def adapted(net, x, y, steps):
        fast = dict(net.named_parameters())
        for _ in range(steps):
            loss = F.mse_loss(functional(fast, x), y)
            fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), torch.autograd.grad(loss, fast.values(), create_graph=True))}
        return fast

    def functional(p, x):
        return F.linear(torch.tanh(F.linear(x, p["a.weight"], p["a.bias"])), p["b.weight"], p["b.bias"])

    def outer(net, x, y):
        return sum(F.mse_loss(functional(adapted(net, x[i], y[i], 2), x[i] + 1), y[i]) for i in range(2)) / 2

    nets = []
    for function in (outer, framejit.compile(outer)):
        torch.manual_seed(2)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for k in range(4):
            optimizer.zero_grad()
            function(net, torch.randn(2, 5 + k // 2, 4), torch.randn(2, 5 + k // 2, 3)).backward()
            optimizer.step()
        nets.append(net.state_dict())
    agree(nets[1], nets[0])
    told = framejit.cache_info(function)
    assert not told["breaks"] and told["outcomes"]["run"] == {"graph": 4}, told


def test_expanded_gradient_is_copied_once(fresh):
    """What compiled code cannot read as it lies is laid out by rows for it, once in a pass."""
    torch.manual_seed(0)
    eager = torch.nn.Conv2d(4, 4, 3, padding=1)
    model = fresh.compile(copy.deepcopy(eager))
    x = torch.rand(2, 4, 8, 8)
    for _ in range(3):
        model.zero_grad()
        model(x).sum().backward()
    eager(x).sum().backward()
    for p, q in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(p.grad, q.grad)
    y = model(x).sum()
    with torch.profiler.profile() as profile:
        y.backward()
    copies = [event for event in profile.events() if event.name == "aten::new_empty_strided"]
    assert len(copies) == 1
    assert any(event.name == "CompiledSegmentBackward" for event in profile.events())
    assert framejit.cache_info(model)["breaks"] == 0
