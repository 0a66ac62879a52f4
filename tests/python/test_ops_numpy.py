"""NumPy operations, one expression a row, over the operands of op_samples.py: value, dtype, shape, strides, aliasing, and
whether the result is an array or a scalar."""

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")
from op_samples import NUMPY, check  # noqa: E402

UNARY = ["f", "f32", "t", "step", "i", "i32", "b", "v", "scalar", "zero"]
PAIRS = [("f", "g"), ("f", "t"), ("f", "f32"), ("f32", "i32"), ("i", "i32"), ("b", "i"), ("f", "col"), ("f", "scalar"), ("f32", "scalar"), ("v", "f"),
         ("b", "b"), ("step", "t")]

ELEMENTWISE = """
np.exp(a) | np.expm1(a) | np.sqrt(a) | np.sin(a) | np.cos(a) | np.tanh(a) | np.arctan(a) | np.abs(a) | np.negative(a) | -a | np.square(a)
np.floor(a) | np.ceil(a) | np.trunc(a) | np.rint(a) | np.sign(a) | np.isnan(a) | np.isfinite(a) | np.logical_not(a) | np.log(np.abs(a) + 1)
a + 1 | a + 1.5 | 2 - a | a * 3 | a / 2 | 2 / a | a // 2 | a % 3 | a ** 2 | a ** 0.5 | a > 0 | a == 1 | np.maximum(a, 1) | np.where(a > 0, a, 0)
np.where(a > 0, 1.0, 0.0) | np.clip(a, 0, 1) | np.zeros_like(a) | np.ones_like(a) | np.full_like(a, 2) | np.sum(a) | a.sum() | np.sum(a, axis=0)
np.sum(a, axis=-1, keepdims=True) | np.mean(a) | a.mean(axis=0) | np.max(a) | a.min(axis=-1) | np.prod(a) | np.any(a) | np.all(a, axis=0) | np.argmax(a)
a.argmin(axis=0) | np.var(a) | np.std(a, axis=-1) | np.var(a, ddof=1) | np.cumsum(a, axis=0) | np.cumsum(a) | a.astype(np.float32) | a.astype(np.int64)
"""
SHAPING = """
a.T | a.reshape(-1) | a.reshape(2, -1) | np.ravel(a) | np.transpose(a) | a.flatten() | a[None] | a[:, None] | a[0] | a[-1] | a[1:] | a[:, ::2] | a[::-1]
a[..., 0] | a[0, 1] | a[:, 1:3] | a[::-2, ::-1] | a[()] | np.expand_dims(a, 0) | np.squeeze(a[:1]) | np.swapaxes(a, 0, 1) | np.moveaxis(a, 0, 1)
np.concatenate([a, a]) | np.concatenate((a, a), axis=-1) | np.stack([a, a]) | np.stack((a, a), axis=-1) | np.flip(a, 0) | np.tril(a) | a.copy() | np.split(a, [1])
"""
BINARY = """
a + b | a - b | a * b | a / b | a ** 2 + b | a < b | np.maximum(a, b) | np.minimum(a, b) | np.hypot(a, b) | np.arctan2(a, b) | np.where(a > b, a, b)
np.logical_and(a, b) | np.equal(a, b) | np.copysign(a, b) | np.fmax(a, b) | a @ b.T | np.dot(a, b.T) | np.matmul(a, b.T)
"""
WRITES = {
    "a += 1; a": ["f", "f32", "i", "t", "step"],
    "a[[1, 0]] * 2": ["f", "t", "i"],
    "a[:, [0, 2, -1]]": ["f", "t"],
    "a[[7]]": ["f"],
    "y = a[1:]; y *= 2; a.sum()": ["f", "t", "i"],
    "a[0] = 5; a[:, ::2] = 0; a": ["f", "t", "i", "b"],
    "a[a > 0] = -1; a": ["f", "i", "t"],
    "b = a[::-1]; b += a; a": ["f", "v"],
    "t = a.T; t[0] = 1; t, a": ["f", "t"],
    "c = a.copy(); c -= 1; a, c": ["f", "t"],
    "a[:, 0] = a[:, 1]; a": ["f", "i"],
}


def rows(text):
    return [e.strip() for line in text.strip().splitlines() for e in line.split(" | ")]


@pytest.mark.parametrize("source", rows(ELEMENTWISE))
def test_elementwise(fresh, source):
    for name in UNARY:
        check(fresh, source, "a", [NUMPY[name]], captured=name == "f")


@pytest.mark.parametrize("source", rows(SHAPING))
def test_shaping(fresh, source):
    for name in ["f", "f32", "t", "step", "i", "b", "v"]:
        check(fresh, source, "a", [NUMPY[name]], captured=False)


@pytest.mark.parametrize("source", rows(BINARY))
def test_binary(fresh, source):
    for pair in PAIRS:
        check(fresh, source, "ab", [NUMPY[n] for n in pair], captured=False)


@pytest.mark.parametrize("source", WRITES)
def test_writes(fresh, source):
    for name in WRITES[source]:
        check(fresh, source, "a", [NUMPY[name]], captured=False)


@pytest.mark.parametrize("source", ["scipy.special.erf(a)", "scipy.special.expit(a) * 2"])
def test_scipy(fresh, source):
    pytest.importorskip("scipy")
    for name in ["f", "f32", "i", "t"]:
        check(fresh, source, "a", [NUMPY[name]], captured=False)


def test_caught_exception_in_numpy(fresh):
    for name in ["f", "t", "i", "v"]:
        check(fresh, "np.array_split(a, 2)", "a", [NUMPY[name]], captured=False)
