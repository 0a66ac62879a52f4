"""Random loops over numbers and elements of arrays, against Python: values, types, arrays, exceptions with their lines, warnings.
test_loops_compiled.py runs them."""

import contextlib
import itertools
import linecache
import math
import random
import re
import signal
import warnings

import framejit
import numpy as np

DTYPES = [
    "float64",
    "float32",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "uint16",
    "uint32",
    "bool",
]

OFTEN = 6  # One program of so many is called until all of it is one code, but
MOST_CALLS = 6000  # not more often than that.


class Writer:
    """The source of one function program(a, b, m, k, f, l, n), with arguments for it."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.often = seed % OFTEN == 0
        self.lines, self.names, self.fresh, self.depth = (
            [],
            ["k", "f"],
            itertools.count(),
            0,
        )
        self.indices, self.views = [], []
        self.slicing = self.r.random() < 0.5
        self.products = self.r.random() < 0.15  # of integers, whose order says nothing

    def put(self, indent, text):
        self.lines.append("    " * indent + text)

    def index(self, size):
        r = self.r.random()
        if self.indices and r < 0.75:
            i = self.r.choice(self.indices)
            return self.r.choice(
                [
                    i,
                    i,
                    i,
                    f"{i} - 1",
                    f"{i} + 1",
                    f"{i} % {size}",
                    f"-{i}",
                    f"({i} * 2) % {size}",
                ]
            )
        return (
            str(self.r.randint(-3, 3))
            if r < 0.93
            else f"int({self.r.choice(self.names)}) % {size}"
        )

    def element(self):
        return self.r.choice(
            [
                f"a[{self.index('n')}]",
                f"b[{self.index('n')}]",
                f"m[{self.index('3')}, {self.index('n')}]",
                f"l[{self.index('n')}]",
            ]
        )

    def bounds(self, width):
        """A slice of so many elements, if the array has them there."""
        r = self.r.random()
        if self.indices and r < 0.5:
            at = self.r.choice(self.indices)
            return f"{at}:{at} + {width}" if width != ":" else self.r.choice([f":{at}", f"{at}:", f"{at}::-1", f":-{at}"])
        at = self.r.choice(["0", "1", "2", "3", "n // 2", "-9"])
        return f"{at}:{at} + {width}" if width != ":" else self.r.choice([":", "1:", ":-1", "::-1", "::2", "-7:", ":5", "8:2:-2"])

    def part(self, width):
        b = self.bounds(width)
        if self.views and width == ":" and self.r.random() < 0.3:
            return self.r.choice(self.views)
        return self.r.choice([f"a[{b}]", f"b[{b}]", f"a[{b}]", f"m[{self.index('3')}, {b}]", f"m[{self.index('3')}][{b}]",
                              f"m.T[{b}, {self.index('3')}]", f"np.flip(b[{b}])", f"m[{b}, {self.index('n')}]"])  # fmt: skip

    def vector(self, width, depth=0):
        r = self.r.random()
        if depth > 2 or r < 0.4:
            return self.part(width)
        if r < 0.7:
            return f"({self.vector(width, depth + 1)} {self.r.choice('+-*/')} {self.vector(width, depth + 1)})"
        if r < 0.88:
            x, y = self.vector(width, depth + 1), self.expression(2)
            return self.r.choice([f"({x} {self.r.choice('+-*/')} {y})", f"({y} {self.r.choice('+-*')} {x})"])
        v = self.vector(width, depth + 1)
        return self.r.choice([f"-({v})", f"abs({v})", f"np.sqrt(abs({v}))", f"({v}) ** 2", f"b[{self.part(width)}]", f"helper2({v}, 1.5)"])

    def plane(self, rows, width, depth=0):
        if depth > 1 or self.r.random() < 0.4:
            b, c = self.bounds(width), self.r.choice(["0:2", "1:3", "-2:", "1::-1"] if rows == 2 else [":", "::-1", "0:3"])
            return self.r.choice([f"m[{c}, {b}]", f"m[{c}][:, {b}]", self.part(width), f"m[{c}, {self.index('n')}][:, None]", f"m[:1, {b}]"])
        return f"({self.plane(rows, width, depth + 1)} {self.r.choice('+-*/')} {self.r.choice([self.plane(rows, width, depth + 1), self.expression(2)])})"

    def slices(self, indent):
        """A statement over parts of arrays."""
        if self.r.random() < 0.2:
            rows, width = self.r.choice([2, 3]), self.r.choice([":", "4", "n // 2"])
            target = f"m[{self.r.choice(['0:2', '1:'] if rows == 2 else [':', '::-1'])}, {self.bounds(width)}]"
            return self.put(indent, f"{target} {self.r.choice(['=', '=', '+=', '*=', '-='])} {self.plane(rows, width)}")
        width = self.r.choice([":", ":", "3", "5", "n // 3"])
        r = self.r.random()
        if r < 0.1:
            self.put(indent, f"w = {self.part(':')}")
            if "w" not in self.views:
                self.views.append("w")
            return None
        if self.products and r < 0.5:
            x, y = self.part(width), self.part(width)
            return self.put(indent, f"{self.r.choice(self.names)} = {self.r.choice([f'np.dot({x}, {y})', f'{x} @ {y}'])}")
        target = self.r.choice([f"a[{self.bounds(width)}]", f"b[{self.bounds(width)}]", f"m[{self.index('3')}, {self.bounds(width)}]"])
        value = self.vector(width) if self.r.random() < 0.9 else self.expression()
        return self.put(indent, f"{target} {self.r.choice(['=', '=', '+=', '*=', '-='])} {value}")

    def expression(self, depth=0):
        r = self.r.random()
        if depth > 2 or r < 0.3:
            return self.r.choice(
                [
                    *self.names,
                    *self.indices,
                    self.element(),
                    self.element(),
                    str(self.r.randint(-4, 9)),
                    repr(round(self.r.uniform(-3, 3), 2)),
                    "True",
                ]
            )
        x, y = self.expression(depth + 1), self.expression(depth + 1)
        if r < 0.62:
            return f"({x} {self.r.choice(['+', '-', '*', '+', '-', '*', '/'])} {y})"
        if r < 0.72:
            return f"({x} {self.r.choice(['//', '%'])} {y})"
        if r < 0.78:
            return f"(int({x}) {self.r.choice(['&', '|', '^', '<<', '>>'])} {self.r.randint(0, 5)})"
        if r < 0.84:
            return f"{self.r.choice(['max', 'min'])}({x}, {y})"
        if r < 0.89:
            return f"({x} if {self.condition(depth + 1)} else {y})"
        if r < 0.97:
            return self.r.choice(
                [
                    f"abs({x})",
                    f"-({x})",
                    f"float({x})",
                    f"int({x})",
                    f"math.sqrt(abs({x}))",
                    f"math.sin({x})",
                    f"helper({x}, {y})",
                    f"np.sqrt(abs({x} * 1.0))",
                    f"np.{self.r.choice(['exp', 'tanh', 'sin', 'log', 'floor'])}({x} * 1.0)",
                    f"math.floor(float({x}))",
                ]
            )
        return f"({x} ** {self.r.randint(0, 3)})"

    def condition(self, depth=0):
        r = self.r.random()
        if r < 0.7 or depth > 2:
            return f"{self.expression(depth + 1)} {self.r.choice(['<', '<=', '==', '!=', '>', '>='])} {self.expression(depth + 1)}"
        if r < 0.85:
            return f"({self.condition(depth + 1)} {self.r.choice(['and', 'or'])} {self.condition(depth + 1)})"
        return f"not {self.condition(depth + 1)}"

    def name(self):
        if self.r.random() < 0.6 or len(self.names) > 7:
            return self.r.choice(self.names)
        self.names.append(f"v{next(self.fresh)}")
        return self.names[-1]

    def statement(self, indent, in_loop):
        r = self.r.random()
        known = list(self.names)
        if self.slicing and self.r.random() < 0.4:
            return self.slices(indent)
        if r < 0.34:
            e = self.expression()
            if self.r.random() < 0.5:
                return self.put(
                    indent,
                    f"{self.r.choice(known)} {self.r.choice(['+=', '-=', '*='])} {e}",
                )
            return self.put(
                indent, f"{self.name() if not in_loop else self.r.choice(known)} = {e}"
            )
        if r < 0.55:
            target = self.r.choice(
                [
                    f"a[{self.index('n')}]",
                    f"b[{self.index('n')}]",
                    f"m[{self.index('3')}, {self.index('n')}]",
                ]
            )
            return self.put(
                indent,
                f"{target} {self.r.choice(['=', '=', '+=', '*=', '-='])} {self.expression()}",
            )
        if r < 0.6 and len(known) > 1:
            x, y = self.r.sample(known, 2)
            return self.put(indent, f"{x}, {y} = {y}, {self.expression()}")
        if r < 0.78:
            self.put(indent, f"if {self.condition()}:")
            self.block(indent + 1, in_loop)
            if self.r.random() < 0.4:
                self.put(indent, "else:")
                self.block(indent + 1, in_loop)
            return None
        if r < 0.86 and in_loop:
            self.put(indent, f"if {self.condition()}:")
            return self.put(
                indent + 1, self.r.choice(["break", "continue", "continue"])
            )
        if r < 0.89:
            self.put(indent, "try:")
            self.block(indent + 1, in_loop)
            self.put(
                indent,
                "except (ZeroDivisionError, IndexError, OverflowError, ValueError):",
            )
            return self.put(
                indent + 1, f"{self.r.choice(known)} = {self.r.randint(0, 3)}"
            )
        if self.depth < 3:
            return self.loop(indent)
        return self.put(indent, f"k = {self.expression()}")

    def block(self, indent, in_loop):
        for _ in range(self.r.choice([1, 1, 2])):
            self.statement(indent, in_loop)

    def loop(self, indent):
        self.depth += 1
        i = f"i{next(self.fresh)}"
        r = self.r.random()
        counts = (
            ["n", "len(a)", "12", "n - 1"]
            if self.depth == 1
            else ["4", "n // 2", "3", *self.indices]
        )
        if r < 0.75:
            count = self.r.choice(counts)
            head = self.r.choice(
                [count, count, f"1, {count}", f"{count}, 0, -1", f"0, {count}, 2"]
            )
            self.put(indent, f"for {i} in range({head}):")
            self.indices.append(i)
        elif r < 0.87:
            self.put(indent, f"for {i} in {self.r.choice(['a', 'b', 'l'])}:")
            self.names.append(i)
        else:
            self.put(indent, f"{i} = 0")
            self.put(indent, f"while {i} < {self.r.choice(['n', '7'])}:")
            self.put(indent + 1, f"{i} += 1")
            self.indices.append(i)
        for _ in range(self.r.randint(1, 4)):
            self.statement(indent + 1, True)
        if i in self.indices:
            self.indices.remove(i)
        if i in self.names:
            self.names.remove(i)
        if self.r.random() < 0.15:
            self.put(indent, "else:")
            self.put(
                indent + 1, f"{self.r.choice(self.names)} = {self.r.randint(0, 5)}"
            )
        self.depth -= 1

    def source(self):
        self.put(1, "w = a" if self.often else "w = a[1:]")
        for _ in range(self.r.randint(0, 2)):
            self.statement(1, False)
        self.loop(1)
        if self.r.random() < 0.3:
            self.loop(1)
        # Functions that give back the very numbers they were called with do not become code as a whole.
        results = "k + 1, f + 1, w" if self.often else "k, f, w"
        return "\n".join(
            ["def program(a, b, m, k, f, l, n):", *self.lines, f"    return {results}", ""]
        )

    def arguments(self):
        n = self.r.choice([20, 30, 40])
        g = np.random.default_rng(self.r.randrange(1 << 30))
        array = lambda shape: self.r.choice(
            [
                g.integers(0, 9, shape),
                g.random(shape) * 9 - (4 if self.r.random() < 0.5 else 0),
            ]
        ).astype("int64" if self.products else self.r.choice(DTYPES))
        a, b, m = array(n), array(n), array((3, n))
        if self.r.random() < 0.2:
            a = array(2 * n)[::2]
        if self.r.random() < 0.1:
            b = a
        if self.r.random() < 0.2:
            m = np.asfortranarray(m)
        k = self.r.choice([3, 0, 2.5, np.int64(4), np.float32(1.5), True])
        f = self.r.choice([1.5, -0.25, np.float64(0.5), 7])
        pick = self.r.choice(
            [lambda: self.r.randint(0, 9), lambda: self.r.uniform(0, 5)]
        )
        return a, b, m, k, f, [pick() for _ in range(n)], n


PREAMBLE = (
    "def helper(x, y):\n    if x < y:\n        return y - x\n    return x * 0.5\n\n\n"
    "def helper2(x, y):\n    return x * y + 1\n\n\n"
)


def one(seed, observe):
    """None, or what differs, also where the fault is not the scalar code's; and the compiled function.
    `observe(function, plain, args, file)` tells all of a call."""
    writer = Writer(seed)
    text = PREAMBLE + writer.source()
    calls = [writer.arguments() for _ in range(4 if writer.often else 2)]
    file = f"<loops {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)

    def program():
        namespace = {"np": np, "math": math}
        exec(compile(text, file, "exec"), namespace)  # noqa: S102
        return namespace["program"]

    difference, compiled = compare(program(), calls, observe, file)
    if difference:
        with framejit.config.patch(scalar_loops=False):
            without = compare(program(), calls, observe, file)[0]
        # Outside of scalar code these are rounded as those of arrays are: is it that alone?
        text, whole = re.sub(r"np\.(exp|tanh|sin|log)\(", "np.floor(", text), text
        if without and whole != text and not compare(program(), calls, observe, file)[0]:
            return None, compiled
        text = whole
        where = "also without scalar loops" if without else "only with scalar loops"
        difference = f"seed {seed}, {where}\n{text}\n{difference}"
    return difference, compiled


class TooLong(BaseException):
    pass


@contextlib.contextmanager
def limited(seconds):
    """Integers of programs may grow without end."""

    def ring(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pairs(expected, got):
    """The parts that differ, shortened."""
    if isinstance(expected, (list, tuple)) and type(expected) is type(got) and len(expected) == len(got):
        for one, other in zip(expected, got):
            yield from pairs(one, other)
    elif expected != got:
        yield f"expected {str(expected)[:300]}\ngot      {str(got)[:300]}"


def is_whole(compiled):
    return any("as a whole" in note for note in compiled.cache_info()["notes"])


def until_whole(compiled, args):
    """Calls it until all of the function is one code. Many never are."""
    for done in range(MOST_CALLS):
        if done % 64 == 63 and (is_whole(compiled) or not compiled.cache_info()["scalar_runs"]):
            return
        own = [a.copy() if isinstance(a, (np.ndarray, list)) else a for a in args]
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            compiled(*own)


def compare(program, calls, observe, file):
    """`calls` are two sets of arguments, or more if the function is to be called often."""
    compiled = framejit.compile(program, options={"leave": False} if calls[2:] else None)
    for args in [calls[0]] * 3 + [calls[1]] * 2 + [calls[0]] + [None] * bool(calls[2:]) + calls[2:] * 2:
        if args is None:
            with contextlib.suppress(TooLong), limited(30):
                until_whole(compiled, calls[0])
            continue
        try:
            with limited(1):
                expected = observe(program, program, args, file)
        except TooLong:
            return None, compiled
        try:
            with limited(30):
                got = observe(compiled, program, args, file)
        except TooLong:
            got = "no end", ""
        if expected != got and "invalid value encountered in cast" not in str(expected[3]):  # what comes out is C's secret
            return f"args {args}\n" + "\n".join(pairs(expected, got)), compiled
    return None, compiled
