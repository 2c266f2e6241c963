"""Padding and forwards, counted: against lists of slots, against random batches, against the scheduler itself."""

import itertools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.catalog import WorkbookError
from helpers.techniques.paging import Request
from helpers.techniques.scheduling import Policy, at_once, simulate
from helpers.techniques.scheduling.batching import (
    block_diagonal,
    continuous_forwards,
    continuous_slots,
    expected_padding_waste,
    padding_waste,
    static_forwards,
    static_slots,
)

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


class OneSecond:
    def seconds(self, plan):
        return 1.0


@given(LENGTHS, st.integers(1, 8))
def test_padding_is_what_a_padded_batch_holds_too_much(lengths, batch):
    slots = [[1] * length + [0] * (max(group) - length) for group in chunks(lengths, batch) for length in group]
    flat = [slot for row in slots for slot in row]
    assert padding_waste(lengths, batch) == pytest.approx(flat.count(0) / len(flat))


def chunks(lengths, batch):
    return [lengths[at : at + batch] for at in range(0, len(lengths), batch)]


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_the_expected_waste_is_that_of_random_batches(batch):
    draw = random.Random(0)
    lengths = [draw.randrange(1, 200) for _ in range(60)]
    drawn = draw.choices(lengths, k=batch * 4000)
    assert expected_padding_waste(lengths, batch) == pytest.approx(padding_waste(drawn, batch), abs=0.01)


@given(LENGTHS, st.integers(1, 6), st.sampled_from(["static", "continuous"]))
def test_forwards_are_those_of_the_scheduler(new_tokens, batch, batching):
    """With one token a prompt every step is one forward of everybody, so the counts are exact."""
    arrivals = at_once(Request((1,), (0,) * new) for new in new_tokens)
    policy = Policy(batching=batching, max_running=batch, token_budget=batch)
    outcome = simulate(arrivals, policy, OneSecond(), blocks=1000)
    counted = static_forwards if batching == "static" else continuous_forwards
    assert outcome.steps == counted(new_tokens, batch)


def test_equal_answers_gain_nothing():
    assert continuous_forwards([20] * 32, 8) == static_forwards([20] * 32, 8)


def test_a_packed_row_under_its_mask_is_each_sequence_alone():
    torch.manual_seed(0)
    lengths, attend = [3, 1, 5], torch.nn.functional.scaled_dot_product_attention
    q, k, v = torch.randn(3, 1, 2, sum(lengths), 8)
    together = attend(q, k, v, block_diagonal(lengths))
    parts = zip(*(tensor.split(lengths, dim=2) for tensor in (q, k, v)), strict=True)
    alone = torch.cat([attend(*part, is_causal=True) for part in parts], dim=2)
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize(("lengths", "batch"), [([], 2), ([0], 2), ([1.5], 2), ([3], 0)])
def test_what_is_no_length_is_refused(lengths, batch):
    with pytest.raises(WorkbookError):
        padding_waste(lengths, batch)
    with pytest.raises(WorkbookError):
        expected_padding_waste(lengths, batch)


@given(LENGTHS, st.integers(1, 6))
def test_everybody_has_a_slot_of_their_own_length(new_tokens, batch):
    for slots in (static_slots(new_tokens, batch), continuous_slots(new_tokens, batch)):
        assert sorted(end - begin for slot in slots for begin, end in slot) == sorted(new_tokens)
        for slot in slots:
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(slot))
