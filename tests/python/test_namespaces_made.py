"""types.SimpleNamespace that the program makes, with what it holds, and what is made again behind a graph."""

import time
import types

import pytest

torch = pytest.importorskip("torch")


class Own(types.SimpleNamespace):
    def total(self):
        return self.a + self.b


def read(x, held):
    n = types.SimpleNamespace(a=x, b=2, held=held)
    n.c = n.a * n.b
    return n.c + len(n.held)


def given(x, held):
    n = types.SimpleNamespace(a=x + 1, held=held)
    n.again = n
    return n, n.held is held


def over_a_break(x, held):
    n = types.SimpleNamespace(a=x * 2, held=held)
    time.sleep(0)
    n.b = n.a + 1
    return n.b, sorted(vars(n)), n.held is held


def what_is_in_it_is_written(x, held):
    n = types.SimpleNamespace(held=held)
    n.held.append(x + 1)
    return x * 2, len(held)


def a_dict_in_it(x, held):
    n = types.SimpleNamespace(**{"a": x, "d": {"k": held}})
    n.d["k2"] = n.a + 1
    return n.d["k2"], n == types.SimpleNamespace(a=1), hasattr(n, "b"), getattr(n, "b", 3)


def a_subclass(x, held):
    return Own(a=x, b=1).total() + len(held)


def deleted(x, held):
    n = types.SimpleNamespace(a=x)
    del n.a
    try:
        return n.a
    except AttributeError as e:
        return x + 1, str(e)


def shown(o, held, seen=()):
    if isinstance(o, torch.Tensor):
        return o.tolist()
    if isinstance(o, (tuple, list)):
        return [o is held, *(shown(v, held, (*seen, id(o))) for v in o)]
    if isinstance(o, types.SimpleNamespace) and id(o) not in seen:
        return {k: shown(v, held, (*seen, id(o))) for k, v in vars(o).items()}
    return "again" if id(o) in seen else o


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("f", [read, given, over_a_break, what_is_in_it_is_written, a_dict_in_it, a_subclass, deleted], ids=lambda f: f.__name__)
def test_namespaces_made_inside(fresh, f, tensors):
    compiled = fresh.compile(f)
    for _ in range(3):
        lists = [[torch.ones(2), 2] if tensors else [1, 2] for _ in range(2)]
        x = torch.arange(3.0)
        a, b = (shown(g(x, held), held) for g, held in zip((f, compiled), lists))
        assert a == b
        assert shown(lists[0], None) == shown(lists[1], None)
    if f in (read, given):
        assert compiled.cache_info()["breaks"] == 0 and compiled.cache_info()["outcomes"]["run"] == {"graph": 3}
