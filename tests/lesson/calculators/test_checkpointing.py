"""The checkpointing calculator: the budget's own numbers, a front that is one, and words that are true."""

from dataclasses import replace

import pytest

from helpers.catalog import TrainSetup, WorkbookError, device
from helpers.lesson.calculators import checkpointing, checkpointing_answer
from helpers.lesson.calculators.checkpointing import COMPARED
from helpers.lesson.drawing.marks import Box, Dot, TextMark
from helpers.memory import budget, format_bytes
from helpers.questions.parameters import POLICIES

NO_BF16_KERNEL = ("v100-16gb", "v100-32gb", "t4-16gb")

CALCULATOR = checkpointing()
SETUP = TrainSetup("llama-2-7b", "bf16", "adamw-fused", 4, checkpointing="full")


def test_every_row_is_the_budget_of_its_policy():
    answer = checkpointing_answer(SETUP, "h100")
    assert [row.policy for row in answer.rows] == [*COMPARED, "first:16"]
    for row in answer.rows:
        predicted = budget.train(replace(SETUP, checkpointing=row.policy), "h100")
        assert (row.peak_bytes, row.peak_when) == (predicted.peak_bytes, predicted.peak.when)
        assert row.extra_flops == predicted.flops.recomputed
        assert row.extra_share == pytest.approx(row.extra_flops / (predicted.flops.forward + predicted.flops.backward))
    assert answer.parts.total == answer.chosen.peak_bytes
    assert answer.chosen.kept_bytes == 32 * 4 * 2048 * 4096 * 2  # by hand: the inputs of 32 layers, in BF16


def test_nothing_beats_the_front_and_all_else_is_beaten():
    for model, micro_batch in (("llama-2-7b", 4), ("gpt2", 16), ("qwen3-0.6b", 8)):
        setup = TrainSetup(model, "bf16", "adamw-fused", micro_batch, 1024)
        answer = checkpointing_answer(setup)
        for row in answer.rows:
            beaten = any(
                other.peak_bytes <= row.peak_bytes
                and other.extra_flops <= row.extra_flops
                and (other.peak_bytes, other.extra_flops) != (row.peak_bytes, row.extra_flops)
                for other in answer.rows
            )
            assert beaten == (row not in answer.front)
        front = [(row.extra_flops, -row.peak_bytes) for row in answer.front]
        assert front == sorted(front)
        assert f"{len(front)} of {len(answer.rows)}" in answer.svg


def test_selective_is_free_and_attention_alone_recovers_little():
    rows = {row.policy: row for row in checkpointing_answer(SETUP, "h100").rows}
    assert rows["selective"].extra_flops == 0
    assert rows["selective"].peak_bytes < 0.8 * rows["none"].peak_bytes
    saved = {name: rows["none"].kept_bytes - row.kept_bytes for name, row in rows.items()}
    assert saved["module:attention"] < 0.2 * saved["full"]


def test_the_cheapest_that_fits_is_told_and_fits():
    capacity = device("h100").capacity_bytes
    answer = checkpointing_answer(replace(SETUP, checkpointing="none"), "h100")
    assert answer.plain.peak_bytes > capacity
    cheapest = answer.cheapest_that_fits
    assert cheapest.policy == "selective"
    assert cheapest.peak_bytes <= capacity
    excess = format_bytes(answer.parts.total - answer.room.for_tensors_bytes)
    assert f"{excess} too much, beside up to 794.00 MiB kept" in answer.sentence
    assert ". The cheapest that fits: selective" in answer.sentence
    assert "fits" not in checkpointing_answer(SETUP).sentence
    none = checkpointing_answer(replace(SETUP, micro_batch=8), "l4")
    assert none.cheapest_that_fits is None
    assert "No policy fits" in none.sentence


def test_it_says_when_it_does_not_help():
    tiny = checkpointing_answer(replace(SETUP, micro_batch=1), "h100")
    assert tiny.chosen.peak_bytes > 0.99 * tiny.plain.peak_bytes
    assert "does not help here" in tiny.sentence
    spared = 1 - checkpointing_answer(SETUP).chosen.peak_bytes / checkpointing_answer(SETUP).plain.peak_bytes
    assert f"lowers the peak by {100 * spared:.0f} % for 25.7 % more FLOPs" in checkpointing_answer(SETUP).sentence


def test_an_offload_tells_what_it_moves():
    offloaded = checkpointing_answer(replace(SETUP, checkpointing="offload:inputs"))
    assert offloaded.chosen.kept_bytes == 0
    assert "2.00 GiB cross the link" in offloaded.sentence
    assert "link" not in checkpointing_answer(SETUP).sentence


def test_the_table_holds_every_policy_its_numbers_and_its_mark():
    answer = checkpointing_answer(SETUP, "a100-40gb")
    table = {line[2:].split()[0]: line for line in answer.formula[1 : 1 + len(answer.rows)]}
    for row in answer.rows:
        line = table[row.policy]
        assert line.startswith("*") == (row in answer.front)
        assert format_bytes(row.peak_bytes) in line
        assert f"{100 * row.extra_share:.1f} %" in line
        assert line.endswith("yes" if row.peak_bytes <= device("a100-40gb").capacity_bytes else "no")
    assert answer.formula[-3].endswith("4 × 2,048 × 4,096 × 2 B: what a segment's input takes")


def test_a_policy_that_is_not_among_the_compared_joins_them_once():
    rows = [row.policy for row in checkpointing_answer(replace(SETUP, checkpointing="nested:4")).rows]
    assert rows == [*COMPARED, "first:16", "nested:4"]
    few = [row.policy for row in checkpointing_answer(TrainSetup("tiny-llama", "bf16")).rows]
    assert few.count("none") == 1
    assert few[-1] == "first:2"


def test_the_figures_are_those_of_the_answer():
    figures = checkpointing_answer(SETUP, "h100").figures
    assert figures["peak_bytes"] == sum(figures["parts"].values())
    full = next(row for row in figures["policies"] if row["policy"] == "full")
    assert full["peak_bytes"] == figures["peak_bytes"]
    assert full["fits"] is True
    assert checkpointing_answer(SETUP).figures["policies"][0]["fits"] is None


def test_the_policies_of_the_control_are_known():
    assert set(COMPARED) < set(POLICIES)
    for policy in POLICIES:
        assert CALCULATOR.answer(model="gpt2", checkpointing=policy, sequence=4096).setup.sequence == 1024


def test_both_pictures_show_every_policy_and_the_chosen_one():
    answer = checkpointing_answer(SETUP, "h100")
    bar, front = answer.cards
    dots = {mark.tooltip.partition(": ")[0]: mark for mark in front.marks if isinstance(mark, Dot)}
    assert set(dots) == {row.policy for row in answer.rows}
    assert [name for name, dot in dots.items() if dot.fill == dot.edge] == ["full"]
    assert set(dots) <= {mark.text for mark in front.marks if isinstance(mark, TextMark)}  # every one has its name
    assert sum(isinstance(mark, Box) and bool(mark.part) for mark in bar.marks) == len(answer.parts)
    texts = [mark.text for card in answer.cards for mark in card.marks if isinstance(mark, TextMark)]
    assert sum("H100" in text for text in texts) == 2  # beside the bar, and over the points


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"checkpointing": "offload"}, "whose peak has no closed form"),
        ({"checkpointing": "selektive"}, "did you mean 'selective'"),
    ],
)
def test_bad_input(given, told):
    with pytest.raises(WorkbookError, match=told):
        checkpointing_answer(replace(SETUP, **given))


def test_an_unknown_device_is_refused():
    with pytest.raises(WorkbookError, match="unknown device"):
        checkpointing_answer(SETUP, "h1000")
