"""A Kalman filter follows something that moves in the plane, by noisy measurements of its place alone."""

import numpy as np

import framejit

DT = 0.1
MOVE = np.array([[1, 0, DT, 0], [0, 1, 0, DT], [0, 0, 1, 0], [0, 0, 0, 1]])
SEE = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]])
PUSH = 0.02 * np.eye(4)  # how much its speed may change by itself
NOISE = 0.25 * np.eye(2)


def update(state, spread, measured):
    state = MOVE @ state
    spread = MOVE @ spread @ MOVE.T + PUSH
    surprise = measured - SEE @ state
    gain = spread @ SEE.T @ np.linalg.inv(SEE @ spread @ SEE.T + NOISE)
    return state + gain @ surprise, spread - gain @ SEE @ spread


def follow(update, measurements):
    state, spread, path = np.zeros(4), np.eye(4), []
    for measured in measurements:
        state, spread = update(state, spread, measured)
        path.append(state[:2])
    return np.array(path)


draw = np.random.default_rng(0)
times = np.arange(0, 40, DT)
truth = np.stack([10 * np.cos(0.3 * times), 10 * np.sin(0.3 * times)], 1)
measurements = truth + 0.5 * draw.standard_normal(truth.shape)
fast = framejit.compile(update)
path = follow(fast, measurements)


def error(x):
    return np.sqrt(((x - truth)[50:] ** 2).sum(1).mean())


print(f"{len(times)} measurements; they are off by {error(measurements):.3f}, the filter by {error(path):.3f}")
assert error(path) < 0.75 * error(measurements)
assert np.allclose(path, follow(update, measurements)), "as NumPy computes it"
