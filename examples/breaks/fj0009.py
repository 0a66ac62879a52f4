import torch


def breaks(x):
    y = x + 1
    return torch.unique(y, dim=1)


def fixed(x):
    y = x + 1
    return y  # torch.unique, whose result has as many columns as data says, is called behind it


calls = [(torch.ones(3, 3),)]
