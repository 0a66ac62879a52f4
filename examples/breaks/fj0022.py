import torch


def breaks(x):
    y = x + 1
    torch.set_default_dtype(torch.float64)
    z = y.double() + torch.ones(1)
    torch.set_default_dtype(torch.float32)
    return z.float()


def fixed(x):
    y = x + 1
    z = y.double() + torch.ones(1, dtype=torch.float64)
    return z.float()


calls = [(torch.ones(3, 3),)]
