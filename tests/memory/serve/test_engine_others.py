"""SGLang's static memory by its own rule, llama.cpp's cells and buffers as its logs have them."""

from __future__ import annotations

import pytest

from helpers.catalog import ServeSetup, device
from helpers.catalog.errors import WorkbookError
from helpers.memory.serve.engines.llamacpp import LlamaCpp
from helpers.memory.serve.engines.sglang import SglangLaunch

MIB = 2**20


def logged(served: LlamaCpp, kv_heads: int, head_dim: int) -> list[tuple[int, float]]:
    """Cells, and MiB of K and V in 16 bits, of each of the two caches."""
    return [(cells, cells * layers * 2 * kv_heads * head_dim * 2 / MIB) for cells, layers in served.cells]


def test_cells_are_those_that_llama_cpp_logs() -> None:
    """Its lines "llama_kv_cache: size": gpt-oss-20b with one slot, Gemma-2-2B with four that share 8,192 cells."""
    one = LlamaCpp(ServeSetup("gpt-oss-20b", context=131_072))
    assert logged(one, 8, 64) == [(131_072, 3072.0), (768, 18.0)]
    assert one.kv_bytes == 3090 * MIB
    four = LlamaCpp(ServeSetup("google/gemma-2-2b", users=4, context=2048))
    assert logged(four, 4, 256) == [(8192, 416.0), (8192, 416.0)]
    assert LlamaCpp(ServeSetup("llama-3-8b", context=2048)).kv_bytes == 256 * MIB
    assert LlamaCpp(ServeSetup("llama-3-8b", context=2047)).kv_bytes == 256 * MIB  # in whole 256 cells


def test_logits_are_most_of_the_compute_buffer() -> None:
    """Llama-3-8B with n_ubatch 512 logs 258.50 MiB."""
    found = LlamaCpp(ServeSetup("llama-3-8b")).logit_bytes / MIB
    assert found == 250.5
    assert 0.96 < found / 258.5 < 1
    assert LlamaCpp(ServeSetup("llama-3-8b", prefill_tokens=1024)).logit_bytes / MIB == 501


@pytest.mark.parametrize(
    ("card", "tensor", "mib"),
    [
        ("h100", 1, 512 + 1.5 * 8192 + 128 + 2 * 256 + 8 * 58),
        ("h100", 8, 512 + 1.5 * 8192 + 1024 + 2 * 512 + 8 * 58),
        ("rtx-4090", 1, 512 + 1.5 * 4096 + 128 + 2 * 48 + 8 * 50),
    ],
)
def test_sglang_s_rule_by_hand(card: str, tensor: int, mib: float) -> None:
    """memory_hook.py of 0.5.23; 58 and 50 sizes of a prefill are captured up to 8,192 and 4,096 tokens."""
    found = SglangLaunch(ServeSetup("llama-3.1-8b"), device(card), tensor)
    assert found.reserved_bytes == round(mib * MIB)
    assert found.fraction == round(1 - mib * MIB / device(card).capacity_bytes, 3)


def test_a_large_card_keeps_ten_gib_at_least() -> None:
    few = SglangLaunch(ServeSetup("llama-3.1-8b", prefill_tokens=512), device("h100"))
    assert few.reserved_bytes == 10 * 2**30


def test_the_fraction_is_of_what_is_free() -> None:
    half = SglangLaunch(ServeSetup("llama-3.1-8b"), device("h100"), share=0.5)
    assert half.pool_bytes + half.weight_bytes == half.free_bytes // 2
    assert half.tokens == half.pool_bytes // (32 * 2 * 8 * 128 * 2)
    assert half.users == half.tokens // 2048


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: SglangLaunch(ServeSetup("gpt-oss-20b"), device("h100")), "splits its pool"),
        (lambda: SglangLaunch(ServeSetup("llama-3.1-8b"), device("h100"), share=1), "a fraction of the free memory"),
        (lambda: SglangLaunch(ServeSetup("llama-3.1-8b"), device("h100"), 0), "tensor"),
    ],
    ids=["windows", "share", "ranks"],
)
def test_what_is_not_known_is_refused(make, told: str) -> None:
    with pytest.raises(WorkbookError, match=told):
        make()
