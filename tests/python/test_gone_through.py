"""Lists and tuples from outside that a compiled function goes through: what is in their items is read when the program asks, and
what is appended on the way is seen as by Python."""

import types

import pytest

torch = pytest.importorskip("torch")


def appended_to_itself(x, items):
    n = 0
    for item in items:
        n += item
        if n < 9:
            items.append(item + 1)
    return x * n


def appended_by_number(x, items):
    n = 0
    for i, item in enumerate(items):
        n += i * item
        if len(items) < 6:
            items.append(item)
    return x * n


def appended_then(x, items):
    n = 0
    for item in items:
        n += item
    items.append(n)
    for item in items:
        n += item
    return x * n


def replaced_on_the_way(x, items):
    n = 0
    for i in items:
        items[-1] = n
        n += i
    return x * n


@pytest.mark.parametrize("f", [appended_to_itself, appended_by_number, appended_then, replaced_on_the_way])
def test_writes_to_what_is_gone_through(fresh, f):
    compiled = fresh.compile(f)
    x = torch.ones(2)
    for start in ([1, 2], [1, 2], [3], [], [1, 2, 4]):
        ours, theirs = list(start), list(start)
        torch.testing.assert_close(compiled(x, ours), f(x, theirs))
        assert ours == theirs


def test_appended_behind_it_is_one_graph(fresh):
    told = fresh.explain(appended_then)(torch.ones(2), [1, 2])
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_what_c_code_went_through_is_appended_to(fresh):
    """C code saw a copy of the list with stand-ins for its tensors: the copy and the list are one."""

    def f(items):
        items.append(sum(items))

    compiled = fresh.compile(f)
    ours, theirs = ([torch.ones(2), torch.ones(2)] for _ in range(2))
    for _ in range(3):
        compiled(ours), f(theirs)
        torch.testing.assert_close(ours, theirs)
    assert compiled.cache_info()["breaks"] == 0


@pytest.mark.parametrize("write", ["a[0] = 5", "a.append(5); n = sum(a)", "a[0] = 5; a = a"])
def test_a_written_list_and_another_are_told_apart(fresh, write):
    """They were two objects when the program was captured, and are one later, or the other way round."""
    namespace = {}
    exec(f"def f(x, a, b):\n    {write}\n    return x * 2, a is b, b is not a, (a is b) and b[0]", namespace)
    f = namespace["f"]
    for order in ((False, False, True, False), (True, True, False, True)):
        compiled = fresh.compile(f)
        for one in order:
            ours, theirs = [1, 2], [1, 2]
            got = compiled(torch.ones(2), ours, ours if one else [1, 2])
            assert got[1:] == f(torch.ones(2), theirs, theirs if one else [1, 2])[1:]
            assert ours == theirs
        assert compiled.cache_info()["breaks"] == 0
        fresh.reset()


def test_a_function_made_anew_and_another_are_told_apart(fresh):
    """One that is made anew for each call is known by its code, not by itself."""

    def f(x, holder):
        return x * 2, holder.call is known, known is not holder.call

    def known(x):
        return x

    compiled = fresh.compile(f)
    for functions in ([lambda x: x, lambda x: x, known, lambda x: x], [known, lambda x: x, known]):
        for call in functions:
            holder = types.SimpleNamespace(call=call)
            assert compiled(torch.ones(2), holder)[1:] == f(torch.ones(2), holder)[1:]
    assert compiled.cache_info()["breaks"] == 0


def test_only_what_is_read_is_guarded(fresh):
    groups = [{"w": torch.ones(3), "lr": 0.5, "unread": 1, "params": [torch.ones(2)]}, {"w": torch.ones(3), "lr": 0.25, "params": (1,)}]

    def f(x):
        for group in groups:
            x = x + group["lr"] * group["w"]
        return x

    compiled = fresh.compile(f)
    for step in range(8):
        groups[0]["unread"] = step
        groups[0]["params"].append(step)
        groups[1]["lr"] = 0.25 + step
        groups[0]["w"] = groups[0]["w"] + 1
        torch.testing.assert_close(compiled(torch.ones(3)), f(torch.ones(3)))
    assert compiled.cache_info()["segments"] == 2
    groups.append({"w": torch.ones(3), "lr": 7.0})
    torch.testing.assert_close(compiled(torch.ones(3)), f(torch.ones(3)))
    groups[2] = {"w": torch.ones(3), "lr": 8.0}
    torch.testing.assert_close(compiled(torch.ones(3)), f(torch.ones(3)))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, pairs: x * dict(iter(pairs))["a"],
        lambda x, pairs: x * sorted(enumerate(pairs), reverse=True)[0][1][1],
        lambda x, pairs: x * max(zip(pairs, pairs))[0][1],
        lambda x, pairs: x * sum((b for _, b in pairs), 0),
    ],
)
def test_what_c_code_reads_of_the_items_is_guarded(fresh, f):
    compiled = fresh.compile(f)
    x = torch.ones(2)
    pairs = [["a", 2.0], ["b", 3.0]]
    for at, value in ((0, 2.0), (0, 5.0), (1, 7.0), (0, 9.0)):
        pairs[at][1] = value
        torch.testing.assert_close(compiled(x, pairs), f(x, pairs))


def test_tensors_in_items(fresh):
    def f(pairs):
        out = 0
        for name, tensors in pairs:
            for t in tensors:
                out = out + t * len(name)
        return out, [name for name, _ in iter(pairs)]

    compiled = fresh.compile(f)
    for n in (2, 2, 3):
        pairs = [("a" * k, [torch.full((2,), float(k)), torch.ones(2)]) for k in range(1, n)]
        torch.testing.assert_close(compiled(pairs)[0], f(pairs)[0])
        assert compiled(pairs)[1] == f(pairs)[1]
    told = fresh.explain(f)(pairs)
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)


def test_over_several_at_once(fresh):
    groups = [{"lr": 0.5, "of": [torch.ones(2)]}, {"lr": 0.25, "of": [torch.ones(2)]}]
    names = ["a", "b"]

    def f(x):
        for i, (group, name) in enumerate(zip(groups, names)):
            x = x * group["lr"] + i * len(name)
        for group, (i, name) in list(zip(groups, enumerate(names))):
            x = x + group["of"][0] * i
        return x

    told = fresh.explain(f)(torch.ones(2))
    assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
    compiled = fresh.compile(f)
    for step in range(6):
        groups[1]["lr"] = 0.25 + step
        groups[0]["unread"] = step
        torch.testing.assert_close(compiled(torch.ones(2)), f(torch.ones(2)))
    assert compiled.cache_info()["segments"] == 2
    names[1] = "bb"
    groups[1]["of"] = [torch.full((2,), 3.0)]
    torch.testing.assert_close(compiled(torch.ones(2)), f(torch.ones(2)))
    names.append("c")
    groups.append({"lr": 1.0, "of": [torch.zeros(2)]})
    torch.testing.assert_close(compiled(torch.ones(2)), f(torch.ones(2)))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, pairs: x * sorted(zip(pairs, pairs), reverse=True)[0][0][1],
        lambda x, pairs: x * sum([b for _, (_, b) in sorted(enumerate(pairs))], 0),
        lambda x, pairs: x * max(list(enumerate(pairs)), key=lambda p: p[1][1])[1][1],
        lambda x, pairs: x * max(list(zip(pairs)))[0][1],
        lambda x, pairs: x * (([["a", 2.0]],) in list(zip([pairs[:1]]))),
    ],
)
def test_what_c_code_reads_through_them_is_guarded(fresh, f):
    compiled = fresh.compile(f)
    x = torch.ones(2)
    pairs = [["a", 2.0], ["b", 3.0]]
    for at, value in ((0, 2.0), (0, 5.0), (1, 7.0), (0, 9.0), (0, 2.0)):
        pairs[at][1] = value
        torch.testing.assert_close(compiled(x, pairs), f(x, pairs))


@pytest.mark.parametrize(
    "f",
    [
        lambda names, tensors: dict(zip(names, tensors)),
        lambda names, tensors: list(map(lambda p: p[0] * p[1], enumerate(tensors))),
        lambda names, tensors: sorted(zip(range(3), tensors), key=lambda p: -p[0]),
        lambda names, tensors: max(zip(range(3), tensors), key=lambda p: -p[0])[1] * 2,
        lambda names, tensors: [t * i for i, t in map(tuple, zip(range(3), tensors))],
    ],
)
def test_c_code_goes_over_tensors(fresh, f):
    compiled = fresh.compile(f)
    for names, tensors in ("abc", [torch.full((2,), float(n)) for n in range(3)]), ("ab", (torch.ones(1), torch.zeros(2))), ("xyz", [torch.ones(2)] * 3):
        expected, got = f(names, tensors), compiled(names, tensors)
        torch.testing.assert_close(got, expected)
        same = [[x is t for x in torch.utils._pytree.tree_leaves(r) for t in tensors] for r in (got, expected)]
        assert same[0] == same[1]
    told = fresh.explain(f)("abc", [torch.ones(2)] * 3)
    assert told.graph_break_count == 0, str(told)


def test_a_method_lies_on_the_stack_in_two_ways(fresh):
    """As a method and its object, or as a bound method that another graph left there: what goes on in the middle of the call is made for one
    of them."""

    def grows(v, seen=[]):  # noqa: B006
        seen.append(1)
        if len(seen) > 4:
            seen.clear()
        return v + len(seen)

    def f(x, numbers):
        out = []
        y = x * 2
        for _ in numbers:
            out.append(y + grows(x))
        return out

    compiled = fresh.compile(f)
    for k in range(12):
        results = []
        for one in (f, compiled):
            grows.__defaults__ = ([1] * (k % 5),)
            results.append(one(torch.ones(2), [1.0, 2.0][: 1 + k % 2]))
        torch.testing.assert_close(*results)
