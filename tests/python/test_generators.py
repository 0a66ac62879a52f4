"""Generators, coroutines and asynchronous generators as the compiled function: compiled between their suspensions."""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import gc
import weakref

import pytest

import framejit

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("fresh")


def same(got, expected):
    assert type(got) is type(expected)
    if isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            same(a, b)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    else:
        assert got == expected


def ran(f):
    """Parts of it that ran compiled."""
    return framejit.cache_info(f)["outcomes"]["run"].get("graph", 0)


def rounds(x, n):
    y = np.sin(x) * 2
    for i in range(n):
        y = np.cos(y + i) * x
        yield y
    return y * 3


def drained(generator):
    values = []
    while True:
        try:
            values.append(next(generator))
        except StopIteration as end:
            return values, end.value


def test_generators_are_compiled_between_their_suspensions():
    x, f = np.random.rand(4), framejit.compile(rounds)
    for _ in range(3):
        assert type(f(x, 3)) is type(rounds(x, 3))
        same(drained(f(x, 3)), drained(rounds(x, 3)))
    info = framejit.cache_info(f)
    assert info["breaks"] <= 1 and len(f.graphs) <= 5 and ran(f) >= 8, (f.graphs, info)  # the break: range's iterator is advanced
    captures = info["captures"]
    same(drained(f(x * 2, 3)), drained(rounds(x * 2, 3)))
    assert framejit.cache_info(f)["captures"] == captures
    told = framejit.explain(lambda x: sum(rounds(x, 3)))(x)  # where it is consumed
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_what_is_sent_and_thrown_arrives():
    def running(x):
        total, kept = np.zeros_like(x), []
        try:
            while True:
                try:
                    got = yield total * 2
                    total = total + np.sin(got)
                except KeyError as e:
                    kept.append(str(e))
                    total = total - 1
        finally:
            kept.append("closed")
            x += 1
            seen.append(kept)

    x, seen, f = np.random.rand(4), [], framejit.compile(running)
    for _ in range(3):
        results = []
        for make in (f, running):
            own = x.copy()
            g = make(own)
            results.append([next(g), g.send(x), g.throw(KeyError("k")), g.send(x * 2), g.send(x * 3)])
            g.close()
            results[-1].append(own)
            with pytest.raises(StopIteration):
                next(g)
        same(*results)
    assert seen == [["'k'", "closed"]] * 6
    assert len(f.graphs) >= 2 and ran(f) >= 4


def test_generators_alive_together_and_ended_early():
    x, f = np.random.rand(4), framejit.compile(rounds)
    together = [(f(x * k, 5), rounds(x * k, 5)) for k in range(4)]
    for _ in range(3):
        for got, expected in together:
            same(next(got), next(expected))
    del together, got, expected
    gc.collect()
    same(drained(f(x, 2)), drained(rounds(x, 2)))
    assert ran(f) >= 8


def test_a_generator_that_raises_and_one_that_delegates():
    def fails(x):
        yield np.sin(x) * 2
        raise ValueError("here") if x.shape[0] == 4 else StopIteration

    def both(x):
        y = np.cos(x) + 1
        last = yield from rounds(y, 2)
        yield last * 2

    x, f, g = np.random.rand(4), framejit.compile(fails), framejit.compile(both)
    for _ in range(3):
        made = f(x)
        same(next(made), np.sin(x) * 2)
        with pytest.raises(ValueError, match="here"):
            next(made)
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(f(x[:2]))
        same(drained(g(x)), drained(both(x)))
    assert f.graphs and g.graphs


def test_coroutines_are_compiled_between_their_suspensions():
    async def wait(x):
        y = np.sin(x) * 2
        await asyncio.sleep(0)
        return np.cos(y) + 1

    async def outer(x):
        y = (await f(x)) * 2
        return np.sin(await f(y)) * 3

    async def plain(x):
        y = (await wait(x)) * 2
        return np.sin(await wait(y)) * 3

    async def several(make, x):
        return await asyncio.gather(*(make(x * k) for k in range(3)))

    x, f, g = np.random.rand(4), framejit.compile(wait), framejit.compile(outer)
    assert asyncio.iscoroutinefunction(f) and not asyncio.iscoroutinefunction(framejit.compile(rounds))
    for _ in range(4):
        same(asyncio.run(f(x)), asyncio.run(wait(x)))
        same(asyncio.run(g(x)), asyncio.run(plain(x)))
        same(asyncio.run(several(g, x)), asyncio.run(several(plain, x)))
    assert len(f.graphs) == 2 and ran(f) >= 8, framejit.cache_info(f)
    assert len(g.graphs) == 2, g.graphs
    assert framejit.cache_info(f)["breaks"] <= 2 and framejit.cache_info(g)["breaks"] <= 3  # calls of what is awaited


def test_asynchronous_generators_and_contexts():
    async def ticks(x, n):
        for i in range(n):
            x = np.sin(x + i) * 2
            yield x
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def scope(x):
        yield np.cos(x) + 1

    async def use(make, enter, x):
        async with enter(x) as y:
            return [t async for t in make(y, 3)]

    @contextlib.contextmanager
    def scaled(x):
        yield x * 2 + 1

    x, f, g = np.random.rand(4), framejit.compile(ticks), framejit.compile(use)
    entered = contextlib.contextmanager(framejit.compile(scaled.__wrapped__))
    for _ in range(3):
        same(asyncio.run(g(f, scope, x)), asyncio.run(use(ticks, scope, x)))
        with entered(x) as got, scaled(x) as expected:
            same(got, expected)
    assert f.graphs and ran(f) >= 3


def test_consumed_by_others():
    x, f = np.random.rand(4), framejit.compile(rounds)

    def consumer(x):
        return sum(f(x, 3)) + 1

    compiled = framejit.compile(consumer)  # captured with it
    for _ in range(3):
        same(compiled(x), consumer(x))
    assert len(compiled.graphs) == 1 and not framejit.cache_info(compiled)["breaks"], compiled.graphs
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # resumed by other threads than the one that made them
        made = [f(x * k, 3) for k in range(4)]
        for got, expected in zip(pool.map(drained, made), [drained(rounds(x * k, 3)) for k in range(4)]):
            same(got, expected)
    assert ran(f) >= 8
    framejit.reset()  # while one is suspended
    waiting = f(x, 3)
    first = next(waiting)
    framejit.reset()
    same([first, *waiting], list(rounds(x, 3)))


def hooked():
    """CPython's evaluator of frames is not its own."""
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = api._PyInterpreterState_GetEvalFrameFunc.restype = ctypes.c_void_p
    api._PyInterpreterState_GetEvalFrameFunc.argtypes = [ctypes.c_void_p]
    now = api._PyInterpreterState_GetEvalFrameFunc(api.PyInterpreterState_Get())
    return now != ctypes.cast(api._PyEval_EvalFrameDefault, ctypes.c_void_p).value


class Down:
    """An iterator that ends with more than one argument."""

    def __init__(self, n):
        self.n = n

    def __next__(self):
        self.n -= 1
        if self.n < 0:
            raise StopIteration(self.n, "end")
        return self.n


def ends(x, kind):
    yield x * 2
    return {"pair": (1, 2), "nothing": (), "array": x * 3, "list": [x], "text": "text"}.get(kind)


def to_the_end(x, kind):
    it, seen = Down(2) if kind == "class" else ends(x, kind), []
    try:
        while True:
            seen.append(next(it))
    except StopIteration as stop:
        return seen, stop.value, stop.args, x + 1


@pytest.mark.parametrize("kind", ["pair", "nothing", "array", "list", "text", "none", "class"])
def test_what_the_end_of_an_iterator_holds(kind):
    x, compiled = np.arange(3.0), framejit.compile(to_the_end)
    for _ in range(3):
        same(compiled(x, kind), to_the_end(x, kind))
    told = framejit.explain(to_the_end)(x, kind)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_the_frame_hook_stays_for_generators_and_goes_with_the_last():
    x, f = np.random.rand(4), framejit.compile(rounds)
    waiting = f(x, 3)
    for _ in range(30000):  # frames of others, after which a hook that nobody wants is taken away
        framed()
    assert hooked()
    same(next(waiting), next(rounds(x, 3)))
    assert len(f.graphs) == 1
    del waiting
    for _ in range(30000):
        framed()
    assert not hooked()


def framed():
    return None


@pytest.mark.clock
def test_what_is_not_faster_compiled_is_left_to_python_part_by_part():
    x, f = np.random.rand(4), framejit.compile(rounds, options={"leave": True})
    for n in (40, 40, 3):
        same(drained(f(x, n)), drained(rounds(x, n)))
    run = framejit.cache_info(f)["outcomes"]["run"]
    assert run.get("python", 0) >= 2 and run.get("graph", 0) >= 2, run  # both were tried, whichever is faster


def test_references_to_generators_are_framejits_own():
    import weakref

    f = framejit.compile(rounds)
    generator = f(np.ones(2), 3)
    next(generator)
    assert {type(r).__module__ for r in weakref.getweakrefs(generator)} == {"framejit"}  # what dies by one is not seen to die
    same(list(generator), list(rounds(np.ones(2), 3))[1:])
    assert ran(f) > 0


def test_a_generator_in_which_there_is_nothing_is_not_followed(fresh):
    """Once its resumptions have found nothing, most generators run as written: nothing watches them. One is looked at now and then."""

    def numbers(n):
        for i in range(n):
            yield i * i

    def is_followed(f):
        generator = f(6)
        followed = weakref.getweakrefcount(generator) > 0
        assert list(generator) == [0, 1, 4, 9, 16, 25]
        return followed

    def few(compiled):
        captures = framejit.cache_info(compiled)["captures"]
        return sum(is_followed(compiled) for _ in range(2000)) < 1000 and framejit.cache_info(compiled)["captures"] - captures < 100

    # What resumptions have cost is compared with the time since the first: after a time in which the machine stood still more of them are followed.
    compiled = framejit.compile(numbers, options={"leave": True})
    assert is_followed(compiled)
    assert any(few(compiled) for _ in range(6))
    always = framejit.compile(numbers, options={"leave": False})
    assert all(is_followed(always) for _ in range(20))


def test_a_generator_that_comes_to_arrays_is_compiled_all_the_same(fresh):
    """Others of its kind have found nothing, from the places that they were resumed at."""

    def parts(a, n):
        for i in range(n):
            yield i
        yield np.tanh(a * 2.0 + 1.0) * a

    compiled = framejit.compile(parts, options={"leave": True})
    a = np.linspace(0, 1, 1000)
    for n in (2, 3, 2, 3, 2, 3):
        same(list(compiled(a, n)), list(parts(a, n)))
    assert ran(compiled) >= 1
