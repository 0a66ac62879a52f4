"""Programs that go from torch to NumPy and back: one graph, and all that eager shows (owners of memory, versions, warnings)."""
import pytest
from harness import run_program

import framejit

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


def operands():
    torch.manual_seed(0)
    return torch.randn(4, 8), np.random.default_rng(0).random((4, 8), dtype=np.float32)


def to_numpy(x, a):
    return np.sin(x.numpy()) * 2, (x * 2).numpy(), x.numpy(), x[1:, ::2].numpy(), x.detach().cpu().numpy().mean(axis=0)


def from_numpy(x, a):
    return torch.from_numpy(a), torch.from_numpy(a)[1:] * 2, torch.from_numpy(a.T) @ x, torch.from_numpy(a[::2])


def there_and_back(x, a):
    return torch.from_numpy(np.tanh(x.numpy()) + a) @ x.T


def results_of_both(x, a):
    return np.exp(a), torch.exp(x), np.exp(a).sum(), torch.from_numpy(a).sum(), np.float32 is a.dtype.type


def functions_that_convert(x, a):
    y = x + 1
    return np.asarray(y) + 1, np.asarray(a) + 1, np.asarray(a), torch.as_tensor(a), torch.as_tensor(a, dtype=torch.float64), torch.tensor(a), torch.tensor(a) * x


def tensor_of_a_view(x, a):
    return torch.tensor(a[::2, 1:]), torch.as_tensor(a.T, dtype=torch.float16)


def a_tensor_writes_to_an_array(x, a):
    t = torch.from_numpy(a)
    t.mul_(1.5)
    return t + 1, a + 1


def an_array_of_its_own_is_written(x, a):
    own = a.copy()
    t = torch.from_numpy(own)
    t.add_(x)
    return t, own


def a_tensor_is_written_behind_its_array(x, a):
    y = x * 2
    n = y.numpy()
    y.add_(1)
    return n + 1, n, y


def zeros_and_ranges(x, a):
    return torch.from_numpy(np.zeros((4, 8), dtype="f4")) + x, np.arange(8) * a


def functions_without_a_row(x, a):
    return torch.from_numpy(np.sort(a, axis=1)), np.linalg.norm(x.numpy()), np.cumsum(np.sort(x.numpy(), axis=1), axis=1), np.sort(a)


def what_they_are(x, a):
    n = x.numpy()
    return isinstance(n, np.ndarray), n.dtype == np.float32, n.shape, n.strides, type(torch.from_numpy(a)).__name__


def products(x, a):
    return a @ x.numpy().T, np.dot(a, a.T), torch.from_numpy(a) @ x.T


def torch_divides_in_silence(x, a):
    return x / 0, a * 2


def empty_and_scalar(x, a):
    return x[:0].numpy(), x[0, 0].numpy(), torch.from_numpy(a[:0]), torch.from_numpy(a[0:1, 0:1].reshape(()))


CAPTURED = [v for v in list(globals().values()) if getattr(v, "__code__", None) and v.__code__.co_varnames[:2] == ("x", "a")]


@pytest.mark.parametrize("f", CAPTURED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", ["llvm", "interpreter", "eager"])
def test_captured(f, backend):
    run_program(lambda: (f, operands), lambda f: framejit.compile(f, backend=backend), f.__name__)
    told = framejit.explain(f)(*operands())
    # A division by zero that torch makes in silence ends the run of NumPy's part in the same graph: it is done in Python.
    assert told.graph_count == (f is not torch_divides_in_silence) and told.graph_break_count == 0, str(told)


def requires_grad(x, a):
    return (x * 2).requires_grad_().numpy()


def not_written(x, a):
    a.flags.writeable = False
    return torch.from_numpy(a)


def backwards(x, a):
    return torch.from_numpy(a[::-1])


def written_through(x, a):
    y = x * 2
    n = y.numpy()
    n += 1
    return y * 3, n


def half(x, a):
    return x.bfloat16().numpy()


def ufunc_of_a_tensor(x, a):
    return np.sin(x)


def sum_of_both(x, a):
    return x + a


def number_of_numpy(x, a):
    return x / np.sqrt(8.0), a / np.sqrt(8.0), a * np.float64(2)


def array_of_a_tensor(x, a):  # NumPy 2 warns
    return np.array(x.T), a + 1


def numpy_warns(x, a):
    return x + 1, a / (a - a)


@pytest.mark.parametrize("f", [requires_grad, not_written, backwards, written_through, half, ufunc_of_a_tensor, sum_of_both, number_of_numpy, array_of_a_tensor, numpy_warns], ids=lambda f: f.__name__)
def test_as_eager(f):
    run_program(lambda: (f, operands), framejit.compile, f.__name__)


def test_arrays_that_run_backwards():
    def f(x, a):
        return a @ x.numpy().T, torch.from_numpy(a * 2), torch.tanh(x)

    def make():
        x, a = operands()
        return x, a[::-1, ::-2][:, ::-1].repeat(2, axis=1)[::-1]

    run_program(lambda: (f, make), lambda f: framejit.compile(f, fullgraph=True))


def test_same_memory_under_two_names():
    def f(x, a):
        torch.from_numpy(a).add_(1)
        return x * 2

    compiled = framejit.compile(f)
    for shared in (False, True, False):
        sides = []
        for g in (f, compiled):
            x = torch.arange(8.0)
            sides.append(g(x, x.numpy() if shared else np.ones(8, dtype="f4")))
        assert torch.equal(*sides), shared


def test_gradients():
    def f(w, a):
        t = w * torch.from_numpy(a)
        return (t.tanh() * torch.tensor(a)).sum() + w.detach().numpy().sum().item()

    def g(w, a):  # an array that the program may change afterwards
        return (w * torch.from_numpy(np.exp(a))).sin(), np.exp(a), w.detach().numpy() * 2

    for program in (f, g):
        compiled = framejit.compile(program)
        for seed in range(3):
            torch.manual_seed(seed)
            w, a = torch.randn(3, 5), np.random.default_rng(seed).random((3, 5), dtype=np.float32)
            grads = []
            for function in (program, compiled):
                leaf, b = w.clone().requires_grad_(), a.copy()
                out = function(leaf, b)
                tensor = out[0] if isinstance(out, tuple) else out
                if isinstance(out, tuple):
                    out[1][:] = 7
                    np.testing.assert_allclose(out[2], w.numpy() * 2)
                tensor.sum().backward()
                grads.append((tensor.detach(), leaf.grad))
            torch.testing.assert_close(grads[0], grads[1])


def test_saved_arrays_are_copies():
    f = framejit.compile(lambda w, a: (w * torch.tensor(a)).sum())
    w, a = torch.ones(4, requires_grad=True), np.arange(4, dtype="f4")
    loss = f(w, a)
    a[:] = 0
    loss.backward()
    assert w.grad.tolist() == [0, 1, 2, 3]


def test_changing_sizes():
    f = framejit.compile(lambda x, a: torch.from_numpy(np.exp(a)) + x)
    for n in (3, 5, 9, 1, 0):
        x, a = torch.ones(n), np.full(n, 0.5, dtype="f4")
        torch.testing.assert_close(f(x, a), torch.from_numpy(np.exp(a)) + x)
    assert framejit.explain(f)(x, a).graph_count <= 3


NUMPY_NUMBERS = {
    "plus": lambda x, s, d: x + s,
    "plus, on its right": lambda x, s, d: s + x,
    "times": lambda x, s, d: s * x,
    "to the power": lambda x, s, d: torch.pow(s, x),
    "compared": lambda x, s, d: x == s,
    "in place": lambda x, s, d: x.add_(s),
    "filled": lambda x, s, d: x.fill_(s),
    "alpha": lambda x, s, d: torch.add(x, x, alpha=s),
    "where": lambda x, s, d: torch.where(x > 0, x, s),
    "clamp": lambda x, s, d: x.clamp(max=s),
    "masked_fill": lambda x, s, d: x.masked_fill(x > 0, s),
    "summed": lambda x, s, d: sum([x, s]),
    "keepdim": lambda x, s, d: x.sum(0, keepdim=s),
    "as an index": lambda x, s, d: x[s],
    "full": lambda x, s, d: (torch.full((2,), s), torch.full((2,), s, dtype=d), torch.full_like(x, s)),
    "tensor": lambda x, s, d: torch.tensor(s),
    "tensor of a type": lambda x, s, d: torch.tensor(s, dtype=d),
    "tensor of a list": lambda x, s, d: torch.tensor([s, 1]),
    "tensor of a list of a type": lambda x, s, d: torch.tensor([s, 1], dtype=d),
    "as_tensor": lambda x, s, d: torch.as_tensor(s, dtype=d),
    "new_tensor": lambda x, s, d: x.new_tensor(s),
    "new_tensor of a list": lambda x, s, d: x.new_tensor([s]),
    "LongTensor": lambda x, s, d: torch.LongTensor([s]),
}


@pytest.mark.parametrize("name", NUMPY_NUMBERS)
@pytest.mark.parametrize("scalar", [np.bool_(True), np.float32(2.5), np.float64(2.5), np.int64(3)], ids=lambda s: type(s).__name__)
def test_numbers_of_numpy_are_to_torch_what_they_are_in_eager(fresh, name, scalar):
    """A bool is the float 1.0, where it is no error, and a float32 never becomes an integer."""

    def run(f, dtype):
        try:
            result = f(torch.ones(2, dtype=dtype), scalar, dtype)
        except (TypeError, RuntimeError, IndexError) as error:
            return type(error), str(error).partition("\n")[0]
        return [(r.dtype, r.tolist()) for r in (result if isinstance(result, tuple) else (result,))]

    for dtype in (torch.float32, torch.int32, torch.bool, torch.float16):
        compiled = fresh.compile(lambda x, s, d: NUMPY_NUMBERS[name](x, s, d) if x is not None else None)
        assert run(compiled, dtype) == run(NUMPY_NUMBERS[name], dtype)
        assert run(compiled, dtype) == run(NUMPY_NUMBERS[name], dtype)
