"""What would fit where a use does not: the cheapest change, less of it, or more cards; and how an engine starts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from ...catalog.devices import OFFERED, Device
from ...catalog.engines import engine
from ...catalog.errors import WorkbookError
from ...catalog.serve_setup import ServeSetup
from ...catalog.split import Split
from ...catalog.train_setup import TrainSetup
from ...memory import budget
from ...memory.breakdown import Breakdown, format_bytes
from ...memory.fit import Room, Verdict, ladder
from ...memory.serve.engines.llamacpp_layers import LayerPlacement
from ...memory.serve.engines.vllm import Launch, launch
from ...memory.serve.engines.vllm_flags import command
from .answers import plural
from .engine_others import LlamaCppAnswer
from .kv_cache import kv_cache_answer

PAGE = 256  # tokens: contexts are found in whole ones
KV = "fp8-e4m3"  # what halves a KV cache
CARDS = (2, 4, 8, 16, 32, 64)  # what is tried of one kind
NODE = 8
ENGINE = "vllm"


@lru_cache(maxsize=512)
def parts_of(setup: TrainSetup | ServeSetup, card: Device) -> Breakdown:
    """The peak by part."""
    return budget.serve(setup, card).parts if isinstance(setup, ServeSetup) else budget.train(setup, card).parts


def is_known_cuda(card: Device) -> bool:
    """Whether it is known which kernels run there: of a card of which the size alone was given, nobody knows."""
    return card.compute_capability is not None and card.compute_capability.kind != "convention"


def would_fit(setup: TrainSetup | ServeSetup, room: Room) -> tuple[str, int, int]:
    """The cheapest change by which it fits, its cost, and what fits as it is; else how many of these cards, or which.

    The sentence, the cards that it names, and with an FP8 KV cache: 1 where this one will do, or another kind, and 0.
    """
    asked = (room.for_tensors_bytes, room.card)
    offers = ladder(setup, *asked) if isinstance(setup, TrainSetup) else iter(())
    first = next((offer for offer in offers if "adapter" not in offer.fields), None)
    found = [f"with {first.change} ({format_bytes(first.peak_bytes)}), which costs {first.costs}"] if first else []
    found += _with_less(setup, room)
    if first:
        return _fits(found), 1, 0
    need = parts_of(setup, room.card).total
    if cards := fewest(setup, room, need):
        fewer = _with_fp8(setup, room, cards) if isinstance(setup, ServeSetup) else 0
        with_fp8 = [f"on {fewer:,} with an FP8 KV cache"] if fewer else []
        return _fits([*found, *with_fp8, f"on {cards:,} of these cards, {_together(setup, room, cards)}"]), cards, fewer
    same = (card for card in OFFERED if card.unified == room.card.unified)
    larger = (card for card in same if Room(card, room.kept_bytes).verdict(need) is Verdict.FITS)
    if other := min(larger, key=lambda card: card.capacity_bytes, default=None):
        found.append(f"on one {other.title}")
    return _fits(found) if found else "needs a smaller model, or many more cards", 1, 0


def _with_less(setup: TrainSetup | ServeSetup, room: Room) -> list[str]:
    """The most that fits of the same: users with their context, or tokens of the one, or of the one sequence."""
    limit = room.for_tensors_bytes

    def need(**fewer: int) -> int:
        return parts_of(replace(setup, **fewer), room.card).total  # type: ignore[arg-type]

    if isinstance(setup, TrainSetup):
        if setup.sequence <= PAGE or need(sequence=PAGE) > limit:
            return []
        pages = last_below(lambda page: need(sequence=page * PAGE), 1, setup.sequence // PAGE, limit)
        return [f"with a sequence of at most {pages * PAGE:,} tokens"]
    if setup.users > 1 and need(users=1) <= limit:
        users = bisect_right(range(1, setup.users), limit, key=lambda users: need(users=users))
        return [f"on this one with at most {plural(users, 'user')}"]
    pages = bisect_right(
        range(1, setup.context // PAGE + 1), limit, key=lambda page: need(users=1, context=page * PAGE)
    )
    one = "one user and " if setup.users > 1 else ""
    return [f"with {one}a context of at most {pages * PAGE:,} tokens"] if pages else []


def _together(setup: TrainSetup | ServeSetup, room: Room, cards: int) -> str:
    """How they share it."""
    if isinstance(setup, TrainSetup):
        return "under FSDP2"
    return f"tensor parallel{' under vLLM' if launched(setup, room.card, cards) else ''}"


def _with_fp8(setup: ServeSetup, room: Room, cards: int) -> int:
    """How many cards with an FP8 KV cache, where these are fewer; else 0."""
    if setup.kv == KV or not is_known_cuda(room.card):
        return 0
    small = replace(setup, kv=KV)
    found = fewest(small, room, parts_of(small, room.card).total)
    return found if found < cards else 0


def would_fit_llamacpp(answer: LlamaCppAnswer) -> str:
    """A shorter context, or how many layers on the card, and what is left on the host."""
    offers = [f"with a context of at most {answer.longest:,} tokens"] if answer.longest else []
    offers += [f"with {one.flags}, and {_on_host(one)} on the host" for one in answer.placed]
    return _fits(offers) if offers else str(answer.sentence)


def _on_host(placed: LayerPlacement) -> str:
    return format_bytes(placed.host_weight_bytes + placed.host_cache_bytes)


def _fits(offers: list[str]) -> str:
    return f"would fit {'; or '.join(offers)}"


def last_below(need: Callable[[int], int], low: int, high: int, limit: int) -> int:
    """The last of `low` to `high` whose need is within `limit`, which `low`'s is. It grows almost as a line does.

    >>> last_below(lambda page: 100 + 7 * page, 1, 10_000, 3000)
    414
    """
    at_low, over = need(low), high + 1
    guess = min(2 * low, high)
    while low + 1 < over:
        found = need(guess)
        slope = (found - at_low) / (guess - low)
        if found <= limit:
            low, at_low = guess, found
        else:
            over = guess
        guess = min(max(low + int((limit - at_low) / max(slope, 1)), low + 1), over - 1)
    return low


def launched(setup: ServeSetup, card: Device, ranks: int) -> Launch | None:
    """`setup` on that many ranks of vLLM; None where no closed form of an engine is known for it."""
    try:
        return launch(setup, engine(ENGINE), card, tensor=ranks)
    except WorkbookError:
        return None


def started(setup: ServeSetup, card: Device, ranks: int) -> str | None:
    """The line that starts vLLM so; None where its pool would not hold all of the users, or nobody knows."""
    found = launched(setup, card, ranks)
    try:
        return command(setup, ranks) if found and found.users >= setup.users else None
    except WorkbookError:  # a format without a name
        return None


def fewest(setup: TrainSetup | ServeSetup, room: Room, need: int) -> int:
    """The fewest cards of CARDS, of one node for serving, on which `need` bytes fit when divided; 0 for none."""
    least = -(-need // max(1, room.for_tensors_bytes))  # no rank has less than its share
    most = 0 if room.card.unified else NODE if isinstance(setup, ServeSetup) else CARDS[-1]
    return next((count for count in CARDS if least <= count <= most and _fits_on(setup, room, count)), 0)


def _fits_on(setup: TrainSetup | ServeSetup, room: Room, count: int) -> bool:
    """With all divided under FSDP2; or under vLLM, by its pool where that is known, else by weights and caches."""
    try:
        if isinstance(setup, ServeSetup):
            if room.kept_bytes is None and (found := launched(setup, room.card, count)):
                return found.users >= setup.users
            answer = kv_cache_answer(setup, room.card, tensor_parallel=count, reserve_bytes=room.kept_bytes)
            return bool(answer.holds(answer.parts.total))
        need = budget.train(replace(setup, split=Split(fsdp=count)), room.card).peak_bytes
        return Room(room.card, room.kept_bytes, count).verdict(need) is Verdict.FITS
    except WorkbookError:  # heads that so many ranks cannot share, a recipe that is not divided so
        return False
