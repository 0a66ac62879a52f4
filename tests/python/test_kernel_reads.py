"""What kernels in Python of torch.library's operators reach by other ways than a name: memory under another tensor, weak references, attributes of
their arguments, methods that change containers, objects of classes that no name leads to, generators of random numbers."""

import bisect
import collections
import contextvars
import cProfile
import heapq
import itertools
import types
import weakref

import framejit
import numpy
import pytest

torch = pytest.importorskip("torch")

library = torch.library.Library("framejit_test_reach", "DEF")
operators = []


def operator(kernel, key="CPU"):
    name = f"op{len(operators)}"
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, kernel, key)
    if key == "CPU":
        library.impl(name, lambda x: torch.empty_like(x), "Meta")
    operators.append(getattr(torch.ops.framejit_test_reach, name))
    return operators[-1]


class Held:
    value = 0


class Counted:
    count = 0

    def __init__(self):
        Counted.count += 1

    @classmethod
    def make(cls):
        return cls()


def does(change):
    def kernel(x):
        change()
        return x * 1

    return operator(kernel)


def in_place(make):
    def program():
        t = torch.zeros(2)
        seen, written = make(t)
        op = operator(lambda x: x + seen)

        def f(x):
            written[0] += 1
            return op(x)

        return f, t.zero_

    return program


def batch_norm():
    norm = torch.nn.BatchNorm1d(2)
    op = operator(lambda x: x + norm.running_mean + norm.num_batches_tracked)
    return lambda x: norm(x.expand(3, 2) * torch.arange(3.0)[:, None]).sum() + op(x), norm.reset_running_stats


def weak(make):
    def program():
        o = Held()
        held = make(o)
        op = operator(lambda x: x + held().value)

        def f(x):
            o.value += 1
            return op(x)

        return f, lambda: setattr(o, "value", 0)

    return program


def weak_dict(o):
    d = weakref.WeakValueDictionary(o=o)
    return lambda: d["o"]


def container(make, change):
    def program():
        own = make()
        op = does(lambda: change(own))
        return lambda x: op(x) + len(own), own.clear

    return program


def ordered():
    own = collections.OrderedDict()
    op = does(lambda: own.move_to_end("a"))
    return lambda x: op(x) + (1 if next(iter(own)) == "a" else 5), lambda: (own.clear(), own.update(a=1, b=2))


def made(make):
    def program():
        o = Counted()
        op = does(lambda: make(o))
        return lambda x: op(x) + Counted.count, lambda: setattr(Counted, "count", 0)

    return program


def changed_class():
    class A:
        number = 1

    class B:
        number = 2

    o = A()

    def change():
        o.__class__ = B if type(o) is A else A

    op = does(change)
    return lambda x: op(x) + o.number, lambda: setattr(o, "__class__", A)


def training():
    m = torch.nn.Dropout(0.5)
    op = does(lambda: m.train(not m.training))
    return lambda x: op(x) + (1 if m.training else 2), m.train


def draws():
    op = operator(lambda x: x + float(numpy.random.rand()))
    return lambda x: numpy.random.rand() + op(x) * 2 + numpy.random.rand(), lambda: numpy.random.seed(0)


def writes_under_another_tensor():
    t = torch.zeros(2)
    row = t[0]
    op = does(lambda: t.add_(1))
    return lambda x: row * 2 + op(x) + row, t.zero_


def writes_from_a_view():
    t = torch.zeros(2)
    rows = t.numpy()
    op = does(lambda: rows.__setitem__(0, rows[0] + 1))
    return lambda x: op(x) + t, t.zero_


PROGRAMS = {
    "tensor": in_place(lambda t: (t, t)),
    "view": in_place(lambda t: (t, t[0:1])),
    "detached": in_place(lambda t: (t.detach(), t)),
    "array": in_place(lambda t: (t, t.numpy())),
    "batch norm": batch_norm,
    "weakref": weak(weakref.ref),
    "weak dict": weak(weak_dict),
    "heap": container(list, lambda own: heapq.heappush(own, 1)),
    "insort": container(list, lambda own: bisect.insort(own, 1)),
    "deque": container(collections.deque, lambda own: own.appendleft(1)),
    "ordered": ordered,
    "type": made(lambda o: type(o)()),
    "classmethod": made(lambda o: o.make()),
    "class of an object": changed_class,
    "training": training,
    "draws": draws,
    "written under another tensor": writes_under_another_tensor,
    "written from a view": writes_from_a_view,
}


def results(call, reset):
    reset()
    return [call(torch.ones(2)).tolist() for _ in range(4)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_kernel_reaches_otherwise(name):
    program, reset = PROGRAMS[name]()
    compiled = framejit.compile(program)
    assert results(compiled, reset) == results(program, reset)
    info = framejit.cache_info(compiled)
    assert info["breaks"] >= 1 and info["outcomes"]["run"]["graph"] >= 1


@pytest.mark.parametrize("what", ["reads", "changes"])
def test_attributes_of_an_argument(what):
    given = torch.ones(2)
    given.state = types.SimpleNamespace(value=0)

    def change(x):
        x.state.value += 1
        return x * 1

    op = operator(change) if what == "changes" else operator(lambda x: x * x.state.value)

    def f(x):
        if what == "reads":
            x.state.value += 1
        return op(x) + (x.state.value if what == "changes" else 0)

    def run(call):
        given.state.value = 0
        return [call(given).tolist() for _ in range(4)]

    compiled = framejit.compile(f)
    assert run(compiled) == run(f)
    assert framejit.cache_info(compiled)["breaks"] >= 1


def test_writes_to_other_memory_stay_in_the_graph():
    """And no tensor is given a dict because it was looked at."""
    t, other = torch.zeros(4), torch.zeros(2)
    op = operator(lambda x: x + other)

    def f(x):
        t.add_(1)
        return op(x) + t.sum()

    compiled = framejit.compile(f, fullgraph=True)
    assert results(compiled, t.zero_) == results(f, t.zero_)
    info = framejit.cache_info(compiled)
    assert (info["captures"], info["breaks"]) == (1, 0)


def test_a_composite_operator_in_python_is_captured():
    """It reads and counts as a function of the program's does."""
    state = types.SimpleNamespace(count=0, scale=1.0)

    def kernel(x, factor=3):
        state.count += 1
        return x * state.scale * factor

    library.define("composite(Tensor x, int factor=3) -> Tensor")
    library.impl("composite", kernel, "CompositeImplicitAutograd")
    op = torch.ops.framejit_test_reach.composite

    def f(x):
        return op(x) + op(x, factor=2) + state.count

    def run(call):
        state.count, seen = 0, []
        for k in range(5):
            state.scale = (1.0, 1.0, 2.5, 1.0, 4.0)[k]
            x = torch.ones(2, requires_grad=True)
            y = call(x)
            y.sum().backward()
            seen.append((y.tolist(), x.grad.tolist(), state.count))
        return seen

    compiled = framejit.compile(f, fullgraph=True)
    assert run(compiled) == run(f)
    assert framejit.cache_info(compiled)["outcomes"]["run"]["graph"] == 5


def test_under_a_profiler_written_in_c():
    other = types.SimpleNamespace(count=0)
    op = operator(lambda x: x + 1)

    def f(x):
        other.count += 1
        return op(x) * 2

    compiled, profile = framejit.compile(f, fullgraph=True), cProfile.Profile()
    profile.enable()
    try:
        compiled(torch.ones(2))
        assert compiled(torch.ones(2)).tolist() == [4, 4]
    finally:
        profile.disable()
    assert other.count == 2 and profile.getstats()


def later_in(make):
    """What the function writes is reached by the kernel from the fourth call on."""

    def program():
        o = Held()
        reach, change = make(o)
        op = operator(lambda x: x + reach())

        def f(x):
            o.value += 1
            return op(x)

        return f, lambda k: change(k >= 3), lambda: setattr(o, "value", 0)

    return program


def in_a_dict(o):
    registry = {}
    return lambda: registry["o"].value if "o" in registry else 0, lambda on: registry.update(o=o) if on else registry.clear()


def in_a_list(o):
    other, held = Held(), [None]
    return lambda: (held[0] or other).value, lambda on: held.__setitem__(0, o if on else None)


led_to = None


def in_a_global(o):
    def change(on):
        global led_to
        led_to = o if on else None

    return lambda: led_to.value if led_to else 0, change


def in_a_function(o):
    held = Held()
    held.ask = lambda: 0
    return lambda: held.ask(), lambda on: setattr(held, "ask", (lambda: o.value) if on else lambda: 0)


def in_an_attribute(o):
    outer = Held()
    outer.inner = Held()
    return lambda: outer.inner.value, lambda on: setattr(outer, "inner", o if on else Held())


def in_slots(o):
    class Slots:
        __slots__ = ("inner",)

    outer = Slots()
    outer.inner = None
    return lambda: outer.inner.value if outer.inner else 0, lambda on: setattr(outer, "inner", o if on else None)


def changed_later():
    """The kernel changes what the function reads behind it."""
    o, held = Held(), [Held()]

    def kernel(x):
        held[0].value += 1
        return x * 1

    op = operator(kernel)
    return lambda x: op(x) + o.value, lambda k: held.__setitem__(0, o if k >= 3 else Held()), lambda: setattr(o, "value", 0)


def another_argument():
    """The object that is written is the kernel's from the fourth call on."""
    own, others = Held(), [Held() for _ in range(3)]
    op = operator(lambda x: x + own.value)
    given = [None]

    def write(o):
        o.value += 1

    def f(x):
        write(given[0])
        return op(x)

    return f, lambda k: given.__setitem__(0, own if k >= 3 else others[0]), lambda: [setattr(o, "value", 0) for o in (own, *others)]


def another_tensor():
    own, other = torch.zeros(2), torch.zeros(2)
    op = operator(lambda x: x + own)
    given = [None]

    def f(x):
        given[0].add_(1)
        return op(x)

    return f, lambda k: given.__setitem__(0, own if k >= 3 else other), lambda: (own.zero_(), other.zero_())


LATER = {f.__name__: later_in(f) for f in (in_a_dict, in_a_list, in_a_global, in_a_function, in_an_attribute, in_slots)}
LATER |= {f.__name__: f for f in (changed_later, another_argument, another_tensor)}


@pytest.mark.parametrize("name", LATER)
def test_what_a_kernel_reaches_later(name):
    f, change, reset = LATER[name]()
    compiled = framejit.compile(f)

    def run(call):
        reset()
        seen = []
        for k in range(6):
            change(k)
            seen.append(call(torch.ones(2)).tolist())
        return seen

    assert run(compiled) == run(f)
    info = framejit.cache_info(compiled)
    assert info["captures"] >= 2 and info["outcomes"]["run"]["graph"] >= 3  # once more where another thing is reached, and not before


def test_a_kernel_that_reaches_something_new_each_time():
    """The graph ends before it, after a few captures."""
    held, o = [None], Held()

    def kernel(x):
        held[0] = Held()
        return x * 1

    op = operator(kernel)

    def f(x):
        o.value += 1
        return op(x) + 1

    compiled = framejit.compile(f)
    for _ in range(20):
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    info = framejit.cache_info(compiled)
    assert o.value == 20 and info["captures"] <= 10 and info["breaks"] >= 1


@pytest.mark.filterwarnings("ignore")
def test_a_kernel_in_python_for_an_operator_of_torch():
    """It computes what torch's own did; nothing is captured as long as it is there."""

    def f(x):
        return torch.lerp(x, x + 1, 0.5) * 2

    compiled, x = framejit.compile(f), torch.ones(3)
    assert compiled(x).tolist() == [3, 3, 3]
    ours = torch.library.Library("aten", "IMPL")
    ours.impl("lerp.Scalar", lambda a, b, w: torch.full_like(a, 7), "CPU")
    try:
        assert compiled(x).tolist() == f(x).tolist() == [14, 14, 14]
        late = framejit.compile(lambda x: torch.lerp(x, x, 0.5))
        assert late(x).tolist() == [7, 7, 7] and framejit.cache_info(late)["captures"] == 0
    finally:
        ours._destroy()
    assert compiled(x).tolist() == [3, 3, 3]
    info = framejit.cache_info(compiled)
    assert (info["captures"], info["outcomes"]["run"]["graph"]) == (1, 2)


@pytest.mark.filterwarnings("ignore")
def test_one_kernel_in_python_comes_as_another_goes():
    """As many kernels as before are registered, but one of them is for an operator of torch itself now."""
    own, theirs = torch.library.Library("framejit_came", "DEF"), torch.library.Library("aten", "IMPL")
    own.define("f(Tensor x) -> Tensor")
    own.impl("f", lambda x: x + 1, "CPU")
    compiled, x = framejit.compile(lambda x: torch.addcdiv(x, x, x) * 2), torch.ones(3)
    assert compiled(x).tolist() == [4, 4, 4]
    own._destroy()
    theirs.impl("addcdiv", lambda a, b, c, value=1: torch.full_like(a, 7), "CPU")
    try:
        assert compiled(x).tolist() == [14, 14, 14]
    finally:
        theirs._destroy()
    assert compiled(x).tolist() == [4, 4, 4]
    assert framejit.cache_info(compiled)["outcomes"]["run"]["graph"] == 2


kept, named = [], types.SimpleNamespace(tensor=None, count=0)


def keeps_a_result(x):
    y = x + 1
    kept.append(y)
    return y


def keeps_a_view_by_name(x):
    push = kept.append
    push(x[1:])
    return x + 1


def keeps_by_a_choice(x):
    named.tensor = x if x.shape[0] else 1
    kept.append(named.tensor)
    return x + 1


def keeps_in_place(x):
    global kept
    kept += (x,)
    return x + 1


def keeps_what_holds_it(x):
    kept.append({"x": x}["x"])
    return x + 1


KEEPING = {f.__name__: f for f in (keeps_a_result, keeps_a_view_by_name, keeps_by_a_choice, keeps_in_place, keeps_what_holds_it)}


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("when", ["argument later", "view of it later", "result later", "input before"])
def test_what_a_kernel_keeps_is_written_later(name, when):
    op = operator(KEEPING[name])

    def f(x):
        t = x if when == "input before" else x * 2
        if when == "input before":
            t.add_(1)
        y = op(t)
        if when == "argument later":
            t.add_(1)
        elif when == "view of it later":
            t[1:].mul_(3)
        elif when == "result later":
            y.mul_(5)
        return t + y

    def run(call):
        seen = []
        for k in range(3):
            kept.clear()
            x = torch.ones(3) * k
            result = call(x)
            x.add_(1)
            seen.append((result.tolist(), x.tolist(), [t.tolist() for t in kept]))
        return seen

    compiled = framejit.compile(f)
    assert run(compiled) == run(f)
    assert framejit.cache_info(compiled)["outcomes"]["run"]["graph"] >= 2


def stays(x):
    y = x + 1
    kept.extend((x, y))
    return y


stays_op = None
SHARING = {
    "given once": lambda x, op: (op(x * 1), x.sum()),
    "a copy of an input": lambda x, op: (op(x.clone()), x * 2),
    "what is one with an input": lambda x, op: (op(torch.cat([x])), x * 2),
    "two equal ones": lambda x, op: ((h := x + 1), (i := x + 1), op(h), op(i))[:2],
    "a constant": lambda x, op: ((h := torch.full((3,), 2.0)), op(h))[:1],
    "the second of two copies": lambda x, op: ((h := x + 1), (i := h.clone()), op(i))[:2],
    "a copy of it later": lambda x, op: ((h := x + 1), op(h), h.clone())[2:],
    "a result and its copy": lambda x, op: ((y := op(x)).clone(), y),
    "a copy of a result": lambda x, op: (op(x) * 1,),
    "a product": lambda x, op: ((h := torch.stack([x, x]) @ torch.ones(3, 3)), op(h[1]), h.clone())[::2],
    "views of one": lambda x, op: ((h := x + 1), op(h[1:]), op(h[:2]), op(h.view(3, 1)))[:1],
    "a view, and it": lambda x, op: ((h := (x + 1)[1:]), op(h))[:1],
}


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("wants", [False, True], ids=["", "with gradients"])
def test_what_a_kernel_keeps_shares_memory_as_in_eager(name, wants):
    global stays_op
    if stays_op is None:
        stays_op = torch.library.custom_op("framejit_test_reach::stays", lambda x: stays(x), mutates_args=(), schema="(Tensor x) -> Tensor")
        stays_op.register_fake(torch.empty_like)
        stays_op.register_autograd(lambda ctx, g: g)

    def f(x):
        return SHARING[name](x, stays_op)

    def run(call):
        """What is kept behind each of the writes of the caller's."""
        seen = []
        for k in range(3):
            kept.clear()
            x = (torch.ones(3) * k).requires_grad_(wants)
            results = call(x)
            if wants:
                sum((r * r).sum() for r in results if r.requires_grad).backward() if any(r.requires_grad for r in results) else None
                seen.append(x.grad is not None and x.grad.tolist())
            with torch.no_grad():
                for i, r in enumerate(results):
                    r.detach().mul_(10 + i)
                x.add_(5)
                seen.append([t.tolist() for t in (*results, *kept)])
                for i, t in enumerate(kept):
                    t.detach().add_(1 + i)
            seen.append([t.tolist() for t in (x, *results, *kept)])
        return seen

    compiled = framejit.compile(f)
    assert run(compiled) == run(f)
    assert framejit.cache_info(compiled)["outcomes"]["run"]["graph"] >= 2 and framejit.cache_info(compiled)["breaks"] == 0


def test_what_a_kernel_with_a_gradient_keeps_is_written_later():
    def kernel(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x + 1

    op = torch.library.custom_op("framejit_test_reach::keeps_with_gradient", kernel, mutates_args=())
    op.register_fake(torch.empty_like)
    op.register_autograd(lambda ctx, g: g)

    def f(x):
        t = x * 2
        y = op(t)
        t.add_(1)
        return t * y.detach() + y

    def run(call):
        kept.clear()
        x = torch.ones(3, requires_grad=True)
        y = call(x)
        y.sum().backward()
        return y.tolist(), x.grad.tolist(), [t.tolist() for t in kept]

    compiled = framejit.compile(f)
    for _ in range(3):
        assert run(compiled) == run(f)


def logs_shapes(x):
    kept.append((x.shape[0], "x", tuple(x.shape), x.dtype))
    return x + 1


def logs_values(x):
    size = x.numel() * 2
    kept.append(size)
    kept.append(f"{x.sum().item():.2f} {float(x.sum())}")
    return x + 1


def counts_in_an_attribute(x):
    named.count += x.shape[0]
    return x + 1


@pytest.mark.parametrize("kernel", [logs_shapes, logs_values, counts_in_an_attribute])
def test_a_kernel_that_only_takes_notes_does_not_end_the_graph(kernel):
    op = operator(kernel)

    def f(x):
        t = x * 2
        y = op(t)
        t.add_(1)
        y.mul_(2)
        return t + y

    def run(call):
        kept.clear()
        named.count = 0
        return [call(torch.ones(3) * k).tolist() for k in range(3)], list(kept), named.count

    compiled = framejit.compile(f, fullgraph=True)
    assert run(compiled) == run(f)
    assert framejit.cache_info(compiled)["breaks"] == 0


numbers = itertools.count()


def keeps_what_it_writes(x):
    x.add_(1)
    kept.append(x)


def keeps_a_part_of_what_it_writes(x):
    named.tensor = x[1:]
    x.mul_(3)
    kept.append(named.tensor)


def reads_what_was_kept(x):
    return x + sum(float(t.sum()) for t in kept)


def writes_what_was_kept(x):
    for t in kept:
        t.mul_(2)
    return x + 1


@pytest.mark.parametrize("keeping", [keeps_what_it_writes, keeps_a_part_of_what_it_writes])
@pytest.mark.parametrize("behind", [None, reads_what_was_kept, writes_what_was_kept])
@pytest.mark.parametrize("given", ["input", "made here", "a view"])
def test_what_a_kernel_keeps_is_what_it_wrote_to(keeping, behind, given):
    """It is called with the program's own tensor: what the program writes later shows there, and what later kernels write shows here."""

    def made(f, writes, fake):
        schema = "(Tensor(a!) x) -> ()" if writes else "(Tensor x) -> Tensor"
        op = torch.library.custom_op(f"framejit_test_reach::writes{next(numbers)}", f, mutates_args=writes, schema=schema)
        op.register_fake(fake)
        return op

    op = made(keeping, ("x",), lambda x: None)
    other = behind and made(behind, (), torch.empty_like)

    def f(x):
        t = x if given == "input" else x * 2
        op(t[:2] if given == "a view" else t)
        y = other(x) if other else x
        t.add_(10)
        return t + y

    def run(call):
        seen = []
        for k in range(3):
            kept.clear()
            x = torch.ones(3) * k
            result = call(x)
            result.add_(1)
            seen.append((result.tolist(), x.tolist(), [t.tolist() for t in kept]))
            x.add_(1)
            seen.append([t.tolist() for t in kept])
        return seen

    compiled = framejit.compile(f)
    assert run(compiled) == run(f)
    info = framejit.cache_info(compiled)
    assert info["breaks"] and info["outcomes"]["run"]["graph"] >= 3


def helper(name, value):
    named.last = name
    kept.append(name)


def keeper(name, value):
    helper(name, value)
    kept.append(value)


def first_of(xs, ys=[]):  # noqa: B006
    ys.append(xs)
    return ys


context = contextvars.ContextVar("context")


def counts_by_name(x, out):
    named.count = x.shape[0]
    helper("count", x)
    counters["count"] = counters.get("count", 0) + 1


def writes_by_index(x, out):
    kept.append("called")
    out[:] = x + out
    out.view(-1)[0] = x.sum()
    row = out[1:]
    row[0] = x[0]


def keeps_what_is_made_here(x, out):
    kept.append(x.clone())
    named.last = out + 1
    out.mul_(2)


def collects_in_a_list(x, out):
    kept.append("called")
    parts = []
    for t in (x, out):
        parts.append(t * 2)
    parts.append(x)
    out.copy_(sum(parts))


def keeps_by_a_helper(x, out):
    keeper("x", out)
    out.mul_(2)


def keeps_as_a_key(x, out):
    counters[out] = 1
    out.mul_(2)


def keeps_a_list(x, out):
    parts = []
    kept.append(parts)
    parts.append(out)
    out.add_(x)


def keeps_in_a_default(x, out):
    kept[:] = first_of(out)[-1:]
    out.add_(x)


def keeps_in_a_context(x, out):
    context.set(out)
    out.add_(x)


def keeps_in_place(x, out):
    global kept
    kept += [out[1:]]
    out.add_(x)


def keeps_a_closure(x, out):
    named.last = lambda: out
    out.add_(x)


def keeps_the_result_of_a_name(x, out):
    out.add_(x)
    kept.append(torch.as_tensor(out))


def keeps_by_a_method_of_its_name(x, out):
    store = kept.append
    store(out)
    out.add_(x)


def keeps_in_a_loop(x, out):
    for t in (x, out):
        counters["last"] = t
    out.add_(x)


counters = {}
NOTES = [counts_by_name, writes_by_index, keeps_what_is_made_here, collects_in_a_list]
KEEP = [keeps_by_a_helper, keeps_as_a_key, keeps_a_list, keeps_in_a_default, keeps_in_a_context, keeps_in_place, keeps_a_closure]
KEEP += [keeps_the_result_of_a_name, keeps_by_a_method_of_its_name, keeps_in_a_loop]


@pytest.mark.parametrize("kernel", NOTES + KEEP)
def test_which_kernels_keep_what_they_write_to(kernel):
    op = torch.library.custom_op(f"framejit_test_reach::writes{next(numbers)}", kernel, mutates_args=("out",), schema="(Tensor x, Tensor(a!) out) -> ()")
    op.register_fake(lambda x, out: None)

    def f(x, out):
        op(x, out)
        out.add_(10)
        return out + x

    def all_kept():
        last = getattr(named, "last", None)
        found = [*kept, *counters, *counters.values(), last() if callable(last) else last, context.get(None)]
        return [t.tolist() if isinstance(t, torch.Tensor) else [p.tolist() for p in t] if isinstance(t, list) else t for t in found]

    def run(call):
        seen = []
        for k in range(3):
            kept.clear(), counters.clear(), context.set(None)
            x, out = torch.ones(3) * k, torch.ones(3)
            seen.append((call(x, out).tolist(), out.tolist(), all_kept()))
            out.add_(1)
            seen.append(all_kept())
        return seen

    compiled = framejit.compile(f, fullgraph=kernel in NOTES)
    assert run(compiled) == run(f)
    info = framejit.cache_info(compiled)
    assert info["outcomes"]["run"]["graph"] >= 3 and bool(info["breaks"]) == (kernel in KEEP)


@pytest.mark.parametrize("ask", [
    lambda x: x._version, lambda x: x._base is None, lambda x: x._is_view(), lambda x: isinstance(x, torch.nn.Parameter),
])
def test_a_kernel_that_asks_how_what_it_is_given_was_made(ask):
    weight = torch.nn.Parameter(torch.ones(3))
    op = operator(lambda x: x * 1 + float(ask(x)))

    def f(x):
        y = x * 2
        y.add_(1)
        return op(y), op(y[1:]), op(x), op(weight)

    def run(call):
        with torch.no_grad():
            return [[t.tolist() for t in call(torch.ones(3) * k)] for k in range(3)]

    compiled = framejit.compile(f)
    assert run(compiled) == run(f)
    info = framejit.cache_info(compiled)
    assert info["breaks"] and info["outcomes"]["run"]["graph"] >= 3
