"""Batching and scheduling: policies, the scheduler, a simulator and a real engine that it drives. No torch until used.

    from helpers.techniques import scheduling
    arrivals = scheduling.poisson(paging.chat(500).requests, per_s=14)
    scheduling.simulate(arrivals, Policy(token_budget=512), Roofline.of(setup, "h100"), blocks=20_000)
    ScheduledEngine(model, blocks=64, policy=Policy(token_budget=64)).run(arrivals)     # real tokens, the same code

`policy` is what may be chosen, `scheduler` the algorithm, `plan` what it gives; `simulator` and `engine` both drive it,
one with a `step_time`, the other with a model; `saturation` is the steady state in closed form. `arrivals` are what
comes, `batching` counts padding, `routing` chooses a replica, `disaggregated` computes prompts elsewhere, `drafting`
proposes tokens; `nim` is a published table, and what is predicted for it.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .arrivals import Arrival, at_once, bursts, limited, mixed, poisson, scaled
    from .disaggregated import Disaggregated, Instance, KVLink, Transfer, simulate_disaggregated
    from .drafting import Drafter, agreed
    from .engine import ScheduledEngine, TimedPlan
    from .packed import PackedTables, packed
    from .plan import MoveKind, Plan, Sequence, TokenChunk
    from .policy import Policy
    from .saturation import MeanStep, MeanSteps, Steady, saturation_point, steady
    from .scheduler import Scheduler
    from .simulator import Outcome, Served, percentile, simulate
    from .step_time import FittedStep, Roofline, SpeculativeStep, StepTime


__getattr__ = lazy(__name__)
