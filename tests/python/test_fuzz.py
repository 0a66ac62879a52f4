"""Random programs of NumPy and torch: views, writes through them, containers, loops, branches on data, prints. Each runs three
times with other data; results, what became of the arguments, and the output are compared with eager. (fuzzing.py)."""

import contextlib
import io
import linecache
import random

import fuzzing
import pytest


class Program:
    """The text of a function `program(lib, a, b, n, box)`: a is float, b integer, both [4, 6]; box a list."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.floats, self.ints, self.made = ["a"], ["b"], 0
        self.lines = []
        for _ in range(self.random.randint(4, 14)):
            self.statement("    ")
        outs = ", ".join(self.random.sample(self.floats, min(3, len(self.floats))) + self.ints[-1:])
        self.text = "def program(lib, a, b, n, box):\n" + "\n".join(self.lines) + f"\n    return {outs}, len(box)\n"

    def emit(self, indent, text):
        self.lines.append(indent + text)

    def new(self, pool, indent, value):
        self.made += 1
        name = f"v{self.made}"
        self.emit(indent, f"{name} = {value}")
        pool.append(name)

    def float_value(self):
        r, x, y = self.random, self.random.choice(self.floats), self.random.choice(self.floats)
        i = r.choice(self.ints)
        return r.choice([
            f"{x} + {y}", f"{x} - {y} * 0.5", f"lib.tanh({x}) * {y}", f"lib.where({i} > {r.randint(-2, 2)}, {x}, {y})",
            f"lib.maximum({x}, {y})", f"{x} * n", f"{x}.reshape(6, 4).T.reshape(4, 6)" if r.random() < 0.5 else f"{x}.T.reshape(4, 6)",
            f"{x} - {x}.mean(1)[:, None]", f"{x}[[3, 0, 1, 2]]", f"lib.stack([{x}[0], {y}[1], {x}[2], {y}[3]])",
            f"({x} > 0) * {y}", f"lib.exp(-abs({x})) + {i} % 3", f"{x}[:, :3].sum() / 12 + {y}", f"{x}.clip(-1, 1)",
        ])  # fmt: skip

    def int_value(self):
        r, i, j = self.random, self.random.choice(self.ints), self.random.choice(self.ints)
        return r.choice([f"{i} + {j}", f"{i} * 2 - {j}", f"{i} % 5", f"{i} // 3", f"{i} & 7", f"{i} ^ {j}", f"{i}.cumsum(0) % 11",
                         f"{i}[:, [5, 4, 3, 2, 1, 0]]", f"lib.where({i} > {j}, {i}, -{j})"])  # fmt: skip

    def statement(self, indent, depth=0):
        r = self.random
        kind = r.random()
        names = len(self.floats), len(self.ints)
        if kind < 0.4:
            self.new(self.floats, indent, self.float_value())
        elif kind < 0.55:
            self.new(self.ints, indent, self.int_value())
        elif kind < 0.7:  # writes, also through views of what may be an argument
            x, y = r.choice(self.floats), r.choice(self.floats)
            self.emit(indent, r.choice([f"{x} += 1", f"{x}[1] = {y}[2] * 2", f"{x}[:, ::2] *= 0.5", f"view = {x}.T; view[0] = 3",
                                        f"{x}[{r.choice(self.ints)} > 3] = 0"]))  # fmt: skip
        elif kind < 0.78:
            self.emit(indent, r.choice(["box.append(n)", "print('here', n)", "box.append(len(box)); print(box)",
                                        "box[:] = [k * 2 for k in box]"]))  # fmt: skip
        elif depth < 2 and kind < 0.9:
            condition = r.choice([f"{r.choice(self.ints)}.sum() > {r.randint(-9, 30)}", "n > 2", "len(box) % 2"])
            self.emit(indent, f"if {condition}:")
            self.block(indent, depth)
        elif depth < 2:
            self.emit(indent, f"for k in range({r.choice(['3', 'n', 'len(box)'])}):")
            self.block(indent, depth)
        else:
            self.emit(indent, "pass")
        if depth:  # what a block makes is not known after it
            del self.floats[names[0]:], self.ints[names[1]:]

    def block(self, indent, depth):
        for _ in range(self.random.randint(1, 3)):
            self.statement(indent + "    ", depth + 1)


def function_of(text, seed):
    name = f"<fuzz {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space = {}
    exec(compile(text, name, "exec"), space)
    return space["program"]


def outcome(function, lib, arguments):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            result = function(lib, *arguments)
    except Exception as error:  # the same error is the same outcome
        result = type(error), str(error)
    return result, arguments, out.getvalue()


def same(x, y):
    if isinstance(x, (tuple, list)):
        return type(x) is type(y) and len(x) == len(y) and all(map(same, x, y))
    if hasattr(x, "dtype"):
        import numpy as np

        if type(x) is not type(y) or x.dtype != y.dtype or x.shape != y.shape or getattr(x, "device", None) != getattr(y, "device", None):
            return False
        x, y = (t.cpu() if hasattr(t, "cpu") else t for t in (x, y))
        return np.allclose(x, y, rtol=2e-4, atol=2e-4, equal_nan=True)
    return x == y


def run(seed, lib, framejit):
    import numpy as np

    text = Program(seed).text
    eager = function_of(text, seed)
    compiled = framejit.compile(eager)
    for number in range(3):
        def arguments():
            source = np.random.default_rng(seed * 3 + number)
            a, b = source.normal(size=(4, 6)).astype("float32"), source.integers(-9, 9, (4, 6))
            if lib is not np:
                a, b = lib.from_numpy(a).to(fuzzing.DEVICE), lib.from_numpy(b).to(fuzzing.DEVICE)
            return [a, b, 2 + number % 2, [1]]

        expected, got = outcome(eager, lib, arguments()), outcome(compiled, lib, arguments())
        assert same(got, expected), f"seed {seed}, {lib.__name__}, call {number}\n{text}\nframejit: {got}\neager:    {expected}"


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_random_programs(name, fresh):
    lib = pytest.importorskip(name)
    fuzzing.check(lambda seed: run(seed, lib, fresh), fresh, 30)
