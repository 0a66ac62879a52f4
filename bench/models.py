"""The Hugging Face models of the tests and benchmarks, built from their config classes with random weights."""

# name -> (class, config class, config of the benchmark, config of the tests, kind of input)
MODELS = {
    "BertModel": ("BertModel", "BertConfig", {}, dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=1024), "tokens"),
    "GPT2LMHeadModel": ("GPT2LMHeadModel", "GPT2Config", {}, dict(n_layer=2, n_embd=64, n_head=4, vocab_size=1024), "tokens"),
    "LlamaModel": (
        "LlamaModel", "LlamaConfig",
        dict(num_hidden_layers=8, hidden_size=1024, intermediate_size=2816, num_attention_heads=16, num_key_value_heads=16),
        dict(num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, vocab_size=1024),
        "tokens",
    ),
    "ViTModel": ("ViTModel", "ViTConfig", {}, dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8), "image"),
    "ResNetModel": ("ResNetModel", "ResNetConfig", {}, dict(embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1]), "image"),
    "T5EncoderModel": ("T5EncoderModel", "T5Config", {}, dict(num_layers=2, d_model=64, d_kv=16, d_ff=128, num_heads=4, vocab_size=1024), "tokens"),
}  # fmt: skip


def build(name, small=False):
    """(module in eval mode, keyword arguments for one call)."""
    import transformers

    model_class, config_class, big, tiny, _ = MODELS[name]
    settings = dict(tiny if small else big)
    if name in ("GPT2LMHeadModel", "LlamaModel"):
        settings["use_cache"] = False
    config = getattr(transformers, config_class)(**settings)
    return getattr(transformers, model_class)(config).eval(), make_inputs(name, small)


def make_inputs(name, small=False, batch=1, length=None):
    import torch

    if MODELS[name][4] == "image":
        size = length or (32 if small else 224)
        return {"pixel_values": torch.randn(batch, 3, size, size)}
    return {"input_ids": torch.randint(0, 1000, (batch, length or (16 if small else 128)))}


def resized(name, small=False):
    """Keyword arguments of other batches and lengths (images keep the size that the model was built for)."""
    for batch, length in ((2, 16), (3, 24), (1, 9)):
        yield make_inputs(name, small, batch, None if MODELS[name][4] == "image" else length)


def flatten(output, path=""):
    """{path: tensor} of a ModelOutput, tuple or tensor."""
    import torch

    if isinstance(output, torch.Tensor):
        return {path or "output": output}
    items = output.items() if hasattr(output, "items") else enumerate(output) if isinstance(output, (tuple, list)) else ()
    found = {}
    for key, value in items:
        found.update(flatten(value, f"{path}.{key}" if path else str(key)))
    return found


def in_float64(inputs):
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
