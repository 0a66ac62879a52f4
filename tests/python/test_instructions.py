"""What CPython's versions have different instructions for, within captured code: handlers that note a position on the stack, __enter__ and __exit__, functions with
annotations, all and any over generators, subscripts, small numbers, comprehensions."""

import framejit
import pytest

np = pytest.importorskip("numpy")


class Quiet:
    """Keeps an exception from leaving its block, and breaks the graph while it is handled."""

    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(kind and (kind.__name__, error.args, traceback.tb_lineno - traceback.tb_frame.f_code.co_firstlineno))
        return kind is ValueError


def with_blocks(a, log):
    b = a * 2
    with Quiet(log) as outer, Quiet(outer.log):
        b = b + 1
        if a.shape[0] > 2:
            raise ValueError(a.shape[0])
        b = b * 3
    return b - 1


def cleaned_up(a, log):
    try:
        try:
            b = a + 1
            raise KeyError("one")
        except KeyError as error:
            log.append(str(error))
            b = b * 2
            raise ValueError("two") from error
    except ValueError as error:
        log.append((str(error), str(error.__cause__), error.__traceback__.tb_lineno - error.__traceback__.tb_frame.f_code.co_firstlineno))
        b = b + a
    finally:
        log.append("end")
    return b


def annotated(a, log):
    n = a.shape[0]

    def inner(x: "list[int]", *, k: int = n) -> float:
        return x * k

    log.append(sorted(inner.__annotations__))
    return inner(a), inner


def over_generators(a, log):
    n = a.ndim + 2
    flags = all(i < n for i in range(n)), any(i > n for i in range(n)), tuple(i * 2 for i in range(n))
    return a * sum(flags[2]), flags, any(a.shape[i] > 100 for i in range(a.ndim))


def small_numbers(a, log):
    t = (a[0] * 255, a[-1:] + 256, a[1:2][0] - 5)
    return [x + i for i, x in enumerate(t)], {i: x for i, x in zip(range(3), t)}, a[:, 0] if a.ndim > 1 else a[::-1]


def formats(a, log):
    return a + 1, f"{a.shape!r} {a.shape[0]:>5} {a.ndim}"


PROGRAMS = [with_blocks, cleaned_up, annotated, over_generators, small_numbers, formats]


def told(result):
    if isinstance(result, np.ndarray):
        return result.dtype, result.shape, result.tolist()
    if isinstance(result, (tuple, list)):
        return type(result), [told(x) for x in result]
    if isinstance(result, dict):
        return [(k, told(v)) for k, v in result.items()]
    if callable(result):
        return result.__name__, result.__annotations__, result.__kwdefaults__
    return type(result), result


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_eager(program):
    compiled = framejit.compile(program)
    for shape in [(3,), (3,), (2,), (4, 2), (3,), (1,), (5, 3)] if program is not small_numbers else [(3,), (3,), (4, 2), (2,), (5, 3)]:
        a = np.arange(np.prod(shape), dtype=float).reshape(shape) + 1
        theirs, ours = [], []
        assert told(compiled(a, ours)) == told(program(a, theirs))
        assert ours == theirs
    assert framejit.cache_info(compiled)


@pytest.mark.parametrize("program", [over_generators, small_numbers, formats], ids=lambda p: p.__name__)
def test_as_one_graph(program):
    compiled = framejit.compile(program, fullgraph=True)
    a = np.arange(12.0).reshape(4, 3)
    assert told(compiled(a, [])) == told(program(a, []))
    assert told(compiled(a + 1, [])) == told(program(a + 1, []))
