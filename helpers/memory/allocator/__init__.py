"""PyTorch's caching allocator, simulated, and snapshots of the real one. Needs no torch; imports catalog and memory.

    from helpers.memory.allocator import MIB, Settings, alloc, free, read_snapshot, replay
    replay([alloc("a", 3 * MIB), free("a"), alloc("b", 30 * MIB)]).peak_reserved_bytes
    replay(step.events, "expandable_segments:True", capacity_bytes=24 * 2**30).oom

`simulator` follows the C++ rule by rule, `expandable` its growing segments, `driver` stands for CUDA; `replay` runs a
trace, `snapshot` reads a real allocator's and `compare` says where the simulator departs from it.
"""

from .blocks import Segment, SegmentBlock
from .compare import Comparison, compare_with_snapshot, steps_of
from .driver import SegmentEvent
from .outcome import Outcome, OutOfMemory
from .replay import Replay, Step, alloc, at_step, empty_cache, free, replay
from .settings import MIB, Settings
from .simulator import Allocation, Allocator
from .snapshot import Snapshot, TraceEvent, live_snapshot, read_snapshot

__all__ = [
    "MIB",
    "Allocation",
    "Allocator",
    "Comparison",
    "OutOfMemory",
    "Outcome",
    "Replay",
    "Segment",
    "SegmentBlock",
    "SegmentEvent",
    "Settings",
    "Snapshot",
    "Step",
    "TraceEvent",
    "alloc",
    "at_step",
    "compare_with_snapshot",
    "empty_cache",
    "free",
    "live_snapshot",
    "read_snapshot",
    "replay",
    "steps_of",
]
