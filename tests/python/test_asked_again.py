"""What a program asks again later, or does twice: state that a backward pass reads, side effects of checkpoints, classes registered with
abstract ones, caches that are cleared, tokens of ContextVars, casts of nested autocast regions. Each is compared with eager."""

import abc
import contextvars
import copy
import functools
import textwrap
import time

import pytest

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

F = torch.nn.functional
SCALE = 1


def function(read):
    class Fn(torch.autograd.Function):
        k = 1

        @staticmethod
        def forward(ctx, x, held=None):
            ctx.held = held
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * read(ctx, Fn), None

    return Fn


class Box:
    k = 1


def of_global(wrap):
    def change(value):
        global SCALE
        SCALE = value

    Fn = function(lambda ctx, cls: SCALE)
    return wrap(lambda x: Fn.apply(x).sum()), change


def of_class(wrap):
    Fn = function(lambda ctx, cls: cls.k)
    return wrap(lambda x: Fn.apply(x).sum()), lambda value: setattr(Fn, "k", value)


def of_variable(wrap):
    k = 1

    def change(value):
        nonlocal k
        k = value

    Fn = function(lambda ctx, cls: k)
    return wrap(lambda x: Fn.apply(x).sum()), change


def of_object(wrap):
    box = Box()
    Fn = function(lambda ctx, cls: ctx.held.k)
    return wrap(lambda x: Fn.apply(x, box).sum()), lambda value: setattr(box, "k", value)


def of_list(wrap):
    held = [1]
    Fn = function(lambda ctx, cls: ctx.held[0])
    return wrap(lambda x: Fn.apply(x, held).sum()), lambda value: held.__setitem__(0, value)


def of_tensor(wrap):
    t = torch.ones(2)
    Fn = function(lambda ctx, cls: t)
    return wrap(lambda x: Fn.apply(x).sum()), t.fill_


def of_list_made_inside(wrap):
    Fn = function(lambda ctx, cls: ctx.held[0])
    made = []

    def f(x):
        held = [1]
        y = Fn.apply(x, held).sum()
        held[0] = 3
        return y

    return wrap(f), made.append


def of_variable_inside(wrap):
    def f(x):
        k = {"k": 1}

        class Fn(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g * k["k"]

        y = Fn.apply(x).sum()
        k["k"] = 7
        return y

    return wrap(f), lambda value: None


@pytest.mark.parametrize("make", [of_global, of_class, of_variable, of_object, of_list, of_tensor, of_list_made_inside, of_variable_inside])
def test_backward_reads_what_is_there_then(fresh, make):
    seen = []
    for wrap in (lambda f: f, fresh.compile):
        f, change = make(wrap)
        for i in range(3):
            change(1)
            x = torch.ones(2, requires_grad=True)
            y = f(x)
            change(5 + i)
            y.backward()
            seen.append(x.grad.tolist())
    assert seen[:3] == seen[3:]


def test_backward_that_reads_what_never_changes_is_compiled(fresh):
    Fn = function(lambda ctx, cls: torch.pi * F.relu(torch.ones(2, dtype=torch.float32)) + ctx.held)
    f = lambda x: Fn.apply(x, 3).sum()  # noqa: E731
    x = torch.ones(2, requires_grad=True)
    assert torch.equal(*(torch.autograd.grad(g(x), x)[0] for g in (f, fresh.compile(f, fullgraph=True))))


def test_backward_that_reads_globals_is_compiled(fresh):
    """A pass that finds another value is the framework's, of the same draws and of what was written before."""
    global SCALE

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0] * SCALE**2

    norm = torch.nn.BatchNorm1d(4).double()

    def f(x, norm):
        return (F.dropout(Fn.apply(norm(x) * 0.5) + Fn.apply(x), 0.5) * x).sum()

    told = fresh.explain(f)(torch.rand(3, 4, dtype=torch.float64, requires_grad=True), copy.deepcopy(norm))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    seen = []
    for call in (f, fresh.compile(f)):
        own = copy.deepcopy(norm)
        for k, then in enumerate((2, 3, 5.5, 2, 3)):
            SCALE = 2
            torch.manual_seed(k)
            x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
            own.zero_grad()
            y = call(x, own)
            SCALE = then
            drawn = torch.rand(1)
            y.backward()
            seen.append([y.detach(), x.grad, own.weight.grad, own.running_mean.clone(), drawn, torch.rand(1)])
    SCALE = 1
    assert not torch.allclose(seen[0][1], seen[1][1])
    torch.testing.assert_close(seen[5:], seen[:5])


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * SCALE


def written_before(x):
    global SCALE
    SCALE = SCALE + 1
    return Scaled.apply(x).sum()


def written_around(x):
    global SCALE
    SCALE = SCALE + 1
    y = Scaled.apply(x).sum()
    SCALE = SCALE * 2
    return y


def written_behind(x):
    global SCALE
    y = Scaled.apply(x).sum()
    SCALE = SCALE * 2
    return y


@pytest.mark.parametrize("f", [written_before, written_around, written_behind])
def test_a_global_that_the_function_writes_and_a_backward_reads(fresh, f):
    global SCALE
    seen = []
    for call in (f, fresh.compile(f)):
        for then in (None, 7, None, 9, None):
            SCALE = 2
            x = torch.ones(3, requires_grad=True)
            y = call(x)
            SCALE = then or SCALE
            y.backward()
            seen.append((x.grad.tolist(), SCALE))
    SCALE = 1
    assert seen[5:] == seen[:5]


def test_a_backward_and_globals_of_code_that_was_executed(fresh):
    """A namespace with a name and no file is no module of C: what it holds may change."""
    namespace = {"__name__": "cells"}
    source = "import torch\nSCALE = 2\n" + textwrap.dedent("""
        class Fn(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g * SCALE
    """)
    exec(source, namespace)
    compiled = fresh.compile(lambda x: namespace["Fn"].apply(x).sum(), fullgraph=True)
    for then in (2, 5, 2):
        namespace["SCALE"] = 2
        x = torch.ones(3, requires_grad=True)
        y = compiled(x)
        namespace["SCALE"] = then
        y.backward()
        assert x.grad.tolist() == [then] * 3


def test_a_backward_whose_builtin_is_hidden_later(fresh, monkeypatch):
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * abs(-3)

    compiled = fresh.compile(lambda x: Fn.apply(x).sum(), fullgraph=True)
    for hidden in (False, True, False):
        x = torch.ones(3, requires_grad=True)
        y = compiled(x)
        with monkeypatch.context() as m:
            if hidden:
                m.setitem(globals(), "abs", lambda k: 11)
            y.backward()
        assert x.grad.tolist() == [11 if hidden else 3] * 3


def test_forward_and_backward_that_read_the_same_global(fresh):
    global SCALE

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp() * SCALE
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0] * SCALE

    def twice(x):
        return Fn.apply(Fn.apply(x)).sum()

    seen = []
    for call in (twice, fresh.compile(twice)):
        for then in (1, 4, 1):
            SCALE = 1
            x = torch.full((3,), 0.1, requires_grad=True)
            y = call(x)
            SCALE = then
            y.backward()
            seen.append(x.grad)
    SCALE = 1
    torch.testing.assert_close(seen[3:], seen[:3])


def appends(x):
    done = []
    y = checkpoint(lambda a: (done.append(1), a.sin().exp())[1], x, use_reentrant=False)
    return y.sum(), done


def counts(x):
    d = {"n": 0}

    def inner(a):
        d["n"] += 1
        return a.sin().exp() * d["n"]

    return checkpoint(inner, x, use_reentrant=False).sum(), d


def attribute(x):
    box = Box()

    def inner(a):
        box.k += 1
        return a.sin().exp()

    return checkpoint(inner, x, use_reentrant=False).sum(), box.__dict__


@pytest.mark.parametrize("f", [appends, counts, attribute])
def test_checkpoints_do_it_twice(fresh, f):
    compiled = fresh.compile(f)
    for _ in range(3):
        results = []
        for g in (f, compiled):
            x = torch.ones(2, requires_grad=True)
            y, state = g(x)
            before = str(state)
            y.backward()
            results.append((before, str(state), x.grad))
        assert results[0][:2] == results[1][:2]
        torch.testing.assert_close(results[1][2], results[0][2])


@pytest.mark.parametrize("keep", [True, False])
def test_dropout_in_a_checkpoint(fresh, keep):
    f = lambda x: checkpoint(lambda a: F.dropout(a.exp(), 0.5) * a.sin(), x, use_reentrant=False, preserve_rng_state=keep).sum()  # noqa: E731
    compiled = fresh.compile(f)
    for seed in range(3):
        results = []
        for g in (f, compiled):
            torch.manual_seed(seed)
            x = torch.ones(16, requires_grad=True)
            y = g(x)
            torch.rand(3)
            y.backward()
            results.append((y.detach(), x.grad, torch.rand(2)))
        for a, b in zip(*results):
            torch.testing.assert_close(a, b)


def test_registered_classes(fresh):
    def run(wrap):
        class Base(abc.ABC):
            pass

        kinds = [type(f"Kind{i}", (), {}) for i in range(40)]
        is_one = wrap(lambda x, o: x * 2 if isinstance(o, Base) else x * 3)
        inherits = wrap(lambda x, o: x * 2 if issubclass(type(o), Base) else x * 3)
        seen = []
        for kind in kinds:
            for _ in range(2):
                seen += [is_one(torch.ones(1), kinds[0]()).item(), inherits(torch.ones(1), kinds[39]()).item()]
            Base.register(kind)
        return seen + [is_one(torch.ones(1), kinds[0]()).item(), inherits(torch.ones(1), kinds[39]()).item()]

    assert run(lambda f: f) == run(fresh.compile)


@pytest.mark.parametrize("how", [functools.cache, functools.lru_cache(maxsize=2), functools.lru_cache(typed=True)])
def test_caches_that_are_cleared(fresh, how):
    def run(wrap):
        version = [1]
        made = how(lambda *args, **named: [version[0], len(args), *named])
        f = wrap(lambda x: x * made(2)[0] + made("a", float, k=1)[0])
        seen = []
        for i in range(6):
            seen.append(f(torch.ones(1)).item())
            version[0] += 1
            if i % 2:
                made.cache_clear()
            if i == 2:
                made(3), made(4), made(5)  # what was there goes, if there is a bound
        return seen

    assert run(lambda f: f) == run(fresh.compile)


def test_tokens(fresh):
    var = contextvars.ContextVar("framejit_test", default=0)

    def whole(x):
        outer, inner = var.set(5), var.set(6)
        seen = [var.get()]
        var.reset(inner)
        try:
            var.reset(inner)
        except RuntimeError as e:
            seen.append(str(e).split(" at ")[0][-20:])
        seen.append(var.get())
        var.reset(outer)
        return x * 2, seen, outer is inner, outer.var is var, var.get()

    def leaves(x):
        return x * 2, var.set(7)

    def takes(x, token):
        var.reset(token)
        return x * var.get()

    for wrap in (lambda f: f, fresh.compile):
        a, b, c = wrap(whole), wrap(leaves), wrap(takes)
        for _ in range(3):
            assert a(torch.ones(1))[1:] == ([6, whole(torch.ones(1))[1][1], 5], False, True, 0)
            y, token = b(torch.ones(1))
            assert var.get() == 7 and token.var is var and token.old_value is contextvars.Token.MISSING
            assert c(torch.ones(1), token).item() == 0 and var.get() == 0


@pytest.mark.parametrize("inner_first", [True, False])
def test_casts_of_two_regions(fresh, inner_first):
    p = torch.nn.Parameter(torch.randn(4, 4))

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = None if inner_first else x @ p
            with torch.autocast("cpu", torch.float16):
                z = x @ p
            return x @ p if y is None else y, z

    compiled = fresh.compile(f)
    for _ in range(3):
        messages = []
        for g in (f, compiled):
            with pytest.raises(RuntimeError) as e:
                g(torch.ones(4, 4))
            messages.append(str(e.value))
        assert messages[0] == messages[1]


def test_no_dimension_at_all(fresh):
    for f in (lambda x: x.all(()), lambda x: x.any(()), lambda x: torch.full(2, 3), lambda x: x.flip(), lambda x: x.tile(), lambda x: x.new_ones()):
        compiled = fresh.compile(f)
        for _ in range(2):
            results = []
            for g in (f, compiled):
                try:
                    results.append(g(torch.eye(2)).tolist())
                except TypeError as e:
                    results.append(str(e))
            assert results[0] == results[1]


def linear(n=4):
    return torch.nn.Parameter(torch.randn(n, n, generator=torch.Generator().manual_seed(0)))


def gradients_of(wrap, program, write=None, hook=False):
    """Of x and w, and what a second derivative gives; each step of backward with a graph that can be differentiated."""
    w, x = linear(), torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    if hook:
        w.register_hook(lambda g: g * 2)
    seen = []
    for outputs in ([0], [0, 1]):
        x.grad = w.grad = None
        results = wrap(lambda x: program(x, w))(x)
        if write:
            write(w)
        try:
            sum(results[i].square().sum() for i in outputs).backward(create_graph=True)
        except RuntimeError as e:
            seen.append(str(e).split(":")[0])
            continue
        first = x.grad, w.grad
        seen += [g if g is None else g.detach().clone() for g in first]
        if first[0] is not None and first[0].requires_grad and not write:
            seen.append(torch.autograd.grad(first[0].sum(), x)[0])
    return seen


def two_graphs(x, w):
    h = x.exp()
    time.sleep(0)
    return h @ w + x, h * x


def one_input_twice(x, w):
    return x @ w + x.t().t() @ w, (w * w).sum() * x


def apart(x, w):
    return x.sin() * 2, x @ w


def frozen(w):
    w.requires_grad_(False)


def written(w):
    with torch.no_grad():
        w.mul_(1.5)


@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize("write", [None, frozen, written])
@pytest.mark.parametrize("program", [two_graphs, one_input_twice, apart])
@pytest.mark.filterwarnings("ignore:Using backward")
def test_second_derivatives_of_one_segment_of_many(fresh, program, write, hook):
    if hook and (write is frozen or program is apart):
        return  # hooks of what gets no gradient in a pass are told None
    for mine, theirs in zip(*(gradients_of(wrap, program, write, hook) for wrap in (fresh.compile, lambda f: f)), strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert mine == theirs
        else:
            torch.testing.assert_close(mine, theirs)


def test_written_values_that_a_pass_does_not_read(fresh):
    w = linear()
    for f in (lambda x: apart(x, w), fresh.compile(lambda x: apart(x, w))):
        x = torch.ones(3, 4, requires_grad=True)
        first, second = f(x)
        written(w)
        first.sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach().cos())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.sum().backward()


def adds(x, y):
    y.add_(x)
    y.mul_(2)
    return y


def copies(x, y):
    for _ in (x, y):
        y.copy_(x)
    y.mul_(3)
    return x * 2


@pytest.mark.parametrize("f", [adds, copies])
def test_an_input_that_gets_gradients_by_a_write(fresh, f):
    compiled = fresh.compile(f)
    for _ in range(2):
        seen = []
        for g in (f, compiled):
            leaf, y = torch.tensor([0.5, -1.0, 2.0], requires_grad=True), torch.ones(3)
            result = g(leaf * 1, y)
            assert y.requires_grad and result.requires_grad
            seen.append((y.detach(), *torch.autograd.grad((result + y).sum(), leaf)))
        for mine, theirs in zip(*seen):
            assert torch.equal(mine, theirs)


def test_a_compiled_function_in_a_backward_that_torch_calls(fresh):
    """Before torch 2.13 its engine switches named tensors off around a backward function of the program's."""
    inner = fresh.compile(lambda g, x: g * x.cos() + g.sum(), fullgraph=True)

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return inner(g, *ctx.saved_tensors)

    x = torch.randn(3, 4, requires_grad=True)
    for _ in range(3):
        (got,) = torch.autograd.grad((Fn.apply(x) * 2).sum(), x)
        assert torch.allclose(got, 2 * x.detach().cos() + 2 * x.numel())
    assert fresh.cache_info(inner)["outcomes"]["run"] == {"graph": 3}, fresh.cache_info(inner)
