"""What torch hands to the `__torch_function__` of a class of tensors. torch itself is asked, with stand-ins that tell (src/capture/wrappers/overrides.cc)."""

import torch

_tellers = {}  # class -> the class of its stand-ins


class _Told(Exception):
    pass


def _tell(cls, func, types, args=(), kwargs=None):
    raise _Told(func, tuple(t._stands_for for t in types), kwargs is not None)


def _teller(cls):
    """A subclass of another class is one here, too: torch asks it first."""
    if cls not in _tellers:
        bases = tuple(_teller(b) for b in cls.__bases__ if issubclass(b, torch.Tensor) and b is not torch.Tensor)
        names = {"__torch_function__": classmethod(_tell), "_stands_for": cls}
        _tellers[cls] = type(torch.Tensor)(cls.__name__, bases or (torch.Tensor,), names)
    return _tellers[cls]


def stand_in(cls):
    """Of a tensor of an overriding class; None: of any other."""
    plain = torch.empty((), device="meta")
    return plain if cls is None else plain.as_subclass(_teller(cls))


def ask(function, args, kwargs):
    """(function, types, are there keywords?) as torch hands them on; None: it does not."""
    try:
        function(*args, **kwargs)
    except _Told as told:
        return told.args
    return None


def takes(cls):
    """Can a plain tensor become one of that class?"""
    try:
        torch.empty(0).__class__ = cls
    except TypeError:
        return False
    return True
