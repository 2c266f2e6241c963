"""The quantization calculator: worked values, sums that are the numbers they explain, and words that are true."""

import pytest

from helpers.catalog import DEVICES, MODELS, ServeSetup, WorkbookError, device, model
from helpers.catalog.devices import OFFERED
from helpers.lesson.calculators import quantization, quantization_answer
from helpers.lesson.calculators.quantization import FORMATS, LEFT
from helpers.lesson.drawing.marks import Box, label
from helpers.memory import budget, format_bytes
from helpers.memory.fit import Room, Verdict, reserve

CALCULATOR = quantization()
LINEAR = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)  # Llama-3-8B's, by hand
BESIDE = 2 * 128256 * 4096 + 65 * 4096
# By hand: bytes of values, scales and constants of Llama-3-8B, whose layers are whole blocks.
WORKED = {
    "bf16": {},
    "int8": {"quantized": LINEAR, "scales": 32 * 4 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096)},
    "fp8-e4m3": {"quantized": LINEAR, "constants": 224 * 4},
    "nf4": {"quantized": LINEAR // 2, "scales": LINEAR // 16, "constants": 224 * 64},
    "nf4-dq": {"quantized": LINEAR // 2, "scales": LINEAR // 64 + LINEAR // 4096, "constants": 224 * 1092},
    "int4-g128": {"quantized": LINEAR // 2, "scales": LINEAR // 128 * 20 // 8},
    "int3-g64": {"quantized": LINEAR * 3 // 8, "scales": LINEAR // 64 * 19 // 8},
}


@pytest.mark.parametrize("weights", WORKED)
def test_values_worked_by_hand(weights):
    answer = quantization_answer("llama-3-8b", weights)
    kept = 2 * BESIDE if WORKED[weights] else 2 * (BESIDE + LINEAR)
    assert dict(answer.parts) == {**WORKED[weights], "kept": kept, "kv_cache": 2 * 2048 * 2 * 32 * 1024}
    assert answer.weight_bytes == sum(WORKED[weights].values()) + kept
    assert answer.bits_per_parameter == pytest.approx(8 * answer.weight_bytes / 8_030_261_248)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_in_every_format_answers_and_says_what_is_so(name):
    longest = min(2048, model(name).max_positions)
    for weights in FORMATS:
        answer = quantization_answer(name, weights, "h100", context=longest)
        setup = ServeSetup(name, weights=weights, context=longest)
        assert answer.parts.total == budget.serve(setup).held.total
        verdict = Room(device("h100")).verdict(answer.parts.total)
        assert answer.sentence.count("Fits the") == (verdict is Verdict.FITS)
        assert answer.figures["verdict"] == verdict
        assert [line.split()[0] for line in answer.formula] == [
            *(label(part).split()[0] for part in answer.parts),
            "a",
            "floor",
        ]


def test_the_devices_that_hold_it_are_all_of_them_and_in_order():
    for name, weights in (("llama-3-8b", "nf4"), ("llama-3-70b", "int4-g128"), ("deepseek-v3", "nf4")):
        answer = quantization_answer(name, weights)
        capacities = [DEVICES[fits].capacity_bytes for fits in answer.devices]
        assert capacities == sorted(capacities)
        need = answer.parts.total
        holding = {it.name for it in OFFERED if it.capacity_bytes >= need + reserve(it).size_bytes}
        assert set(answer.devices) == holding
        assert ("No device" in answer.sentence) == (not answer.devices)


def test_the_floor_is_bytes_over_bandwidth_and_the_formula_gives_it():
    answer = quantization_answer("llama-3-8b", "int4-g64", "rtx-4090", context=8192)
    read = budget.decode_bytes(ServeSetup("llama-3-8b", weights="int4-g64", context=8192))
    assert answer.seconds_per_token == answer.figures["seconds_per_token"] == read / 1008e9
    assert answer.formula[-1].split()[:3] == ["floor", f"{read / 1008e6:.2f}", "ms"]
    assert answer.formula[-1].endswith(f"at most {1008e9 / read:,.0f} tokens/s")
    assert format_bytes(read) in answer.formula[-2]
    assert quantization_answer("llama-3-8b").seconds_per_token is None


def test_the_experts_that_bitsandbytes_leaves_are_told_of_and_no_others():
    told = {weights: "experts stay" in quantization_answer("mixtral-8x7b", weights).sentence for weights in FORMATS}
    assert {weights for weights in told if told[weights]} == {"int8", "nf4", "nf4-dq"}
    assert "experts stay" not in quantization_answer("mixtral-8x7b", "nf4", skipped=["lm_head"]).sentence
    assert "experts stay" not in quantization_answer("llama-3-8b", "nf4").sentence
    formula = quantization_answer("mixtral-8x7b", "nf4").formula
    assert "experts" in next(line for line in formula if "not quantized" in line)


def test_what_is_skipped_is_named_and_costs():
    plain, careful = (quantization_answer("llama-3-8b", "nf4", skipped=names) for names in (None, ["lm_head", "mlp"]))
    assert careful.formula[3].endswith("embeddings, norms, mlp, lm_head")
    assert careful.weight_bytes > 2 * plain.weight_bytes
    assert "smaller than in BF16, not 4×" in careful.sentence


def test_the_controls_say_what_the_function_is_given():
    for words, names in LEFT.items():
        chosen = CALCULATOR.answer(skipped=words)
        assert str(chosen) == str(quantization_answer("llama-3-70b", "nf4", "a100-40gb", names))
    assert CALCULATOR.answer(model="gpt2", context=4096).setup.context == 1024  # all its positions


def test_parts_are_told_apart():
    answer = quantization_answer("llama-3-8b", "nf4-dq", "t4")
    blocks = [mark for mark in answer.cards[0].marks if isinstance(mark, Box) and mark.part]
    assert len({mark.fill for mark in blocks}) == len(answer.parts) == 5


BAD = [
    ({"model": "lama-3-8b"}, "did you mean 'llama"),
    ({"model": "llama-3-8b", "weights": "nf5"}, "unknown weight format 'nf5'"),
    ({"model": "llama-3-8b", "weights": "int4-g63"}, "did you mean 'int4-g64'"),
    ({"model": "llama-3-8b", "gpu": "h1000"}, "unknown device 'h1000'"),
    ({"model": "llama-3-8b", "skipped": ["lm-head"]}, "did you mean 'lm_head'"),
    ({"model": "llama-3-8b", "context": 0}, "context is 0"),
    ({"model": "gpt2", "context": 2048}, "position for 1,024 tokens"),
]


@pytest.mark.parametrize(("given", "told"), BAD)
def test_bad_input(given, told):
    with pytest.raises(WorkbookError, match=told):
        quantization_answer(**given)


def test_fp8_in_blocks_says_what_shares_a_scale():
    assert "one FP32 per 128 × 128 values" in str(quantization_answer("deepseek-v3", "fp8-e4m3"))
    assert "252 layers × 4 B" in str(quantization_answer("qwen3-8b", "fp8-e4m3"))
