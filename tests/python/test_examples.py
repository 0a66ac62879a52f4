"""The programs of examples/ run, and are what they say."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="a packed folder has no examples")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_example(program, capfd):
    """In this process, but for what starts processes of its own. They assert that they are right."""
    if "import torch" in program.read_text():
        pytest.importorskip("torch")
    pytest.importorskip("numpy")
    if "multiprocessing" in program.read_text():
        subprocess.run([sys.executable, program], check=True, timeout=200)
    else:
        runpy.run_path(str(program), run_name="__main__")
    assert capfd.readouterr().out.strip()


def test_the_list_is_complete():
    listed = (EXAMPLES / "README.md").read_text()
    assert len(PROGRAMS) == 10
    for program in PROGRAMS:
        assert f"| `{program.name}` |" in listed
