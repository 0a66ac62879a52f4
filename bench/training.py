"""Training steps of the usual models: forward, mean square of the results, backward, the optimizer; the module is compiled, or with
"whole step" the function that takes the step. Every contender has its own copy of the model. The first step and the peak memory are those of a fresh process that finds no caches: from the first step's
begin to its end, and beyond what the process held with model and inputs made, over three steps."""

import copy
import json
import math
import re
import subprocess
import sys
import time

from . import cold, measure, models

MODELS = ("BertModel", "GPT2LMHeadModel", "LlamaModel", "ViTModel", "resnet50", "mobilenet_v2", "convnext_tiny")


def build(name):
    import torch

    torch.manual_seed(0)
    if name in models.MODELS:
        model, inputs = models.build(name)
        return model.train(), inputs
    import torchvision

    # A batch of one picture in eval mode: BatchNorm over one value is refused.
    return getattr(torchvision.models, name)(weights=None).eval(), {"x": torch.randn(1, 3, 224, 224)}


def compiler(who):
    import torch

    import framejit

    return {"eager": lambda f: f, "framejit": framejit.compile, "peer": torch.compile}[who]


def stepper(model, inputs, compile, optimizer="SGD", whole=False):
    """A function that takes one step. whole: the step itself is compiled, not the model."""
    import torch

    call = model if whole else compile(model)
    # Every contender has torch's fused update where a compiled step of ours runs it.
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-5, fused=True)

    def step():
        optimizer.zero_grad()
        sum((t * t).mean() for t in models.flatten(call(**inputs)).values() if t.requires_grad).backward()
        optimizer.step()

    return compile(step) if whole else step


def memory(field):
    with open("/proc/self/status", encoding="utf-8") as status:
        return int(re.search(rf"{field}:\s+(\d+) kB", status.read()).group(1)) / 1024


def first_steps(name, who):
    """{"seconds": of the first step, "MiB": that three steps need at most}."""
    with cold.empty_caches() as env:
        run = subprocess.run([sys.executable, "-m", "bench.training", name, who], env=env, capture_output=True, text=True, check=False)
    return json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else {}


def mean(rows, metric, unit):
    """The row of geometric means of these rows: their quotients are the means of the rows' quotients."""
    means = {}
    for who in ("eager", "framejit", "peer"):
        values = [row.get(who) for row in rows]
        if all(values):
            means[who] = math.exp(sum(map(math.log, values)) / len(values)) / measure.UNITS[unit]
    return measure.record("training", f"geometric mean, {metric}", unit, means)


def rows(peer):
    import torch

    whos = ("eager", "framejit", *(["peer"] if peer else []))
    seen = {}

    def row(name, metric, unit, values):
        made = measure.record("training", f"{name}, {metric}", unit, values)
        seen.setdefault((metric, unit), []).append(made)
        return made

    for name in MODELS:
        model, inputs = build(name)
        for metric in ("SGD", "AdamW", "AdamW, whole step"):
            if peer:
                torch._dynamo.reset()
            contenders = {w: stepper(copy.deepcopy(model), inputs, compiler(w), metric.split(",")[0], "whole" in metric) for w in whos}
            for step in contenders.values():
                for _ in range(3):  # what the first step makes is there from the second on, and may be compiled for
                    step()
            times = measure.interleaved(contenders, 5.0)
            yield row(name, metric, "ms", times)
        del model, contenders
        fresh = {who: first_steps(name, who) for who in whos}
        yield row(name, "first step", "s", {who: f.get("seconds") for who, f in fresh.items()})
        yield row(name, "peak memory", "MiB", {who: f.get("MiB") for who, f in fresh.items()})
    for (metric, unit), made in seen.items():
        yield mean(made, metric, unit)


def main(name, who):
    model, inputs = build(name)
    step = stepper(model, inputs, compiler(who))
    before = memory("VmRSS")
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    for _ in range(2):
        step()
    print(json.dumps({"seconds": seconds, "MiB": memory("VmHWM") - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
