"""Long runs. Eight threads call and compile all kinds of programs, at sizes that change; results are compared with eager,
memory is watched. A million calls, two thousand compilations: the same memory at the end. FRAMEJIT_SOAK_SECONDS: how long; FRAMEJIT_SOAK_SEED: other programs."""

import contextvars
import gc
import os
import random
import threading
import time

import oracle
import pytest

import framejit

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
F = torch.nn.functional

SECONDS = float(os.environ.get("FRAMEJIT_SOAK_SECONDS", 60))
SEED = int(os.environ.get("FRAMEJIT_SOAK_SEED", 0))
THREADS = 8
MEGABYTES = 200  # that the second half may add


def attention(x):
    q = x.reshape(1, 1, -1, 8)
    return F.scaled_dot_product_attention(q, q, q).flatten()


def normed(x):
    y = F.layer_norm(x, (x.shape[1],))
    return F.gelu(y) @ y.T, y.softmax(-1)


def with_gradient(x):
    x = x.detach().requires_grad_()
    loss = (F.silu(x) * x).logsumexp(0).sum()
    return loss, torch.autograd.grad(loss, x)[0]


def selected(x):
    kept = x[x > 0]
    return kept.sort().values, kept.sum()


def broken(x):
    y = x * 2
    time.sleep(0)
    return y.cumsum(0) + y.mean()


def in_place(x):
    y = x.clone()
    y[1:].mul_(2).add_(x[:-1])
    return y


def looked_up(x):
    return x[torch.arange(x.shape[0]).flip(0)], x.argmax(1)


def arrays(x):
    a = x.numpy()
    b = np.where(a > 0, np.sqrt(np.abs(a)), a[::-1])
    return b.sum(0), np.tril_indices(len(b)), b[:-1, 1:].conj()


def masked_array(x):
    a = x.numpy()
    rows = np.broadcast_to(np.arange(a.shape[0])[:, None], a.shape)[a > 0]
    time.sleep(0)
    return rows, a @ a.T


def raises(x):
    if x.shape[0] % 3 == 0:
        raise ValueError(x.shape[0])
    return x.exp()


def executed(x):
    scope = {"x": x}
    exec("def h(q): return q * 2 + x\nz = h(x)", scope)
    return scope["z"]


def trained(x):
    w = torch.full((8, 3), 0.1, requires_grad=True)
    y = (x @ w).tanh()
    y.register_hook(lambda g: g * 2)
    y.square().mean().backward()
    return w.grad, y.detach()


def caught(x):
    try:
        with torch.no_grad(), np.errstate(divide="raise"):
            return x * float(np.float64(1) / np.float64(x.shape[0] % 3)), torch.is_grad_enabled()
    except FloatingPointError:
        return x.cosh(), torch.is_grad_enabled()


def own_number(x):
    return x * mine.number + seen.get()


mine, seen = threading.local(), contextvars.ContextVar("seen")
PROGRAMS = [
    attention, normed, with_gradient, selected, broken, in_place, looked_up, arrays, masked_array, raises, executed, trained, caught, own_number,
]  # fmt: skip


def outcome(f, x):
    try:
        return f(x)
    except ValueError as error:
        return str(error)


def agree(got, want):
    if isinstance(want, tuple):
        return len(got) == len(want) and all(map(agree, got, want))
    if isinstance(want, np.ndarray):
        return got.shape == want.shape and got.dtype == want.dtype and np.allclose(got, want, 1e-4, 1e-4)
    if isinstance(want, torch.Tensor):
        return got.shape == want.shape and got.dtype == want.dtype and torch.allclose(got, want, 1e-4, 1e-4)
    return got == want


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.mark.slow
def test_soak(fresh):
    shared = {f: fresh.compile(f) for f in PROGRAMS}
    end, differences, calls = time.time() + SECONDS, [], [0] * THREADS

    def work(number):
        rng = random.Random(SEED * THREADS + number)
        generator = torch.Generator().manual_seed(SEED * THREADS + number)
        mine.number = number + 0.5
        seen.set(number * 3)
        while time.time() < end and not differences:
            f = rng.choice(PROGRAMS)
            own = rng.random() < 0.02  # a function that nobody has compiled before
            compiled = framejit.compile(lambda x, f=f: f(x), dynamic=rng.choice([None, True, False])) if own else shared[f]
            for _ in range(rng.randrange(1, 20)):
                size = (rng.choice([2, 3, 7, 16, 65, 300]), 8)
                x = torch.randn(size, generator=generator)
                got, want = outcome(compiled, x), outcome(f, x)
                calls[number] += 1
                if not agree(got, want):
                    differences.append((f.__name__, size, got, want))
            if number == 0 and rng.random() < 0.002:
                framejit.reset()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for t in threads:
        t.start()
    sizes = []
    while any(t.is_alive() for t in threads):
        time.sleep(min(5, SECONDS / 20))
        gc.collect()
        sizes.append(resident())
    print(f"{sum(calls)} calls, resident megabytes: {sizes[:: max(1, len(sizes) // 30)]}")
    assert not differences, differences[0]
    assert min(calls) > 0
    assert max(sizes[-3:]) - sizes[len(sizes) // 2] < MEGABYTES, sizes


@pytest.mark.slow
def test_a_million_calls(fresh):
    """What a call leaves behind shows in a million of them."""

    def f(x, n):
        y = x * n + 1
        return y.sum(), y

    torchs, numpys = fresh.compile(f), fresh.compile(f, options={"leave": False})
    x, a, n = torch.ones(4, 4), np.ones((4, 4), np.float32), 0
    sizes = []
    for _ in range(20):
        for _ in range(25_000):
            n += 1
            torchs(x, 0.5 * n), numpys(a, 2.0)
        sizes.append(resident())
    print(f"1,000,000 calls, resident megabytes after every 50,000: {sizes}")
    for compiled in (torchs, numpys):
        assert fresh.cache_info(compiled)["outcomes"]["run"] == {"graph": 500_000}
    assert max(sizes) - sizes[1] <= 8, sizes


@pytest.mark.slow
def test_two_thousand_compilations(fresh):
    """Functions that are compiled, called and dropped leave nothing, nor do versions of one function: other kernels every time."""
    text = "lambda x: F.layer_norm(torch.tanh(x * {0}) @ x.T, (x.shape[0],)) * {0}"

    def version(x, name):  # a text is guarded
        return (x * float(name)).softmax(-1)

    x, sizes = torch.randn(6, 5), []
    versions = fresh.compile(version)
    for k in range(1000):
        program = eval(text.format(1 + k / 8))
        own = fresh.compile(program)
        oracle.check(own(x), program(x), program(x.double()))
        oracle.check(versions(x, str(k / 4)), version(x, str(k / 4)), version(x.double(), str(k / 4)))
        assert fresh.cache_info(own)["captures"] == 1 and fresh.cache_info(versions)["captures"] == 1 + k % 25
        if k % 25 == 24:
            fresh.reset()
        if k % 50 == 49:
            gc.collect()
            sizes.append(resident())
    print(f"2,000 compilations, resident megabytes after every 100: {sizes}")
    assert max(sizes[-3:]) - sizes[len(sizes) // 4] <= 16, sizes
