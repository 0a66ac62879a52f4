"""Operators of torch.library: one graph each, with their effects once a call, gradients by their own formulas, and writes that show everywhere."""

import collections
import types

import framejit
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")
custom_op = torch.library.custom_op
seen = {}


def count(name):
    seen[name] = seen.get(name, 0) + 1


@custom_op("framejit_test::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor, factor: float = 2.0) -> None:
    count("scale_")
    x.mul_(factor)


@custom_op("framejit_test::fill", mutates_args=("out",))
def fill(x: torch.Tensor, out: torch.Tensor, *, add: float = 1.0) -> torch.Tensor:
    count("fill")
    out.copy_(x + add)
    return x * 3


@fill.register_fake
def _(x, out, *, add=1.0):
    return torch.empty_like(x)


@custom_op("framejit_test::step_", mutates_args=("xs",))
def step_(xs: list[torch.Tensor]) -> None:
    count("step_")
    for x in xs:
        x.add_(1)


@custom_op("framejit_test::sine", mutates_args=())
def sine(x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    count("sine")
    return torch.sin(x) * factor


@sine.register_fake
def _(x, factor=1.0):
    return torch.empty_like(x)


@custom_op("framejit_test::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    count("backward")
    return x.clone()


@counted.register_fake
def _(x):
    return torch.empty_like(x)


def keep(ctx, inputs, output):
    x, ctx.factor = inputs
    ctx.save_for_backward(x)


def sine_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.cos() * ctx.factor, None


sine.register_autograd(sine_backward, setup_context=keep)


@custom_op("framejit_test::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    count("noisy")
    return x * 2


@noisy.register_fake
def _(x):
    return torch.empty_like(x)


noisy.register_autograd(lambda ctx, grad: torch.ops.framejit_test.counted(grad * torch.rand_like(grad)))

library = torch.library.Library("framejit_test_raw", "DEF")
library.define("add_one_(Tensor(a!) x) -> Tensor(a!)")


def add_one_(x):
    count("add_one_")
    return x.add_(1)


library.impl("add_one_", add_one_, "CPU")
library.impl("add_one_", lambda x: x, "Meta")


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.framejit_test_raw.cube(x)

    @staticmethod
    def backward(ctx, grad):
        count("cube's backward")
        return 3 * ctx.saved_tensors[0] ** 2 * grad


library.define("cube(Tensor x) -> Tensor")
library.impl("cube", lambda x: (count("cube"), x**3)[1], "CPU")
library.impl("cube", lambda x: torch.empty_like(x), "Meta")
library.impl("cube", Cube.apply, "AutogradCPU")


def table():
    return torch.linspace(-1, 1, 6).reshape(2, 3)


def same(a, b):
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride() and a._is_view() == b._is_view() and a.requires_grad == b.requires_grad
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b


def check(f, inputs=1, grad=False, calls=4, whole=True):
    """Against eager: results, inputs afterwards, gradients, random numbers drawn, and how often each kernel ran."""
    compiled = framejit.compile(f, fullgraph=whole)
    for _ in range(calls):
        runs = []
        for g in (f, compiled):
            torch.manual_seed(5)
            seen.clear()
            args = [table().requires_grad_(grad) for _ in range(inputs)]
            out = g(*args)
            if grad:
                out.sum().backward()
            runs.append((out, args, [a.grad for a in args], [a._version > 0 for a in args], dict(seen), torch.rand(1)))
        same(*runs)
    info = framejit.cache_info(compiled)
    if not whole:
        return info["breaks"]
    assert (info["captures"], info["breaks"]) == (1, 0)
    assert info["outcomes"]["run"] == {"graph": calls}


def test_writes_to_what_was_made_here():
    def f(x):
        y = x + 1
        before = y * 1
        assert scale_(y, 3.0) is None
        between = y * 1
        scale_(y)
        return before, between, y

    check(f)


def test_writes_to_inputs_and_views():
    def f(x, out):
        y = x * 1
        scale_(y[0], factor=3.0)
        scale_(x[:, 1])
        r = fill(x * 2, out, add=2.0)
        return y, r + out, x + 0

    check(f, inputs=2)


def test_writes_to_a_list():
    def f(a, b):
        y = a * 2
        step_([y, b])
        return y + b, y

    check(f, inputs=2)


def test_an_operator_that_returns_what_it_wrote():
    def f(x):
        y = x * 2
        z = torch.ops.framejit_test_raw.add_one_(y)
        return z is y, y + 1, z

    check(f)


def test_gradients_by_its_own_formula():
    check(lambda x: sine(x * 2, 3.0) + sine(x), grad=True)


def test_a_backward_that_draws_runs_as_it_is():
    check(lambda x: (noisy(x * 2) * torch.rand_like(x)).exp(), grad=True)


def test_gradients_registered_by_other_means_run_in_python():
    def f(x):
        return torch.ops.framejit_test_raw.cube(x * 2) + 1

    assert check(f, grad=True, whole=False) > 0


def test_writes_beside_gradients():
    def f(x):
        y = x * 2
        z = y.detach().clone()
        scale_(z)
        return (y * z).sum()

    check(f, grad=True)


def test_unused_results_keep_their_effects():
    def f(x):
        scale_(x.clone())
        sine(x)
        return x + 1

    check(f)


def test_arguments_in_one_memory_are_left_to_the_framework():
    def f(x):
        y = x * 2
        return fill(y, y) + y

    compiled = framejit.compile(f)
    for _ in range(3):
        same(f(table()), compiled(table()))
    assert framejit.cache_info(compiled)["breaks"] > 0


def test_meta_tensors_made_beside_others():
    def f(x):
        m = torch.empty_like(x, device="meta")
        return (m @ m.t()).shape, (m + 1).device, x + 1, m.sum(0)

    compiled = framejit.compile(f, fullgraph=True)
    for _ in range(3):
        ours, theirs = compiled(table()), f(table())
        assert ours[:2] == theirs[:2] and ours[3].is_meta and ours[3].shape == theirs[3].shape
        same(ours[2], theirs[2])


def test_gradients_registered_again():
    @custom_op("framejit_test::formula", mutates_args=())
    def formula(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @formula.register_fake
    def _(x):
        return torch.empty_like(x)

    def with_cos(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].cos())

    def with_exp(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].exp())

    def once(ctx, grad):
        return grad * ctx.saved_tensors[0]

    def hundredfold(ctx, grad):
        return grad * ctx.saved_tensors[0] * 100

    compiled = framejit.compile(lambda x: formula(x * 2).sum(), fullgraph=True)
    versions = []
    for backward, setup in ((once, with_cos), (hundredfold, with_cos), (hundredfold, with_exp)):
        formula.register_autograd(backward, setup_context=setup)
        how, factor = torch.cos if setup is with_cos else torch.exp, 1 if backward is once else 100
        for _ in range(3):
            x = table().requires_grad_()
            compiled(x).backward()
            torch.testing.assert_close(x.grad, how(table() * 2) * factor * 2)
        versions.append(framejit.cache_info(compiled)["captures"])
    assert versions == [1, 2, 3]
    assert framejit.cache_info(compiled)["outcomes"]["run"] == {"graph": 9}


def test_an_operator_that_is_made_of_others():
    library = torch.library.Library("framejit_composite", "DEF")
    library.define("scaled(Tensor x, Tensor scale, int power) -> Tensor")
    library.impl("scaled", lambda x, scale, power: (x.to(scale.dtype) * scale) ** power, "CompositeImplicitAutograd")

    def f(x, scale):
        return torch.ops.framejit_composite.scaled(x, scale, 2) + 1

    compiled = framejit.compile(f, fullgraph=True)
    for i in range(3):
        x, scales = torch.arange(6, dtype=torch.int8).view(2, 3), [torch.full((2, 1), i + 0.5, requires_grad=True) for _ in range(2)]
        y = [g(x, scale) for g, scale in zip((f, compiled), scales)]
        torch.testing.assert_close(*y)
        for t in y:
            t.sum().backward()
        torch.testing.assert_close(scales[0].grad, scales[1].grad)
    info = framejit.cache_info(compiled)
    assert (info["captures"], info["breaks"], info["outcomes"]["run"]) == (1, 0, {"graph": 3})


calls, fails = [], {}


@custom_op("framejit_test::told", mutates_args=())
def told(x: torch.Tensor, name: str) -> torch.Tensor:
    calls.append((name, float(x.sum())))
    if fails.get(name):
        raise ValueError(name)
    return x + 1


@told.register_fake
def _(x, name):
    return torch.empty_like(x)


told.register_autograd(lambda ctx, grad: (grad, None))


@custom_op("framejit_test::told_", mutates_args=("x",))
def told_(x: torch.Tensor, name: str) -> None:
    calls.append((name, x.stride()))
    x.add_(1)
    if fails.get(name):
        raise ValueError(name)


def straight(x, log):
    log.append("begun")
    y = told(x * 2, "a")
    log.append("between")
    return told(y * 3, "b") + told(x, "c")


def caught(x, log):
    y = told(x * 2, "a")
    try:
        y = told(y, "b")
    except ValueError as error:
        log.append(repr(error))
    return told(y, "c") * 2


def called(x, log):
    return straight(x, log) * caught(x, log)


def looked_up(x, log):  # an index that is wrong raises behind the first operator
    y = told(x, "a")
    return y[torch.tensor([7]) if fails.get("index") else torch.tensor([0])], told(y, "b")


def guessed(x, log):
    def inner(x):
        if x.sum() > 0:
            return told(x, "a") * 2
        return told(x, "b") * 3

    return inner(x) + 1


def raw_told(x, name):
    calls.append((name, float(x.sum())))
    if fails.get(name):
        raise ValueError(name)
    return x + 1


def raw_told_(x, name):
    calls.append((name, x.stride()))
    x.add_(1)
    if fails.get(name):
        raise ValueError(name)
    return x


library.define("told(Tensor x, str name) -> Tensor")
library.impl("told", raw_told, "CPU")
library.impl("told", lambda x, name: torch.empty_like(x), "Meta")
library.define("told_(Tensor(a!) x, str name) -> Tensor(a!)")
library.impl("told_", raw_told_, "CPU")
library.impl("told_", lambda x, name: x, "Meta")
RAW = torch.ops.framejit_test_raw


@pytest.mark.parametrize("f", [straight, caught, called, looked_up, guessed])
@pytest.mark.parametrize("grad", [False, True, "given to Library.impl", "the overload"])
@pytest.mark.parametrize("whole", [False, True])
def test_an_operator_that_raises_is_called_once(f, grad, whole, monkeypatch):
    seen_by = []
    if isinstance(grad, str):  # such kernels have no gradients
        monkeypatch.setitem(globals(), "told", RAW.told.default if grad == "the overload" else RAW.told)
        grad = False
    if whole and f in (caught, called, guessed, looked_up):
        whole = False
    for g in (f, framejit.compile(f, fullgraph=whole)):
        log, out = [], []
        calls.clear()
        for failing in ("", "", "a", "", "b", "c", "index", "", "negative", "b", ""):
            fails.clear()
            fails[failing] = True
            x = (torch.ones(3) * (-1 if failing == "negative" else 1)).requires_grad_(grad)
            try:
                out.append(g(x, log))
            except (ValueError, IndexError) as error:
                out.append((type(error).__name__, str(error) if type(error) is ValueError else ""))
        seen_by.append((out, log, list(calls)))
    same(seen_by[0], seen_by[1])


class Seen:
    """What kernels read and change."""

    of_class, of_dict, of_list = 0, {"a": 0}, []


class Held:
    __slots__ = ("of_slot",)


of_module, seen_object, held, table_of_module, fresh_name = 0, types.SimpleNamespace(value=0), Held(), torch.zeros(2), "beside"


def tell_seen(x):
    return x * Seen.of_class + Seen.of_dict["a"] + of_module + seen_object.value + len(Seen.of_list) + held.of_slot + getattr(x, "given", 0)


def change_seen(x):
    global of_module
    Seen.of_class += 1
    Seen.of_dict["a"] += 1
    of_module += 1
    seen_object.value += 1
    held.of_slot += 1
    Seen.of_list.append(1)
    table_of_module.add_(1)
    return x * 1


class Methods:
    def __init__(self, function):
        self.function = function

    def kernel(self, x):
        return self.function(x)


reads_what_was_written = custom_op("framejit_test::reads_what_was_written", lambda x: tell_seen(x), mutates_args=(), schema="(Tensor x) -> Tensor")
changes_what_is_read = custom_op("framejit_test::changes_what_is_read", lambda x: change_seen(x), mutates_args=(), schema="(Tensor x) -> Tensor")
for op in (reads_what_was_written, changes_what_is_read):
    op.register_fake(lambda x: torch.empty_like(x))
for name, function in (("tell", tell_seen), ("change", change_seen)):
    library.define(f"{name}_seen(Tensor x) -> Tensor")
    library.impl(f"{name}_seen", Methods(function).kernel, "CPU")
    library.impl(f"{name}_seen", lambda x: torch.empty_like(x), "Meta")
    library.define(f"{name}_within(Tensor x) -> Tensor")
    library.impl(f"{name}_within", lambda x: torch.empty_like(x), "Meta")
library.impl("tell_within", lambda x: RAW.tell_seen(x) * 1, "CPU")
library.impl("change_within", lambda x: torch.ops.framejit_test_raw.change_seen(x) * 1, "CPU")
READING = [reads_what_was_written, RAW.tell_seen]
CHANGING = [changes_what_is_read, RAW.change_seen]


def run_seen(g, make=lambda: torch.ones(2)):
    global of_module
    Seen.of_class, Seen.of_dict, Seen.of_list, of_module, seen_object.value, held.of_slot = 0, {"a": 0}, [], 0, 0, 0
    table_of_module.zero_()
    return [g(make()).tolist() for _ in range(4)], Seen.of_class, Seen.of_dict, Seen.of_list, of_module, seen_object.value, held.of_slot


def write_seen(what, x):
    global of_module
    if what == "class":
        Seen.of_class += 1
    elif what == "dict":
        Seen.of_dict["a"] += 1
    elif what == "list":
        Seen.of_list.append(3)
    elif what == "object":
        seen_object.value += 2
    elif what == "slot":
        held.of_slot += 1
    elif what == "tensor":
        x.given = 5
    else:
        of_module += 1
    return x


def read_seen(what):
    if what == "class":
        return Seen.of_class
    if what == "dict":
        return Seen.of_dict["a"]
    if what == "list":
        return len(Seen.of_list)
    if what == "object":
        return seen_object.value
    if what == "slot":
        return held.of_slot
    return table_of_module if what == "tensor" else of_module


WHAT = ["class", "dict", "list", "object", "slot", "tensor", "global"]


@pytest.mark.parametrize("op", READING)
@pytest.mark.parametrize("what", WHAT)
def test_a_kernel_sees_what_was_written_before(what, op):
    def f(x):
        return op(write_seen(what, x))

    compiled = framejit.compile(f)
    assert run_seen(compiled) == run_seen(f)
    assert framejit.cache_info(compiled)["breaks"] >= 1
    with pytest.raises(framejit.errors.BreakError, match="an operator in Python behind a write that it may read"):
        framejit.compile(f, fullgraph=True)(torch.ones(2))


@pytest.mark.parametrize("op", CHANGING)
@pytest.mark.parametrize("what", WHAT)
def test_what_a_kernel_changed_is_read_behind_it(what, op):
    def f(x):
        before = x * 2
        y = op(x)
        return y * read_seen(what) + before

    compiled = framejit.compile(f)
    assert run_seen(compiled) == run_seen(f)
    assert framejit.cache_info(compiled)["breaks"] >= 1
    with pytest.raises(framejit.errors.BreakError, match="an operator in Python may have changed"):
        framejit.compile(f, fullgraph=True)(torch.ones(2))


def test_a_kernel_writes_to_a_tensor_that_was_read():
    def f(x):
        before = table_of_module * x
        return changes_what_is_read(x) + table_of_module + before

    compiled = framejit.compile(f)
    assert run_seen(compiled) == run_seen(f)
    assert framejit.cache_info(compiled)["breaks"] >= 1


@pytest.mark.parametrize("op", [*CHANGING, RAW.change_within])
def test_what_no_kernel_reaches_stays_in_the_graph(op):
    """Writes before a kernel, and reads behind it, of what its code does not name."""
    own = types.SimpleNamespace(count=0, scale=2.0, given=[1.0])

    def f(x):
        own.count += 1
        y = op(x) * own.scale + own.count + own.given[0] + len(fresh_name)
        own.given = [own.given[0] + 1]
        return y

    def run(g):
        own.count, own.given = 0, [1.0]
        return run_seen(g), own.count, own.given

    compiled = framejit.compile(f, fullgraph=True)
    assert run(compiled) == run(f)
    assert framejit.cache_info(compiled)["breaks"] == 0


@pytest.mark.parametrize("op", [RAW.tell_within, RAW.change_within])
def test_a_kernel_that_calls_another_one(op):
    def f(x):
        Seen.of_class += 1
        y = op(x)
        return y * seen_object.value

    compiled = framejit.compile(f)
    assert run_seen(compiled) == run_seen(f)


def test_what_a_kernel_raises_is_traced_to_its_line():
    import traceback

    compiled, lines = framejit.compile(straight), []
    for g in (straight, compiled, compiled, compiled):
        fails.clear()
        g(torch.ones(3), [])
        fails["b"] = True
        with pytest.raises(ValueError) as caught_error:
            g(torch.ones(3), [])
        lines.append([e.lineno for e in traceback.extract_tb(caught_error.tb) if e.filename == __file__][1:])
    assert lines[1:] == lines[:1] * 3


def test_what_was_done_in_a_run_that_failed_answers_no_later_call():
    def f(x):
        y = told(x, "a")
        return y[torch.tensor([7 if fails.get("index") else 0])]

    compiled = framejit.compile(f)
    for k in range(6):
        fails.clear()
        fails["index" if k % 2 else "a"] = k > 2
        calls.clear()
        try:
            compiled(torch.full((3,), float(k)))
        except (ValueError, IndexError):
            pass
        assert calls == [("a", 3.0 * k)]
        calls.clear()
        assert told(torch.full((3,), 50.0), "free").tolist() == [51.0] * 3 and calls == [("free", 150.0)]


def test_operators_are_as_they_were_where_nothing_runs():
    """Kernels of torch.library.Library.impl are noted where their operators are called, while a compiled function runs."""
    before, captured = vars(RAW.told)["_op"], framejit.compile(lambda x: RAW.told(x, "a"))
    for name in ("", "", "a", ""):
        fails.clear()
        fails[name] = True
        calls.clear()
        try:
            assert captured(torch.ones(3)).tolist() == [2.0] * 3
        except ValueError:
            assert name
        assert calls == [("a", 3.0)] and vars(RAW.told)["_op"] is before
    assert captured.cache_info()["breaks"] == 0


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("told_", [told_, RAW.told_])
def test_an_operator_that_writes_once(view, told_):
    def f(x):
        y = told_(x, "w")
        return x * 2 if y is None else y * 2

    compiled = framejit.compile(f)
    for k in range(4):
        runs = []
        x = torch.ones(5)[1:] if view else torch.ones(4)
        for g in (f, compiled):
            calls.clear()
            fails.clear()
            fails["w"] = k == 2
            before, version = x.clone(), x._version
            try:
                out = g(x)
            except ValueError as error:
                out = str(error)
            runs.append((out if isinstance(out, str) else out - 2 * before, (x - before), x._version > version, list(calls)))
        same(runs[0], runs[1])


layers_by_name, layer_calls = {}, 0


def of_its_layer(x, name):
    """As serving engines do: the kernel finds its layer by a name, counts, and writes to the layer's cache."""
    global layer_calls
    layer_calls += 1
    layer = layers_by_name[name]
    layer.cache[layer_calls % 2] = x.sum()
    return x * layer.linear.weight.sum().tanh() + layer.cache.sum()


library.define("of_its_layer(Tensor x, str name) -> Tensor")
library.impl("of_its_layer", of_its_layer, "CPU")
library.impl("of_its_layer", lambda x, name: torch.empty_like(x), "Meta")


def test_a_kernel_that_finds_its_layer_stays_in_the_graph():
    global layer_calls

    class Layer(torch.nn.Module):
        def __init__(self, name):
            super().__init__()
            self.linear, self.name, self.norm = torch.nn.Linear(4, 4), name, torch.nn.LayerNorm(4)
            self.cache, self.eps = torch.zeros(2), 1e-3

        def forward(self, x):
            return RAW.of_its_layer(self.linear(self.norm(x)), self.name) + self.linear.weight.sum() + self.eps

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Layer(str(i)) for i in range(4)))
    layers_by_name.update((layer.name, layer) for layer in model)
    compiled, results = framejit.compile(model, fullgraph=True), []
    with torch.no_grad():
        for g in (model, compiled):
            layer_calls = 0
            for layer in model:
                layer.cache.zero_()
            results.append([(g(torch.arange(8.0).view(2, 4) * (k + 1)), [layer.cache.clone() for layer in model], layer_calls) for k in range(3)])
    layers_by_name.clear()
    same(*results)
    info = framejit.cache_info(compiled)
    assert info["captures"] == 1 and info["breaks"] == 0


def keeper(name, keep):
    """An operator whose kernel keeps what `keep` makes of its argument."""
    kept = []

    @custom_op(f"framejit_test::keeps_{name}", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        kept.append(keep(x))
        return x.clone()

    operator.register_fake(lambda x: torch.empty_like(x))
    return operator, kept


KEEPING = {"it": lambda x: x, "view": lambda x: x[1:], "array": lambda x: x.numpy(), "memory": lambda x: memoryview(x.numpy()), "storage": lambda x: x.untyped_storage()}


@pytest.mark.parametrize("n", [8, 100_000])
@pytest.mark.parametrize("name", KEEPING)
def test_what_a_kernel_keeps_stays_as_it_is(name, n):
    """It may be kept, with all views of its memory: no later step and no later run may write there."""
    operator, kept = keeper(f"{name}_{n}", KEEPING[name])

    def f(x):
        t = torch.tanh(x * 2)
        u = operator(t)
        part = operator(t.view(2, -1).t()[2:] * 3)
        return torch.sin(u) + 1, part.exp().sum(), operator(x[1:]).cos()

    def run(g):
        kept.clear()
        results = [g(torch.linspace(-1, 1, n) + k) for k in range(4)]
        fresh = [torch.full((n,), 7.0) for _ in range(20)]  # what is free is written
        read = {"memory": lambda k: torch.frombuffer(k.tobytes(), dtype=torch.float32), "storage": lambda k: torch.empty(0).set_(k)}.get(name, torch.as_tensor)
        return results, [read(k).clone() for k in kept], len(fresh)

    expected = run(f)
    compiled = framejit.compile(f)
    same(run(compiled), expected)
    assert framejit.cache_info(compiled)["segments"] > 0
    kept.clear()
    assert "0 break(s)" in str(framejit.explain(f)(torch.linspace(-1, 1, n)))


def test_a_kernel_sees_which_memory_is_which():
    """Two operators that are given one tensor are given one object; attributes of it stay."""
    met = []

    @custom_op("framejit_test::meets", mutates_args=())
    def meets(x: torch.Tensor) -> torch.Tensor:
        met.append((getattr(x, "tag", None), x.storage_offset(), x.untyped_storage().nbytes()))
        x.tag = len(met)
        return x.clone()

    meets.register_fake(lambda x: torch.empty_like(x))

    def f(x):
        t = torch.tanh(x * 2)
        return meets(t) + meets(t) * 2

    def run(g):
        met.clear()
        return [g(torch.arange(8.0) + k) for k in range(3)], list(met)

    compiled = framejit.compile(f)
    same(run(compiled), run(f))
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_a_kernel_asks_whether_gradients_are_wanted():
    @custom_op("framejit_test::by_gradients", mutates_args=())
    def by_gradients(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if x.requires_grad else 3) + (1 if x.is_leaf else 0)

    by_gradients.register_fake(lambda x: torch.empty_like(x))
    by_gradients.register_autograd(lambda ctx, grad: grad * 2)

    def f(x):
        return torch.sin(by_gradients(x * 2) + by_gradients(x))

    def run(g, wanted):
        return [g((torch.arange(4.0) + k).requires_grad_(wanted)).detach() for k in range(3)]

    compiled = framejit.compile(f)
    same(run(compiled, False), run(f, False))
    assert framejit.cache_info(compiled)["segments"] == 1 and framejit.cache_info(compiled)["breaks"] == 0
    same(run(compiled, True), run(f, True))
    assert framejit.cache_info(compiled)["breaks"] > 0


def test_a_kernel_lets_go_of_what_the_function_holds():
    """It replaces an object that the guards have found, and that the frame goes on with behind the graph."""
    log, held = [], {}

    class Thing:
        def __del__(self):
            log.append("gone")

    @custom_op("framejit_test::replaces", mutates_args=())
    def replaces(x: torch.Tensor) -> torch.Tensor:
        held["thing"] = Thing()
        return x * 2

    replaces.register_fake(lambda x: torch.empty_like(x))

    def f(x):
        thing = held.get("thing")
        y = replaces(x)
        log.append("behind")
        return y + 1, thing

    def run(g):
        held["thing"] = Thing()
        log.clear()
        kept = [g(torch.arange(4.0) + k) for k in range(4)]
        return [y for y, _ in kept], [type(thing).__name__ for _, thing in kept], list(log)

    compiled = framejit.compile(f)
    same(run(compiled), run(f))
    assert framejit.cache_info(compiled)["segments"] > 0


@pytest.mark.parametrize("place", ["graph", "input"])
@pytest.mark.parametrize("give", [lambda x: x, lambda x: x.float(), lambda x: x[:4], lambda x: x[:1].expand(8), lambda x: x.view(torch.int32)], ids=["it", "float", "part", "expanded", "bits"])
def test_what_a_kernel_must_not_return_is_refused(give, place):
    """It is its argument, or lies in its memory: torch raises, also where the run has ended and the call is answered from what was noted."""
    called = []

    @custom_op(f"framejit_test::gives_{len(given_back)}", mutates_args=())
    def gives(x: torch.Tensor) -> torch.Tensor:
        called.append(1)
        return give(x)

    given_back.append(gives)
    gives.register_fake(lambda x: give(x).clone())

    def f(x):
        return torch.sin(gives(x * 2 if place == "graph" else x)) + 1

    compiled = framejit.compile(f)
    for g in f, compiled, compiled, compiled:
        called.clear()
        with pytest.raises(RuntimeError, match="may not alias any inputs"):
            g(torch.arange(8.0))
        assert len(called) == 1


given_back = []


def sets_data(x):
    y = x.clone()
    x.data = torch.ones(8)
    return y


MOVES = {"set": lambda x: (x.clone(), x.set_(torch.ones(8)))[0], "resize": lambda x: (x.clone(), x.resize_(100_000).fill_(3))[0], "data": sets_data}


@pytest.mark.parametrize("name", MOVES)
def test_a_kernel_has_its_argument_lie_elsewhere(name):
    """A run would go on with the memory that was let go of."""
    move = MOVES[name]

    @custom_op(f"framejit_test::moves_{name}", mutates_args=())
    def moves(x: torch.Tensor) -> torch.Tensor:
        return move(x)

    moves.register_fake(lambda x: torch.empty_like(x))

    def f(x):
        t = x * 2
        u = moves(t)
        return torch.sin(u) + t[:8].exp()

    compiled = framejit.compile(f)
    same([compiled(torch.arange(8.0) + k) for k in range(4)], [f(torch.arange(8.0) + k) for k in range(4)])
    assert framejit.cache_info(compiled)["breaks"] > 0


@custom_op("framejit_test::add_each_", mutates_args=("xs",))
def add_each_(xs: list[torch.Tensor]) -> None:
    for i, x in enumerate(xs):
        x.add_(i + 1)


held = types.SimpleNamespace(xs=None)


def of_an_attribute(xs):
    held.xs = xs
    add_each_(held.xs)
    return xs[0] * 2


@pytest.mark.parametrize("f", [
    lambda xs: (add_each_(xs), xs[0] + 1), lambda xs: (xs[1].mul_(3), add_each_(xs), xs[1].mul_(2)), lambda xs: (add_each_(xs[1:]), xs[1] * 2),
    lambda xs: (add_each_(xs), add_each_(list(xs)), xs[0] + xs[1]), lambda xs: add_each_(held.xs), of_an_attribute,
])
@pytest.mark.parametrize("kind", [list, tuple])
def test_writes_to_tensors_in_a_list_from_outside(f, kind):
    def run(call):
        facts = []
        for k in range(3):
            xs = held.xs = kind([torch.zeros(2) + k, torch.ones(2)])
            result = call(xs)
            facts.append((str(result), str(xs)))
        return facts

    compiled = framejit.compile(f, fullgraph=True)
    assert run(compiled) == run(f)
    assert framejit.cache_info(compiled)["outcomes"]["run"]["graph"] == 3


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize("kind", [Pair, type("Own", (list,), {"__init__": lambda self, *xs: list.__init__(self, xs)})])
def test_writes_to_tensors_in_a_subclass_of_list_or_tuple(kind):
    def f(xs, y):
        add_each_(xs)
        made = kind(y * 2, y + 1)
        add_each_(made)
        return xs[0] + xs[1], made[0] - made[1]

    compiled = framejit.compile(f)
    for k in range(3):
        one, other, y = kind(torch.zeros(2) + k, torch.ones(2)), kind(torch.zeros(2) + k, torch.ones(2)), torch.ones(2) * k
        assert str(compiled(one, y)) == str(f(other, y)) and str(one) == str(other)


@pytest.mark.parametrize("f", [
    lambda x: (add_each_([x, x]), x * 2), lambda x: (add_each_([x[0], x[1]]), x * 2), lambda x: (add_each_(list(x.unbind())), x),
    lambda x: (y := x * 2, add_each_([y[0], y]), y), lambda x: (add_each_([x[:1], x]), x),
])
def test_writes_to_tensors_of_one_list_that_share_memory(f):
    compiled = framejit.compile(f)
    for k in range(3):
        x, y = torch.zeros(2, 2) + k, torch.zeros(2, 2) + k
        assert str(compiled(x)) == str(f(y)) and x.tolist() == y.tolist()
    assert framejit.cache_info(compiled)["breaks"]
