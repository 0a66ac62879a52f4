"""`python -m framejit minify SCRIPT`: the smallest program found that still shows a script's wrong result, crash or slowdown."""

import bisect
import glob
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile

from . import _numerics
from ._program import Program, Unprintable

HEAD = '''"""{title}

It ends with status {wrong}: the compiled function computes something else than the framework; {slow}: it is slower; by a signal: it
crashes; 0: the fault is gone.
"""

import os
import pickle

import numpy
{torch}
from framejit._numerics import example, judge


{function}

{inputs}

if __name__ == "__main__":
    judge(segment, inputs(), {arguments})
'''
SAVED = '''def inputs():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), {file!r}), "rb") as file:
        return pickle.load(file)
'''


def _specification(value, seed):
    """The text of an example like it; raises Unprintable for what random numbers cannot stand for."""
    tensor = _numerics.is_tensor(value)
    dtype = str(value.dtype).removeprefix("torch.") if hasattr(value, "dtype") else ""
    if not (tensor and value.device.type == "cpu" and str(value.layout) == "torch.strided") and type(value).__name__ != "ndarray":
        raise Unprintable("an input that is no plain array")
    strides = f", {tuple(value.stride())}" if tensor else ""
    return f'example({"torch" if tensor else "numpy"!r}, {dtype!r}, {tuple(value.shape)}{strides}, seed={seed})'


def write(path, program, values, gradients, title, backend="llvm", options=(), slower=0.0, random=False):
    """The program as a file that judges itself; its inputs beside it, or, if random, any. Raises Unprintable."""
    function = program.source()
    if random:
        rows = "".join(f"        {_specification(value, seed)},  # {name}\n" for seed, (name, value) in enumerate(zip(program.inputs, values)))
        inputs = f"def inputs():\n    return [\n{rows}    ]\n"
    else:
        data = os.path.splitext(path)[0] + ".pkl"
        with open(data, "wb") as file:
            pickle.dump(list(values), file)
        inputs = SAVED.format(file=os.path.basename(data))
    given = {"gradients": list(gradients) if any(gradients) else None, "slower": slower or None, "backend": backend if backend != "llvm" else None,
             "options": dict(options) or None}  # fmt: skip
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items() if value)
    torch = "import torch\n" if "torch." in function or any(map(_numerics.is_tensor, values)) else ""
    with open(path, "w") as file:
        text = HEAD.format(title=title, wrong=_numerics.WRONG, slow=_numerics.SLOW, torch=torch, function=function, inputs=inputs, arguments=arguments)
        file.write(text.replace("inputs(), )", "inputs())"))


class Ended:
    """How a process ended: `kind` is "ok", "wrong", "slow", "crash", "hang" or "error"."""

    def __init__(self, status, text, timed_out=False):
        self.text = text
        wrong = status == _numerics.WRONG and ("\nwrong: " in f"\n{text}" or "wrong result in segment" in text)
        if timed_out:
            self.kind = "hang"
        elif status < 0 or status > 128:
            self.kind = "crash"
            self.text = f"{signal.Signals(-status if status < 0 else status - 128).name}\n{text}"
        else:
            self.kind = "ok" if status == 0 else "wrong" if wrong else "slow" if status == _numerics.SLOW else "error"


def _run(command, timeout, **env):
    kept = {name: value for name, value in os.environ.items() if name not in ("FRAMEJIT_LOG", "FRAMEJIT_EVENTS")}
    try:
        done = subprocess.run([sys.executable, *command], env={**kept, **env}, text=True, capture_output=True, timeout=timeout, errors="replace")
    except subprocess.TimeoutExpired as slow:
        return Ended(0, str(slow), True)
    return Ended(done.returncode, done.stdout + done.stderr)


class Minifier:
    def __init__(self, script, args, out, slower, timeout, say=print):
        self.command = ["-m", "framejit", "run", script, *args]
        self.script, self.out, self.slower, self.timeout, self.say = script, out, slower, timeout, say
        self.tried = 0
        self.folder = tempfile.mkdtemp(prefix="framejit-minify-")
        self.backend, self.options, self.gradients, self.wanted = "llvm", {}, [], {}
        self.kind, self.last = "", None

    # --- the script -----------------------------------------------------------------------------------------------------
    def segment(self):
        """(path of the segment's program, its number), after the script was run; None: nothing is wrong with it."""
        plain = _run(self.command, self.timeout, FRAMEJIT_DISABLE="1")
        if plain.kind != "ok":
            self.say(f"as written, without framejit, the script does not end well either ({plain.kind}):\n{_tail(plain.text)}")
            return None
        dump = os.path.join(self.folder, "segments")
        strict = {"FRAMEJIT_STRICT": "1", "FRAMEJIT_LEAVE": "0", "FRAMEJIT_CHECK_NUMERICS": "1", "FRAMEJIT_DUMP_SEGMENTS": dump}
        ended = _run(self.command, self.timeout, **strict)
        self.kind = ended.kind
        running = os.path.join(dump, "running")
        if ended.kind == "ok":
            return self._slowest(dump)
        told = re.search(r"wrong result in segment (\d+) of (\S+)", ended.text)
        if told:
            self.kind, number, place = "wrong", int(told[1]), told[2].rstrip(":")
        elif ended.kind in ("crash", "hang") and os.path.exists(running):
            number, place = open(running).read().split(" ", 1)
            number = int(number)
        else:
            number, place = self._bisect_segments(ended.kind, strict), ""
            if number is None:
                self.say(f"the script fails ({ended.kind}) also where no segment is compiled:\n{_tail(ended.text)}")
                return None
        self.say(f"{self.kind}: segment {number} {'of ' + place if place else ''}")
        path = os.path.join(dump, f"segment-{number:04}.py")
        if os.path.exists(path):
            return path
        self.say(f"segment {number} could not be written as a program:\n{_tail(ended.text)}")
        return None

    def _bisect_segments(self, kind, env):
        """The first segment whose compilation makes the script fail so; None: it fails without any."""

        def fails(fuel):
            return _run(self.command, self.timeout, **{**env, "FRAMEJIT_SEGMENT_FUEL": str(fuel)}).kind == kind

        if fails(0):
            return None
        high = 1
        while not fails(high) and high < 1 << 16:
            high *= 2
        return _first(range(high // 2 + 1, high), fails) - 1

    def _slowest(self, dump):
        worst, found = self.slower, None
        for path in sorted(glob.glob(os.path.join(dump, "segment-*.py"))):
            text = open(path).read()
            with open(path, "w") as file:
                file.write(text.replace("judge(segment, inputs()", f"judge(segment, inputs(), slower={self.slower}"))
            told = re.search(r"compiled ([\d.]+) us, eager ([\d.]+) us", _run([path], self.timeout).text)
            if told and float(told[1]) > worst * float(told[2]):
                worst, found = float(told[1]) / float(told[2]), path
        if found:
            self.kind = "slow"
            self.say(f"slow: {os.path.basename(found)} takes {worst:.1f} times as long as the framework's own calls")
        else:
            self.say("nothing is wrong: every segment computes what the framework computes, and none is so much slower")
        return found

    # --- the segment's program -------------------------------------------------------------------------------------------
    def fails(self, program, values, random=False, **options):
        """Does it still show the fault?"""
        self.tried += 1
        path = os.path.join(self.folder, "candidate.py")
        gradients = [self.wanted.get(name, False) for name in program.inputs]
        slower = self.slower if self.kind == "slow" else 0.0
        backend = options.pop("backend", self.backend)
        try:
            write(path, program, values, gradients, "A candidate.", backend, {**self.options, **options}, slower, random)
        except Unprintable:
            return False
        self.last = self._judged(path)
        return self.last.kind == self.kind

    def _judged(self, path):
        """The file's end, in a forked child: what is imported here already need not be there. Nothing was computed here, so no
        library has threads that a child would miss."""
        with open(os.path.join(self.folder, "said"), "w+") as said:
            child = os.fork()
            if child == 0:
                for stream in (1, 2):
                    os.dup2(said.fileno(), stream)
                signal.alarm(int(self.timeout))
                sys.stdout = sys.stderr = open(1, "w", closefd=False)
                os._exit(_status(path))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            text = said.read()
        return Ended(status, text, status == -signal.SIGALRM)

    def _values(self, program, values, names):
        """What calls of the program make, by name, as the framework computes it: in a child, too."""
        names = [name for name in names if name not in program.inputs]
        if not names:
            return {}
        path = os.path.join(self.folder, "values.pkl")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                made = Program(program.inputs, program.calls, names).function()(*_numerics.copies(values))
                with open(path, "wb") as file:
                    pickle.dump(dict(zip(names, _numerics.copies(made))), file)
                status = 0
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            return None
        with open(path, "rb") as file:
            return pickle.load(file)

    def _take(self, program, values, candidate):
        """The candidate with its inputs' values, if it still fails."""
        known = dict(zip(program.inputs, values))
        made = self._values(program, values, [name for name in candidate.inputs if name not in known])
        if made is None:
            return None
        known.update(made)
        given = [known[name] for name in candidate.inputs]
        return (candidate, given) if candidate.calls and self.fails(candidate, given) else None

    def reduce(self, program, values):
        state = program, values
        for output in program.outputs:
            if found := len(state[0].outputs) > 1 and self._take(*state, state[0].cut([output])):
                state = found
                break
        if not any(self.gradients):
            low, high = 1, len(state[0].calls)  # the first calls that show it
            while low < high:
                middle = (low + high) // 2
                found = state[0].calls[middle - 1].results and self._take(*state, state[0].first(middle))
                if found:
                    state, high = found, min(middle, len(found[0].calls))
                    low = min(low, high)
                else:
                    low = middle + 1
        size = max(1, len(state[0].calls) // 2)
        while True:
            at = 0
            while at < len(state[0].calls) and len(state[0].calls) > 1:
                found = self._take(*state, state[0].without(range(at, at + size)))
                if found and len(found[0].calls) < len(state[0].calls):
                    state = found
                else:
                    at += size
            if size == 1:
                break
            size //= 2
        for end in range(1, len(state[0].calls)):  # what a call makes shows it, and what follows is not needed
            if state[0].calls[end - 1].results and (found := self._take(*state, state[0].first(end))):
                return found
        return state

    def shrink(self, program, values):
        """The values with the smallest sizes found that still show it: dimensions of one size are cut together, as they mostly belong
        together. A slowdown is left as large as it is: of small arrays everything is slow."""
        for size in sorted({n for value in values for n in getattr(value, "shape", ())} - {0, 1}, reverse=True) if self.kind != "slow" else ():
            small = 1
            while small < size:
                if self.fails(program, given := [_cut(value, size, small) for value in values]):
                    values = given
                    break
                small *= 2
        return values

    # --- what is at fault ------------------------------------------------------------------------------------------------
    def blame(self, program, values):
        """Sentences: a pass, or what stands before or behind the passes."""
        if self.backend != "llvm":
            return [f"the back end {self.backend!r} computes it"]
        told = []
        if self.kind != "slow":
            interpreted = self.fails(program, values, backend="interpreter")
            told.append("the graph itself is wrong: the reference interpreter shows the same" if interpreted else
                        "the graph is right: the reference interpreter computes what the framework computes")  # fmt: skip
            if interpreted:
                return told
        if self.fails(program, values, fuel=0):
            return [*told, "no pass is at fault: it is so without any (fuel=0)" + self._kernels(program, values)]
        if not self.fails(program, values, fuel=64):
            return [*told, "which pass is at fault could not be told"]
        fuel = _first(range(1, 64), lambda fuel: self.fails(program, values, fuel=fuel))
        return [*told, f"it begins with the pass {self._pass(program, values, fuel)!r} (fuel={fuel})"]

    def _logged(self, program, values, **options):
        path = os.path.join(self.folder, "logged.py")
        write(path, program, values, [], "To log.", self.backend, {**self.options, **options})
        return _run([path], self.timeout, FRAMEJIT_LOG="graph").text

    def _pass(self, program, values, fuel):
        names = re.findall(r"framejit graph: pass (\w+) \(", self._logged(program, values, fuel=fuel))
        return names[fuel - 1] if fuel <= len(names) else "?"

    def _kernels(self, program, values):
        plan = re.findall(r"^(?:framejit graph: )?  (?:gpu )?(\w+) (\S+) \(", self._logged(program, values, fuel=0), re.M)
        return "".join(f"; {kind} {name.partition('@')[0]}" for kind, name in plan[:4])

    def minify(self):
        path = self.segment()
        if path is None:
            return 1
        import numpy  # noqa: F401 (once, not in every child)

        if "import torch" in open(path).read():
            import torch  # noqa: F401
        with open(os.path.splitext(path)[0] + ".program", "rb") as file:
            program, values, self.gradients, self.backend, self.options = pickle.load(file)
        self.wanted = dict(zip(program.inputs, self.gradients))
        if not self.fails(program, values):
            self.say(f"by itself the segment does not show it ({self.last.kind}); its program is {path}\n{_tail(self.last.text)}")
            return 1
        program, values = self.reduce(program, values)
        values = self.shrink(program, values)
        random = self.fails(program, values, random=True)
        blame = self.blame(program, values)
        first = program.calls[-1]
        title = "\n".join([f"{self.kind.capitalize()}: {first.callee} of {os.path.basename(first.file)}:{first.line}, found in {os.path.basename(self.script)}.",
                           *(sentence[0].upper() + sentence[1:] + "." for sentence in blame)])  # fmt: skip
        gradients = [self.wanted.get(name, False) for name in program.inputs]
        write(self.out, program, values, gradients, title, self.backend, self.options, self.slower if self.kind == "slow" else 0.0, random)
        for sentence in title.splitlines():
            self.say(sentence)
        calls = len(program.calls)
        self.say(f"{self.out}: {calls} call{'s' * (calls != 1)} of the framework, after {self.tried} trials")
        return 0


def _first(numbers, shows):
    """The first of a range of numbers that shows it, as all behind it do, or the end of the range."""
    return numbers.start + bisect.bisect_left(numbers, True, key=shows)


def _status(path):
    """The exit status of a file that judges itself, run here."""
    import runpy
    import traceback

    status = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 4
    sys.stdout.flush()
    return status


def _cut(value, size, small):
    """The beginning of an array in each dimension of that size, in memory of its own."""
    if size not in getattr(value, "shape", ()):
        return value
    part = value[tuple(slice(small) if n == size else slice(None) for n in value.shape)]
    return part.clone() if _numerics.is_tensor(part) else part.copy(order="K")


def _tail(text, lines=12):
    return "\n".join("  " + line for line in text.rstrip().splitlines()[-lines:])
