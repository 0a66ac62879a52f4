import torch

settings = {"options": {"max_unroll": 1000}}  # by default 2000000, and loops that repeat the same calls end sooner


def breaks(x):
    total = 0
    for i in range(3000):
        total += i
    return x + total


def fixed(x):
    return x + sum(range(3000))


calls = [(torch.ones(3, 3),)]
