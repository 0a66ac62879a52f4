"""Modules and parameters that are made in the function: one graph, with what a program can see of them as in eager."""

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.e, self.n = nn.Linear(3, 8), nn.Embedding(5, 8), nn.LayerNorm(8)
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x):
        return self.n(self.a(x) + self.e(torch.arange(4))) + self.shift


def linear(x):
    return nn.Linear(3, 4)(x)


def parts(x):
    layer = nn.Linear(3, 4)
    return layer.weight, layer.bias, layer(x)


def module(x):
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def of_a_module(x):
    m = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return (
        list(m.state_dict()),
        m(x),
        [p.grad for p in m.parameters()],
        [p.is_leaf for p in m.parameters()],
    )


def convolution(x):
    return nn.Conv1d(4, 5, 2)(x[None])


def initialised(x):
    layer = nn.Linear(3, 4)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer(x), layer.weight


def parameter(x):
    p = nn.Parameter(torch.ones(3))
    return x * p, p


def buffers(x):
    m = nn.Module()
    m.register_buffer("b", torch.ones(3))
    m.p = nn.Parameter(torch.zeros(3))
    return x + m.b + m.p, m.p


def net(x):
    return Net()(x)


def in_evaluation(x):
    return Net().eval()(x)


def without_gradients(x):
    with torch.no_grad():
        return Net()(x)


def applied(x):
    def fill(m):
        if isinstance(m, nn.Linear):
            nn.init.constant_(m.weight, 0.5)

    return Net().apply(fill)(x)


def of_a_copy(x):
    z = x.detach().clone()
    z.requires_grad = True
    return z * x, z, z.is_leaf, z.grad, z.grad_fn


def part_of_a_leaf(x):
    v = x.detach().clone().requires_grad_()[0]
    return (x * v).sum(), v.is_leaf, v.grad_fn is None


def frozen(x):
    m = nn.Linear(3, 4).requires_grad_(False)
    return m(x), m.weight.requires_grad, m.weight


def filled(x):
    m = nn.Linear(3, 4)
    with torch.no_grad():
        m.weight.fill_(0.1)
        m.bias.zero_()
        m.weight[0] = 3.0
    return m(x), m.weight


def sizes(x):
    return x * sum(p.numel() for p in nn.Linear(3, 4).parameters())


def shares_memory(x):
    data = torch.zeros(3)
    p = nn.Parameter(data)
    with torch.no_grad():
        p.fill_(2.0)
    return x * data, p, data


ONE_GRAPH = [linear, parts, module, of_a_module, convolution, initialised, parameter, buffers, net, in_evaluation, without_gradients, applied,
             of_a_copy, part_of_a_leaf,             frozen, filled, sizes, shares_memory]  # fmt: skip


def tensors(o):
    if isinstance(o, torch.Tensor):
        return [o]
    if isinstance(o, nn.Module):
        return list(o.state_dict(keep_vars=True).values())
    return [t for x in o for t in tensors(x)] if isinstance(o, (list, tuple)) else []


def seen(f, tracked):
    """What a program sees of four calls: results, what hangs on them, their gradients, and the generator's state."""
    torch.manual_seed(3)
    told = []
    for _ in range(4):
        x = (torch.arange(12.0).reshape(4, 3) / 7).requires_grad_(tracked)
        out = f(x)
        made = tensors(out)
        if isinstance(out, nn.Module):
            told.append(
                (
                    out.training,
                    list(out.__dict__),
                    list(out.state_dict()),
                    [n for n, _ in out.named_buffers()],
                )
            )
        wanting = [t for t in made if t.requires_grad and not t.is_leaf]
        if wanting:
            sum(t.sum() for t in wanting).backward()
        told += [t.detach().clone() for t in made] + [
            t.grad.clone() for t in (x, *made) if t.is_leaf and t.grad is not None
        ]
        told += [
            (
                type(t),
                t.dtype,
                t.shape,
                t.stride(),
                t.is_leaf,
                t.requires_grad,
                t._version if t.is_leaf else 0,
            )
            for t in made
        ]
        told += [x for x in out if not tensors(x)] if isinstance(out, tuple) else []
    return [*told, torch.rand(2)]


def same(mine, eager):
    assert len(mine) == len(eager)
    for a, b in zip(mine, eager):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
        else:
            assert a == b


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("f", ONE_GRAPH)
def test_one_graph(fresh, f, tracked):
    compiled = fresh.compile(f)
    same(seen(compiled, tracked), seen(f, tracked))
    info = compiled.cache_info()
    assert (info["breaks"], len(compiled.graphs), info["recompiles"]) == (0, 1, 0)


def test_much_behind_a_leaf_is_a_graph_of_its_own(fresh):
    def two(x, w):
        return torch.tanh(torch.tanh(x * w) * w)

    def eight(x, w):
        return two(two(two(two(x, w), w), w), w)

    def deep(x):
        w = nn.Parameter(torch.full((3,), 0.5))
        return eight(eight(eight(x, w), w), w), w

    compiled = fresh.compile(deep)
    same(seen(compiled, False), seen(deep, False))
    info = compiled.cache_info()
    assert (info["breaks"], len(compiled.graphs)) == (1, 2)
    whole = fresh.compile(deep, fullgraph=True)
    same(seen(whole, False), seen(deep, False))
    assert len(whole.graphs) == 1


def test_writes_with_gradients_are_refused(fresh):
    def writes(x):
        p = nn.Parameter(torch.ones(3))
        p.add_(1)
        return p

    for f in (writes, fresh.compile(writes)):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            f(torch.ones(3))


def test_refused_backward_passes(fresh):
    def written(x):
        p = nn.Parameter(torch.ones(3))
        y = x * p * p
        with torch.no_grad():
            p.add_(1)
        return y

    for f in (written, fresh.compile(written)):
        for tracked in (False, True):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                f(torch.ones(3, requires_grad=tracked)).sum().backward()


def test_training_step_of_what_is_made(fresh):
    def step(x):
        m = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        loss = m(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return m.weight, m.bias

    eager = seen(step, False)  # the first optimizer of a class changes the class
    compiled = fresh.compile(step)
    same(seen(compiled, False), eager)
    assert compiled.cache_info()["breaks"] == 1  # backward()
