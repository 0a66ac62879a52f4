"""The report as one page of HTML without network: `page.html` with the data in it. Bounded in size."""

import json
import re
from pathlib import Path

MOST_EVENTS = 12000  # in the timeline, the longest ones
MOST_TEXT = 2_000_000  # characters of graphs and kernels
MOST_ROWS = 3000  # of each table


def page(report, folder, difference=None):
    """The HTML. `folder` is shown as its title."""
    timeline, labels, dropped = _timeline(report["timeline"])
    shown = {k: v[:MOST_ROWS] if isinstance(v, list) else v for k, v in report.items() if k not in ("timeline", "texts")}
    shown["start"] = min((c["begin"] for c in report["captures"]), default=0)
    shown["texts"] = _texts(report["texts"])
    data = {"folder": str(folder), "report": shown, "difference": difference, "timeline": timeline, "labels": labels, "dropped": dropped,
            "sources": _sources(shown["texts"])}  # fmt: skip
    encoded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # nothing in it can end the script
    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    return template.replace("@DATA@", encoded)


def _timeline(rows):
    """Rows with numbers for labels, which are told once."""
    kept = rows
    if len(rows) > MOST_EVENTS:
        longest = sorted(range(len(rows)), key=lambda i: -rows[i][4])[:MOST_EVENTS]
        kept = [rows[i] for i in sorted(longest)]
    numbers = {}
    out = [[*row[:3], round(row[3], 6), round(row[4], 6), numbers.setdefault(row[5][:200], len(numbers))] for row in kept]
    return out, list(numbers), len(rows) - len(kept)


def _texts(texts):
    left, out = MOST_TEXT, []
    for capture in texts:
        channels = {}
        for channel, text in capture["texts"].items():
            channels[channel] = text if len(text) <= left else text[:left] + "\n... cut"
            left -= len(channels[channel])
            if left <= 0:
                break
        out.append({**capture, "texts": channels})
        if left <= 0:
            break
    return out


MOST_FUNCTIONS = 40  # whose source is shown with one capture


def _sources(texts):
    """[[{"file", "first", "lines"}, ...], ...]: for each capture the functions that its graph has lines of, as far as their
    files are there."""
    import linecache

    out, functions = [], {}
    for capture in texts:
        lines = {(capture["file"], capture["line"])}
        lines |= {(file, int(line)) for file, line in re.findall(r'loc "([^"]+)":(\d+)', capture["texts"].get("graph", ""))}
        blocks = {}
        for file, line in sorted(lines, key=lambda at: (at[0] != capture["file"], at)):
            if file not in functions:
                functions[file] = _functions(linecache.getlines(file))
            first, last = _around(functions[file], line)
            if len(blocks) < MOST_FUNCTIONS and (text := linecache.getlines(file)[first - 1 : last]):
                blocks.setdefault((file, first), {"file": file, "first": first, "lines": [t.rstrip("\n") for t in text]})
        out.append(list(blocks.values()))
    return out


def _functions(lines):
    """[(first, last)] of the functions in a file."""
    import ast

    try:
        nodes = ast.walk(ast.parse("".join(lines)))
        return [(n.lineno, n.end_lineno) for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    except (SyntaxError, ValueError, RecursionError):
        return []


def _around(functions, line):
    """First and last line of the innermost function around a line; some lines around it, where there is none."""
    inside = [f for f in functions if f[0] <= line <= f[1]]
    return max(inside) if inside else (max(1, line - 3), line + 3)
