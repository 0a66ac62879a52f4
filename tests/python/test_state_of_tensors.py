"""What a program sets of a tensor itself (memory, gradient, hooks) is one graph, and the object outside is what eager leaves."""

import copy

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


def one_graph(fresh, f, *args):
    told = fresh.explain(f)(*args)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def facts(t):
    return t.detach().clone(), t.requires_grad, t.is_leaf, type(t), t.dtype, t.stride(), t._version


def same(a, b):
    for x, y in zip(a, b, strict=True):
        if torch.is_tensor(x):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
        else:
            assert x == y


def both(fresh, f, make, rounds=3, grads=True):
    """Arguments that live on over several calls: the results, and all that is seen of the arguments, after each."""
    one_graph(fresh, f, *make())
    ours, theirs = make(), make()
    compiled = fresh.compile(f)
    for _ in range(rounds):
        got, expected = compiled(*ours), f(*theirs)
        for a, b in zip(got, expected, strict=True):
            same(facts(a), facts(b))
        for a, b in zip(ours, theirs, strict=True):
            same(facts(a), facts(b))
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                same(facts(a.grad)[:-1], facts(b.grad)[:-1])  # versions of results are not kept
        for a, b in zip(got, expected, strict=True):
            if grads and a.requires_grad:
                a.sum().backward(retain_graph=True)
                b.sum().backward(retain_graph=True)
        for a, b in zip(ours, theirs, strict=True):
            if a.grad is not None:
                same(facts(a.grad)[:-1], facts(b.grad)[:-1])


def plain():
    return torch.arange(12.0).reshape(3, 4) - 5, torch.full((3, 4), 2.0)


def weight():
    return torch.arange(12.0).reshape(3, 4) - 5, nn.Parameter(torch.full((3, 4), 2.0))


def test_data_of_inputs(fresh):
    def swapped(t, u):
        old = t.data
        t.data = u * 2
        return t + 1, old, t[0] * 1

    both(fresh, swapped, plain)

    def shared(t, u):
        t.data = u
        return (t + 1,)

    both(fresh, shared, plain, rounds=1)
    t, u = plain()
    fresh.compile(shared)(t, u)
    u.add_(1)
    assert torch.equal(t, u)

    def smaller(t, u):
        t.data = u[0]
        return (t * 2,)

    both(fresh, smaller, plain, rounds=1)


def test_data_of_parameters(fresh):
    def decayed(t, p):
        p.data = p.data * 0.5 + t
        return ((p * p * t).sum(),)

    both(fresh, decayed, weight)

    def after(t, p):
        loss = (p * t).sum()
        p.data = p.data - 1
        return (loss,)

    both(fresh, after, weight)

    @torch.no_grad()
    def without(t, p):
        p.data = p.data * 0.5
        return p * t, p.requires_grad, isinstance(p, nn.Parameter), p.is_leaf

    compiled = fresh.compile(without)
    ours, theirs = weight(), weight()
    for _ in range(2):
        got, expected = compiled(*ours), without(*theirs)
        same(facts(got[0]), facts(expected[0]))
        assert got[1:] == expected[1:]
        same(facts(ours[1]), facts(theirs[1]))


def test_the_memory_before_is_left_alone(fresh):
    def averaged(t, p):
        kept = p.data
        p.data = t.clone()
        out = (p * 3).detach()
        p.data = kept
        return (out,)

    both(fresh, averaged, weight)
    t, p = weight()
    address = p.data_ptr()
    fresh.compile(averaged)(t, p)
    assert p.data_ptr() == address and p.tolist() == [[2.0] * 4] * 3


def test_writes_behind_that_are_not_hidden(fresh):
    def f(t, u):
        t.data = u * 2
        t.add_(1)
        return (t * 1,)

    ours, theirs = plain(), plain()
    compiled = fresh.compile(f)
    for _ in range(2):
        same(compiled(*ours), f(*theirs))
        same(facts(ours[0]), facts(theirs[0]))


def test_an_average_of_weights(fresh):
    torch.manual_seed(0)
    first = nn.Linear(3, 3), nn.Linear(3, 3)
    model, average = copy.deepcopy(first)
    other = copy.deepcopy(first)

    def update(a, b):
        for p, q in zip(a.parameters(), b.parameters()):
            q.data = q.data * 0.9 + p.data * 0.1

    one_graph(fresh, update, copy.deepcopy(model), copy.deepcopy(average))
    compiled = fresh.compile(update)
    for _ in range(3):
        compiled(model, average)
        update(*other)
        for p, q in zip(average.parameters(), other[1].parameters()):
            same(facts(p), facts(q))


def test_gradients_are_set(fresh):
    def given(t, p):
        p.grad = t * 2
        p.grad.add_(1)
        return p.grad + 1, p * t

    both(fresh, given, weight)

    def taken(t, p):
        p.grad = None
        return ((p * t if p.grad is None else t),)

    both(fresh, taken, weight)

    def swapped(t, p):
        old = p.grad
        p.grad = t.clone()
        p.grad = p.grad + (0 if old is None else old)
        return (p * t,)

    both(fresh, swapped, weight)

    def wrong(t, p):
        p.grad = t[0]
        return t

    with pytest.raises(RuntimeError, match="gradient"):
        fresh.compile(wrong)(*weight())


def test_detached_in_place(fresh):
    def result(t, p):
        y = t * p
        y.detach_()
        return y + p, y, y.requires_grad

    compiled = fresh.compile(result)
    one_graph(fresh, result, *weight())
    ours, theirs = weight(), weight()
    got, expected = compiled(*ours), result(*theirs)
    same(facts(got[0]), facts(expected[0]))
    same(facts(got[1]), facts(expected[1]))
    assert got[2] is expected[2] is False
    got[0].sum().backward()
    expected[0].sum().backward()
    same(facts(ours[1].grad), facts(theirs[1].grad))

    def inputs(t, p):
        p.detach_()
        t.detach_()
        return (p * t,)

    both(fresh, inputs, weight)

    def view(t, p):
        y = t * p
        y[0].detach_()
        return y

    with pytest.raises(RuntimeError, match="view"):
        fresh.compile(view)(*weight())


def test_no_gradients_from_here_on(fresh):
    def called(t, p):
        before = (p * t).sum()
        p.requires_grad_(False)
        return before, p * t

    def stored(t, p):
        p.requires_grad = False
        return (p * t,)

    for f in (called, stored):
        both(fresh, f, weight, rounds=2)


def test_gradients_are_kept(fresh):
    def f(t, p):
        y = t * p
        y.retain_grad()
        z = y * y
        z.retain_grad()
        return y, z.sum(), y.retains_grad

    one_graph(fresh, f, *weight())
    compiled = fresh.compile(f)
    for _ in range(2):
        ours, theirs = weight(), weight()
        got, expected = compiled(*ours), f(*theirs)
        assert got[2] is expected[2] is True and got[0].retains_grad
        got[1].backward()
        expected[1].backward()
        same((got[0].grad, ours[1].grad), (expected[0].grad, theirs[1].grad))


@pytest.mark.parametrize("where", ["input", "result", "kept", "dropped"])
def test_hooks(fresh, where):
    seen = []

    def hook(g):
        seen.append(g.clone())
        return g * 2

    def f(t, p):
        y = t * p
        (p if where == "input" else y).register_hook(hook)
        z = (y * y).sum()
        return (z, y) if where == "kept" else (z,)

    one_graph(fresh, f, *weight())
    compiled = fresh.compile(f)
    for _ in range(3):
        calls = []
        grads = []
        for function in (f, compiled):
            seen.clear()
            t, p = weight()
            out = function(t, p)
            if where == "dropped":
                z = out[0]
                del out
                z.backward()
            else:
                out[0].backward()
            calls.append(list(seen))
            grads.append(p.grad)
        assert len(calls[0]) == len(calls[1]) == 1
        same(calls[1], calls[0])
        same([grads[1]], [grads[0]])


def test_hooks_made_inside(fresh):
    def f(t, p, by):
        y = t * p
        y.register_hook(lambda g: g * by)
        return (y.sin()).sum()

    one_graph(fresh, f, *weight(), 3)
    compiled = fresh.compile(f)
    for by in (2, 3, 4):
        (t, p), (u, q) = weight(), weight()
        compiled(t, p, by).backward()
        f(u, q, by).backward()
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("made", ["clone", "factory", "later"])
@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_leaves_made_inside(fresh, made, hook):
    """The leaf is an object of its own: its hook is called once a pass, also where the leaf itself is dropped."""
    seen = []

    def after(o):
        seen.append((o if hook == "register_hook" else o.grad).clone())
        return o * 3 if hook == "register_hook" else None

    def f(x):
        if made == "factory":
            w = torch.full((3,), 2.0, requires_grad=True)
        else:
            w = x.clone()
            y = w * 2 if made == "later" else None
            w.requires_grad_()
        getattr(w, hook)(after)
        z = (w * x).sum() + (w * w).sum()
        return w, z, None if made != "later" else y

    one_graph(fresh, f, torch.arange(3.0))
    compiled, passes = fresh.compile(f), []
    for function in (f, compiled, compiled, f, compiled):
        for keeps in (True, False):
            seen.clear()
            w, z, _ = function(torch.arange(3.0))
            kept = w if keeps else None
            del w
            z.backward(retain_graph=True)
            z.backward()
            passes.append([list(seen), [kept.grad] if keeps else []])
            assert len(seen) == 2
    for k in range(2, len(passes)):
        same(passes[k][0], passes[k % 2][0])
        same(passes[k][1], passes[k % 2][1])


def test_hooks_of_leaves_made_inside_and_a_pass_inside(fresh):
    def f(x):
        w, seen = x.clone().requires_grad_(), []
        w.register_hook(lambda g: seen.append(g.clone()) or g * 2)
        (w * w).sum().backward()
        return w.grad, seen

    compiled = fresh.compile(f)
    for k in range(3):
        x = torch.arange(3.0) + k
        (g, seen), (h, told) = compiled(x), f(x)
        same([g, *seen], [h, *told])
    assert fresh.cache_info(compiled)["breaks"] == 1  # backward()
    assert len(compiled.graphs) > 0


def test_hooks_of_what_is_written_later(fresh):
    def f(t, p):
        y = t * p
        y.register_hook(lambda g: g * 5)
        y.mul_(2)
        return y.sum()

    compiled = fresh.compile(f)
    for _ in range(2):
        (t, p), (u, q) = weight(), weight()
        compiled(t, p).backward()
        f(u, q).backward()
        assert torch.equal(p.grad, q.grad)


def test_after_gradients_are_added(fresh):
    seen = []

    def f(t, p):
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
        return (t * p).sum()

    one_graph(fresh, f, *weight())
    compiled = fresh.compile(f)
    for _ in range(2):
        t, p = weight()
        seen.clear()
        compiled(t, p).backward()
        assert seen == [t.sum().item()]


@pytest.mark.parametrize("grad", [False, True])
def test_views_in_place(fresh, grad):
    def f(t, p):
        y = t * p
        same = y.unsqueeze_(dim=1)
        z = (y * 2).transpose_(0, 2)
        z.squeeze_(1).add_(1)
        return same is y, y * 1, z * 1, z.t_().sum()

    one_graph(fresh, f, *weight())
    compiled = fresh.compile(f)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            (t, p), (u, q) = weight(), weight()
            got, expected = compiled(t, p), f(u, q)
            assert got[0] is expected[0] is True
            for a, b in zip(got[1:], expected[1:]):
                same(facts(a)[:-1], facts(b)[:-1])
            if grad:
                (got[1].sum() + got[3]).backward()
                (expected[1].sum() + expected[3]).backward()
                torch.testing.assert_close(p.grad, q.grad)

    def inputs(t, u):
        t.unsqueeze_(0)
        t.add_(u)
        return (t[0] * 2,)

    one_graph(fresh, inputs, *plain())
    compiled = fresh.compile(inputs)
    (t, u), (v, w) = plain(), plain()
    alias, other = t[0], v[0]
    same(compiled(t, u), inputs(v, w))
    same([t, alias], [v, other])
    assert t.shape == v.shape and t.stride() == v.stride()

    def refused(t, p):
        p.unsqueeze_(0)
        return p * t

    with pytest.raises(RuntimeError, match="leaf"):
        fresh.compile(refused)(*weight())


def test_rrelu(fresh):
    def f(t, p, training):
        y = torch.nn.functional.rrelu(t * p, 0.1, 0.4, training)
        return torch.nn.functional.rrelu_(y - 1, training=training), torch.rand(2)

    for training in (False, True):
        one_graph(fresh, f, *weight(), training)
        compiled = fresh.compile(f)
        for k in range(3):
            (t, p), (u, q) = weight(), weight()
            torch.manual_seed(k)
            got = compiled(t, p, training)
            torch.manual_seed(k)
            expected = f(u, q, training)
            for a, b in zip(got, expected):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
            got[0].sum().backward()
            expected[0].sum().backward()
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-6, atol=1e-6)


def test_modules_that_are_called_again(fresh):
    """A loop over modules begins anew with each call of the function that it is in."""
    parts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(9))

    def f(x):
        out = []
        for _ in range(5):
            for part in parts:
                x = part(x)
            out.append(x)
        return out

    one_graph(fresh, f, torch.ones(2, 4))
    compiled = fresh.compile(f)
    with torch.no_grad():
        for x in (torch.ones(2, 4), torch.zeros(2, 4)):
            torch.testing.assert_close(compiled(x), f(x))


def against_eager(fresh, f, see, make=weight):
    """What `see` tells of arguments and results, three times. What cannot wait ends the graph: it is not one."""
    assert fresh.explain(f)(*make()).graph_break_count > 0
    compiled = fresh.compile(f)
    for _ in range(3):
        ours, theirs = make(), make()
        assert see(compiled(*ours), *ours) == see(f(*theirs), *theirs)


def test_what_shares_memory_set_before(fresh):
    def by_data(t, p):
        p.data = p.data + 1
        p.data.mul_(2)
        return p * 1

    def by_item(t, p):
        p.data = p.data + 1
        p.data[0] = 7
        return p * 1

    def by_detach(t, p):
        p.data = p.data + 1
        p.detach().mul_(2)
        return p * 1

    def by_view(t, p):
        p.data = p.data + 1
        with torch.no_grad():
            p.view(-1).mul_(2)
        return p * 1

    for f in (by_data, by_item, by_detach, by_view):
        against_eager(fresh, f, lambda out, t, p: (out.tolist(), p.tolist()))

    def written(out, t, p):
        before = p._version
        out.detach().add_(5)
        return p.tolist(), out.data_ptr() == p.data_ptr(), p._version - before

    for view in (torch.Tensor.detach, lambda p: p.data, lambda p: p.view(-1), torch.t, lambda p: p[0]):

        def seen(t, p):
            p.data = p.data + 1
            return view(p)

        against_eager(fresh, seen, written)

    def base(t, u):
        t.data = u * 2
        y = t.view(-1)
        y.add_(1)
        return y

    against_eager(fresh, base, lambda y, t, u: (y._base is t, y._version, t._version, t.tolist()), plain)


VIEWS = {
    "view": lambda x: x.view(-1),
    "t": torch.t,
    "reshape": lambda x: x.reshape(2, 6),
    "expand": lambda x: x.expand(2, 3, 4),
    "chunk": lambda x: x.chunk(2)[0],
    "item": lambda x: x[0],
}


@pytest.mark.parametrize("view", VIEWS)
def test_hooks_of_views(fresh, view):
    def hooked(t, p):
        y = VIEWS[view](t * p)
        y.register_hook(lambda g: g * 10)
        return (y * y).sum()

    def of_input(t, p):
        y = VIEWS[view](p)
        y.register_hook(lambda g: g * 10)
        return (y * y).sum()

    def gradient(out, t, p):
        out.backward()
        return p.grad.tolist()

    against_eager(fresh, hooked, gradient)
    against_eager(fresh, of_input, gradient)

    def kept(t, p):
        y = VIEWS[view](t * p)
        y.retain_grad()
        return (y * y).sum(), y

    def kept_gradient(out, t, p):
        out[0].backward()
        return out[1].grad.tolist(), p.grad.tolist()

    against_eager(fresh, kept, kept_gradient)


def test_gradients_kept_of_a_base(fresh):
    def f(t, p):
        y = t * p
        y.retain_grad()
        return y.view(-1), (y * y).sum()

    def see(out, t, p):
        out[1].backward()
        return out[0]._base.grad.tolist()

    against_eager(fresh, f, see)


def test_hooks_that_wait_and_gradients_inside(fresh):
    def of_input(t, p):
        p.register_hook(lambda g: g * 10)
        return torch.autograd.grad((p * t).sum(), p)[0]

    def of_result(t, p):
        y = t * p
        y.register_hook(lambda g: g * 10)
        return torch.autograd.grad((y * y).sum(), p)[0]

    for f in (of_input, of_result):
        against_eager(fresh, f, lambda out, t, p: out.tolist())

    def without(t, p):
        return (torch.autograd.grad((p * t).sum(), p)[0],)

    both(fresh, without, weight)


@pytest.mark.parametrize("name", ["unsqueeze_", "squeeze_", "t_", "transpose_"])
def test_views_in_place_of_inputs_with_gradients(fresh, name):
    args = {"unsqueeze_": (0,), "transpose_": (0, 1)}.get(name, ())

    def f(t, p):
        with torch.no_grad():
            getattr(p, name)(*args)
        return p * 2

    def see(out, t, p):
        try:
            grad = torch.autograd.grad(out.sum(), p)[0].tolist()
        except RuntimeError as e:  # the shape is not what the operation made
            grad = str(e)
        return out.shape, out.requires_grad, p.shape, p.is_leaf, grad

    against_eager(fresh, f, see)

    def result():
        t, p = weight()
        return t, p * 3

    against_eager(fresh, f, see, result)


def test_becomes_another_after_a_hook(fresh):
    def viewed(t, p):
        y = t * p
        y.register_hook(lambda g: g * len(g.shape))
        y.unsqueeze_(0)
        return (y * y).sum()

    def detached(t, p):
        y = t * p
        z = y.sum()
        y.register_hook(lambda g: g * 10)
        y.detach_()
        return z

    def see(out, t, p):
        out.backward()
        return p.grad.tolist()

    for f in (viewed, detached):
        against_eager(fresh, f, see)


def test_results_of_views_in_place_are_no_views(fresh):
    def f(t, p):
        y = t * 2
        y.unsqueeze_(0)
        return y

    one_graph(fresh, f, *weight())
    against_eager(fresh, lambda t, p: f(p, t), lambda y, t, p: (y._is_view(), y.tolist()))
    compiled = fresh.compile(f)
    for _ in range(3):
        ours, theirs = compiled(*weight()), f(*weight())
        assert (ours._is_view(), ours.detach_().tolist()) == (theirs._is_view(), theirs.detach_().tolist())


def test_what_has_no_gradients_any_more_is_written_to(fresh):
    """By something that has: then it has them again. Behind a detach that waits for the end it had not."""
    w = torch.full((3,), 2.0, requires_grad=True)

    def detached(x):
        x.detach_()
        x.mul_(w)
        return x

    def through_a_view(x):
        x.detach_()
        v = x.view(-1)
        v.mul_(w)
        return x

    def frozen(x):
        x.requires_grad_(False)
        x.mul_(w)
        return x.sum()

    def view(x):
        x.detach_()
        return x.view(-1)

    def view_before(x):
        v = x.view(-1)
        x.add_(1)
        x.detach_()
        return v * 1

    for f, leaf in ((detached, False), (through_a_view, False), (frozen, True), (view, False), (view_before, False)):
        told = []
        for run in (f, fresh.compile(f)):
            for _ in range(3):
                x = torch.ones(3, requires_grad=True)
                x = x if leaf else x * 1
                r = run(x)
                told.append((r.requires_grad, x.requires_grad, r.tolist(), r._base is x))
        assert told[:3] == told[3:], f


def test_hooks_from_outside_see_gradients_that_are_made_inside(fresh):
    """What was captured when there were none holds for tensors without hooks alone; a hook that was taken away is none."""

    def squared(x):
        return torch.autograd.grad((x * x).sum(), x)[0]

    def counted(x):
        seen.append(x)
        return 3 * x

    compiled = fresh.compile(squared)
    for made in (lambda: torch.ones(3, requires_grad=True), lambda: torch.ones(3, requires_grad=True) * 1, lambda: nn.Parameter(torch.ones(3))):
        x, seen = made(), []
        assert compiled(x).tolist() == [2.0] * 3
        handle = x.register_hook(counted)
        assert compiled(x).tolist() == squared(x).tolist() == [6.0] * 3
        assert len(seen) == 2
        handle.remove()
        assert compiled(x).tolist() == [2.0] * 3
        assert len(seen) == 2
    one_graph(fresh, squared, x)
    y = torch.ones(3, requires_grad=True)
    y.register_hook(counted)
    told = fresh.explain(squared)(y)
    assert "with hooks" in str(told) and told.graph_break_count == 1

    def of_a_leaf(x):
        return torch.autograd.grad((x * x).sum(), x)[0]

    z, after = torch.ones(3, requires_grad=True), []
    z.register_post_accumulate_grad_hook(lambda t: after.append(t))
    assert fresh.compile(of_a_leaf)(z).tolist() == [2.0] * 3 and not after  # nothing is accumulated
    one_graph(fresh, of_a_leaf, z)


def test_a_view_in_place_is_a_write_to_what_a_derivative_keeps(fresh):
    def result(t, p):
        y = p[:3, :3].exp()
        y.t_()
        return (y * 2).sum()

    def operand(t, p):
        y = p * 3
        z = nn.functional.leaky_relu(y).sum()
        y.unsqueeze_(0)
        return z

    def of_a_view(t, p):
        y = p.tanh()
        v = y[0]
        v.unsqueeze_(0)
        return (y * 2).sum()

    def see(out, t, p):
        try:
            out.backward()
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)
        return p.grad.tolist()

    for f in (result, operand, of_a_view):
        against_eager(fresh, f, see)

    def kept_by_nobody(t, p):
        y = p * 3
        y.t_()
        return y * 2, (y + t.t()).sum()

    both(fresh, kept_by_nobody, weight)


def test_views_of_what_loses_its_gradients(fresh):
    """A view's node is made anew when it is next asked for, from what its base is then."""

    def outside(t, p):
        x = p * 1
        v = x[:1].squeeze()
        x.add_(1)
        x.detach_()
        return v.unsqueeze(0)

    def result(t, p):
        y = p * 2
        v = y[:1].squeeze()
        y.mul_(2)
        y.detach_()
        return v * 2

    def see(out, t, p):
        out.sum().backward()
        return out.tolist(), p.grad is None or p.grad.tolist()

    for f in (outside, result):
        against_eager(fresh, f, see)

    def later(t, p):
        y = p * 2
        v = y[0]
        y.mul_(2)
        return y, v

    compiled = fresh.compile(later)
    for run in (later, compiled):
        t, p = weight()
        y, v = run(t, p)
        y.detach_()
        v.sum().backward()
        assert p.grad is None
    assert compiled.cache_info()["breaks"] == 0


def test_a_gradient_kept_from_outside_sees_gradients_that_are_made_inside(fresh):
    def squared(x):
        return torch.autograd.grad((x * x).sum(), x)[0]

    compiled = fresh.compile(squared)
    for kept in (False, True, False, True):
        for run in (squared, compiled):
            x = torch.ones(3, requires_grad=True) * 1
            if kept:
                x.retain_grad()
            assert run(x).tolist() == [2.0] * 3
            assert not kept or x.grad.tolist() == [2.0] * 3
    told = fresh.explain(squared)(x)
    assert "with hooks" in str(told) and told.graph_break_count == 1


def test_views_made_without_gradients_are_leaves_afterwards(fresh):
    """What is computed of such a view of what has gradients requires gradients, too, but they lead nowhere."""

    def of_an_input(x):
        with torch.no_grad():
            y = x.view(4, 3)
        return y, y * 2

    def of_a_result(x):
        w = x * 1
        with torch.no_grad():
            y = w[1:]
        return y, (y * 2 + w[1:]) * 3

    def used_inside(x):
        with torch.no_grad():
            y = x.view(4, 3) * 2
        return y, y * x.view(4, 3)

    def detached(x):
        y = x.detach().view(4, 3)
        return y, y * x.view(4, 3)

    def tell(run):
        told = []
        for tracked in (True, True, False, True):
            x = torch.arange(12.0).reshape(3, 4).clone().requires_grad_(tracked)  # no view itself
            y, z = run(x)
            if tracked:
                z.sum().backward()
            state = [(t.requires_grad, t.is_leaf, t.tolist()) for t in (y, z)]
            told.append((state, [t.grad.tolist() if t.is_leaf and t.grad is not None else None for t in (x, y)]))
        return told

    for f in (of_an_input, of_a_result, used_inside, detached):
        fresh.reset()
        compiled = fresh.compile(f)
        assert tell(compiled) == tell(f), f.__name__
        x = torch.ones(3, 4, requires_grad=True)
        told = fresh.explain(f)(x)
        whole = f in (used_inside, detached)
        assert (told.graph_break_count == 0) == whole, f.__name__
        assert whole or "made without gradients" in str(told)


def test_what_torch_runs_for_a_graph_leaves_no_gradients_of_its_own(fresh):
    """Results of values that carry none carry none, whoever computes them: libraries' own calls got the inputs themselves."""
    calls = (lambda a: a.norm(), lambda a: torch.dist(a, a + 1), lambda a: a.sort()[0], lambda a: torch.linalg.qr(a)[0], lambda a: a.renorm(2, 0, 1.0),
             lambda a: a.inverse(), lambda a: torch.cdist(a, a + 1))  # fmt: skip
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    for call in calls:

        def f(x, call=call):
            return call(x.detach())

        one_graph(fresh, f, x)
        compiled = fresh.compile(f)
        for _ in range(2):
            made = compiled(x)
            assert (made.requires_grad, made.is_leaf, made.grad_fn) == (False, True, None)
            torch.testing.assert_close(made, f(x))
def test_what_views_made_without_gradients_say_of_themselves(fresh):
    def tell(x):
        with torch.no_grad():
            y = x.view(4, 3)
        return x * 2, y.requires_grad, y.is_leaf, y.grad_fn is None

    compiled = fresh.compile(tell)
    for tracked in (True, False, True):
        assert compiled(torch.ones(3, 4, requires_grad=tracked))[1:] == (tracked, True, True)
    one_graph(fresh, tell, torch.ones(3, 4, requires_grad=True))


@pytest.mark.parametrize("name", ["t_", "unsqueeze_", "squeeze_", "detach_"])
def test_what_a_derivative_may_keep_becomes_another(fresh, name):
    """Eager keeps the operand of a product, not that of a sum, and refuses the backward pass."""
    made = {
        "product": lambda y: y * y,
        "sine": torch.sin,
        "sum": lambda y: y + y,
        "exponential": torch.exp,
    }

    def tell(run):
        x = torch.full((3, 3), 2.0, requires_grad=True)
        try:
            run(x).sum().backward()
        except RuntimeError:
            return "refused"
        return x.grad.tolist()

    for operation in made.values():

        def f(x):
            y = x * 3
            z = operation(y)
            getattr(y, name)(*([0] if name == "unsqueeze_" else []))
            return z

        fresh.reset()
        compiled = fresh.compile(f)
        expected = tell(f)
        for _ in range(3):
            got = tell(compiled)
            assert (got == "refused") == (expected == "refused")
            if got != "refused":
                torch.testing.assert_close(torch.tensor(got), torch.tensor(expected))


def test_data_of_a_result_that_a_derivative_keeps(fresh):
    """Eager's derivative reads the object: what it holds when the gradients come."""

    def kept(x, u):
        y = x * 3
        z = y * y
        y.data = u
        return z

    def not_kept(x, u):
        y = x * 3
        z = y + y
        y.data = u
        return z, y * 2

    for f in (kept, not_kept):
        fresh.reset()
        compiled = fresh.compile(f)
        for k in range(3):
            told = []
            for run in (f, compiled):
                x, u = torch.ones(3, requires_grad=True), torch.full((3,), 5.0 + k)
                results = run(x, u)
                for r in results if isinstance(results, tuple) else (results,):
                    r.sum().backward(retain_graph=True)
                told.append((x.grad.tolist(), u.tolist()))
            assert told[0] == told[1]


def test_a_stale_view_whose_node_was_read(fresh):
    """To read `grad_fn` makes it anew: what happens to the base afterwards is not seen."""

    def inside(p):
        y = p * 2
        v = y[:1].squeeze()
        y.mul_(2)
        known = v.grad_fn is None
        y.detach_()
        return v * 2, known

    def outside(p):
        y = p * 2
        y.mul_(2)
        return y, y[0]

    def tell(run):
        p = torch.ones(2, 2, requires_grad=True)
        if run in (inside, ran_inside):
            out, known = run(p)
        else:
            y, out = run(p)
            y.mul_(3)
            known = out.grad_fn is None
            y.detach_()
        out.sum().backward()
        return p.grad.tolist(), known

    ran_inside, ran_outside = fresh.compile(inside), fresh.compile(outside)
    for _ in range(3):
        assert tell(ran_inside) == tell(inside)
        assert tell(ran_outside) == tell(outside)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_hooks_are_called_in_the_order_of_the_program(fresh, order):
    """What was made last comes first, whatever was registered first, and a hook for any of several comes with that."""

    def apart(x, w, v):
        return x * w, x * v, x + 1

    def one_of_another(x, w, v):
        a = x * w
        b = a * v
        return a, b, b * x

    def mixed(x, w, v):
        a = x * w
        c = x + 1
        return c, a * v, a

    def in_place(x, w, v):
        a, b = x * w, x * v
        return a.mul_(3), b, x + 1

    def at_once(x, w, v):
        a = x * v
        return (*(x * w).tensor_split(2), a)

    def tell(run, of, one_node):
        told, tensors = [], [torch.full((4,), n, requires_grad=True) for n in (1.0, 2.0, 3.0)]
        results = run(*tensors)
        of = results if of == "results" else tensors
        for i in sorted(order) if one_node else order:
            of[i].register_hook(lambda g, i=i: told.append((i, g.tolist())))
        torch.autograd.graph.register_multi_grad_hook(of, lambda g: told.append(g.tolist()), mode="any")
        of[0].register_hook(lambda g: told.append("again"))
        handle = of[1].register_hook(lambda g: told.append("never"))
        handle.remove()
        sum((i + 1) * r.sum() for i, r in enumerate(results)).backward()
        return told, [t.grad.tolist() for t in tensors]

    for f in (apart, one_of_another, mixed, in_place, at_once):
        compiled = fresh.compile(f)
        for of in ("results", "inputs"):
            for _ in range(2):
                assert tell(compiled, of, f is at_once) == tell(f, of, f is at_once), (f.__name__, of)
        assert compiled.cache_info()["breaks"] == 0


@pytest.mark.parametrize("answer", [lambda g: g[:2], lambda g: g.double(), lambda g: g[None], lambda g: 3, lambda g: g * 2, lambda g: g])
def test_a_hook_answers_with_another_gradient(fresh, answer):
    def f(x):
        y = x * 2
        return y, y.sin()

    def tell(run, which):
        x = torch.ones(3, requires_grad=True)
        results = run(x)
        for i in which:
            results[i].register_hook(answer)
        try:
            (results[0] + results[1]).sum().backward()
        except (RuntimeError, TypeError) as error:
            return type(error).__name__, str(error)
        return [round(v, 5) for v in x.grad.tolist()]

    compiled = fresh.compile(f)
    for which in ((0,), (1,), (0, 1)):
        assert tell(compiled, which) == tell(f, which), which
    assert compiled.cache_info()["breaks"] == 0


def test_gradients_of_layers_come_in_the_order_of_eager(fresh):
    """Whoever steps an optimizer as soon as a gradient is whole sees the last layer first."""
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8, bias=False), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
    )  # fmt: skip
    told = []
    for name, p in model.named_parameters():
        p.register_hook(lambda g, name=name: told.append(name))
        p.register_post_accumulate_grad_hook(lambda p, name=name: told.append(f"{name} is there"))

    def tell(run):
        told.clear()
        run(torch.ones(5, 4)).sum().backward()
        return list(told)

    want = tell(model)
    assert want[0] == "5.bias" and len(want) == 18
    compiled = fresh.compile(model)
    for _ in range(2):
        assert tell(compiled) == want
    assert fresh.cache_info(compiled)["breaks"] == 0


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_hooks_of_several_results_that_count_nodes(fresh, which):
    """torch.autograd.graph.register_multi_grad_hook waits for as many gradients as nodes run; results of one graph hang on one."""

    def apart(x):
        return x * 2, x * 3, x + 1

    def one_of_another(x):
        y = x * 2
        return y, y * 3, x + 1

    def tell(run):
        told = []
        x = torch.ones(3, requires_grad=True)
        results = run(x)
        for told_of in (results, results[:1], (*results, x)):
            torch.autograd.graph.register_multi_grad_hook(told_of, lambda gs: told.append([g is None or g.tolist() for g in gs]))
        torch.autograd.graph.register_multi_grad_hook(results, lambda g: told.append(g.tolist()), mode="any")
        sum(results[i].sum() for i in which).backward()
        return sorted(map(str, told)), x.grad.tolist()

    for f in (apart, one_of_another):
        compiled = fresh.compile(f)
        for _ in range(2):
            assert tell(compiled) == tell(f)
        assert compiled.cache_info()["breaks"] == 0


@pytest.mark.parametrize("split", ("unsafe_split", "unsafe_chunk"))
def test_parts_with_versions_of_their_own(fresh, split):
    """What is written through them does not count as a write of what they are parts of, nor the other way round."""
    split = getattr(torch, split)

    def through_a_part(t):
        y = t.clone()
        p, q = split(y, 2)
        p.add_(1)
        q[0] = 7
        return y, p, q, y._version, p._version

    def of_the_whole(t):
        y = t.clone()
        p, q = split(y, 2)
        y.add_(1)
        return y, p, q

    def of_an_input(t):
        p, q = split(t, 2)
        p.add_(1)
        return p, q

    for f in (through_a_part, of_the_whole, of_an_input):
        compiled = fresh.compile(f)
        for _ in range(2):
            ours, eager = (torch.ones(4), torch.ones(4))
            told = [[(v.tolist(), v._version) if isinstance(v, torch.Tensor) else v for v in (*g(t), t)] for g, t in ((compiled, ours), (f, eager))]
            assert told[0] == told[1]


def with_items(x):
    y = x * 2
    y.a = x + 1
    y.__dict__.update({"b": x + 3, "c": "t"})
    del y.__dict__["c"]
    y.d = y.b * 2
    return y, y.a, y.b, y.__dict__["d"], hasattr(y, "c"), list(y.__dict__), getattr(y, "e", 5)


def test_the_dict_of_a_tensor_made_here(fresh):
    x = torch.randn(3)
    one_graph(fresh, with_items, x)
    got, expected = fresh.compile(with_items)(x), with_items(x)
    same(got[:4], expected[:4])
    assert got[4:] == expected[4:]
    assert list(got[0].__dict__) == list(expected[0].__dict__) == ["a", "b", "d"]
    assert got[0].a is got[1] and got[0].__dict__["b"] is got[2]


def test_the_dict_of_a_tensor_leaves_a_graph(fresh):
    """It is the tensor's own then, not a copy."""
    import os

    def f(x):
        y = x * 2
        d = y.__dict__
        d["a"] = x + 1
        os.urandom(1)  # ends the graph
        d["b"] = x + 2
        return y, y.b + y.a, d is y.__dict__

    x = torch.randn(3)
    assert fresh.explain(f)(x).graph_break_count == 1
    for _ in range(3):
        got, expected = fresh.compile(f)(x), f(x)
        same(got[:2], expected[:2])
        assert got[2] and list(got[0].__dict__) == ["a", "b"]


def test_the_dict_of_an_input(fresh):
    def f(x, t):
        d = x.__dict__
        d["q"] = t.sum()
        seen = list(d)
        d.update({"r": 1})
        return x.q * 2, seen, t.__dict__.get("r", 0)

    def fill(x, items):
        x = x.clone()
        x.__dict__.update(items)
        return x

    compiled = fresh.compile(f)
    one_graph(fresh, f, torch.ones(3), torch.ones(3))
    for items in ({}, {"w": 1}, {}, {"q": 3, "w": 2}):
        for one in (False, True):  # both names may be one object
            results = []
            for g in (compiled, f):
                x = fill(torch.ones(3), items)
                results.append((g(x, x if one else torch.full((3,), 2.0)), dict(x.__dict__)))
            (a, seen), (b, known) = results
            assert a[0] == b[0] and a[1:] == b[1:] and seen == known, (items, one, results)


@pytest.mark.parametrize("change", [
    lambda y: y.t_(), lambda y: y.squeeze_(), lambda y: y.unsqueeze_(0), lambda y: y.transpose_(0, 1), lambda y: y.swapaxes_(0, 1), lambda y: y.T.t_(),
    lambda y: (y.t_(), y.add_(1), y.unsqueeze_(0)),
])
@pytest.mark.parametrize("of", [lambda x: x, lambda x: x * 2, lambda x: (x * 2)[:1], lambda x: x[:1]])
def test_views_in_place_count_as_writes(fresh, change, of):
    def f(x):
        y = of(x)
        change(y)
        return y, y + 1

    def run(call):
        x = torch.ones(2, 3)
        y, other = call(x)
        seen = [t._version for t in (x, y, other)]
        y.mul_(2)
        return seen, [t._version for t in (x, y)], x.tolist(), y.tolist(), other.tolist()

    compiled = fresh.compile(f, fullgraph=True)
    for _ in range(3):
        assert run(compiled) == run(f)


def squares(x):
    return (x * x).pow(2).sum()


def penalty(x):
    t = torch.autograd.grad(squares(x), x, create_graph=True)[0]
    x.data = x.data * 2
    return t


def test_memory_that_comes_behind_a_derivative(fresh):
    """A derivative that is differentiated reads the leaf itself, also where a replay made it: with the memory that it has by then."""
    compiled, whole = fresh.compile(squares), fresh.compile(penalty)

    def outside(x):
        t = torch.autograd.grad(compiled(x), x, create_graph=True)[0]
        x.data = x.data * 2
        return t

    for f in (outside, whole):
        for size in (3, 3, 5):
            ours, theirs = (torch.full((size,), 1.5, requires_grad=True) for _ in range(2))
            f(ours).sum().backward()
            penalty(theirs).sum().backward()
            same(facts(ours.grad)[:-1], facts(theirs.grad)[:-1])
    one_graph(fresh, squares, torch.ones(3, requires_grad=True))
    told = fresh.explain(penalty)(torch.ones(3, requires_grad=True))
    assert (told.graph_count, told.graph_break_count) == (2, 1), str(told)


def test_memory_that_comes_twice(fresh):
    """A leaf that gets other memory, is read by what a result is made of, and gets other memory again: eager's derivative reads the last."""

    def twice(x):
        x.data = x.data * 2
        y = (x * x).sum()
        x.data = x.data * 2
        return (y,)

    def behind(x):
        p = torch.tanh(x * x).detach().clone().requires_grad_()
        p.data = p.data * 2
        t = torch.autograd.grad((p * p * x).pow(2).sum(), p, create_graph=True)[0]
        p.data = p.data * 2
        return t, p

    def unread(x):
        x.data = x.data * 2
        y = (x * x).sum().detach()
        x.data = x.data * 2
        return y, x.exp()

    compiled = {f: fresh.compile(f) for f in (twice, behind, unread)}
    for f, counts in ((twice, (2, 1)), (behind, (2, 2)), (unread, (1, 0))):
        for size in (3, 3, 5):
            ours, theirs = (torch.full((size,), 1.5, requires_grad=True) for _ in range(2))
            got, expected = compiled[f](ours), f(theirs)
            for results in (got, expected):
                sum(r.sum() for r in results).backward()
            same([facts(t)[0] for t in (*got, ours.grad)], [facts(t)[0] for t in (*expected, theirs.grad)])
        told = fresh.explain(f)(torch.ones(3, requires_grad=True))
        assert (told.graph_count, told.graph_break_count) == counts, str(told)


@pytest.mark.parametrize("wants", [False, True])
def test_leaves_of_factories(fresh, wants):
    """What a call makes with requires_grad=True is a leaf, and what is computed of it is none."""

    def asked(x):
        made = (
            torch.zeros(3, requires_grad=True),
            torch.randn(3, requires_grad=True),
            torch.tensor([1.0, 2.0], requires_grad=True),
            torch.ones_like(x, requires_grad=True),
            x.new_zeros(3, requires_grad=True),
        )
        with torch.no_grad():
            made[0].add_(1)
        if not all(t.is_leaf and t.grad_fn is None and t.grad is None for t in made):
            raise ValueError("can't optimize a non-leaf Tensor")
        return x + 1, made[0], [(t * 2).is_leaf or t.view(-1).is_leaf or (t * 2).grad_fn is None for t in made]

    def refused(x):
        t = torch.zeros(3, requires_grad=True)
        return t.add_(x)

    x = torch.ones(3, requires_grad=wants)
    got, expected = fresh.compile(asked)(x), asked(x)
    assert got[2] == expected[2] == [False] * 5
    assert [facts(t)[1:] for t in got[:2]] == [facts(t)[1:] for t in expected[:2]]
    same([t.detach() for t in got[:2]], [t.detach() for t in expected[:2]])
    one_graph(fresh, asked, x)
    for f in (refused, fresh.compile(refused)):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            f(x)


def outcome(f, args):
    ours = [a.detach().clone().requires_grad_() for a in args]
    try:
        y = f(*ours)
        if y.requires_grad:
            y.sum().backward()
    except RuntimeError as e:
        return next(w for w in ("inplace", "second time") if w in str(e))
    return [t.detach() for t in (y, *(a.grad for a in ours))]


def passes_another(x):  # the first pass frees what the second one does not read
    a = x.clone()
    b = torch.where(a > 0, a, x)
    (x * x).sum().backward()
    return torch.autograd.grad((b * a).sum(), x)[0]


def passes_it_again(x):
    a = x.clone()
    b = torch.where(a > 0, a, x)
    b.sum().backward()
    return torch.autograd.grad((b * a).sum(), x)[0]


def reads_no_input(x):
    y = x * 2
    torch.autograd.grad((x * x).sum(), x)
    with torch.no_grad():
        x.zero_()
    return y


def reads_an_input(x):
    y = x * x * 2
    (x * x).sum().backward()
    with torch.no_grad():
        x.zero_()
    return y


def takes_a_step(x, w):
    y = (w * 2).sum()
    (x * w * w).sum().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    return y


def differentiates_behind_a_write(x):
    y = x.clone()
    (x * x).sum().backward()
    with torch.no_grad():
        x.mul_(2)
    return torch.autograd.grad((x * y).sum(), x)[0]


@pytest.mark.parametrize(
    "f, raises, counts",
    [
        (passes_another, None, (2, 2)),
        (passes_it_again, "second time", None),
        (reads_no_input, None, (2, 1)),
        (reads_an_input, "inplace", (2, 1)),
        (takes_a_step, None, (2, 1)),
        (differentiates_behind_a_write, None, (2, 2)),
    ],
)
def test_passes_beside_one_in_the_program(fresh, f, raises, counts):
    """A pass is refused for what it reads itself, not for what another pass of the same graph has read and freed."""
    compiled = fresh.compile(f)
    for size in (3, 3, 5):
        args = [torch.full((size,), 1.5) for _ in range(f.__code__.co_argcount)]
        got, expected = outcome(compiled, args), outcome(f, args)
        assert (expected if isinstance(expected, str) else None) == raises
        assert got == raises if raises else same(got, expected) is None
    if counts:
        told = fresh.explain(f)(*(torch.ones(3, requires_grad=True) for _ in args))
        assert (told.graph_count, told.graph_break_count) == counts, str(told)


@pytest.mark.parametrize("make", [lambda: torch.ones(3).requires_grad_(), lambda: nn.Parameter(torch.ones(3))])
def test_a_leaf_once_more(fresh, make):
    """What lost its gradients in place, and is asked for some again, is a leaf outside, too."""

    def differentiated(x):
        t = make()
        t.detach_()
        t.requires_grad_(True)
        return torch.autograd.grad((t * x).sum(), t)[0]

    def kept(x):
        t = make()
        t.detach_()
        t.requires_grad_(True)
        t.retain_grad()
        (t * x).sum().backward()
        return t.grad

    def given(x):
        x.detach_()
        x.requires_grad = True
        return torch.autograd.grad((x * x).sum(), x)[0]

    for f, counts in ((differentiated, (3, 2)), (kept, (3, 3)), (given, (2, 1))):
        compiled = fresh.compile(f)
        for size in (3, 3):
            ours, theirs = (torch.full((size,), 1.5, requires_grad=True) for _ in range(2))
            same([facts(compiled(ours))[0]], [facts(f(theirs))[0]])
            assert (ours.requires_grad, ours.is_leaf, ours.grad is None) == (theirs.requires_grad, theirs.is_leaf, theirs.grad is None)
        told = fresh.explain(f)(torch.ones(3, requires_grad=True))
        assert (told.graph_count, told.graph_break_count) == counts, str(told)


def made_tensors(grad=True, kind=nn.Parameter):
    p, q = kind(torch.ones(3, 4)), torch.arange(12.0).reshape(3, 4)
    p.requires_grad_(grad)
    return lambda: (copy.deepcopy(p), q.clone())


def steps_down(p, q):
    p.data -= 0.5 * q
    return (p * q,)


def steps_twice(p, q):
    y = p * 2
    for _ in range(2):
        p.data *= 0.5
        p.data += q
    return y + p, p.data


def steps_by_detach(p, q):
    alias = p.detach()
    alias.add_(1)
    p.data = alias
    p.data = p.data.detach()
    return (p + q,)


def steps_by_parts(p, q):
    p.data[0] -= q[0]
    p.data[1:] *= 2
    p.data = p.data
    return (p * 3,)


def steps_behind_other_memory(p, q):
    p.data = q * 2
    p.data -= 1
    return (p * 3,)


@pytest.mark.parametrize("kind", [nn.Parameter, torch.clone])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("f", [steps_down, steps_twice, steps_by_detach, steps_by_parts])
def test_the_memory_that_it_has(fresh, f, grad, kind):
    both(fresh, f, made_tensors(grad, kind))


def test_the_memory_that_it_got(fresh):
    p, q = made_tensors(False)()
    compiled = fresh.compile(steps_behind_other_memory)
    for _ in range(3):
        (got,), (expected,) = compiled(p, q), steps_behind_other_memory(torch.ones(3, 4), q)
        assert torch.equal(got, expected) and torch.equal(p, q * 2 - 1)


def test_an_update_of_all_parameters(fresh):
    """As tutorials write it, the gradients made in front of it."""

    def update(net, lr):
        for p in net.parameters():
            p.data -= lr * p.grad.data

    runs = []
    for function in (update, fresh.compile(update)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        memory = [p.data_ptr() for p in net.parameters()]
        for k in range(5):
            net.zero_grad()
            net(torch.randn(2, 3)).sum().backward()
            function(net, 0.1 / (k + 1))
        assert memory == [p.data_ptr() for p in net.parameters()]
        runs.append([p.detach() for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs))
    told = fresh.cache_info(function)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told


def test_only_a_part_of_it(fresh):
    """A view of some of the memory is other memory to the tensor."""

    def f(p, q):
        p.data = p.data[:2]
        return (p + q[: p.shape[0]],)

    compiled = fresh.compile(f)
    p, q = made_tensors(False)()
    for n in (2, 2, 2):
        assert compiled(p, q)[0].shape == (n, 4) and p.shape == (n, 4)


def restored(ps, state, u):
    out = []
    for p in ps:
        p.data = state[p]["old"]
        out.append(p * u)
        state[p]["n"] = state[p].get("n", 0) + (p in state)
        state[p]["old"] = p.data.clone()
    return out


def seen_otherwise(ps, state, u):
    for p in ps:
        p.unsqueeze_(0)
        state[p]["n"] = p * u
        p.squeeze_(0)
    return [state[p]["n"] + 1 for p in ps]


@pytest.mark.parametrize("f, grad", [(restored, True), (restored, False), (seen_otherwise, False)])
def test_it_is_the_same_key_of_a_dict(fresh, f, grad):
    """As optimizers keep their state: what has other memory by now, or is viewed in place, is still that parameter."""
    runs = []
    for function in (f, fresh.compile(f)):
        torch.manual_seed(0)
        ps = [nn.Parameter(torch.randn(3), requires_grad=grad) for _ in range(3)]
        state = {p: {"old": torch.randn(3)} for p in ps}
        results = [r for k in range(4) for r in function(ps, state, torch.full((3,), k + 1.0))]
        runs.append([*results, *ps, *(state[p]["n"] for p in ps)])
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b) and a.shape == b.shape if torch.is_tensor(a) else a == b
    told = fresh.cache_info(function)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told


def _kept(net, x):
    ids = list(map(id, net[0].parameters()))
    return sum(p.sum() for p in net.parameters() if id(p) not in ids) * x, len({id(p) for p in net.parameters()})


def _named(net, x):
    seen = {}
    for name, p in net.named_parameters(remove_duplicate=False):
        seen.setdefault(id(p), []).append(name)
    return list(seen.values()), x * 2


def _given(net, x):
    before = id(net[0].weight)
    net[0].weight.data = net[0].weight.data * 2
    return before == id(net[0].weight), {id(net[1].bias)} & set(map(id, net.parameters())) == {id(net[1].bias)}, net(x)


@pytest.mark.parametrize("f", [_kept, _named, _given])
def test_ids_of_parameters(f, fresh):
    """Whose ids are asked is guarded: a parameter that another takes the place of is another version."""
    nets = []
    for at in range(3):
        torch.manual_seed(at)
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        if at == 2:
            net[1].weight = net[0].weight
        nets.append(net)
    compiled = fresh.compile(f)
    x = torch.randn(2, 3)
    with torch.no_grad():
        for at in (0, 0, 1, 2, 0):
            theirs = copy.deepcopy(nets[at])
            for got, want in zip(compiled(nets[at], x), f(theirs, x)):
                assert torch.allclose(got, want) if isinstance(want, torch.Tensor) else got == want
        nets[0][1].bias = torch.nn.Parameter(torch.ones(3))
        theirs = copy.deepcopy(nets[0])
        for got, want in zip(compiled(nets[0], x), f(theirs, x)):
            assert torch.allclose(got, want) if isinstance(want, torch.Tensor) else got == want
    assert fresh.cache_info(compiled)["breaks"] == 0


def test_ids_leave_the_graph_as_they_are(fresh):
    net = torch.nn.Linear(2, 2)
    compiled = fresh.compile(lambda x: ([id(p) for p in net.parameters()], x * 2))
    for _ in range(3):
        assert compiled(torch.ones(2))[0] == [id(net.weight), id(net.bias)]
    assert fresh.cache_info(compiled)["breaks"] == 0
    compiled = fresh.compile(lambda x: (id(torch.nn.Parameter(x)) in [id(p) for p in net.parameters()], x * 2))
    assert compiled(torch.ones(2))[0] is False and fresh.cache_info(compiled)["breaks"] > 0  # of what is made here nothing is known


@pytest.mark.parametrize("stop", ["w.requires_grad_(False)", "w.requires_grad = False", "w.detach_()"])
@pytest.mark.parametrize("given", ["w.data = w.data * 0.5", "w.data = torch.ones_like(x) * x"])
def test_data_of_what_wants_no_gradient_any_more(fresh, stop, given):
    space = {"torch": torch}
    exec(f"def f(w, x):\n    z = w * 2\n    {stop}\n    {given}\n    return z, w * x", space)
    for _ in range(2):
        both(fresh, space["f"], lambda: (torch.ones(2, 2, requires_grad=True), torch.full((2, 2), 3.0)), rounds=2)


@pytest.mark.parametrize("views", ["a.unbind(0)[1]", "a.split(1)[1]", "a.chunk(2)[0].view(-1)"])
@pytest.mark.parametrize("change", ["v.t_()", "v.unsqueeze_(0)", "v.squeeze_()"])
def test_one_of_several_views_changes_in_place(fresh, views, change):
    space = {"torch": torch}
    exec(f"def f(x, w):\n    a = x * w\n    v = {views}\n    {change}\n    return v, a", space)

    def seen(f, gradients):
        w = torch.ones(2, 2, requires_grad=gradients)
        try:
            return [(t.tolist(), t.stride()) for t in f(torch.full((2, 2), 2.0), w)]
        except RuntimeError as error:
            return str(error)

    f = fresh.compile(space["f"])
    for gradients in (True, False, True):
        assert seen(f, gradients) == seen(space["f"], gradients)
    assert "being modified inplace" in seen(f, True)
    assert fresh.cache_info(f)["outcomes"]["run"].get("graph", 0) >= 1
