"""Two gloo processes: steps under DistributedDataParallel are a single process's, and a checkpoint of torch.distributed goes round."""

import os
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo")
STEPS = 4


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batches():
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 8, generator=g), torch.randint(0, 4, (8,), generator=g)) for _ in range(STEPS)]


def train(model, optimizer, call, batches):
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(call(x), y).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def worker(rank, port, folder, how):
    import framejit
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.nn.parallel import DistributedDataParallel

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model, optimizer = make()
    # several buckets, so that communication may overlap
    if how == "inside":  # the compiled module is what DDP wraps
        call = DistributedDataParallel(framejit.compile(model), bucket_cap_mb=0.001)
    else:
        call = framejit.compile(DistributedDataParallel(model, bucket_cap_mb=0.001))
    mine = [(x[rank::2], y[rank::2]) for x, y in batches()]
    parameters = train(model, optimizer, call, mine)
    checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=os.path.join(folder, "saved"))
    other, other_optimizer = make()
    state = {"model": other.state_dict(), "optimizer": {**other_optimizer.state_dict(), "state": {k: {n: torch.zeros_like(t) for n, t in s.items()} for k, s in optimizer.state_dict()["state"].items()}}}
    checkpoint.load(state, checkpoint_id=os.path.join(folder, "saved"))
    other.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optimizer"])
    again = DistributedDataParallel(other)
    one = train(other, other_optimizer, framejit.compile(again), mine[:1])
    two = train(model, optimizer, call, mine[:1])
    torch.save({"parameters": parameters, "one": one, "two": two}, os.path.join(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.mark.parametrize("how", ["inside", "outside"])
def test_two_processes(how, tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    code = "import sys, test_distributed as t; t.worker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])"
    children = [subprocess.Popen([sys.executable, "-c", code, str(rank), str(port), str(tmp_path), how], env=environment, cwd=os.path.dirname(__file__),
                                 stderr=subprocess.PIPE, text=True) for rank in range(2)]  # fmt: skip
    errors = [child.communicate(timeout=150)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], errors
    model, optimizer = make()
    expected = train(model, optimizer, model, batches())
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for r in results:
        torch.testing.assert_close(r["parameters"], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(r["one"], r["two"])
    for a, b in zip(results[0]["parameters"], results[1]["parameters"]):
        assert torch.equal(a, b)
