"""Causes of breaks that modules of GitHub projects show: one graph, with the effects and errors that eager has."""

import copy
import math
import warnings

import pytest

import framejit

torch = pytest.importorskip("torch")
pytest.importorskip("torch.onnx.operators")
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("fresh")


def seen(f, args):
    """What a call gives or raises, and its arguments after it, with what a program can see of tensors."""

    def facts(o):
        if isinstance(o, torch.Tensor):
            return o.dtype, tuple(o.shape), o.stride(), o.requires_grad, o._version, o.detach().tolist()
        if isinstance(o, np.ndarray):
            return o.dtype, o.shape, o.strides, o.tolist()
        return type(o), [facts(x) for x in o] if isinstance(o, (list, tuple)) else o

    try:
        result = f(*args)
    except Exception as error:
        result = error
        return type(error), str(error), facts(args)
    return facts(result), facts(args)


def whole(f, calls, raising=(), runs="graph"):
    """As eager for all calls, of functions that make arguments, in graphs without a break. The calls of `raising` raise."""
    compiled = framejit.compile(f)
    for make in (*calls, *calls):
        got, want = seen(compiled, make()), seen(f, make())
        assert repr(got) == repr(want), (got, want)
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"].get(runs), told
    for make in raising:
        got, want = seen(compiled, make()), seen(f, make())
        assert repr(got) == repr(want) and isinstance(want[1], str), (got, want)


def test_items_that_are_rounded():
    def f(x):
        v = x.max().item()
        return x * math.ceil(v) + math.floor(v * 2), round(v), math.trunc(v * 3.7)

    def make(*values):
        return lambda: (torch.tensor(values, dtype=torch.float64),)

    values = [(0.25, -1.0), (0.5, 0.0), (1.5, 1.0), (2.5, -7.0), (0.0, -0.0), (1e9 + 0.5, 3.0), (1.0, 2.0)]
    raising = [make(math.nan, 1.0), make(1.0, math.inf), make(-math.inf, -math.inf)]
    whole(f, [make(*v) for v in values], raising)
    compiled = framejit.compile(f)
    for v in ((-0.5, -3.0), (-1.75, -2.0), (-2.5, -3.5), (0.7, 0.0), (-1e300, -1e300)):
        assert repr(seen(compiled, make(*v)())) == repr(seen(f, make(*v)()))


def test_roots_of_items():
    def f(x):
        return x / math.sqrt(x.sum().item()), math.fabs(x[0].item()) + math.sqrt(2.0)

    def make(*values):
        return lambda: (torch.tensor(values),)

    whole(f, [make(0.1, 0.7), make(-0.25, 3.0), make(1.0, 0.0), make(5e-39, 0.0)], [make(-1.0, 0.5)])


def test_an_item_that_is_rounded_to_digits_breaks():
    def f(x):
        return x + round((x + 1).sum().item(), 1)

    compiled = framejit.compile(f)
    assert torch.equal(compiled(torch.tensor([0.25, 0.5])), f(torch.tensor([0.25, 0.5])))
    assert framejit.cache_info(compiled)["breaks"] == 1


def shaped(x, y):
    s = torch._shape_as_tensor(x)
    flat = torch._reshape_from_tensor(x, torch.cat([s[:1] * s[1:2], s[2:]]))
    return flat + 1, s, torch._reshape_from_tensor(y, torch.tensor([-1])).sum()


def flattened(x):
    size = torch.onnx.operators.shape_as_tensor(x)
    flat = torch.onnx.operators.reshape_from_tensor_shape(x, torch.cat((torch.LongTensor([-1]), size[2].view(1))))
    return torch.onnx.operators.reshape_from_tensor_shape(flat * 3, torch.cat((size[:2], torch.LongTensor([-1]))))


def test_a_shape_with_one_size_left_out():
    whole(flattened, [lambda: (torch.arange(24.0).reshape(2, 3, 4),)])


def test_shapes_that_are_tensors():
    whole(shaped, [lambda n=n: (torch.arange(12.0 * n).reshape(n, 3, 4), torch.arange(4.0 * n).reshape(n, 4)) for n in (2, 5, 1, 3)])


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_grids(indexing):
    def f(x, y, z):
        a, b = torch.meshgrid(x, y, indexing=indexing)
        c, d, e = torch.meshgrid([y, z, x], indexing=indexing)
        (alone,) = torch.meshgrid(x, indexing=indexing)
        return a, b, a * b, c + d * e, d, alone

    def make(n, m, k):
        return lambda: (torch.arange(1.0 * n), torch.arange(2.0, m + 2), torch.tensor(3.0) if k is None else torch.arange(1.0 * k))

    whole(f, [make(5, 3, 2), make(4, 3, 2), make(1, 3, 2), make(2, 1, 4), make(3, 2, None), make(0, 2, 1)], runs="framework")  # for its views


def test_what_is_computed_of_grids_alone():
    def f(x, y, z):
        a, b = torch.meshgrid(x, y, indexing="xy")
        c, d, e = torch.meshgrid([y, z, x], indexing="xy")
        return a.contiguous().mul_(2) + b, c + d * e, b.stride(), e.stride()

    whole(f, [lambda n=n, m=m, k=k: (torch.arange(1.0 * n), torch.arange(2.0, m + 2), torch.arange(1.0 * k)) for n, m, k in ((5, 3, 2), (4, 3, 2), (1, 3, 2), (2, 1, 4), (1, 1, 1))])
    for n, m in ((1, 5), (5, 1), (1, 1), (3, 4)):
        for indexing in ("ij", "xy"):
            whole(lambda x, y: (torch.meshgrid(x, y, indexing=indexing)[1].stride(), x + 1), [lambda: (torch.ones(n), torch.ones(m))])


def test_gradients_of_grids():
    def f(x, y):
        a, b = torch.meshgrid(x, y, indexing="xy")
        return (a.exp() * b.cumsum(0)).sum()

    compiled = framejit.compile(f)
    for n, m in ((3, 4), (5, 4), (2, 1)):
        grads = []
        for g in (f, compiled):
            x, y = torch.linspace(0, 1, n, requires_grad=True), torch.linspace(1, 2, m, requires_grad=True)
            g(x, y).backward()
            grads.append((x.grad, y.grad))
        torch.testing.assert_close(grads[1], grads[0])
    assert not framejit.cache_info(compiled)["breaks"]


def shifted(x):
    n, h, w, c = x.shape
    x[:, 1:, :, : c // 4] = x[:, : h - 1, :, : c // 4]
    x[:, : h - 1, :, c // 4 : c // 2] = x[:, 1:, :, c // 4 : c // 2]
    x[:, :, 1:, c // 2 : c * 3 // 4] = x[:, :, : w - 1, c // 2 : c * 3 // 4]
    x[:, :, : w - 1, 3 * c // 4 :] = x[:, :, 1:, 3 * c // 4 :]
    return x


def test_parts_that_are_stored_where_they_are_read():
    def make(*sizes):
        return lambda: (torch.arange(1.0 * math.prod(sizes)).reshape(sizes),)

    whole(lambda x: shifted(x * 1) + 1, [make(1, 4, 4, 8), make(2, 3, 5, 8), make(1, 2, 2, 4), make(2, 1, 3, 8)])
    whole(lambda x: (shifted(x), x.sum())[1], [make(1, 4, 4, 8), make(2, 6, 4, 16)])


def test_versions_of_what_is_stored_by_a_call():
    def f(x):
        y, z = x * 1, x + 1
        y[:, 1:] = y[:, :-1]
        z[:, torch.tensor([0, 1])] = x[:, :2]
        return y, z

    whole(f, [lambda n=n: (torch.arange(4.0 * n).reshape(n, 4),) for n in (3, 5, 1)])


def test_gradients_of_parts_that_are_stored_where_they_are_read():
    compiled = framejit.compile(lambda x, w: (shifted(x * w) * w).sum())
    for sizes in ((1, 4, 4, 8), (2, 3, 5, 8), (1, 4, 4, 8)):
        grads = []
        for f in (lambda x, w: (shifted(x * w) * w).sum(), compiled):
            x, w = torch.linspace(0, 1, math.prod(sizes)).reshape(sizes).requires_grad_(), torch.linspace(1, 2, sizes[-1], requires_grad=True)
            f(x, w).backward()
            grads.append((x.grad, w.grad))
        torch.testing.assert_close(grads[1], grads[0])
    assert not framejit.cache_info(compiled)["breaks"]


def test_tensors_of_a_type_of_arrays():
    def f(a, b, x):
        grid = np.float32(np.mgrid[0:3, 0:3].T)
        k = np.tile(np.sum((grid - 1) ** 2, axis=2), (2, 1, 1))
        t = torch.FloatTensor(k[:, None])
        return x * t, torch.LongTensor(a), torch.Tensor(b), torch.DoubleTensor(a) + 1, torch.FloatTensor(b.T), np.float32(b.T)

    def make(n):
        return lambda: (np.arange(n), np.arange(2.0 * n).reshape(n, 2), torch.ones(3, 3))

    whole(f, [make(3), make(4), make(1), make(2)])


def test_a_tensor_of_its_own_type_shares_the_memory_of_an_array():
    def f(a, x):
        t, u = torch.FloatTensor(a), torch.DoubleTensor(a)
        t.mul_(2)
        return t + x, u, a + 0

    whole(f, [lambda n=n: (np.arange(n, dtype=np.float32), torch.ones(n)) for n in (3, 4, 1)])


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_a_tensor_of_a_type_of_complex_numbers_is_torchs():
    def f(a, x):
        return torch.FloatTensor(a) + x, torch.LongTensor(a)

    compiled = framejit.compile(f)
    for n in (2, 2, 3):
        for got, expected in zip(compiled(np.arange(n) + 1j, torch.ones(n)), f(np.arange(n) + 1j, torch.ones(n))):
            assert got.dtype == expected.dtype and got.equal(expected)


def test_numbers_of_numpy_that_are_stored_in_tensors():
    size = np.array([3.0, 5.0])

    def f(x, a, n):
        y, z = torch.eye(2, 3), torch.zeros(3, dtype=torch.int64)
        y[0, 0] = 0.5 * size[0] / a[1]
        y[1, 1] = a[1]
        z[1] = n[0]
        return y * x, z

    whole(f, [lambda v=v: (torch.ones(3) * v, np.array([v, v / 3]), np.array([int(v) + 1])) for v in (1.5, 2.5, 7.0, 2.0**40 + 0.3)])


class Span(torch.nn.Module):
    """Its number is another one in each call, since it writes to what the number is read from."""

    def __init__(self):
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor([0.3, 4.0]))

    def largest(self):
        return math.ceil(self.value.max().item() * 3)

    def forward(self, x):
        n = self.largest()
        self.value.data.mul_(0.75)
        return x * n, int((x[0] * 2).item())


def test_numbers_that_change_beside_what_is_checked_of_them():
    mine, theirs = Span(), Span()
    compiled = framejit.compile(mine)
    with torch.no_grad():
        for k in range(8):
            x = torch.arange(1.0, 40.0) + k
            got, want = compiled(x), theirs(x)
            assert torch.equal(got[0], want[0]) and got[1] == want[1] and torch.equal(mine.value, theirs.value)
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph", 0) > 3, told


def weights(at, n, length):
    at, rows = at.cpu().numpy(), [[] for _ in range(n)]
    for i in range(n):
        for j in range(at[i][1]):
            rows[i].append(1 - (at[i][1] - j) / 40 if j else 0)
        for j in range(at[i][1], length):
            rows[i].append(1 - (j - at[i][0]) / 40)
    return torch.tensor(rows), torch.tensor([[at[0][0], 7], [at[1][1], 2]]), torch.tensor([at[0][1] / 2, 0.5, 3])


def test_counts_that_an_array_holds_in_a_function_that_is_called():
    def f(x, at):
        rows, *others = weights(at, x.size(0), x.size(1))
        return rows.unsqueeze(2) * x, others

    whole(f, [lambda: (torch.ones(2, 4, 3).double(), torch.tensor([[0, 1], [2, 3]]))])
    compiled = framejit.compile(f)
    for k in (1, 3, 0, 2):  # what is taken for granted is another one
        args = torch.ones(2, 4, 3), torch.tensor([[k, 1], [2, k]])
        assert repr(seen(compiled, args)) == repr(seen(f, args))


def test_floats_of_numpy_beside_arrays_and_tensors():
    half, wide = np.float64(0.5), np.float64(3.0)

    def f(x, a):
        w = [np.array([i]) / np.sum(i) for i in ([1.0, 2.0], [3.0, 5.0])]
        return x * torch.as_tensor(w[0] + w[1]), a * half, wide - a, a / wide, a**wide

    whole(f, [lambda n=n, t=t: (torch.ones(n, 2), np.arange(1, n + 1, dtype=t)) for n, t in ((3, "f4"), (4, "f8"), (1, "i8"), (2, "f4"))])


class Delay(torch.nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.queue, self.steps = [], steps

    def forward(self, x):
        self.queue.append(x)
        if self.queue.__len__() > self.steps:
            return self.queue.pop(0)
        return torch.zeros_like(x)


@pytest.mark.parametrize("steps", [0, 2, 3])
def test_a_list_that_is_a_queue(steps):
    mine, theirs = Delay(steps), Delay(steps)
    compiled = framejit.compile(mine)
    for k in range(9):
        x = torch.ones(3) * k
        got, want = compiled(x), theirs(x)
        assert torch.equal(got, want) and len(mine.queue) == len(theirs.queue) and all(map(torch.equal, mine.queue, theirs.queue))
        assert steps == 0 or mine.queue[-1] is x
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["segments"] <= steps + 1, told


def test_a_list_that_grows_for_ever_breaks_at_last():
    class Log(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            self.seen.append(x + 1)
            return x * len(self.seen)

    module = Log()
    compiled = framejit.compile(module)
    for k in range(20):
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * (k + 1)) and len(module.seen) == k + 1
    assert framejit.cache_info(compiled)["breaks"] == 1


def test_all_axes_of_an_array_are_turned():
    def f(a):
        return a.transpose(None) + 1, np.transpose(a, None) * 2, np.transpose(a, axes=None), a.transpose(), np.bool(True), np.bool_(False), a * np.bool(True)

    whole(f, [lambda n=n: (np.arange(6.0 * n).reshape(2, 3, n),) for n in (1, 2, 3)])
    whole(f, [lambda: (np.arange(4.0),), lambda: (np.ones((1, 1)),)])

    def refused(a, axes):
        return a.transpose(*axes) + 1

    compiled = framejit.compile(refused)
    for axes in (((),), (None,), (), ((1, 0),), (1, 0), (0, 0), (None, None), (0,), ([],)):
        got, want = seen(compiled, (np.ones((2, 3)), axes)), seen(refused, (np.ones((2, 3)), axes))
        assert repr(got) == repr(want), (axes, got, want)


def test_numbers_of_numpys_that_are_true_or_false():
    def f(a, v):
        return a + 1, np.bool(v), np.bool_(v) | (v == 3)

    compiled = framejit.compile(f)
    for v in (True, False, 0, 3, 0.0, -0.5, math.nan, "", "a", None, [], [1, 2], np.float32(0), np.bool(True), np.zeros(1), np.ones(2)):
        got, want = seen(compiled, (np.ones(2), v)), seen(f, (np.ones(2), v))
        assert repr(got) == repr(want), (v, got, want)


def with_warnings(f):
    """The function with what it warns of and where, all of it beside its result."""

    def call(*args):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = f(*args)
        return result, [(str(w.message), w.category, w.filename, w.lineno) for w in told]

    return call


COPIES = {
    "alone": lambda x: torch.tensor(x) * 2,
    "of another type": lambda x: torch.tensor(x, dtype=torch.float64, device="cpu") + x,
    "turned": lambda x: torch.tensor(x.t(), requires_grad=False),
    "written": lambda x: (torch.tensor(x).add_(1), x),
    "in a loop": lambda x: [torch.tensor(x) + k for k in range(3)],
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_tensor_of_which_torch_warns(name):
    f, calls = COPIES[name], [lambda n=n: (torch.arange(float(n * n)).view(n, n),) for n in (2, 1, 0, 3)]
    compiled = framejit.compile(f)
    for make in calls * 2:
        assert repr(seen(with_warnings(compiled), make())) == repr(seen(with_warnings(f), make()))
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"]["graph"] >= 6, told
    x = torch.rand(2, 2, requires_grad=True)
    assert repr(seen(with_warnings(compiled), (x,))) == repr(seen(with_warnings(f), (x,)))


UFUNCS = {
    "sqrt": lambda x: np.sqrt(x) + 1,
    "two operands": lambda x: np.add(x, 2.0) * np.maximum(x, x * 0.5),
    "bools": lambda x: np.isfinite(x),
    "one number": lambda x: x * np.sqrt(x.sum()),
    "an array": lambda x: np.multiply(x, np.ones(x.shape[0], dtype=np.float32)),
}


@pytest.mark.parametrize("name", UFUNCS)
def test_ufuncs_of_numpy_called_with_tensors(name):
    """NumPy gives a tensor, and warns of how it makes one."""
    f = UFUNCS[name]
    compiled = framejit.compile(f)
    for n in (2, 1, 0, 3, 3, 2):
        make = lambda: (torch.arange(1.0, 1 + n * n).view(n, n) ** 2,)  # noqa: B023, E731
        assert repr(seen(with_warnings(compiled), make())) == repr(seen(with_warnings(f), make()))
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"]["graph"] >= 4, told
    x = torch.ones(2, 2, requires_grad=True)
    assert seen(compiled, (x,))[:2] == seen(f, (x,))[:2]


def test_a_compiled_module_that_calls_itself_or_another_one():
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = framejit.compile(torch.nn.Linear(3, 3))

        def forward(self, x):
            return self.inner(x) if x.dim() == 2 else self.both(x)

        def both(self, x):
            return self(x[0]) + self(x[1])

    module = Both()
    compiled = framejit.compile(module)
    for n in (2, 2, 4):
        x = torch.randn(2, n, 3)
        torch.testing.assert_close(compiled(x), module(x))
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and set(told["outcomes"]["run"]) == {"graph"}, told


def with_gaps(x):
    """What S2-MLP does with a part of what a layer gave: the part has gaps, and each store reads what the one before has written."""
    h = x * 1
    part = h[:, :, :3]
    part[:, 1:] = part[:, :-1]
    part[:-1, :, :2] = part[1:, :, :2]
    part[..., 1:] = part[..., :-1]
    return h * x, part


@pytest.mark.parametrize("grad", [False, True])
def test_stores_into_a_part_with_gaps_that_meet_what_they_read(grad):
    compiled = framejit.compile(with_gaps)
    for n in (4, 4, 1, 6, 0):
        found = []
        for f in (compiled, with_gaps):
            torch.manual_seed(n)
            x = torch.randn(n, 5, 7, requires_grad=grad)
            y, part = f(x)
            if grad:
                (y.sum() + (part * part).sum()).backward()
            found.append((y.detach(), part.detach().clone(), part.stride(), x.grad))
        for a, b in zip(*found):
            assert a == b if isinstance(a, tuple) else a is b or torch.equal(a, b)
    told = framejit.cache_info(compiled)
    assert not told["breaks"], told


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_packed_sequences_through_one_layer_with_dropout(kind):
    """It draws nothing: dropout is between layers."""
    rnn = torch.nn.utils.rnn

    class Encoder(torch.nn.Module):
        def __init__(self, layers=1):
            super().__init__()
            self.rows = getattr(torch.nn, kind)(3, 4, layers, dropout=0.5, bidirectional=True)

        def forward(self, x, lengths):
            out, state = self.rows(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
            return rnn.pad_packed_sequence(out)[0], state[0] if kind == "LSTM" else state

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        for layers in (1, 2):
            module = Encoder(layers)
            compiled, twin = framejit.compile(module), copy.deepcopy(module)
            for step, lengths in enumerate([(5, 2, 4), (1, 1, 1), (5, 3), (5, 5, 5)]):
                found = []
                for f, owner in ((compiled, module), (twin, twin)):
                    owner.zero_grad()
                    torch.manual_seed(step)
                    x = torch.randn(5, len(lengths), 3, requires_grad=True)
                    out, state = f(x, torch.tensor(lengths))
                    (out.square().sum() + state.sum()).backward()
                    found.append([out, state, x.grad, *(p.grad for p in owner.parameters()), torch.get_rng_state()])
                torch.testing.assert_close(*found)
            if layers == 1:
                told = framejit.cache_info(compiled)
                assert not told["breaks"] and told["outcomes"]["run"]["graph"] >= 3, told


class no_jit_trace:  # noqa: N801: as nncf has it
    def __enter__(self):
        self.state = torch._C._get_tracing_state()
        torch._C._set_tracing_state(None)

    def __exit__(self, *args):
        torch._C._set_tracing_state(self.state)
        self.state = None


class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        with no_jit_trace():
            return weight * x / (x.pow(2).sum(1, keepdim=True).sqrt() + 1)

    @staticmethod
    def backward(ctx, g):
        return g, g.sum(0)


@pytest.mark.parametrize("grad", [False, True])
def test_the_tracing_state_is_set_back(grad):
    def f(x, weight):
        with no_jit_trace():
            y = x * 2
        return Normed.apply(y, weight) + 1

    compiled, x = framejit.compile(f), torch.arange(6.0).reshape(2, 3).requires_grad_(grad)
    weight = torch.ones(3, requires_grad=grad)
    for _ in range(3):
        got, expected = compiled(x, weight), f(x, weight)
        assert torch.equal(got, expected)
        if grad:
            assert all(map(torch.equal, *(torch.autograd.grad(y.sum(), [x, weight]) for y in (got, expected))))
    assert compiled.cache_info()["breaks"] == 0 and compiled.graphs
    with torch.no_grad(), warnings.catch_warnings():  # what is traced runs as written
        warnings.simplefilter("ignore")
        plain = torch.ones(3)
        traced, same = (torch.jit.trace(lambda x, g=g: g(x, plain), x.detach()) for g in (compiled, f))
        assert torch.equal(traced(x.detach() + 1), same(x.detach() + 1)) and torch._C._get_tracing_state() is None
