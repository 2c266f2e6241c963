"""Which engine becomes which rank, and the environment of each: arithmetic on machines, GPUs and cores."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

LOOPBACK = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)


@dataclass(frozen=True)
class Placement:
    """Where an engine runs: its number, its process, its machine, and that machine's GPUs and cores."""

    engine: int
    process: int
    host: str
    gpus: int
    cores: int


def by_rank(placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Engines of one machine get neighbouring ranks: neighbours then talk over the fast links."""
    return tuple(sorted(placements, key=lambda placement: (placement.host, placement.engine)))


def choose_backend(placements: Sequence[Placement]) -> str:
    """NCCL where every rank has a GPU of its own, else gloo on the CPU."""
    on_host = Counter(placement.host for placement in placements)
    return "nccl" if all(placement.gpus >= on_host[placement.host] for placement in placements) else "gloo"


def master_address(placements: Sequence[Placement]) -> str:
    """The address at which every rank reaches rank 0."""
    return "127.0.0.1" if len({placement.host for placement in placements}) == 1 else placements[0].host


def rank_environments(placements: Sequence[Placement], port: int, backend: str) -> list[dict[str, str]]:
    """The variables that torchrun would set, by rank; `port` becomes MASTER_PORT."""
    address = master_address(placements)
    shared = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "WORLD_SIZE": str(len(placements))}
    if address == "127.0.0.1" and LOOPBACK:
        shared |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
    if backend == "gloo":
        shared |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    on_host: Counter[str] = Counter()
    environments = []
    for rank, placement in enumerate(placements):
        environments.append(shared | {"RANK": str(rank), "LOCAL_RANK": str(on_host[placement.host])})
        on_host[placement.host] += 1
    return environments


def threads_per_rank(placements: Sequence[Placement]) -> list[int]:
    """Cores for each rank, at least one: two for each of four ranks on eight cores."""
    on_host = Counter(placement.host for placement in placements)
    return [max(1, placement.cores // on_host[placement.host]) for placement in placements]
