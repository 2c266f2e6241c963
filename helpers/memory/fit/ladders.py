"""The ladder of a training step: its changes from the cheapest to the dearest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ...catalog.adapters import Adapter
from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError
from ...catalog.hardware import reference_of
from ...catalog.losses import FULL, LIGER
from ...catalog.setup_fields import flag_of
from ...catalog.split import Split
from ...catalog.train_setup import TrainSetup
from .. import budget
from .reserves import reserve_growth

Fields = Mapping[str, Any]  # fields of a setup, each of its own type
MAX_RANKS = 1024


@dataclass(frozen=True)
class Fit:
    """A change under which a setup fits: the peak it leads to, what it costs, the fields of the setup that it sets."""

    change: str
    peak_bytes: int
    costs: str
    fields: Fields = field(default_factory=dict)
    device: str = ""

    @property
    def flags(self) -> str:
        """The change as flags of `workbook estimate`.

        >>> Fit("8-bit Adam", 1, "", {"optimizer": "adamw-8bit"}).flags
        '--optimizer adamw-8bit'
        """
        gpu = [f"--gpu {self.device}"] if self.device else []
        return " ".join([*(_flags_of(name, value) for name, value in self.fields.items()), *gpu])

    @property
    def figures(self) -> dict[str, object]:
        """For JSON."""
        return {
            "change": self.change,
            "peak_bytes": self.peak_bytes,
            "costs": self.costs,
            "fields": _plain(self.fields),
            "device": self.device or None,
        }


def _flags_of(name: str, value: object) -> str:
    if isinstance(value, Adapter):
        return _adapter_flags(value)
    if isinstance(value, Split):
        unsharded = () if value.zero or value.by_parts else (("--zero", 0),)
        return " ".join(str(word) for option in (*unsharded, *split_flags(value)) for word in option)
    return f"{flag_of(name)} {value}"


def _plain(fields: Fields) -> dict[str, object]:
    """A split is what its flags say."""
    rest = {n: str(value) if isinstance(value, Adapter) else value for n, value in fields.items() if n != "split"}
    split = fields.get("split")
    if split is None:
        return rest
    if not split.by_parts:
        return {"zero": split.zero, "ranks": split.ranks, **rest}
    return {str(flag).strip("-").replace("-", "_"): value for flag, value in split_flags(split)} | rest


def split_flags(split: Split) -> Iterator[tuple[object, ...]]:
    """The flags of what is not as `Split` has it by default; no flag says what gradients are reduced in.

    >>> list(split_flags(Split(8, zero=3))), list(split_flags(Split(fsdp=8, tensor=2)))
    ([('--zero', 3), ('--ranks', 8)], [('--fsdp', 8), ('--tensor-parallel', 2)])
    """
    flags = {"zero": "--zero", "data": "--ranks", "fsdp": "--fsdp", "tensor": "--tensor-parallel"}
    flags |= {"pipeline": "--pipeline", "schedule": "--schedule"}
    usual = Split()
    for name, flag in flags.items():
        if (value := getattr(split, name)) != getattr(usual, name):
            yield flag, value
    if not split.reshard:
        yield ("--no-reshard",)


def _adapter_flags(adapter: Adapter) -> str:
    """
    >>> _adapter_flags(Adapter("lora", 8, "all-linear", base="nf4"))
    '--adapter lora --lora-rank 8 --lora-targets all-linear --lora-base nf4'
    """
    targets = "" if adapter.targets == Adapter().targets else f" --lora-targets {','.join(adapter.targets)}"
    base = f" --lora-base {adapter.base}" if adapter.base else ""
    more = "".join(f" {flag}" + "".join(f" {word}" for word in words) for flag, *words in recipe_flags(adapter))
    return f"--adapter {adapter.kind} --lora-rank {adapter.rank}{targets}{base}{more}"


def recipe_flags(adapter: Adapter) -> Iterator[tuple[str, ...]]:
    """The flags of what is not as `Adapter` has it by default.

    >>> list(recipe_flags(Adapter(base="nf4").trained_by("trl")))
    [('--no-prepared',), ('--adapter-dtype', 'bf16')]
    """
    if not adapter.prepared:
        yield ("--no-prepared",)
    if adapter.adapter_dtype != "fp32":
        yield "--adapter-dtype", adapter.adapter_dtype
    if adapter.dropout:
        yield "--lora-dropout", f"{adapter.dropout:g}"


@dataclass(frozen=True, eq=False)
class Rung:
    """One change of a training setup: `name` and `costs` are for people, `fields` is the change."""

    name: str
    costs: str
    fields: Fields


FUSED = Rung("the fused optimizer", "nothing", {"optimizer": "adamw-fused"})
EIGHT_BIT = Rung("8-bit Adam", "states rounded to 8 bits (bitsandbytes)", {"optimizer": "adamw-8bit"})
CHECKPOINT = Rung("checkpoint every layer", "up to a third more compute", {"checkpointing": "full"})
ONE = Rung("micro-batch 1", "smaller kernels", {"micro_batch": 1})
BF16 = Rung("pure BF16 (watch the loss)", "small updates round to nothing", {"precision": "bf16"})
MASTER = Rung(
    "BF16 weights with an FP32 master copy",
    "no autocast, whose BF16 copies of the weights are not sharded",
    {"precision": "megatron-bf16"},
)
LIGER_LOSS = Rung("Liger's loss", "nothing but the package liger-kernel (use_liger_kernel=True)", {"loss": LIGER})
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
    (LIGER_LOSS, CHECKPOINT),
    (LIGER_LOSS, ONE, EIGHT_BIT, CHECKPOINT),
    (LIGER_LOSS, BF16, ONE, EIGHT_BIT, CHECKPOINT),
)
# Of a step that trains adapters: what is frozen may be stored in fewer bits, and few states are left to shrink.
STORED = Rung("the base in BF16", "nothing, where the checkpoint is BF16", {"precision": "bf16"})
Rungs = tuple[Rung, ...]
BESIDE_ADAPTERS = ((), (CHECKPOINT,), (ONE, CHECKPOINT))
BESIDE_RANKS = ((), (CHECKPOINT,), (CHECKPOINT, MASTER))


def ladder(setup: TrainSetup, capacity_bytes: int, gpu: str | Device | None = None) -> Iterator[Fit]:
    """The rungs of LADDER that fit one rank of `capacity_bytes`, in order; only what `setup` does not do already.

    "micro-batch 1" makes the batch smaller here; `training_changes` keeps the batch, by accumulation.
    """
    for rungs in _offered(setup):
        fields = _fields(rungs)
        if need := _fitting_peak(replace(setup, **fields), capacity_bytes, gpu):
            yield Fit(_names(rungs), need, _costs(rungs), fields)


def training_changes(
    setup: TrainSetup, capacity_bytes: int, gpu: str | Device | None = None, by_ranks: bool = False
) -> Iterator[Fit]:
    """The rungs of LADDER that fit and of which no part suffices, then LoRA and QLoRA, then ZeRO-3 over more GPUs.

    Over the ranks that are there already ZeRO-3 comes before adapters: it trains every weight. The optimizer sees the
    same batch. `by_ranks`: more ranks than the setup's have that less for tensors which their buffers take. Raises
    WorkbookError for a model whose activations have no closed form.
    """
    taken: list[set[Rung]] = []
    for rungs in _offered(setup):
        if any(part <= set(rungs) for part in taken):
            continue
        found = _same_batch(setup, rungs, capacity_bytes, gpu)
        if found:
            taken.append(set(rungs))
            yield found
    sharded = list(_sharded(setup, capacity_bytes, gpu, by_ranks))
    there = [fit for fit in sharded if fit.fields["split"].ranks == setup.ranks]
    yield from there
    yield from adapted(setup, capacity_bytes, gpu)
    yield from sharded[len(there) :]


def adapted(setup: TrainSetup, capacity_bytes: int, gpu: str | Device | None = None) -> Iterator[Fit]:
    """LoRA and QLoRA in place of training every weight, each with the first of BESIDE_ADAPTERS that makes it fit.

    Nothing where `setup` trains adapters already, or updates in the backward, which no flag of an offer takes back.
    """
    if setup.adapter or setup.in_backward:
        return
    for rung in _methods(setup):
        for beside in dict.fromkeys(tuple(one for one in rungs if _changes(setup, one)) for rungs in BESIDE_ADAPTERS):
            with suppress(WorkbookError):  # a model without linear layers of these names
                if found := _same_batch(setup, (rung, *beside), capacity_bytes, gpu):
                    yield found
                    break


def _methods(setup: TrainSetup) -> Iterator[Rung]:
    """LoRA in the type that the model was published in; QLoRA under autocast, as its FP32 hidden states ask."""
    unsharded = {"split": replace(setup.split, zero=0), "offload_optimizer": "none", "offload_parameters": "none"}
    rest = {name: value for name, value in unsharded.items() if getattr(setup, name) != value}
    for method, base, usual in (("LoRA", None, "bf16"), ("QLoRA", "nf4-dq", "autocast-bf16")):
        adapter = Adapter(base=base)
        precision = setup.precision if setup.precision in ("bf16", "fp32") else usual
        costs = f"trains an adapter, not every weight; the model stays as it is{', rounded to 4 bits' if base else ''}"
        yield Rung(f"{method} of rank {adapter.rank}", costs, {"adapter": adapter, "precision": precision, **rest})


def _changes(setup: TrainSetup, rung: Rung) -> bool:
    return setup.micro_batch > 1 if rung is ONE else setup.checkpoint_every != 1


def _offered(setup: TrainSetup) -> Iterable[Rungs]:
    """The rungs of LADDER, each without what `setup` does already, and each once."""
    if setup.adapter:
        return _offered_to_adapters(setup, setup.adapter)
    possible = {
        FUSED: setup.optimizer == "adamw-foreach",
        EIGHT_BIT: setup.optimizer.startswith("adamw") and "8bit" not in setup.optimizer,
        CHECKPOINT: setup.checkpoint_every != 1,
        ONE: setup.micro_batch > 1,
        BF16: setup.precision_recipe.optimized_bytes != 2,
        LIGER_LOSS: _takes_liger(setup),
    }
    left = (tuple(rung for rung in rungs if possible[rung]) for rungs in LADDER)
    return dict.fromkeys(rungs for rungs in left if rungs)


def _offered_to_adapters(setup: TrainSetup, adapter: Adapter) -> Iterable[Rungs]:
    costs = "weights rounded to 4 bits, and decoded for each product"
    quantized = Rung("the base in NF4 (QLoRA)", costs, {"adapter": replace(adapter, base="nf4-dq")})
    possible = {
        FUSED: setup.optimizer == "adamw-foreach",
        STORED: not adapter.base and setup.precision_recipe.weight_bytes == 4,
        CHECKPOINT: setup.checkpoint_every != 1,
        quantized: adapter.base is None,
        ONE: setup.micro_batch > 1,
        LIGER_LOSS: _takes_liger(setup),
    }
    alone = [rung for rung, can in possible.items() if can]
    pairs = [(STORED, CHECKPOINT), (CHECKPOINT, quantized), (ONE, CHECKPOINT), (ONE, CHECKPOINT, quantized)]
    pairs += [(LIGER_LOSS, CHECKPOINT), (LIGER_LOSS, ONE, CHECKPOINT), (LIGER_LOSS, ONE, CHECKPOINT, quantized)]
    rungs = (*((rung,) for rung in alone), *(tuple(rung for rung in group if possible[rung]) for group in pairs))
    return dict.fromkeys(group for group in rungs if group)


def _takes_liger(setup: TrainSetup) -> bool:
    """Its loss owns the head's weight: on one rank, and without a bias."""
    return setup.loss == FULL and setup.ranks == 1 and not setup.zero and not setup.model.lm_head_bias


def _fields(rungs: Rungs) -> dict[str, Any]:
    return {name: value for rung in rungs for name, value in rung.fields.items()}


def _names(rungs: Rungs) -> str:
    return ", ".join(rung.name for rung in rungs)


def _costs(rungs: Rungs) -> str:
    return "; ".join(rung.costs for rung in rungs)


def _same_batch(setup: TrainSetup, rungs: Rungs, capacity_bytes: int, gpu: str | Device | None) -> Fit | None:
    """The rungs without a smaller batch: instead of micro-batch 1 the largest that fits, accumulated to the same."""
    fields = _fields(rungs)
    if ONE not in rungs:
        need = _fitting_peak(replace(setup, **fields), capacity_bytes, gpu)
        return Fit(_names(rungs), need, _costs(rungs), fields) if need else None
    if setup.in_backward:  # which steps after each pass, so none accumulate
        return None
    for micro_batch in _divisors_below(setup.micro_batch):
        passes = setup.micro_batches * setup.micro_batch // micro_batch
        fields |= {"micro_batch": micro_batch, "micro_batches": passes}
        if need := _fitting_peak(replace(setup, **fields), capacity_bytes, gpu):
            smaller = f"micro-batch {micro_batch} × {passes} accumulated passes"
            names = ", ".join(smaller if rung is ONE else rung.name for rung in rungs)
            return Fit(names, need, _costs(rungs), fields)
    return None


def _fitting_peak(setup: TrainSetup, capacity_bytes: int, gpu: str | Device | None) -> int | None:
    """The peak of a changed setup if it fits; None if not, or if `gpu` has no kernel for it, as a T4 for BF16."""
    try:
        peak = budget.train(setup, gpu or reference_of(setup)).peak_bytes
    except WorkbookError:
        return None
    return peak if peak <= capacity_bytes else None


def _divisors_below(count: int) -> Iterator[int]:
    """The proper divisors, largest first: the largest micro-batch that fits keeps the kernels busiest."""
    return (part for part in range(count // 2, 0, -1) if count % part == 0)


def _sharded(setup: TrainSetup, capacity_bytes: int, gpu: str | Device | None, by_ranks: bool) -> Iterator[Fit]:
    """ZeRO-3 over the fewest ranks that suffice; with more changes beside it where that takes fewer."""
    refused = setup.in_backward or setup.adapter or setup.loss != FULL or setup.optimizer_rule.whole_matrices
    if refused:  # by TrainSetup: these are not sharded
        return
    if setup.precision_recipe.linear_format:  # no closed form there, and the rungs would leave FP8
        return
    fewest, card = MAX_RANKS + 1, device(gpu or reference_of(setup))
    for rungs in BESIDE_RANKS:
        extra = _fields(rungs)
        if any(getattr(setup, name) == value for name, value in extra.items()):
            continue
        for split in _more_ranks(setup, fewest):
            fields, ranks = {"split": split, **extra}, split.ranks
            buffers = reserve_growth(card, setup.ranks, ranks) if by_ranks else 0
            if need := _fitting_peak(replace(setup, **fields), capacity_bytes - buffers, gpu):
                fewest = ranks
                costs = (f"{ranks} such GPUs and a fast link between them", *(rung.costs for rung in rungs))
                way = "FSDP2" if split.by_parts else "ZeRO-3"
                names = (f"{way} over {ranks} ranks", *(rung.name for rung in rungs))
                yield Fit(", ".join(names), need, "; ".join(costs), fields)
                break


def _more_ranks(setup: TrainSetup, below: int) -> Iterator[Split]:
    """The ranks of the setup if they do not shard everything yet, and their doubles; FSDP's are doubled as they are."""
    split = setup.split
    if split.by_parts and split.fsdp == 1:
        return
    split = replace(split, fsdp=2 * split.fsdp) if split.fsdp > 1 else Split(split.data, zero=3)
    if setup.zero == 3 or setup.split.ranks == 1:
        split = replace(split, data=2 * split.data)
    while split.ranks < below:
        yield split
        split = replace(split, fsdp=2 * split.fsdp) if split.fsdp > 1 else replace(split, data=2 * split.data)
