"""llama.cpp's buffers on a card in closed form: weights, cells of its cache, and the least of what it computes in.

Derived from src/llama-kv-cache.cpp and llama-kv-cache-iswa.cpp of ggml-org/llama.cpp: the cache has a cell for each
token of all sequences, in whole 256 cells; layers with a window have cells for the windows of all sequences and for one
forward of n_ubatch tokens. Of the compute buffer the logits of n_ubatch tokens in FP32 are counted, which are most of
it: 250.5 of 258.5 MiB for Llama-3-8B. Not counted: the rest of it, CUDA's context, and what stays on the host.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ....catalog.engines import require_served
from ....catalog.errors import WorkbookError
from ....catalog.formats import number_format
from ....catalog.layers import LLAMA_CPP, Attention
from ....catalog.serve_setup import ServeSetup
from ...breakdown import Breakdown
from ..weights import KEPT, weight_bytes

PADDING = 256  # cells
UBATCH = 512  # tokens of one forward: --ubatch-size
FP32 = 4
INPUT = ("token_embd.weight", "position_embd.weight", "per_layer_token_embd.weight")


@dataclass(frozen=True)
class LlamaCpp:
    """A server with `setup.users` slots of `setup.context` tokens each, all layers on one card.

    `setup.prefill_tokens` is n_ubatch, 512 where it is None. WorkbookError for a family that only Transformers knows.

    >>> served = LlamaCpp(ServeSetup("gpt-oss-20b", context=131072))
    >>> [cells * layers * 2 * 8 * 64 * 2 // 2**20 for cells, layers in served.cells]     # MiB, as it logs
    [3072, 18]
    """

    setup: ServeSetup

    def __post_init__(self) -> None:
        require_served("llama.cpp", self.setup)
        model = self.setup.model
        if model.stored:
            model.kv_values(1)  # refuses a cache that is not known
        elif model.counted:
            what, do = f"{model.name} is not known layer by layer", "name its GGUF file, or read its log"
            raise WorkbookError(what, "a family with a closed form, or a GGUF file", do)

    @property
    def ubatch(self) -> int:
        return self.setup.prefill_tokens or UBATCH

    @property
    def cells(self) -> tuple[tuple[int, int], ...]:
        """(cells, layers) of the cache without windows, and of that with them, where there are both or either."""
        held = (layer.attention for layer in self.setup.model.layers if layer.attention.kv_values_per_token)
        windows = Counter(attention.window for attention in held)
        return tuple((self._cells(window), windows[window]) for window in sorted(windows, key=_length))

    @property
    def weight_bytes(self) -> int:
        """On the card: "CUDA0 model buffer size". Llama-3.1-8B in Q4_K_M: 4403.49 MiB, and 281.81 on the host."""
        copied = self.input_bytes("token_embd.weight") if self.setup.model.tied else 0
        return weight_bytes(self.setup) - self.host_bytes + copied

    @property
    def host_bytes(self) -> int:
        """Tables of the input, where rows are looked up: `dev_input` is the host's in src/llama-model.cpp.

        A table that is tied to the head is on the card as well.
        """
        return self.input_bytes(*INPUT)

    @property
    def kv_bytes(self) -> int:
        """K and V of all cells: "llama_kv_cache: size"."""
        return sum(self._kv_bytes(layer.attention) for layer in self.setup.model.layers)

    @property
    def state_bytes(self) -> int:
        """States and convolutions of all slots, and once more for each draft: "llama_memory_recurrent: size".

        Qwen3.5-9B, four slots: 201 MiB, as it logs.

        >>> LlamaCpp(ServeSetup("Qwen/Qwen3.5-9B", users=4)).state_bytes / 2**20
        201.0
        """
        return self.setup.users * (1 + self.setup.drafts) * self.setup.model.state_bytes(LLAMA_CPP)

    def layer_cache_bytes(self, at: int) -> int:
        """Of one layer: K and V of all cells, or states of all slots, which lie where its weights do."""
        attention = self.setup.model.layers[at].attention
        states = attention.state.size_bytes(LLAMA_CPP) if attention.state else 0
        return self._kv_bytes(attention) + self.setup.users * (1 + self.setup.drafts) * states

    @property
    def logit_bytes(self) -> int:
        """Of the compute buffer, at least."""
        return self.ubatch * self.setup.model.vocab * FP32

    @property
    def parts(self) -> Breakdown:
        cache = self.kv_bytes + self.state_bytes
        return Breakdown(parameters=self.weight_bytes, kv_cache=cache, logits=self.logit_bytes)

    def input_bytes(self, *names: str) -> int:
        model = self.setup.model
        if model.stored:
            return sum(tensor.size_bytes for tensor in model.stored if tensor.name in names)
        tables = {INPUT[0]: model.vocab * model.embedding_width, INPUT[1]: model.learned_positions * model.hidden}
        return number_format(KEPT).storage_bytes(sum(tables.get(name, 0) for name in names))

    def _cells(self, window: int | None) -> int:
        every = self.setup.users * self.setup.context
        held = every if window is None else min(_padded(every), window * self.setup.users + self.ubatch)
        return _padded(held)

    def _kv_bytes(self, attention: Attention) -> int:
        values = attention.kv_values_per_token * self._cells(attention.window)
        return self.setup.kv_format.storage_bytes(values)


def _padded(cells: int) -> int:
    return -(-cells // PADDING) * PADDING


def _length(window: int | None) -> int:
    """For an order: layers that see everything come first."""
    return window or 0
