"""Programs whose functions are all compiled, one by one, as one decorates a module: recursion, calls of each other, caches, long lists."""

import ctypes
import functools
import signal
import threading

import framejit
import pytest
from test_loops_compiled import scalar_loops  # noqa: F401 (a fixture for this file, too)

pytestmark = pytest.mark.usefixtures("fresh")


def tickets(days, costs):
    wanted = set(days)

    @functools.cache
    def cheapest(day):
        if day > 60:
            return 0
        if day not in wanted:
            return cheapest(day + 1)
        return min(costs[0] + cheapest(day + 1), costs[1] + cheapest(day + 7), costs[2] + cheapest(day + 30))

    return cheapest(1), cheapest.cache_info()


def words(text, parts):
    tree = {}
    for part in parts:
        node = tree
        for letter in part:
            node = node.setdefault(letter, {})
        node["end"] = True

    @functools.cache
    def splits(at):
        if at == len(text):
            return True
        node = tree
        for i in range(at, len(text)):
            node = node.get(text[i])
            if node is None:
                return False
            if node.get("end", False) and splits(i + 1):
                return True
        return False

    return splits(0)


def test_caches_made_in_the_function_that_call_themselves():
    for f, given in (
        (tickets, [([1, 4, 6, 7, 8, 20], [2, 7, 15]), ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 30, 31], [2, 90, 150]), ([2], [2, 90, 150])]),
        (words, [("applepenapple", ["apple", "pen"]), ("catsandog", ["cats", "dog", "sand", "and", "cat"]), ("cars", ["car", "ca", "rs"])]),
    ):
        compiled = framejit.compile(f)
        for _ in range(3):
            for args in given:
                assert compiled(*args) == f(*args)


def collatz(n, known):
    if n in known:
        return known[n]
    known[n] = 1 + collatz(3 * n + 1 if n % 2 else n // 2, known)
    return known[n]


def test_a_timed_call_that_calls_itself(monkeypatch):
    """Calls of one size within a call that is measured come to a verdict, and begin anew, before that one ends."""
    expected = [collatz(n, {1: 0}) for n in range(1, 400)]
    compiled = framejit.compile(collatz)
    monkeypatch.setitem(globals(), "collatz", compiled)
    with framejit.config.patch(leave=True):
        for _ in range(4):
            assert [compiled(n, {1: 0}) for n in range(1, 400)] == expected


TABLE = [None] * 200_000


def entered(at):
    TABLE[at] = at
    return TABLE[at + 1]


def fill(n):
    return [entered(i) for i in range(n)]


def test_an_item_of_a_long_list_is_no_reason_to_read_them_all():
    compiled = framejit.compile(fill)
    assert compiled(4) == [None] * 4 and TABLE[:5] == [0, 1, 2, 3, None]
    assert compiled(4) == [1, 2, 3, None]
    assert "more than 10,000" in str(framejit.explain(fill)(4))
    del TABLE[4:]
    TABLE.extend([None] * 20)
    for _ in range(2):
        assert compiled(4) == [1, 2, 3, None]


def cancels(a, b):
    return a % 10 == b // 10 and (a // 10) * b == (b % 10) * a


def fractions(n):
    found = 0
    for a in range(11, n):
        for b in range(10, 100):
            if a != b and a % 10 and cancels(a, b):
                found += 1
    return found


def test_a_compiled_function_called_in_a_loop_is_part_of_its_code(monkeypatch):
    expected = fractions(60)
    monkeypatch.setitem(globals(), "cancels", framejit.compile(cancels))
    compiled = framejit.compile(fractions)
    for _ in range(3):
        assert compiled(60) == expected
    info = framejit.cache_info(compiled)
    assert info["scalar_runs"] and info["scalar_runs"] <= 200, info  # not one for each call of the other function
    monkeypatch.setitem(globals(), "cancels", framejit.compile(lambda a, b: False))
    assert compiled(60) == 0
    monkeypatch.setitem(globals(), "cancels", lambda a, b: True)
    assert compiled(60) == sum(a != b and a % 10 != 0 for a in range(11, 60) for b in range(10, 100))


class Stop(BaseException):
    pass


def rounds(n):
    s = 0
    for i in range(n):
        s += i & 3
    return s


def test_an_exception_that_another_thread_sets_ends_a_loop():
    compiled = framejit.compile(rounds)
    for _ in range(4):
        assert compiled(1000) == 1500
    assert framejit.cache_info(compiled)["scalar_runs"]
    here = ctypes.c_ulong(threading.get_ident())
    sender = threading.Timer(0.1, ctypes.pythonapi.PyThreadState_SetAsyncExc, (here, ctypes.py_object(Stop)))
    sender.start()
    with pytest.raises(Stop):
        compiled(1 << 40)
    sender.join()
    assert compiled(1000) == 1500


def steps(x, n):
    for i in range(n):
        x = [v + i for v in x]
    return x


def test_a_signal_while_a_function_is_captured_reaches_its_handler():
    seen = []

    def handler(*_):
        seen.append(len(seen))
        raise Stop

    expected = steps([1, 2, 3], 40)
    before = signal.signal(signal.SIGVTALRM, handler)
    try:
        for _ in range(5):
            framejit.reset()
            compiled = framejit.compile(steps)
            seen.clear()
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.002)  # of the processor's time: the first call takes longer
            with pytest.raises(Stop):
                for _ in range(1_000_000):
                    assert compiled([1, 2, 3], 40) == expected
            assert seen == [0]
            assert compiled([1, 2, 3], 40) == expected
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
