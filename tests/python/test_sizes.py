"""How many versions changing sizes cost, 0 and 1 among them: what is compiled is counted, and every call is as eager's."""

import copy
import decimal

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import framejit  # noqa: E402

SIZES = (7, 12, 1, 5, 2, 33)


def seen(result):
    """Everything about the tensors in a result that a program can see but values."""
    parts = result if isinstance(result, (tuple, list)) else [result]
    return [(tuple(t.shape), t.stride() if isinstance(t, torch.Tensor) else t.strides, t.dtype) for t in parts]


def calls(f, make, sizes, grad=False):
    """cache_info after calls of f compiled and as written with arguments for each size, compared."""
    compiled = framejit.compile(f)
    with framejit.config.patch(leave=False):
        for n in sizes:
            torch.manual_seed(n)
            args = make(n)
            args = args if isinstance(args, tuple) else (args,)
            if grad:
                args = tuple(a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
            mine = copy.deepcopy(args)
            with torch.set_grad_enabled(grad):
                try:
                    expected = f(*args)
                except Exception as error:
                    with pytest.raises(type(error)):
                        compiled(*mine)
                    continue
                got = compiled(*mine)
            assert seen(got) == seen(expected), n
            for a, b in zip(*((r if isinstance(r, (tuple, list)) else [r]) for r in (got, expected))):
                np.testing.assert_allclose(*(t.detach().numpy() if isinstance(t, torch.Tensor) else t for t in (a, b)), rtol=2e-5, atol=2e-5)
            if grad:
                expected.square().sum().backward()
                got.square().sum().backward()
                for a, b in zip(mine, args):
                    if isinstance(a, torch.Tensor) and a.requires_grad:
                        torch.testing.assert_close(a.grad, b.grad)
        return framejit.cache_info(compiled)


def compiles(info):
    return sum(info["outcomes"]["compile"].values())


def X(*sizes):
    return torch.randn(*sizes)


NORM, QKV, CONV = nn.LayerNorm(8), nn.Linear(8, 24), nn.Conv2d(3, 4, 3, padding=1).eval()
# Programs to which a size of 1 is a size like any other, though strides or library calls ask.
ONE_VERSION = {
    "heads": (lambda x: NORM((x.view(x.size(0), x.size(1), 2, 4).transpose(1, 2) * 2).transpose(1, 2).reshape(x.shape)), lambda n: X(2, n, 8)),
    "attention": (
        lambda x: F.scaled_dot_product_attention(*[x.view(x.size(0), x.size(1), 2, 4).transpose(1, 2)] * 3).transpose(1, 2).reshape(x.shape),
        lambda n: X(n, n, 8),
    ),
    "channels_last": (lambda x: CONV(x.permute(0, 3, 1, 2)).mean((2, 3)), lambda n: X(n, 5, n + 1, 3)),
    "flatten_of_one_pixel": (lambda x: x.permute(0, 3, 1, 2).mean((2, 3), keepdim=True).flatten(1) + 1, lambda n: X(n, 3, n, 5)),
    "flatten_behind_a_norm": (lambda x: NORM(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).flatten(1) + 1, lambda n: X(n, 8, 1, 1)),
    "max_pool": (lambda x: F.max_pool2d(x, 3, stride=2, padding=1).relu(), lambda n: X(2, 3, n, n + 2)),
    "diff": (lambda x: torch.diff(x, prepend=x[:, :1], dim=-1) + 1, lambda n: X(3, n)),
    "transposed": (lambda x: x.sum(1) * 2, lambda n: X(4, n).t()),
    "cropped": (lambda x, y: F.pad(x, (0, y.size(1) - x.size(1))) + y, lambda n: (X(2, n), X(2, (n * 5) % 11 + 1))),
    "tensor_split": (lambda x: [a + 1 for a in torch.tensor_split(x, 3)], lambda n: X(n, 4)),
    "int": (lambda x, n: x.new_zeros(n, 3) + x, lambda n: (X(3), n)),
    "heads_of_a_part": (
        lambda x: NORM(F.scaled_dot_product_attention(*[p.view(*p.shape[:-1], -1, 4).transpose(1, 2) for p in QKV(x).split(8, -1)]).transpose(1, 2).reshape(x.shape)),
        lambda n: X(2, n, 8),
    ),
    "batches_of_two": (lambda x, y: torch.softmax(x @ y.transpose(1, 2), -1) @ y, lambda n: (X(n, 5, 4), X(n, 6, 4))),
    "broadcast_tensors": (lambda x, y: [a + 1 for a in torch.broadcast_tensors(x, y)], lambda n: (X(n, 5), X(n, 5))),
}


@pytest.mark.parametrize("name", ONE_VERSION)
def test_a_size_of_one_is_a_size(name):
    info = calls(*ONE_VERSION[name], SIZES)
    assert compiles(info) == 2, info
    assert info["outcomes"]["run"] == {"graph": len(SIZES)}, info


def test_channels_stay_last_where_a_size_is_one_when_it_becomes_a_symbol():
    info = calls(lambda x: CONV(x.permute(0, 3, 1, 2)).mean((2, 3)), lambda n: X(2, n, 6 - n, 3), (4, 1, 3, 5))
    assert compiles(info) == 2 and info["outcomes"]["run"] == {"graph": 4}, info


# Between attention heads and back, with numbers of heads and widths that the program writes down; and the width of the input.
HEADS = {
    "apart": (lambda x: x.view(x.size(0), x.size(1), 4, 8).transpose(1, 2).reshape(x.size(0) * 4, x.size(1), 8), 32),
    "there_and_back": (lambda x: (x.view(x.size(0), x.size(1), 4, 8).transpose(1, 2) * 2).transpose(1, 2).reshape(x.size(0), x.size(1), 32) + 1, 32),
    "scores": (lambda x: torch.softmax(x.view(x.size(0), x.size(1), 4, 8).transpose(1, 2) @ x.view(x.size(0), x.size(1), 4, 8).permute(0, 2, 3, 1), -1), 32),
    "as_rows": (lambda x: x.reshape(-1, 32).view(x.size(0), x.size(1), 4, 8).transpose(1, 2) * 2, 32),
    "half": (lambda x: x.chunk(2, -1)[1].view(x.size(0), x.size(1), 4, 8).transpose(1, 2) * 2, 64),
}


@pytest.mark.parametrize("grad", (False, True))
@pytest.mark.parametrize("name", HEADS)
def test_heads_are_loops_over_dimensions(name, grad, capfd, fresh):
    """A copy between heads is a loop nest over its dimensions, as with constant sizes: no index is divided for each element."""
    program, width = HEADS[name]
    compiled = fresh.compile(program, dynamic=True)
    with framejit.config.patch(log="loop", leave=False):
        for sizes in ((5, 33, width), (3, 40, width), (2, 7, width)):
            x = torch.randn(sizes, requires_grad=grad)
            y = x.detach().clone().requires_grad_(grad)
            with torch.set_grad_enabled(grad):
                got, expected = compiled(x), program(y)
            assert seen(got) == seen(expected)
            torch.testing.assert_close(got, expected)
            if grad:
                got.square().sum().backward()
                expected.square().sum().backward()
                torch.testing.assert_close(x.grad, y.grad)
    loops = capfd.readouterr().err
    assert compiles(framejit.cache_info(compiled)) == 1
    assert framejit.cache_info(compiled)["outcomes"]["run"] == {"graph": 3}
    assert "kernel(" in loops and "floordiv" not in loops and "= rem" not in loops, loops


@pytest.mark.parametrize("grad", (False, True))
def test_what_a_branch_says_of_a_size_is_known(grad, fresh):
    """Where the program has asked whether a length is 1, nothing else is asked of it, nor of the batch."""

    def f(x):
        y = F.softmax(x.view(x.size(0), x.size(1), 2, 4).transpose(1, 2), -1)
        if x.size(1) > 1:
            y = y * 2
        return y.transpose(1, 2).contiguous().reshape(x.size(0), x.size(1), -1).contiguous() + 1

    pairs = [(7, 5), (6, 9), (5, 1), (1, 8), (1, 1), (3, 1), (4, 1), (2, 2)]
    info = calls(f, lambda n: X(*pairs[n], 8), range(len(pairs)), grad)
    assert compiles(info) == 3, info
    assert info["outcomes"]["run"] == {"graph": len(pairs)}, info


def test_sizes_that_the_program_refuses_make_no_versions():
    def check(x):
        if x.size(0) * x.size(1) == 1:
            raise ValueError("more than one value")
        return x * 2

    def f(x):
        y = torch.tanh(x) + 1
        z = check(y)
        return torch.exp(z).sum(0)

    pairs = [(7, 5), (6, 9), (1, 1), (1, 4), (1, 1), (1, 1), (3, 1), (1, 1)]
    info = calls(f, lambda n: X(*pairs[n]), range(len(pairs)))
    assert compiles(info) == 2 and info["captures"] == 3, info
    assert info["outcomes"]["run"] == {"graph": 4, "python": 4}, info
    assert "the program raises an exception: such calls run as written" in info["notes"]


def test_strides_that_show_are_right():
    """A result that lies in columns has other strides where it has one: a version for that, and no wrong one."""
    info = calls(lambda x: (x.t() * 2).t(), lambda n: X(n, 1, 4).squeeze(1).t(), SIZES)
    assert compiles(info) <= 3
    calls(lambda x: x.permute(2, 0, 1) + 1, lambda n: X(n, 3, n + 1), SIZES)
    calls(lambda x: x.permute(0, 3, 1, 2).relu() * 2, lambda n: X(n, n, 2, 3), SIZES)
    calls(lambda x, n: x.expand(n, 4), lambda n: (X(1, 4), n), SIZES)
    calls(lambda x: x.chunk(3, -1)[1].view(x.size(0), x.size(1), 2, 4), lambda n: X(2, n, 24), SIZES)
    calls(lambda x: x.chunk(3, -1)[1].view(x.size(0), x.size(1), 2, 4), lambda n: X(n, 2, 24), SIZES)
    calls(lambda x: x.transpose(0, 1).reshape(x.size(1), x.size(0), 2, 2), lambda n: X(n, n, 4), SIZES)
    calls(lambda x: x.transpose(0, 1)[:, :, ::2].view(-1, x.size(0), 1, 2), lambda n: X(2, n, 4), SIZES)
    assert compiles(calls(lambda x, y: x.expand(y.size(0), -1) + y, lambda n: (X(1, 4), X(n, 4)), SIZES)) <= 3
    assert compiles(calls(lambda x: (x * 2).sum(0), lambda n: np.asfortranarray(np.random.RandomState(n).rand(n, 4)), SIZES)) <= 4


def test_the_program_reads_strides():
    def f(x):
        y = x.view(x.size(0), x.size(1), 2, 4).transpose(1, 2) * 2
        return x + y.stride(0) + y.stride(1) + y.stride(2)

    assert compiles(calls(f, lambda n: X(2, n, 8), SIZES)) <= 3


@pytest.mark.parametrize("f", [lambda x: x * 2 + 1, lambda x: x.view(x.size(0), -1) * 2, lambda x: x.max(0)[0], lambda x: x[:, None].sum(0)])
def test_what_is_empty_runs_as_written(f):
    info = calls(f, lambda n: X(n, 4), (7, 0, 12, 0, 1, 0))
    assert compiles(info) == 2, info
    assert info["outcomes"]["run"] == {"graph": 3, "python": 3}
    assert info["notes"] == ["a size is 0 that was not: such calls run as written"]


def test_what_was_empty_first_is_compiled():
    info = calls(lambda x: x * 2 + 1, lambda n: X(n, 4), (0, 0, 5))
    assert info["outcomes"]["run"] == {"graph": 3}, info


def test_strides_of_empty_results():
    info = calls(lambda x: x[:, : x.size(1) // 2] + 1, lambda n: X(2, n, 8), (7, 12, 1))
    assert "python" not in info["outcomes"]["run"]


def test_a_branch_of_the_program_is_one_version_more():
    info = calls(lambda x: x + 1 if x.size(0) == 1 else x - 1, lambda n: X(n, 4), SIZES)
    assert compiles(info) == 3


class Taking(nn.Module):
    def forward(self, x, n):
        return x.new_zeros(n, 3) + x


def spread(*args, **keywords):
    return Taking.forward(None, *args, **keywords)


@pytest.mark.parametrize("f", [Taking(), spread])
@pytest.mark.parametrize("keyword", [False, True])
def test_numbers_among_the_arguments_of_a_call_become_symbols(f, keyword, fresh):
    """Through `*args` and `**kwargs`, as every call of a module goes; also where the number is 1 when it is seen to change."""
    compiled = fresh.compile(f)
    for n in (6, 1, 2, 8, 3):
        got = compiled(X(3), n=n) if keyword else compiled(X(3), n)
        assert got.shape == (n, 3)
    assert compiles(framejit.cache_info(compiled)) == 2


@pytest.mark.parametrize(
    "f",
    [
        lambda n: torch.arange(n) * 2,
        lambda n: torch.arange(n, 4) * 2,
        lambda n: torch.arange(0, 3, n) * 2,
        lambda n: torch.arange(n, 3.5) * 2,
        lambda n: torch.arange(n, dtype=torch.float64) * 2,
    ],
)
def test_a_bool_is_an_integer_to_arange(f, fresh):
    compiled = fresh.compile(f, fullgraph=True)
    for n in (True, 1, 2, True, 3):
        got, expected = compiled(n), f(n)
        assert got.dtype == expected.dtype and torch.equal(got, expected), n
    assert framejit.cache_info(compiled)["outcomes"]["run"] == {"graph": 5}


# The framework's own kernel checks that sizes fit each other: they are demanded, and those that are equal by chance are not.
DEMANDED = {
    "index_add": (lambda x, i: torch.zeros(5, 3).index_add(0, i, x), lambda n: (X(n, 3), torch.arange(n) % 5)),
    "of_ones": (
        lambda x, i, y: torch.zeros(y.size(0), 1).index_add(0, i, torch.ones(x.size(0), 1)) + y,
        lambda n: (X(n, 3), torch.zeros(n, dtype=torch.int64), X(n if n > 9 else n + 1, 2)),
    ),
    "scatter_add": (lambda x, i: torch.zeros(5, 3).scatter_add(0, i[:, None].expand(-1, 3), x), lambda n: (X(n, 3), torch.arange(n) % 5)),
}


@pytest.mark.parametrize("name", DEMANDED)
def test_sizes_that_a_call_demands_equal(name):
    sizes = (7, 12, 5, 2, 33, 8)
    info = calls(*DEMANDED[name], sizes)
    assert compiles(info) == 2 and info["outcomes"]["run"] == {"graph": len(sizes)}, info
    assert not info["breaks"]


def test_sizes_that_do_not_fit_raise_as_in_eager():
    def sizes(n):
        return X(n, 3), torch.arange(n if n != 3 else 4) % 5

    info = calls(lambda x, i: torch.zeros(5, 3).index_add(0, i, x), sizes, (7, 12, 3, 5))
    assert info["outcomes"]["run"]["graph"] >= 3 and info["breaks"] == 1, info


# How many versions: one for the first size, one for all, and one for each question that NumPy's rules of slices ask of the size.
NEGATIVE = {
    "all": (lambda x: (x[::-1], x[::-1] * 2 + 1), 3),
    "every second": (lambda x: (x[::-2], x[::-1, ::-2].copy()), 2),
    "from the end": (lambda x: (x[-2::-1], x[-2::-1] * 2), 4),
    "down to": (lambda x: (x[:-3:-1], x[:2:-1] * 2), 4),
    "past both ends": (lambda x: (x[100:0:-4], x[-1:-100:-1] * 2), 4),
    "nothing": (lambda x: x[1:8:-1] * 2, 4),
}


@pytest.mark.parametrize("name", NEGATIVE)
def test_negative_steps(name):
    f, most = NEGATIVE[name]
    sizes = (7, 12, 20, 33, 15, 5, 9, 2, 1, 3)
    info = calls(f, lambda n: np.random.RandomState(n).rand(n, n + 1), sizes)
    assert compiles(info) <= most and info["outcomes"]["run"] == {"graph": len(sizes)}, info


@pytest.mark.parametrize(
    "f, zeros",
    [
        (lambda x: x + np.linspace(0.3, 1.7, x.shape[0]), np.zeros),
        (lambda x: x + np.linspace(0.3, 1.7, x.shape[0], endpoint=False), np.zeros),
        (lambda x: x + torch.linspace(0.3, 1.7, x.shape[0]), torch.zeros),
        (lambda x: x + torch.linspace(-3, 2.9, x.shape[0], dtype=torch.float64), torch.zeros),
    ],
)
def test_linspace(f, zeros):
    info = calls(f, zeros, (7, 12, 5, 2, 33, 8))
    assert compiles(info) == 2, info
    calls(f, zeros, SIZES)


def test_numbers_whose_expressions_would_double_go_on_as_numbers():
    """Each round uses what it made twice: as an expression of n the last one would have more than 2^32 steps."""

    def mixed(low, high):
        middle = (low + high + 1) // 2
        return (middle + high) // 3, (middle + low) // 2

    def eight(low, high):
        return mixed(*mixed(*mixed(*mixed(*mixed(*mixed(*mixed(*mixed(low, high))))))))

    def program(x, n):
        low, high = eight(*eight(*eight(*eight(0, n))))
        return x * high + low

    info = calls(program, lambda n: (torch.ones(3), n), (100, 10**9, 10**12, 7, 10**9))
    assert info["captures"] == 4 and info["outcomes"]["run"] == {"graph": 5} and not info["breaks"]  # one for each number


NUMBERS = {
    "half": lambda p, n: p[: n // 2],
    "from the end": lambda p, n: torch.cat([p[-(n - n // 2) :], p[: n // 2]]).view(1, n, 1, -1).expand(2, n, 3, -1),
    "new": lambda p, n: p.new_zeros(size=(n, p.shape[1])) + n,
    "keyword": lambda p, **words: p[: words["n"]] * 2,
    "in a list": lambda p, sizes: p[: sizes[0]].expand(sizes[1], -1, -1) + sizes[0],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_symbols_from_the_first_call(name, fresh):
    """dynamic=True: one version for whole numbers above 1, wherever the call holds them; 1 is a number of its own."""
    f, p = NUMBERS[name], X(64, 6)

    def call(g, n):
        return g(p, n=n) if name == "keyword" else g(p, [n, n + 1]) if name == "in a list" else g(p, n)

    compiled = fresh.compile(f, dynamic=True, fullgraph=True)
    with framejit.config.patch(error_on_recompile=True):
        for n in (4, 8, 6, 9):
            assert torch.equal(call(compiled, n), call(f, n))
    assert compiles(framejit.cache_info(compiled)) == 1
    for n in (1, 5):
        assert torch.equal(call(compiled, n), call(f, n))


PARTS_OF_COMPLEX = {
    "rows": lambda x, n: x[-(n - n // 2) :].clone(),
    "columns": lambda x, n: x.split([4, 2, 2], dim=1)[1][-(n - n // 2) :].clone(),
    "view": lambda x, n: x[: n // 2, 2:4],
    "joined": lambda x, n: torch.cat([x[:, 4:6][: n // 2], x[:, 2:4][: n - n // 2]]).view(1, n, 1, -1).expand(n, n, n, -1).clone(),
    "real": lambda x, n: x.real[:n, 4:6].clone(),
    "stepped": lambda x, n: x[:n:2, None, ..., 3].clone(),
}


@pytest.mark.parametrize("name", PARTS_OF_COMPLEX)
def test_parts_of_complex_tensors_by_numbers_that_change(name, fresh):
    f = PARTS_OF_COMPLEX[name]
    x = torch.polar(torch.ones(64, 8), torch.randn(64, 8))
    compiled = framejit.compile(f, dynamic=True, fullgraph=True)
    for n in (4, 8, 6, 9, 33):
        want, got = f(x, n), compiled(x, n)
        assert torch.equal(want, got) and (want.stride(), want.storage_offset()) == (got.stride(), got.storage_offset())
    assert compiled.cache_info()["captures"] == 1


def test_parts_of_complex_tensors_are_written_through():
    def f(x, n):
        y = x[:n, 1:3]
        y += 1j
        return y * 2

    compiled = framejit.compile(f, fullgraph=True)
    for n in (4, 8, 6):
        x = torch.polar(torch.ones(16, 4), torch.randn(16, 4))
        other = x.clone()
        torch.testing.assert_close(f(x, n), compiled(other, n))
        torch.testing.assert_close(x, other)


SCATTERED = {
    "scatter_add": lambda x, index, y: x.scatter_add(0, index, y),
    "scatter": lambda x, index, y: x.scatter(0, index, y),
    "number": lambda x, index, y: x.scatter(0, index, 2.5),
    "scatter_reduce": lambda x, index, y: x.scatter_reduce(0, index, y, "amax"),
    "index_add": lambda x, index, y: x.index_add(0, index[:, 0], y),
    "in place": lambda x, index, y: (x * 1).scatter_add_(0, index, y),
}


@pytest.mark.parametrize("name", SCATTERED)
@pytest.mark.parametrize("grad", [False, True])
def test_what_is_scattered_by_products_of_sizes(name, grad, fresh):
    """The index is of another size than what is scattered, by other symbols, and they fit for all sizes of the program alone."""
    scatter = SCATTERED[name]

    def f(x, y, which, counts):
        n = counts[0] * counts[1]
        index = (which.unsqueeze(-1) * n + torch.arange(n)).flatten().unsqueeze(-1).expand(-1, x.shape[1])
        return scatter(x, index, y)

    compiled = framejit.compile(f, dynamic=True, fullgraph=True)
    for rows, counts in ((4, (2, 3)), (5, (3, 4)), (3, (2, 2)), (7, (5, 3))):
        n = counts[0] * counts[1]
        x, which = torch.randn(rows * n, 6), torch.randperm(rows)[: rows - 1]
        y = torch.randn((rows - 1) * n, 6)
        args = [[t.clone().requires_grad_(grad) for t in (x, y)] for _ in range(2)]
        want, got = f(*args[0], which, counts), compiled(*args[1], which, counts)
        torch.testing.assert_close(want, got)
        assert want.stride() == got.stride()
        if grad:
            want.square().sum().backward(), got.square().sum().backward()
            for a, b in zip(*args):
                torch.testing.assert_close(a.grad, b.grad)
    assert compiled.cache_info()["captures"] == 1


def test_which_of_two_numbers_is_larger_is_no_version(fresh):
    def f(x, h, w):
        top, low = max(h // 2, w // 2, 0), min(h, w, 100)
        return x[top : top + low] * max(h, w), max(h, w, key=lambda n: -n), max([h, w])

    compiled = fresh.compile(f, dynamic=True, fullgraph=True)
    x = torch.randn(64)
    for h, w in ((4, 6), (6, 4), (8, 8), (9, 17), (30, 2)):
        want, got = f(x, h, w), compiled(x, h, w)
        assert torch.equal(want[0], got[0]) and want[1:] == got[1:]
    # The key and the list ask which is larger.
    assert compiled.cache_info()["captures"] <= 3

    def g(x, h, w):
        top, low = max(h // 2, w // 2, 0), min(h, w, 100)
        return x[top : top + low] * max(h, w)

    compiled = fresh.compile(g, dynamic=True, fullgraph=True)
    fresh.reset()
    for h, w in ((4, 6), (6, 4), (8, 8), (9, 17), (30, 2)):
        assert torch.equal(g(x, h, w), compiled(x, h, w))
    assert compiled.cache_info()["captures"] == 1


@pytest.mark.parametrize("number_first", [False, True])
def test_a_number_and_a_size_that_change_together_cost_one_version(fresh, number_first):
    def f(n, x):
        return x.new_zeros(n, x.size(1)) + x.sum(0)

    def g(x, n):
        return f(n, x)

    compiled = fresh.compile(f if number_first else g, fullgraph=True)
    for rows, n in ((5, 7), (9, 4), (2, 3), (12, 12)):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(n, x) if number_first else compiled(x, n), f(n, x))
    assert compiled.cache_info()["captures"] == 2


def into_groups(x, group, groups):
    return torch.zeros(groups, x.size(1)).index_add(0, group, x)


@pytest.mark.parametrize(
    "f, later, versions",
    [
        (into_groups, 4, 2),
        (lambda x, group, k: x.view(x.size(0), k, -1).softmax(-1), 4, 2),
        (lambda x, group, k: x.topk(k).values, 3, 2),
        (lambda x, group, k: x.repeat_interleave(k, 0) * k, 5, 2),
    ],
)
def test_ints_that_are_given_are_symbols_once_sizes_are(f, later, versions, fresh):
    """A number of groups, say: it stays as it was while the first sizes change, and changes with later ones."""
    compiled = fresh.compile(f, options={"leave": False})
    for n, k in ((5, 2), (7, 2), (9, 2), (11, 2), (6, later), (13, later)):
        x, group = torch.randn(n, 8), torch.arange(n) % k
        torch.testing.assert_close(compiled(x, group, k), f(x, group, k))
    assert compiles(compiled.cache_info()) == versions and not compiled.cache_info()["breaks"]


def test_where_an_int_as_a_symbol_ends_a_graph_it_is_a_number(fresh):
    """Sizes are symbols still."""

    def f(x, k):
        return x.sin() * float(decimal.Decimal(k))

    compiled = fresh.compile(f, options={"leave": False})
    for n in (5, 7, 9, 11):
        x = torch.randn(n, 8)
        torch.testing.assert_close(compiled(x, 2), f(x, 2))
    info = compiled.cache_info()
    assert info["outcomes"]["capture"]["again"] == 1 and info["segments"] == compiles(info) == 4  # two parts, two versions each


@pytest.mark.parametrize("most", (2**63 - 1, 2**63 - 3, 2**62 + 5))
def test_sizes_beside_the_greatest_ints(most):
    """The difference of the two is no 64-bit int."""

    def f(x):
        n = x.shape[0] - 2
        if -most <= n <= most and n != most:
            return x[:-1] * 2, n
        return x, n

    compiled = framejit.compile(f, dynamic=True)
    for size in (3, 5, 9):
        x = torch.arange(float(size))
        got, expected = compiled(x), f(x)
        assert torch.equal(got[0], expected[0]) and got[1] == expected[1]
    assert 1 <= len(compiled.graphs) <= 2 and not compiled.cache_info()["breaks"]


def test_lists_of_changing_numbers_are_indices_of_our_own_code(fresh):
    """Not of a call of the framework for each: of a few versions; what is out of range is told as in eager."""
    x = torch.arange(125.0).reshape(5, 5, 5)
    f = lambda x, k: x[k] * 2  # noqa: E731
    compiled = fresh.compile(f)
    for i in range(6):
        k = [0, 2 + i % 3, -3]
        assert torch.equal(compiled(x, k), f(x, k))
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["segments"] <= 3, info
    assert "extern" not in str(compiled.graphs[-1])
    with pytest.raises(IndexError):
        compiled(x, [0, 7, -3])


STRIDES = {
    "a new axis": lambda x: x.sum(0).expand(x.shape).stride(),
    "broadcast_to": lambda x: torch.broadcast_to(x.sum(0), x.shape).stride(),
    "row-major of a transposed product": lambda x: (x[:, :, None] * x[:, None]).permute(1, 2, 0).stride(),
    "a product": lambda x: (x[:, :, None] * x[:, None]).stride(),
    "reshaped": lambda x: (x[:, :, None] + 1).transpose(0, 2).reshape(x.shape[1], 1, -1).stride(),
    "NumPy, reshaped": lambda x: (x.numpy()[:, :, None] * 2).transpose(2, 1, 0).reshape(x.shape[1], 1, x.shape[0]).strides,
    "NumPy, a product": lambda x: (x.numpy()[:, :, None] * x.numpy()[:, None]).strides,
    "NumPy, expanded": lambda x: np.expand_dims(x.numpy(), 0).strides + np.expand_dims(x.numpy(), 1).strides + np.expand_dims(x.numpy().T, -1).strides,
    "NumPy, turned": lambda x: x.numpy().T.reshape(-1, 1, 1).strides,
}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("program", STRIDES)
def test_strides_that_the_program_reads_at_sizes_of_one(fresh, program, dynamic):
    f = STRIDES[program]
    orders = [[(3, 4), (1, 4), (3, 1)], [(4, 4), (2, 3), (1, 3), (3, 1)], [(1, 3), (3, 1), (2, 2), (1, 1)], [(3, 1), (2, 4), (1, 2)]]
    for sizes in orders:
        for turned in (False, True):
            compiled = fresh.compile(f, dynamic=dynamic)
            for a, b in sizes:
                x = torch.ones(b, a).t() if turned else torch.ones(a, b)
                assert compiled(x) == f(x), (sizes, turned, a, b)
            info = fresh.cache_info(compiled)
            assert info["segments"] > 0 and info["breaks"] == 0 and set(info["outcomes"]["run"]) <= {"graph"}
            fresh.reset()


def test_a_size_of_1_at_a_later_capture_is_as_any_other_where_no_stride_shows(fresh):
    """As T5's masks: the third version is captured for a branch, by a call whose batch is 1."""

    def f(x, y):
        rows = torch.arange(3)[None, None, :, None] >= torch.arange(1)[:, None, None, None]
        out = torch.where(rows.expand(x.shape[0], -1, 3, 3), x, 0.0).sum((1, 2, 3))
        return out * 2 if y.shape[0] > 1 else out + 1

    compiled = fresh.compile(f)
    for batch, n in ((2, 5), (3, 4), (1, 1), (4, 1), (1, 6), (1, 1), (5, 3), (2, 1)):
        x, y = torch.randn(batch, 2, 3, 3), torch.randn(n)
        torch.testing.assert_close(compiled(x, y), f(x, y))
    info = compiled.cache_info()
    assert (info["segments"], info["breaks"]) == (3, 0), info  # of constant sizes, and one for each side of the branch


def test_strides_of_a_size_that_is_1_at_a_later_capture(fresh):
    """They leave the graph: what is stretched to 1 keeps its stride, what is stretched further has none."""

    def f(x, y):
        m = torch.arange(3.0)[None, :].expand(x.shape[0], 3)
        return (m, m * 2) if y.shape[0] > 1 else (m, m + 1)

    compiled = fresh.compile(f)
    for batch, n in ((2, 5), (3, 4), (1, 1), (4, 1), (1, 6), (1, 1), (5, 3), (2, 1)):
        x, y = torch.randn(batch), torch.randn(n)
        for ours, eager in zip(compiled(x, y), f(x, y), strict=True):
            assert torch.equal(ours, eager) and ours.stride() == eager.stride()
    info = compiled.cache_info()
    assert set(info["outcomes"]["run"]) == {"graph"} and not info["breaks"], info


def test_a_reshape_that_copies_at_any_size_asks_no_size(fresh):
    """As repeat_kv of Llama: heads that are repeated cannot be viewed as one dimension, whatever the length."""

    def f(x):
        x = (x + 1).view(x.shape[0], x.shape[1], 4, 8).transpose(1, 2)
        b, h, s, d = x.shape
        return x[:, :, None].expand(b, h, 2, s, d).reshape(b, 2 * h, s, d).sum((1, 3))

    compiled = fresh.compile(f)
    for b, s in ((2, 5), (3, 4), (2, 1), (5, 1), (3, 9), (4, 1)):
        x = torch.randn(b, s, 32)
        torch.testing.assert_close(compiled(x), f(x))
    info = compiled.cache_info()
    assert (info["segments"], info["breaks"]) == (2, 0), info


@pytest.mark.parametrize("sizes", [[(3, 2, 4), (2, 3, 5), (1, 1, 3), (1, 3, 3), (3, 1, 2)], [(1, 3, 3), (1, 1, 3), (3, 1, 3), (1, 1, 3)]])
def test_strides_of_dimensions_that_lie_alike_become_one(fresh, sizes):
    """With both of size 1 the two are nothing to walk along, and the third decides, which overlaps them."""
    f = lambda x: x.reshape(x.shape[0] * x.shape[1], -1).stride()  # noqa: E731
    compiled = fresh.compile(f)
    for a, b, c in sizes:
        x = torch.ones(40).as_strided((a, b, c), (b, 1, 1))
        assert compiled(x) == f(x), (a, b, c)
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and set(info["outcomes"]["run"]) == {"graph"}


@pytest.mark.parametrize("reduce", ["b.sum(axis=0)", "np.mean(b, axis=0)", "np.average(b, axis=0)", "b.max(axis=-1)", "np.cumsum(b, axis=1)"])
def test_a_size_of_1_says_nothing_of_strides(fresh, reduce):
    """Arrays in Fortran's order: the stride of a result where the size is 1 is none that others follow from."""
    f = eval(f"lambda b: {reduce}", {"np": np})
    random = np.random.default_rng(0)
    for sizes in ([(1, 2, 3), (7, 2, 1), (300, 3, 2), (5, 4, 3)], [(2, 1, 3), (2, 7, 1), (3, 2, 9)], [(4, 4, 1), (1, 4, 4), (3, 1, 5), (6, 5, 7)]):
        compiled = fresh.compile(f)
        for shape in sizes:
            b = np.asfortranarray(random.random(shape))
            expected, got = f(b), compiled(b)
            assert (got.tobytes(), got.strides) == (expected.tobytes(), expected.strides)
