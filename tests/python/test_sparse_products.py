"""torch.sparse.mm, which models of graphs call on dense matrices, too: one graph, with gradients."""

import framejit
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


def layer(a, x):
    return torch.sparse.mm(a, x).tanh() * x


@pytest.mark.parametrize("tracked", [False, True])
def test_of_dense_matrices(tracked):
    compiled = framejit.compile(layer)
    for seed in range(3):
        torch.manual_seed(seed)
        a, x = torch.randn(3, 3), torch.randn(3, 2, requires_grad=tracked)
        got, expected = compiled(a, x), layer(a, x)
        torch.testing.assert_close(got, expected)
        if tracked:
            (mine,), (theirs,) = (torch.autograd.grad(y.square().sum(), x) for y in (got, expected))
            torch.testing.assert_close(mine, theirs)
    assert (framejit.cache_info(compiled)["breaks"], framejit.cache_info(compiled)["segments"]) == (0, 1)


def test_a_sparse_matrix_is_one_graph():
    a, x = torch.eye(3).to_sparse(), torch.randn(3, 2)
    compiled = framejit.compile(layer)
    torch.testing.assert_close(compiled(a, x), layer(a, x))
    assert (framejit.cache_info(compiled)["breaks"], framejit.cache_info(compiled)["segments"]) == (0, 1)
