"""Whatever the hostile programs read is changed under them (mutate.py). `slow`: every change of every program."""

import mutate
import pytest
from test_hostile import PROGRAMS

SAMPLE = 4  # changes of a program in the quick suite


@pytest.mark.parametrize("build", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_changes(build, fresh):
    made, wrong = mutate.check(build, fresh, SAMPLE)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("build", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_every_change(build, fresh):
    made, wrong = mutate.check(build, fresh)
    assert not wrong, "\n".join(wrong)
