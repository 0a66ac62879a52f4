"""The NumPy cases as users of Numba and JAX write them. Both libraries are optional: `pip install numba jax` beside NumPy.

Numba: explicit loops over elements or rows, njit(parallel=True), as many threads as cores. JAX: the NumPy source with
jax.numpy in NumPy's place, 64-bit, arguments already on its device, results waited for but left there."""

import inspect
import math

from . import functions


def with_numba():
    """{name of a function in functions.py: compiled rival}; ImportError without Numba."""
    import numba
    import numpy as np
    from numba import prange

    jit = numba.njit(parallel=True, cache=False)

    @numba.njit(inline="always")
    def cdf(x):
        k = 1.0 / (1.0 + 0.2316419 * abs(x))
        poly = k * (0.319381530 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
        tail = 0.3989422804014327 * math.exp(-0.5 * x * x) * poly
        return 1.0 - tail if x > 0 else tail

    @jit
    def black_scholes(price, strike, years, rate, volatility):
        call, put = np.empty_like(price), np.empty_like(price)
        for i in prange(price.shape[0]):
            root = volatility * math.sqrt(years[i])
            d1 = (math.log(price[i] / strike[i]) + (rate + 0.5 * volatility * volatility) * years[i]) / root
            d2 = d1 - root
            discounted = strike[i] * math.exp(-rate * years[i])
            call[i] = price[i] * cdf(d1) - discounted * cdf(d2)
            put[i] = discounted * cdf(-d2) - price[i] * cdf(-d1)
        return call, put

    @jit
    def row_softmax(x):
        out = np.empty_like(x)
        for i in prange(x.shape[0]):
            e = np.exp(x[i] - x[i].max())
            out[i] = e / e.sum()
        return out

    @jit
    def laplace(grid):
        out = grid.copy()
        for i in prange(1, grid.shape[0] - 1):
            for j in range(1, grid.shape[1] - 1):
                out[i, j] = 0.25 * (grid[i - 1, j] + grid[i + 1, j] + grid[i, j - 1] + grid[i, j + 1])
        return out

    @jit
    def k_means_step(points, centers):
        n, d, k = points.shape[0], points.shape[1], centers.shape[0]
        label = np.empty(n, np.int64)
        for i in prange(n):
            best = np.inf
            for c in range(k):
                distance = 0.0
                for j in range(d):
                    distance += (points[i, j] - centers[c, j]) ** 2
                if distance < best:
                    best, label[i] = distance, c
        sums, counts = np.zeros((k, d)), np.zeros(k)
        for i in range(n):
            counts[label[i]] += 1
            for j in range(d):
                sums[label[i], j] += points[i, j]
        return sums / counts.reshape(-1, 1), label

    return {f.__name__: f for f in (black_scholes, row_softmax, laplace, k_means_step)}


def numba_of(function):
    """A function as written, and the functions of its module that it calls, under Numba's njit; ImportError without Numba."""
    import types

    import numba

    known = dict(function.__globals__)
    for name in function.__code__.co_names:
        if isinstance(known.get(name), types.FunctionType):
            known[name] = numba.njit(known[name])
    return numba.njit(types.FunctionType(function.__code__, known, function.__name__, function.__defaults__))


def numba_arguments(arguments):
    """What Numba takes for them: lists become its own, off the clock."""
    import numba

    return [numba.typed.List(a) if isinstance(a, list) else a for a in arguments]


def with_jax():
    """As with_numba. Arrays cannot be written to in JAX: laplace uses .at[].set."""
    import jax

    jax.config.update("jax_enable_x64", True)
    source = "".join(inspect.getsource(getattr(functions, n)) for n in ("normal_cdf", "black_scholes", "row_softmax", "laplace", "k_means_step"))
    source = source.replace("import numpy as np", "import jax.numpy as np").replace(
        "result = grid.copy()\n    result[1:-1, 1:-1] = inner", "result = grid.at[1:-1, 1:-1].set(inner)"
    )
    namespace = {}
    exec(compile(source, __file__, "exec"), namespace)

    def rival(name):
        compiled = jax.jit(namespace[name])
        placed = {}

        def call(*arguments):
            key = tuple(id(a) for a in arguments)
            if key not in placed:
                placed[key] = [jax.device_put(a) for a in arguments], arguments
            return jax.block_until_ready(compiled(*placed[key][0]))

        return call

    return {name: rival(name) for name in ("black_scholes", "row_softmax", "laplace", "k_means_step")}


def available():
    """{"numba": {...}, "jax": {...}} of those that can be imported."""
    found = {}
    for name, make in (("numba", with_numba), ("jax", with_jax)):
        try:
            found[name] = make()
        except ImportError:
            continue
    return found
