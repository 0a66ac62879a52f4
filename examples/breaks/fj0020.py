import torch

settings = {"options": {"max_entries": 4}}  # by default 32


def breaks(x, name):
    return x + len(name)  # every name is a version of its own


def fixed(x, length):
    return x + length  # a number that changes becomes a symbol


calls = [(torch.ones(3, 3), "k" * i) for i in range(8)]
fixed_calls = [(torch.ones(3, 3), i) for i in range(8)]
