"""Cuts every function of functions.py at every instruction, in every mode of the driver, and compares with CPython alone.

    python sweep.py [function ...]     prints one line a failure and a summary; exit status 1 if anything differs

The extension is framejit's own, or the _framejit found in the folder FRAMEJIT_EXTENSION_DIR.
"""
import gc
import os
import sys
import weakref

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import functions  # noqa: E402


def extension():
    folder = os.environ.get("FRAMEJIT_EXTENSION_DIR")
    if folder:
        sys.path.insert(0, folder)
        import _framejit
        return _framejit
    from framejit import _framejit
    return _framejit


def outcome(fn, token, n):
    try:
        r = ("value", fn(token, n))
    except Exception as e:
        lines, chain = [], e
        while chain is not None:
            tb = chain.__traceback__
            while tb is not None:
                if tb.tb_frame.f_code.co_filename != __file__:
                    code = tb.tb_frame.f_code  # of a call, CPython reports either of two units at one position
                    where = list(code.co_positions())[tb.tb_lasti // 2]
                    lines.append((code.co_name, tb.tb_lineno, where, tb.tb_frame.f_lineno))
                tb = tb.tb_next
            chain = chain.__cause__ or chain.__context__
        r = ("raised", type(e).__name__, str(e), lines)
    return repr(r), repr(token.log)


def run(fj, fn, mode, n, cyclic):
    token = functions.Token(4)
    watch = weakref.ref(token)
    code = None if mode in ("override", "abandon") else fn.__code__
    fj.frame_sweep(code, n, mode)
    try:
        got = outcome(fn, token, 6)
    finally:
        stats = fj.frame_sweep_off()
    del token
    if watch() is not None and (not cyclic or n == 10 ** 9):
        gc.collect()
        if watch() is not None:
            return got + ("leak",), stats
    return got, stats


def leaves_a_cycle(fn):
    """Whether its token dies with the garbage collector only; collecting at every cut would take long."""
    token = functions.Token(4)
    watch = weakref.ref(token)
    outcome(fn, token, 6)
    del token
    return watch() is not None


def sweep(fj, fn, modes=("step", "run", "override"), limit=400):
    """Failures as (function, mode, n, got, expected), and the instructions run."""
    functions.counter = 0
    expected = outcome(fn, functions.Token(4), 6)
    for _ in range(20):
        outcome(fn, functions.Token(4), 6)  # specialise the bytecode
    cyclic = leaves_a_cycle(fn)
    failures, steps = [], 0
    for mode in modes:
        for n in [*range(limit), 10 ** 9]:
            got, stats = run(fj, fn, mode, n, cyclic)
            steps += stats["steps"]
            if got != expected:
                failures.append((fn.__name__, mode, n, got, expected))
            if n != 10 ** 9 and mode != "override" and stats["returned"] + stats["raised"] and not stats["hand_overs"]:
                break  # ran to the end: longer cuts are the same
    return failures, steps


if __name__ == "__main__":
    fj = extension()
    assert fj.frame_unavailable() is None, fj.frame_unavailable()
    total = bad = 0
    for f in functions.ALL:
        if sys.argv[1:] and f.__name__ not in sys.argv[1:]:
            continue
        failures, steps = sweep(fj, f)
        total += steps
        bad += bool(failures)
        for name, mode, n, got, expected in failures[:2]:
            print(f"{name} {mode} after {n} ({len(failures)} cuts differ)\n  got      {got}\n  expected {expected}")
    print(f"{sys.version.split()[0]}: {total} instructions, {bad} functions differ")
    sys.exit(bad != 0)
