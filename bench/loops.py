"""tools/dev bench loops: programs with loops (bench/loop_programs.py, or those of a checkout of NPBench), each in a process of its own: is the result right, how
long does the first result take, and what does a call take then, as written and compiled in turns.

    tools/dev bench loops [PROGRAM...] [--npbench CHECKOUT [--size S]] [--json F]
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import time

from . import loop_programs, measure, npbench


def _same(a, b):
    import numpy as np

    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    if hasattr(a, "shape"):
        a, b = np.asarray(a), np.asarray(b)
        return a.shape == b.shape and a.dtype == b.dtype and np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
    return type(a) is type(b) and a == b


def one(name, function, make, seconds):
    """Runs one program here and prints a JSON line after each stage, so that a timeout leaves what was known."""
    arguments = make()

    def fresh():
        return copy.deepcopy(arguments)

    inputs = fresh()
    start = time.perf_counter()
    expected = function(*inputs)
    eager_first = time.perf_counter() - start
    import framejit

    compiled = framejit.compile(function)
    got_inputs = fresh()
    start = time.perf_counter()
    got = compiled(*got_inputs)
    row = {"first": round(time.perf_counter() - start, 4), "eager_first": round(eager_first, 5)}
    row["right"] = _same(expected, got) and _same(inputs, got_inputs)
    print(json.dumps(row), flush=True)
    start = time.perf_counter()
    calls = 0
    while calls < 8 or (calls < 40 and time.perf_counter() - start < seconds / 2):  # until nothing new is compiled
        again_inputs = fresh()
        again = compiled(*again_inputs)
        row["right"] = row["right"] and _same(expected, again) and _same(inputs, again_inputs)
        calls += 1
    row["settled"] = round(time.perf_counter() - start, 3)

    def timed(call):
        def run():
            given = fresh()
            start = time.perf_counter()
            call(*given)
            return time.perf_counter() - start

        return run

    times = measure.taken({"eager": timed(function), "framejit": timed(compiled)}, seconds)
    row.update(measure.record("loops", name, "ms", times))
    info = compiled.cache_info()
    row.update({k: info[k] for k in ("segments", "captures", "kernels")}, breaks=info["breaks"])
    print(json.dumps(row), flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="tools/dev bench loops", description=__doc__)
    parser.add_argument("program", nargs="*", help=f"of {', '.join(loop_programs.PROGRAMS)}, or of NPBench's (default: all)")
    parser.add_argument("--npbench", metavar="CHECKOUT", help="the programs of this checkout of NPBench instead")
    parser.add_argument("--size", default="S", choices=("S", "M", "L", "paper"), help="of NPBench's arguments")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring, for each program")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--json", metavar="F", help="append JSON lines to this file")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    known = npbench.names(args.npbench) if args.npbench else list(loop_programs.PROGRAMS)
    for name in args.program:
        if name not in known:
            parser.error(f"no program {name!r}")
    if args.here:
        name = args.program[0]
        return one(name, *(npbench.program(args.npbench, args.size, name) if args.npbench else loop_programs.PROGRAMS[name]), args.seconds)
    case = f"npbench {args.size}" if args.npbench else "loops"
    which = ["--npbench", args.npbench, "--size", args.size] if args.npbench else []
    print(f"{'program':24} {'right':6} {'first s':>8} {'eager ms':>10} {'framejit ms':>11} {'vs eager':>8} spread segments")
    rows, ratios = [], []
    said = " ".join(["tools/dev bench loops", *args.program, *(["--npbench", "CHECKOUT", "--size", args.size] if args.npbench else [])])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(measure.ROOT)]))
    env = os.environ | {"PYTHONPATH": path}
    for name in args.program or known:
        command = [sys.executable, "-m", "bench.loops", "--here", name, "--seconds", str(args.seconds), *which]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, env=env, check=False)
            out, error = done.stdout, done.stderr[-300:] if done.returncode else ""
        except subprocess.TimeoutExpired as late:
            out, error = (late.stdout or b"").decode(), f"nothing more after {args.timeout:.0f} s"
        lines = out.splitlines()
        row = (json.loads(lines[-1]) if lines else {}) | {"case": case, "metric": name}
        if error:
            row["error"] = error
        ratios += [row["vs_eager"]] if "vs_eager" in row else []
        rows.append(row)
        if args.json:  # at once: a long run that is ended keeps what it found
            measure.append(args.json, [row], said)
        show = lambda key, form: format(row[key], form) if key in row else "-"  # noqa: E731
        print(f"{name:24} {row.get('right', '-')!s:6} {show('first', '.3f'):>8} {show('eager', '.4g'):>10} {show('framejit', '.4g'):>11}"
              f" {show('vs_eager', '.2f'):>8} {max(row.get('spread', {'': 0}).values()):6.2f} {row.get('segments', '-')} {error}", flush=True)  # fmt: skip
    if ratios:
        mean = 1.0
        for r in ratios:
            mean *= r ** (1 / len(ratios))
        print(f"{len(ratios)} of {len(rows)} measured, geometric mean {mean:.3f}, slowest {min(ratios):.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
