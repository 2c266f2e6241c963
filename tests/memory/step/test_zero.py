"""ZeRO in closed form: shards that add up, the published example, traffic in units of the model, peaks by hand."""

from dataclasses import replace
from fractions import Fraction
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import MODELS, PRECISIONS, TrainSetup, device, model
from helpers.catalog.split import Split
from helpers.memory.step.ranks import zero
from helpers.memory.step.ranks.zero import Traffic
from tests.memory.step.agreement import llama, refused

UNEVEN = llama(30, 70, 3, 3, 97)
TIED = {**UNEVEN, "tie_word_embeddings": True}
CLOSED = [name for name in MODELS if model(name).counted is None]
PARTS = ("parameters", "gradients", "optimizer")
TABLE, LAYER = 97 * 30, 4 * 30 * 30 + 3 * 30 * 70 + 2 * 30  # by hand: the embedding, and one layer of UNEVEN

setups = st.builds(
    TrainSetup,
    model=st.sampled_from([model(UNEVEN), model(TIED), *map(model, CLOSED)]),
    precision=st.sampled_from(sorted(PRECISIONS)),
    optimizer=st.sampled_from(["sgd", "sgd-momentum", "adamw", "adamw-fused"]),
    sequence=st.just(64),
    split=st.builds(Split, st.integers(1, 4096), st.integers(0, 3)),
)
quick = settings(max_examples=60)


def uneven(**choices):
    return TrainSetup(UNEVEN, **{"precision": "fp32", "sequence": 64, **choices})


def held(setup):
    return dict(zero.held(setup).device)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, "120.0"), (1, "31.4"), (2, "16.6"), (3, "1.9")])
def test_the_paper_s_figure_comes_out_under_its_own_convention(stage, gigabytes):
    assert f"{zero.paper_bytes(7_500_000_000, 64, stage) / 1e9:.1f}" == gigabytes
    assert "activations" in zero.PAPER_LEAVES_OUT[0]


def test_the_paper_s_convention_is_that_of_no_recipe_here_but_of_their_sum():
    """16 bytes a parameter: the weights and gradients of "bf16", the copy and the states of "megatron-bf16"."""
    n = model("llama-2-7b").parameters
    plain, master = (zero.held(TrainSetup("llama-2-7b", name)).device for name in ("bf16", "megatron-bf16"))
    assert plain["parameters"] + plain["gradients"] + master["optimizer"] == zero.paper_bytes(n, 1, 0) == 16 * n


def test_units_and_buckets_are_the_whole_model():
    assert zero.units(model(UNEVEN)) == (2 * TABLE + 30, LAYER, LAYER, LAYER)
    assert zero.units(model(TIED))[0] == TABLE + 30
    for setup in (uneven(), TrainSetup("llama-2-7b"), TrainSetup("gpt2", sequence=64), TrainSetup("qwen3-0.6b")):
        assert sum(zero.buckets(setup)) == sum(zero.units(setup.model)) == setup.model.parameters


def test_buckets_begin_with_the_head_and_divide_no_tensor():
    buckets = zero.buckets(TrainSetup("llama-2-7b", "bf16"))
    assert buckets[0] == 32000 * 4096  # one that is larger than a bucket has its own
    assert buckets[1] == 4096 + 2 * 4096 + 4096 * 11008  # final norm, two norms, down_proj: then it is full
    least = 25 * 2**20 // 2
    assert all(values >= least for values in buckets[:-1])
    largest = max(prod(shape) for shape in model("llama-2-7b").tensors())
    assert max(buckets) < least + largest


def test_every_part_by_hand_on_four_uneven_ranks():
    n = 2 * TABLE + 30 + 3 * LAYER
    flats = (2 * TABLE + 30, LAYER, LAYER, LAYER)
    padded, shard = -(-n // 4) * 4, -(-n // 4)  # one bucket holds all of it
    by_unit = sum(-(-values // 4) for values in flats)
    one, two, three = (held(uneven(split=Split(4, zero=stage))) for stage in (1, 2, 3))
    assert held(uneven(split=Split(4))) == {"parameters": 4 * n, "gradients": 4 * padded, "optimizer": 8 * n}
    assert one == {"parameters": 4 * padded, "gradients": 4 * n, "optimizer": 8 * shard}
    assert two == {"parameters": 4 * padded, "gradients": 4 * shard, "optimizer": 8 * shard}
    assert three == dict(zip(PARTS, (4 * by_unit, 4 * by_unit, 8 * by_unit), strict=True))


@quick
@given(setups)
def test_all_ranks_together_hold_the_whole_and_less_than_its_padding(setup):
    """DDP's gradients are padded too; what is whole on every rank is no less than the model."""
    n, recipe, ranks = setup.model.parameters, setup.precision_recipe, setup.ranks
    padding = len(zero.flats(setup)) * (ranks - 1)
    states = recipe.master_bytes + setup.optimizer_rule.states * recipe.optimized_bytes
    for part, stage, width in zip(PARTS, (3, 2, 1), (recipe.weight_bytes, recipe.grad_bytes, states), strict=True):
        together = zero.held(setup).device[part] * (ranks if setup.zero >= stage else 1)
        assert n * width <= together <= (n + padding) * width


@quick
@given(setups, st.sampled_from(["cpu", "nvme"]))
def test_an_offload_moves_bytes_and_a_host_optimizer_adds_its_own_copy(setup, tier):
    setup = replace(setup, split=Split(setup.ranks, max(1, setup.zero)))
    moved = replace(setup, offload_optimizer=tier)
    here, there = zero.held(setup), zero.held(moved)
    other = there.host if tier == "cpu" else there.nvme
    recipe = setup.precision_recipe
    copy = 0 if recipe.master_bytes else recipe.weight_bytes * sum(flat.shard for flat in zero.flats(setup))
    assert there.device["optimizer"] == 0
    assert other["optimizer"] == here.device["optimizer"] + copy
    summed = there.host["gradients"] if tier == "nvme" else 0  # beside the sum's file
    assert there.total == here.total + copy + summed
    assert (there.device["gradients"] == 0) == (setup.zero >= 2)


def test_parameters_follow_to_their_own_tier():
    setup = uneven(split=Split(4, zero=3), offload_optimizer="NVME", offload_parameters="cpu")  # in any case
    tiers = zero.held(setup)
    assert tiers.device.total == 0
    whole = held(uneven(split=Split(4, zero=3)))["parameters"]
    assert dict(tiers.host) == {"parameters": whole, "gradients": tiers.nvme["gradients"], "optimizer": 0}
    assert tiers.nvme["optimizer"] == 3 * tiers.nvme["gradients"] == 3 * tiers.host["parameters"]


def test_adafactor_s_factors_are_divided_and_8_bit_states_follow_the_flats():
    whole = zero.held(TrainSetup("llama-2-7b", "bf16", "adafactor")).device["optimizer"]
    sharded = TrainSetup("llama-2-7b", "bf16", "adafactor", split=Split(8, zero=3))
    assert held(sharded)["optimizer"] == whole // 8
    eight_bit = zero.held(uneven(optimizer="adamw-8bit", split=Split(2, zero=1))).device["optimizer"]
    shard = -(-(2 * TABLE + 30 + 3 * LAYER) // 2)
    assert eight_bit == 2 * (shard + 4 * -(-shard // 256))


# --- traffic ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.2-1b", "gpt2"])  # untied, tied, learned positions
def test_a_step_sends_two_models_and_stage_3_three_less_its_root(stage, name):
    setup = TrainSetup(name, "bf16", sequence=64, split=Split(1, zero=stage))
    n, root = setup.model.parameters, zero.units(setup.model)[0]
    passes = zero.traffic(setup).passes(2 * n)
    assert passes == (2 if stage < 3 else 3 - Fraction(root, n))


@quick
@given(setups)
def test_each_rank_sends_the_ring_s_share_of_every_payload(setup):
    traffic, n = zero.traffic(setup), setup.ranks
    kinds = {0: {"all_reduce"}}.get(setup.zero, {"reduce_scatter", "all_gather"})
    assert set(traffic.kinds) == kinds
    sent = sum(Fraction(call.payload_bytes * (n - 1), n) * (1 + (call.kind == "all_reduce")) for call in traffic.calls)
    assert traffic.sent_bytes == sent  # payloads are padded: no rounding


def test_payloads_have_the_width_of_what_travels():
    setup = TrainSetup("llama-2-7b", "megatron-bf16", split=Split(8, zero=1))
    traffic, n = zero.traffic(setup), setup.model.parameters
    assert traffic.of("reduce_scatter").payload_bytes == 4 * n
    assert traffic.of("all_gather").payload_bytes == 2 * n
    assert len(traffic.calls) == 2 * len(zero.buckets(setup))


@pytest.mark.parametrize(("stage", "reduced", "gathered"), [(0, 1, 0), (1, 1, 1), (2, 3, 1), (3, 3, 3)])
def test_accumulation_is_paid_by_the_stages_that_cannot_wait(stage, reduced, gathered):
    setup = uneven(split=Split(4, zero=stage))
    one, three = zero.traffic(setup), zero.traffic(setup, micro_batches=3)
    for kinds, times in ((("all_reduce", "reduce_scatter"), reduced), (("all_gather",), gathered)):
        for kind in kinds:
            assert three.of(kind).payload_bytes == times * one.of(kind).payload_bytes


def test_stage_3_gathers_every_layer_twice_and_the_root_once():
    traffic = zero.traffic(uneven(split=Split(4, zero=3)))
    layer, root = 4 * (LAYER + -LAYER % 4), 4 * (2 * TABLE + 30 + -(2 * TABLE + 30) % 4)
    assert sorted(call.payload_bytes for call in traffic.of("all_gather").calls) == sorted([root, *[layer] * 6])
    assert sorted(call.payload_bytes for call in traffic.of("reduce_scatter").calls) == sorted([root, *[layer] * 3])


# of the shard of all parameters: gradients down, weights up, twice gathered less the root
CARRIED = [(1, ("cpu", "none"), (1, 1)), (2, ("cpu", "none"), (2, 1)), (3, ("cpu", "none"), (2, 1))]
CARRIED += [(3, ("none", "cpu"), (1, 4)), (3, ("cpu", "cpu"), (2, 4))]


@pytest.mark.parametrize(("stage", "tiers", "times"), CARRIED)
def test_what_the_host_link_carries_over_two_micro_batches(stage, tiers, times):
    setup = uneven(split=Split(4, zero=stage), offload_optimizer=tiers[0], offload_parameters=tiers[1])
    shards = 4 * sum(flat.shard for flat in zero.flats(setup))
    root = 4 * zero.flats(setup)[0].shard if tiers[1] == "cpu" else 0
    moved = zero.link_bytes(setup, micro_batches=2)
    assert (moved.down_bytes, moved.up_bytes) == (times[0] * shards, times[1] * shards - 2 * root)
    assert moved.nvme_read_bytes == moved.nvme_written_bytes == 0


def test_a_disk_reads_and_writes_what_it_holds_and_without_an_offload_nothing_moves():
    assert zero.link_bytes(uneven(split=Split(4, zero=3))) == zero.LinkBytes()
    setup = uneven(split=Split(4, zero=3), offload_optimizer="nvme", offload_parameters="nvme")
    tiers, moved = zero.held(setup).nvme, zero.link_bytes(setup)
    states = tiers["optimizer"] + tiers["gradients"]
    assert moved.nvme_read_bytes == states + moved.up_bytes
    assert moved.nvme_written_bytes == states + tiers["parameters"]
    assert zero.link_bytes(setup, micro_batches=3).nvme_written_bytes == moved.nvme_written_bytes  # summed before


def test_floors_divide_by_one_direction():
    setup = TrainSetup("llama-2-7b", "bf16", split=Split(8, zero=2), offload_optimizer="cpu")
    rate = device("a100-80gb").link_bytes_per_s("nvlink")
    assert rate == 300e9
    n = setup.model.parameters
    assert zero.floor_s(zero.traffic(setup), rate) == pytest.approx(2 * 2 * n * 7 / 8 / 300e9)
    assert zero.link_bytes(setup).floor_s(32e9) == pytest.approx(2 * n / 8 / 32e9)
    assert zero.floor_s(Traffic(()), rate) == 0


test_bad_input = refused(
    (lambda: uneven(offload_optimizer="cpu"), "choose zero=1"),
    (lambda: uneven(split=Split(zero=2), offload_parameters="cpu"), "choose zero=3"),
    (lambda: uneven(split=Split(zero=2), offload_parameters="nvme"), "parameters are sharded at stage 3 only"),
    (lambda: uneven(split=Split(zero=1), offload_optimizer="gpu"), "none, cpu, nvme"),
    (lambda: uneven(split=Split(zero=1), offload_optimizer="cpuu"), "did you mean 'cpu'"),
    (lambda: uneven(split=Split(zero=1), offload_optimizer=True), "unknown tier for offload_optimizer"),
    (lambda: uneven(split=Split(zero=3), offload_parameters=None), "unknown tier for offload_parameters"),
    (lambda: zero.traffic(uneven(), 0), "micro_batches is 0"),
    (lambda: zero.traffic(uneven(), 1.5), "micro_batches is 1.5"),
    (lambda: zero.link_bytes(uneven(), True), "micro_batches is True"),
    (lambda: zero.floor_s(zero.traffic(uneven()), 0), "bytes per second in one direction"),
    (lambda: zero.floor_s(zero.traffic(uneven()), float("nan")), "rate is nan"),
    (lambda: zero.floor_s(zero.traffic(uneven()), "nvlink"), "rate is 'nvlink'"),
    (lambda: zero.LinkBytes(1, 1).floor_s(-1), "rate is -1"),
    (lambda: zero.paper_bytes(7.5e9, 64, 1), "as in 7_500_000_000"),
    (lambda: zero.paper_bytes(0, 64, 1), "parameters is 0"),
    (lambda: zero.paper_bytes(1, 0, 1), "ranks is 0"),
    (lambda: zero.paper_bytes(1, 1, 4), "stage is 4"),
    (lambda: zero.paper_bytes(1, 1, True), "stage is True"),
)
