"""Whatever the programs of the suites read is changed under them: what they may read (mutate.py), and what a recorder saw them read (reads.py).
`slow`: every change of every program."""

import os
import random

import mutate
import pytest
import reads
import suites
from test_hostile import PROGRAMS

ALL = list(suites.programs())
SOME = random.Random(2).sample(ALL, 40)  # of them in the quick suite
SAMPLE = 4  # changes of a program in the quick suite


def _check(build, fresh, most=None, of_reads=None):
    made, wrong = mutate.check(build, fresh, most, of_reads=of_reads)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("build", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_changes(build, fresh):
    _check(build, fresh, SAMPLE)


@pytest.mark.parametrize("build", SOME)
@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_what_was_read(build, fresh):
    _check(build, fresh, SAMPLE, of_reads=reads.recorded)


@pytest.mark.parametrize("build", ALL)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_every_change(build, fresh):
    _check(build, fresh)


@pytest.mark.parametrize("build", ALL)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_every_change_of_what_was_read(build, fresh):
    _check(build, fresh, of_reads=reads.recorded)


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="its allocator fills what is given as it likes")
def test_memory_that_eager_never_wrote_is_not_compared():
    """A linear layer of a weight on `meta` hands out memory as it is: the tester sees that eager promises nothing there."""
    torch = pytest.importorskip("torch")

    def build():
        return lambda x: torch.nn.functional.linear(x, torch.ones(2, 2)), lambda: (torch.ones(2, 2, device="cpu"),)

    first, second, *_ = mutate._again(build, ("under", "another default device", lambda: torch.device("meta"), None, None), 3)
    (at, result), (again, other) = first.values[-1], second.values[-1]
    assert at == again == "result" and result.device.type == "cpu" and not result.equal(other)
