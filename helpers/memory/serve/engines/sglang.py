"""SGLang's static memory in closed form: a fraction of what is free before loading, for weights and the token pool.

Derived from SGLang 0.5.23 (srt/arg_groups/memory_hook.py, srt/mem_cache/kv_cache_configurator.py). Its fraction is of
the free memory, where vLLM's is of the whole card. What the fraction leaves is for activations and CUDA graphs, by a
rule of thumb of its own: nothing is profiled. Held against no log: what grows outside torch while it loads, and how
pools are split where some layers have windows, is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....catalog.devices import Device
from ....catalog.engines import require_card, require_served
from ....catalog.errors import WorkbookError, require_number, require_whole
from ....catalog.serve_setup import ServeSetup
from ...breakdown import Breakdown
from ..rank_weights import rank_shape
from .vllm import CONTEXT_BYTES, MOST_RANKS
from .weights import rank_weight_bytes, require_positions

MIB = 2**20
LARGE_CARD_MIB, LARGE_CARD_KEEPS_MIB = 60 * 1024, 10 * 1024
# By MiB of the card, up to: tokens of a piece of a prompt, sequences in a CUDA graph on fewer than 4 ranks and on more
SIZES = ((20, 2048, 8, 8), (35, 4096, 48, 160), (60, 4096, 32, 160), (160, 8192, 256, 512))
HUGE = (16384, 512, 512)
CAPTURED = (*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256))


@dataclass(frozen=True)
class SglangLaunch:
    """One replica on `tensor` ranks; `share` is --mem-fraction-static, the rule's where it is None.

    >>> from helpers.catalog import device
    >>> SglangLaunch(ServeSetup("llama-3.1-8b"), device("rtx-4090")).fraction
    0.699
    """

    setup: ServeSetup
    card: Device
    tensor: int = 1
    share: float | None = None

    def __post_init__(self) -> None:
        require_served("sglang", self.setup)
        require_positions("sglang", self.setup.model, self.setup.context)
        require_card("sglang", self.card)
        require_whole("tensor", self.tensor, most=MOST_RANKS, do="pass tensor=1 for one card")
        if self.share is not None:
            expected = "a fraction of the free memory, above 0 and below 1"
            require_number("share", self.share, below=1, expected=expected, do="leave it out for SGLang's own rule")
        model = self.setup.model
        if any(layer.attention.window or layer.attention.delta for layer in model.layers):
            what = f"{model.name} has layers with windows or states, between which SGLang splits its pool"
            raise WorkbookError(what, "full attention in every layer", "read max_total_num_tokens in its log")

    @property
    def sizes(self) -> tuple[int, int]:
        """Tokens of a piece of a prompt (--chunked-prefill-size), and sequences of the largest CUDA graph."""
        mib = self.card.capacity_bytes / MIB
        found = next((sizes for gib, *sizes in SIZES if mib < gib * 1024), HUGE)
        return self.setup.prefill_tokens or found[0], found[1 if self.tensor < 4 else 2]

    @property
    def reserved_bytes(self) -> int:
        """What its rule keeps for activations and graphs; 10 GiB at least on cards of more than 60."""
        tokens, sequences = self.sizes
        is_latent = any(layer.attention.mla for layer in self.setup.model.layers)
        captured = [*(size for size in CAPTURED if size <= tokens), *range(4608, tokens + 1, 512)]
        graphs = 2 * sequences + (1536 if is_latent else 8 * len(captured))
        kept = 512 + 1.5 * max(tokens, 2048) + self.tensor / 8 * 1024 + graphs
        if self.card.capacity_bytes > LARGE_CARD_MIB * MIB:
            kept = max(kept, LARGE_CARD_KEEPS_MIB)
        return round(kept * MIB)

    @property
    def fraction(self) -> float:
        """mem_fraction_static."""
        if self.share is not None:
            return self.share
        return round(1 - self.reserved_bytes / self.card.capacity_bytes, 3)

    @property
    def free_bytes(self) -> int:
        """Before it loads: less the context, and NCCL's buffers, as vLLM's logs on H100 cards have them."""
        return self.card.capacity_bytes - CONTEXT_BYTES[self.tensor > 1]

    @property
    def weight_bytes(self) -> int:
        return rank_weight_bytes(self.setup, self.tensor)

    @property
    def pool_bytes(self) -> int:
        """The fraction of what was free, less the weights."""
        return int(self.fraction * self.free_bytes) - self.weight_bytes

    @property
    def token_bytes(self) -> int:
        """K and V of a token on a rank."""
        return self.setup.kv_format.storage_bytes(rank_shape(self.setup.model, self.tensor).kv_values(1))

    @property
    def tokens(self) -> int:
        """max_total_num_tokens."""
        return max(0, self.pool_bytes) // self.token_bytes

    @property
    def users(self) -> int:
        return self.tokens // self.setup.context

    @property
    def parts(self) -> Breakdown:
        return Breakdown(parameters=self.weight_bytes, kv_cache=max(0, self.pool_bytes))
