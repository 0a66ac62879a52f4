"""Libraries on top of torch."""

from bench.library_programs import program, tensor


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
