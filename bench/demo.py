"""`tools/dev demo`: Hugging Face models and NumPy functions, each line checked against eager and against float64.

A line passes if it is one graph without breaks, its error is within the oracle of tests/python/oracle.py, and it is not
slower than eager (at least 0.97 of its speed in the median)."""

import copy
import sys
import time
from pathlib import Path

import framejit

from . import functions, measure, models

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))
import oracle  # noqa: E402

HEAD = ("case", "eager ms", "framejit ms", "speed", "compile s", "graphs", "breaks", "made", "reused", "error/eager's", "verdict")
ROW = "{:34} {:>9} {:>11} {:>7} {:>9} {:>6} {:>6} {:>5} {:>6} {:>13}  {}"
NOT_SLOWER = 0.97


def worst(got, eager, reference):
    """(largest ratio of our RMS error to eager's, complaint or ""); values are {path: tensor or array}."""
    ratios, complaint = [0.0], ""
    if list(got) != list(eager):
        return float("nan"), f"results {list(got)} instead of {list(eager)}"
    for path in eager:
        try:
            mine, theirs, _ = oracle.check(got[path], eager[path], reference[path], path)
            ratios.append(mine / theirs if theirs else float(mine > 0))
        except AssertionError as error:
            complaint = complaint or str(error)
    return max(ratios), complaint


def line(name, fn, reference, flatten, seconds):
    """Measures one case, prints its row; returns True if it passes. fn: function or module with its arguments bound later."""
    call, arguments, keywords = fn
    framejit.reset()
    before = framejit.cache_info()
    compiled = framejit.compile(call)
    start = time.perf_counter()
    result = compiled(*arguments, **keywords)
    first = time.perf_counter() - start
    after = framejit.cache_info()
    told = framejit.explain(compiled)(*arguments, **keywords)
    eager = flatten(call(*arguments, **keywords))
    ratio, complaint = worst(flatten(result), eager, reference)
    if not complaint:
        _, complaint = worst(flatten(told.result), eager, reference)
    times = measure.interleaved(
        {"eager": lambda: call(*arguments, **keywords), "framejit": lambda: compiled(*arguments, **keywords)}, seconds
    )
    speed = times["eager"][0] / times["framejit"][0]
    problems = []
    if told.graph_count != 1 or told.graph_break_count:
        problems.append(f"{told.graph_count} graphs, {told.graph_break_count} breaks")
    if complaint:
        problems.append(f"error: {complaint}")
    if speed < NOT_SLOWER:
        problems.append("slower than eager")
    row = (
        name, f"{times['eager'][0] * 1e3:.2f}", f"{times['framejit'][0] * 1e3:.2f}", f"{speed:.2f}x", f"{max(0, first - times['framejit'][0]):.2f}",
        told.graph_count, told.graph_break_count, after["misses"] - before["misses"], after["hits"] - before["hits"], f"{ratio:.2f}",
        "pass" if not problems else "FAIL: " + "; ".join(problems),
    )  # fmt: skip
    print(ROW.format(*row), flush=True)
    for reason in told.break_reasons[:3] if problems else ():
        print("    " + reason.replace("\n", "\n    "))
    return not problems


def model_lines(small, seconds):
    import torch

    passed = []
    for name in models.MODELS:
        torch.manual_seed(0)
        model, inputs = models.build(name, small)
        with torch.no_grad():
            double = copy.deepcopy(model).double()
            reference = models.flatten(double(**models.in_float64(inputs)))
        del double
        for mode in ("no_grad", "inference_mode"):
            with getattr(torch, mode)():
                passed.append(line(f"{name} {mode}", (model, (), inputs), reference, models.flatten, seconds))
    return passed


def numpy_lines(seconds):
    import numpy

    passed = []
    for name, function, arguments in (
        ("Black-Scholes, 1M options", functions.black_scholes, functions.black_scholes_arguments()),
        ("row softmax, 2048x1024", functions.row_softmax, functions.row_softmax_arguments()),
    ):
        flatten = lambda r: dict(enumerate(r)) if isinstance(r, tuple) else {0: r}  # noqa: E731
        wide = [a.astype(numpy.longdouble) if isinstance(a, numpy.ndarray) else a for a in arguments]
        passed.append(line(name, (function, arguments, {}), flatten(function(*wide)), flatten, seconds))
    return passed


def main(argv=None):
    import argparse

    parser = argparse.ArgumentParser(prog="tools/dev demo", description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny configurations: checks the demo itself in seconds")
    parser.add_argument("--seconds", type=float, default=3.0, help="measuring time for each line")
    args = parser.parse_args(argv)
    about = measure.machine()
    print(f"{about['cpu']}, {about['cores']} cores, {' '.join(about['features'])}; Python {about['python']}, torch {about['torch']}, NumPy {about['numpy']}")
    print("float32, batch 1 of 128 tokens or one 224x224 image; error: RMS against float64, ours over eager's\n")
    print(ROW.format(*HEAD))
    passed = []
    try:
        import transformers
    except ImportError as error:
        print(f"(the models are skipped: {error})")
    else:
        transformers.logging.set_verbosity_error()
        passed += model_lines(args.small, args.seconds)
    passed += numpy_lines(args.seconds)
    print(f"\n{sum(passed)} of {len(passed)} lines pass")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
