"""What a captured call costs: memory that stays, and whether long functions cost more a call than short ones. Each in a process of its own,
in which all memory is malloc's."""

import pytest

pytest.importorskip("torch")

from bench.long import costs  # noqa: E402


@pytest.mark.parametrize("what, calls, most", [("layers", 2000, 1152), ("layers+gradients", 1000, 2304), ("straight", 2000, 768), ("straight+gradients", 2000, 1280)])
def test_memory_of_a_call(fresh, what, calls, most):
    (cost,) = costs(what, calls)
    assert cost["bytes"] < most


@pytest.mark.slow
@pytest.mark.clock
@pytest.mark.parametrize("what, short, long", [("straight", 2000, 20000), ("layers", 400, 4000), ("layers+gradients", 800, 16000)])
def test_a_call_of_a_long_function_costs_no_more(fresh, what, short, long):
    little, much = costs(what, short, long)
    assert what != "straight" or much["us"] < 30
    assert much["us"] < 1.5 * little["us"]
    assert much["bytes"] < 1.2 * little["bytes"]
