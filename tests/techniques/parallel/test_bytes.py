"""What each rank holds and sends, counted on real ranks: to the byte what the closed form says."""

from __future__ import annotations

from collections import Counter

import pytest

from helpers.catalog import model as shape
from helpers.small_lm.model import configuration
from helpers.techniques.parallel import formula
from tests.techniques.parallel import split_cases as cases

SMALL = shape(configuration())
KINDS = ("tied", "biases", "one kv head", "two kv heads", "uneven heads")
ON_FOUR = [
    pytest.param(kind, marks=[] if kind in ("two kv heads", "uneven heads") else pytest.mark.slow) for kind in KINDS
]


def kinds(calls):
    return dict(Counter(kind for kind, *_ in calls))


def same_as_the_formula(ranks, kind, sequence):
    model = shape(cases.build(kind).config)
    want = formula.tensor_traffic(model, cases.ROWS * cases.TOKENS, ranks.count, value_bytes=8, sequence=sequence)
    for rank, (held, forward, backward) in enumerate(ranks.run(cases.bytes_and_calls, kind, sequence)):
        size = formula.parameter_bytes(model, ranks.count, rank, value_bytes=8)
        assert (held["parameters"], held["gradients"]) == (size, size)
        assert forward == cases.calls_of(want.forward)
        assert backward == cases.calls_of(want.backward)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_hold_and_send_what_the_formula_says(ranks2, kind, sequence):
    same_as_the_formula(ranks2, kind, sequence)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("kind", ON_FOUR)
def test_four_ranks_hold_and_send_what_the_formula_says(ranks4, kind, sequence):
    same_as_the_formula(ranks4, kind, sequence)


def test_the_small_model_on_two_ranks(ranks2):
    """Half of the tables and of the layers, and nine whole norms; nine sums there, nine back, and four small ones."""
    assert formula.parameter_bytes(SMALL, 2) == (6_937_344 - 6_912) // 2 + 6_912 == 3_472_128
    for held, forward, backward in ranks2.run(cases.small):
        assert held["parameters"] == held["gradients"] == 3_472_128
        assert (kinds(forward), kinds(backward)) == ({"all_reduce": 9 + 3 + 1}, {"all_reduce": 9})


def test_sequence_parallelism_sends_the_same_in_other_pieces():
    """An all-reduce is a reduce-scatter and an all-gather; what is added are the norms' gradients."""
    plain, sequence = (formula.tensor_traffic(SMALL, 1024, 2, sequence=on).step for on in (False, True))
    norms = 9 * SMALL.hidden * 4
    assert sequence.sent_bytes == plain.sent_bytes + norms


def test_sequence_parallelism_saves_less_for_the_backward_pass(ranks2):
    (plain, *_), (sequence, *_) = ranks2.run(cases.saved_bytes, False), ranks2.run(cases.saved_bytes, True)
    hidden = 2 * 64 * 192 * 4
    kept_by_norms = 9 * 2 * hidden  # each its input, and what it multiplies by its weight
    assert plain - sequence == pytest.approx(kept_by_norms / 2, rel=1e-3)


def test_dtensor_holds_the_same_parameters_and_one_whole_gradient(ranks2):
    """The embedding's gradient is not divided: 208 rows more than the rank's own."""
    for held, forward, backward in ranks2.run(cases.small_by_dtensor):
        assert held["parameters"] == 3_472_128
        assert held["gradients"] == 3_472_128 + 208 * 192 * 4
        assert kinds(forward) == {"all_reduce": 9, "all_gather": 1}
        assert kinds(backward) == {"all_reduce": 21}


def test_dtensor_that_shares_its_entries_sends_what_ours_does(ranks2):
    ours, theirs = (
        ranks2.run(cases.small)[0],
        ranks2.run(cases.small_by_dtensor, shared_entries=True, loss="parallel")[0],
    )
    assert kinds(theirs[2]) == kinds(ours[2]) == {"all_reduce": 9}
    assert [call for call in theirs[2] if call[1] == 2 * 16 * 192 * 4] == ours[2]
    assert kinds(theirs[1]) == {"all_reduce": 9 + 3}  # three numbers a token, as ours; it does not compare ids
    assert [call for call in theirs[1] if call[1] > 2 * 16 * 8] == [call for call in ours[1] if call[1] > 2 * 16 * 8]
