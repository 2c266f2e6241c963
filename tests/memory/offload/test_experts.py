"""Experts that the host computes: bytes against the model's layers, seconds against each memory's rate."""

import pytest

from helpers.catalog import ServeSetup, device, tier
from helpers.catalog.errors import WorkbookError
from helpers.memory import offload
from helpers.memory.serve.engines.llamacpp import LlamaCpp
from helpers.memory.serve.engines.llamacpp_layers import sizes_of
from helpers.memory.serve.weights import weight_bytes


@pytest.mark.parametrize(
    ("name", "weights"), [("gpt-oss-120b", "mxfp4"), ("mixtral-8x7b", "bf16"), ("deepseek-v3", "bf16")]
)
def test_card_and_host_hold_all_weights_and_the_host_what_llama_cpp_calls_experts(name, weights):
    setup = ServeSetup(name, weights=weights, context=512)
    found = offload.experts_on_host(setup, "rtx-4090", "desktop-dram")
    assert found.card_bytes + found.host_bytes == weight_bytes(setup)
    assert found.host_bytes == pytest.approx(sum(sizes_of(LlamaCpp(setup)).experts), rel=1e-9)


@pytest.mark.parametrize(("users", "chosen"), [(1, 4), (2, 8), (31, 124), (32, 128), (33, 128), (1000, 128)])
def test_users_choose_other_experts_until_all_are_read(users, chosen):
    setup = ServeSetup("gpt-oss-120b", weights="mxfp4", users=users, context=512)
    found = offload.experts_on_host(setup, "rtx-4090", "desktop-dram")
    assert found.read_bytes == found.host_bytes * chosen // 128
    assert found.sent_bytes == users * 36 * 2880 * 2
    assert found.host_s == found.read_bytes / tier("desktop-dram").read_bytes_per_s
    assert found.link_s == 2 * found.sent_bytes / device("rtx-4090").link_bytes_per_s("pcie")
    assert found.step_s == pytest.approx(found.card_s + found.host_s + found.link_s)


def test_what_the_host_does_not_read_the_card_does():
    setup = ServeSetup("gpt-oss-120b", weights="mxfp4", context=512)
    found, card = offload.experts_on_host(setup, "rtx-4090", "desktop-dram"), device("rtx-4090")
    whole = offload.streamed(setup, card).resident_s
    assert found.card_s + found.read_bytes / card.memory_bytes_per_s == pytest.approx(whole)


def test_a_dense_model_has_no_experts():
    with pytest.raises(WorkbookError, match="llama-3-8b has no experts"):
        offload.experts_on_host(ServeSetup("llama-3-8b"), "rtx-4090", "desktop-dram")
