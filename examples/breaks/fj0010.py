import torch


def breaks(x):
    y = x + 1
    try:
        return y @ torch.ones(77)
    except RuntimeError:
        return y * 2


def fixed(x):
    y = x + 1
    return y @ torch.ones(77) if y.shape[-1] == 77 else y * 2


calls = [(torch.ones(3, 3),)]
