"""What one card does with one model: serve it, fine-tune it, train it, each by the closed form of its own question."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from ...catalog.adapters import ALL_LINEAR, Adapter
from ...catalog.devices import OFFERED, Device
from ...catalog.errors import WorkbookError
from ...catalog.formats import number_format
from ...catalog.hardware import dequantized
from ...catalog.serve_setup import ServeSetup
from ...catalog.shape import ModelShape
from ...catalog.split import Split
from ...catalog.train_setup import TrainSetup
from ...memory import budget
from ...memory.breakdown import Breakdown
from ...memory.fit import Room, Verdict, ladder
from ...memory.serve.engines.weights import longest_context
from ...questions.setups import run_of
from .answers import plural, said_of_card
from .engine_others import LlamaCppAnswer, llamacpp_answer
from .fine_tuning import FINE_TUNING
from .kv_cache import kv_cache_answer
from .serving_memory import SERVE

FOUR_BITS = "awq-int4"
LENGTHS = tuple(256 * 2**power for power in range(11))  # of sequences that are tried
PAGE = 256  # tokens: contexts are found in whole ones
MOST_TOKENS = 2**20  # where a config names no positions
MOST_USERS = 1024
CARDS = (2, 4, 8, 16, 32, 64)  # what is tried of one kind
NODE = 8
_LORA = Adapter("lora", rank=16, targets=(ALL_LINEAR,))
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
METHODS: dict[str, Adapter | None] = {"QLoRA": replace(_LORA, base="nf4-dq"), "LoRA": _LORA, "train every weight": None}
FULL = "full"  # as the calculator of fine-tuning calls the last of them


@dataclass(frozen=True)
class Use:
    """One thing to do with a model, and what `card` has for it. `refused` says why there is no answer.

    `most` is the most of it that fits, by what is counted: users and tokens of a context, or tokens of a sequence.
    """

    name: str
    room: Room
    setup: TrainSetup | ServeSetup | None = None
    parts: Breakdown = field(default_factory=Breakdown)
    most: dict[str, int] = field(default_factory=dict)
    change: str = ""
    refused: str = ""
    llamacpp: LlamaCppAnswer | None = None

    @property
    def verdict(self) -> Verdict | None:
        return None if self.refused else self.room.verdict(self.parts.total)

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
        more = f"{plural(self.most['users'], 'user')} of {asked.context:,} tokens, or "
        return f"{more if self.most['users'] > asked.users else ''}{context}"

    @property
    def command(self) -> str | None:
        """The command that says more of it."""
        if self.setup is None:
            return None
        asked: dict[str, Any] = {"setup": self.setup, **said_of_card(self.room.card, self.room.kept_bytes)}
        if isinstance(self.setup, TrainSetup):
            return FINE_TUNING.command({**asked, "precision": self.setup.precision})
        return SERVE.command({**asked, "engine": "llama.cpp"} if self.llamacpp else asked)

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
        sizes = {"users": str(self.setup.users), "context": str(self.setup.context)}
        return "kv_cache", on | sizes | {"weights": self.setup.weights}

    @property
    def chapter(self) -> str:
        """The chapter that explains it, as its file is called."""
        if isinstance(self.setup, TrainSetup):
            return "07_optimizers_and_adapters" if self.setup.adapter else "02_where_training_memory_goes"
        return "05_quantization" if self.name.endswith("4 bits") else "12_the_kv_cache"

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "peak_bytes": self.parts.total if self.setup else None,
            "parts": dict(self.parts),
            "verdict": self.verdict,
            "most": self.most,
            "change": self.change or None,
            "refused": self.refused or None,
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
    if bits > 4:
        yield _use("serve in 4 bits", room, lambda: replace(served, weights=FOUR_BITS))
    run = partial(run_of, model, sequence=sequence, checkpointing="full")
    for name, adapter in METHODS.items():
        use = _use(name, room, partial(run, adapter))
        if use.refused and adapter:  # peft has none for experts that are stacked in one parameter
            use = _use(name, room, partial(run, replace(adapter, targets=ATTENTION)))
        yield use


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
    use = Use(name, room, run, _parts(run, room.card))
    if not use.fits:
        return replace(use, change=_change(run, room))
    return replace(use, most=_most_served(run, room) if isinstance(run, ServeSetup) else _most_trained(run, room))


@lru_cache(maxsize=512)
def _parts(setup: TrainSetup | ServeSetup, card: Device) -> Breakdown:
    """The peak by part."""
    return budget.serve(setup, card).parts if isinstance(setup, ServeSetup) else budget.train(setup, card).parts


def _by_llamacpp(setup: ServeSetup, room: Room) -> Use:
    """A GGUF file, which llama.cpp alone serves: as many layers on the card as it has room for."""
    from ...memory.serve.engines.llamacpp import LlamaCpp

    answer = llamacpp_answer(LlamaCpp(setup), room.card, room.kept_bytes)
    use = Use("serve with llama.cpp", room, setup, answer.parts, llamacpp=answer)
    if use.fits:
        return replace(use, most={"users": setup.users, "context": answer.longest})
    return replace(use, change=answer.sentence)


def _most_served(setup: ServeSetup, room: Room) -> dict[str, int]:
    """The longest context for as many users, and the most users with that context."""

    def need(**changed: int) -> int:
        return _parts(replace(setup, **changed), room.card).total  # type: ignore[arg-type]

    most = longest_context(setup.model) or MOST_TOKENS
    pages = range(setup.context // PAGE + 1, most // PAGE + 1)
    longer = bisect_right(pages, room.for_tensors_bytes, key=lambda page: need(context=page * PAGE))
    counts = range(setup.users, MOST_USERS + 1)
    users = bisect_right(counts, room.for_tensors_bytes, key=lambda count: need(users=count))
    return {"users": counts[users - 1], "context": pages[longer - 1] * PAGE if longer else setup.context}


def _most_trained(setup: TrainSetup, room: Room) -> dict[str, int]:
    """The longest of LENGTHS that fits as a micro-batch of one."""
    most = longest_context(setup.model) or MOST_TOKENS
    longer = [tokens for tokens in LENGTHS if setup.sequence < tokens <= most]
    fits = bisect_right(longer, room.for_tensors_bytes, key=lambda tokens: _with_sequence(setup, tokens, room.card))
    return {"sequence": longer[fits - 1] if fits else setup.sequence}


def _with_sequence(setup: TrainSetup, tokens: int, card: Device) -> int:
    return _parts(replace(setup, sequence=tokens), card).total


def _change(setup: TrainSetup | ServeSetup, room: Room) -> str:
    """The cheapest change by which it fits, with its cost: on this card, on several of them, or another card.

    Adapters and their base are rows of their own, and no change of another.
    """
    asked = (room.for_tensors_bytes, room.card)
    offers = ladder(setup, *asked) if isinstance(setup, TrainSetup) else iter(())
    if first := next((offer for offer in offers if "adapter" not in offer.fields), None):
        return f"{first.change}. Its cost: {first.costs}"
    serves = isinstance(setup, ServeSetup)
    need = _parts(setup, room.card).total
    least = -(-need // max(1, room.for_tensors_bytes))  # cards; no rank has less than its share
    counts = [count for count in CARDS if least <= count <= (NODE if serves else CARDS[-1])]
    if cards := next((count for count in counts if _fits_on(setup, room, count)), None):
        return f"{cards:,} of these cards, {'tensor parallel' if serves else 'under FSDP2'}"
    larger = (card for card in OFFERED if Room(card, room.kept_bytes).verdict(need) is Verdict.FITS)
    other = min(larger, key=lambda card: card.capacity_bytes, default=None)
    return f"the {other.title}" if other else "a smaller model, or many more cards"


def _fits_on(setup: TrainSetup | ServeSetup, room: Room, count: int) -> bool:
    """With all divided under FSDP2; or weights and caches as vLLM divides them."""
    try:
        if isinstance(setup, ServeSetup):
            answer = kv_cache_answer(setup, room.card, tensor_parallel=count, reserve_bytes=room.kept_bytes)
            return bool(answer.holds(answer.parts.total))
        need = budget.train(replace(setup, split=Split(fsdp=count)), room.card).peak_bytes
        return Room(room.card, room.kept_bytes, count).verdict(need) is Verdict.FITS
    except WorkbookError:  # heads that so many ranks cannot share, a recipe that is not divided so
        return False
