"""python -m framejit report: planted faults are found, and what it writes is what docs/events.md says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import planted
import pytest

framejit = pytest.importorskip("framejit")
ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(__file__).parent / "traces"


def run(*command, cwd=None, **env):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEJIT_")}
    environment["PYTHONPATH"] = str(Path(framejit.__file__).parent.parent)
    return subprocess.run([sys.executable, *map(str, command)], cwd=cwd, env={**environment, **env}, text=True, capture_output=True, timeout=300)


def report(*arguments, **more):
    return run("-m", "framejit", "report", *arguments, **more)


def write(folder, events, name="framejit-100.jsonl", more=""):
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"t": 1000.0 + i / 10, "pid": 100, "tid": 100, **e}) for i, e in enumerate(events)]
    (folder / name).write_text("\n".join(lines) + "\n" + more)


def analysed(folder):
    done = report(folder, "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """name -> (the report, the planted line): each program is run once."""
    known = {}

    def record(name):
        if name not in known:
            pytest.importorskip("torch" if name == "fallback" else "numpy")
            folder = tmp_path_factory.mktemp(name)
            program = planted.PROGRAMS[name]
            (folder / "program.py").write_text(program)
            done = run("program.py", cwd=folder, FRAMEJIT_EVENTS="trace", FRAMEJIT_LEAVE="0")
            assert done.returncode == 0, done.stderr
            line = next(n for n, text in enumerate(program.splitlines(), 1) if text.endswith("# planted"))
            known[name] = folder, analysed(folder / "trace"), line
        return known[name]

    return record


EXPECTED = {
    "break": ("break", "FJ0005", "move it out"),
    "flip": ("recompile", "settings.training changed: True -> False", "flag"),
    "number": ("recompile", "L['epoch'] changed: 0 -> 1", "dynamic=True"),
    "shape": ("recompile", "L['batch'].shape[0] changed: 20 -> 21", "mark_dynamic"),
    "slow": ("step", "slow kernel", "cheaper operations"),
    "fallback": ("fallback", "complex", "operations that are compiled"),
}


@pytest.mark.parametrize("name", planted.PROGRAMS)
def test_a_planted_fault_is_first_or_second(recorded, name):
    folder, told, line = recorded(name)
    kind, title, fix = EXPECTED[name]
    found = [c for c in told["fix_first"][:2] if c["kind"] == kind and title in c["title"]]
    assert found, [(c["kind"], c["title"]) for c in told["fix_first"]]
    assert os.path.basename(found[0]["file"]) == "program.py" and found[0]["line"] == line
    if kind != "step":  # whose names have no folder
        assert found[0]["source"].endswith("# planted")
    if name != "flip":
        assert fix in found[0]["fix"]
    assert found[0]["seconds"] > 0


def test_copies_of_a_break_are_one_cause(recorded):
    _, told, _ = recorded("break")
    (found,) = [b for b in told["breaks"] if b["id"] == "FJ0005"]
    assert found["times"] >= 24 * 20 and found["copies"] > 1 and len(found["places"]) == 1
    assert told["time"]["python_after_breaks"] > 0


def test_the_limit_of_versions_is_the_guards_fault(recorded):
    _, told, _ = recorded("number")
    (found,) = [r for r in told["recompiles"] if r["guard"] == "L['epoch']"]
    assert found["limit"] and found["kind"] == "number" and found["misses"] >= 8
    assert found["changes"][:2] == [["0", "1"], ["1", "2"]]
    assert not any(c.get("id") == "FJ0020" for c in told["fix_first"])


@pytest.mark.clock
def test_runs_are_counted_and_timed(recorded):
    _, told, _ = recorded("slow")
    heavy = next(s for s in told["segments"] if s["function"] == "heavy")
    assert 50 <= heavy["runs"] <= 60 and heavy["runner"] == "graph"
    # The kernel takes nearly all of it; checks, memory and results the rest.
    assert 0 < heavy["around"] < 0.5 * heavy["seconds"]
    assert told["time"]["around"] == pytest.approx(sum(s["around"] for s in told["segments"]))
    steps = {s["graph"]: s for s in told["steps"]}
    assert steps["heavy"]["bytes_per_second"] < steps["light"]["bytes_per_second"]
    assert steps["light"]["bytes"] == pytest.approx(steps["light"]["runs"] * 2 * 8 * 400_000)
    # A step is a part of the run that it is in.
    assert steps["heavy"]["seconds"] / steps["heavy"]["runs"] < 2 * heavy["seconds"] / heavy["runs"]


def test_steps_on_gpus_stand_beside_all_others(tmp_path):
    def step(name, by, device, seconds, size):
        return {"kind": "step", "graph": "f", "name": f"{name}@a.py:3", "by": by, "device": device, "runs": 10.0, "seconds": seconds, "bytes": size, "flops": 0.0}

    write(tmp_path / "t", [{"kind": "process", "schema": 1, "part": 0}, step("slow", "kernel", "cuda:0", 0.5, 1e9), step("fast", "kernel", "cuda:0", 0.1, 1e10),
                           step("host", "kernel", "cpu", 0.1, 1e8), {**step("old", "kernel", "", 0.1, 1e8), "device": None}])  # fmt: skip
    told = analysed(tmp_path / "t")
    steps = {s["name"]: s for s in told["steps"]}
    assert {name: s["device"] for name, s in steps.items()} == {"slow": "cuda:0", "fast": "cuda:0", "host": "cpu", "old": "cpu"}
    assert steps["slow"]["bound_seconds"] == pytest.approx(0.01)  # at the rate of the other one there
    assert steps["host"]["bound_seconds"] == pytest.approx(0.1)  # nothing on the CPU is faster
    assert told["time"]["devices"] == pytest.approx(0.6)
    assert told["fix_first"][0]["title"].startswith("slow kernel slow: ")
    text = report(tmp_path / "t").stdout
    assert re.search(r"meanwhile on GPUs, in compiled graphs +600 ms", text) and re.search(r"kernel +cuda:0 +slow@a.py:3", text)
    assert "GPUs" not in report(TRACES / "golden", cwd=TRACES).stdout


def test_golden_text():
    """A small fixed trace: two ranks, a torn and a foreign line, an unknown kind, a part that was dropped."""
    done = report(TRACES / "golden", cwd=TRACES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace(str(TRACES) + os.sep, "") == (TRACES / "golden.txt").read_text()


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a packed folder has no documents")
def test_json_has_the_documented_fields(recorded):
    _, told, _ = recorded("break")
    table = (ROOT / "docs" / "events.md").read_text().split("## What the report writes")[1]
    rows = dict(re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.M))
    assert set(told) == {name for head in rows for name in re.findall(r"`(\w+)`", head)}
    for field in ("fix_first", "breaks", "recompiles", "log", "processes", "time"):
        documented = set(re.findall(r"`(\w+)`", rows[f"`{field}`"]))
        shown = told[field] if isinstance(told[field], list) else [told[field]]
        assert shown and all(set(row) <= documented for row in shown), field


def test_a_break_in_a_library_names_the_program(tmp_path):
    """Who reads functional.py:3555 does not know which of the own lines is meant."""
    cause = {"kind": "break", "id": "FJ0010", "message": "m", "detail": "d", "file": "/lib/functional.py", "function": "loss", "line": 3555}
    capture = {"kind": "capture", "place": "step@/home/train.py:39", "seconds": 0.1, "breaks": ["FJ0010@/lib/functional.py:3555"], "ok": True}
    within = {**capture, "place": "loss@/lib/functional.py:3472", "line": 3540}
    write(tmp_path / "t", [{"kind": "process"}, {**capture, "line": 41}, cause, {**capture, "line": 42}, {**capture, "line": 41}, within])
    told = analysed(tmp_path / "t")
    assert told["fix_first"][0]["from"] == {"file": "/home/train.py", "line": 42, "function": "step"} == told["breaks"][0]["from"]
    assert "reached from /home/train.py:42 in step" in report(tmp_path / "t").stdout
    write(tmp_path / "u", [{"kind": "process"}, cause, within])
    assert analysed(tmp_path / "u")["fix_first"][0]["from"] is None


def test_torn_and_foreign_lines(tmp_path):
    write(tmp_path / "t", [{"kind": "process", "schema": 1}, {"kind": "news", "x": 1}, {"kind": "break", "line": "no number", "file": None}],
          more='[1, 2]\n{"no": "kind"}\n' + "[" * 100_000 + '\n\x00\xff\n{"kind":"brea')  # fmt: skip
    told = analysed(tmp_path / "t")
    assert (told["log"]["events"], told["log"]["torn"], told["log"]["foreign"]) == (3, 3, 2)
    text = report(tmp_path / "t").stdout
    assert "skipped: 3 torn lines, 2 lines of something else" in text


def test_several_processes(tmp_path):
    cause = {"kind": "break", "id": "FJ0005", "message": "m", "detail": "print", "file": "a.py", "function": "f", "line": 3}
    for rank in (1, 0):
        write(tmp_path / "t", [{"kind": "process", "rank": rank, "pid": 100 + rank}, {**cause, "pid": 100 + rank}], f"framejit-{100 + rank}.jsonl")
    told = analysed(tmp_path / "t")
    assert [p["name"] for p in told["processes"]] == ["rank 0", "rank 1"]
    (found,) = told["breaks"]
    assert found["processes"] == ["rank 0", "rank 1"]
    # A process id that is used again is another process, and parts of one process are one.
    write(tmp_path / "u", [{"kind": "process", "part": 0}, {"kind": "process", "part": 0}])
    write(tmp_path / "u", [{"kind": "process", "part": 3}, cause], "framejit-100.3.jsonl")
    told = analysed(tmp_path / "u")
    assert len(told["processes"]) == 2 and told["log"]["missing_parts"] == 2 and len(told["breaks"]) == 1


FORKS = """
import os, sys
import numpy as np
import framejit

@framejit.compile(options={"leave": False})
def f(x):
    return np.tanh(x) + 1.0

def g(x):
    y = f(x)
    return y

x = np.ones(100)
framejit.config.events = ""
for _ in range(5):
    f(x)
framejit.config.events = sys.argv[1]
later = framejit.compile(g)
for _ in range(7):
    later(x)
pid = os.fork()
for _ in range(3 if pid == 0 else 2):
    later(x)
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_child_tells_of_itself(tmp_path):
    pytest.importorskip("numpy")
    (tmp_path / "program.py").write_text(FORKS)
    done = run("program.py", "trace", cwd=tmp_path, FRAMEJIT_LEAVE="0")
    assert done.returncode == 0, done.stderr
    runs = {}
    for file in (tmp_path / "trace").glob("*.jsonl"):
        events = [json.loads(line) for line in file.read_text().splitlines()]
        runs[file.name] = sum(e["runs"] for e in events if e["kind"] == "runs" and e["place"].startswith("g@"))
    assert sorted(runs.values()) == [3, 9]


LEFT = """
import numpy as np
import framejit

@framejit.compile
def f(x):
    y = np.tanh(x)
    for i in range(30):
        open("/dev/null").close()  # Python does nearly all of it
    return y + 1.0

x = np.ones(4)
for _ in range(200):
    f(x)
"""


def test_functions_that_are_left_to_python_are_told(tmp_path):
    pytest.importorskip("numpy")
    (tmp_path / "program.py").write_text(LEFT)
    assert run("program.py", cwd=tmp_path, FRAMEJIT_EVENTS="trace").returncode == 0
    told = analysed(tmp_path / "trace")
    assert told["left"]  # the loop, or the whole function
    for left in told["left"]:
        assert left["function"] == "f" and "left to" in left["why"] and left["compiled"] > 0 and left["python"] > 0
    assert "Left to Python" in report(tmp_path / "trace").stdout


def test_one_change_of_an_input_is_one_cause(tmp_path):
    """A size that changes recompiles everything behind a break, too."""
    events = [{"kind": "recompile", "place": f"f{i}@a.py:{i}", "entries": 1, "guard": f"L['x{i}'].size(1): expected 32, got 48 (a.py:{10 + i})"}
              for i in range(5)]  # fmt: skip
    write(tmp_path / "t", events)
    told = analysed(tmp_path / "t")
    assert len(told["recompiles"]) == 5 and len(told["fix_first"]) == 1
    assert told["fix_first"][0]["line"] == 10 and "4 more behind it" in told["fix_first"][0]["title"]


def test_diff(recorded):
    before, after = recorded("break")[0], recorded("slow")[0]
    done = report(before / "trace", "--diff", after / "trace", "--json", "-")
    told = json.loads(done.stdout)
    changes = {c["kind"]: c["change"] for c in told["causes"]}
    assert changes["break"] == "gone" and changes["step"] == "new"
    same = json.loads(report(before / "trace", "--diff", before / "trace", "--json", "-").stdout)
    assert {c["change"] for c in same["causes"]} == {"same"}
    text = report(before / "trace", "--diff", after / "trace").stdout
    assert "gone" in text and "new" in text and "FJ0005" in text


def test_a_cause_is_the_same_when_its_figures_differ(tmp_path):
    def steps(slow):
        return [{"kind": "step", "graph": "f", "name": f"{n}@a.py:{line}", "by": "kernel", "runs": 10, "seconds": s, "bytes": 1e6, "flops": 0}
                for n, line, s in (("exp", 3, slow), ("add", 4, 0.001))]  # fmt: skip

    for name, slow in (("t", 0.1), ("u", 0.2)):
        write(tmp_path / name, steps(slow))
    told = json.loads(report(tmp_path / "t", "--diff", tmp_path / "u", "--json", "-").stdout)
    (cause,) = told["causes"]
    assert cause["change"] == "worse" and cause["kind"] == "step" and cause["line"] == 3


def test_perfetto(recorded, tmp_path):
    folder, told, _ = recorded("break")
    assert report(folder / "trace", "--perfetto", tmp_path / "p.json").returncode == 0
    events = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert sum(e["cat"] == "capture" for e in spans) == len(told["captures"])
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and isinstance(e["pid"], int) for e in spans)
    assert any(e["ph"] == "i" and "FJ0005" in e["name"] for e in events)


def test_page(recorded, tmp_path):
    folder, told, _ = recorded("slow")
    done = run("program.py", cwd=folder, FRAMEJIT_EVENTS="with_texts", FRAMEJIT_EVENTS_LOG="guards,graph,loop")
    assert done.returncode == 0 and done.stderr == ""  # the texts go to the events alone
    assert report(folder / "with_texts", "--html", tmp_path / "p.html").returncode == 0
    page = (tmp_path / "p.html").read_text()
    data = page_data(page)
    channels = {channel for capture in data["report"]["texts"] for channel in capture["texts"]}
    assert channels == {"guards", "graph", "loop"}
    assert any("# planted" in line for blocks in data["sources"] for block in blocks for line in block["lines"])
    outside = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.S)
    assert not re.search(r"https?://|src=|@import|url\(", outside)


def page_data(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_page_of_many_events_is_small(tmp_path):
    """And what a program's names hold cannot end the script."""
    events = [{"kind": "process"}]
    for i in range(20_000):
        events.append({"kind": "capture", "place": f"f{i % 3000}@/a/long/path/to/some/module_{i % 50}.py:{i}", "line": i, "seconds": 1e-3, "ok": True,
                       "runner": "graph", "calls": 3, "breaks": [f"FJ0005@</script><script>alert({i % 7})</script>:{i % 100}"]})  # fmt: skip
    write(tmp_path / "t", events)
    assert report(tmp_path / "t", "--html", tmp_path / "p.html").returncode == 0
    page = (tmp_path / "p.html").read_text()
    assert len(page.encode()) < 5_000_000
    assert "<script>alert" not in page
    data = page_data(page)
    assert len(data["timeline"]) + data["dropped"] == 20_000


def test_without_rich(recorded):
    folder, told, _ = recorded("break")
    code = "import sys; sys.modules['rich'] = None; from framejit._report import run; sys.exit(run(sys.argv[1]))"
    assert run("-c", code, folder / "trace").stdout == report(folder / "trace").stdout


def test_with_rich(recorded):
    pytest.importorskip("rich")
    folder, told, _ = recorded("break")
    code = """
import io, sys
from framejit._report import analyse, read, terminal
class Terminal(io.StringIO):
    isatty = lambda self: True
out = Terminal()
terminal.show(analyse(read(sys.argv[1])), sys.argv[1], out)
assert "FJ0005" in out.getvalue() and "What to fix first" in out.getvalue(), out.getvalue()
assert "\\x1b[" in out.getvalue()
"""
    done = run("-c", code, folder / "trace", TERM="xterm-256color", FORCE_COLOR="1")
    assert done.returncode == 0, done.stderr


def test_an_output_that_cannot_be_written(recorded, tmp_path):
    folder, _, _ = recorded("break")
    done = report(folder / "trace", "--html", tmp_path / "missing" / "p.html")
    assert done.returncode == 2 and "cannot write" in done.stderr


GUARDS = [
    ("L['x'].size(0): expected 3, got 4 (/a/b.py:7); to avoid it: framejit.mark_dynamic(L['x'], 0) or dynamic=True", "L['x'].size(0)", "3", "4", "/a/b.py:7", "size"),
    ("G['layers'][12].scaled: expected False, got True (a.py:1)", "G['layers'][*].scaled", "False", "True", "a.py:1", "flag"),
    ("f: the function's code changed", "f", "", "the function's code changed", "", "value"),
    ("L['d']['7'].dtype: expected f32, got f64", "L['d'][*].dtype", "f32", "f64", "", "dtype"),
    ("x: expected 'a, got b', got 'c (d.py:3)' (e.py:4)", "x", "'a, got b'", "'c (d.py:3)'", "e.py:4", "value"),
]


@pytest.mark.parametrize("guard, root, old, new, place, kind", GUARDS, ids=range(len(GUARDS)))
def test_guards_are_taken_apart(guard, root, old, new, place, kind):
    from framejit._report.guards import kind_of, parse

    found = parse(guard)
    assert (found.root, found.old, found.new, found.place) == (root, old, new, place)
    assert kind_of([found])[0] == kind
