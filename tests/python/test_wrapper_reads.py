"""What the code of a class of wrappers reads, in all the ways in which Python code reads, changed between calls: guarded, or not captured."""

import threading

import framejit
import pytest

torch = pytest.importorskip("torch")
import framejit._tape  # noqa: E402
from test_wrapper_code import LOG, ends, f, reader, steps  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")

IMPORTS = """
import abc, builtins, collections, contextlib, contextvars, copy, dataclasses, functools, numbers, operator, sys, threading, types
import numpy as np, torch
S = [1.0]
"""
OBJECT = "class C: scale = 1.0\nc = C()\nclass D: scale = 2.0"
GUARDED = True
# (what there is, what is read, the change, is it guarded?, the way back of what the process has in common)
ROWS = [
    ("", "getattr(cls, 'extra', 1.0)", "W.extra = 2.0", GUARDED),
    ("", "cls.extra if hasattr(cls, 'extra') else 1.0", "W.extra = 2.0", GUARDED),
    ("", "getattr(torch, 'an_extra', 1.0)", "torch.an_extra = 2.0", GUARDED, "del torch.an_extra"),
    ("torch.an_extra = lambda: 1.0", "torch.an_extra()", "torch.an_extra = lambda: 2.0", GUARDED, "del torch.an_extra"),
    ("", "getattr(torch.Tensor, 'an_extra', 1.0)", "torch.Tensor.an_extra = 2.0", GUARDED, "del torch.Tensor.an_extra"),
    ("", "float(abs(-1.0))", "abs = lambda x: 2.0", GUARDED),
    ("", "float(max(1.0, .5))", "builtins.max = lambda *a, old=max: 1 + old(*a)", GUARDED, "builtins.max = getattr(max, '__kwdefaults__', {}).get('old', max)"),
    (OBJECT, "c.scale", "c.scale = 2.0", GUARDED),
    (OBJECT, "c.scale", "C.scale = 2.0", GUARDED),
    (OBJECT, "c.scale", "c.__class__ = D", GUARDED),
    (OBJECT, "c.scale", "c.__dict__ = {'scale': 2.0}", GUARDED),
    (OBJECT, "vars(C)['scale']", "C.scale = 2.0", GUARDED),
    (OBJECT, "operator.attrgetter('scale')(C)", "C.scale = 2.0", GUARDED),
    (OBJECT, "float('{0.scale}'.format(c))", "C.scale = 2.0", GUARDED),
    (OBJECT, "copy.copy(c).scale", "C.scale = 2.0", GUARDED),
    (OBJECT + "\nget = operator.attrgetter('scale')", "get(c)", "c.scale = 2.0", False),
    ("class C:\n def __getattr__(self, name): return S[0]\nc = C()", "c.any", "S[0] = 2.0", GUARDED),
    ("class C:\n def __getattr__(self, name): return S[0]\nclass D(C): pass\nc = D()", "c.any", "C.any = 2.0", GUARDED),
    ("class C:\n scale = property(lambda self: S[0])\nc = C()", "c.scale", "S[0] = 2.0", GUARDED),
    ("class C:\n scale = property(lambda self: S[0])\nc = C()", "c.scale", "C.scale = 2.0", GUARDED),
    ("class G:\n def __get__(self, o, c): return S[0]\nclass C: scale = G()\nc = C()", "c.scale", "S[0] = 2.0", GUARDED),
    ("class M(type):\n scale = property(lambda cls: S[0])\nclass C(metaclass=M): pass", "C.scale", "S[0] = 2.0", GUARDED),
    ("class A: scale = 1.0\nclass D: scale = 2.0\nclass C(A):\n scale = 5.0\n def get(self): return super().scale\nc = C()", "c.get()", "A.scale = 2.0", GUARDED),
    ("class A: scale = 1.0\nclass D: scale = 2.0\nclass C(A):\n scale = 5.0\n def get(self): return super().scale\nc = C()", "c.get()", "C.__bases__ = D,", GUARDED),
    ("class C:\n def __float__(self): return S[0]\nc = C()", "float(c)", "S[0] = 2.0", GUARDED),
    ("class C:\n def __mul__(self, n): return S[0] * n\nc = C()", "c * 1.0", "C.__mul__ = lambda self, n: 2.0", GUARDED),
    ("class C:\n def __call__(self): return S[0]\nc = C()", "c()", "S[0] = 2.0", GUARDED),
    ("class C:\n def __enter__(self): return S[0]\n def __exit__(self, *a): pass\nc = C()\ndef r():\n with c as s: return s", "r()", "S[0] = 2.0", GUARDED),
    ("class C: __slots__ = 'scale',\nc = C(); c.scale = 1.0", "c.scale", "c.scale = 2.0", False),
    ("@dataclasses.dataclass\nclass C: scale: float = 1.0\nc = C()", "dataclasses.asdict(c)['scale']", "c.scale = 2.0", GUARDED),
    ("@dataclasses.dataclass\nclass C: scale: float = 1.0\nc = C()\ndef r():\n match c:\n  case C(s): return s", "r()", "c.scale = 2.0", GUARDED),
    ("c = {'a': [({'b': [1.0]},)]}", "c['a'][0][0]['b'][0]", "c['a'][0][0]['b'][0] = 2.0", GUARDED),
    ("c = collections.OrderedDict(a=1.0, b=2.0)", "next(iter(c.values()))", "c.move_to_end('a')", GUARDED),
    ("c = collections.defaultdict(float, a=1.0)", "c['a']", "c['a'] = 2.0", GUARDED),
    ("c = collections.defaultdict(float)", "c['a'] + 1", "c['a'] = 1.0", False),
    ("c = collections.ChainMap({}, {'a': 1.0})", "c['a']", "c.maps[1]['a'] = 2.0", GUARDED),
    ("c = {1.0}", "next(iter(c))", "c.clear(); c.add(2.0)", GUARDED),
    ("c = collections.namedtuple('N', 'scale')(1.0)", "c.scale", "c = c._replace(scale=2.0)", GUARDED),
    ("class A(abc.ABC): pass\nclass K: pass\nk = K()", "2.0 if isinstance(k, A) else 1.0", "A.register(K)", GUARDED),
    ("class A(abc.ABC): pass\nclass K: pass", "2.0 if issubclass(K, A) else 1.0", "A.register(K)", GUARDED),
    ("class K: pass\nk = K()", "2.0 if isinstance(k, numbers.Number) else 1.0", "numbers.Number.register(K)", GUARDED),
    ("class A: pass", "1.0 + len(A.__subclasses__())", "class B(A): pass", False),
    ("class A: x: int", "1.0 * len(A.__annotations__)", "A.__annotations__['y'] = int", GUARDED),
    ("class A: pass", "1.0 * len(A.__name__)", "A.__name__ = 'longer'", GUARDED),
    ("class A: pass\na = A()", "1.0 * len(type(a).__qualname__)", "A.__qualname__ = 'longer'", GUARDED),
    ("class M(type): __name__ = property(lambda cls: 'abc'[:int(S[0])])\nclass A(metaclass=M): pass", "1.0 * len(A.__name__)", "S[0] = 2.0", False),
    ("def r(): 'a'", "1.0 * len(r.__doc__)", "r.__doc__ = 'longer'", GUARDED),
    ("def r(): pass", "1.0 * len(r.__name__)", "r.__name__ = 'longer'", GUARDED),
    ("def r(x: int): pass", "1.0 * len(r.__annotations__)", "r.__annotations__['y'] = 1", GUARDED),
    ("c = collections.deque([1.0])", "c[0]", "c[0] = 2.0", False),
    ("c = collections.Counter(a=1)", "float(c['a'])", "c['a'] = 2", False),
    ("d = {'a': 1.0}; c = types.MappingProxyType(d)", "c['a']", "d['a'] = 2.0", False),
    ("c = types.SimpleNamespace(a=1.0)", "c.a", "c.a = 2.0", False),
    ("c = contextvars.ContextVar('c', default=1.0)", "c.get()", "c.set(2.0)", False),
    ("c = threading.local(); c.a = 1.0", "c.a", "c.a = 2.0", False),
    ("c = [1.0] * 20000", "c[15000]", "c[15000] = 2.0", False),
    ("def r(): return 1.0", "r()", "def r(): return 2.0", GUARDED),
    ("def r(): return 1.0", "r()", "r.__code__ = (lambda: 2.0).__code__", GUARDED),
    ("def r(): return r.scale\nr.scale = 1.0", "r()", "r.scale = 2.0", GUARDED),
    ("def r():\n yield S[0]", "next(r())", "S[0] = 2.0", GUARDED),
    ("def r():\n try: raise ValueError(S[0])\n except ValueError as e: return e.args[0]", "r()", "S[0] = 2.0", GUARDED),
    ("def r():\n def inner(): return S[0]\n return inner()", "r()", "S[0] = 2.0", GUARDED),
    ("@contextlib.contextmanager\ndef m(): yield S[0]\ndef r():\n with m() as s: return s", "r()", "S[0] = 2.0", GUARDED),
    ("@functools.singledispatch\ndef r(x): return S[0]", "r(1)", "S[0] = 2.0", False),
    ("@functools.lru_cache\ndef r(x): return S[0]", "r(1)", "S[0] = 2.0", False),
    ("@functools.lru_cache\ndef r(x): return S[0]", "r(1)", "S[0] = 2.0; r.cache_clear()", False),
    ("m = types.ModuleType('m')\ndef r(name): return S[0]\nm.__getattr__ = r", "m.lazy", "S[0] = 2.0", GUARDED),
    ("m = types.ModuleType('m')\ndef r(name): return S[0]\nm.__getattr__ = r", "m.lazy", "m.lazy = 2.0", GUARDED),
    ("", "1.0 * (torch.get_default_dtype().itemsize // 4)", "torch.set_default_dtype(torch.float64)", GUARDED, "torch.set_default_dtype(torch.float32)"),
    ("n = torch.get_num_threads()", "2.0 if torch.get_num_threads() == 3 else 1.0", "torch.set_num_threads(3)", False, "torch.set_num_threads(n)"),
    ("", "2.0 if torch.get_float32_matmul_precision() == 'medium' else 1.0", "torch.set_float32_matmul_precision('medium')", False, "torch.set_float32_matmul_precision('highest')"),
    ("n = np.geterr()", "2.0 if np.geterr()['over'] == 'ignore' else 1.0", "np.seterr(over='ignore')", False, "np.seterr(**n)"),
    ("n = sys.getrecursionlimit()", "2.0 if sys.getrecursionlimit() == 1234 else 1.0", "sys.setrecursionlimit(1234)", False, "sys.setrecursionlimit(n)"),
    ("def r(t): return t.rand(()).item()", "r(torch)", "", False),
    ("", "torch.nn.functional.dropout(torch.ones(())).item() + 1", "", False),
    ("def r(n): return n.random.rand() * 0 + 1", "r(np)", "", False),
    ("import framejit\nr = framejit.compile(lambda: S[0])", "r()", "S[0] = 2.0", False),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}: {r[1]} | {r[2]}"[:80] for i, r in enumerate(ROWS)])
def test_what_is_read(row):
    setup, read, change, guarded, *back = row
    spaces = []

    def make():
        spaces.append({"__name__": "program"})
        exec(IMPORTS + setup + f"\nread = lambda cls: {read}", spaces[-1])
        return reader(spaces[-1]["read"])

    def changed(W):
        exec(change, spaces[-1] | {"W": W} if "W." in change else spaces[-1])

    both, found = [framejit.compile(f), f], []
    try:
        for g in both:
            found.append(steps(make(), g, changed, times=2))
            exec("\n".join(back), spaces[-1])
    finally:
        for space in spaces:
            try:
                exec("\n".join(back), space)
            except Exception:  # it is back
                pass
    for mine, theirs in zip(*found):
        assert mine[0] == pytest.approx(theirs[0]) and mine[1] == pytest.approx(theirs[1])
    info = framejit.cache_info(both[0])
    assert (info["breaks"] == 0 and info["outcomes"]["run"]["graph"] == 4) == guarded


def setattr_count(cls):
    cls.count = cls.count + 1


def in_the_middle(monkeypatch, change):
    """The change is made by another thread, when the code is about to run."""
    from framejit._reads import Reads

    def begin(self, plain=Reads.begin):
        owners = plain(self)
        thread = threading.Thread(target=change)
        thread.start()
        thread.join()
        return owners

    monkeypatch.setattr(Reads, "begin", begin)


@pytest.mark.parametrize("effect", [lambda cls, func: len(LOG), lambda cls, func: setattr_count(cls) or len(LOG)])
def test_what_another_thread_changes_meanwhile_stays(monkeypatch, effect):
    count = []
    in_the_middle(monkeypatch, lambda: (LOG.append(1), count.append(1)))
    W = reader(lambda cls: 1.0, effect)
    LOG.clear()
    try:
        assert "FJ0004" in ends(W)  # nobody can tell whose change it is
        assert len(LOG) == len(count) > 0
    finally:
        LOG.clear()


def test_what_another_thread_changes_between_two_operations_is_seen(monkeypatch):
    scale, calls = [1.0], []

    def perform(self, *args, plain=framejit._tape.Tape.perform):
        made = plain(self, *args)
        calls.append(1)
        if len(calls) == 1:
            scale[0] = 2.0
        return made

    monkeypatch.setattr(framejit._tape.Tape, "perform", perform)
    assert "FJ0004" in ends(reader(lambda cls: scale[0])) and len(calls) > 1


def test_exceptions_in_the_code(fresh):
    def effect(cls, func):
        LOG.append(1)
        if len(LOG) > 3:
            raise KeyError("too many")

    found = []
    for g in (f, fresh.compile(f)):
        W = reader(lambda cls: 1.0, effect)
        LOG.clear()
        for _ in range(4):
            try:
                found.append(g(W(torch.ones(2)).requires_grad_()).inner.item())
            except KeyError as e:
                found.append((str(e), len(LOG)))
    LOG.clear()
    assert found[:4] == found[4:] and ("'too many'", 4) in found


def test_what_a_capture_noted_dies_with_it(fresh, monkeypatch):
    import gc
    import weakref

    tapes, plain = weakref.WeakSet(), framejit._tape.Tape.__init__

    def init(self):
        plain(self)
        tapes.add(self)

    monkeypatch.setattr(framejit._tape.Tape, "__init__", init)
    W = reader(lambda cls: 1.0)
    compiled, w = fresh.compile(f), W(torch.ones(3)).requires_grad_()
    compiled(w).backward()
    assert len(tapes) > 0
    del compiled, w, W
    fresh.reset()
    gc.collect()
    assert not len(tapes)
