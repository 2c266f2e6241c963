"""Experts on several ranks: Transformers' own block in one process, capacity, drops, and bytes."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from helpers.catalog import WorkbookError
from helpers.catalog import model as shape
from helpers.memory.step.ranks.zero import Collective, Traffic
from helpers.techniques.parallel import formula
from helpers.techniques.parallel.experts import route
from tests.techniques.parallel import expert_cases as cases
from tests.techniques.parallel.split_cases import calls_of

NO_DROPS = 8 / 2  # experts / experts per token


@pytest.fixture(params=[2, 4])
def ranks(request):
    return request.getfixturevalue(f"ranks{request.param}")


def test_loss_and_gradients_are_those_of_one_process_with_all_tokens(ranks):
    want, (router, gate_up, down), inputs = cases.moe_alone(ranks.count)
    for rank, (loss, gradients, x, dropped) in enumerate(ranks.run(cases.moe_together, NO_DROPS)):
        assert dropped == 0
        assert loss == pytest.approx(want, rel=1e-6)
        mine = [router, gate_up.chunk(ranks.count)[rank], down.chunk(ranks.count)[rank]]
        for got, whole in zip([*gradients, x], [*mine, inputs[rank]], strict=True):
            assert_close(got, whole, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.25])
def test_what_is_beyond_capacity_adds_nothing_and_is_counted(ranks2, factor):
    room = formula.capacity(20, 2, 8, factor)
    for rank, (output, dropped) in enumerate(ranks2.run(cases.moe_output, factor)):
        want, left_out = cases.moe_with_drops(rank, room)
        assert dropped == left_out > 0
        assert_close(output, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("factor", [1.0, NO_DROPS])
def test_ranks_hold_and_send_what_the_formula_says(ranks, factor):
    """Two all-to-alls a pass, of every slot, filled or not; nothing is gathered."""
    block = cases.moe()
    mlp = SimpleNamespace(experts=8, experts_per_token=2, expert_linears=[SimpleNamespace(inputs=12)])
    want = formula.expert_traffic(SimpleNamespace(mlp=mlp), 20, ranks.count, factor, value_bytes=8)
    router = block.gate.weight.nbytes
    share = sum(p.nbytes for p in block.experts.parameters()) // ranks.count
    for forward, backward, held in ranks.run(cases.moe_traffic, factor):
        assert forward == calls_of(want.forward)
        assert backward == calls_of(want.backward)
        assert held == router + share


def test_mixtral_sends_what_the_docstring_says():
    traffic = formula.expert_traffic(shape("mixtral-8x7b").layers[0], 4096, 8)
    assert [call.payload_bytes for call in traffic.step.of("all_to_all").calls] == [8 * 1280 * 4096 * 2] * 4


def of_experts(name: str, whole: torch.Tensor, rank: int, ranks: int) -> tuple[str, torch.Tensor]:
    """The divided model's name for one of a Mixtral's parameters, and what rank `rank` has of it."""
    name = "model." + name.replace("mlp.gate.", "mlp.router.")
    if ".experts." not in name:
        return name, whole
    return name.replace("experts.gate_up_proj", "gate_up").replace("experts.down_proj", "down"), whole.chunk(ranks)[
        rank
    ]


def test_a_whole_model_has_loss_and_gradients_of_one_process_with_all_tokens(ranks):
    want, gradients = cases.model_alone(ranks.count)
    for rank, (loss, parts, dropped) in enumerate(ranks.run(cases.model_together, NO_DROPS)):
        assert dropped == [0, 0]
        assert loss == pytest.approx(want, rel=1e-6)
        mine = dict(of_experts(name, whole, rank, ranks.count) for name, whole in gradients.items())
        assert parts.keys() == mine.keys()
        for name, got in parts.items():
            assert_close(got, mine[name], rtol=1e-6, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("factor", [1.0, NO_DROPS])
def test_a_whole_model_holds_and_sends_what_the_formula_says(ranks, factor):
    model = shape(cases.mixtral().config)
    routed = [shape for shape in model.tensors() if len(shape) == 3]  # experts, outputs, inputs
    whole = [prod(shape) for shape in model.tensors() if len(shape) < 3]  # on every rank, and added over all
    size = 8 * (sum(whole) + sum(map(prod, routed)) // ranks.count)
    layers = [formula.expert_traffic(layer, 2 * 9, ranks.count, factor, value_bytes=8) for layer in model.layers]
    sums = [Collective("all_reduce", 8 * values, ranks.count) for values in whole]
    sent = [call for layer in layers for call in layer.forward.calls]
    back = [*(call for layer in layers for call in layer.backward.calls), *sums]
    for held, forward, backward in ranks.run(cases.model_traffic, factor):
        assert held == {"parameters": size, "gradients": size}
        assert forward == calls_of(Traffic(tuple(sent)))
        assert backward == calls_of(Traffic(tuple(back)))


def test_a_model_without_experts_or_with_another_factor_is_told(ranks2):
    with pytest.raises(WorkbookError, match="a LlamaForCausalLM's experts are not divided here"):
        ranks2.run(cases.llama_of_experts)
    with pytest.raises(WorkbookError, match="rank 1 has capacity_factor = 2, and rank 0 has 1"):
        ranks2.run(cases.different_factors)


def test_slots_are_filled_first_come_first_served():
    routed = route(torch.tensor([[0, 1], [0, 1], [0, 2]]), experts=3, capacity=2)
    assert routed.kept.tolist() == [True, True, True, True, False, True]
    assert routed.slots.tolist() == [0, 2, 1, 3, 4]
    assert routed.dropped == 1


def test_experts_that_do_not_divide_are_refused_with_what_would(ranks4):
    with pytest.raises(WorkbookError, match="4 ranks cannot share 6 experts") as error:
        ranks4.run(cases.moe_of, 6)
    assert "use 3 ranks" in error.value.what


def test_a_factor_that_is_none_is_refused():
    with pytest.raises(WorkbookError, match="capacity_factor is 0"):
        formula.capacity(20, 2, 8, 0)
