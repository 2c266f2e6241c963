"""A model in stages, one after another, and micro-batches that follow each other through them.

    from helpers.techniques.parallel.pipeline import one_f_one_b, lay_out, in_flight
    schedule = one_f_one_b(ranks=4, micro_batches=8)
    lay_out(schedule).bubble, in_flight(schedule)           # 3/11 and (4, 3, 2, 1)

Without torch: `schedules` is what each rank computes in which order, `timeline` when, and whether it can. With it:
`runner` runs a schedule on ranks, over `messages`; `deferred` divides a backward in two for ZB-H1; `peaks` predicts
what each rank holds. `engines` is torch.distributed.pipelining on the same stages.
"""

from typing import TYPE_CHECKING

from ....catalog.lazy import lazy
from .schedules import Action, Kind, Schedule, gpipe, in_flight, interleaved, one_f_one_b, zero_bubble
from .timeline import ActionSpan, PipelineTimeline, Times, bubble, checked, lay_out

if TYPE_CHECKING:
    from .deferred import defer_weights
    from .engines import TorchPipeline, stages_of
    from .messages import Messages, traffic
    from .peaks import StageBytes, measure_stage, predicted_bytes, predicted_peak
    from .runner import Pipeline, RankStage

__getattr__ = lazy(__name__)
