import itertools

import torch

numbers = itertools.count()


def breaks(x):
    y = x + 1
    next(numbers)
    return y * 2


def fixed(x):
    y = x + 1
    return y * 2  # the caller counts


calls = [(torch.ones(3, 3),)]
