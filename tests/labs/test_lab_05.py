"""What lab 05 says in words is what its code does; its answers equal bitsandbytes, real tensors and each other."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest
import torch

from helpers.catalog import model
from helpers.course.mutants import find_mutants, load_mutants
from helpers.lesson import draw
from helpers.memory.measure import Traffic
from tests.labs.common import lab_path, printed, source
from tests.labs.honest import table

LAB = lab_path("05")


@pytest.mark.parametrize(
    ("question", "check", "figures"),
    [
        ("q1", "quantize-kept", ["318"]),
        ("q2", "pack3-bytes", ["e1 cb 91", "5 bytes"]),
        ("q3", "store4-memory", ["50"]),
        ("q4", "round-columns-output", ["0.3"]),
        ("q4", "round-columns-moved", ["35,000,000"]),
        ("q5", "fold-salience-alpha", ["0.5", "0.391"]),
        ("q6", "quantized-bytes-rounded", ["5,822,554,112"]),
        ("q7", "place-many", ["632"]),
    ],
)
def test_the_figures_of_a_target_are_printed_by_its_check(lab, question, check, figures):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0]
    assert [figure for figure in figures if figure not in target or figure not in printed(lab, check)] == []


def test_the_worked_store_is_that_of_bitsandbytes(names):
    functional = pytest.importorskip("bitsandbytes").functional
    tables = {"nf4": names["NF4_LEVELS"], "fp4": names["FP4_LEVELS"]}
    for weight in (names["adversarial"](), names["draw_weight"](random.Random(0), 30, 128), torch.zeros(4, 64)):
        for kind, levels in tables.items():
            with torch.compiler.set_stance("force_eager"):  # it would compile its path for odd shapes
                packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type=kind)
                right = functional.dequantize_4bit(packed, state)
            mine, absmax = names["store4"](weight, levels, 64)
            if (kind, len(weight)) != ("fp4", 30):  # a tiny positive value is -0 there
                assert torch.equal(mine, packed.flatten())
            torch.testing.assert_close(absmax, state.absmax, atol=1e-37, rtol=0)
            assert torch.equal(names["load4"](mine, absmax, levels, 64, weight.shape), right.reshape(weight.shape))


def test_the_bytes_of_a_mixed_model_are_those_of_real_tensors(names):
    shape = model("tiny-llama")
    kept = 2 * (shape.parameters - sum(group.weights for group in shape.linears() if group.part == "mlp"))
    for group in shape.linears():
        if group.part == "mlp":
            weight = names["draw_weight"](random.Random(group.linear.name), group.linear.outputs, group.linear.inputs)
            codes, scale, zero = names["quantize"](weight, 3, 64)
            packed = names["pack3"](codes.to(torch.int8) - 4)
            kept += group.count * names["kept_bytes"](packed, scale, zero)
    assert names["quantized_bytes"](shape, {"mlp": "int3-g64"}) == kept


@pytest.mark.parametrize("bits", [3, 8])
def test_drawn_groups_have_the_same_codes_in_any_precision(names, bits):
    """A value halfway between two codes would go up in FP32 and down in FP64."""
    tried = with_honest(names)
    for size in (1, 2, 5, *[64] * 30):
        weight = torch.tensor([tried["draw_group"](draw(f"test-lab-05/{size}/{bits}"), size, bits)])
        single, double = tried["quantize"](weight, bits, 64), tried["quantize_padded_with_zeros"](weight, bits, 64)
        assert all(map(torch.equal, single, double))
        steps = tried["decoded"](*single, 64).sub(weight).abs() / single[1].float()
        assert steps.max() <= 3 / 8


def test_every_alpha_is_the_best_of_some_drawn_layer(names):
    leans = {-0.75: 0, 0: 0.25, 0.5: 0.75, 1: 1}
    layers = {lean: [names["draw_mlp"](draw(f"test-lab-05/{i}"), lean) for i in range(4)] for lean in leans}
    found = {lean: {names["fold_salience"](*one, names["GRID"])[0] for one in some} for lean, some in layers.items()}
    assert {lean: right for lean, right in leans.items() if right not in found[lean]} == {}


def test_drawn_columns_round_the_same_in_any_precision(names):
    tried = with_honest(names)
    for seed in range(60):
        weight, factor, scale = names["draw_exact"](draw(f"test-lab-05/{seed}"), 6, 12)
        single = names["round_columns"](weight, factor, names["EIGHT"], scale, 12)
        double = tried["round_columns_in_double"](weight, factor, names["EIGHT"], scale, 5)
        assert torch.equal(single, double)


def test_rounding_in_blocks_moves_what_the_target_says(lab, names):
    weight, _, factor, scale = names["draw_layer"](random.Random(0), 64, 384)
    moved = []
    for block in (16, 1):
        with Traffic() as traffic:
            names["round_columns"](weight, factor, names["NF4_LEVELS"], scale, block)
        moved.append(f"{traffic.bytes:,}")
    assert [figure for figure in moved if figure not in source(lab, "q4")] == []


def test_the_cheapest_step_first_leaves_what_the_target_says(lab, names):
    greedy = next(one for one in load_mutants(find_mutants(LAB)) if "always the step that saves most" in one.source)
    tried = dict(names)
    exec(greedy.source, tried)
    layers, budgets = tried["draw_layers"](random.Random(24), 24), (4300, 3000)
    assert tried["loss_of"]("24 layers", list(tried["place"](layers, budgets)), layers, budgets) == 660
    assert "660" in source(lab, "q7")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (None, "you return None"),
        (7, "a plan is (split, bits)"),
        ([1, [4, 2], 0], "a plan is (split, bits)"),
        ([True, [4, 2]], "a whole number and a list"),
        ([1, [4, 2.0]], "widths are whole numbers"),
        ([3, [4, 2]], "a split and 2 widths"),
        ([1, [4]], "a split and 2 widths"),
        ([1, [4, 8]], "layer 1 has no width of 8 bits"),
        ([0, [4, 2]], "card 2 has 50 bytes, your layers take 150"),
    ],
)
def test_a_placement_that_is_none_says_why(names, plan, words):
    layers, budgets = [{2: (50, 9), 4: (100, 1)}] * 2, (100, 50)
    with pytest.raises(AssertionError, match=re.escape(words)):
        names["loss_of"]("two layers", plan, layers, budgets)


def test_the_least_loss_is_that_of_trying_everything(names):
    rng, found = random.Random(5), set()
    for _ in range(20):
        layers, budgets = names["draw_layers"](rng, 4), (rng.randint(100, 900), rng.randint(100, 900))
        losses = [
            sum(layer[width][1] for layer, width in zip(layers, bits, strict=True))
            for split, bits in product(range(5), product(*layers))
            if all(
                sum(layer[width][0] for layer, width in list(zip(layers, bits, strict=True))[part]) <= budget
                for part, budget in zip((slice(split), slice(split, None)), budgets, strict=True)
            )
        ]
        found.add(least := names["least_loss"](layers, budgets))
        assert least == min(losses, default=None)
    assert None in found
    assert len(found) > 5


def with_honest(names):
    tried = dict(names)
    exec(table("05"), tried)
    return tried
