"""What the events say beside causes: where symbolic sizes come from, and what was measured and chosen."""

from .events import number, text


def _list(event, field):
    value = event.get(field)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _of(row, symbol):
    return symbol in (row.get("symbols") or ())


def symbols(log):
    """A row for each symbol of a capture, with what was made of it and what is asked of it; of captures of one place with the same
    sources the last one."""
    captures = {}
    for process, e in log.of("symbols"):
        key = (process.name, text(e, "place"), tuple(text(s, "source") for s in _list(e, "symbols")))
        captures.pop(key, None)
        captures[key] = e
    rows = []
    for (process, place, _), e in captures.items():
        function, _, where = place.rpartition("@")
        file, _, line = where.rpartition(":")
        for s in _list(e, "symbols"):
            name = text(s, "symbol")
            guards = []
            for g in _list(e, "guards"):
                asked_in, _, asked_at = text(g, "where").rpartition(":")
                if _of(g, name):
                    guards.append({"guard": text(g, "guard"), "file": asked_in, "line": int(asked_at) if asked_at.isdigit() else 0})
            rows.append({
                "process": process, "function": function, "file": file, "line": int(line) if line.isdigit() else 0,
                "symbol": name, "source": text(s, "source"), "value": s.get("value"), "min": s.get("min"), "max": s.get("max"),
                "kind": "data" if s.get("data") else "number" if s.get("number") else "size",
                "expressions": [{"expression": text(x, "expression"), "value": x.get("value"), "by": text(x, "by"), "file": text(x, "file"),
                                 "line": int(number(x, "line"))} for x in _list(e, "expressions") if _of(x, name)],
                "guards": guards,
            })  # fmt: skip
    return rows


def choices(log):
    """Verdicts of measurements; of one question the last one, with how often it was asked."""
    rows = {}
    for _, e in log.of("choice"):
        ways = e.get("ways")
        key = text(e, "what")
        times = rows.pop(key, {"times": 0})["times"] + 1
        rows[key] = {"what": key, "chosen": text(e, "chosen"), "why": text(e, "why"), "times": times,
                     "ways": [[str(w[0]), float(w[1])] for w in ways if isinstance(w, list) and len(w) == 2 and isinstance(w[1], (int, float))]
                     if isinstance(ways, list) else []}  # fmt: skip
    return list(rows.values())
