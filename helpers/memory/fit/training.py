"""The ladder of a training step: optimizer, checkpointing, micro-batch, precision, then ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from ...catalog.setup import TrainSetup
from ..closed_form import budget
from ..closed_form.breakdown import rounded
from .change import Fit

MAX_RANKS = 1024
FUSED, EIGHT_BIT = "the fused optimizer", "8-bit Adam"
CHECKPOINT, ONE, BF16 = "checkpoint every layer", "micro-batch 1", "pure BF16 (watch the loss)"
MASTER = "BF16 weights with an FP32 master copy"
LADDER = (
    (FUSED,),
    (CHECKPOINT,),
    (FUSED, CHECKPOINT),
    (EIGHT_BIT,),
    (EIGHT_BIT, CHECKPOINT),
    (ONE,),
    (ONE, CHECKPOINT),
    (ONE, FUSED, CHECKPOINT),
    (ONE, EIGHT_BIT, CHECKPOINT),
    (BF16,),
    (BF16, ONE, CHECKPOINT),
    (BF16, ONE, EIGHT_BIT),
    (BF16, ONE, EIGHT_BIT, CHECKPOINT),
)
COSTS = {
    FUSED: "nothing",
    EIGHT_BIT: "states rounded to 8 bits (bitsandbytes)",
    CHECKPOINT: "up to a third more compute",
    ONE: "smaller kernels",
    BF16: "small updates round to nothing",
    MASTER: "no autocast, whose BF16 copies of the weights are not sharded",
}
_BESIDE_RANKS = {CHECKPOINT: {"checkpointing": "full"}, MASTER: {"precision": "megatron-bf16"}}


def ladder(setup: TrainSetup, capacity_bytes: int) -> Iterator[Fit]:
    """The rungs of LADDER that fit one rank of `capacity_bytes`, in order; only what `setup` does not do already.

    "micro-batch 1" makes the batch smaller here; `training_changes` keeps the batch, by accumulation.
    """
    for names, fields in _rungs(setup):
        need = budget.train(replace(setup, **fields), cuda=True).peak_bytes
        if need <= capacity_bytes:
            yield Fit(", ".join(names), need, "; ".join(COSTS[name] for name in names), fields)


def training_changes(setup: TrainSetup, capacity_bytes: int) -> Iterator[Fit]:
    """The rungs of LADDER that fit and of which no part suffices, then ZeRO-3. The optimizer sees the same batch.

    Raises WorkbookError for a model whose activations have no closed form.
    """
    taken: list[frozenset[str]] = []
    for names, fields in _rungs(setup):
        if any(part <= set(names) for part in taken):
            continue
        found = _rung(setup, names, fields, capacity_bytes)
        if found:
            taken.append(frozenset(names))
            yield found
    yield from _sharded(setup, capacity_bytes)


def accumulated_peak_bytes(setup: TrainSetup, cuda: bool = True) -> int:
    """The peak of a step that runs several micro-batches before the optimizer: from the second pass on, all
    gradients of the model are alive, and beside them the new one that is being added to its sum.

    Where the loss enters that is lm_head's, inside a layer at most the largest of its tensors. Held against the
    meter on two passes of small Llama, GPT-2, Qwen2 and OPT models: within 0.3 %.
    Llama-2-7B, pure BF16, fused AdamW, sequence 2048: 50.2 GiB, as without: the optimizer's step is the peak of both.
    """
    moments = budget.train(setup, cuda).moments
    whole = next(moment.parts["gradients"] for moment in moments if moment.name == "optimizer step")
    width, hidden = setup.precision_recipe.grad_bytes, setup.model.hidden
    head = rounded(setup.model.vocab * hidden * width)
    layer = max(rounded(prod(shape) * width) for layer in setup.model.layers for shape in layer.tensors(hidden))

    def being_added(name: str) -> int:
        if name in ("backward of lm_head", "backward of the embedding"):
            return head
        return layer if name.startswith("backward of layer") else 0

    return max(moment.total - moment.parts.get("gradients", 0) + whole + being_added(moment.name) for moment in moments)


def _rungs(setup: TrainSetup) -> Iterator[tuple[tuple[str, ...], dict[str, object]]]:
    cures = _cures(setup)
    offered = (tuple(name for name in names if name in cures) for names in LADDER)
    for names in dict.fromkeys(names for names in offered if names):
        yield names, {key: value for name in names for key, value in cures[name].items()}


def _cures(setup: TrainSetup) -> dict[str, dict[str, object]]:
    """What could still be changed, by name."""
    adam = setup.optimizer.startswith("adamw")
    possible = {
        FUSED: ({"optimizer": "adamw-fused"}, setup.optimizer == "adamw-foreach"),
        EIGHT_BIT: ({"optimizer": "adamw-8bit"}, adam and setup.optimizer != "adamw-8bit"),
        CHECKPOINT: ({"checkpointing": "full"}, setup.checkpoint_every != 1),
        ONE: ({"micro_batch": 1}, setup.micro_batch > 1),
        BF16: ({"precision": "bf16"}, setup.precision != "bf16"),
    }
    return {name: change for name, (change, offered) in possible.items() if offered}


def _rung(setup: TrainSetup, names: tuple[str, ...], fields: dict, capacity_bytes: int) -> Fit | None:
    costs = "; ".join(COSTS[name] for name in names)
    if ONE not in names:
        need = budget.train(replace(setup, **fields), cuda=True).peak_bytes
        return Fit(", ".join(names), need, costs, fields) if need <= capacity_bytes else None
    for micro_batch in _divisors_below(setup.micro_batch):
        smaller = {**fields, "micro_batch": micro_batch}
        need = accumulated_peak_bytes(replace(setup, **smaller))
        if need <= capacity_bytes:
            passes = f"micro-batch {micro_batch} × {setup.micro_batch // micro_batch} accumulated passes"
            return Fit(", ".join(passes if name == ONE else name for name in names), need, costs, smaller)
    return None


def _divisors_below(count: int) -> Iterator[int]:
    """The proper divisors, largest first: the largest micro-batch that fits keeps the kernels busiest."""
    return (part for part in range(count // 2, 0, -1) if count % part == 0)


def _sharded(setup: TrainSetup, capacity_bytes: int) -> Iterator[Fit]:
    """ZeRO-3 over the fewest ranks that suffice; with more changes beside it where that takes fewer."""
    fewest = MAX_RANKS + 1
    for names in ((), (CHECKPOINT,), (CHECKPOINT, MASTER)):
        extra = {key: value for name in names for key, value in _BESIDE_RANKS[name].items()}
        if any(getattr(setup, key) == value for key, value in extra.items()):
            continue
        for ranks in _rank_counts(setup, fewest):
            fields = {"zero": 3, "ranks": ranks, **extra}
            need = budget.train(replace(setup, **fields), cuda=True).peak_bytes
            if need <= capacity_bytes:
                fewest = ranks
                costs = (f"{ranks} such GPUs and a fast link between them", *(COSTS[name] for name in names))
                yield Fit(", ".join((f"ZeRO-3 (FSDP) over {ranks} ranks", *names)), need, "; ".join(costs), fields)
                break


def _rank_counts(setup: TrainSetup, below: int) -> Iterator[int]:
    """The ranks of the setup if they do not shard everything yet, and their doubles."""
    ranks = setup.ranks if setup.ranks > 1 and setup.zero < 3 else 2 * setup.ranks
    while ranks < below:
        yield ranks
        ranks *= 2
