"""Keys and values in host memory; on the device two layers at a time, the one at work and the next, on its way.

Only new tokens go out. All earlier ones come back for every token decoded, so the link's bandwidth is a floor under a
step's time: that is the price of a context that the device cannot hold.
"""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from .layers import KVLayer
from .plain import placed


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

    def arrived(self, buffers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same buffers, for use on the device's stream."""
        if self.stream and buffers:
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
        self.host: tuple[Tensor | None, ...] = (None, None)  # keys, values
        self.fetched: tuple[Tensor, ...] = ()  # their copies on the device, between fetch and use

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        new, end = keys.shape[2], self.seen + keys.shape[2]
        if self.fetched and self.fetched[0].shape[2] < end:  # fetched for one token, and more came
            self.fetched = ()
        self.fetch(new, keys.device)
        here, self.fetched = self.link.arrived(self.fetched) or (None, None), ()
        found = tuple(placed(old, states, self.seen, end) for old, states in zip(here, (keys, values), strict=True))
        room = -(-end // self.step) * self.step
        self.host = tuple(
            self.link.out(old, states, self.seen, room) for old, states in zip(self.host, (keys, values), strict=True)
        )
        return tuple(states[:, :, :end] for states in found)

    def fetch(self, room: int, device: torch.device) -> None:
        """Start bringing the earlier tokens to the device, with room for `room` more, unless they are there."""
        if self.seen and not self.fetched:
            self.fetched = tuple(self.link.back(host, self.seen, room, device) for host in self.host)

    def reset(self) -> None:
        super().reset()
        self.host, self.fetched = (None, None), ()


class OffloadedCache(Cache):
    """A cache whose OffloadedLayers take turns on the device; any other layer stays there.

    `link` counts the bytes moved. While a layer is at work the next offloaded one is fetched, after the last the first.
    """

    def __init__(self, layers: list[CacheLayerMixin], link: Link) -> None:
        super().__init__(layers=layers)
        self.link = link
        self.turns = [at for at, layer in enumerate(layers) if isinstance(layer, OffloadedLayer)]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        found = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx in self.turns:
            later = [at for at in self.turns if at > layer_idx]
            following = later[0] if later else self.turns[0]
            room = key_states.shape[2] if later else 1  # in the next forward: most likely one token
            self.layers[following].fetch(room, key_states.device)
        return found
