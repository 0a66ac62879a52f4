"""Two reports side by side: what is new, what is gone, what takes longer."""

import re

from .terminal import _plain_table, _short, _where, seconds


def _key(cause):
    """What a cause is called in both runs: lines may have moved, numbers in it may differ."""
    return cause["kind"], cause.get("id", ""), cause["file"], cause["function"], re.sub(r"[\d.]+", "#", cause["title"].split(" changed: ")[0])


def compare(before, after):
    """{"time": {name: [before, after]}, "causes": [{..., "change": new, gone, worse, better or same}]}."""
    old = {_key(c): c for c in before["fix_first"]}
    new = {_key(c): c for c in after["fix_first"]}
    causes = []
    for key in [*new, *(k for k in old if k not in new)]:
        a, b = old.get(key), new.get(key)
        was, now = (a or {}).get("seconds", 0.0), (b or {}).get("seconds", 0.0)
        change = "new" if a is None else "gone" if b is None else "same"
        if change == "same" and abs(now - was) > 0.1 * max(now, was):
            change = "worse" if now > was else "better"
        shown = b or a
        causes.append({"change": change, "before": was, "after": now, "title": shown["title"], "kind": shown["kind"],
                       "file": shown["file"], "line": shown["line"], "function": shown["function"]})  # fmt: skip
    causes.sort(key=lambda c: -abs(c["after"] - c["before"]))
    return {"schema": after["schema"], "time": {name: [before["time"][name], after["time"][name]] for name in after["time"]}, "causes": causes}


def plain(difference, before, after):
    out = [f"{before} (before) against {after} (after)", "", "Time"]
    out += _plain_table(["", "before", "after", "change"],
                        [(name.replace("_", " "), seconds(a), seconds(b), f"{b / a - 1:+.0%}" if a else "") for name, (a, b) in difference["time"].items()])  # fmt: skip
    out += ["", "Causes"]
    rows = [(c["change"], seconds(c["before"]), seconds(c["after"]), _where(c), _short(c["title"], 120)) for c in difference["causes"]]
    out += _plain_table(["", "before", "after", "where", "what"], rows) if rows else ["  none in either"]
    return "\n".join(out)
