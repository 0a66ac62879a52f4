"""python -m bench.convolutions: what the rules about convolutions on a CPU go by (src/rules/convolution.h), one thread. A training step of
a convolution, a normalisation and a ReLU: eager, compiled, and compiled with the library's convolution in the forward pass."""

import time

# pictures, channels, filters, height and width, window
SIZES = [
    *((1, *s, 1) for s in [(64, 64, 56), (256, 64, 56), (128, 128, 28), (256, 1024, 14), (1024, 256, 14), (512, 2048, 7), (96, 24, 56)]),
    *((1, *s, 3) for s in [(256, 256, 14), (512, 512, 7)]),
    *((8, *s, 1) for s in [(128, 128, 28), (256, 1024, 14)]),
]


def step(model, x, call):
    def run():
        model.zero_grad()
        call(x).sum().backward()

    return run


def best(contenders, seconds=0.3):
    """Shortest run of each, in microseconds; they take turns."""
    for run in contenders:
        for _ in range(4):
            run()
    times = [float("inf")] * len(contenders)
    end = time.perf_counter() + seconds * len(contenders)
    while time.perf_counter() < end:
        for i, run in enumerate(contenders):
            start = time.perf_counter()
            run()
            times[i] = min(times[i], time.perf_counter() - start)
    return [1e6 * t for t in times]


def main():
    import torch

    import framejit

    torch.set_num_threads(1)
    print(f"{'pictures':>8} {'channels':>8} {'filters':>8} {'size':>5} {'window':>6} {'eager':>9} {'framejit':>9} {'library':>9}  us")
    for pictures, channels, filters, size, window in SIZES:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(channels, filters, window, padding=window // 2), torch.nn.BatchNorm2d(filters), torch.nn.ReLU())
        x = torch.randn(pictures, channels, size, size)
        compiled = step(model, x, framejit.compile(model))
        compiled()
        framejit.config.disabled_passes = "conv_products"
        library = step(model, x, framejit.compile(lambda x, model=model: model(x)))
        library()
        framejit.config.disabled_passes = ""
        times = best([step(model, x, model), compiled, library])
        print(f"{pictures:8} {channels:8} {filters:8} {size:5} {window:6} " + " ".join(f"{t:9.1f}" for t in times), flush=True)


if __name__ == "__main__":
    main()
