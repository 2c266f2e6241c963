"""What we compute: how many bytes, of what, when. Imports catalog; torch only where tensors are measured or traced.

    from helpers.memory import budget, measure
    budget.train(setup).peak                        # closed form: no torch, no GPU
    measure.training_step(setup).peak               # the same question, asked of this machine

    breakdown     the types that all instruments answer in: bytes by part, and moments
    step          closed form: bytes at each moment of a training step, from a shape and a setup
    serve         closed form: bytes of a serving replica, and of the engines that run it
    budget        the door to both; `work` is what an operator asks of the machine, `layer_work` a layer
    other_shapes  models that are no decoder of text, and embedding stores
    offload       the seconds of copies beside those of computing
    meter         the storages that PyTorch's operators make, counted as they come and go
    allocator     the caching allocator, simulated; snapshots of the real one
    measure       what this machine really does: bytes and seconds
    trace         what a run would allocate, without memory and without a GPU
    fit           the changes that make a setup fit, cheapest first
    oom           from a log or a snapshot to the reason
    accuracy      predictions beside what GPUs measured
    plan          from a goal and the cards at hand to what works, cheapest first

Each imports only what stands above it. All answer in the types of `breakdown`.
"""

from typing import TYPE_CHECKING

from ..catalog.lazy import lazy
from .breakdown import Breakdown, Moment, Part, Phase, Point, format_bytes, rounded

if TYPE_CHECKING:
    from . import budget, work
    from .serve import rank_weights, weights
    from .step import activations
    from .step.ranks import zero

__getattr__ = lazy(__name__)
