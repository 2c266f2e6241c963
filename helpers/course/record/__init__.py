"""`workbook record`: the chapters' measurements on the GPU at hand, written to recordings/<device>.json.

`experiments` lists them, cheap first; `hardware`, `training` and `serving` are what they run; `target` asks the device
and says how large to be, `session` runs what is missing and writes after each. Tests rehearse all of it on a CPU with
toy sizes; what a real allocator and a real link answer has not been seen by any test here.

    from helpers.course.record import record
    record(Path("recordings"))      # 0 when nothing failed; run it again and it goes on
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .session import listing, record


__getattr__ = lazy(__name__)
