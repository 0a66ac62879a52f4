"""Values that are equal are not always one object, and a not-a-number is equal as an object alone."""

import math

import pytest

torch = pytest.importorskip("torch")
one, other = float("nan"), float("nan")


def against_eager(fresh, f, calls):
    compiled = fresh.compile(f)
    for arguments in (*calls, *calls):
        assert compiled(torch.ones(1), *arguments)[1:] == f(torch.ones(1), *arguments)[1:], arguments
    assert compiled.cache_info()["breaks"] == 0


NANS = [(one, one), (one, other), (other, other), (1.5, 1.5), (one, 1.5), (other, one)]


def test_not_a_number_in_containers(fresh):
    def f(x, a, b):
        return x * 2, (a,) == (b,), [a] == [b], a in (b,), {"k": a} == {"k": b}, [a].count(b)

    against_eager(fresh, f, NANS)


def test_not_a_number_where_it_is_an_attribute(fresh):
    class Held:
        a = b = one

    def f(x):
        return x * 2, (Held.a,) == (Held.b,), Held.a in [Held.b]

    compiled = fresh.compile(f)
    for Held.a, Held.b in NANS * 2:
        assert compiled(torch.ones(1))[1:] == f(torch.ones(1))[1:]


def test_not_a_number_that_nobody_compares_is_any(fresh):
    """Each is another object: one version is enough."""

    def f(x, a):
        return x * a

    compiled = fresh.compile(f)
    for _ in range(12):
        assert math.isnan(compiled(torch.ones(1), float("nan")).item())
    assert compiled.cache_info()["segments"] <= 2


@pytest.mark.parametrize("values", [[1.5, float("1.5")], [1000, int("1000")], ["ab c", "".join(["ab", " c"])], [one, other], [b"ab c", b"".join([b"ab", b" c"])], [(1, 2), tuple([1, 2])]], ids=str)
def test_which_object_it_is(fresh, values):
    a, b = values

    def f(x, p, q):
        return x * 2, p is q, p is not q

    against_eager(fresh, f, [(a, a), (a, b), (b, b), (b, a), (5, 5), ("a", "a")])


def test_which_object_a_sentinel_is(fresh):
    missing = "missing value"

    def f(x, p=missing):
        return x * 2, p is missing

    against_eager(fresh, f, [(), ("missing value",), ("".join(["missing", " value"]),), (missing,), ("other",)])


def test_a_list_that_holds_itself(fresh):
    items, names = [], {}
    items.append(items)
    names["self"] = names

    def f(x):
        return x * 2, repr(items), str(items), f"{items}", len(items[0][0])

    compiled = fresh.compile(f)
    for _ in range(3):
        assert compiled(torch.ones(1))[1:] == f(torch.ones(1))[1:]
        items.append(len(items))


def test_ranges_of_types_that_do_not_hold_them(fresh):
    np = pytest.importorskip("numpy")

    def f(a, start, stop, step, dtype):
        return np.arange(start, stop, step, dtype=dtype) + a

    def outcome(run, *arguments):
        try:
            r = run(np.zeros(1, "i1"), *arguments)
        except (TypeError, OverflowError, ValueError) as error:
            return type(error)
        return r.dtype, r.tolist()

    for dtype in ("?", "u1", "i1", "i4", "u4", "i8", "f4"):
        for bounds in ((0, 3, 1), (0, 2, 1), (0, 0, 1), (-1, 3, 1), (5, 0, -1), (250, 260, 3), (0, 300, 1), (127, 129, 1)):
            fresh.reset()
            compiled = fresh.compile(f)
            for _ in range(2):
                assert outcome(compiled, *bounds, dtype) == outcome(f, *bounds, dtype), (bounds, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["elu", "selu", "celu", "hardswish", "hardtanh", "relu6", "logit", "power"])
def test_gradients_at_special_values(fresh, name, dtype):
    """Eager's gradient of a not-a-number is the one given, where its formula asks on which side of a bound the number is. For elu and
    hardswish that is so in the last few elements alone: ours is what its vectors give (test_special_values.py)."""
    functional = torch.nn.functional
    function = {"logit": lambda x: torch.logit(x, 0.1), "power": lambda x: x**-2}.get(name) or getattr(functional, name)

    def f(x):
        return function(x)

    compiled = fresh.compile(f)
    values = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 0.5, math.inf, -math.inf, 1e38, 1e-40]
    if "elu" not in name.replace("relu", "") and name != "hardswish":
        values.append(math.nan)
    told = []
    for run in (f, compiled):
        x = torch.tensor(values, dtype=dtype, requires_grad=True)
        run(x).backward(torch.arange(1.0, len(values) + 1, dtype=dtype))
        told.append(x.grad)
    torch.testing.assert_close(told[1], told[0], equal_nan=True)
    assert compiled.cache_info()["breaks"] == 0


def test_not_a_number_in_a_set_that_changes(fresh):
    def f(x, held, a, b):
        held.discard(a)
        held.add(b)
        return x * 2, a in held

    compiled = fresh.compile(f)
    for a, b in NANS * 2:
        mine, theirs = {2}, {2}
        assert compiled(torch.ones(1), mine, a, b)[1] == f(torch.ones(1), theirs, a, b)[1]
        assert list(map(repr, mine)) == list(map(repr, theirs))
