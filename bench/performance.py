"""docs/performance.md and the README's table, made from the files in bench/results/. Standard library only.

`tools/dev performance` writes both; `tools/dev lint` fails where they differ from what the files say.
"""

import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DOCUMENT = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- results: written by tools/dev performance -->", "<!-- end of results -->"

CONTENDERS = {"eager": "eager", "framejit": "framejit", "framejit_step": "framejit, whole step", "peer": "peer", "reduce_overhead": "peer, reduce-overhead", "other": "an earlier build"}
EXTRA = {"share_of_copy": "of the copy bandwidth", "share_of_that_copy": "of a copy of as much", "graphs": "graphs"}

# The README's rows: (file's name begins with, case or metric as in the file, its label there).
HEADLINES = (
    ("cpu-", "x*y+1, 16 floats, torch", "`x*y+1` on 16 floats: a call"),
    ("cpu-", "one line: first call of a fresh process", "the same: first call of a fresh process"),
    ("cpu-", "gelu+layernorm+residual 4096x1024", "gelu, layer norm, residual, 4096x1024"),
    ("cpu-", "Black-Scholes 1M", "Black-Scholes in NumPy, 1M options"),
    ("cpu-", "BertModel, batch 1", "BERT-base, batch 1"),
    ("cpu-", "ResNetModel, batch 1", "ResNet-50, batch 1"),
    ("gpu-models-", "BertModel bfloat16 16x128", "BERT-base, bfloat16, 16x128, GPU"),
    ("gpu-models-", "LlamaModel float32 8x512", "Llama (8 layers), float32, 8x512, GPU"),
    ("gpu-training-", "train GPT2LMHeadModel 8x512", "GPT-2, training step, 8x512, GPU"),
)

INTRODUCTION = """# Performance

This page is written by `tools/dev performance` from the files in `bench/results/`. Every number comes from the file that stands
above its table, which also names the commit, the command, the machine and the date.

How to read the tables:

- *eager* is the program as written. *framejit* is the same program behind `framejit.compile`. *peer* is torch.compile. For NumPy
  programs the peer is the fastest of Numba, JAX and Pythran.
- All contenders of a row take turns in one process. The figures are medians.
- *against eager* is eager's time divided by ours, so that a number above 1 means that framejit is faster.
- *spread* is half the distance of the quartiles over the median, of the noisiest contender of the row. Where the gain or the loss is not
  larger than the spread, the table says *level* instead of a ratio.
- The peer may freeze weights in inference on the CPU, since we keep weights in another form there. Every contender of a training step uses torch's
  fused optimizer. A first call is measured after all imports, ours and the peer's.
- A first call of eager compiles nothing, so framejit's is usually slower than eager's. The peer's is the one to compare with.
"""


def load():
    """{file name: (what all rows share, rows)}; of rows with the same case and metric the last one counts."""
    files = {}
    for path in sorted(RESULTS.glob("*.json*")):
        if path.suffix == ".json":
            about = json.loads(path.read_text())
            rows = about.pop("rows")
        else:
            rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
            about = {}
        if all("metric" in row for row in rows):
            files[path.name] = about, list({(row["case"], row["metric"]): row for row in rows}.values())
    return files


def origin(about, rows):
    """One line for each commit and machine, with the commands that were run there."""
    runs = {}
    for row in rows:
        of = {**about, **row}
        machine = of.get("machine", {})
        where = of["device"] if isinstance(of.get("device"), str) else f"{machine.get('cpu')}, {machine.get('cores')} cores, {' '.join(machine.get('features', []))}"
        versions = of.get("versions") or {name: machine[name] for name in ("python", "torch", "numpy", "transformers") if machine.get(name)}
        versions = ", ".join(f"{name} {version}" for name, version in versions.items())
        runs.setdefault(f"- {of['date']}, commit {of['commit']}, {where}; {versions}: ", {})[f"`{of['command']}`"] = True
    return [run + ", ".join(commands) for run, commands in runs.items()]


def number(value, unit):
    return "-" if value is None else f"{value:.4g} {unit}".strip()


def noise(row, who):
    spread = row.get("spread", {})
    return max(spread.get("framejit", 0), spread.get(who, 0))


def ratio(row, who):
    """The quotient, if it says more than the noise does."""
    value = row.get(f"vs_{who}")
    if value is None:
        return "-"
    return f"{value:.2f}x" if abs(math.log(value)) > noise(row, who) else "level"


def mean(rows, who):
    values = [row[f"vs_{who}"] for row in rows if row.get(f"vs_{who}")]
    return math.exp(sum(map(math.log, values)) / len(values)) if len(values) > 2 else None


def table(rows, label):
    """A Markdown table of rows that share their contenders' names."""
    whos = [who for who in CONTENDERS if any(who in row for row in rows)]
    others = [who for who in whos if who != "framejit" and any(f"vs_{who}" in row for row in rows)]
    extra = [name for name in EXTRA if any(name in row for row in rows)]
    noisy = any(row.get("spread") for row in rows)
    head = [label, *(CONTENDERS[w] for w in whos), *(f"against {CONTENDERS[w]}" for w in others), *(EXTRA[e] for e in extra), *(["spread"] if noisy else [])]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for row in rows:
        name = row["case"] if label == "case" else row["metric"]
        cells = [name + (f" ({row['note']})" if "note" in row else ""), *(number(row.get(w), row["unit"]) for w in whos), *(ratio(row, w) for w in others)]
        cells += [("-" if e not in row else f"{row[e]:.0%}" if e != "graphs" else f"{row[e]:g}") for e in extra]
        if noisy:
            cells.append(f"{max(row['spread'].values()):.0%}" if row.get("spread") else "-")
        lines.append("| " + " | ".join(cells) + " |")
    means = [f"{mean(rows, who):.2f} of {CONTENDERS[who]}" for who in others if mean(rows, who)]
    return "\n".join(lines) + (f"\n\nGeometric means: {', '.join(means)}.\n" if means else "\n")


def losses(files):
    """Rows where framejit is slower than another contender by more than the spread."""
    for name, (_, rows) in files.items():
        for row in rows:
            for who in ("eager", "peer"):
                value = row.get(f"vs_{who}")
                if value and value < 1 and -math.log(value) > max(noise(row, who), 0.005) and row["unit"] not in ("MiB", "") and not (who == "eager" and "first" in row["metric"]):
                    label = row["metric"] if name.endswith("l") else f"{row['case']}, {row['metric']}"
                    yield f"- {label}: {value:.2f}x of {CONTENDERS[who]} (`bench/results/{name}`)"


def width():
    """How many models of each suite give eager's results, and how many of those in one graph: bench/results/width.jsonl."""
    suites = {}
    for line in (RESULTS / "width.jsonl").read_text().splitlines():
        row = json.loads(line)
        suites.setdefault(row["suite"], {})[row["model"]] = row
    lines = ["## width.jsonl\n", "Models built from small configurations with random weights, each compared with eager (`python -m bench.width`). A module that computes nothing has no graph, which counts as one. Those of GitHub projects (paritybench) are the whole of its corpus, one half of commit d34e462a, one of f89bc33b; those that broke or were wrong were run again on e680708a. The rows of paritybench and those in training are of PyTorch 2.11 and transformers 5.17; what was begun when the time was over is left out.\n"]
    lines += ["| suite | tried | not built | right | in one graph | other |", "| --- | --- | --- | --- | --- | --- |"]
    for suite, models in suites.items():
        of = {status: [m for m in models.values() if m["status"] == status] for status in {m["status"] for m in models.values()}}
        right, skipped = of.pop("ok", []), of.pop("not built", [])
        one = sum(m["graphs"] <= 1 and not m["breaks"] for m in right)
        other = ", ".join(f"{len(rows)} {status}: {', '.join(m['model'] for m in rows)}" for status, rows in sorted(of.items()))
        lines.append(f"| {suite} | {len(models)} | {len(skipped)} | {len(right)} | {one} | {other or 'none'} |")
    return "\n".join(lines) + "\n"


def times():
    """How long a call (a step of training) takes behind 20, of eager's: bench/results/times.jsonl."""
    suites = {}
    for line in (RESULTS / "times.jsonl").read_text().splitlines():
        row = json.loads(line)
        suites.setdefault((row["suite"], row["commit"]), {})[row["model"]] = row["of_eager"]
    lines = ["## times.jsonl\n", "The time of a call, or of a step of training, after 20, of eager's (`python -m bench.width SUITE --time [--train] --jobs 15`): minima of 15 interleaved rounds, one thread each, 15 models at a time on 16 cores, PyTorch 2.11. Models are built from small configurations, so that much of the time is Python's and the framework's own. A sample of each suite, as many as the time was enough for. What is left to Python takes eager's time and that of a call of the compiled function.\n"]
    lines += ["| suite | commit | models | mean | slower than 1.03 | than 1.1 | slowest |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for (suite, commit), of in suites.items():
        slowest = ", ".join(f"{name} {of[name]:.2f}" for name in sorted(of, key=of.get)[:-6:-1])
        mean = math.exp(sum(map(math.log, of.values())) / len(of))
        lines.append(f"| {suite} | {commit} | {len(of)} | {mean:.2f} | {sum(v > 1.03 for v in of.values())} | {sum(v > 1.1 for v in of.values())} | {slowest} |")
    return "\n".join(lines) + "\n"


def shapes():
    """How many versions changing sizes cost, and what one for all sizes costs beside constant ones: bench/results/shapes.jsonl."""
    rows = [json.loads(line) for line in (RESULTS / "shapes.jsonl").read_text().splitlines()]
    lines = ["## shapes.jsonl\n", "Eight models over 50 random shapes each, 0 and 1 among them (`python -m bench.shapes --speed --peer`, `--train`). Versions beyond two are for branches that the program itself takes on sizes, or are ours. The time of others over that of the version for all sizes, by the time that the thread ran, over six shapes: the geometric mean, and the least. torch.compile is asked with `dynamic=True`, after it has seen every shape.\n"]
    lines += ["| model | versions | for branches | ours | wrong | of constant sizes | of eager | of torch.compile | torch |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        speeds = ["{:.2f}, {:.2f}".format(*row["speed"][who]) if who in row.get("speed", {}) else "-" for who in ("constant", "eager", "peer")]
        cells = [row["model"] + " train" * row["train"], sum(row["compiles"].values()), row["branches"], row["ours"], len(row["wrong"]), *speeds, row["machine"]["torch"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def libraries():
    """What becomes of programs of other people's libraries: bench/results/libraries.jsonl."""
    rows = {}
    for line in (RESULTS / "libraries.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows[row["program"]] = row
    rows = [row for row in rows.values() if "left_out" not in row]
    lines = ["## libraries.jsonl\n", "Programs as the documentation of their libraries shows them, on four calls of changing sizes (`python -m bench.libraries --peer`). Breaks are the lines of code"]
    lines[-1] += " at which graphs end. Eager runs first, so its first call has imports in it. torch.compile leaves whole functions to Python at some of its own, which count as one. A dash stands for torch.compile where its results differ from eager's, and for a speed whose spread says nothing.\n"
    lines += ["| program | results | breaks | torch.compile's | graphs | first call (eager's) | times eager's speed |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        peer = row["peer_breaks"] if row.get("peer_right") else "-"
        speed = f"{row['vs_eager']:.2f} +-{100 * row['spread']:.0f}%" if row.get("vs_eager") else "-"
        first = f"{row['first_s']:.2f} s ({row['eager_first_s']:.2f} s)" if "first_s" in row else "-"
        lines.append(f"| {row['program']} | {'right' if row['right'] else 'wrong'} | {row.get('breaks', '-')} | {peer} | {row.get('graphs', '-')} | {first} | {speed} |")
    return "\n".join(lines) + "\n"


def document(files):
    parts = [INTRODUCTION, "## Where framejit is slower\n\n" + ("\n".join(losses(files)) or "Nowhere in these files.") + "\n"]
    for name, (about, rows) in files.items():
        parts.append(f"## {name}\n\n" + "\n".join(origin(about, rows)) + "\n")
        key, label = ("case", "metric") if name.endswith(".jsonl") else ("metric", "case")
        for group in dict.fromkeys(row[key] for row in rows):
            parts.append(f"### {group}\n\n" + table([row for row in rows if row[key] == group], label))
    return "\n".join([*parts, width(), times(), shapes(), libraries()])


def headlines(files):
    lines = ["| case | eager | framejit | torch.compile or the best of Numba and JAX | against eager | against the peer | file |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for prefix, wanted, label in HEADLINES:
        for name, (_, rows) in files.items():
            row = next((r for r in rows if wanted == (r["metric"] if name.endswith("l") else r["case"])), None)
            if name.startswith(prefix) and row:
                cells = [label, *(number(row.get(who), row["unit"]) for who in ("eager", "framejit", "peer")), ratio(row, "eager"), ratio(row, "peer"), f"`{name}`"]
                lines.append("| " + " | ".join(cells) + " |")
                break
    return "\n".join(lines)


def readme(text, files):
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{headlines(files)}\n{END}{after}"


def stale():
    """Names of the documents that do not say what the results say."""
    files = load()
    found = [] if DOCUMENT.exists() and DOCUMENT.read_text() == document(files) else ["docs/performance.md"]
    return found + ([] if README.read_text() == readme(README.read_text(), files) else ["README.md"])


def main():
    files = load()
    DOCUMENT.write_text(document(files))
    README.write_text(readme(README.read_text(), files))
    print(f"{DOCUMENT.relative_to(ROOT)} and {README.name}: {sum(len(rows) for _, rows in files.values())} rows of {len(files)} files")


if __name__ == "__main__":
    sys.exit(main())
