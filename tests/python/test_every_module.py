"""torch's own database of modules: each in training and in evaluation, with the same seed, as written and compiled. Results, buffers,
the generator and the gradients of every parameter and input; values against float64, strides exactly."""

import copy
import functools
import random

import harness
import oracle
import pytest

torch = pytest.importorskip("torch")
database = pytest.importorskip("torch.testing._internal.common_modules")

QUICK = ("Linear", "BatchNorm1d", "Dropout", "GRU", "LSTMCell", "RReLU", "MultiheadAttention", "FractionalMaxPool2d", "BCELoss", "LayerNorm", "Embedding",
         "PReLU", "Conv1d", "TransformerDecoderLayer")  # fmt: skip
CALLS = 3  # of the same module


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in flat(v)] if isinstance(value, (list, tuple)) else []


def fresh_copy(value, wide=False):
    if isinstance(value, torch.Tensor):
        made = value.detach().clone()
        made = made.double() if wide and made.is_floating_point() else made
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(fresh_copy(v, wide) for v in value)
    if isinstance(value, dict):
        return {k: fresh_copy(v, wide) for k, v in value.items()}
    return value


def step(module, call, given, wide=False):
    """What can be seen of a step: (name, tensor or None), whether gradients are wanted, and the error."""
    args, kwargs = fresh_copy(given.args, wide), fresh_copy(given.kwargs, wide)
    module.zero_grad()
    torch.manual_seed(7)
    try:
        results = flat(call(*args, **kwargs))
        seen = [(f"result {n}", t) for n, t in enumerate(results)]
        sums = [(t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in results if t.requires_grad and t.is_floating_point()]
        if sums:
            sum(sums).backward()
    except Exception as error:  # compared
        return [("error", None)], type(error)
    seen += [(f"gradient of {n}", p.grad) for n, p in module.named_parameters()]
    seen += [(f"gradient of input {n}", t.grad) for n, t in enumerate([*flat(args), *flat(kwargs)]) if t.is_leaf]
    seen += [(f"buffer {n}", b.clone()) for n, b in module.named_buffers()]
    return [*seen, ("generator", torch.get_rng_state())], None


def agree(mine, theirs, truth, where, others):
    """others: a function that gives what eager has for operands that were rounded otherwise, which tells how sure it is of sums that cancel."""
    try:
        oracle.check(mine, theirs, truth, where)
    except AssertionError:
        if truth is None or not theirs.is_floating_point():
            raise
        oracle.check(mine, theirs, truth, where, noise=[(theirs, other) for other in others()])


def facts(seen):
    return [(n, None if t is None else (type(t), t.dtype, t.shape, t.stride() if t.layout is torch.strided else None, t.requires_grad)) for n, t in seen]


def cases(info, training):
    for given in info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training):
        torch.manual_seed(3)
        if given.forward_input is None:
            continue
        module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).train(training)
        if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module.parameters()):
            module(*fresh_copy(given.forward_input.args))
        yield module, given.forward_input


def run(fj, info, training):
    """The number of cases, and of those that ran compiled."""
    compiled = total = 0
    for module, given in cases(info, training):
        mine, wide = copy.deepcopy(module), copy.deepcopy(module).double()
        call = fj.compile(mine)
        total += 1
        for round_ in range(CALLS):
            where = f"{info.name} {'train' if training else 'eval'} case {total} call {round_}: {given}"
            before = copy.deepcopy(module)
            expected, refused = step(module, module, given)
            exact, cannot = step(wide, wide, given, wide=True)
            got, error = step(mine, call, given)

            @functools.cache
            def disturbed(before=before):
                seen = []
                for seed in range(4):
                    other = copy.deepcopy(before)
                    arguments = copy.copy(given)
                    roll = random.Random(seed).random
                    arguments.args, arguments.kwargs = harness.rounded_otherwise((fresh_copy(given.args), fresh_copy(given.kwargs)), roll)
                    harness.rounded_otherwise(dict(other.state_dict()), roll)  # in place
                    seen.append(step(other, other, arguments)[0])
                return seen

            assert error is refused, f"{where}: {error} instead of {refused}"
            assert facts(got) == facts(expected), f"{where}:\n{facts(got)}\n{facts(expected)}"
            for n, ((name, t), (_, theirs)) in enumerate(zip(got, expected)):
                if t is None:
                    continue
                truth = exact[n][1] if not cannot and len(exact) == len(expected) else None
                if truth is not None and (not theirs.is_floating_point() or not torch.allclose(truth, theirs.double(), 1e-2, 1e-2, equal_nan=True)):
                    truth = None  # another draw
                agree(t, theirs, truth, f"{where}: {name}", lambda n=n: [seen[n][1] for seen in disturbed()])
        compiled += fj.cache_info(call)["segments"] > 0
    return total, compiled


def modules():
    for info in database.module_db:
        for training in (True, False):
            slow = () if info.name.removeprefix("nn.") in QUICK else pytest.mark.slow
            yield pytest.param(info, training, id=f"{info.name}-{'train' if training else 'eval'}", marks=slow)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("info,training", [*modules()])
def test_module(fresh, info, training):
    total, compiled = run(fresh, info, training)
    assert compiled == total  # in each case something of it
