"""framejit.cost_analysis(): what a call would compute, move and hold, and that nothing of it runs."""

import sys

import pytest

import framejit

np = pytest.importorskip("numpy")


def product(x, w):
    return np.tanh(x @ w) + 1.0


def test_figures_are_those_of_the_sizes(fresh):
    x, w = np.ones((80, 16)), np.ones((16, 40))
    cost = framejit.cost_analysis(product)(x, w)
    assert cost.flops == 2 * 80 * 16 * 40 + 2 * 80 * 40 and cost.backward_flops == 0
    assert (cost.input_bytes, cost.output_bytes, cost.kept_bytes) == (8 * (80 * 16 + 16 * 40), 8 * 80 * 40, 0)
    assert cost.scratch_bytes == 8 * 80 * 40 and cost.unknown == []  # of the product, which the kernel reads
    assert [(s.by, s.graph) for s in cost.steps] == [("matmul", "product"), ("kernel", "product")]
    assert [s.flops for s in cost.steps] == [2 * 80 * 16 * 40, 0]
    assert cost.bytes == sum(s.bytes for s in cost.steps) == 8 * (80 * 16 + 16 * 40 + 3 * 80 * 40)
    text = str(cost)
    assert "operations" in text and "intermediate values" in text and "backward" not in text and "matmul@test_cost.py" in text


def test_the_steps_are_those_that_run(fresh):
    """As profile() measures them, which counts at run time."""
    x, w = np.ones((80, 16)), np.ones((16, 40))
    told = framejit.cost_analysis(product)(x, w).steps
    f = fresh.compile(product, options={"leave": False})
    f(x, w)
    with framejit.profile() as p:
        f(x, w)
    ran = sorted((s.name, s.by, s.bytes, s.flops) for s in p.steps)
    assert ran == sorted((s.name, s.by, s.bytes, s.flops) for s in told) and len(ran) == 2


def test_nothing_runs(fresh, capsys):
    done = []

    def f(x, into):
        into += 1.0
        done.append(1)
        print("printed")
        return x * 2.0

    x, into = np.ones(4), np.zeros(4)
    compiled = fresh.compile(f)
    cost = framejit.cost_analysis(compiled)(x, into)
    assert not into.any() and done == [] and capsys.readouterr().out == ""
    assert cost.flops == 8
    # What was looked at is no version of the compiled function.
    assert framejit.cache_info(compiled)["captures"] == 0
    assert compiled(x, into).tolist() == [2.0] * 4 and into.tolist() == [1.0] * 4 and done == [1]
    assert framejit.cache_info(compiled)["captures"] == 1
    # And the other way round.
    framejit.cost_analysis(compiled)(x, into)
    assert into.tolist() == [1.0] * 4 and done == [1] and framejit.cache_info(compiled)["captures"] == 1


def test_nothing_to_compile(fresh):
    with pytest.raises(framejit.FramejitError, match="nothing of the call is compiled"):
        framejit.cost_analysis(lambda: 3)()


def test_what_is_not_one_graph(fresh):
    called = []

    def f(x):
        y = np.tanh(x)
        called.append(open("/dev/null").close())
        return y + 1.0

    with pytest.raises(framejit.BreakError, match="FJ0005.*|open"):
        framejit.cost_analysis(f)(np.ones(3))
    assert called == []


def test_what_numpy_would_do_as_fast_is_told(fresh):
    """The choice to leave it to NumPy is no reason to say nothing."""
    cost = framejit.cost_analysis(lambda x: np.sort(x))(np.ones(100))
    assert cost.unknown == ["numpy.sort"] and cost.steps[0].by == "extern"


def test_errors(fresh):
    with pytest.raises(TypeError):
        framejit.cost_analysis(3)
    with pytest.raises(framejit.OptionError):
        framejit.cost_analysis(product, options={"fusee": 1})
    with pytest.raises(TypeError, match="product"):
        framejit.cost_analysis(product)(np.ones((2, 2)))
    with framejit.stance("force_eager"), pytest.raises(framejit.FramejitError, match="switched off"):
        framejit.cost_analysis(product)(np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(framejit.FramejitError, match="a generator"):
        framejit.cost_analysis(lambda x: (yield x))(np.ones(2))
    sys.setprofile(lambda *told: None)
    try:
        with pytest.raises(framejit.FramejitError, match="profile function"):
            framejit.cost_analysis(product)(np.ones((2, 2)), np.ones((2, 2)))
    finally:
        sys.setprofile(None)
    # An error that the call itself would raise, before anything is computed: told as what cannot be compiled.
    with pytest.raises(framejit.FramejitError):
        framejit.cost_analysis(product)(np.ones((2, 2)), np.ones((3, 3)))
    # Sizes 0 and 1.
    assert framejit.cost_analysis(product)(np.ones((0, 2)), np.ones((2, 1))).flops == 0
    assert framejit.cost_analysis(product)(np.ones((1, 1)), np.ones((1, 1))).flops == 4


def test_gradients(fresh):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    x = torch.ones(8, 16)
    cost = framejit.cost_analysis(model)(x)
    products = 2 * 8 * 16 * 32 + 2 * 8 * 32 * 4
    assert products < cost.flops < products + 20 * 8 * 32
    assert cost.backward_flops > products  # of both operands of the last one, of the weight of the first
    assert cost.kept_bytes > 0 and {s.graph.split()[-1] for s in cost.steps} == {"forward", "backward"}
    assert "of the backward pass" in str(cost)
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        alone = framejit.cost_analysis(fresh.compile(model))(x)
    assert alone.flops == cost.flops and alone.backward_flops == alone.kept_bytes == 0
    assert alone.input_bytes == x.nbytes + sum(p.nbytes for p in model.parameters())


def test_contractions(fresh):
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    with torch.no_grad():
        conv = framejit.cost_analysis(lambda x, w: F.conv2d(x, w))(torch.ones(2, 8, 10, 10), torch.ones(16, 8, 3, 3))
        assert conv.flops == 2 * (2 * 16 * 8 * 8) * (8 * 3 * 3)
        grouped = framejit.cost_analysis(lambda x, w: F.conv2d(x, w, groups=4))(torch.ones(2, 8, 10, 10), torch.ones(16, 2, 3, 3))
        assert grouped.flops == conv.flops / 4
        q, k = torch.ones(2, 4, 6, 16), torch.ones(2, 4, 10, 16)
        attention = framejit.cost_analysis(lambda q, k: F.scaled_dot_product_attention(q, k, k))(q, k)
        scores = 2 * 4 * 6 * 10
        assert scores * 4 * 16 <= attention.flops <= scores * (4 * 16 + 12)
    # Random numbers are not drawn.
    state = torch.get_rng_state()
    framejit.cost_analysis(lambda x: x * torch.rand(4))(torch.ones(4))
    assert torch.equal(state, torch.get_rng_state())
