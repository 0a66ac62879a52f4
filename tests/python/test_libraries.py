"""Scenarios of libraries that are no dependency of the tests: each runs where its library is, and is compared with eager. The mechanisms behind
them have tests without the library (test_library_code.py, test_mutations.py, test_tools.py, test_lifetimes.py)."""

import io
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]
CALLS = 4


def _same(got, expected):
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(got, expected, rtol=1e-10)
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            _same(a, b)
    else:
        assert got == expected


def _agree(fresh, build, make):
    """Calls of two builds of a program, as written and compiled."""
    eager, compiled = build(), fresh.compile(build())
    for call in range(CALLS):
        _same(compiled(*make(call)), eager(*make(call)))


def test_numba_inside(fresh):
    numba = pytest.importorskip("numba")

    def build():
        @numba.njit
        def kernel(a):
            total = 0.0
            for v in a:
                total += v * v
            return total

        @numba.vectorize
        def both(a, b):
            return a * b + 1

        def f(a):
            b = a * 2 + 1
            scale = kernel(b)
            return b / scale + both(a, b)

        return f

    _agree(fresh, build, lambda call: (np.arange(5.0 + call) + call,))
    _agree(fresh, build, lambda call: (np.arange(5, dtype="f4" if call % 2 else "f8"),))  # which compiles again


def test_a_step_of_pyros_svi(fresh):
    pyro = pytest.importorskip("pyro")
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO

    def train(wrap):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)

        def model(data):
            loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(data)):
                pyro.sample("obs", dist.Normal(loc, 0.5), obs=data)

        def guide(data):
            mean = pyro.param("mean", torch.tensor(0.1))
            scale = pyro.param("scale", torch.tensor(1.0), constraint=dist.constraints.positive)
            pyro.sample("loc", dist.Normal(mean, scale))

        step = wrap(SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), loss=Trace_ELBO()).step)
        data = torch.linspace(-1, 3, 12)
        losses = [step(data) for _ in range(8)]
        return losses, pyro.param("mean").item(), pyro.param("scale").item()

    got, expected = train(fresh.compile), train(lambda f: f)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4)
    np.testing.assert_allclose(got[1:], expected[1:], rtol=1e-4)


def test_rich_and_tqdm_on_threads(fresh):
    rich, tqdm = pytest.importorskip("rich.console"), pytest.importorskip("tqdm")
    from rich.table import Table

    def build():
        streams = {}

        def f(x, who):
            stream = streams.setdefault(who, io.StringIO())
            console = rich.Console(file=stream, width=40, force_terminal=False)
            table = Table(title=str(tuple(x.shape)))
            table.add_column("name")
            table.add_row(str(int(x.sum())))
            with console.capture() as caught:
                console.print(table)
            y = x
            for _ in tqdm.tqdm(range(3), file=stream, disable=False, mininterval=100, bar_format="{n}", position=0):
                y = y * 2
            return y, caught.get(), stream.getvalue().replace("\r", "")

        return f

    _agree(fresh, build, lambda call: (torch.ones(2 + call), 0))
    eager, compiled, wrong = build(), fresh.compile(build()), []

    def work(who):
        try:
            for call in range(CALLS):
                x = torch.ones(2 + who) + call
                _same(compiled(x, who), eager(x, who))
        except BaseException as error:
            wrong.append((who, error))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[0]


def test_a_console_that_every_thread_has_of_its_own(fresh):
    rich = pytest.importorskip("rich.console")
    console = rich.Console(file=io.StringIO(), width=30, record=True)

    def f(x):
        with console.capture() as caught:
            console.print("sum", float(x.sum()))
        return x + 1, caught.get()

    compiled, wrong = fresh.compile(f), []

    def work(who):
        for call in range(6):
            x = torch.ones(3) * (who * 10 + call)
            got = compiled(x)
            if got[1] != f"sum {float(x.sum())}\n" or not torch.equal(got[0], x + 1):
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def _script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=170, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.parametrize("backend", ["threading", "loky", "multiprocessing"])
def test_joblib(backend, tmp_path):
    pytest.importorskip("joblib")
    done = _script(
        tmp_path,
        f"""
        import framejit, joblib, numpy as np

        @framejit.compile
        def scale(a, by):
            return a * by + 1

        def outer(a, by):
            return framejit.compile(lambda v: np.exp(-v) * by)(a)

        if __name__ == "__main__":
            a = np.arange(5.0)
            got = joblib.Parallel(n_jobs=2, backend="{backend}")(joblib.delayed(scale)(a, i) for i in range(6))
            assert all(np.array_equal(g, a * i + 1) for i, g in enumerate(got)), got
            got = joblib.Parallel(n_jobs=2, backend="{backend}")(joblib.delayed(outer)(a, i) for i in range(6))
            assert all(np.allclose(g, np.exp(-a) * i) for i, g in enumerate(got)), got
            print("done")
        """,
    )
    assert done.stdout == "done\n"


def test_joblib_memory(fresh, tmp_path):
    joblib = pytest.importorskip("joblib")
    memory = joblib.Memory(tmp_path, verbose=0)
    counted = []

    @memory.cache
    def slow(a):
        counted.append(1)
        return a * 2

    def f(a):
        return slow(a) + 1

    compiled = fresh.compile(f)
    for _ in range(3):
        _same(compiled(np.arange(3.0)), np.arange(3.0) * 2 + 1)
    assert len(counted) == 1


def test_cloudpickle(fresh):
    cloudpickle = pytest.importorskip("cloudpickle")
    by = 3

    def f(x):
        return x * by + 1

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x):
            return torch.relu(self.inner(x))

    x = torch.randn(3, 2)
    compiled = fresh.compile(f)
    for call in range(2):  # before and after there is compiled code
        back = pickle.loads(cloudpickle.dumps(compiled))
        _same(back(x), f(x))
        assert type(back) is type(compiled)
        _same(compiled(x), f(x))
    net = Net()
    model = fresh.compile(net)
    _same(model(x), net(x))
    back = pickle.loads(cloudpickle.dumps(model))
    _same(back(x), net(x))
    lines = cloudpickle.dumps(lambda x: compiled(x) + compiled(x))  # held by a closure
    _same(pickle.loads(lines)(x), f(x) * 2)


def test_beartype(fresh):
    beartype = pytest.importorskip("beartype")

    def build():
        @beartype.beartype
        def inner(x: torch.Tensor, n: int, names: list[str]) -> torch.Tensor:
            return x * n + len(names)

        def f(x, n, names):
            try:
                return inner(x, n, names)
            except beartype.roar.BeartypeCallHintViolation as error:
                return type(error).__name__

        return f

    sets = [(torch.ones(2), 1, ["a"]), (torch.ones(2), 2, ["a", "b"]), (torch.ones(2), 1.5, ["a"]), (torch.ones(2), 1, [3])]
    _agree(fresh, build, lambda call: sets[call])


def test_typeguard(fresh):
    typeguard = pytest.importorskip("typeguard")

    def build():
        def inner(x: torch.Tensor, n: int) -> torch.Tensor:
            y: torch.Tensor = x * n
            return y + 1

        inner = typeguard.typechecked(inner)

        def f(x, n):
            try:
                return inner(x, n)
            except typeguard.TypeCheckError as error:
                return str(error)

        return f

    _agree(fresh, build, lambda call: (torch.ones(2 + call), (1, 2, 1.5, 3)[call]))


@pytest.mark.parametrize("checker", ["beartype", "typeguard"])
def test_jaxtyping(fresh, checker):
    jaxtyping, checking = pytest.importorskip("jaxtyping"), pytest.importorskip(checker)
    checks = checking.beartype if checker == "beartype" else checking.typechecked

    def build():
        @jaxtyping.jaxtyped(typechecker=checks)
        def inner(a: jaxtyping.Float[torch.Tensor, "n m"], b: jaxtyping.Float[torch.Tensor, "m k"]) -> jaxtyping.Float[torch.Tensor, "n k"]:  # noqa: F722
            return a @ b

        def f(a, b):
            try:
                return inner(a, b)
            except Exception as error:
                return type(error).__name__

        return f

    sets = [((2, 3), (3, 4)), ((5, 3), (3, 2)), ((2, 3), (4, 4)), ((2, 3), (3, 4))]
    _agree(fresh, build, lambda call: [torch.ones(s) for s in sets[call]])
    _agree(fresh, build, lambda call: [torch.ones(sets[call][0]), torch.ones(sets[call][1], dtype=(torch.int64, torch.float32)[call % 2])])


def test_a_simulation_of_python_control(fresh):
    control = pytest.importorskip("control")

    def build():
        def f(gain, times):
            plant = control.tf([1.0], [1.0, 2.0, 1.0])
            closed = control.feedback(gain * plant, 1)
            space = control.ss(closed)
            answer = control.step_response(space, times)
            forced = control.forced_response(space, times, np.sin(times))
            k, s, e = control.lqr(space, np.eye(space.nstates), np.eye(1))
            return np.asarray(answer.outputs), np.asarray(forced.outputs), np.asarray(k), np.asarray(s)

        return f

    _agree(fresh, build, lambda call: (1.0 + call, np.linspace(0, 5, 40 + call)))


def test_a_simulation_of_a_nonlinear_system_of_python_control(fresh):
    control = pytest.importorskip("control")

    def build():
        def f(size):
            system = control.NonlinearIOSystem(lambda t, x, u, p: np.array([x[1], -np.sin(x[0]) - 0.2 * x[1] + u[0]]), lambda t, x, u, p: x[:1], inputs=1, outputs=1, states=2)
            times = np.linspace(0, 2, size)
            return np.asarray(control.input_output_response(system, times, np.zeros(size), [0.5, 0.0]).outputs)

        return f

    _agree(fresh, build, lambda call: (20 + call,))


def test_solvers_of_scipy_that_control_stands_on(fresh):
    linalg = pytest.importorskip("scipy.linalg")

    def build():
        def f(a, q):
            return linalg.solve_continuous_are(a, np.eye(len(a)), q, np.eye(len(a))), linalg.expm(a), linalg.solve_lyapunov(a, q)

        return f

    def make(call):
        rng = np.random.default_rng(call)
        a = rng.normal(size=(6 + call, 6 + call))
        return a, a @ a.T + np.eye(6 + call)

    eager, compiled = build(), fresh.compile(build())
    for call in range(CALLS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for a, b in zip(compiled(*make(call)), eager(*make(call))):
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_an_adaptive_solver_of_torchdiffeq_is_one_graph(fresh):
    torchdiffeq = pytest.importorskip("torchdiffeq")

    def build():
        return lambda x: torchdiffeq.odeint(lambda t, y: -y + t, x, torch.linspace(0, 1, 5), method="dopri5")

    told = fresh.explain(build())(torch.ones(8))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    _agree(fresh, build, lambda call: (torch.linspace(-1, 1, 8 + call),))
