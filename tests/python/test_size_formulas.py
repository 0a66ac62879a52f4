"""Calls whose results have sizes that no sum or product of theirs is: one graph for all sizes, forward and backward, and results as eager's."""

import operator

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import framejit  # noqa: E402

SIZES = (5, 8, 11, 13, 17, 23, 3)
X = torch.randn

TENSORS = {
    "as much padding as the kernel needs": (lambda a, b: F.conv1d(a, b, padding=b.shape[-1] - 1), lambda n: (X(2, 1, n + 5), X(3, 1, n))),
    "padding by remainders": (lambda a, w: F.conv2d(a, w, padding=(a.shape[-1] % 3, a.shape[-1] % 2)), lambda n: (X(1, 2, n, n + 3), X(3, 2, 2, 2))),
    "below the diagonal": (lambda a: a[torch.tril_indices(*a.shape).unbind()] * 2, lambda n: (X(n, n + 1),)),
    "below another diagonal": (lambda a: a[torch.tril_indices(a.shape[0], a.shape[1], offset=2).unbind()] * 2, lambda n: (X(n, n // 2 + 1),)),
    "above the diagonal": (lambda a: a[torch.triu_indices(a.shape[0], a.shape[1], 1).unbind()] * 2, lambda n: (X(n + 4, n),)),
    "above a lower diagonal": (lambda a: a[torch.triu_indices(a.shape[0], a.shape[1], -1).unbind()] * 2, lambda n: (X(n, n + 4),)),
    "as many cells as follow from the size": (lambda a: F.adaptive_avg_pool1d(a, a.shape[-1] // 7 + 1), lambda n: (X(1, 2, n * 5),)),
    "windows and hops that change": (lambda a: a.unfold(0, a.shape[0] // 50 + 1, a.shape[0] // 100 + 1) * 2, lambda n: (X(n * 100),)),
    "blocks of pixels": (lambda a: F.unfold(a, (3, 2), dilation=(1, 2), padding=1, stride=2), lambda n: (X(2, 3, n + 3, n + 7),)),
    "half as large again": (lambda a: F.interpolate(a, scale_factor=1.5, mode="bicubic"), lambda n: (X(1, 2, n, n + 2),)),
    "other scales for each side": (lambda a: F.interpolate(a, scale_factor=(2.3, 0.7)), lambda n: (X(1, 2, n, 2 * n),)),
    "scales between pixels": (lambda a: F.interpolate(a, scale_factor=(1 / 3, 1.2345), mode="bilinear"), lambda n: (X(1, 2, n, 2 * n),)),
    "distances of pairs": (lambda a: F.pdist(a), lambda n: (X(n, 3),)),
    "pixels of channels": (lambda a: F.pixel_shuffle(a * 2, 2), lambda n: (X(2, 8, n, n + 1),)),
    "pixels of channels that change": (lambda a: F.pixel_shuffle(a * 2, 3), lambda n: (X(n * 9, 2, 3),)),
    "pixels with the channels last": (lambda a: F.pixel_shuffle(a, 2) + 1, lambda n: (X(2, 8, n, n + 1).contiguous(memory_format=torch.channels_last),)),
    "channels of pixels": (lambda a: F.pixel_unshuffle(a * 2, 2), lambda n: (X(2, 3, 2 * n, 4),)),
}


def check(f, make, sizes=SIZES, tolerance=0):
    compiled = framejit.compile(f)
    with framejit.config.patch(leave=False):
        for n in sizes:
            torch.manual_seed(n), np.random.seed(n)
            args = make(n)
            want, got = f(*args), compiled(*args)
            for a, b in zip(*[r if isinstance(r, tuple) else (r,) for r in (want, got)]):
                np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
                assert b.dtype == a.dtype
                if isinstance(a, torch.Tensor):
                    assert b.stride() == a.stride()
    info = compiled.cache_info()
    assert info["outcomes"]["run"] == {"graph": len(sizes)} and not info["breaks"], info
    assert list(info["outcomes"]["compile"]) == ["ok"], info
    return info["outcomes"]["compile"]["ok"]


@pytest.mark.parametrize("name", TENSORS)
def test_two_versions_for_all_sizes(name, fresh):
    f, make = TENSORS[name]
    assert check(f, make, tolerance=1e-5) == 2


@pytest.mark.parametrize("name", TENSORS)
def test_gradients(name, fresh):
    f, make = TENSORS[name]
    compiled = framejit.compile(f, fullgraph=True)
    with framejit.config.patch(leave=False):
        for n in SIZES[:4]:
            torch.manual_seed(n)
            args = make(n)
            both = [[a.clone().requires_grad_() for a in args] for _ in range(2)]
            want, got = f(*both[0]), compiled(*both[1])
            weights = torch.randn_like(want)
            (want * weights).sum().backward(), (got * weights).sum().backward()
            for a, b in zip(*both):
                torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)
    assert compiled.cache_info()["captures"] == 2


def test_classes_that_change(fresh):
    def f(labels, a):
        return F.one_hot(labels, a.shape[0])

    assert check(f, lambda n: (torch.arange(n - 1), X(n)), SIZES[:-1]) == 2
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        framejit.compile(f)(torch.tensor([3]), X(2))


def test_errors_of_pixel_shuffle_are_the_frameworks(fresh):
    compiled = framejit.compile(lambda a: F.pixel_shuffle(a, 2))
    for sizes in ((1, 8, 3, 3), (1, 8, 4, 3), (1, 8, 5, 3)):
        compiled(X(sizes))
    for bad in (X(1, 6, 3, 3), X(3, 3)):
        with pytest.raises(RuntimeError, match="pixel_shuffle"):
            compiled(bad)
    assert compiled(X(0, 8, 3, 3)).shape == (0, 2, 6, 6)


ARRAYS = {
    "indices of a triangle": lambda a: a[np.triu_indices(a.shape[0], 1)] * 2,
    "indices of an array's triangle": lambda a: a[np.tril_indices_from(a)] * 2,
    "indices of the diagonal": lambda a: a[np.diag_indices(a.shape[0])] * 2,
    "mgrid": lambda a: np.mgrid[0 : a.shape[0], 0 : a.shape[1]].sum(0) * a,
    "ogrid": lambda a: (lambda g: (g[0] + g[1]) * a)(np.ogrid[0 : a.shape[0], 1 : a.shape[1] + 1]),
    "operator.index": lambda a: a * np.arange(operator.index(a.shape[1])),
    "result_type": lambda a: a.astype(np.result_type(a.shape[0], np.float32)) * 2,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_functions_of_numpy_that_are_given_sizes(name, fresh):
    """What NumPy's own functions are asked for first, as calls, leaves no guards where they are followed then."""
    assert check(ARRAYS[name], lambda n: (np.random.randn(n, n),), SIZES[:-1]) == 2


def test_scales_are_told_without_importing_a_compiler(fresh):
    """Sizes of which nothing is left are asked of the kernel alone: torch's code for meta tensors imports its own compiler first, which took seconds."""
    import subprocess
    import sys

    code = """
import sys, torch, framejit, torch.nn.functional as F
f = framejit.compile(lambda a: F.interpolate(a, scale_factor=(2.3, .7), mode="bilinear"))
for n in (8, 10, 12):
    f(torch.randn(1, 3, n, n))
assert framejit.cache_info(f)["segments"] == 2 and "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize("settings", [{}, {"reduction": "sum", "blank": 4}, {"reduction": "none", "zero_infinity": True}])
def test_losses_of_sequences(settings, batch, wanted, fresh):
    """Lengths are tensors, whose numbers do not decide what ctc_loss gives: one graph, with eager's gradients and errors."""

    def f(p, t, i, o):
        return F.ctc_loss(p.log_softmax(-1), t, i, o, **settings) * 2

    compiled = fresh.compile(f)
    with fresh.config.patch(leave=False):
        for n in (5, 6, 9, 4, 12, 7):
            torch.manual_seed(n)
            p = X(n, 2, 5) if batch else X(n, 5)
            t = torch.randint(1, 4, (2, n // 3) if batch else (n // 3,))
            lengths = [torch.full((2,), k) if batch else torch.tensor(k) for k in (n, n // 3)]
            results = []
            for g in (f, compiled):
                x = p.clone().requires_grad_(wanted)
                y = g(x, t, *lengths)
                results.append((y, *(torch.autograd.grad(y.sum(), x) if wanted else ())))
            torch.testing.assert_close(results[1], results[0])
            assert [r.stride() for r in results[0]] == [r.stride() for r in results[1]]
        info = fresh.cache_info(compiled)
        assert not info["breaks"] and info["segments"] <= 3, info
        for wrong in ((lengths[0] + 1, lengths[1]), (lengths[0], lengths[1] + 5)):
            told = []
            for g in (f, compiled):
                try:
                    told.append(g(p, t, *wrong).tolist())
                except RuntimeError as error:
                    told.append(str(error))
            assert told[0] == told[1]
