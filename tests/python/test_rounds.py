"""Loops over tensors that repeat: several rounds run as one segment, what is compiled does not depend on the number of rounds, and values,
gradients, iterators and the order of effects are Python's. (`test_loops.py` has the rest of what is known of loops.)"""

import framejit
import pytest

torch = pytest.importorskip("torch")
torch.manual_seed(0)
pytestmark = pytest.mark.usefixtures("measured_by_nobody")
W, U = torch.randn(8, 8) / 8**0.5, torch.randn(8, 8) / 8**0.5


@pytest.fixture
def measured_by_nobody():
    framejit.reset()  # equal functions share what is compiled
    with framejit.config.patch(leave=False):  # no call is made as written, to compare
        yield


def rnn(x, h):
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ W.to(x.dtype) + h @ U.to(x.dtype))
    return h


def collected(x, h):
    out = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h)
        out.append(h)
    return torch.stack(out)


def sampler(x, n):
    for i in range(n):
        noise = torch.tanh(x * (1 - i / n))
        x = x - 0.1 * noise + 0.01 * torch.sin(x)
    return x


def denoiser(x, n):
    levels = torch.linspace(0.9, 0.1, n + 1, dtype=x.dtype)
    for t in range(n, 0, -1):
        x = levels[t - 1] * x + levels[t] * torch.tanh(x)
    return x, t


def from_the_end(x, n):
    for i in reversed(range(1, n, 3)):
        x = torch.cos(x) * (1 / i)
    return x, i


def oscillator(t, y):
    return torch.stack([y[1], -y[0] + 0.1 * y[1] * t])


def runge_kutta(field, y, n, dt=0.01):
    t = 0.0
    for _ in range(n):
        k1 = field(t, y)
        k2 = field(t + dt / 2, y + dt / 2 * k1)
        k3 = field(t + dt / 2, y + dt / 2 * k2)
        k4 = field(t + dt, y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        t = t + dt
    return y


def ode(y, n):
    return runge_kutta(oscillator, y, n)


def while_small(x, n):
    steps = 0
    while steps < n:
        x = x + 0.01 * torch.cos(x) + steps * 1e-6
        steps += 1
    return x, steps


def steps_of_three(x, n):
    last = -1
    for i in range(2, 3 * n, 3):
        x = torch.sin(x) + i * 1e-4
        last = i
    return x, last


def downwards(x, n):
    for i in range(n, 0, -1):
        x = torch.sin(x) + i * 1e-4
    return x, i


def nested(x, n):
    for i in range(n):
        for j in range(3):
            x = torch.sin(x) + j * 1e-3
        x = x * 0.99 + i * 1e-4
    return x


def leaves_early(x, n):
    for i in range(1000):
        x = torch.sin(x) + 1e-3
        if i == n - 7:
            break
    else:
        x = x * 0
    return x, i


def skips(x, n):
    count = 0
    for i in range(n):
        if i % 5 == 3:
            continue
        x = torch.sin(x) + i * 1e-4
        count += 1
    return x, count


def changes_at_seven(x, n):
    for i in range(n):
        x = torch.sin(x) * 1.1 if i < 7 else torch.cos(x) * 0.9
    return x


def changes_late(x, n):
    for i in range(n):
        if i < 50:
            x = torch.sin(x) * 1.1
        else:
            x = torch.cos(x) * 0.9
    return x


def grows(x, n):
    for i in range(n):
        x = torch.sin(x) * 0.9
        if i == 60:
            x = torch.cat([x, x])
    return x


def keeps_its_index(x, n):
    seen = []
    for i in range(n):
        x = torch.sin(x) + 1e-3
        seen.append(i)
    return x, seen, i


def takes_one_more(x, n):
    numbers = iter(range(n))
    got = []
    for i in numbers:
        x = torch.sin(x) + i * 1e-4
        if i % 4 == 0:
            got.append(next(numbers, None))
    return x, got


def raises_late(x, n):
    for i in range(n):
        x = torch.sin(x) + 1e-3
        if i == n - 5:
            raise KeyError(i)
    return x


def over_a_list(x, n):
    for w in [0.5 + k / n for k in range(n)]:
        x = torch.sin(x) * w
    return x


def with_a_cell(x, n):
    def add(y):
        return torch.sin(x) + y * 1e-3

    for i in range(n):
        x = add(i)
    return x


def in_place(x, n):
    y = x.clone()
    for i in range(n):
        y.mul_(0.9).add_(torch.sin(x) * i * 1e-3)
    return y


PROGRAMS = {
    "rnn": (rnn, lambda n: (torch.randn(n, 4, 8, dtype=torch.float64), torch.zeros(4, 8, dtype=torch.float64))),
    "collected": (collected, lambda n: (torch.randn(n, 4, 8, dtype=torch.float64), torch.zeros(4, 8, dtype=torch.float64))),
    "ode": (ode, lambda n: (torch.randn(2, 5, dtype=torch.float64), n)),
}
for f in (sampler, denoiser, from_the_end, while_small, steps_of_three, downwards, nested, leaves_early, skips, changes_at_seven, changes_late, grows, keeps_its_index):
    PROGRAMS[f.__name__] = (f, lambda n: (torch.randn(5, dtype=torch.float64), n))
for f in (takes_one_more, over_a_list, with_a_cell, in_place):
    PROGRAMS[f.__name__] = (f, lambda n: (torch.randn(5, dtype=torch.float64), n))


def agree(got, expected):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)
    elif isinstance(expected, tuple):
        assert len(got) == len(expected)
        for g, e in zip(got, expected):
            agree(g, e)
    else:
        assert got == expected


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients_with_changing_numbers_of_rounds(name, gradients):
    f, make = PROGRAMS[name]
    compiled = framejit.compile(f)
    for n in (150, 150, 131, 200, 12, 151, 3):
        args = make(n)
        ours, theirs = (
            [a.clone().requires_grad_(gradients) if isinstance(a, torch.Tensor) else a for a in args] for _ in range(2)
        )
        got, expected = compiled(*ours), f(*theirs)
        agree(got, expected)
        if gradients:
            for r in (got, expected):
                (r if isinstance(r, torch.Tensor) else r[0]).sum().backward()
            for a, b in zip(ours, theirs):
                if isinstance(a, torch.Tensor):
                    torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-11)


def runs(compiled):
    return compiled.cache_info()["outcomes"]["run"]["graph"]


@pytest.mark.parametrize("name, most", [("rnn", 120), ("sampler", 120), ("denoiser", 120), ("while_small", 120), ("steps_of_three", 120), ("keeps_its_index", 120)])
def test_several_rounds_are_one_run(name, most):
    f, make = PROGRAMS[name]
    compiled, args = framejit.compile(f), make(1000)
    with torch.no_grad():
        for _ in range(2):
            compiled(*args)
        before = runs(compiled)
        agree(compiled(*args), f(*args))
    assert 30 < runs(compiled) - before < most  # not a thousand


@pytest.mark.parametrize("name", ["rnn", "sampler", "ode", "collected"])
@pytest.mark.parametrize("gradients", [False, True])
def test_what_is_compiled_does_not_depend_on_the_number_of_rounds(name, gradients):
    f, make = PROGRAMS[name]
    counts = {}
    for n in (100, 1000):
        framejit.reset()
        compiled = framejit.compile(f)
        for _ in range(2):
            args = [a.requires_grad_(gradients) if isinstance(a, torch.Tensor) else a for a in make(n)]
            result = compiled(*args)
            if gradients:
                result.sum().backward()
        info = compiled.cache_info()
        counts[n] = info["captures"], info["kernels"]
    assert counts[1000][0] <= counts[100][0] + 2 and counts[1000][0] < 24, counts
    if name != "collected":  # whose last graph has an operand for each round
        assert counts[1000][1] <= counts[100][1] + 8, counts


def test_further_calls_compile_nothing():
    compiled = framejit.compile(rnn)
    with torch.no_grad():
        for n in (200, 200, 210, 220):
            compiled(torch.randn(n, 4, 8), torch.zeros(4, 8))
        before = compiled.cache_info()["captures"]
        for n in (200, 170, 333, 1000, 180):
            x, h = torch.randn(n, 4, 8), torch.zeros(4, 8)
            torch.testing.assert_close(compiled(x, h), rnn(x, h), rtol=1e-4, atol=1e-5)
        assert compiled.cache_info()["captures"] <= before + 1


def test_an_exception_comes_from_its_round():
    compiled = framejit.compile(raises_late)
    for n in (150, 150, 140):
        for f in (compiled, raises_late):
            with pytest.raises(KeyError) as error:
                f(torch.ones(3), n)
            assert error.value.args == (n - 5,)


def test_iterators_that_others_hold_are_advanced_as_they_are():
    held = []

    def program(x, numbers):
        held.append(numbers)
        for i in numbers:
            x = torch.sin(x) + i * 1e-4
            if i == 120:
                break
        return x

    compiled = framejit.compile(program)
    for _ in range(3):
        ours, theirs = iter(range(200)), iter(range(200))
        torch.testing.assert_close(compiled(torch.ones(3), ours), program(torch.ones(3), theirs))
        assert next(ours) == next(theirs) == 121


def test_gradients_of_parts_lie_where_the_parts_do():
    """The gradient of an array of which a segment reads some rows is zero elsewhere, also where what is read moves from run to run."""

    def program(x, rows, other):
        total = other.new_zeros(())
        for i in rows:
            total = total + (x[i] * other).sum() + (x[i + 1] / other).sum()
        return total

    compiled = framejit.compile(program)
    other = torch.randn(3, 21)
    other[1, 2], other[2, 0] = float("nan"), float("inf")
    for n in (40, 7, 64):
        for rows in ([0], [1, 4], [2, 2, 5], list(range(0, n - 1, 3))):
            grads = []
            for f in (program, compiled):
                x = torch.randn(n, 3, 21, generator=torch.Generator().manual_seed(n)).requires_grad_()
                f(x, [r % (n - 1) for r in rows], other).backward()
                grads.append(x.grad)
            torch.testing.assert_close(*grads, equal_nan=True)
    assert compiled.cache_info()["outcomes"]["run"].get("graph", 0) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_products_are_torchs(dtype):
    """Small products go to torch's BLAS without tensors of their own: each layout, with a bias and without."""

    @framejit.compile(fullgraph=True)
    def product(a, b):
        return a @ b

    @framejit.compile(fullgraph=True)
    def linear(x, w, bias):
        return torch.nn.functional.linear(x, w, bias)

    for m, k, n in ((1, 1, 1), (1, 7, 5), (5, 7, 1), (8, 16, 32), (5, 1, 3), (33, 20, 17)):
        a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
        for left in (a, a.t().contiguous().t(), torch.cat([a, a], 1)[:, :k], torch.cat([a, a], 1)[:, ::2][:, : (k + 1) // 2]):
            for right in (b, b.t().contiguous().t(), torch.cat([b, b], 1)[:, n:], b[:1].expand(k, n)):
                right = right[: left.shape[1]]
                torch.testing.assert_close(product(left, right), left @ right)
        w, bias = b.t().contiguous(), torch.randn(2 * n, dtype=dtype)[::2]
        torch.testing.assert_close(linear(a, w, bias), torch.nn.functional.linear(a, w, bias))
