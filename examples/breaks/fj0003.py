import time

import torch

YEAR = int(time.strftime("%Y"))


def breaks(x):
    y = x + 1
    year = int(time.strftime("%Y"))
    return y * year


def fixed(x):
    y = x + 1
    return y * YEAR


calls = [(torch.ones(3, 3),)]
