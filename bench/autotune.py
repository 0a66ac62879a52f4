"""The case `autotune` of `tools/dev bench`: mode="max-autotune" beside the default mode, after its measuring.

That mode changes how a whole process chooses libraries, so each mode has a process of its own. The two take turns, batch by batch. Where memory
lies differs from process to process and matters as much as most choices do; so there are several pairs of processes, each of which chooses anew,
and the spread of a row is at least half the distance between the fastest and the slowest pair. The last line says which kinds are slower than the
default by more than their spread."""

import math
import multiprocessing
import statistics
import tempfile
import time

from . import functions, measure, models

PAIRS = 3
MODES = {"eager": None, "framejit": "max-autotune"}  # by the column that shows it


def _convolutions(*widths):
    from torch import nn

    layers = [[nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 1)] for a, b in zip(widths, widths[1:])]
    return nn.Sequential(*[layer for block in layers for layer in block]).eval()


def _model(name):
    model, inputs = models.build(name, small=True)
    return (lambda: model(**inputs)), ()


def kinds():
    """{name: function that makes (function, arguments)}."""
    import torch
    from torch import nn

    randn = torch.randn
    made = {
        "convolutions, 1 picture of 112x112": lambda: (_convolutions(3, 64, 128, 256, 512), (randn(1, 3, 112, 112),)),
        "convolutions, 8 pictures of 112x112": lambda: (_convolutions(3, 64, 128, 256), (randn(8, 3, 112, 112),)),
        "MLP, 64x512x2048": lambda: (nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)), (randn(64, 512),)),
        "encoder layer, 2x64x256": lambda: (nn.TransformerEncoderLayer(256, 4, 512, 0.0, batch_first=True), (randn(2, 64, 256),)),
        "sums of columns, 200000x16": lambda: ((lambda x: (x * x + 1).sum(0)), (randn(200_000, 16),)),
        "x*y+1, 16 floats": lambda: (functions.multiply_add, (torch.arange(16.0), torch.ones(16))),
        "sin cos exp tanh sigmoid sqrt, 1M": lambda: (functions.chain, (randn(1_000_000),)),
        "softmax 1024x1024": lambda: (functions.softmax, (randn(1024, 1024),)),
        "RMSNorm 1024x4096": lambda: (functions.rms_norm, (randn(1024, 4096), randn(4096))),
        "gelu+layernorm+residual 1024x1024": lambda: (functions.gelu_layernorm_residual, (*randn(2, 1024, 1024), *randn(2, 1024))),
    }
    return made | {f"{name}, tiny": (lambda n=name: _model(n)) for name in models.MODELS}


def _settle(call):
    """The runs that measure: what is measured of a call, and then whether it is faster than Python, are known after 600."""
    begin = time.perf_counter()
    for number in range(600):
        call()
        if number >= 100 and time.perf_counter() - begin > 10:
            break


def _serve(pipe, mode):
    """Of a process of its own: for each kind that is named, answers questions for the time of a call until something else than "time" is asked."""
    import torch

    import framejit

    made = kinds()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), framejit.config.patch(cache_dir=folder):  # no verdicts of others
        for name in iter(pipe.recv, None):
            torch.manual_seed(0)
            function, arguments = made[name]()
            compiled = framejit.compile(function, mode=mode) if mode else framejit.compile(function)
            call = lambda c=compiled, a=arguments: c(*a)  # noqa: E731
            _settle(call)
            count = measure.repetitions(call)
            pipe.send("ready")
            while pipe.recv() == "time":
                start = time.perf_counter()
                for _ in range(count):
                    call()
                pipe.send((time.perf_counter() - start) / count)


class _Side:
    """A process that runs in one mode."""

    def __init__(self, mode):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, mode), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is seen here

    def ask(self, what):
        self.pipe.send(what)
        return self.pipe.recv()

    def seconds(self):
        return self.ask("time")

    def end(self):
        self.pipe.send(None)
        self.process.join()


def _pair(names):
    """{kind: {column: (median seconds, spread)}} of one pair of processes."""
    sides = {column: _Side(mode) for column, mode in MODES.items()}
    times = {}
    for name in names:
        for side in sides.values():
            side.ask(name)
        times[name] = measure.taken({column: side.seconds for column, side in sides.items()}, 2.0, (9, 200))
        for side in sides.values():
            side.pipe.send("next")
    for side in sides.values():
        side.end()
    return times


def _over_pairs(times):
    """(median, spread) of several pairs' (median, spread)."""
    medians = [median for median, _ in times]
    middle = statistics.median(medians)
    return middle, max((max(medians) - min(medians)) / 2 / middle, statistics.median(spread for _, spread in times))


def autotune(peer):
    """Kernels, layers and models in mode="max-autotune", after its measuring: "eager" is the default mode of framejit, measured beside it."""
    names = list(kinds())
    pairs = [_pair(names) for _ in range(1 if measure.OURS_ALONE else PAIRS)]
    slower = []
    for name in names:
        times = {column: _over_pairs([pair[name][column] for pair in pairs]) for column in MODES}
        row = measure.record("autotune", name, "us", times, "eager = default mode")
        if -math.log(row["vs_eager"]) > sum(row["spread"].values()):
            slower.append(name)
        yield row
    print(f"autotune: slower than the default by more than the spread, of {len(names)} kinds: {', '.join(slower) or 'none'}", flush=True)
