"""Exceptions, finally, with, generators, loops, closures: around array code, so that graphs start and end inside of them."""

import asyncio
import contextlib
import functools
import itertools
import logging
import sys
import warnings

import numpy as np
from harness import Programs

program = Programs("numpy")


def a(*shape):
    return (np.arange(int(np.prod(shape))) % 7 - 2.0).reshape(shape)


@program
def prints_between():
    def f(x):
        y = x + 1
        print("sum", y.sum())
        return y * 2

    return f, lambda: (a(4),)


@program
def data_dependent_branch():
    def f(x):
        y = x * 2
        if y.sum() > 3:
            y = y - 1
        else:
            y = y + 1
        return y * y

    signs = iter([1, -1, 1])
    return f, lambda: (a(4) * next(signs),)


@program
def data_dependent_while():
    def f(x):
        n = 0
        while np.abs(x).max() > 0.5:
            x = x / 2
            n += 1
        return x, n

    return f, lambda: (a(5),)


@program
def finally_returns():
    def f(x):
        try:
            y = x + np.ones(99)
        finally:
            return x * 2  # noqa: B012

    return f, lambda: (a(4),)


@program
def finally_overrides_return():
    def f(x, log):
        def inner():
            try:
                return x + 1
            finally:
                log.append("left")
                x[0] = 50

        return inner(), x

    return f, lambda: (a(3), [])


@program
def finally_in_loops():
    def f(x):
        seen = []
        for i in range(5):
            try:
                if i == 1:
                    continue
                if i == 3:
                    break
                x = x * 2
            finally:
                seen.append(i)
        else:
            seen.append("else")
        return x, seen

    return f, lambda: (a(3),)


@program
def exception_chain():
    def f(x):
        try:
            try:
                x.reshape(5)
            except ValueError as error:
                y = x + 1
                raise KeyError("wrapped") from error
        except KeyError as error:
            return y, repr(error), repr(error.__cause__)

    return f, lambda: (a(4),)


@program
def exception_with_context_leaves():
    def f(x):
        y = x * 2
        try:
            {}["missing"]
        except KeyError:
            return y + np.ones(9)

    return f, lambda: (a(4),)


@program
def reraised():
    def helper(x):
        return x @ np.ones((9, 9))

    def f(x, log):
        try:
            return helper(x + 1)
        except ValueError:
            log.append(x * 3)
            raise

    return f, lambda: (a(4), [])


@program
def exception_name_is_deleted():
    def f(x):
        try:
            int("no")
        except ValueError as error:
            x = x + 1
        try:
            return error
        except UnboundLocalError as missing:
            return x, str(missing)

    return f, lambda: (a(3),)


@program
def exception_groups():
    def f(x):
        caught = []
        try:
            raise ExceptionGroup("several", [ValueError("a"), TypeError("b"), ValueError("c")])
        except* ValueError as group:
            caught.append([str(e) for e in group.exceptions])
            x = x + 1
        except* TypeError as group:
            caught.append([str(e) for e in group.exceptions])
            x = x * 2
        return x, caught

    return f, lambda: (a(3),)


@program
def try_else_and_nested():
    def f(x, n):
        out = []
        for divisor in (1, 0, n):
            try:
                value = 6 // divisor
            except ZeroDivisionError as error:
                out.append(str(error))
            else:
                x = x + value
                out.append(value)
        return x, out

    return f, lambda: (a(3), 3)


@program
def context_manager_swallows():
    def f(x):
        y = x + 1
        with contextlib.suppress(ValueError, KeyError):
            y = y * 2
            y = y + np.ones(77)
            y = y * 1000
        return y

    return f, lambda: (a(4),)


@program
def context_manager_order():
    class Step:
        def __init__(self, name, log):
            self.name, self.log = name, log

        def __enter__(self):
            self.log.append(("enter", self.name))
            return self.name

        def __exit__(self, kind, error, tb):
            self.log.append(("exit", self.name, kind and kind.__name__))
            return self.name == "outer"

    def f(x, log):
        with Step("outer", log) as one, Step("inner", log) as two:
            x = x + 1
            log.append((one, two))
            x = x + np.ones(44)
        return x * 2

    return f, lambda: (a(3), [])


@program
def exit_raises():
    class Bad:
        def __enter__(self):
            return self

        def __exit__(self, *exc_info):
            raise RuntimeError("from exit")

    def f(x):
        y = x * 2
        with Bad():
            y = y + 1
        return y

    return f, lambda: (a(3),)


@program
def generator_context_manager():
    @contextlib.contextmanager
    def scaled(x, log):
        log.append("in")
        try:
            yield x * 10
        finally:
            log.append("out")

    def f(x, log):
        with scaled(x, log) as big:
            return big + 1

    return f, lambda: (a(3), [])


@program
def generator_send_and_close():
    def running_sum(log):
        total = np.zeros(2)
        try:
            while True:
                value = yield total
                total = total + value
        finally:
            log.append("closed")

    def f(x, log):
        g = running_sum(log)
        next(g)
        first = g.send(x)
        second = g.send(x * 2)
        g.close()
        return first, second

    return f, lambda: (a(2), [])


@program
def generator_throw():
    def worker(x):
        while True:
            try:
                x = yield x + 1
            except ValueError as error:
                yield str(error)
                return x * 5

    def f(x):
        g = worker(x)
        out = [next(g), g.throw(ValueError("thrown"))]
        try:
            next(g)
        except StopIteration as stop:
            out.append(stop.value)
        return out

    return f, lambda: (a(3),)


@program
def generator_escapes():
    def f(x):
        return (x * i for i in range(3))

    def make():
        return (a(3),)

    return lambda *args: list(f(*args)), make


@program
def generator_is_the_function():
    def f(x):
        for i in range(3):
            x = x + i
            yield x

    return f, lambda: (a(3),)


@program
def generator_half_consumed():
    def f(x):
        g = (x * i for i in itertools.count())
        first = next(g)
        second = next(g)
        return first, second, next(g) + x

    return f, lambda: (a(3),)


@program
def yield_from_and_lazy_order():
    def inner(log):
        log.append("inner")
        yield 1
        log.append("inner again")
        return 5

    def outer(log):
        value = yield from inner(log)
        log.append(value)
        yield value

    def f(x, log):
        return [x * n for n in outer(log)], dict(zip("ab", outer(log)))

    return f, lambda: (a(2), [])


@program
def coroutine_by_hand():
    async def work(x):
        await asyncio.sleep(0)
        return x * 2

    def f(x):
        return asyncio.run(work(x)) + 1

    return f, lambda: (a(3),)


@program
def coroutine_is_the_function():
    async def f(x):
        y = x + 1
        await asyncio.sleep(0)
        return y * 2

    def run(*args):
        return asyncio.run(f(*args))

    return run, lambda: (a(3),)


@program
def late_binding_closures():
    def f(x):
        functions = [lambda y: y * i for i in range(3)]  # noqa: B023
        default = [lambda y, i=i: y * i for i in range(3)]
        return [g(x) for g in functions], [g(x) for g in default]

    return f, lambda: (a(3),)


@program
def nonlocal_counter():
    count = 0
    history = []

    def f(x):
        nonlocal count
        count += 1
        history.append(count)
        return x * count, list(history)

    return f, lambda: (a(3),)


@program
def mutable_default():
    def f(x, seen=[]):  # noqa: B006
        seen.append(len(seen))
        return x + len(seen), list(seen)

    return f, lambda: (a(3),)


@program
def returned_closure():
    def f(x):
        y = x * 2

        def later(z):
            return y + z

        x = None
        return later

    def run(x):
        return f(x)(x), f(x).__closure__[0].cell_contents

    return run, lambda: (a(3),)


@program
def deletes_locals():
    def f(x):
        y = x + 1
        del x
        try:
            return x
        except UnboundLocalError:
            pass
        z = y * 2
        del y
        return z, sorted(locals())

    return f, lambda: (a(3),)


@program
def unbound_local_leaves():
    def f(x, flag):
        y = x * 2
        if flag:
            z = y
        return z + y

    return f, lambda: (a(3), False)


@program
def frame_inspection():
    def f(x):
        y = x + 1
        frame = sys._getframe()
        names = sorted(frame.f_locals)
        return y, names, frame.f_lineno - frame.f_code.co_firstlineno, frame.f_code.co_name, eval("y.sum()")

    return f, lambda: (a(3),)


@program
def caller_inspection():
    def who():
        return sys._getframe(1).f_code.co_name, sys._getframe(1).f_lineno

    def f(x):
        y = x * 2
        name = who()
        return y + 1, name

    return f, lambda: (a(3),)


@program
def exec_and_globals():
    def f(x):
        space = {"x": x}
        exec("y = x * 3", space)
        return space["y"] + 1, "np" in globals()

    return f, lambda: (a(3),)


@program
def warns_with_stacklevel():
    def helper():
        warnings.warn("careful", DeprecationWarning, stacklevel=2)

    def f(x):
        y = x + 1
        helper()
        warnings.warn("plain")
        return y * 2

    return f, lambda: (a(3),)


@program
def warning_filters_inside():
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                warnings.warn("now an error")
            except UserWarning as error:
                return x * 2, str(error)

    return f, lambda: (a(3),)


@program
def logs_to_a_handler():
    def f(x, lines):
        logger = logging.getLogger("hostile")
        handler = logging.Handler()
        handler.emit = lambda record: lines.append((record.getMessage(), record.funcName, record.lineno))
        logger.addHandler(handler)
        logger.warning("shape %s", x.shape)
        y = x + 1
        logger.warning("done")
        logger.removeHandler(handler)
        return y

    return f, lambda: (a(3), [])


@program
def assertion_with_message():
    def f(x):
        y = x + 1
        assert y.shape == (9,), f"shape is {y.shape}"
        return y

    return f, lambda: (a(3),)


@program
def recursion():
    def f(x, depth):
        return x if depth == 0 else f(x * 2, depth - 1) + depth

    return f, lambda: (a(3), 6)


@program
def runaway_recursion_caught():
    def deep(x):
        return deep(x + 1)

    def f(x):
        try:
            return deep(x)
        except RecursionError as error:
            return x * 2, type(error).__name__

    return f, lambda: (a(2),)


@program
def loop_else_and_walrus():
    def f(x):
        total = 0
        while (n := total + 1) < 5:
            total = n
            x = x + n
        else:
            total = -1
        return x, n, total

    return f, lambda: (a(3),)


@program
def mutates_list_while_iterating():
    def f(x):
        items = [1, 2, 3]
        for item in items:
            if len(items) < 6:
                items.append(item * 10)
            x = x + item
        return x, items

    return f, lambda: (a(3),)


@program
def dict_changed_while_iterating():
    def f(x, table):
        for key in table:
            x = x + table[key]
            table[key + "x"] = 1
        return x

    return f, lambda: (a(3), {"a": 1, "b": 2})


@program
def match_statement():
    def f(x, command):
        match command:
            case {"scale": factor, **rest}:
                return x * factor, rest
            case [first, *others] if first > 1:
                return x + first, others
            case str() as text:
                return x, text.upper()
            case _:
                return None

    commands = iter([{"scale": 3, "k": 1}, [2, 5, 6], "word"])
    return f, lambda: (a(3), next(commands))


@program
def star_arguments():
    def g(a_, /, b, *rest, key=1, **more):
        return a_ + b * key + len(rest), rest, more

    def f(x):
        args = (x, 2, 3, 4)
        return g(*args, key=5, z=6), g(x, b=1), g(*[x], **{"b": 2, "q": 1})

    return f, lambda: (a(3),)


@program
def wrong_arguments_fail():
    def g(x, /, y, *, z):
        return x + y + z

    def f(x):
        texts = []
        for args, kwargs in (((x,), {}), ((x, 1), {}), ((x, 1, 2), {"z": 1}), ((1,), {"x": 1, "y": 1, "z": 1}), ((x, 1), {"z": 1, "y": 2})):
            try:
                g(*args, **kwargs)
            except TypeError as error:
                texts.append(str(error))
        y = x + 1
        g(y, w=1)
        return texts

    return f, lambda: (a(3),)


@program
def functools_and_itertools():
    @functools.lru_cache
    def weight(n):
        return n * 0.5

    @functools.singledispatch
    def apply(value, x):
        return x

    @apply.register
    def _(value: int, x):
        return x + value

    def f(x):
        add = functools.partial(lambda p, q, k=0: p + q * k, k=3)
        total = functools.reduce(lambda p, q: p + q, [x, x * 2, x * 3])
        pairs = [p for p in itertools.product([1, 2], repeat=2)]
        return add(x, x), total, weight(3) * x, apply(4, x), apply("s", x), sum(itertools.accumulate([1, 2, 3])), pairs, list(map(lambda v: v * 2, x))

    return f, lambda: (a(3),)


@program
def sorting_with_keys():
    def f(x):
        order = sorted([(3, "c"), (1, "a"), (2, "b")], key=lambda pair: -pair[0])
        best = max(range(4), key=lambda i: (i * 7) % 5)
        return x[best % 3] + len(order), order, min([[3], [1, 2]], key=len)

    return f, lambda: (a(3),)


@program
def stop_iteration_by_hand():
    class Countdown:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    def f(x, counter):
        for n in counter:
            x = x * 2 + n
        return x, next(counter, "empty"), counter.n

    return f, lambda: (a(3), Countdown(3))


@program
def global_function_is_replaced():
    state = {"calls": 0}

    class Library:
        @staticmethod
        def scale(x):
            return x * 2

    def f(x):
        state["calls"] += 1
        if state["calls"] == 3:
            Library.scale = staticmethod(lambda x: x * 100)
        return Library.scale(x)

    return f, lambda: (a(3),)


@program
def an_exception_from_outside_is_raised():
    kept = ValueError("kept")

    def raises(y):
        if y.ndim == 1:
            raise kept

    def f(x, log):
        y = x * 2
        try:
            raises(y)
        except ValueError as error:
            passed, entry = 0, error.__traceback__
            while entry:  # of all calls
                passed, entry = passed + 1, entry.tb_next
            log.append((passed, error is kept, error.__context__ is None))
        return y + 1

    return f, lambda: (a(3), [])


@program
def an_exception_on_the_way_is_raised_again():
    def f(x, log):
        y = x * 2
        try:
            try:
                if y.sum() > -100:
                    raise KeyError("first")
            except KeyError:
                y = y + 1
                raise
        except KeyError as error:
            log.append(error.__traceback__.tb_next is None)
        return y * 3

    return f, lambda: (a(3), [])


@program
def iterators_of_itertools_across_a_break():
    def f(x, log):
        count, some, turns = itertools.count(3), itertools.islice([1, 2, 3, 4, 5], 1, 5), itertools.cycle("abc")
        pairs, while_small = itertools.zip_longest("ab", "c"), itertools.takewhile(lambda n: n < 3, iter([1, 2, 3]))
        y = x * (next(count) + next(some))
        log.append(next(turns) + str(next(pairs)) + str(next(while_small)))
        if y.sum() > -100:
            y = y + next(some)
        log.append((next(count), next(turns), next(pairs), next(while_small), *some))
        return y

    return f, lambda: (a(3), [])
