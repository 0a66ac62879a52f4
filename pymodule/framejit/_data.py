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


def given(tensor, data, wanted):
    """`tensor` behind `tensor.data = data`. A run that stands for the program does that (`GivesMemory` in src/tensor/segment_node.h); all others leave the
    tensor as it is. wanted: does it want a gradient there? What stops that waits for the end of the run."""
    return WithData.apply(tensor, data.data) if wanted and tensor.requires_grad else data.data
