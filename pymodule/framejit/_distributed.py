"""Collectives of torch.distributed in captured programs. Each is an operator, which runs as often as the program says, in its order, and is one step
of the graph (src/capture/wrappers/collectives.cc). What an operator is given says all: a group by its name, what is reduced by a number of `_OPS`."""

import inspect

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d

_OPS = tuple(getattr(dist.ReduceOp, name) for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG"))


def _group(name):
    return None if name == "" else c10d._resolve_process_group(name)


def _operator(f):
    """An operator that writes to those of its arguments whose names end in an underscore."""
    names = [name for name in f.__annotations__ if name.endswith("_")]
    made = torch.library.custom_op(f"framejit::{f.__name__}", f, mutates_args=names)
    made.register_fake(lambda *args, **kwargs: None)
    return getattr(torch.ops.framejit, f.__name__).default


@_operator
def collective_reduce(tensor_: torch.Tensor, op: int, group: str) -> None:
    dist.all_reduce(tensor_, _OPS[op], _group(group))


@_operator
def collective_reduce_to(tensor_: torch.Tensor, to: int, op: int, group: str) -> None:
    dist.reduce(tensor_, to, _OPS[op], _group(group))


@_operator
def collective_broadcast(tensor_: torch.Tensor, source: int, group: str) -> None:
    dist.broadcast(tensor_, source, _group(group))


@_operator
def collective_gather(output_: torch.Tensor, tensor: torch.Tensor, group: str) -> None:
    dist.all_gather_into_tensor(output_, tensor, _group(group))


@_operator
def collective_gather_list(outputs_: list[torch.Tensor], tensor: torch.Tensor, group: str) -> None:
    dist.all_gather(outputs_, tensor, _group(group))


@_operator
def collective_scatter(output_: torch.Tensor, tensor: torch.Tensor, op: int, group: str) -> None:
    dist.reduce_scatter_tensor(output_, tensor, _OPS[op], _group(group))


@_operator
def collective_scatter_list(output_: torch.Tensor, tensors: list[torch.Tensor], op: int, group: str) -> None:
    dist.reduce_scatter(output_, tensors, _OPS[op], _group(group))


@_operator
def collective_exchange(output_: torch.Tensor, tensor: torch.Tensor, to: list[int], own: list[int], group: str) -> None:
    dist.all_to_all_single(output_, tensor, to or None, own or None, _group(group))


class Done:
    """What async_op=True gives: the step is behind the program that waits for it."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True

    def is_success(self):
        return True


def _result(async_op):
    return Done() if async_op else None


# --- what the functions of torch mean; `op` is a number and `group` a name by then -----------------------------------------
def _all_reduce(tensor, op=0, group="", async_op=False):
    collective_reduce(tensor, op, group)
    return _result(async_op)


def _reduce(tensor, dst, op=0, group="", async_op=False):
    collective_reduce_to(tensor, dst, op, group)
    return _result(async_op)


def _broadcast(tensor, src, group="", async_op=False):
    collective_broadcast(tensor, src, group)
    return _result(async_op)


def _all_gather_into_tensor(output_tensor, input_tensor, group="", async_op=False):
    collective_gather(output_tensor, input_tensor, group)
    return _result(async_op)


def _all_gather(tensor_list, tensor, group="", async_op=False):
    collective_gather_list(tensor_list, tensor, group)
    return _result(async_op)


def _reduce_scatter_tensor(output, input, op=0, group="", async_op=False):
    collective_scatter(output, input, op, group)
    return _result(async_op)


def _reduce_scatter(output, input_list, op=0, group="", async_op=False):
    collective_scatter_list(output, input_list, op, group)
    return _result(async_op)


def _all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group="", async_op=False):
    collective_exchange(output, input, output_split_sizes or [], input_split_sizes or [], group)
    return _result(async_op)


_MEANING = {
    c10d.all_reduce: _all_reduce,
    c10d.reduce: _reduce,
    c10d.broadcast: _broadcast,
    c10d.all_gather_into_tensor: _all_gather_into_tensor,
    c10d.all_gather: _all_gather,
    c10d.reduce_scatter_tensor: _reduce_scatter_tensor,
    c10d.reduce_scatter: _reduce_scatter,
    c10d.all_to_all_single: _all_to_all_single,
}
_MEANING = {inspect.unwrap(theirs): ours for theirs, ours in _MEANING.items()}  # behind what logs their exceptions
_QUESTIONS = "get_rank get_world_size _get_group_size_by_name _resolve_group_name _group_or_group_name".split()
_ANSWERED = {inspect.unwrap(getattr(m, name)) for m in (c10d, functional) for name in _QUESTIONS if hasattr(m, name)}  # numbers and texts


def meaning(function):
    """The function that stands for one of torch's; True: torch itself answers it, a number or a text. None: neither, or not now."""
    if not dist.is_initialized() or c10d._world.pg_coalesce_state:
        return None
    return True if function in _ANSWERED else _MEANING.get(function)


def state(_):
    """What answers depend on, but for their arguments; of a guard."""
    return c10d._world.default_pg if not c10d._world.pg_coalesce_state else None


def plain(x):
    """A group or a reduction as an operator is told it; None: it is none that is known."""
    if isinstance(x, dist.ProcessGroup):
        return x.group_name
    return next((i for i, op in enumerate(_OPS) if op == x), None) if isinstance(x, (dist.ReduceOp, dist.ReduceOp.RedOpType)) else None
