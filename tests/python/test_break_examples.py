"""The examples of docs/breaks.md: each breaks for its reason, and its fixed form does not; both are what Python computes."""

import importlib.util
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "breaks"
EXAMPLES = sorted(FOLDER.glob("fj*.py"))
pytestmark = pytest.mark.skipif(not EXAMPLES, reason="a packed folder has no examples")


def load(path):
    spec = importlib.util.spec_from_file_location(f"breaks_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(f, arguments):
    torch.manual_seed(1)
    random.seed(1)
    try:
        return f(*arguments)
    except Exception as error:
        return type(error), str(error)


def broken(fj, f, calls, settings, before):
    """The ids of the breaks that the calls meet, after comparing each with Python."""
    compiled, found = fj.compile(f, **settings), set()
    for arguments in calls:
        with torch.no_grad():
            expected = outcome(f, arguments)
            before()
            got = outcome(compiled, arguments)
        same(expected, got)
        found |= {reason.split("]")[0].removeprefix("break[") for reason in fj._framejit.explain_data(compiled)["break_reasons"]}
    return found


def same(expected, got):
    assert type(expected) is type(got)
    if isinstance(expected, torch.Tensor):
        expected, got = (t.to_dense() if t.layout != torch.strided else t.as_subclass(torch.Tensor) for t in (expected, got))
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, tuple):
        assert len(expected) == len(got)
        for a, b in zip(expected, got):
            same(a, b)
    else:
        assert expected == got


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(fresh, path):
    identifier, example = path.stem.upper(), load(path)
    settings, before = getattr(example, "settings", {}), getattr(example, "before", lambda: None)
    assert identifier in broken(fresh, example.breaks, example.calls, settings, before)
    fresh.reset()
    assert identifier not in broken(fresh, example.fixed, getattr(example, "fixed_calls", example.calls), settings, before)


def test_every_row_has_an_example(fresh):
    rows = {row[0] for row in fresh._framejit.breaks()} - {"FJ0099"}  # a bug has no example
    assert {path.stem.upper() for path in EXAMPLES} == rows
