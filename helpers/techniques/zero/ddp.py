"""Data parallelism: every rank holds everything, and gradients are averaged. First plainly, then in buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .collectives import all_reduce
from .flat import BUCKET_BYTES, Bucket, buckets, same_start, trainable
from .grad_ready import GradReadyCounter
from .held import states_of

Make = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


class NaiveDDP:
    """One all-reduce for each gradient, after the backward pass: right, and the link idles until then.

    `make(parameters)` builds the optimizer. After `loss.backward()` on this rank's own micro-batch, `step()` averages
    the gradients, clips their global norm to `clip`, updates, frees the gradients, and returns the norm.
    """

    def __init__(self, model: nn.Module, make: Make, clip: float = float("inf")) -> None:
        same_start(model)
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

    def underway(self) -> list[Tensor]:
        """Buffers of collectives that have not ended."""
        return []

    def holds(self) -> dict[str, list[Tensor]]:
        """This rank's tensors by category, for `helpers.memory.measure.held`."""
        return {
            "parameters": [*self.model.parameters(), *self.model.buffers()],
            "gradients": [p.grad for p in self.parameters if p.grad is not None] + self.underway(),
            "optimizer": states_of(self.optimizer),
        }


class DDP(NaiveDDP):
    """Gradients travel in buckets, each as soon as it is full: the link works while the backward pass goes on."""

    def __init__(
        self, model: nn.Module, make: Make, clip: float = float("inf"), bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        super().__init__(model, make, clip)
        full = [Bucket(group) for group in buckets(self.parameters, bucket_bytes)]
        self.arrivals = [GradReadyCounter(bucket.parameters, partial(self.send, bucket)) for bucket in full]
        self.travelling: dict[Bucket, tuple[dist.Work, Tensor]] = {}

    def send(self, bucket: Bucket) -> None:
        flat = bucket.take_gradients()
        if bucket in self.travelling:  # from the micro-batch before: an average, which averaging again leaves as it is
            flat += self.landed(bucket)
        self.travelling[bucket] = all_reduce(flat.div_(bucket.ranks), wait=False), flat

    def landed(self, bucket: Bucket) -> Tensor:
        work, flat = self.travelling.pop(bucket)
        work.wait()
        return flat

    def average(self) -> None:
        for arrival in self.arrivals:
            arrival.flush()
        for bucket in list(self.travelling):
            for parameter, place in bucket.views(self.landed(bucket)):
                parameter.grad = place

    def underway(self) -> list[Tensor]:
        return [flat for _, flat in self.travelling.values()]
