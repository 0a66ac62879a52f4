"""Sizes of results that follow from windows of any width and hop, as sound has them: one graph serves all sizes."""

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
SIZES = (8000, 9000, 9128, 16000, 4000, 3999, 1601, 1600)


def spectrum(a, n=400, hop=160, **options):
    return torch.stft(a, n, hop, n, torch.hann_window(n), return_complex=True, **options)


PROGRAMS = {
    "average": lambda a: F.avg_pool1d(a[None, None], 50, 31, padding=10, ceil_mode=True),
    "magnitude": lambda a: spectrum(a, center=False).abs(),
    "maximum": lambda a: F.max_pool1d(a[None, None], 256, 100),
    "short hop": lambda a: a.unfold(0, 25, 3) + 1,
    "spectrum": lambda a: spectrum(a, 512, 128),
    "windows": lambda a: a.unfold(0, 400, 160).sum(1),
    "windows of a part": lambda a: spectrum(a[:-7], 1024, 256).real * 2,
    "windows of windows": lambda a: a.unfold(0, 100, 40).unfold(0, 3, 2).sum(-1),
}
PAIRS = {
    "distance of windows": lambda a, b: torch.dist(a.unfold(0, 400, 160), b.unfold(0, 400, 160)),
    "every second": lambda a, b: F.smooth_l1_loss(a[::2] * 2, b[::2]),
    "spectra": lambda a, b: F.l1_loss(spectrum(a).real, spectrum(b).real),
}


def same(got, expected):
    assert got.shape == expected.shape and got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("gradients", [False, True])
def test_one_graph_for_all_sizes(name, gradients, fresh):
    f = PROGRAMS[name]
    compiled = fresh.compile(f)
    for n in SIZES:
        x, y = (torch.linspace(-1, 1, n).sin_().requires_grad_(gradients) for _ in range(2))
        expected, got = f(x), compiled(y)
        same(got, expected)
        if gradients:
            expected.abs().sum().backward()
            got.abs().sum().backward()
            same(y.grad, x.grad)
    info = compiled.cache_info()
    assert info["breaks"] == 0 and info["outcomes"]["capture"] == {"segment": 2}  # of the first size, and of any
    assert "condition" not in info["outcomes"]["run"]  # no size was guessed wrong


@pytest.mark.parametrize("name", PAIRS)
def test_sizes_that_must_be_equal_follow_from_others(name, fj):
    f = PAIRS[name]
    compiled = fj.compile(f)
    for n in SIZES:
        x, y = torch.linspace(-1, 1, n), torch.linspace(0, 3, n).cos()
        same(compiled(x, y), f(x, y))
    info = compiled.cache_info()
    assert info["breaks"] == 0 and info["outcomes"]["capture"] == {"segment": 2}
    short = torch.ones(3999 - 200)
    with pytest.raises(Exception) as expected:
        f(torch.ones(3999), short)
    with pytest.raises(type(expected.value)):
        compiled(torch.ones(3999), short)


def test_windows_that_do_not_fit_are_refused(fj):
    f = PROGRAMS["windows"]
    compiled = fj.compile(f)
    for n in (900, 1000, 400, 399, 0, 560):
        if n < 400:
            with pytest.raises(RuntimeError):
                compiled(torch.ones(n))
        else:
            same(compiled(torch.ones(n)), f(torch.ones(n)))
