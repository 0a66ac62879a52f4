"""What the report tells beside causes: symbolic sizes and their origin, measured choices, collectives of several ranks."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import documented_events
from test_report import analysed, report, run, write

framejit = pytest.importorskip("framejit")

SYMBOLS = """
import numpy as np
import framejit

@framejit.compile(dynamic=True)
def f(x, n):
    y = np.tanh(x) * n
    if x.shape[0] > 3:
        y = y.reshape(-1, x.shape[1] * 2)
    return y.sum(axis=0) + x.shape[0] * 2

f(np.ones((8, 6)), 5), f(np.ones((10, 6)), 7)
"""


def test_where_symbols_come_from(tmp_path):
    pytest.importorskip("numpy")
    (tmp_path / "program.py").write_text(SYMBOLS)
    done = run("program.py", cwd=tmp_path, FRAMEJIT_EVENTS="t")
    assert done.returncode == 0, done.stderr
    told = analysed(tmp_path / "t")["symbols"]
    assert [(s["symbol"], s["source"], s["kind"], s["value"]) for s in told] == [  # of the only capture
        ("s0", "L['x'].size(0)", "size", 8), ("s1", "L['x'].size(1)", "size", 6), ("s2", "L['n']", "number", 5)]  # fmt: skip
    rows, columns, _ = told
    assert [(e["expression"], e["value"], e["by"], e["line"]) for e in rows["expressions"]] == [("(s0 // 2)", 4, "reshape", 9), ("s0*2", 16, "constant", 10)]
    assert [(g["guard"], g["line"]) for g in rows["guards"]][0] == ("3 < s0", 8)
    assert {e["expression"] for e in columns["expressions"]} == {"s1*2"} and all(g["line"] == 9 for g in columns["guards"])
    assert all(e["file"].endswith("program.py") for s in told for e in s["expressions"] + s["guards"])
    text = report(tmp_path / "t").stdout
    assert "Symbolic sizes" in text and "(s0 // 2) (reshape, line 9)" in text


FLOATS = """
import torch
import framejit

@framejit.compile
def f(x, rate):
    return x * rate

for rate in (0.5, 0.25, 0.125):
    f(torch.ones(4), rate)
"""


def test_the_value_of_a_float_is_told_as_a_float(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(FLOATS)
    done = run("program.py", cwd=tmp_path, FRAMEJIT_EVENTS="t", FRAMEJIT_LEAVE="0")
    assert done.returncode == 0, done.stderr
    (rate,) = [s for s in analysed(tmp_path / "t")["symbols"] if s["source"] == "L['rate']"]
    assert (rate["value"], rate["kind"], rate["min"], rate["max"]) == (0.25, "number", None, None)


NAMELESS = """
import numpy as np
import framejit

@framejit.disable
def outside():
    return 1.0

@framejit.compile
def f(x):
    return np.tanh(x) + outside()

for n in (4, 5):
    f(np.ones(n))
"""


def test_what_the_program_has_no_name_for_is_not_in_a_fix(tmp_path):
    pytest.importorskip("numpy")
    (tmp_path / "program.py").write_text(NAMELESS)
    done = run("program.py", cwd=tmp_path, FRAMEJIT_EVENTS="t", FRAMEJIT_LEAVE="0")
    assert done.returncode == 0, done.stderr
    found = [r for r in analysed(tmp_path / "t")["recompiles"] if r["guard"].startswith("slot[")]
    assert found and {r["fix"] for r in found} == {"dynamic=True"}


MODULES = """
import functools
import torch
import framejit

def noted(forward):
    @functools.wraps(forward)
    def wrapper(*args):
        return forward(*args)
    return wrapper

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    @noted
    def forward(self, x):
        x = torch.relu(self.inner(x))
        print("between", end=" ")
        return torch.tanh(x) + 1

class Whole(Net):
    def forward(self, x):
        return torch.relu(self.inner(x)) + 1

broken, whole = framejit.compile(Net()), framejit.compile(Whole())
with torch.no_grad():
    for n in (4, 8, 8):
        broken(torch.ones(n, 4)), whole(torch.ones(n, 4))
with torch.profiler.profile() as profile:
    with torch.no_grad():
        whole(torch.ones(8, 4))
print([e.name for e in profile.events() if e.name.startswith("framejit: ")])
"""


def test_calls_of_modules_are_named_after_their_class(tmp_path):
    """Not after torch's own function through which every call of a module goes."""
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(MODULES)
    done = run("program.py", cwd=tmp_path, FRAMEJIT_EVENTS="t", FRAMEJIT_LEAVE="0", FRAMEJIT_LOG="recompiles,graph")
    assert done.returncode == 0, done.stderr
    lines = MODULES.splitlines()
    plain = lines.index("        return torch.relu(self.inner(x)) + 1")  # the line of its def
    decorated = lines.index("    @noted") + 1
    told = analysed(tmp_path / "t")
    for kind in ("captures", "segments", "recompiles"):
        assert told[kind] and not [row for row in told[kind] if "_call_impl" in row["function"]], told[kind]
    assert not [row for row in told["captures"] + told["segments"] if "modules/module.py" in row["file"]]
    assert {(s["function"], s["line"]) for s in told["segments"]} >= {("Whole.forward", plain)}
    assert {s["function"] for s in told["segments"]} >= {"Net.forward", "Whole.forward"}
    assert [c for c in told["captures"] if (c["function"], c["line"]) == ("Net.forward", decorated)]
    assert {s["graph"] for s in told["steps"]} <= {"Net.forward", "Whole.forward"}
    assert 'graph "Whole.forward"' in done.stderr and "_call_impl" not in done.stderr and "recompiling Whole.forward (" in done.stderr
    assert f"framejit: Whole.forward ({tmp_path / 'program.py'}:{plain})" in done.stdout


CHOICES = """
import torch
import framejit

model = torch.nn.Sequential(torch.nn.Conv2d(8, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 16, 1)).eval()
compiled = framejit.compile(model, mode="max-autotune")
with torch.no_grad():
    for _ in range(110):
        compiled(torch.ones(1, 8, 20, 20))
"""


def test_verdicts_of_measurements(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(CHOICES)
    done = run("program.py", cwd=tmp_path, FRAMEJIT_EVENTS="t", FRAMEJIT_CACHE_DIR=str(tmp_path / "cache"), FRAMEJIT_LEAVE="0")
    assert done.returncode == 0, done.stderr
    told = analysed(tmp_path / "t")["choices"]
    graph = next(c for c in told if c["what"].startswith("graph "))
    assert "the default form" in [name for name, _ in graph["ways"]] and graph["chosen"] in [name for name, _ in graph["ways"]]
    assert all(s > 0 for _, s in graph["ways"]) and " us" in graph["why"] and graph["times"] == 1
    fields_are_documented(tmp_path / "t", "choice")
    assert "Measured and chosen" in report(tmp_path / "t").stdout


COLLECTIVES = """
import sys, torch, framejit
import torch.distributed as dist

rank = int(sys.argv[1])
dist.init_process_group("gloo", rank=rank, world_size=2)

@framejit.compile
def f(x):
    return torch.tanh(x) * 2

with torch.no_grad():
    for n in range(3):
        y = f(torch.ones(8 + n))
        dist.all_reduce(y)
    dist.barrier()
dist.destroy_process_group()
"""


def fields_are_documented(folder, kind):
    events = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines() if f'"kind":"{kind}"' in line]
    if (Path(__file__).parents[2] / "docs").exists():
        assert events and all(set(e) <= documented_events()[kind] for e in events)


def gloo():
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("no gloo")


def test_collectives_of_two_processes(tmp_path):
    """As torch's recorder noted them, at the latest when the process ends."""
    gloo()
    (tmp_path / "program.py").write_text(COLLECTIVES)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEJIT_")}
    environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", OMP_NUM_THREADS="1", FRAMEJIT_EVENTS="t",
                       PYTHONPATH=str(Path(framejit.__file__).parent.parent))  # fmt: skip
    ranks = [subprocess.Popen([sys.executable, "program.py", str(r)], cwd=tmp_path, env={**environment, "RANK": str(r)}, stderr=subprocess.PIPE, text=True) for r in range(2)]
    errors = [r.communicate(timeout=150)[1] for r in ranks]
    assert [r.returncode for r in ranks] == [0, 0], errors
    (group,) = analysed(tmp_path / "t")["collectives"]
    assert group["processes"] == ["rank 0", "rank 1"] and group["counts"][0] == group["counts"][1] >= 4 and group["differs"] is None
    said = {c["said"]: c["times"] for c in group["calls"]}
    assert {f"all_reduce f32[{8 + n}]": 2 for n in range(3)}.items() <= said.items() and "barrier" in said
    fields_are_documented(tmp_path / "t", "collective")
    assert "all_reduce f32[9]" in report(tmp_path / "t").stdout


def made(rank, *calls, first=1):
    return [{"kind": "process", "pid": 100 + rank, "rank": rank}] + [
        {"kind": "collective", "pid": 100 + rank, "group": "0", "description": "default_pg", "sequence": first + n, "point_to_point": False, "op": op,
         "inputs": [sizes], "outputs": [sizes], "state": "scheduled", "file": f"/a/train{rank}.py", "line": 10 + n, "function": "step"}
        for n, (op, sizes) in enumerate(calls)]  # fmt: skip


SAME = [("broadcast", "f32[8]"), ("all_reduce", "f32[8]"), ("all_reduce", "f32[4]")]


def differs(folder, *ranks, first=(1, 1)):
    for rank, calls in enumerate(ranks):
        write(folder, made(rank, *calls, first=first[rank] if rank < 2 else 1), f"framejit-{100 + rank}.jsonl")
    told = analysed(folder)
    (group,) = told["collectives"]
    return group["differs"], told["fix_first"]


def test_the_first_collective_that_differs(tmp_path):
    difference, causes = differs(tmp_path / "same", SAME, SAME)
    assert difference is None and causes == []
    # Another operation, other sizes, a rank that did not come to it: the first in each.
    difference, causes = differs(tmp_path / "op", SAME, [SAME[0], ("broadcast", "f32[8]"), SAME[2]])
    assert difference["sequence"] == 2 and [r["said"] for r in difference["ranks"]] == ["all_reduce f32[8]", "broadcast f32[8]"]
    assert causes[0]["kind"] == "collective" and "rank 1: broadcast f32[8]" in causes[0]["title"] and causes[0]["line"] == 11
    difference, _ = differs(tmp_path / "size", SAME, [*SAME[:2], ("all_reduce", "f32[5]")])
    assert difference["sequence"] == 3
    difference, causes = differs(tmp_path / "short", SAME, SAME[:2], SAME)
    assert difference["sequence"] == 3 and [r["said"] for r in difference["ranks"]] == ["all_reduce f32[4]", "nothing", "all_reduce f32[4]"]
    assert "did not come to it" in causes[0]["fix"]
    text = report(tmp_path / "short").stdout
    assert "ranks differ at collective 3 of group 0 (default_pg)" in text
    # What a rank has not kept is no difference; nor are the sizes of what a rank may get less of.
    difference, _ = differs(tmp_path / "kept", SAME, SAME[1:], first=(1, 2))
    assert difference is None
    difference, _ = differs(tmp_path / "gather", [("gather", "f32[3]")], [("gather", "f32[5]")])
    assert difference is None


def test_nothing_is_asked_of_what_is_not_distributed(tmp_path):
    pytest.importorskip("numpy")
    program = """
import os, sys, threading
import numpy as np
import framejit
assert framejit.compile(lambda x: x + 1.0)(np.ones(3)).sum() == 6
print(json.dumps(["framejit._collectives" in sys.modules, os.environ.get("TORCH_FR_BUFFER_SIZE"), threading.active_count()]))
"""
    (tmp_path / "program.py").write_text("import json\n" + program)
    plain = {"RANK": "", "TORCH_FR_BUFFER_SIZE": ""}
    assert json.loads(run("program.py", cwd=tmp_path, **plain).stdout) == [False, "", 1]
    assert json.loads(run("program.py", cwd=tmp_path, FRAMEJIT_EVENTS="t", **plain).stdout) == [True, "", 1]
