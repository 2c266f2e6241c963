"""A run, described once: what trains or serves, how, on how many ranks. Frozen, and checked when made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from .adapters import Adapter
from .cache_formats import KV_FORMATS as KV_FORMATS
from .cache_formats import cache_format, kv_name
from .errors import WorkbookError, require_whole, unknown_name
from .formats import GGUF, NUMBER_FORMATS, NumberFormat, number_format
from .layers import LINEAR_PARTS
from .losses import CUT, FULL, LOSSES, TRL
from .models import model as resolve_model
from .optimizers import Optimizer, optimizer
from .policies import Segment, layout
from .recipes import PRECISIONS, Precision
from .shape import ModelShape
from .shipped import LEFT_OUT, PLAIN, SHIPPED, shipped, told
from .split import ONE_GPU, Split

ATTENTIONS = ("eager", "sdpa")
ADAPTED_PRECISIONS = ("autocast-bf16", "autocast-bf16-on-bf16", "bf16", "fp32")  # with a frozen base
OFFLOADS = ("none", "cpu", "nvme")  # DeepSpeed's names of `offload_optimizer` and `offload_param` devices
WEIGHT_FORMATS = tuple(name for name, entry in NUMBER_FORMATS.items() if not entry.mixed)

FLAGS = {"micro_batches": "--accumulate"}  # fields whose flag has another name
MAX_COUNT = 2**20
MAX_TOKENS = 2**24
MAX_DRAFTS = 64
# Tokens of a prompt in one forward: what vLLM's server takes on cards of 70 GiB and more, and SGLang near it
PIECE_TOKENS = 8192


class ModelField:
    """A field that takes a catalogue name, a path, a config or a ModelShape, and always reads as a ModelShape."""

    def __get__(self, setup: object | None, owner: type) -> ModelShape:
        if setup is None:
            raise AttributeError("model")  # which tells dataclass that the field has no default
        return setup.__dict__["model"]

    def __set__(self, setup: object, given: ModelShape | str | Mapping[str, object]) -> None:
        setup.__dict__["model"] = resolve_model(given)


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

    model: ModelField = ModelField()
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
        _set(self, "loss", _known("loss", self.loss, LOSSES))
        _set(self, "precision", _known("precision", self.precision, PRECISIONS))
        _set(self, "optimizer", optimizer(self.optimizer).name)
        _set(self, "attention", _known("attention", self.attention, ATTENTIONS))
        _set(self, "checkpointing", str(self.checkpointing).lower())
        require_whole("micro_batch", self.micro_batch, most=MAX_COUNT)
        require_whole("micro_batches", self.micro_batches, most=MAX_COUNT, do="pass 1 for a step without accumulation")
        require_whole("sequence", self.sequence, most=MAX_TOKENS)
        if not isinstance(self.split, Split):
            do = "pass split=Split(data=8, zero=3), or leave it out for one GPU"
            raise WorkbookError(f"split is {self.split!r}", "a Split of helpers.catalog", do)
        _check_offload(self, "offload_optimizer", 1, "optimizer states are sharded from stage 1 on")
        _check_offload(self, "offload_parameters", 3, "parameters are sharded at stage 3 only")
        _check_positions("sequence", self.sequence, self.model)
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
    def segments(self) -> tuple[Segment, ...]:
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


def flag_of(field: str) -> str:
    """The flag of the `workbook` command that sets a field of a setup.

    >>> flag_of("micro_batch"), flag_of("micro_batches")
    ('--micro-batch', '--accumulate')
    """
    return FLAGS.get(field, f"--{field.replace('_', '-')}")


@dataclass(frozen=True)
class ServeSetup:
    """One replica of a service: `users` sequences at once, each holding `context` tokens of KV cache.

    `weights` and `kv` are number formats; a format with scales shrinks linear layers only. "shipped" is the format of
    the model's checkpoint, and becomes its name: "bf16" unless the config says another. `skipped` names those that
    stay in 16 bits, by part (attention, mlp, experts, projections, lm_head) or by name (down_proj), as
    `llm_int8_skip_modules` does; None is what the format's tool leaves: bitsandbytes lm_head and stacked experts, MXFP4
    all but the experts where there are any, the others lm_head; ("shipped",) is what the checkpoint leaves.
    `prompt` tokens of the context come in the prompt, the rest is generated; None is all of them. `prefill_tokens` is
    the most that one forward takes: what vLLM calls max_num_batched_tokens; None is one prompt at a time, in pieces of
    PIECE_TOKENS at most. As many as the prompt has take it whole, as Transformers does. `drafts` are tokens that
    are guessed at once, for each of which the states of recurrent layers are kept once more. Raises WorkbookError.

    >>> ServeSetup("llama-2-70b", users=128).model.kv_values(2048) * 2 * 128 / 2**30
    80.0
    >>> ServeSetup("mixtral-8x7b", weights="nf4", skipped=["lm_head"]).skipped
    ('lm_head',)
    >>> ServeSetup("gpt-oss-120b").weights
    'mxfp4'
    """

    model: ModelField = ModelField()
    weights: str = SHIPPED
    kv: str = "bf16"
    users: int = 1
    context: int = 2048
    skipped: Iterable[str] | None = None
    prompt: int | None = None
    prefill_tokens: int | None = None
    drafts: int = 0

    def __post_init__(self) -> None:
        if self.weights == SHIPPED:
            weights, left_out = shipped(self.model)
            _set(self, "weights", weights)
            _set(self, "skipped", left_out if self.skipped is None else self.skipped)
        _check_file(self)
        if isinstance(self.weights, str):
            _set(self, "weights", _SHORT.get(self.weights.lower(), self.weights))
        _refuse_mixed(self.weights)
        _set(self, "weights", _known("weight format", self.weights, (*WEIGHT_FORMATS, *_file_format(self.model))))
        _set(self, "kv", kv_name(self.kv))
        cache_format(self.kv, self.model)
        require_whole("users", self.users, most=MAX_COUNT)
        require_whole("context", self.context, most=MAX_TOKENS)
        _check_positions("context", self.context, self.model)
        _set(self, "skipped", _skipped(self.skipped, self.model))
        if self.prompt is not None:
            do = "leave it out where the prompt is the whole context"
            require_whole("prompt", self.prompt, most=self.context, do=do)
        require_whole("drafts", self.drafts, 0, most=MAX_DRAFTS, do="pass drafts=0 where one token is made at a time")
        if self.prefill_tokens is not None:
            require_whole("prefill_tokens", self.prefill_tokens, most=MAX_TOKENS)

    @property
    def kv_format(self) -> NumberFormat:
        """How K and V are kept, scales included."""
        return cache_format(self.kv, self.model)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of each sequence that prefill brings."""
        return self.context if self.prompt is None else self.prompt

    def cache_bytes(self, context: int | None = None, piece: int = 1, model: ModelShape | None = None) -> int:
        """All that is kept of one sequence of `context` tokens, or the setup's; of `model`, a rank's or stage's part.

        >>> ServeSetup("llama-2-70b", context=2048).cache_bytes() / 2**20
        640.0
        """
        return (model or self.model).cache_bytes(self.kv_format, context or self.context, piece, self.drafts)

    @property
    def as_shipped(self) -> bool:
        """Whether the weights are in the format of the checkpoint."""
        with suppress(WorkbookError):  # a format that is not known here
            return (self.weights, self.skipped) == shipped(self.model)
        return False

    @property
    def weights_told(self) -> str:
        """The format in a few words, and what the checkpoint ships in where that is another.

        >>> ServeSetup("gpt-oss-20b").weights_told, ServeSetup("gpt-oss-20b", "bf16").weights_told
        ('in mxfp4, as shipped', 'in bf16, not in mxfp4 as shipped')
        """
        if self._ships_quantized:
            return f"in {self.weights}, as shipped"
        with suppress(WorkbookError):  # a format that is not known here
            own, _ = shipped(self.model)
            return f"in {self.weights}{f', not in {own} as shipped' if own not in (PLAIN, self.weights) else ''}"
        return f"in {self.weights}"

    @property
    def shipped_told(self) -> tuple[str, ...]:
        """The sentences that say what a quantized checkpoint holds, served as it is, and what is beside the decoder.

        >>> ServeSetup("gpt-oss-20b").shipped_told, ServeSetup("llama-3-8b").shipped_told
        (('Weights as shipped: MXFP4 experts, BF16 rest.',), ())
        """
        shipped = (f"Weights as shipped: {told(self.model, self.weights)}.",) if self._ships_quantized else ()
        return (*shipped, *(tower.told for tower in self.model.beside))

    @property
    def _ships_quantized(self) -> bool:
        return bool(self.model.stored) or (number_format(self.weights).linears_only and self.as_shipped)

    @property
    def forward(self) -> tuple[int, int]:
        """The largest forward of prefill: how many prompts have a part in it, and its tokens in all.

        >>> ServeSetup("llama-3-8b", users=8, context=2048).forward
        (1, 2048)
        >>> ServeSetup("llama-3-8b", users=8, context=2048, prefill_tokens=8192).forward
        (4, 8192)
        >>> ServeSetup("llama-3-8b", users=8, context=131072).forward
        (1, 8192)
        """
        most = self.prefill_tokens or min(self.prompt_tokens, PIECE_TOKENS)
        tokens = min(most, self.users * self.prompt_tokens)
        return -(-tokens // self.prompt_tokens), tokens


def _file_format(model: ModelShape) -> tuple[str, ...]:
    return (GGUF.name,) if model.stored else ()


def _check_file(setup: ServeSetup) -> None:
    """A GGUF file is served as it is."""
    if setup.model.stored and (setup.weights != GGUF.name or setup.skipped is not None):
        what = f"weights of {setup.model.name} in {setup.weights}, skipped {setup.skipped}"
        do = "leave both out, or name the model's config.json"
        raise WorkbookError(what, "the types that the GGUF file has its tensors in", do)


def _set(setup: object, name: str, value: object) -> None:
    """Normalise a field of a frozen dataclass while it is being made."""
    object.__setattr__(setup, name, value)


_SHORT = {"fp8": "fp8-e4m3", "fp8_e4m3": "fp8-e4m3", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_SHORT |= {
    "awq": "awq-int4",
    "gptq": "gptq-int4",
    "w4a16": "w4a16-g128",
    "w8a16": "w8a16-g128",
}  # by their usual groups
_FILES = re.compile(r"i?q\d(_\w+)?|gguf")


def _refuse_mixed(name: object) -> None:
    """A Q4_K_M file holds Q4_K, Q6_K and FP32, tensor by tensor: no name of a block tells a file's bytes."""
    if not isinstance(name, str) or name.lower() in WEIGHT_FORMATS or name == GGUF.name:
        return
    if name.lower() in NUMBER_FORMATS or _FILES.fullmatch(name.lower()):
        what, expected = f"{name} is a format of GGUF, whose files mix several", "a format of all of a model's layers"
        do = "name the file, as in --model model.gguf"
        if name.lower() in NUMBER_FORMATS:
            do = f"{do}; for the bits of a weight, number_format({name!r}).bits_per_value"
        raise WorkbookError(what, expected, do)


def _known(kind: str, name: object, allowed: Iterable[str]) -> str:
    if not isinstance(name, str) or name.lower() not in allowed:
        raise unknown_name(kind, name, allowed)
    return name.lower()


def _skipped(names: Iterable[str] | None, model: ModelShape) -> tuple[str, ...] | None:
    if names is None or names == LEFT_OUT:
        return names
    known = dict.fromkeys((*LINEAR_PARTS, *(group.linear.name for group in model.linears())))
    given = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    return tuple(_known("linear layers to skip", name, known) for name in given)


def _check_offload(setup: TrainSetup, name: str, stage: int, reason: str) -> None:
    """Shards move to another tier, so there must be shards; one rank has one, the whole."""
    tier = _known(f"tier for {name}", getattr(setup, name), OFFLOADS)
    _set(setup, name, tier)
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


def _check_positions(name: str, tokens: int, model: ModelShape) -> None:
    """A learned position table ends; rotary positions do not, so those only lose quality."""
    if model.learned_positions and tokens > model.max_positions:
        what = f"{name} is {tokens:,} and {model.name} has a position for {model.max_positions:,} tokens"
        raise WorkbookError(what, f"{name} from 1 to {model.max_positions:,}", f"pass {name}={model.max_positions}")
