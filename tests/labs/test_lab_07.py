"""What lab 07 says in words is what its code does; its bounds leave chance nothing to decide."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

from helpers.catalog import device
from helpers.course.mutants import find_mutants, load_mutants
from helpers.lesson import draw
from helpers.techniques.adapters import LoRALinear
from helpers.techniques.optimizers import step_in_backward
from tests.labs.common import lab_path, printed, source
from tests.labs.honest import honest, table

LAB = lab_path("07")


@pytest.mark.parametrize(
    ("question", "check", "figures"),
    [
        ("q1", "moments-bytes", ["24,376", "8.13", "96 bytes a value"]),
        ("q2", "fused-peak", ["at most 6.5 MiB"]),
        ("q3", "grouped-bytes", ["24,576 trained values", "12,288 bytes kept"]),
        ("q3", "grouped-lost", ["0.43", "0.52", "0.82", "1.07"]),
        ("q5", "ranks-many", ["gain 469"]),
    ],
)
def test_the_figures_of_a_target_are_printed_by_its_check(lab, question, check, figures):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0].replace("a gain of", "gain")
    assert [figure for figure in figures if figure not in target or figure not in printed(lab, check)] == []


def test_every_code_comes_back_as_itself(names):
    codes = torch.arange(256, dtype=torch.uint8).flip(0)
    codes[128] = 255  # so that both blocks have the same scale
    scales = torch.tensor([2.0**-20, 2.0**-20]).bfloat16()
    values = names["load_moments"](codes, scales)
    assert values[0].item() == 2.0**-20
    assert values[12].item() == pytest.approx(2.0**-21)
    again, same = names["store_moments"](values, torch.Generator().manual_seed(1))
    assert same.tolist() == scales.tolist()
    assert (again.int() - codes.int()).abs().max() == 0


@pytest.mark.parametrize("name", ["store_moments", *(name for name in honest("07") if name.startswith("store"))])
def test_an_honest_rounding_is_far_from_every_bound(names, monkeypatch, name):
    """Chance may not decide about a point."""
    monkeypatch.setitem(names, "store_moments", with_honest(names)[name])
    for seed in range(4):
        rng = draw(f"test-lab-07/{seed}")
        row = torch.tensor([1.0, *(2.0 ** -rng.uniform(0, 22) for _ in range(127))])
        low, high, _ = names["steps_of"](row)
        off = (names["mean_of"](row, 1024, seed) - row.double()) / (high - low)
        assert off.abs().max() <= 0.08
        starts, squares = [1e-8] * 8, [1e-8 * rng.uniform(0.01, 9) for _ in range(8)]
        ends = names["exactly"](starts, squares, 0.995, 300)
        mean, spread = names["following"](starts, squares, 0.995, 300, 2048, seed)
        for end, mine, apart in zip(ends, mean, spread, strict=True):
            assert abs(mine / end - 1) <= 0.025
            assert apart <= 0.4 * end


def test_rounded_to_nearest_a_falling_moment_stays_where_it_is(names, monkeypatch):
    nearest = next(one for one in load_mutants(find_mutants(LAB)) if "Rounds to the nearest level." in one.source)
    tried = dict(names)
    exec(nearest.source, tried)
    monkeypatch.setitem(names, "store_moments", tried["store_moments"])
    start = 2.0**-20  # a level
    mean, _ = names["following"]([start] * 2, [0.0, start / 10], 0.999, 300, 64, 1)
    assert mean == [start, start]


def test_where_every_weight_is_reached_once_the_optimizer_is_that_of_helpers(names):
    ids, found = torch.arange(20), []
    for fused in (names["Fused"], step_in_backward):
        model = names["built"](names["SMALL"], (), 1)
        model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())  # tied no more
        model.shared.requires_grad_(False)
        handle = fused(model, names["one_by_one"])
        for _ in range(2):
            getattr(handle, "expect", len)({})
            for _ in names["backwards"](model, ids, 1, True, 1):
                pass
        found.append(names["digests"](model))
    assert found[0] == found[1]


def test_with_one_optimizer_at_the_end_as_much_is_alive_as_the_target_says(names, monkeypatch, lab):
    late = next(one for one in load_mutants(find_mutants(LAB)) if "Waits for the last gradient" in one.source)
    tried = dict(names)
    exec(late.source, tried)
    monkeypatch.setitem(names, "Fused", tried["Fused"])
    peak_bytes, _ = names["beside_weights"](torch.arange(17), (2, True, 4), 1)
    assert f"it would be {peak_bytes / 2**20:.1f}" in source(lab, "q2")


def test_an_adapter_for_all_rows_is_lora(names):
    layer, adapters = names["draw_layer"](draw("test-lab-07/lora"), {"all": 40}, {"all": 4}, 64, 0.1)
    linear = torch.nn.Linear(64, 40, bias=False)
    linear.weight.data = names["loaded"](*layer[:2])
    lora = LoRALinear(linear, 4, layer[4])
    lora.lora_a.data, lora.lora_b.data = adapters["all"]
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    module, _ = names["built_layer"](layer, adapters)
    assert torch.allclose(module(x), lora(x), rtol=1e-5, atol=1e-5)


def test_quantizing_the_drawn_base_anew_would_change_it(names):
    layer, _ = names["draw_layer"](draw("test-lab-07/base"), {"q": 20}, {}, 64, 0.1)
    codes, absmax = names["stored"](names["loaded"](*layer[:2]))
    assert (codes != layer[0]).any()
    assert (absmax != layer[1]).any()


def test_the_best_speed_is_that_of_every_plan(names, monkeypatch):
    """Where peaks are made up, and one base needs less than another only where something is recomputed."""

    def bytes_for(case, plan):
        base = {None: 900, "nf4": 300, "nf4-dq": 280}[plan["base"]]
        row = {None: 40, "nf4": 90, "nf4-dq": 90}[plan["base"]] if plan["checkpointing"] == "none" else 10
        return base + plan["rank"] * len(plan["targets"]) + row * plan["micro_batch"] * len(plan["targets"])

    monkeypatch.setitem(names, "bytes_for", bytes_for)
    small = {"targets": [("up",), ("down",), ("up", "down")], "ranks": [1, 2, 4, 8, 16], "most": 64, "layers": 2,
             "linears": {"up": (64, 128), "down": (128, 64)}}  # fmt: skip
    for seed in range(8):
        rng = draw(f"test-lab-07/speed-{seed}")
        case = ("llama-2-7b", 2, 64)
        space, least = names["space_of"](rng, *case) | small, rng.randint(300, 5000)
        monkeypatch.setitem(names, "ROOM", rng.randint(350, 2500))
        keys = itertools.product(space["bases"], space["checkpointing"], space["targets"], space["ranks"], range(1, 65))
        best = 0.0
        for base, how, targets, rank, rows in keys:
            plan = {"base": base, "checkpointing": how, "targets": targets, "rank": rank, "micro_batch": rows}
            trained = rank * 2 * sum(sum(space["linears"][name]) for name in targets)
            fixed, each = space["time"][base, how]
            if trained >= least and bytes_for(case, plan) <= names["ROOM"]:
                best = max(best, 1e6 * rows / (fixed + rows * each))
        assert names["best_of"](space, least, case)[0] == pytest.approx(best)


def test_the_room_is_a_real_cards(names, lab):
    assert f"{names['ROOM'] / 2**30:.2f} GiB" in source(lab, "q4")
    assert f"{device('rtx-4090').capacity_bytes / 2**30:.2f} on an RTX 4090" in source(lab, "q4")


def test_every_choice_of_targets_has_one_of_the_mlp(names):
    assert all(set(names["MLP"]) & set(targets) for targets in names["TARGETS"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_trace_proves_the_plan_for_the_model_of_few_layers(names, seed):
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    rng = draw(f"test-lab-07/trace-{seed}")
    case = ("llama-2-7b", rng.randint(3, 5), rng.choice([512, 1024]))
    _, plan = names["best_of"](names["space_of"](rng, *case), rng.randint(1, 8) * 10**6, case)
    fits, not_fits = names["traced"](case, plan)
    assert fits <= 1.005 * names["ROOM"]
    assert not_fits >= 0.995 * names["ROOM"]


def test_the_most_gain_is_that_of_every_list(names):
    for seed in range(6):
        rng = draw(f"test-lab-07/gain-{seed}")
        layers, budget = names["draw_ranked"](rng, 4), rng.randint(50_000, 600_000)
        best = 0
        for ranks in itertools.product((0, 4, 8, 16, 32), repeat=4):
            if names["adapter_bytes"](layers, ranks) <= budget:
                best = max(best, sum(({0: 0} | one["gains"])[rank] for one, rank in zip(layers, ranks, strict=True)))
        assert names["most_gain"](layers, budget) == best


def test_one_step_after_the_other_gains_what_the_target_says(names, lab):
    greedy = next(one for one in load_mutants(find_mutants(LAB)) if "that gains most for its bytes." in one.source)
    tried = dict(names)
    exec(greedy.source, tried)
    layers = names["draw_ranked"](names["random"].Random(3), 24)
    gain = names["gain_of"]("", layers, tried["choose_ranks"](layers, 2_500_000), 2_500_000)
    assert f"ends at {gain}." in source(lab, "q5")


def with_honest(names):
    tried = dict(names)
    exec(table("07"), tried)
    return tried
