"""What a cache holds right now, counted on its storages: ours, Transformers' own, any with layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ..quantization.packing import Stored
from .sizes import CacheBytes


def held(cache: Cache) -> CacheBytes:
    """Bytes of all storages that the layers of `cache` keep, each counted once and whole, on the device and the host.

    Whole: a view of the last tokens keeps the memory of all of them. A layer's `host` tensors count as host memory on
    a CPU too. Counters (64-bit integers) are left out; what a forward is working with is not the cache's.
    """
    seen: set[int] = set()
    device = host = 0
    for layer in cache.layers:
        home = getattr(layer, "device", None)
        for name, value in vars(layer).items():
            for tensor in _tensors(value):
                storage = tensor.untyped_storage()
                if storage._cdata in seen:
                    continue
                seen.add(storage._cdata)
                away = name == "host" or (home is not None and tensor.device.type != home.type)
                host, device = (host + storage.nbytes(), device) if away else (host, device + storage.nbytes())
    return CacheBytes(device, host)


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in an attribute of a layer: itself, in a list or tuple of them, or packed."""
    if isinstance(value, Tensor):
        yield from () if value.dtype == torch.int64 else (value,)
    elif isinstance(value, Stored):
        yield from value.tensors.values()
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
