"""Predictions beside recordings: each entry's setup rebuilt, answered by every instrument that can, and the limits.

from helpers.memory.accuracy import recorded
recorded.predictions(entry, recording.machine)       # {"budget": (14182…,), "trace": (14199…,)}
recorded.disagreements(recording)                    # [] when every figure is within its limit
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from ...catalog.devices import DEVICES
from ...catalog.errors import WorkbookError
from ...catalog.serve_setup import ServeSetup
from ...catalog.train_setup import TrainSetup
from ..allocator import Comparison, compare_with_snapshot
from ..budget import decode_bytes, serve, train, weight_bytes
from ..work import Roof, Work
from .cases import RECORDED, AccuracyRow, Case
from .recordings import Entry, RecordedDevice, Recording, read_all

BUDGET, TRACE, SIMULATOR, DATASHEET = "budget", "trace", "simulator", "datasheet"
ALLOWED = {BUDGET: 0.01, TRACE: 0.01, SIMULATOR: 0.05}  # of the recorded value; a datasheet's is a limit, no prediction
ALLOCATED, RESERVED, HELD = "peak allocated", "peak reserved", "held"
Answers = dict[str, tuple[float, ...]]


def predictions(entry: Entry, machine: RecordedDevice) -> Answers:
    """What each instrument answers, one number for each value of `entry`, in its unit; {} where none can.

    A datasheet's answer is the link's rate, or the least time under the card's roof.
    """
    known = _KINDS.get(str(entry.setup["kind"]))
    if known is None:
        return {}
    fields = {name: value for name, value in entry.setup.items() if name != "kind"}
    try:
        return known(entry, fields, machine)
    except TypeError as problem:
        what = f"the setup of {entry.experiment}, {entry.label} cannot be rebuilt: {problem}"
        raise WorkbookError(what, "the fields that workbook record writes", "record it again with --force") from None


def disagreements(recording: Recording) -> Iterator[str]:
    """What is off by more than ALLOWED, and where a replayed history departs from the device's, in words."""
    for entry in recording.entries:
        name = f"{recording.machine.name}, {entry.experiment}, {entry.label}, {entry.quantity}"
        found = predictions(entry, recording.machine)
        if entry.snapshot:
            again = replayed(recording, entry)
            yield from (f"{name}, replayed: {difference}" for difference in again.differences)
            if entry.setup["kind"] == "snapshot":
                found = {SIMULATOR: (again.replay.peak_reserved_bytes,)}
        for instrument, answers in found.items():
            limit = ALLOWED.get(instrument)
            for answer, value in zip(answers, entry.values, strict=True):
                error = answer / value - 1
                if limit is not None and abs(error) > limit:
                    yield f"{name}: {instrument} answers {answer:,.0f} for {value:,.0f}, off by {error:+.2%}"


def replayed(recording: Recording, entry: Entry) -> Comparison:
    """The history behind `entry` through the simulator, held against what the device did with it."""
    return compare_with_snapshot(recording.snapshot(entry))


def rows() -> Iterator[AccuracyRow]:
    """A row of `workbook accuracy` for each recorded size and each instrument that answers it."""
    for recording in read_all():
        for entry in recording.entries:
            for instrument, answers in predictions(entry, recording.machine).items():
                if instrument in ALLOWED:
                    yield from _rows(recording, entry, instrument, answers)


def _rows(recording: Recording, entry: Entry, instrument: str, answers: tuple[float, ...]) -> Iterator[AccuracyRow]:
    places = [f", {x:,.0f} {entry.x_unit}" for x in entry.x] or [""]
    quantity, on, source = f"{entry.quantity}, {instrument}", recording.machine.name, recording.source(entry)
    for place, value, answer in zip(places, entry.values, answers, strict=True):
        name, figures = f"{entry.experiment} {entry.label}{place}", {quantity: value / 2**20}
        case = Case(name, RECORDED, on, entry.setup, figures, "MiB", source)
        yield AccuracyRow(case, quantity, round(value), round(answer), on)


def _train(entry: Entry, fields: Mapping, machine: RecordedDevice) -> Answers:
    setup = TrainSetup(**fields)
    answers: Answers = {}
    if entry.quantity == ALLOCATED:
        with contextlib.suppress(WorkbookError):  # no closed form: then the trace stands alone
            answers[BUDGET] = (train(setup, machine.device).peak_bytes,)
    return answers | _of_the_trace(entry, setup, machine)


def _of_the_trace(entry: Entry, setup: TrainSetup | ServeSetup, machine: RecordedDevice) -> Answers:
    """The peak that `entry` is; {} for anything else, and on a GPU without CUDA."""
    if entry.quantity not in (ALLOCATED, RESERVED) or not machine.is_traced:
        return {}
    allocated, reserved = _traced(setup, machine)
    return {TRACE: (allocated,)} if entry.quantity == ALLOCATED else {SIMULATOR: (reserved,)}


@cache
def _traced(setup: TrainSetup | ServeSetup, machine: RecordedDevice) -> tuple[int, int]:
    from .. import trace

    if isinstance(setup, ServeSetup):
        found = trace.decode(setup, machine.device, on=machine.type)
    else:
        found = trace.train(setup, machine.device, on=machine.type)
    return found.peak_allocated_bytes, found.peak_reserved_bytes


def _weights(entry: Entry, fields: Mapping, machine: RecordedDevice) -> Answers:
    return {BUDGET: (weight_bytes(ServeSetup(**fields)),)} if entry.quantity == HELD else {}


def _cache(entry: Entry, fields: Mapping, machine: RecordedDevice) -> Answers:
    setups = [ServeSetup(**fields, context=int(tokens)) for tokens in entry.x]
    return {BUDGET: tuple(serve(setup).held["kv_cache"] for setup in setups)}


def _decode(entry: Entry, fields: Mapping, machine: RecordedDevice) -> Answers:
    if entry.unit == "s":
        rate = DEVICES[machine.name].memory_bytes_per_s if machine.name in DEVICES else None
        return {DATASHEET: (decode_bytes(ServeSetup(**fields)) / rate,)} if rate else {}
    return _of_the_trace(entry, ServeSetup(**fields), machine)


def _growing(entry: Entry, fields: Mapping, machine: RecordedDevice) -> Answers:
    from .. import trace
    from .ops import grown_by_cat

    if entry.quantity != RESERVED or not machine.is_traced:
        return {}
    with trace.fake(machine.type, machine.device):
        found = trace.record(lambda: grown_by_cat(**fields), warmup=0)
    return {SIMULATOR: (found.peak_reserved_bytes,)}


def _of_the_datasheet(entry: Entry, fields: Mapping, machine: RecordedDevice) -> Answers:
    """A link's rate, a roof, or the least time under it, where the catalogue knows the device and the figure of it."""
    if machine.name not in DEVICES:
        return {}
    with contextlib.suppress(WorkbookError):  # such as a rate of BF16 on a card that has none
        if entry.setup["kind"] == "copy":
            return {DATASHEET: (DEVICES[machine.name].link_bytes_per_s("pcie") * fields["ways"],)}
        roof = Roof.of(machine.name, fields["format"])
        if entry.setup["kind"] == "roof":
            return {DATASHEET: (roof.bytes_per_s if entry.unit == "bytes/s" else roof.flops_per_s,)}
        work = Work(fields["flops"], fields["read_bytes"], fields["written_bytes"])
        return {DATASHEET: (roof.seconds(work),)}
    return {}


# None for "snapshot", whose setup alone says nothing: `disagreements` replays the history and compares its peak.
_KINDS: Mapping[str, Callable[..., Answers]] = {
    "train": _train,
    "weights": _weights,
    "kv cache": _cache,
    "decode": _decode,
    "growing cache": _growing,
    **dict.fromkeys(("copy", "roof", "operator"), _of_the_datasheet),
}
