"""The KV cache from scratch: eight kinds, as layers of a Transformers `Cache`. Imports torch when a name needs it.

    from helpers.techniques import kv_cache as kv
    cache = kv.cache_of(model, "int4")                  # or "dynamic", "static:512", "window:128+4", "offloaded" ...
    model.generate(ids, past_key_values=cache)
    kv.held(cache), kv.cache_bytes(shape, "int4", context=2048)     # counted on its storages, and the closed form

`layers` is what all share; `plain` keeps everything, `window` the two ends, `quantized` rounds, `offloaded` moves,
`evicting` chooses; `engines` are Transformers' own caches. `plans`, `sizes` and `prefill_decode` need no torch.
"""

from importlib import import_module

_HOMES = {
    "decoding": ("Decoded", "greedy"),
    "engines": ("transformers_cache",),
    "evicting": ("EvictingLayer",),
    "factory": ("cache_of",),
    "layers": ("KVLayer",),
    "offloaded": ("Link", "OffloadedCache", "OffloadedLayer"),
    "outliers": ("key_channels", "outlier_ratio", "plant_key_outliers"),
    "plain": ("ConcatLayer", "GrowingLayer", "StaticLayer"),
    "plans": ("EXAMPLES", "CachePlan", "plan_of"),
    "prefill_decode": ("Phases", "phases"),
    "quantized": ("PackedStates", "QuantizedLayer"),
    "sizes": ("CacheBytes", "KVWidths", "cache_bytes", "quantized_tokens", "widths_of"),
    "storages": ("held",),
    "window": ("WindowLayer",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
