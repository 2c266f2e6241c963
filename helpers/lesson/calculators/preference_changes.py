"""What would bring a run from preferences onto a card: single changes, then those that help, together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from ...catalog.adapters import ALL_LINEAR, Adapter
from ...catalog.devices import Device
from ...catalog.errors import WorkbookError
from ...catalog.hardware import reference_of
from ...catalog.preference import DpoSetup, GrpoSetup
from ...memory.fit import Room, Verdict
from ...memory.preference import PreferenceBudget, dpo, grpo
from .memory import peak_in

Setup = GrpoSetup | DpoSetup
Change = tuple[str, Setup]
MOST_STEPS = 8  # of changes that are made together


def budget_of(setup: Setup, card: Device | None) -> PreferenceBudget:
    if isinstance(setup, GrpoSetup):
        return grpo(setup, card if setup.generator == "vllm" else card or reference_of(setup.train))
    return dpo(setup, card or reference_of(setup.train))


def changes(setup: Setup, room: Room) -> Iterator[str]:
    """Single changes that bring the peak into `room`, then those that help, together; the cheapest first."""
    together, told = setup, dict[str, str]()
    for text, change in chain(_smaller_share(setup, room), _changes(setup)):
        if fits := _peak_in(change, room):
            yield f"{text} ({fits})"
    for _ in range(MOST_STEPS):
        step = next((change for change in _changes(together) if _lowers(together, change[1], room)), None)
        if step is None:
            return
        told[step[0].split()[0]] = step[0]  # a flag that is said again replaces what it said
        together = step[1]
        smaller = next(_smaller_share(together, room), None)
        for text, change in (("", together), *([smaller] if smaller else [])):
            if fits := _peak_in(change, room):
                yield f"{', '.join(filter(None, (*told.values(), text)))} ({fits})"
                return


def _smaller_share(setup: Setup, room: Room) -> Iterator[Change]:
    """The largest share of an engine below its own, in twentieths, with which all stages fit; none if none does."""
    if not isinstance(setup, GrpoSetup) or setup.generator != "vllm":
        return
    for twentieths in range(19, 0, -1):
        change = replace(setup, share=twentieths / 20)
        if change.share < setup.share and _peak_in(change, room):
            yield f"--share {change.share:g}", change
            return


def _lowers(setup: Setup, changed: Setup, room: Room) -> bool:
    """Whether a stage that needs too much needs less after the change."""
    with suppress(WorkbookError):  # a change that cannot be had here
        after = {moment.at: moment.total for moment in budget_of(changed, room.card).moments}
        over = (moment for moment in budget_of(setup, room.card).moments if moment.total > room.for_tensors_bytes)
        return any(after.get(moment.at, 0) < moment.total for moment in over)
    return False


def _peak_in(setup: Setup, room: Room) -> str:
    with suppress(WorkbookError):  # a change that cannot be had here
        need = budget_of(setup, room.card).peak_bytes
        return peak_in(room, need) if room.verdict(need) is Verdict.FITS else ""
    return ""


def _changes(setup: Setup) -> Iterator[Change]:
    """Those that change no result, then those that cost seconds, then those that train less."""
    train = setup.train
    if train.checkpointing == "none":
        yield "full checkpointing", replace(setup, train=replace(train, checkpointing="full"))
    if isinstance(setup, GrpoSetup):
        if setup.generator == "vllm" and not setup.sleeps:
            yield "--sleep", replace(setup, sleeps=True)
        if setup.steps_per_generation != 1 and train.micro_batch % setup.generations == 0:
            yield "--steps-per-generation 1", replace(setup, steps_per_generation=1)
    elif setup.keeps_reference:
        yield "--precompute", replace(setup, precomputed=True)
    least = 1 if isinstance(setup, GrpoSetup) else 2
    if train.micro_batch > least and train.micro_batch % (2 * least) == 0:
        halved = replace(train, micro_batch=train.micro_batch // 2, micro_batches=2 * train.micro_batches)
        rows = halved.micro_batch // least
        text = f"--micro-batch {rows} --accumulate {halved.micro_batches}"
        if isinstance(setup, GrpoSetup):
            yield text, replace(setup, train=halved, steps_per_generation=2 * (setup.steps_per_generation or 1))
        else:
            yield text, replace(setup, train=halved)
    if train.precision == "autocast-bf16" and train.adapter is None:
        text = "--precision autocast-bf16-on-bf16, weights and Adam's states in BF16"
        yield text, replace(setup, train=replace(train, precision="autocast-bf16-on-bf16"))
    if train.adapter is None:
        lora = Adapter("lora", 16, ALL_LINEAR)
        on_base = replace(train, adapter=lora, precision="autocast-bf16-on-bf16")
        yield "--lora-rank 16 --lora-targets all-linear", replace(setup, train=on_base)
    elif train.adapter.base is None and train.adapter.kind == "lora":
        quantized = replace(train.adapter, base="nf4-dq").trained_by("trl")
        yield "--lora-base nf4-dq", replace(setup, train=replace(train, adapter=quantized, precision="autocast-bf16"))
