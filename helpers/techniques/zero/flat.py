"""Parameters laid end to end, an equal shard of them for every rank, and the three collectives that move them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...catalog.errors import WorkbookError
from ...memory.step.ranks.zero import BUCKET_BYTES

# PyTorch 2.13 renamed both; 2.11 knows the old names only.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_reduce(whole: Tensor, wait: bool = True) -> dist.Work | None:
    """Every rank ends with the sum of all ranks' `whole`, in place: a reduce-scatter and an all-gather in one.

    On a ring of N ranks each of the two passes on (N-1)/N of `whole`. With `wait=False` the collective has only
    started: `wait_for` what is returned.
    """
    return dist.all_reduce(whole, async_op=not wait)


def reduce_scatter(part: Tensor, whole: Tensor, wait: bool = True) -> dist.Work | None:
    """Rank r ends with the r-th part of the sum of all ranks' `whole`."""
    return _reduce_scatter(part, whole, async_op=not wait)


def all_gather(whole: Tensor, part: Tensor, wait: bool = True) -> dist.Work | None:
    """Every rank ends with all ranks' `part`, end to end in `whole`."""
    return _all_gather(whole, part, async_op=not wait)


def wait_for(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


class Bucket:
    """Some parameters in a fixed order, padded at the end until every rank's shard is equally long.

    Ten values on four ranks: a length of 12, three to a shard, the last one padded with two zeros.
    """

    reduced_as: torch.dtype | None = None  # of the buffer that gradients are reduced in; None is the model's own

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.ranks, self.rank = world()
        self.values = sum(p.numel() for p in self.parameters)
        self.length = -(-self.values // self.ranks) * self.ranks
        kinds = {(p.dtype, p.device) for p in self.parameters}
        if len(kinds) != 1:
            found = ", ".join(sorted(map(str, kinds))) or "none"
            what = f"parameters in one buffer are of {len(kinds)} kinds: {found}"
            raise WorkbookError(what, "one dtype on one device", "cast the model: model.to(torch.bfloat16)")

    def views(self, flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter with its place in `flat`, in its own shape."""
        offset = 0
        for parameter in self.parameters:
            yield parameter, flat[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()

    def mine(self, flat: Tensor) -> Tensor:
        """This rank's shard of `flat`: a view."""
        return flat.chunk(self.ranks)[self.rank]

    def empty(self, dtype: torch.dtype | None = None) -> Tensor:
        first = self.parameters[0]
        return torch.zeros(self.length, dtype=dtype or first.dtype, device=first.device)

    def take_gradients(self) -> Tensor:
        """The gradients, end to end; they are taken away from the parameters, one by one, so that each is freed."""
        flat = self.empty(self.reduced_as)
        for parameter, place in self.views(flat):
            if parameter.grad is not None:
                place.copy_(parameter.grad)
                parameter.grad = None
        return flat


class FlatBucket(Bucket):
    """A bucket whose parameters live in `data`: what is gathered there is at once what the model computes with.

    `shard` is the part of `data` that this rank updates.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters)
        self.data = self.empty()
        with torch.no_grad():
            for parameter, place in self.views(self.data):
                place.copy_(parameter)
                parameter.data = place
        self.shard = self.mine(self.data)

    def release(self) -> None:
        """Free what the model does not need now: nothing, for a flat stays whole. A `Unit` does not."""


class Unit(FlatBucket):
    """A flat that is whole only while it is needed (ZeRO-3): in between, its storage has no bytes.

    The storage is emptied and refilled, never replaced: what autograd saved for the backward pass are views of it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters)
        self.shard = self.shard.clone()
        self.whole = True
        self.work: dist.Work | None = None

    def gather(self) -> None:
        """Begin to fetch the other ranks' shards; `wait` ends it. Nothing happens where they are here already."""
        if not self.whole:
            self.data.untyped_storage().resize_(self.length * self.data.element_size())
            self.work = all_gather(self.data, self.shard, wait=False)
            self.whole = True

    def wait(self) -> None:
        wait_for(self.work)
        self.work = None

    def release(self) -> None:
        self.wait()
        self.data.untyped_storage().resize_(0)
        self.whole = False


def world() -> tuple[int, int]:
    """(ranks, this rank), or WorkbookError where no process group is."""
    if not dist.is_initialized():
        do = "run it with helpers.lesson.ranks.Ranks(n).run(...), or under torchrun"
        raise WorkbookError("there is no process group", "code that runs on a rank", do)
    return dist.get_world_size(), dist.get_rank()


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that train, a tied one once."""
    return [p for p in model.parameters() if p.requires_grad]


def buckets(parameters: Iterable[nn.Parameter], bucket_bytes: int = BUCKET_BYTES) -> list[list[nn.Parameter]]:
    """Groups of about `bucket_bytes`, last parameter first: in that order the backward pass finishes gradients.

    No parameter is divided; one that is larger than a bucket has its own.
    """
    groups: list[list[nn.Parameter]] = []
    filled = bucket_bytes
    for parameter in reversed(list(parameters)):
        if filled >= bucket_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(parameter)
        filled += parameter.numel() * parameter.element_size()
    return groups


def broadcast_model(model: nn.Module) -> None:
    """Give every rank the weights and buffers of rank 0."""
    world()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, 0)
