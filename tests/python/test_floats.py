"""Python floats that change between calls: symbols from the second value on, exactly as Python and the framework compute with them."""

import itertools
import math
import struct
import time

import pytest

VALUES = [0.1, 0.3, -0.7, 1e-8, 3.0, 1e300, -0.0, 2.5, math.inf, 1 / 3, 5e-324, 0.125, 7.0, -1e10, 0.9, 1.1, 42.0, 6.25, 1e-30, 0.2]


def bits(x):
    if isinstance(x, (tuple, list)):
        return tuple(map(bits, x))
    if isinstance(x, float):
        return struct.pack("d", x) if x == x else "nan"
    import numpy

    x = x if hasattr(x, "tobytes") else x.detach().numpy()
    return (str(x.dtype), numpy.where(x != x, abs(x), x).astype(x.dtype).tobytes())  # no sign of a not-a-number is promised


def check(fresh, f, make, most=2, values=VALUES, **settings):
    compiled = fresh.compile(f, **settings)
    for value in values:
        expected, got = (outcome(g, make(), value) for g in (f, compiled))
        assert expected == got, (value, f)
    segments = compiled.cache_info()["segments"]
    assert most is None or segments <= most, segments
    return compiled


def outcome(f, args, value):
    try:
        result = f(*args, value)
        return bits(result), bits(list(args))
    except (ArithmeticError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("backend", ["llvm", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factors(fresh, torch, dtype, backend):
    """alpha=: torch refuses what its floats cannot hold, and may fuse the product with the sum."""

    def f(p, g, lr):
        p.add_(g, alpha=-lr)
        return torch.sub(p, g, alpha=lr)

    compiled = fresh.compile(f, backend=backend)
    for lr in VALUES + [-1e39, 0.5, 0.25]:
        seen = []
        for call in (f, compiled):
            p, g = torch.linspace(-2, 3, 37, dtype=getattr(torch, dtype)), torch.linspace(1, 2, 37, dtype=getattr(torch, dtype))
            try:
                seen.append((call(p, g, lr), p))
            except RuntimeError as error:
                seen.append(str(error))
        if isinstance(seen[0], str) or isinstance(seen[1], str):
            assert seen[0] == seen[1], lr
        else:
            torch.testing.assert_close(seen[0], seen[1], equal_nan=True)
    assert compiled.cache_info()["segments"] <= 5  # the numbers that are too large


class Optimizer:
    def __init__(self):
        self.group = {"lr": 0.1, "decay": 0.01}
        self.scale = 1.0


@pytest.mark.parametrize("backend", ["llvm", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch(fresh, torch, dtype, backend):
    def make():
        return torch.linspace(-2, 3, 37, dtype=getattr(torch, dtype)), torch.linspace(1, 2, 37, dtype=getattr(torch, dtype))

    def step(p, g, lr):
        p -= lr * g
        return p

    def temperature(p, g, t):
        return p / t, 1.0 - t, p - t, t - p, t / g

    def python(p, g, x):
        y = (1 - x) * 2.0 + abs(x)
        return p * y + -x, y, x * 3, x

    def decided(p, g, x):
        return p * x if x > 0 else p / (x - 5.0)

    for f in (step, temperature, python):
        check(fresh, f, make, backend=backend)
    check(fresh, decided, make, 3, backend=backend)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.filterwarnings("ignore")
def test_numpy(fresh, np, dtype):
    def make():
        return (np.arange(1, 25).astype(dtype).reshape(4, 6) / (1 if dtype == "int64" else 7)).astype(dtype), np.ones(6, dtype)

    def mixed(a, b, x):
        return a * x + b, x - a, a / x, np.multiply(a, x), (a - x) / (b + x)

    def python(a, b, x):
        y = 0.5 * x - 1
        return a * y, y + x, y

    def inverse(a, b, x):
        return a * (1 / x)

    check(fresh, mixed, make)
    check(fresh, python, make)
    check(fresh, inverse, make, 3)  # division by zero is raised


def test_numbers_elsewhere(fresh, torch):
    """In attributes, dicts, containers and default arguments; returned as themselves."""
    state = Optimizer()

    def f(x, value):
        lr, scale = state.group["lr"], state.scale
        return x * lr + x * scale * value, [lr, (value, scale)], {"lr": lr * 2}["lr"]

    compiled = fresh.compile(f)
    for i in range(20):
        state.group["lr"], state.scale, value = 0.1 * i, 1.0 / (i + 1), i - 0.5
        x = torch.arange(5.0) + i
        assert bits(f(x, value)) == bits(compiled(x, value))
    assert compiled.cache_info()["segments"] <= 2


def test_uses_that_need_the_number(fresh, torch):
    """Whatever is not arithmetic happens on the number, guarded."""

    def f(x, value):
        text = f"{value:.3f} {value} {value!r}"
        table = {0.3: "third"}
        return (x * value, text, round(value, 2), int(value), isinstance(value, float), type(value) is float, value == 0.3, value in table,
                math.floor(value), value.is_integer(), max(value, 0.5), x ** value, value ** 2, value // 2, value % 0.3, math.exp(-value),
                torch.full((2,), value), torch.tensor([value, 1.0]), torch.clamp(x, max=value), str(value), bool(value), hash(value),
                "%.2f" % value, [value, 0.1][::-1], sorted([3.0, value, 1.0]), sum([value, 1.0]), value is None, value != None)  # fmt: skip # noqa: E711

    def plain(result):
        return repr([r.tolist() if hasattr(r, "tolist") else r for r in result])

    compiled = fresh.compile(f)
    for value in [0.1, 0.3, 0.7, 2.0, 0.3, -4.5, 0.1]:
        assert plain(f(torch.ones(3), value)) == plain(compiled(torch.ones(3), value))


def test_comparisons_are_guarded_by_their_answer(fresh, torch):
    def f(x, p):
        if p < 0.0 or p > 1.0:
            raise ValueError(p)
        if not p:
            return x
        return x * p if p != 1 else x + 1

    compiled = check(fresh, f, lambda: (torch.ones(3),), 4, [0.1, 0.2, 0.3, 0.4, 0.0, 0.5, 0.6, 1.0, 0.7, -1.0, 0.8, 2.0, 0.9, 0.95])
    before = compiled.cache_info()["segments"]
    for i in range(20):
        assert compiled(torch.ones(3), 0.01 + i / 40).tolist() == f(torch.ones(3), 0.01 + i / 40).tolist()
    assert compiled.cache_info()["segments"] == before


def test_gradients(fresh, torch):
    def f(x, w, scale):
        return ((x @ w) * scale / (scale + 2.0)).tanh().sum() * scale

    compiled = fresh.compile(f)
    for i in range(20):
        seen = []
        for g in (f, compiled):
            torch.manual_seed(i)
            x, w = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
            y = g(x, w, 0.25 + i)
            y.backward()
            seen.append((y.detach(), w.grad))
        for a, b in zip(*seen):
            torch.testing.assert_close(a, b)
    assert compiled.cache_info()["segments"] <= 2


def test_across_a_break(fresh, torch, capsys):
    def f(x, lr):
        y = lr * 2
        z = x * y
        time.sleep(0)
        return z + y * lr, y

    compiled = fresh.compile(f)
    for i in range(20):
        assert bits(f(torch.ones(3), i / 7)) == bits(compiled(torch.ones(3), i / 7))


def test_ints_and_floats_in_one_place(fresh, torch):
    def f(x, n):
        return x * n, n + 1, n

    compiled = fresh.compile(f)
    for n in [1, 2, 0.5, 3, 0.25, True, 7, 0.125, 2.0, 5]:
        assert repr(f(torch.ones(2), n)) == repr(compiled(torch.ones(2), n))


def test_beside_numpy_numbers(fresh, torch, np):
    """A numpy.float64 with such a float is a numpy.float64."""

    def f(x, k, value):
        return x * value, k * value, value + k, np.multiply(value, 2.0), np.sqrt(abs(value)), np.float64(value) - value

    compiled = fresh.compile(f)
    for value in VALUES[:6]:
        expected, got = f(torch.ones(2), np.float64(3), value), compiled(torch.ones(2), np.float64(3), value)
        assert [(type(e), repr(e)) for e in expected] == [(type(g), repr(g)) for g in got]


def cosine(x, step):
    return x * (0.5 * (1 + math.cos(math.pi * step / 100)))


def warm_up(x, step):
    rate = float(step) / float(max(1, 10)) if step < 10 else max(0.0, float(100 - step) / 90)
    return x * rate, rate


def decay(x, step):
    return x * (1 - 0.9**step), math.exp(-step / 7), math.log(step + 1), abs(-step / 3)


def of_a_size(x, step):
    n = x.shape[0] + step
    return x / math.sqrt(n), n / 3


@pytest.mark.parametrize("f, most", [(cosine, 3), (warm_up, 5), (decay, 3), (of_a_size, 3)])
def test_floats_made_of_integers(fresh, torch, f, most):
    """Schedules: a counter goes through `/`, `**`, float() and math, and nothing is compiled for each of its values."""
    compiled = fresh.compile(f)
    for step in [*range(40), 101]:
        assert bits(f(torch.ones(3), step)) == bits(compiled(torch.ones(3), step)), step
    assert compiled.cache_info()["segments"] <= most
    assert compiled.cache_info()["breaks"] == 0
    for step in (2**54 + 1, 2**62):  # no float holds it exactly
        assert bits(f(torch.ones(3), step)) == bits(compiled(torch.ones(3), step)), step


def reciprocal(x, value):
    return x * (1 / (value - 3.0))


def root(x, value):
    return x * math.sqrt(value - 2.0)


def logarithm(x, value):
    return x * math.log(value * 1.0)


def power(x, value):
    return x * (value + 1.0) ** 0.5 if value * 2.0 < 50 else x - value**400.0


@pytest.mark.parametrize("f", [reciprocal, root, logarithm, power])
def test_errors_of_computed_floats_are_pythons(fresh, torch, f):
    values = [5.0, 6.0, 7.0, 8.0, 3.0, 2.5, 0.0, -1.0, 9.0, 30.0, math.inf, math.nan, 1e308, 10.0]
    compiled = check(fresh, f, lambda: (torch.ones(2),), most=5, values=values)
    assert compiled.cache_info()["segments"] >= 2


def test_answers_about_computed_floats(fresh, torch):
    """A version for each answer, not for each float; and a report that says why there is another."""

    def f(x, value):
        y = value * 0.1
        return x + 1 if y < 1 else x - 1

    compiled = check(fresh, f, lambda: (torch.ones(2),), most=3, values=[float(v) for v in (3, 4, 12, 5, 13, 20, 1, 15, 9, 10, 11)])
    assert compiled.cache_info()["segments"] == 3


@pytest.mark.parametrize("p", [2, 3, -1, -2, 0.5, -0.5, 1.7])
def test_powers_of_what_tensors_hold_are_pythons(fresh, torch, p):
    f = fresh.compile(lambda t, y: (y * 1, t.item() ** p))
    y = torch.ones(2)
    for value in torch.linspace(0.1, 9.7, 211, dtype=torch.float64):
        assert bits(f(value, y)[1]) == bits(value.item() ** p)


@pytest.mark.parametrize("call", [
    "torch.full_like(a, 300.)", "torch.full_like(a, -3.)", "torch.full_like(a, float('nan'))", "a.new_full((2,), 300.)", "torch.full((2,), 300., dtype=a.dtype)",
    "F.pad(a, (1, 1), value=300.)", "torch.add(h, h, alpha=70000.)", "torch.add(x, x, alpha=big)", "x.clone().addcmul_(x, x, value=big)",
    "torch.add(x, x, alpha=torch.tensor(True))", "torch.lerp(x, x, big.item())",
])  # fmt: skip
def test_numbers_that_do_not_fit_are_refused(fresh, torch, call):
    f = eval(f"lambda a, h, x, big: (x * 2, {call})[1]", {"torch": torch, "F": torch.nn.functional})
    arguments = torch.ones(2, 3, dtype=torch.uint8), torch.ones(3, dtype=torch.float16), torch.ones(3), torch.tensor(1e300, dtype=torch.float64)
    for g in (f, fresh.compile(f)):
        for _ in range(2):
            with pytest.raises(RuntimeError):
                g(*arguments)


HELD = [
    "x + n", "n - x", "x / n", "n / x", "x.clone().mul_(n)", "i * n", "i + n", "s * n", "x == n", "n > x", "torch.greater(x, n)", "torch.less_equal(i, n)",
    "torch.not_equal(x, n)", "torch.subtract(x, n)", "torch.lerp(x, y, n)", "x.clone().lerp_(y, n)", "torch.add(x, y, alpha=n)", "x.clone().sub_(y, alpha=n)",
    "torch.subtract(x, y, alpha=n)", "torch.addcmul(x, x, y, value=n)", "x.clone().addcdiv_(x, y, value=n)",
    "x.masked_fill(x > 0, value=n)",
]  # fmt: skip


@pytest.mark.parametrize("call", HELD)
def test_numbers_that_tensors_hold_stay_in_the_graph(fresh, torch, call):
    """One graph for all of them: rows of the effects table say which functions take one, as an operand or by keyword."""
    f = eval(f"lambda x, y, i, s, t: (n := t.item(), {call})[1]", {"torch": torch})
    arguments = torch.tensor([-1.5, 0.25, 3.0]), torch.tensor([2.0, -0.75, 0.1]), torch.arange(3), torch.tensor(0.3)
    compiled = fresh.compile(f)
    for dtype in (torch.float32, torch.float64):
        for value in (0.25, 3.0, -0.7, 0.1):
            t = torch.tensor(value, dtype=dtype)
            expected, got = f(*arguments, t), compiled(*arguments, t)
            assert (expected.dtype, expected.shape, expected.stride()) == (got.dtype, got.shape, got.stride())
            torch.testing.assert_close(got, expected, rtol=1e-6 if expected.dtype == torch.float32 else 1e-12, atol=1e-6)
    assert compiled.cache_info()["captures"] == 2 and compiled.cache_info()["breaks"] == 0


@pytest.mark.parametrize("call", ["torch.pow(x, n)", "torch.full((2,), n)", "torch.add(x, other=n)", "x.clamp(max=n)"])
def test_other_functions_read_the_number(fresh, torch, call):
    """As an exponent, a limit or a size it has a meaning of its own: the graph ends before the call."""
    f = eval(f"lambda x, t: (x * 2, t.item(), {call.replace('n)', 't.item())')})[2]", {"torch": torch})
    compiled = fresh.compile(f)
    for value in (0.5, 2.0, 3.0):
        x, t = torch.tensor([1.5, 0.25, 3.0]), torch.tensor(value)
        expected, got = f(x, t), compiled(x, t)
        assert expected.dtype == got.dtype and torch.equal(expected, got)
    with pytest.raises(fresh.BreakError):
        fresh.compile(f, fullgraph=True)(x, t)


@pytest.mark.parametrize("dtype", ("float64", "float32"))
def test_sums_are_numpys_to_the_last_bit(fresh, dtype):
    """A sum of NumPy's floats is the same number in a kernel and in Python, which sees both where a graph ends between them."""
    np = pytest.importorskip("numpy")
    functions = {
        "sum": lambda a: a.sum(),
        "mean": lambda a: np.mean(a),
        "fused": lambda a: (a * a - 1).sum(),
        "two": lambda a: (a.sum(), (a * 2).sum()),
        "rows": lambda a: a.reshape(2, -1).sum(1),
        "then": lambda a: a / a.sum(),
    }
    functions["columns"] = lambda a: np.broadcast_to(a[:, None], (a.size, 40)).copy().sum(0)
    for name, f in functions.items():
        compiled = fresh.compile(f)
        for n in (2, 6, 8, 10, 14, 16, 38, 126, 128, 130, 136, 254, 258, 300, 1000, 1024, 4094, 9002, 20000):
            a = np.random.default_rng(n).normal(size=n).astype(dtype)
            assert bits(compiled(a)) == bits(f(a)), (name, n)
        assert compiled.cache_info()["kernels"], name
    fixed = fresh.compile(functions["sum"], dynamic=False)
    for n in (2, 100, 128, 300, 5000):
        a = np.random.default_rng(n).normal(size=n).astype(dtype)
        assert bits(fixed(a)) == bits(a.sum()), n

    def ends_between(a):
        first = float(a.sum())
        print(end="")
        return first == float(a.sum())

    compiled = fresh.compile(ends_between)
    assert all(compiled(np.random.default_rng(n).normal(size=n).astype(dtype)) for n in range(3, 400, 7))


@pytest.mark.parametrize("dtype", ("float64", "float32"))
def test_sums_of_what_the_graph_made_are_numpys_to_the_last_bit(fresh, dtype):
    """The order of a sum is chosen by how NumPy's array would lie, not by what it is made of, also where nothing of it is stored."""
    np = pytest.importorskip("numpy")
    matrices = """a[:, None] * b | np.outer(a, b) | np.broadcast_to(a[:, None], (a.size, b.size)).copy() | np.repeat(a[:, None], b.size, 1) |
        a - b[:, None] | a[:, None, None] * b[:, None] + np.ones(3, a.dtype) | np.outer(a, b)[:, 1:] * 2"""
    for matrix, axis in itertools.product(matrices.split("|"), (0, 1, -1, None, (0, 1))):
        f = eval(f"lambda a, b: [(m.sum({axis}), m.mean({axis}), m.var({axis})) for m in [{matrix.strip()}]][0]", {"np": np})
        compiled = fresh.compile(f)
        for n, k in ((3, 40), (9, 3), (8, 129), (133, 40), (40, 7), (300, 9)):
            a, b = (np.random.default_rng(n).random(i).astype(dtype) + 1 for i in (n, k))
            assert [bits(x) for x in compiled(a, b)] == [bits(x) for x in f(a, b)], (matrix, axis, n, k)
        assert compiled.cache_info()["kernels"] and not compiled.cache_info()["breaks"], (matrix, axis)
    small = fresh.compile(lambda a, b: ((a[:, None] - b) ** 2).sum(0))  # one kernel: nothing is stored for the order's sake
    small(np.arange(50, dtype=dtype), np.arange(9, dtype=dtype))
    assert small.cache_info()["kernels"] == 1


@pytest.mark.parametrize("shape, axis", (((1,), None), ((3, 1), 1), ((1, 3), 0), ((1, 1), None)))
def test_sums_of_one_element_begin_with_zero(fresh, shape, axis):
    """0.0 + -0.0 is 0.0, also where nothing but that is added; a product or maximum keeps the sign."""
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    for reduce in ("sum", "mean", "prod", "max"):

        def f(a):
            made = a * 1
            return (getattr(made, reduce)() if axis is None else getattr(made, reduce)(axis)) + (-0.0)

        compiled = fresh.compile(f)
        for dtype in ("float64", "float32"):
            a = np.full(shape, -0.0, dtype)
            assert bits(compiled(a)) == bits(f(a)), (reduce, dtype)
        assert compiled.cache_info()["kernels"], reduce
        if reduce == "max":
            continue
        compiled = fresh.compile(f)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            t = torch.full(shape, -0.0, dtype=dtype)
            assert torch.equal(torch.signbit(compiled(t)), torch.signbit(f(t))), (reduce, dtype)
        assert compiled.cache_info()["kernels"], reduce


def test_sums_of_floats_lose_nothing(fresh):
    """Since Python 3.12, sum() adds at its end what rounding took; before an int, a float and any other item it does different things."""
    np = pytest.importorskip("numpy")

    def f(a, start):
        v = float((a * 1.1).sum())
        mixed = sum([v, 1e16, 3, v * 0.1, -1e16, True]), sum([1, 2**62, 2**62, v, 0.1]), sum([v, np.float64(0.1), v * 0.3])
        special = sum([v * 1e300, v * 1e308, -v]), sum([-0.0, -v * 0], -0.0)
        return mixed, special, sum(i * w for i, w in enumerate([v, 0.1, v * v])), sum([0.1, v], start=start), a * 2

    compiled, random = fresh.compile(f), np.random.default_rng(0)
    for k in range(40):
        a = random.normal(size=3) * 10.0 ** random.integers(-3, 4)
        start = float(random.normal()) if k % 3 else int(random.integers(5))
        assert bits(compiled(a, start)[:-1]) == bits(f(a, start)[:-1]), (a, start)
    assert compiled.cache_info()["kernels"]
