"""Cells of notebooks: functions without a file, which are defined again; results that are shown as HTML."""

import linecache
import sys
import types

import pytest

import framejit

np = pytest.importorskip("numpy")


class Notebook:
    """Runs cells as IPython does: a name for each in the line cache, one namespace that is the module __main__'s."""

    def __init__(self, monkeypatch):
        self.module = types.ModuleType("__main__")
        self.space = vars(self.module)
        self.space.update(np=np, framejit=framejit)
        monkeypatch.setitem(sys.modules, "__main__", self.module)
        self.count = 0

    def run(self, source):
        self.count += 1
        name = f"<ipython-input-{self.count}-{hash(source) & 0xFFFFFFFF:08x}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), self.space)
        return self.space


@pytest.fixture
def notebook(monkeypatch, fresh):
    return Notebook(monkeypatch)


def test_a_helper_is_defined_again(notebook):
    """What calls it is compiled for the new one, and again is when the old one is back."""
    cell = notebook.run("def helper(x):\n    return x * 2.0\n")
    first = cell["helper"]
    notebook.run("@framejit.compile(options={'leave': False})\ndef f(x):\n    return helper(x) + 1.0\n")
    assert cell["f"](np.ones(3)).tolist() == [3.0] * 3
    notebook.run("def helper(x):\n    return x * 5.0\n")
    assert cell["f"](np.ones(3)).tolist() == [6.0] * 3
    notebook.run("def helper(x):\n    return x * 5.0\n")  # the same text: another function
    assert cell["f"](np.ones(3)).tolist() == [6.0] * 3
    cell["helper"] = first
    assert cell["f"](np.ones(3)).tolist() == [3.0] * 3
    info = cell["f"].cache_info()
    assert info["outcomes"]["run"] == {"graph": 4} and 2 <= info["segments"] <= 3


def test_a_compiled_function_is_defined_again(notebook):
    """Many times, as one does: each is compiled for itself, and none runs the code of another."""
    for n in range(1, 40):
        cell = notebook.run(f"@framejit.compile(options={{'leave': False}})\ndef f(x):\n    y = np.exp(x * 0.0)\n    return y + {n}.0\n")
        for _ in range(2):
            assert cell["f"](np.ones(2)).tolist() == [n + 1.0] * 2
        assert cell["f"].cache_info()["outcomes"]["run"] == {"graph": 2}


def test_a_break_shows_the_cell(notebook):
    cell = notebook.run("def g(x):\n    y = np.tanh(x)\n    open('/dev/null').close()\n    return y + 1.0\n")
    told = framejit.explain(cell["g"])(np.ones(3))
    assert told.graph_break_count >= 1
    text = told.break_reasons[0]
    assert "open('/dev/null').close()" in text and "<ipython-input-1-" in text and "^" in text
    page = told._repr_html_()
    assert "<details>" in page and "open(&#x27;/dev/null&#x27;).close()" in page and "<ipython" not in page
