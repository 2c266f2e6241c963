"""The memory calculators: what one training step, or a served model, needs part by part against one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from ...catalog.devices import Device, device
from ...catalog.hardware import reference_of, without_bf16, without_cuda
from ...catalog.losses import CUT, FULL, LIGER, TRL
from ...catalog.optimizers import BLOCK_VALUES, Blockwise, LowRank, Optimizer
from ...catalog.train_setup import TrainSetup
from ...memory import budget
from ...memory.breakdown import format_bytes
from ...memory.fit import Fit, Room, adapted, ladder
from ...memory.step.decoders.linears import StepWidths
from ...questions.parameters import ADAPTED, ANY_CONFIG, GPU, MODEL, RESERVE, SPLIT, TRAINED, changed, trained_models
from ...questions.question import Question
from .answers import MemoryAnswer, first_over, row
from .calculator import Calculator

OWN_LOSS = {  # what a trainer does besides, and no flag says
    "trl": "TRL's own loss, the default of SFTTrainer, holds fewer logits: --loss trl.",
    "unsloth": "Its own kernels and its loss keep less than is counted here.",
}
LOSS_SAID = {
    LIGER: ("The loss is Liger's, which makes the gradients of head and input in the forward, a chunk at a time.",),
    CUT: ("The loss is cut cross-entropy, whose logits are never in memory.",),
    TRL: ("The loss is that of TRL 1.16's SFTTrainer, which makes a tile of logits at a time, and again backward.",),
}
LOOKED_AT = 6  # fits behind the cheapest
NO_CHANGE = "No change that is known here makes it fit: shard it, offload it, or take a larger GPU."


@dataclass(frozen=True)
class TrainingAnswer(MemoryAnswer):
    """The peak of one step by part. `by_lengths`: its rows are so many given lengths, so no change leaves fewer."""

    predicted: budget.TrainBudget
    by_lengths: bool = field(default=False, kw_only=True)

    @property
    def ranks(self) -> int:
        return self.predicted.setup.ranks

    @property
    def title(self) -> str:
        model, peak = self.predicted.setup.model.name, format_bytes(self.predicted.peak_bytes)
        return f"Training {model}: {peak} at the peak, {self.predicted.peak.when}"

    @property
    def question(self) -> Question:
        return TRAIN

    @property
    def asked(self) -> dict[str, Any]:
        return {"setup": self.predicted.setup, "rank": self.predicted.rank, **self.on_card}

    def lines(self) -> Iterator[str]:
        return _lines(self.predicted)

    def sentences(self) -> Iterator[str]:
        need, gpu, room = self.predicted.peak_bytes, self.gpu, self.room
        yield from self._said_of_setup()
        if gpu is None or room is None:
            yield f"One step needs {format_bytes(need)} on each rank."
            return
        yield from self.decides(room, need)
        in_stages = self.predicted.setup.split.pipeline > 1  # whose ranks are not alike, and begin in the middle
        yield from () if self.traced or in_stages else first_over(self.predicted.moments, room)
        if not self.holds(need) and not in_stages:
            yield from advice(changes_that_fit(self.predicted.setup, room, self.by_lengths), room)
        yield from self._accumulated()
        yield from without_cuda(gpu)
        yield from without_bf16(gpu, self.predicted.setup.precision_recipe.activation_format)

    def _said_of_setup(self) -> Iterator[str]:
        """What the setup does not do, though it may seem to."""
        setup = self.predicted.setup
        if setup.zero and setup.ranks == 1:
            yield f"ZeRO stage {setup.zero} shards nothing on one rank: --ranks says how many share the states."
        if setup.adapter and setup.adapter.base:
            yield setup.adapter.recipe
            if setup.loss == FULL and setup.adapter.trainer in OWN_LOSS:
                yield OWN_LOSS[setup.adapter.trainer]
            if setup.model.has_experts:
                yield "Stacked experts stay in 16 bits, as bitsandbytes leaves them; Unsloth quantizes some itself."
        yield from LOSS_SAID.get(setup.loss, ())
        stored = setup.model.config.get("quantization_config")
        if stored and not (setup.adapter and setup.adapter.base and "bitsandbytes" in str(stored)):
            yield "The checkpoint ships quantized; this run starts from it dequantized."
        for tower in setup.model.beside:
            yield f"This is the language model's training alone: its {tower.name} are not in these bytes."

    def _accumulated(self) -> Iterator[str]:
        """What accumulation costs: the gradients of all parameters are alive while the others are computed."""
        setup, need = self.predicted.setup, self.predicted.peak_bytes
        if setup.micro_batches == 1 or setup.split.pipeline > 1:
            return
        alone = budget.train(replace(setup, micro_batches=1), self.gpu or reference_of(setup))
        more = format_bytes(need - alone.peak_bytes)
        cost = f"need {more} more than one" if need > alone.peak_bytes else "need no more than one"
        yield f"{setup.micro_batches:,} accumulated micro-batches {cost}."


def training_answer(
    setup: TrainSetup, gpu: str | Device | None = None, reserve_bytes: int | None = None, rank: int = 0
) -> TrainingAnswer:
    """What a rank of `setup` needs on `gpu`: the peak by part, the formula filled in, whether it fits by the reserve.

    Raises WorkbookError for a model whose activations have no closed form.
    """
    card = device(gpu) if gpu else None
    predicted = budget.train(setup, card or reference_of(setup), rank)
    return TrainingAnswer(predicted.parts, card, predicted, reserve_bytes=reserve_bytes)


def _lines(predicted: budget.TrainBudget) -> Iterator[str]:
    """One line per part of the peak, numbers substituted."""
    explained = adapters_explained(predicted) if predicted.setup.adapter else _explained(predicted)
    tokens = f"{predicted.setup.micro_batch} × {predicted.setup.sequence:,} tokens"
    explained |= {
        "activations": f"{tokens}, {explained['activations']}",
        "logits": f"{tokens} × {predicted.setup.model.vocab:,} vocabulary",
        "workspace": _workspace(predicted),
    }
    for part, size in predicted.parts.items():
        yield row(part, format_bytes(size), explained[part])
    if predicted.paged_bytes:
        text = "of the states, in no part above: unified memory, which the driver moves to the host where room is short"
        yield row("paged", format_bytes(predicted.paged_bytes), text)
    yield row("peak", format_bytes(predicted.peak_bytes), predicted.peak.name)


def _explained(predicted: budget.TrainBudget) -> dict[str, str]:
    setup = predicted.setup
    n, recipe = setup.model.parameters, setup.precision_recipe
    shard = {part: _share(setup, stage) for part, stage in (("optimizer", 1), ("gradients", 2), ("parameters", 3))}
    return {
        "parameters": f"{n:,} × {recipe.weight_bytes} B{shard['parameters']}",
        "gradients": _gradients(setup) + shard["gradients"],
        "optimizer": f"({_states(setup)}){shard['optimizer']}" if shard["optimizer"] else _states(setup),
        "activations": _per_layer(predicted),
    }


def _share(setup: TrainSetup, stage: int) -> str:
    """What a rank has of a part that ZeRO shards from `stage` on."""
    if setup.split.by_parts:
        return f", and of these its part on {setup.split}"
    return f" / {setup.ranks} ranks" if setup.zero >= stage and setup.ranks > 1 else ""


def adapters_explained(predicted: budget.TrainBudget) -> dict[str, str]:
    """The same where adapters alone are trained: what is frozen, what is trained, and what the layers keep for it."""
    setup, adapter = predicted.setup, predicted.setup.adapter
    assert adapter
    trained, frozen, width = adapter.parameters(setup.model), setup.model.parameters, StepWidths.of(setup).weights
    base = f"{frozen:,} × {width} B"
    if adapter.base:
        packed = sum(group.weights for group in setup.model.linears() if group.part in ("attention", "mlp"))
        base = f"{packed:,} in {adapter.base}, {frozen - packed:,} × {width} B"
    return {
        "parameters": f"{base}, frozen; {trained:,} × {adapter.width} B of adapters",
        "gradients": f"{_summed(setup)} {trained:,} × {adapter.width} B",
        "optimizer": _states(setup),
        "activations": f"{format_bytes(predicted.kept_bytes)} kept by {len(setup.model.layers)} layers"
        f"{'' if setup.checkpointing == 'none' else f', checkpointed: {setup.checkpointing}'}",
    }


def _workspace(predicted: budget.TrainBudget) -> str:
    """The libraries' part of it by its size: it is no tensor, and there at every moment."""
    libraries = f", and {format_bytes(predicted.library_bytes)} of cuBLAS" if predicted.library_bytes else ""
    casts = " and casts to FP8" if predicted.setup.precision_recipe.linear_format else ""
    return f"temporaries{casts} of the moment{libraries}"


def _gradients(setup: TrainSetup) -> str:
    """Of a single micro-batch some gradients are gone, or not yet made, at the peak; of several there is the sum."""
    if setup.in_backward:
        return "of one weight at a time: it is updated in the backward"
    return f"{_summed(setup)} {setup.model.parameters:,} × {setup.precision_recipe.grad_bytes} B"


def _summed(setup: TrainSetup) -> str:
    return "up to" if setup.micro_batches == 1 else f"of {setup.micro_batches:,} micro-batches the sum:"


def _states(setup: TrainSetup) -> str:
    """The optimizer's states in words and numbers, the master copy with them."""
    rule, recipe, adapter = setup.optimizer_rule, setup.precision_recipe, setup.adapter
    n, width = setup.model.parameters, recipe.optimized_bytes
    if adapter:
        n, width = adapter.parameters(setup.model), adapter.width
    master = f"{n:,} × {recipe.master_bytes} B of master copy, " if recipe.master_bytes else ""
    if isinstance(rule, Blockwise):
        beside = ", FP32 for the embeddings" if rule.embeddings else ""
        return f"{master}{_count(rule)} × {n:,} × 1 B, a scale per {BLOCK_VALUES}{beside}"
    if rule.factored:
        return f"{master}a row and a column for each matrix"
    if isinstance(rule, LowRank):
        projector = ", and a projector" if rule.projector else ""
        return f"{master}{_count(rule)} of rank {rule.rank}{projector}; AdamW's for embeddings, head and vectors"
    if rule.whole_matrices:
        return f"{master}{_count(rule)} for hidden matrices, 2 for the rest, × {width} B"
    return f"{master}{_count(rule)} × {n:,} × {rule.state_width or width} B"


def _count(rule: Optimizer) -> str:
    return f"{rule.states} state{'' if rule.states == 1 else 's'}"


def _per_layer(predicted: budget.TrainBudget) -> str:
    setup = predicted.setup
    sizes = {budget.bytes_saved_by(setup, layer) for layer in set(setup.model.layers)}
    saved = " to ".join(format_bytes(size) for size in dict.fromkeys((min(sizes), max(sizes))))
    layers, every = len(setup.model.layers), setup.checkpoint_every
    if setup.split.by_parts:
        policy = "" if every == 0 else f", checkpointed: {setup.checkpointing}"
        return f"{format_bytes(predicted.kept_bytes)} kept by the rank's layers{policy}"
    if every is None:
        kept = format_bytes(predicted.kept_bytes)
        return f"{layers} layers under {setup.checkpointing} keep {kept}; {saved} saved by one"
    if not every:
        return f"{saved} saved by each of {layers} layers"
    return f"{layers} layers checkpointed by {every}; {saved} a layer while its segment is recomputed"


def changes_that_fit(setup: TrainSetup, room: Room, by_lengths: bool = False) -> Iterator[Fit]:
    """Changes that bring the peak into `room`, the cheapest in time and quality first, then adapters.

    Only what `setup` does not do already is offered, on one rank; with more GPUs they are in `helpers.memory.fit`. None
    changes the micro-batch where it is told `by_lengths`.
    """
    asked = (setup, room.for_tensors_bytes, room.card)
    for fit in chain(ladder(*asked), adapted(*asked)):
        if not (by_lengths and "micro_batch" in fit.fields):
            yield fit


def advice(fits: Iterator[Fit], room: Room) -> Iterator[str]:
    """The cheapest change with its cost, and the next that is not the same with more."""
    first = next(fits, None)
    if first is None:
        yield NO_CHANGE
        return
    yield f"The cheapest change that fits: {_offer(first, room)}"
    parts = set(first.change.split(", "))
    others = (fit for fit in islice(fits, LOOKED_AT) if not parts <= set(fit.change.split(", ")))
    yield from (f"The next: {_offer(other, room)}" for other in islice(others, 1))


def _offer(fit: Fit, room: Room) -> str:
    return f"{fit.change} ({peak_in(room, fit.peak_bytes)}). Its cost: {fit.costs}."


def peak_in(room: Room, peak_bytes: int) -> str:
    """A peak that fits `room`, and what it takes beside its tensors."""
    return format_bytes(peak_bytes) + ("" if room.leaves_for_holes(peak_bytes) else ", with expandable segments")


def training_memory(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `training_memory(model="gpt2", gpu="rtx-4090")`."""
    return Calculator(TRAIN, start)


TRAIN = Question(
    "train",
    "one training step, per rank",
    training_answer,
    changed(
        (MODEL, *TRAINED, *ADAPTED, *SPLIT, GPU, RESERVE, ANY_CONFIG),
        model={"steps": trained_models(), "start": "llama-2-7b"},
        sequence={"within_positions": False},
        gpu={"start": "h100-80gb"},
    ),
    setup=TrainSetup,
    title="Training memory",
    asks="What does a training step need, and does it fit?",
    invites="Try 8-bit Adam. It fits, so take two sequences: at once (micro-batch), or one by one (accumulated)?",
    controls=(
        *("model", "config", "gpu", "precision", "optimizer", "micro_batch", "micro_batches", "sequence"),
        *("checkpointing", "attention", "reserve"),
    ),
    front=("model", "gpu", "optimizer", "micro_batch", "checkpointing"),
    presets={
        "my 24 GB card": {"gpu": "rtx-4090-24gb"},
        "one H100": {"gpu": "h100-80gb"},
        "one B200": {"gpu": "b200-180gb"},
    },
)
