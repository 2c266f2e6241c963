"""What runs inside a rank. The driver calls these by name; torch is imported here, after the environment is set."""

from __future__ import annotations

import contextlib
import io
import marshal
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from ...catalog.errors import WorkbookError
from .errors import Outcome, Raised, Returned
from .placement import Placement
from .recorder import Recorder, location_of_traceback

# The driver's clock decides when a call hangs, and ends the ranks; no collective may time out before.
FOREVER = timedelta(days=7)
_rank: dict[str, Any] = {}  # this process's recorder, store and backend


class KeptValues(dict[str, object]):
    """A dict of this process. It is never sent: where it arrives it becomes the dict of that process."""

    def __missing__(self, name: str) -> object:
        expected = f"a name that an earlier call kept; here it holds {', '.join(map(repr, self)) or 'nothing'}"
        do = "run the cell that builds it: ranks that were started anew have lost what the old ones kept"
        raise WorkbookError(f"this rank keeps nothing under {name!r}", expected, do)

    def __reduce__(self) -> tuple[object, ...]:
        return _kept_here, ()


kept = KeptValues()


def _kept_here() -> KeptValues:
    return kept


def prepare(engine: int, recording: str) -> Placement:
    """Load torch, record locations in the file `recording` from now on, and return where this engine runs."""
    import torch

    _rank["recorder"] = Recorder(recording)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Placement(engine, os.getpid(), socket.gethostname(), torch.cuda.device_count(), cores)


def open_store(address: str, ranks: int) -> tuple[int, int]:
    """On rank 0: the store's port, which the system chose, and a second free port for MASTER_PORT."""
    from torch.distributed import TCPStore

    store = _rank["store"] = TCPStore(address, 0, ranks, is_master=True, wait_for_workers=False, timeout=FOREVER)
    with socket.socket() as free:
        free.bind(("", 0))
        return store.port, free.getsockname()[1]


def join_group(environment: dict[str, str], store_port: int, backend: str, threads: int) -> None:
    """Become the rank that RANK, WORLD_SIZE and MASTER_ADDR in `environment` say."""
    import torch
    from torch.distributed import TCPStore

    os.environ.update(environment)
    torch.set_num_threads(threads)
    if "store" not in _rank:
        address, ranks = environment["MASTER_ADDR"], int(environment["WORLD_SIZE"])
        _rank["store"] = TCPStore(address, store_port, ranks, is_master=False, timeout=FOREVER)
    _rank["backend"] = backend
    _init_process_group(0)
    if sys.platform == "linux":
        from ..stores import now_there

        _rank["there"] = now_there()


def _init_process_group(call: int) -> None:
    """All ranks must call it; `call` keeps the keys of two groups in one store apart."""
    import torch
    import torch.distributed as dist

    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if _rank["backend"] == "nccl" else None
    if gpu is not None:
        torch.cuda.set_device(gpu)
    backend, store = "gloo" if gpu is None else "cpu:gloo,cuda:nccl", dist.PrefixStore(f"group {call}", _rank["store"])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=FOREVER, device_id=gpu)


def run_call(call: int, paths: list[str], serialized: bytes, lab: bytes | None = None) -> bytes:
    """Run a serialized (function, args, kwargs) and return a pickled Outcome. Never raises.

    Where a grader asks, `lab` is the lab's code and what the kernel's guard has read; the rank is watched as it is.
    """
    import cloudpickle

    sys.path.extend(path for path in paths if path not in sys.path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        outcome = _outcome(call, serialized, printed, contextlib.nullcontext if lab is None else partial(_watched, lab))
    try:
        return cloudpickle.dumps(outcome)
    except Exception as error:
        unsent = f"its result cannot be sent back: {error}"
        return cloudpickle.dumps(Raised(type(error).__name__, unsent, (), time.time(), printed.getvalue()))


def _watched(lab: bytes) -> contextlib.AbstractContextManager[None]:
    if "guard" not in _rank:
        from ..guard import guard

        codes, read = marshal.loads(lab)
        _rank["guard"] = guard(codes, _rank.get("there"), read)
    return _rank["guard"].asking()


def _outcome(call: int, serialized: bytes, printed: io.StringIO, watched: Callable[[], Any]) -> Outcome:
    import cloudpickle
    import torch.distributed as dist

    recorder: Recorder = _rank["recorder"]
    recorder.write(())
    try:
        with watched():
            function, args, kwargs = cloudpickle.loads(serialized)
        with recorder.during(function):
            if not dist.is_initialized():  # a script's last line is destroy_process_group()
                _init_process_group(call)
            with watched():
                return Returned(function(*args, **kwargs), printed.getvalue())
    except BaseException as error:
        location = location_of_traceback(error.__traceback__)
        return Raised(type(error).__name__, str(error), location, time.time(), printed.getvalue())
