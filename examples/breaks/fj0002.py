import torch


def breaks(x):
    y = x + 1
    n = round(y.sum().item())
    return y * n


def fixed(x):
    y = x + 1
    n = y.sum().round()
    return y * n


calls = [(torch.ones(3, 3),)]
