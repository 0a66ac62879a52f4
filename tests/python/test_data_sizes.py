"""Sizes that data decides: one graph, cut where such a size becomes known, for every number of elements."""
import pytest

import framejit

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("fresh")

X = torch.arange(24.0).reshape(6, 4)
MASKS = [
    torch.tensor(m, dtype=torch.bool)
    for m in ([1, 0, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1], [0] * 6, [1] * 6, [0, 1, 0, 0, 1, 0])
]


def called(f):
    def outer(*args):
        return f(*args)

    return outer


def same(got, want):
    if isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for a, b in zip(got, want):
            same(a, b)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride() and got.dtype == want.dtype
    else:
        assert type(got) is type(want) and got == want


def check(f, calls, graphs=1, runs=2):
    """Results equal eager's for all of `calls`, in one graph, with few compiles."""
    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for _ in range(runs):
            for args in calls:
                same(compiled(*args), function(*args))
        told = framejit.explain(compiled)(*calls[0])
        assert told.graph_count <= graphs and told.graph_break_count == 0, str(told)


def masks(f, **options):
    check(f, [(X, m) for m in MASKS], **options)


def test_nonzero():
    masks(lambda x, m: m.nonzero() * 2, graphs=3)  # what is empty, or of one row, has strides of its own
    masks(lambda x, m: torch.nonzero(m, as_tuple=True))
    masks(lambda x, m: torch.nonzero(x[:, 0] * m, as_tuple=False).sum(0))
    masks(lambda x, m: torch.argwhere(m))


def test_where():
    def f(x, m):
        (i,) = torch.where(m)
        return x[i] * 2 + 1, i.shape[0], i

    masks(f)


def test_a_mask_as_index():
    masks(lambda x, m: x[m] * 2)
    masks(lambda x, m: torch.relu(x + 1)[m].sum(0))
    masks(lambda x, m: (x[m] @ x.t()).softmax(-1) + 1)
    masks(lambda x, m: x[m].t() @ x[m])
    masks(lambda x, m: x[x > m[:, None] * 8.0] + 1)


def test_masked_select():
    masks(lambda x, m: torch.masked_select(x, m[:, None]) * 2)


def test_the_number_itself():
    masks(lambda x, m: (x[m].shape[0], x[m].numel() * 2))
    masks(lambda x, m: x * (m.nonzero().shape[0] + 1))


def test_what_is_scattered_back():
    def f(x, m):
        y = torch.zeros_like(x)
        (i,) = torch.where(m)
        y.index_add_(0, i, x[i] * 3)
        return y + 1

    def g(x, m):
        y = x.clone()
        y[m] = x[m] * 2
        return y + 1

    masks(f)
    masks(g)


def test_unique():
    values = [torch.tensor(v) for v in ([3, 1, 3, 2], [1, 1, 1, 1], [4, 3, 2, 1], [0, 0, 5, 5])]
    check(lambda x: torch.unique(x) * 2, [(v,) for v in values])
    check(lambda x: x.unique(return_inverse=True, return_counts=True), [(v,) for v in values])
    check(lambda x: torch.unique_consecutive(x, return_counts=True), [(v,) for v in values])

    def f(x, w):
        distinct, inverse = torch.unique(x, return_inverse=True)
        return (w[distinct] * 2)[inverse] + 1

    check(f, [(v, X) for v in values])


@pytest.mark.parametrize("dtype", ["f4", "i8", "?"])
def test_unique_rows_of_numpy(dtype):
    np = pytest.importorskip("numpy")
    flat = [1, 2, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2], [0] * 12, [*range(12)], [0, 1] * 6
    arrays = [np.array(v).reshape(shape).astype(dtype) for v in flat for shape in ((6, 2), (2, 6), (1, 12))]
    cubes = [np.asfortranarray(np.array(v).reshape(3, 2, 2).astype(dtype)) for v in flat]
    for f, given in (
        (lambda a: np.unique(a, axis=0) * 2, arrays + cubes),
        (lambda a: np.unique(a + a, axis=-1, return_counts=True), arrays + cubes),
        (lambda a: np.unique(a, True, False, True, 1)[1:], arrays),
        (lambda a: np.unique(a.ravel(), axis=0, return_inverse=True)[1] + 1, arrays),
    ):
        compiled = framejit.compile(f)
        for _ in range(2):
            for a in given:
                got, want = compiled(a), f(a)
                assert type(got) is type(want)
                for g, w in zip(*((v,) if isinstance(v, np.ndarray) else v for v in (got, want))):
                    assert np.array_equal(g, w) and g.dtype == w.dtype and g.shape == w.shape and g.strides == w.strides
        told = framejit.cache_info(compiled)
        assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told


def test_repeat_interleave():
    counts = [torch.tensor(c) for c in ([1, 2, 0, 3, 1, 1], [0] * 6, [1, 0, 0, 0, 0, 0], [2] * 6)]
    check(lambda x, n: torch.repeat_interleave(x, n, dim=0) * 2, [(X, n) for n in counts])
    check(lambda x, n: torch.repeat_interleave(n) + 1, [(X, n) for n in counts])
    check(lambda x, n: x[:, 0].repeat_interleave(n) + 1, [(X, n) for n in counts])


def test_one_hot_and_bincount():
    values = [torch.tensor(v) for v in ([3, 1, 3, 2], [0, 0, 0, 0], [4, 3, 2, 1], [1, 0, 0, 1])]
    check(lambda x: F.one_hot(x).sum(0) * 2, [(v,) for v in values], graphs=3)
    check(lambda x: torch.bincount(x) * 2, [(v,) for v in values])
    check(lambda x: torch.bincount(x, minlength=3) * 2, [(v,) for v in values])


def test_numbers():
    counts = [torch.tensor(n) for n in (3, 5, 1, 0, 2, 6)]
    # In called functions the first number is a guess.
    check(lambda n: torch.arange(n.item()) * 2, [(n,) for n in counts], graphs=2)
    check(lambda n: torch.zeros(n.item(), 3) + 1, [(n,) for n in counts], graphs=2)
    check(lambda n: (n.item() * 2 + 1, torch.ones(4) * 2), [(n,) for n in counts], graphs=2)
    check(lambda x, n: x[: n.item()] * 2, [(X, n) for n in counts], graphs=3)
    check(lambda n: n.item() + 1, [(torch.tensor(n),) for n in (3, 2**40, 7)])


def test_negative_numbers_and_errors():
    def f(n):
        return torch.arange(n.item() + 3) * 2

    compiled = framejit.compile(f)
    for n in (2, 5, -1, -3, 0, 4, -2):
        same(compiled(torch.tensor(n)), f(torch.tensor(n)))
    with pytest.raises(RuntimeError):
        compiled(torch.tensor(-9))
    same(compiled(torch.tensor(2)), f(torch.tensor(2)))


def test_branches_on_a_size():
    def f(x, m):
        (i,) = torch.where(m)
        if i.shape[0] == 0:
            return x * 0
        if i.shape[0] > 4:
            return x + 1
        return x[i] * 2

    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for _ in range(3):
            for m in MASKS:
                same(compiled(X, m), f(X, m))


def test_loops_over_what_was_found():
    def f(x, m):
        y = x * 0
        for i in m.nonzero():
            y = y + x[i]
        return y * 2

    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for _ in range(2):
            for m in MASKS:
                same(compiled(X, m), f(X, m))


def test_sizes_that_must_be_equal():
    def f(x, m, n):
        return x[m] * x[n] + 1

    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for m, n in [(0, 0), (0, 5), (1, 1), (3, 3), (2, 1), (4, 4), (0, 0), (3, 2), (5, 5)]:
            try:
                want = f(X, MASKS[m], MASKS[n])
            except RuntimeError:
                with pytest.raises(RuntimeError):
                    compiled(X, MASKS[m], MASKS[n])
                continue
            same(compiled(X, MASKS[m], MASKS[n]), want)


def test_writes_before_and_behind():
    def f(x, m):
        x.add_(1)
        y = x[m]
        x.mul_(2)
        y += 1
        x[m] = y
        return y, x

    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for _ in range(2):
            for m in MASKS:
                a, b = X.clone(), X.clone()
                got, want = compiled(a, m), f(b, m)
                same(got, want)
                same(a, b)
                assert got[1] is a


def test_a_run_that_counts_for_nothing_leaves_no_trace():
    def f(x, m):
        x.add_(1)
        y = x + torch.rand(6, 4)
        n = m.nonzero().shape[0]
        if n > 4:
            y = y * 2
        return y + n

    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for _ in range(3):
            for m in MASKS:
                a, b = X.clone(), X.clone()
                torch.manual_seed(3)
                want = f(b, m), torch.rand(1)
                torch.manual_seed(3)
                same((compiled(a, m), torch.rand(1)), want)
                same(a, b)


def test_draws_in_their_order():
    def f(x, m):
        a = torch.rand(6)
        b = torch.rand(x[m].shape[0])
        c = torch.rand(3)
        i = (c > 0.5).nonzero()
        return a, b, c, i[:, 0] * 2, torch.rand(2)

    check_seeded(f)


def check_seeded(f):
    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for _ in range(2):
            for k, m in enumerate(MASKS):
                torch.manual_seed(k)
                want = f(X, m)
                torch.manual_seed(k)
                same(compiled(X, m), want)


def test_an_exception_behind():
    log = []

    def f(x, m, i):
        y = x[m] * 2
        log.append("before")
        z = y[i]
        log.append("after")
        return z

    compiled = framejit.compile(f)
    i = torch.tensor([0, 2])
    same(compiled(X, MASKS[0], i), f(X, MASKS[0], i))
    for function in (f, compiled, compiled):
        log.clear()
        with pytest.raises(IndexError):
            function(X, MASKS[2], i)
        assert log == ["before"]
    log.clear()
    same(compiled(X, MASKS[4], i), X[i] * 2)
    assert log == ["before", "after"]


def test_gradients():
    def f(x, m):
        y = x[m] * 2
        z = torch.zeros(6, 4)
        z = z.index_add(0, torch.where(m)[0], y * y)
        return z.sum() + y.shape[0]

    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for _ in range(2):
            for m in MASKS:
                grads = []
                for g in (compiled, f):
                    x = X.clone().requires_grad_()
                    out = g(x, m)
                    out.backward()
                    grads += [out.detach(), x.grad]
                same(grads[0], grads[2])
                same(grads[1], grads[3])


def test_results_that_share_memory():
    def f(x, m):
        i = m.nonzero()
        return i, i[:, 0], x[m], x

    compiled = framejit.compile(f)
    for m in MASKS:
        i, j, y, z = compiled(X, m)
        same((i, j, y, z), f(X, m))
        assert j._base is i and y._base is None and z is X


def test_experts():
    torch.manual_seed(0)
    n, d = 4, 8
    up, down, gate = torch.randn(n, d, 2 * d), torch.randn(n, 2 * d, d), torch.randn(d, n)

    def experts(x):
        weights, chosen = torch.topk((x @ gate).softmax(-1), 2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, num_classes=n).permute(2, 1, 0)
        for e in range(n):
            k, token = torch.where(mask[e])
            hidden = F.silu(x[None, token].reshape(-1, d) @ up[e]) @ down[e]
            out.index_add_(0, token, hidden * weights[token, k, None])
        return out

    def f(x):
        return experts(x * 2) + 1

    compiled = framejit.compile(f)
    inputs = [torch.randn(16, d) * s for s in (1.0, 10.0, 0.1)] + [torch.ones(16, d)]
    with torch.no_grad():
        for _ in range(2):
            for x in inputs:
                torch.testing.assert_close(compiled(x), f(x), rtol=1e-4, atol=1e-4)
        told = framejit.explain(compiled)(inputs[0])
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        torch.testing.assert_close(compiled(inputs[0][:1]), f(inputs[0][:1]), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(compiled(inputs[0][:5]), f(inputs[0][:5]), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(compiled(inputs[0][:9]), f(inputs[0][:9]), rtol=1e-4, atol=1e-4)


def test_the_interpreter():
    for backend in ("interpreter", "eager"):
        compiled = framejit.compile(lambda x, m: x[m].sum(1) * 2 + 1, backend=backend)
        for m in MASKS:
            same(compiled(X, m), X[m].sum(1) * 2 + 1)


W = torch.linspace(-1, 1, 64).reshape(8, 8)
OPS = {
    "cumsum": lambda x, m: x[m].cumsum(0),
    "mean": lambda x, m: (x[m].mean(0), x[m].mean(1), x[m].mean()),
    "softmax": lambda x, m: (x[m].softmax(0), x[m].softmax(1)),
    "layer_norm": lambda x, m: F.layer_norm(x[m], (8,)),
    "linear": lambda x, m: F.linear(x[m], W).relu(),
    "matmul": lambda x, m: (x[m] @ x[m].t(), x[m].t() @ x[m]),
    "max": lambda x, m: x[m].amax(0),
    "any": lambda x, m: ((x[m] > 0).any(), (x[m] > 0).all(0), x[m].prod(0)),
    "cat": lambda x, m: (torch.cat([x[m], x, x[m] * 2]), torch.stack([x[m], x[m] + 1])),
    "transpose": lambda x, m: (x[m].t() + 1, (x[m].reshape(-1, 2, 4).permute(1, 0, 2) * 2).reshape(2, -1)),
    "view": lambda x, m: (x[m].view(-1) + 1, x[m].flatten()[None] * 2),
    "columns": lambda x, m: (x.t()[:, m] * 2, (x.t()[:, m].contiguous() + 1).t()),
    "slice": lambda x, m: (x[m][1:] + 1, x[m][:2] + 1, x[m][-1:] * 2),
    "select": lambda x, m: x[m][0] * 2,
    "flip": lambda x, m: (x[m].flip(0) + 1, F.pad(x[m], (0, 0, 1, 1))),
    "new": lambda x, m: (torch.zeros_like(x[m]) + 1, torch.arange(x[m].shape[0]) * 2),
    "attention": lambda x, m: F.scaled_dot_product_attention(*(v.reshape(1, -1, 2, 4).transpose(1, 2) for v in (x[m], x, x))),
    "scatter": lambda x, m: (x.index_add(0, m.nonzero()[:, 0], x[m]), x.masked_scatter(m[:, None], x[m])),
    "gather": lambda x, m: (x.gather(0, m.nonzero().expand(-1, 8)), x.index_select(0, m.nonzero().squeeze(1))),
    "two": lambda x, m: x[m][:, (x[m] > 0).all(0)],
    "loss": lambda x, m: F.binary_cross_entropy_with_logits(x[m], torch.ones_like(x[m])),
    "asked": lambda x, m: (x[m].is_contiguous(), x[m].stride(), x[m].t().is_contiguous()),
    "in_place": lambda x, m: x[m].add_(1).mul_(2),
}


@pytest.mark.parametrize("name", OPS)
def test_operations_behind(name):
    f = OPS[name]
    torch.manual_seed(0)
    x = torch.randn(40, 8)
    compiled = framejit.compile(f)
    for k in (20, 7, 1, 0, 2, 40, 0, 1):
        m = torch.zeros(40, dtype=torch.bool)
        m[torch.randperm(40)[:k]] = True
        try:
            want = f(x, m)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)):
                compiled(x, m)
            continue
        got = compiled(x, m)
        for a, b in zip(got, want) if isinstance(want, tuple) else [(got, want)]:
            if isinstance(b, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
                assert a.stride() == b.stride()
            else:
                assert a == b


def test_rows_that_hold_nothing():
    f = framejit.compile(lambda x, i: x[i].flatten()[None] * 2)
    assert f(torch.zeros(5, 8), torch.zeros(0, dtype=torch.long)).shape == (1, 0)


def test_a_tensor_as_index_of_a_view():
    def f(x, i):
        y = x.clone()
        z = y[i]
        z.add_(1)
        y[i, 1:] = 7
        return y, z, x[1:, i] * 2

    indices = [torch.tensor(i) for i in (2, 3, 0, 1, -1, 2)]
    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for _ in range(2):
            for i in indices:
                same(compiled(X, i), f(X, i))
        with pytest.raises(IndexError):
            compiled(X, torch.tensor(9))


def test_sizes_that_are_tensors():
    def f(x, n):
        return torch.zeros(n, 2) + 1, x.view(torch.div(torch.tensor(24), 2, rounding_mode="floor"), 2) * 2, x.repeat(n, 1) + 1

    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for _ in range(2):
            for n in (2, 3, 1, 0, 4):
                same(compiled(X, torch.tensor(n)), f(X, torch.tensor(n)))


def test_lists_of_numbers():
    def f(x, n):
        a, b, c = x.split(n.tolist())
        return a * 2, b.sum(0), c + 1, n.tolist()

    for function in (f, called(f)):
        framejit.reset()
        compiled = framejit.compile(function)
        for _ in range(2):
            for n in ([1, 2, 3], [2, 2, 2], [0, 6, 0], [1, 4, 1], [1, 2, 3]):
                same(compiled(X, torch.tensor(n)), f(X, torch.tensor(n)))
        with pytest.raises(RuntimeError):
            compiled(X, torch.tensor([1, 1, 1]))


def test_a_number_stored_at_indices():
    def f(x, i, j):
        y = x.clone()
        y[i, j] = 0
        z = x > 3
        z[i, j] = False
        y[i] = 1.5
        return y, z

    check(f, [(X, torch.tensor([0, 2, 2]), torch.tensor([1, 3, 3]))])


def test_sizes_of_one_that_change_the_number_of_dimensions(fresh):
    def f(x):
        return torch.squeeze_copy(x)

    compiled = fresh.compile(f)
    for shape in ((5, 5, 5, 5), (1, 1, 1, 1), (5, 1, 5, 1), (2, 3, 4, 5), (3, 1, 4, 1)):
        x = torch.randn(shape)
        assert torch.equal(compiled(x), f(x)), shape
    assert compiled.cache_info()["segments"]


MATRICES = [(5, 5), (5, 4), (5, 2), (5, 1), (1, 5), (2, 7), (7, 2), (3, 3), (0, 3), (4, 0)]
NUMBERS = [(9,), (12,), (4,), (1,), (0,), (2,), (0,), (7,)]


@pytest.mark.parametrize(
    "f, shapes",
    [
        (lambda np, x: np.linalg.qr(x), MATRICES),
        (lambda np, x: np.linalg.svd(x, full_matrices=False)[1] * 2, MATRICES),
        (lambda np, x: torch.linalg.svd(torch.from_numpy(x)).S.numpy() + 1, MATRICES),
        (lambda np, x: torch.linalg.qr(torch.from_numpy(x)).R.abs().numpy(), MATRICES),
        (lambda np, x: np.bincount(abs(x.astype(int)), weights=x) / 2, NUMBERS),
        (lambda np, x: np.diff(np.flatnonzero(x > 0)) + 1, NUMBERS),
        (lambda np, x: np.diff(x, n=2) + 1, NUMBERS),
        (lambda np, x: np.diff(np.flatnonzero(np.diff((x > 0).astype(int)))) * 2, NUMBERS),
    ],
    ids=["qr", "svd", "torch svd", "torch qr", "bincount", "diff of found", "diff", "diff of diff"],
)
def test_sizes_of_library_calls_at_their_ends(fresh, f, shapes):
    """What fits the sizes seen so far (a minimum, one less) may not fit none and one: then the run counts for nothing."""
    np = pytest.importorskip("numpy")
    compiled = fresh.compile(lambda x: f(np, x))
    for round in range(2):
        for shape in shapes:
            x = np.random.default_rng(round).normal(size=shape) * 3
            got, want = compiled(x), f(np, x)
            for g, w in zip(got, want) if isinstance(want, tuple) else [(got, want)]:
                assert g.shape == w.shape and g.dtype == w.dtype, shape
                assert np.allclose(g, w, atol=1e-12), shape
    ends = fresh.cache_info(compiled)["outcomes"]["run"]
    assert not ends.get("internal")


@pytest.mark.parametrize("f", [lambda x, i: x[i], lambda x, i: torch.nn.functional.embedding(i, x), lambda x, i: x.index_select(0, i)], ids=["item", "embedding", "index_select"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_table_that_has_no_rows_any_more(fresh, f, grad):
    compiled = fresh.compile(f)
    with torch.set_grad_enabled(grad):
        for rows, places in ((5, 3), (6, 4), (7, 2), (0, 3), (0, 0), (8, 3), (0, 2), (1, 1)):
            x, i = torch.randn(rows, 4, requires_grad=grad), torch.zeros(places, dtype=torch.long)
            if rows == 0 and places:
                for call in (f, compiled):
                    with pytest.raises((IndexError, RuntimeError)):
                        call(x, i)
            else:
                assert torch.equal(compiled(x, i), f(x, i))


CALLS = {
    "lu": lambda x: tuple(t * 2 for t in torch.linalg.lu(x * 1)),
    "qr": lambda x: tuple(t * 2 for t in torch.linalg.qr(x)),
    "svdvals": lambda x: torch.linalg.svdvals(x) + 1,
    "squeeze_copy": lambda x: torch.squeeze_copy(x) + 1,
}


@pytest.mark.parametrize("f", CALLS.values(), ids=CALLS)
def test_results_of_calls_without_a_row_while_sizes_change(fresh, f):
    compiled = fresh.compile(f)
    for shape in ((3, 5), (5, 3), (4, 4), (2, 7), (7, 2), (1, 4), (4, 1), (6, 2), (1, 1), (9, 8)):
        x = torch.randn(shape)
        same(compiled(x), f(x))
    info = compiled.cache_info()
    assert not info["breaks"] and set(info["outcomes"]["run"]) <= {"graph", "left", "framework"}, info
    assert info["segments"] <= 6  # the smaller size is an expression of both


def test_numbers_that_may_be_no_larger_than_a_size(fresh):
    """The framework refuses k past the size: it is asked with numbers near those that the program has."""

    def f(x, k):
        values, at = torch.topk(x, k)
        return values * 2, at, torch.kthvalue(x, k).values + 1

    compiled = fresh.compile(f)
    for k in (3, 4, 5, 2, 8, 7):
        x = torch.randn(8)
        for ours, eager in zip(compiled(x, k), f(x, k), strict=True):
            torch.testing.assert_close(ours, eager)
    info = compiled.cache_info()
    assert (info["segments"], info["breaks"]) == (2, 0) and set(info["outcomes"]["run"]) == {"graph"}, info
    with pytest.raises(RuntimeError):
        compiled(torch.randn(8), 9)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_that_the_last_offset_ends(fresh, mode):
    """torch's kernels trust that offset and read past the indices otherwise: that of a stand-in is the number of indices."""

    def f(w, i, offsets):
        return torch.nn.functional.embedding_bag(i, w, offsets, mode=mode, include_last_offset=True) * 2

    w, i = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 1, 1, 0, 1, 4])
    told = fresh.explain(f)(w, i, torch.tensor([0, 3, 6]))
    assert (told.graph_count, told.graph_break_count) == (1, 0), told
    compiled = fresh.compile(f)
    for offsets in ([0, 3, 6], [0, 6], [0, 1, 2, 6]):
        ours, eager = (g(w, i, torch.tensor(offsets)) for g in (compiled, f))
        torch.testing.assert_close(ours, eager)
        for a, b in zip(*(torch.autograd.grad(y.sum(), w) for y in (ours, eager)), strict=True):
            torch.testing.assert_close(a, b)


def test_a_size_that_was_made_up_raises_nothing(fresh):
    """While capturing such a size is made up at first: a module that raises for most is captured again with the right one."""
    torch.manual_seed(0)
    module = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]).requires_grad_(False)
    compiled = fresh.compile(lambda x, target: module(x, target).output)
    for n in (8, 12, 17, 12):
        x, target = torch.randn(n, 8), torch.arange(n) % 20
        same(compiled(x, target), module(x, target).output)
    assert compiled.cache_info()["breaks"] <= 1  # its index_fill_ breaks, and no exception of its own does
    with pytest.raises(RuntimeError, match="values in range .0, 20. were found"):
        compiled(torch.randn(12, 8), torch.arange(12) * 2 - (torch.arange(12) * 2 > 20).long() * 2)


# Where torch takes a number, by position or by name: the second is a program that torch refuses for a tensor with a dimension.
NUMBERS = {
    "arange end": (lambda n: torch.arange(end=n), True),
    "arange": (lambda n: torch.arange(start=0, end=n) * n, True),
    "eye": (lambda n: torch.eye(n, m=n), False),
    "full": (lambda n: torch.full((2, n), 2.0), False),
    "full of": (lambda n: torch.full((3,), n) + torch.ones(3).new_full((3,), n), True),
    "linspace": (lambda n: torch.linspace(0, 1, steps=n), True),
    "window": (lambda n: torch.hann_window(n), True),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_tensors_that_torch_reads_as_numbers(fresh, name):
    f, whole = NUMBERS[name]
    compiled = fresh.compile(f)
    for n in (5, 3, 7, 2):
        same(compiled(torch.tensor(n)), f(torch.tensor(n)))
        same(compiled(torch.tensor(n, dtype=torch.uint8)), f(torch.tensor(n, dtype=torch.uint8)))
    info = compiled.cache_info()
    assert not info["breaks"] and set(info["outcomes"]["run"]) == {"graph"}, info
    assert info["segments"] <= 4, info  # two dtypes, and numbers that a program branches on
    if whole:  # a list of one number is none
        with pytest.raises(TypeError):
            f(torch.tensor([5]))
        with pytest.raises(TypeError):
            compiled(torch.tensor([5]))
    else:
        same(compiled(torch.tensor([5])), f(torch.tensor([5])))


def test_a_product_of_sizes_is_a_bound(fresh):
    """As tapas flattens: sizes go through a tensor and back."""

    def f(x):
        n = torch.prod(torch.tensor(list(x.shape[:1])))
        return (torch.arange(start=0, end=n, device=x.device) * 3).view(x.shape[:1]).unsqueeze(-1) + x

    compiled = fresh.compile(f)
    for n in (4, 6, 3, 9):
        x = torch.randn(n, 3)
        same(compiled(x), f(x))
    assert compiled.cache_info()["breaks"] == 0 and compiled.cache_info()["segments"] <= 4, compiled.cache_info()
