"""Casts that a program writes round; 16-bit floats between operations are what eager has, overflow included."""

import itertools

import pytest

torch = pytest.importorskip("torch")

TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
         torch.float8_e4m3fn, torch.float8_e5m2]  # fmt: skip
inf, nan = float("inf"), float("nan")
FLOATS = [0.0, -0.0, 1.0, -1.0, 70000.0, -70000.0, 1e-8, 1e20, inf, -inf, 3.14159, 255.0, -129.0, 1000.3, 1.5 * 2.0**-24, nan]
INTEGERS = [0, 1, -1, 127, -128, 255, 70000, 2**31 - 1, -5, 33000, 65519, 2049]


def same(a, b):
    return a.dtype == b.dtype and torch.equal(torch.nan_to_num(a.double(), 0.5), torch.nan_to_num(b.double(), 0.5))


@pytest.mark.parametrize("first", TYPES, ids=str)
def test_chains_of_casts(fresh, first):
    x = torch.tensor(FLOATS).to(first) if first.is_floating_point else torch.tensor(INTEGERS).to(first)
    for second, third in itertools.product(TYPES, repeat=2):
        fresh.reset()
        compiled = fresh.compile(lambda x: x.to(second).to(third))
        assert same(compiled(x), x.to(second).to(third)), (first, second, third)
        assert compiled.cache_info()["segments"] == 1


WRITTEN = {
    "half": lambda x: x.half().float(),
    "bfloat16": lambda x: x.bfloat16() - x,
    "type": lambda x: x.type(torch.float16).type(torch.float32) * 2,
    "computed": lambda x: (x.bfloat16() * 1.3).float() - x * 1.3,
    "twice": lambda x: x.to(torch.float16).to(torch.bfloat16).to(torch.float32) + 1,
    "compared": lambda x: x.bfloat16() * 3 == (x * 3).bfloat16(),
    "result and operand": lambda x: (lambda y: (y, y - y.float()))(x.bfloat16() * x.bfloat16()),
    "sum": lambda x: (x.bfloat16() * 1.7).sum(dtype=torch.float64),
    "argmax": lambda x: (torch.arange(1.0, 1.01, 0.001).bfloat16() * 1.7).argmax() + x.numel(),
    "max": lambda x: (x.bfloat16() * 1.7).amax().float(),
    "arange": lambda x: torch.arange(1000, 1016, dtype=torch.bfloat16).float() + x,
    "cumsum": lambda x: x.bfloat16().cumsum(0).float() - x,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_written_casts(fresh, name):
    f, x = WRITTEN[name], torch.tensor([70000.0, 3.14159, 1e-9, 60000.0, 0.1, 1 / 3, -2.7, 1e5] * 2)
    compiled = fresh.compile(f)
    got, expected = compiled(x), f(x)
    assert compiled.cache_info()["segments"] == 1
    for a, b in zip(got, expected) if isinstance(got, tuple) else [(got, expected)]:
        assert same(a, b), (a, b)


OVERFLOW = {
    "square over itself": lambda h: h * h / h,
    "sum less itself": lambda h: h + h - h,
    "difference": lambda h: h - (-h) + (-h),
    "exponential": lambda h: (h / 4096).exp() * 1e-4,
    "quotient": lambda h: h / 1e-4 * 1e-4,
    "power": lambda h: h**2 * 1e-5,
    "number": lambda h: h * 100 / 100,
    "minimum": lambda h: (h * 2).clamp(max=100),
    "reciprocal": lambda h: 1 / (h / 6e4 * 1e-6) * 1e-4,
    "compared": lambda h: h * 2 > 65519,
    "sinh": lambda h: (h / 4096).sinh() * 1e-4,
    "mean of squares": lambda h: (h * h).mean(),
    "norm": lambda h: (h * h).sum().sqrt(),
}


@pytest.mark.parametrize("name", OVERFLOW)
def test_float16_overflows(fresh, name):
    f = OVERFLOW[name]
    for value in (60000.0, 40000.0, 300.0, -60000.0, 65504.0):
        for n in (1, 5, 64):
            h = torch.full((n,), value, dtype=torch.float16)
            fresh.reset()
            compiled = fresh.compile(f)
            assert torch.equal(compiled(h).isfinite(), f(h).isfinite()), value
            assert compiled.cache_info()["segments"] == 1


def test_gradients_overflow_as_in_eager(fresh):
    def f(x):
        return (x * x / 256 * 2).sum()

    for scale in (1.0, 2.0**10, 2.0**15):
        grads = []
        for g in (f, fresh.compile(f)):
            x = torch.linspace(1, 400, 64).half().requires_grad_()
            (g(x).float() * scale).backward()
            grads.append(x.grad)
        assert torch.equal(grads[0].isfinite(), grads[1].isfinite()), scale
        torch.testing.assert_close(grads[0], grads[1], rtol=2e-3, atol=0)


def _stored(x):
    y = torch.zeros(300, 300, dtype=torch.float16)
    y[:] = x
    return y


def _stored_in_rows(x):
    y = torch.zeros(2, 300, 300, dtype=torch.float16)
    y[1] = x.view(1, 1, 1)
    return y


def _stored_under_a_mask(x):
    y = torch.zeros(300, 300, dtype=torch.float16)
    y[torch.ones(300, 300) > 0] = x.view(())
    return y


WIDENED = {
    "copied": lambda x: torch.zeros(300, 300, dtype=torch.float16).copy_(x),
    "stored": _stored,
    "stored in rows": _stored_in_rows,
    "stored under a mask": _stored_under_a_mask,  # which torch rounds first
    "cast first": lambda x: x.half().expand(300, 300),
    "cast last": lambda x: x.expand(300, 300).half(),
    "filled": lambda x: torch.zeros(300, 300, dtype=torch.float16).fill_(x.view(())),
}


@pytest.mark.parametrize("name", WIDENED)
def test_gradients_of_what_is_broadcast_are_summed_as_eagers_type(fresh, name):
    """90,000 ones: more than a float16 holds."""
    compiled, grads = fresh.compile(WIDENED[name]), []
    for f in (WIDENED[name], compiled, compiled):
        x = torch.ones(1, 1, requires_grad=True)
        f(x).float().sum().backward()
        grads.append(x.grad.item())
    assert grads[0] == grads[1] == grads[2]
    assert compiled.cache_info()["segments"] == 1


NUMBERS = {
    "add": lambda x, k: x + k,
    "radd": lambda x, k: k + x,
    "sub": lambda x, k: x - k,
    "rsub": lambda x, k: k - x,
    "alpha": lambda x, k: torch.add(x, k, alpha=3),
    "in place": lambda x, k: x.clone().add_(k),
    "mul": lambda x, k: x * k,
    "div": lambda x, k: x / k,
    "rdiv": lambda x, k: k / x,
    "floor_divide": lambda x, k: x // k,
    "rfloor_divide": lambda x, k: k // x,
    "trunc": lambda x, k: torch.div(x, k, rounding_mode="trunc"),
    "trunc of tensors": lambda x, k: torch.div(x * 50, x.flip(0) * k, rounding_mode="trunc"),
    "remainder": lambda x, k: x % k,
    "rremainder": lambda x, k: k % x,
    "fmod": lambda x, k: torch.fmod(x, k),
    "eq": lambda x, k: x == k,
    "lt": lambda x, k: x < k,
    "clamp": lambda x, k: x.clamp(-k, k),
    "where": lambda x, k: torch.where(x > k, x, k),
    "xlogy": lambda x, k: torch.xlogy(x, k),
    "rxlogy": lambda x, k: torch.xlogy(k, x),
    "xlogy of tensors": lambda x, k: torch.xlogy(x, x * 2),
    "addcmul": lambda x, k: torch.addcmul(x, x, x, value=k),
    "scalar tensor": lambda x, k: x + torch.tensor(k),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_beside_16_bits(fresh, name, dtype):
    """Each kernel of torch either rounds the number to the tensor's type before, or does not."""
    f = NUMBERS[name]
    x = (torch.randn(2048, generator=torch.Generator().manual_seed(3)).abs() * 3 + 0.01).to(dtype)
    for k in (0.1, 1 / 3, 2.7, 1e-3):
        g = lambda x: f(x, k)  # noqa: B023
        fresh.reset()
        compiled = fresh.compile(g)
        got, expected = compiled(x), g(x)
        # logarithms and quotients of bfloat16 differ in the last place of a float32, which rounding shows rarely
        assert (got != expected).sum() <= (2 if "xlogy" in name or "floor" in name else 0), k
        assert compiled.cache_info()["segments"] == 1


def test_rounding_stays_in_one_graph(fresh):
    def f(x, y):
        z = (x * y + x).relu() - y
        return z, (z * 2).softmax(-1), z.sum(-1)

    x, y = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    explained = fresh.explain(f)(x, y)
    assert explained.graph_count == 1 and explained.graph_break_count == 0
    for a, b in zip(fresh.compile(f)(x, y), f(x, y)):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=5e-2)  # z is not rounded before the result


BESIDE = {
    "mul": lambda x, k: x * k,
    "mul in place": lambda x, k: x.clone().mul_(k),
    "reversed": lambda x, k: k * x,
    "div": lambda x, k: x / k,
    "div in place": lambda x, k: x.clone().div_(k),
    "floor": lambda x, k: x // k,
    "trunc": lambda x, k: torch.div(x, k, rounding_mode="trunc"),
    "add": lambda x, k: x + k,
    "less": lambda x, k: x < k,
    "and": torch.logical_and,
    "or": lambda x, k: torch.logical_or(x * 0, k),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BESIDE)
def test_tensors_of_one_element_beside_16_bits(fresh, name, dtype):
    """Some kernels of torch read such a second operand as the number that it is, others after the cast."""
    f, x = BESIDE[name], torch.tensor([1e-3, -6e4, 5, 6e4, 1 / 3, 0.1, 1, -2.7] * 3).to(dtype)
    for other, sizes in itertools.product([torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64], [(), (1,)]):
        fresh.reset()
        compiled = fresh.compile(f)
        for value in (131000.0, 0.1, 1e-9, 3.14159, -70000.0):
            k = torch.full(sizes, value, dtype=torch.float64).to(other)
            got, expected = compiled(x, k), f(x, k)
            assert same(got, expected), (other, sizes, value)
        assert compiled.cache_info()["segments"] == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BESIDE)
def test_what_stands_beside_one_element_is_rounded(fresh, name, dtype):
    """Only the operand that torch's kernel reads as a number stays wide: the first one has the common type before."""
    f, elements = BESIDE[name], [70000, 3, 2049, 100001, 257, -5]
    if name.endswith("in place"):
        f = {"mul in place": torch.mul, "div in place": torch.div}[name]
    others = [torch.tensor(elements), torch.tensor(elements, dtype=torch.int32), torch.tensor([True, False])]
    others += [torch.tensor(70000), torch.tensor([[70000]]), torch.tensor(131000.0), torch.tensor(0.1, dtype=torch.float64)]
    for other, sizes in itertools.product(others, [(), (1,), (1, 1)]):
        if not sizes and not other.shape and other.is_floating_point():
            continue  # their common type is not of 16 bits
        fresh.reset()
        compiled = fresh.compile(f)
        for value in (1e-3, 3, 0.5, -7.0):
            k = torch.full(sizes, value, dtype=dtype)
            for pair in ((other, k), (k, other)):
                assert same(compiled(*pair), f(*pair)), (other, sizes, value)
        assert compiled.cache_info()["segments"] == 2 - (other.shape == k.shape and other.dtype == k.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_an_integer_beside_a_number_is_rounded(fresh, dtype):
    """Where the default type has 16 bits, an integer tensor beside a number has it first, the one of a single element, too."""
    torch.set_default_dtype(dtype)
    try:
        for sizes in ((), (1,), (3,)):
            fresh.reset()
            x = torch.full(sizes, 70001)
            for f in (lambda x: x * 1e-3, lambda x: 1e-3 * x, lambda x: x / 3.0, lambda x: x // 3.0, lambda x: x / 7):
                assert same(fresh.compile(f)(x), f(x)), sizes
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", TYPES[:10], ids=str)
def test_what_is_filled_in_overflows_as_in_eager(fresh, dtype):
    def f(x, m, k):
        return (x * 1).masked_fill_(m, k)

    def outcome(g, k):
        try:
            return str(g(torch.ones(2).to(dtype), torch.tensor([True, False]), k).tolist())
        except RuntimeError as e:
            return str(e)

    for other in TYPES[:10]:
        fresh.reset()
        compiled = fresh.compile(f)
        for value in (3, 65510.0, 131000.0, 1e300, inf, nan, 300, -1, 1.5, -200, 2**31, -(2**31) - 1, 2**62):
            if not (other.is_floating_point or value == value):
                continue
            k = torch.tensor(value, dtype=torch.float64).to(other)
            assert outcome(compiled, k) == outcome(f, k), (other, value)
