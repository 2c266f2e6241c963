"""A training run or a service of your own, rebuilt by the trace: its peaks, and whether it runs out of memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...catalog.adapters import Adapter
from ...catalog.devices import device
from ...catalog.errors import require_name
from ...catalog.serve_setup import ServeSetup
from ...catalog.train_setup import TrainSetup
from ..breakdown import Phase, Point
from .cases import AccuracyRow, Case, model_config

if TYPE_CHECKING:
    from ..trace import Trace

TRAIN, SERVE = "train", "serve"
SETUPS = {TRAIN: TrainSetup, SERVE: ServeSetup}
LOADED, ALLOCATED, RESERVED = "after load", "peak allocated", "peak reserved"
PHASES = {TRAIN: tuple(Phase), SERVE: (Point.PREFILL, Point.DECODE)}
OUT_OF_MEMORY = "out of memory"
ROOM = ("out_of_memory", "capacity_gib")  # beside a setup
CONTEXT_BYTES = 600 * 2**20  # of CUDA, where the run's own room is not said: 105 MiB to 1.3 GiB were seen


def setup_of(kind: str, fields: Mapping[str, Any]) -> TrainSetup | ServeSetup:
    """The setup of a file's object, adapters and the config of a model included. WorkbookError for what it refuses."""
    found = {**fields, "model": model_config(fields["model"])} if "/" in str(fields.get("model")) else dict(fields)
    if kind == TRAIN and isinstance(fields.get("adapter"), Mapping):
        known = dict.fromkeys(field.name for field in dataclass_fields(Adapter))
        for name in fields["adapter"]:
            require_name("key of an adapter:", name, known)
        found["adapter"] = Adapter(**fields["adapter"])
    return SETUPS[kind](**found)


def figures_of(kind: str) -> tuple[str, ...]:
    """The names of what can be compared."""
    return (LOADED, ALLOCATED, RESERVED, *(f"peak of {phase}" for phase in PHASES[kind]))


def rows(case: Case) -> Iterator[AccuracyRow]:
    """The figures of one run beside the trace; and where it was out of memory, or was not, whether that is so here."""
    setup = setup_of(case.kind, {name: value for name, value in case.setup.items() if name not in ROOM})
    found = _traced(setup, case.device)
    peaks = _peaks(case.kind, found)
    for quantity, figure in case.figures.items():
        if quantity != OUT_OF_MEMORY:
            yield AccuracyRow(case, quantity, round(figure * case.unit_bytes), peaks[quantity])
    if "out_of_memory" in case.setup:
        yield _at_the_wall(case, found)


def _traced(setup: TrainSetup | ServeSetup, gpu: str) -> Trace:
    from .. import trace

    if isinstance(setup, ServeSetup):
        return trace.serve(setup, gpu)
    return trace.train(setup, gpu)


def _peaks(kind: str, found: Trace) -> dict[str, int]:
    allocated, first = found.on_gpu.allocated, found.first
    phases = [event.phase for event in found.events]
    loaded = next((at for at, phase in enumerate(phases) if phase != "load"), 1)
    highest = {
        f"peak of {phase}": max((allocated[at] for at in range(first, len(phases)) if phases[at] == phase), default=0)
        for phase in PHASES[kind]
    }
    return {
        LOADED: allocated[loaded - 1],
        ALLOCATED: found.peak_allocated_bytes,
        RESERVED: found.peak_reserved_bytes,
        **highest,
    }


def _at_the_wall(case: Case, found: Trace) -> AccuracyRow:
    """1 of 1 where the run ends as it did. The room is what the case says, else the card's less a usual context."""
    said = case.setup.get("capacity_gib")
    room = round(said * 2**30) if said else device(case.device).capacity_bytes - CONTEXT_BYTES
    failed = found.replayed(capacity_bytes=room).oom
    measured = bool(case.setup["out_of_memory"])
    told = f"here it is out of memory: {failed}" if failed else "here it runs"
    one = replace(case, unit="runs", figures={OUT_OF_MEMORY if measured else "runs to its end": 1})
    return AccuracyRow(one, next(iter(one.figures)), 1, int(bool(failed) == measured), told)
