"""Called by compiled graphs: draws that torch has only in place."""


def bernoulli(like, p):
    """In the order in which the elements of `like` lie."""
    import torch

    return torch.empty_like(like).bernoulli_(p)
