"""What Whisper holds while it listens: an encoder's output, and two caches of keys and values in the decoder.

The cache of cross-attention is made once for each window of sound and does not grow; that of self-attention grows with
each token of text. Whisper pads every window to 30 seconds, so a second of speech costs as much as thirty.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_whole
from ..breakdown import Breakdown, rounded

FRAMES_PER_S = 100  # mel frames: a hop of 160 samples of 16 kHz (Whisper's feature extractor)
WINDOW_S = 30
FRAMES_PER_POSITION = 2  # the encoder's second convolution has stride 2


@dataclass(frozen=True)
class WhisperShape:
    """The defaults are large-v3's (openai/whisper-large-v3, config.json); turbo's has 4 decoder layers."""

    hidden: int = 1280
    decoder_layers: int = 32
    most_tokens: int = 448
    positions: int = WINDOW_S * FRAMES_PER_S // FRAMES_PER_POSITION

    def __post_init__(self) -> None:
        for name in ("hidden", "decoder_layers", "most_tokens", "positions"):
            require_whole(name, getattr(self, name))


def whisper_cache(shape: WhisperShape, tokens: int, batch: int = 1, width: int = 2) -> Breakdown:
    """Bytes that a stream holds after `tokens` of a window, beside the weights.

    >>> held = whisper_cache(WhisperShape(), tokens=448)
    >>> held["cross_attention"] / 2**20, held["self_attention"] / 2**20
    (234.375, 70.0)

    WorkbookError for more tokens than the model has positions for.
    """
    require_whole("batch", batch)
    require_whole("width", width, 1, 8, unit="bytes")
    if require_whole("tokens", tokens) > shape.most_tokens:
        what, expected = f"{tokens} tokens in a window", f"{shape.most_tokens} at most, the prompt included"
        raise WorkbookError(what, expected, "begin a new window")
    per_layer = 2 * shape.decoder_layers
    return Breakdown(
        encoder_output=rounded(batch * shape.positions * shape.hidden * width),
        cross_attention=per_layer * rounded(batch * shape.positions * shape.hidden * width),
        self_attention=per_layer * rounded(batch * tokens * shape.hidden * width),
    )


def whisper_stream(shape: WhisperShape, tokens: int, streams: int, width: int = 2, reset_first: bool = True) -> int:
    """The most that so many streams hold, each at its fullest when its next window is encoded.

    `reset_first`: the caches of the old window are let go before the new encoder's output is there; otherwise a stream
    holds both, the old window whole beside the new output and its cross-attention.
    """
    require_whole("streams", streams)
    full = whisper_cache(shape, tokens, streams, width)
    return full.total if reset_first else full.total + full["encoder_output"] + full["cross_attention"]
