"""Weights streamed layer by layer: they live in host memory, and pass through two buffers on the device.

    with WeightStreamer(model.model.layers, streams) as streamer:
        model.generate(tokens)
    exposed_s(streams.log)

While layer i computes in one buffer, layer i + 1 arrives in the other. Two events keep them apart: a layer waits until
its weights have arrived, and a copy waits until the layer that used its buffer before has computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...catalog.errors import WorkbookError, require_whole
from .host import HostLayout, packed
from .streams import StreamEvent, Streams


class WeightStreamer:
    """Runs `layers`, one after the other and again from the first, with `buffers` of them on the device at a time.

    Open, it has taken the weights off the device; closed, it has put them back where they were. `buffers=1` is the
    naive way, in which every copy is waited for. The last layer's turn fetches the first one of the next forward.
    `source` names where a layer's weights come from, if not from the host block that is made here: a file's pages.
    These are not pinned, so with a GPU the program waits for each of their copies, and nothing overlaps.
    For inference: backward would need weights that have been overwritten.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        streams: Streams,
        buffers: int = 2,
        source: Callable[[int], Mapping[str, Tensor]] | None = None,
    ) -> None:
        require_whole("buffers", buffers, do="pass buffers=2")
        self.layers, self.streams, self.source = list(layers), streams, source
        if not self.layers:
            raise WorkbookError("there is no layer to stream", "one or more", "pass model.model.layers")
        self.count = min(buffers, len(self.layers))
        self._arrived: dict[int, StreamEvent] = {}  # by turn: a layer's number, counted on through all forwards
        self._computed: dict[int, StreamEvent] = {}
        self._turn = 0

    def __enter__(self) -> WeightStreamer:
        self.device = next(self.layers[0].parameters()).device
        self.hosts = [self._copied(at, layer) for at, layer in enumerate(self.layers)]
        for at, layer in enumerate(self.layers):
            self._take_over(at, layer)
        try:
            most = max(layout.size_bytes for layout, _ in self.hosts)
            self.buffers = [torch.empty(most, dtype=torch.uint8, device=self.device) for _ in range(self.count)]
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        self._settle()
        self._give_back()

    def _copied(self, at: int, layer: nn.Module) -> tuple[HostLayout, Tensor | Mapping[str, Tensor]]:
        """Where a layer's tensors lie in a buffer, and what a copy reads: a block on the host, or tensors of a file."""
        tensors = {name: parameter.data for name, parameter in layer.named_parameters()}
        if self.source is None:
            return packed(tensors, pinned=self.device.type == "cuda")
        return HostLayout.of(tensors), self.source(at)

    def _take_over(self, at: int, layer: nn.Module) -> None:
        for parameter in layer.parameters():
            parameter.data = parameter.data.new_empty(0)
        own = layer.forward
        layer.forward = lambda *args, **kwargs: self._run(at, own, args, kwargs)  # type: ignore[method-assign]

    def _give_back(self) -> None:
        self.buffers = []
        for layer, (layout, sources) in zip(self.layers, self.hosts, strict=True):
            del layer.forward  # the class's own is found again
            whole = sources if isinstance(sources, Mapping) else layout.views(sources)
            for name, parameter in layer.named_parameters():
                parameter.data = whole[name].to(self.device, copy=True)
        self.hosts = []

    def _run(self, at: int, own: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            do = "put `with torch.no_grad():` around it; to train, use FSDP2 with CPUOffloadPolicy"
            raise WorkbookError("a streamed layer would need its weights again in backward", "inference", do)
        if at == 0 and self._turn % len(self.layers):  # the last forward broke off
            self._settle()
        turn = self._turn
        if turn % len(self.layers) != at:
            what = f"layer {at} is called where layer {turn % len(self.layers)} has its turn"
            raise WorkbookError(what, "layers in their order", "pass WeightStreamer the layers as the model calls them")
        for later in range(turn, turn + self.count):
            if later not in self._arrived:
                self._arrived[later] = self._fetch(later)
        number = turn % self.count
        views = self.hosts[at][0].views(self.buffers[number])
        layer = self.layers[at]
        for name, parameter in layer.named_parameters():
            parameter.data = views[name]
        result, self._computed[turn] = self.streams.compute(
            lambda: own(*args, **kwargs), after=[self._arrived[turn]], name=f"layer {at}", buffer=number
        )
        for parameter in layer.parameters():
            parameter.data = parameter.data.new_empty(0)
        self._turn += 1
        return result

    def _settle(self) -> None:
        """Wait for what is on its way, and begin again. A copy that failed has been told of where it was needed."""
        for event in (*self._arrived.values(), *self._computed.values()):
            with contextlib.suppress(Exception):
                self.streams.wait(event)
        self._arrived, self._computed, self._turn = {}, {}, 0

    def _fetch(self, turn: int) -> StreamEvent:
        """Start the copy for a turn; its buffer is free once the layer that used it before has computed."""
        at, number = turn % len(self.layers), turn % self.count
        layout, sources = self.hosts[at]
        buffer = self.buffers[number]
        if isinstance(sources, Tensor):
            pairs = [(buffer[: layout.size_bytes], sources)]
        else:
            pairs = [(view, sources[name]) for name, view in layout.views(buffer).items()]
        free = self._computed.pop(turn - self.count, None) or self.streams.so_far()  # a new block may be in use still
        self._arrived.pop(turn - self.count, None)
        return self.streams.copy(pairs, after=[free], name=f"layer {at}", buffer=number)
