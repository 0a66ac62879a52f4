"""Random numbers that are not torch's, in one graph: the values and the states afterwards are eager's, whatever the segment does."""

import random
import signal
import threading

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def x(k=0):
    return torch.arange(12.0).reshape(3, 4) - k


def states():
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, keys.tolist(), rest


def seed(k):
    random.seed(k)
    np.random.seed(k)


def outcome(f, *args):
    try:
        return f(*args)
    except ValueError as e:
        return str(e)


def as_eager(fresh, f, make=x, rounds=6, graphs=1):
    """What f gives in so many calls, and each state behind them, compiled and as written."""
    seed(0)
    told = fresh.explain(f)(make(0))
    if graphs:
        assert (told.graph_count, told.graph_break_count) == (graphs, 0), str(told)
    runs = []
    for function in (f, fresh.compile(f)):
        seed(1)
        runs.append([(outcome(function, make(k)), states()) for k in range(rounds)])
    for (expected, after), (got, after_ours) in zip(*runs):
        assert type(got) is type(expected)
        if isinstance(expected, str):
            assert got == expected
        else:
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
        assert after == after_ours
    return told


def test_of_python(fresh):
    as_eager(fresh, lambda t: t * random.random() + random.random())
    as_eager(fresh, lambda t: t * random.uniform(1, 2) - random.betavariate(2, 3) * 0)
    as_eager(fresh, lambda t: t + random.randint(0, 5))
    as_eager(fresh, lambda t: t + random.gauss(0, 1))  # every second one was made before


def test_of_numpy(fresh):
    as_eager(fresh, lambda t: t * float(np.random.rand()))
    as_eager(fresh, lambda t: t * np.random.uniform(0.5, 1.5) + np.random.beta(1.0, 1.0))
    as_eager(fresh, lambda t: t + np.random.randint(0, 300))
    as_eager(fresh, lambda t: t + np.random.normal() * np.random.standard_normal())


def test_arrays(fresh):
    as_eager(fresh, lambda t: t + torch.from_numpy(np.random.randn(3, 4)).float())
    as_eager(fresh, lambda t: t[torch.as_tensor(np.random.permutation(3))])

    def written(t):
        noise = np.random.rand(4)
        noise[1:] *= 2
        return t + torch.from_numpy(noise), noise

    as_eager(fresh, written, graphs=0)


def test_array_that_leaves_is_another_one_each_time(fresh):
    def f(t):
        return t + 1, np.random.rand(3)

    compiled = fresh.compile(f)
    kept = [compiled(x())[1] for _ in range(3)]
    assert len({a.tobytes() for a in kept}) == 3


def test_the_program_goes_by_them(fresh):
    def coin(t):
        return t + 1 if random.random() < 0.5 else t - 1

    as_eager(fresh, coin, rounds=20)

    def dropped(t):
        for _ in range(3):
            if np.random.rand() > 0.3:
                t = t * 2
        return t

    as_eager(fresh, dropped, rounds=20)

    def shuffled(t):
        order = [0, 1, 2]
        random.shuffle(order)
        return t[order] * random.choice([1, 2, 3])

    as_eager(fresh, shuffled, rounds=30)
    as_eager(fresh, lambda t: t[random.sample(range(3), 2)], rounds=12)


def test_of_generators_of_the_program(fresh):
    own = random.Random(3)
    made = np.random.default_rng(3)

    def f(t):
        return t * own.random() + made.normal() + torch.from_numpy(made.random(4))

    runs = []
    told = fresh.explain(f)(x())
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    for function in (f, fresh.compile(f)):
        own.seed(5)
        made.bit_generator.state = np.random.default_rng(5).bit_generator.state
        runs.append([function(x(k)) for k in range(5)])
        runs[-1].append((own.getstate(), made.bit_generator.state))
    for a, b in zip(*runs):
        assert torch.equal(a, b) if torch.is_tensor(a) else a == b


def test_another_generator_of_the_same_name(fresh):
    class Holder:
        pass

    holder = Holder()

    def f(t):
        return t * holder.rng.random()

    compiled = fresh.compile(f)
    for k in (1, 2, 1):
        ours, theirs = random.Random(k), random.Random(k)
        for _ in range(2):
            holder.rng = ours
            got = compiled(x())
            holder.rng = theirs
            assert torch.equal(got, f(x()))
        assert ours.getstate() == theirs.getstate()


def test_nothing_is_drawn_where_a_guard_fails(fresh):
    def f(t, flag):
        return t * random.random() if flag else t

    as_eager(fresh, lambda t: f(t, True))
    compiled = fresh.compile(f)
    compiled(x(), True)
    before = random.getstate()
    assert torch.equal(compiled(x(), False), x())
    assert random.getstate() == before
    other = torch.ones(5, dtype=torch.float64)  # the segment for float32 has drawn when it sees that
    random.seed(9)
    expected = f(other, True)
    random.seed(9)
    assert torch.equal(compiled(other, True), expected)


def test_a_guess_that_fails_puts_them_back(fresh):
    def inner(t):
        return t * 2 if t.sum() > 0 else t * 3

    def f(t):
        return inner(t) * random.random() + np.random.rand()

    as_eager(fresh, f, make=lambda k: x() * (1 if k % 2 else -1), rounds=8)


def test_exceptions(fresh):
    def f(t):
        k = random.random()
        if t.shape[0] == 3:
            return t * k
        raise ValueError(f"{k}")

    as_eager(fresh, f, make=lambda k: torch.ones(3 + k % 2))


def test_with_gradients(fresh):
    def f(t, w):
        return (t * w * np.random.uniform(1, 2)).sum()

    grads = []
    for function in (f, fresh.compile(f)):
        seed(2)
        w = torch.ones(4, requires_grad=True)
        for k in range(3):
            function(x(k), w).backward()
        grads.append(w.grad)
    assert torch.equal(*grads)


@pytest.mark.parametrize(
    "f",
    [
        lambda t: (random.seed(4), t * random.random())[1],
        lambda t: (np.random.seed(4), t * np.random.rand())[1],
        lambda t: t * random.Random(7).random(),
        lambda t: t * np.random.default_rng(7).random(),
        lambda t: t * len(random.getstate()) + random.random(),
        lambda t: t + int(np.random.choice(3)) + np.random.choice([1.0, 2.0]),
        lambda t: t + random.getrandbits(80) % 7,
        lambda t: t + float(np.random.RandomState(3).rand()),
    ],
)
def test_what_is_more_than_a_draw(fresh, f):
    as_eager(fresh, f, graphs=0)


def test_interrupts_of_draws_reach_the_program(fresh):
    """While it waits for the lock of a generator, which another thread holds."""
    generator = np.random.default_rng(0)

    def f(t):
        return t * generator.random()

    compiled = fresh.compile(f)
    compiled(x())
    compiled(x())
    held, released = threading.Event(), threading.Event()

    def hold():
        with generator.bit_generator.lock:
            held.set()
            released.wait(3)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    thread = threading.Thread(target=hold)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        thread.start()
        held.wait()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            compiled(x())
        assert thread.is_alive()
    finally:
        released.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        thread.join()
    assert fresh.cache_info(compiled)["breaks"] == 0


def spans(batch, length, share, span, epsilon):
    """The rows of a mask in spans, as SpecAugment of transformers chooses them."""

    def count():
        n = max(int(share * length / span + epsilon), 2)
        return length // span if n * span > length else n

    mask, chosen, most = np.zeros((batch, length), dtype=bool), [], count()
    for _ in range(batch):
        n = count()
        first = np.random.choice(np.arange(length - (span - 1)), n, replace=False)
        chosen.append(np.concatenate([first, np.ones(most - n, dtype=np.int32) * first[0]]))
    places = np.broadcast_to(np.array(chosen)[:, :, None], (batch, most, span)).reshape(batch, most * span)
    offsets = np.broadcast_to(np.arange(span)[None, None, :], (batch, most, span)).reshape(batch, most * span)
    places = places + offsets
    if places.max() > length - 1:
        places[places > length - 1] = length - 1
    np.put_along_axis(mask, places, 1, -1)
    return mask


def augmented(x):
    y = x * 2
    y[torch.tensor(spans(2, 20, 0.5, 3, np.random.rand(1).item()), dtype=torch.bool)] = 0
    return y + 1


def test_spans_that_random_numbers_choose(fresh):
    as_eager(fresh, augmented, lambda k: torch.arange(120.0).reshape(2, 20, 3) + k, rounds=12)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * np.random.rand(1).item(),
        lambda x: x[: np.random.randint(1, 3, size=1).item()] + 1,
        lambda x: x * np.random.rand(1, 1).item() + np.random.rand(),
        lambda x: x + torch.from_numpy(np.random.permutation(np.arange(4))),
        lambda x: x + torch.from_numpy(np.random.choice(np.array([1.0, 2.0, 4.0]), 4)),
    ],
)
def test_items_of_drawn_arrays(fresh, f):
    as_eager(fresh, f, rounds=8, graphs=0)
    compiled = fresh.compile(f)
    for k in range(8):
        compiled(x(k))
    assert not fresh.cache_info(compiled)["breaks"], fresh.cache_info(compiled)


def test_an_item_of_a_drawn_array_that_was_written_to(fresh):
    def f(x):
        drawn = np.random.rand(1)
        before = drawn.item()
        drawn += 1
        return x * before + drawn.item()

    as_eager(fresh, f, graphs=0)


def as_numpy(fresh, f, makes, whole=True):
    """Results, the argument behind the call, and the states are as written, call by call; all in one graph."""
    compiled = fresh.compile(f)
    for number, make in enumerate(makes):
        runs = []
        for function in (f, compiled):
            seed(number)
            a = make()
            runs.append((function(a), a, states()))
        (expected, written, after), (got, ours, after_ours) = runs
        assert type(got) is type(expected) and after == after_ours
        assert np.array_equal(written, ours) and np.array_equal(expected, got) and getattr(expected, "strides", 0) == getattr(got, "strides", 0)
    told = fresh.cache_info(compiled)
    assert told["breaks"] == (not whole) and told["outcomes"]["run"].get("graph"), told


MADE = np.random.default_rng(3)


def shuffled(a):
    np.random.shuffle(a)
    return a * 2


def shuffled_part(a):
    b = a * 2
    np.random.shuffle(b[1:, 0])
    return b + np.random.rand()


def shuffled_columns(a):
    b = a + 1
    MADE.shuffle(b, axis=1)
    MADE.shuffle(b)
    return b


@pytest.mark.parametrize(
    "f",
    [
        shuffled,
        shuffled_part,
        shuffled_columns,
        lambda a: np.random.permutation(a) + 1,
        lambda a: MADE.permutation(a, axis=1) * 2,
        lambda a: MADE.permutation(a, 1) * 2,
        lambda a: np.random.choice(a[:, 0], 3) * 2,
        lambda a: np.random.choice(a.ravel(), (2, 2), replace=False) * 2,
        lambda a: np.random.choice(a[:, 0] + 1, p=[0.25, 0.5, 0.25]) * a,
        lambda a: MADE.choice(a, 2, axis=1) + 1,
        lambda a: MADE.choice(a, (2, 1)) + 1,
    ],
)
def test_arrays_in_another_order(fresh, f):
    def state():
        MADE.bit_generator.state = np.random.default_rng(7).bit_generator.state

    def whole(a):
        return f(a)

    makes = [lambda k=k: (state(), np.arange(12.0).reshape(3, 4) + k)[1] for k in range(5)]
    as_numpy(fresh, whole, makes)
    turned = [lambda k=k: (state(), np.asfortranarray(np.arange(12, dtype=np.int32).reshape(3, 4) + k))[1] for k in range(3)]
    as_numpy(fresh, whole, turned)


def test_shuffled_arrays_of_other_sizes(fresh):
    as_numpy(fresh, shuffled, [lambda n=n: np.arange(2.0 * n).reshape(n, 2) for n in (3, 5, 1, 5, 2, 7, 3)])
    as_numpy(fresh, shuffled, [lambda n=n: np.arange(float(n)) for n in (4, 6, 1, 2)])
    for shape in ((0,), (3, 0), (0, 3)):
        as_numpy(fresh, lambda a: np.random.permutation(a + 1), [lambda k=k: np.ones((3, 3)) for k in range(3)])
        compiled = fresh.compile(shuffled)
        before = states()
        for _ in range(3):
            assert compiled(np.ones(shape)).shape == shape
        assert states() == before


class Turned(np.random.Generator):
    def permutation(self, x, axis=0):
        return -super().permutation(x)


class Still(np.random.RandomState):
    def permutation(self, x):
        return np.arange(x)


@pytest.mark.parametrize("make", [lambda: Turned(np.random.PCG64(1)), lambda: Still(1)])
def test_a_generator_with_a_method_of_its_own(fresh, make):
    def f(a, g):
        b = a * 2
        g.shuffle(b)
        return b

    compiled, mine, theirs = fresh.compile(f), make(), make()
    for _ in range(4):
        np.testing.assert_array_equal(compiled(np.arange(5.0), mine), f(np.arange(5.0), theirs))


def test_a_shuffled_index_of_torchs(fresh):
    def f(t):
        order = np.arange(t.shape[0])
        np.random.shuffle(order)
        return t[torch.from_numpy(order)] + 1

    as_eager(fresh, f, rounds=8)


@pytest.mark.parametrize(
    "f",
    [
        lambda a: (np.random.shuffle(np.broadcast_to(a[:1], (3, 4))), a)[1],  # it may not be written
        lambda a: np.random.choice(a, 2),  # of one axis alone
        lambda a: MADE.permutation(a, axis=2),
        lambda a: np.random.choice(a[0], 9, replace=False),
    ],
)
def test_what_numpy_refuses_to_arrange(fresh, f):
    compiled = fresh.compile(f)
    for _ in range(3):
        told = []
        for function in (f, compiled):
            with pytest.raises(ValueError) as error:
                function(np.ones((3, 4)))
            told.append(str(error.value))
        assert told[0] == told[1]
