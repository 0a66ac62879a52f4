"""torch.distributions: what they draw with a seed, and what they compute, is eager's."""

import pytest

torch = pytest.importorskip("torch")
D = torch.distributions


def t(*values):
    return torch.tensor(values)


def positive(n):
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(1))
    return a @ a.T + n * torch.eye(n)


A, B, P, Q, LOGITS = t(0.0, 1.0), t(1.0, 2.0), t(0.3, 0.6), t(0.3, 0.3, 0.4), t(-0.5, 0.3, 2.0)
CASES = {
    "Normal": (D.Normal, A, B),
    "Laplace": (D.Laplace, A, B),
    "Cauchy": (D.Cauchy, A, B),
    "Gumbel": (D.Gumbel, A, B),
    "LogNormal": (D.LogNormal, A, B),
    "HalfNormal": (D.HalfNormal, B),
    "HalfCauchy": (D.HalfCauchy, B),
    "Exponential": (D.Exponential, B),
    "Gamma": (D.Gamma, B, B),
    "InverseGamma": (D.InverseGamma, B + 2, B),
    "Chi2": (D.Chi2, B),
    "StudentT": (D.StudentT, B + 4, A, B),
    "Beta": (D.Beta, B, B + 1),
    "Dirichlet": (D.Dirichlet, t(1.0, 2.0, 3.0)),
    "Uniform": (D.Uniform, A, B + 1),
    "Pareto": (D.Pareto, B, B + 2),
    "Weibull": (D.Weibull, B, B),
    "Kumaraswamy": (D.Kumaraswamy, B, B),
    "VonMises": (D.VonMises, A, B),
    "FisherSnedecor": (D.FisherSnedecor, B + 2, B + 4),
    "LogisticNormal": (D.LogisticNormal, A, B),
    "ContinuousBernoulli": (D.ContinuousBernoulli, P),
    "RelaxedBernoulli": (lambda p: D.RelaxedBernoulli(torch.tensor(1.0), p), P),
    "RelaxedOneHotCategorical": (lambda p: D.RelaxedOneHotCategorical(torch.tensor(1.0), p), Q),
    "Bernoulli": (D.Bernoulli, P),
    "Bernoulli of logits": (lambda x: D.Bernoulli(logits=x), A),
    "Binomial": (lambda p: D.Binomial(10, p), P),
    "NegativeBinomial": (lambda p: D.NegativeBinomial(torch.tensor(5.0), p), P),
    "Geometric": (D.Geometric, P),
    "Poisson": (D.Poisson, B),
    "Categorical": (D.Categorical, Q),
    "Categorical of logits": (lambda x: D.Categorical(logits=x), LOGITS),
    "OneHotCategorical": (D.OneHotCategorical, Q),
    "OneHotCategoricalStraightThrough": (D.OneHotCategoricalStraightThrough, Q),
    "Multinomial": (lambda p: D.Multinomial(10, p), Q),
    "MultivariateNormal": (D.MultivariateNormal, torch.zeros(3), positive(3)),
    "MultivariateNormal of precisions": (lambda m, p: D.MultivariateNormal(m, precision_matrix=p), torch.zeros(3), positive(3)),
    "LowRankMultivariateNormal": (D.LowRankMultivariateNormal, torch.zeros(3), positive(3)[:, :2], torch.ones(3)),
    "Wishart": (lambda c: D.Wishart(torch.tensor(4.0), c), positive(3)),
    "LKJCholesky": (lambda c: D.LKJCholesky(3, c), torch.tensor(1.5)),
    "Independent": (lambda m, s: D.Independent(D.Normal(m, s), 1), torch.zeros(2, 3), torch.ones(2, 3)),
    "MixtureSameFamily": (lambda p, m: D.MixtureSameFamily(D.Categorical(p), D.Normal(m, torch.ones(3))), Q, LOGITS),
    "TransformedDistribution": (lambda m: D.TransformedDistribution(D.Normal(m, 1.0), [D.SigmoidTransform(), D.AffineTransform(1.0, 2.0)]), A),
}  # fmt: skip


def asked(make, drawn):
    return {
        "sample": lambda *a: make(*a).sample((4,)),
        "rsample": lambda *a: make(*a).rsample((4,)),
        "log_prob": lambda *a: make(*a).log_prob(drawn),
        "entropy": lambda *a: make(*a).entropy(),
        "cdf": lambda *a: make(*a).cdf(drawn),
        "icdf": lambda *a: make(*a).icdf(torch.full(drawn.shape, 0.3)),
        "mean": lambda *a: make(*a).mean,
        "stddev": lambda *a: make(*a).stddev,
        "mode": lambda *a: make(*a).mode,
        "enumerate": lambda *a: make(*a).enumerate_support(),
        "expand": lambda *a: make(*a).expand((2, *make(*a).batch_shape)).sample(),
        "kl": lambda *a: D.kl_divergence(make(*a), make(*[x * 1 for x in a])),
    }


def outcome(f, parameters, seed):
    """What it gives, its gradients, and where it leaves the generator; or the error."""
    torch.manual_seed(seed)
    leaves = [p.clone().requires_grad_() for p in parameters]
    try:
        y = f(*leaves)
    except Exception as error:
        return [], type(error)
    facts = (y.shape, y.dtype, y.stride(), y.requires_grad, torch.get_rng_state().tolist())
    try:
        return [y, *(torch.autograd.grad(y.sum(), leaves, allow_unused=True) if y.requires_grad else ())], facts
    except Exception as error:
        return [y], (*facts, type(error))


def compare(fresh, make, parameters, only=None):
    torch.manual_seed(0)
    drawn = make(*parameters).sample((4,))
    compiled_ones = 0
    for name, f in asked(make, drawn).items():
        if only and name not in only:
            continue
        fresh.reset()
        compiled = fresh.compile(f)
        for seed in (1, 2):
            (expected, facts), (got, mine) = outcome(f, parameters, seed), outcome(compiled, parameters, seed)
            assert mine == facts, name
            for a, b in zip(got, expected, strict=True):
                assert (a is None) == (b is None), name
                if b is not None:
                    rtol = 1e-2 if make is D.ContinuousBernoulli else 1e-4  # eager's terms cancel
                    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-5, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}")
        compiled_ones += compiled.cache_info()["segments"] > 0
    return compiled_ones


@pytest.mark.parametrize("name", ["Normal", "Laplace", "Cauchy", "Multinomial", "Categorical", "MixtureSameFamily"])
def test_draws(fresh, name):
    make, *parameters = CASES[name]
    assert compare(fresh, make, parameters, ("sample", "rsample", "log_prob", "expand")) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_distribution(fresh, name):
    make, *parameters = CASES[name]
    assert compare(fresh, make, parameters) >= 2
