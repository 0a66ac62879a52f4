"""Text generation with Hugging Face's generate(): caches that grow, caches of one size that are written in place, encoder and decoder.
The same tokens as eager's, every step one graph, and few versions of it."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import framejit  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
MODES = {
    "greedy": {"do_sample": False},
    "static cache": {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
    "sampling": {"do_sample": True, "top_k": 20},
    "beams": {"do_sample": False, "num_beams": 3},
}


def _llama():
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=200, max_position_embeddings=128, **sizes))


def _gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=200, n_embd=64, n_layer=2, n_head=4, n_positions=128))


def _t5():
    sizes = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=200, decoder_start_token_id=0, **sizes))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [_llama, _gpt2, _t5])
def test_tokens_are_eagers(make, mode, device):
    torch.manual_seed(0)
    module = make().eval().to(device)
    module.generation_config.pad_token_id, module.generation_config.eos_token_id = 0, None
    prompts = [torch.randint(1, 200, (2, n), device=device) for n in (9, 6)]

    def tokens(of):
        torch.manual_seed(1)
        return [of.generate(p, attention_mask=torch.ones_like(p), max_new_tokens=12, **MODES[mode]) for p in prompts]

    want = tokens(module)
    compiled = copy.deepcopy(module)
    compiled.forward = framejit.compile(compiled.forward, fullgraph=True)
    for _ in range(2):
        for got, expected in zip(tokens(compiled), want, strict=True):
            assert torch.equal(got, expected)
    with framejit.stance("fail_on_recompile"):
        tokens(compiled)


def test_generate_as_a_whole():
    """The loop over tokens is cut where its body repeats, instead of being unrolled: more tokens make no more graphs."""
    torch.manual_seed(0)
    module = _gpt2().eval()
    module.generation_config.pad_token_id, module.generation_config.eos_token_id = 0, None
    ids = torch.randint(1, 200, (1, 8))
    compiled = framejit.compile(module.generate)

    def tokens(of, n):
        return of(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)

    def graphs():
        return framejit.cache_info(compiled)["outcomes"]["compile"]["ok"]

    for n in (16, 16):
        assert torch.equal(tokens(compiled, n), tokens(module.generate, n))
    few = graphs()
    assert torch.equal(tokens(compiled, 64), tokens(module.generate, 64))
    info = framejit.cache_info(compiled)
    assert graphs() <= few + 12, (few, info)
    assert info["outcomes"]["run"]["graph"] > 48, info  # at each token


def test_static_caches_are_written_in_place():
    torch.manual_seed(0)
    module = _llama().eval()
    ids = torch.randint(1, 200, (1, 5))
    cache, plain = (transformers.StaticCache(config=module.config, max_cache_len=32) for _ in range(2))
    compiled = framejit.compile(module.forward, fullgraph=True)
    with torch.no_grad():
        for _ in range(10):
            got = compiled(input_ids=ids, past_key_values=cache, use_cache=True).logits
            want = module(input_ids=ids, past_key_values=plain, use_cache=True).logits
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            for a, b in zip(cache.layers, plain.layers, strict=True):
                torch.testing.assert_close(a.keys, b.keys, rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(a.values, b.values, rtol=1e-4, atol=1e-4)
                assert torch.equal(a.cumulative_length, b.cumulative_length)
            ids = want[:, -1:].argmax(-1)
