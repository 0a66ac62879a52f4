"""A small model learns a sentence, and writes it again letter by letter. The same compiled model serves training and generation."""

import torch
from torch import nn

import framejit

TEXT = "the quick brown fox jumps over the lazy dog. "
LETTERS = sorted(set(TEXT))
WINDOW = 8


class Letters(nn.Module):
    """The next letter, from the last WINDOW ones."""

    def __init__(self, width=16):
        super().__init__()
        self.letter, self.norm = nn.Embedding(len(LETTERS), width), nn.LayerNorm(WINDOW * width)
        self.up, self.down = nn.Linear(WINDOW * width, 128), nn.Linear(128, len(LETTERS))

    def forward(self, tokens):
        return self.down(nn.functional.gelu(self.up(self.norm(self.letter(tokens).flatten(1)))))


torch.manual_seed(0)
model = Letters()
fast = framejit.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = torch.tensor([LETTERS.index(c) for c in TEXT * 2])
windows = torch.stack([data[i : i + WINDOW + 1] for i in range(len(TEXT))])

for _ in range(60):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(fast(windows[:, :-1]), windows[:, -1])
    loss.backward()
    optimizer.step()


@torch.no_grad()
def write(model, start, count):
    tokens = [LETTERS.index(c) for c in start]
    for _ in range(count):
        tokens.append(model(torch.tensor([tokens[-WINDOW:]]))[0].argmax().item())
    return "".join(LETTERS[t] for t in tokens)


written = write(fast, TEXT[:WINDOW], 2 * len(TEXT) - WINDOW)
print(f"loss {loss.item():.3f}; written: {written}")
assert written == TEXT * 2, "it has learned the sentence"
assert written == write(model, TEXT[:WINDOW], 2 * len(TEXT) - WINDOW), "eager writes the same"
