"""A tensor that was given other memory by `t.data = u`, as captured programs have it."""

import torch


class WithData(torch.autograd.Function):
    """What `data` holds; its gradient is that of `tensor`."""

    @staticmethod
    def forward(ctx, tensor, data):
        return data.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def given(tensor, data):
    """`tensor` behind `tensor.data = data`. A run that stands for the program does that (`GivesMemory` in src/tensor/segment_node.h); all others leave the
    tensor as it is."""
    return WithData.apply(tensor, data.data) if tensor.requires_grad else data.data
