"""What stands behind functools.lru_cache is called as often as in eager, also where it raises while it is captured."""

import functools
import os
import subprocess
import sys
import time

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
            seen.append(tuple(g.cache_info()))
        return seen, f

    ours, compiled = run(fresh.compile)
    assert ours == run(lambda f: f)[0]
    assert fresh.cache_info(compiled)["outcomes"]["run"].get("graph") or "none" in name or "no key" in name


def tensor_programs(maxsize):
    import torch

    class Tables:
        def __init__(self):
            self.table, self.log = torch.arange(64.0).reshape(16, 4), []

        @functools.lru_cache(maxsize=maxsize)
        def rows(self, n, offset=0):
            """Of n rows of a table: whatever the cache has is what a call gives, also where the table is another by now."""
            return self.table[offset : offset + n].repeat(2, 1)

        @functools.lru_cache(maxsize=maxsize)
        def view(self, n):
            return self.table[:n]

        @functools.lru_cache(maxsize=maxsize)
        def logged(self, n):
            self.log.append(n)
            return self.table[:n] * 2

        @functools.lru_cache(maxsize=maxsize)
        def of_many_kinds(self, n):
            if n == 5:
                return self.table[:n].double()
            return self.table[:n] if n != 7 else [n]

        @functools.lru_cache(maxsize=maxsize)
        def raises(self, n):
            if n > 6:
                raise ValueError(f"no {n}")
            return self.table[:n]

        def summed(self, x, n):
            return x + self.rows(n).sum() + self.rows(n, offset=1).sum()

        def given(self, x, n):
            return self.rows(n)

        def is_one(self, x, n):
            return x + 1 if self.rows(n) is self.rows(n) else x

        def stored(self, x, n):
            rows = self.rows(n)
            rows += 1
            return rows + x

        def shared(self, x, n):
            part = self.view(n)
            self.table.mul_(1.5)
            return part + x

        def with_a_log(self, x, n):
            return self.logged(n).sum() + x

        def kinds(self, x, n):
            rows = self.of_many_kinds(n)
            return x + rows.sum().float() if isinstance(rows, torch.Tensor) else x + rows[0]

        def caught(self, x, n):
            try:
                return self.raises(n).sum() + x
            except ValueError as e:
                return x + len(str(e))

        def by_a_size(self, x, n):
            return torch.cat([x, self.rows(x.shape[0] // 2, n).sum(1)])

    return Tables


TENSOR_PROGRAMS = ["summed", "given", "is_one", "stored", "shared", "with_a_log", "kinds", "caught", "by_a_size"]


@pytest.mark.parametrize("maxsize", [None, 2, 128])
@pytest.mark.parametrize("name", TENSOR_PROGRAMS)
@pytest.mark.parametrize("dynamic", [True, None])
def test_numbers_that_change_among_the_arguments(fresh, name, maxsize, dynamic):
    torch = pytest.importorskip("torch")
    seen = []
    for compiled in (False, True):
        cls = tensor_programs(maxsize)
        tables = cls()
        f = getattr(cls, name)
        f = fresh.compile(f, dynamic=dynamic) if compiled else f
        outcomes = []
        for step, n in enumerate((4, 3, 4, 5, 6, 7, 8, 3, 4, 4, 5, 9, 9)):
            if step == 6:
                tables.table = tables.table * 2  # what is cached stays
            if step == 9:
                tables.table += 1
            y = f(tables, torch.arange(2.0 * n), n) if name == "by_a_size" else f(tables, torch.arange(3.0)[:1], n)
            caches = [getattr(cls, c) for c in ("rows", "view", "logged", "of_many_kinds", "raises")]
            own = name == "given" and y is cls.rows(tables, n)
            if name == "shared" and not dynamic:  # a call with a number that the capture took as it was counts twice if a graph ends behind it
                caches = []
            outcomes.append((y.tolist(), y.dtype, own, list(tables.log), [tuple(c.cache_info()) for c in caches]))
        seen.append(outcomes)
    for a, b in zip(*seen):
        assert a == b


@pytest.mark.parametrize("name", ["summed", "given", "by_a_size"])
def test_numbers_that_change_are_one_graph(fresh, name):
    torch = pytest.importorskip("torch")
    cls = tensor_programs(128)
    tables, f = cls(), fresh.compile(getattr(cls, name), dynamic=True, fullgraph=True)
    for n in (4, 3, 5, 4, 3, 5):
        f(tables, torch.arange(2.0 * n), n)
    info = f.cache_info()
    assert (info["captures"], info["breaks"], info["recompiles"]) == (1, 0, 0)
    assert info["outcomes"]["run"]["nothing" if name == "given" else "graph"] >= 4


def looked_at(torch, maxsize):
    @functools.lru_cache(maxsize=maxsize)
    def table(n):
        return torch.arange(n).float()

    def shared(g, x, y):
        return x + g(x.shape[0]), g(x.shape[0]) is g(y.shape[0])

    def given(g, x, y):
        return x + g(x.shape[0]), g(x.shape[0]) is y

    def marked(g, x, y):
        return x + g(x.shape[0]), getattr(g(x.shape[0]), "mark", None)

    def two(g, x, y):
        return x + g(x.shape[0]), (g(x.shape[0]) + 1, g(y.shape[0]) * 2)

    return table, {"shared": shared, "given": given, "marked": marked, "two": two}


@pytest.mark.parametrize("maxsize", [None, 8])
@pytest.mark.parametrize("name", ["shared", "given", "marked", "two"])
def test_tables_that_are_looked_at_closer(fresh, name, maxsize):
    """Which object a cache has, and what that carries, is as in eager, also of a cache that replaces the one that was
    captured; each call is counted once, though another table is not known yet."""
    torch = pytest.importorskip("torch")

    def run(compiled):
        (first, programs), (second, _) = looked_at(torch, maxsize), looked_at(torch, maxsize)
        f = fresh.compile(programs[name]) if compiled else programs[name]
        out = []
        for step, (n, m) in enumerate([(4, 3), (3, 4), (3, 3), (5, 2), (2, 5), (4, 4), (5, 6), (4, 3), (3, 3), (5, 5), (2, 5)]):
            g = first if step < 8 else second
            if step >= 8:
                g(n).add_(10), g(m)
            if step % 3 == 2 and name == "marked":
                g(n).mark = step
            x, y = torch.ones(n), g(m) if name == "given" and step % 2 else torch.ones(m)
            a, b = f(g, x, y)
            out.append((a.tolist(), [t.tolist() for t in b] if isinstance(b, tuple) else b))
            if name == "two" and step > 1:
                out.append(tuple(g.cache_info()))
        return out

    assert run(False) == run(True)


@pytest.mark.parametrize("what", ["tuple", "number", "gradients", "random", "written"])
def test_whole_graphs_have_a_version_for_each_number_where_it_must_be(fresh, what):
    torch = pytest.importorskip("torch")
    made = {
        "tuple": lambda n: (n, torch.ones(n)),
        "number": lambda n: n * 2,
        "gradients": lambda n: torch.ones(n, requires_grad=True),
        "random": lambda n: torch.rand(n) * 0,
        "written": lambda n: torch.ones(n),
    }[what]
    g = functools.lru_cache(None)(made)
    body = {"tuple": lambda x: x + g(x.shape[0])[1], "written": lambda x: x.add_(g(x.shape[0]))}.get(what, lambda x: x + g(x.shape[0]))
    f = fresh.compile(body, fullgraph=True)
    for n in (2, 3, 4, 5, 3, 2):
        assert f(torch.ones(n)).tolist() == body(torch.ones(n)).tolist()


def shape_programs(maxsize):
    torch = sys.modules.get("torch")  # without it only the names are asked for

    class Recipe:
        """As in einops: sizes in, and what is to be done with them out, in containers that are the cache's own."""

        def __init__(self):
            self.axes, self.log, self.extra, self.kept = [1, 0], [], 0, None

        @functools.lru_cache(maxsize=maxsize)
        def cooked(self, shape, lengths, scale=1):
            self.seen = None
            sizes = list(shape)
            for axis, length in lengths:
                if sizes[axis] % length:
                    raise ValueError(f"{sizes[axis]} by {length}")
                sizes[axis] //= length
            return sizes, self.axes if len(shape) == 2 else None, {"last": shape[-1] * scale + self.extra, "all": tuple(sizes)}

        @functools.lru_cache(maxsize=maxsize)
        def pure(self, shape, lengths=(), scale=1):
            sizes = list(shape)
            for axis, length in lengths:
                if sizes[axis] % length:
                    raise ValueError(f"{sizes[axis]} by {length}")
                sizes[axis] //= length
            return sizes, self.axes if len(shape) == 2 else None, {"last": shape[-1] * scale + self.extra, "all": tuple(sizes)}

        @functools.lru_cache(maxsize=maxsize)
        def padded(self, n):
            return (n + 7) // 8 * 8

        def read(self, x):
            sizes, axes, more = self.pure(x.shape)
            return x.reshape([*sizes, 1]).permute(*axes, 2).reshape(more["all"]) * more["last"]

        def plain_tuple(self, x):
            return x * self.pure(tuple(x.shape), ((0, 1),), scale=2)[2]["last"] + len(self.pure((x.shape[0], 2))[0])

        def constant_between(self, x):
            return x * self.pure((4, 5))[2]["last"] + self.pure(x.shape)[0][0] + self.pure((4, 5))[0][1] + self.padded(x.shape[0])

        def number(self, x):
            return torch.nn.functional.pad(x, (0, 0, 0, self.padded(x.shape[0]) - x.shape[0]))

        def divided(self, x):
            try:
                return x + self.pure(x.shape, ((0, 2),))[0][0]
            except ValueError as e:
                return x + len(str(e))

        def given(self, x):
            return x + 1, self.pure(x.shape)

        def given_part(self, x):
            return x + 1, self.pure(x.shape)[2]

        def kept_in_an_attribute(self, x):
            self.kept = self.pure(x.shape)[0]
            return x + 1

        def changed(self, x):
            sizes = self.pure(x.shape)[0]
            sizes.append(len(sizes))
            return x * sizes[-1]

        def is_one(self, x):
            a, b = self.pure(x.shape), self.pure((x.shape[0], x.shape[1]))
            return x + (1 if a is b else 2), a[1] is self.axes, a[0] is b[2]["all"]

        def written_before(self, x):
            self.log.append(1)
            return x + self.pure(x.shape)[2]["last"]

        def of_a_function_that_writes(self, x):
            return x + self.cooked(x.shape, ())[2]["last"]

    return Recipe


SHAPE_PROGRAMS = [n for n in vars(shape_programs(None)) if not n.startswith("__") and n not in ("cooked", "pure", "padded")]
ONE_GRAPH = ["read", "plain_tuple", "constant_between", "number", "divided"]
KEPT = ["given", "given_part", "kept_in_an_attribute", "changed", "is_one", "written_before", "of_a_function_that_writes"]


@pytest.mark.parametrize("maxsize", [None, 2, 128])
@pytest.mark.parametrize("name", SHAPE_PROGRAMS)
@pytest.mark.parametrize("dynamic", [True, None])
def test_sizes_in_tuples_among_the_arguments(fresh, name, maxsize, dynamic):
    """What the cache has is what a call gives, the same object too, and each call is counted once."""
    torch = pytest.importorskip("torch")
    seen = []
    for compiled in (False, True):
        cls = shape_programs(maxsize)
        recipe, outcomes = cls(), []
        f = fresh.compile(getattr(cls, name), dynamic=dynamic) if compiled else getattr(cls, name)
        for step, n in enumerate((4, 2, 4, 6, 8, 2, 4, 6, 8, 3, 4, 10, 12)):
            recipe.extra += step == 6  # what is cached stays
            if step == 8 and maxsize == 128:
                cls.pure(recipe, torch.Size((8, 3)))[0].append(5), cls.pure(recipe, (8, 3))[0].pop()
            if step == 9:
                recipe.axes = [1, 0]
            y = f(recipe, torch.arange(3.0 * n).reshape(n, 3))
            first, *rest = y if isinstance(y, tuple) else (y,)
            own = rest and name.startswith("given") and any(rest[0] is o for o in (cls.pure(recipe, (n, 3)), cls.pure(recipe, (n, 3))[2]))
            counts = [] if name in KEPT or dynamic is None else [tuple(c.cache_info()) for c in (cls.pure, cls.padded)]
            outcomes.append((first.tolist(), own, [r for r in rest if isinstance(r, bool)], recipe.log, counts))
            outcomes.append((recipe.kept, recipe.kept is None or recipe.kept is cls.pure(recipe, (n, 3))[0]))
        seen.append(outcomes)
    for a, b in zip(*seen):
        assert a == b


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_sizes_in_tuples_are_one_graph(fresh, name):
    torch = pytest.importorskip("torch")
    cls = shape_programs(128)
    recipe, f = cls(), fresh.compile(getattr(cls, name), dynamic=True, fullgraph=True)
    for n in (4, 8, 6, 4, 8, 6):
        f(recipe, torch.ones(n, 3))
    info = f.cache_info()
    assert (info["captures"], info["breaks"], info["recompiles"]) == (1, 0, 0)
    assert info["outcomes"]["run"]["graph"] >= 4, str(info)


def test_a_cache_whose_list_was_changed_is_asked_each_time(fresh):
    torch = pytest.importorskip("torch")
    cls = shape_programs(None)
    recipe = cls()
    f = fresh.compile(lambda r, x: x * r.pure(x.shape)[0][0], dynamic=True)
    for n in (4, 2, 4):
        assert f(recipe, torch.ones(n, 3)).sum() == 3 * n * n
    cls.pure(recipe, (4, 3))[0][0] = 100
    assert f(recipe, torch.ones(4, 3)).sum() == 1200
    assert f(recipe, torch.ones(2, 3)).sum() == 12


def test_torch_that_is_imported_later(tmp_path):
    """What was looked for before torch was there is found behind its import."""
    pytest.importorskip("torch")
    script = tmp_path / "later.py"
    script.write_text(
        """
import functools
import numpy as np
import framejit

log = []

@functools.lru_cache(None)
def cached(n):
    log.append(n)
    if n < 0:
        raise ValueError(n)
    return n

f = framejit.compile(lambda x, n: x + cached(n))
for _ in range(2):
    try:
        f(np.ones(3), -1)
    except ValueError:
        pass

import torch

@functools.lru_cache
def first(sizes):
    return sizes[0]

g = framejit.compile(lambda x: x + first(x.shape), dynamic=True, fullgraph=True)
for n in (4, 8, 6, 4, 8, 6):
    g(torch.ones(n, 3))
assert g.cache_info()["outcomes"]["run"] == {"graph": 4, "left": 2}, g.cache_info()  # left: what the cache has not yet
"""
    )
    subprocess.run([sys.executable, script], env={**os.environ, "FRAMEJIT_LEAVE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}, check=True)


def around_a_cache(how):
    """Programs of a cache and what asks it. Each reads the counts where the capture ends, so that in one run or the other nothing comes of it."""
    log = []

    @how
    def cached(n, scale=1):
        log.append((n, scale))
        return [n * scale]

    @how
    def fib(n):
        log.append(n)
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    def nothing_comes_of_it(x, n):
        given = cached(n)
        time.time()
        return given, cached.cache_info()

    def a_graph_and_a_break(x, n):
        y = x * cached(n)[0]
        time.time()
        return y + cached(n)[0], cached(n) is cached(n), cached.cache_info()

    def more_than_it_holds(x, n):
        return x + cached(n)[0] + cached(n + 1)[0] + cached(n)[0] + cached(n + 2)[0], cached.cache_info()

    def what_it_drops(x, n):
        return x + cached(n)[0] + cached(100)[0] + cached(200)[0] + cached(100)[0]

    def calls_itself(x, n):
        return x * fib(3) + fib(n + 5) + fib(4) + cached(n)[0]

    @how
    def outer(n):
        log.append(("outer", n))
        return cached(n)[0] + cached(n + 1)[0]

    def another_asks_it(x, n):
        return x + cached(n)[0] + outer(n) + cached(0)[0]

    def keywords_in_another_order(x, n):
        return x + cached(n=3, scale=2)[0] + cached(scale=2, n=3)[0] + cached(3, 2)[0] + cached(3, scale=2)[0]

    def types(x, n):
        return x + cached(1)[0] + cached(1.0)[0] + cached(True)[0] + cached((1,) * n)[0][0]

    def cleared(x, n):
        y = x + cached(n)[0]
        cached.cache_clear()
        return y + cached(n)[0], cached.cache_info()

    return log, (cached, fib, outer), {f.__name__: f for f in (nothing_comes_of_it, a_graph_and_a_break, more_than_it_holds, what_it_drops, calls_itself, another_asks_it, keywords_in_another_order, types, cleared)}


AROUND = ["nothing_comes_of_it", "a_graph_and_a_break", "more_than_it_holds", "what_it_drops", "calls_itself", "another_asks_it", "keywords_in_another_order", "types", "cleared"]


@pytest.mark.parametrize("how", [functools.lru_cache(None), functools.lru_cache(1), functools.lru_cache(2), functools.lru_cache(3), functools.lru_cache(128), functools.lru_cache(typed=True)])
@pytest.mark.parametrize("name", AROUND)
def test_calls_are_counted_and_made_once_whatever_comes_of_the_capture(fresh, name, how):
    seen = []
    for compiled in (False, True):
        log, caches, programs = around_a_cache(how)
        f, outcomes = programs[name], []
        if compiled:
            f = fresh.compile(f)
        for n in (1, 1, 2, 3, 1, 2, 4, 1):
            result = f(X, n)
            outcomes.append(([r.tolist() if isinstance(r, np.ndarray) else r for r in (result if isinstance(result, tuple) else (result,))], list(log)))
            outcomes.append([tuple(c.cache_info()) for c in caches])
        seen.append(outcomes)
    assert seen[0] == seen[1]
    assert name == "nothing_comes_of_it" or fresh.cache_info(f)["outcomes"]["run"]["graph"]


@pytest.mark.parametrize("bound", [None, 2])
@pytest.mark.parametrize("how", ["item", "global", "closure", "callee", "alias", "method", "argument", "its_list", "made", "odd_class"])
def test_what_the_function_writes_was_read_before_it(bound, how, fresh):
    """A capture that begins anew would read what the first one has left there."""

    def program():
        import functools

        class Counter:
            def __init__(self):
                self.n, self.seen = 0, []

            def step(self, n):
                self.n += n

        counter = Counter()
        names = {"state": {"n": 0}, "count": 0, "counter": counter, "holder": [counter], "bound": bound, "functools": functools}
        exec(
            {
                "item": "@functools.lru_cache(bound)\ndef cached(n):\n    state['n'] += n\n    return state['n']\n"
                "def f(x, i):\n    a = state['n']\n    y = x + cached(i)\n    return y, a, state['n']\n",
                "global": "@functools.lru_cache(bound)\ndef cached(n):\n    global count\n    count += n\n    return count\n"
                "def f(x, i):\n    a = count\n    y = x + cached(i)\n    return y, a, count\n",
                "closure": "def make():\n    count = 0\n    @functools.lru_cache(bound)\n    def cached(n):\n        nonlocal count\n        count += n\n        return count\n"
                "    def f(x, i):\n        a = count\n        y = x + cached(i)\n        return y, a, count\n    return f\nf = make()\n",
                "callee": "def step(n):\n    state['n'] += n\n@functools.lru_cache(bound)\ndef cached(n):\n    step(n)\n    return n\n"
                "def f(x, i):\n    a = state['n']\n    y = x + cached(i)\n    return y, a, state['n']\n",
                "made": "class Made:\n    count = 0\n    def __init__(self, n):\n        self.n = n\n        Made.count += n\n"
                "@functools.lru_cache(bound)\ndef cached(n):\n    return Made(n).n\n"
                "def f(x, i):\n    a = Made.count\n    y = x + cached(i)\n    return y, a, Made.count\n",
                "odd_class": "Odd = type('Odd', (), {1: 2, '\\ud800': 3, 'n': 0})\n@functools.lru_cache(bound)\ndef cached(n):\n    Odd.n += n\n    return n\n"
                "def f(x, i):\n    a = Odd.n\n    y = x + cached(i)\n    return y, a, Odd.n\n",
                "alias": "@functools.lru_cache(bound)\ndef cached(n):\n    holder[0].n += n\n    return n\n"
                "def f(x, i):\n    a = counter.n\n    y = x + cached(i)\n    return y, a, counter.n\n",
                "method": "@functools.lru_cache(bound)\ndef cached(n):\n    counter.step(n)\n    return n\n"
                "def f(x, i):\n    a = counter.n\n    y = x + cached(i)\n    return y, a, counter.n\n",
                "argument": "@functools.lru_cache(bound)\ndef cached(counter, n):\n    counter.step(n)\n    return n\n"
                "def f(x, i):\n    a = counter.n\n    y = x + cached(counter, i)\n    return y, a, counter.n\n",
                "its_list": "@functools.lru_cache(bound)\ndef cached(counter, n):\n    counter.seen.append(n)\n    return n\n"
                "def f(x, i):\n    a = len(counter.seen)\n    y = x + cached(counter, i)\n    return y, a, len(counter.seen)\n",
            }[how],
            names,
        )
        return names["f"]

    torch = pytest.importorskip("torch")
    eager, compiled = program(), fresh.compile(program())
    for i in (1, 1, 2, 3, 1, 3):
        expected, got = eager(torch.ones(3), i), compiled(torch.ones(3), i)
        assert expected[1:] == got[1:] and torch.equal(expected[0], got[0]), (i, expected, got)


CLEARED = {
    "always": ("h.cache_clear(); return n + 1", "h(n)"),
    "once": ("if n > 2: h.cache_clear()\n    return n + 1", "h(n)"),
    "between": ("h.cache_clear(); return n + 1", "h(n) + h(n) + h(n + 1)"),
    "in a recursion": ("if n == 3: h.cache_clear()\n    return 1 if n < 1 else h(n - 1) + 1", "h(n)"),
    "by another function": ("clear(); return n", "(h(n), h(n))"),
    "and asked": ("h.cache_clear(); return h.cache_info().misses + n", "h(n)"),
    "not, but asked": ("return h.cache_info().misses + n", "h(n)"),
}


@pytest.mark.parametrize("bound", [None, 2])
@pytest.mark.parametrize("how", CLEARED)
def test_a_function_that_clears_its_own_cache(bound, how, fresh):
    seen = []
    for compiled in (False, True):
        names = {"bound": bound}
        exec(
            f"import functools\n@functools.lru_cache(bound)\ndef h(n):\n    {CLEARED[how][0]}\n"
            f"def clear(): h.cache_clear()\ndef f(n): return {CLEARED[how][1]}\n",
            names,
        )
        f = fresh.compile(names["f"]) if compiled else names["f"]
        seen.append([(f(n), tuple(names["h"].cache_info())) for n in (1, 1, 3, 3, 2, 2, 5, 1, 3, 3)])
    assert seen[0] == seen[1]


def test_a_cached_function_that_names_a_type_is_in_the_graph(fresh):
    torch = pytest.importorskip("torch")
    places = functools.lru_cache(lambda n: torch.arange(n, dtype=torch.float32))
    f = fresh.compile(lambda x: x.to(torch.float32) * places(4) + places(3).sum(), fullgraph=True)
    for _ in range(3):
        assert f(torch.ones(4)).tolist() == [3.0, 4.0, 5.0, 6.0]
