"""Copies beside computation: three lanes, each in order, joined by events. On a GPU, on two threads, or on a clock.

    streams = SimulatedStreams(link_bytes_per_s=64e9, flops_per_s=989e12)     # or ThreadStreams(), CudaStreams()
    arrived = streams.copy([(buffer, weights)], name="layer 0", buffer=0)
    result, done = streams.compute(lambda: layer(x), after=[arrived], name="layer 0", buffer=0)
    streams.log                                     # what ran when, on which lane: `hazards(streams.log)` is empty

A lane runs what it is given one after the other; lanes know nothing of each other except through `after`. That is
CUDA's model of streams and events, and `CudaStreams` is nothing else. `SimulatedStreams` does all work at once, so
values are right, and writes down when a device with such rates would have done it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import combinations
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...catalog.errors import require_number

Result = TypeVar("Result")
Pairs = Sequence[tuple[Tensor, Tensor]]  # (target, source)


class Lane(StrEnum):
    """What can be busy at one time: the link in each direction, and the device's arithmetic."""

    UP = "host to device"
    DOWN = "device to host"
    COMPUTE = "compute"


@dataclass(frozen=True)
class Span:
    """`name` kept `lane` busy from `start_s` to `end_s`, and touched the buffer with that number."""

    lane: Lane
    name: str
    size_bytes: int = 0
    buffer: int | None = None
    start_s: float = 0.0
    end_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(eq=False)
class StreamEvent:
    """The moment when a piece of work is done; `handle` is what the lane waits for."""

    handle: Any


class Streams(ABC):
    """What a technique of offloading needs of a machine. `after` are events of work that must be done before."""

    asynchronous = True  # whether a copy may be under way when it has been started

    def copy(
        self,
        pairs: Pairs,
        after: Iterable[StreamEvent | None] = (),
        *,
        lane: Lane = Lane.UP,
        name: str = "",
        buffer: int | None = None,
    ) -> StreamEvent:
        """Start to copy each source into its target, and return the event of its end at once."""
        what = Span(lane, name, sum(source.nbytes for _, source in pairs), buffer)
        return self._run(what, partial(carry, list(pairs), self.asynchronous), filter(None, after))[1]

    def compute(
        self,
        function: Callable[[], Result],
        after: Iterable[StreamEvent | None] = (),
        *,
        name: str = "",
        buffer: int | None = None,
    ) -> tuple[Result, StreamEvent]:
        """Start `function` on the device; what it returns, and the event of its end."""
        return self._run(Span(Lane.COMPUTE, name, 0, buffer), function, filter(None, after))

    @property
    @abstractmethod
    def log(self) -> list[Span]:
        """What has run, in the order in which it was started on each lane."""

    @abstractmethod
    def wait(self, event: StreamEvent) -> None:
        """Stop the program until `event` has happened, as reading a copy on the host must."""

    @abstractmethod
    def join(self, event: StreamEvent) -> None:
        """Let the device compute no further before `event` has happened; the program itself goes on."""

    @abstractmethod
    def so_far(self) -> StreamEvent:
        """The end of all that has been computed until now, also without `compute`, as a backward pass is."""

    @abstractmethod
    def _run(
        self, what: Span, function: Callable[[], Result], after: Iterable[StreamEvent]
    ) -> tuple[Result, StreamEvent]: ...


def carry(pairs: Pairs, asynchronous: bool) -> None:
    """The copy itself, which `non_blocking` makes asynchronous where one side is a GPU and the other pinned."""
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source, non_blocking=asynchronous)
            for tensor in (target, source):
                if tensor.is_cuda:  # the allocator must not lend its bytes anew before this stream is done with them
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))


class SimulatedStreams(Streams):
    """Lanes on a clock that nobody waits for: a copy takes bytes over the link's rate, the rest FLOPs over theirs.

    FLOPs are those that PyTorch counts in the matrix products and attention that really run. The link is as fast down
    as up. `now_s` is the program's own time, which passes in `wait` alone: to start work costs nothing. On a GPU too a
    copy is done when it has been started: this clock's events do not wait for the card.
    """

    asynchronous = False

    def __init__(self, link_bytes_per_s: float, flops_per_s: float) -> None:
        for name, rate in (("link_bytes_per_s", link_bytes_per_s), ("flops_per_s", flops_per_s)):
            require_number(name, rate, expected="a rate above 0, per second", do="64 GB/s is 64e9")
        self.link_bytes_per_s, self.flops_per_s = link_bytes_per_s, flops_per_s
        self.now_s, self._log = 0.0, list[Span]()
        self._free_s = dict.fromkeys(Lane, 0.0)

    @property
    def log(self) -> list[Span]:
        return self._log

    @property
    def seconds(self) -> float:
        """When all lanes have finished."""
        return max(self.now_s, *self._free_s.values())

    def wait(self, event: StreamEvent) -> None:
        self.now_s = max(self.now_s, event.handle)

    def join(self, event: StreamEvent) -> None:
        self._free_s[Lane.COMPUTE] = max(self._free_s[Lane.COMPUTE], event.handle)

    def so_far(self) -> StreamEvent:
        return StreamEvent(max(self.now_s, self._free_s[Lane.COMPUTE]))

    def _run(
        self, what: Span, function: Callable[[], Result], after: Iterable[StreamEvent]
    ) -> tuple[Result, StreamEvent]:
        result, flops = counted(function)
        on_link = what.lane is not Lane.COMPUTE
        seconds = what.size_bytes / self.link_bytes_per_s if on_link else flops / self.flops_per_s
        start_s = max(self.now_s, self._free_s[what.lane], *(event.handle for event in after))
        self._free_s[what.lane] = end_s = start_s + seconds
        self._log.append(replace(what, start_s=start_s, end_s=end_s))
        return result, StreamEvent(end_s)


def counted(function: Callable[[], Result]) -> tuple[Result, int]:
    """What `function` returns, and the FLOPs of its matrix products and attention."""
    from ..checkpointing.costs import flop_counter

    with flop_counter() as counter:
        result = function()
    return result, counter.get_total_flops()


class ThreadStreams(Streams):
    """Lanes on a CPU: copies run in threads of their own, and at `link_bytes_per_s` where that is given.

    A lane that has copied faster than its rate sleeps for the rest, as the program would find it over a slow link.
    Without a rate it is what the machine can do, and copies and arithmetic compete for its cores.
    """

    def __init__(self, link_bytes_per_s: float | None = None) -> None:
        if link_bytes_per_s is not None:
            do = "leave it out for the machine's own rate; 0.4 GB/s is 4e8"
            require_number("link_bytes_per_s", link_bytes_per_s, expected="bytes per second, above 0", do=do)
        self.rate, self._log, self._began = link_bytes_per_s, list[Span](), time.perf_counter()
        self._workers = {lane: ThreadPoolExecutor(1) for lane in (Lane.UP, Lane.DOWN)}

    @property
    def log(self) -> list[Span]:
        return self._log

    def wait(self, event: StreamEvent) -> None:
        event.handle.result()  # a copy that failed raises here, in the program that needs it

    def join(self, event: StreamEvent) -> None:
        self.wait(event)

    def so_far(self) -> StreamEvent:
        done: Future[None] = Future()
        done.set_result(None)
        return StreamEvent(done)

    def _run(self, what: Span, function: Callable[[], Any], after: Iterable[StreamEvent]) -> tuple[Any, StreamEvent]:
        before = [event.handle for event in after]
        if what.lane is not Lane.COMPUTE:
            return None, StreamEvent(self._workers[what.lane].submit(self._timed, what, function, before))
        return self._timed(what, function, before), self.so_far()

    def _timed(self, what: Span, function: Callable[[], Result], before: Iterable[Future[Any]]) -> Result:
        for waited in before:
            waited.result()
        start_s = time.perf_counter() - self._began
        result = function()
        if self.rate and what.lane is not Lane.COMPUTE:
            time.sleep(max(0.0, self._began + start_s + what.size_bytes / self.rate - time.perf_counter()))
        self._log.append(replace(what, start_s=start_s, end_s=time.perf_counter() - self._began))
        return result


class CudaStreams(Streams):
    """Lanes on a GPU: a stream for the copies in each direction, and the stream that is current for arithmetic.

    Nothing here waits for the device. Times come from CUDA's own events, once `log` is asked for them.
    """

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)
        self.streams = {lane: torch.cuda.Stream(self.device) for lane in (Lane.UP, Lane.DOWN)}
        self._spans: list[tuple[Span, torch.cuda.Event, torch.cuda.Event]] = []
        self._began = _mark(torch.cuda.current_stream(self.device))

    @property
    def log(self) -> list[Span]:
        torch.cuda.synchronize(self.device)
        since = self._began.elapsed_time
        return [replace(what, start_s=since(start) / 1e3, end_s=since(end) / 1e3) for what, start, end in self._spans]

    def wait(self, event: StreamEvent) -> None:
        event.handle.synchronize()

    def join(self, event: StreamEvent) -> None:
        torch.cuda.current_stream(self.device).wait_event(event.handle)

    def so_far(self) -> StreamEvent:
        return StreamEvent(_mark(torch.cuda.current_stream(self.device)))

    def _run(
        self, what: Span, function: Callable[[], Result], after: Iterable[StreamEvent]
    ) -> tuple[Result, StreamEvent]:
        stream = self.streams.get(what.lane) or torch.cuda.current_stream(self.device)
        for event in after:
            stream.wait_event(event.handle)
        with torch.cuda.stream(stream):
            start, result, end = _mark(stream), function(), _mark(stream)
        self._spans.append((what, start, end))
        return result, StreamEvent(end)


def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def streams_for(device: torch.device | str, link_bytes_per_s: float | None = None) -> CudaStreams | ThreadStreams:
    """The machine's own: CUDA's streams on a GPU, threads elsewhere."""
    is_gpu = torch.device(device).type == "cuda"
    return CudaStreams(device) if is_gpu else ThreadStreams(link_bytes_per_s)


def hazards(log: Iterable[Span]) -> list[tuple[Span, Span]]:
    """Pairs that touched one buffer at the same time: a copy that came too early, or a layer that did not wait."""
    spans = [span for span in log if span.buffer is not None and span.end_s > span.start_s]
    return [
        (a, b)
        for a, b in combinations(sorted(spans, key=lambda span: span.start_s), 2)
        if a.buffer == b.buffer and b.start_s < a.end_s
    ]


def exposed_s(log: Iterable[Span]) -> float:
    """Seconds from the first start to the last end in which nothing was computed: the copies that nothing hid."""
    spans = list(log)
    computing = sum(span.seconds for span in spans if span.lane is Lane.COMPUTE)
    return max(span.end_s for span in spans) - min(span.start_s for span in spans) - computing
