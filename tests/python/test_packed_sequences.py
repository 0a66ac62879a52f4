"""Packed sequences of several lengths through recurrent networks: one graph, for all lengths."""

import framejit
import pytest

torch = pytest.importorskip("torch")
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")
LENGTHS = [[7, 3, 5], [2, 7, 7], [1, 1, 1], [4, 6, 2]]


class Encoder(torch.nn.Module):
    def __init__(self, kind, sort=False, **options):
        super().__init__()
        self.rnn, self.sort = kind(4, 5, batch_first=True, **options), sort

    def forward(self, x, lengths):
        if self.sort:
            lengths, order = lengths.sort(descending=True)
            x = x[order]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.sort)
        out, state = self.rnn(packed)
        out, lengths = pad_packed_sequence(out, batch_first=True)
        last = state[0][-1] if isinstance(state, tuple) else state[-1]
        return out.tanh(), last * 2, lengths + 1


KINDS = [
    (torch.nn.LSTM, {}),
    (torch.nn.LSTM, {"bidirectional": True, "num_layers": 2}),
    (torch.nn.LSTM, {"proj_size": 3}),
    (torch.nn.GRU, {}),
    (torch.nn.GRU, {"bidirectional": True}),
    (torch.nn.RNN, {"nonlinearity": "relu"}),
    (torch.nn.RNN, {"num_layers": 2, "dropout": 0.5}),
]


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("kind, options", KINDS)
def test_one_graph_for_all_lengths(kind, options, sort):
    torch.manual_seed(0)
    model = Encoder(kind, sort, **options).eval()
    compiled = framejit.compile(model)
    with torch.no_grad():
        for lengths in LENGTHS:
            x, n = torch.randn(3, 7, 4), torch.tensor(lengths)
            for got, expected in zip(compiled(x, n), model(x, n), strict=True):
                assert (got.shape, got.stride(), got.dtype) == (expected.shape, expected.stride(), expected.dtype)
                torch.testing.assert_close(got, expected)
    info = framejit.cache_info(compiled)
    assert info["breaks"] == 0 and info["segments"] <= 3, info


def test_gradients():
    torch.manual_seed(0)
    model = Encoder(torch.nn.GRU)
    compiled = framejit.compile(model)
    for lengths in LENGTHS:
        x, n, grads = torch.randn(3, 7, 4), torch.tensor(lengths), []
        for f in (model, compiled):
            model.zero_grad()
            out, last, _ = f(x, n)
            (out.square().mean() + last.sum()).backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b)


def test_a_length_of_zero_raises_as_in_eager():
    model = Encoder(torch.nn.GRU).eval()
    compiled = framejit.compile(model)
    with torch.no_grad():
        compiled(torch.randn(3, 7, 4), torch.tensor([7, 3, 5]))
        for f in (model, compiled):
            with pytest.raises(RuntimeError, match="greater than 0"):
                f(torch.randn(3, 7, 4), torch.tensor([7, 0, 5]))


def test_a_packed_sequence_from_outside():
    rnn = torch.nn.LSTM(4, 5)

    def f(p):
        out, (h, _) = rnn(p)
        return out.data * 2, h + 1, isinstance(out, PackedSequence)

    compiled = framejit.compile(f)
    with torch.no_grad():
        for lengths in ([5, 4, 1], [3, 2, 2]):
            p = pack_padded_sequence(torch.randn(5, 3, 4), lengths)
            (a, b, c), (d, e, g) = compiled(p), f(p)
            torch.testing.assert_close(a, d)
            torch.testing.assert_close(b, e)
            assert c is g is True
    assert framejit.cache_info(compiled)["breaks"] == 0


def test_batches_of_several_sizes():
    """The batch's size is asked of the data. A run in which the network refuses what does not fit it is none of ours to report."""
    torch.manual_seed(0)
    model = torch.nn.GRU(3, 4, batch_first=True)

    def f(x, lengths):
        out, state = model(pack_padded_sequence(x, lengths, batch_first=True))
        return pad_packed_sequence(out, batch_first=True)[0], state

    compiled = framejit.compile(f)
    with torch.no_grad():
        for lengths in ([3, 2, 1], [3, 3, 3], [4, 2, 2, 1], [5, 2], [6, 2], [1], [5, 4, 3, 2, 1]):
            x, n = torch.randn(len(lengths), lengths[0], 3), torch.tensor(lengths)
            for got, expected in zip(compiled(x, n), f(x, n), strict=True):
                assert got.shape == expected.shape
                torch.testing.assert_close(got, expected)
    assert framejit.cache_info(compiled)["segments"] <= 4
