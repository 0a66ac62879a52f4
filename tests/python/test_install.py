"""Doors: torch.compile beside framejit and framejit in place of torch.compile."""

import framejit
import torch


class Made(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def test_calls_of_the_peer_do_not_make_captures():
    def f(x):
        return Made(3)(x) + 1

    peer = torch.compile(lambda x: x * 2, backend="eager")
    compiled, x = framejit.compile(f), torch.ones(3)
    with torch.no_grad():
        for _ in range(10):
            peer(x)
            assert torch.equal(compiled(x), f(x))
    info = framejit.cache_info(compiled)
    assert info["captures"] <= 2 and info["breaks"] == 0


def test_what_is_read_of_the_peer_still_counts():
    from torch._dynamo.mutation_guard import GenerationTracker

    peer = torch.compile(lambda x: x * 2, backend="eager")
    x = torch.ones(3)

    @framejit.compile
    def f(x):
        return x + GenerationTracker.generation

    for _ in range(4):
        peer(x)
        assert torch.equal(f(x), x + GenerationTracker.generation)
