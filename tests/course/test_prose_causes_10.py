"""The causes that chapter 10 names, each beside its control: only the supposed cause is changed, the effect goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.catalog import Split, model
from helpers.lesson import job
from helpers.memory import budget
from helpers.memory.plan import Cards, Efficiency, Shares
from helpers.memory.plan.step import step_time
from helpers.memory.plan.training import Job
from tests.course import cases_10
from tests.course.prose_numbers_10 import DEEP, FULL, JOB, MIXED, ROOM, head_on_last, layout, seconds, uneven

FSDP, TP8 = layout(checkpointing="full"), layout(8)
MESHES = {"FSDP2": FSDP, "TP 8": TP8, "TP 4 × PP 2": MIXED, "TP 2 × PP 4": DEEP}


def at_share(mesh, share: float, card: str = "rtx-4090") -> float:
    """Seconds of a step where links reach that share of their rate."""
    rates = Efficiency(link=Shares(share, share, share), training_flops=Shares(0.45, 0.45, 0.45))
    return step_time(JOB, mesh, Cards(card, 8), rates).total.middle


def test_without_enter_the_result_is_right_and_only_the_gradient_of_x_is_wrong(ranks2):
    for off, gradient, _ in ranks2.run(cases_10.second_of, "inputs", True):
        assert off < 1e-5 > gradient
    for off, gradient, _ in ranks2.run(cases_10.second_of, "inputs", False):
        assert off < 1e-5
        assert gradient > 1e-2


def test_a_second_matrix_cut_by_its_outputs_needs_the_middle_and_so_one_collective_more(ranks2):
    (_, _, by_inputs), _ = ranks2.run(cases_10.second_of, "inputs", True)
    (off, _, by_outputs), _ = ranks2.run(cases_10.second_of, "outputs", True)
    assert off < 1e-5
    assert (by_inputs, by_outputs) == (1, 2)


def test_the_second_sum_backward_is_the_second_reader_of_one_input(ranks2):
    assert [ranks2.run(cases_10.planned, one_sum)[0] for one_sum in (False, True)] == [(1, 2), (1, 1)]


def test_fsdp2_sends_for_each_micro_batch_and_not_for_each_token(ranks2):
    """Twice the tokens in one micro-batch send as much; the same tokens in two send twice."""
    once, more, twice = (ranks2.run(cases_10.sharded_sends, *how)[0] for how in ((64, 1), (128, 1), (64, 2)))
    assert once == more
    assert twice == pytest.approx(2 * once, rel=0.01)


def test_tp_and_fsdp2_on_two_dimensions_leave_a_quarter_of_the_weights(ranks4):
    for held, whole in ranks4.run(cases_10.on_two_dimensions):
        assert held == whole / 4


def test_what_1f1b_keeps_does_not_grow_with_micro_batches_and_what_gpipe_keeps_does(ranks2):
    """Buffers to receive in are made for each micro-batch in both, so 1F1B's peak grows by these alone."""
    grown = {}
    for name in ("1F1B", "GPipe"):
        few, many = (ranks2.run(cases_10.staged, name, count)[0][0] for count in (4, 8))
        grown[name] = many - few
    boundary = 64 * 128 * 4
    assert grown["1F1B"] < 4 * 3 * boundary
    assert grown["GPipe"] > 4 * 2 * (2 * 512 + 128) / 128 * boundary / 2


def test_a_border_is_one_tensor_for_each_micro_batch_each_way(ranks2):
    """The first of two stages sends hidden values, the last their gradients."""
    for _, sent in ranks2.run(cases_10.staged, "1F1B", 8):
        assert sent == 8 * 64 * 128 * 4


def test_the_ends_of_a_pipeline_are_full_for_their_word_tables():
    """Of a model with a small vocabulary the first stage has what is in flight, and the last is the lightest."""
    staged = replace(FULL, split=Split(pipeline=8), micro_batches=8)
    first, middle, last = (budget.train(staged, rank=rank).peak_bytes for rank in (0, 3, 7))
    assert min(first, last) > 1.4 * middle
    few = {**job.SETUP.model.config, "vocab_size": 1_000}
    first, middle, last = (budget.train(replace(staged, model=few), rank=rank).peak_bytes for rank in (0, 3, 7))
    assert max(first, last) < 1.1 * middle


def test_over_pcie_tp_over_all_eight_is_the_slowest_of_four_and_over_nvlink_too():
    for card in ("rtx-4090", "h100"):
        assert max(MESHES, key=lambda name: seconds(MESHES[name], card).total.middle) == "TP 8"


def test_fsdp2_is_late_over_pcie_for_its_link_alone():
    """On the same card with NVLink's rate it is no later than TP 4 × PP 2 by more than a tie."""
    late = seconds(FSDP).total.middle / seconds(MIXED).total.middle
    assert late > 1.2
    assert seconds(FSDP, "h100").total.middle / seconds(MIXED, "h100").total.middle == pytest.approx(1, abs=0.1)
    assert at_share(FSDP, 0.35) / at_share(MIXED, 0.35) > late
    assert at_share(FSDP, 0.85) / at_share(MIXED, 0.85) == pytest.approx(1, abs=0.1)  # at the best share a tie


def test_two_sequences_in_a_micro_batch_hide_the_weights_and_do_not_fit_with_their_logits():
    two = layout(checkpointing="full", each=2)
    found = seconds(two)
    assert found.data_links.middle == 0 < seconds(FSDP).data_links.middle
    assert found.total.middle < min(seconds(mesh).total.middle for mesh in MESHES.values())
    room = Cards("rtx-4090", 8).room_of(8).for_tensors_bytes
    assert at_share(two, 0.15) > at_share(DEEP, 0.15)  # links a few times slower
    moments = budget.train(replace(FULL, split=Split(fsdp=8), micro_batch=2, micro_batches=4)).moments
    assert max(one.total for one in moments) > room > max(one.total for one in moments if one.at not in LOSS)


LOSS = {"end_of_forward", "loss"}


def test_meshes_of_the_table_fit_and_stages_alone_do_not():
    room = Cards("rtx-4090", 8).room_of(8).for_tensors_bytes
    for mesh in MESHES.values():
        assert JOB.need(mesh, Cards("rtx-4090", 8).device).total < room
    for how in ("none", "full"):
        assert JOB.need(layout(1, 8, how), Cards("rtx-4090", 8).device).total > room


def waiting(**changes) -> float:
    """The share of a step that waits for sums, TP 8 on H100s, where the job's model has these sizes."""
    job_of = Job(model({**job.SETUP.model.config, **changes}), 8_192)
    time = step_time(job_of, layout(8), Cards("h100", 8), Efficiency())
    return time.tensor_links.middle / time.total.middle


def test_sums_cost_a_narrow_model_more_for_its_width_and_not_for_its_size():
    wide = {"hidden_size": 8_192, "intermediate_size": 28_672, "num_attention_heads": 64, "num_key_value_heads": 16}
    assert waiting(**wide) < 0.7 * waiting()
    assert waiting(num_hidden_layers=4 * 32) == pytest.approx(waiting(), rel=0.1)  # as large, and as narrow


def peaks(**changes) -> dict[int, float]:
    """GiB at the peak by tensor-parallel ranks of eight, FSDP2 over the others."""
    splits = {tensor: Split(fsdp=8 // tensor, tensor=tensor) for tensor in (1, 2, 4, 8)}
    shape = model({**job.SETUP.model.config, **changes})
    return {t: budget.train(replace(FULL, model=shape, split=one)).peak_bytes / 2**30 for t, one in splits.items()}


def test_what_fsdp2_has_whole_is_cut_by_tp_beside_an_eighth_of_all():
    found, eighth = peaks(), 2 * job.SETUP.model.parameters / 2**30
    assert found[2] - eighth == pytest.approx((found[1] - eighth) / 2, rel=0.1)
    assert found[4] < found[8] < found[2] < found[1]
    split = replace(FULL, split=Split(fsdp=8))
    assert budget.train(split).peak.at == "embedding"


def test_of_what_fsdp2_has_whole_the_word_tables_are_a_part():
    """With 8,192 words FSDP2 is nearer to TP 8, which then has no large gradient of an embedding."""
    found, few = peaks(), peaks(vocab_size=8_192)
    assert few[1] - few[8] < 0.6 * (found[1] - found[8])
    for words, least, most in ((128_256, 1.6, 1.8), (8_192, -0.1, 0.1)):
        shape = model({**job.SETUP.model.config, "vocab_size": words})
        parts = budget.train(replace(FULL, model=shape, split=Split(tensor=8))).parts
        assert least < (parts["gradients"] - parts["parameters"]) / 2**30 < most


def test_the_head_on_the_last_stage_costs_four_stages_more_than_two_and_few_words_no_more():
    assert head_on_last(MIXED, 16, 16) < 0.95 * head_on_last(DEEP, 8, 8)
    assert max(uneven()) < ROOM
    best = seconds(layout(checkpointing="full", each=2)).total.middle
    assert best < head_on_last(layout(2, 4), 9, 7) < min(head_on_last(MIXED, 16, 16), seconds(FSDP).total.middle)


def test_without_enter_the_norm_before_gate_is_wrong_too(ranks2):
    for of_norm, of_gate in ranks2.run(cases_10.norm_before, True):
        assert of_norm < 1e-3 > of_gate
    for of_norm, of_gate in ranks2.run(cases_10.norm_before, False):
        assert of_norm > 0.1
        assert of_gate < 1e-3
