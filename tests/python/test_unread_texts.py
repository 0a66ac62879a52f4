"""Texts of what tensors hold, which nobody reads or only behind the graph: one graph, and what eager says."""

import io
import logging
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.fx.experimental.symbolic_shapes")  # which torch._check imports when it is first called

LOG = logging.getLogger("framejit.test.unread")


def checked(holds, message, error=ValueError):
    if not isinstance(message, str) or not message or callable(message):
        raise TypeError("no text")
    if not holds:
        raise error(message)


def as_eager(fresh, f, *calls, graphs=1, breaks=0):
    told = fresh.explain(f)(*calls[0])
    assert (told.graph_count, told.graph_break_count) == (graphs, breaks), str(told)
    compiled = fresh.compile(f)
    for args in calls:
        expected, got = f(*args), compiled(*args)
        assert type(got) is type(expected)
        for a, b in zip(got, expected) if isinstance(got, tuple) else [(got, expected)]:
            assert torch.allclose(a, b, 0, 0, equal_nan=True) if isinstance(b, torch.Tensor) else (type(a), a) == (type(b), b)
    return compiled


def of_field(x, n):
    k = (x > 0).sum()
    checked(n == 3, f"tokens {k}, features {n}")
    return x + k


def of_percent(x, n):
    k, m = (x > 0).sum(), x.mean()
    checked(n == 3, "%s of %d are above %5.2f, %r" % ("few", k, m, x) + "%d%%" % k)
    return x + k


def of_fields(x, n):
    k, m = (x > 0).sum(), x.mean()
    checked(n == 3, "tokens {} {:.3f} {n!r} {name:>8}".format(k, m, n=n, name="a"))
    return x + k


def of_str(x, n):
    k = (x > 0).sum()
    text = "tokens " + str(k) + repr(x) + format(k, "04d")
    text += f"{text}"
    checked(n == 3, text)
    return x + k


def of_item(x, n):
    checked(n == 3, f"{x.mean().item():.3f} {(x > 0).sum().item():d} {float(x.max())!r:>20}")
    return x + 1


def of_tensor(x, n):
    checked(n == 3, f"{x} {x.shape} {x!s:>100}")
    return x + 1


def of_assertion(x, n):
    k = (x > 0).sum()
    assert n == 3, f"tokens {k}"
    torch._check_tensor_all(k >= 0, lambda: f"tokens {k}")
    return x + k


def of_level(x, n):
    k = (x > 0).sum()
    LOG.debug("tokens %s", k)
    LOG.debug(f"tokens {k} {x}")
    return x + k


def of_handled(x, n):
    k = (x > 0).sum()
    try:
        checked(n == 4, f"tokens {k}")
    except ValueError:
        x = x * 2
    return x + k


@pytest.mark.parametrize("f", [of_field, of_percent, of_fields, of_str, of_item, of_tensor, of_assertion, of_level, of_handled])
def test_what_nobody_reads_is_one_graph(fresh, f):
    as_eager(fresh, f, (torch.ones(4), 3), (torch.zeros(4), 3), (torch.randn(4), 3))


@pytest.mark.parametrize("f", [of_field, of_percent, of_fields, of_str, of_item, of_tensor])
def test_what_is_raised_has_eagers_text(fresh, f):
    compiled = fresh.compile(f)
    x = torch.tensor([1.5, -2.25, 0.0, 3.0])
    for n in (3, 4, 4, 3, 5):
        seen = []
        for g in (f, compiled):
            try:
                seen.append(g(x, n))
            except ValueError as e:
                seen.append(str(e))
        assert torch.equal(*seen) if n == 3 else seen[0] == seen[1]


def test_with_gradients(fresh):
    def f(x, n):
        y = (x * 2).sum()
        checked(n == 3, f"{y:.2f} {x * 3} {y!r}")
        return y

    for x in (torch.ones(3, requires_grad=True), torch.nn.Parameter(torch.arange(3.0))):
        as_eager(fresh, f, (x, 3))
        (g,) = torch.autograd.grad(fresh.compile(f)(x, 3), x)
        assert torch.equal(g, torch.full((3,), 2.0))


def test_what_leaves_the_graph_is_made_behind_it(fresh):
    held = {}

    def f(x):
        n, m = (x > 0).sum(), x.mean()
        text = f"<{n:>3}|{m:.2f}|{(x > 0).any()}|{m.item()!r:>20}|{x}|{x!r:>200}|{n!r}>"
        x = x + 1
        n += 5
        held["text"] = text
        return x, text, [text, "%d %g %s" % (n, m, x)]

    calls = [(torch.randint(-9, 9, (4,)).float(),) for _ in range(4)] + [(torch.tensor([float("nan"), float("inf")]),)]
    compiled = as_eager(fresh, f, *calls)
    for (x,) in calls:
        expected = f(x)
        wanted = held.pop("text")
        _, text, texts = compiled(x)
        assert (text, texts, held.pop("text")) == (expected[1], expected[2], wanted)
        assert text is texts[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int64, torch.bool])
def test_numbers_of_all_kinds(fresh, dtype):
    def f(x):
        y = x[0]
        return x.clone(), f"{y}", f"{y:8}", "{}".format(y)

    as_eager(fresh, f, *((torch.tensor([v, 1]).to(dtype),) for v in (0, 1, 3)))


def test_print_and_logs(fresh, capsys):
    logger = logging.Logger("framejit.test.unread.shown", logging.INFO)
    stream = io.StringIO()
    logger.addHandler(logging.StreamHandler(stream))

    def f(x):
        m = x.mean()
        print(f"mean {m:.3f}", "and", f"{(x > 0).sum()}")
        logger.info(f"mean {m:.3f}")
        logger.info("text %s", f"{m:.1f}")
        return x + 1

    for x in (torch.ones(3), torch.zeros(3), torch.randn(3)):
        f(x)
        expected, logged = capsys.readouterr().out, stream.getvalue()
        stream.seek(0), stream.truncate()
        compiled = fresh.compile(f)
        told = fresh.explain(f)(x)
        capsys.readouterr(), stream.seek(0), stream.truncate()
        assert (told.graph_count, told.graph_break_count) == (1, 0), str(told)
        assert torch.equal(compiled(x), x + 1)
        assert (capsys.readouterr().out, stream.getvalue()) == (expected, logged)
        stream.seek(0), stream.truncate()


def reads_length(x, text):
    return x * len(text)


def reads_equal(x, text):
    return x * 2 if text == "n 2" else x


def reads_key(x, text):
    return x * {"n 2": 3}.get(text, 4)


def reads_method(x, text):
    return x * 2 if text.startswith("n 2") or "x".startswith(text) else x


def reads_joined(x, text):
    try:
        return x, ",".join(["a", text])
    except TypeError:
        return x, "no"


def reads_within(x, text):
    return x * 2 if "2" in text and text in "n 23" and text[0] == "n" else x


def reads_sorted(x, text):
    return x, sorted(["m", text, "o"])


def reads_number(x, text):
    return x * int(text[2:])


def reads_attribute(x, text):
    class Box:
        pass

    setattr(Box, "n 2", 5)
    return x * getattr(Box, text, 7)


def reads_warning(x, text):
    warnings.warn(text)
    return x + 1


def reads_identity(x, text):
    return x * 2 if text is text else x


def reads_percent(x, text):
    return x, "%5s|%s" % (text, text), f"{text:>9}", f"{text!r}", text % (), text * 2


@pytest.mark.parametrize("read", [v for k, v in sorted(globals().items()) if k.startswith("reads_")])
def test_what_is_read_is_eagers(fresh, read):
    def f(x):
        n = (x > 0).sum()
        y = x * 2
        return read(y, f"n {n}")

    compiled = fresh.compile(f)
    for x in (torch.ones(2), torch.ones(3), torch.zeros(2), torch.ones(2)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            expected = f(x)
        with warnings.catch_warnings(record=True) as now:
            warnings.simplefilter("always")
            got = compiled(x)
        assert [str(w.message) for w in told] == [str(w.message) for w in now]
        if isinstance(expected, tuple):
            assert torch.equal(got[0], expected[0]) and got[1:] == expected[1:]
        else:
            assert torch.equal(got, expected)


@pytest.mark.parametrize("spec", ["d", "c", "x", "10.3q"])
def test_formats_that_python_refuses(fresh, spec):
    def f(x):
        _ = f"{x.sum():{spec}}"
        return x + 1

    for x in (torch.ones(3), torch.ones(3, dtype=torch.int64) * 100):
        seen = []
        for g in (f, fresh.compile(f)):
            try:
                seen.append(g(x))
            except (ValueError, OverflowError) as e:
                seen.append(f"{type(e).__name__} {e}")
        assert torch.equal(*seen) if isinstance(seen[0], torch.Tensor) else seen[0] == seen[1]


def test_shapes_cannot_be_formatted(fresh):
    def f(x):
        _ = f"{x:.3f}"
        return x + 1

    with pytest.raises(TypeError, match="unsupported format string"):
        fresh.compile(f)(torch.ones(3))


def test_a_batch_has_no_number(fresh):
    def f(x):
        _ = f"{x.sum()}"
        return x + 1

    for g in (f, fresh.compile(f)):
        with pytest.raises(RuntimeError, match="vmap"):
            torch.vmap(g)(torch.ones(2, 3))


def test_a_class_that_was_given_another_format(fresh, monkeypatch):
    seen = []

    def f(x):
        text = f"{x.sum()}"
        return x + 1, text

    compiled = fresh.compile(f)
    assert compiled(torch.ones(3))[1] == "3.0"
    monkeypatch.setattr(torch.Tensor, "__format__", lambda t, spec: seen.append(spec) or "own")
    assert compiled(torch.ones(3))[1] == "own" and seen == [""]


def test_options_of_printing(fresh):
    def f(x, narrow):
        first = f"{x}"
        with torch._tensor_str.printoptions(precision=2):
            second = f"{x}"
        torch.set_printoptions(precision=narrow)
        return x + 1, first, second, f"{x}"

    compiled = fresh.compile(f)
    try:
        for n in (1, 6, 2, 2):
            x = torch.rand(3)
            got = compiled(x, n)
            torch.set_printoptions(precision=4)
            expected = f(x, n)
            torch.set_printoptions(precision=4)
            assert got[1:] == expected[1:]
    finally:
        torch.set_printoptions(profile="default")


def test_text_that_tells_of_gradients(fresh):
    def f(x):
        y = x * 2
        return y, f"{x} {x!r:>60}"

    compiled = fresh.compile(f)
    for x in (torch.ones(2, requires_grad=True), torch.ones(2), torch.nn.Parameter(torch.ones(2))):
        assert compiled(x)[1] == f(x)[1]


def of_own_error(x):
    class Own(Exception):
        def __init__(self, text):
            super().__init__(text)
            self.text = text

    try:
        raise Own(f"n {x.sum()}")
    except Own as e:
        return x + 1, e.text, str(e), e.args


def of_written_tensors(x):
    t = x.sum()
    before = f"{t} {t!r}"
    t.mul_(2)
    return x + 1, before, f"{t}"


def of_each(x):
    texts = [f"{v}" for v in x]
    return x + 1, " ".join(texts), sorted(texts), max(texts[0], "z")


def of_generators(x):
    def texts():
        for v in (1, 2):
            yield f"{(x * v).sum()}"

    return x + 1, list(texts()), ", ".join(texts())


def of_formats_by_name(x):
    return x + 1, "%(a)s %(b)d" % {"a": x.sum(), "b": 3}, "{0} {1:>{2}}".format(x.sum(), x.mean(), 9), "{a.shape}".format(a=x)


def of_no_names(x):
    n, texts = x.sum(), []
    for text, given in (("{a.b}", {"a.b": n, "a": 3}), ("{0}", {"0": n}), ("{}", {"": n}), ("{a[0]}", {"a[0]": n, "a": [5]}), ("{a}", {"a": n})):
        try:
            texts.append(text.format(**given))
        except (AttributeError, IndexError) as error:
            texts.append(str(error))
    return x + 1, *texts


def of_questions(x):
    text = f"{x.sum()}"
    return x + 1, text is text, text == text, text != None, isinstance(text, (int, str)), type(text), text in "5 3.0"  # noqa: E711


def of_infinity(x):
    return x + 1, "%d" % (x.sum() / 0)


def of_missing_values(x):
    return x + 1, "%s %s" % (x.sum(),)  # noqa: F507


@pytest.mark.parametrize("f", [of_own_error, of_written_tensors, of_each, of_generators, of_formats_by_name, of_no_names, of_questions, of_infinity, of_missing_values])
def test_programs_that_use_texts(fresh, f):
    compiled = fresh.compile(f)
    for x in (torch.ones(3), torch.tensor([2.0, 5.0, -1.0]), torch.tensor([2.0, 5.0, -1.0])):
        seen = []
        for g in (f, compiled):
            try:
                seen.append(g(x.clone()))
            except (OverflowError, TypeError) as e:
                seen.append((x, type(e), str(e)))
        assert torch.equal(seen[0][0], seen[1][0]) and seen[0][1:] == seen[1][1:]


def keys_of_texts(x, n):
    log = {"{}/loss".format(n): x.mean(), f"{n}/sum": x.sum(), "plain": x * 2}
    return (x + 1, log, [log]) if log else None


def equal_keys_of_texts(x, n):
    return {f"{n}": x, f"{n}/b": x + 1, "3": x + 2, str(n): x + 3}


@pytest.mark.parametrize("f", [keys_of_texts, equal_keys_of_texts])
def test_dicts_whose_keys_are_texts(f, fresh):
    """Such a dict is made behind the run, once for all places where it is."""
    compiled = fresh.compile(f)
    for n in (torch.tensor(3), torch.tensor(4), torch.tensor([1.0, 2.5])):
        want, got = f(torch.ones(3), n), compiled(torch.ones(3), n)
        assert repr(got) == repr(want)
        if isinstance(got, tuple):
            assert got[1] is got[2][0] and type(got[1]) is dict
    assert not fresh.cache_info(compiled)["breaks"]


def test_dicts_whose_keys_are_texts_are_read_in_python(fresh):
    def f(x, n):
        d = {f"{n}/a": x * 2}
        d["b"] = x
        for k in list(d):
            x = x + d[k]
        return x, "3/a" in d, len(d), d.get("3/a"), isinstance(d, dict), type(d), {**d, "z": 1}, d | {"q": 2}, d == {}

    compiled = fresh.compile(f)
    for n in (torch.tensor(3), torch.tensor(4)):
        assert repr(compiled(torch.ones(3), n)) == repr(f(torch.ones(3), n))
    assert fresh.cache_info(compiled)["breaks"] == 1
