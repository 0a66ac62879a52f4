"""Timing and rows of results. The contenders of one case take turns within one run, so that a slow phase of the machine hits all
of them. A row is a dict: case, metric, unit, the median of each contender in `unit`, `spread` (half the distance of the quartiles
over the median) where it was sampled, and vs_x = x's time over framejit's. In a file it also names commit, command, date and machine."""

import datetime
import gc
import json
import random
import statistics
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS_ALONE = False  # `--ours`: framejit without its contenders, a second a row (bench/against.py)


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


def interleaved(contenders, seconds=3.0, rounds=(7, 60), wait=lambda: None):
    """{name: (median seconds a call, relative spread)}; spread: half the distance of the quartiles over the median.

    contenders: {name: function without arguments}. Every round calls each once (or a batch of calls if they are short),
    in rotating order; at least rounds[0] rounds, then until `seconds` are over. wait: called before and after each batch, on the clock
    (a device's synchronize).
    """
    if OURS_ALONE:
        contenders, seconds = {"framejit": contenders["framejit"]}, min(seconds, 1.0)
    for fn in contenders.values():  # warm
        fn()
    batch = {name: repetitions(lambda f=fn: (f(), wait())) for name, fn in contenders.items()}
    samples = {name: [] for name in contenders}
    names = list(contenders)
    gc.collect()
    begin = time.perf_counter()
    number = 0
    while number < rounds[0] or (number < rounds[1] and time.perf_counter() - begin < seconds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            fn, count = contenders[name], batch[name]
            wait()
            start = time.perf_counter()
            for _ in range(count):
                fn()
            wait()
            samples[name].append((time.perf_counter() - start) / count)
        number += 1
    return {name: summary(values) for name, values in samples.items()}


def summary(values):
    """(median, spread)."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, (high - low) / 2 / middle


def taken(contenders, seconds=3.0, rounds=(7, 60), pause=0.0):
    """As interleaved, of functions that say themselves how long what is measured took (without making its arguments). Each stands behind
    any other one. pause: seconds before each, off the clock: threads of libraries spin for a while behind what they computed, and would
    take the next contender's cores."""
    seconds = min(seconds, 1.0) if OURS_ALONE else seconds
    samples = {name: [] for name in contenders}
    pause = pause if len(contenders) > 1 else 0.0
    order, names = random.Random(1), list(contenders)
    used = 0.0
    while (done := len(next(iter(samples.values())))) < rounds[0] or (done < rounds[1] and used < seconds):
        order.shuffle(names)
        for name in names:
            time.sleep(pause)
            start = time.perf_counter()
            samples[name].append(contenders[name]())
            used += time.perf_counter() - start
    return {name: summary(values) for name, values in samples.items()}


UNITS = {"B": 1, "MiB": 1, "us": 1e6, "ms": 1e3, "s": 1.0, "": 1.0}


def record(case, metric, unit, times, note=None):
    """A row. times: {contender: seconds, or (seconds, spread), or None}; values are kept in `unit`."""
    scale = UNITS[unit]
    known = {name: value if isinstance(value, tuple) else (value, None) for name, value in times.items() if value is not None}
    row = {"case": case, "metric": metric, "unit": unit}
    row |= {name: round(value * scale, 6) for name, (value, _) in known.items()}
    for name, (value, _) in known.items():
        if name != "framejit" and known.get("framejit", (0,))[0]:
            row[f"vs_{name}"] = round(value / known["framejit"][0], 3)
    spread = {name: round(noise, 4) for name, (_, noise) in known.items() if noise is not None}
    return row | ({"spread": spread} if spread else {}) | ({"note": note} if note else {})


def show(row):
    def number(value):
        return f"{value:10.4g}" if value is not None else f"{'-':>10}"

    ratio = lambda v: f"{v:6.2f}x" if v is not None else f"{'-':>7}"  # noqa: E731
    noise = f" +-{100 * max(row['spread'].values()):.0f}%" if row.get("spread") else ""
    print(f"{row['case']:14} {row['metric']:42} {number(row.get('eager'))} {number(row.get('framejit'))} {number(row.get('peer'))} {row['unit']:3}"
          f" {ratio(row.get('vs_eager'))} {ratio(row.get('vs_peer'))}{noise}{'  ' + row['note'] if 'note' in row else ''}", flush=True)  # fmt: skip


def append(path, rows, command):
    """Adds the rows to a file of JSON lines; each says what was run, where, and on which commit."""
    about = {"commit": commit(), "command": command, "date": datetime.date.today().isoformat(), "machine": machine()}
    with open(path, "a", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps({**row, **about}) + "\n")


def commit():
    """The commit that is measured: git's, with a + where files were changed, or what was noted when this folder was packed."""
    note = ROOT / "commit.txt"
    if note.exists():
        return note.read_text().strip()
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return "unknown"
    changed = subprocess.run([*git, "status", "--porcelain", "-uno", "src", "include", "pymodule"], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


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
