import torch


def breaks(x):
    return x * 2


fixed = breaks  # with a dense tensor: x.to_dense()

calls = [(torch.eye(3).to_sparse(),)]
fixed_calls = [(torch.eye(3),)]
