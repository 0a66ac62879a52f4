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


KEYS = {
    "a number that changes": lambda g, x, n: x * g(n)[0],
    "a float that changes": lambda g, x, n: x * g(n + 0.5)[0],
    "a constant tuple": lambda g, x, n: x * g((1, 2))[0],
    "a tuple of what changes": lambda g, x, n: x * g((n % 2, 3))[0],
    "nested": lambda g, x, n: x * g(((1, n % 2), "a"))[0],
    "the same object": lambda g, x, n: (x + 1, g((1, 2)) is g((1, 2)), g(n) is g(n)),
    "an object that is written": lambda g, x, n: (x + 1, len(g((4, 5))), g((4, 5)).append(n), len(g((4, 5)))),
    "a dtype": lambda g, x, n: x * g(x.dtype)[0] + g((x.dtype,))[0],
    "a device": lambda g, x, n: x * g(x.device)[0] + g((x.device, 1))[0],
    "a device made anew": lambda g, x, n: x * g(type(x.device)("cpu"))[0],
    "a range": lambda g, x, n: x * g(range(3))[0],
    "sizes": lambda g, x, n: x * g(x.shape)[0] + g(x.shape[0])[0],
    "sizes as a tuple": lambda g, x, n: x * g(x.shape)[0] + g(tuple(x.shape))[0],
    "equal keys": lambda g, x, n: x * g(1)[0] + g(True)[0] + g(1.0)[0],
    "a frozen set": lambda g, x, n: x * g(frozenset([1]))[0],
    "no key": lambda g, x, n: x * g([1])[0],
    "a key in a key that is none": lambda g, x, n: x * g((1, [2]))[0],
    "by keyword": lambda g, x, n: x * g(n=(1, n))[0],
}


# What the counts of a cache are compared from: a call that a capture has made, and that Python makes again since no segment
# came of it, is counted as a hit.
COUNTS_FROM = {"the same object": 1, "sizes as a tuple": 4, "equal keys": 1}


@pytest.mark.parametrize("how", [functools.lru_cache(None), functools.lru_cache(2), functools.lru_cache(typed=True)])
@pytest.mark.parametrize("name", KEYS)
def test_what_was_cached_stays_whatever_the_key(fresh, name, how):
    """What the function reads changes; the cache goes on with what it knows, counts, and gives the same object."""
    torch = pytest.importorskip("torch")

    def run(compile_):
        state = [2.0]

        @how
        def g(n):
            return [state[0]]

        f, seen = compile_(lambda x, n: KEYS[name](g, x, n)), []
        for call, n in enumerate((2, 3, 4, 5, 2, 3, 2)):
            state[0] += call > 2
            try:
                result = f(torch.ones(3 if call == 4 else 2), n)
                seen.append([v.tolist() if isinstance(v, torch.Tensor) else v for v in (result if isinstance(result, tuple) else (result,))])
            except TypeError as error:
                seen.append(str(error))
            seen.append(tuple(g.cache_info())[COUNTS_FROM.get(name, 0) :])
        return seen, f

    ours, compiled = run(fresh.compile)
    assert ours == run(lambda f: f)[0]
    assert fresh.cache_info(compiled)["outcomes"]["run"].get("graph") or "none" in name or "no key" in name
