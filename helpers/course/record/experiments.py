"""What is recorded, cheap first: each with its chapter, what it needs, and the function that measures it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...catalog.errors import require_name
from ...memory.breakdown import GIB
from . import hardware, serving, training
from .serving import weights_in
from .target import ExperimentSizes, MeasuredFigure, Target
from .training import AUTOCAST, BF16, BY_POLICY, RecordedCase, policies, step_of

Needs = Callable[[ExperimentSizes], int]


@dataclass(frozen=True)
class Experiment:
    """`run(target)` gives its figures, `needs(sizes)` the bytes of the device that it takes, a margin included."""

    name: str
    what: str
    needs: Needs
    run: Callable[[Target], Iterable[MeasuredFigure]]


def _at_least(gib: float) -> Needs:
    return lambda sizes: round(gib * GIB)


def _weights(name: str) -> Needs:
    """The weights, and the dense copy of one layer while it is quantized."""
    return lambda sizes: serving.weights_bytes(sizes, name) + GIB // 2


def _step(*cases: RecordedCase) -> Needs:
    """The largest of the predicted peaks, and 5 % for what the allocator keeps idle."""
    return lambda sizes: round(1.05 * max(case.needs_bytes(sizes) for case in cases))


EXPERIMENTS: tuple[Experiment, ...] = (  # histories first: they want an allocator that has done nothing yet
    Experiment("03/snapshot-random", "random requests, every one of them", _at_least(4), hardware.random_requests),
    Experiment("03/snapshot-cat", "a cache that grows by cat, every request", _at_least(4), hardware.growing_cache),
    Experiment("03/snapshot-train", "two training steps of 1B, every request", _step(BF16), training.history),
    Experiment("01/bandwidth", "bytes per second by working set", _at_least(2), hardware.bandwidth),
    Experiment("01/host-link", "copies, pageable and pinned, each way", _at_least(2), hardware.host_link),
    Experiment("01/roofline", "the roof, and six operators under it", _at_least(2), hardware.roofline),
    Experiment("05/nf4-8b", "weights of 8B in NF4, doubly quantized too", _weights("nf4"), weights_in("nf4", "nf4-dq")),
    Experiment("05/int8-8b", "weights of 8B in LLM.int8()", _weights("int8"), weights_in("int8")),
    Experiment("05/bf16-8b", "weights of 8B in BF16", _weights("bf16"), weights_in("bf16")),
    Experiment("01/decode-8b", "one token of 8B, in time", _weights("bf16"), serving.decoding),
    Experiment(
        "12/decode-8b",
        "one token of 8B after a long prompt, in bytes",
        lambda sizes: serving.cache_needs_bytes(sizes, sizes.decode_context) + GIB,
        serving.decode_step,
    ),
    Experiment("02/train-1b", "a training step of 1B in BF16", _step(BF16), step_of(BF16)),
    Experiment("02/train-1b-autocast", "a training step of 1B under autocast", _step(AUTOCAST), step_of(AUTOCAST)),
    Experiment("06/checkpointing-1b", "a training step of 1B by policy, bytes and time", _step(*BY_POLICY), policies),
    Experiment(
        "12/kv-long",
        "the KV cache of 8B at long contexts",
        lambda sizes: serving.cache_needs_bytes(sizes, sizes.contexts[0]),
        serving.long_contexts,
    ),
)


def chosen(names: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """Those named, in the table's order; all of them for none. WorkbookError for a name that nobody has."""
    known = [experiment.name for experiment in EXPERIMENTS]
    for name in names:
        require_name("experiment", name, known)
    return tuple(experiment for experiment in EXPERIMENTS if not names or experiment.name in names)
