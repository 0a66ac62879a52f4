"""Seeds that the program sets and generators that it makes, in the graph: values and states are eager's, also between two draws and
behind an exception."""

import random

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def states():
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, keys.tolist(), rest, torch.get_rng_state().tolist()


def seed_all(k):
    random.seed(k)
    np.random.seed(k)
    torch.manual_seed(k)


def outcome(f, *args):
    try:
        return f(*args)
    except (ValueError, TypeError, RuntimeError, OverflowError) as e:
        return type(e).__name__, str(e)


def same(got, expected):
    assert type(got) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            same(a, b)
    elif isinstance(expected, (torch.Tensor, np.ndarray)):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        assert (np.asarray(got) == np.asarray(expected)).all()
    else:
        assert got == expected


def as_eager(fresh, f, calls, breaks=0, runs=1):
    """f gives the same in all calls, and the states behind each are the same; at least so many calls run as graphs."""
    compiled, seen = fresh.compile(f), []
    for function in (f, compiled):
        seed_all(3)
        seen.append([(outcome(function, *make()), states()) for make in calls])
    for (expected, after), (got, ours) in zip(*seen):
        same(got, expected)
        assert after == ours
    told = fresh.cache_info(compiled)
    assert told["breaks"] == breaks and told["outcomes"]["run"].get("graph", 0) >= runs, told
    return told


def x(k=0):
    return torch.arange(12.0).reshape(3, 4) - k


NUMBERS = [7, 7, 123, 0, 5, 2**32 - 1, 7]


def of_numpy(t, n):
    before = np.random.rand()
    np.random.seed(n)
    return t * np.random.rand() + before, np.random.randn(4)


def of_python(t, n):
    before = random.gauss(0, 1)
    random.seed(n)
    return t * random.random() + before, random.gauss(0, 1)


def of_torch(t, n):
    before = torch.rand(3, 4)
    torch.manual_seed(n)
    return t * torch.rand(3, 4) + before, torch.randn(2), torch.randperm(5)


def of_all(t, n):
    random.seed(n)
    np.random.seed(n)
    torch.manual_seed(n)
    return t * random.random() + np.random.rand(), torch.rand(2)


def twice(t, n):
    torch.manual_seed(n)
    a = torch.rand(2)
    torch.manual_seed(n)
    np.random.seed(1)
    np.random.seed(n)
    return a, torch.rand(2), np.random.rand(2), t + 1


def of_gpus(t, n):
    torch.manual_seed(n)
    torch.cuda.manual_seed(n)
    torch.cuda.manual_seed_all(n)
    return t * torch.rand(3, 4), torch.manual_seed(1) is torch.default_generator, torch.cuda.manual_seed_all(n)


@pytest.mark.parametrize("f", [of_numpy, of_python, of_torch, of_all, of_gpus, twice])
def test_seeds(fresh, f):
    told = as_eager(fresh, f, [lambda n=n: (x(n % 5), n) for n in NUMBERS], runs=4)
    assert told["segments"] <= 5, told  # a seed that changes is no version of its own


def test_a_seed_behind_all_draws(fresh):
    def f(t):
        u = t + torch.rand(3, 4)
        torch.manual_seed(2)
        np.random.seed(2)
        return u

    as_eager(fresh, f, [lambda k=k: (x(k),) for k in range(4)], runs=3)


def test_what_manual_seed_gives(fresh):
    def f(t):
        return torch.manual_seed(4) is torch.default_generator, t + torch.rand(3, 4)

    as_eager(fresh, f, [lambda k=k: (x(k),) for k in range(3)], runs=2)


def test_seeds_that_are_refused(fresh):
    def f(a, n):
        b = a * 2 + np.random.rand()
        np.random.seed(n)
        return b + np.random.rand()

    as_eager(fresh, f, [lambda n=n: (np.ones(3), n) for n in (3, 4, 5, -1, 6, 2**32, 7, 1.5, "a")], breaks=1)


def test_an_exception_behind_a_seed(fresh):
    def f(t, n):
        torch.manual_seed(n)
        np.random.seed(n)
        u = t * torch.rand(3, 4) + np.random.rand()
        if n % 2:
            raise ValueError(f"{n}")
        return u

    as_eager(fresh, f, [lambda n=n: (x(n), n) for n in (2, 4, 5, 6, 7, 8)], breaks=1)


def test_a_run_that_ends_early(fresh):
    """What was drawn and seeded is put back, and done once."""

    def inner(t, n):
        a = torch.rand(3, 4)
        torch.manual_seed(n)
        np.random.seed(n)
        return t * 2 + torch.rand(3, 4) if (t * a).sum() > 0 else t * 3 + np.random.rand()

    def f(t, n):
        return inner(t, n) + torch.rand(3, 4)

    as_eager(fresh, f, [lambda n=n: (x() * (1 if n % 3 else -1), n) for n in range(9)], breaks=1)  # the guess is given up


def test_with_gradients(fresh):
    def f(t, w, n):
        torch.manual_seed(n)
        return (t * w * torch.rand(4) + torch.nn.functional.dropout(w, 0.5)).sum()

    grads = []
    for function in (f, fresh.compile(f)):
        seed_all(2)
        w = torch.ones(4, requires_grad=True)
        for k in range(5):
            function(x(k), w, k).backward()
            torch.rand(1)
        grads.append((w.grad, torch.rand(2)))
    same(*grads)


def made_by_numpy(a, n):
    g = np.random.default_rng(n)
    return a + g.normal(size=3) * g.random(), g.integers(0, 9, 2), g.permutation(4)


def made_by_class(a, n):
    g, h = np.random.RandomState(n), random.Random(n)
    return a * g.randn(3) + h.random() + h.uniform(1, 2), g.rand()


def two_of_one_seed(a, n):
    g, h = np.random.default_rng(n), np.random.default_rng(n)
    u = g.random(2)
    return u, h.random(2), g.random(), h.random(), a + 1


def seeded_again(a, n):
    g = np.random.RandomState(1)
    u = g.rand(2)
    g.seed(n)
    return u, g.rand(2), a * 2


def with_a_drawn_seed(a, n):
    h = random.Random(n)
    g = np.random.RandomState(h.randrange(1 << 20))
    return g.rand(2), a * 2


@pytest.mark.parametrize("f", [made_by_numpy, made_by_class, two_of_one_seed, seeded_again, with_a_drawn_seed])
def test_generators_made_inside(fresh, f):
    as_eager(fresh, f, [lambda n=n: (np.arange(3.0) + n % 7, n) for n in NUMBERS], runs=4)


def test_made_without_a_seed(fresh):
    def f(a):
        g = np.random.default_rng()
        return a + 1, g.random()

    compiled = fresh.compile(f)
    before = states()
    assert len({compiled(np.ones(3))[1] for _ in range(5)}) == 5 and states() == before
    assert not fresh.cache_info(compiled)["breaks"]


def test_a_generator_that_leaves(fresh):
    class Holder:
        pass

    def f(a, n, to):
        g = np.random.default_rng(n)
        to.kept = g
        return g, g.random(2) + a

    compiled = fresh.compile(f)
    for n in (1, 1, 2, 3, 1, 4):
        mine, theirs = Holder(), Holder()
        (g, u), (h, v) = compiled(np.ones(2), n, mine), f(np.ones(2), n, theirs)
        same(u, v)
        assert g is mine.kept and g.random() == h.random() and g.bit_generator.state == h.bit_generator.state
    assert not fresh.cache_info(compiled)["breaks"]


def test_a_module_keeps_a_generator(fresh):
    class Noise(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rng, self.n = np.random.default_rng(3), 0

        def forward(self, x):
            self.last = np.random.default_rng(self.n)
            return x + float(self.last.normal()) + float(self.rng.random()), self.last in [self.rng], self.last is self.rng

    mine, theirs = Noise(), Noise()
    compiled = fresh.compile(mine)
    for k in range(6):
        mine.n = theirs.n = k
        same(compiled(x(k)), theirs(x(k)))
        assert mine.last.random() == theirs.last.random() and mine.rng.bit_generator.state == theirs.rng.bit_generator.state
    told = fresh.cache_info(compiled)
    assert not told["breaks"] and told["segments"] <= 4, told


def test_another_generator_each_time(fresh):
    """One that is an argument is found where it was, and need not be the same one."""

    def f(a, g, h):
        return a * g.random(3) + h.random()

    compiled = fresh.compile(f)
    for n in range(8):
        runs = []
        for function in (f, compiled):
            g, h = np.random.default_rng(n), random.Random(n)
            runs.append((function(np.arange(3.0), g, h), g.bit_generator.state, h.getstate()))
        assert (runs[0][0] == runs[1][0]).all() and runs[0][1:] == runs[1][1:]
    for other in (np.random.Generator(np.random.MT19937(3)), np.random.Generator(np.random.Philox(3))):
        twin = np.random.Generator(type(other.bit_generator)(3))
        assert (compiled(np.arange(3.0), other, random.Random(1)) == f(np.arange(3.0), twin, random.Random(1))).all()
    told = fresh.cache_info(compiled)
    assert not told["breaks"] and told["segments"] <= 4, told


def test_one_generator_under_two_names(fresh):
    def f(a, g, h):
        return a * g.random() + h.random()

    compiled = fresh.compile(f)
    for n in range(4):
        g, h = np.random.default_rng(n), np.random.default_rng(n)
        assert (compiled(np.ones(2), g, g) == f(np.ones(2), h, h)).all() and g.random() == h.random()


def test_the_seed_sequence_stays(fresh):
    """A seed that is put back leaves what the generator refers to as it was."""
    own, twin = np.random.RandomState(5), np.random.RandomState(5)

    def inner(t, g):
        g.seed(3)
        return t * 2 if t.sum() > 0 else t * 3

    def f(t, g):
        return inner(t, g) + float(g.rand())

    compiled = fresh.compile(f)
    for k in range(20):
        t = torch.ones(3) * (1 if k % 2 else -1)
        assert torch.equal(compiled(t, own), f(t, twin))
    assert own.get_state()[1].tolist() == twin.get_state()[1].tolist()


def test_drawn_indices_beside_gradients(fresh):
    """What is drawn of probabilities with gradients has none."""

    def f(o, w):
        d = torch.distributions.Categorical(logits=o @ w)
        a = d.sample()
        return (d.log_prob(a) * o.sum(1)).mean() - d.entropy().mean(), a

    compiled, grads = fresh.compile(f), []
    for function in (f, compiled):
        seed_all(1)
        w = torch.linspace(-1, 1, 8).reshape(4, 2).requires_grad_()
        for k in range(6):
            loss, _ = function(torch.arange(4.0 * (5 + k % 2)).reshape(-1, 4) / 7, w)
            loss.backward()
        grads.append(w.grad)
    torch.testing.assert_close(*grads)
    told = fresh.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told


def test_noise_in_the_likeness_of_a_view_with_gradients(fresh):
    """A variational autoencoder: mu is half of what a layer gives, and does not lie row by row."""

    def f(x, w):
        mu, spread = (x @ w).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (spread * 0.5).exp() + torch.rand_like(spread.t()).t() + torch.randint_like(mu, 5)
        return z, (1 + spread - mu.pow(2) - spread.exp()).sum()

    compiled, seen = fresh.compile(f), []
    for function in (f, compiled):
        seed_all(1)
        w, values = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_(), []
        for k in range(6):
            z, kl = function(torch.arange(4.0 * (3 + k % 3)).reshape(-1, 4) / 9, w)
            (z.square().sum() + kl).backward()
            values.append((z.detach(), z.stride(), torch.rand(1)))
        seen.append((values, w.grad))
    for (z, strides, after), (y, ours, later) in zip(*(values for values, _ in seen)):
        torch.testing.assert_close(y, z)
        assert strides == ours and torch.equal(after, later)
    torch.testing.assert_close(seen[1][1], seen[0][1])
    told = fresh.cache_info(compiled)
    assert not told["breaks"] and told["outcomes"]["run"].get("graph"), told


def test_a_seed_that_is_computed(fresh):
    """Of a number that changes, it is a break and not a version for each."""

    def f(a, n):
        np.random.seed(n * 2 + 1)
        g = np.random.default_rng(n + 1)
        return a * 2 + g.random() + np.random.rand()

    told = as_eager(fresh, f, [lambda n=n: (np.ones(3), n) for n in range(2, 12)], breaks=2)
    assert told["segments"] <= 6, told
