"""Strides of results over operands in every memory layout, with sizes of 1 where torch's rules part."""

import itertools
import random
import time

import pytest

torch = pytest.importorskip("torch")
import framejit  # noqa: E402
F = torch.nn.functional

ONE = {
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp_min(0),
    "deg2rad": torch.deg2rad,
    "exp": torch.exp,
    "hardtanh": F.hardtanh,
    "isfinite": torch.isfinite,
    "isinf": torch.isinf,
    "leaky_relu": F.leaky_relu,
    "nan_to_num": torch.nan_to_num,
    "pow": lambda x: x**3,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.1])),
    "relu6": F.relu6,
    "reshape to its sizes": lambda x: x.reshape(x.shape) + 1,
    "rsub": lambda x: 1 - x,
    "softmax": lambda x: x.softmax(1),
    "sum": lambda x: x.sum((0, 2), keepdim=True),
    "to": lambda x: x.to(torch.float64),
    "view as itself": lambda x: x.view_as(x).exp(),
}
TWO = {
    "add": torch.add,
    "add of two dtypes": lambda x, y: x.double() + y,
    "cat": lambda x, y: torch.cat([x, y], 1),
    "einsum": lambda x, y: torch.einsum("bchw,bchv->bcwv", x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "logical_and": torch.logical_and,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > 0, x, y),
}


def layouts(shape, pick):
    """Tensors of this shape: row-major, permuted, with gaps, expanded."""
    orders = list(itertools.permutations(range(len(shape))))
    for kind in ("row-major", "permuted", "channels last", "gaps", "permuted gaps", "expanded"):
        order = {"row-major": orders[0], "gaps": orders[0], "channels last": (0, 2, 3, 1)}.get(kind, pick.choice(orders))
        base = [shape[i] for i in order]
        along = pick.randrange(len(shape))
        if kind.endswith("gaps"):
            wide = list(base)
            wide[along] *= 2
            x = torch.randn(wide).narrow(along, 1 if base[along] > 1 else 0, base[along])
        elif kind == "expanded":
            one = list(base)
            one[along] = 1
            x = torch.randn(one).expand(base)
        else:
            x = torch.randn(base)
        yield x.permute([order.index(i) for i in range(len(shape))])


def check(function, arguments, fresh, dynamic):
    fresh.reset()
    expected, got = function(*arguments), fresh.compile(function, dynamic=dynamic)(*arguments)
    where = [(tuple(a.shape), a.stride()) for a in arguments]
    assert got.stride() == expected.stride() and got.dtype == expected.dtype, where
    torch.testing.assert_close(got, expected, equal_nan=True, msg=lambda text: f"{where}: {text}")


SHAPES = [(2, 8, 1, 1), (1, 1, 3, 2), (2, 3, 1, 4), (3, 2, 2, 2)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ONE)
def test_of_one(name, dynamic, fresh):
    pick = random.Random(name)
    for shape in SHAPES:
        for x in layouts(shape, pick):
            check(ONE[name], (x,), fresh, dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", TWO)
def test_of_two(name, dynamic, fresh):
    pick = random.Random(name)
    for shape in SHAPES:
        for x, y in zip(layouts(shape, pick), pick.sample(list(layouts(shape, pick)), 6)):
            check(TWO[name], (x, y), fresh, dynamic)


def test_pictures_of_one_pixel(fresh):
    def f(x):
        return F.interpolate(F.batch_norm(x, torch.zeros(8), torch.ones(8)), scale_factor=2.0)

    check(f, (torch.randn(2, 1, 8).permute(0, 2, 1).reshape(2, 8, 1, 1),), fresh, None)


@pytest.mark.parametrize("sizes", [(4, 1), (4, 3), (3, 1, 1), (3, 1, 2), (3, 2, 1)])
def test_looked_up_by_no_indices(sizes, fresh):
    f = lambda x, i: (x[i], x[:, :1][i], x.t()[i] if x.ndim == 2 else x[:, i], x[i, i * 0])  # noqa: E731
    compiled = fresh.compile(f)
    for order in itertools.permutations(range(len(sizes))):
        x = torch.randn([sizes[d] for d in order]).permute([order.index(d) for d in range(len(sizes))])
        for index in ([], [0, 0], [[]]):
            i = torch.tensor(index, dtype=torch.long)
            assert [r.stride() for r in compiled(x, i)] == [r.stride() for r in f(x, i)], (x.stride(), index)


def test_gradients_are_asked_of_a_layout_that_torchs_kernels_take(fresh):
    """Torch's own backward pass of group_norm crashes where only the weights of a picture with channels last want gradients. The
    program does not go through it, and what is asked while compiling must not either."""

    def f(x, w, b):
        return F.group_norm(x, 2, w, b), x * w[:, None, None]

    x = torch.randn(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    w, b = torch.ones(8, requires_grad=True), torch.zeros(8, requires_grad=True)
    got, want = fresh.compile(f)(x, w, b), f(x, w, b)
    for one, other in zip(got, want):
        assert one.requires_grad and one.stride() == other.stride()
        torch.testing.assert_close(one, other)
    got[1].sum().backward()
    torch.testing.assert_close(w.grad, x.sum((0, 2, 3)))


def test_views_of_views_keep_their_memory(fresh):
    """Calls that torch runs answer with views: of scratch, and of the copy that was made of such a view."""

    def f(x):
        windows = (x * 2).unfold(0, 64, 64).unfold(1, 64, 64)
        others = [x.kthvalue(2, d).values + torch.logcumsumexp(x, d).kthvalue(2, d).values for d in (0, 1)]
        return windows.reshape(64, 64) + others[0] - others[1] + torch.logcumsumexp(x, 0) * torch.logcumsumexp(x, 1)

    compiled = fresh.compile(f)
    for seed in range(3):
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(compiled(x), f(x))


def test_empty_results_after_sizes_became_symbols():
    f = framejit.compile(lambda x, y: (x + y, (x * 2).sum(0), x.T + 1))
    g = framejit.compile(lambda x, y: (x + y, (x * 2).sum(0), x.T + 1), dynamic=True)
    for n in (3, 4, 5, 0, 6, 0):
        x, y = torch.ones(2, n), torch.ones(2, n)
        for compiled in (f, g):
            for got, want in zip(compiled(x, y), f.__wrapped__(x, y)):
                assert got.shape == want.shape and got.stride() == want.stride(), n
                assert torch.equal(got, want)


VIEWS = [  # what NumPy answers with its argument, with a view, or with memory of its own
    "q.conj()", "np.conj(q)", "q.real", "np.asarray(q)", "np.ascontiguousarray(q)", "q.ravel()", "q.ravel('K')",
    "np.squeeze(q)", "np.atleast_3d(q)", "q.astype(q.dtype, copy=False)", "np.require(q)", "np.real_if_close(q)",
    "np.array(q, copy=None)", "q.diagonal()", "np.rot90(q)", "np.copy(q)", "(q * 2)[::-1, ::2].conj()",
    "np.broadcast_to((q * 2)[0], (3, 5))", "np.broadcast_to(np.arange(3).reshape(3, 1), (3, 3))",
    "np.broadcast_to(np.arange(3).reshape(3, 1), (3, 3))[np.tri(3, dtype=bool)]", "np.tril_indices(3)",
    "np.triu_indices(3, 1)", "np.lib.stride_tricks.sliding_window_view(q * 2, (2, 2))",
]  # fmt: skip
ARRAYS = {
    "rows": lambda np: np.arange(20.0).reshape(4, 5),
    "part": lambda np: np.arange(30.0).reshape(5, 6)[:-1, 1:],
    "backwards": lambda np: np.arange(20.0).reshape(4, 5)[::-1, ::-1],
    "columns": lambda np: np.arange(20.0).reshape(5, 4).T,
    "repeated": lambda np: np.broadcast_to(np.arange(5.0), (4, 5)),
}


@pytest.mark.parametrize("ends", ["return x", "print(end=''); return x", "print(end=''); y = q + 1; return x, y"])
@pytest.mark.parametrize("expression", VIEWS)
def test_views_of_arrays_across_a_break(expression, ends, fresh):
    np = pytest.importorskip("numpy")

    def facts(r, q):
        if isinstance(r, tuple):
            return [facts(x, q) for x in r]
        return r.tolist(), r.strides, r.dtype, r.flags.writeable, np.shares_memory(r, q)

    scope = {"np": np}
    exec(f"def f(q):\n  x = {expression}\n  {ends}", scope)
    for name, make in ARRAYS.items():
        compiled = fresh.compile(scope["f"])
        for _ in range(3):
            q = make(np)
            assert facts(compiled(q), q) == facts(scope["f"](q), q), name


CHOSEN = ["t[i]", "2 * t[i] / t[-1]", "t[i.astype('u1')]", "t[i.astype('i4')[:, ::2]]", "m[i]", "m[i, i % 4]", "m[i, i[0] % 4]", "m[i, i.astype('i4').T.copy().T % 4]", "m.T[i % 4]", "m[i, 0]", "np.take(t, i)"]


@pytest.mark.parametrize("expression", CHOSEN)
def test_elements_that_are_chosen_lie_as_the_indices_do(expression, fresh):
    np = pytest.importorskip("numpy")
    f = eval(f"lambda t, m, i: {expression}", {"np": np})
    t, m = np.arange(30.0), np.arange(120.0).reshape(30, 4)
    compiled = fresh.compile(f)
    for name, make in {**ARRAYS, "of columns": lambda np: np.arange(60.0).reshape(5, 4, 3).transpose(1, 2, 0)[0]}.items():
        i = make(np).astype(int) % 30
        i = i if name != "repeated" else np.broadcast_to(i[0], i.shape)
        for _ in range(2):
            got, want = compiled(t, m, i), f(t, m, i)
            assert got.strides == want.strides and (got == want).all(), name


def test_a_view_that_nothing_was_made_of_fits_its_memory(fresh):
    """The heap behind a result notices too much that is written: the C library ends the process."""
    np = pytest.importorskip("numpy")

    def f(q):
        x = q[:-1, 1:].conj()
        time.sleep(0)
        return x

    compiled = fresh.compile(f)
    q = np.ones((400, 400))
    for _ in range(50):
        assert compiled(q).base is q
    assert fresh.explain(f)(q).graph_break_count == 1


LOOKED_UP = {
    "getitem": lambda x, i: x[i],
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, x.shape[1])),
    "index_select": lambda x, i: x.index_select(0, i),
    "take": torch.take,
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:, None], 0),
    "two": lambda x, i: x[i, i],
    "summed": lambda x, i: x[i].sum(0),
    "one_hot": lambda x, i: F.one_hot(i, 2) + x.sum().long(),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", LOOKED_UP)
def test_tables_of_no_rows(name, gradients, fresh):
    f = LOOKED_UP[name]
    for sizes in ([0], [3, 0], [3, 5, 0, 4], [1, 0]):
        for index in ([0], [], [0, 0], [2], [-1]):
            compiled = fresh.compile(f)
            for n in sizes:
                x, i = torch.ones(n, 4, requires_grad=gradients), torch.tensor(index, dtype=torch.long)
                try:
                    want = f(x, i)
                except (IndexError, RuntimeError) as error:
                    with pytest.raises(type(error)):
                        compiled(x, i)
                else:
                    got = compiled(x, i)
                    assert got.stride() == want.stride()
                    assert torch.equal(got, want)
    assert fresh.explain(f)(torch.ones(3, 4), torch.tensor([0, 1])).graph_break_count == 0


def test_arrays_whose_first_or_last_size_becomes_one(fresh):
    np = pytest.importorskip("numpy")

    def f(x):
        y = np.asfortranarray(x)
        return y * 2, y[::2] + 1, x.T + y.T, np.where(y > 0, y, 0), y.astype("f4"), x.transpose(1, 0, 2) * 1.0, x > 1

    compiled = fresh.compile(f)
    compiled(np.ones((2, 3, 4)))
    assert compiled.cache_info()["segments"] == 1 and not compiled.cache_info()["breaks"]
    for shape in [(2, 3, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1), (1, 1, 4), (2, 1, 1), (0, 3, 4), (3, 3, 4)]:
        for order in "CF":
            x = np.asarray(np.random.rand(*shape), order=order)
            assert [a.strides for a in compiled(x)] == [a.strides for a in f(x)], (shape, order)


@pytest.mark.parametrize("view", [lambda x: x[None], lambda x: x[:, None], lambda x: x[..., None], lambda x: x[:, :3][:, None], lambda x: x.view(1, 4, 1, 5)])
def test_a_view_with_sizes_of_one_keeps_its_strides_in_a_call_of_torch(fresh, view):
    def f(x):
        return torch.nn.functional.feature_alpha_dropout(view(x), 0.5, True)

    compiled = fresh.compile(f)
    for _ in range(2):
        x, results = torch.randn(4, 5), []
        for g in (f, compiled):
            torch.manual_seed(0)
            results.append(g(x))
        assert results[0].stride() == results[1].stride() and torch.equal(*results)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_attention_whose_last_dimension_is_not_in_one_piece(fresh, causal, grad):
    def f(x, u):
        k = u.detach()
        k = k.copy_(x.flatten(2).transpose(1, 2))
        q, k, v = (t.reshape(t.shape[0], -1, 2, 4).transpose(1, 2) for t in (u, x.flatten(2).transpose(1, 2), k))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal) * 2

    compiled = fresh.compile(f)
    for size in (6, 6, 5):
        x = torch.randn(3, 8, size, size).requires_grad_(grad)
        expected, got = (g(x, torch.ones(3, 8, size * size).transpose(1, 2)) for g in (f, compiled))
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected)
    assert compiled.cache_info()["segments"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_attention_of_what_was_made_here_in_another_layout(fresh, mode):
    def f(u, w, b):
        v = torch.nn.functional.linear(u, w, b)
        v.transpose(-1, -2).add_(1)
        q, k = (t.reshape(t.shape[0], -1, 2, 4).transpose(1, 2) for t in (v, u * 2))
        return torch.nn.functional.scaled_dot_product_attention(q, q, k)

    compiled = fresh.compile(f)
    args = torch.randn(2, 36, 8), torch.randn(8, 8) / 8, torch.randn(8)
    with mode():
        expected, got = f(*args), compiled(*args)
        assert got.stride() == expected.stride() and got.is_inference() == expected.is_inference()
        torch.testing.assert_close(got, expected)
    assert compiled.cache_info()["outcomes"]["run"] == {"graph": 1}


@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("last", [True, False])
def test_pooling_of_one_channel(fresh, pool, last):
    """The stride of the one channel tells whether torch takes it for channels-last."""
    f = lambda x: getattr(F, pool)(x, 3, 1, 1)  # noqa: E731
    x = torch.randn(24).as_strided((1, 1, 3, 8), (24, 1 if last else 24, 8, 1))
    expected, got = f(x), fresh.compile(f)(x)
    assert got.stride() == expected.stride() and torch.equal(got, expected)


@pytest.mark.parametrize("part", ["a[20:10:2]", "a[3:5:-2]", "a[5:5]", "a.reshape(4, 5)[2:1:2, ::2]", "np.zeros((0, 3))", "a[::2]", "a[::-1]"])
def test_strides_that_numpy_tells(fresh, part):
    """Of nothing they follow rules of its own: such a part is looked at in Python."""
    np = pytest.importorskip("numpy")
    f = eval(f"lambda a: (a * 2, ({part}).strides)", {"np": np})
    compiled, a = fresh.compile(f), np.arange(20.0)
    for _ in range(3):
        assert compiled(a)[1] == f(a)[1]
    assert bool(fresh.cache_info(compiled)["breaks"]) == (f(a)[1] not in ((16,), (-8,)))


def test_views_of_one_object_have_one_base(fresh):
    """Results that are views of another result, or of one object that is no result, know it: eager then refuses what would make
    derivatives wrong. Each call of the program is made once for all of them."""

    def detached(x):
        y = (x * 2).detach()
        return y, y[1:], y.t()

    def turned(x):
        y = (x * 2).detach()
        return y.view(-1), y[0], y

    def parts(x):
        y = (x + 1).t()
        return (*y.chunk(2), y[0], y)

    def of_input(x):
        y = x.detach()
        return y[0], y[1], y

    for f in (detached, turned, parts, of_input):
        for leaf in (torch.randn(4, 4), torch.randn(4, 4).requires_grad_()):
            fresh.reset()
            compiled = fresh.compile(f)
            for _ in range(3):
                seen = []
                for results in (f(leaf), compiled(leaf)):
                    named = {id(r): n for n, r in enumerate(results)}
                    bases = [r._base for r in results]
                    seen.append(([b if b is None else named.get(id(b), "hidden") for b in bases], [b is bases[0] for b in bases]))
                    seen[-1] += tuple(r.requires_grad for r in results)
                assert seen[0] == seen[1]
            run = fresh.cache_info(compiled)["outcomes"]["run"]
            assert set(run) <= {"graph", "nothing", "framework"} and run.get("graph", 0) + run.get("nothing", 0) + run.get("framework", 0) == 3


def _results(f, makes):
    """(strides, the values or the error) of each call, whether the result is the input, and what became of that."""
    told = []
    for make in makes:
        x = make()
        try:
            y = f(x)
            told.append((y.stride(), y.tolist(), y is x, x.tolist()))
        except RuntimeError as error:
            told.append(str(error))
    return told


@pytest.mark.parametrize("name", ["channels_last", "contiguous_format"])
def test_to_in_a_format_is_the_input_where_torch_would_suggest_it(fresh, name):
    """Not where it lies in that format: one channel, or a transposed matrix."""

    def f(x):
        y = x.to(memory_format=getattr(torch, name))
        return y.add_(1)

    shapes = [(7, 1, 5, 7), (2, 3, 1, 1), (2, 3, 4, 5)] + ([] if name == "channels_last" else [(3, 2)])
    for shape in shapes:
        for turn in (lambda x: x, lambda x: x.transpose(0, 1) if x.dim() == 2 else x.contiguous(memory_format=torch.channels_last)):
            makes = [lambda: turn(torch.zeros(shape))] * 3
            assert _results(fresh.compile(f), makes) == _results(f, makes), (shape, name)


def test_random_leaky_relu_is_row_major(fresh):
    makes = [lambda: torch.arange(-10.0, 10.0).reshape(4, 5).t(), lambda: torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)]
    for training in (False, True):

        def f(x, training=training):
            torch.manual_seed(0)
            return F.rrelu(x, training=training)

        assert _results(fresh.compile(f), makes) == _results(f, makes)


def test_padding_by_a_symbol_that_is_nothing(fresh):
    makes = [lambda: torch.ones(3, 2).t(), lambda: torch.ones(4, 3).t(), lambda: torch.ones(2, 4).t()]
    f = lambda x: F.pad(x, (0, 4 - x.shape[1]))  # noqa: E731
    compiled = fresh.compile(f, dynamic=True)
    for make in makes:
        assert _results(compiled, [make]) == _results(f, [make])


@pytest.mark.parametrize("turned", [lambda v: v.flip(0), lambda v: v.roll(1, 0), lambda v: v.t(), lambda v: v[[2, 0, 1]]])
@pytest.mark.parametrize("grad", [False, True])
def test_a_reduction_is_of_the_row_that_is_read(turned, grad, fresh):
    """What is reduced is also read as it lies, in the same graph: a turned row has the mean of that row."""

    def f(w):
        v = w - w.mean(-1, keepdim=True)
        return turned(v) - w, turned(torch.nn.functional.layer_norm(w, (3,))) - w, turned(torch.softmax(w, -1)) * w

    compiled = framejit.compile(f)
    for n in range(2):
        x = torch.randn(3, 3, dtype=torch.float64, requires_grad=grad)
        torch.testing.assert_close(compiled(x), f(x))
    assert framejit.cache_info(compiled)["outcomes"]["run"] == {"graph": 2}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_small_products_of_turned_rows_have_a_kernel(dtype, fresh):
    """Rows that are no single dimension, too few for the framework's product in the types that our own loop has."""
    w, b = torch.randn(6, 8).to(dtype), torch.randn(6).to(dtype)

    def f(x, y):
        return F.linear(x.transpose(0, 1), w, b), F.linear(x.transpose(0, 1), w), x.transpose(0, 1) @ y.permute(2, 0, 1)

    compiled = fresh.compile(f, fullgraph=True)
    with torch.no_grad():
        for n in (3, 4):
            x, y = torch.randn(n, 2, 8).to(dtype), torch.randn(8, 5, 2).to(dtype)
            for here, there in zip(compiled(x, y), f(x, y)):
                assert here.stride() == there.stride()
                torch.testing.assert_close(here, there)
    assert framejit.cache_info(compiled)["outcomes"]["run"] == {"graph": 2}


COLUMNS = {
    "a cast to int64": (bool, lambda a, np: a + 1),
    "a cast to float64": (int, lambda a, np: a * 1.5),
    "no cast": ("f4", lambda a, np: a * 1.5),
    "a scalar of another type": ("f4", lambda a, np: a * np.float64(1.5)),
    "a scalar of a smaller type": ("f8", lambda a, np: a * np.int8(2)),
    "compared as they are": ("f8", lambda a, np: a > 0.5),
    "compared as floats": (int, lambda a, np: a > 0.5),
    "a square root of integers": (int, lambda a, np: np.sqrt(a)),
    "a modulus": (complex, abs),
    "a choice": ("f8", lambda a, np: np.where(a > 0, a, 1)),
    "two arrays": ("f8", lambda a, np: a + a.copy("K")),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("dynamic", [True, None])
def test_arrays_in_columns_with_sizes_of_one(fresh, name, dynamic):
    """NumPy's iterator, which it needs where something is cast, orders dimensions of size 1 in another way than it does without one."""
    np = pytest.importorskip("numpy")
    dtype, of = COLUMNS[name]
    f = (lambda a: of(a)) if of is abs else (lambda a: of(a, np))
    compiled = fresh.compile(f, dynamic=dynamic)
    for shape in [(1, 2, 3), (2, 1, 3), (2, 3, 1), (1, 4, 5), (3, 1, 1), (4, 1, 3), (1, 3), (3, 1), (2, 3, 4)]:
        for a in (np.ones(shape, dtype).T, np.asfortranarray(np.ones(shape, dtype)), np.ones(shape, dtype)):
            assert compiled(a).strides == f(a).strides, (shape, a.strides)
    assert not compiled.cache_info()["breaks"] and compiled.cache_info()["segments"] and set(compiled.cache_info()["outcomes"]["run"]) == {"graph"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_empty_result_of_sizes_that_differ(fresh, dynamic):
    """The order of its dimensions is the iterator's, which takes a size of 1 for larger than 0."""
    for xs, ys in (((0, 1), (1,)), ((0, 1), ()), ((0, 1), (1, 1)), ((1, 0, 1), (1,)), ((2, 0, 1), (1,)), ((0, 2), (1,)), ((1, 0), (1,))):
        x, y = torch.zeros(xs), torch.zeros(ys)
        for f in (lambda x, y: x * y, lambda x, y: torch.where(x > 0, x, y), lambda x, y: x.double() + y):
            fresh.reset()
            compiled = fresh.compile(f, dynamic=dynamic)
            assert compiled(x, y).stride() == f(x, y).stride(), (xs, ys)
            assert compiled.cache_info()["segments"] == 1
