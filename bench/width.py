"""How wide capture is: every Hugging Face model type that can be built from a tiny config, and the classification models of
torchvision and timm, in eval mode. Each runs in a forked child: eager, then compiled twice; results are compared.

    python -m bench.width [hf|torchvision|timm] [NAME...] [--json FILE] [--limit N] [--seconds S]

One row a model: graphs, breaks by id, seconds of the first compiled call, and what was wrong, if anything was. A type that
eager cannot run from a generic tiny config is named as not built.
"""

import argparse
import collections
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
}  # fmt: skip
HEADS = ("num_attention_heads", "n_head", "num_heads")


def tiny_config(config_class, depth=0):
    """A config of this class with the fields of TINY that it has, its parts likewise. Lists keep their length."""
    default = config_class()
    settings = {}
    for key, value in vars(default).items():
        wanted = TINY.get(key)
        if key in TINY and wanted is not None and type(value) is type(wanted):
            settings[key] = wanted if isinstance(wanted, bool) else min(value, wanted) or value
        elif key in TINY and isinstance(value, int) and isinstance(wanted, int) and not isinstance(value, bool):
            settings[key] = min(value, wanted)
    for key, part in getattr(config_class, "sub_configs", {}).items():
        if depth < 3 and hasattr(part, "model_type") and part.__name__ != "AutoConfig":
            settings[key] = tiny_config(part, depth + 1).to_dict()
    if "pad_token_id" in vars(default) and isinstance(default.pad_token_id, int) and default.pad_token_id >= 1024:
        settings["pad_token_id"] = 0
    return config_class(**settings)


def inputs_of(model, config):
    import torch

    name = model.main_input_name
    text = getattr(config, "text_config", config)
    vocabulary = min(getattr(text, "vocab_size", 1000) or 1000, 1000)
    tokens = torch.randint(3, max(vocabulary, 4), (2, 16))
    if name in ("pixel_values", "pixel_values_videos"):
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", 32) or 32
        size = size if isinstance(size, int) else size[0]
        shape = (2, getattr(vision, "num_channels", 3), size, size)
        if name.endswith("videos") or hasattr(vision, "num_frames"):
            shape = (2, getattr(vision, "num_frames", 8), *shape[1:])
        made = {name: torch.randn(shape)}
        if hasattr(config, "text_config"):
            made["input_ids"] = tokens
    elif name == "input_values":
        made = {name: torch.randn(2, 4000)}
    elif name == "input_features":
        made = {name: torch.randn(2, getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 64))}
    else:
        made = {name: tokens}
    if getattr(config, "is_encoder_decoder", False):
        made["decoder_input_ids"] = tokens
    return made


def hf(name):
    import torch
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    config = tiny_config(CONFIG_MAPPING[name])
    model = AutoModel.from_config(config).eval()
    size = sum(p.numel() for p in model.parameters())
    if size > 80_000_000:
        raise ValueError(f"{size / 1e6:.0f}M parameters")
    return model, inputs_of(model, config)


def torchvision(name):
    import torch
    import torchvision.models as models

    size = 299 if "inception" in name else 64
    return models.get_model(name, weights=None).eval(), {"x": torch.randn(2, 3, size if "vit" not in name else 224, size if "vit" not in name else 224)}


def timm(name):
    import timm as library
    import torch

    model = library.create_model(name, pretrained=False).eval()
    return model, {"x": torch.randn(1, *model.default_cfg["input_size"])}


def names(suite):
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


def tensors(output):
    from bench.models import flatten

    return {k: v for k, v in flatten(output).items()}


def measure(suite, name):
    """The row of one model; raises if eager cannot build or run it."""
    import torch

    model, inputs = globals()[suite](name)
    with torch.no_grad():
        torch.manual_seed(1)
        expected = tensors(model(**inputs))
    assert expected, "no tensor in the result"
    import copy

    row = {"model": name}
    reference = None
    try:
        double = copy.deepcopy(model).double()
        with torch.no_grad():
            torch.manual_seed(1)
            reference = tensors(double(**{k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}))
        del double
    except Exception:  # some models do not run in float64
        pass
    import framejit

    os.write(row_pipe, b"built\n")
    compiled = framejit.compile(model)
    with torch.no_grad():
        start = time.time()
        for call in range(2):
            torch.manual_seed(1)
            got = tensors(compiled(**inputs))
            row.setdefault("first_s", round(time.time() - start, 2))
            problem = differs(got, expected, reference)
            if problem:
                return {**row, "status": "wrong", "note": f"call {call + 1}: {problem}"}
    torch.manual_seed(1)
    with torch.no_grad():
        told = framejit.explain(model)(**inputs)
    ids = collections.Counter(reason.split("[")[1].split("]")[0] for reason in told.break_reasons if "[" in reason)
    return {**row, "status": "ok", "graphs": told.graph_count, "breaks": dict(ids), "ops": told.op_count, "why": told.break_reasons[:2]}


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


row_pipe = -1


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
            row = measure(suite, name)
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


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.width", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="?", default="hf", choices=["hf", "torchvision", "timm"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", metavar="FILE", help="append the rows to this file")
    parser.add_argument("--limit", type=int, help="only so many models")
    parser.add_argument("--seconds", type=float, default=60, help="for one model (default 60)")
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    import transformers  # noqa: F401 (before the forks)

    import bench  # noqa: F401 (makes torchvision importable)

    torch.set_num_threads(1)
    counts = collections.Counter()
    for name in (args.names or names(args.suite))[: args.limit]:
        row = isolated(args.suite, name, args.seconds)
        one = row["status"] == "ok" and row["graphs"] == 1 and not row["breaks"]
        counts[row["status"]] += 1
        counts["one graph"] += one
        breaks = " ".join(f"{k}x{n}" for k, n in row.get("breaks", {}).items())
        print(f"{name:32} {row['status']:10} {row.get('graphs', ''):>4} {row.get('first_s', ''):>6} {breaks} {row.get('note', '')[:150]}", flush=True)
        if args.json:
            with open(args.json, "a") as f:
                f.write(json.dumps(row) + "\n")
    print(dict(counts))


if __name__ == "__main__":
    sys.exit(main())
