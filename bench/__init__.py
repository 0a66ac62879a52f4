"""Benchmarks: `tools/dev bench` and `tools/dev demo`."""

import sys
import types

# Beside a CPU torch, a CUDA build of torchvision fails at import in the registration of its meta functions, and takes
# transformers' vision models down with it. Nothing here needs those functions.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
