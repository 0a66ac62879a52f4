"""Reads the event stream (docs/events.md): files of several processes, in parts, with lines that are torn or foreign."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_PART = re.compile(r"(?P<process>.*?)(?:\.(?P<part>\d+))?\.jsonl")


@dataclass
class Process:
    """One process of the program. `name` tells it apart: `rank 1` where there are ranks, else `pid 4711`."""

    pid: int
    rank: "int | None" = None
    command: "list[str]" = field(default_factory=list)
    events: "list[dict]" = field(default_factory=list)

    @property
    def name(self):
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank}"

    @property
    def start(self):
        return min((begin(e) for e in self.events), default=0.0)

    @property
    def end(self):
        return max((number(e, "t") for e in self.events), default=0.0)


@dataclass
class Log:
    """What a folder holds."""

    processes: "list[Process]" = field(default_factory=list)
    files: int = 0
    torn: int = 0  # lines that are no JSON: a killed process, a full disk
    foreign: int = 0  # lines that are JSON and no event
    missing: int = 0  # parts that were dropped, because a process wrote more than FRAMEJIT_EVENTS_LIMIT

    def of(self, kind):
        """(process, event) of one kind, in the order of time."""
        found = [(p, e) for p in self.processes for e in p.events if e["kind"] == kind]
        return sorted(found, key=lambda item: number(item[1], "t"))

    def kinds(self):
        return Counter(e["kind"] for p in self.processes for e in p.events)

    def __len__(self):
        return sum(len(p.events) for p in self.processes)


def number(event, field):
    """A field as a number; 0 where it is missing, null or something else."""
    value = event.get(field)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def text(event, field):
    value = event.get(field)
    return value if isinstance(value, str) else ""


def begin(event):
    return number(event, "t") - number(event, "seconds") if event["kind"] in ("capture", "compile") else number(event, "t")


def _parse(line):
    """The event in a line; None: it is torn; False: it is foreign."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else False


def read(folder):
    """The Log of every `*.jsonl` file in a folder, or of one file. Raises OSError where there is neither."""
    path = Path(folder)
    files = list(path.glob("*.jsonl")) if path.is_dir() else [path]
    parts = {}
    for file in files:
        match = _PART.fullmatch(file.name)
        name, part = (match["process"], int(match["part"] or 0)) if match else (file.name, 0)
        parts.setdefault(name, {})[part] = file
    log = Log(files=len(files))
    for _, of_process in sorted(parts.items()):
        log.missing += max(of_process) + 1 - len(of_process)
        current = None
        for _, file in sorted(of_process.items()):
            with open(file, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if line.strip():
                        current = _add(log, current, _parse(line))
    log.processes.sort(key=lambda p: (p.rank is None, p.rank or 0, p.start))
    return log


def _add(log, current, event):
    """Puts an event where it belongs; the process that comes next."""
    if event is None:
        log.torn += 1
        return current
    if event is False:
        log.foreign += 1
        return current
    fresh = event["kind"] == "process" and not number(event, "part")
    if current is None or fresh:  # a process id may be used again by a later run
        rank = event.get("rank")
        current = Process(int(number(event, "pid")), rank if isinstance(rank, int) else None)
        log.processes.append(current)
    if fresh:
        command = event.get("command")
        current.command = [str(word) for word in command] if isinstance(command, list) else []
    current.events.append(event)
    return current
