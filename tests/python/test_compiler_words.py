"""The words of torch.compiler and torch._dynamo that programs and libraries use, one by one, with framejit installed; and
`torch.compiler.disable` where nothing is installed."""

import types

import framejit
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.filterwarnings("ignore:`torch.jit.script_method`"), pytest.mark.usefixtures("fresh")]

CHECKS = {}  # word -> function that checks it


def word(*names):
    def add(check):
        CHECKS.update(dict.fromkeys(names, check))
        return check

    return add


def x():
    return torch.arange(4.0)


def compiled_once(f, captures=1, breaks=0):
    info = framejit.cache_info(f)
    return (info["captures"], info["breaks"]) == (captures, breaks)


# --- torch.compiler ------------------------------------------------------------------------------------------------------
@word("compile")
def compile_words(name):
    f = torch.compiler.compile(lambda x: x.sin() + 1, fullgraph=True)
    assert torch.allclose(f(x()), x().sin() + 1) and compiled_once(f)


@word("reset", "_dynamo.reset")
def reset(name):
    f = torch.compile(lambda x: x + 1)
    f(x())
    assert compiled_once(f)
    (torch._dynamo if name.startswith("_dynamo") else torch.compiler).reset()
    assert torch.equal(f(x()), x() + 1) and framejit.cache_info(f)["segments"] == 1


@word("is_compiling", "is_dynamo_compiling", "_dynamo.is_compiling")
def is_compiling(name):
    ask = torch._dynamo.is_compiling if name.startswith("_dynamo") else getattr(torch.compiler, name)
    f = torch.compile(lambda x: x + (1 if ask() else 2), fullgraph=True)
    assert not ask() and torch.equal(f(x()), x() + 1) and not ask() and compiled_once(f)


@word("is_exporting")
def is_exporting(name):
    f = torch.compile(lambda x: x + (1 if torch.compiler.is_exporting() else 2), fullgraph=True)
    assert torch.equal(f(x()), x() + 2) and compiled_once(f)
    exported = torch.export.export(Asks(), (x(),)).module()
    assert torch.equal(exported(x()), x() + 1)


class Asks(torch.nn.Module):
    def forward(self, x):
        return x + (1 if torch.compiler.is_exporting() else 2)


@word("set_stance")
def set_stance(name):
    words = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile", "aot_eager_then_compile")
    for stance in words:
        torch.compiler.reset()  # what is compiled is found again by equal code
        f = torch.compile(lambda x: x * 2)
        with torch.compiler.set_stance(stance):
            if stance == "fail_on_recompile":
                with pytest.raises(framejit.RecompileError):
                    f(x())
            else:
                assert torch.equal(f(x()), x() * 2)
            captures = framejit.cache_info(f)["captures"]
            assert captures == (stance in ("default", "eager_then_compile", "aot_eager_then_compile")), stance
        assert torch.equal(f(x()), x() * 2) and compiled_once(f)
    with pytest.raises(framejit.OptionError):
        torch.compiler.set_stance("unheard of")
    with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):  # a promise that is not made use of
        assert torch.equal(f(torch.ones(3, dtype=torch.int64)), torch.full((3,), 2))


@word("allow_in_graph", "_dynamo.allow_in_graph")
def allow_in_graph(name):
    @torch.compiler.allow_in_graph
    def g(x):
        return x * 3

    f = torch.compile(lambda x: g(x) + 1, fullgraph=True)
    assert torch.equal(f(x()), x() * 3 + 1) and compiled_once(f)


@word("assume_constant_result", "_dynamo.assume_constant_result")
def assume_constant_result(name):
    @torch.compiler.assume_constant_result
    def g():
        return 3

    f = torch.compile(lambda x: x + g(), fullgraph=True)
    assert torch.equal(f(x()), x() + 3) and compiled_once(f)


@word("substitute_in_graph", "_dynamo.substitute_in_graph")
def substitute_in_graph(name):
    def original(x):
        return x * 3

    @(torch._dynamo if name.startswith("_dynamo") else torch.compiler).substitute_in_graph(original)
    def substitute(x):
        return x * 3

    f = torch.compile(lambda x: original(x) + 1)
    assert torch.equal(f(x()), x() * 3 + 1) and compiled_once(f)


@word("cudagraph_mark_step_begin", "set_enable_guard_collectives")
def steps(name):
    f = torch.compile(lambda x: x + 1)
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(f(x()), x() + 1)
    assert compiled_once(f)
    before = torch.compiler.set_enable_guard_collectives(True)
    assert torch.equal(f(x()), x() + 1)
    torch.compiler.set_enable_guard_collectives(before)


@word("wrap_numpy")
def wrap_numpy(name):
    numpy = pytest.importorskip("numpy")

    def g(a):
        return numpy.sum(a * 2, axis=0)

    eager = torch.compiler.wrap_numpy(g)
    f = torch.compile(lambda x: torch.compiler.wrap_numpy(g)(x) + 1)
    a = torch.ones(3, 2)
    for h in (eager, torch.compile(eager), lambda a: f(a) - 1):
        made = h(a)
        assert isinstance(made, torch.Tensor) and torch.equal(made, torch.full((2,), 6.0))


@word("nested_compile_region")
def nested_compile_region(name):
    @torch.compiler.nested_compile_region
    def region(x):
        return x.cos()

    f = torch.compile(lambda x: region(region(x)), fullgraph=True)
    assert torch.allclose(f(x()), x().cos().cos()) and compiled_once(f)


@word(
    "skip_guard_on_inbuilt_nn_modules_unsafe", "skip_guard_on_all_nn_modules_unsafe", "keep_tensor_guards_unsafe",
    "skip_guard_on_globals_unsafe", "skip_all_guards_unsafe", "keep_portable_guards_unsafe",
)  # fmt: skip
def guard_filters(name):
    """A promise that guards are not needed: they are kept, so results cannot differ."""
    f = torch.compile(lambda x, k: x * k, options={"guard_filter_fn": getattr(torch.compiler, name)})
    for k in (2, 3, 2):
        assert torch.equal(f(x(), k), x() * k)


@word("save_cache_artifacts", "load_cache_artifacts")
def artifacts(name):
    f = torch.compile(lambda x: x + 1)
    f(x())
    saved = torch.compiler.save_cache_artifacts()
    if saved is not None:
        torch.compiler.load_cache_artifacts(saved[0])
    torch.compiler.load_cache_artifacts(b"") if saved is None else None
    assert torch.equal(f(x()), x() + 1) and compiled_once(f)


@word("list_backends", "_dynamo.list_backends")
def list_backends(name):
    owner = torch._dynamo if name.startswith("_dynamo") else torch.compiler
    assert "framejit" in owner.list_backends()


@word("set_default_backend", "get_default_backend")
def default_backend(name):
    before = torch.compiler.get_default_backend()
    try:
        torch.compiler.set_default_backend("eager")
        theirs = torch.compile(lambda x: x + 1)
        torch.compiler.set_default_backend("framejit")
        ours = torch.compile(lambda x: x + 1)
    finally:
        torch.compiler.set_default_backend(before)
    assert torch.equal(theirs(x()), x() + 1) and torch.equal(ours(x()), x() + 1)
    assert not isinstance(theirs, type(ours)) and compiled_once(ours)


# --- torch._dynamo -------------------------------------------------------------------------------------------------------
@word("_dynamo.mark_dynamic", "_dynamo.maybe_mark_dynamic", "_dynamo.decorators.mark_unbacked")
def marks(name):
    mark, f = at(name), torch.compile(lambda x: x * 2 + x.shape[0])
    t = x()
    mark(t, 0)
    for t in (t, torch.ones(7), torch.ones(9)):
        assert torch.equal(f(t), t * 2 + t.shape[0])
    assert compiled_once(f)


@word("_dynamo.mark_static", "_dynamo.mark_static_address")
def static_marks(name):
    f = torch.compile(lambda x: x * 2)
    t = x()
    at(name)(t)
    assert torch.equal(f(t), t * 2) and compiled_once(f)
    t.add_(1)
    assert torch.equal(f(t), t * 2) and compiled_once(f)


@word("_dynamo.explain")
def explain(name):
    told = torch._dynamo.explain(lambda x: x.sin() + 1)(x())
    assert (told.graph_count, told.graph_break_count) == (1, 0)


@word("_dynamo.config")
def config(name):
    f = torch.compile(lambda x: x + 1)
    with torch._dynamo.config.patch(error_on_recompile=True, cache_size_limit=3, recompile_limit=3, suppress_errors=True):
        f(x())
        with pytest.raises(torch._dynamo.exc.RecompileError):
            f(x()[1:].double())
    assert torch.equal(f(x().double()), x().double() + 1)
    with torch._dynamo.config.patch(disable=True):
        g = torch.compile(lambda x: x + 2)
        assert torch.equal(g(x()), x() + 2)


@word("_dynamo.utils.counters")
def counters(name):
    torch._dynamo.utils.counters.clear()
    torch.compile(lambda x: x + 1)(x())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@word("_dynamo.OptimizedModule", "_dynamo.eval_frame.OptimizedModule")
def optimized_module(name):
    net = torch.nn.Linear(4, 4)
    compiled = torch.compile(net)
    assert isinstance(compiled, at(name)) and compiled._orig_mod is net and list(compiled.state_dict()) == list(net.state_dict(prefix="_orig_mod."))


@word("_dynamo.graph_break")
def graph_break(name):
    def f(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    f = torch.compile(f)
    assert torch.equal(f(x()), (x() + 1) * 2) and framejit.cache_info(f)["breaks"] <= 1


@word("disable", "_dynamo.disable")
def disable_words(name):
    seen = []

    def g(x):
        seen.append(torch.compiler.is_compiling())
        return x * 2

    g = at(name)(g)
    f = torch.compile(lambda x: g(x + 1) + 3)
    assert torch.equal(f(x()), (x() + 1) * 2 + 3) and framejit.cache_info(f)["breaks"] >= 1
    assert seen == [False]


@word("_dynamo.disallow_in_graph")
def disallow_in_graph(name):
    """What it is told concerns the peer's graphs: here the function is as good as any."""
    torch._dynamo.disallow_in_graph(torch.sub)
    f = torch.compile(lambda x: torch.sub(x, 1) * 2)
    assert torch.equal(f(x()), (x() - 1) * 2)
    torch._dynamo.allow_in_graph(torch.sub)


def at(name):
    value = torch if name.startswith("_dynamo") else torch.compiler
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", CHECKS)
def test_word(installed, name):
    at(name)  # this version of torch has it
    CHECKS[name](name)


def test_no_word_is_forgotten():
    apart = {"config", "load_compiled_function"}  # a folder of settings of the peer's back end; a file that the peer wrote
    assert set(torch.compiler.__all__) - set(CHECKS) == apart


# --- disable, with nothing installed ---------------------------------------------------------------------------------------
def told_to_stay_out(make):
    """What a disabled function saw of compilation, and what `f` around it gave."""
    seen = []

    def secret(x):
        seen.append(torch.compiler.is_compiling() or framejit.is_compiling())
        return inner(x) * 2

    def inner(x):
        seen.append(torch.compiler.is_compiling() or framejit.is_compiling())
        return x + 1

    return make(secret), seen




FORMS = {
    "torch.compiler": torch.compiler.disable,
    "with words": lambda f: torch.compiler.disable(reason="reads the clock")(f),
    "not recursive": lambda f: torch.compiler.disable(f, recursive=False),
    "torch._dynamo": lambda f: torch._dynamo.disable(f),
    "torch._disable_dynamo": torch._disable_dynamo,
    "ours": framejit.disable,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("behind_a_break", [False, True])
def test_disabled_functions_run_as_written(form, behind_a_break):
    secret, seen = told_to_stay_out(FORMS[form])

    def f(x):
        y = x - 1
        if behind_a_break and y.sum() > 0:
            y = y * 3
        return secret(y) + y

    compiled = framejit.compile(f)
    for _ in range(3):
        assert torch.equal(compiled(x() + 1), f(x() + 1))
    assert seen == [False] * 12
    info = framejit.cache_info(compiled)
    imports = form == "torch._disable_dynamo"  # torch._dynamo, in its first call
    assert info["breaks"] == 1 + behind_a_break + imports and info["captures"] <= 6 + imports
    with pytest.raises(framejit.BreakError, match="disabled"):
        framejit.compile(lambda x: secret(x) + 1, fullgraph=True)(x())


def test_disabled_methods_modules_and_roots():
    seen = []

    class Net(torch.nn.Module):
        @torch.compiler.disable
        def secret(self, x):
            seen.append(torch.compiler.is_compiling())
            return x * 3

        def forward(self, x):
            return self.secret(x) + 1

    class Whole(torch.nn.Module):
        @torch.compiler.disable
        def forward(self, x):
            seen.append(torch.compiler.is_compiling())
            return x * 5

    whole, apart = Whole(), torch.compiler.disable(Net())
    root = torch.compiler.disable(lambda x: (seen.append(torch.compiler.is_compiling()), x + 7)[1])
    for f in (Net(), lambda x: whole(x) - 1, lambda x: apart(x) - 1, whole, root):
        compiled = framejit.compile(f)
        for _ in range(2):
            assert torch.equal(compiled(x()), f(x()))
    assert seen and not any(seen)


def test_the_mark_of_a_function_may_change_later():
    """Whether a function is disabled is looked at in each call, both ways."""
    seen = []

    def secret(x):
        seen.append(torch.compiler.is_compiling())
        return x * 2

    def f(x):
        return secret(x - 1) + x

    def calls(disabled):
        seen.clear()
        for _ in range(3):
            assert torch.equal(compiled(x()), f_alone(x()))
        assert seen == [not disabled] * 3
        return framejit.cache_info(compiled)

    def f_alone(x):
        return (x - 1) * 2 + x

    compiled = framejit.compile(f)
    first = calls(disabled=False)
    assert first["breaks"] == 0 and first["captures"] == 1
    secret._torchdynamo_disable = True
    assert calls(disabled=True)["breaks"] == 1
    captures = framejit.cache_info(compiled)["captures"]
    secret._torchdynamo_disable = False
    assert calls(disabled=False)["captures"] == captures  # the first version holds again
    del secret._torchdynamo_disable
    assert calls(disabled=False)["captures"] == captures
    secret._torchdynamo_disable = True
    assert calls(disabled=True)["captures"] == captures

    framejit.reset()
    compiled = framejit.compile(f)  # disabled at first
    captures = calls(disabled=True)["captures"]
    secret._torchdynamo_disable = False
    assert calls(disabled=False)["captures"] > captures  # of its own frame: the graph around it still ends before the call


def test_a_disabled_root_is_told_of():
    """The function that is compiled is itself disabled: it runs as written, which its counts say; fullgraph=True refuses it."""
    for disable in (torch.compiler.disable, framejit.disable, torch.compiler.disable(reason="reads the clock")):
        framejit.reset()
        f = disable(lambda x: x * 2)
        compiled = framejit.compile(f)
        for n in range(1, 4):
            assert torch.equal(compiled(x()), x() * 2)
            info = framejit.cache_info(compiled)
            assert (info["captures"], info["breaks"], info["outcomes"]["run"]) == (0, 1, {"python": n})
        whole = framejit.compile(f, fullgraph=True)
        for _ in range(2):
            with pytest.raises(framejit.BreakError, match="(?s)is disabled.*test_compiler_words.py"):
                whole(x())


@pytest.mark.parametrize("disable", [torch.compiler.disable, framejit.disable])
def test_a_disabled_generator_runs_as_written(disable):
    """It runs behind the call that made it, piece by piece: what it calls is not captured then either."""
    seen = []

    def inner(x):
        seen.append(torch.compiler.is_compiling() or framejit.is_compiling())
        return x + 1

    @disable
    def parts(x):
        for k in range(3):
            yield inner(x) * k

    def loop(x):
        y = x * 2
        for part in parts(x):
            y = y + part
        return y

    def whole(x):
        return sum(parts(x)) * 2

    for f in (loop, whole):
        compiled = framejit.compile(f)
        for n in range(3):
            assert torch.equal(compiled(x() + n), f(x() + n))
        assert seen == [False] * 18
        seen.clear()
        assert framejit.cache_info(compiled)["segments"]
    codes = [code for f in (loop, whole) for code in framejit.compile(f).graphs]
    assert not any("+ 1" in text for text in codes)


def test_the_reason_is_told():
    @torch.compiler.disable(reason="reads the clock")
    def secret(x):
        return x * 2

    @framejit.disable(reason="looks at the frame")
    def ours(x):
        return x * 2

    for f, why in ((secret, "reads the clock"), (ours, "looks at the frame")):
        framejit.reset()  # both lambdas are one code
        told = framejit.explain(lambda x: f(x + 1) + 1)(x())
        assert len(told.break_reasons) == 1 and f"disabled: {why}" in told.break_reasons[0]


def test_torchs_own_disabled_functions_are_still_captured():
    """torch keeps its compiler out of some of its functions; what they call is the program's."""
    from torch.utils.checkpoint import checkpoint

    def f(x):
        return checkpoint(lambda y: y.sin() * 2, x, use_reentrant=False) + 1

    compiled = framejit.compile(f, fullgraph=True)
    assert torch.allclose(compiled(x()), f(x())) and compiled_once(compiled)


def test_disabled_generators_stay_disabled_beside_many_others():
    """What a generator calls is captured unless it is disabled: the living one's code is remembered however many come after it."""

    def graphs(disable):
        framejit.reset()

        def inner(x):
            return x.sin() + 1

        def parts(x):
            while True:
                yield inner(x) * 3

        def made(x, parts):
            return parts(x), x.cos() * 2

        def resumed(x, generator):
            return sum(part for part, _ in zip(generator, range(3))) * 2

        opened, asked, kept = framejit.compile(made), framejit.compile(resumed), []
        first = disable(parts)
        generator, _ = opened(x(), first)
        asked(x(), generator)
        for _ in range(1100):  # another code each
            kept.append(disable(types.FunctionType(parts.__code__.replace(), globals(), closure=parts.__closure__)))
            next(opened(x(), kept[-1])[0])
        for _ in range(3):
            assert torch.equal(asked(x(), generator), (x().sin() + 1) * 18)
        return any("sin" in text for text in asked.graphs)

    assert graphs(lambda f: f)
    assert not graphs(torch.compiler.disable)
