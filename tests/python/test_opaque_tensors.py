"""Sparse and quantised tensors: given to a graph, made in one, passed between calls, handed out. One graph, no break, eager's layouts and memory."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

import framejit

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:torch.quantize_per:UserWarning", "ignore:torch.ao.quantization")
warnings.filterwarnings("ignore", message=".*deprecated", module="torch")

N = 24


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def edges(n=N, count=70, seed=0):
    return torch.randint(0, n, (2, count), generator=torch.Generator().manual_seed(seed))


def loose(n=N, count=70):
    return torch.sparse_coo_tensor(edges(n, count), numbers(count), (n, n))


def coo(n=N, count=70):
    return loose(n, count).coalesce()


def csr():
    return coo().to_sparse_csr()


def quantised(*shape, dtype=torch.qint8, scale=0.1):
    return torch.quantize_per_tensor(numbers(*shape), scale, 3, dtype)


def by_channel(x, axis=0):
    n = x.shape[axis]
    return torch.quantize_per_channel(x, torch.full((n,), 0.1), torch.zeros(n, dtype=torch.int64), axis, torch.qint8)


def flat(value):
    return [x for v in value for x in flat(v)] if isinstance(value, (tuple, list)) else [value]


def same(a, b):
    if not isinstance(b, torch.Tensor):
        return type(a) is type(b) and a == b
    facts = [(t.layout, t.dtype, t.shape, t.requires_grad, t.is_quantized, t.is_inference()) for t in (a, b)]
    if facts[0] != facts[1] or (a.layout == torch.sparse_coo and (a.is_coalesced() != b.is_coalesced() or a._nnz() != b._nnz())):
        return False
    if a.is_quantized:
        if a.stride() != b.stride() or a.qscheme() != b.qscheme():
            return False
        return torch.equal(a.int_repr(), b.int_repr()) and torch.equal(a.dequantize(), b.dequantize())
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return torch.allclose(a.detach(), b.detach(), rtol=1e-5, atol=1e-5, equal_nan=True)


def all_same(got, want):
    got, want = flat(got), flat(want)
    return len(got) == len(want) and all(map(same, got, want))


def check(f, make, ran="graph", captures=1, **options):
    compiled = framejit.compile(f, **options)
    for _ in range(3):
        assert all_same(compiled(*make()), f(*make()))
    info = framejit.cache_info(compiled)
    assert (info["captures"], info["breaks"]) == (captures, 0)
    assert set(info["outcomes"]["run"]) == {ran}, info
    return info


PROGRAMS = {
    "product": (lambda a, x: torch.sparse.mm(a, x.tanh()).relu() + 1, lambda: (coo(), numbers(N, 4))),
    "loose product": (lambda a, x: (a @ x.tanh()).relu() + 1, lambda: (loose(), numbers(N, 4))),
    "rows": (lambda a, x: (a @ x.tanh()).relu() + 1, lambda: (csr(), numbers(N, 4))),
    "reduced": (lambda a, x: torch.sparse.mm(a, x, "mean") * 2, lambda: (csr(), numbers(N, 4))),
    "more products": (
        lambda a, x: (torch.mv(a, x[:, 0]), torch.addmm(x, a, x, beta=0.5), a.t() @ x, (a * 2.0) @ x, (a + a) @ x, x + a @ x),
        lambda: (coo(), numbers(N, 4)),
    ),
    "dense beside it": (lambda a, x: ((x + a) * 2, (a * x).to_dense()), lambda: (coo(), numbers(N, N))),
    "made": (lambda i, v, x: torch.sparse.mm(torch.sparse_coo_tensor(i, v.exp(), (N, N)), x).tanh(), lambda: (edges(), numbers(70), numbers(N, 4))),
    "of a dense one": (lambda x, y: (x.relu().to_sparse().to_dense() + 1, x.relu().to_sparse_csr() @ y.exp()), lambda: (numbers(N, N), numbers(N, 3))),
    "degrees": (
        lambda a, x: (torch.sparse.sum(a, dim=1).to_dense().abs().clamp(min=1).rsqrt()[:, None] * (a @ x), torch.sparse.softmax(a, 1) @ x),
        lambda: (coo(), numbers(N, 4)),
    ),
    "two sparse ones": (lambda a, b, x: torch.sparse.mm(a, b) @ x.sin(), lambda: (coo(), coo(N, 40), numbers(N, 4))),
    "asked": (
        lambda a, x: (a.shape[0], a.dim(), a.layout == torch.sparse_coo, a.is_sparse, a.is_sparse_csr, a.dtype, a.device.type, a.requires_grad, x + len(a)),
        lambda: (coo(), numbers(N)),
    ),
    "asked of what is made": (
        lambda x: (x.relu().to_sparse().is_coalesced(), x.to_sparse().sparse_dim(), x.to_sparse().layout == torch.sparse_coo, x.to_sparse().is_leaf, x + 1),
        lambda: (numbers(4, 4),),
    ),
    "handed out": (lambda i, v: torch.sparse_coo_tensor(i, v.exp() * 2, (N, N)), lambda: (edges(), numbers(70))),
    "quantised and back": (lambda x: torch.quantize_per_tensor(x * 2, 0.1, 10, torch.quint8).dequantize() + 1, lambda: (numbers(8, 4),)),
    "by channels": (lambda x: by_channel(x * 2).dequantize() + 1, lambda: (numbers(8, 4),)),
    "quantised, handed out": (lambda x: torch.quantize_per_tensor((x * 2).tanh(), 0.1, 10, torch.quint8), lambda: (numbers(8, 4),)),
    "quantised, asked": (
        lambda x: next(
            (q.q_scale(), q.q_zero_point(), q.is_quantized, q.dtype == torch.qint8, q.qscheme(), q.is_contiguous(), q.int_repr().float().mean())
            for q in [torch.quantize_per_tensor(x * 2, 0.1, 10, torch.qint8)]
        ),
        lambda: (numbers(8, 4),),
    ),
    "quantised calls": (
        lambda x: torch.nn.functional.max_pool1d(torch.relu(torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)).reshape(4, 8)[None], 2).dequantize(),
        lambda: (numbers(8, 4),),
    ),
    "quantised, given": (lambda q: (q.dequantize().sin(), q.is_quantized), lambda: (quantised(8, 4),)),
    "quantised, turned": (lambda q: q.dequantize() * 2, lambda: (quantised(8, 4).t(),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name):
    check(*PROGRAMS[name])


def test_what_is_around_is_compiled():
    info = check(lambda a, x: ((a @ (x.tanh() * 2)).relu() + 1).exp(), lambda: (coo(), numbers(N, 4)))
    assert (info["kernels"], info["externs"]) == (2, 1)


class Convolution(torch.nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = torch.nn.Parameter(numbers(i, o))
        self.bias = torch.nn.Parameter(torch.zeros(o))

    def forward(self, x, adjacency):
        return torch.spmm(adjacency, torch.mm(x, self.weight)) + self.bias


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Convolution(8, 6), Convolution(6, 4)
        self.register_buffer("adjacency", coo())

    def forward(self, x):
        return torch.log_softmax(self.second(torch.relu(self.first(x, self.adjacency)), self.adjacency), 1)


def test_a_graph_network_trains():
    eager = Network()
    mine = copy.deepcopy(eager)
    compiled = framejit.compile(mine)
    for _ in range(3):
        for module, call in ((eager, eager), (mine, compiled)):
            module.zero_grad()
            (call(numbers(N, 8)) * numbers(N, 4, seed=3)).sum().backward()
        assert all_same([p.grad for p in mine.parameters()], [p.grad for p in eager.parameters()])
    info = framejit.cache_info(compiled)
    assert (info["captures"], info["breaks"], info["outcomes"]["run"], info["notes"]) == (1, 0, {"graph": 3}, [])


def test_a_gradient_of_a_gradient():
    a = coo()

    def f(x):
        return (a @ x.sin()).pow(2).sum()

    compiled, found = framejit.compile(f), []
    for call in (f, compiled, compiled):
        x = numbers(N, 4).requires_grad_()
        (grad,) = torch.autograd.grad(call(x), x, create_graph=True)
        found.append(torch.autograd.grad(grad.sum(), x)[0])
    assert same(found[1], found[0]) and same(found[2], found[0])
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_gradients_of_its_elements():
    def f(i, v, x):
        return torch.sparse.mm(torch.sparse_coo_tensor(i, v * 2, (N, N)), x.sin()).relu().sum()

    compiled, found = framejit.compile(f), []
    for call in (f, compiled, compiled):
        v, x = numbers(70).requires_grad_(), numbers(N, 4).requires_grad_()
        call(edges(), v, x).backward()
        found.append((v.grad, x.grad))
    assert all_same(found[1], found[0]) and all_same(found[2], found[0])
    info = framejit.cache_info(compiled)
    assert (info["breaks"], info["outcomes"]["run"]) == (0, {"framework": 2})


def test_a_write_before_the_backward_pass_is_refused():
    for call in (lambda a, x: (a @ x.sin()).sum(), framejit.compile(lambda a, x: (a @ x.sin()).sum())):
        a, x = coo(), numbers(N, 4).requires_grad_()
        y = call(a, x)
        a._values().mul_(3)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_other_forms_are_compiled_apart():
    def f(a, x):
        return (a @ x.sin()) + a.is_sparse + (a.layout == torch.sparse_csr)

    compiled, x = framejit.compile(f), numbers(N, 4)
    forms = [coo(), loose(), csr(), coo().to_dense(), coo().double(), coo().to_sparse_csc(), torch.sparse_coo_tensor((N, N)), coo(N, 50)]
    for a in forms * 2:
        given = x.double() if a.dtype == torch.float64 else x
        assert same(compiled(a, given), f(a, given))


def test_how_many_elements_it_has_is_not_guarded():
    compiled = framejit.compile(lambda a, x: a @ x.sin())
    for count in (20, 40, 60):
        assert same(compiled(coo(N, count), numbers(N, 4)), coo(N, count) @ numbers(N, 4).sin())
    assert framejit.cache_info(compiled)["captures"] == 1


def test_a_scale_of_what_is_given_is_not_guarded():
    compiled = framejit.compile(lambda q: q.dequantize() * 2)
    for scale in (0.1, 0.2, 0.4):
        assert same(compiled(quantised(4, scale=scale)), quantised(4, scale=scale).dequantize() * 2)
    assert framejit.cache_info(compiled)["captures"] == 1
    for q in (quantised(4, dtype=torch.quint8), quantised(4, 4).t(), by_channel(numbers(4, 4)), by_channel(numbers(4, 4), 1), numbers(4)):
        for _ in range(2):
            assert same(compiled(q), q.dequantize() * 2)


def test_memory_is_shared_as_in_eager():
    def given(i, v):
        return torch.sparse_coo_tensor(i, v, (N, N)), v

    def made(i, v):
        w = v * 2
        return torch.sparse_coo_tensor(i, w, (N, N)), w, w[3:]

    for f, ran in ((given, "graph"), (made, "framework")):
        compiled = framejit.compile(f)
        for _ in range(2):
            found = []
            for call in (f, compiled):
                i, v = edges(), numbers(70)
                a, *rest = call(i, v)
                rest[-1].mul_(2)
                found.append((a, a._values().data_ptr() == rest[0].data_ptr(), rest[0] is v, a._indices().data_ptr() == i.data_ptr()))
            assert all_same(found[1], found[0])
        info = framejit.cache_info(compiled)
        assert (info["breaks"], info["outcomes"]["run"]) == (0, {ran: 2})


def test_views_of_quantised_tensors_are_views():
    def f(x):
        q = torch.quantize_per_tensor(x, 0.1, 1, torch.qint8)
        return q, q.view(-1), q[0]

    compiled = framejit.compile(f)
    for _ in range(2):
        q, v, row = compiled(numbers(4, 3))
        assert v._base is q and row._base is q and all_same((q, v, row), f(numbers(4, 3)))
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_writes_are_seen():
    def behind(i, v, x):
        w = v * 2
        a = torch.sparse_coo_tensor(i, w, (N, N))
        w.add_(1)
        return a @ x

    def elements(a, x):
        a._values().mul_(2)
        return a @ x

    def itself(a, x):
        a.mul_(2)
        return a @ x

    def beside(a, v, x):
        y = a @ x
        v.mul_(2)
        return y + a @ x

    def shared(v=None):
        v = numbers(70)
        return torch.sparse_coo_tensor(edges(), v, (N, N)), v, numbers(N, 4)

    def quantised_itself(x):
        q = torch.quantize_per_tensor(x, 0.1, 1, torch.qint8)
        torch.nn.functional.relu(q, inplace=True)
        return q.dequantize()

    cases = [
        (behind, lambda: (edges(), numbers(70), numbers(N, 4))),
        (elements, lambda: (coo(), numbers(N, 4))),
        (itself, lambda: (coo(), numbers(N, 4))),
        (beside, shared),
        (quantised_itself, lambda: (numbers(8),)),
    ]
    for f, make in cases:
        compiled = framejit.compile(f)
        for _ in range(3):
            mine, eager = make(), make()
            assert all_same(compiled(*mine), f(*eager)) and all_same(mine, eager), f.__name__


def test_memory_that_a_sparse_tensor_keeps_is_not_used_again():
    def f(i, v, x):
        w = (v * 2).sin()
        a = torch.sparse_coo_tensor(i, w, (N, N))
        u = w.exp() + 1
        t = (u * 3).cos()
        return (a @ x) + t[:N, None], u.sum()

    check(f, lambda: (edges(), numbers(70), numbers(N, 4)))

    def elements(a):
        return (a.crow_indices() * 2).sin(), (a.crow_indices() + 1)

    compiled, a = framejit.compile(elements), csr()
    for _ in range(3):
        assert all_same(compiled(a), elements(a))
    assert same(a, csr())


def test_identity():
    def f(a, x):
        b = a.coalesce()
        return b, b is a, torch.quantize_per_tensor(x, 0.1, 1, torch.qint8), torch.quantize_per_tensor(x, 0.1, 1, torch.qint8)

    compiled = framejit.compile(f)
    for a in (loose(), coo()) * 2:
        b, is_it, q, r = compiled(a, numbers(4))
        assert (b is a) == is_it == (f(a, numbers(4))[0] is a)
        assert q is not r and q.data_ptr() != r.data_ptr()
    assert framejit.cache_info(compiled)["breaks"] == 0


@pytest.mark.parametrize("backend", ["eager", "interpreter"])
def test_other_backends_run_the_framework(backend):
    compiled = framejit.compile(lambda a, x: (a @ x.sin()).relu(), backend=backend)
    assert same(compiled(coo(), numbers(N, 4)), (coo() @ numbers(N, 4).sin()).relu())
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_modes():
    def f(a, x):
        return (a @ x).relu()

    compiled = framejit.compile(f)
    with torch.inference_mode():
        assert same(compiled(coo(), numbers(N, 4)), f(coo(), numbers(N, 4)))
    assert same(compiled(coo(), numbers(N, 4)), f(coo(), numbers(N, 4)))
    with torch.autocast("cpu", torch.bfloat16):
        assert same(compiled(coo(), numbers(N, 4)), f(coo(), numbers(N, 4)))


def test_what_data_decides_breaks():
    def given(q):
        return q.q_scale() * 2

    compiled = framejit.compile(given)
    for scale in (0.1, 0.2, 0.1):
        assert compiled(quantised(4, scale=scale)) == given(quantised(4, scale=scale))
    assert framejit.cache_info(compiled)["breaks"] > 0


def counted(a):
    return a._nnz() + 1, a.sum().exp(), a.coalesce()._nnz() / a.numel(), (a.t() + a)._nnz(), torch.ones(a._nnz()) * 2


def counted_by_columns(a):
    a = a.coalesce()
    n = a.to_sparse_csc()._nnz()
    return a.to_sparse_csr()._nnz() - n, torch.split(a.values(), [n // 2, n - n // 2]), f"{n} of {a.numel()}"


def parts(a):
    return a._indices() + 1, a._values().exp()


def coalesced_parts(a):
    a = a.coalesce()
    return a.indices(), a.indices().stride(0) + 0, a.values()


def rebuilt(a):
    a = a.coalesce()
    return torch.sparse_coo_tensor(a.indices(), a.values().exp(), a.shape, is_coalesced=True)


def edges_of(a):
    a = a.coalesce()
    return torch.zeros(N).index_add(0, a.indices()[0], a.values()), a.values().is_contiguous()


def compressed_parts(a):
    a = a.coalesce().to_sparse_csr()
    return a.values() * 2, a.col_indices() + 1, a.crow_indices() + 1, a


@pytest.mark.parametrize("f", [counted, counted_by_columns, parts, coalesced_parts, rebuilt, edges_of, compressed_parts])
def test_elements_of_which_data_decides_the_number(f):
    compiled = framejit.compile(f)
    for count in (70, 20, 41, 300, 70):
        got, want = flat(compiled(loose(N, count))), flat(f(loose(N, count)))
        assert all_same(got, want)
        assert [a.stride() for a in got if getattr(a, "layout", 0) == torch.strided] == [a.stride() for a in want if getattr(a, "layout", 0) == torch.strided]
    info = framejit.cache_info(compiled)
    assert (info["breaks"], info["outcomes"]["run"]["framework"]) == (0, 5)
    assert info["captures"] <= 2


def test_elements_lie_where_the_tensor_has_them():
    compiled = framejit.compile(lambda a: a._values())
    turned = torch.sparse_coo_tensor(edges(N, 6), numbers(2, 6).t(), (N, N, 2))  # elements that do not lie row by row
    for a in (loose(), turned, torch.sparse_coo_tensor(edges(), numbers(70, 2), (N, N, 2))):
        for _ in range(2):
            got = compiled(a)
            assert (got.data_ptr(), got.stride(), got.shape) == (a._values().data_ptr(), a._values().stride(), a._values().shape)
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_elements_that_are_written():
    def f(a, few):
        v = a._values()
        v.mul_(2)
        w = a._values()
        return a.to_dense(), w + 1 if w.shape[0] < few else w + 2

    compiled = framejit.compile(f)
    for count in (20, 90, 40, 20):
        assert all_same(compiled(loose(N, count), 50), f(loose(N, count), 50))
    assert framejit.cache_info(compiled)["breaks"] > 0


def test_dynamically_quantised_modules():
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
    module = torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8)
    info = check(module, lambda: (numbers(4, 16),))
    assert info["externs"] == 2


def test_quantised_modules_between_graphs():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution, self.linear = torch.ao.nn.quantized.Conv2d(3, 8, 3), torch.ao.nn.quantized.Linear(8, 4)

        def forward(self, x):
            q = torch.quantize_per_tensor(x.tanh(), 0.05, 3, torch.quint8)
            q = torch.relu(self.convolution(q))
            return self.linear(q.mean((2, 3))).dequantize().sin()

    check(Model().eval(), lambda: (numbers(2, 3, 8, 8),))


@pytest.mark.parametrize("name", ["quantised, handed out", "handed out", "product"])
def test_numbers_are_checked(name):
    check(*PROGRAMS[name], options={"check_numerics": True})


def test_few_elements():
    def f(i, v, x):
        a = torch.sparse_coo_tensor(i, v, (8, 8))
        b = a.coalesce()
        return b is a, a.is_coalesced(), b @ x

    compiled = framejit.compile(f)
    for count in (1, 0, 5, 1, 0):
        args = edges(8, count), numbers(count), numbers(8, 2)
        assert all_same(compiled(*args), f(*args))


def asks(f, *calls, breaks=None, **options):
    """In any order of the calls."""
    for order in (1, -1):
        compiled = framejit.compile(f, **options)
        for args in calls[::order] * 2:
            assert all_same(compiled(*args), f(*args))
        if breaks is not None:
            assert (framejit.cache_info(compiled)["breaks"] > 0) == breaks


def test_a_number_of_a_call_is_none_of_its_result():
    for options in ({}, {"dynamic": True}):
        asks(lambda x: torch.quantize_per_tensor(x.sum(), 0.1, x.shape[0], torch.qint8).q_zero_point(), *[(numbers(n),) for n in (3, 4, 5, 6)], **options)


SCALES = {
    "row": lambda q: q[0].q_scale(),
    "rows": lambda q: q[1:3].q_scale(),
    "view": lambda q: q.view(2, 12).q_zero_point(),
    "turned": lambda q: q.t().q_scale(),
    "copy": lambda q: q.clone().q_scale(),
    "relu": lambda q: torch.relu(q).q_scale(),
    "leaky": lambda q: torch.nn.functional.leaky_relu(q, 0.1).q_scale(),
    "hardtanh": lambda q: torch.nn.functional.hardtanh(q).q_scale(),
    "joined": lambda q: torch.cat([q, q]).q_scale(),
    "stacked": lambda q: torch.stack([q, q]).q_zero_point(),
    "mean": lambda q: q.mean(1).q_scale(),
    "largest": lambda q: q.topk(2)[0].q_scale(),
    "pieces": lambda q: q.chunk(2)[1].q_scale(),
    "times": lambda q: torch.ops.quantized.mul_scalar(q, 2.5).q_scale(),
}
KNOWN_SCALES = {
    "sum": lambda q: (torch.ops.quantized.add(q, q, 0.3, 5).q_scale(), torch.ops.quantized.add(q, q, 0.3, 5).q_zero_point()),
    "sigmoid": lambda q: (torch.sigmoid(q).q_scale(), torch.sigmoid(q).q_zero_point()),
    "numbers": lambda q: torch.relu(torch.quantize_per_tensor(q.dequantize() + 1, 0.2, 3, torch.qint8))[0].q_scale(),
}


@pytest.mark.parametrize("name", SCALES)
def test_a_scale_that_was_given_is_not_known_of_what_is_made_of_it(name):
    given = [(torch.quantize_per_tensor(numbers(4, 6), scale, zero_point, torch.qint8),) for scale, zero_point in ((0.1, 3), (0.2, 4))]
    asks(SCALES[name], *given, breaks=True)


@pytest.mark.parametrize("name", KNOWN_SCALES)
def test_a_scale_that_the_program_says_is_known(name):
    given = [(torch.quantize_per_tensor(numbers(4, 6), scale, zero_point, torch.qint8),) for scale, zero_point in ((0.1, 3), (0.2, 4))]
    asks(KNOWN_SCALES[name], *given, breaks=False)


def test_scales_that_data_decides():
    programs = [
        lambda x: torch.quantize_per_tensor_dynamic(x + 1, torch.quint8, False).q_scale(),
        lambda x: torch.quantize_per_tensor_dynamic(x + 1, torch.qint8, True)[0].q_zero_point(),
        lambda x: torch.quantize_per_tensor(x + 1, x.abs().max(), torch.tensor(1), torch.qint8).q_scale(),
        lambda x: torch.quantize_per_channel(x, x[:, 0].abs() + 1, torch.arange(4), 0, torch.qint8)[1].q_scale(),
        lambda x: torch.quantize_per_tensor([x, x * 2], torch.stack([x.max(), x.max() + 1]), torch.tensor([1, 2]), torch.qint8)[1].q_scale(),
    ]
    for f in programs:
        for n in (6, 4, 1):
            asks(f, (numbers(4, n),), (numbers(4, n, seed=2) * 5,), breaks=True)
    for shape in ((1,), (1, 1), (3, 3)):
        asks(programs[0], (numbers(*shape),), (numbers(*shape, seed=2) * 5,), breaks=True)


def test_rows_of_a_tensor_with_a_scale_for_each():
    given = [(torch.quantize_per_channel(numbers(4, 6), torch.arange(1, 5) * scale, torch.arange(4), 0, torch.qint8),) for scale in (0.1, 0.2)]
    asks(lambda q: q[0].q_scale(), *given, breaks=True)
    asks(lambda q: q[1].q_zero_point(), *given, breaks=True)
    asks(lambda q: q[1].dequantize() * 2, *given, breaks=False)


# Whether this is coalesced, data decide: with less than two elements it always is.
COALESCED = {
    "turned": lambda r: r.t(),
    "joined": lambda r: torch.cat([r, r]),
    "stacked": lambda r: torch.stack([r, r]),
    "unsqueezed": lambda r: r.unsqueeze(0),
    "copy": lambda r: r.t().clone(),
    "row": lambda r: r[2],
    "rows": lambda r: r.index_select(0, torch.tensor([3, 1])),
    "difference": lambda r: r - r.t(),
    "other type": lambda r: r.t().double(),
}


def few_and_many():
    one = torch.zeros(6, 6) - 1
    one[2, 3] = 1
    return [(numbers(6, 6),), (numbers(6, 6) - 9,), (one,), (numbers(6, 6) + 9,)]


@pytest.mark.parametrize("name", COALESCED)
def test_what_data_decides_is_coalesced_if_they_say_so(name):
    asks(lambda x: COALESCED[name](x.relu().to_sparse()).is_coalesced(), *few_and_many(), breaks=True)


def test_what_is_always_coalesced():
    def f(x):
        r = x.relu().to_sparse()
        made = torch.sparse_coo_tensor(torch.zeros(2, 4, dtype=torch.int64), x[0, :4], (6, 6))
        return r.is_coalesced(), (r * 2).is_coalesced(), (r + r).is_coalesced(), r.coalesce() is r, made.is_coalesced(), made.coalesce().is_coalesced(), made.coalesce() is made

    asks(f, *few_and_many(), breaks=False)


def test_coalescing_what_may_be_coalesced():
    def one(x):
        r = x.relu().to_sparse().t()
        return r.coalesce() is r

    def both(x):
        r = x.relu().to_sparse().t()
        return r, r.coalesce()

    def places(x):
        i = (x > 0).nonzero()
        r = torch.sparse_coo_tensor(i.t(), x[i[:, 0], i[:, 1]], (6, 6))
        return r.is_coalesced(), r.coalesce() is r

    def many(x, n):
        return torch.sparse_coo_tensor(torch.zeros(2, n, dtype=torch.int64), torch.ones(n), (6, 6)).is_coalesced()

    for options in ({}, {"dynamic": True}):
        for f in (one, both, places):
            asks(f, *few_and_many(), **options)
        asks(many, *[(numbers(4), n) for n in (3, 5, 2, 1, 0)], **options)
    compiled = framejit.compile(both)
    for (x,) in few_and_many():
        (a, b), (c, d) = compiled(x), both(x)
        assert (a is b) == (c is d)


GIVEN = {
    "itself": lambda a: a.is_coalesced(),
    "turned": lambda a: a.t().is_coalesced(),
    "part": lambda a: a.narrow_copy(0, 2, 2).is_coalesced(),
    "row": lambda a: a.select(0, 3).is_coalesced(),
    "rows": lambda a: a.index_select(1, torch.tensor([3, 1, 3])).is_coalesced(),
    "sum": lambda a: (a + a).is_coalesced(),
    "product": lambda a: (a * a.t()).is_coalesced(),
    "matrix product": lambda a: torch.sparse.mm(a, a).is_coalesced(),
    "sum over": lambda a: torch.sparse.sum(a, 0).is_coalesced(),
    "mask": lambda a: torch.ones(6, 6).sparse_mask(a).is_coalesced(),
    "joined": lambda a: torch.cat([a, a.t()]).is_coalesced(),
    "coalesced": lambda a: (a.coalesce().is_coalesced(), a.coalesce() is a),
    "part coalesced": lambda a: next(b.coalesce() is b for b in [a.narrow_copy(0, 2, 2)]),
}


@pytest.mark.parametrize("name", GIVEN)
def test_places_of_what_is_given_do_not_count(name):
    places = [[[0, 1], [0, 1]], [[0, 0], [0, 0]], [[5, 5], [5, 4]], [[2, 3, 2], [1, 1, 1]], [[5, 3, 1], [1, 2, 3]], [[3, 3], [1, 1]], [[1], [2]], [[], []]]
    loose = [torch.sparse_coo_tensor(torch.tensor(i, dtype=torch.int64), numbers(len(i[0])), (6, 6)) for i in places]
    asks(GIVEN[name], *[(a,) for a in loose], *[(a.coalesce(),) for a in loose])
