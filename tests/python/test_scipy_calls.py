"""Functions of SciPy that compute are one call of the graph each, beside NumPy's own; what may warn, writes or asks data is not."""

import warnings

import numpy as np
import pytest

scipy = pytest.importorskip("scipy")
from scipy import fft, integrate, linalg, ndimage, signal  # noqa: E402
from scipy.spatial import distance  # noqa: E402


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def filtered(x):
    b, a = signal.butter(3, 0.2)
    return signal.filtfilt(b, a, x, padlen=3), signal.hilbert(signal.detrend(x)).imag * 2, signal.savgol_filter(x, 5, 2)


def sections(x):
    sos = signal.butter(4, [0.1, 0.4], btype="bandpass", output="sos")
    y, z = signal.sosfilt(sos, x, zi=signal.sosfilt_zi(sos) * x[0])
    return y + 1, z, signal.sosfiltfilt(sos, x, padlen=2)


def spectra(x):
    f = fft.rfft(x * 2)
    return fft.irfft(f * np.exp(-np.arange(f.shape[0])), n=x.shape[0]), fft.dct(x, norm="ortho"), fft.fftshift(fft.fft(x)).real, np.abs(f)


def matrices(a):
    p, low, up = linalg.lu(a)
    return linalg.expm(a / 10) + 1, linalg.det(a), p @ low @ up, linalg.svdvals(a), linalg.block_diag(a, a[:1])


def images(a):
    return ndimage.gaussian_filter(ndimage.sobel(a), 1.0) * 2, ndimage.zoom(a, 2), ndimage.maximum_filter(a, size=3)


def sums(x):
    return integrate.simpson(x * x, dx=0.1), integrate.cumulative_trapezoid(x, initial=0) + 1


def distances(a):
    return distance.cdist(a, a[::-1] * 2, "cityblock"), distance.pdist(a[:5] + 1).sum()


def complex_number(x):
    z = np.sum(fft.fft(x)) / 3
    return np.real(z) + np.imag(z), z.real * x


PROGRAMS = {
    "filtered": (filtered, lambda n: (array(4 * n),)),
    "sections": (sections, lambda n: (array(4 * n),)),
    "spectra": (spectra, lambda n: (array(2 * n),)),
    "matrices": (matrices, lambda n: (array(n, n),)),
    "images": (images, lambda n: (array(n, n + 1),)),
    "sums": (sums, lambda n: (array(n),)),
    "distances": (distances, lambda n: (array(n, 3),)),
    "complex number": (complex_number, lambda n: (array(n),)),
}


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif isinstance(a, (np.ndarray, np.generic)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    else:
        assert a == b


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name, fresh):
    f, make = PROGRAMS[name]
    compiled = fresh.compile(f)
    for n in (6, 6, 9, 7, 6):
        args = make(n)
        kept = [a.copy() for a in args]
        same(compiled(*args), f(*make(n)))
        same(list(args), kept)
    assert fresh.cache_info(compiled)["breaks"] == 0
    assert len(compiled.graphs) > 0


def test_spectra_of_one_size(fresh):
    def f(x):
        return signal.welch(x, nperseg=8)[1] * 2, signal.periodogram(x)[1], signal.spectrogram(x, nperseg=8)[2] + 1

    compiled = fresh.compile(f)
    for seed in range(3):
        same(compiled(array(24, seed=seed)), f(array(24, seed=seed)))
    assert fresh.cache_info(compiled)["breaks"] == 0 and len(compiled.graphs) > 0
    for n in (40, 6, 33):  # of 6 it warns
        with warnings.catch_warnings(record=True) as mine:
            warnings.simplefilter("always")
            got = compiled(array(n))
        with warnings.catch_warnings(record=True) as theirs:
            warnings.simplefilter("always")
            want = f(array(n))
        same(got, want)
        assert [str(w.message) for w in mine] == [str(w.message) for w in theirs]


def test_a_filter_of_numbers_that_change(fresh):
    def f(x, order, cut):
        b, a = signal.butter(order, cut)
        return signal.lfilter(b, a, x), len(b)

    compiled = fresh.compile(f)
    for order, cut in ((2, 0.2), (2, 0.3), (3, 0.3), (4, 0.1), (2, 0.2)):
        same(compiled(array(20), order, cut), f(array(20), order, cut))


def test_refused_as_written(fresh):
    """An error that data decides, or sizes, is SciPy's own, and so is what comes after it."""

    def f(x, a):
        try:
            y = signal.filtfilt([1.0, 0.5], [1.0], x)
        except ValueError as e:
            y = str(e)
        return y, linalg.cholesky(a) * 2

    compiled = fresh.compile(f)
    for n in (12, 12, 2):
        same(compiled(array(n), np.eye(3) * 2), f(array(n), np.eye(3) * 2))
    for _ in range(2):
        with pytest.raises(linalg.LinAlgError) as mine:
            compiled(array(12), -np.eye(3))
        with pytest.raises(linalg.LinAlgError) as theirs:
            f(array(12), -np.eye(3))
        assert str(mine.value) == str(theirs.value)


def test_what_writes_its_operand(fresh):
    def f(a, x):
        linalg.det(a, overwrite_a=True)
        fft.fft(x, overwrite_x=True)
        ndimage.sobel(x.real, output=a[0, : x.shape[0]])
        return a * 1, x * 1

    compiled = fresh.compile(f)
    for n in (3, 3, 4):
        mine, theirs = [(np.asfortranarray(array(n, n)), array(n) + 0j) for _ in range(2)]
        same(compiled(*mine), f(*theirs))
        same(mine, theirs)


WRITERS = {
    "dct": lambda a, out: fft.dct(a, 2, None, -1, None, True),
    "dctn": lambda a, out: fft.dctn(a, 2, None, None, None, True),
    "detrend": lambda a, out: signal.detrend(a, -1, "linear", 0, True),
    "svdvals": lambda a, out: linalg.svdvals(a.T, True),
    "rq": lambda a, out: linalg.rq(a, True)[0],
    "hessenberg": lambda a, out: linalg.hessenberg(a, False, True),
    "gaussian_filter": lambda a, out: ndimage.gaussian_filter(a, 1, 0, out),
    "distances": lambda a, out: ndimage.distance_transform_edt(a > 0, distances=out),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_writes_by_position(fresh, name):
    def f(x):
        a, out = x * 2, np.zeros(x.shape)
        y = WRITERS[name](a, out)
        return y, a, out

    compiled = fresh.compile(f)
    for k in range(3):
        x = array(6, 6, seed=k)
        same([r for r in compiled(x) if r is not None], [r for r in f(x) if r is not None])


@pytest.mark.parametrize("f", [lambda x, w: signal.welch(x, window=w * 1)[1], lambda x, w: signal.csd(x, x, 1.0, w * 1)[1]], ids=["welch", "csd"])
def test_a_window_stays_writable(fresh, f):
    """SciPy forbids writes to the window that it is given."""
    compiled = fresh.compile(f)
    for k in range(3):
        w = array(8, seed=k) ** 2
        same(compiled(array(64), w), f(array(64), w))
        assert w.flags.writeable


def test_numbers_of_the_data_that_decide_sizes(fresh):
    def f(x, n):
        return ndimage.zoom(x, n.sum()) + 1, signal.resample(x[0], n.sum() * 2)

    compiled = fresh.compile(f)
    for n in (1, 1, 2, 3):
        same(compiled(array(4, 5), np.array([n])), f(array(4, 5), np.array([n])))


def test_what_warns_is_told(fresh):
    def f(a, b):
        return linalg.solve(a, b) + 1

    bad, b = np.array([[1.0, 1.0], [1.0, 1.0 + 1e-16]]) + np.array([[0, 0], [0, 3e-16]]), np.ones(2)
    compiled = fresh.compile(f)
    for a in (np.eye(2), np.eye(2), bad, np.eye(2), bad):
        with warnings.catch_warnings(record=True) as mine:
            warnings.simplefilter("always")
            got = compiled(a, b)
        with warnings.catch_warnings(record=True) as theirs:
            warnings.simplefilter("always")
            want = f(a, b)
        same(got, want)
        assert [(w.category, str(w.message)) for w in mine] == [(w.category, str(w.message)) for w in theirs]


@pytest.mark.parametrize("scope", ["errstate", "warnings", "outside"])
def test_scopes_of_errors_and_warnings(fresh, scope):
    """What SciPy's own code divides by zero is told as the program wants it to be told."""

    def coherent(x, y):
        return signal.coherence(x, y, nperseg=8)[1] + 1

    def f(x, y):
        if scope == "errstate":
            with np.errstate(all="raise"):
                return coherent(x, y)
        if scope == "warnings":
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return coherent(x, y)
        return coherent(x, y)

    def outcome(f, *args):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                with np.errstate(all="raise" if scope == "outside" else "warn"):
                    return f(*args), [(w.category, str(w.message)) for w in told]
            except Exception as e:
                return type(e), str(e), [(w.category, str(w.message)) for w in told]

    compiled = fresh.compile(f)
    for x in (array(24), array(24), np.zeros(24), array(24, seed=3), np.zeros(24)):
        same(outcome(compiled, x, array(24, seed=1)), outcome(f, x, array(24, seed=1)))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex128", "float16"])
def test_other_types(fresh, dtype):
    def tried(f, *args):
        try:
            return f(*args)
        except (TypeError, ValueError, RuntimeError, NotImplementedError) as e:
            return type(e)

    programs = [
        lambda x: fft.fft(x), lambda x: signal.lfilter([1.0, 0.5], [1.0, 0.2], x), lambda x: ndimage.gaussian_filter(x, 1.0), lambda x: linalg.expm(x[:6].reshape(2, 3)[:, :2]),
        lambda x: signal.resample(x, 5), lambda x: integrate.cumulative_trapezoid(x), lambda x: linalg.toeplitz(x), lambda x: signal.medfilt(x, 3), lambda x: fft.dct(x[::2]),
    ]
    for f in programs:
        compiled = fresh.compile(f)
        for n in (8, 8, 11, 7):
            x = (array(n) * 3).astype(dtype)
            same(tried(compiled, x), tried(f, x))


def test_results_that_share_memory(fresh):
    def f(x, a):
        y, b = fft.fftshift(x), linalg.block_diag(a)
        y[0] = 9.0
        b[0, 0] = 9.0
        return y, b, x * 1, a * 1

    compiled = fresh.compile(f)
    for n in (4, 4, 5, 1):
        same(compiled(array(n), array(2, n + 1)), f(array(n), array(2, n + 1)))


def test_another_function_in_its_place(fresh, monkeypatch):
    def f(x):
        return linalg.svdvals(x) + 1

    compiled = fresh.compile(f)
    same(compiled(array(3, 3)), f(array(3, 3)))
    monkeypatch.setattr(linalg, "svdvals", lambda x: x * 3)
    same(compiled(array(3, 3)), f(array(3, 3)))
    monkeypatch.undo()
    same(compiled(array(3, 3)), f(array(3, 3)))


WRITTEN = {
    "a part": lambda x, b, a: (lambda y: (y.__setitem__(slice(3, None), y[3:] * 2), y.sum(), y))(signal.filtfilt(b, a, x, padlen=3))[1:],
    "whole": lambda x, b, a: np.sort(np.multiply(y := signal.filtfilt(b, a, x, padlen=3), 2, out=y)) + y,
    "a row": lambda x, b, a: (y := signal.filtfilt(b, a, np.stack([x, x * 2]), padlen=3), y[1].__iadd__(3), np.tanh(y) * 2)[::2],
    "a column": lambda x, b, a: (y := signal.filtfilt(b, a, np.stack([x, x * 2], 1), padlen=3, axis=0), y.sort(0), y[:, 1:] * 2 + 1)[::2],
    "sections": lambda x, b, a: (y := signal.sosfiltfilt(np.concatenate([b, a])[None], x, padlen=3), y[::2].__imul__(2), np.cumsum(y, out=y), np.exp(y[::-1]) * 2)[::3],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_results_that_lie_backwards_are_written(name, fresh):
    """Those of filtfilt have negative strides: memory of the run has room for them before their first element."""
    f = WRITTEN[name]
    b, a = signal.butter(2, 0.2)
    compiled = fresh.compile(f, options={"leave": False})
    for n in (20, 30, 30, 41, 15):
        got, want = compiled(array(n), b, a), f(array(n), b, a)
        same(got, want)
        if isinstance(want, tuple):
            assert [np.asarray(x).strides for x in got] == [np.asarray(x).strides for x in want]
    assert fresh.cache_info(compiled)["breaks"] == 0
    assert fresh.cache_info(compiled)["outcomes"]["run"]["graph"] == 5
