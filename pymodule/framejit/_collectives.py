"""Collectives of torch.distributed as events, so that `python -m framejit report` can compare ranks.

torch's own flight recorder notes them (of NCCL and gloo, also those that DistributedDataParallel makes in C++), with their sizes. A thread
reads it every few seconds, because a rank that waits for another one does nothing else any more. None of this is done outside of
distributed programs, or without FRAMEJIT_EVENTS.
"""

import json
import os
import sys

from . import _framejit

SECONDS = 2.0  # between two readings
_TYPES = {"Float": "f32", "Double": "f64", "Half": "f16", "BFloat16": "bf16", "Int": "i32", "Long": "i64", "Short": "i16", "Char": "i8", "Byte": "u8"}
_state = {"pid": 0, "next": 0, "status": None}


def of_launcher():
    """Does the environment say that this process is one of several?"""
    return any(os.environ.get(name) for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"))


def prepare():
    """Before torch makes a process group: its recorder has room for some of them. A size that the user has set stays."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")


def watch():
    """Begins to tell, once in a process that is one of several."""
    if _state["pid"] == os.getpid() or not (of_launcher() or _initialised()):
        return
    _state.update(pid=os.getpid(), next=0, status=None)
    import atexit
    import threading

    stop = threading.Event()

    def run():
        while not stop.wait(SECONDS):
            tell()

    def end():
        stop.set()
        tell()

    threading.Thread(target=run, name="framejit collectives", daemon=True).start()
    atexit.register(end)


def _initialised():
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def tell():
    """Writes what was not told yet."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    if _state["pid"] != os.getpid() or not hasattr(c10d, "_dump_fr_trace"):
        return
    import pickle

    try:
        status = pickle.loads(c10d._dump_fr_trace(includeCollectives=False)).get("pg_status")
        if status == _state["status"]:
            return  # nothing was made since
        _state["status"] = status
        # With the first stack torch imports its own compiler, which takes seconds: there are lines where the program has done so.
        stacks = "torch._inductor" in sys.modules
        entries = pickle.loads(c10d._dump_fr_trace(includeStackTraces=stacks)).get("entries", [])
    except Exception:  # another version of torch, whose recorder is something else: nothing is told then
        return
    for entry in sorted(entries, key=lambda e: e["record_id"]):
        if entry["record_id"] >= _state["next"]:
            _state["next"] = entry["record_id"] + 1
            _framejit.event("collective", {name: json.dumps(value) for name, value in _fields(entry).items()})


def _fields(entry):
    frame = next((f for f in entry.get("frames", ()) if "/torch/" not in f["filename"]), {})
    alone = entry.get("is_p2p", False)
    group, description = entry["process_group"]
    return {
        "group": group,
        "description": description,
        "sequence": entry["p2p_seq_id" if alone else "collective_seq_id"],
        "point_to_point": alone,
        "op": entry["profiling_name"].rpartition(":")[2] if not alone else entry["profiling_name"].partition(":")[2],
        "inputs": _tensors(entry, "input"),
        "outputs": _tensors(entry, "output"),
        "state": entry["state"],
        "made": entry["time_created_ns"] / 1e9,
        "file": frame.get("filename", ""),
        "line": frame.get("line", 0),
        "function": frame.get("name", ""),
    }


def _tensors(entry, which):
    pairs = zip(entry[f"{which}_dtypes"], entry[f"{which}_sizes"])
    return [f"{_TYPES.get(dtype, dtype.lower())}[{', '.join(map(str, sizes))}]" for dtype, sizes in pairs]
