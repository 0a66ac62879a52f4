"""How wide capture is: every Hugging Face model type that can be built from a tiny config, the classification models of
torchvision and timm, and the modules of GitHub projects in a checkout of pytorch-jit-paritybench, in eval mode. Each runs in a
forked child: eager, then compiled twice; results are compared.

    python -m bench.width [hf|torchvision|timm|paritybench] [NAME...] [--from-path DIR] [--json FILE] [--limit N] [--seconds S] [--train]
                          [--every N] [--from K] [--peer] [--time]

--from-path: the checkout of paritybench.
--train: in train mode, three steps of SGD and of AdamW, dropout by torch's generator; losses and parameters are compared.
--peer: beside our counts those of torch.compile (backend "eager"), which breaks if `fullgraph=True` raises.

--time: the time of a call after 20 calls, of eager's.

One row a model: graphs, breaks by id, seconds of the first compiled call, and what was wrong, if anything was. A type that
eager cannot run from a generic tiny config is named as not built. At the end the causes of breaks, ranked by how many models have them.
"""

import argparse
import collections
import copy
import json
import os
import select
import signal
import sys
import time
import traceback

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
}  # fmt: skip
# The second recipe: widths stay (where they depend on each other), depth, vocabulary and pictures shrink.
SHALLOW = ("layers", "n_layer", "vocab_size", "image_size", "use_cache", "num_queries", "num_frames")


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
    for key, part in getattr(config_class, "sub_configs", {}).items():
        if depth < 3 and hasattr(part, "model_type") and part.__name__ != "AutoConfig":
            settings[key] = tiny_config(part, recipe, depth + 1).to_dict()
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
    import torch
    import torchvision.models as models

    size = 299 if "inception" in name else 64
    return models.get_model(name, weights=None).eval(), ((torch.randn(2, 3, size if "vit" not in name else 224, size if "vit" not in name else 224),), {})


def timm(name):
    import timm as library
    import torch

    model = library.create_model(name, pretrained=False).eval()
    return model, ((torch.randn(1, *model.default_cfg["input_size"]),), {})


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

        return [n for n in models.list_models(module=models) if not n.startswith("quantized")]
    return (
        "convnext_atto efficientnet_b0 mobilenetv3_small_050 resnet18 resnext26ts regnetx_002 vit_tiny_patch16_224 deit_tiny_patch16_224 swin_tiny_patch4_window7_224"
        " mixer_s32_224 beit_base_patch16_224 botnet26t_256 coat_lite_mini convmixer_768_32 crossvit_9_240 cspdarknet53 densenet121 dla34 dpn68 eca_botnext26ts_256"
        " eca_halonext26ts ese_vovnet19b_dw fbnetc_100 gernet_s ghostnet_100 gmixer_24_224 gmlp_s16_224 hardcorenas_a hrnet_w18_small lcnet_050 levit_128 mixnet_s"
        " mnasnet_small mobilenetv2_050 mobilevit_s nfnet_l0 pit_ti_224 poolformer_s12 repvgg_a0 res2net50_14w_8s resmlp_12_224 resnest14d rexnet_100 selecsls42b"
        " spnasnet_100 tinynet_e tnt_s_patch16_224 twins_pcpvt_small visformer_tiny xcit_nano_12_p16_224 edgenext_xx_small efficientformer_l1 fastvit_t8 maxvit_nano_rw_256"
        " pvt_v2_b0 mvitv2_tiny davit_tiny inception_next_tiny repghostnet_050 vgg11"
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
    return {"graphs": told.graph_count, "breaks": dict(ids), "ops": told.op_count, "why": causes[:4]}


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
        return {**row, "peer": peer_counts(model, inputs)} if with_peer else row


def measure(suite, name):
    """The row of one model; raises if eager cannot build or run it."""
    model, inputs = build(suite, name)
    try:
        eager, again, ours = (copy.deepcopy(model) for _ in range(3))
    except Exception:  # it holds what cannot be copied; then we hope that calls leave nothing in it
        eager = again = ours = model
    expected = [outputs(eager, inputs) for _ in range(2)]
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
    for call in range(2):
        got = outputs(compiled, inputs)
        row.setdefault("first_s", round(time.time() - start, 2))
        problem = differs(got, expected[call], None if call and differs(expected[1], expected[0], None) else reference)
        if problem:
            return {**row, "status": "wrong", "note": f"call {call + 1}: {problem}"}
    if with_times:
        row["of_eager"] = of_eager(eager, compiled, inputs)
    return counted({**row, "status": "ok"}, ours, inputs)


def of_eager(eager, compiled, inputs, rounds=15):
    """Seconds of a compiled call after 20 calls, of eager's: minima of interleaved rounds of at least a fifth of a millisecond."""
    import torch

    sides = [(call, *copy.deepcopy(inputs)) for call in (eager, compiled)]
    least = [float("inf"), float("inf")]
    with torch.no_grad():
        for call, args, kwargs in sides:
            start = time.perf_counter()
            for _ in range(20):
                call(*args, **kwargs)
            calls = max(1, int(0.0002 / (time.perf_counter() - start) * 20))
        for _ in range(rounds):
            for side, (call, args, kwargs) in enumerate(sides):
                start = time.perf_counter()
                for _ in range(calls):
                    call(*args, **kwargs)
                least[side] = min(least[side], (time.perf_counter() - start) / calls)
    return round(least[1] / least[0], 3)


def differs(got, expected, reference):
    import torch

    if set(got) != set(expected):
        return f"keys {sorted(set(got) ^ set(expected))}"
    for key, e in expected.items():
        g = got[key]
        if (g.shape, g.dtype, g.stride()) != (e.shape, e.dtype, e.stride()):
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
        elif e.numel() and float((g.double() - e.double()).nan_to_num(0, 0, 0).abs().max()) > 1e-4 * scale + 1e-30:
            return f"{key}: differs"
    return ""


def steps(model, call, inputs, optimizer, n=3):
    """Losses and parameters of n training steps; None for the loss of a step without gradients."""
    import torch

    made = {"SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-3)}[optimizer](model.parameters())
    losses = []
    for k in range(n):
        seed(100 + k)
        made.zero_grad()
        parts = [(t * t).mean() for t in tensors(run(call, inputs)).values() if t.requires_grad and t.is_floating_point()]
        loss = sum(parts)
        loss.backward()
        made.step()
        losses.append(float(loss.detach()))
    return losses, torch.cat([p.detach().flatten().double() for p in model.parameters()]), [p.grad is None for p in model.parameters()]


def same_in_float64(model, inputs):
    """Where rounding grows from step to step, double precision tells: the same steps, eager and compiled; and where it grows
    even there (a batch norm of two values), eager from parameters that are off by their last bits."""
    import framejit
    import torch

    inputs = wide(inputs)
    eager, ours, shaken = (copy.deepcopy(model).double() for _ in range(3))
    for p in shaken.parameters():
        if p.is_floating_point():
            p.data.mul_(1 + 2e-16 * torch.randint(-1, 2, p.shape, dtype=torch.float64, device=p.device))
    expected, got, other = steps(eager, eager, inputs, "SGD"), steps(ours, framejit.compile(ours), inputs, "SGD"), steps(shaken, shaken, inputs, "SGD")
    close = all(abs(a - b) <= 1e-7 * abs(b) + 4 * abs(c - b) for a, b, c in zip(got[0], expected[0], other[0]))
    return close and float((got[1] - expected[1]).norm()) <= 1e-7 * float(expected[1].norm()) + 4 * float((other[1] - expected[1]).norm())


def measure_training(suite, name):
    import torch

    model, inputs = build(suite, name)
    model.train()
    start = torch.cat([p.detach().flatten().double() for p in model.parameters()])
    expected = {o: steps(m, m, inputs, o) for o in ("SGD", "AdamW") for m in [copy.deepcopy(model)]}
    again = copy.deepcopy(model)
    noise = steps(again, again, inputs, "SGD")
    assert noise[0] == expected["SGD"][0] or abs(noise[0][-1] - expected["SGD"][0][-1]) <= 1e-4 * abs(noise[0][-1]), "eager's own runs differ"
    reference = {}
    try:  # without dropout alone: double precision draws other numbers
        if not any("Dropout" in type(m).__name__ and getattr(m, "p", 0) for m in model.modules()):
            reference = {o: steps(m, m, wide(inputs), o) for o in ("SGD", "AdamW") for m in [copy.deepcopy(model).double()]}
    except Exception:
        pass
    import framejit

    os.write(row_pipe, b"built\n")
    row = {"model": name}
    for o in ("SGD", "AdamW"):
        ours = copy.deepcopy(model)
        compiled = framejit.compile(ours)
        begun = time.time()
        losses, parameters, missing = steps(ours, compiled, inputs, o)
        row.setdefault("first_s", round(time.time() - begun, 2))
        notes = framejit.cache_info(compiled)["notes"]
        if missing != expected[o][2]:
            return {**row, "status": "wrong", "note": f"{o}: other parameters have gradients"}
        moved = float((expected[o][1] - start).norm())
        own = float((expected[o][1] - reference[o][1]).norm()) if o in reference else 0.0
        off = float((parameters - (reference[o][1] if o in reference else expected[o][1])).norm())
        if not off <= 2 * own + 2e-3 * moved + 1e-30:
            row["off"] = f"{o}: parameters are off by {off:.3g}, eager by {own:.3g}, of {moved:.3g}"
        for mine, theirs, exact in zip(losses, expected[o][0], reference.get(o, expected[o])[0]):
            if not (abs(mine - exact) <= 2 * abs(theirs - exact) + 1e-3 * abs(exact) + 1e-7 or mine != mine and theirs != theirs):
                row["off"] = f"{o}: losses {losses} for {expected[o][0]}"
    if "off" in row and not same_in_float64(model, inputs):
        return {**row, "status": "wrong", "note": row["off"]}
    row = counted({**row, "status": "ok", "note": "; ".join(notes)[:300]}, model, inputs)
    if notes:
        row["breaks"]["no backward"] = len(notes)
    return row


row_pipe = -1
training = with_peer = with_times = False
corpus_path, device = "", "cpu"


def isolated(suite, name, seconds):
    """The row of one model, run in a child of its own."""
    global row_pipe
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        row_pipe = writer
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        import torch

        torch.set_num_threads(1)
        try:
            row = (measure_training if training else measure)(suite, name)
        except BaseException as error:
            row = {"status": "error", "note": f"{type(error).__name__}: {str(error)[:300]}", "trace": traceback.format_exc()[-1500:]}
        os.write(writer, json.dumps(row).encode() + b"\n")
        os._exit(0)
    os.close(writer)
    text, end = b"", time.time() + seconds
    while time.time() < end:
        if select.select([reader], [], [], max(0.0, end - time.time()))[0]:
            piece = os.read(reader, 1 << 16)
            if not piece:
                break
            text += piece
    os.close(reader)
    late = time.time() >= end
    if late:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    lines = text.decode().split("\n")
    built = lines[0] == "built"
    row = json.loads(lines[-2]) if len(lines) > 1 + built else {}
    row["model"] = name
    if late:
        row["status"] = "timeout" if built else "not built"
    elif not row.get("status"):
        row["status"] = f"crash {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else "crash"
    if not built and row["status"] != "ok":
        row = {"model": name, "status": "not built", "note": row.get("note", row["status"])}
    return row


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


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.width", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="?", default="hf", choices=["hf", "torchvision", "timm", "paritybench"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--from-path", metavar="DIR", default="", help="the checkout of paritybench")
    parser.add_argument("--json", metavar="FILE", help="append the rows to this file")
    parser.add_argument("--limit", type=int, help="only so many models")
    parser.add_argument("--seconds", type=float, default=60, help="for one model (default 60)")
    parser.add_argument("--train", action="store_true", help="training steps instead of calls")
    parser.add_argument("--every", type=int, default=1, help="only every Nth model")
    parser.add_argument("--from", type=int, default=0, dest="first", help="beginning with this one")
    parser.add_argument("--peer", action="store_true", help="torch.compile's graphs and breaks beside ours")
    parser.add_argument("--time", action="store_true", help="the time of a call after 20 calls, of eager's (not with --train)")
    parser.add_argument("--device", default="cpu", help="where models and inputs are (default cpu)")
    args = parser.parse_args()
    global training, with_peer, with_times, corpus_path, device
    training, with_peer, with_times, corpus_path, device = args.train, args.peer, args.time, args.from_path, args.device
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    import transformers  # noqa: F401 (before the forks)

    import bench  # noqa: F401 (makes torchvision importable)

    if args.suite == "paritybench":
        from bench import paritybench as corpus

        corpus.prepare(corpus_path)
    if with_peer:
        import torch._dynamo.backends.registry  # noqa: F401 (likewise)
        import torch._inductor.config  # noqa: F401
    torch.set_num_threads(1)
    counts, rows = collections.Counter(), []
    for name in (args.names or names(args.suite))[args.first :: args.every][: args.limit]:
        row = isolated(args.suite, name, args.seconds)
        one = row["status"] == "ok" and row["graphs"] <= 1 and not row["breaks"]  # a module without operations has no graph
        counts[row["status"]] += 1
        counts["one graph"] += one
        peer = row.get("peer")
        beside = f"peer: {peer['breaks']}" if peer else ""
        if peer:
            counts["one graph of the peer"] += not peer["breaks"]
            counts["more breaks than the peer"] += sum(row["breaks"].values()) > peer["breaks"]
        rows.append(row)
        breaks = " ".join(f"{k}x{n}" for k, n in row.get("breaks", {}).items())
        counts["slower than eager by more than 3%"] += row.get("of_eager", 0) > 1.03
        print(f"{name:32} {row['status']:10} {row.get('graphs', ''):>4} {row.get('first_s', ''):>6} {row.get('of_eager', '')} {breaks} {beside} {row.get('note', '')[:150]}", flush=True)
        if args.json:
            with open(args.json, "a") as f:
                f.write(json.dumps(row) + "\n")
    print(dict(counts))
    ranked(rows)


if __name__ == "__main__":
    sys.exit(main())
