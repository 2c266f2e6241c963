"""Which engine is which rank, and what a launcher would tell it: arithmetic on where engines sit."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

LOOPBACK = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)


@dataclass(frozen=True)
class Seat:
    """Where an engine sits: its number, its process, its machine, the GPUs and cores there."""

    engine: int
    process: int
    host: str
    gpus: int
    cores: int


def by_rank(seats: Sequence[Seat]) -> tuple[Seat, ...]:
    """Those of a machine together, so that neighbours in rank are neighbours on the fast links."""
    return tuple(sorted(seats, key=lambda seat: (seat.host, seat.engine)))


def fitting_backend(seats: Sequence[Seat]) -> str:
    """NCCL where every rank has a GPU of its own, else gloo on the CPU."""
    here = Counter(seat.host for seat in seats)
    return "nccl" if all(seat.gpus >= here[seat.host] for seat in seats) else "gloo"


def address(seats: Sequence[Seat]) -> str:
    """Where rank 0 is reached by all the others."""
    return "127.0.0.1" if len({seat.host for seat in seats}) == 1 else seats[0].host


def environments(seats: Sequence[Seat], port: int, backend: str) -> list[dict[str, str]]:
    """What torchrun would set, by rank; `port` for MASTER_PORT."""
    shared = {"MASTER_ADDR": address(seats), "MASTER_PORT": str(port), "WORLD_SIZE": str(len(seats))}
    if address(seats) == "127.0.0.1" and LOOPBACK:
        shared |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
    if backend == "gloo":
        shared |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    taken: Counter[str] = Counter()
    each = []
    for rank, seat in enumerate(seats):
        each.append(shared | {"RANK": str(rank), "LOCAL_RANK": str(taken[seat.host])})
        taken[seat.host] += 1
    return each


def threads(seats: Sequence[Seat]) -> list[int]:
    """Cores for each rank, at least one: 2 for each of four ranks on eight cores."""
    here = Counter(seat.host for seat in seats)
    return [max(1, seat.cores // here[seat.host]) for seat in seats]
