"""Breaks whose reason is gone after the first calls: what was read up to them is other by then, and the place is captured again."""

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


class Lazy(nn.Module):
    """Its layers become other classes in the first call, in a hook."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.LazyLinear(8), nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d()

    def forward(self, x):
        return self.c(self.b(torch.relu(self.a(x)))) * 2


class Prepared(nn.Module):
    """The first call fills what others read, by a function that is not known."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), None

    def prepare(self):
        if self.scale is None:
            self.scale = float(open(__file__).read(1) == '"')  # noqa: SIM115
        return self.scale

    def forward(self, x):
        return self.layer(x) * self.prepare() + 1


@pytest.mark.parametrize(("make", "shape"), [(Lazy, (2, 3, 5)), (Prepared, (2, 4))])
@pytest.mark.parametrize("train", [False, True])
def test_a_break_of_the_first_call_ends_with_its_reason(fresh, make, shape, train):
    torch.manual_seed(0)
    model = make().train(train)
    torch.manual_seed(0)
    expected = make().train(train)
    compiled = fresh.compile(model)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(shape)
        torch.manual_seed(9)  # lazy modules draw their parameters in the first call
        mine = compiled(x)
        torch.manual_seed(9)
        torch.testing.assert_close(mine, expected(x))
    told = fresh.explain(model)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()))


def test_a_break_that_stays_is_not_captured_for_ever(fresh):
    """What is read before it changes with each call; of such captures there are few."""

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 4), 0

        def count(self):
            before = self.calls
            with open(__file__):
                self.calls = before + 1

        def forward(self, x):
            y = self.layer(x)
            self.count()
            return y * 2

    model, x = Counts(), torch.randn(2, 4)
    compiled = fresh.compile(model)
    compiled(x)
    first = fresh.cache_info(compiled)["captures"]
    for _ in range(139):
        torch.testing.assert_close(compiled(x), model.layer(x) * 2)
    assert model.calls == 140
    assert fresh.cache_info(compiled)["captures"] <= 6 * first
