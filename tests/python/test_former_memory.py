"""An input that gets other memory (`x.data = u`) between a compiled call and its backward pass: a derivative reads the input as it is by then, or a
view as it was in the call, whichever the framework has kept."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
from test_training import compiled_backward  # noqa: E402
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


def given_here(x, w):
    x.data = x.data * 2
    return (x * x).sum() + F.linear(w[None], x[None]).sum()


def given_twice(x, w):
    y = (x * x * w).sum()
    x.data = x.data * 2
    return y + (x.exp() * w).sum()


# What is done to a tensor, to which the function has given other memory, before the pass.
BEFORE_THE_PASS = {
    "nothing": lambda x, f: None,
    "other memory": lambda x, f: setattr(x, "data", torch.ones(3)),
    "other memory twice": lambda x, f: (setattr(x, "data", torch.ones(3)), setattr(x, "data", torch.ones(3) * 2)),
    "a later graph": lambda x, f: f(x, torch.ones(3)),
    "a write that counts": lambda x, f: x.detach().add_(1),
    "a write that does not count": lambda x, f: x.data.mul_(3),
}


@pytest.mark.parametrize("function", [given_here, given_twice])
@pytest.mark.parametrize("wants", [True, False])
def test_other_memory_within_the_function_and_again_before_the_pass(fresh, function, wants):
    told = fresh.explain(function)(torch.randn(3, requires_grad=wants), torch.randn(3, requires_grad=True))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(function)

    def gradients(f, change):
        x, w = torch.arange(3.0).requires_grad_(wants), torch.full((3,), 0.5).requires_grad_()
        value = f(x, w)
        change(x, f)
        try:
            value.backward(retain_graph=True)
            x.data = torch.full((3,), 7.0)
            value.backward()
        except RuntimeError as error:
            return str(error).partition(":")[0], x.detach()
        return value.detach(), x.detach(), *(v.grad for v in (x, w) if v.requires_grad)

    for change in BEFORE_THE_PASS.values():
        expected = gradients(function, change)
        for _ in range(2):
            got = gradients(compiled, change)
            assert len(got) == len(expected), (got, expected)
            for a, b in zip(got, expected):
                assert a == b if isinstance(b, str) else torch.allclose(a, b), (got, expected)


def test_parameters_of_a_vector_stay_one_graph(fresh):
    def program(net, v, x):
        torch.nn.utils.vector_to_parameters(v, net.parameters())
        return net(x).sum()

    def gradients(f):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        value = f(net, torch.randn(13), torch.randn(4, 2))
        net[2].weight.data = torch.ones(1, 3)
        value.backward()
        return [p.grad for p in net.parameters()]

    compiled = fresh.compile(program)
    for _ in range(2):
        for a, b in zip(gradients(compiled), gradients(program), strict=True):
            torch.testing.assert_close(a, b)
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 2}


def test_other_memory_is_taken_back_where_the_run_fails(fresh):
    def program(x, i):
        x.data = x.data * 2
        return (x[i] * x).sum()

    compiled = fresh.compile(program)
    for f in (program, compiled, compiled):
        for i, times in ((0, 2), (1, 2), (7, 2), (2, 2)):
            x = torch.ones(3, requires_grad=True)
            if i == 7:
                with pytest.raises(IndexError):
                    f(x, torch.tensor(i))
            else:
                f(x, torch.tensor(i)).backward()
                assert x.grad[i] == 2 + 2 * 3
            assert x.tolist() == [times] * 3


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


# What an input got is written behind that, in the function or outside of it: a derivative that reads the input reads it as it is by then, and the version
# that counts is the input's.
WHAT_IT_GETS = {
    "itself": lambda x, u: u,
    "a part": lambda x, u: u[1:-1],
    "made of it": lambda x, u: x.data * u[1:-1],
    "ones": lambda x, u: torch.ones_like(x),
    "a number": lambda x, u: torch.zeros((), dtype=x.dtype).expand(4).clone(),
}
WRITES = {
    "nothing": lambda x, u: None,
    "what it got": lambda x, u: u.add_(1),
    "a part of that": lambda x, u: u[1:3].mul_(3),
    "its data": lambda x, u: x.data.add_(1),
}
OF_WHAT_IT_HAS = {
    "itself": lambda x, w: x * x,
    "through a result": lambda x, w: x.exp() * x,
    "beside another": lambda x, w: (x * w).sin() * w,
    "a view": lambda x, w: F.linear(w, x.view(2, 2)).sin(),
    "two": lambda x, w: (x.sin() * w).sum() + (x**3).sum(),
}


@pytest.mark.parametrize("name", OF_WHAT_IT_HAS)
@pytest.mark.parametrize("gets", WHAT_IT_GETS)
def test_what_an_input_got_is_written(fresh, name, gets):
    def outcome(wrap, inside, outside):
        x, w = (torch.tensor([1.0, 2.0, 0.5, 0.25], dtype=torch.float64, requires_grad=True) for _ in range(2))
        u = torch.tensor([3.0, 4.0, 0.1, 0.2], dtype=torch.float64)
        u = u.clone() if gets == "itself" else F.pad(u, (1, 1))
        shaped = (lambda t: t.view(2, 2)) if name == "a view" else (lambda t: t)

        def f(x, w, u):
            x.data = WHAT_IT_GETS[gets](x, u)
            y = OF_WHAT_IT_HAS[name](x, shaped(w))
            WRITES[inside](x, u)
            return y

        y = wrap(f)(x, w, u)
        if wrap is fresh.compile and gets != "made of it":  # which the framework may run, call by call
            assert "Compiled" in type(y.grad_fn).__name__
        WRITES[outside](x, u)
        y.sum().backward()
        return x.grad, w.grad

    for inside in WRITES:
        for outside in WRITES:
            fresh.reset()
            for a, b in zip(outcome(fresh.compile, inside, outside), outcome(lambda f: f, inside, outside), strict=True):
                assert (a is None) == (b is None), (inside, outside)
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("gets", ["u", "u.view(2)", "u * 1"])
def test_a_leaf_that_got_other_memory_is_written(fresh, gets):
    """Which counts, as with its own: torch refuses the pass where a derivative reads it."""

    def outcome(wrap, write, name):
        x, w = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        f = wrap(eval(f"lambda x, w, u: (setattr(x, 'data', {gets}), (x * x, w * w, x + 1))[1]", {"torch": torch}))
        y = f(x, w, torch.tensor([3.0, 4.0]))
        with torch.no_grad():
            write(x)
        try:
            y[name].sum().backward()
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)
        return x.grad, w.grad

    for write in (lambda x: x.mul_(2), lambda x: x.detach().mul_(2), lambda x: None):
        for name in range(3):
            assert str(outcome(fresh.compile, write, name)) == str(outcome(lambda f: f, write, name)), name


def test_a_result_that_nobody_has_is_not_what_an_input_got(fresh):
    def outcome(wrap):
        torch.manual_seed(0)
        linear, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def f(x):
            linear.weight.data = other.weight.data
            return linear(x).sin().sum()

        f, seen = wrap(f), []
        for _ in range(3):
            linear.zero_grad()
            y = f(torch.ones(2))
            with torch.no_grad():
                linear.weight.add_(1)
            y.backward()
            seen.append(linear.weight.grad.clone())
        return seen

    torch.testing.assert_close(outcome(fresh.compile), outcome(lambda f: f))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("where", ["inside", "between"])
def test_a_checkpoint_reads_the_memory_of_now(fresh, where, reentrant):
    """Its function runs again in the pass, on what the leaf has then. What reads the leaf elsewhere has what it had."""
    from torch.utils.checkpoint import checkpoint

    def f(x, w, b):
        y = checkpoint(lambda x: torch.tanh(x * w) @ b, x, use_reentrant=reentrant)
        return y.exp() if where == "inside" else (y * w).exp()

    compiled, seen = fresh.compile(f), []
    for g in (f, compiled, compiled, compiled):
        x, w, b = torch.linspace(-1, 1, 3).requires_grad_(), torch.nn.Parameter(torch.ones(3)), torch.eye(3)
        y = g(x, w, b).sum()
        b.data = torch.eye(3) * 2
        if where == "inside":
            w.data = torch.full((3,), 2.0)
        y.backward()
        seen.append((x.grad, w.grad))
    for got in seen[1:]:
        torch.testing.assert_close(got, seen[0])
    assert compiled.cache_info()["segments"] and compiled.cache_info()["breaks"] == 0
    assert compiled_backward(compiled)


def written_uncounted(x):
    x.data.add_(1)


def written_in_part(x):
    x.data[0] = 5


def written_in_a_view(x):
    x.data.t()[0].mul_(3)


@pytest.mark.parametrize("which", ["x", "w", "both"])
@pytest.mark.parametrize("name, write", [("linear", written_uncounted), ("rows", written_in_part), ("norm", written_in_a_view), ("both", written_in_part)])
def test_passes_that_run_the_program_again_know_of_writes_that_count_no_version(fresh, name, which, write):
    """What eager keeps of the call is what it was; what derivatives read of an input is what that holds by then."""

    def outcome(g, forced):
        x = torch.linspace(-1, 1, 3).requires_grad_()
        w = torch.linspace(0.5, 1.5, 9).view(3, 3).requires_grad_()
        y = loss(g(x, w))
        if which != "w":
            x.data.mul_(2)
        if which != "x":
            write(w)
        if forced:  # a pass that is a replay, and is not differentiated
            x.data = torch.full((3,), 3.0)
            return torch.autograd.grad(y, [x, w])
        first = torch.autograd.grad(y, [x, w], create_graph=True)
        return first, torch.autograd.grad(sum(t.pow(2).sum() for t in first), [x, w], allow_unused=True)

    f = FUNCTIONS[name]
    compiled = fresh.compile(f)
    for forced in (False, True):
        expected = outcome(f, forced)
        for _ in range(2):
            torch.testing.assert_close(outcome(compiled, forced), expected)
    assert compiled.cache_info()["segments"] and compiled.cache_info()["breaks"] == 0


def test_a_large_input_that_was_written_uncounted_is_refused(fresh, monkeypatch):
    import framejit._gradients

    monkeypatch.setattr(framejit._gradients, "WHOLE", 16)
    compiled = fresh.compile(lambda x, w: (x * w.exp()).sum())
    for write in (False, True):
        x, w = torch.ones(2000, requires_grad=True), torch.ones(2000, requires_grad=True)
        y = compiled(x, w)
        assert w.data.norm() > 0
        if write:
            w.data.add_(1)
            with pytest.raises(RuntimeError, match="does not count"):
                torch.autograd.grad(y, x, create_graph=True)
        else:
            assert torch.autograd.grad(y, x, create_graph=True)[0].requires_grad
    torch.testing.assert_close(torch.autograd.grad(y, x)[0], torch.ones(2000).exp())  # one that is not differentiated has it


def test_what_is_shown_is_kept_where_a_pass_may_come(fresh):
    import framejit._gradients

    compiled, copies = fresh.compile(lambda x, w: (x * w.exp()).sum()), []

    def write(w):
        before = torch.Tensor.clone
        torch.Tensor.clone = lambda x: copies.append(x.shape) or before(x)
        try:
            w.data.add_(1)
        finally:
            torch.Tensor.clone = before

    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = compiled(x, w)
    y.backward()
    write(w)  # as an optimizer does
    assert not copies
    y = compiled(x, w)
    write(w)
    write(w)
    assert copies == [(3,)]
    assert framejit._gradients.WHOLE and torch.autograd.grad(y, x, create_graph=True)[0].tolist() == pytest.approx([float(torch.tensor(2.0).exp())] * 3)
