"""How wide capture is: every Hugging Face model type that can be built from a tiny config, the models of torchvision and timm, and
the modules of GitHub projects in a checkout of pytorch-jit-paritybench, in eval or train mode. Each runs in a forked child: eager,
then compiled twice; results are compared.

    python -m bench.width [hf|torchvision|timm|paritybench][,...] [NAME...] [--from-path DIR] [--json FILE] [--limit N] [--train]
                          [--every N] [--from K] [--peer [all]] [--time] [--jobs N] [--seconds S] [--within S] [--device DEVICE]

--from-path: the checkout of paritybench.
--train: in train mode, two calls with a loss and its gradients, the parameters moved in between by eager's gradients. Results, loss,
the gradients of all parameters, buffers and the states of all generators are compared after each.
--peer: beside our counts those of torch.compile (backend "eager"), which breaks if `fullgraph=True` raises: for models in which we
break; with `all` for each. It breaks once between two graphs.
--time: the time of a call (of a step) after 20, of eager's.
--jobs, --within: so many models at a time; when --within has passed, nothing is started any more and what runs is ended and left out.
With it the models come in an order that is a sample of all of them at any time.

One row a model: graphs, breaks by id, seconds of the first compiled call, and what was wrong, if anything was. "off" names a result
that is further from float64 than twice eager's, in a model that is right where all of it is computed in double precision; "told", what
differs from eager's calls or steps, but not from those it makes where it is told that it is compiled (`torch.compiler.is_compiling`),
as programs that ask may go another way. A type that
eager cannot run from a generic tiny config is named as not built. At the end the causes of breaks, ranked by how many models have them.
"""

import argparse
import collections
import contextlib
import copy
import functools
import itertools
import json
import os
import select
import signal
import sys
import time
import traceback
import zlib

# Config fields, by name, to shrink; whatever a config class does not have is left out.
TINY = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embed_dim": 64, "embedding_size": 64, "emb_dim": 64, "projection_dim": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "num_encoder_layers": 2,
    "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 16, "d_kv": 16, "intermediate_size": 128, "d_ff": 128,
    "ffn_dim": 128, "hidden_dim": 128, "n_inner": 128, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "dim_feedforward": 128, "vocab_size": 1024,
    "max_position_embeddings": 128, "n_positions": 128, "image_size": 32, "patch_size": 8, "num_local_experts": 4, "num_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "num_mel_bins": 16, "layer_types": None, "sliding_window": 16, "use_cache": False,
    "n_group": 1, "topk_group": 1, "num_codebooks": 2, "codebook_size": 64, "num_queries": 20, "num_frames": 4,
    "depth": 2, "conf_num_hidden_layers": 2,
}  # fmt: skip
# The second recipe: widths stay (where they depend on each other), depth, vocabulary and pictures shrink.
SHALLOW = ("layers", "n_layer", "depth", "vocab_size", "image_size", "use_cache", "num_queries", "num_frames")


def tiny_config(config_class, recipe, depth=0):
    """A config of this class with the fields of the recipe that it has, its parts likewise. Lists keep their length."""
    default = config_class()
    settings = {}
    for key, wanted in recipe.items():
        value = vars(default).get(key)
        if isinstance(wanted, bool) and isinstance(value, bool):
            settings[key] = wanted
        elif isinstance(value, int) and not isinstance(value, bool) and not isinstance(wanted, bool):
            settings[key] = min(value, wanted) or value
    for key in getattr(config_class, "sub_configs", {}):
        inner = type(getattr(default, key, None))  # the class may name AutoConfig
        if depth < 3 and hasattr(inner, "model_type"):
            settings[key] = tiny_config(inner, recipe, depth + 1).to_dict()
    for key, value in vars(default).items():  # tokens with a meaning must be in the vocabulary
        if key.endswith("_token_id") and isinstance(value, int) and value >= TINY["vocab_size"]:
            settings[key] = 0 if key == "pad_token_id" else 2
    return config_class(**settings)


def part(config, *names):
    """The first of these parts that the config has, or itself."""
    return next((getattr(config, n) for n in names if getattr(config, n, None) is not None), config)


def values_of(name, config):
    """Values to try for an argument of this name, the likeliest first; none: not known."""
    import torch

    text, audio = part(config, "text_config", "decoder"), part(config, "audio_config", "encoder_config")
    mels = getattr(audio, "num_mel_bins", None) or getattr(audio, "feature_size", None) or 80
    if name in ("input_ids", "decoder_input_ids"):
        vocabulary = min(getattr(text, "vocab_size", 1000) or 1000, 1000)
        return [torch.randint(3, max(vocabulary, 4), (2, 16))]
    if name in ("pixel_values", "pixel_values_videos"):
        vision = part(config, "vision_config", "backbone_config")
        size = getattr(vision, "image_size", None) or 32
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        picture = (getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3, height, width)
        picture = picture if isinstance(picture[0], int) else (3, height, width)
        video = (2, getattr(vision, "num_frames", 8), *picture)
        if name.endswith("videos") or hasattr(vision, "num_frames"):
            return [torch.randn(video), torch.randn(2, *picture)]
        return [torch.randn(2, *picture), torch.randn(2, picture[0], 224, 224), torch.randn(2, 2, *picture)]
    if name == "input_values":
        frames = getattr(config, "max_length", None) or 64
        return [torch.randn(2, 4000), torch.randn(2, 1, 4000), torch.randn(2, frames if isinstance(frames, int) else 64, mels)]
    if name == "input_features":
        frames = 2 * (getattr(audio, "max_source_positions", None) or 64)
        return [torch.randn(2, mels, frames), torch.randn(2, frames, mels), torch.randn(2, 1, 1001, 64)]
    if name == "bbox":
        return [torch.tensor([10, 20, 300, 400]).expand(2, 16, 4).contiguous()]
    if name == "visual_feats":
        return [torch.randn(2, 5, config.visual_feat_dim)]
    if name == "visual_pos":
        return [torch.rand(2, 5, 4)]
    if name in ("query_embeds", "inputs_embeds", "encoder_hidden_states"):
        return [torch.randn(2, 8, config.hidden_size)]
    return []


def inputs_of(model, config):
    """Sets of arguments to try, the smallest first: the main input; with the decoder's; whatever else the model takes."""
    import inspect

    taken = inspect.signature(model.forward).parameters
    main = [model.main_input_name] if model.main_input_name in taken else []
    required = [n for n, p in taken.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    decoder = ["decoder_input_ids"] if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in taken else []
    known = [n for n in taken if n != "inputs_embeds" and not n.startswith(("decoder", "encoder")) and values_of(n, config)]
    for chosen in dict.fromkeys(tuple(dict.fromkeys(names)) for names in (main + required + decoder, main + required + known + decoder)):
        values = [values_of(n, config) for n in chosen]
        if chosen and all(values):
            for i in range(max(map(len, values))):
                yield {n: v[min(i, len(v) - 1)] for n, v in zip(chosen, values)}


def hf(name):
    """The model from the first recipe that eager builds and runs, and its arguments."""
    import torch
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    problem = None
    for recipe in (TINY, {k: v for k, v in TINY.items() if k.endswith(SHALLOW)}):
        try:
            torch.manual_seed(0)
            config = tiny_config(CONFIG_MAPPING[name], recipe)
            with torch.device("meta"):
                size = sum(p.numel() for p in AutoModel.from_config(config).parameters())
            if size > 150_000_000:
                raise ValueError(f"{size / 1e6:.0f}M parameters")
            model = AutoModel.from_config(config).eval()
        except Exception as error:
            problem = problem or error
            continue
        for inputs in inputs_of(model, config):
            try:
                with torch.no_grad():
                    if tensors(model(**inputs)):
                        return model, ((), inputs)
            except Exception as error:
                problem = problem or error
    raise problem or ValueError(f"no value known for what it takes ({model.main_input_name})")


def torchvision(name):
    import inspect

    import torch
    import torchvision.models as models

    builder = models.get_model_builder(name)
    settings = {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}
    model, package = builder(weights=None, **settings).eval(), builder.__module__.split(".")[2]
    if package == "detection":
        pictures = [torch.rand(3, 64, 64), torch.rand(3, 48, 80)]
        boxes = torch.tensor([[4.0, 5.0, 30.0, 40.0], [10.0, 8.0, 44.0, 33.0]])
        targets = [{"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": torch.ones(2, *p.shape[1:], dtype=torch.uint8), "keypoints": torch.full((2, 17, 3), 15.0)} for p in pictures]
        return model, ((pictures, targets) if training else (pictures,), {})
    if package == "optical_flow":
        return model, ((torch.rand(2, 3, 128, 128), torch.rand(2, 3, 128, 128)), {"num_flow_updates": 2})
    if package == "video":
        frames, size = {"mvit": (16, 224), "s3d": (16, 224), "swin": (8, 64)}.get(name.split("_")[0][:4].rstrip("3"), (8, 64))
        return model, ((torch.randn(1 + training, 3, frames, size, size),), {})
    size = 299 if "inception" in name else 224 if "vit" in name or with_times else 64
    return model, ((torch.randn(2, 3, size, size),), {})


def timm(name):
    import timm as library
    import torch

    model = library.create_model(name, pretrained=False).eval()
    size = model.default_cfg["input_size"]
    if training and not model.default_cfg.get("fixed_input_size"):
        try:  # a small picture does, and so much smaller than others that more models can be run
            with torch.no_grad():
                model(torch.randn(2, 3, 96, 96))
            size = (3, 96, 96)
        except Exception:
            pass
    return model, ((torch.randn(1 + training, *size),), {})


def paritybench(name):
    from bench import paritybench as corpus

    model, inputs = corpus.build(corpus_path, name)
    return model.eval(), inputs


def names(suite):
    if suite == "paritybench":
        from bench import paritybench as corpus

        return corpus.names(corpus_path)
    if suite == "hf":
        from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

        return sorted(MODEL_MAPPING_NAMES)
    if suite == "torchvision":
        import torchvision.models as models

        return [n for n in models.list_models() if not n.startswith("quantized")]
    return (
        "convnext_atto efficientnet_b0 mobilenetv3_small_050 resnet18 resnext26ts regnetx_002 vit_tiny_patch16_224 deit_tiny_patch16_224 swin_tiny_patch4_window7_224"
        " mixer_s32_224 beit_base_patch16_224 botnet26t_256 coat_lite_mini convmixer_768_32 crossvit_9_240 cspdarknet53 densenet121 dla34 dpn68 eca_botnext26ts_256"
        " eca_halonext26ts ese_vovnet19b_dw fbnetc_100 gernet_s ghostnet_100 gmixer_24_224 gmlp_s16_224 hardcorenas_a hrnet_w18_small lcnet_050 levit_128 mixnet_s"
        " mnasnet_small mobilenetv2_050 mobilevit_s nfnet_l0 pit_ti_224 poolformer_s12 repvgg_a0 res2net50_14w_8s resmlp_12_224 resnest14d rexnet_100 selecsls42b"
        " spnasnet_100 tinynet_e tnt_s_patch16_224 twins_pcpvt_small visformer_tiny xcit_nano_12_p16_224 edgenext_xx_small efficientformer_l1 fastvit_t8 maxvit_nano_rw_256"
        " pvt_v2_b0 mvitv2_tiny davit_tiny inception_next_tiny repghostnet_050 vgg11 cait_xxs24_224 convit_tiny cpubone_nano csatv2 cspnext_tiny efficientformerv2_s0"
        " efficientvim_m1 efficientvit_b0 efficientvit_m0 vit_tiny_patch16_dinov3_qkvb fasternet_t0 focalnet_tiny_srf gcvit_xxtiny hgnetv2_b0 hiera_tiny_224"
        " sam2_hiera_tiny iformer_t inception_resnet_v2 inception_v3 inception_v4 lcnetv2_small lowformer_b0 mambaout_femto mobilenetv5_base"
        " naflexvit_base_patch16_parfac_gap nest_tiny nextvit_small pnasnet5large qwen3_vit_88m rdnet_tiny repvit_m1 resnetv2_18 legacy_seresnet18 sequencer2d_s shvit_s1"
        " skresnet18 starnet_s050 swiftformer_xs swinv2_tiny_window8_256 swinv2_cr_tiny_224 tiny_vit_5m_224 tresnet_m vit_tiny_r_s16_p8_224 vit_relpos_small_patch16_224"
        " samvit_base_patch16_224"
    ).split()


def build(suite, name):
    """The model and its arguments, on the device that was asked for."""
    import torch
    from torch.utils._pytree import tree_map

    model, inputs = globals()[suite](name)
    if device != "cpu":
        model, inputs = model.to(device), tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, inputs)
    return model, inputs


def tensors(output):
    from bench.models import flatten

    return {k: v for k, v in flatten(output).items()}


def run(model, inputs):
    """One call with inputs of its own, which it may write to."""
    args, kwargs = copy.deepcopy(inputs)
    return model(*args, **kwargs)


def wide(inputs):
    """The inputs in double precision."""
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v, inputs)


def seed(number):
    import random

    import numpy
    import torch

    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def outputs(model, inputs):
    """The tensors in the result of one call."""
    import torch

    seed(1)
    with torch.no_grad():
        return tensors(run(model, inputs))


def broken(told):
    """Breaks by id, and their causes: id, message and detail, where."""
    ids = collections.Counter(reason.split("[")[1].split("]")[0] for reason in told.break_reasons if "[" in reason)
    causes = [f"{lines[0]} @{lines[1].partition('--> ')[2]}" for lines in map(str.splitlines, told.break_reasons) if len(lines) > 1]
    return {"graphs": told.graph_count, "breaks": dict(ids), "ops": told.op_count, "why": causes[:16]}


def peer_counts(model, inputs):
    """What torch.compile makes of one call: graphs and breaks; the reasons are its own words."""
    import torch

    torch._dynamo.reset()
    seed(1)
    try:
        run(torch.compile(model, backend="eager", fullgraph=True), inputs)
        return {"graphs": 1, "breaks": 0}
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    torch._dynamo.reset()
    seed(1)
    try:
        args, kwargs = copy.deepcopy(inputs)
        told = torch._dynamo.explain(model)(*args, **kwargs)
        return {"graphs": told.graph_count, "breaks": max(1, told.graph_break_count), "why": why}
    except Exception as error:
        return {"graphs": 0, "breaks": 1, "why": f"{why}; {type(error).__name__}"}


def counted(row, model, inputs):
    """The row with our counts of one call and, if asked for, the peer's."""
    import framejit
    import torch

    with torch.set_grad_enabled(training):
        seed(1)
        args, kwargs = copy.deepcopy(inputs)
        row = {**row, **broken(framejit.explain(model)(*args, **kwargs))}
        if with_peer == "all" or with_peer and (row["graphs"] > 1 or row["breaks"]):
            os.write(row_pipe, json.dumps(row).encode() + b"\n")  # if the peer takes too long
            row["peer"] = peer_counts(model, inputs)
        return row


def both_calls(model, call, inputs):
    """The results of two calls."""
    return [outputs(call, inputs) for _ in range(2)]


def measure(suite, name):
    """The row of one model; raises if eager cannot build or run it."""
    import torch

    model, inputs = build(suite, name)
    try:
        eager, again, ours = (copy.deepcopy(model) for _ in range(3))
    except Exception:  # it holds what cannot be copied; then we hope that calls leave nothing in it
        eager = again = ours = model
    expected = both_calls(eager, eager, inputs)
    assert expected[0], "no tensor in the result"
    assert not differs(outputs(again, inputs), expected[0], None), "eager's own runs differ"
    reference = None
    try:
        reference = outputs(copy.deepcopy(model).double(), wide(inputs))
    except Exception:  # some models do not run in float64
        pass
    import framejit

    os.write(row_pipe, b"built\n")
    row = {"model": name}
    compiled = framejit.compile(ours)
    start = time.time()
    got = [outputs(compiled, inputs)]
    row["first_s"] = round(time.time() - start, 2)
    got.append(outputs(compiled, inputs))
    references = [reference, None if differs(expected[1], expected[0], None) else reference]
    if problem := first_difference(got, expected, references):
        row["off"] = problem
        exact = [reference] * 2 if references[1] else None
        if problem := unlike(both_calls, model, inputs, got, expected, exact):
            with told_compiling():
                told = copy.deepcopy(model)
                if first_difference(got, both_calls(told, told, inputs), None if reference is None else [outputs(copy.deepcopy(model).double(), wide(inputs))] * 2):
                    return {**row, "status": "wrong", "note": problem}
            row["told"] = problem
    if with_times:
        with torch.no_grad():
            row["of_eager"] = of_eager(*(functools.partial(call, *args, **kwargs) for call in (eager, compiled) for args, kwargs in [copy.deepcopy(inputs)]))
    return counted({**row, "status": "ok"}, ours, inputs)


def of_eager(eager, compiled, rounds=15):
    """Seconds of a compiled call after 20 calls, of eager's: minima of interleaved rounds of at least a fifth of a millisecond."""
    least = [float("inf"), float("inf")]
    for call in (eager, compiled):
        start = time.perf_counter()
        for _ in range(20):
            call()
        calls = max(1, int(0.0002 / (time.perf_counter() - start) * 20))
    for _ in range(rounds):
        for side, call in enumerate((eager, compiled)):
            start = time.perf_counter()
            for _ in range(calls):
                call()
            least[side] = min(least[side], (time.perf_counter() - start) / calls)
    return round(least[1] / least[0], 3)


def differs(got, expected, reference, close=1e-4, floor=1e-30, moved=()):
    """What differs: shapes, dtypes, strides and integers at all; floats by more than twice eager's distance from the reference, and
    without one by more than this part of the largest, the floor, and four times what eager's have moved by, the farthest of these."""
    import torch

    if set(got) != set(expected):
        return f"keys {sorted(set(got) ^ set(expected))}"
    for key, e in expected.items():
        g = got[key]
        of_gradient = key.startswith("gradient")  # eager's kernels choose how far apart the one element of a dimension is from no other
        strides = [[s for s, n in zip(t.stride(), t.shape) if n != 1 or not of_gradient] for t in (g, e)]
        if (g.shape, g.dtype) != (e.shape, e.dtype) or strides[0] != strides[1]:
            return f"{key}: {tuple(g.shape)} {g.dtype} {g.stride()} for {tuple(e.shape)} {e.dtype} {e.stride()}"
        if not e.is_floating_point():
            if not torch.equal(g, e):
                return f"{key}: integers differ"
            continue
        if not torch.equal(g.isnan(), e.isnan()):
            return f"{key}: NaN in other places"
        exact = reference.get(key) if reference else None
        scale = float(e.double().nan_to_num(0, 0, 0).abs().max()) if e.numel() else 0.0
        if exact is not None and exact.shape == e.shape and exact.is_floating_point():
            own, ours = (float((v.double() - exact).nan_to_num(0, 0, 0).abs().max()) if e.numel() else 0.0 for v in (e, g))
            if ours > 2 * own + 1e-6 * scale + 1e-30:
                return f"{key}: error {ours:.3g}, eager's {own:.3g}"
        elif e.numel():
            apart = [float((v.double() - e.double()).nan_to_num(0, 0, 0).abs().max()) for v in (g, *(m[key] for m in moved)) if v.shape == e.shape]
            off, by = apart[0], max(apart[1:], default=0.0)
            if off > close * scale + floor + 4 * by:
                return f"{key}: differs by {off:.3g} of {scale:.3g}"
    return ""


def generators():
    """The states of all random generators."""
    import random

    import numpy
    import torch

    states = (random.getstate()[1], numpy.random.get_state()[1].tolist())
    return {"generator": torch.get_rng_state(), **{f"generator {k}": torch.tensor(s) for k, s in enumerate(states)}}


def step(model, call, inputs, number):
    """What one training step makes: results, loss, gradients, buffers, states of generators."""
    import torch

    seed(100 + number)
    model.zero_grad()
    results = tensors(run(call, inputs))
    loss = sum((t * t).mean() for t in results.values() if t.requires_grad and t.is_floating_point())
    assert isinstance(loss, torch.Tensor), "no result needs gradients"
    made = {f"result {k}": t.detach().clone() for k, t in results.items()}
    loss.backward()
    made["loss"] = loss.detach()
    made.update({f"gradient of {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    made.update({f"buffer {n}": b.clone() for n, b in model.named_buffers()})
    return {**made, **generators()}


def move(model, made):
    """Moves the parameters against the gradients in the result of a step, which may be another model's."""
    import torch

    gradients = {n: made[f"gradient of {n}"] for n, _ in model.named_parameters() if f"gradient of {n}" in made}
    norm = float(sum(g.double().nan_to_num(0, 0, 0).norm() ** 2 for g in gradients.values())) ** 0.5
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n in gradients:
                p.sub_(gradients[n].nan_to_num(0, 0, 0), alpha=0.01 / max(1.0, norm))


def both_steps(model, call, inputs, path):
    """The results of a step with each of these sets of gradients applied before, the first without any; None in `path`: with its own."""
    made = [step(model, call, inputs, 0)]
    move(model, path or made[0])
    return [*made, step(model, call, inputs, 1)]


def first_difference(got, expected, references):
    for k, (g, e, r) in enumerate(zip(got, expected, references or (None, None))):
        if problem := differs(g, e, r):
            return f"{k + 1}: {problem}"
    return ""


def in_float64(model, inputs, path):
    """The steps in double precision with the moves that eager made; None where they cannot run."""
    try:
        exact = copy.deepcopy(model).double()
        return both_steps(exact, exact, wide(inputs), path)
    except Exception:
        return None


def shaken(model, inputs, number):
    """The model and its inputs with parameters and numbers that are off by the last bit of a float32, or not; others for each number."""
    import torch
    from torch.utils._pytree import tree_map

    def off(x):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return x * (1 + 1.2e-7 * torch.randint(-1, 2, x.shape, dtype=x.dtype, device=x.device))

    model = copy.deepcopy(model)
    torch.manual_seed(number)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(off(p))
        return model, tree_map(off, inputs)


SHAKES = 4  # models that eager is asked with: how far one moves a sum of few terms is luck


def alike(exact, made):
    """Whether steps in double precision took the way of these: the same draws, results near these."""
    for e, m in zip(exact, made):
        if set(e) != set(m) or any(e[k].shape != m[k].shape for k in m):
            return False
        for k in m:
            if k.startswith("generator") and not e[k].equal(m[k]):
                return False
            if k.startswith("result") and m[k].is_floating_point() and differs({k: m[k].double()}, {k: e[k].double()}, None, 0.01):
                return False
    return True


def unlike(run, model, inputs, got, expected, exact):
    """What is wrong, in calls or in steps as `run` makes them, where a result is further from float64 than twice eager's: more than rounding makes of it, as eager shows with
    parameters and inputs that are off by their last bits. In double precision where eager can run it, else in the model's own. Gradients that are
    zero but for rounding are as large as that of the largest."""
    import framejit

    if exact:
        model, inputs, expected = copy.deepcopy(model).double(), wide(inputs), exact
        ours = copy.deepcopy(model)
        got = run(ours, framejit.compile(ours), inputs)
    moved = [run(other, other, near) for other, near in (shaken(model, inputs, number) for number in range(SHAKES))]
    for k, (g, e, *m) in enumerate(zip(got, expected, *moved)):
        largest = max((float(v.nan_to_num(0, 0, 0).abs().max()) for n, v in e.items() if n.startswith("gradient") and v.numel()), default=0.0)
        if problem := differs(g, e, None, 1e-7 if exact else 1e-5, 1e-30 + (1e-10 if exact else 1e-8) * largest, m):
            return f"{k + 1}{' in float64' * bool(exact)}: {problem}"
    return ""


@contextlib.contextmanager
def told_compiling():
    """Inside of it `torch.compiler.is_compiling()` is True, as it is for a program that is compiled."""
    import torch

    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = False


def measure_training(suite, name):
    model, inputs = build(suite, name)
    model.train()
    eager, again, ours, told = (copy.deepcopy(model) for _ in range(4))
    expected = both_steps(eager, eager, inputs, None)
    path = expected[0]
    noise = first_difference(both_steps(again, again, inputs, path), expected, None)
    assert not noise, f"eager's own runs differ: step {noise}"
    exact = in_float64(model, inputs, path)
    import framejit

    os.write(row_pipe, b"built\n")
    row = {"model": name}
    compiled = framejit.compile(ours)
    start = time.time()
    got = [step(ours, compiled, inputs, 0)]
    row["first_s"] = round(time.time() - start, 2)
    move(ours, path)
    got.append(step(ours, compiled, inputs, 1))
    if problem := first_difference(got, expected, exact if exact and alike(exact, expected) else None):
        row["off"] = problem
        run = functools.partial(both_steps, path=path)
        if problem := unlike(run, model, inputs, got, expected, exact):
            with told_compiling():
                exact, asked = in_float64(model, inputs, path), both_steps(told, told, inputs, path)
                still = first_difference(got, asked, exact) and unlike(run, model, inputs, got, asked, exact)
            if still:
                return {**row, "status": "wrong", "note": problem}
            row["told"] = problem
    if with_times:
        row["of_eager"] = of_eager(lambda: step(eager, eager, inputs, 0), lambda: step(ours, compiled, inputs, 0))
    return counted({**row, "status": "ok"}, model, inputs)


row_pipe = -1
training = with_peer = with_times = False
corpus_path, device = "", "cpu"


class Child:
    """One model in a process of its own."""

    def __init__(self, suite, name, seconds):
        global row_pipe
        self.suite, self.name, self.end, self.text = suite, name, time.time() + seconds, b""
        self.reader, row_pipe = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            self.work()
        os.close(row_pipe)

    def work(self):
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            row = (measure_training if training else measure)(self.suite, self.name)
        except BaseException as error:
            row = {"status": "error", "note": f"{type(error).__name__}: {str(error)[:300]}", "trace": traceback.format_exc()[-1500:]}
        os.write(row_pipe, json.dumps(row).encode() + b"\n")
        os._exit(0)

    def read(self):
        """Takes what has come; whether the child has ended."""
        piece = os.read(self.reader, 1 << 16)
        self.text += piece
        return not piece

    def stop(self):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.reader)

    def rows(self, ended):
        if ended:
            yield self.row()

    def row(self):
        late = time.time() >= self.end
        if late:
            os.kill(self.process, signal.SIGKILL)
        status = os.waitpid(self.process, 0)[1]
        os.close(self.reader)
        lines = self.text.decode().split("\n")[:-1]
        built = "built" in lines[:1]
        row = json.loads(lines[-1]) if len(lines) > built else {}
        row = {"suite": self.suite + " train" * training, **row, "model": self.name}
        if late and "status" not in row:
            row["status"] = "timeout" if built else "not built"
        elif "status" not in row:
            row["status"] = f"crash {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else "crash"
        if not built and row["status"] != "ok":
            row.update(status="not built", note=row.get("note", "late" if late else row["status"]))
        return row


class Project(Child):
    """The modules of one project of paritybench in a process that loads its file once and has a child for each."""

    def __init__(self, names, seconds):
        self.names, self.seconds, self.given = names, seconds, 0
        super().__init__("paritybench", names[0], float("inf"))

    def work(self):
        os.setpgid(0, 0)
        from bench import paritybench as corpus

        rows, quiet = row_pipe, os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        signal.alarm(int(self.seconds) + 1)  # what takes longer ends this process
        try:
            corpus.load(corpus_path, self.names[0].split(":")[0])
        except BaseException:  # each child tells
            pass
        signal.alarm(0)
        for row in rows_of((Child(self.suite, name, self.seconds) for name in self.names), 1, float("inf")):
            os.write(rows, json.dumps(row).encode() + b"\n")
        os._exit(0)

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        super().stop()

    def rows(self, ended):
        lines = self.text.split(b"\n")
        found, self.text = [json.loads(line) for line in lines[:-1]], lines[-1]
        self.given += len(found)
        yield from found
        if ended:
            self.stop()
            for name in self.names[self.given :]:
                yield {"suite": self.suite + " train" * training, "model": name, "status": "not built", "note": "late"}


def rows_of(children, jobs, within):
    """The rows of these, as they come; so many at a time."""
    waiting, running, end = iter(children), {}, time.time() + within
    while time.time() < end:
        for child in itertools.islice(waiting, jobs - len(running)):
            running[child.reader] = child
        if not running:
            return
        until = min(end, *(child.end for child in running.values()))
        ready = select.select(list(running), [], [], max(0.0, until - time.time()) if until < float("inf") else None)[0]
        for reader, child in list(running.items()):
            ended = reader in ready and child.read() or time.time() >= child.end
            if ended:
                del running[reader]
            yield from child.rows(ended)
    for child in running.values():
        child.stop()


def children_of(suite, found, seconds):
    """What makes the rows: a name, and what begins the process."""
    if suite != "paritybench":
        return [(name, functools.partial(Child, suite, name, seconds)) for name in found]
    projects = itertools.groupby(found, lambda name: name.split(":")[0])
    return [(project, functools.partial(Project, list(names), seconds)) for project, names in projects]


def ranked(rows):
    """The causes of breaks: in how many models, in how many of them the peer has none, and one of these."""
    causes = {}
    for row in rows:
        for cause in dict.fromkeys(why.split(" @")[0] for why in row.get("why", [])):
            causes.setdefault(cause, []).append(row)
    for cause, broke in sorted(causes.items(), key=lambda item: -len(item[1])):
        whole = [row for row in broke if not row.get("peer", {"breaks": 1})["breaks"]]
        place = next(why.split(" @")[1] for why in (whole or broke)[0]["why"] if why.startswith(cause + " @"))
        print(f"{len(broke):4} {len(whole):4}  {cause}  (as {(whole or broke)[0]['model']}, {place.strip()})")


def show(row, counts):
    """Prints a row and counts it."""
    one = row["status"] == "ok" and row["graphs"] <= 1 and not row["breaks"]  # a module without operations has no graph
    counts[row["status"]] += 1
    counts["one graph"] += one
    counts["off"] += "off" in row and row["status"] == "ok"
    counts["told"] += "told" in row
    peer = row.get("peer")
    if peer:
        counts["one graph of the peer"] += not peer["breaks"]
        counts["more breaks than the peer"] += max(row["graphs"] - 1, not one) > peer["breaks"]  # as torch counts them
    counts["slower than eager by more than 3%"] += row.get("of_eager", 0) > 1.03
    breaks = " ".join(f"{k}x{n}" for k, n in row.get("breaks", {}).items())
    beside = f"peer: {peer['breaks']}" if peer else ""
    off = f"off: {row['off'][:80]}" if "off" in row else ""
    print(f"{row['model']:32} {row['status']:10} {row.get('graphs', ''):>4} {row.get('first_s', ''):>6} {row.get('of_eager', '')} {breaks} {beside} {off} {row.get('note', '')[:150]}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.width", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="?", default="hf", help="hf, torchvision, timm, paritybench, or several with commas between")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--from-path", metavar="DIR", default="", help="the checkout of paritybench")
    parser.add_argument("--json", metavar="FILE", help="append the rows to this file")
    parser.add_argument("--limit", type=int, help="only so many models (projects) of a suite")
    parser.add_argument("--jobs", type=int, default=1, help="so many models at a time (default 1)")
    parser.add_argument("--seconds", type=float, default=60, help="for one model (default 60)")
    parser.add_argument("--within", type=float, default=float("inf"), help="end after so many seconds, with the rows there are")
    parser.add_argument("--train", action="store_true", help="training steps instead of calls")
    parser.add_argument("--every", type=int, default=1, help="only every Nth model (of paritybench: project)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="beginning with this one")
    parser.add_argument("--peer", nargs="?", const="broken", choices=["broken", "all"], help="torch.compile's graphs and breaks beside ours")
    parser.add_argument("--time", action="store_true", help="the time of a call after 20 calls, of eager's")
    parser.add_argument("--device", default="cpu", help="where models and inputs are (default cpu)")
    args = parser.parse_intermixed_args()
    global training, with_peer, with_times, corpus_path, device
    training, with_peer, with_times, corpus_path, device = args.train, args.peer, args.time, args.from_path, args.device
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch

    import bench  # noqa: F401 (makes torchvision importable)

    suites = args.suite.split(",")
    if "hf" in suites:
        import transformers  # noqa: F401 (before the forks)
    if "paritybench" in suites:
        from bench import paritybench as corpus

        corpus.prepare(corpus_path)
    if with_peer:
        import torch._dynamo.backends.registry  # noqa: F401 (likewise)
        import torch._inductor.config  # noqa: F401
    torch.set_num_threads(1)
    children = [pair for suite in suites for pair in children_of(suite, args.names or names(suite), args.seconds)[args.first :: args.every][: args.limit]]
    if args.within < float("inf"):
        children.sort(key=lambda pair: zlib.crc32(pair[0].encode()))
    counts, rows = collections.defaultdict(collections.Counter), []
    for row in rows_of((begin() for _, begin in children), args.jobs, args.within):
        rows.append(row)
        show(row, counts[row["suite"]])
        if args.json:
            with open(args.json, "a") as f:
                f.write(json.dumps(row) + "\n")
    for suite, count in counts.items():
        print(suite, dict(count))
    ranked(rows)


if __name__ == "__main__":
    sys.exit(main())
