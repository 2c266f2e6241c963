"""The fine-tuning calculator: full, LoRA, DoRA or QLoRA, part by part, side by side, and the cards that hold it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ...catalog.adapters import ALL_LINEAR, BASES, Adapter
from ...catalog.devices import OFFERED, Device, device
from ...catalog.errors import WorkbookError, require_name
from ...catalog.hardware import lacks_bf16, library_bytes, reference_of, without_bf16, without_cuda
from ...catalog.train_setup import TrainSetup
from ...memory import budget
from ...memory.breakdown import Breakdown, format_bytes
from ...memory.fit import Room, Verdict
from ...memory.step.refusals import require_rows_of_adapters
from ...questions.parameter import Parameter
from ...questions.parameters import (
    ADAPTED,
    ANY_CONFIG,
    GPU,
    MODEL,
    POWERS,
    RESERVE,
    SEQUENCES,
    TRAINED,
    WHOLE_LAYERS,
    changed,
    trained_models,
)
from ...questions.question import Question
from ...questions.setups import Values
from ..drawing.bars import stacked_bars
from ..drawing.pictures import Card
from .answers import row
from .calculator import Calculator
from .memory import TrainingAnswer, advice, changes_that_fit

FULL = "full"
METHODS = {FULL: None, "LoRA": "lora", "DoRA": "dora", "QLoRA": "lora", "QDoRA": "dora"}  # with the adapters' kind
QUANTIZED = ("QLoRA", "QDoRA")
AS_USUAL = "usual"
TARGETS = {
    "q, v": ("q_proj", "v_proj"),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "all linear layers": (ALL_LINEAR,),
}


@dataclass(frozen=True)
class FineTuningAnswer(TrainingAnswer):
    """The peak of one step by part, and by name in `methods` that of the other methods."""

    methods: dict[str, Breakdown]

    @property
    def setup(self) -> TrainSetup:
        return self.predicted.setup

    @property
    def method(self) -> str:
        return method_of(self.setup)

    @property
    def trained(self) -> int:
        """Values that are trained."""
        adapter, model = self.setup.adapter, self.setup.model
        return adapter.parameters(model) if adapter else model.parameters

    @property
    def devices(self) -> tuple[str, ...]:
        """The common cards of the catalogue that fit it beside the reserve, by their own kernels; the smallest first.

        Those that could only emulate its products are left out.
        """
        needs = {budget.has_fused_attention(self.setup, self.gpu): self.predicted.tensor_bytes}
        known = (*OFFERED, *(() if self.gpu is None or self.gpu in OFFERED else (self.gpu,)))
        able = (card for card in known if not lacks_bf16(card, self.setup.precision_recipe.activation_format))
        rooms = sorted((Room(card, self.reserve_bytes, self.ranks) for card in able), key=_size)
        return tuple(room.card.name for room in rooms if self._fits(room, needs))

    def _fits(self, room: Room, needs: dict[bool, int]) -> bool:
        """`needs` are the bytes of its tensors with a fused kernel of attention and without; the same on every card."""
        card, fused = room.card, budget.has_fused_attention(self.setup, room.card)
        with suppress(WorkbookError):  # such as no kernel for all of its weights
            budget.require_kernels(self.setup, card)
            if fused not in needs:
                needs[fused] = budget.train(self.setup, card).tensor_bytes
            return room.verdict(needs[fused] + library_bytes(card)) is Verdict.FITS
        return False

    @property
    def title(self) -> str:
        peak = f"{format_bytes(self.predicted.peak_bytes)} at the peak, {self.predicted.peak.when}"
        how = "Full fine-tuning" if self.setup.adapter is None else self.method
        return f"{how} of {self.setup.model.name}: {peak}"

    @property
    def question(self) -> Question:
        return FINE_TUNING

    @property
    def asked(self) -> dict[str, Any]:
        return {"setup": self.setup, "precision": self.setup.precision, **self.on_card}

    def lines(self) -> Iterator[str]:
        yield from super().lines()
        yield ""
        for name, parts in self.methods.items():
            chosen = " ← chosen" if name == self.method else ""
            yield row(name, format_bytes(parts.total), f"at the peak{chosen}")

    def sentences(self) -> Iterator[str]:
        """What is trained and what that spares, whether it fits, and what would."""
        adapter = self.setup.adapter
        yield from self._said_of_setup()
        if adapter:
            share = 100 * self.trained / self.setup.model.parameters
            yield f"{adapter}: {self.trained:,} values are trained, {share:.2g} % of the model's."
            yield from self._spared()
        if self.room:
            yield from self.decides(self.room, self.predicted.peak_bytes)
            if not self.holds(self.predicted.peak_bytes):
                yield from advice(changes_that_fit(self.setup, self.room, self.by_lengths), self.room)
        yield from self._accumulated()
        yield from without_cuda(self.gpu)
        yield from without_bf16(self.gpu, self.setup.precision_recipe.activation_format)
        smallest = f"The smallest cards that hold it, with expandable segments: {', '.join(self.devices[:3])}."
        yield smallest if self.devices else "No card of the catalogue holds it."

    def _spared(self) -> Iterator[str]:
        if full := self.methods.get(FULL):
            share = 100 * self.predicted.peak_bytes / full.total
            yield f"The peak is {share:.0f} % of full fine-tuning's: activations and logits stay."

    @property
    def cards(self) -> tuple[Card, ...]:
        return (stacked_bars(self.title, self.methods, self.capacities, self.method),)

    @property
    def figures(self) -> dict[str, Any]:
        return {
            **super().figures,
            "method": self.method,
            "trained": self.trained,
            "methods": {name: dict(parts) for name, parts in self.methods.items()},
            "fits": list(self.devices),
        }


def fine_tuning_answer(
    setup: TrainSetup, gpu: str | Device | None = None, reserve_bytes: int | None = None
) -> FineTuningAnswer:
    """What `setup` needs on `gpu`, of all of the model or of its adapter, beside the other methods.

    Those are run in the setup's precision; or, where that is usual for its method, each in its own usual one.
    WorkbookError for a model or a choice without a closed form. A method that has none at these choices is left out.

    >>> setup = TrainSetup("llama-2-7b", "bf16", checkpointing="full", adapter=Adapter(base="nf4-dq"))
    >>> answer = fine_tuning_answer(setup, "rtx-4090")
    >>> answer.method, answer.trained, round(answer.parts.total / 2**30, 2)
    ('QLoRA', 8388608, 5.96)
    """
    card = device(gpu) if gpu else None
    predicted = budget.train(setup, card or reference_of(setup))
    methods = {}
    for variant in _variants(setup):
        with suppress(WorkbookError):
            same = method_of(variant) == method_of(setup)
            found = predicted if same else budget.train(variant, card or reference_of(setup))
            methods[method_of(variant)] = found.parts
    return FineTuningAnswer(predicted.parts, card, predicted, methods, reserve_bytes=reserve_bytes)


def method_of(setup: TrainSetup) -> str:
    """One of METHODS."""
    if setup.adapter is None:
        return FULL
    require_rows_of_adapters(setup)
    kinds = {"lora": "LoRA", "dora": "DoRA"}
    return f"{'Q' if setup.adapter.base else ''}{kinds[setup.adapter.kind]}"


def as_usual(setup: TrainSetup) -> TrainSetup:
    """The same in the precision that is usual for its method."""
    return replace(setup, precision=_usual(setup.adapter))


def _usual(adapter: Adapter | None) -> str:
    """Of whole models that of autocast, over FP32 weights that all train."""
    return adapter.usual_precision if adapter else "autocast-bf16"


def _variants(setup: TrainSetup) -> Iterator[TrainSetup]:
    """Full, and the chosen kind of adapter on both kinds of base."""
    adapter = setup.adapter or Adapter()
    usual = setup == as_usual(setup)
    for one in (None, replace(adapter, base=None), replace(adapter, base=adapter.base or "nf4-dq")):
        with suppress(WorkbookError):  # recipes that no frozen base has
            variant = replace(setup, adapter=one, precision="fp32" if usual else setup.precision)
            yield as_usual(variant) if usual else variant


def _size(room: Room) -> int:
    return room.card.capacity_bytes


def fine_tuning(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `fine_tuning(model="llama-3-8b", method="QLoRA")`."""
    return Calculator(FINE_TUNING, start)


def _used(values: Values) -> list[str]:
    """The controls of adapters matter where there are some, and the format of the base where it is quantized."""
    hidden = [] if values["method"] != FULL else ["rank", "targets"]
    return [name for name in values if name not in hidden and (name != "base" or values["method"] in QUANTIZED)]


def _means(said: dict[str, Any]) -> dict[str, Any]:
    """The method is a kind of adapters and the format of a base."""
    method, targets = said.pop("method"), said.pop("targets")
    rank, base = said.pop("rank"), said.pop("base")
    kind = METHODS[require_name("method", method, METHODS)]
    names = TARGETS[require_name("set of linear layers", targets, TARGETS)]
    if kind is None:
        return said
    adapter = {"adapter": kind, "lora_rank": rank, "lora_targets": names}
    return {**said, **adapter, "lora_base": base if method in QUANTIZED else None}


FINE_TUNING = Question(
    "fine-tuning",
    "full, LoRA, DoRA or QLoRA, beside each other: bytes by part, cards that hold it, the cheapest change",
    fine_tuning_answer,
    changed(
        (MODEL, *TRAINED, *ADAPTED, GPU, RESERVE, ANY_CONFIG),
        model={"steps": trained_models(), "start": "llama-3-8b"},
        gpu={"start": "rtx-4090-24gb"},
        precision={
            "always": True,
            "steps": {AS_USUAL: None, **{name: name for name in ("autocast-bf16", "bf16", "fp32")}},
            "start": AS_USUAL,
        },
        optimizer={"steps": ("adamw-foreach", "adamw-fused", "adamw-8bit", "sgd")},
        checkpointing={"steps": WHOLE_LAYERS},
        sequence={"steps": SEQUENCES[:8]},
    ),
    setup=TrainSetup,
    title="Fine-tuning with adapters",
    asks="Does LoRA, DoRA or QLoRA fit this card?",
    invites="Try checkpointing: the weights stay, and it fits. Then QLoRA without checkpointing: does that fit, too?",
    controls=(
        *("model", "config", "gpu", "method", "rank", "targets", "base", "precision", "optimizer"),
        *("checkpointing", "micro_batch", "sequence", "attention", "reserve"),
    ),
    front=("model", "gpu", "method", "checkpointing", "micro_batch"),
    shown=(
        Parameter("method").with_control("method", tuple(METHODS), "LoRA"),
        Parameter("rank").with_control("rank", POWERS[:9], 16),
        Parameter("targets").with_control("adapters on", tuple(TARGETS), "all linear layers"),
        Parameter("base").with_control(  # "int8" has no closed form
            "base in", tuple(name for name in BASES if name != "int8"), "nf4-dq"
        ),
    ),
    used=_used,
    means=_means,
    presets={
        "my 12 GB card": {"gpu": "rtx-3060-12gb", "method": "QLoRA", "checkpointing": "full"},
        "my 24 GB card": {"gpu": "rtx-4090-24gb"},
        "one H100": {"gpu": "h100-80gb"},
    },
)
