"""Chapter 01's measurements: bandwidth by level, the host link, operators under the roof, the speed of decoding."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...memory import measure
from ...memory.measure import links
from .bench import Bench, Figure, digits
from .serving import model_of, setup_of


def bandwidth(bench: Bench) -> Iterator[Figure]:
    """The staircase: bytes per second by working set."""
    found = measure.sweep(bench.device, bench.scale.sweep_bytes)
    setup = {"kind": "sweep", "reported": found.reported}
    yield Figure("read", "bandwidth", "bytes/s", setup, tuple(map(digits, found.bytes_per_s)), found.sizes, "bytes")


def host_link(bench: Bench) -> Iterator[Figure]:
    """Each way from pageable and from pinned memory, and both ways at once."""
    for copy in measure.copies(bench.device, bench.scale.copy_bytes):
        setup = {"kind": "copy", "size_bytes": bench.scale.copy_bytes, "ways": 2 if copy.way == links.BOTH else 1}
        yield Figure(f"{copy.way}, {copy.memory}", "bandwidth", "bytes/s", setup, (digits(copy.bytes_per_s),))


def roofline(bench: Bench) -> Iterator[Figure]:
    """The measured roof, and each operator's work and seconds under it."""
    number_format = measure.default_format(bench.device)
    found = measure.roofline(bench.scale.probes, bench.device, number_format)
    setup = {"kind": "roof", "format": number_format}
    yield Figure("roof", "memory", "bytes/s", setup, (digits(found.roof.bytes_per_s),))
    yield Figure("roof", "arithmetic", "FLOP/s", setup, (digits(found.roof.flops_per_s),))
    for name, point in found.points.items():
        work = point.work
        setup = {
            "kind": "operator",
            "format": number_format,
            "flops": work.flops,
            "read_bytes": work.read_bytes,
            "written_bytes": work.written_bytes,
        }
        yield Figure(name, "time", "s", setup, (digits(point.seconds),))


def decoding(bench: Bench) -> Iterator[Figure]:
    """One token of an 8B shape without a cache, replayed as a CUDA graph: little but its weights is read."""
    setup = setup_of(bench, context=1)
    model = model_of(bench)
    token = torch.ones(1, 1, dtype=torch.long, device=bench.device)
    with torch.inference_mode():
        run = measure.graphed(lambda: model(token, use_cache=False))
        seconds = measure.fastest(run, bench.device)
    yield Figure(f"{bench.scale.serve}, one token", "time", "s", setup, (digits(seconds),))
