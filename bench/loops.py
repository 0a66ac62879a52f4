"""tools/dev bench loops: programs with loops (bench/loop_programs.py, or those of a checkout of NPBench), each in a process of its own: is the result right, how
long does the first result take, and what does a call take then, as written and compiled in turns.

    tools/dev bench loops [PROGRAM...] [--npbench CHECKOUT [--size S] [--rivals] [--pythran FOLDER]] [--scalar] [--json F]

The scalar programs (bench/scalar_programs.py; with --scalar they alone) take turns with Numba, too, where it can be imported and compiles
them, those of NPBench with --rivals with its own versions for Numba and JAX where they run, and for Pythran if there is a folder for what
that compiles. A call that is measured stands right behind one that is not, so that nobody's code has gone cold while another one ran.
"""

import argparse
import copy
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time

from . import loop_programs, measure, npbench, rivals


def _same(a, b):
    import numpy as np

    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    if hasattr(a, "shape"):
        a, b = (np.asarray(x.detach() if hasattr(x, "detach") else x) for x in (a, b))
        return a.shape == b.shape and a.dtype == b.dtype and np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
    return type(a) is type(b) and a == b


WARM = 0.01  # seconds: what takes longer needs no call before it
PAUSE = 0.05  # seconds: OpenBLAS, of which rivals bring one of their own, spins for half of this


def _timed(call, fresh):
    """A function that says how many seconds a call took."""
    last = 0.0

    def once():
        given = fresh()
        start = time.perf_counter()
        call(*given)
        return time.perf_counter() - start

    def run():
        nonlocal last
        if last < WARM:
            once()
        last = once()
        return last

    return run


def _numba(function, arguments, expected):
    """(contender, seconds to the first result), or None where Numba does not compile the function, or to something else."""
    import numba

    try:
        jitted, given = rivals.numba_of(function), rivals.numba_arguments(copy.deepcopy(arguments))
        start = time.perf_counter()
        result = jitted(*given)
        first = time.perf_counter() - start
    except numba.core.errors.NumbaError:
        return None

    import numpy as np

    # Numba's numbers are Python's, where NumPy's own would come out: what is compared are values.
    pairs = zip(expected, result) if isinstance(expected, tuple) else [(expected, result)]
    run = _timed(jitted, lambda: rivals.numba_arguments(copy.deepcopy(arguments)))
    return (run, first) if all(np.allclose(a, b) for a, b in pairs) else None


def _holds(expected, found):
    """Is every array of a rival's result one of these? Rivals give results back where NumPy's version writes arguments, and otherwise."""
    import numpy as np

    found = [np.asarray(x) for x in (found if isinstance(found, (tuple, list)) else [found])]
    return all(any(np.shape(e) == f.shape and np.allclose(e, f, rtol=1e-3, atol=1e-5, equal_nan=True) for e in expected) for f in found)


def _rival(function, place, arguments, expected):
    """As _numba, of a version that somebody wrote for another compiler: None where it fails or gives another result."""
    import numpy as np

    def fresh():
        return [place(a) if isinstance(a, np.ndarray) else a for a in copy.deepcopy(arguments)]

    given = fresh()
    try:
        start = time.perf_counter()
        result = function(*given)
        first = time.perf_counter() - start
    except Exception as error:  # a compiler's own errors, of any class
        print(f"{type(error).__name__}: {error}"[:200], file=sys.stderr)
        return None
    right = _holds(expected, [a for a in given if isinstance(a, np.ndarray)] if result is None else result)
    return (_timed(function, fresh), first) if right else None


def one(name, function, make, seconds, numba=False, versions=()):
    """Runs one program here and prints a JSON line after each stage, so that a timeout leaves what was known. versions: (name, function,
    what an array is made into) of rivals."""
    arguments = make()

    def fresh():
        return copy.deepcopy(arguments)

    around = loop_programs.AROUND.get(name, lambda call: call)
    written = around(function)
    inputs = fresh()
    start = time.perf_counter()
    expected = written(*inputs)
    eager_first = time.perf_counter() - start
    import framejit

    cache = framejit.compile(function)
    compiled = around(cache)
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

    contenders = {"framejit": _timed(compiled, fresh)} if measure.OURS_ALONE else {"eager": _timed(written, fresh), "framejit": _timed(compiled, fresh)}
    if numba and (found := _numba(function, arguments, expected)):
        contenders["numba"], row["numba_first"] = found
    known = [*(expected if isinstance(expected, (tuple, list)) else [expected]), *inputs]
    for other, version, place in versions:
        if found := _rival(version, place, arguments, known):
            contenders[other], row[f"{other}_first"] = found
    times = measure.taken(contenders, seconds, pause=PAUSE)
    row.update(measure.record("loops", name, "ms", times))
    if others := [other for other in contenders if other not in ("eager", "framejit")]:
        best = min(others, key=lambda other: row[other])
        row.update(peer=row[best], vs_peer=row[f"vs_{best}"])
        row["spread"]["peer"] = row["spread"][best]
    info = cache.cache_info()
    row.update({k: info[k] for k in ("segments", "captures", "kernels")}, breaks=info["breaks"])
    print(json.dumps(row), flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="tools/dev bench loops", description=__doc__)
    parser.add_argument("program", nargs="*", help=f"of {', '.join(loop_programs.PROGRAMS)}, or of NPBench's (default: all)")
    parser.add_argument("--npbench", metavar="CHECKOUT", help="the programs of this checkout of NPBench instead")
    parser.add_argument("--size", default="S", choices=("S", "M", "L", "paper"), help="of NPBench's arguments")
    parser.add_argument("--rivals", action="store_true", help="NPBench's versions for Numba and JAX, too")
    parser.add_argument("--pythran", metavar="FOLDER", help="and those for Pythran; what it compiles is kept in this folder")
    parser.add_argument("--scalar", action="store_true", help="the scalar programs alone")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring, for each program")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--json", metavar="F", help="append JSON lines to this file")
    parser.add_argument("--ours", action="store_true", help="framejit alone: for comparing builds")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    measure.OURS_ALONE = args.ours
    known = npbench.names(args.npbench) if args.npbench else loop_programs.SCALAR if args.scalar else list(loop_programs.PROGRAMS)
    for name in args.program:
        if name not in known:
            parser.error(f"no program {name!r}")
    if args.here:
        name = args.program[0]
        numba = not args.ours and not args.npbench and name in loop_programs.SCALAR and importlib.util.find_spec("numba") is not None
        function, make = npbench.program(args.npbench, args.size, name) if args.npbench else loop_programs.PROGRAMS[name]
        return one(name, function, make, args.seconds, numba, npbench.rivals(args.npbench, name, args.pythran) if args.rivals else ())
    case = f"npbench {args.size}" if args.npbench else "loops"
    which = ["--npbench", args.npbench, "--size", args.size] if args.npbench else []
    which += (["--ours"] if args.ours else []) + (["--rivals"] if args.rivals else []) + (["--pythran", args.pythran] if args.pythran else [])
    print(f"{'program':24} {'right':6} {'first s':>8} {'eager ms':>10} {'framejit ms':>11} {'vs eager':>8} {'vs rival':>8} spread segments")
    rows = []
    said = " ".join(["tools/dev bench loops", *args.program, *(["--npbench", "CHECKOUT", "--size", args.size] if args.npbench else []), *(["--rivals"] if args.rivals else []), *(["--scalar"] if args.scalar else [])])
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
        rows.append(row)
        if args.json:  # at once: a long run that is ended keeps what it found
            measure.append(args.json, [row], said)
        show = lambda key, form: format(row[key], form) if key in row else "-"  # noqa: E731
        print(f"{name:24} {row.get('right', '-')!s:6} {show('first', '.3f'):>8} {show('eager', '.4g'):>10} {show('framejit', '.4g'):>11}"
              f" {show('vs_eager', '.2f'):>8} {show('vs_peer', '.2f'):>8} {max(row.get('spread', {'': 0}).values()):6.2f} {row.get('segments', '-')} {error}", flush=True)  # fmt: skip
    for other in ("eager", "peer"):
        if ratios := [row[f"vs_{other}"] for row in rows if f"vs_{other}" in row]:
            mean = statistics.geometric_mean(ratios)
            print(f"{len(ratios)} of {len(rows)} measured beside {'eager' if other == 'eager' else 'the best rival'}, geometric mean {mean:.3f}, slowest {min(ratios):.2f}x")
    if sooner := [row["numba_first"] / row["first"] for row in rows if "numba_first" in row]:
        print(f"first results {statistics.geometric_mean(sooner):.1f} times sooner than Numba's, at least {min(sooner):.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
