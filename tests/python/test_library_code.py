"""What programs call besides tensor functions: recurrent modules, logging, warnings, NumPy's error handling."""
import collections
import copy
import enum
import hashlib
import json
import logging
import re
import subprocess
import sys
import warnings
import weakref
import zlib

import pytest

import framejit

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


class Recurrent(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells = kind(8, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.last = torch.nn.Linear(32, 4)

    def forward(self, x):
        y, state = self.cells(x)
        return self.last(torch.relu(y)).sum(1), state


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN], ids=lambda k: k.__name__)
def test_recurrent_modules_are_one_graph(kind):
    torch.manual_seed(0)
    model = Recurrent(kind).eval()
    compiled = framejit.compile(model)
    with torch.no_grad():
        told = framejit.explain(model)(torch.randn(2, 5, 8))
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        for length in (5, 7, 5, 9):
            x = torch.randn(2, length, 8)
            torch.testing.assert_close(compiled(x), model(x))
        model.cells.weight_hh_l0 = torch.nn.Parameter(torch.randn_like(model.cells.weight_hh_l0))
        torch.testing.assert_close(compiled(x), model(x))
        model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()})
        torch.testing.assert_close(compiled(x), model(x))
    other = Recurrent(kind).eval()
    with torch.no_grad():
        torch.testing.assert_close(framejit.compile(other)(x), other(x))


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU], ids=lambda k: k.__name__)
def test_recurrent_modules_learn(kind):
    torch.manual_seed(0)
    model = Recurrent(kind)
    x = torch.randn(2, 5, 8)
    gradients = []
    for call in (model, framejit.compile(model)):
        model.zero_grad()
        call(x)[0].square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN], ids=lambda k: k.__name__)
def test_packed_sequences(kind):
    torch.manual_seed(0)
    cells = kind(3, 4, batch_first=True)

    def run(x, lengths):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = cells(packed)
        return torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)

    compiled = framejit.compile(run)
    for lengths in ([4, 2], [2, 4], [3, 3], [4, 1]):
        x = torch.randn(2, 4, 3)
        got, expected = compiled(x, torch.tensor(lengths)), run(x, torch.tensor(lengths))
        torch.testing.assert_close(got, expected)
        assert got[0].stride() == expected[0].stride()


def test_dead_weak_references_are_seen():
    import weakref

    class Owner:
        factor = 3

    owner = Owner()

    def f(x, ref):
        o = ref()
        return x * 2 if o is None else x * o.factor

    compiled, ref, x = framejit.compile(f), weakref.ref(owner), torch.ones(3)
    assert compiled(x, ref).tolist() == [3, 3, 3]
    owner.factor = 5
    assert compiled(x, ref).tolist() == [5, 5, 5]
    del owner
    assert compiled(x, ref).tolist() == [2, 2, 2]


def test_logging_costs_a_graph_only_where_it_logs():
    log = logging.getLogger("framejit.test_library_code")
    log.propagate = False
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append((record.getMessage(), record.funcName, record.lineno))

    log.addHandler(Keep())

    def f(x):
        y = x * 2
        log.debug("shape %s", tuple(y.shape))
        return y + 1

    compiled, x = framejit.compile(f), torch.ones(2)
    log.setLevel(logging.WARNING)
    told = framejit.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    assert compiled(x).tolist() == [3, 3] and not lines
    log.setLevel(logging.DEBUG)
    first = f.__code__.co_firstlineno
    for _ in range(3):
        assert compiled(x).tolist() == [3, 3]
    assert lines == [("shape (2,)", "f", first + 2)] * 3
    log.setLevel(logging.WARNING)
    assert compiled(x).tolist() == [3, 3] and len(lines) == 3


def test_warnings_are_given_each_time():
    def f(x):
        y = x * 2
        warnings.warn("careful", stacklevel=1)
        return y + 1

    compiled, x = framejit.compile(f), torch.ones(2)
    for _ in range(3):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert compiled(x).tolist() == [3, 3]
        assert [(str(w.message), w.lineno) for w in seen] == [("careful", f.__code__.co_firstlineno + 2)]


def test_numpy_error_handling_in_a_function():
    def f(x):
        y = x * 2
        with np.errstate(divide="ignore"):
            z = 1 / y
        return z + 1 / (y + 1)

    compiled, x = framejit.compile(f), np.array([0.0, 1.0, 4.0])
    told = framejit.explain(f)(x)
    assert told.graph_count >= 2 and told.graph_break_count <= 2, str(told)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(compiled(x), f(x))
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            compiled(np.array([-0.5, 1.0, 4.0]))


def test_default_devices():
    """As a scope in the function, around the call, and as the process's default."""

    def scoped(x):
        with torch.device("meta"):
            shape = torch.ones(3, 4)
            with torch.device("cpu"):
                y = torch.arange(3.0)
        return shape, y + x, torch.zeros(2)

    def plain(x):
        return torch.full((3,), 2.0) + 1, x + 1

    def described(result):
        return [(t.device, t.shape, None if t.is_meta else t.tolist()) for t in result]

    x = torch.ones(3)
    told = framejit.explain(scoped)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled, compiled_plain = framejit.compile(scoped), framejit.compile(plain)
    assert described(compiled(x)) == described(scoped(x))
    for _ in range(2):
        assert described(compiled_plain(x)) == described(plain(x))
        with torch.device("meta"):
            assert described(compiled_plain(x)) == described(plain(x))
            assert compiled_plain(x)[0].is_meta
        torch.set_default_device("cpu")
        try:
            assert described(compiled_plain(x)) == described(plain(x))
            assert described(compiled(x)) == described(scoped(x))
            framejit.reset()
            told = framejit.explain(plain)(x)
            assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        finally:
            torch.set_default_device(None)


def test_a_default_device_before_the_first_call(tmp_path):
    """Nothing has asked framejit for a tensor when the program sets it, as programs do in their first lines."""
    program = tmp_path / "program.py"
    program.write_text("""
import framejit, torch
torch.set_default_device("cpu")
def f(x):
    return (x + 1).relu() @ torch.ones(3, 3)
x = torch.ones(3, 3)
told = framejit.explain(f)(x)
assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
compiled = framejit.compile(f)
for _ in range(3):
    assert torch.equal(compiled(x), f(x))
assert framejit.cache_info(compiled)["outcomes"]["run"] == {"graph": 4}, framejit.cache_info(compiled)  # explain ran it once
""")
    subprocess.run([sys.executable, program], check=True)


def test_a_break_inside_of_a_default_device():
    seen = []

    def f(x):
        with torch.device("meta"):
            a = torch.ones(2)
            seen.append(str(torch.get_default_device()))
            b = torch.ones(3)
        return a, b, torch.ones(4), x + 1

    compiled, x = framejit.compile(f), torch.zeros(2)
    for _ in range(3):
        a, b, c, d = compiled(x)
        assert a.is_meta and b.is_meta and not c.is_meta and d.tolist() == [1, 1]
    assert seen == ["meta"] * 3 and str(torch.get_default_device()) == "cpu"


def test_attention_modules_with_masks_are_one_graph():
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False).eval()
    x, mask = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
    for arguments in ({}, {"src_key_padding_mask": mask}, {"mask": causal, "is_causal": True}):
        framejit.reset()
        with torch.no_grad():
            told = framejit.explain(model)(x, **arguments)
            assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
            torch.testing.assert_close(framejit.compile(model)(x, **arguments), model(x, **arguments))


def test_results_that_are_not_there():
    """Operands too large to be tried: torch's meta function makes an empty tensor of what is None."""
    attention, x = torch.nn.MultiheadAttention(1024, 16, batch_first=True).eval(), torch.randn(1, 5, 1024)

    def f(x):
        return attention(x, x, x, need_weights=False)

    with torch.no_grad():
        told = framejit.explain(f)(x)
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        assert "-> (%" in told.graphs[0], told.graphs[0]
        compiled = framejit.compile(f)
        for _ in range(2):
            torch.testing.assert_close(compiled(x)[0], f(x)[0])
            assert compiled(x)[1] is None


def test_torchs_old_constructors():
    """`new` takes a torch.Size for the size, but a tuple for data."""
    made = [
        lambda x: x.new(x.size()).zero_() + x,
        lambda x: x.new(x.shape).fill_(2),
        lambda x: x.new(torch.Size([4, 5])).zero_(),
        lambda x: x.new(x.size()[:1] + torch.Size([7])).zero_(),
        lambda x: x.new(torch.Size((x.shape[0] * 2,))).zero_(),
        lambda x: x.new(2, 3).zero_(),
        lambda x: x.new(*x.size()).zero_().add_(x),
        lambda x: x.new((2, 3)),
        lambda x: x.new([1, 2, 3]),
        lambda x: x.new(list(x.size())),
        lambda x: x.long().new(x.size()).zero_(),
        lambda x: x.new(),
    ]
    for f in made:
        compiled = framejit.compile(f)
        for x in (torch.arange(6.0).view(2, 3), torch.arange(20.0).view(4, 5), torch.arange(6.0).view(2, 3)):
            got, expected = compiled(x), f(x)
            assert (got.shape, got.dtype, got.stride()) == (expected.shape, expected.dtype, expected.stride())
            assert torch.equal(got, expected)
        assert compiled.cache_info()["segments"] and not compiled.cache_info()["breaks"]
    broken = [lambda x: x.new(x[0, 0].size()), lambda x: torch.Tensor(x.size()).zero_() + x, lambda x: torch.FloatTensor(2, 3).zero_() + x]
    for f in broken:
        x = torch.arange(6.0).view(2, 3)
        assert framejit.compile(f)(x).shape == f(x).shape


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("layers", [1, 2])
def test_padded_rows_of_an_encoder_are_zeros(layers):
    """Where the padding is on the right torch's encoder works on nested tensors, unless it is told that it is compiled."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers).eval()
    compiled = framejit.compile(lambda x, mask: model(x, src_key_padding_mask=mask) * 2)
    x = torch.randn(3, 5, 16)
    right, left = torch.zeros(2, 3, 5, dtype=torch.bool)
    right[0, 3:] = right[1, 4:] = left[2, :2] = True
    with torch.no_grad():
        told = framejit.explain(lambda x: model(x) * 2)(x)
        assert (told.graph_count, told.graph_break_count) == (1, 0)
        for mask in (right, left, right, None):
            expected = model(x, src_key_padding_mask=mask) * 2
            torch.testing.assert_close(compiled(x, mask), expected)
            assert (expected[0, 3:] == 0).all() == (mask is right)
    for mask in (right, left):
        torch.testing.assert_close(compiled(x, mask), model(x, src_key_padding_mask=mask) * 2)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    told = framejit.explain(lambda x, mask: model(x, src_key_padding_mask=mask))(x, right)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    torch.testing.assert_close(compiled(x, right), model(x, src_key_padding_mask=right) * 2)


def put_rows(x, i, v):
    y = x * 2
    y[1:, i] = v
    return y


def put_rows_and_read(x, i, v):
    y = x.clone()
    y[:2, i] = v
    return y.sum(0) - y.mean()


def put_into_a_view(x, i, v):
    y = x + 1
    y.t()[i, 1:] = v
    return y


def put_columns(x, i, v):
    y = x.clone()
    y[:, i] = v
    y[:, i] += 1
    return y


@pytest.mark.parametrize("f", [put_rows, put_rows_and_read, put_into_a_view, put_columns], ids=lambda f: f.__name__)
def test_stores_by_index_run_in_the_graph(fresh, capfd, f):
    torch = pytest.importorskip("torch")
    with fresh.config.patch(log="perf"):
        g = fresh.compile(f)
        for n in range(3):
            args = torch.randn(4, 5), torch.tensor([0, 3]), torch.tensor(7.0 + n)
            torch.testing.assert_close(g(*args), f(*args))
    assert "ended early" not in capfd.readouterr().err
    told = fresh.explain(g)(*args)
    assert (told.graph_count, told.graph_break_count) == (1, 0)


def test_modes_that_mean_nothing_are_refused(fresh):
    with pytest.raises(fresh.OptionError, match="max-autotune"):
        fresh.compile(mode="fastest")


def test_keyword_arguments_with_containers_of_tensors_are_gone_through():
    def inner(x, **words):
        if "rotary" not in words or "other" in words:
            return x
        unknown = [k for k, _ in words.items() if k not in ("rotary", "sizes")]
        words = {k: w for k, w in words.items() if k != "mask"}
        total = x
        for value in words.values():
            total = total + value[0]
        return total + sum(words["sizes"]) + len(unknown) + words["rotary"][1]

    def f(x, rotary, sizes, mask):
        return inner(x, rotary=rotary, sizes=sizes, mask=mask)

    compiled, x = framejit.compile(f, fullgraph=True), torch.ones(3)
    for sizes in ((1, 2), (1, 2), (4, 2)):
        args = x, (x + 1, x + 2), sizes, [x]
        assert torch.equal(compiled(*args), f(*args))


def test_code_in_c_that_reads_the_values_of_a_dict_sees_what_they_are():
    def f(x, pair):
        private = {"a": pair, "b": (3,)}
        joined = sum(private.values(), ())
        listed = list(private.items())
        return x * joined[0] + joined[-1] + listed[0][1][0], pair in private.values(), ("b", (3,)) in private.items()

    compiled, x = framejit.compile(f), torch.ones(3)
    for pair in ((2, 5), (2, 5), (4, 7), (x, x + 1), (x + 1, x)):
        if isinstance(pair[0], torch.Tensor):
            g, e = framejit.compile(lambda x, p: sum({"a": p}.values(), ())[0] + x), pair[0] + x
            assert torch.equal(g(x, pair), e)
        else:
            got, expected = compiled(x, pair), f(x, pair)
            assert torch.equal(got[0], expected[0]) and got[1:] == expected[1:]


def test_a_static_call_of_a_class():
    class Called:
        @staticmethod
        def __call__(x, then=lambda: 2):
            return x * then()

    called = Called()
    compiled = framejit.compile(lambda x: called(x) + called(x, then=lambda: 3), fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    Called.__call__ = staticmethod(lambda x, **words: x * 0)
    assert torch.equal(compiled(torch.ones(2)), torch.zeros(2))


def test_relative_imports_inside_a_function(fresh, tmp_path, monkeypatch):
    """As diffusers' models and transformers have them: what is loaded is found, wherever the package lies."""
    inner = tmp_path / "framejit_relative" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("FLAG = True\n")
    (inner.parent / "tools.py").write_text("def scaled(x):\n    return x * 2\n")
    (inner / "__init__.py").write_text("")
    (inner / "near.py").write_text("STEP = 1.0\n")
    (inner / "model.py").write_text(
        "def f(x):\n    from .. import FLAG, tools\n    from ..tools import scaled\n    from . import near\n    from .near import STEP as step\n"
        "    return scaled(x).sin() + step if FLAG else tools.scaled(x).cos() + near.STEP\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import framejit_relative
    from framejit_relative.inner import model

    x, compiled = torch.rand(4), fresh.compile(model.f)
    model.f(x)  # imported for the first time
    for flag in (True, False, True):
        framejit_relative.FLAG = flag
        torch.testing.assert_close(compiled(x), model.f(x))
    info = framejit.cache_info(compiled)
    assert len(compiled.graphs) == 2 and info["breaks"] == 0, (compiled.graphs, info)
    framejit_relative.inner.near.STEP = 3.0
    torch.testing.assert_close(compiled(x), model.f(x))
    monkeypatch.setitem(vars(model), "__package__", "framejit_relative.absent")
    for _ in range(2):
        with pytest.raises(ImportError):
            compiled(x)


@pytest.fixture(params=["site-packages", "target"])
def ledger(request, tmp_path, monkeypatch):
    """A library as installed ones lie, also by `pip install --target`, in whose code nothing can be compiled: thirty functions, each with a break, the last of which calls back."""
    lines = ["import sys"]
    for i in range(30):
        lines += [f"def step{i}(table, call):", "    sys._current_frames()", f"    table['n'] = table.get('n', 0) + {i}", f"    return step{i + 1}(table, call)"]
    lines += ["def step30(table, call):", "    sys._current_frames()", "    return call(table)"]
    lines += ["def scaled(x):", "    return (x.sin() * 2 + 1).relu()"]
    lines += ["def known(made):", "    sys._current_frames()", "    return made in seen or made.training", "seen = {len}"]
    folder = tmp_path / request.param / "ledger"
    folder.mkdir(parents=True)
    (tmp_path / request.param / "ledger-1.0.dist-info").mkdir()
    (folder / "__init__.py").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path / request.param)
    import ledger

    yield ledger
    del sys.modules["ledger"]


def test_libraries_in_which_nothing_is_found_are_left_to_python(fresh, ledger):
    def called(table):
        return (table["x"] * 3).cos() + table["n"]

    def f(x):
        table = {"x": x}
        y = ledger.step0(table, called)
        sys._current_frames()
        return ledger.scaled(y), table["n"]

    compiled = fresh.compile(f, options={"leave": True})
    for size in (5, 5, 7, 5):
        x = torch.randn(size)
        got, expected = compiled(x), f(x)
        torch.testing.assert_close(got[0], expected[0])
        assert got[1] == expected[1] == sum(range(30))
    # A few of the function's own. In the library there is no graph that could end.
    assert compiled.cache_info()["breaks"] <= 4
    told = fresh.explain(compiled)(torch.randn(5))
    assert "code of ledger is left to Python" in " ".join(told.notes)
    ran = "\n".join(told.graphs)
    assert "cos" in ran and "relu" in ran  # what it calls back, and what gets tensors, is compiled


def test_what_breaks_in_such_a_library_is_told_at_the_programs_line(fresh, ledger):
    def f(x):
        table = {}
        ledger.step20(table, len)
        y = x.sin()
        ledger.step25(table, len)
        ledger.step25(table, len), ledger.step26(table, len)
        return y.cos(), table["n"]

    compiled = fresh.compile(f, options={"leave": True})
    for size in (5, 5, 7, 5):
        torch.testing.assert_close(compiled(torch.ones(size)), f(torch.ones(size)))
    told = fresh.explain(compiled)(torch.randn(5))
    assert "code of ledger is left to Python" in " ".join(told.notes)
    first = f.__code__.co_firstlineno
    places = [re.search(r"--> (.*?):(\d+)", str(b)) for b in told.break_reasons]
    assert [(at[1], int(at[2]) - first) for at in places] == [(__file__, 2), (__file__, 4), (__file__, 5)], told.break_reasons
    assert "ledger/__init__.py:" in str(told.break_reasons[0])  # and what it was, in the library
    assert compiled.cache_info()["breaks"] == 3


def test_a_comprehension_that_breaks_goes_on_in_the_next_graph(fresh):
    """The list, set or dict was begun before the graph behind the break: what is added to it waits for the exit."""

    def f(x, n):
        made = [(sys._current_frames(), x * k + len(str(k)))[1] for k in range(n)]
        names = {(sys._current_frames(), str(k // 2))[1] for k in range(n)}
        return made, names, {(sys._current_frames(), str(k // 2))[1]: made[k] * 2 for k in range(n)}

    compiled = fresh.compile(f)
    for n in (3, 1, 5, 0, 3):
        x = torch.randn(4)
        got, expected = compiled(x, n), f(x, n)
        torch.testing.assert_close(got[0], expected[0])
        torch.testing.assert_close(got[2], expected[2])
        assert got[1] == expected[1] and list(got[2]) == list(expected[2])
    reasons = fresh.explain(f)(x, 3).break_reasons
    assert len(reasons) == 3 and all("_current_frames" in r for r in reasons), reasons


def test_arrays_that_are_asked_without_running_their_code(fresh):
    """inspect.getattr_static of an array, as runtime-checkable protocols ask it, and numpy's enumeration of ways to copy."""
    import inspect

    def f(x):
        found = inspect.getattr_static(x, "sum", None) is not None, inspect.getattr_static(x, "fit", 3)
        try:
            object.__getattribute__(x, "__dict__")
        except AttributeError as e:
            found += (str(e),)
        try:
            type.__dict__["__mro__"].__get__(x)
        except TypeError as e:
            found += (str(e),)
        y = np.array(x, copy=np._CopyMode.IF_NEEDED, dtype=np.float64)
        y += 1
        return np.array(y, copy=np._CopyMode.ALWAYS).sum(), np.asarray(y * 2), found

    compiled = fresh.compile(f)
    for x in (np.arange(4.0), np.arange(6.0), np.arange(3)):
        expected, got = f(x.copy()), compiled(x.copy())
        np.testing.assert_array_equal(got[1], expected[1])
        assert (got[0], got[2]) == (expected[0], expected[2])
    info = compiled.cache_info()
    assert info["breaks"] == 0 and len(compiled.graphs) >= 2, info


def test_signatures_are_bound_in_the_graph(fresh):
    """What a mappingproxy is a view of may be an OrderedDict."""
    import inspect
    import types

    def target(a, b=2, *c, d=3):
        pass

    signature = inspect.signature(target)
    view = types.MappingProxyType(collections.OrderedDict(a=1, b=2))
    behind = {}
    weights = types.MappingProxyType(behind)

    def f(x, k):
        bound = signature.bind(x, d=k)
        bound.apply_defaults()
        x = bound.arguments["a"] * bound.arguments["d"] + bound.arguments["b"]
        for name, value in view.items():
            x = x * value + len(name)
        return x * weights.get("w", 1)

    compiled = fresh.compile(f)
    for k in (2, 2, 5, 3):
        behind["w"] = k % 3
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, k), f(x, k))
    assert compiled.cache_info()["breaks"] == 0 and compiled.graphs


def test_slots_of_objects_that_are_dicts(fresh):
    """As frozendict keeps its hash: the slot is written at the exit, and no item."""

    class Frozen(dict):
        __slots__ = ("_hash", "count")

        def __hash__(self):
            try:
                return self._hash
            except AttributeError:
                object.__setattr__(self, "_hash", sum(map(hash, self.items())))
                return self._hash

    def f(x, d):
        d.count = d["a"] + 2
        return x * 2 + d.count, d["b"], d.get("count", 5)

    def hashed(x, d):
        return x + hash(d) % 7, sorted(d)

    x = torch.ones(2)
    for function, whole in ((f, True), (hashed, False)):
        compiled = fresh.compile(function)
        for names in ("ab", "ab", "abc", "ab"):
            ours, plain = Frozen.fromkeys(names, 1), Frozen.fromkeys(names, 1)
            for _ in range(2):
                got, expected = compiled(x, ours), function(x, plain)
                torch.testing.assert_close(got[0], expected[0])
                assert got[1:] == expected[1:]
                assert list(ours.items()) == list(plain.items())
                assert [getattr(ours, s, None) for s in Frozen.__slots__] == [getattr(plain, s, None) for s in Frozen.__slots__]
        assert compiled.graphs and (not whole or compiled.cache_info()["breaks"] == 0)


def test_modules_that_each_call_makes_are_no_versions_of_such_a_library(fresh, ledger, capfd):
    """What gets a module may be worth a graph, until a few captures of it have found none."""

    def f(x):
        ledger.step0({}, len)
        for _ in range(20):
            assert ledger.known(torch.nn.ReLU())
        return x.relu()

    compiled = fresh.compile(f, options={"leave": True})
    x, captures = torch.randn(4), []
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x.relu())
        captures.append(compiled.cache_info()["captures"])
    assert captures[-1] == captures[0], captures
    assert "FJ0020" not in capfd.readouterr().err


def test_the_head_of_a_loop_that_has_begun_is_no_break(fresh):
    def f(x, names):
        for name in names:
            x = x.sin() + len(name)
            sys._current_frames()
            x = x * 2
        return x

    compiled = fresh.compile(f)
    for names in (["a", "bc"], ["a", "bc", "d"], ["e"]):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, names), f(x, names))
    reasons = fresh.explain(compiled)(torch.randn(4), ["a", "bc"]).break_reasons
    assert len(reasons) == 1 and "_current_frames" in reasons[0], reasons
    assert compiled.cache_info()["breaks"] == 1

    def advanced(x, items):
        for item in items:  # an iterator of the caller's
            x = x.sin() + item
        return x

    compiled = fresh.compile(advanced)
    for _ in range(2):
        items = iter([1, 2, 3])
        next(items)
        torch.testing.assert_close(compiled(torch.ones(3), items), torch.ones(3).sin().add(2).sin().add(3))
        assert next(items, None) is None
    assert compiled.cache_info()["breaks"] >= 1


def test_tuples_are_appended_to_lists_from_outside(fresh):
    def f(x, stack):
        stack.append((1, 2, x))
        last = stack[-1]
        stack.pop()
        return last[2] + last[0], len(stack)

    kept = [(7, 8, 9)]
    compiled = fresh.compile(f)
    for _ in range(3):
        got = compiled(torch.ones(3), kept)
        assert got[0].tolist() == [2, 2, 2] and got[1] == 1 and kept == [(7, 8, 9)]
    assert compiled.cache_info()["breaks"] == 0 and len(compiled.graphs) == 1


@pytest.mark.clock
def test_a_library_that_computes_is_captured(fresh, ledger):
    def f(x):
        for _ in range(12):  # a break before each call, so that each begins in the library
            sys._current_frames()
            x = ledger.scaled(x)
        return x

    compiled = fresh.compile(f, options={"leave": True})
    for _ in range(3):
        x = torch.randn(6)
        torch.testing.assert_close(compiled(x), f(x))
    told = fresh.explain(compiled)(torch.randn(6))
    assert told.graph_count >= 1 and "left to Python" not in " ".join(told.notes)


class Colour(enum.Enum):
    RED = "red"

    def __str__(self):
        return "colour " + self.value


class Named(str, enum.Enum):
    A = "a"


class Shown:
    def __init__(self):
        self.n = 1

    def __repr__(self):
        return f"shown {self.n}"


def test_texts_that_a_class_makes_in_python():
    kept = [Colour.RED, Named.A, Shown()]

    def f(x):
        c, n, s = kept
        return x * 2, f"{c}|{n}|{s}", f"{c!s:>12}|{c!r}|{n!r}|{s!r}", f"{n:>5}"

    told = framejit.explain(f)(torch.ones(2))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = framejit.compile(f)
    for n in (1, 2, 2, 5):
        kept[2].n = n
        assert compiled(torch.ones(2))[1:] == f(torch.ones(2))[1:]
    kept[0], kept[2] = Named.A, Colour.RED
    assert compiled(torch.ones(2))[1:] == f(torch.ones(2))[1:]


def test_hashes_and_json_of_settings():
    settings = {"a": [1, 2.5, None, True, "\u00e9"], "b": {"c": (1, 2)}}

    def f(x, n):
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode())
        digest.update(b"more")
        return x * n, digest.hexdigest(), hashlib.md5(b"x").digest(), json.dumps({"n": n, "x": [n, 0.5]})

    told = framejit.explain(f)(torch.ones(2), 3)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = framejit.compile(f)
    for n in (3, 4, 5, 6, 0.5, 0.25):
        settings["a"][0] = n
        got, expected = compiled(torch.ones(2), n), f(torch.ones(2), n)
        assert got[1:] == expected[1:] and torch.equal(got[0], expected[0])


@pytest.mark.parametrize("read", [lambda a: hashlib.md5(a).hexdigest(), zlib.crc32], ids=["md5", "crc32"])
def test_bytes_of_arrays(read):
    """C code asks an array for its buffer. A stand-in has none, but that is no error of the program's."""

    def f(x):
        twice = x * 2
        try:
            return twice, read(x)
        except TypeError as e:
            return twice, str(e)

    compiled = framejit.compile(f, options={"leave": False})
    for k in range(4):
        x = np.arange(3, dtype=np.uint8) + k
        got, expected = compiled(x), f(x)
        assert got[1] == expected[1] and got[0].tolist() == expected[0].tolist()
    assert framejit.cache_info(compiled)["segments"] > 0


def test_json_of_what_is_no_json():
    class Strange(dict):
        def items(self):
            return [("own", 1)]

    kept = [Strange(a=1), {1, 2}, torch.ones(1), [object]]

    def f(x, k):
        try:
            return x + 1, json.dumps(kept[k], default=lambda o: type(o).__name__)
        except TypeError as e:
            return x + 1, str(e)

    compiled = framejit.compile(f)
    for k in range(len(kept)):
        assert compiled(torch.ones(2), k)[1] == f(torch.ones(2), k)[1]


def test_copies_of_defaultdicts():
    kept = collections.defaultdict(list, {"a": [1], "b": [2]})

    def f(x):
        other = copy.deepcopy(kept)
        other["c"].append(len(other["a"]))
        return x * len(other), other

    told = framejit.explain(f)(torch.ones(2))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = framejit.compile(f)
    for k in range(4):
        kept["a"].append(k)
        (x, got), (y, expected) = compiled(torch.ones(2)), f(torch.ones(2))
        assert got == expected and type(got) is type(expected) and got["a"] is not kept["a"] and torch.equal(x, y)


class KeepsState(torch.nn.Module):
    """The state of the last call is let go of while the graph asks weak references to weights."""

    def __init__(self):
        super().__init__()
        self.cells = torch.nn.LSTM(4, 8, 2, batch_first=True)
        self.begin(9)

    def begin(self, batch):
        self.state = torch.zeros(2, batch, 8), torch.zeros(2, batch, 8)

    def forward(self, x):
        self.begin(len(x))
        y, self.state = self.cells(x, self.state)
        return y


def one_graph(f, *args):
    told = framejit.explain(f)(*args)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


@pytest.mark.parametrize("grad", [False, True])
def test_a_recurrent_module_that_keeps_its_state(grad):
    torch.manual_seed(0)
    model, x = KeepsState(), torch.randn(3, 5, 4)
    plain = copy.deepcopy(model)
    with torch.set_grad_enabled(grad):
        one_graph(model, x)
        compiled = framejit.compile(model)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), plain(x))
            torch.testing.assert_close(model.state, plain.state)
        model.cells.weight_hh_l0 = torch.nn.Parameter(torch.zeros_like(model.cells.weight_hh_l0))
        plain.cells.weight_hh_l0 = torch.nn.Parameter(torch.zeros_like(model.cells.weight_hh_l0))
        torch.testing.assert_close(compiled(x), plain(x))


def test_what_a_weak_reference_names_may_be_let_go_of():
    class Holder:
        pass

    holder = Holder()
    holder.kept = torch.ones(3)
    reference = weakref.ref(holder.kept)

    def f(x):
        kept = holder.kept
        holder.kept = x + 1
        return x + (reference() is kept) + (reference() is None)

    compiled = framejit.compile(f)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), x + (reference() is not None) + (reference() is None))


def test_single_floats_of_numpy_are_numbers_beside_tensors():
    class Scale:
        by = np.float32(0.1)

    scale = Scale()

    def f(x):
        y = x.masked_fill(x > 1, float(np.finfo(np.float32).min)) + x * float(np.finfo(np.float32).eps)
        y = y * scale.by + scale.by * x - x / scale.by + x.double() * (scale.by * 2)
        return y, x.half() * scale.by, torch.tensor(scale.by), torch.tensor([scale.by, 1]), torch.full((2,), scale.by)

    x = torch.randn(4, 4)
    f(x)  # NumPy makes its table of float32
    compiled = framejit.compile(f)
    one_graph(f, x)
    for by in (0.1, 2.5, -0.0, 0.0, float("nan"), float("inf")):
        scale.by = np.float32(by)
        for got, wanted in zip(compiled(x), f(x), strict=True):
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got, wanted, equal_nan=True)
    torch.set_default_dtype(torch.float64)
    try:
        scale.by = np.float32(0.1)
        for got, wanted in zip(compiled(x), f(x), strict=True):
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got, wanted)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("number", [np.float32(2), np.bool_(True), np.int64(3), np.float64(2.5)])
def test_which_numbers_of_numpy_torch_assigns(number):
    def f(x, n):
        x[0] = n
        return x + 1

    def outcome(call):
        try:
            return call(torch.ones(3), number).tolist()
        except TypeError as e:
            return str(e)

    compiled = framejit.compile(f)
    for _ in range(3):
        assert outcome(compiled) == outcome(f)
    assert (framejit.cache_info(compiled)["breaks"] > 0) == isinstance(outcome(f), str)


def test_zeros_of_numpy_have_their_signs():
    def f(x, zero):
        return x * zero

    compiled, x = framejit.compile(f), torch.ones(3)
    for zero in (np.float32(0.0), np.float32(-0.0), np.float32(0.0)):
        assert torch.equal(torch.signbit(compiled(x, zero)), torch.signbit(f(x, zero)))


def test_what_is_empty_and_new_is_resized():
    def f(x):
        state = x.data.new().resize_((x.size(0), 3)).fill_(2)
        other = x.new()
        held = [other]
        other.resize_(2, 2).zero_()
        noise = x.new().resize_as_(x.t()).fill_(0.5)
        return state, held[0] + 1, x[:, :3] + state, noise, noise * x.t()

    x = torch.randn(4, 4)
    one_graph(f, x)
    for n in (4, 5, 6):
        x = torch.randn(n, 4)
        torch.testing.assert_close(framejit.compile(f)(x), f(x))
        assert [t._version for t in framejit.compile(f)(x)] == [t._version for t in f(x)]

    def seen(x):  # a view of what was there before stays empty
        state = x.new()
        view = state.view(0)
        return state.resize_(2).fill_(1), view

    assert framejit.compile(seen)(x)[1].shape == seen(x)[1].shape
