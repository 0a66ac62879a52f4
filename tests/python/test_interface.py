"""libframejit.so and the extension of another build: one line says so, where the two would crash before."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import framejit
import pytest

PACKAGE = pathlib.Path(framejit.__file__).parent


def test_a_library_of_another_build_is_refused(tmp_path):
    folder = tmp_path / "framejit"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    run = [sys.executable, "-c", "import framejit; print(framejit.__file__)"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}  # and what a sanitizer wants loaded first
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith(str(folder)), done.stderr

    library = folder / "libframejit.so"
    bytes_ = library.read_bytes()
    [name] = set(re.findall(rb"framejit\d+(interface_[0-9a-f]{16})E", bytes_))
    library.write_bytes(bytes_.replace(name, b"interface_" + b"0" * 16))
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: framejit's libframejit.so and its extension are of different builds: build again (tools/dev build), or install again"
    )


@pytest.mark.parametrize(
    "version, numbers, said",
    [
        ("3.15.0 (main)", (3, 15, 0), "framejit runs on CPython 3.11 to 3.14, and this is cpython 3.15.0"),
        ("3.13.1 experimental free-threading build (main)", (3, 13, 1), "framejit does not run on free-threaded builds of Python"),
    ],
)
def test_another_python_is_refused_with_one_line(tmp_path, version, numbers, said):
    folder = tmp_path / "framejit"  # there is no extension for it
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    code = f"import sys; sys.version, sys.version_info = {version!r}, {numbers}; import framejit"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: {said}"


def test_the_library_wants_no_newer_libc_than_it_must():
    """LLVM's arc4random alone made a wheel of Debian 12 one for glibc 2.36; Ubuntu 22.04 has 2.35."""
    assert b"GLIBC_2.36" not in (PACKAGE / "libframejit.so").read_bytes()
