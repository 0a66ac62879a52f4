"""Rounds that carry a sum on and write: several compute before any of them writes, with one check for all. Where that fails, each is looked at."""

import warnings

import numpy as np
import pytest

from tests.python.test_loops_compiled import check, llvm_of, scalar_loops  # noqa: F401 (a fixture)

SPECIAL = [np.inf, -np.inf, np.nan, 1.7e308]


def filtered(x, y, a):
    s = 0.0
    for i in range(len(x)):
        s = s + a * (x[i] - s)
        y[i] = s
    return s


def two_written(x, y, z):
    s = t = 0.0
    for i in range(len(x)):
        s += x[i]
        t += s * 0.5
        z[i] = t
        y[i] = s - t
    return s, t


def read_ahead(x, n):
    """Element i is written, and those that later rounds write were read before."""
    s = 0.0
    for i in range(n):
        s = s + x[i + 3] - x[i + 1]
        x[i] = s
    return x


def read_behind(x, n):
    """What a round reads was written two rounds before: such rounds do not compute before they write."""
    s = 0.0
    for i in range(2, n):
        s = s + x[i - 2]
        x[i] = s
    return x


def every_third(x, y):
    s = 0.0
    for i in range(len(x) // 3 - 1, -1, -1):
        s = s + x[3 * i] * x[3 * i + 1]
        y[3 * i] = s
        y[3 * i + 1] = x[3 * i + 2]
    return s


def written_twice(x, y):
    s = 0.0
    for i in range(len(x)):
        y[0] = x[i]
        s += x[i]
        y[i] = s
    return y


def fractions(x, y):
    """One divided by an infinity is a number again: each round is looked at, all of them at once."""
    s = 0.5
    for i in range(len(x)):
        s = 1.0 / (x[i] + s)
        y[i] = s
    return s


def largest_sums(x, y):
    """The sum begins anew, and rounds branch: each looks for itself."""
    s = best = 0.0
    for i in range(len(x)):
        y[i] = y[i] + x[i]
        s = s + y[i]
        if s > best:
            best = s
        if s < 0.25:
            s = 0.0
    return best


def line(n, at=None, special=0.0, dtype="float64"):
    x = np.linspace(-0.5, 1.5, n).astype(dtype)
    if at is not None and at < n:
        x[at] = special
    return x


AT = [0, 1, 6, 7, 8, 9, 15, 16, 40, 1022, 1023, 1024, 1030, 1299]
ARGUMENTS = {  # of a program: for an array of n numbers, and one of three more
    filtered: lambda x, more: [(x, np.zeros_like(x), 0.25), (x, x, 0.25), (more[1:-2], more[:-3], 0.5), (more[:-3], more[1:-2], 0.5), (x[::-1], np.zeros_like(x), 0.25)],
    two_written: lambda x, more: [(x, x, x), (x, np.zeros_like(x), np.zeros_like(x)), (more[:-3], more[1:-2], more[2:-1])],
    read_ahead: lambda x, more: [(more, len(x)), (more, len(x) + 1), (np.float32(0.25) + np.zeros_like(more, np.float32), len(x))],
    read_behind: lambda x, more: [(more, len(x)), (more, len(more)), (more, len(more) + 1)],
    every_third: lambda x, more: [(more, more), (x, np.zeros_like(more)), (more, more[::-1].copy())],
    written_twice: lambda x, more: [(x, x), (more, np.zeros_like(more)), (more[:-3], more[1:-2])],
    fractions: lambda x, more: [(x, np.zeros_like(x)), (x, x), (more[:-3], more[1:-2])],
    largest_sums: lambda x, more: [(x, np.zeros_like(x)), (x, x), (more[:-3], more[1:-2])],
}


@pytest.mark.parametrize("program", ARGUMENTS)
def test_any_number_of_rounds(program):
    sizes = [60, *range(20), 31, 32, 33, 1023, 1024, 1025, 1026, 1032, 1033, 2049]
    check(program, *(call for n in sizes for call in ARGUMENTS[program](line(n), line(n + 3))))


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("program", ARGUMENTS)
def test_a_special_number_in_any_round_of_a_group(program, special):
    calls = [ARGUMENTS[program](line(1300), line(1303))[0]]
    for at in AT:
        calls += ARGUMENTS[program](line(1300, at, special), line(1303, at, special))[:2]
    check(program, *calls)


def test_arrays_that_are_shorter_or_of_other_kinds():
    x = line(50)
    check(filtered, (x, np.zeros_like(x), 0.25), (x, x[:40] * 0, 0.25), (x, x[:1] * 0, 0.25), (x, np.zeros(50, np.float32), 0.25), (x, np.zeros(50, np.int64), 3.0), (x, np.zeros_like(x), np.float32(0.5)), (x, np.zeros_like(x), 2), (x, np.zeros_like(x), np.inf), (x, np.zeros_like(x), np.nan))
    check(filtered, (x, np.zeros_like(x), 0.25), (x.astype(np.int64), x * 0, 0.25), (x.tolist(), x * 0, 0.25), (x, x.tolist(), 0.25), (x + 1j, x * 0j, 0.25))


def test_warnings_that_are_errors_leave_what_was_written():
    def raising(x, y):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return filtered(x, y, 1.5)

    for at in (0, 5, 13, 1029):
        check(raising, (line(1200), line(1200)), (line(1200, at, 1.7e308) * 1.0, line(1200)), (line(1200, at, -np.inf), line(1200)), runs=0, loops=0)
        with np.errstate(all="raise"):
            check(filtered, (line(1200), line(1200), 0.5), (line(1200, at, 1.7e308), line(1200), -1e10), runs=0)


@pytest.mark.parametrize(("name", "grouped"), [("filtered", True), ("two_written", True), ("read_ahead", True), ("read_behind", False)])
def test_rounds_are_grouped(name, grouped):
    program = f"""
import framejit, numpy as np
import test_loops_grouped
x = np.linspace(0, 1, 70_000)
compiled = framejit.compile(test_loops_grouped.{name})
for _ in range(3): compiled(x.copy(), *{{"filtered": (x.copy(), 0.5), "two_written": (x.copy(), x.copy())}}.get({name!r}, (2000,)))
assert compiled.cache_info()["scalar_runs"]
"""
    assert ("\ngrouped:" in llvm_of(program)) == grouped
