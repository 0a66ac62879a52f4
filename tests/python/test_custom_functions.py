"""torch.autograd.Function, random draws and writes inside compiled programs that want gradients: one graph each, and what eager gives."""

import io

import framejit
import pytest

torch = pytest.importorskip("torch")
from oracle import gradients_agree  # noqa: E402
from test_gradient_rules import Two as Several  # noqa: E402

F = torch.nn.functional


class Scaled(torch.autograd.Function):  # not the derivative of its forward: what backward says counts
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * torch.tanh(x) * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * ctx.scale, None


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, unused=None):
        product = x @ y
        ctx.save_for_backward(x, y, product)
        return product, (x * 2).sum()

    @staticmethod
    def backward(ctx, g, h):
        x, y, product = ctx.saved_tensors
        gx = gy = None
        if ctx.needs_input_grad[0]:
            gx = g @ y.t() + h * 2 * product.sum()
        if ctx.needs_input_grad[1]:
            gy = x.t() @ g
        return gx, gy, None


class SetUp(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = (torch.rand_like(x) > 0.5).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g * ctx.factor, None


class Spiking(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        over = x > 0.5
        ctx.mark_non_differentiable(over)
        ctx.save_for_backward(x)
        return over.to(x.dtype), over

    @staticmethod
    def backward(ctx, g, none):
        assert none is None
        return None if g is None else g * torch.exp(-ctx.saved_tensors[0].abs())


class NoMaterial(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x + 1, x + 2

    @staticmethod
    def backward(ctx, g, h):
        return (g if h is None else g + h) * 7


class Partly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        index = x.argmax(-1)
        ctx.mark_non_differentiable(index)
        return x * 2, index

    @staticmethod
    def backward(ctx, g, _):
        return g * 11


class DrawsBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand_like(g)


def once(f, grads, double=False):
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=bool(grads[0]))
    y = torch.randn(4, 5, requires_grad=bool(grads[1]))
    out = f(x, y)
    wanted = [o for o in out if o.requires_grad]
    if double:
        leaves = [t for t in (x, y) if t.requires_grad]
        first = [g for g in torch.autograd.grad(sum((o * o).sum() for o in wanted), leaves, create_graph=True, allow_unused=True) if g is not None]
        sum((g * g).sum() for g in first).backward()
    elif wanted:
        sum((o * o).sum() for o in wanted).backward()
    return [o.detach() for o in out] + [x.grad, y.grad], [o.requires_grad for o in out], torch.get_rng_state()


def compare(fj, f, grads, whole=True, double=False):
    compiled = fj.compile(f)
    for _ in range(3):
        expected, got = once(f, grads, double), once(compiled, grads, double)
        assert got[1] == expected[1] and torch.equal(got[2], expected[2])
        for mine, theirs in zip(got[0], expected[0]):
            assert (mine is None) == (theirs is None)
            if theirs is not None:
                assert mine.stride() == theirs.stride()
                torch.testing.assert_close(mine, theirs)
    info = fj.cache_info(compiled)
    if whole:
        assert (info["breaks"], info["notes"]) == (0, [])
    return info


ONE = {
    "saved": lambda x, y: (Scaled.apply(x * 2, 1.5) + 1, SetUp.apply(x).sum()),
    "two results": lambda x, y: (lambda a, b: (a.relu(), b * 3))(*Two.apply(x + 1, y, None)),
    "both results as they are": lambda x, y: Two.apply(x, y),
    "first result, and what is made of the second": lambda x, y: (lambda a, b: (a, b * 3))(*Two.apply(x * 2, y)),
    "a result and what is made of both": lambda x, y: (lambda a, b: (a, a * b, b.tanh()))(*Two.apply(x * 2, y)),
    "second result": lambda x, y: (Two.apply(x, y)[1],),
    "of a detached one": lambda x, y: (Scaled.apply(x.detach(), 1.0) * x, Scaled.apply(x, 2.0).detach()),
    "random": lambda x, y: (Noisy.apply(x), torch.rand(3), Noisy.apply(y)),
    "twice": lambda x, y: (Scaled.apply(Scaled.apply(x, 2.0), 3.0),),
    "an argument": lambda x, y: (Same.apply(x) * 2, Same.apply(x + 1) * 3),
    "a view": lambda x, y: (Reversed.apply(x, 0.5) * 2, Reversed.apply(Reversed.apply(y.tanh(), 2.0), 3.0) + 1),
    "a view beside what it is a view of": lambda x, y: (lambda h: (h.sin() + Reversed.apply(h, 2.0).cos(), h))(x * 3),
    "no gradients for the second": lambda x, y: (lambda s, over: (s * x, over))(*Spiking.apply(x * 2)),
    "nothing is asked of it": lambda x, y: (Spiking.apply(x)[0].detach() + y[:3].sum(), Spiking.apply(x)[1]),
}


@pytest.mark.parametrize("grads", [(1, 1), (1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize("name", ONE)
def test_functions(fj, name, grads):
    compare(fj, ONE[name], grads)


def test_functions_twice_differentiated(fj):
    compare(fj, lambda x, y: (Scaled.apply(x, 2.0) * y.sum(), Two.apply(x, y)[0]), (1, 1), double=True)
    compare(fj, lambda x, y: Two.apply(x, y), (1, 1), double=True)


def test_results_of_a_function_are_not_made_of_each_other(fj):
    compiled = fj.compile(lambda x, y: Two.apply(x, y))
    x, y = (torch.ones(2, 2, requires_grad=True) for _ in range(2))
    product, total = compiled(x, y)
    assert torch.autograd.grad(total, [product, x], allow_unused=True, retain_graph=True)[0] is None
    assert torch.autograd.grad(product.sum(), [total, x], allow_unused=True)[0] is None


def test_a_view_is_one_where_it_leaves(fj):
    def alone(x):
        return Reversed.apply(x * 2, 0.5)

    assert fj.compile(alone)(torch.ones(3, requires_grad=True))._is_view()
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        fj.compile(alone)(torch.ones(3, requires_grad=True)).add_(1)


    def f(x):
        h = x * 2
        return h, Reversed.apply(h, 0.5), Reversed.apply(x, 0.5)

    compiled = fj.compile(f)
    for _ in range(3):
        outcomes = []
        for one in (f, compiled):
            x = torch.ones(3, 4, requires_grad=True)
            h, r, s = one(x)
            assert r.data_ptr() == h.data_ptr() and s.data_ptr() == x.data_ptr() and r._base is h and s._base is x
            (h.sum() + r.sum() * 3 + s.sum() * 5).backward()
            outcomes.append(x.grad)
        assert torch.equal(*outcomes)


@pytest.mark.parametrize("write", [lambda h, r: r.add_(1), lambda h, r: r[0].add_(1)])
def test_a_view_must_not_be_written(fj, write):
    def f(x):
        h = x * 2
        r = Reversed.apply(h, 0.5)
        write(h, r)
        return h * r

    compiled = fj.compile(f)
    for _ in range(2):
        for one in (f, compiled):
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
                one(torch.ones(3, 4, requires_grad=True))


def test_what_a_view_is_of_must_not_be_written(fj):
    def f(x):
        h = x * 2
        r = Reversed.apply(h, 0.5)
        with torch.no_grad():
            h.detach().add_(1)
        return h + r

    compiled = fj.compile(f)
    for _ in range(2):
        for one in (f, compiled):
            with pytest.raises(RuntimeError, match="its base or another view of its base has been modified inplace"):
                one(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("cls", [Dirty, NoMaterial, Partly, DrawsBackwards])
def test_functions_that_are_left_to_torch(fj, cls):
    def program(x, y):
        out = cls.apply(x * 1)
        return out if isinstance(out, tuple) else (out * 2,)

    assert compare(fj, program, (1, 0), whole=False)["breaks"]


def test_what_a_function_kept_is_not_given_out(fj):
    class Keeps(torch.autograd.Function):
        kept = []

        @staticmethod
        def forward(ctx, x):
            inner = x * 2
            Keeps.kept.append(inner)
            return inner + 1

        @staticmethod
        def backward(ctx, g):
            return g * 2

    def program(x, y):
        Keeps.kept.clear()
        z = Keeps.apply(x)
        return z, Keeps.kept[-1] + 1

    compare(fj, program, (1, 0), whole=False)


def test_a_saved_tensor_that_is_written_raises(fj):
    def program(x):
        z = x * 1
        y = Scaled.apply(z, 2.0)
        z.add_(1)
        return y.sum()

    for f in (program, fj.compile(program)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            f(torch.ones(3, requires_grad=True)).backward()


def drop_path(x, y):
    kept = 0.9 + torch.rand((x.shape[0], 1), dtype=x.dtype, device=x.device)
    kept.floor_()
    return x.div(0.9) * kept, torch.rand_like(x) + torch.randn_like(x), y + torch.randn(5)


def in_place(x, y):
    return x * x.new_empty(3, 1).bernoulli_(0.7), x * torch.empty_like(x).uniform_(0.9, 1.1), y + torch.empty(5).normal_(1, 2), x * torch.empty(3, 4).exponential_(2.0)


def whole_numbers(x, y):
    return x[torch.randperm(3)], torch.randint(3, (4,)), torch.randint(2, 9, (3,), dtype=torch.int32), torch.rand(2, 3, dtype=torch.float64)


def layer_drop(x, y):
    if torch.rand([]) < 0.0:
        x = x * 2
    if 1.0 <= torch.rand([]):
        x = x * 2
    if torch.rand([]) >= 0:
        x = x + 1
    return (x * 3,)


def dropouts(x, y):
    m = (x[:, :, None, None] * torch.ones(4, 2, 3)).contiguous(memory_format=torch.channels_last)
    return F.dropout(m, 0.4, True), F.dropout2d(m, 0.4, True), F.dropout(m.transpose(1, 2), 0.1, True), F.dropout2d(m[0][None] * 2, 0.3, True)


def without_gradients(x, y):
    with torch.no_grad():
        return F.dropout(x.t(), 0.3, True), F.dropout1d(x[None], 0.5, True), torch.multinomial(x.exp(), 2), torch.bernoulli(x.sigmoid())


@pytest.mark.parametrize("f", [drop_path, in_place, whole_numbers, layer_drop, dropouts, without_gradients])
def test_random(fj, f):
    compare(fj, f, (1, 1))
    compare(fj, f, (0, 0))


def test_a_branch_on_a_draw(fj):
    def program(x, y):
        if torch.rand([]) < 0.5:
            x = x * 2
        return (x * 3,)

    assert compare(fj, program, (1, 0), whole=False)["breaks"]


def experts(x, y):
    weights, chosen = torch.topk(x.softmax(-1), 2, dim=-1)
    chosen = chosen % 3
    weights /= weights.sum(dim=-1, keepdim=True)
    out = torch.zeros_like(x)
    out.index_add_(0, chosen[:, 0], x * weights[:, :1])
    out[chosen[:, 1]] += weights[:, 1:]
    return weights, out


def views(x, y):
    z = torch.zeros(4, 3, 4)
    first, rest = z[0], z[1:]
    first.copy_(x)
    rest[0] += x * 2
    z[3, :, 1:] = x[:, 1:]
    return z * 2, first.sum(), rest * 3


def detached(x, y):
    base = torch.ones(3, 4)
    alias = base.detach()
    alias += x
    return alias * 2, base * 3


def behind(x, y):
    z = x * 2
    z.detach().mul_(3)
    return (z * 1,)


def behind_with(x, y):
    z = x * 2
    z.detach().add_(x)
    return (z * 1,)


@pytest.mark.parametrize("f", [experts, views, detached])
def test_writes(fj, f):
    compare(fj, f, (1, 1))


@pytest.mark.parametrize("f", [behind, behind_with])
def test_writes_behind_gradients(fj, f):
    compare(fj, f, (1, 0), whole=False)


def asks_of_its_gradient(x):
    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2 if g.sum() > 0 else g * 5

    def inner(x):
        return Asks.apply(x)

    return (inner(x) * x.detach().sum().sign()).sum()


def test_a_backward_that_asks_of_its_gradient(fj):
    compiled = fj.compile(asks_of_its_gradient)
    for sign in (1, -1, 1):
        gradients_agree(compiled, asks_of_its_gradient, torch.full((2, 3), float(sign)))


def test_a_backward_that_writes_does_so_when_it_runs(fj):
    log = []

    class Logs(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            log.append("forward")
            return x * 2

        @staticmethod
        def backward(ctx, g):
            log.append("backward")
            return g * 2

    compiled = fj.compile(lambda x: Logs.apply(x).sum())
    for _ in range(3):
        log.clear()
        out = compiled(torch.ones(2, requires_grad=True))
        assert log == ["forward"]
        out.backward()
        assert log == ["forward", "backward"]


def test_kernels_of_users_run_as_often_as_the_program_says(fj):
    runs = []

    @torch.library.custom_op("framejit_test::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        runs.append(tuple(x.shape))
        return x.sin() * 2

    counted.register_fake(torch.empty_like)
    compiled = fj.compile(lambda x: counted(x + 1) * 2)
    for n in (3, 3, 5, 7):
        x = torch.arange(float(n))
        torch.testing.assert_close(compiled(x), (x + 1).sin() * 4)
    assert runs == [(3,), (3,), (5,), (7,)]
    assert fj.explain(compiled)(x).graph_break_count == 0


def trained(f, module, x, seed=0):
    torch.manual_seed(seed)
    x = x.detach().clone().requires_grad_()
    parameters = list(module.parameters()) if module else []
    for p in parameters:
        p.grad = None
    out = f(x)
    out = out[0] if isinstance(out, tuple) else out
    (out * torch.linspace(0.5, 1.5, out.numel()).view(out.shape)).sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in parameters), torch.get_rng_state()]


DRAWING = {
    **{c.__name__: (lambda c=c: (lambda m: (m, m))(c(3, 4, 2, dropout=0.5)), (5, 2, 3)) for c in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)},
    "inside": (lambda: (lambda m: (m, m))(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.LSTM(8, 4, 2, dropout=0.5))), (5, 2, 3)),
    "alpha": (lambda: (torch.nn.AlphaDropout(), None), (3, 4, 5)),
    "feature alpha": (lambda: (torch.nn.FeatureAlphaDropout(), None), (3, 4, 5)),
    "dropout3d": (lambda: (torch.nn.Dropout3d(), None), (3, 4, 2, 2, 2)),
    "rrelu": (lambda: (torch.nn.RReLU(), None), (3, 4)),
    "rrelu_": (lambda: (lambda x: torch.rrelu_(x * 1, 0.1, 0.9, True), None), (3, 4)),
    "pooling": (lambda: (torch.nn.FractionalMaxPool2d(2, output_size=2), None), (2, 3, 6, 6)),
    "gumbel": (lambda: (lambda x: F.gumbel_softmax(x, hard=True), None), (3, 4)),
    "attention": (lambda: (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), None), (2, 2, 4, 8)),
    "native": (lambda: (lambda x: torch.native_dropout(x, 0.5, True)[0] + torch.ops.aten.dropout(x, 0.5, True), None), (3, 4)),
    "gamma": (lambda: (lambda x: torch.distributions.Gamma(x.exp(), 1.0).rsample(), None), (3, 4)),
    "layer": (lambda: (lambda m: (m, m))(torch.nn.TransformerEncoderLayer(8, 2, 16)), (3, 2, 8)),
}  # fmt: skip
WHOLE = {"dropout3d", "pooling", "gumbel", "attention", "layer"}


@pytest.mark.parametrize("name", DRAWING)
def test_what_was_drawn_is_what_gradients_see(fresh, name):
    make, shape = DRAWING[name]
    torch.manual_seed(1)
    f, module = make()
    x = torch.randn(*shape)
    compiled = fresh.compile(f)
    for seed in (0, 0, 1):
        expected, got = trained(f, module, x, seed), trained(compiled, module, x, seed)
        for mine, theirs in zip(got, expected):
            torch.testing.assert_close(mine, theirs)
            assert mine.stride() == theirs.stride()
    if name in WHOLE:
        assert fresh.cache_info(compiled)["breaks"] == 0 and not fresh.cache_info(compiled)["notes"]
    if name == "inside":  # what is around it is compiled
        assert fresh.cache_info(compiled)["segments"] >= 2


def test_recurrent_layers_that_drop_nothing_are_whole(fresh):
    model = torch.nn.LSTM(3, 4, 2)
    compiled = fresh.compile(model)
    for mine, theirs in zip(trained(compiled, model, torch.ones(5, 2, 3)), trained(model, model, torch.ones(5, 2, 3))):
        torch.testing.assert_close(mine, theirs)
    assert fresh.cache_info(compiled)["breaks"] == 0


def test_a_recurrent_layer_draws_without_gradients(fresh):
    model = torch.nn.GRU(3, 4, 2, dropout=0.5)
    f = torch.no_grad()(lambda x: model(x * 2)[0] + torch.rand_like(model(x)[0]))
    compiled = fresh.compile(f)
    for seed in (0, 1):
        torch.manual_seed(seed)
        expected = f(torch.ones(5, 2, 3))
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(torch.ones(5, 2, 3)), expected)


def test_a_kernel_of_the_user_and_its_gradient_run_once(fresh):
    log = []

    @torch.library.custom_op("framejit_test::noise", mutates_args=())
    def noise(x: torch.Tensor) -> torch.Tensor:
        log.append("forward")
        return x * torch.rand_like(x)

    def setup(ctx, inputs, output):
        log.append("setup")
        ctx.save_for_backward(output / inputs[0])

    def backward(ctx, g):
        log.append("backward")
        return g * ctx.saved_tensors[0]

    noise.register_fake(torch.empty_like)
    noise.register_autograd(backward, setup_context=setup)
    f = lambda x: noise(x + 1) * 2  # noqa: E731
    compiled = fresh.compile(f)
    for seed in range(3):
        expected = trained(f, None, torch.ones(3), seed)
        assert log == ["forward", "setup", "backward"]
        log.clear()
        for mine, theirs in zip(trained(compiled, None, torch.ones(3), seed), expected):
            torch.testing.assert_close(mine, theirs)
        assert log == ["forward", "setup", "backward"]
        log.clear()
    with torch.no_grad():  # in one graph, as often as the program says, and in its order
        drawn = fresh.compile(lambda x: (noise(x), torch.rand(3), noise(x)))
        for seed in range(3):
            torch.manual_seed(seed)
            expected = [noise(torch.ones(3)), torch.rand(3), noise(torch.ones(3))]
            torch.manual_seed(seed)
            log.clear()
            for mine, theirs in zip(drawn(torch.ones(3)), expected):
                assert torch.equal(mine, theirs)
            assert log == ["forward", "forward"]
        assert fresh.cache_info(drawn)["breaks"] == 0


def test_a_kernel_without_a_fake_one_does_not_run_while_capturing(fresh):
    log = []
    library = torch.library.Library("framejit_test", "FRAGMENT")
    library.define("logged(Tensor x) -> Tensor")
    library.impl("logged", lambda x: (log.append(x.device.type), x * 2)[1], "CompositeExplicitAutograd")
    compiled = fresh.compile(lambda x: torch.ops.framejit_test.logged(x + 1) + 1)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert log == ["cpu"] * 3


def test_a_gradient_taken_inside_leaves_no_stand_in_behind():
    def twice(p):
        (g,) = torch.autograd.grad((Scaled.apply(p, 3.0) * 2).sum(), p)
        return g + 1

    def dropped(p):
        return Scaled.apply(p, 3.0).detach() + 1

    for f in (twice, dropped):
        compiled = framejit.compile(f, fullgraph=True)
        for _ in range(3):
            p, q = (torch.linspace(-1, 1, 6).requires_grad_() for _ in range(2))
            torch.testing.assert_close(compiled(p), f(q))
        info = framejit.cache_info(compiled)
        assert info["outcomes"]["run"] == {"graph": 3} and not info["notes"]


def test_a_gradient_of_zeros_may_need_what_the_framework_computes(fresh):
    """The derivative of mse_loss is torch's call, and here none of its operands is a tangent: it still runs in the backward pass."""

    def f(x, w):
        v = x - w
        return Several.apply(x.sum(), torch.nn.functional.mse_loss(v.sum(), x.mean()))[1].sin(), v

    x, w = (torch.linspace(-1, k, 9, dtype=torch.float64).view(3, 3).requires_grad_() for k in (1, 2))
    compiled = fresh.compile(f, fullgraph=True)
    for of in (lambda r: r[0], lambda r: r[0] + r[1].sum()):
        for _ in range(2):
            ours, eager = (torch.autograd.grad(of(g(x, w)), (x, w)) for g in (compiled, f))
            for a, b in zip(ours, eager, strict=True):
                torch.testing.assert_close(a, b)


class Quantised(torch.autograd.Function):
    """Results without gradients, by type and by mark, before and behind one that has them; the backward gets zeros for them."""

    @staticmethod
    def forward(ctx, x, book):
        indices = torch.cdist(x, book).argmin(-1)
        codes, far = book[indices], x.exp()
        ctx.save_for_backward(codes, x, book, indices)
        ctx.mark_non_differentiable(indices, far)
        return indices, codes, far

    @staticmethod
    def backward(ctx, of_indices, grad, of_far):
        codes, x, book, indices = ctx.saved_tensors
        assert of_indices.dtype == torch.int64 and of_far.dtype == torch.float32
        return grad + 0.25 * (x - codes) + of_far, torch.zeros_like(book).index_add_(0, indices, grad) + of_indices.sum()


def test_results_without_gradients(fresh):
    def f(x, book):
        indices, codes, far = Quantised.apply(x * 2, book)
        return indices, codes + indices[:, None], far * codes

    def run(g):
        torch.manual_seed(0)
        x, book = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        indices, codes, far = g(x, book)
        ((codes + far) * torch.arange(15.0).view(5, 3)).sum().backward()
        return [indices, codes, far, x.grad, book.grad]

    compiled = fresh.compile(f)
    for _ in range(3):
        mine, theirs = run(compiled), run(f)
        assert [t.requires_grad for t in mine] == [t.requires_grad for t in theirs] == [False, True, True, False, False]
        torch.testing.assert_close(mine, theirs)
    assert fresh.cache_info(compiled)["breaks"] == 0 and not fresh.cache_info(compiled)["notes"]


def test_a_backward_of_operators_of_the_user(fresh):
    """They run once, when the backward pass does."""
    log = []

    @torch.library.custom_op("framejit_test::grouped", mutates_args=())
    def grouped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        log.append("forward")
        return x @ w

    @torch.library.custom_op("framejit_test::grouped_backward", mutates_args=())
    def grouped_backward(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log.append("backward")
        return g @ w.t(), x.t() @ g

    grouped.register_fake(lambda x, w: x.new_empty(x.shape[0], w.shape[1]))
    grouped_backward.register_fake(lambda x, w, g: (torch.empty_like(x), torch.empty_like(w)))

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    grouped.register_autograd(lambda ctx, g: torch.ops.framejit_test.grouped_backward(*ctx.saved_tensors, g), setup_context=setup)

    def f(x, w):
        return torch.ops.framejit_test.grouped(x + 1, w).tanh()

    def run(g):
        torch.manual_seed(0)
        x, w = torch.randn(5, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        y = g(x, w)
        assert log == ["forward"]
        (y * torch.arange(20.0).view(5, 4)).sum().backward()
        assert log == ["forward", "backward"]
        log.clear()
        return [y, x.grad, w.grad]

    compiled = fresh.compile(f)
    for _ in range(3):
        torch.testing.assert_close(run(compiled), run(f))
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and not info["notes"], info
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.ones(5, 3), torch.ones(3, 4)), f(torch.ones(5, 3), torch.ones(3, 4)))
    assert log == ["forward"] * 2


class Kept(torch.autograd.Function):
    """Gradients that are made of what the forward left alone: by a call that may raise, and a result itself."""

    @staticmethod
    def forward(ctx, x, w):
        y = x @ w
        ctx.save_for_backward(w, y, y.argmax(0))
        return y

    @staticmethod
    def backward(ctx, g):
        w, y, indices = ctx.saved_tensors
        return y, torch.zeros_like(w).index_add_(0, indices % 3, w)


def test_gradients_that_do_not_read_the_ones_that_arrive(fresh, capfd):
    def run(g):
        torch.manual_seed(0)
        x, w = torch.randn(5, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        y = g(x, w)
        (y * torch.arange(15.0).view(5, 3)).sum().backward()
        return [y, x.grad, w.grad]

    def inside(x, w):
        return Kept.apply(x * 2, w) + 1

    def outside(x, w):
        return Kept.apply(x * 2, w)

    for f in (inside, outside):
        with fresh.config.patch(log="perf"):
            compiled = fresh.compile(f)
            for _ in range(3):
                torch.testing.assert_close(run(compiled), run(f))
        assert "runs through the framework" not in capfd.readouterr().err
        assert fresh.cache_info(compiled)["breaks"] == 0 and not fresh.cache_info(compiled)["notes"]


UNARY = "abs absolute ceil cos deg2rad digamma erf erfc floor frac lgamma logit nan_to_num negative rad2deg sign sin sinc square trunc".split()
ACTIVATIONS = "gelu hardsigmoid hardswish hardtanh mish relu6 silu softsign".split()
WRITTEN = {
    **{name: getattr(torch, name) for name in UNARY},
    **{name: getattr(F, name) for name in ACTIVATIONS},
    **{name + "_": (lambda x, f=getattr(torch.Tensor, name + "_"): f(x * 1)) for name in UNARY},
    **{name + "_": (lambda x, f=getattr(F, name): f(x * 1, inplace=True)) for name in ACTIVATIONS if name not in ("gelu", "softsign")},
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "adaptive 2": lambda x: F.adaptive_avg_pool2d(x, 2),
    "average": lambda x: F.avg_pool2d(x, 2),
    "maximum": lambda x: F.max_pool2d(x, 2).flatten(1),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_results_that_no_derivative_keeps_are_written(fresh, name):
    """What torch does not keep may be written in place (dropout behind a pooling, say), and the backward pass is compiled."""

    def f(x):
        y = WRITTEN[name](x)
        return F.dropout(y, 0.5, True, inplace=True).mul_(3)

    def run(g):
        torch.manual_seed(0)
        x = (torch.rand(2, 4, 4, 4) * 0.5 + 0.2).requires_grad_()
        y = g(x)
        y.sum().backward()
        return [y, x.grad]

    compiled = fresh.compile(f)
    for _ in range(2):
        torch.testing.assert_close(run(compiled), run(f))
    assert not fresh.cache_info(compiled)["notes"] and not fresh.cache_info(compiled)["breaks"]


class KeepsPlain(torch.autograd.Function):
    """Keeps a result without gradients. Its gradient tells how the zeros for that lie."""

    @staticmethod
    def forward(ctx, x):
        m = x * 3
        ctx.save_for_backward(m)
        ctx.mark_non_differentiable(m)
        return x + 1, m

    @staticmethod
    def backward(ctx, grad, of_m):
        (m,) = ctx.saved_tensors
        return (of_m + 2) if of_m.is_contiguous() else (of_m + 2 * m + grad)


def test_the_zeros_of_a_result_without_gradients_lie_row_by_row(fresh):
    compiled = fresh.compile(lambda x: KeepsPlain.apply(x.t())[0])
    for _ in range(2):
        x = torch.randn(2, 3, requires_grad=True)
        (grad,) = torch.autograd.grad(compiled(x).sum(), x)
        assert torch.equal(grad, torch.full((2, 3), 2.0))
    assert fresh.cache_info(compiled)["breaks"] == 0


def test_a_kept_result_without_gradients_must_not_be_written(fresh):
    def f(x):
        y, m = KeepsPlain.apply(x)
        m.add_(1)
        return y

    compiled = fresh.compile(f)
    for g in (f, compiled, compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            g(torch.randn(3, requires_grad=True)).sum().backward()


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return y * grad + 0 * x


@pytest.mark.parametrize("square", [False, True])
def test_functions_twice_differentiated_inside(fresh, square):
    """Their backward was captured without gradients, so the framework makes the first derivative."""

    def f(x):
        y = Exp.apply(x * 2)
        (g,) = torch.autograd.grad((y * y if square else y).sum(), x, create_graph=True)
        return g * 3

    compiled = fresh.compile(f)
    for _ in range(3):
        x = torch.randn(4, dtype=torch.float64, requires_grad=True)
        mine, theirs = compiled(x), f(x)
        assert mine.requires_grad
        torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(*(torch.autograd.grad(g.sum(), x)[0] for g in (mine, theirs)))
    assert fresh.cache_info(compiled)["breaks"] == 1


class Masked(torch.autograd.Function):  # data decides how much of it is computed
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        mask = x <= -0.5
        x = x.clone()
        x[mask] = (x * 3)[mask]
        x[~mask] = (x - 1)[~mask]
        return x, mask.nonzero().sum()

    @staticmethod
    def backward(ctx, g, _):
        return g


@pytest.mark.parametrize("tracked", [False, True])
def test_data_decides_sizes_where_no_gradients_are_wanted(tracked):
    def f(x):
        y, n = Masked.apply(x * 2)
        return y + n

    compiled = framejit.compile(f)
    for k in range(4):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(k)).requires_grad_(tracked)
        with torch.no_grad():
            got, expected = compiled(x), f(x)
        torch.testing.assert_close(got, expected)
        assert not got.requires_grad
    info = framejit.cache_info(compiled)
    assert info["breaks"] == 0 and info["segments"] <= 2


class SavesItsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y, x * 2

    @staticmethod
    def backward(ctx, g, h):
        return g * ctx.saved_tensors[0] + h * 2


class SavesItsOperand(SavesItsResult):  # which its backward only takes out
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2, x + 1

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * 2 + h


@pytest.mark.parametrize("function", [SavesItsResult, SavesItsOperand])
def test_what_a_function_saved_must_not_be_written(fresh, function):
    """Torch refuses the backward pass then, whatever our derivative reads."""

    def f(x):
        return function.apply(x)

    def tell(run, written):
        w = torch.arange(3.0).requires_grad_()
        x = w * 1
        results = run(x)
        with torch.no_grad():
            {"result": results[0], "other": results[1], "operand": x, "nothing": torch.ones(3)}[written].add_(1)
        try:
            (results[0] + results[1]).sum().backward()
        except RuntimeError as error:
            return str(error)[:80]
        return w.grad.tolist()

    compiled = fresh.compile(f)
    for written in ("nothing", "result", "other", "operand", "nothing"):
        assert tell(compiled, written) == tell(f, written), written
    assert compiled.cache_info()["breaks"] == 0


def test_a_backward_pass_reads_a_class_that_was_written(fresh):
    class State:
        k = 0

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * State.k

    def f(x):
        State.k += 1
        y = Scaled.apply(x).sum()
        State.k += 10
        return y

    def run(g):
        State.k = 0
        grads = []
        for _ in range(3):
            x = torch.ones(2, requires_grad=True)
            g(x).backward()
            grads.append(x.grad.tolist())
        return grads

    assert run(fresh.compile(f)) == run(f)


class Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, g):
        return g.view(2, 2)


@pytest.mark.parametrize("reads", [lambda v: (v.shape, v.stride(), v.requires_grad), lambda v: v._is_view(), lambda v: v.detach(), lambda v: v + 1])
def test_a_view_of_a_function_whose_base_was_written(fresh, reads, capfd):
    """torch has no node for it any more, and refuses to make one: that is no error of framejit's."""

    def f(x):
        y = x * 2
        v = Flat.apply(y)
        y.add_(1)
        return reads(v)

    def tell(g):
        try:
            return str(g(torch.ones(2, 2, requires_grad=True)))
        except RuntimeError as error:
            return str(error)[:80]

    compiled = fresh.compile(f)
    assert [tell(compiled) for _ in range(3)] == [tell(f)] * 3
    assert "internal error" not in "".join(capfd.readouterr())


FACTOR = 3


class ReadsTheSameTwice(torch.autograd.Function):
    """What its forward and its backward read of the module may be another when the backward runs."""

    @staticmethod
    def forward(ctx, x):
        return x * abs(-2) * FACTOR

    @staticmethod
    def backward(ctx, grad):
        return grad * abs(-2) * FACTOR * len("abc")


@pytest.mark.parametrize("create", [False, True])
def test_names_of_a_module_that_are_others_when_the_backward_runs(fresh, create):
    def f(x):
        y = ReadsTheSameTwice.apply(x)
        return y, y * y

    def run(g, names):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y, z = g(x)
        before = {name: globals()[name] for name in names if name in globals()}
        globals().update(names)
        try:
            return torch.autograd.grad(z.sum(), [x, y], create_graph=create, retain_graph=True), torch.autograd.grad(z.sum(), x, create_graph=create)
        finally:
            for name in names:
                globals().pop(name)
            globals().update(before)

    compiled = fresh.compile(f)
    for names in ({}, {"abs": lambda v: 7}, {"FACTOR": 5}, {}, {"len": lambda v: 11, "FACTOR": 9, "abs": max}, {}):
        names = {name: (lambda v: 13) if value is max else value for name, value in names.items()}
        torch.testing.assert_close(run(compiled, names), run(f, names))
    assert "abs" not in globals() and FACTOR == 3
    told = fresh.explain(f)(torch.ones(2, requires_grad=True))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


class AnswersNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x * 2 + w.sum()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


@pytest.mark.parametrize("made", [False, True])
def test_hooks_of_what_a_backward_answers_none_for(fresh, made):
    """Their node runs, and they are called with None; those of an operand that no gradient leads to are not."""

    def f(x, w, v):
        return AnswersNone.apply(x, w * 3).sum() + (v.detach() * x).sum(), (v * 2).sum()

    def run(g, other):
        x, w, v = (torch.ones(3, requires_grad=True) for _ in range(3))
        given = [t * 1 for t in (x, w, v)] if made else [x, w, v]
        seen = []
        for name, t in zip("xwv", given):
            t.register_hook(lambda grad, name=name: seen.append((name, None if grad is None else grad.tolist())))
        y, z = g(*given)
        (y + z if other else y).backward()
        return sorted(seen, key=str), [None if t.grad is None else t.grad.tolist() for t in (x, w, v)]

    compiled = fresh.compile(f)
    for other in (False, True, False):
        assert run(compiled, other) == run(f, other)
    told = fresh.explain(f)(*(torch.ones(3, requires_grad=True) for _ in range(3)))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


class Asks(torch.autograd.Function):
    """As gpytorch's kernels: forward asks data, and a gradient is as large as what its argument was broadcast to."""

    @staticmethod
    def forward(ctx, x, scale, distance):
        ctx.save_for_backward(x, scale)
        a, b = x / scale, x.div(scale)
        return a * distance(a, b)

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g / scale, -g * x / scale**2, None


def distance(a, b):
    return 2 if torch.equal(a, b) else 3


@pytest.mark.parametrize("shape", [(1,), (1, 1), (4, 1), ()])
def test_branches_on_data_in_a_forward(fresh, shape):
    scale, x = torch.rand(shape).add_(1).requires_grad_(), torch.randn(4, 3, requires_grad=True)

    def f(x):
        return Asks.apply(x * 2, scale, distance).sum(0)

    told = fresh.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for k in range(6):
        x = torch.randn(4, 3, requires_grad=True)
        with torch.no_grad():
            x[0, 0] = float("nan") if k in (2, 4) else 1.0  # which equals nothing: the other branch
        got, expected = compiled(x), f(x)
        torch.testing.assert_close(got, expected, equal_nan=True)
        torch.testing.assert_close(
            torch.autograd.grad(got.sum(), [x, scale]), torch.autograd.grad(expected.sum(), [x, scale]), equal_nan=True
        )


def test_branches_on_what_a_forward_writes_or_draws(fresh):
    class Draws(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, writes):
            y = x.clone() if writes else x * torch.rand(3)
            if writes:
                y.add_(1)
            return y * 2 if (lambda t: bool(t.sum() > 1))(y) else y * 3

        @staticmethod
        def backward(ctx, g):
            return g * 5, None

    def f(x, writes):
        return Draws.apply(x * 2, writes) + 1

    for writes in (True, False):
        compiled = fresh.compile(f)
        for k in range(4):
            x = (torch.ones(3) * (k % 2 * 2 - 1)).requires_grad_()
            results = []
            for g in (compiled, f):
                torch.manual_seed(k)
                y = g(x, writes)
                results.append((y, torch.autograd.grad(y.sum(), x), torch.rand(1)))
            torch.testing.assert_close(results[0], results[1])


class Again(torch.autograd.Function):
    """What checkpoints of many programs are: backward runs the function again on inputs that want gradients as those did."""

    @staticmethod
    def forward(ctx, run, x, y):
        ctx.run, ctx.more = run, [y]
        ctx.save_for_backward(x)
        return run(x, y)

    @staticmethod
    def backward(ctx, g):
        given = [t.detach().requires_grad_(t.requires_grad) for t in (*ctx.saved_tensors, *ctx.more)]
        with torch.enable_grad():
            made = ctx.run(*given)
        torch.autograd.backward([made], [g])
        return None, *[t.grad for t in given]


class Through(Again):
    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            made = ctx.run(*ctx.saved_tensors, *ctx.more)
        made.backward(g)
        return None, g, None


@pytest.mark.parametrize("wanted", [True, False])
def test_saved_tensors_want_gradients_in_a_backward_that_is_not_captured(wanted):
    def f(x, y):
        return Again.apply(lambda a, b: torch.sin(a) * b, x * 1, y).sum()

    compiled = framejit.compile(f)
    for n in (3, 3, 4):
        x, y = torch.linspace(0, 1, n, requires_grad=True), torch.ones(n, requires_grad=wanted)
        want = torch.autograd.grad(f(x, y), (x, y) if wanted else x)
        got = torch.autograd.grad(compiled(x, y), (x, y) if wanted else x)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b)
            assert not a.requires_grad
    assert not framejit.cache_info(compiled)["breaks"]


def test_a_backward_through_saved_tensors_is_refused():
    """In eager it would add to the gradients of what they were made of."""
    compiled = framejit.compile(lambda x, y: Through.apply(torch.mul, x, y).sum())
    with pytest.raises(RuntimeError, match="detach them there"):
        compiled(torch.ones(3, requires_grad=True), torch.ones(3)).backward()


class Filled(torch.autograd.Function):  # memory that is made without sizes, then written part by part
    @staticmethod
    def forward(ctx, x):
        out, ctx.factors = x.new(), x.new().resize_(3, 4)
        out.resize_as_(x)
        out.zero_()
        out[1:3].add_(x[1:3])
        out[0].copy_(x[1])
        ctx.factors.fill_(2.0)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        back = g.new()
        back.resize_as_(x)
        back.zero_()
        back[1:3].add_(g[1:3])
        back[1].add_(g[0])
        return back.mul_(ctx.factors.sum() / 24)


class Given(torch.autograd.Function):  # what comes from outside of it becomes other memory there
    @staticmethod
    def forward(ctx, x, memory):
        memory.resize_as_(x)
        memory.copy_(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


@pytest.mark.parametrize("function", [Filled.apply, torch.nn.CrossMapLRN2d(5), torch.nn.CrossMapLRN2d(4, k=2.0)])
def test_memory_that_a_function_makes_and_sizes(fresh, function):
    def f(x):
        return function(x * 2) + 1

    compiled = fresh.compile(f)
    for k in range(3):
        torch.manual_seed(k)
        gradients_agree(compiled, f, torch.randn(2, 6, 5, 4, requires_grad=True))
    info = framejit.cache_info(compiled)
    assert (info["segments"], info["breaks"], info["recompiles"]) == (1, 0, 0)


def test_memory_from_outside_that_a_function_sizes(fresh):
    def f(x):
        memory = x.new()
        y = Given.apply(x, memory)
        return y, memory + 1

    compiled = fresh.compile(f)
    for _ in range(2):
        x = torch.randn(4, 5, requires_grad=True)
        for got, expected in zip(compiled(x), f(x)):
            assert got.equal(expected)


@pytest.mark.parametrize(
    "write",
    [
        "ctx.n += 1",
        "ctx.seen = getattr(ctx, 'seen', 0) + 1; ctx.n = ctx.seen",
        "ctx.l.append(1); ctx.n = len(ctx.l)",
        "ctx.d['n'] += 1; ctx.n = ctx.d['n']",
        "ctx.t.add_(1); n = ctx.t",
        "ctx.t[:2] += 1; ctx.t[2] = ctx.t[0]; n = ctx.t",
        "v = ctx.t[:]; v.data.add_(1); n = ctx.t",
        "torch.add(ctx.t, 1, out=ctx.t); n = ctx.t",
        "ctx.pair[0].add_(1); n = ctx.pair[0]",
        "ctx.saved_tensors[0].data.add_(1); n = ctx.saved_tensors[0]",
        "ctx.array += 1; n = torch.from_numpy(ctx.array)",
        "np.add(ctx.array, 1, out=ctx.array); n = float(ctx.array[0])",
        "helper(ctx.t); n = ctx.t",
        "ctx.mine.data.add_(1); n = ctx.mine.detach()",
    ],
)
def test_a_backward_that_changes_its_context(fresh, write):
    """What a pass leaves in the context, and in what that holds, the next pass through the same graph finds there."""
    space = {"torch": torch, "np": pytest.importorskip("numpy")}
    exec(f'''
def helper(t):
    t.add_(1)

class Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.n, ctx.l, ctx.d = 0, [], dict(n=0)
        ctx.t, ctx.pair, ctx.array = torch.zeros(3), (torch.zeros(3), 1), np.zeros(3, np.float32)
        ctx.mine = a
        ctx.save_for_backward(torch.zeros(3))
        return a * 2

    @staticmethod
    def backward(ctx, g):
        {write}
        return g * {"n" if "; n = " in write else "ctx.n"}
''', space)  # fmt: skip

    def f(x):
        return space["Counts"].apply(x).exp()

    compiled = fresh.compile(f)
    for g in (f, compiled, compiled):
        x = torch.zeros(3, requires_grad=True)
        y = g(x).sum()
        first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
        torch.testing.assert_close(first, torch.ones(3))
        torch.testing.assert_close(second, first * 2)
    assert compiled.cache_info()["segments"] and compiled.cache_info()["breaks"]


@pytest.mark.parametrize(
    "write",
    [
        "ctx.t.add_(1); n = ctx.t",
        "ctx.n += 1; n = ctx.n",
        "ctx.l.append(1); n = len(ctx.l)",
        "ctx.pair[0].add_(1); ctx.d['a'] = ctx.d.get('a', 0) + 1; n = (ctx.pair[0] + ctx.d['a']) / 2",
        "ctx.array += 1; n = torch.from_numpy(ctx.array)",
        "ctx.late = getattr(ctx, 'late', 0) + 1; n = ctx.late",
        "ctx.t = ctx.t + 1; n = ctx.t",
    ],
)
def test_a_backward_that_runs_as_it_is_and_changes_its_context(fresh, write):
    """Each call has a context of its own, which its passes find as the last one has left it."""
    space = {"torch": torch, "np": pytest.importorskip("numpy")}
    exec(f'''
class Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.n, ctx.l, ctx.d = 0, [], dict()
        ctx.t, ctx.pair, ctx.array = a.detach() * 0, (a.detach() - a.detach(), 1), np.zeros(3, np.float32)
        return a * 2

    @staticmethod
    def backward(ctx, g):
        n = 0
        if float(g.sum()) > 0:
            {write}
        return g * n
''', space)  # fmt: skip

    def f(x):
        return space["Counts"].apply(x.exp()).sum()

    compiled = fresh.compile(f)
    for g in (f, compiled, compiled, compiled):
        x = torch.zeros(3, requires_grad=True)
        one, other = g(x), g(x)
        for y, n in ((one, 1), (one, 2), (other, 1), (one, 3), (other, 2)):
            torch.testing.assert_close(torch.autograd.grad(y, x, retain_graph=True)[0], torch.full((3,), float(n)))
    assert "Compiled" in type(one.grad_fn).__name__
    assert compiled.cache_info()["segments"]


@pytest.mark.parametrize("make", [lambda: [], lambda: {}, lambda: ([], 1), lambda: [[]], lambda: [0]])
def test_a_list_that_its_forward_makes_is_another_one_in_each_call(fresh, make):
    def inner(o):
        return o if isinstance(o, dict) or not isinstance(o[0] if o else 0, list) else o[0]

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.seen = make()
            return a * 2

        @staticmethod
        def backward(ctx, g):
            if float(g.sum()) > 0:  # so it runs as it is
                seen = inner(ctx.seen)
                seen.update({len(seen): 1}) if isinstance(seen, dict) else seen.append(1)
            return g * len(inner(ctx.seen))

    f = lambda x: Fn.apply(x.exp()).sum()  # noqa: E731
    compiled, told = fresh.compile(f), []
    for _ in range(3):
        for g in (compiled, f):
            x = torch.zeros(3, requires_grad=True)
            g(x).backward()
            told.append(x.grad.tolist())
    assert told[::2] == told[1::2]
    assert compiled.cache_info()["segments"] == 1


def test_a_method_of_a_class_that_a_backward_reads_and_the_function_stores(fresh):
    def two(self, g):
        return g * 2

    def three(self, g):
        return g * 3

    class A:
        def s(self, g):
            return g

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return A().s(g)

    def before(x):
        A.s = two
        y = Fn.apply(x).sum()
        A.s = three
        return y

    kept = A.s
    for g in (before, fresh.compile(before)):
        for _ in range(3):
            A.s = kept
            x = torch.ones(2, requires_grad=True)
            g(x).backward()
            assert x.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "keeps, write",
    [
        ("ctx.n = 0", "ctx.n += 1; n = ctx.n"),
        ("ctx.t = a.detach() * 0", "ctx.t.add_(1); n = ctx.t"),
        ("ctx.t = a.detach() * 0", "ctx.t.data.add_(1); n = ctx.t"),
        ("ctx.t = a.detach() * 0", "ctx.t.data = ctx.t + 1; n = ctx.t"),
        ("ctx.l = [[]]", "ctx.l[0].append(1); n = len(ctx.l[0])"),
        ("ctx.l = []", "ctx.l.append(g.detach()); n = len(ctx.l) * (ctx.l[0] / g.detach())"),
        ("ctx.t = a.detach() * 0; ctx.u = ctx.t", "ctx.t.add_(1); n = ctx.u"),
        ("ctx.t = a.detach() * 0; ctx.u = [ctx.t]", "ctx.t.data.add_(1); n = ctx.u[0]"),
        ("ctx.n = ctx.m = 1", "n = getattr(ctx, 'k', 0) + ctx.m; ctx.k = n; vars(ctx).pop('n', None)"),
        ("ctx.i = iter(range(1, 9))", "n = next(ctx.i)"),
        ("ctx.t = a.detach() * 0; ctx.u = ctx.t[:2]", "ctx.t.add_(1); n = ctx.u.mean()"),
    ],
)
@pytest.mark.parametrize("create", ["0000", "1111", "0101", "1001"])
def test_passes_that_are_replays_find_and_leave_what_others_do(fresh, keeps, write, create):
    space = {"torch": torch}
    exec(f'''
class Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        {keeps}
        return a * 2

    @staticmethod
    def backward(ctx, g):
        n = 0
        if float(g.sum()) > 0:
            {write}
        return g * n
''', space)  # fmt: skip

    def f(x):
        return space["Counts"].apply(x.exp()).sum()

    compiled = fresh.compile(f)
    for g in (f, compiled, compiled):
        x = torch.zeros(3, requires_grad=True)
        y = g(x)
        for n, c in enumerate(create):
            got = torch.autograd.grad(y, x, retain_graph=True, create_graph=c == "1")[0]
            torch.testing.assert_close(got.detach(), torch.full((3,), n + 1.0))
    assert compiled.cache_info()["segments"]
    if not ("iter(" in keeps or "[:2]" in keeps):  # what cannot be so in a graph is not there
        assert compiled.cache_info()["breaks"] == 0 and "Compiled" in type(y.grad_fn).__name__


def test_what_gives_none_once_finds_what_other_passes_left(fresh):
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.n = 0
            return a * b

        @staticmethod
        def backward(ctx, g):
            ctx.n += 1
            if float(g.sum()) > 0 and ctx.n == 2:
                return g, None
            return g * ctx.n, g * ctx.n

    def f(x, y):
        return Fn.apply(x.exp(), y.exp()).sum()

    compiled, told = fresh.compile(f), []
    for g in (f, compiled):
        x, y = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
        z = g(x, y)
        told.append([[None if t is None else t.tolist() for t in torch.autograd.grad(z, [x, y], retain_graph=True, allow_unused=True)] for _ in range(4)])
    assert told[0] == told[1]
    assert compiled.cache_info()["breaks"] == 0


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("outside", [True, False])
def test_a_list_that_forward_writes_to_is_in_replays_what_it_was(fresh, captured, outside):
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, given):
            given.append(len(given))
            ctx.k = len(given)
            return a * len(given)

        @staticmethod
        def backward(ctx, g):
            return (g * ctx.k if captured or float(g.sum()) > 0 else g), None

    given = [7]

    def f(x):
        own = given if outside else [7]
        return Fn.apply(x.exp(), own).sum() * len(own)

    compiled, told = fresh.compile(f), []
    for g in (f, compiled):
        given[:] = [7]
        for _ in range(2):
            x = torch.zeros(2, requires_grad=True)
            y = g(x)
            told.append([torch.autograd.grad(y, x, retain_graph=True, create_graph=c)[0].tolist() for c in (False, True, False)])
        told.append(list(given))
    assert told[:3] == told[3:]
    assert compiled.cache_info()["breaks"] == 0


def five(*args):
    return args[-1] * 5


def helper(g):
    return g * 2


@pytest.mark.parametrize("how", ["method", "static", "of the class", "metaclass", "operator", "base", "nearer", "variable", "global", "backward", "gone"])
@pytest.mark.parametrize("create", [False, True])
def test_what_a_backward_calls_is_replaced_before_it_runs(fresh, how, create):
    class Meta(type):
        def scale(cls, g):
            return g * 2

        def __mul__(cls, g):
            return g * 2

    class Base(metaclass=Meta):
        def inherited(self, g):
            return g * 2

        def shadowed(self, g):
            return g * 2

    class A(Base):
        def scaled(self, g):
            return g * 2

        def shadowed(self, g):
            return g * 2

        @staticmethod
        def static(g):
            return g * 2

        @classmethod
        def of_class(cls, g):
            return g * 2

    def local(g):
        return g * 2

    use = {
        "method": lambda g: A().scaled(g),
        "static": lambda g: A.static(g),
        "of the class": lambda g: A.of_class(g),
        "metaclass": lambda g: A.scale(g),
        "operator": lambda g: A * g,
        "base": lambda g: A().inherited(g),
        "nearer": lambda g: A().inherited(g),
        "gone": lambda g: A().shadowed(g),
        "variable": lambda g: local(g),
        "global": lambda g: helper(g),
        "backward": lambda g: g * 2,
    }[how]

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return use(g)

    def replace():
        nonlocal local
        if how == "variable":
            local = five
        elif how == "global":
            globals()["helper"] = five
        elif how == "backward":
            Fn.backward = staticmethod(five)
        elif how == "gone":
            Base.shadowed = five
            del A.shadowed
        else:
            of, name = {"method": (A, "scaled"), "base": (Base, "inherited"), "nearer": (A, "inherited"), "metaclass": (Meta, "scale")}.get(how, (A, "static"))
            of, name = {"operator": (Meta, "__mul__"), "of the class": (A, "of_class")}.get(how, (of, name))
            setattr(of, name, {"static": staticmethod, "of the class": classmethod}.get(how, lambda x: x)(five))

    def f(x):
        return Fn.apply(x).sum()

    compiled = fresh.compile(f)
    own = helper
    try:
        for k in range(4):
            x = torch.ones(2, requires_grad=True)
            y = compiled(x)
            assert "Compiled" in type(y.grad_fn).__name__
            if k == 2:
                replace()
            for _ in range(2):
                got = torch.autograd.grad(y, x, retain_graph=True, create_graph=create)[0]
                assert got.tolist() == [2.0 if k < 2 else 5.0] * 2
    finally:
        globals()["helper"] = own
    assert compiled.cache_info()["breaks"] == 0


def test_a_class_that_changes_in_another_way_needs_no_replay(fresh, capfd):
    class A:
        def scaled(self, g):
            return g * 2

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return A().scaled(g)

    compiled = fresh.compile(lambda x: Fn.apply(x).sum())
    x = torch.ones(2, requires_grad=True)
    y = compiled(x)
    A.seen = 3
    with torch.autograd.graph.saved_tensors_hooks(lambda t: pytest.fail("it runs again"), lambda t: t):
        for _ in range(2):
            assert torch.autograd.grad(y, x, retain_graph=True)[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("keeps", ["torch.zeros(3)", "a.detach() * 0", "[torch.zeros(3)]"])
def test_calls_that_keep_what_is_equal_keep_memory_of_their_own(fresh, keeps):
    space = {"torch": torch}
    exec(f'''
class Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.t = {keeps}
        return a * 1

    @staticmethod
    def backward(ctx, g):
        t = ctx.t[0] if isinstance(ctx.t, list) else ctx.t
        t += 1
        return g * t if float(g.sum()) > 0 else g
''', space)  # fmt: skip
    Counts = space["Counts"]
    compiled = fresh.compile(lambda x: Counts.apply(Counts.apply(x)).sum() + Counts.apply(x).sum())
    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        y = compiled(x)
        for n in (1.0, 2.0, 3.0):
            assert torch.autograd.grad(y, x, retain_graph=True)[0].tolist() == [n * n + n] * 3
    assert compiled.cache_info()["breaks"] == 0


def test_functions_that_ran_before_one_gives_none_are_not_called_again(fresh):
    calls = []

    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.n = 0
            return x * 1

        @staticmethod
        def backward(ctx, g):
            ctx.n += 1
            calls.append(ctx.n)
            return g * ctx.n if float(g.sum()) > -1e9 else g

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, s):
            ctx.save_for_backward(s)
            return x * s

        @staticmethod
        def backward(ctx, g):
            calls.append(float(g.sum()))
            return g * ctx.saved_tensors[0], None

    def f(x, s):
        return Counts.apply(Scaled.apply(Counts.apply(x), s)).sum()

    compiled, told = fresh.compile(f), []
    for g in (f, compiled, f, compiled):
        calls.clear()
        x, s = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        y = g(x, s)
        told.append([torch.autograd.grad(y, [x, s], retain_graph=True, allow_unused=True)[0].tolist() for _ in range(3)])
        told[-1].append(list(calls))
    assert told[0] == told[1] == told[2] == told[3]
    assert compiled.cache_info()["breaks"] == 0


@pytest.mark.parametrize("effect", ["log.append(1)", "print('forward', file=out)", "state['n'] += 1", "Fn.n += 1", "count()"])
def test_what_a_forward_does_outside_is_done_once(fresh, effect):
    """A pass that is differentiated runs forward again: so its effects end the graph."""
    out, log, state, number = io.StringIO(), [], {"n": 0}, 0

    def count():
        nonlocal number
        number += 1

    space = {"torch": torch, "out": out, "log": log, "state": state, "count": count}
    exec(f'''
class Fn(torch.autograd.Function):
    n = 0

    @staticmethod
    def forward(ctx, x):
        {effect}
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2
''', space)  # fmt: skip
    Fn = space["Fn"]
    compiled = fresh.compile(lambda x: Fn.apply(x.exp()).sum())
    for k in range(1, 4):
        x = torch.zeros(3, requires_grad=True)
        y = compiled(x)
        for create in (True, False, True):
            assert torch.autograd.grad(y, x, retain_graph=True, create_graph=create)[0].tolist() == [2.0] * 3
        assert max(len(log), out.getvalue().count("forward"), state["n"], Fn.n, number) == k
    assert compiled.cache_info()["breaks"]


@pytest.mark.parametrize("made", ["w * 2 + x", "torch.stack([w, x]).sum(0)", "x + 1"])
def test_gradients_inside_of_what_was_made_before(fresh, made):
    """What a function of the program's is given may lead further, outside of the graph, to what a gradient is looked for of."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            return gradient * b * 3, gradient * a

    w, x = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([0.5, 3.0])

    def f(a):
        return torch.autograd.grad(Product.apply(a, w).sum(), w)[0]

    compiled = fresh.compile(f)
    for _ in range(3):
        a = eval(made, {"w": w, "x": x, "torch": torch})
        got = compiled(a)
        torch.testing.assert_close(got, f(eval(made, {"w": w, "x": x, "torch": torch})))
    if made == "x + 1":
        assert fresh.cache_info(compiled)["outcomes"]["run"] == {"graph": 3}


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_codes_of_helpers_and_numbers_of_classes_change_before_the_pass(fresh, create, kept):
    """backward calls a helper whose code is another by then; forward reads a number of a class, which a replay finds as it was."""

    class Base:
        factor = 2.0

    class Scale(Base):
        pass

    def helper(g):
        return g * 2

    one, other = helper.__code__, (lambda g: g * 9).__code__

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * Scale.factor
            if kept:
                ctx.y = y.detach()
            else:
                ctx.save_for_backward(y)
            return y.exp()

        @staticmethod
        def backward(ctx, g):
            return helper(g) * (ctx.y if kept else ctx.saved_tensors[0])

    def f(x):
        return Fn.apply(x) * 3

    compiled = fresh.compile(f)
    for call in range(6):
        got = []
        for fn in (f, compiled):
            helper.__code__, Base.factor = one, 2.0
            x = torch.tensor([0.5, 1.0], requires_grad=True)
            y = fn(x)
            if call % 2:
                helper.__code__ = other
            if call > 2:
                Base.factor = 5.0
            got.append(torch.autograd.grad(y.sum(), x, create_graph=create)[0].tolist())
        assert got[0] == pytest.approx(got[1]), call
    assert fresh.cache_info(compiled)["outcomes"]["run"]["graph"] >= 6
