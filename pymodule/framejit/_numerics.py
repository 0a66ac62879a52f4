"""What compiled code computes, compared with the framework: when two results count as the same, and the checks that the options
check_numerics and dump_segments make around the runs of segments.

Integers, booleans, strings, shapes, strides, dtypes and types: exactly. Floats: against a reference computed in float64, the
RMS error and the largest error may be at most twice eager's own, plus one eps of the dtype times the largest reference
value. Where it is known how far eager's own result moves when its operands move by an eps (sums that cancel), that counts as
its own error, too. Not-a-numbers and infinities must stand at the same places.
"""

import bisect
import functools
import math
import os
import sys

from . import _framejit


def as_float64(value):
    """(flat float64 or complex128 NumPy array, eps of the value's dtype or None for exact kinds)."""
    import numpy

    if type(value).__module__.startswith("torch") or hasattr(value, "detach"):
        import torch

        value = value.int_repr() if value.is_quantized else value.detach().resolve_conj().resolve_neg().cpu()
        eps = torch.finfo(value.dtype).eps if value.is_floating_point() or value.is_complex() else None
        wide = torch.complex128 if value.is_complex() else torch.float64 if eps else value.dtype
        if value.layout is not torch.strided:
            value = value.to_dense()
        return value.to(wide).contiguous().view(-1).numpy() if value.dtype != torch.bool else value.reshape(-1).numpy(), eps
    array = numpy.asarray(value)
    if array.dtype.kind in "fc":
        wide = numpy.complex128 if array.dtype.kind == "c" else numpy.longdouble if array.dtype.itemsize > 8 else numpy.float64
        return array.astype(wide).reshape(-1), float(numpy.finfo(array.dtype).eps)
    return array.reshape(-1), None


def _error(got, reference):
    import numpy

    difference = numpy.abs(got - reference)
    if difference.size == 0:
        return 0.0, 0.0
    with numpy.errstate(over="ignore"):
        return float(numpy.sqrt(numpy.mean(difference**2))), float(difference.max())


def check(got, eager, reference=None, what="result", noise=()):
    """Raises AssertionError unless `got` is as good as `eager`. reference: the same computed in float64; without it eager
    stands in, as if its own error were two eps. noise: pairs of eager's results for operands that differ by an eps, where it is
    known how sure eager itself can be. Returns (error of got, error of eager, bound), RMS, for tables."""
    import numpy

    mine, eps = as_float64(got)
    theirs, eager_eps = as_float64(eager)
    assert mine.shape == theirs.shape, f"{what}: {mine.shape} values, eager has {theirs.shape}"
    assert eps == eager_eps, f"{what}: another dtype than eager's"
    if eps is None:
        if not numpy.array_equal(mine, theirs):
            at = [i for i in range(len(mine)) if mine[i] != theirs[i]][0] if mine.dtype != object else "?"
            raise AssertionError(f"{what}: differs from eager at {at}: {mine[at] if at != '?' else mine} != {theirs[at] if at != '?' else theirs}")
        return 0.0, 0.0, 0.0
    finite = numpy.isfinite(theirs)
    assert numpy.array_equal(numpy.isnan(mine), numpy.isnan(theirs)), f"{what}: not-a-number at other places than eager"
    infinite = numpy.isinf(theirs)
    assert numpy.array_equal(mine[infinite], theirs[infinite]), f"{what}: infinities differ from eager"
    if not finite.any():
        return 0.0, 0.0, 0.0
    mine, theirs = mine[finite], theirs[finite]
    if reference is None:
        truth, slack = theirs, 4 * eps
    else:
        truth, truth_eps = as_float64(reference)
        truth, slack = truth[finite], eps if truth_eps != eps else 8 * eps  # float64 has no better one than its own
    scale = float(numpy.abs(truth).max())
    got_rms, got_max = _error(mine, truth)
    eager_rms, eager_max = _error(theirs, truth)
    for one, other in noise:
        one, other = as_float64(one)[0], as_float64(other)[0]
        if one.shape == other.shape == finite.shape and numpy.isfinite(one[finite]).all() and numpy.isfinite(other[finite]).all():
            rms, largest = _error(one[finite], other[finite])
            eager_rms, eager_max = max(eager_rms, rms), max(eager_max, largest)
    for name, error, own in (("RMS", got_rms, eager_rms), ("largest", got_max, eager_max)):
        bound = 2 * own + slack * scale
        assert error <= bound or math.isclose(error, bound), (
            f"{what}: {name} error {error:.3g} is more than twice eager's ({own:.3g}) plus eps * {scale:.3g} = {bound:.3g}"
        )
    return got_rms, eager_rms, 2 * eager_rms + slack * scale


# --- inputs of a segment ------------------------------------------------------------------------------------------------
def _torch():
    return sys.modules.get("torch")


def is_tensor(value):
    torch = _torch()
    return torch is not None and isinstance(value, torch.Tensor)


def is_float(value):
    return value.is_floating_point() if is_tensor(value) else getattr(getattr(value, "dtype", None), "kind", "") == "f"


def copies(values):
    """Each with memory of its own, laid out as it was; what shares memory among these shares it among the copies."""
    storages = {}

    def copy(value):
        if not is_tensor(value):
            return value.copy() if hasattr(value, "copy") else value
        torch, value = _torch(), value.detach()
        if value.layout is not torch.strided:
            return value.clone()
        with torch.no_grad():
            old = value.untyped_storage()
            key = (old.data_ptr(), str(value.device))
            if key not in storages:
                storages[key] = old.clone()
            made = torch.empty(0, dtype=value.dtype, device=value.device)
            made.set_(storages[key], value.storage_offset(), value.size(), value.stride())
            made = made.conj() if value.is_conj() else made
        return made

    return [copy(value) for value in values]


def changed(values, how):
    """Copies, the floating ones changed by `how(value)` and laid out as before."""
    made = copies(values)
    for place, value in enumerate(made):
        if is_float(value):
            new = how(value)
            if is_tensor(value) and new.dtype == value.dtype:
                try:
                    value.copy_(new)
                    new = value
                except RuntimeError:  # several elements are one
                    pass
            made[place] = new
    return made


def in_float64(values):
    return changed(values, lambda value: value.double() if is_tensor(value) else value.astype("float64"))


def nudged(values, seed):
    """Moved by an eps, up or down."""
    import numpy

    draw = numpy.random.RandomState(seed)

    def nudge(value):
        signs = draw.randint(0, 2, tuple(value.shape)) * 2 - 1
        if is_tensor(value):
            torch = _torch()
            return value * (1 + torch.finfo(value.dtype).eps * torch.from_numpy(numpy.asarray(signs)).to(value))
        return (value * (1 + numpy.finfo(value.dtype).eps * signs)).astype(value.dtype)

    return changed(values, nudge)


class same_random:
    """What draws random numbers in the block draws them again behind it."""

    def __enter__(self):
        torch = _torch()
        self._states = []
        if torch is not None:
            generators = [torch.default_generator]
            if torch.cuda.is_initialized():
                generators += torch.cuda.default_generators
            self._states = [(generator, generator.get_state()) for generator in generators]

    def __exit__(self, *exc_info):
        for generator, state in self._states:
            generator.set_state(state)


def first_wrong(run, inputs, got, expected, nudges=2):
    """None, or (place, text) of the first of `got` that is not as good as `expected`; `run(inputs)` is what the framework does, and
    `run(inputs, seed)` the same where what it makes up itself (incoming gradients) is moved by an eps, too."""

    def again(values, seed=None):
        try:
            with same_random():
                return run(values, seed)
        except Exception:  # it cannot be had so
            return None

    more = None
    for place, (mine, theirs) in enumerate(zip(got, expected)):
        try:
            check(mine, theirs, what=f"result {place}")
            continue
        except AssertionError:
            pass
        if more is None:
            exact = again(in_float64(inputs))
            noise = [(one, expected) for one in (again(nudged(inputs, seed), seed) for seed in range(1, nudges + 1)) if one]
            more = exact, noise
        exact, noise = more
        exact = exact and exact[place]
        if exact is not None and as_float64(exact)[1] not in (2.0**-52, None):
            exact = None  # it names a dtype
        if as_float64(theirs)[1] is None and any(not _same(one[place], other[place]) for one, other in noise):
            continue  # integers of floats, of which eager is as unsure
        try:
            check(mine, theirs, exact, f"result {place}", [(one[place], other[place]) for one, other in noise])
        except AssertionError as error:
            return place, str(error)
    return None


def _same(a, b):
    import numpy

    return numpy.array_equal(as_float64(a)[0], as_float64(b)[0])


# --- one program --------------------------------------------------------------------------------------------------------
OWN = {"check_numerics": False, "dump_segments": "", "segment_fuel": -1, "leave": False, "background": False}


def compiled(segment, backend="llvm", options=()):
    from ._compile import compile

    return compile(segment, backend=backend, options={**OWN, **dict(options)})


def with_gradients(run, inputs, wanted, seed=None):
    """The results of run(*inputs), then the gradients of the inputs that are wanted, of the sum of the results. seed: what comes in are
    ones that are moved by an eps. A gradient that is zero but for rounding is as unsure as these ones are: the operands tell nothing of it."""
    torch = _torch()
    leaves = [value.requires_grad_() if want else value for value, want in zip(inputs, wanted)]
    results = run(*leaves)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    whole = [result for result in results if is_tensor(result) and result.requires_grad]
    sought = [leaf for leaf, want in zip(leaves, wanted) if want]
    if not sought or not whole:
        return results
    ones = list(map(torch.ones_like, whole))
    incoming = ones if seed is None else nudged(ones, seed)
    return [*results, *(g for g in torch.autograd.grad(whole, sought, incoming, allow_unused=True) if g is not None)]


def difference(segment, inputs, wanted=(), **how):
    """None, or in words how the compiled function differs from the plain one."""
    wanted = list(wanted) or [False] * len(inputs)

    def run(values, seed=None):
        return with_gradients(segment, values, wanted, seed)

    made = compiled(segment, **how)
    mine, theirs = copies(inputs), copies(inputs)
    with same_random():
        expected = run(theirs)
    with same_random():
        got = with_gradients(made, mine, wanted)
    if len(got) != len(expected):
        return f"{len(got)} results and gradients, eager has {len(expected)}"
    if not any(wanted):  # what is written counts as a result
        got, expected = [*got, *mine], [*expected, *theirs]
        inner = run

        def run(values, seed):
            return [*inner(values), *values]

    found = first_wrong(run, inputs, got, expected)
    return found and found[1]


def example(framework, dtype, shape, strides=None, seed=0):
    """Random numbers, for programs that need no particular ones."""
    import numpy

    draw = numpy.random.RandomState(seed)
    kind = numpy.dtype(dtype).kind if framework == "numpy" or hasattr(numpy, dtype) else "f"
    made = draw.randint(0, 2, shape) if kind in "biu" else draw.standard_normal(shape)
    if framework == "numpy":
        return numpy.asarray(made).astype(dtype)
    torch = _torch()
    made = torch.from_numpy(numpy.asarray(made)).to(getattr(torch, dtype))
    if strides is None or made.stride() == tuple(strides):
        return made
    return torch.empty_strided(shape, strides, dtype=made.dtype).copy_(made)


WRONG, SLOW = 1, 3  # exit status


def judge(segment, inputs, gradients=(), slower=0.0, backend="llvm", options=()):
    """Prints whether the compiled function computes what the plain one does (and, where asked for, is not so much slower), and ends
    the process with a status that says so."""
    import warnings

    warnings.simplefilter("ignore")
    wrong = difference(segment, inputs, gradients, backend=backend, options=options)
    if wrong:
        print(f"wrong: {wrong}")
        sys.exit(WRONG)
    if slower:
        plain, fast = seconds((segment, compiled(segment, backend, options)), inputs, gradients)
        print(f"{'slow' if fast > slower * plain else 'not slow'}: compiled {fast * 1e6:.1f} us, eager {plain * 1e6:.1f} us")
        sys.exit(SLOW if fast > slower * plain else 0)
    print("as the framework computes it")


def seconds(runs, inputs, gradients=()):
    """Of each of the functions, called by turns, the fastest call: what else the machine does then slows all of them."""
    import time

    wanted, times = list(gradients) or [False] * len(inputs), [[] for _ in runs]
    values, end = copies(inputs), time.perf_counter() + 0.5 * len(runs)
    while len(times[0]) < 8 or time.perf_counter() < end and len(times[0]) < 1000:
        for run, taken in zip(runs, times):
            values = [value.detach() if is_tensor(value) else value for value in values]
            start = time.perf_counter()
            with_gradients(run, values, wanted)
            taken.append(time.perf_counter() - start)
    return tuple(map(min, times))


# --- around the runs of a segment ---------------------------------------------------------------------------------------
_told = set()


class Checker:
    """Of one segment: `before` and `after` each of its runs. See src/capture/segment_check.h."""

    KEPT = ("fuse", "fuel", "disabled_passes", "cpu", "pack_weights")

    def __init__(self, graph, examples, place, number, gradients, backend):
        self.graph, self.place, self.number, self.backend = graph, place, number, backend
        self.compares = _framejit.get_option("check_numerics") == "1"
        self.folder = _framejit.get_option("dump_segments")
        texts = {field: value for field in self.KEPT if (value := _framejit.get_option(field)) != _DEFAULTS[field]}
        self.options = {field: int(value) if field == "fuel" else value for field, value in texts.items()}
        self.gradients = [is_tensor(value) and value.requires_grad for value in examples] if gradients else []
        self.steps = []
        self._running()
        if self.folder:
            self._dump(copies(examples))  # what follows may end the process

    def _running(self):
        """Which segment is being compiled or run, for whoever finds the process dead."""
        if self.folder:
            os.makedirs(self.folder, exist_ok=True)
            with open(os.path.join(self.folder, "running"), "w") as file:
                file.write(f"{self.number} {self.place}")

    def _dump(self, inputs):
        import pickle

        from ._minify import write
        from ._program import Unprintable

        program, path = self._program(), os.path.join(self.folder, f"segment-{self.number:04}")
        try:
            write(f"{path}.py", program, inputs, self.gradients, f"Segment {self.number} of {self.place}, as it was captured.",
                  backend=self.backend, options=self.options)  # fmt: skip
            with open(f"{path}.program", "wb") as file:
                pickle.dump((program, inputs, self.gradients, self.backend, self.options), file)
        except (Unprintable, pickle.PicklingError, TypeError, AttributeError) as error:
            print(f"framejit: segment {self.number} of {self.place} is not written: {error}", file=sys.stderr)

    def compiled(self, plan):
        self.steps = [line.strip() for line in plan.splitlines()[1:]]

    def before(self, inputs):
        self._running()
        if not self.compares:
            return ()
        pristine, replayed = copies(inputs), copies(inputs)
        try:
            with same_random():
                expected = self.graph(*replayed)
        except Exception:  # the framework raises, and so must the run
            return ()
        return inputs, pristine, replayed, expected

    def after(self, expected, outputs):
        if self.folder:
            os.unlink(os.path.join(self.folder, "running"))  # the one that was last is done
        if not expected:
            return
        inputs, pristine, replayed, results = expected

        def run(values, seed):
            return [*self.graph(*values), *values]

        found = first_wrong(run, pristine, [*outputs, *inputs], [*results, *replayed])
        if found:
            place, text = found
            what = f"result {place}" if place < len(outputs) else f"what is written to input {place - len(outputs)}"
            self._report(text.replace(f"result {place}", what, 1), _elsewhere("its place is not known", lambda: self._locate(pristine)))
        elif any(self.gradients):
            wanted, self.gradients = self.gradients, []  # once
            wrong = _elsewhere("the gradients are not compared",
                               lambda: difference(self._program().function(), pristine, wanted, backend=self.backend, options=self.options))  # fmt: skip
            if wrong:
                self._report("in the gradients, " + wrong, None)

    def _program(self):
        from ._program import Program

        return Program.of(self.graph)

    def _locate(self, inputs):
        """(call, how it differs, kernel): the first call whose result is wrong when the calls up to it are compiled; or None."""
        program = self._program()
        given = dict(zip(program.inputs, inputs))
        ends = [place + 1 for place, call in enumerate(program.calls) if call.results]

        @functools.cache
        def wrong(end):
            part = program.first(end)
            return difference(part.function(), [given[name] for name in part.inputs], backend=self.backend, options=self.options)

        if not ends or not wrong(ends[-1]):
            return None
        end = ends[bisect.bisect_left(ends[:-1], True, key=lambda end: bool(wrong(end)))]
        part = program.first(end)
        return program.calls[end - 1], wrong(end), _last_step(part, [given[name] for name in part.inputs], self)

    def _report(self, text, located):
        from .errors import raised

        lines = [f"wrong result in segment {self.number} of {self.place}: {text}"]
        if located:
            call, how, step = located
            lines.append(f"  --> {call.file}:{call.line}: the first call that differs is {call.callee}: {how.partition(': ')[2]}")
            lines += [f"   = step: {step}"] if step else []
        else:
            lines += [f"   = step: {step}" for step in self.steps[:8]]
        lines.append("   = help: python -m framejit minify SCRIPT makes a small program of it; please report it")
        message = "\n".join(lines)
        if _framejit.get_option("strict") == "1":
            raise raised("InternalError")(message)
        key = self.place, located and (located[0].file, located[0].line)
        if key not in _told:
            _told.add(key)
            print(f"framejit: {message}", file=sys.stderr, flush=True)


def _last_step(part, inputs, checker):
    """The name of what makes the last result, as framejit.profile() calls it; "": nothing was timed."""
    made = compiled(part.function("segment.py"), checker.backend, checker.options)
    _framejit.step_times()
    _framejit.time_steps(True)
    try:
        made(*copies(inputs))
    finally:
        _framejit.time_steps(False)
    names = [f"{by} {name.partition('@')[0]}" for graph, name, by, *_ in _framejit.step_times() if graph == "segment"]
    return names[-1] if names else ""


def _elsewhere(without, work):
    """In a thread of its own, where functions may be captured and compiled while this one is in a run."""
    import threading

    answer = []

    def do():
        try:
            answer.append(work())
        except BaseException as error:  # the report goes on without it
            print(f"framejit: {without}: {type(error).__name__}: {error}", file=sys.stderr)

    thread = threading.Thread(target=do)
    thread.start()
    thread.join()
    return answer[0] if answer else None


_DEFAULTS = {field: default for field, _, _, default, _ in _framejit.options()}
