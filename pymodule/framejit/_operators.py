"""Operators of torch.library whose kernels are functions of Python run as often as the program says, also where a compiled run that has
called them ends early and its frame is run again: what they did is noted, and the calls that come again are answered from that."""

import functools
from _thread import _local  # not threading, as in _gradients


class _State(_local):
    def __init__(self):
        self.running = []  # the runs under way on this thread, the innermost last; None: a kernel, whose own calls are its own
        self.answers = []  # calls that come again


_state = _State()


class _Run:
    def __init__(self, copies):
        self.copies, self.calls = copies, []  # copies: what a kernel returns may be written by the run


class _Call:
    """What a kernel did: what it returned or raised, and what it wrote to its arguments."""

    def __init__(self, kernel):
        self.kernel, self.result, self.error, self.traceback, self.written = kernel, None, None, None, ()

    def again(self, written):
        for to, value in zip(written, self.written):
            to.copy_(value)
        if self.error is not None:
            raise self.error.with_traceback(self.traceback)
        return self.result


def begin(copies):
    """A run begins that calls operators."""
    _state.running.append(_Run(copies))


def end(again):
    """It ends. again: early, so that its calls will be made once more. Are there any?"""
    run = _state.running.pop()
    if again:
        _state.answers[:0] = run.calls
    return bool(_state.answers)


def drop():
    """Whoever would have made them has ended."""
    _state.answers.clear()


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
        written = [t for a in writes(args, kwargs) for t in (a if isinstance(a, (list, tuple)) else (a,)) if t is not None]
        if answers and (run or not running):
            if answers[0].kernel == name:
                call = answers.pop(0)
                if run:
                    run.calls.append(call)
                return call.again(written)
            answers.clear()  # the program goes another way
        if run is None:
            return function(*args, **kwargs)
        call = _Call(name)
        run.calls.append(call)
        running.append(None)
        try:
            result = function(*args, **kwargs)
            call.result = _copies(result) if run.copies else result
            return result
        except BaseException as error:
            call.error, call.traceback = error, error.__traceback__.tb_next
            raise
        finally:
            running.pop()
            call.written = _copies(written)

    kernel.noted = True
    return kernel


def has_python_kernel(op):
    """Was this operator, or the one overload of this packet, made by torch.library.custom_op? Its kernels are noted from now on."""
    import torch

    name = op._schema.name if isinstance(op, torch._ops.OpOverload) else op._qualified_op_name
    defined = torch._library.custom_ops.OPDEFS.get(name)
    if defined is None:
        return False
    arguments = defined._opoverload._schema.arguments
    places = [(i, a.name) for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]

    def writes(args, kwargs):
        return [args[i] if i < len(args) else kwargs.get(name) for i, name in places]

    for device, function in defined._backend_fns.items():
        if not getattr(function, "noted", False):
            defined._backend_fns[device] = _noted((name, device), function, writes)
    return True
