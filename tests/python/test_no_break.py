"""What ended graphs and need not: each is one graph, with eager's results, writes and exceptions over several calls with changed values."""

import collections
import copy
import functools
import itertools
import math
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


def facts(o):
    """What a program can see of a result, comparable."""
    if isinstance(o, torch.Tensor):
        return (type(o), o.dtype, tuple(o.shape), o.stride(), o.requires_grad, o.is_leaf, o.detach().clone(), sorted(vars(o)))
    if isinstance(o, (list, tuple)):
        return type(o), [facts(x) for x in o]
    return type(o), o


def same(a, b):
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b or a != a and b != b


def alike(fresh, f, calls, graphs=1):
    """The function in one graph; results and arguments as in eager after each call. calls: functions that make arguments."""
    told = fresh.explain(f)(*calls[0]())
    assert (told.graph_count, told.graph_break_count) == (graphs, 0), str(told)
    compiled = fresh.compile(f)
    for make in calls:
        mine, theirs = make(), make()
        before = [t._version for t in mine]
        same(facts((compiled(*mine), *mine)), facts((f(*theirs), *theirs)))
        assert [t._version for t in mine] == [t._version for t in theirs], before
    return compiled


def numbers(*seeds, requires_grad=False, shape=(4, 4)):
    def make(seed):
        torch.manual_seed(seed)
        return (torch.randint(-8, 8, shape).float().requires_grad_(requires_grad),)  # whose sums are exact

    return [functools.partial(make, seed) for seed in seeds]


def test_writes_through_data(fresh):
    def outside(x, w):
        w.data.mul_(2)
        w.data[0] = x[0]
        return w * 3, w.data + 1

    def inside(x, w):
        y = x * 2
        y.data.add_(w)
        y.data[1:].zero_()
        return y + 1

    def both(x, w):
        w.data.add_(1)
        w.add_(x)
        return w.data * 2

    def make(seed):
        torch.manual_seed(seed)
        return torch.randn(3, 4), torch.randn(3, 4)

    for f in (outside, inside, both):
        alike(fresh, f, [functools.partial(make, seed) for seed in range(3)])


def test_writes_through_data_with_gradients(fresh):
    def step(x, w):
        w.data.clamp_(-0.5, 0.5)
        y = (x * w).exp()
        y.data.mul_(2)  # torch's derivative reads what is there then
        return y.sum()

    def detached(x, w):
        w.detach().mul_(2)
        return (x * w).sum()

    for f in (step, detached):
        told = fresh.explain(f)(torch.randn(4), torch.randn(4, requires_grad=True))
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        ours, theirs = (torch.linspace(-1, 1, 4).requires_grad_() for _ in range(2))
        compiled = fresh.compile(f)
        for k in range(3):
            x = torch.linspace(0, 1, 4) + k
            got, expected = compiled(x, ours), f(x, theirs)
            got.backward()
            expected.backward()
            same(facts((got, ours, ours.grad)), facts((expected, theirs, theirs.grad)))


def test_a_write_through_data_is_no_write_for_backward(fresh):
    @fresh.compile
    def scale(w):
        w.data.mul_(2)
        return w.data.sum()

    w = torch.ones(3)
    x = torch.ones(3, requires_grad=True)
    y = x * w
    scale(w)
    y.sum().backward()  # with w as it is now, which torch does not notice
    assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_facts_of_autograd(fresh, requires_grad):
    def asked(x):
        y = x * 2
        kind = 1 if y.grad_fn is None else 2
        if y.grad_fn:
            kind += 10
        return y + kind, x.grad_fn is None, x.is_leaf, y.is_leaf, y.retains_grad, y.detach().is_leaf

    compiled = alike(fresh, asked, numbers(0, 1, requires_grad=requires_grad))
    if requires_grad:
        x = torch.ones(3, 4, requires_grad=True) * 2
        same(facts(compiled(x)), facts(asked(x)))  # it is no leaf


def test_what_stands_for_a_node_is_no_object_of_the_program(fresh):
    def named(x):
        return type((x * 2).grad_fn).__name__, str((x * 2).grad_fn)

    x = torch.ones(3, requires_grad=True)
    assert all("Backward" in name for name in fresh.compile(named)(x))

    def twice(x):
        y = x * 2
        return y.grad_fn is y.grad_fn, y.grad_fn is (x * 2).grad_fn

    assert fresh.compile(twice)(x) == twice(x)


def test_attributes_of_inputs(fresh):
    def marked(x):
        seen = hasattr(x, "mark")
        x.mark = 3
        x.half = x / 2
        return x.half + x.mark, seen

    alike(fresh, marked, numbers(0, 1, 2))
    compiled = fresh.compile(marked)
    x, y = torch.ones(2), torch.ones(2)
    for _ in range(3):  # it has them from then on
        same(facts((compiled(x), x, x.half)), facts((marked(y), y, y.half)))

    def two(a, b):
        a.mark = 1
        return a + getattr(b, "mark", 5)

    compiled = fresh.compile(two)
    assert compiled(torch.zeros(1), torch.zeros(1)).item() == 5
    x = torch.zeros(1)
    assert compiled(x, x).item() == 1


def test_old_constructors(fresh):
    def made(x):
        a = torch.FloatTensor(4, 4).fill_(2)
        b = torch.LongTensor([[1, 2, 3, 4]])
        c = torch.Tensor([x.size(0)])
        d = torch.Tensor(x.size()).zero_()
        return x + a * b + c + d, torch.autograd.Variable(x), torch.autograd.Variable(x * 2, requires_grad=False, volatile=False) + 1

    alike(fresh, made, numbers(0, 1))
    alike(fresh, made, numbers(0, 1, requires_grad=True))

    def shared(x):
        y = torch.autograd.Variable(x)
        y.mul_(2)
        return y + 1

    alike(fresh, shared, numbers(0, 1))


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", [{}, {"affine": True}, {"track_running_stats": True}, {"affine": True, "track_running_stats": True}])
def test_instance_norm(fresh, settings, dtype, train):
    for kind, shape in ((nn.InstanceNorm1d, (2, 3, 5)), (nn.InstanceNorm2d, (2, 3, 4, 5)), (nn.InstanceNorm3d, (2, 3, 2, 3, 4))):
        torch.manual_seed(0)
        ours = kind(3, **settings).to(dtype).train(train)
        theirs = copy.deepcopy(ours)
        told = fresh.explain(copy.deepcopy(ours))(torch.randn(shape, dtype=dtype))
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        compiled = fresh.compile(ours)
        for scale in (1, 3):
            x, y = (torch.linspace(-1, scale, math.prod(shape), dtype=dtype).reshape(shape).sin().requires_grad_() for _ in range(2))
            got, expected = compiled(x), theirs(y)
            for out in (got, expected):
                (out * torch.arange(out.numel(), dtype=dtype).cos().reshape(shape)).sum().backward()
            torch.testing.assert_close(got, expected)
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
            for p, q in zip([*ours.parameters(), *ours.buffers()], [*theirs.parameters(), *theirs.buffers()]):
                torch.testing.assert_close(p, q)
                assert p.grad is q.grad is None or torch.allclose(p.grad, q.grad, rtol=1e-4, atol=1e-3)


def test_numbers_that_tensors_hold(fresh):
    def normalised(x):
        mean = x.mean().item()
        spread = float(x.abs().max())
        scaled = (x - mean) / (spread + 1e-5)
        return scaled * 2 + mean * 0.5, mean, -abs(spread) + 1 - mean, 2 - x * mean > spread - 1, type(mean), isinstance(spread, float)

    alike(fresh, normalised, numbers(0, 1, 2))

    def in_place(x):
        x += x.mean().item()
        x.sub_(x[0, 0].item())
        row = x[0].tolist()
        return x, row, sum(row) * x

    alike(fresh, in_place, numbers(0, 1, 2))

    def of_small_things(x):
        m = x[0, 0].item()
        return x[0, 1] * m, (x[0, 1] - m).dtype, torch.arange(3) * m, m - x[1], m / x[1], x.double() * m

    alike(fresh, of_small_things, numbers(0, 1, 2))


def test_a_statistic_for_each_channel(fresh):
    def channels(x):
        mean, var = x.mean((0, 2)), x.var((0, 2))
        out = []
        for c in range(x.size(1)):
            out.append((x[:, c] - mean[c].item()) / (var[c].item() + 1e-5))
        return torch.stack(out, 1), var.tolist()

    told = fresh.explain(channels)(torch.ones(2, 20, 5))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(channels)
    for (x,) in (make() for make in numbers(0, 1, 2, shape=(2, 20, 5))):
        torch.testing.assert_close(compiled(x), channels(x))


def test_such_numbers_are_as_they_were_before_a_write(fresh):
    def f(x):
        first = x[0, 0].item()
        x.zero_()
        return x + first

    alike(fresh, f, numbers(0, 1))

    def with_gradients(x):
        return (x * x.sum().item()).sum()

    compiled = alike(fresh, with_gradients, numbers(0, 1, requires_grad=True))
    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    compiled(x).backward()
    with_gradients(y).backward()
    assert x.grad.tolist() == y.grad.tolist() == [2, 2]


def test_what_needs_such_a_number_in_python(fresh):
    def rounds(x):
        m = x.sum().item()
        return x * 2, round(m, 2), f"{m:.3f}", int(m), m // 1, math.floor(m), {m: 1}[m], m**2, str(m) == repr(m)

    compiled = fresh.compile(rounds)
    for (x,) in (make() for make in numbers(0, 1, 2)):
        same(facts(compiled(x)), facts(rounds(x)))

    def branches(x):
        m = x.sum().item()
        return x + 1 if m > 0 else x - 1

    compiled = fresh.compile(branches)
    for (x,) in (make() for make in numbers(0, 1, 2, 3)):
        same(compiled(x), branches(x))

    def divides(x):
        return x * 2, 1 / x.sum().item()

    compiled = fresh.compile(divides)
    assert compiled(torch.ones(2))[1] == 0.5
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            compiled(torch.zeros(2))


def test_attention_of_the_same_tensors(fresh):
    """torch.equal, which old attention asks whether query, key and value are one."""

    def attend(q, k):
        return q * 2 if torch.equal(q, k) else q + k

    def outer(q, k):
        return attend(q, k) + 1

    compiled = fresh.compile(outer)
    a, b = torch.ones(3), torch.ones(3)
    for q, k in ((a, a), (a, b), (a, b * 2), (a, a), (b, a)):
        same(compiled(q, k), outer(q, k))
    told = fresh.explain(outer)(a, a)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


@pytest.mark.parametrize("make", [dict, functools.partial(collections.defaultdict, dict)])
def test_dicts_that_know_tensors(fresh, make):
    p, q = nn.Parameter(torch.ones(3)), torch.zeros(3)
    state = make({p: {"step": 1, "buffer": torch.ones(3)}, q: {"step": 5}})

    def update(x, key):
        own = state[key]
        own["step"] += 1
        if "buffer" in own:
            own["buffer"].mul_(0.9).add_(x)
        return x * own["step"], key in state, state.get(key) is own

    told = fresh.explain(update)(torch.ones(3), p)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(update)
    steps, buffer = {p: 2, q: 5}, state[p]["buffer"].clone()  # explain has made one step
    for key in (p, q, p, p):
        steps[key] += 1
        if key is p:
            buffer.mul_(0.9).add_(1)
        got = compiled(torch.ones(3), key)
        same(got, (torch.full((3,), float(steps[key])), True, True))
        assert {k: v["step"] for k, v in state.items()} == steps
        same(state[p]["buffer"], buffer)
    with pytest.raises(KeyError):
        fresh.compile(lambda x: {}[x])(torch.ones(1))


def test_a_short_loop_in_a_function_that_is_called_often(fresh):
    def size(shape):
        product = shape[0]
        for i in range(len(shape) - 2):
            product *= shape[i + 2]
        return product

    def f(x):
        for _ in range(12):
            x = x + size(x.shape) + size(x.shape)
        return x

    alike(fresh, f, numbers(0, 1, shape=(2, 3, 4, 5)))


def test_what_tensors_had_once(fresh):
    def f(x):
        return x + 1, x.volatile

    with pytest.warns(UserWarning, match="volatile was removed") as seen:
        told = fresh.explain(f)(torch.ones(2))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    assert told.result[1] is False and [(w.filename, w.lineno) for w in seen] == [(__file__, f.__code__.co_firstlineno + 1)]


def test_numbers_in_functions_with_gradients_of_their_own(fresh):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, by):
            ctx.save_for_backward(by)
            return x / by[0].item()

        @staticmethod
        def backward(ctx, grad):
            (by,) = ctx.saved_tensors
            return grad / by[0].item(), None

    def f(x, by):
        return Scaled.apply(x, by) * 3

    told = fresh.explain(f)(torch.ones(3, requires_grad=True), torch.ones(2))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for k in (1.0, 2.0, 4.0):
        x, y = (torch.arange(3.0).requires_grad_() for _ in range(2))
        got, expected = compiled(x, torch.tensor([k, 1])), f(y, torch.tensor([k, 1]))
        got.sum().backward()
        expected.sum().backward()
        same(got, expected)
        same(x.grad, y.grad)


@torch.no_grad()
def test_packed_weights_see_writes_through_data(fresh):
    layer = nn.Linear(512, 512)
    x = torch.randn(64, 512)
    product = fresh.compile(lambda x: layer(x))

    @fresh.compile
    def scale(by):
        layer.weight.data.mul_(by)

    for _ in range(4):
        torch.testing.assert_close(product(x), layer(x))
    for by in (2.0, 0.25, 3.0):
        scale(torch.tensor(by))
        for _ in range(2):
            torch.testing.assert_close(product(x), layer(x))


def test_a_function_of_its_own_that_returns_its_argument(fresh):
    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x, y * 2

        @staticmethod
        def backward(ctx, gx, gy):
            return gx, gy

    def f(x, y):
        a, b = Through.apply(x, y)
        a = a + 1
        return a + b, a

    for requires_grad in (False, True):
        x, y = (torch.ones(3, requires_grad=requires_grad) for _ in range(2))
        with torch.no_grad():
            told = fresh.explain(f)(x, y)
            assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
            compiled = fresh.compile(f)
            for _ in range(2):
                same(facts(compiled(x, y)), facts(f(x, y)))

    def itself(x, y):
        return Through.apply(x, y)[0]

    with torch.no_grad():
        x = torch.ones(3)
        out = fresh.compile(itself)(x, x)
        assert out is not x and out.data_ptr() == x.data_ptr() and out._base is x


@torch.no_grad()
def test_results_that_are_written_elsewhere(fresh):
    def power_iteration(weight, u, v):
        for _ in range(2):
            v = F.normalize(torch.mv(weight.t(), u), dim=0, eps=1e-12, out=v)
            u = F.normalize(torch.mv(weight, v), dim=0, eps=1e-12, out=u)
        return weight / torch.dot(u, torch.mv(weight, v)), u, v

    def make(seed):
        torch.manual_seed(seed)
        return torch.randn(3, 4), torch.randn(3), torch.randn(4)

    told = fresh.explain(power_iteration)(*make(0))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(power_iteration)
    for seed in range(3):
        mine, theirs = make(seed), make(seed)
        got = compiled(*mine)
        torch.testing.assert_close(got, power_iteration(*theirs))
        torch.testing.assert_close(mine, theirs)
        assert got[1] is mine[1] and got[2] is mine[2]
        assert [t._version for t in mine] == [t._version for t in theirs]

    def into_itself(x, y):
        return torch.add(x, y, out=x), torch.mul(x, 2, out=torch.empty(3, 1)).shape

    compiled = fresh.compile(into_itself)
    for k in range(2):
        x, y = torch.full((3, 1), float(k)), torch.ones(3, 1)
        same(compiled(x, y), into_itself(torch.full((3, 1), float(k)), y))
        same(x, torch.full((3, 1), k + 1.0))


def test_a_result_of_another_size_is_torchs(fresh):
    def f(x, out):
        return torch.add(x, 1, out=out)

    out = torch.empty(0)
    same(fresh.compile(f)(torch.ones(3), out), torch.full((3,), 2.0))
    same(out, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="out="):
        fresh.compile(f)(torch.ones(3, requires_grad=True), torch.empty(3))


def test_lists_of_numbers_and_tensors_as_indices(fresh):
    def f(x, i):  # numbers first: torch asks a tensor that stands first for its length where a test has set Tensor.__getitem__ and back
        y = x * 2
        y[[0, 1], [2, i]] = 5
        return x[[0, 1], [2, i]], x[:, [0, i, i]], y, x[None, [3, i]]

    def make(k):
        return torch.arange(16.0).reshape(4, 4) + k, torch.tensor(k)

    alike(fresh, f, [functools.partial(make, k) for k in (1, 2, 0)])


def test_a_list_of_tensors_is_a_tuple(fresh):
    def f(x, i, j):
        return x[[i, j]]

    x, i, j = torch.arange(16.0).reshape(4, 4), torch.tensor(1), torch.tensor(2)
    with pytest.warns(UserWarning, match="non-tuple sequence"):
        expected = f(x, i, j)
        compiled = fresh.compile(f)
        for _ in range(2):
            same(compiled(x, i, j), expected)


@pytest.mark.parametrize("text", [
    "x.real is x", "torch.broadcast_tensors(x, x)[1] is x", "torch.broadcast_tensors(x, x[0])[0] is x", "torch.broadcast_tensors(x, x[None])[0] is not x",
    "a.real is a", "np.real(a) is a", "a.T.real is not a",
])  # fmt: skip
def test_what_an_operation_hands_back_as_it_is(fresh, text):
    np = pytest.importorskip("numpy")
    f = fresh.compile(eval(f"lambda x, a: (x * 2, {text})", {"torch": torch, "np": np}))
    for _ in range(2):
        assert f(torch.ones(2, 3), np.ones((2, 3)))[1]
    assert f.cache_info()["breaks"] == 0


def test_tensors_and_their_numbers_as_factors(fresh):
    def held(x, step):
        y = x.clone()
        y.addcdiv_(x, x + 20, value=-(0.5 / step))
        return y.addcmul_(x, x, value=step).add_(x, alpha=step), torch.sub(x, y, alpha=step)

    def read(x, step):
        k = 1 - 0.5 ** step.item()
        return x.clone().addcdiv_(x, x + 20, value=-k).add_(x, alpha=k**0.5), x.clone().lerp_(x + 1, k)

    def make(seed):
        torch.manual_seed(seed)
        return torch.randint(-8, 8, (4, 4)).float(), torch.tensor(float(seed + 1))

    for f in (held, read):
        told = fresh.explain(f)(*make(0))
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        compiled = fresh.compile(f)
        for seed in range(4):
            torch.testing.assert_close(compiled(*make(seed)), f(*make(seed)), rtol=1e-6, atol=1e-6)


def test_powers_that_are_no_floats(fresh):
    """Python raises, or makes a complex number."""

    def f(x):
        return x + 1, 1 / (x.item() ** 0.5)

    compiled = fresh.compile(f)
    for value in (4.0, 9.0, -4.0):
        mine, theirs = compiled(torch.tensor(value)), f(torch.tensor(value))
        assert torch.equal(mine[0], theirs[0]) and type(mine[1]) is type(theirs[1]) and abs(mine[1] - theirs[1]) < 1e-12
    with pytest.raises(ZeroDivisionError):
        compiled(torch.tensor(0.0))


def test_results_over_operands(fresh):
    def f(x, y):
        torch.maximum(x, y, out=x)
        torch.add(x.mul_(2), y.abs(), out=y)
        return x + y

    def make(seed):
        torch.manual_seed(seed)
        return torch.randn(3, 4), torch.randn(3, 4)

    alike(fresh, f, [functools.partial(make, seed) for seed in range(3)])


def test_parameters_of_computed_tensors(fresh):
    def given(x):
        p = nn.Parameter(x * 2, requires_grad=False)
        return p, type(p) is nn.Parameter, p + 1

    def raw(x):
        p = torch.Tensor._make_subclass(nn.Parameter, x, False)
        p.add_(1)
        return p, x * 2

    def inside(x):
        p = nn.Parameter(x * 2)
        return (p.detach() + 1, p.requires_grad, isinstance(p, nn.Parameter))

    for f in (given, raw, inside):
        alike(fresh, f, numbers(0, 1, 2))


def test_a_layout_that_one_channel_hides(fresh):
    """The strides of dimensions of 1 are eager's, too, behind convolutions whose results lie otherwise."""
    conv = nn.Conv2d(8, 1, 3, padding=1).eval()

    def f(x):
        return F.interpolate(torch.relu(conv(x)), size=(12, 14), mode="bilinear"), F.max_pool2d(conv(x), 2)

    compiled = fresh.compile(f)
    with torch.no_grad():
        for x in (torch.randn(4, 8, 6, 6), torch.randn(4, 8, 6, 6).contiguous(memory_format=torch.channels_last)):
            mine, theirs = compiled(x), f(x)
            assert [t.stride() for t in mine] == [t.stride() for t in theirs]
            torch.testing.assert_close(mine, theirs)


def test_lines_of_a_long_function(fresh):
    lines = "".join(f"    x = x * {1 + k % 7 / 8}\n" for k in range(3000))
    space = {}
    exec(compile(f"def f(x):\n{lines}    return x + 1\n", "long.py", "exec"), space)
    told = fresh.explain(space["f"])(torch.ones(2))
    assert (told.graph_count, told.graph_break_count) == (1, 0)
    text = str(told)
    assert 'torch.Tensor.__add__' in text and "# long.py:3002" in text and "# long.py:2\n" in text and "# long.py:1500\n" in text


def test_integers_that_tensors_hold(fresh):
    """torch reads a tensor where an operator takes one integer; in a called function what it says is guessed."""

    def f(x, k):
        def inner(y):
            return y.topk(k, dim=1)[0], torch.topk(y, k=k)[1], torch.select(y, 1, k), y.kthvalue(k)[0], y.tril(k), y.unfold(1, k, 1) + 1

        return inner(x * 2)

    def make(n, dtype):
        torch.manual_seed(n)
        return torch.randn(4, 6), torch.tensor(n, dtype=dtype)

    alike(fresh, f, [functools.partial(make, n, dtype) for n, dtype in ((3, torch.int32), (3, torch.int64), (2, torch.int64))])


def test_a_set_that_was_changed_is_asked(fresh):
    class Holder:
        def __init__(self, names):
            self.names, self.told = set(names), []

    def f(x, holder):
        holder.names.discard("a")
        holder.names.add("n")
        told = ["a" in holder.names, "n" in holder.names, "b" in holder.names, "c" not in holder.names]
        holder.names.add("a")
        told.append("a" in holder.names)
        if "clear" in holder.names:
            holder.names.clear()
            told.append("n" in holder.names)
        return x * (1 + sum(told)), told

    compiled = fresh.compile(f)
    x = torch.arange(3.0)
    for names in ("ab", "ab", "b", ("clear", "a"), "ac"):
        mine, theirs = Holder(names), Holder(names)
        same(facts(compiled(x, mine)), facts(f(x, theirs)))
        assert mine.names == theirs.names
    told = fresh.explain(f)(x, Holder("ab"))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_buffers_that_are_set_twice(fresh):
    """register_buffer takes the name out of a set, in which __setattr__ looks for it."""

    class Power(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("u", torch.ones(4))
            self.register_buffer("v", torch.ones(4), persistent=False)

        def forward(self, w):
            for _ in range(2):
                self.v = F.normalize(w.t() @ self.u, dim=0)
                self.u = F.normalize(w @ self.v, dim=0)
            return w / (self.u @ (w @ self.v))

    mine, theirs = Power(), Power()
    compiled = fresh.compile(mine)
    for seed in range(3):
        torch.manual_seed(seed)
        w = torch.randn(4, 4)
        torch.testing.assert_close(compiled(w), theirs(w))
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
        assert mine._non_persistent_buffers_set == theirs._non_persistent_buffers_set == {"v"}
    told = fresh.explain(mine)(torch.eye(4))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_attributes_that_a_method_of_c_looks_up(fresh):
    class Config(dict):
        __getattr__ = dict.__getitem__

    def f(x, config):
        return x * config.factor if config.on else x

    compiled = fresh.compile(f)
    for factor, on in ((2.0, True), (2.0, True), (3.0, True), (3.0, False)):
        config = Config(factor=factor, on=on)
        assert torch.equal(compiled(torch.ones(3), config), f(torch.ones(3), config))
    told = fresh.explain(f)(torch.ones(3), Config(factor=2.0, on=True))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    with pytest.raises(KeyError, match="on"):
        fresh.compile(f)(torch.ones(3), Config(factor=2.0))


def test_einsum_of_two_types(fresh):
    """Where no letter is summed torch multiplies, and promotes; else it refuses."""

    def outer(x):
        return torch.einsum("i,j->ij", torch.arange(4), x[0]), torch.einsum("ij,i->ij", x, torch.arange(4))

    alike(fresh, outer, numbers(0, 1))
    with pytest.raises(RuntimeError):
        fresh.compile(lambda x: torch.einsum("ij,j->i", x, torch.arange(4)))(torch.ones(4, 4))


@pytest.mark.parametrize("rows", [16, 4096])
def test_the_layout_of_pooling_in_one_dimension(fresh, rows):
    """On CPUs and without gradients torch has a kernel whose result is dense, whatever the layout of the operand."""

    def f(x):
        y = F.max_pool1d(x.permute(0, 2, 1), 2)
        return y, y.reshape(*y.shape[:2], 2, -1), F.max_pool1d(x[0].t(), 2) + 1

    def make(size, grad):
        torch.manual_seed(size)
        return (torch.randn(2, size, rows).requires_grad_(grad),)

    for grad in (False, True):
        calls = [functools.partial(make, size, grad) for size in (8, 8, 12, 16)]
        compiled = fresh.compile(f)
        for call in calls:
            mine, theirs = compiled(*call()), f(*call())
            assert [t.stride() for t in mine] == [t.stride() for t in theirs]
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("number", ["np.prod(shape)", "np.prod(4)", "np.sqrt(4)", "np.sum([1, 2])", "np.max((3, n))", "np.floor(n / 3)", "np.mean([1.0, 2.0])"])
def test_numbers_that_numpy_makes_of_numbers(fresh, number):
    """Before the first of torch's tensors is used, too: they are numbers of the program."""
    numpy = pytest.importorskip("numpy")
    f = eval(f"lambda x, n, shape: float({number}) * x.reshape(-1, int(np.prod(shape))) + int({number})", {"np": numpy})  # noqa: S307
    compiled = fresh.compile(f)
    for n, shape in ((4, (2, 2)), (4, [2, 2]), (5, (2, 2)), (7, (4,)), (6, (1, 4))):
        x = torch.randn(8, 4)
        same(compiled(x, n, shape), f(x, n, shape))
    told = fresh.explain(f)(x, n, shape)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_old_constructors_of_ranges(fresh):
    def f(x, y):
        return x[torch.LongTensor(range(y.size(0))), y], torch.FloatTensor(range(3)) * x[0, 0]

    alike(fresh, f, [lambda: (torch.arange(12.0).view(3, 4), torch.tensor([1, 3, 0])), lambda: (torch.arange(8.0).view(2, 4), torch.tensor([1, 3]))])


@pytest.mark.parametrize("grad", [False, True])
def test_diagonals_that_are_filled(fresh, grad):
    def f(x):
        y = x * 2
        y.fill_diagonal_(0)
        z = x.t().clone().fill_diagonal_(True)
        return y, z, y + z.t()

    alike(fresh, f, [functools.partial(lambda a, b: (torch.arange(float(a * b)).view(a, b).requires_grad_(grad),), a, b) for a, b in ((3, 4), (4, 4), (5, 2), (1, 3))])


def test_loops_of_many_rounds_in_called_functions(fresh):
    """Where such a loop were cut, all callers would break."""

    class Parts(nn.Module):
        def forward(self, x):
            parts = []
            for i in range(136):
                parts.append((x[:, i % x.size(1)] if i % 2 == 0 else x[:, 0] * i) + i)
            return torch.stack(parts, dim=1)

    model = Parts()
    told = fresh.explain(model)(torch.randn(2, 8))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    x = torch.randn(2, 8)
    same(fresh.compile(model)(x), model(x))


def test_a_range_up_to_what_a_tensor_holds(fresh):
    class Positions(nn.Module):
        def forward(self, lengths):
            n = lengths.max()
            return (torch.arange(n)[None] < lengths[:, None]) * torch.arange(1, n + 1, device="cpu")

    model = Positions()
    told = fresh.explain(model)(torch.tensor([3, 5]))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(model)
    for lengths in ([3, 5], [3, 5], [4, 1], [7, 2], [0, 1]):
        same(compiled(torch.tensor(lengths)), model(torch.tensor(lengths)))


def test_what_was_made_here_is_seen_otherwise(fresh):
    """It is no view of anything afterwards, as in eager."""

    def f(x):
        a = torch.argmax(x, 1)
        a.unsqueeze_(1)
        b = (x + 1).transpose_(0, 1)
        b.unsqueeze_(0)
        return a, b, b * 2

    with torch.no_grad():
        compiled = alike(fresh, f, numbers(0, 1))
        for t in compiled(torch.randn(4, 4)):
            assert not t._is_view() and t._base is None


def test_sizes_in_lists_that_tensors_hold(fresh):
    class Up(nn.Module):
        def forward(self, x, y):
            high, wide = (torch.tensor([y.size(d) - x.size(d)]) for d in (2, 3))
            return torch.cat([y, F.pad(x, [wide // 2, wide - wide // 2, high // 2, high - high // 2])], dim=1)

    model = Up()
    told = fresh.explain(model)(torch.randn(2, 3, 4, 4), torch.randn(2, 3, 6, 7))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(model)
    for high, wide in ((6, 7), (6, 7), (4, 4), (9, 5), (6, 7)):
        x, y = torch.randn(2, 3, 4, 4), torch.randn(2, 3, high, wide)
        same(compiled(x, y), model(x, y))


@pytest.mark.parametrize("grad", [False, True])
def test_parts_that_are_written_from_other_parts(fresh, grad):
    """torch refuses parts that overlap; others it takes, whatever lies between their elements."""

    def f(x):
        y = x * 1
        y[:, :2] += y[:, 2:]
        y[0] *= y[2]
        y[:, 0].mul_(y[:, 3] + 1)
        y.narrow(0, 1, 2).add_(y[:1])
        y[:, ::2] -= y[:, 1::2]
        y.t()[1].sub_(y.t()[2])
        return y

    alike(fresh, f, numbers(0, 1, requires_grad=grad))
    told = fresh.explain(lambda x: x[1:].add_(x[:-1]) if x.dim() == 1 else x[:, 1:].add_(x[:, :-1]))(torch.ones(4, 4))
    assert told.graph_break_count  # of such parts torch alone knows what comes of it
    with pytest.raises(RuntimeError, match="single memory location"):
        fresh.compile(lambda x: x[1:].add_(x[:-1]))(torch.ones(5))


@pytest.mark.parametrize(
    "read",
    [
        lambda kw: 1 if kw.get("other") is None else 2,
        lambda kw: kw.get("masks")["full"],
        lambda kw: kw.copy()["masks"]["full"],
        lambda kw: dict(kw)["masks"]["full"],
        lambda kw: dict(kw, extra=1)["masks"]["full"],
        lambda kw: list(kw.values())[0]["full"],
        lambda kw: tuple(kw.items())[0][1]["full"],
        lambda kw: len(list(kw)) + kw.__len__(),
    ],
)
def test_keywords_that_hold_a_dict_of_tensors(fresh, read):
    """As transformers' masks of several kinds: the dict of keywords is made in the call, the one in it comes from outside."""

    def inner(x, **kw):
        return x * 2 + read(kw)

    def f(x, masks):
        return inner(x, masks=masks)

    compiled = fresh.compile(f, fullgraph=True)
    for size, low in ((3, 0.0), (3, 1.0), (4, 2.0)):
        masks = {"full": torch.full((size,), low), "part": torch.zeros(size)}
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x, masks), f(x, masks))
    masks["full"] = masks["full"] + 1  # another tensor in the same dict
    torch.testing.assert_close(compiled(x, masks), f(x, masks))


@pytest.mark.parametrize("masked", ["", "mask", "blind row", "causal"])
@pytest.mark.parametrize("sizes", [(24, 16, 5, 10), (8, 24, 1, 10), (8, 8, 0, 10)], ids=str)
def test_attention_for_which_no_library_has_a_kernel(fresh, sizes, masked):
    """Values of another width than queries (DeepSeek's), and nothing to ask for; as written torch composes it."""
    width, values, asked, keys = sizes

    def f(q, k, v, mask):
        return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask, is_causal=masked == "causal", scale=0.3).transpose(1, 2) + 1

    compiled = fresh.compile(f, fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(2, 1, asked, keys, generator=generator) > 0.3 if masked in ("mask", "blind row") else None
    if mask is not None and asked:
        mask[..., 0] = masked == "mask" or mask[..., 0]
        mask[:, :, -1] &= masked == "mask"
    for grad in (False, True):
        parts = [torch.randn(2, 3, n, d, generator=generator) for n, d in ((asked, width), (keys, width), (keys, values))]
        results, strides = [], []
        for call, to in ((compiled, torch.float32), (f, torch.float32), (f, torch.float64)):
            q, k, v = (x.to(to).requires_grad_(grad) for x in (p.clone() for p in parts))
            y = call(q, k, v, mask)
            gradients = torch.autograd.grad(y.square().sum(), (q, k, v)) if grad else ()
            results.append([y.detach(), *gradients])
            strides.append(y.stride())
        assert strides[0] == strides[1]
        for mine, eager, true in zip(*results):
            if mine.numel():
                assert (mine - true).abs().max() <= 2 * (eager - true).abs().max() + 1e-6


@pytest.mark.parametrize("dynamic", [None, True])
def test_complex_tensors_are_indexed_by_integers(fresh, dynamic):
    """As tables of rotations are. Masks, whose data decides the size, are told from them."""
    table = torch.polar(torch.ones(64, 4), torch.randn(64, 4, generator=torch.Generator().manual_seed(0)))

    def f(x, i):
        return table[x.shape[0] + torch.arange(x.shape[0])] * 2, table[i, 1], table[:, i % 4]

    compiled = fresh.compile(f, fullgraph=True, dynamic=dynamic)
    for n in (4, 7, 12):
        x, i = torch.ones(n), torch.arange(n).flip(0)
        same(list(compiled(x, i)), list(f(x, i)))

    def masked(m):
        return table[m] * 2

    again = fresh.compile(masked)
    for step in (2, 5, 64, 3):
        m = torch.arange(64) % step == 0
        same(again(m), masked(m))
def test_methods_of_a_view_of_a_dict(fresh):
    """types.MappingProxyType, as torch.cpu.get_capabilities() gives one."""
    held = {"a": 2.0, "n": 3}
    view = types.MappingProxyType(held)
    cached = functools.lru_cache(lambda: types.MappingProxyType({"amx": False}))

    def f(x):
        held["w"] = held.get("w", 0.0) + 1
        return x * view.get("a", 1.0) + view.get("zz", 0), len([k for k in view.keys()]), cached().get("amx", True), view.get("w")

    x = torch.ones(3)
    cached()
    told = fresh.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for key, value in (("a", 2.0), ("a", 5.0), ("zz", 1), ("n", 0)):
        held[key] = value
        before = dict(held)
        got = compiled(x)
        held.clear()
        held.update(before)
        same(got, f(x))
    view = types.MappingProxyType({"a": 7.0})
    same(compiled(x)[:2], f(x)[:2])

    def refused(x):
        try:
            view.update({"a": 1.0})
        except AttributeError as error:
            return str(error)

    same(fresh.compile(refused)(x), refused(x))


def test_axes_that_change(fresh):
    """A number in *args that changes becomes a symbol; where the framework must know it, it is a constant again."""
    torch = pytest.importorskip("torch")

    def call(*args):
        return torch.topk(*args)

    compiled = fresh.compile(call)
    x = torch.randn(5, 5)
    for args in ((3, 1), (3, 0), (2, -1), (2, 0), (3, -2), (2, 1)):
        for got, expected in zip(compiled(x, *args), call(x, *args), strict=True):
            torch.testing.assert_close(got, expected)
    assert compiled.cache_info()["breaks"] == 0


def test_functions_of_torch_that_c_code_calls(fresh):
    def f(x):
        xs = [x, x * 2, x + 1]
        pairs = list(zip(xs, xs[1:], strict=False))
        return (
            list(map(torch.relu, xs)),
            list(map(F.relu6, xs)),
            functools.reduce(torch.maximum, xs),
            list(itertools.accumulate(xs, torch.add)),
            list(itertools.starmap(torch.sub, pairs)),
            functools.partial(torch.clamp, min=0.5)(x),
        )

    alike(fresh, f, [lambda k=k: (torch.arange(4.0) - k,) for k in range(3)])

    def asks(x):
        return x.__torch_function__

    assert fresh.compile(asks)(torch.ones(2)).__name__ == "__torch_function__"


def test_complex_parts_are_stored(fresh):
    def f(x, w):
        spectrum = torch.fft.rfft(x, dim=1)
        out = torch.zeros_like(spectrum)
        out[:, :3] = spectrum[:, :3] * torch.view_as_complex(w)
        out[:, -1, 0] = spectrum[:, 0, 1]
        return torch.fft.irfft(out, n=x.shape[1], dim=1), out

    alike(fresh, f, [lambda n=n: (torch.arange(8.0 * n).reshape(2, n, 4).sin(), torch.arange(24.0).reshape(3, 4, 2).cos()) for n in (8, 10, 13)])


@pytest.mark.parametrize("changing", [False, True])
def test_bounds_that_tensors_hold(fresh, changing):
    def f(x, lengths):
        parts = [x[i][: lengths[i], :] for i in range(len(lengths))]
        return torch.cat(parts, 0), x[:, lengths[0] :], x[0, : lengths[1] : 2]

    calls = [([4, 2, 3],), ([4, 2, 3],), ([1, 5, 2],), ([3, 3, 1],)] if changing else [([4, 2, 3],)] * 2
    alike(fresh, f, [lambda n=n: (torch.arange(60.0).reshape(3, 5, 4), torch.tensor(n[0])) for n in calls])


def test_numbers_that_tensors_hold_are_stored(fresh):
    def f(x, mask):
        w = torch.zeros_like(x)
        total = mask.float().sum().item() + 1
        w[mask] = total / 3
        w[0, 1] = total
        w[:, 2] = total * 0.5
        return w

    alike(fresh, f, [lambda n=n: (torch.ones(4, 4), torch.arange(16).reshape(4, 4) < n) for n in (3, 0, 9)])


def test_counts_of_at_least_so_many(fresh):
    def f(values, groups):
        n = int(groups.max()) + 1
        return torch.zeros(n, 2).index_add(0, groups, values) / torch.bincount(groups, minlength=n).clamp(min=1).unsqueeze(-1)

    alike(fresh, f, [lambda n=n: (torch.ones(5, 2), torch.arange(5) % n) for n in (3, 3, 2, 5)])

    def fewer(groups):
        return torch.bincount(groups, minlength=3) * 2

    compiled = fresh.compile(fewer)
    for groups in ([0, 1, 1], [2, 2, 0], [0, 7, 1], [1, 1, 1], [9]):
        same(compiled(torch.tensor(groups)), fewer(torch.tensor(groups)))


def test_dicts_that_are_cleared(fresh):
    class Recorder:
        def __init__(self):
            self.kept = {"old": 1, 2: "two"}

    recorder = Recorder()

    def f(x, names):
        recorder.kept.clear()
        assert "old" not in recorder.kept
        for name in names:
            recorder.kept[name] = x * len(name)
        return [v + 1 for v in recorder.kept.values()], list(recorder.kept)

    compiled = fresh.compile(f)
    for names in (("b", "old"), ("old", "b"), ("old", "b"), ("x",)):
        kept = []
        for one in (f, compiled):
            before = dict(recorder.kept)
            got = one(torch.ones(2), names)
            kept.append((got, list(recorder.kept.items())))
            if one is f:
                recorder.kept.clear()
                recorder.kept.update(before)
        assert [k for k, _ in kept[0][1]] == [k for k, _ in kept[1][1]] == list(names)
        same(*[[v for _, v in k[1]] for k in kept])
        same(*[k[0][0] for k in kept])
    recorder.kept = {"old": 1}
    told = fresh.explain(f)(torch.ones(2), ("b",))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_dicts_that_make_what_is_missing(fresh):
    history = collections.defaultdict(list)
    counts = collections.defaultdict(int, {"calls": 3})
    nothing = collections.defaultdict(None)

    def f(x, key):
        history[key].append(x.shape[0])
        counts["calls"] += 1
        counts[key] += 2
        try:
            nothing[key]
        except KeyError as error:
            assert error.args == (key,)
        return x * len(history[key]) + counts["calls"], key in nothing

    compiled = fresh.compile(f)
    for key in ("a", "a", "b", "c", "a"):
        outcomes = []
        for one in (f, compiled):
            before = {k: list(v) for k, v in history.items()}, dict(counts)
            outcomes.append((one(torch.ones(2), key), {k: list(v) for k, v in history.items()}, list(counts.items())))
            if one is f:
                history.clear()
                history.update({k: list(v) for k, v in before[0].items()})
                counts.clear()
                counts.update(before[1])
        same(outcomes[0][0], outcomes[1][0])
        assert outcomes[0][1:] == outcomes[1][1:]
    told = fresh.explain(f)(torch.ones(2), "new")
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_keys_of_types(fresh):
    table = {}

    def f(x, k):
        try:
            scale = table[type(x), k]
        except KeyError:
            scale = table[type(x), k] = len(table) + 1
        table[int] = k
        return x * scale, (type(x), k) in table, table[int]

    compiled = fresh.compile(f)
    for k in (1, 1, "a", 2, 1):
        outcomes = []
        for one in (f, compiled):
            before = dict(table)
            outcomes.append((one(torch.ones(2), k), list(table.items())))
            if one is f:
                table.clear()
                table.update(before)
        same(outcomes[0][0], outcomes[1][0])
        assert outcomes[0][1] == outcomes[1][1]
    told = fresh.explain(f)(torch.ones(2), "new")
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_the_state_of_the_generator_is_one_break(fresh):
    def f(x):
        state = torch.get_rng_state()
        return F.dropout(x, 0.5, True) * 2, state

    told = fresh.explain(f)(torch.ones(8))
    assert (told.graph_count, [r.split("]")[0] for r in told.break_reasons]) == (1, ["break[FJ0017"]), str(told)
    compiled = fresh.compile(f)
    for seed in range(3):
        outcomes = []
        for one in (f, compiled):
            torch.manual_seed(seed)
            outcomes.append((*one(torch.ones(8)), torch.get_rng_state()))
        same(*map(list, outcomes))


def test_writes_to_classes_of_tensors_show_in_tensors(fresh):

    def f(x):
        torch.Tensor.fj_mark = x.shape[0]
        return x * x.fj_mark

    compiled = fresh.compile(f)
    try:
        for n in (2, 3, 2, 3):
            assert compiled(torch.ones(n)).tolist() == [float(n)] * n
    finally:
        del torch.Tensor.fj_mark


def test_the_dict_of_a_class_shows_later_writes(fresh):

    class A:
        n = 1

    def f(x):
        seen = vars(A)
        A.n += 1
        return x * seen["n"]

    compiled = fresh.compile(f)
    assert [compiled(torch.ones(1)).item() for _ in range(4)] == [2, 3, 4, 5]


def test_what_is_deleted_and_put_back_comes_last(fresh):
    d = {}

    def f(x):
        d.pop("a", None)
        d["a"] = x
        return x + 1, list(d)

    compiled, x = fresh.compile(f), torch.ones(1)
    for _ in range(4):
        d.clear()
        d["a"], d["b"] = x, 2
        assert compiled(x)[1] == ["b", "a"] == list(d)


def test_random_factories_that_c_code_calls_draw_once(fresh):

    def f(x):
        return x + 1, list(map(torch.rand, [2, 3]))

    compiled = fresh.compile(f)
    for _ in range(3):
        torch.manual_seed(3)
        wanted = f(torch.ones(1))[1] + [torch.rand(1)]
        torch.manual_seed(3)
        got = compiled(torch.ones(1))[1] + [torch.rand(1)]
        assert [t.tolist() for t in got] == [t.tolist() for t in wanted]


def test_linearize_of_what_draws_draws_as_torch_does(fresh):

    def f(x):
        out, along = torch.func.linearize(lambda z: z * torch.rand(3), x)
        return out, along(x), along(x)

    compiled = fresh.compile(f)
    for _ in range(3):
        torch.manual_seed(3)
        wanted = f(torch.ones(3))
        torch.manual_seed(3)
        assert [t.tolist() for t in compiled(torch.ones(3))] == [t.tolist() for t in wanted]


def test_a_function_that_is_replaced_by_one_that_calls_it(fresh, monkeypatch):
    own = torch.linalg.eigvalsh
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda x: own(x) * 2)
    compiled = fresh.compile(lambda x: torch.linalg.eigvalsh(x))
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.eye(2)), torch.full((2,), 2.0))


class Settled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

    def forward(self, x, like):
        self.inner.to(like)
        self.inner.to(device=like.device, dtype=torch.float32)
        return self.inner(x)


def test_a_module_that_is_put_where_it_is_is_one_graph(fresh):
    net = Settled().eval()
    before = {name: (t, t.data_ptr(), t._version) for name, t in net.state_dict(keep_vars=True).items()}
    compiled = fresh.compile(net)
    for n in (5, 6, 7):
        x = torch.randn(n, 3)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, torch.zeros(1)), net(x, torch.zeros(1)))
    told = fresh.explain(net)(torch.randn(5, 3), torch.zeros(1))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    for name, t in net.state_dict(keep_vars=True).items():
        assert before[name][0] is t and before[name][1:] == (t.data_ptr(), t._version)


def test_a_module_that_is_put_elsewhere_is_as_in_eager(fresh):
    nets = [torch.nn.Linear(3, 4) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())

    def f(net, x):
        net.to(x.dtype)
        return net(x)

    compiled = fresh.compile(f)
    for dtype in (torch.float32, torch.float32, torch.float64, torch.float64, torch.float32):
        x = torch.randn(2, 3).to(dtype)
        want, got = f(nets[0], x), compiled(nets[1], x)
        torch.testing.assert_close(want, got)
        assert nets[1].weight.dtype == dtype and isinstance(nets[1].weight, torch.nn.Parameter)
        want.sum().backward(), got.sum().backward()
        torch.testing.assert_close(nets[0].weight.grad, nets[1].weight.grad)


@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 1, 1), (2, 3, 4), (2, 3, 4, 5, 6), (1, 3, 7, 7)])
def test_how_a_tensor_lies_is_no_break(fresh, sizes):
    def f(x):
        formats = (torch.channels_last, torch.channels_last_3d, torch.contiguous_format)
        return x + 1, [x.is_contiguous(memory_format=m) for m in formats], x.is_contiguous(memory_format=torch.channels_last)

    x = torch.randn(*sizes)
    forms = [x, x.transpose(0, -1), x.movedim(1, -1).contiguous().movedim(-1, 1)]
    if len(sizes) == 4:
        forms.append(x.to(memory_format=torch.channels_last))
    for dynamic in (None, True):
        compiled = fresh.compile(f, fullgraph=True, dynamic=dynamic)
        for form in forms:
            want, got = f(form), compiled(form)
            assert torch.equal(want[0], got[0]) and want[0].stride() == got[0].stride() and want[1:] == got[1:]


FREQUENCIES = [torch.tensor(2.0), torch.tensor(3.0)]


def scaled(x, factor=FREQUENCIES[0], *, shift=FREQUENCIES[1]):
    return x * factor + shift


@pytest.mark.parametrize("grad", [False, True])
def test_defaults_that_are_tensors(fresh, grad):
    embed = [lambda x: x, *(lambda x, p=p, f=f: p(x * f) for f in FREQUENCIES for p in (torch.sin, torch.cos))]

    def f(x):
        return torch.cat([fn(x) for fn in embed], -1) + scaled(x, shift=1.0).sum() + scaled(x).sum() + scaled(x, 2.0).sum() + scaled(x, factor=x).sum()

    alike(fresh, f, [lambda: (torch.arange(3.0, requires_grad=grad),), lambda: (torch.ones(3, requires_grad=grad),)])
    compiled = fresh.compile(f)
    for _ in range(3):  # they are read in each call
        FREQUENCIES[0].add_(1)
        torch.testing.assert_close(compiled(torch.ones(3)), f(torch.ones(3)))
    scaled.__defaults__ = (torch.tensor(7.0),)
    try:
        torch.testing.assert_close(compiled(torch.ones(3)), f(torch.ones(3)))
    finally:
        scaled.__defaults__ = (FREQUENCIES[0],)


class Sized:
    def __init__(self, size):
        self.size, self.computed = size, 0

    @functools.cached_property
    def scale(self):
        self.computed += 1
        return self.size**-0.5

    @functools.cached_property
    def mask(self):
        return torch.ones(self.size, self.size).triu(1).bool()


@pytest.mark.parametrize("cached", [False, True])
def test_cached_properties(fresh, cached):
    def f(x, sized):
        return (x * sized.scale).masked_fill(sized.mask, -1.0), sized.scale

    def arguments():
        sized = Sized(4)
        if cached:
            f(torch.ones(4, 4), sized)
        return torch.rand(4, 4), sized

    told = fresh.explain(f)(*arguments())
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for _ in range(3):
        x, sized = arguments()
        same(list(compiled(x, sized)), list(f(x, arguments()[1])))
        assert sized.computed == 1 and set(vars(sized)) == {"size", "computed", "scale", "mask"}


def advanced(state, step):
    state = torch.tanh(state * 0.5 + step).exp() / 2 - step.abs().sqrt()
    return torch.sin(state) + torch.cos(state * 2) - state.abs() * 0.1 + step * step


def recurrent(state, steps):
    for step in steps:
        state = advanced(advanced(advanced(state, step), step + 1), step - 1)
    return state


@pytest.mark.parametrize("rounds", [4, 17])
def test_loops_of_much_in_called_functions(fresh, rounds):
    """A recurrent layer without weights in its steps: more than 720 calls of the framework in few rounds."""

    def f(x):
        return recurrent(x[0] * 2, [x[i] for i in range(x.shape[0])]) + 1

    told = fresh.explain(f)(torch.rand(rounds, 3))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for _ in range(2):
        x = torch.rand(rounds, 3)
        torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_elements_of_numpy_arrays_beside_tensors(fresh, dtype):
    """A schedule by epochs, say: an element of an array of float64 is a float of Python's."""
    schedule = np.array([0.1, 1 / 3, 7e-9, 1e30, np.inf])

    def f(x, epoch):
        t = schedule[epoch]
        return x / t, x * t, x + t, x - t, x > t, x.mul(schedule[1]), torch.add(x, schedule[0])

    x = torch.arange(-2, 4).to(dtype)
    told = fresh.explain(f)(x, 0)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for epoch in (0, 0, 1, 2, 3, 4, 0):
        schedule[0] += 0.25
        want, got = f(x, epoch), compiled(x, epoch)
        assert [t.dtype for t in want] == [t.dtype for t in got]
        same(list(got), list(want))


def test_elements_of_numpy_arrays_in_training(fresh):
    schedule = np.linspace(0.04, 0.07, 4)

    def f(x, y):
        targets = ((y - x.mean()) / schedule[2]).softmax(-1).detach().chunk(2)
        return sum((-t * (x / schedule[1]).log_softmax(-1)).sum(-1).mean() for t in targets)

    told = fresh.explain(f)(torch.rand(2, 3, requires_grad=True), torch.rand(4, 3))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for _ in range(3):
        schedule += 0.01
        x, y = torch.rand(2, 3), torch.rand(4, 3)
        xs = [x.clone().requires_grad_() for _ in range(2)]
        got, want = compiled(xs[0], y), f(xs[1], y)
        got.backward(), want.backward()
        torch.testing.assert_close((got, xs[0].grad), (want, xs[1].grad))
    assert fresh.cache_info(compiled)["notes"] == []


def test_a_step_ends_one_graph_at_backward(fresh):
    """The call is one break, wherever it is met; plumbing of torch that it runs is none."""

    def run(compile, momentum):
        torch.manual_seed(0)
        m = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(m.parameters(), 0.1, momentum=momentum)

        def step(x):
            optimizer.zero_grad()
            loss = m(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        compiled = compile(step)
        return compiled, [compiled(torch.ones(3, 4) / (k + 1)).item() for k in range(5)], [p.detach().clone() for p in m.parameters()]

    def explained(step):
        def call(x):
            told = fresh.explain(compiled)(x)
            assert (told.graph_count, told.graph_break_count) == (2, 1), str(told)
            return told.result

        compiled = fresh.compile(step)
        return call

    for momentum in (0, 0.9):
        torch.testing.assert_close(run(explained, momentum)[1:], run(lambda f: f, momentum)[1:], rtol=1e-6, atol=1e-7)


def test_methods_of_results_are_those_of_the_class(fresh):
    def f(x):
        y = x + 1
        return y.backward, y.__len__, y

    method, length, y = fresh.compile(f)(torch.ones(2))
    assert method.__func__ is torch.Tensor.backward and method.__self__ is y
    assert length() == 2
    told = fresh.explain(f)(torch.ones(2))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def one_graph(fresh, segments=None):
    """Compiles functions each of whose calls must be one graph, of at most so many segments in all."""

    def compile(f):
        compiled = fresh.compile(f)

        def call(*args):
            told = fresh.explain(compiled)(*args)
            assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
            assert segments is None or fresh.cache_info(compiled)["segments"] <= segments
            return told.result

        return call

    return compile


def test_defaultdicts_that_are_written_and_read_as_a_whole(fresh):
    def run(compile):
        counts, states, key = collections.defaultdict(float, a=1.0), collections.defaultdict(dict), torch.ones(3)

        def f(x, name):
            counts[name] += 0.5
            counts["b"] = 2.0
            y = x * sum(counts.values()) + len(counts)
            counts["c"] += 1
            state = states[key]
            if "step" not in state:
                state["step"], state["mean"] = 0, torch.zeros_like(x)
            state["step"] += 1
            state["mean"].mul_(0.5).add_(x)
            return y + state["mean"], dict(counts), counts.copy(), list(counts.items()), "zz" in counts, repr(counts)

        f = compile(f)
        out = []
        for k, name in enumerate(("a", "n", "n", "a")):
            *whole, copied, items, there, text = f(torch.ones(3) * k, name)
            assert type(copied) is collections.defaultdict and copied.default_factory is float and copied is not counts
            state = states[key]
            out.append((*whole, dict(copied), items, there, text, list(counts.items()), state["step"], state["mean"].clone()))
        return out

    same(run(one_graph(fresh)), run(lambda f: f))


@pytest.mark.parametrize("make", ["tensor", "as_tensor", "from_numpy"])
def test_arrays_that_map_makes_tensors_of(fresh, make):
    make = getattr(torch, make)

    def f(arrays, x):
        a, b = map(make, arrays)
        (c,) = map(make, (x * 2,))
        return a * 2, b + 1, c

    def call(k):
        return [np.full((3, 2), k, np.float32), np.arange(3) + k], np.ones(2) * k

    told = fresh.explain(f)(*call(0))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for k in range(3):
        for mine, theirs in zip(compiled(*call(k)), f(*call(k)), strict=True):
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [dict, functools.partial(collections.defaultdict, list)])
def test_dicts_that_take_over_others(fresh, kind):
    """dict.update of dicts that come from outside, and by keywords; numbers that change cost no versions."""

    def run(compile):
        logs, state = kind(a=1), {"w": torch.ones(2), 3: "three"}

        def f(x, news, k):
            logs.update(news or {})
            logs.update(state, k=k)
            logs.update(last=x * 2)
            logs.update()
            return x + logs["w"] + logs.get("loss", 0), logs["k"]

        f = compile(f)
        out = []
        for k in range(12):
            state["w"] = state["w"] + 1
            news = {"loss": 0.5 * k + 0.25, "t": torch.full((2,), k)} if k else None
            out.append((*f(torch.ones(2) * k, news, k), list(logs), list(logs.values()), logs["w"] is state["w"], news is None or logs["t"] is news["t"]))
        return out

    same(run(one_graph(fresh, segments=6)), run(lambda f: f))


def test_map_of_functions_of_numpy(fresh):
    def f(a, b):
        (x, y, n), (u, v) = map(np.array, [a / 12, b, 120]), map(np.asarray, (a, [1.0, 2.0]))
        x += 1  # a copy
        return x * y + n, v.sum() + np.sin(u), u is a

    compiled = fresh.compile(f)
    for size in (5, 8, 8):
        a, b = np.linspace(0.0, 1.0, size), np.arange(float(size))
        got, want = compiled(a, b), f(a, b)
        assert got[2] is want[2] and all(g.dtype == w.dtype and np.allclose(g, w, 1e-14) for g, w in zip(got[:2], want[:2]))
        assert a[0] == 0.0
    assert fresh.cache_info(compiled)["breaks"] == 0
    assert len(compiled.graphs) > 0
