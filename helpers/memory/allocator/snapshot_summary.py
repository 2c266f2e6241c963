"""What a snapshot tells of a run: its peak, what was live then, and what other settings would have reserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ...catalog.errors import WorkbookError
from ..breakdown import format_bytes
from .compare import Comparison, compare_with_snapshot, requests_of
from .replay import AllocationAction, AllocatorReplay, replay
from .settings import Settings
from .snapshot import Snapshot

OTHERS = ("", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8")
LARGEST = 8
BEFORE = "(from before the history)"
NOT_RECORDED = "(no line was recorded)"


@dataclass(frozen=True)
class SnapshotSummary:
    """One device's history, replayed. Bytes; `at` is the number of the request at which most was in tensors.

    `live` is what was live there, by the line that made it: bytes and blocks, the largest first. `others` is what would
    have been reserved at most with other settings, from the same beginning.
    """

    device: int
    comparison: Comparison
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    at: int
    live: tuple[tuple[str, int, int], ...]
    others: dict[str, int]

    @property
    def figures(self) -> dict[str, object]:
        """For JSON."""
        return {
            "device": self.device,
            "requests": len(self.comparison.replay),
            "reserved_before_bytes": self.comparison.unrecorded_bytes,
            "replays_exactly": self.comparison.agrees,
            "differences": list(self.comparison.differences),
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "peak_at_request": self.at,
            "live_at_peak": [{"line": line, "bytes": size, "blocks": count} for line, size, count in self.live],
            "reserved_with_bytes": self.others,
        }

    def __str__(self) -> str:
        found, before = self.comparison, self.comparison.unrecorded_bytes
        begins = f"mid-run, with {format_bytes(before)} reserved" if before else "with an empty allocator"
        lines = [
            f"GPU {self.device}: {len(found.replay):,} requests; the history begins {begins}",
            f"replayed here   {found}",
            "",
            f"peak in tensors {format_bytes(self.peak_allocated_bytes):>12}   at request {self.at:,}",
            f"peak reserved   {format_bytes(self.peak_reserved_bytes):>12}",
            "",
            "live at the peak, by line",
            *(f"  {format_bytes(size):>12}  {line}, {count} blocks" for line, size, count in self.live),
            "",
            "reserved at most, with other settings" + (" from the same beginning" if before else ""),
            *(f"  {format_bytes(size):>12}  {name or 'default settings'}" for name, size in self.others.items()),
        ]
        return "\n".join(lines)


def summarize(snapshot: Snapshot, device: int = 0, settings: Iterable[str] = ()) -> SnapshotSummary:
    """Replay the history of `device`; `settings` are tried besides OTHERS, as PYTORCH_ALLOC_CONF spells them.

    WorkbookError for a snapshot without a history, and for one that cannot be replayed (`compare_with_snapshot`).
    """
    found = compare_with_snapshot(snapshot, device=device)
    ran = found.replay
    at = max(range(len(ran)), key=ran.allocated.__getitem__)
    asked = requests_of(snapshot.trace(device), found.begins)
    own = str(Settings.parse(snapshot.conf))
    others: dict[str, int] = {}
    for text in dict.fromkeys((*OTHERS, *settings)):
        chosen = Settings.parse(text)
        others[text] = (
            ran.peak_reserved_bytes
            if str(chosen) == own
            else replay(asked, chosen, begins=found.begins).peak_reserved_bytes
        )
    live = _live(snapshot, found, ran, at)
    return SnapshotSummary(device, found, ran.allocated[at], max(ran.reserved), at, live, others)


def _live(snapshot: Snapshot, found: Comparison, ran: AllocatorReplay, at: int) -> tuple[tuple[str, int, int], ...]:
    """What is live after request `at`, by line: a block from before has its line if it is there at the end."""
    lines = {block.address: block.name for segment in snapshot.segments for block in segment.blocks}
    live: dict[object, tuple[str, int]] = {
        block.address: (lines.get(block.address) or BEFORE, block.size_bytes)
        for segment in found.begins
        for block in segment.blocks
        if not block.is_free
    }
    for request, outcome in zip(ran.requests[: at + 1], ran.outcomes, strict=False):
        if request.action is AllocationAction.ALLOC:
            line = NOT_RECORDED if request.name.startswith("0x") else request.name
            live[request.key] = (line, outcome.size_bytes)
        elif request.action is AllocationAction.FREE:
            live.pop(request.key, None)
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for line, size in live.values():
        sizes[line] += size
        counts[line] += 1
    return tuple((line, size, counts[line]) for line, size in sizes.most_common(LARGEST))


def devices_of(snapshot: Snapshot) -> list[int]:
    """The devices with a history that allocates; WorkbookError where there is none."""
    found = [at for at, trace in enumerate(snapshot.traces) if any(event.action == "alloc" for event in trace)]
    if not found:
        do = "call torch.cuda.memory._record_memory_history() first; `workbook explain-oom` shows what is held"
        raise WorkbookError("the snapshot has no history", "one that was recorded while it ran", do)
    return found
