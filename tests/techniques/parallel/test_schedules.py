"""Schedules as data: complete, without deadlock, with the micro-batches in flight and the bubble that formulas say."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import chain, pairwise

import pytest

from helpers.catalog import WorkbookError
from helpers.techniques.parallel.pipeline import (
    Action,
    Kind,
    Schedule,
    Times,
    bubble,
    checked,
    gpipe,
    in_flight,
    interleaved,
    lay_out,
    one_f_one_b,
    zero_bubble,
)

SIZES = [(ranks, micro_batches) for ranks in range(1, 6) for micro_batches in (1, 2, 3, 4, 5, 8, 10)]
PLAIN = (gpipe, one_f_one_b, zero_bubble)


def schedules():
    for ranks, micro_batches in SIZES:
        yield from (make(ranks, micro_batches) for make in PLAIN)
        if micro_batches % ranks == 0:
            yield from (interleaved(ranks, micro_batches, virtual) for virtual in (1, 2, 3))


def flown(schedule: Schedule) -> tuple[int, ...]:
    """Micro-batches in flight by rank, from the formulas of the papers."""
    ranks, micro_batches, virtual = schedule.ranks, schedule.micro_batches, schedule.stages // schedule.ranks
    by_rank = {
        "GPipe": lambda rank: micro_batches,
        "1F1B": lambda rank: min(micro_batches, ranks - rank),
        "ZB-H1": lambda rank: min(micro_batches, ranks),
        "interleaved 1F1B": lambda rank: min(
            virtual * micro_batches, 2 * (ranks - rank - 1) + (virtual - 1) * ranks + 1
        ),
    }[schedule.name]
    return tuple(map(by_rank, range(ranks)))


def test_every_schedule_can_be_run_for_any_number_of_ranks_and_micro_batches():
    assert sum(len(checked(schedule).by_rank) for schedule in schedules()) > 300


def test_micro_batches_in_flight_are_those_of_the_papers():
    for schedule in schedules():
        assert in_flight(schedule) == flown(schedule), (schedule.name, schedule.ranks, schedule.micro_batches)


@pytest.mark.parametrize("times", [Times(), Times(2, 3, 1), Times(3, 3, 2), Times(Fraction(1, 2), 1, 0.25)], ids=str)
def test_the_bubble_by_formula_is_the_one_laid_out(times):
    for schedule in schedules():
        if schedule.splits_backward and schedule.micro_batches < schedule.ranks:
            continue
        assert lay_out(schedule, times).bubble == bubble(schedule, times), (schedule.name, schedule.ranks)


def test_the_formula_refuses_what_it_does_not_know():
    for schedule, times in (
        (zero_bubble(4, 3), Times()),
        (zero_bubble(4, 8), Times(1, 1, 2)),
        (gpipe(2, 2), Times(send=1)),
    ):
        with pytest.raises(WorkbookError, match=r"micro-batches|send") as error:
            bubble(schedule, times)
        assert "lay_out" in error.value.do


def test_no_two_actions_of_a_rank_overlap_and_none_starts_before_what_it_needs():
    schedule, times = interleaved(3, 6, virtual=2), Times(2, 3, 1, send=1)
    laid = lay_out(schedule, times)
    ends = {span.action: (span.end, span.rank) for span in laid.spans}
    for rank in range(3):
        spans = laid.of(rank)
        assert [span.action for span in spans] == list(schedule.by_rank[rank])
        assert all(after.start >= before.end for before, after in pairwise(spans))
    for span in laid.spans:
        assert span.end - span.start == times.of(span.action.kind)
        for need in schedule.needs(span.action):
            end, rank = ends[need]
            assert span.start >= end + (rank != span.rank)


def test_travelling_makes_a_step_longer():
    assert lay_out(one_f_one_b(4, 8), Times(send=Fraction(1, 2))).length > lay_out(one_f_one_b(4, 8)).length


def broken(change) -> Schedule:
    """1F1B on two ranks with three micro-batches, and one rank's list changed."""
    schedule = one_f_one_b(2, 3)
    rows = [list(row) for row in schedule.by_rank]
    change(rows)
    return replace(schedule, by_rank=tuple(map(tuple, rows)))


def crossed(rows) -> None:
    """Each rank does last what the other waits for."""
    for row in rows:
        row[1], row[2] = row[2], row[1]


BROKEN = {
    "a deadlock: rank 0 waits with B0 on stage 0 for B0 on stage 1, of rank 1; rank 1 waits with F1": crossed,
    "micro-batch 2 on stage 1 with 1 F, 0 B": lambda rows: rows[1].pop(),
    "micro-batch 0 on stage 0 with 2 F": lambda rows: rows[0].append(Action(Kind.FORWARD, 0, 0)),
    "micro-batch 0 on stage 1 with 1 F, 1 B, 0 I, 1 W": lambda rows: rows[1].append(Action(Kind.WEIGHT, 1, 0)),
    "F0 on stage 0 on rank 1": lambda rows: rows[1].insert(0, rows[0].pop(0)),
    "F9 on stage 0, which is none": lambda rows: rows[0].append(Action(Kind.FORWARD, 0, 9)),
}


@pytest.mark.parametrize("told", BROKEN)
def test_what_cannot_be_run_is_told(told):
    with pytest.raises(WorkbookError) as error:
        checked(broken(BROKEN[told]))
    assert told in error.value.what


def test_a_backward_before_its_forward_is_a_deadlock_of_one():
    schedule = gpipe(1, 1)
    turned = replace(schedule, by_rank=(schedule.by_rank[0][::-1],))
    with pytest.raises(WorkbookError, match="rank 0 waits with B0 on stage 0 for F0 on stage 0"):
        checked(turned)


@pytest.mark.parametrize(
    ("call", "told", "do"),
    [
        (lambda: interleaved(4, 6, 2), "6 micro-batches on 4 ranks", "micro_batches=8 or 4"),
        (lambda: interleaved(4, 3, 2), "3 micro-batches on 4 ranks", "micro_batches=4, or take one_f_one_b"),
        (lambda: interleaved(4, 8, 0), "virtual is 0", "virtual"),
        (lambda: gpipe(0, 4), "ranks is 0", "ranks"),
        (lambda: one_f_one_b(4, 2.0), "micro_batches is 2.0", "micro_batches"),
        (lambda: zero_bubble(True, 2), "ranks is True", "ranks"),
        (lambda: Times(forward=0), "forward is 0", "Times(forward=1)"),
        (lambda: Times(send=-1), "send is -1", "Times(send=1)"),
        (lambda: Times(weight=float("nan")), "weight is nan", "Times(weight=1)"),
    ],
)
def test_nonsense_is_refused_with_what_would_do(call, told, do):
    with pytest.raises(WorkbookError) as error:
        call()
    assert told in error.value.what
    assert do in error.value.do


def test_one_micro_batch_is_no_pipeline():
    """One rank computes at a time: the bubble of p ranks is (p - 1) / p, as with device_map."""
    assert [bubble(gpipe(ranks, 1)) for ranks in (1, 2, 4)] == [0, Fraction(1, 2), Fraction(3, 4)]


def test_every_sender_has_its_reader():
    for make in (gpipe, zero_bubble):
        schedule = make(3, 4)
        for action in chain(*schedule.by_rank):
            if (reader := schedule.receiver(action)) is not None:
                assert schedule.sender(reader) == action
