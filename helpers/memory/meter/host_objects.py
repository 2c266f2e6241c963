"""What Python and NumPy hold beside tensors: a Meter does not see an array, nor a list of a million numbers.

Python says of each object which line made it, and no more than that is asked: to know who called that line takes three
times as long. So whoever makes an object counts, the learner's line or a library's, a text of `base64` as one of `str`.
Left out are lines that keep the books of a meter, or of PyTorch's operators; and where modules came in meanwhile, what
those are made of. Where a Meter is open, what is on the heap and nobody knows of counts as well: see `heap`.
"""

from __future__ import annotations

import gc
import linecache
import os
import sys
import sysconfig
import tracemalloc
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from operator import itemgetter
from types import ModuleType

import numpy as np
from torch._library.simple_registry import SimpleLibraryRegistry, SimpleOperatorEntry

from ...catalog.errors import WorkbookError
from ..breakdown import rounded
from . import heap, meter

_MARK_BYTES = 2**9
LITTLE_BYTES = 2**16  # of Python's own objects: names, shapes, lists of blocks
_IMPORTS = "<frozen importlib"
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib"))
_OF_A_SOURCE = 4  # bytes of memory for a byte of a module's source, at most: measured were 2.8 to 3.6
_NUMBER_BYTES = 32  # of a small number: as a list's eight bytes lead to it, nothing is won with numbers
_FIRST_THREE = itemgetter(0, 1, 2)
Line = tuple[str, int]
Sizes = dict[Line, list[int]]
_forget_names = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache


class Beside:
    """While it is open: bytes of NumPy arrays that were made since, and are alive; and of Python's own objects.

    The latter count where they are more than `little_bytes`, and so does what libraries took beside them. To ask takes
    milliseconds.

    >>> with Beside() as beside:
    ...     kept = np.zeros(1000)
    ...     beside.live_bytes
    8000
    """

    def __init__(self, little_bytes: int = LITTLE_BYTES) -> None:
        self.little_bytes = little_bytes

    def __enter__(self) -> Beside:
        import_module("torch._dynamo")  # a mode's first operator does, and leaves 8 MB in other libraries' caches
        self._modules, self._read = len(sys.modules), set(linecache.cache)
        self._began = not tracemalloc.is_tracing()
        if self._began:
            tracemalloc.start()
        self._traced = bytes(_MARK_BYTES)  # known as long as nobody clears what is traced
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]
        self._clear_caches()
        self._heap = heap.known()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._began:
            tracemalloc.stop()

    @property
    def array_bytes(self) -> int:
        """Of NumPy's arrays alone."""
        return self._counted()[0]

    @property
    def peak_bytes(self) -> int:
        """The most that was there at once, of arrays and objects, whoever's lines made them: a Meter's, too."""
        return tracemalloc.get_traced_memory()[1] - self._before

    @property
    def live_bytes(self) -> int:
        self._clear_caches()
        now = heap.known()  # before what is counted takes room of its own
        arrays, sizes = self._counted()
        own = self._own_bytes(sizes)
        left = heap.left_over(self._heap, now, chain(self._arrays, *sizes.values()))
        return arrays + (own if own > self.little_bytes else 0) + left

    def _clear_caches(self) -> None:
        """Of what Python keeps for itself: names that were looked up, lines of files, room for tuples to come."""
        _forget_names()
        for name in {*linecache.cache} - self._read:
            if os.path.isfile(name):
                del linecache.cache[name]
        frozen = gc.get_freeze_count()
        gc.freeze()  # a collection of nothing clears that room, and what has leaked stays
        gc.collect()
        if not frozen:
            gc.unfreeze()

    def _own_bytes(self, sizes: Sizes) -> int:
        files = _imported(self._modules)
        total = imported = 0
        for (file, line), every in sizes.items():
            if files and (file in files or file.startswith(_IMPORTS)):
                imported += sum(every)
            elif (file, line) in _ROUNDS:
                total += sum(size for size in every if size > _NUMBER_BYTES)
            elif (file, line) not in _BOOKS:
                total += sum(every)
        return total + max(0, imported - _OF_A_SOURCE * sum(files.values()))

    def _counted(self) -> tuple[int, Sizes]:
        """The bytes of arrays that are there now; and of all else each piece's, by the line that made it.

        WorkbookError where somebody stopped counting, or cleared what was counted.
        """
        if tracemalloc.get_object_traceback(self._traced) is None:
            what = "tracemalloc was cleared or stopped while bytes were counted with it"
            raise WorkbookError(what, "a count that goes on", "leave tracemalloc to your own cells")
        arrays: list[int] = []
        found: Sizes = defaultdict(list)
        every = tracemalloc.take_snapshot().traces._traces  # type: ignore[attr-defined]  # as objects ten times as slow
        for domain, size, frames in map(_FIRST_THREE, every):
            (arrays if domain == np.lib.tracemalloc_domain else found[frames[0]]).append(size)
        self._arrays = arrays
        return sum(arrays), found


def _imported(before: int) -> dict[str, int]:
    """Files of libraries' modules that came in after the first so many, with the bytes of each."""
    if len(sys.modules) <= before:
        return {}
    modules = [*sys.modules.values()]
    files = [vars(one).get("__file__") if isinstance(one, ModuleType) else None for one in modules]
    new = {file for file in files[before:] if isinstance(file, str) and file.endswith(".py")} - {*files[:before]}
    return {file: os.path.getsize(file) for file in new if file.startswith(_LIBRARIES)}


def _lines(*functions: Callable) -> Iterator[Line]:
    for function in functions:
        code = function.__code__
        yield from ((code.co_filename, line) for *_, line in code.co_lines() if line is not None)


_ROUNDS = frozenset(_lines(rounded))
_BOOKS = frozenset(
    _lines(
        *(weakref.finalize.__init__, meter._finalizer),
        *(
            getattr(meter.Meter, name)
            for name in ("_see", "_count", "_allocated", "_resized", "_freed", "_add_in_place")
        ),
        *(meter.FreshMeter._see, meter.FreshMeter._leave_out, meter.FreshMeter.__torch_dispatch__),
        *(SimpleLibraryRegistry.find, SimpleOperatorEntry.__init__),  # PyTorch's, of each operator that a mode saw
    )
)
