"""Timing: the contenders of one case take turns within one run, so that a slow phase of the machine hits all of them."""

import gc
import json
import statistics
import time


def repetitions(fn, target=2e-3):
    """How many calls make a sample long enough for the clock."""
    start = time.perf_counter()
    fn()
    once = time.perf_counter() - start
    if once < target:
        start = time.perf_counter()
        for _ in range(10):
            fn()
        once = min(once, (time.perf_counter() - start) / 10)
    return max(1, min(100_000, int(target / max(once, 1e-9))))


def interleaved(contenders, seconds=3.0, rounds=(7, 60)):
    """{name: (median seconds a call, relative spread)}; spread: half the distance of the quartiles over the median.

    contenders: {name: function without arguments}. Every round calls each once (or a batch of calls if they are short),
    in rotating order; at least rounds[0] rounds, then until `seconds` are over.
    """
    for fn in contenders.values():  # warm
        fn()
    batch = {name: repetitions(fn) for name, fn in contenders.items()}
    samples = {name: [] for name in contenders}
    names = list(contenders)
    gc.collect()
    begin = time.perf_counter()
    number = 0
    while number < rounds[0] or (number < rounds[1] and time.perf_counter() - begin < seconds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            fn, count = contenders[name], batch[name]
            start = time.perf_counter()
            for _ in range(count):
                fn()
            samples[name].append((time.perf_counter() - start) / count)
        number += 1
    result = {}
    for name, values in samples.items():
        low, middle, high = statistics.quantiles(values, n=4)
        result[name] = (middle, (high - low) / 2 / middle)
    return result


UNITS = {"MiB": 1, "us": 1e6, "ms": 1e3, "s": 1.0, "": 1.0}


def record(case, metric, unit, **seconds):
    """One JSON line of design section 15; values in `unit`, vs_x = x's time / framejit's."""
    scale = UNITS[unit]
    row = {"case": case, "metric": metric, "unit": unit}
    for name in ("eager", "framejit", "peer"):
        value = seconds.get(name)
        row[name] = None if value is None else round(value * scale, 6)
    for name in ("eager", "peer"):
        row[f"vs_{name}"] = round(seconds[name] / seconds["framejit"], 3) if seconds.get(name) and seconds.get("framejit") else None
    return row


def show(row, spread=None):
    def number(value):
        return f"{value:10.4g}" if value is not None else f"{'-':>10}"

    ratio = lambda v: f"{v:6.2f}x" if v is not None else f"{'-':>7}"  # noqa: E731
    noise = f" +-{100 * max(spread):.0f}%" if spread else ""
    print(f"{row['case']:14} {row['metric']:42} {number(row['eager'])} {number(row['framejit'])} {number(row['peer'])} {row['unit']:3}"
          f" {ratio(row['vs_eager'])} {ratio(row['vs_peer'])}{noise}", flush=True)  # fmt: skip


def append(path, rows, machine):
    with open(path, "a", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps({**row, "machine": machine}) + "\n")


def machine():
    """CPU name, the vector features that decide our kernels, and versions."""
    import importlib.metadata
    import os
    import platform

    name, flags = platform.processor() or "?", []
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            fields = dict(line.split(":", 1) for line in info if ":" in line)
        fields = {k.strip(): v.strip() for k, v in fields.items()}
        name = fields.get("model name", name)
        flags = [f for f in ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile") if f in fields.get("flags", "").split()]
    except OSError:
        pass
    versions = {}
    for package in ("torch", "numpy", "transformers"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {"cpu": name, "features": flags, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), **versions}
