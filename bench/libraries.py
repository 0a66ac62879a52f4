"""Programs of other people's libraries, as their documentation shows them. Each runs in a process of its own, on four calls with
changing sizes, eager and compiled; results and exceptions are compared, and calls are timed behind the first four.

    python -m bench.libraries [NAME...] [--json FILE] [--limit SECONDS]

One row a program: right or what differed, breaks, graphs, seconds of the first call (eager's in brackets), and how many times
faster than eager later calls are. Programs whose library is not installed are left out. TorchVision, transformers and timm have
`bench.width`.
"""

import argparse
import json
import math
import subprocess
import sys
import time
import warnings

from bench import measure

PROGRAMS = {}
SIZES = (8, 12, 12, 17)
NOISE = 0.3  # of the median: half the distance of the quartiles; what is noisier has no ratio


def program(*needs):
    """The decorated function imports the library and returns (function to compile, size -> arguments)."""

    def add(make):
        PROGRAMS[make.__name__.replace("_", " ")] = (make, needs)
        return make

    return add


def array(*shape, seed=0):
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape)


def tensor(*shape, seed=0):
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- tables ------------------------------------------------------------------------------------------------------------
@program("pandas")
def pandas_groupby():
    import pandas as pd

    def mean_by_key(values):
        frame = pd.DataFrame({"key": [i % 3 for i in range(len(values))], "value": values})
        return frame.groupby("key")["value"].mean().to_numpy()

    return mean_by_key, lambda n: (array(n),)


@program("pandas")
def pandas_rolling():
    import pandas as pd

    def smoothed(values):
        series = pd.Series(values, index=pd.date_range("2024-01-01", periods=len(values)))
        return (series.rolling(3).mean().fillna(0) - series.shift(1).fillna(0)).to_numpy()

    return smoothed, lambda n: (array(n),)


@program("pandas")
def pandas_columns():
    import pandas as pd

    def standardised(values):
        frame = pd.DataFrame(values, columns=["a", "b"])
        frame["c"] = frame["a"] * frame["b"]
        return ((frame - frame.mean()) / frame.std()).loc[frame["c"] > 0].to_numpy()

    return standardised, lambda n: (array(n, 2),)


@program("xarray")
def xarray_anomaly():
    import xarray as xr

    def anomaly(values):
        data = xr.DataArray(values, dims=("time", "x"), coords={"x": range(values.shape[1])})
        return (data - data.mean("time")).sel(x=1).to_numpy()

    return anomaly, lambda n: (array(n, 4),)


@program("statsmodels")
def statsmodels_ols():
    import statsmodels.api as sm

    def fit(x, y):
        result = sm.OLS(y, sm.add_constant(x)).fit()
        return result.params, result.rsquared

    return fit, lambda n: (array(n, 2), array(n, seed=1))


# --- learning ----------------------------------------------------------------------------------------------------------
@program("sklearn")
def sklearn_pipeline():
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def fit(x, y):
        return make_pipeline(StandardScaler(), Ridge()).fit(x, y).predict(x)

    return fit, lambda n: (array(n, 3), array(n, seed=1))


@program("sklearn")
def sklearn_predict():
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(array(50, 3), array(50) > 0)

    def probabilities(x):
        return model.predict_proba(x)[:, 1]

    return probabilities, lambda n: (array(n, 3),)


@program("sklearn")
def sklearn_metrics():
    from sklearn.metrics import mean_squared_error, pairwise_distances

    def score(x, y):
        return mean_squared_error(x, y), pairwise_distances(x, y)

    return score, lambda n: (array(n, 3), array(n, 3, seed=1))


# --- scipy and its like ------------------------------------------------------------------------------------------------
@program("scipy")
def scipy_signal():
    from scipy import signal

    def filtered(x):
        b, a = signal.butter(3, 0.2)
        return signal.filtfilt(b, a, x, padlen=3), signal.welch(x, nperseg=8)[1]

    return filtered, lambda n: (array(4 * n),)


@program("scipy")
def scipy_optimize():
    import numpy as np
    from scipy import optimize

    def fit(x):
        return optimize.minimize(lambda p: np.sum((x * p[0] + p[1]) ** 2), np.ones(2), method="BFGS").x.round(3)

    return fit, lambda n: (array(n),)


@program("scipy")
def scipy_linalg():
    from scipy import linalg

    def solved(a, b):
        return linalg.solve(a @ a.T + 1, b), linalg.expm(a / 10)

    return solved, lambda n: (array(n, n), array(n))


@program("scipy")
def scipy_interpolate():
    from scipy import interpolate

    def resampled(y):
        spline = interpolate.CubicSpline(range(len(y)), y)
        return spline([0.5, 1.5]), spline.integrate(0, 2)

    return resampled, lambda n: (array(n),)


@program("control")
def control_simulation():
    import control

    def response(k):
        system = control.tf([float(k)], [1, 2, float(k)])
        _, y = control.step_response(system, T=[0.1 * i for i in range(10)])
        gain, _, _ = control.lqr([[0, 1], [-1, -1]], [[0], [1]], [[1, 0], [0, 1]], [[1]])
        return y, gain

    return response, lambda n: (n,)


@program("filterpy")
def filterpy_kalman():
    import numpy as np
    from filterpy.kalman import KalmanFilter

    def track(z):
        f = KalmanFilter(dim_x=2, dim_z=1)
        f.F, f.H = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])
        for value in z:
            f.predict()
            f.update(value)
        return f.x

    return track, lambda n: (array(n),)


@program("skimage")
def skimage_edges():
    from skimage import filters

    def edges(image):
        return filters.gaussian(filters.sobel(image), 1)

    return edges, lambda n: (array(n, n),)


@program("shapely")
def shapely_areas():
    import numpy as np
    import shapely

    def areas(points):
        shapes = [shapely.Point(p).buffer(1.0) for p in points]
        return np.array([s.area for s in shapes]), shapely.unary_union(shapes).area

    return areas, lambda n: (array(n, 2),)


@program("numexpr")
def numexpr_evaluate():
    import numexpr

    def f(a, b):
        return numexpr.evaluate("2 * a + 3 * b ** 2")

    return f, lambda n: (array(n), array(n, seed=1))


@program("numba")
def numba_callee():
    import numba

    @numba.njit
    def total(x):
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i] * x[i]
        return s

    def norm(x):
        return (x / total(x)) * 2 + 1

    return norm, lambda n: (array(n),)


@program("networkx")
def networkx_paths():
    import networkx as nx

    def ranks(n):
        graph = nx.path_graph(n)
        graph.add_edge(0, n - 1)
        return nx.pagerank(graph), nx.shortest_path_length(graph, 0, n // 2)

    return ranks, lambda n: (n,)


@program("sympy")
def sympy_lambdify():
    import sympy

    x, y = sympy.symbols("x y")
    f = sympy.lambdify((x, y), sympy.diff(sympy.sin(x * y) ** 2, x), "numpy")

    def evaluated(a, b):
        return f(a, b) + 1

    return evaluated, lambda n: (array(n), array(n, seed=1))


@program("dask")
def dask_array():
    import dask.array as da

    def mean(x):
        return (da.from_array(x, chunks=4) ** 2).mean().compute(scheduler="synchronous")

    return mean, lambda n: (array(n),)


@program("joblib")
def joblib_threads():
    import joblib
    import torch

    def parts(x):
        return torch.stack(joblib.Parallel(2, backend="threading")(joblib.delayed(torch.sin)(row) for row in x))

    return parts, lambda n: (tensor(n, 3),)


@program("joblib", "cloudpickle")
def cloudpickle_closure():
    import cloudpickle

    def sent(x, k):
        return cloudpickle.loads(cloudpickle.dumps(lambda y: y * k + 1))(x)

    return sent, lambda n: (tensor(n), n)


@program("dill")
def dill_closure():
    import dill

    def sent(x, k):
        return dill.loads(dill.dumps(lambda y: y * k + 1))(x)

    return sent, lambda n: (tensor(n), n)


# --- types, settings, output -------------------------------------------------------------------------------------------
@program("jaxtyping", "beartype")
def jaxtyping_checked():
    from beartype import beartype
    from jaxtyping import Float, jaxtyped
    from torch import Tensor

    @jaxtyped(typechecker=beartype)
    def product(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
        return a @ b + 1

    def f(a, b):
        return product(a, b).relu()

    return f, lambda n: (tensor(n, 3), tensor(3 if n < 17 else 4, n))  # the last call is refused


@program("beartype")
def beartype_checked():
    from beartype import beartype
    from torch import Tensor

    @beartype
    def scaled(x: Tensor, k: int) -> Tensor:
        return x.sin() * k + 1

    return scaled, lambda n: (tensor(n), n if n < 17 else str(n))


@program("typeguard")
def typeguard_checked():
    from torch import Tensor
    from typeguard import typechecked

    @typechecked
    def scaled(x: Tensor, k: int) -> Tensor:
        return x.sin() * k + 1

    def f(x, k):
        return scaled(x, k) + 1

    return f, lambda n: (tensor(n), n if n < 17 else str(n))


@program("omegaconf")
def omegaconf_settings():
    from omegaconf import OmegaConf

    settings = OmegaConf.create({"scale": 2.0, "layers": [{"bias": 1.0}, {"bias": 2.0}]})

    def f(x):
        for layer in settings.layers:
            x = (x * settings.scale + layer.bias).tanh()
        return x

    return f, lambda n: (tensor(n),)


@program("hydra")
def hydra_instantiate():
    from hydra.utils import instantiate

    def f(x):
        layer = instantiate({"_target_": "torch.nn.LayerNorm", "normalized_shape": x.shape[-1]})
        return layer(x)

    return f, lambda n: (tensor(3, n),)


@program("pydantic")
def pydantic_settings():
    import pydantic

    class Settings(pydantic.BaseModel):
        scale: float = 2.0
        steps: int

    def f(x, n):
        settings = Settings(steps=n)
        return (x * settings.scale).sin() + settings.steps

    return f, lambda n: (tensor(n), n if n < 17 else "many")


@program("attr")
def attrs_state():
    import attrs
    import torch

    @attrs.define
    class State:
        x: torch.Tensor
        steps: int = 0

        def next(self):
            return attrs.evolve(self, x=self.x.sin() + 1, steps=self.steps + 1)

    def f(x):
        state = State(x).next().next()
        return state.x, state.steps

    return f, lambda n: (tensor(n),)


@program("rich")
def rich_output():
    import io

    from rich.console import Console
    from rich.table import Table

    def f(x):
        console = Console(file=io.StringIO(), width=60)
        table = Table("a", "b")
        table.add_row("sum", f"{x.sum().item():.3f}")
        console.print(table)
        return console.file.getvalue(), x * 2

    return f, lambda n: (tensor(n),)


@program("tqdm")
def tqdm_loop():
    import io

    import tqdm

    def f(x):
        for _ in tqdm.tqdm(range(5), file=io.StringIO()):
            x = (x * 1.1).sin()
        return x

    return f, lambda n: (tensor(n),)


# --- torch -------------------------------------------------------------------------------------------------------------
@program("einops")
def einops_attention():
    from einops import einsum, rearrange, reduce

    def f(x):
        q = rearrange(x, "b t (h d) -> b h t d", h=2)
        a = einsum(q, q, "b h i d, b h j d -> b h i j").softmax(-1)
        return reduce(rearrange(a @ q, "b h t d -> b t (h d)"), "b t c -> b c", "mean")

    return f, lambda n: (tensor(2, n, 8),)


@program("opt_einsum")
def opt_einsum_contract():
    import opt_einsum

    def f(a, b, c):
        return opt_einsum.contract("ij,jk,kl->il", a, b, c)

    return f, lambda n: (tensor(n, 3), tensor(3, 4), tensor(4, n))


@program("kornia")
def kornia_filters():
    import kornia

    def f(image):
        return kornia.filters.sobel(kornia.filters.gaussian_blur2d(image, (3, 3), (1.0, 1.0)))

    return f, lambda n: (tensor(1, 3, n, n),)


@program("gpytorch")
def gpytorch_kernel():
    import gpytorch

    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def f(x):
        return kernel(x).to_dense().detach()

    return f, lambda n: (tensor(n, 2),)


@program("pyro")
def pyro_svi():
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO

    def model(x):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(mean, 1.0), obs=x)

    def guide(x):
        where = pyro.param("where", torch.tensor(0.5))
        pyro.sample("mean", dist.Normal(where, 0.1))

    def step(x):
        pyro.clear_param_store()
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), loss=Trace_ELBO())
        return svi.step(x), svi.step(x), pyro.param("where").item()

    return step, lambda n: (tensor(n),)


@program("torchdiffeq")
def torchdiffeq_rk4():
    import torch
    from torchdiffeq import odeint

    def f(x):
        return odeint(lambda t, y: -y + t, x, torch.linspace(0, 1, 5), method="rk4")

    return f, lambda n: (tensor(n),)


@program("torchdiffeq")
def torchdiffeq_dopri5():
    import torch
    from torchdiffeq import odeint

    def f(x):
        return odeint(lambda t, y: -y + t, x, torch.linspace(0, 1, 5), method="dopri5")

    return f, lambda n: (tensor(n),)


@program("torchmetrics")
def torchmetrics_accuracy():
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

    def f(scores):
        target = scores.roll(1, 0).argmax(-1)
        return multiclass_accuracy(scores, target, 4), multiclass_f1_score(scores, target, 4)

    return f, lambda n: (tensor(n, 4),)


@program("tensordict")
def tensordict_fields():
    from tensordict import TensorDict

    def f(x):
        fields = TensorDict({"a": x, "b": x * 2}, batch_size=x.shape[:1])
        return (fields + 1)["a"] + fields["b"]

    return f, lambda n: (tensor(n, 3),)


@program("torch_geometric")
def torch_geometric_gcn():
    import torch
    from torch_geometric.nn import GCNConv

    torch.manual_seed(0)
    layer = GCNConv(4, 3).requires_grad_(False)

    def f(x, edges):
        return layer(x, edges).relu()

    return f, lambda n: (tensor(n, 4), torch.arange(2 * n).reshape(2, n) % n)


@program("captum")
def captum_gradients():
    import torch
    from captum.attr import IntegratedGradients

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def f(x):
        return IntegratedGradients(net).attribute(x, target=1, n_steps=4)

    return f, lambda n: (tensor(n, 4),)


@program("lightning")
def lightning_module():
    import lightning
    import torch

    torch.manual_seed(0)

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            loss = self.layer(batch).square().mean()
            self.log("loss", loss)
            return loss

    net = Net()
    net.log = lambda name, value: None

    def step(x):
        net.zero_grad()
        loss = net.training_step(x, 0)
        loss.backward()
        return loss.detach(), net.layer.weight.grad.clone()

    return step, lambda n: (tensor(n, 4),)


@program("accelerate")
def accelerate_step():
    import torch
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    net, optimizer = accelerator.prepare(torch.nn.Linear(4, 1), None)

    def step(x):
        net.zero_grad()
        with accelerator.autocast():
            loss = net(x).square().mean()
        accelerator.backward(loss)
        return loss.detach(), net.weight.grad.clone()

    return step, lambda n: (tensor(n, 4),)


@program("peft", "transformers")
def peft_lora():
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50)
    net = get_peft_model(BertModel(config), LoraConfig(target_modules=["query", "value"])).eval().requires_grad_(False)

    def f(ids):
        return net(input_ids=ids).last_hidden_state

    return f, lambda n: (torch.arange(2 * n).reshape(2, n) % 50,)


@program("sentence_transformers", "transformers")
def sentence_transformers_pooling():
    from sentence_transformers.models import Normalize, Pooling

    pooling, normalize = Pooling(8, pooling_mode="mean"), Normalize()

    def f(x):
        features = {"token_embeddings": x, "attention_mask": (x[..., 0] > -1).long()}
        return normalize(pooling(features))["sentence_embedding"]

    return f, lambda n: (tensor(2, n, 8),)


@program()
def hooks_of_a_call():
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def f(x):
        kept = []
        hook = net[0].register_forward_hook(lambda module, args, out: kept.append(out.detach()))
        try:
            return net(x).detach(), kept[0]
        finally:
            hook.remove()

    return f, lambda n: (tensor(n, 4),)


# --- one program -------------------------------------------------------------------------------------------------------
def outcome(f, arguments):
    import torch

    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "value", f(*arguments)
    except Exception as e:
        return "raised", type(e).__name__, str(e)


def same(a, b):
    import numpy as np
    import torch

    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True)
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, 1e-5, 1e-8, equal_nan=True)
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9) if isinstance(a, float) and a == a else a == b or a != a


def run(name):
    """The row of one program, in this process."""
    import framejit

    make, needs = PROGRAMS[name]
    try:
        f, arguments = make()
    except ImportError as e:
        return {"program": name, "left_out": str(e)}
    calls = [arguments(n) for n in SIZES]
    start = time.perf_counter()
    expected = [outcome(f, calls[0])]
    eager_first = time.perf_counter() - start
    expected += [outcome(f, c) for c in calls[1:]]
    compiled = framejit.compile(f)
    start = time.perf_counter()
    got = [outcome(compiled, calls[0])]
    first = time.perf_counter() - start
    got += [outcome(compiled, c) for c in calls[1:]]
    wrong = [f"call {i}: {str(g)[:150]} instead of {str(e)[:150]}" for i, (g, e) in enumerate(zip(got, expected)) if not same(g, e)]
    for _ in range(4):
        for c in calls:
            outcome(compiled, c)
    fine = [c for c, e in zip(calls, expected) if e[0] == "value"]
    contenders = {"eager": lambda: [f(*c) for c in fine], "framejit": lambda: [compiled(*c) for c in fine]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = measure.interleaved(contenders, seconds=1.0, rounds=(5, 20))
    info = compiled.cache_info()
    return {
        "program": name,
        "right": not wrong,
        "wrong": wrong,
        "breaks": info["breaks"],
        "graphs": len(compiled.graphs),
        "recompiles": info["recompiles"],
        "first_s": round(first, 4),
        "eager_first_s": round(eager_first, 4),
        "us": {k: round(v[0] / len(fine) * 1e6, 2) for k, v in times.items()},
        "spread": round(max(v[1] for v in times.values()), 3),
        "vs_eager": round(times["eager"][0] / times["framejit"][0], 3) if max(v[1] for v in times.values()) <= NOISE else None,
    }


def in_a_process(name, limit):
    command = [sys.executable, "-m", "bench.libraries", "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"program": name, "right": False, "wrong": [f"no end within {limit} s"]}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    return {"program": name, "right": False, "wrong": [f"exit status {done.returncode}: {done.stderr.strip()[-400:]}"]}


def line(row):
    if "left_out" in row:
        return f"{row['program']:32} left out: {row['left_out'][:80]}"
    text = f"{row['program']:32} {'right' if row['right'] else 'WRONG':6}"
    if "us" in row:
        ratio = f"{row['vs_eager']:8.2f}" if row["vs_eager"] else "   noisy"
        text += f"{row['breaks']:7} {row['graphs']:7} {row['recompiles']:11} {row['first_s']:9.3f} ({row['eager_first_s']:.3f}) {ratio} +-{100 * row['spread']:.0f}%"
    return "\n".join([text, *("    " + w for w in row["wrong"])])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of programs; none: all")
    parser.add_argument("--json", help="append a row of each program to this file")
    parser.add_argument("--limit", type=float, default=120, help="seconds of one program")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(options.one)))
        return
    print(f"{'program':32} {'':6} breaks  graphs  recompiles  first (eager) s  x eager")
    rows = []
    for name in PROGRAMS:
        if options.names and not any(n in name for n in options.names):
            continue
        rows.append(in_a_process(name, options.limit))
        print(line(rows[-1]), flush=True)
        if options.json:
            measure.append(options.json, rows[-1:], "python -m bench.libraries " + " ".join(sys.argv[1:]))
    ran = [r for r in rows if "left_out" not in r]
    timed = [r["vs_eager"] for r in ran if r.get("vs_eager")]
    mean = math.exp(sum(map(math.log, timed)) / len(timed)) if timed else float("nan")
    print(f"{sum(r['right'] for r in ran)} of {len(ran)} right, {len(rows) - len(ran)} left out; geometric mean {mean:.2f} of eager's speed")


if __name__ == "__main__":
    main()
