"""What is wanted: a model trained on so many tokens, or served to so many users, with the limits that a plan must keep.

    TrainGoal("llama-3.1-8b", tokens=10**9, deadline_s=24 * 3600)
    ServeGoal("llama-3-70b", users=200, context=8192, latency_s=0.05)

Both are checked when they are made. What the reader leaves open (the batch, the length of prompts) has a default here,
and the plan names it as an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...catalog.cache_formats import cache_format, kv_name
from ...catalog.engines import POOLED, engine
from ...catalog.errors import WorkbookError, require_name, require_number, require_whole
from ...catalog.gguf import refuse_file
from ...catalog.optimizers import optimizer
from ...catalog.recipes import PRECISIONS
from ...catalog.serve_setup import PIECE_TOKENS, WEIGHT_FORMATS, ServeSetup
from ...catalog.setup_fields import MAX_COUNT, MAX_TOKENS, ModelField
from ...catalog.shape import ModelShape
from ...catalog.shipped import SHIPPED
from ..serve.engines.weights import require_positions

MOST_TOKENS = 10**15
# Llama 2 was pre-trained with 4M tokens a batch (Touvron et al. 2023, arXiv 2307.09288, section 2.2)
PRETRAINING_BATCH = 2**22
FINE_TUNING_BATCH = 2**17  # a convention of ours: 64 sequences of 2,048 tokens
METHODS = ("full", "lora", "qlora")
PLANNED = tuple(name for name in PRECISIONS if name != "autocast-bf16-on-bf16")  # in bytes it is "bf16"
TRAIN_PRECISIONS = ("megatron-bf16", "autocast-bf16")  # both keep FP32 masters; pure BF16 gives up small updates
SERVED_WEIGHTS = (SHIPPED, "fp8-e4m3", "awq-int4")
SERVED_KV = ("bf16", "fp8-e4m3")
GENERATED_SHARE = 4  # of a context, one token in four is generated unless the reader says how long a prompt is


@dataclass(frozen=True)
class TrainGoal:
    """Train `model` on `tokens` tokens, in batches of about `batch_tokens`, within `deadline_s` seconds.

    `methods` are those that may be tried: "full" trains every weight, "lora" and "qlora" adapters of rank 16 on all
    linear layers, or, beside stacked experts, on those of attention. `precisions` and `optimizers` likewise. Of these
    a plan takes what is cheapest. Raises WorkbookError.
    """

    model: ModelField = ModelField()  # noqa: RUF009 - a descriptor, and no default
    tokens: int = 10**9
    sequence: int = 4096
    batch_tokens: int = PRETRAINING_BATCH
    deadline_s: float | None = None
    methods: tuple[str, ...] = ("full",)
    precisions: tuple[str, ...] = TRAIN_PRECISIONS
    optimizers: tuple[str, ...] = ("adamw-fused", "adamw-8bit")

    def __post_init__(self) -> None:
        require_whole("tokens", self.tokens, most=MOST_TOKENS, do="pass tokens as an int, as in 10**9")
        require_whole("sequence", self.sequence, most=MAX_TOKENS)
        require_whole("batch_tokens", self.batch_tokens, most=2**40)
        if self.batch_tokens < self.sequence:
            what = f"a batch of {self.batch_tokens:,} tokens in sequences of {self.sequence:,}"
            raise WorkbookError(what, "a batch of one sequence or more", f"pass batch_tokens={self.sequence}")
        _require_seconds("deadline", self.deadline_s)
        for name in _some("methods", self.methods):
            require_name("method", name, METHODS)
        for name in _some("precisions", self.precisions):
            require_name("precision", name, PLANNED)
        for name in _some("optimizers", self.optimizers):
            optimizer(name)

    @property
    def sequences(self) -> int:
        """Sequences in a batch, as near as whole ones come."""
        return max(1, round(self.batch_tokens / self.sequence))


@dataclass(frozen=True)
class ServeGoal:
    """Serve `model` to `users` at once, each with `context` tokens, of which `prompt` come in the prompt.

    `latency_s` is the longest time from one token to the next, `ttft_s` the longest to the first one. "shipped" among
    the `weights` becomes the name of the checkpoint's format. Raises WorkbookError.
    """

    model: ModelField = ModelField()  # noqa: RUF009 - a descriptor, and no default
    users: int = 1
    context: int = 8192
    prompt: int | None = None
    latency_s: float | None = None
    ttft_s: float | None = None
    weights: tuple[str, ...] = SERVED_WEIGHTS
    kv: tuple[str, ...] = SERVED_KV
    engine: str = ""  # that serves, by name; none for what Transformers' forward takes
    prefill_tokens: int = PIECE_TOKENS  # of all prompts in a forward: max_num_batched_tokens of vLLM
    shipped: str = field(default="", init=False)

    def __post_init__(self) -> None:
        require_whole("users", self.users, most=MAX_COUNT)
        require_whole("context", self.context, 2, most=MAX_TOKENS)
        if self.prompt is not None:
            do = f"pass prompt={self.context - self.context // GENERATED_SHARE}, or leave it out"
            require_whole("prompt", self.prompt, 1, self.context - 1, unit="tokens", do=do)
        require_whole("prefill_tokens", self.prefill_tokens, most=MAX_TOKENS)
        if self.engine and engine(self.engine).share is None:
            what, do = f"a plan with the pool of {self.engine}", "pass engine='vllm', or leave it out"
            raise WorkbookError(what, f"an engine of {', '.join(POOLED)}", do)
        if self.engine:
            require_positions(self.engine, self.model, self.context)
        _require_seconds("latency", self.latency_s)
        _require_seconds("time to the first token", self.ttft_s)
        refuse_file(self.model, "a plan with latencies and prices")
        weights = _some("weights", self.weights)
        object.__setattr__(self, "shipped", _shipped(self.model, weights))
        named = (self.shipped if name == SHIPPED else name for name in weights)
        object.__setattr__(self, "weights", tuple(dict.fromkeys(named)))
        for name in self.weights:
            require_name("weight format", name, WEIGHT_FORMATS)
        object.__setattr__(self, "kv", tuple(dict.fromkeys(map(kv_name, _some("kv", self.kv)))))
        for name in self.kv:
            cache_format(name, self.model)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt: as said, or three quarters of the context."""
        return self.context - max(1, self.context // GENERATED_SHARE) if self.prompt is None else self.prompt

    @property
    def new_tokens(self) -> int:
        return self.context - self.prompt_tokens


def _require_seconds(name: str, value: float | None) -> None:
    if value is not None:
        most = 10 * 365 * 24 * 3600
        require_number(
            f"the {name}", value, below=most, expected="seconds above 0, of ten years at most", do="as in 24h"
        )


def _shipped(model: ModelShape, asked: tuple[str, ...]) -> str:
    """The checkpoint's format; "" where it is not known here and nobody asks for it."""
    try:
        return ServeSetup(model).weights
    except WorkbookError:
        if SHIPPED in asked:
            raise
        return ""


def _some(name: str, given: tuple[str, ...]) -> tuple[str, ...]:
    if not given or isinstance(given, str):
        raise WorkbookError(f"{name} is {given!r}", "a tuple of one name or more", f"leave {name} out for the usual")
    return given
