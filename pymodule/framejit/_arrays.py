"""Functions of NumPy that write into an array, as graphs call them: the array that is written comes first and is returned."""

import functools
import importlib


@functools.lru_cache(maxsize=None)
def _named(name):
    module, *rest = name.split(".")
    return functools.reduce(getattr, rest, importlib.import_module(module))


def written(name, target, *args, **kwargs):
    """numpy.put and the like write into their first argument."""
    _named(name)(target, *args, **kwargs)
    return target


def filled(name, out, *args, **kwargs):
    """The others write what they would return, where they are told to."""
    _named(name)(*args, out=out, **kwargs)
    return out
