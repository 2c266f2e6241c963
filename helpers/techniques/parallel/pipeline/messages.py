"""What travels between stages: outputs to the stage after, gradients to the stage before. Imports torch.

No rank ever waits until something it sent has arrived, so a schedule that can be laid out in time cannot deadlock here.
A sent tensor must stay until it has arrived, though. That is known without asking: whoever sends back something that it
computed after having read the message has read the message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ....catalog.errors import WorkbookError
from ....memory.step.ranks.zero import Collective, Traffic
from .schedules import Action, Kind, Schedule


class Unread:
    """What one rank has sent, and cannot know yet to have been read."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.things: list[tuple[Action, Any]] = []  # with the action that reads it

    def add(self, reader: Action, thing: Any) -> None:
        self.things.append((reader, thing))

    def read_before(self, sender: Action) -> list[Any]:
        """A result of `sender` is here: forget and return what its rank has read before it computed that."""
        read = [(reader, thing) for reader, thing in self.things if self._before(reader, sender)]
        self.things = [entry for entry in self.things if entry not in read]
        return [thing for _, thing in read]

    def _before(self, reader: Action, sender: Action) -> bool:
        """Both on one rank, and `reader` not after `sender`: it reads its message before it computes."""
        same = self.schedule.rank_of(reader.stage) == self.schedule.rank_of(sender.stage)
        return same and self.schedule.positions[reader] <= self.schedule.positions[sender]


class Messages:
    """Sends and receives for one rank: every message has the shape and format of `boundary`, a tensor on any device.

    `timeout_s` is how long a message may be waited for; then a WorkbookError names the rank that does not go on.
    """

    def __init__(self, schedule: Schedule, boundary: Tensor, timeout_s: float) -> None:
        self.schedule, self.boundary, self.timeout_s = schedule, boundary, timeout_s
        self.rank, self.unread = dist.get_rank(), Unread(schedule)
        self.here: dict[Action, Tensor] = {}  # from one stage of this rank to another
        self.store = dist.distributed_c10d._get_default_store()
        self._report("the start of its step")

    def receive(self, reader: Action) -> Tensor | None:
        """What `reader` reads from a neighbouring stage; None where it reads nothing."""
        sender = self.schedule.sender(reader)
        if sender is None:
            self._report(str(reader))
            return None
        if sender in self.here:
            return self.here.pop(sender)
        peer = self.schedule.rank_of(sender.stage)
        tensor = torch.empty(self.boundary.shape, dtype=self.boundary.dtype)
        self._wait(self._irecv(tensor, peer, sender), f"{reader}", peer)
        for work, _ in self.unread.read_before(sender):
            work.wait()  # it has been read: this returns at once
        return tensor

    def send(self, sender: Action, tensor: Tensor) -> None:
        """Begin to send a result to the stage that reads it."""
        reader = self.schedule.receiver(sender)
        if reader is None:
            return
        if (tensor.shape, tensor.dtype) != (self.boundary.shape, self.boundary.dtype):
            what = f"{sender} gives {tensor.dtype} of shape {tuple(tensor.shape)}"
            expected = f"{self.boundary.dtype} of shape {tuple(self.boundary.shape)}, as the boundary that was passed"
            raise WorkbookError(what, expected, "pass boundary=torch.empty(shape, dtype=...) of one micro-batch")
        peer, tensor = self.schedule.rank_of(reader.stage), tensor.detach()
        if peer == self.rank:
            self.here[sender] = tensor
        else:
            tensor = tensor.contiguous()
            self.unread.add(reader, (dist.isend(tensor, peer, tag=self._tag(sender)), tensor))

    def exchange(self, tensor: Tensor, peer: int) -> Tensor:
        """This rank's tensor for the other's; both call it."""
        other = torch.empty_like(tensor)
        tag = 2 * self.schedule.stages * self.schedule.micro_batches
        sent, received = dist.isend(tensor.contiguous(), peer, tag=tag), dist.irecv(other, peer, tag=tag)
        for work in (received, sent):
            self._wait(work, "the exchange of tied gradients", peer)
        return other

    def finish(self) -> None:
        """At the end of a step: wait until everything has been read."""
        for reader, (work, _) in self.unread.things:
            self._wait(work, "the end of its step", self.schedule.rank_of(reader.stage))
        self.unread.things.clear()
        self._report("the end of its step")

    def _irecv(self, tensor: Tensor, peer: int, sender: Action) -> Any:
        return dist.irecv(tensor, peer, tag=self._tag(sender))

    def _tag(self, sender: Action) -> int:
        """A number of its own for each message of a step, so that their order does not matter."""
        at = sender.stage * self.schedule.micro_batches + sender.micro_batch
        return 2 * at + (sender.kind == Kind.FORWARD)

    def _wait(self, work: Any, doing: str, peer: int) -> None:
        self._report(doing, peer)
        try:
            work.wait(timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            if "imed out" not in str(error):
                raise  # the other rank is gone: whoever started the ranks says why
            raise self._stuck() from None
        self._report(doing)

    def _report(self, doing: str, waits_for: int | None = None) -> None:
        """Leave word of what this rank does, for those who wait for it."""
        self.store.set(f"pipeline/{self.rank}", json.dumps([doing, waits_for]))

    def _stuck(self) -> WorkbookError:
        """Follow who waits for whom to the rank that waits for nobody."""
        rank: int | None = self.rank
        passed: list[int] = []
        while rank is not None and rank not in passed:
            stuck = rank
            passed.append(rank)
            doing, rank = json.loads(self.store.get(f"pipeline/{rank}"))
        what = f"rank {stuck} does not go on: it is at {doing}, and others have waited {self.timeout_s:g} s"
        do = f"see what rank {stuck} runs there, or pass a longer timeout_s where a stage takes that long"
        return WorkbookError(what, "a message from each stage in time", do)


def messages_of(schedule: Schedule, rank: int) -> Iterator[Action]:
    """The actions of one rank whose results another rank reads, in order."""
    for action in schedule.by_rank[rank]:
        reader = schedule.receiver(action)
        if reader is not None and schedule.rank_of(reader.stage) != rank:
            yield action


def traffic(schedule: Schedule, rank: int, boundary_bytes: int, tied_bytes: int = 0) -> Traffic:
    """What one rank sends in a step: outputs and gradients of `boundary_bytes` each, and its tied weight's gradient.

    >>> from .schedules import one_f_one_b
    >>> [traffic(one_f_one_b(4, 8), rank, 1000).sent_bytes for rank in range(4)]
    [8000, 16000, 16000, 8000]
    """
    sizes = [boundary_bytes for _ in messages_of(schedule, rank)]
    ends = {schedule.rank_of(0), schedule.rank_of(schedule.stages - 1)}
    if tied_bytes and len(ends) == 2 and rank in ends:
        sizes.append(tied_bytes)
    return Traffic(tuple(Collective("send", size, schedule.ranks) for size in sizes))
