"""Programs that are hard to compile, each compared with eager on three calls (see harness.py). More than 80 of them."""

import importlib.util

import pytest
from harness import run_program

MODULES = {
    "aliasing": "torch",
    "autograd": "torch",
    "errors": "torch",
    "modules": "torch",
    "numpy_arrays": "numpy",
    "control_flow": "numpy",
    "object_model": "numpy",
    "reads": "torch",
    "assertions": "torch",
    "state": "torch",
}


def collect():
    for module, needs in MODULES.items():
        try:
            found = importlib.import_module(f"programs.{module}").program
        except ImportError as error:
            yield pytest.param(None, id=module, marks=pytest.mark.skip(f"{needs} is missing: {error}"))
            continue
        for name, build in found.items():
            yield pytest.param(build, id=f"{module}-{name}")


PROGRAMS = list(collect())


@pytest.mark.parametrize("build", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_same_as_eager(build, fresh):
    run_program(build, fresh.compile)


@pytest.mark.parametrize("build", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_same_as_eager_with_symbolic_sizes(build, fresh):
    run_program(build, lambda f: fresh.compile(f, dynamic=True))


@pytest.mark.parametrize("backend", ["eager", "interpreter"])
@pytest.mark.parametrize("build", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_same_as_eager_on_other_backends(build, backend, fresh):
    run_program(build, lambda f: fresh.compile(f, backend=backend))


def test_there_are_enough():
    pytest.importorskip("torch", reason="most programs are torch's")
    assert not any(p.marks for p in PROGRAMS), "programs that were not found"
    assert len(PROGRAMS) >= 80
