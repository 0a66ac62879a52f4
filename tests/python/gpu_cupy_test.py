"""Compiled functions on CuPy's arrays against CuPy itself. Needs a GPU and CuPy: `tools/dev gpu-test`; not collected otherwise."""

import gc
import threading

import pytest

np = pytest.importorskip("numpy")
cupy = pytest.importorskip("cupy")
if not cupy.is_available():
    pytest.skip("no GPU", allow_module_level=True)

import framejit  # noqa: E402

random = np.random.default_rng(0)
TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}


def array(*shape, dtype="float32", low=-2.0, high=2.0):
    return cupy.asarray(np.asarray(random.uniform(low, high, shape)).astype(dtype))


def same(got, want):
    assert type(got) is type(want), (type(got), type(want))
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w)
        return
    if not isinstance(want, cupy.ndarray):
        np.testing.assert_array_equal(got, want)
        return
    assert (got.dtype, got.shape, got.strides, got.device) == (want.dtype, want.shape, want.strides, want.device)
    g, w = cupy.asnumpy(got), cupy.asnumpy(want)
    tolerance = TOLERANCE.get(str(w.dtype))
    if tolerance is None:
        np.testing.assert_array_equal(g, w)
        return
    scale = np.max(np.abs(w[np.isfinite(w)]), initial=0) if w.ndim else 0
    np.testing.assert_allclose(g.astype("f8"), w.astype("f8"), rtol=4 * tolerance, atol=float(scale) * tolerance, equal_nan=True)


def check(f, *arguments, graphs=1, kernels=None):
    compiled = framejit.compile(f)
    compiled.clear()
    for _ in range(3):
        same(compiled(*arguments), f(*arguments))
    if graphs is not None:
        assert len(compiled.graphs) == graphs, compiled.graphs
        told = framejit.explain(f)(*arguments)
        assert told.graph_break_count == (0 if graphs == 1 else told.graph_break_count), told.break_reasons
    return compiled


UNARY = """abs negative positive exp exp2 expm1 log log2 log10 log1p sqrt square sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh
 arctanh ceil floor trunc rint isnan isinf isfinite signbit logical_not sign deg2rad sum mean prod max min ptp any all argmax argmin
 var std cumsum copy zeros_like ones_like flip tril triu ravel transpose""".split()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "bool"])
def test_functions_of_one_array(dtype):
    x = array(5, 8) if dtype != "bool" else array(5, 8) > 0
    x = x if dtype == "bool" else (x * 3).astype(dtype)
    nan = cupy.asarray(np.array([1, np.nan, np.inf, -np.inf, 0.0, -0.0])).astype(dtype) if "float" in dtype else x[0]
    done = 0
    for name in UNARY:
        f = getattr(cupy, name)
        try:
            want = f(x)
        except TypeError:
            continue
        compiled = framejit.compile(lambda a: f(a))
        tolerant = dtype == "float16" and name in ("prod", "sum", "mean", "var", "std", "cumsum")
        for a in (x, x, nan):
            if a is nan and name in ("tril", "triu", "transpose"):
                continue
            got = compiled(a)
            if tolerant:
                cupy.testing.assert_allclose(got.astype("f8"), f(a).astype("f8"), rtol=2e-2, err_msg=name)
            else:
                try:
                    same(got, f(a))
                except AssertionError as error:
                    raise AssertionError(f"{name} of {dtype}: {error}") from None
        same(compiled(x), want) if not tolerant else None
        done += len(compiled.graphs) > 0
    assert done >= {"float32": 40, "float64": 40, "float16": 40, "int32": 30, "bool": 18}[dtype], done


BINARY = """add subtract multiply divide floor_divide remainder fmod maximum minimum fmax fmin hypot copysign equal less greater_equal
 logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor left_shift right_shift matmul dot outer power""".split()


@pytest.mark.parametrize("types", ["float32 float32", "float64 float32", "int32 int32", "int8 float16", "int64 int32", "bool float32", "bool bool"])
def test_functions_of_two_arrays(types):
    s, t = types.split()

    def make(t):
        return array(6, 6) > 0 if t == "bool" else array(6, 6, low=1, high=4).astype(t)

    for name in BINARY:
        f, x, y = getattr(cupy, name), make(s), make(t)
        try:
            f(x, y)
        except TypeError:
            continue
        zeros = y * 0 if t != "bool" else y
        compiled = framejit.compile(lambda a, b: f(a, b))
        for b in (y, y, zeros):
            try:
                same(compiled(x, b), f(x, b))
            except AssertionError as error:
                raise AssertionError(f"{name} of {types}: {error}") from None


def test_numbers():
    x, i = array(4, 5), array(4, 5).astype("int8")
    for f in (lambda a: a * 2 + 1, lambda a: 1 / (a + 3), lambda a: a**2, lambda a: a - 2.5, lambda a: a > 0):
        for a in (x, i, x.astype("f2")):
            check(f, a)
    check(lambda a: 3 // (abs(a) + 1), x, graphs=None)


def test_numpy_functions_on_cupys_arrays():
    x, y = array(64, 32), array(32)
    check(lambda a, b: np.exp(np.sin(a) + b).sum(axis=1), x, y)
    check(lambda a: np.where(a > 0, np.sqrt(np.abs(a)), np.zeros_like(a)), x)
    check(lambda a, b: np.concatenate([a, np.tanh(a)]) * np.mean(b), x, y)
    check(lambda a: np.add(a, 1).max(), x)


def test_programs():
    x, w, b = array(128, 64), array(64, 32), array(32)

    def layer(x, w, b):
        h = cupy.tanh(x @ w + b)
        return (h - h.mean(0)) / cupy.sqrt(h.var(0) + 1e-5)

    def softmax(x):
        e = cupy.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def kmeans(x, centers):
        distance = ((x[:, None, :] - centers[None, :, :]) ** 2).sum(-1)
        return cupy.argmin(distance, axis=1), distance.min(axis=1)

    def black_scholes(s, k, t):
        d = (cupy.log(s / k) + 0.5 * t) / cupy.sqrt(t)
        return s * (1 + cupy.tanh(0.8 * d)) / 2 - k * cupy.exp(-t)

    check(layer, x, w, b)
    assert check(softmax, x).cache_info()["kernels"] == 1
    check(kmeans, x, x[:7])
    check(black_scholes, *(array(1000, low=0.5, high=2.0, dtype="float64") for _ in range(3)))
    grid = cupy.linspace(0, 1, 100)
    check(lambda g: cupy.arange(100) * g + cupy.zeros(100) + cupy.full((100,), 2.5), grid, graphs=1 if cupy.cuda.runtime.getDeviceCount() == 1 else None)


def test_views_and_layouts():
    x = array(6, 8)
    check(lambda a: (a.T + 1, a[1::2, ::-1] * 2, a.reshape(4, 12), a[0], a[0, 0], a[..., 1]), x)
    check(lambda a: a.T.reshape(-1) + 1, x)
    check(lambda a: a.T.astype("float64"), x)
    check(lambda a: a.T.sum(0), x)
    check(lambda a: cupy.transpose(a.reshape(2, 3, 8), (2, 0, 1)) * 2, x)
    view = framejit.compile(lambda a: (a * 1, a[2:]))(x)[1]
    view += 1  # it is x's memory
    assert float(x[2, 0]) == float(view[0, 0])
    item = framejit.compile(lambda a: (a * 1, a[0, 0]))(x)[1]
    item += 1
    assert float(x[0, 0]) == float(item)
    empty = x[:0]
    check(lambda a: a * 2 + 1, empty)


def test_indices_go_round():
    x = array(6, 4)
    i = cupy.asarray([0, -1, 7, -9, 100])
    check(lambda a, i: a[i] * 2, x, i)
    check(lambda a, i: cupy.take(a, i, axis=0) + 1, x, i)
    check(lambda a, i: a[i, i % 4] + 1, x, i)


def test_writes():
    def step(a, b):
        a += b * 2
        a[1:3] = 0
        a[a > 1] = 1
        return a.sum()

    eager, compiled = array(5, 7), None
    mine, b = eager.copy(), array(5, 7)
    compiled = framejit.compile(step)
    for _ in range(4):
        same(compiled(mine, b), step(eager, b))
        same(mine, eager)
    with pytest.raises(TypeError):
        framejit.compile(lambda a: a.__iadd__(1.5))(eager.astype("int32"))


def test_other_arrays_than_captured():
    f = framejit.compile(lambda a: a * 2 + 1)
    for a in (array(3), array(3), array(4), array(3).astype("float64"), array(3, 3).T, np.ones(3), 2.0, array(3), array(), array(0)):
        same(f(a), a * 2 + 1)
    big = framejit.compile(lambda a: a * 2 + 1, dynamic=True)
    for n in (5, 6, 100, 100000):
        a = array(n)
        same(big(a), a * 2 + 1)
    assert len(big.graphs) == 1
    with pytest.raises(TypeError):
        framejit.compile(lambda a, b: a + b)(array(3), np.ones(3))
    check(lambda a: a * np.float64(0.5), array(3), graphs=None)


def test_streams():
    """Work goes to CuPy's current stream, memory comes from its allocator."""
    f = framejit.compile(lambda a, b: (a @ b).sum(axis=0) * 2 + 1)
    a, b = array(512, 512, dtype="float64"), array(512, 512, dtype="float64")
    want = (a @ b).sum(axis=0) * 2 + 1
    same(f(a, b), want)
    cupy.cuda.Device().synchronize()
    for _ in range(5):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            for _ in range(3):
                c = a * 1
            got = f(c, b)
            before = cupy.cuda.get_current_stream().ptr
            assert before == stream.ptr
        stream.synchronize()
        same(got, want)
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        used = pool.used_bytes()
        kept = f(a, b)
        assert pool.used_bytes() > used
        del kept
    gc.collect()


def test_threads():
    f = framejit.compile(lambda a: cupy.exp(a).sum(axis=1))
    x = array(64, 64)
    want, wrong = f(x), []
    cupy.cuda.Device().synchronize()

    def run():
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                for _ in range(50):
                    got = f(x)
                    stream.synchronize()
                    if not bool((got == want).all()):
                        wrong.append(1)
        except Exception as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not wrong


def test_memory_comes_back():
    f = framejit.compile(lambda a: cupy.tanh(a @ a + 1) * a)
    x, pool = array(256, 256), cupy.get_default_memory_pool()
    f(x)
    gc.collect()
    before = pool.used_bytes()
    for _ in range(10):
        f(x)
    assert pool.used_bytes() == before


def test_what_is_not_known_runs_in_cupy():
    x = array(6, 6)
    check(lambda a: cupy.linalg.norm(a * 2, axis=1) + 1, x, graphs=None)
    check(lambda a: cupy.sinc(a + 1) * 2, x, graphs=None)
    check(lambda a: float((a * 2).sum()), cupy.ones(3), graphs=None)
    check(lambda a: cupy.fft.fft(a * 2).real + 1, x, graphs=None)
    kernel = cupy.ElementwiseKernel("T x", "T y", "y = x * x", "square_it")
    check(lambda a: kernel(a + 1) + 1, x, graphs=None)
    check(lambda a: cupy.reciprocal(a.astype("int32")), x * 0, graphs=None)
    check(lambda a: cupy.asnumpy(a * 2).sum(), cupy.ones(3), graphs=None)
