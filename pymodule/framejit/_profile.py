"""`framejit.profile`: how long each step of compiled graphs takes."""

from . import _framejit


class Step:
    """One step of a graph: `graph` (the function's name), `name` (`what@file:line`), `by` ("kernel", "matmul", "extern", ...), `device` ("cpu",
    "cuda:0"), `runs`, `seconds` (of all runs), `bytes` (read and written once) and `flops` (of matrix products, else 0) of all runs."""

    def __init__(self, graph, name, by, device, runs, seconds, read_and_written, flops):
        self.graph, self.name, self.by, self.device = graph, name, by, device
        self.runs, self.seconds, self.bytes, self.flops = int(runs), seconds, read_and_written, flops

    @property
    def bandwidth(self):
        """Bytes a second."""
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def rate(self):
        """Floating-point operations a second."""
        return self.flops / self.seconds if self.seconds else 0.0

    def __repr__(self):
        return f"<Step {self.by} {self.name}: {self.runs} runs, {self.seconds * 1e3:.3g} ms>"


class profile:  # noqa: N801 (used like a function)
    """Times every step of compiled graphs in a `with` block, in all threads. `print` it, or read `steps`, slowest first.

        with framejit.profile() as p:
            model(x)
        print(p)

    Steps on a GPU are timed there, and the end of the block waits for them. The first run in a block starts the steps of CUDA graphs one by one, by
    which they share the time of later runs. Times on a GPU that waits for the program hold these gaps, too: call the function several times.
    Blocks may be nested; the inner one takes what is measured in it away from the outer one.
    """

    def __init__(self):
        self.steps = []
        self._peaks = {}

    def __enter__(self):
        _framejit.step_times()  # what was measured before is not asked for
        _framejit.time_steps(True)
        return self

    def __exit__(self, *exc_info):
        _framejit.time_steps(False)
        self.steps = sorted((Step(*row) for row in _framejit.step_times()), key=lambda step: -step.seconds)

    @property
    def peak_bandwidth(self):
        """Bytes a second that `x + 1` reaches over much memory on this machine, measured when it is first asked for; 0.0 without NumPy."""
        return self.peak_of("cpu")

    def peak_of(self, device):
        """The same of a device, as steps name it ("cpu", "cuda:0")."""
        if device not in self._peaks:
            self._peaks[device] = _measure_peak(device)
        return self._peaks[device]

    def __str__(self):
        whole = sum(step.seconds for step in self.steps)
        if not self.steps:
            return "no step of a compiled graph ran"
        rows = [("ms", "share", "runs", "us a run", "GB/s", "of peak", "GFLOP/s", "by", "on", "step", "of")]
        for s in self.steps:
            peak = self.peak_of(s.device)
            rows.append((f"{s.seconds * 1e3:.3f}", f"{s.seconds / whole:.0%}" if whole else "", str(s.runs), f"{s.seconds / s.runs * 1e6:.2f}" if s.runs else "",
                         f"{s.bandwidth / 1e9:.1f}", f"{s.bandwidth / peak:.0%}" if peak else "", f"{s.rate / 1e9:.1f}" if s.flops else "",
                         s.by, s.device, s.name, s.graph))  # fmt: skip
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join(f"{cell:>{w}}" if i < 7 else f"{cell:{w}}" for i, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows)


def _measure_peak(device):
    try:
        if device == "cpu":
            import numpy

            x = numpy.zeros(1 << 24, dtype="float32")
        else:
            import torch

            x = torch.zeros(1 << 27, dtype=torch.float32, device=device)  # far more than the caches of a GPU hold
    except (ImportError, RuntimeError):  # no memory for it
        return 0.0
    from ._compile import compile

    space = {}  # framejit does not compile its own files
    exec("def copy(x):\n    return x + 1\n", space)
    copy, best = compile(space["copy"], options={"leave": False}), 0.0
    copy(x)
    with profile() as p:
        for _ in range(5):
            copy(x)
            for row in _framejit.step_times():
                best = max(best, Step(*row).bandwidth)
    return max([best, *(step.bandwidth for step in p.steps)])
