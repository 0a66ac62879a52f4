"""What modules of GitHub projects do in one graph with torch.compile: here in one graph, with the effects that eager has."""

import bisect
import collections
import enum
import heapq
import operator
import typing
import warnings

import pytest

import framejit

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("fresh")


def whole(f, calls):
    """Equal to eager for all calls, twice, in one graph each."""
    compiled = framejit.compile(f)
    for _ in range(2):
        for args in calls:
            torch.testing.assert_close(compiled(*args), f(*args), rtol=0, atol=1e-6)
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told
    return told


def warned(f, *args, filters="always"):
    """What a call gives, and what it warns of: (text, category, file, line)."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(filters)
        result = f(*args)
    return result, [(str(w.message), w.category, w.filename, w.lineno) for w in seen]


def test_an_item_of_a_list_that_is_appended_to():
    seen, made = [], []

    def f(x):
        seen.append(x * 2)
        made.append(seen[-1] + 1)
        return made[0], made[1]

    def fresh():
        seen[:], made[:] = [torch.zeros(3)], [torch.ones(3), torch.ones(3) * 2]

    fresh()
    compiled = framejit.compile(f)
    for n in range(6):
        first, second = compiled(torch.ones(3) * n)
        assert first is made[0] and second is made[1] and len(seen) == n + 2 and len(made) == n + 3
        assert made[-1].tolist() == [2.0 * n + 1] * 3
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["segments"] == 1, told


def test_an_item_that_is_not_there_before():
    made = []

    @framejit.compile
    def f(x):
        made.append(x + 1)
        made.append(x + 2)
        return made[1]

    assert f(torch.zeros(2)).tolist() == [2, 2] and f(torch.ones(2)).tolist() == [2, 2]
    assert len(made) == 4 and f(torch.ones(2)) is made[1]


def without_diagonal(x, m):
    n = x.shape[0]
    return (x @ x.t()).masked_select(m).view(n, n - 1).softmax(-1)


@pytest.mark.parametrize("called", [False, True])
def test_sizes_that_data_must_have(called):
    def f(x):
        m = ~torch.eye(x.shape[0], dtype=torch.bool)
        return without_diagonal(x, m) + without_diagonal(-x, m) if called else (x @ x.t())[m].view(-1, x.shape[0] - 1)

    whole(f, [(torch.randn(4, 5),), (torch.randn(6, 5),), (torch.randn(4, 5),)])
    mask = torch.tensor([[1, 0, 1], [0, 1, 1]]).bool()
    whole(lambda x, m: x[m].reshape(2, -1) + torch.ones(2, 2), [(torch.randn(2, 3), mask), (torch.randn(2, 3), ~mask | mask.roll(1, 1))])


def test_sizes_that_data_does_not_have():
    """What eager refuses is refused at its place."""

    @framejit.compile
    def f(x, m):
        return x[m].view(2, 2)

    x = torch.arange(6.0)
    assert f(x, x > 1).tolist() == [[2, 3], [4, 5]]
    with pytest.raises(RuntimeError, match="shape '\\[2, 2\\]' is invalid"):
        f(x, x > 2)
    assert f(x, x < 4).tolist() == [[0, 1], [2, 3]]


def test_what_is_made_of_constants_is_a_size():
    def grid(x):
        shape = np.array(x.shape[2:])
        rows = np.arange(0, ((shape + 3) // 4)[0]) + 0.5
        return torch.from_numpy(rows.astype(np.float32)) + x.mean()

    whole(grid, [(torch.randn(1, 2, 16, 8),), (torch.randn(1, 2, 16, 8),)])


@pytest.mark.parametrize("filters", ["always", "default", "ignore"])
def test_a_list_of_tensors_as_index(filters):
    i, j = torch.tensor([0, 2]), torch.tensor([1, 1])

    def f(x):
        x = x + 0
        x[[i, j]] = 5.0
        return x[[i]] * 2, x[[j, i]]

    compiled, x = framejit.compile(f), torch.randn(3, 4)
    for _ in range(3):
        want, told = warned(f, x, filters=filters)
        got, ours = warned(compiled, x, filters=filters)
        assert ours == told and len(told) == {"always": 3, "default": 2, "ignore": 0}[filters]
        assert all(torch.equal(a, b) for a, b in zip(got, want))
    assert not framejit.cache_info(compiled)["breaks"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="non-tuple sequence"):
            compiled(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


def test_an_instance_of_a_function_with_its_own_gradient():
    def f(x):
        made = Doubled()
        return Doubled().apply(x, 2.0) + made.apply(x, 3)

    compiled = framejit.compile(f)
    for _ in range(2):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        want, told = warned(f, x)
        got, ours = warned(compiled, y)
        assert ours == told and len(told) == 2 and torch.equal(got, want)
        want.sum().backward(), got.sum().backward()
        assert torch.equal(x.grad, y.grad)
    assert not framejit.cache_info(compiled)["breaks"]


@pytest.mark.parametrize("filters", ["always", "default", "ignore"])
@pytest.mark.parametrize("wants, grad", [(True, True), (False, True), (True, False), (False, False)])
def test_checkpoint_without_a_choice(filters, wants, grad):
    from torch.utils.checkpoint import checkpoint

    def part(x, y):
        return torch.sin(x) * y, x + y

    def f(x, y):
        with torch.set_grad_enabled(grad):
            a, b = checkpoint(part, x * 2, y)
            return a + b

    compiled = framejit.compile(f)
    for _ in range(2):
        pairs = [[torch.linspace(0, 1, 3).requires_grad_(wants), torch.ones(3)] for _ in range(2)]
        want, told = warned(f, *pairs[0], filters=filters)
        got, ours = warned(compiled, *pairs[1], filters=filters)
        none = not wants or not grad  # x * 2 wants none then
        assert ours == told and len(told) == (0 if filters == "ignore" else 1 + none)
        assert torch.equal(got, want) and got.requires_grad == want.requires_grad
        if want.requires_grad:
            want.sum().backward(), got.sum().backward()
            torch.testing.assert_close(pairs[1][0].grad, pairs[0][0].grad)
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"] == {"graph": 2}, told


@pytest.mark.parametrize("off", [False, True])
def test_checkpoint_that_records_nothing_gives_results_of_its_own(off):
    """torch's reentrant form detaches what its function gives."""
    from torch.utils.checkpoint import checkpoint

    weight = torch.ones(3, requires_grad=True)

    def on(x):
        with torch.enable_grad():
            return x * weight

    def f(x):
        with torch.set_grad_enabled(not off):
            y = checkpoint(on, x if off else x.detach(), use_reentrant=True)
            z = checkpoint(lambda v: v, x if off else x.detach(), use_reentrant=True)
        return y, z, z is x

    compiled = framejit.compile(f)
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        (want, told), (got, ours) = warned(f, x), warned(compiled, x)
        assert ours == told and got[2] == want[2]
        for a, b in zip(got[:2], want[:2]):
            assert torch.equal(a, b) and a.requires_grad == b.requires_grad and a.grad_fn is None


def test_checkpoint_of_inputs_without_gradients_gives_none_to_weights():
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(3, 3)

    def f(x):
        return checkpoint(layer, x, use_reentrant=True) * 2

    compiled, x = framejit.compile(f), torch.randn(2, 3)
    for _ in range(2):
        (want, told), (got, ours) = warned(f, x), warned(compiled, x)
        assert ours == told and not want.requires_grad and not got.requires_grad
        torch.testing.assert_close(got, want)
    assert not framejit.cache_info(compiled)["breaks"]


def test_what_torch_warns_of_is_asked_beside_the_filters_of_others():
    """A filter that another thread adds meanwhile stays, and a copy of the filters raises nothing later."""
    from framejit import _warns

    copies = []

    def run():
        warnings.filterwarnings("ignore", message="of another thread")
        copies.append(warnings.filters[:])
        warnings.warn_explicit("asked", UserWarning, "file", 1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before, own = warnings.filters, warnings.filters[:]
        assert _warns.told(lambda: warnings.warn("heard", stacklevel=1))[0] == "heard" and warnings.filters == own
        assert _warns.told(run)[0] == "asked"
        assert warnings.filters is before and len(before) == len(own) + 1 and before[0][1].match("of another thread")
        warnings.filters[:] = copies[0]
        with warnings.catch_warnings(record=True) as seen:
            warnings.warn("later", stacklevel=1)
        assert len(seen) == 1


def sums(x, axes):
    for axis in sorted(np.unique(axes).astype(int), reverse=True):
        x = x.sum(int(axis))
    return x


AXES = [2, 0, 2]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: sums(x, [2, 3, 2]),
        lambda x: sums(x, tuple(range(2, x.dim()))),
        lambda x: sums(x, AXES),
        lambda x: x.sum(tuple(np.unique(np.array([2, 3, 2])))),
        lambda x: x.sum(tuple(int(i) for i in np.nonzero(np.array([0, 1, 2, 3]) > 1)[0])),
        lambda x: x.sum(tuple(int(i) for i in np.flatnonzero([0, 1, 1]))),
        lambda x: x * len(np.setdiff1d([0, 1, 5], [1])) + len(np.unique([1.5, 2, 2])),
        lambda x: x + int(np.bincount(np.array([0, 1, 1, 3]))[1]),
        lambda x: x[:, np.unique([1, 1, 0], return_counts=True)[1] - 1],
        lambda x: x * float(np.array([1.0, 2.0, 3.0])[np.array([True, False, True])].sum()),
    ],
)
def test_sizes_that_numbers_of_the_program_decide_beside_torch(f):
    whole(f, [(torch.arange(120.0).reshape(2, 3, 4, 5),)])


def test_arrays_of_such_sizes_are_results_as_numpys():
    def f(x):
        rows, columns = np.nonzero(np.array([[0, 1], [1, 1]]))
        return x + 1, np.unique([3, 1, 3]), np.unique((0.5, 0.25), return_index=True), rows, columns, np.unique([True, False, True])

    def facts(o):
        if isinstance(o, tuple):
            return [facts(v) for v in o]
        return (o.tolist(), o.dtype, o.strides, o.flags.writeable, o.flags.owndata, type(o.base)) if isinstance(o, np.ndarray) else o.tolist()

    compiled, x = framejit.compile(f), torch.ones(2)
    given = [compiled(x) for _ in range(3)]
    assert [facts(g) for g in given] == [facts(f(x))] * 3
    given[0][1][0] = 7
    assert given[1][1].tolist() == compiled(x)[1].tolist() == [1, 3]  # each call has an array of its own
    assert not framejit.cache_info(compiled)["breaks"], framejit.cache_info(compiled)


def test_columns_of_one_array_beside_torch():
    """Wrong in silence before: NumPy's result of a size that data decides lay densely where the graph had tensors of torch behind it."""

    def f(a, x):
        return np.nonzero(a), x + 1

    compiled, a = framejit.compile(f), np.array([[0, 1], [1, 1]])
    for _ in range(3):
        got, want = compiled(a, torch.ones(2))[0], f(a, torch.ones(2))[0]
        for g, w in zip(got, want):
            assert g.tolist() == w.tolist() and g.strides == w.strides == (16,) and not g.flags.owndata and type(g.base) is np.ndarray
            g += 1
    assert framejit.cache_info(compiled)["outcomes"]["run"].get("graph"), framejit.cache_info(compiled)


def test_such_numbers_that_change_are_asked_again():
    compiled = framejit.compile(lambda x, axes: sums(x, axes))
    x = torch.arange(24.0).reshape(2, 3, 4)
    for axes in ([0, 1], [1, 1], [0, 1, 2], [2], [0, 1]):
        assert torch.equal(compiled(x, axes), sums(x, axes))
    by_size = framejit.compile(lambda x: x.sum(0) + len(np.unique([x.shape[0], 5, 7])))
    for n in (5, 6, 7, 8):
        x = torch.ones(n, 2)
        assert by_size(x).tolist() == [n + len({n, 5, 7})] * 2


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Embedding(10, 4, max_norm=1.0),
        lambda: torch.nn.Embedding(10, 4, padding_idx=0, max_norm=0.5, norm_type=1),
        lambda: torch.nn.EmbeddingBag(10, 4, max_norm=0.5),
    ],
)
def test_rows_of_an_embedding_that_are_shortened(make, grad):
    import copy

    torch.manual_seed(0)
    made = make()
    eager, ours = copy.deepcopy(made), copy.deepcopy(made)
    compiled, index = framejit.compile(ours), torch.tensor([[1, 2], [0, 1]])
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            want, got = eager(index), compiled(index)
            assert torch.equal(got, want) and torch.equal(ours.weight, eager.weight) and ours.weight._version == eager.weight._version
            if grad:
                want.square().sum().backward()
                got.square().sum().backward()
                assert torch.equal(ours.weight.grad, eager.weight.grad)
            with torch.no_grad():
                eager.weight.add_(1)
                ours.weight.add_(1)
    told = framejit.cache_info(compiled)
    assert told["breaks"] == 1, told  # a graph would write a copy of the whole table
    with pytest.raises(IndexError):
        compiled(torch.tensor([[3, 11]]))


class Step(typing.NamedTuple):
    x: typing.Any
    y: typing.Any = None
    n: int = 0


class Marked(collections.namedtuple("Marked", "a b")):
    """It has a __dict__, of which a copy for C code would have nothing."""

    def total(self):
        return self.a + self.b


def of_named_tuples(p, many):
    q = p._replace(n=p.n + 1)
    xs, ys, _ = zip(*many)
    both = dict(zip(p._fields, p))
    return q, list(map(torch.sum, p[:2])), p._asdict(), torch.stack(xs) * 2, ys, both["x"] is p.x, q.y is p.y, tuple(p), p


def test_named_tuples_of_tensors():
    def calls():
        return [(Step(torch.ones(2 + k % 2) * k, torch.zeros(1), k), [Step(torch.ones(2) * i, k) for i in range(2)]) for k in range(5)]

    compiled = framejit.compile(of_named_tuples)
    for args in calls():
        got, want = compiled(*args), of_named_tuples(*args)
        assert got[-1] is args[0] and type(got[0]) is Step and got[5:7] == want[5:7] == (True, True)
        torch.testing.assert_close(got[0].x, want[0].x)
        assert [type(v) for v in got] == [type(v) for v in want] and list(got[2]) == list(want[2]) and got[2]["x"] is args[0].x
        assert got[4] == want[4] and all(torch.equal(a, b) for a, b in zip(got[1], want[1]))
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told


def test_results_of_torch_are_gone_through():
    compiled = framejit.compile(lambda r: (r.values * 2, list(map(torch.sum, r)), tuple(r)[0] is r[0], r))
    for k in range(4):
        r = torch.max(torch.arange(6.0).reshape(2, 3) * (k - 1), 1)
        got = compiled(r)
        assert torch.equal(got[0], r.values * 2) and got[3] is r and got[2] and got[1][1] == r.indices.sum()
    assert not framejit.cache_info(compiled)["breaks"]


def test_a_named_tuple_with_a_dict():
    def f(p):
        p.mark = getattr(p, "mark", 0) + 1
        return p._replace(a=torch.zeros(1)), p.total(), list(map(torch.sum, p))

    compiled = framejit.compile(f)
    for k in range(4):
        p, q = (Marked(torch.ones(2) * k, torch.ones(2)) for _ in range(2))
        for _ in range(2):
            got, want = compiled(p), f(q)
            assert p.mark == q.mark and type(got[0]) is Marked and torch.equal(got[1], want[1]) and got[2] == want[2]


class Place(enum.IntEnum):
    ROWS = 0
    COLUMNS = 1
    TWO = 2


class Odd(int):
    def __add__(self, other):
        return 100

    __radd__ = __add__

    def __index__(self):
        return 0


@pytest.mark.parametrize("of", [Place, Odd])
def test_ints_of_a_class_of_their_own(of):
    def f(x, e, two):
        return x * e, e * x, x.sum(e), x[e], x + e, torch.full((two,), e), torch.tensor([e, two]), x.select(e, 0), x.reshape(two, -1), x**e

    compiled = whole(f, [(torch.arange(8.0).reshape(2, 4) + k, of(k % 2), of(2)) for k in range(4)])
    assert compiled["segments"] <= 4

    def beside_arrays(a, e):
        return a * e, np.full(2, e).dtype, np.arange(3)[Place.TWO]

    compiled = framejit.compile(beside_arrays)
    for k in range(4):  # no weak numbers to NumPy
        got, want = (g(np.ones(3, np.float32), of(k % 2)) for g in (compiled, beside_arrays))
        assert got[0].dtype == want[0].dtype and np.array_equal(got[0], want[0]) and got[1:] == want[1:]


class Halves(enum.IntEnum):
    ONE = 1

    def __float__(self):
        return 2.5


def test_ints_of_a_class_with_a_float_of_their_own():
    def f(x, e):
        return x.new_tensor([e]), torch.tensor([e, 2.0]), torch.tensor(e, dtype=torch.float32)

    compiled, x = framejit.compile(f), torch.ones(2)
    for _ in range(3):
        assert str(compiled(x, Halves.ONE)) == str(f(x, Halves.ONE))


QUEUE = [5, 7, 9]


def queues(x, n):
    heap = []
    for i in range(3):
        heapq.heappush(heap, ((n * i) % 3, i, x * i))
    heapq.heappush(QUEUE, n)
    order = [heapq.heappop(heap)[2] for _ in range(3)]
    numbers = [1.0, 4.0]
    bisect.insort(numbers, 2.5)
    return order, heapq.heappop(QUEUE), heapq.nlargest(2, numbers), heapq.heappushpop(numbers, 0.0), heapq.heapreplace([1, 2], n), x


def test_queues():
    compiled, seen = framejit.compile(queues), []
    for f in (queues, compiled):
        QUEUE[:] = [5, 7, 9]
        seen.append([(f(torch.ones(2 + n % 2), n), list(QUEUE)) for n in (3, 4, 8, 1, 4)])
    for (want, before), (got, after) in zip(*seen):
        assert before == after and want[1:5] == got[1:5] and all(torch.equal(a, b) for a, b in zip(want[0], got[0]))
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told


def test_queues_that_compare_tensors():
    def f(t):
        heap = []
        for v in t:
            heapq.heappush(heap, v)
        return [heapq.heappop(heap) for _ in range(3)]

    compiled = framejit.compile(f)
    for k in range(4):
        t = torch.tensor([3.0, 1.0, 2.0]) * (-1) ** k
        assert compiled(t) == f(t)


def turned(a, i, j):
    b, c, d = a[::-1], np.fliplr(a), a[:, 1:]
    found = b[i], c[i], b[i, j], d[i], a[::2, ::-1][i * 0], a[::-1, ::-1][i][:, ::-1], np.flip(a)[i[:, None], j], a[1:, 0][::-1][i * 0]
    return *found, [v.strides for v in found]


def test_arrays_that_are_turned_or_cut_by_index():
    compiled = framejit.compile(turned)
    for k in range(8):
        i, j = np.array([0, 2, 1][: 1 + k % 3]), np.array([1, 0, 2][: 1 + k % 3])
        a = np.arange(4.0 * (3 + k % 2)).reshape(-1, 4) * (k - 2)
        got, want = compiled(a, i, j), turned(a, i, j)
        assert got[-1] == want[-1]
        for g, w in zip(got[:-1], want[:-1]):
            assert np.array_equal(g, w) and g.strides == w.strides
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told


def test_a_range_is_stored_in_an_array():
    def f(a, n):
        d = np.zeros((n, 3), a.dtype)
        d[:, 0] = range(n)
        d[range(2), 1] = range(5, 7)
        return d + a

    compiled = framejit.compile(f)
    for k in range(4):
        assert np.array_equal(compiled(np.arange(3), 2 + k), f(np.arange(3), 2 + k))
    assert not framejit.cache_info(compiled)["breaks"]


def arithmetic(x, n):
    v, m = x.sum().item(), x.size(0)
    return v * m, m * v, v + n, n - v, v / m, n / v, x * (v * n), operator.truediv(v, n)


def test_a_held_number_beside_sizes():
    """A size that changes is a float beside the number that a tensor holds, not a version of its own."""
    told = whole(arithmetic, [(torch.arange(1.0, 3 + k).double() / 7, 3 + 2 * k) for k in range(6)])
    assert told["segments"] <= 3, told
    exact = framejit.compile(arithmetic)
    for n in (3, 2**53 + 1, 2**60 + 3, 5):
        x = torch.ones(3, dtype=torch.float64)
        assert exact(x, n)[:6] == arithmetic(x, n)[:6]

    def divided(x, n):
        return x.sum().item() / n, x + 1

    compiled = framejit.compile(divided)
    for n in (3, 5, 7):
        assert compiled(torch.ones(2), n)[0] == 2 / n
    with pytest.raises(ZeroDivisionError, match="float division by zero"):
        compiled(torch.ones(2), 0)


class Meter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n
        return self.sum / self.count


def test_a_meter():
    meters = Meter(), Meter()
    compiled = framejit.compile(lambda m, x: (m.update((x * x).mean().item(), x.size(0)), x + 1))
    for k in range(6):
        x = torch.ones(2 + k % 3, 2, dtype=torch.float64) * k
        got, want = compiled(meters[0], x)[0], meters[1].update((x * x).mean().item(), x.size(0))
        assert got == want and vars(meters[0]) == vars(meters[1])
    assert not framejit.cache_info(compiled)["breaks"]


@pytest.mark.parametrize("of", ["FloatTensor", "DoubleTensor", "LongTensor", "BoolTensor", "cuda.FloatTensor"])
def test_types_of_tensors_by_their_elements(of):
    kind = operator.attrgetter(of)(torch)

    def f(x):
        return x.double() * (2 if isinstance(x, kind) else 3), isinstance(x, (int, kind)), isinstance(x[0] > 1, (torch.BoolTensor, kind))

    inputs = [torch.ones(3), torch.ones(3, dtype=torch.int64), torch.ones(4).double(), torch.nn.Parameter(torch.ones(2)), torch.ones(3) > 0, torch.ones(2).bfloat16()]
    compiled = framejit.compile(f)
    for _ in range(2):
        for x in inputs:
            got, want = compiled(x), f(x)
            assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
    assert not framejit.cache_info(compiled)["breaks"]


def diagonals(x, w):
    y = x @ w.t()
    y.fill_diagonal_(-1.0)
    z = (w * 2).t()
    z.fill_diagonal_(0.5, wrap=True)
    grid = x.new_tensor(range(x.shape[0])).view(-1, 1).repeat(1, 2)
    return y.softmax(-1).t() @ y, z, grid + 1


def test_diagonals_that_are_filled():
    compiled = framejit.compile(diagonals)
    for k in range(5):
        seen = []
        for f in (diagonals, compiled):
            x = torch.linspace(-1, 1, 4 * (5 - k % 3)).reshape(-1, 4).requires_grad_()
            w = torch.linspace(0, 1, 12).reshape(3, 4).requires_grad_()
            y, z, grid = f(x, w)
            (y.square().sum() + (z * z).sum()).backward()
            seen.append((y, z, grid, x.grad, w.grad))
        for got, want in zip(*reversed(seen)):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
    told = framejit.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told
