"""The programs of a checkout of NPBench (https://github.com/spcl/npbench), as loop_programs.py has its own: `tools/dev bench loops
--npbench CHECKOUT` runs them. Nothing of NPBench is kept here; its own files make the arguments, and its NumPy versions are what is compiled."""

import importlib
import json
import sys
from pathlib import Path


def _module(info, suffix=""):
    return importlib.import_module(f"npbench.benchmarks.{info['relative_path'].replace('/', '.')}.{info['module_name']}{suffix}")


def _arguments(info, size):
    """As its own runner makes them: the parameters of this size, then what the program's initialiser returns."""
    known = dict(info["parameters"][size])
    if init := info.get("init"):
        made = getattr(_module(info), init["func_name"])(*[known[name] for name in init["input_args"]])
        names = init["output_args"]
        known.update(zip(names, made if len(names) > 1 else [made]))
    return [known[name] for name in info["input_args"]]


def names(checkout):
    return sorted(path.stem for path in Path(checkout, "bench_info").glob("*.json"))


def program(checkout, size, name):
    """(function, function that makes the arguments of one call)."""
    sys.path.insert(0, str(checkout))
    info = json.loads(Path(checkout, "bench_info", f"{name}.json").read_text(encoding="utf-8"))["benchmark"]
    return getattr(_module(info, "_numpy"), info["func_name"]), lambda: _arguments(info, size)
