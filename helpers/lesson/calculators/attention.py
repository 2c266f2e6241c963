"""The attention calculator: what its matrix takes and moves, what is left without it, where either takes the time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import Any

from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError, require_name, require_whole
from ...catalog.formats import number_format as named_format
from ...memory.breakdown import format_bytes
from ...memory.work import Roof, Work
from ...questions.parameter import Parameter, whole
from ...questions.parameters import GPU_WITH_RATES, POWERS
from ...questions.question import Question
from ...techniques.attention import counts
from ...techniques.attention.counts import Call
from ...techniques.attention.masks import Causal, Full, Window
from ..drawing.crossings import TimeCurve, crossings
from ..drawing.pictures import Card
from ..units import percent, si, three_digits
from .answers import CalculatorAnswer
from .attention_layer import DECODE, FORWARD, PHASES, TRAINING, at_length, kernels_of, least, mlp_of, peaks_of, per_tile
from .calculator import Calculator

FORMATS = ("fp32", "tf32", "bf16", "fp16")
MASKS = {"causal": Causal(), "none": Full()}
TILE, LARGEST = 128, 2**20
LENGTHS = tuple(2**power for power in range(7, 18))


@dataclass(frozen=True)
class AttentionAnswer(CalculatorAnswer):
    """One layer's attention on `gpu`; `asked_call` has the tokens and the mask, `call` what `phase` makes of them.

    Tiles are those of a kernel: 128 queries of a head, 128 keys.
    """

    gpu: Device
    asked_call: Call
    phase: str
    roof: Roof

    @cached_property
    def call(self) -> Call:
        return at_length(self.asked_call, self.asked_call.keys, self.phase)

    @cached_property
    def kernels(self) -> dict[str, list[Work]]:
        """What either way runs, one Work for each kernel; that without a matrix moves each tensor once."""
        return kernels_of(self.call, self.phase)

    @cached_property
    def seconds(self) -> dict[str, float]:
        return {name: least(self.roof, kernels) for name, kernels in self.kernels.items()}

    @property
    def moved(self) -> dict[str, int]:
        """Bytes by way; "tiles": without the matrix, where no cache holds what another program has read."""
        once = {name: sum(work.bytes for work in kernels) for name, kernels in self.kernels.items()}
        return once | {"tiles": max(once["tiled"], sum(work.bytes for work in per_tile(self.call, self.phase)))}

    @property
    def peaks(self) -> dict[str, int]:
        """Beside the inputs; of a training step what forward leaves for backward, the inputs counted in."""
        return peaks_of(self.call, self.phase)

    @cached_property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """By way, (tokens, seconds) over all lengths that are drawn."""
        drawn: dict[str, list[tuple[int, float]]] = {"linear layers": [], "naive": [], "tiled": []}
        for tokens in sorted({*LENGTHS, self.asked_call.keys}):
            for name, kernels in kernels_of(at_length(self.asked_call, tokens, self.phase), self.phase).items():
                drawn[name].append((tokens, least(self.roof, kernels)))
        return drawn

    @cached_property
    def breaks(self) -> dict[str, tuple[int, float] | None]:
        """For either way the tokens and seconds from which on attention takes longer than the linear layers.

        Between two lengths that are drawn, where the picture's straight lines cross: within 3 % of a count.
        """
        linear = self.curves["linear layers"]
        return {name: _crossing(self.curves[name], linear) for name in ("naive", "tiled")}

    @property
    def title(self) -> str:
        naive, tiled = (format_bytes(size) for size in self.peaks.values())
        words = "kept for backward" if self.phase == TRAINING else "beside the inputs"
        where = f"Attention over {self.asked_call.keys:,} tokens, {self.gpu.title}"
        return f"{where}: {naive} {words}, or {tiled} without the matrix"

    @property
    def question(self) -> Question:
        return ATTENTION

    @property
    def asked(self) -> dict[str, Any]:
        call = self.asked_call
        return {
            "gpu": self.gpu,
            "phase": self.phase,
            "sequence": call.keys,
            "batch": call.batch,
            "heads": call.heads,
            "kv_heads": call.kv_heads,
            "head_dim": call.head_dim,
            "mask": "none" if isinstance(call.mask, Full) else "causal",
            "window": call.mask.size if isinstance(call.mask, Window) else 0,
            "number_format": call.number_format,
        }

    def lines(self) -> Iterator[str]:
        """One line per figure, numbers substituted."""
        rows: list[tuple[str, str, str]] = [*self._bytes(), *self._traffic(), *self._times()]
        return (f"{name:<20}{value:>12}   {text}" for name, value, text in rows)

    def _bytes(self) -> Iterator[tuple[str, str, str]]:
        call, peaks = self.call, self.peaks
        sizes = f"{call.batch} × {call.heads} heads × {call.queries:,} × {call.keys:,} × {call.value_bytes} B"
        kept, masks = ("q, k, v, softmax", ", masks") if self.phase == TRAINING else ("two matrices", ", and the mask")
        results = "q, k, v, output, log-sum-exp" if self.phase == TRAINING else "output and log-sum-exp"
        what = "kept" if self.phase == TRAINING else "peak"
        yield "matrix", format_bytes(call.matrix_bytes), sizes
        yield f"{what} with it", format_bytes(peaks["naive"]), kept if self._unmasked else kept + masks
        yield f"{what} without", format_bytes(peaks["tiled"]), results

    def _traffic(self) -> Iterator[tuple[str, str, str]]:
        moved, seen = self.moved, counts.visited(self.call)
        tiles = -(-self.call.queries // TILE) * -(-self.call.keys // TILE)
        written, read = (6, 9) if self.phase == TRAINING else (3, 3)
        if self._unmasked:  # masking moves the matrix once each way, in forward and in backward
            written, read = (4, 7) if self.phase == TRAINING else (2, 2)
        yield "tiles visited", f"{seen.tiles:,}", f"of {tiles:,}, {TILE} queries by {TILE} keys of each head"
        yield "moved with it", si(moved["naive"], "B"), f"the matrix is written {written} times, and read {read}"
        yield "moved without", si(moved["tiled"], "B"), "every tensor once"
        yield "  with no cache", si(moved["tiles"], "B"), "keys and values once more for every tile that is visited"

    @property
    def _unmasked(self) -> bool:
        return isinstance(self.call.mask, Full)

    def _times(self) -> Iterator[tuple[str, str, str]]:
        rate, bandwidth = si(self.roof.flops_per_s, "FLOP/s"), si(self.roof.bytes_per_s, "B/s")
        yield "seconds with it", si(self.seconds["naive"], "s"), f"at least: every kernel at {bandwidth} or {rate}"
        yield "seconds without", si(self.seconds["tiled"], "s"), f"at least; {self._bound('tiled')}-bound"
        width, mlp = self.call.heads * self.call.head_dim, mlp_of(self.call)
        text = f"the layer's linear layers: width {width:,}, gated MLP of {mlp:,}"
        yield "beside them", si(self.seconds["linear layers"], "s"), text

    def _bound(self, name: str) -> str:
        slowest = max(self.kernels[name], key=self.roof.seconds)
        return self.roof.bound(slowest)

    def sentences(self) -> Iterator[str]:
        """What the matrix costs here, from where on it matters, and what the other way still cannot save."""
        naive, tiled, linear = (self.seconds[name] for name in ("naive", "tiled", "linear layers"))
        if self.phase == DECODE:
            yield "One query has no matrix, only a row: both ways read the cache, and that takes the time."
        else:
            times = self.peaks["naive"] / self.peaks["tiled"]
            kept = "keeps" if self.phase == TRAINING else "takes"
            faster = three_digits(naive / tiled)
            yield f"The matrix {kept} {three_digits(times)} times the bytes, and {faster} times the time."
        share = percent(tiled / (tiled + linear))
        yield f"At {self.asked_call.keys:,} tokens attention is {share} of a layer's time without it."
        if not any(self.breaks.values()):
            yield f"At no length up to {LENGTHS[-1]:,} tokens does it take longer than the linear layers."
            return
        where = [f"{self._from('naive')} with the matrix", f"{self._from('tiled')} without it"]
        yield f"It takes longer than the linear layers {where[0]}, {where[1]}; before that the time is theirs."

    def _from(self, name: str) -> str:
        crossed = self.breaks[name]
        return f"from {crossed[0]:,} tokens on" if crossed else f"at no length up to {LENGTHS[-1]:,} tokens"

    @property
    def cards(self) -> tuple[Card, ...]:
        named = {"linear layers": "linear layers", "naive": "with the matrix", "tiled": "without"}
        lines = [TimeCurve(named[name], tuple(line)) for name, line in self.curves.items()]
        crossed = {f"{named[name]}: {at[0]:,} tokens": at for name, at in self.breaks.items() if at}
        return (crossings(self.title, lines, crossed, self.asked_call.keys),)

    @property
    def figures(self) -> dict[str, Any]:
        call = self.call
        return {
            "matrix_bytes": call.matrix_bytes,
            "naive_bytes": self.peaks["naive"],
            "tiled_bytes": self.peaks["tiled"],
            "tiles_visited": counts.visited(call).tiles,
            "naive_moved_bytes": self.moved["naive"],
            "tiled_moved_bytes": self.moved["tiled"],
            "tiled_moved_bytes_without_cache": self.moved["tiles"],
            "naive_seconds": self.seconds["naive"],
            "tiled_seconds": self.seconds["tiled"],
            "linear_seconds": self.seconds["linear layers"],
            **{f"{name}_break_even": at and at[0] for name, at in self.breaks.items()},
        }


def attention_answer(
    gpu: str | Device,
    sequence: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    batch: int = 1,
    mask: str = "causal",
    window: int = 0,
    number_format: str = "bf16",
    phase: str = FORWARD,
) -> AttentionAnswer:
    """One layer's attention over `sequence` tokens with the matrix and without it, and the layers beside it.

    `mask` is "causal" or "none"; `window` is that of a sliding window, always causal, 0 for none; `phase` is "forward",
    "training" (with its backward) or "decode", one query over a cache of `sequence` tokens. Sizes left out are those of
    Llama-3-8B. Times are floors: datasheet rates, nothing in a cache, no kernel takes time to start. WorkbookError for
    sizes and names that are none.

    >>> answer = attention_answer("h100", sequence=4096)
    >>> answer.figures["tiles_visited"], answer.figures["naive_break_even"], answer.figures["tiled_break_even"]
    (528, 3680, 53100)
    """
    require_name("phase", phase, PHASES)
    require_name("number format", number_format, FORMATS)
    require_name("mask", mask, MASKS)
    where, number = device(gpu), named_format(number_format).name
    require_whole("sequence", sequence, most=LARGEST, unit="tokens")
    require_whole("window", window, least=0, most=LARGEST, unit="tokens, 0 for none,")
    if where.peak_flops and number not in where.peak_flops:
        able = [known for known in FORMATS if known in where.peak_flops]
        what = f"{where.title} has no rate for matrix products in {number}"
        raise WorkbookError(what, f"on this device: {', '.join(able)}", "pick one of these formats")
    seen = Window(window) if window else MASKS[mask]
    call = Call(sequence, 0, heads, kv_heads, head_dim, batch, seen, number, (TILE, TILE))
    return AttentionAnswer(where, call, phase, Roof.of(where, number))


def _crossing(line: list[tuple[int, float]], other: list[tuple[int, float]]) -> tuple[int, float] | None:
    """(tokens, to three digits, and seconds) where `line` comes to lie above `other`; None where it never does."""
    above = [log(took / compared) for (_, took), (_, compared) in zip(line, other, strict=True)]
    at = next((place for place, ratio in enumerate(above) if ratio >= 0), None)
    if not at:
        return None if at is None else line[0]
    share = above[at - 1] / (above[at - 1] - above[at])
    tokens, seconds = (_between(line[at - 1][axis], line[at][axis], share) for axis in (0, 1))
    return round(float(f"{tokens:.3g}")), seconds


def _between(low: float, high: float, share: float) -> float:
    """On a logarithmic axis."""
    return low * (high / low) ** share


def attention(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `attention(gpu="t4", number_format="fp16", sequence=1024)`.

    It opens on one layer of Llama-3-8B over 4,096 tokens.
    """
    return Calculator(ATTENTION, start)


ATTENTION = Question(
    "attention",
    "one layer's attention with its matrix and without: bytes, traffic, the lengths where either takes the time",
    attention_answer,
    (
        replace(GPU_WITH_RATES, required=True),
        Parameter("phase", ", ".join(PHASES), FORWARD, label="phase", steps=PHASES),
        Parameter(
            "sequence", "tokens, with --phase decode those in the cache", 4096, whole, label="tokens", steps=LENGTHS
        ),
        Parameter("batch", "sequences at once", 1, whole, label="sequences", steps=POWERS[:7]),
        Parameter("heads", "heads of queries", 32, whole, label="heads", steps=(8, 16, 32, 64, 128)),
        Parameter(
            "kv_heads", "heads of keys and values, which divide them", 8, whole, label="KV heads", steps=POWERS[:8]
        ),
        Parameter("head_dim", "width of a head", 128, whole, label="head dim", steps=(64, 80, 96, 128, 256)),
        Parameter("mask", "causal, or none: every query sees every key", "causal", label="mask", steps=tuple(MASKS)),
        Parameter(
            "window",
            "keys that a query sees, itself counted in; 0: all before it",
            0,
            whole,
            label="window, tokens",
            steps=(0, 512, 1024, 4096, 8192),
        ),
        Parameter(
            "number_format",
            f"number format of the tensors: {', '.join(FORMATS)}",
            "bf16",
            flag="--format",
            label="number format",
            steps=FORMATS,
        ),
    ),
    units="bytes and seconds",
    title="Attention without the matrix",
    asks="What does attention keep and move, with it and without?",
    invites="Move tokens to the left until the linear layers take the time. Then phase to decode.",
    controls=(
        *("gpu", "phase", "sequence", "batch", "heads", "kv_heads", "head_dim", "mask", "window", "number_format"),
    ),
    front=("gpu", "phase", "sequence", "batch", "mask"),
)
