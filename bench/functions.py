"""The NumPy and torch functions that are measured, and makers of their arguments."""


# --- NumPy -----------------------------------------------------------------------------------------------------------------
def normal_cdf(x):
    """Abramowitz and Stegun 26.2.17, as Black-Scholes programs have it."""
    import numpy as np

    k = 1.0 / (1.0 + 0.2316419 * np.abs(x))
    poly = k * (0.319381530 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
    tail = 0.3989422804014327 * np.exp(-0.5 * x * x) * poly
    return np.where(x > 0, 1.0 - tail, tail)


def black_scholes(price, strike, years, rate, volatility):
    import numpy as np

    root = volatility * np.sqrt(years)
    d1 = (np.log(price / strike) + (rate + 0.5 * volatility * volatility) * years) / root
    d2 = d1 - root
    discounted = strike * np.exp(-rate * years)
    call = price * normal_cdf(d1) - discounted * normal_cdf(d2)
    put = discounted * normal_cdf(-d2) - price * normal_cdf(-d1)
    return call, put


def black_scholes_arguments(n=1_000_000):
    import numpy as np

    generator = np.random.default_rng(0)
    return generator.uniform(5, 30, n), generator.uniform(1, 100, n), generator.uniform(0.25, 10, n), 0.02, 0.3


def row_softmax(x):
    import numpy as np

    shifted = np.exp(x - x.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def row_softmax_arguments(rows=2048, columns=1024):
    import numpy as np

    return (np.random.default_rng(0).normal(size=(rows, columns)),)


def laplace(grid):
    inner = 0.25 * (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:])
    result = grid.copy()
    result[1:-1, 1:-1] = inner
    return result


def laplace_arguments(n=2048):
    import numpy as np

    return (np.random.default_rng(0).normal(size=(n, n)),)


def k_means_step(points, centers):
    import numpy as np

    distances = ((points[:, None, :] - centers[None, :, :]) ** 2).sum(-1)
    label = distances.argmin(1)
    weight = (label[:, None] == np.arange(len(centers))) * 1.0
    return (weight.T @ points) / weight.sum(0)[:, None], label


def k_means_arguments(n=20_000, clusters=8, dimensions=16):
    import numpy as np

    generator = np.random.default_rng(0)
    return generator.normal(size=(n, dimensions)), generator.normal(size=(clusters, dimensions))


def multiply_add(x, y):
    return x * y + 1


# --- torch -----------------------------------------------------------------------------------------------------------------
def chain(x):
    import torch

    return torch.sqrt(torch.sigmoid(torch.tanh(torch.exp(torch.cos(torch.sin(x))))))


def gelu_layernorm_residual(x, residual, weight, bias):
    import torch.nn.functional as F

    return F.layer_norm(F.gelu(x) + residual, (x.shape[-1],), weight, bias)


def rms_norm(x, weight):
    import torch

    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def softmax(x):
    import torch

    return torch.softmax(x, -1)


def mlp(x, w1, b1, w2, b2):
    import torch.nn.functional as F

    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)
