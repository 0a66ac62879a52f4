"""tensor.grad read in a compiled function: what backward left there is an input like any other."""

import pytest

torch = pytest.importorskip("torch")


def leaf(wants=True):
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (w * w).sum().backward()
    return w.requires_grad_(wants)


def updated(w):
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad.zero_()
    return w.grad is None, w.grad * 1


@pytest.mark.parametrize("wants", [True, False])
def test_as_in_eager(fresh, wants):
    def asked(w):
        return w.detach() * 2, w.grad is None, 0 if w.grad is None else w.grad * 3

    told = fresh.explain(asked)(leaf(wants))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(asked)
    w = leaf(wants)
    for grad in (w.grad, None, torch.ones(3), None, torch.full((3,), 5.0)):
        w.grad = grad
        got, expected = compiled(w), asked(w)
        assert got[1] == expected[1]
        torch.testing.assert_close(got, expected)


def test_an_update_by_hand_is_one_graph(fresh):
    told = fresh.explain(updated)(leaf())
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    ours, theirs = leaf(), leaf()
    compiled = fresh.compile(updated)
    for _ in range(3):
        for w in (ours, theirs):
            (w * w * w).sum().backward()
        torch.testing.assert_close(compiled(ours), updated(theirs))
        assert torch.equal(ours, theirs) and torch.equal(ours.grad, theirs.grad)


def test_of_what_is_no_leaf_is_left_to_torch(fresh):
    def asked(y):
        return y.grad

    with pytest.warns(UserWarning, match="not a leaf"):
        assert fresh.compile(asked)(leaf() * 2) is None
