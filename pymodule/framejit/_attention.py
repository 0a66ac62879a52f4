"""Called by compiled backward passes."""


def backward(g, q, k, v, mask, causal, scale):
    """The gradients of scaled_dot_product_attention by torch's kernel for the CPU. What its forward kernel keeps for it is
    computed again: one number a query, for which the whole forward pass runs, without its scores ever being in memory."""
    import torch

    g, q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (g, q, k, v))
    aten = torch.ops.aten
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, out, sums, 0.0, causal, attn_mask=mask, scale=scale)
