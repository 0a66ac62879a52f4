"""Programs in the style of research code: each is one graph where torch.compile has one, and gives what eager gives, with its gradients and what it writes, over calls
of several sizes, in eval and in training."""

import collections
import copy
import enum
import functools
import itertools
import math
from dataclasses import dataclass, field, replace

import pytest

torch = pytest.importorskip("torch")
from torch.utils._pytree import tree_leaves, tree_map

nn, F = torch.nn, torch.nn.functional
CASES = {}


def case(f):
    """A function that gives a module or a function, and the arguments of its calls."""
    CASES[f.__name__] = f
    return f


R = torch.randn


def I(hi, *s):
    return torch.randint(0, hi, s)


@case
def alibi_attention():

    class A(nn.Module):
        def __init__(self, h=4):
            super().__init__()
            self.h = h
            self.register_buffer("slopes", torch.tensor([2 ** (-8 * (i + 1) / h) for i in range(h)]), persistent=False)
            self._cached = None
            self.p = nn.Linear(16, 16)

        def bias(self, n, device):
            if self._cached is not None and self._cached.shape[-1] >= n:
                return self._cached[..., :n, :n]
            i = torch.arange(n, device=device)
            self._cached = -(i[None, :] - i[:, None]).abs()[None] * self.slopes[:, None, None]
            return self._cached

        def forward(self, x):
            b, n, d = x.shape
            q = self.p(x).view(b, n, self.h, d // self.h).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q, attn_mask=self.bias(n, x.device)).transpose(1, 2).reshape(b, n, d)

    return (A(), [(R(2, 6, 16),), (R(2, 4, 16),), (R(2, 9, 16),), (R(2, 8, 16),)])


@case
def rotary_cache():

    class Rot(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.register_buffer("inv", 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim))
            self.max = 0
            self.cache = {}

        def forward(self, n):
            if n not in self.cache:
                f = torch.outer(torch.arange(n).float(), self.inv.float())
                self.cache[n] = (f.cos(), f.sin())
            return self.cache[n]

    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.rot = Rot(8)
            self.q = nn.Linear(8, 8)

        def forward(self, x):
            c, sn = self.rot(x.shape[1])
            x = self.q(x)
            a, b = (x[..., ::2], x[..., 1::2])
            return torch.stack((a * c - b * sn, a * sn + b * c), -1).flatten(-2)

    return (A(), [(R(2, 6, 8),), (R(2, 4, 8),), (R(2, 6, 8),), (R(3, 4, 8),)])


@dataclass
class Cfg:
    dim: int = 16
    depth: int = 2
    act: str = "gelu"
    norm: str = "rms"
    drop: float = 0.0
    extra: dict = field(default_factory=dict)


ACTS = {}


def register(name):

    def deco(c):
        ACTS[name] = c
        return c

    return deco


@register("gelu")
class G(nn.Module):
    def forward(self, x):
        return F.gelu(x)


@register("swiglu")
class S(nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, -1)
        return F.silu(a) * b


@dataclass
class Out:
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    hidden: tuple[torch.Tensor, ...] | None = None

    def to_tuple(self):
        return tuple(getattr(self, f) for f in self.__dataclass_fields__ if getattr(self, f) is not None)


@case
def dataclass_config():

    class B(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.c = c
            self.act = ACTS[c.act]()
            self.i = nn.Linear(c.dim, c.dim * (2 if c.act == "swiglu" else 1))
            self.o = nn.Linear(c.dim, c.dim)
            self.n = nn.Parameter(torch.ones(c.dim))

        def forward(self, x):
            h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-06) * self.n if self.c.norm == "rms" else F.layer_norm(x, (self.c.dim,))
            return x + F.dropout(self.o(self.act(self.i(h))), self.c.drop, self.training)

    class M(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.c = c
            self.bs = nn.ModuleList(B(replace(c, act=a)) for a in ("gelu", "swiglu"))
            self.head = nn.Linear(c.dim, 11)

        def forward(self, x, labels=None, return_hidden=True):
            hs = ()
            for b in self.bs:
                if return_hidden:
                    hs = hs + (x,)
                x = b(x)
            logits = self.head(x)
            loss = None
            if labels is not None:
                loss = F.cross_entropy(logits.view(-1, 11), labels.view(-1), ignore_index=-100)
            return Out(logits=logits, loss=loss, hidden=hs if return_hidden else None)

    return (M(Cfg()), [(R(2, 5, 16), I(11, 2, 5)), (R(3, 4, 16), I(11, 3, 4)), (R(3, 4, 16),)])


@case
def module_dict_heads():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
            self.heads = nn.ModuleDict({"cls": nn.Linear(16, 3), "box": nn.Linear(16, 4), "mask": nn.Sequential(nn.Linear(16, 8), nn.Tanh())})
            self.w = nn.ParameterDict({k: nn.Parameter(torch.tensor(1.0)) for k in ("cls", "box", "mask")})

        def forward(self, x, tasks=("cls", "box")):
            h = self.trunk(x)
            out = collections.OrderedDict()
            for name, head in self.heads.items():
                if name in tasks:
                    out[name] = head(h) * torch.exp(-self.w[name])
            out["total"] = sum(v.pow(2).mean() for v in out.values())
            return dict(sorted(out.items()))

    return (M(), [(R(4, 8),), (R(5, 8), ("cls", "mask")), (R(6, 8), ("cls", "box")), (R(2, 8), ["mask"])])


@case
def freezing():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = nn.Linear(8, 8)
            self.steps = 0
            self.freeze_until = 2

        def forward(self, x):
            if self.training:
                self.steps += 1
                for p in self.a.parameters():
                    p.requires_grad_(self.steps > self.freeze_until)
            h = self.a(x)
            if self.steps <= self.freeze_until:
                h = h.detach()
            return self.b(h.relu())

    return (M(), [(R(3, 8),), (R(4, 8),), (R(5, 8),), (R(5, 8),)])


@case
def ema_codebook():

    class VQ(nn.Module):
        def __init__(self, k=8, d=4):
            super().__init__()
            self.k = k
            self.register_buffer("emb", R(k, d))
            self.register_buffer("n", torch.zeros(k))
            self.register_buffer("avg", self.emb.clone())
            self.decay = 0.9
            self.p = nn.Linear(d, d)

        def forward(self, x):
            x = self.p(x)
            f = x.reshape(-1, x.shape[-1])
            dist = f.pow(2).sum(1, keepdim=True) - 2 * f @ self.emb.t() + self.emb.pow(2).sum(1)
            ind = dist.argmin(-1)
            oh = F.one_hot(ind, self.k).type(x.dtype)
            q = F.embedding(ind, self.emb).view_as(x)
            if self.training:
                with torch.no_grad():
                    self.n.data.mul_(self.decay).add_(oh.sum(0), alpha=1 - self.decay)
                    self.avg.data.lerp_(oh.t() @ f, 1 - self.decay)
                    m = self.n.sum()
                    cs = (self.n + 1e-05) / (m + self.k * 1e-05) * m
                    self.emb.data.copy_(self.avg / cs.unsqueeze(1))
            loss = F.mse_loss(q.detach(), x) * 0.25
            q = x + (q - x).detach()
            p = oh.mean(0)
            perp = torch.exp(-(p * torch.log(p + 1e-10)).sum())
            return (q, loss, ind.view(*x.shape[:-1]), perp)

    return (VQ(), [(R(2, 3, 4),), (R(4, 5, 4),), (R(1, 7, 4),)])


@case
def momentum_encoder():

    class MoCo(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(8, 4)
            self.k = nn.Linear(8, 4)
            self.register_buffer("queue", F.normalize(R(4, 12), dim=0))
            self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))
            self.m = 0.99
            for a, b in zip(self.q.parameters(), self.k.parameters()):
                b.data.copy_(a.data)
                b.requires_grad = False

        @torch.no_grad()
        def _update(self):
            for a, b in zip(self.q.parameters(), self.k.parameters()):
                b.data = b.data * self.m + a.data * (1.0 - self.m)

        @torch.no_grad()
        def _enqueue(self, keys):
            n = keys.shape[0]
            p = int(self.ptr)
            self.queue[:, p : p + n] = keys.T
            self.ptr[0] = (p + n) % self.queue.shape[1]

        def forward(self, a, b):
            q = F.normalize(self.q(a), dim=1)
            with torch.no_grad():
                self._update()
                k = F.normalize(self.k(b), dim=1)
            pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
            neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
            logits = torch.cat([pos, neg], 1) / 0.07
            self._enqueue(k)
            return (logits, torch.zeros(logits.shape[0], dtype=torch.long))

    return (MoCo(), [(R(4, 8), R(4, 8)), (R(4, 8), R(4, 8)), (R(4, 8), R(4, 8)), (R(4, 8), R(4, 8))])


@case
def mixup():

    def f(x, y, lam):
        idx = torch.randperm(x.size(0))
        mx = lam * x + (1 - lam) * x[idx]
        t = F.one_hot(y, 5).float()
        return (F.cross_entropy(mx, lam * t + (1 - lam) * t[idx], label_smoothing=0.1), mx)

    return (f, [(R(4, 5), I(5, 4), 0.3), (R(6, 5), I(5, 6), 0.7), (R(3, 5), I(5, 3), 0.5)])


@case
def cutmix():

    def f(x, y):
        _b, _c, h, w = x.shape
        r = torch.rand(())
        cut = torch.sqrt(1 - r)
        ch, cw = ((h * cut).int(), (w * cut).int())
        cy, cx = (torch.randint(h, (1,)), torch.randint(w, (1,)))
        y1, y2 = ((cy - ch // 2).clamp(0, h), (cy + ch // 2).clamp(0, h))
        x1, x2 = ((cx - cw // 2).clamp(0, w), (cx + cw // 2).clamp(0, w))
        ii, jj = (torch.arange(h), torch.arange(w))
        m = ((ii >= y1) & (ii < y2))[:, None] & ((jj >= x1) & (jj < x2))[None]
        out = torch.where(m, x.flip(0), x)
        lam = 1 - m.float().mean()
        return (out, lam * y + (1 - lam) * y.flip(0))

    return (f, [(R(2, 3, 8, 8), R(2, 4)), (R(4, 3, 6, 10), R(4, 4))])


@case
def masked_loss_bool():

    def f(pred, target, valid):
        p, t = (pred[valid], target[valid])
        l = F.smooth_l1_loss(p, t, reduction="none")
        return (l.sum() / valid.sum().clamp(min=1), (pred - target)[~valid].abs().mean())

    return (
        f,
        [(R(4, 6), R(4, 6), torch.rand(4, 6) > 0.5), (R(5, 6), R(5, 6), torch.rand(5, 6) > 0.5), (R(2, 3), R(2, 3), torch.tensor([[True, False, True]] * 2))],
    )


@case
def focal_ohem():

    def f(logits, target):
        ce = F.cross_entropy(logits, target, reduction="none", ignore_index=255)
        pt = torch.exp(-ce)
        fl = (1 - pt) ** 2 * ce
        k = max(1, int(0.25 * fl.numel()))
        top, _ = fl.flatten().topk(k)
        keep = fl > 0.05
        return (top.mean(), fl[keep].mean() if keep.any() else fl.sum() * 0)

    return (f, [(R(6, 5), I(5, 6)), (R(12, 5), I(5, 12)), (R(9, 5), I(5, 9))])


@case
def dice_with_onehot_list():

    def f(logits, target):
        n = logits.shape[1]
        p = logits.softmax(1)
        losses = []
        for c in range(n):
            m = target == c
            if not m.any():
                continue
            inter = (p[:, c] * m).sum()
            losses.append(1 - (2 * inter + 1) / (p[:, c].sum() + m.sum() + 1))
        return torch.stack(losses).mean()

    return (f, [(R(2, 3, 4, 4), I(3, 2, 4, 4)), (R(2, 3, 5, 4), I(3, 2, 5, 4))])


@case
def beam_search():

    def f(logits, width):
        b, t, v = logits.shape
        lp = logits.log_softmax(-1)
        score, seq = lp[:, 0].topk(width, -1)
        seq = seq.unsqueeze(-1)
        for i in range(1, t):
            cand = score.unsqueeze(-1) + lp[:, i].unsqueeze(1)
            score, ind = cand.view(b, -1).topk(width, -1)
            beam, tok = (torch.div(ind, v, rounding_mode="floor"), ind % v)
            seq = torch.cat([seq.gather(1, beam.unsqueeze(-1).expand(-1, -1, seq.size(-1))), tok.unsqueeze(-1)], -1)
        return (seq, score)

    return (f, [(R(2, 4, 7), 3), (R(3, 5, 7), 3), (R(2, 4, 7), 2)])


@case
def beam_module_python():

    class Beam(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(7, 8)
            self.gru = nn.GRUCell(8, 8)
            self.out = nn.Linear(8, 7)

        def forward(self, h, max_len=4):
            beams = [(torch.zeros(1), torch.zeros(1, dtype=torch.long), h)]
            for _ in range(max_len):
                new = []
                for sc, seq, st in beams:
                    st2 = self.gru(self.emb(seq[-1:]), st)
                    lp = F.log_softmax(self.out(st2), -1)
                    v, i = lp.topk(2)
                    for j in range(2):
                        new.append((sc + v[0, j], torch.cat([seq, i[0, j : j + 1]]), st2))
                st = torch.cat([n[0] for n in new])
                keep = st.topk(min(2, len(new))).indices
                beams = [new[int(k)] for k in keep.tolist()]
            return (beams[0][0], beams[0][1])

    return (Beam(), [(R(1, 8),), (R(1, 8),)])


@case
def kv_cache_growing():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x, past=None):
            q, k, v = self.qkv(x).split(8, -1)
            if past is not None:
                k, v = (torch.cat([past[0], k], 1), torch.cat([past[1], v], 1))
            return (F.scaled_dot_product_attention(q, k, v, is_causal=past is None), (k, v))

    return (M(), [(R(2, 4, 8),), (R(2, 1, 8), (R(2, 4, 8), R(2, 4, 8))), (R(2, 1, 8), (R(2, 5, 8), R(2, 5, 8))), (R(2, 1, 8), (R(2, 6, 8), R(2, 6, 8)))])


@case
def kv_cache_static():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)
            self.register_buffer("kc", torch.zeros(1, 16, 8))
            self.register_buffer("vc", torch.zeros(1, 16, 8))

        def forward(self, x, pos):
            q, k, v = self.qkv(x).chunk(3, -1)
            with torch.no_grad():
                self.kc.index_copy_(1, pos, k.detach())
                self.vc[:, pos] = v.detach()
            m = torch.arange(16) <= pos[:, None]
            return F.scaled_dot_product_attention(q, self.kc.clone(), self.vc.clone(), attn_mask=m)

    return (M(), [(R(1, 3, 8), torch.arange(3)), (R(1, 1, 8), torch.tensor([3])), (R(1, 1, 8), torch.tensor([4])), (R(1, 2, 8), torch.tensor([5, 6]))])


class FQ(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, zp, lo, hi):
        q = torch.round(x / scale) + zp
        mask = (q >= lo) & (q <= hi)
        ctx.save_for_backward(mask)
        return (q.clamp(lo, hi) - zp) * scale

    @staticmethod
    def backward(ctx, g):
        (m,) = ctx.saved_tensors
        return (g * m, None, None, None, None)


@case
def fake_quant():

    class QL(nn.Linear):
        def __init__(self, *a):
            super().__init__(*a)
            self.register_buffer("mn", torch.tensor(float("inf")))
            self.register_buffer("mx", torch.tensor(float("-inf")))
            self.observe = True

        def forward(self, x):
            if self.training and self.observe:
                self.mn.copy_(torch.min(self.mn, x.detach().min()))
                self.mx.copy_(torch.max(self.mx, x.detach().max()))
            sc = ((self.mx - self.mn) / 255).clamp(min=1e-08) if self.training else torch.tensor(0.05)
            xq = FQ.apply(x, sc, 0, -128, 127)
            ws = self.weight.detach().abs().max() / 127
            return F.linear(xq, FQ.apply(self.weight, ws, 0, -128, 127), self.bias)

    return (nn.Sequential(QL(8, 8), nn.ReLU(), QL(8, 4)), [(R(3, 8),), (R(5, 8),), (R(2, 8),)])


@case
def lsq_quant():

    def grad_scale(x, s):
        y = x
        yg = x * s
        return (y - yg).detach() + yg

    def round_pass(x):
        y = x.round()
        return (y - x).detach() + x

    class L(nn.Module):
        def __init__(self, bits=4):
            super().__init__()
            self.lo, self.hi = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            self.s = nn.Parameter(torch.tensor(0.1))
            self.w = nn.Parameter(R(4, 8))
            self.register_buffer("init", torch.tensor(0))

        def forward(self, x):
            g = 1.0 / math.sqrt(x.numel() * self.hi)
            sc = grad_scale(self.s, g)
            x = x / sc
            x = torch.clamp(x, self.lo, self.hi)
            xb = round_pass(x) * sc
            return F.linear(xb, self.w)

    return (L(), [(R(3, 8),), (R(6, 8),), (R(4, 8),)])


@case
def spectral_norm_old():
    m = nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 4, 3)), nn.LeakyReLU(0.1), nn.utils.spectral_norm(nn.Conv2d(4, 2, 3)))
    return (m, [(R(2, 3, 8, 8),), (R(1, 3, 9, 7),)])


@case
def spectral_norm_new():
    m = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6)), nn.Tanh(), nn.utils.parametrizations.spectral_norm(nn.Linear(6, 2)))
    return (m, [(R(3, 8),), (R(5, 8),)])


@case
def weight_tying():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(11, 8)
            self.l = nn.Linear(8, 8)
            self.out = nn.Linear(8, 11, bias=False)
            self.out.weight = self.e.weight

        def forward(self, ids):
            return (self.out(torch.tanh(self.l(self.e(ids)))), self.e.weight.norm())

    return (M(), [(I(11, 2, 4),), (I(11, 3, 5),)])


class GradRev(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a):
        ctx.a = a
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return (g.neg() * ctx.a, None)


@case
def grad_reversal():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(8, 8)
            self.c = nn.Linear(8, 3)
            self.d = nn.Linear(8, 2)

        def forward(self, x, a):
            h = self.f(x).relu()
            return {"cls": self.c(h), "dom": self.d(GradRev.apply(h, a))}

    return (M(), [(R(4, 8), 0.1), (R(5, 8), 0.2), (R(3, 8), 0.7)])


class STE(torch.autograd.Function):
    generate_vmap_rule = False

    @staticmethod
    def forward(x, thr):
        m = x > thr
        return (m.float(), m)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g, _):
        if g is None:
            return (None, None)
        (x,) = ctx.saved_tensors
        return (g * torch.exp(-x.abs()), None)


@case
def surrogate_spikes():

    class LIF(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(4, 6)
            self.beta = nn.Parameter(torch.tensor(0.9))

        def forward(self, x):
            mem = x.new_zeros(x.shape[1], 6)
            spk = []
            for t in range(x.shape[0]):
                mem = self.beta.clamp(0, 1) * mem + self.l(x[t])
                sp, m = STE.apply(mem, 1.0)
                mem = torch.where(m, torch.zeros_like(mem), mem)
                spk.append(sp)
            return (torch.stack(spk), mem)

    return (LIF(), [(R(3, 2, 4),), (R(5, 2, 4),), (R(3, 4, 4),)])


@case
def deq_fixed_point():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(6, 6)

        def forward(self, x):
            z = torch.zeros_like(x)
            with torch.no_grad():
                for _ in range(8):
                    z = torch.tanh(0.3 * self.w(z) + x)
            return torch.tanh(0.3 * self.w(z) + x)

    return (M(), [(R(3, 6),), (R(4, 6),)])


@case
def perceiver_cross():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lat = nn.Parameter(R(4, 8))
            self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
            self.self = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2))
            self.n = nn.LayerNorm(8)

        def forward(self, x, pad):
            l = self.lat.expand(x.size(0), -1, -1)
            o, w = self.attn(l, x, x, key_padding_mask=pad)
            l = self.n(l + o)
            for b in self.self:
                l = b(l)
            return (l.mean(1), w)

    return (M(), [(R(2, 5, 8), torch.tensor([[False] * 4 + [True]] * 2)), (R(3, 6, 8), torch.tensor([[False] * 4 + [True] * 2] * 3))])


@case
def local_window_attention():

    def part(x, w):
        b, h, ww, c = x.shape
        return x.view(b, h // w, w, ww // w, w, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, w * w, c)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = 4
            self.t = nn.Parameter(R(49, 2))
            self.qkv = nn.Linear(8, 24)
            c = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
            r = (c[:, :, None] - c[:, None]).permute(1, 2, 0) + 3
            self.register_buffer("idx", r[..., 0] * 7 + r[..., 1])

        def forward(self, x, shift=0):
            b, h, w, c = x.shape
            ph, pw = ((self.w - h % self.w) % self.w, (self.w - w % self.w) % self.w)
            x = F.pad(x, (0, 0, 0, pw, 0, ph))
            if shift:
                x = torch.roll(x, (-shift, -shift), (1, 2))
            win = part(x, self.w)
            q, k, v = self.qkv(win).reshape(win.shape[0], 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
            a = q @ k.transpose(-2, -1) + self.t[self.idx.view(-1)].view(16, 16, -1).permute(2, 0, 1)
            o = (a.softmax(-1) @ v).transpose(1, 2).reshape(-1, self.w, self.w, c)
            H, W = (h + ph, w + pw)
            o = o.view(b, H // self.w, W // self.w, self.w, self.w, c).permute(0, 1, 3, 2, 4, 5).reshape(b, H, W, c)
            if shift:
                o = torch.roll(o, (shift, shift), (1, 2))
            return o[:, :h, :w].contiguous()

    return (M(), [(R(1, 8, 8, 8),), (R(2, 6, 9, 8), 2), (R(2, 5, 7, 8), 2), (R(1, 4, 12, 8),)])


@case
def top_k_routing_moe():

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.g = nn.Linear(8, 4)
            self.e = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(4))

        def forward(self, x):
            sh = x.shape
            x = x.reshape(-1, 8)
            w, i = self.g(x).softmax(-1).topk(2, -1)
            w = w / w.sum(-1, keepdim=True)
            out = torch.zeros_like(x)
            for n, e in enumerate(self.e):
                tok, slot = torch.where(i == n)
                if tok.numel() == 0:
                    continue
                out.index_add_(0, tok, e(x[tok]) * w[tok, slot, None])
            load = F.one_hot(i, 4).float().mean((0, 1))
            return (out.view(sh), (load * self.g(x).softmax(-1).mean(0)).sum() * 4)

    return (MoE(), [(R(2, 6, 8),), (R(3, 5, 8),), (R(1, 9, 8),)])


@case
def moe_capacity_einsum():

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.g = nn.Linear(8, 4, bias=False)
            self.w1 = nn.Parameter(R(4, 8, 16) * 0.1)
            self.w2 = nn.Parameter(R(4, 16, 8) * 0.1)

        def forward(self, x):
            n = x.shape[0]
            cap = math.ceil(n / 4 * 1.25)
            p = self.g(x).softmax(-1)
            gate, idx = p.max(-1)
            oh = F.one_hot(idx, 4)
            pos = (oh.cumsum(0) * oh).sum(-1) - 1
            keep = pos < cap
            disp = F.one_hot(torch.where(keep, pos, 0), cap).float()[:, None, :] * oh[..., None] * keep[:, None, None]
            xe = torch.einsum("nec,nd->ecd", disp, x)
            h = torch.einsum("ecd,edf->ecf", xe, self.w1).relu()
            ye = torch.einsum("ecf,efd->ecd", h, self.w2)
            return torch.einsum("nec,ecd->nd", disp * gate[:, None, None], ye)

    return (MoE(), [(R(8, 8),), (R(12, 8),), (R(7, 8),)])


@case
def lstm_packed_classifier():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(20, 8, padding_idx=0)
            self.r = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)
            self.o = nn.Linear(12, 3)

        def forward(self, ids, lens):
            pk = nn.utils.rnn.pack_padded_sequence(self.e(ids), lens.cpu(), batch_first=True, enforce_sorted=False)
            o, (h, _c) = self.r(pk)
            o, ln = nn.utils.rnn.pad_packed_sequence(o, batch_first=True)
            m = torch.arange(o.size(1))[None] < ln[:, None]
            pooled = (o * m.unsqueeze(-1)).sum(1) / ln.unsqueeze(1).float()
            return (self.o(pooled), torch.cat([h[-2], h[-1]], -1))

    return (M(), [(I(20, 3, 6), torch.tensor([6, 3, 4])), (I(20, 3, 6), torch.tensor([6, 5, 2])), (I(20, 4, 7), torch.tensor([7, 1, 4, 2]))])


@case
def span_slices_by_tensor():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(6, 6)

        def forward(self, x, lens):
            h = self.l(x)
            return torch.cat([h[i][: lens[i], :] for i in range(len(lens))], 0)

    return (M(), [(R(3, 5, 6), torch.tensor([5, 3, 2])), (R(3, 5, 6), torch.tensor([4, 4, 1])), (R(3, 7, 6), torch.tensor([1, 7, 2]))])


@case
def seq2seq_teacher():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(9, 8)
            self.c = nn.GRUCell(8, 8)
            self.o = nn.Linear(8, 9)
            self.a = nn.Linear(16, 1)

        def forward(self, enc, tgt, tf=0.5):
            b, t = tgt.shape
            h = enc.mean(1)
            inp = tgt[:, 0]
            outs = []
            for i in range(1, t):
                al = self.a(torch.cat([enc, h.unsqueeze(1).expand_as(enc)], -1)).squeeze(-1).softmax(-1)
                h = self.c(self.e(inp), h + (al.unsqueeze(-1) * enc).sum(1))
                o = self.o(h)
                outs.append(o)
                inp = torch.where(torch.rand(b) < tf, tgt[:, i], o.argmax(-1))
            return torch.stack(outs, 1)

    return (M(), [(R(2, 4, 8), I(9, 2, 5)), (R(3, 4, 8), I(9, 3, 5)), (R(3, 6, 8), I(9, 3, 4))])


@case
def gnn_scatter():

    class GAT(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(6, 8, bias=False)
            self.a = nn.Parameter(R(2, 8) * 0.3)

        def forward(self, x, ei, batch):
            src, dst = ei
            h = self.w(x)
            n = x.size(0)
            e = F.leaky_relu((h[src] * self.a[0]).sum(-1) + (h[dst] * self.a[1]).sum(-1), 0.2)
            mx = torch.full((n,), -1000000000.0).scatter_reduce(0, dst, e, "amax", include_self=True)
            ex = torch.exp(e - mx[dst])
            den = torch.zeros(n).scatter_add_(0, dst, ex)
            al = ex / (den[dst] + 1e-16)
            out = torch.zeros_like(h).index_add_(0, dst, al.unsqueeze(-1) * h[src])
            g = int(batch.max()) + 1
            return torch.zeros(g, 8).index_add(0, batch, out) / torch.bincount(batch, minlength=g).clamp(min=1).unsqueeze(-1)

    def mk(n, m):
        return (R(n, 6), torch.randint(0, n, (2, m)), torch.sort(torch.randint(0, 3, (n,)))[0])

    return (GAT(), [mk(7, 12), mk(9, 20), mk(5, 6)])


@case
def diffusion_loss():

    class U(nn.Module):
        def __init__(self):
            super().__init__()
            b = torch.linspace(0.0001, 0.02, 50)
            self.register_buffer("ac", torch.cumprod(1 - b, 0))
            self.t = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 4))
            self.c1 = nn.Conv2d(3, 4, 3, padding=1)
            self.c2 = nn.Conv2d(4, 3, 3, padding=1)
            self.gn = nn.GroupNorm(2, 4)

        def emb(self, t):
            half = 4
            f = torch.exp(-math.log(10000) * torch.arange(half) / (half - 1))
            a = t[:, None].float() * f[None]
            return torch.cat([a.sin(), a.cos()], -1)

        def extract(self, a, t, shape):
            return a.gather(-1, t).reshape(t.shape[0], *(1,) * (len(shape) - 1))

        def forward(self, x):
            t = torch.randint(0, 50, (x.shape[0],))
            n = torch.randn_like(x)
            ac = self.extract(self.ac, t, x.shape)
            xt = ac.sqrt() * x + (1 - ac).sqrt() * n
            h = F.silu(self.gn(self.c1(xt)) + self.t(self.emb(t))[:, :, None, None])
            h = F.interpolate(F.avg_pool2d(h, 2), scale_factor=2, mode="nearest")
            return F.mse_loss(self.c2(h), n)

    return (U(), [(R(2, 3, 8, 8),), (R(3, 3, 8, 8),), (R(2, 3, 12, 8),)])


@case
def ddim_sampler():

    class S(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(5, 4)
            self.register_buffer("ac", torch.linspace(0.99, 0.1, 20))

        @torch.no_grad()
        def forward(self, shape, steps=5):
            x = torch.randn(shape)
            ts = torch.linspace(19, 0, steps).long()
            for i, t in enumerate(ts):
                a = self.ac[t]
                e = self.net(torch.cat([x, t.float().expand(x.shape[0], 1) / 20], -1))
                x0 = (x - (1 - a).sqrt() * e) / a.sqrt()
                an = self.ac[ts[i + 1]] if i < steps - 1 else torch.tensor(1.0)
                x = an.sqrt() * x0 + (1 - an).sqrt() * e
            return x.clamp(-1, 1)

    return (S(), [((2, 4),), ((3, 4),)])


@case
def vae_reparam():

    class V(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Linear(8, 6)
            self.d = nn.Linear(3, 8)

        def forward(self, x):
            mu, lv = self.e(x).chunk(2, -1)
            lv = lv.clamp(-10, 10)
            q = torch.distributions.Normal(mu, (0.5 * lv).exp())
            z = q.rsample() if self.training else mu
            kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu))).sum(-1)
            rec = -torch.distributions.Bernoulli(logits=self.d(z)).log_prob(torch.sigmoid(x).round()).sum(-1)
            return ((rec + kl).mean(), z)

    return (V(), [(R(3, 8),), (R(5, 8),)])


@case
def gumbel_vq():

    class V(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Linear(8, 10)
            self.emb = nn.Embedding(5, 3)
            self.tau = 1.0

        def forward(self, x):
            l = self.p(x).view(-1, 2, 5)
            if self.training:
                self.tau = max(0.5, self.tau * 0.99)
                oh = F.gumbel_softmax(l, self.tau, hard=True)
            else:
                oh = torch.zeros_like(l).scatter_(-1, l.argmax(-1, keepdim=True), 1.0)
            return ((oh @ self.emb.weight).flatten(1), -(oh.mean(0) * (oh.mean(0) + 1e-07).log()).sum(-1).exp())

    return (V(), [(R(4, 8),), (R(6, 8),), (R(4, 8),)])


@case
def contrastive_nce():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 4)
            self.b = nn.Linear(5, 4)
            self.ls = nn.Parameter(torch.ones([]) * np_log)

        def forward(self, x, y):
            x, y = (F.normalize(self.a(x), dim=-1), F.normalize(self.b(y), dim=-1))
            l = self.ls.exp().clamp(max=100) * x @ y.t()
            lab = torch.arange(len(l))
            acc = (l.argmax(1) == lab).float().mean()
            return {"loss": (F.cross_entropy(l, lab) + F.cross_entropy(l.t(), lab)) / 2, "acc": acc}

    return (M(), [(R(4, 6), R(4, 5)), (R(5, 6), R(5, 5))])


np_log = math.log(1 / 0.07)


@case
def supcon_masks():

    def f(z, y):
        z = F.normalize(z, dim=1)
        n = z.size(0)
        sim = z @ z.T / 0.1
        eye = torch.eye(n, dtype=torch.bool)
        pos = (y[:, None] == y[None]) & ~eye
        sim = sim - sim.max(1, keepdim=True).values.detach()
        lp = sim - torch.logsumexp(sim.masked_fill(eye, float("-inf")), 1, keepdim=True)
        cnt = pos.sum(1)
        ok = cnt > 0
        return -(torch.where(pos, lp, torch.zeros_like(lp)).sum(1)[ok] / cnt[ok]).mean()

    return (f, [(R(6, 4), I(2, 6)), (R(8, 4), I(3, 8))])


@case
def triplet_hard_mining():

    def f(e, y):
        d = torch.cdist(e, e)
        same = y.unsqueeze(0) == y.unsqueeze(1)
        ap = (d * same).max(1)[0]
        an = (d + d.max().item() * 2 * same).min(1)[0]
        return F.relu(ap - an + 0.3).mean()

    return (f, [(R(6, 4), I(2, 6)), (R(8, 4), I(2, 8))])


@case
def ctc_and_tversky():

    def f(lp, tgt, il, tl):
        return F.ctc_loss(lp.log_softmax(-1), tgt, il, tl, zero_infinity=True)

    return (
        f,
        [
            (R(10, 2, 5), I(4, 2, 3) + 1, torch.tensor([10, 9]), torch.tensor([3, 2])),
            (R(12, 2, 5), I(4, 2, 3) + 1, torch.tensor([12, 9]), torch.tensor([3, 3])),
        ],
    )


@case
def crf_forward_viterbi():

    class CRF(nn.Module):
        def __init__(self, n=4):
            super().__init__()
            self.tr = nn.Parameter(R(n, n))
            self.st = nn.Parameter(R(n))
            self.en = nn.Parameter(R(n))

        def forward(self, em, tags, mask):
            b, t, _n = em.shape
            sc = self.st + em[:, 0]
            num = self.st[tags[:, 0]] + em[torch.arange(b), 0, tags[:, 0]]
            back = []
            v = sc
            for i in range(1, t):
                nx = torch.logsumexp(sc.unsqueeze(2) + self.tr + em[:, i].unsqueeze(1), 1)
                sc = torch.where(mask[:, i].unsqueeze(1), nx, sc)
                num = num + (self.tr[tags[:, i - 1], tags[:, i]] + em[torch.arange(b), i, tags[:, i]]) * mask[:, i]
                vv, ix = (v.unsqueeze(2) + self.tr).max(1)
                v = torch.where(mask[:, i].unsqueeze(1), vv + em[:, i], v)
                back.append(ix)
            last = mask.long().sum(1) - 1
            num = num + self.en[tags.gather(1, last.unsqueeze(1)).squeeze(1)]
            best = (v + self.en).argmax(1)
            path = [best]
            for ix in reversed(back):
                best = ix.gather(1, best.unsqueeze(1)).squeeze(1)
                path.append(best)
            return ((torch.logsumexp(sc + self.en, 1) - num).mean(), torch.stack(path[::-1], 1))

    return (
        CRF(),
        [
            (R(2, 5, 4), I(4, 2, 5), torch.arange(5)[None] < torch.tensor([[5], [3]])),
            (R(3, 6, 4), I(4, 3, 6), torch.arange(6)[None] < torch.tensor([[5], [3], [6]])),
        ],
    )


@case
def siren_coords():

    class Sine(nn.Module):
        def __init__(self, i, o, w0=30.0, first=False):
            super().__init__()
            self.l = nn.Linear(i, o)
            self.w0 = w0
            b = 1 / i if first else math.sqrt(6 / i) / w0
            nn.init.uniform_(self.l.weight, -b, b)

        def forward(self, x):
            return torch.sin(self.w0 * self.l(x))

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(Sine(2, 8, first=True), Sine(8, 8), nn.Linear(8, 3))

        def forward(self, h, w):
            g = torch.stack(torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij"), -1).view(-1, 2)
            return self.net(g).view(h, w, 3)

    return (M(), [(4, 5), (6, 5), (3, 9)])


@case
def nerf_render():

    def posenc(x, L):
        return torch.cat([x] + [fn(2.0**i * math.pi * x) for i in range(L) for fn in (torch.sin, torch.cos)], -1)

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3 + 3 * 2 * 2, 16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, o, d, near=1.0, far=3.0, ns=6):
            z = torch.linspace(near, far, ns).expand(o.shape[0], ns)
            mid = 0.5 * (z[..., 1:] + z[..., :-1])
            up, lo = (torch.cat([mid, z[..., -1:]], -1), torch.cat([z[..., :1], mid], -1))
            if self.training:
                z = lo + (up - lo) * torch.rand(z.shape)
            p = o[:, None] + d[:, None] * z[..., None]
            raw = self.net(posenc(p, 2))
            rgb = raw[..., :3].sigmoid()
            dist = torch.cat([z[..., 1:] - z[..., :-1], torch.full_like(z[..., :1], 10000000000.0)], -1) * d.norm(dim=-1, keepdim=True)
            a = 1 - torch.exp(-F.relu(raw[..., 3]) * dist)
            T = torch.cumprod(torch.cat([torch.ones_like(a[:, :1]), 1 - a + 1e-10], -1), -1)[:, :-1]
            w = a * T
            return {"rgb": (w[..., None] * rgb).sum(-2), "depth": (w * z).sum(-1), "acc": w.sum(-1)}

    return (N(), [(R(4, 3), R(4, 3)), (R(6, 3), R(6, 3))])


@case
def detection_anchors_nms():

    def iou(a, b):
        lt = torch.max(a[:, None, :2], b[None, :, :2])
        rb = torch.min(a[:, None, 2:], b[None, :, 2:])
        wh = (rb - lt).clamp(min=0)
        i = wh[..., 0] * wh[..., 1]
        A = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])
        return i / (A(a)[:, None] + A(b)[None] - i + 1e-09)

    def f(boxes, scores, gt):
        b = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:].abs() + 0.1], 1)
        m = iou(b, gt)
        best, idx = m.max(1)
        lab = torch.full((b.shape[0],), -1, dtype=torch.long)
        lab[best < 0.3] = 0
        lab[best >= 0.5] = 1
        _, gbest = m.max(0)
        lab[gbest] = 1
        pos = torch.nonzero(lab == 1, as_tuple=True)[0]
        reg = F.l1_loss(b[pos], gt[idx[pos]], reduction="sum")
        v = lab >= 0
        return (F.binary_cross_entropy_with_logits(scores[v], lab[v].float()) + reg / max(1, pos.numel()), lab)

    return (f, [(R(8, 4), R(8), torch.tensor([[0.0, 0, 1, 1], [-1, -1, 0, 0]])), (R(10, 4), R(10), torch.tensor([[0.0, 0, 1, 1], [-1, -1, 0, 0]]))])


@case
def hungarian_like_detr_loss():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Embedding(5, 8)
            self.c = nn.Linear(8, 4)
            self.b = nn.Linear(8, 4)

        def forward(self, mem, targets):
            h = self.q.weight[None] + mem.mean(1, keepdim=True)
            lg, bx = (self.c(h), self.b(h).sigmoid())
            losses = {}
            tgt = torch.full(lg.shape[:2], 3, dtype=torch.long)
            bl = []
            for i, t in enumerate(targets):
                cost = torch.cdist(bx[i], t["boxes"], p=1) - lg[i].softmax(-1)[:, t["labels"]]
                src = cost.argmin(0)
                tgt[i, src] = t["labels"]
                bl.append(F.l1_loss(bx[i][src], t["boxes"], reduction="none").sum())
            losses["ce"] = F.cross_entropy(lg.transpose(1, 2), tgt)
            losses["bbox"] = torch.stack(bl).sum() / sum(len(t["labels"]) for t in targets)
            return {k: v * {"ce": 1.0, "bbox": 5.0}[k] for k, v in losses.items()}

    T = lambda n: {"boxes": torch.rand(n, 4), "labels": I(3, n)}
    return (M(), [(R(2, 4, 8), [T(2), T(3)]), (R(2, 4, 8), [T(1), T(2)]), (R(2, 6, 8), [T(2), T(2)])])


@case
def unet_skips():

    class D(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.n = nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

        def forward(self, x):
            return self.n(x)

    class U(nn.Module):
        def __init__(self):
            super().__init__()
            self.d = nn.ModuleList([D(3, 4), D(4, 8)])
            self.m = D(8, 16)
            self.u = nn.ModuleList([nn.ConvTranspose2d(16, 8, 2, 2), nn.ConvTranspose2d(8, 4, 2, 2)])
            self.c = nn.ModuleList([D(16, 8), D(8, 4)])
            self.o = nn.Conv2d(4, 2, 1)

        def forward(self, x):
            sk = []
            for d in self.d:
                x = d(x)
                sk.append(x)
                x = F.max_pool2d(x, 2)
            x = self.m(x)
            for u, c, k in zip(self.u, self.c, sk[::-1]):
                x = u(x)
                if x.shape != k.shape:
                    x = F.interpolate(x, size=k.shape[2:])
                x = c(torch.cat((k, x), 1))
            return self.o(x)

    return (U(), [(R(1, 3, 16, 16),), (R(2, 3, 18, 16),), (R(2, 3, 16, 20),)])


@case
def lora_merge():

    class L(nn.Module):
        def __init__(self, base, r=2):
            super().__init__()
            self.base = base
            self.A = nn.Parameter(R(r, base.in_features) * 0.1)
            self.B = nn.Parameter(R(base.out_features, r) * 0.1)
            self.scale = 2.0
            self.merged = False
            [p.requires_grad_(False) for p in base.parameters()]

        def train(self, mode=True):
            super().train(mode)
            if mode == self.merged:
                self.base.weight.data += (-1 if mode else 1) * self.scale * (self.B @ self.A)
                self.merged = not mode
            return self

        def forward(self, x):
            return self.base(x) if self.merged else self.base(x) + F.dropout(x, 0.1, self.training) @ self.A.T @ self.B.T * self.scale

    return (nn.Sequential(L(nn.Linear(8, 8)), nn.GELU(), L(nn.Linear(8, 4))), [(R(3, 8),), (R(5, 8),)])


@case
def hypernet_functional_call():

    class H(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 3)
            self.h = nn.Linear(5, 15)

        def forward(self, x, z):
            p = self.h(z)
            w, b = (p[:12].view(3, 4), p[12:])
            return torch.func.functional_call(self.net, {"weight": w + self.net.weight, "bias": b}, (x,))

    return (H(), [(R(2, 4), R(5)), (R(3, 4), R(5))])


@case
def checkpointed_blocks():
    from torch.utils.checkpoint import checkpoint

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3))
            self.gc = True

        def forward(self, x):
            for i, b in enumerate(self.b):
                x = x + (checkpoint(b, x, use_reentrant=False) if self.gc and self.training and (i % 2 == 0) else b(x))
            return x

    return (M(), [(R(3, 8),), (R(4, 8),)])


@case
def stochastic_depth_layerdrop():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
            self.p = [x.item() for x in torch.linspace(0, 0.5, 4)]

        def forward(self, x):
            for b, p in zip(self.b, self.p):
                r = b(x).relu()
                if self.training and p > 0:
                    keep = 1 - p
                    m = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
                    if keep > 0:
                        m.div_(keep)
                    r = r * m
                x = x + r
            return x

    return (M(), [(R(3, 8),), (R(4, 5, 8),), (R(5, 8),)])


@case
def running_stats_norm():

    class RN(nn.Module):
        def __init__(self, d=5):
            super().__init__()
            self.register_buffer("mean", torch.zeros(d))
            self.register_buffer("var", torch.ones(d))
            self.register_buffer("count", torch.tensor(0.0001))
            self.l = nn.Linear(d, d)

        def update(self, x):
            bm, bv, bc = (x.mean(0), x.var(0, unbiased=False), x.shape[0])
            delta = bm - self.mean
            tot = self.count + bc
            self.mean = self.mean + delta * bc / tot
            self.var = (self.var * self.count + bv * bc + delta**2 * self.count * bc / tot) / tot
            self.count = tot

        def forward(self, x):
            if self.training:
                with torch.no_grad():
                    self.update(x)
            return self.l(((x - self.mean) / torch.sqrt(self.var + 1e-08)).clip(-5, 5))

    return (RN(), [(R(4, 5),), (R(6, 5),), (R(3, 5),)])


@case
def gae_returns():

    def f(rew, val, done, last):
        T = rew.shape[0]
        adv = torch.zeros_like(rew)
        g = 0
        for t in reversed(range(T)):
            nv = last if t == T - 1 else val[t + 1]
            nt = 1.0 - done[t]
            d = rew[t] + 0.99 * nv * nt - val[t]
            g = d + 0.99 * 0.95 * nt * g
            adv[t] = g
        return ((adv - adv.mean()) / (adv.std() + 1e-08), adv + val)

    return (f, [(R(5, 3), R(5, 3), (torch.rand(5, 3) > 0.7).float(), R(3)), (R(7, 3), R(7, 3), (torch.rand(7, 3) > 0.7).float(), R(3))])


@case
def ppo_loss_categorical():

    class P(nn.Module):
        def __init__(self):
            super().__init__()
            self.pi = nn.Linear(4, 3)
            self.v = nn.Linear(4, 1)

        def forward(self, ob, act, old, adv, ret):
            d = torch.distributions.Categorical(logits=self.pi(ob))
            lp = d.log_prob(act)
            r = (lp - old).exp()
            a = (adv - adv.mean()) / (adv.std() + 1e-08)
            pg = -torch.min(r * a, r.clamp(0.8, 1.2) * a).mean()
            v = self.v(ob).squeeze(-1)
            info = {"kl": (old - lp).mean().detach(), "clip": ((r - 1).abs() > 0.2).float().mean()}
            return (pg + 0.5 * F.mse_loss(v, ret) - 0.01 * d.entropy().mean(), info)

    return (P(), [(R(6, 4), I(3, 6), R(6), R(6), R(6)), (R(9, 4), I(3, 9), R(9), R(9), R(9))])


@case
def mamba_scan():

    class S(nn.Module):
        def __init__(self, d=6, n=4):
            super().__init__()
            self.inp = nn.Linear(d, 2 * d)
            self.conv = nn.Conv1d(d, d, 3, groups=d, padding=2)
            self.xp = nn.Linear(d, 2 * n + 1)
            self.A = nn.Parameter(torch.log(torch.arange(1, n + 1).float().repeat(d, 1)))
            self.D = nn.Parameter(torch.ones(d))
            self.n = n

        def forward(self, u):
            b, l, d = u.shape
            x, z = self.inp(u).chunk(2, -1)
            x = F.silu(self.conv(x.transpose(1, 2))[..., :l].transpose(1, 2))
            B, C, dt = self.xp(x).split([self.n, self.n, 1], -1)
            dt = F.softplus(dt)
            A = -self.A.exp()
            h = x.new_zeros(b, d, self.n)
            ys = []
            for t in range(l):
                h = torch.exp(dt[:, t, :, None] * A) * h + dt[:, t, :, None] * B[:, t, None] * x[:, t, :, None]
                ys.append((h * C[:, t, None]).sum(-1))
            return (torch.stack(ys, 1) + self.D * x) * F.silu(z)

    return (S(), [(R(2, 5, 6),), (R(3, 5, 6),), (R(2, 7, 6),)])


@case
def fft_mixer_complex():

    class F_(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(R(3, 4, 2) * 0.1)

        def forward(self, x):
            xf = torch.fft.rfft(x, dim=1, norm="ortho")
            o = torch.zeros_like(xf)
            k = min(3, xf.shape[1])
            o[:, :k] = xf[:, :k] * torch.view_as_complex(self.w)[:k]
            return torch.fft.irfft(o, n=x.shape[1], dim=1, norm="ortho")

    return (F_(), [(R(2, 8, 4),), (R(2, 10, 4),)])


@case
def hooks_feature_extractor():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh())
            self.feats = {}
            for n, m in self.net.named_children():
                m.register_forward_hook(functools.partial(self.save, n))

        def save(self, n, mod, inp, out):
            self.feats[n] = out

        def forward(self, x):
            self.feats.clear()
            y = self.net(x)
            return (y, [self.feats[k] for k in ("0", "2")])

    return (M(), [(R(3, 6),), (R(4, 6),)])


@case
def getattr_dispatch_and_enum():
    class Mode(enum.Enum):
        SUM = "sum"
        MEAN = "mean"
        MAX = "amax"

    class P(nn.Module):
        def __init__(self, modes):
            super().__init__()
            self.modes = [Mode(m) for m in modes]
            self.l = nn.Linear(4, 4)

        def _reduce_sum(self, x):
            return x.sum(1)

        def _reduce_mean(self, x):
            return x.mean(1)

        def _reduce_amax(self, x):
            return x.amax(1)

        def forward(self, x):
            x = self.l(x)
            return torch.cat([getattr(self, f"_reduce_{m.value}")(x) for m in self.modes if m is not Mode.MAX or x.size(1) > 2], -1)

    return (P(["sum", "mean", "amax"]), [(R(2, 4, 4),), (R(3, 5, 4),), (R(3, 2, 4),)])


@case
def generator_pipeline():

    def windows(x, n, st):
        for i in range(0, x.shape[1] - n + 1, st):
            yield x[:, i : i + n]

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(4, 2)

        def forward(self, x, names=("a", "b")):
            outs = [self.l(w.mean(1)) for w in windows(x, 3, 2)]
            first, *rest = outs
            return (dict(zip(names, itertools.accumulate(outs, torch.add))), functools.reduce(torch.maximum, rest, first), len(outs))

    return (M(), [(R(2, 7, 4),), (R(3, 7, 4),), (R(3, 9, 4),)])


@case
def namedtuple_and_kwargs():
    Feat = collections.namedtuple("Feat", "x mask pos")

    class B(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(4, 4)

        def forward(self, f, *, scale=1.0, **kw):
            return f._replace(x=(self.l(f.x) * scale + kw.get("bias", 0)) * f.mask.unsqueeze(-1))

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.ModuleList([B(), B()])

        def forward(self, x, mask):
            f = Feat(x=x, mask=mask, pos=torch.arange(x.shape[1]))
            f = self.b[0](f, scale=0.5, bias=f.pos[:, None].float())
            f = self.b[1](f)
            return (f.x.sum(1), f.pos)

    return (M(), [(R(2, 3, 4), torch.ones(2, 3)), (R(3, 5, 4), torch.ones(3, 5))])


@case
def shared_subset_params_stack():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.ps = nn.ParameterList([nn.Parameter(R(4, 4) * 0.3) for _ in range(3)])
            self.al = nn.Parameter(torch.zeros(3))
            self.reg = {}

        def forward(self, x):
            w = torch.einsum("k,kij->ij", self.al.softmax(0), torch.stack(list(self.ps)))
            self.reg["l2"] = sum(p.pow(2).sum() for p in self.ps)
            return (x @ w, self.reg["l2"], {n: p.shape[0] for n, p in self.named_parameters()})

    return (M(), [(R(2, 4),), (R(3, 4),)])


@case
def dynamic_conv_grouped():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.att = nn.Linear(3, 2)
            self.w = nn.Parameter(R(2, 4, 3, 3, 3) * 0.2)

        def forward(self, x):
            b, c, h, w = x.shape
            a = self.att(F.adaptive_avg_pool2d(x, 1).flatten(1)).softmax(1)
            k = (a @ self.w.view(2, -1)).view(b * 4, c, 3, 3)
            return F.conv2d(x.reshape(1, b * c, h, w), k, padding=1, groups=b).view(b, 4, h, w)

    return (M(), [(R(2, 3, 6, 6),), (R(3, 3, 5, 6),)])


@case
def deformable_grid_sample():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.o = nn.Conv2d(3, 2, 3, padding=1)

        def forward(self, x):
            b, _c, _h, _w = x.shape
            th = torch.eye(2, 3).expand(b, 2, 3)
            g = F.affine_grid(th, x.shape, align_corners=False) + 0.1 * self.o(x).tanh().permute(0, 2, 3, 1)
            return F.grid_sample(x, g, align_corners=False, padding_mode="border")

    return (M(), [(R(1, 3, 6, 6),), (R(2, 3, 5, 7),)])


@case
def act_halting():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.GRUCell(4, 4)
            self.h = nn.Linear(4, 1)

        def forward(self, x, mx=6):
            h = torch.zeros_like(x)
            acc = x.new_zeros(x.size(0), 1)
            out = torch.zeros_like(h)
            n = 0
            while n < mx and bool((acc < 0.99).any()):
                h = self.c(x, h)
                p = self.h(h).sigmoid()
                still = (acc + p < 0.99).float()
                use = torch.where(still.bool(), p, 1 - acc)
                out = out + use * h
                acc = acc + use
                n += 1
            return (out, n)

    return (M(), [(R(3, 4),), (R(4, 4),)])


@case
def metric_state_lists():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(4, 3)
            self.losses = []
            self.hist = collections.defaultdict(list)
            self.seen = []

        def forward(self, x, y):
            lo = self.l(x)
            l = F.cross_entropy(lo, y)
            self.losses.append(l.detach())
            self.hist["acc"].append((lo.argmax(-1) == y).float().mean())
            self.seen.append(x.shape[0])
            return (l, torch.stack(self.losses).mean(), sum(self.seen))

    return (M(), [(R(3, 4), I(3, 3)), (R(4, 4), I(3, 4)), (R(5, 4), I(3, 5))])


@case
def ghm_bins():

    class G(nn.Module):
        def __init__(self):
            super().__init__()
            self.bins = 5
            e = torch.arange(6).float() / 5
            e[-1] += 1e-06
            self.register_buffer("edges", e)

        def forward(self, pred, target, lw):
            w = torch.zeros_like(pred)
            g = (pred.sigmoid().detach() - target).abs()
            valid = lw > 0
            tot = max(valid.float().sum().item(), 1.0)
            n = 0
            for i in range(self.bins):
                inds = (g >= self.edges[i]) & (g < self.edges[i + 1]) & valid
                num = inds.sum().item()
                if num > 0:
                    w[inds] = tot / num
                    n += 1
            if n > 0:
                w = w / n
            return F.binary_cross_entropy_with_logits(pred, target, w, reduction="sum") / tot

    return (G(), [(R(6, 4), I(2, 6, 4).float(), torch.ones(6, 4)), (R(5, 4), I(2, 5, 4).float(), torch.ones(5, 4))])


# What data decides in the outermost function ends the graph; torch.compile breaks at each of these, too: graphs and breaks.
BROKEN = {"focal_ohem": (2, 1), "dice_with_onehot_list": (6, 1)}
# What is not differentiated by us in training, and runs through the framework.
WITHOUT_BACKWARD = {
    "freezing": "an input that gets gradients is written",
    "ema_codebook": "a tensor is written that a derivative may need",
    "momentum_encoder": "an input that the gradients need is written",
    "kv_cache_static": "an input that the gradients need is written",
    "fft_mixer_complex": "complex",
}


def leaves_of(result):
    found = []
    for leaf in tree_leaves(result):
        if hasattr(leaf, "__dataclass_fields__"):
            found += leaves_of([getattr(leaf, name) for name in leaf.__dataclass_fields__])
        else:
            found.append(leaf)
    return found


def stepped(call, args, train, module):
    """What one call gives: results, gradients, the arguments and the state behind it."""
    args = copy.deepcopy(args)
    given = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    if train:
        given = [t.requires_grad_() for t in given]
    torch.manual_seed(3)
    with torch.set_grad_enabled(train):
        results = leaves_of(call(*args))
    grads = []
    if train:
        wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        if wanted:
            sum(r.pow(2).sum() for r in wanted).backward()
        for leaf in [*(module.parameters() if module else ()), *given]:
            grads.append(leaf.grad)
            leaf.grad = None
    state = [v.clone() for v in module.state_dict().values()] if module else []
    return [r.detach() if isinstance(r, torch.Tensor) else r for r in results] + grads + [t.detach() for t in given] + state


def wide(args):
    return tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, args)


def compare(got, eager, exact):
    assert len(got) == len(eager)
    for n, (mine, theirs) in enumerate(zip(got, eager, strict=True)):
        assert type(mine) is type(theirs)
        if not isinstance(mine, torch.Tensor):
            assert mine == theirs
            continue
        assert (mine.shape, mine.dtype, mine.stride()) == (theirs.shape, theirs.dtype, theirs.stride())
        if not mine.numel():
            continue
        if mine.is_floating_point() and exact is not None and float(exact[n].abs().max()) < 1e-12:  # zero, but for how it rounds
            assert float(mine.abs().max()) < 1e-5
            continue
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs) if not mine.is_complex() else torch.allclose(mine, theirs, rtol=1e-5)
            continue
        assert torch.equal(mine.isfinite(), theirs.isfinite())
        truth = (exact[n] if exact is not None else theirs).double()
        own, error = ((v.double() - truth).nan_to_num(0, 0, 0).abs().max() for v in (theirs, mine))
        slack = 8 if exact is not None else 32  # these are few values: how they round is chance
        assert error <= 2 * own + slack * torch.finfo(mine.dtype).eps * truth.nan_to_num(0, 0, 0).abs().max(), f"value {n}: {error} and {own}"


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", CASES)
def test_programs(fresh, name, train):
    torch.manual_seed(0)
    made, calls = CASES[name]()
    sides = [copy.deepcopy(made).train(train) if isinstance(made, nn.Module) else made for _ in range(4)]
    modules = [m if isinstance(m, nn.Module) else None for m in sides]
    eager, ours, exact, told_of = sides
    exact = exact.double() if modules[2] else exact
    args = copy.deepcopy(calls[0])
    with torch.set_grad_enabled(train):
        for t in tree_leaves(args):
            if train and isinstance(t, torch.Tensor) and t.is_floating_point():
                t.requires_grad_()
        told = fresh.explain(told_of)(*args)
    assert (told.graph_count, told.graph_break_count) == BROKEN.get(name, (1, 0)), str(told)
    compiled = fresh.compile(ours)
    for given in calls:
        expected = stepped(eager, given, train, modules[0])
        drawn = torch.get_rng_state()
        try:
            reference = stepped(exact, wide(given), train, modules[2])
        except RuntimeError:  # types that are named in the program do not become wide
            reference = None
        got = stepped(compiled, given, train, modules[1])
        assert torch.equal(torch.get_rng_state(), drawn)
        usable = reference is not None and len(reference) == len(expected)
        alike = usable and all(getattr(r, "shape", None) == getattr(e, "shape", None) for r, e in zip(reference, expected, strict=True))
        compare(got, expected, reference if alike else None)
    notes = fresh.cache_info(compiled)["notes"]
    wanted = WITHOUT_BACKWARD.get(name) if train else None
    assert all(wanted in note for note in notes) if wanted else notes == [], notes
