"""What `torch.compile(module)` gives while framejit is installed: the peer's wrapper around the module, whose forward is our
compiled call of it. State, names of parameters, pickles and copies are the peer's by construction."""

import torch
from torch._dynamo.eval_frame import OptimizedModule as _PeersModule

from ._module import _compiled_call


class Settings(dict):
    """What `framejit.compile` is told. Called, as the peer's context is, it compiles something else like that."""

    def __call__(self, target):
        from ._install import _compile

        return _compile(torch, target, self)


class OptimizedModule(_PeersModule):
    """`dynamo_ctx` holds the settings of `framejit.compile`."""

    def _initialize(self):
        module = self._orig_mod
        self.forward = _compiled_call(type(module), module, self.dynamo_ctx).__get__(module, type(module))
        if hasattr(module, "_initialize_hook"):  # a lazy module makes its parameters first
            self._forward = self.forward
            self.forward = self._call_lazy_check

    def __call__(self, *args, **kwargs):
        return torch.nn.Module.__call__(self, *args, **kwargs)
