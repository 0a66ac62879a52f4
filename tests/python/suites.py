"""The programs of all suites in the form of harness.py: functions without arguments that build a function and a maker of its arguments."""

import contextlib
import copy

import pytest


def _named(build, name):
    build.__name__ = name
    return build


def _census():
    import test_census

    for name, source in test_census.ENTRIES.items():
        yield name, lambda source=source: test_census._program(source)


def _numpy_programs():
    import test_numpy_programs as suite

    for name, source in suite.ENTRIES.items():
        yield name, lambda source=source: suite._program(source)


def _changing():
    import test_changing

    for case in test_changing.CASES:
        f, sets = case.values

        def build(f=f, sets=sets):
            calls = []

            def make():
                calls.append(0)
                given = sets[len(calls) % len(sets)]
                with contextlib.suppress(TypeError):  # a view of a dict has no copy
                    return copy.deepcopy(given)
                return given

            return f, make

        yield case.id, build


def _mutations():
    import test_mutations as suite

    for number, (setup, program, *_) in enumerate(suite.ROWS):

        def build(setup=setup, program=program):
            space, args = suite.world(setup, program)
            return space["f"], space.get("args", lambda: args)

        yield f"{number} {program}", build


def _functions():
    import bench.functions as suite

    small = {"black_scholes": (40,), "row_softmax": (4, 6), "laplace": (8,), "k_means_step": (20, 3, 4)}
    makers = {"k_means_step": suite.k_means_arguments}
    for name, sizes in small.items():
        make = makers.get(name) or getattr(suite, f"{name}_arguments")
        yield name, lambda name=name, make=make, sizes=sizes: (getattr(suite, name), lambda: make(*sizes))


SUITES = {"census": _census, "numpy_programs": _numpy_programs, "changing": _changing, "mutations": _mutations, "functions": _functions}


def programs():
    """pytest parameters of all of them, the hostile programs first."""
    from test_hostile import PROGRAMS

    yield from PROGRAMS
    for suite, builds in SUITES.items():
        try:
            found = list(builds())
        except (ImportError, pytest.skip.Exception) as error:
            yield pytest.param(None, id=suite, marks=pytest.mark.skip(str(error)))
            continue
        for name, build in found:
            yield pytest.param(_named(build, name), id=f"{suite}-{name}"[:80])
