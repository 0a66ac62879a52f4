"""The cases of `tools/dev bench`: each is a generator of rows (bench/measure.py)."""

import contextlib

from . import functions, measure, models
from .autotune import autotune


def _versus(case, metric, unit, function, arguments, peer, keywords=None, seconds=3.0, keep=0, weights=False):
    """One row: the function as written, compiled by framejit, and compiled by torch if `peer`. keep: how many results stay
    alive (fresh memory for every call) instead of being dropped at once. weights: it is a module in inference, whose weights we
    keep in another form; so may the peer (its option `freezing`)."""
    import framejit

    keywords = keywords or {}
    contenders = {"eager": function, "framejit": framejit.compile(function)}
    if peer:
        import torch

        torch._dynamo.reset()
        contenders["peer"] = torch.compile(function, options={"freezing": True} if weights else None)

    def bind(call):
        if not keep:
            return lambda: call(*arguments, **keywords)
        kept = [None] * keep
        return lambda: kept.append(call(*arguments, **keywords)) or kept.pop(0)

    times = measure.interleaved({name: bind(call) for name, call in contenders.items()}, seconds)
    return measure.record(case, metric, unit, times)


@contextlib.contextmanager
def _no_grad():
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        yield torch


def call_overhead(peer):
    import numpy

    x = numpy.arange(16, dtype=numpy.float32)
    yield _versus("call_overhead", "x*y+1, 16 floats, NumPy", "us", functions.multiply_add, (x, x + 1), False)
    with _no_grad() as torch:
        x = torch.arange(16.0)
        yield _versus("call_overhead", "x*y+1, 16 floats, torch", "us", functions.multiply_add, (x, x + 1), peer)
        deep = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(100)])
        yield _versus("call_overhead", "100 Linear(4, 4)", "us", deep, (torch.ones(1, 4),), peer, weights=True)


def pointwise(peer):
    with _no_grad() as torch:
        x = torch.randn(4_000_000)
        yield _versus("pointwise", "sin cos exp tanh sigmoid sqrt, 4M, dropped", "ms", functions.chain, (x,), peer)
        yield _versus("pointwise", "the same, results kept", "ms", functions.chain, (x,), peer, keep=16)
        yield _versus("pointwise", "the same in bfloat16", "ms", functions.chain, (x.bfloat16(),), peer)
        yield _versus("pointwise", "x*y+1, 4M", "ms", functions.multiply_add, (x, x + 1), peer)


def norms(peer):
    with _no_grad() as torch:
        x, r, w, b = torch.randn(4096, 1024), torch.randn(4096, 1024), torch.randn(1024), torch.randn(1024)
        yield _versus("norms", "gelu+layernorm+residual 4096x1024", "ms", functions.gelu_layernorm_residual, (x, r, w, b), peer)
        yield _versus("norms", "RMSNorm 4096x4096", "ms", functions.rms_norm, (torch.randn(4096, 4096), torch.randn(4096)), peer)


def softmax(peer):
    with _no_grad() as torch:
        x = torch.randn(4096, 4096)
        yield _versus("softmax", "4096x4096, dropped", "ms", functions.softmax, (x,), peer)
        yield _versus("softmax", "4096x4096, kept", "ms", functions.softmax, (x,), peer, keep=4)


def mlp(peer):
    with _no_grad() as torch:
        arguments = torch.randn(128, 1024), torch.randn(4096, 1024), torch.randn(4096), torch.randn(1024, 4096), torch.randn(1024)
        yield _versus("mlp", "128x1024x4096 gelu", "ms", functions.mlp, arguments, peer)


def hf_models(peer):
    for name in models.MODELS:
        with _no_grad():
            model, inputs = models.build(name)
            yield _versus("models", f"{name}, batch 1", "ms", model, (), peer, inputs, seconds=5.0, weights=True)
            if name in ("BertModel", "ViTModel"):
                inputs = models.make_inputs(name, batch=8)
                yield _versus("models", f"{name}, batch 8", "ms", model, (), peer, inputs, seconds=8.0, weights=True)


def vision(peer):
    """torchvision's networks in eval mode, one image: convolutions, BatchNorm, depthwise convolutions."""
    import torchvision

    for name in ("resnet50", "mobilenet_v2", "convnext_tiny"):
        with _no_grad() as torch:
            model = getattr(torchvision.models, name)(weights=None).eval()
            yield _versus("vision", f"{name}, 1x3x224x224", "ms", model, (torch.randn(1, 3, 224, 224),), peer, seconds=5.0, weights=True)


def numpy_functions(peer):
    """peer: the faster of Numba and JAX, as far as they are installed (the metric names it)."""
    import numpy as np

    import framejit

    from . import rivals

    others = rivals.available() if peer else {}
    for metric, function, arguments in (
        ("Black-Scholes 1M", functions.black_scholes, functions.black_scholes_arguments()),
        ("row softmax 2048x1024", functions.row_softmax, functions.row_softmax_arguments()),
        ("Laplace 2048x2048", functions.laplace, functions.laplace_arguments()),
        ("k-means step 20000x8x16", functions.k_means_step, functions.k_means_arguments()),
    ):
        calls = {"eager": function, "framejit": framejit.compile(function)}
        calls |= {name: table[function.__name__] for name, table in others.items()}
        expected = function(*arguments)
        for call in calls.values():  # warm, and right
            for a, b in zip(expected if isinstance(expected, tuple) else [expected], (r if isinstance(r := call(*arguments), tuple) else [r])):
                np.testing.assert_allclose(np.asarray(b), a, rtol=1e-9, atol=1e-12)
        times = measure.interleaved({name: (lambda c=call: c(*arguments)) for name, call in calls.items()})
        best = min(others, key=lambda name: times[name][0], default=None)
        told = {who: times[who] for who in ("eager", "framejit") if who in times} | ({"peer": times[best]} if best else {})
        all_of = ", ".join(f"{name} {times[name][0] * 1e3:.3g}" for name in others)
        yield measure.record("numpy", metric, "ms", told, note=f"peers in ms: {all_of}" if best else None)


def cold(peer):
    """Fresh processes by turns: five of eager and framejit, two of the peer, which takes so much longer that noise is no matter."""
    import statistics

    from . import cold as processes

    def middle(values):
        return measure.summary(values) if len(values) > 2 else statistics.mean(values)

    for name in ("one line", "BertModel"):
        calls = {who: [] for who in ("eager", "framejit", *(["peer"] if peer else [])) if who == "framejit" or not measure.OURS_ALONE}
        for turn in range(1 if measure.OURS_ALONE else 5):
            for who, seen in calls.items():
                if who != "peer" or turn < 2:
                    seen.append(processes.first_call(name, who))
        seconds = {who: [f["seconds"] for f in seen] for who, seen in calls.items()}
        times = {who: middle(s) for who, s in seconds.items()}
        yield measure.record("cold", f"{name}: first call of a fresh process", "s", times)
        capture = middle([f["capture"] for f in calls["framejit"]])
        yield measure.record("cold", f"{name}: capture, a framework call", "us", {"framejit": capture})


def memory(peer):
    """Peak memory of a fresh process over four calls, the model included; with weights kept packed and without."""
    from . import cold as processes

    for name in ("BertModel", "GPT2LMHeadModel", "ViTModel"):
        eager = [] if measure.OURS_ALONE else [("eager", processes.first_call(name, "eager"))]
        for kept in "10":
            ours = processes.first_call(name, "framejit", FRAMEJIT_PACK_WEIGHTS=kept)
            what = f"{ours['kept']:.0f} MiB of them packed weights" if kept == "1" else "pack_weights=0"
            yield measure.record("memory", f"{name}: {what}", "MiB", {w: r["MiB"] + r["base"] for w, r in (*eager, ("framejit", ours))})


def long(peer):
    """What a framework call of a long function costs in its first call, backward pass included, and what it leaves behind: see
    bench/long.py."""
    from . import long as functions_of

    for what, counts in (("straight", (20000,)), ("straight+gradients", (4000,)), ("layers", (1000, 4000)), ("layers+gradients", (1000, 4000))):
        for count, cost in zip(counts, functions_of.costs(what, *counts)):
            name = f"{what.replace('+', ', ')}, {count} calls"
            yield measure.record("long", f"{name}: the first call, of each", "us", {"framejit": cost["us"] / 1e6})
            yield measure.record("long", f"{name}: what each keeps", "B", {"framejit": cost["bytes"]})


def training(peer):
    """Training steps, and their memory: see bench/training.py."""
    from . import training as steps

    yield from steps.rows(peer)


def generate(peer):
    """Text generation: see bench/generate.py."""
    from . import generate as generation

    yield from generation.rows(peer)


def dynamic(peer):
    """BERT over 20 pairs of batch and length, first passes included: the whole takes what its compiles take."""
    import time

    import framejit

    with _no_grad() as torch:
        model, _ = models.build("BertModel", small=True)
        shapes = [(1 + i % 4, 8 + 5 * i) for i in range(20)]
        inputs = [models.make_inputs("BertModel", True, *shape) for shape in shapes]
        contenders = {"eager": model, "framejit": framejit.compile(model), **({"peer": torch.compile(model)} if peer else {})}
        first = {}
        for name, call in contenders.items():
            start = time.perf_counter()
            for each in inputs:
                call(**each)
            first[name] = time.perf_counter() - start
        yield measure.record("dynamic", "tiny BERT, 20 shapes, compiles included", "s", first)

        def bind(call):
            return lambda: [call(**each) for each in inputs]

        times = measure.interleaved({name: bind(call) for name, call in contenders.items()})
        yield measure.record("dynamic", "tiny BERT, 20 shapes, compiled", "ms", times)

        for small, shape in ((True, (4, 64)), (False, (2, 96))):  # what symbolic sizes cost: "eager" is framejit with constant ones
            model, _ = models.build("BertModel", small=small)
            arguments = models.make_inputs("BertModel", small, *shape)
            both = {"eager": framejit.compile(model, dynamic=False), "framejit": framejit.compile(model, dynamic=True)}
            times = measure.interleaved({name: (lambda c=call: c(**arguments)) for name, call in both.items()})
            name = f"{'tiny BERT' if small else 'BERT-base'} {shape[0]}x{shape[1]}, eager = constant sizes"
            yield measure.record("dynamic", name, "ms", times)


def tracing(peer):
    """What FRAMEJIT_EVENTS costs in calls of compiled functions: calls with and without the event stream by turns. Each has code of its own: what was
    captured while events are written counts its runs from then on."""
    import tempfile
    import time

    import numpy

    import framejit

    def calls(function, arguments, count, folder):
        def seconds():
            with framejit.config.patch(events=folder):
                function(*arguments)  # what changed is seen
                start = time.perf_counter()
                for _ in range(count):
                    function(*arguments)
                return (time.perf_counter() - start) / count

        return seconds

    with _no_grad() as torch, tempfile.TemporaryDirectory() as folder:
        small = numpy.arange(16, dtype=numpy.float32)
        kinds = {
            "x*y+1, 16 floats, NumPy": (functions.multiply_add, (small, small + 1), 20_000),
            "x*y+1, 16 floats, torch": (functions.multiply_add, (torch.arange(16.0), torch.ones(16)), 20_000),
            "softmax 512x512": (functions.softmax, (torch.randn(512, 512),), 200),
            "encoder layer, 2x64x256": (torch.nn.TransformerEncoderLayer(256, 4, 512, 0.0, batch_first=True).eval(), (torch.randn(2, 64, 256),), 50),
        }
        for name, (function, arguments, count) in kinds.items():
            contenders = {}
            for contender, where, fuel in (("eager", "", -1), ("framejit", folder, -2)):  # any fuel below 0 is without a bound
                compiled = framejit.compile(function, options={"fuel": fuel, "leave": False})
                with framejit.config.patch(events=where):
                    for _ in range(100):
                        compiled(*arguments)
                contenders[contender] = calls(compiled, arguments, count, where)
            times = measure.taken(contenders, 6.0)
            yield measure.record("tracing", name, "us", times, "eager = no events, framejit = with them")


CASES = {
    "training": training,
    "call_overhead": call_overhead, "pointwise": pointwise, "norms": norms, "softmax": softmax, "mlp": mlp,
    "models": hf_models, "vision": vision, "numpy": numpy_functions, "cold": cold, "memory": memory, "long": long, "dynamic": dynamic,
    "generate": generate, "autotune": autotune, "tracing": tracing,
}  # fmt: skip
