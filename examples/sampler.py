"""A sampler like those of diffusion models: noise is moved step by step along the score of a distribution, here of points on a ring."""

import math

import torch

import framejit

RADIUS, STEPS = 2.0, 120


def score(x, sigma):
    """The direction to where points are more likely, of a ring seen through noise of size sigma."""
    distance = x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return x / distance * (RADIUS - distance) / (sigma**2 + 0.05**2)


def step(x, sigma, next_sigma):
    change = (sigma**2 - next_sigma**2).clamp_min(0.0)
    x = x + change * score(x, sigma)
    return x + 0.3 * change.sqrt() * torch.randn_like(x)


def sample(step, count):
    torch.manual_seed(0)
    sigmas = torch.exp(torch.linspace(math.log(5.0), math.log(0.02), STEPS + 1))
    x = 5.0 * torch.randn(count, 2)
    for i in range(STEPS):
        x = step(x, sigmas[i], sigmas[i + 1])
    return x


fast = framejit.compile(step)
points = sample(fast, 20_000)
distances = points.norm(dim=-1)
print(f"{len(points)} points: distance from the middle {distances.mean():.3f} +- {distances.std():.3f} (the ring: {RADIUS})")
print(f"graphs: {len(fast.graphs)}; runs: {fast.cache_info()['outcomes']['run']}")
assert abs(distances.mean() - RADIUS) < 0.05 and distances.std() < 0.2
torch.testing.assert_close(points, sample(step, 20_000), rtol=1e-4, atol=1e-4)  # the random numbers are the same
