"""torch.autograd.Function in captured programs."""

from _thread import _local
from sys import getrefcount
from types import FunctionType
from weakref import WeakSet
from zlib import crc32

from ._gradients import differentiated


class Context:
    """What forward and backward are given while they are captured."""

    def __init__(self, needs_input_grad):
        self.needs_input_grad = needs_input_grad
        self.saved_tensors = ()
        self._obstacle = None
        self._opaque = ()
        self._materialize = True

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors):
        pass

    def mark_non_differentiable(self, *tensors):
        self._opaque = tensors

    def mark_dirty(self, *tensors):
        self._obstacle = "mark_dirty"

    def set_materialize_grads(self, value):
        self._materialize = bool(value)


def give_attributes(tensor, items):
    tensor.__dict__.update(items)


def call(function, *args, own=None):
    """The framework's own way, for replays. own: the number of the call whose backward function runs as it is."""
    kept = getattr(_state, "of_call", None)
    if own is not None and kept is not None:
        function = _keeping(function, kept, own)
    error = getattr(_state, "error", None)
    if error is not None and own in error.results:
        function = _answering(function, error.results[own])
    run = differentiated()
    if run is None or not isinstance(function, type):  # a call that is made again (framejit._wrappers.Again) has no backward of its own
        results = function.apply(*args)
    else:
        results = _sparing(function, run, args)
    own = _alive(args)
    node = _node_of(results) if own else None
    if node is not None:
        node.framejit_own = own
    return results


def _alive(objects):
    """What those of these functions that hold weakly must have."""
    return [o.__dict__["_framejit_alive"]() for o in objects if type(o) is FunctionType and "_framejit_alive" in o.__dict__]


def _node_of(results):
    import torch

    return next((t.grad_fn for t in (results if isinstance(results, tuple) else (results,)) if isinstance(t, torch.Tensor) and t.grad_fn is not None), None)


_state = _local()


class NoGradient(RuntimeError):
    """A backward function that was not captured gives None for a tensor that wants a gradient, or what the framework refuses: the pass goes through
    the framework. results: what it gives, by the number of its call, and what others have given in this pass."""


def answer(error):
    """From now on the calls of such an error have their results in replays (None: no call has); returns what was before."""
    before, _state.error = getattr(_state, "error", None), error
    return before


class Later:
    """What forward left for a backward function that runs as it is."""

    @property
    def saved_variables(self):
        import warnings

        warnings.warn("'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning, stacklevel=2)
        return self.saved_tensors


def holder(objects):
    """A constant of the graph by which a call has these objects. What those that hold weakly must have is held by each call, as long as a pass may come."""

    def held():
        return objects

    if _alive(objects.values()):
        held._framejit_alive = lambda: _alive(objects.values())
    return held


def own_backward(function, number, count, names, values, wanting, shared, held, uncounted, likes, *grads):
    """What a backward function of the program's gives when it is called as it is, for the arguments that want gradients: likes has (number, shape,
    dtype) of each, of `count` arguments. number: of the call. names, values, held: the attributes of its context. wanting: which tensors of the values
    want gradients there. shared: those that it may write to, and others read. uncounted: it may write to tensors in a way that their versions do not count."""
    import torch

    if any(g.is_meta for g in grads if g is not None):
        return tuple(torch.empty(shape, dtype=dtype, device="meta") for _, shape, dtype in likes)
    leaves = []
    context = Later()
    own = [g if g is None else g.detach() for g in grads]
    given = values
    if shared:
        values = _copied(values, {_address(t) for t in shared}, {})
    vars(context).update(zip(names, _wanting(values, wanting, leaves)), **(held() if held else {}))
    before = _references(own)
    kept = getattr(_state, "of_call", None)
    with _Pass(kept, number, context, uncounted, (given, own)):
        result = function(context, *own)
    del context
    if any(x.grad is not None for x in leaves):
        raise RuntimeError(f"framejit: {function.__qualname__} calls backward() through tensors of its context: detach them there")
    made = list(result) if isinstance(result, tuple) else [result]
    wanted = [made[i] if i < len(made) else None for i, _, _ in likes]
    usual = [isinstance(g, torch.Tensor) and g.layout == torch.strided and _expands(shape, g.shape) for g, (_, shape, _) in zip(wanted, likes)]
    if not all(usual) or len(made) < count or any(g is not None for g in made[count:]):
        error = NoGradient(f"{function.__qualname__} does not return a gradient for each tensor that wants one")
        error.results = {**_answers(kept), number: result}
        raise error
    if function not in _usual and kept is not None:
        _answers(kept)[number] = result
        _usual.add(function)
    del wanted
    del result
    for g, now, then in zip(own, _references(own), before):  # what somebody keeps needs memory of its own: this is the pass's
        if g is not None and now > then + sum(m is g for m in made):
            g.data = g.clone()
    memory = {g.untyped_storage().data_ptr() for g in (*grads, *own) if g is not None}
    alone = _references([torch.empty(0)])[0]
    gradients = []
    for i, shape, dtype in likes:
        g, made[i] = made[i], None
        if g.requires_grad:
            g = g.detach().clone()
        if g.shape != tuple(shape):  # as the framework's engine
            g = g.sum_to_size(shape)
        g = [g if g.dtype == dtype else g.to(dtype)]
        if g[0].untyped_storage().data_ptr() in memory or _references(g)[0] > alone:  # others read it, and the pass may write to it
            g = [g[0].clone(memory_format=torch.contiguous_format)]
        memory.add(g[0].untyped_storage().data_ptr())
        gradients += g
    return tuple(gradients)


_usual = WeakSet()  # functions that have given a gradient for each tensor that wants one


def _answers(kept):
    """By the number of the call: what functions that were not known to do so have given in this pass."""
    from torch._C import _current_graph_task_id as number_of_pass

    here = number_of_pass()
    for e in kept or ():
        if type(e) is tuple and e[0] is NoGradient and e[1] == here:
            return e[2]
    answers = {}
    if kept is not None:
        kept[:] = [e for e in kept if not (type(e) is tuple and e[0] is NoGradient)]
        kept.append((NoGradient, here, answers))
    return answers


def of_call(kept):
    """What the call of which a pass comes keeps of functions of the program's, from now on; returns what was before."""
    before, _state.of_call = getattr(_state, "of_call", None), kept
    return before


_ABSENT = object()
SCALARS = (type(None), bool, int, float, str)


class _Pass:
    """While it is entered, a backward function of the program's that is not captured runs. It finds in its context what earlier passes of the same call
    have changed there. What this one changes is kept for those that follow: the attribute, as the function leaves it."""

    def __init__(self, kept, number, context, uncounted, memory):
        """kept: what the call keeps, None: nothing. memory: tensors of the pass's own, of which the next one needs a copy."""
        self.kept, self.context, self.uncounted, self.memory = kept, context, uncounted, memory
        self.left = next((e[2] for e in kept or () if type(e) is tuple and e[0] is Later and e[1] == number), None)
        self.number = number

    def __enter__(self):
        if self.kept is None:
            return
        attributes = vars(self.context)
        for name, value in self.left.items() if self.left else ():
            if name == "saved_tensors" and not isinstance(self.context, Later):
                _refill(self.context.saved_tensors, value)
            elif value is _ABSENT:
                attributes.pop(name, None)
            else:
                attributes[name] = value
        self.held = list(attributes.values())  # or others may be taken for them
        self.before = {name: _as_it_is(value, self.uncounted) for name, value in attributes.items()}

    def __exit__(self, *error):
        if self.kept is None:
            return
        attributes, before = vars(self.context), self.before
        changed = {name for name, value in attributes.items() if before.get(name) != _as_it_is(value, self.uncounted)}
        if not changed and len(before) == len(attributes):
            return
        written = {_address(t) for name in changed for t in _tensors(attributes[name])}
        changed |= {name for name, value in attributes.items() if not written.isdisjoint(map(_address, _tensors(value)))}
        changed |= before.keys() - attributes.keys()
        if self.left is None:
            self.left = {}
            self.kept.append((Later, self.number, self.left))
        copies, memory = {}, {_address(t) for t in _tensors(self.memory)}
        self.left.update({name: _copied(attributes[name], memory, copies) if name in attributes else _ABSENT for name in changed})


def _keeping(function, kept, number):
    """This function, for replays: its backward finds in the context what other passes of the call have left there."""
    from ._kernels import manner

    name = _name_of_backward(function)

    def backward(ctx, *grads):
        own = getattr(function, name)
        _, _, uncounted = manner(own)
        with _Pass(kept, number, ctx, uncounted, ()):
            return own(ctx, *grads)

    return type(function.__name__, (function,), {name: staticmethod(backward)})


def _name_of_backward(function):
    import torch

    return "vjp" if function.backward is torch.autograd.Function.backward else "backward"


def _tensors(value):
    """Those of a value, also in lists, tuples and dicts."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for v in value.values() if isinstance(value, dict) else value:
            yield from _tensors(v)


def _address(tensor):
    """Of the memory that it shares with others."""
    import torch

    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _as_it_is(value, uncounted):
    """What writes to this value of a context, or to what it holds, would change."""
    if isinstance(value, SCALARS):
        return id(value)
    import torch

    if isinstance(value, torch.Tensor):
        content = uncounted and _content(value)
        return id(value), value._version, value.data_ptr() if value.layout == torch.strided else 0, content
    if isinstance(value, dict):
        return id(value), [(id(k), _as_it_is(v, uncounted)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return id(value), [_as_it_is(v, uncounted) for v in value]
    return id(value), len(value) if isinstance(value, (set, bytearray)) else crc32(value.tobytes()) if hasattr(value, "__array_interface__") else None


def _content(tensor):
    """A checksum of what a tensor holds."""
    import torch

    with torch._C.DisableTorchFunctionSubclass():
        rows = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    return crc32(rows.reshape(-1).view(torch.uint8).numpy())


def _copied(value, memory, copies):
    """The same, without what lies at one of these addresses. Tensors that share memory do so in the copies, too."""
    import torch

    if isinstance(value, torch.Tensor):
        address = _address(value)
        if address not in memory:
            return value
        if address in copies:
            own = torch.empty(0, dtype=value.dtype, device=value.device)
            own.set_(copies[address].untyped_storage(), value.storage_offset(), value.size(), value.stride())
        elif value.is_contiguous() and value.nbytes == value.untyped_storage().nbytes():
            own = copies[address] = value.detach().clone()
        else:
            own = torch.empty(0, dtype=value.dtype, device=value.device)
            copies[address] = own.set_(value.untyped_storage().clone(), value.storage_offset(), value.size(), value.stride())
        return own.requires_grad_() if value.requires_grad else own
    if type(value) is dict:
        for k, v in value.items():
            value[k] = _copied(v, memory, copies)
    elif type(value) is list:
        value[:] = [_copied(v, memory, copies) for v in value]
    elif type(value) is tuple:
        return tuple(_copied(v, memory, copies) for v in value)
    return value


def _refill(tensors, values):
    """These tensors hold what those do."""
    import torch

    with torch.no_grad():
        for tensor, value in zip(tensors, values):
            if tensor is not None and not torch.equal(tensor, value):
                tensor.data.copy_(value)


def _wanting(value, wanting, leaves):
    """This value, of which those tensors want gradients as what forward was given did."""
    if wanting is True:
        leaves.append(value.detach().requires_grad_())
        return leaves[-1]
    return type(value)(_wanting(*pair, leaves) for pair in zip(value, wanting)) if wanting else value


def _expands(shape, to):
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(to)))


def _references(objects):
    """How many there are to each of these objects, all counted in the same way."""
    counts = []
    for i in range(len(objects)):
        counts.append(getrefcount(objects[i]))
    return counts


def _answering(function, result):
    """This function, whose backward gives this once."""
    left = [result]

    def backward(ctx, *grads):
        return left.pop() if left else function.backward(ctx, *grads)

    return type(function.__name__, (function,), {"backward": staticmethod(backward)})


def _sparing(function, run, args):
    """What the function gives, whose backward is not called where all that it would be given went to the program's own results (_gradients.Own): eager
    does not come by it."""
    from torch._C import _current_graph_task_id as number_of_pass

    spared = set()  # passes

    def before(grads):
        if all(g is None for g in grads) and number_of_pass() in run.given:
            spared.add(number_of_pass())

    name = _name_of_backward(function)

    def backward(ctx, *grads):
        if number_of_pass() in spared:
            spared.remove(number_of_pass())
            return (None,) * len(args)
        return getattr(function, name)(ctx, *grads)

    results = type(function.__name__, (function,), {name: staticmethod(backward)}).apply(*args)
    node = _node_of(results)
    if node is not None:
        node.register_prehook(before)
    return results


def fill_diagonal(x, value, wrap=False):
    return x.clone().fill_diagonal_(value, wrap)


def stored_within(x, key, of, strides):
    """x of which one part is stored in another one, which may share memory with it, in the order of the framework's kernel for an x that lies so."""
    import torch

    y = x.clone()
    lies = y.stride() == strides
    if not lies:  # with gaps
        y = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)
    to = _uncounted(y)
    to[key] = to[of]
    return y if lies else y.clone()


def index_put_copy(x, indices, values):
    """x with values stored at indices (None: all of a dimension), row by row in memory of its own."""
    import torch

    y = x.clone(memory_format=torch.contiguous_format)
    (_uncounted(y) if not torch.is_grad_enabled() or not values.requires_grad else y)[tuple(slice(None) if i is None else i for i in indices)] = values
    return y


def _uncounted(y):
    """What writes to a new tensor go through that its version does not count, where gradients need not know of them."""
    return y if y.requires_grad else y.data


def efficient_attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """scaled_dot_product_attention by the kernel that takes any mask and any length, the mask's rows aligned as it wants them."""
    import torch

    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros((), dtype=query.dtype, device=bias.device).masked_fill(~bias, -torch.inf)
        bias = bias.expand(*query.shape[:-1], key.shape[-2])
        lacking = -bias.shape[-1] % 16
        if lacking or bias.stride(-1) != 1:
            bias = torch.nn.functional.pad(bias, (0, lacking))[..., : key.shape[-2]]
    return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, bias, False, 0.0, is_causal, scale=scale)[0]


def count_of(number):
    """A tensor, of no memory, whose size is the integer that `number` holds; a negative one is no size, which two dimensions say."""
    count = number.item()
    return number.new_empty((0, 0)) if count < 0 else number.new_empty(()).expand(count)


def tensor_of(value):
    """What a function of NumPy gave, as a torch tensor of the same memory where that can be."""
    import numpy
    import torch

    array = numpy.asarray(value)
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.from_numpy(array)


def put(x, key, values):
    """x with values stored at an index."""
    y = x.clone()
    y[key] = values
    return y


def batched(name, dims, /, *args, **kwargs):
    """A function of torch under `torch.vmap`; dims: of each tensor among the arguments, in their order, also in lists."""
    import functools
    import sys

    import torch

    first, *rest = name.split(".")
    function, tensors = functools.reduce(getattr, rest, sys.modules[first]), []

    def gather(x):
        if isinstance(x, torch.Tensor):
            tensors.append(x)
        elif isinstance(x, (list, tuple)):
            for item in x:
                gather(item)

    def substitute(x, samples):
        if isinstance(x, torch.Tensor):
            return next(samples)
        return type(x)([substitute(item, samples) for item in x]) if type(x) in (list, tuple) else x

    def one(*samples):
        samples = iter(samples)
        given = [substitute(a, samples) for a in args]
        return function(*given, **{k: substitute(a, samples) for k, a in kwargs.items()})

    for a in (*args, *kwargs.values()):
        gather(a)
    return torch.vmap(one, in_dims=tuple(dims))(*tensors)


def written(op, writes, results, *args):
    """A call of an operator that writes to arguments, on copies of these: (their new values, one after the other, then its results). writes: the
    numbers of those arguments; results: how many it has that are none of them."""
    import torch

    args, new = list(args), []
    for i in writes:
        tensors = args[i] if isinstance(args[i], (list, tuple)) else [args[i]]
        copies = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device).copy_(t) for t in tensors]
        args[i] = copies if isinstance(args[i], (list, tuple)) else copies[0]
        new += copies
    positional = sum(not a.kwarg_only for a in op._schema.arguments)
    named = {a.name: v for a, v in zip(op._schema.arguments[positional:], args[positional:])}
    if not results and any(t.is_meta for t in new):  # nothing is to be said of it
        return tuple(new)
    made = op(*args[:positional], **named)
    if not results:
        return tuple(new)
    made = made if isinstance(made, tuple) else (made,)
    return (*new, *(m for m, r in zip(made, op._schema.returns) if r.alias_info is None))


def number_arguments(name):
    """The arguments of torch's operator of this name, by position and by name, that are numbers in all of its overloads that have them: True where a
    tensor of one element will do, False where it must have no dimension. A first argument that is a list of integers is "list"."""
    import torch

    kinds, known = {}, {"SymIntType": True, "IntType": False, "NumberType": False}
    for schema in torch._C._jit_get_schemas_for_operator("aten::" + name):
        for i, a in enumerate(schema.arguments):
            kind = known.get(a.real_type.kind())
            if i == 0 and a.real_type.kind() == "ListType" and a.real_type.getElementType().kind() in ("SymIntType", "IntType"):
                kind = "list"
            for key in (a.name,) if a.kwarg_only else (i, a.name):
                kinds.setdefault(key, set()).add(kind)
    return {key: kind for key, (kind, *others) in kinds.items() if kind is not None and not others}


def parameters_by_position(function):
    """(names of the parameters that may be given by position, are there any number of others behind them?), or None: the function does not tell."""
    import inspect

    try:
        told = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = inspect.Parameter
    names = tuple(p.name for p in told if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD))
    return names, any(p.kind is kinds.VAR_POSITIONAL for p in told)


def float_of_leaf():
    """Asks torch for what it says where float() is asked of a tensor that requires gradients."""
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        return float(torch.ones((), dtype=torch.float32, device="cpu", requires_grad=True))


_plans = {}


def plan_of(op, tracked):
    """How a captured program calls an operator of torch.library: None: as it is. True: torch breaks it down into others. (op, names, defaults, absent, writes, returned, function, defined):
    the arguments in their order; which of them it writes to; for each result the argument that it is, or -1; a torch.autograd.Function that does it
    with gradients; and the definition whose attributes _backward_fn and _setup_context_fn that function is made of."""
    import torch

    if isinstance(op, torch._ops.OpOverloadPacket):
        overloads = op.overloads()
        if len(overloads) != 1:
            return None
        op = getattr(op, overloads[0])
    defined = torch._library.custom_ops.OPDEFS.get(op._schema.name)
    backward, setup = (defined._backward_fn, defined._setup_context_fn) if defined and tracked else (None, None)
    key = op, tracked, backward, setup
    if key not in _plans:
        _plans[key] = _planned(op, tracked, backward, setup)
    return (*_plans[key], defined) if isinstance(_plans[key], tuple) else _plans[key]


def _planned(op, tracked, backward, setup):
    import torch

    arguments, results = op._schema.arguments, op._schema.returns
    writes = tuple(i for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write)
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return True
    if any(a.alias_info and not a.alias_info.is_write for a in arguments) or any(r.alias_info and not r.alias_info.is_write for r in results):
        return None
    lists = any("[]" in str(a.type) or "List" in str(a.type) for a in (*arguments, *results))
    function = None
    if tracked:
        if backward is None or writes or lists or any(a.kwarg_only for a in arguments):
            return None
        function = _differentiable(op, backward, setup)
    elif not writes:
        return None
    returned = tuple(
        next((i for i in writes if r.alias_info and arguments[i].alias_info.before_set & r.alias_info.before_set), -1) for r in results
    )
    absent = object()
    defaults = tuple(a.default_value if a.has_default_value() else absent for a in arguments)
    return op, tuple(a.name for a in arguments), defaults, absent, writes, returned, function


def _differentiable(op, backward, setup):
    import torch

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            result = op(*args)
            if setup is not None:
                setup(ctx=ctx, inputs=args, output=result)
            return result

    Operator.backward = staticmethod(backward)
    return Operator


def special_gelu(dtype):
    """Of gelu on the CPU in this dtype: is gelu(inf) not a number, is gelu(-0.0) a positive zero?"""
    import torch

    x = torch.tensor([float("inf"), -0.0] * 8, dtype=dtype, device="cpu")
    infinite, zero = torch.nn.functional.gelu(x)[:2].tolist()
    return infinite != infinite, str(zero) == "0.0"


def _dense(shape, strides, expected):
    """Do the elements lie one after the other, in the order of these axes?"""
    if 0 in shape:
        return True
    for size, stride in zip(shape, strides):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class ArrayFlags:
    """`flags` of a NumPy array that a graph holds. What only the array in memory knows ends the graph."""

    def __init__(self, array):
        self._array = array

    def _end_graph(self, *args):
        return self._array.data

    __eq__ = __ne__ = __hash__ = __repr__ = __str__ = __setitem__ = _end_graph
    farray = carray = behaved = writeable = owndata = writebackifcopy = num = property(_end_graph, _end_graph)
    aligned = property(lambda self: True, _end_graph)

    @property
    def c_contiguous(self):
        return _dense(self._array.shape[::-1], self._array.strides[::-1], self._array.itemsize)

    @property
    def f_contiguous(self):
        return _dense(self._array.shape, self._array.strides, self._array.itemsize)

    contiguous, fortran = c_contiguous, f_contiguous
    forc = property(lambda self: self.f_contiguous or self.c_contiguous)
    fnc = property(lambda self: self.f_contiguous and not self.c_contiguous)
    _NAMES = {"C": "c_contiguous", "F": "f_contiguous", "CONTIGUOUS": "c_contiguous", "A": "aligned", "W": "writeable", "B": "behaved", "O": "owndata",
              "CA": "carray", "FA": "farray", "X": "writebackifcopy"}  # fmt: skip

    def __getattr__(self, name):
        return self._end_graph()

    def __getitem__(self, name):
        if not isinstance(name, str):
            return self._end_graph()
        known = self._NAMES.get(name, name.lower())
        if name == name.upper() and not known.startswith("_") and hasattr(ArrayFlags, known):
            return getattr(self, known)
        raise KeyError("Unknown flag")
