"""Sums and what is made of them have the bits of NumPy's: random arrays that the program makes of others, of random shapes and orders in memory,
summed over random axes, one beside the other, in calls with changing sizes."""

import linecache
import random
import re
import warnings

import fuzzing
import pytest

np = pytest.importorskip("numpy")

SIZES = 0, 1, 2, 3, 7, 8, 9, 16, 127, 128, 129, 300, 1000, 8200, 20_000
MOST = 30_000  # elements: sums of more are cut for several threads
ORDERS = "C", "F", "permuted", "strided", "backwards", "broadcast", "inner"
DTYPES = ["float64"] * 3 + ["float32"] * 3 + ["float16", "int64", "int16", "bool"]


def array(source, shape, dtype, order):
    """An array of this shape that lies in memory as `order` says."""

    def fill(shape):
        values = source.standard_normal(shape)
        return (values if dtype.startswith("float") else values * 9).astype(dtype)

    axes = len(shape)
    if order == "F":
        return np.asfortranarray(fill(shape))
    if order == "permuted":
        turned = list(np.random.default_rng(axes).permutation(axes))
        return fill([shape[t] for t in turned]).transpose(np.argsort(turned))
    if order == "strided":
        return fill([2 * s for s in shape])[tuple(slice(None, None, 2) for _ in shape)]
    if order == "backwards":
        return fill(shape)[tuple(slice(None, None, -1) for _ in shape)]
    if order == "broadcast":
        return np.broadcast_to(fill([1, *shape[1:]]), shape)
    if order == "inner":
        return np.broadcast_to(fill([*shape[:-1], 1]), shape)
    return fill(shape)


class Program:
    """The text of `program(a, b, v)`: a and b have one shape, v that of the last axis."""

    def __init__(self, seed):
        r = self.random = random.Random(seed)
        self.axes = r.choice([1, 2, 2, 2, 3, 3, 4])
        self.dtype = r.choice(DTYPES)
        self.orders = [r.choice(ORDERS) if r.random() < 0.5 else "C" for _ in range(2)]
        lines, arrays = [], ["a", "b"]
        for n in range(r.randint(1, 3)):
            lines.append(f"m{n} = {self.made(r.choice(arrays), r.choice(arrays))}")
            arrays.append(f"m{n}")
        results = [self.reduction(arrays) for _ in range(r.choice([1, 1, 1, 2, 2, 3]))]
        if r.random() < 0.15:
            results.append(arrays[-1])
        self.extremes = [re.search(r"\.(min|max)\(", result) is not None for result in results]
        for n, result in enumerate(results):
            lines.append(f"s{n} = {result}")
        out = ", ".join(f"s{n}" for n in range(len(results)))
        self.text = "def program(a, b, v):\n" + "".join(f"    {line}\n" for line in lines) + f"    return {out}\n"
        self.calls = [self.shape() for _ in range(4)]
        if r.random() < 0.4:
            self.calls = self.calls[:1] * 4

    def shape(self):
        while True:
            shape = [self.random.choice(SIZES) for _ in range(self.axes)]
            if np.prod([max(1, s) for s in shape]) <= MOST:
                return shape

    def made(self, x, y):
        r = self.random
        float_ = self.dtype.startswith("float")
        return r.choice([
            f"{x} + 1", f"{x} * {y}", f"{x} - {y}" if self.dtype != "bool" else f"{x} ^ {y}", f"{x} * 3", f"abs({x})",
            f"np.maximum({x}, {y})", f"np.where({x} > {y}, {x}, {y})", f"{x} + v", f"{x}.copy()", f"{x}[...,::-1] + {y}",
            f"{x}.transpose({', '.join(map(str, r.sample(range(self.axes), self.axes)))}).copy().reshape({x}.shape)",
            f"np.ascontiguousarray({x})", f"{x}.T.T + {y}",
            *([f"np.sqrt(abs({x}))", f"{x} / (1 + abs({y}))", f"{x} ** 2", f"{x} - {x}.mean()", f"{x} - 0.5"] if float_ else []),
        ])  # fmt: skip

    def reduction(self, arrays):
        r = self.random
        x = r.choice(arrays[-2:])
        count = r.randint(0, self.axes)
        axes = tuple(a - r.choice([0, self.axes]) for a in sorted(r.sample(range(self.axes), count)))
        axis = r.choice(["None", str(axes), str(axes[0]) if axes else "-1"])
        keep = r.choice(["", "", ", keepdims=True"])
        one = r.choice([str(r.randrange(self.axes)), "-1"])
        if r.random() < 0.15:
            x = r.choice([f"{x}.T", f"{x}[..., ::-1]", f"{x}[1:]", f"{x}.ravel()", f"{x}[..., 1:]", f"{x}[..., ::2]", f"{x}.T[1:]"])
            axis, keep, one = r.choice(["None", "0", "-1"]), "", "-1"
        name = r.choice(["sum"] * 6 + ["mean", "mean", "var", "std", "max", "min", "prod"])
        return r.choice([f"{x}.{name}(axis={axis}{keep})"] * 3 + [
            f"np.{name}({x}, axis={axis}{keep})", f"np.add.reduce({x}, axis={axis}{keep})", f"np.cumsum({x}, axis={one})",
            f"np.nansum({x}, axis={axis}{keep})", f"np.linalg.norm({x} + 0, axis={one})", f"np.average({x}, axis={one})",
            f"np.outer({x}.ravel()[:90], v[:40]).sum({r.choice(['', '0', '1', '-1'])})", f"({x} + {x}.sum(axis={one}, keepdims=True)).sum(axis={axis})",
            f"np.sum({x}, axis={axis}, where={x} > 0)", f"{x}.{r.choice(['sum', 'mean', 'prod'])}(axis={axis}, dtype=np.float{r.choice([32, 64])}{keep})",
        ])  # fmt: skip


def outcome(function, arguments):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(*arguments)
        except Exception as error:
            return type(error), str(error)


def bits(x, extreme=False):
    """What two results must have in common. An extreme that is zero has either sign: which one NumPy's has where zeros of both signs are asked
    depends on the vectors of its processor."""
    if isinstance(x, tuple):
        return [bits(e) for e in x]
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    values = np.array(x)
    if values.dtype.kind in "fc":
        values[np.isnan(values)] = np.nan
    if extreme:
        values[values == 0] = 0
    strides = [s for s, n in zip(x.strides, x.shape) if n > 1] if isinstance(x, np.ndarray) and x.size else []
    return type(x), x.dtype, x.shape, strides, values.tobytes()


def told(out, extremes):
    """The bits of each result, or what was raised."""
    return type(out), [bits(e, x) for e, x in zip(out if isinstance(out, tuple) else (out,), [*extremes, False])]


def run(seed, framejit):
    program = Program(seed)
    name = f"<sums {seed}>"
    linecache.cache[name] = len(program.text), None, program.text.splitlines(True), name
    space = {"np": np}
    exec(compile(program.text, name, "exec"), space)
    eager = space["program"]
    compiled = framejit.compile(eager)
    source = np.random.default_rng(seed)
    for number, shape in enumerate(program.calls):
        arguments = [array(source, shape, program.dtype, order) for order in program.orders] + [array(source, shape[-1:], program.dtype, "C")]
        want, got = outcome(eager, arguments), outcome(compiled, arguments)
        if told(want, program.extremes) != told(got, program.extremes):
            raise AssertionError(f"call {number} of {program.calls}, {program.dtype}, {program.orders}\n{program.text}\nframejit: {got}\nNumPy:    {want}")


def three(shape):
    return np.random.default_rng(0).standard_normal(shape)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "f, shapes",
    [
        (lambda a: (a + 1).sum((0, 2)), [(9, 4, 33), (5, 1, 200), (5, 7, 200)]),
        (lambda a: (a * 3).sum((0, 2), keepdims=True), [(3, 4, 5), (3, 4, 1), (1, 4, 9)]),
        (lambda a: ((a + 1).max(-1), (a + 1).sum(-1), (a + 1).min(-1)), [(6, 300), (6, 7), (1, 9)]),
        (lambda a: ((a + 1).sum(), (a + 1).prod(), (a + 1).argmax()), [(6, 300), (6, 7), (1, 9)]),
        (lambda a: (a + 1).sum(0), [(40, 7), (40, 1), (50, 1), (50, 3), (1, 1)]),
        (lambda a: np.outer(a[:, 0] * 2, np.ones(a.shape[1], a.dtype)).sum(0), [(90, 40), (90, 1), (17, 3)]),
        (lambda a: (np.exp(a) * 0 + a).sum(1), [(3, 500), (3, 129), (2, 8)]),
        (lambda a: ((a * 0.01 + 1).prod(1), (a * 0.01 + 1).prod(0), (a * 0.01 + 1).prod()), [(16, 300), (9, 7)]),
        (lambda a: np.cumsum(a + 1, axis=1), [(4, 1000), (4, 3)]),
        (lambda a: (a[..., ::-1] + a).ravel().prod(), [(16, 16), (16, 3)]),
        (lambda a: (a * 2).sum(), [(512, 128), (512, 128)]),  # cut in eighths
        (lambda a: (a[..., ::-1].sum(), a.sum()), [(40, 300), (300, 17), (2, 300)]),
        (lambda a: ((a * 2)[::-2, ::-1].sum(), np.add.reduce((a * 2).T[::-1, ::-3], 1)), [(40, 300), (300, 17), (2, 300)]),
    ],
)
def test_order(fresh, f, shapes, dtype):
    compiled = fresh.compile(f)
    for shape in shapes:
        a = three(shape).astype(dtype)
        assert bits(compiled(a)) == bits(f(a)), shape
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": len(shapes)}
    assert info["segments"] <= 4


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("order", ["C", "F", "permuted", "broadcast", "inner"])
@pytest.mark.parametrize(
    "f",
    [
        lambda a: a.T.copy().T.sum(axis=1),
        lambda a: np.nansum(a.T.copy().T),
        lambda a: (a.copy().max(), np.average(np.ascontiguousarray(a.copy()), axis=1)),
        lambda a: np.nansum(a.copy(), axis=(-2, 1)),
        lambda a: (np.nansum(np.maximum(a, a), axis=(-2, 1)), np.nansum(np.maximum(a, a)[1:], axis=0)),
        lambda a: np.nansum(np.where(a > a, a, a).T.copy().reshape(a.shape), axis=None),
        lambda a: np.nansum(a.ravel().copy().reshape(a.shape), axis=None),
    ],
)
def test_calls_see_copies_as_they_lie(fresh, f, order, dtype):
    compiled = fresh.compile(f)
    for shape in [(127, 33), (127, 33), (7, 8)]:
        a = array(np.random.default_rng(0), shape, dtype, order)
        assert bits(compiled(a)) == bits(f(a)), shape
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 3}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("late", [False, True])
def test_calls_see_copies_as_they_lie_where_a_size_is_found_to_be_one(fresh, order, late):
    def f(a, b):
        m = a.transpose(2, 0, 1).copy().reshape(a.shape)
        n = a + b if not late else None
        return np.nansum(m), m.sum(), np.nansum(m, axis=0), a + b if late else n

    compiled = fresh.compile(f)
    for shape in [(5, 3, 2), (128, 7, 1), (128, 9, 1), (64, 9, 1)]:
        a, b = (array(np.random.default_rng(n), s, "float32", order) for n, s in enumerate([shape, shape[-1:]]))
        assert bits(compiled(a, b)) == bits(f(a, b)), shape
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 4}


@pytest.mark.parametrize("order", ["C", "F"])
def test_sums_of_views_that_another_kernel_makes(fresh, order):
    def f(a, b):
        m = a + 1
        n = m[..., ::-1] + b
        return n.T.mean(), np.sort(m, axis=None)

    compiled = fresh.compile(f)
    for shape in [(3, 127, 3), (8, 128, 7), (8, 127, 16)]:
        a, b = (array(np.random.default_rng(n), shape, "float64", order) for n in range(2))
        assert bits(compiled(a, b)) == bits(f(a, b)), shape
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 3}


@pytest.mark.parametrize("order", ["C", "F", "permuted"])
@pytest.mark.parametrize(
    "f",
    [
        lambda a: (a * 3)[:, 1:].sum(),
        lambda a: (a * 3)[1:].sum(axis=None),
        lambda a: (a * 3)[1:, ::2].T.mean(),
        lambda a: ((a * 3)[1:], (a * 3).T[1:].std()),
        lambda a: (np.nansum(np.square(a)), np.nansum(np.square(a).copy(), axis=1), np.nansum(np.square(a).T)),
        lambda a: np.sum(a.transpose(1, 0).copy().reshape(a.shape).T, axis=0),
    ],
)
def test_numpy_sees_views_with_their_gaps(fresh, f, order):
    compiled = fresh.compile(f)
    for shape in [(40, 300), (129, 131), (129, 200)]:
        a = array(np.random.default_rng(0), shape, "float64", order)
        assert bits(compiled(a)) == bits(f(a)), shape
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 3}


@pytest.mark.parametrize(
    "dtype, f",
    [
        ("float16", lambda a: ((a * 1).sum(0), (a * 1).mean(1), (a * 0.1).var(), (a * 0.01 + 1).prod(1))),
        ("float32", lambda a: ((a * 1).sum(0, dtype=np.float64), (a * 1).mean(dtype=np.float64))),
        ("float64", lambda a: ((a * 1).sum(0, dtype=np.float32), np.cumsum(a * 1, dtype=np.float32))),
        ("int64", lambda a: ((a * 2**50).mean(0), (a * 2**50).std())),
        ("int32", lambda a: ((a * 2).mean(0), (a > 1).mean(1), (a * 2).sum(dtype=np.float32))),
    ],
)
def test_sums_of_what_is_converted(fresh, f, dtype):
    compiled = fresh.compile(f)
    for shape in [(129, 33), (300, 7), (40, 300)]:
        a = (three(shape) * 5).astype(dtype)
        assert bits(compiled(a)) == bits(f(a)), shape
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 3}


def test_products_beside_scans_that_go_the_other_way(fresh):
    def f(a, b):
        m = b * b
        return np.cumsum(m, axis=-1), (m[..., ::-1] + a).prod(axis=-1)

    compiled = fresh.compile(f)
    for n in (9, 40, 41):
        a, b = (np.random.default_rng(k).standard_normal(n).astype("float32") for k in range(2))
        assert bits(compiled(a, b)) == bits(f(a, b)), n
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 3}


@pytest.mark.parametrize("order", ["C", "F", "permuted"])
def test_results_lie_as_those_of_empty_views(fresh, order):
    def f(a):
        m = a + 1
        n = m.transpose(1, 2, 0).copy().reshape(m.shape)
        return m[1:].sum(axis=0), np.sum(m[1:], axis=0, where=m[1:] > 0), np.sum(n.T, axis=0), (m.T[:0] * 1).sum(0)

    compiled = fresh.compile(f)
    for shape in [(1, 16, 3), (2, 9, 0), (0, 9, 2), (4, 5, 6)]:
        a = array(np.random.default_rng(0), shape, "float64", order)
        assert bits(compiled(a)) == bits(f(a)), shape


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_scans_keep_the_sign_of_zero(fresh, dtype):
    def f(a):
        return np.cumsum(a * 1, axis=0), np.cumsum(a * 1, axis=1), np.cumsum(a * 1), np.sum(a * 1, axis=()), np.mean(a * 1, axis=())

    compiled = fresh.compile(f)
    for shape in [(4, 3), (40, 33), (1, 5)]:
        a = np.full(shape, -0.0, dtype)
        assert bits(compiled(a)) == bits(f(a)), shape
    assert fresh.cache_info(compiled)["outcomes"]["run"] == {"graph": 3}


@pytest.mark.parametrize("shape", [(0, 7, 3), (7, 0, 3), (64, 9, 0)])
def test_sums_of_nothing(fresh, shape):
    def f(x):
        m = x + 1
        return m.reshape(-1).prod(), m.prod(axis=(0, 2)), m.reshape(-1).sum(), m.sum(axis=(0, 2)), m.sum(axis=1)

    compiled = fresh.compile(f)
    a = np.zeros(shape, "float32")
    for _ in range(3):
        assert bits(compiled(a)) == bits(f(a))
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 3}


@pytest.mark.parametrize("shape", [(0, 7, 3), (7, 0, 3), (64, 9, 0)])
def test_sums_of_nothing_of_tensors(fresh, shape):
    torch = pytest.importorskip("torch")

    def f(x):
        m = x + 1
        return m.reshape(-1).sum(), m.sum((0, 2)), m.sum(1)

    compiled = fresh.compile(f)
    x = torch.zeros(shape)
    for _ in range(3):
        for got, want in zip(compiled(x), f(x)):
            assert torch.equal(got, want)
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 3}


@pytest.mark.parametrize("seed", [86135005603, 86152000957])
def test_extremes_that_are_zero_have_either_sign(seed, fresh):
    assert True in Program(seed).extremes
    run(seed, fresh)
    assert told(np.zeros(2), [True]) == told(-np.zeros(2), [True]) != told(np.ones(2), [True])
    assert told((np.zeros(2), np.zeros(2)), [True, False]) != told((np.zeros(2), -np.zeros(2)), [True, False])


@pytest.mark.parametrize("part", range(4))
def test_some_sums(part, fresh):
    for seed in range(20 * part, 20 * part + 20):
        run(seed, fresh)


@pytest.mark.parametrize("seed", [46000013, 46000458, 46000933, 46002797, 46002941])
def test_sums_of_what_lies_backwards(seed, fresh):
    run(seed, fresh)


@pytest.mark.fuzz
@pytest.mark.slow
def test_random_sums(fresh):
    fuzzing.check(lambda seed: run(seed, fresh), fresh, 30)
