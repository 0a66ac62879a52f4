"""torch.nn.utils.clip_grad_norm_ and the functions of lists of tensors (torch._foreach_*) behind it: one graph, and what eager leaves."""

import copy

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


def model(layers=2, width=5):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


def set_grads(m, seed, without=()):
    torch.manual_seed(seed)
    for i, p in enumerate(m.parameters()):
        g = torch.randn_like(p) * (seed + 1)
        p.grad = None if i in without else g


def same(ours, theirs):
    for p, q in zip(ours.parameters(), theirs.parameters()):
        assert torch.equal(p, q) and p._version == q._version
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad)
            assert p.grad._version == q.grad._version and p.grad.stride() == q.grad.stride()


def outcome(f, *args):
    try:
        return f(*args)
    except RuntimeError as error:
        return str(error)


def whole(told):
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


CLIPS = {
    "norm 2": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0),
    "norm 1": lambda m: nn.utils.clip_grad_norm_(list(m.parameters()), 0.5, norm_type=1),
    "largest": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.5, norm_type=float("inf")),
    "one by one": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0, foreach=False),
    "value": lambda m: nn.utils.clip_grad_value_(m.parameters(), 0.3),
    "value one by one": lambda m: nn.utils.clip_grad_value_(m.parameters(), 0.3, foreach=False),
}


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS.keys())
def test_is_one_graph(fresh, clip):
    m = model()
    set_grads(m, 0)
    whole(fresh.explain(clip)(m))
    ours, theirs = model(), model()
    compiled = fresh.compile(clip)
    for step, without in enumerate([(), (), (1,), (), (0, 1, 2, 3), ()]):
        for one in (ours, theirs):
            set_grads(one, step, without)
        got, expected = outcome(compiled, ours), outcome(clip, theirs)
        assert type(got) is type(expected)
        if torch.is_tensor(got):
            torch.testing.assert_close(got, expected)
            assert not got.requires_grad
        else:
            assert got == expected
        same(ours, theirs)


def test_many_parameters(fresh):
    def clip(m):
        return nn.utils.clip_grad_norm_(m.parameters(), 1.0)

    ours, theirs = model(90, 3), model(90, 3)
    set_grads(ours, 3)
    whole(fresh.explain(clip)(ours))
    compiled = fresh.compile(clip)
    for step in range(3):
        for one in (ours, theirs):
            set_grads(one, step)
        torch.testing.assert_close(compiled(ours), clip(theirs))
        same(ours, theirs)


def test_types_apart(fresh):
    def clip(m):
        return nn.utils.clip_grad_norm_(m.parameters(), 1.0)

    def mixed():
        m = model(4)
        m[1].double()
        m[3].half()
        return m

    ours, theirs = mixed(), mixed()
    compiled = fresh.compile(clip)
    for step in range(2):
        for one in (ours, theirs):
            set_grads(one, step)
        torch.testing.assert_close(compiled(ours), clip(theirs))
        same(ours, theirs)


def test_gradients_that_are_one_tensor(fresh):
    def clip(m):
        return nn.utils.clip_grad_norm_(m.parameters(), 1.0)

    ours, theirs = model(), model()
    compiled = fresh.compile(clip)
    for shared in (False, True, False, True):
        for one in (ours, theirs):
            set_grads(one, 1)
            if shared:
                one[1].weight.grad = one[0].weight.grad
        torch.testing.assert_close(compiled(ours), clip(theirs))
        same(ours, theirs)


def test_gradients_in_one_piece_of_memory(fresh):
    def clip(m):
        return nn.utils.clip_grad_norm_(m.parameters(), 1.0)

    ours, theirs = model(), model()
    compiled = fresh.compile(clip)
    for overlap in (0, 1, 0):
        for one in (ours, theirs):
            set_grads(one, 1)
            torch.manual_seed(2)
            memory = torch.randn(50)
            one[0].weight.grad = memory[:25].view(5, 5)
            one[1].weight.grad = memory[25 - overlap : 50 - overlap].view(5, 5)
        torch.testing.assert_close(compiled(ours), clip(theirs))
        same(ours, theirs)


def test_an_error_is_eagers(fresh):
    def clip(m):
        return nn.utils.clip_grad_norm_(m.parameters(), 1.0, error_if_nonfinite=True)

    ours, theirs = model(), model()
    compiled = fresh.compile(clip)
    for bad in (False, True, False):
        for one in (ours, theirs):
            set_grads(one, 1)
            if bad:
                one[0].bias.grad[0] = float("nan")
        if bad:
            with pytest.raises(RuntimeError, match="non-finite"):
                compiled(ours)
        else:
            torch.testing.assert_close(compiled(ours), clip(theirs))
            same(ours, theirs)


def lists():
    torch.manual_seed(5)
    return [torch.rand(4) + 0.5, torch.rand(2, 3) + 0.5], [torch.rand(4), torch.rand(2, 3)], [torch.rand(4) + 1, torch.rand(2, 3) + 1]


CALLS = {
    "add": lambda a, b, c: torch._foreach_add(a, b, alpha=3),
    "add of a tensor": lambda a, b, c: torch._foreach_add(a, b[0][0], alpha=2),
    "add of numbers": lambda a, b, c: torch._foreach_add(a, [1, 2.5]),
    "add_": lambda a, b, c: torch._foreach_add_(a, b, alpha=-0.1),
    "sub_ of a number": lambda a, b, c: torch._foreach_sub_(a, 2),
    "mul_ of a tensor": lambda a, b, c: torch._foreach_mul_(a, b[0][1]),
    "div_ of numbers": lambda a, b, c: torch._foreach_div_(a, (2.0, 3.0)),
    "addcdiv_": lambda a, b, c: torch._foreach_addcdiv_(a, b, c, -0.01),
    "addcdiv_ of numbers": lambda a, b, c: torch._foreach_addcdiv_(a, b, c, [0.5, 2]),
    "addcmul": lambda a, b, c: torch._foreach_addcmul(a, b, c, value=0.25),
    "lerp_": lambda a, b, c: torch._foreach_lerp_(a, b, 0.1),
    "lerp of lists": lambda a, b, c: torch._foreach_lerp(a, b, c),
    "sqrt": lambda a, b, c: torch._foreach_sqrt(a),
    "neg_": lambda a, b, c: torch._foreach_neg_(a),
    "pow": lambda a, b, c: torch._foreach_pow(a, 2),
    "zero_": lambda a, b, c: torch._foreach_zero_(a),
    "copy_": lambda a, b, c: torch._foreach_copy_(a, b),
    "clone": lambda a, b, c: torch._foreach_clone(a),
    "norm": lambda a, b, c: torch._foreach_norm(a, 2),
    "norm of a type": lambda a, b, c: torch._foreach_norm(a, 2, torch.float64),
    "clamp_min_": lambda a, b, c: torch._foreach_clamp_min_(a, 0.9),
    "a tensor twice": lambda a, b, c: torch._foreach_mul_([a[0], a[0]], 3.0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_of_lists(fresh, call):
    told = fresh.explain(call)(*lists())
    whole(told)
    compiled = fresh.compile(call)
    for _ in range(2):
        ours, theirs = lists(), lists()
        got, expected = compiled(*ours), call(*theirs)
        assert type(got) is type(expected)
        assert [got[0] is ours[0][0], got is ours[0]] == [expected[0] is theirs[0][0], expected is theirs[0]]
        torch.testing.assert_close(list(got), list(expected))
        for some, others in zip(ours, theirs):
            torch.testing.assert_close(some, others)
            assert [t._version for t in some] == [t._version for t in others]


def test_with_gradients(fresh):
    def f(a, b):
        return sum(t.sum() for t in torch._foreach_mul(torch._foreach_exp(a), b))

    ours, theirs = ([t.requires_grad_() for t in lists()[0]] for _ in range(2))
    b = lists()[1]
    fresh.compile(f)(ours, b).backward()
    f(theirs, b).backward()
    for t, u in zip(ours, theirs):
        torch.testing.assert_close(t.grad, u.grad)


@pytest.mark.parametrize(
    "call",
    [lambda a, b: torch._foreach_add_([], 1), lambda a, b: torch._foreach_add_(a, b[:1]), lambda a, b: torch._foreach_mul_(a, [1.0])],
)
def test_what_eager_refuses(fresh, call):
    a, b, _ = lists()
    with pytest.raises(RuntimeError) as expected:
        call(a, b)
    before = copy.deepcopy(a)
    with pytest.raises(RuntimeError) as got:
        fresh.compile(call)(a, b)
    assert str(got.value) == str(expected.value)
    torch.testing.assert_close(a, before)


def test_one_of_the_list_is_refused(fresh):
    def f(a):
        torch._foreach_mul_(a, 1.5)

    ours, theirs = ([torch.ones(2), torch.ones(2, dtype=torch.int64)] for _ in range(2))
    for run, some in ((f, theirs), (fresh.compile(f), ours)):
        with pytest.raises(RuntimeError, match="can't be cast"):
            run(some)
    torch.testing.assert_close(ours, theirs)


def test_a_number_that_changes(fresh):
    def f(a, scale):
        return torch._foreach_mul_(a, scale)

    compiled = fresh.compile(f)
    for step in range(12):
        ours, theirs = lists()[0], lists()[0]
        compiled(ours, 1.0 + step / 7)
        f(theirs, 1.0 + step / 7)
        torch.testing.assert_close(ours, theirs)
    assert fresh.cache_info(compiled)["outcomes"]["capture"]["segment"] <= 3


@pytest.mark.parametrize("n", [64, 65, 300])
def test_one_of_very_many(fresh, n):
    def f(xs):
        return torch.stack([x * 2 for x in xs]), torch.cat([x[None, None] + 1 for x in xs], 1)

    xs = list(torch.arange(float(n)).unbind())
    compiled = fresh.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(xs), f(xs))
