"""`workbook snapshot`: what a snapshot of the allocator tells of a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..questions.parameter import whole
from .flags import Commands, add_command

if TYPE_CHECKING:
    from ..memory.allocator import Snapshot

PACKED = b"\x1f\x8b"  # gzip, in which recordings/ has its histories


def add(commands: Commands) -> None:
    text = "a run by its snapshot: the peak, what was live then, what other settings would have reserved"
    snapshot = add_command(commands, "snapshot", text, _snapshot)
    snapshot.add_argument("file", metavar="FILE", help="of torch.cuda.memory._dump_snapshot(), or of recordings/")
    snapshot.add_argument("--device", type=whole, help="one of its GPUs; default: all with a history")
    settings = "settings to try besides, as PYTORCH_ALLOC_CONF has them; may be repeated"
    snapshot.add_argument("--settings", action="append", default=[], metavar="TEXT", help=settings)
    snapshot.add_argument("--json", action="store_true", help="print JSON, in bytes")


def _snapshot(arguments: argparse.Namespace) -> int:
    from ..memory.allocator.snapshot_summary import devices_of, summarize

    found = _read(Path(arguments.file))
    devices = devices_of(found) if arguments.device is None else [arguments.device]
    stories = [summarize(found, device, arguments.settings) for device in devices]
    print(json.dumps([one.figures for one in stories]) if arguments.json else "\n\n".join(map(str, stories)))
    return 0


def _read(path: Path) -> Snapshot:
    """WorkbookError for a file that is neither a pickle of plain data nor a packed history."""
    from ..memory.allocator import read_snapshot, unpack

    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(PACKED)) == PACKED:
                return unpack(PACKED + file.read())
    return read_snapshot(path)
