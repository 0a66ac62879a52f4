import torch


class Image(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*[a.inner if isinstance(a, cls) else a for a in args], **kwargs or {})


def breaks(x):
    return x + 1


fixed = breaks  # with a plain tensor: image.inner

calls = [(Image(torch.ones(3, 3)),)]
fixed_calls = [(torch.ones(3, 3),)]
