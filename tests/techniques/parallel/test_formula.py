"""A rank's bytes and traffic in closed form: worked numbers, sums over ranks, and bad input.

On real ranks they are compared in the files beside this one.
"""

from __future__ import annotations

import pytest

from helpers.catalog import WorkbookError, model
from helpers.techniques.parallel import formula

LLAMA = model("llama-3-8b")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_parts_of_all_ranks_are_the_model_and_its_norms_once_more_on_each(ranks):
    norms = (2 * 32 + 1) * 4096
    together = sum(formula.parameter_bytes(LLAMA, ranks, rank, value_bytes=1) for rank in range(ranks))
    assert together == LLAMA.parameters + (ranks - 1) * norms


def test_one_rank_holds_the_model():
    for name in ("llama-3-8b", "llama-3.2-1b", "qwen2.5-7b"):
        assert formula.parameter_bytes(model(name), 1, value_bytes=1) == model(name).parameters


def test_three_ranks_share_eight_kv_heads_as_three_three_and_two():
    """A KV head is 128 rows of K and of V, and 512 of Q and of O; the MLP's three matrices have a row more, too."""
    first, *_, last = (formula.parameter_bytes(LLAMA, 3, rank, value_bytes=1) for rank in range(3))
    assert first - last == 32 * 4096 * (2 * 128 + 2 * 512 + 3 * 1)


def test_sixteen_ranks_hold_each_of_eight_kv_heads_twice():
    once, twice = (formula.parameter_bytes(LLAMA, ranks, value_bytes=1) for ranks in (8, 16))
    head = 2 * 32 * 4096 * 128  # keys and values of a head, in 32 layers
    norms = (2 * 32 + 1) * 4096
    assert twice - norms - head == (once - norms - head) // 2


def test_copies_of_a_kv_head_add_their_gradients():
    calls = formula.tensor_traffic(LLAMA, 100, 16).backward.calls
    copies = [call for call in calls if call.ranks == 2]
    assert [call.payload_bytes for call in copies] == [4096 * 128 * 4] * 2 * 32


def test_traffic_grows_with_tokens_and_not_with_ranks_payload():
    """Unlike ZeRO-3's, which grows with the model: the reason why the two suit different links."""
    two, eight = (formula.tensor_traffic(LLAMA, 4096, ranks, value_bytes=2).step for ranks in (2, 8))
    assert two.payload_bytes == eight.payload_bytes
    assert formula.tensor_traffic(LLAMA, 8192, 8, 2).step.payload_bytes - 16 == 2 * (eight.payload_bytes - 16)


def test_parts_cover_a_size_without_overlap():
    for size, ranks in ((301, 4), (4, 4), (7, 3)):
        rows = [row for rank in range(ranks) for row in range(size)[formula.part_of(size, ranks, rank)]]
        assert rows == list(range(size))


BAD = [
    (lambda: formula.part_of(3, 4, 0), "4 ranks cannot share 3"),
    (lambda: formula.parameter_bytes(LLAMA, 0), "ranks is 0"),
    (lambda: formula.parameter_bytes(LLAMA, 12), "12 ranks cannot share 32 query heads"),
    (lambda: formula.parameter_bytes(model("mixtral-8x7b"), 2), "is not written here"),
    (lambda: formula.parameter_bytes(model("gpt2"), 2), "is not written here"),
    (lambda: formula.parameter_bytes(LLAMA, 2, rank=2), "rank is 2"),
    (lambda: formula.tensor_traffic(LLAMA, 0, 2), "tokens is 0"),
    (lambda: formula.expert_traffic(LLAMA.layers[0], 100, 2), "a layer without experts"),
    (lambda: formula.expert_traffic(model("mixtral-8x7b").layers[0], 100, 3), "3 ranks cannot share 8 experts"),
    (lambda: formula.expert_traffic(model("mixtral-8x7b").layers[0], 100, 2, factor=-1), "capacity_factor is -1"),
]


@pytest.mark.parametrize(("call", "what"), BAD)
def test_bad_input_is_told(call, what):
    with pytest.raises(WorkbookError) as error:
        call()
    assert what in error.value.what
