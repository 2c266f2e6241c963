"""Names and the segments that they mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.catalog import WorkbookError
from helpers.catalog.policies import POLICIES, PolicySegment, layout

COUNTS = st.integers(1, 40)


@pytest.mark.parametrize(
    ("policy", "layers", "expected"),
    [
        ("none", 2, "0 none, 1 none"),
        ("FULL", 2, "0 full, 1 full"),
        ("every:2", 5, "0-1 full, 2-3 full, 4 full"),
        ("every:5", 5, "0-4 full"),
        ("sqrt-n", 1, "0 full"),
        ("sqrt-n", 9, "0-2 full, 3-5 full, 6-8 full"),
        ("sqrt-n", 10, "0-3 full, 4-7 full, 8-9 full"),
        ("first:1", 3, "0 full, 1 none, 2 none"),
        ("nested:2", 3, "0-1 full (0 full, 1 full), 2 full (2 full)"),
        ("recursive", 1, "0 full"),
        ("recursive", 3, "0-1 full (0 full, 1 full), 2 full"),
        ("selective:matmuls", 1, "0 selective:matmuls"),
        ("selective:every-second", 1, "0 selective:every-second"),
        ("module:mlp", 1, "0 module:mlp"),
    ],
)
def test_segments(policy, layers, expected):
    assert ", ".join(map(str, layout(policy, layers))) == expected


@given(COUNTS, st.integers(1, 40))
def test_every_policy_covers_the_chain_once(layers, count):
    for name in POLICIES:
        policy = name.replace("K", str(min(count, layers)))
        for depth in walk(PolicySegment(0, layers, parts=layout(policy, layers))):
            assert [part.start for part in depth.parts] == [depth.start, *(part.stop for part in depth.parts[:-1])]
            assert depth.parts[-1].stop == depth.stop


def walk(segment):
    if segment.parts:
        yield segment
        for part in segment.parts:
            yield from walk(part)


@pytest.mark.parametrize(
    ("policy", "layers", "do"),
    [
        ("sqrt", 4, "did you mean 'sqrt-n'?"),
        ("every", 4, "pass 'every:2'"),
        ("every:0", 4, "pass 'every:2'"),
        ("every:5", 4, "pass 'every:2'"),
        ("first:x", 1, "pass 'first:1'"),
        ("nested:²", 4, "pass 'nested:2'"),
        (2, 4, "pick one of the 15 names above"),
        ("full", 0, "pass the model's layers"),
        ("full", True, "pass the model's layers"),
    ],
)
def test_bad_input(policy, layers, do):
    with pytest.raises(WorkbookError) as told:
        layout(policy, layers)
    assert told.value.do == do
