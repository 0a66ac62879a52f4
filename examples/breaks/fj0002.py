import torch


def breaks(x):
    y = x + 1
    n = round(y.sum().item(), 1)
    return y * n


def fixed(x):
    y = x + 1
    n = y.sum().round(decimals=1)
    return y * n


calls = [(torch.ones(3, 3),)]
