"""Training steps of the usual models: forward, mean square of the results, backward, the optimizer. Every contender has its own
copy of the model. Peak memory is that of a fresh process, beyond what it held with model and inputs made."""

import copy
import re
import subprocess
import sys

from . import measure, models

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


def stepper(model, inputs, compile, whole=False):
    """A function that takes one step. whole: AdamW, and the step itself is compiled, not the model."""
    import torch

    call = model if whole else compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5) if whole else torch.optim.SGD(model.parameters(), lr=1e-5)

    def step():
        optimizer.zero_grad()
        sum((t * t).mean() for t in models.flatten(call(**inputs)).values() if t.requires_grad).backward()
        optimizer.step()

    return compile(step) if whole else step


def memory(field):
    with open("/proc/self/status", encoding="utf-8") as status:
        return int(re.search(rf"{field}:\s+(\d+) kB", status.read()).group(1)) / 1024


def peak(name, who):
    """MiB that three steps need at most."""
    run = subprocess.run([sys.executable, "-m", "bench.training", name, who], capture_output=True, text=True, check=False)
    return float(run.stdout.split()[-1]) if run.returncode == 0 else None


def rows(peer):
    import torch

    whos = ("eager", "framejit", *(["peer"] if peer else []))
    for name in MODELS:
        model, inputs = build(name)
        for whole in (False, True):
            if peer:
                torch._dynamo.reset()
            contenders = {w: stepper(copy.deepcopy(model), inputs, compiler(w), whole) for w in whos if not (whole and w == "peer")}
            times = measure.interleaved(contenders, 5.0)
            yield measure.record("training", f"{name}, {'AdamW, whole step' if whole else 'SGD'}", "ms", **{k: v[0] for k, v in times.items()}), [v[1] for v in times.values()]
        used = {who: peak(name, who) for who in whos}
        yield measure.record("training", f"{name}, peak memory", "MiB", **used), None


def main(name, who):
    model, inputs = build(name)
    step = stepper(model, inputs, compiler(who))
    before = memory("VmRSS")
    for _ in range(3):
        step()
    print(memory("VmHWM") - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
