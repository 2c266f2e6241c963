"""A Llama of the small language model's kind, random and tiny, and token ids to calibrate it on."""

from functools import cache

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 61


@cache
def tiny_llama(kv_heads=2):
    """Two layers of width 32. Its norms are not all ones, so that forgetting one shows. Do not change it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        intermediate_size=48,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.mul_(torch.rand(parameter.shape) + 0.5)
        elif "proj" in name:
            parameter.mul_(8)  # the default's 0.02 leaves the layers hardly any part in the output
    return model


def token_batches(count=2, sequences=3, tokens=20, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (sequences, tokens), generator=generator) for _ in range(count)]


@torch.no_grad()
def logits(model):
    return model(token_batches(1, seed=2)[0], use_cache=False).logits


def damage(model, reference=None):
    """Relative error of a model's logits."""
    exact = logits(reference or tiny_llama())
    return float((logits(model) - exact).norm() / exact.norm())


def correlated_inputs(tokens=400, channels=24, seed=0):
    """[tokens, channels] of few underlying factors and unequal sizes, as real activations are."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(tokens, channels // 4, generator=generator) @ torch.randn(
        channels // 4, channels, generator=generator
    )
    sizes = torch.randn(channels, generator=generator).exp()
    return (factors + 0.5 * torch.randn(tokens, channels, generator=generator)) * sizes
