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


MASKS = {
    "few": X > 1.999, "half": RNG.random(X.size) < 0.5, "most": X > -0.999, "none": X > 9, "all": X < 9, "the last": np.arange(X.size) == X.size - 1,
    "stretches": np.arange(X.size) // 1000 % 2 == 0, "other bytes": (np.arange(X.size) % 7).astype(np.uint8).view(bool), "short": X[:5] > 0, "empty": X[:0] > 0,
}  # fmt: skip
KINDS = [np.float64, np.float32, np.float16, np.int8, bool, np.uint64, np.complex64, np.complex128]


@pytest.mark.parametrize("mask", MASKS)
def test_elements_that_a_mask_chooses(mask):
    m = MASKS[mask]
    compiled = framejit.compile(lambda a, m: a[m])
    for kind in KINDS:
        a = (X[: m.size] * 50).astype(kind)
        for _ in range(2):
            assert same(compiled(a, m), a[m])
    made = framejit.compile(lambda a, b: (a * 2)[np.logical_or(a > b, a < -b)] + 1)
    a = X[: m.size].reshape(-1, 5) if m.size % 5 == 0 else X[: m.size]
    for b in 0.25, 0.5, 5.0:
        assert same(made(a, b), (a * 2)[np.logical_or(a > b, a < -b)] + 1)
    assert made.cache_info()["outcomes"]["run"].get("graph", 0) >= 1


@pytest.mark.parametrize("a, m", [(X[::2], X[::2] > 0), (X.reshape(-1, 1), X > 0), (X[:60].reshape(6, 10), RNG.random(6) > 0.5), (X[:60].reshape(6, 10).T, (X[:60] > 0).reshape(10, 6)),
                                  (X[:8], np.array([3, 5, 3])), (X[:8], np.array(True)), (np.array(3.5), np.array(True)), (X.astype(">f8"), X > 0)])  # fmt: skip
def test_other_items_are_numpys(a, m):
    compiled = framejit.compile(lambda a, m: a[m])
    for _ in range(3):
        got, expected = compiled(a, m), a[m]
        assert same(got, expected) and got.strides == expected.strides


def test_masks_that_do_not_fit():
    compiled = framejit.compile(lambda a, m: a[m] * 2)
    assert same(compiled(X, X > 0), X[X > 0] * 2)
    with pytest.raises(IndexError, match="boolean index did not match"):
        compiled(X, X[1:] > 0)


@pytest.mark.parametrize("least", [0.9, 0.1])
def test_what_masks_choose_is_gone_before_the_next_one(least, fresh):
    """Ten masks, and what they choose, in one graph: two at once are kept, of what was chosen as many."""
    import tracemalloc

    def f(a, x, least):
        total = 0.0
        for k in range(10):
            total += a[np.logical_and(x > least, x < 2.0 + k)].sum()
        return total

    a = RNG.random(400_000)
    least = np.float64(least)
    expected = f(a, a, least)
    with framejit.config.patch(leave=False):
        compiled = framejit.compile(f)
        assert compiled(a, a, least) == expected
        tracemalloc.start()
        assert compiled(a, a, least) == expected
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    info = compiled.cache_info()
    assert info["segments"] == 1 and info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 2}
    assert peak < 3 * (a.nbytes * (1 - least) + a.size) + 100_000


def definite(n, dtype=np.float64):
    r = np.random.default_rng(n)
    b = r.normal(size=(n, n))
    return (b @ b.T + n * np.eye(n)).astype(dtype)


def factor(a):
    return np.linalg.cholesky(a)


@pytest.fixture
def factored(monkeypatch):
    from numpy.linalg import _umath_linalg

    calls = []
    numpys = _umath_linalg.cholesky_lo
    monkeypatch.setattr(_umath_linalg, "cholesky_lo", lambda *a, **k: (calls.append(1), numpys(*a, **k))[1])
    return calls


MATRICES = {
    **{f"of {n}": definite(n) for n in (2, 3, 7, 8, 9, 16, 65, 200, 515)},
    "a part of rows": definite(40)[:, :40][:30, :30],
    "one half decides": np.tril(definite(50)) + np.triu(np.full((50, 50), np.nan), 1),
    "tiny": definite(20) * 1e-300,
    "not a number": definite(30) * np.nan,
}
OTHERS = {
    "one": definite(1), "none": definite(0), "columns": np.asfortranarray(np.tril(definite(30))), "backwards": definite(30)[::-1, ::-1],
    "every second": definite(30)[::2, ::2], "float32": definite(30, np.float32), "complex": definite(30, np.complex128), "integers": np.eye(4, dtype=int),
    "several": np.stack([definite(5), definite(5) * 2]), "not definite": -definite(30), "not square": np.ones((3, 4)),
}  # fmt: skip


def outcome(f, a):
    try:
        x = f(a)
    except Exception as e:
        return type(e), str(e)
    return x.dtype, x.shape, x.strides, x.tobytes(), x.flags.owndata, x.flags.writeable


@pytest.mark.parametrize("name", MATRICES)
def test_factors_are_numpys_without_numpy(name, factored):
    a = MATRICES[name]
    given, expected = a.copy(), outcome(factor, a)
    assert factored
    compiled = framejit.compile(factor)
    for _ in range(3):
        factored.clear()
        assert outcome(compiled, a) == expected
        assert a.tobytes() == given.tobytes()
    assert not factored


@pytest.mark.parametrize("name", OTHERS)
def test_other_factors_are_left_to_numpy(name, factored):
    a = OTHERS[name]
    expected, numpys = outcome(factor, a), len(factored)
    compiled = framejit.compile(factor)
    for _ in range(3):
        factored.clear()
        assert outcome(compiled, a) == expected
    assert len(factored) >= numpys


def test_a_factor_beside_what_is_computed(factored):
    def f(a):
        a[:] = np.linalg.cholesky(a) + np.triu(a, k=1)

    compiled = framejit.compile(f)
    for n in 30, 30, 31, 64, 30:
        a, b = definite(n), definite(n)
        f(a)
        factored.clear()
        compiled(b)
        assert a.tobytes() == b.tobytes()
    assert not factored
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        compiled(b := -definite(30))
    assert b.tobytes() == (-definite(30)).tobytes()
