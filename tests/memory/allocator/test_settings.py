"""Settings: what PYTORCH_CUDA_ALLOC_CONF spells, and the three size rules."""

import pytest

from helpers.catalog import WorkbookError
from helpers.memory.allocator import MIB, Settings

KIB = 1024


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Settings()),
        ("max_split_size_mb:128", Settings(max_split_size_mb=128)),
        ("expandable_segments:True", Settings(expandable_segments=True)),
        (" max_split_size_mb : 64 , expandable_segments:False", Settings(max_split_size_mb=64)),
        ("backend:native,roundup_power2_divisions:8", Settings(roundup_power2_divisions=8)),
        ("pinned_use_background_threads:True", Settings()),
        (
            "large_segment_size_mb:40,max_non_split_rounding_mb:50",
            Settings(large_segment_size_mb=40, max_non_split_rounding_mb=50),
        ),
    ],
)
def test_text_becomes_settings_and_back(text, expected):
    assert Settings.parse(text) == expected
    written = str(expected)
    assert Settings.parse("" if written == "default settings" else written) == expected
    assert eval(repr(expected)) == expected


BROKEN = [
    ("max_split_size:128", "unknown allocator setting 'max_split_size'", "did you mean 'max_split_size_mb'?"),
    ("max_split_size_mb:19", "max_split_size_mb is 19", "write max_split_size_mb=20"),
    ("max_split_size_mb:-5", "max_split_size_mb is '-5'", "write max_split_size_mb:128"),
    ("max_split_size_mb:many", "max_split_size_mb is 'many'", "write max_split_size_mb:128"),
    ("max_split_size_mb", "'max_split_size_mb' is no setting", ""),
    ("max_split_size_mb=128", "'max_split_size_mb=128' is no setting", ""),
    ("expandable_segments:true", "expandable_segments is 'true'", "write expandable_segments:True"),
    ("backend:cudaMallocAsync", "backend is not simulated", "leave backend out"),
    ("garbage_collection_threshold:0.8", "garbage_collection_threshold is not simulated", ""),
    ("roundup_power2_divisions:6", "roundup_power2_divisions is 6", "write 4 or 8"),
    ("roundup_power2_divisions:[256:1,>:8]", "roundup_power2_divisions is '[256:1'", ""),
    ("large_segment_size_mb:10", "large_segment_size_mb is 10", ""),
    ("max_non_split_rounding_mb:5", "max_non_split_rounding_mb is 5", ""),
    (7, "settings are 7", "write Settings.parse"),
]


@pytest.mark.parametrize(("text", "what", "do"), BROKEN, ids=[str(row[0]) for row in BROKEN])
def test_broken_text_is_told(text, what, do):
    with pytest.raises(WorkbookError) as caught:
        Settings.parse(text)
    assert what in caught.value.what
    assert do in caught.value.do


@pytest.mark.parametrize(
    "fields",
    [
        {"max_split_size_mb": 2.5},
        {"expandable_segments": "True"},
        {"roundup_power2_divisions": True},
        {"large_segment_size_mb": None},
    ],
)
def test_a_field_of_the_wrong_kind_is_told(fields):
    with pytest.raises(WorkbookError, match=next(iter(fields))):
        Settings(**fields)


@pytest.mark.parametrize(
    ("request_bytes", "block_bytes"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_blocks_are_rounded_to_512_bytes(request_bytes, block_bytes):
    assert Settings().block_bytes(request_bytes) == block_bytes


@pytest.mark.parametrize(
    ("divisions", "request_bytes", "block_bytes"),
    [
        (4, 1200 * KIB, 1280 * KIB),  # the comment of roundup_power2_next_division: 1024, 1280, 1536, 1792
        (4, 1280 * KIB, 1280 * KIB),
        (4, 1281 * KIB, 1536 * KIB),
        (4, 1793 * KIB, 2048 * KIB),
        (8, 4096, 4096),
        (8, 4097, 4608),
        (4, 2048, 2048),
        (4, 1000, 1024),
        (1, 5000, 5120),
        (0, 5000, 5120),
    ],
)
def test_power_of_two_divisions(divisions, request_bytes, block_bytes):
    assert Settings(roundup_power2_divisions=divisions).block_bytes(request_bytes) == block_bytes


@pytest.mark.parametrize(
    ("block_bytes", "segment_bytes"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (20 * MIB, 20 * MIB),
        (333 * MIB, 334 * MIB),
    ],
)
def test_segments_by_size(block_bytes, segment_bytes):
    assert Settings().segment_bytes(block_bytes) == segment_bytes


def test_a_larger_large_segment():
    settings = Settings(large_segment_size_mb=40)
    assert settings.segment_bytes(3 * MIB) == 40 * MIB
    assert settings.slack_bytes == 40 * MIB
    assert Settings(max_non_split_rounding_mb=30).slack_bytes == 30 * MIB
