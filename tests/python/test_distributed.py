"""Two processes: steps under DistributedDataParallel are a single process's, and a checkpoint of torch.distributed goes round."""

import os
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo")
BACKEND = {"cpu": "gloo", "cuda": "nccl"}
STEPS = 4


def make(device="cpu"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batches(device="cpu"):
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 8, generator=g).to(device), torch.randint(0, 4, (8,), generator=g).to(device)) for _ in range(STEPS)]


def train(model, optimizer, call, batches):
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(call(x), y).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def worker(rank, port, folder, how, device):
    import framejit
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.nn.parallel import DistributedDataParallel

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(BACKEND[device], rank=rank, world_size=2)
    model, optimizer = make(device)
    # several buckets, so that communication may overlap
    if how == "inside":  # the compiled module is what DDP wraps
        call = DistributedDataParallel(framejit.compile(model), bucket_cap_mb=0.001)
    else:
        call = framejit.compile(DistributedDataParallel(model, bucket_cap_mb=0.001))
    mine = [(x[rank::2], y[rank::2]) for x, y in batches(device)]
    parameters = train(model, optimizer, call, mine)
    events = []

    def reduce(_, bucket):
        events.append("reduce")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0] / 2)

    call.register_comm_hook(None, reduce)
    loss = F.cross_entropy(call(mine[0][0]), mine[0][1])
    for node in nodes(loss):
        node.register_hook(lambda *_: events.append("part"))
    loss.backward()
    told = [*events]
    optimizer.zero_grad()
    if device == "cuda":
        torch.save({"parameters": parameters, "events": told}, os.path.join(folder, f"{rank}.pt"))
        dist.destroy_process_group()
        os._exit(0)
    checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=os.path.join(folder, "saved"))
    other, other_optimizer = make()
    state = {"model": other.state_dict(), "optimizer": {**other_optimizer.state_dict(), "state": {k: {n: torch.zeros_like(t) for n, t in s.items()} for k, s in optimizer.state_dict()["state"].items()}}}
    checkpoint.load(state, checkpoint_id=os.path.join(folder, "saved"))
    other.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optimizer"])
    again = DistributedDataParallel(other)
    one = train(other, other_optimizer, framejit.compile(again), mine[:1])
    two = train(model, optimizer, call, mine[:1])
    torch.save({"parameters": parameters, "one": one, "two": two, "events": told}, os.path.join(folder, f"{rank}.pt"))
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads drop the hook's callbacks when they come to it: torch aborts if the interpreter is gone by then


def run_two(how, folder, device="cpu"):
    """What the two processes have saved, and the parameters of one process that trains alone."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    code = "import sys, test_distributed as t; t.worker(int(sys.argv[1]), *sys.argv[2:])"
    children = [subprocess.Popen([sys.executable, "-c", code, str(rank), str(port), str(folder), how, device], env=environment, cwd=os.path.dirname(__file__),
                                 stderr=subprocess.PIPE, text=True) for rank in range(2)]  # fmt: skip
    errors = [child.communicate(timeout=150)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], errors
    model, optimizer = make(device)
    expected = train(model, optimizer, model, batches(device))
    results = [torch.load(folder / f"{rank}.pt", map_location=device) for rank in range(2)]
    for r in results:
        torch.testing.assert_close(r["parameters"], expected, rtol=1e-4, atol=1e-5)
        # one part of the backward pass for each bucket, whose communication begins before the next part does
        assert r["events"] == ["part", "reduce"] * 2
    for a, b in zip(results[0]["parameters"], results[1]["parameters"]):
        assert torch.equal(a, b)
    return results


@pytest.mark.parametrize("how", ["inside", "outside"])
def test_two_processes(how, tmp_path):
    for r in run_two(how, tmp_path):
        torch.testing.assert_close(r["one"], r["two"])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.out = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16, bias=False)
        self.out.weight = self.emb.weight  # the gradient comes from both ends
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.norm, self.unused = torch.nn.LayerNorm(8), torch.nn.Parameter(torch.ones(3))

    def forward(self, tokens, scale):
        x = self.emb(tokens) * scale
        x = x + self.attention(x, x, x)[0]
        for block in self.blocks:
            x = x + F.gelu(block(self.norm(x)))
        values, at = x.sort(-1)  # a call with two results
        return self.out(x), (values * (at + 1)).sum(-1)


@pytest.fixture
def buckets(monkeypatch):
    """As if DistributedDataParallel ran what is compiled, with small buckets."""
    import types

    from torch.nn.parallel import DistributedDataParallel

    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", types.SimpleNamespace(bucket_bytes_cap=300))


def nodes(*outputs):
    seen, todo, found = set(), [t.grad_fn for t in outputs], []
    while todo:
        n = todo.pop()
        if n is None or n in seen:
            continue
        seen.add(n)
        found += [n] if n.name() == "CompiledSegmentBackward" else []
        todo += [m for m, _ in n.next_functions]
    return found


def gradients(call, model, how):
    torch.manual_seed(3)
    parameters = [p for n, p in model.named_parameters() if n != "unused"]
    device = parameters[0].device
    tokens, scale = torch.randint(0, 16, (2, 5)).to(device), torch.tensor(1.5, dtype=torch.float64, device=device, requires_grad=True)
    a, b = call(tokens, scale)
    wanted = [scale, *parameters]
    if how == "all":
        return torch.autograd.grad(a.square().sum() + b.sum(), wanted)
    if how == "twice":
        first = torch.autograd.grad(a.square().sum(), wanted, retain_graph=True)
        return [*first, *torch.autograd.grad(a.square().sum() + b.sum(), wanted)]
    if how == "some":
        loss = a.square().sum()
        first = [g for p in parameters for g in torch.autograd.grad(loss, [p], retain_graph=True)]
        return [*first, *torch.autograd.grad(loss, wanted)]
    if how == "one result":
        return torch.autograd.grad(b.sum(), wanted, allow_unused=True)
    if how == "apart":
        first = torch.autograd.grad(b.sum(), wanted, retain_graph=True, allow_unused=True)
        return [*first, *torch.autograd.grad(a.sum(), wanted)]
    if how == "freed":
        a.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            a.sum().backward()
        return [scale.grad, *(p.grad for p in model.parameters())]
    first = torch.autograd.grad(a.square().sum(), wanted, create_graph=True)  # differentiated again
    return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), wanted)]


HOW = ["all", "twice", "some", "one result", "apart", "freed", "again"]


def check_parts(framejit, how, device):
    import copy

    torch.manual_seed(0)
    model = Net().double().to(device)
    compiled, eager = framejit.compile(model), copy.deepcopy(model)
    for _ in range(2):
        model.zero_grad(), eager.zero_grad()
        got, expected = gradients(compiled, model, how), gradients(eager, eager, how)
        assert [g is None for g in got] == [g is None for g in expected]
        torch.testing.assert_close([g for g in got if g is not None], [g for g in expected if g is not None], rtol=1e-8, atol=1e-7)
    parts = nodes(*compiled(torch.zeros(1, 3, dtype=torch.int64, device=device), torch.tensor(1.0, dtype=torch.float64, device=device)))
    assert len(parts) >= 4 and not framejit.cache_info(compiled)["notes"]


@pytest.mark.parametrize("how", HOW)
def test_a_backward_pass_in_parts(fresh, buckets, how):
    check_parts(fresh, how, "cpu")


def test_parts_on_several_threads(fresh, buckets):
    import threading

    torch.manual_seed(0)
    model = Net().double()
    compiled = fresh.compile(model)
    wanted = [p for n, p in model.named_parameters() if n != "unused"]
    losses = [compiled(torch.full((2, 5), k), torch.tensor(1.0, dtype=torch.float64))[0].square().sum() for k in range(4)]
    expected = [torch.autograd.grad(loss, wanted, retain_graph=True) for loss in losses]
    wrong = []

    def run(k):
        for _ in range(20):
            for mine, theirs in zip(torch.autograd.grad(losses[k % 2], wanted, retain_graph=True), expected[k % 2]):
                if not torch.equal(mine, theirs):
                    wrong.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not wrong


def test_memory_goes_part_by_part(fresh, buckets):
    import gc
    import weakref

    model = torch.nn.Sequential(*(m for _ in range(6) for m in (torch.nn.Linear(8, 8), torch.nn.GELU())))
    compiled, x = fresh.compile(model), torch.randn(2, 8) * 1
    compiled(x).sum().backward()
    y, seen = x * 1, []
    ref = weakref.ref(y)
    out = compiled(y)
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append("first layer"))
    model[10].weight.register_post_accumulate_grad_hook(lambda p: seen.append("last layer"))
    out.sum().backward()
    assert seen == ["last layer", "first layer"]
    del y, out
    gc.collect()
    assert ref() is None
