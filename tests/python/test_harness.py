"""The harness notices what it is there to notice: each row is a wrong compiler, and a word of the complaint."""

import warnings

import pytest
from harness import run_program

torch = pytest.importorskip("torch")


def build():
    def f(x, w):
        y = w * 3 + x
        x.add_(1)
        return y, x

    return f, lambda: (torch.ones(2, 3), torch.arange(6.0).reshape(2, 3).requires_grad_())


def broken(after):
    """A compiler whose code does `after(result, arguments)` behind the user's back."""
    return lambda f: lambda *args: after(f(*args), *args)


def with_warning(result, x, w):
    warnings.warn("stray")
    return result


def with_version(result, x, w):
    torch.autograd.graph.increment_version(w)
    return result


def with_write(result, x, w):
    x.data[0, 0] = 77
    return result


def with_rng(result, x, w):
    torch.rand(1)
    return result


def with_grad_mode(result, x, w):
    torch.set_grad_enabled(False)
    return result


def raising(result, x, w):
    raise RuntimeError("stray")


def scaled_gradient(result, x, w):
    y, x = result
    y = y.clone()
    y.register_hook(lambda g: g * 2)
    return y, x


WRONG = {
    "value": (lambda r, x, w: (r[0] * 1.001, r[1]), "largest error|RMS error"),
    "copied": (lambda r, x, w: (r[0], r[1].clone()), "sharing|result"),
    "strides": (lambda r, x, w: (r[0].t().contiguous().t(), r[1]), "result"),
    "dtype": (lambda r, x, w: (r[0].double(), r[1]), "result"),
    "detached": (lambda r, x, w: (r[0].detach(), r[1]), "result"),
    "type": (lambda r, x, w: list(r), "result"),
    "gradient": (scaled_gradient, "gradient"),
    "warning": (with_warning, "warnings"),
    "output": (lambda r, x, w: print("stray") or r, "output"),
    "version": (with_version, "versions"),
    "write": (with_write, "arguments"),
    "random": (with_rng, "thread"),
    "grad mode": (with_grad_mode, "thread"),
    "raises": (raising, "exception"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_notices(kind):
    after, complaint = WRONG[kind]
    with pytest.raises(AssertionError, match=complaint):
        run_program(build, broken(after))


def test_accepts_eager():
    run_program(build, lambda f: f)


def test_notices_other_lines_in_a_traceback():
    def fails():
        def f(x):
            y = x + 1
            return y @ y

        return f, lambda: (torch.ones(2, 3),)

    def wrong(f):
        def g(x):
            return x @ x

        return g

    with pytest.raises(AssertionError, match="exception"):
        run_program(fails, wrong)


def test_oracle_bounds(oracle):
    reference = torch.linspace(-1, 1, 101, dtype=torch.float64)
    eager = reference.float()
    oracle.check(eager.clone(), eager, reference)
    oracle.check(torch.nextafter(eager, torch.tensor(9.0)), eager, reference)
    for wrong in (eager * (1 + 1e-6), eager.clone().index_fill_(0, torch.tensor([3]), float("nan")), eager[:-1]):
        with pytest.raises(AssertionError):
            oracle.check(wrong, eager, reference)
    integers = torch.arange(5)
    with pytest.raises(AssertionError):
        oracle.check(integers + 1, integers)
