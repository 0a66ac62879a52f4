"""What goes on through a dict from outside sees what is written to it later; classes that programs count on."""

import collections

import pytest


def views_of_a_dict():
    def items_see_a_store(d, x):
        d["a"] = 1
        items = d.items()
        d["b"] = 2
        return x + 1, list(items)

    def keys_see_a_deletion(d, x):
        d["a"] = 1
        keys = d.keys()
        del d["x"]
        return x + 1, list(keys), len(keys), "x" in keys

    def an_iterator_sees_a_value(d, x):
        d["a"] = 1
        values = iter(d.values())
        next(values)
        d["y"] = 5
        return x + 1, list(values)

    def an_iterator_ends_where_the_dict_grows(d, x):
        d["a"] = 1
        keys = iter(d)
        next(keys)
        d["new"] = 5
        try:
            return x + 1, list(keys)
        except RuntimeError as e:
            return x + 1, str(e)

    def tensors_are_seen(d, x):
        values = d.values()
        d["t"], d["u"] = x * 2, x
        return x + 1, [v.sum().item() for v in values if hasattr(v, "sum")]

    def read_written_and_read_again(d, x):
        n = len(d)
        d["u"] = n
        del d["x"]
        return x + 1, n, len(d), list(d.items()), bool(d), dict(d)

    def emptied(d, x):
        for key in list(d):
            del d[key]
        return x + 1, bool(d), list(d), d == {}

    return [f for f in locals().values() if callable(f)]


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
@pytest.mark.parametrize("f", views_of_a_dict(), ids=lambda f: f.__name__)
@pytest.mark.parametrize("tensors", [False, True])
def test_views_of_a_dict_see_what_is_written_later(fresh, f, kind, tensors):
    torch = pytest.importorskip("torch")
    compiled = fresh.compile(f)

    def run(g):
        d = kind(x=7, y=8, **({"t": torch.ones(2)} if tensors else {}))
        x, *rest = g(d, torch.ones(2))
        return x.tolist(), repr(rest), repr(d)

    for _ in range(3):
        assert run(compiled) == run(f)
    assert fresh.cache_info(compiled)["outcomes"]["run"].get("graph")
    assert kind is not dict or (f.__name__ == "tensors_are_seen" and not tensors) or fresh.cache_info(compiled)["breaks"] == 0


def test_a_class_that_counts_calls_is_not_captured_each_time(fresh):
    torch = pytest.importorskip("torch")

    class Counter:
        calls = 0

    def f(x):
        Counter.calls += 1
        return (x * 2).tanh()

    compiled, x = fresh.compile(f), torch.ones(4)
    for _ in range(30):
        assert torch.equal(compiled(x), torch.full((4,), 2.0).tanh())
    assert Counter.calls == 30
    info = fresh.cache_info(compiled)
    assert info["captures"] < 20 and info["breaks"] == 1
