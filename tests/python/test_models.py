"""Hugging Face models from tiny configs: one graph, no breaks, results within the oracle, in eval mode."""

import copy
import os
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from bench import models  # noqa: E402


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("name", models.MODELS)
def test_one_graph(name, mode, fresh, oracle, two_threads):
    torch.manual_seed(0)
    model, inputs = models.build(name, small=True)
    with getattr(torch, mode)():
        eager = models.flatten(model(**inputs))
        reference = models.flatten(copy.deepcopy(model).double()(**models.in_float64(inputs)))
        told = fresh.explain(model)(**inputs)
        again = fresh.compile(model)(**inputs)
    assert told.graph_count == 1 and told.graph_break_count == 0, "\n".join(told.break_reasons)
    for result in (told.result, again):
        got = models.flatten(result)
        assert list(got) == list(eager)
        for path in eager:
            assert got[path].stride() == eager[path].stride() and got[path].dtype == eager[path].dtype
            oracle.check(got[path], eager[path], reference[path], f"{name} {path}")


@pytest.mark.slow
@pytest.mark.parametrize("name", models.MODELS)
def test_symbolic_sizes(name, fresh, oracle):
    torch.manual_seed(0)
    model, inputs = models.build(name, small=True)
    compiled = fresh.compile(model, dynamic=True)
    with torch.no_grad():
        for inputs in models.resized(name, small=True):
            eager = models.flatten(model(**inputs))
            reference = models.flatten(copy.deepcopy(model).double()(**models.in_float64(inputs)))
            got = models.flatten(compiled(**inputs))
            for path in eager:
                oracle.check(got[path], eager[path], reference[path], f"{name} {path}")


BEGINNINGS = {
    "both": [],
    "length, then batch": [(4, 16), (4, 20), (4, 30), (7, 30)],
    "batch, then length": [(4, 16), (5, 16), (6, 16), (6, 18)],
    "a batch of one": [(1, 16), (3, 18)],
}


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_bert_of_many_sizes_is_compiled_twice(beginning, fresh):
    torch.manual_seed(0)
    model, _ = models.build("BertModel", small=True)
    compiled = fresh.compile(model)
    pairs = BEGINNINGS[beginning] + [(2 + 3 * i % 7, 5 + 11 * i % 37) for i in range(20)]
    with torch.no_grad():
        for pair in pairs:
            tokens = torch.randint(0, model.config.vocab_size, pair)
            expected, got = model(tokens)[0], compiled(tokens)[0]
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert fresh.cache_info(compiled)["captures"] <= 2


@pytest.mark.parametrize("name", models.MODELS)
def test_gradients_survive(name, fresh):
    torch.manual_seed(0)
    model, inputs = models.build(name, small=True)
    twin = copy.deepcopy(model)
    compiled = fresh.compile(twin)
    for run in (model, compiled):
        total = sum(v.float().mean() for v in models.flatten(run(**inputs)).values() if v.requires_grad)
        total.backward()
    for (path, p), q in zip(model.named_parameters(), twin.parameters()):
        assert (p.grad is None) == (q.grad is None), path
        if p.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-5)
