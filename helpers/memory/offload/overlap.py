"""Copies beside computing, each known by its seconds: who waits for whom, and from which batch on nobody does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_number, require_whole
from ...catalog.formats import number_format
from ...catalog.setup_fields import MAX_COUNT


@dataclass(frozen=True)
class LayerTurn:
    """When one layer's copy and its work begin and end, in seconds from the first copy's start."""

    copy_starts_s: float
    copy_ends_s: float
    starts_s: float
    ends_s: float


def overlapped_s(copies_s: Sequence[float], computes_s: Sequence[float], buffers: int = 2) -> float:
    """Seconds of a forward whose layers arrive one after the other in `buffers` buffers, and compute in turn.

    A copy waits for the copy before it, and for the layer that used its buffer; a layer waits for its copy and for the
    layer before it. One buffer is no overlap: the sum of everything. For L equal layers, of a copy c and a compute k,
    two buffers take c + (L - 1) max(c, k) + k.

    >>> overlapped_s([2, 2, 2], [3, 3, 3]), overlapped_s([2, 2, 2], [3, 3, 3], buffers=1)
    (11, 15)
    """
    return turns(copies_s, computes_s, buffers)[-1].ends_s


def turns(copies_s: Sequence[float], computes_s: Sequence[float], buffers: int = 2) -> tuple[LayerTurn, ...]:
    """The schedule of `overlapped_s`, layer by layer."""
    require_whole("buffers", buffers, do="pass buffers=2")
    if len(copies_s) != len(computes_s) or not copies_s:
        what = f"{len(copies_s)} copies and {len(computes_s)} layers"
        raise WorkbookError(what, "a copy for each layer, and one layer or more", "pass two lists of one length")
    done: list[LayerTurn] = []
    link_free_s = device_free_s = 0.0
    for at, (copy_s, compute_s) in enumerate(zip(copies_s, computes_s, strict=True)):
        buffer_free_s = done[at - buffers].ends_s if at >= buffers else 0
        copy_starts_s = max(link_free_s, buffer_free_s)
        link_free_s = copy_starts_s + copy_s
        starts_s = max(link_free_s, device_free_s)
        device_free_s = starts_s + compute_s
        done.append(LayerTurn(copy_starts_s, link_free_s, starts_s, device_free_s))
    return tuple(done)


def break_even_tokens(
    flops_per_s: float, link_bytes_per_s: float, format_name: str = "bf16", active: float = 1.0
) -> float:
    """Tokens in a pass, batch times length, from which on a layer computes for longer than its weights travel.

    A weight of b bytes takes b / B to arrive and 2 / F of compute for each token, whatever the layer's size: both take
    as long at b F / (2 B) tokens. Attention adds FLOPs without weights, so long sequences get there a little earlier.
    A token of a mixture of experts is multiplied with the share `active` of the weights, and all of them travel.

    H100 in BF16 over PCIe 5.0, by their datasheets: 2 x 989.4e12 / (2 x 64e9) = 15,459 tokens.
    """
    for name, rate in (("flops_per_s", flops_per_s), ("link_bytes_per_s", link_bytes_per_s)):
        require_number(name, rate, expected="a rate above 0, per second", do="64 GB/s is 64e9")
    require_number("active", active, below=1 + 1e-9, expected="a share above 0, at most 1", do="Mixtral-8x7B has 0.27")
    side = 4096  # of a matrix, so that a format's scales are in it: some have one for each row
    one_weight = number_format(format_name).storage_bytes(side**2, rows=side) / side**2
    return one_weight * flops_per_s / (2 * link_bytes_per_s * active)


def fewest(suffices: Callable[[int], bool]) -> int | None:
    """The least count that suffices, where every larger one does too; None where MAX_COUNT does not."""
    if not suffices(MAX_COUNT):
        return None
    too_few, enough = 0, MAX_COUNT
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if suffices(middle) else (middle, enough)
    return enough
