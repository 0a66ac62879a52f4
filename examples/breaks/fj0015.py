import sys

import torch


def breaks(x):
    y = x + 1
    import colorsys

    return y * colorsys.ONE_THIRD


def fixed(x, third):  # the import stands at the top of the module
    y = x + 1
    return y * third


def before():  # the first import in a process
    sys.modules.pop("colorsys", None)


calls = [(torch.ones(3, 3),)]
fixed_calls = [(torch.ones(3, 3), 1 / 3)]
