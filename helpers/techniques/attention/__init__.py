"""Attention without its matrix: masks as tiles to visit, softmax in one pass, a tiled forward and backward.

    from helpers.techniques import attention
    output = attention.attention(q, k, v, attention.Window(512))        # with gradients
    output, log_sum_exp = attention.tiled(q, k, v)                      # forward alone

`matrix` is the formula. `masks` say which tiles hold a pair, `online` merges what pieces of the keys give, `forward`
and `backward` are FlashAttention's two passes over a `cut`; `counts` says what each moves and keeps, without torch.
`triton_kernel` is the forward on a GPU; `engines` are the field's: SDPA's backends, which of them ran, FlexAttention.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .backward import TiledAttention, attention, tile_gradients, tiled_backward
    from .engines import backends, flex, which_backend
    from .forward import tiled
    from .masks import BlockSparse, Causal, Full, Mask, Tile, Window
    from .matrix import naive
    from .online import Partial, merge, online_softmax
    from .triton_launch import triton_tiled


__getattr__ = lazy(__name__)
