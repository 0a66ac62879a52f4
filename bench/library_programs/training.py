"""Libraries that train, transform and search: losses, loops of epochs, pictures with their metadata, Bayesian optimization."""

from bench.library_programs import array, program, tensor


@program("pytorch_metric_learning")
def pytorch_metric_learning_loss():
    import torch
    from pytorch_metric_learning import losses

    torch.manual_seed(0)
    net, loss_of = torch.nn.Linear(4, 8), losses.ContrastiveLoss()

    def step(x, labels):
        net.zero_grad()
        loss = loss_of(net(x), labels)
        loss.backward()
        return loss.detach(), net.weight.grad.clone()

    return step, lambda n: (tensor(n, 4), torch.arange(n) % 3)


@program("skorch")
def skorch_classifier():
    import numpy as np
    import torch
    from skorch import NeuralNetClassifier

    def fitted(x, y):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2), torch.nn.Softmax(-1))
        net = NeuralNetClassifier(module, max_epochs=2, lr=0.1, train_split=None, verbose=0)
        return net.fit(x, y).predict_proba(x)

    return fitted, lambda n: (array(n, 4).astype(np.float32), np.arange(n) % 2)


@program("segmentation_models_pytorch")
def segmentation_models_unet():
    import segmentation_models_pytorch as smp
    import torch

    torch.manual_seed(0)
    net = smp.Unet("resnet18", encoder_weights=None, in_channels=3, classes=2).eval().requires_grad_(False)
    loss_of = smp.losses.DiceLoss("multiclass")

    def f(image):
        scores = net(image)
        return scores, loss_of(scores, scores.argmax(1))

    return f, lambda n: (tensor(1, 3, 32 * (n // 8), 32),)


@program("ignite")
def ignite_engine():
    import torch
    from ignite.engine import Engine
    from ignite.metrics import Accuracy

    def evaluated(x):
        engine = Engine(lambda engine, batch: (batch, batch.roll(1, 0).argmax(-1)))
        Accuracy().attach(engine, "accuracy")
        return engine.run([x, x + 1, x * x]).metrics["accuracy"], torch.relu(x)

    return evaluated, lambda n: (tensor(n, 4),)


@program("torchsde")
def torchsde_euler():
    import torch
    import torchsde

    class Decay(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def f(self, t, y):
            return -y

        def g(self, t, y):
            return 0.1 * torch.ones_like(y)

    decay = Decay()

    def solved(y):
        noise = torchsde.BrownianInterval(0.0, 1.0, size=tuple(y.shape), entropy=1)
        return torchsde.sdeint(decay, y, torch.linspace(0, 1, 3), bm=noise, method="euler", dt=0.25)

    return solved, lambda n: (tensor(n, 3),)


@program("x_transformers")
def x_transformers_decoder():
    import torch
    from x_transformers import Decoder, TransformerWrapper

    torch.manual_seed(0)
    layers = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True)
    net = TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers).eval().requires_grad_(False)

    def f(ids):
        return net(ids)

    return f, lambda n: (torch.arange(2 * n).reshape(2, n) % 50,)


@program("vector_quantize_pytorch")
def vector_quantize_codes():
    import torch
    from vector_quantize_pytorch import VectorQuantize

    torch.manual_seed(0)
    quantize = VectorQuantize(dim=4, codebook_size=16).eval().requires_grad_(False)

    def f(x):
        quantized, indices, loss = quantize(x)
        return quantized, indices, loss

    return f, lambda n: (tensor(1, n, 4),)


@program("monai")
def monai_transforms():
    from monai.transforms import Compose, EnsureChannelFirst, Flip, ScaleIntensity, SpatialPad

    transform = Compose([EnsureChannelFirst(channel_dim="no_channel"), ScaleIntensity(), SpatialPad((20, 20)), Flip(spatial_axis=0)])

    def f(image):
        return transform(image).as_tensor()

    return f, lambda n: (tensor(n, n),)


@program("botorch")
def botorch_acquisition():
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP

    x = tensor(6, 2).sigmoid().double()
    model = SingleTaskGP(x, x.sum(-1, keepdim=True).sin()).eval()
    acquired = LogExpectedImprovement(model, best_f=0.5)

    def f(candidates):
        return acquired(candidates).detach()

    return f, lambda n: (tensor(n, 1, 2, seed=1).sigmoid().double(),)


@program("torchvision")
def torchvision_transforms():
    from torchvision.transforms import v2

    transform = v2.Compose([v2.Resize((16, 16), antialias=True), v2.CenterCrop(12), v2.Normalize([0.5] * 3, [0.2] * 3)])

    def f(image):
        return transform(image)

    return f, lambda n: (tensor(3, n, n).sigmoid(),)


@program("transformers")
def transformers_experts():
    import torch
    from transformers import MixtralConfig, MixtralModel

    torch.manual_seed(0)
    config = MixtralConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, intermediate_size=16,
                           vocab_size=50, num_local_experts=4)  # fmt: skip
    net = MixtralModel(config).eval().requires_grad_(False)

    def f(ids):
        return net(input_ids=ids, use_cache=False).last_hidden_state

    return f, lambda n: (torch.arange(2 * n).reshape(2, n) % 50,)
