"""Long functions: what a framework call costs in the first call of the function, in time and in memory that stays. Each function in a
process of its own, in which all memory is malloc's."""

import json
import os
import subprocess
import sys

PROGRAM = r"""
import ctypes, gc, json, sys, time
import torch
import framejit

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info

def live():
    gc.collect()
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd

def layers(count):
    return torch.nn.Sequential(*[layer for _ in range(count // 2) for layer in (torch.nn.Linear(8, 8), torch.nn.ReLU())]).train(gradients)

def straight(count):
    lines = ["x = x * y", "x = x + y", "x = torch.sin(x)", "x = x - y", "x = torch.relu(x)", "x = x.tanh()"]
    scope = {"torch": torch}
    exec("def f(x, y=torch.ones(8)):\n" + "".join(f"    {lines[i % len(lines)]}\n" for i in range(count)) + "    return x", scope)
    return scope["f"]

what, gradients = sys.argv[1].split("+")[0], sys.argv[1].endswith("+gradients")
make, x = {"layers": layers, "straight": straight}[what], torch.randn(4, 8, requires_grad=gradients)

def run(f):
    result = f(x)
    return (result.detach(), *torch.autograd.grad(result.sum(), x)) if gradients else (result,)

costs = {}
with torch.set_grad_enabled(gradients):
    torch.testing.assert_close(run(framejit.compile(make(8)))[0], x.detach(), atol=100, rtol=0)  # what only the first time brings
    for count in map(int, sys.argv[2:]):
        f = make(count)
        want = run(f)
        before = live()
        compiled = framejit.compile(f)
        start = time.process_time()
        got = run(compiled)
        seconds = time.process_time() - start
        torch.testing.assert_close(got, want)
        assert framejit.cache_info(compiled)["captures"] == 1 and framejit.cache_info(compiled)["outcomes"]["run"] == {"graph": 1}
        costs[count] = {"bytes": (live() - before) / count, "us": seconds / count * 1e6}
        del compiled, f
        framejit.reset()
print(json.dumps(costs))
"""


def costs(what, *counts):
    """For each number of calls {"bytes": that stay, "us": of the first call, the first backward pass included}, both for one of these.
    what: "layers" (`Linear` and `ReLU`) or "straight", of which +gradients is the same with a backward pass."""
    shipped = {name: value for name, value in os.environ.items() if not name.startswith("FRAMEJIT_")}  # no checks beside the runs
    env = {**shipped, "PYTHONMALLOC": "malloc", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, what, *map(str, counts)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {int(count): cost for count, cost in json.loads(done.stdout.splitlines()[-1]).items()}
    return [found[count] for count in counts]
