"""Text generation with Hugging Face's generate(): seconds a token, greedy, prompt included. "growing": a cache that every token makes
longer; "static": one of the final size, written in place."""

from . import measure, models

MODELS = {"GPT2LMHeadModel": {}, "LlamaForCausalLM": models.MODELS["LlamaModel"][2]}
CACHES = {"growing": {}, "static": {"cache_implementation": "static", "disable_compile": True}}


def rows(peer, device="cpu", dtype=None, prompt=64, tokens=64, rounds=(3, 9)):
    """A row of each model and cache; a token's time. The peer compiles `forward`, too, with a static cache in mode reduce-overhead on a GPU."""
    import copy

    import framejit
    import torch
    import transformers

    for name, settings in MODELS.items():
        model_class = getattr(transformers, name)
        torch.manual_seed(0)
        module = model_class(model_class.config_class(**settings)).eval().to(device=device, dtype=dtype)
        module.generation_config.pad_token_id, module.generation_config.eos_token_id = 0, None
        ids = torch.randint(1, 1000, (1, prompt), device=device)
        for cache, how in CACHES.items():

            def run(compile, how=how):
                own = copy.copy(module)  # the same weights
                own.__dict__["forward"] = compile(module.forward)
                keywords = {"attention_mask": torch.ones_like(ids), "min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False, **how}
                return lambda: own.generate(ids, **keywords).tolist()

            contenders = {"eager": run(lambda f: f), "framejit": run(framejit.compile)}
            if peer:
                mode = "reduce-overhead" if cache == "static" and device != "cpu" else "default"
                torch._dynamo.reset()
                contenders["peer"] = run(lambda f: torch.compile(f, mode=mode))  # noqa: B023
            with torch.no_grad():
                same = contenders["framejit"]() == contenders["eager"]()
                for call in contenders.values():
                    call()
                times = measure.interleaved(contenders, 0.0 if device != "cpu" else 20.0, rounds)
            times = {who: (seconds / tokens, spread) for who, (seconds, spread) in times.items()}
            note = None if same else "other tokens than eager's: rounding decides between equally likely ones"
            yield measure.record("generate", f"{name}, {cache} cache, a token", "ms", times, note)
