"""Forward mode, Jacobians and Hessians by torch.func in compiled functions: one graph, what torch's own give."""

import pytest

import framejit

torch = pytest.importorskip("torch")
import torch.autograd.forward_ad as ad  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")
torch.manual_seed(0)
W, B = torch.randn(5, 4), torch.randn(5)


def rows(*sizes):
    return torch.randn(*sizes)


def layer(x):
    return torch.tanh(F.linear(x, W, B))


def dual(x, t):
    with ad.dual_level():
        made = ad.make_dual(x, t)
        return ad.unpack_dual(made.sin() * made.sum()).tangent


def both(x, t):
    with ad.dual_level():
        primal, tangent = ad.unpack_dual(layer(ad.make_dual(x, t)))
    return primal, tangent


def energy(x):
    return (layer(x).exp() * x[..., :1]).sum()


def two(x, y):
    return x.sin() * y, (x * y).sum()


def auxiliary(x):
    y = layer(x)
    return y, y * 2


WHOLE = {
    "jvp": (lambda x, t: jvp(layer, (x,), (t,)), rows(4), rows(4)),
    "duals": (dual, rows(4), rows(4)),
    "duals and what they are without": (both, rows(4), rows(4)),
    "jvp of two": (lambda x, y, t: jvp(two, (x, y), (t, t * 2)), rows(4), rows(4), rows(4)),
    "jvp with more": (lambda x, t: jvp(auxiliary, (x,), (t,), has_aux=True), rows(4), rows(4)),
    "jvp of what does not depend on it": (lambda x, t: jvp(lambda a: torch.ones(3) * 2, (x,), (t,)), rows(4), rows(4)),
    "jvp of the same": (lambda x, t: jvp(lambda a: (a, a.detach() * a), (x,), (t,)), rows(4), rows(4)),
    "jvp of jvp": (lambda x, t: jvp(lambda a: jvp(torch.sin, (a,), (t,))[1], (x,), (t,)), rows(4), rows(4)),
    "jvp of grad": (lambda x, t: jvp(grad(energy), (x,), (t,)), rows(4), rows(4)),
    "grad of jvp": (lambda x, t: grad(lambda a: jvp(energy, (a,), (t,))[1])(x), rows(4), rows(4)),
    "jvp of samples": (lambda x, t: vmap(lambda a, b: jvp(layer, (a,), (b,)))(x, t), rows(3, 4), rows(3, 4)),
    "vjp": (lambda x, g: vjp(layer, x)[1](g), rows(4), rows(5)),
    "jacrev": (lambda x: jacrev(layer)(x), rows(4)),
    "jacrev of two": (lambda x, y: jacrev(two, argnums=(0, 1))(x, y), rows(4), rows(4)),
    "jacfwd": (lambda x: jacfwd(layer)(x), rows(4)),
    "jacfwd of two": (lambda x, y: jacfwd(two, argnums=(0, 1))(x, y), rows(4), rows(4)),
    "jacfwd with more": (lambda x: jacfwd(auxiliary, has_aux=True)(x), rows(4)),
    "jacfwd by the second": (lambda x, y: jacfwd(two, argnums=1)(x, y), rows(4), rows(4)),
    "hessian": (lambda x: hessian(energy)(x), rows(4)),
    "hessian in reverse": (lambda x: jacrev(jacrev(energy))(x), rows(4)),
    "hessian forwards": (lambda x: jacfwd(jacfwd(energy))(x), rows(4)),
    "jacobians of samples": (lambda x: vmap(jacrev(layer))(x), rows(3, 4)),
    "jacobians of samples forwards": (lambda x: vmap(jacfwd(layer))(x), rows(3, 4)),
    "hessians of samples": (lambda x: vmap(hessian(energy))(x), rows(3, 4)),
}


SIXTEEN, POSITIVE = rows(16), torch.randn(4, 4).square() + 9 * torch.eye(4)
MARKS = torch.tensor([0, 1, 2, 3])
# Calls without a rule for their second derivative: it is torch's.
BY_TORCH = {
    "conv2d": lambda a: F.conv2d(a.view(1, 1, 4, 4), torch.ones(2, 1, 3, 3) / 9).sin(),
    "inv": lambda a: torch.linalg.inv(a.view(4, 4) + POSITIVE),
    "solve": lambda a: torch.linalg.solve(a.view(4, 4) + POSITIVE, a.view(4, 4)),
    "cholesky": lambda a: torch.linalg.cholesky(a.view(4, 4) @ a.view(4, 4).T + torch.eye(4)),
    "logdet": lambda a: torch.logdet(a.view(4, 4) @ a.view(4, 4).T + torch.eye(4)),
    "sort": lambda a: a.sort().values ** 2,
    "index": lambda a: a[torch.tensor([1, 2, 2])].exp(),
    "embedding": lambda a: F.embedding(torch.tensor([0, 1, 1]), a.view(4, 4)).sin(),
    "scatter_add": lambda a: torch.zeros(16).scatter_add(0, torch.tensor([0, 0, 3]), a[:3]).exp(),
    "logcumsumexp": lambda a: a.logcumsumexp(0),
    "cumprod": lambda a: a.cumprod(0),
    "max_pool2d": lambda a: F.max_pool2d(a.view(1, 1, 4, 4), 2).exp(),
    "interpolate": lambda a: F.interpolate(a.view(1, 1, 4, 4), scale_factor=2, mode="bilinear").exp(),
    "mse_loss": lambda a: F.mse_loss(a.sin(), torch.ones(16)),
    "l1_loss": lambda a: F.l1_loss(a, a * 2 + 1),
    "cross_entropy": lambda a: F.cross_entropy(a.view(4, 4), MARKS),
    "std": lambda a: a.std(),
    "norm": lambda a: a.norm() + torch.linalg.vector_norm(a.view(4, 4), dim=0).sum(),
    "lgamma": lambda a: torch.lgamma(a.exp()),
}


@pytest.mark.parametrize("name", BY_TORCH)
def test_second_derivatives_that_torch_computes(name):
    f = BY_TORCH[name]

    def tangent(x, t):
        return jvp(f, (x,), (t,))[1]

    def gradient(x, t):
        return grad(lambda a: grad(lambda b: f(b).sin().sum())(a) @ t)(x)

    for g in (tangent, gradient):
        expected = g(SIXTEEN, SIXTEEN.flip(0))
        told = framejit.explain(g)(SIXTEEN, SIXTEEN.flip(0))
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        agree(framejit.compile(g)(SIXTEEN, SIXTEEN.flip(0)), expected)


@pytest.mark.parametrize("f", [torch.std, torch.norm, torch.linalg.vector_norm, lambda a: a.view(3, 2).std(1)])
def test_tangents_where_a_root_is_zero(f):
    x, t = torch.tensor([0.0, 0.0, 3.0, 4.0, -1.0, 2.0]), torch.arange(1.0, 7)
    compiled = framejit.compile(lambda x, t: jvp(f, (x,), (t,))[1])
    for at in (x, x * 0):
        torch.testing.assert_close(compiled(at, t), jvp(f, (at,), (t,))[1], equal_nan=True)


def test_gradients_of_samples_go_on_to_parameters():
    """The second derivative of a batched call without a rule."""
    models = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)) for _ in range(3)]
    stacked, marks = stack_module_state(models), torch.randint(0, 2, (5,))

    def f(x):
        def loss(parameters, buffers):
            return F.cross_entropy(functional_call(models[0], (parameters, buffers), (x,)), marks)

        return vmap(grad(loss), in_dims=(0, 0))(*stacked)

    x = rows(5, 4)
    expected = f(x)
    told = framejit.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = framejit.compile(f)(x)
    agree(compiled, expected)
    weights = list(stacked[0].values())
    for of in (compiled, expected):
        of["g"] = torch.autograd.grad(sum(v.square().sum() for v in of.values()), weights)
    torch.testing.assert_close(compiled["g"], expected["g"], rtol=1e-4, atol=1e-5)


def test_an_ensemble_of_norms_with_running_statistics():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)).eval()
    stacked = stack_module_state([net, net])

    def f(x):
        return vmap(lambda p, b: functional_call(net, (p, b), (x,)))(*stacked)

    x = rows(5, 4)
    expected = f(x)
    told = framejit.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    agree(framejit.compile(f)(x), expected)


def agree(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected)):
        assert a.requires_grad == b.requires_grad


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name, mode):
    f, *arguments = WHOLE[name]
    with mode():
        expected = f(*arguments)  # torch imports what it needs
        told = framejit.explain(f)(*arguments)
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        compiled = framejit.compile(f)
        for _ in range(3):
            agree(compiled(*arguments), expected)


def untracked(x, t):
    def f(a):
        with torch.no_grad():  # which forward mode does not heed
            return a * a

    return jvp(f, (x,), (t,))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def kept(x, t):  # a dual that outlives its level is what it is without tangents
    with ad.dual_level():
        made = ad.make_dual(x, t) * 2
        tangent = ad.unpack_dual(made).tangent
    return made, tangent


@pytest.mark.parametrize("f", [untracked, kept, lambda x, t: jvp(lambda a: a.abs().sqrt(), (x * 0,), (t,))[1].isnan()])
def test_the_same_as_torch(f):
    x, t = rows(4), rows(4)
    compiled, expected = framejit.compile(f), f(x, t)
    for _ in range(3):
        agree(compiled(x, t), expected)


def test_what_torch_refuses_is_refused():
    f = framejit.compile(lambda x, t: jvp(Doubled.apply, (x,), (t,)))
    for call in (f, lambda x, t: jvp(Doubled.apply, (x,), (t,))):
        with pytest.raises(RuntimeError):
            call(rows(4), rows(4))


def test_gradients_go_through_jvp():
    def f(x, t):
        return jvp(layer, (x,), (t,))[1].square().sum()

    compiled = framejit.compile(f)
    x, t = rows(4).requires_grad_(), rows(4)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, t), x), torch.autograd.grad(f(x, t), x), rtol=1e-4, atol=1e-5)


def test_ensembles_are_one_graph():
    models = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)) for _ in range(3)]
    stacked = stack_module_state(models)
    own = {k: v.detach() for k, v in models[0].named_parameters()}

    def one(parameters, buffers, x):
        return functional_call(models[0], (parameters, buffers), (x,))

    def all_of_them(x):
        return vmap(one, in_dims=(0, 0, None))(*stacked, x)

    def loss(parameters, x, y):
        return F.cross_entropy(functional_call(models[0], parameters, (x[None],)), y[None])

    def each(x, y):
        return vmap(grad(loss), in_dims=(None, 0, 0))(own, x, y)

    for f, arguments in ((all_of_them, (rows(5, 4),)), (each, (rows(5, 4), torch.randint(0, 2, (5,))))):
        told = framejit.explain(f)(*arguments)
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        agree(framejit.compile(f)(*arguments), f(*arguments))


NORMS = {
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "native_layer_norm": lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5)[0],
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x[None]),
    "group_norm": lambda x: F.group_norm(x, 2),
}


@pytest.mark.parametrize("name", NORMS)
def test_differentiated_tangents_of_norms(fresh, name):
    """Torch takes mean and scale as constants in the tangents of some, which shows in what differentiates these: its values are what eager
    gives, whatever is right. Tangents that nothing differentiates stay in the graph."""
    f = NORMS[name]
    x, t = (torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (0, 1))

    def by_grad(x, t):
        return grad(lambda a: jvp(f, (a,), (t,))[1].square().sum())(x)

    def by_autograd(x, t):
        a, b = x.detach().requires_grad_(), t.detach().requires_grad_()
        return torch.autograd.grad(jvp(f, (a,), (b,))[1].square().sum(), (a, b))

    def forwards(x, t):
        return jvp(lambda a: jvp(f, (a,), (t,))[1], (x,), (t,))

    def reversed(x, t):
        return jvp(grad(lambda a: f(a).square().sum() + f(a).exp().sum()), (x,), (t,))

    def alone(x, t):
        return jvp(f, (x,), (t,))

    for g in (by_grad, by_autograd, forwards, reversed, alone):
        compiled = fresh.compile(g)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, t), g(x, t), rtol=1e-9, atol=1e-9)
    if name in ("layer_norm", "batch_norm", "group_norm"):
        assert compiled.cache_info()["breaks"] == 0


@pytest.mark.parametrize("grad", [False, True])
def test_linearize_is_one_graph(fresh, grad):
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).requires_grad_(grad)
    calls = []

    def f(x, y, t):
        def both(a, b):
            calls.append(1)
            return {"net": net(a).sin(), "product": (a * b).exp()}

        out, push = torch.func.linearize(both, x, y)
        return out, push(t, y), push(x, t)

    compiled = fresh.compile(f)
    for seed in range(3):
        torch.manual_seed(seed)
        args = torch.randn(3), torch.randn(3), torch.randn(3)
        calls.clear()
        expected, told = f(*args), len(calls)
        calls.clear()
        got = compiled(*args)
        assert len(calls) == told
        for g, e in zip(got, expected):
            assert list(g) == list(e)
            for k in e:
                torch.testing.assert_close(g[k], e[k])
                assert g[k].requires_grad == e[k].requires_grad
    told = fresh.explain(f)(*args)
    assert (told.graph_count == 1 and told.graph_break_count == 0) != grad, str(told)


def test_linearize_refuses_tangents_of_another_shape(fresh):
    def f(x, t):
        return torch.func.linearize(torch.sin, x)[1](t)

    for g in (f, fresh.compile(f)):
        with pytest.raises(RuntimeError, match=r"tangent:0 with shape torch.Size\(\[2\]\)"):
            g(torch.ones(3), torch.ones(2))


def test_hooks_on_saved_tensors_are_refused_as_by_torch():
    def f(x):
        return torch.func.grad(lambda v: (v**2).sum())(x)

    compiled, x = framejit.compile(f), rows(4)
    assert torch.equal(compiled(x), f(x))
    for function in (f, compiled):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), pytest.raises(RuntimeError, match="saved tensor hooks"):
            function(x)
    assert torch.equal(compiled(x), f(x)) and compiled.cache_info()["kernels"]


def test_a_dual_of_a_tensor_that_meets_itself_is_refused_as_by_torch():
    def f(x):
        return jvp(lambda v: v * v, (x,), (torch.ones(3, 4),))

    compiled, x = framejit.compile(f), rows(3, 4)
    for given in (x, x.t().contiguous().t(), x[:, :1].expand(3, 4), x[:1].expand(3, 4), x):
        try:
            expected = f(given)
        except RuntimeError:
            with pytest.raises(RuntimeError, match="single memory location"):
                compiled(given)
        else:
            assert all(map(torch.equal, compiled(given), expected))
    assert compiled.cache_info()["kernels"]


@pytest.mark.parametrize("shape", ((4, 4), (4, 4, 8)))
def test_a_batch_of_one_row_repeated_is_standardized_to_zero(shape):
    module = torch.nn.BatchNorm1d(4)
    compiled = framejit.compile(lambda x: module(x), fullgraph=True)
    for _ in range(3):
        x = torch.randn(1, 4, *[1] * (len(shape) - 2)).expand(shape)
        assert torch.equal(compiled(x), torch.zeros(shape)) and torch.equal(compiled(x.contiguous() * 1), torch.zeros(shape))
    assert compiled.cache_info()["kernels"]
