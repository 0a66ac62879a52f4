"""Two communities, known by one member each: messages along edges say to which of them every node belongs."""

import torch

import framejit


def community(nodes, edges, generator):
    """(source, target) of random edges, most of them inside one half of the nodes."""
    inside = torch.rand(edges, generator=generator) < 0.9
    source = torch.randint(0, nodes, (edges,), generator=generator)
    half = nodes // 2
    target = (torch.randint(0, half, (edges,), generator=generator) + torch.where(inside, source // half, 1 - source // half) * half).clamp_max(nodes - 1)
    return torch.cat([source, target]), torch.cat([target, source])


def spread(belief, known, source, target, degree):
    """One round: each node takes the mean of what its neighbours believe; the known ones stay."""
    for _ in range(4):
        heard = torch.zeros_like(belief).index_add(0, target, belief[source])
        belief = torch.where(known.abs() > 0, known, torch.tanh(heard / degree * 3.0))
    return belief


nodes = 400
generator = torch.Generator().manual_seed(0)
source, target = community(nodes, 3000, generator)
degree = torch.bincount(target, minlength=nodes).clamp_min(1).float()
known = torch.zeros(nodes)
known[0], known[-1] = 1.0, -1.0

fast = framejit.compile(spread)
belief = plain = known
for _ in range(10):
    belief, plain = fast(belief, known, source, target, degree), spread(plain, known, source, target, degree)
truth = torch.where(torch.arange(nodes) < nodes // 2, 1.0, -1.0)
right = (belief.sign() == truth).float().mean().item()
print(f"{nodes} nodes, {len(source)} edges, 2 known: {right:.1%} of the nodes are in their community")
print(f"graphs: {len(fast.graphs)}, kernels and calls: {fast.cache_info()['kernels']}, {fast.cache_info()['library_calls'] + fast.cache_info()['externs']}")
assert right > 0.9
torch.testing.assert_close(belief, plain, rtol=1e-4, atol=1e-4)
