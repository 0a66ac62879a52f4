"""Called by compiled training graphs."""

import functools
from _thread import _local  # threading, once imported, changes what ends when at the end of the program


def leaf(x):
    """A tensor by which the program takes derivatives inside of a graph, when its calls are replayed."""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def track(x, on):
    """`x.requires_grad_(on)` of what the graph makes, which is no write."""
    return x.requires_grad_(on)


def grad(outputs, inputs, seeds, create):
    """Such a derivative."""
    import torch

    return torch.autograd.grad(outputs, inputs, seeds, retain_graph=True, create_graph=create, allow_unused=True)


def passed(results, inputs, ends):
    """Does a pass from these results come by each of these inputs, be it without a gradient? It ends there, and at `ends`."""
    from torch.autograd.graph import get_gradient_edge

    to = [get_gradient_edge(t) for t in inputs]
    done = {node for node, *_ in (*to, *map(get_gradient_edge, ends))}
    seen, left = set(), [(edge.node, edge.output_nr) for edge in map(get_gradient_edge, results)]
    while left:
        edge = left.pop()
        if edge[0] is not None and edge not in seen:
            seen.add(edge)
            if edge[0] not in done:
                done.add(edge[0])
                left += edge[0].next_functions
    return [(edge.node, edge.output_nr) in seen for edge in to]


def keeping(kept):
    """While it is entered, what torch keeps for derivatives is put into the list."""
    import torch

    return torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)


def standing(moved):
    """While it is entered, derivatives read of each pair (then, now) in `moved` the second one where the first was kept. The list may grow
    until they run."""
    import torch

    def read(t):
        for then, now in moved:
            if t.untyped_storage()._cdata == then.untyped_storage()._cdata:
                if now.stride() != then.stride():
                    now = torch.empty_like(then).copy_(now)
                return now.as_strided(t.size(), t.stride(), t.storage_offset() - then.storage_offset() + now.storage_offset())
        return t

    return torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), read)


@functools.cache
def left_behind():
    """Types of the nodes of operations in place that leave the gradient that a tensor keeps (`retain_grad`) where it was: they view it as
    something else. All others take it with them. torch is asked, once."""
    import torch

    types = set()
    views = (("unsqueeze_", 0), ("squeeze_",), ("squeeze_", 0), ("squeeze_", (0,)), ("t_",), ("transpose_", 0, 1), ("as_strided_", (1,), (1,)))
    with torch.enable_grad():
        for name, *arguments in views:
            y = torch.zeros(1, 1, device="cpu", requires_grad=True) * 1
            y.retain_grad()
            total = y.sum()
            getattr(y, name)(*arguments)
            total.backward()
            if y.grad is not None:
                types.add(type(y.grad_fn))
    return types


def check_answer(hook, grad, answer):
    """Raises as torch does where a hook puts something else in the place of a gradient."""
    import torch

    name = getattr(hook, "__name__", "<unknown>")
    if not isinstance(answer, torch.Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(answer).__name__}'")
    if answer.type() != grad.type():
        raise RuntimeError(f"hook '{name}' has changed the type of value (was {grad.type()} got {answer.type()})")
    if answer.shape != grad.shape:
        raise RuntimeError(f"hook '{name}' has changed the size of value")


def _counts_nodes(hook):
    """Is it a hook of torch.autograd.graph.register_multi_grad_hook, which waits for as many calls as nodes run?"""
    names = getattr(getattr(hook, "__code__", None), "co_qualname", "").split(".")
    return names[0] == "register_multi_grad_hook" and names[-1] == "inner_hook" and hook.__module__ == "torch.autograd.graph"


def tell_none(hook):
    """The tensor of this hook gets no gradient, though its node runs: one that counts nodes is called. Where none of its tensors gets one the
    program's function is not called."""
    if not _counts_nodes(hook):
        return
    cell = dict(zip(hook.__code__.co_freevars, hook.__closure__))["fn"]
    function = cell.cell_contents

    def some(grads):
        if any(g is not None for g in grads):
            function(grads)

    cell.cell_contents = some
    try:
        hook(None)
    finally:
        cell.cell_contents = function


class _WithoutNone:
    """A hook that is called with gradients only."""

    def __init__(self, hook):
        functools.update_wrapper(self, hook, updated=())  # torch names it in errors
        self.hook = hook

    def __call__(self, grad):
        return tell_none(self.hook) if grad is None else self.hook(grad)


def keep_none_from(hooks):
    for key, hook in list(hooks.items()):
        hooks[key] = hook if isinstance(hook, _WithoutNone) else _WithoutNone(hook)


class _WithGradient:
    """A hook of register_post_accumulate_grad_hook that is not called where nothing was added since `before`."""

    def __init__(self, hook):
        functools.update_wrapper(self, hook, updated=())
        self.hook, self.before = hook, None

    def __call__(self, tensor):
        before, self.before = self.before, None
        if before and before[0] is tensor.grad and before[1] == _version_of(tensor.grad):
            return None
        return self.hook(tensor)


def modified(text, tensor, is_result, now, then):
    """What torch says of a tensor that was written before its backward pass; of the size and the node of a result nothing is known here."""
    import torch

    what = tensor.type() if is_result else f"{tensor.type()} {list(tensor.shape)}"
    made = "the function compiled by framejit" if is_result else tensor.grad_fn and tensor.grad_fn.name()
    of = f", which is output {'' if is_result else f'{tensor.output_nr} '}of {made}," if made else ""
    hint = "enable anomaly detection to find the operation that failed to compute its gradient, with torch.autograd.set_detect_anomaly(True)."
    if torch.is_anomaly_enabled():
        hint = "the backtrace further above shows the operation that failed to compute its gradient. The variable in question was changed in there or anywhere later. Good luck!"
    return f"{text}: [{what}]{of} is at version {now}; expected version {then} instead. Hint: {hint}"


def _version_of(grad):
    return None if grad is None else grad._version


def only_with_gradient(hooks, tensor):
    """This pass has no gradient for the tensor, at whose node it arrives all the same."""
    for key, hook in list(hooks.items()):
        hooks[key] = kept = hook if isinstance(hook, _WithGradient) else _WithGradient(hook)
        kept.before = tensor.grad, _version_of(tensor.grad)


def keep(tensor, grad):
    """tensor.grad = grad, also of a tensor that has another shape since it was asked to keep it. Shape of `grad`: what it was then."""
    import torch

    if torch.is_grad_enabled() or not grad.is_contiguous():  # a replay's, of which others may have the memory
        grad = grad.clone(memory_format=torch.contiguous_format)
    if tensor.shape == grad.shape:
        tensor.grad = grad
        return
    if grad.requires_grad:
        raise RuntimeError("framejit: a gradient that is differentiated is kept by a tensor that was viewed in place")
    own = grad.detach()
    tensor.grad = kept = own.reshape(tensor.shape)
    kept.set_(own)


_stand_ins = _local()


def result(x, number):
    """A result of the program of which others are made, when its calls are replayed: x, whose gradient goes to what stands for it. All values
    of a replay are the framework's: what is equal in eager is equal here, though the program's own result differs from x in its last place."""
    stands = getattr(_stand_ins, "by_number", {})
    if number not in stands:
        return x
    made = stands[-1 - number] = _standing().apply(stands[number], x.detach())
    return made


def differentiated():
    """The Own of the replay that is under way; None: its gradients are not differentiated."""
    return getattr(_stand_ins, "by_number", {}).get(None)


def stand(by_number):
    """From now on: by the number of a result, a tensor that leads to what the program's own leads to, and by None the replay's Own; returns what stood
    before."""
    before = getattr(_stand_ins, "by_number", {})
    _stand_ins.by_number = by_number
    return before


def add_up(results, leaves, gradients):
    """What a pass from these results, which goes everywhere it leads to, adds to the leaves."""
    import torch

    torch.autograd.backward(results, gradients)
    return tuple(leaf.grad for leaf in leaves)


def _autocast(state):
    """What a checkpoint finds of autocast when it is entered."""
    import contextlib

    import torch

    types = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
    *devices, cache = state
    stack = contextlib.ExitStack()
    for device, on, dtype in devices:
        if device == "cpu" or torch.cuda.is_available():
            stack.enter_context(torch.autocast(device, dtype=types[dtype], enabled=on, cache_enabled=cache))
    return stack


class Checkpoints:
    """Of a replay whose checkpoints are the framework's own: their first call is the replay's calls between two marks, and what a pass calls
    again is the program's function, which finds what is there by then."""

    def __init__(self, call):
        self.call, self.open = call, []

    def enter(self, number, tensors):
        import inspect

        import torch
        from torch.utils import checkpoint as own

        function, args, kwargs, options, autocast = self.call(number, tensors)
        if options["use_reentrant"]:
            device, states = own._infer_device_type(*args), None
            if options.get("preserve_rng_state", True):
                started = getattr(own._get_device_module(device), "_initialized", False)
                states = torch.get_rng_state(), *(own.get_device_states(*args) if started else ([], []))
            unseen = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
            unseen.__enter__()  # its first call records nothing, so that one around it counts nothing
            self.open.append((function, args, options, autocast, device, states, unseen))
            return
        told = {"preserve_rng_state": True, "context_fn": own.noop_context_fn, "determinism_check": "default", "debug": False, "early_stop": True}
        told.update(options)
        begin = own._checkpoint_without_reentrant_generator
        names = list(inspect.signature(begin).parameters)[1:-2]
        generator = begin(function, *(told[name] for name in names), *args, **kwargs)
        with _autocast(autocast):
            next(generator)
        self.open.append(generator)

    def leave(self, results):
        import torch
        from torch.utils import checkpoint as own

        entered = self.open.pop()
        if not isinstance(entered, tuple):
            next(entered, None)
            return results
        function, args, options, autocast, device, states, unseen = entered
        unseen.__exit__()
        first = [tuple(result.detach() for result in results)]

        def run(*inputs):
            return first.pop() if first else function(*inputs)

        devices = states[1] if states else []
        with torch.random.fork_rng(devices=devices, enabled=bool(states), device_type=device), _autocast(autocast):
            if states:
                torch.set_rng_state(states[0])
                own.set_device_states(devices, states[2], device_type=device)
            return own.CheckpointFunction.apply(run, bool(states), *args)

    def close(self):
        """The replay has failed."""
        while self.open:
            entered = self.open.pop()
            entered[-1].__exit__() if isinstance(entered, tuple) else entered.close()


def enter_checkpoint(number, *tensors):
    """In front of the calls of a checkpoint's function, when the program's calls are replayed."""
    if checkpoints := getattr(_stand_ins, "by_number", {}).get("checkpoints"):
        checkpoints.enter(number, tensors)


def leave_checkpoint(number, *results):
    """Behind them; of the reentrant form, what it gives of these results."""
    checkpoints = getattr(_stand_ins, "by_number", {}).get("checkpoints")
    left = checkpoints.leave(results) if checkpoints else results
    return left or None


@functools.cache
def _standing():
    import torch

    class Standing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, result, value):
            ctx.set_materialize_grads(False)  # a gradient that a function answers with None stays None
            return value.detach()

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    return Standing


def _hooks_of(result):
    """The dict of a result's hooks, also of those that come later. A node of ours calls none of them where there is no gradient."""
    if hasattr(result.grad_fn, "_segment"):
        return {}
    if result._backward_hooks is None:
        from collections import OrderedDict

        result._backward_hooks = OrderedDict()
        result.grad_fn._register_hook_dict(result)
    return result._backward_hooks


class Own:
    """Of a replay whose gradients are differentiated: what these owe to results of the replay, since derivatives are made of them, they
    owe to the program's own results. The replay begins at a node that has edges to those, and hands on what the others were given."""

    def __init__(self):
        self.differentiated = False  # what arrives from now on comes from a derivative
        self.given = {}  # by torch's number of the pass: by result, what it was given

    def begin(self, inputs, results):
        """Aliases of the inputs."""
        self.results = [(result.grad_fn, _hooks_of(result)) for result in results]
        return _beginning().apply(self, len(inputs), *inputs, *results)

    def at_first(self, hook):
        return lambda grad: None if self.differentiated else hook(grad)

    def hold(self, results):
        """The replay's own, in the same order."""
        from torch._C import _current_graph_task_id as number_of_pass

        def hold(number, result):
            at = result.output_nr

            def before(grads):
                if not self.differentiated or grads[at] is None:
                    return None
                self.given.setdefault(number_of_pass(), {})[number] = grads[at]
                return (*grads[:at], None, *grads[at + 1 :])

            result.grad_fn.register_prehook(before)

        for number, result in enumerate(results):
            if result.grad_fn is not None:
                hold(number, result)


@functools.cache
def _beginning():
    import torch
    from torch._C import _current_graph_task_id as number_of_pass

    class Beginning(torch.autograd.Function):
        @staticmethod
        def forward(ctx, own, count, *tensors):
            ctx.own, ctx.results = own, len(tensors) - count
            ctx.set_materialize_grads(False)
            return tuple(t.view_as(t) for t in tensors[:count])

        @staticmethod
        def backward(ctx, *grads):
            given = ctx.own.given.pop(number_of_pass(), {})
            run = [node for i, (node, _) in enumerate(ctx.own.results) if i in given]
            for node, hooks in ctx.own.results:
                if node not in run:  # of parts of one view (split) torch tells all
                    keep_none_from(hooks)
            return None, None, *grads, *(given.get(i) for i in range(ctx.results))

    return Beginning


WHOLE = 16 << 20  # bytes of which a copy is made
SAMPLES = 256


def _sample(x):
    rows = x.reshape(-1)
    return rows[:: max(1, len(rows) // SAMPLES)].clone()


def _alike(a, b):
    """Equal, not-a-numbers too."""
    import torch

    return torch.equal(a, b) or a.shape == b.shape and a.dtype == b.dtype and torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (a, b)))


def shown(x, before):
    """What an input of a call holds, whose memory is shown to somebody who may write there uncounted (`x.data`): a copy, or, of a large one, (some of it,).
    before: what another call has of it (None: nothing), which is shared if it is the same."""
    x = x.detach()
    whole = x.nbytes <= WHOLE
    if isinstance(before, tuple) != whole and before is not None and _alike(before if whole else before[0], x if whole else _sample(x)):
        return before
    return x.clone() if whole else (_sample(x),)


def held(content, x):
    """None: the tensor holds that still. Else new memory that holds it."""
    x = x.detach()
    if isinstance(content, tuple):
        if _alike(content[0], _sample(x)):
            return None
        raise RuntimeError("framejit: a backward pass that runs the program again: a large input was written since, in a way that its version does not count (`x.data`)")
    return None if _alike(content, x) else content.clone()


def follow(gradients, aliases, inputs, given, watched):
    """Where such gradients of a replay are differentiated, its aliases of inputs have the memory that the inputs have by then (`x.data = u`).
    What the pass was given is none of them. `watched`: tensors that share the version of a result each, and results of the replay. Writes
    to the former count as writes to the latter."""
    import torch
    from torch._C import _current_graph_task_id as number_of_pass

    last = None
    results = [(theirs, own.detach()) for theirs, own in watched]
    for _, own in results:
        own.data = own.new_empty(0)  # it only counts
    versions = [theirs._version for theirs, _ in results]

    def before(_):
        nonlocal last
        if last != (last := number_of_pass()):
            for alias, x in zip(aliases, inputs, strict=True):
                if alias.data_ptr() != x.data_ptr() or alias.stride() != x.stride():
                    alias.data = x.data
            for i, (theirs, own) in enumerate(results):
                if theirs._version != versions[i]:
                    versions[i] = theirs._version
                    torch.autograd.graph.increment_version(own)

    outside = {None, *(g.grad_fn for g in given)}
    for node in {g.grad_fn for g in gradients if g is not None} - outside:
        node.register_prehook(before)


def attention(kernel, q, k, v, mask, dropout, causal, scale):
    """scaled_dot_product_attention by one of torch's kernels: (result, what its kernel for the gradients wants...)."""
    import torch

    aten = torch.ops.aten
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    if kernel == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, attn_mask=mask, scale=scale)
    if kernel == "flash":
        r = aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)
        return r[0], r[1], r[6], r[7]
    if mask is not None and kernel == "efficient":
        mask = mask.expand(*q.shape[:3], k.shape[2])
    if kernel == "efficient":
        return aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, dropout, causal, scale=scale)
    r = aten._scaled_dot_product_cudnn_attention(q, k, v, mask, True, dropout, causal, False, scale=scale)
    return r[0], r[1], r[6], r[7]


def attention_backward(kernel, g, q, k, v, mask, dropout, causal, scale, kept):
    """The gradients of query, key and value."""
    import torch

    aten = torch.ops.aten
    g, q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (g, q, k, v))
    out, sums, *draws = kept
    if kernel == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, out, sums, dropout, causal, attn_mask=mask, scale=scale)
    lengths = q.shape[2], k.shape[2]
    if kernel == "flash":
        return aten._scaled_dot_product_flash_attention_backward(g, q, k, v, out, sums, None, None, *lengths, dropout, causal, *draws, scale=scale)
    if mask is not None and kernel == "efficient":
        mask = mask.expand(*q.shape[:3], k.shape[2])
    if kernel == "efficient":
        return aten._scaled_dot_product_efficient_attention_backward(g, q, k, v, mask, out, sums, *draws, dropout, [True, True, True, False], causal, scale=scale)[:3]
    return aten._scaled_dot_product_cudnn_attention_backward(g, q, k, v, out, sums, *draws, mask, None, None, *lengths, dropout, causal, scale=scale)


def _settings():
    import torch

    cuda = torch.backends.cuda
    return tuple(f() for f in (cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.cudnn_sdp_enabled, torch.are_deterministic_algorithms_enabled))


def attention_form(device, dtype, operands, dropout, causal, scale, fixed):
    """(kernel, (dtype, sizes, strides, is it on the device) of each result of `attention`): of torch's kernels the one that eager
    would run on operands of these sizes and strides where gradients are wanted. fixed: sizes will be no others; else a kernel for all
    sizes. None: another way is taken."""
    return _attention_form(device, dtype, operands, dropout, causal, scale, fixed, _settings() if device != "cpu" else ())


@functools.lru_cache(256)
def _attention_form(device, dtype, operands, dropout, causal, scale, fixed, settings):
    import torch

    on_cpu = device == "cpu"
    with torch.enable_grad():
        made = [torch.empty_strided(*o, dtype=dtype, device="meta" if on_cpu else device) for o in operands]
        q, k, v, mask = (*made, None)[:4]
        kernel = "cpu"
        if not on_cpu:
            if q.shape[-1] % (16 // dtype.itemsize) or (causal and q.shape[2] != k.shape[2]):
                return None
            choice = torch._fused_sdp_choice(*(t.requires_grad_() for t in (q, k, v)), attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale)
            kernel = {1: "flash", 2: "efficient", 3: "cudnn"}.get(int(choice))
            if kernel is None or (mask is not None and (kernel == "flash" or (kernel == "efficient" and k.shape[2] % 8))):
                return None
            if not fixed and kernel == "cudnn" and torch.backends.cuda.can_use_flash_attention(torch.backends.cuda.SDPAParams(q, k, v, mask, dropout, causal, False)):
                kernel = "flash"
            if not fixed and (mask is not None or kernel == "cudnn"):  # these do not take every length
                return None
    with torch.no_grad():
        if on_cpu:
            results = attention(kernel, q, k, v, mask, dropout, causal, scale)
            tiny = (torch.zeros(1, 1, 1, q.shape[-1], dtype=dtype) for _ in "qkv")
            types = [t.dtype for t in attention(kernel, *tiny, None, 0.0, False, None)]  # "meta" has others in some versions of torch
            results = [t.to(dtype) for t, dtype in zip(results, types)]
        else:
            results = _tried(kernel, q, k, v, mask, dropout, causal, scale)
    return (kernel, *((str(t.dtype), tuple(t.shape), tuple(t.stride()), on_cpu or t.device == q.device) for t in results))


def _tried(kernel, q, k, v, mask, dropout, causal, scale):
    """The results of `attention`, which is run forward and backward: what it does not take it refuses. cuDNN compiles each way the
    first time, which takes up to a second: both at once, backward with results as they are expected."""
    import threading

    import torch

    def backward(results):
        attention_backward(kernel, torch.empty_like(results[0]), q, k, v, mask, dropout, causal, scale, results)

    tried, stream = [], torch.cuda.current_stream(q.device)

    def beside():
        try:
            with torch.no_grad(), torch.cuda.device(q.device), torch.cuda.stream(stream):
                size, heads, length = q.shape[:3]
                inside = q.stride(1) < q.stride(2)
                out = q.new_empty(size, length, heads, v.shape[3]).transpose(1, 2) if inside else q.new_empty(*q.shape[:3], v.shape[3])
                drawn = q.new_zeros((), dtype=torch.int64)
                expected = out, q.new_zeros(*q.shape[:3], 1, dtype=torch.float32), drawn, drawn
                backward(expected)
                tried.extend(expected)
        except Exception:  # noqa: BLE001: then one after the other
            pass

    draws = torch.cuda.get_rng_state(q.device) if dropout else None
    thread = threading.Thread(target=beside) if kernel == "cudnn" else None
    if thread:
        thread.start()
    try:
        results = attention(kernel, q, k, v, mask, dropout, causal, scale)
        if thread:
            thread.join()
        if [_lies(t) for t in tried] != [_lies(t) for t in results]:
            backward(results)
    finally:
        if thread:
            thread.join()
        if draws is not None:
            torch.cuda.set_rng_state(draws, q.device)
    return results


def _lies(t):
    return t.dtype, t.shape, t.stride(), t.device


def embedding(table, g, index, padding):
    """Adds to table what F.embedding's result owes to its rows: in its own memory, which nobody else reads."""
    from ._framejit import add_rows

    if g.numel():
        rows = g.reshape(index.numel(), table.shape[1])
        add_rows(table, rows if rows.stride(1) == 1 else rows.contiguous(), index.reshape(-1), padding)
    return table


def has_extreme(result):
    """Is a tensor made of an extreme (amax, amin) of something, as far as its nodes tell?"""
    nodes = [result.grad_fn]
    for node in nodes:  # which grows
        if node is not None:
            if node.name().startswith(("Amax", "Amin")):
                return True
            nodes += [next for next, _ in node.next_functions if next not in nodes]
    return False


def take(g, index, sizes, axis):
    """Of data.index_select(axis, index): g's slices added up where they came from. Indices are not negative."""
    import torch

    if axis == 0 and index.numel() and g[0].numel() >= 16:  # several threads, where index_add has one
        rows = g.reshape(index.numel(), -1)
        return torch.ops.aten.embedding_dense_backward(rows, index, sizes[0], -1, False).view(sizes)
    return g.new_zeros(sizes).index_add_(axis, index, g)


def gather(g, index, sizes, axis):
    """Of data.gather(axis, index)."""
    return g.new_zeros(sizes).scatter_add_(axis, index, g)


def depthwise(g, x, height, width, stride, padding, dilation, bias):
    """Of the weight of a depthwise convolution over x, and of its bias if that is wanted."""
    import torch

    from ._framejit import depthwise_weight_gradient

    weight = torch.empty(g.shape[1], 1, height, width)
    sums = torch.empty(g.shape[1]) if bias else None
    depthwise_weight_gradient(g, x, weight, sums, *stride, *padding, *dilation)
    return (weight, sums) if bias else weight
