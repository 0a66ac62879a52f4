"""int() of a tensor, of its item, of sizes and of what is computed of sizes: numbers of the graph, with exact values and errors."""

import math

import pytest

torch = pytest.importorskip("torch")

import framejit  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def whole(f, calls, most):
    """All calls as eager; one graph each, at most so many of them."""
    compiled = framejit.compile(f)
    for args in calls:
        expected, got = f(*args), compiled(*args)
        assert got.shape == expected.shape and got.dtype == expected.dtype and got.stride() == expected.stride()
        torch.testing.assert_close(got, expected)
    info = framejit.cache_info(compiled)
    assert info["breaks"] == 0, framejit.explain(f)(*calls[0]).break_reasons
    assert info["segments"] <= most, info
    return info


def test_int_of_a_float_tensor_is_a_size():
    def f(p, x):
        n = int(p.float().sum())
        return torch.topk(x, n)[0] / (n + 1e-6)

    x = torch.rand(30)
    whole(f, [(torch.arange(12) < k, x) for k in (5, 3, 8, 12, 7)], 1)


def test_int_of_an_item_times_a_number():
    def f(p, q, x):
        n = int(p.float().sum())
        m = min(int(q.float().sum()), int(n * 1.5))
        return x[:m].sum() / (n + m + 1e-6)

    x = torch.rand(40)
    whole(f, [(torch.arange(12) < k, torch.arange(12) < 11, x) for k in (5, 3, 4, 6, 7)], 2)


def test_counts_in_float_arithmetic():
    def f(m, x):
        n = m.sum().item()
        return x / (n + 1e-6) + 2.5 * n - n / 4 + float(n)

    whole(f, [(torch.arange(9) < k, torch.rand(3)) for k in (5, 3, 0, 9, 1)], 2)


def test_int_in_a_called_function():
    def size(p):
        return int(p.sum() * 1.0)

    def f(p, x):
        return x[: size(p)] + 1

    whole(f, [(torch.arange(9) < 4, torch.rand(9))] * 3, 1)


@pytest.mark.parametrize("value", [2.9, 0.0, -0.5, 7.0])
def test_it_truncates(value):
    def f(t, x):
        return x[int(t) :] + 1

    whole(f, [(torch.tensor(value), torch.rand(9))], 1)


def test_what_is_negative_is_no_size_but_right():
    def f(t, x):
        return x[int(t) :] + 1

    compiled, x = framejit.compile(f), torch.rand(9)
    for value in (-2.9, 2.9, -1.0, -3.0):
        assert torch.equal(compiled(torch.tensor(value), x), f(torch.tensor(value), x))


@pytest.mark.parametrize("value, error", [(math.inf, OverflowError), (-math.inf, OverflowError), (math.nan, ValueError)])
def test_what_is_no_integer_raises_as_in_eager(value, error):
    def f(t, x):
        return x[: int(t)] + 1

    compiled = framejit.compile(f)
    x = torch.rand(9)
    assert torch.equal(compiled(torch.tensor(3.0), x), x[:3] + 1)
    with pytest.raises(error):
        compiled(torch.tensor(value), x)
    assert torch.equal(compiled(torch.tensor(4.0), x), x[:4] + 1)


def test_a_number_beyond_64_bits():
    def f(t, x):
        return x * (int(t) > 5)

    compiled = framejit.compile(f)
    for t in (3.0, 7.0, 1e30, -1e30, 9.0e18):
        x = torch.rand(3)
        assert torch.equal(compiled(torch.tensor(t), x), f(torch.tensor(t), x))


@pytest.mark.parametrize(
    "size",
    [
        lambda n: int(n),
        lambda n: int(n) // 2,
        lambda n: int(n / 3),
        lambda n: int(n * 0.75),
        lambda n: int(2.0 * n),
        lambda n: math.ceil(n / 4),
        lambda n: math.floor(n / 4),
        lambda n: math.ceil(n * 0.5),
        lambda n: math.trunc(n / 5) + int(True),
    ],
)
def test_sizes_stay_symbols(size):
    def f(x):
        return x.new_zeros(size(x.shape[0]) + 1) + x.sum()

    whole(f, [(torch.ones(n),) for n in (5, 8, 13, 16, 20, 21, 24, 31, 40)], 2)


@pytest.mark.parametrize("factor", [0.1, 0.7, 1.1])
def test_products_that_round_are_exact(factor):
    def f(x):
        return x.new_zeros(int(x.shape[0] * factor) + 1)

    compiled = framejit.compile(f)
    for n in (10, 20, 30, 70, 100):
        assert compiled(torch.ones(n)).shape == f(torch.ones(n)).shape
