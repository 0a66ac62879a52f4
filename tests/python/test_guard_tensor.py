"""Guards on tensors: torch and NumPy rows, symbols, aliasing, framework state, what a miss suggests."""

import gc
import sys
import weakref

import pytest
from guards import S0, S1, Thing, attr, build, hits, item, misses

np = pytest.importorskip("numpy")
try:
    import torch
except ImportError:
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")
FRAMEWORKS = ["numpy", pytest.param("torch", marks=needs_torch)]


def zeros(framework, *sizes):
    return np.zeros(sizes, np.float32) if framework == "numpy" else torch.zeros(*sizes)


# --- one tensor ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_sizes_strides_and_class(framework):
    x = zeros(framework, 8, 4)
    g = build(("tensor", S0, x, {"where": "train.py:12"}), inputs=[S0], varnames=("x",))
    hits(g, x)
    hits(g, zeros(framework, 8, 4))
    size = "L['x'].shape[0]" if framework == "numpy" else "L['x'].size(0)"
    misses(g, zeros(framework, 16, 4), text=f"{size}: expected 8, got 16 (train.py:12); to avoid it: framejit.mark_dynamic(L['x'], 0)")
    misses(g, zeros(framework, 8, 5))
    misses(g, zeros(framework, 8), text=".dim(): expected 2, got 1")
    misses(g, zeros(framework, 4, 8).T)
    misses(g, zeros(framework, 8, 8)[:, ::2], text="expected 4, got 8")
    misses(g, None)
    misses(g, 1.0)
    misses(g, np.float32(1))
    misses(g, [0.0])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tensors_that_share_a_test_are_told_apart(framework):
    shapes = [(2, 3), (3, 2), (2, 3), (2, 3), (5, 3), (5, 3)]
    sizes = [{}, {}, {}, {}, {0: "s0"}, {0: "s0"}]
    values = [zeros(framework, *shape) for shape in shapes]
    g = build(*[("tensor", ("item", S0, i), v, sizes[i]) for i, v in enumerate(values)], symbols=[(5, 2, 100)])
    hits(g, values)
    hits(g, values[:4] + [zeros(framework, 7, 3), zeros(framework, 7, 3)])
    for i in range(6):
        same = zeros(framework, *shapes[i])
        for wrong in [zeros(framework, 2, 5), zeros(framework, 6, 3), same.astype("f8") if framework == "numpy" else same.double()]:
            misses(g, [*values[:i], wrong, *values[i + 1 :]], text="" if i == 4 else f"slot[0][{i}]")
    hits(g, values)


def test_numpy_kinds():
    x = np.zeros((2, 3))
    g = build(("tensor", S0, x))
    hits(g, np.ones((2, 3)))
    misses(g, np.zeros((2, 3), np.float32), text="dtype: expected f64, got f32")
    misses(g, np.zeros((2, 3), ">f8"))
    misses(g, np.zeros((2, 3)).view(np.matrix))
    read_only = np.zeros((2, 3))
    read_only.flags.writeable = False
    misses(g, read_only)
    s = build(("tensor", S0, np.float64(1)))
    hits(s, np.float64(2))
    misses(s, 2.0)
    misses(s, np.float32(2))
    misses(s, np.zeros(()))
    backwards = np.zeros((4,))[::-1]
    b = build(("tensor", S0, backwards))
    hits(b, np.ones(4)[::-1])
    misses(b, np.ones(4))


def test_numpy_scalars_by_value():
    for a, b in [(np.float32(0.0), np.float32(-0.0)), (np.int64(3), np.int64(4)), (np.float64(1), np.float64(2)), (np.float64(1), 1.0)]:
        g = build(("equals", S0, a))
        hits(g, type(a)(a))
        misses(g, b)
    hits(build(("equals", S0, np.float32("nan"))), np.float32("nan"))
    dtypes = build(("equals", S0, np.dtype("f4")))
    hits(dtypes, np.dtype("float32"))
    misses(dtypes, np.dtype("f8"))


@needs_torch
def test_torch_kinds():
    x = torch.zeros(2, 3)
    g = build(("tensor", S0, x))
    hits(g, torch.ones(2, 3))
    misses(g, torch.zeros(2, 3, dtype=torch.float64), text="dtype: expected f32, got f64")
    misses(g, torch.zeros(2, 3, dtype=torch.int32))
    misses(g, torch.zeros(2, 3, requires_grad=True), text="requires_grad: expected False, got True")
    misses(g, torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False), text="expected torch.Tensor, got torch.nn.Parameter")
    misses(g, torch.zeros(2, 3, device="meta"), text="device: expected cpu, got meta")
    with torch.inference_mode():
        misses(g, torch.zeros(2, 3))  # another key set
    misses(g, torch.zeros(2, 3, dtype=torch.complex64).conj())
    misses(g, torch._neg_view(torch.zeros(2, 3)), text="is_neg(): expected False, got True")
    misses(g, torch.zeros(2, 3).to_sparse())

    class Sub(torch.Tensor):
        pass

    misses(g, torch.zeros(2, 3).as_subclass(Sub), text="got a subclass of torch.Tensor")
    p = build(("tensor", S0, torch.nn.Parameter(torch.zeros(2))))
    hits(p, torch.nn.Parameter(torch.ones(2)))
    misses(p, torch.ones(2, requires_grad=True))


@needs_torch
def test_torch_tensor_that_changes_in_place():
    x = torch.zeros(2, 3)
    g = build(("tensor", S0, x))
    hits(g, x)
    x.requires_grad_()
    misses(g, x)
    x = x.detach()
    hits(g, x)
    x.data = torch.zeros(5)
    misses(g, x)
    x.data = torch.zeros(2, 3)
    hits(g, x)
    x.t_()
    misses(g, x)
    x.t_()
    x.resize_(1, 6)
    misses(g, x)


@needs_torch
def test_torch_values():
    for value, same, other in [
        (torch.float32, torch.float32, torch.float64),
        (torch.device("cpu"), torch.device("cpu"), torch.device("meta")),
        (torch.Size([1, 2]), torch.Size([1, 2]), (1, 2)),
        (torch.Size([1, 2]), torch.Size([1, 2]), torch.Size([1, 3])),
    ]:
        g = build(("equals", S0, value))
        hits(g, same)
        misses(g, other)


@needs_torch
def test_grad():
    x = torch.zeros(2, requires_grad=True)
    none, there = build(("is", ("grad", S0), None)), build(("tensor", ("grad", S0), torch.zeros(2)), inputs=[("grad", S0)])
    hits(none, x)
    misses(there, x)
    x.sum().backward()
    misses(none, x)
    hits(there, x)
    assert there.check(x)[0][0] is x.grad
    x.grad = None
    hits(none, x)
    x.grad = torch.ones(2)
    alive = weakref.ref(x.grad)
    hits(there, x)
    x.grad = None
    assert alive() is None  # the guards hold no gradient


# --- symbols -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_symbolic_sizes(framework):
    x, y = zeros(framework, 8, 4), zeros(framework, 8, 4)
    g = build(
        ("tensor", S0, x, {0: "s0"}, {}, {"where": "a"}),
        ("tensor", S1, y, {0: "s0", 1: "s1"}, {0: "s1"}),
        symbols=[(8, 2, 100), (4, 0, 1000)],
    )
    assert g.check(x, y)[1] == (8, 4)
    assert g.check(zeros(framework, 16, 4), zeros(framework, 16, 6))[1] == (16, 6)
    misses(g, zeros(framework, 16, 4), zeros(framework, 8, 4), text="expected s0 = 16, got 8")
    misses(g, zeros(framework, 1, 4), zeros(framework, 1, 4), text="expected a size >= 2 and <= 100, got 1")
    misses(g, zeros(framework, 101, 4), zeros(framework, 101, 4))
    misses(g, zeros(framework, 8, 4), zeros(framework, 16, 4)[::2], text="stride")
    misses(g, zeros(framework, 8, 5), zeros(framework, 8, 4))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_stride_expressions_and_relations(framework):
    x = zeros(framework, 2, 3, 4)
    g = build(
        ("tensor", S0, x, {0: "s0", 1: "s1", 2: "s2"}, {0: "s1*s2", 1: "s2"}),
        ("shape", "s0", "<=", "s1", {"where": "m.py:7"}),
        ("shape", "s2", "!=", "7"),
        symbols=[(2, 0, 1000), (3, 0, 1000), (4, 0, 1000)],
    )
    assert g.check(x)[1] == (2, 3, 4)
    assert g.check(zeros(framework, 5, 6, 8))[1] == (5, 6, 8)
    misses(g, zeros(framework, 5, 4, 8), text="does not hold for s0 = 5")
    misses(g, zeros(framework, 1, 1, 7))
    misses(g, zeros(framework, 5, 12, 8)[:, ::2], text="stride")
    misses(g, zeros(framework, 9, 6, 8)[::2][:5])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dynamic_candidates(framework):
    x, y, z = zeros(framework, 8, 4), zeros(framework, 8, 1), zeros(framework, 4, 4)
    S2 = ("slot", 2)
    g = build(("tensor", S0, x), ("tensor", S1, y), ("tensor", S2, z), inputs=[S0, S1, S2])
    assert g.dynamic(x, y, z) == []
    # Batch changed in two inputs; the length of the first comes along; a 1 that stays and the untouched input stay.
    assert g.dynamic(zeros(framework, 16, 4), zeros(framework, 16, 1), z) == [(0, 0), (0, 1), (1, 0)]
    # A batch of one is a batch: the next graph holds for every other size, and for 1 unless it asked.
    assert g.dynamic(zeros(framework, 1, 4), y, z) == [(0, 0), (0, 1)]
    assert g.dynamic(x, zeros(framework, 8, 3), z) == [(1, 0), (1, 1)]
    assert g.dynamic(zeros(framework, 8), y, z) == []
    assert g.dynamic(zeros(framework, 4, 8).T, y, z) == []
    assert g.dynamic(None, y, z) == []


@needs_torch
def test_parameters_are_no_candidates():
    p = torch.nn.Parameter(torch.zeros(8, 4))
    g = build(("tensor", S0, p), inputs=[S0])
    q = torch.nn.Parameter(torch.zeros(9, 4))
    misses(g, q, text="expected 8, got 9")
    assert "mark_dynamic" not in g.explain(q)
    assert g.dynamic(q) == []


# --- aliasing, state -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_not_aliased(framework):
    whole = zeros(framework, 8)
    g = build(("apart", S0, 1), ("apart", S1, 0))
    hits(g, whole[:4], whole[4:])
    misses(g, whole[:4], whole[3:7], text="share memory")
    misses(g, whole, whole)
    hits(g, whole, zeros(framework, 8))
    hits(g, whole[:0], whole)
    misses(g, whole[::2], whole[1::2])  # interleaved: ranges overlap, which is enough
    if framework == "numpy":
        misses(g, whole[5::-1], whole[2:4])
        hits(g, whole[7:3:-1], whole[:4])
        misses(g, whole[7:3:-1], whole[:5])
    misses(g, whole, 3)
    reads = build(("apart", S0, 0), ("apart", S1, 0))
    hits(reads, whole, whole)
    empty = whole[:0]
    misses(g, empty, empty)
    hits(g, empty, whole[:0])


@needs_torch
def test_one_of_many_is_written():
    whole = zeros("torch", 64)
    slots = [("slot", i) for i in range(8)]
    parts = [whole[8 * i : 8 * i + 8] for i in range(8)]
    for written in range(8):
        g = build(*(("apart", s, int(i == written)) for i, s in enumerate(slots)))
        hits(g, *parts)
        hits(g, *reversed(parts))
        for i in range(8):
            overlapping = list(parts)
            overlapping[i] = whole[8 * i - 1 : 8 * i + 8] if i else whole[:9]
            touches = i == written or (i or 1) - 1 == written if i else written in (0, 1)
            (misses if touches else hits)(g, *overlapping)
        misses(g, *parts[:7], whole)


def test_distinct():
    g = build(*(("distinct", ("slot", i)) for i in range(3)))
    a, b, c = [], [], []
    hits(g, a, b, c)
    misses(g, a, b, a, text="were two objects, now are one")
    misses(g, a, a, c)


@needs_torch
def test_torch_state():
    g = build(("torch state",))
    hits(g)
    with torch.no_grad():
        misses(g, text="torch state: expected grad")
        inside = build(("torch state",))
        hits(inside)
    hits(g)
    misses(inside)
    for switch in [torch.inference_mode(), torch.autocast("cpu"), torch.device("meta")]:
        with switch:
            misses(g)
        hits(g)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    misses(g)
    torch.set_default_dtype(before)
    hits(g)


@pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2, reason="NumPy 1 keeps the state elsewhere")
def test_numpy_state():
    g = build(("numpy state",))
    hits(g)
    with np.errstate(divide="raise"):
        misses(g, text="NumPy error state")
    hits(g)
    with np.errstate():  # a new context of the same content
        hits(g)
    old = np.seterr(over="ignore")
    misses(g)
    np.seterr(**old)
    hits(g)


# --- modules -----------------------------------------------------------------------------------------------------------------------------


def module_rows(module, path, rows, inputs):
    """What a call of nn.Module reads: type, hooks, parameters, submodules."""
    rows += [("type is", path, type(module)), ("type version", ("const", type(module)), type(module)), ("is", attr(path, "training"), module.training)]
    for hooks in ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks"):
        rows.append(("len", attr(path, hooks), 0))
    for name, p in module._parameters.items():
        source = item(attr(path, "_parameters"), name)
        rows.append(("is", source, None) if p is None else ("tensor", source, p))
        if p is not None:
            inputs.append(source)
    rows.append(("keys", attr(path, "_modules"), tuple(module._modules)))
    for name, child in module._modules.items():
        module_rows(child, item(attr(path, "_modules"), name), rows, inputs)


def module_guards(module):
    rows, inputs = [], []
    module_rows(module, S0, rows, inputs)
    return build(*rows, inputs=inputs, varnames=("self",))


@needs_torch
def test_module_tree():
    nn = torch.nn
    m = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False)))
    g = module_guards(m)
    hits(g, m, times=5)
    assert [x.data_ptr() for x in g.check(m)[0]] == [p.data_ptr() for p in m.parameters()]

    def change(do, undo):
        do()
        misses(g, m)
        undo()
        hits(g, m, times=5)

    linear, inner = m[0], m[1]
    change(lambda: m.eval(), lambda: m.train())
    change(lambda: inner[1].eval(), lambda: inner[1].train())
    old = linear.weight
    change(lambda: setattr(linear, "weight", nn.Parameter(torch.zeros(3, 4))), lambda: setattr(linear, "weight", old))
    linear.weight = nn.Parameter(torch.ones(4, 4))  # the same kind: another input, the same code
    assert g.check(m)[0][0] is linear.weight
    hits(g, m)
    change(lambda: linear.weight.requires_grad_(False), lambda: linear.weight.requires_grad_(True))
    change(lambda: setattr(linear, "bias", None), lambda: setattr(linear, "bias", nn.Parameter(torch.zeros(4))))
    change(lambda: setattr(inner, "0", nn.GELU()), lambda: setattr(inner, "0", nn.ReLU()))
    removed = inner[0]
    change(lambda: inner.__delitem__(0), lambda: (inner.insert(0, removed),))
    handles = []
    change(lambda: handles.append(inner[0].register_forward_hook(lambda *a: None)), lambda: handles.pop().remove())
    change(lambda: setattr(nn.ReLU, "forward_", 1), lambda: delattr(nn.ReLU, "forward_"))
    old_class = inner[0].__class__
    change(lambda: setattr(inner[0], "__class__", nn.GELU), lambda: setattr(inner[0], "__class__", old_class))
    m.double()
    misses(g, m, text="weight']")
    m.float()
    hits(g, m)


@needs_torch
def test_guards_keep_no_model_alive():
    m = torch.nn.Linear(4, 4)
    g = build(("is", S0, m), ("tensor", item(attr(("const", m), "_parameters"), "weight"), m.weight))
    hits(g, m)
    parameter, module = weakref.ref(m.weight), weakref.ref(m)
    del m
    gc.collect()
    assert module() is None and parameter() is None and g.dead()


@needs_torch
def test_no_growth_with_tensors():
    m = torch.nn.Linear(4, 4)
    x = torch.zeros(2, 4)

    def once():
        g = module_guards(m)
        for _ in range(4):
            assert g.check(m) is not None
        b = build(("tensor", S0, x, {0: "s0"}, {}), ("torch state",), symbols=[(2, 0, 100)])
        assert b.check(x) is not None and b.check(m) is None
        b.explain(m)
        g.explain(Thing())

    for _ in range(10):
        once()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(200):
        once()
    gc.collect()
    assert sys.getallocatedblocks() - before < 100
