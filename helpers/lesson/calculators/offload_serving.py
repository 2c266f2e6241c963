"""Serving with weights that are not on the GPU: what the link adds to a step, and from which batch on it is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ...catalog.devices import Device, device
from ...catalog.errors import require_whole
from ...catalog.serve_setup import ServeSetup
from ...catalog.tiers import TIERS, Tier, tier
from ...memory import budget, offload
from ...memory.breakdown import format_bytes
from ...memory.fit.room import Verdict
from ...memory.offload import DECODE, PREFILL
from ...questions.parameter import Parameter, decimal, whole
from ...questions.parameters import GPU, MODEL, RESERVE, SERVED
from ...questions.question import Question
from ..drawing.lanes import lanes
from ..drawing.pictures import Card
from ..drawing.shares import Memory, memory_shares
from ..units import percent, si, three_digits
from .answers import CalculatorAnswer, plural, said_of_card
from .offload_places import capacity_of, tier_sentence, worst
from .streamed_service import StreamedService, link_rate

HOST = "host"  # the memory of the machine that the card is in, of which no more is known
STEPS = (DECODE, PREFILL)
COPY, WORK = "copy", "compute"  # lanes
SHOWN = 5  # layers in the picture
LABELS = {"parameters": "weights", "workspace": "buffers"}
Row = tuple[str, str, str]


@dataclass(frozen=True)
class Busy:
    """A box of the picture."""

    lane: str
    name: str
    start_s: float
    end_s: float
    buffer: int | None = None


class OffloadServingAnswer(StreamedService, CalculatorAnswer):
    """One step with streamed weights: what the link costs, and what would hide it."""

    @property
    def title(self) -> str:
        who = f"{self.setup.model.name} in {self.setup.weights}, {self.step} of {plural(self.tokens, 'token')}"
        there = f"; {si(self.experts.step_s, 's')} with its experts computed on the host" if self.experts else ""
        return f"{who}: {si(self.forward.overlapped_s, 's')}, copies {self.state}{there}"

    def lines(self) -> Iterator[str]:
        rows = chain(_link(self), _seconds(self), _bytes(self), _even(self))
        return (f"{name:<13}{value:>13}   {text}" for name, value, text in rows)

    def sentences(self) -> Iterator[str]:
        """What the link costs, what hides it, whether all of it fits, on which way it comes, what is assumed."""
        return chain(_cost(self), _cure(self), _room(self), _way(self), self.setup.shipped_told, _assumed(self))

    @property
    def cards(self) -> tuple[Card, ...]:
        return (_schedule(self), memory_shares("Bytes, as shares of what each memory holds", _memories(self)))

    @property
    def figures(self) -> dict[str, Any]:
        one, (on_card, on_tier) = self.forward, self.verdicts
        return {
            "state": self.state,
            "step_s": one.overlapped_s,
            "serial_s": one.serial_s,
            "resident_s": one.resident_s,
            "exposed_s": one.exposed_s,
            "tokens_per_s": self.tokens / one.overlapped_s,
            "link_bytes_per_s": self.link_bytes_per_s,
            "largest_layer_bytes": max(one.layers_bytes),
            "device_bytes": dict(self.parts),
            "offloaded_bytes": one.host_bytes,
            "missing_bytes": max(0, one.host_bytes - (capacity_of(self.source) or one.host_bytes)),
            "break_even_tokens": self.break_even_tokens,
            "users_that_hide": self.users_that_hide,
            "users_that_fit": self.users_that_fit,
            "experts_on_host": self.experts and {**vars(self.experts), "step_s": self.experts.step_s},
            "reserve_bytes": self.room.reserve_bytes,
            "device_verdict": on_card,
            "tier_verdict": on_tier,
            "verdict": worst((on_card, on_tier)),
        }

    @property
    def question(self) -> Question:
        return OFFLOAD_SERVE

    @property
    def asked(self) -> dict[str, Any]:
        return {
            "setup": self.setup,
            **said_of_card(self.gpu, self.reserve_bytes),
            "step": self.step,
            "source": self.source.name if self.source else HOST,
            "buffers": self.forward.buffers,
            "efficiency": self.efficiency,
        }


def offload_serving_answer(
    setup: ServeSetup,
    gpu: str | Device,
    step: str = DECODE,
    source: str | Tier = HOST,
    buffers: int = 2,
    efficiency: float = 1.0,
    reserve_bytes: int | None = None,
) -> OffloadServingAnswer:
    """One step of `setup` on `gpu` with the decoder layers in `source` and copied in as they are needed.

    `source` is "host", over the card's PCIe, or a tier of the catalogue: then the slower of both rates counts. The step
    is "decode", a token for each user, or "prefill" of all their `context`. `efficiency` is the share of the card's
    FLOP rate that is reached. WorkbookError for a card that shares its memory with the host, or a rate that it has not.

    >>> from helpers.catalog import ServeSetup
    >>> answer = offload_serving_answer(ServeSetup("llama-3-8b"), "h100")
    >>> answer.state, round(answer.forward.overlapped_s, 3), round(answer.break_even_tokens)
    ('exposed', 0.219, 15459)
    """
    where = device(gpu)
    found = None if source == HOST else tier(source)
    rate = link_rate(where, found)
    require_whole("buffers", buffers, 1, 2, do="pass 2: one that computes, and one that is filled")
    options = {"link_bytes_per_s": rate, "compute_efficiency": efficiency}
    forward = offload.streamed(setup, where, step, buffers=buffers, **options)
    return OffloadServingAnswer(setup, where, step, found, efficiency, forward, reserve_bytes)


def _link(answer: OffloadServingAnswer) -> Iterator[Row]:
    one, gpu, source = answer.forward, answer.gpu, answer.source
    pcie = si(gpu.link_bytes_per_s("pcie"), "B/s")
    text = f"PCIe of the {gpu.title}, one way"
    if source:
        text = f"the slower of PCIe, {pcie}, and {source.name}, {si(source.read_bytes_per_s, 'B/s')}"
    yield "link", si(answer.link_bytes_per_s, "B/s"), text
    at = answer.largest
    which = f"each of {plural(len(one.layers_bytes), 'layer')}" if answer.is_uniform else "the largest"
    took = f"{si(one.copies_s[at], 's')} to arrive, {si(one.computes_s[at], 's')} of work"
    yield "a layer", format_bytes(one.layers_bytes[at]), f"{which}: {took}"


def _seconds(answer: OffloadServingAnswer) -> Iterator[Row]:
    """The three ways, and what each of them answers."""
    one, count = answer.forward, len(answer.forward.layers_bytes)
    copy, work, root = (si(value, "s") for value in (one.copies_s[0], one.computes_s[0], one.root_s))
    apart = f"{count} × ({copy} + {work}) + {root} root"
    if not answer.is_uniform:
        apart = f"copies {si(sum(one.copies_s), 's')} + work {si(sum(one.computes_s), 's')} + {root} root"
    overlapped = f"{copy} + {count - 1} × max({copy}, {work}) + {work} + {root} root"
    if not answer.is_uniform:
        overlapped = f"each copy while the layer before it computes, + {root} root"
    yield "streamed", si(one.overlapped_s, "s"), overlapped if one.buffers > 1 else apart
    yield "serial", si(one.serial_s, "s"), apart if one.buffers > 1 else "the same, for one buffer overlaps nothing"
    layers = f"{count} × {work}" if answer.is_uniform else si(sum(one.computes_s), "s")
    yield "resident", si(one.resident_s, "s"), f"{layers} + {root}, were all weights on the card"
    rates = {name: answer.tokens / took for name, took in (("now", one.overlapped_s), ("resident", one.resident_s))}
    many = f"{plural(answer.tokens, 'token')} / {si(one.overlapped_s, 's')}"
    text = f"{many}; {three_digits(rates['resident'])} with all weights resident"
    yield "throughput", f"{three_digits(rates['now'])} tok/s", text


def _bytes(answer: OffloadServingAnswer) -> Iterator[Row]:
    parts, one = answer.parts, answer.forward
    count = min(one.buffers, len(one.layers_bytes))
    cache = f" + KV cache {format_bytes(parts['kv_cache'])}"
    inside = f"root {format_bytes(parts['parameters'])} + {count} × {format_bytes(max(one.layers_bytes))}{cache}"
    yield "on the card", format_bytes(parts.total), inside
    where = answer.source.name if answer.source else f"the {answer.where}"
    yield "off the card", format_bytes(one.host_bytes), f"{plural(len(one.layers_bytes), 'layer')} in {where}"


def _even(answer: OffloadServingAnswer) -> Iterator[Row]:
    if answer.experts:
        yield answer.experts_row
        return
    tokens, users = answer.break_even_tokens, answer.users_that_hide
    weight = 2 * answer.link_bytes_per_s * tokens / answer.flops_per_s  # bytes that travel for each weight that is used
    form = f"{weight:.3g} B × {si(answer.flops_per_s, 'FLOP/s')} / (2 × {si(answer.link_bytes_per_s, 'B/s')})"
    yield "break-even", f"{tokens:,.0f}", f"tokens in one pass: {form}"
    if users:
        each = f"a prompt of {answer.setup.context:,} tokens" if answer.step == PREFILL else "a token"
        yield (
            "hidden from",
            f"{users:,}",
            f"users on, with {each} each; the card has room for {answer.users_that_fit:,}",
        )


def _cost(answer: OffloadServingAnswer) -> Iterator[str]:
    one = answer.forward
    adds, plain = si(one.exposed_s, "s"), si(one.resident_s, "s")
    if one.buffers == 1:
        yield f"Exposed: with one buffer nothing overlaps, and every copy is waited for: {adds} beside {plain} of work."
    elif one.is_hidden:
        share = percent(one.exposed_s / one.resident_s)
        yield f"Hidden: every copy but the first ends while the layer before computes; the link adds {adds}, {share}."
    else:
        ratio = three_digits(one.overlapped_s / one.resident_s)
        yield f"Exposed: the card waits for the link, which adds {adds} to {plain} of work: {ratio} times as long."


def _cure(answer: OffloadServingAnswer) -> Iterator[str]:
    """Which batch hides the copies, and whether the card has room for it."""
    users, one = answer.users_that_hide, answer.setup
    if answer.experts:
        yield from answer.experts_told
        return
    if users is None:
        yield "No number of users hides the copies."
        return
    if answer.forward.is_hidden or answer.forward.buffers == 1:
        return
    what = f"{plural(users, 'prompt')} of {one.context:,} tokens" if answer.step == PREFILL else plural(users, "user")
    needs = f"{format_bytes(budget.serve(replace(one, users=users)).held['kv_cache'])} of KV cache"
    if users <= answer.users_that_fit:
        yield f"{what} at once would hide it; with their {needs} they fit beside the buffers."
    else:
        room = f"the card has room for {answer.users_that_fit:,} beside the buffers"
        yield f"{what} at once would hide it, but need {needs}: {room}."


def _room(answer: OffloadServingAnswer) -> Iterator[str]:
    yield answer.room.sentence(answer.parts.total)
    if told := tier_sentence(answer.source, answer.forward.host_bytes):
        yield told
    whole = answer.resident_bytes
    if answer.room.verdict(whole) is Verdict.FITS:
        yield f"With all weights on the card it takes {format_bytes(whole)}, and fits: nothing needs to be offloaded."


def _way(answer: OffloadServingAnswer) -> Iterator[str]:
    source = answer.source
    if source and source.kind == "nvme":
        yield "What is read from a disk passes through the host's memory on its way to the card."
    elif source and source.kind == "network":
        yield "The layers are in the memory of another machine, and pass through the host's."


def _assumed(answer: OffloadServingAnswer) -> Iterator[str]:
    left_out = "; a prefill's activations are not counted" if answer.step == PREFILL else ""
    share = f"{percent(answer.efficiency)} of the card's FLOP rate"
    yield f"Assumed: {share}, and memory and link as fast as their datasheets{left_out}."


def _memories(answer: OffloadServingAnswer) -> list[Memory]:
    card = Memory(answer.gpu.title, answer.parts, answer.gpu.capacity_bytes, LABELS)
    layers = {"parameters": answer.forward.host_bytes}
    where = answer.where[0].upper() + answer.where[1:]
    return [card, Memory(where, layers, capacity_of(answer.source), LABELS)]


def _schedule(answer: OffloadServingAnswer) -> Card:
    """The first layers as they arrive, and the same layers were they there."""
    first, computes_s = answer.forward.turns[:SHOWN], answer.forward.computes_s
    arriving, resident = list[Busy](), list[Busy]()
    for at, turn in enumerate(first):
        buffer = at % answer.forward.buffers
        arriving.append(Busy(COPY, f"layer {at}", turn.copy_starts_s, turn.copy_ends_s, buffer))
        arriving.append(Busy(WORK, f"layer {at}", turn.starts_s, turn.ends_s, buffer))
        resident.append(Busy(WORK, f"layer {at}", sum(computes_s[:at]), sum(computes_s[: at + 1])))
    layers = f"the first {plural(len(first), 'layer')} of {len(computes_s)}"
    streamed = f"{layers}, through {plural(answer.forward.buffers, 'buffer')}"
    return lanes(answer.title, {streamed: arriving, "the same, with all weights on the card": resident})


PERCENT = tuple(range(10, 101, 10))
OFFLOAD_SERVE = Question(
    "serve",
    "a step whose layers are streamed from elsewhere",
    offload_serving_answer,
    (
        MODEL,
        *SERVED,
        replace(GPU, required=True),
        RESERVE,
        Parameter("step", f"{', '.join(STEPS)}: a token for each user, or all --context", DECODE).with_control(
            "step", STEPS
        ),
        Parameter(
            "source",
            f"where the layers are: {HOST}, over PCIe or {', '.join(TIERS)}",
            HOST,
            flag="--from",
            metavar="TIER",
            label="layers are in",
            steps=(HOST, *TIERS),
        ),
        Parameter("buffers", "1, or 2 so that copies overlap", 2, whole, metavar="N").with_control("buffers", (1, 2)),
        Parameter("efficiency", "of the FLOP rate", 1.0, decimal, metavar="SHARE"),
    ),
    setup=ServeSetup,
    family=("estimate", "offload"),
    units="bytes and seconds",
)
