"""Programs with loops: what repeats is not unrolled, what does not pay is left to Python, and first results come soon. The option
`leave` is off in the other tests, and on here where it is what is tested."""

import time

import framejit
import numpy as np
import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def leave():
    with framejit.config.patch(leave=True):
        yield


def breaks(compiled, *args):
    return framejit.explain(compiled)(*args).break_reasons


def test_a_loop_that_repeats_is_cut_and_its_body_is_one_segment():
    def program(y, n):
        for _ in range(n):
            y = y + 0.01 * torch.sin(y)
        return y * 2

    x = torch.randn(50)
    compiled = framejit.compile(program)
    for n in (500, 500, 300, 0, 1):
        assert torch.allclose(compiled(x, n), program(x, n))
    info = compiled.cache_info()
    assert info["kernels"] <= 6  # 500 rounds have one kernel
    assert any("FJ0014" in reason for reason in breaks(framejit.compile(program), x, 500))


def test_short_loops_are_one_graph():
    def program(y):
        for i in range(12):
            y = y * 1.5 + i
        return y

    compiled = framejit.compile(program)
    assert torch.equal(compiled(torch.ones(4)), program(torch.ones(4)))
    assert compiled.cache_info()["segments"] == 1 and not compiled.cache_info()["breaks"]


def test_fullgraph_unrolls():
    def program(y):
        for _ in range(100):
            y = torch.sin(y)
        return y

    compiled = framejit.compile(program, fullgraph=True)
    assert torch.allclose(compiled(torch.ones(4)), program(torch.ones(4)))
    assert compiled.cache_info()["segments"] == 1


@pytest.mark.parametrize("kind", ["sequential", "list", "range", "buffers"])
def test_layers_with_weights_are_no_repetition(kind):
    class Scale(torch.nn.Module):
        def __init__(self, i):
            super().__init__()
            if kind == "buffers":
                self.register_buffer("w", torch.full((3,), 1 + i / 1000))
            else:
                self.w = torch.nn.Parameter(torch.full((3,), 1 + i / 1000))

        def forward(self, x):
            return torch.sin(x * self.w)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Scale(i) for i in range(120))
            self.all = torch.nn.Sequential(*self.layers)

        def forward(self, x):
            if kind == "sequential":
                return self.all(x)
            if kind == "range":
                for i in range(len(self.layers)):
                    x = self.layers[i](x)
            else:
                for layer in self.layers:
                    x = layer(x)
            return x

    model = Model()
    compiled = framejit.compile(model)
    with torch.no_grad():
        assert torch.allclose(compiled(torch.ones(3)), model(torch.ones(3)))
    report = framejit.explain(model)(torch.ones(3))
    assert report.graph_break_count == 0


def test_a_loop_in_a_called_function_is_cut_there():
    def settle(y, n):
        for _ in range(n):
            y = y - 0.1 * y * y
        return y

    def program(x, n):
        a = settle(torch.relu(x), n)
        return settle(a + 1, n) * 2

    x = torch.rand(20)
    compiled = framejit.compile(program)
    for n in (200, 200, 3, 150):
        assert torch.allclose(compiled(x, n), program(x, n))
    assert compiled.cache_info()["kernels"] < 30


def test_nested_loops_have_one_segment_a_round():
    def program(a):
        n = a.shape[0]
        for i in range(1, n):
            for j in range(i):
                a[i, j] -= a[i, :j] @ a[:j, j]
                a[i, j] /= a[j, j]
            for j in range(i, n):
                a[i, j] -= a[i, :i] @ a[:i, j]
        return a

    a = np.random.default_rng(0).random((20, 20)) + 20 * np.eye(20)
    compiled = framejit.compile(program)
    start = time.perf_counter()
    for _ in range(3):
        got, expected = compiled(a.copy()), program(a.copy())
        assert np.allclose(got, expected)
    assert time.perf_counter() - start < 60
    assert compiled.cache_info()["captures"] < 60


def test_generators_exceptions_and_breaks_in_cut_loops():
    log = []

    def program(x, n, bad):
        done = 0
        try:
            for i, y in enumerate(x * k for k in range(n)):
                x = x + y.sum() * 1e-6
                if i == bad:
                    raise ValueError(i)
                if i == n - 2:
                    break
                done += 1
        except ValueError as error:
            log.append(str(error))
        finally:
            log.append(done)
        return x, done

    compiled = framejit.compile(program)
    for n, bad in ((150, -1), (150, 140), (150, 3), (2, -1)):
        x = torch.ones(3)
        expected, wanted = program(x, n, bad), list(log)
        log.clear()
        got = compiled(x, n, bad)
        assert torch.allclose(got[0], expected[0]) and got[1] == expected[1] and log == wanted
        log.clear()


def test_while_loops_are_cut():
    def program(x):
        rounds = 0
        while rounds < 400:
            x = torch.cos(x)
            rounds += 1
        return x, rounds

    compiled = framejit.compile(program)
    for _ in range(3):
        got, rounds = compiled(torch.ones(5))
        assert rounds == 400 and torch.allclose(got, program(torch.ones(5))[0])
    assert compiled.cache_info()["kernels"] <= 6


@pytest.mark.clock
def test_numbers_alone_go_on_in_python():
    def program(values):
        total = 0
        for v in values:
            total += v * v % 7
        return total

    values = list(range(200_000))
    compiled = framejit.compile(program)
    start = time.perf_counter()
    program(values)
    eager = time.perf_counter() - start
    for _ in range(3):
        start = time.perf_counter()
        assert compiled(values) == program(values)
        assert time.perf_counter() - start < 2 + 10 * eager


def test_gradients_go_through_cut_loops():
    def program(w, n):
        y = w
        for _ in range(n):
            y = y + 0.01 * torch.sin(y)
        return y.sum()

    compiled = framejit.compile(program)
    for n in (120, 120, 5):
        a, b = (torch.linspace(0, 1, 7).requires_grad_() for _ in range(2))
        compiled(a, n).backward()
        program(b, n).backward()
        assert torch.allclose(a.grad, b.grad)


def slow_when_compiled(a):  # each store is a copy of the array in a graph
    for i in range(a.shape[0]):
        a[i, 0] = i
    return a


@pytest.mark.clock
def test_what_is_slower_compiled_is_left_to_python(leave):
    compiled = framejit.compile(slow_when_compiled, options={"scalar_loops": False})
    for _ in range(40):
        assert np.array_equal(compiled(np.ones((400, 300))), slow_when_compiled(np.ones((400, 300))))
    assert any("left to" in note for note in compiled.cache_info()["notes"])


@pytest.mark.clock
def test_calls_in_which_loops_become_code_are_not_measured(leave):
    loops = "".join(f"    if x == {k}.0:\n        for n in range(a.shape[0]):\n            a[n] = a[n] * 0.5 + {k}.0\n" for k in range(10))
    names = {}
    exec(f"def program(a, x):\n{loops}    return a\n", names)  # noqa: S102
    program = names["program"]
    compiled = framejit.compile(program)
    for x in range(60):
        assert np.array_equal(compiled(np.ones(300), x % 10.0), program(np.ones(300), x % 10.0))
    info = compiled.cache_info()
    assert info["scalar_loops"] >= 5 and not any("left to" in note for note in info["notes"])


@pytest.mark.clock
def test_memory_that_the_first_results_ask_for_does_not_count(leave):
    def softmax(x):
        return torch.softmax(x * 2 + 1, -1)

    compiled, x, kept = framejit.compile(softmax), torch.randn(2048, 2048), [None] * 4  # each result lies in new memory until one has died
    with torch.no_grad():
        for _ in range(40):
            kept = [*kept[1:], compiled(x)]
    assert not any("left to" in note for note in compiled.cache_info()["notes"])


@pytest.mark.clock
def test_nothing_is_left_where_algorithms_must_be_deterministic(leave):
    def program(a):
        for i in range(a.shape[0]):
            a[i, 0] = i
        return a

    torch.use_deterministic_algorithms(True)
    try:
        compiled = framejit.compile(program)
        for _ in range(40):
            compiled(np.ones((400, 300)))
        assert not any("left to" in note for note in compiled.cache_info()["notes"])
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.clock
def test_what_is_faster_compiled_is_kept(leave):
    def program(x):
        y = ((x * 2 + 1) * (x - 3) / (x * x + 1) - x * 0.5 + 4) * x - 2
        return ((y * 3 - 1) * (y + 5) / (y * y + 2) + y * 0.25 - 6) * y + 7

    def kept():
        compiled = framejit.compile(program)
        for _ in range(30):
            assert np.allclose(compiled(x), expected)
        info = compiled.cache_info()
        assert info["segments"] == 1
        return not info["notes"]

    # The rest of the machine may disturb the few samples of one compilation. What is left to Python by itself is so each time.
    x = np.linspace(0, 1, 400_000)
    expected = program(x)
    assert any(kept() for _ in range(4))


@pytest.mark.clock
def test_measuring_calls_functions_once(leave):
    calls = []

    def program(x, out):
        calls.append(len(calls))
        out += 1
        return x.sum()

    compiled, out = framejit.compile(program), np.zeros(3)
    for k in range(60):
        assert compiled(np.ones(8), out) == 8
        assert out[0] == k + 1 and len(calls) == k + 1


@pytest.mark.clock
def test_sizes_are_measured_by_themselves(leave):
    compiled = framejit.compile(slow_when_compiled)
    for n in (400, 3, 400, 3) * 15:
        assert np.array_equal(compiled(np.ones((n, 300))), slow_when_compiled(np.ones((n, 300))))


@pytest.mark.clock
def test_random_numbers_are_the_same_whoever_runs(leave):
    def program(x):
        return x + torch.rand(3) * 2

    compiled = framejit.compile(program)
    torch.manual_seed(0)
    expected = [program(torch.ones(3)) for _ in range(40)]
    torch.manual_seed(0)
    assert all(torch.allclose(compiled(torch.ones(3)), e) for e in expected)


@pytest.mark.clock
def test_exceptions_while_measuring(leave):
    def program(x, k):
        y = x * 2
        if k % 3 == 2:
            raise KeyError(k)
        return y + k

    compiled = framejit.compile(program)
    for k in range(60):
        if k % 3 == 2:
            with pytest.raises(KeyError):
                compiled(np.ones(3), k)
        else:
            assert compiled(np.ones(3), k)[0] == 2 + k


def test_too_many_versions_go_to_python_at_once():
    def program(x, name):
        return x * len(name) + 1

    compiled = framejit.compile(program, options={"max_entries": 4})
    x = np.ones(3)
    for k in range(200):
        assert compiled(x, "a" * (k + 1))[0] == k + 2
    assert compiled.cache_info()["captures"] == 4
    assert compiled(x, "a")[0] == 2


def test_versions_that_fit_still_run_beside_those_that_do_not():
    def program(x, name):
        return x * len(name) + 1

    compiled = framejit.compile(program, options={"max_entries": 2})
    for _ in range(5):
        for k in range(4):
            assert compiled(np.ones(3), "a" * (k + 1))[0] == k + 2
    assert compiled.cache_info()["segments"] == 2


def store_part(a, v, i, k):
    a[i, :k] = v[:k] * 2 + 1


def store_twice(a, v, i, k):
    a[i, :k] += v[:k]
    a[i + 1, k:] = a[i, k:] * 2
    return a.sum()


def store_moved(a, v, i, k):
    a[1:, 2:5] = a[:-1, 1:4]


def store_line_and_column(a, v, i, k):
    a[i] = v
    a[:, k] = 3
    a[i, k] = a[0, 0] + a[i, k - 1]


def store_through_views(a, v, i, k):
    b, t = a[1:], a.T
    b[i, :] = v
    t[k, 1:3] = v[1:3]
    b[:, k] *= 2
    return b


def store_flat(a, v, i, k):
    flat = a.reshape(-1)
    flat[i * 3 : k * 7] = 0.5
    a[1, 1] = flat[0]


def store_exchanged(a, v, i, k):
    a[i], a[k] = a[k].copy(), a[i].copy()


def store_borders(a, v, i, k):
    a[i, 1:-1] = a[i, :-2] + a[i, 2:]
    a[0, :] = a[1, :]
    a[-1] = a[-2]
    a[:, 0] = a[:, 1]
    a[:, -1] = 0


STORES = (store_part, store_twice, store_moved, store_line_and_column, store_through_views, store_flat, store_exchanged, store_borders)


@pytest.mark.parametrize("program", STORES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("order", ["C", "F", "apart"])
def test_stores_into_parts_of_arrays(program, order):
    compiled = framejit.compile(program)
    rng = np.random.default_rng(0)
    for i, k, n in ((1, 3, 8), (2, 4, 9), (0, 5, 8), (3, 2, 12), (1, 3, 200)):
        memory = rng.standard_normal((2 * n, 2 * n + 6))
        if order == "F":
            memory = np.asfortranarray(memory)
        other = memory.copy(order="K")
        part = (slice(None, None, 2), slice(None, None, 2)) if order == "apart" else (slice(0, n), slice(0, n + 3))
        v = rng.standard_normal(n + 3)
        expected, got = program(memory[part], v, i, k), compiled(other[part], v, i, k)
        assert np.array_equal(memory, other)
        assert expected is None and got is None or np.allclose(expected, got)
    info = compiled.cache_info()
    assert info["segments"] and not info["breaks"]


def test_a_store_that_fails_leaves_the_array_as_python_does():
    def program(a, i, v):
        a[i, 2:4] = v
        a[i + 1, 2:4] = v
        return a

    compiled = framejit.compile(program)
    for i, v in ((0, np.ones(2)), (1, np.ones(2)), (4, np.ones(2)), (2, np.ones(3)), (1, np.zeros(2))):
        expected, got = np.zeros((5, 6)), np.zeros((5, 6))
        errors = []
        for f, a in ((program, expected), (compiled, got)):
            try:
                f(a, i, v)
            except (IndexError, ValueError) as error:
                errors.append(repr(error))
        assert np.array_equal(expected, got) and len(errors) in (0, 2) and len(set(errors)) <= 1


@pytest.mark.clock
def test_what_gains_nothing_is_left_to_python(leave):
    def program(a, n):
        a[n] = n
        return a

    def left():
        compiled = framejit.compile(program)
        for _ in range(30):
            compiled(np.ones(400), 12)
        return any("left to" in note for note in compiled.cache_info()["notes"])

    assert any(left() for _ in range(4))  # the rest of the machine may disturb one measurement
