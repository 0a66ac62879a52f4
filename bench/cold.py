"""Cold numbers: the first call in a fresh process with empty caches, after torch, transformers and the compiler (ours, or the modules
of torch.compile and its backend) were imported; what of it is
capture, per framework call; and the memory that a model's calls need."""

import contextlib
import glob
import json
import os
import subprocess
import sys
import tempfile

PROGRAM = """
import json, sys, time
import bench, torch
name, who = sys.argv[1:]
torch.manual_seed(0)
if name == "one line":
    def target(x, y):
        return x * y + 1
    keywords = {"x": torch.arange(16.0), "y": torch.ones(16)}
else:
    from bench import models
    target, keywords = models.build(name)
wrap = lambda f: f
if who == "framejit":
    import framejit
    wrap = framejit.compile
elif who == "peer":
    import torch._dynamo, torch._inductor.codecache, torch._inductor.codegen.cpp, torch._inductor.compile_fx
    wrap = torch.compile
from bench.training import memory
before = memory("VmRSS")
with torch.no_grad():
    call = wrap(target)
    start = time.perf_counter()
    call(**keywords)
    seconds = time.perf_counter() - start
    if name != "one line":
        for _ in range(3):
            call(**keywords)
held = framejit.cache_info()["prepared_bytes"] / 2**20 if who == "framejit" else 0
print(json.dumps({"seconds": seconds, "MiB": memory("VmHWM") - before, "kept": held, "base": before}))
"""


@contextlib.contextmanager
def empty_caches(**options):
    """The environment for a process that finds nothing compiled. options: further variables."""
    with tempfile.TemporaryDirectory() as empty:
        yield {**os.environ, "TORCHINDUCTOR_CACHE_DIR": empty, "FRAMEJIT_CACHE_DIR": empty, "XDG_CACHE_HOME": empty, "CUDA_CACHE_PATH": empty,
               "FRAMEJIT_EVENTS": os.path.join(empty, "trace"), **options}  # fmt: skip


def first_call(name, who, **options):
    """Of a fresh process. seconds: from the first call to its result, execution included; MiB: what four calls needed at most;
    base: what the process held before them, kept: what is kept of weights; capture: seconds a framework call (framejit, if
    FRAMEJIT_EVENTS is not taken). who: eager, framejit or peer. options: environment variables."""
    with empty_caches(**options) as env:
        done = subprocess.run([sys.executable, "-c", PROGRAM, name, who], env=env, text=True, capture_output=True, check=True)
        events = [json.loads(line) for file in glob.glob(os.path.join(env["FRAMEJIT_EVENTS"], "*")) for line in open(file, encoding="utf-8")]
    result = json.loads(done.stdout.splitlines()[-1])
    total = {kind: sum(e["seconds"] for e in events if e["kind"] == kind) for kind in ("capture", "compile")}
    calls = sum(e.get("calls", 0) for e in events if e["kind"] == "capture")
    result["capture"] = (total["capture"] - total["compile"]) / calls if calls else None
    return result
