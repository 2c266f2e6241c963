"""The small model before its first step: its shape, and weights from which copying is soon learnt."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from .language import TOKEN_ID
from .words import BEGIN, END, PAD, VOCABULARY


def configuration() -> LlamaConfig:
    """The shape: 1,734,336 parameters, six query heads that share two KV heads, embedding and lm_head untied."""
    return LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        pad_token_id=TOKEN_ID[PAD],
        bos_token_id=TOKEN_ID[BEGIN],
        eos_token_id=TOKEN_ID[END],
    )


def untrained(seed: int) -> LlamaForCausalLM:
    """The model before its first step, with an initialisation under which copying is learnt in 400 steps, not 1,000."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(configuration())
        words = model.model.embed_tokens.weight
        # RoPE finds "the word before" only by what all queries and keys share: a direction common to all words.
        words.normal_().add_(torch.randn(words.shape[1]))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model
