"""What a user does first, where nothing but the wheel is installed (tools/dev wheel): the first example of the README, or where torch is
not there a function of NumPy. Says what it ran, and fails unless that was compiled.

    python first_example.py README.md
"""

import pathlib
import re
import shutil
import sys

import framejit

assert not any(map(shutil.which, ("cc", "c++", "gcc", "g++", "clang", "ld", "cmake"))), "there is a compiler on PATH"
try:
    import torch
except ImportError:
    import numpy as np

    @framejit.compile
    def step(x):
        return np.exp(-x * x) * 2 + 1

    x = np.linspace(0.0, 1.0, 1000)
    for _ in range(3):
        np.testing.assert_allclose(step(x), step.__wrapped__(x))
    ran = {"NumPy function": step}
else:
    [example, *_] = re.findall(r"```python\n(.*?)```", pathlib.Path(sys.argv[1]).read_text(), re.S)
    names = {"model": torch.nn.Linear(16, 8)}
    exec(compile(example, "README.md", "exec"), names)
    step, model = names["step"], names["model"]
    x, w, b = torch.rand(4, 16), torch.rand(16, 8), torch.rand(8)
    for _ in range(3):
        torch.testing.assert_close(step(x, w, b), step.__wrapped__(x, w, b))
        torch.testing.assert_close(model(x), torch.nn.functional.linear(x, model.weight, model.bias))
    ran = {"function of the README": step, "module of the README": model}
for name, f in ran.items():
    info = framejit.cache_info(f)
    assert info["outcomes"]["run"].get("python", 0) < 3 and info["segments"], (name, info)
    print(f"{name}: right, {info['segments']} compiled segment(s), {info['kernels']} kernel(s), framejit {framejit.__version__}")
