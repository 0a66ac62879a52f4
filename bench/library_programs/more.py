"""Models, losses and optimizers for torch, and libraries of numbers around NumPy."""

from bench.library_programs import array, program, tensor


@program("entmax")
def entmax_sparse():
    import entmax

    def f(x):
        return entmax.sparsemax(x, dim=-1), entmax.entmax15(x, dim=-1), entmax.entmax_bisect(x, alpha=1.3, dim=-1)

    return f, lambda n: (tensor(n, 6),)


@program("pytorch_msssim")
def msssim_images():
    from pytorch_msssim import SSIM, ssim

    module = SSIM(data_range=1.0, size_average=True, channel=3, win_size=5)

    def f(x, y):
        return ssim(x, y, data_range=1.0, win_size=5), module(x, y)

    return f, lambda n: (tensor(2, 3, n + 8, n + 8).sigmoid(), tensor(2, 3, n + 8, n + 8).sigmoid())


@program("lion_pytorch")
def lion_step():
    import torch
    from lion_pytorch import Lion

    def f(x):
        torch.manual_seed(0)
        layer = torch.nn.Linear(x.shape[-1], 3)
        optimizer = Lion(layer.parameters(), lr=1e-2, weight_decay=1e-2)
        for _ in range(2):
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return layer.weight.detach()

    return f, lambda n: (tensor(4, n),)


@program("torch_optimizer")
def torch_optimizer_radam():
    import torch
    import torch_optimizer

    def f(x):
        torch.manual_seed(0)
        layer = torch.nn.Linear(x.shape[-1], 3)
        optimizer = torch_optimizer.RAdam(layer.parameters(), lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()
        return layer.weight.detach()

    return f, lambda n: (tensor(4, n),)


@program("torchcde")
def torchcde_spline():
    import torchcde

    def f(x):
        spline = torchcde.CubicSpline(torchcde.hermite_cubic_coefficients_with_backward_differences(x))
        return spline.evaluate(0.5), spline.derivative(1.25), spline.interval

    return f, lambda n: (tensor(2, n, 3),)


@program("rotary_embedding_torch")
def rotary_queries():
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=8)

    def f(q, k):
        return rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k)

    return f, lambda n: (tensor(1, 2, n, 16), tensor(1, 2, n, 16))


@program("ema_pytorch")
def ema_of_weights():
    import torch
    from ema_pytorch import EMA

    def f(x):
        torch.manual_seed(0)
        layer = torch.nn.Linear(x.shape[-1], 3)
        ema = EMA(layer, beta=0.9, update_after_step=1, update_every=1)
        for _ in range(4):
            with torch.no_grad():
                layer.weight.add_(x.mean())
            ema.update()
        return ema(x)

    return f, lambda n: (tensor(4, n),)


@program("vit_pytorch")
def vit_classes():
    import torch
    from vit_pytorch import ViT

    torch.manual_seed(0)
    model = ViT(image_size=16, patch_size=4, num_classes=5, dim=16, depth=2, heads=2, mlp_dim=32).eval()

    def f(x):
        return model(x)

    return f, lambda n: (tensor(n, 3, 16, 16),)


@program("local_attention")
def local_attention_windows():
    import torch
    from local_attention import LocalAttention

    torch.manual_seed(0)
    attention = LocalAttention(dim=8, window_size=4, causal=True, look_backward=1, look_forward=0, autopad=True)

    def f(q, k, v):
        return attention(q, k, v)

    return f, lambda n: (tensor(2, 2, n, 8), tensor(2, 2, n, 8), tensor(2, 2, n, 8))


@program("e3nn")
def e3nn_harmonics():
    from e3nn import o3

    irreps = o3.Irreps("2x0e + 1x1o")
    linear = o3.Linear(irreps, "3x0e + 2x1o")

    def f(x, v):
        return linear(x), o3.spherical_harmonics([0, 1, 2], v, normalize=True)

    return f, lambda n: (tensor(n, 5), tensor(n, 3))


@program("normflows")
def normflows_density():
    import normflows
    import torch

    torch.manual_seed(0)
    flows = []
    for _ in range(2):
        flows += [normflows.flows.AffineCouplingBlock(normflows.nets.MLP([1, 8, 2])), normflows.flows.Permute(2, mode="swap")]
    model = normflows.NormalizingFlow(normflows.distributions.base.DiagGaussian(2), flows)

    def f(x):
        return model.log_prob(x), model.forward_kld(x)

    return f, lambda n: (tensor(n, 2),)


@program("nflows")
def nflows_density():
    import torch
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform
    from nflows.transforms.base import CompositeTransform
    from nflows.transforms.permutations import ReversePermutation

    torch.manual_seed(0)
    parts = [ReversePermutation(features=3), MaskedAffineAutoregressiveTransform(features=3, hidden_features=8)] * 2
    flow = Flow(CompositeTransform(parts), StandardNormal(shape=[3]))

    def f(x):
        return flow.log_prob(inputs=x).mean()

    return f, lambda n: (tensor(n, 3),)


@program("zuko")
def zuko_flow():
    import torch
    import zuko

    torch.manual_seed(0)
    flow = zuko.flows.MAF(3, 2, transforms=2, hidden_features=(8,))

    def f(x, c):
        return flow(c).log_prob(x)

    return f, lambda n: (tensor(n, 3), tensor(2))


@program("uncertainties")
def uncertainties_of_floats():
    from uncertainties import ufloat, unumpy

    def f(a, e):
        x = ufloat(float(a[0]), 0.1)
        y = (x**2 + 2 * x).nominal_value
        s = unumpy.uarray(a, e)
        return y, unumpy.nominal_values(s * 2 + 1), unumpy.std_devs(s * s)

    return f, lambda n: (array(n) ** 2 + 1, array(n) ** 2 + 0.1)


@program("pint")
def pint_quantities():
    import pint

    units = pint.UnitRegistry()

    def f(a):
        speed = a * units.meter / (2.0 * units.second)
        return speed.to("km/hour").magnitude, str(speed.units), (speed**2).sum().magnitude

    return f, lambda n: (array(n),)


@program("emcee")
def emcee_samples():
    import emcee
    import numpy as np

    def log_probability(x, mean):
        return -0.5 * np.sum((x - mean) ** 2)

    def f(mean):
        np.random.seed(1)
        sampler = emcee.EnsembleSampler(8, len(mean), log_probability, args=[mean])
        sampler.run_mcmc(np.random.randn(8, len(mean)), 5)
        return sampler.get_chain(flat=True)

    return f, lambda n: (array(3) * n,)


@program("lmfit")
def lmfit_model():
    import lmfit
    import numpy as np

    def line(x, slope, start):
        return slope * x + start

    model = lmfit.Model(line)

    def f(x):
        y = 2 * x + 1 + 0.1 * np.cos(9 * x)
        result = model.fit(y, x=x, slope=1.0, start=0.0)
        return result.best_fit, result.params["slope"].value

    return f, lambda n: (array(n),)


@program("pywt")
def pywt_coefficients():
    import pywt

    def f(x):
        parts = pywt.wavedec(x, "db2", level=2)
        return [pywt.threshold(p, 0.1, mode="soft") for p in parts], pywt.waverec(parts, "db2")

    return f, lambda n: (array(4 * n),)


@program("numdifftools")
def numdifftools_gradient():
    import numdifftools
    import numpy as np

    def f(x):
        return numdifftools.Gradient(lambda v: np.sum(v**2 + np.sin(v)))(x)

    return f, lambda n: (array(n % 5 + 2),)


@program("transforms3d")
def transforms3d_rotations():
    import transforms3d

    def f(v):
        q = transforms3d.euler.euler2quat(0.1, 0.2, 0.3, "sxyz")
        m = transforms3d.quaternions.quat2mat(q)
        return v @ m.T, transforms3d.affines.compose([1, 2, 3], m, [1.0, 2.0, 1.0]), transforms3d.euler.mat2euler(m)

    return f, lambda n: (array(n, 3),)


@program("trimesh")
def trimesh_of_a_box():
    import trimesh

    def f(points):
        mesh = trimesh.creation.box(extents=[1, 2, 3])
        mesh.apply_translation(points.mean(axis=0))
        return mesh.volume, mesh.area, mesh.bounds, trimesh.transform_points(points, trimesh.transformations.rotation_matrix(0.5, [0, 0, 1]))

    return f, lambda n: (array(n, 3),)


@program("hmmlearn", "sklearn")
def hmmlearn_states():
    import numpy as np
    from hmmlearn import hmm

    model = hmm.GaussianHMM(n_components=2, covariance_type="diag")
    model.startprob_ = np.array([0.6, 0.4])
    model.transmat_ = np.array([[0.7, 0.3], [0.4, 0.6]])
    model.means_ = np.array([[0.0, 0.0], [1.0, 1.0]])
    model.covars_ = np.ones((2, 2))

    def f(x):
        return model.predict(x), model.score(x)

    return f, lambda n: (array(n, 2),)
