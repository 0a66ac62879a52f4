"""tools/dev bench CASE... --against FOLDER: this build beside another one. FOLDER holds the other build's package `framejit` (build/python of
another working tree, or a packed folder).

Both builds run the same cases of this tree in fresh processes by turns, without eager beside them. A row's values are the medians of our times over
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
    """{metric: (unit, our time)} of one run of a case in a fresh process that imports framejit from this folder."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        env = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{package}{os.pathsep}{measure.ROOT}", "FRAMEJIT_CACHE_DIR": folder}
        subprocess.run([sys.executable, "-m", "bench", case, "--ours", "--json", str(out)], env=env, stdout=subprocess.DEVNULL, check=True)
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return {row["metric"]: (row["unit"], row["framejit"]) for row in rows if "framejit" in row}


def compare(case, other, rounds):
    """Rows of one case: the median of each build over the rounds."""
    import framejit

    packages = {"framejit": Path(framejit.__file__).absolute().parent.parent, "other": Path(other).absolute()}
    seen = {name: [] for name in packages}
    for number in range(rounds):
        for name in list(packages)[:: 1 if number % 2 else -1]:
            seen[name].append(once(case, packages[name]))
    for metric, (unit, _) in seen["framejit"][0].items():
        times = {name: [run[metric][1] for run in runs if metric in run] for name, runs in seen.items()}
        if min(map(len, times.values())) < rounds:
            continue  # the metric's name holds a figure that differs from run to run
        middle = {name: statistics.median(values) for name, values in times.items()}
        spread = {name: round((max(values) - min(values)) / 2 / middle[name], 4) for name, values in times.items()}
        yield {"case": case, "metric": metric, "unit": unit, **middle, "vs_other": round(middle["other"] / middle["framejit"], 3), "spread": spread}


def show(row):
    noise = max(row["spread"].values())
    word = "level" if abs(math.log(row["vs_other"])) <= noise else "faster" if row["vs_other"] > 1 else "SLOWER"
    print(f"{row['case']:14} {row['metric']:52} {row['other']:10.4g} {row['framejit']:10.4g} {row['unit']:3} {row['vs_other']:6.2f}x +-{100 * noise:.0f}% {word}", flush=True)


def main(cases, other, rounds, json_file):
    print(f"{'case':14} {'metric':52} {'other':>10} {'this':>10} {'':3} other/this")
    for case in cases:
        rows = []
        for row in compare(case, other, rounds):
            show(row)
            rows.append(row)
        if json_file:
            measure.append(json_file, rows, f"tools/dev bench {case} --against OTHER --rounds {rounds}")
    return 0
