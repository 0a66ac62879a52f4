"""Operations on wrappers, tensors of a class with a `__torch_dispatch__`. torch itself makes the calls on stand-ins, and what would reach the
classes is captured (src/capture/wrappers/wrappers.cc)."""

import dataclasses
import enum
import operator
import types
import weakref

import torch

from . import _jagged as jagged

knows_its_sizes = None  # (wrapper) -> does torch ask its class for them? set by the extension, as are the two below
symbolic = None  # (name, number, number) -> number or truth: what is done with symbols of the capture; likewise
dispatched = None  # (func, args, kwargs) -> what the class gives, with stand-ins in both; set by the extension


class Number:
    """What torch's SymInt, SymBool and SymFloat ask: a symbol of the capture, or a number of Python. Questions become guards."""

    def __init__(self, value, tape=None):
        self._value, self.tape, self.place = value, tape, None
        if tape is not None and not self.is_constant():
            tape.symbols.append(weakref.ref(self))

    @property
    def value(self):
        """On a tape (framejit._tape) that is sealed: what a run of the backward pass has in its place."""
        numbers = self.tape and getattr(self.tape.now, "numbers", None)
        if not numbers or self.place is None:
            return self._value
        number = numbers[self.place]
        return number.node.value if isinstance(number, torch.SymInt) else number

    def is_int(self):
        return type(self.value) not in (bool, float)

    def is_float(self):
        return type(self.value) is float

    def is_bool(self):
        return type(self.value) is bool

    def is_symbolic(self):
        return not self.is_constant()

    def is_constant(self):
        return type(self.value) in (bool, int, float)

    def maybe_as_int(self):
        return self.value if type(self.value) in (bool, int) else None

    def is_nested_int(self):
        return False

    def nested_int(self):
        return None

    def has_hint(self):
        return True

    def clone(self):
        return self

    def _number(self, *_):
        return self.value if self.is_constant() else symbolic("number", self.value, 0)

    def _truth(self, *_):
        return bool(self._number())

    def _wrap(self, value):
        return Number(value, self.tape)

    def _text(self):  # where torch tells of it
        return str(self.value)

    def neg(self):
        return Number(symbolic("sub", 0, self.value), self.tape)

    def sym_not(self):
        return Number(not self._truth())

    def sym_float(self):
        return Number(float(self._number()))

    def int_truediv(self, other):
        return Number(self._number() / other._number())

    guard_int = int_ = constant_int = _number
    guard_float = lambda self, *_: float(self._number())
    guard_bool = bool_ = constant_bool = statically_known_true = expect_true = expect_size = guard_size_oblivious = guard_or_true = guard_or_false = _truth
    str = _graph_repr = _text
    wrap_int = wrap_bool = wrap_float = _wrap
    sym_and = and_ = lambda self, other: Number(self._truth() and other._truth())
    sym_or = or_ = lambda self, other: Number(self._truth() or other._truth())


RELATIONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
END = 2**62  # torch says "to the end" by the greatest integer, which no size reaches


def _beyond(x):
    return type(x) is int and abs(x) >= END


def _operation(name):
    def operation(self, other):
        if other.is_nested_int():  # of a ragged dimension: torch says which questions have an answer
            if name in ("eq", "ne"):
                return Number(name == "ne")
            if name == "mul":
                return other.mul(self)
            raise RuntimeError("an integer beside the size of a ragged dimension")
        a, b = self.value, other.value
        if _beyond(a) or _beyond(b):  # next to it any size will do
            plain = [x if type(x) is int else 1 for x in (a, b)]
            if name in RELATIONS:
                return Number(RELATIONS[name](*plain))
            if name in ("sym_min", "sym_max"):
                return self if (min if name == "sym_min" else max)(*plain) == plain[0] else other
        return Number(symbolic(name, a, b), self.tape or other.tape)

    return operation


for _name in ("add", "sub", "mul", "int_floordiv", "mod", "sym_min", "sym_max", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Number, _name, _operation(_name))
Number.floordiv = Number.int_floordiv


def symbol(value, tape=None):
    return torch.SymInt(Number(value, tape))


def number_in(x):
    """What a number of torch's stands for; None: it is none."""
    return getattr(x.node, "value", None) if isinstance(x, (torch.SymInt, torch.SymBool, torch.SymFloat)) else None


class StandIn(torch.Tensor):
    """Of a wrapper, or of a tensor beside one: sizes and nothing else. torch hands every operation on it to the capture."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.is_same_size.default:  # asked of what a finished capture left, too
            return args[0].shape == args[1].shape
        if any(t is not cls for t in types):  # a wrapper around stand-ins answers
            return NotImplemented
        if func in jagged.MEANINGS and (made := jagged.MEANINGS[func](*args, **(kwargs or {}))) is not None:
            return made
        if func._schema.name == "_c10d_functional::_wrap_tensor_autograd":  # what it gives is no plain tensor
            return torch.distributed._functional_collectives.AsyncCollectiveTensor(args[0])
        made = dispatched(func, args, kwargs or {})
        if func is torch.ops.aten.detach.default:
            made.origin = getattr(args[0], "origin", args[0])  # the same numbers (framejit._tape asks)
        return made


def may_return_itself(func):
    """Can a result of the operator be an argument itself? What is made of other operators is above autograd elsewhere."""
    return func._schema.is_mutable or torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def stand_in(sizes, strides, offset, dtype, device, requires_grad=False):
    return torch.Tensor._make_wrapper_subclass(
        StandIn, sizes, strides=strides, storage_offset=offset, dtype=dtype, device=device, requires_grad=requires_grad
    )


def that_ask():
    """Wrappers like any other, then some for each thing that torch may ask a wrapper's class for: a tuple of tuples."""
    ways = {}, {"dispatch_sizes_strides_policy": "sizes"}, {"dispatch_sizes_strides_policy": "strides"}, {"dispatch_device": True}, {"dispatch_layout": True}
    made = [[torch.Tensor._make_wrapper_subclass(StandIn, (2,), dtype=torch.float32, device="cpu", **way) for way in ways] for _ in range(16)]
    return tuple(zip(*made))


def perform(function, args, kwargs, grad, inference):
    """The call, with gradients or without, in inference mode or not."""
    with torch.inference_mode(inference) if inference != torch.is_inference_mode_enabled() else torch.set_grad_enabled(grad):
        return function(*args, **kwargs)


def has_gradients(result):
    """Is there a tensor with gradients in what a function of torch gave?"""
    if isinstance(result, (tuple, list)):
        return any(map(has_gradients, result))
    return isinstance(result, torch.Tensor) and result.requires_grad


def pull(outputs, inputs, gradients):
    """The gradients of stand-ins, made on this thread, whatever device they are said to be on. None: a tensor that was not used."""
    with torch.autograd.set_multithreading_enabled(False):
        return torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)


class Slot:
    """A tensor of a call that is made again: the one with this number."""

    def __init__(self, number):
        self.number = number


class Wrapped:
    """A wrapper of a call that is made again."""

    def __init__(self, cls, args, kwargs, attributes):
        self.cls, self.args, self.kwargs, self.attributes = cls, args, kwargs, attributes


class Again:
    """A call with wrappers whose other tensors want gradients, as torch makes it: what a trace keeps of it. It is given the tensors, and gives
    a tuple of the results."""

    def __init__(self, function, args, kwargs):
        self.function, self.args, self.kwargs = function, args, kwargs

    def apply(self, *tensors):
        def fill(x):
            if isinstance(x, Slot):
                return tensors[x.number]
            if isinstance(x, Wrapped):
                return made(x.cls, x.args, x.kwargs, None, None, {k: fill(v) for k, v in x.attributes.items()})
            return type(x)(map(fill, x)) if type(x) in (tuple, list) else x

        result = self.function(*fill(self.args), **{k: fill(v) for k, v in self.kwargs.items()})
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def described(wrapper):
    """Arguments of `_make_wrapper_subclass` behind the class, for one like it."""
    with torch._C.DisableTorchFunctionSubclass():
        return (tuple(wrapper.size()),), {
            "strides": wrapper.stride(),
            "storage_offset": wrapper.storage_offset(),
            "dtype": wrapper.dtype,
            "device": wrapper.device,
        }


def plain(x):
    """Is it a value that holds no tensor?"""
    if isinstance(x, (type(None), bool, int, float, complex, str, bytes, enum.Enum, type, types.FunctionType, types.BuiltinFunctionType)):
        return True
    if isinstance(x, (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)):
        return True
    if type(x) in (tuple, list, set, frozenset):
        return all(map(plain, x))
    if type(x) is dict:
        return all(map(plain, x)) and all(map(plain, x.values()))
    return dataclasses.is_dataclass(x) and all(plain(getattr(x, f.name, None)) for f in dataclasses.fields(x))


def like(wrapper):
    with torch._C.DisableTorchFunctionSubclass():
        return stand_in(wrapper.size(), wrapper.stride(), wrapper.storage_offset(), wrapper.dtype, wrapper.device)


def ask(function, args, kwargs):
    """What the wrapper says of itself, asked of no class."""
    with torch._C.DisableTorchFunctionSubclass():
        return function(*args, **kwargs)


def aliases(func, keywords):
    """What `return_and_correct_aliasing` makes of the operation's results: for each that is written to, the number or the name of the argument
    that it is; pairs of an argument and a result that is a view of it. None: the operation changes sizes in place."""
    if torch.Tag.inplace_view in func.tags:
        return None
    arguments, results = func._schema.arguments, func._schema.returns
    sets = [a.alias_info.before_set if a.alias_info else set() for a in arguments]
    written, views = [], []
    for i, result in enumerate(results):
        if result.alias_info is None:
            continue
        for k, argument in enumerate(arguments):
            if not sets[k] & result.alias_info.before_set:
                continue
            if result.alias_info.is_write:
                written.append(argument.name if argument.name in keywords else k)
            else:
                views.append((k, i))
    if func.is_view and not views and not written:  # lists of views, whose annotations the parser loses
        views.append((0, 0))
    return tuple(written), tuple(views)


class _Given(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self, tensor):
        super().__init__()
        self.tensor = tensor

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.tensor


def made(cls, args, kwargs, base, shares, attributes):
    """A wrapper that the capture made, as it was made there; base: of what it is a view; shares: whose memory it was said to have."""
    wrapper = torch.Tensor._make_wrapper_subclass(cls, *args, **kwargs)
    if shares is not None:
        torch._functionalize_unsafe_set(wrapper, shares)
    if base is not None:
        with torch._C.DisableTorchFunctionSubclass(), _Given(wrapper):
            wrapper = base.view_as(base)
    wrapper.__dict__.update(attributes)
    return wrapper
