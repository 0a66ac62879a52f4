"""The report as text: with rich where that is installed and the output is a terminal, else plain. Both print the same blocks."""

import os

FIRST = 5  # causes that are told in full
ROWS = 12  # of a table


def seconds(value):
    """A duration in three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1 or unit == "us":
            return f"{value * factor:.3g} {unit}" if value else "0 s"


def _bytes(value):
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.3g} {unit}"
        value /= 1000


def _where(row):
    """FILE:LINE, from the folder of packages or the current one on."""
    path = row["file"]
    if not path:
        return ""
    if "-packages/" in path:
        path = path.rpartition("-packages/")[2]
    elif os.path.isabs(path) and path.startswith(os.getcwd() + os.sep):
        path = os.path.relpath(path)
    return f"{path}:{row['line']}"


def _short(words, most=100):
    words = " ".join(str(words).split())
    return words if len(words) <= most else words[: most - 3] + "..."


def _times(n, word, words=""):
    return f"{n} {word if n == 1 else words or word + 's'}"


def _head(report, folder):
    log = report["log"]
    lines = [f"{folder}: {_times(len(report['processes']), 'process', 'processes')}, {_times(log['events'], 'event')}, "
             f"{seconds(report['time']['span'])}"]  # fmt: skip
    if report["peak_bytes"]:
        lines[0] += f", at most {_bytes(report['peak_bytes'])} of memory"
    if log["torn"] or log["foreign"]:
        lines.append(f"skipped: {_times(log['torn'], 'torn line')}, {_times(log['foreign'], 'line')} of something else")
    if log["missing_parts"]:
        lines.append(f"{_times(log['missing_parts'], 'part')} in the middle were dropped (FRAMEJIT_EVENTS_LIMIT)")
    return lines


def _time_rows(report):
    time = report["time"]
    rows = [
        ("in compiled graphs", time["compiled"]),
        ("  of it around their steps", time["around"]),
        ("in the framework, for captured code", time["framework"]),
        ("in Python, behind breaks", time["python_after_breaks"]),
        ("in Python, otherwise", time["python"] - time["python_after_breaks"]),
        ("capturing and compiling", time["capture"]),
        ("  of it again, after guards failed", time["recompile"]),
        ("outside of compiled functions", time["elsewhere"]),
        ("meanwhile on GPUs, in compiled graphs", time["devices"]),
    ]
    whole = max(time["span"], sum(value for name, value in rows if not name.startswith((" ", "meanwhile")))) or 1.0
    return [(name, seconds(value), f"{value / whole:.0%}") for name, value in rows if value or not name.startswith((" ", "meanwhile"))]


def _cause_lines(number, cause):
    counts = [_times(cause["times"], "time")] if cause["times"] else []
    if cause["copies"] > 1:
        counts.append(f"{cause['copies']} copies")
    if len(cause["processes"]) > 1:
        counts.append(f"in {', '.join(cause['processes'])}")
    took = seconds(cause["seconds"]) if cause["seconds"] else "time unknown"
    lines = [f"{number}. {_short(cause['title'], 160)}", f"   {took}" + (f" ({', '.join(counts)})" if counts else "")]
    if cause["file"]:
        lines.append(f"   at {_where(cause)}" + (f" in {cause['function']}" if cause["function"] else ""))
        if cause["source"]:
            lines.append(f"      {_short(cause['source'], 120)}")
        if cause["from"]:
            lines.append(f"   reached from {_where(cause['from'])} in {cause['from']['function']}")
    if cause["fix"]:
        lines.append(f"   fix: {cause['fix']}")
    return lines


def _tables(report):
    """(title, heads, rows) of every table that has rows."""
    yield "Graph breaks", ["id", "time", "times", "copies", "where", "cause"], [
        (b["id"], seconds(b["seconds"]), b["times"], b["copies"], _where(b["places"][0]) + (f" and {len(b['places']) - 1} more" if b["places"][1:] else ""),
         _short(b["message"] + (f": {b['detail']}" if b["detail"] else "")))
        for b in report["breaks"]]  # fmt: skip
    yield "Recompiles by guard", ["times", "copies", "time", "read at", "guard", "old -> new"], [
        (r["times"], r["copies"], seconds(r["seconds"]), _where(r), _short(r["guard"], 60),
         _short("; ".join(f"{old} -> {new}" if old else new for old, new in r["changes"][:4])))
        for r in report["recompiles"]]  # fmt: skip
    yield "Run by the framework", ["time", "runs", "where", "why"], [
        (seconds(f["seconds"]), f["runs"], _where(f), _short(f["reason"])) for f in report["fallbacks"]]  # fmt: skip
    yield "Runs that ended early", ["times", "how", "where", "why"], [
        (o["times"], o["end"], _where(o), _short(o["why"])) for o in report["outcomes"]]  # fmt: skip
    yield "Left to Python, or to the framework", ["compiled", "as written", "where", "of", "why"], [
        (seconds(r["compiled"]), seconds(r["python"]), _where(r), r["function"], _short(r["why"])) for r in report["left"]]  # fmt: skip
    yield "Segments by time", ["time", "runs", "around", "by", "misses", "from", "of"], [
        (seconds(s["seconds"]), s["runs"], f"{s['around'] / s['seconds']:.0%}" if s["around"] and s["seconds"] else "", s["runner"], s["misses"], _where(s), s["function"]) for s in report["segments"]]  # fmt: skip
    yield "Steps of graphs by time", ["time", "share", "rate", "bound", "by", "on", "step"], [
        (seconds(s["seconds"]), f"{s['share']:.0%}", _rate(s), f"{s['bound_seconds'] / s['seconds']:.0%}" if s["seconds"] else "", s["by"], s["device"],
         _short(s["name"] + (f"@{s['file']}:{s['line']}" if s["file"] else "")))
        for s in report["steps"]]  # fmt: skip
    yield "Collectives of groups of ranks", ["times", "where", "what", "group"], [
        (c["times"], _where(c), _short(c["said"]), f"{g['group']} ({g['description']})") for g in report["collectives"] for c in g["calls"]]  # fmt: skip
    yield "Symbolic sizes", ["symbol", "is", "was", "in", "made of it", "asked of it"], [
        (s["symbol"], _short(s["source"], 40), s["value"], s["function"],
         _short("; ".join(f"{x['expression']} ({x['by']}, line {x['line']})" for x in s["expressions"]), 60),
         _short("; ".join(f"{g['guard']} (line {g['line']})" for g in s["guards"]), 60)) for s in report["symbols"]]  # fmt: skip
    yield "Measured and chosen", ["what", "chosen", "why"], [(_short(c["what"], 60), c["chosen"], _short(c["why"])) for c in report["choices"]]  # fmt: skip
    slow = sorted(report["captures"], key=lambda c: -c["seconds"])
    yield "Slowest captures, compilation in them", ["time", "by", "calls", "where", "of"], [
        (seconds(c["seconds"]), c["runner"] or "nothing", c["calls"], _where(c), c["function"]) for c in slow[:5]]  # fmt: skip
    yield "Passes", ["time", "times", "pass"], [(seconds(p["seconds"]), p["times"], p["name"]) for p in report["passes"][:5]]


def _rate(step):
    if step["flops"]:
        return f"{step['flops_per_second'] / 1e9:.1f} GFLOP/s"
    return f"{step['bytes_per_second'] / 1e9:.1f} GB/s"


def _blocks(report, folder):
    """("text", lines), ("title", line) and ("table", heads, rows), in their order."""
    yield "text", _head(report, folder)
    yield "title", "Where the time went"
    yield "table", ["", "time", "share"], _time_rows(report)
    yield "title", "What to fix first"
    causes = report["fix_first"]
    yield "text", [line for n, cause in enumerate(causes[:FIRST], 1) for line in _cause_lines(n, cause)] or ["nothing: no breaks, no recompiles"]
    if len(causes) > FIRST:
        yield "text", [f"and {len(causes) - FIRST} more in the tables"]
    for title, heads, rows in _tables(report):
        if rows:
            yield "title", title
            yield "table", heads, rows[:ROWS]
            if len(rows) > ROWS:
                yield "text", [f"and {len(rows) - ROWS} more"]
    kernels = report["kernels"]
    yield "title", "Kernels"
    yield "text", [", ".join(f"{name.replace('_', ' ')} {n}" for name, n in kernels.items())]


def plain(report, folder):
    """The report as one string."""
    out = []
    for kind, *block in _blocks(report, folder):
        if kind == "title":
            out += ["", block[0]]
        elif kind == "text":
            out += [("" if not out else "  ") + line for line in block[0]] if out else block[0]
        else:
            out += _plain_table(*block)
    return "\n".join(out)


def _plain_table(heads, rows):
    cells = [heads, *[[str(cell) for cell in row] for row in rows]] if any(heads) else [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads) - 1)]
    return ["  " + "  ".join([*(f"{cell:{w}}" for cell, w in zip(row, widths)), row[-1]]).rstrip() for row in cells]


def show(report, folder, file):
    """Prints it: with colours where the output is a terminal and rich is there."""
    console = _console(file)
    if console is None:
        print(plain(report, folder), file=file)
        return
    from rich.markup import escape
    from rich.table import Table

    for kind, *block in _blocks(report, folder):
        if kind == "title":
            console.print(f"\n[bold]{escape(block[0])}[/bold]")
        elif kind == "text":
            for line in block[0]:
                style = "bold yellow" if line[:1].isdigit() and ". " in line[:4] else "green" if line.startswith("   fix:") else None
                console.print("  " + line, style=style, markup=False, highlight=False, soft_wrap=True)
        else:
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim")
            for head in block[0]:
                table.add_column(escape(head), overflow="fold")
            for row in block[1]:
                table.add_row(*(escape(str(cell)) for cell in row))
            console.print(table)


def _console(file):
    if not file.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=file)
