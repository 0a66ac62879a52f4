"""Two processes: collectives of torch.distributed in compiled functions, models of DTensors, and FSDP2, as in eager."""

import os
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def whole(t):
    t = t.full_tensor() if hasattr(t, "full_tensor") else t
    return t.trigger_wait() if hasattr(t, "trigger_wait") else t


def one_graph(f, arguments):
    """A compiled function gives what it gives in eager, and is one graph."""
    import framejit

    compiled = framejit.compile(f)
    for args in arguments:
        for a, b in zip(f(*args), compiled(*args)):
            assert torch.equal(whole(a), whole(b))
    info = framejit.cache_info(compiled)
    assert (info["breaks"], info["outcomes"]["run"]["graph"]) == (0, len(arguments)), framejit.explain(f)(*arguments[0])


def collectives(rank):
    import torch.distributed as dist

    def f(x):
        y = x * 2
        dist.all_reduce(y)
        z = y + 1
        dist.all_reduce(z, op=dist.ReduceOp.MAX, async_op=True).wait()
        out = torch.empty(2 * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(out, z)
        s = torch.empty_like(x)
        dist.reduce_scatter_tensor(s, out, op=dist.ReduceOp.SUM, group=dist.group.WORLD)
        b = s * (dist.get_rank() + 1)
        dist.broadcast(b, src=1)
        rows = [torch.empty_like(b) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, b)
        return y, z, out, s, b, rows[1] * 3

    one_graph(f, [(torch.randn(3, 2, generator=torch.Generator().manual_seed(2 * i + rank)),) for i in range(3)])


def functional(rank):
    import torch.distributed as dist
    import torch.distributed._functional_collectives as fc

    def f(x):
        y = fc.all_reduce(x * 2, "sum", dist.group.WORLD)
        z = fc.all_gather_tensor(y + 1, 0, dist.group.WORLD)
        return z * 2, y, fc.reduce_scatter_tensor(z, "sum", 0, dist.group.WORLD)

    one_graph(f, [(torch.randn(3, 2, generator=torch.Generator().manual_seed(2 * i + rank)),) for i in range(3)])


def trained(make, batches, compiled):
    import framejit

    torch.manual_seed(0)
    model = make()
    call = framejit.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    told = []
    for x in batches:
        loss = (call(x) ** 2).sum()
        loss.backward()
        told += [whole(loss.detach()), *(whole(p.grad) for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    if compiled:
        told.append(framejit.cache_info(call))
    return [*told, *(whole(p.detach()) for p in model.parameters())] if not compiled else (told[:-1] + [whole(p.detach()) for p in model.parameters()], told[-1])


def compare(make, batches):
    expected = trained(make, batches, False)
    got, info = trained(make, batches, True)
    for a, b in zip(expected, got):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    return info


def dtensors(rank):
    from torch.distributed.tensor import Shard, distribute_module, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    batches = [distribute_tensor(torch.randn(4, 8, generator=torch.Generator().manual_seed(i)), mesh, [Shard(0)]) for i in range(4)]
    info = compare(lambda: distribute_module(Net(), mesh), batches)
    assert (info["captures"], info["breaks"], info["outcomes"]["run"]) == (1, 0, {"graph": 4})


def sharded(rank):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))

    def make():
        model = torch.nn.Sequential(Net(), Net())
        for layer in model:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    compare(make, [torch.randn(5, 8, generator=torch.Generator().manual_seed(2 * i + rank)) for i in range(4)])


def worker(rank, port, what):
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    globals()[what](rank)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


@pytest.mark.parametrize("what", ["collectives", "functional", "dtensors", "sharded"])
def test_two_processes(what):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    code = "import sys, test_collectives as t; t.worker(int(sys.argv[1]), *sys.argv[2:])"
    children = [subprocess.Popen([sys.executable, "-c", code, str(rank), str(port), what], env=environment, cwd=os.path.dirname(__file__), stderr=subprocess.PIPE, text=True)
                for rank in range(2)]  # fmt: skip
    try:
        errors = [child.communicate(timeout=150)[1] for child in children]
    finally:
        for child in children:
            child.kill()
    assert [child.returncode for child in children] == [0, 0], errors
