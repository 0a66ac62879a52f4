"""FRAMEJIT_CHECK_NUMERICS, FRAMEJIT_DUMP_SEGMENTS, FRAMEJIT_SEGMENT_FUEL."""

import os
import subprocess
import sys
from pathlib import Path

import planted
import pytest

import framejit

np = pytest.importorskip("numpy")
CHECKED = {"check_numerics": True, "leave": False}


def run(folder, *command, **env):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEJIT_")}
    kept |= {"PYTHONPATH": str(Path(framejit.__file__).parent.parent), "FRAMEJIT_LEAVE": "0"}
    return subprocess.run([sys.executable, *map(str, command)], cwd=folder, env={**kept, **env}, text=True, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """(folder with program.py, LD_PRELOAD, the planted line)."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the planted library knows its caller by the frames, of which a sanitizer has others")
    folder = tmp_path_factory.mktemp("faulty")
    library = planted.faulty_library(folder)
    if library is None:
        pytest.skip("no C compiler")
    (folder / "program.py").write_text(planted.KERNEL)
    line = next(n for n, text in enumerate(planted.KERNEL.splitlines(), 1) if text.endswith("# planted"))
    return folder, library, line


def test_the_first_call_that_differs_is_named(faulty):
    folder, library, line = faulty
    env = {"FRAMEJIT_CHECK_NUMERICS": "1", "LD_PRELOAD": library}
    done = run(folder, "program.py", **env, PLANTED="wrong", FRAMEJIT_STRICT="1")
    assert done.returncode == 1 and "InternalError: wrong result in segment 1 of step@" in done.stderr
    assert f"program.py:{line}: the first call that differs is numpy.hypot: RMS error" in done.stderr
    assert "step: kernel" in done.stderr and "hypot" in done.stderr.partition("step: kernel")[2].splitlines()[0]
    # Without strict it is told once, and the program goes on; without the fault there is nothing to tell.
    done = run(folder, "program.py", **env, PLANTED="wrong")
    assert done.returncode == 0 and done.stdout == "done\n" and done.stderr.count("wrong result") == 1
    done = run(folder, "program.py", **env, FRAMEJIT_STRICT="1")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_not_a_number(faulty, tmp_path):
    """With gradients, where eager has none."""
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(planted.KERNEL_WITH_GRADIENTS)
    env = {"FRAMEJIT_CHECK_NUMERICS": "1", "LD_PRELOAD": faulty[1], "FRAMEJIT_STRICT": "1"}
    done = run(tmp_path, "program.py", **env, PLANTED="nan")
    assert "program.py:8: the first call that differs is torch.hypot: not-a-number at other places than eager" in done.stderr
    done = run(tmp_path, "program.py", **env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_what_is_right_passes_and_is_unchanged(fresh):
    def f(x, y):
        y += x.sum(axis=0)
        z = np.where(x > 0.5, np.sqrt(x), -x)
        return z, z[::2].T, (x * 3).astype("float32"), y.argmax()

    x = np.linspace(0.0, 1.0, 60).reshape(12, 5)
    one, two = np.ones(5), np.ones(5)
    g = fresh.compile(f, options=CHECKED)
    for _ in range(3):
        for a, b in zip(g(x, one), f(x, two)):
            assert np.allclose(a, b, rtol=1e-14)
    assert np.allclose(one, two, rtol=1e-14) and g.cache_info()["outcomes"]["run"]["graph"] == 3
    assert "framejit._numerics" in sys.modules


def test_training_and_random_numbers(fresh):
    torch = pytest.importorskip("torch")

    def f(x, w):
        h = torch.nn.functional.dropout(torch.tanh(x @ w), 0.5)
        return torch.nn.functional.softmax(h, -1), h.relu().sum()

    x, w = torch.randn(8, 16), torch.randn(16, 4)
    g = fresh.compile(f, options=CHECKED)
    told = []
    for run_it in (f, g):
        torch.manual_seed(3)
        leaf = w.clone().requires_grad_()
        for _ in range(2):
            a, b = run_it(x, leaf)
            (a.square().sum() + b).backward()
        told.append((a, b, leaf.grad, torch.rand(1)))
    for mine, theirs in zip(*told):
        torch.testing.assert_close(mine, theirs)
    assert g.cache_info()["outcomes"]["run"] == {"graph": 2}


def test_gradients_that_vanish():
    """A gradient that is zero but for rounding: another order of sums is as right as eager's own, a thousandth part of its terms is not."""
    torch = pytest.importorskip("torch")
    from framejit import _doctor, _numerics

    x, w = _numerics.example("torch", "float32", (32, 48), seed=0), _numerics.example("torch", "float32", (48, 64), seed=1)

    def by_hand(x, w):
        h = torch.tanh(x @ w)
        h = h - h.mean(-1, keepdim=True)
        return [h / torch.sqrt((h * h).mean(-1, keepdim=True) + 1e-5)]

    def run(values, seed=None):
        layer_norm = lambda x, w: [torch.nn.functional.layer_norm(torch.tanh(x @ w), (64,))]  # noqa: E731
        return _numerics.with_gradients(layer_norm, values, [True, True], seed)

    got, expected = _numerics.with_gradients(by_hand, _numerics.copies([x, w]), [True, True]), run(_numerics.copies([x, w]))
    assert (got[1] - expected[1]).abs().max() > 3 * expected[1].abs().max()  # by far less exact than eager
    assert _numerics.first_wrong(run, [x, w], got, expected) is None
    place, text = _numerics.first_wrong(run, [x, w], [got[0], got[1] + 1e-4, got[2]], expected)
    assert place == 1 and "error" in text
    told = dict(_doctor._trials("cpu", "cpu"))
    assert len(told) == len(_doctor._TRIALS) and all(text.startswith("right, ") for text in told.values()), told


def test_a_wrong_back_end_and_wrong_gradients(fresh):
    """A registered back end is compared, too; and what it is given may have symbolic sizes."""

    @framejit.register_backend
    def off_by_one(graph, examples):
        return lambda *inputs: tuple(r + 1 for r in graph(*inputs))

    f = fresh.compile(lambda x: np.exp(x) * 2, backend="off_by_one", options=CHECKED)
    for size in (3, 4, 5):
        with pytest.raises(framejit.InternalError, match=r"wrong result in segment \d+ of .*lambda"):
            f(np.ones(size))
    assert f.cache_info()["segments"] <= 2


def test_segments_are_written_as_programs(faulty, tmp_path):
    folder, library, _ = faulty
    done = run(folder, "program.py", FRAMEJIT_DUMP_SEGMENTS=str(tmp_path / "dump"))
    assert done.returncode == 0 and done.stderr == ""
    programs = sorted((tmp_path / "dump").glob("*.py"))
    assert [p.name for p in programs] == ["segment-0000.py", "segment-0001.py"] and not (tmp_path / "dump" / "running").exists()
    assert "t14 = numpy.hypot(t13, t5)  # program.py:15" in programs[1].read_text()
    assert run(tmp_path, programs[1]).stdout == "as the framework computes it\n"
    done = run(tmp_path, programs[1], LD_PRELOAD=library, PLANTED="wrong")
    assert done.returncode == 1 and done.stdout.startswith("wrong: result 0")


PRINTED = """
import numpy as np
import torch
import framejit

@framejit.compile
def f(x, m, p, k):
    y = x[1:, None] ** 2 - 1.5
    y[..., 0] = -3.0
    y.clamp_(max=float("inf"))
    z = torch.where(y.sum(-1) > k, y.mean(-1).to(torch.float64), 0.0).unsqueeze(-1) @ m.double()
    with torch.no_grad():
        n = torch.zeros_like(p, dtype=torch.bfloat16) + p.T.T
    return {"a": (z.expand(2, -1, -1, -1), n), "b": torch.stack([z, abs(z)], dim=1), "c": p * (2 + k)}

for k in (1, 2, 3):
    f(torch.rand(4 + k, 3), torch.ones(1, 2), torch.nn.Parameter(torch.ones(2, 3)), k)
"""


def test_what_is_written_is_python(tmp_path):
    """Operators, slices, in-place calls, modes, dtypes, symbolic sizes, gradients."""
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PRINTED)
    done = run(tmp_path, "program.py", FRAMEJIT_DUMP_SEGMENTS="dump", FRAMEJIT_STRICT="1")
    assert (done.returncode, done.stderr) == (0, "")
    programs = sorted((tmp_path / "dump").glob("*.py"))
    assert 1 <= len(programs) <= 3
    for program in programs:
        text = program.read_text()
        assert "with torch.no_grad():" in text and "[(Ellipsis" not in text and "gradients=[" in text
    assert run(tmp_path, programs[-1]).stdout == "as the framework computes it\n"


def test_segment_fuel(tmp_path):
    (tmp_path / "program.py").write_text(planted.KERNEL.replace('print("done")', 'print(before.cache_info()["outcomes"]["run"], step.cache_info()["outcomes"]["run"])'))
    assert run(tmp_path, "program.py", FRAMEJIT_SEGMENT_FUEL="1").stdout == "{'graph': 3} {'framework': 3}\n"
    assert run(tmp_path, "program.py", FRAMEJIT_SEGMENT_FUEL="0").stdout == "{'framework': 3} {'framework': 3}\n"
    assert run(tmp_path, "program.py").stdout == "{'graph': 3} {'graph': 3}\n"


def test_arguments_without_a_text(tmp_path):
    """A function with a derivative of its own is compared, too; a program of it cannot be written, which is said."""
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text("""
import torch
import framejit

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 2

@framejit.compile
def f(x):
    return Twice.apply(x).exp()

x = torch.ones(3, requires_grad=True)
f(x).sum().backward()
print(f.cache_info()["outcomes"]["run"], x.grad[0].item() == (torch.tensor(2.0).exp() * 2).item())
""")
    done = run(tmp_path, "program.py", FRAMEJIT_CHECK_NUMERICS="1", FRAMEJIT_STRICT="1")
    assert (done.stdout, done.stderr) == ("{'graph': 1} True\n", "")
    done = run(tmp_path, "program.py", FRAMEJIT_DUMP_SEGMENTS="dump", FRAMEJIT_STRICT="1")
    assert done.returncode == 0 and "is not written: torch.autograd.function.FunctionMeta as an argument" in done.stderr
