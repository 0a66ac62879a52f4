"""The GPU tables: kernels, launch path, models, training steps. `tools/dev gpu-bench`; needs a GPU.

Kernel time: a CUDA graph of 20 launches over rotating inputs, divided by 20, for every contender alike; called: wall clock
of calls from Python, one after the other. Launch path: host time of a call. Models: wall clock of back-to-back calls, synchronised at the end.
First: the first training step of a fresh process with empty caches, after a step of eager has opened the libraries.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time

import bench  # noqa: F401 (makes torchvision importable)
from bench import models

SHAPES = {"BertModel": (16, 128), "GPT2LMHeadModel": (8, 512), "LlamaModel": (8, 512), "ViTModel": (32, None), "ResNetModel": (32, None)}
TRAINING = {name: SHAPES[name] for name in ("BertModel", "GPT2LMHeadModel", "LlamaModel", "ViTModel")}
TIMM = ("resnet50", "mobilenetv3_large_100", "convnext_tiny")
rows = []
target = None  # file for the results: whole after every row


def show(case, metric, unit, **values):
    row = {"case": case, "metric": metric, "unit": unit, **{k: v if v is None else round(v, 5) for k, v in values.items()}}
    for other in ("eager", "peer", "reduce_overhead"):
        if values.get(other) and values.get("framejit"):
            row[f"vs_{other}"] = round(values[other] / values["framejit"], 3)
    rows.append(row)
    print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
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
    return {"device": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(), "versions": versions}


def median_of(function, seconds=0.25, least=5):
    import torch

    for _ in range(3):
        function()
    torch.cuda.synchronize()
    samples, begin = [], time.perf_counter()
    while len(samples) < least or time.perf_counter() - begin < seconds:
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        function()
        function()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) / 3)
    return statistics.median(samples)


def kernel_time(function, inputs, launches=20):
    """Microseconds on the device."""
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
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples = []
    for _ in range(12):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1000 / launches)
    del graph
    return statistics.median(samples[2:])


def called_time(function, inputs, calls=60):
    """Microseconds of a call, its kernels included."""
    import torch

    samples = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(calls):
            function(*inputs[i % len(inputs)])
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(samples[1:])


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
        known[size] = kernel_time(framejit.compile(lambda x: x + 1, dynamic=True), inputs)
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

    yield "eager", function
    yield "framejit", framejit.compile(function, dynamic=False)
    if peer:
        torch._dynamo.reset()
        yield "peer", torch.compile(function, dynamic=False)


def kernels(peer, only):
    import torch

    bandwidth = copy_bandwidth()
    show("copy 1 GiB", "GB/s", "GB/s", framejit=None, device=bandwidth)
    ratios = []
    with torch.no_grad():
        for name, function, inputs, size in kernel_cases():
            if only and only not in name:
                continue
            times, called = {}, {}
            for who, call in contenders(function, peer):
                try:
                    times[who] = kernel_time(call, inputs)
                    called[who] = called_time(call, inputs)
                except Exception as error:  # noqa: BLE001: a table with a hole says more than none
                    print(f"{name}: {who}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                    torch.cuda.synchronize()
            if "framejit" in times:
                times["share_of_copy"] = size / times["framejit"] / 1e3 / bandwidth
                times["copy_of_as_much"] = copy_time(size)
                times["share_of_that_copy"] = times["copy_of_as_much"] / times["framejit"]
            show(name, "kernel", "us", **times)
            show(name, "called", "us", **called)
            if "framejit" in called and "peer" in called:
                ratios.append(called["peer"] / called["framejit"])
    if ratios:
        show("called from Python, geometric mean", "vs_peer", "times", framejit=None, vs_peer=statistics.geometric_mean(ratios))


def launch_path(peer):
    import torch

    x, y = torch.randn(16, device="cuda"), torch.randn(16, device="cuda")
    times = {}
    with torch.no_grad():
        for who, call in contenders(lambda x, y: x * y + 1, peer):
            call(x, y), call(x, y)
            samples = []
            for _ in range(30):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(200):
                    call(x, y)
                samples.append((time.perf_counter() - start) / 200 * 1e6)
            torch.cuda.synchronize()
            times[who] = statistics.median(samples)
    show("x*y+1 on 16 floats", "host time of a call", "us", **times)


def make_model(name, batch, length):
    """(module, keyword arguments)."""
    import torch

    torch.manual_seed(0)
    if name not in TIMM:
        return models.build(name)[0], models.make_inputs(name, batch=batch, length=length)
    import timm

    return timm.create_model(name).eval(), {"x": torch.randn(batch, 3, 224, 224)}


def model_table(peer, only, dtypes):
    """Our calls for all models come before the first of torch.compile's, which patches torch.nn.Module when it is first used."""
    import gc

    import framejit
    import torch

    contenders = {"eager": lambda m: m, "framejit": framejit.compile}
    peers = {"peer": torch.compile, "reduce_overhead": lambda m: torch.compile(m, mode="reduce-overhead")}
    if peer != "all":
        del peers["reduce_overhead"]
    names = {**SHAPES, **dict.fromkeys(TIMM, (32, None))}
    cases = [(name, dtype, *names[name]) for dtype in dtypes for name in names if only in name]
    seen = {}
    for turn in [contenders, *([peers] if peer else [])]:
        for case in cases:
            name, dtype, batch, length = case
            times, first, peak = seen.setdefault(case, ({}, {}, {}))
            module, keywords = make_model(name, batch, length)
            keywords = {k: v.cuda().to(dtype) if v.is_floating_point() else v.cuda() for k, v in keywords.items()}
            module = module.to(dtype).cuda()
            with torch.no_grad():
                for label, make in turn.items():
                    if turn is peers:
                        torch._dynamo.reset()
                    call = make(module)
                    torch.cuda.synchronize()
                    torch.cuda.reset_peak_memory_stats()
                    start = time.perf_counter()
                    call(**keywords)
                    torch.cuda.synchronize()
                    first[label] = time.perf_counter() - start
                    times[label] = median_of(lambda: call(**keywords), seconds=0.5) * 1e3
                    peak[label] = torch.cuda.max_memory_allocated() / 2**20
                if turn is contenders:
                    peak["graphs"] = framejit.explain(module)(**keywords).graph_count
            short = f"{name} {str(dtype).removeprefix('torch.')} {batch}x{length or 224}"
            print(short, {k: round(v, 3) for k, v in times.items()}, flush=True)
            if turn is peers or not peer:
                show(short, "a call", "ms", **times)
                show(short, "first call", "s", **first)
                show(short, "peak memory", "MiB", **peak)
            del module, call
            gc.collect()
            torch.cuda.empty_cache()


def train_step(module, keywords, make, whole):
    """A step of AMP in bfloat16 with AdamW. whole: the step is compiled, not the module."""
    import torch

    call = module if whole else make(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5)

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
    """Modules in training mode, dropout included. Host: until the last of ten calls has returned, divided by ten. As in model_table,
    torch.compile comes last."""
    import copy
    import gc

    import framejit
    import torch

    contenders = {"eager": (lambda f: f, False), "framejit": (framejit.compile, False), "framejit_step": (framejit.compile, True)}
    seen = {}
    for turn in (contenders, *([{"peer": (torch.compile, False)}] if peer else [])):
        for name, (batch, length) in TRAINING.items():
            if only not in name:
                continue
            first_module, keywords = make_model(name, batch, length)
            first_module = first_module.train()
            keywords = {k: v.cuda() for k, v in keywords.items()}
            times, host, first, peak = seen.setdefault(name, ({}, {}, {}, {}))
            for label, (make, whole) in turn.items():
                gc.collect()
                torch.cuda.empty_cache()
                module, losses = copy.deepcopy(first_module).cuda(), []
                try:
                    torch.manual_seed(0)
                    step = train_step(module, keywords, make, whole)
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    losses.append(step())
                    torch.cuda.synchronize()
                    first[label] = time.perf_counter() - start
                    losses += [step() for _ in range(4)]
                    torch.cuda.reset_peak_memory_stats()
                    times[label] = median_of(step, seconds=1.0) * 1e3
                    samples = []
                    for _ in range(3):
                        torch.cuda.synchronize()
                        start = time.perf_counter()
                        for _ in range(10):
                            step()
                        samples.append((time.perf_counter() - start) * 100)
                    torch.cuda.synchronize()
                    host[label] = statistics.median(samples)
                    peak[label] = torch.cuda.max_memory_allocated() / 2**20
                except Exception as error:  # noqa: BLE001: a table with a hole says more than none
                    print(f"{name}: {label}: {type(error).__name__}: {str(error)[:500]}", flush=True)
                    torch.cuda.synchronize()
                print(name, label, [f"{x[label]:.3f}" for x in (times, host, first, peak) if label in x], [f"{x.item():.5f}" for x in losses], flush=True)
                module = step = None
                if turn is not contenders:
                    torch._dynamo.reset()
            if turn is contenders and peer:
                continue
            short = f"train {name} {batch}x{length or 224}"
            show(short, "a step", "ms", **times)
            show(short, "host time of a step", "ms", **host)
            show(short, "first step", "s", **first)
            show(short, "peak memory", "MiB", **peak)


def generate_table(peer):
    """Seconds a token of bfloat16, a prompt of 128 and 128 new ones; the static cache's peer in mode reduce-overhead."""
    import torch

    from bench import generate

    for row, _ in generate.rows(peer, "cuda", torch.bfloat16, prompt=128, tokens=128, rounds=(3, 3)):
        show(row["metric"], "generation", "ms", **{who: row[who] for who in ("eager", "framejit", "peer") if row[who]})


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
            show(f"train {name}", "first step, fresh process", "s", **seconds)


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
