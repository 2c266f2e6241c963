"""ZeRO stages 1 and 2: each rank updates its shard, and then every rank gathers every other's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...memory.step.ranks.zero import BUCKET_BYTES
from .ddp import GradReadyCounter, Make, optimizer_states
from .flat import FlatBucket, all_gather, all_reduce, broadcast_model, buckets, reduce_scatter, trainable, wait_for


class Shard:
    """`weights`, the part of the model that this rank updates, and the `parameter` that its optimizer works on.

    They are the same memory, unless `master` asks for a copy of higher precision, in which gradients are reduced then,
    or `host` for one in host memory: gradients go down to it and updated weights come up, and both are counted.
    """

    def __init__(self, weights: Tensor, master: torch.dtype | None = None, host: bool = False) -> None:
        self.weights, self.host = weights.detach(), host
        self.down_bytes = self.up_bytes = 0
        dtype = master or weights.dtype
        self.apart = host or dtype != weights.dtype
        kept = self.weights.to("cpu" if host else weights.device, dtype, copy=True) if self.apart else self.weights
        self.parameter = nn.Parameter(kept.pin_memory() if host and torch.cuda.is_available() else kept)

    def receive(self, gradient: Tensor) -> None:
        """Add an averaged gradient of the shard's length."""
        if self.host:
            self.down_bytes += gradient.nbytes
            gradient = gradient.to("cpu", copy=True)
        self.parameter.grad = gradient if self.parameter.grad is None else self.parameter.grad.add_(gradient)

    def publish(self) -> None:
        """Bring the updated values back to `weights`."""
        if self.apart:
            self.weights.copy_(self.parameter.detach())
        self.up_bytes += self.host * self.weights.nbytes


class Zero1:
    """Stage 1: optimizer states, and the master copy where there is one, are sharded.

    Gradients are whole until `step()`. There each bucket is reduce-scattered, the shards are updated, and the
    updated weights are gathered. `make` must build an optimizer that works value by value (Adam, SGD): a shard has
    no rows and columns. `master=torch.float32` keeps an FP32 copy of a BF16 shard, `host=True` keeps shard and
    states in host memory. `flats` replaces the buckets where the model is laid out already.
    """

    def __init__(
        self,
        model: nn.Module,
        make: Make,
        clip: float = float("inf"),
        bucket_bytes: int = BUCKET_BYTES,
        master: torch.dtype | None = None,
        host: bool = False,
        flats: Sequence[FlatBucket] | None = None,
    ) -> None:
        if flats is None:
            broadcast_model(model)
            flats = [FlatBucket(group) for group in buckets(trainable(model), bucket_bytes)]
        for flat in flats:
            flat.reduced_as = master
        self.model, self.clip, self.flats = model, clip, flats
        self.shards = [Shard(flat.shard, master, host) for flat in flats]
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
            part = torch.empty_like(flat.mine(whole))
            reduce_scatter(part, whole)
            shard.receive(part)

    def holds(self) -> dict[str, list[Tensor]]:
        parameters = [*self.model.parameters(), *self.model.buffers(), *(s.weights for s in self.shards)]
        whole = [p.grad for p in self.model.parameters() if p.grad is not None]
        sharded = [s.parameter.grad for s in self.shards if s.parameter.grad is not None]
        states = [*optimizer_states(self.optimizer), *(s.parameter for s in self.shards if s.apart)]
        if any(shard.host for shard in self.shards):
            return {"parameters": parameters, "gradients": whole, "host": sharded + states}
        return {"parameters": parameters, "gradients": whole + sharded, "optimizer": states}


class InFlight(NamedTuple):
    """A reduce-scatter that has not ended: the `whole` gradients go in, `part` comes out, for `shard`."""

    work: dist.Work | None
    whole: Tensor
    part: Tensor
    shard: Shard


class Zero2(Zero1):
    """Stage 2: gradients are sharded as well.

    A bucket is reduce-scattered when its last gradient arrives, while the backward pass goes on, and its whole
    gradients are freed. One bucket is in flight at a time, so no more than that is held.
    """

    in_flight: InFlight | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.counters = [
            GradReadyCounter(flat.parameters, partial(self.send, flat, shard))
            for flat, shard in zip(self.flats, self.shards, strict=True)
        ]

    def send(self, flat: FlatBucket, shard: Shard) -> None:
        self.wait()
        whole = flat.take_gradients().div_(flat.ranks)
        part = torch.empty_like(flat.mine(whole))
        self.in_flight = InFlight(reduce_scatter(part, whole, wait=False), whole, part, shard)

    def wait(self) -> None:
        """Wait for the bucket in flight; its whole gradients are freed, the shard stays."""
        if self.in_flight:
            work, _, part, shard = self.in_flight
            wait_for(work)
            self.in_flight = None
            shard.receive(part)

    def reduce(self) -> None:
        for counter in self.counters:
            counter.flush()
        self.wait()

    def holds(self) -> dict[str, list[Tensor]]:
        """The bucket in flight is workspace, the shard that comes out of it a gradient."""
        tensors = super().holds()
        if self.in_flight:
            tensors["gradients"].append(self.in_flight.part)
            tensors["workspace"] = [self.in_flight.whole]
        return tensors


def clip_shards(shards: Sequence[Shard], limit: float) -> Tensor:
    """Scale the gradients so that their norm over all ranks is at most `limit`; return the norm as it was.

    Nobody has the whole gradient, and nobody needs it: one number from each rank is enough.
    """
    gradients = [shard.parameter.grad for shard in shards if shard.parameter.grad is not None]
    squares = sum((gradient.float().square().sum() for gradient in gradients), torch.zeros(()))
    squares = squares.to(shards[0].weights.device)
    all_reduce(squares)
    norm = squares.sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)  # no `if norm > limit`: a GPU would have to wait for the answer
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return norm
