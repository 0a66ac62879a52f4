"""logging inside of compiled functions: one graph, and the records that eager makes, in order with what else is written."""

import io
import logging
import sys

import pytest

torch = pytest.importorskip("torch")

FORMAT = "%(levelname)s %(name)s %(filename)s:%(lineno)d %(funcName)s: %(message)s"


@pytest.fixture
def logger():
    made = logging.Logger("framejit.test.inside", logging.INFO)  # unknown to others, who add handlers of their own
    made.written = io.StringIO()
    handler = logging.StreamHandler(made.written)
    handler.setFormatter(logging.Formatter(FORMAT))
    made.addHandler(handler)
    return made


def written(logger):
    text = logger.written.getvalue()
    logger.written.seek(0)
    logger.written.truncate()
    return text


def as_eager(fresh, logger, f, *calls, graphs=1):
    told = fresh.explain(f)(*calls[0])
    assert (told.graph_count, told.graph_break_count) == (graphs, 0), str(told)
    written(logger)
    compiled = fresh.compile(f)
    for args in calls:
        expected = f(*args)
        text = written(logger)
        got = compiled(*args)
        assert written(logger) == text
        assert torch.equal(got, expected)


def test_of_text_and_sizes(fresh, logger):
    def helper(x):
        logger.warning("in a callee, %s and %d%%", tuple(x.shape), 5)
        return x + 1

    def f(x):
        logger.info("begins")
        x = helper(x)
        logger.debug("not written: %s", x.dtype)
        logger.log(logging.ERROR, "of %s on %s, grüße %r", x.dtype, x.device, "ä")
        return x * 2

    as_eager(fresh, logger, f, (torch.ones(3),), (torch.zeros(3),), (torch.zeros(2, 2),))


def test_of_tensors(fresh, logger):
    def f(x):
        y = x * 2
        logger.info("y = %s", y)
        y.add_(1)
        logger.info("then %s", y)
        return y

    as_eager(fresh, logger, f, (torch.ones(3),), (torch.zeros(3),))


def test_in_order_with_print(fresh, logger):
    logger.handlers[0].setStream(stdout := io.StringIO())
    logger.written = stdout

    def f(x):
        print("first")
        logger.info("second")
        print("third")
        return x + 1

    before, sys.stdout = sys.stdout, stdout
    try:
        as_eager(fresh, logger, f, (torch.ones(3),), (torch.zeros(3),))
    finally:
        sys.stdout = before


def test_levels_that_change(fresh, logger):
    def f(x):
        logger.info("hello")
        return x + 1

    compiled = fresh.compile(f)
    for level, text in ((logging.INFO, True), (logging.ERROR, False), (logging.INFO, True)):
        logger.setLevel(level)
        logger._cache.clear()
        compiled(torch.ones(2))
        assert bool(written(logger)) is text


def test_what_the_program_hears_of_at_once(fresh, logger):
    state = {"k": 0}
    seen = []

    class Own(logging.Handler):
        def emit(self, record):
            seen.append((record.getMessage(), state["k"]))

    def f(x):
        state["k"] = 1
        logger.info("one")
        state["k"] = 2
        return x + 1

    compiled = fresh.compile(f)
    own = Own()
    for k in range(6):  # the handler comes, and goes
        if k == 2:
            logger.addHandler(own)
        if k == 4:
            logger.removeHandler(own)
        compiled(torch.ones(2))
    assert seen == [("one", 1)] * 2
    assert written(logger).count("one") == 6


def test_filters_and_exceptions(fresh, logger):
    def f(x):
        try:
            raise ValueError("no")
        except ValueError:
            logger.exception("it raised")
        return x + 1

    compiled = fresh.compile(f)
    for _ in range(2):
        assert compiled(torch.ones(2)).tolist() == [2, 2]
        text = written(logger)
        assert "it raised" in text and "ValueError: no" in text and text.count("Traceback") == 1

    def g(x):
        logger.info("kept %d", 1)
        logger.info("dropped %d", 2)
        return x + 1

    only = lambda record: "kept" in record.getMessage()  # noqa: E731
    logger.addFilter(only)
    compiled = fresh.compile(g)
    for _ in range(2):
        compiled(torch.ones(2))
        assert "kept 1" in (text := written(logger)) and "dropped" not in text
    logger.removeFilter(only)
    compiled(torch.ones(2))
    assert "dropped 2" in written(logger)


@pytest.mark.parametrize(
    "change, back",
    [
        ("handler.setLevel(logging.ERROR)", "handler.setLevel(logging.NOTSET)"),
        ("handler.level = logging.ERROR", "handler.level = logging.NOTSET"),
        ("handler.setFormatter(other)", "handler.setFormatter(own)"),
        ("handler.formatter = other", "handler.formatter = own"),
        ("handler.formatter._style._fmt = 'C %(message)s'", "handler.formatter._style._fmt = own._fmt"),
        ("handler.addFilter(no)", "handler.removeFilter(no)"),
        ("handler.filters.append(no)", "handler.filters.remove(no)"),
        ("logger.addFilter(no)", "logger.removeFilter(no)"),
        ("logger.disabled = True", "logger.disabled = False"),
        ("handler.stream = other_stream", "handler.stream = stream"),
        ("handler.terminator = '!'", "handler.terminator = '.'"),
    ],
)
def test_records_go_out_by_what_handlers_are_by_then(fresh, logger, change, back):
    handler = logger.handlers[0]
    space = {
        "logging": logging,
        "logger": logger,
        "handler": handler,
        "own": handler.formatter,
        "other": logging.Formatter("B %(message)s"),
        "no": lambda record: False,
        "stream": handler.stream,
        "other_stream": io.StringIO(),
    }
    exec(
        f'''
def f(x):
    logger.info("zero")
    x = x + 1
    {change}
    logger.info("one")
    x = x * 2
    {back}
    logger.info("two")
    return x
''',
        space,
    )
    f, x = space["f"], torch.ones(2)
    if "terminator" in back:
        handler.terminator = "."
    expected = f(x), written(logger)
    compiled = fresh.compile(f)
    for _ in range(3):
        assert torch.equal(compiled(x), expected[0])
        assert written(logger) == expected[1]
    assert compiled.cache_info()["segments"] and compiled.cache_info()["breaks"]
