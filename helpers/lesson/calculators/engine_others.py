"""What SGLang and llama.cpp hold on a card, as far as it is derived, and what is not counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ...catalog.devices import Device
from ...memory.breakdown import Breakdown, format_bytes
from ...memory.serve.engines.llamacpp import LlamaCpp
from ...memory.serve.engines.sglang import SglangLaunch
from .answers import MemoryAnswer, plural, row
from .command import command, setup_options


@dataclass(frozen=True)
class SglangAnswer(MemoryAnswer):
    """A rank's static memory: weights, and a pool of tokens in what its fraction leaves."""

    launch: SglangLaunch

    @property
    def title(self) -> str:
        made = self.launch
        return f"Serving {made.setup.model.name} with SGLang: {made.users:,} users of {made.setup.context:,} tokens"

    @property
    def command(self) -> str | None:
        made = self.launch
        given = (("--tensor", made.tensor, 1), ("--share", made.share, None))
        options = ((flag, value) for flag, value, usual in given if value != usual)
        named = ((("--engine", "sglang"),), options, self.device_options())
        return command("serve", chain(setup_options(made.setup), *named))

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
    """Buffers on a card: the model's, the cache's, and the logits of the compute buffer."""

    served: LlamaCpp

    @property
    def title(self) -> str:
        setup = self.served.setup
        slots = f"{plural(setup.users, 'slot')} of {setup.context:,} tokens"
        return f"Serving {setup.model.name} with llama.cpp: {format_bytes(self.parts.total)} at least, {slots}"

    @property
    def command(self) -> str | None:
        options = (setup_options(self.served.setup), (("--engine", "llama.cpp"),), self.device_options())
        return command("serve", chain(*options))

    @property
    def figures(self) -> dict[str, Any]:
        made = self.served
        cells = [{"cells": cells, "layers": layers} for cells, layers in made.cells]
        return {"engine": "llama.cpp", "parts": dict(self.parts), "least_bytes": self.parts.total, "cache": cells}

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

    def sentences(self) -> Iterator[str]:
        if self.room:
            yield self.room.sentence(self.parts.total, " for the rest of its compute buffer")
        yield from self.served.setup.shipped_told
        yield "Not counted: the rest of the compute buffer, and layers that are left on the host."


def sglang_answer(launch: SglangLaunch) -> SglangAnswer:
    return SglangAnswer(Breakdown(launch.parts), launch.card, reserve_bytes=0, launch=launch)


def llamacpp_answer(served: LlamaCpp, gpu: Device | None, reserve_bytes: int) -> LlamaCppAnswer:
    parts = Breakdown(served.parts)
    if gpu and gpu.unified:  # the host's memory is the card's
        parts = Breakdown({**parts, "parameters": parts["parameters"] + served.host_bytes})
    return LlamaCppAnswer(parts, gpu, reserve_bytes=reserve_bytes, served=served)
