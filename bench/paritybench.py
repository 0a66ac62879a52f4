"""The modules of GitHub projects that a checkout of pytorch-jit-paritybench holds, one by one: generated/test_*.py has, for each project,
its classes and TESTCASES of (class, arguments of its constructor, arguments of a call, does torch.jit.script take it)."""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import types
from unittest import mock

CASE = re.compile(r"^    \((\w+),$", re.MULTILINE)


def names(path):
    """project:class:number of all cases, without running any code of them."""
    found = []
    for file in sorted(pathlib.Path(path, "generated").glob("test_*.py")):
        _, _, cases = file.read_text().partition("\nTESTCASES = [")
        found += [f"{file.stem[5:]}:{name}:{number}" for number, name in enumerate(CASE.findall(cases))]
    return found


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds whatever a file of the corpus imports and nothing else finds: projects import much that their modules do not need."""

    def __init__(self, corpus):
        self.corpus = str(corpus)

    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe()
        while "importlib" in frame.f_code.co_filename or frame.f_code is Absent.find_spec.__code__:
            frame = frame.f_back
        top = name.split(".")[0]
        ours = top in ("tensorboard", "google") or frame.f_code.co_filename.startswith(self.corpus) or hasattr(sys.modules.get(top), "absent")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.absent = True

        def attribute(name):
            if name == "__version__":
                return "99.0"
            if name.startswith("__"):
                raise AttributeError(name)
            return mock.MagicMock(name=f"{spec.name}.{name}")

        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        pass


def prepare(path):
    """Imports what every file of the corpus does, so that forks have it."""
    path = pathlib.Path(path).resolve()
    sys.path[:0] = [str(path), str(path / "generated")]
    for name in ("scipy", "torchvision"):
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    sys.meta_path.append(Absent(path))
    importlib.import_module("_paritybench_helpers")


@functools.cache
def load(path, project):
    """The module of a project's file. The process may be used for no other one."""
    module = types.ModuleType(f"test_{project}")
    sys.modules[module.__name__] = module
    file = pathlib.Path(path).resolve() / "generated" / f"test_{project}.py"
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    return module


def build(path, name):
    """The module of a case and the arguments of its call, ((...), {...}). The process may be used for nothing else."""
    import torch

    project, class_name, number = name.split(":")
    made, init, call, _ = load(path, project).TESTCASES[int(number)]
    assert made.__name__ == class_name
    torch.manual_seed(0)
    args, kwargs = init()
    built = made(*args, **kwargs)
    args, kwargs = call()
    return built, (tuple(args), kwargs)
