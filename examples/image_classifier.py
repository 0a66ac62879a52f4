"""A small convolutional network learns to tell discs, stripes and crosses apart. The whole step is compiled: forward, loss, gradients, update."""

import torch
from torch import nn

import framejit


def pictures(count, generator):
    """(images [count, 1, 16, 16], labels): noisy shapes of random size and place."""
    labels = torch.randint(0, 3, (count,), generator=generator)
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    at = 5 + 5 * torch.rand(count, 2, 1, 1, generator=generator)
    dx, dy = (x - at[:, 0]).abs(), (y - at[:, 1]).abs()
    size = 3 + 2 * torch.rand(count, 1, 1, generator=generator)
    shapes = torch.stack([(dx**2 + dy**2).sqrt() < size, (dx + at[:, 1]) % 4 < 2, (torch.minimum(dx, dy) < 1) & (torch.maximum(dx, dy) < size)], 1)
    images = shapes[torch.arange(count), labels].float()
    return (images + 0.3 * torch.randn(count, 16, 16, generator=generator)).unsqueeze(1), labels


torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(16 * 16, 3),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


@framejit.compile
def step(images, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


losses = [step(*pictures(32, generator)).item() for _ in range(60)]
images, labels = pictures(500, generator)
with torch.no_grad():
    right = (framejit.compile(model)(images).argmax(1) == labels).float().mean().item()
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}; {right:.1%} of 500 new pictures are recognised")
print(f"graphs of the step: {step.cache_info()['segments']}, compiled in {step.cache_info()['compile_seconds']:.1f} s")
assert losses[-1] < 0.5 * losses[0] and right > 0.85
