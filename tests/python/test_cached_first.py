"""The first call of a function behind functools.lru_cache is made while its caller is captured only where it does nothing but compute. Else it is
Python's, at its place, and the program is captured again once the cache has its result."""

import contextlib
import functools
import importlib
import io
import logging
import os
import random
import signal
import sys
import time
import warnings

import numpy as np
import pytest

# What stands in front of it; `h` behind a cache and the program `f`; what is there afterwards.
EFFECTS = {
    "draws of torch": ("", "def h(n): return torch.randn(n)", "def f(x): r = torch.rand(2); return r, x * h(2), torch.rand(1)", "0"),
    "draws of numpy": ("", "def h(n): return float(np.random.randn())", "def f(x): r = np.random.rand(); return x * r, h(2), np.random.rand()", "0"),
    "draws of random": ("", "def h(n): return random.random()", "def f(x): r = random.random(); return x * r, h(2), random.random()", "0"),
    "draws behind a helper": ("def noise(n): return float(torch.randn(n).sum())", "def h(n): return noise(n)", "def f(x): r = torch.rand(2); return x * r * h(2), torch.rand(2)", "0"),
    "draws in a module": ("", "def h(n): return float(torch.nn.Linear(n, n).weight.detach().sum())", "def f(x): r = torch.rand(2); return x * r * h(2), torch.rand(2)", "0"),
    "draws beside a dropout": ("", "def h(n): return torch.randn(n).sum().item()", "def f(x): r = torch.dropout(x, 0.5, True); return r * h(2)", "0"),
    "a shuffle": ("", "def h(n): a = [*range(n)]; random.shuffle(a); return tuple(a)", "def f(x): r = random.random(); return x * r, h(5), random.random()", "0"),
    "a generator of its own": ("G = torch.Generator().manual_seed(1)", "def h(n): return torch.rand(n, generator=G)", "def f(x): return x * torch.rand(2, generator=G), h(2), torch.rand(1, generator=G)", "G.get_state().sum()"),
    "a seed": ("", "def h(n): torch.manual_seed(n); return n", "def f(x): r = torch.rand(2); return r * h(2) + torch.rand(2)", "torch.initial_seed()"),
    "in place of numpy": ("A = np.zeros(2)", "def h(n): np.add(A, n, out=A); return n", "def f(x): a = A.sum(); return x * h(2), a, A.sum()", "A"),
    "getattr by a computed name": ("class N:\n def step(self): S['n'] += 1", "def h(n): getattr(N(), 'st' + 'ep')(); return n", "def f(x): a = S['n']; return x * h(2), a, S['n']", "S"),
    "setattr by a computed name": ("class N: pass\nN.n = 0", "def h(n): setattr(N, 'n' * 1, n); return n", "def f(x): a = N.n; return x * h(2), a, N.n", "N.n"),
    "an import inside": (
        "m = types.ModuleType('mod_inside'); sys.modules['mod_inside'] = m\ndef bump(): S['n'] += 1\nm.bump = bump",
        "def h(n):\n import mod_inside\n mod_inside.bump(); return n",
        "def f(x): a = S['n']; return x * h(2), a, S['n']",
        "S",
    ),
    "a module in a module": (
        "m = types.ModuleType('m'); m.a = types.ModuleType('m.a'); m.a.b = types.ModuleType('m.a.b')\ndef bump(): S['n'] += 1\nm.a.b.bump = bump",
        "def h(n): m.a.b.bump(); return n",
        "def f(x): a = S['n']; return x * h(2), a, S['n']",
        "S",
    ),
    "a property": ("class P:\n n = 0\n @property\n def v(self): P.n += 1; return 3\np = P()", "def h(n): return p.v * n", "def f(x): a = P.n; return x * h(2), a, P.n", "P.n"),
    "a descriptor": ("class D:\n n = 0\n def __get__(self, o, t): D.n += 1; return 3\nclass P: v = D()\np = P()", "def h(n): return p.v * n", "def f(x): a = D.n; return x * h(2), a, D.n", "D.n"),
    "__getattr__": ("class P:\n n = 0\n def __getattr__(self, name): P.n += 1; return 3\np = P()", "def h(n): return p.v * n", "def f(x): a = P.n; return x * h(2), a, P.n", "P.n"),
    "__add__": ("class P:\n n = 0\n def __add__(self, o): P.n += o; return o\np = P()", "def h(n): return p + n", "def f(x): a = P.n; return x * h(2), a, P.n", "P.n"),
    "__bool__": ("class P:\n n = 0\n def __bool__(self): P.n += 1; return True\np = P()", "def h(n): return n if p else 0", "def f(x): a = P.n; return x * h(2), a, P.n", "P.n"),
    "__exit__": ("class P:\n n = 0\n def __enter__(self): return self\n def __exit__(self, *a): P.n += 1\np = P()", "def h(n):\n with p: return n", "def f(x): a = P.n; return x * h(2), a, P.n", "P.n"),
    "a generator function": ("def steps(n):\n for i in range(n): S['n'] += i; yield i", "def h(n): return sum(steps(n))", "def f(x): a = S['n']; return x * h(4), a, S['n']", "S"),
    "a callable object": ("class C:\n n = 0\n def __call__(self, v): self.n += 1; return v\nc = C()", "def h(n): return c(n)", "def f(x): a = c.n; return x * h(2), a, c.n", "c.n"),
    "a bound method of C": ("L = []\nput = L.append", "def h(n): put(n); return n", "def f(x): a = len(L); return x * h(2), a, len(L)", "L"),
    "a default argument": ("", "def h(n, seen=[]): seen.append(n); return len(seen)", "def f(x): return x * h(2), h(3), len(h.__wrapped__.__defaults__[0])", "h.__wrapped__.__defaults__"),
    "an attribute of itself": ("", "def h(n): h.__wrapped__.seen = n; return n", "def f(x): a = getattr(h.__wrapped__, 'seen', 0); return x * h(2), a, h.__wrapped__.seen", "h.__wrapped__.seen"),
    "an iterator": ("IT = iter(range(100))", "def h(n): return next(IT) + n", "def f(x): a = next(IT); return x * h(2), a, next(IT)", "next(IT)"),
    "a partial": ("L = []\nput = functools.partial(L.insert, 0)", "def h(n): put(n); return n", "def f(x): a = len(L); return x * h(2), a, len(L)", "L"),
    "a map": ("L = []", "def h(n): list(map(L.append, range(n))); return n", "def f(x): a = len(L); return x * h(2), a, len(L)", "L"),
    "a sort key": ("def key(v): S['n'] += 1; return -v", "def h(n): return tuple(sorted(range(n), key=key))", "def f(x): a = S['n']; return x * h(3)[0], a, S['n']", "S"),
    "exec": ("", "def h(n): exec('S[\"n\"] += 1'); return n", "def f(x): a = S['n']; return x * h(2), a, S['n']", "S"),
    "globals()": ("", "def h(n): globals()['made'] = n; return n", "def f(x): a = globals().get('made', 0); return x * h(2), a, globals()['made']", "made"),
    "the environment": (
        "os.environ['FIRST_CALLS'] = '0'",
        "def h(n): os.environ['FIRST_CALLS'] = str(n); return n",
        "def f(x): a = int(os.environ['FIRST_CALLS']); return x * h(2), a, int(os.environ['FIRST_CALLS'])",
        "os.environ['FIRST_CALLS']",
    ),
    "gradients off": ("", "def h(n): torch.set_grad_enabled(False); return n", "def f(x): a = torch.is_grad_enabled(); y = x * h(2); return y, a, torch.is_grad_enabled()", "torch.is_grad_enabled()"),
    "the default dtype": ("", "def h(n): torch.set_default_dtype(torch.float64); return n", "def f(x): r = torch.ones(3); y = r * h(2) + torch.ones(3); return y.dtype, r.dtype, y", "torch.get_default_dtype()"),
    "an errstate": ("", "def h(n): np.seterr(divide='ignore'); return n", "def f(x): return x * h(2), np.geterr()['divide']", "np.geterr()['divide']"),
    "a print": ("", "def h(n): print('h', n); return n", "def f(x): print('before'); y = x * h(2); print('after'); return y", "0"),
    "a print alone": ("", "def h(n): print('h', n); return n", "def f(x): y = x.abs() * h(2); print('after', h(3)); return y", "0"),
    "a write to a stream": ("", "def h(n): sys.stdout.write('h'); return n", "def f(x): y = x.abs() * h(2); print('after'); return y", "0"),
    "a log": ("logger = logging.getLogger('first_calls')", "def h(n): logger.warning('h %s', n)", "def f(x): y = x.abs(); h(2); print('after'); return y", "0"),
    "a warning": ("", "def h(n): warnings.warn('h'); return n", "def f(x): y = x.abs() * h(2); print('after'); return y", "0"),
    "a tensor in place": ("T = torch.zeros(2)", "def h(n): t = T; t += n; return n", "def f(x): a = T * 1; return x * h(2), a, T * 1", "T"),
    "a view in place": ("T = torch.zeros(2)", "def h(n): T[:1].add_(n); return n", "def f(x): a = T * 1; return x * h(2), a, T * 1", "T"),
    "out=": ("T = torch.zeros(2)", "def h(n): torch.add(T, n, out=T); return n", "def f(x): a = T.sum(); return x * h(2), a, T * 1", "T"),
    ".data": ("T = torch.zeros(2)", "def h(n): T.data = torch.ones(n); return n", "def f(x): a = T * 1; return x * h(2), a, T * 1", "T"),
    "an attribute of a tensor": ("T = torch.zeros(2); T.mark = 0", "def h(n): T.mark = n; return n", "def f(x): a = T.mark; return x * h(2), a, T.mark", "T.mark"),
    "reads a tensor that was written": ("T = torch.zeros(2)", "def h(n): return T * 2 + n", "def f(x): T.add_(1); return x * h(2), T * 1", "T"),
    "reads a list that was written": ("L = [0]", "def h(n): return len(L) + n", "def f(x): L.append(1); return x * h(2), len(L)", "L"),
    "under no_grad": ("W = torch.ones(2, requires_grad=True)", "def h(n): return W * n", "def f(x):\n with torch.no_grad(): t = h(2)\n return x * t, t.requires_grad", "0"),
    "asks whether gradients are on": ("", "def h(n): return torch.is_grad_enabled()", "def f(x):\n with torch.no_grad(): t = h(2)\n return x * 2, t", "0"),
    "asks whether it is compiled": ("", "def h(n): return torch.compiler.is_compiling()", "def f(x): return x * 2, h(2)", "0"),
    "a helper that clears": ("def clear(): h.cache_clear()", "def h(n): clear(); return n * 2", "def f(x): return (x + 1) * h(3) + h(4)", "0"),
    "a helper that asks": ("def ask(): return h.cache_info().misses", "def h(n): return ask() + n", "def f(x): return (x + 1) * h(3) + h(4) + h(3)", "0"),
    "the program's helper clears": ("def clear(): h.cache_clear()", "def h(n): return n * 2", "def f(x): y = (x + 1) * h(3); clear(); return y + h(3)", "0"),
    "the program's helper asks": ("def ask(): return h.cache_info().misses", "def h(n): return n * 2", "def f(x): y = (x + 1) * h(3); a = ask(); return y + h(4), a, ask()", "0"),
    "another's cache is asked before": ("@functools.lru_cache(maxsize=2)\ndef g(n): return n + 1", "def h(n): return g(n) + g(n + 1) + g(n + 2)", "def f(x): y = x * g(1); return y + h(2) + g(1), g.cache_info().hits", "g.cache_info()"),
    "another's cache draws": ("@functools.lru_cache\ndef g(n): return random.random()", "def h(n): return g(n)", "def f(x): a = random.random(); return x * a, h(2), random.random(), g(2)", "g.cache_info()"),
    "an exception": ("", "def h(n): S['n'] += 1; raise ValueError(n)", "def f(x):\n try: return x * h(2)\n except ValueError as e: return x * 3, str(e), S['n']", "S"),
    "an exception of what is pure": ("", "def h(n): raise ValueError(n)", "def f(x):\n try: return x * h(2)\n except ValueError as e: return x * 3, str(e)", "0"),
    "a class": ("class h:\n made = 0\n def __init__(self, n): h0.made += 1; self.n = n\nh0 = h", "h = h", "def f(x): a = h0.made; return x * h(2).n, a, h0.made", "h0.made"),
    "a method": ("class M:\n n = 0\n @functools.lru_cache\n def table(self, k): self.n += k; return k\nm = M()", "def h(n): return n", "def f(x): a = m.n; return x * m.table(2) + h(3), a, m.n", "(m.n, M.table.cache_info())"),
    "a class method": ("class M:\n n = 0\n @classmethod\n @functools.lru_cache\n def table(cls, k): cls.n += k; return k", "def h(n): return n", "def f(x): a = M.n; return x * M.table(2) + h(3), a, M.n", "M.n"),
    "an abstract class": ("import abc\nclass A(abc.ABC): pass\nclass B: pass\nb = B()", "def h(n): A.register(B); return n", "def f(x): a = isinstance(b, A); return x * h(2), a, isinstance(b, A)", "isinstance(b, A)"),
    "a counter of itertools": ("import itertools\nC = itertools.count()", "def h(n): return next(C) + n", "def f(x): a = next(C); return x * h(2), a, next(C)", "next(C)"),
    "a context variable": ("import contextvars\nV = contextvars.ContextVar('V', default=0)", "def h(n): V.set(n); return n", "def f(x): a = V.get(); return x * h(2), a, V.get()", "V.get()"),
    "a hook": ("L = []\nW = torch.ones(2, requires_grad=True)", "def h(n): W.register_hook(L.append); return n", "def f(x): return x * h(2) * W", "len(W._backward_hooks or ())"),
    "gradients": ("W = torch.ones(2, requires_grad=True)", "def h(n): (W * n).sum().backward(); return n", "def f(x): a = W.grad is None; return x * h(2), a", "W.grad"),
    "a dict's view": ("D = {'a': 1}\nV = D.keys()", "def h(n): D[n] = n; return n", "def f(x): a = len(V); return x * h(2), a, len(V)", "D"),
    "heapq": ("import heapq\nL = [3]", "def h(n): heapq.heappush(L, n); return n", "def f(x): a = L[0]; return x * h(2), a, L[0]", "L"),
    "a deque": ("import collections\nL = collections.deque(maxlen=2)", "def h(n): L.append(n); return n", "def f(x): a = len(L); return x * h(2), a, len(L)", "L"),
    "a subclass": ("class B: pass", "def h(n):\n class S(B): pass\n return S", "def f(x): a = len(B.__subclasses__()); k = h(2); return x * 2, a, len(B.__subclasses__())", "len(B.__subclasses__())"),
    "a subclass that is told of": ("class B:\n n = 0\n def __init_subclass__(cls): B.n += 1", "def h(n):\n class S(B): pass\n return S", "def f(x): a = B.n; k = h(2); return x * 2, a, B.n", "B.n"),
    "__del__": ("class B:\n n = 0\n def __del__(self): B.n += 1", "def h(n): B(); return n", "def f(x): a = B.n; return x * h(2), a, B.n", "B.n"),
    "a decorator of Python's": ("@functools.singledispatch\ndef g(n): S['n'] += n; return n", "h = g", "def f(x): a = S['n']; return x * h(2), a, S['n']", "S"),
    "a context of Python's": ("import contextlib\n@contextlib.contextmanager\ndef c(): S['n'] += 1; yield\n@c()\ndef g(n): return n", "h = g", "def f(x): a = S['n']; return x * h(2), a, S['n']", "S"),
    "behind two caches": ("@functools.lru_cache\ndef g(n): S['n'] += n; return n\n@functools.lru_cache\ndef g2(n): return g(n) + 1", "def h(n): return g2(n)", "def f(x): a = S['n']; return x * h(2) * g2(2), a, S['n']", "(S, g.cache_info(), g2.cache_info())"),
    "keys that change": ("K = [0]", "def h(n): S['n'] += n; return n", "def f(x): K[0] += 1; a = S['n']; return x * h(K[0]), a, S['n']", "(S, K)"),
    "a function's code": ("def g(): return 1\ndef g2(): return 2", "def h(n): g.__code__ = g2.__code__; return n", "def f(x): a = g(); return x * h(2), a, g()", "g()"),
    "module.train": ("M = torch.nn.Dropout(0.5)", "def h(n): M.eval(); return n", "def f(x): a = M.training; return x * h(2), a, M.training", "M.training"),
    "a buffer": ("M = torch.nn.BatchNorm1d(2)", "def h(n): return M(torch.ones(n, 2)).sum().item()", "def f(x): a = M.running_mean * 1; return x * h(2), a, M.running_mean * 1", "M.running_mean"),
    "threads": ("torch.set_num_threads(1)", "def h(n): torch.set_num_threads(n); return n", "def f(x): a = torch.get_num_threads(); return x * h(2), a, torch.get_num_threads()", "torch.get_num_threads()"),
    "a function of Python's that draws": ("class O:\n def __deepcopy__(self, memo): return torch.rand(2)\no = O()", "import copy; h = copy.deepcopy", "def f(x): r = torch.rand(2); return x * r, h(o)", "0"),
    "a function of Python's behind a write": ("class O: pass\no = O(); o.t = torch.zeros(2)", "import copy; h = copy.deepcopy", "def f(x): o.t.add_(1); return h(o).t + x", "o.t"),
    "a method of Python's that logs": ("LOG = logging.getLogger('first_calls')", "h = logging.Logger.warning", "def f(x): print('before'); h(LOG, 'cached'); print('behind'); return x", "0"),
    "a function of NumPy's that sets": ("", "h = np.seterr", "def f(x): a = np.log(np.zeros(1)); h('ignore'); return x, a, np.geterr()", "np.seterr(all='warn')"),
    "a variable of the program": ("import time\nQ = [None]", "def h(n): return Q[0]()", "def f(x):\n n = 1\n def g(): return n\n Q[0] = g; time.sleep(0)\n a = h(0); n = 2\n return x + h(1), a", "0"),
    "a variable of the program, by its cell": ("import time\nQ = [None]", "def h(n): return Q[0].__closure__[0].cell_contents", "def f(x):\n n = 1\n def g(): return n\n Q[0] = g; time.sleep(0)\n a = h(0); n = 2\n return x + h(1), a", "0"),
    "a variable of a generator": ("Q = [None]", "def h(n): return Q[0]()", "def f(x):\n def steps():\n  n = 1\n  Q[0] = lambda: n\n  yield h(0)\n  n = 5\n  yield x + h(1)\n  n = 7\n  yield x + h(2)\n return list(steps())", "0"),
    "a not-a-number": ("L = []", "def h(n): return [n]", "def f(x): L.append(h(float('nan'))); return x * 2, len({id(q) for q in L})", "0"),
    "a not-a-number in a tuple": ("L = []", "def h(n): return [n]", "def f(x): L.append(h((1, float('nan')))); return x * 2, len({id(q) for q in L})", "0"),
    "a complex not-a-number": ("L = []", "def h(n): return [n]", "def f(x): L.append(h(complex('nan'))); return x * 2, len({id(q) for q in L})", "0"),
    "an object made inside, twice": ("class O: v = 1", "def h(o): return [o.v]", "def f(x): o = O(); a = h(o); o.v = 5; b = h(o); a.append(0); return x * b[0], len(b), a is b", "0"),
    "a tensor made inside, twice": ("", "def h(t): return t * 2", "def f(x): y = x + 1; a = h(y); y.add_(1); b = h(y); return a is b, b", "0"),
    "a tensor made inside and draws": ("", "def h(t): return torch.rand(1)", "def f(x): y = x + 1; return h(y) - h(y), h(y) is h(y)", "0"),
    "a tensor made inside that stays": ("L = []", "def h(t): return random.random()", "def f(x): y = x + 1; L.append(y); return h(y)", "[h(t) for t in L[-2:]]"),
    "a cache made inside": ("", "def h(n): return n", "def f(x): g = functools.lru_cache(lambda n: random.random()); return x * h(1), g(1) - g(1), tuple(g.cache_info())", "0"),
    "the recursion limit": (
        "LIMIT = sys.getrecursionlimit()",
        "def h(n): sys.setrecursionlimit(LIMIT + n); return n",
        "def f(x): a = sys.getrecursionlimit() - LIMIT; return x * h(2), a, sys.getrecursionlimit() - LIMIT",
        "sys.setrecursionlimit(LIMIT)",
    ),
}


@contextlib.contextmanager
def as_before():
    torch = pytest.importorskip("torch")
    threads, errors = torch.get_num_threads(), np.geterr()
    try:
        yield torch
    finally:
        (torch.set_default_dtype(torch.float32), torch.set_grad_enabled(True), torch.set_num_threads(threads), np.seterr(**errors))
        sys.modules.pop("mod_inside", None), os.environ.pop("FIRST_CALLS", None)


def told(torch, value):
    if isinstance(value, (tuple, list)):
        return [told(torch, v) for v in value]
    return (value.tolist(), value.dtype) if isinstance(value, torch.Tensor) else str(value)


def run(torch, program, bound, compile_):
    """What six calls give, print and leave behind."""
    front, cached, body, after = program
    modules = ("functools", "logging", "math", "os", "random", "re", "sys", "types", "warnings")
    names = {name: importlib.import_module(name) for name in modules} | {"np": np}
    names |= {"torch": torch, "S": {"n": 0}, "__name__": "first_calls"}
    exec(f"{front}\n{cached}\n", names)
    names["h"] = functools.lru_cache(bound)(names["h"])
    exec(body, names)
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    f, out = compile_(names["f"]), []
    for call in range(6):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            handler = logging.StreamHandler(text)
            logging.getLogger("first_calls").addHandler(handler)
            try:
                result = told(torch, f(torch.full((2,), float(call))))
            except Exception as e:
                result = repr(e)
            finally:
                logging.getLogger("first_calls").removeHandler(handler)
        out.append((result, text.getvalue(), [str(w.message) for w in warned], tuple(names["h"].cache_info()), told(torch, eval(after, names))))
    out.append((random.random(), np.random.rand(), torch.rand(1).item()))
    return out, f


@pytest.mark.parametrize("bound", [None, 2])
@pytest.mark.parametrize("name", EFFECTS)
def test_effects_of_a_first_call_come_at_their_place(fresh, name, bound):
    with as_before() as torch:
        expected, _ = run(torch, EFFECTS[name], bound, lambda f: f)
    with as_before() as torch:
        got, _ = run(torch, EFFECTS[name], bound, fresh.compile)
    assert got == expected


# What libraries do behind such a cache: one graph at the first call already.
PURE = {
    "a table": ("", "def h(n): return torch.arange(n).float()", "def f(x): return x * h(2)"),
    "a mask that is written": ("", "def h(n): m = torch.empty(n, n); m.fill_(float('-inf')); m.triu_(1); m[0, 0] = 1; return m", "def f(x): return x + h(2)"),
    "rotary frequencies": ("", "def h(n, base=10000.0):\n inv = 1.0 / base ** (torch.arange(0, n, 2).float() / n)\n t = torch.outer(torch.arange(n).float(), inv)\n return torch.cat([t.cos(), t.sin()], -1)", "def f(x): return x * h(2)[0]"),
    "a window": ("", "def h(n): return torch.hann_window(n) / n", "def f(x): return x * h(2)"),
    "a table of numpy": ("", "def h(n): m = np.zeros(n); m[0] = 1; return m", "def f(x): return x * float(h(3)[0])"),
    "containers of its own": ("", "def h(n):\n s, d, l = set(), {}, []\n for i in range(n): s.add(i); d[i] = s; d.setdefault(i, 0); l.append(i); l.sort()\n return len(s) + len(l)", "def f(x): return x * h(3)"),
    "a map of dtypes": ("D = {torch.float32: 2, torch.float64: 3}", "def h(t): return D[t]", "def f(x): return x * h(x.dtype)"),
    "a regular expression": ("", "def h(t): m = re.match(r'(\\w+)_(\\d+)', t); return int(m.group(2))", "def f(x): return x * h('scale_3')"),
    "a text": ("", "def h(t): return tuple(p.strip() for p in t.split('->'))", "def f(x): return x * len(h('a b -> b'))"),
    "a config": ("class C: pass\nc = C(); c.heads = 4; c.more = {'a': [1, 2]}", "def h(n): return c.heads * n + c.more['a'][1]", "def f(x): return x * h(2)"),
    "itself": ("", "def h(n): return n if n < 2 else g(n - 1) + g(n - 2)", "g = h\ndef f(x): return x * h(12)"),
    "itself, deeply": ("", "def h(n): return 0 if n < 1 else g(n - 1) + 1", "g = h\ndef f(x): return x * h(40)"),
    "another cache": ("@functools.lru_cache\ndef g(n): return n + 1", "def h(n): return g(n) + g(n + 1) + g(n)", "def f(x): return x * h(2) + g(2)"),
    "an object that it makes": ("class P:\n def __init__(self, n): self.n = n; self.seen = [n]\n def grow(self): self.seen.append(self.n); return self", "def h(n): return P(n).grow()", "def f(x): return x * len(h(2).seen)"),
    "a named tuple": ("import collections\nP = collections.namedtuple('P', 'a b')", "def h(n): return P(n, n + 1)", "def f(x): return x * h(2).b"),
    "math": ("", "def h(n): return math.sqrt(n) + math.log2(n) + math.gcd(n, 4)", "def f(x): return x * h(2)"),
    "a loop over sizes": ("", "def h(n): return [(i, j) for i in range(n) for j in range(i)]", "def f(x): return x * len(h(4))"),
    "behind an in-place write": ("", "def h(n): return torch.arange(n).float()", "def f(x): y = x + 1; y.mul_(2); return y * h(2)"),
    "behind a write to the input": ("", "def h(n): return torch.arange(n).float()", "def f(x): x.mul_(2); return x * h(2)"),
    "behind a draw": ("", "def h(n): return torch.arange(n).float()", "def f(x): return torch.rand(2) * x * h(2)"),
    "a closure": ("def make(k):\n def inner(n): return n * k\n return inner", "h = make(3)", "def f(x): return x * h(2)"),
    "a lambda of a partial": ("def scaled(k, n): return n * k", "h = functools.partial(scaled, 3)", "def f(x): return x * h(2)"),
    "a type": ("", "h = torch.finfo", "def f(x): return x * h(torch.float32).eps"),
    "bools and texts": ("", "def h(n): return 'big' if n > 1 else 'small'", "def f(x): return x * 2 if h(2) == 'big' else x"),
}


@pytest.mark.parametrize("bound", [None, 64])
@pytest.mark.parametrize("name", PURE)
def test_what_only_computes_is_one_graph_at_once(fresh, name, bound):
    with as_before() as torch:
        expected, _ = run(torch, (*PURE[name], "0"), bound, lambda f: f)
        got, f = run(torch, (*PURE[name], "0"), bound, lambda f: fresh.compile(f, fullgraph=True))
    assert got == expected
    info = f.cache_info()
    assert (info["captures"], info["breaks"], info["recompiles"]) == (1, 0, 0), info["break_reasons"]


def test_the_graph_ends_before_the_first_call_alone(fresh):
    torch = pytest.importorskip("torch")
    seen = []

    @functools.lru_cache
    def h(n):
        seen.append(n)
        return n * 2

    body = lambda x: (x + 1).abs() * h(3)  # noqa: E731
    x = torch.ones(2)
    told = fresh.explain(body)(x)
    (reason,) = told.break_reasons
    assert "the first one of a functools.lru_cache" in reason and "writes to what lies outside" in reason and seen == [3]
    h.cache_clear()
    f = fresh.compile(body)
    for _ in range(3):
        assert torch.equal(f(x), (x + 1).abs() * 6)
    before = f.cache_info()
    assert torch.equal(f(x), (x + 1).abs() * 6) and seen == [3, 3]
    after = f.cache_info()
    assert after["captures"] == before["captures"], after
    assert after["outcomes"]["run"]["graph"] == before["outcomes"]["run"]["graph"] + 1, after  # one for all of it


def test_a_whole_graph_comes_behind_the_first_call(fresh):
    torch = pytest.importorskip("torch")
    seen = []

    @functools.lru_cache
    def h(n):
        seen.append(n)
        return torch.rand(n)

    f = fresh.compile(lambda x: x.abs() * h(3), fullgraph=True)
    first = f(torch.ones(3))
    assert all(torch.equal(f(torch.ones(3)), first) for _ in range(4)) and seen == [3]
    info = f.cache_info()
    assert info["breaks"] == 0 and info["outcomes"]["run"] == {"python": 1, "graph": 4}, info


def test_the_variables_of_a_compiled_generator_are_as_it_wrote_them(fresh):
    torch = pytest.importorskip("torch")
    seen = []
    for decorate in (lambda f: f, fresh.compile):
        of = [None]
        h = functools.lru_cache(lambda n, of=of: of[0]() + n)

        def steps(x, of=of, h=h):
            n = 1
            of[0] = lambda: n
            yield x
            n = 5
            yield x + h(0)
            n = 7
            yield x + h(50)

        g = decorate(steps)
        seen.append([[t.tolist() for t in g(torch.zeros(2))] for _ in range(3)] + [tuple(h.cache_info())])
    assert seen[0] == seen[1]


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("caught", [False, True])
def test_an_exception_from_elsewhere_that_meets_the_call_is_the_programs(fresh, caught, fullgraph):
    torch = pytest.importorskip("torch")

    def handler(*_):
        raise Interrupted

    def run(compile_):
        h = functools.lru_cache(lambda n: n + len([sorted(range(100000), key=abs) for i in range(40)]))

        def plain(x):
            return x * h(2)

        def catches(x):
            try:
                return x * h(2)
            except Interrupted:
                return x * 3

        f, seen = compile_(catches if caught else plain), []
        before = signal.signal(signal.SIGALRM, handler)
        try:
            for again in range(3):
                if not again:
                    signal.setitimer(signal.ITIMER_REAL, 0.02)
                try:
                    seen.append(f(torch.ones(2)).tolist())
                except Interrupted:
                    seen.append("interrupted")
                seen.append(tuple(h.cache_info()))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return seen

    expected = run(lambda f: f)
    assert expected[:2] == [[3.0, 3.0] if caught else "interrupted", (0, 1, 128, 0)]
    assert run(lambda f: fresh.compile(f, fullgraph=fullgraph)) == expected


def test_what_the_program_never_comes_to_waits_for_nobody(fresh):
    torch = pytest.importorskip("torch")
    scale = [1]

    @functools.lru_cache
    def h(n):
        return n * scale[0]

    def body(x):
        a = h(1)
        time.sleep(0)
        return x * a

    with pytest.raises(fresh.BreakError, match="sleep"):
        fresh.compile(body, fullgraph=True)(torch.ones(2))
    assert tuple(h.cache_info()) == (0, 0, 128, 0)
    scale[0] = 2
    assert h(1) == 2 and tuple(h.cache_info()) == (0, 1, 128, 1)


def test_as_many_first_calls_as_there_are_keys_are_left_to_python(fresh):
    torch = pytest.importorskip("torch")
    seen = []

    @functools.lru_cache(4)
    def h(n):
        if n < 0:
            raise ValueError(n)
        seen.append(n)
        return n * 2

    f = fresh.compile(lambda x, n: x * h(n), fullgraph=True, dynamic=False)
    for n in range(12):
        assert f(torch.ones(2), n).tolist() == [2.0 * n] * 2
        with pytest.raises(ValueError):
            f(torch.ones(2), -1)
    assert seen == list(range(12))
    assert "graph" not in f.cache_info()["outcomes"]["run"]
    assert f(torch.ones(2), 11).tolist() == [22.0] * 2 and f.cache_info()["outcomes"]["run"]["graph"] == 1


def test_a_cache_that_never_learns_is_no_whole_graph(fresh):
    torch = pytest.importorskip("torch")
    seen = []

    @functools.lru_cache(1)
    def h(n):
        seen.append(n)
        return n * 2

    f = fresh.compile(lambda x: x * h(1) * h(2), fullgraph=True)
    with pytest.raises(fresh.BreakError, match="lru_cache"):
        for _ in range(20):
            f(torch.ones(2))
    assert 2 <= len(seen) < 40


@pytest.mark.parametrize("given", ["", "x"], ids=["constants", "a tensor"])
def test_a_first_call_where_no_torch_function_is_asked(fresh, given):
    """It is made as it is in the program: with `__torch_function__` disabled."""
    torch = pytest.importorskip("torch")

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return super().__torch_function__(function, types, args, kwargs or {}) * 10

    held = torch.ones(2).as_subclass(Loud)

    def asked(*a):
        return torch._C._is_torch_function_enabled(), float((held.as_subclass(torch.Tensor) + 1).sum()) if not a else 0.0

    def run(compiles):
        cached = functools.lru_cache(lambda *a: asked(*a))

        def f(x):
            with torch._C.DisableTorchFunctionSubclass():
                on, number = cached(*(() if not given else (x.shape,)))
            return x + number, on, cached(1)

        f = compiles(f)
        return [f(torch.ones(3)) for _ in range(3)], cached.cache_info()

    (ours, counted), (eager, expected) = run(fresh.compile), run(lambda f: f)
    assert counted == expected
    for a, b in zip(ours, eager, strict=True):
        assert torch.equal(a[0], b[0]) and a[1:] == b[1:]
