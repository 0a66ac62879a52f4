"""The frame driver: every cut of crafted functions, abandoned frames, tracing, signals, threads, recursion, the hook."""
import dis
import gc
import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frame"))
import abandon  # noqa: E402
import functions  # noqa: E402
import fuzz  # noqa: E402
import sweep  # noqa: E402

try:
    fj = sweep.extension()
except ImportError:
    pytest.skip("the extension is not built", allow_module_level=True)
if fj.frame_unavailable():
    pytest.skip(f"frames cannot be intercepted here: {fj.frame_unavailable()}", allow_module_level=True)

MODES = ["step", "run", "override"]


class Swept:
    """with Swept(code or None, n, mode) as s: ...; then s.stats"""

    def __init__(self, code, n=10 ** 9, mode="run", seed=0):
        self.arguments = code, n, mode, seed

    def __enter__(self):
        fj.frame_sweep(*self.arguments)
        return self

    def __exit__(self, *_):
        self.stats = fj.frame_sweep_off()


@pytest.mark.parametrize("function", functions.ALL, ids=lambda f: f.__name__)
def test_every_cut(function):
    failures, steps = sweep.sweep(fj, function, limit=150)
    assert not failures, failures[0]
    assert steps > 100


def test_an_exception_of_the_policy_is_raised_by_the_instruction_it_stopped_at():
    def work(a):
        b = a + 1
        try:
            c = b + 1
            log.append(c)
        except ValueError as e:
            return "caught", e.__traceback__.tb_lineno
        finally:
            log.append("finally")
        return c

    log, kinds = [], []
    rows = fj.frame_decode(work.__code__)
    while rows.pop(0)[1] != "Resume":
        pass
    for n, (_, name, _, _, _, _, unit, handler) in enumerate(rows):
        if name in ("Jump", "ReturnValue"):
            break  # up to here they run in this order
        log.clear()
        with Swept(work.__code__, n, "raise") as s:
            try:
                r = work(1)
            except ValueError as e:
                assert str(e) == "swept"
                r = "left", e.__traceback__.tb_next.tb_lineno
        kinds.append((r[0], "finally" in log))
        assert r[1] == fj.frame_location(work.__code__, unit)[0]
        assert r[0] == ("left" if handler < 0 else "caught"), (n, name, r)
        assert s.stats["frames"] == 1
    assert {("left", False), ("caught", True)} <= set(kinds) and ("caught", False) not in kinds


def test_no_handler_runs_in_abandoned_frames():
    assert abandon.check(fj) >= 10


# --- decoding ----------------------------------------------------------------------------------------------------------
def codes_of(module):
    todo = [module if hasattr(module, "co_code") else compile(Path(module.__file__).read_text(), module.__file__, "exec")]
    while todo:
        code = todo.pop()
        yield code
        todo += [c for c in code.co_consts if hasattr(c, "co_code")]


@pytest.mark.parametrize("module", [functions, dis, threading, subprocess], ids=lambda m: m.__name__)
def test_decoding_agrees_with_dis(module):
    jumps = handled = 0
    for code in codes_of(module):
        rows = fj.frame_decode(code)
        assert sum(length for _, _, _, _, _, length, _, _ in rows) == len(code.co_code) // 2
        theirs = {i.offset // 2: i for i in dis.get_instructions(code)}
        table = [(e.start // 2, e.end // 2, e.target // 2) for e in dis._parse_exception_table(code)]
        positions = list(code.co_positions())
        for at, name, arg, flag, target, length, unit, handler in rows:
            instruction = theirs[unit]
            assert name != "Unsupported" or instruction.opname.startswith(
                ("MATCH", "GET_", "CHECK_EG", "PREP_", "LOAD_", "STORE_", "DELETE_", "SETUP", "CALL_INTRINSIC_2", "BEFORE_ASYNC",
                 "END_ASYNC", "CLEANUP", "IMPORT_STAR", "ASYNC")), instruction
            if "JUMP" in instruction.opname:
                assert target * 2 == instruction.argval, instruction
                jumps += 1
            elif name == "ForIter":  # past the instructions that only CPython's own loop needs
                assert target * 2 - instruction.argval == {11: 0, 12: 2, 13: 4, 14: 4}[sys.version_info[1]]
            expected = [h for start, end, h in table if start <= unit < end]
            assert ([handler] if handler >= 0 else []) == expected
            handled += handler >= 0
            line, end_line, column, end_column = fj.frame_location(code, unit)
            assert positions[unit][0] in (line, None)
            if positions[unit][2] is not None:
                assert (line, end_line, column, end_column) == positions[unit]
    assert jumps > 5 and handled > 5


def test_a_freed_code_object_is_not_mistaken_for_its_successor():
    for i in range(300):
        space = {}
        exec(f"def f(a):\n  b = a + {i}\n" + "  b += 1\n" * (i % 7) + "  return b", space)
        f = space["f"]
        with Swept(f.__code__):
            assert f(1) == 1 + i + i % 7
        del f, space


# --- attention CPython's loop would give ---------------------------------------------------------------------------
@pytest.mark.parametrize("mode", MODES)
def test_tracing_switched_on_inside_hands_over(mode):
    events = []

    def tracer(frame, event, arg):
        if frame.f_code is work.__code__:
            events.append((event, frame.f_lineno - frame.f_code.co_firstlineno))
        return tracer

    def work(n):
        a = n + 1
        sys.settrace(tracer)
        sys._getframe().f_trace = tracer
        b = a + 1
        for i in range(2):
            b += i
        sys.settrace(None)
        return b

    plain = work(1), events.copy()
    events.clear()
    with Swept(work.__code__ if mode != "override" else None, mode=mode) as s:
        swept = work(1), events.copy()
    assert swept == plain
    assert s.stats["hand_overs"] >= 1


def test_profile_functions_see_every_call():
    def inner(k):
        return k + 1

    def work():
        return [inner(i) for i in range(3)]

    def profiled():
        names = []
        sys.setprofile(lambda f, e, a: names.append((e, f.f_code.co_name)) if e in ("call", "return") else None)
        try:
            work()
        finally:
            sys.setprofile(None)
        return [n for n in names if n[1] in ("inner", "work")]

    plain = profiled()
    with Swept(None, mode="override"):
        assert profiled() == plain


@pytest.mark.parametrize("mode", MODES)
def test_signals_are_served_in_a_loop(mode):
    def spin(limit):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # here: no other frame may be interrupted
            while True:
                if time.monotonic() > limit:
                    return "late"
                turned = True  # noqa: F841 (3.14 has the jump back outside of the handler's range where nothing comes before it)
        except KeyboardInterrupt:
            return "interrupted"

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with Swept(spin.__code__ if mode != "override" else None, mode=mode) as s:
            assert spin(time.monotonic() + 20) == "interrupted"
        assert s.stats["hand_overs"] == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_other_threads_run_during_a_loop():
    def spin(done, limit):
        n = 0
        while not done and time.monotonic() < limit:
            n += 1
        return bool(done), n

    done = []
    other = threading.Thread(target=lambda: [sum(range(1000)) for _ in range(50)] and done.append(1))
    with Swept(spin.__code__) as s:
        other.start()
        finished, _ = spin(done, time.monotonic() + 20)
    other.join()
    assert finished and s.stats["hand_overs"] == 0


def test_garbage_is_collected_during_a_loop():
    class Cycle:
        live = 0

        def __init__(self):
            self.me = self
            Cycle.live += 1

        def __del__(self):
            Cycle.live -= 1

    def churn(n):
        most = 0
        for _ in range(n):
            Cycle()
            most = max(most, Cycle.live)
        return most

    gc.collect()
    with Swept(churn.__code__) as s:
        assert churn(20000) < 10000
    assert s.stats["hand_overs"] == 0
    gc.collect()


@pytest.mark.parametrize("mode", MODES)
def test_runaway_recursion_is_the_same_error(mode):
    def down(n):
        return down(n + 1) if n >= 0 else 0

    def depth():
        try:
            down(0)
        except RecursionError as e:
            return str(e)[:32]

    plain = depth()
    with Swept(down.__code__ if mode != "override" else None, mode=mode):
        for _ in range(3):
            assert depth() == plain
    assert depth() == plain


def test_recursion_is_as_deep_as_without_a_hook():
    def down(n):
        return down(n - 1) + 1 if n else 0

    limit = sys.getrecursionlimit() - len(list(iter_frames())) - 60
    for mode in MODES:
        with Swept(down.__code__ if mode != "override" else None, mode=mode):
            assert down(limit) == limit


def iter_frames():
    f = sys._getframe()
    while f:
        yield f
        f = f.f_back


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="its frames are several times larger")
def test_the_c_stack_is_never_overrun():
    assert in_fresh_process("""
    import sweep, threading
    fj = sweep.extension()
    def down(n): return down(n - 1) + 1 if n else 0
    def idle(n): return idle(n - 1) + 1 if n else 0
    sys.setrecursionlimit(300000)
    def work():
        for mode in ("step", "run", "override"):
            for f in (down, idle):
                fj.frame_sweep(None if mode == "override" else down.__code__, 10 ** 9, mode)
                try: f(250000)
                except RecursionError as e: print("refused")
                print(f(500))
                fj.frame_sweep_off()
    work()
    threading.stack_size(1 << 20)
    t = threading.Thread(target=work)
    t.start()
    t.join()
    """) == ["refused", "500"] * 12


def test_warnings_and_frames_name_the_running_line():
    def work():
        import warnings
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            warnings.warn("here")
        return seen[0].lineno, seen[0].filename

    plain = work()
    with Swept(work.__code__):
        assert work() == plain


# --- the hook ------------------------------------------------------------------------------------------------------------
def in_fresh_process(body):
    env = dict(os.environ)
    code = f"import sys; sys.path.insert(0, {str(Path(sweep.__file__).parent)!r}); sys.path[:0] = {sys.path!r}\n" + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


HOOK = """
    import ctypes, sweep
    api = ctypes.pythonapi
    state = api.PyInterpreterState_Get; state.restype = ctypes.c_void_p
    get = api._PyInterpreterState_GetEvalFrameFunc; get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    put = api._PyInterpreterState_SetEvalFrameFunc; put.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    default = ctypes.cast(api._PyEval_EvalFrameDefault, ctypes.c_void_p).value
    now = lambda: get(state())
    fj = sweep.extension()
    def f(x): return x
"""


def test_the_hook_is_not_installed_by_import_and_goes_when_idle():
    assert in_fresh_process(HOOK + """
    print(now() == default)
    fj.frame_unavailable()
    print(now() == default)
    fj.frame_sweep(f.__code__, 5, "step")
    print(now() == default, f(3))
    fj.frame_sweep_off()
    print(now() == default)     # hysteresis: not at once
    for i in range(50000): f(i)
    print(now() == default)
    fj.frame_sweep(f.__code__, 5, "step")
    print(now() == default, f(4), fj.frame_sweep_off()["frames"])
    """) == ["True", "True", "False", "3", "False", "True", "False", "4", "1"]


def test_the_hook_goes_soon_where_functions_are_left_to_python():
    """A hook costs each call of Python, so what is not compiled would cost more than without it."""
    assert in_fresh_process(HOOK + """
    import framejit
    framejit.config.leave = True
    def h(a): return a + "!"
    @framejit.compile
    def g(a, b): return h(f(a)) + h(b)
    g("x", "y")
    print(now() == default)
    done = [g(f"x{i}", "y") for i in range(300)]
    print(now() == default, done[7], framejit.cache_info(g)["outcomes"]["run"]["python"] > 200)
    """) == ["False", "True", "x7!y!", "True"]


@pytest.mark.skipif(sysconfig.get_platform() != "linux-x86_64", reason="plants a few bytes of x86-64 code as the foreign hook")
def test_another_owner_of_the_hook_is_left_alone():
    out = in_fresh_process(HOOK + """
    import mmap
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\\x48\\xb8" + default.to_bytes(8, "little") + b"\\xff\\xe0")   # mov rax, default; jmp rax
    foreign = ctypes.addressof(ctypes.c_char.from_buffer(page))
    put(state(), foreign)
    print(bool(fj.frame_unavailable()), f(1))
    try: fj.frame_sweep(f.__code__, 5, "step")
    except RuntimeError as e: print("refused")
    print(now() == foreign)
    put(state(), default)
    print(fj.frame_unavailable())
    """)
    assert out == ["True", "1", "refused", "True", "None"]


# --- fuzz ----------------------------------------------------------------------------------------------------------------
FOLDER = os.path.dirname(fj.__file__)
QUICK = ["test_with", "test_raise", "test_super", "test_class", "test_yield_from"]


def fuzzed(name, mode):
    pytest.importorskip("test." + name, reason="CPython's own tests are not installed")
    base = fuzz.run(sys.executable, FOLDER, "base", mode, 1, name)
    idle = fuzz.run(sys.executable, FOLDER, "idle", mode, 1, name)
    counts, failed, text = fuzz.run(sys.executable, FOLDER, "fuzz", mode, 1, name)
    assert counts, f"{failed}\n{text}"
    new = [t for t in failed - base[1] - idle[1] if not fuzz.KNOWN.search(t)]
    assert not new, (new, text)
    assert counts[1] > 1000


@pytest.mark.parametrize("mode", ["step", "override"])
@pytest.mark.parametrize("name", QUICK)
def test_random_hand_overs_under_cpythons_own_tests(name, mode):
    fuzzed(name, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["step", "override"])
@pytest.mark.parametrize("name", [m for m in fuzz.MODULES if m not in QUICK])
def test_random_hand_overs_under_more_of_cpythons_tests(name, mode):
    fuzzed(name, mode)
