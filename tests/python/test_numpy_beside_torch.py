"""NumPy beside torch's tensors: sizes that data decides, numbers of arrays and of what was drawn, in one graph."""

import random

import framejit
import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def drawn_index(x, a):
    k = int(np.random.permutation(np.arange(3))[0])
    return x[k] * 2, k, x[:, : k + 1].sum()


def drawn_float(x, a):
    p = np.random.uniform(1, 4, size=2)
    return x[: int(p[0])], float(p[1]), x * float(p[0])


def drawn_list(x, a):
    order = np.random.permutation(4).tolist()
    return order, x[order[0]] + x[order[-1]]


def drawn_number(x, a):
    k, factor = np.random.choice([0, 1, 2]), np.random.choice(np.array([0.5, 2.0]))
    return k, factor, x[k] * factor, x[:, :k]


def drawn_and_written(x, a):
    p = np.random.permutation(4)
    p[0] = 2
    return p, int(p[0]) + int(p[1]), x


def counted(x, a):
    return np.bincount([0, 1, 1, 3]), np.bincount([0, 2], weights=[0.5, 2.0]), torch.from_numpy(np.bincount(a.astype(int) + 9)) * x.sum()


def masked(x, a):
    positive = a[a > 0]
    return positive, torch.from_numpy(positive).float().sum() * x, (a > 0).sum(), x[np.flatnonzero(a > 0)]


def distinct(x, a):
    values, inverse, counts = np.unique(a.astype(int), return_inverse=True, return_counts=True)
    return values, counts, x.sum() * torch.from_numpy(counts), torch.from_numpy(inverse) + 1


def length(x, a):
    found = np.flatnonzero(a > 0)
    return x * len(found), x * found.size, len((x[0] > 0).nonzero()) + x


def places(x, a):
    rows, columns = np.where(a.reshape(2, 4) > 0)
    return x + 1, np.nonzero(a > 0)[0], np.argwhere(a > 0), rows, columns


def largest(x, a):
    k = int(np.argmax(a))
    return k, x * k, float(a.max()) * x


def same(got, expected):
    assert type(got) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for g, e in zip(got, expected):
            same(g, e)
    elif isinstance(expected, torch.Tensor):
        assert got.stride() == expected.stride() and got.requires_grad == expected.requires_grad
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, np.ndarray):
        assert (got.dtype, got.shape, got.strides) == (expected.dtype, expected.shape, expected.strides)
        assert np.array_equal(got, expected) and got.flags.owndata == expected.flags.owndata
        assert type(got.base) is type(expected.base)
    else:
        assert got == expected


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("f", [drawn_index, drawn_float, drawn_list, drawn_number, drawn_and_written, counted, masked, distinct, length, places, largest])
def test_one_graph(fresh, f, grad):
    compiled = fresh.compile(lambda x, a: f(x * 2 + 1, a))
    for seed in range(6):
        torch.manual_seed(seed)
        x, a = torch.randn(8, 5, requires_grad=grad), np.random.default_rng(seed).standard_normal(8)
        a = abs(a) if seed == 4 else a
        results = []
        for call in (compiled, lambda x, a: f(x * 2 + 1, a)):
            np.random.seed(seed)
            random.seed(seed)
            results.append((call(x, a), np.random.rand()))
        same(*results)
    info = framejit.cache_info(compiled)
    assert info["breaks"] == (f is drawn_and_written)  # an element of what was written later is none that was drawn
    if f not in (drawn_and_written, drawn_float):  # a float that is made an integer is one value for each version
        assert info["segments"] <= 3  # sizes of one or none, and numbers that decide a size, may be versions


def test_the_length_of_a_tensor_is_a_size(fresh):
    @fresh.compile
    def f(x):
        return x.reshape(len(x), -1) * len(x)

    for n in range(3, 10):
        x = torch.randn(n, 2, 3)
        assert f(x).equal(x.reshape(n, -1) * n)
    assert framejit.cache_info(f)["recompiles"] <= 1


def test_a_branch_on_a_drawn_element(fresh):
    def f(x):
        k = int(np.random.permutation(3)[0])
        return x + 1 if k == 0 else x * k

    compiled = fresh.compile(f)
    for seed in range(12):
        results = []
        for call in (compiled, f):
            np.random.seed(seed)
            results.append((call(torch.ones(3)), np.random.rand()))
        same(*results)
    assert framejit.cache_info(compiled)["breaks"] == 0


LETTERS = list("abcdef")


class Index:
    def __init__(self, k):
        self.k = k

    def __index__(self):
        return self.k


@pytest.mark.parametrize("bound", [int, np.int64, np.int32, np.array, torch.tensor, Index])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, s: (x[:, s] + 1, x[s] * 2),
        lambda x, s: (x + 1, LETTERS[s]),
        lambda x, s: (x + 1, tuple(LETTERS)[s], "abc"[s], [1, 2, 3][s], tuple(x.shape[s])),
        lambda x, s: (x + 1, [k for k in range(5)[s]]),
    ],
)
def test_slices_from_outside(fresh, f, bound):
    """A slice whose bounds are no numbers of Python's was guarded by its type alone."""
    compiled = fresh.compile(f)
    for k in (1, 2, 3, 2):
        x = torch.randn(4, 5)
        same(compiled(x, slice(None, bound(k))), f(x, slice(None, bound(k))))


def clipped(a):
    if a.max() > 1:  # guessed in a function that is called
        a = np.minimum(a, 1)
    return torch.from_numpy(a)


def test_a_guess_about_an_array_beside_gradients(fresh):
    """What it is about is a result of the graph, and a pair of graphs gives torch's tensors alone."""

    def f(x, a):
        h = x[:, None]
        h.requires_grad = True
        return h[:, 0] * clipped(a) * weight

    weight = torch.nn.Parameter(torch.randn(8))
    compiled = fresh.compile(f)
    for k in range(4):
        x, a = torch.randn(3, 8), np.random.default_rng(k).random(8).astype(np.float32) * 9
        results = []
        for call in (compiled, f):
            weight.grad = None
            y = call(x, a)
            y.sum().backward()
            results.append((y, weight.grad))
        same(*results)
    info = framejit.cache_info(compiled)
    assert (info["breaks"], info["notes"]) == (0, [])
    assert info["segments"] <= 2
