"""Runs one expression over operands of every layout and dtype, as written and compiled, and compares everything a user
could see: dtype, shape, strides, sharing, identity, mutation, exceptions; values against a float64 reference."""

import numpy
import oracle
import torch
from harness import observe


def _t(*shape, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=g).to(dtype)


def _i(*shape, seed=0, low=-5, high=6):
    g = torch.Generator().manual_seed(seed + sum(shape))
    x = torch.randint(low, high, shape, generator=g)
    return torch.where(x == 0, 1, x) if low < 0 else x


TORCH = {
    "f": lambda: _t(2, 3, 4),
    "g": lambda: _t(2, 3, 4, seed=9),
    "perm": lambda: _t(4, 2, 3).permute(1, 2, 0),
    "step": lambda: _t(2, 6, 4)[:, ::2],
    "wide": lambda: _t(1, 3, 1).expand(2, 3, 4),
    "col": lambda: _t(3, 1),
    "d": lambda: _t(2, 3, 4, dtype=torch.float64),
    "bf": lambda: _t(2, 3, 4, dtype=torch.bfloat16),
    "i": lambda: _i(2, 3, 4),
    "i32": lambda: _i(2, 3, 4).int(),
    "u8": lambda: _i(2, 3, 4).abs().byte(),
    "b": lambda: _t(2, 3, 4) > 0,
    "zero": lambda: torch.tensor(1.5),
    "zeroi": lambda: torch.tensor(3),
    "empty": lambda: torch.zeros(0, 3, 4),
    "m": lambda: _t(3, 4),
    "mt": lambda: _t(4, 3).t(),
    "v": lambda: _t(4),
    "classes": lambda: torch.tensor([1, -100, 3]),
    "w": lambda: _t(5, 4, seed=3),
    "bias": lambda: _t(5, seed=4),
    "img": lambda: _t(2, 4, 6, 5),
    "cl": lambda: _t(2, 4, 6, 5).contiguous(memory_format=torch.channels_last),
    "kernel": lambda: _t(6, 4, 3, 3, seed=5),
    "idx": lambda: torch.tensor([0, 1, 1]),
    "idx2": lambda: torch.tensor([[0, -1], [1, 0]]),
    "tok": lambda: torch.tensor([[1, 2, 0], [3, 4, 4]]),
    "q": lambda: _t(2, 7, 4, 8).transpose(1, 2),
    "kv": lambda: _t(2, 5, 4, 8, seed=2).transpose(1, 2),
    "mask": lambda: _t(7, 5) > -1,
}

_rng = numpy.random.default_rng(0)
_a = numpy.round(_rng.standard_normal((3, 4)) * 64) / 64  # sums are exact in any order
NUMPY = {
    "f": lambda: _a.copy(),
    "g": lambda: _a[::-1].copy() + 2,
    "f32": lambda: _a.astype(numpy.float32),
    "t": lambda: numpy.ascontiguousarray(_a.T).T,
    "step": lambda: numpy.hstack([_a, _a])[:, ::2],
    "i": lambda: numpy.arange(1, 13).reshape(3, 4),
    "i32": lambda: -numpy.arange(1, 13, dtype=numpy.int32).reshape(3, 4),
    "b": lambda: _a > 0,
    "v": lambda: _a[0].copy(),
    "col": lambda: _a[:, :1].copy(),
    "idx": lambda: numpy.array([0, 2, 0]),
    "scalar": lambda: numpy.float64(1.5),
    "zero": lambda: numpy.array(2.5),
}


def build(source, names):
    """A function of `names` from statements separated by `;`, the last of which is returned. No float64 in the text: the
    same function on wider operands is the reference."""
    *body, last = [part.strip() for part in source.split(";")]
    lines = [f"def program({', '.join(names)}):"] + [f"    {line}" for line in body] + [f"    return {last}"]
    scope = {"torch": torch, "F": torch.nn.functional, "np": numpy}
    try:
        import scipy.special

        scope["scipy"] = scipy
    except ImportError:
        pass
    exec(compile("\n".join(lines), f"<{source}>", "exec"), scope)
    return scope["program"]


def check(fj, source, names, makers, captured=True):
    """names: the operands' names in the source; makers: as many factories. Returns the compiled function."""
    eager = build(source, names)
    compiled = fj.compile(build(source, names))
    make = lambda: tuple(m() for m in makers)  # noqa: E731
    with torch.no_grad(), numpy.errstate(all="ignore"):
        expected = observe(eager, make)
        got = observe(compiled, make)
        raised = expected.shape["exception"]
        where = f"{source} on {[_describe(x) for x in make()]}"
        for aspect, value in expected.shape.items():
            if aspect in ("exception", "warnings"):
                continue
            value, mine = _without_owner(value), _without_owner(got.shape.get(aspect))
            assert mine == value, f"{where}: {aspect}\n  framejit: {mine}\n  eager:    {value}"
        assert [e[0] for e in got.shape["exception"]] == [e[0] for e in raised], f"{where}: {got.shape['exception']} instead of {raised}"
        if raised:
            return compiled
        reference = observe(eager, lambda: tuple(map(_wider, make())))
        usable = [p for p, _ in reference.values] == [p for p, _ in expected.values]
        for k, ((path, mine), (_, theirs)) in enumerate(zip(got.values, expected.values)):
            truth = reference.values[k][1] if usable else None
            if truth is not None and getattr(truth, "shape", ()) != getattr(theirs, "shape", ()):
                truth = None
            oracle.check(mine, theirs, truth, what=f"{where}: {path}")
    if captured:
        assert compiled.graphs, f"{where}: nothing was captured"
    return compiled


def _wider(x):
    if isinstance(x, (numpy.ndarray, numpy.generic)) and x.dtype == numpy.float64:
        return x.astype(numpy.longdouble)
    return oracle.in_float64(x)


def _without_owner(facts):
    """NumPy's OWNDATA flag is left out: eager itself hands out temporaries as bases. `sharing` is compared."""
    if isinstance(facts, tuple) and len(facts) == 7 and facts[:2] == ("array", "ndarray"):
        return facts[:6]
    return type(facts)(map(_without_owner, facts)) if isinstance(facts, (tuple, list)) else facts


def _describe(x):
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype)[6:]}{list(x.shape)}:{list(x.stride())}"
    return f"{numpy.asarray(x).dtype}{list(numpy.shape(x))}:{getattr(x, 'strides', ())}"
