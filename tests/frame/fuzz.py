"""Random hand-overs under CPython's own tests: three quarters of all frames run a random number of instructions in
framejit's interpreter and then go to CPython. A test that fails only then is a bug of the frame driver.

    python fuzz.py [--python PY=FOLDER ...] [--modules a,b] [--seeds 1,2] [--modes step,override] [--jobs 2]

PY is an interpreter, FOLDER the folder of the _framejit built for it (default: this interpreter and its framejit).
Prints a table; exit status 1 if a test fails that passes both without a hook and with an idle one.
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

MODULES = ("test_generators test_exceptions test_traceback test_frame test_scope test_with test_contextlib test_functools "
           "test_dataclasses test_super test_descr test_class test_gc test_weakref test_coroutines test_json test_itertools "
           "test_inspect test_signal test_threading test_call test_list test_dict test_set test_enumerate test_iter test_yield_from "
           "test_generator_stop test_raise test_except_star test_unpack test_unpack_ex test_extcall test_keywordonlyarg "
           "test_fstring test_decorators test_listcomps test_dictcomps test_setcomps test_genexps test_opcodes "
           "test_augassign test_compare test_contains test_collections test_enum test_typing test_abc test_property "
           "test_asyncgen test_patma test_named_expressions test_positional_only_arg test_bool test_int test_long test_re "
           "test_string test_copy test_pickle test_unittest test_sys_settrace").split()

# Tests that see the hook or the driver itself, by design of CPython (tracing switched on inside a running frame hands over
# at the next instruction; an exception being raised at that moment was already unwound), or that time out under load.
KNOWN = re.compile(r"test_09_settrace_and_raise")


def child(kind, mode, seed, name):
    import faulthandler
    import importlib
    import io
    import shutil
    import signal
    import tempfile
    import unittest

    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored, and some tests hang
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from sweep import extension
    fj = None if kind == "base" else extension()
    sys.argv = sys.argv[:1]
    here = tempfile.mkdtemp()  # some tests make files with fixed names
    os.chdir(here)
    module = importlib.import_module("test." + name)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    if kind == "fuzz":
        fj.frame_sweep(None, 0, mode, seed)
    elif kind == "idle":
        fj.frame_sweep(child.__code__, 0, "step")
    result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(suite)
    stats = fj.frame_sweep_off() if fj else {}
    print("RESULT", result.testsRun, stats.get("steps", 0), stats.get("hand_overs", 0), stats.get("frames", 0))
    for test, text in result.failures + result.errors:
        print("BAD", test)
        if os.environ.get("FUZZ_VERBOSE"):
            print("   ", text[-2000:].replace("\n", "\n    "))
    sys.stdout.flush()
    shutil.rmtree(here, ignore_errors=True)
    os._exit(0)  # threads that a broken test left behind must not keep us


def run(python, folder, kind, mode, seed, name):
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    if folder:
        env["FRAMEJIT_EXTENSION_DIR"] = os.path.abspath(folder)
    try:
        p = subprocess.run([python, os.path.abspath(__file__), "--child", kind, mode, str(seed), name], env=env,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return None, "timed out", ""
    counts = re.search(r"^RESULT (\d+) (\d+) (\d+) (\d+)", p.stdout, re.M)
    if not counts:
        return None, f"died ({p.returncode})", p.stderr[-3000:]
    return [int(x) for x in counts.groups()], set(re.findall(r"^BAD (.*)$", p.stdout, re.M)), p.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--modules", default=",".join(MODULES))
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--modes", default="step,override")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    if args.verbose:
        os.environ["FUZZ_VERBOSE"] = "1"
    pythons = [p.rpartition("=")[::2] for p in args.python] or [(sys.executable, "")]
    jobs = [("fuzz", mode, seed) for mode in args.modes.split(",") for seed in args.seeds.split(",")]
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for python, folder in pythons:
            version = subprocess.run([python, "-V"], capture_output=True, text=True).stdout.split()[1]
            print(f"{version:8} {'module':26} {'tests':>6} {'instructions':>13} {'hand-overs':>11}  new failures")
            total = [0, 0, 0, 0]
            work = [(name, [pool.submit(run, python, folder, *j, name) for j in [("base", "step", 0), ("idle", "step", 0), *jobs]])
                    for name in args.modules.split(",")]
            for name, futures in work:
                base, idle, *fuzzed = [f.result() for f in futures]
                if base[0] is None:
                    print(f"{version:8} {name:26} skipped: without framejit it {base[1]}")
                    continue
                known = base[1] | (idle[1] if idle[0] else set())
                counts, new = [0, 0, 0, 0], []
                for job, (n, failed, text) in zip([("idle",), *jobs], [idle, *fuzzed]):
                    label = "/".join(job[1:]) or "idle hook"
                    if n is None:
                        new.append(f"{label}: {failed} {text}")
                        continue
                    counts = [a + b for a, b in zip(counts, n)]
                    fresh = sorted(t for t in failed - (base[1] if job[0] == "idle" else known) if not KNOWN.search(t))
                    if fresh and job[0] == "idle":
                        print(f"{version:8} {name:26} an idle hook alone changes {fresh}")
                    elif fresh:
                        new.append(f"{label}: {fresh}")
                        if args.verbose:
                            print(text)
                total = [a + b for a, b in zip(total, counts)]
                bad += bool(new)
                print(f"{version:8} {name:26} {base[0][0]:6} {counts[1]:13,} {counts[2]:11,}  {'; '.join(new) or '-'}", flush=True)
            print(f"{version:8} {'total':26} {'':6} {total[1]:13,} {total[2]:11,}")
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    sys.exit(main())
