"""ZeRO stages 1 and 2: each rank updates its shard, and then everybody gathers everybody's."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .collectives import all_gather, reduce_scatter
from .ddp import Make
from .flat import BUCKET_BYTES, Flat, buckets, same_start, trainable
from .grad_ready import GradReadyCounter
from .held import states_of
from .shard import Shard, clip_shards


class Zero1:
    """Stage 1: optimizer states, and the master copy where there is one, are sharded.

    Gradients are whole until `step()`. There each bucket is reduce-scattered, the shards are updated, and the
    updated weights are gathered. `make` must build an optimizer that works value by value (Adam, SGD): a shard has
    no rows and columns. `master=torch.float32` keeps an FP32 copy of a BF16 shard, `host=True` keeps shard and
    states in host memory.
    """

    def __init__(
        self,
        model: nn.Module,
        make: Make,
        clip: float = float("inf"),
        bucket_bytes: int = BUCKET_BYTES,
        master: torch.dtype | None = None,
        host: bool = False,
    ) -> None:
        same_start(model)
        self.model, self.clip = model, clip
        self.flats = [Flat(group) for group in buckets(trainable(model), bucket_bytes)]
        self.shards = [Shard(flat.mine(flat.data), master, host) for flat in self.flats]
        self.optimizer = make([shard.parameter for shard in self.shards])

    def step(self) -> Tensor:
        self.reduce()
        norm = clip_shards(self.shards, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            shard.publish()
            all_gather(flat.data, shard.weights)
        return norm

    def reduce(self) -> None:
        for flat, shard in zip(self.flats, self.shards, strict=True):
            whole = flat.take_gradients().div_(flat.ranks)
            part = torch.empty_like(shard.weights)
            reduce_scatter(part, whole)
            shard.receive(part)

    def holds(self) -> dict[str, list[Tensor]]:
        """This rank's tensors by category, for `helpers.memory.measure.held`."""
        updated = [shard.parameter for shard in self.shards]
        tensors = {
            "parameters": [*self.model.parameters(), *self.model.buffers(), *(s.weights for s in self.shards)],
            "gradients": [p.grad for p in self.model.parameters() if p.grad is not None],
        }
        gradients = [p.grad for p in updated if p.grad is not None]
        states = [*states_of(self.optimizer), *(s.parameter for s in self.shards if s.apart)]
        if any(shard.host for shard in self.shards):
            return {**tensors, "host": gradients + states}
        return {**tensors, "gradients": tensors["gradients"] + gradients, "optimizer": states}


class Zero2(Zero1):
    """Stage 2: gradients are sharded as well.

    A bucket is reduce-scattered when its last gradient arrives, while the backward pass goes on, and its whole
    gradients are freed. One bucket travels at a time, so no more than that is held.
    """

    travelling: tuple[dist.Work, Tensor, Tensor, Shard] | None = None

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.watch_arrivals()

    def watch_arrivals(self) -> None:
        self.arrivals = [
            GradReadyCounter(flat.parameters, partial(self.send, flat, shard))
            for flat, shard in zip(self.flats, self.shards, strict=True)
        ]

    def send(self, flat: Flat, shard: Shard) -> None:
        self.land()
        whole = flat.take_gradients().div_(flat.ranks)
        part = torch.empty_like(shard.weights)
        self.travelling = reduce_scatter(part, whole, wait=False), whole, part, shard

    def land(self) -> None:
        """Wait for the bucket on its way; its whole gradients go, the shard stays."""
        if self.travelling:
            work, _, part, shard = self.travelling
            work.wait()
            self.travelling = None
            shard.receive(part)

    def reduce(self) -> None:
        for arrival in self.arrivals:
            arrival.flush()
        self.land()

    def holds(self) -> dict[str, list[Tensor]]:
        """The bucket on its way is workspace, the shard that comes out of it a gradient."""
        tensors = super().holds()
        _, whole, part, _ = self.travelling or (None, None, None, None)
        if part is not None:
            tensors["gradients"].append(part)
            tensors["workspace"] = [whole]
        return tensors
