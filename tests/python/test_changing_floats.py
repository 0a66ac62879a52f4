"""Floats that change between calls are symbols of the graph where a call's result hangs on them element by element, and where NumPy makes a call whose sizes do not
follow from them: one version for all numbers, with eager's results, types and errors."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

NUMBERS = (0.3, 0.4, 0.6, 0.7, 0.35, 0.9, -0.2)
ODD = (0.0, -0.0, 1.0, 1e39, -1e39, float("inf"), float("-inf"), float("nan"), 1e-46)

def stored(x, c):
    y, z = x * 2, x * 1
    y[y > c] = c
    y[:2] = c
    z[[0, 2]] = c
    z[..., -1] = -c
    return y, z


TENSORS = {
    "stored": stored,
    "compared": lambda x, c: (x > c, x < c, x >= c, x <= c, x == c, x != c, c > x, torch.gt(x, c)),
    "clamped": lambda x, c: (x.clamp(1 - c, 1 + c), x.clamp(min=c), x.clamp(max=c), torch.clip(x, c), x.clamp_min(c), x.clamp_max(c)),
    "chosen": lambda x, c: (torch.where(x > 0.1, x, c), torch.where(x > 0.1, c, x), torch.where(x > c, 1.0, c)),
    "filled": lambda x, c: (x.masked_fill(x > 0.1, c), torch.full_like(x, c), torch.full((2, 3), c), x.new_full((3,), c)),
    "nucleus": lambda x, c: x.softmax(-1).masked_fill(x.softmax(-1).cumsum(-1) > c, 0.0),
}


def outcome(f, *args):
    try:
        return f(*args)
    except Exception as error:
        return type(error), str(error).split("\n")[0]


def same(want, got):
    if isinstance(want, tuple) and want and isinstance(want[0], type):
        assert want == got
        return
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (want, got)), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert a.stride() == b.stride()
            torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6, equal_nan=True)
        else:
            np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize("name", TENSORS)
def test_one_version_of_tensors_for_all_numbers(name, fresh):
    f = TENSORS[name]
    compiled = fresh.compile(f)
    for c in NUMBERS:
        x = torch.linspace(-0.5, 2, 7)
        same(f(x, c), compiled(x, c))
    info = fresh.cache_info(compiled)
    assert info["segments"] == 2 and not info["breaks"] and info["outcomes"]["run"] == {"graph": len(NUMBERS)}, info


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("name", TENSORS)
def test_odd_numbers_and_types(name, dtype, fresh):
    f = TENSORS[name]
    compiled = fresh.compile(f)
    for c in (0.3, 0.4, *ODD):
        x = torch.linspace(0, 3, 7).to(getattr(torch, dtype))
        same(outcome(f, x, c), outcome(compiled, x, c))


@pytest.mark.parametrize("name", ["clamped", "chosen", "nucleus"])
def test_gradients(name, fresh):
    f = TENSORS[name]
    compiled = fresh.compile(f)
    with fresh.config.patch(leave=False):
        for c in NUMBERS:
            grads = []
            for g in (f, compiled):
                x = torch.linspace(-0.5, 2, 7).requires_grad_()
                results = g(x, c)
                sum(((r * torch.arange(1.0, 8)).sum() for r in (results if isinstance(results, tuple) else (results,)) if r.requires_grad)).backward()
                grads.append(x.grad)
            torch.testing.assert_close(*grads)
    info = fresh.cache_info(compiled)
    assert info["segments"] == 2 and not info["breaks"], info


def test_in_place_and_in_batches(fresh):
    def f(x, c):
        x = x * 1
        x.clamp_(-c, c).masked_fill_(x > c / 2, c)
        return torch.vmap(lambda row: torch.where(row > c, row.clamp(max=2 * c), c))(x)

    compiled = fresh.compile(f)
    for c in NUMBERS[:-1]:
        x = torch.linspace(-2, 2, 12).reshape(3, 4)
        same(f(x, c), compiled(x, c))
    info = fresh.cache_info(compiled)
    assert info["captures"] == 2 and not info["breaks"], info


def stored_in_arrays(y, c):
    z, w, out = y * 2, y.astype(np.float32), np.zeros(len(y))
    z[z > c] = c
    z[:2] = c
    w[w < c] = c
    np.maximum(y, c, out=out)
    np.multiply(y, c, out=out, where=y > c)
    return z, w, out


ARRAYS = {
    "stored": stored_in_arrays,
    "compared": lambda y, c: (y > c, y < c, y == c, y != c, np.greater(y, c), c >= y),
    "chosen": lambda y, c: (np.where(y > c, y, c), np.maximum(y, c), np.minimum(c, y), np.clip(y, 0.2, c), y.clip(c)),
    "integrated": lambda y, c: y * np.trapezoid(y, dx=c),
    "of float32": lambda y, c: (np.where(y.astype(np.float32) > c, y.astype(np.float32), c), np.maximum(y.astype(np.float32), c)),
    "integers": lambda y, c: (np.arange(len(y)) > c, np.clip(np.arange(len(y)), 0, c), np.where(y > 0.5, np.arange(len(y)), c)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_one_version_of_arrays_for_all_numbers(name, fresh):
    f = ARRAYS[name]
    compiled = fresh.compile(f)
    with fresh.config.patch(leave=False):
        for n, c in enumerate(NUMBERS):
            y = np.linspace(0.1, 1.5, 5 + n)
            same(f(y, c), compiled(y, c))
        info = fresh.cache_info(compiled)
        assert info["segments"] == 2 and not info["breaks"] and info["outcomes"]["run"] == {"graph": len(NUMBERS)}, info
        for c in ODD:
            with np.errstate(all="ignore"):
                same(outcome(f, y, c), outcome(compiled, y, c))


def test_a_step_that_follows_from_the_size(fresh):
    def f(y):
        return np.trapezoid(y * 2, dx=1 / len(y))

    compiled = fresh.compile(f)
    with fresh.config.patch(leave=False):
        for n in (5, 8, 11, 2, 1, 30):
            y = np.linspace(0.1, 1.5, n) ** 2
            same(f(y), compiled(y))
    info = fresh.cache_info(compiled)
    assert info["segments"] <= 3 and not info["breaks"], info  # one for a single element


def test_steps_between_what_data_says(fresh):
    """numpy.linspace and its like between elements of arrays, and between numbers of NumPy's."""
    level = np.float64(1.5)

    def f(x, n):
        return np.linspace(x.min(), x.max(), n), np.linspace(x[:2], x[1:3], n), np.geomspace(1, x.max() + 2, n), x.sum() + np.linspace(level, 3.0, n)

    def g(x, n):
        grid, step = np.linspace(x[0], x[1], n + 2, retstep=True)
        return grid * step, np.logspace(0, x[0], n)

    for h in (f, g):
        compiled = fresh.compile(h)
        with fresh.config.patch(leave=False):
            for n in (5, 6, 9, 4, 3, 1):
                x = np.random.default_rng(n).random(n + 3)
                same(h(x, n), compiled(x, n))
        info = fresh.cache_info(compiled)
        assert info["segments"] <= 3 and not info["breaks"], info


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
@pytest.mark.parametrize("store", ["x.masked_fill(x > 1, c)", "x.index_fill(0, x.long()[:1], 2).__setitem__(0, c)", "torch.full_like(x, c)", "x.clone().__setitem__(x > 1, c)"])
def test_fractions_that_unsigned_numbers_refuse(store, dtype, fresh):
    scope = {"torch": torch}
    exec(f"def f(x, c):\n    return {store}", scope)
    for c in (-0.3, -1e-46, -0.9, -0.0, 0.7, -1.0):
        x = torch.arange(4).to(getattr(torch, dtype))
        want, got = (outcome(g, x, c) for g in (scope["f"], fresh.compile(scope["f"])))
        assert str(want) == str(got), c
