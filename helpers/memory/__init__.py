"""What we compute: how many bytes, of what, when. Imports catalog; torch only where tensors are measured or traced.

    from helpers.memory import budget, measure
    budget.train(setup).peak                        # closed form: no torch, no GPU
    measure.training_step(setup).peak               # the same question, asked of this machine

    closed_form   bytes at each moment of a step, and of a serving replica, from a shape and a setup
    meter         the storages that PyTorch's operators make, counted as they come and go
    allocator     the caching allocator, simulated; snapshots of the real one
    measure       what this machine really does: bytes and seconds
    trace         what a run would allocate, without memory and without a GPU
    fit           the changes that make a setup fit, cheapest first
    oom           from a log or a snapshot to the reason
    accuracy      predictions beside what GPUs measured
    plan          from a goal and the cards at hand to what works, cheapest first

Each imports only what stands above it. All answer in the types of `closed_form`.
"""

from .closed_form import (
    Breakdown,
    Moment,
    Part,
    Phase,
    Point,
    activations,
    budget,
    format_bytes,
    rounded,
    tensor_parallel,
    weights,
    work,
    zero,
)
