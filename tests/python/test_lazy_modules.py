"""The first call of a lazy module, which gives it its parameters, runs in Python; what follows is one graph."""

import pytest

import framejit

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d(), torch.nn.LazyConv1d(3, 1)

    def forward(self, x):
        return self.last(self.norm(self.first(x).relu())[..., None])


def step(call, owner, x, seed):
    torch.manual_seed(seed)
    owner.zero_grad()
    try:
        y = call(x)
    except Exception as error:
        return [type(error), str(error)]
    if y.requires_grad:
        y.square().sum().backward()
    state = owner.state_dict()
    return [y, torch.get_rng_state(), *(v for v in state.values() if not torch.nn.parameter.is_lazy(v)), *(p.grad for p in owner.parameters() if not torch.nn.parameter.is_lazy(p) and p.grad is not None), list(state)]


def same(got, expected):
    assert len(got) == len(expected)
    for g, e in zip(got, expected):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(g, e, rtol=1e-4 * e.is_floating_point(), atol=1e-4 * e.is_floating_point())
        else:
            assert g == e


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_one_graph_behind_the_first_call(fullgraph, train):
    module, twin = (torch.nn.Sequential(Tower(), torch.nn.Flatten(), torch.nn.LazyLinear(2)).train(train) for _ in range(2))
    compiled = framejit.compile(module, fullgraph=fullgraph)
    with torch.set_grad_enabled(train):
        for k, n in enumerate((5, 5, 5, 3)):
            x = torch.randn(n, 6, generator=torch.Generator().manual_seed(k))
            same(step(compiled, module, x, k), step(twin, twin, x, k))
            info = framejit.cache_info(compiled)
            assert info["breaks"] == 0 and info["segments"] == (0 if k == 0 else 1 if k < 3 else info["segments"])
    assert type(module[2]) is torch.nn.Linear and info["outcomes"]["run"]["graph"] >= 3


@pytest.mark.parametrize("fullgraph", [False, True])
def test_lazy_modules_that_come_later(fullgraph):
    class Chosen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList([torch.nn.LazyLinear(2), torch.nn.LazyLinear(2)])
            self.part = 0

        def forward(self, x):
            return self.parts[self.part](x) + 1

    module, twin = Chosen(), Chosen()
    compiled = framejit.compile(module, fullgraph=fullgraph)
    for k, part in enumerate([0, 0, 1, 1, 0, 1]):
        module.part = twin.part = part
        x = torch.randn(4, 3)
        same(step(compiled, module, x, k), step(twin, twin, x, k))
    info = framejit.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"]["graph"] >= 2


def test_a_first_call_that_fails():
    module, twin = (torch.nn.Sequential(torch.nn.LazyConv2d(2, 3), torch.nn.LazyLinear(2)) for _ in range(2))
    compiled = framejit.compile(module)
    for k, shape in enumerate([(4,), (1, 1, 2, 2), (1, 1, 5, 5), (1, 1, 5, 5), (2, 1, 5, 5)]):
        same(step(compiled, module, torch.ones(shape), k), step(twin, twin, torch.ones(shape), k))
    assert framejit.cache_info(compiled)["outcomes"]["run"]["graph"] >= 2
