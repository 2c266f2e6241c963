"""The parameters that several questions share: of a run's setup, of a service's, of the card."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from ..catalog.adapters import BASES, KINDS, TRACED_KINDS, TRAINERS
from ..catalog.cache_formats import KV_FORMATS
from ..catalog.devices import DEVICES
from ..catalog.losses import FULL, LOSSES
from ..catalog.models import MODELS, model
from ..catalog.optimizers import OPTIMIZERS, RANKED, TRAINER_NAMES
from ..catalog.policies import POLICIES as KNOWN_POLICIES
from ..catalog.policies import SELECTIVE
from ..catalog.recipes import PRECISIONS
from ..catalog.serve_setup import PIECE_TOKENS, WEIGHT_FORMATS
from ..catalog.shipped import SHIPPED
from ..catalog.split import STAGES_PER_RANK
from ..catalog.train_setup import ATTENTIONS, OFFLOADS
from ..memory.step.decoders.families import PAGES
from .parameter import CONFIG, Parameter, decimal, either, names, whole

OPTIMIZER = "adamw-fused"  # what people run: Trainer's, and where calculators begin
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
SEQUENCES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
WHOLE_LAYERS = ("none", "full", "every:2", "every:4", "every:8", "sqrt-n", "first:2", "nested:4", "recursive")
POLICIES = (*WHOLE_LAYERS, *SELECTIVE, "module:attention", "module:mlp", "offload:inputs")  # all with a closed form
BY_CARD = "by card"  # by engine and ranks, too: `memory.fit.reserves`
POWERS = tuple(2**power for power in range(17))

_HUB = "a name of the hub, as Qwen/Qwen2.5-14B-Instruct-AWQ, or what people type for one, as qwen3:8b"
MODEL = Parameter(
    "model",
    f"{', '.join(MODELS)}; {_HUB}; or a path to a config.json or a GGUF file",
    required=True,
    completes=tuple(MODELS),
    label="model",
    steps=tuple(MODELS),
)
ANY_CONFIG = Parameter(CONFIG, label="or a config", steps=("",), start="")
GPU = Parameter(
    "gpu",
    "a card, as h100, rtx-4090 or m3-max-64gb (`workbook cards` lists them), or its memory, as 12GiB",
    completes=tuple(DEVICES),
    label="GPU",
    steps=tuple(DEVICES),
)
GPU_WITH_RATES = replace(  # of matrix products
    GPU, steps=tuple(name for name, card in DEVICES.items() if card.peak_flops), start="h100-80gb"
)
RESERVE = Parameter(
    "reserve",
    "MiB of the GPU kept for the context and what else PyTorch does not count (default: by card, engine and ranks)",
    type=whole,
    metavar="MIB",
    label="reserve, MiB",
    steps={BY_CARD: None, **{size: size for size in (0, 256, 512, 1024, 2048, 4096)}},
    start=BY_CARD,
)
TENSOR_PARALLEL = Parameter(
    "tensor_parallel", "GPUs that share the heads", 1, whole, metavar="N", label="tensor parallel", steps=(1, 2, 4, 8)
)

PRECISION = Parameter(
    "precision",
    f"{', '.join(PRECISIONS)}; default autocast-bf16, and bf16 for adapters on a base not quantized",
    completes=tuple(PRECISIONS),
    label="precision",
    steps=tuple(PRECISIONS),
    start="autocast-bf16",
)
_KNOWN = ", ".join((*OPTIMIZERS, *(f"{name}:R" for name in RANKED)))
STEP = (
    PRECISION,
    Parameter(
        "optimizer",
        f"{_KNOWN}; or as Trainer calls it: {', '.join(TRAINER_NAMES)}; default {OPTIMIZER}, as Trainer's",
        OPTIMIZER,
        completes=tuple(OPTIMIZERS),
        label="optimizer",
        steps=tuple(dict.fromkeys(rule.name for rule in OPTIMIZERS.values())),
    ),
    Parameter("micro_batch", "sequences in one forward", 1, whole, label="micro-batch", steps=MICRO_BATCHES),
    Parameter("checkpointing", ", ".join(KNOWN_POLICIES), "none", completes=tuple(KNOWN_POLICIES)).with_control(
        "checkpointing", POLICIES
    ),
    Parameter(
        "attention",
        f"{', '.join(ATTENTIONS)}; default sdpa, and eager where Transformers has nothing else",
        completes=ATTENTIONS,
        label="attention",
        steps=("sdpa", "eager"),
        start="sdpa",
    ),
    Parameter(
        "micro_batches",
        "micro-batches whose gradients add up before the optimizer steps",
        1,
        whole,
        also=("--gradient-accumulation-steps",),
        metavar="N",
        label="accumulated",
        steps=MICRO_BATCHES,
    ),
)
SEQUENCE = Parameter(
    "sequence", "tokens in a sequence", 2048, whole, label="sequence, tokens", steps=SEQUENCES, within_positions=True
)
ZERO = Parameter("zero", "ZeRO stage, 0 to 3", 0, whole, label="ZeRO stage", steps=(0, 1, 2, 3))
RANKS = Parameter("ranks", "data-parallel ranks", 1, whole, label="world size", steps=POWERS[:13])
OFFLOADED = tuple(
    Parameter(
        f"offload_{part}",
        f"where their shards live, from ZeRO stage {stage} on: {', '.join(OFFLOADS)}",
        "none",
        metavar="TIER",
        completes=OFFLOADS,
        label=f"{part} in",
        steps=OFFLOADS,
    )
    for part, stage in (("optimizer", 1), ("parameters", 3))
)
TRAINED = (
    *STEP,
    SEQUENCE,
    Parameter("in_backward", "update each weight as soon as its gradient is there, and free that", False, bool),
    Parameter(
        "loss",
        f"how the loss meets the logits: {', '.join(LOSSES)} (all at once; Liger's fused; cut cross-entropy; "
        "SFTTrainer's)",
        FULL,
        completes=tuple(LOSSES),
    ),
    Parameter(
        "scored",
        "tokens at the end of each sequence that have a loss, with --loss trl (completion_only_loss); default: all",
        type=whole,
        metavar="N",
    ),
    Parameter(
        "masked", "attention is given a mask: sequences of a batch differ in length, or a row has several", False, bool
    ),
    ZERO,
    RANKS,
    *OFFLOADED,
)
SPLIT_GROUP = "several GPUs"
SPLIT = tuple(
    replace(parameter, group=SPLIT_GROUP)
    for parameter in (
        Parameter(
            "fsdp",
            "FSDP2 over N ranks; where --ranks counts all of them, what the others leave",
            type=whole,
            metavar="N",
        ),
        Parameter("tensor_parallel", "ranks that share each layer", 1, whole, metavar="N"),
        Parameter("pipeline", "ranks that share the layers", 1, whole, metavar="N"),
        Parameter(
            "schedule", f"the pipeline's: {', '.join(STAGES_PER_RANK)}", "1F1B", completes=tuple(STAGES_PER_RANK)
        ),
        Parameter("no_reshard", "FSDP2 keeps what it gathered until the backward", False, bool),
        Parameter("rank", "which rank", 0, whole, metavar="N"),
    )
)
ADAPTED = (
    Parameter(
        "adapter",
        f"train adapters alone, the base frozen: {', '.join(KINDS)}; for `trace train` {', '.join(TRACED_KINDS)} too",
        metavar="KIND",
        completes=KINDS,
    ),
    Parameter("lora_rank", "their rank, 16 if it is not said; LoRA if no kind is", type=whole, metavar="N"),
    Parameter(
        "lora_targets",
        "linear layers that get one, by name, or all-linear (default q_proj,v_proj)",
        type=names,
        metavar="NAMES",
    ),
    Parameter("lora_base", "quantize the frozen base: QLoRA", choices=BASES),
    Parameter(
        "trainer",
        f"whose recipe a quantized base and its adapters follow: {', '.join(TRAINERS)} (default peft's)",
        metavar="NAME",
        completes=tuple(TRAINERS),
    ),
    Parameter(
        "prepared",
        "whether what is not quantized is cast to FP32, as peft's prepare_model_for_kbit_training does",
        type=either,
    ),
    Parameter("lora_dropout", "share of an adapter's input that is dropped", type=decimal, metavar="P"),
    Parameter("adapter_dtype", "of the adapters: fp32 (default), bf16", metavar="DTYPE"),
)

WEIGHTS = Parameter(
    "weights",
    f"{', '.join(WEIGHT_FORMATS)}; default {SHIPPED}: as the checkpoint is",
    SHIPPED,
    completes=WEIGHT_FORMATS,
    label="weights",
)
SKIPPED = Parameter(
    "skipped",
    "linears left in 16 bits, by part or name, as in lm_head,down_proj; '' for none; "
    "default: what the format's tool leaves",
    type=names,
    metavar="NAMES",
)
KV = Parameter("kv", ", ".join(KV_FORMATS), "bf16", completes=tuple(KV_FORMATS), label="KV cache", steps=KV_FORMATS)
CONTEXT = Parameter(
    "context", "tokens that each of them holds", 2048, whole, label="context, tokens", within_positions=True
)
SERVED = (
    WEIGHTS,
    SKIPPED,
    KV,
    Parameter("users", "sequences at once", 1, whole, label="users", steps=POWERS[:11]),
    CONTEXT,
    Parameter("prompt", "of these, the tokens of its prompt; default: all", type=whole),
    Parameter(
        "prefill_tokens",
        f"tokens that one forward of prefill takes at most; default: of one prompt, up to {PIECE_TOKENS:,}",
        type=whole,
        metavar="N",
    ),
    Parameter(
        "drafts",
        "tokens guessed at once, for each of which the states of recurrent layers are kept once more",
        0,
        whole,
        metavar="N",
    ),
)


@cache
def trained_models() -> tuple[str, ...]:
    """The catalogue's models whose training step has a closed form."""
    return tuple(name for name in MODELS if model(name).family in PAGES)


def changed(parameters: Iterable[Parameter], /, **fields: dict[str, Any]) -> tuple[Parameter, ...]:
    """`parameters`, of those that are named some fields changed.

    >>> [tokens] = changed([SEQUENCE], sequence={"start": 8192})
    >>> tokens.control[2]
    8192
    """
    return tuple(replace(one, **fields.get(one.name, {})) for one in parameters)
