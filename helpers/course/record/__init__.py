"""`workbook record`: the chapters' measurements on the GPU at hand, written to recordings/<device>.json.

`experiments` lists them, cheap first; `speed`, `training`, `serving` and `histories` are what they run; `gpu` asks the
device, `session` runs what is missing and writes after each, `scale` says how large. Tests rehearse all of it on a CPU
with toy sizes; what a real allocator and a real link answer has not been seen by any test here.

    from helpers.course.record import record
    record(Path("recordings"))      # 0 when nothing failed; run it again and it goes on
"""

from __future__ import annotations

__all__ = ["listing", "record"]


def __getattr__(name: str) -> object:
    """Both are looked up when asked for: they bring torch."""
    if name in __all__:
        from . import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
