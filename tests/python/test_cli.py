"""python -m framejit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

framejit = pytest.importorskip("framejit")


def command(*arguments, **env):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEJIT_")}
    environment["PYTHONPATH"] = str(Path(framejit.__file__).parent.parent)
    return subprocess.run([sys.executable, "-m", "framejit", *arguments], env={**environment, **env}, text=True, capture_output=True, timeout=300)


def test_doctor():
    done = command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "frame hook" in done.stdout and "self-test" in done.stdout and "FAILED" not in done.stdout
    assert done.stdout.rstrip().endswith("healthy")


def test_doctor_json():
    done = command("doctor", "--json")
    told = json.loads(done.stdout)
    assert told["healthy"] is True
    names = [row["name"] for row in told["findings"]]
    assert names[:3] == ["framejit", "python", "platform"] and "numpy" in names


def test_doctor_names_unknown_variables():
    done = command("doctor", FRAMEJIT_LOGS="breaks")
    assert "no such variable" in done.stdout and "FRAMEJIT_LOG" in done.stdout


def test_doctor_fails_on_a_wrong_value():
    done = command("doctor", FRAMEJIT_CPU="z80")
    assert done.returncode == 1 and "avx2" in done.stdout


def test_explain_a_break():
    done = command("explain", "FJ0001")
    assert done.returncode == 0
    assert done.stdout.startswith("FJ0001: tensor value used as a Python bool") and "help:" in done.stdout
    assert command("explain", "fj0001").stdout == done.stdout


def test_explain_everything_and_nothing():
    table = command("explain").stdout
    assert table.count("FJ") >= 20
    wrong = command("explain", "FJ0000")
    assert wrong.returncode == 2 and "FJ0001" in wrong.stderr


def test_options():
    done = command("options", FRAMEJIT_VERIFY="1")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("verify"))
    assert "from FRAMEJIT_VERIFY" in line and " 1 " in line


def test_every_environment_variable():
    """Each one sets its option to another value than the default, and `options` says where it comes from."""
    other = {"b": {"0": "1", "1": "0"}}
    first = {"log": "breaks", "events_log": "graph", "cpu": "avx2", "symbols": "gdb", "cuda_graphs": "true", "disabled_passes": "fuse"}
    rows = [row for row in framejit._framejit.options() if row[1]]
    values = {field: other["b"][default] if kind == "b" else "7" if kind == "i" else first.get(field, "a_folder") for field, _, kind, default, _ in rows}
    values.pop("events"), values.pop("install")  # which do something at once, and have tests of their own
    env = {variable: values[field] for field, variable, *_ in rows if field in values}
    lines = {line.split()[0]: line for line in command("options", **env).stdout.splitlines() if line[:1].isalpha()}
    for field, variable, *_ in rows:
        if field in values:
            assert f"from {variable}" in lines[field] and f" {values[field]} " in f"{lines[field]} ", lines[field]
    assert len(values) > 20


def documented_events():
    """{kind: fields} as docs/events.md has them."""
    import re

    documented = {}
    text = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    for section in text.split("### ")[1:]:
        kind, body = re.match(r"`(\w+)`[^\n]*\n(.*)", section, re.S).groups()
        documented[kind] = set(re.findall(r"`(\w+)`", body)) | {"kind", "t", "pid", "tid"}
    return documented


def test_event_stream(tmp_path):
    """Every kind and field that docs/events.md names, and nothing else, from a real process."""
    pytest.importorskip("torch")
    code = """
import framejit, time, torch
def f(x):
    y = x + 1
    time.sleep(0)
    return y * 2
compiled = framejit.compile(f)
with torch.no_grad():
    compiled(torch.ones(3))
    compiled(torch.ones(3, dtype=torch.float64))
framejit.compile(lambda x: torch.fft.fft(x * 2).abs())(torch.ones(3, requires_grad=True))  # complex: the framework runs it
framejit.compile(lambda x: x.reshape(-1, 2) + x.shape[0], dynamic=True)(torch.ones(4))
limited = framejit.compile(lambda x, k: x + len(k), options={"max_entries": 1})
for k in range(6):
    limited(torch.ones(3), "k" * k)
try:
    framejit.compile(lambda x, i: (x * 2)[i] + 1)(torch.ones(3), torch.tensor([7]))  # the framework refuses
except IndexError:
    pass
"""
    env = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEJIT_")}
    env |= {"PYTHONPATH": str(Path(framejit.__file__).parent.parent), "FRAMEJIT_EVENTS": str(tmp_path), "FRAMEJIT_EVENTS_LOG": "graph"}
    script = tmp_path / "traced.py"
    script.write_text(code)
    subprocess.run([sys.executable, str(script)], env=env, check=True, timeout=300, capture_output=True)
    (file,) = tmp_path.glob("framejit-*.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert events[0]["kind"] == "process" and events[0]["schema"] == 1
    documented = documented_events()
    seen = {}
    for event in events:
        seen.setdefault(event["kind"], set()).update(event)
    assert set(seen) == set(documented) - {"left", "choice", "collective"}  # test_report.py and test_report_details.py have these
    for kind, fields in seen.items():
        assert fields <= documented[kind], f"{kind}: {fields - documented[kind]} not in docs/events.md"
    breaks = [e for e in events if e["kind"] == "break"]
    assert any(e["id"] == "FJ0005" and e["function"] == "f" and e["line"] == 5 for e in breaks)
    captures = [e for e in events if e["kind"] == "capture" and e["ok"]]
    assert {e["runner"] for e in captures} >= {"graph", "trace"} and any(e["place"].startswith("f@") for e in captures)
    assert all(e["channel"] == "graph" for e in events if e["kind"] == "log")
    assert all("L['k']" in e["guard"] and e["times"].bit_count() == 1 for e in events if e["kind"] == "miss")
    assert any("f64" in e["guard"] for e in events if e["kind"] == "recompile")


def test_version():
    done = command("--version")
    assert done.returncode == 0 and done.stdout == f"framejit {framejit.__version__}\n"


def test_usage_error():
    done = command("dr")
    assert done.returncode == 2 and "doctor" in done.stderr


def test_report_of_nothing(tmp_path):
    assert command("report", str(tmp_path / "missing")).returncode == 2
    empty = command("report", str(tmp_path))
    assert empty.returncode == 2 and "FRAMEJIT_EVENTS" in empty.stderr


def test_doctor_gpu():
    done = command("doctor", "--gpu", "--json")
    rows = {row["name"]: row["finding"] for row in json.loads(done.stdout)["findings"]}
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        assert done.returncode == 0 and rows["gpu product"].startswith("right")
    else:
        assert done.returncode == 1 and rows["gpu"].startswith("FAILED") and "no GPU" in rows["gpu"]


@pytest.mark.parametrize("line, offered", [
    ("python -m framejit ", ["doctor", "report", "minify", "--version"]),
    ("python -m framejit rep", ["report"]),
    ("python -m framejit report --h", ["--help", "--html"]),
    ("python -m framejit explain FJ000", [f"FJ000{n}" for n in range(1, 10)]),
    ("python -m framejit completion ", ["bash", "zsh"]),
])  # fmt: skip
def test_completion(line, offered, tmp_path):
    """What bash offers, asked as it asks."""
    script = command("completion", "bash").stdout
    words = line + "''" * line.endswith(" ")
    ask = f'{script}\nCOMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_framejit\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], cwd=tmp_path, text=True, capture_output=True, check=True)
    words = done.stdout.split()
    assert set(offered) <= set(words)
    if line.endswith("rep"):
        assert words == ["report"]
    assert "bashcompinit" in command("completion", "zsh").stdout
