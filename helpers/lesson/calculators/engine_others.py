"""What SGLang and llama.cpp hold on a card, as far as it is derived, and what is not counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...catalog.devices import Device
from ...memory.breakdown import Breakdown, format_bytes
from ...memory.fit.room import Room, Verdict
from ...memory.serve.engines.llamacpp import LlamaCpp
from ...memory.serve.engines.llamacpp_layers import (
    MARGIN_BYTES,
    LayerPlacement,
    fewest_cpu_experts,
    longest_context,
    most_layers,
)
from ...memory.serve.engines.sglang import SglangLaunch
from ...questions.question import UNKNOWN, Question
from .answers import MemoryAnswer, plural, row
from .serving_memory import SERVE


@dataclass(frozen=True)
class SglangAnswer(MemoryAnswer):
    """A rank's static memory: weights, and a pool of tokens in what its fraction leaves."""

    launch: SglangLaunch

    @property
    def title(self) -> str:
        made = self.launch
        return f"Serving {made.setup.model.name} with SGLang: {made.users:,} users of {made.setup.context:,} tokens"

    @property
    def question(self) -> Question:
        return SERVE

    @property
    def asked(self) -> dict[str, Any]:
        made = self.launch
        tensor = made.tensor if made.tensor > 1 else None
        return {"setup": made.setup, "engine": "sglang", "tensor": tensor, "share": made.share, **self.on_card}

    @property
    def figures(self) -> dict[str, Any]:
        made = self.launch
        return {
            "engine": "sglang",
            "fraction": made.fraction,
            "free_bytes": made.free_bytes,
            "weight_bytes": made.weight_bytes,
            "pool_bytes": made.pool_bytes,
            "token_bytes": made.token_bytes,
            "tokens": made.tokens,
            "users": made.users,
            "tensor": made.tensor,
        }

    def lines(self) -> Iterator[str]:
        made = self.launch
        free, (tokens, sequences) = format_bytes(made.free_bytes), made.sizes
        static = int(made.fraction * made.free_bytes)
        yield row("static", format_bytes(static), f"{made.fraction:g} of the {free} that are free before loading")
        yield row("- weights", format_bytes(made.weight_bytes), f"{made.setup.weights_told}, rotary tables too")
        yield row("= KV pool", format_bytes(made.pool_bytes), f"{made.tokens:,} tokens")
        yield row("a token", format_bytes(made.token_bytes), f"K and V in {made.setup.kv}")
        if made.share is None:
            kept = f"its rule for pieces of {tokens:,} tokens and graphs of {sequences:,} sequences"
            yield row("kept", format_bytes(made.reserved_bytes), kept)

    def sentences(self) -> Iterator[str]:
        made = self.launch
        if made.pool_bytes <= 0:
            yield f"SGLang does not start: weights are {format_bytes(-made.pool_bytes)} more than its static memory."
        else:
            yield f"SGLang holds {plural(made.users, 'such user')} at once."
        yield from made.setup.shipped_told
        yield "Not counted: what grows outside torch while it loads; its activations and graphs are in what it keeps."


@dataclass(frozen=True)
class LlamaCppAnswer(MemoryAnswer):
    """Buffers on a card: the model's, the cache's, and the logits of the compute buffer; and what to leave on the host.

    On `count` cards of one kind the parts are those of all together. `placed` are the ways to divide what does not fit.
    """

    served: LlamaCpp
    count: int = 1
    placed: tuple[LayerPlacement, ...] = ()
    longest: int = 0

    @property
    def title(self) -> str:
        setup = self.served.setup
        slots = f"{plural(setup.users, 'slot')} of {setup.context:,} tokens"
        return f"Serving {setup.model.name} with llama.cpp: {format_bytes(self.parts.total)} at least, {slots}"

    @property
    def question(self) -> Question:
        return SERVE

    @property
    def asked(self) -> dict[str, Any]:
        engine = "llama.cpp" if self.count == 1 else UNKNOWN  # no flag says how many cards share the layers
        return {"setup": self.served.setup, "engine": engine, **self.on_card}

    @property
    def figures(self) -> dict[str, Any]:
        made = self.served
        cells = [{"cells": cells, "layers": layers} for cells, layers in made.cells]
        figures = {"engine": "llama.cpp", "parts": dict(self.parts), "least_bytes": self.parts.total, "cache": cells}
        if self.gpu is None:
            return figures
        return {
            **figures,
            "cards": self.count,
            "longest_context": self.longest,
            "fits": self.fits,
            "leaves_margin": self.whole is not None,
            "placements": [_placed_figures(one) for one in self.placed],
        }

    @property
    def fits(self) -> bool:
        """Whether all layers fit, as the text says: on one card the margin of its own --fit is told apart."""
        if self.whole or self.room is None or self.count > 1:
            return self.whole is not None
        return self.room.verdict(self.parts.total) is Verdict.FITS

    @property
    def whole(self) -> LayerPlacement | None:
        """All layers on the cards, where they fit with llama.cpp's margin."""
        return next((one for one in self.placed if one.is_whole), None)

    def lines(self) -> Iterator[str]:
        made = self.served
        yield row("weights", format_bytes(made.weight_bytes), made.setup.weights_told)
        copied = ", and as the head on the card" if made.setup.model.tied else ""
        yield row("on the host", format_bytes(made.host_bytes), f"the embedding, where rows are looked up{copied}")
        cells = ", ".join(f"{cells:,} cells in {plural(layers, 'layer')}" for cells, layers in made.cells)
        yield row("KV cache", format_bytes(made.kv_bytes), f"{cells}, K and V in {made.setup.kv}")
        if made.state_bytes:
            slots = plural(made.setup.users, "slot")
            yield row("states", format_bytes(made.state_bytes), f"of recurrent layers in FP32, of {slots}")
        text = f"of {made.ubatch:,} tokens × {made.setup.model.vocab:,} vocabulary in FP32: most of its compute buffer"
        yield row("logits", format_bytes(made.logit_bytes), text)
        yield from map(self._placed_line, self.placed)

    def _placed_line(self, one: LayerPlacement) -> str:
        """The flags, what they leave on a card, and which layers those are."""
        layers = len(self.served.setup.model.layers)
        which = f"the output and the last {one.decoder_layers} of {layers} layers"
        if one.gpu_layers > layers:
            which = f"all {layers} layers and the output"
        if one.cpu_moe:
            which += f", but for the experts of the first {one.cpu_moe}"
        away = one.host_weight_bytes + one.host_cache_bytes
        each = "on each card at most" if one.cards > 1 else "on the card"
        return f"{one.flags:<20} {format_bytes(one.card_bytes):>10} {each}, {format_bytes(away)} on the host: {which}"

    def sentences(self) -> Iterator[str]:
        if self.room and self.count == 1:
            yield self.room.sentence(self.parts.total, " for the rest of its compute buffer")
        if self.gpu:
            yield from self._placements()
        yield from self.served.setup.shipped_told
        yield "Not counted: the rest of the compute buffer, and its part on the host."

    def _placements(self) -> Iterator[str]:
        title = self.gpu.title if self.gpu else ""
        on = f"{self.count} × {title}" if self.count > 1 else f"the {title}"
        slot = "a slot" if self.served.setup.users > 1 else "in all"
        if self.whole:
            yield f"With all layers on {on} a context of up to {self.longest:,} tokens {slot} fits."
            return
        every = "All layers fit"
        if self.placed and self.room and self.room.verdict(self.parts.total // self.count) is Verdict.FITS:
            kept = f"the {format_bytes(MARGIN_BYTES)} that llama.cpp's own --fit keeps"
            yield f"That leaves less than {kept}: {self.placed[0].flags} leaves it."
            every = "With that much kept all layers fit"
        if self.longest:
            yield f"{every} {on} with a context of {self.longest:,} tokens {slot}."
        if not self.placed:
            yield f"Not even the output fits {on}: all of it stays on the host, -ngl 0."
        elif not self.gpu or not self.gpu.unified:
            of_experts = ", of experts those that it chose" if any(one.cpu_moe for one in self.placed) else ""
            yield f"What stays on the host is mapped from the file, and each token reads it there{of_experts}."


def _placed_figures(one: LayerPlacement) -> dict[str, Any]:
    return {
        "gpu_layers": one.gpu_layers,
        "cpu_moe": one.cpu_moe,
        "card_bytes": one.card_bytes,
        "host_weight_bytes": one.host_weight_bytes,
        "host_cache_bytes": one.host_cache_bytes,
    }


def sglang_answer(launch: SglangLaunch) -> SglangAnswer:
    return SglangAnswer(Breakdown(launch.parts), launch.card, reserve_bytes=0, launch=launch)


def llamacpp_answer(served: LlamaCpp, gpu: Device | None, reserve_bytes: int | None, cards: int = 1) -> LlamaCppAnswer:
    """On `cards` of a kind: what all layers take, and how many go onto the cards where that is too much."""
    parts = Breakdown(served.parts)
    if gpu is None:
        return LlamaCppAnswer(parts, gpu, reserve_bytes=reserve_bytes, served=served)
    room = Room(gpu, reserve_bytes).for_tensors_bytes - (MARGIN_BYTES if reserve_bytes is None else 0)
    if gpu.unified:  # the host's memory is the card's: nothing is gained by leaving layers there
        parts = Breakdown({**parts, "parameters": parts["parameters"] + served.host_bytes})
        room -= served.host_bytes
    ways = (most_layers(served, room, cards), fewest_cpu_experts(served, room, cards))
    placed = tuple(dict.fromkeys(one for one in ways if one and (one.is_whole or not gpu.unified)))
    longest = longest_context(served, room, cards)
    return LlamaCppAnswer(
        parts, gpu, reserve_bytes=reserve_bytes, served=served, count=cards, placed=placed, longest=longest
    )
