"""The examples with which PyTorch 2 was announced, as their users write them; only the import is another. Same values, same
gradients, same buffers."""

import copy

import pytest

torch = pytest.importorskip("torch")


def test_sin_plus_cos(fresh):
    @fresh.compile
    def foo(x, y):
        a = torch.sin(x)
        b = torch.cos(y)
        return a + b

    x, y = torch.randn(10, 10), torch.randn(10, 10)
    for _ in range(3):
        torch.testing.assert_close(foo(x, y), torch.sin(x) + torch.cos(y))
    told = fresh.explain(foo)(x, y)
    assert (told.graph_count, told.graph_break_count, told.op_count) == (1, 0, 3)


def test_sin_plus_cos_from_a_lambda_and_with_gradients(fresh):
    foo = fresh.compile(lambda x, y: torch.sin(x) + torch.cos(y))
    x, y = torch.randn(10, 10, requires_grad=True), torch.randn(10, 10, requires_grad=True)
    result = foo(x, y)
    assert result.requires_grad
    result.sum().backward()
    torch.testing.assert_close(x.grad, torch.cos(x))
    torch.testing.assert_close(y.grad, -torch.sin(y))


def _train_like(fresh, model, make, steps=3, gradients=5e-3):
    """Runs the same steps eagerly and compiled; compares results, gradients and buffers."""
    eager, ours = model, copy.deepcopy(model)
    compiled = fresh.compile(ours, backend="inductor")
    assert list(compiled.state_dict()) == list(eager.state_dict())
    for step in range(steps):
        torch.manual_seed(step)
        x = make()
        expected = eager(x)
        result = compiled(x)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        expected.sum().backward()
        result.sum().backward()
        # As one vector: where relu and max_pool choose between values equal but for rounding, single elements differ. In
        # float64 nothing is that near, and every parameter's gradient is compared by itself.
        pairs = [(p.grad.flatten(), q.grad.flatten()) for p, q in zip(eager.parameters(), ours.parameters())]
        for gradient, mine in pairs if gradients < 1e-6 else [[torch.cat(side) for side in zip(*pairs)]]:
            assert (mine - gradient).norm() <= gradients * gradient.norm()
        for (name, b), c in zip(eager.named_buffers(), ours.named_buffers()):
            torch.testing.assert_close(c[1], b, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"buffer {name}: {m}")
    changed = [b for name, b in ours.named_buffers() if name.endswith("num_batches_tracked")]
    assert changed and all(int(b) == steps for b in changed)
    assert not fresh.cache_info(compiled)["notes"], "the backward pass is not compiled"
    told = fresh.explain(ours)(make())
    assert told.graph_count == 1 and told.graph_break_count == 0


def test_resnet18(fresh, two_threads):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet18()
    wide = copy.deepcopy(model).double()
    _train_like(fresh, model, lambda: torch.randn(1, 3, 64, 64))
    _train_like(fresh, wide, lambda: torch.randn(1, 3, 64, 64, dtype=torch.float64), gradients=1e-9)


@pytest.mark.slow
def test_resnext101(fresh, two_threads):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("resnext101_32x8d", pretrained=False, num_classes=2)
    _train_like(fresh, model, lambda: torch.randn(64, 3, 7, 7), steps=1)


def test_bert_with_gradients(fresh, two_threads):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=1000,
                                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    torch.manual_seed(0)
    eager = transformers.BertModel(config)
    ours = copy.deepcopy(eager)
    compiled = fresh.compile(ours)
    ids = torch.randint(0, 1000, (1, 12))
    for _ in range(2):
        expected, result = eager(input_ids=ids), compiled(input_ids=ids)
        assert type(result) is type(expected) and list(result) == list(expected)
        torch.testing.assert_close(result.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-5)
        expected.pooler_output.sum().backward()
        result.pooler_output.sum().backward()
    for (name, p), q in zip(eager.named_parameters(), ours.parameters()):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-4)


def test_reason_is_logged_where_gradients_are_wanted(capfd, fresh):
    @fresh.compile
    def f(x):
        y = torch.tanh(x)
        with torch.no_grad():
            y.mul_(2)
        return y * 2

    with fresh.config.patch(log="perf"):
        f(torch.ones(3, requires_grad=True))
    assert "gradient" in capfd.readouterr().err


def test_compile_inside_a_request_handler(fresh):
    from torch_modules import Net

    torch.manual_seed(0)
    model = Net().eval()
    expected = None

    def handler(x):
        nonlocal model
        model = fresh.compile(model)
        with torch.no_grad():
            return model(x)

    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = model(x)
    first = handler(x)
    torch.testing.assert_close(first, expected)
    misses = fresh.cache_info()["misses"]
    with fresh.stance("fail_on_recompile"):
        for _ in range(1000):
            result = handler(x)
    torch.testing.assert_close(result, expected)
    assert fresh.cache_info()["misses"] == misses


def test_compile_of_the_original_inside_a_request_handler(fresh):
    from torch_modules import Net

    model = Net().eval()

    def handler(x):
        compiled = fresh.compile(model)
        with torch.no_grad():
            return compiled(x)

    x = torch.randn(2, 4)
    handler(x)
    with fresh.stance("fail_on_recompile"):
        for _ in range(100):
            handler(x)


def k_means_step(points, centers):
    distances = ((points[:, None] - centers[None]) ** 2).sum(-1)
    label = distances.argmin(1)
    one_hot = label[:, None] == range_like(centers)
    weight = one_hot + distances * 0
    return (weight.T @ points) / weight.sum(0)[:, None], label


def range_like(centers):
    return torch.arange(len(centers)) if isinstance(centers, torch.Tensor) else __import__("numpy").arange(len(centers))


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_k_means_step(fresh, kind, np):
    generator = np.random.default_rng(0)
    points, centers = generator.normal(size=(500, 3)), generator.normal(size=(4, 3))
    if kind == "tensors":
        points, centers = torch.from_numpy(points), torch.from_numpy(centers)
    compiled = fresh.compile(k_means_step)
    for _ in range(5):
        expected, labels = k_means_step(points, centers)
        moved, found = compiled(points, centers)
        assert type(moved) is type(expected)
        assert (found == labels).all()
        assert abs(moved - expected).max() < 1e-12
        centers = moved
