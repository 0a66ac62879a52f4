"""Called by compiled backward passes."""


def attention(g, q, k, v, mask, causal, scale):
    """The gradients of scaled_dot_product_attention by torch's kernel for the CPU. What its forward kernel keeps for it is
    computed again: one number a query, for which the whole forward pass runs, without its scores ever being in memory."""
    import torch

    g, q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (g, q, k, v))
    aten = torch.ops.aten
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, out, sums, 0.0, causal, attn_mask=mask, scale=scale)


def take(g, index, sizes, axis):
    """Of data.index_select(axis, index): g's slices added up where they came from. Indices are not negative."""
    import torch

    if axis == 0 and index.numel() and g[0].numel() >= 16:  # several threads, where index_add has one
        rows = g.reshape(index.numel(), -1)
        return torch.ops.aten.embedding_dense_backward(rows, index, sizes[0], -1, False).view(sizes)
    return g.new_zeros(sizes).index_add_(axis, index, g)


def gather(g, index, sizes, axis):
    """Of data.gather(axis, index)."""
    return g.new_zeros(sizes).scatter_add_(axis, index, g)
