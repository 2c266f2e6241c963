"""The KV cache calculator: weights and cache against one GPU, the users and tokens that fit, the floor of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ...catalog.devices import DEVICES, Device, device
from ...catalog.formats import number_format
from ...catalog.models import MODELS
from ...catalog.models import model as resolve_model
from ...catalog.setup import KV_FORMATS, ServeSetup
from ...memory.closed_form.breakdown import Breakdown, format_bytes
from ...memory.closed_form.tensor_parallel import rank_read_bytes, rank_weight_bytes
from ...techniques.kv_cache.plans import TOKEN, CachePlan
from ..drawing.bars import stacked_bar
from ..drawing.contexts import Curve, contexts_svg
from ..drawing.pareto import one_below_another
from ..drawing.pictures import Picture
from .kv_layers import RankCache, all_heads_values
from .kv_words import formula, sentences
from .quantization import FORMATS
from .shell import Calculator, MemoryAnswer

# What the control offers: number formats of the cache, and kinds of cache with what they do not round in BF16.
CACHES = ["bf16", "fp8-e4m3", "int8", "int4", "int2", "window:1024+4", "window:8192+4"]
CONTEXTS = [128 * 2**power for power in range(14)]


@dataclass(frozen=True)
class KVCacheAnswer(MemoryAnswer):
    """What one rank holds and reads. Figures of a device are None without one, or where its bandwidth is not known."""

    setup: ServeSetup | None = None
    gpu: Device | None = None
    tensor_parallel: int = 1
    cache: RankCache | None = None

    @cached_property
    def a_user_bytes(self) -> int:
        """One user's cache on this rank, at the context asked for."""
        return self.cache.total(self.setup.context)

    @property
    def bits_per_value(self) -> float:
        """Scales, and what is not rounded yet, counted in."""
        return 8 * self.a_user_bytes / self.cache.values(self.setup.context)

    @property
    def all_heads_bytes(self) -> int:
        """The cache of all users, on this rank, with keys and values for every query head and token, in BF16."""
        values = all_heads_values(self.setup.model) // self.tensor_parallel
        return self.setup.users * self.setup.context * number_format("bf16").storage_bytes(values)

    @property
    def room_bytes(self) -> int | None:
        """What the weights leave of the device; negative where they are too large."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.parts["parameters"]

    @property
    def users_that_fit(self) -> int | None:
        return None if self.room_bytes is None else max(0, self.room_bytes // self.a_user_bytes)

    @cached_property
    def longest_context(self) -> int | None:
        """For the users asked for; `cache.most_tokens` where memory sets no limit."""
        return None if self.room_bytes is None else self.cache.longest(self.room_bytes, self.setup.users)

    @cached_property
    def read_bytes(self) -> int:
        """Bytes that one decode step reads on this rank: weights once, everybody's cache."""
        return rank_read_bytes(self.setup, self.tensor_parallel) + self.parts["kv_cache"]

    @property
    def seconds_per_step(self) -> float | None:
        known = self.gpu is not None and self.gpu.memory_bandwidth
        return self.read_bytes / self.gpu.memory_bytes_per_s if known else None

    @property
    def figures(self) -> dict[str, object]:
        """Every number of the answer by name, unrounded, for JSON."""
        seconds = self.seconds_per_step
        return {
            "parts": dict(self.parts),
            "peak_bytes": self.parts.total,
            "tensor_parallel": self.tensor_parallel,
            "kv_bytes_per_token": self.cache.per_token(self.setup.context),
            "bits_per_value": self.bits_per_value,
            "all_heads_bytes": self.all_heads_bytes,
            "users_that_fit": self.users_that_fit,
            "longest_context": self.longest_context,
            "read_bytes": self.read_bytes,
            "seconds_per_step": seconds,
            "tokens_per_s_each": 1 / seconds if seconds else None,
            "tokens_per_s": self.setup.users / seconds if seconds else None,
        }

    @property
    def curves(self) -> tuple[Curve, ...]:
        """Bytes against context for all heads, for the model's own attention, and for the cache that was chosen."""
        asked, users = self.setup, self.setup.users
        longest = min(self.cache.most_tokens, max(CONTEXTS[-1], asked.context))
        contexts = [tokens for tokens in CONTEXTS if tokens < longest] + [longest]
        own = RankCache.of(replace(asked, kv="bf16"), None, self.tensor_parallel)
        a_token = self.all_heads_bytes // asked.context
        rows = {
            "all heads, bf16": [a_token * tokens for tokens in contexts],
            "own attention, bf16": [own.total(tokens, users) for tokens in contexts],
            self.kind: [self.cache.total(tokens, users) for tokens in contexts],
        }
        named = {tuple(sizes): name for name, sizes in rows.items()}  # of equal lines the last name
        return tuple(Curve(name, tuple(zip(contexts, sizes, strict=True))) for sizes, name in named.items())

    @property
    def kind(self) -> str:
        """What the cache is, in words short enough for a curve."""
        plan = self.cache.plan
        if plan.kind == "window":
            return f"window {plan.window:,} + {plan.sinks:,}"
        return f"own attention, {plan.kind if plan.bits else self.setup.kv}{'/token' * (plan.keys == TOKEN)}"

    @property
    def picture(self) -> Picture:
        bar = stacked_bar(self.title, self.parts, self.capacity_bytes, self.device)
        saved = self.all_heads_bytes / self.parts["kv_cache"]
        title = f"At {self.setup.context:,} tokens all heads in BF16 would hold {saved:.3g}× this cache"
        here = (self.setup.context, self.parts["kv_cache"])
        return one_below_another(bar, contexts_svg(title, self.curves, here, self.room_bytes))


def kv_cache_answer(
    setup: ServeSetup, gpu: str | Device | None = None, cache: str | CachePlan | None = None, tensor_parallel: int = 1
) -> KVCacheAnswer:
    """`setup` on each of `tensor_parallel` GPUs: weights, cache, users and tokens that fit, and the floor of a step.

    `cache` is a kind of `techniques.kv_cache.plans`, "int4" or "window:1024+4"; None keeps everything in `setup.kv`,
    which is also what a quantized cache keeps its newest tokens in. The floor is bytes over the datasheet's bandwidth:
    no activations, no all-reduce, no time to decode codes. WorkbookError for a model whose cache is not known, an
    unknown name, and heads that ranks cannot share.

    >>> answer = kv_cache_answer(ServeSetup("llama-3-8b", users=16), "h100")
    >>> answer.parts["kv_cache"] / 2**30, answer.users_that_fit, answer.longest_context
    (4.0, 257, 32902)
    >>> round(answer.seconds_per_step * 1e3, 2)
    5.76
    """
    where, held = device(gpu) if gpu else None, RankCache.of(setup, cache, tensor_parallel)
    parts = Breakdown(
        parameters=rank_weight_bytes(setup, tensor_parallel), kv_cache=held.total(setup.context, setup.users)
    )
    size = (where.capacity_bytes, where.title) if where else (None, "")
    each = f" on each of {tensor_parallel:,} GPUs" if tensor_parallel > 1 else ""
    users = f"{setup.users:,} user{'s' * (setup.users > 1)}"
    title = (
        f"{setup.model.name}, {users} × {setup.context:,} tokens: {format_bytes(parts['kv_cache'])} of KV cache{each}"
    )
    answer = KVCacheAnswer(title, (), "", parts, *size, setup, where, tensor_parallel, held)
    return replace(answer, formula=tuple(formula(answer)), sentence=" ".join(sentences(answer)))


def kv_cache(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `kv_cache(model="deepseek-v3", gpu="h200", cache="int4")`."""
    options = {
        "model": ("model", list(MODELS)),
        "gpu": ("GPU", list(DEVICES)),
        "weights": ("weights", FORMATS),
        "cache": ("cache", CACHES),
        "context": ("context", CONTEXTS),
        "users": ("users", [2**power for power in range(11)]),
        "tensor_parallel": ("tensor parallel", [1, 2, 4, 8]),
    }
    first = {
        "model": "llama-3-8b",
        "gpu": "h100-80gb",
        "weights": "bf16",
        "cache": "bf16",
        "context": 8192,
        "users": 32,
        "tensor_parallel": 1,
    }
    return Calculator(_compute, options, {**first, **start})


def _compute(model: str, gpu: str, cache: str, context: int, tensor_parallel: int, **choices: object) -> KVCacheAnswer:
    """A model with a table of positions gets no more context than it has."""
    shape = resolve_model(model)
    tokens = min(context, shape.max_positions) if shape.learned_positions else context
    kv, kind = (cache, None) if cache in KV_FORMATS else ("bf16", cache)
    return kv_cache_answer(ServeSetup(shape, kv=kv, context=tokens, **choices), gpu, kind, tensor_parallel)
