"""What is empty on one call and not on the next: the same results, warnings and errors as eager, with one function for all."""

import os
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

ROWS = (3, 4, 5, 0, 6, 0)


def torch_table(rows):
    return torch.ones(rows, 4), torch.zeros(2 if rows else 0, dtype=torch.long)


def torch_table_with_a_wrong_index(rows):
    return torch.ones(rows, 4), torch.tensor([0, 1])


CASES = {
    "embedding": (lambda w, i: torch.nn.functional.embedding(i, w), torch_table),
    "embedding out of range": (lambda w, i: torch.nn.functional.embedding(i, w), torch_table_with_a_wrong_index),
    "rows": (lambda w, i: w[i], torch_table),
    "rows out of range": (lambda w, i: w[i], torch_table_with_a_wrong_index),
    "torch variance": (lambda x, i: (x.var(), x.std(), x.var(0), (x + 1).var(0)), torch_table),
    "numpy variance": (lambda a: (a.var(), a.mean(), np.std(a)), lambda rows: (np.ones(rows),)),
    "hash of an array": (lambda a: hash(a), lambda rows: (np.ones(rows),)),
}


def outcome(function, arguments):
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        try:
            result = function(*arguments)
        except (IndexError, RuntimeError, TypeError) as error:
            result = error
    return repr(result), [(w.category, str(w.message), w.lineno) for w in told]


@pytest.mark.parametrize("case", CASES)
def test_as_in_eager(case, fresh):
    function, make = CASES[case]
    compiled = fresh.compile(function)
    for rows in ROWS:
        assert outcome(compiled, make(rows)) == outcome(function, make(rows)), rows


def test_no_elements_are_not_read():
    """An array of no elements may have no memory: code that is made for such a size loads nothing of it, also in front of loops without rounds."""
    code = """
import framejit
import numpy as np

x = np.zeros((0, 3))
print(framejit.grad(lambda x: (x**2).sum())(x).shape)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "FRAMEJIT_LOG": "loop"}
    done = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True)
    assert done.stdout == "(0, 3)\n" and "kernel(" in done.stderr and "load" not in done.stderr, done.stderr


def test_results_of_nothing_lie_as_eager_lays_them(fresh):
    for a, b in [((0,), (1,)), ((0,), (2,)), ((3,), (0,)), ((0, 1), (1, 1)), ((0, 0), (1,)), ((0, 2), (1,))]:
        for f in (lambda x, y: x.unsqueeze(1) * y, lambda x, y: torch.where(x.unsqueeze(-1) > 0, y, 1.0)):
            x, y = torch.ones(a), torch.ones(b)
            fresh.reset()
            compiled = fresh.compile(f, options={"leave": False})
            assert (compiled(x, y).shape, compiled(x, y).stride()) == (f(x, y).shape, f(x, y).stride()), (a, b)
            assert fresh.cache_info(compiled)["outcomes"]["run"] == {"graph": 2}


@pytest.mark.parametrize("a, b", (((1, 0), (0, 1, 0)), ((1, 0), (1, 2, 0, 0)), ((0,), (3, 1, 0)), ((2, 1), (1, 2, 0))), ids=str)
def test_strides_of_nothing_that_are_0_stay_so(a, b, fresh):
    """The order of an iterator makes them, where rows of nothing have strides of 1."""
    f = fresh.compile(lambda x, y: x * y, options={"leave": False})
    x, y = torch.ones(a), torch.ones(b)
    assert (f(x, y).shape, f(x, y).stride()) == ((x * y).shape, (x * y).stride())
    assert fresh.cache_info(f)["outcomes"]["run"] == {"graph": 2}
