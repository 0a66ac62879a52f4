"""Conjugate and negated views: made in a graph, given to one, handed out by one. Bits, strides, memory and gradients are eager's, with no break."""

import os

import pytest

torch = pytest.importorskip("torch")


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


def facts(result, args):
    """All that tells what a tensor is, without its numbers."""
    memory = [a.untyped_storage().data_ptr() for a in tensors(args)]
    told = []
    for t in tensors(result):
        at = t.untyped_storage().data_ptr()
        told.append((t.dtype, tuple(t.shape), t.stride(), t.storage_offset(), t.is_conj(), t.is_neg(), t.requires_grad, t.is_leaf, t._is_view()))
        told[-1] += tuple(i for i, m in enumerate(memory) if m == at)
    return told


def plain(t):
    return t.detach().resolve_conj().resolve_neg().clone()


def same(a, b):
    a, b = plain(a), plain(b)
    return torch.allclose(a, b, rtol=1e-5, atol=1e-5) if a.is_complex() or a.is_floating_point() else torch.equal(a, b)


def others(result):
    return [x for x in (result if isinstance(result, (tuple, list)) else [result]) if not isinstance(x, (torch.Tensor, tuple, list))]


def check(compiled, f, make):
    mine, eager = make(), make()
    got, want = compiled(*mine), f(*eager)
    assert facts(got, mine) == facts(want, eager)
    assert others(got) == others(want)
    for a, b in zip(tensors(got) + tensors(mine), tensors(want) + tensors(eager), strict=True):
        assert same(a, b)
    return mine, eager, got, want


def numbers(*shape, seed=0, dtype=torch.complex64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


PROGRAMS = {
    "product": lambda z: (z.conj() * z).real,
    "handed out": lambda z: (z * 2).conj(),
    "of the input": lambda z: z.conj(),
    "twice": lambda z: (z.conj().conj(), z.conj().conj().is_conj()),
    "negated part": lambda z: z.conj().imag + 1,
    "negated part handed out": lambda z: z.conj().imag,
    "real part": lambda z: z.conj().real,
    "turned": lambda z: z.mH @ z,
    "adjoint": lambda z: (z.adjoint() @ z).abs().sum(),
    "H": lambda z: z.H + z.T,
    "views of it": lambda z: (z.conj()[1:], z.conj().t(), z.conj().t()[0] * 2, z.conj().flatten()[::2]),
    "asked": lambda z: (z.conj().is_conj(), z.conj().imag.is_neg(), z.conj()[0].is_conj(), (z.conj() * 1).is_conj(), z.is_conj()),
    "asked by functions": lambda z: (torch.is_conj(z.conj()), torch.is_neg(z.conj().imag)),
    "resolved": lambda z: (z.conj().resolve_conj(), z.conj().imag.resolve_neg(), z.resolve_conj()),
    "resolved and seen": lambda z: torch.view_as_real((z * z.conj()).resolve_conj()) + torch.view_as_real(z.conj().resolve_conj()),
    "fft": lambda z: torch.fft.ifft(torch.fft.fft(z).conj()),
    "copies": lambda z: (z.conj().clone(), z.conj().t().contiguous(), z.conj().contiguous(), torch.cat([z.conj(), z]), torch.stack([z.mH, z.mH])),
    "parts": lambda z: (z.conj()[::2, 1:] * 2, z.conj()[:, 0].expand(2, z.shape[0]) + 1, z.conj().t()[::2].clone()),
    "negated": lambda z: (torch._neg_view(z.real) * 2, torch._neg_view(z.real).sum(), torch._neg_view(z) + z, torch._neg_view(z).conj()),
    "negated parts": lambda z: (z.conj().imag.exp() + z.conj().imag.t()[:1], z.conj().imag[::2, 1:] * 3, z.conj().imag.t().clone()),
    "where": lambda z: torch.where(z.real > 0, z.conj(), z),
    "compared": lambda z: (z.conj().imag > 0, z.conj() == z, z.conj().abs()),
    "dot": lambda z: torch.vdot(z[0], z[0].conj()) + torch.dot(z[0].conj(), z[1].conj()),
    "dot handed out": lambda z: (torch.vdot(z[0], z[0].conj()), torch.vdot(z[0], z[0].conj()).conj(), torch.dot(z[0].conj(), z[1].conj())),
    "einsum": lambda z: torch.einsum("ij,kj->ik", z, z.conj()),
    "detached": lambda z: (z.conj().detach(), z.conj().data),
    "into another type": lambda z: (z.conj().to(torch.complex128), z.conj().to(torch.complex64), z.conj().imag.double()),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("given", ["plain", "conjugate", "columns"])
def test_programs(fresh, name, given):
    f = PROGRAMS[name]

    def make():
        z = numbers(3, 3)
        return ({"plain": z, "conjugate": z.conj(), "columns": numbers(6, 6).t()[:3, :3]}[given],)

    compiled = fresh.compile(f)
    for _ in range(3):
        check(compiled, f, make)
    info = compiled.cache_info()
    assert (info["segments"], info["breaks"], info["recompiles"]) == (1, 0, 0), info


def test_inputs_in_turns(fresh):
    """A version for plain tensors is not used for conjugate ones, nor the other way round."""

    def f(z, x):
        return z * 2 + x, z.is_conj(), z.t()

    compiled = fresh.compile(f)
    makes = [lambda: (numbers(3, 3), torch.ones(3, 3)), lambda: (numbers(3, 3, seed=1).conj(), torch.ones(3, 3))]
    for _ in range(3):
        for make in makes:
            check(compiled, f, make)
    info = compiled.cache_info()
    assert (info["segments"], info["breaks"]) == (2, 0), info


def test_negated_inputs(fresh):
    def f(x, y):
        return (x * y).sum(1), x.is_neg(), x @ y

    compiled = fresh.compile(f)
    makes = [lambda: (numbers(4, 4).conj().imag, torch.ones(4, 4)), lambda: (numbers(4, 4).imag, torch.ones(4, 4)), lambda: (torch._neg_view(torch.ones(4, 4)), torch.ones(4, 4))]
    for _ in range(3):
        for make in makes:
            check(compiled, f, make)
    info = compiled.cache_info()
    assert (info["segments"], info["breaks"]) == (3, 0), info


@pytest.mark.parametrize("conjugate", [False, True])
def test_other_sizes(fresh, conjugate):
    def f(z):
        return z.mH @ z, z.conj(), (z.conj() * z).real.sum(0)

    compiled = fresh.compile(f)
    for n in (3, 5, 4, 7, 3):
        check(compiled, f, lambda n=n: (numbers(n, 3).conj() if conjugate else numbers(n, 3),))
    info = compiled.cache_info()
    assert (info["segments"], info["breaks"]) == (2, 0), info


WRITES = {
    "to the base": lambda z: (c := z.conj(), z.mul_(2j), c + 1, c)[2:],
    "to a copy's base": lambda z: (w := z + 0, c := w.conj(), w.add_(1j), c * 2, c)[3:],
    "through it": lambda z: (w := z + 0, w.conj().mul_(2j), w)[2],
    "through it, into the input": lambda z: (z.conj().mul_(2j), z * 1)[1],
    "through a part of it": lambda z: (w := z + 0, w.conj()[0].mul_(1j), w.mH.add_(1j), w)[3],
    "through what is negated": lambda z: (w := z + 0, w.conj().imag.add_(1), w)[2],
    "from it": lambda z: (w := z + 0, w.mul_(z.conj()), w.add_(z.conj().t()), w)[3],
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("conjugate", [False, True])
def test_writes(fresh, name, conjugate):
    f = WRITES[name]
    compiled = fresh.compile(f)
    for _ in range(3):
        check(compiled, f, lambda: (numbers(3, 3).conj() if conjugate else numbers(3, 3),))
    info = compiled.cache_info()
    if not conjugate or "input" not in name and name != "to the base":  # an input that is a conjugate view is not written
        assert (info["segments"], info["breaks"]) == (1, 0), info


@pytest.mark.parametrize("f", [
    lambda z, w: (z.conj() * z).real.sum() + w.sum(),
    lambda z, w: (z.mH @ z).abs().sum() * w.sum(),
    lambda z, w: (z.conj().imag * w).sum(),
    lambda z, w: (z.imag * w).exp().sum() + z.conj().imag.sum(),
    lambda z, w: ((z * w).conj().imag.t() @ w).tanh().sum(),
])
def test_gradients(fresh, f):
    compiled = fresh.compile(f)
    for conj in (False, True, False):
        for complex_grad, real_grad in ((True, True), (False, True), (True, False), (False, False)):

            def make(conj=conj, complex_grad=complex_grad, real_grad=real_grad):
                z, w = numbers(3, 3).requires_grad_(complex_grad), numbers(3, 3, seed=1, dtype=torch.float32).requires_grad_(real_grad)
                return (z.conj() if conj else z), w

            mine, eager, got, want = check(compiled, f, make)
            if not want.requires_grad:
                continue
            leaves = [[t._base if t._is_view() else t for t in args] for args in (mine, eager)]
            for args, result in zip(leaves, (got, want), strict=True):
                result.backward()
            for a, b in zip(*leaves, strict=True):
                assert (a.grad is None) == (b.grad is None)
                if a.grad is not None:
                    assert same(a.grad, b.grad) and a.grad.is_conj() == b.grad.is_conj()
    assert compiled.cache_info()["breaks"] == 0


@pytest.mark.parametrize("f", [
    lambda z, x: (w := z * 2, w.mul_(x), w)[2],
    lambda z, x: (w := z + 0, v := w[1:], v.add_(x[1:]), w, v)[3:],
    lambda z, x: (w := z + 0, w.conj().mul_(x), w.conj())[2],
    lambda z, x: (w := z + 0, v := w.t(), w.mul_(x), v * 1, v)[3:],
    lambda z, x: (w := z + 0, w.__setitem__(0, x[0] * 1j), w)[2],
    lambda z, x: (z.mul_(x), z)[1],
])
def test_writes_with_gradients(fresh, f):
    """What was written with gradients has some: complex tensors lost them."""
    compiled = fresh.compile(f)
    for _ in range(2):
        mine, eager, got, want = check(compiled, f, lambda: (numbers(3, 3), numbers(3, 3, seed=1, dtype=torch.float32).requires_grad_()))
        for args, result in ((mine, got), (eager, want)):
            sum(t.abs().sum() for t in tensors(result)).backward()
        assert same(mine[1].grad, eager[1].grad)


def test_gradients_through_a_negated_view(fresh):
    def f(x):
        n = torch._neg_view(x * 3)
        return (n.exp() * n).sum() + n[0].sum(), n

    compiled = fresh.compile(f)
    for _ in range(2):
        mine, eager, got, want = check(compiled, f, lambda: (numbers(3, 3, dtype=torch.float32).requires_grad_(),))
        (got[0] + got[1].sum()).backward()
        (want[0] + want[1].sum()).backward()
        assert same(mine[0].grad, eager[0].grad)
    assert compiled.cache_info()["breaks"] == 0


def test_what_refuses_them(fresh):
    """What torch refuses of such a view, it refuses here: with its own error."""
    for f, make in ((lambda z: torch.view_as_real(z.conj()), numbers), (lambda z: z.conj().view(torch.float32), numbers), (lambda z: z.conj().imag.numpy(), numbers),
                    (lambda z: z.conj().numpy(), numbers), (lambda z: torch.view_as_real(z), lambda *s: numbers(*s).conj())):
        for call in (f, fresh.compile(f)):
            with pytest.raises(RuntimeError, match="conj|neg"):
                call(make(3, 3))


def test_behind_a_break(fresh):
    def f(z):
        c = (z + 1).conj()
        n = c.imag
        file = open(os.devnull)  # two calls that end the graph
        file.close()
        return c * 2, n + 1, c, n, c.is_conj(), n.is_neg()

    compiled = fresh.compile(f)
    for _ in range(3):
        check(compiled, f, lambda: (numbers(3, 3),))
    info = compiled.cache_info()
    assert (info["segments"], info["breaks"]) == (2, 2), info
