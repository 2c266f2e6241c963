"""Weights in a file: written whole or not at all, mapped page by page, or read into a buffer and checked.

    save(model.state_dict(), "weights.safetensors")
    pages = Mapped("weights.safetensors")                 # opened at once, whatever its size: nothing has been read
    with WeightStreamer(model.model.layers, streams, source=pages.layer): ...
    read("weights.safetensors", targets)                  # the bytes themselves, and an error where some are missing

A mapped tensor is a promise to read. Its pages come from the disk when somebody touches them, count as memory that
the system can take back, and are lost with the file: a process that touches a page of a file which has been cut short
is ended by the system, and no `except` helps. `read` raises instead.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ...catalog.errors import WorkbookError
from ...memory.meter.places import on_disk

HEADER_BYTES = 8  # the length of the JSON that follows, little-endian: the format's own first field


def save(tensors: Mapping[str, Tensor], path: str | Path) -> int:
    """Write `tensors` to a safetensors file at `path`, and return its bytes.

    The file appears when it is whole: it is written beside `path` and renamed. WorkbookError where the disk is full or
    cannot be written, and what was at `path` before is still there.
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.writing")
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, beside)
        os.replace(beside, target)
    except (OSError, SafetensorError) as problem:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise _unwritten(target, problem) from None
    on_disk(target)
    return target.stat().st_size


class Mapped:
    """A safetensors file as tensors over its pages, by name. Opening reads the header alone."""

    def __init__(self, path: str | Path, prefix: str = "model.layers.") -> None:
        self.path, self.prefix = Path(path), prefix
        with _readable(self.path):
            self._file = safe_open(self.path, framework="pt")
        self.names = list(self._file.keys())

    def __getitem__(self, name: str) -> Tensor:
        return self._file.get_tensor(name)

    def layer(self, at: int) -> dict[str, Tensor]:
        """The tensors whose names begin with the prefix and this number, by the rest of their names."""
        head = f"{self.prefix}{at}."
        found = {name.removeprefix(head): self[name] for name in self.names if name.startswith(head)}
        if not found:
            what = f"{self.path.name} holds nothing called {head}*"
            raise WorkbookError(
                what, f"names as {self.names[0]}", "pass the prefix that stands before a layer's number"
            )
        return found


def read(path: str | Path, targets: Mapping[str, Tensor], name_of: str = "") -> int:
    """Read the tensors called `name_of` + each key of `targets` into them, and return the bytes that were read.

    `targets` are on the CPU and contiguous. WorkbookError for a file that is cut short, another shape or format, and a
    read that fails on its way; the targets may then hold a part of the new values, so load into what nobody uses yet.
    """
    where = Path(path)
    with _readable(where), where.open("rb", buffering=0) as file:
        header, begin = _header(file)
        total = 0
        for key, target in targets.items():
            entry = _entry(where, header, name_of + key, target)
            first, last = entry["data_offsets"]
            _fill(file, begin + first, target, last - first)
            total += last - first
    return total


def _header(file: Any) -> tuple[dict[str, Any], int]:
    (length,) = struct.unpack("<Q", _exactly(file, HEADER_BYTES))
    if length > 100_000_000:  # safetensors' own limit
        raise ValueError(f"its header claims {length:,} bytes")
    return json.loads(_exactly(file, length)), HEADER_BYTES + length


def _exactly(file: Any, size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise EOFError(f"it ends after {file.tell():,} bytes")
    return found


def _entry(path: Path, header: Mapping[str, Any], name: str, target: Tensor) -> Mapping[str, Any]:
    entry: Mapping[str, Any] = header.get(name, {})
    told = f"{entry['dtype']} of shape {entry['shape']}" if entry else "nothing"
    wanted = f"{FORMATS.get(target.dtype)} of shape {list(target.shape)}"
    if told != wanted:
        do = "read the checkpoint that belongs to this model"
        raise WorkbookError(f"{path.name} holds as {name} {told}", wanted, do)
    if not target.is_contiguous() or target.device.type != "cpu":
        expected = "a contiguous target on the CPU"
        raise WorkbookError(f"{name} cannot be read into its target", expected, "read into a host buffer, and copy")
    return entry


FORMATS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.uint8: "U8",
           torch.int8: "I8", torch.int32: "I32", torch.int64: "I64"}  # fmt: skip


def _fill(file: Any, first: int, target: Tensor, size: int) -> None:
    """`size` bytes from byte `first` of the file, into the memory of `target`."""
    room = memoryview(target.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # a buffer it is
    done = 0
    while done < size:
        got = os.preadv(file.fileno(), [room[done:]], first + done)
        if got == 0:
            raise EOFError(f"it ends after {first + done:,} bytes")
        done += got


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except WorkbookError:
        raise
    except FileNotFoundError:
        what = f"there is no file {path.name} in {path.parent}"
        raise WorkbookError(what, "a safetensors file", "save() it first, or correct the path") from None
    except (OSError, EOFError, ValueError, KeyError, struct.error, SafetensorError) as problem:
        what = f"{path.name} cannot be read: {problem}"
        raise WorkbookError(what, "a whole safetensors file", "copy it again, or save() it anew") from None


def _unwritten(path: Path, problem: Exception) -> WorkbookError:
    full = (
        getattr(problem, "errno", None) == errno.ENOSPC or "No space" in str(problem) or "os error 28" in str(problem)
    )
    reason = "the disk is full" if full else str(problem)
    expected = "a folder that can be written, with room for all of it"
    return WorkbookError(
        f"{path.name} has not been written: {reason}", expected, "free some room, or name another disk"
    )
