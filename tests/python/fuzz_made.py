"""Random programs that make arrays in loops, have several names and views of them, store, print, hold them in tuples, and call functions
that make, return and write some: whole numbers, so that every order of arithmetic gives the same. test_loops_values.py runs them."""

import linecache
import random

import numpy as np

NAMES = ("x", "y", "p", "q", "r")
HELPER = """
def helper(v, t):
    c = np.empty(len(v), np.int64)
    for k in range(len(v)):
        c[k] = v[-1 - k] + t & 1023
    d = c[1:]
    d -= 3
    return c

def pair(v, t):
    d = v + t & 1023
    e = d
    return d, e

def with_view(v, t):
    d = v * 3 & 1023
    w = d[1:]
    if t % 3 == 0:
        w[:] = w + t & 255
    return d, w

def through(v, t):
    d = v - t & 1023
    e = d.T
    e[0] = t
    w = d[1:]
    w[:] = v[:-1]
    return d

def packed(v, u, t):
    p = (v + t & 1023, u, t)
    if t % 5:
        p[1][0] = t & 255
    q = p[0]
    w = p[0][::-1]
    w[-1] = p[2] & 1023
    return p[0], q

def writes(v, t):
    w = v[:1]
    if t % 2:
        w[0] += 5
    v[-1] = t & 255
    return v

"""


class Programs:
    def __init__(self, rng):
        self.rng = rng

    def name(self):
        return self.rng.choice(NAMES)

    def index(self):
        return self.rng.choice(["0", "-1", "i % M", "(i + 2) % M", "M - 1"])

    def vector(self, depth=0):
        rng = self.rng
        return rng.choice(
            [
                self.name,
                self.name,
                lambda: "a[i % 6]",
                lambda: f"b[:M, {rng.randrange(3)}]",
                lambda: f"{self.name()}[::-1]",
                *([] if depth > 1 else [lambda: f"({self.vector(depth + 1)} {rng.choice('+-')} {self.vector(depth + 1)} & 1023)"] * 3),
                *([] if depth > 1 else [lambda: f"abs({self.vector(depth + 1)})", lambda: f"({self.vector(depth + 1)} * 3 & 1023)"]),
            ]
        )()

    def number(self):
        name = self.name()
        return self.rng.choice([f"{name}[{self.index()}]", f"a[i % 6, {self.index()}]", "s", "i", "7", f"{name}.sum()", f"np.max({name})", f"int({name}[{self.index()}])"])

    def block(self, indent, count):
        return [line for _ in range(count) for line in self.statement(indent)]

    def statement(self, indent):
        rng, pad, x = self.rng, " " * indent, self.name()
        simple = [
            lambda: [f"{pad}{x} = {self.vector()}"],
            lambda: [f"{pad}{x} = {self.name()}"],
            lambda: [f"{pad}{x}[{self.index()}] = {self.number()} & 1023"],
            lambda: [f"{pad}{x}[{self.index()}] {rng.choice('+-')}= {self.number()} & 255"],
            lambda: [f"{pad}{x}[1:] = {self.vector()}[1:] & 1023"],
            lambda: [f"{pad}{x} {rng.choice('+-')}= {self.vector()} & 15"],
            lambda: [f"{pad}a[i % 6] = {x} = {self.vector()} & 1023"],
            lambda: [f"{pad}s = {self.number()} + {self.number()} & 1023"],
            lambda: [f"{pad}{x} = {rng.choice(['np.zeros(M, np.int64)', 'np.ones(M, dtype=np.int64)', f'np.zeros_like({self.name()})', f'{self.name()}.copy()'])}"],
            lambda: [f"{pad}l[{self.index()}] = int({self.number()})", f"{pad}l.append(i)", f"{pad}s += len(l)"],
            lambda: [f"{pad}if i == {rng.choice([7, 17, 23])}:", f"{pad}    print({x}, x is y, p is q, {self.name()}.base is {self.name()}, s)"],
            lambda: [f"{pad}{x} = {rng.choice(['helper', 'through'])}({self.name()}, int({self.number()}))"],
            lambda: [f"{pad}{x} = {self.name()} = {self.vector()}"],
            lambda: [f"{pad}{x}, {self.name()} = pair({self.vector()}, int({self.number()}))"],
            lambda: [f"{pad}{x}, w = with_view({self.vector()}, int({self.number()}))", f"{pad}w += {rng.choice(['1', 'i', 's'])}", f"{pad}s += w.base is {x}"],
            lambda: [f"{pad}{x}, {self.name()} = packed({self.vector()}, {self.vector()}, int({self.number()}))"],
            lambda: [f"{pad}{x} = writes({self.vector()}, int({self.number()}))"],
            lambda: [f"{pad}w = ({x} := {self.vector()})[1:]", f"{pad}w -= {rng.choice(['1', 'i', 's'])}"],
            lambda: [f"{pad}{x} = ({self.name()} := {self.vector()}) + {self.name()} & 1023"],
            lambda: [f"{pad}for row in ({x}, {self.vector()}):", f"{pad}    row[{self.index()}] = {self.number()} & 1023"],
        ]
        if indent > 12 or rng.random() < 0.8:
            return rng.choice(simple)()
        head = rng.choice([f"if {self.number()} > {self.number()}:", f"for j, t in enumerate({x}):", f"for j, t in zip(range(3), {x}):", f"for j in range({rng.randrange(1, 4)}):"])
        return [pad + head, *self.block(indent + 4, rng.randrange(1, 3))]

    def source(self):
        head = ["def program(a, b, l, n):", "    x = a[0] + 1", "    y = x", "    p = np.zeros(M, np.int64)", "    q = p", "    r = b[1, :M]", "    s = 0", "    for i in range(n):"]
        return HELPER + "\n".join([*head, *self.block(8, self.rng.randrange(3, 9)), "    return x, y, p, q, r, s, l, x is y, p is q, y.base is x, r.base is b"]) + "\n"


def one(seed):
    """(function, arguments, name of its file)."""
    rng = random.Random(seed)
    m = rng.choice([1, 2, 3, 5, 8])
    text, file = Programs(rng).source(), f"<made {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {"np": np, "M": m}
    exec(compile(text, file, "exec"), space)  # noqa: S102
    data = np.random.default_rng(seed)
    return space["program"], (data.integers(0, 99, (6, m)), data.integers(0, 99, (8, 8)), [5] * 9, 30), file
