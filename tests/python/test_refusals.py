"""What the framework refuses is refused, and nothing else is: views that it takes for leaves, passes through what was freed, arguments."""

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def outcome(f, *args):
    try:
        return f(*args)
    except (RuntimeError, TypeError) as error:
        return type(error), str(error).splitlines()[0][:40]


def same(got, expected):
    assert type(got) is type(expected), (got, expected)
    if isinstance(expected, torch.Tensor):
        assert got.requires_grad == expected.requires_grad
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            same(a, b)
    else:
        assert got == expected


# t is a view of z that was made before z had gradients. Where nothing has read it since, it has no node of its own.
WRITES = {
    "add_": "t.add_(z)",
    "sub_ with a factor": "t.sub_(z, alpha=2)",
    "copy_ of what is made": "t.copy_(z * 2)",
    "a number": "t.mul_(3)",
    "read first": "t.mul_((t * 2).exp())",
    "read without gradients": "t.mul_(t.detach())",
    "in part": "t[3:] = z[:1] * 2",
    "in part, then it": "t[3:] = z[:1] * 2; t.mul_(2)",
    "by its base": "z.add_(t)",
    "by its base, then it": "z.mul_(2); t.mul_(2)",
    "another view": "z.view(2, 2).mul_(3)",
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("begin", ["z * 1", "z.exp()", "z.new_zeros(4)"])
def test_a_view_that_the_framework_takes_for_a_leaf(fresh, write, begin):
    space = {}
    exec(f"def program(z, x):\n    z = {begin}\n    t = z.view(4)\n    t[:2] = x[2:]\n    {write}\n    return t, z", space)  # noqa: S102

    def gradients(f):
        z, x = torch.arange(4.0), torch.arange(1.0, 5).requires_grad_()
        t, z = f(z, x)
        (t * torch.arange(4.0)).sum().backward()
        return t.detach(), z.detach(), x.grad

    compiled = fresh.compile(space["program"])
    expected = outcome(gradients, space["program"])
    for _ in range(2):
        same(outcome(gradients, compiled), expected)


def test_writes_in_parts_stay_compiled(fresh):
    def program(x):
        made = x.new_zeros(2, 4)
        flat = made.view(8)
        flat[:4] = x
        flat[4:] = x * 2
        return made.sin()

    compiled = fresh.compile(program)
    for _ in range(2):
        x = torch.arange(4.0).requires_grad_()
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() + 2 * (2 * x.detach()).cos())
    assert fresh.cache_info(compiled)["outcomes"]["run"] == {"graph": 2}


# Passes that look for some gradients only free what they come through.
FUNCTIONS = {
    "two ways": lambda a, b, c: (a.exp() * b).sum() + c.sin().sum(),
    "one after the other": lambda a, b, c: ((a * b).sin() * c).sum(),
    "sums": lambda a, b, c: (a + b - c).sum(),
    "products": lambda a, b, c: (a * b).sum() + (b * c).sum(),
    "powers": lambda a, b, c: (a**2 + b**3).sum() * c.sum(),
}


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("derived", [False, True], ids=["leaves", "results"])
def test_a_second_pass_for_some_gradients(fresh, f, derived):
    def passes(g, first, second):
        operands = [torch.full((3,), 0.5 + i).requires_grad_() for i in range(3)]
        operands = [v * 1 for v in operands] if derived else operands
        value = g(*operands)
        torch.autograd.grad(value, [operands[i] for i in first])
        return torch.autograd.grad(value, [operands[i] for i in second])

    compiled = fresh.compile(f)
    some = [(0,), (1,), (2,), (0, 1), (1, 2)]
    for first in some:
        for second in some:
            same(outcome(passes, compiled, first, second), outcome(passes, f, first, second))
    runs = fresh.cache_info(compiled)["outcomes"]["run"]
    assert set(runs) == {"graph"}, runs


KEEPS_NOTHING = {
    "fmod": lambda x: x.fmod(0.3),
    "remainder": lambda x: x.remainder(0.3),
    "%": lambda x: x % 2,
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "sum": lambda x: torch.einsum("i->", x),
    "view": lambda x: torch.einsum("i->i", x) + 1,
    "fmod by a tensor": lambda x: torch.fmod(x, x.detach() * 2),
    "lerp by a tensor": lambda x: torch.lerp(x, x, x),
}


@pytest.mark.parametrize("f", KEEPS_NOTHING.values(), ids=KEEPS_NOTHING)
@pytest.mark.parametrize("beside", [False, True])
def test_a_second_pass_through_what_keeps_nothing(fresh, f, beside):
    def program(x):
        return f(x), (x.exp() if beside else x * 2)

    def passes(g):
        x = torch.rand(3, generator=torch.Generator().manual_seed(0)).requires_grad_()
        made, _ = g(x)
        for _ in range(2):
            made.backward(torch.ones_like(made))
        return x.grad

    compiled = fresh.compile(program)
    for _ in range(2):
        same(outcome(passes, compiled), outcome(passes, program))
    assert fresh.cache_info(compiled)["outcomes"]["run"] == {"graph": 2}


ARGUMENTS = {
    "clamp by a tensor and a number": lambda x: x.clamp(torch.tensor([1]), 3),
    "clamp by a number and a tensor": lambda x: torch.clamp(x, 0, torch.tensor([1])),
    "clamp by a tensor of one number": lambda x: x.clamp(torch.tensor(0.5), 3),
    "clamp by two tensors": lambda x: x.clamp(torch.tensor([0.1]), torch.tensor([1])),
    "split by NumPy's": lambda x: x.split(np.int64(1)),
    "split by NumPy's, as a function": lambda x: torch.split(x, np.int64(1)),
    "split along NumPy's": lambda x: x.split(1, np.int64(0)),
    "split by a list of NumPy's": lambda x: x.split([np.int64(1), 2]),
}


@pytest.mark.parametrize("f", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(fresh, f):
    compiled, x = fresh.compile(lambda x: f(x)), torch.rand(3)
    for _ in range(2):
        same(outcome(compiled, x), outcome(f, x))
