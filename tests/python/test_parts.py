"""Buffers that are written part by part, and many parts put together: work for what is written, not for the whole each time."""

import framejit
import pytest

torch = pytest.importorskip("torch")
from oracle import gradients_agree  # noqa: E402


def running_sums(x):
    rows = torch.zeros(x.shape)
    rows.select(1, 0).copy_(x[:, 0])
    for c in range(1, x.shape[1]):
        rows.select(1, c).copy_(rows.select(1, c - 1))
        rows.select(1, c).add_(x[:, c], alpha=0.5)
    return rows.mul_(2)


def nested(x):
    out = torch.zeros(x.shape)
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            out[n][c].add_(x[n][c] * (c + 1))
    return out


def read_between(x):
    rows, total = x.clone(), 0
    for c in range(x.shape[1]):
        rows[:, c] += 1
        if c % 4 == 0:
            total = total + rows[:, : c + 2].sum(1)
    return rows, total


@pytest.mark.parametrize("f, kernels", [(running_sums, 4), (nested, 30), (read_between, 20)])
def test_writes_of_parts(fresh, f, kernels):
    compiled = fresh.compile(f)
    for k in range(2):
        torch.manual_seed(k)
        x = torch.randn(2, 12, 40, 10)
        expected = f(x)
        for got, e in zip(compiled(x), expected):
            assert torch.allclose(got, e, rtol=1e-6)
    info = framejit.cache_info(compiled)
    assert (info["segments"], info["breaks"]) == (1, 0)
    assert info["kernels"] <= kernels  # running_sums had one for each write


def test_gradients_of_writes_of_parts(fresh):
    compiled = fresh.compile(running_sums)
    gradients_agree(compiled, running_sums, torch.randn(2, 12, 40, 10, requires_grad=True))
    assert framejit.cache_info(compiled)["breaks"] == 0


def joined(x, y, axis):
    parts = [x.narrow(axis, i % 3, 1) * i if i % 4 else y.narrow(axis, i % 3, 1) for i in range(20)]
    parts[5] = parts[6]  # twice
    parts[7] = torch.zeros_like(parts[7])
    parts[9] = (parts[1] + parts[2]).tanh()
    whole = torch.cat(parts, axis)
    again = torch.cat([whole, *(parts[i] + 1 for i in range(10, 20)), whole], axis)  # parts that are joined themselves
    return whole, again, parts[2], parts[9].sum(), whole.sum(axis), again.transpose(0, axis) * 2


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_many_parts(fresh, axis, dtype):
    compiled = fresh.compile(joined)
    for k in range(2):
        torch.manual_seed(k)
        x, y = (torch.randn(6, 5, 70).mul_(3).to(dtype) for _ in range(2))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(framejit.config, "poison", True)
            for got, e in zip(compiled(x, y, axis), joined(x, y, axis)):
                assert got.stride() == e.stride() and got.dtype == e.dtype
                assert torch.allclose(got, e, rtol=1e-5, atol=1e-3)
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_each_of_many_parts_is_made_in_its_place(fresh):
    """Before, a few kernels chose among sixteen parts for each element."""

    @fresh.compile
    def f(x):
        return torch.cat([x[i] * 2 for i in range(64)])

    x = torch.randn(64, 8, 100)
    assert f(x).equal(torch.cat([x[i] * 2 for i in range(64)]))
    info = framejit.cache_info(f)
    assert (info["kernels"], info["kernels_compiled"] + info["kernels_reused"]) == (64, 64)
    assert info["kernels_compiled"] <= 2
