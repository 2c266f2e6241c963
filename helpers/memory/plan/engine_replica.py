"""A replica on an engine that sets a pool aside: its users are those that the pool holds, after its profile run.

replica_of(ServeGoal("qwen3-8b", context=8192, engine="vllm"), ReplicaLayout(), Cards("h100", 1), Efficiency())
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ...catalog.engines import engine
from ...catalog.setup_fields import MAX_COUNT
from ..serve.engines.vllm import Launch, launch
from .goal import ServeGoal
from .machine import Cards
from .seconds import Efficiency
from .serving import Replica, ReplicaLayout


class EngineReplica(Replica):
    """The same seconds; bytes are the engine's, in its own share of the card."""

    @cached_property
    def launch(self) -> Launch:
        goal, layout = self.goal, self.layout
        whole = replace(self.setup, model=goal.model)  # of which a launch makes the stages
        return launch(whole, engine(goal.engine), self.cards.device, layout.tensor, layout.pipeline)

    @property
    def room_bytes(self) -> int:
        return self.launch.share_bytes

    @cached_property
    def weight_bytes(self) -> int:
        return self.launch.weight_bytes

    @cached_property
    def kv_bytes(self) -> int:
        return self.launch.user_bytes

    def transient_bytes(self, users: int) -> int:
        """What its profile run measured, and what it counts beside; the same for any number of users."""
        made = self.launch
        return made.share_bytes - made.weight_bytes - made.pool_bytes

    @cached_property
    def most_users(self) -> int:
        """That the pool holds, of at most max_num_seqs."""
        return max(0, min(MAX_COUNT, self.launch.users, self.launch.sequences))


def replica_of(
    goal: ServeGoal,
    layout: ReplicaLayout,
    cards: Cards,
    rates: Efficiency,
    transient: dict[int, tuple[int, int, int]] | None = None,
) -> Replica:
    """A replica as the goal's engine makes it."""
    if goal.engine:
        return EngineReplica(goal, layout, cards, rates)
    return Replica(goal, layout, cards, rates, transient)
