"""Layers on a card and on the host: sums by hand, nothing lost, and what people found on their cards."""

import json

import pytest

from helpers.catalog import ServeSetup, WorkbookError, device
from helpers.cli import main
from helpers.lesson import calculators
from helpers.memory.serve.engines.llamacpp import LlamaCpp
from helpers.memory.serve.engines.llamacpp_layers import (
    LayerPlacement,
    all_layers,
    fewest_cpu_experts,
    longest_context,
    most_layers,
)
from tests.catalog.gguf_files import gguf, llama, llama_tensors

GIB = 2**30
ROW = 256 // 256 * 144  # bytes of 256 values in Q4_K
LAYER = (2 * 256 + 2 * 64 + 2 * 512) * ROW + 256 * 512 // 256 * 144 + 2 * 256 * 4  # q, o; k, v; gate, up; down; norms
OUTPUT = 320 * ROW + 256 * 4
CACHE = 512 * 2 * 2 * 32 * 2  # 512 cells, K and V of two heads of 32 in 16 bits
LOGITS = 512 * 320 * 4
TABLE = 320 * ROW


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf(llama(4), llama_tensors(4)))
    return str(path)


@pytest.fixture
def experts(tmp_path):
    """Four layers of four experts, whose matrices are three in one tensor each."""
    more = {"expert_count": 4, "expert_used_count": 2}
    tensors = [one for one in llama_tensors(4) if ".ffn_" not in one[0]]
    for layer in range(4):
        tensors += [(f"blk.{layer}.ffn_{name}_exps.weight", (4, 512, 256), "q4_k") for name in ("gate", "up")]
        tensors.append((f"blk.{layer}.ffn_down_exps.weight", (4, 256, 512), "q4_k"))
    path = tmp_path / "experts.gguf"
    path.write_bytes(gguf(llama(4, **more), tensors))
    return str(path)


def test_the_output_comes_first_then_the_last_layers(small):
    """`-ngl 3` of four layers: the output and layers 2 and 3; the cache of a layer lies where it does."""
    served = LlamaCpp(ServeSetup(small, context=512))
    placed = LayerPlacement(served, 3)
    assert placed.card_bytes == 2 * (LAYER + CACHE) + OUTPUT + LOGITS + 512 * 144  # gate, which is copied
    assert placed.host_weight_bytes == TABLE + 2 * LAYER
    assert placed.host_cache_bytes == 2 * CACHE
    assert placed.flags == "-ngl 3"


@pytest.mark.parametrize("layers", range(6))
def test_nothing_is_lost_between_card_and_host(small, layers):
    served = LlamaCpp(ServeSetup(small, context=512))
    placed = LayerPlacement(served, layers)
    whole = sum(tensor.size_bytes for tensor in served.setup.model.stored) + served.kv_bytes
    assert placed.cards_bytes + placed.host_weight_bytes + placed.host_cache_bytes == whole
    assert placed.is_whole == (layers == 5)


def test_experts_of_the_first_layers_stay_on_the_host(experts):
    """Of 4 x 512 x 256 values a matrix in Q4_K has 294,912 bytes; attention and cache stay on the card."""
    served = LlamaCpp(ServeSetup(experts, context=512))
    matrix = 4 * 512 * 144
    full, two = all_layers(served), LayerPlacement(served, 5, cpu_moe=2)
    assert full.card_bytes - two.card_bytes == 2 * 3 * matrix - matrix  # one is copied while a prompt is computed
    assert two.host_weight_bytes == TABLE + 2 * 3 * matrix
    assert two.host_cache_bytes == 0
    assert two.flags == "-ngl 5 --n-cpu-moe 2"


def test_the_matrix_of_the_output_is_no_copy(experts):
    """All experts on the host: one matrix of 294,912 bytes is copied; with all layers there nothing is."""
    served = LlamaCpp(ServeSetup(experts, context=512, prefill_tokens=64))
    matrix, logits = 4 * 512 * 144, 64 * 320 * 4
    away = LayerPlacement(served, 5, cpu_moe=4)
    assert away.card_bytes == away.cards_bytes + logits + matrix
    assert all_layers(served).card_bytes == all_layers(served).cards_bytes + logits


def test_cards_take_equally_many_layers(small):
    """Five layers on two cards: the first takes 0, 1 and 2, the second 3, the output and the logits."""
    served = LlamaCpp(ServeSetup(small, context=512))
    assert all_layers(served, cards=2).card_bytes == max(3 * (LAYER + CACHE), LAYER + CACHE + OUTPUT + LOGITS)


def test_what_fits_is_the_most(small, experts):
    served = LlamaCpp(ServeSetup(small, context=512))
    for layers in range(1, 6):
        need = LayerPlacement(served, layers).card_bytes
        assert most_layers(served, need).gpu_layers == layers
        assert getattr(most_layers(served, need - 1), "gpu_layers", 0) == layers - 1
    assert fewest_cpu_experts(served, 2**40) is None
    mixed = LlamaCpp(ServeSetup(experts, context=512))
    need = LayerPlacement(mixed, 5, cpu_moe=3).card_bytes
    assert fewest_cpu_experts(mixed, need).cpu_moe == 3
    assert fewest_cpu_experts(mixed, need - 1).cpu_moe == 4
    assert fewest_cpu_experts(mixed, LOGITS) is None


def test_the_longest_context_is_in_whole_cells(small):
    """A cell of four layers takes 1,024 bytes; the model was made for 8,192 tokens."""
    fixed = 4 * LAYER + OUTPUT + LOGITS
    served = LlamaCpp(ServeSetup(small, context=512))
    assert longest_context(served, fixed + 1024 * 2000) == 1792
    assert longest_context(served, 2**40) == 8192
    assert longest_context(served, fixed) == 0


def test_gpt_oss_120b_on_24_gb_is_what_people_found():
    """hardware-corner.net, November 2025, an RTX 3090: 13 layers in turn, or all but the experts of 27 layers."""
    served, room = LlamaCpp(ServeSetup("gpt-oss-120b", context=8192)), device("3090").capacity_bytes - 1343 * 2**20
    assert most_layers(served, room).gpu_layers == 13
    assert abs(fewest_cpu_experts(served, room).cpu_moe - 27) <= 2


def test_qwen3_30b_in_16_bits_is_what_llama_cpp_projects():
    """tools/fit-params/README.md of llama.cpp: 61,807 MiB of device memory for 40,960 tokens, 3,456 less for 4,096.

    Of the difference of 36,864 tokens each takes 96 KiB. With all experts on the host it has 16,164 MiB to spare of
    24,077 less a margin of 1,024: logits and the matrix of a layer's experts that is copied stand beside each other.
    """
    served, short = (LlamaCpp(ServeSetup("qwen3-30b-a3b", context=context)) for context in (40960, 4096))
    assert all_layers(served).card_bytes / 2**20 == pytest.approx(61807, rel=0.002)
    assert (all_layers(served).card_bytes - all_layers(short).card_bytes) / 2**20 == 3456
    dense = LayerPlacement(served, 49, cpu_moe=48).card_bytes / 2**20
    assert dense == pytest.approx(24077 - 1024 - 16164, rel=0.004)


@pytest.mark.parametrize(("layers", "cpu_moe", "cards"), [(6, 0, 1), (-1, 0, 1), (5, 5, 1), (5, 0, 0), (True, 0, 1)])
def test_a_placement_that_is_none_is_refused(small, layers, cpu_moe, cards):
    with pytest.raises(WorkbookError):
        LayerPlacement(LlamaCpp(ServeSetup(small)), layers, cpu_moe, cards)


def test_every_door_has_the_same_placement(small, capsys):
    said = calculators.llamacpp_answer(LlamaCpp(ServeSetup(small, context=4096)), device("2GiB"), 0)
    for command in (
        f"estimate serve --model {small} --context 4096 --engine llama.cpp --gpu 2GiB --reserve 0",
        f"estimate offload serve --model {small} --context 4096 --gpu 2GiB --reserve 0",
        f"plan serve {small} --context 4096 --cards 2GiB=1 --reserve 0",
    ):
        assert main(command.split()) == 0
        assert capsys.readouterr().out == f"{said}\n"


def test_a_plan_says_that_not_all_fits(experts, capsys):
    """900 users of 8,192 tokens have 7.03 GiB of cache, a quarter with each layer: one fits a card, two do not."""
    for cards, code in ((1, 1), (5, 0)):
        assert main(f"plan serve {experts} --users 900 --context 8192 --cards 4GiB={cards} --json".split()) == code
        (found,) = json.loads(capsys.readouterr().out).values()
        assert found["fits"] == (code == 0)
        assert found["placements"]


def test_a_plan_that_says_it_fits_ends_with_0(small, capsys):
    """Some of these leave less than llama.cpp's margin, and fit."""
    for users in range(50, 1000, 50):
        words = f"plan serve {small} --users {users} --context 8192 --cards 4GiB=1"
        code = main(words.split())
        assert (code == 0) == ("Fits the" in capsys.readouterr().out)


@pytest.mark.parametrize(
    "flag", ["--latency 50ms", "--weights fp8-e4m3", "--engine vllm", "--write plans", "--efficiency 0.3,0.4,0.5"]
)
def test_what_layers_do_not_depend_on_is_refused(small, flag, capsys):
    assert main(f"plan serve {small} --cards 3060=1 {flag}".split()) == 2
    assert "leave" in capsys.readouterr().err


def test_other_doors_name_the_one_that_answers(small, capsys):
    for command in (
        f"estimate load --model {small} --gpu 3060 --mix chat --clients 4",
        f"estimate quantize --model {small} --gpu 3060",
        f"trace serve --model {small}",
    ):
        assert main(command.split()) == 2
        assert f"estimate serve --engine llama.cpp --model {small}" in capsys.readouterr().err


def test_what_fits_tightly_leaves_llama_cpp_s_margin(small):
    """A card with a byte more than all layers and the context of CUDA fits them, and the margin of 1 GiB it has not."""
    from dataclasses import replace

    served = LlamaCpp(ServeSetup(small, users=400, context=8192))
    card = device("8GiB")
    kept = calculators.llamacpp_answer(served, card, None).room.reserve_bytes
    tight = replace(card, capacity=replace(card.capacity, value=all_layers(served).card_bytes + kept + 1))
    said = calculators.llamacpp_answer(served, tight, None)
    assert "Fits" in said.sentence
    assert "own --fit keeps: -ngl" in said.sentence
    assert said.whole is None
    assert said.figures["fits"]
    assert not said.figures["leaves_margin"]
    assert calculators.llamacpp_answer(served, tight, kept).whole
