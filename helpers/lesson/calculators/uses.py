"""What one card does with one model: serve it, fine-tune it, train it, each by the closed form of its own question."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from ...catalog.adapters import ALL_LINEAR, Adapter
from ...catalog.devices import Device
from ...catalog.errors import WorkbookError
from ...catalog.formats import number_format
from ...catalog.hardware import KERNELS_FROM, dequantized
from ...catalog.serve_setup import ServeSetup
from ...catalog.shape import ModelShape
from ...catalog.train_setup import TrainSetup
from ...memory.breakdown import Breakdown
from ...memory.fit import Room, Verdict
from ...memory.serve.engines.weights import longest_context
from ...questions.setups import run_of
from .answers import plural, said_of_card, without_kernel
from .engine_others import LlamaCppAnswer, llamacpp_answer
from .fine_tuning import FINE_TUNING
from .serving_memory import SERVE
from .would_fit import (
    ENGINE,
    KV,
    PAGE,
    is_known_cuda,
    last_below,
    launched,
    parts_of,
    started,
    would_fit,
    would_fit_llamacpp,
)

FEWER = {"serve in FP8": "fp8-e4m3", "serve in 4 bits": "awq-int4"}
MOST_TOKENS = 2**20  # where a config names no positions
MOST_USERS = 16384
_LORA = Adapter("lora", rank=16, targets=(ALL_LINEAR,))
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
METHODS: dict[str, Adapter | None] = {"QLoRA": replace(_LORA, base="nf4-dq"), "LoRA": _LORA, "train every weight": None}
FULL = "full"  # as the calculator of fine-tuning calls the last of them
# The chapter and the section that explain each.
WHY = {
    "serve": ("12_the_kv_cache", "1 · What does one token leave behind?"),
    "serve in FP8": ("05_quantization", "Do this"),
    "serve in 4 bits": ("05_quantization", "1 · What do four bits weigh?"),
    "QLoRA": ("07_optimizers_and_adapters", "3 · Does the step fit?"),
    "LoRA": ("07_optimizers_and_adapters", "4 · What do four bits buy?"),
    "train every weight": ("02_where_training_memory_goes", "3 · How many bytes per parameter?"),
}


@dataclass(frozen=True)
class Use:
    """One thing to do with a model, and what `card` has for it. `refused` says why there is no answer.

    Where it needs several cards, `cards` says how many of this kind, and `fewer` with an FP8 KV cache. `stored` is the
    format of the checkpoint, where Transformers makes BF16 of it on this card. `most` is the most of it that fits, by
    what is counted: users and tokens of a context, or tokens of a sequence.
    """

    name: str
    room: Room
    setup: TrainSetup | ServeSetup | None = None
    parts: Breakdown = field(default_factory=Breakdown)
    most: dict[str, int] = field(default_factory=dict)
    change: str = ""
    cards: int = 1
    fewer: int = 0
    refused: str = ""
    stored: str = ""
    llamacpp: LlamaCppAnswer | None = None

    @property
    def verdict(self) -> Verdict | None:
        if self.refused:
            return None
        found = self.room.verdict(self.parts.total)
        if self.llamacpp and found is Verdict.FITS and self.llamacpp.longest < self.llamacpp.served.setup.context:
            return Verdict.TIGHT  # without the margin that its own --fit leaves
        return found

    @property
    def fits(self) -> bool:
        return self.verdict is Verdict.FITS

    @property
    def most_told(self) -> str:
        """As one reads it in a table: more users, or a longer context for those that were asked for."""
        if isinstance(self.setup, TrainSetup):
            return f"a sequence of {self.most['sequence']:,} tokens"
        if self.setup is None:
            return ""
        asked, context = self.setup, f"{plural(self.setup.users, 'user')} of {self.most['context']:,} tokens"
        beyond = " or more" if self.most["users"] == MOST_USERS else ""
        more = f"{plural(self.most['users'], 'user')}{beyond} of {asked.context:,} tokens, or "
        return f"{more if self.most['users'] > asked.users else ''}{context}"

    @property
    def command(self) -> str | None:
        """The command that says more of it."""
        if self.setup is None:
            return None
        asked: dict[str, Any] = {"setup": self.setup, **said_of_card(self.room.card, self.room.kept_bytes)}
        if isinstance(self.setup, TrainSetup):
            return FINE_TUNING.command({**asked, "precision": self.setup.precision})
        if self.llamacpp:
            asked["engine"] = "llama.cpp"
        if self.cards > 1 and launched(self.setup, self.room.card, self.cards):
            asked = {"setup": self.setup, "gpu": self.room.card, "engine": ENGINE, "tensor": self.cards}
        return SERVE.command(asked)

    @property
    def start(self) -> str | None:
        """The line that starts an engine with as much: llama.cpp's, or vLLM's where its own pool holds all users."""
        if not isinstance(self.setup, ServeSetup):
            return None
        if self.llamacpp:
            placed = self.llamacpp.placed
            if not (self.fits or placed):
                return None
            layers = "-ngl 99" if self.fits else placed[0].flags
            cells = self.setup.users * self.setup.context
            return f"llama-server -m {shlex.quote(self.setup.model.name)} {layers} -c {cells} -np {self.setup.users}"
        if not (self.fits or self.cards > 1):
            return None
        return started(self.setup, self.room.card, self.cards)

    @property
    def start_with_fp8(self) -> str | None:
        """The same with an FP8 KV cache, on fewer cards."""
        if not (self.fewer and isinstance(self.setup, ServeSetup)):
            return None
        return started(replace(self.setup, kv=KV), self.room.card, self.fewer)

    @property
    def in_vllms_pool(self) -> int:
        """Users that vLLM's own pool holds, where these are fewer than fit here by tensors alone; else 0."""
        if self.llamacpp or not (self.fits and isinstance(self.setup, ServeSetup)):
            return 0
        found = launched(self.setup, self.room.card, 1)
        return found.users if found and found.users < self.setup.users else 0

    @property
    def on_attention(self) -> bool:
        """Whether attention alone has adapters, and the experts have none."""
        return isinstance(self.setup, TrainSetup) and self.setup.adapter is not None and not _of_all(self.setup.adapter)

    @property
    def page(self) -> tuple[str, dict[str, str]]:
        """The calculator that says more of it, and its settings; ("", {}) where it has none."""
        if self.setup is None or self.llamacpp:
            return "", {}
        on = {"model": self.setup.model.name, "gpu": self.room.card.name}
        if isinstance(self.setup, TrainSetup):
            adapter = self.setup.adapter
            method, targets = self.name if adapter else FULL, "attention" if self.on_attention else "all linear layers"
            more = {"method": method, "targets": targets, "checkpointing": "full", "sequence": str(self.setup.sequence)}
            more["attention"] = self.setup.attention
            return "fine_tuning", on | more
        sizes = {"users": str(self.setup.users), "context": str(self.setup.context), "weights": self.setup.weights}
        return "kv_cache", on | sizes | {"tensor_parallel": str(self.cards)}

    @property
    def plan(self) -> dict[str, str]:
        """What to ask the planner of a service, where several cards serve it."""
        if not isinstance(self.setup, ServeSetup) or self.cards == 1:
            return {}
        sizes = {"users": str(self.setup.users), "context": str(self.setup.context)}
        return {"model": self.setup.model.name, "gpu": self.room.card.name, **sizes}

    @property
    def why(self) -> tuple[str, str]:
        """The chapter that explains it, as its file is called, and the heading of the section."""
        return WHY.get(self.name, WHY["serve"])

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "peak_bytes": self.parts.total if self.setup else None,
            "parts": dict(self.parts),
            "verdict": self.verdict,
            "most": self.most,
            "change": self.change or None,
            "refused": self.refused or None,
            "cards": self.cards,
            "cards_with_fp8_kv": self.fewer or None,
            "start": self.start,
            "command": self.command,
        }


def uses(model: ModelShape, card: Device, users: int, context: int, sequence: int, kept: int | None) -> Iterator[Use]:
    """Serving as the checkpoint ships and in 4 bits; each of METHODS on one sequence, with checkpoints of layers."""
    room = Room(card, kept)
    if model.stored:
        yield _by_llamacpp(ServeSetup(model, users=users, context=context), room)
        return
    served = ServeSetup(model, users=users, context=context)
    bits = number_format(served.weights).value_bits
    yield _use(f"serve in {served.weights}", room, lambda: served)
    for name, weights in FEWER.items():
        if number_format(weights).value_bits < bits and (weights not in KERNELS_FROM or is_known_cuda(card)):
            yield _use(name, room, partial(_in_fewer, served, weights, card))
    run = partial(run_of, model, sequence=sequence, checkpointing="full")
    for name, adapter in METHODS.items():
        use = _use(name, room, partial(run, adapter))
        if use.refused and adapter:  # peft has none for experts that are stacked in one parameter
            narrower = _use(name, room, partial(run, replace(adapter, targets=ATTENTION)))
            use = use if narrower.refused else narrower
        yield use


def _in_fewer(served: ServeSetup, weights: str, card: Device) -> ServeSetup:
    setup = replace(served, weights=weights)
    if dequantized(setup, card) != setup:
        raise WorkbookError(without_kernel(weights, card), "a newer card", "serve it with an engine that has one")
    return setup


def _of_all(adapter: Adapter) -> bool:
    return tuple(adapter.targets) == (ALL_LINEAR,)


def _use(name: str, room: Room, setup_of: Callable[[], TrainSetup | ServeSetup]) -> Use:
    try:
        return _found(name, room, setup_of())
    except WorkbookError as error:
        return Use(name, room, refused=error.what)


@lru_cache(maxsize=256)
def _found(name: str, room: Room, setup: TrainSetup | ServeSetup) -> Use:
    run = dequantized(setup, room.card) if isinstance(setup, ServeSetup) else setup
    stored = setup.weights if isinstance(setup, ServeSetup) and run != setup else ""
    use = Use(name, room, run, parts_of(run, room.card), stored=stored)
    if not use.fits:
        change, cards, fewer = would_fit(run, room)
        return replace(use, change=change, cards=cards, fewer=fewer)
    return replace(use, most=_most_served(run, room) if isinstance(run, ServeSetup) else _most_trained(run, room))


def _by_llamacpp(setup: ServeSetup, room: Room) -> Use:
    """A GGUF file, which llama.cpp alone serves: as many layers on the card as it has room for."""
    from ...memory.serve.engines.llamacpp import LlamaCpp

    answer = llamacpp_answer(LlamaCpp(setup), room.card, room.kept_bytes)
    use = Use("serve with llama.cpp", room, setup, answer.parts, llamacpp=answer)
    if use.fits:
        return replace(use, most={"users": setup.users, "context": answer.longest})
    return replace(use, change=would_fit_llamacpp(answer))


def _most_served(setup: ServeSetup, room: Room) -> dict[str, int]:
    """The longest context for as many users, and the most users with that context."""

    def need(**changed: int) -> int:
        return parts_of(replace(setup, **changed), room.card).total  # type: ignore[arg-type]

    most = longest_context(setup.model) or MOST_TOKENS
    pages = range(setup.context // PAGE + 1, most // PAGE + 1)
    longer = bisect_right(pages, room.for_tensors_bytes, key=lambda page: need(context=page * PAGE))
    counts = range(setup.users + 1, MOST_USERS + 1)
    users = bisect_right(counts, room.for_tensors_bytes, key=lambda count: need(users=count))
    return {"users": setup.users + users, "context": pages[longer - 1] * PAGE if longer else setup.context}


def _most_trained(setup: TrainSetup, room: Room) -> dict[str, int]:
    """The longest sequence that fits as a micro-batch of one, in whole pages."""

    def need(page: int) -> int:
        return parts_of(replace(setup, sequence=page * PAGE), room.card).total

    end = (longest_context(setup.model) or MOST_TOKENS) // PAGE
    found = last_below(need, max(1, setup.sequence // PAGE), end, room.for_tensors_bytes)
    return {"sequence": max(setup.sequence, found * PAGE)}
