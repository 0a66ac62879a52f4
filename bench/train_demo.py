"""`tools/dev train-demo`: a small GPT learns six sonnets (bench/sonnets.txt, public domain), once in eager and once with the whole
training step compiled. Prints both loss curves and the seconds, and draws the curves.

    tools/dev train-demo [--steps N] [--image FILE]
"""

import argparse
import pathlib
import sys
import time


def build(vocabulary, width=128, layers=3, heads=4, length=64):
    import torch

    F = torch.nn.functional

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.after(x))))

    class GPT(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.place = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, vocabulary, bias=False)

        def forward(self, tokens):
            x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return GPT()


def train(compile, steps, batch=16, length=64):
    """(losses, seconds of each step)."""
    import torch

    text = (pathlib.Path(__file__).parent / "sonnets.txt").read_text()
    letters = sorted(set(text))
    data = torch.tensor([letters.index(c) for c in text])
    torch.manual_seed(0)
    model = build(len(letters), length=length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    @compile
    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    draw, losses, seconds = torch.Generator().manual_seed(1), [], []
    for _ in range(steps):
        at = torch.randint(len(data) - length - 1, (batch, 1), generator=draw) + torch.arange(length)
        begun = time.perf_counter()
        losses.append(step(data[at], data[at + 1]).item())
        seconds.append(time.perf_counter() - begun)
        scheduler.step()
    return losses, seconds


def plot(curves, path, size=(640, 400)):
    """A PNG of the curves [(name, colour, values)]."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    left, top, right, bottom = 50, 20, size[0] - 20, size[1] - 40
    highest = max(max(values) for _, _, values in curves)
    pen.rectangle((left, top, right, bottom), outline="gray")
    for k in range(5):
        y = bottom - (bottom - top) * k / 4
        pen.text((8, y - 6), f"{highest * k / 4:.2f}", fill="black")
    pen.text((left, bottom + 8), f"loss over {len(curves[0][2])} steps", fill="black")
    for k, (name, colour, values) in enumerate(curves):
        points = [(left + (right - left) * i / max(len(values) - 1, 1), bottom - (bottom - top) * v / highest) for i, v in enumerate(values)]
        pen.line(points, fill=colour, width=3 - 2 * k)
        pen.text((right - 120, top + 10 + 16 * k), name, fill=colour)
    image.save(path)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="tools/dev train-demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--image", default="train-demo.png")
    args = parser.parse_args(argv)
    import framejit

    eager, eager_s = train(lambda f: f, args.steps)
    ours, ours_s = train(framejit.compile, args.steps)
    print(f"{'step':>5} {'eager':>8} {'framejit':>8}")
    for k in sorted({*range(0, args.steps, max(args.steps // 10, 1)), args.steps - 1}):
        print(f"{k:5} {eager[k]:8.4f} {ours[k]:8.4f}")
    median = [sorted(s)[len(s) // 2] * 1e3 for s in (eager_s, ours_s)]
    print(f"all steps: eager {sum(eager_s):.1f} s, framejit {sum(ours_s):.1f} s with {ours_s[0]:.1f} s in the first;", end=" ")
    print(f"a step: eager {median[0]:.1f} ms, framejit {median[1]:.1f} ms, {median[0] / median[1]:.2f}x")
    plot([("eager", "#888888", eager), ("framejit", "#d02020", ours)], args.image)
    print(f"drawn to {args.image}")
    # Rounding grows from step to step: the first steps agree closely, the end within noise.
    early = max(abs(a - b) for a, b in zip(eager[:5], ours[:5]))
    end = [sum(c[-10:]) / len(c[-10:]) for c in (eager, ours)]
    good = early < 1e-3 and abs(end[0] - end[1]) < 0.1 * end[0] + 0.05 and end[1] < 0.9 * ours[0]
    print("the same curve, and it falls" if good else f"THE CURVES DIFFER: {early} at the start, {end} at the end")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
