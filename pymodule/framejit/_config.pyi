from contextlib import AbstractContextManager
from typing import Any

class Config:
    log: str
    events: str
    events_log: str
    events_limit: int
    disable: bool
    install: bool
    cache_dir: str
    cache_limit: int
    num_threads: int
    check_numerics: bool
    dump_segments: str
    segment_fuel: int
    verify: bool
    cpu: str
    symbols: str
    cuda_graphs: str
    dynamic: str
    max_unroll: int
    max_depth: int
    max_entries: int
    error_on_recompile: bool
    pack_weights: bool
    measure: bool
    tune: bool
    background: bool
    guess: bool
    leave: bool
    scalar_loops: bool
    poison: bool
    strict: bool
    fuse: bool
    disabled_passes: str
    fuel: int
    def patch(self, **changes: Any) -> AbstractContextManager[Config]: ...
    def describe(self) -> str: ...

config: Config

def encode(field: str, value: Any) -> str: ...
