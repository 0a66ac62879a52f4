"""Heat spreads over a plate: a simulation in NumPy, written with slices. Compiled, each step is one pass over memory."""

import time

import numpy as np

import framejit


def step(heat, spread):
    inner = heat[1:-1, 1:-1]
    around = heat[:-2, 1:-1] + heat[2:, 1:-1] + heat[1:-1, :-2] + heat[1:-1, 2:]
    new = heat.copy()
    new[1:-1, 1:-1] = inner + spread * (around - 4.0 * inner)
    return new


def simulate(step, heat, steps):
    start = time.perf_counter()
    for _ in range(steps):
        heat = step(heat, 0.2)
    return heat, time.perf_counter() - start


plate = np.zeros((400, 400))
plate[150:250, 150:250] = 100.0
fast = framejit.compile(step)
simulate(fast, plate, 3)  # compiles
expected, plain_seconds = simulate(step, plate, 200)
heat, seconds = simulate(fast, plate, 200)
print(f"200 steps of 400x400: NumPy {plain_seconds:.2f} s, framejit {seconds:.2f} s")
print(f"hottest {plate.max():.1f} -> {heat.max():.1f}; heat on the plate {plate.sum():.4g} -> {heat.sum():.4g}")
assert np.allclose(heat, expected, rtol=1e-12, atol=1e-12)
assert abs(heat.sum() / plate.sum() - 1) < 1e-9, "none of it has reached the edge"
