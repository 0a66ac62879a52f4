"""The effects table (src/graph/effects.cc) beside what torch's own schemas and tags say of its operators."""

import pytest

torch = pytest.importorskip("torch")
from framejit._framejit import tensor_testing as boundary  # noqa: E402

PUBLIC = set(dir(torch)) | set(dir(torch.Tensor)) | set(dir(torch.nn.functional)) | set(dir(torch._C._nn)) | set(dir(torch.special)) | set(dir(torch.linalg))
# They draw where their arguments say that something is dropped: tensor/undo.cc and the stand-ins look at these.
BY_ARGUMENT = {"lstm", "gru", "rnn_relu", "rnn_tanh", "miopen_rnn", "scaled_dot_product_attention"}
# A mask among the indices decides; the lowering looks.
BY_INDEX = {"index"}


def operators():
    """(name, schema, tags) of torch's operators that users can name and that are not its internals."""
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("aten::")
        if name == schema.name or name not in PUBLIC or (name.startswith("_") and not name.startswith("__")):
            continue
        try:
            op = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")
        except AttributeError:
            continue
        yield name, schema, {str(tag).rpartition(".")[2] for tag in op.tags}


def effects(name):
    return boundary.effects("torch.ops.aten." + name).split()


def test_what_draws():
    drawing = {name for name, _, tags in operators() if "nondeterministic_seeded" in tags}
    assert len(drawing) > 20
    assert {name for name in drawing if "draws" not in effects(name)} == BY_ARGUMENT


def test_what_data_decides():
    by_data = {name for name, _, tags in operators() if tags & {"data_dependent_output", "dynamic_output_shape"}}
    assert len(by_data) > 8
    assert {name for name in by_data if not {"outside", "sized_by_data"} & set(effects(name))} == BY_INDEX


def test_what_writes_its_first_argument():
    """A name that says so is an operator that does, and the other way round."""
    for name, schema, _ in operators():
        arguments = [a for a in schema.arguments if not a.is_out]
        writes = bool(arguments and arguments[0].alias_info and arguments[0].alias_info.is_write)
        says = "in_place" in effects(name)
        assert says <= writes, str(schema)
        refused = any(e.startswith("ends=") for e in effects(name)) or "writes_in_silence" in effects(name)
        # The others are no operations on one tensor, or tell by a version that steps.
        assert writes <= says or refused or name in {"record_stream", "sort", "fused_moving_avg_obs_fake_quant"}, str(schema)


def test_one_answer_for_all_names_of_an_operation():
    for name in ("add", "mul", "exp", "dropout", "softmax", "bernoulli"):
        plain = set(boundary.effects("torch." + name).split())
        assert plain == set(boundary.effects("torch._C._VariableFunctionsClass." + name).split())
        in_place = set(boundary.effects(f"torch.Tensor.{name}_").split())
        kept = {e for e in plain if not e.startswith(("cpu=", "cuda=", "batch="))}
        assert kept <= in_place and "in_place" in in_place
