"""What the forwards of Hugging Face models use most: torch functions, methods, builtins, statements, each in a smallest
function as models write it. One graph, no break, eager's results."""

import ast
import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import logging
import math
import operator
import os
import re
import textwrap
import types
import typing
import warnings

import pytest

torch = pytest.importorskip("torch")
from harness import compare, observe, one_line_bodies  # noqa: E402
from op_samples import TORCH  # noqa: E402

import framejit  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


class Output(collections.OrderedDict):
    """A model's output: fields that are items and attributes."""

    def __init__(self, **fields):
        super().__init__(**fields)
        for name, value in fields.items():
            setattr(self, name, value)

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


@dataclasses.dataclass
class Fields:
    hidden: object = None
    pooled: object = None


class Side(str, enum.Enum):
    LEFT = "left"
    RIGHT = "right"


class Config:
    hidden_size = 4
    _attn_implementation = "sdpa"
    layer_types = ["full", "sliding"]

    def __getattribute__(self, key):
        return super().__getattribute__(key)

    @property
    def output_attentions(self):
        return False


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.norm, self.act = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        self.names = torch.nn.ModuleDict({"one": torch.nn.Identity()})
        self.scale = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("freq", torch.arange(4.0), persistent=False)
        self.gradient_checkpointing = False

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x) + i
        return self.names["one"](self.act(self.norm(self.lin(x)))) * self.scale + self.freq


RNN = torch.nn.LSTM(4, 5, batch_first=True)
GRU = torch.nn.GRU(4, 5)
ATTENTION = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
BLOCK = Block()
CONFIG = Config()
VAR = contextvars.ContextVar("census", default=None)
LOGGER = logging.getLogger("census")
ACTIVATIONS = {"gelu": torch.nn.functional.gelu}
FROZEN = frozenset({"a", "b"})


@contextlib.contextmanager
def scope(value):
    token = VAR.set(value)
    try:
        yield value
    finally:
        VAR.reset(token)


@functools.lru_cache
def cached(n):
    return n * 2


def decorated(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


@decorated
def twice(x, factor=2):
    return x * factor


def generator(xs):
    for x in xs:
        yield x + 1


# One entry a line: `name: program`, statements separated by `;`, the last of which is the result. Operands: op_samples.TORCH.
FUNCTIONS = """
torch._C._set_grad_enabled: p = torch.is_grad_enabled(); torch._C._set_grad_enabled(False); y = f * 2; torch._C._set_grad_enabled(p); y
torch.is_grad_enabled: f * 2 if torch.is_grad_enabled() else f * 3
torch._C._get_tracing_state: f * 2 if torch._C._get_tracing_state() is None else f
torch._C._has_torch_function_variadic: f if torch.overrides.has_torch_function_variadic(f, g) else f + 1
torch._C._has_torch_function_unary: f if torch.overrides.has_torch_function_unary(f) else f + 1
torch._C._has_torch_function: f if torch.overrides.has_torch_function((f, g)) else f + 1
torch._C._is_tracing: f if torch._C._is_tracing() else f + 1
torch._C._get_cudnn_enabled: f + 1 if torch.backends.cudnn.enabled else f + 2
torch._C._get_deterministic_algorithms: f if torch.are_deterministic_algorithms_enabled() else f + 1
torch._C._log_api_usage_once: torch._C._log_api_usage_once("x"); f + 1
torch._C._are_functorch_transforms_active: f + 1 if torch._C._are_functorch_transforms_active() else f + 2
torch.Tensor.shape: b_, s_, h_ = f.shape; f.view(b_ * s_, h_) * f.shape[-1]
torch.Tensor.dtype: g.to(f.dtype) * (1 if f.dtype == torch.float32 else 2) + torch.finfo(f.dtype).min
torch.Tensor.device: torch.ones(3, device=f.device), f.device.type == "cpu", str(f.device)
torch.Tensor.ndim: f * f.ndim
torch.Tensor.T: m.T + 1
torch.Tensor.is_nested: f * 2 if f.is_nested else f * 3
torch.Tensor.grad: f * 2 if f.grad is None else f
torch.Tensor.data: f.data + 1
torch.Tensor.requires_grad: f * 2 if f.requires_grad else f * 3
torch.Tensor.is_cuda: f * 2 if f.is_cuda else f + 1
torch.Tensor.add: f + g, f + 1, 1 + f, f.add(g, alpha=2)
torch.nn.functional.linear: F.linear(f, w, bias)
torch.Tensor.transpose: f.view(2, 3, 2, 2).transpose(1, 2)
torch.Tensor.view: f.view(2, -1), f.view(f.shape[:-1] + (2, 2)), f.view(torch.int32)
torch.Tensor.contiguous: f.transpose(1, 2).contiguous()
torch.Tensor.mul: f * g, 2 * f, f.mul(g)
torch.Tensor.__getitem__: f[:, 0], f[..., : f.shape[-1] // 2], f[:, None], f[idx2], f[0, -1], m[idx]
torch.Tensor.reshape: f.reshape(-1, f.shape[-1]), f.reshape(*f.shape[:-1], -1)
torch.Tensor.to: i.to(torch.float32), f.to("cpu"), f.to(g), f.to(device=g.device, dtype=torch.float64)
torch.nn.functional.embedding: F.embedding(tok, w, padding_idx=0)
torch.embedding: torch.embedding(w, tok)
scaled_dot_product_attention: F.scaled_dot_product_attention(q, kv, kv, attn_mask=mask, dropout_p=0.0, scale=0.5, is_causal=False)
torch.Tensor.expand: m[None, None].expand(2, 5, -1, -1)
torch.arange: torch.arange(f.shape[1], device=f.device), torch.arange(0, 8, 2, dtype=torch.int64).float(), torch.arange(1, 3)
torch.cat: torch.cat([f, g], dim=-1), torch.cat((-f[..., 2:], f[..., :2]), dim=-1)
torch.concat: torch.concat([f, g], dim=1)
torch.Tensor.unsqueeze: f.unsqueeze(1)
torch.Tensor.float: bf.float() + 1
torch.Tensor.sub: f - g, f.sub(2), 1 - f
torch.nn.functional.layer_norm: F.layer_norm(f, (4,), v, v, 1e-6)
torch.layer_norm: torch.layer_norm(f, (4,), v, v, 1e-6)
torch.nn.functional.dropout: F.dropout(f, p=0.1, training=False)
torch.dropout: torch.dropout(f, 0.5, False)
torch.Tensor.size: f.size(), f.size(-1), f.view(f.size(0), -1)
torch.Tensor.ne: f != g, i != 1, i.ne(1)
torch.Tensor.neg: -f, f.neg()
torch.Tensor.__eq__: i == 1, i == i32, i.eq(2)
torch.Tensor.sin: f.sin() + torch.sin(g)
torch.Tensor.cos: f.cos() + torch.cos(g)
torch.Tensor.all: b.all(), b.all(-1), torch.all(b)
torch.Tensor.__bool__: f * 2 if (i > -100).all() else f
torch.Tensor.any: b.any(), b.any(dim=-1)
torch.nn.functional.gelu: F.gelu(f), F.gelu(f, approximate="tanh")
torch.Tensor.mean: f.mean(-1, keepdim=True), f.mean(dim=[1, 2]), f.mean(), torch.mean(f, 1)
torch.Tensor.cumsum: tok.cumsum(-1), torch.cumsum(tok, dim=1).type_as(tok)
torch.Tensor.pow: f.pow(2), f ** 2, torch.pow(f, 3), 2 ** f, f.abs() ** -0.5, f.abs() ** g
torch.rsqrt: torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6), f.abs().rsqrt()
torch.nn.functional.silu: F.silu(f)
torch.diff: torch.diff(tok, prepend=tok[:, :1] - 1, dim=-1)
torch.Tensor.permute: img.permute(0, 2, 3, 1), torch.permute(f, (2, 0, 1))
torch.nn.functional.conv2d: F.conv2d(img, kernel, None, 1, 1), F.conv2d(img, kernel, stride=(2, 2))
torch.conv2d: torch.conv2d(img, kernel)
torch.Tensor.div: f / 2, f / g, 1 / f, f.div(2), torch.div(f, 2, rounding_mode="floor"), torch.div(i, 2, rounding_mode="trunc")
torch.Tensor.flatten: img.flatten(2).transpose(1, 2), torch.flatten(img, 1)
torch.nn.functional.softmax: F.softmax(f, dim=-1, dtype=torch.float32).to(f.dtype), torch.softmax(f, -1), f.softmax(dim=1)
torch.zeros: torch.zeros(2, 3), torch.zeros((2, f.shape[1]), dtype=f.dtype, device=f.device), torch.zeros(f.size())
torch.ones: torch.ones(f.shape[:2], dtype=torch.long), torch.ones((2, 2), dtype=torch.bool)
torch.matmul: torch.matmul(f, g.transpose(-1, -2)), f @ w.t(), f.matmul(g.mT)
torch.Tensor.sum: f.sum(-1), f.sum(dim=(0, 1), keepdim=True), b.sum(), torch.sum(f, dim=1)
torch.nn.functional.pad: F.pad(f, (1, 2)), F.pad(img, (0, 1, 0, 1), value=-1.0), F.pad(img, (1, 1, 1, 1), mode="reflect")
replication_pad1d: F.pad(f, (1, 1), mode="replicate")
torch.Tensor.__setitem__: y = torch.zeros(2, 3); y[:, 0] = 1; y[0, 1:] = f[0, 0, :2]; y[y == 1] = 3; y
torch.Tensor.type_as: i.type_as(f)
torch.nn.functional.relu: F.relu(f), torch.relu(f), f.relu(), F.relu(f + 1, inplace=True), torch.relu_(f + 1)
torch.nn.functional.conv1d: F.conv1d(f, torch.ones(5, 3, 2), padding=1), torch.conv1d(f, torch.ones(3, 1, 2), groups=3)
torch.tanh: torch.tanh(f), f.tanh()
torch.stack: torch.stack([f, g]), torch.stack((f, g), dim=-1)
torch.where: torch.where(b, f, g), torch.where(b, f, 0.0), torch.where(b, 0.0, f), f.where(b, g), torch.where(b, torch.tensor(0.0), f)
torch.Tensor.chunk: y, z = f.chunk(2, dim=-1); y * z, torch.chunk(f, 2, 2)
torch.Tensor.dim: f * f.dim()
torch.Tensor.add_: y = f * 1; y += g; y.add_(1); y
torch.Tensor.long: tok.long(), f.long()
torch.Tensor.le: f <= g, tok <= 2, torch.arange(3)[:, None] >= torch.arange(3), tok.le(1)
torch.Tensor.ge: f >= g, tok.ge(1)
torch.Tensor.lt: f < g, tok.lt(1), torch.lt(f, g)
torch.Tensor.gt: f > 0, f.gt(g)
torch.Tensor.masked_fill: f.masked_fill(b, torch.finfo(f.dtype).min), f.masked_fill(~b, 0.0), torch.masked_fill(f, b, 1), f.masked_fill(b, torch.tensor(2.0))
torch.Tensor.masked_fill_: (f * 1).masked_fill_(b, 1.0)
torch.Tensor.repeat: m.repeat(2, 1), m[None].repeat(2, 1, 1)
torch.Tensor.int: f.int(), tok.int()
torch.Tensor.squeeze: f[:1].squeeze(0), f.unsqueeze(-1).squeeze(-1), f[:1].squeeze()
torch.zeros_like: torch.zeros_like(f), torch.zeros_like(f, dtype=torch.bool)
torch.sigmoid: torch.sigmoid(f), f.sigmoid()
torch.Tensor.new_ones: tok.new_ones(2, 3), f.new_ones((2, 3), dtype=torch.bool)
torch.Tensor.new_zeros: tok.new_zeros(2, 3), f.new_zeros(f.shape)
torch.Tensor.new_full: f.new_full((2, 3), 1.5)
torch.Tensor.new_tensor: f.new_tensor([1.0, 2.0])
torch.Tensor.__and__: b & (f > 1), b.__and__(b)
torch.Tensor.__or__: b | (f > 1), b.__or__(b)
torch.Tensor.__invert__: ~b
torch.sort: torch.sort(v), torch.sort(f, dim=-1, descending=True)[0], f.sort(), f.sort(stable=True).indices
torch.topk: torch.topk(f, 2, dim=-1), torch.topk(f, k=2, dim=-1, sorted=False)[0].sort()[0], f.topk(2).values
torch.Tensor.__floordiv__: i // 2, f // 2, torch.floor_divide(i, 2), (i + 0).floor_divide_(2)
torch.histc: torch.histc(f, bins=4, min=-1, max=1)
torch.empty_like: torch.empty_like(f).fill_(2), torch.empty_like(f).shape
torch._grouped_mm: torch._grouped_mm(torch.ones(4, 8, dtype=torch.bfloat16), torch.ones(2, 8, 8, dtype=torch.bfloat16), offs=torch.tensor([2, 4], dtype=torch.int32))
torch.nn.functional.batch_norm: F.batch_norm(img, v, v.abs(), v, v, False, 0.1, 1e-5)
torch.batch_norm: torch.batch_norm(img, v, v, v, v.abs() + 1, False, 0.1, 1e-5, False)
torch.Tensor.unbind: f.unbind(0), torch.unbind(f, -1)
torch.gather: torch.gather(f, 2, i.abs() % 4), f.gather(-1, i.abs() % 4)
torch.nn.functional.interpolate: F.interpolate(img, scale_factor=2.0, mode="nearest"), F.interpolate(img, size=(3, 4), mode="bilinear", align_corners=False)
interpolate linear, bicubic: F.interpolate(f, size=7, mode="linear"), F.interpolate(img, size=(7, 8), mode="bicubic", align_corners=False)
torch.Tensor.split: f.split(2, dim=-1), torch.split(f, [1, 2], dim=1), torch.split_with_sizes(f, [1, 3], 2)
torch.functional.einsum: torch.einsum("bij,kj->bik", f, w), torch.einsum("bhid,bhjd->bhij", q, kv)
torch.nn.functional.max_pool2d: F.max_pool2d(img, 2, 2), F.max_pool2d(img, kernel_size=3, stride=1, padding=1)
torch.Tensor.__rsub__: 1.0 - f, torch.rsub(f, 1)
torch.Tensor.detach: f.detach() + 1
torch.Tensor.__contains__: f * 2 if 3 in tok else f
torch.exp: torch.exp(f), f.exp()
torch.Tensor.repeat_interleave: f.repeat_interleave(2, dim=1), torch.repeat_interleave(f, repeats=2, dim=0)
torch.Tensor.max: f.max(), f.max(dim=-1), f.max(-1)[0], torch.max(f, dim=1), torch.max(f, g), torch.max(f)
torch.min: f.min(), torch.min(f, dim=-1).values, torch.min(f, g), torch.min(f, dim=0)
torch.Tensor.clamp: f.clamp(min=1e-9), f.clamp(-1, 1), torch.clamp(f, max=1), f.clamp_min(0), torch.clip(f, -1, 1), f.clamp(min=g)
torch.bmm: torch.bmm(f, g.transpose(1, 2)), f.bmm(g.mT)
torch.nn.functional.softplus: F.softplus(f)
torch.Tensor.t: w.t() + 1
torch.full: torch.full((2, 3), -1e9), torch.full((2,), 1, dtype=torch.long, device=f.device), torch.full((3, 3), torch.finfo(f.dtype).min)
torch.full_like: torch.full_like(f, 2.0), torch.full_like(tok, 3)
torch.log: torch.log(f.abs()), f.abs().log()
torch.Tensor.bool: tok.bool(), f.bool()
torch.Tensor.clone: f.clone(), torch.clone(f)
torch.nn.functional.glu: F.glu(f, dim=-1)
torch.nn.functional.group_norm: F.group_norm(img, 2, v, v), torch.group_norm(img, 2)
torch.nn.functional.adaptive_avg_pool2d: F.adaptive_avg_pool2d(img, 1), F.adaptive_avg_pool2d(img, (3, 3))
torch.Tensor.div_: y = f + 0; y /= 2; y.div_(3); y
torch.Tensor.type: f.type(torch.float64), f.type(g.dtype), f.type()
torch.Tensor.numel: f * f.numel()
torch.Tensor.__rtruediv__: 1.0 / f
torch.Tensor.__rpow__: 10000 ** v
torch.abs: torch.abs(f), f.abs(), abs(f)
torch.nn.functional.avg_pool2d: F.avg_pool2d(img, 2, 2), F.avg_pool1d(f, 2)
torch.Tensor.mul_: y = f + 0; y *= 2; y.mul_(g); y
torch.Tensor.item: f * tok.max().item()
torch.Tensor.item of a float: f * f.max().item()
int(tensor): torch.zeros(int(tok.max()) + 1)
torch.Tensor.tolist: torch.split(m, torch.tensor([1, 2]).tolist())
torch.Tensor.argmax: f.argmax(-1), torch.argmax(f, dim=-1), f.argmax()
torch.square: torch.square(f), f.square()
torch.tensor: torch.tensor(2.0), torch.tensor([1, 2], device=f.device), torch.tensor([[f.shape[0], 2]], dtype=torch.long)
torch.as_tensor: torch.as_tensor(f), torch.as_tensor([1, 2])
torch.Tensor.index_select: f.index_select(1, idx), torch.index_select(f, 1, idx)
torch._weight_norm: torch._weight_norm(f, f[:, :1, :1], 0)
torch.Tensor.is_floating_point: f * 2 if f.is_floating_point() else f, torch.is_floating_point(i)
multi_head_attention_forward: ATTENTION(f, f, f)[0]
torch.Tensor.scatter_: torch.zeros(2, 3, 6).scatter_(-1, i.abs() % 4, 1.0), torch.zeros(2, 3, 6).scatter_(-1, i.abs() % 4, f)
torch.Tensor.scatter: torch.zeros(2, 3, 6).scatter(-1, i.abs() % 4, 1.0), torch.scatter(torch.zeros(2, 5), 1, tok % 1, 2)
torch.Tensor.norm: f.norm(dim=-1, keepdim=True), f.norm(p=2, dim=-1), torch.norm(f)
torch.linalg.norm: torch.linalg.norm(f, dim=-1), torch.linalg.vector_norm(f, dim=-1)
torch.Tensor.tile: m.tile((2, 1)), m.tile(2)
torch.logsumexp: torch.logsumexp(f, dim=-1), f.logsumexp(-1)
torch.nn.functional.elu: F.elu(f)
torch.nn.functional.conv_transpose1d: F.conv_transpose1d(f, torch.ones(3, 2, 2), stride=2)
torch.nn.functional.conv_transpose2d: F.conv_transpose2d(img, torch.ones(4, 2, 2, 2), stride=2)
torch.nn.functional.grid_sample: F.grid_sample(img, torch.ones(2, 3, 3, 2) * 0.3, mode="bilinear", padding_mode="zeros", align_corners=False)
torch.Tensor.prod: f.prod(-1), i.prod(dim=1), f.prod()
torch.sqrt: torch.sqrt(f.abs()), f.abs().sqrt()
torch.triu: torch.triu(torch.full((4, 4), -1e9), diagonal=1), m.triu(), m.tril(), torch.tril(m, -1)
torch.Tensor.logical_not: b.logical_not(), torch.logical_and(b, b), torch.logical_or(b, b)
torch.lstm: RNN(f)
torch.gru: GRU(f)
torch.empty: torch.empty(2, 3).fill_(1), torch.empty((0, 4))
torch.ceil: torch.ceil(f), torch.floor(f), f.round()
torch.functional.meshgrid: torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
torch.ones_like: torch.ones_like(f), torch.ones_like(tok, dtype=torch.bool)
torch.addmm: torch.addmm(bias, m, w.t())
torch.baddbmm: torch.baddbmm(torch.zeros(2, 3, 3), f, g.mT, beta=1.0, alpha=0.5), torch.zeros(2, 3, 3).baddbmm(f, g.mT)
torch.reshape: torch.reshape(f, (2, -1))
torch.linalg.solve_triangular: torch.linalg.solve_triangular(torch.eye(3) + torch.tril(m[:, :3]), m, upper=False)
torch.nn.functional.adaptive_avg_pool1d: F.adaptive_avg_pool1d(f, 1), F.adaptive_avg_pool1d(f, 2)
torch.roll: torch.roll(img, shifts=(-1, -1), dims=(1, 2)), torch.roll(f, 1, -1)
torch.Tensor.__len__: f * len(f)
torch.Tensor.expand_as: v.expand_as(f)
torch.Tensor.flip: f.flip(-1), torch.flip(f, [0, 1])
torch.Tensor.stride: f.stride(), f * f.stride(0)
torch.Tensor.as_strided: f.as_strided((2, 2), (1, 2)) + 1
torch.Tensor.amax: f.amax(-1, keepdim=True), f.amin((0, 1))
torch.aminmax: torch.aminmax(f)
torch.eye: torch.eye(3), torch.eye(2, 3, dtype=torch.bool)
torch.nn.functional.logsigmoid: F.logsigmoid(f)
torch.Tensor.nonzero: b.nonzero(), torch.nonzero(tok > 1, as_tuple=True)
torch.nn.functional.one_hot: F.one_hot(tok, num_classes=5), F.one_hot(tok.clamp(min=0), 6).permute(2, 1, 0)
torch.nn.functional.one_hot without classes: F.one_hot(tok)
torch.linspace: torch.linspace(0, 1, 5), torch.linspace(-1, 1, f.shape[1], device=f.device)
torch.nn.functional.hardsigmoid: F.hardsigmoid(f), F.hardtanh(f), F.leaky_relu(f, 0.1), F.prelu(f.transpose(0, 1), torch.tensor([0.1, 0.2]))
torch.Tensor.reciprocal: f.reciprocal()
torch.Tensor._is_all_true: b._is_all_true()
torch.view_as_complex: torch.view_as_complex(f.view(2, 3, 2, 2)) * torch.polar(f.abs(), g)[..., :2], torch.view_as_real(torch.polar(f, g)).flatten(3)
torch.maximum: torch.maximum(f, g), torch.minimum(f, g), torch.greater(f, g), torch.multiply(f, g), torch.ne(f, g), torch.mul(f, 2)
torch.Tensor.broadcast_to: v.broadcast_to(2, 3, 4), torch.broadcast_to(v, (3, 4))
torch.Tensor.__format__: f"{f.shape[0]} of {f.dim()}", f + 1
torch.Tensor.index_add_: torch.zeros(3, 4).index_add_(0, idx, m), m.index_add(0, idx, m)
torch.nn.functional.unfold: F.unfold(img, kernel_size=3, padding=1), f.unfold(-1, 2, 1)
torch.Tensor.view_as: f.view_as(g)
torch.scalar_tensor: torch.scalar_tensor(1.5), f + torch.scalar_tensor(2)
torch.nn.functional.normalize: F.normalize(f, p=2, dim=-1)
torch.Tensor.unique: tok.unique(), torch.unique(tok, return_inverse=True)
torch.unique of rows: torch.unique(tok, dim=0)
torch.unique_consecutive: torch.unique_consecutive(tok, return_counts=True)
torch.multinomial: torch.multinomial(m.softmax(-1), 1).shape
torch.argsort: torch.argsort(f, dim=-1), tok.argsort(descending=True, stable=True)
torch.rand: torch.rand(2, 3).shape, torch.randn(f.shape).shape, torch.rand_like(f).shape, torch.randint(0, 5, (3,)).shape
torch.Tensor.copy_: y = torch.zeros(2, 3, 4); y.copy_(f); y[:, 1].copy_(v); y
torch.bucketize: torch.bucketize(f, torch.tensor([-1.0, 0.0, 1.0])), torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), f)
torch.rms_norm: torch.rms_norm(f, (4,), v), F.rms_norm(f, (4,))
torch.Tensor.masked_scatter: f.masked_scatter(b, g), m.masked_scatter((torch.arange(3) > 0)[:, None], m)
torch.Tensor.masked_select: f[b], torch.masked_select(f, b)
torch.expm1: torch.expm1(f), torch.log1p(f.abs())
torch.Tensor.narrow: f.narrow(1, 0, 2)
torch.Tensor.requires_grad_: (f + 1).requires_grad_(False)
torch.Tensor.fill_: torch.empty(2, 3).fill_(3.0), torch.zeros(2).fill_(torch.tensor(2.0))
torch.Tensor.index_put_: y = torch.zeros(3, 4); y[idx] = m; y[idx, idx] = 1.0; y
torch.promote_types: f.to(torch.promote_types(torch.float64, f.dtype))
torch.finfo: f * torch.finfo(f.dtype).eps, torch.iinfo(tok.dtype).max
torch.outer: torch.outer(v, v), torch.dot(v, v), torch.mv(m, v)
torch.nn.functional.cross_entropy: F.cross_entropy(m, classes), F.cross_entropy(m, classes, reduction="none")
torch.nn.functional.mse_loss: F.mse_loss(f, g), F.l1_loss(f, g), F.smooth_l1_loss(f, g)
torch.nn.functional.binary_cross_entropy_with_logits: F.binary_cross_entropy_with_logits(f, g.sigmoid()), F.log_softmax(f, -1)
torch.std: f.std(-1), torch.var(f, dim=-1, unbiased=False), torch.var_mean(f, -1), torch.std_mean(f)
torch.isin: torch.isin(tok, torch.tensor([1, 2])), torch.isinf(f), torch.isnan(f).any(), torch.isfinite(f)
torch.fft: torch.fft.fftn(torch.fft.rfft(f).abs(), dim=(1, 2)).real
torch.stft: torch.stft(f.flatten(), 8, 4, 8, torch.ones(8), return_complex=True).abs()
torch.allclose: f if torch.allclose(f, f) else g, torch.equal(f, g + 0)
torch.no_grad: torch.no_grad().__enter__() is None, f + 1
torch.cdist: torch.cdist(f, g), torch.bincount(tok.view(-1), minlength=6)
torch.tensor_split: torch.tensor_split(f, 3, dim=-1), torch.hstack([f, g]), torch.vstack([f, g]), torch.swapaxes(f, 0, 1), torch.movedim(f, 0, -1)
torch.broadcast_tensors: torch.broadcast_tensors(f, v), torch.atleast_2d(v), torch.ravel(f), torch.unflatten(f, -1, (2, 2))
torch.quantile: torch.quantile(f, 0.5), torch.median(f), f.median(-1), torch.mode(i, -1), torch.kthvalue(f, 2)
torch.linalg: torch.linalg.inv(torch.eye(3) * 2), torch.linalg.det(torch.eye(3)), torch.linalg.svd(m).S, torch.linalg.qr(m).R.abs(), torch.linalg.eigh(m @ m.T).eigenvalues
torch.cummax: torch.cummax(f, -1), torch.logcumsumexp(f, -1), f.cumprod(-1)
builtins.len: f * len(f.shape) + len([1, 2])
builtins.object.__new__: Output(a=f + 1).a, object() is None
builtins.all: f + all(x > 0 for x in f.shape)
builtins.any: f + any(x is None for x in (f, g))
builtins.dict.get: {"a": f}.get("a") + 1, ACTIVATIONS.get("gelu")(f)
builtins.dict.values: [x + 1 for x in {"a": f, "b": g}.values()]
builtins.getattr: getattr(f, "shape")[0] + getattr(CONFIG, "missing", 3), getattr(torch, "tanh")(f)
builtins.iter: next(iter([f, g])) + 1
builtins.isinstance: f * isinstance(f, torch.Tensor) + isinstance(f, (list, tuple))
builtins.str.startswith: f * "abc".startswith(("a", "b"))
builtins.list.append: y = []; y.append(f + 1); y.append(g); y
builtins.list.extend: y = [f]; y.extend([g, f]); torch.cat(y)
builtins.hasattr: f * hasattr(CONFIG, "hidden_size") + hasattr(f, "nothing")
builtins.dict.pop: y = {"a": f, "b": 1}; y.pop("a") + y.pop("c", 2)
builtins.dict.items: {k: x * 2 for k, x in {"a": f}.items()}
builtins.dict.keys: sorted({"b": f, "a": g}.keys()), f + 1
builtins.dict.update: y = {"a": f}; y.update(b=g); y.update({"c": 1}); y, f + 1
builtins.dict.copy: y = {"a": f}; z = y.copy(); z["b"] = g + 1; z, dict(**y), y | z
builtins.dict.setdefault: y = {}; y.setdefault("a", []).append(f + 1); y
ContextVar.set: t = VAR.set(f.shape); y = f + VAR.get()[0]; VAR.reset(t); y
abc.__instancecheck__: f * isinstance({}, collections.abc.Mapping) * isinstance(f, collections.abc.Sequence) + isinstance([], typing.Iterable)
builtins.str.encode: f * len("abc".encode("utf-8"))
os.environ: f * len(os.environ.get("NOTHING_HERE", "ab")) + ("NOTHING_HERE" in os.environ)
collections.OrderedDict.values: list(collections.OrderedDict(a=f, b=g).values()), list(BLOCK._modules.values())[0](f)
builtins.callable: f * callable(F.gelu)
builtins.id: f * (id(f) == id(f))
math.sqrt: f * math.sqrt(f.shape[-1]) + math.log(2) + math.floor(2.5) + math.prod((1, 2)) + math.ceil(1.2) + math.pi
builtins.frozenset.__contains__: f * ("a" in FROZEN) + ("c" in FROZEN)
builtins.mappingproxy.values: f * len(list(inspect.signature(twice).parameters.values()))
inspect.signature: f * ("factor" in inspect.signature(twice).parameters)
builtins.str.isidentifier: f * "a".isidentifier()
operator.index: f * operator.index(3), operator.attrgetter("shape")(f), operator.itemgetter(0)((f, g)) + 1
builtins.setattr: y = Fields(); setattr(y, "hidden", f + 1); y.hidden
builtins.next: next((x for x in (None, f) if x is not None)) + 1, next(iter(BLOCK.parameters())).dtype
builtins.max: f * max(f.shape[0], 3) + min(2, 1) + max([1, 2]) + max((x for x in f.shape), default=0)
builtins.set.add: s = set(); s.add("x"); s.add(3); f * len(s)
builtins.sum: sum([f, g]) + sum(x for x in f.shape)
types.GenericAlias.__new__: f * (list[int] is not None)
builtins.issubclass: f * issubclass(Block, torch.nn.Module)
builtins.list.reverse: y = [f, g]; y.reverse(); y[0] + 1, y, [f, g][::-1], list(reversed([f, g]))
builtins.tuple.__new__: tuple([f, g]), torch.Size([1, 2]), tuple(x + 1 for x in (f, g))
functools.reduce: functools.reduce(operator.add, [f, g, f]), functools.reduce(lambda x, y: x * y, f.shape)
autograd.Function.apply: Function.apply(f)
builtins.int.__format__: f"{3:d}-{f.shape[0]:>3}", f + 1
builtins.tuple.index: f * (1, 2).index(2) + [3, 4].index(4) + (1, 1).count(1)
builtins.abs: f * abs(-2) + round(2.6) + pow(2, 3) + divmod(7, 2)[0] + int(3.7) + float("2.5") + bool(1)
builtins.zip: [x * y for x, y in zip([f, g], (g, f))], list(zip(f.shape, g.shape))
builtins.enumerate: [x + n for n, x in enumerate([f, g], start=1)]
builtins.range: sum([f * n for n in range(1, 4)]), list(range(f.shape[0]))
builtins.map: list(map(lambda x: x + 1, [f, g])), torch.Size(map(int, f.shape))
builtins.filter: [x + 1 for x in filter(lambda x: x is not None, (f, None))]
builtins.sorted: sorted(f.shape), sorted([("b", f), ("a", g)], key=lambda kv: kv[0])[0][1] + 1
builtins.type: f * (type(f) is torch.Tensor) + (type(CONFIG).__name__ == "Config") + f.__class__.__name__.count("T")
builtins.super: BLOCK.names["one"](f) + 1
builtins.slice: f[(slice(None), slice(0, 2))], f[:, slice(1, None)]
builtins.print-free str: str(f.shape), repr(f.dtype), "{} {}".format(1, f.dim()), "%s" % 3, ",".join(["a", "b"]), "a.b".split("."), "ab".replace("a", "c"), f + 1
builtins.vars: vars(Fields(f, 1))["pooled"], f + 1
itertools: list(itertools.chain([f], [g])), list(itertools.product((1, 2), (3,))), [x + 1 for x in itertools.islice([f, g], 1)], list(itertools.accumulate([1, 2]))
collections.defaultdict: y = collections.defaultdict(list); y["a"].append(f + 1); dict(y)
collections.namedtuple: collections.namedtuple("P", "x y")(f, g).x + 1
copy: copy.copy({"a": f + 1}), copy.copy(CONFIG).hidden_size
dataclasses.fields: [getattr(Fields(f + 1, g), x.name) for x in dataclasses.fields(Fields)]
dataclasses.replace: dataclasses.replace(Fields(f, g), hidden=f + 1).hidden, dataclasses.asdict(Fields(1, 2)), f + 1
enum.EnumType.__call__: f * (Side("left") is Side.LEFT) + ("right" == Side.RIGHT) + len(Side.LEFT.value)
functools.partial: functools.partial(torch.add, alpha=2)(f, g), functools.partial(twice, factor=3)(f)
functools.lru_cache: f * cached(3)
functools.wraps: twice(f), twice(f, factor=4)
re: f * bool(re.match(r"layer\\.(\\d+)", "layer.3"))
warnings.catch_warnings: f * (3 if warnings is not None else 2)
logging of a level that is off: LOGGER.debug("shape %s", f.shape); f + 1
logger.isEnabledFor: f * LOGGER.isEnabledFor(logging.DEBUG)
torch.nn.Module.__call__: BLOCK(f)
torch.nn.Module.parameters: sum(x.numel() for x in BLOCK.parameters()) * f, [n for n, _ in BLOCK.named_parameters()]
torch.nn.Module.children: [type(x).__name__ for x in BLOCK.children()], list(dict(BLOCK.named_modules()))[1], f + 1
torch.nn.Module.training: f * 2 if BLOCK.training else f
torch.nn.ModuleList slice: [x(f) for x in BLOCK.layers[:1]], BLOCK.layers[-1](f), len(BLOCK.layers)
torch.nn.Module.state_dict: BLOCK.state_dict()["scale"] + f
torch.nn.Module in the function: torch.nn.ReLU()(f), torch.nn.Softmax(dim=-1)(f), torch.nn.CrossEntropyLoss()(m, classes)
torch.nn.Parameter: BLOCK.scale.float() * f, BLOCK.scale[None].expand(2, -1), BLOCK.scale.view(2, 2), BLOCK.scale.exp(), BLOCK.scale.size()
torch.compiler.is_compiling: f + 1 if torch.jit.is_scripting() else f + 2
torch.autocast: torch.is_autocast_enabled("cpu"), f + 1
torch.get_default_dtype: f.to(torch.get_default_dtype()), torch.cuda.is_available()
torch.device: torch.zeros(2, device=torch.device("cpu")), torch.device("cpu") == f.device
"""
STATEMENTS = {
    "with torch.no_grad": "with torch.no_grad():\n    y = f * 2\nreturn y",
    "with torch.autocast": "with torch.autocast('cpu', enabled=False):\n    y = f.float() @ w.t()\nreturn y",
    "with torch.autocast on": "with torch.autocast('cpu', dtype=torch.bfloat16):\n    y = f @ w.t()\nreturn y",
    "with a generator's scope": "with scope(f.shape[0]) as n:\n    y = f * n\nreturn y",
    "with nullcontext": "with contextlib.nullcontext():\n    y = f * 2\nreturn y",
    "with ExitStack": "with contextlib.ExitStack() as s:\n    n = s.enter_context(scope(3))\n    y = f * n\nreturn y",
    "with warnings.catch_warnings": "with warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    y = f * 2\nreturn y",
    "with cudnn.flags": "with torch.backends.cudnn.flags(enabled=False):\n    y = f * 2\nreturn y",
    "with sdpa_kernel": "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):\n    y = F.scaled_dot_product_attention(q, kv, kv)\nreturn y",
    "with torch.device": "with torch.device('cpu'):\n    y = torch.ones(3)\nreturn y + f.sum()",
    "with errstate": "import numpy\nwith numpy.errstate(all='ignore'):\n    y = f * 2\nreturn y",
    "try": "try:\n    n = {}['a']\nexcept KeyError as e:\n    n = len(e.args)\nfinally:\n    y = f * 2\nreturn y + n",
    "raise": "try:\n    raise ValueError(f'{f.dim()}')\nexcept (TypeError, ValueError) as e:\n    y = f * len(str(e))\nreturn y",
    "check and raise": "if f.shape[-1] != 4:\n    raise ValueError(f'want 4, not {f.shape[-1]}')\nreturn f + 1",
    "assert": "assert f.dim() == 3, 'three'\nreturn f + 1",
    "import": "import math\nfrom collections import OrderedDict\nreturn f * math.pi, OrderedDict(a=1)",
    "closure": "n = 2\ndef inner(x):\n    nonlocal n\n    n += 1\n    return x * n\nreturn inner(f) + inner(g)",
    "lambda": "act = lambda x, k=2: x * k\nreturn act(f) + act(g, k=3)",
    "comprehensions": "d_ = {k: x * n for n, (k, x) in enumerate([('a', f), ('b', g)])}\ns = {k for k in d_}\nreturn d_, sorted(s), tuple(x for x in d_.values())",
    "generator": "return sum(generator([f, g]))",
    "yield from": "def both():\n    yield from generator([f])\n    yield g\nreturn list(both())",
    "unpacking": "a, *rest = [f, g, 3]\n(c, e), h = (1, 2), 3\nreturn a + rest[-1], [*rest, c], {**{'a': e}, 'b': h}",
    "star arguments": "def inner(x, *args, scale=1, **kwargs):\n    return x * scale + len(args) + kwargs['k']\nreturn inner(f, *[1, 2], **{'scale': 2, 'k': 3})",
    "while": "n = 0\nwhile n < 3:\n    n += 1\n    if n == 2:\n        continue\n    f = f * n\nelse:\n    f = f + 1\nreturn f",
    "for else": "for x in (f, g):\n    if x is None:\n        break\nelse:\n    x = x + 1\nreturn x",
    "del": "y = [f, g]\ndel y[0]\nz = {'a': 1}\ndel z['a']\nu = Fields(f, g)\ndel u.hidden\nn = 1\ndel n\nreturn y[0] + len(z)",
    "is None": "n = None\nreturn f + 1 if n is None and f is not None else g",
    "or and": "n = None or 3\nreturn f * (n and 2) + (not n)",
    "in": "return f * ('a' in {'a': 1}) + (3 not in [1, 2]) + ('b' in 'abc')",
    "slices": "y = [f, g, f][1:]\nreturn y[0] + f.shape[:-1][0], f.shape[1:]",
    "f-string": "s = f'{f.shape[0]!r:>4}{f.dtype}'\nreturn f * len(s)",
    "walrus": "if (n := f.dim()) > 2:\n    f = f * n\nreturn f",
    "conditional on sizes": "return f * 2 if f.shape[1] > 1 and f.size(0) == 2 else f",
    "int arithmetic on sizes": "n = f.shape[-1]\nreturn f.view(*f.shape[:-1], n // 2, -1) * n ** -0.5 + (n % 3) - (-n)",
    "match": "match f.dim():\n    case 3:\n        return f + 1\n    case _:\n        return f",
    "class in the function": "class Local:\n    def __init__(self, x):\n        self.x = x\n    @property\n    def double(self):\n        return self.x * 2\nreturn Local(f).double",
    "dataclass with tensors": "y = Fields(hidden=f + 1)\ny.pooled = y.hidden.mean(1)\nreturn y.pooled, y.hidden",
    "output object": "y = Output(last=f + 1, pooled=g)\nreturn y.to_tuple()[0] + y.pooled, y['last'], 'last' in y",
    "config attributes": "return f * CONFIG.hidden_size if not CONFIG.output_attentions and CONFIG.layer_types[0] == 'full' else f",
    "inner function with default": "def act(x, fn=F.gelu):\n    return fn(x)\nreturn act(f)",
    "branch on a tensor": "if (tok > 100).any():\n    f = f * 2\nreturn f + 1",
    "loop over a tensor": "return [x * 2 for x in f]",
    "loop over sizes that data decides": "y = torch.zeros(3, 4)\nfor k in range(3):\n    rows, = torch.where(idx == k)\n    y.index_add_(0, rows, m[rows])\nreturn y",
    "return of nothing": "f + 1\nreturn None",
    "in place on an argument": "f.add_(1)\nf[0] = 2\nreturn f * 2",
    "attribute of a module": "BLOCK.last = f.shape[0]\nreturn f * BLOCK.last",
}
# What ends the graph still.
BREAKS = {
    "builtins.id",  # of an object that was made here
    "collections.namedtuple",  # a class made in the function
    "with sdpa_kernel",  # a call that the changed switch bears on
}


ENTRIES = {**one_line_bodies(FUNCTIONS), **STATEMENTS}


def _program(source):
    """(function that calls the entry as a function of its own, its operands' makers)"""
    tree = ast.parse(f"def entry():\n{textwrap.indent(source, '    ')}")
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names = [name for name in dict.fromkeys(used) if name in TORCH]
    text = f"def entry({', '.join(names)}):\n{textwrap.indent(source, '    ')}\ndef program(*operands):\n    return entry(*operands)\n"
    scope_ = {**globals(), "F": torch.nn.functional}
    exec(compile(text, "<census>", "exec"), scope_)
    return scope_["program"], lambda: tuple(TORCH[name]() for name in names)


@pytest.mark.parametrize("name", ENTRIES)
def test_one_graph(name):
    program, make = _program(ENTRIES[name])
    compiled = framejit.compile(_program(ENTRIES[name])[0])
    with torch.no_grad():
        told = framejit.explain(framejit.compile(program))(*make())
        assert (told.graph_count, told.graph_break_count) == (1, 0) or name in BREAKS, told
        assert told.graph_break_count or name not in BREAKS, "it does not break any more"
        for call in range(2):
            torch.manual_seed(call)
            expected = observe(program, make)
            torch.manual_seed(call)
            compare(name, call, observe(compiled, make), expected)


def test_the_breaks_are_of_entries():
    assert not BREAKS - ENTRIES.keys()
