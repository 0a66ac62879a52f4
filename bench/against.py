"""tools/dev bench [CASE...] --against FOLDER: this build beside another one. FOLDER holds the other build's package `framejit` (build/python of
another working tree, or a folder of tools/dev gpu-pack); the command runs in a packed folder, too.

Both builds run the same cases of this tree in fresh processes by turns, without eager beside them. A case that fails in one of them is left out, and the last
line of the table says how many rows are faster, level and slower. A row's values are the medians of our times over
the rounds: `framejit` of this build, `other` of the other one. The spread is half the distance between the slowest and the fastest round, over the median.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from . import measure


def once(case, package):
    """{metric: (unit, our time)} of one run of a case in a fresh process that imports framejit from this folder. A text: why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        env = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{package}{os.pathsep}{measure.ROOT}", "FRAMEJIT_CACHE_DIR": folder}
        command = [sys.executable, "-m", "bench", case, "--ours", "--json", str(out)]
        done = subprocess.run(command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            return (done.stderr.splitlines() or [f"status {done.returncode}"])[-1]
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    return {row["metric"]: (row["unit"], row["framejit"]) for row in rows if "framejit" in row}


def package_in(folder):
    """Where the package lies: in this folder, or in what the build makes there."""
    for place in (Path(folder), Path(folder, "python"), Path(folder, "build", "python")):
        if (place / "framejit" / "__init__.py").exists():
            return place.absolute()
    raise SystemExit(f"{folder} holds no package `framejit`")


def compare(case, packages, rounds):
    """Rows of one case: the median of each build over the rounds. packages: {"framejit": folder of this build's package, "other": of the other one}."""
    seen = {name: [] for name in packages}
    for number in range(rounds):
        for name in list(packages)[:: 1 if number % 2 else -1]:
            run = once(case, packages[name])
            if isinstance(run, str):
                print(f"{case:14} failed with {packages[name]}: {run}", flush=True)
                return
            seen[name].append(run)
    for metric, (unit, _) in seen["framejit"][0].items():
        times = {name: [run[metric][1] for run in runs if metric in run] for name, runs in seen.items()}
        if min(map(len, times.values())) < rounds:
            continue  # the metric's name holds a figure that differs from run to run
        middle = {name: statistics.median(values) for name, values in times.items()}
        spread = {name: round((max(values) - min(values)) / 2 / middle[name], 4) for name, values in times.items()}
        yield {"case": case, "metric": metric, "unit": unit, **middle, "vs_other": round(middle["other"] / middle["framejit"], 3), "spread": spread}


def verdict(row):
    if abs(math.log(row["vs_other"])) <= max(row["spread"].values()):
        return "level"
    return "faster" if row["vs_other"] > 1 else "SLOWER"


def show(row):
    noise = max(row["spread"].values())
    print(f"{row['case']:14} {row['metric']:52} {row['other']:10.4g} {row['framejit']:10.4g} {row['unit']:3} {row['vs_other']:6.2f}x +-{100 * noise:.0f}% {verdict(row)}", flush=True)


def main(cases, other, rounds, json_file):
    import framejit

    packages = {"framejit": Path(framejit.__file__).absolute().parent.parent, "other": package_in(other)}
    print(f"{'case':14} {'metric':52} {'other':>10} {'this':>10} {'':3} other/this")
    words = []
    for case in cases:
        rows = []
        for row in compare(case, packages, rounds):
            show(row)
            rows.append(row)
            words.append(verdict(row))
        if json_file:
            measure.append(json_file, rows, f"tools/dev bench {case} --against OTHER --rounds {rounds}")
    print(f"{len(words)} rows: " + ", ".join(f"{words.count(word)} {word}" for word in ("faster", "level", "SLOWER")))
    return 0
