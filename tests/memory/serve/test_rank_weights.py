"""What one rank holds under tensor parallelism: figures by hand and from vLLM's logs, sums over ranks, refusals."""

import pytest

from helpers.catalog import MODELS, ServeSetup, WorkbookError, model
from helpers.memory import budget
from helpers.memory.serve.rank_weights import rank_read_bytes, rank_shape, rank_weight_bytes

GIB, BF16_BYTES = 2**30, 2
# Llama-3-8B by hand: all but the 65 norms of 4,096 is divided.
DIVIDED = 2 * 128256 * 4096 + 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
NORMS = 65 * 4096


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weights", ["bf16", "int8", "nf4-dq", "int4-g128", "mxfp4"])
def test_one_rank_holds_and_reads_what_the_budget_says(name, weights):
    for users in (1, 64, 2**20):
        setup = ServeSetup(name, weights, users=users, context=512)
        assert rank_weight_bytes(setup, 1) == budget.weight_bytes(setup)
        read = budget.decode_bytes(setup) - budget.serve(setup).held["kv_cache"]
        assert rank_read_bytes(setup, 1) == read
    assert rank_shape(setup.model, 1) is setup.model


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_llama_3_8b_by_hand(ranks):
    setup = ServeSetup("llama-3-8b", context=512)
    assert rank_weight_bytes(setup, ranks) == 2 * (DIVIDED // ranks + NORMS)
    unread = 2 * 128255 * 4096  # of the embedding, but for one row
    assert rank_read_bytes(setup, ranks) == 2 * (DIVIDED // ranks + NORMS) - unread // ranks


def test_what_vllm_logged():
    assert f"{rank_weight_bytes(ServeSetup('llama-3-8b'), 2) / GIB:.2f}" == "7.48"  # vllm-project/vllm PR #10511
    # SGLang, Qwen3-235B on four GPUs: 94 layers, 4 KV heads, 367,404 tokens, K 8.23 GiB (vllm-project/vllm #21348).
    config = {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
    }
    assert f"{rank_shape(model(config), 4).kv_values(367_404) / 2 * BF16_BYTES / GIB:.2f}" == "8.23"


def test_heads_that_are_repeated_bring_their_projections():
    setup = ServeSetup("qwen2.5-1.5b")  # 12 query heads, 2 KV heads of 128, width 1,536, 28 layers
    repeated = 4 * rank_weight_bytes(setup, 4) - rank_weight_bytes(setup, 2) * 2
    whole = 2 * (28 * (2 * 1536 + 12 * 128 + 2 * 2 * 128) + 1536)  # norms, biases of q, k and v: BF16
    assert repeated == 2 * (28 * 2 * 1536 * 256) + 2 * whole
    assert [rank_shape(setup.model, ranks).kv_heads for ranks in (1, 2, 4, 12)] == [2, 1, 1, 1]


def test_a_fused_projection_is_divided_by_heads():
    phi, ranks = ServeSetup("phi-4"), 20  # 40 query heads, 10 KV heads of 128 in one qkv_proj, width 5,120
    spared = rank_weight_bytes(phi, 20) - rank_weight_bytes(phi, 40)
    head = 2 * 5120 * 128
    layer = head * (2 - 1) + (2 * 5120**2 + 2 * 3 * 5120 * 17920) // 40  # queries; o_proj and MLP from a 20th to a 40th
    assert spared == 40 * layer + 2 * 2 * 100352 * 5120 // 40
    assert rank_shape(phi.model, ranks).kv_heads == 1


def test_a_latent_and_the_way_down_to_it_are_whole():
    setup = ServeSetup("deepseek-v3", weights="bf16")
    assert rank_shape(setup.model, 8) == setup.model
    whole = 8 * rank_weight_bytes(setup, 8) - rank_weight_bytes(setup, 1)
    down = 2 * 61 * 7168 * (1536 + 576)
    assert 7 * down < whole < 7 * (down + 2 * 61 * (7168 * 256 + 2 * 7168 + 1536 + 512 + 256) + 2 * 7168)


def test_positions_are_whole_and_not_read():
    setup = ServeSetup("opt-13b", context=512)
    held, read = (of(setup, 4) for of in (rank_weight_bytes, rank_read_bytes))
    assert held - read == 2 * 2050 * 5120


def test_more_ranks_never_hold_more():
    for name in MODELS:
        setup = ServeSetup(name, "nf4-dq", context=512)
        sizes = [rank_weight_bytes(setup, ranks) for ranks in (1, 2, 4, 8) if fits(setup.model, ranks)]
        assert sizes == sorted(sizes, reverse=True)
        reads = [rank_read_bytes(setup, ranks) for ranks in (1, 2, 4, 8) if fits(setup.model, ranks)]
        assert reads == sorted(reads, reverse=True)


def fits(shape, ranks):
    try:
        return bool(rank_shape(shape, ranks))
    except WorkbookError:
        return False


BAD = [
    ("gpt2", 8, "pass tensor_parallel=6"),
    ("phi-4", 4, "10 KV heads, which 4 ranks cannot share"),
    ("gemma-3-1b", 8, "of 1, 2, 4"),
    ("deepseek-v3", 3, "128 query heads"),
    ("llama-3-8b", 0, "tensor_parallel is 0"),
    ("llama-3-8b", True, "tensor_parallel is True"),
    ("llama-3-8b", 2.0, "tensor_parallel is 2.0"),
    ("llama-3-8b", 2048, "from 1 to 1,024"),
]


@pytest.mark.parametrize(("name", "ranks", "told"), BAD)
@pytest.mark.parametrize("asked", [rank_weight_bytes, rank_read_bytes])
def test_bad_input(name, ranks, told, asked):
    setup = ServeSetup(name, context=512)
    for call in (lambda: asked(setup, ranks), lambda: rank_shape(setup.model, ranks)):
        with pytest.raises(WorkbookError, match=told):
            call()


def test_a_family_known_only_to_transformers_is_refused_on_two_ranks():
    config = {
        "model_type": "gpt_neox",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 99,
    }
    setup = ServeSetup(config)
    assert rank_weight_bytes(setup, 1) == budget.weight_bytes(setup)
    with pytest.raises(WorkbookError, match="how the family 'gpt_neox' is divided"):
        rank_weight_bytes(setup, 2)
