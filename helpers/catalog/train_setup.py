"""A training run, described once: what is trained, how, on how many ranks. Frozen, and checked when made."""

from __future__ import annotations

from dataclasses import dataclass

from .adapters import Adapter
from .errors import WorkbookError, require_whole
from .losses import CUT, FULL, LOSSES, TRL
from .optimizers import Optimizer, optimizer
from .policies import PolicySegment, layout
from .recipes import PRECISIONS, Precision
from .setup_fields import MAX_COUNT, MAX_TOKENS, ModelField, check_positions, known_name, set_field
from .shape import ModelShape
from .split import ONE_GPU, Split

ATTENTIONS = ("eager", "sdpa")
ADAPTED_PRECISIONS = ("autocast-bf16", "autocast-bf16-on-bf16", "bf16", "fp32")  # with a frozen base
OFFLOADS = ("none", "cpu", "nvme")  # DeepSpeed's names of `offload_optimizer` and `offload_param` devices


@dataclass(frozen=True)
class TrainSetup:
    """One training run: a model and every choice that moves its memory, per rank.

    `model` may be a ModelShape, a catalogue name, a path to a config.json, or a config; it is resolved at
    once. `checkpointing` is "none", "full" (every layer recomputed), "every:K" (segments of K layers, the input of
    each kept) or another of `policies.POLICIES`. `optimizer="adamw"` becomes "adamw-foreach", which is what PyTorch
    runs. `offload_optimizer` (from ZeRO stage 1 on) and `offload_parameters` (stage 3) name the tier that a rank's
    shards live in: "none" is the GPU's own memory, "cpu" the host's, "nvme" a disk. `micro_batches` are accumulated
    before the optimizer steps (`gradient_accumulation_steps` in Transformers, accelerate and DeepSpeed). `in_backward`
    updates each weight as soon as its gradient is whole and frees that, on one rank, from one micro-batch. With an
    `adapter` nothing else is trained. `loss` is "full", which holds all logits; "liger", Liger's, fused with the head;
    or "cce", cut cross-entropy. `masked` says that attention is given a mask of T x T for each row: its batch has
    shorter sequences, which are padded, or a row has several, which are packed. `scored` tokens at the end of each
    sequence have a loss, all but the first if it is None; TRL's loss alone computes nothing for the others. Raises
    WorkbookError.

    >>> setup = TrainSetup("llama-2-7b", precision="bf16", checkpointing="every:4")
    >>> setup.model.parameters, setup.optimizer, setup.checkpoint_every
    (6738415616, 'adamw-foreach', 4)
    """

    model: ModelField = ModelField()  # noqa: RUF009 - a descriptor, and no default
    precision: str = "autocast-bf16"
    optimizer: str = "adamw"
    micro_batch: int = 1
    sequence: int = 2048
    checkpointing: str = "none"
    attention: str = "sdpa"
    split: Split = ONE_GPU
    offload_optimizer: str = "none"
    offload_parameters: str = "none"
    micro_batches: int = 1
    in_backward: bool = False
    adapter: Adapter | None = None
    loss: str = FULL
    masked: bool = False
    scored: int | None = None

    def __post_init__(self) -> None:
        set_field(self, "loss", known_name("loss", self.loss, LOSSES))
        set_field(self, "precision", known_name("precision", self.precision, PRECISIONS))
        set_field(self, "optimizer", optimizer(self.optimizer).name)
        set_field(self, "attention", known_name("attention", self.attention, ATTENTIONS))
        set_field(self, "checkpointing", str(self.checkpointing).lower())
        require_whole("micro_batch", self.micro_batch, most=MAX_COUNT)
        require_whole("micro_batches", self.micro_batches, most=MAX_COUNT, do="pass 1 for a step without accumulation")
        require_whole("sequence", self.sequence, most=MAX_TOKENS)
        if not isinstance(self.split, Split):
            do = "pass split=Split(data=8, zero=3), or leave it out for one GPU"
            raise WorkbookError(f"split is {self.split!r}", "a Split of helpers.catalog", do)
        _check_offload(self, "offload_optimizer", 1, "optimizer states are sharded from stage 1 on")
        _check_offload(self, "offload_parameters", 3, "parameters are sharded at stage 3 only")
        check_positions("sequence", self.sequence, self.model)
        layout(self.checkpointing, len(self.model.layers))
        _check_trainable(self.model)
        _check_whole_matrices(self)
        _check_in_backward(self)
        _check_adapter(self)
        _check_loss(self)
        _check_rows(self)

    @property
    def zero(self) -> int:
        """The split's stage of ZeRO."""
        return self.split.zero

    @property
    def ranks(self) -> int:
        """GPUs in all."""
        return self.split.ranks

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.micro_batch * self.sequence

    @property
    def scored_tokens(self) -> int:
        """Tokens of one micro-batch that have a loss: none of them is the first of its sequence."""
        return self.micro_batch * (self.sequence - 1 if self.scored is None else self.scored)

    @property
    def segments(self) -> tuple[PolicySegment, ...]:
        """The decoder layers as `checkpointing` divides them, and what happens to each part."""
        return layout(self.checkpointing, len(self.model.layers))

    @property
    def checkpoint_every(self) -> int | None:
        """Layers per recomputed segment of none (0), full (1), every:K and sqrt-n; None where there is no such K."""
        named = {"none": 0, "full": 1, "sqrt-n": self.segments[0].stop}
        word, _, count = self.checkpointing.partition(":")
        return int(count) if word == "every" else named.get(self.checkpointing)

    @property
    def precision_recipe(self) -> Precision:
        return PRECISIONS[self.precision]

    @property
    def attention_format(self) -> str:
        """What attention computes in: of a frozen base, the type of its hidden states, unless autocast casts them.

        >>> from helpers.catalog.adapters import Adapter
        >>> TrainSetup("llama-2-7b", precision="bf16", adapter=Adapter(base="nf4")).attention_format
        'fp32'
        """
        adapter, usual = self.adapter, self.precision_recipe.activation_format
        if adapter is None or self.precision_recipe.autocast:
            return usual
        if adapter.base:
            return "fp32" if adapter.prepared else adapter.dtype
        return usual if usual == "fp32" else adapter.dtype

    @property
    def optimizer_rule(self) -> Optimizer:
        return optimizer(self.optimizer)


def _check_offload(setup: TrainSetup, name: str, stage: int, reason: str) -> None:
    """Shards move to another tier, so there must be shards; one rank has one, the whole."""
    tier = known_name(f"tier for {name}", getattr(setup, name), OFFLOADS)
    set_field(setup, name, tier)
    if tier != "none" and setup.zero < stage:
        do = f"choose zero={stage}, on one rank too, or {name}='none'"
        raise WorkbookError(f"{name} is {tier!r} at ZeRO stage {setup.zero}", f"stage {stage} or more: {reason}", do)


def _check_trainable(model: ModelShape) -> None:
    if model.stored:
        do = "name the model that it was made from, by its name or its config.json"
        raise WorkbookError(f"{model.name} is a GGUF file, which is not trained", "a model in 16 or 32 bits", do)


def _check_whole_matrices(setup: TrainSetup) -> None:
    if setup.zero and setup.optimizer_rule.whole_matrices:
        what = f"{setup.optimizer} at ZeRO stage {setup.zero}"
        expected = "stage 0: it updates whole matrices, and a rank's shard is none"
        raise WorkbookError(what, expected, "choose zero=0, or optimizer='adamw-8bit', whose states are divided")


def _check_in_backward(setup: TrainSetup) -> None:
    """A gradient that waits to be added up, averaged over ranks or kept in FP32 cannot be freed at once."""
    if not isinstance(setup.in_backward, bool):
        raise WorkbookError(f"in_backward is {setup.in_backward!r}", "True or False", "pass in_backward=True")
    waits = {
        f"{setup.micro_batches} micro-batches": setup.micro_batches > 1,
        f"{setup.ranks} ranks": setup.ranks > 1,
        f"ZeRO stage {setup.zero}": setup.zero > 0,
        "an FP32 main gradient (megatron-bf16)": setup.precision == "megatron-bf16",
    }
    for what in (what for what, so in waits.items() if so and setup.in_backward):
        expected = "one micro-batch on one rank, whose gradients nothing waits for"
        raise WorkbookError(f"an optimizer in the backward with {what}", expected, "choose in_backward=False")


def _check_adapter(setup: TrainSetup) -> None:
    """A frozen base needs no master copy and no casts for gradients of weights; what shards it, nobody compared."""
    adapter = setup.adapter
    if adapter is None:
        return
    if not isinstance(adapter, Adapter):
        do = "pass adapter=Adapter('lora', rank=16), or None"
        raise WorkbookError(f"adapter is {adapter!r}", "an Adapter of helpers.catalog", do)
    adapter.require_targets(setup.model)
    if setup.precision not in ADAPTED_PRECISIONS:
        do = "pass precision='bf16': what is frozen needs no master copy"
        raise WorkbookError(f"{setup.precision} with a frozen base", ", ".join(ADAPTED_PRECISIONS), do)
    if setup.in_backward:
        expected = "one step after the backward: the gradients of adapters are hardly worth freeing"
        raise WorkbookError("adapters with the optimizer in the backward", expected, "choose in_backward=False")
    if setup.zero:
        what, do = f"adapters at ZeRO stage {setup.zero}", "pass zero=0: of what is trained there is little to shard"
        raise WorkbookError(what, "a stage of 0", do)


def _check_loss(setup: TrainSetup) -> None:
    """A fused loss owns the head's weight, which nobody else may shard; cut cross-entropy's kernels read 16 bits."""
    if setup.loss == FULL:
        return
    if setup.zero or setup.ranks > 1:
        do = "leave the split out, or pass loss='full'"
        raise WorkbookError(f"loss {setup.loss!r} over several ranks", "one rank: nobody compared it there", do)
    if setup.model.lm_head_bias:
        what = f"loss {setup.loss!r} and {setup.model.name}, whose head has a bias"
        raise WorkbookError(what, "a head without one", "pass loss='full'")
    held = setup.precision_recipe.weight_bytes if setup.adapter is None or setup.adapter.base is None else 2
    if setup.adapter and setup.adapter.base and setup.adapter.prepared:
        held = 4
    if setup.loss == CUT and held == 4:
        what = f"cut cross-entropy of FP32 weights ({setup.precision})"
        expected = "hidden states and a head in 16 bits, which its kernels read"
        raise WorkbookError(what, expected, "pass precision='bf16', a base that is not prepared, or loss='liger'")


def _check_rows(setup: TrainSetup) -> None:
    """Tokens without a loss are left out by TRL's alone; masks were compared on one rank alone."""
    if setup.scored is not None:
        do = "leave scored out: every token but the first of a sequence has a loss"
        require_whole("scored", setup.scored, most=max(1, setup.sequence - 1), do=do)
        if setup.loss != TRL:
            what = f"scored is {setup.scored:,} with loss {setup.loss!r}, which computes logits for all tokens"
            raise WorkbookError(what, f"loss={TRL!r}", "leave scored out, or pass loss='trl' (--loss trl)")
    if not isinstance(setup.masked, bool):
        raise WorkbookError(f"masked is {setup.masked!r}", "True or False", "pass masked=True where batches are padded")
    if setup.masked and (setup.zero or setup.ranks > 1):
        what, expected = "a masked batch over several ranks", "one rank: nobody compared it there"
        raise WorkbookError(what, expected, "leave the split out, or pass masked=False")
