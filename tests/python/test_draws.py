"""A capture asks the framework what a call returns: what that draws is given back."""

import pytest

torch = pytest.importorskip("torch")

DRAWS = {
    "normal of numbers": lambda x: torch.normal(0.5, 2.0, (3, 4)) + x,
    "normal of means": lambda x: torch.normal(x, 1.0),
    "normal of deviations": lambda x: torch.normal(0.0, x.abs() + 1),
    "multinomial": lambda x: torch.multinomial(x.abs() + 1, 2),
    "poisson": lambda x: torch.poisson(x.abs()),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 5), torch.full_like(x, 0.5)),
    "exponential": lambda x: torch.empty_like(x).exponential_(),
    "cauchy": lambda x: torch.empty_like(x).cauchy_(),
    "log_normal": lambda x: torch.empty_like(x).log_normal_(),
    "geometric": lambda x: torch.empty_like(x).geometric_(0.5),
    "random": lambda x: torch.empty_like(x).random_(10),
    "randperm": lambda x: torch.randperm(7),
    "gumbel": lambda x: torch.nn.functional.gumbel_softmax(x),
    "rrelu": lambda x: torch.nn.functional.rrelu(x, training=True),
    "alpha_dropout": lambda x: torch.nn.functional.alpha_dropout(x, 0.5, training=True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_capture_draws_nothing_of_its_own(fresh, name):
    f = DRAWS[name]
    x = torch.arange(12.0).reshape(3, 4) - 6
    compiled = fresh.compile(f)
    for seed in range(3):  # the first time it is captured
        torch.manual_seed(seed)
        got = compiled(x), torch.rand(3)
        torch.manual_seed(seed)
        torch.testing.assert_close(got, (f(x), torch.rand(3)))
