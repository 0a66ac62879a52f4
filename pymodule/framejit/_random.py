"""Called by compiled graphs: draws that torch has only in place, and its seed."""


def seeded(seed, how):
    """`how`: which function seeds (`torch.manual_seed`)."""
    import operator

    import torch

    operator.attrgetter(how.removeprefix("torch."))(torch)(seed)
    return torch.zeros(1, dtype=torch.uint8, device="cpu")


def bernoulli(like, p):
    """In the order in which the elements of `like` lie."""
    import torch

    return torch.empty_like(like).bernoulli_(p)


def attention(q, k, v, mask, dropout, causal, scale):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale)


def rrelu(x, lower, upper):
    """What torch.rrelu multiplies each element of x by in training: 1 above zero."""
    import torch

    slopes = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.ops.aten.rrelu_with_noise(x, slopes, lower, upper, True)
    return slopes
