"""What of CuPy needs no GPU: its arrays are read, functions of them captured and guarded. Without one the arrays lie in the CPU's memory, which
CuPy does not look at, and nothing is computed (tests with results: gpu_cupy_test.py)."""

import pytest

np = pytest.importorskip("numpy")
cupy = pytest.importorskip("cupy")
import framejit  # noqa: E402
from framejit import _framejit  # noqa: E402


def array(*shape, dtype="float32"):
    memory = np.zeros(shape, dtype)
    pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(memory.ctypes.data, max(1, memory.nbytes), memory, 0), 0)
    return cupy.ndarray(shape, memory.dtype, pointer)


@pytest.fixture
def recorded():
    """Calls of the graphs that are captured; the results are inputs, given back as they are."""
    calls = []

    def backend(graph, examples):
        calls.append([str(n) for n in graph.nodes])
        results = str(graph).count("return")
        return lambda *inputs: [inputs[0]] * results

    framejit.register_backend("recorded", backend)
    return calls


def captured(f, *arguments):
    compiled = framejit.compile(f, backend="recorded")
    compiled.clear()
    compiled(*arguments)
    return compiled


def test_bound():
    assert dict(_framejit.doctor())["cupy"] == "ok"


def test_calls(recorded):
    x = array(3, 4)
    compiled = captured(lambda a: cupy.exp(a.T + 1).sum(0) * np.sqrt(a[0, 1]), x)
    assert [c.split(" = ")[1].split("(")[0] for c in recorded[0]] == [
        "cupy.ndarray.T.__get__", "cupy.ndarray.__add__", "cupy.exp", "cupy.ndarray.sum", "cupy.ndarray.__getitem__", "numpy.sqrt", "cupy.ndarray.__mul__"]  # fmt: skip
    assert "cuda:0" in compiled.graphs[0] and not any("numpy state" in g for g in compiled.guards)


def test_guards(recorded):
    compiled = captured(lambda a: a * 2, array(3, 4))
    for other in (array(3, 4), array(3, 4)[:, ::-1][:, ::-1]):
        compiled(other)
    assert len(recorded) == 1
    for other in (array(3, 5), array(3, 4, dtype="float64"), array(4, 3).T, array(12)):
        compiled(other)
    assert len(recorded) == 5


def test_views_share_memory(recorded):
    """Two views of one memory, one of them written."""

    def f(a, b):
        a += b
        return a

    compiled = captured(f, array(3, 4), array(3, 4))
    assert any("apart" in g for g in compiled.guards), compiled.guards


def test_types_by_name(recorded):
    captured(lambda a: a.astype("f8") + a.sum(axis=1, dtype="float64", keepdims=True), array(3, 4))
    assert len(recorded) == 1 and len(recorded[0]) == 3


@pytest.mark.parametrize("f", [
    lambda a: a + np.ones(4), lambda a: cupy.exp(2.0) + a, lambda a: a * np.float32(2), lambda a: cupy.sinc(a), lambda a: cupy.dot(a, 2),
    lambda a: cupy.linalg.inv(a), lambda a: cupy.random.rand(3) + a, lambda a: cupy.exp(np.ones(3)),
])  # fmt: skip
def test_what_is_left_to_cupy(f, recorded):
    with pytest.raises(Exception) as told:  # CuPy's own, which has no GPU or refuses the arguments
        captured(f, array(4, 4))
    assert "framejit" not in str(told.value), told.value
