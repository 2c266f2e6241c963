"""Data parallelism: every rank holds everything, and gradients are averaged. First plainly, then in buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...memory.step.ranks.zero import BUCKET_BYTES
from .flat import Bucket, all_reduce, broadcast_model, buckets, trainable, wait_for

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class DataParallelEngine(Protocol):
    """What every engine has, ours and the field's: the model to call, `step()`, and `holds()` for what its rank keeps.

    `step()` averages the gradients, clips their global norm, updates, frees the gradients, and returns the norm.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self) -> Tensor: ...

    def holds(self) -> dict[str, list[Tensor]]:
        """This rank's tensors by category, for `helpers.memory.measure.held`."""


class NaiveDDP:
    """One all-reduce for each gradient, after the backward pass: right, and the link idles until then.

    `make(parameters)` builds the optimizer; `step()` follows `loss.backward()` on this rank's own micro-batch.
    """

    def __init__(self, model: nn.Module, make: Make, clip: float = float("inf")) -> None:
        broadcast_model(model)
        self.model, self.clip, self.parameters = model, clip, trainable(model)
        self.optimizer = make(self.parameters)

    def step(self) -> Tensor:
        self.average()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def average(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                all_reduce(parameter.grad.div_(dist.get_world_size()))

    def holds(self) -> dict[str, list[Tensor]]:
        return {
            "parameters": [*self.model.parameters(), *self.model.buffers()],
            "gradients": [p.grad for p in self.parameters if p.grad is not None],
            "optimizer": optimizer_states(self.optimizer),
        }


class DDP(NaiveDDP):
    """Gradients travel in buckets, each as soon as it is full: the link works while the backward pass goes on."""

    def __init__(
        self, model: nn.Module, make: Make, clip: float = float("inf"), bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        super().__init__(model, make, clip)
        groups = [Bucket(group) for group in buckets(self.parameters, bucket_bytes)]
        self.counters = [GradReadyCounter(bucket.parameters, partial(self.send, bucket)) for bucket in groups]
        self.in_flight: dict[Bucket, tuple[dist.Work | None, Tensor]] = {}

    def send(self, bucket: Bucket) -> None:
        flat = bucket.take_gradients()
        if bucket in self.in_flight:  # from the micro-batch before: an average, which averaging again leaves as it is
            flat += self.received(bucket)
        self.in_flight[bucket] = all_reduce(flat.div_(bucket.ranks), wait=False), flat

    def received(self, bucket: Bucket) -> Tensor:
        """The averaged gradients of a bucket, once its all-reduce has ended."""
        work, flat = self.in_flight.pop(bucket)
        wait_for(work)
        return flat

    def average(self) -> None:
        for counter in self.counters:
            counter.flush()
        for bucket in list(self.in_flight):
            for parameter, place in bucket.views(self.received(bucket)):
                parameter.grad = place

    def holds(self) -> dict[str, list[Tensor]]:
        """The buckets in flight are gradients, too."""
        found = super().holds()
        found["gradients"] += [flat for _, flat in self.in_flight.values()]
        return found


class GradReadyCounter:
    """Calls `on_ready()` as soon as every one of `parameters` has its gradient, in every backward pass."""

    def __init__(self, parameters: Iterable[nn.Parameter], on_ready: Callable[[], None]) -> None:
        self.on_ready, self.expected, self.ready = on_ready, 0, 0
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.count)
            self.expected += 1

    def count(self, parameter: nn.Parameter) -> None:
        self.ready += 1
        if self.ready == self.expected:
            self.flush()

    def flush(self) -> None:
        """Call `on_ready()` for a group of which the loss used only a part: no more gradients will come."""
        if self.ready:
            self.ready = 0
            self.on_ready()


def optimizer_states(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """An optimizer's moments. Its step counters, 4 bytes each, are left out: they are on the host by default."""
    kept = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
    return [value for value in kept if isinstance(value, Tensor)]
