"""What libraries in C take from the heap: states of generators, a text in TorchScript, a picture, a buffer of OpenSSL.

No operator returns it and no line of Python makes it. So it is what is left: the heap as glibc counts it, less what is
known, the tensors of a Meter and what `tracemalloc` has told of.
"""

from __future__ import annotations

import contextlib
import ctypes
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..breakdown import Part
from .meter import Meter
from .process import TORCH_CPU

_A_STORAGE = 2**10  # what PyTorch keeps for each beside its bytes, and for the tensors and views of it
_A_TRACE = 48  # of what tracemalloc takes for a piece and does not tell: the heap's own heads
_POOLED = 512  # bytes: what is no larger lies in Python's arenas, outside of the heap
LITTLE_BYTES = 2**18  # caches of PyTorch's, and what glibc keeps for the next to ask: 70 kB were seen in a kernel


class _Told(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    ]


class Known(NamedTuple):
    """Whether a Meter is open; the heap, what of it tensors are, their storages, and what tracemalloc itself takes."""

    metered: bool
    heap: int
    tensors: int
    storages: int
    tracing: int


def _asks_glibc() -> Callable[[], Any] | None:
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)  # another libc has none, and an old glibc
    if function is not None:
        function.restype = _Told
    return function


def _frees_scratch() -> Callable[[], Any]:
    """MKL keeps its scratch memory for the next product."""
    with contextlib.suppress(AttributeError, OSError):  # a PyTorch that multiplies with another library
        return ctypes.CDLL(str(TORCH_CPU)).mkl_serv_free_buffers
    return lambda: None


_mallinfo, _free_scratch = _asks_glibc(), _frees_scratch()


def known() -> Known:
    """What is there now, by the innermost Meter that is open."""
    _free_scratch()
    told = _mallinfo() if _mallinfo else _Told()
    meter = next((one for one in reversed(_get_current_dispatch_mode_stack()) if isinstance(one, Meter)), None)
    made = [one.size_bytes for one in meter.live.values() if one.category == Part.WORKSPACE] if meter else []
    return Known(
        meter is not None, told.uordblks + told.hblkhd, sum(made), len(made), tracemalloc.get_tracemalloc_memory()
    )


def left_over(before: Known, now: Known, sizes: Iterable[int]) -> int:
    """Bytes of the heap made between the two that nobody knows of, 0 where they are few.

    `sizes` are those of the pieces that Python had made by then. What was there before and is gone counts for whoever
    freed it.
    """
    if not (_mallinfo and now.metered):  # tensors are on the heap, too
        return 0
    pieces = told = 0
    for size in sizes:
        pieces += 1
        told += size if size > _POOLED else 0
    told += now.tensors - before.tensors + now.tracing - before.tracing
    left = now.heap - before.heap - told - _A_TRACE * pieces - _A_STORAGE * now.storages
    return left if left > LITTLE_BYTES else 0
