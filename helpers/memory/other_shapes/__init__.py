"""Models that are no decoder of text, and stores of embeddings: bytes in closed form, one file for each. No torch.

    from helpers.memory.other_shapes import UNetShape, unet_step
    unet_step(UNetShape(side=64), batch=8).by_part      # what is saved for the backward at each resolution

`unet`, `dit` and `vit` are training steps on a tape of `layers`; `whisper` is what a stream holds, and `vector_store`
are four kinds of store. Small models to try them on: `techniques.diffusion`, `techniques.retrieval`, Transformers' own.
"""

from .dit import DiTShape, dit_step, step_cache_bytes
from .layers import StepBytes
from .unet import UNetShape, unet_step
from .vector_store import flat_store, graph_store, product_store, scalar_store
from .vit import ViTShape, vit_step
from .whisper import WhisperShape, whisper_cache, whisper_stream
