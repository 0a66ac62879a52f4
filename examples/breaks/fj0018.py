import torch


def breaks(x):
    w = torch.ones(3, requires_grad=True)
    with torch.enable_grad():
        (w * x).sum().backward()
    return x + w.grad


def fixed(x):
    gradient = torch.func.grad(lambda w: (w * x).sum())(torch.ones(3))
    return x + gradient


calls = [(torch.ones(3, 3),)]
