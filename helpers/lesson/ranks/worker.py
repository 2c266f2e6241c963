"""What runs inside a rank. The driver calls these by name; torch is imported here, after the environment is set."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any

from . import places
from .outcomes import Outcome, Raised, Returned
from .recorder import Recorder
from .seating import Seat

# The driver's clock decides when a call has hung, and ends it; a collective must not give up before.
FOREVER = timedelta(days=7)
_rank: dict[str, Any] = {}  # this process's recorder, store and backend


def begin(engine: int, box: str) -> Seat:
    """Load torch, record places in the file `box` from now on, and say where this is."""
    import torch

    _rank["recorder"] = Recorder(box)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Seat(engine, os.getpid(), socket.gethostname(), torch.cuda.device_count(), cores)


def open_store(address: str, ranks: int) -> tuple[int, int]:
    """On rank 0: the store, at a port that the system chose, and a second free port for MASTER_PORT."""
    from torch.distributed import TCPStore

    store = _rank["store"] = TCPStore(address, 0, ranks, is_master=True, wait_for_workers=False, timeout=FOREVER)
    with socket.socket() as free:
        free.bind(("", 0))
        return store.port, free.getsockname()[1]


def join(environment: dict[str, str], store_port: int, backend: str, threads: int) -> None:
    """Become a rank, as RANK, WORLD_SIZE and MASTER_ADDR in `environment` say."""
    import torch
    from torch.distributed import TCPStore

    os.environ.update(environment)
    torch.set_num_threads(threads)
    if "store" not in _rank:
        address, ranks = environment["MASTER_ADDR"], int(environment["WORLD_SIZE"])
        _rank["store"] = TCPStore(address, store_port, ranks, is_master=False, timeout=FOREVER)
    _rank["backend"] = backend
    _form_group(0)


def _form_group(call: int) -> None:
    """All ranks must come; `call` keeps the keys of two groups in one store apart."""
    import torch
    import torch.distributed as dist

    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if _rank["backend"] == "nccl" else None
    if gpu is not None:
        torch.cuda.set_device(gpu)
    dist.init_process_group(
        "gloo" if gpu is None else "cpu:gloo,cuda:nccl",
        store=dist.PrefixStore(f"group {call}", _rank["store"]),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=FOREVER,
        device_id=gpu,
    )


def perform(call: int, paths: list[str], sent: bytes) -> bytes:
    """Run what `sent` holds, a function with its arguments, and answer with a pickled Outcome. Never raises."""
    import cloudpickle

    sys.path.extend(path for path in paths if path not in sys.path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        answer = _outcome(call, sent, printed)
    try:
        return cloudpickle.dumps(answer)
    except Exception as error:
        return cloudpickle.dumps(_raised(error, printed, "its result cannot be sent back: "))


def _outcome(call: int, sent: bytes, printed: io.StringIO) -> Outcome:
    import cloudpickle
    import torch.distributed as dist

    recorder: Recorder = _rank["recorder"]
    recorder.write(())
    try:
        function, args, kwargs = cloudpickle.loads(sent)
        with recorder.during(function):
            if not dist.is_initialized():  # a script's last line is destroy_process_group()
                _form_group(call)
            return Returned(function(*args, **kwargs), printed.getvalue())
    except BaseException as error:
        return _raised(error, printed)


def _raised(error: BaseException, printed: io.StringIO, before: str = "") -> Raised:
    place = () if before else places.of_traceback(error.__traceback__)
    return Raised(type(error).__name__, f"{before}{error}", place, time.time(), printed.getvalue())
