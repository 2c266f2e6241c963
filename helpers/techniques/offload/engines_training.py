"""The field's engines that train with states off the device: the bytes that each keeps in each place.

    FSDP2(model, make, host=True)                 # PyTorch's CPUOffloadPolicy
    DeepSpeed(model, make, stage=3, host=True)    # ZeRO-Offload
    DeepSpeed(model, make, disk="/local_nvme")    # ZeRO-Infinity
    bytes_by_place(engine)[Place.HOST]

They are the classes of `techniques.zero`; ours beside them is `HostAdamW`. In bytes for each FP32 parameter of a rank's
shard, with AdamW, between two steps:

    engine          device   host                                                  disk
    HostAdamW       4        12: master copy and two moments                       0
    FSDP2           0        12: the shard itself and two moments                  0
    ZeRO-Offload    4        20: master copy, two moments, two gradients           0
    ZeRO-Infinity   0        4, a gradient; 16 + 4 x ranks for the largest group   20: weight, gradient, the other 12

In a backward HostAdamW and FSDP2 hold a gradient as well, 16 together; HostAdamW has two buffers of the largest
parameter besides. FSDP2 keeps no second copy of a weight: it gathers from the host's shard each time. ZeRO-Offload's
second gradient is the FP32 one that the update reads; stages 1 and 2 have only that, 16 together, and all weights on
the device. ZeRO-Infinity's row is that of a large model: `infinity_bytes` counts any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from ...catalog.errors import WorkbookError
from ...memory.meter.places import Place, PlacesMeter, account_bytes

# DeepSpeed 0.19, runtime/swap_tensor: what is smaller stays in memory; what a file's size is a multiple of.
SWAPPED_BYTES, ALIGN_BYTES = 2**20, 1024
SECTOR_BYTES = 512  # a read past the page cache (O_DIRECT) begins in memory at a multiple of it
PARAMETER_BUFFERS, STATE_BUFFERS = 5, 4  # of the largest shard, and of the largest group


class Holds(Protocol):
    """An engine of `techniques.zero`: its tensors by category."""

    def holds(self) -> Mapping[str, Iterable[Tensor]]: ...


def bytes_by_place(engine: Holds) -> dict[Place, int]:
    """What this rank's engine holds now, as a PlacesMeter counts it: what it calls "host" there, files on the disk."""
    meter = PlacesMeter()
    for category, tensors in engine.holds().items():
        meter.adopt(tensors, category, Place.HOST if category == "host" else Place.DEVICE)
    for path in getattr(engine, "files", list)():
        meter.stored(path)
    meter.stop()
    return {place: meter.bytes_in(place) for place in Place}


def infinity_bytes(sizes: Sequence[int], ranks: int, sub_group_size: int = 10**9) -> dict[Place, int]:
    """What a rank of ZeRO-Infinity keeps after a step, with AdamW, of FP32 parameters with `sizes` values.

    On the disk: weight and gradient of each shard of 1 MiB or more, master copy and two moments of each group of 1 MiB
    or more. On the host: what is smaller, every gradient once more, and buffers. A group is updated at a time, and has
    `sub_group_size` values of shards or a few more. Files end at a multiple of 1 KiB, where a gradient is cut off and
    the others are filled up; the host's storages count as a PlacesMeter counts them.

    Three parameters of 2 MiB on two ranks, in one group: on the disk 20 bytes for each value of a shard, 15 MiB. On the
    host 3 MiB of gradients, four buffers of 3 MiB for the group, five of 1 MiB for weights, and one to write them back,
    which DeepSpeed 0.19 makes for the whole parameters, 6 MiB.

    >>> found = infinity_bytes([2**19] * 3, ranks=2)
    >>> found[Place.DISK] / 2**20, found[Place.HOST] / 2**20
    (15.0, 26.0)
    """
    groups = _groups(sizes, ranks, sub_group_size)
    shards = [4 * -(-size // ranks) for size in sizes]
    states = [4 * sum(-(-size // ranks) for size in group) for group in groups]
    small_shards, shards_on_disk = ([s for s in shards if (s < SWAPPED_BYTES) is small] for small in (True, False))
    small_states, states_on_disk = ([s for s in states if (s < SWAPPED_BYTES) is small] for small in (True, False))
    disk = sum(_up(shard) + shard // ALIGN_BYTES * ALIGN_BYTES for shard in shards_on_disk)
    disk += 3 * sum(map(_up, states_on_disk))
    back = sum(_up(4 * size) for size in groups[states.index(max(states))])
    host = [sum(shards), *small_shards, *small_states * 4, back]  # small states have an FP32 gradient as well
    host += [PARAMETER_BUFFERS * _up(max(shards)), *[_up(max(states))] * STATE_BUFFERS]
    return {Place.DEVICE: 0, Place.HOST: account_bytes(host), Place.PAGES: 0, Place.DISK: disk}


def require_aligned(sizes: Sequence[int], ranks: int, sub_group_size: int = 10**9) -> None:
    """WorkbookError for shards whose gradients ZeRO-Infinity cannot read back, and would train wrongly without a word.

    It reads each into its place in the group's buffer. Where that is no multiple of 512 bytes the system refuses, which
    DeepSpeed 0.19 does not notice: the update takes what the buffer held before.
    """
    for group in _groups(sizes, ranks, sub_group_size):
        at_byte = 0
        for size in group:
            shard = 4 * -(-size // ranks)
            if shard >= SWAPPED_BYTES and at_byte % SECTOR_BYTES:
                what = f"DeepSpeed would lose a gradient: it reads {shard:,} bytes to byte {at_byte:,} of a buffer"
                do = "choose another number of ranks, or host=True"
                raise WorkbookError(what, f"places that are multiples of {SECTOR_BYTES} bytes", do)
            at_byte += shard


def _groups(sizes: Sequence[int], ranks: int, most: int) -> list[list[int]]:
    """In order; a group is full when its shards have `most` values."""
    groups: list[list[int]] = [[]]
    for size in sizes:
        if sum(-(-other // ranks) for other in groups[-1]) >= most:
            groups.append([])
        groups[-1].append(size)
    return groups


def _up(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
