"""How the loss meets the logits: all of them at once, or a part at a time. No torch."""

from __future__ import annotations

FULL, LIGER, CUT, TRL = "full", "liger", "cce", "trl"
LOSSES = (FULL, LIGER, CUT, TRL)
TRL_ROWS, TRL_WORDS = 4096, 32768  # of a tile of logits: trl 1.16, kernels/chunked_logprob.py and trainer/utils.py


def liger_chunk(tokens: int, hidden: int, vocab: int) -> int:
    """Rows of logits that Liger's fused loss holds at once: about as many values as the hidden states have.

    A power of two, from linkedin/Liger-Kernel v0.8.2, src/liger_kernel/ops/fused_linear_cross_entropy.py: 16,384 tokens
    of width 4,096 with 32,000 words go in eight chunks.

    >>> liger_chunk(16_384, 4_096, 32_000), liger_chunk(4_096, 4_096, 128_256)
    (2048, 128)
    """
    rows = -(-tokens // -(-vocab // hidden))
    return 1 << (rows - 1).bit_length()
