"""framejit.grad, value_and_grad, jvp and vmap of NumPy functions, against finite differences in float64 and against loops over samples."""

import dataclasses
import gc
import inspect
import math
import pathlib
import re
import subprocess
import sys
import weakref

import framejit
import numpy as np
import pytest
from framejit import _transforms
from framejit._numpy_derivatives import DERIVATIVES

rng = np.random.default_rng(0)
A, B, V, W = rng.uniform(0.5, 2, (4, 3)), rng.uniform(0.5, 2, (4, 3)), rng.uniform(0.5, 2, 3), rng.uniform(0.5, 2, (3, 5))
SQUARE = rng.uniform(-1, 1, (3, 3)) + 3 * np.eye(3)
POINTS = np.linspace(0, 3, 7)


def steps(x):  # explicit Euler, a loop
    y = x
    for i in range(20):
        y = y + 0.05 * (np.sin(y) - i * 0.01 * y)
    return y.sum()


def stores(x):
    y = np.zeros((5, 3))
    y[1:] = x * 2
    y[0] = x[0] * x[1]
    y[:, 1] *= 3
    y[2, 2] = 7
    return (y * y).sum()


def stores_into_a_copy(x):
    y = x.copy()
    y[0] = y[1] ** 2
    y += 1
    return np.prod(y, axis=1).sum()


def stores_at_indices(x):
    y = np.ones((6, 3))
    y[np.array([4, 0, 2, 5])] = x
    return (y**3).sum()


def stores_under_a_mask(x):
    y = x.copy()
    y[x > 1] = 0
    return (y**2).sum()


def added_at(x):
    y = np.zeros((4, 3))
    np.add.at(y, np.array([1, 1, 0, 3]), x)
    return (y**3).sum()


def put(x):
    y = np.ones(6)
    np.put(y, [4, 1], x[0, :2])
    return (y**2).sum()


def writes_its_argument(x):
    x *= 2
    return (x * x).sum()


def recurrence(x):
    h, out = np.zeros(3), []
    for t in range(x.shape[0]):
        h = np.tanh(x[t] + 0.5 * h)
        out.append(h)
    return (np.stack(out) ** 2).sum()


def branch_on_a_shape(x):
    return x.sum() if x.shape[0] > 10 else (x * x).sum()


FUNCTIONS = {
    "square": (lambda x: (x * x).sum(), A),
    "polynomial": (lambda x: (3 * x**3 - x**2 / 2 + 1).sum(), A),
    "exp log": (lambda x: np.log(np.exp(x) + x).sum(), A),
    "sin cos": (lambda x: (np.sin(x) * np.cos(2 * x)).sum(), A),
    "tan": (lambda x: np.tan(x / 3).sum(), A),
    "arcsin arccos arctan": (lambda x: (np.arcsin(x / 3) + np.arccos(x / 3) * np.arctan(x)).sum(), A),
    "sinh cosh tanh": (lambda x: (np.sinh(x) + np.cosh(x) * np.tanh(x)).sum(), A),
    "arcsinh arccosh arctanh": (lambda x: (np.arcsinh(x) + np.arccosh(x + 1) + np.arctanh(x / 3)).sum(), A),
    "sqrt": (lambda x: np.sqrt(x).sum(), A),
    "cbrt by power": (lambda x: (x ** (1 / 3)).sum(), A),
    "expm1 log1p": (lambda x: (np.expm1(x) * np.log1p(x)).sum(), A),
    "log2 log10 exp2": (lambda x: (np.log2(x) + np.log10(x) + np.exp2(x)).sum(), A),
    "abs sign": (lambda x: (np.abs(x - 1.1) * np.sign(x)).sum(), A),
    "power of two arrays": (lambda x: (x ** (B + x)).sum(), A),
    "divide": (lambda x: (B / x + x / B).sum(), A),
    "remainder": (lambda x: ((x * 3) % 1.1).sum(), A),
    "hypot arctan2": (lambda x: (np.hypot(x, B) + np.arctan2(x, B)).sum(), A),
    "maximum minimum": (lambda x: (np.maximum(x, B) * np.minimum(x, 1.3)).sum(), A),
    "clip": (lambda x: (np.clip(x, 0.8, 1.7) ** 2).sum(), A),
    "where": (lambda x: np.where(x > B, x * x, -x).sum(), A),
    "logaddexp": (lambda x: np.logaddexp(x, B).sum(), A),
    "broadcast a row": (lambda x: (A * x).sum() ** 2, V),
    "broadcast a column": (lambda x: ((x[:, None] + x) ** 3).sum(), V),
    "sum over axes": (lambda x: (x.sum(axis=0) ** 2).sum() + (x.sum(axis=1, keepdims=True) * x).sum(), A),
    "mean var std": (lambda x: x.mean() + (x.var(axis=0) * x.std(axis=0)).sum(), A),
    "prod": (lambda x: np.prod(x, axis=1).sum(), A),
    "max min": (lambda x: x.max(axis=0).sum() * x.min(), A),
    "cumsum": (lambda x: (np.cumsum(x, axis=1) ** 2).sum(), A),
    "norm": (lambda x: np.sqrt((x**2).sum()), A),
    "softmax": (lambda x: (lambda e: (e / e.sum(axis=1, keepdims=True) * B).sum())(np.exp(x - x.max(axis=1, keepdims=True))), A),
    "indexing": (lambda x: x[1, 2] * x[0].sum() + x[-1, ::2].sum() ** 2, A),
    "slices": (lambda x: ((x[1:] - x[:-1]) ** 2).sum() + (x[::-1] * B).sum(), A),
    "indices": (lambda x: (x[np.array([0, 2, 2, 1])] ** 2 * B).sum(), A),
    "take": (lambda x: (np.take(x, [2, 0, 2], axis=1) ** 2).sum(), A),
    "transpose reshape": (lambda x: (x.T.reshape(2, 6) ** 2 @ np.arange(6.0)).sum(), A),
    "concatenate stack": (lambda x: (np.concatenate([x, x * 2], axis=1) ** 2).sum() + np.stack([x, B]).max(axis=0).sum(), A),
    "matmul": (lambda x: ((x @ W) ** 2).sum(), A),
    "matmul on the right": (lambda x: ((A @ x) ** 2).sum(), W),
    "matrix and vector": (lambda x: (SQUARE @ x) @ x, V),
    "dot outer": (lambda x: np.dot(x, V) * np.outer(x, x).sum(), V),
    "einsum": (lambda x: np.einsum("ij,jk,ik->", x, W, np.ones((4, 5))), A),
    "tensordot": (lambda x: (np.tensordot(x, W, axes=1) ** 2).sum(), A),
    "quadratic form": (lambda x: np.trace(x @ x.T), A),
    "stores": (stores, A),
    "stores into a copy": (stores_into_a_copy, A),
    "stores at indices": (stores_at_indices, A),
    "stores under a mask": (stores_under_a_mask, A),
    "writes its argument": (writes_its_argument, A),
    "a loop": (steps, A),
    "a recurrence": (recurrence, A),
    "a branch on a shape": (branch_on_a_shape, A),
    "sort": (lambda x: (np.sort(x, axis=1) * B).sum(), A),
    "inverse": (lambda x: (np.linalg.inv(x) ** 2).sum(), SQUARE),
    "determinant": (lambda x: np.linalg.det(x), SQUARE),
    "log of the determinant": (lambda x: np.linalg.slogdet(x)[1], SQUARE),
    "solve": (lambda x: (np.linalg.solve(x, V) ** 2).sum(), SQUARE),
    "solve for the right side": (lambda x: (np.linalg.solve(SQUARE, x) ** 2).sum(), V),
    "cholesky": (lambda x: (np.linalg.cholesky(x @ x.T + np.eye(3)) ** 3).sum(), SQUARE),
    "interpolation": (lambda x: np.interp(x, POINTS, POINTS**2).sum(), V),
    "padded": (lambda x: (np.pad(x, ((1, 2), (0, 1))) ** 2).sum(), A),
    "einsum of a diagonal": (lambda x: np.einsum("ii,ij->", x, W), SQUARE),
    "einsum without an arrow": (lambda x: (np.einsum("ij,jk", A, x) ** 2).sum(), W),
    "sums of what lies otherwise": (lambda x: (x.T.sum(axis=0) * x[:, ::2].mean(axis=1)).sum() + x.T[::2].max(), A),
    "added at indices": (added_at, A),
    "norms": (lambda x: np.linalg.norm(x) + np.linalg.norm(x, axis=1).sum(), A),
    "convolve": (lambda x: (np.convolve(x, [1.0, 2.0, 0.5]) ** 2).sum() + np.convolve(np.ones(5), x, "same")[1], V),
    "repeat tile roll": (lambda x: (np.repeat(x, 2, axis=0) * np.tile(np.roll(x, 1, axis=1), (2, 1))).sum(), A),
    "cumprod": (lambda x: np.cumprod(x, axis=1).sum(), A - 1),
    "diff": (lambda x: (np.diff(x, axis=0) ** 2).sum(), A),
    "vstack hstack": (lambda x: (np.vstack([x, x]) ** 2).sum() + (np.hstack([x, B]) ** 3).sum(), A),
    "diag": (lambda x: (np.diag(x) ** 2).sum() + (np.diag(x[0]) @ x).sum() + np.diag(x, 1).sum(), SQUARE),
    "inner vdot outer": (lambda x: (np.inner(x, B) ** 2).sum() + np.vdot(x, x) + np.multiply.outer(x, x).sum(), A),
    "cbrt float_power": (lambda x: (np.cbrt(x) + np.float_power(x, 2.5)).sum(), A),
    "reductions of ufuncs": (lambda x: (np.add.reduce(x, axis=1) ** 2).sum() + np.maximum.reduce(x).sum(), A),
    "an array of numbers": (lambda x: (np.array([x[0, 0], x[1, 1] * 2]) ** 2).sum() + np.sum([x[0], x[1]]), A),
    "broadcast_to": (lambda x: (np.broadcast_to(x, (4, 3)) * B).sum() ** 2, V),
    "put": (put, A),
    "polynomials": (lambda x: np.polyval([1.0, 2.0, 3.0], x).sum() + np.trapezoid(x**2), V),
    "along an axis": (lambda x: (np.take_along_axis(x, np.argsort(x, axis=1), axis=1) * np.arange(3.0)).sum(), A),
    "interpolated values": (lambda x: np.interp(V, POINTS[:3], x).sum(), V),
    "float32": (lambda x: (np.sin(x) ** 2).sum(), A.astype(np.float32)),
    "of the shape ()": (lambda x: x * np.exp(x), np.array(0.7)),
    "one element": (lambda x: (x**2).sum(), np.array([0.3])),
    "nothing": (lambda x: (x**2).sum(), np.zeros((0, 3))),
    "Fortran's order": (lambda x: (x * x.sum(axis=0)).sum(), np.asfortranarray(A)),
    "not contiguous": (lambda x: (x**3).sum(), np.tile(A, 2)[:, ::2]),
    "does not depend on it": (lambda x: np.ones(3).sum(), A),
    "depends by its shape": (lambda x: x.sum() * x.size, A),
}


def differences(f, x, h=1e-6):
    x = x.astype(np.float64)
    grad = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[at] += h
        down[at] -= h
        grad[at] = (f(up) - f(down)) / (2 * h)
    return grad


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    f, x = FUNCTIONS[name]
    before, both = x.copy(), framejit.value_and_grad(f)
    for _ in range(3):
        value, grad = both(x)
        assert np.array_equal(x, before)
        loose = x.dtype == np.float32
        np.testing.assert_allclose(value, f(x.copy()), rtol=1e-5 if loose else 1e-12)
        assert isinstance(grad, np.ndarray) and grad.shape == x.shape and grad.dtype == x.dtype
        np.testing.assert_allclose(grad, differences(lambda v: f(v.copy()), x), rtol=1e-3 if loose else 1e-5, atol=1e-6)


def test_there_are_many():
    assert len(FUNCTIONS) >= 80


def test_both_sides_know_the_same_derivatives():
    text = (pathlib.Path(__file__).parents[2] / "src" / "surface" / "numpy_transforms.cc").read_text()
    table = re.search(r"kDerived\[\] = \{(.*?)\};", text, re.S).group(1)
    assert set(re.findall(r'"(.*?)"', table)) == set(DERIVATIVES)


def test_signatures():
    def f(a, b, *, scale=1.0):
        return (a * a * b).sum() * scale, a.sum()

    x, y = A.copy(), B.copy()
    (value, more), (by_y, by_x) = framejit.value_and_grad(f, argnums=(1, 0), has_aux=True)(x, y, scale=2.0)
    np.testing.assert_allclose(value, 2 * (x * x * y).sum())
    np.testing.assert_allclose(more, x.sum())
    np.testing.assert_allclose(by_y, 2 * x * x)
    np.testing.assert_allclose(by_x, 4 * x * y)
    grad, more = framejit.grad(f, argnums=-1, has_aux=True)(x, y)
    np.testing.assert_allclose(grad, x * x)
    np.testing.assert_allclose(more, x.sum())
    assert framejit.grad(f).__name__ == "f"


def test_trees_of_parameters():
    def loss(parameters, x, y):
        h = x
        for layer in parameters["layers"]:
            h = np.tanh(h @ layer["w"] + layer["b"])
        return ((h @ parameters["out"] - y) ** 2).mean()

    parameters = {
        "layers": [{"w": rng.standard_normal((3, 4)), "b": np.zeros(4)}, {"w": rng.standard_normal((4, 4)), "b": np.zeros(4)}],
        "out": rng.standard_normal(4),
    }
    x, y, step = rng.standard_normal((20, 3)), rng.standard_normal(20), framejit.value_and_grad(loss)
    losses = []
    for _ in range(60):
        value, grads = step(parameters, x, y)
        losses.append(value)
        assert set(grads) == {"layers", "out"} and isinstance(grads["layers"], list)
        for layer, grad in zip(parameters["layers"], grads["layers"]):
            for key in layer:
                layer[key] = layer[key] - 0.1 * grad[key]
        parameters["out"] = parameters["out"] - 0.1 * grads["out"]
    assert losses[-1] < 0.5 * losses[0]


def test_numbers():
    f = lambda x: x * x * x  # noqa: E731
    value, grad = framejit.value_and_grad(f)(2.0)
    assert value == 8 and grad == 12 and isinstance(grad, np.floating)
    second = framejit.grad(framejit.grad(f))
    for x in (2.0, 3.0, 0.5, -1.0):
        assert second(x) == pytest.approx(6 * x)
    assert framejit.grad(second)(np.float64(4)) == pytest.approx(6)


def test_second_derivatives_by_arrays():
    def along(x):
        return (framejit.grad(lambda y: (np.sin(y) * y).sum())(x) * V).sum()

    np.testing.assert_allclose(framejit.grad(along)(V), differences(along, V), rtol=1e-5)


def test_sizes_that_change_are_one_version():
    both = framejit.grad(lambda x: (np.sin(x) * x).sum())
    for n in range(3, 60):
        x = np.linspace(0, 1, n)
        np.testing.assert_allclose(both(x), np.cos(x) * x + np.sin(x), atol=1e-12)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: framejit.grad(lambda x: (x * x).sum())(np.arange(3)), TypeError, "int64"),
        (lambda: framejit.grad(lambda x: x * x)(3), TypeError, "not int"),
        (lambda: framejit.grad(lambda x: x * x)(True), TypeError, "not bool"),
        (lambda: framejit.grad(lambda x: abs(x))(np.ones(2, complex)), TypeError, "complex128"),
        (lambda: framejit.grad(lambda x: x * 2)(A), TypeError, r"shape \(4, 3\)"),
        (lambda: framejit.grad(lambda x: (x > 1).sum())(A), TypeError, "int64"),
        (lambda: framejit.grad(lambda x: "text")(A), TypeError, "not str"),
        (lambda: framejit.grad(lambda x: x.sum(), has_aux=True)(A), TypeError, "pair"),
        (lambda: framejit.grad(lambda x: x.sum(), argnums=2)(A), ValueError, "argnums=2"),
        (lambda: framejit.grad(3), TypeError, "not int"),
        (lambda: framejit.jvp(lambda x: x * 2, (A,), (V,)), TypeError, "tangent"),
        (lambda: framejit.jvp(lambda x: x * 2, (A,), (A, A)), TypeError, "structure"),
        (lambda: framejit.jvp(lambda x: x * 2, A, A), TypeError, "tuple"),
        (lambda: framejit.vmap(lambda x, y: x + y)(A, V), ValueError, "sizes"),
        (lambda: framejit.vmap(lambda x: x)(np.ones((0, 3))), ValueError, "sizes"),
        (lambda: framejit.vmap(lambda x: x, in_axes=None)(A), ValueError, "no argument"),
        (lambda: framejit.vmap(lambda x: x, in_axes=2)(A), ValueError, "axis 2"),
        (lambda: framejit.vmap(lambda x: x, in_axes=(0, 0))(A), ValueError, "in_axes"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def no_rule(x):
    y = x * 2
    return np.abs(np.fft.fft(y)).sum()


def by_data(x):
    return x.sum() if x.sum() > 100 else (x * x).sum()


def test_what_has_no_rule_is_named_with_its_line():
    with pytest.raises(framejit.BreakError, match=r"complex values \(.*test_numpy_transforms\.py:\d+\)"):
        framejit.grad(no_rule)(V)
    with pytest.raises(framejit.BreakError, match=r"numpy\.linalg\.eigvalsh.*test_numpy_transforms\.py:\d+"):
        framejit.grad(lambda x: np.linalg.eigvalsh(x).sum())(SQUARE)
    with pytest.raises(framejit.BreakError, match=r"numpy\.linalg\.inv.*test_numpy_transforms\.py:\d+"):
        framejit.vmap(lambda x: np.linalg.inv(x))(np.stack([SQUARE, SQUARE]))


def test_branches_on_data_are_refused():
    with pytest.raises(framejit.BreakError):
        framejit.grad(by_data)(V)


def test_errors_of_the_program_are_its_own():
    f = framejit.grad(lambda x, i: x[i] * 2.0)
    assert f(V, 1)[1] == 2
    for _ in range(6):
        with pytest.raises(IndexError, match="out of bounds"):
            f(V, 7)
    assert f(V, 2)[2] == 2


def test_in_compiled_functions():
    @framejit.compile(fullgraph=True)
    def step(w, x):
        return w - 0.1 * framejit.grad(lambda v: ((x @ v) ** 2).sum())(w)

    w = V.copy()
    for _ in range(3):
        np.testing.assert_allclose(step(w, A), w - 0.2 * A.T @ (A @ w))


def test_under_a_tracer():
    f = framejit.grad(lambda x: (x**2).sum())
    seen = []
    sys.settrace(lambda *args: seen.append(args[1]))
    try:
        grad = f(V)
        assert sys.gettrace() is not None
    finally:
        sys.settrace(None)
    np.testing.assert_allclose(grad, 2 * V)


def test_no_warnings_and_the_callers_error_state():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grad = framejit.grad(lambda x: np.sqrt(x).sum())(np.array([0.0, 1.0]))
    assert grad[0] == np.inf and grad[1] == 0.5


FORWARD = {
    "elements": (lambda x: np.sin(x) * x, (A,)),
    "products": (lambda x, w: x @ w, (A, W)),
    "reductions": (lambda x: (x.sum(axis=0), x.mean()), (A,)),
    "a dict": (lambda p: {"y": p["a"] * p["b"] ** 2}, ({"a": A, "b": B},)),
    "stores": (stores, (A,)),
    "a loop": (steps, (A,)),
    "numbers": (lambda x, y: x**2 * y, (3.0, 4.0)),
    "independent": (lambda x: np.ones(3), (A,)),
    "in part": (lambda x, y: (x * 2, y * 3), (V, V)),
}


@pytest.mark.parametrize("name", FORWARD)
def test_tangents(name):
    f, primals = FORWARD[name]
    leaves = lambda t: sum((leaves(v) for v in (t.values() if isinstance(t, dict) else t)), []) if isinstance(t, (dict, tuple)) else [t]  # noqa: E731

    def like(tree, make):
        if isinstance(tree, dict):
            return {k: like(v, make) for k, v in tree.items()}
        return tuple(like(v, make) for v in tree) if isinstance(tree, tuple) else make(tree)

    direction = like(primals, lambda x: 0.5 if isinstance(x, float) else np.cos(np.arange(x.size)).reshape(x.shape))

    def moved(by):
        flat = iter(leaves(direction))
        return f(*like(primals, lambda x: x + by * next(flat)))

    for _ in range(2):
        value, tangent = framejit.jvp(f, primals, direction)
        expected = [(u - d) / 2e-6 for u, d in zip(leaves(moved(1e-6)), leaves(moved(-1e-6)))]
        for v, w, t, e in zip(leaves(value), leaves(f(*primals)), leaves(tangent), expected):
            np.testing.assert_allclose(v, w, rtol=1e-12)
            assert np.shape(t) == np.shape(v)
            np.testing.assert_allclose(t, e, rtol=1e-5, atol=1e-6)


X, Y = rng.uniform(0.5, 2, (6, 4, 3)), rng.uniform(0.5, 2, (6, 4, 3))
INDICES = rng.integers(0, 4, (6, 2))
BATCHES = {
    "elements": (lambda x: np.sin(x) * 2 + x, (X,), 0),
    "two batches": (lambda x, y: x * y - np.where(x > y, x, 1), (X, Y), 0),
    "one of two": (lambda x, w: x * w + w, (X, A), (0, None)),
    "reductions": (lambda x: (x.sum(), x.sum(axis=0), x.max(axis=-1), x.mean(axis=1, keepdims=True)), (X,), 0),
    "variance": (lambda x: x.var(axis=0) + x.std(), (X,), 0),
    "argmax": (lambda x: x.argmax(axis=1), (X,), 0),
    "cumsum": (lambda x: np.cumsum(x, axis=0), (X,), 0),
    "transposed": (lambda x: x.T.reshape(2, 6), (X,), 0),
    "slices": (lambda x: x[1:, ::-1] - x[:-1], (X,), 0),
    "concatenated": (lambda x: np.concatenate([x, A, x * 2]), (X,), 0),
    "matrix times matrix": (lambda x: x @ W, (X,), 0),
    "on the right": (lambda x: A.T @ x, (X,), 0),
    "both": (lambda x, y: x @ y.T, (X, Y), 0),
    "vectors": (lambda x: SQUARE @ x, (X[:, 0],), 0),
    "dot": (lambda x, y: np.dot(x, y), (X[:, 0], Y[:, 1]), 0),
    "the same rows": (lambda x: x[np.array([3, 0, 0])], (X,), 0),
    "other rows of a table": (lambda i: A[i], (INDICES,), 0),
    "other rows of others": (lambda x, i: x[i], (X, INDICES), 0),
    "other columns": (lambda x, i: np.take(x, i % 3, axis=1), (X, INDICES), 0),
    "stores": (stores, (X,), 0),
    "a loop": (steps, (X,), 0),
    "the second axis": (lambda x: x * 2, (X,), 1),
    "the last axis": (lambda x: x.sum(axis=0), (X,), -1),
    "a dict": (lambda p: {"y": p["a"] * p["b"]}, ({"a": X, "b": Y},), 0),
    "axes of a dict": (lambda p: p["a"] * p["b"], ({"a": X, "b": A},), ({"a": 0, "b": None},)),
    "what is the same": (lambda x: A * 2, (X,), 0),
    "integers": (lambda i: i * 3 // 2, (INDICES,), 0),
}


def one_by_one(f, args, axes):
    axes = axes if isinstance(axes, tuple) else (axes,) * len(args)

    def pick(tree, axis, k):
        if isinstance(tree, dict):
            return {key: pick(v, axis[key] if isinstance(axis, dict) else axis, k) for key, v in tree.items()}
        return tree if axis is None else np.take(tree, k, axis)

    def count(tree, axis):
        if isinstance(tree, dict):
            return max(count(v, axis[key] if isinstance(axis, dict) else axis) for key, v in tree.items())
        return 0 if axis is None else tree.shape[axis]

    def stacked(parts):
        if isinstance(parts[0], tuple):
            return tuple(stacked(p) for p in zip(*parts))
        return {k: stacked([p[k] for p in parts]) for k in parts[0]} if isinstance(parts[0], dict) else np.stack(parts)

    size = max(count(a, axis) for a, axis in zip(args, axes))
    return stacked([f(*(pick(a, axis, k) for a, axis in zip(args, axes))) for k in range(size)])


def same(got, expected):
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for g, e in zip(got, expected):
            same(g, e)
    elif isinstance(expected, dict):
        assert set(got) == set(expected)
        for key in expected:
            same(got[key], expected[key])
    else:
        assert got.shape == expected.shape and got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-10)


@pytest.mark.parametrize("name", BATCHES)
def test_batches(name):
    f, args, axes = BATCHES[name]
    batch = framejit.vmap(f, in_axes=axes)
    for _ in range(2):
        same(batch(*args), one_by_one(f, args, axes))


def test_where_the_batch_lies_in_results():
    assert np.array_equal(framejit.vmap(lambda x: x * 2, out_axes=1)(A), (A * 2).T)
    out = framejit.vmap(lambda x: (x * 2, A.sum()), out_axes=(-1, None))(X)
    assert out[0].shape == (4, 3, 6) and out[1] == pytest.approx(A.sum())


def test_gradients_of_samples_and_of_batches():
    def loss(w, x, y):
        return ((x @ w - y) ** 2).sum()

    x, y = rng.standard_normal((8, 3)), rng.standard_normal(8)
    each = framejit.vmap(framejit.grad(loss), in_axes=(None, 0, 0))(V, x, y)
    np.testing.assert_allclose(each, 2 * x * (x @ V - y)[:, None])
    whole = framejit.grad(lambda w: framejit.vmap(loss, in_axes=(None, 0, 0))(w, x, y).sum())(V)
    np.testing.assert_allclose(whole, each.sum(axis=0))


def test_jacobians():
    f = lambda x: np.sin(x) * x.sum()  # noqa: E731
    forward = framejit.vmap(lambda t: framejit.jvp(f, (V,), (t,))[1], out_axes=1)(np.eye(3))
    expected = np.stack([differences(lambda x: f(x)[i], V) for i in range(3)])
    np.testing.assert_allclose(forward, expected, rtol=1e-5)


def test_one_sample_after_the_other_is_no_new_code():
    batch = framejit.vmap(lambda x: math.pi * x.sum())
    for n in range(2, 40):
        assert batch(np.ones((n, 3))).shape == (n,)


# What a call says in its keywords counts: each has a derivative that is right, or is an error that names it.
HALF = np.array([[True, False, True], [False, True, True], [True, True, True], [False, True, False]])


def put_clipped(x):
    y = np.zeros(4)
    np.put(y, [9, -5, 1], x[0], mode="clip")
    return (y * np.arange(1.0, 5)).sum()


def stored_list(x):
    y = np.zeros(3)
    y[[2, 0]] = [x[0, 0] ** 2, x[1, 1]]
    return (y * np.arange(1.0, 4)).sum()


ARGUMENTS = {
    "interp xp": (lambda x: np.interp(x[0], x[1:3], np.array([1.0, 3.0])), np.array([0.5, 0.0, 2.0])),
    "interp left right": (lambda x: (np.interp([-1.0, 0.3, 5.0], [0.1, 0.5, 2], x[:3], left=x[3], right=x[4]) * x[5]).sum(), np.arange(1.0, 7)),
    "interp beyond": (lambda x: (np.interp([-1.0, 9.0, 1.0], np.cumsum(x), x**2) * np.arange(1.0, 4)).sum(), np.array([0.5, 1.2, 0.7])),
    "pad constant_values": (lambda x: (np.pad(x, (2, 1), constant_values=x[0, 0]) * np.arange(42.0).reshape(7, 6)).sum(), A),
    "pad two constant_values": (lambda x: (np.pad(x, 1, constant_values=(x[0, 0], x[1, 1])) * np.arange(30.0).reshape(6, 5)).sum(), A),
    "pad all constant_values": (
        lambda x: (np.pad(x, 1, constant_values=((x[0, 0], x[1, 1]), (x[2, 0], 1.0))) * np.arange(30.0).reshape(6, 5)).sum(), A,
    ),
    "add.reduce where": (lambda x: (np.add.reduce(x * x, where=HALF) * V).sum(), A),
    "add.reduce initial": (lambda x: (np.add.reduce(x * x, axis=1, initial=x[0, 0]) ** 2).sum(), A),
    "sum where initial": (lambda x: (np.sum(x * x, axis=0, where=HALF, initial=x[1, 1]) * V).sum(), A),
    "mean where": (lambda x: (np.mean(x * x, axis=0, where=HALF) * V).sum(), A),
    "maximum.reduce where initial": (lambda x: (np.maximum.reduce(x * x, where=HALF, initial=1.0) * V).sum(), A),
    "maximum.reduce initial": (lambda x: (np.maximum.reduce(x, initial=x[0, 0] + 1) * V).sum(), A),
    "minimum.reduce initial": (lambda x: (np.minimum.reduce(x, axis=1, initial=0.8) ** 2).sum(), A),
    "max initial": (lambda x: np.max(x, axis=0, initial=1.5).sum(), A),
    "take clip": (lambda x: (np.take(x, [50, -9, 3], mode="clip") * V).sum(), A),
    "take clip axis": (lambda x: (x.take([5, -7, 1], axis=1, mode="clip") * np.arange(12.0).reshape(4, 3)).sum(), A),
    "put clip": (put_clipped, A),
    "a list stored": (stored_list, A),
    "heaviside of zero": (lambda x: (np.heaviside(np.array([0.0, 1.0, 0.0]), x) * V).sum(), A),
    "cholesky of the upper triangle": (
        lambda x: (np.linalg.cholesky(x @ x.T + np.eye(3), upper=True) * np.arange(9.0).reshape(3, 3)).sum(), SQUARE,
    ),
    "sort of all": (lambda x: (np.sort(x, axis=None) * np.arange(12.0)).sum(), A),
    "determinant of a singular matrix": (lambda x: np.linalg.det(x), np.array([[1.0, 2.0], [2.0, 4.0]])),
    "determinant of zeros": (lambda x: np.linalg.det(x) + x.sum(), np.zeros((3, 3))),
    "determinants": (lambda x: (np.linalg.det(x) * np.array([1.0, 2.0])).sum(), np.stack([SQUARE, np.ones((3, 3))])),
    "solve for one vector": (lambda x: (np.linalg.solve(x, V) ** 2).sum(), np.stack([SQUARE, SQUARE.T, np.eye(3)])),
    "array of more dimensions": (lambda x: (np.array([x[0, 0], x[1, 1]], ndmin=3) ** 2).sum(), A),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_calls_count(name):
    f, x = ARGUMENTS[name]
    if "upper" in name and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("this NumPy has no upper=")
    for _ in range(2):
        value, grad = framejit.value_and_grad(f)(x)
        np.testing.assert_allclose(value, f(x.copy()), rtol=1e-12)
        np.testing.assert_allclose(grad, differences(f, x), rtol=1e-5, atol=1e-6)


REFUSED = {
    "numpy.linalg.norm": lambda x: np.linalg.norm(x[0], 3),
    "numpy.linalg.norm ": lambda x: np.linalg.norm(x, 2),
    "numpy.linalg.norm  ": lambda x: np.linalg.norm(x, 2, axis=(0, 1)),
    "numpy.pad": lambda x: np.pad(x, 1, mode="reflect").sum(),
    "numpy.interp": lambda x: np.interp(x, [0.0, 1.0], [0.0, 1.0], period=2.0).sum(),
    "numpy.einsum": lambda x: np.einsum("...i,...i", x, x).sum(),
    "numpy.linalg.slogdet": lambda x: np.linalg.slogdet(x[:3] * 0)[1],
}


@pytest.mark.parametrize("name", REFUSED)
def test_forms_without_a_rule_are_named_with_their_line(name):
    for _ in range(2):
        with pytest.raises(framejit.BreakError, match=rf"{re.escape(name.strip())}.*test_numpy_transforms\.py:\d+"):
            framejit.grad(REFUSED[name])(A)


@pytest.mark.parametrize("name", DERIVATIVES)
def test_no_rule_swallows_keywords(name):
    assert not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(DERIVATIVES[name]).parameters.values())


@dataclasses.dataclass(frozen=True)
class Weighted:
    name: str
    w: np.ndarray = dataclasses.field(compare=False)

    def __call__(self, x):
        return (x * self.w).sum()

    def method(self, x):
        return (x * self.w).sum()


class AlwaysEqual(Weighted):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


@pytest.mark.parametrize("kind", [Weighted, AlwaysEqual])
def test_equal_callables_are_not_one(kind):
    for k in (1.0, 5.0, 1.0):
        f, ones = kind("a", np.full(2, k)), np.ones(2)
        for g in (f, f.method):
            assert framejit.grad(g)(ones).tolist() == [k, k]
            assert framejit.vmap(g)(np.ones((3, 2))).tolist() == [2 * k] * 3
            assert framejit.jvp(g, (ones,), (ones,))[1] == 2 * k


def test_functions_are_not_kept_alive():
    class Large:
        factor = 2.0

    def make():
        large = Large()

        def f(x):
            return (x * large.factor).sum()

        framejit.grad(f)(V)
        framejit.vmap(f)(A)
        framejit.jvp(f, (V,), (V,))
        return weakref.ref(f)

    made = make()
    gc.collect()
    assert made() is None


def test_one_function_is_compiled_once():
    f = lambda x: (x**2).sum()  # noqa: E731
    framejit.grad(f)(V)
    kept = _transforms._compiled.get(f)
    assert len(kept) == 1
    compiled = next(iter(kept.values()))
    for _ in range(3):
        framejit.grad(f)(V)
    assert next(iter(kept.values())) is compiled and len(kept) == 1
    assert framejit.cache_info(compiled)["segments"] == 1


SHARED, KEPT = np.zeros(3), []


def writes_a_global(x):
    SHARED[:] = x
    return x


def writes_a_constant_into_a_global(x):
    SHARED[0] = 1.0
    return x


def writes_the_shared(x, y):
    y[0] = x[0]
    return y * 1.0


def appends(x):
    KEPT.append(x * 2)
    return x


class Holder:
    kept = None


HOLDER = Holder()


def stores_an_attribute(x):
    HOLDER.kept = x.sum()
    return x


def inner_batch_writes_what_its_samples_share(x):
    y = x.copy()

    def inner(z):
        y[0] = z
        return z

    return framejit.vmap(inner)(x) + y


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: framejit.vmap(writes_a_global)(A), "all samples share"),
        (lambda: framejit.vmap(writes_a_constant_into_a_global)(A), "all samples share"),
        (lambda: framejit.vmap(writes_the_shared, in_axes=(0, None))(A, V.copy()), "all samples share"),
        (lambda: framejit.vmap(inner_batch_writes_what_its_samples_share)(A), "all samples share"),
        (lambda: framejit.vmap(appends)(A), "an array of one sample"),
        (lambda: framejit.vmap(stores_an_attribute)(A), "an array of one sample"),
        (lambda: framejit.vmap(lambda x: x + np.random.rand())(A), "a draw in framejit.vmap"),
        (lambda: framejit.vmap(lambda x: x + np.random.rand(3))(A), "a draw in framejit.vmap"),
    ],
)
def test_what_samples_would_share_is_an_error(call, text):
    state = np.random.get_state()
    for _ in range(2):
        with pytest.raises(framejit.BreakError, match=text):
            call()
    assert not KEPT and HOLDER.kept is None and not SHARED.any()
    now = np.random.get_state()
    assert state[2] == now[2] and np.array_equal(state[1], now[1])


def test_writes_within_a_sample_are_its_own():
    def f(x, w):
        y, scratch = x, np.zeros(3)
        y[0] = w[1]
        scratch[1:] = y[:2]
        return scratch + y

    x = A.copy()
    same(framejit.vmap(f, in_axes=(0, None))(x, V), np.stack([f(row.copy(), V) for row in A]))
    assert np.array_equal(x, A)


def test_one_result_for_all_samples_must_be_the_same():
    with pytest.raises(ValueError, match="differs from sample to sample"):
        framejit.vmap(lambda x: x.sum(), out_axes=None)(A)
    assert framejit.vmap(lambda x, w: w.sum(), in_axes=(0, None), out_axes=None)(A, V) == pytest.approx(V.sum())


def test_without_torch():
    program = """
import sys
sys.modules["torch"] = None
import framejit, numpy as np
x = np.linspace(0, 1, 5)
assert np.allclose(framejit.grad(lambda v: (np.sin(v) * v).sum())(x), np.cos(x) * x + np.sin(x))
assert np.allclose(framejit.grad(lambda v: v[np.array([1, 1])].sum())(x), [0, 2, 0, 0, 0])
assert np.allclose(framejit.vmap(lambda v: v.sum())(np.ones((3, 2))), 2)
assert np.allclose(framejit.jvp(np.sin, (x,), (np.ones(5),))[1], np.cos(x))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
