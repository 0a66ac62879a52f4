"""data_ptr() of tensors, compared: what attention modules ask to see whether query, key and value are one tensor."""

import framejit
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    if q.data_ptr() == k.data_ptr() == v.data_ptr():
        return q * 2
    if k.data_ptr() == v.data_ptr():
        return q + k
    return q + k + v


PROGRAMS = {
    "all one": (lambda x: attention(x, x, x), True),
    "two of three": (lambda x: attention(x * 3, x, x), True),
    "made here": (lambda x: attention(x, x * 2, x * 3), True),
    "not equal": (lambda x: x + 1 if x.data_ptr() != (x + 1).data_ptr() else x, True),
    "a view": (lambda x: attention(x.view(4), x, x), False),
    "a number": (lambda x: x * (x.data_ptr() % 2), False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_known_of_addresses(name):
    f, whole = PROGRAMS[name]
    compiled = framejit.compile(f)
    for k in range(3):
        x = torch.arange(4.0) + k
        assert torch.equal(compiled(x), f(x))
    info = framejit.cache_info(compiled)
    assert (info["breaks"] == 0) is whole, framejit.explain(f)(x).break_reasons


def test_inputs_may_share_memory():
    compiled = framejit.compile(attention)
    x, y = torch.ones(3), torch.ones(3)
    for args in ((x, y, y.clone()), (x, x, x), (x, x.view(3), x.detach()), (y, x, x.view(3))):
        assert torch.equal(compiled(*args), attention(*args))


def test_empty_tensors_have_no_address():
    def f(x):
        a, b = x[:0] + 1, x[:0] * 2
        return x + (a.data_ptr() == b.data_ptr())

    x = torch.ones(3)
    assert torch.equal(framejit.compile(f)(x), f(x))
