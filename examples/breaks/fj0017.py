import random

import torch

state = random.Random(3).getstate()


def breaks(x):
    y = x + 1
    random.setstate(state)
    return y * random.random()


def fixed(x):
    y = x + 1
    return y * torch.rand(())


calls = [(torch.ones(3, 3),)]
