import torch


class Image(torch.Tensor):
    pass


def breaks(x):
    return x + 1


fixed = breaks  # with a plain tensor: image.as_subclass(torch.Tensor)

calls = [(torch.ones(3, 3).as_subclass(Image),)]
fixed_calls = [(torch.ones(3, 3),)]
