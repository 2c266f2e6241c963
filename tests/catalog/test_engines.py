"""Engines by name and version: what each version takes by default, and what is refused."""

from __future__ import annotations

import pytest

from helpers.catalog import device
from helpers.catalog.engines import ENGINES, engine
from helpers.catalog.errors import WorkbookError


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
        ("vllm", "0.9", "from 0.15 on"),
        ("vllm", "new", "from 0.15 on"),
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
