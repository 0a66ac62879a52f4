import torch


def breaks(x):
    y = x + 1

    class Settings:
        factor = max(1, 2)

    return y * Settings.factor


class Settings:
    factor = 2


def fixed(x):
    y = x + 1
    return y * Settings.factor


calls = [(torch.ones(3, 3),)]
