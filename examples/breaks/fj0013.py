import torch


def breaks(x):
    return x * 2


fixed = breaks  # with a dense tensor: x.to_dense()

calls = [(torch.eye(4).to_sparse_bsr((2, 2)),)]
fixed_calls = [(torch.eye(4),)]
