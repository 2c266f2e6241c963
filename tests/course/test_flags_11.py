"""What chapter 11 tells to type, and what it costs, in PyTorch and Transformers as they are installed."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from helpers.small_lm import load


def test_transformers_takes_sdpa_by_itself_and_gives_no_weights_then():
    net, ids = load().model, torch.ones(1, 8, dtype=torch.long)
    found = {}
    for way in (net.config._attn_implementation, "eager"):
        net.set_attn_implementation(way)
        with torch.no_grad():
            found[way] = len(net(input_ids=ids, output_attentions=True, use_cache=False).attentions or ())
    assert found == {"sdpa": 0, "eager": net.config.num_hidden_layers}


def test_a_kernel_that_is_asked_for_alone_raises_where_it_cannot():
    q, k, v = torch.randn(3, 1, 2, 64, 32)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        assert scaled_dot_product_attention(q, k, v, is_causal=True).shape == q.shape
        with pytest.raises(RuntimeError, match="No available kernel"):
            scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
    assert scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1).shape == q.shape
