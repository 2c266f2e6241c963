"""Every door keeps what card and ranks ask for, unless somebody says another number."""

import json

import pytest

from helpers.catalog import ServeSetup, TrainSetup, WorkbookError, device
from helpers.catalog.split import Split
from helpers.cli import main
from helpers.lesson.calculators import kv_cache_answer, mesh_answer, training_answer, zero_answer
from helpers.lesson.calculators.memory import training_memory
from helpers.memory.fit import Room, changes, peak_bytes, reserve
from helpers.memory.plan import Cards
from helpers.memory.step.ranks.megatron import MegatronSetup
from helpers.questions.parameters import BY_CARD, RESERVE
from helpers.questions.setups import reserve_bytes

SHARDED = TrainSetup("llama-3.1-8b", optimizer="adamw-fused", split=Split(8, zero=3))
H100, A100 = device("h100"), device("a100-80gb")


@pytest.mark.parametrize(
    ("answer", "ranks"),
    [
        (training_answer(SHARDED, "h100"), 8),
        (training_answer(TrainSetup("gpt2", sequence=256), "h100"), 1),
        (zero_answer(SHARDED, "h100"), 8),
        (kv_cache_answer(ServeSetup("llama-3.1-8b"), "h100", tensor_parallel=2), 2),
        (mesh_answer(MegatronSetup("llama-3.1-8b", tensor_parallel=4, data_parallel=4), "h100"), 16),
    ],
)
def test_an_answer_keeps_the_reserve_of_its_ranks(answer, ranks):
    kept = reserve(H100, ranks=ranks).size_bytes
    assert answer.room.reserve_bytes == answer.figures["reserve_bytes"] == kept
    assert "--reserve" not in answer.command
    assert answer.verdict(H100.capacity_bytes - kept) == "fits"
    assert answer.verdict(H100.capacity_bytes - kept + 1) == "tight"


def test_a_plan_keeps_the_reserve_of_its_own_ranks_and_not_of_all_cards():
    cards = Cards("h100", 64)
    assert cards.room.reserve_bytes == reserve(H100).size_bytes
    assert cards.room_of(8).reserve_bytes == reserve(H100, ranks=8).size_bytes
    assert Cards("h100", 64, reserve_bytes=0).room_of(8).for_tensors_bytes == H100.capacity_bytes


def test_more_ranks_are_offered_beside_their_buffers():
    """What fits an A100 over so many ranks by its tensors alone needs more of them beside NCCL's buffers."""
    alone = TrainSetup("llama-3.1-8b", optimizer="adamw-fused")

    def ranks(capacity, kept):
        offers = changes(alone, capacity, A100, kept)
        return next(fit.fields["split"].ranks for fit in offers if [*fit.fields] == ["split"])

    eight = peak_bytes(TrainSetup("llama-3.1-8b", optimizer="adamw-fused", split=Split(8, zero=3)), A100)
    assert ranks(eight, 0) == 8
    assert ranks(eight, None) > 8
    buffers = reserve(A100, ranks=8).size_bytes - reserve(A100).size_bytes
    assert ranks(eight + buffers, None) == 8
    assert ranks(eight + buffers - 1, None) > 8


def test_the_control_stands_at_what_the_card_asks_for():
    calculator = training_memory(model="gpt2", gpu="t4-16gb", precision="fp32", sequence=256)
    assert "up to 158.00 MiB kept for the CUDA context" in calculator.answer().sentence
    assert "512.00 MiB kept for the CUDA context" in calculator.answer(reserve=512).sentence
    assert "kept" not in calculator.answer(reserve=0).sentence
    assert RESERVE.meant(BY_CARD) is None
    for wrong in (-1, "much", 1.5):
        with pytest.raises(WorkbookError, match="reserve is"):
            reserve_bytes(wrong)


def test_the_least_said_of_a_mac_is_what_macos_keeps():
    room = Room(device("m4-pro-64gb"))
    assert room.verdict(48 * 2**30) == "fits"
    assert "16.00 GiB are kept for macOS" in room.sentence(49 * 2**30)


@pytest.mark.parametrize(
    ("word", "by"), [("l40s", "this card"), ("a40-48gb", "its generation"), ("b580", "none of its kind")]
)
def test_the_list_of_cards_says_what_a_reserve_rests_on(word, by, capsys):
    assert main(["cards", word, "--json"]) == 0
    (card,) = json.loads(capsys.readouterr().out)
    assert card["reserve"]["bytes"] == reserve(device(word)).size_bytes
    assert by in card["reserve"]["by"]
    assert "issue" in card["reserve"]["source"]
