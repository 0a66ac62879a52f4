"""The programs of `bench.libraries`, as the documentation of their libraries shows them: PROGRAMS[name] is (make, what must be installed), and
make() gives (function to compile, size -> arguments)."""

PROGRAMS = {}


def program(*needs):
    """The decorated function imports the library and returns (function to compile, size -> arguments)."""

    def add(make):
        PROGRAMS[make.__name__.replace("_", " ")] = (make, needs)
        return make

    return add


def array(*shape, seed=0):
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape)


def tensor(*shape, seed=0):
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


from bench.library_programs import later, more, newer, newest, others, science, settings, tables, tensors, training  # noqa: E402, F401 (each adds its programs)
