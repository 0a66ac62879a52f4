"""`python -m framejit report DIR`: what a trace (FRAMEJIT_TRACE, docs/trace.md) says, in plain text."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

_GUARD = re.compile(
    r"(?P<source>.*?): expected (?P<old>.*?), got (?P<new>.*?)(?: \((?P<place>[^()]*:\d+)\))?(?:; to avoid it: (?P<hint>.*))?", re.S
)


def read(folder):
    """The events of every `*.jsonl` file in a folder (or of one file), and how many lines were no events."""
    path = Path(folder)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    events, torn = [], 0
    for file in files:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line)
                if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
                    raise ValueError("not an event")
            except ValueError:
                torn += 1
                continue
            events.append(event)
    return events, torn, len(files)


def _number(event, field):
    value = event.get(field)
    return value if isinstance(value, (int, float)) else 0


def _table(rows, head):
    """Lines of a table; the last column is not padded."""
    rows = [head, *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    return ["  " + "  ".join([*(f"{cell:{w}}" for cell, w in zip(row, widths)), row[-1]]).rstrip() for row in rows]


def _breaks(events):
    causes = {}
    for event in events:
        if event["kind"] == "break":
            key = (event.get("id"), event.get("file"), event.get("line"), event.get("detail"))
            causes.setdefault(key, [event, 0])[1] += 1
    ranked = sorted(causes.values(), key=lambda item: (-item[1], _number(item[0], "t")))
    return [
        (e.get("id"), n, f"{e.get('file')}:{e.get('line')}", e.get("function"), f"{e.get('message')}: {e.get('detail')}") for e, n in ranked
    ]


def _recompiles(events):
    found = {}
    for event in events:
        if event["kind"] != "recompile":
            continue
        text = str(event.get("guard"))
        match = _GUARD.fullmatch(text)
        source, place = (match["source"], match["place"] or "") if match else (text, "")
        entry = found.setdefault((source, place or event.get("place")), {"n": 0, "t": _number(event, "t"), "changes": [], "hint": ""})
        entry["n"] += 1
        if match:
            entry["changes"].append(f"{match['old']} -> {match['new']}")
            entry["hint"] = match["hint"] or entry["hint"]
    ranked = sorted(found.items(), key=lambda item: (-item[1]["n"], item[1]["t"]))
    return [(e["n"], where, source, "; ".join(list(dict.fromkeys(e["changes"]))[:3]), e["hint"]) for (source, where), e in ranked]


def render(events, torn=0, files=1):
    """The report as text."""
    kinds = Counter(event["kind"] for event in events)
    of = defaultdict(list)
    for event in events:
        of[event["kind"]].append(event)
    processes = {event.get("pid") for event in events}
    out = [f"{len(events)} events, {len(processes)} process(es), {files} file(s)" + (f"; {torn} torn line(s) skipped" if torn else "")]

    def section(title, rows, head, none):
        out.extend(["", title])
        out.extend(_table(rows, head) if rows else [f"  {none}"])

    section("Graph breaks, most frequent first, then the earliest", _breaks(events), ["id", "times", "where", "function", "cause"], "none")
    recompiles = _recompiles(events)
    section("Recompiles by guard", [r[:4] for r in recompiles], ["times", "read at", "guard", "old -> new"], "none")
    out.extend(f"  to avoid {source}: {hint}" for _, _, source, _, hint in recompiles if hint)
    fallbacks = Counter((e.get("place"), e.get("reason")) for e in of["fallback"])
    if fallbacks:
        section("Run by the framework", [(n, *key) for key, n in fallbacks.most_common()], ["times", "where", "why"], "none")

    captured, compiled = sum(_number(e, "seconds") for e in of["capture"]), sum(_number(e, "seconds") for e in of["compile"])
    out.extend(["", "Time before code ran"])
    rows = [("capture, compilation in it", kinds["capture"], f"{captured:.3f} s"), ("compile", kinds["compile"], f"{compiled:.3f} s")]
    passes = defaultdict(lambda: [0, 0.0])
    for event in of["pass"]:
        entry = passes[event.get("name")]
        entry[0] += 1
        entry[1] += _number(event, "us") / 1e6
    rows += [(f"  pass {name}", n, f"{s:.3f} s") for name, (n, s) in sorted(passes.items(), key=lambda p: -p[1][1])]
    out.extend(_table(rows, ["phase", "times", "sum"]))
    slow = sorted(of["compile"], key=lambda e: -_number(e, "seconds"))[:5]
    section("Slowest compilations", [(f"{_number(e, 'seconds'):.3f}", e.get("kernels"), e.get("place")) for e in slow],
            ["seconds", "kernels", "where"], "none")  # fmt: skip
    fields = ("kernels", "kernels_compiled", "kernels_reused", "library_calls", "externs")
    out.extend(["", "Kernels: " + ", ".join(f"{f.replace('_', ' ')} {sum(_number(e, f) for e in of['compile'])}" for f in fields)])

    runs = Counter()
    for event in of["runs"]:
        runs[event.get("place"), event.get("line"), event.get("runner")] += _number(event, "runs")
    rows = [(n, runner, f"line {line}", place) for (place, line, runner), n in runs.most_common(20)]
    section("Runs of segments", rows, ["times", "by", "from", "of"], "none told (written when a process ends)")
    return "\n".join(out)
