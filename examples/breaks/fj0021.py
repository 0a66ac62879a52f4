import torch

settings = {"options": {"max_depth": 20}}  # by default 150


def down(x, n):
    return x if n == 0 else down(x + 1, n - 1)


def breaks(x):
    return down(x, 40)


def fixed(x):
    for _ in range(40):
        x = x + 1
    return x


calls = [(torch.ones(3, 3),)]
