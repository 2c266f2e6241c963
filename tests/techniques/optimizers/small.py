"""The small model with gradients, and live steps of it."""

import platform

import pytest
import torch

from helpers.small_lm import load

ON_X86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="bitsandbytes rounds otherwise on this processor"
)


def model(dtype=torch.float32):
    return load().model.to(dtype).train()


def live_step(model, optimizer, seed, words=32):
    """One real step on random words: forward, backward, update."""
    ids = torch.randint(0, 416, (1, words), generator=torch.Generator().manual_seed(seed))
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def with_gradients(weights, seed=1):
    """Gradients of very different sizes, as real ones are."""
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        size = torch.rand(weight.shape, generator=generator) ** 8
        weight.grad = (torch.randn(weight.shape, generator=generator) * size).to(weight.dtype)


def weights_of(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(*shape, generator=generator).to(dtype)) for shape in shapes]
