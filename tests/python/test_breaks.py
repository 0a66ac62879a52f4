"""One function for every row of the break table: the break is reported with that id, and the result is eager's."""

import itertools
import logging
import random
import sys
import time

import pytest

torch = pytest.importorskip("torch")

NUMBERS = itertools.count()


class Stream:
    """Its output is the program's own code."""

    def write(self, text):
        sys.stdout.write(text)


STREAM = Stream()


def tensor_bool(x):
    y = x + 1
    if y.sum() > 0:
        return y * 2
    return y * 3


def tensor_item(x):
    y = x + 1
    n = round(y.sum().item(), 2)
    return y * n


def unknown_call(x):
    y = x + 1
    t = time.strftime("%Y", (2000, 1, 1, 0, 0, 0, 0, 0, 0))
    return y * int(t)


def side_effect(x):
    y = x + 1
    next(NUMBERS)
    return y * 2


def output(x):
    y = x + 1
    print("in the middle", file=STREAM)
    return y * 2


def instruction(x):
    y = x + 1

    class Local:
        factor = abs(2)

    return y * Local.factor


async def _coroutine():
    return 1


def generator(x):
    y = x + 1
    c = _coroutine()
    c.close()
    return y * 2


def data_dependent(x):
    y = x + 1
    return torch.unique(y, dim=1)


def framework_error(x):
    y = x + 1
    try:
        y @ torch.ones(77)
    except RuntimeError:
        y = y * 2
    return y


def exception(x):
    y = x + 1
    try:
        {}["missing"] + _raise()
    except KeyError:
        return y * 2


def _raise():
    raise KeyError("never reached")


def raises(x):
    y = x + 1
    _raise()
    return y


def import_inside(x):
    y = x + 1
    import framejit_no_such_module_yet

    return y * framejit_no_such_module_yet.FACTOR


def iterator_state(x):
    y = x + 1
    gen = (y * i for i in range(3))
    first = next(gen)
    time.sleep(0)
    return first + next(gen)


STATE = random.Random(3).getstate()


def random_call(x):
    y = x + 1
    random.setstate(STATE)
    return y * random.random()


def autograd_call(x):
    y = x + 1
    w = torch.ones(3, requires_grad=True)
    with torch.enable_grad():
        (w * 2).sum().backward()
    return y + w.grad


def tensor_protocol(x):
    y = x + 1
    return complex(y.sum()), y * 2


def thread_state(x):
    y = x + 1
    torch.set_default_dtype(torch.float64)
    z = y @ y + torch.ones(1)
    torch.set_default_dtype(torch.float32)
    return z.float()


CASES = [
    ("FJ0001", tensor_bool), ("FJ0002", tensor_item), ("FJ0003", unknown_call), ("FJ0004", side_effect), ("FJ0005", output),
    ("FJ0007", instruction), ("FJ0008", generator), ("FJ0009", data_dependent), ("FJ0010", framework_error),
    ("FJ0016", iterator_state), ("FJ0017", random_call), ("FJ0018", autograd_call), ("FJ0019", tensor_protocol),
    ("FJ0022", thread_state),
]  # fmt: skip


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=1e-5, atol=1e-5)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def ids(fj, compiled):
    data = fj._framejit.explain_data(compiled)
    return [r.split("]")[0].removeprefix("break[") for r in data["break_reasons"]], data


@pytest.mark.parametrize("identifier, fn", CASES, ids=[c[0] for c in CASES])
def test_row(fresh, identifier, fn, capsys):
    x = torch.ones(3, 3)
    with torch.no_grad():
        random.seed(1)
        expected = fn(x)
        expected_out = capsys.readouterr().out
        compiled = fresh.compile(fn)
        for _ in range(3):
            random.seed(1)
            assert same(expected, compiled(x))
            assert capsys.readouterr().out == expected_out
    found, _ = ids(fresh, compiled)
    assert identifier in found, found


def test_a_tensor_of_vmap_that_is_kept(fresh):
    """FJ0016 is no matter of generators here: its note says what is."""
    kept = []

    def row(r):
        kept.append(r * 2)
        return r.sum()

    text = str(fresh.explain(lambda x: torch.vmap(row)(x) + 1)(torch.ones(3, 4)))
    first = text[text.index("break[FJ0016]") :].split("break[", 2)[1]
    assert "a tensor of a custom function or of torch.vmap" in first and "only inside of torch.vmap" in first, first


def test_exception_leaves(fresh):  # FJ0011
    compiled = fresh.compile(raises)
    for _ in range(2):
        with torch.no_grad(), pytest.raises(KeyError) as info:
            compiled(torch.ones(3))
    assert [t.name for t in info.traceback][-2:] == ["raises", "_raise"]
    assert "FJ0011" in ids(fresh, compiled)[0]


def test_arguments_that_torch_refuses(fresh):
    """numpy.sum calls a tensor's method with out=None, which torch's methods do not take."""
    numpy = pytest.importorskip("numpy")
    for f in (lambda x: x.sum(0, out=None), lambda x: numpy.sum(x * 2)):
        compiled = fresh.compile(f)
        for _ in range(3):
            with pytest.raises(TypeError):
                compiled(torch.ones(3))
    assert fresh.compile(lambda x: torch.sum(x * 2, 0, out=None))(torch.ones(3)) == 6


def test_import(fresh, tmp_path, monkeypatch):  # FJ0015
    (tmp_path / "framejit_no_such_module_yet.py").write_text("FACTOR = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    compiled = fresh.compile(import_inside)
    with torch.no_grad():
        assert same(compiled(torch.ones(3)), torch.full((3,), 6.0))
    assert "FJ0015" in ids(fresh, compiled)[0]


def test_unknown_origin(fresh):  # FJ0006
    def fn(x):
        y = x + 1
        return y * (id(object()) * 0 + 2)

    compiled = fresh.compile(fn)
    with torch.no_grad():
        assert same(compiled(torch.ones(3)), torch.full((3,), 4.0))
    assert "FJ0006" in ids(fresh, compiled)[0]


def test_subclass(fresh):  # FJ0012
    class Mine(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(*[a.inner if isinstance(a, cls) else a for a in args], **kwargs or {})

    def fn(x):
        return x + 1

    compiled = fresh.compile(fn)
    x = Mine(torch.ones(3))
    assert torch.equal(compiled(x), torch.full((3,), 2.0))
    assert "FJ0012" in ids(fresh, compiled)[0]


def test_unsupported_tensor(fresh):  # FJ0013
    def fn(x):
        return x * 2

    compiled = fresh.compile(fn)
    x = torch.eye(4).to_sparse_bsr((2, 2))
    with torch.no_grad():
        assert torch.equal(compiled(x).to_dense(), torch.eye(4) * 2)
    assert "FJ0013" in ids(fresh, compiled)[0]


def test_unroll(fresh):  # FJ0014
    def fn(x):
        n = 0
        for i in range(3000):
            n += i
        return x + n

    before = fresh.config.max_unroll
    fresh.config.max_unroll = 1000
    try:
        compiled = fresh.compile(fn)
        with torch.no_grad():
            assert same(compiled(torch.ones(3)), fn(torch.ones(3)))
        assert "FJ0014" in ids(fresh, compiled)[0]
    finally:
        fresh.config.max_unroll = before


def test_depth(fresh):  # FJ0021
    def down(x, n):
        return x if n == 0 else down(x + 1, n - 1)

    before = fresh.config.max_depth
    fresh.config.max_depth = 20
    try:
        compiled = fresh.compile(lambda x: down(x, 40))
        with torch.no_grad():
            assert same(compiled(torch.zeros(3)), torch.full((3,), 40.0))
        assert "FJ0021" in ids(fresh, compiled)[0]
    finally:
        fresh.config.max_depth = before


def test_limit(fresh, capfd):  # FJ0020
    def fn(x, k):
        return x + len(k)

    before = fresh.config.max_entries
    fresh.config.max_entries = 4
    try:
        compiled = fresh.compile(fn)
        with torch.no_grad():
            for k in range(8):
                assert same(compiled(torch.ones(3), "k" * k), torch.ones(3) + k)
        assert "FJ0020" in ids(fresh, compiled)[0]
        assert "FJ0020" in capfd.readouterr().err
        assert compiled.cache_info()["segments"] == 4
    finally:
        fresh.config.max_entries = before


def test_logging(fresh, caplog):
    def fn(x):
        y = x + 1
        logging.getLogger("framejit.test").warning("here")
        return y * 2

    compiled = fresh.compile(fn)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        assert same(compiled(torch.ones(3)), torch.full((3,), 4.0))
    assert [r.message for r in caplog.records] == ["here"]
