"""mode="max-autotune": the first runs take turns among forms of the graph; nothing but the time may differ."""

import re

import pytest

import framejit

torch = pytest.importorskip("torch")
ENOUGH = 110  # runs after which a graph of at most eight forms has its verdict, also if two of them are compared twice


@pytest.fixture
def verdicts(fresh, tmp_path, capfd):
    """What is said of choices since the last question, by name of the graph."""

    def said():
        return re.findall(r"graph (.*?): (.*?) is chosen: (.*)", capfd.readouterr().err)

    before = framejit.config.measure
    with framejit.config.patch(cache_dir=str(tmp_path), log="perf"):
        yield said
    framejit.config.measure = before


def network():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(8, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 16, 1)]
    return torch.nn.Sequential(*layers).eval()


def test_a_form_is_chosen_and_every_run_is_right(verdicts):
    model, x = network(), torch.randn(1, 8, 20, 20)
    compiled = framejit.compile(model, mode="max-autotune")
    with torch.no_grad():
        want = model(x)
        for _ in range(ENOUGH):
            torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
        said = verdicts()
        assert len(said) == 1 and "the default" in said[0][1] + said[0][2], said
        assert " us" in said[0][2]  # measured
        for _ in range(3):
            torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
    assert not verdicts()
    assert framejit.cache_info(compiled)["outcomes"]["run"] == {"graph": ENOUGH + 3}


def test_writes_happen_once_in_every_run(verdicts):
    @framejit.compile(mode="max-autotune")
    def f(x, total):
        total[2:-2] += torch.softmax(x, -1).sum(0)[2:-2] + 1
        return (x * 2 + 1).exp().sum(0)

    x = torch.randn(3000, 16)
    got, want = torch.zeros(16), torch.zeros(16)
    for _ in range(ENOUGH):
        torch.testing.assert_close(f(x, got), f.__wrapped__(x, want), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    assert len(verdicts()) == 1


def test_errors_in_the_middle_of_measuring(verdicts):
    @framejit.compile(mode="max-autotune")
    def f(x, i):
        return torch.softmax(x[i] * 2, -1).sum(0)

    x = torch.randn(50, 16)
    for n in range(ENOUGH):
        if n % 5 == 0:
            with pytest.raises(IndexError):
                f(x, torch.tensor([0, 99]))
        torch.testing.assert_close(f(x, torch.tensor([0, n % 50])), f.__wrapped__(x, torch.tensor([0, n % 50])))
    assert len(verdicts()) == 1


def test_runs_that_try_forms_are_not_compared_with_python(verdicts):
    """A form that is slower than the default says nothing of the call."""
    model, x = network(), torch.randn(1, 8, 20, 20)
    with torch.no_grad(), framejit.config.patch(leave=True):
        compiled = framejit.compile(model, mode="max-autotune")
        compiled(x)
        runs = 1
        while not verdicts():
            compiled(x)
            runs += 1
            assert runs <= ENOUGH
    assert framejit.cache_info(compiled)["outcomes"]["run"] == {"graph": runs}


def test_other_modes_do_not_measure(verdicts):
    x = torch.randn(300, 16)
    f = framejit.compile(lambda x: torch.softmax(x, -1).sum(0))
    for _ in range(ENOUGH):
        f(x)
    assert not verdicts()


def test_gradients(verdicts):
    model, x = network(), torch.randn(2, 8, 10, 10)
    compiled = framejit.compile(model, mode="max-autotune")

    def gradients(call):
        model.zero_grad()
        call(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    want = gradients(model)
    for _ in range(ENOUGH):
        for got, w in zip(gradients(compiled), want):
            torch.testing.assert_close(got, w, rtol=1e-3, atol=1e-3)
    assert len(verdicts()) == 2  # of the forward and of the backward pass
