"""Gradients that torch itself leads through what is captured: of wrappers (tensors of a class with a `__torch_dispatch__`), which their class
computes. While such a function is captured, torch makes its calls on stand-ins for plain tensors and on wrappers around them, and notes what
derivatives need; what reaches the plain tensors is the graph (src/capture/wrappers/tape.h). The backward pass is another function, captured when it first runs:
torch goes through what it noted, on stand-ins for what the first pass kept."""

import threading
import types
import weakref

import torch
from torch.autograd.function import once_differentiable

from . import _jagged, _wrappers, mark_dynamic
from ._reads import Reads, Unfollowed, followed
from ._wrappers import StandIn


def _inner(wrapper):
    """Its tensors by name, what else its class tells by name, and its metadata."""
    names, metadata = wrapper.__tensor_flatten__()
    values = [(name, getattr(wrapper, name)) for name in names]
    tensors = tuple(name for name, value in values if isinstance(value, torch.Tensor))
    return tensors, tuple((n, v) for n, v in values if not isinstance(v, torch.Tensor)), metadata


class Form:
    """How a wrapper is made of the tensors in it. As a function of another wrapper: is that one made so?"""

    def __init__(self, wrapper):
        with torch._C.DisableTorchFunctionSubclass():
            self.cls, self.size, self.stride = type(wrapper), None, None
            if not _wrappers.knows_its_sizes(wrapper):
                self.size, self.stride = torch.Size(map(int, wrapper.size())), tuple(map(int, wrapper.stride()))
            self.names, self.others, self.metadata = _inner(wrapper)

    def __call__(self, wrapper):
        try:
            with torch._C.DisableTorchFunctionSubclass():
                return type(wrapper) is self.cls and bool(_inner(wrapper) == (self.names, self.others, self.metadata))
        except Exception:
            return False

    def make(self, *tensors):
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            made = self.cls.__tensor_unflatten__({**dict(zip(self.names, tensors)), **dict(self.others)}, self.metadata, self.size, self.stride)
        return made.requires_grad_(False) if made.requires_grad else made


def code_in(x):
    """The program's classes of wrappers among arguments, and what torch may call of them."""
    if isinstance(x, (tuple, list)):
        return [c for y in x for c in code_in(y)]
    if isinstance(x, dict):
        return code_in(list(x.values()))
    if isinstance(x, torch.Tensor):
        return [type(x)] if followed(type(x)) else []
    return [x] if callable(x) else []


def plain(stand_in):
    """Is it a stand-in, and no wrapper around some?"""
    return type(stand_in) is StandIn


def _detached(x, detached):
    """Is this what detach gives where no class answers it: the same numbers, in a wrapper that is made alike?"""
    if type(x) is StandIn:
        return type(detached) is StandIn and getattr(detached, "origin", detached) is getattr(x, "origin", x)
    if type(x) is not type(detached) or not (form := Form(x))(detached):
        return False
    return all(_detached(getattr(x, name), getattr(detached, name)) for name in form.names)


class _AsGiven(torch.utils._python_dispatch.TorchDispatchMode):
    """Of a backward pass: torch detaches what the hook gives, but without hooks only what was a result of the node, and no class is to see that."""

    def __init__(self, now):
        super().__init__()
        self.now = now

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = getattr(self.now, "given", None)
        self.now.given = None
        if func is torch.ops.aten.detach.default and args[0] is given:
            return given
        return func(*args, **(kwargs or {}))


class Tape:
    """What torch noted during one capture."""

    def __init__(self):
        self.watched = []  # numbers of results whose memory is kept
        self.leaves, self.results = [], []  # what gradients go to, and come from: stand-ins, or wrappers around them
        self.kept, self.versions, self.forms = [], [], None  # by torch for derivatives, in its order; how each is made of the plain tensors that a run keeps
        self.now = threading.local()
        self.symbolic = False  # a wrapper makes its sizes of the tensors in it
        self.symbols, self.values = [], ()  # numbers of torch's that stand for symbols of the capture, by weak references; what a run keeps of them
        self.ragged = []  # which of the plain tensors that a run keeps give a ragged dimension its size, and the size
        self.nodes = []  # that made what is kept
        self.passes = {}
        self.reads, self.refused = Reads(), None  # why the call ends the graph; a tuple of that: it has an effect

    # --- while the first pass is captured
    def symbol(self, value):
        return _wrappers.symbol(value, self)

    def open(self, wrapper):
        """Of one whose class makes its sizes of the tensors in it: what may change from batch to batch is a symbol from the beginning."""
        self.symbolic = True
        for name in wrapper.__tensor_flatten__()[0]:
            tensor = getattr(wrapper, name)
            may_change = getattr(tensor, "_dynamo_propagated_dynamic_indices", None) or getattr(tensor, "_dynamo_dynamic_indices", None)
            for dim in may_change or range(tensor.dim() == 1):
                mark_dynamic(tensor, dim)

    def end(self):
        for number in filter(None, (s() for s in self.symbols)):
            number._value = None
        self.symbols = []

    def keep(self, tensor):
        if followed(type(tensor)):  # without hooks torch detaches the results alone that it keeps
            with torch.no_grad():
                if not _detached(tensor, tensor.detach()):
                    self.refused = f"the detach of a {type(tensor).__name__} gives other numbers"
                    raise Unfollowed(self.refused)
        self.kept.append(tensor)
        self.nodes.append(tensor.grad_fn)
        self.versions.append(tensor._version)
        return len(self.kept) - 1

    def give(self, number):
        if self.forms is None:
            return self.kept[number]
        given = self._made(self.forms[number], self.now.kept)
        is_result = torch._C._current_autograd_node() is self.nodes[number]
        self.now.given = given if type(self.forms[number]) is tuple and not is_result else None
        return given

    def _made(self, form, kept):
        if type(form) is int:
            return kept[form]
        return form[0].make(*(self._made(f, kept) for f in form[1])) if type(form) is tuple else form

    def prepare(self, function, args, kwargs):
        """Looks through the code that a call may run. Gives what must not wait to be written."""
        roots = code_in([args, kwargs])
        if function is pull:
            roots += args[0].reads.roots
        elif isinstance(function, types.MethodType):
            roots += [r for r in (function.__self__, function.__func__) if followed(r)]
        elif isinstance(function, (type, types.FunctionType)) and followed(function):
            roots.append(function)
        self._add(*roots)
        try:
            return self.reads.begin()
        except Unfollowed as e:
            self.refused = (f"the code of a wrapper's class reaches {e}",)
            raise

    def _add(self, *roots):
        try:
            self.reads.add(*roots)
        except Unfollowed as e:
            self.refused = f"a wrapper with gradients, whose class's code reaches {e}"
            raise

    def _undo(self):
        if changed := self.reads.undo():
            self.refused = (f"the code of a wrapper's class changes {changed}",)
            raise Unfollowed(changed)

    def double(self, form, like, *tensors):
        """A leaf like this wrapper from outside, around stand-ins."""
        if followed(form.cls):
            self._add(form.metadata, form.others)
        _jagged.prepare(tensors)
        try:
            made = form.make(*tensors)
        finally:
            self._undo()
        if like.requires_grad:
            made.requires_grad_()
        if getattr(like, "_is_param", False):
            made._is_param = True
        if followed(form.cls) and hasattr(made, "__dict__"):
            self.reads.doubles.append((made, dict(vars(made))))
        return made

    def perform(self, function, args, kwargs, grad, inference):
        with torch.inference_mode(inference) if inference != torch.is_inference_mode_enabled() else torch.set_grad_enabled(grad):
            tape = weakref.proxy(self)  # which holds what was computed, and so these hooks
            with torch.autograd.graph.saved_tensors_hooks(lambda t: tape.keep(t), lambda n: tape.give(n)):
                try:
                    made = _jagged.call(function, args, kwargs)
                finally:
                    self._undo()
        if holds_stand_ins(made):
            raise RuntimeError("a function with a gradient of its own remembers a tensor as an attribute")
        return made

    def seal(self, results):
        """The plain stand-ins that a run keeps for the backward pass from these results."""
        if any(t._version != v for t, v in zip(self.kept, self.versions)):
            raise RuntimeError("what a derivative keeps is written")
        self.results, plain_ones, places = list(results), [], {}

        def form(t):
            if type(t) is StandIn:
                if id(t) not in places:
                    places[id(t)] = len(plain_ones)
                    plain_ones.append(t)
                return places[id(t)]
            if hasattr(type(t), "__tensor_flatten__"):
                made = Form(t)
                return made, tuple(form(getattr(t, name)) for name in made.names)
            return t  # a number of the program's

        forms = [form(t) for t in self.kept]
        self.forms, self.kept = forms, None
        self.ragged = [(i, size) for i, t in enumerate(plain_ones) if (size := _jagged.size_by(t)) is not None]
        places = {}
        for number in filter(None, (s() for s in self.symbols)):
            number.place = places.setdefault(_wrappers.symbolic("text", number.value, 0), (len(places), number.value))[0]
        self.values = tuple(value for _, value in places.values())
        return tuple(plain_ones)

    # --- afterwards
    def backward(self, kept, numbers, gradients, wanted):
        given = tuple(i for i, g in enumerate(gradients) if g is not None)
        key = given, wanted
        if key not in self.passes:
            from ._compile import compile

            tape = self

            def backward_pass(kept, numbers, gradients):
                return pull(tape, given, wanted, kept, numbers, gradients)

            backward_pass.__code__ = backward_pass.__code__.replace()  # each has versions of its own
            self.passes[key] = compile(backward_pass)
        with torch._C._EnableTorchFunction():  # a class may have turned that off around the whole backward pass
            return self.passes[key](kept, numbers, tuple(gradients[i] for i in given))


def pull(tape, given, wanted, kept, numbers, gradients):
    """The gradients of leaves, None for those that are not wanted or do not matter."""
    before = getattr(tape.now, "kept", None), getattr(tape.now, "numbers", None)
    tape.now.kept, tape.now.numbers = list(kept), numbers
    try:
        leaves = [leaf for leaf, want in zip(tape.leaves, wanted) if want]
        with _jagged.Sizes() as sizes:
            for i, size in tape.ragged:
                tape.now.kept[i] = sizes.give(kept[i], size)
            gradients = [sizes.alike(tape.results[i], g) for i, g in zip(given, gradients)]
            with torch.autograd.set_multithreading_enabled(False), _AsGiven(tape.now):
                found = torch.autograd.grad([tape.results[i] for i in given], leaves, gradients, retain_graph=True, allow_unused=True)
        found = map(sizes.renewed, found)
        return tuple(next(found) if want else None for want in wanted)
    finally:
        tape.now.kept, tape.now.numbers = before


class Results(torch.autograd.Function):
    """Makes what a run computed the results of what gradients go to."""

    @staticmethod
    def forward(ctx, tape, results, kept, watched, numbers, *leaves):
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.count, ctx.numbers = tape, len(kept), numbers
        ctx.save_for_backward(*kept, *watched, *(results[i] for i in tape.watched))
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        kept = ctx.saved_tensors[: ctx.count]  # torch refuses where one of all was written
        return (None, None, None, None, None, *ctx.tape.backward(kept, ctx.numbers, gradients, ctx.needs_input_grad[5:]))


def leave(tape, leaves, results, kept, watched, numbers):
    with torch.enable_grad():
        return Results.apply(tape, results, kept, watched, numbers, *leaves)


def holds_stand_ins(results):
    """Does a function that made these remember a tensor otherwise than torch asks it to, as an attribute of its context?"""

    def any_in(x):
        return isinstance(x, torch.Tensor) or (isinstance(x, (tuple, list)) and any(map(any_in, x))) or (isinstance(x, dict) and any(map(any_in, x.values())))

    found = [results] if isinstance(results, torch.Tensor) else results if isinstance(results, (tuple, list)) else []
    nodes = [t.grad_fn for t in found if isinstance(t, torch.Tensor) and t.grad_fn is not None]
    return any(any_in(v) for n in nodes for v in getattr(n, "__dict__", {}).values())
