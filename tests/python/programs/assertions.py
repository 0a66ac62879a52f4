"""Asserts and branches that raise, in the outermost function. (pytest rewrites the asserts of test modules.)"""

import itertools

import torch
from harness import Programs

program = Programs("torch")
whole = Programs("torch")  # in one graph, too


@whole
def asserts_in_the_outermost_function():
    def f(x):
        y = x + 1
        assert torch.isfinite(y).all(), f"not finite: {y.sum()}"
        if (y > 100).any():
            raise ValueError("large")
        return y * 2

    return f, lambda: (torch.ones(3),)


@program
def asserts_that_fail_at_times():
    def f(x):
        y = x.add_(1)
        assert (y > 0).all(), f"bad {y.sum()}"
        if (y > 100).any():
            raise RuntimeError("large")
        x.mul_(2)
        return y * 2

    values = itertools.cycle([1.0, -5.0, 1.0, 200.0, 3.0])
    return f, lambda: (torch.full((3,), next(values)),)


@program
def asserts_that_are_caught():
    def f(x):
        y = x + 1
        try:
            assert (y > 0).all()
            y = y * 2
        except AssertionError:
            y = y * 3
        return y

    values = itertools.cycle([-5.0, 1.0, -7.0])
    return f, lambda: (torch.full((3,), next(values)),)


program.update(whole)
