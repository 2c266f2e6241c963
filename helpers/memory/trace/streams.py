"""The CUDA streams of FSDP2, on a machine without CUDA: which stream an allocation is made in.

PyTorch's allocator keeps free blocks apart by the stream in which they were allocated, so a buffer of the all-gather's
stream is never reused for an activation. FSDP2 asks a device's module for its streams and enters them with
`device.stream(...)` (torch/distributed/fsdp/_fully_shard); a CPU's module has one stream for everything. `FakeStreams`
stands in for it: FSDP2 runs the code that it runs on CUDA, and the number of the current stream is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any
from unittest import mock

import torch

FSDP2 = tuple(
    f"torch.distributed.fsdp._fully_shard.{name}"
    for name in ("_fsdp_collectives", "_fsdp_init", "_fsdp_param_group", "_fsdp_state")
)


class PastEvent:
    """A CUDA event that has always happened: what waits for it goes on. Allocations do not depend on time."""

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Numbered:
    """A CUDA stream as far as its allocations: a number, 0 for the default stream."""

    def __init__(self, number: int) -> None:
        self.number = number

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: PastEvent | None = None) -> PastEvent:
        return event or PastEvent()


class FakeStreams:
    """What FSDP2 takes for a device's module: streams that are told apart, everything else from `torch.cpu`."""

    Event = PastEvent

    def __init__(self) -> None:
        self.made = [Numbered(0)]
        self.current = self.made[0]

    def Stream(self, device: object = None, priority: int = 0) -> Numbered:  # noqa: N802 - torch.cuda.Stream
        self.made.append(Numbered(len(self.made)))
        return self.made[-1]

    def current_stream(self, device: object = None) -> Numbered:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: Numbered) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def number(self) -> int:
        """Of the stream that is current now."""
        return self.current.number

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


@contextlib.contextmanager
def streams_as_on_cuda() -> Iterator[FakeStreams]:
    """FSDP2 on a CPU mesh allocates in the streams in which it does on a CUDA mesh, while this is open."""
    streams = FakeStreams()
    with contextlib.ExitStack() as stack:
        for name in FSDP2:
            stack.enter_context(mock.patch.object(import_module(name), "_get_device_handle", return_value=streams))
        stack.enter_context(mock.patch.object(torch.accelerator, "current_stream", streams.current_stream))
        yield streams
