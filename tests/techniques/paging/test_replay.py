"""Traces through policies: waste against an independent count, the claims, and the frames of the block map."""

from dataclasses import replace

import pytest

from helpers.catalog import WorkbookError
from helpers.techniques import paging
from helpers.techniques.paging import (
    POLICIES,
    ReplayEvent,
    ReplayEventKind,
    Request,
    RequestTrace,
    chat,
    code,
    documents,
    frames,
    waste_of,
)

SMALL = chat(12, seed=1, system=10, message=6, answer=9, max_tokens=64)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_gets_its_answer(policy):
    usage = waste_of(SMALL, policy, block_size=4, users=3)
    assert usage.tokens == sum(len(r.prompt) + at + 1 for r in SMALL.requests for at in range(r.new_tokens))


@pytest.mark.parametrize("block_size", [1, 2, 16, 256])
def test_paged_and_contiguous_slots_by_hand(block_size):
    lengths = [len(r.prompt) + at + 1 for r in SMALL.requests for at in range(r.new_tokens)]
    paged = waste_of(SMALL, "paged", block_size)
    assert paged.reserved == sum(-(-length // block_size) * block_size for length in lengths)
    assert paged.filled == sum(lengths)
    contiguous = waste_of(SMALL, "contiguous", block_size)
    assert (contiguous.reserved, contiguous.filled) == (len(lengths) * 64, sum(lengths))
    assert contiguous.waste == 1 - sum(lengths) / (64 * len(lengths))


def test_the_chat_trace_wastes_what_the_papers_say():
    contiguous, paged, prefix = (waste_of(chat(), policy) for policy in POLICIES)
    assert contiguous.waste > 0.60
    assert paged.waste < 0.04
    assert prefix.waste < 0.04
    assert contiguous.waste / paged.waste > 10
    assert prefix.slots_per_token < 0.6 < 1 < paged.slots_per_token < contiguous.slots_per_token


def test_waste_grows_with_the_block():
    wastes = [waste_of(chat(40, answer=60), "paged", 4**power).waste for power in range(5)]
    assert wastes[0] == 0
    assert wastes == sorted(wastes)
    assert wastes[-1] > 0.15


def test_prefix_hits_are_a_property_of_the_traffic():
    plain, long, talks = chat(80, answer=20), chat(80, system=1024, answer=20), chat(80, turns=5, answer=20)
    one, long_prompt, several = (waste_of(trace, "prefix").hits.rate for trace in (plain, long, talks))
    assert 0.7 < one < several
    assert 0.7 < one < 0.9 < long_prompt
    assert waste_of(documents(30), "prefix").hits.rate < 0.05
    assert waste_of(code(80), "prefix").hits.rate > 0.9


def test_seeds():
    assert chat(seed=1) == chat(seed=1) != chat(seed=2)
    assert paging.trace("code", requests=3) == code(3)
    for trace in (chat(30, turns=4), documents(5, document=9000), code(30)):
        assert max(request.tokens for request in trace.requests) <= trace.max_tokens
        assert min(request.new_tokens for request in trace.requests) >= 1


@pytest.mark.parametrize("policy", ["paged", "prefix"])
def test_a_tight_pool_preempts_and_still_answers_all(policy):
    roomy, tight = (waste_of(SMALL, policy, 4, 8, blocks) for blocks in (None, 17))
    assert roomy.preempted == 0 < tight.preempted
    assert tight.peak_slots <= 17 * 4
    assert tight.hits.asked == roomy.hits.asked  # a request counts once


def test_who_was_preempted_is_first_in_the_queue():
    preempted = 0
    for frame in frames(SMALL, "paged", blocks=17, block_size=4, users=8):
        if frame.events and frame.events[-1].kind is ReplayEventKind.PREEMPTED:
            assert frame.waiting[0] == frame.events[-1].request
            assert frame.waiting == tuple(sorted(frame.waiting))
            preempted += 1
    assert preempted > 1


@pytest.mark.parametrize("policy", POLICIES)
def test_frames_add_up(policy):
    shown = frames(SMALL, policy, blocks=40, block_size=4, users=3)
    usage = waste_of(SMALL, policy, 4, 3, 40)
    assert len(shown) == usage.steps
    assert sum(frame.reserved for frame in shown) == usage.reserved
    assert sum(frame.filled for frame in shown) == usage.filled
    for frame in shown:
        assert [cell.block for cell in frame.cells] == list(range(40))
        assert all(cell.filled <= 4 and cell.filled <= (cell.reserved or 4) for cell in frame.cells)
        for name, table in frame.tables.items():
            assert all(name in frame.cells[block].owners for block in table)
            assert len(table) == -(-frame.lengths[name] // 4)
    assert any(frame.shared for frame in shown) == (policy == "prefix")
    assert any(cell.cached and not cell.owners for cell in shown[-1].cells) == (policy == "prefix")


def test_frames_tell_what_happened():
    admitted, done, waits = ReplayEventKind.ADMITTED, ReplayEventKind.DONE, ReplayEventKind.WAITS
    trace = RequestTrace("two", (Request((1, 2, 3, 4, 5), (6, 7)), Request((1, 2, 3, 4, 8), (9,))), 8)
    first, second, *_ = frames(trace, "prefix", blocks=5, block_size=4)
    assert first.events == (ReplayEvent(admitted, 0), ReplayEvent(admitted, 1, found_tokens=4))
    assert (first.tables, first.lengths) == ({0: (0, 1), 1: (0, 2)}, {0: 6, 1: 6})
    assert first.cells[0] == paging.BlockCell(0, (0, 1), filled=4, reserved=4, cached=True)
    assert (first.waste, second.events) == (1 - 8 / 12, (ReplayEvent(done, 1),))
    (contiguous, *_) = frames(trace, "contiguous", blocks=3, block_size=4)
    assert [cell.filled for cell in contiguous.cells] == [4, 2, 0]
    assert (contiguous.events, contiguous.waiting) == ((ReplayEvent(admitted, 0), ReplayEvent(waits, 1)), (1,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: waste_of(SMALL, "pages"), "unknown policy"),
        (lambda: waste_of(SMALL, "paged", block_size=0), "block_size is 0"),
        (lambda: waste_of(SMALL, "paged", blocks=2), "a pool of 32 tokens for a request of"),
        (lambda: waste_of(SMALL, "contiguous", blocks=3), "a pool of 48 tokens for a request of 64"),
        (lambda: waste_of(SMALL, "paged", users=0), "users is 0"),
        (lambda: paging.trace("chats"), "did you mean 'chat'"),
        (lambda: chat(0), "requests is 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(WorkbookError, match=message):
        call()


def test_an_empty_trace_wastes_nothing():
    assert waste_of(replace(SMALL, requests=()), "paged").waste == 0.0
