"""What the fuzzers share: which programs, for how long, and all differences told at the end instead of the first alone.

FRAMEJIT_FUZZ_SECONDS: how long each fuzzer runs; FRAMEJIT_FUZZ_FROM: the first seed (default 0), so that several processes
see different programs; FRAMEJIT_FUZZ_SEED: only the program of this seed; FRAMEJIT_FUZZ_DEVICE: where torch's tensors lie (default cpu);
FRAMEJIT_FUZZ_SAY=1: each seed is printed before its program runs, so that a crash has one."""

import ctypes
import itertools
import mmap
import os
import time
import zlib

MOST_WRONG = 8  # then the fuzzer stops
PER_RESET = 40  # programs before everything compiled is forgotten
DEVICE = os.environ.get("FRAMEJIT_FUZZ_DEVICE", "cpu")
POISON = os.environ.get("FRAMEJIT_POISON") == "1"


def guarded(array):
    """A copy of a contiguous array of NumPy's, its axes in the same order, whose end is where memory ends that may be touched, and so is the
    page before: code that reads or writes past the end dies of it."""
    page, item = mmap.PAGESIZE, array.itemsize
    bytes_there = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, bytes_there + 2 * page)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    copy = type(array)(array.shape, array.dtype, memory, page + bytes_there - array.size * item, array.strides)
    copy[...] = array
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for guard in (at, at + page + bytes_there):
        assert libc.mprotect(guard, page, 0) == 0, os.strerror(ctypes.get_errno())
    return copy


def rounded(seed):
    """A mode in which each operation of torch rounds its results another way, by an eps, the same operation on the same values the same way:
    where one cancels or has a root near nothing, or where a tie decides, eager is as unsure of what follows, although no operand of the program
    moves it (`(a.sin() + 1).sqrt()` near a minimum)."""
    import torch

    class Rounded(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            if not isinstance(made, torch.Tensor) or not made.is_floating_point() or any(r.alias_info for r in func._schema.returns):
                return made
            what = zlib.crc32(repr((seed, str(func), made.shape, float(made.double().sum()))).encode())
            signs = torch.randint(0, 2, made.shape, generator=torch.Generator().manual_seed(what)) * 2 - 1
            return made * (1 + torch.finfo(made.dtype).eps * signs.to(made))

    return Rounded()


def check(one, framejit, seconds):
    """Calls one(seed), which asserts, for seed after seed."""
    seconds = float(os.environ.get("FRAMEJIT_FUZZ_SECONDS", seconds))
    only = os.environ.get("FRAMEJIT_FUZZ_SEED")
    first = int(only or os.environ.get("FRAMEJIT_FUZZ_FROM", 0))
    end, wrong = time.monotonic() + seconds, []
    for done in itertools.count(1):
        seed = first + done - 1
        if os.environ.get("FRAMEJIT_FUZZ_SAY"):
            print(f"seed {seed}", flush=True)
        try:
            one(seed)
        except Exception as error:
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
        if only or time.monotonic() > end or len(wrong) == MOST_WRONG:
            break
        if done % PER_RESET == 0:
            framejit.reset()
    print(f"{done} programs from seed {first}, {len(wrong)} wrong")
    assert not wrong, "\n\n".join(wrong)


def check_in_graphs(one, framejit, seconds):
    """The same for one(seed) that returns in how many graphs its program ran, or None if it is no program: most run in some."""
    ran = []
    check(lambda seed: ran.append(one(seed)), framejit, seconds)
    assert sum(map(bool, ran)) > 0.8 * sum(n is not None for n in ran)
