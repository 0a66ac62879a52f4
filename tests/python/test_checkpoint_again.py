"""Functions of torch.utils.checkpoint that would do something else the second time: a pass finds what eager's finds."""

import functools

import pytest

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, set_checkpoint_early_stop  # noqa: E402

F, nn = torch.nn.functional, torch.nn


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


class Case:
    """A function, what is done before each call and between call and pass, and how the pass is made."""

    def __init__(self, f, params=(), before=None, between=None, back=None, shape=(3, 4)):
        self.f, self.params, self.shape = f, list(params), shape
        self.before, self.between = before or (lambda i: None), between or (lambda i: None)
        self.back = back or (lambda y, x: y.sum().backward())

    def run(self, f, n):
        seen = []
        for i in range(n):
            torch.manual_seed(i)
            self.before(i)
            x = torch.randn(*self.shape, requires_grad=True)
            for p in self.params:
                p.grad = None
            try:
                y = f(x)
                self.between(i)
                self.back(y, x)
                results = y if isinstance(y, tuple) else (y,)
                seen += [*(t.detach().clone() for t in results), x.grad, *(p.grad for p in self.params)]
            except RuntimeError as error:
                seen.append(type(error).__name__)
            seen.append(torch.rand(1))
        return seen


def number(s, f, params=(), **how):
    """A number in `s` that is another by the pass."""
    return Case(f, params, before=lambda i: s.update(v=2.0 + i), between=lambda i: s.update(v=7.0 + i), **how)


def put(tensor, then, now):
    return dict(before=lambda i: tensor.copy_(torch.tensor(then)), between=lambda i: tensor.copy_(torch.tensor(now)))


def write(params, factor=1.1):
    with torch.no_grad():
        for p in params:
            p.mul_(factor)


def branch_on_a_written_tensor(ck):
    flag = torch.tensor(1.0)
    return Case(lambda x: ck(lambda t: (torch.tanh(t) if flag > 0 else torch.exp(t)) * 2, x), **put(flag, 1.0, -1.0))


def branch_on_data(ck):
    flag = torch.tensor(1.0)
    f = lambda x: ck(lambda t: (torch.tanh(t) if flag > 0 else torch.exp(t)) * 2, x)  # noqa: E731
    return Case(f, before=lambda i: flag.data.fill_(1.0), between=lambda i: flag.data.fill_(-1.0))


def branch_on_other_memory(ck):
    flag = torch.tensor(1.0)
    f = lambda x: ck(lambda t: (torch.tanh(t) if flag > 0 else torch.exp(t)) * 2, x)  # noqa: E731
    return Case(f, before=lambda i: setattr(flag, "data", torch.tensor(1.0)), between=lambda i: setattr(flag, "data", torch.tensor(-1.0)))


def branch_on_a_buffer(ck):
    class Warm(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.tensor(0))
            self.linear = nn.Linear(4, 4)

        def forward(self, t):
            return torch.tanh(self.linear(t)) if self.n < 1 else torch.sigmoid(self.linear(t))

    m = Warm()
    return Case(lambda x: ck(m, x), m.parameters(), before=lambda i: m.n.fill_(0), between=lambda i: m.n.add_(1))


def branch_on_a_written_weight(ck):
    linear = nn.Linear(4, 4)

    def part(t):
        h = linear(t)
        return torch.tanh(h) if linear.weight.sum() < 50 else torch.exp(h)

    def fill(by):
        with torch.no_grad():
            linear.weight.fill_(by)

    return Case(lambda x: ck(part, x), linear.parameters(), before=lambda i: fill(0.1), between=lambda i: fill(10.0))


def branch_on_an_array(ck):
    a = pytest.importorskip("numpy").array([1.0, 2.0])
    f = lambda x: ck(lambda t: (torch.tanh(t) if a.sum() > 0 else torch.exp(t)) * 2, x)  # noqa: E731
    return Case(f, before=lambda i: a.fill(1.0), between=lambda i: a.fill(-1.0))


def branch_on_a_result(ck):
    w = torch.ones(4)

    def f(x):
        flag = w.sum()
        return ck(lambda t: (torch.tanh(t) if flag > 0 else torch.exp(t)) * 2, x), flag

    def back(y, x):
        y[1].fill_(-1.0)
        y[0].sum().backward()

    return Case(f, back=back)


def branch_on_an_argument(ck):
    return Case(lambda x: ck(lambda t: torch.tanh(t) if t.abs().sum() > 0 else torch.exp(t), x))


def integer_of_a_written_tensor(ck):
    k = torch.tensor(2)
    return Case(lambda x: ck(lambda t: torch.tanh(t * k.item()), x), **put(k, 2, 5))


def number_of_a_written_tensor(ck):
    k = torch.tensor(2.0)
    return Case(lambda x: ck(lambda t: torch.tanh(t * k.item()) * k.item(), x), **put(k, 2.0, 5.0))


def largest_of_what_is_written(ck):
    w = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def part(t):
        values, _ = (t * w).topk(2, -1)
        return torch.tanh(values) * values

    return Case(lambda x: ck(part, x), **put(w, [1.0, 2.0, 3.0, 4.0], [-4.0, 3.0, -2.0, 1.0]))


def place_in_what_is_written(ck):
    w = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def part(t):
        i = w.argmax()
        return torch.tanh(t[:, i] * t[:, i])

    return Case(lambda x: ck(part, x), **put(w, [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]))


def mask_of_what_is_written(ck):
    w = torch.tensor([1.0, 0.0, 1.0, 1.0])
    return Case(lambda x: ck(lambda t: torch.where(w > 0, torch.tanh(t), t * t).max(-1).values, x), **put(w, [1.0, 0, 1, 1], [0.0, 1, 0, 1]))


def asks_the_mode(ck):
    return Case(lambda x: ck(lambda t: t * (2.0 if torch.is_grad_enabled() else 3.0), x))


def asks_what_is_made(ck):
    def part(t):
        h = t * 2
        return h * (3.0 if h.requires_grad else 5.0) + (0 if h.is_leaf else 1) + (2 if h.grad_fn is None else 4)

    return Case(lambda x: ck(part, x))


def switches_gradients_off(ck):
    linear = nn.Linear(4, 4)

    def part(t):
        with torch.no_grad():
            m = linear(t).mean()
        return torch.tanh(linear(t)) * m

    return Case(lambda x: ck(part, x), linear.parameters())


def forward_saves_a_number_that_changes(ck):
    s = {}

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.k = s["v"]
            ctx.save_for_backward(t * s["v"])
            return t * t * s["v"]

        @staticmethod
        def backward(ctx, g):
            (t,) = ctx.saved_tensors
            return g * 2 * t * ctx.k

    return number(s, lambda x: ck(lambda t: Scaled.apply(t) * s["v"], x))


def forward_reads_a_written_tensor(ck):
    k = torch.tensor(2.0)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t * k)
            return t * t * k

        @staticmethod
        def backward(ctx, g):
            (t,) = ctx.saved_tensors
            return g * 2 * t

    return Case(lambda x: ck(lambda t: Scaled.apply(t).sin(), x), **put(k, 2.0, 5.0))


def one_in_another(ck):
    s, linear = {}, nn.Linear(4, 4)
    inner = lambda t: torch.tanh(linear(t)) * s["v"]  # noqa: E731
    return number(s, lambda x: ck(lambda t: ck(inner, t.sin()) * s["v"], x), linear.parameters())


def the_other_form_inside(ck):
    s, linear, other = {}, nn.Linear(4, 4), not ck.keywords["use_reentrant"]
    inner = lambda t: torch.tanh(linear(t)) * s["v"]  # noqa: E731
    return number(s, lambda x: ck(lambda t: checkpoint(inner, t.sin(), use_reentrant=other) * s["v"], x), linear.parameters())


def layers(ck):
    s, all = {}, nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def f(x):
        for layer in all:
            x = ck(lambda t, layer=layer: torch.tanh(layer(t)) * s["v"], x)
        return x.square()

    return number(s, f, all.parameters())


def written_weights(ck):
    linear = nn.Linear(4, 4)
    return Case(lambda x: ck(lambda t: torch.tanh(linear(t)), x), linear.parameters(), between=lambda i: write(linear.parameters()))


def written_weights_and_a_number(ck):
    s, linear = {}, nn.Linear(4, 4)

    def between(i):
        s["v"] = 7.0 + i
        write(linear.parameters())

    f = lambda x: ck(lambda t: torch.tanh(linear(t)) * s["v"], x).sum()  # noqa: E731
    return Case(f, linear.parameters(), before=lambda i: s.update(v=2.0 + i), between=between)


def dropout(ck):
    s, linear = {}, nn.Linear(4, 4)
    return number(s, lambda x: ck(lambda t: F.dropout(torch.tanh(linear(t)) * s["v"], 0.5) * t, x), linear.parameters())


def dropout_that_changes(ck):
    s = {}
    return Case(lambda x: ck(lambda t: F.dropout(torch.tanh(t), s["v"]) * t, x), before=lambda i: s.update(v=0.5), between=lambda i: s.update(v=0.2))


def statistics(ck):
    m = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))
    return Case(lambda x: ck(m, x).square(), m.parameters(), back=lambda y, x: (y.sum().backward(), x.grad.add_(m[1].running_mean.sum())))


def shared_weights(ck):
    s, linear = {}, nn.Linear(4, 4)
    return number(s, lambda x: ck(lambda t: torch.tanh(linear(t)) * s["v"], linear(x)) + linear(x), linear.parameters())


def two_side_by_side(ck):
    s, a, b = {}, nn.Linear(4, 4), nn.Linear(4, 4)
    f = lambda x: ck(lambda t: torch.tanh(a(t)) * s["v"], x) * ck(lambda t: torch.sin(b(t)) * s["v"], x)  # noqa: E731
    return number(s, f, [*a.parameters(), *b.parameters()])


def two_results_of_which_one_is_detached(ck):
    s = {}

    def f(x):
        a, b = ck(lambda t: (torch.tanh(t) * s["v"], t.sin() * t), x)
        return a * 2 + b.detach()

    return number(s, f)


def two_passes(ck):
    s, linear = {}, nn.Linear(4, 4)

    def back(y, x):
        y.sum().backward(retain_graph=True)
        s["v"] = 9.0
        y.sum().backward()

    f = lambda x: ck(lambda t: torch.tanh(linear(t)) * s["v"], x).square()  # noqa: E731
    return Case(f, linear.parameters(), before=lambda i: s.update(v=2.0 + i), back=back)


def a_second_pass_is_refused(ck):
    def back(y, x):
        y.sum().backward()
        y.sum().backward()

    return Case(lambda x: ck(torch.tanh, x).square(), back=back)


def one_result_after_the_other(ck):
    s, linear = {}, nn.Linear(4, 4)

    def back(y, x):
        s["v"] = 9.0
        y[1].sum().backward()
        y[0].sum().backward()

    f = lambda x: (ck(lambda t: torch.tanh(linear(t)) * s["v"], x), (x * 3).sin())  # noqa: E731
    return Case(f, linear.parameters(), before=lambda i: s.update(v=2.0), back=back)


def hooks_of_its_result(ck):
    s = {}

    def back(y, x):
        s["v"] = 9.0
        y[1].register_hook(lambda g: g * 2)
        y[0].sum().backward()

    def f(x):
        h = ck(lambda t: torch.tanh(t) * s["v"], x)
        return h * h, h

    return Case(f, before=lambda i: s.update(v=2.0), back=back)


def second_derivatives(ck):
    s, linear = {}, nn.Linear(4, 4)

    def back(y, x):
        s["v"] = 9.0
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        g.square().sum().backward()

    f = lambda x: ck(lambda t: torch.tanh(linear(t)) * s["v"], x).square()  # noqa: E731
    return Case(f, linear.parameters(), before=lambda i: s.update(v=2.0), back=back)


def autocast(ck):
    s, linear = {}, nn.Linear(4, 4)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return ck(lambda t: torch.tanh(linear(t)) * s["v"], x).float()

    return Case(f, linear.parameters(), before=lambda i: s.update(v=2.0), between=lambda i: s.update(v=4.0))


def frozen_before_the_pass(ck):
    linear = nn.Linear(4, 4)
    f = lambda x: ck(lambda t: torch.tanh(linear(t)), x)  # noqa: E731
    return Case(f, before=lambda i: linear.weight.requires_grad_(True), between=lambda i: linear.weight.requires_grad_(False))


def thawed_before_the_pass(ck):
    linear = nn.Linear(4, 4)
    f = lambda x: ck(lambda t: torch.tanh(linear(t)), x)  # noqa: E731
    return Case(f, [linear.weight], before=lambda i: linear.weight.requires_grad_(False), between=lambda i: linear.weight.requires_grad_(True))


def other_memory(ck):
    linear = nn.Linear(4, 4)
    f = lambda x: ck(lambda t: torch.tanh(linear(t)), x)  # noqa: E731
    return Case(f, linear.parameters(), between=lambda i: setattr(linear.weight, "data", torch.full((4, 4), 0.1 * i)))


def other_memory_that_is_also_read_outside(ck):
    w = torch.full((4,), 2.0)
    f = lambda x: ck(lambda t: torch.tanh(t * w), x) * w  # noqa: E731
    return Case(f, before=lambda i: setattr(w, "data", torch.full((4,), 2.0 + i)), between=lambda i: setattr(w, "data", torch.full((4,), 5.0 + i)))


def other_memory_of_what_is_given(ck):
    def back(y, x):
        x.data = x.data * 2
        y.sum().backward()

    return Case(lambda x: ck(lambda t: torch.tanh(t * t), x) * x, back=back)


def memory_of_an_array(ck):
    numpy = pytest.importorskip("numpy")
    a = numpy.full((4,), 2.0, dtype=numpy.float32)
    w = torch.from_numpy(a)
    return Case(lambda x: ck(lambda t: torch.tanh(t * w), x) * w, before=lambda i: a.fill(2.0), between=lambda i: a.fill(3.0))


def result_that_nobody_reads(ck):
    def f(x):
        ck(torch.tanh, x)
        return x * 2 + ck(torch.tanh, x).detach()

    return Case(f)


def modes_of_modules(ck):
    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())
    return Case(lambda x: ck(m, x), m.parameters(), before=lambda i: m.train(), between=lambda i: m.eval())


CASES = [
    branch_on_a_written_tensor, branch_on_data, branch_on_other_memory, branch_on_a_buffer, branch_on_a_written_weight, branch_on_an_array, branch_on_a_result,
    branch_on_an_argument,
    integer_of_a_written_tensor, number_of_a_written_tensor, largest_of_what_is_written, place_in_what_is_written, mask_of_what_is_written,
    asks_the_mode, asks_what_is_made, switches_gradients_off, forward_saves_a_number_that_changes, forward_reads_a_written_tensor,
    one_in_another, the_other_form_inside, layers, written_weights, written_weights_and_a_number, dropout, dropout_that_changes, statistics,
    shared_weights, two_side_by_side, two_results_of_which_one_is_detached, two_passes, a_second_pass_is_refused, one_result_after_the_other,
    hooks_of_its_result, second_derivatives, autocast, frozen_before_the_pass, thawed_before_the_pass, other_memory, other_memory_that_is_also_read_outside,
    other_memory_of_what_is_given, memory_of_an_array, result_that_nobody_reads, modes_of_modules,
]  # fmt: skip
# What decides by a number of data, by what is written and nobody counts it, or by whether gradients are recorded, runs as written. (name, forms)
LEFT = {
    statistics: (False, True),  # they are written
    branch_on_an_array: (False, True),
    branch_on_a_result: (False, True),
    number_of_a_written_tensor: (False, True),
    forward_saves_a_number_that_changes: (False, True),
    asks_the_mode: (True,),
    asks_what_is_made: (True,),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_pass_finds_what_eager_finds(fresh, case, reentrant):
    ck = functools.partial(checkpoint, use_reentrant=reentrant)
    torch.manual_seed(0)
    theirs = case(ck)
    torch.manual_seed(0)
    ours = case(ck)
    expected = theirs.run(theirs.f, 4)
    compiled = fresh.compile(ours.f)
    got = ours.run(compiled, 4)
    assert same(got, expected), (got, expected)
    left = reentrant in LEFT.get(case, ())
    assert bool(fresh.cache_info(compiled)["breaks"]) == left


KEPT = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
OPTIONS = {
    "keywords": lambda s, x: checkpoint(lambda t, *, k, by=2.0: torch.tanh(t * k) * by * s["v"], x, k=x.detach() * 2, by=3.0, use_reentrant=False),
    "no early stop": lambda s, x: checkpoint(lambda t: torch.tanh(t) * s["v"] * t, x, use_reentrant=False, early_stop=False),
    "no random numbers": lambda s, x: checkpoint(lambda t: torch.tanh(t) * s["v"] * t, x, use_reentrant=False, preserve_rng_state=False),
    "selected": lambda s, x: checkpoint(lambda t: torch.tanh(t.mm(t.t())) * s["v"], x, use_reentrant=False, context_fn=KEPT),
    "other values": lambda s, x: checkpoint(
        lambda t: torch.tanh(t) if s["v"] < 6 else torch.exp(t.double()).float(), x, use_reentrant=False, determinism_check="none"
    ),
    "fewer tensors": lambda s, x: checkpoint(lambda t: torch.tanh(t).sin() if s["v"] < 6 else torch.exp(t), x, use_reentrant=False),
}


@pytest.mark.parametrize("how", OPTIONS)
@pytest.mark.parametrize("early", [None, False])
def test_options(fresh, how, early):
    results = []
    for compiles in (False, True):
        s = {}
        f = functools.partial(OPTIONS[how], s)
        case = number(s, f)
        with set_checkpoint_early_stop(True if early is None else early):
            results.append(case.run(fresh.compile(lambda x, f=f: f(x)) if compiles else f, 4))
    assert same(*results), results


def test_what_changes_time_and_again_runs_as_written(fresh):
    """A pass that finds something changed runs the whole program again: soon the checkpoint is torch's own, which runs its function alone."""
    s, linear = {}, nn.Linear(4, 4)
    f = lambda x: checkpoint(lambda t: torch.tanh(linear(t)) * s["v"], x, use_reentrant=False)  # noqa: E731
    case, compiled = number(s, f, linear.parameters()), fresh.compile(f)
    assert same(case.run(compiled, 10), case.run(f, 10))
    assert fresh.cache_info(compiled)["breaks"] == 0
    assert same(case.run(compiled, 20), case.run(f, 20))
    assert fresh.cache_info(compiled)["breaks"] > 0


def test_written_weights_of_several_layers_and_a_number_are_refused(fresh):
    """What a layer was given is not there any more when the program runs again: eager has kept it, we refuse the pass."""
    s, all = {"v": 2.0}, nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def f(x):
        for layer in all:
            x = checkpoint(lambda t, layer=layer: torch.tanh(layer(t)) * s["v"], x, use_reentrant=False)
        return x.square()

    y = fresh.compile(f)(torch.randn(3, 4, requires_grad=True))
    s["v"] = 7.0
    write(all.parameters())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
