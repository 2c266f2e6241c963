"""Offloading: what does not fit on the device lives in host memory or on a disk, and is there when it is needed.

    from helpers.techniques import offload
    streams = offload.streams_for("cuda")                                 # or SimulatedStreams(64e9, 989e12)
    with offload.WeightStreamer(model.model.layers, streams): ...          # inference, two layers on the device
    optimizer = offload.HostAdamW(model.parameters(), streams, lr=1e-4)    # training, weights alone on the device
    with offload.PrefetchingOffload(streams, keep=model.parameters()): ... # activations out, and back in time

`streams` are copies beside computation, on a GPU, on threads or on a clock; `host` is pinned memory. `weights`,
`optimizer` and `activations` are the three things that leave, `disk` is where weights may come from, `models` shares
one budget among several. `engines` are the field's own. What it costs is in `helpers.memory.offload`.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .activations import PrefetchingOffload
    from .disk import Mapped, read, save
    from .host import HostBuffers, HostLayout, host_block
    from .models import ModelPool
    from .optimizer import HOST_BYTES, HostAdamW
    from .streams import (
        CudaStreams,
        Lane,
        SimulatedStreams,
        Span,
        StreamEvent,
        Streams,
        ThreadStreams,
        exposed_s,
        hazards,
        streams_for,
    )
    from .weights import WeightStreamer


__getattr__ = lazy(__name__)
