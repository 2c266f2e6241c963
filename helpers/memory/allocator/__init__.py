"""PyTorch's caching allocator, simulated, and snapshots of the real one. Needs no torch; imports catalog and memory.

    from helpers.memory.allocator import MIB, Settings, alloc, free, read_snapshot, replay
    replay([alloc("a", 3 * MIB), free("a"), alloc("b", 30 * MIB)]).peak_reserved_bytes
    replay(step.events, "expandable_segments:True", capacity_bytes=24 * 2**30).oom

`simulator` follows the C++ rule by rule, on the `blocks` of segments that a `driver` hands out; `replay` runs a list of
requests, `outcome` says what each did; `snapshot` reads a real allocator's history, `rewind` finds what was held when
it begins, `compare` says where the simulator departs from it, and `snapshot_summary` what it tells of the run.
"""

from .blocks import BlockState, Segment, SegmentBlock
from .compare import Comparison, compare_with_snapshot, requests_of
from .driver import DriverCall, SegmentEvent
from .outcome import AllocatorOutcome, OutcomeKind, OutOfMemory, Reason
from .replay import AllocationAction, AllocationRequest, AllocatorReplay, alloc, empty_cache, free, replay
from .settings import MIB, Settings
from .simulator import Allocation, Allocator
from .snapshot import Snapshot, TraceEvent, live_snapshot, pack, read_snapshot, unpack
from .viewer import write_for_viewer
