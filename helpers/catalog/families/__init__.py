"""Closed forms: from a family's config to its tensors. One function per family, under `FAMILIES`.

    from helpers.catalog.families import FAMILIES
    FAMILIES["llama"](ConfigKeys("mine", config), "source").parameters

Each is checked against the model that Transformers builds from the same config, tensor by tensor. Defaults
are those of Transformers' config class for the family; the sizes that nobody should guess are required.
Imports ..config, ..parts and what they use; no torch.
"""

from __future__ import annotations

from collections.abc import Callable

from ..config import ConfigKeys
from ..shape import ModelShape
from .dense import gemma2, gemma3_text, gpt2, llama, mistral, mllama_text_model, opt, phi3, qwen2, qwen3, smollm3
from .experts import deepseek_v2, deepseek_v3, deepseek_v32, glm4_moe, gpt_oss, llama4_text, mixtral, qwen3_moe
from .hybrids import qwen3_5_moe_text, qwen3_5_text, qwen3_next

DENSE = (gemma2, gemma3_text, gpt2, llama, mistral, mllama_text_model, opt, phi3, qwen2, qwen3, smollm3)
EXPERTS = (deepseek_v2, deepseek_v3, deepseek_v32, glm4_moe, gpt_oss, llama4_text, mixtral, qwen3_moe)
HYBRIDS = (qwen3_5_moe_text, qwen3_5_text, qwen3_next)
_by_name = sorted((*DENSE, *EXPERTS, *HYBRIDS), key=lambda family: family.__name__)
FAMILIES: dict[str, Callable[[ConfigKeys, str], ModelShape]] = {family.__name__: family for family in _by_name}
# Families that are another under a name of their own, as the decoder of a multimodal model is
SAME_CODE = {
    "kimi_k2": "deepseek_v3",
    "ministral3": "mistral",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "glm4v_text": "glm4",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_moe_text": "glm4_moe",
}
