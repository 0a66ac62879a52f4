"""Optimal transport, filters of bands, training on gradients of single samples, losses of sound, manifolds, and schemas."""

from bench.library_programs import array, program, tensor


@program("ot")
def ot_sinkhorn():
    import numpy as np
    import ot

    def f(x, y):
        a, b = np.full(len(x), 1 / len(x)), np.full(len(y), 1 / len(y))
        cost = ot.dist(x, y)
        plan = ot.sinkhorn(a, b, cost / cost.max(), 0.1)
        return plan, float((plan * cost).sum()), ot.emd2(a, b, cost), ot.sliced_wasserstein_distance(x, y, n_projections=8, seed=1)

    return f, lambda n: (array(n, 2), array(n + 3, 2, seed=1))


@program("ot")
def ot_loss_of_tensors():
    import ot
    import torch

    def f(x, y):
        x = x.clone().requires_grad_()
        a, b = torch.full((len(x),), 1 / len(x)), torch.full((len(y),), 1 / len(y))
        loss = ot.sinkhorn2(a, b, ot.dist(x, y), 1.0, numItermax=20, warn=False)
        loss.backward()
        return loss.detach(), x.grad

    return f, lambda n: (tensor(n, 2), tensor(n + 3, 2, seed=1))


@program("julius")
def julius_bands():
    import julius

    def f(x):
        return julius.lowpass_filter(x, 0.1), julius.split_bands(x, 16000, n_bands=3), julius.resample_frac(x, 4, 3)

    return f, lambda n: (tensor(2, 100 * n),)


@program("opacus", "opt_einsum")
def opacus_step():
    import torch
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.manual_seed(0)
    model = GradSampleModule(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)))
    start = {k: v.clone() for k, v in model.state_dict().items()}

    def f(x, y):
        model.load_state_dict(start)
        optimizer = DPOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=len(x))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), [p.detach().clone() for p in model.parameters()]

    return f, lambda n: (tensor(n, 6), torch.arange(n) % 2)


@program("auraloss")
def auraloss_spectra():
    import auraloss

    spectral = auraloss.freq.MultiResolutionSTFTLoss(fft_sizes=[64, 32], hop_sizes=[16, 8], win_lengths=[64, 32])
    distortion = auraloss.time.SISDRLoss()

    def f(x, y):
        return spectral(x, y), distortion(x, y)

    return f, lambda n: (tensor(1, 1, 32 * n), tensor(1, 1, 32 * n, seed=1))


@program("pymanopt")
def pymanopt_sphere():
    import numpy as np
    from pymanopt.manifolds import Sphere

    def f(p, v):
        m = Sphere(p.shape[0])
        p = p / np.linalg.norm(p)
        t = m.projection(p, v)
        q = m.exp(p, t)
        return q, m.log(p, q), m.dist(p, q), m.norm(p, t)

    return f, lambda n: (array(n), 0.1 * array(n, seed=1))


@program("marshmallow")
def marshmallow_schema():
    from marshmallow import Schema, ValidationError, fields

    class Settings(Schema):
        scale = fields.Float(required=True)
        sizes = fields.List(fields.Int())

    schema = Settings()

    def f(x, scale):
        settings = schema.load({"scale": scale, "sizes": ["1", 2]})
        try:
            schema.load({"sizes": [1]})
        except ValidationError as e:
            return x * settings["scale"] + sum(settings["sizes"]), schema.dump(settings), e.messages

    return f, lambda n: (tensor(n, 3), 1.5)
