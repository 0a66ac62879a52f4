"""What stands behind functools.lru_cache is called as often as in eager, also where it raises while it is captured."""

import functools

import numpy as np
import pytest

X = np.arange(4.0)


def program(maxsize):
    log = []

    @functools.lru_cache(maxsize=maxsize)
    def cached(n, scale=1):
        """Raises for what is negative and logs each call."""
        log.append(n)
        if n < 0:
            raise ValueError(f"no {n}")
        return n * scale

    def uncaught(x, n):
        return x * cached(n, scale=2) + cached(1)

    def caught(x, n):
        y = x * 2
        try:
            return y * cached(n)
        except ValueError as e:
            return y + len(str(e))

    def in_a_callee(x, n):
        return caught(x + 1, n) * cached(2)

    return log, cached, [uncaught, caught, in_a_callee]


@pytest.mark.parametrize("maxsize", [None, 4])
@pytest.mark.parametrize("which", range(3))
def test_calls_that_raise_are_made_once(fresh, maxsize, which):
    seen = []
    for compiled in (False, True):
        log, cached, functions = program(maxsize)
        f = fresh.compile(functions[which]) if compiled else functions[which]
        outcomes = []
        for n in (-1, 3, -1, -2, 3, -2, -1):
            try:
                outcomes.append(f(X, n).tolist())
            except ValueError as e:
                frames, t = [], e.__traceback__
                while t:
                    frames.append((t.tb_frame.f_code.co_name, t.tb_lineno))
                    t = t.tb_next
                outcomes.append((str(e), [frame for frame in frames if frame[0] != "test_calls_that_raise_are_made_once"]))
            outcomes.append((tuple(cached.cache_info()), list(log)))
        seen.append(outcomes)
    assert seen[0] == seen[1]


def test_a_call_that_another_makes_first(fresh):
    """The outcome waits for the very call that gave it: others reach the function."""
    log, cached, (uncaught, *_) = program(None)
    f = fresh.compile(lambda x, n: uncaught(x, n))
    for n in (-1, -1):
        with pytest.raises(ValueError, match="no -1"):
            f(X, n)
    assert log == [-1, -1] and cached.cache_info().misses == 2
    assert cached.__wrapped__ is not None and cached(3) == 3 and log == [-1, -1, 3]
