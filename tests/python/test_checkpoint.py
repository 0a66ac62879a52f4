"""torch.utils.checkpoint inside of compiled functions: captured, made again in the backward pass, the same gradients as eager's."""

import copy
import functools
import os
import sys

import pytest

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from bench import models  # noqa: E402, F401

F, nn = torch.nn.functional, torch.nn
again = functools.partial(checkpoint, use_reentrant=False)


class Block(nn.Module):
    def __init__(self, width, p):
        super().__init__()
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.p = p

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(heads.transpose(1, 2).flatten(2)), self.p, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.behind(x)))), self.p, self.training)


class Model(nn.Module):
    def __init__(self, layers=4, width=32, p=0.0, checkpointed=True):
        super().__init__()
        self.layers = nn.ModuleList(Block(width, p) for _ in range(layers))
        self.checkpointed = checkpointed

    def forward(self, x):
        for layer in self.layers:
            x = again(layer, x) if self.checkpointed else layer(x)
        return x.square().mean()


def equal(mine, theirs, **tolerance):
    assert [g is None for g in mine] == [g is None for g in theirs]
    for a, b in zip(mine, theirs):
        if b is not None:
            torch.testing.assert_close(a, b, **tolerance)


def kept(loss, module):
    """Bytes that the backward pass has kept, parameters apart."""
    own = {p.data_ptr() for p in module.parameters()}
    return sum(t.nbytes for t in loss.grad_fn.saved_tensors if t is not None and t.data_ptr() not in own)


@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_layers(fresh, p, dtype):
    torch.manual_seed(0)
    model = Model(p=p).to(dtype)
    other = copy.deepcopy(model)
    compiled = fresh.compile(model)
    for step in range(3):
        results = []
        for f, m in ((other, other), (compiled, model)):
            x = torch.randn(2, 8, 32, dtype=dtype, generator=torch.Generator().manual_seed(step)).requires_grad_()
            torch.manual_seed(step)
            loss = f(x)
            loss.backward()
            results.append([loss.detach(), x.grad, *(q.grad for q in m.parameters()), torch.rand(1)])
        equal(*results)
    report = fresh.explain(model)(x)
    assert report.graph_count == 1 and report.graph_break_count == 0


def test_less_is_kept(fresh):
    torch.manual_seed(0)
    sizes = []
    for checkpointed in (False, True):
        model = Model(checkpointed=checkpointed)
        x = torch.randn(4, 16, 32, requires_grad=True)
        sizes.append(kept(fresh.compile(model)(x), model))
    assert sizes[1] <= 5 * x.nbytes < sizes[0] / 4  # what goes into each layer, and the last one's result


def test_dropout_is_not_drawn_again(fresh):
    w = nn.Parameter(torch.randn(8, 8, dtype=torch.float64))
    f = lambda x: again(lambda x: F.dropout(F.relu(F.dropout(x @ w, 0.5) @ w), 0.3), x).square().sum()  # noqa: E731
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    results = []
    for g in (f, fresh.compile(f)):
        torch.manual_seed(3)
        results.append([*torch.autograd.grad(g(x), (x, w)), torch.rand(3)])
    equal(results[1], results[0])


def topk(x, w):
    values, index = (x @ w).softmax(-1).topk(2, -1)
    return (x.gather(-1, index) * values).sum(-1).exp()


def inside(x, w):
    return again(lambda v: v.tanh() @ w, x.sigmoid()).relu()


def in_place(x, w):
    y = x @ w
    y.mul_(2).add_(x)
    return y.sigmoid()


def without(x, w):
    with torch.no_grad():
        y = (x @ w).tanh()
    return y + (y * x).exp()


FUNCTIONS = {
    "topk": lambda x, w: again(topk, x, w).sum(),
    "inside": lambda x, w: again(inside, x, w).sum(),
    "in_place": lambda x, w: again(in_place, x, w).square().sum(),
    "view": lambda x, w: again(lambda a: (a @ w).t()[1:], x).square().sum(),
    "several": lambda x, w: sum(t.sum() for t in again(lambda a, b: ((a @ b).exp(), a.sin(), None), x, w)[:2]),
    "unused": lambda x, w: (again(lambda a, b: (a @ b, a * 2), x, w)[1]).sum(),
    "itself": lambda x, w: again(lambda a: a, x).square().sum(),
    "constant": lambda x, w: (again(lambda a: torch.ones(3, dtype=a.dtype), x) * x[0, :3]).sum(),
    "keyword": lambda x, w: again(lambda a, *, b: (a @ b).tanh(), x, b=w).sum(),
    "twice": lambda x, w: again(lambda a: again(lambda b: (b @ w).exp(), a) * a, x).sum() + again(torch.exp, x).sum(),
    "detached": lambda x, w: again(lambda a: (a.detach() @ w).tanh() * a.mean(), x).sum(),
    "no_grad": lambda x, w: again(without, x, w).mul(x).sum(),
    "argmax": lambda x, w: again(lambda a: a[torch.arange(4), (a @ w).argmax(-1)].square(), x).sum(),
    "cumulative": lambda x, w: again(lambda a: (a @ w).cumsum(0).flip(0).cumprod(1), x).sum(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(fresh, name):
    f = FUNCTIONS[name]
    torch.manual_seed(0)
    x, w = (torch.randn(4, 4, dtype=torch.float64).requires_grad_() for _ in range(2))
    compiled = fresh.compile(f, fullgraph=True)
    for _ in range(2):
        expected = f(x, w)
        result = compiled(x, w)
        torch.testing.assert_close(result, expected)
        equal(*(torch.autograd.grad(r, (x, w), allow_unused=True) for r in (result, expected)))
        equal(*(torch.autograd.grad(g(x * 1, w * 1), (x, w), allow_unused=True) for g in (compiled, f)))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, w), f(x, w))


def test_second_derivatives(fresh):
    f = lambda x: again(lambda a: a.sin().exp(), x).sum()  # noqa: E731
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    results = []
    for g in (f, fresh.compile(f)):
        (first,) = torch.autograd.grad(g(x), x, create_graph=True)
        results.append([first.detach(), *torch.autograd.grad(first.square().sum(), x)])
    equal(results[1], results[0])


def test_what_goes_in_must_not_be_written(fresh):
    f = lambda x: again(lambda a: a.sin().exp(), x)  # noqa: E731
    for g in (f, fresh.compile(f)):
        h = torch.randn(4, requires_grad=True) * 2
        y = g(h)
        with torch.no_grad():
            h.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.calls = nn.BatchNorm1d(8), nn.Linear(8, 8), 0

    def forward(self, x):
        self.calls += 1
        return self.linear(self.norm(x)).relu()


def test_what_happens_twice(fresh):
    """Statistics and counters change when the values are made, and when they are made again."""
    torch.manual_seed(0)
    model = Statistics()
    other = copy.deepcopy(model)
    f = fresh.compile(lambda x: again(model, x).sum())
    for _ in range(3):
        x = torch.randn(4, 8)
        f(x).backward()
        again(other, x).sum().backward()
        equal([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])
        equal(list(model.state_dict().values()), list(other.state_dict().values()))
        assert model.calls == other.calls


@pytest.mark.parametrize("how", [{"use_reentrant": True}, {"use_reentrant": False, "preserve_rng_state": False}, {"use_reentrant": False, "debug": True},
                                 {"use_reentrant": False, "context_fn": lambda: (torch.enable_grad(), torch.enable_grad())}])  # fmt: skip
def test_other_forms(fresh, how):
    w = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    f = lambda x: checkpoint(lambda a: (a @ w).tanh(), x, **how).sum()  # noqa: E731
    compiled = fresh.compile(f)
    for _ in range(2):
        results = []
        for g in (f, compiled):
            x = torch.linspace(0, 1, 8, dtype=torch.float64).view(2, 4).requires_grad_()
            w.grad = None
            g(x).backward()
            results.append([x.grad, w.grad])
        equal(results[1], results[0])


FORMS = {
    "reentrant": dict(use_reentrant=True),
    "random numbers": dict(use_reentrant=False, preserve_rng_state=False),
    "no check": dict(use_reentrant=False, determinism_check="none"),
}
SELECTED = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])


@pytest.mark.parametrize("form", [*FORMS, "selected"])
def test_all_forms_are_one_graph(fresh, form):
    w = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    how = FORMS.get(form)
    if how is None:
        f = lambda x: checkpoint(lambda a: (a @ w).tanh(), x * 2, use_reentrant=False, context_fn=SELECTED).sum()  # noqa: E731
    else:
        f = lambda x: checkpoint(lambda a: (a @ w).tanh(), x * 2, **how).sum()  # noqa: E731
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    told = fresh.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled, results = fresh.compile(f), []
    for g in (f, compiled, compiled):
        x.grad = w.grad = None
        g(x).backward()
        results.append([x.grad, w.grad])
    equal(results[1], results[0])
    equal(results[2], results[0])


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("f", [
    lambda x, w: checkpoint(lambda a: (a * w).sin(), x.detach(), use_reentrant=True),  # no input wants gradients: nor does the result
    lambda x, w: checkpoint(lambda a: (a * w, a.detach() * 2), x, use_reentrant=True),
    lambda x, w: checkpoint(lambda a: a, x, use_reentrant=True),
    lambda x, w: checkpoint(lambda a: F.dropout(a * w, 0.5), x, use_reentrant=False, preserve_rng_state=False),
])  # fmt: skip
def test_results_that_other_forms_make_otherwise(fresh, f):
    x, w = torch.randn(4, requires_grad=True), nn.Parameter(torch.randn(4))
    compiled = fresh.compile(f)
    for _ in range(2):
        torch.manual_seed(0)
        got = compiled(x, w)
        torch.manual_seed(0)
        expected = f(x, w)
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, expected))):
            equal(a, b)
            assert a.requires_grad == b.requires_grad and (a is x) == (b is x)


def test_no_compiled_gradients(fresh):
    """What torch replays is not replayed with everything kept: the checkpoint is torch's own."""
    w = nn.Parameter(torch.randn(4, 4, dtype=torch.complex128))
    f = lambda x: again(lambda a: (a * w).abs(), x).sum()  # noqa: E731
    compiled, x = fresh.compile(f), torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        equal(torch.autograd.grad(compiled(x), (x, w)), torch.autograd.grad(f(x), (x, w)))


def test_an_exception_inside(fresh):
    def f(x):
        def bad(a):
            raise ValueError(a.shape)

        try:
            again(bad, x)
        except ValueError:
            x = x * 2
        return again(lambda a: a.sin().exp(), x).sum()

    compiled, x = fresh.compile(f), torch.randn(4, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        equal(torch.autograd.grad(compiled(x), x), torch.autograd.grad(f(x), x))


def test_under_autocast(fresh):
    torch.manual_seed(0)
    model = Model(layers=2)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    compiled, x = fresh.compile(f), torch.randn(2, 8, 32, requires_grad=True)
    for _ in range(2):
        inputs = (x, *model.parameters())
        equal(*(torch.autograd.grad(g(x), inputs) for g in (compiled, f)), rtol=0.05, atol=2e-3)
    assert fresh.explain(f)(x).graph_break_count == 0


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`")
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_transformers(fresh, kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
        model = transformers.LlamaForCausalLM(config)
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=3, n_head=4, n_positions=32))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    other = copy.deepcopy(model)
    compiled = fresh.compile(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
    for step in range(3):
        tokens = torch.randint(100, (2, 16), generator=torch.Generator().manual_seed(step))
        losses = []
        for m, optimizer in zip((compiled, other), optimizers):
            torch.manual_seed(step)
            loss = m(input_ids=tokens, labels=tokens, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
    equal([p.grad for p in model.parameters()], [p.grad for p in other.parameters()], rtol=1e-3, atol=1e-5)
    equal(list(model.parameters()), list(other.parameters()), rtol=1e-4, atol=1e-5)
    fresh.reset()  # the first call ended a graph where it logged what is logged once
    report = fresh.explain(model)(input_ids=tokens, labels=tokens, use_cache=False)
    assert report.graph_break_count == 0, report.break_reasons


REENTRANT = {
    "what is only read": lambda x, w: checkpoint(lambda a: (a * w).tanh(), x, use_reentrant=True).sum() + (x * 2).sum(),
    "what is read outside, too": lambda x, w: checkpoint(lambda a: (a * w).tanh(), x, use_reentrant=True).sum() + (x * w).sum(),
    "what is not read": lambda x, w: checkpoint(lambda a: (a * 2).tanh(), x, use_reentrant=True).sum() + (x * w).sum(),
    "one behind another": lambda x, w: checkpoint(lambda a: a * w, checkpoint(lambda a: (a * 2).tanh(), x * 3, use_reentrant=True), use_reentrant=True).sum(),
    "one inside another": lambda x, w: checkpoint(lambda a: checkpoint(lambda b: b.sin() * w, a * 2, use_reentrant=True), x, use_reentrant=False).sum(),
}


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("name", REENTRANT)
def test_passes_that_look_for_some_gradients_only(fresh, name):
    """What was given to the reentrant form refuses them, and from its function they have nothing."""
    passes = {
        "w": lambda y, x, w: torch.autograd.grad(y, w, allow_unused=True),
        "x": lambda y, x, w: torch.autograd.grad(y, x, allow_unused=True),
        "both": lambda y, x, w: torch.autograd.grad(y, [x, w], allow_unused=True),
        "kept": lambda y, x, w: (torch.autograd.grad(y, w, allow_unused=True, retain_graph=True), y.backward(), x.grad, w.grad),
        "inputs x": lambda y, x, w: (y.backward(inputs=[x]), x.grad, w.grad),
        "inputs w": lambda y, x, w: (y.backward(inputs=[w]), x.grad, w.grad),
        "all": lambda y, x, w: (y.backward(), x.grad, w.grad),
    }
    f = REENTRANT[name]
    compiled = fresh.compile(f)
    for how, made in ((how, made) for how in passes for made in (False, True)):
        seen = []
        for g in (f, compiled):
            x, w = (torch.linspace(-1, 1 + k, 4, requires_grad=True) for k in range(2))
            try:
                seen.append(passes[how](g(x * 1 if made else x, w), x, w))
            except RuntimeError as error:
                seen.append(str(error)[:80])
        assert type(seen[1]) is type(seen[0]) and (seen[0] == seen[1] if isinstance(seen[0], str) else True), (how, made, seen)
        torch.testing.assert_close(seen[1], seen[0], msg=lambda m, seen=seen, how=how: f"{how}: {m}") if not isinstance(seen[0], str) else None
    told = fresh.explain(f)(torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def both_read(x, w):
    y = again(torch.sigmoid, x)
    return (y * x.sigmoid() * w).sum()


def its_own_result(x, w):
    return (again(lambda x: (x * w).exp(), x) ** 2).sum()


def two_results(x, w):
    a, b = again(lambda x: ((h := (x @ w).tanh()), h.exp()), x)
    return (a * b).sum() + (a * x).sum()


def result_of_another(x, w):
    y = again(lambda x: (x @ w).exp().sin(), x)
    return again(lambda y: (y * x).tanh(), y).pow(2).sum()


def nested(x, w):
    return again(lambda x: again(lambda y: (y @ w).tanh(), x.exp()).exp() * x, x).pow(2).sum()


def a_power(x, w):
    return again(lambda x, w: (x.abs() + 1) ** w, x, w).sum()


def an_inverse(x, w):
    return again(lambda x, w: torch.linalg.inv(x @ w + 5 * torch.eye(3)), x, w).sum()


def attention(x, w):
    q = x[None, None]
    return again(lambda q: F.scaled_dot_product_attention(q, q, w[None, None]), q).sum()


def reentrant(x, w):
    y = checkpoint(lambda x: (x * w).exp(), x, use_reentrant=True)
    return (y * y * x.exp()).sum()


@pytest.mark.parametrize("f", [both_read, its_own_result, two_results, result_of_another, nested, a_power, an_inverse, attention, reentrant])
@pytest.mark.parametrize("written", [(), ("x",), ("w",), ("x", "w")])
def test_everything_inside_is_made_again_of_what_is_there_then(fresh, f, written):
    """A write by `.data` to what goes in shows in all that is inside. What others read of the same values is what it was."""

    def run(call, dtype=torch.float32):
        seen = []
        for k in range(3):
            torch.manual_seed(k)
            inputs = {"x": torch.randn(3, 3, dtype=torch.float64).to(dtype), "w": torch.randn(3, 3, dtype=torch.float64).to(dtype)}
            for t in inputs.values():
                t.requires_grad_()
            loss = call(**inputs)
            for name in written:
                inputs[name].data.mul_(2).add_(1)
            loss.backward()
            seen += [loss.detach(), *(t.grad for t in inputs.values())]
        return seen

    compiled = fresh.compile(f, fullgraph=True)
    equal(run(compiled), run(f), rtol=1e-4, atol=1e-5)
    info = fresh.cache_info(compiled)
    assert info["captures"] == 1 and info["outcomes"]["run"]["graph"] >= 1


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("write", [lambda m, x: m(x).tanh(), lambda m, x: (m.running_mean.add_(1), m.eval()(x))[1], lambda m, x: m.weight.data.mul_(2) * x])
def test_what_is_read_first_inside_and_written_there(fresh, write, reentrant):
    """Such writes happen twice in eager, too."""
    ours, theirs = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    compiled = fresh.compile(lambda x: checkpoint(write, ours, x, use_reentrant=reentrant).exp())
    for k in range(3):
        torch.manual_seed(k)
        x = torch.randn(4, 3)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(a).sum().backward()
        checkpoint(write, theirs, b, use_reentrant=reentrant).exp().sum().backward()
        equal([a.grad], [b.grad])
        equal(list(ours.state_dict().values()), list(theirs.state_dict().values()))


def test_a_result_that_is_written_is_not_what_is_made_again(fresh):
    def f(x):
        y = again(torch.exp, x)
        return y, y.sum()

    for call in (f, compiled := fresh.compile(f, fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        y, loss = call(x)
        with torch.no_grad():
            y.mul_(5)
        loss.backward()
        torch.testing.assert_close(x.grad, torch.ones(3).exp())
    info = fresh.cache_info(compiled)
    assert info["captures"] == 1 and info["outcomes"]["run"]["graph"] >= 1


READ = {
    "a global": ("FACTOR = 2.0", "(x * FACTOR).sin() * FACTOR", "FACTOR = v"),
    "an item": ("HELD = {'factor': 2}", "(x * float(HELD['factor'])).sin() * x", "HELD['factor'] = v"),
    "an attribute": ("class Held: pass\nheld = Held(); held.factor = 2.0", "(x * held.factor).sin() * x", "held.factor = v"),
    "a function": ("def one(x): return x * 2\ndef other(x): return x * 5\nhelper = one", "helper(x).sin() * x", "helper = one if v == 2 else other"),
    "its code": ("def helper(x): return x * 2\nc = helper.__code__, (lambda x: x * 5).__code__", "helper(x).sin() * x", "helper.__code__ = c[v > 2]"),
    "its default": ("def helper(x, by=2.0): return x * by", "helper(x).sin() * x", "helper.__defaults__ = (v,)"),
    "an integer that changes": ("FACTOR = 2", "(x * FACTOR).sin() * x", "FACTOR = int(v)"),
    "a number of a class": ("class Held: factor = 2.0", "(x * Held.factor).sin() * x", "Held.factor = v"),
    "a tensor": ("one, other = torch.tensor(2.0), torch.tensor(5.0)\nFACTOR = one", "(x * FACTOR).sin() * x", "FACTOR = one if v == 2 else other"),
    "a length": ("many = [1, 2]", "(x * len(many)).sin() * x", "many[:] = range(int(v))"),
    "an order": ("many = {'a': 1, 'b': 2}", "(x * list(many.values())[0]).sin() * x", "many.clear(); many.update({'a': 1, 'b': 2} if v == 2 else {'b': 5, 'a': 1})"),
    "a key": ("many = {}", "(x * (5 if 'a' in many else 2)).sin() * x", "many.update(a=1) if v > 2 else many.clear()"),
    "whether it is there": ("class Held: pass", "(x * (5 if hasattr(Held, 'a') else 2)).sin() * x", "setattr(Held, 'a', 1) if v > 2 else hasattr(Held, 'a') and delattr(Held, 'a')"),
    "a mode": ("held = torch.nn.Dropout(0.0)", "(held(x) * (5 if held.training else 2)).sin() * x", "held.train(v > 2)"),
    "a weight": ("held = torch.nn.Linear(3, 3)\none, other = (torch.nn.Parameter(torch.eye(3) * k) for k in (2, 5))", "held(x).sin() * x", "held.weight = one if v == 2 else other"),
    "a method": ("class Held:\n    def by(self, x): return x * self.factor\nheld = Held(); held.factor = 2.0", "held.by(x).sin() * x", "held.factor = v"),
    "a slot": ("class Held: __slots__ = 'factor',\nheld = Held(); held.factor = 2.0", "(x * held.factor).sin() * x", "held.factor = v"),
    "a property": ("class Held:\n    k = property(lambda self: self.n * 2.0)\nheld = Held(); held.n = 1.0", "(x * held.k).sin() * x", "held.n = v / 2"),
    "a variable": ("def cell():\n    k = 2.0\n    def get(): return k\n    def put(v):\n        nonlocal k\n        k = v\n    return get, put\nget, put = cell()", "(x * get()).sin() * x", "put(v)"),
}  # fmt: skip
WAYS = {
    "a global": "def f(x): return checkpoint(body, x, use_reentrant=form) + 1",
    "a closure": "def make(body):\n    def f(x): return checkpoint(lambda y: body(y), x, use_reentrant=form) + 1\n    return f\nf = make(body)",
    "self": "class Model(torch.nn.Module):\n    def part(self, x): return body(x)\n    def forward(self, x): return checkpoint(self.part, x, use_reentrant=form) + 1\nf = Model()",
    "an argument": "def f(x): return checkpoint(lambda g, y: g(y), body, x, use_reentrant=form) + 1",
    "read before": "def f(x): return checkpoint(body, x + 0 * body(x).detach(), use_reentrant=form) + 1",
}  # fmt: skip


SEVERAL = "an item", "a number of a class", "an order", "a mode", "a weight"


@pytest.mark.parametrize("what, way", [(what, way) for what in READ for way in WAYS if way == "self" or what in SEVERAL])
@pytest.mark.parametrize("reentrant", [False, True])
def test_what_the_function_reads_changes_before_the_pass(fresh, what, way, reentrant):
    """Such a pass calls the function as it is by then; none before or behind it does, and all calls run in a graph."""
    before, body, change = READ[what]
    space = {"__name__": f"{what} {reentrant}", "checkpoint": checkpoint, "torch": torch, "form": reentrant, "called": []}
    exec(
        f"{before}\ndef body(x):\n    seen()\n    return {body}\ndef set_to(v):\n    global FACTOR, helper\n    {change}\n"
        f"def seen(): torch.compiler.is_compiling() or called.append(1)\n{WAYS[way]}",
        space,
    )

    def run(f, now, then):
        space["set_to"](now)
        x = torch.linspace(0.1, 0.9, 3).requires_grad_()
        y = f(x)
        space["set_to"](then)
        y.sum().backward()
        return x.grad.tolist()

    eager, compiled = space["f"], fresh.compile(space["f"])
    values = [(2.0, 2.0), (2.0, 5.0), (2.0, 2.0), (5.0, 5.0), (5.0, 2.0), (2.0, 2.0), (2.0, 5.0)]
    for now, then in values:
        expected = run(eager, now, then)
        space["called"].clear()
        assert run(compiled, now, then) == pytest.approx(expected, rel=1e-4)
        assert len(space["called"]) == (now != then)
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"]["graph"] == len(values)


KEPT = {
    "a variable": (lambda x, t, form: checkpoint(lambda y: (y * t).sin() * y, x * 2, **form).square(), False),
    "an item": (lambda x, t, form: checkpoint(lambda y, held: (y * held[0]).sin() * y, x * 2, [t], **form), False),
    "an argument": (lambda x, t, form: checkpoint(lambda y, t: (y * t).sin() * y, x * 2, t, **form), True),
    "also outside": (lambda x, t, form: checkpoint(lambda y: (y * t).sin() * y, x * 2, **form) * t, True),
}


@pytest.mark.parametrize("what", KEPT)
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("wants", [False, True])
def test_what_the_function_reads_is_written_before_the_pass(fresh, what, reentrant, wants):
    """The framework keeps it where it is given to the function, or read outside; else the function reads what is there."""
    f, refused = KEPT[what]
    compiled = fresh.compile(lambda x, t: f(x, t, dict(use_reentrant=reentrant)))
    results = []
    for g in (lambda x, t: f(x, t, dict(use_reentrant=reentrant)), compiled, compiled):
        x, t = torch.linspace(0.1, 0.9, 4).requires_grad_(), torch.full((4,), 2.0, requires_grad=wants)
        y = g(x, t)
        with torch.no_grad():
            t.add_(0.5)
        if refused:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()
        else:
            y.sum().backward()
            results.append([x.grad, t.grad])
    for got in results[1:]:
        equal(got, results[0])
    assert fresh.cache_info(compiled)["outcomes"]["run"]["graph"] == 2


class Counted(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.layers, self.form, self.step = nn.ModuleList(Block(16, 0.0) for _ in range(2)), form, 0

    def part(self, layer, x):
        return layer(x) if self.step < 100 else layer(x) * 2

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(self.part, layer, x, use_reentrant=self.form)
        return x.square().mean()


@pytest.mark.parametrize("form", [False, True])
def test_steps_that_are_counted_between(fresh, form):
    """Gradients of several calls, and a counter that goes on between them: each pass finds another number, which decides nothing."""
    torch.manual_seed(0)
    model = Counted(form).double()
    other = copy.deepcopy(model)
    results = []
    compiled = fresh.compile(model)
    for f, m in ((other, other), (compiled, model)):
        xs = [torch.randn(2, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3)]
        losses = []
        for x in xs:
            losses.append(f(x))
            m.step += 1
        m.eval()
        for loss in losses:
            loss.backward()
        results.append([x.grad for x in xs] + [p.grad for p in m.parameters()])
    equal(results[1], results[0])
    assert fresh.cache_info(compiled)["breaks"] == 0


def test_random_numbers_and_autocast_of_the_call_are_put_back(fresh):
    scale = [2.0]

    def f(x, w, form):
        with torch.autocast("cpu"):
            y = checkpoint(lambda a: F.dropout((a @ w).float().sin() * scale[0] * a, 0.5), F.dropout(x, 0.2), use_reentrant=form)
        return y * torch.rand_like(y)

    w = torch.randn(4, 4)
    for form in False, True:
        results, compiled = [], fresh.compile(lambda x, form=form: f(x, w, form))
        for g in (lambda x, form=form: f(x, w, form), compiled):
            torch.manual_seed(0)
            x = torch.linspace(0, 1, 16).view(4, 4).requires_grad_()
            scale[0] = 2.0
            y = g(x)
            scale[0] = 3.0
            y.sum().backward()
            results.append([y.detach(), x.grad, torch.rand(1)])
        equal(results[1], results[0])
        assert fresh.cache_info(compiled)["outcomes"]["run"]["graph"] == 1 + form


def changed_inside(x):
    k = 2.0

    def part(y):
        return (y * k).sin()

    y = checkpoint(part, x, use_reentrant=False)
    k = 5.0
    return y


def changed_list(x):
    held = [2.0]
    y = checkpoint(lambda y: (y * held[0]).sin(), x, use_reentrant=False)
    held[0] = 5.0
    return y


def changed_outside(x):
    held = [2.0]
    y = checkpoint(lambda y: (y * held[0]).sin(), x, use_reentrant=False)
    return y, held


def view_of_result(x):
    scale = SCALE[0]
    return checkpoint(lambda y: (y * SCALE[0]).sin()[None].view(-1), x * scale, use_reentrant=True)


SCALE = [2.0]


@pytest.mark.parametrize("f", [changed_inside, changed_list, changed_outside, view_of_result])
def test_what_cannot_be_called_again_runs_as_written(fresh, f):
    compiled, results = fresh.compile(f), []
    for g in (f, compiled, compiled):
        SCALE[0] = 2.0
        x = torch.linspace(0.1, 0.9, 4).requires_grad_()
        y = g(x)
        SCALE[0] = 3.0
        if isinstance(y, tuple):
            y[1][0] = 7.0
            y = y[0]
        y.sum().backward()
        results.append([y.detach(), x.grad])
    equal(results[1], results[0])
    equal(results[2], results[0])
    assert fresh.cache_info(compiled)["breaks"] >= 1


def test_what_is_made_of_a_written_tensor_and_kept_is_no_other_in_the_pass(fresh):
    """What a selective checkpoint keeps is of the call; eager goes on with it, we refuse the pass."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    weight = torch.full((2, 2), 0.5)
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    compiled = fresh.compile(lambda x: checkpoint(lambda t: torch.sin(torch.mm(t, weight)), x * 2, use_reentrant=False, context_fn=contexts) ** 2)
    for _ in range(3):
        x = torch.ones(2, 2, requires_grad=True)
        y = compiled(x)
        weight.mul_(1.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    assert fresh.cache_info(compiled)["outcomes"]["run"]["graph"] == 3


def test_a_changed_pass_around_the_reentrant_form_is_not_differentiated(fresh):
    scale = [1.0]
    compiled = fresh.compile(lambda x: checkpoint(lambda t: torch.sin(t) * scale[0], x, use_reentrant=True) ** 2)
    for _ in range(3):
        x = torch.ones(2, 2, requires_grad=True)
        y = compiled(x)
        scale[0] += 1
        with pytest.raises(RuntimeError, match="cannot be differentiated"):
            y.sum().backward(create_graph=True)
