import time

import torch


def breaks(x):
    y = x + 1
    parts = (y * i for i in range(3))
    first = next(parts)
    time.sleep(0)  # a break, and the generator is in the middle of its work
    return first + next(parts)


def fixed(x):
    y = x + 1
    parts = [y * i for i in range(3)]
    first = parts[0]
    time.sleep(0)
    return first + parts[1]


calls = [(torch.ones(3, 3),)]
