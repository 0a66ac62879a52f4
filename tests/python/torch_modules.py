"""Modules at importable places, for tests that pickle."""

import torch
from torch import nn


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.5)
        self.width = width

    def forward(self, x):
        return self.drop(torch.relu(self.norm(self.first(x))))

    def twice(self, x):
        return self(self(x))

    def describe(self):
        return f"{type(self).__name__} of {self.width}"
