import torch


def breaks(x):
    y = x + 1
    return y * (id(object()) % 2)


def fixed(x, number):
    y = x + 1
    return y * (number % 2)


calls = [(torch.ones(3, 3),)]
fixed_calls = [(torch.ones(3, 3), 7)]
