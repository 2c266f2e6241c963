"""Becomes engines: imports once what every rank needs, then forks one process for each. Run as a script, on Linux.

    python -P forked.py COUNT FOLDER [arguments of ipyparallel's engine]

torch takes longer to load than all else that starting ranks does, and its pages are shared. How an engine ended stands
in FOLDER/exit-PID, for only its parent is told: the exit code, or the signal's number with a minus.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import signal
import sys
from pathlib import Path

LOADED = ("torch", "torch._dynamo", "cloudpickle", "ipyparallel.engine.app")  # an optimizer loads _dynamo, FSDP2 too


def main(count: int, folder: Path, arguments: list[str]) -> None:
    """Fork `count` engines and wait until the last has ended."""
    for module in LOADED:
        with contextlib.suppress(ImportError):  # who needs it will say so
            importlib.import_module(module)
    gc.freeze()
    engines = {_fork(arguments) for _ in range(count)}
    signal.signal(signal.SIGTERM, lambda number, _: _pass_on(number, engines))
    while engines:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # without WNOHANG it waits
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with contextlib.suppress(OSError):  # the folder goes when the ranks are closed
            (folder / f"exit-{ended.si_pid}").write_text(str(code))
        os.waitpid(ended.si_pid, 0)  # only now it is gone
        engines.discard(ended.si_pid)


def _pass_on(number: int, engines: set[int]) -> None:
    for engine in engines:
        os.kill(engine, number)


def _fork(arguments: list[str]) -> int:
    engine = os.fork()
    if engine == 0:
        from ipyparallel.engine.app import main as run

        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        run(argv=arguments)
        sys.exit()
    return engine


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
