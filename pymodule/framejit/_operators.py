"""Operators of torch.library whose kernels are functions of Python run as often as the program says, also where a compiled run that has
called them ends early and its frame is run again: what they did is noted, and the calls that come again are answered from that."""

import functools
from _thread import _local, allocate_lock  # not threading, as in _gradients


class _State(_local):
    def __init__(self):
        self.running = []  # the runs under way on this thread, the innermost last; None: a kernel, whose own calls are its own
        self.answers = []  # calls that come again
        self.watching = False


_state = _State()

# Kernels that torch.library.Library.impl was given are in torch's dispatcher alone. Their operators are noted where they are called:
# while a thread is in a run, or waits for calls that come again, the objects in torch.ops call through here.
_objects = {}  # such objects, by identity: (object, what it calls, what it calls while it is watched)
_watching = 0  # threads
_lock = allocate_lock()


def _watch(on):
    global _watching
    if _state.watching == on or not (_objects or _state.watching):
        return
    with _lock:
        _state.watching = on
        _watching += 1 if on else -1
        for op, plain, noted in _objects.values():
            op._op = noted if _watching else plain


class _Run:
    def __init__(self, copies):
        self.copies, self.calls = copies, []  # copies: what a kernel returns may be written by the run


class _Call:
    """What a kernel did: what it returned or raised, and what it wrote to its arguments."""

    def __init__(self, kernel):
        self.kernel, self.result, self.error, self.traceback, self.written = kernel, None, None, None, ()
        self.same = None  # for each result the number of the argument that it is, or in whose memory it lies where, or None

    def returned(self, result, given, copies):
        results = result if isinstance(result, tuple) else (result,)
        self.same = [next(_places(given, r), None) for r in results]
        self.result = _copies(result) if copies else result

    def again(self, written, given):
        for to, value in zip(written, self.written):
            to.copy_(value)
        if self.error is not None:
            raise self.error.with_traceback(self.traceback)
        if isinstance(self.result, tuple):
            return tuple(r if place is None else _placed(given, *place) for r, place in zip(self.result, self.same))
        return self.result if self.same[0] is None else _placed(given, *self.same[0])


def begin(copies):
    """A run begins that calls operators."""
    _state.running.append(_Run(copies))
    _watch(True)


def end(again):
    """It ends. again: early, so that its calls will be made once more. Are there any?"""
    run = _state.running.pop()
    if again:
        _state.answers[:0] = run.calls
    _watch(bool(_state.running or _state.answers))
    return bool(_state.answers)


def drop():
    """Whoever would have made them has ended."""
    _state.answers.clear()
    _watch(bool(_state.running))


def _tensors(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif hasattr(value, "untyped_storage"):
            yield value


def _places(given, result):
    """The arguments that a result is, or in whose memory it lies, which torch asks about: (number, how it lies there)"""
    import torch

    for i, t in enumerate(given):
        if t is result:
            yield i, None
        elif hasattr(result, "untyped_storage") and torch._C._is_alias_of(t, result):
            offset = (result.data_ptr() - t.data_ptr()) // result.element_size() if result.numel() else 0
            yield i, (result.dtype, result.size(), result.stride(), offset)


def _placed(given, i, lies):
    if lies is None:
        return given[i]
    dtype, size, stride, offset = lies
    tensor = given[i] if given[i].dtype == dtype else given[i].view(dtype)
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


def _copies(value):
    if isinstance(value, (list, tuple)):
        return type(value)(map(_copies, value))
    return value.clone() if hasattr(value, "clone") else value


def _noted(name, function, writes):
    @functools.wraps(function)
    def kernel(*args, **kwargs):
        running, answers = _state.running, _state.answers
        if not running and not answers:
            return function(*args, **kwargs)
        run = running[-1] if running else None
        given = [*_tensors((*args, *kwargs.values()))]
        written = [*_tensors(writes(args, kwargs))]
        if answers and (run or not running):
            if answers[0].kernel == name:
                call = answers.pop(0)
                if run:
                    run.calls.append(call)
                return call.again(written, given)
            answers.clear()  # the program goes another way
        if run is None:
            return function(*args, **kwargs)
        call = _Call(name)
        run.calls.append(call)
        running.append(None)
        try:
            result = function(*args, **kwargs)
            call.returned(result, given, run.copies)
            return result
        except BaseException as error:
            call.error, call.traceback = error, error.__traceback__.tb_next
            raise
        finally:
            running.pop()
            call.written = _copies(written)

    kernel.noted = True
    return kernel


def python_keys(name):
    """For which keys torch's dispatcher has kernels of this operator that are functions of Python, and do something."""
    import torch

    keys = []
    for line in torch._C._dispatch_dump(name).splitlines():
        key = line.partition(":")[0]
        if ".py:" in line and line.endswith(":: (none) [ boxed ]") and not key.startswith(("Meta", "Autograd", "CompositeImplicitAutograd", "Functionalize")):
            keys.append(key.partition("[")[0].strip())
    return keys


def overload_of(op):
    """(the overload, or None where the packet has several; its packet; what torch.library.custom_op knows of it, or None)"""
    import torch

    packet = op._overloadpacket if isinstance(op, torch._ops.OpOverload) else op
    if isinstance(op, torch._ops.OpOverloadPacket):
        if len(op.overloads()) != 1:
            return None, packet, None
        op = getattr(op, op.overloads()[0])
    return op, packet, torch._library.custom_ops.OPDEFS.get(op._schema.name)


def has_python_kernel(op):
    """Is a kernel of this operator, or of the one overload of this packet, a function of Python? They are noted from now on."""
    op, packet, defined = overload_of(op)
    if op is None:
        return False
    if defined is None and (op.namespace in ("aten", "prim", "prims") or id(packet) not in _objects and not python_keys(op.name())):
        return False
    places = [(i, a.name) for i, a in enumerate(op._schema.arguments) if a.alias_info and a.alias_info.is_write]

    def writes(args, kwargs):
        return [args[i] if i < len(args) else kwargs.get(name) for i, name in places]

    if defined is None:
        for called in (op, packet):
            if id(called) not in _objects:
                _objects[id(called)] = called, called._op, _noted(op.name(), called._op, writes)
    for device, function in defined._backend_fns.items() if defined else ():
        if not getattr(function, "noted", False):
            defined._backend_fns[device] = _noted((op._schema.name, device), function, writes)
    return True
