"""python -m framejit minify: planted faults become small programs that show them."""

import re

import planted
import pytest
from test_numerics import faulty, run  # noqa: F401 (a fixture)

np = pytest.importorskip("numpy")


@pytest.mark.parametrize("fault, kind, status", [("wrong", "Wrong", 1), ("crash", "Crash", -6), ("slow", "Slow", 3)])
def test_a_planted_fault(faulty, tmp_path, fault, kind, status):  # noqa: F811
    folder, library, line = faulty
    env = {"LD_PRELOAD": library, "PLANTED": fault}
    small = tmp_path / "small.py"
    slower = ["--slower", "5"] if fault == "slow" else []  # the planted loop costs thirty times as much, no machine's own hypot five times
    done = run(folder, "-m", "framejit", "minify", *slower, "--out", small, "program.py", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kind}: numpy.hypot of program.py:{line}, found in program.py." in done.stdout
    assert "No pass is at fault" in done.stdout and "hypot" in done.stdout.partition("No pass is at fault")[2]
    assert fault == "slow" or "The graph is right" in done.stdout
    text = small.read_text()
    assert "numpy.hypot(" in text and len(re.findall(r"^    t\d+ = ", text, re.M)) == 1  # one call is left
    sizes = re.findall(r"example\('numpy', 'float64', (\(.*?\)), seed", text)
    assert sizes == ["(30, 10)" if fault == "slow" else "(1, 1)"] * 2  # of small arrays everything is slow
    assert "pickle.load" not in text and not small.with_suffix(".pkl").exists()  # any numbers show it
    assert run(tmp_path, small, **env).returncode == status
    assert run(tmp_path, small).returncode == 0  # without the fault nothing is wrong


def test_a_planted_fault_in_a_training_step(faulty, tmp_path):  # noqa: F811
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(planted.KERNEL_WITH_GRADIENTS)
    env = {"LD_PRELOAD": faulty[1], "PLANTED": "wrong"}
    done = run(tmp_path, "-m", "framejit", "minify", "program.py", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Wrong: torch.hypot of program.py:8" in done.stdout and "minified.py: 1 call of the framework" in done.stdout
    assert run(tmp_path, "minified.py", **env).returncode == 1 and run(tmp_path, "minified.py").returncode == 0


def test_nothing_is_wrong(faulty):  # noqa: F811
    folder, _, _ = faulty
    done = run(folder, "-m", "framejit", "minify", "--slower", "1000", "program.py")
    assert done.returncode == 1 and "nothing is wrong" in done.stdout
    (folder / "fails.py").write_text("raise SystemExit(3)\n")
    done = run(folder, "-m", "framejit", "minify", "fails.py")
    assert done.returncode == 1 and "does not end well either" in done.stdout


def test_segments_are_bisected(tmp_path):
    """The script fails where its third segment is compiled, for a reason that only the script knows."""
    program = """
import sys
import numpy as np
import framejit
functions = [framejit.compile(eval(f"lambda x: np.exp(x) + {n}")) for n in range(5)]
for f in functions:
    f(np.ones(3))
sys.exit(7 if "graph" in functions[2].cache_info()["outcomes"]["run"] else 0)
"""
    (tmp_path / "program.py").write_text(program)
    done = run(tmp_path, "-m", "framejit", "minify", "program.py")
    assert done.returncode == 1 and "error: segment 2" in done.stdout and "by itself the segment does not show it" in done.stdout


def test_the_pass_is_named(tmp_path):
    from framejit import _minify
    from framejit._program import Program

    graphs = []
    import framejit

    def take(graph, examples):
        graphs.append(Program.of(graph))
        return graph

    framejit.register_backend("take", take)
    framejit.compile(lambda x: np.exp(x) + 1, backend="take")(np.ones(3))
    minifier = _minify.Minifier("program.py", [], "out.py", 1.5, 60.0)
    minifier.kind = "wrong"
    minifier.fails = lambda program, values, **options: int(options.get("fuel", 99)) >= 2 and "backend" not in options
    told = minifier.blame(graphs[0], [np.ones(3)])
    assert told[-1] == "it begins with the pass 'cse' (fuel=2)"
