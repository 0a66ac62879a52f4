"""More programs in the style of research code, run by test_research_code."""

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import re
import typing
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")
from test_research_code import CASES, WITHOUT_BACKWARD, I, R, case, test_programs as run  # noqa: E402

BEFORE = set(CASES)
WITHOUT_BACKWARD |= {"sinkhorn_swav": "is written without them", "retention_and_s4": "complex values", "barlow_twins": "is written that a derivative may need"}

nn, F = torch.nn, torch.nn.functional


def window_partition(x, w):
    b, h, ww, c = x.shape
    return x.view(b, h // w, w, ww // w, w, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, c)


def window_reverse(x, w, h, ww):
    b = x.shape[0] // ((h // w) * (ww // w))
    return x.view(b, h // w, ww // w, w, w, -1).permute(0, 1, 3, 2, 4, 5).reshape(b, h, ww, -1)


@case
def swin_block():
    class Block(nn.Module):
        def __init__(self, dim=8, w=2, shift=1, heads=2):
            super().__init__()
            self.w, self.shift, self.heads = w, shift, heads
            self.table = nn.Parameter(R((2 * w - 1) ** 2, heads) * 0.1)
            at = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
            rel = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0) + w - 1
            self.register_buffer("index", rel[..., 0] * (2 * w - 1) + rel[..., 1])
            self.qkv, self.norm = nn.Linear(dim, 3 * dim), nn.LayerNorm(dim)

        def mask(self, h, w, device):
            image, count = torch.zeros(1, h, w, 1, device=device), 0
            parts = (slice(0, -self.w), slice(-self.w, -self.shift), slice(-self.shift, None))
            for a, b in itertools.product(parts, parts):
                image[:, a, b, :] = count
                count += 1
            flat = window_partition(image, self.w).squeeze(-1)
            diff = flat.unsqueeze(1) - flat.unsqueeze(2)
            return diff.masked_fill(diff != 0, -100.0).masked_fill(diff == 0, 0.0)

        def forward(self, x):
            b, h, w, c = x.shape
            pad = (-w % self.w, -h % self.w)
            y = F.pad(self.norm(x), (0, 0, 0, pad[0], 0, pad[1]))
            hp, wp = y.shape[1:3]
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
            win = window_partition(y, self.w)
            q, k, v = self.qkv(win).reshape(win.shape[0], -1, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
            att = q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5
            att = att + self.table[self.index.view(-1)].view(self.w**2, self.w**2, -1).permute(2, 0, 1).unsqueeze(0)
            m = self.mask(hp, wp, x.device)
            att = att.view(b, m.shape[0], self.heads, self.w**2, self.w**2) + m[None, :, None]
            out = (att.view(-1, self.heads, self.w**2, self.w**2).softmax(-1) @ v).transpose(1, 2).reshape(win.shape)
            out = torch.roll(window_reverse(out, self.w, hp, wp), (self.shift, self.shift), (1, 2))
            return x + out[:, :h, :w].contiguous()

    return Block(), [(R(2, 4, 6, 8),), (R(1, 6, 6, 8),), (R(2, 5, 7, 8),)]


@case
def t5_buckets():
    class Bias(nn.Module):
        def __init__(self, heads=4, buckets=8, most=16):
            super().__init__()
            self.buckets, self.most, self.emb = buckets, most, nn.Embedding(buckets, heads)

        @staticmethod
        def bucket(rel, buckets, most):
            n = -rel
            ret = (n < 0).to(torch.long) * (buckets := buckets // 2)
            n = n.abs()
            exact = buckets // 2
            large = exact + (torch.log(n.float().clamp(min=1) / exact) / math.log(most / exact) * (buckets - exact)).to(torch.long)
            return ret + torch.where(n < exact, n, torch.min(large, torch.full_like(large, buckets - 1)))

        def forward(self, q, k):
            rel = torch.arange(k.shape[1])[None, :] - torch.arange(q.shape[1])[:, None]
            return q @ k.transpose(1, 2) + self.emb(self.bucket(rel, self.buckets, self.most)).permute(2, 0, 1).mean(0)

    return Bias(), [(R(2, 5, 4), R(2, 7, 4)), (R(2, 8, 4), R(2, 3, 4)), (R(1, 9, 4), R(1, 9, 4))]


@case
def mask_functions_composed():
    def causal(b, h, i, j):
        return i >= j

    def window(size):
        return lambda b, h, i, j: (i - j).abs() < size

    def both(*mods):
        return lambda *a: functools.reduce(operator.and_, (m(*a) for m in mods))

    def f(q, k, v, lengths):
        n, m = q.shape[2], k.shape[2]
        b, i, j = torch.arange(q.shape[0])[:, None, None, None], torch.arange(n)[:, None], torch.arange(m)[None]
        padding = functools.partial(lambda length, b, h, i, j: j < length[b], lengths)
        mask = both(causal, window(4), padding)(b, None, i, j)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return f, [(R(2, 2, 6, 4), R(2, 2, 6, 4), R(2, 2, 6, 4), torch.tensor([6, 4])), (R(2, 2, 9, 4), R(2, 2, 9, 4), R(2, 2, 9, 4), torch.tensor([9, 3]))]


@case
def linear_attention():
    def phi(x):
        return F.elu(x) + 1

    class Linear(nn.Module):
        def __init__(self, d=8, h=2):
            super().__init__()
            self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)

        def forward(self, x, causal=True):
            q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
            q, k = phi(q), phi(k)
            if causal:
                kv, z = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2), k.cumsum(2)
                y = torch.einsum("bhnd,bhnde->bhne", q, kv) / torch.einsum("bhnd,bhnd->bhn", q, z).unsqueeze(-1).clamp(min=1e-6)
            else:
                y = q @ (k.transpose(-1, -2) @ v) / (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)
            return self.out(y.transpose(1, 2).flatten(2))

    return Linear(), [(R(2, 5, 8),), (R(1, 9, 8),), (R(3, 2, 8),)]


@functools.lru_cache(None)
def _pattern(text):
    left, right = (re.findall(r"\(.*?\)|\S+", side) for side in text.split("->"))
    return tuple(tuple(p.strip("()").split()) for p in left), tuple(tuple(p.strip("()").split()) for p in right)


def rearrange(x, text, **axes):
    left, right = _pattern(text)
    sizes = dict(axes)
    for size, names in zip(x.shape, left, strict=True):
        unknown = [n for n in names if n not in sizes]
        assert len(unknown) <= 1, f"cannot infer {unknown}"
        if unknown:
            sizes[unknown[0]] = size // math.prod(sizes[n] for n in names if n != unknown[0])
    flat = [n for names in left for n in names]
    x = x.reshape([sizes[n] for n in flat]).permute([flat.index(n) for names in right for n in names])
    return x.reshape([math.prod(sizes[n] for n in names) for names in right])


@case
def mini_einops():
    class Axial(nn.Module):
        def __init__(self, d=8):
            super().__init__()
            self.rows, self.cols = nn.Linear(d, d), nn.Linear(d, d)

        def forward(self, x):
            b, _, h, _ = x.shape
            y = self.rows(rearrange(x, "b c h w -> (b h) w c"))
            y = self.cols(rearrange(y, "(b h) w c -> (b w) h c", h=h)).tanh()
            return rearrange(y, "(b w) h c -> b c h w", b=b) + x

    return Axial(), [(R(2, 8, 3, 5),), (R(1, 8, 4, 4),), (R(3, 8, 2, 6),)]


class Registry(dict):
    def register(self, name=None):
        def deco(c):
            self[name or c.__name__] = c
            return c

        return deco

    def build(self, cfg, **extra):
        cfg = dict(cfg)
        return self[cfg.pop("type")](**{**cfg, **extra})


LOSSES = Registry()


@LOSSES.register("smooth")
class Smooth:
    def __init__(self, eps=0.1, ignore=-1):
        self.eps, self.ignore = eps, ignore

    def __call__(self, logits, target):
        keep = target != self.ignore
        logp = logits.log_softmax(-1)
        nll = -logp.gather(-1, target.clamp(min=0)[..., None]).squeeze(-1)
        loss = (1 - self.eps) * nll - self.eps * logp.mean(-1)
        return (loss * keep).sum() / keep.sum().clamp(min=1)


@LOSSES.register()
@dataclass
class Focal:
    gamma: float = 2.0
    ignore: int = -1
    alpha: typing.Optional[float] = None

    def __call__(self, logits, target):
        ce = F.cross_entropy(logits.flatten(0, -2), target.flatten(), ignore_index=self.ignore, reduction="none")
        loss = (1 - (-ce).exp()) ** self.gamma * ce
        return (loss if self.alpha is None else self.alpha * loss).mean()


@case
def losses_from_a_registry():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 5)
            self.cfgs = {"cls": dict(type="smooth", eps=0.2), "aux": dict(type="Focal", alpha=0.25)}

        def forward(self, x, y):
            losses = {f"loss_{n}": LOSSES.build(c, ignore=-1)(self.fc(x), y) for n, c in self.cfgs.items()}
            losses["loss"] = sum(v for k, v in losses.items() if "loss" in k)
            return collections.OrderedDict(sorted(losses.items()))

    y = I(5, 2, 6)
    y[0, :2] = -1
    return Head(), [(R(2, 6, 8), y), (R(3, 4, 8), I(5, 3, 4)), (R(2, 6, 8), y)]


class Norm(enum.Enum):
    LAYER = "layer"
    RMS = enum.auto()
    NONE = None


@case
def match_on_enums():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.kinds, self.w = [Norm.LAYER, Norm.RMS, Norm.NONE], nn.Parameter(R(3, 8))

        def norm(self, kind, x, w):
            match kind:
                case Norm.LAYER:
                    return F.layer_norm(x, x.shape[-1:], w)
                case Norm.RMS:
                    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
                case Norm.NONE:
                    return x
                case other:
                    raise NotImplementedError(other)

        def forward(self, x, mode={"act": "gelu"}):  # noqa: B006
            match mode:
                case {"act": "gelu" | "relu" as act}:
                    x = getattr(F, act)(x)
                case {"act": [first, *_]}:
                    x = getattr(torch, first)(x)
            for kind, w in zip(self.kinds, self.w):
                x = x + self.norm(kind, x, w)
            return x

    return M(), [(R(2, 8),), (R(3, 8), {"act": ["tanh", "sin"]}), (R(4, 8), {"act": "relu"}), (R(5, 8),)]


@case
def stages_by_name():
    class Net(nn.Module):
        def __init__(self, depths=(1, 2)):
            super().__init__()
            self.depths = depths
            self.blocks = nn.ModuleDict()
            for s, d in enumerate(depths, start=1):
                for i in range(d):
                    self.blocks[f"stage{s}_block{i}"] = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.SiLU())
                self.add_module(f"down{s}", nn.Conv2d(4, 4, 2, stride=2))

        def forward(self, x, return_layers=("stage1", "stage2")):
            outs = {}
            for s, d in enumerate(self.depths, 1):
                x = getattr(self, f"down{s}")(x)
                for i in range(d):
                    x = self.blocks[f"stage{s}_block{i}"](x) + x
                if (key := f"stage{s}") in return_layers:
                    outs[key] = x
            return outs

    return Net(), [(R(2, 4, 8, 8),), (R(3, 4, 12, 8), ("stage2",)), (R(2, 4, 16, 16),)]


@case
def cache_by_shape():
    class Grid(nn.Module):
        def __init__(self):
            super().__init__()
            self.grids, self.fc = {}, nn.Linear(2, 4)

        def grid(self, h, w, device):
            key = (h, w, str(device))
            try:
                return self.grids[key]
            except KeyError:
                ys, xs = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
                return self.grids.setdefault(key, torch.stack([xs, ys], -1))

        def forward(self, x):
            *_, h, w = x.shape
            return x + self.fc(self.grid(h, w, x.device)).permute(2, 0, 1)

    return Grid(), [(R(2, 4, 3, 5),), (R(1, 4, 3, 5),), (R(2, 4, 3, 5),), (R(2, 4, 3, 5),)]


@case
def generators_of_features():
    def pairs(xs):
        yield from itertools.pairwise(xs)
        yield xs[-1], xs[0]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

        def features(self, x, every=1):
            for i, layer in enumerate(self.layers):
                x = layer(x).relu()
                if i % every == 0:
                    yield x

        def forward(self, x, every=1):
            feats = [*self.features(x, every)]
            gram = sum((a * b).mean() for a, b in pairs(feats))
            return gram, torch.stack(feats).amax(0), next(f for f in feats if f.dim() == 2)

    return Net(), [(R(3, 6),), (R(5, 6), 2), (R(4, 6),)]


@contextlib.contextmanager
def switched(module, **values):
    old = {k: getattr(module, k) for k in values}
    for k, v in values.items():
        setattr(module, k, v)
    try:
        yield module
    finally:
        for k, v in old.items():
            setattr(module, k, v)


@case
def flags_for_a_while():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.scale, self.twice = nn.Linear(4, 4), 1.0, False

        def once(self, x):
            y = self.fc(x) * self.scale
            return y * 2 if self.twice else y

        def forward(self, x):
            a = self.once(x)
            with switched(self, scale=0.5, twice=True):
                b = self.once(a)
            with contextlib.ExitStack() as stack:
                stack.enter_context(switched(self, scale=3.0))
                stack.enter_context(torch.no_grad())
                c = self.once(x)
            return a + b + c, self.scale

    return Net(), [(R(3, 4),), (R(5, 4),), (R(2, 4),)]


class Anneal:
    def __init__(self, start, stop, steps):
        self.start, self.stop, self.steps, self.at = start, stop, steps, 0

    def step(self):
        self.at += 1
        return self.value

    @property
    def value(self):
        t = min(1.0, self.at / self.steps)
        return self.start + (self.stop - self.start) * 0.5 * (1 - math.cos(math.pi * t))


@case
def annealed_kl():
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.dec, self.beta = nn.Linear(6, 8), nn.Linear(4, 6), Anneal(0.0, 1.0, 3)

        def forward(self, x):
            mu, logvar = self.enc(x).chunk(2, -1)
            z = mu + torch.exp(0.5 * logvar) * 0.1
            kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1).mean()
            return F.mse_loss(self.dec(z), x) + self.beta.step() * kl

    return Vae(), [(R(3, 6),), (R(5, 6),), (R(2, 6),), (R(4, 6),), (R(3, 6),)]


@case
def memory_bank_deque():
    class Bank(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.bank = nn.Linear(4, 4), collections.deque(maxlen=3)

        def forward(self, x):
            z = F.normalize(self.fc(x), dim=-1)
            self.bank.append(z.detach())
            keys = torch.cat(list(self.bank))
            return (z @ keys.t() / 0.1).logsumexp(-1).mean(), len(self.bank)

    return Bank(), [(R(3, 4),), (R(3, 4),), (R(3, 4),), (R(3, 4),), (R(3, 4),)]


@case
def frames_in_a_deque():
    class Stack(nn.Module):
        def __init__(self, n=3):
            super().__init__()
            self.frames, self.conv = collections.deque([torch.zeros(1, 4, 4) for _ in range(n)]), nn.Conv2d(n, 2, 3, padding=1)

        def forward(self, x):
            self.frames.append(x)
            self.frames.popleft()
            oldest, newest = self.frames[0], self.frames[-1]
            return self.conv(torch.cat([*self.frames])[None]) + (newest - oldest).mean()

    return Stack(), [(R(1, 4, 4),), (R(1, 4, 4),), (R(1, 4, 4),), (R(1, 4, 4),)]


@case
def moco_queue():
    class Moco(nn.Module):
        def __init__(self, k=12, d=4, m=0.9):
            super().__init__()
            self.m, self.q, self.k = m, nn.Linear(6, d), nn.Linear(6, d)
            self.k.load_state_dict(self.q.state_dict())
            self.k.requires_grad_(False)
            self.register_buffer("queue", F.normalize(R(d, k), dim=0))

        @torch.no_grad()
        def update(self):
            for a, b in zip(self.q.parameters(), self.k.parameters()):
                b.data = b.data * self.m + a.data * (1 - self.m)

        @torch.no_grad()
        def enqueue(self, keys):
            n = keys.shape[0]
            self.queue = torch.roll(self.queue, -n, 1)
            self.queue[:, -n:] = keys.t()

        def forward(self, x, y):
            q = F.normalize(self.q(x), dim=1)
            with torch.no_grad():
                self.update()
                k = F.normalize(self.k(y), dim=1)
            pos, neg = torch.einsum("nc,nc->n", q, k)[:, None], q @ self.queue.clone().detach()
            self.enqueue(k)
            return F.cross_entropy(torch.cat([pos, neg], 1) / 0.07, torch.zeros(len(x), dtype=torch.long))

    return Moco(), [(R(3, 6), R(3, 6)), (R(3, 6), R(3, 6)), (R(4, 6), R(4, 6))]


class WSConv(nn.Conv2d):
    def forward(self, x):
        w = self.weight
        w = (w - w.mean(dim=(1, 2, 3), keepdim=True)) / (w.std(dim=(1, 2, 3), keepdim=True) + 1e-5)
        return self._conv_forward(x, w, self.bias)


@case
def weight_standardised():
    return nn.Sequential(WSConv(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Mish(), WSConv(4, 2, 1)), [(R(2, 3, 6, 6),), (R(1, 3, 5, 7),)]


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).transpose(-1, -2)


@case
def parametrised_symmetric():
    m = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(m, "weight", Symmetric())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = m

        def forward(self, x):
            return self.m(x) @ self.m.weight

    return Net(), [(R(3, 4),), (R(5, 4),)]


@case
def delegating_wrapper():
    class Wrap(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.module, name)

        def forward(self, *args, **kwargs):
            return self.module(*args, **kwargs) * self.gain + (self.bias_term if hasattr(self, "bias_term") else 0)

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.gain = nn.Linear(4, 4), 2.0

        def forward(self, x, *, power=1):
            return self.fc(x) ** power

    return Wrap(Wrap(Inner())), [(R(3, 4),), (R(5, 4),), (R(2, 4),)]


@case
def fpn_top_down():
    class Fpn(nn.Module):
        def __init__(self, ins=(4, 8, 16), d=4):
            super().__init__()
            self.lat = nn.ModuleList(nn.Conv2d(i, d, 1) for i in ins)
            self.out = nn.ModuleList([nn.Conv2d(d, d, 3, padding=1)] * len(ins))

        def forward(self, feats):
            feats = [conv(f) for conv, f in zip(self.lat, feats)]
            for i in range(len(feats) - 1, 0, -1):
                feats[i - 1] = feats[i - 1] + F.interpolate(feats[i], size=feats[i - 1].shape[-2:], mode="nearest")
            outs = [o(f) for o, f in zip(self.out, feats)]
            outs.append(F.max_pool2d(outs[-1], 1, stride=2))
            return dict(zip((f"p{i}" for i in itertools.count(2)), outs))

    def make(s):
        return ([R(2, 4, s, s), R(2, 8, s // 2, s // 2), R(2, 16, s // 4, s // 4)],)

    return Fpn(), [make(16), make(24), make(20)]


@case
def uncertainty_weights():
    class Multi(nn.Module):
        tasks = ("depth", "normal", "seg")

        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleDict({t: nn.Linear(6, 3) for t in self.tasks})
            self.log_vars = nn.ParameterDict({t: nn.Parameter(torch.zeros(())) for t in self.tasks})

        def forward(self, x, targets):
            losses = {}
            for task, head in self.heads.items():
                if task not in targets:
                    continue
                fn = {"depth": F.l1_loss, "normal": lambda a, b: 1 - F.cosine_similarity(a, b).mean()}.get(task, F.mse_loss)
                losses[task] = fn(head(x), targets[task])
            total = sum((-self.log_vars[t]).exp() * v + self.log_vars[t] for t, v in losses.items())
            return {"total": total, **{f"loss/{k}": v.detach() for k, v in losses.items()}}

    def make(n, *tasks):
        return R(n, 6), {t: R(n, 3) for t in tasks}

    return Multi(), [make(4, "depth", "normal", "seg"), make(5, "depth", "seg"), make(3, "depth", "normal", "seg")]


@case
def sinkhorn_swav():
    @torch.no_grad()
    def sinkhorn(scores, eps=0.05, iters=3):
        q = torch.exp((scores - scores.max()) / eps).t()
        q /= q.sum()
        k, b = q.shape
        it = 0
        while it < iters:
            q /= q.sum(1, keepdim=True) * k
            q /= q.sum(0, keepdim=True) * b
            it += 1
        return (q * b).t()

    class Swav(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj, self.protos = nn.Linear(6, 4), nn.Linear(4, 5, bias=False)

        def forward(self, *crops):
            with torch.no_grad():
                self.protos.weight.copy_(F.normalize(self.protos.weight.clone(), dim=1))
            out = [self.protos(F.normalize(self.proj(c), dim=1)) for c in crops]
            loss, n = 0.0, 0
            for i, j in itertools.permutations(range(len(out)), 2):
                loss, n = loss - (sinkhorn(out[i].detach()) * F.log_softmax(out[j] / 0.1, 1)).sum(1).mean(), n + 1
            return loss / n

    return Swav(), [(R(4, 6), R(4, 6)), (R(6, 6), R(6, 6)), (R(4, 6), R(4, 6), R(4, 6))]


@case
def dino_center():
    class Dino(nn.Module):
        def __init__(self, d=5):
            super().__init__()
            self.student, self.teacher = nn.Linear(6, d), nn.Linear(6, d)
            self.register_buffer("center", torch.zeros(1, d))
            self.temps, self.epoch = torch.linspace(0.04, 0.07, 4).tolist(), 0

        @torch.no_grad()
        def update_center(self, t):
            self.center = self.center * 0.9 + t.mean(0, keepdim=True) * 0.1

        def forward(self, x):
            s, t = self.student(x) / 0.1, self.teacher(x).detach()
            q = F.softmax((t - self.center) / self.temps[min(self.epoch, len(self.temps) - 1)], -1)
            self.update_center(t)
            self.epoch += 1
            return torch.sum(-q * F.log_softmax(s, -1), -1).mean()

    return Dino(), [(R(4, 6),)] * 3 + [(R(6, 6),), (R(3, 6),)]


@case
def barlow_twins():
    def off_diagonal(x):
        n, m = x.shape
        assert n == m, f"{n} != {m}"
        return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()

    class Barlow(nn.Module):
        def __init__(self):
            super().__init__()
            self.p, self.bn = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4, bias=False)), nn.BatchNorm1d(4, affine=False)

        def forward(self, a, b, lambd=0.005):
            c = self.bn(self.p(a)).T @ self.bn(self.p(b))
            c.div_(a.shape[0])
            return torch.diagonal(c).add_(-1).pow_(2).sum() + lambd * off_diagonal(c).pow_(2).sum()

    return Barlow(), [(R(4, 6), R(4, 6)), (R(7, 6), R(7, 6)), (R(5, 6), R(5, 6))]


@case
def sparse_attentions():
    def sparsemax(x, dim=-1):
        z, _ = torch.sort(x, dim=dim, descending=True)
        k = torch.arange(1, x.size(dim) + 1, dtype=x.dtype)
        s = z.cumsum(dim)
        support = 1 + k * z > s
        size = support.sum(dim, keepdim=True)
        tau = (s.gather(dim, size - 1) - 1) / size.to(x.dtype)
        return torch.clamp(x - tau, min=0)

    def topk(x, k):
        values, _ = x.topk(min(k, x.shape[-1]), dim=-1)
        return x.masked_fill(x < values[..., -1:], float("-inf")).softmax(-1)

    def f(q, k, v, kind="sparsemax"):
        s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return {"sparsemax": sparsemax, "topk": functools.partial(topk, k=3)}[kind](s) @ v

    return f, [(R(2, 5, 4),) * 3, (R(2, 7, 4),) * 3 + ("topk",), (R(1, 4, 4),) * 3, (R(3, 5, 4),) * 3 + ("topk",)]


@case
def farthest_points_and_chamfer():
    def sample(x, n):
        b, m, _ = x.shape
        dist, far, chosen = torch.full((b, m), 1e10), torch.zeros(b, dtype=torch.long), []
        at = torch.arange(b)
        for _ in range(n):
            chosen.append(far)
            dist = torch.min(dist, ((x - x[at, far].unsqueeze(1)) ** 2).sum(-1))
            far = dist.argmax(-1)
        return torch.stack(chosen, 1)

    def f(x, y):
        with torch.no_grad():
            idx = sample(x, 4)
        p = torch.gather(x, 1, idx[..., None].expand(-1, -1, x.shape[-1]))
        d = torch.cdist(p, y)
        return d.min(1).values.mean() + d.min(2)[0].mean(), idx

    return f, [(R(2, 9, 3), R(2, 7, 3)), (R(2, 6, 3), R(2, 5, 3)), (R(1, 12, 3), R(1, 7, 3))]


@case
def carried_state():
    class Carry(nn.Module):
        def __init__(self, d=5):
            super().__init__()
            self.cell, self.state, self.d = nn.GRUCell(4, d), None, d

        def forward(self, xs, reset=False):
            h = self.state
            if h is None or reset or h.shape[0] != xs.shape[1]:
                h = xs.new_zeros(xs.shape[1], self.d)
            outs = []
            for t, x in enumerate(xs):
                new = self.cell(x, h)
                h = new if t % 2 == 0 else 0.9 * new + 0.1 * h
                outs += [h]
            self.state = h.detach()
            return torch.stack(outs)

    return Carry(), [(R(3, 2, 4),), (R(3, 2, 4),), (R(3, 2, 4),), (R(3, 3, 4),), (R(3, 3, 4),)]


@case
def transformer_xl():
    class Xl(nn.Module):
        def __init__(self, d=8, h=2, keep=4):
            super().__init__()
            self.h, self.keep = h, keep
            self.qkv, self.pos, self.u = nn.Linear(d, 3 * d), nn.Linear(d, d, bias=False), nn.Parameter(R(h, d // h))
            self.freq = 1 / 10000 ** (torch.arange(0, d, 2) / d)

        @staticmethod
        def shift(x):
            b, h, i, j = x.shape
            return F.pad(x, (1, 0)).view(b, h, j + 1, i)[:, :, 1:].view(b, h, i, j)

        def forward(self, x, mem=None):
            cat = x if mem is None else torch.cat([mem, x], 1)
            split = lambda t: t.unflatten(-1, (self.h, -1)).transpose(1, 2)  # noqa: E731
            q, k, v = map(split, self.qkv(cat).chunk(3, -1))
            q = q[:, :, -x.size(1) :]
            angle = torch.arange(cat.size(1) - 1, -1, -1.0)[:, None] * self.freq
            r = split(self.pos(torch.cat([angle.sin(), angle.cos()], -1))[None])
            s = (q + self.u[None, :, None]) @ k.mT + self.shift(q @ r.mT)
            y = (s / q.size(-1) ** 0.5).softmax(-1) @ v
            return y.transpose(1, 2).flatten(2), cat[:, -self.keep :].detach()

    return Xl(), [(R(2, 3, 8), R(2, 4, 8)), (R(2, 5, 8), R(2, 4, 8)), (R(2, 4, 8),), (R(2, 6, 8), R(2, 2, 8))]


@case
def retention_and_s4():
    class Ret(nn.Module):
        def __init__(self, h=2, d=8, n=4):
            super().__init__()
            self.register_buffer("gamma", 1 - 2.0 ** (-5 - torch.arange(h)))
            self.qkv, self.h = nn.Linear(d, 3 * d), h
            self.a_re, self.a_im, self.c = nn.Parameter(torch.log(0.5 * torch.ones(d, n))), nn.Parameter(math.pi * torch.arange(n).repeat(d, 1).float()), nn.Parameter(R(d, n, 2))

        def kernel(self, length):
            a = -torch.exp(self.a_re) + 1j * self.a_im
            k = torch.exp(a.unsqueeze(-1) * 0.1 * torch.arange(length))
            return 2 * torch.einsum("dn,dnl->dl", torch.view_as_complex(self.c), k).real

        def forward(self, x):
            n = x.shape[1]
            i = torch.arange(n)
            decay = torch.where(i[:, None] >= i, self.gamma.view(-1, 1, 1) ** (i[:, None] - i).clamp(min=0), 0.0)
            q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            y = ((q @ k.mT) * decay @ v).transpose(1, 2).flatten(2)
            f = torch.fft.rfft(self.kernel(n), n=2 * n) * torch.fft.rfft(y.mT, n=2 * n)
            return torch.fft.irfft(f, n=2 * n)[..., :n].mT

    return Ret(), [(R(2, 5, 8),), (R(2, 8, 8),), (R(1, 6, 8),)]


@case
def runge_kutta():
    def rk4(f, x, steps=2, h=0.1, **kw):
        for i in range(steps):
            t = i * h
            k1 = f(t, x, **kw)
            k2 = f(t + h / 2, x + h / 2 * k1, **kw)
            k3 = f(t + h / 2, x + h / 2 * k2, **kw)
            k4 = f(t + h, x + h * k3, **kw)
            x = x + h / 6 * sum(c * k for c, k in zip((1, 2, 2, 1), (k1, k2, k3, k4)))
        return x

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.calls = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)), 0

        def dynamics(self, t, x, damp=0.0):
            self.calls += 1
            return self.net(torch.cat([x, torch.full_like(x[..., :1], t)], -1)) - damp * x

        def forward(self, x, steps=2):
            return rk4(self.dynamics, x, steps, damp=0.1), self.calls

    return Field(), [(R(3, 4),), (R(5, 4),), (R(3, 4), 3), (R(3, 4),)]


class State(typing.NamedTuple):
    h: torch.Tensor
    c: torch.Tensor
    step: int = 0


@case
def states_replaced():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(8, 16)

        def forward(self, x, state=None):
            state = state or State(torch.zeros_like(x), torch.zeros_like(x))
            for part in x.split(2, 0):
                i, f, g, o = self.w(torch.cat([part, state.h[: len(part)]], -1)).chunk(4, -1)
                c = f.sigmoid() * state.c[: len(part)] + i.sigmoid() * g.tanh()
                state = state._replace(h=o.sigmoid() * c.tanh(), c=c, step=state.step + 1)
            return state, state._asdict()["h"].square().sum()

    return Cell(), [(R(4, 4),), (R(6, 4),), (R(2, 4),)]


@dataclass
class Config:
    dim: int = 8
    heads: int = 2
    mult: float = 2.0
    acts: typing.List[str] = field(default_factory=lambda: ["silu", "gelu"])
    extra: dict = field(default_factory=dict)

    def __post_init__(self):
        assert self.dim % self.heads == 0, f"{self.dim} not divisible by {self.heads}"
        self.inner = int(self.dim * self.mult)

    @property
    def head_dim(self):
        return self.dim // self.heads

    @property
    def scale(self):
        return self.head_dim**-0.5


@case
def config_objects():
    class Block(nn.Module):
        def __init__(self, cfg):
            super().__init__()
            self.cfg = cfg
            self.qkv, self.up, self.down = nn.Linear(cfg.dim, 3 * cfg.dim), nn.Linear(cfg.dim, 2 * cfg.inner), nn.Linear(cfg.inner, cfg.dim)

        def forward(self, x):
            c = self.cfg
            q, k, v = self.qkv(x).view(*x.shape[:-1], 3, c.heads, c.head_dim).permute(2, 0, 3, 1, 4)
            x = x + ((q @ k.mT) * c.scale).softmax(-1).matmul(v).transpose(1, 2).reshape(x.shape)
            a, b = self.up(x).tensor_split(2, -1)
            for name in c.acts:
                a = getattr(F, name)(a)
            settings = dataclasses.asdict(c) | {"residual": 1.0}
            return self.down(a * b) * settings["residual"] + x * settings["extra"].get("skip", 1)

    return Block(Config(extra={"skip": 0.5})), [(R(2, 5, 8),), (R(1, 7, 8),), (R(3, 2, 8),)]


class Base(nn.Module, abc.ABC):
    kinds: typing.ClassVar[dict] = {}

    def __init_subclass__(cls, kind=None, **kw):
        super().__init_subclass__(**kw)
        if kind:
            Base.kinds[kind] = cls

    def __init__(self, d=4):
        super().__init__()
        self.fc = nn.Linear(d, d)

    @abc.abstractmethod
    def mix(self, x): ...

    def forward(self, x):
        return self.mix(self.fc(x)) + x


class Residual:
    def forward(self, x, *a):
        return super().forward(x, *a) * 0.5 + x


class Tanh(Residual, Base, kind="tanh"):
    def mix(self, x):
        return x.tanh()


class Gate(Tanh, kind="gate"):
    def mix(self, x):
        return super().mix(x) * torch.sigmoid(x)


@case
def subclasses_registered():
    class Net(nn.Module):
        def __init__(self, *kinds):
            super().__init__()
            self.layers = nn.ModuleList(Base.kinds[k]() for k in kinds)

        def forward(self, x):
            for layer in self.layers:
                if isinstance(layer, Gate) or type(layer).__name__.startswith("Ta"):
                    x = layer(x)
            return x

    return Net("tanh", "gate"), [(R(3, 4),), (R(5, 4),)]


class Quaternion:
    __slots__ = ("parts",)

    def __init__(self, *parts):
        self.parts = parts

    def __mul__(self, o):
        if not isinstance(o, Quaternion):
            return Quaternion(*(p * o for p in self.parts))
        (a, b, c, d), (e, f, g, h) = self.parts, o.parts
        return Quaternion(a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g, a * g - b * h + c * e + d * f, a * h + b * g - c * f + d * e)

    __rmul__ = __mul__

    def __add__(self, o):
        return Quaternion(*map(operator.add, self.parts, o.parts))

    def __matmul__(self, v):
        return (self * Quaternion(torch.zeros_like(v[..., 0]), *v.unbind(-1)) * ~self).vector

    def __invert__(self):
        return Quaternion(self.parts[0], *(-p for p in self.parts[1:]))

    @property
    def vector(self):
        return torch.stack(self.parts[1:], -1)


@case
def quaternions():
    def f(q, v):
        unit = Quaternion(*F.normalize(q, dim=-1).unbind(-1))
        return unit @ v + (2 * unit + unit * 0.5).vector

    return f, [(R(3, 4), R(3, 3)), (R(5, 4), R(5, 3))]


@case
def ragged_batches():
    class Enc(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.rnn, self.convs = nn.Embedding(20, 6, padding_idx=0), nn.GRU(6, 4, batch_first=True), nn.ModuleList(nn.Conv1d(6, 3, k, padding=k // 2) for k in (1, 3))

        def forward(self, seqs):
            lengths = [len(s) for s in seqs]
            x = nn.utils.rnn.pad_sequence(seqs, batch_first=True)
            mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
            e = self.emb(x)
            h, _ = self.rnn(e)
            c = torch.cat([conv(e.mT).relu().masked_fill(~mask[:, None], float("-inf")).amax(-1) for conv in self.convs], 1)
            return (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), c

    return Enc(), [([I(19, 5) + 1, I(19, 3) + 1],), ([I(19, 2) + 1, I(19, 6) + 1],), ([I(19, 4) + 1, I(19, 4) + 1],)]



@case
def hooks_at_construction():
    class Tap(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.seen = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)), {}
            for name, m in self.body.named_children():
                m.register_forward_hook(functools.partial(self.keep, name))
            self.body.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
            self.body[2].register_forward_hook(lambda m, args, out: out.clamp(-1, 1))

        def keep(self, name, module, args, out):
            self.seen[name] = out.detach().mean() if name != "0" else out.norm()

        def forward(self, x):
            self.seen.clear()
            y = self.body(x)
            return y, sum(self.seen.values()), sorted(self.seen)

    return Tap(), [(R(3, 4),), (R(5, 4),), (R(2, 4),)]



@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", [n for n in CASES if n not in BEFORE])
def test_more_programs(fresh, name, train):
    run(fresh, name, train)
