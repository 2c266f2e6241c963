"""Tiny models of every attention type, from Transformers configs, and a ragged batch to feed them."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

WINDOW = 16
COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 60,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GEMMA = {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 16}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
FAMILIES = {
    "llama-gqa": {"model_type": "llama", **COMMON, "num_key_value_heads": 2},
    "llama-mqa": {"model_type": "llama", **COMMON, "num_key_value_heads": 1},
    "gpt2-mha": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "vocab_size": 60,
        "n_positions": 512,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "qwen3-head-dim": {"model_type": "qwen3", **COMMON, "num_key_value_heads": 2, "head_dim": 24},
    "gemma2-hybrid": {"model_type": "gemma2", **COMMON, **GEMMA},
    "gemma3-hybrid": {"model_type": "gemma3_text", **COMMON, **GEMMA, "num_hidden_layers": 7},
    "mistral-window": {"model_type": "mistral", **COMMON, "num_key_value_heads": 2, "sliding_window": WINDOW},
    "deepseek-mla": {"model_type": "deepseek_v3", **COMMON, **LATENT},
}


class Batch(NamedTuple):
    ids: Tensor
    attention_mask: Tensor


@functools.cache
def tiny(family: str, attention: str | None = None):
    """The model, FP32, with weights of one seed and its usual attention. Shared: tests do not change it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**FAMILIES[family])
    if family == "deepseek-mla":
        config._experts_implementation = "batched_mm"  # the default takes BF16 only
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).eval()


def ragged(lengths: tuple[int, ...] = (41, 30, 7), seed: int = 1) -> Batch:
    """Random prompts of these lengths, padded on the left with zeros."""
    random, longest = torch.Generator().manual_seed(seed), max(lengths)
    mask = torch.stack([torch.arange(longest) >= longest - length for length in lengths]).long()
    return Batch(torch.randint(1, 60, mask.shape, generator=random) * mask, mask)


def generated(model, batch: Batch, cache, new_tokens: int) -> Tensor:
    """What `model.generate` itself makes of it, greedily, [rows, new tokens]."""
    found = model.generate(
        batch.ids,
        attention_mask=batch.attention_mask,
        past_key_values=cache,
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        pad_token_id=0,
    )
    return found[:, batch.ids.shape[1] :]
