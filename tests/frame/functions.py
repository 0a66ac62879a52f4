"""Functions that the frame tests cut at every instruction. Each takes (t, n) and must give the same value, exception,
traceback lines and side effects however often it changes hands."""
import contextlib
import gc
import sys
import types


class Token:
    limit = 3

    def __init__(self, v):
        self.v = v
        self.log = []

    def add(self, o, *, k=0):
        return self.v + o + k

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, *a):
        self.log.append(("exit", a[0]))
        return a[0] is KeyError

    @property
    def twice(self):
        return self.v * 2

    def __getitem__(self, k):
        return ("item", k)

    def __setitem__(self, k, v):
        self.log.append(("set", k, v))

    def __delitem__(self, k):
        self.log.append(("del", k))


def line(depth=1):
    f = sys._getframe(depth)
    return f.f_lineno - f.f_code.co_firstlineno


def callee(x, y=1, *, z=2):
    f = sys._getframe(1)
    return (x * y + z, f.f_code.co_name, line(2), sorted(f.f_locals))


def boom(x):
    raise ValueError(x)


def arithmetic(t, n):
    a = t.v * 3
    b = a + n - 2 ** 3 // 2 % 5
    c = callee(a, b)
    b += 1
    d = (-b, +b, ~b, not b, b & 6, b | 9, b ^ 5, b << 2, b >> 1, b / 2)
    return a, b, c, b > a, a is b, a in (1, 12), d, f"{a}-{b!r:>5}-{t.v:03d}", a < b < 100, f"{a!s}"


def loops(t, n):
    s = 0
    for i in range(n):
        if i % 2 == 0:
            s += t.add(i, k=i)
            continue
        if i > 4:
            break
        s += callee(i, z=3)[0]
    else:
        s = -1
    while s > 3:
        s //= 2
    return s


def closures(t, n):
    acc = []

    def inner(q, *, w=n, v: int = 3):
        nonlocal n
        acc.append(q + n + w + v)
        n += 1
        return len(acc)

    r = inner(1) + inner(2)
    n = n + 5
    return r, inner(3, w=1), acc, inner.__annotations__


def tries(t, n):
    out = []
    try:
        out.append(1)
        boom(n)
        out.append(2)
    except KeyError:
        out.append("k")
    except (TypeError, ValueError) as e:
        out.append(("v", e.args, sys.exc_info()[0].__name__, e.__traceback__.tb_lineno - tries.__code__.co_firstlineno))
    finally:
        out.append("f")
    out.append(sys.exc_info()[0])
    try:
        out.append(3)
    except ValueError:
        out.append("never")
    else:
        out.append("else")
    return out


def finally_returns(t, n):
    for i in range(3):
        try:
            if i == 1:
                boom(i)
            t.log.append(i)
        except ValueError:
            try:
                raise KeyError(i) from None
            except KeyError as e:
                t.log.append((repr(e), repr(e.__context__), e.__cause__))
        finally:
            t.log.append("finally")
            if i == 2:
                return t.log
    return 0


def unbound(t, n):
    out = []
    try:
        del zz
    except UnboundLocalError as e:
        out.append((str(e), e.__traceback__.tb_lineno - unbound.__code__.co_firstlineno))
    try:
        n_o_such_global
    except NameError as e:
        out.append(str(e))
    return out


def raise_after_try(t, n):
    try:
        n = n + 1
    except UnboundLocalError:
        return "wrong"
    del zz
    return 1


def withs(t, n):
    with t as q, contextlib.suppress(ValueError):
        r = q.add(n)
        boom(r)
    with t:
        raise KeyError("swallowed")
    with open(__file__) as f:
        first = f.readline()[:3]
    return r, first, t.log


def with_raises(t, n):
    with t:
        t.v = n
        boom(t.v)
    return 1


def uncaught(t, n):
    a = t.v
    b = callee(a)
    try:
        boom(b)
    finally:
        t.log.append("cleanup")
    return 1


def chained(t, n):
    try:
        boom(n)
    except ValueError as e:
        raise RuntimeError("second") from e


def reraised(t, n):
    try:
        try:
            boom(n)
        except ValueError:
            t.log.append(line())
            raise
    except Exception as e:
        t.log.append(line())
        raise e


def comprehensions(t, n):
    xs = [t.add(i) for i in range(n) if i != 2]
    d = {k: v for k, v in zip("abc", xs)}
    s = {x % 4 for x in xs}
    g = sum(x + n for x in xs)
    i = 7
    nested = [[i + j for j in range(2)] for i in xs[:2]]
    return xs, d, s, g, nested, i


def generators(t, n):
    def count(k):
        try:
            for i in range(k):
                got = yield i * n
                if got:
                    t.log.append(got)
        finally:
            t.log.append("closed")
        return "done"

    def outer():
        r = yield from count(2)
        yield r
        yield from (7, 8)

    g = count(5)
    out = [next(g), g.send("x"), next(g)]
    g.close()
    h = count(1)
    try:
        next(h)
        h.throw(KeyError("in"))
    except KeyError as e:
        out.append(str(e))
    return out, list(outer()), t.log


@contextlib.contextmanager
def managed(log):
    log.append("in")
    try:
        yield 5
    except ValueError as e:
        log.append(("caught", str(e)))
    finally:
        log.append("out")


def handled_outside_of_a_generator(t, n):
    def g():
        try:
            yield
            raise TypeError
        except TypeError as e:
            t.log.append((repr(sys.exception()), repr(e.__context__)))
        t.log.append(sys.exc_info()[0])
        yield sys.exc_info()[0]
        yield sys.exc_info()[0]

    it = g()
    next(it)
    try:
        boom(n)
    except ValueError:
        out = [next(it)]
    return out, next(it), t.log


def context_manager(t, n):
    with managed(t.log) as v:
        t.log.append(v)
        boom(v)
    with managed(t.log):
        pass
    return t.log


def stop_in_generator(t, n):
    def g():
        yield 1
        raise StopIteration("bad")

    return list(g())


def star_calls(t, n):
    def take(a, b=2, *rest, c=3, **kw):
        return a, b, rest, c, sorted(kw.items())

    xs, kw = (1, 2, 3), {"c": 4, "d": 5}
    out = [take(*xs), take(*xs, **kw), take(0, *[9], **kw, e=6), take(*iter(xs)), take(b=1, a=2), [*xs, *"ab"], {**kw, "z": 1},
           {*xs, 4}, (*xs, 0)]
    try:
        take(**kw, **kw)
    except TypeError as e:
        out.append(str(e))
    try:
        take(*n)
    except TypeError as e:
        out.append(str(e))
    return out


def unpacking(t, n):
    a, b = 1, 2
    a, b = b, a
    (c, *d), e = [1, 2, 3], 4
    *f, g = range(n)
    out = [a, b, c, d, e, f, g]
    for bad in ((1,), (1, 2, 3), 5):
        try:
            x, y = bad
        except (ValueError, TypeError) as err:
            out.append(str(err))
    try:
        x, *y, z = [1]
    except ValueError as err:
        out.append(str(err))
    return out


def items(t, n):
    xs = list(range(10))
    xs[2] = 5
    xs[3:5] = [0]
    del xs[0]
    t[1] = 2
    t["a":"b"] = 3
    del t[4]
    t.extra = 8
    del t.extra
    d = {"k": 1, n: 2}
    d["k"] += 3
    return xs, xs[1:3], xs[::-1], xs[1:8:2], t[n], t[1:2, ...], t.log, d, t.twice, hasattr(t, "extra")


counter = 0


def globals_(t, n):
    global counter, made_here
    counter += n
    made_here = 3
    r = made_here
    del made_here
    try:
        made_here
    except NameError as e:
        return r, str(e)


class Base:
    def __init__(self, v=4):
        self.v = v

    def m(self, n):
        return n + 1

    @classmethod
    def make(cls, n):
        return cls.__name__, n


class Derived(Base):
    def m(self, n):
        r = super().m(n)
        s = super(Derived, self).m
        return r, s(1), sorted(locals()), __class__.__name__, super().__init__

    @classmethod
    def make(cls, n):
        return super().make(n), super().make


def supers(t, n):
    d = Derived()
    return Derived.m(d, n)[:4], Derived.make(n)[0]


def nested_lines(t, n):
    def g(m):
        return line(2), m
    return [g(1),
            g(2)], (
        g(3)), line()


def imports(t, n):
    import os.path as p
    from collections import OrderedDict, abc
    try:
        from collections import no_such_name
    except ImportError as e:
        m = str(e)[:60]
    return p.join("a", "b"), OrderedDict(a=1), abc.__name__, m


def classes(t, n):
    class Local(Token):
        scale = n

        def get(self):
            return self.v * self.scale + n

    return Local(2).get(), Local.__qualname__


def recursion(t, n):
    def fib(k):
        return k if k < 2 else fib(k - 1) + fib(k - 2)

    return fib(n + 2)


def locals_seen(t, n):
    a = 1
    seen = dict(locals())
    b = [n for n in range(2)]
    frame = sys._getframe()
    seen2 = sorted(frame.f_locals)
    del a
    return sorted(seen), seen2, sorted(frame.f_locals), frame.f_lineno - frame.f_code.co_firstlineno, b


def booleans(t, n):
    x = n and t.v
    y = None or x
    z = [] and 1 or "z"
    if not (x is None or y is not None and z):
        return 1
    w = 1 if x is not None else 2
    assert x, "message"
    return x, y, z, w


def asserts(t, n):
    assert n < 0, ("message", n)


def matches(t, n):
    match [n, {"k": t}]:
        case [int(a), {"k": Token(v=q)}]:
            return a, q
        case _:
            return None


def over_generators(t, n):  # 3.14 inlines them
    whole = all(i < n for i in range(n)), any(i > n for i in range(n)), tuple(t.add(i) for i in range(n))
    return whole, any(boom(i) if i > 1 else False for i in range(n)) if n < 2 else None


def walrus_and_lambda(t, n):
    f = lambda a, b=n: (a, b, (c := a + b), c)
    if (m := f(1)) and len(m) > 2:
        return m, sorted([3, 1, 2], key=lambda k: -k)


def deleted_object(t, n):
    class D:
        def __del__(self):
            f = sys._getframe(1)
            t.log.append((line(2), sorted(k for k in f.f_locals)))

    d = D()
    d = None
    D()
    gc.collect(0)
    return t.log


def bad_operands(t, n):
    out = []
    for f in (lambda: [] + 1, lambda: n(), lambda: t.nope, lambda: {}[n], lambda: len(), lambda: iter(3), lambda: -"a"):
        try:
            f()
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    try:
        raise 5
    except TypeError as e:
        out.append(str(e))
    try:
        try:
            boom(1)
        except 5:
            pass
    except TypeError as e:
        out.append(str(e))
    return out


def exception_groups(t, n):
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as e:
        t.log.append(repr(e))
    except* KeyError as e:
        t.log.append(repr(e))
    return t.log


def coroutines(t, n):
    class Wait:
        def __await__(self):
            got = yield "waiting"
            return got

    async def inner(k):
        return k + await Wait()

    async def outer():
        async with contextlib.AsyncExitStack():
            r = [await inner(i) for i in range(2)]
        return r

    c, out = outer(), []
    try:
        out.append(c.send(None))
        while True:
            out.append(c.send(len(out)))
    except StopIteration as e:
        out.append(e.value)
    return out


ALL = [f for f in list(globals().values())
       if isinstance(f, types.FunctionType) and f.__code__.co_argcount == 2 and f.__code__.co_varnames[:2] == ("t", "n")]
