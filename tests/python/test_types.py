"""The stubs: complete, as the functions are, and what they say of a program is what it is. Of mypy and pyright, those that are installed."""

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import framejit

USE = '''
import framejit

@framejit.compile
def f(x: float) -> float:
    return x + 1

@framejit.compile(fullgraph=True, mode="max-autotune")
def g(x: float, y: int = 2) -> str:
    return str(x + y)

a: float = f(1.0)
b: str = g(1.0, y=3)
with framejit.config.patch(fuse=False):
    c: int = framejit.config.fuel
told = framejit.explain(f)(1.0)
d: int = told.graph_count
with framejit.profile() as p:
    f(2.0)
e: float = p.steps[0].seconds

@framejit.disable
def h() -> None: ...

framejit.cache_info(f)["segments"]
with framejit.stance("force_eager"):
    h()
'''
WRONG = ['framejit.compile(f, mode="fast")', "framejit.config.fusel", 'g("1")', "framejit.stance(1)"]


def tool(*names):
    """The first of them that is installed."""
    for name in names:
        path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
        if path:
            return path
    pytest.skip(f"{names[0]} is not installed")


@pytest.fixture
def site(tmp_path):
    """A folder as pip leaves it: the Python files alone."""
    package = Path(framejit.__file__).parent
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(package, tmp_path / "site" / "framejit", ignore=ignore, ignore_dangling_symlinks=True)
    return tmp_path


def test_mypy(site, monkeypatch):
    mypy = tool("mypy")
    (site / "use.py").write_text(USE)
    (site / "wrong.py").write_text(USE + "\n".join(WRONG) + "\n")
    monkeypatch.setenv("MYPYPATH", str(site / "site"))
    done = subprocess.run([mypy, "--strict", "use.py"], cwd=site, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout
    done = subprocess.run([mypy, "--strict", "wrong.py"], cwd=site, text=True, capture_output=True)
    lines = len(USE.splitlines())
    assert {int(line.split(":")[1]) - lines for line in done.stdout.splitlines() if ": error: " in line} == set(range(1, 1 + len(WRONG)))


def test_pyright_says_they_are_complete(site, monkeypatch):
    pyright = tool("pyright", "basedpyright")  # the second one's wheel has all that it needs
    monkeypatch.setenv("PYTHONPATH", str(site / "site"))
    (site / "empty").mkdir()
    done = subprocess.run([pyright, "--pythonpath", sys.executable, "--outputjson", "--ignoreexternal", "--verifytypes", "framejit"],
                          cwd=site / "empty", text=True, capture_output=True)  # fmt: skip
    told = json.loads(done.stdout)["typeCompleteness"]
    assert told["exportedSymbolCounts"]["withUnknownType"] == told["exportedSymbolCounts"]["withAmbiguousType"] == 0
    assert told["exportedSymbolCounts"]["withKnownType"] > 50 and told["completenessScore"] == 1
    (site / "empty" / "use.py").write_text(USE)
    (site / "empty" / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    done = subprocess.run([pyright, "--pythonpath", sys.executable, "use.py"], cwd=site / "empty", text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


def test_stubs_name_what_there_is():
    """Every public name and option is in the stubs, and functions have the parameters that they say."""
    import ast

    package = Path(framejit.__file__).parent
    stub = ast.parse((package / "__init__.pyi").read_text())
    functions = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}  # of overloads, the last
    names = {*functions, *(node.name for node in stub.body if isinstance(node, ast.ClassDef))}
    names |= {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname}
    assert set(framejit.__all__) <= names
    for name, node in functions.items():
        if name in framejit.__all__ and name not in ("is_compiling", "compile", "explain"):  # C, and overloads
            real = [p.name for p in inspect.signature(getattr(framejit, name)).parameters.values() if p.kind != p.VAR_KEYWORD]
            assert [a.arg for a in [*node.args.args, *node.args.kwonlyargs]] == real, name
    config = ast.parse((package / "_config.pyi").read_text())
    fields = {node.target.id for c in config.body if isinstance(c, ast.ClassDef) for node in c.body if isinstance(node, ast.AnnAssign)}
    assert fields == {field for field, *_ in framejit._framejit.options()}
