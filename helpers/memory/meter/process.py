"""How far a process has grown: memory of its own, whoever took it, in whatever form."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path

import torch

TORCH_CPU = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
STATUS = Path("/proc/self/status")
PRIVATE = ("RssAnon:", "RssShmem:")  # not RssFile: a library is read in when its code first runs
BORN_FROZEN = 1_000  # more than any interpreter's own: 375 on Python 3.12, none on 3.11 and 3.13
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
MAPPED_BYTES = 2**17  # glibc's own threshold at the start of a process
MOST_BYTES = 2**25  # and where it ends, the more large blocks are freed


@contextlib.contextmanager
def what_was_before_aside() -> Iterator[None]:
    """No garbage collection looks through what there was before: all of torch, a sixth of a second each time."""
    if gc.get_freeze_count() > BORN_FROZEN:  # somebody's own, which unfreezing would undo
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def large_blocks_mapped() -> Iterator[None]:
    """Blocks of 128 KiB and more have mappings of their own, and go back to the system when they are freed.

    glibc raises that size by itself, up to 32 MiB, and a thread's heap then keeps what is freed at its end, whatever
    `malloc_trim` says. Afterwards the sizes are those to which glibc would have come.
    """
    _mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    try:
        yield
    finally:
        _mallopt(M_MMAP_THRESHOLD, MOST_BYTES)
        _mallopt(M_TRIM_THRESHOLD, 2 * MOST_BYTES)


def _mallopt(parameter: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # another libc has no such parameters
        ctypes.CDLL(None).mallopt(parameter, value)


class ProcessGrowth:
    """While it is open: bytes by which this process's own memory has grown, as the operating system counts it.

    An exact meter sees what it watches; this one sees everything in the process, and only to about a mebibyte. So it
    is for tens of megabytes: a tensor, an array, a list, a file in memory, or a storage that no operator made. Small
    objects first fill what earlier ones left free, and that is no growth. Run the work once before, small: what a first
    run loads stays. To open it takes a third of a second, to ask takes
    milliseconds. Linux only; `live_bytes` is 0 elsewhere.

    >>> with ProcessGrowth() as growth:
    ...     kept = bytearray(b"1" * 2**26)
    ...     round(growth.live_bytes / 2**26)
    1
    """

    def __enter__(self) -> ProcessGrowth:
        self._aside = contextlib.ExitStack()
        self._aside.enter_context(large_blocks_mapped())
        self._before = _private_bytes()
        self._aside.enter_context(what_was_before_aside())
        return self

    def __exit__(self, *problem: object) -> None:
        self._aside.close()

    @property
    def live_bytes(self) -> int:
        return max(0, _private_bytes() - self._before)


def _private_bytes() -> int:
    if not STATUS.exists():
        return 0
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # a PyTorch that multiplies with another library
        ctypes.CDLL(str(TORCH_CPU)).mkl_serv_free_buffers()  # MKL keeps its scratch memory for the next product
    with contextlib.suppress(AttributeError, OSError):  # another libc gives it back, or does not tell how
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed
    return sum(int(line.split()[1]) * 1024 for line in STATUS.read_text().splitlines() if line.startswith(PRIVATE))
