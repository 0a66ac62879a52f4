"""Warnings that torch gives once in a process, from code of C: one graph, and the one warning in the program's line."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import sys, warnings, torch, framejit

def f(x):
    y = x * 2
    return y.T + 1

def g(x):
    return f(x) - 1

x, before, filters = torch.ones(2, 3, 4), sys.argv[1] == "before", sys.argv[2]
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter(filters)
    if before:
        f(x)
        seen.clear()
    compiled = framejit.compile(g)
    for k in range(3):
        try:
            assert torch.equal(compiled(x + k), (x + k).permute(2, 1, 0) * 2)
        except UserWarning as error:
            print("raised", "dimension other than 2" in str(error))
    info = framejit.cache_info(compiled)
print([(w.lineno, w.filename == __file__, "dimension other than 2" in str(w.message)) for w in seen], info["breaks"], info["segments"])
"""


@pytest.mark.parametrize(
    "before, filters, expected",
    [
        ("first", "always", "[(6, True, True)] 0 1"),
        ("before", "always", "[] 0 1"),
        ("first", "ignore", "[] 0 1"),
        ("first", "error", None),
    ],
)
def test_transpose_of_what_is_no_matrix(tmp_path, before, filters, expected):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    done = subprocess.run([sys.executable, file, before, filters], capture_output=True, text=True, timeout=300, check=True)
    lines = done.stdout.splitlines()
    if expected is None:  # as in eager, and no more than once
        assert lines[0] == "raised True" and lines.count("raised True") == 1 and lines[-1].startswith("[]")
    else:
        assert lines == [expected]


FLOATS = """
import sys, warnings, torch, framejit

def f(x):
    return x * float(x.sum())

wrap = framejit.compile if sys.argv[1] == "compiled" else lambda function: function
g, x = wrap(f), torch.ones(3, requires_grad=True)
torch.set_warn_always(sys.argv[3] == "each")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter(sys.argv[2])
    for k in range(4):
        try:
            with torch.set_grad_enabled(k > 0):
                assert torch.equal(g(x), torch.full((3,), 3.0))
        except UserWarning as error:
            print("raised", k, str(error)[:40])
        print(k, [(w.lineno, w.filename == __file__, str(w.message)[:40]) for w in seen])
if wrap is framejit.compile and sys.argv[3] == "once" and sys.argv[2] != "error":
    info = framejit.cache_info(g)
    assert info["breaks"] == 0 and info["outcomes"]["run"]["graph"] >= 3, info
"""


@pytest.mark.parametrize("filters, often", [("always", "once"), ("always", "each"), ("ignore", "once"), ("error", "once")])
def test_float_of_what_requires_gradients(tmp_path, filters, often):
    file = tmp_path / "program.py"
    file.write_text(FLOATS)
    runs = [
        subprocess.run([sys.executable, file, how, filters, often], capture_output=True, text=True, timeout=300, check=True)
        for how in ("eager", "compiled")
    ]
    assert runs[0].stdout == runs[1].stdout
