"""Calls of NumPy that are computed in framejit's own code: NumPy's results to the last bit, and NumPy itself where the arguments are others."""

import numpy as np
import pytest

import framejit

RNG = np.random.default_rng(5)
X = RNG.random(70_001) * 3 - 1
W = RNG.normal(size=X.size)
WHOLE = np.floor(RNG.random(5000) * 40)  # on the edges

OWN = {
    "plain": (lambda a, w: np.histogram(a, 100), X, W),
    "default bins": (lambda a, w: np.histogram(a), X, W),
    "weights": (lambda a, w: np.histogram(a, bins=1000, weights=w), X, W),
    "both": (lambda a, w: (np.histogram(a, 30)[0], np.histogram(a, 30, weights=w)[0]), X, W),
    "on edges": (lambda a, w: np.histogram(a, 39, weights=w), WHOLE, W[: WHOLE.size]),
    "on edges of a range": (lambda a, w: np.histogram(a, 20, range=(0, 20), weights=w), WHOLE, W[: WHOLE.size]),
    "a range": (lambda a, w: np.histogram(a, 64, (-0.5, 1.25), None, w), X, W),
    "a range of one number": (lambda a, w: np.histogram(a, 7, range=(0.5, 0.5)), X, W),
    "one number": (lambda a, w: np.histogram(a, 7), np.full(33, 2.5), W[:33]),
    "few bins": (lambda a, w: np.histogram(a, 1, weights=w), X[:5], W[:5]),
    "float32": (lambda a, w: np.histogram(a, 100, weights=w), X.astype(np.float32), W),
    "float32 and many bins": (lambda a, w: np.histogram(a, 20_000), X.astype(np.float32), W),
    "far from zero": (lambda a, w: np.histogram(a, 1000, weights=w), X + 1e12, W),
    "close to the last place": (lambda a, w: np.histogram(a, 9), 2.0**53 + np.arange(0, 40, 2.0), W[:20]),
    "not a number beside the range": (lambda a, w: np.histogram(a, 8, range=(0, 1)), np.r_[X, np.nan, np.inf, 1e300], W),
    "two axes": (lambda a, w: np.histogram(a, 12, weights=w), X[:600].reshape(20, 30), W[:600].reshape(20, 30)),
    "very many": (lambda a, w: np.histogram(a, 50, weights=w), np.tile(X, 16), np.tile(W, 16)),
    "tiny": (lambda a, w: np.histogram(a, 5), X * 1e-300, W),
}  # fmt: skip
NUMPYS = {
    "integers": (lambda a, w: np.histogram(a, 10), np.arange(50), W),
    "every second": (lambda a, w: np.histogram(a, 10), X[::2], W),
    "density": (lambda a, w: np.histogram(a, 10, density=True), X, W),
    "whole weights": (lambda a, w: np.histogram(a, 10, weights=w), X, np.arange(X.size)),
    "weights without end": (lambda a, w: np.histogram(a, 10, weights=w), X, np.r_[W[1:], np.inf]),
    "zero is the last edge": (lambda a, w: np.histogram(a, 10), np.r_[X - 2.5, -0.0], W),
}


@pytest.fixture
def counted(monkeypatch):
    """NumPy's histogram counts by np.bincount."""
    calls = []
    bincount = np.bincount
    monkeypatch.setattr(np, "bincount", lambda *a, **k: (calls.append(1), bincount(*a, **k))[1])
    return calls


def same(x, y):
    if isinstance(x, tuple):
        return len(x) == len(y) and all(map(same, x, y))
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def check(case, counted):
    f, a, w = case
    expected = f(a, w)
    numpys = len(counted)
    assert numpys
    compiled = framejit.compile(f)
    for _ in range(4):
        counted.clear()
        assert same(compiled(a, w), expected)
    assert compiled.cache_info()["segments"] == 1
    return len(counted) / numpys


@pytest.mark.parametrize("name", OWN)
def test_histograms_are_numpys_without_numpy(name, counted):
    assert check(OWN[name], counted) == 0


@pytest.mark.parametrize("name", NUMPYS)
def test_other_histograms_are_left_to_numpy(name, counted):
    assert check(NUMPYS[name], counted) == 1


@pytest.mark.parametrize("call", ["np.histogram(np.r_[x, np.nan], 5)", "np.histogram(x, 0)", "np.histogram(x, 5, (2, 1))", "np.histogram(x, 5, weights=x[1:])",
                                  "np.histogram(x, 500, (1, 1.0000000000000002))", "np.histogram(np.r_[-1e308, 1e308], 3)"])  # fmt: skip
def test_errors_and_warnings_are_numpys(call):
    scope = {}
    exec(f"def f(x):\n    return {call}", {"np": np}, scope)
    compiled = framejit.compile(scope["f"])

    def outcome(g):
        with pytest.warns() as told:  # at least one, so that there is something to compare
            import warnings

            warnings.warn("the first", stacklevel=1)
            try:
                result = g(X)
            except Exception as e:
                result = (type(e), str(e))
        return repr(result), [str(w.message) for w in told]

    expected = outcome(scope["f"])
    for _ in range(4):
        assert outcome(compiled) == expected
