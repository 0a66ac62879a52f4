"""Cost of a guard check in nanoseconds, best of several rounds. Needs a built framejit; rows of absent frameworks are left out."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
from guards import S0, S1, Thing, attr, build, item  # noqa: E402

try:
    import torch
    from test_guard_tensor import module_guards
except ImportError:
    torch = None
try:
    import numpy
except ImportError:
    numpy = None


def measure(name, guards, *slots, count=2000):
    best = float("inf")
    for _ in range(100):
        ns, hits = guards.bench(count, *slots)
        assert hits == count, guards.explain(*slots)
        best = min(best, ns)
    print(f"{name:58s} {best:10.1f} ns")


def main():
    measure("one int argument by value", build(("equals", S0, 3)), 3)
    measure("one int argument as a symbol", build(("int", S0, 0), symbols=[(3, 0, 100)]), 3)
    measure("ten attributes of one object", build(*[("equals", attr(S0, f"a{i}"), i) for i in range(10)]), Thing(**{f"a{i}": i for i in range(10)}))
    names = {f"g{i}": i for i in range(100)}
    measure("one hundred globals", build(*[("equals", item(("const", names), k), v) for k, v in names.items()]))
    if numpy:
        x = numpy.zeros(16, numpy.float32)
        measure("numpy: x*y+1, two arrays", build(("tensor", S0, x), ("tensor", S1, x)), x, x.copy())
    if torch:
        x, y = torch.zeros(16), torch.zeros(16)
        tensors = [("tensor", S0, x), ("tensor", S1, y)]
        measure("torch: x*y+1, two tensors and the torch state", build(*tensors, ("torch state",), inputs=[S0, S1]), x, y)
        measure("torch: two tensors", build(*tensors, inputs=[S0, S1]), x, y)
        measure("torch: the torch state", build(("torch state",)))
        z = torch.zeros(8, 32, 64)
        symbolic = build(("tensor", S0, z, {0: "s0", 1: "s1"}, {0: "64*s1"}), ("shape", "s0", "<=", "s1"), symbols=[(8, 2, 1 << 40), (32, 2, 1 << 40)])
        measure("torch: one tensor with two symbols, a relation", symbolic, z)
        m = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(100)])
        g = module_guards(m)
        measure("torch: 100 Linear, 200 parameters", g, m, count=20)
        print(f"{'':4s}({len(g.describe())} guards and sources)")


if __name__ == "__main__":
    main()
