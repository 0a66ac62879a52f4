import random

import torch


def breaks(x):
    y = x + 1
    random.seed(3)
    return y * random.random()


def fixed(x):
    y = x + 1
    return y * torch.rand(())


calls = [(torch.ones(3, 3),)]
