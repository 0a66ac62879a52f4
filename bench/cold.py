"""Cold numbers: the first call in a fresh process with empty caches, after torch and transformers were imported."""

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
    wrap = torch.compile
with torch.no_grad():
    start = time.perf_counter()
    wrap(target)(**keywords)
    print(json.dumps(time.perf_counter() - start))
"""


def first_call(name, who):
    """Seconds from the first call to its result, execution included. who: eager, framejit or peer."""
    with tempfile.TemporaryDirectory() as empty:
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": empty, "FRAMEJIT_CACHE_DIR": empty, "XDG_CACHE_HOME": empty}
        done = subprocess.run([sys.executable, "-c", PROGRAM, name, who], env=env, text=True, capture_output=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
