"""Engines by name and version: what each version takes by default, and what is refused."""

from __future__ import annotations

import pytest

from helpers.catalog import ServeSetup, device
from helpers.catalog.engines import ENGINES, engine, require_card, require_served
from helpers.catalog.errors import WorkbookError
from helpers.memory.serve.engines.vllm import launch


@pytest.mark.parametrize(
    ("version", "share", "graphs"),
    [("0.15.1", 0.9, False), ("0.19.0", 0.9, False), ("v0.20", 0.92, True), ("0.33.0", 0.92, True), (None, 0.92, True)],
)
def test_vllm_s_share_is_its_config_s_default_of_that_version(version, share, graphs) -> None:
    found = engine("vLLM", version)
    assert (found.share, found.graphs_in_share, found.block_tokens) == (share, graphs, 16)


@pytest.mark.parametrize(
    ("card", "version", "batch"),
    [
        ("h100", "0.19", (8192, 1024)),
        ("a100-80gb", "0.19", (2048, 256)),  # by name: pull request 17885
        ("rtx-4090", "0.19", (2048, 256)),
        ("b200", "0.19", (8192, 1024)),
        ("b200", "0.33", (16384, 1024)),
    ],
)
def test_batches_are_those_of_get_batch_defaults(card, version, batch) -> None:
    assert engine("vllm", version).batch(device(card)) == batch


def test_every_engine_says_where_its_figures_are_from() -> None:
    assert all(engine(name).source for name in ENGINES)
    assert engine("transformers").share is None


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("vlm", None, "did you mean 'vllm'"),
        ("vllm", "0.9", "from 0.15 to 0.33"),
        ("vllm", "new", "from 0.15 to 0.33"),
        ("vllm", "0.34", "from 0.15 to 0.33"),
        ("vllm", "9.9", "from 0.15 to 0.33"),
        ("sglang", "0.6", "expected: 0.5.23"),
        ("transformers", "5.0", "no version"),
        (None, None, "engine"),
    ],
)
def test_what_is_not_known_is_refused(name, version, told) -> None:
    with pytest.raises(WorkbookError, match=told):
        engine(name, version)


def test_bytes_alive_for_each_logit_of_the_profile_run() -> None:
    """Sorted until 0.16; then 2 + 4 + 4 + 4; and 4 of a count for each token from the second runner on."""
    assert [engine("vllm", version).sampler_bytes for version in ("0.16", "0.17", "0.22", "0.33")] == [38, 14, 14, 18]


def test_a_patch_of_the_newest_version_is_known() -> None:
    assert engine("vllm", "0.33.2").version == "0.33.2"


@pytest.mark.parametrize(
    ("name", "setup", "told"),
    [
        ("vllm", {"drafts": 3}, "3 drafts with vllm"),
        ("sglang", {"drafts": 1}, "1 drafts with sglang"),
        ("llama.cpp", {"weights": "awq-int4"}, "name the GGUF file"),
        ("llama.cpp", {"weights": "gptq-int4"}, "name the GGUF file"),
        ("llama.cpp", {"weights": "fp8-e4m3"}, "name the GGUF file"),
    ],
)
def test_what_an_engine_has_not_or_nobody_counts_is_refused(name, setup, told) -> None:
    with pytest.raises(WorkbookError, match=told):
        require_served(name, ServeSetup("qwen3-8b", **setup))


def test_what_llama_cpp_converts_and_counts_is_served() -> None:
    for weights in ("bf16", "fp16"):
        require_served("llama.cpp", ServeSetup("qwen3-8b", weights=weights, drafts=2))
    require_served("llama.cpp", ServeSetup("gpt-oss-20b"))


@pytest.mark.parametrize(("card", "weights"), [("t4", "fp8-e4m3"), ("v100", "fp16"), ("v100", "awq-int4")])
def test_weights_that_a_card_serves(card, weights) -> None:
    require_card("vllm", device(card), weights)


def test_a_v100_serves_no_weights_in_fp8() -> None:
    """get_min_capability in vLLM's fp8.py is 75."""
    with pytest.raises(WorkbookError, match=r"7\.5 or more"):
        require_card("vllm", device("v100"), "fp8-e4m3")
    with pytest.raises(WorkbookError, match=r"7\.5 or more"):
        launch(ServeSetup("qwen3-8b", weights="fp8-e4m3"), engine("vllm"), "v100")
