"""Collectives of several ranks beside each other: which were made, and the first in which ranks differ."""

from collections import Counter

from .events import number, text

# Whose sizes are the same on every rank. Of the others a rank may give or get less than another (gather, all_to_all, lists of different sizes).
_EQUAL = {"all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base", "all_gather_into_tensor", "reduce_scatter_tensor"}


def _signature(e):
    op = text(e, "op")
    return (op, str(e.get("inputs")), str(e.get("outputs"))) if op in _EQUAL else (op,)


def _said(e):
    """"all_reduce f32[8]" """
    inputs = e.get("inputs")
    return " ".join([text(e, "op"), ", ".join(map(str, inputs)) if isinstance(inputs, list) else ""]).strip()


def _row(process, e):
    return {"process": process, "said": _said(e) if e else "nothing", "file": text(e, "file") if e else "", "line": int(number(e, "line")) if e else 0,
            "function": text(e, "function") if e else ""}  # fmt: skip


def _first_difference(by_process):
    """(sequence number, rows), or None. What a rank has not kept (its recorder holds the latest ones) says nothing."""
    known = {name: calls for name, calls in by_process.items() if calls}
    if len(known) < 2:
        return None
    first, last = max(min(calls) for calls in known.values()), max(max(calls) for calls in known.values())
    for sequence in range(first, last + 1):
        there = {name: calls.get(sequence) for name, calls in known.items()}
        behind = [name for name, calls in known.items() if sequence > max(calls)]
        if len({_signature(e) for e in there.values() if e}) > 1 or behind:
            return sequence, [_row(name, e) for name, e in there.items() if e or name in behind]
    return None


def collectives(log):
    """By group: what was made, how often, and the first that differs between the ranks that are in it."""
    groups = {}
    for process, e in log.of("collective"):
        group = groups.setdefault(text(e, "group"), {"description": text(e, "description"), "calls": Counter(), "by": {}, "alone": 0})
        group["alone"] += bool(e.get("point_to_point"))
        if not e.get("point_to_point"):
            group["by"].setdefault(process.name, {})[int(number(e, "sequence"))] = e
        group["calls"][_said(e), text(e, "file"), int(number(e, "line")), text(e, "function")] += 1
    rows = []
    for name, group in groups.items():
        difference = _first_difference(group["by"])
        rows.append({
            "group": name,
            "description": group["description"],
            "processes": sorted(group["by"]),
            "counts": [len(group["by"][p]) for p in sorted(group["by"])],
            "point_to_point": group["alone"],
            "calls": [{"said": said, "file": file, "line": line, "function": function, "times": times}
                      for (said, file, line, function), times in group["calls"].most_common()],
            "differs": difference and {"sequence": difference[0], "ranks": difference[1]},
        })  # fmt: skip
    return rows


def causes(rows):
    """(title, row with the place, fix) of each group whose ranks differ."""
    for row in rows:
        if not row["differs"]:
            continue
        ranks = row["differs"]["ranks"]
        said = {}
        for r in ranks:
            said.setdefault(r["said"], []).append(r["process"])
        told = "; ".join(f"{', '.join(names)}: {what}" for what, names in said.items())
        title = f"ranks differ at collective {row['differs']['sequence']} of group {row['group']} ({row['description']}): {told}"
        missing = "nothing" in said
        fix = ("a rank did not come to it, and the others wait: look for a branch or a loop that depends on the rank or on its data" if missing else
               "every rank must make the same collectives in the same order, with the same sizes")  # fmt: skip
        yield title, next((r for r in ranks if r["file"]), ranks[0]), fix
