"""Sixty loops in which something happens: exceptions, interrupts, output, warnings in the middle. State, output and traceback are Python's: what the call
gives or raises, the lines it came through, the locals of the frame it left, every argument, all that was printed."""

import math
import os
import signal
import subprocess
import sys

import framejit
import numpy as np
import pytest
from test_loops_compiled import copied, described, observed, rng, scalar_loops  # noqa: F401 (a fixture for this file, too)

PROGRAMS = {}
N = 60


def hostile(*calls, machine_code=True):
    """Each call three times, compiled and as written; `machine_code`: does a loop of it become some?"""

    def add(function):
        assert function.__name__ not in PROGRAMS
        PROGRAMS[function.__name__] = function, calls, machine_code
        return function

    return add


def ints(*special, n=N):
    """1, 2, 3, ... with other values at some places: (place, value)."""
    out = np.arange(1, n + 1)
    for place, value in special:
        out[place] = value
    return out


def floats(*special, n=N):
    out = rng().random(n) + 0.5
    for place, value in special:
        out[place] = value
    return out


def ring(i, at):
    """Ctrl-C at one round."""
    if i == at:
        signal.raise_signal(signal.SIGINT)


class Stop(Exception):
    pass


def fails(v):
    if v > 1.4:
        raise Stop(v)
    return v * 2


# --- indices ---
@hostile((np.zeros(N), N + 1), (np.zeros(N), 5))
def store_past_the_end(x, n):
    for i in range(n):
        x[i] = i


@hostile((floats(), N + 3))
def load_past_the_end(x, n):
    s = 0.0
    for i in range(n):
        s += x[i]
    return s


@hostile((floats(),))
def load_before_the_begin(x):
    s = 0.0
    for i in range(2 * len(x)):
        s += x[-i]
    return s


@hostile((np.zeros((40, 45)),))
def rows_and_columns_swapped(x):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[j, i] = i + j


@hostile((np.zeros(N), ints((40, N + 7))))
def store_where_another_says(x, where):
    for i in range(len(where)):
        x[where[i] - 1] += 1


@hostile((list(range(N)), N + 2))
def load_of_a_list(values, n):
    s = 0
    for i in range(n):
        s += values[i]
    return s


@hostile((np.zeros((3, N)),))
def nested_past_the_end(x):
    rounds = 0
    for i in range(5):
        for j in range(N):
            x[i, j] += j
            rounds += 1
    return rounds


@hostile((floats(), 70))
def caught_past_the_end(x, n):
    missed = 0
    for i in range(n):
        try:
            x[i] *= 2
        except IndexError:
            missed += 1
    return missed


@hostile((np.zeros(0), 3), (np.ones(4), 4))
def of_an_empty_array(x, n):
    s = 0.0
    for i in range(n):
        s += x[i]
    return s


@hostile((np.zeros(N), 0), (np.zeros(N), 3))
def range_without_a_step(x, step):
    for k in range(3):
        for i in range(0, len(x), step):
            x[i] += k
    return x


# --- numbers ---
@hostile((ints((45, 0)).tolist(),))
def division_by_zero(values):
    s = 0.0
    for v in values:
        s += 1 / v
    return s


@hostile((ints((45, 0)).tolist(),))
def floor_division_by_zero(values):
    s = 0
    for v in values:
        s += 1000 // v
    return s


@hostile((ints((45, 0)).tolist(),))
def remainder_by_zero(values):
    s = 0
    for v in values:
        s = (s + 1000) % v
    return s


@hostile((floats((30, 0.0)).tolist(),))
def float_remainder_by_zero(values):
    s = 0.0
    for v in values:
        s += 7.5 % v
    return s


@hostile((floats((33, -1.0)),))
def root_of_a_negative(x):
    s = 0.0
    for i in range(len(x)):
        s += math.sqrt(x[i])
    return s


@hostile((floats((33, 0.0)),))
def logarithm_of_zero(x):
    s = 0.0
    for i in range(len(x)):
        s += math.log(x[i])
    return s


@hostile((floats((33, 1e4)),))
def exponential_too_large(x):
    s = 0.0
    for i in range(len(x)):
        s += math.exp(x[i])
    return s


@hostile((floats((33, math.nan)).tolist(),), (floats((20, math.inf)).tolist(),))
def int_of_no_number(values):
    s = 0
    for v in values:
        s += int(v)
    return s


@hostile((90,), (300,))
def past_64_bits(n):
    a = 1
    for i in range(n):
        a = a * 3 + i
    return a


@hostile((N, 70))
def shift_past_64_bits(n, most):
    s = 0
    for i in range(n):
        s += 1 << (i % most)
    return s


@hostile((ints((50, -1)).tolist(),))
def negative_shift(values):
    s = 0
    for v in values:
        s += 1 << v % 8 if v > 0 else 1 << v
    return s


@hostile((N, 0.0), (N, 2.0))
def power_of_zero(n, base):
    s = 0.0
    for i in range(n):
        s += base ** (20 - i)
    return s


@hostile((np.full(N, 2**62),))
def numpys_sum_overflows(x):
    s = x[0]
    for i in range(len(x)):
        s = s + x[i]
    return s


@hostile((floats(), floats((31, 0.0))))
def numpys_division_warns(x, y):
    for i in range(len(x)):
        x[i] = x[i] / y[i]


@hostile((np.zeros(N, np.int8), ints((40, 300)).tolist()))
def value_too_large_for_its_array(out, values):
    for i in range(len(values)):
        out[i] = values[i]


@hostile((np.zeros(N, np.int64), floats((40, math.nan)).tolist()))
def nan_into_integers(out, values):
    for i in range(len(values)):
        out[i] = values[i]


# --- raised on purpose ---
@hostile((floats(),), machine_code=False)
def raises_what_it_saw(x):
    n = 0
    for i in range(len(x)):
        n += 1
        if x[i] > 1.45:
            raise Stop(n, float(x[i]))
    return n


@hostile((floats(),), machine_code=False)
def raises_in_a_helper(x):
    s = 0.0
    for i in range(len(x)):
        s += fails(x[i])
    return s


@hostile((floats(),), machine_code=False)
def asserts(x):
    s = 0.0
    for i in range(len(x)):
        s += x[i]
        assert s < 30, "too much"
    return s


@hostile((ints((20, 0), (40, 0)).tolist(),))
def caught_and_counted(values):
    s, zeros = 0.0, 0
    for v in values:
        try:
            s += 10 / v
        except ZeroDivisionError:
            zeros += 1
    return s, zeros


@hostile((ints((40, 0)).tolist(), np.zeros(N)))
def cleaned_up_and_raised(values, done):
    i = 0
    for v in values:
        try:
            done[i] = 10 / v
        finally:
            i += 1
            done[i - 1] += 0.5


@hostile((ints((40, 0)).tolist(),))
def raised_from_another(values):
    s = 0.0
    for v in values:
        try:
            s += 10 / v
        except ZeroDivisionError as error:
            raise Stop("at", s) from error
    return s


@hostile((ints((40, 0)).tolist(),))
def caught_outside_of_the_loop(values):
    s, i = 0.0, -1
    try:
        for i in range(len(values)):
            s += 10 / values[i]
    except ZeroDivisionError:
        return "stopped", i, s
    return "went through", i, s


@hostile((ints((10, 0), (30, 0)).tolist(),))
def tried_again(values):
    i = tries = 0
    s = 0.0
    while i < len(values):
        try:
            s += 10 / values[i]
            i += 1
        except ZeroDivisionError:
            values[i] = 2
            tries += 1
    return s, tries


@hostile((floats(), 10))
def unbound_after_no_round(x, n):
    for i in range(n, 0):
        last = x[i]
    for i in range(len(x)):
        x[i] += 1
    return last


@hostile((floats(), 50), (floats(), -1))
def unbound_until_a_round(x, at):
    s = 0.0
    for i in range(len(x)):
        if i == at:
            found = x[i]
        s += x[i]
    return found, s


@hostile((floats(),), machine_code=False)
def deleted_in_the_loop(x):
    s = 0.0
    for i in range(len(x)):
        s += x[i]
        if i == 30:
            del s
    return s


@hostile((floats().tolist() + ["word"] + floats().tolist(),), machine_code=False)
def a_word_among_numbers(values):
    s = 0.0
    for v in values:
        s += v
    return s


@hostile((floats().tolist() + [None],), machine_code=False)
def none_among_numbers(values):
    s = 0.0
    for i in range(len(values)):
        s = s + values[i] * 2
    return s


@hostile((N,), (N * 2,))
def else_of_a_loop(n):
    s = 0
    for i in range(n):
        s += i
        if s > 3000:
            break
    else:
        return "whole", s
    return "broken", i, s


# --- output ---
@hostile((floats(n=300),))
def prints_now_and_then(x):
    s = 0.0
    for i in range(len(x)):
        s += x[i]
        if i % 60 == 59:
            print("at", i, s)
    return s


@hostile((floats(), ints((44, 0)).tolist()))
def prints_then_fails(x, values):
    for i in range(len(x)):
        x[i] = x[i] / 2 + 1 // values[i]
        if i % 20 == 0:
            print(i, x[i])


@hostile((ints((44, 0)).tolist(),))
def prints_what_was_caught(values):
    s = 0
    for i in range(len(values)):
        try:
            s += 100 // values[i]
        except ZeroDivisionError as error:
            print(i, error)
    return s


@hostile((floats(n=200), 50), machine_code=False)
def prints_and_breaks(x, at):
    for i in range(len(x)):
        x[i] *= 2
        if i == at:
            print("enough", x[i])
            break
    return i


@hostile((floats(n=20), 15), machine_code=False)
def prints_each_round(x, n):
    for i in range(n):
        x[i] += i
        print(i, end=" ", flush=True)
    return x


@hostile((np.zeros((6, N)),))
def prints_between_inner_loops(x):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = i * j
        print("row", i, x[i, 3])


@hostile((floats(n=30),), machine_code=False)
def writes_to_the_stream(x):
    for i in range(len(x)):
        x[i] = -x[i]
        if i % 10 == 3:
            sys.stdout.write(f"{x[i]:.3f};")


@hostile((floats(), 41), machine_code=False)
def prints_through_an_array_of_one(x, at):
    shown = []
    for i in range(len(x)):
        x[i] += 1
        if i == at:
            shown.append(i)
            print(shown, x[at:at + 2])
    return shown


# --- interrupts ---
@hostile((floats(), 40), machine_code=False)
def interrupted(x, at):
    for i in range(len(x)):
        x[i] = 0
        ring(i, at)


@hostile((floats(), 40), machine_code=False)
def interrupted_and_caught(x, at):
    s = 0.0
    try:
        for i in range(len(x)):
            s += x[i]
            ring(i, at)
    except KeyboardInterrupt:
        return "stopped", i, s
    return s


@hostile((np.zeros((5, N)), 3))
def interrupted_between_inner_loops(x, at):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] += i + j
        ring(i, at)


@hostile((np.zeros((5, N)), 3))
def interrupted_and_cleaned_up(x, at):
    done = 0
    try:
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                x[i, j] += i + j
            ring(i, at)
            done += 1
    finally:
        x[0, 0] = done


@hostile((floats(), 40), machine_code=False)
def interrupted_and_gone_on(x, at):
    stopped = 0
    for i in range(len(x)):
        try:
            x[i] += 1
            ring(i, at)
        except KeyboardInterrupt:
            stopped += 1
    return stopped


@hostile((floats(), 40), machine_code=False)
def left_by_exit(x, at):
    for i in range(len(x)):
        x[i] += 1
        if i == at:
            sys.exit(i)


# --- arrays that are not what they were ---
@hostile((floats(), 30))
def stops_being_writable(x, at):
    for k in range(3):
        for i in range(at):
            x[i] += k
        x.setflags(write=k < 1)


@hostile((floats(n=N),))
def slices_of_other_lengths(x):
    for i in range(1, len(x)):
        x[:i] = x[1 : i + 1] if i < 50 else x[: i + 1]


@hostile((np.zeros((4, 5)), np.ones((5, 4))), machine_code=False)
def products_that_do_not_fit(a, b):
    for k in range(6):
        a[:] = a @ b if k < 4 else a @ a


@hostile((floats(n=40), np.zeros((40, 3))), machine_code=False)
def shapes_that_do_not_broadcast(x, y):
    for i in range(40):
        y[i] = x[i : i + 3] if i < 39 else x[i - 1 : i + 1]


@hostile((floats(), [0]), machine_code=False)
def a_list_that_grows(x, seen):
    for i in range(len(x)):
        x[i] += seen[i]
        if i < 40:
            seen.append(i)


@hostile(({k: float(k) for k in range(50)}, N), machine_code=False)
def a_key_that_is_missing(table, n):
    s = 0.0
    for i in range(n):
        s += table[i]
    return s


def locals_of(function, plain, args):
    """What the frame that an exception left holds, or None."""
    try:
        function(*[copied(a) for a in args])
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001
        trace = error.__traceback__
        while trace.tb_frame.f_code is not plain.__code__:
            trace = trace.tb_next
        line = 0 if isinstance(error, UnboundLocalError) else trace.tb_lineno  # as in `observed`
        return {name: described(value) for name, value in trace.tb_frame.f_locals.items() if name != "error"}, line


# --- loops whose rounds are few, and then are not; what is asked once for many rounds ---
@hostile(*[(rounds,) for rounds in ([0, 1, 2], [1024] * 5, [1, 5000, 3, 1024, 1025, 0, 0, 2], [1023, 1025] * 3, [0] * 20)])
def inner_rounds_of_all_numbers(rounds):
    s, k, h = 0, -7, 0
    for n in rounds:
        for k in range(n):
            s += k & 5
            h = h * 3 & 0xFFFF
    return s, k, h


@hostile(*[(np.zeros(20), n) for n in (3, 25, 1024, 1030, 5000)])
def inner_past_the_end(x, n):
    done = 0
    for i in range(6):
        for j in range(n):
            x[j] += 1
            done += 1
    return done


NEAR = [sign * (1 << bits) // by + more for bits in (62, 63) for by in (1, 3, 5, 8, 9) for sign in (1, -1) for more in (-1, 0, 1)]


@hostile(*[(ints((40, v)),) for v in NEAR if -(1 << 63) <= v < 1 << 63])
def products_near_the_end(x):
    a = b = c = d = 0
    m = -(1 << 62)
    for i in range(len(x)):
        v = int(x[i])
        a = v * 3
        b = 5 * v
        c = v * 8
        d = v * 9
        if a > m:
            m = a
    return a, b, c, d, m


@hostile(*[(a, b, ints()) for a in (1, (1 << 31) - 1, 1 << 31, 1 << 32, -(1 << 32), 1 << 62) for b in (0, 1, 1 << 31, 1 << 32, -(1 << 31))])
def products_that_stay(a, b, x):
    s = 0
    for i in range(len(x)):
        s = s ^ (a * b + i)
        x[i] = i
    return s


@hostile(*[(floats(*at), start) for at in ([], [(0, math.nan)], [(5, math.nan)], [(59, -math.inf)]) for start in (0.0, -0.0, math.nan, math.inf, -math.inf, 10.0)])
def greatest_and_whether_there_was_one(x, start):
    best = low = start
    better = lower = False
    for v in x:
        if v > best:
            best = v
            better = True
        if v < low:
            low = v
            lower = True
    return best, better, low, lower


@hostile(*[(np.arange(40.0), how) for how in range(7)])
def views_of_one_array(base, how):
    a, b = ((base, base[1:]), (base[2:], base), (base, base[::-1]), (base[::2], base[1::2]), (base[:20], base[10:30]), (base, base), (base[:20], base[20:]))[how]
    s = 0.0
    for r in range(300):
        for i in range(18):
            a[i] = b[i] * 9.0 + a[2]
            s = s * 0.5 + b[5]
    return s



@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_python(name, fresh, capsys):
    program, calls, machine_code = PROGRAMS[name]
    compiled = fresh.compile(program)
    for args in calls:
        for _ in range(3):
            assert observed(compiled, program, args, __file__) == observed(program, program, args, __file__)
    for args in calls:
        want = locals_of(program, program, args)
        for _ in range(2):
            assert locals_of(compiled, program, args) == want
    if machine_code:
        assert compiled.cache_info()["scalar_runs"], "no machine code ran"


def test_there_are_sixty():
    assert len(PROGRAMS) >= 60


COUNTS = """
import framejit

@framejit.compile
def count(n, m):
    total = 1 << 59
    for i in range(n):
        for j in range(m):
            total += 16
        for j in range(8):
            total -= 1
    return total

for n, m in ((300, 500), (3, 1 << 19)):  # the second is too long for a run that may be undone
    for _ in range(3):
        assert count(n, m) == (1 << 59) + n * (m * 16 - 8)
assert count.cache_info()["scalar_runs"]
"""


def test_very_many_rounds_leave_the_code():
    """Sums of slow counters are not checked one by one: 2^42 rounds, which LLVM may do in seconds where they only count, are the most
    of one run. Each round is counted."""
    environment = {**os.environ, "FRAMEJIT_LOG": "llvm", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", COUNTS], env=environment, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert str((1 << 42) - 1) in done.stderr or str(1 << 42) in done.stderr


def interrupted_stencil(a, b, done):
    for i in range(1500):
        b[1:-1] = a[1:-1] * 0.4 + a[2:] * 0.4
        a[1:-1] = b[1:-1] * 0.4 + b[:-2] * 0.4
        done[0] = i


def interrupted_products(a, b, done):
    s = 0.0
    for i in range(1500):
        s += np.dot(a, b)
        done[0] = i


def interrupted_inside(a, b, done):
    for i in range(750):
        for _ in range(2):
            b[:] = a * 0.5 + b * 0.1
        done[0] = 2 * i


def interrupted_in_steps(a, b, done):
    for i in range(0, 4500, 3):
        a *= b
        done[0] = i // 3


def interrupted_while(a, b, done):
    i = 0
    while i < 1500:
        for _ in (1, 2):
            a *= b
        i += 1
        done[0] = 12 * i


@pytest.mark.parametrize("program", [interrupted_stencil, interrupted_products, interrupted_inside, interrupted_in_steps, interrupted_while])
def test_rounds_of_many_elements_are_interrupted_soon(program):
    """An alarm after 50 ms, in rounds of which each takes a fair part of a millisecond: they are not counted only."""
    compiled = framejit.compile(program)
    for _ in range(3):
        compiled(np.ones(40), np.ones(40), np.zeros(1, int))
    runs = compiled.cache_info()["scalar_runs"]
    args = np.ones(1_000_000), np.ones(1_000_000), np.zeros(1, int)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled(*args)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert compiled.cache_info()["scalar_runs"] > runs
    assert args[2][0] < 700
