"""An LSTM learns to add the two marked numbers of a sequence. Sequences have different lengths: one compiled version serves them all."""

import torch
from torch import nn

import framejit


class Adder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.lstm, self.out = nn.LSTM(2, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1]).squeeze(-1)


def batch(length, generator):
    numbers = torch.rand(64, length, generator=generator)
    marks = torch.zeros(64, length)
    marks.scatter_(1, torch.rand(64, length, generator=generator).topk(2).indices, 1.0)
    return torch.stack([numbers, marks], -1), (numbers * marks).sum(1)


torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
model = Adder()
fast = framejit.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
losses = []
for number in range(80):
    x, y = batch(3 + number % 3, generator)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(fast(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    x, y = batch(5, generator)
    error = (fast(x) - y).abs().mean().item()
    assert torch.allclose(fast(x), model(x), atol=1e-5)
print(f"squared error {losses[0]:.3f} -> {sum(losses[-10:]) / 10:.4f}; sums are off by {error:.3f}")
print(f"versions compiled: {framejit.cache_info(fast)['segments']}")
assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
