"""torch.nn.Module's own functions as capture does them (module_plumbing.cc): the code it knows is the code torch has, and what
they depend on is seen when it changes."""

import dis
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import framejit  # noqa: E402
from framejit import _plumbing  # noqa: E402
from torch import nn  # noqa: E402


def _start(function):
    """Instructions up to the first return."""
    found = []
    for i in dis.get_instructions(function):
        found.append((i.opname, i.argval))
        if i.opname == "RETURN_VALUE":
            return found


@pytest.mark.parametrize("name", ["__getattr__", "_wrapped_call_impl", "_call_impl"])
def test_the_code_is_torchs(name):
    assert _start(getattr(_plumbing.Module, name)) == _start(getattr(nn.Module, name))


DEPTH = """
import framejit, torch
from torch import nn
module, x = nn.Sequential(nn.Sequential(nn.Linear(3, 3))), torch.ones(2, 3)
call = framejit.compile(module, options={"max_depth": 5}, fullgraph=True)
with torch.no_grad():
    torch.testing.assert_close(call(x), module(x))
print(framejit.cache_info(call)["outcomes"])
"""


def test_calls_of_modules_are_done_without_their_frames():
    """In a process that has imported nothing of framejit's by itself. With their frames they would be 9 deep."""
    done = subprocess.run([sys.executable, "-c", DEPTH], capture_output=True, text=True)
    assert "'run': {'graph': 1}" in done.stdout, done.stdout + done.stderr


def agree(compiled, f, *args, times=3):
    with torch.no_grad():
        expected = f(*args)
        for _ in range(times):
            torch.testing.assert_close(compiled(*args), expected)
    return expected


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.register_buffer("scale", torch.full((3,), 2.0))
        self.shift = nn.Parameter(torch.ones(3))
        self.plain = 1.5

    def forward(self, x, factor=1):
        return self.inner(x) * self.scale * factor + self.shift * self.plain


def _hooked(module, args, result):
    return result + 10


def _before(module, args):
    return (args[0] * 3,)


def _other_forward(x, factor=1):
    return x * 5


def _replace(module, kind):
    module._parameters["shift"] = nn.Parameter(torch.full((3,), float(kind)))


CHANGES = {
    "forward hook": lambda m: m.inner.register_forward_hook(_hooked),
    "forward pre-hook": lambda m: m.inner.register_forward_pre_hook(_before),
    "hook with keywords": lambda m: m.register_forward_pre_hook(lambda m, a, k: (a, {"factor": 4}), with_kwargs=True),
    "global hook": lambda m: nn.modules.module.register_module_forward_hook(_hooked),
    "forward of the instance": lambda m: setattr(m.inner, "forward", _other_forward),
    "compiled call": lambda m: setattr(m.inner, "_compiled_call_impl", _other_forward),
    "call of the instance": lambda m: m.inner.__dict__.__setitem__("_call_impl", _other_forward),
    "parameter": lambda m: _replace(m, 7),
    "buffer": lambda m: m._buffers.__setitem__("scale", torch.full((3,), 9.0)),
    "module": lambda m: m._modules.__setitem__("inner", nn.Identity()),
    "attribute over a parameter": lambda m: m.__dict__.__setitem__("shift", torch.zeros(3)),
    "parameter over a buffer": lambda m: m._parameters.__setitem__("scale", nn.Parameter(torch.full((3,), 8.0))),
    "plain attribute": lambda m: setattr(m, "plain", 0.25),
    "other dict of buffers": lambda m: m.__dict__.__setitem__("_buffers", {"scale": torch.full((3,), 6.0)}),
    "class": lambda m: setattr(m, "__class__", Doubled),
    "forward of the class": lambda m: setattr(nn.Linear, "forward", lambda self, x: x - 1),
}


class Doubled(Block):
    def forward(self, x, factor=1):
        return 2 * super().forward(x, factor)


class State:
    pass


@pytest.mark.parametrize("waits", [False, True], ids=["", "while a write waits"])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen(change, waits):
    before = nn.Linear.forward
    x = torch.arange(6.0).reshape(2, 3)
    torch.manual_seed(0)
    module, state = Block(), State()

    def f(x):
        if waits:
            state.depth = 3
        y = module(x, factor=2)
        if waits:
            state.depth = 0
        return y

    call = framejit.compile(f)
    handle = None
    try:
        old = agree(call, f, x)
        handle = CHANGES[change](module)
        assert not torch.equal(agree(call, f, x), old)
    finally:
        nn.Linear.forward = before
        if hasattr(handle, "remove"):
            handle.remove()


def _in_inner(m, x):
    m.inner.note = 3
    y = m(x)
    m.inner.note = 4
    return y


def _own_attribute(m, x):
    m.plain = 9.0
    y = m(x)
    m.plain = 1.5
    return y


def _own_hook(m, x):
    hook = m.inner.register_forward_hook(_hooked)
    y = m(x)
    hook.remove()
    return y + m(x)


def _global_hook(m, x):
    before = m(x)
    hook = nn.modules.module.register_module_forward_hook(_hooked)
    y = m(x)
    hook.remove()
    return y + before + m(x)


def _hook_in_the_dict(m, x):
    m.plain = 2.0
    before = m(x)
    m.inner._forward_hooks[5] = _hooked
    y = m(x)
    del m.inner._forward_hooks[5]
    return y + before


def _global_hook_in_the_dict(m, x):
    m.plain = 2.0
    before = m(x)
    nn.modules.module._global_forward_hooks[5] = _hooked
    y = m(x)
    del nn.modules.module._global_forward_hooks[5]
    return y + before


def _other_parameter(m, x):
    m.plain = 2.0
    y = m(x)
    m._parameters["shift"], old = torch.zeros(3), m._parameters["shift"]
    y = y + m(x)
    m._parameters["shift"] = old
    return y + m(x)


def _other_buffers(m, x):
    m.plain = 2.0
    y = m(x)
    m.__dict__["_buffers"], old = {"scale": torch.full((3,), 6.0)}, m._buffers
    y = y + m(x)
    m.__dict__["_buffers"] = old
    return y + m(x)


def _other_forward_inside(m, x):
    m.plain = 2.0
    y = m(x)
    m.inner.forward = _other_forward
    y = y + m(x)
    del m.inner.forward
    return y


WRITES = [_in_inner, _own_attribute, _own_hook, _global_hook, _hook_in_the_dict, _global_hook_in_the_dict, _other_parameter,
          _other_buffers, _other_forward_inside]  # fmt: skip


@pytest.mark.parametrize("f", WRITES, ids=lambda f: f.__name__)
def test_writes_of_the_program_are_seen(f):
    x = torch.arange(6.0).reshape(2, 3)
    torch.manual_seed(0)
    module = Block()
    agree(framejit.compile(f), f, module, x)
    assert not nn.modules.module._global_forward_hooks and not module.inner._forward_hooks


def test_a_write_that_reaches_the_module_under_another_name():
    def attribute(state, module, x):
        state.plain = 5.0
        y = module(x)
        state.plain = 1.5
        return y

    def hook(state, module, x):
        state.hook = _hooked
        y = module(x)
        del state.hook
        return y

    def parameter(state, module, x):
        state.shift = torch.zeros(3)
        y = module(x)
        del state.shift
        return y

    x, module = torch.arange(6.0).reshape(2, 3), Block()
    module.__dict__["_forward_hooks"] = {}
    places = {attribute: module.__dict__, hook: module._forward_hooks, parameter: module.__dict__}
    for f, place in places.items():
        apart, alias = State(), State()
        alias.__dict__ = place
        call = framejit.compile(f)
        seen = [agree(call, f, state, module, x, times=1) for state in (apart, apart, alias, apart, alias)]
        assert not torch.equal(seen[0], seen[2])


class OwnGetattr(nn.Module):
    def __init__(self):
        super().__init__()
        self.asked = []
        self.weight = nn.Parameter(torch.ones(3))

    def __getattr__(self, name):
        if name == "made":
            return super().__getattr__("weight") * 2
        return super().__getattr__(name)

    def forward(self, x):
        return x + self.made + getattr(self, "missing", 1)


class OwnCall(nn.Linear):
    def _call_impl(self, *args, **kwargs):
        return super()._call_impl(*args, **kwargs) + 1


class OwnLookup(nn.Linear):
    def __getattribute__(self, name):
        return super().__getattribute__("forward2" if name == "forward" else name)

    def forward2(self, x):
        return x * 4


class ForwardProperty(nn.Linear):
    @property
    def forward(self):
        self.reads = getattr(self, "reads", 0) + 1
        return lambda x: x * 6


@pytest.mark.parametrize("build", [OwnGetattr, lambda: OwnCall(3, 3), lambda: OwnLookup(3, 3), lambda: ForwardProperty(3, 3)])
def test_overridden(build):
    module, x = build(), torch.arange(6.0).reshape(2, 3)

    def f(x):
        return module(x) * 2

    agree(framejit.compile(f), f, x)
    if isinstance(module, ForwardProperty):
        assert module.reads == 4


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("no")


def test_traceback_of_a_handled_exception():
    module = nn.Sequential(Raises())

    def f(x):
        try:
            return module(x)
        except ValueError as e:
            names, at = [], e.__traceback__
            while at is not None:
                names.append((at.tb_frame.f_code.co_name, at.tb_lineno))
                at = at.tb_next
            return x * len(names), names

    def run(g):
        y, names = g(torch.ones(2))
        return y.tolist(), names[1:]

    assert run(framejit.compile(f)) == run(f)


def test_unexpected_keyword():
    module = nn.Linear(3, 3)
    call = framejit.compile(lambda x: module(x, self=module))
    for _ in range(2):
        with pytest.raises(TypeError, match="self"):
            call(torch.ones(2, 3))


def test_one_graph():
    module, x = nn.Sequential(Block(), Doubled()), torch.ones(2, 3)
    agree(framejit.compile(lambda x: module(x), fullgraph=True), module, x)


class Registry(type):
    pass


@pytest.mark.parametrize("metaclass", [type, Registry])
@pytest.mark.parametrize("how", ["type", "__class__", "classmethod", "setattr", "behind a break"])
def test_what_a_module_sets_of_its_class(fresh, how, metaclass):
    def run(compile_it):
        class Counted(torch.nn.Module, metaclass=metaclass):
            count = 0

            @classmethod
            def add(cls):
                cls.count += 1

            def forward(self, x):
                if how == "type":
                    type(self).count += 1
                elif how == "__class__":
                    self.__class__.count += 1
                elif how == "classmethod":
                    self.add()
                elif how == "setattr":
                    setattr(type(self), "count", type(self).count + 1)
                else:
                    torch._C._log_api_usage_once("framejit")
                    type(self).made = object
                    del type(self).made
                    type(self).count += 1
                return x * self.count

        module, log = Counted(), []
        other = fresh.compile(module) if compile_it else module
        for _ in range(4):
            log.append((other(torch.ones(1)).item(), Counted.count, module.count, Counted().count))
            if len(log) == 2:
                Counted.count = 10
        return log, type(other).__name__, "made" in vars(Counted), isinstance(type(other), metaclass)

    assert run(True) == run(False)


class Ready(nn.Module):
    def forward(self, x):
        return self.linear(x)


class Later(nn.modules.lazy.LazyModuleMixin, nn.Module):
    cls_to_become = Ready

    def initialize_parameters(self, x):
        self.linear = nn.Linear(x.shape[-1], 3)

    def forward(self, x):
        return self.linear(x)


def test_a_lazy_module_stays_compiled(fresh):
    """Its first call sets `__class__` of what was called, the compiled module."""
    module = Later()
    compiled = fresh.compile(module)
    x = torch.rand(2, 5)
    for _ in range(3):
        y = compiled(x)
        assert type(module) is Ready and isinstance(compiled, Ready) and type(compiled) is not Ready
    assert torch.allclose(y, module(x)) and fresh.compile(module) is compiled
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"graph": 2}
