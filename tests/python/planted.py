"""Programs with one planted fault each, for test_report.py: (name, program). The fault's line ends in `# planted`."""

BREAK = '''
import numpy as np
import framejit

class Layer:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        y = np.tanh(x) * self.scale
        open("/dev/null").close()  # planted
        return np.sqrt(y * y + 1.0)

layers = [Layer(1.0 + i) for i in range(24)]

@framejit.compile
def model(x):
    for layer in layers:
        x = layer(x)
    return x

x = np.ones((64, 64))
for _ in range(30):
    model(x)
'''

FLIP = '''
import numpy as np
import framejit

class Settings:
    def __init__(self):
        self.training = True

settings = Settings()

@framejit.compile
def step(x):
    y = np.tanh(x) * 2.0
    if settings.training:  # planted
        y = y + np.exp(-y)
    return y.sum(axis=0)

x = np.ones((64, 64))
for i in range(40):
    settings.training = i % 2 == 0
    step(x)
'''

NUMBER = '''
import numpy as np
import framejit

@framejit.compile(dynamic=False, options={"max_entries": 6})
def step(x, epoch):
    return np.tanh(x) * (1.0 + epoch)  # planted

x = np.ones((64, 64))
for epoch in range(60):
    step(x, epoch)
'''

SHAPE = '''
import numpy as np
import framejit

@framejit.compile(dynamic=False)
def step(batch):
    return np.tanh(batch) * 2.0 + np.exp(-batch)  # planted

for size in range(20, 30):
    step(np.ones((size, 8)))
'''

SLOW = '''
import numpy as np
import framejit

@framejit.compile
def light(x):
    return x * 2.0 + 1.0

@framejit.compile
def heavy(x):
    return np.log(np.exp(np.sin(x) * np.cos(x)) + np.arctan(x)) ** 1.7  # planted

x = np.linspace(1.0, 2.0, 400_000)
for _ in range(60):
    light(x), heavy(x)
'''

FALLBACK = '''
import torch
import framejit

@framejit.compile
def spectrum(x):
    return torch.fft.fft(x * 2).abs()  # planted

x = torch.ones(64, 512, requires_grad=True)
for _ in range(40):
    spectrum(x)
'''

PROGRAMS = {"break": BREAK, "flip": FLIP, "number": NUMBER, "shape": SHAPE, "slow": SLOW, "fallback": FALLBACK}

# For test_numerics.py and test_minify.py: the C library's hypot, which kernels call for float64, is given a fault (PLANTED: wrong, nan,
# crash, slow) where machine code of ours calls it, by a helper of libframejit. The reference interpreter calls it, too, and gets the real one.
FAULTY_HYPOT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

double hypot(double a, double b) {
  static double (*real)(double, double);
  if (!real) real = (double (*)(double, double))dlsym(RTLD_NEXT, "hypot");
  double r = real(a, b);
  Dl_info from;
  const char* fault = getenv("PLANTED");
  if (!fault || !dladdr(__builtin_return_address(0), &from) || !from.dli_fname || !strstr(from.dli_fname, "libframejit")) return r;
  void* frames[3];  // here, the helper, who called it: code that belongs to no file
  if (backtrace(frames, 3) < 3 || dladdr(frames[2], &from)) return r;
  if (!strcmp(fault, "crash")) abort();
  if (!strcmp(fault, "slow")) for (volatile int i = 0; i < 20000; ++i) {}
  return !strcmp(fault, "wrong") ? r * 1.001 : !strcmp(fault, "nan") ? NAN : r;
}
"""

KERNEL = '''
import numpy as np
import framejit

@framejit.compile
def before(x):
    return np.exp(x) * 2.0 - 1.0

@framejit.compile
def step(x, y):
    a = np.sin(x) * 2.0
    b = np.cos(y) + a
    for _ in range(4):
        a = np.tanh(a) + b
    r = np.hypot(a, b)  # planted
    c = np.exp(-r) + np.sqrt(r + 1.0)
    return c.sum(axis=0) + r.mean(), a

x, y = np.linspace(0.0, 1.0, 300).reshape(30, 10), np.linspace(1.0, 2.0, 300).reshape(30, 10)
for _ in range(3):
    step(before(x), y)
print("done")
'''


KERNEL_WITH_GRADIENTS = """
import torch
import framejit

@framejit.compile
def step(x, w):
    a = torch.tanh(x @ w)
    r = torch.hypot(a, w.sum(0))  # planted
    return torch.softmax(r * 2.0, -1)

x, w = torch.linspace(0.0, 1.0, 24, dtype=torch.float64).reshape(6, 4), torch.linspace(-1.0, 2.0, 16, dtype=torch.float64).reshape(4, 4).requires_grad_()
for _ in range(2):
    step(x, w).square().sum().backward()
print("done")
"""


def faulty_library(folder):
    """Builds it; what LD_PRELOAD is to be set to, or None without a C compiler."""
    import shutil
    import subprocess

    cc = shutil.which("gcc") or shutil.which("cc")
    if not cc:
        return None
    (folder / "faulty.c").write_text(FAULTY_HYPOT)
    subprocess.run([cc, "-O1", "-fno-builtin", "-shared", "-fPIC", "-o", folder / "faulty.so", folder / "faulty.c", "-ldl", "-lm"], check=True)
    return str(folder / "faulty.so")
