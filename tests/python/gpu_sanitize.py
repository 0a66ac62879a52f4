"""Every schedule of GPU kernels on small shapes, for NVIDIA's compute-sanitizer; needs a GPU:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python tests/python/gpu_sanitize.py
    compute-sanitizer --tool racecheck python tests/python/gpu_sanitize.py

racecheck reports torch's own reductions (at::native::reduce_kernel; --kernel-name-exclude kernel_substring=reduce_kernel), whose
results these are compared with. Both were clean on an H200.
"""

import os

import framejit
import torch

F = torch.nn.functional
ROWS = [(5, 7), (9, 64), (3, 768), (5, 1024), (6, 4096), (3, 8192), (2, 16384), (5, 20000), (3, 20001), (4, 12800), (4, 32768), (3, 50256), (2, 50257), (3, 65536), (2, 262144), (2, 600000)]


def check(function, *arguments, truth=None):
    compiled = framejit.compile(function, dynamic=False)
    compiled.clear()
    got = compiled(*arguments)
    if truth is None:
        truth = function(*[a.double() if a.is_floating_point() else a for a in arguments])
    for g, t in zip(got if isinstance(got, tuple) else [got], truth if isinstance(truth, tuple) else [truth]):
        error = ((g.double() - t.double()).norm() / (t.double().norm() + 1e-30)).item()
        assert error < 2e-2, (function, [a.shape for a in arguments], error)


def kernels(dtype):
    def tensor(*shape):
        return torch.randn(shape, device="cuda").to(dtype)

    for shape in ((1,), (7,), (4099,), (64, 256), (33, 130)):
        check(lambda x, y: torch.tanh(x * y + 1) * torch.sigmoid(x) + F.gelu(y) * torch.exp(-x * x), tensor(*shape), tensor(*shape))
    check(lambda x: x[1:] * 2, tensor(4099))
    for shape in ROWS:
        x = tensor(*shape)
        classes = torch.randint(0, shape[1], (shape[0],), device="cuda")
        check(lambda x: torch.softmax(x, -1), x)
        check(lambda x: (x.float().sum(-1), x.amax(-1)), x)
        check(lambda x: x.argmax(-1), x.float())
        check(lambda x: F.layer_norm(x, (x.shape[-1],)), x)
        check(lambda x: F.cross_entropy(x, classes), x)
    for shape in ((64, 64), (128, 192), (100, 36), (33, 47), (256, 512), (3, 64, 96)):
        check(lambda x: (x.transpose(-1, -2) + 1, x * 2), tensor(*shape))
        check(lambda x: x.transpose(-1, -2).contiguous() * 2, tensor(*shape))
    for side in (128, 130):
        check(lambda x: x + x.t(), tensor(side, side))
    for shape in ((64, 32), (513, 300), (4096, 128), (2, 7)):
        check(lambda x: (x.float().sum(0), x.amax(0)), tensor(*shape))
        check(lambda x: torch.softmax(x, 0), tensor(*shape))
    check(lambda x: x.float().sum(), tensor(1 << 20))
    check(lambda x: (x.float().cumsum(-1), x.float().cumsum(0)), tensor(50, 60))
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:  # memcheck: these share nothing, and racecheck is slow on the library's
        one = tensor(40, 32, 1, 1)
        for size, stride, padding in ((3, 1, 1), (5, 2, 2), (5, 1, 0)):
            deep = tensor(40, 1, size, size)
            check(lambda x, one, deep: F.conv2d(F.conv2d(x, one), deep, stride=stride, padding=padding, groups=40) + 1, tensor(2, 32, 9, 12), one, deep)
    for size, stride, padding in ((3, 1, 1), (5, 2, 2), (5, 1, 0)):  # kernels of ours alone: eager's results are the CPU's
        image, deep = tensor(2, 40, 9, 12).to(memory_format=torch.channels_last), tensor(40, 1, size, size)

        def conv(x, deep):
            return F.conv2d(x, deep, stride=stride, padding=padding, groups=40) + 1

        check(conv, image, deep, truth=conv(image.double().cpu(), deep.double().cpu()).cuda())
    at = torch.randint(0, 100, (37,), device="cuda")
    check(lambda x: x[at] * 2, tensor(100, 64))
    check(lambda x: torch.cat([x, -x], -1), tensor(5, 33))
    check(lambda x: F.pad(x, (1, 2, 0, 1)) + 1, tensor(5, 33))


if __name__ == "__main__":
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            kernels(dtype)
    torch.cuda.synchronize()
    print("all kernels ran")
