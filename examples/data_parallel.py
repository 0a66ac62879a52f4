"""Two processes train one model, each on its half of the data (DistributedDataParallel over gloo). Both end with the same weights."""

import gc
import os
import socket

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

import framejit


def train(rank):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    fast = framejit.compile(DistributedDataParallel(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(100 + rank)
    for _ in range(60):
        x = torch.randn(64, 8, generator=draw)
        optimizer.zero_grad()
        loss = ((fast(x) - x.sum(1, keepdim=True).sin()) ** 2).mean()
        loss.backward()
        optimizer.step()
    return loss.item(), torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def work(rank, world, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=world)
    results.put((rank, *train(rank)))
    distributed.barrier()
    # The model is gone by now. Were it the last to hold the process group, torch would end the group's threads under the interpreter's
    # lock, which these threads may be waiting for.
    gc.collect()
    distributed.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = multiprocessing.get_context("spawn").SimpleQueue()
    workers = multiprocessing.spawn(work, (2, port, results), nprocs=2, join=False)
    (_, loss, weights), (_, other_loss, other_weights) = sorted((results.get() for _ in range(2)), key=lambda row: row[0])
    workers.join()
    print(f"loss of rank 0: {loss:.3f}, of rank 1: {other_loss:.3f}; largest difference of a weight: {abs(weights - other_weights).max()}")
    assert (weights == other_weights).all(), "gradients were averaged"
    assert loss < 0.5
