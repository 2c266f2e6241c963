"""A served model whose layers arrive: bytes against its weights, work against what a step reads and computes."""

from dataclasses import replace

import pytest

from helpers.catalog import ServeSetup, device, tier
from helpers.catalog.errors import WorkbookError
from helpers.memory import budget, offload
from helpers.memory.serve.weights import weight_bytes
from helpers.techniques.kv_cache.prefill_decode import phases


@pytest.mark.parametrize("weights", ["bf16", "fp8-e4m3", "nf4"])
@pytest.mark.parametrize("model", ["llama-3-8b", "gpt2", "mixtral-8x7b", "llama-3.2-1b"])
def test_layers_and_root_are_all_the_weights(model, weights):
    setup = ServeSetup(model, weights=weights, context=512)
    found = offload.streamed(setup, "h100")
    assert found.host_bytes + found.root_bytes == weight_bytes(setup)
    assert found.device_bytes == found.root_bytes + 2 * max(found.layers_bytes)
    assert replace(found, buffers=1).device_bytes == found.root_bytes + max(found.layers_bytes)
    assert all(size > 0 for size in (*found.layers_bytes, found.root_bytes))


def test_a_decode_step_is_the_link_s():
    found = offload.streamed(ServeSetup("llama-3-8b"), "h100")
    assert (found.layers_bytes[0], len(found.layers_bytes)) == (436_224_000, 32)
    assert found.copies_s[0] == pytest.approx(436_224_000 / 64e9)
    assert found.computes_s[0] == pytest.approx(436_224_000 / 3.35e12, rel=0.03)  # and the cache of one user
    assert (found.is_hidden, found.overlapped_s) == (False, pytest.approx(0.21856, rel=1e-4))
    assert found.exposed_s == pytest.approx(found.overlapped_s - found.resident_s)


def test_a_layer_hides_its_copy_from_the_break_even_batch_on():
    even = offload.break_even_tokens(device("h100").flops_per_s("bf16"), 64e9)
    below, above = (
        offload.streamed(ServeSetup("llama-3-8b", users=users, context=64), "h100", offload.PREFILL)
        for users in (int(even / 64 * 0.97), int(even / 64 * 1.03))
    )
    assert (below.is_hidden, above.is_hidden) == (False, True)
    assert above.exposed_s == pytest.approx(above.copies_s[0])
    assert not replace(above, buffers=1).is_hidden


@pytest.mark.parametrize("users", [1, 3, 64])
@pytest.mark.parametrize("weights", ["bf16", "fp8-e4m3", "nf4"])
@pytest.mark.parametrize("model", ["llama-3-8b", "gpt2", "mixtral-8x7b", "deepseek-v3", "gemma-2-9b", "opt-13b"])
def test_with_everything_resident_a_decode_step_reads_what_decode_bytes_says(model, weights, users):
    """Neither idle experts nor rows of the embedding that nobody looks up."""
    setup = ServeSetup(model, weights, users=users, context=128)
    floor_s = budget.decode_bytes(setup) / device("h100").memory_bytes_per_s
    assert offload.streamed(setup, "h100").resident_s == pytest.approx(floor_s, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "step", "context", "users"),
    [
        ("llama-3-8b", "prefill", 1024, 15),
        ("llama-3-8b", "decode", 1, 15_459),
        ("llama-3-8b", "decode", 1024, 5340),  # by then their keys and values take as long to read
        ("mixtral-8x7b", "prefill", 1024, 55),  # a token meets two of eight experts, and eight travel
        ("deepseek-v3", "prefill", 512, None),
    ],
)
def test_the_fewest_users_that_hide_the_link(model, step, context, users):
    setup = ServeSetup(model, context=context)
    rate = 1e3 if users is None else None
    assert offload.users_that_hide(setup, "h100", step, link_bytes_per_s=rate) == users
    if users:
        enough, few = (replace(setup, users=count) for count in (users, users - 1))
        assert offload.streamed(enough, "h100", step).is_hidden
        assert not offload.streamed(few, "h100", step).is_hidden


@pytest.mark.parametrize("model", ["llama-3-8b", "gpt2", "mixtral-8x7b", "deepseek-v3", "gemma-2-9b", "opt-13b"])
def test_the_layers_flops_are_those_of_both_phases(model):
    """MLA's widths, windows and the experts that a token meets are in both."""
    setup = ServeSetup(model, users=3, context=1500 if model in ("gemma-2-9b", "deepseek-v3") else 700)
    whole, layers = phases(setup), setup.model.layers
    head = 2 * setup.users * setup.model.vocab * setup.model.embedding_width
    for step, work in ((offload.PREFILL, whole.prefill), (offload.DECODE, whole.decode)):
        assert sum(offload.layer_work(setup, layer, step).flops for layer in layers) + head == work.flops


def test_a_layer_hides_the_copy_of_the_next_one_and_not_its_own():
    """DeepSeek-V3 with one dense layer and one of 256 experts, in either order."""
    whole = ServeSetup("deepseek-v3", context=512)
    dense, sparse = whole.model.layers[0], whole.model.layers[-1]
    found = {}
    for name, layers in (("dense first", (dense, sparse)), ("dense last", (sparse, dense))):
        found[name] = offload.users_that_hide(
            replace(whole, model=replace(whole.model, layers=layers)), "h100", "prefill"
        )
    assert found["dense first"] > 10 * found["dense last"]


def test_experts_that_a_token_does_not_meet_move_the_break_even_point():
    layer = ServeSetup("mixtral-8x7b").model.layers[0]
    active = (layer.mlp.active_parameters + layer.attention.parameters) / layer.parameters
    dense, sparse = offload.break_even_tokens(989.4e12, 64e9), offload.break_even_tokens(989.4e12, 64e9, active=active)
    assert sparse == pytest.approx(dense / 0.2717, rel=1e-3)
    found = offload.users_that_hide(ServeSetup("mixtral-8x7b", context=1), "h100", "prefill")
    assert found == pytest.approx(sparse, rel=1e-2)


def test_sixteen_bits_are_those_that_the_card_has():
    assert offload.compute_format(ServeSetup("gpt2", "nf4", context=8), "t4") == "fp16"
    assert offload.compute_format(ServeSetup("gpt2", "nf4", context=8), "h100") == "bf16"
    assert offload.compute_format(ServeSetup("gpt2", "bf16", context=8), "t4") == "bf16"  # which it refuses


def test_a_slower_tier_and_a_slower_card_stretch_both_sides():
    setup = ServeSetup("llama-3-8b", users=64, context=1024)
    disk = tier("990-pro").read_bytes_per_s
    fast, slow = (offload.streamed(setup, "h100", "prefill", link_bytes_per_s=rate) for rate in (64e9, disk))
    assert slow.copies_s[0] / fast.copies_s[0] == pytest.approx(64e9 / disk)
    half = offload.streamed(setup, "h100", "prefill", compute_efficiency=0.5)
    assert half.computes_s[0] == pytest.approx(2 * fast.computes_s[0])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: offload.streamed(ServeSetup("llama-3-8b"), "h100", "train"), "unknown step 'train'"),
        (lambda: offload.streamed(ServeSetup("llama-3-8b"), "m4-max"), "CPU and GPU share one memory"),
        (lambda: offload.streamed(ServeSetup("llama-3-8b"), "h100", compute_efficiency=2), "compute_efficiency is 2"),
        (lambda: offload.streamed(ServeSetup("llama-3-8b"), "h100", link_bytes_per_s=0), "link_bytes_per_s is 0"),
        (lambda: offload.streamed(ServeSetup("llama-3-8b"), "h100", buffers=0), "buffers is 0"),
        (lambda: offload.streamed(ServeSetup("llama-3-8b"), "m4-max", link_bytes_per_s=7e9), "share one memory"),
        (lambda: offload.streamed(ServeSetup("llama-3-8b", "bf16"), "t4"), "unknown rate"),
        (lambda: offload.users_that_hide(ServeSetup("llama-3-8b"), "h100", "train"), "unknown step 'train'"),
    ],
)
def test_bad_input(call, told):
    with pytest.raises(WorkbookError, match=told):
        call()
