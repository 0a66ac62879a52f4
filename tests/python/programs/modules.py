"""torch.nn modules: state, buffers, hooks, training mode, seeds."""

import torch
from harness import Programs
from torch import nn
from torch.nn import functional as F

program = Programs("torch")


def data(*shape):
    count = 1
    for size in shape:
        count *= size
    return (((torch.arange(count) * 7) % 11) - 4.5).reshape(shape) / 4


def settled(module):
    """The module with parameters that do not depend on the random state."""
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(data(*p.shape) / 3)
    return module


def plain(forward, **parts):
    """A module with these parts and this forward."""

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    Plain.forward = forward
    return settled(Plain())


@program
def batch_norm_statistics():
    module = settled(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()))

    def f(x):
        return module(x), module[1].running_mean, module[1].num_batches_tracked

    return f, lambda: (data(2, 2, 5, 5),)


@program
def batch_norm_train_then_eval():
    module = settled(nn.BatchNorm1d(4))
    calls = []

    def f(x):
        return module(x), module.running_var

    def make():
        calls.append(0)
        module.train(len(calls) != 2)
        return (data(6, 4),)

    return f, make


@program
def module_is_an_argument():
    def f(module, x):
        return module(x)

    return f, lambda: (settled(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4))), data(2, 3))


@program
def dropout_with_seed():
    module = nn.Dropout(0.5)

    def f(x):
        torch.manual_seed(11)
        y = module(x)
        return y, F.dropout(x, 0.3, training=True), torch.rand(3), module(y)

    return f, lambda: (data(4, 4),)


@program
def random_state_is_consumed_like_eager():
    def f(x):
        return x + torch.randn(3), torch.randint(0, 9, (2,)), torch.rand_like(x), x.clone().uniform_(), torch.randperm(5), torch.bernoulli(torch.full((3,), 0.5))

    return f, lambda: (data(3),)


@program
def own_generator():
    def f(x, g):
        return x + torch.rand(3, generator=g), torch.rand(2)

    return f, lambda: (data(3), torch.Generator().manual_seed(3))


@program
def forward_hooks_change_results():
    module = settled(nn.Linear(3, 3))
    log = []
    module.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    module.register_forward_hook(lambda m, args, out: log.append(len(log)) or out + 100)

    def f(x):
        return module(x), list(log)

    return f, lambda: (data(2, 3),)


@program
def hook_is_added_and_removed():
    module = settled(nn.Linear(3, 3))
    handles = []

    def f(x):
        return module(x)

    def make():
        if len(handles) == 1:
            handles[0].remove()
            handles.append(None)
        elif not handles:
            handles.append(module.register_forward_hook(lambda m, a, out: out * 0))
        return (data(2, 3),)

    return f, make


@program
def backward_hooks():
    module = settled(nn.Linear(3, 1))
    log = []
    module.register_full_backward_hook(lambda m, gin, gout: log.append(float(gout[0].sum())))

    def f(x):
        y = module(x).sum()
        y.backward()
        return y, list(log), x.grad

    return f, lambda: (data(2, 3).requires_grad_(),)


@program
def counts_its_calls():
    def forward(self, x):
        self.calls += 1
        self.last = x * self.calls
        return self.last

    module = plain(forward)
    module.calls = 0
    return (lambda x: (module(x), module.calls, module.last)), lambda: (data(3),)


@program
def writes_a_buffer():
    def forward(self, x):
        self.total += x.sum()
        self.running = self.running * 0.9 + x
        return x + self.total

    module = plain(forward)
    module.register_buffer("total", torch.zeros(()))
    module.register_buffer("running", torch.zeros(3))
    return (lambda x: (module(x), module.total, module.running)), lambda: (data(3),)


@program
def registers_in_forward():
    def forward(self, x):
        if "scale" not in self._parameters:
            self.scale = nn.Parameter(torch.full((3,), 2.0))
            self.register_buffer("seen", torch.ones(3))
        return x * self.scale + self.seen

    module = plain(forward)
    return (lambda x: (module(x), list(module.state_dict()))), lambda: (data(3),)


@program
def parameter_is_replaced():
    module = settled(nn.Linear(3, 3))
    calls = []

    def f(x):
        return module(x)

    def make():
        calls.append(0)
        if len(calls) == 2:
            module.weight = nn.Parameter(torch.eye(3))
        if len(calls) == 3:
            module.bias = None
        return (data(2, 3),)

    return f, make


@program
def weights_are_tied():
    def forward(self, i):
        return self.out(self.embed(i))

    module = plain(forward, embed=nn.Embedding(5, 3), out=nn.Linear(3, 5, bias=False))
    module.out.weight = module.embed.weight

    def f(i):
        y = module(i).sum()
        y.backward()
        return y, module.embed.weight.grad is module.out.weight.grad, module.embed.weight.grad

    return f, lambda: (torch.tensor([0, 3, 3]),)


@program
def containers():
    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x) + i
        return x * self.weights["a"], self.heads["one"](x), len(self.layers), "one" in self.heads

    module = plain(
        forward,
        layers=nn.ModuleList([nn.Linear(3, 3), nn.Tanh(), nn.Identity()]),
        weights=nn.ParameterDict({"a": nn.Parameter(torch.ones(3))}),
        heads=nn.ModuleDict({"one": nn.Linear(3, 2)}),
    )
    return module, lambda: (data(2, 3),)


@program
def layer_is_swapped_between_calls():
    def forward(self, x):
        return self.act(x)

    module = plain(forward, act=nn.ReLU())
    acts = iter([nn.ReLU(), nn.Tanh(), nn.Sigmoid()])

    def make():
        module.act = next(acts)
        return (data(4),)

    return (lambda x: module(x)), make


@program
def recurrent():
    module = settled(nn.LSTM(3, 4, batch_first=True))

    def f(x):
        y, (h, c) = module(x)
        return y, h, c

    return f, lambda: (data(2, 5, 3),)


@program
def attention_module():
    module = settled(nn.MultiheadAttention(4, 2, batch_first=True)).eval()

    def f(x):
        y, weights = module(x, x, x)
        return y, weights

    return f, lambda: (data(2, 3, 4),)


@program
def embedding_out_of_range_fails():
    module = settled(nn.Embedding(4, 3))

    def f(i):
        y = i + 1
        return module(y)

    return f, lambda: (torch.tensor([0, 3]),)


@program
def functional_call():
    module = settled(nn.Linear(3, 2))

    def f(x, weight):
        return torch.func.functional_call(module, {"weight": weight}, (x,)), module(x)

    return f, lambda: (data(2, 3), torch.ones(2, 3))


@program
def state_dict_and_load():
    module = settled(nn.Linear(3, 3))

    def f(x):
        y = module(x)
        module.load_state_dict({k: v + 1 for k, v in module.state_dict().items()})
        return y, module(x), list(module.state_dict())

    return f, lambda: (data(2, 3),)


@program
def train_and_eval_inside():
    module = settled(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.9)))

    def f(x):
        module.eval()
        a = module(x)
        module.train()
        return a, module.training, module[1].training

    return f, lambda: (data(2, 3),)


@program
def getattr_style_access():
    def forward(self, x):
        return getattr(self, "fc")(x) + self.get_parameter("fc.bias") + sum(p.sum() for p in self.parameters()), [n for n, _ in self.named_modules()]

    return plain(forward, fc=nn.Linear(3, 3)), lambda: (data(2, 3),)


@program
def module_with_missing_attribute_fails():
    def forward(self, x):
        return self.fc(x) + self.nothing

    return plain(forward, fc=nn.Linear(3, 3)), lambda: (data(2, 3),)


@program
def lazy_module():
    module = nn.LazyLinear(2)

    def f(x):
        y = module(x)
        return y.shape, type(module).__name__

    return f, lambda: (data(2, 3),)


@program
def losses():
    def f(x, y, c):
        return F.cross_entropy(x, c), F.mse_loss(x, y), F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)), F.nll_loss(F.log_softmax(x, -1), c), F.huber_loss(x, y)

    return f, lambda: (data(4, 5).requires_grad_(), data(4, 5), torch.tensor([0, 4, 1, -100]))


@program
def scaled_dot_product_attention():
    def f(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, attn_mask=mask), F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return f, lambda: (data(2, 2, 3, 4), data(2, 2, 3, 4) + 1, data(2, 2, 3, 4), torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1]]).bool())
