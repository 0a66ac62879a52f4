"""Gradients where some operands want none: those that do get what eager gives them."""

import math

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


@pytest.mark.parametrize("form", [{"k": 3, "groups": 1}, {"k": 5, "groups": 2}, {"k": 3, "groups": 4}, {"k": 1, "groups": 1}])
@pytest.mark.parametrize("of_input", [True, False])
def test_biases_beside_weights_that_are_fixed(fresh, form, of_input):
    torch.manual_seed(0)
    for make, sizes in ((nn.Conv2d, (9, 9)), (nn.Conv1d, (9,)), (nn.ConvTranspose2d, (5, 5))):
        conv = make(4, 4, form["k"], groups=form["groups"])
        conv.weight.requires_grad_(False)
        compiled = fresh.compile(conv)
        for n in (8, 8, 1):
            grads = []
            for f in (conv, compiled):
                conv.bias.grad = None
                x = torch.linspace(-1, 1, n * 4 * math.prod(sizes)).view(n, 4, *sizes).requires_grad_(of_input)
                f(x).square().sum().backward()
                grads.append([x.grad, conv.bias.grad])
            assert conv.weight.grad is None
            for mine, theirs in zip(*grads):
                assert (mine is None) == (theirs is None)
                if mine is not None:
                    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4)


def test_weights_of_classes_have_no_gradients(fresh):
    x, w = torch.randn(5, 3), torch.ones(3, requires_grad=True)
    f = fresh.compile(lambda x, w: F.cross_entropy(x, torch.tensor([1, 2, 0, 1, 2]), w))
    with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
        f(x, w)


@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_convolutions_of_each_channel(fresh, stride):
    """As pictures are made larger by fixed weights."""
    conv = nn.ConvTranspose2d(4, 4, 4, stride, 1, groups=4, bias=False).requires_grad_(False)
    compiled = fresh.compile(conv)
    for _ in range(2):
        grads = []
        for f in (conv, compiled):
            x = torch.linspace(-1, 1, 200).view(2, 4, 5, 5).requires_grad_()
            f(x).square().sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)
