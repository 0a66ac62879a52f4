"""Shared set-up of the Python tests. `--identity` replaces framejit.compile by the identity: what fails then is the test."""

import functools
import importlib.util
import os
import signal
import sys
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if importlib.util.find_spec("framejit") is None and (ROOT / "build/python/framejit").exists():
    sys.path.insert(0, str(ROOT / "build" / "python"))
sys.path.insert(0, str(ROOT))
import bench  # noqa: E402,F401 (makes torchvision importable)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# Unless the defaults as shipped are tested (--shipped: tools/dev test runs a few files so).
if "--shipped" not in sys.argv:
    os.environ.setdefault("FRAMEJIT_LEAVE", "0")  # what is left to NumPy tests nothing
    os.environ.setdefault("FRAMEJIT_STRICT", "1")  # nothing fails in silence


def pytest_addoption(parser):
    parser.addoption("--identity", action="store_true", help="replace framejit.compile by the identity (checks the tests)")
    parser.addoption("--shipped", action="store_true", help="every option of framejit at its default")
    parser.addoption("--known", action="store_true", help="run the tests of known_failures.txt too")
    parser.addoption("--isolate", action="store_true", help="run every test in a forked child: a crash fails one test only")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not pyfuncitem.config.getoption("--isolate"):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        signal.alarm(limit(pyfuncitem))  # not inherited
        try:
            pyfuncitem.obj(**arguments)
        except pytest.skip.Exception as skipped:
            text = f"skip:{skipped}"
        except BaseException:
            text = traceback.format_exc()
        os.write(writer, text.encode()[-60_000:])
        os._exit(1 if text else 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        pytest.fail(f"crashed: {signal.Signals(os.WTERMSIG(status)).name}", pytrace=False)
    if text.startswith("skip:"):
        pytest.skip(text[5:])
    if text:
        pytest.fail(text, pytrace=False)
    return True


def limit(item):
    """Seconds that a test may take."""
    asked = sum(float(os.environ.get(f"FRAMEJIT_{what}_SECONDS", 0)) for what in ("FUZZ", "SOAK"))
    return int(1200 + asked if item.get_closest_marker("slow") else os.environ.get("FRAMEJIT_TEST_SECONDS", 180))


@pytest.fixture(autouse=True)
def alarm(request):
    """A test that hangs fails, with the place in its traceback."""

    def ring(signum, frame):
        raise TimeoutError(f"the test took more than {limit(request.node)} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(limit(request.node))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def identity(request):
    return request.config.getoption("--identity")


@pytest.fixture(scope="session")
def fj(identity):
    """framejit, or a stand-in whose compile() does nothing under --identity."""
    if identity:
        from identity import framejit_stand_in

        return framejit_stand_in()
    import framejit

    return framejit


@pytest.fixture
def fresh(fj):
    """framejit with nothing compiled, before and after."""
    fj.reset()
    yield fj
    fj.reset()


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed for this Python")


@pytest.fixture
def installed(fj, torch):
    """torch.compile is framejit's for the time of the test."""
    fj.install()
    yield
    fj.uninstall()
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def np():
    return pytest.importorskip("numpy", reason="NumPy is not installed for this Python")


@pytest.fixture(scope="session")
def oracle():
    """oracle.check(got, eager, reference): raises AssertionError with the figures if `got` is outside of the bounds."""
    import oracle

    return oracle


@pytest.fixture
def two_threads(torch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _options(request):
    """A test that changes an option of framejit puts it back: the next ones would test something else."""
    framejit = sys.modules.get("framejit")
    names = [] if framejit is None else [n for n in dir(framejit.config) if not n.startswith("_") and not callable(getattr(framejit.config, n))]
    before = {name: getattr(framejit.config, name) for name in names}
    yield
    changed = {name: getattr(framejit.config, name) for name in names if getattr(framejit.config, name) != before[name]}
    for name in changed:
        setattr(framejit.config, name, before[name])
    assert not changed, f"the test leaves options changed: {changed}"


STRICT = os.environ.get("FRAMEJIT_STRICT") == "1"


@pytest.fixture(autouse=True)
def _strict(request):
    """not_strict.txt: tests in which something fails in silence today (results are right, by Python), one a line. Each line that
    can be deleted is progress."""
    if not STRICT or request.node.nodeid.rpartition("/")[2] not in not_strict():
        yield
        return
    import framejit

    os.environ["FRAMEJIT_STRICT"] = "0"
    framejit.config.strict = False
    yield
    os.environ["FRAMEJIT_STRICT"] = "1"
    framejit.config.strict = True


@functools.cache
def not_strict():
    lines = (Path(__file__).parent / "not_strict.txt").read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def pytest_collection_modifyitems(config, items):
    """known_failures.txt: what is known not to work yet, one test a line. Not run (some crash the process); each line that
    can be deleted is progress. `--known` runs them."""
    if config.getoption("--known"):
        return
    lines = (Path(__file__).parent / "known_failures.txt").read_text().splitlines()
    known = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    for item in items:
        if item.nodeid.rpartition("/")[2] in known:
            item.add_marker(pytest.mark.xfail(run=False, reason="known_failures.txt"))
