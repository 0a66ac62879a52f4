"""What torch.utils.hooks.BackwardHook does around a call of a module that has hooks of its backward pass, as functions that are captured
(src/capture/backward_hooks.cc). torch hangs its functions on nodes; here they are the backward of a function with a gradient of its own, which
runs as it is."""

import sys
import threading
import warnings
import weakref

import torch

from ._kernels import FACTS, GRADIENTS, KernelReads, Unfollowed

_NO_INPUTS = (
    "Full backward hook is firing when gradients are computed with respect to module outputs since no inputs require gradients. See "
    "https://docs.pytorch.org/docs/main/generated/torch.nn.Module.html#torch.nn.Module.register_full_backward_hook for more details."
)


def hooks_of(module, hooks, pre_hooks):
    """What a graph has of these hooks, a function; None where one may ask what the rest of the pass has done by then (gradients of leaves), how its tensors were
    made, or writes to some: that pass is torch's."""
    reads = KernelReads()
    try:
        for hook in (*hooks, *pre_hooks):
            reads._value(hook)
        reads._spaces()
    except Unfollowed:
        return None
    asks = reads.everything or not reads.names.isdisjoint(FACTS | GRADIENTS | {"data"})
    asks |= any(name.endswith("_") and not name.startswith("_") for name in reads.names)
    if asks:
        return None
    all_of_them = Hooks(module, hooks, pre_hooks)

    def come_by(*args):
        return all_of_them.come_by(*args)

    come_by._framejit_alive = all_of_them.alive
    return come_by


def _packed(at, values, count):
    packed = [None] * count
    for i, value in zip(at, values):
        packed[i] = value
    return tuple(packed)


def _held(o):
    try:
        return weakref.ref(o)
    except TypeError:
        return lambda: o


class Hooks:
    """The hooks of one call in a graph, and what those of its results have left for those of its arguments, by pass. A graph does not keep the module alive;
    whoever may come by does (`alive`)."""

    def __init__(self, module, hooks, pre_hooks):
        self.parts = _held(module), [_held(hook) for hook in hooks], [_held(hook) for hook in pre_hooks]
        self.left, self.lock = {}, threading.Lock()

    def alive(self):
        """(module, hooks, pre_hooks)"""
        module, hooks, pre_hooks = self.parts
        return module(), [hook() for hook in hooks], [hook() for hook in pre_hooks]

    def come_by(self, at, count, arguments, others, grads):
        """The answer where these gradients of tensors at `at`, of `count` objects, come by. arguments: how many arguments there are, where none of them
        wants gradients; -1: some do; None: it is them that the gradients are of. others: their tensors without gradients, with all that zeros need."""
        pass_ = torch._C._current_graph_task_id()
        return self.of_arguments(pass_, at, count, others, grads) if arguments is None else self.of_results(pass_, at, count, arguments, grads)

    def of_results(self, pass_, at, count, arguments, grads):
        given = _packed(at, grads, count)
        module, hooks, pre_hooks = self.alive()
        for hook in pre_hooks:
            answer = hook(module, given)
            if answer is None:
                continue
            if len(answer) != count:
                raise RuntimeError(f"Backward pre hook returned an invalid number of grad_output, got {len(answer)}, but expected {count}")
            given = answer
        if arguments < 0:
            with self.lock:
                self.left[pass_] = given
            if pass_ >= 0:  # the pass may never come by the arguments
                torch.autograd.Variable._execution_engine.queue_callback(lambda: self.left.pop(pass_, None))
        else:
            warnings.warn(_NO_INPUTS, stacklevel=_up_to_the_pass() + 3)
            for hook in hooks:
                answer = hook(module, (None,) * arguments, given)
                if answer is not None and not (isinstance(answer, tuple) and all(g is None for g in answer)):
                    raise RuntimeError("Backward hook for Modules where no input requires gradient should always return None or None for all gradients.")
        return tuple(given[i] for i in at)

    def of_arguments(self, pass_, at, count, others, grads):
        with self.lock:
            given = self.left.pop(pass_, None)
        if given is None:  # the gradients have not come by the results
            return grads
        zeros = [torch.zeros(shape, dtype=dtype, device=device) for _, shape, dtype, device in others]
        packed = _packed((*at, *(i for i, *_ in others)), (*grads, *zeros), count)
        module, hooks, _ = self.alive()
        for hook in hooks:
            answer = hook(module, packed, given)
            if answer is None:
                continue
            if len(answer) != count:
                raise RuntimeError(f"Backward hook returned an invalid number of grad_input, got {len(answer)}, but expected {count}")
            packed = answer
        return tuple(packed[i] for i in at)


def _up_to_the_pass():
    """How many frames there are from this one's caller to that which began the pass."""
    frame, depth = sys._getframe(1), 1
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        frame, depth = frame.f_back, depth + 1
    return depth if frame is not None else 2


class BackwardHookFunction(torch.autograd.Function):  # torch's name, of which its messages tell
    @staticmethod
    def forward(ctx, hooks, at, count, arguments, others, *tensors):
        ctx.hooks, ctx.at, ctx.count, ctx.arguments, ctx.others = hooks, at, count, arguments, others
        return tensors

    @staticmethod
    def backward(ctx, *grads):
        return (None, None, None, None, None, *ctx.hooks(ctx.at, ctx.count, ctx.arguments, ctx.others, grads))


def _hooked(hooks, args, arguments):
    """What these objects are behind the hooks, and whether some of them want gradients."""
    tensors = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    at = tuple(i for i in tensors if args[i].requires_grad)
    if not at or not torch.is_grad_enabled():
        return args, False
    if arguments is not None and len(at) > 1:
        sys._current_frames()  # ends the capture: hooks are told None for results that get no gradient, where a backward gets zeros
    others = tuple((i, tuple(args[i].shape), args[i].dtype, args[i].device) for i in tensors if i not in at)
    made = list(args)
    for i in tensors:
        if i not in at:
            made[i] = args[i].view_as(args[i])
    for i, tensor in zip(at, BackwardHookFunction.apply(hooks, at, len(args), arguments, others, *(args[i] for i in at))):
        made[i] = tensor
    return (tuple(made) if type(args) is tuple else type(args)(*made)), True


def setup_input_hook(self, hooks, between, args):
    self.hooks, self.between, self.n_inputs = hooks, between, len(args)
    args, self.input_tensors_index = _hooked(hooks, args, None)
    return args


def setup_output_hook(self, args):
    self.between = None
    results = args if isinstance(args, tuple) else (args,)
    results = _hooked(self.hooks, results, -1 if self.input_tensors_index else self.n_inputs)[0]
    return results if isinstance(args, tuple) else results[0]
