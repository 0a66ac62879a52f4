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
