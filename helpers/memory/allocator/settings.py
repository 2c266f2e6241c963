"""The allocator's sizes and switches, read as PYTORCH_CUDA_ALLOC_CONF spells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...catalog.errors import WorkbookError, require_name, require_whole
from ..breakdown import BLOCK_BYTES, rounded

MIB = 2**20
# c10/core/AllocatorConfig.h, PyTorch 2.11 to 2.13
SMALL_BYTES = MIB  # kSmallSize: up to this a request is served by the small pool
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer
MIN_LARGE_BYTES = 10 * MIB  # kMinLargeAlloc: from this on a segment is as large as its request
ROUND_LARGE_BYTES = 2 * MIB  # kRoundLarge

# Settings that exist and that the simulator does not follow, with what they would change.
NOT_SIMULATED = {
    "garbage_collection_threshold": "it frees by age, and only below a memory fraction",
    "backend": "cudaMallocAsync leaves all of this to the driver",
    "per_process_memory_fraction": "pass allowed_bytes to Allocator or replay instead",
    "throw_on_cudamalloc_oom": "it refuses before the driver is asked",
}
# Settings about pinned host memory, locks and graphs: no segment on the device depends on them.
WITHOUT_EFFECT = (
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
)
_NUMBERS = ("max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb", "roundup_power2_divisions")
KEYS = (*_NUMBERS, "expandable_segments")


@dataclass(frozen=True)
class Settings:
    """The settings that decide which segment serves a request. Sizes in MiB, as the environment variable has them.

    `max_split_size_mb` None: blocks of any size are split. `max_non_split_rounding_mb` (by default the size of a large
    segment) is the most by which a block that may not be split may exceed its request. `roundup_power2_divisions` 8
    rounds sizes up to the next eighth between two powers of two; 0 is off, lists of intervals are not simulated.
    """

    max_split_size_mb: int | None = None
    expandable_segments: bool = False
    max_non_split_rounding_mb: int | None = None
    large_segment_size_mb: int = 20
    roundup_power2_divisions: int = 0

    def __post_init__(self) -> None:
        """Bounds of AcceleratorAllocatorConfig::parse… in c10/core/AllocatorConfig.cpp."""
        large = self.large_segment_size_mb
        _require_at_least("large_segment_size_mb", large, 11)
        for name in ("max_split_size_mb", "max_non_split_rounding_mb"):
            if getattr(self, name) is not None:
                _require_at_least(name, getattr(self, name), large)
        divisions, grows = self.roundup_power2_divisions, self.expandable_segments
        _require_at_least("roundup_power2_divisions", divisions, 0)
        if divisions & (divisions - 1):
            raise WorkbookError(f"roundup_power2_divisions is {divisions}", "0 or a power of two", "write 4 or 8")
        if not isinstance(grows, bool):
            raise WorkbookError(f"expandable_segments is {grows!r}", "True or False", "write expandable_segments=True")

    @classmethod
    def parse(cls, text: str) -> Settings:
        """The settings in a value of PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF; WorkbookError for what it has not.

        >>> Settings.parse("max_split_size_mb:128, expandable_segments:True")
        Settings(max_split_size_mb=128, expandable_segments=True)
        """
        if not isinstance(text, str):
            expected = "text as in PYTORCH_CUDA_ALLOC_CONF"
            raise WorkbookError(f"settings are {text!r}", expected, "write Settings.parse('max_split_size_mb:128')")
        found: dict[str, Any] = {}  # by field of Settings, each of its own type
        for pair in filter(None, ("".join(part.split()) for part in text.split(","))):
            key, colon, value = pair.partition(":")
            if not colon or not value:
                expected, do = "key:value, separated by commas", "write max_split_size_mb:128,expandable_segments:True"
                raise WorkbookError(f"{pair!r} is no setting", expected, do)
            if key not in WITHOUT_EFFECT and pair != "backend:native":
                found[key] = _value(key, value)
        return cls(**found)

    def __repr__(self) -> str:
        changed = [f"{name}={value!r}" for name, value in vars(self).items() if value != getattr(Settings, name)]
        return f"Settings({', '.join(changed)})"

    def __str__(self) -> str:
        changed = [f"{name}:{value}" for name, value in vars(self).items() if value != getattr(Settings, name)]
        return ",".join(changed) or "default settings"

    @property
    def large_segment_bytes(self) -> int:
        return self.large_segment_size_mb * MIB

    @property
    def max_split_bytes(self) -> int | None:
        return None if self.max_split_size_mb is None else self.max_split_size_mb * MIB

    @property
    def slack_bytes(self) -> int:
        """max_non_split_rounding_size(): a large segment's size unless it is set."""
        rounding = self.max_non_split_rounding_mb
        return self.large_segment_bytes if rounding is None else rounding * MIB

    def block_bytes(self, request_bytes: int) -> int:
        """The block that a request takes, at least 512 B (round_size in c10/cuda/CUDACachingAllocator.cpp).

        >>> Settings().block_bytes(1), Settings(roundup_power2_divisions=4).block_bytes(1200 * 1024) // 1024
        (512, 1280)
        """
        divisions = self.roundup_power2_divisions
        if divisions <= 1 or request_bytes <= BLOCK_BYTES * divisions:
            return max(BLOCK_BYTES, rounded(request_bytes))
        floor = 1 << (request_bytes.bit_length() - 1)
        step = floor // divisions  # roundup_power2_next_division
        return -(-request_bytes // step) * step

    def segment_bytes(self, block_bytes: int) -> int:
        """What the driver is asked for when no cached block fits (get_allocation_size).

        >>> [Settings().segment_bytes(size * MIB) // MIB for size in (1, 3, 11)]
        [2, 20, 12]
        """
        if block_bytes <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if block_bytes < MIN_LARGE_BYTES:
            return self.large_segment_bytes
        return -(-block_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def _value(key: str, value: str) -> bool | int:
    if key in NOT_SIMULATED:
        raise WorkbookError(f"{key} is not simulated: {NOT_SIMULATED[key]}", ", ".join(KEYS), f"leave {key} out")
    if key == "expandable_segments":
        if value not in ("True", "False"):  # ConfigTokenizer::toBool takes no other spelling
            raise WorkbookError(f"expandable_segments is {value!r}", "True or False", "write expandable_segments:True")
        return value == "True"
    require_name("allocator setting", key, KEYS)
    if not value.isdecimal():
        raise WorkbookError(f"{key} is {value!r}", "a whole number", f"write {key}:128")
    return int(value)


def _require_at_least(name: str, value: object, least: int) -> None:
    require_whole(name, value, least, do=f"write {name}={max(least, 1)}")
