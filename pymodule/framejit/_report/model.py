"""From events to what a person wants to know: where the time went, which causes took it, and what to fix first.

`analyse` returns a dictionary of plain values, in the form that docs/events.md describes (`--json`). The renderers beside
this file show it; none of them looks at events.
"""

import re
from collections import Counter, defaultdict

from . import details, guards, ranks
from .events import begin, number, text

SCHEMA = 1
LONG = 20e-6  # seconds of a step whose rate says something
_EARLY_ENDS = {
    "guess_failed": "the branch on data goes both ways: use torch.where or numpy.where, or move it out of the function",
    "condition": "sizes that data decides changed: mark them dynamic, or pad to a few sizes",
    "memory": "there was no memory for the run: smaller batches, or framejit.config.pack_weights = False",
    "refused": "the framework raised; the program saw the same error from Python",
    "told": "NumPy told of a floating-point error: numpy.errstate(all='ignore') around the call, if it is expected",
}


_LIBRARY_FIX = 'the library is slow for these sizes: mode="max-autotune" measures all of them, and framejit.profile() this call alone'
_STEP_FIXES = {
    "kernel": "cheaper operations or a smaller type on this line; framejit.profile() measures it alone",
    "interpret": "no kernel serves it: write it with other operations",
    "extern": "the framework makes this call: write it with operations that are compiled",
}


def _table():
    """{id: (message, explanation, hint)} of the break table."""
    from .. import _framejit

    return {row[0]: row[1:] for row in _framejit.breaks()}


def _split(place):
    """("function", "file", line) of `function@file:line`."""
    function, _, where = place.rpartition("@")
    file, _, line = where.rpartition(":")
    return function, file, int(line) if line.isdigit() else 0


def _source_line(file, line):
    """The program's text, if it is still there."""
    import linecache

    return linecache.getline(file, line).strip() if file and line else ""


def _percent(part, whole):
    return part / whole if whole else 0.0


# --- breaks ------------------------------------------------------------------------------------------------------------
def _break_places(log):
    """{(id, file, line): row} of every place where a graph ends."""
    places = {}

    def row(key, event=None):
        found = places.setdefault(key, {"id": key[0], "file": key[1], "line": key[2], "function": "", "detail": "", "message": "",
                                        "copies": 0, "times": 0, "python_seconds": 0.0, "wasted_seconds": 0.0, "first": 0.0,
                                        "processes": set(), "from": (-1, None)})  # fmt: skip
        if event:
            found.update(function=text(event, "function"), detail=text(event, "detail"), message=text(event, "message"))
        return found

    for process, e in log.of("break"):
        found = row((text(e, "id"), text(e, "file"), int(number(e, "line"))), e)
        found["first"] = found["first"] or number(e, "t")
        found["processes"].add(process.name)
    for _, e in log.of("capture"):
        for name in e.get("breaks") or ():
            match = re.fullmatch(r"(\w+)@(.*):(\d+)", str(name), re.S)
            if match:
                found = row((match[1], match[2], int(match[3])))
                found["copies"] += 1
                found["wasted_seconds"] += 0 if e.get("ok") else number(e, "seconds")
                function, of, first = _split(text(e, "place"))
                if of != found["file"]:  # the latest one begins closest to the call
                    start = int(number(e, "line")) or first
                    found["from"] = max(found["from"], (start, {"file": of, "line": start, "function": function}), key=lambda at: at[0])
    for _, e in log.of("python"):
        if text(e, "id"):
            found = row((text(e, "id"), text(e, "file"), int(number(e, "line"))))
            found["times"] += int(number(e, "times"))
            found["python_seconds"] += number(e, "seconds")
    return places


def _breaks(log, table):
    """Root causes: places of one reason and detail are one; costliest first."""
    roots = {}
    for (identifier, file, line), place in _break_places(log).items():
        key = (identifier, place["detail"]) if place["detail"] and identifier != "FJ0020" else (identifier, file, line)
        roots.setdefault(key, []).append(place)
    rows = []
    for places in roots.values():
        places.sort(key=lambda p: (-p["python_seconds"] - p["wasted_seconds"], -p["times"], -p["copies"], p["first"]))
        top = places[0]
        known = table.get(top["id"], (top["message"], "", ""))
        rows.append({
            "id": top["id"],
            "message": top["message"] or known[0],
            "detail": top["detail"],
            "explanation": known[1],
            "fix": known[2],
            "seconds": sum(p["python_seconds"] + p["wasted_seconds"] for p in places),
            "times": sum(p["times"] for p in places),
            "copies": sum(max(1, p["copies"]) for p in places),
            "processes": sorted(set().union(*(p["processes"] for p in places))),
            "first": top["first"],
            "from": top["from"][1],
            "places": [{k: p[k] for k in ("file", "line", "function", "copies", "times", "python_seconds", "wasted_seconds")}
                       | {"source": _source_line(p["file"], p["line"])} for p in places],
        })  # fmt: skip
    rows.sort(key=lambda r: (-r["seconds"], -r["times"], -r["copies"], r["first"]))
    return rows


# --- recompiles --------------------------------------------------------------------------------------------------------
def _recompile_events(log):
    """(process, event, seconds that the capture behind it took)."""
    for process in log.processes:
        waiting = {}
        found = []
        for e in process.events:
            key = (e.get("tid"), text(e, "place"))
            if e["kind"] == "recompile":
                waiting[key] = [process, e, 0.0]
                found.append(waiting[key])
            elif e["kind"] == "capture" and key in waiting:
                waiting.pop(key)[2] = number(e, "seconds")
        yield from found


def _recompiles(log, breaks):
    """By the guard that failed; elements of one container are one guard."""
    roots = {}

    def root(failure, place):
        key = (failure.root, failure.place or place)
        return roots.setdefault(key, {"failures": [], "sources": set(), "place": place, "times": 0, "misses": 0, "seconds": 0.0,
                                      "limit": False, "first": 0.0, "processes": set()})  # fmt: skip

    for process, e, seconds in _recompile_events(log):
        failure = guards.parse(text(e, "guard"))
        found = root(failure, text(e, "place"))
        found["failures"].append(failure)
        found["sources"].add(failure.source)
        found["times"] += 1
        found["seconds"] += seconds
        found["first"] = found["first"] or number(e, "t")
        found["processes"].add(process.name)
    for process, e in log.of("miss"):
        failure = guards.parse(text(e, "guard"))
        found = root(failure, text(e, "place"))
        found["misses"] = max(found["misses"], int(number(e, "times")))
        found["failures"].append(failure)
        found["sources"].add(failure.source)
        found["processes"].add(process.name)
    for b in breaks:  # so many versions that no more are made: the guard is the cause
        if b["id"] == "FJ0020" and b["detail"]:
            failure = guards.parse(b["detail"])
            function = b["places"][0]["function"]
            place = next((p for (_, _), r in roots.items() if (p := r["place"]).startswith(f"{function}@")), "")
            found = root(failure, place)
            found["failures"] = found["failures"] or [failure]
            found["sources"].add(failure.source)
            found["limit"] = True
            found["seconds"] += b["seconds"]
    rows = []
    for (source, where), r in roots.items():
        kind, fix = guards.kind_of(r["failures"])
        file, _, line = where.rpartition(":")
        function, of_file, of_line = _split(r["place"])
        line = int(line) if line.isdigit() else 0
        if "@" in file:  # the guard says no place: that of the function
            file, line = of_file, of_line
        rows.append({
            "guard": source,
            "kind": kind,
            "file": file,
            "line": line,
            "function": function,
            "of": f"{of_file}:{of_line}",
            "changes": [list(c) for c in dict.fromkeys((f.old, f.new) for f in r["failures"])][:16],
            "times": r["times"],
            "misses": r["misses"],
            "copies": len(r["sources"]),
            "limit": r["limit"],
            "seconds": r["seconds"],
            "fix": fix,
            "processes": sorted(r["processes"]),
            "first": r["first"],
            "source": _source_line(file, line),
        })  # fmt: skip
    rows.sort(key=lambda r: (-r["seconds"], -r["times"], r["first"]))
    return rows


# --- what ran ----------------------------------------------------------------------------------------------------------
def _segments(log):
    rows = {}
    for _, e in log.of("runs"):
        key = (text(e, "place"), int(number(e, "line")), text(e, "runner"))
        row = rows.setdefault(key, {"runs": 0, "seconds": 0.0, "around": 0.0, "misses": 0})
        for field in row:
            row[field] += number(e, field)
    out = []
    for (place, line, runner), row in rows.items():
        function, file, first = _split(place)
        out.append({"function": function, "file": file, "line": line or first, "runner": runner, **row})
    out.sort(key=lambda r: (-r["seconds"], -r["runs"]))
    return out


def _steps(log):
    """Steps of graphs with their rates, and the best rate that any step on the same device reached (of those long enough to tell)."""
    rows = {}
    for _, e in log.of("step"):
        key = (text(e, "graph"), text(e, "name"), text(e, "by"), text(e, "device") or "cpu")
        row = rows.setdefault(key, {"runs": 0.0, "seconds": 0.0, "bytes": 0.0, "flops": 0.0})
        for field in row:
            row[field] += number(e, field)
    out = []
    for (graph, name, by, device), row in rows.items():
        what, _, where = name.rpartition("@")
        file, _, line = where.rpartition(":")
        out.append({"graph": graph, "name": what or name, "by": by, "device": device, "file": file, "line": int(line) if line.isdigit() else 0, **row,
                    "bytes_per_second": _percent(row["bytes"], row["seconds"]),
                    "flops_per_second": _percent(row["flops"], row["seconds"])})  # fmt: skip

    def is_long(s):
        return s["seconds"] > LONG * s["runs"] > 0

    def best(device, rate):
        return max((s[rate] for s in out if s["device"] == device and is_long(s)), default=0.0)

    bests = {d: (best(d, "bytes_per_second"), best(d, "flops_per_second")) for d in {s["device"] for s in out}}
    whole = sum(s["seconds"] for s in out)
    for s in out:
        bound = max(map(_percent, (s["bytes"], s["flops"]), bests[s["device"]]))
        s["bound_seconds"] = min(bound, s["seconds"]) if is_long(s) else s["seconds"]
        s["share"] = _percent(s["seconds"], whole)
    out.sort(key=lambda s: -s["seconds"])
    return out


def _fallbacks(log, segments):
    seconds = {(s["function"], s["file"], s["line"]): s for s in segments if s["runner"] == "trace"}
    rows = {}
    for process, e in log.of("fallback"):
        function, file, first = _split(text(e, "place"))
        key = (function, file, int(number(e, "line")) or first, text(e, "reason").removesuffix(": runs through the framework"))
        row = rows.setdefault(key, {"copies": 0, "processes": set(), "first": number(e, "t")})
        row["copies"] += 1
        row["processes"].add(process.name)
    out = []
    for (function, file, line, reason), row in rows.items():
        ran = seconds.get((function, file, line), {"runs": 0, "seconds": 0.0})
        out.append({"function": function, "file": file, "line": line, "reason": reason, "copies": row["copies"], "runs": ran["runs"],
                    "seconds": ran["seconds"], "first": row["first"], "processes": sorted(row["processes"]),
                    "source": _source_line(file, line)})  # fmt: skip
    out.sort(key=lambda r: (-r["seconds"], -r["runs"], r["first"]))
    return out


def _outcomes(log):
    rows = {}
    for process, e in log.of("outcome"):
        function, file, first = _split(text(e, "place"))
        key = (function, file, int(number(e, "line")) or first, text(e, "end"), text(e, "why"))
        row = rows.setdefault(key, {"times": 0, "processes": set(), "first": number(e, "t")})
        row["times"] += 1
        row["processes"].add(process.name)
    out = [{"function": function, "file": file, "line": line, "end": end, "why": why, "fix": _EARLY_ENDS.get(end, ""),
            "times": row["times"], "first": row["first"], "processes": sorted(row["processes"])}
           for (function, file, line, end, why), row in rows.items()]  # fmt: skip
    out.sort(key=lambda r: (-r["times"], r["first"]))
    return out


def _left(log):
    rows = {}
    for process, e in log.of("left"):
        function, file, line = _split(text(e, "place"))
        row = rows.setdefault((function, file, line, text(e, "why")), {"times": 0, "processes": set()})
        row.update(times=row["times"] + 1, compiled=number(e, "compiled"), python=number(e, "python"))
        row["processes"].add(process.name)
    return [{"function": function, "file": file, "line": line, "why": why, **row, "processes": sorted(row["processes"])}
            for (function, file, line, why), row in rows.items()]  # fmt: skip


def _compiles(log):
    """One row for each capture that made something, with the compilation in it; slowest first."""
    rows = []
    for process, e in log.of("capture"):
        function, file, first = _split(text(e, "place"))
        rows.append({"process": process.name, "tid": e.get("tid"), "begin": begin(e), "seconds": number(e, "seconds"),
                     "function": function, "file": file, "line": int(number(e, "line")) or first, "ok": bool(e.get("ok")),
                     "runner": text(e, "runner"), "calls": int(number(e, "calls")), "breaks": e.get("breaks") or []})  # fmt: skip
    return rows


def _passes(log):
    rows = defaultdict(lambda: {"times": 0, "seconds": 0.0})
    for _, e in log.of("pass"):
        row = rows[text(e, "name")]
        row["times"] += 1
        row["seconds"] += number(e, "us") / 1e6
    return [{"name": name, **row} for name, row in sorted(rows.items(), key=lambda item: -item[1]["seconds"])]


def _time(log, segments, recompiles, breaks, steps):
    ran = Counter()
    for s in segments:
        ran["framework" if s["runner"] == "trace" else "compiled"] += s["seconds"]
    python = sum(number(e, "seconds") for _, e in log.of("python"))
    capture = sum(number(e, "seconds") for _, e in log.of("capture"))
    span = sum(max(0.0, p.end - p.start) for p in log.processes)
    known = ran["compiled"] + ran["framework"] + python + capture
    return {
        "span": span,
        "compiled": ran["compiled"],
        "around": sum(s["around"] for s in segments),
        "devices": sum(s["seconds"] for s in steps if s["device"] != "cpu"),
        "framework": ran["framework"],
        "python_after_breaks": sum(p["python_seconds"] for b in breaks for p in b["places"]),
        "python": python,
        "capture": capture,
        "compile": sum(number(e, "seconds") for _, e in log.of("compile")),
        "recompile": sum(seconds for _, _, seconds in _recompile_events(log)),
        "elsewhere": max(0.0, span - known),
    }


def _cascades(recompiles):
    """What changes an input changes what is computed from it: guards of one kind that saw the same values, earliest first."""
    groups = {}
    for i, r in enumerate(recompiles):
        cascades = r["kind"] in ("size", "layout", "dtype", "gradient", "length")
        groups.setdefault((r["kind"], str(r["changes"])) if cascades else i, []).append(r)
    return [sorted(rows, key=lambda r: r["first"]) for rows in groups.values()]


# --- what to fix first -------------------------------------------------------------------------------------------------
def _causes(breaks, recompiles, fallbacks, outcomes, steps, time, collectives):
    """Everything that took time it need not take, in one form, costliest first; before all, what makes ranks wait for each other."""
    causes = []

    def add(kind, title, row, fix, seconds, times, copies=1, **more):
        place = row["places"][0] if "places" in row else row
        causes.append({"kind": kind, "title": title, "file": place["file"], "line": place["line"], "function": place.get("function", ""),
                       "source": place.get("source") or _source_line(place["file"], place["line"]), "seconds": seconds, "times": times,
                       "copies": copies, "fix": fix, "first": row.get("first", 0.0), "processes": row.get("processes", []), "from": row.get("from"), **more})  # fmt: skip

    for b in breaks:
        if b["id"] == "FJ0020" and any(r["limit"] for r in recompiles):
            continue  # the guard stands for it
        title = f"break {b['id']}: {b['message']}" + (f": {b['detail']}" if b["detail"] else "")
        add("break", title, b, b["fix"] or f"python -m framejit explain {b['id']}", b["seconds"], b["times"], b["copies"], id=b["id"])
    for rows in _cascades(recompiles):
        r = rows[0]
        changes = ", ".join(f"{old} -> {new}" if old else new for old, new in r["changes"][:4])
        what = "no more versions are made" if any(x["limit"] for x in rows) else "recompiled"
        behind = f", and {len(rows) - 1} more behind it" if rows[1:] else ""
        add("recompile", f"{what}: {r['guard']} changed: {changes}{behind}", r, r["fix"], sum(x["seconds"] for x in rows),
            sum(max(x["times"], x["misses"]) for x in rows), sum(x["copies"] for x in rows))  # fmt: skip
    for f in fallbacks:
        add("fallback", f"runs through the framework: {f['reason']}", f, "write what the reason names with operations that are compiled, or leave it: "
            "the results are the same", f["seconds"], f["runs"], f["copies"])  # fmt: skip
    for o in outcomes:
        add("restart", f"runs ended early ({o['end']}): {o['why']}", o, o["fix"], 0.0, o["times"])
    for s in steps:
        lost = s["seconds"] - s["bound_seconds"]
        if s["by"] == "interpret" or (s["share"] > 0.25 and lost > 0.3 * s["seconds"]):
            rate = f"{s['flops_per_second'] / 1e9:.1f} GFLOP/s" if s["flops"] else f"{s['bytes_per_second'] / 1e9:.2f} GB/s"
            add("step", f"slow {s['by']} {s['name']}: {s['share']:.0%} of the time in graphs, {rate}, "
                f"others reach {1 / max(s['bound_seconds'] / s['seconds'], 1e-3):.1f} times that", s, _STEP_FIXES.get(s["by"], _LIBRARY_FIX),
                lost, int(s["runs"]))  # fmt: skip
    made = time["capture"] - time["recompile"]
    if made > 5 and made > 0.3 * time["span"]:
        causes.append({"kind": "compile", "title": "compiling took much of the run", "file": "", "line": 0, "function": "", "source": "",
                       "seconds": made, "times": 1, "copies": 1, "fix": 'mode="background" lets the framework run meanwhile',
                       "first": 0.0, "processes": [], "from": None})  # fmt: skip
    for title, place, fix in ranks.causes(collectives):
        add("collective", title, place, fix, 0.0, 0)
    causes.sort(key=lambda c: (c["kind"] != "collective", -c["seconds"], -c["times"], c["first"]))
    return causes


def _timeline(log):
    """Spans and marks for drawing, in the order of time: [process, thread, kind, begin, seconds, label]. Captures and
    compilations are spans."""
    labels = {
        "capture": lambda e: text(e, "place"),
        "compile": lambda e: text(e, "place"),
        "break": lambda e: f"{text(e, 'id')} {text(e, 'function')}@{text(e, 'file')}:{int(number(e, 'line'))}",
        "recompile": lambda e: text(e, "guard"),
        "fallback": lambda e: f"{text(e, 'place')}: {text(e, 'reason')}",
        "outcome": lambda e: f"{text(e, 'place')}: {text(e, 'end')}",
        "miss": lambda e: text(e, "guard"),
    }
    start = min((p.start for p in log.processes), default=0.0)
    rows = []
    for process in log.processes:
        for e in process.events:
            if label := labels.get(e["kind"]):
                span = number(e, "seconds") if e["kind"] in ("capture", "compile") else 0.0
                rows.append([process.name, e.get("tid"), e["kind"], begin(e) - start, span, label(e)])
    rows.sort(key=lambda r: r[3])
    return rows


def _texts(log):
    """What FRAMEJIT_EVENTS_LOG asked for, by capture: guards, graphs and kernels as text, with the place they are of."""
    out = []
    for process in log.processes:
        waiting = defaultdict(lambda: defaultdict(list))
        last = {}  # by thread: its guards are told behind a capture
        for e in process.events:
            tid = e.get("tid")
            if e["kind"] == "log":
                channel, lines = text(e, "channel"), text(e, "text")
                if channel != "guards":
                    waiting[tid][channel].append(lines)
                elif tid in last and not lines.startswith("capture of "):
                    last[tid]["guards"].append(lines)
            elif e["kind"] == "capture":
                function, file, first = _split(text(e, "place"))
                last[tid] = waiting.pop(tid, defaultdict(list))
                out.append({"process": process.name, "function": function, "file": file, "line": int(number(e, "line")) or first, "texts": last[tid]})
    return [{**row, "texts": {channel: "\n".join(lines) for channel, lines in row["texts"].items()}} for row in out if row["texts"]]


def analyse(log):
    """The report as plain values."""
    table = _table()
    breaks = _breaks(log, table)
    recompiles = _recompiles(log, breaks)
    segments, steps = _segments(log), _steps(log)
    fallbacks, outcomes = _fallbacks(log, segments), _outcomes(log)
    time = _time(log, segments, recompiles, breaks, steps)
    collectives = ranks.collectives(log)
    peaks = [number(e, "peak_bytes") for _, e in log.of("memory")]
    counted = ("kernels", "kernels_compiled", "kernels_reused", "library_calls", "externs")
    return {
        "schema": SCHEMA,
        "log": {"files": log.files, "events": len(log), "torn": log.torn, "foreign": log.foreign, "missing_parts": log.missing,
                "kinds": dict(sorted(log.kinds().items()))},
        "processes": [{"name": p.name, "pid": p.pid, "rank": p.rank, "command": p.command, "events": len(p.events),
                       "seconds": max(0.0, p.end - p.start)} for p in log.processes],
        "time": time,
        "peak_bytes": int(max(peaks, default=0)),
        "kernels": {f: int(sum(number(e, f) for _, e in log.of("compile"))) for f in counted},
        "fix_first": _causes(breaks, recompiles, fallbacks, outcomes, steps, time, collectives),
        "breaks": breaks,
        "recompiles": recompiles,
        "fallbacks": fallbacks,
        "outcomes": outcomes,
        "left": _left(log),
        "segments": segments,
        "steps": steps,
        "captures": _compiles(log),
        "passes": _passes(log),
        "symbols": details.symbols(log),
        "choices": details.choices(log),
        "collectives": collectives,
        "timeline": _timeline(log),
        "texts": _texts(log),
    }  # fmt: skip
