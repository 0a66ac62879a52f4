"""The timeline as Chrome's trace events, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open."""


def convert(report):
    """{"traceEvents": [...]}: captures and compilations are spans, breaks and recompiles are marks."""
    processes = {p["name"]: p["pid"] for p in report["processes"]}
    events = [{"ph": "M", "name": "process_name", "pid": p["pid"], "tid": 0, "args": {"name": f"{p['name']}: {' '.join(p['command'])}"}}
              for p in report["processes"]]  # fmt: skip
    for process, thread, kind, begin, seconds, label in report["timeline"]:
        event = {"name": f"{kind}: {label}", "cat": kind, "pid": processes[process], "tid": thread or 0, "ts": round(begin * 1e6, 3)}
        events.append(event | ({"ph": "X", "dur": round(seconds * 1e6, 3)} if kind in ("capture", "compile") else {"ph": "i", "s": "t"}))
    return {"traceEvents": events, "displayTimeUnit": "ms"}
