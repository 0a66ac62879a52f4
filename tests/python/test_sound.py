"""What a program sees of gradients, versions, operators and containers beside values: each of these was once another than eager's."""

import collections
import functools
import re

import framejit
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("fresh")
GRAD = torch.autograd.grad


def x3():
    return torch.arange(1.0, 4.0).requires_grad_()


def graphs(f, *args):
    told = framejit.explain(f)(*args)
    return told.graph_count, told.graph_break_count


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].exp()


def hidden(x):  # a result leads to another through a value of which nobody holds but a part without gradients
    x = x * 1.5
    middle = x.sum().clone()
    return middle.detach(), x.flip(0), Root.apply(x) * middle


def written(x):  # of a view that was there before the write
    y = x * 2
    flat = y.view(-1)
    y.add_(1)
    return y, (flat * flat).sum()


def state(x):
    held.add_(1)
    return ((x + held) ** 3).sum(), (x + held).sin()


held = torch.zeros(3)


@pytest.mark.parametrize("f, by", [(hidden, 1), (written, 0), (state, None)], ids=["hidden", "written", "state"])
def test_a_derivative_by_a_result_can_be_differentiated(f, by):
    seen = []
    for g in (f, framejit.compile(f)):
        held.zero_()
        runs = []
        for _ in range(3):
            x = x3()
            results = g(x)
            looked_for = x if by is None else results[by]
            loss = (results[-1] * results[-1]).sum() + results[1].sum()
            (first,) = GRAD(loss, looked_for, create_graph=True, allow_unused=True)
            second = first if first is None or not first.requires_grad else GRAD(first.sum(), x, allow_unused=True)[0]
            runs.append((first, second))
        seen.append(runs)
    torch.testing.assert_close(seen[1], seen[0])


def test_a_state_that_is_written_stays_one_graph():
    assert graphs(state, x3()) == (1, 0)
    compiled = framejit.compile(state)
    for _ in range(3):
        compiled(x3())[0].backward()
    assert set(framejit.cache_info(compiled)["outcomes"]["run"]) == {"graph"}


ONES = {
    "t": (lambda x: x.t() * 2, (1, 4)),
    "t reshape": (lambda x: x.t().reshape(-1) * 2, (1, 4)),
    "stack": (lambda x: torch.stack([x, x * 2], 1).sin(), (1, 4)),
    "select": (lambda x: x[0] * 2, (1, 4)),
    "expand": (lambda x: x.expand(3, 4) * 2, (1, 4)),
    "unsqueeze": (lambda x: x.unsqueeze(0).transpose(0, 1).sin(), (4, 1)),
    "permute": (lambda x: x.permute(2, 0, 1).reshape(-1) * 2, (1, 4, 3)),
    "heads": (lambda x: x.view(1, 4, 2, 3).transpose(1, 2).softmax(-1), (1, 4, 6)),
    "where": (lambda x: torch.where(x > 0, x, x.t().reshape(1, 4)), (1, 4)),
    "sum": (lambda x: x.sum(0), (1, 4)),
    "squeeze": (lambda x: x.squeeze(1) * 2, (4, 1, 3)),
    "cat": (lambda x: torch.cat([x, x], 1) * 2, (2, 1)),
    "cat of rows": (lambda x: torch.cat([x, x], 1) * 2, (1, 4)),
    "spread and turned": (lambda x: x.transpose(0, 1) * x.sum(), (1, 4)),
    "turned twice": (lambda x: (x.t().reshape(-1) * 2).sum() + (x.transpose(0, 1) * x.sum()).sum(), (4, 1)),
}


@pytest.mark.parametrize("name", ONES)
@pytest.mark.parametrize("spread", [False, True])
def test_strides_of_gradients_where_a_size_is_one(name, spread):
    f, shape = ONES[name]
    seen = []
    for g in (f, framejit.compile(f)):
        runs = []
        for k in range(3):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(k)).requires_grad_()
            y = g(x)
            y.sum().backward() if spread else y.backward(torch.ones(y.shape))
            runs.append((x.grad, x.grad.stride(), x.grad._is_view()))
        seen.append(runs)
    for got, expected in zip(seen[1], seen[0]):
        assert got[1:] == expected[1:]
        torch.testing.assert_close(got[0], expected[0])


def added(x):
    y = x * 2
    y += 1
    return y, y.view(-1)


def filled(x):
    y = torch.zeros(3)
    y[0] = x[0]
    y[1:].copy_(x[1:])
    y.data.add_(1)
    return y, y.clone()


@pytest.mark.parametrize("f", [added, filled])
@pytest.mark.parametrize("gradients", [False, True])
def test_versions_of_results(f, gradients):
    compiled = framejit.compile(f, fullgraph=True)
    for _ in range(3):
        args = [torch.arange(3.0).requires_grad_(gradients) for _ in "ab"]
        got, expected = compiled(args[0]), f(args[1])
        assert [t._version for t in got] == [t._version for t in expected]
        if gradients:
            got[0].sin().sum().backward(), expected[0].sin().sum().backward()
            torch.testing.assert_close(args[0].grad, args[1].grad)


def grows(s, x):
    for k in s:
        s.add(k + 10)
        x = x + k
    return x


def shrinks(s, x):
    for k in s:
        x = x + k
        s.discard(k)
    return x


def keeps(s, x):
    for k in s:
        s.discard(k)
        s.add(k)
        x = x + k
    return x


def behind(s, x):
    for k in s:
        x = x + k
    s.add(9)
    return x


@pytest.mark.parametrize("f", [grows, shrinks, keeps, behind])
def test_a_set_that_is_changed_while_it_is_gone_through(f):
    seen = []
    for g in (f, framejit.compile(f)):
        runs = []
        for _ in range(3):
            s = {1, 2}
            try:
                runs.append(g(s, torch.ones(2)).tolist())
            except RuntimeError as error:
                runs.append(str(error))
            runs.append(s)
        seen.append(runs)
    assert seen[0] == seen[1]
    if f is behind:
        assert graphs(f, {1, 2}, torch.ones(2)) == (1, 0)


@pytest.mark.parametrize("power", [-0.5, 0.5, 1.5, -1.5, -1, -2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_powers_at_special_values(power, dtype):
    values = torch.tensor([-torch.inf, torch.inf, 0.0, -0.0, torch.nan, -1.0, 1.0, 2.0] * 4, dtype=dtype)
    grads = []
    for f in (lambda x: x**power, framejit.compile(lambda x: x**power)):
        x = values.clone().requires_grad_()
        f(x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0], equal_nan=True)
    signed = grads[0] == 0
    assert torch.equal(grads[1][signed].signbit(), grads[0][signed].signbit())


def test_the_derivative_of_glu_at_large_values():
    values = torch.tensor([1e38, 100.0, -1e38, 100.0, 1e38, -100.0, 3.0, 1.0] * 4)
    grads = []
    for f in (F.glu, framejit.compile(lambda x: F.glu(x))):
        x = values.clone().requires_grad_()
        (f(x) * 10).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])


LAYOUTS = {
    "unsafe_view": lambda y: torch.ops.aten._unsafe_view(y, [y.numel()]),
    "view_as_complex": lambda y: torch.view_as_complex(y.reshape(-1, 2)),
    "view of another type": lambda y: y.view(torch.int16),
    "as_strided": lambda y: y.as_strided((2, 2), (1, 2)),
    "take": lambda y: torch.take(y, torch.tensor([1, 2])),
}
COPIES = {
    "contiguous": lambda x: x.t().contiguous(),
    "clone": lambda x: x.t().clone(memory_format=torch.contiguous_format),
    "part": lambda x: x[:, ::2].contiguous(),
    "spread": lambda x: x[:, :1].expand(2, 4).contiguous(),
    "made": lambda x: (x + 1).t().contiguous(),
}


@pytest.mark.parametrize("call", LAYOUTS)
@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_of_a_view_lies_row_by_row_where_a_call_looks(call, copy):
    def f(x):
        return LAYOUTS[call](COPIES[copy](x))

    compiled = framejit.compile(f)
    for _ in range(2):
        x = torch.arange(8.0).view(2, 4)
        got, expected = compiled(x), f(x)
        assert torch.equal(got, expected) and got.stride() == expected.stride()
    assert set(framejit.cache_info(compiled)["outcomes"]["run"]) == {"graph"}


@pytest.mark.parametrize("rows", [84, 120])
def test_sums_along_few_rows_are_as_exact_as_eagers(rows):
    f = framejit.compile(lambda x, y: (x * y).sum(0))
    errors = [0.0, 0.0]
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        x, y = (torch.rand(rows, 128, generator=draw) for _ in "xy")
        exact = (x.double() * y.double()).sum(0)
        for k, sums in enumerate((f(x, y), (x * y).sum(0))):
            errors[k] += float((sums.double() - exact).abs().max())
    assert errors[0] <= 2 * errors[1]


PARTS = {
    "unbind": lambda y: y.unbind()[0].add_(1),
    "split": lambda y: y.split(1)[0].mul_(2),
    "chunk": lambda y: y.chunk(3)[1].zero_(),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("wants", (False, True))
def test_writes_to_one_of_several_views(part, wants):
    """With gradients they are refused as in eager; without, they are written."""

    def f(x):
        y = x * 1
        PARTS[part](y)
        return y

    compiled = framejit.compile(f)
    for rows in (3, 3, 5):
        x = torch.ones(rows, 2, requires_grad=wants)
        if wants:
            with pytest.raises(RuntimeError) as told:
                f(x)
            with pytest.raises(RuntimeError, match=re.escape(str(told.value)[:60])):
                compiled(x)
        else:
            assert torch.equal(compiled(x), f(x))
    assert wants or compiled.cache_info()["kernels"]


def test_an_array_has_no_hash():
    np = pytest.importorskip("numpy")
    compiled = framejit.compile(lambda a: (a + 1, hash(a + 1)))
    for _ in range(3):
        with pytest.raises(TypeError, match="unhashable"):
            compiled(np.ones(3))


def test_a_cache_that_is_too_small_counts_as_in_eager():
    def made():
        calls = []
        cached = functools.lru_cache(maxsize=2)(lambda n: calls.append(n) or n * 2)

        def f(x, n):
            return x * cached(n) * cached(n + 1) * cached(n + 2), tuple(cached.cache_info()), len(calls)

        return f

    f, compiled = made(), framejit.compile(made())
    for n in (0, 0, 1, 2, 3, 1, 0, 0):
        (x, *counts), (y, *others) = f(torch.ones(2), n), compiled(torch.ones(2), n)
        assert torch.equal(x, y) and counts == others


@pytest.mark.parametrize("kind", ("LSTM", "GRU", "RNN"))
@pytest.mark.parametrize("both", (False, True))
def test_gradients_use_the_mask_that_the_forward_pass_drew(kind, both):
    torch.manual_seed(0)
    module, x = getattr(torch.nn, kind)(3, 4, 2, dropout=0.5, bidirectional=both), torch.randn(5, 2, 3)

    def loss(x):
        return module(x)[0].square().sum()

    compiled = framejit.compile(loss)
    for seed in range(3):
        found = []
        for f in (loss, compiled):
            torch.manual_seed(seed)
            found.append(GRAD(f(x), list(module.parameters())))
        for expected, got in zip(*found):
            torch.testing.assert_close(got, expected)
    assert compiled.cache_info()["segments"]


SCANS = {
    "t": lambda x: x.cumsum(0).t() * x,
    "t of rows": lambda x: x.cumsum(1).t() * x,
    "both": lambda x: (x.cumsum(0).t() * x, x.cumsum(0)),
    "normed": lambda x: F.layer_norm(x * x.cumsum(0).t(), x.shape[-1:]),
    "three": lambda x: x[None].expand(4, -1, -1).cumsum(1).transpose(1, 2) * x,
    "flipped": lambda x: x.cumsum(0).flip(1).t() * x,
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("size", (4, 40))
def test_a_scan_beside_other_reads_of_what_it_reads(name, size):
    """It runs along its own axis, whatever order the other reads of its operand have."""
    f = SCANS[name]
    x = torch.randn(size, size, dtype=torch.float64)
    told = framejit.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0)
    torch.testing.assert_close(framejit.compile(f)(x), f(x))


@pytest.mark.parametrize("kind", [torch.nn.BatchNorm1d, torch.nn.InstanceNorm1d])
@pytest.mark.parametrize("wants", [False, True])
def test_statistics_count_their_writes_as_in_eager(kind, wants):
    # A pass that keeps the mean from before is refused only where torch refuses it.
    seen = []
    for wrap in (lambda f: f, framejit.compile):
        norm = kind(3, track_running_stats=True)
        f, x = wrap(lambda x: norm(x) * 2), torch.arange(24.0).view(2, 3, 4).sin().requires_grad_(wants)  # noqa: B023
        for _ in range(3):
            w = torch.ones(3, requires_grad=True)
            kept, before = (w * norm.running_mean).sum(), norm.running_mean._version
            f(x)
            try:
                kept.backward()
                refused = ""
            except RuntimeError as error:
                refused = str(error)[:60]
            seen.append((norm.running_mean._version - before, norm.num_batches_tracked.item(), refused))
    assert seen[:3] == seen[3:]
    assert graphs(lambda x: norm(x) * 2, x) == (1, 0)


def test_torchs_state_beside_numpy_alone(fresh):
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    f = fresh.compile(lambda a: (a * 2, torch.is_grad_enabled()))
    assert [f(np.ones(2))[1], f(np.ones(3))[1]] == [True, True]
    with torch.no_grad():
        assert f(np.ones(2))[1] is False
    assert fresh.cache_info(f)["breaks"] == 0


def test_python_has_small_numbers_once(fresh):
    np = pytest.importorskip("numpy")

    def f(a):
        count = 0
        for _ in range(a.shape[0]):
            count += 1
        return a * 2, count is a.shape[0], a.shape[0] is a.shape[1], a.shape[0] + 1 is a.shape[0]

    g = fresh.compile(f)
    for size in [(3, 3), (4, 4), (5, 6), (9, 9), (300, 2), (257, 257), (7, 7)]:
        assert g(np.ones(size))[1:] == f(np.ones(size))[1:]


@pytest.mark.parametrize("make", [lambda: "".join(["ab", "c!"]), lambda: complex(1, 2), lambda: bytes([3, 4]), lambda: float("2.5"), lambda: 10**20])
def test_an_equal_value_of_another_call_is_that_object(make, fresh):
    np = pytest.importorskip("numpy")
    f = fresh.compile(lambda a, v: (a * 2, v, [v], {v: v}))
    for _ in range(3):
        value = make()
        _, alone, items, table = f(np.ones(2), value)
        assert alone is value and items[0] is value and next(iter(table)) is value and table[value] is value
    assert fresh.cache_info(f)["captures"] - fresh.cache_info(f)["recompiles"] == 1


@pytest.mark.parametrize("make", [lambda: "".join(["ab", "c!"]), lambda: complex(1, 2), lambda: bytes([3, 4]), lambda: float("2.5"), lambda: (1, float("2.5"))])
def test_equal_values_from_two_places_are_the_object_of_each(make, fresh):
    np = pytest.importorskip("numpy")
    f = fresh.compile(lambda a, v, w: (a * 2, v, [w], (v, w)))
    for same in (True, False, True, False):
        v = make()
        w = v if same else make()
        _, alone, items, both = f(np.ones(2), v, w)
        assert alone is v and items[0] is w and both[0] is v and both[1] is w
    info = fresh.cache_info(f)
    assert info["recompiles"] == 1 and info["breaks"] == 0


Pair = collections.namedtuple("Pair", "a b")


def _through_pytree(t):
    return torch.utils._pytree.tree_map(lambda v: v * 2 if isinstance(v, torch.Tensor) else v, t)


def _by_hand(t):
    if isinstance(t, dict):
        return {k: _by_hand(v) for k, v in t.items()}
    if isinstance(t, (list, tuple)):
        return type(t)(map(_by_hand, t)) if not hasattr(t, "_fields") else type(t)(*map(_by_hand, t))
    return t + t if isinstance(t, (int, float, str, torch.Tensor)) else str(type(t))


@pytest.mark.parametrize("f", [_through_pytree, _by_hand])
def test_arguments_of_very_many_types(f, fresh):
    def x():
        return torch.arange(3.0)

    def values():
        return [x(), [x()], (x(),), {"a": x()}, {"a": [x(), 1]}, Pair(x(), 1), collections.OrderedDict(a=x()), None, 1, "a", {1: x()}, {"a": (x(), {"b": x()})}, [],
                {}, (), 1.5, [1, x()], slice(1, 2), frozenset([1]), b"a", [[[[x()]]]], True, torch.float32, range(3), 1j, object, len, x().long(), x()[None]]  # fmt: skip

    def text(value):
        return f"{type(value).__name__} {value!r}"

    compiled = fresh.compile(f)
    for _ in range(3):
        for mine, theirs in zip(values(), values()):
            assert text(compiled(mine)) == text(f(theirs))
    assert compiled.cache_info()["segments"] >= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_derivative_of_a_quotient_that_is_cut_off(dtype, fresh):
    """Zeros, also where the quotient is no number."""

    def f(x, y):
        return torch.div(x, y, rounding_mode="trunc"), x.div(2.5, rounding_mode="trunc")

    compiled = framejit.compile(f)
    for _ in range(2):
        seen = []
        for g in (f, compiled):
            x, y = (torch.tensor(v, dtype=dtype, requires_grad=True) for v in ([1.0, 0.0, -7.0, float("inf"), 3.0], [0.0, 0.0, 2.0, 1.0, float("nan")]))
            a, b = g(x, y)
            (a.nan_to_num().sum() + b.sum()).backward()
            seen.append((a, b, x.grad, y.grad))
        for theirs, ours in zip(*seen, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert compiled.cache_info()["segments"] == 1 and not compiled.cache_info()["breaks"]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "store",
    [
        lambda y, i: y[1].__setitem__(i, y[:1, :1]),
        lambda y, i: y[1].__setitem__(i, torch.ones(1, 1, 1)),
        lambda y, i: y.__setitem__(i, y[None, 1:2].clone()),
        lambda y, i: y.__setitem__((slice(None), i), torch.ones(1, 1, 1) * 3),
        lambda y, i: y.__setitem__(y > 0, torch.ones(1, 1)),
        lambda y, i: y.__setitem__((i, i), y[:1, :1].exp()),
    ],
)
def test_leading_dimensions_of_one_element_are_dropped_where_a_value_is_stored(store, rows, fresh):
    def f(x, i):
        y = x * 1
        store(y, i)
        return y

    compiled = framejit.compile(f)
    for wants in (False, True):
        for _ in range(2):
            seen = []
            for g in (f, compiled):
                x = torch.arange(2.0 * rows).reshape(2, rows).sub(1).requires_grad_(wants)
                seen.append([g(x, torch.tensor([0]))])
                if wants:
                    seen[-1][0].square().sum().backward()
                    seen[-1].append(x.grad)
            for theirs, ours in zip(*seen, strict=True):
                assert theirs.equal(ours)
    assert compiled.cache_info()["segments"] and not compiled.cache_info()["breaks"]


def test_a_tensor_of_inference_mode_that_cannot_be_saved(fresh):
    """It is refused where the program asks for that, behind what it has done before."""

    def f(x, w, log):
        log.append(len(log))
        y = x + 1
        z = y @ w
        log.append("no")
        return z * 2

    compiled = framejit.compile(f)
    for x in (torch.ones(2, 3), None, None, torch.ones(2, 3), None):
        seen = []
        for g in (f, compiled):
            log, w = [], torch.ones(3, 2, requires_grad=True)
            with torch.inference_mode():
                inner = torch.ones(2, 3)
            try:
                g(inner if x is None else x, w, log)
            except RuntimeError as error:
                tb = error.__traceback__
                seen.append([str(error), log, tb.tb_next.tb_frame.f_code.co_name, tb.tb_next.tb_lineno])
            else:
                seen.append(log)
        assert seen[0] == seen[1]
    assert compiled.cache_info()["segments"]


EQUALS = {"int": lambda: int("3000"), "text": lambda: "ab" + str(7000), "tuple": lambda: (int("3000"), "a b"), "float": lambda: float("2.5")}


@pytest.mark.parametrize("make", EQUALS.values(), ids=EQUALS)
@pytest.mark.parametrize("where", ["names", "argument", "key", "keys", "keywords", "item of a set"])
def test_which_of_equal_values_is_one_object(make, where, fresh):
    """Two places that hold equal values hold one object in some calls, and two in others; what goes out is the object that is there."""
    np = pytest.importorskip("numpy")
    if where == "keywords" and not isinstance(make(), str):
        pytest.skip("keywords are texts")
    space = {}
    text = {
        "names": "def f(x, o, p): return x + 1, P is Q, P",
        "argument": "def f(x, o, p): return x + 1, p is P, p is Q, o[0] is p, P",
        "key": "def f(x, o, p): return x + 1, next(iter(D)) is P, P is Q, list(D)[0]",
        "keys": "def f(x, o, p):\n    for i, k in enumerate(D):\n        if k is P: return x + i, k\n    return x - 1, P",
        "keywords": "def g(p, **k): return [q is p for q in k]\ndef f(x, o, p): return x + 1, g(P, **N), [*N][0]",
        "item of a set": "def f(x, o, p): return x + 1, next(iter(S)) is P, [k for k in S][0]",
    }[where]
    exec(text, space)
    f, ran = fresh.compile(space["f"]), np.zeros(2)
    for call in range(12):
        values = [make() for _ in range(5)]
        p, q, key, item, first = (values[0] if call >> n & 1 else values[n] for n in range(5))
        space.update(P=p, Q=q, D={"first": 0, key: 1}, S={item}, N={key: 1})
        expected, got = space["f"](ran, [first], p), f(ran, [first], p)
        assert got[0].tolist() == expected[0].tolist() and got[1:] == expected[1:]
        assert got[-1] is expected[-1]
    assert fresh.cache_info(f)["outcomes"]["run"].get("graph", 0) >= 12
