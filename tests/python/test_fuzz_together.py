"""Random programs of two compiled functions that call each other's results: classes with properties, slots, descriptors and inheritance whose state
changes between calls, context managers, generators with defaults, exceptions; views of tensors that are written, with gradients, accumulated, clipped
and given to optimizers; integers of all dtypes divided, shifted and mixed with Python's numbers. Results (values, dtypes, strides, who shares memory),
exceptions, what the objects hold afterwards, gradients and warnings are eager's."""

import collections
import linecache
import random
import warnings

import fuzzing
import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

DTYPES = "int8 int16 int32 int64 uint8 bool float16 float32 float64".split()
# {t}: a float tensor, {i}: an integer tensor, {n}: a number, {a}: an array, {k}: an integer array
TENSORS = """x|w|o.half|o.view|o.fold(x)|o.base(w)|({t}*{n})|({t}+{t})|({t}-{n})|({t})[1:2]|({t}).T.contiguous().T|torch.tanh({t})|({t})[:, :1]
torch.where({i}>{n}, {t}, 1.)|sum(o.each({t}))|({t}*({i}))|({t}).sum(0, keepdim=True)|({t}).clone()|({t}).detach()|({t})/(abs({n})+1)|inner(o, {t})
inner(o, {t})[:2]|o[0]|o.cell({t})|({t}).mean()*x|torch.stack([*o.pair({t})]).sum(0)""".replace("\n", "|").split("|")
INTEGERS = """m|o.m|({i}+{n})|({i}//{p})|({i}%{p})|({i}*2)|({i}<<1)|({i}>>1)|(-{i})|({i}^3)|({i}&{i})|({i}).bitwise_or(1)|torch.where({i}>0,{i},m)|({i}).cumsum(0)|({i}).abs()
({i}).sum()|({i})[0]|torch.div({i},{p},rounding_mode='floor')|torch.div({i},{p},rounding_mode='trunc')|torch.remainder({i},{p})|torch.fmod({i},{p})
({i}+m)|({i})/{p}|({i}>{n})|({i}).clamp(-2,3)""".replace("\n", "|").split("|")
ARRAYS = """a|o.a|({a}+{n})|({a}//{p})|({a}%{p})|({a}*{a})|({a})[1:]|({a})[::-1]|({a}).T.T|np.where(a>1,{a},{n})|({a}>1)|({a}).sum(0)|({a}).astype('{d}')|np.minimum({a},{n})
np.add({a},1,where=a>0,out=a.copy())|({a}).clip(0,2)|divmod({a},{p})[1]|np.floor_divide({a},{p})|({a}).reshape(-1)|({a})[a>0]|({a}).cumsum()|np.abs({a})
o.rec['u']|o.rec[o.rec['v']>0]['v']|np.multiply({a},2,dtype='{d}',casting='unsafe')|-({a}*1)""".replace("\n", "|").split("|")
NUMBERS = """1|2|-1|3|0.5|True|o.n|o.p|o.q|o.twice|len(o)|o.kind|x.shape[0]|next(gen(o))|sum(gen(o, 2))|o.s.n|({n}+{n})|({n}*2)|o.count|o.d.get('k', 1)|Base.total|o.lazy""".replace("\n", "|").split("|")
STATEMENTS = """y = {t}|y = {t}|y = y + {t}|out.append({t})|out.append({i})|out.append({i})|out.append({a})|out.append({a})|out.append({n})|o.n = {n}|o.p = {n}|o.q = {n}|o.s.n = {n}
o.d['k'] = {n}|o.count += 1|Base.total += 1|type(o).kind = {n}|o.half = ({t}).detach()|o.buf.add_({n})|o.buf[:1].mul_(2)|o.buf[0] = {n}|o.view = o.buf[1:]|o.buf = o.buf*1.5
z = {t}*1; z[:1] = {n}; y = y + z|z = {t}*1; v = z[:, :1]; v.mul_(2); y = y + z|z = {t}*1; z.t().add_({n}); out.append(z)|z = {t}*1; z[0] += z[-1]; y = y*z
z = y*1; z.view(-1)[::2] *= 0.5; y = z|o.a[0] = {n}|o.a += 1|o.a[o.a>1] = {n}|o.a[::2] *= 2|o.rec['u'] += 1|o.rec[0] = (3, 4)|np.add(o.a, 1, out=o.a)|np.multiply(o.a, 2, out=o.a, where=o.a>0)
m = {i}|out.append(o.buf[:1])|out.append(o.view)|o.m += 1|o.m[:1] = 3|o.m //= 2|o.m %= 3|out.append(inner(o, {t}))|o.__dict__.pop('lazy', 0)|o.hist.append({n})|o.hist[-1:] = [{n}]|o.d = {{**o.d, 'k': {n}}}
out.append([*o.d.items()])|out.append(o.a)|out.append(o.a[1:])|o.s.ref = {t}; y = y + o.s.ref; o.s.ref = None""".replace("\n", "|").split("|")
CHANGES = """o.n=r.choice([1,2,2.5,300])|o.p=r.randint(0,5)|o.q=r.random()|type(o).kind=r.randint(0,3)|Base.total=r.randint(0,9)|o.buf=torch.full((3,2),r.random())|o.buf.mul_(2)|o.view=o.buf[:2]
o.half=torch.ones(3,2)*r.random()|o.a=np.arange(r.choice([1,4,5])).astype(r.choice(DTYPES))|o.a=o.a.copy()|o.m=torch.arange(2).to(getattr(torch,r.choice(DTYPES[:5])))|o.s=Slots(r.randint(0,3))
o.__class__=r.choice([Base,Derived])|o.d={'k':r.randint(0,3)}|o.d.clear()|Base.fold=r.choice([one,two])|o.__dict__.pop('lazy',None)|o.hist=[1,2]|pass|pass|o.rec=np.array([(r.randint(0,3),1),(2,0)],[('u','i4'),('v','f8')])""".replace("\n", "|").split("|")

SPACE = '''
import contextlib
import functools
import numpy as np
import torch


class Halt(Exception):
    pass


class Slots:
    __slots__ = ("n", "ref")
    def __init__(self, n): self.n, self.ref = n, None


class Checked:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, o, owner=None): return self if o is None else getattr(o, self.name) + 1
    def __set__(self, o, value): setattr(o, self.name, value * 2)


def one(self, t): return t + self.n
def two(self, t): return t * 2 - self.kind


class Base:
    q = Checked()
    kind, total = 1, 2

    def __init__(self):
        self.n, self.q, self._p, self.count, self.d, self.s, self.hist = 2, 1, 3, 0, {"k": 2}, Slots(1), [1]
        self.buf = torch.arange(6.0).reshape(3, 2)
        self.view, self.half = self.buf[1:], torch.full((3, 2), 0.5)
        self.a, self.m = np.arange(4), torch.tensor([3, -2])
        self.rec = np.array([(1, 2.0), (3, 0.0)], [("u", "i4"), ("v", "f8")])

    @property
    def p(self): return self._p
    @p.setter
    def p(self, value):
        if value == 4: raise Halt("four")
        self._p = value
    @functools.cached_property
    def lazy(self): return self.n + 1
    @classmethod
    def of_class(cls): return cls.kind
    @staticmethod
    def cell(t, by=2): return t * by
    @property
    def twice(self): return self.p * 2
    def __len__(self): return 3
    def __getitem__(self, i): return self.buf[i:i + 2]
    def base(self, t): return t * self.of_class()
    def each(self, t, times=2):
        for i in range(times):
            self.count += 1
            yield t * i
    def pair(self, t, *, by=1): return t, t + by
    @contextlib.contextmanager
    def scaled(self, by=2):
        before, self.n = self.n, by
        try:
            yield self
        finally:
            self.n = before
    fold = one


class Derived(Base):
    kind = 2
    def base(self, t): return super().base(t) + 1
    @property
    def twice(self): return super().twice + 1
    def __getattr__(self, name):
        if name.startswith("_q"): return 7
        raise AttributeError(name)


def gen(o, start=1):
    yield start
    o.count += 1
    yield o.n


'''


class Writer:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def filled(self, table, depth=0):
        r, text = self.r, self.r.choice(table)
        while depth > 2 and "{" in text.replace("{{", ""):
            text = r.choice(table)
        tables = {"t": TENSORS, "i": INTEGERS, "n": NUMBERS, "a": ARRAYS, "d": DTYPES, "p": ["2", "3", "-2", "m", "o.kind", "2.5"] if table is INTEGERS else ["2", "3", "-2", "1.5", "o.kind"]}
        out, at = "", 0
        while at < len(text):
            if text[at] == "{" and text[at : at + 2] != "{{" and text[at + 2 : at + 3] == "}":
                out, at = out + self.filled(tables[text[at + 1]], depth + 1), at + 3
            else:
                step = 2 if text[at : at + 2] in ("{{", "}}") else 1
                out, at = out + text[at], at + step
        return out

    def statement(self, indent, depth):
        pad, r = "    " * indent, self.r
        inner = lambda: self.block(indent + 1, depth + 1)  # noqa: E731
        kind = r.random() if depth < 2 else 1
        if kind < 0.08:
            return [f"{pad}if {self.filled(NUMBERS)} > {self.filled(NUMBERS)}:", *inner()]
        if kind < 0.14:
            return [f"{pad}with o.scaled({self.filled(NUMBERS)}):", *inner()]
        if kind < 0.17:
            return [f"{pad}with torch.no_grad():", *inner()]
        if kind < 0.24:
            at_last = [f"{pad}finally:", *inner()] if r.random() < 0.4 else []
            return [f"{pad}try:", *inner(), f"{pad}except (Halt, AttributeError, RuntimeError, IndexError) as e:", f"{pad}    out.append(type(e).__name__)", *at_last]
        if kind < 0.28:
            return [f"{pad}for i in range({r.choice(['2', 'o.kind', 'len(o.hist)'])}):", *inner()]
        return [pad + self.filled(STATEMENTS)]

    def block(self, indent, depth):
        return [line for _ in range(self.r.randint(1, 3)) for line in self.statement(indent, depth)]

    def source(self):
        r = self.r
        within = r.choice(["pass", "o.count += 1", "o.buf.add_(1)", "t = t * 1; t[:1] *= 2", "o.hist.append(1)", "o.p = o.n", "t = o.fold(t)"])
        answer = r.choice(["t * o.n", "t.tanh() + o.twice", "o.base(t)[:]", "t", "(t * o.half[:1]).view_as(t)", "sum(gen(o)) + t", "t.detach() * t"])
        lines = ["def inner(o, t):", f"    {within}", f"    return {answer}", "", "", "def f(o, x, w, a, m):", "    out = []; y = x"]
        lines += [line for _ in range(r.randint(3, 9)) for line in self.statement(1, 0)]
        return "\n".join(lines) + "\n    return y, out\n"


def described(x, seen):
    if isinstance(x, torch.Tensor):
        seen.append(x)
        return "tensor", x.dtype, tuple(x.shape), tuple(x.stride()), x.requires_grad, x.detach().double().flatten().tolist()
    if isinstance(x, np.ndarray):
        seen.append(x)
        values = x.tolist() if x.dtype.names else x.astype(float).tolist()
        return "array", str(x.dtype), x.shape, x.strides, values
    if isinstance(x, np.generic):
        return str(x.dtype), float(x)
    if isinstance(x, dict):
        return type(x).__name__, [(k, described(v, seen)) for k, v in x.items()]
    if isinstance(x, (list, tuple, collections.deque)):
        return type(x).__name__, [described(v, seen) for v in x]
    if isinstance(x, BaseException):
        line = x.__traceback__
        while line.tb_next and line.tb_next.tb_frame.f_code.co_filename.startswith("<together"):
            line = line.tb_next
        return type(x).__name__, str(x)[:80], line.tb_lineno
    if type(x).__name__ == "Slots":
        return "Slots", described([x.n, x.ref], seen)
    if type(x).__module__ == "together":
        return type(x).__name__, described({k: v for k, v in vars(x).items()}, seen)
    return x


def sharing(seen):
    """Which of them lie in one memory."""
    place = [(t.untyped_storage().data_ptr() if t.numel() else -1) if isinstance(t, torch.Tensor) else None for t in seen]
    pairs = []
    for i, one in enumerate(seen):
        for k in range(i):
            other = seen[k]
            if one is other:
                pairs.append((k, i, "is"))
            elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
                if place[i] == place[k] != -1:
                    pairs.append((k, i, one.storage_offset() - other.storage_offset()))
            elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.size and other.size and np.shares_memory(one, other):
                pairs.append((k, i, one.__array_interface__["data"][0] - other.__array_interface__["data"][0]))
    return pairs


def same(a, b):
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and type(a) is type(b):
        return a == b or (a != a and b != b) or abs(a - b) <= 2e-5 * max(1, abs(a), abs(b))  # noqa: PLR0124
    return type(a) is type(b) and a == b


def calls(text, seed, compile_):
    name = f"<together {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space = {"__name__": "together", "DTYPES": DTYPES}
    exec(SPACE, space)
    exec(compile(text, name, "exec"), space)
    r = space["r"] = random.Random(f"changes {seed}")
    space["inner"] = compile_(space["inner"], False)
    f, o = compile_(space["f"], True), space["Derived" if seed % 2 else "Base"]()
    space["o"] = o
    w = torch.full((3, 2), 0.5, requires_grad=seed % 3 > 0)
    optimizer = [torch.optim.SGD([w], 0.1, momentum=0.9), torch.optim.AdamW([w], 0.01)][seed % 2] if w.requires_grad else None
    for call in range(6):
        for _ in range(r.randint(0, 2) if call > 1 else 0):
            try:
                exec(r.choice(CHANGES), space)
            except space["Halt"]:
                pass
        shape = r.choice([(3, 2), (3, 2), (1, 2), (3, 1)]) if call > 2 else (3, 2)
        x = (torch.arange(shape[0] * shape[1]) + call).reshape(shape) / 3
        a = np.array([3, 1, 0, 2]).astype(DTYPES[seed % 9] if seed % 5 else "int64")
        m = torch.tensor([3, -1] if seed % 4 else 2).to(getattr(torch, r.choice(DTYPES[:4])))
        with warnings.catch_warnings(record=True) as told, np.errstate(all="ignore"):
            warnings.simplefilter("always")
            try:
                result = f(o, x, w, a, m)
            except Exception as error:  # noqa: BLE001
                result = error
        seen = []
        before = described([result, o, x, a, m, w.detach()], seen)
        gradient = None
        if optimizer and isinstance(result, tuple) and result[0].requires_grad:
            try:
                result[0].double().sum().backward()
                gradient = described(w.grad, [])[-1] if w.grad is not None else None
            except RuntimeError:
                gradient = "refused"
            if w.grad is not None and call % 2:  # accumulated over two calls
                torch.nn.utils.clip_grad_norm_([w], 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=bool(seed % 7))
        for name in "half", "view", "buf":
            value = o.__dict__.get(name)
            if isinstance(value, torch.Tensor) and value.requires_grad:
                o.__dict__[name] = value.detach().clone()
        yield before, sharing(seen), gradient, sorted({(t.category.__name__, str(t.message)[:40]) for t in told}), space["Base"].kind, space["Base"].total


def one(seed, framejit):
    """How often graphs ran; None where it is no program."""
    text, compiled = Writer(seed).source(), []

    def compile_(f, outer):
        made = framejit.compile(f)
        if outer:
            compiled.append(made)
        return made

    try:
        compile(text, "", "exec")
        expected = list(calls(text, seed, lambda f, outer: f))
    except (SyntaxError, RecursionError, OverflowError, MemoryError):
        return None
    for number, (got, eager) in enumerate(zip(calls(text, seed, compile_), expected)):
        for part, g, e in zip(("values", "memory", "gradient", "warnings", "class", "class"), got, eager):
            assert same(g, e), f"call {number}, {part}\n{text}expected {e}\ngot      {g}"
    return framejit.cache_info(compiled[0])["outcomes"]["run"].get("graph", 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 6])
def test_some_together(fresh, seed):
    assert one(seed, fresh)


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_random_together(fresh):
    fuzzing.check_in_graphs(lambda seed: one(seed, fresh), fresh, 60)
