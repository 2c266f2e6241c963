"""The KV cache from scratch: eight kinds, as layers of a Transformers `Cache`. Imports torch when a name needs it.

    from helpers.techniques import kv_cache as kv
    cache = kv.cache_of(model, "int4")                  # or "dynamic", "static:512", "window:128+4", "offloaded" ...
    model.generate(ids, past_key_values=cache)
    kv.held(cache), kv.cache_bytes(shape, "int4", context=2048)     # counted on its storages, and the closed form

`layers` is what all share, and the caches that keep everything; `evicting` drops tokens, `quantized` rounds,
`offloaded` moves. `factory` makes one by name, ours or Transformers' own; `decoding` runs and counts it; `outliers`
plants the channels that are hard to round. `plans`, `sizes` and `prefill_decode` need no torch.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .decoding import Decoded, greedy, held
    from .evicting import EvictingLayer, WindowLayer
    from .factory import cache_of, transformers_cache
    from .layers import ConcatLayer, GrowingLayer, KVLayer, StaticLayer
    from .offloaded import Link, OffloadedCache, OffloadedLayer
    from .outliers import key_channels, outlier_ratio, plant_key_outliers
    from .plans import EXAMPLES, CachePlan, plan_of
    from .prefill_decode import Phases, phases
    from .quantized import PackedStates, QuantizedLayer
    from .sizes import CacheBytes, KVWidths, cache_bytes, quantized_tokens, widths_of


__getattr__ = lazy(__name__)
