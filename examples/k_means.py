"""k-means in NumPy: the loop goes on until no centre moves, which only the data can say."""

import numpy as np

import framejit


def assign(points, centres):
    """(the nearest centre of each point, the new centres)."""
    distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(-1)
    nearest = distances.argmin(1)
    mine = (nearest[:, None] == np.arange(len(centres))[None, :]).astype(points.dtype)
    return nearest, (mine.T @ points) / np.maximum(mine.sum(0), 1.0)[:, None]


def cluster(assign, points, centres):
    for number in range(1, 100):
        nearest, moved = assign(points, centres)
        if np.abs(moved - centres).max() < 1e-9:
            break
        centres = moved
    return nearest, centres, number


draw = np.random.default_rng(0)
truth = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]])
points = np.concatenate([centre + 0.5 * draw.standard_normal((5_000, 2)) for centre in truth])
start = points[draw.permutation(len(points))[:4]] * 0.5 + 1.0
fast = framejit.compile(assign)
nearest, centres, rounds = cluster(fast, points, start)
print(f"{len(points)} points, {rounds} rounds; centres:\n{np.round(centres[np.lexsort(centres.T)], 2)}")
assert np.allclose(centres[np.lexsort(np.round(centres).T)], truth[np.lexsort(truth.T)], atol=0.05)
expected, _, plain_rounds = cluster(assign, points, start)
assert (nearest == expected).all() and rounds == plain_rounds
