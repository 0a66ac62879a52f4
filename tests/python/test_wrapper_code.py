"""What the code of a class of wrappers reads and changes where torch runs it during a capture: beside gradients of the wrappers."""

import enum
import functools
import itertools
import random
import sys
import time
import types

import framejit
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")

SCALE, LOG, TABLE, KINDS, NUMBER = [1.0], [], {"scale": 1.0}, set(), 1.0

class Config:
    def __init__(self):
        self.scale, self.deep = 1.0, [1.0]


CONFIG, MODULE, NUMBERS, OTHER = Config(), types.ModuleType("of_tests"), itertools.count(), torch.ones(())
sys.modules["of_tests"] = MODULE


class Mode(enum.Enum):
    ON = 1

    def scale(self):
        return SCALE[0]


@functools.lru_cache
def cached(n):
    return SCALE[0] * n


@torch.no_grad()
def under_a_mode():
    return SCALE[0]


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return w * w * SCALE[0]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] * 2 * SCALE[0]


DETACH = torch.ops.aten.detach.default


def reader(read, effect=lambda cls, func: None, but=(DETACH,)):
    """A class of wrappers whose operations, but for some, are multiplied by a number that is read so."""

    class W(torch.Tensor):
        scale, count, log = 1.0, 0, []

        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

        def __init__(self, inner):
            self.inner = inner

        def __tensor_flatten__(self):
            return ["inner"], None

        @staticmethod
        def __tensor_unflatten__(inner, meta, size, stride):
            return W(inner["inner"])

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            def inner(x):
                return x.inner if isinstance(x, cls) else x

            effect(cls, func)
            out = func(*map(inner, args), **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                return W(out if func in but else out * read(cls))
            return out

    return W


def f(w):
    return (w * w).sin().sum()


def steps(W, g, change, log=lambda W: None, times=3):
    """Values, gradients and what was noted of calls, with a change of what the class reads behind some."""
    found = []
    for i in range(2 * times):
        if i == times:
            change(W)
        torch.manual_seed(0)
        w = W(torch.randn(3, dtype=torch.float64)).requires_grad_()
        y = g(w)
        y.backward()
        found.append((y.detach().inner.tolist(), w.grad.inner.tolist(), log(W)))
    return found


def put_back():
    SCALE[:], TABLE["scale"], CONFIG.scale, CONFIG.deep[:] = [1.0], 1.0, 1.0, [1.0]
    MODULE.scale = 1.0
    OTHER.fill_(1)
    cached.cache_clear()
    LOG.clear(), KINDS.clear()
    globals()["NUMBER"] = 1.0
    through_default.__defaults__ = (1.0,)
    change_variable()


def through_function(cls):
    return deep_function()[0]


def deep_function():
    return SCALE


def through_default(cls, scale=1.0):
    return scale


def variable():
    number = 1.0

    def read(cls):
        return number

    def change(W=None):
        nonlocal number
        number = 2.0 if W else 1.0

    return read, change


read_variable, change_variable = variable()


def change_default(W):
    through_default.__defaults__ = (2.0,)


def set_number(W):
    globals()["NUMBER"] = 2.0


def agree(make, change, log=lambda W: None, f=f):
    found = []
    for compiled in (False, True):
        put_back()
        W = make()
        g = framejit.compile(f) if compiled else f
        found.append(steps(W, g, change, log))
    for mine, theirs in zip(*found):
        assert mine[0] == pytest.approx(theirs[0])
        assert mine[1] == pytest.approx(theirs[1])
        assert mine[2] == theirs[2]
    put_back()
    return framejit.cache_info(g)


@pytest.mark.parametrize(
    "read, change",
    [
        (lambda cls: SCALE[0], lambda W: SCALE.__setitem__(0, 2.0)),
        (lambda cls: TABLE["scale"], lambda W: TABLE.update(scale=2.0)),
        (lambda cls: NUMBER, set_number),
        (lambda cls: cls.scale, lambda W: setattr(W, "scale", 2.0)),
        (lambda cls: getattr(cls, "scale"), lambda W: setattr(W, "scale", 2.0)),
        (lambda cls: CONFIG.scale, lambda W: setattr(CONFIG, "scale", 2.0)),
        (lambda cls: CONFIG.deep[0], lambda W: CONFIG.deep.__setitem__(0, 2.0)),
        (lambda cls: MODULE.scale, lambda W: setattr(MODULE, "scale", 2.0)),
        (lambda cls: Mode.ON.scale(), lambda W: SCALE.__setitem__(0, 2.0)),
        (lambda cls: under_a_mode(), lambda W: SCALE.__setitem__(0, 2.0)),
        (through_function, lambda W: SCALE.__setitem__(0, 2.0)),
        (functools.partial(through_function), lambda W: SCALE.__setitem__(0, 2.0)),
        (through_default, change_default),
        (read_variable, change_variable),
    ],
)
def test_what_the_code_reads_is_guarded(read, change):
    info = agree(lambda: reader(read), change)
    assert info["breaks"] == 0 and info["captures"] == 2 and info["outcomes"]["run"]["graph"] == 6


def count_in_class(cls, func):
    cls.count += 1


def count_in_global(cls, func):
    global NUMBER
    NUMBER += 1


def count_in_function(cls, func):
    count_in_function.calls = getattr(count_in_function, "calls", 0) + 1


def count_by_alias(cls, func):
    where = LOG
    where.append(str(func))


def count_in_object(cls, func):
    CONFIG.calls = getattr(CONFIG, "calls", 0) + 1


def count_in_module(cls, func):
    MODULE.calls = getattr(MODULE, "calls", 0) + 1


@pytest.mark.parametrize(
    "effect, log",
    [
        (lambda cls, func: LOG.append(str(func)), lambda W: list(LOG)),
        (count_by_alias, lambda W: list(LOG)),
        (lambda cls, func: cls.log.append(str(func)), lambda W: list(W.log)),
        (lambda cls, func: KINDS.add(str(func)) or TABLE.update(n=TABLE.get("n", 0) + 1), lambda W: (set(KINDS), TABLE.pop("n"))),
        (count_in_class, lambda W: W.count),
        (count_in_global, lambda W: NUMBER),
        (count_in_function, lambda W: vars(count_in_function).pop("calls")),
        (count_in_object, lambda W: vars(CONFIG).pop("calls")),
        (count_in_module, lambda W: vars(MODULE).pop("calls")),
    ],
)
def test_effects_of_the_code_happen_in_each_call(effect, log):
    agree(lambda: reader(lambda cls: 2.0, effect), lambda W: None, log)
    put_back()
    assert ends(reader(lambda cls: 2.0, effect)) >= {"FJ0004"}
    put_back()


def ends(W):
    """Where graphs of calls end."""
    framejit.reset()
    compiled = framejit.compile(f)
    compiled(W(torch.ones(3)).requires_grad_())
    found = {reason.split("]")[0].removeprefix("break[") for reason in framejit._framejit.explain_data(compiled)["break_reasons"]}
    assert "FJ0099" not in found
    return found


@pytest.mark.parametrize(
    "read",
    [lambda cls: random.random() and 1.0, lambda cls: time.time() and 1.0, lambda cls: next(NUMBERS) * 0 + 1.0, lambda cls: OTHER.item(), lambda cls: torch.rand(()).item() and 1.0],
)
def test_code_that_reaches_what_cannot_be_compared_is_not_captured(read):
    agree(lambda: reader(read), lambda W: OTHER.add_(1))
    assert ends(reader(read)) >= {"FJ0012"}


def test_functions_with_derivatives_of_their_own():
    info = agree(lambda: reader(lambda cls: 1.0), lambda W: SCALE.__setitem__(0, 2.0), f=lambda w: Squared.apply(w).sum())
    assert info["breaks"] == 0 and info["captures"] == 2


def test_what_a_backward_pass_alone_changes():
    def effect(cls, func):
        if func is torch.ops.aten.cos.default:
            LOG.append(1)

    agree(lambda: reader(lambda cls: 1.0, effect), lambda W: None, lambda W: len(LOG))


def test_what_waits_to_be_written_is_seen():
    W = reader(lambda cls: SCALE[0])

    def g(w, s):
        a = w * w
        SCALE[0] = s
        return (a + w * w).sum()

    results = []
    for h in (g, framejit.compile(g)):
        put_back()
        results.append([h(W(torch.ones(3)).requires_grad_(), s).detach().inner.item() for s in (2.0, 3.0, 3.0)])
    put_back()
    assert results[0] == results[1]


@pytest.mark.parametrize("f", [f, lambda w: (w * w).exp().tanh().sum(), lambda w: w.exp().sum()])
@pytest.mark.parametrize("read, change", [(lambda cls: 2.0, lambda W: None), (lambda cls: SCALE[0], lambda W: SCALE.__setitem__(0, 2.0))])
def test_a_detach_with_other_numbers(read, change, f):
    agree(lambda: reader(read, but=()), change, f=f)
    assert "FJ0012" in ends(reader(read, but=()))


def test_a_detach_whose_numbers_change_before_the_backward_pass():
    found = []
    for g in (f, framejit.compile(f)):
        put_back()
        W = reader(lambda cls: 1.0)

        def dispatch(cls, func, types, args=(), kwargs=None, plain=W.__torch_dispatch__.__func__):
            out = plain(cls, func, types, args, kwargs)
            return W(out.inner * 3) if func is DETACH and SCALE[0] > 1 else out

        W.__torch_dispatch__ = classmethod(dispatch)
        for _ in range(3):
            for scale in (1.0, 2.0):
                SCALE[0] = 1.0
                w = W(torch.tensor([0.1, 0.2])).requires_grad_()
                y = g(w)
                SCALE[0] = scale
                y.backward()
                found.append([y.inner.item(), *w.grad.inner.tolist()])
    put_back()
    assert all(a == pytest.approx(b) for a, b in zip(found[:6], found[6:])) and found[0] != found[1]
