"""`python -m framejit report DIR`: what the events of a run (FRAMEJIT_EVENTS, docs/events.md) say.

events.py reads, guards.py takes the text of failed guards apart, model.py finds causes; terminal.py, page.py,
difference.py and perfetto.py show what model.py found.
"""

import sys

from .events import read
from .model import analyse

__all__ = ["analyse", "read", "run"]


def _load(folder):
    """The report of a folder, or None after saying why there is none."""
    try:
        log = read(folder)
    except OSError as error:
        print(f"cannot read {folder}: {error.strerror}", file=sys.stderr)
        return None
    if not len(log):
        print(f"no events in {folder}: run the program with FRAMEJIT_EVENTS={folder}", file=sys.stderr)
        return None
    return analyse(log)


def _write(path, text):
    if path == "-":
        print(text)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"wrote {path}", file=sys.stderr)


def run(folder, json=None, html=None, perfetto=None, diff=None):
    """The command; its exit status. Without a form that was asked for: the summary on the terminal."""
    import json as encoder

    report = _load(folder)
    other = _load(diff) if diff else None
    if report is None or (diff and other is None):
        return 2
    difference = None
    if diff:
        from . import difference as module

        difference = module.compare(report, other)
    try:
        if json:
            _write(json, encoder.dumps(difference or report, indent=1))
        if perfetto:
            from .perfetto import convert

            _write(perfetto, encoder.dumps(convert(report)))
        if html:
            from .page import page

            _write(html, page(report, folder, difference))
    except OSError as error:
        print(f"cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    if "-" in (json, html, perfetto):
        return 0
    if difference:
        print(module.plain(difference, folder, diff))
    else:
        from .terminal import show

        show(report, folder, sys.stdout)
    return 0
