"""`tools/dev wheel`: installs into an empty environment, and the README's first example runs there without a compiler (first_example.py)."""

import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = "%d.%d" % sys.version_info[:2]


@pytest.mark.slow
def test_a_wheel_of_the_sdist_runs_where_there_is_no_compiler():
    if not (ROOT / "tools" / "dev").exists() or not (ROOT / "CMakeLists.txt").exists():
        pytest.skip("packed for another machine")
    done = subprocess.run([sys.executable, ROOT / "tools" / "dev", "wheel", "--python", VERSION], capture_output=True, text=True)
    if "no wheels without PyPI" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "right, " in done.stdout, done.stdout
    [wheel] = (ROOT / "dist").glob("*.whl")
    tag = VERSION.replace(".", "")
    assert f"cp{tag}-cp{tag}-manylinux_" in wheel.name and wheel.stat().st_size < 40e6, wheel
    names = zipfile.ZipFile(wheel).namelist()
    assert {"framejit/libframejit.so", "framejit/py.typed", "framejit/__init__.pyi", "framejit/_report/page.html"} <= set(names), names
    assert not [name for name in names if "LLVM" in name or "__pycache__" in name], names
    with zipfile.ZipFile(wheel) as opened:
        [entry] = [name for name in names if name.endswith("entry_points.txt")]
        assert b"framejit = framejit._torch_backend:framejit" in opened.read(entry)
