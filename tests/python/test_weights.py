"""Weights that compiled code keeps in another form (packed for the library, normalisations folded in): whoever changes one,
in whatever way, sees the change in the next call."""

import copy
import gc

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


class Block(nn.Module):
    """Every convolution here may be packed: no long chains, and pictures of 96x96 make enough of them."""

    def __init__(self, channels=16):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 1)
        self.norm = nn.BatchNorm2d(channels)
        self.deep = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.deep_norm = nn.BatchNorm2d(channels)
        self.last = nn.Conv2d(channels, 8, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(8)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        y = y + nn.functional.silu(self.deep_norm(self.deep(y)))
        y = nn.functional.max_pool2d(y, 2)
        return self.last_norm(self.last(y)) * 2


def make(seed=0):
    torch.manual_seed(seed)
    model = Block()
    with torch.no_grad():
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.running_mean.normal_(0, 0.3)
            norm.running_var.uniform_(0.5, 2)
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_()
    return model.eval()


def held():
    import framejit

    return framejit.cache_info()["prepared_bytes"]


def in_float64(model):
    """A copy that does not touch the original's memory as copy.deepcopy does (which reads `.data`)."""
    twin = Block().double().eval()
    twin.load_state_dict(model.state_dict())
    twin.norm.eps = model.norm.eps
    return twin


def same(oracle, model, compiled, x):
    with torch.no_grad():
        got, eager, reference = compiled(x), model(x), in_float64(model)(x.double())
    assert got.stride() == eager.stride() and got.dtype == eager.dtype
    oracle.check(got, eager, reference)
    return got


def in_place(model):
    with torch.no_grad():
        model.last.weight.mul_(1.5)


def one_element(model):
    with torch.no_grad():
        model.deep.weight[3, 0, 1, 1] += 1


def by_data(model):
    model.last.weight.data[2, 5] = 7.0


def by_old_data(model):
    model.kept.mul_(0.5)


def data_replaced(model):
    for _ in range(3):  # addresses come back
        model.last.weight.data = torch.randn_like(model.last.weight)


def by_numpy(model):
    model.last.weight.detach().numpy()[1, 1] = 3


def by_dlpack(model):
    torch.from_dlpack(model.last.weight.detach()).view(-1)[7] = -4.0


def by_storage(model):
    model.last.weight.untyped_storage().copy_(torch.randn_like(model.last.weight).untyped_storage())


def by_address(model):
    import ctypes

    ctypes.cast(model.last.weight.data_ptr(), ctypes.POINTER(ctypes.c_float))[11] = 5.0


def statistics(model):
    model.train()
    with torch.no_grad():
        model(torch.randn(4, 3, 8, 8))
    model.eval()


def a_step(model):
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model(torch.randn(2, 3, 96, 96)).square().mean().backward()
    optimizer.step()
    model.zero_grad()


def loaded(model):
    model.load_state_dict(make(3).state_dict())


def assigned(model):
    model.load_state_dict(make(4).state_dict(), assign=True)


def replaced(model):
    model.last.weight = nn.Parameter(torch.randn_like(model.last.weight))


def new_statistics(model):
    model.last_norm.running_var = torch.rand(8) + 0.5


def other_eps(model):
    model.norm.eps = 0.5


CHANGES = [in_place, one_element, by_data, by_old_data, data_replaced, by_numpy, by_dlpack, by_storage, by_address, statistics, a_step,
           loaded, assigned, replaced, new_statistics, other_eps]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_is_seen(change, fresh, oracle):
    model = make()
    if change is by_old_data:
        model.__dict__["kept"] = model.last.weight.data
    compiled = fresh.compile(model)
    x = torch.randn(2, 3, 96, 96)
    for _ in range(3):
        before = same(oracle, model, compiled, x)
    change(model)
    after = same(oracle, model, compiled, x)
    assert not torch.equal(before, after)
    change(model)
    same(oracle, model, compiled, x)


def test_weights_are_kept_once_and_given_back(fresh, oracle):
    gc.collect()
    start = held()
    model = make()
    compiled = fresh.compile(model)
    x = torch.randn(2, 3, 96, 96)
    same(oracle, model, compiled, x)
    packed = held() - start
    convolutions = [model.first, model.deep, model.last]
    assert packed == sum(c.weight.nbytes for c in convolutions) + 4 * (16 + 16 + 8)
    for _ in range(5):
        same(oracle, model, compiled, x)
    assert held() - start == packed
    in_place(model)
    same(oracle, model, compiled, x)
    assert held() - start == packed


def test_convolutions_of_little_work_are_not_packed(fresh, oracle):
    """The library's call costs more than they do; the depthwise one has no other fast kernel."""
    start = held()
    model = make()
    same(oracle, model, fresh.compile(model), torch.randn(1, 3, 8, 8))
    assert held() - start == model.deep.weight.nbytes + 4 * 16


def test_copies_and_storages_do_not_matter(fresh, oracle):
    start = held()
    model = make()
    twin = copy.deepcopy(model)
    assert model.norm.running_mean.untyped_storage().nbytes() == 64
    compiled = fresh.compile(model)
    x = torch.randn(2, 3, 96, 96)
    same(oracle, model, compiled, x)
    assert held() > start
    storage = model.last.weight.untyped_storage()  # whoever has it may write
    same(oracle, model, compiled, x)
    assert held() == start
    del twin, storage


def test_weights_that_always_change_are_not_kept(fresh, oracle):
    start = held()
    model = make()
    compiled = fresh.compile(model)
    x = torch.randn(2, 3, 96, 96)
    for _ in range(12):
        in_place(model)
        same(oracle, model, compiled, x)
    assert held() == start


def test_option(fresh, oracle):
    import framejit

    start = held()
    framejit.config.pack_weights = False
    try:
        model = make()
        same(oracle, model, fresh.compile(model), torch.randn(2, 3, 96, 96))
        assert held() == start
    finally:
        framejit.config.pack_weights = True


def test_training_and_gradients(fresh, oracle):
    model = make()
    compiled = fresh.compile(model)
    x = torch.randn(2, 3, 96, 96)
    same(oracle, model, compiled, x)
    twin = copy.deepcopy(model)
    for m, call in ((model, compiled), (twin, twin)):
        m.train()
        call(x).square().mean().backward()
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    model.eval()
    same(oracle, model, compiled, x)
    model.double()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x.double()), model(x.double()))
    model.float()
    same(oracle, model, compiled, x)


@pytest.mark.parametrize("dynamic", [None, True])
def test_layouts_and_sizes(dynamic, fresh, oracle):
    model = make()
    compiled = fresh.compile(model, dynamic=dynamic)
    for shape in ((2, 3, 96, 96), (5, 3, 96, 96), (1, 3, 96, 96), (2, 3, 8, 8), (3, 3, 12, 10), (1, 3, 4, 4), (1, 3, 2, 2), (2, 3, 2, 2)):
        x = torch.randn(shape)
        for each in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
            same(oracle, model, compiled, each)


def test_not_a_number(fresh):
    model = make()
    compiled = fresh.compile(model)
    x = torch.randn(2, 3, 96, 96)
    x[0, 1, 2, 3] = float("nan")
    x[0, 2, 6, 6] = float("inf")
    with torch.no_grad():
        got, eager = compiled(x), model(x)
    assert torch.equal(got.isnan(), eager.isnan()) and eager.isnan().any()


def test_intermediate_results_keep_their_strides(fresh):
    model = make()

    def both(x):
        y = torch.relu(model.first(x))
        return y, y.permute(0, 2, 3, 1), model.last(y), torch.cat([y, y], 1), y.flatten(1) @ torch.ones(y[0].numel(), 2)

    x = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        for got, eager in zip(fresh.compile(both)(x), both(x)):
            assert got.stride() == eager.stride()
            torch.testing.assert_close(got, eager, rtol=2e-5, atol=1e-5)  # a sum of 147,456, in eager's order and in ours


def test_shared_and_foreign_memory(fresh, oracle):
    """Weights that are views or lie in NumPy's memory are used as they are."""
    import numpy

    memory = numpy.random.rand(8, 16, 1, 1).astype(numpy.float32)
    model = make()
    model.last.weight = nn.Parameter(torch.from_numpy(memory))
    flat = torch.randn(16 * 3)
    model.first.weight = nn.Parameter(flat.view(16, 3, 1, 1))
    compiled = fresh.compile(model)
    x = torch.randn(2, 3, 96, 96)
    before = same(oracle, model, compiled, x)
    memory[1, 2] = 9
    after = same(oracle, model, compiled, x)
    assert not torch.equal(before, after)
    flat[5] = 11
    assert not torch.equal(after, same(oracle, model, compiled, x))


def test_one_convolution_called_twice(fresh):
    """Its packed weights are one value: a library's own layout cannot be copied."""
    conv = torch.nn.Conv2d(8, 8, 3, padding=1).eval()
    norm = torch.nn.BatchNorm2d(8).eval()

    def f(x):
        y = norm(conv(x))
        return norm(conv(torch.relu(y))) + y

    compiled = fresh.compile(f)
    x = torch.randn(2, 8, 32, 32)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), f(x), rtol=1e-4, atol=1e-5)


def test_errors_are_those_of_what_leads_to_a_result(fresh):
    """Long sums elsewhere in the graph are no reason to sum far for a result that is made without them."""

    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.near, self.deep = nn.Conv2d(2048, 16, 1), nn.Conv2d(256, 16, 1), nn.Conv2d(64, 64, 3, padding=1)

        def forward(self, x, y, z):
            return torch.relu(self.wide(x)), torch.relu(self.near(y)), torch.relu(self.deep(z))

    torch.manual_seed(0)
    model, start = Apart(), held()
    compiled, exact = fresh.compile(model), copy.deepcopy(model).double()
    args = [torch.randn(2, c, 16, 16) for c in (2048, 256, 64)]
    with torch.no_grad():
        for _ in range(3):
            got = compiled(*args)
        for mine, eager, right in zip(got, model(*args), exact(*(x.double() for x in args)), strict=True):
            own, ours = (float((t.double() - right).abs().max()) for t in (eager, mine))
            assert ours <= 2 * own + torch.finfo(torch.float32).eps * float(right.abs().max())
    assert held() - start == model.near.weight.nbytes  # it alone sums as far as in eager
