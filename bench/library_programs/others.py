"""Programs of libraries that were tried in a later round: optimizers, rotations, containers, signals."""

from bench.library_programs import array, program, tensor


def _trained(make_optimizer, before=None):
    """A step of training with an optimizer of the library's."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
    start = {k: v.clone() for k, v in model.state_dict().items()}

    def steps(x, y):
        with torch.no_grad():
            for k, v in model.state_dict().items():
                v.copy_(start[k])
        optimizer = make_optimizer(model.parameters())
        if before:
            before(optimizer)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses, [p.detach().clone() for p in model.parameters()]

    return steps, lambda n: (tensor(n, 6), tensor(n, 1, seed=1))


@program("schedulefree")
def schedulefree_adamw():
    import schedulefree

    return _trained(lambda p: schedulefree.AdamWScheduleFree(p, lr=0.01, foreach=False), lambda o: o.train())


@program("prodigyopt")
def prodigy_step():
    import prodigyopt

    return _trained(lambda p: prodigyopt.Prodigy(p, lr=1.0, weight_decay=0.01))


@program("dadaptation")
def dadaptation_adam():
    import dadaptation

    return _trained(lambda p: dadaptation.DAdaptAdam(p, lr=1.0))


@program("torch_dct")
def dct_there_and_back():
    import torch_dct

    return lambda x: torch_dct.idct_2d(torch_dct.dct_2d(x) * 0.5), lambda n: (tensor(3, n, 8),)


@program("roma")
def roma_rotations():
    import roma

    def f(x, y, s):
        r, t = roma.rigid_points_registration(x, y)
        q = roma.rotmat_to_unitquat(r)
        return roma.quat_action(q.expand(len(x), 4), x) + t, roma.unitquat_slerp(q, roma.quat_normalize(q + 0.1), s), roma.unitquat_to_rotvec(q)

    import torch

    def arguments(n):
        x = tensor(n, 3)
        r = roma.rotvec_to_rotmat(torch.tensor([0.3, -0.2, 0.5]))
        return x, x @ r.T + 1.0, torch.linspace(0, 1, 5)

    return f, arguments


@program("geoopt")
def geoopt_ball():
    import geoopt

    ball = geoopt.PoincareBall(c=1.0)

    def f(x, y):
        x, y = ball.expmap0(x * 0.3), ball.expmap0(y * 0.3)
        return ball.dist(x, y), ball.mobius_add(x, y), ball.logmap(x, y)

    return f, lambda n: (tensor(n, 5), tensor(n, 5, seed=1))


@program("geoopt")
def geoopt_step():
    import geoopt
    import torch

    target = torch.nn.functional.normalize(tensor(4, 3), dim=-1)

    def f(x):
        p = geoopt.ManifoldParameter(torch.nn.functional.normalize(x, dim=-1), manifold=geoopt.Sphere())
        optimizer = geoopt.optim.RiemannianAdam([p], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = (p[:4] - target).pow(2).sum()
            loss.backward()
            optimizer.step()
        return p.detach().clone()

    return f, lambda n: (tensor(n, 3, seed=2),)


@program("higher")
def higher_inner_loop():
    import higher
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def f(x, y):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with higher.innerloop_ctx(model, optimizer, copy_initial_weights=False) as (fmodel, diffopt):
            for _ in range(2):
                diffopt.step((fmodel(x) - y).pow(2).mean())
            grads = torch.autograd.grad((fmodel(x) - y).pow(2).mean(), list(model.parameters()))
        return list(grads)

    return f, lambda n: (tensor(n, 4), tensor(n, 1, seed=1))


@program("pytorch_warmup")
def warmup_of_rates():
    import pytorch_warmup
    import torch

    def f(p, n):
        optimizer = torch.optim.AdamW([torch.nn.Parameter(p.clone())], lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        warmup = pytorch_warmup.LinearWarmup(optimizer, warmup_period=4)
        rates = []
        for _ in range(n):
            optimizer.param_groups[0]["params"][0].grad = p * 2
            optimizer.step()
            with warmup.dampening():
                schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return rates, optimizer.param_groups[0]["params"][0].detach().clone()

    return f, lambda n: (tensor(5), n // 2)


@program("piq")
def piq_quality():
    import piq

    def f(x, y):
        return piq.psnr(x, y, data_range=1.0), piq.total_variation(x), piq.gmsd(x, y, data_range=1.0), piq.ssim(x, y, data_range=1.0)

    return f, lambda n: (tensor(2, 3, 4 * n, 32).sigmoid(), tensor(2, 3, 4 * n, 32, seed=1).sigmoid())


@program("backpack")
def backpack_gradients():
    import torch
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad, Variance

    torch.manual_seed(0)
    model = extend(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3)))
    loss = extend(torch.nn.CrossEntropyLoss())

    def f(x, y):
        model.zero_grad()
        value = loss(model(x), y)
        with backpack(BatchGrad(), Variance()):
            value.backward()
        return [p.grad.clone() for p in model.parameters()], [p.grad_batch.clone() for p in model.parameters()], [p.variance.clone() for p in model.parameters()]

    return f, lambda n: (tensor(n, 5), torch.arange(n) % 3)


@program("numpy_financial")
def financial_rates():
    import numpy as np
    import numpy_financial as npf

    def f(rates, flows):
        return npf.pmt(rates / 12, 120, 1000.0), npf.npv(0.05, flows), npf.irr(flows), npf.fv(rates / 12, 24, -100.0, -1000.0)

    return f, lambda n: (np.linspace(0.01, 0.1, n), np.concatenate([[-100.0 * n], np.full(n, 120.0)]))


@program("addict")
def addict_settings():
    from addict import Dict

    def f(x, scale):
        c = Dict({"model": {"scale": scale, "shift": [1, 2]}})
        c.model.extra.deep = 3
        c.update({"model": {"bias": 0.5}})
        return x * c.model.scale + c.model.bias + c.model.extra.deep, c.to_dict()

    return f, lambda n: (tensor(n, 3), 1.5)


@program("box")
def box_settings():
    from box import Box

    def f(x, scale):
        c = Box({"model": {"scale": scale, "layers": [{"size": 2}, {"size": 3}]}}, default_box=True)
        c.model.new.value = 4
        return x * c.model.scale + sum(layer.size for layer in c.model.layers) + c.model.new.value, c.to_dict()

    return f, lambda n: (tensor(n, 3), 1.5)


@program("munch")
def munch_settings():
    from munch import munchify, unmunchify

    def f(x, scale):
        c = munchify({"a": {"scale": scale}, "b": [{"k": 1}, {"k": 2}]})
        c.a.more = len(c.b)
        return x * c.a.scale + c.a.more, unmunchify(c)

    return f, lambda n: (tensor(n, 3), 1.5)


@program("sortedcontainers")
def sorted_windows():
    import numpy as np
    from sortedcontainers import SortedDict, SortedList

    def f(a):
        window, medians = SortedList(), []
        for i, x in enumerate(a.tolist()):
            window.add(x)
            if i >= 5:
                window.remove(a[i - 5].item())
            medians.append(window[len(window) // 2])
        d = SortedDict((round(m, 2), i) for i, m in enumerate(medians))
        return np.array(medians), list(d.items())[:4], d.bisect_left(0.0)

    return f, lambda n: (array(4 * n),)


@program("more_itertools")
def itertools_windows():
    import more_itertools as mi

    def f(x, n):
        parts = [p.sum() for p in mi.chunked(x, 3) for p in p]
        pairs = list(mi.windowed(range(n), 3, step=2, fillvalue=0))
        first, second = mi.partition(lambda i: i % 2, range(n))
        return sum(parts), pairs, list(first), list(second), mi.first(pairs), list(mi.roundrobin(range(3), range(n)))

    return f, lambda n: (tensor(n, 4), n)


@program("simpy")
def simpy_queue():
    import random

    import simpy

    def f(n):
        env, rng, waits = simpy.Environment(), random.Random(1), []
        counter = simpy.Resource(env, capacity=2)

        def customer(i):
            arrived = env.now
            with counter.request() as request:
                yield request
                waits.append(env.now - arrived)
                yield env.timeout(rng.expovariate(1.0))

        def source():
            for i in range(n):
                env.process(customer(i))
                yield env.timeout(rng.expovariate(2.0))

        env.process(source())
        env.run()
        return waits, env.now

    return f, lambda n: (3 * n,)


@program("ahrs")
def ahrs_orientation():
    import ahrs

    def f(gyr, acc):
        return ahrs.filters.Madgwick(gyr=gyr, acc=acc, frequency=100.0).Q, ahrs.Quaternion([1.0, 2.0, 3.0, 4.0]).to_DCM()

    return f, lambda n: (0.1 * array(n, 3), array(n, 3, seed=1) + 5.0)


@program("pyquaternion")
def quaternion_products():
    import numpy as np
    from pyquaternion import Quaternion

    def f(v, angle):
        a, b = Quaternion(axis=[0.0, 0.0, 1.0], angle=angle), Quaternion(axis=v[0], angle=0.3)
        return (a * b).elements, np.array([b.rotate(p) for p in v]), Quaternion.slerp(a, b, 0.4).rotation_matrix, a.inverse.degrees

    return f, lambda n: (array(n, 3), 0.7)


@program("linformer")
def linformer_attention():
    import torch
    from linformer import LinformerSelfAttention

    torch.manual_seed(0)
    attention = LinformerSelfAttention(dim=32, seq_len=64, heads=4, k=16, one_kv_head=True, share_kv=True).eval()
    return lambda x: attention(x), lambda n: (tensor(n, 64, 32),)


@program("perceiver_pytorch", "einops")
def perceiver_logits():
    import torch
    from perceiver_pytorch import Perceiver

    torch.manual_seed(0)
    model = Perceiver(input_channels=3, input_axis=2, num_freq_bands=4, max_freq=10.0, depth=2, num_latents=16, latent_dim=32, latent_heads=2, num_classes=5).eval()
    return lambda x: model(x), lambda n: (tensor(2, n, 10, 3),)


@program("pyrsistent")
def persistent_state():
    from pyrsistent import m, pmap, v

    def f(x, n):
        state = m(scale=2.0, seen=v())
        for i in range(n):
            state = state.set("seen", state["seen"].append(i * 2)).set("scale", state["scale"] + 0.5)
        old = pmap({"a": 1}).update({"b": 2})
        return x * state["scale"], list(state["seen"]), dict(old), len(old.remove("a"))

    return f, lambda n: (tensor(n, 2), n // 2)


@program("boltons")
def boltons_pieces():
    from boltons.cacheutils import LRU
    from boltons.dictutils import OrderedMultiDict
    from boltons.iterutils import chunked, remap, windowed

    def f(x, n):
        cache = LRU(max_size=3)
        for i in range(n):
            cache[i] = i * i
        d = OrderedMultiDict([("a", 1), ("b", 2), ("a", 3)])
        nested = remap({"a": [1, None, 2], "b": {"c": None, "d": 3}}, visit=lambda p, k, v: v is not None)
        return x + sum(cache.values()), d.getlist("a"), nested, chunked(range(n), 3), windowed(range(4), 2)

    return f, lambda n: (tensor(n, 2), n)


@program("cattrs", "attrs")
def cattrs_structures():
    import attrs
    import cattrs

    @attrs.define
    class Layer:
        size: int
        rate: float = 0.5

    @attrs.define
    class Settings:
        layers: list[Layer]
        name: str = "x"

    converter = cattrs.Converter()

    def f(x, n):
        s = converter.structure({"layers": [{"size": i, "rate": i / 2} for i in range(n)], "name": "net"}, Settings)
        return x * sum(layer.rate for layer in s.layers), converter.unstructure(s)

    return f, lambda n: (tensor(n, 2), n // 4)


@program("msgspec")
def msgspec_structures():
    import msgspec

    class Settings(msgspec.Struct):
        scale: float
        sizes: list[int] = []

    def f(x, text):
        s = msgspec.json.decode(text, type=Settings)
        s.sizes.append(x.shape[0])
        return x * s.scale + sum(s.sizes), msgspec.to_builtins(s), msgspec.json.encode(s)

    return f, lambda n: (tensor(n, 2), b'{"scale": 2.5, "sizes": [1, 2]}')
