"""Called by compiled graphs: draws that torch has only in place."""


def bernoulli(like, p):
    """In the order in which the elements of `like` lie."""
    import torch

    return torch.empty_like(like).bernoulli_(p)


def attention(q, k, v, mask, dropout, causal, scale):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale)
