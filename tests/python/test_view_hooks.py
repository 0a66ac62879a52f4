"""Hooks of results that are views, of which others are made; and of what the inputs were made of, where a pass has nothing for it."""

import gc
import weakref

import pytest

from framejit._numerics import check as numbers_agree

torch = pytest.importorskip("torch")
F = torch.nn.functional


def parts(a, *more):
    return (a, a * 2, *more)


VIEWS = {
    "t": lambda x, w: parts(x.t()),
    "slice": lambda x, w: parts(x[1:], x * 3),
    "all of it": lambda x, w: parts(x[:], x * 3),
    "same shape": lambda x, w: parts(x.view(3, 4), x * 3),
    "alias": lambda x, w: parts(x.view_as(x), x * 2),
    "unbind": lambda x, w: (lambda a, b, c: (a, b, c, a * b, b * 2))(*x.unbind()),
    "split": lambda x, w: (lambda a, b: (a, b, a * 2, b.exp()))(*x.split(2, 1)),
    "expand": lambda x, w: parts(x.expand(2, 3, 4)),
    "diagonal": lambda x, w: parts(x.diagonal()),
    "narrow": lambda x, w: (lambda a: (a, a @ w.t()))(x.narrow(0, 0, 2)),
    "reshape": lambda x, w: (lambda a: (a, a.cumsum(0)))(x.reshape(-1)),
    "of an inner value": lambda x, w: parts((x * w).t()),
    "beside its base": lambda x, w: (lambda h: parts(h.t(), h, h * 3))(x * w),
    "views of views": lambda x, w: (lambda a, b: (a, b, b * 2, a * 3, (a[0] + b).exp()))(x.t(), x.t()[0]),
    "view of a view": lambda x, w: (lambda a: (lambda b: (a, b, b * 2, a * 3, (a[0] + b).exp()))(a[0]))((x * w).t()),
    "two levels": lambda x, w: (lambda a: (lambda h: (a, h, *parts(h.reshape(4, 3, 1)), h + 1))(a.exp()))(x.t()),
    "loss": lambda x, w: (lambda v: (v, F.mse_loss(v, torch.zeros_like(v))))(torch.relu(x @ w.t() @ w).view(-1)),
    "of both": lambda x, w: (lambda a, b: (a, b, a @ b))(x.t(), w[0:3]),
    "base written before": lambda x, w: parts((x * w).mul_(2).t()),
    "twice the same": lambda x, w: (lambda a, b: (a, b, a * 2, b * 3))(x[:], x[:]),
}  # fmt: skip


def written(x, w):
    h = x * w
    v = h[0]
    v.mul_(2)
    return v, v * 3, h * 2


def base_written(x, w):
    h = x * w
    v = h[0]
    before = v * 5
    h.mul_(2)
    return v, before, v * 3


VIEWS["written"], VIEWS["base written behind"] = written, base_written


def total(results):
    return sum((t * (i + 1)).sum() for i, t in enumerate(results))


def hook(results, seen, which, scale=2):
    def call(i, g):  # of one of several views, which share a node, it may be None
        seen.extend((i, None if g is None else g.detach().clone()))
        return None if g is None else g * (i + scale)

    for i in which:
        results[i].register_hook(lambda g, i=i: call(i, g))


def first(r, x, w, seen):
    hook(r, seen, [0])
    total(r[1:]).backward()


def each(r, x, w, seen):
    hook(r, seen, range(len(r)))
    total(r).backward()


def each_from_last(r, x, w, seen):
    hook(r, seen, range(len(r)))
    r[-1].sum().backward()


def gone(r, x, w, seen, create=False):
    hook(r, seen, [0])
    last = r[-1]
    r.clear()
    last.sum().backward(create_graph=create)


def kept(r, x, w, seen):
    for t in r:
        t.retain_grad()
    total(r[1:]).backward()
    seen.extend(t.grad for t in r)


def looked_for(r, x, w, seen):
    for t in r[:-1]:
        seen.append(torch.autograd.grad(r[-1].sum(), t, retain_graph=True, allow_unused=True)[0])
    hook(r, seen, range(len(r)))
    seen.extend(torch.autograd.grad(total(r), [x, w], allow_unused=True))


def all_looked_for(r, x, w, seen):
    seen.extend(torch.autograd.grad(total([t * t for t in r]), [*r, x, w], allow_unused=True))


def created(r, x, w, seen):
    hook(r, seen, range(len(r)))
    total([t * t for t in r]).backward(create_graph=True)


def differentiated(r, x, w, seen):
    r[0].register_hook(lambda g: g * 3)
    g = torch.autograd.grad(total([t * t * t for t in r]), x, create_graph=True)[0]
    seen.append(g.detach().clone())
    (g * g).sum().backward()


def differentiated_by_it(r, x, w, seen):
    g = torch.autograd.grad((r[-1] ** 3).sum(), r[0], create_graph=True, allow_unused=True)[0]
    seen.append(None if g is None else g.detach().clone())
    if g is not None and g.requires_grad:
        (g * g).sum().backward()


def late(r, x, w, seen):
    total(r).backward(retain_graph=True)
    hook(r, seen, [0])
    total(r).backward()


def removed(r, x, w, seen):
    handle = r[0].register_hook(lambda g: g * 7)
    hook(r, seen, range(len(r)))
    handle.remove()
    total(r).backward()


def outside(r, x, w, seen):
    hook(r, seen, [0])
    (r[0] * 7).sum().backward(retain_graph=True)
    (r[-1].sum() + (r[0] * r[0]).sum()).backward()


def written_later(r, x, w, seen):
    hook(r, seen, [0])
    try:
        r[0].mul_(2)
    except RuntimeError:
        seen.append("refused")
    hook(r, seen, [0], scale=5)
    try:
        total(r).backward()
    except RuntimeError as error:
        seen.append(str(error)[:30])


def told_together(r, x, w, seen):
    torch.autograd.graph.register_multi_grad_hook(r, lambda gs: seen.extend(None if g is None else g.clone() for g in gs))
    total(r).backward()


def told_of_one(r, x, w, seen):
    torch.autograd.graph.register_multi_grad_hook(r, lambda g: seen.append(g.clone()), mode="any")
    total(r).backward()


def facts(r, x, w, seen):
    for t in r:
        seen.extend((t._version, t._is_view(), t._base is x, t._base is None, t.stride(), t.storage_offset()))
        seen.append(type(t.grad_fn).__name__ if t._is_view() else None)
    with pytest.raises(RuntimeError, match="non-leaf"):
        r[0].register_post_accumulate_grad_hook(lambda t: None)
    total(r).backward()


USES = [first, each, each_from_last, gone, kept, looked_for, all_looked_for, created, differentiated, differentiated_by_it, late, removed, outside, written_later, told_together, told_of_one, facts]


def check(got, expected, exact=None, moved=None):
    """exact: what eager has in float64; moved: what it has where operands are others by an eps."""
    assert len(got) == len(expected) == len(exact or expected) == len(moved or expected)
    for mine, theirs, reference, other in zip(got, expected, exact or [None] * len(got), moved or expected):
        if torch.is_tensor(mine) and torch.is_tensor(theirs):
            assert mine.shape == theirs.shape
            numbers_agree(mine, theirs, reference, noise=[(theirs, other)])
        else:
            assert mine is theirs or (not torch.is_tensor(mine) and mine == theirs)


@pytest.mark.filterwarnings("ignore:Using backward", "ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "inner"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_which_others_are_made(fresh, name, leaf):
    """What hooks of a view are given, and in which order, is what eager gives them, whatever is done with the results."""
    def outcome(f, use, seed, dtype=torch.float32, factor=1):
        g = torch.Generator().manual_seed(seed)
        x, w = (torch.randn(3, 4, generator=g).to(dtype).mul_(factor).requires_grad_() for _ in "xw")
        given = x if leaf else x * 1.5
        results, seen = [*f(given, w)], []
        use(results, given, w, seen)
        return [*seen, x.grad, w.grad]

    compiled = fresh.compile(VIEWS[name])
    for use in [*USES, lambda *args: gone(*args, create=True)]:
        for seed in range(2):
            eager = [outcome(VIEWS[name], use, seed, *how) for how in ((), (torch.float64,), (torch.float32, 1 + torch.finfo().eps))]
            check(outcome(compiled, use, seed), *eager)
    assert fresh.cache_info(compiled)["breaks"] == 0


def test_views_without_a_written_base_stay_compiled(fresh):
    for name in VIEWS:
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        compiled = fresh.compile(VIEWS[name])
        compiled(x, w)
        notes = fresh.cache_info(compiled)["notes"]
        assert bool(notes) == (name in ("written", "base written behind")), (name, notes)


def test_views_with_hooks_do_not_keep_their_graph(fresh):
    compiled = fresh.compile(VIEWS["of an inner value"])
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    alive = []
    for _ in range(3):
        results = compiled(x, w)
        results[0].register_hook(lambda g: g * 2)
        alive += [weakref.ref(t) for t in results]
        results[1].sum().backward()
        del results
    gc.collect()
    assert all(r() is None for r in alive)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2 + y

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


APART = {
    "apart": lambda a, b: (a * 2, b * 3),
    "one of both": lambda a, b: (a * 2, a * b),
    "one unused": lambda a, b: (a * 2, a.exp()),
    "compared": lambda a, b: (a * (b > 0), a),
    "inner": lambda a, b: (lambda h: (h, h * b, h.exp()))(a.sin()),
    "view": lambda a, b: (lambda v: (v, v * 2, v * b[:2]))(a[:2]),
}
LOSSES = {
    "first": lambda r: r[0].sum(),
    "last": lambda r: r[-1].sum(),
    "all": lambda r: sum((t * t).sum() for t in r),
    "one after the other": lambda r: [(r[0] * 2).sum(), (r[-1] * 3).sum()],
}


def plain(t):
    return t * 2


def seen_twice(t):
    p = t.exp()
    return p * 3


PRODUCERS = {"built in": plain, "chain": seen_twice, "custom": Square.apply}


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("name", APART)
def test_what_gets_nothing_is_not_reached(fresh, name, producer):
    """A pass that has nothing for an input does not come by what that was made of: its hooks are not called, its leaves get no gradient."""
    def outcome(f, loss, create=False):
        x, y = (torch.linspace(-1, 2, 3).requires_grad_() for _ in "xy")
        seen = []
        for n, leaf in enumerate((x, y)):
            leaf.register_hook(lambda g, n=n: seen.extend((n, None if g is None else g.detach().clone())))
            leaf.register_post_accumulate_grad_hook(lambda t, n=n: seen.extend((n, t.grad.detach().clone())))
        a, b = PRODUCERS[producer](x), PRODUCERS[producer](y)
        for n, t in enumerate((a, b)):
            t.register_hook(lambda g, n=n: seen.extend((n + 2, None if g is None else g.detach().clone())))
            t.grad_fn.register_prehook(lambda gs, n=n: seen.extend((n + 4, None if gs[0] is None else gs[0].detach().clone())))
        losses = LOSSES[loss](f(a, b))
        for one in losses if isinstance(losses, list) else [losses]:
            one.backward(retain_graph=True, create_graph=create)
        seen.extend(torch.autograd.grad(LOSSES["all"](f(a, b)), [b, a], allow_unused=True))
        seen.extend(torch.autograd.grad(LOSSES["last"](f(a, b)), [b], allow_unused=True))
        return sorted((str(t), t) for t in seen if not torch.is_tensor(t)), [t for t in seen if torch.is_tensor(t)], x.grad, y.grad

    compiled = fresh.compile(APART[name])
    for loss in LOSSES:
        for create in (False, False, True):
            got, expected = outcome(compiled, loss, create), outcome(APART[name], loss, create)
            assert got[0] == expected[0]
            for mine, theirs in ((got[1], expected[1]), (got[2:], expected[2:])):
                order = lambda all: sorted(all, key=lambda t: (t is None, [] if t is None else t.tolist()))  # noqa: E731
                if mine is got[1]:
                    mine, theirs = order(mine), order(theirs)
                check(mine, theirs)
    assert fresh.cache_info(compiled)["breaks"] == 0 and not fresh.cache_info(compiled)["notes"]


@pytest.mark.parametrize("loss", ["first", "all"])
def test_hooks_of_leaves_behind_accumulation(fresh, loss):
    """They are called where something was added up, also in a later pass that has nothing for the leaf."""
    def outcome(f):
        x, y = (torch.linspace(-1, 2, 3).requires_grad_() for _ in "xy")
        seen = []
        y.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.clone()))
        for which in (loss, "last", loss, "last"):
            LOSSES[which](f(x, y)).backward()
        return [*seen, x.grad, y.grad]

    compiled = fresh.compile(APART["apart"])
    for _ in range(2):
        check(outcome(compiled), outcome(APART["apart"]))


@pytest.mark.filterwarnings("ignore:Using backward")
def test_hooks_behind_accumulation_of_gradients_that_are_replaced(fresh):
    """A pass that is differentiated puts a new tensor in the gradient's place, which may lie where the old one lay."""
    def outcome(f):
        x, y = (torch.linspace(-1, 2, 3).requires_grad_() for _ in "xy")
        seen = []
        y.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.detach().clone()))
        (y * 5).sum().backward(create_graph=True)
        for k in range(3):
            (f(x, y)[0].sum() + (y * (k + 2)).sum()).backward(create_graph=True)
        return [*seen, x.grad.detach(), y.grad.detach()]

    check(outcome(fresh.compile(APART["apart"])), outcome(APART["apart"]))


def three(a, b, c):
    return a * 2 * c, a * b, b.exp() + c


def test_passes_inside_of_a_pass(fresh):
    """A leaf's hook makes many passes that look for some gradients only: the pass around them keeps what it has computed."""
    def outcome(f):
        x, y, c = (torch.linspace(1, 2, 3).add(i).requires_grad_() for i in range(3))
        a, b, seen = x * 1.5, y * 2.5, []

        def call(g):
            with torch.enable_grad():
                for _ in range(70 if not seen else 0):
                    seen.append(torch.autograd.grad(results[1].sum(), b, retain_graph=True)[0])

        results = f(a, b, c)
        c.register_hook(call)
        total(results).backward(retain_graph=True)
        return [*seen, x.grad, y.grad, c.grad]

    compiled = fresh.compile(three)
    for _ in range(2):
        check(outcome(compiled), outcome(three))
    assert fresh.cache_info(compiled)["breaks"] == 0 and not fresh.cache_info(compiled)["notes"]


def test_what_is_kept_for_a_pass_goes_with_it(fresh):
    x, y, c = (torch.linspace(1, 2, 3).requires_grad_() for _ in range(3))
    a, b = x * 1.5, y * 2.5
    results = fresh.compile(three)(a, b, c)
    counts = []
    for _ in range(3):
        for _ in range(20):
            torch.autograd.grad(total(results), b, retain_graph=True)
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert counts[2] - counts[1] < 10


@pytest.mark.parametrize("hooked", ["nothing", "view", "both"])
@pytest.mark.parametrize("asked", ["input", "view", "both"])
def test_gradients_of_a_batch(fresh, asked, hooked):
    """A batched gradient is none that compiled code can read: the way from results to those that they are made of goes by the framework."""

    def f(x):
        y = x.sin()
        v = y.view(2, 2)
        z = (v * v).exp()
        return v, z, z * y.sum()

    def run(g):
        x, log = torch.arange(4.0).requires_grad_(), []
        v, z, u = g(x)
        for t in {"nothing": (), "view": (v,), "both": (v, z)}[hooked]:
            t.register_hook(lambda g: g * 2)
        wanted = {"input": [x], "view": [v], "both": [v, x]}[asked]
        batch = torch.eye(4).view(4, 2, 2)
        for outs in ([z], [u, z], [v, u]):
            grads = torch.autograd.grad(outs, wanted, [batch] * len(outs), is_grads_batched=True, retain_graph=True)
            log += [(t.detach().numpy().round(3).tolist(), t.shape) for t in grads]
        return log

    compiled = fresh.compile(f, fullgraph=True)
    for _ in range(3):
        assert run(compiled) == run(f)


@pytest.mark.parametrize("registers", ["register_prehook", "register_hook"])
def test_hooks_of_the_node_of_a_view(fresh, registers):
    def f(x):
        y = x * 2
        a = y.view(-1)
        return a, a * 3, a.sin()

    def run(g, removed=False):
        x, log = torch.ones(2, 2, requires_grad=True), []
        a, z, u = g(x)
        handle = getattr(a.grad_fn, registers)(lambda *given: log.append([[t.tolist() for t in one] for one in given]))
        if removed:
            handle.remove()
        (z.sum() + u.sum()).backward()
        return log, x.grad

    compiled = fresh.compile(f, fullgraph=True)
    for removed in (False, True, False):
        (log, grad), (expected, wanted) = run(compiled, removed), run(f, removed)
        assert log == expected and bool(log) != removed
        torch.testing.assert_close(grad, wanted)


@pytest.mark.parametrize("mode", ["all", "any"])
@pytest.mark.parametrize("order", ["a", "b", "d", "la", "ab", "aa", "lal", "dl"])
def test_a_hook_of_many_results_of_which_some_get_nothing(fresh, order, mode):
    """One result hangs on a node of its own, which does not run where only those that it is made of are asked."""

    def f(x):
        a = x * 2
        b = x * 3
        d = a * b
        return a, b, d, d.sum()

    def run(g):
        x, log = torch.ones(2, requires_grad=True), []
        a, b, d, loss = g(x)
        given = lambda gs: log.append([t if t is None else t.tolist() for t in (gs if mode == "all" else [gs])])  # noqa: E731
        torch.autograd.graph.register_multi_grad_hook((a, b, d), given, mode=mode)
        for name in order:
            {"l": loss, "a": a.sum(), "b": b.sum(), "d": d.sum()}[name].backward(retain_graph=True)
            log.append(name)
        return log, x.grad.tolist()

    compiled = fresh.compile(f, fullgraph=True)
    for _ in range(3):
        assert run(compiled) == run(f)


def test_what_a_result_keeps_in_a_pass_that_is_differentiated_is_its_own(fresh):
    """The gradient of a sum is one number with strides of 0, and that of a view is the one that arrives."""

    def f(x):
        y = x * 2
        y.retain_grad()
        return y, y.sum(), y.view(-1)

    compiled, told = fresh.compile(f), []
    for g in (f, compiled, compiled):
        x = torch.ones(2, 3, requires_grad=True)
        y, total, flat = g(x)
        total.backward(retain_graph=True, create_graph=True)
        told.append([y.grad.stride(), y.grad.tolist()])
        y.grad, given = None, torch.ones(6, requires_grad=True)
        flat.backward(given, create_graph=True)
        with torch.no_grad():
            given.add_(1)
        told[-1] += [y.grad.stride(), y.grad.tolist(), y.grad.requires_grad]
    assert told[0] == told[1] == told[2]
    assert compiled.cache_info()["segments"] and compiled.cache_info()["breaks"] == 0
