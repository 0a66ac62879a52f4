"""Small products of NumPy's arrays: the bits, the warnings and the errors of np.matmul, without the arrays that a call of it wants."""

import tracemalloc
import warnings

import numpy as np
import pytest


def product(a, b):
    return a @ b


def told(f, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = f(*args)
    return [(w.category, str(w.message)) for w in caught], np.asarray(result)


def layouts(rng, rows, columns, dtype):
    """The same sizes, in memory in several ways."""
    wide = rng.random((2 * rows + 1, 2 * columns + 1)).astype(dtype)
    yield np.ascontiguousarray(wide[:rows, :columns])
    yield np.asfortranarray(wide[:rows, :columns])
    yield wide[: 2 * rows : 2, : 2 * columns : 2]
    yield wide[:rows, :columns][::-1, ::-1]
    yield np.broadcast_to(wide[0, :columns], (rows, columns))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sizes", [(1, 600, 1), (7, 70, 3), (1, 90, 40), (40, 65, 1), (16, 66, 8), (40, 67, 42)])
def test_bits(fresh, sizes, dtype):
    """Of vectors of more than 64 elements: shorter ones are for framejit's own loop."""
    rng = np.random.default_rng(3)
    rows, inner, columns = sizes
    with fresh.config.patch(leave=False, max_entries=1000):
        compiled = fresh.compile(product)
        for a in layouts(rng, rows, inner, dtype):
            for b in layouts(rng, inner, columns, dtype):
                for x, y in [(a, b), (a[0], b), (a, b[:, 0]), (a[0], b[:, 0]), (a, a.T), (np.stack([a, a + 1]), np.stack([b, b]))]:
                    expected, result = product(x, y), compiled(x, y)
                    assert type(result) is type(expected) and np.asarray(result).tobytes() == np.asarray(expected).tobytes()
    assert compiled.cache_info()["breaks"] == 0


def test_no_elements_and_what_is_not_aligned(fresh):
    shifted = np.zeros(8 * 12 + 1, np.uint8)[1:].view(np.float64).reshape(3, 4)
    shifted[:] = np.arange(12.0).reshape(3, 4)
    assert not shifted.flags.aligned
    compiled = fresh.compile(product)
    for a, b in [(np.ones((0, 3)), np.ones((3, 2))), (np.ones((3, 0)), np.ones((0, 2))), (shifted, np.ones((4, 2))), (np.ones((2, 3)), shifted)]:
        for _ in range(3):
            assert compiled(a, b).tobytes() == product(a, b).tobytes()


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e300, 1e-300])
def test_what_is_told(fresh, value):
    a, b = np.ones((4, 70)), np.ones((70, 5))
    a[1, 3], b[3, 2], b[3, 4] = value, value, -value
    with fresh.config.patch(leave=False):
        compiled = fresh.compile(product)
        for _ in range(3):
            expected, result = told(product, a, b), told(compiled, a, b)
            assert result[0] == expected[0] and result[1].tobytes() == expected[1].tobytes()
        assert compiled.cache_info()["segments"] == 1
    for how in ("raise", "ignore"):
        with np.errstate(all=how):
            raised = []
            for f in (product, fresh.compile(product)):
                try:
                    raised.append(f(a, b).tobytes())
                except FloatingPointError as e:
                    raised.append(str(e))
            assert raised[0] == raised[1]


def test_no_arrays_are_made_for_it(fresh):
    """The peak of memory of a compiled call is below that of NumPy's, which makes fewer objects than np.matmul with `out` would here."""
    a = np.random.default_rng(5).random((20, 20))
    with fresh.config.patch(leave=False):
        compiled = fresh.compile(product)
        for _ in range(40):
            compiled(a, a), product(a, a)

        def peak(f):
            f(a, a)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            result = f(a, a)
            return tracemalloc.get_traced_memory()[1] - before, result

        tracemalloc.start()
        try:
            peaks = [min(peak(f)[0] for _ in range(5)) for f in (product, compiled)]
        finally:
            tracemalloc.stop()
    assert compiled.cache_info()["segments"] == 1
    assert peaks[1] <= a.nbytes + 420, peaks
