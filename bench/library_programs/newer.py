"""Programs of libraries that were tried last: notation, averages of weights, diffusion, searches, tables; and functions of SciPy, a few at a time."""

from bench.library_programs import array, program, tensor


@program("einx")
def einx_notation():
    import einx

    def f(x, w):
        z = einx.dot("a b [c], [c] d -> a b d", x, w)
        return einx.sum("a [b] c", x), einx.rearrange("a b (c d) -> a (b d) c", z, d=2), einx.softmax("a [b] c", x), einx.add("a b c, c", x, w[:, 0])

    return f, lambda n: (tensor(n, 5, 4), tensor(4, 6, seed=1))


@program("torch_ema")
def torch_ema_average():
    import torch
    from torch_ema import ExponentialMovingAverage

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    start = {k: v.clone() for k, v in model.state_dict().items()}

    def f(x, y):
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ema = ExponentialMovingAverage(model.parameters(), decay=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            ema.update()
        with ema.average_parameters():
            out = model(x)
        return out.detach(), [p.detach().clone() for p in model.parameters()]

    return f, lambda n: (tensor(n, 4), tensor(n, 2, seed=1))


def _diffusion():
    import torch
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    torch.manual_seed(0)
    return GaussianDiffusion(Unet(dim=8, dim_mults=(1, 2), flash_attn=False), image_size=16, timesteps=20, sampling_timesteps=4)


@program("denoising_diffusion_pytorch")
def diffusion_loss():
    diffusion = _diffusion()

    def f(x):
        loss = diffusion(x)
        loss.backward()
        size = sum(p.grad.abs().sum() for p in diffusion.parameters() if p.grad is not None)
        diffusion.zero_grad()
        return loss.detach(), size

    return f, lambda n: (tensor(n // 4, 3, 16, 16).sigmoid(),)


@program("denoising_diffusion_pytorch")
def diffusion_samples():
    diffusion = _diffusion().eval()
    return lambda n: diffusion.sample(batch_size=n), lambda n: (n // 4,)


@program("linear_attention_transformer")
def linear_attention_logits():
    import torch
    from linear_attention_transformer import LinearAttentionTransformerLM

    torch.manual_seed(0)
    model = LinearAttentionTransformerLM(num_tokens=50, dim=32, heads=4, depth=1, max_seq_len=64, causal=True, blindspot_size=1).eval()
    return lambda x: model(x), lambda n: (torch.arange(2 * n).reshape(2, n) % 50,)


@program("product_key_memory")
def product_keys():
    import torch
    from product_key_memory import PKM

    torch.manual_seed(0)
    memory = PKM(dim=16, heads=2, num_keys=8, topk=4, dim_head=8).eval()
    return lambda x: memory(x), lambda n: (tensor(1, n, 16),)


@program("hyper_connections")
def hyper_connections():
    import torch
    from hyper_connections import HyperConnections

    torch.manual_seed(0)
    wrap, expand, reduce = HyperConnections.get_init_and_expand_reduce_stream_functions(4)
    branches = [wrap(dim=16, branch=torch.nn.Linear(16, 16)) for _ in range(2)]

    def f(x):
        x = expand(x)
        for branch in branches:
            x = branch(x)
        return reduce(x)

    return f, lambda n: (tensor(n, 5, 16),)


@program("colt5_attention")
def routed_feed_forward():
    import torch
    from colt5_attention import ConditionalRoutedFeedForward

    torch.manual_seed(0)
    layer = ConditionalRoutedFeedForward(16, light_ff_mult=0.5, heavy_ff_mult=4, num_heavy_tokens=4).eval()
    return lambda x, mask: layer(x, mask=mask), lambda n: (tensor(1, n, 16), tensor(1, n, seed=1) > -9)


@program("hyperopt")
def hyperopt_search():
    import numpy as np
    from hyperopt import Trials, fmin, hp, tpe

    def f(a, k):
        trials = Trials()
        space = {"u": hp.uniform("u", -2, 2), "v": hp.choice("v", [0, 1])}
        best = fmin(lambda x: float((x["u"] - a.mean()) ** 2 + x["v"]), space, algo=tpe.suggest, max_evals=k, trials=trials, rstate=np.random.default_rng(0), show_progressbar=False)
        return best, len(trials.losses())

    return f, lambda n: (array(n), 3)


@program("pykalman")
def pykalman_smoothed():
    import numpy as np
    from pykalman import KalmanFilter

    def f(z):
        kalman = KalmanFilter(transition_matrices=np.array([[1, 1], [0, 1]]), observation_matrices=np.array([[0.1, 0.5], [-0.3, 0.0]]))
        return np.asarray(kalman.filter(z)[0]), np.asarray(kalman.smooth(z)[0])

    return f, lambda n: (array(n, 2),)


@program("frozendict")
def frozen_settings():
    from frozendict import frozendict

    def f(x, k):
        d = frozendict({"a": k, "b": (1, 2)})
        e = d.set("c", 3) | {"d": 4}
        return x * d["a"] + sum(e["b"]) + e["c"], dict(e), hash(d) == hash(frozendict(d))

    return f, lambda n: (tensor(n), n)


@program("loguru")
def loguru_lines():
    import io

    from loguru import logger

    def f(x):
        stream = io.StringIO()
        logger.remove()
        logger.add(stream, format="{level} {message}")
        logger.info("mean {}", round(float(x.mean()), 4))
        return x * 2, stream.getvalue()

    return f, lambda n: (tensor(n),)


@program("axial_positional_embedding")
def axial_positions():
    import torch
    from axial_positional_embedding import AxialPositionalEmbedding

    torch.manual_seed(0)
    positions = AxialPositionalEmbedding(dim=16, axial_shape=(4, 8))
    return lambda x: positions(x) + x, lambda n: (tensor(1, n, 16),)


@program("toolz")
def toolz_pipelines():
    import toolz.curried

    def f(x, n):
        parts = toolz.pipe(range(n), toolz.curried.map(lambda i: x * i), toolz.curried.partition_all(3), list)
        groups = toolz.groupby(lambda i: i % 3, range(n))
        merged = toolz.merge_with(sum, {"a": 1, "b": 2}, {"a": n})
        return [sum(p) for p in parts], groups, merged, toolz.get_in(["k", 0], toolz.assoc_in({}, ["k"], [n])), toolz.compose(torch_sum, toolz.identity)(x)

    def torch_sum(x):
        return x.sum()

    return f, lambda n: (tensor(n), n)


@program("bidict")
def bidict_labels():
    from bidict import bidict

    def f(x, n):
        labels = bidict({f"class {i}": i for i in range(4)})
        labels["more"] = n
        return x * labels["more"], labels.inverse[n], labels.inv[2], dict(labels.inverse)

    return f, lambda n: (tensor(n), n)


@program("tensorly")
def tensorly_products():
    import tensorly as tl
    from tensorly.decomposition import parafac

    def f(a):
        cp = parafac(tl.tensor(a), rank=2, n_iter_max=5, init="svd")
        return tl.cp_to_tensor(cp).round(4), tl.unfold(a, 1), tl.tenalg.mode_dot(a, a[:2, :, 0], 1)

    return f, lambda n: (array(n, 5, 3),)


# --- SciPy, a function or two at a time ----------------------------------------------------------------------------------
@program("scipy")
def scipy_filters():
    import numpy as np
    from scipy import signal

    b, a = signal.butter(3, 0.2)
    sos = signal.butter(4, 0.2, output="sos")

    def f(x):
        y = signal.filtfilt(b, a, x)
        y[1:] *= 2
        return y, np.abs(signal.sosfilt(sos, x)), np.abs(signal.hilbert(signal.lfilter(b, a, x)))

    return f, lambda n: (array(40 * n),)


@program("scipy")
def scipy_spectra():
    import numpy as np
    from scipy import fft, signal

    return lambda x, y: (np.abs(fft.rfft(x)) ** 2, signal.fftconvolve(x, y, "same"), signal.welch(x, nperseg=64)[1]), lambda n: (array(40 * n), array(20))


@program("scipy")
def scipy_images_and_distances():
    import numpy as np
    from scipy import ndimage
    from scipy.spatial import distance

    return lambda x, p: (ndimage.gaussian_filter(x, 1.5) - x, np.exp(-distance.cdist(p, p))), lambda n: (array(4 * n, 4 * n), array(4 * n, 3))


@program("scipy")
def scipy_matrices():
    from scipy import linalg

    return lambda m: (linalg.expm(m / 10) @ m, linalg.eigh(m + m.T)[0] * 2), lambda n: (array(n, n),)


@program("scipy")
def scipy_differential_equation():
    import numpy as np
    from scipy import integrate

    return lambda y: integrate.solve_ivp(lambda t, u: -u * np.sin(t), (0, 2), y).y[:, -1], lambda n: (array(n),)


@program("scipy")
def scipy_curve():
    import numpy as np
    from scipy import optimize

    return lambda x: optimize.curve_fit(lambda t, q, w: q * np.exp(-w * t), np.abs(x), 2 * np.exp(-np.abs(x)))[0], lambda n: (array(4 * n),)


@program("scipy")
def scipy_special_and_stats():
    import numpy as np
    from scipy import special, stats

    def f(x, y):
        return special.erf(x) * np.exp(-x * x) + special.expit(x), stats.norm.logpdf(x).sum(), stats.ttest_ind(x, y).pvalue

    return f, lambda n: (array(40 * n), array(40 * n, seed=1))
