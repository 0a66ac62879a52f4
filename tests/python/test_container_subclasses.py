"""Subclasses of dict and list that answer by methods of their own, with tensors and with numbers in them, from outside."""

from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")
import framejit  # noqa: E402


def _mapping(base):
    class Mapping(base):
        def __getitem__(self, key):
            return base.__getitem__(self, key) * 2

        def __contains__(self, key):
            return key == "other" or base.__contains__(self, key)

        def __len__(self):
            return 17

        def __iter__(self):
            return iter(["a", "b"])

        def keys(self):
            return ["b", "a"]

        def items(self):
            return [("q", 5)]

        def values(self):
            return [1, 2, 3]

        def get(self, key, default=None):
            return 100

        def __eq__(self, other):
            return True

        __hash__ = None

        def __bool__(self):
            return False

        def __or__(self, other):
            return 7

    return Mapping


def _sequence(base):
    class Sequence(base):
        def __getitem__(self, key):
            return base.__getitem__(self, 0) * 2

        def __contains__(self, value):
            return value == 1

        def __len__(self):
            return 17

        def __iter__(self):
            return iter([4, 5])

        def index(self, value):
            return 11

        def __add__(self, other):
            return 5

        def __eq__(self, other):
            return True

        __hash__ = None

    return Sequence


def _unpacked(o, x):
    a, b = o
    return a, b, x + 1


def _keywords(**keywords):
    return sorted(keywords.items())


ASKED = {
    "item": lambda o, x: o["a"] + x if isinstance(o, dict) else o[1] + x,
    "in": lambda o, x: ("other" in o, "a" in o, 1 in o, x + 1),
    "len": lambda o, x: (len(o), x + 1),
    "for": lambda o, x: ([k for k in o], x + 1),
    "keys": lambda o, x: (list(o.keys()), x + 1),
    "items": lambda o, x: (list(o.items()), x + 1),
    "values": lambda o, x: (list(o.values()), x + 1),
    "get": lambda o, x: (o.get("a"), x + 1),
    "index": lambda o, x: (o.index(3), x + 1),
    "==": lambda o, x: (o == 3, o != 3, x + 1),
    "truth": lambda o, x: x + 1 if o else x + 2,
    "list, tuple": lambda o, x: (list(o), tuple(o), x + 1),
    "dict": lambda o, x: (sorted(dict(o).items()), x + 1),
    "star": lambda o, x: ([*o], x + 1),
    "keywords": lambda o, x: (_keywords(**o), x + 1),
    "merged": lambda o, x: ({**o}, x + 1),
    "or": lambda o, x: (o | {"c": 1}, x + 1),
    "plus": lambda o, x: (o + o, x + 1),
    "sorted": lambda o, x: (sorted(o), max(o), x + 1),
    "zip": lambda o, x: (list(zip(o, o)), list(enumerate(o)), list(map(str, o)), x + 1),  # noqa: B905
    "unpacked": _unpacked,
}


def _plain(result):
    if isinstance(result, torch.Tensor):
        return result.tolist()
    if isinstance(result, dict):
        return [_plain(i) for i in result.items()]
    return [_plain(i) for i in result] if isinstance(result, (tuple, list)) else result


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("of", ["tensors", "numbers"])
@pytest.mark.parametrize("base", [dict, OrderedDict, list, tuple])
def test_its_methods_answer(base, of, asked):
    value = torch.full((2,), 3.0) if of == "tensors" else 2.0
    x, program = torch.ones(2), ASKED[asked]

    def run(call):
        made = _mapping(base)(a=value, b=value) if issubclass(base, dict) else _sequence(base)([value, value])
        try:
            return _plain(call(made, x))
        except Exception as error:  # noqa: BLE001: eager's is wanted
            return type(error), str(error)

    want, compiled = run(program), framejit.compile(program)
    assert [run(compiled) for _ in range(3)] == [want] * 3


def test_model_outputs_by_position():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    x = torch.ones(3)
    compiled = framejit.compile(lambda o: o[0] + o["last_hidden_state"], fullgraph=True)
    assert torch.equal(compiled(outputs.BaseModelOutput(last_hidden_state=x)), x + x)


def test_pop_and_setdefault_of_a_dict_from_outside():
    settings = {"scale": 3.0, "kept": 1}

    def step(x, **keywords):
        factor = keywords.pop("factor", 2)
        keywords.setdefault("shift", 1)
        scale = settings.pop("scale", 5.0)
        settings.setdefault("seen", []).append(factor)
        return x * factor * scale + keywords["shift"], sorted(keywords)

    def absent(x):
        try:
            settings.pop("absent")
        except KeyError as error:
            return x + len(error.args)

    def run(step, absent):
        settings.clear()
        settings.update(scale=3.0, kept=1)
        results = [step(x), step(x, factor=4), step(x, shift=7), absent(x)]
        return _plain(results), list(settings.items())

    x = torch.ones(2)
    want = run(step, absent)
    compiled = framejit.compile(step, fullgraph=True), framejit.compile(absent, fullgraph=True)
    for _ in range(2):
        assert run(*compiled) == want
