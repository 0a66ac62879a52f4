"""The programs of a checkout of NPBench (https://github.com/spcl/npbench), as loop_programs.py has its own: `tools/dev bench loops
--npbench CHECKOUT` runs them. Nothing of NPBench is kept here; its own files make the arguments, its NumPy versions are what is compiled,
and its versions for Numba, JAX and Pythran are what that is measured against."""

import importlib
import importlib.util
import json
import subprocess
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


def _info(checkout, name):
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    return json.loads(Path(checkout, "bench_info", f"{name}.json").read_text(encoding="utf-8"))["benchmark"]


def names(checkout):
    return sorted(path.stem for path in Path(checkout, "bench_info").glob("*.json"))


def program(checkout, size, name):
    """(function, function that makes the arguments of one call)."""
    info = _info(checkout, name)
    return getattr(_module(info, "_numpy"), info["func_name"]), lambda: _arguments(info, size)


def _jax(function):
    import jax

    jax.config.update("jax_enable_x64", True)
    return lambda *given: jax.block_until_ready(function(*given)), jax.numpy.array


def _pythran(info, checkout, folder):
    """Compiles the module as NPBench does, once: what was made is kept in the folder."""
    source = Path(checkout, "npbench", "benchmarks", info["relative_path"], f"{info['module_name']}_pythran.py")
    made = Path(folder, f"{source.stem}.so")
    if not made.exists():
        flags = ["-DUSE_XSIMD", "-fopenmp", "-march=native", "-ffast-math"]
        subprocess.run([sys.executable, "-m", "pythran.run", *flags, source, "-o", made], check=True, capture_output=True)
    spec = importlib.util.spec_from_file_location(source.stem, made)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, info["func_name"])


def rivals(checkout, name, pythran):
    """(name, function, what an array is made into before a call) of each version for another compiler that can be imported: Numba's with
    loops as written and parallel ones, JAX's, and Pythran's where there is a folder for what it makes."""
    info = _info(checkout, name)
    for kind in ("numba_n", "numba_np", "numba_npr", "jax"):
        try:
            function = getattr(_module(info, f"_{kind}"), info["func_name"])
        except (ImportError, AttributeError):
            continue
        yield (kind, *(_jax(function) if kind == "jax" else (function, lambda array: array)))
    if pythran:
        try:
            yield "pythran", _pythran(info, checkout, pythran), lambda array: array
        except (subprocess.CalledProcessError, ImportError, AttributeError) as error:
            print(f"{name}: Pythran: {error}", file=sys.stderr)
