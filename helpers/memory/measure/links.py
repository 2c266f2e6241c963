"""The link between host and device: how fast a copy goes each way, from pageable and from pinned memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from ...catalog.errors import require_whole
from .clock import Run, settle, usable

TO_DEVICE, TO_HOST, BOTH, ON_HOST = "host to device", "device to host", "both at once", "host to host"
PAGEABLE, PINNED = "pageable", "pinned"


@dataclass(frozen=True)
class LinkCopy:
    """One kind of copy: `way`, what host memory it used, and the bytes that arrive per second, in all ways together."""

    way: str
    memory: str
    bytes_per_s: float

    def __str__(self) -> str:
        return f"{self.way:<16}{self.memory:<10}{self.bytes_per_s / 1e9:>8.1f} GB/s"


def copies(device: str | None = None, size_bytes: int = 2**28) -> tuple[LinkCopy, ...]:
    """Measure copies of `size_bytes` over the host link of `device`.

    With a GPU: each way from pageable and from pinned memory, and both ways at once from pinned memory, which is what
    a datasheet's "both directions" adds up. Without one there is no link: the one row is a copy inside host memory.
    Raises WorkbookError.
    """
    do = "leave it out for 256 MiB; less than 1 MiB would time the call"
    require_whole("size_bytes", size_bytes, 2**20, unit="bytes", do=do)
    where = usable(device)
    host = torch.ones(size_bytes // 4)  # zeros would be one page of the system, mapped many times
    runs = _inside_host(host) if where.type == "cpu" else _over_the_link(host, where)
    seconds = settle({kind: run for kind, (_, run) in runs.items()}, where)
    return tuple(LinkCopy(*kind, moved / seconds[kind]) for kind, (moved, _) in runs.items())


def _inside_host(host: torch.Tensor) -> dict[tuple[str, str], tuple[int, Run]]:
    target = torch.ones_like(host)
    return {(ON_HOST, PAGEABLE): (host.nbytes, lambda: target.copy_(host))}


def _over_the_link(host: torch.Tensor, gpu: torch.device) -> dict[tuple[str, str], tuple[int, Run]]:
    there, pinned = torch.ones_like(host, device=gpu), host.pin_memory()
    runs: dict[tuple[str, str], tuple[int, Run]] = {}
    for name, memory in ((PAGEABLE, host), (PINNED, pinned)):
        runs[TO_DEVICE, name] = host.nbytes, partial(there.copy_, memory, non_blocking=True)
        runs[TO_HOST, name] = host.nbytes, partial(memory.copy_, there, non_blocking=True)
    runs[BOTH, PINNED] = 2 * host.nbytes, _both_ways(there, pinned, gpu)
    return runs


def _both_ways(there: torch.Tensor, pinned: torch.Tensor, gpu: torch.device) -> Run:
    """A function that copies to the device on one stream and to the host on another, and joins them."""
    other_there, other_pinned = torch.zeros_like(there), torch.zeros_like(pinned).pin_memory()
    down, up = torch.cuda.Stream(gpu), torch.cuda.Stream(gpu)

    def run() -> None:
        now = torch.cuda.current_stream(gpu)
        for stream, target, source in ((down, there, pinned), (up, other_pinned, other_there)):
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)
        now.wait_stream(down)
        now.wait_stream(up)

    return run
