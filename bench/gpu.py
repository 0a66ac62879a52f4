"""The GPU tables: kernels, launch path, models, training steps. `tools/dev gpu-bench`; needs a GPU.

Contenders take turns. Kernel time: a CUDA graph of 20 launches over rotating inputs, divided by 20, for every contender alike; called: wall clock
of calls from Python, one after the other. Launch path: host time of a call. Models, training: wall clock of back-to-back calls, synchronised at the end.
First: the first training step of a fresh process with empty caches, after a step of eager has opened the libraries.
"""

import argparse
import datetime
import json
import re
import statistics
import subprocess
import sys
import time

import bench  # noqa: F401 (makes torchvision importable)
from bench import measure, models

SHAPES = {"BertModel": (16, 128), "GPT2LMHeadModel": (8, 512), "LlamaModel": (8, 512), "ViTModel": (32, None), "ResNetModel": (32, None)}
TRAINING = {name: SHAPES[name] for name in ("BertModel", "GPT2LMHeadModel", "LlamaModel", "ViTModel")}
TIMM = ("resnet50", "mobilenetv3_large_100", "convnext_tiny")
rows = []
target = None  # file for the results: whole after every row


def show(case, metric, unit, times, **more):
    """A row (bench/measure.py): times in `unit` already, numbers or (number, spread)."""
    known = {who: value if isinstance(value, tuple) else (value, None) for who, value in times.items() if value is not None}
    row = {"case": case, "metric": metric, "unit": unit, **{who: round(value, 5) for who, (value, _) in known.items()}}
    row |= {name: value if isinstance(value, str) else round(value, 5) for name, value in more.items()}
    for who, (value, _) in known.items():
        if who != "framejit" and known.get("framejit", (0,))[0]:
            row[f"vs_{who}"] = round(value / known["framejit"][0], 3)
    spread = {who: round(noise, 4) for who, (_, noise) in known.items() if noise is not None}
    rows.append(row | ({"spread": spread} if spread else {}))
    print("  ".join(f"{k} {v}" for k, v in rows[-1].items()), flush=True)
    if target:
        with open(target, "w", encoding="utf-8") as out:
            json.dump({**about(), "rows": rows}, out, indent=1)


def about():
    import torch

    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for package in ("triton", "transformers", "timm"):
        try:
            versions[package] = __import__(package).__version__
        except ImportError:
            pass
    return {
        "device": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(), "commit": measure.commit(),
        "command": re.sub(r" --json \S+", "", " ".join(["tools/dev gpu-bench", *sys.argv[1:]])), "versions": versions,
    }  # fmt: skip


def called(contenders, seconds):
    """{name: (milliseconds a call, spread)}: batches of calls from Python, by turns, each synchronised at its end."""
    import torch

    times = measure.interleaved(contenders, seconds, wait=torch.cuda.synchronize)
    return {who: (value * 1e3, spread) for who, (value, spread) in times.items()}


def captured(function, inputs, launches=20):
    """A CUDA graph of so many calls over rotating inputs."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for x in inputs:
            function(*x)
            function(*x)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            function(*inputs[i % len(inputs)])
    return graph


def kernel_times(functions, inputs, launches=20):
    """{name: (microseconds of a call on the device, spread)}: graphs of 20 calls, replayed by turns."""
    import torch

    graphs = {who: captured(function, inputs, launches) for who, function in functions.items()}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples = {who: [] for who in graphs}
    for turn in range(13):
        for who, graph in graphs.items():
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn > 1:
                samples[who].append(begin.elapsed_time(end) * 1000 / launches)
    return {who: measure.summary(values) for who, values in samples.items()}


def copy_bandwidth():
    """GB/s, read and written. Not in a CUDA graph, where a copy is another, slower operation."""
    import torch

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    to = torch.empty_like(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples = []
    for _ in range(8):
        begin.record()
        for _ in range(10):
            to.copy_(source)
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) / 10)
    return 2 * (1 << 30) / statistics.median(samples[2:]) / 1e6


def copy_time(size, known={}):  # noqa: B006 (kept for other cases of that size)
    """Microseconds of a kernel that reads and writes so many bytes in all, one addition a number: what a launch, its start and its end leave of the bandwidth."""
    import framejit
    import torch

    if size not in known:
        inputs = [(torch.randn(size // 8, device="cuda"),) for _ in range(min(8, max(2, (400 << 20) // size)))]
        known[size] = kernel_times({"copy": framejit.compile(lambda x: x + 1, dynamic=True)}, inputs)["copy"][0]
    return known[size]


def kernel_cases():
    import torch

    F = torch.nn.functional

    def randn(*shape, dtype):
        return torch.randn(shape, device="cuda", dtype=dtype)

    for dtype, name in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        n = torch.finfo(dtype).bits // 8
        yield f"pointwise chain 16M {name}", lambda x, y: torch.tanh(x * y + 1) * torch.sigmoid(x), [(randn(1 << 24, dtype=dtype), randn(1 << 24, dtype=dtype)) for _ in range(3)], 3 * n << 24
        yield f"pointwise chain 4M {name}", lambda x, y: torch.tanh(x * y + 1) * torch.sigmoid(x), [(randn(1 << 22, dtype=dtype), randn(1 << 22, dtype=dtype)) for _ in range(8)], 3 * n << 22
        w, b = randn(4096, dtype=dtype), randn(4096, dtype=dtype)
        big = [(randn(4096, 4096, dtype=dtype),) for _ in range(4)]
        yield f"gelu+layernorm+residual 4096x4096 {name}", lambda x: F.layer_norm(F.gelu(x) + x, (4096,), w, b), big, 2 * n << 24
        yield f"rmsnorm 4096x4096 {name}", lambda x: (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w, big, 2 * n << 24
        w2, b2 = randn(1024, dtype=dtype), randn(1024, dtype=dtype)
        yield f"gelu+layernorm+residual 4096x1024 {name}", lambda x: F.layer_norm(F.gelu(x) + x, (1024,), w2, b2), [(randn(4096, 1024, dtype=dtype),) for _ in range(12)], 2 * n << 22
        yield f"softmax 16384x1024 {name}", lambda x: torch.softmax(x, -1), [(randn(16384, 1024, dtype=dtype),) for _ in range(4)], 2 * n << 24
        yield f"softmax 4096x4096 {name}", lambda x: torch.softmax(x, -1), big, 2 * n << 24
        yield f"softmax 512x32768 {name}", lambda x: torch.softmax(x, -1), [(randn(512, 32768, dtype=dtype),) for _ in range(4)], 2 * n << 24
        yield f"softmax 128x262144 {name}", lambda x: torch.softmax(x, -1), [(randn(128, 262144, dtype=dtype),) for _ in range(3)], 2 * n << 25
        target = torch.randint(0, 32000, (2048,), device="cuda")
        yield f"cross-entropy 2048x32000 {name}", lambda x: F.cross_entropy(x, target), [(randn(2048, 32000, dtype=dtype),) for _ in range(3)], n * 2048 * 32000
        yield f"column sum 4096x4096 {name}", lambda x: x.sum(0), big, n << 24
        yield f"full sum 16M {name}", lambda x: x.sum(), big, n << 24
        yield f"transpose add 4096x4096 {name}", lambda x: x.t() + x, big, 2 * n << 24


def contenders(function, peer):
    import framejit
    import torch

    made = {"eager": function, "framejit": framejit.compile(function, dynamic=False)}
    if peer:
        torch._dynamo.reset()
        made["peer"] = torch.compile(function, dynamic=False)
    return made


def kernels(peer, only):
    import torch

    bandwidth = copy_bandwidth()
    show("copy 1 GiB", "GB/s", "GB/s", {"device": bandwidth})
    ratios = []
    with torch.no_grad():
        for name, function, inputs, size in kernel_cases():
            if only and only not in name:
                continue
            compiled = contenders(function, peer)
            times = kernel_times(compiled, inputs)
            bound = {"share_of_copy": size / times["framejit"][0] / 1e3 / bandwidth, "copy_of_as_much": copy_time(size)}
            show(name, "kernel", "us", times, **bound, share_of_that_copy=bound["copy_of_as_much"] / times["framejit"][0])
            turns = {who: (lambda call=call: [call(*x) for x in inputs]) for who, call in compiled.items()}
            from_python = {who: (1e3 * ms / len(inputs), spread) for who, (ms, spread) in called(turns, 0.2).items()}
            show(name, "called", "us", from_python)
            if peer:
                ratios.append(from_python["peer"][0] / from_python["framejit"][0])
    if ratios:
        show("called from Python, geometric mean", "vs_peer", "times", {}, vs_peer=statistics.geometric_mean(ratios))


def launch_path(peer):
    import torch

    x, y = torch.randn(16, device="cuda"), torch.randn(16, device="cuda")
    samples = {}
    with torch.no_grad():
        compiled = contenders(lambda x, y: x * y + 1, peer)
        for call in compiled.values():
            call(x, y), call(x, y)
        for _ in range(30):
            for who, call in compiled.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(200):
                    call(x, y)
                samples.setdefault(who, []).append((time.perf_counter() - start) / 200 * 1e6)
    show("x*y+1 on 16 floats", "host time of a call", "us", {who: measure.summary(values) for who, values in samples.items()})


def make_model(name, batch, length):
    """(module, keyword arguments)."""
    import torch

    torch.manual_seed(0)
    if name not in TIMM:
        return models.build(name)[0], models.make_inputs(name, batch=batch, length=length)
    import timm

    return timm.create_model(name).eval(), {"x": torch.randn(batch, 3, 224, 224)}


def begun(label, first, peak, call):
    """Notes the time of the first call and the memory that four calls need, beside what was there before them."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    first[label] = time.perf_counter() - start
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    peak[label] = (torch.cuda.max_memory_allocated() - before) / 2**20


def model_table(peer, only, dtypes):
    import gc

    import framejit
    import torch

    makes = {"eager": lambda m: m, "framejit": framejit.compile}
    if peer:
        # Weights never change here, so the peer may freeze them; ours are kept in another form on the CPU only.
        makes["peer"] = torch.compile
    if peer == "all":
        makes["reduce_overhead"] = lambda m: torch.compile(m, mode="reduce-overhead")
    names = {**SHAPES, **dict.fromkeys(TIMM, (32, None))}
    for name, dtype in [(name, dtype) for dtype in dtypes for name in names if only in name]:
        batch, length = names[name]
        module, keywords = make_model(name, batch, length)
        keywords = {k: v.cuda().to(dtype) if v.is_floating_point() else v.cuda() for k, v in keywords.items()}
        module = module.to(dtype).cuda()
        weights = torch.cuda.memory_allocated() / 2**20
        first, peak, calls = {}, {}, {}
        torch._dynamo.reset()
        with torch.no_grad():
            for label, make in makes.items():
                compiled = make(module)
                calls[label] = lambda compiled=compiled: compiled(**keywords)  # noqa: B023
                begun(label, first, peak, calls[label])
            graphs = framejit.explain(module)(**keywords).graph_count
            times = called(calls, 1.0)
        short = f"{name} {str(dtype).removeprefix('torch.')} {batch}x{length or 224}"
        show(short, "a call", "ms", times)
        show(short, "first call", "s", first)
        show(short, "peak memory", "MiB", {who: value + weights for who, value in peak.items()}, graphs=graphs)
        del module, compiled, calls
        gc.collect()
        torch.cuda.empty_cache()


def train_step(module, keywords, make, whole):
    """A step of AMP in bfloat16 with AdamW. whole: the step is compiled, not the module."""
    import torch

    call = module if whole else make(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)  # for every contender

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = call(**keywords)
        loss = sum((t * t).mean() for t in models.flatten(out).values() if t.requires_grad)
        loss.backward()
        optimizer.step()
        return loss

    return make(step) if whole else step


def training_table(peer, only):
    """Modules in training mode, dropout included, each contender with a copy of the model."""
    import copy
    import gc

    import framejit
    import torch

    makes = {"eager": (lambda f: f, False), "framejit": (framejit.compile, False), "framejit_step": (framejit.compile, True)}
    if peer:
        makes["peer"] = (torch.compile, False)
    for name, (batch, length) in TRAINING.items():
        if only not in name:
            continue
        original, keywords = make_model(name, batch, length)
        original, keywords = original.train(), {k: v.cuda() for k, v in keywords.items()}
        first, peak, steps, losses = {}, {}, {}, {}
        torch._dynamo.reset()
        for label, (make, whole) in makes.items():
            torch.manual_seed(0)
            before = torch.cuda.memory_allocated() / 2**20
            steps[label] = train_step(copy.deepcopy(original).cuda(), keywords, make, whole)
            begun(label, first, peak, steps[label])
            peak[label] += torch.cuda.memory_allocated() / 2**20 - before  # weights and the optimizer's state, which stay
            losses[label] = [round(steps[label]().item(), 5) for _ in range(2)]
        print(name, losses, flush=True)
        short = f"train {name} {batch}x{length or 224}"
        show(short, "a step", "ms", called(steps, 3.0))
        show(short, "first step", "s", first)
        show(short, "peak memory", "MiB", peak)
        steps = None
        gc.collect()
        torch.cuda.empty_cache()


def generate_table(peer):
    """Seconds a token of bfloat16, a prompt of 128 and 128 new ones; the static cache's peer in mode reduce-overhead."""
    import torch

    from bench import generate

    for row in generate.rows(peer, "cuda", torch.bfloat16, prompt=128, tokens=128, rounds=(3, 3)):
        times = {who: (row[who], row["spread"][who]) for who in ("eager", "framejit", "peer") if who in row}
        show(row["metric"], "generation", "ms", times, **({"note": row["note"]} if "note" in row else {}))


def first_step(name, who):
    """Seconds, of this process."""
    import copy

    import framejit
    import torch

    module, keywords = make_model(name, *TRAINING[name])
    module, keywords, seconds = module.train(), {k: v.cuda() for k, v in keywords.items()}, {}
    makes = {"eager": lambda f: f, "framejit": framejit.compile, "peer": torch.compile}
    makes[who](lambda x: x + 1)(torch.ones(2, device="cuda"))  # imports
    for label in ("eager", who):
        step = train_step(copy.deepcopy(module).cuda(), keywords, makes[label], False)
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds[label] = time.perf_counter() - start
    return seconds


def first_table(peer, only):
    from bench import cold

    for name in TRAINING:
        seconds = {}
        for who in ("framejit", *(["peer"] if peer else [])) if only in name else ():
            with cold.empty_caches() as env:
                command = [sys.executable, "-m", "bench.gpu", "--first-step", name, who]
                done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, check=True)
            seconds.update(json.loads(done.stdout.splitlines()[-1]))
        if seconds:
            show(f"train {name}", "first step, fresh process", "s", seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="kernels, launch, models, training, first, generate; all of them if none is named")
    parser.add_argument("--peer", nargs="?", const="default", help="torch.compile, too; 'all': its reduce-overhead mode as well")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--first-step", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.first_step:
        return print(json.dumps(first_step(*arguments.first_step)))
    import torch

    global target
    target = arguments.json
    parts = arguments.parts or ["launch", "kernels", "models", "training", "first", "generate"]
    if "launch" in parts:
        launch_path(arguments.peer)
    if "kernels" in parts:
        kernels(arguments.peer, arguments.only)
    if "models" in parts:
        model_table(arguments.peer, arguments.only, [getattr(torch, t) for t in arguments.dtypes.split(",")])
    if "training" in parts:
        training_table(arguments.peer, arguments.only)
    if "first" in parts:
        first_table(arguments.peer, arguments.only)
    if "generate" in parts:
        generate_table(arguments.peer)


if __name__ == "__main__":
    main()
