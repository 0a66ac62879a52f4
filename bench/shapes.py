"""How many versions changing sizes cost: eight models over 50 random shapes each, with 0 and 1 among them.

    python -m bench.shapes [MODEL...] [--train] [--seed N] [--shapes N] [--speed] [--peer] [--json FILE]

Models: bert gpt2 llama t5 resnet convnext unet gnn, with small configs and random weights. One row a model: compiles, runs of a graph and calls
that ran as written (with something empty), shapes for which eager raises (and so must we), shapes with a wrong result (of more than twice eager's
error, also with other last bits); below it the guard that each new version is for. Versions are counted in three: two (one for the sizes seen
first, one for all others), one more for each other way through the branches that the program itself takes on sizes, and the rest, which are ours.
That a guard is a branch of the program is read in its source: the line that the guard names lies in a condition or a comparison. Nothing is left to
Python for being faster there. Exit status 1 if a result is wrong.

--train: the shapes run forward and backward in train mode without dropout; gradients of all parameters are compared.
--speed: the version that ran all shapes beside one of constant sizes (dynamic=False, compiled for that shape alone) and eager, over some of the
shapes with nothing empty: medians of turns in which each is called in another order, on one thread, by the time that the thread ran. Figures are the
time of the other over ours: the geometric mean, and the least of all shapes. The goals are .952 for constant sizes and 1 for the peer.
--peer: with --speed, torch.compile(dynamic=True) too, after it has seen every shape.
--json FILE: appends the rows; bench/results/shapes.jsonl has those of inference with --speed, and of training.
"""

import argparse
import ast
import copy
import functools
import math
import os
import random
import re
import statistics
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F

from . import measure
from .width import differs, tensors, wide


def text(model_class, config_class, **settings):
    def build():
        import transformers

        config = getattr(transformers, config_class)(**settings)
        return getattr(transformers, model_class)(config)

    return build


def tokens(batch, length):
    return {"input_ids": torch.randint(3, 500, (batch, length))}


def pairs(batch, length):
    return {"input_ids": torch.randint(3, 500, (batch, length)), "decoder_input_ids": torch.randint(3, 500, (batch, max(1, length // 2)))}


def pictures(batch, height, width):
    return {"x": torch.randn(batch, 3, height, width)}


def meshes(nodes, edges, graphs):
    def some(n, low):
        return torch.randint(0, max(low, 1), (n if low else 0,))

    return {"x": torch.randn(nodes, 16), "edges": torch.stack([some(edges, nodes), some(edges, nodes)]), "graph": some(nodes, graphs), "graphs": graphs}


class Net(nn.Module):
    """A model of torchvision by the argument name of the others."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def resnet():
    import torchvision

    return Net(torchvision.models.resnet18(weights=None, num_classes=10))


def convnext():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return Net(ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, 64, 1), CNBlockConfig(64, None, 1)], num_classes=10))


class UNet(nn.Module):
    """Three levels; what is scaled up takes the size of the level that it meets, so that every picture will do."""

    def __init__(self, widths=(8, 16, 32)):
        super().__init__()
        ins = (3, *widths)
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip(ins, widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.join = nn.ModuleList(self.block(2 * a, a) for a in widths[:-1])
        self.last = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())

    def forward(self, x):
        kept = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2, ceil_mode=True) if level else x)
            kept.append(x)
        for level in reversed(range(len(self.up))):
            x, meets = self.up[level](x), kept[level]
            x = F.pad(x, (0, meets.size(3) - x.size(3), 0, meets.size(2) - x.size(2)))
            x = self.join[level](torch.cat([meets, x], dim=1))
        return self.last(x)


class GNN(nn.Module):
    """Three rounds of messages along edges, means over neighbours, then a mean over each graph."""

    def __init__(self, width=32):
        super().__init__()
        self.first = nn.Linear(16, width)
        self.message = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.last = nn.Linear(width, 4)

    def forward(self, x, edges, graph, graphs):
        h = self.first(x)
        source, target = edges[0], edges[1]
        degree = torch.zeros(h.size(0), 1).index_add(0, target, torch.ones(target.size(0), 1)).clamp(min=1)
        for message, norm in zip(self.message, self.norm):
            m = F.gelu(message(torch.cat([h[source], h[target]], dim=-1)))
            h = norm(h + torch.zeros_like(h).index_add(0, target, m) / degree)
        count = torch.zeros(graphs, 1).index_add(0, graph, torch.ones(h.size(0), 1)).clamp(min=1)
        return self.last(h.new_zeros(graphs, h.size(1)).index_add(0, graph, h) / count)


LAYERS = dict(vocab_size=512, num_hidden_layers=2, hidden_size=128, num_attention_heads=4, intermediate_size=256)
# name -> (makes the model, arguments from sizes, the range of each size)
MODELS = {
    "bert": (text("BertModel", "BertConfig", **LAYERS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), tokens, [(0, 6), (0, 64)]),
    "gpt2": (
        text("GPT2LMHeadModel", "GPT2Config", vocab_size=512, n_layer=2, n_embd=128, n_head=4, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
        tokens, [(0, 6), (0, 64)],
    ),
    "llama": (text("LlamaModel", "LlamaConfig", **LAYERS, num_key_value_heads=2, use_cache=False), tokens, [(0, 6), (0, 64)]),
    "t5": (
        text("T5Model", "T5Config", vocab_size=512, num_layers=2, d_model=128, d_kv=32, d_ff=256, num_heads=4, use_cache=False, dropout_rate=0.0),
        pairs, [(0, 6), (0, 64)],
    ),
    "resnet": (resnet, pictures, [(0, 4), (1, 80), (1, 80)]),
    "convnext": (convnext, pictures, [(0, 4), (16, 80), (16, 80)]),
    "unet": (UNet, pictures, [(0, 4), (1, 48), (1, 48)]),
    "gnn": (GNN, meshes, [(0, 60), (0, 200), (1, 8)]),
}  # fmt: skip


def sizes_of(name, count, seed):
    """Random tuples of sizes: two with large sizes first, then any; a third of the sizes of the rest are 0 or 1 where the range has them."""
    draw = random.Random(f"{name} {seed}")
    ranges = MODELS[name][2]
    found = []
    while len(found) < count:
        found.append(tuple(draw.randint(0, 1) if low < 2 and len(found) > 1 and draw.random() < 1 / 3 else draw.randint(max(2, low), high) for low, high in ranges))
        found[-1] = tuple(max(low, v) for v, (low, _) in zip(found[-1], ranges))
    return found


def seeded(make, *sizes):
    torch.manual_seed(sum((i + 1) * s for i, s in enumerate(sizes)))
    return make(*sizes)


def loss_of(results):
    return sum((t * torch.linspace(-1, 1, max(1, t.numel()), dtype=t.dtype)[: t.numel()].view(t.shape)).sum() for t in results.values() if t.requires_grad)


def outcome(model, call, inputs, train):
    """{name: tensor} of results, in training also of the gradients of all parameters; or the type of the error."""
    try:
        if not train:
            with torch.no_grad():
                return tensors(call(**copy.deepcopy(inputs)))
        model.zero_grad()
        results = tensors(call(**copy.deepcopy(inputs)))
        loss_of(results).backward()
        # As one vector: some gradients are zero but for rounding (of a key's bias, say).
        grads = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        return {**{n: t.detach() for n, t in results.items()}, "gradients": grads}
    except Exception as error:  # what eager cannot do, must fail here, too
        return error


def ill(model, inputs, train, got, reference, tries=16):
    """Is what seems wrong within twice eager's largest error with other last bits of the parameters and inputs? Statistics of three numbers are so."""
    if isinstance(reference, Exception):
        return False
    torch.manual_seed(0)

    def other(t):
        return t * (1 + torch.finfo(t.dtype).eps / 2 * torch.randint(-1, 2, t.shape)) if torch.is_tensor(t) and t.is_floating_point() else t

    worst = {}
    for _ in range(tries):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for p in moved.parameters():
                p.copy_(other(p))
        for name, t in outcome(moved, moved, {n: other(t) for n, t in inputs.items()}, train).items():
            if t.is_floating_point() and t.numel():
                error = float((t.double() - reference[name]).abs().max())
                worst[name] = max(worst.get(name, (0.0, t)), (error, t), key=lambda w: w[0])
    return not differs(got, {n: worst[n][1] if n in worst else t for n, t in got.items()}, reference)


class Recompiles:
    """The text of the channels `recompiles` and `guards` while this is entered, in `lines`."""

    def __enter__(self):
        sys.stderr.flush()
        self.file = tempfile.TemporaryFile(mode="w+")
        self.stderr = os.dup(2)
        os.dup2(self.file.fileno(), 2)
        return self

    def __exit__(self, *_):
        os.dup2(self.stderr, 2)
        os.close(self.stderr)
        self.file.seek(0)
        self.lines = self.file.read().splitlines()
        self.file.close()


@functools.cache
def conditions(file):
    """[(first line, last line)] of all conditions and comparisons in a file of Python."""
    with open(file, encoding="utf-8") as source:
        nodes = list(ast.walk(ast.parse(source.read())))
    asked = [n.test for n in nodes if isinstance(n, (ast.If, ast.IfExp, ast.While, ast.Assert))]
    asked += [test for n in nodes if isinstance(n, ast.comprehension) for test in n.ifs]
    asked += [n for n in nodes if isinstance(n, (ast.BoolOp, ast.Compare))]
    return [(n.lineno, n.end_lineno) for n in asked]


def ways(lines):
    """[(place, answers)] of the versions that a log of the channel `guards` tells of: what the program's own branches on sizes said."""
    found = []
    for line in lines:
        if capture := re.search(r"framejit guards: capture of (.*): \d+ instructions, ok", line):
            found.append((capture[1], set()))
        elif found and (guard := re.search(r"framejit guards: sizes: .* (==|!=|<|<=) .*  # (.*):(\d+)$", line)):
            relation, file, at = guard[1], guard[2], int(guard[3])
            if any(first <= at <= last for first, last in conditions(file)):
                found[-1][1].add((relation, file, at))
    return [(place, frozenset(answers)) for place, answers in found]


def counted(found):
    """{"branches": versions for branches of the program, "ours": versions beyond these and two}, of the versions that ways() found."""
    branches = ours = 0
    for place in {p for p, _ in found}:
        _, *rest = [answers for p, answers in found if p == place]
        branches += max(0, len(set(rest)) - 1)
        ours += len(rest) - len(set(rest))
    return {"branches": branches, "ours": ours}


def versions(name, train, count, seed):
    """(row, the compiled function, model)."""
    import framejit

    make, arguments, _ = MODELS[name]
    torch.manual_seed(0)
    model = make().train(train)
    exact = copy.deepcopy(model).double()
    ours = copy.deepcopy(model)
    compiled = framejit.compile(ours)
    wrong, raised, why, found = [], 0, [], []
    for sizes in sizes_of(name, count, seed):
        inputs = seeded(arguments, *sizes)
        expected, reference = outcome(model, model, inputs, train), outcome(exact, exact, wide(inputs), train)
        with Recompiles() as log:
            got = outcome(ours, compiled, inputs, train)
        found += ways(log.lines)
        why += [f"{sizes}: {re.sub(r'/[^ ]*/site-packages/', '', line.partition('): ')[2])}" for line in log.lines if "recompiling" in line]
        if isinstance(expected, Exception):
            raised += 1
            if type(got) is not type(expected):
                wrong.append(f"{sizes}: eager raises {type(expected).__name__}, compiled {type(got).__name__}: {got if isinstance(got, Exception) else ''}")
        elif isinstance(got, Exception):
            wrong.append(f"{sizes}: raises {type(got).__name__}: {got}")
        elif (problem := differs(got, expected, None if isinstance(reference, Exception) else reference)) and not ill(model, inputs, train, got, reference):
            wrong.append(f"{sizes}: {problem}")
    info = framejit.cache_info(compiled)
    row = {"model": name, "train": train, "shapes": count, "compiles": info["outcomes"].get("compile", {}), "runs": info["outcomes"].get("run", {}),
           "raised": raised, "wrong": wrong, "why": why, "notes": info["notes"], **counted(found)}  # fmt: skip
    return row, compiled, ours


def medians(contenders, seconds=1.0, least=15):
    """{name: median seconds of a call}: turns in random order, after a call that brings back what the one before has displaced."""
    draw = random.Random(0)
    samples = {name: [] for name in contenders}
    begin = time.perf_counter()
    while len(samples["framejit"]) < least or time.perf_counter() - begin < seconds:
        for name, call in draw.sample(sorted(contenders.items()), len(contenders)):
            call()
            start = time.thread_time()
            for _ in range(3):
                call()
            samples[name].append((time.thread_time() - start) / 3)
    return {name: statistics.median(of) for name, of in samples.items()}


def speed(name, compiled, model, train, count, seed, peer):
    """{contender: [geometric mean, least] of its time over ours, and under "shapes" the ratios} over six shapes of which no size is 0."""
    import framejit

    _, arguments, _ = MODELS[name]
    shapes = [s for s in sizes_of(name, count, seed) if min(s) > 0 and not isinstance(outcome(model, model, seeded(arguments, *s), train), Exception)]
    theirs = None
    if peer:
        torch._dynamo.reset()
        other = copy.deepcopy(model)
        theirs = torch.compile(other, dynamic=True)
        for s in shapes:
            outcome(other, theirs, seeded(arguments, *s), train)
    ratios, of_shapes = {}, {}
    for s in sorted(shapes, key=math.prod)[:: max(1, len(shapes) // 6)][:6]:
        inputs = seeded(arguments, *s)
        fixed = copy.deepcopy(model)
        static = framejit.compile(fixed, dynamic=False)

        def call(f, m):
            return lambda: outcome(m, f, inputs, train)

        contenders = {"framejit": call(compiled, model), "constant": call(static, fixed), "eager": call(model, model)}
        if theirs is not None:
            contenders["peer"] = call(theirs, other)
        for _ in range(12):
            for f in contenders.values():
                f()
        times = medians(contenders)
        of_shapes[str(s)] = {n: round(t / times["framejit"], 3) for n, t in times.items() if n != "framejit"}
        for n, ratio in of_shapes[str(s)].items():
            ratios.setdefault(n, []).append(ratio)
    return {n: [round(statistics.geometric_mean(r), 3), min(r)] for n, r in ratios.items()} | {"shapes": of_shapes}


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.shapes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--train", action="store_true", help="forward and backward")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shapes", type=int, default=50, help="how many (default 50)")
    parser.add_argument("--speed", action="store_true", help="time beside constant sizes and eager")
    parser.add_argument("--peer", action="store_true", help="with --speed: torch.compile(dynamic=True) too")
    parser.add_argument("--json", metavar="FILE", help="append the rows to this file")
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import framejit

    import bench  # noqa: F401 (makes torchvision importable)

    framejit.config.log = "recompiles,guards"
    framejit.config.leave = False
    torch.set_num_threads(1 if args.speed else torch.get_num_threads())
    wrong = 0
    rows = []
    print(f"{'model':10}" + "".join(f"{c:>13}" for c in ("compiles", "for branches", "ours", "graph", "python", "raise", "wrong", "constant", "eager", "peer")))
    for name in args.model or MODELS:
        row, compiled, model = versions(name, args.train, args.shapes, args.seed)
        if args.speed:
            row["speed"] = speed(name, compiled, model, args.train, args.shapes, args.seed, args.peer)
        cells = [row["compiles"].get("ok", 0), row["branches"], row["ours"], row["runs"].get("graph", 0), row["runs"].get("python", 0), row["raised"], len(row["wrong"])]
        cells += ["{} {}".format(*row["speed"][n]) if n in row.get("speed", {}) else "" for n in ("constant", "eager", "peer")]
        print(f"{name:10}" + "".join(f"{cell!s:>13}" for cell in cells), flush=True)
        for line in row["why"] + row["wrong"] + row["notes"] + [f"{s}: {r}" for s, r in row.get("speed", {}).get("shapes", {}).items()]:
            print("    " + line[:300], flush=True)
        wrong += len(row["wrong"])
        rows.append(row)
    if args.json:
        measure.append(args.json, rows, f"python -m bench.shapes{' --train' if args.train else ''}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
