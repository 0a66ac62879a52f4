"""Programs of other people's libraries, as their documentation shows them. Each runs in a process of its own, on four calls with
changing sizes, eager and compiled; results and exceptions are compared, and calls are timed behind the first four.

    python -m bench.libraries [NAME...] [--peer] [--json FILE] [--limit SECONDS]

One row a program: right or what differed, breaks (the lines of code at which graphs end), with --peer torch.compile's beside them, graphs,
seconds of the first call (eager's in brackets), and how many times faster than eager later calls are. Programs whose library is not installed are left out. TorchVision, transformers and timm have
`bench.width`.
"""

import argparse
import json
import logging
import math
import re
import subprocess
import sys
import time
import warnings

from bench import measure
from bench.library_programs import PROGRAMS

SIZES = (8, 12, 12, 17)
NOISE = 0.3  # of the median: half the distance of the quartiles; what is noisier has no ratio


# --- one program -------------------------------------------------------------------------------------------------------
def outcome(f, arguments):
    import torch

    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "value", f(*arguments)
    except Exception as e:
        return "raised", type(e).__name__, str(e)


def same(a, b):
    import numpy as np
    import torch

    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True)
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, 1e-5, 1e-8, equal_nan=True)
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9) if isinstance(a, float) and a == a else a == b or a != a


def run(name):
    """The row of one program, in this process."""
    import framejit

    make, needs = PROGRAMS[name]
    try:
        f, arguments = make()
    except ImportError as e:
        return {"program": name, "left_out": str(e)}
    calls = [arguments(n) for n in SIZES]
    start = time.perf_counter()
    expected = [outcome(f, calls[0])]
    eager_first = time.perf_counter() - start
    expected += [outcome(f, c) for c in calls[1:]]
    compiled = framejit.compile(f)
    start = time.perf_counter()
    got = [outcome(compiled, calls[0])]
    first = time.perf_counter() - start
    got += [outcome(compiled, c) for c in calls[1:]]
    wrong = [f"call {i}: {str(g)[:150]} instead of {str(e)[:150]}" for i, (g, e) in enumerate(zip(got, expected)) if not same(g, e)]
    for _ in range(4):
        for c in calls:
            outcome(compiled, c)
    fine = [c for c, e in zip(calls, expected) if e[0] == "value"]
    contenders = {"eager": lambda: [f(*c) for c in fine], "framejit": lambda: [compiled(*c) for c in fine]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = measure.interleaved(contenders, seconds=1.0, rounds=(5, 20))
    info = compiled.cache_info()
    return {
        "program": name,
        "right": not wrong,
        "wrong": wrong,
        "breaks": info["breaks"],
        "graphs": len(compiled.graphs),
        "recompiles": info["recompiles"],
        "first_s": round(first, 4),
        "eager_first_s": round(eager_first, 4),
        "us": {k: round(v[0] / len(fine) * 1e6, 2) for k, v in times.items()},
        "spread": round(max(v[1] for v in times.values()), 3),
        "vs_eager": round(times["eager"][0] / times["framejit"][0], 3) if max(v[1] for v in times.values()) <= NOISE else None,
    }


class Places(logging.Handler):
    """The lines at which torch.compile says that a graph breaks."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def emit(self, record):
        text = record.getMessage()
        if at := re.search(r"in user code at (\S.*?:\d+)$", text, re.MULTILINE):
            self.found.add(at[1])
        elif lines := re.findall(r'File "(.*?)", line (\d+)', text):  # a whole frame that it leaves to Python
            self.found.add(":".join(lines[-1]))


def run_peer(name):
    """What torch.compile makes of the same four calls."""
    import torch

    make, needs = PROGRAMS[name]
    try:
        f, arguments = make()
    except ImportError as e:
        return {"left_out": str(e)}
    calls = [arguments(n) for n in SIZES]
    expected = [outcome(f, c) for c in calls]
    places = Places()
    for part in ("symbolic_convert", "convert_frame"):
        log = torch._logging.getArtifactLogger(f"torch._dynamo.{part}", "graph_breaks")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(places)
    compiled = torch.compile(f, backend="eager")  # what is captured is the same for all back ends
    got = [outcome(compiled, c) for c in calls]
    return {"peer_breaks": len(places.found), "peer_right": all(map(same, got, expected))}


def in_a_process(name, limit, who="--one"):
    command = [sys.executable, "-m", "bench.libraries", who, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"program": name, "right": False, "wrong": [f"no end within {limit} s"]}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    return {"program": name, "right": False, "wrong": [f"exit status {done.returncode}: {done.stderr.strip()[-400:]}"]}


def line(row):
    if "left_out" in row:
        return f"{row['program']:32} left out: {row['left_out'][:80]}"
    text = f"{row['program']:32} {'right' if row['right'] else 'WRONG':6}"
    if "us" in row:
        ratio = f"{row['vs_eager']:8.2f}" if row["vs_eager"] else "   noisy"
        peer = row.get("peer_breaks", "-") if row.get("peer_right", True) else "wrong"
        text += f"{row['breaks']:7} {peer:>6} {row['graphs']:7} {row['recompiles']:11} {row['first_s']:9.3f} ({row['eager_first_s']:.3f}) {ratio} +-{100 * row['spread']:.0f}%"
    return "\n".join([text, *("    " + w for w in row["wrong"])])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of programs; none: all")
    parser.add_argument("--json", help="append a row of each program to this file")
    parser.add_argument("--limit", type=float, default=120, help="seconds of one program")
    parser.add_argument("--peer", action="store_true", help="count torch.compile's breaks, too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--one-peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one or options.one_peer:
        print(json.dumps(run(options.one) if options.one else run_peer(options.one_peer)))
        return
    print(f"{'program':32} {'':6} breaks   peer  graphs  recompiles  first (eager) s  x eager")
    rows = []
    for name in PROGRAMS:
        if options.names and not any(n in name for n in options.names):
            continue
        rows.append(in_a_process(name, options.limit))
        if options.peer and "us" in rows[-1]:
            theirs = in_a_process(name, options.limit, "--one-peer")
            rows[-1] |= {k: theirs[k] for k in ("peer_breaks", "peer_right") if k in theirs}
        print(line(rows[-1]), flush=True)
        if options.json:
            measure.append(options.json, rows[-1:], "python -m bench.libraries " + " ".join(sys.argv[1:]))
    ran = [r for r in rows if "left_out" not in r]
    timed = [r["vs_eager"] for r in ran if r.get("vs_eager")]
    mean = math.exp(sum(map(math.log, timed)) / len(timed)) if timed else float("nan")
    print(f"{sum(r['right'] for r in ran)} of {len(ran)} right, {len(rows) - len(ran)} left out; geometric mean {mean:.2f} of eager's speed")
    if beside := [r for r in ran if r.get("peer_right")]:
        print(f"breaks: at most torch.compile's in {sum(r['breaks'] <= r['peer_breaks'] for r in beside)} of {len(beside)} programs that it runs right")


if __name__ == "__main__":
    main()
