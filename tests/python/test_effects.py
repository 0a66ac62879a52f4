"""What a program does besides computing (output, warnings, writes to variables of enclosing functions, to lists, to
attributes of tensors) waits for the end of one graph, and is then what it is in eager. And what asks for no break at all."""

import contextlib
import gc
import io
import itertools
import sys
import warnings
import weakref

import pytest
from harness import Programs, run_program
from programs import assertions

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
whole = Programs("torch")  # each one graph
any_way = Programs("torch")  # each right, in as many graphs as it takes


def t(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(1))


class AttributeDict(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class WithDefault(dict):
    def __missing__(self, key):
        return len(key)


# --- output and warnings -----------------------------------------------------------------------------------------------
@whole
def prints_values():
    def helper(x):
        print("in helper", x.dtype, end="!\n")
        return x * 2

    def f(x):
        y = helper(x + 1)
        print("shape", y.shape, [1, (2.5, None)], sep="|", flush=True)
        print()
        print(f"{tuple(y.shape)} é")
        print("to stderr", file=sys.stderr)
        return y * 2

    return f, lambda: (t(3, 2),)


@whole
def prints_tensors_before_they_change():
    def f(x):
        y = x * 2
        print("y", y, y[0])
        y.add_(1)
        print(y)
        return y

    return f, lambda: (t(3),)


@whole
def warns_at_its_line():
    def helper(x):
        warnings.warn("of the caller", DeprecationWarning, stacklevel=2)
        return x * 2

    class Module(nn.Module):
        def __init__(self, level):
            super().__init__()
            self.level = level

        def forward(self, x):
            warnings.warn(f"level {self.level}", stacklevel=self.level)
            return x * 2

    modules = [Module(level) for level in range(-1, 5)]

    def f(x):
        y = helper(x)
        warnings.warn("here")
        for module in modules:
            y = module(y)
        return y + 1

    return f, lambda: (t(3),)


@whole
def functions_of_torch_that_warn():
    def f(x, y):
        a = F.upsample(x, scale_factor=2)
        return F.softmax(a) + nn.Softmax()(a) + F.sigmoid(a), F.mse_loss(x, y), F.interpolate(x, scale_factor=2.0, mode="bilinear")

    return f, lambda: (t(1, 2, 4, 4), t(1, 2, 4, 1))


@any_way
def warnings_as_errors():
    def f(x):
        y = x.add_(1)
        warnings.warn("now")
        return y.mul_(2)

    def outer(x):
        result = [f(x)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                f(x)
            except UserWarning as error:
                result.append(str(error))
        return result, x

    return outer, lambda: (torch.ones(3),)


@any_way
def output_to_the_programs_own_stream():
    class Stream:
        written = 0

        def write(self, text):
            self.written += len(text)

        def flush(self):
            pass

    def f(x, stream):
        before = stream.written
        with contextlib.redirect_stdout(stream):
            print("some text")
            y = x + stream.written
        print("more", file=stream)
        return y * stream.written + before

    return f, lambda: (t(3), Stream())


@any_way
def text_that_was_printed_is_read():
    def f(x):
        buffer = io.StringIO()
        with contextlib.redirect_stdout(buffer):
            print("abc")
            y = x * len(buffer.getvalue())
        return y

    return f, lambda: (t(3),)


@any_way
def prints_then_raises():
    def f(x, bad):
        print("one")
        y = x.mul_(2)
        if bad:
            raise ValueError("no")
        print("two")
        return y

    flags = itertools.cycle([False, True])
    return f, lambda: (t(3), next(flags))


@any_way
def effects_under_a_checkpoint():
    from torch.utils.checkpoint import checkpoint

    n = 0

    def inner(x):
        nonlocal n
        n += 1
        print("in", n)
        return (x * 2).sin()

    def f(x):
        y = checkpoint(inner, x, use_reentrant=False).sum()
        return y

    return f, lambda: (t(3).requires_grad_(),)


@any_way
def a_profilers_range():
    def f(x):
        with torch.profiler.record_function("range"):
            y = x * 2
        return y + 1

    def profiled(x):
        plain = f(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            y = f(x)
        return plain, y, any(event.key == "range" for event in profile.key_averages())

    return profiled, lambda: (t(3),)


@whole
def a_range_without_a_profiler():
    def f(x):
        with torch.profiler.record_function("range"):
            y = x * 2
        return y + 1

    return f, lambda: (t(3),)


def test_the_registry_of_warnings(fresh):
    """Whether a warning is shown again is asked of the place where it was raised, as in eager."""
    source = "import warnings\ndef f(x):\n  warnings.warn('one')\n  warnings.warn('two', DeprecationWarning)\n  return x + 1\n"

    def shown(action, compile):
        space = {"__name__": f"module_{action}"}
        exec(compile_source(source), space)
        f = compile(space["f"])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter(action)
            for _ in range(3):
                f(torch.ones(3))
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="one"):
                f(torch.ones(3))
        return [(str(w.message), w.category, w.lineno, w.filename) for w in seen]

    def compile_source(text):
        return compile(text, "a_module.py", "exec")

    for action in ("default", "always", "once", "module", "ignore"):
        assert shown(action, fresh.compile) == shown(action, lambda f: f), action


def test_warnings_that_are_read_by_the_program(fresh):
    def observe(wrap):
        def f(x):
            y = x * 2
            warnings.warn("again")
            return y + len(seen)

        f = wrap(f)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            recorded = [f(torch.ones(2)).tolist() for _ in range(3)]
        shown = []
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda *args, **kwargs: shown.append(str(args[0]))
            seen = shown
            return recorded, [f(torch.ones(2)).tolist() for _ in range(3)], shown

    assert observe(fresh.compile) == observe(lambda f: f)


# --- writes ----------------------------------------------------------------------------------------------------------------
@whole
def writes_a_variable_of_the_enclosing_function():
    n, last = 0, None

    def helper(x):
        nonlocal n, last
        n += 2
        last = x * 3
        return x * 2

    def f(x):
        y = helper(helper(x + 1))
        return y + last + n

    return f, lambda: (t(3),)


@any_way
def one_cell_or_two():
    def counter():
        n = 0

        def increase():
            nonlocal n
            n += 1

        return increase, lambda: n

    (a, read_a), (b, read_b) = counter(), counter()
    pairs = itertools.cycle([(a, read_a), (a, read_b), (b, read_b), (b, read_a)])

    def f(x, functions):
        increase, read = functions
        before = read()
        increase()
        return x + before + 10 * read()

    return f, lambda: (t(3), next(pairs))


@any_way
def a_variable_of_the_frame_that_functions_write():
    import time

    def f(x):
        n = 0

        def read():
            return n

        def write(value):
            nonlocal n
            n = value

        time.sleep(0)  # the functions are here already when the next graph begins
        n = 5
        y = x + read()
        write(7)
        return y * n + read()

    return f, lambda: (t(3),)


@any_way
def deletes_a_variable():
    n = 1

    def f(x):
        nonlocal n
        try:
            y = x * n
            del n
        except NameError:
            y = x * 100
            n = 3
        return y

    return f, lambda: (t(3),)


@whole
def changes_a_list_in_all_ways():
    items = [1, 2, 3]

    def f(x):
        items.insert(0, 9)
        items.pop()
        items.extend([4, 5])
        items.remove(2)
        items.sort()
        items.reverse()
        del items[0]
        items[1:2] = [x, x * 2]
        items.append(7)
        same = items
        same += [8]
        y = x * len(items) + items[-1] + items[1]
        kept = list(items)
        items[:] = [1, 2, 3]
        return y, kept, same is items

    return f, lambda: (t(3),)


@whole
def fills_a_list_and_reads_it():
    def f(x, items):
        items.clear()
        for i in range(3):
            items.append(x * i)
        return torch.stack(items) + len(items), items

    return f, lambda: (t(3), [1])


@whole
def reads_what_it_appended():
    def f(x, items):
        items.append(x * 2)
        return items[-1] + 1

    return f, lambda: (t(3), [])


@any_way
def one_list_or_two():
    def f(x, a, b):
        a[0] = x + 1
        y = b[0] * 2
        b[0] = y
        return a[0] + len(a), a, b

    kinds = itertools.cycle([True, False, False])

    def make():
        one = [t(3), t(3)]
        return t(3), one, one if next(kinds) else [t(3) * 3, t(3)]

    return f, make


@any_way
def changes_a_list_that_is_gone_through():
    def f(x, items):
        for i, item in enumerate(items):
            x = x + item
            items[-1] = i * 10
            if len(items) < 5:
                items.append(item + 1)
        return x, items

    return f, lambda: (t(3), [1, 2, 3])


@any_way
def an_iterator_over_a_changed_list():
    def f(x, items):
        items[0] = 5
        iterator = iter(items)
        return x + next(iterator), iterator

    def outer(x, items):
        y, iterator = f(x, items)
        items.append(4)
        return y, list(iterator)

    return outer, lambda: (t(3), [1, 2, 3])


def test_a_growing_list_is_captured_once(fresh):
    items = []

    @fresh.compile
    def f(x):
        items.append(x * 2)
        return items[-1] + 1

    for i in range(10):
        assert f(torch.full((2,), float(i))).tolist() == [2 * i + 1] * 2
    assert [float(x[0]) for x in items] == [2.0 * i for i in range(10)]
    assert fresh.cache_info(f)["captures"] == 1


def test_what_a_list_drops_dies(fresh):
    class Thing:
        pass

    items = [None]

    @fresh.compile
    def f(x):
        items[0] = None
        return x * 2

    for _ in range(3):
        items[0] = Thing()
        alive = weakref.ref(items[0])
        f(torch.ones(2))
        gc.collect()
        assert alive() is None


@whole
def attributes_of_tensors():
    def f(x, weight):
        y = x * 2
        y.scale, y.other = 3, [x + 1]
        z = y * y.scale + y.other[0]
        weight.seen = z.shape[0]
        return z * weight.seen, y, hasattr(y, "missing"), y.scale, y.other

    def make():
        weight = t(3)
        weight.seen = 0
        return t(3), weight

    return f, make


def test_attributes_stay_with_their_tensors(fresh):
    @fresh.compile
    def f(x):
        y, unused = x * 2, x * 3
        y.scale = 3
        unused.scale = 4
        return y, [y]

    for _ in range(2):
        y, (same,) = f(torch.ones(2))
        assert y is same and y.scale == 3


# --- no effects at all -----------------------------------------------------------------------------------------------------
@whole
def configs_that_are_dicts():
    config, default = AttributeDict(scale=2), WithDefault(a=1)

    def f(x):
        y = x * config.scale
        if hasattr(config, "missing"):
            y = y + 1
        return y * getattr(config, "other", 5) + default["a"] + default["four"]

    return f, lambda: (t(3),)


def test_a_config_that_changes(fresh):
    config = AttributeDict(scale=2)

    def f(x):
        y = x * config.scale
        return y + config.more if hasattr(config, "more") else y

    compiled, x = fresh.compile(f), torch.ones(2)
    for change in ({}, {"more": 3}, {"scale": 4}, {"more": 5}):
        config.update(change)
        assert torch.equal(compiled(x), f(x))
    del config["more"]
    assert torch.equal(compiled(x), f(x))


@whole
def data_of_a_tensor():
    linear = nn.Linear(3, 3)
    with torch.no_grad():
        linear.weight.fill_(0.5)

    def f(x):
        return F.linear(x, linear.weight.data) + linear.bias.data * 0 + x.data * 2

    return f, lambda: (t(2, 3),)


@any_way
def data_that_is_written_to():
    linear = nn.Linear(3, 3)

    def f(x):
        linear.weight.data.copy_(x)
        linear.bias.data.zero_()
        y = x * 2
        y.data.mul_(3)
        return linear(x), y + 1, y._version, linear.weight._version

    return f, lambda: (t(3, 3).requires_grad_(),)


@any_way
def data_of_an_argument_is_written_to():
    def f(x):
        x.data.mul_(2)
        x.data[0] = 5
        return x + 1, x.data

    return f, lambda: (torch.ones(2),)


@torch.jit.script
def scripted(x, n: int):
    y = x * n
    return y + 1 if n > 1 else y


@whole
def functions_of_torch_script():
    def f(x):
        return scripted(x, 2) + scripted(x, 1)

    return f, lambda: (t(3),)


@whole
def ranges_and_arrays_as_indices():
    numpy = pytest.importorskip("numpy")
    indices, mask = numpy.array([0, 2]), numpy.array([1, 3], dtype=numpy.int32)

    def f(x):
        y = x[range(2)] + x[indices] + x[:, mask].sum() + torch.tensor(range(4))
        return y + torch.from_numpy(numpy.array(range(4)))

    return f, lambda: (t(4, 4),)


whole.update(assertions.whole)


@pytest.mark.parametrize("name", whole)
def test_one_graph(fresh, name):
    compiled = run_program(whole[name], lambda f: fresh.compile(f))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fn, make = whole[name]()
        explanation = fresh.explain(fresh.compile(fn))(*make())
    assert (explanation.graph_count, explanation.graph_break_count) == (1, 0), explanation
    assert compiled is not None


@pytest.mark.parametrize("name", any_way)
def test_right(fresh, name):
    run_program(any_way[name], lambda f: fresh.compile(f))


def test_windows_over_symbolic_sizes(fresh):
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, ceil_mode=True), nn.LPPool2d(2, 3), nn.AdaptiveAvgPool2d(3)
    ).eval()
    compiled = fresh.compile(module)
    with torch.no_grad():
        for sizes in ((2, 40, 41), (3, 38, 57), (1, 63, 40), (4, 21, 22), (2, 50, 33), (5, 64, 64)):
            x = t(sizes[0], 3, *sizes[1:])
            torch.testing.assert_close(compiled(x), module(x))
    info = fresh.cache_info(compiled)
    assert info["breaks"] == 0 and info["captures"] <= 3, info
