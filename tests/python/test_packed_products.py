"""Products whose weights are kept packed: right results for every shape, and every change of a weight is seen."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

MKL, ONEDNN, PACKED = range(3)


@pytest.fixture
def force(fj):
    """Which library runs products must not depend on this machine."""
    from framejit import _framejit

    testing = _framejit.tensor_testing
    if "sgemm" in dict(testing.doctor()).get("torch.symbols", "ok"):
        pytest.skip("this torch has no packed products")
    yield testing.force_library
    testing.force_library(-1)


def held():
    import framejit

    return framejit.cache_info()["prepared_bytes"]


class Net(nn.Module):
    def __init__(self, width=256, hidden=320):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)
        self.turned = nn.Parameter(torch.randn(width, 272) / 16)  # as GPT-2's Conv1D keeps it
        self.shift = nn.Parameter(torch.randn(272))
        self.small = nn.Linear(272, 8)

    def forward(self, x):
        y = self.down(F.gelu(self.up(x))) + x
        y = torch.addmm(self.shift, y.view(-1, y.shape[-1]), self.turned)
        return self.small(y).view(*x.shape[:-1], 8), y


def make(seed=0):
    torch.manual_seed(seed)
    return Net().eval()


def same(oracle, model, compiled, x, forced=False):
    """forced: by a library that the chooser would ask for its accuracy first; then the largest of so many errors is left alone."""
    twin = Net().double().eval()
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        got, eager, reference = compiled(x), model(x), twin(x.double())
    for g, e, r in zip(got, eager, reference):
        assert g.stride() == e.stride()
        if forced:
            mine, theirs = ((t.double() - r).square().mean().sqrt() for t in (g, e))
            assert mine <= 2 * theirs + torch.finfo(torch.float32).eps * r.abs().max()
        else:
            oracle.check(g, e, r)
    return got[0].clone()


def packed_bytes(model):
    return model.up.weight.nbytes + model.down.weight.nbytes + model.turned.nbytes


@pytest.mark.parametrize("library", [PACKED, ONEDNN, MKL])
@pytest.mark.parametrize("shape", [(16, 256), (100, 256), (1, 128, 256), (3, 37, 256), (2, 2, 17, 256), (5, 256), (1, 256)], ids=str)
def test_shapes(shape, library, force, fresh, oracle):
    force(library)
    start = held()
    model = make()
    compiled = fresh.compile(model)
    x = torch.randn(shape)
    for _ in range(3):
        same(oracle, model, compiled, x, library == ONEDNN)
    assert held() - start == (packed_bytes(model) if library == PACKED and x[..., 0].numel() >= 16 else 0)
    wide = torch.randn(*shape[:-1], 512)[..., ::2]  # rows that do not lie together
    for _ in range(2):
        same(oracle, model, compiled, wide.contiguous() if len(shape) > 2 else wide, library == ONEDNN)


@pytest.mark.parametrize("dynamic", [None, True])
def test_other_numbers_of_rows(dynamic, force, fresh, oracle):
    force(PACKED)
    model = make()
    compiled = fresh.compile(model, dynamic=dynamic)
    for rows in (64, 64, 64, 1, 2, 15, 16, 17, 31, 200, 3, 64, 1000):
        same(oracle, model, compiled, torch.randn(rows, 256))
        same(oracle, model, compiled, torch.randn(2, rows, 256))


def in_place(model):
    with torch.no_grad():
        model.up.weight.mul_(1.5)


def by_data(model):
    model.down.weight.data[2, 5] = 70.0


def by_numpy(model):
    model.turned.detach().numpy()[:, 1] = 3


def by_storage(model):
    model.down.weight.untyped_storage().copy_(torch.randn_like(model.down.weight).untyped_storage())


def loaded(model):
    model.load_state_dict(make(3).state_dict())


def replaced(model):
    model.up.weight = nn.Parameter(torch.randn_like(model.up.weight))


def a_step(model):
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model(torch.randn(20, 256))[0].square().mean().backward()
    optimizer.step()
    model.zero_grad()


@pytest.mark.parametrize("change", [in_place, by_data, by_numpy, by_storage, loaded, replaced, a_step], ids=lambda f: f.__name__)
def test_a_change_is_seen(change, force, fresh, oracle):
    force(PACKED)
    model = make()
    compiled = fresh.compile(model)
    x = torch.randn(40, 256)
    for _ in range(3):
        before = same(oracle, model, compiled, x)
    change(model)
    assert not torch.equal(before, same(oracle, model, compiled, x))
    change(model)
    for _ in range(3):
        same(oracle, model, compiled, x)


def test_kept_from_the_second_run_on(force, fresh, oracle):
    force(PACKED)
    start = held()
    model = make()
    compiled = fresh.compile(model)
    x = torch.randn(40, 256)
    same(oracle, model, compiled, x)
    assert held() == start  # what is called once is not worth it
    for _ in range(3):
        same(oracle, model, compiled, x)
        assert held() - start == packed_bytes(model)
    fresh.reset()
    del compiled
    assert held() == start


def test_off(force, fresh, oracle):
    import framejit

    force(PACKED)
    start = held()
    model = make()
    x = torch.randn(40, 256)

    def run():
        compiled = fresh.compile(model)
        for _ in range(3):
            same(oracle, model, compiled, x)
        assert held() == start

    framejit.config.pack_weights = False
    try:
        run()
    finally:
        framejit.config.pack_weights = True
    fresh.reset()
    torch.use_deterministic_algorithms(True)
    try:
        run()
    finally:
        torch.use_deterministic_algorithms(False)


def test_weights_that_cannot_be_watched(force, fresh, oracle):
    """One that is a view of other memory is used as it is; the others are packed all the same."""
    force(PACKED)
    start = held()
    model = make()
    memory = torch.randn(320 * 256) / 16
    model.up.weight = nn.Parameter(memory.view(320, 256))
    compiled = fresh.compile(model)
    x = torch.randn(40, 256)
    for _ in range(3):
        before = same(oracle, model, compiled, x)
    assert held() - start == packed_bytes(model) - model.up.weight.nbytes
    memory[100:200] = 5
    assert not torch.equal(before, same(oracle, model, compiled, x))


def test_one_weight_in_two_products(force, fresh):
    force(PACKED)
    start = held()
    embedding = nn.Embedding(300, 128)
    wide = nn.Linear(128, 300, bias=False)
    wide.weight = embedding.weight

    def f(i):
        x = embedding(i)
        return wide(torch.tanh(x)), F.linear(x[:20], embedding.weight), x @ embedding.weight.t()

    compiled = fresh.compile(f)
    i = torch.randint(0, 300, (50,))
    with torch.no_grad():
        for _ in range(4):
            for got, eager in zip(compiled(i), f(i)):
                torch.testing.assert_close(got, eager, rtol=1e-4, atol=1e-5)
    assert held() - start in (embedding.weight.nbytes, 2 * embedding.weight.nbytes)


def test_not_a_number(force, fresh):
    force(PACKED)
    model = make()
    compiled = fresh.compile(model)
    x = torch.randn(40, 256)
    x[3, 7], x[5, 1] = float("nan"), float("inf")
    with torch.no_grad():
        for _ in range(3):
            for got, eager in zip(compiled(x), model(x)):
                assert torch.equal(got.isnan(), eager.isnan()) and eager.isnan().any()


def test_gradients(force, fresh):
    force(PACKED)
    model, twin = make(), make()
    compiled = fresh.compile(model)
    x = torch.randn(40, 256)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
    packed = held()
    for m, call in ((model, compiled), (twin, twin)):
        call(x)[0].square().mean().backward()
    assert held() == packed
    for p, q in zip(model.parameters(), twin.parameters()):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)


PROGRAM = """
import json, torch, framejit
m = torch.nn.Linear(512, 512)
c = framejit.compile(m)
x = torch.randn(64, 512)
with torch.no_grad():
    for _ in range(3):
        y = c(x)
    print(json.dumps((y - m(x)).abs().max().item()))
"""


def test_choices_are_remembered(tmp_path):
    """In a file that may be torn, of numbers from elsewhere, or not there."""
    folder = tmp_path / "cache"
    env = {**os.environ, "FRAMEJIT_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for torn in (False, True):
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, text=True, capture_output=True, check=True)
        assert json.loads(done.stdout.splitlines()[-1]) < 1e-4
        assert folder.stat().st_mode & 0o777 == 0o700
        for file in folder.iterdir():
            assert file.name.startswith("products-")
            assert torn or all(len(line.split()) == 9 for line in file.read_text().splitlines())
            file.write_text("1 64 512 512 4 1 1 9 .\n1 64 512 5\n\nx\n1 1 1 1 1 1 1 -1 .\n" + file.read_text()[:-3])


def test_products_that_no_library_takes_as_they_lie(fj):
    """Rows that are no single dimension: torch's own function copies them, as in eager, instead of a loop of ours."""
    x, w, bias, y = torch.randn(64, 40, 48), torch.randn(56, 48), torch.randn(56), torch.randn(4, 64, 40, 48)

    def linear(x, w):
        return F.linear(x.transpose(0, 1), w) * 2

    def with_bias(x, w, bias):
        return F.linear(x.transpose(0, 1), w, bias) * 2

    def batches(y):
        z = y.permute(2, 1, 0, 3)
        return torch.matmul(z, z.transpose(-1, -2)) + 1

    for f, arguments in ((linear, (x, w)), (with_bias, (x, w, bias)), (batches, (y,))):
        compiled = fj.compile(f)
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(compiled(*arguments), f(*arguments), rtol=1e-5, atol=1e-4)
        assert compiled.cache_info()["outcomes"]["run"] == {"graph": 2}, compiled.cache_info()
        # Which function ran cannot be seen in the result: torch's profiler sees it.
        with torch.profiler.profile() as seen, torch.no_grad():
            compiled(*arguments)
        assert {"aten::linear", "aten::matmul"} & {e.name for e in seen.events()}, f.__name__
