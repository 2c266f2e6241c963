"""Every policy on every model, traced and measured; PyTorch's memory budget beside ours; deep chains."""

import pytest
import torch

from helpers.techniques.checkpointing import (
    LayerChoice,
    LayerCost,
    activation_memory_budget,
    checkpointed,
    flops_of,
    layer_costs,
    layout,
    least_bytes,
    pareto_plans,
    price,
    solve,
)
from tests.techniques.checkpointing.models import (
    IDS_BYTES,
    LAYERS,
    NAMES,
    POLICIES,
    chain,
    decoder,
    flops_with,
    forward_of,
    measured_and_traced,
    saved_bytes,
)

pytestmark = pytest.mark.slow
UNPRICED = ("module", "offload", "selective:every-second")  # `price` refuses them: it measures one layer in four ways
MODELS = [NAMES[0], *(pytest.param(name, marks=pytest.mark.all) for name in NAMES[1:])]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", POLICIES)
def test_traced_as_measured_to_the_byte(name, policy):
    real, found = measured_and_traced(name, policy)
    assert real.saved_bytes - found.saved_bytes in (0, IDS_BYTES)
    assert found.peak_bytes - real.peak_bytes in (0, IDS_BYTES)
    assert real.peak.name == found.peak.name


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", [name for name in POLICIES if not name.startswith(UNPRICED)])
def test_costs_of_one_layer_predict_all_policies(name, policy):
    """Saved bytes to the byte, as differences: what lies outside the layers drops out. FLOPs to the FLOP.

    Llama's and Qwen's position ids (512 bytes) are an argument of each layer: no plain step needs them in backward, and
    a checkpoint holds them for its second run.
    """
    model = decoder(name)
    forward = forward_of(model)
    layers = layer_costs(model, forward)
    plain, found = (price(layers, layout(one, LAYERS)) for one in ("none", policy))
    kept = saved_bytes(model, forward)
    with checkpointed(model, policy):
        fewer = saved_bytes(model, forward) - kept
    assert fewer - (found.stored_bytes - plain.stored_bytes) == (512 if name != "gpt2" and policy != "none" else 0)
    plain_flops, flops = flops_with(model, lambda: forward().backward(), policy)
    assert flops - plain_flops == found.recompute_flops
    model.zero_grad(set_to_none=True)


def test_pytorchs_memory_budget_falls_with_the_fraction_and_pays_in_flops():
    model, x = chain(4, dropout=0.0, width=64, hidden=256), torch.randn(64, 64)
    plain = flops_of(lambda: model(x).sum().backward())
    half, none = (
        activation_memory_budget(model, lambda compiled: compiled(x).sum(), fraction) for fraction in (0.5, 0.0)
    )
    assert none.saved_bytes == x.nbytes
    assert none.saved_bytes < half.saved_bytes
    assert none.flops > half.flops >= plain
    with checkpointed(model, "every:4"):  # one segment: its input kept, as at fraction 0
        ours = flops_of(lambda: model(x).sum().backward())
    assert none.flops <= ours


def test_a_chain_of_eighty_layers_is_solved():
    layer = LayerCost(
        16,
        364,
        False,
        898,
        {"none": LayerChoice(364, 466), "full": LayerChoice(16, 513, 713), "selective": LayerChoice(198, 498, 0)},
    )
    layers = [layer] * 80
    plans = pareto_plans(layers, points=8)
    for policy in ("full", "sqrt-n", "every:2", "first:40"):
        theirs = price(layers, layout(policy, 80))
        assert solve(layers, theirs.peak_bytes).price.recompute_flops <= theirs.recompute_flops
    assert plans[0].price.peak_bytes == least_bytes(layers)
