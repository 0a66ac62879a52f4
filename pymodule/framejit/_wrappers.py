"""Operations on wrappers, tensors of a class with a `__torch_dispatch__`. torch itself makes the calls on stand-ins, and what would reach the
classes is captured (src/capture/wrappers.cc)."""

import torch

dispatched = None  # (func, args, kwargs) -> what the class gives, with stand-ins in both; set by the extension


class StandIn(torch.Tensor):
    """Of a wrapper, or of a tensor beside one: sizes and nothing else. torch hands every operation on it to the capture."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatched(func, args, kwargs or {})


def stand_in(sizes, strides, offset, dtype, device):
    return torch.Tensor._make_wrapper_subclass(StandIn, sizes, strides=strides, storage_offset=offset, dtype=dtype, device=device)


def asking(way):
    """A stand-in that torch asks for its "sizes", its "strides" or its "device"; "": for nothing."""
    policy = way if way in ("sizes", "strides") else None
    return torch.Tensor._make_wrapper_subclass(StandIn, (2, 3), dispatch_sizes_strides_policy=policy, dispatch_device=way == "device")


def perform(function, args, kwargs, inference):
    """The call, in inference mode or not."""
    if inference == torch.is_inference_mode_enabled():
        return function(*args, **kwargs)
    with torch.inference_mode(inference):
        return function(*args, **kwargs)


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
