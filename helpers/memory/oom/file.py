"""The file of `workbook explain-oom`, a log or a snapshot by its first byte; and the closed form beside it."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ...catalog.devices import Device
from ...catalog.errors import WorkbookError
from ...catalog.setup import ServeSetup, TrainSetup
from ..allocator import read_snapshot
from ..closed_form.breakdown import format_bytes
from ..fit import changes, peak_bytes
from .explain import Explanation, explain
from .snapshot import explain_snapshot

PICKLE = b"\x80"  # how a pickle of protocol 2 and later begins, and no UTF-8 text does
MAX_LOG_BYTES = 2**28
OFFERS = 5


def explain_file(
    path: str | Path, card: Device | None = None, setup: TrainSetup | ServeSetup | None = None
) -> Explanation:
    """Explain a log or a snapshot; "-" reads a log from standard input. With `setup`, also by the closed form.

    WorkbookError for a file that cannot be read, a log without an out-of-memory message and a pickle that is no
    snapshot.
    """
    data = _read(path)
    if str(path) == "-" and data.startswith(PICKLE):
        raise WorkbookError(
            "a snapshot came through the pipe", "a log in the pipe, or a snapshot in a file", "give the snapshot's path"
        )
    found = explain_snapshot(read_snapshot(path), card) if data.startswith(PICKLE) else explain(_decoded(data))
    return found if setup is None else with_setup(found, setup, card)


def with_setup(found: Explanation, setup: TrainSetup | ServeSetup, card: Device | None = None) -> Explanation:
    """The explanation with what the closed form says of `setup` in the room that this failure leaves it.

    The room is the limit, or the card less what is not PyTorch's, where the message tells; else `card`'s capacity.
    """
    room, need = found.room_bytes or (card.capacity_bytes if card else None), peak_bytes(setup)
    if room is None:
        raise WorkbookError(
            "nothing here says how large the card is",
            "a message with its capacity, or a GPU's name",
            "add --gpu, as in --gpu rtx-4090",
        )
    what = f"By the closed form {setup.model.name} with these flags needs {format_bytes(need)} at its peak"
    if need <= room:
        return replace(
            found,
            predicted=f"{what}, and {format_bytes(room)} is there for it: so it fits. The run differs from "
            "the flags, something holds tensors from before, or the rest is fragmentation.",
        )
    fits = tuple(islice(changes(setup, room), OFFERS))
    how = "What would fit:" if fits else "No change that is known here makes it fit."
    return replace(found, fits=fits, predicted=f"{what}, and {format_bytes(room)} is there for it. {how}")


def _read(path: str | Path) -> bytes:
    if str(path) == "-":
        return sys.stdin.buffer.read(MAX_LOG_BYTES)
    try:
        size = Path(path).stat().st_size
        with Path(path).open("rb") as file:
            head = file.read(1)
            if head != PICKLE and size > MAX_LOG_BYTES:
                raise WorkbookError(
                    f"{path} has {format_bytes(size)}",
                    f"a log of up to {format_bytes(MAX_LOG_BYTES)}",
                    "cut out the failure: grep -B 60 'out of memory' FILE | head -200",
                )
            return head if head == PICKLE else head + file.read()
    except OSError as error:
        raise WorkbookError(
            f"cannot read {path}: {error.strerror}",
            "a log with a traceback, or a snapshot",
            "give the path of a file, or - to read from a pipe",
        ) from None


def _decoded(data: bytes) -> str:
    """UTF-8, or UTF-16 as PowerShell's redirection writes it; what is neither is replaced, never refused."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")
