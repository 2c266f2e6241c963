"""Keys and values in host memory; on the device two layers at a time, the one at work and the next, on its way.

Only new tokens go out. All earlier ones come back for every token decoded, so the link's bandwidth is a floor under a
step's time: that is the price of a context that the device cannot hold.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .layers import KVLayer, placed


class Link:
    """The way between host and device, and the bytes that went out and came back on it.

    On CUDA what comes back has a stream of its own, from pinned memory, so that it travels while a layer computes. On
    a CPU the "device" copy is a copy in the same memory: nothing is saved, but the bytes are those of a GPU.
    """

    def __init__(self) -> None:
        self.out_bytes = self.back_bytes = 0
        self.stream: torch.cuda.Stream | None = None

    def out(self, buffer: Tensor | None, new: Tensor, at: int, room: int) -> Tensor:
        """`new` written to a host buffer, on the stream that made it."""
        on_gpu = new.device.type == "cuda"
        if on_gpu and buffer is not None and at + new.shape[2] > buffer.shape[2]:
            torch.cuda.current_stream(new.device).synchronize()  # the old buffer may still be written to
        self.out_bytes += new.nbytes
        return placed(buffer, new, at, room, empty=functools.partial(torch.empty, device="cpu", pin_memory=on_gpu))

    def back(self, host: Tensor, tokens: int, room: int, device: torch.device) -> Tensor:
        """The first `tokens` of `host` on their way to the device, in a buffer with room for `room` more."""
        with self._beside(device):
            rows, heads, _, width = host.shape
            buffer = torch.empty((rows, heads, tokens + room, width), dtype=host.dtype, device=device)
            arriving = buffer[:, :, :tokens].copy_(host[:, :, :tokens], non_blocking=True)
        self.back_bytes += arriving.nbytes
        return buffer

    def arrived(self, buffers: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The same buffers, for use on the device's stream."""
        if self.stream:
            current = torch.cuda.current_stream(buffers[0].device)
            current.wait_stream(self.stream)
            for buffer in buffers:
                buffer.record_stream(current)  # made on the other stream, which must not reuse them too early
        return buffers

    def _beside(self, device: torch.device) -> contextlib.AbstractContextManager:
        """On the copies' own stream, once what was asked of the device so far is done: it may be on its way out."""
        if device.type != "cuda":
            return contextlib.nullcontext()
        self.stream = self.stream or torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        return torch.cuda.stream(self.stream)


class OffloadedLayer(KVLayer):
    """One layer in host buffers that grow by `step` tokens. The copy on the device is let go when it is handed over."""

    def __init__(self, step: int, link: Link) -> None:
        super().__init__()
        self.step, self.link = step, link
        self.host: tuple[Tensor, Tensor] | None = None  # keys, values
        self.fetched: tuple[Tensor, Tensor] | None = None  # their copies on the device, between fetch and use

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        new, end = keys.shape[2], self.seen + keys.shape[2]
        if self.fetched and self.fetched[0].shape[2] < end:  # fetched for one token, and more came
            self.fetched = None
        self.fetch(new, keys.device)
        old_keys, old_values = self.link.arrived(self.fetched) if self.fetched else (None, None)
        self.fetched = None
        here = placed(old_keys, keys, self.seen, end), placed(old_values, values, self.seen, end)
        host_keys, host_values = self.host or (None, None)
        out = functools.partial(self.link.out, at=self.seen, room=-(-end // self.step) * self.step)
        self.host = out(host_keys, keys), out(host_values, values)
        return here[0][:, :, :end], here[1][:, :, :end]

    def fetch(self, room: int, device: torch.device) -> None:
        """Start bringing the earlier tokens to the device, with room for `room` more, unless they are there."""
        if self.host and not self.fetched:
            keys, values = (self.link.back(host, self.seen, room, device) for host in self.host)
            self.fetched = keys, values

    def reset(self) -> None:
        super().reset()
        self.host = self.fetched = None


class OffloadedCache(Cache):
    """A cache whose OffloadedLayers take turns on the device; any other layer stays there.

    `link` counts the bytes moved. While a layer is at work the next offloaded one is fetched, after the last the first.
    """

    def __init__(self, layers: list[Any], link: Link) -> None:
        super().__init__(layers=layers)
        self.link = link
        self.turns = {at: layer for at, layer in enumerate(layers) if isinstance(layer, OffloadedLayer)}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        found = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx in self.turns:
            later = [at for at in self.turns if at > layer_idx]
            following = self.turns[later[0] if later else min(self.turns)]
            room = key_states.shape[2] if later else 1  # in the next forward: most likely one token
            following.fetch(room, key_states.device)
        return found
