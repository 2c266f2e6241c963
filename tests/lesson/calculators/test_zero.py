"""The ZeRO calculator: the closed form's own numbers for four stages, and words that say when it does not help."""

from dataclasses import replace

import pytest

from helpers.catalog import TrainSetup, WorkbookError, device
from helpers.catalog.split import Split
from helpers.lesson.calculators import zero, zero_answer
from helpers.lesson.calculators.zero import MOST_RANKS, NAMES, fewest_ranks
from helpers.lesson.drawing.marks import Box, TextMark
from helpers.memory import budget, format_bytes
from helpers.memory.step.ranks import zero as closed_form

NO_BF16_KERNEL = ("v100-16gb", "v100-32gb", "t4-16gb")

CALCULATOR = zero()
SETUP = TrainSetup("llama-2-7b", "megatron-bf16", "adamw-fused", checkpointing="full", split=Split(8, zero=3))


def test_every_row_is_the_closed_form_of_its_stage():
    answer = zero_answer(SETUP, "a100-80gb")
    for stage, row in enumerate(answer.rows):
        setup = replace(SETUP, split=Split(8, zero=stage))
        predicted = budget.train(setup, "a100-80gb")
        assert (row.peak_bytes, row.peak_name) == (predicted.peak_bytes, predicted.peak.name)
        assert row.traffic == closed_form.traffic(setup)
        assert row.held == closed_form.held(setup)
    assert answer.parts.total == answer.chosen.peak_bytes


def test_the_floors_by_hand():
    answer = zero_answer(replace(SETUP, split=Split(8, zero=2), precision="bf16", offload_optimizer="cpu"), "a100-80gb")
    n = SETUP.model.parameters
    assert answer.link_s == pytest.approx(2 * 2 * n * 7 / 8 / 300e9)
    assert answer.host_s == pytest.approx(2 * n / 8 / 32e9)
    assert answer.compute_s == pytest.approx(budget.step_flops(SETUP).total / 312e12)
    assert "nvlink of the NVIDIA A100" in answer.link


def test_the_link_is_chosen_by_name_or_by_rate_and_the_fastest_otherwise():
    seconds = [zero_answer(SETUP, "a100-80gb", link).link_s for link in ("nvlink", None, "pcie", 32e9, 25e9)]
    assert seconds[0] == seconds[1]
    assert seconds[2] == seconds[3] == pytest.approx(seconds[0] * 300 / 32)
    assert seconds[4] == pytest.approx(seconds[0] * 300 / 25)
    assert zero_answer(SETUP, link=25e9).link_s == seconds[4]  # a rate needs no GPU


def test_what_is_not_known_is_none_and_not_told():
    nothing = zero_answer(SETUP)
    assert (nothing.link_s, nothing.compute_s, nothing.host_s, nothing.capacity_bytes) == (None, None, None, None)
    assert "fit" not in nothing.sentence
    assert zero_answer(replace(SETUP, attention="eager"), "t4").compute_s is None  # it has no rate for BF16
    shared = zero_answer(replace(SETUP, offload_optimizer="cpu"), "m4-max-128gb")
    assert (shared.link_s, shared.host_s) == (None, None)


@pytest.mark.parametrize("stage", range(4))
def test_other_stages_are_shown_without_the_offloads_that_they_have_not(stage):
    setup = replace(SETUP, offload_optimizer="cpu", offload_parameters="cpu")
    row = zero_answer(setup, "a100-80gb").rows[stage]
    assert ("optimizer" in row.parts) == (stage == 0)
    assert (row.held.host["optimizer"] > 0) == (stage > 0)
    assert (row.held.host["parameters"] > 0) == (stage == 3)


def test_one_rank_is_not_helped():
    sentence = zero_answer(replace(SETUP, split=Split(zero=3)), "h200-141gb").sentence
    assert sentence.startswith("ZeRO shards nothing on one rank: there is nobody to share with. ")
    assert "send" not in sentence
    offloaded = zero_answer(replace(SETUP, split=Split(zero=3), offload_optimizer="cpu"), "h200-141gb").sentence
    assert "only the offload takes bytes off the GPU" in offloaded


def test_activations_are_not_divided_and_that_is_told():
    crowded = zero_answer(replace(SETUP, micro_batch=16, checkpointing="none", split=Split(64, zero=3)), "a100-80gb")
    share = sum(crowded.parts.get(part, 0) for part in ("activations", "logits", "workspace")) / crowded.parts.total
    assert share > 0.9
    assert f"{100 * share:.0f} % of the peak are activations" in crowded.sentence
    assert f"would not fit on {MOST_RANKS:,} ranks either" in crowded.sentence
    assert "of the peak are activations" not in zero_answer(SETUP, "a100-80gb").sentence


def test_a_slow_link_is_told_and_what_makes_up_for_it_depends_on_the_stage():
    assert "can hide behind" in zero_answer(SETUP, "a100-80gb").sentence
    slow = [zero_answer(replace(SETUP, split=Split(8, zero=stage)), "a100-80gb", 1.25e9).sentence for stage in (1, 3)]
    assert all("The link is too slow for it" in sentence for sentence in slow)
    assert "or accumulation" in slow[0]
    assert "accumulation" not in slow[1]  # stage 3 gathers and reduces in every pass


def test_a_host_that_is_too_far_is_told():
    assert "The way to the host takes longer" in CALCULATOR.answer(ranks=1, offload_optimizer="cpu").sentence
    assert "The way to the host" not in CALCULATOR.answer(ranks=512, offload_optimizer="cpu").sentence


def test_the_lowest_stage_that_fits_is_told_and_fits():
    answer = zero_answer(replace(SETUP, split=Split(8, zero=0)), "a100-80gb")
    peaks = [row.peak_bytes for row in answer.rows]
    assert peaks[0] > answer.capacity_bytes >= peaks[1]
    excess = format_bytes(peaks[0] - answer.room.for_tensors_bytes)
    assert f"{excess} too much, beside up to 1.18 GiB kept for the CUDA context and NCCL" in answer.sentence
    assert ". The lowest stage that fits: ZeRO-1." in answer.sentence


def test_the_fewest_ranks_fit_and_half_of_them_do_not():
    setup, room = replace(SETUP, model="llama-2-70b", split=Split(2, zero=3)), device("a100-80gb").capacity_bytes
    ranks = fewest_ranks(setup, room)
    assert f"ZeRO-3 on {ranks:,} ranks would fit." in zero_answer(setup, "a100-80gb").sentence
    assert budget.train(replace(setup, split=Split(ranks, zero=3)), "a100-80gb").peak_bytes <= room
    assert budget.train(replace(setup, split=Split(ranks // 2, zero=3)), "a100-80gb").peak_bytes > room
    assert (
        fewest_ranks(replace(setup, split=Split(ranks, zero=3)), room) == ranks
    )  # those that are there, if they suffice


def test_the_text_names_every_stage_tier_and_collective():
    setup = replace(SETUP, offload_optimizer="nvme", offload_parameters="cpu")
    answer = zero_answer(setup, "a100-80gb")
    lines = {line.removeprefix("› ").split()[0]: line for line in answer.formula[1:]}
    assert [NAMES[stage] in "\n".join(answer.formula[1:5]) for stage in range(4)] == [True] * 4
    assert answer.formula[4].startswith("› ZeRO-3")
    tiers = answer.chosen.held
    assert format_bytes(tiers.host.total) in lines["host"]
    assert (
        format_bytes(8 * tiers.nvme.total) in lines["nvme"]
        or format_bytes(answer.moved.nvme_read_bytes) in lines["nvme"]
    )
    for kind in ("all-gather", "reduce-scatter"):
        one = answer.chosen.traffic.of(kind.replace("-", "_"))
        assert format_bytes(one.sent_bytes) in lines[kind]
        assert f"{format_bytes(one.payload_bytes)} in {len(one.calls)} calls × 1 × 7/8" in lines[kind]
    assert answer.formula[1].endswith("no")
    assert answer.formula[4].endswith("yes")


def test_the_figures_are_those_of_the_answer():
    figures = zero_answer(replace(SETUP, offload_optimizer="cpu"), "a100-80gb", 25e9).figures
    assert figures["peak_bytes"] == sum(figures["parts"].values()) == figures["stages"][3]["peak_bytes"]
    assert figures["sent_bytes"] == sum(kind["sent_bytes"] for kind in figures["collectives"].values())
    assert figures["held"]["host"]["optimizer"] > 0
    assert figures["link_s"] == figures["sent_bytes"] / 25e9
    assert [stage["fits"] for stage in figures["stages"]] == [False, True, True, True]


def test_an_offload_without_its_stage_is_shown_as_an_error():
    shown = CALCULATOR.render({**CALCULATOR.start, "zero": 2, "offload_parameters": "cpu"})
    assert "choose zero=3" in shown
    assert "<svg" not in shown


def test_the_picture_shows_four_stages_and_the_chosen_one_in_bold():
    answer = zero_answer(SETUP, "a100-80gb")
    marks = answer.cards[0].marks
    blocks = [mark for mark in marks if isinstance(mark, Box) and mark.part]
    assert len(blocks) == sum(len(row.parts) for row in answer.rows)
    names = {mark.text: mark.bold for mark in marks if isinstance(mark, TextMark) and mark.text in NAMES}
    assert names == {name: name == "ZeRO-3" for name in NAMES}


@pytest.mark.parametrize(
    ("given", "gpu", "link", "told"),
    [
        ({"checkpointing": "offload"}, None, None, "no closed form"),
        ({}, "h1000", None, "unknown device"),
        ({}, "a100-80gb", "nvlnk", "did you mean 'nvlink'"),
        ({}, "l4", "nvlink", "unknown link"),
        ({}, "m4-max-128gb", "pcie", "share one memory"),
        ({}, None, "nvlink", "of no GPU"),
        ({}, "h100", 0, "rate is 0"),
        ({}, "h100", -5.0, "rate is -5.0"),
        ({}, "h100", float("nan"), "rate is nan"),
        ({}, "h100", True, "rate is True"),
    ],
)
def test_bad_input(given, gpu, link, told):
    with pytest.raises(WorkbookError, match=told):
        zero_answer(replace(SETUP, **given), gpu, link)
