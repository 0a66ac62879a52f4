"""A backward function of the program's that cannot be captured (it asks of data, reads and writes what is outside, draws, raises) does not end the graph: the compiled
backward pass calls it as it is, once in each pass."""

import collections
import io
import types
import warnings

import framejit
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")
log = []
kept = []
settings = {"factor": 2.0, "threshold": 0.0}


@torch.library.custom_op("framejit_test_own::grouped", mutates_args=())
def grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """A product for each group of rows; where a group ends is data."""
    log.append("forward")
    out, start = x.new_zeros(x.shape[0], w.shape[2]), 0
    for i, end in enumerate(ends.tolist()):
        if start != end:
            torch.mm(x[start:end], w[i], out=out[start:end])
        start = end
    return out


@grouped.register_fake
def _(x, w, ends):
    return x.new_empty(x.shape[0], w.shape[2])


def keep(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.ends, ctx.scale = inputs[2], 1.0


def grouped_backward(ctx, grad):
    log.append("backward")
    x, w = ctx.saved_tensors
    dx, rows, start = [], [], 0
    for i, end in enumerate(ctx.ends.tolist()):
        dx.append(grad[start:end] @ w[i].T * ctx.scale)
        rows.append(x[start:end].T @ grad[start:end] if start != end else torch.zeros_like(w[i]))
        start = end
    return torch.cat(dx), torch.stack(rows), None


grouped.register_autograd(grouped_backward, setup_context=keep)


def function(backward, keeps=lambda ctx, x: ctx.save_for_backward(x)):
    """A torch.autograd.Function of x * y with this backward."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            keeps(ctx, x)
            return x * y

    Product.backward = staticmethod(backward)
    return Product


def asks(ctx, grad):
    log.append("asked")
    (x,) = ctx.saved_tensors
    return (grad * 2 if x.sum().item() > 0 else grad * 3), grad * x


def reads(ctx, grad):
    return grad * ctx.settings["factor"], None if not ctx.needs_input_grad[1] else grad * settings["factor"]


def draws(ctx, grad):
    return grad * torch.rand(grad.shape), grad + torch.rand(grad.shape)


def returns_itself(ctx, grad):
    log.append(tuple(grad.shape))
    return grad, grad


def sums(ctx, grad):
    log.append("wide")
    return grad.expand(2, *grad.shape), grad.double()


def keeps_it(ctx, grad):
    kept.append(grad)
    return grad * 2, grad * 3


def holds(ctx, x):
    ctx.settings = settings


def nothing(ctx, x):
    pass


Asks, Reads, Draws = function(asks), function(reads, holds), function(draws, nothing)
Itself, Sums, Keeps = function(returns_itself, nothing), function(sums, nothing), function(keeps_it, nothing)


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        return x * n, x.exp()

    @staticmethod
    def backward(ctx, a, b):
        log.append((ctx.n, ctx.needs_input_grad))
        return a * ctx.n + b, None


def table():
    return torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(3, 4).float()


def products(x, y):
    return (grouped(torch.tanh(x), y.reshape(2, 2, 3).repeat(1, 2, 1), torch.tensor([1, 3])) * 2).relu()


PROGRAMS = {
    "an operator": products,
    "asks": lambda x, y: torch.sin(Asks.apply(x * 2, y) * y).exp(),
    "reads": lambda x, y: Reads.apply(x.tanh(), y * 2) + 1,
    "draws": lambda x, y: Draws.apply(x, y * 2) * torch.rand(3, 4),
    "returns what it got": lambda x, y: Itself.apply(x * 2, y.exp()) + x,
    "gives another shape and type": lambda x, y: Sums.apply(x * 2, y.exp()) + x,
    "two results": lambda x, y: sum(Two.apply(x * y, 3)),
    "one result of two": lambda x, y: Two.apply(x * y, 3)[1] * 2,
    "twice": lambda x, y: Asks.apply(Asks.apply(x, y) * 2, y),
}


def outcome(f, wanted=(True, True), passes=1, inputs=None):
    torch.manual_seed(3)
    log.clear()
    xs = [t.clone().requires_grad_(w) for t, w in zip(inputs or (table(), table().flip(0)), wanted)]
    out = f(*xs)
    grads = []
    for n in range(passes):
        out.sum().backward(retain_graph=n + 1 < passes)
        grads += [x.grad.clone() if x.grad is not None else None for x in xs]
    return [out.detach(), *grads, torch.rand(1)], list(log)


def same(a, b):
    assert a[1] == b[1]
    assert len(a[0]) == len(b[0])
    for x, y in zip(a[0], b[0]):
        assert (x is None) == (y is None)
        if x is not None:
            torch.testing.assert_close(x, y)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("wanted", [(True, True), (True, False)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name, wanted, whole):
    compiled = framejit.compile(PROGRAMS[name], fullgraph=whole)
    for passes in (1, 1, 2):
        same(outcome(compiled, wanted, passes), outcome(PROGRAMS[name], wanted, passes))
    info = framejit.cache_info(compiled)
    assert (info["breaks"], info["notes"]) == (0, []), info
    assert set(info["outcomes"]["run"]) == {"graph"}
    if not whole:
        x, y = (table().requires_grad_() for _ in range(2))
        told = framejit.explain(PROGRAMS[name])(x, y)
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_what_it_reads_may_change_until_then():
    compiled = framejit.compile(PROGRAMS["reads"])
    for factor in (2.0, 5.0, 7.0):
        seen = []
        for f in (PROGRAMS["reads"], compiled):
            x, y = (table().requires_grad_() for _ in range(2))
            settings["factor"] = 1.0
            out = f(x, y)
            settings["factor"] = factor
            out.sum().backward()
            seen.append((x.grad, y.grad))
        torch.testing.assert_close(*seen)
    settings["factor"] = 2.0
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_without_gradients_it_is_not_called():
    compiled = framejit.compile(PROGRAMS["asks"])
    with torch.no_grad():
        same(outcome_without(compiled), outcome_without(PROGRAMS["asks"]))
    assert framejit.cache_info(compiled)["breaks"] == 0


def outcome_without(f):
    log.clear()
    return [f(table(), table())], list(log)


@pytest.mark.parametrize("name", ["asks", "an operator"])
def test_twice_differentiated(name):
    def second(f):
        log.clear()
        x, y = table().requires_grad_(), table().flip(0).requires_grad_()
        first = torch.autograd.grad(f(x, y).pow(2).sum(), (x, y), create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.pow(2).sum() for g in first), (x, y))], None

    same(second(framejit.compile(PROGRAMS[name])), second(PROGRAMS[name]))


def test_gradients_of_some():
    seen = []
    for f in (PROGRAMS["asks"], framejit.compile(PROGRAMS["asks"])):
        x, y = table().requires_grad_(), table().requires_grad_()
        out = f(x, y).sum()
        log.clear()
        seen.append([torch.autograd.grad(out, x, retain_graph=True)[0], torch.autograd.grad(out, y)[0], torch.tensor(len(log))])
    torch.testing.assert_close(*seen)


def test_gradients_taken_inside():
    def f(x, y):
        out = Asks.apply(x * 2, y)
        settings["threshold"] = 4.0
        return torch.autograd.grad(out.sum(), x)[0] * 2

    compiled = framejit.compile(f)
    for _ in range(3):
        x, y = table().requires_grad_(), table()
        log.clear()
        torch.testing.assert_close(compiled(x, y), f(x, y))
        assert log == ["asked", "asked"]


@pytest.mark.parametrize("none", [0, 1])
def test_none_is_no_gradient(none):
    """Which of them is None is known when it has been called: the pass goes through the framework then, and it is not called again."""

    def gives(ctx, grad):
        log.append("called")
        return tuple(None if i == none and log else grad * 2 for i in range(2))

    gives_none = function(gives, nothing)

    def f(x, y):
        return gives_none.apply(x, y.exp()).sin()

    compiled = framejit.compile(f)
    for _ in range(3):
        got, expected = outcome(compiled), outcome(f)
        assert got[0][1 + none] is None
        same(got, expected)
    assert framejit.cache_info(compiled)["breaks"] == 0


def fails(ctx, grad):
    log.append("failed")
    raise ValueError("no gradient today")


def gives_one(ctx, grad):
    log.append("one")
    return grad


def gives_another_shape(ctx, grad):
    log.append("shape")
    return grad[:, :3], grad


@pytest.mark.parametrize("backward", [fails, gives_one, gives_another_shape])
def test_what_it_raises_comes_out(backward):
    raises = function(backward, nothing)

    def f(x, y):
        return raises.apply(x, y) * 2

    compiled = framejit.compile(f)
    for _ in range(2):
        raised = []
        for g in (f, compiled):
            x, y = table().requires_grad_(), table().requires_grad_()
            log.clear()
            with pytest.raises((ValueError, RuntimeError)) as error:
                g(x, y).sum().backward()
            raised.append((type(error.value), len(log), str(error.value).split(" ")[-5:]))
        assert raised[0] == raised[1]
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_what_it_keeps_stays():
    def f(x, y):
        return (Keeps.apply(x * 2, y).sin() * y).exp().cos() * 3

    compiled = framejit.compile(f)
    inputs = [(torch.rand(64, 64), torch.rand(64, 64)) for _ in range(4)]
    seen = []
    for g in (f, compiled):
        kept.clear()
        grads = [outcome(g, inputs=i)[0] for i in inputs]
        seen.append((list(kept), grads))
    torch.testing.assert_close(seen[0], seen[1])
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_what_was_written_before_it_ends_the_graph():
    """Its context has a list that this function writes to: which of its states the pass sees is not known, so torch makes the call."""
    shared = [1.0]

    class Written(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            shared.append(2.0)
            ctx.shared = shared
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            log.append(len(ctx.shared))
            return grad * len(ctx.shared)

    compiled = framejit.compile(lambda x: Written.apply(x).sin())
    for n in range(3):
        x = table().requires_grad_()
        del shared[1:]
        log.clear()
        compiled(x).sum().backward()
        assert log == [2]
        torch.testing.assert_close(x.grad, 2 * torch.cos(2 * table()))


def test_a_changed_list_in_its_context_is_the_programs():
    shared = []

    class Changes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.shared, ctx.pair = shared, (shared, 1)
            shared.append(len(shared))
            return x * len(shared)

        @staticmethod
        def backward(ctx, grad):
            ctx.shared.append(-1)
            ctx.pair[0].append(-2)
            return grad * len(ctx.shared)

    seen = []
    for g in ((f := lambda x: Changes.apply(x).sum()), framejit.compile(f)):
        shared.clear()
        seen.append([])
        for _ in range(3):
            x = table().requires_grad_()
            y = g(x)
            y.backward(retain_graph=True)
            y.backward()
            seen[-1].append((list(shared), x.grad.tolist()))
    assert seen[0] == seen[1]
    assert framejit.cache_info(g)["captures"] > 0


def some_none(ctx, grad):
    """None for x where the gradient is large."""
    (x, y), total = ctx.saved_tensors, grad.sum().item()
    log.append(round(total, 3))
    return None if total > 50 else grad * y * 3, grad * x


class WithBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    backward = staticmethod(some_none)


def some_leaves(rows, count):
    return [(torch.rand(rows, 2) + i + 1).requires_grad_() for i in range(count)]


def compare_passes(f, drive, count, once=True, sizes=(3, 3, 5, 4)):
    """What drive(g, leaves) gives, with eager and compiled; and how often the backward function ran."""
    compiled = framejit.compile(f)
    for rows in sizes:
        seen = []
        for g in (f, compiled):
            torch.manual_seed(rows)
            leaves = some_leaves(rows, count)
            log.clear()
            seen.append(([*drive(g, *leaves), *(x.grad for x in leaves)], list(log)))
        torch.testing.assert_close(seen[1][0], seen[0][0])
        assert not once or seen[0][1] == seen[1][1]
    info = framejit.cache_info(compiled)
    assert info["breaks"] == 0 and info["segments"] > 0


@pytest.mark.parametrize("large", [0, 1])
def test_what_one_call_gives_is_not_what_another_one_gives(large):
    """Of two calls of a function one has no gradient; the framework, which makes that pass again, may come to the other one first."""

    def f(a, b, c, d):
        return WithBoth.apply(a, b) * (100 if large == 0 else 1), WithBoth.apply(c, d) * (100 if large == 1 else 1)

    def drive(g, *leaves):
        first, second = g(*leaves)
        (first.sum() + second.sum()).backward()
        return []

    compare_passes(f, drive, 4, once=False)


def test_hooks_are_called_once_where_a_gradient_is_none():
    """What the hook of a result answers goes through the pass that the framework makes in place of the compiled one."""

    def f(x, y, z):
        a = WithBoth.apply(x, y) * z
        return a, a.exp()

    def drive(g, x, y, z):
        a, b = g(x, y, z)
        told = []
        a.register_hook(lambda grad: (told.append(grad), grad * 5)[1])
        (a.sum() * 20).backward()
        return told

    compare_passes(f, drive, 3)


def inner(x, y, z):
    a = x * y
    b = WithBoth.apply(a.sin(), z)
    return a, b, b.exp() + z


def asks_for_a_result(g, x, y, z):
    a, _, c = g(x, y, z)
    return torch.autograd.grad((c * 100).sum(), [a, z], allow_unused=True)


def asks_once_more(g, x, y, z):
    a, b, _ = g(x, y, z)
    with pytest.raises(RuntimeError, match="allow_unused|appears to not have been used"):
        torch.autograd.grad((b * 100).sum(), a)
    a, b, _ = g(x, y, z)
    return torch.autograd.grad((b * 2).sum(), [x, z], allow_unused=True, create_graph=True)


def asks_behind_a_pass(g, x, y, z):
    g(x, y, z)[2].mul(100).sum().backward()
    a, _, c = g(x, y, z)
    return torch.autograd.grad(c.mean() + a.sum(), [x, a, z])


def has_hooks(g, x, y, z):
    a, b, c = g(x, y, z)
    told = []
    b.register_hook(lambda grad: grad * 2)
    a.register_hook(lambda grad: (told.append(grad), grad * 3)[1])
    a.retain_grad()
    ((c * 100).sum() + a.sum()).backward()
    return [*told, a.grad]


@pytest.mark.parametrize("drive", [asks_for_a_result, asks_once_more, asks_behind_a_pass, has_hooks])
def test_no_gradient_where_results_are_cut(drive):
    """Passes that look for what a result gets, and those that are cut at results with hooks."""
    compare_passes(inner, drive, 3, once=drive is has_hooks)


def test_what_a_result_stands_for_is_not_passed():
    """A pass that is differentiated ends at the result that it looks for: functions behind it are not called."""

    def f(x, y):
        a = WithBoth.apply(x.sin(), y)
        return a, a.tanh()

    def drive(g, x, y):
        a, b = g(x, y)
        return torch.autograd.grad(b.sum(), a, create_graph=True)

    compare_passes(f, drive, 2)


@torch.library.custom_op("framejit_test_own::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def doubled_backward(ctx, grad):
    log.append(round(float(grad.sum()), 3))
    return grad * 2 + torch.rand(())


doubled.register_fake(lambda x: torch.empty_like(x))
doubled.register_autograd(doubled_backward)


def of_a_result(x, r):
    return torch.autograd.grad(r[-1].sum(), [r[0], x])


def of_results(x, r):
    return torch.autograd.grad([(y * y).sum() for y in r], [x, r[0]])


def of_inputs(x, r):
    torch.autograd.backward([y.sum() for y in r], inputs=[x])
    return (x.grad,)


def differentiable(x, r):
    return [g.detach() for g in torch.autograd.grad(sum(y.sum() for y in r), [x], create_graph=True)]


@pytest.mark.parametrize("at", ["a", "t", "b", "u", "ab", "tu", "atbu"])
@pytest.mark.parametrize("look", [of_a_result, of_results, of_inputs, differentiable])
def test_a_pass_that_looks_for_some_gradients_runs_it_once(look, at):
    """Results give to those that they are made of before the segment's node runs: what they give to the inputs is known by then."""

    def at_place(place, x):
        return doubled(x) if place in at else x

    def f(x):
        t = at_place("t", at_place("a", x.tanh()) * 1.5)
        u = at_place("u", at_place("b", t.sin()).exp())
        return t, u, (t * u).sum()

    def run(g):
        torch.manual_seed(0)
        log.clear()
        got = []
        for k in range(3):
            x = (torch.arange(4.0) / 4 + k / 9).requires_grad_()
            results = g(x)
            got += [*look(x, results), torch.rand(1)]
        return got, list(log)

    compiled = framejit.compile(f)
    (ours, told), (expected, told_in_eager) = run(compiled), run(f)
    assert len(told) == len(told_in_eager) and told == pytest.approx(told_in_eager, rel=1e-4, abs=2e-3)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    assert framejit.cache_info(compiled)["breaks"] == 0 and framejit.cache_info(compiled)["segments"] > 0


def rounded(g):
    return g if g is None else [round(v, 3) for v in g.tolist()]


def told_where(f, leaves, double=False):
    """What hooks of the inputs and the backward are told in a pass, in their order but for that of hooks."""

    def run(call):
        log.clear()
        told = []
        inputs = [torch.full((2,), i + 1.0, requires_grad=True) for i in range(leaves)]
        for i, t in enumerate(inputs):
            t.register_hook(lambda g, i=i: told.append((i, rounded(g))))
            t.register_post_accumulate_grad_hook(lambda p, i=i: told.append((i, "added", rounded(p.grad))))
        out = call(*inputs)
        if double:
            first = torch.autograd.grad(out.sum(), inputs, create_graph=True, allow_unused=True)
            sum(g.sum() for g in first if g is not None).backward()
        else:
            out.sum().backward()
        return sorted(told, key=str), [rounded(t.grad) for t in inputs], list(log)

    return run


def gives_nothing(ctx, grad):
    log.append(rounded(grad))
    return None, None


def gives_the_first(ctx, grad):
    log.append(rounded(grad))
    return grad * 2, None


HOOKED = {
    "alone": lambda p: lambda x, y: p(x, y),
    "of results": lambda p: lambda x, y: p(x * 2, y.exp()),
    "beside another": lambda p: lambda x, y: p(x * 2, y) * x.exp(),
    "beside a stop": lambda p: lambda x, y: p(x * 2, y.detach()) * x.exp(),
    "beside what has its own": lambda p: lambda x, y, z: p(x, y).sin() + z,
}


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", HOOKED)
@pytest.mark.parametrize("backward", [gives_nothing, gives_the_first])
def test_hooks_of_inputs_are_told_of_no_gradient(backward, name, double):
    f = HOOKED[name](function(backward, nothing).apply)
    compiled = framejit.compile(f)
    run = told_where(f, f.__code__.co_argcount, double and name == "beside another")
    for _ in range(3):
        assert run(compiled) == run(f)
    assert framejit.cache_info(compiled)["breaks"] == 0


def normalized(ctx, grad):
    """Not a number where the gradient is 0."""
    (x,) = ctx.saved_tensors
    log.append(rounded(grad))
    return grad * x / grad.norm(), grad / grad.norm()


def test_a_backward_is_not_called_with_a_gradient_that_went_elsewhere():
    """Where the derivative is made of the program's own result, what comes back to it in a second pass goes by that result."""
    product = function(normalized)

    def f(x, y):
        return product.apply(x * y, y).exp()

    compiled, run = framejit.compile(f), told_where(f, 2, double=True)
    for _ in range(3):
        assert run(compiled) == run(f)
    assert framejit.cache_info(compiled)["breaks"] == 0


def facts_of(t):
    return t.is_leaf, t._version, t._is_view(), isinstance(t, torch.nn.Parameter)


@pytest.mark.parametrize("ask", [
    lambda t: t.is_leaf, lambda t: t._version, lambda t: t.grad_fn is None, lambda t: t._base is None, lambda t: getattr(t, "is_leaf"), facts_of,
    lambda t: [f(t) for f in (facts_of,)],
])
def test_a_backward_that_asks_what_its_tensors_are_to_others(ask):
    def backward(ctx, grad):
        log.append(ask(ctx.x))
        return grad * 2, grad * 3

    own = function(backward, lambda ctx, x: setattr(ctx, "x", x))

    def f(x, y):
        h = x * 2
        h.add_(1)
        return own.apply(h, y).pow(2).sum() + own.apply(x, y).pow(2).sum()

    def run(call):
        log.clear()
        seen = []
        for k in range(3):
            x, y = (torch.ones(3) * k).requires_grad_(), torch.ones(3, requires_grad=True)
            call(x, y).backward()
            seen.append((x.grad.tolist(), y.grad.tolist()))
        return seen, list(log)

    compiled = framejit.compile(f)
    assert run(compiled) == run(f)
    info = framejit.cache_info(compiled)
    assert info["breaks"] >= 1 and info["outcomes"]["run"]["graph"] >= 3


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        s = torch.sigmoid(ctx.saved_variables[0])
        return grad * s * (1 + ctx.saved_variables[0] * (1 - s))


def test_the_former_name_of_saved_tensors():
    """It is still there, and warns."""
    compiled = framejit.compile(lambda x, w: Swish.apply(x @ w).sum())
    for k in range(3):
        seen = []
        for f in (lambda x, w: Swish.apply(x @ w).sum(), compiled):
            w = torch.ones(3, 2, requires_grad=True)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                f(torch.arange(6.0).reshape(2, 3) / 5 + k, w).backward()
            seen.append((w.grad, [(str(t.message), t.category, t.lineno) for t in told]))
        torch.testing.assert_close(seen[1][0], seen[0][0])
        assert seen[0][1] == seen[1][1] and len(seen[0][1]) == 2
    assert framejit.cache_info(compiled)["outcomes"]["run"].get("graph")


CONTEXTS = {
    "object array": ("ctx.o = np.empty(1, object); ctx.o[0] = 1.0", "ctx.o[0] = ctx.o[0] + 1; return g * ctx.o[0]"),
    "tensor in an object array": ("ctx.o = np.empty(1, object); ctx.o[0] = x.clone()", "ctx.o[0].add_(1); return g * ctx.o[0]"),
    "iterator": ("ctx.o = iter([1.0, 2.0, 3.0])", "return g * next(ctx.o)"),
    "namespace": ("ctx.o = types.SimpleNamespace(t=x.clone())", "ctx.o.t.add_(1); return g * ctx.o.t"),
    "order": ("ctx.o = collections.OrderedDict(a=2.0, b=3.0)", "ctx.o.move_to_end('a'); return g * list(ctx.o.values())[0] ** 2"),
    "file": ("ctx.o = io.BytesIO(b'123')", "return g * int(ctx.o.read(1))"),
    "function": ("ctx.o = lambda: 0; ctx.o.n = 1.0", "ctx.o.n += 1; return g * ctx.o.n"),
    "equal tensors": ("ctx.a, ctx.b = x * 2, x * 2", "ctx.a.mul_(10); return g * (ctx.a + ctx.b)"),
    "equal tensors, not captured": ("ctx.a, ctx.b = x * 2, x * 2", "ctx.a.mul_(10 if g.sum().item() < 1e9 else 11); return g * (ctx.a + ctx.b)"),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_what_a_context_holds_changes(fresh, name):
    """Also where the change is none that a look at containers and attributes would find."""
    forward, backward = CONTEXTS[name]
    program = f"""
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {forward}
        return x * 2

    @staticmethod
    def backward(ctx, g):
        {backward}
"""
    names = {"torch": torch, "np": pytest.importorskip("numpy"), "types": types, "collections": collections, "io": io}
    exec(program, names)
    made = names["F"]

    def f(x):
        return made.apply(x) * 3

    compiled = fresh.compile(f)
    for _ in range(3):
        pairs = []
        for call in (f, compiled):
            x = torch.ones(2, requires_grad=True)
            y = call(x).sum()
            for _ in range(3):
                y.backward(retain_graph=True)
            pairs.append(x.grad)
        torch.testing.assert_close(*pairs)


def test_a_checkpoint_changes_what_it_made(fresh):
    def f(x):
        o = types.SimpleNamespace(n=1.0)

        def inside(x):
            o.n += 1
            return (x * o.n).sin()

        return torch.utils.checkpoint.checkpoint(inside, x, use_reentrant=False)

    compiled = fresh.compile(f)
    for _ in range(3):
        pairs = []
        for call in (f, compiled):
            x = torch.ones(2, requires_grad=True)
            call(x).sum().backward()
            pairs.append(x.grad)
        torch.testing.assert_close(*pairs)


def test_memory_that_is_shown_again_and_again(fresh):
    """What an input holds is kept once for all calls that wait; not-a-numbers are equal to themselves."""
    w = torch.full((1000,), float("nan"), requires_grad=True)
    compiled = fresh.compile(lambda: (w * w).nan_to_num())
    total = 0
    for _ in range(5):
        total = total + compiled().sum()
        w.data.view(-1)[0].item()
    torch.testing.assert_close(torch.autograd.grad(total, w, create_graph=True)[0], 5 * torch.autograd.grad((w * w).nan_to_num().sum(), w)[0], equal_nan=True)
    large = torch.full((5_000_000,), float("nan"), requires_grad=True)
    y = fresh.compile(lambda x: (x * x).nan_to_num())(large)
    large.data.view(-1)[0].item()
    assert torch.autograd.grad(y.sum(), large, create_graph=True)[0].shape == large.shape
