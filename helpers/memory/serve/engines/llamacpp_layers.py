"""Which layers of a model llama.cpp puts onto a card, and what stays on the host: `--n-gpu-layers`, `--n-cpu-moe`.

Derived from `load_tensors` in src/llama-model.cpp of ggml-org/llama.cpp: of so many layers the output comes first, then
the last decoder layers; a layer's cache lies where its weights do; the tables of the input stay on the host. On several
cards the layers are divided by free memory, here equally. Before pull request 18148 (December 2025) the output came
last. `--n-cpu-moe` leaves the experts of the first layers on the host, and their attention and cache on the card.

While a prompt is computed, a matrix on the host is copied to the card, one at a time (ggml/src/ggml-backend.cpp); it is
counted beside the logits, as in the 1,088 MiB that Llama-3-70B's log has with its output on the host: 822 and 250.

    all_layers(LlamaCpp(ServeSetup("llama-3-8b"))).gpu_layers      # 33: 32 layers and the output
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from ....catalog.errors import require_whole
from ....catalog.layers import Layer
from ....catalog.setup_fields import MAX_TOKENS
from ..weights import layer_bytes, layer_weight_bytes
from .llamacpp import INPUT, PADDING, LlamaCpp

JOINED = "gate_up"
EXPERTS = "_exps"  # in the names of stacked experts' tensors
MARGIN_BYTES = 2**30  # that llama.cpp's own --fit leaves free on each card (tools/fit-params/README.md)


@dataclass(frozen=True)
class LayerPlacement:
    """`served` with `gpu_layers` of its layers on `cards` equal cards, but for the experts of the first `cpu_moe`.

    The output counts as a layer: with all decoder layers and one more nothing but the input's tables is on the host.
    Raises WorkbookError.
    """

    served: LlamaCpp
    gpu_layers: int
    cpu_moe: int = 0
    cards: int = 1

    def __post_init__(self) -> None:
        count = len(self.served.setup.model.layers)
        require_whole("gpu_layers", self.gpu_layers, 0, most=count + 1, do=f"pass gpu_layers={count + 1} for all")
        require_whole("cpu_moe", self.cpu_moe, 0, most=count, do="pass cpu_moe=0: experts where their layer is")
        require_whole("cards", self.cards, most=2**10, do="pass cards=1")

    @property
    def is_whole(self) -> bool:
        """Whether every layer is on a card, with its experts."""
        return self.gpu_layers == len(self._layers) + 1 and not self.cpu_moe

    @property
    def decoder_layers(self) -> int:
        """On the cards: what is left of them once the output is there."""
        return max(0, self.gpu_layers - 1)

    @property
    def card_bytes(self) -> int:
        """Of the fullest card, with the least that it computes in.

        Llama-3.1-70B in Q4_K_M, 8,192 tokens, 41 of 81 layers: 21.58 GiB, and 20.90 on the host.
        """
        held = [0] * self.cards
        held[-1] += self._computing_bytes
        for at, size in enumerate(self._on_card):
            held[at * self.cards // max(1, self.gpu_layers)] += size
        return max(held)

    @property
    def cards_bytes(self) -> int:
        """Weights and cache of all cards together, without what they compute in."""
        return sum(self._on_card)

    @property
    def host_weight_bytes(self) -> int:
        """Of the file's mapping, in pages that the system may read again: tables of the input, layers, experts."""
        all_layers = sum(map(self._weight_bytes, range(len(self._layers))))
        here = sum(self._weight_bytes(at) - self._left_out(at) for at in self._here)
        output = 0 if self.gpu_layers else self._output_bytes - self._copied_bytes
        return self.served.host_bytes + all_layers - here + output

    @property
    def host_cache_bytes(self) -> int:
        return sum(map(self._cache_bytes, range(self._start)))

    @property
    def flags(self) -> str:
        """As llama.cpp takes them.

        >>> from helpers.catalog import ServeSetup
        >>> all_layers(LlamaCpp(ServeSetup("gpt-oss-20b", context=8192))).flags
        '-ngl 25'
        """
        return f"-ngl {self.gpu_layers}" + (f" --n-cpu-moe {self.cpu_moe}" if self.cpu_moe else "")

    @property
    def _layers(self) -> tuple[Layer, ...]:
        return self.served.setup.model.layers

    @property
    def _start(self) -> int:
        """The first decoder layer on a card."""
        return len(self._layers) - self.decoder_layers

    @property
    def _here(self) -> range:
        return range(self._start, len(self._layers))

    @property
    def _on_card(self) -> Iterator[int]:
        """Of each layer on the cards, the output last: its weights and its cache."""
        yield from (self._weight_bytes(at) - self._left_out(at) + self._cache_bytes(at) for at in self._here)
        if self.gpu_layers:
            yield self._output_bytes

    @property
    def _computing_bytes(self) -> int:
        """The logits, and the largest matrix that is copied from the host."""
        if not self.gpu_layers:
            return 0
        sizes = self._sizes
        away = [sizes.largest[at] for at in range(self._start)]
        away += [sizes.largest_expert[at] for at in self._here if at < self.cpu_moe]
        return self.served.logit_bytes + max(away, default=0)

    @cached_property
    def _sizes(self) -> LayerSizes:
        return sizes_of(self.served)

    def _weight_bytes(self, at: int) -> int:
        return self._sizes.weights[at]

    def _left_out(self, at: int) -> int:
        """Experts of a layer on the card that are on the host."""
        return self._sizes.experts[at] if at < self.cpu_moe else 0

    def _cache_bytes(self, at: int) -> int:
        return self._sizes.cache[at]

    @property
    def _output_bytes(self) -> int:
        return self.served.weight_bytes - sum(self._sizes.weights)

    @property
    def _copied_bytes(self) -> int:
        """A table that is the head as well, which is on the host anyway."""
        return self.served.input_bytes(INPUT[0]) if self.served.setup.model.tied else 0


@dataclass(frozen=True)
class LayerSizes:
    """Bytes by decoder layer: weights and the experts among them, the cache, and the largest matrix of either."""

    weights: tuple[int, ...]
    experts: tuple[int, ...]
    cache: tuple[int, ...]
    largest: tuple[int, ...]
    largest_expert: tuple[int, ...]


def sizes_of(served: LlamaCpp) -> LayerSizes:
    """Each tensor in its own type where a GGUF file says it, else each layer in the setup's format."""
    layers = range(len(served.setup.model.layers))
    tensors = _stored(served) if served.setup.model.stored else _by_config(served)
    weights = tuple(sum(size for _, size, _ in tensors[at]) for at in layers)
    experts = tuple(sum(size for is_expert, size, _ in tensors[at] if is_expert) for at in layers)
    largest = tuple(max((copied for *_, copied in tensors[at]), default=0) for at in layers)
    of_experts = tuple(max((copied for one, _, copied in tensors[at] if one), default=0) for at in layers)
    return LayerSizes(weights, experts, tuple(map(served.layer_cache_bytes, layers)), largest, of_experts)


_Tensors = list[list[tuple[bool, int, int]]]  # by layer: whether an expert's, bytes, and those of a matrix in it


def _stored(served: LlamaCpp) -> _Tensors:
    found: _Tensors = [[] for _ in served.setup.model.layers]
    for tensor in served.setup.model.stored:
        start, _, rest = tensor.name.partition(".")
        number, _, name = rest.partition(".")
        if start == "blk" and number.isdecimal() and int(number) < len(found):
            size = tensor.size_bytes
            found[int(number)].append((EXPERTS in name, size, size if len(tensor.shape) > 1 else 0))
    return found


def _by_config(served: LlamaCpp) -> _Tensors:
    """Of a model without a file: its linear layers, and what a layer has besides."""
    found: _Tensors = []
    for layer in served.setup.model.layers:
        sizes = {one: one.count * layer_bytes(served.setup, one) for one in layer.linears()}
        rest = layer_weight_bytes(served.setup, layer) - sum(sizes.values())
        # a file has two matrices where the checkpoint has gate and up in one
        parts = {one: size // (2 if JOINED in one.linear.name else 1) for one, size in sizes.items()}
        found.append([*((one.part == "experts", size, parts[one]) for one, size in sizes.items()), (False, rest, 0)])
    return found


def all_layers(served: LlamaCpp, cards: int = 1) -> LayerPlacement:
    return LayerPlacement(served, len(served.setup.model.layers) + 1, cards=cards)


def most_layers(served: LlamaCpp, room_bytes: int, cards: int = 1) -> LayerPlacement | None:
    """As many layers as fit into `room_bytes` of each card; None where not even the output does."""
    whole = all_layers(served, cards)
    tried = (replace(whole, gpu_layers=count) for count in range(whole.gpu_layers, 0, -1))
    return next((one for one in tried if one.card_bytes <= room_bytes), None)


def fewest_cpu_experts(served: LlamaCpp, room_bytes: int, cards: int = 1) -> LayerPlacement | None:
    """All layers on the cards, and the experts of as few as need be on the host; None where there are none or too few.

    Attention and cache stay on the card, which every token reads; of the experts each token reads a few.
    """
    whole = all_layers(served, cards)
    if not any(sizes_of(served).experts):
        return None
    tried = (replace(whole, cpu_moe=count) for count in range(whole.gpu_layers))
    return next((one for one in tried if one.card_bytes <= room_bytes), None)


def longest_context(served: LlamaCpp, room_bytes: int, cards: int = 1) -> int:
    """Tokens of a slot with all layers on the cards, in whole 256 cells, as far as the model was made; 0 for none."""
    most = (served.setup.model.max_positions or MAX_TOKENS) // PADDING

    def need(pieces: int) -> int:
        setup = replace(served.setup, context=PADDING * pieces, prompt=None)
        return all_layers(replace(served, setup=setup), cards).card_bytes

    return PADDING * bisect_right(range(1, most + 1), room_bytes, key=need)
