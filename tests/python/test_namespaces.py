"""Modules that a framework imports when they are first read: nobody pays for what the program does not use."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("framejit")
numpy = pytest.importorskip("numpy")
LAZY = ("numpy.fft", "numpy.random")


def run(text):
    """In a process of its own, since imports stay."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], text=True, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def lazy(module):
    """Does a process that has imported NumPy not have it yet?"""
    return module not in run("import sys, numpy; print(*sys.modules)")


@pytest.mark.parametrize("package", ["numpy", "torch"])
def test_a_line_imports_no_module(package):
    pytest.importorskip(package)
    loaded = run(
        f"""
        import sys, framejit, {package} as package
        def f(x, y):
            return x * y + 1
        compiled = framejit.compile(f)
        before = set(sys.modules)
        compiled(package.ones(4), package.ones(4))
        assert len(compiled.graphs) == 1 and not compiled.cache_info()["breaks"]
        print(*set(sys.modules) - before)
        """
    )
    assert not [name for name in loaded if name.startswith("numpy.")]


@pytest.mark.parametrize(
    ("body", "module"),
    [
        ("return numpy.fft.fft(x).real + 1", "numpy.fft"),
        ("from numpy import fft\\n    return fft.fft(x).real + 1", "numpy.fft"),
        ("return numpy.random.random(8) * x", "numpy.random"),
    ],
)
def test_what_is_first_read_in_a_capture_is_one_graph(body, module):
    if not lazy(module):
        pytest.skip("this NumPy imports it at once")
    run(
        f"""
        import sys, framejit, numpy
        exec('''def f(x):
            {body}''')
        compiled = framejit.compile(f)
        assert "{module}" not in sys.modules
        got = compiled(numpy.arange(8.0))
        assert "{module}" in sys.modules
        info = compiled.cache_info()
        assert len(compiled.graphs) == 1 and not info["breaks"] and info["captures"] == 1, info
        if "random" not in "{module}":
            assert abs(got - f(numpy.arange(8.0))).max() == 0
        compiled(numpy.arange(8.0))
        assert compiled.cache_info()["captures"] == 1
        """
    )
