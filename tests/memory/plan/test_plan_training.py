"""A training plan: feasible, cheapest first, the same each time, and honest where there is none."""

import itertools
import time
from dataclasses import replace

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.catalog.models import model
from helpers.memory.breakdown import format_bytes
from helpers.memory.plan import Cards, Efficiency, Shares, TrainGoal, least_for_training, plan_training, training_report
from helpers.memory.plan.export import lora_config
from helpers.memory.plan.layouts import training_layouts
from helpers.memory.plan.search import LayoutRefusal
from helpers.memory.plan.step import sent_bytes, step_time
from helpers.memory.plan.training import Job, Layout, StepEngine, train_setup
from helpers.memory.step.ranks import megatron, zero

H100 = [Cards("h100", 8, 2.0)]
GOAL = TrainGoal("llama-3.1-8b", tokens=10**9)


def answer(goal=GOAL, fleet=H100, rates=None):
    return plan_training(goal, fleet, rates)


def test_every_plan_fits_its_cards_with_the_reserve():
    for plan in answer().plans:
        assert plan.need.total + plan.cards.room_of(plan.layout.ranks).reserve_bytes <= plan.cards.device.capacity_bytes
        assert plan.ranks <= plan.cards.count


def test_a_plan_needs_what_the_closed_form_of_its_engine_says():
    for plan in answer().plans:
        assert plan.need == Job(GOAL.model, GOAL.sequence).need(plan.layout, plan.cards.device)


def test_plans_come_cheapest_first_to_a_percent():
    costs = [plan.cost.middle for plan in answer().plans]
    assert len(costs) > 3
    assert all(after >= 0.98 * before for before, after in itertools.pairwise(costs))


def test_the_same_input_gives_the_same_answer():
    assert training_report(answer()) == training_report(answer())


@pytest.mark.parametrize("cards", [8, 64, 1024])
def test_70b_is_planned_within_ten_seconds(cards):
    began = time.process_time()
    found = answer(TrainGoal("llama-3.1-70b", tokens=10**12), [Cards("h100", cards)])
    assert found.plans
    assert time.process_time() - began < 10


def test_a_deadline_drops_what_is_late_and_says_so():
    cheap = answer(fleet=[Cards("h100", 64, 2.0)]).plans[0]
    goal = replace(GOAL, deadline_s=cheap.hours.middle * 3600 / 4)
    found = answer(goal, [Cards("h100", 64, 2.0)])
    assert all(plan.hours.middle * 3600 <= goal.deadline_s for plan in found.plans)
    assert LayoutRefusal.DEADLINE in {one.reason for one in found.failures}


def test_what_is_cheaper_than_the_first_plan_and_failed_is_told():
    found = answer()
    failed = found.next_cheaper
    assert failed.price <= found.plans[0].cost.middle
    assert failed.need_bytes > failed.cards.room.for_tensors_bytes
    assert "The next cheaper layout fails: " in training_report(found)


def test_an_impossible_goal_gets_the_least_that_would_do():
    found = answer(TrainGoal("llama-3.1-405b", tokens=10**9), [Cards("h100", 8)])
    assert not found.plans
    offers = least_for_training(found)
    assert offers
    for offer in offers:
        assert offer.plan.need.total <= offer.plan.cards.room.for_tensors_bytes
    assert "The least that would do:" in training_report(found)


def test_states_on_the_host_are_told_where_nothing_fits_and_in_what_would():
    """Else a machine is bought for a plan that its own memory cannot hold."""
    found = answer(TrainGoal("llama-3-70b", tokens=10**9, batch_tokens=2**17), [Cards("h100", 2, 2.0)])
    assert not found.plans
    text, hosted = training_report(found), [one for one in least_for_training(found) if one.plan.layout.offload]
    assert ", states on the host on 2 x h100-80gb" in text
    assert hosted
    for offer in hosted:
        in_a_machine = format_bytes(offer.plan.need.host.total * min(offer.plan.ranks, 8))
        assert f"states on the host, {in_a_machine} in a machine" in text


def test_a_larger_card_at_a_price_is_chosen_by_money():
    dear = answer(fleet=[Cards("h100", 8, 2.0), Cards("h200", 8, 100.0)]).plans[0]
    cheap = answer(fleet=[Cards("h100", 8, 2.0), Cards("h200", 8, 0.1)]).plans[0]
    assert (dear.cards.device.name, cheap.cards.device.name) == ("h100-80gb", "h200-141gb")


def test_a_compromise_is_listed_only_where_it_saves_money():
    for plan in answer().plans:
        assert not plan.layout.compromises


def test_on_one_small_card_adapters_are_the_plan():
    goal = TrainGoal("llama-3.1-8b", tokens=10**8, batch_tokens=2**17, methods=("full", "lora", "qlora"))
    kept = 1343 * 2**20  # beside which LoRA, of as many hours, has no room for 4,096 tokens
    quantized, bf16 = (answer(goal, [Cards("rtx-4090", 1, 0.4, reserve_bytes=bytes_)]) for bytes_ in (kept, None))
    assert [found.plans[0].layout.method for found in (quantized, bf16)] == ["qlora", "lora"]
    assert "adapters alone are trained" in quantized.plans[0].layout.compromises
    assert "Set expandable_segments:True for it" in training_report(bf16)  # 22.6 GiB of tensors on 23.6


def test_the_batch_is_what_was_asked_for_to_an_eighth():
    goal = replace(GOAL, batch_tokens=20 * GOAL.sequence)  # which twelve ranks do not divide
    layouts = list(training_layouts(goal, Cards("h100", 12, 2.0)))
    assert layouts
    assert all(1 <= layout.sequences / 20 <= 1.125 for layout in layouts)


def test_better_efficiency_makes_a_faster_plan():
    slow = answer(rates=Efficiency(training_flops=Shares(0.1, 0.2, 0.3))).plans[0]
    assert slow.hours.middle * slow.ranks > 1.5 * answer().plans[0].hours.middle * answer().plans[0].ranks


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_on_the_links_are_those_of_the_closed_form_of_zero(stage):
    job = Job(GOAL.model, 2048)
    layout = Layout(StepEngine.ZERO, data=8, zero=stage, micro_batches=4)
    once, each = sent_bytes(job, layout)
    told = zero.traffic(train_setup(layout, GOAL.model, 2048)).sent_bytes
    assert once + 4 * each == pytest.approx(told, rel=0.07)  # stage 3 gathers the root once and not twice


@pytest.mark.parametrize(("reduced", "width"), [("fp32", 4), ("bf16", 2)])
def test_bytes_on_fsdp2s_links_are_layers_twice_the_root_once_and_gradients(reduced, width):
    job, layout = (
        Job(GOAL.model, 2048),
        Layout(StepEngine.FSDP2, data=8, precision="autocast-bf16", reduced=reduced, micro_batches=4),
    )
    root, *layers = zero.units(GOAL.model)
    whole = (2 + width) * root + (4 + width) * sum(layers)
    assert sent_bytes(job, layout) == (0, pytest.approx(whole * 7 / 8))


@pytest.mark.parametrize(("name", "formats"), [("llama-3.1-8b", {"fp32", "bf16"}), ("qwen2.5-7b", {"bf16"})])
def test_fsdp2_reduces_as_an_engine_that_has_the_model_can_be_told_to(name, formats):
    found = training_layouts(replace(GOAL, model=name), Cards("h100", 8, 2.0))
    assert {layout.reduced for layout in found if layout.engine is StepEngine.FSDP2} == formats


def test_fp32_shards_of_everything_are_fsdp2s_and_not_zeros():
    for layout in training_layouts(GOAL, Cards("h100", 8, 2.0)):
        plain = layout.optimizer == "adamw-fused" and not layout.offload and layout.precision == "autocast-bf16"
        assert not (layout.engine is StepEngine.ZERO and layout.zero == 3 and plain)


def test_what_fsdp2_holds_is_no_more_than_it_needs():
    """A layout is dropped by what it holds before anybody counts what it needs."""
    for ranks, share in ((2, 0.9), (8, 0.5)):
        job, layout = Job(GOAL.model, 1024), Layout(StepEngine.FSDP2, ranks, precision="autocast-bf16")
        need = job.need(layout, H100[0].device).total
        assert share * need < job.held_bytes(layout) <= need


def test_context_parallel_ranks_hold_what_eight_b200_measured():
    """Peak allocated, 12 layers of Llama-3-70B, 32,768 tokens: SimuMax docs/b200/b200_release_v1.2_summary.md."""
    config = {**model("llama-3-70b").config, "num_hidden_layers": 12}
    for tensor, context, measured in ((2, 4, 68.43), (1, 8, 104.51)):
        setup = megatron.MegatronSetup(
            model(config), tensor_parallel=tensor, context_parallel=context, sequence=32768, micro_batches=4
        )
        assert megatron.train(setup, "b200").peak_bytes / 2**30 == pytest.approx(measured, rel=0.01)


def test_full_recomputation_keeps_inputs_alone():
    plain = megatron.MegatronSetup("llama-3-70b", tensor_parallel=8, pipeline=4, data_parallel=2)
    kept = {
        how: megatron.train(replace(plain, recompute=how)).at("layer").parts["activations"] for how in ("none", "full")
    }
    inputs = 4 * 20 * 2 * 4096 * 8192 // 8  # in flight, layers, BF16, tokens, hidden, ranks
    assert inputs < kept["full"] < 0.2 * kept["none"]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": 1.5}, "tokens"),
        ({"batch_tokens": 100}, "batch"),
        ({"deadline_s": -1.0}, "deadline"),
        ({"methods": ()}, "methods"),
        ({"methods": ("loRa",)}, "method"),
        ({"precisions": ("fp7",)}, "precision"),
        ({"model": "llama-9"}, "llama-9"),
    ],
)
def test_a_goal_that_makes_no_sense_is_refused(bad, what):
    with pytest.raises(WorkbookError, match=what):
        TrainGoal(**{"model": "llama-3.1-8b", **bad})


@pytest.mark.parametrize("bad", [{"count": 0}, {"count": 2.5}, {"card": "h1000"}, {"network_bytes_per_s": 0}])
def test_cards_that_make_no_sense_are_refused(bad):
    with pytest.raises(WorkbookError):
        Cards(**{"card": "h100", "count": 8, **bad})


def test_no_cards_and_types_without_a_price_are_refused():
    with pytest.raises(WorkbookError, match="no cards"):
        answer(fleet=[])
    with pytest.raises(WorkbookError, match="no price"):
        answer(fleet=[Cards("h100", 8), Cards("v100", 8)])
    with pytest.raises(WorkbookError, match="twice"):
        answer(fleet=[Cards("h100", 8), Cards("h100", 4)])


def test_a_mixture_of_experts_trains_with_its_experts_on_several_ranks():
    found = answer(TrainGoal("mixtral-8x7b", tokens=10**10), [Cards("h100", 64, 2.0)])
    assert any(plan.layout.expert > 1 for plan in found.plans)
    assert all(plan.need.total <= plan.cards.room.for_tensors_bytes for plan in found.plans)
    tried = training_layouts(TrainGoal("mixtral-8x7b", tokens=10**10), Cards("h100", 64, 2.0))
    assert {layout.engine for layout in tried} == set(StepEngine)


def test_a_mixture_s_step_computes_with_the_experts_that_a_token_meets():
    """Six times the active parameters for each token, and attention."""
    shape = model("mixtral-8x7b")
    flops = Job(shape, 2048).flops(Layout(StepEngine.MEGATRON)).total
    assert 1 < flops / (6 * 2048 * shape.active_parameters) < 1.05


def test_experts_travel_four_times_a_layer_and_their_gradients_around_fewer_ranks():
    job, cards = Job(model("mixtral-8x7b"), 4096), Cards("h100", 8, 2.0)
    alone, shared = Layout(StepEngine.MEGATRON, 8), Layout(StepEngine.MEGATRON, 8, expert=8)
    exact = Efficiency(link=Shares(1, 1, 1))
    sent = 4 * 32 * 2 * 2 * 4096 * 4096 * 7 / 8  # passes, layers, experts, BF16, tokens, hidden
    assert step_time(job, alone, cards, exact).expert_links.middle == 0
    assert step_time(job, shared, cards, exact).expert_links.middle == pytest.approx(sent / 450e9)
    dense = job.parameters - job.experts
    assert sent_bytes(job, shared)[0] == pytest.approx(6 * dense * 7 / 8)
    assert sent_bytes(job, alone)[0] == pytest.approx(6 * job.parameters * 7 / 8)


def test_the_slowest_stage_sets_the_pace():
    job, cards = Job(model("llama-3.1-405b"), 4096), Cards("h100", 1024, 2.0)
    uneven = step_time(job, Layout(StepEngine.MEGATRON, 8, 8, 16, micro_batches=64), cards, Efficiency())
    even = step_time(job, Layout(StepEngine.MEGATRON, 8, 8, 18, micro_batches=64), cards, Efficiency())
    assert uneven.products.middle / even.products.middle == pytest.approx(8 / 7)


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("name", ["gpt-oss-20b", "mixtral-8x7b", "gemma-2-9b"])
def test_every_model_of_the_catalogue_can_be_planned_whole_and_with_adapters(name, method):
    plan = answer(TrainGoal(name, methods=(method,)), [Cards("h200", 32, 2.0)]).plans[0]
    assert plan.need.total <= plan.cards.room.for_tensors_bytes


def test_beside_stacked_experts_adapters_are_on_attention_as_the_written_file_says():
    goal = TrainGoal("mixtral-8x7b", methods=("lora",))
    config = lora_config(answer(goal, [Cards("h200", 1, 2.0)]).plans[0], goal)
    assert config["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]


def test_a_delta_rule_is_planned_by_what_counts_it_alone():
    """Megatron's closed form would take its layers for plain attention."""
    goal = TrainGoal(
        {"model_type": "qwen3_5_text", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    )
    tried = {layout.engine for layout in training_layouts(goal, Cards("h100", 8, 2.0))}
    assert tried == {StepEngine.ZERO, StepEngine.FSDP2}


@pytest.mark.parametrize(("tokens", "most"), [(4096, 1), (8192, 2), (65536, 8)])
def test_a_sequence_is_shared_only_where_each_rank_keeps_as_many_tokens_as_in_published_recipes(tokens, most):
    goal = TrainGoal("llama-3.1-70b", tokens=10**9, sequence=tokens)
    assert max(layout.context for layout in training_layouts(goal, Cards("h100", 64))) == most
