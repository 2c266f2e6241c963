"""What Python and NumPy hold beside tensors: a Meter does not see an array, nor a list of a million numbers."""

from __future__ import annotations

import sysconfig
import tracemalloc
from pathlib import Path

import numpy as np

from ...catalog.errors import WorkbookError

_MARK_BYTES = 2**9
LITTLE_BYTES = 2**17  # of Python's own objects: names, shapes, lists of blocks
_LIBRARIES = (str(Path(__file__).parents[2]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib")))
_LIBRARIES += ("<frozen", "<string>", "<_")  # what they import, and make of text


class Beside:
    """While it is open: bytes of NumPy arrays that were made since, and are alive; and of Python's own objects.

    The latter count where they are many, and only those that the reader's own lines made. To ask takes milliseconds.

    >>> with Beside() as beside:
    ...     kept = np.zeros(1000)
    ...     beside.live_bytes
    8000
    """

    def __enter__(self) -> Beside:
        self._began = not tracemalloc.is_tracing()
        if self._began:
            tracemalloc.start()
        self._traced = bytes(_MARK_BYTES)  # known as long as nobody clears what is traced
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]
        return self

    def __exit__(self, *problem: object) -> None:
        if self._began:
            tracemalloc.stop()

    @property
    def array_bytes(self) -> int:
        """Of NumPy's arrays alone."""
        return _bytes(self._snapshot(), tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain))

    @property
    def peak_bytes(self) -> int:
        """The most that was there at once, of arrays and objects, whoever's lines made them: a Meter's, too."""
        return tracemalloc.get_traced_memory()[1] - self._before

    @property
    def live_bytes(self) -> int:
        theirs = [tracemalloc.Filter(False, f"{where}*") for where in _LIBRARIES]
        now = self._snapshot()
        arrays, objects = (tracemalloc.DomainFilter(whose, np.lib.tracemalloc_domain) for whose in (True, False))
        own = _bytes(now, objects, *theirs)
        return _bytes(now, arrays) + (own if own > LITTLE_BYTES else 0)

    def _snapshot(self) -> tracemalloc.Snapshot:
        """What is there now. WorkbookError where somebody stopped counting, or cleared what was counted."""
        if tracemalloc.get_object_traceback(self._traced) is None:
            what = "tracemalloc was cleared or stopped while bytes were counted with it"
            raise WorkbookError(what, "a count that goes on", "leave tracemalloc to your own cells")
        return tracemalloc.take_snapshot()


def _bytes(snapshot: tracemalloc.Snapshot, *filters: tracemalloc.DomainFilter | tracemalloc.Filter) -> int:
    return sum(trace.size for trace in snapshot.filter_traces(filters).traces)
