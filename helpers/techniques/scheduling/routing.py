"""Which replica gets a request: in turn, by load, by free blocks, or where its prefix is already cached. No torch."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import dataclass

from ...catalog.errors import require_name, require_whole
from .arrivals import Arrival, require_in_order
from .policy import Policy
from .simulator import Outcome, Server
from .step_time import StepTime

Router = Callable[[Arrival, Row[Server], int], int]


def in_turn(arrival: Arrival, servers: Row[Server], number: int) -> int:
    """Round robin: the next replica, whatever it is doing. `number` counts the requests."""
    return number % len(servers)


def least_load(arrival: Arrival, servers: Row[Server], number: int) -> int:
    """The replica with the fewest requests that are not done."""
    return min(range(len(servers)), key=lambda at: len(servers[at].open))


def most_free_blocks(arrival: Arrival, servers: Row[Server], number: int) -> int:
    """The replica with the most blocks left when those who wait have theirs, so memory decides and not a count."""
    return max(range(len(servers)), key=lambda at: _spare_blocks(servers[at]))


def longest_prefix(arrival: Arrival, servers: Row[Server], number: int, slack: int = 4, share: float = 0.5) -> int:
    """Where most of the prompt is cached, if that replica has at most `slack` requests more than the least loaded.

    Without that limit everybody with the same system prompt ends on one replica. A prefix shorter than `share` of the
    prompt does not count: a few words in common are not worth a queue.
    """
    least = min(len(server.open) for server in servers)
    allowed = [at for at, server in enumerate(servers) if len(server.open) <= least + slack]
    cached = {at: _cached_tokens(servers[at], arrival) for at in allowed}
    worth = {at: tokens if tokens >= share * len(arrival.request.prompt) else 0 for at, tokens in cached.items()}
    return max(allowed, key=lambda at: (worth[at], -len(servers[at].open)))


ROUTERS: dict[str, Router] = {
    "in-turn": in_turn,
    "load": least_load,
    "free-blocks": most_free_blocks,
    "prefix": longest_prefix,
}


@dataclass(frozen=True)
class Routed:
    """What each replica served."""

    outcomes: tuple[Outcome, ...]
    prefix_hit_rate: float

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(len(outcome.served) for outcome in self.outcomes)

    @property
    def ttft_s(self) -> list[float]:
        return [one.ttft_s for outcome in self.outcomes for one in outcome.served]


def simulate_replicas(
    arrivals: Row[Arrival],
    router: str,
    replicas: int,
    policy: Policy,
    step_time: StepTime,
    blocks: int,
    block_size: int = 16,
) -> Routed:
    """Serve `arrivals` on `replicas` equal servers, each with `blocks` blocks and a prefix cache of its own."""
    require_in_order(arrivals)
    choose = ROUTERS[require_name("router", router, ROUTERS)]
    count = require_whole("replicas", replicas)
    servers = [Server(policy, step_time, blocks, block_size, prefix=True) for _ in range(count)]
    for number, arrival in enumerate(arrivals):
        for server in servers:
            server.run(arrival.at_s)
        servers[choose(arrival, servers, number)].submit(arrival, arrival.at_s)
    for server in servers:
        server.scheduler.more_to_come = False
        server.run()
    hits = [server.scheduler.prefix.hits for server in servers if server.scheduler.prefix]
    found, asked = sum(one.found for one in hits), sum(one.asked for one in hits)
    return Routed(tuple(server.outcome() for server in servers), found / asked if asked else 0.0)


def _spare_blocks(server: Server) -> int:
    manager = server.scheduler.manager
    return manager.available - sum(manager.blocks_for(one.known) for one in server.scheduler.waiting)


def _cached_tokens(server: Server, arrival: Arrival) -> int:
    prefix, size = server.scheduler.prefix, server.scheduler.manager.block_size
    return size * len(prefix.find(arrival.request.prompt[:-1])) if prefix else 0
