"""A run that ends early starts over in Python: nothing is written, drawn or told twice. Runs through the framework (backend="eager",
a backend of the user's, segments that the graph cannot express) write as they go."""

import warnings

import pytest

BACKENDS = ["llvm", "eager", "failing"]


@pytest.fixture(params=BACKENDS)
def compiled(request, fresh):
    def failing(graph, examples):  # what it did is taken back, too
        def run(*inputs):
            graph(*inputs)
            raise RuntimeError("out of luck")

        return run

    if hasattr(fresh, "register_backend"):  # not the stand-in of --identity
        fresh.register_backend("failing", failing)
    return lambda f: fresh.compile(f, backend=request.param)


def same(f, g, make, calls=3):
    """Both on equal arguments, three times: results or errors, and what became of the arguments."""
    for _ in range(calls):
        seen = []
        for function in (f, g):
            arguments = make()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    result = function(*arguments)
                except Exception as error:
                    result = type(error), str(error)
            seen.append(repr((result, arguments, [str(w.message) for w in caught])))
        assert seen[0] == seen[1]


def test_numpy_writes_once(compiled, np):
    def f(x, y):
        x += 1
        y[1:] *= x[:2]
        z = y / x
        x -= z.sum()
        return z

    same(f, compiled(f), lambda: (np.array([-1.0, 0.0, 5.0]), np.ones(3)))
    same(f, compiled(f), lambda: (np.arange(3.0), np.ones(3)))
    overlap = np.arange(4.0) - 1
    same(f, compiled(f), lambda: (lambda o: (o[:3], o[1:]))(overlap.copy()))


def test_numpy_errors_raised(compiled, np):
    def f(x):
        x *= 2
        try:
            with np.errstate(all="raise"):
                return np.log(x)
        except FloatingPointError as error:
            return str(error)

    same(f, compiled(f), lambda: (np.array([1.0, 0.0]),))


def test_numpy_warns_once(compiled, np):
    def f(x):
        x += 1
        return x[:0].mean(), x[:1].std(ddof=1), np.median(x)

    same(f, compiled(f), lambda: (np.arange(3.0),))


def test_torch_writes_once(compiled, torch):
    def f(x, table, i):
        x.add_(1)
        x[0].mul_(3)
        return table[i] + x

    for at in ([0, 1], [0, 7]):
        same(f, compiled(f), lambda: (torch.zeros(2), torch.arange(3.0), torch.tensor(at)))

    def with_gradients(x, table, i):
        x.add_(1)
        return (torch.nn.functional.embedding(i, table).sum() + x.sum()).detach()

    for at in ([0, 1], [0, 7]):
        same(with_gradients, compiled(with_gradients), lambda: (torch.zeros(2), torch.ones(3, 2, requires_grad=True), torch.tensor(at)))


def test_torch_in_inference_mode(compiled, torch):
    def f(x, table, i):
        x.add_(1)
        return table[i] + x

    def make():
        return torch.zeros(2), torch.arange(3.0), torch.tensor([0, 7])

    with torch.inference_mode():
        same(f, compiled(f), make)


def test_written_with_gradients(compiled, torch):
    """What is written becomes part of the autograd graph: once."""

    def f(x, w, i):
        x.copy_(w * 2)
        x.mul_(3)
        try:
            w[i]
        except IndexError:
            return "caught"
        return x * 2

    g = compiled(f)
    for at in (1, 7, 7):
        leaves = []
        for function in (f, g):
            x, w = torch.zeros(2), torch.ones(2, requires_grad=True)
            function(x, w, torch.tensor([at]))
            assert x.requires_grad
            x.sum().backward()
            leaves.append((x.tolist(), w.grad.tolist()))
        assert leaves[0] == leaves[1] == ([6, 6], [6, 6])


def test_numbers_are_drawn_once(compiled, torch):
    def f(x, i):
        y = torch.nn.functional.dropout(x, 0.5, True)
        try:
            return y[i] + torch.rand(2)
        except IndexError:
            return y, torch.rand(2)

    g = compiled(f)
    for at in (0, 9, 9):
        seen = []
        for function in (f, g):
            torch.manual_seed(3)
            seen.append(repr((function(torch.ones(4), torch.tensor([at])), torch.rand(1))))
        assert seen[0] == seen[1]


def test_warnings_of_other_threads(fresh, np):
    """warnings.warn is itself while nothing runs."""
    before = warnings.warn
    f = fresh.compile(lambda x: np.median(x) + x.sum(), backend="eager")
    for _ in range(3):
        f(np.arange(4.0))
        assert warnings.warn is before
