"""An engine's memory against hand arithmetic, vLLM's logs and its source; launches are scored in accuracy/."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.catalog import ServeSetup, device, model
from helpers.catalog.engines import engine
from helpers.catalog.errors import WorkbookError
from helpers.memory.serve.engines import pages as engine_pages
from helpers.memory.serve.engines import weights as engine_weights
from helpers.memory.serve.engines.pages import pages_of
from helpers.memory.serve.engines.vllm import Launch, launch
from helpers.memory.serve.engines.weights import rank_weight_bytes, rope_tables, stage_layers

GIB, MIB = 2**30, 2**20
V19 = engine("vllm", "0.19")


def test_pages_of_llama_by_hand() -> None:
    pages = pages_of(model("llama-3.1-8b"), "bf16", 16)
    assert pages.block_bytes == 32 * 16 * 2 * 8 * 128 * 2
    assert pages.tokens(29_751) == 476_016  # as logged on an H100
    assert pages.users(29_751, 8192, 8192) == 58
    assert pages_of(model("llama-3.1-8b"), "fp8-e4m3", 16).block_bytes == pages.block_bytes // 2
    assert pages_of(model("llama-3.1-8b"), "bf16", 16, tensor=16).page_bytes == 16 * 2 * 128 * 2  # one head, repeated


def test_windows_are_groups_of_their_own() -> None:
    """vLLM logged 15,997 blocks and 36,560 tokens for Gemma-3-27B; a window takes 1,023 + 8,192 tokens and a block."""
    pages = pages_of(model("gemma-3-27b-text"), "bf16", 16)
    assert [group.window for group in pages.groups] == [1024] * 6 + [None]
    assert {group.layers for group in pages.groups} == {10}
    assert pages.tokens(15_997) == 36_560
    assert pages.groups[0].blocks(8192, 16, 8192) == 512 + 1
    assert pages.groups[0].blocks(131_072, 16, 8192) == 576 + 1
    assert pages.users(15_997, 8192, 8192) == 4  # 4.46 logged


def test_nearly_equal_kinds_are_padded_to_the_larger() -> None:
    layers = model("gpt-oss-20b").layers
    odd = replace(model("gpt-oss-20b"), layers=(*layers, layers[1]))  # 12 windows and 13 without
    assert [group.layers for group in pages_of(odd, "bf16", 16).groups] == [13, 13]


def test_pieces_of_llama_4_are_cached_whole() -> None:
    config = {"model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40}
    assert [group.layers for group in pages_of(model(config), "bf16", 16).groups] == [48]


def test_a_latent_is_whole_on_every_rank() -> None:
    assert pages_of(model("deepseek-v3"), "bf16", 16, tensor=8).page_bytes == 16 * 576 * 2


@pytest.mark.parametrize(
    ("name", "tensor", "pipeline", "stage", "gib"),
    [
        ("llama-3.1-8b", 1, 1, 0, 14.99),
        ("llama-3.1-8b", 4, 1, 0, 3.77),
        ("llama-3.1-8b", 1, 4, 0, 4.26),
        ("Qwen/Qwen2.5-7B-Instruct", 1, 1, 0, 14.25),
        ("Qwen/Qwen2.5-7B-Instruct", 4, 1, 0, 3.55),
        ("google/gemma-2-2b", 1, 1, 0, 4.90),
        ("qwen3-30b-a3b", 1, 1, 0, 56.88),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 1, 1, 0, 29.43),
        ("gpt-oss-20b", 1, 1, 0, 12.88),
    ],
)
def test_weights_are_what_vllm_logged(name, tensor, pipeline, stage, gib) -> None:
    assert rank_weight_bytes(ServeSetup(name), tensor, pipeline, stage) / GIB == pytest.approx(gib, rel=0.005)


def test_embedding_and_head_stand_on_their_own_stages() -> None:
    setup, tied = ServeSetup("llama-3.1-8b"), ServeSetup("llama-3.2-1b")
    first, middle, last = (rank_weight_bytes(setup, 1, 4, stage) for stage in (0, 1, 3))
    assert first - middle == 128_256 * 4096 * 2
    assert last - first == 8192  # the final norm
    assert rank_weight_bytes(tied, 1, 2, 1) - rank_weight_bytes(tied, 1, 2, 0) == 4096  # a tied table is on both


@pytest.mark.parametrize(("pipeline", "counts"), [(3, [9, 10, 9]), (5, [5, 6, 6, 6, 5]), (8, [3, 3, 3, 4, 4, 4, 4, 3])])
def test_layers_left_over_go_before_the_last_stage(pipeline, counts) -> None:
    """get_pp_indices in vllm/distributed/utils.py: from the last but one backwards."""
    assert [len(stage_layers(model("qwen2.5-7b"), pipeline, stage)) for stage in range(pipeline)] == counts


def test_a_rope_table_has_factor_times_the_positions() -> None:
    config = dict(model("gemma-3-27b-text").config)
    scaled = model({**config, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})
    assert list(rope_tables(scaled)) == [8 * 131_072 * 128, 131_072 * 128]
    assert list(rope_tables(model("llama-3.1-8b"))) == [131_072 * 128]
    assert list(rope_tables(model("gpt2"))) == []


def test_experts_in_mxfp4_are_padded_between_ranks(monkeypatch) -> None:
    """2,880 columns are 1,440 on each of two ranks, for which 1,536 are held."""
    setup, added = ServeSetup("gpt-oss-20b"), 24 * 32 * 3 * 2880 * 96 * 17 // 32
    monkeypatch.setattr(engine_weights, "unsplit", lambda size: 0)
    padded = rank_weight_bytes(setup, 2)
    monkeypatch.setattr(engine_weights, "PADDED_COLUMNS", 1)
    assert padded - rank_weight_bytes(setup, 2) == pytest.approx(added, rel=0.001)


def test_sampling_is_fourteen_bytes_a_logit() -> None:
    """Qwen3-8B: 2.21 GiB logged. 14 x 1,024 x 151,936, a row for each of 132 multiprocessors, hidden states."""
    by_hand = 14 * 1024 * 151_936 + 132 * 151_936 * 4 + 8192 * 4096 * 2 + 2 * 1024 * 4096 * 2 + 32 * MIB
    found = launch(ServeSetup("qwen3-8b"), V19, "h100")
    assert found.profile_bytes == by_hand
    assert found.profile_bytes / GIB == pytest.approx(2.21, abs=0.01)
    few = launch(ServeSetup("qwen3-8b"), V19, "h100", max_seqs=8)
    assert few.profile_bytes < found.profile_bytes / 2


def test_older_versions_sort() -> None:
    """5.64 GiB logged for Qwen3-14B by 0.15 and 0.16."""
    found = launch(ServeSetup("Qwen/Qwen3-14B"), engine("vllm", "0.16"), "h100", share=0.95)
    assert found.profile_bytes / GIB == pytest.approx(5.64, rel=0.01)


def test_the_first_stage_of_a_pipeline_samples_nothing() -> None:
    stages = launch(ServeSetup("llama-3.1-8b"), V19, "h100", pipeline=2, share=0.95)
    assert stages.profile_bytes / GIB == pytest.approx(1.1, rel=0.05)
    assert stages.blocks == pytest.approx(67_207, rel=0.001)  # of the last stage, which has fewer


def test_graphs_are_in_the_share_from_0_20_on() -> None:
    before, after = (launch(ServeSetup("qwen3-8b"), engine("vllm", v), "h100", share=0.9) for v in ("0.19", "0.20"))
    assert before.pool_bytes - after.pool_bytes == before.graph_bytes
    assert before.graph_bytes / GIB == pytest.approx(0.96, rel=0.05)  # as logged


def test_a_share_is_one_of_the_whole_card() -> None:
    with pytest.raises(WorkbookError) as told:
        launch(ServeSetup("qwen3-8b"), V19, "h100", share=0.995)
    assert "are free" in told.value.what
    assert told.value.do == "pass 0.99 or less"
    assert launch(ServeSetup("qwen3-8b"), V19, "h100", share=0.99).pool_bytes > 0
    with pytest.raises(WorkbookError, match=r"pass 0\.98 or less"):
        launch(ServeSetup("qwen3-8b"), V19, "h100", tensor=2, share=0.99)  # with NCCL's buffers


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"share": 0}, "share"),
        ({"share": "most"}, "share"),
        ({"tensor": 3}, "cannot share evenly"),
        ({"tensor": 0}, "tensor"),
        ({"pipeline": 33}, "pipeline"),
        ({"max_seqs": 0}, "max_seqs"),
    ],
)
def test_bad_input_is_told(bad, told) -> None:
    with pytest.raises(WorkbookError, match=told):
        _ = launch(ServeSetup("llama-3.1-8b"), V19, "h100", **bad).tokens


def test_a_card_that_no_log_is_from_is_refused() -> None:
    with pytest.raises(WorkbookError, match="a card of NVIDIA's"):
        launch(ServeSetup("llama-3.1-8b"), V19, "mi300x")


def test_an_engine_without_a_share_has_no_pool() -> None:
    with pytest.raises(WorkbookError, match="sets no share"):
        Launch(ServeSetup("llama-3.1-8b"), engine("transformers"), device("h100"))


@pytest.mark.parametrize(
    ("name", "block", "padded"), [("Qwen/Qwen3-Next-80B-A3B", 544, 0.0149), ("Qwen/Qwen3.5-27B", 784, 0.0013)]
)
@pytest.mark.parametrize("tensor", [1, 2])
def test_blocks_of_a_hybrid_are_those_that_vllm_sets(name, block, padded, tensor) -> None:
    """Its lines "Setting attention block size to 544 tokens" and "Padding mamba page size by 1.49%"."""
    shape = model(name)
    pages = pages_of(shape, "bf16", 16, tensor)
    assert pages.block_tokens == block
    recurrent = next(layer.attention.state for layer in shape.layers if layer.attention.state)
    state = engine_pages._state_bytes(shape, recurrent, tensor)
    assert pages.page_bytes / state - 1 == pytest.approx(padded, abs=5e-5)


def test_tokens_of_a_hybrid_s_pool_are_those_that_were_logged() -> None:
    """Qwen3.5-27B: 6.76 GiB, 141 blocks, 27,440 tokens; 48 states and 16 attentions are four groups of 16 layers."""
    pages = pages_of(model("Qwen/Qwen3.5-27B"), "bf16", 16)
    assert [(group.layers, group.is_state) for group in pages.groups] == [(16, True)] * 3 + [(16, False)]
    assert pages.blocks(int(6.76 * GIB)) == 141
    assert pages.tokens(141) == 27_440
    assert pages.users(141, 784, 8192) == 141 // 4  # a page for each state and a block of tokens


def test_a_model_known_to_transformers_alone_is_counted_whole() -> None:
    """Phi-2 in FP16 on an H100: 5.19 GiB logged. Its stages and its shares on ranks are not known here."""
    setup = ServeSetup("microsoft/phi-2", weights="fp16")
    assert rank_weight_bytes(setup) / GIB == pytest.approx(5.19, rel=0.005)
    for ranks in ((2, 1), (1, 2)):
        with pytest.raises(WorkbookError, match="not known"):
            rank_weight_bytes(setup, *ranks)


@pytest.mark.parametrize("name", ["ibm-granite/granite-4.0-h-tiny", "deepseek-ai/DeepSeek-V3.2"])
def test_pages_with_more_than_keys_and_values_are_not_guessed(name) -> None:
    with pytest.raises(WorkbookError, match="pages are not known"):
        pages_of(model(name), "bf16", 16)


@pytest.mark.parametrize(
    ("version", "in_flight", "windowed"), [("0.20", 8192, None), ("0.25", 8192, 577), ("0.33", 16384, 1089)]
)
def test_tokens_that_newer_versions_log_are_users_times_their_context(version, in_flight, windowed) -> None:
    """kv_cache_utils.py of 0.21.0: int(max_concurrency * max_model_len); two forwards in flight from 0.26.0 on.

    Gemma-3-27B at 131,072 tokens: 8,192 full blocks, and in each of six groups (1,023 + 8,192) / 16, rounded up, and 1,
    or (1,023 + 16,384) / 16.
    """
    setup = ServeSetup("gemma-3-27b-text", context=131_072, prefill_tokens=8192)
    made = launch(setup, engine("vllm", version), "h200")
    assert made.in_flight_tokens == in_flight
    if windowed is None:
        assert made.tokens == made.blocks // 7 * 16
        return
    each = 8192 + 6 * windowed
    assert made.tokens == made.blocks * 131_072 // each
    assert made.users == made.blocks // each


def test_a_pipeline_keeps_a_forward_more_than_it_has_stages() -> None:
    assert launch(ServeSetup("gemma-3-27b-text"), engine("vllm"), "h200", pipeline=4).in_flight_tokens == 5 * 8192


@pytest.mark.parametrize(("version", "each"), [("0.25", 4), ("0.26", 7), ("0.33", 7)])
def test_a_hybrid_s_sequence_has_two_pages_of_states_where_prefixes_are_cached(version, each) -> None:
    """Qwen3.5-27B, 784 tokens: a block of its attention, and one or two pages in each of three groups of states."""
    made = launch(ServeSetup("Qwen/Qwen3.5-27B", context=784), engine("vllm", version), "h200")
    assert made.user_blocks == each
    assert (made.users, made.user_bytes) == (made.blocks // each, each * made.pages.block_bytes)
