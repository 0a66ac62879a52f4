"""The framework's derivative of one of its calls, without the call. Which operators the backward pass of a call runs, and on what, follows from
the sizes, types and numbers that the call is given, unless something asks a tensor for its values or draws. So a pass is watched once, and
then these operators are run by themselves: often one kernel, that reads the operands and the gradient."""

import types

MOST_CALLS = 16  # more of them run faster in the framework's engine
MOST_PLANS = 512
SEEN = 2  # calls before it is watched: of sizes that never come again nothing is learned

_plans = {}  # by key: a plan; False: there is none; how often it was seen


def vjp(run, callable, which, operands, args, kwargs, grads, now=(), made=()):
    """What `run` gives, the framework's own way: the gradients of operands[i], i in which."""
    key = _key(callable, which, operands, args, kwargs, grads, now, made)
    plan = _plans.get(key, 0) if key is not None else False
    if type(plan) is _Plan and plan.sure:
        return plan.run(operands, grads, now, made)
    result = run(which, operands, args, kwargs, grads, *((now, made) if now or made else ()))
    if type(plan) is _Plan:  # the second time it is right once more, or it is none
        plan.sure = plan.gives(result, operands, grads, now, made)
        plan = plan.sure and plan
    elif plan is not False:
        plan = plan + 1 if plan < SEEN else _watched(callable, which, operands, args, kwargs, grads, now, made)
    if key is not None:
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        _plans[key] = plan
    return result


def _same(a, b):
    import torch

    return a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


def _key(callable, which, operands, args, kwargs, grads, now, made):
    """None: such a call has no plan."""
    import torch

    if type(callable) is not types.BuiltinFunctionType or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return None
    places = {id(o): i for i, o in enumerate(operands)}
    try:
        tensors = tuple(_kind(t) for group in (operands, grads, now, made) for t in group)
        numbers = _numbers(args, places), _numbers(tuple(kwargs.items()), places)
    except LookupError:
        return None
    switches = torch.are_deterministic_algorithms_enabled(), torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()
    return callable, which, tensors, numbers, switches


def _kind(t):
    if t is None:
        return None
    import torch

    if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.is_meta or t.layout is not torch.strided or t.is_conj() or t.is_neg():
        raise LookupError
    return t.shape, t.stride(), t.dtype, t.device


def _numbers(o, places):
    if id(o) in places:
        return (places[id(o)],)
    if isinstance(o, (tuple, list)):
        return type(o), *[_numbers(item, places) for item in o]
    if o is None or isinstance(o, (bool, int, float, str)):
        return type(o), o
    raise LookupError


class _Plan:
    """before, calls: (number, operator, its arguments), of the call itself and of its backward pass, in order; results: where the gradients
    are found."""

    def __init__(self, before, calls, results):
        self.before, self.calls, self.results, self.sure = before, calls, results, False

    def run(self, operands, grads, now, made):
        import torch

        later = [o if n is None else n for o, n in zip(operands, now)] if now else operands
        given = {"operand": operands, "later": later, "grad": grads, "result": made}
        if self.before:  # what it keeps it keeps where gradients are recorded
            given["operand"] = [o.detach() for o in operands]
            with torch.enable_grad():
                _call(self.before, given)
        _call(self.calls, given)
        return tuple(end.of(given) for end in self.results)

    def gives(self, result, *given):
        try:
            return all(map(_same, self.run(*given), result))
        except Exception:
            return False


def _call(calls, given):
    for number, function, args, kwargs in calls:
        given[number] = _several(function(*_filled(args, given), **_filled(kwargs, given)))


class _From:
    """In the arguments of a plan's call: a tensor that is given or made. view: its size, stride and offset in that one."""

    def __init__(self, source, place, view=None):
        self.at, self.view = (source, place), view

    def of(self, given):
        t = given[self.at[0]][self.at[1]]
        return t.as_strided(*self.view[:2], t.storage_offset() + self.view[2]) if self.view else t


def _each(o, f):
    """What f gives for all that tuples, lists and dicts hold."""
    if type(o) is dict:
        return {k: _each(v, f) for k, v in o.items()}
    return type(o)(_each(v, f) for v in o) if type(o) in (tuple, list) else f(o)


def _filled(o, given):
    return _each(o, lambda v: v.of(given) if type(v) is _From else v)


class _NoPlan(Exception):
    pass


def _watched(callable, which, operands, args, kwargs, grads, now, made):
    """The plan for such a call, or False."""
    import torch

    told = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}
    calls = []

    class Watch:  # a class of torch's for this takes seconds to begin
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace != "aten" or told & set(function.tags):
                raise _NoPlan
            out = function(*args, **(kwargs or {}))
            if not all(isinstance(t, torch.Tensor) for t in _several(out)):
                raise _NoPlan
            calls.append((function, args, kwargs or {}, out))
            return out

    with torch.enable_grad():
        leaves = [o.detach() for o in operands]
        for i in which:
            leaves[i].requires_grad_()
        stand_ins = {id(o): leaf for o, leaf in zip(operands, leaves)}
        args, kwargs = _each((args, kwargs), lambda v: stand_ins.get(id(v), v))
        torch._C._push_on_torch_dispatch_stack(Watch())
        try:
            results = _several(callable(*args, **kwargs))
            forward = len(calls)
            pairs = [(r, g) for r, g in zip(results, grads) if g is not None and r.requires_grad]
            gradients = torch.autograd.grad([r for r, _ in pairs], [leaves[i] for i in which], [g for _, g in pairs])
        except Exception:  # of those above, or torch's: the framework goes the whole way
            return False
        finally:
            torch._C._pop_torch_dispatch_stack(None)
    try:
        return _plan(calls, forward, leaves, grads, results, gradients, now, made)
    except _NoPlan:
        return False


def _several(out):
    return out if isinstance(out, (tuple, list)) else (out,)


def _memory(t):
    return t.untyped_storage()._cdata


def _place(t):
    return _memory(t), t.storage_offset(), t.shape, t.stride(), t.dtype


def _plan(calls, forward, leaves, grads, results, gradients, now, made):
    import torch

    known = {_place(t): (source, i) for source, group in (("operand", leaves), ("grad", grads)) for i, t in enumerate(group) if t is not None}
    if len(known) < len(leaves) + sum(g is not None for g in grads):  # what is one tensor here may be two in the next call
        raise _NoPlan
    if forward > 1 and not all(t.is_floating_point() for t in leaves):  # C++ may have read the numbers, as of lengths
        raise _NoPlan
    moved = {_memory(t) for t, n in zip(leaves, now) if n is not None}
    of_results = {_memory(r): i for i, r in enumerate(results)}

    def source(t, number):  # what _From says
        at = known.get(_place(t))
        if at is None:
            raise _NoPlan
        if number < forward or type(at[0]) is int and at[0] >= forward:
            return at
        if at[0] == "operand":
            return "later", at[1]
        if type(at[0]) is int:  # the forward pass made it
            if _memory(t) in moved:
                raise _NoPlan
            i = of_results.get(_memory(t))
            if made and i is not None and made[i] is not None:
                if made[i].stride() != results[i].stride():
                    raise _NoPlan
                return "result", i, (t.size(), t.stride(), t.storage_offset() - results[i].storage_offset())
        return at

    def taken(o, number):
        if isinstance(o, torch.Tensor):
            return _From(*source(o, number))
        if type(o) is dict:
            return {k: taken(v, number) for k, v in o.items()}
        return type(o)(taken(v, number) for v in o) if isinstance(o, (tuple, list)) else o

    made_by = []
    for number, (function, args, kwargs, out) in enumerate(calls):
        made_by.append((number, function, taken(args, number), taken(kwargs, number)))
        if function._schema.is_mutable:
            target = made_by[-1][2][0] if args else None
            if number < forward or type(target) is not _From or type(target.at[0]) is not int or target.at[0] < forward:
                raise _NoPlan
        known.update((_place(t), (number, i)) for i, t in enumerate(_several(out)))
    if any(g._is_zerotensor() for g in gradients):
        raise _NoPlan
    ends = [_From(*source(g, len(calls))) for g in gradients]
    needed = set(range(forward, len(calls)))
    _note(ends, needed)
    for number, _, *arguments in reversed(made_by):
        if number in needed:
            _note(arguments, needed)
    before = [call for call in made_by[:forward] if call[0] in needed]
    if len(before) + len(calls) - forward > MOST_CALLS:
        raise _NoPlan
    return _Plan(before, made_by[forward:], ends)


def _note(o, needed):
    if type(o) is _From:
        if type(o.at[0]) is int:
            needed.add(o.at[0])
    elif isinstance(o, (tuple, list, dict)):
        for item in o.values() if type(o) is dict else o:
            _note(item, needed)
