"""An input that gets other memory (`x.data = u`) between a compiled call and its backward pass: a derivative reads the input as it is by then, or a
view as it was in the call, whichever the framework has kept."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


def two(x, w):
    h = F.linear(x, w).exp()
    return h, (h * h).sum(1) @ x


FUNCTIONS = {
    "linear": lambda x, w: F.linear(x, w).tanh(),
    "without bias": lambda x, w: F.linear(x[None], w.t()).sin(),
    "itself": lambda x, w: (w**3).sum() * x,
    "both": lambda x, w: (w**2).sum() + F.linear(x, w).sin(),
    "rows": lambda x, w: (w[0] * w[1].exp() + w[2] ** 3).sum() * x,
    "einsum": lambda x, w: torch.einsum("bi,oi->bo", x, w),
    "norm": lambda x, w: F.layer_norm(x, (3,), w[0], w[1]),
    "dropout": lambda x, w: F.dropout(F.linear(x, w).sin(), 0.5),
    "two": two,
}


def loss(results):
    return sum(r.sum() for r in results) if isinstance(results, tuple) else results.sum()


def swapped(f, swap, x, w, u, v):
    results = loss(f(x, w))
    swap(w, u)
    results.backward()


def both_swapped(f, swap, x, w, u, v):
    results = loss(f(x, w))
    swap(w, u)
    swap(x, x.detach() + 1)
    results.backward()


def twice(f, swap, x, w, u, v):
    results = loss(f(x, w))
    results.backward(retain_graph=True)
    swap(w, u)
    results.backward(retain_graph=True)
    swap(w, v)
    results.backward()


def two_calls(f, swap, x, w, u, v):
    first = loss(f(x, w))
    swap(w, u)
    second = loss(f(x, w))
    swap(w, v)
    (first * second).backward()


def turned(f, swap, x, w, u, v):
    results = loss(f(x, w))
    w.data = w.data.t()
    results.backward()


def differentiated(f, swap, x, w, u, v):
    results = loss(f(x, w))
    swap(w, u)
    (g,) = torch.autograd.grad(results, w, create_graph=True)
    swap(w, v)
    (g * g).sum().backward()


def hooked(f, swap, x, w, u, v):
    results = f(x, w)
    for r in results if isinstance(results, tuple) else (results,):
        r.register_hook(lambda g: g * 2)
    swap(w, u)
    loss(results).backward()


def no_leaf(f, swap, x, w, u, v):
    y = w * 1
    results = loss(f(x, y))
    swap(y, u)
    results.backward()


def written(f, swap, x, w, u, v):
    results = loss(f(x, w))
    swap(w, u)
    with torch.no_grad():
        w.add_(1)
    results.backward()


PROGRAMS = (swapped, both_swapped, twice, two_calls, turned, differentiated, hooked, no_leaf, written)


def swap(t, u):
    t.data = u.clone()


def outcome(program, f, swap):
    torch.manual_seed(0)
    x, w = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (5, 3))
    u, v = (torch.randn(3, 3, dtype=torch.float64) for _ in range(2))
    try:
        program(f, swap, x, w, u, v)
    except RuntimeError as error:
        return str(error).partition(":")[0]
    return x.grad, w.grad


def same(got, expected):
    assert isinstance(got, str) == isinstance(expected, str), (got, expected)
    if isinstance(got, tuple):
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("compiled_swap", [False, True])
def test_gradients_are_of_the_memory_that_the_framework_reads(fresh, name, compiled_swap):
    f = FUNCTIONS[name]
    told = fresh.explain(f)(torch.randn(5, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled, exchange = fresh.compile(f), fresh.compile(swap) if compiled_swap else swap
    for program in PROGRAMS:
        expected = outcome(program, f, swap)
        for _ in range(2):
            same(outcome(program, compiled, exchange), expected)


def test_former_memory_is_held_as_long_as_a_pass_may_read_it(fresh):
    w, x = torch.nn.Parameter(torch.randn(3, 3)), torch.randn(5, 3)
    compiled = fresh.compile(FUNCTIONS["linear"])
    for _ in range(2):
        compiled(x, w).sum().backward()

    def storage_of(t):
        storage = t.untyped_storage()
        return weakref.ref(storage)

    result = compiled(x, w).sum()
    former = storage_of(w)
    w.data = torch.randn(3, 3)
    gc.collect()
    assert former() is not None
    result.backward()
    del result
    gc.collect()
    assert former() is None
    result = compiled(x, w).sum()
    result.backward()  # frees what it kept: nobody reads it any more, though the result lives
    former = storage_of(w)
    w.data = torch.randn(3, 3)
    gc.collect()
    assert former() is None
