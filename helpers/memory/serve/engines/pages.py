"""Pages of an engine's pool: what a block of tokens takes in it, and how many tokens and users a pool holds.

Derived from vLLM 0.19 (v1/core/kv_cache_utils.py, v1/kv_cache_interface.py), whole numbers all the way. Layers that
look back on everything are one kind, each length of window is another. Where there are several kinds, their layers are
put in groups of equally many, of which every group takes blocks of its own: Gemma-3-27B's 10 full and 52 windowed
layers are 7 groups of 10 layers, two of them padding. A sequence takes, of a group with a window w, blocks for w - 1
tokens and a whole forward, and one more.

Recurrent states are a kind, too (model_executor/models/config.py): attention's blocks are made of so many tokens that a
page holds a layer's state, 784 in Qwen3.5-27B, and a sequence has
one such page for each of its layers, or two (`Engine.states`).

    pages_of(model("llama-3.1-8b"), "bf16", 16).block_bytes / 2**20     # 2.0 MiB: 32 layers x 16 tokens x 4 KiB
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ....catalog.cache_formats import cache_format
from ....catalog.errors import WorkbookError
from ....catalog.layers import VLLM, Attention, Layer, RecurrentState
from ....catalog.shape import ModelShape

NEARLY_EQUAL = 1.5  # kinds whose numbers of layers differ by less are padded to the larger
ALIGNED = 16  # tokens: attention's kernels take blocks of a multiple
FP32_STATES = "qwen3_5"  # families whose configs say mamba_ssm_dtype float32
WHOLE_PIECES = "llama4_text"  # its pieces of 8,192 tokens are cached as if every layer saw everything


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share a table of blocks: `layers` with padding, `window` None where they look back on everything.

    `is_state` are layers with a recurrent state, which has one block for each sequence, or as many as `states`.
    """

    layers: int
    window: int | None
    is_state: bool = False

    def blocks(self, context: int, block_tokens: int, batch_tokens: int, states: int = 1) -> int:
        """That one sequence of `context` tokens is given."""
        if self.is_state:
            return states
        if self.window is None:
            return -(-context // block_tokens)
        return -(-min(self.window - 1 + batch_tokens, context) // block_tokens) + 1


@dataclass(frozen=True)
class Pages:
    """A pool's division: a block is `page_bytes` in each of a group's layers and holds `block_tokens`."""

    page_bytes: int
    block_tokens: int
    groups: tuple[LayerGroup, ...]

    @property
    def block_bytes(self) -> int:
        """Of one block in all layers of a group; every group's blocks have this size."""
        return self.page_bytes * max(group.layers for group in self.groups)

    def blocks(self, pool_bytes: int) -> int:
        """Whole blocks in a pool: what vLLM calls num_gpu_blocks."""
        return max(0, pool_bytes) // self.block_bytes

    def tokens(self, blocks: int) -> int:
        """What vLLM up to 0.20 logs as "GPU KV cache size": the tokens of one endless sequence without windows.

        >>> from helpers.catalog import model
        >>> pages_of(model("llama-3.1-8b"), "bf16", 16).tokens(29_751)
        476016
        """
        return blocks // len(self.groups) * self.block_tokens

    def users(self, blocks: int, context: int, batch_tokens: int) -> int:
        """Whole sequences of `context` tokens at once, nothing shared: its "maximum concurrency", rounded down."""
        return blocks // self.user_blocks(context, batch_tokens)

    def user_blocks(self, context: int, batch_tokens: int, states: int = 1) -> int:
        """That one sequence of `context` tokens takes, of all groups."""
        return sum(group.blocks(context, self.block_tokens, batch_tokens, states) for group in self.groups)


def pages_of(
    model: ModelShape, kv: str, block_tokens: int, tensor: int = 1, layers: Iterable[Layer] | None = None
) -> Pages:
    """The pages of `model` on one of `tensor` ranks, or of the `layers` of one stage. Raises WorkbookError.

    Groups are made over the whole model; a stage has its share of each.
    """
    attentions = [layer.attention for layer in model.layers]
    per_token = {_page_values(one, tensor) for one in attentions if not one.state}
    unknown = any(one.mamba or one.indexer for one in attentions) or (model.counted and not model.counted.kv_known)
    if len(per_token) != 1 or unknown:
        what = f"layers of {model.name} whose keys and values have several sizes, or none"
        raise WorkbookError(what, "keys and values of one size in every layer", "its pages are not known here")
    token_bytes = cache_format(kv, model).storage_bytes(per_token.pop() * block_tokens) // block_tokens
    states = [_state_bytes(model, one.state, tensor) for one in attentions if one.state]
    block = max(block_tokens, ALIGNED * -(-max(states, default=0) // (ALIGNED * token_bytes)))
    counts = Counter(_kinds(model))
    size = _group_size(counts.values())
    here = len(model.layers) if layers is None else len(tuple(layers))
    share = -(-size * here // len(model.layers))
    groups = (LayerGroup(share, *kind) for kind, count in counts.items() for _ in range(-(-count // size)))
    return Pages(token_bytes * block, block, tuple(groups))


def _state_bytes(model: ModelShape, state: RecurrentState, tensor: int) -> int:
    """A layer's state on a rank, and what its convolution remembers, in 16 bits; the state of Qwen3.5 in FP32.

    Qwen3-Next: 32 x 128 x 128 values and 3 x 8,192, 1,097,728 bytes.
    """
    rule = VLLM if model.family.startswith(FP32_STATES) else replace(VLLM, state_bits=VLLM.input_bits)
    return state.size_bytes(rule) // tensor


def _kinds(model: ModelShape) -> list[tuple[int | None, bool]]:
    """Of each layer its window, none where the engine caches it as if it were full, and whether it has a state."""
    if model.family == WHOLE_PIECES:
        return [(None, False) for _ in model.layers]
    return [(layer.attention.window, layer.attention.state is not None) for layer in model.layers]


def _group_size(counts: Iterable[int]) -> int:
    """Layers in a group: as many as the rarest kind has, or the commonest where they are nearly as many."""
    least, most = min(counts := list(counts)), max(counts)
    return most if most < least * NEARLY_EQUAL else least


def _page_values(attention: Attention, tensor: int) -> int:
    """K and V of a token in one layer on a rank; of latent attention the latent, whole on every rank."""
    if attention.mla:
        return attention.kv_values_per_token
    return 2 * max(1, attention.kv_heads // tensor) * attention.head_dim
