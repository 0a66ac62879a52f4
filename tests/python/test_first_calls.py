"""What the first call of a process imports is no reason to leave its function to Python: the next call is captured anew."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")


def in_a_fresh_process(program):
    text = "import sys\nimport framejit\nimport torch\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["vmap(grad)", "jacrev", "hessian", "jvp"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_transforms_as_the_first_of_a_process(name, fullgraph):
    if fullgraph and name != "vmap(grad)":
        pytest.skip("one of them is enough")
    f = {
        "vmap(grad)": "lambda x: torch.func.vmap(torch.func.grad(lambda v: (v**2).sum()))(x)",
        "jacrev": "lambda x: torch.func.jacrev(torch.sin)(x)",
        "hessian": "lambda x: torch.func.hessian(lambda v: (v**3).sum())(x[0])",
        "jvp": "lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1]",
    }[name]
    in_a_fresh_process(f"""
        f = {f}
        g = framejit.compile(f, fullgraph={fullgraph})
        x = torch.arange(9.0).reshape(3, 3)
        assert "torch._dynamo" not in sys.modules
        first = g(x)
        before = framejit.cache_info(g)["outcomes"]["run"]
        assert torch.allclose(first, f(x), rtol=1e-5)
        for k in range(1, 4):
            assert torch.allclose(g(x + k), f(x + k), rtol=1e-5)
        info = framejit.cache_info(g)
        run = info["outcomes"]["run"]
        grown = {{k: n - before.get(k, 0) for k, n in run.items() if n != before.get(k, 0)}}
        assert (info["segments"], grown) == (1, {{"graph": 3}}), info
    """)


def test_modules_that_the_function_imports():
    in_a_fresh_process("""
        def f(x):
            import colorsys
            return x * 2 + len(colorsys.__name__)

        def tries(x):
            try:
                import no_such_module
            except ImportError:
                x = x * 3
            return x + 1

        x = torch.ones(3)
        assert "colorsys" not in sys.modules
        for fullgraph in (False, True):
            sys.modules.pop("colorsys", None)
            g = framejit.compile(f, fullgraph=fullgraph)
            for _ in range(4):
                assert torch.equal(g(x), x * 2 + 8)
            info = framejit.cache_info(g)
            assert (info["segments"], info["outcomes"]["run"]["graph"] >= 3) == (1, True), info
            assert bool(info["breaks"]) != fullgraph
        # What can never be imported is asked for once: nothing is captured again for it.
        g = framejit.compile(tries)
        for _ in range(2):
            assert torch.equal(g(x), x * 3 + 1)
        captures = framejit.cache_info(g)["captures"]
        for _ in range(6):
            assert torch.equal(g(x), x * 3 + 1)
        assert framejit.cache_info(g)["captures"] == captures and framejit.cache_info(g)["breaks"]
        try:
            framejit.compile(tries, fullgraph=True)(x), framejit.compile(tries, fullgraph=True)(x)
        except framejit.BreakError as error:
            assert "import" in str(error)
        else:
            raise AssertionError("fullgraph=True said nothing")
    """)


def test_what_is_imported_while_a_call_is_asked_about_registers_classes():
    in_a_fresh_process("""
        f = lambda x: torch.nn.functional.unfold(x[None, None], (1, 1))  # looks for an abstract class; what torch then imports registers some
        g = framejit.compile(f)
        assert "torch._dynamo" not in sys.modules
        for k in range(3):
            x = torch.arange(6.0).reshape(2, 3).requires_grad_()
            assert torch.equal(g(x + k), f(x + k))
        info = framejit.cache_info(g)
        assert (info["segments"], info["breaks"]) == (1, 0), info
        assert len(framejit.explain(f)(x).graphs) == 1
    """)


def test_a_generator_imports_nothing():
    in_a_fresh_process("""
        import random

        def f(x):
            r = random.Random(1)
            return x * r.random(), [r.randrange(9) for _ in range(3)]

        g = framejit.compile(f)
        before = "numpy.random" in sys.modules
        for x in (torch.ones(3), torch.arange(3.0)):
            assert str(g(x)) == str(f(x))
        assert ("numpy.random" in sys.modules) == before
        assert g.cache_info()["breaks"] == 0 and g.graphs
    """)
