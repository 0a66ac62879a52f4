"""Typical NumPy programs, each as people write them: NumPy's results (dtype, shape, strides, values by the oracle), and one
graph, except where EXCEPTIONS says why not."""

import ast
import math
import textwrap
import warnings

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("numpy.polynomial")  # which NumPy imports when it is first asked for
import oracle  # noqa: E402
from harness import compare, observe, one_line_bodies  # noqa: E402

import framejit  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")

RNG = np.random.default_rng
OPERANDS = {
    "a": lambda: RNG(0).normal(size=(6, 8)),
    "b": lambda: RNG(1).normal(size=(6, 8)),
    "a1": lambda: RNG(2).normal(size=(8, 3)),
    "v": lambda: RNG(3).normal(size=40),
    "w": lambda: RNG(4).normal(size=40),
    "p": lambda: RNG(5).uniform(0.5, 2.0, size=40),
    "xs": lambda: np.sort(RNG(6).uniform(0, 10, size=40)),
    "f": lambda: RNG(7).normal(size=(5, 7)).astype(np.float32),
    "g": lambda: RNG(8).normal(size=30).astype(np.float32),
    "k": lambda: RNG(9).integers(0, 10, size=40),
    "k2": lambda: RNG(10).integers(0, 6, size=12),
    "u8": lambda: RNG(11).integers(0, 256, size=(12, 10)).astype(np.uint8),
    "i32": lambda: RNG(12).integers(-100, 100, size=20).astype(np.int32),
    "i8": lambda: RNG(13).integers(-128, 127, size=20).astype(np.int8),
    "img": lambda: RNG(14).uniform(size=(16, 12)),
    "rgb": lambda: RNG(15).uniform(size=(8, 6, 3)),
    "m": lambda: RNG(16).uniform(size=40) > 0.5,
    "s": lambda: RNG(17).normal(size=(5, 5)) + 5 * np.eye(5),
    "spd": lambda: (lambda x: x @ x.T + np.eye(5))(RNG(18).normal(size=(5, 5))),
    "y5": lambda: RNG(19).normal(size=5),
    "c": lambda: RNG(20).normal(size=16) + 1j * RNG(21).normal(size=16),
    "nan": lambda: np.where(RNG(22).uniform(size=(6, 8)) < 0.2, np.nan, RNG(23).normal(size=(6, 8))),
    "pts": lambda: RNG(24).normal(size=(30, 2)),
    "cen": lambda: RNG(25).normal(size=(3, 2)),
    "t": lambda: np.datetime64("2024-01-01") + np.arange(10),
    "o": lambda: np.array([1, "two", 3.0], dtype=object),
    "rng": lambda: RNG(26),
    "fa": lambda: np.asfortranarray(RNG(27).normal(size=(6, 8))),
    "x": lambda: 1.5,
    "n": lambda: 3,
}

# One entry a line: `name: program`, statements separated by `;`, the last of which is the result.
LINES = """
half products: h = a.astype("f2"); h @ h.T, h[0] @ h[0], h @ h[0], h[0] @ h.T
mean and std: v.mean(), v.std(), np.std(v, ddof=1), np.var(a, axis=0)
z-score: (a - a.mean(axis=0)) / a.std(axis=0)
normalise rows: a / np.linalg.norm(a, axis=1, keepdims=True)
min-max scaling: lo = v.min(); hi = v.max(); (v - lo) / (hi - lo)
min-max by axis: (a - a.min(0)) / (a.max(0) - a.min(0))
softmax: e = np.exp(a - a.max(axis=1, keepdims=True)); e / e.sum(axis=1, keepdims=True)
log-sum-exp: m_ = a.max(axis=1); m_ + np.log(np.exp(a - m_[:, None]).sum(axis=1))
sigmoid: 1 / (1 + np.exp(-v))
relu: np.maximum(a, 0), np.where(a > 0, a, 0.1 * a)
cross entropy: -np.mean(np.log(p / p.sum()))
covariance: x_ = a - a.mean(axis=0); x_.T @ x_ / (len(a) - 1)
np.cov: np.cov(a), np.corrcoef(a)
correlation: np.sum((v - v.mean()) * (w - w.mean())) / np.sqrt(np.sum((v - v.mean()) ** 2) * np.sum((w - w.mean()) ** 2))
weighted average: np.average(v, weights=p), np.sum(v * p) / np.sum(p)
mean squared error: np.mean((v - w) ** 2), np.sqrt(((v - w) ** 2).mean()), np.abs(v - w).max()
geometric and harmonic mean: np.exp(np.log(p).mean()), len(p) / np.sum(1.0 / p)
skewness: d = v - v.mean(); (d**3).mean() / (d**2).mean() ** 1.5
median: np.median(v), np.median(a, axis=1)
percentile: np.percentile(v, 25), np.percentile(a, [10, 50, 90], axis=0)
quantile: np.quantile(v, 0.9), np.quantile(a, [0.25, 0.75], axis=1)
interquartile range: q = np.percentile(v, [25, 75]); q[1] - q[0]
clip outliers: np.clip(v, v.mean() - 2 * v.std(), v.mean() + 2 * v.std())
histogram: np.histogram(v, bins=10)[0], np.histogram(v, bins=10, range=(-3, 3))[1]
histogram of edges: np.histogram(v, bins=np.linspace(-3, 3, 7) * 1.0)
bincount: np.bincount(k), np.bincount(k, weights=p), np.bincount(k, minlength=20)
digitize: np.digitize(v, np.array([-1.0, 0.0, 1.0]))
unique: np.unique(k), np.unique(k, return_counts=True)
unique inverse: u, i = np.unique(k, return_inverse=True); u[i]
mode: u, n_ = np.unique(k, return_counts=True); u[np.argmax(n_)]
nan functions: np.nanmean(nan), np.nansum(nan, axis=0), np.nanmax(nan, axis=1), np.nanstd(nan)
nan to num: np.nan_to_num(nan, nan=0.0), np.isnan(nan).sum()
nan filled by the mean: np.where(np.isnan(nan), np.nanmean(nan), nan)
nan dropped: nan[~np.isnan(nan)].mean()
mask select: v[m], v[v > 0].sum(), a[a > 0.5]
mask assign: y = v.copy(); y[y < 0] = 0; y
mask assign of values: y = v.copy(); y[m] = w[m] * 2; y
mask in place on argument: v[v > 1] = 1.0; v
mask rows: a[a[:, 0] > 0], a[:, a.sum(0) > 0]
masked mean: v[m].mean() if m.any() else 0.0
masked average by sum: np.sum(v * m) / np.sum(m)
where with one argument: np.where(v > 0)[0], np.nonzero(a > 1), np.flatnonzero(v > 0), np.argwhere(a > 1)
compress and extract: np.compress(v > 0, v), np.extract(v > 0, v)
count: np.count_nonzero(v > 0), (v > 0).sum(), np.mean(v > 0)
any all: np.any(v > 3), np.all(np.isfinite(a)), (a > 0).all(axis=1)
select: np.select([v < -1, v > 1], [-1.0, 1.0], default=0.0)
piecewise: np.piecewise(v, [v < 0, v >= 0], [-1.0, 1.0])
sort: np.sort(v), np.sort(a, axis=0), np.argsort(v), v[np.argsort(v)]
sort in place: y = v.copy(); y.sort(); y
partition: np.partition(v, 5)[5], np.sort(np.argpartition(v, 5)[:5])
top k: i = np.argsort(v)[::-1][:5]; v[i], i
lexsort: np.lexsort((v, k))
rank: r = np.empty(len(v), dtype=np.int64); r[np.argsort(v)] = np.arange(len(v)); r
searchsorted: np.searchsorted(xs, v), np.searchsorted(xs, 3.0, side="right")
interp: np.interp(v, xs, p)
linear interpolation by hand: i = np.clip(np.searchsorted(xs, p * 3) - 1, 0, len(xs) - 2); w_ = (p * 3 - xs[i]) / (xs[i + 1] - xs[i]); v[i] * (1 - w_) + v[i + 1] * w_
cumsum cumprod: np.cumsum(v), np.cumprod(p), np.cumsum(a, axis=1)
diff gradient: np.diff(v), np.diff(a, axis=0), np.gradient(v), np.gradient(v, 0.1)
trapezoid: np.trapezoid(v, xs), np.trapezoid(v, dx=0.5), np.sum((v[1:] + v[:-1]) / 2 * np.diff(xs))
returns: v_ = p[1:] / p[:-1] - 1; v_.mean() / v_.std() * np.sqrt(252)
drawdown: c_ = np.cumprod(p); peak = np.maximum.accumulate(c_); (c_ / peak - 1).min()
moving average by cumsum: c_ = np.cumsum(np.insert(v, 0, 0)); (c_[5:] - c_[:-5]) / 5
moving average by convolve: np.convolve(v, np.ones(5) / 5, mode="valid")
rolling windows: np.lib.stride_tricks.sliding_window_view(v, 5).mean(axis=1)
rolling max: np.lib.stride_tricks.sliding_window_view(v, 4).max(axis=-1)
stride tricks: np.lib.stride_tricks.as_strided(v, (10, 4), (32, 8)).sum(axis=1)
convolution by stride tricks: np.einsum("ijkl,kl->ij", np.lib.stride_tricks.sliding_window_view(img, (3, 3)), np.ones((3, 3)) / 9)
autocorrelation: x_ = v - v.mean(); r = np.correlate(x_, x_, mode="full")[len(v) - 1 :]; r / r[0]
gray image: rgb @ np.array([0.299, 0.587, 0.114]), np.dot(rgb[..., :3], [0.2989, 0.5870, 0.1140])
box filter: q = np.pad(img, 1, mode="edge"); (q[:-2, 1:-1] + q[2:, 1:-1] + q[1:-1, :-2] + q[1:-1, 2:] + q[1:-1, 1:-1]) / 5
sobel: gx = img[1:-1, 2:] - img[1:-1, :-2]; gy = img[2:, 1:-1] - img[:-2, 1:-1]; np.hypot(gx, gy), np.arctan2(gy, gx)
laplacian: (np.roll(img, 1, 0) + np.roll(img, -1, 0) + np.roll(img, 1, 1) + np.roll(img, -1, 1) - 4 * img)
gamma of uint8: (255 * (u8 / 255.0) ** 0.5).astype(np.uint8)
threshold of uint8: np.where(u8 > 128, 255, 0).astype(np.uint8)
uint8 arithmetic: u8 + 1, u8 * np.uint8(2), u8.astype(np.int32) - 128, 255 - u8
uint8 mean: u8.mean(), u8.sum(), u8.max() - u8.min()
downsample: img[::2, ::2], img.reshape(8, 2, 6, 2).mean(axis=(1, 3))
upsample: np.repeat(np.repeat(img, 2, axis=0), 2, axis=1), np.kron(img, np.ones((2, 2)))
flip rotate: np.flipud(img), np.fliplr(img), np.rot90(img), img.T, img[::-1]
crop and paste: y = np.zeros((20, 20)); y[2:18, 4:16] = img; y
histogram equalisation: h = np.bincount(u8.ravel(), minlength=256); cdf = h.cumsum(); (255 * cdf[u8] / cdf[-1]).astype(np.uint8)
meshgrid: x_, y_ = np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-2, 2, 4)); np.exp(-(x_**2 + y_**2)) * v[0]
mgrid: y_, x_ = np.mgrid[0:5, 0:4]; y_ * 10 + x_ + v[0]
ogrid: y_, x_ = np.ogrid[:16, :12]; img * ((x_ - 6) ** 2 + (y_ - 8) ** 2 < 16)
indices: y_, x_ = np.indices((4, 5)); x_ * y_ + v[0]
ix_: a[np.ix_([0, 2], [1, 3, 5])]
fancy indexing: a[[0, 2, 4]], a[[0, 1], [2, 3]], v[k], a[:, [1, 0]]
take: np.take(v, k), np.take(a, [0, 2], axis=1), np.take_along_axis(a, np.argsort(a, axis=1), axis=1)
put: y = v.copy(); y[k2] = 0.0; y
one-hot: y = np.zeros((12, 6)); y[np.arange(12), k2] = 1; y
one-hot by eye: np.eye(6)[k2]
add.at: y = np.zeros(10); np.add.at(y, k, v); y
ufunc reduce: np.add.reduce(v), np.multiply.reduce(p), np.maximum.reduce(a, axis=1), np.logical_and.reduce(a > -2)
ufunc accumulate: np.add.accumulate(v), np.maximum.accumulate(v), np.minimum.accumulate(a, axis=1)
ufunc outer: np.add.outer(v[:4], w[:3]), np.multiply.outer(v[:4], w[:3]), np.subtract.outer(v[:4], v[:4])
ufunc reduceat: np.add.reduceat(v, [0, 10, 20])
out=: y = np.empty_like(v); np.multiply(v, w, out=y); np.add(y, 1, out=y); y
out= argument: np.exp(v, out=v); v
where=: np.divide(v, w, out=np.zeros_like(v), where=w > 0)
in place: v += w; v *= 2; v[1:] -= v[:-1]; v
in place slices: a[1:-1, 1:-1] = 0.25 * (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]); a
pairwise distances: d = pts[:, None, :] - pts[None, :, :]; np.sqrt((d**2).sum(-1))
distances by dot: s_ = (pts**2).sum(1); np.sqrt(np.maximum(s_[:, None] + s_[None, :] - 2 * pts @ pts.T, 0))
nearest: d = ((pts[:, None] - cen[None]) ** 2).sum(-1); np.argmin(d, axis=1), d.min(axis=1)
k-means step: l = np.argmin(((pts[:, None] - cen) ** 2).sum(-1), axis=1); np.stack([pts[l == j].mean(axis=0) for j in range(3)])
k-means step by at: l = np.argmin(((pts[:, None] - cen) ** 2).sum(-1), axis=1); s_ = np.zeros((3, 2)); np.add.at(s_, l, pts); s_ / np.bincount(l, minlength=3)[:, None]
PCA by svd: x_ = a - a.mean(0); u, s_, vt = np.linalg.svd(x_, full_matrices=False); np.abs(x_ @ vt[:2].T), s_**2 / (len(a) - 1)
PCA by eigh: c_ = np.cov(a.T); l, q = np.linalg.eigh(c_); i = np.argsort(l)[::-1]; l[i][:3]
linear regression: x_ = np.column_stack([np.ones(len(v)), v, v**2]); np.linalg.lstsq(x_, w, rcond=None)[0]
normal equations: x_ = np.c_[np.ones(len(v)), v]; np.linalg.solve(x_.T @ x_, x_.T @ w)
ridge: np.linalg.solve(a.T @ a + 10 * np.eye(8), a.T @ b[:, 0])
logistic gradient: q = 1 / (1 + np.exp(-(a @ y5[:1].repeat(8)))); a.T @ (q - (b[:, 0] > 0)) / len(a)
polyfit: np.polyfit(xs, v, 2)
polyval: np.polyval([1.0, -2.0, 3.0], v), np.polyval(y5, v)
horner: np.polynomial.polynomial.polyval(v, [1.0, 2.0, 3.0])
solve inv det: np.linalg.solve(s, y5), np.linalg.inv(s), np.linalg.det(s)
cholesky: l = np.linalg.cholesky(spd); l @ l.T, np.log(np.diag(l)).sum() * 2
qr: q, r = np.linalg.qr(s); np.abs(np.diag(r)), q @ r
eigh: np.linalg.eigvalsh(spd), np.linalg.eigh(spd)[0]
eig: np.sort(np.linalg.eigvals(spd).real)
norms: np.linalg.norm(v), np.linalg.norm(v, 1), np.linalg.norm(a), np.linalg.norm(a, axis=0), np.linalg.norm(v, np.inf)
trace diag: np.trace(s), np.diag(s), np.diag(y5), np.tril(s), np.triu(s, 1)
pinv rank: np.linalg.pinv(a), np.linalg.matrix_rank(a), np.linalg.matrix_power(s, 3)
Mahalanobis: d = y5 - 1.0; np.sqrt(d @ np.linalg.inv(spd) @ d)
einsum: np.einsum("ij,ij->i", a, b), np.einsum("ij,jk->ik", a, a1), np.einsum("ii", s), np.einsum("i,j->ij", v, w)
dot outer inner: np.dot(v, w), np.outer(v, w), np.inner(a, b), np.vdot(v, w), v @ w, np.tensordot(a, a1, axes=1)
cosine similarity: (v @ w) / (np.linalg.norm(v) * np.linalg.norm(w))
cross: np.cross(rgb[0], rgb[1])
fft: np.abs(np.fft.rfft(v)) ** 2, np.fft.fftfreq(40, 0.1), np.fft.fft(c)
fft low-pass: s_ = np.fft.rfft(v); s_[5:] = 0; np.fft.irfft(s_, len(v))
fft filter by mask: s_ = np.fft.fft(v); q = np.fft.fftfreq(len(v)); s_[np.abs(q) > 0.2] = 0; np.fft.ifft(s_).real
fft convolution: n_ = 79; np.fft.irfft(np.fft.rfft(v, n_) * np.fft.rfft(w, n_), n_)
fft2: np.fft.fftshift(np.abs(np.fft.fft2(img)))
power spectrum peak: s_ = np.abs(np.fft.rfft(v * np.hanning(len(v)))); np.fft.rfftfreq(len(v), 0.01)[np.argmax(s_)]
spectrogram: q = np.lib.stride_tricks.sliding_window_view(v, 16)[::8]; np.abs(np.fft.rfft(q * np.hamming(16), axis=1))
Monte Carlo pi: q = rng.random((500, 2)); 4 * np.mean((q**2).sum(axis=1) <= 1)
Monte Carlo of options: z = rng.standard_normal(500); s_ = 100 * np.exp(-0.02 + 0.2 * z); np.maximum(s_ - 100, 0).mean()
random walk: rng.choice([-1, 1], size=100).cumsum()
rng normal: v + rng.normal(0, 0.1, size=v.shape)
bootstrap: i = rng.integers(0, len(v), size=(50, len(v))); v[i].mean(axis=1).std()
shuffle: v[rng.permutation(len(v))]
made in the function: r = np.random.default_rng(0); v + r.normal(size=40)
legacy random: np.random.seed(0); v + np.random.rand(40)
Black-Scholes: d = (np.log(p / 1.0) + 0.1) / 0.2; p * (1 / (1 + np.exp(-1.7 * d))) - np.exp(-0.05) * (1 / (1 + np.exp(-1.7 * (d - 0.2))))
haversine: q = np.radians(a); d = q[1:] - q[:-1]; 2 * 6371 * np.arcsin(np.sqrt(np.sin(d[:, 0] / 2) ** 2 + np.cos(q[:-1, 0]) * np.cos(q[1:, 0]) * np.sin(d[:, 1] / 2) ** 2))
complex: np.abs(c), np.angle(c), c.real, c.imag, np.conj(c), c * np.exp(1j * 0.5)
complex made: (v + 1j * w) ** 2, np.real(c), np.sqrt(v.astype(complex))
mandelbrot: z = np.zeros_like(c); z = z**2 + c; z = z**2 + c; np.abs(z) < 2
datetime: t[1:] - t[:-1], t + np.timedelta64(1, "D"), t.astype("datetime64[M]")
datetime and floats: d = (t - t[0]).astype("timedelta64[D]").astype(float); d * 2
object array: o + o, [type(x_).__name__ for x_ in o]
strings: np.char.upper(np.array(["a", "b"])), v + 1
structured: q = np.zeros(3, dtype=[("x", "f8"), ("y", "i4")]); q["x"] = v[:3]; q["x"] * 2
apply_along_axis: np.apply_along_axis(lambda r: r.max() - r.min(), 1, a)
vectorize: np.vectorize(lambda q: q * 2 if q > 0 else -q)(v)
fromiter: np.fromiter((q * q for q in range(5)), dtype=float) + v[:5]
broadcast: np.broadcast_to(v[:8], a.shape) * a, v[:, None] * w[None, :], v[:, np.newaxis]
broadcast_arrays: np.broadcast_arrays(a, v[:8])[1] + 1
reshape: a.reshape(-1), a.ravel(), a.flatten(), a.reshape(3, -1), a.T.reshape(-1), np.squeeze(a[None]), np.expand_dims(v, 1)
joins: np.concatenate([a, b]), np.vstack([v, w]), np.hstack([v, w]), np.stack([v, w], axis=1), np.r_[v, w], np.c_[v, w], np.column_stack((v, w)), np.append(v, 1.0)
splits: np.split(v, 4), np.array_split(v, 3), np.hsplit(a, 2), np.vsplit(a, 3)
insert delete: np.insert(v, 2, 5.0), np.delete(v, 0), np.delete(a, 1, axis=0)
tile repeat: np.tile(v[:3], 3), np.repeat(v[:3], 2), np.tile(a, (2, 1)), np.repeat(k2[:3], [1, 2, 3])
roll swap: np.roll(v, 3), np.swapaxes(rgb, 0, 1), np.moveaxis(rgb, -1, 0), np.transpose(rgb, (2, 0, 1))
sets: np.intersect1d(k, k2), np.union1d(k, k2), np.setdiff1d(k, k2), np.isin(k, k2)
array of lists: np.array([[1.0, 2.0], [3.0, 4.0]]) @ a[:2], np.asarray([1, 2, 3]) + v[:3], np.array([v[0], v[1]])
array of rows: np.array([v * 2, w + 1]), np.array([q.sum() for q in a])
scalars made: np.float64(2.5) * v, np.float32(3) * g, np.int64(2) * k, v * np.pi + np.float64(x)
float of a mean: float(v.mean()), int(k.sum()), v.sum().item(), bool((v > 0).any())
float used: q = float(v.mean()); v - q
float in math: math.sqrt(float((v**2).sum()))
scalar indexing: v[0] + v[-1], a[1, 2] * 2, v[n]
scalar branch: v * 2 if v.mean() > 0 else v - 1
round: np.round(v, 2), np.floor(v), np.ceil(v), np.trunc(v), np.rint(v), v.round(1)
sign abs: np.sign(v), np.abs(v), np.fabs(v), np.square(v), np.sqrt(p), np.cbrt(v), np.power(p, 1.5), v**2, p**-0.5, 2.0**v
logs: np.log(p), np.log2(p), np.log10(p), np.log1p(p), np.exp2(v), np.expm1(v)
trig: np.sin(v), np.cos(v), np.tan(v), np.arctan(v), np.sinh(v), np.tanh(v), np.deg2rad(v)
int arithmetic: k // 3, k % 3, k**2, -k, np.bitwise_and(k, 3), k << 2, k >> 1, k ^ 5
divmod: divmod(k, 3), np.divmod(k, 4), np.modf(v)
int overflow: i32 * 100000000, i8 + np.int8(100), i32.sum(), i8.sum(), np.abs(i8)
int promotion: i32 + 1, i32 + 1.0, i32 / 2, i32 * np.float32(2), i8 + i32, g + 1, g * 2.0, g + np.float64(1), g[:20] + i32, np.mean(i32)
integer power and negative: i32 // -7, i32 % -7, np.gcd(k, 6), np.float_power(k, 2)
float32: f.mean(), f.sum(axis=0), f @ f.T, np.exp(f), f.astype(np.float64).std(), f.std()
float16: f.astype(np.float16) + np.float16(1), f.astype(np.float16).sum(axis=0)
logical: np.logical_and(v > 0, w > 0), (v > 0) & (w < 1) | ~m, np.logical_not(m), np.logical_xor(m, v > 0)
comparisons: np.isclose(v, w), np.allclose(v, v + 1e-9), np.array_equal(v, w), np.isfinite(v), (v == w).sum()
bool sums: m.sum(), np.sum(a > 0, axis=1), m.astype(float), m * v
argmax: v.argmax(), a.argmax(axis=1), np.argmin(v), np.unravel_index(np.argmax(a), a.shape)
value at argmax: v[v.argmax()], v[np.argmin(np.abs(v - 0.5))]
runs: np.diff(np.flatnonzero(np.diff(m.astype(int)))), v[np.append(True, np.diff(k) != 0)]
split at data: np.split(v, np.where(np.diff(k) != 0)[0] + 1)[0]
zero crossings: np.where(np.diff(np.sign(v)) != 0)[0]
local maxima: np.where((v[1:-1] > v[:-2]) & (v[1:-1] > v[2:]))[0] + 1
fortran order: fa + 1, fa.sum(axis=0), fa.T @ fa, fa * 2 + a, fa.ravel(), np.exp(fa)
empty: np.zeros(0).sum(), v[:0] * 2, np.concatenate([v[:0], w])
views: y = a.T; y[0] = 0; a
zeros ones: np.zeros((3, 4)) + v[0], np.ones(3, dtype=int) * n, np.full((2, 2), x), np.eye(3), np.identity(2), np.arange(5) * x, np.linspace(0, x, 5) * 2
arange of floats: np.arange(0, 1, 0.1) + v[0], np.arange(0.0, 2.0, 0.5)
logspace: np.logspace(0, 2, 5), np.geomspace(1, 100, 3) * v[0]
tri: a[np.triu_indices(6)], np.tri(4) * x, s[np.diag_indices(5)], np.fill_diagonal(s, 0.0), s
attributes: v.shape[0] * v.ndim + a.size + len(a), v.dtype == np.float64, v.nbytes, a.T.shape
gcd lcm: np.gcd.reduce(k + 1), np.lcm(k + 1, 2)
matmul batch: np.matmul(np.stack([a, b]), a1), np.stack([a, b]) @ a1
nan argument: np.nanargmax(nan, axis=1), np.nanmedian(nan), np.nanpercentile(nan, 50)
ptp cov: np.ptp(v), np.cumsum(np.ptp(a, axis=0))
tolist: v.tolist(), (v * 2).tolist()[0]
string of an array: str(k.sum()), f"{v.mean():.3f}"
list of arrays: [q * 2 for q in a], sum(q.sum() for q in a)
zip and enumerate: [q * i for i, q in enumerate(v[:4])], [q + r for q, r in zip(v[:3], w[:3])]
dict of results: {"mean": v.mean(), "std": v.std(), "n": len(v)}
float functions: np.maximum(np.float64(1.0), v.max()), abs(v.min())
max of scalars: max(v.max(), w.max()), min(v.min(), 0.0)
convolve same: np.convolve(v, [0.25, 0.5, 0.25], mode="same"), np.convolve(v, w)
savitzky: np.convolve(v, np.linalg.pinv(np.vander(np.arange(-2, 3), 3))[2], mode="valid")
exponential decay weights: q = 0.9 ** np.arange(len(v)); (v * q[::-1]).sum() / q.sum()
toeplitz: i = np.arange(5); y5[np.abs(i[:, None] - i[None, :])]
confusion matrix: np.bincount(k2 * 6 + k2[::-1], minlength=36).reshape(6, 6)
group means: np.bincount(k, weights=v) / np.maximum(np.bincount(k), 1)
batches: [v[i : i + 10].mean() for i in range(0, len(v), 10)]
argsort of groups: o_ = np.argsort(k, kind="stable"); k[o_], v[o_]
permutation matrix: np.eye(12)[np.argsort(k2)] @ k2
pad: np.pad(v, 2), np.pad(img, ((1, 1), (2, 2)), mode="reflect"), np.pad(v, (0, 4), constant_values=1.0)
ravel index: np.ravel_multi_index((k2, k2), (6, 6)), np.unravel_index(k, (5, 5))
"""
STATEMENTS = {
    "heat equation": "q = v.copy()\nfor _ in range(4):\n    q[1:-1] = q[1:-1] + 0.1 * (q[2:] - 2 * q[1:-1] + q[:-2])\nreturn q",
    "wave equation": "old, now = v, w\nfor _ in range(3):\n    new = np.zeros_like(now)\n    new[1:-1] = 2 * now[1:-1] - old[1:-1] + 0.2 * (now[2:] - 2 * now[1:-1] + now[:-2])\n    old, now = now, new\nreturn now",
    "euler": "y = v.copy()\nout = [y]\nfor i in range(4):\n    y = y + 0.01 * (-y + np.sin(y))\n    out.append(y)\nreturn np.array(out)",
    "runge-kutta": "def rhs(y, k_=2.0):\n    return -k_ * y + np.cos(y)\ny, h = v, 0.1\nfor _ in range(2):\n    k1 = rhs(y)\n    k2_ = rhs(y + h / 2 * k1)\n    k3 = rhs(y + h / 2 * k2_)\n    k4 = rhs(y + h * k3)\n    y = y + h / 6 * (k1 + 2 * k2_ + 2 * k3 + k4)\nreturn y",
    "n-body": "acc = np.zeros_like(pts)\nd = pts[None] - pts[:, None]\nr = np.sqrt((d**2).sum(-1)) + 0.1\nacc = (d / r[..., None] ** 3).sum(axis=1)\nreturn pts + 0.01 * acc",
    "game of life": "b_ = (u8 > 128).astype(int)\nn_ = sum(np.roll(np.roll(b_, i, 0), j, 1) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)\nreturn ((n_ == 3) | ((b_ == 1) & (n_ == 2))).astype(int)",
    "power iteration": "q = np.ones(5)\nfor _ in range(5):\n    q = spd @ q\n    q = q / np.linalg.norm(q)\nreturn q, q @ spd @ q",
    "newton": "y = p.copy()\nfor _ in range(4):\n    y = y - (y**2 - 2) / (2 * y)\nreturn y",
    "jacobi": "d = np.diag(s)\nr = s - np.diagflat(d)\ny = np.zeros(5)\nfor _ in range(5):\n    y = (y5 - r @ y) / d\nreturn y",
    "gradient descent": "q = np.zeros(8)\nfor _ in range(5):\n    q -= 0.01 * a.T @ (a @ q - b[:, 0])\nreturn q",
    "conjugate gradient": "y = np.zeros(5)\nr = y5 - spd @ y\nd = r\nfor _ in range(3):\n    al = (r @ r) / (d @ spd @ d)\n    y = y + al * d\n    r2 = r - al * (spd @ d)\n    d = r2 + (r2 @ r2) / (r @ r) * d\n    r = r2\nreturn y",
    "adam": "m1 = np.zeros(8)\nv1 = np.zeros(8)\nq = np.zeros(8)\nfor i in range(1, 4):\n    g_ = a.T @ (a @ q - b[:, 0])\n    m1 = 0.9 * m1 + 0.1 * g_\n    v1 = 0.999 * v1 + 0.001 * g_**2\n    q = q - 0.01 * (m1 / (1 - 0.9**i)) / (np.sqrt(v1 / (1 - 0.999**i)) + 1e-8)\nreturn q",
    "neural network": "h = np.maximum(a @ a1 + 1, 0)\no_ = h @ a1.T\ne = np.exp(o_ - o_.max(1, keepdims=True))\nq = e / e.sum(1, keepdims=True)\ng_ = (q - np.eye(8)[np.arange(6)]) / 6\nreturn h.T @ g_, g_.sum(axis=0), -np.log(q[np.arange(6), np.arange(6)]).mean()",
    "exponential moving average": "out = np.empty_like(v)\nout[0] = v[0]\nfor i in range(1, 12):\n    out[i] = 0.3 * v[i] + 0.7 * out[i - 1]\nreturn out[:12]",
    "fill by loop": "out = np.zeros((4, 4))\nfor i in range(4):\n    for j in range(4):\n        out[i, j] = v[i] * w[j]\nreturn out",
    "loop over rows": "out = []\nfor r in a:\n    out.append(r.sum() / (1 + r.max()))\nreturn np.array(out)",
    "convergence loop": "q = v\nfor _ in range(10):\n    new = q * 0.5\n    if np.abs(new - q).max() < 0.2:\n        break\n    q = new\nreturn q",
    "while on data": "q = v\nwhile np.abs(q).max() > 0.5:\n    q = q / 2\nreturn q",
    "kalman": "z, pv = 0.0, 1.0\nout = []\nfor i in range(5):\n    g_ = pv / (pv + 0.5)\n    z = z + g_ * (v[i] - z)\n    pv = (1 - g_) * pv + 0.1\n    out.append(z)\nreturn np.array(out)",
    "viterbi": "sc = a[0]\nfor i in range(1, 6):\n    sc = (sc[:, None] + s[0, 0] * np.eye(8)).max(axis=0) + a[i]\nreturn sc, np.argmax(sc)",
    "floyd-warshall": "d = np.abs(s).copy()\nfor i in range(5):\n    d = np.minimum(d, d[:, i, None] + d[None, i, :])\nreturn d",
    "pagerank": "q = np.abs(s) / np.abs(s).sum(axis=0)\nr = np.ones(5) / 5\nfor _ in range(5):\n    r = 0.85 * q @ r + 0.15 / 5\nreturn r / r.sum()",
    "local function with default": "def scale(q, by=2.0, *, shift=1.0):\n    return q * by + shift\nreturn scale(v) + scale(w, shift=0.0)",
    "class in the function": "class Pair:\n    def __init__(self, q):\n        self.q = q\n\n    def double(self):\n        return self.q * 2\nreturn Pair(v).double()",
    "namedtuple in the function": "import collections\nStats = collections.namedtuple('Stats', 'mean std')\nq = Stats(v.mean(), v.std())\nreturn q.mean + q.std",
    "dataclass in the function": "import dataclasses\n@dataclasses.dataclass\nclass Stats:\n    mean: float\n    n: int = 0\nreturn Stats(v.mean(), 3).mean * 2",
    "with errstate": "with np.errstate(divide='ignore', invalid='ignore'):\n    q = np.where(w > 0, v / w, 0.0)\nreturn q",
    "assert": "assert v.ndim == 1 and v.shape == w.shape, 'shapes'\nreturn v + w",
    "check values": "if np.any(p <= 0):\n    raise ValueError('positive')\nreturn np.log(p)",
    "check finite": "if not np.isfinite(v).all():\n    raise ValueError('finite')\nreturn v / v.sum()",
    "isinstance": "y = np.asarray(v, dtype=np.float64)\nif isinstance(y, np.ndarray) and y.dtype.kind == 'f':\n    return y * 2\nreturn y",
    "atleast": "return np.atleast_1d(x) + v, np.atleast_2d(v) * 2, np.ascontiguousarray(a.T)",
    "rodrigues": "q = y5[:3] / np.linalg.norm(y5[:3])\nk_ = np.array([[0, -q[2], q[1]], [q[2], 0, -q[0]], [-q[1], q[0], 0]])\nreturn np.eye(3) + np.sin(x) * k_ + (1 - np.cos(x)) * k_ @ k_",
    "rotation": "r = np.array([[np.cos(x), -np.sin(x)], [np.sin(x), np.cos(x)]])\nreturn pts @ r.T",
    "rotation by data": "q = v[0]\nr = np.array([[np.cos(q), -np.sin(q)], [np.sin(q), np.cos(q)]])\nreturn pts @ r.T",
    "gaussian kernel": "q = np.arange(-2, 3)\nk_ = np.exp(-(q**2) / (2 * x**2))\nk_ /= k_.sum()\nreturn np.apply_along_axis(lambda r: np.convolve(r, k_, mode='same'), 0, img)",
    "loop filter": "out = np.zeros_like(img[1:-1, 1:-1])\nk_ = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16\nfor i in range(3):\n    for j in range(3):\n        out += k_[i, j] * img[i : i + 14, j : j + 10]\nreturn out",
    "train and test split": "i = rng.permutation(len(v))\nreturn v[i[:30]], v[i[30:]]",
    "metropolis": "q = 0.0\nout = []\nfor _ in range(5):\n    new = q + rng.normal()\n    if rng.random() < np.exp(-(new**2) / 2 + q**2 / 2):\n        q = new\n    out.append(q)\nreturn np.array(out)",
    "median filter": "q = np.lib.stride_tricks.sliding_window_view(img, (3, 3))\nreturn np.median(q, axis=(-2, -1))",
    "try": "try:\n    return np.linalg.inv(s) @ y5\nexcept np.linalg.LinAlgError:\n    return y5",
    "knn": "d = ((pts[:, None] - cen[None]) ** 2).sum(-1)\ni = np.argsort(d, axis=0)[:5]\nreturn k[:30][i].mean(axis=0)",
    "gram-schmidt": "q = np.zeros_like(s)\nfor j in range(5):\n    c_ = s[:, j].copy()\n    for i in range(j):\n        c_ -= (q[:, i] @ s[:, j]) * q[:, i]\n    q[:, j] = c_ / np.linalg.norm(c_)\nreturn q",
    "lagrange": "out = np.zeros_like(p)\nfor i in range(4):\n    t_ = v[i] * np.ones_like(p)\n    for j in range(4):\n        if i != j:\n            t_ *= (p - xs[j]) / (xs[i] - xs[j])\n    out += t_\nreturn out",
}
# What ends the graph, and why.
BRANCH = "a branch on a value in the outermost function ends a graph"
DRAWS = "the state of a generator is outside of the graph"
NUMBER = "a number that data decides goes on into Python"
DTYPE = "a dtype that framejit does not have"
CLASS = "a class is made in the function"
CALLBACK = "NumPy calls the function for one row, or one element, after the other"
EXCEPTIONS = {
    **dict.fromkeys(("masked mean", "scalar branch", "max of scalars", "convergence loop", "while on data"), BRANCH),
    "metropolis": DRAWS,
    **dict.fromkeys(("float of a mean", "float used", "float in math", "tolist", "string of an array", "nan argument", "split at data"), NUMBER),
    **dict.fromkeys(("datetime", "datetime and floats", "object array", "strings", "structured"), DTYPE),
    **dict.fromkeys(("namedtuple in the function", "dataclass in the function"), CLASS),
    **dict.fromkeys(("apply_along_axis", "vectorize", "gaussian kernel"), CALLBACK),
    "fromiter": "a generator is consumed by C code",
    "broadcast_arrays": "views of several arrays at once",
    "eig": "data decides whether the result is complex",
    **dict.fromkeys(("linear regression", "polyfit"), "the rank decides how many residuals numpy.linalg.lstsq gives"),
}


ENTRIES = {**one_line_bodies(LINES), **STATEMENTS}


def _program(source):
    """(function, its operands' makers)"""
    tree = ast.parse(f"def entry():\n{textwrap.indent(source, '    ')}")
    made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and (node.id not in made or node.id in OPERANDS)]
    names = [name for name in dict.fromkeys(used) if name in OPERANDS]
    scope = {"np": np, "math": math}
    exec(compile(f"def entry({', '.join(names)}):\n{textwrap.indent(source, '    ')}\n", "<numpy program>", "exec"), scope)
    return scope["entry"], lambda: tuple(OPERANDS[name]() for name in names)


def _in_longdouble(program, make):
    """{path: value} of the program on wider floats; empty where it does not take them."""
    try:
        wide = tuple(a.astype(np.longdouble) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in make())
        return dict(observe(program, lambda: wide).values)
    except Exception:
        return {}


def check(name, call, compiled, program, make):
    got, expected = observe(compiled, make), observe(program, make)
    try:
        compare(name, call, got, expected)
    except AssertionError as error:
        truth = _in_longdouble(program, make)
        if "error" not in str(error) or not truth:  # NumPy's own rounding errors are more than the oracle takes them for
            raise
        for (path, mine), (_, its) in zip(got.values, expected.values):
            oracle.check(mine, its, truth.get(path), what=f"{name}, call {call + 1}: {path}")


@pytest.mark.parametrize("name", ENTRIES)
def test_program(name):
    program, make = _program(ENTRIES[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = framejit.explain(framejit.compile(program))(*make())
    left = framejit.config.leave and any("left to NumPy" in note for note in told.notes)  # as shipped (--shipped)
    assert (told.graph_count, told.graph_break_count) == (0 if left else 1, 0) or name in EXCEPTIONS, told
    assert told.graph_break_count or told.graph_count != 1 or name not in EXCEPTIONS, "it does not break any more"
    compiled = framejit.compile(_program(ENTRIES[name])[0])
    for call in range(3):
        check(name, call, compiled, program, make)


@pytest.mark.clock
@pytest.mark.parametrize("name", ["sort", "put", "unique", "mask select", "Black-Scholes", "fill by loop"])
def test_what_numpy_does_as_fast_is_left_to_it(name):
    program, make = _program(ENTRIES[name])
    compiled = framejit.compile(program)
    with framejit.config.patch(leave=True):
        for call in range(3):
            check(name, call, compiled, _program(ENTRIES[name])[0], make)
    left = any("left to NumPy" in note for note in compiled.cache_info()["notes"])
    with framejit.config.patch(leave=True):
        told = framejit.explain(compiled)(*make())
    assert ("left to NumPy" in str(told)) == left == (told.graph_count == 0)
    assert left == (name not in ("Black-Scholes", "fill by loop"))


@pytest.mark.clock
def test_a_left_function_is_compiled_for_other_arguments():
    def program(v, much):
        if much:
            return np.sort(np.exp(-((v - v.mean()) ** 2)) * 2 + 1)
        return np.sort(v)

    compiled, v = framejit.compile(program), OPERANDS["v"]()
    with framejit.config.patch(leave=True):
        for much in (False, True, False, True):
            assert np.allclose(compiled(v, much), program(v, much))
    assert compiled.cache_info()["kernels"] > 0


def test_masks_of_any_number_of_elements():
    def program(v, m):
        y = v.copy()
        y[m] = v[m] * 2
        return y, v[m], np.nonzero(m)[0], np.unique(v[m] > 0), (v[m] + 1).sum()

    compiled = framejit.compile(program)
    for count in (5, 0, 1, 40, 7):
        make = lambda: (OPERANDS["v"](), np.arange(40) < count)  # noqa: E731
        compare("masks", count, observe(compiled, make), observe(program, make))


def test_counts_beyond_the_length_that_was_asked_for():
    def program(k):
        return np.bincount(k, minlength=4) * 2 + 1

    compiled = framejit.compile(program)
    for most in (3, 9, 2, 4, 3):
        make = lambda: (np.arange(most + 1),)  # noqa: E731
        compare("bincount", most, observe(compiled, make), observe(program, make))


def test_out_that_overlaps_its_operand_and_out_of_another_type():
    def program(a, f, i):
        np.add(a[:-1], a[1:], out=a[1:])
        np.multiply(f, 2, out=f)
        np.add(f, f, out=a[:1, :7][0])
        np.cumsum(i, out=i)
        return a, f, i

    compiled = framejit.compile(program)
    for call in range(3):
        make = lambda: (OPERANDS["a"](), OPERANDS["f"]()[0], OPERANDS["i32"]())  # noqa: E731
        compare("out", call, observe(compiled, make), observe(program, make))


def test_writes_that_raise_leave_nothing_behind():
    def program(v, k):
        v[0] = 5.0
        v[k] = 1.0
        np.add.at(v, k, 2.0)
        return v * 2

    compiled = framejit.compile(program)
    for last in (3, 39, 40, 4, -41):
        make = lambda: (OPERANDS["v"](), np.array([1, 1, last]))  # noqa: E731
        compare("writes", last, observe(compiled, make), observe(program, make))


@pytest.mark.parametrize("size", [40, 10000])
def test_many_writes_into_one_array(size):
    def program(v, k):
        y = np.zeros(v.shape)
        for i in range(5):
            y[k + i] = v[k] * i
            if i == 2:
                z = y * 2
        np.add.at(y, k, 1.0)
        y.sort()
        np.add.at(v, k, 1.0)
        return y, z, v

    compiled = framejit.compile(program)
    for call in range(3):
        make = lambda: (RNG(call).normal(size=size), RNG(call).integers(0, 30, size=12))  # noqa: E731,B023
        compare("writes", call, observe(compiled, make), observe(program, make))


def test_arguments_that_take_the_call_over():
    class Own:
        def __array_function__(self, func, types, args, kwargs):
            return func.__name__

    def program(v, own):
        return np.nanmean(own), np.flipud(own), np.concatenate([v, own]), np.sort(v)

    compiled = framejit.compile(program)
    for call in range(2):
        make = lambda: (OPERANDS["v"](), Own())  # noqa: E731
        compare("own", call, observe(compiled, make), observe(program, make))


def test_read_only_arrays_are_not_written():
    def program(v):
        w = np.broadcast_to(v, (2, 40))
        w[0] = 1.0
        return w

    def sort(v):
        v.sort()
        return v

    frozen = OPERANDS["v"]()
    frozen.flags.writeable = False
    for program, made in ((program, OPERANDS["v"]()), (sort, frozen)):
        compiled = framejit.compile(program)
        for call in range(2):
            compare("read-only", call, observe(compiled, lambda: (made,)), observe(program, lambda: (made,)))


def test_all_nan_slices_warn():
    def program(x):
        return np.nanmean(x, axis=0) + np.nanmax(x, axis=0)

    compiled = framejit.compile(program)
    full, holes = np.ones((3, 4)), np.ones((3, 4))
    holes[:, 1] = np.nan
    for call, x in enumerate((full, holes, full, holes)):
        compare("nan", call, observe(compiled, lambda: (x,)), observe(program, lambda: (x,)))


def test_the_exceptions_are_of_entries():
    assert not EXCEPTIONS.keys() - ENTRIES.keys()
