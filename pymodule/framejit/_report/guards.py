"""The text of a guard that failed, taken apart, and what can be done about it."""

import re
from dataclasses import dataclass

_PLACE = re.compile(r"(?P<rest>.*) \((?P<place>[^()\n]*:\d+)\)", re.S)
_VALUES = re.compile(r"(?P<source>.*?): expected (?P<old>.*), got (?P<new>.*)", re.S)
_NUMBER = re.compile(r"(?<!\.shape)(?<!\.strides)\[(['\"]?)\d+\1\]")


@dataclass(frozen=True)
class Failure:
    """`SOURCE: expected OLD, got NEW (PLACE); to avoid it: HINT`; what is missing is empty."""

    source: str
    old: str = ""
    new: str = ""
    place: str = ""
    hint: str = ""

    @property
    def root(self):
        """The source without numbers of elements: `G['layers'][*].scaled` for the like of 24 layers."""
        return _NUMBER.sub("[*]", self.source)


def parse(guard):
    rest, _, hint = guard.partition("; to avoid it: ")
    place = ""
    if match := _PLACE.fullmatch(rest):
        rest, place = match["rest"], match["place"]
    if match := _VALUES.fullmatch(rest):
        return Failure(match["source"], match["old"], match["new"], place, hint)
    source, colon, what = rest.partition(": ")
    return Failure(source, "", what if colon else "", place, hint)


def _is(pattern):
    return lambda failures: all(re.fullmatch(pattern, f.old) and re.fullmatch(pattern, f.new) for f in failures)


def _of(pattern):
    return lambda failures: all(re.search(pattern, f.source) for f in failures)


# What changed, by the first row whose question all failures of one guard answer with yes, and what helps then.
_KINDS = [
    ("size", _of(r"\.size\(\d+\)$|\.shape\[\d+\]$"),
     "mark the dimension with framejit.mark_dynamic, or compile with dynamic=True; without either, pad to a few sizes"),
    ("layout", _of(r"\.stride\(\d+\)$|\.strides\[\d+\]$"), "pass tensors of one memory layout, for example .contiguous()"),
    ("dtype", _of(r"\.dtype$"), "convert before the call, so that one type arrives"),
    ("gradient", _of(r"\.requires_grad$|: dispatch keys$|torch state"), "call it in one gradient mode: training and evaluation are two versions"),
    ("flag", _is(r"True|False"), "each value is a version of its own; where it changes often, decide outside of the function"),
    ("number", _is(r"-?[\d.]+(e[+-]?\d+)?"), "pass a number that changes as a tensor, or compile with dynamic=True"),
    ("length", _of(r": length$"), "a container of another length unrolls to another graph: keep its length, or stack it into one tensor"),
    ("object", lambda failures: all("another" in f.new or "no longer exists" in f.old for f in failures),
     "make the object once, outside of the call: a new one in every call is a new version"),
]  # fmt: skip


def kind_of(failures):
    """(what changed, what helps) for the failures of one guard."""
    hint = next((f.hint for f in failures if f.hint), "")
    for kind, asks, help_text in _KINDS:
        if asks(failures):
            return kind, hint or help_text
    return "value", hint or "keep what the guard reads as it is between calls, or pass it as an argument"
