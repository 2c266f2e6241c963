"""What a served model needs: what it holds, and what the largest forward takes besides, against one device."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...catalog.devices import Device, device
from ...catalog.engines import ENGINES
from ...catalog.hardware import dequantized, reference_of, without_cuda
from ...catalog.serve_setup import PIECE_TOKENS, ServeSetup
from ...memory import budget
from ...memory.breakdown import Moment, Part, Point, format_bytes
from ...memory.serve.engines.weights import longest_context
from ...questions.parameter import Parameter, decimal, whole
from ...questions.parameters import GPU, MODEL, RESERVE, SERVED
from ...questions.question import Question
from .answers import MemoryAnswer, first_over, row, weights_do_not_fit, without_kernel


@dataclass(frozen=True)
class ServingAnswer(MemoryAnswer):
    """The peak of a replica by part: in the prefill of a prompt, or in the last decode step."""

    predicted: budget.ServeBudget
    stored: str = ""  # the format of the checkpoint, where Transformers dequantizes it on this card

    @property
    def title(self) -> str:
        model, size = self.predicted.setup.model.name, format_bytes(self.predicted.peak_bytes)
        if self.predicted.why:
            return f"Serving {model}: {size} for weights and a full KV cache"
        return f"Serving {model}: {size} at the peak, {self.predicted.peak.when}"

    @property
    def question(self) -> Question:
        return SERVE

    @property
    def asked(self) -> dict[str, Any]:
        return {"setup": self.predicted.setup, **self.on_card}

    @property
    def figures(self) -> dict[str, Any]:
        moments = {str(moment.at): moment.total for moment in self.predicted.moments}
        return {**super().figures, "held": dict(self.predicted.held), "moments": moments}

    def lines(self) -> Iterator[str]:
        setup, a_token = self.predicted.setup, self.predicted.kv_bytes_per_token
        explained = {
            Part.PARAMETERS: f"{setup.model.parameters_with_towers:,} {setup.weights_told}",
            Part.KV_CACHE: f"{setup.users:,} users × {setup.context:,} tokens, K and V in {setup.kv}",
            Part.ACTIVATIONS: f"of {self._forward()}",
            Part.LOGITS: f"of the last token of each sequence × {setup.model.vocab:,} vocabulary",
            Part.WORKSPACE: "cuBLAS, and weights that a kernel decodes",
        }
        for part in (Part.PARAMETERS, Part.KV_CACHE, Part.ACTIVATIONS, Part.LOGITS, Part.WORKSPACE):
            if size := self.parts.get(part, 0):
                yield row(str(part).replace("kv_cache", "KV cache"), format_bytes(size), explained[part])
            yield from self._windows() if part is Part.ACTIVATIONS else ()
        yield row("a token", format_bytes(a_token), "of one sequence, over the layers that still grow")
        for moment in () if self.predicted.why else self.predicted.moments:
            yield row(str(moment.at), format_bytes(moment.total), self._words(moment))

    def _forward(self) -> str:
        if self.predicted.peak.at is Point.DECODE:
            return f"one token for each of {self.predicted.setup.users:,} users"
        return f"one forward over {self.predicted.setup.forward[1]:,} tokens"

    def _windows(self) -> Iterator[str]:
        """What of the prefill's activations layers with a window hold of its K and V."""
        dropped, layers = self.predicted.dropped_bytes, self.predicted.setup.model.layers
        if dropped and self.predicted.peak.at is Point.PREFILL:
            count = sum(layer.attention.window is not None for layer in layers)
            text = f"of these: its K and V in {count} layers, whose windows drop them after it"
            yield row("in windows", format_bytes(dropped), text)

    def _words(self, moment: Moment) -> str:
        peak = ", the peak" if moment is self.predicted.peak else ""
        if moment.at is Point.DECODE:
            return f"all caches full{peak}"
        prompts, tokens = self.predicted.setup.forward
        others = self.predicted.setup.users - prompts
        beside = f", beside {others:,} full caches" if others else ""
        return f"{tokens:,} tokens in one forward{beside}{peak}"

    def sentences(self) -> Iterator[str]:
        need, gpu = self.predicted.peak_bytes, self.gpu
        if gpu is None:
            yield f"One replica needs {format_bytes(need)}."
        elif self.room and gpu.capacity_bytes < self.parts["parameters"]:
            yield weights_do_not_fit(gpu, self.parts["parameters"] - gpu.capacity_bytes)
        elif self.room:
            yield self.traced or self.room.sentence(need, " for activations" if self.predicted.why else "")
            yield from () if self.traced else first_over(self.predicted.moments, self.room)
            if not self.holds(need):
                yield f"At this context {self._users(self.room.for_tensors_bytes):,} users would fit."
        if self.stored and gpu:
            yield f"{without_kernel(self.stored, gpu)}."
        yield from self._beyond()
        yield from self.predicted.setup.shipped_told
        if self.predicted.why:
            yield f"{self.predicted.why[0].upper()}{self.predicted.why[1:]}."
        else:
            yield from self._in_pieces()
            yield from self._whose_rule()
        yield from without_cuda(gpu)

    def _beyond(self) -> Iterator[str]:
        """What positions beyond the model's own mean; their bytes are the same."""
        setup = self.predicted.setup
        most = longest_context(setup.model)
        if most and setup.context > most:
            yield (
                f"{setup.model.name} was made for {most:,} tokens, and the context has {setup.context:,}: "
                "vLLM does not start with it."
            )

    def _users(self, room_bytes: int) -> int:
        """The most users that fit; never fewer with fewer bytes each."""
        counts = range(1, self.predicted.setup.users + 1)
        return bisect_right(counts, room_bytes, key=lambda users: self._need(users=users))

    def _whose_rule(self) -> Iterator[str]:
        if any(layer.attention.delta for layer in self.predicted.setup.model.layers):
            own = "The delta rule is counted as Transformers' own code runs it"
            yield f"{own}; flash-linear-attention's kernels take less."

    def _in_pieces(self) -> Iterator[str]:
        """How a long prompt is taken, and what the other way would need: in pieces, or whole."""
        setup = self.predicted.setup
        tokens, whole = setup.forward[1], setup.prompt_tokens
        if self.predicted.peak.at is not Point.PREFILL or whole <= PIECE_TOKENS:
            return
        if setup.prefill_tokens is None:
            need = format_bytes(self._need(prefill_tokens=whole))
            yield (
                f"The prompt is taken in pieces of {tokens:,} tokens, as vLLM and SGLang do by default on large cards; "
                f"whole, as Transformers takes it (--prefill-tokens {whole}), it needs {need}."
            )
        elif tokens > PIECE_TOKENS:
            need = format_bytes(self._need(prefill_tokens=PIECE_TOKENS))
            piece = f"{PIECE_TOKENS:,} tokens at a time (--prefill-tokens {PIECE_TOKENS})"
            yield f"An engine that takes {piece} needs {need}."

    def _need(self, **changed: int) -> int:
        setup = replace(self.predicted.setup, **changed)  # type: ignore[arg-type]
        return budget.serve(setup, self.gpu or reference_of(setup)).peak_bytes


def serving_answer(
    setup: ServeSetup, gpu: str | Device | None = None, reserve_bytes: int | None = None
) -> ServingAnswer:
    """What `setup` needs on `gpu`: the peak by part, of prefill or of decoding, and how many users would fit.

    Of a model whose activations have no closed form, weights and KV cache alone.
    """
    card = device(gpu) if gpu else None
    run = dequantized(setup, card)
    predicted = budget.serve(run, card or reference_of(run))
    stored = "" if run is setup else setup.weights
    return ServingAnswer(predicted.parts, card, predicted, stored, reserve_bytes=reserve_bytes)


ENGINE_GROUP = "of an engine that takes its share of the card before a request comes"
POOLED = tuple(  # what the engine says, and not the setup
    replace(parameter, group=ENGINE_GROUP)
    for parameter in (
        Parameter(
            "engine",
            f"{', '.join(ENGINES)}; default: the forward of Transformers, a long prompt in pieces",
            completes=tuple(ENGINES),
        ),
        Parameter("engine_version", "as in 0.19; default: the newest that is known", metavar="V"),
        Parameter("tensor", "tensor parallel ranks (default 1)", type=whole, metavar="N"),
        Parameter("pipeline", "stages of a pipeline (default 1)", type=whole, metavar="N"),
        Parameter("share", "of the whole card (gpu_memory_utilization); default: its version's", type=decimal),
        Parameter("max_seqs", "sequences at once (max_num_seqs); default: by card", type=whole, metavar="N"),
    )
)
SERVE = Question(
    "serve",
    "one replica: weights, KV cache, and what prefill and decoding take",
    serving_answer,
    (MODEL, *SERVED, *POOLED, GPU, RESERVE),
    setup=ServeSetup,
)
