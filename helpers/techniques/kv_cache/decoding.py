"""Greedy decoding, without a cache and with one: the same tokens, for a different bill.

`held` counts what the cache is left with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ...catalog.by_transformers import with_cache
from ..quantization.packing import Stored
from .sizes import CacheBytes


@dataclass(frozen=True, eq=False)
class Decoded:
    """`tokens` [rows, new] that were most likely one after the other, and the `logits` [rows, new, vocabulary]."""

    tokens: Tensor
    logits: Tensor


@torch.no_grad()
def greedy(
    model: PreTrainedModel,
    ids: Tensor,
    new_tokens: int,
    cache: Cache | None = None,
    attention_mask: Tensor | None = None,
) -> Decoded:
    """`new_tokens` more tokens for each row of `ids` [rows, tokens], padded on the left if `attention_mask` says so.

    Without a `cache` the whole text is read again for each of them: correct, and the yardstick for every cache. With an
    empty one it is read once, and then one token at a time. No token ends a row.
    """
    mask = torch.ones_like(ids) if attention_mask is None else attention_mask
    fed, logits = 0, []
    for _ in range(new_tokens):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)  # counted from each row's first real token
        output = model(
            input_ids=ids[:, fed:],
            attention_mask=mask,
            position_ids=positions[:, fed:],
            **with_cache(cache),
            use_cache=cache is not None,
            logits_to_keep=1,
        )
        fed = ids.shape[1] if cache is not None else 0
        logits.append(output.logits[:, -1])
        ids = torch.cat([ids, logits[-1].argmax(-1, keepdim=True)], 1)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    return Decoded(ids[:, -new_tokens:], torch.stack(logits, 1))


def held(cache: Cache) -> CacheBytes:
    """Bytes of all storages that the layers of `cache` keep, each counted once and whole, on the device and the host.

    Whole: a view of the last tokens keeps the memory of all of them. A layer's `host` tensors count as host memory on
    a CPU too. Counters (64-bit integers) are left out; what a forward is working with is not the cache's.
    """
    found: dict[int, tuple[int, bool]] = {}  # by storage: its bytes, and whether they are on the host
    for layer in cache.layers:
        home = getattr(layer, "device", None)
        for name, value in vars(layer).items():
            for tensor in _tensors(value):
                storage = tensor.untyped_storage()
                away = name == "host" or (home is not None and tensor.device.type != home.type)
                found.setdefault(storage._cdata, (storage.nbytes(), away))
    host = sum(size for size, away in found.values() if away)
    return CacheBytes(sum(size for size, _ in found.values()) - host, host)


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in an attribute of a layer: itself, in a list, tuple or dictionary of them, or packed."""
    if isinstance(value, Tensor):
        yield from () if value.dtype == torch.int64 else (value,)
    elif isinstance(value, Stored):
        yield from value.tensors.values()
    elif isinstance(value, (list, tuple, dict)):  # a recurrent layer of Transformers has its states in a dictionary
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)
