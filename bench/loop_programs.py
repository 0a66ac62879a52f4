"""Programs with loops over arrays, numbers and tensors: what `tools/dev bench loops` runs. Each entry of PROGRAMS makes the
arguments of one call; functions may write to them, as such programs do."""

import math
import random

import numpy as np

from . import scalar_programs

PROGRAMS = {}
AROUND = {}  # by name: what makes of the function the call that is measured


def program(make):
    def register(function):
        PROGRAMS[function.__name__] = (function, make)
        return function

    return register


def _rng():
    return np.random.default_rng(7)


def _matrix(n, m=None):
    return _rng().random((n, m or n))


def _positive(n):
    a = _matrix(n)
    return a @ a.T + n * np.eye(n)


# --- linear algebra, row by row ----------------------------------------------------------------------------------------
@program(lambda: (_positive(60),))
def cholesky(a):
    a[0, 0] = np.sqrt(a[0, 0])
    for i in range(1, a.shape[0]):
        for j in range(i):
            a[i, j] -= np.dot(a[i, :j], a[j, :j])
            a[i, j] /= a[j, j]
        a[i, i] -= np.dot(a[i, :i], a[i, :i])
        a[i, i] = np.sqrt(a[i, i])
    return a


@program(lambda: (_positive(50),))
def lu(a):
    for i in range(a.shape[0]):
        for j in range(i):
            a[i, j] -= a[i, :j] @ a[:j, j]
            a[i, j] /= a[j, j]
        for j in range(i, a.shape[0]):
            a[i, j] -= a[i, :i] @ a[:i, j]
    return a


@program(lambda: (300.0, _matrix(300, 240)))
def covariance(n, data):
    mean = np.mean(data, axis=0)
    data -= mean
    cov = np.zeros((data.shape[1], data.shape[1]), dtype=data.dtype)
    for i in range(data.shape[1]):
        cov[i:, i] = cov[i, i:] = data[:, i] @ data[:, i:] / (n - 1.0)
    return cov


@program(lambda: (1.5, 1.2, _matrix(80), _matrix(80), _matrix(80)))
def gemm_rows(alpha, beta, c, a, b):
    c *= beta
    for i in range(a.shape[0]):
        c[i, :] += alpha * (a[i, :] @ b)
    return c


@program(lambda: (1.5, _matrix(50), _matrix(50, 60)))
def trmm(alpha, a, b):
    for i in range(b.shape[0]):
        for j in range(b.shape[1]):
            b[i, j] += np.dot(a[i + 1 :, i], b[i + 1 :, j])
    b *= alpha
    return b


@program(lambda: (1.5, 1.2, _matrix(70, 60), _matrix(70)))
def syrk(alpha, beta, a, c):
    for i in range(a.shape[0]):
        c[i, : i + 1] *= beta
        for k in range(a.shape[1]):
            c[i, : i + 1] += alpha * a[i, k] * a[: i + 1, k]
    return c


def _sparse():
    rng = _rng()
    counts = rng.integers(1, 12, 400)
    rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return rows, rng.integers(0, 400, rows[-1]), rng.random(rows[-1]), rng.random(400)


@program(_sparse)
def spmv(rows, columns, values, x):
    y = np.empty(rows.size - 1, dtype=values.dtype)
    for i in range(rows.size - 1):
        y[i] = values[rows[i] : rows[i + 1]] @ x[columns[rows[i] : rows[i + 1]]]
    return y


# --- stencils ----------------------------------------------------------------------------------------------------------
@program(lambda: (10, _matrix(40)))
def seidel(steps, a):
    n = a.shape[0]
    for _ in range(steps):
        for i in range(1, n - 1):
            a[i, 1:-1] += a[i - 1, :-2] + a[i - 1, 1:-1] + a[i - 1, 2:] + a[i, 2:] + a[i + 1, :-2] + a[i + 1, 1:-1] + a[i + 1, 2:]
            for j in range(1, n - 1):
                a[i, j] += a[i, j - 1]
                a[i, j] /= 9.0
    return a


@program(lambda: (40, _matrix(150), _matrix(150)))
def jacobi(steps, a, b):
    for _ in range(steps):
        b[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1])
        a[1:-1, 1:-1] = 0.2 * (b[1:-1, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] + b[2:, 1:-1] + b[:-2, 1:-1])
    return a


@program(lambda: (20, _matrix(100, 120), _matrix(100, 120), _matrix(100, 120), _matrix(1, 20)[0]))
def fdtd_2d(steps, ex, ey, hz, fict):
    for t in range(steps):
        ey[0, :] = fict[t]
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    return hz


@program(lambda: (_rng().random((4, 32, 32, 3), np.float32), _rng().random((5, 5, 3, 8), np.float32), _rng().random(8, np.float32)))
def conv2d(x, w, bias):
    k = w.shape[0]
    n, h, _, _ = x.shape
    out = np.empty((n, h - k + 1, h - k + 1, w.shape[3]), dtype=np.float32)
    for i in range(h - k + 1):
        for j in range(h - k + 1):
            out[:, i, j, :] = np.sum(x[:, i : i + k, j : j + k, :, np.newaxis] * w[np.newaxis], axis=(1, 2, 3))
    return out + bias


@program(lambda: ((_rng().random((60, 60)) > 0.6).astype(np.int8), 25))
def game_of_life(board, steps):
    for _ in range(steps):
        count = np.zeros_like(board)
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                if dy or dx:
                    count += np.roll(board, (dy, dx), (0, 1))
        board = ((count == 3) | ((board == 1) & (count == 2))).astype(np.int8)
    return board


@program(lambda: (0.25, _matrix(120, 90).astype(np.float32)))
def deriche(alpha, image):
    k = (1.0 - math.exp(-alpha)) ** 2 / (1.0 + alpha * math.exp(-alpha) - math.exp(2.0 * alpha))
    a = k * math.exp(-alpha) * (alpha - 1.0)
    b1, b2 = 2.0 ** (-alpha), -math.exp(-2.0 * alpha)
    y1 = np.empty_like(image)
    y1[:, 0] = k * image[:, 0]
    y1[:, 1] = k * image[:, 1] + a * image[:, 0] + b1 * y1[:, 0]
    for j in range(2, image.shape[1]):
        y1[:, j] = k * image[:, j] + a * image[:, j - 1] + b1 * y1[:, j - 1] + b2 * y1[:, j - 2]
    y2 = np.empty_like(image)
    y2[:, -1] = 0.0
    y2[:, -2] = a * image[:, -1]
    for j in range(image.shape[1] - 3, -1, -1):
        y2[:, j] = a * image[:, j + 1] + k * image[:, j + 2] + b1 * y2[:, j + 1] + b2 * y2[:, j + 2]
    return y1 + y2


@program(lambda: (-1.75, 0.25, -1.0, 1.0, 160, 120, 40))
def mandelbrot(xmin, xmax, ymin, ymax, nx, ny, steps):
    x = np.linspace(xmin, xmax, nx)
    y = np.linspace(ymin, ymax, ny)
    c = x + y[:, None] * 1j
    n = np.zeros(c.shape, dtype=np.int64)
    z = np.zeros(c.shape, dtype=np.complex128)
    for i in range(steps):
        inside = np.abs(z) < 2.0
        n[inside] = i
        z[inside] = z[inside] ** 2 + c[inside]
    return n


@program(lambda: (_matrix(400, 1)[:, 0] * 10, _matrix(400, 1)[:, 0], 30))
def histogram_profile(radius, data, bins):
    most = radius.max()
    out = np.zeros(bins)
    for i in range(bins):
        low, high = most * i / bins, most * (i + 1) / bins
        inside = np.logical_and(low <= radius, radius < high)
        if inside.any():
            out[i] = data[inside].mean()
    return out


@program(lambda: (_matrix(100),))
def floyd_warshall(path):
    for k in range(path.shape[0]):
        path[:] = np.minimum(path[:], np.add.outer(path[:, k], path[k, :]))
    return path


# --- tables and scalars ------------------------------------------------------------------------------------------------
program(lambda: (0x1021, _rng().integers(0, 256, 600, dtype=np.uint8)))(scalar_programs.crc16)
program(lambda: (45, _rng().integers(0, 4, 45)))(scalar_programs.nussinov)


@program(lambda: (_rng().integers(0, 26, 200).tolist(), _rng().integers(0, 26, 200).tolist()))
def edit_distance(a, b):
    d = np.zeros((len(a) + 1, len(b) + 1), np.int64)
    d[:, 0] = np.arange(len(a) + 1)
    d[0, :] = np.arange(len(b) + 1)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + (a[i - 1] != b[j - 1]))
    return d[len(a), len(b)]


@program(lambda: (_rng().standard_normal(4000), 0.05))
def audio_filter(x, alpha):
    y = np.zeros_like(x)
    for i in range(1, len(x)):
        y[i] = y[i - 1] + alpha * (x[i] - y[i - 1])
    return y


@program(lambda: (random.Random(3).sample(range(20000), 3000),))
def scalar_sums(values):
    total, most, odd = 0, 0, 0
    for v in values:
        total += v * v % 7
        most = max(most, v)
        odd += v & 1
    return total, most, odd


@program(lambda: (_rng().random((60, 2)),))
def kalman(measurements):
    state, p = np.zeros(4), np.eye(4)
    f = np.eye(4)
    f[0, 2] = f[1, 3] = 0.1
    h, q, r = np.eye(2, 4), 0.01 * np.eye(4), 0.1 * np.eye(2)
    states = []
    for z in measurements:
        state, p = f @ state, f @ p @ f.T + q
        s = h @ p @ h.T + r
        gain = p @ h.T @ np.linalg.inv(s)
        state = state + gain @ (z - h @ state)
        p = (np.eye(4) - gain @ h) @ p
        states.append(state)
    return np.stack(states)


@program(lambda: (_matrix(40, 3), _matrix(40, 3) - 0.5, _matrix(1, 40)[0] + 1, 30))
def n_body(position, velocity, mass, steps):
    for _ in range(steps):
        d = position[None, :, :] - position[:, None, :]
        inverse = (np.sum(d * d, axis=-1) + 0.01) ** -1.5
        force = (d * (mass[None, :] * inverse)[:, :, None]).sum(axis=1)
        velocity = velocity + 0.01 * force
        position = position + 0.01 * velocity
    return position


# --- elements one at a time (scalar_programs.py) -------------------------------------------------------------------------
SCALAR = ["crc16", "edit_distance", "nussinov", "scalar_sums", "audio_filter"]
for _name, _make in {
    "running_sum": lambda: (_rng().random(20000),),
    "seidel": lambda: (10, _matrix(80)),
    "floyd_warshall": lambda: (_matrix(60),),
    "mandelbrot": lambda: (160, 120, 60),
    "count_words": lambda: (bytes(_rng().choice([65, 67, 71, 84], 20000).astype(np.uint8)), 6, np.zeros(4096, np.int64)),
    "cholesky": lambda: (_positive(60),),
    "queens": lambda: (7,),
    "life": lambda: ((_matrix(40) > 0.6).astype(np.int8), 8),
    "generator": lambda: (40000, 42),
    "collatz": lambda: (4000,),
    "sieve": lambda: (20000,),
    "bubble_sort": lambda: (_rng().random(200),),
    "kalman": lambda: (_rng().standard_normal(4000), 0.1, 0.01, 0.5),
    "bisect": lambda: (np.sort(_rng().random(2000)), _rng().random(2000)),
    "euler": lambda: (20000,),
    "histogram": lambda: (_rng().random(20000), 30),
    "gcd_table": lambda: (80,),
    "matrix_product": lambda: (_matrix(30), _matrix(30)),
    "with_helpers": lambda: (_rng().random(10000),),
    "integrate": lambda: (40000,),
    "knapsack": lambda: (_rng().integers(1, 30, 40).tolist(), _rng().integers(1, 50, 40).tolist(), 500),
    "nearest": lambda: (_matrix(300, 3), _matrix(40, 3)),
}.items():
    SCALAR.append(_name if _name not in PROGRAMS else f"{_name}_scalar")
    PROGRAMS[SCALAR[-1]] = (getattr(scalar_programs, _name), _make)


# --- torch -------------------------------------------------------------------------------------------------------------
def _torch(*shapes):
    def make():
        import torch

        torch.manual_seed(1)
        return tuple(torch.randn(*s) if isinstance(s, tuple) else s for s in shapes)

    return make


@program(_torch((1000, 8, 32), (32, 64), (64, 64), (64,)))
def rnn(x, w_in, w_h, bias):
    import torch

    h = torch.zeros(x.shape[1], 64)
    out = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w_in + h @ w_h * 0.1 + bias)
        out.append(h)
    return torch.stack(out)


@program(_torch((64, 3), 1000))
def ode_rk4(y, steps):
    import torch

    def slope(s):
        a, b, c = s.unbind(-1)
        return torch.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], -1)

    dt = 0.005
    for _ in range(steps):
        k1 = slope(y)
        k2 = slope(y + dt / 2 * k1)
        k3 = slope(y + dt / 2 * k2)
        k4 = slope(y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


@program(_torch((8, 16), (16, 64), (64, 16), 1000))
def diffusion(x, w_in, w_out, steps):
    import torch

    betas = torch.linspace(1e-4, 0.01, steps)
    kept = torch.cumprod(1 - betas, 0)
    for t in reversed(range(steps)):
        noise = torch.tanh(x @ w_in * 0.1) @ w_out * 0.01
        x = (x - betas[t] / torch.sqrt(1 - kept[t]) * noise) / torch.sqrt(1 - betas[t])
        if t > 0:
            x = x + torch.sqrt(betas[t]) * 0.1 * torch.sin(x)
    return x


def _with_gradients(function):
    """The result, and the gradients of its squares' mean by all tensors."""

    def call(*arguments):
        import torch

        arguments = [a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in arguments]
        result = function(*arguments)
        return result.detach(), *torch.autograd.grad(result.square().mean(), [a for a in arguments if isinstance(a, torch.Tensor)])

    return call


for _name in ("rnn", "ode_rk4", "diffusion"):
    for _steps in (100, 1000):  # the first result must not take longer for more steps

        def _shorter(make=PROGRAMS[_name][1], steps=_steps):
            return tuple(steps if isinstance(a, int) else a[:steps] if a.shape[0] == 1000 else a for a in make())

        PROGRAMS[f"{_name}_{_steps}_trained"] = (PROGRAMS[_name][0], _shorter)
        AROUND[f"{_name}_{_steps}_trained"] = _with_gradients


@program(_torch((50, 64), (64, 64), (64, 50), 80))
def greedy_sampling(embedding, w, head, steps):
    import torch

    token, h, out = torch.tensor(3), torch.zeros(64), []
    for _ in range(steps):
        h = torch.tanh(embedding[token] + 0.05 * h @ w)
        token = torch.argmax(h @ head)
        out.append(token.item())
        if out[-1] == 49 and len(out) > 70:
            break
    return out


@program(_torch((24, 24), 12))
def torch_table(cost, wide):
    import torch

    n = cost.shape[0]
    d = torch.zeros(n, n)
    for i in range(1, n):
        for j in range(1, n):
            d[i, j] = torch.minimum(torch.minimum(d[i - 1, j], d[i, j - 1]), d[i - 1, j - 1]) + cost[i, j]
    return d


@program(_torch((64, 128), 40))
def layers(x, depth):
    for i in range(depth):
        x = (x * (1.0 - 0.01 * i)).relu() + 0.5 / (i + 1) - x.mean(-1, keepdim=True)
    return x
