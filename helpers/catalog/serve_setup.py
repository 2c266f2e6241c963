"""A service, described once: what is served, in which formats, to how many. Frozen, and checked when made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from .cache_formats import cache_format, kv_name
from .errors import WorkbookError, require_whole
from .formats import GGUF, NUMBER_FORMATS, NumberFormat, number_format
from .layers import LINEAR_PARTS
from .setup_fields import MAX_COUNT, MAX_TOKENS, ModelField, check_positions, known_name, set_field
from .shape import ModelShape
from .shipped import LEFT_OUT, PLAIN, SHIPPED, shipped, told

WEIGHT_FORMATS = tuple(name for name, entry in NUMBER_FORMATS.items() if not entry.mixed)
MAX_DRAFTS = 64
# Tokens of a prompt in one forward: what vLLM's server takes on cards of 70 GiB and more, and SGLang near it
PIECE_TOKENS = 8192


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

    model: ModelField = ModelField()  # noqa: RUF009 - a descriptor, and no default
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
            set_field(self, "weights", weights)
            set_field(self, "skipped", left_out if self.skipped is None else self.skipped)
        _check_file(self)
        if isinstance(self.weights, str):
            set_field(self, "weights", _SHORT.get(self.weights.lower(), self.weights))
        _refuse_mixed(self.weights)
        set_field(
            self, "weights", known_name("weight format", self.weights, (*WEIGHT_FORMATS, *_file_format(self.model)))
        )
        set_field(self, "kv", kv_name(self.kv))
        cache_format(self.kv, self.model)
        require_whole("users", self.users, most=MAX_COUNT)
        require_whole("context", self.context, most=MAX_TOKENS)
        check_positions("context", self.context, self.model)
        set_field(self, "skipped", _skipped(self.skipped, self.model))
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


def _skipped(names: Iterable[str] | None, model: ModelShape) -> tuple[str, ...] | None:
    if names is None or names == LEFT_OUT:
        return names
    known = dict.fromkeys((*LINEAR_PARTS, *(group.linear.name for group in model.linears())))
    given = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    return tuple(known_name("linear layers to skip", name, known) for name in given)
