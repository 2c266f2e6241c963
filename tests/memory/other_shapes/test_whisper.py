"""Whisper's caches: formula, trace and what a small model holds after some tokens."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, WhisperConfig, WhisperForConditionalGeneration

from helpers.catalog import WorkbookError
from helpers.memory import trace
from helpers.memory.meter import FreshMeter, Meter
from helpers.memory.other_shapes import WhisperShape, whisper_cache, whisper_stream

SHAPE = WhisperShape(hidden=64, decoder_layers=3, most_tokens=64, positions=150)
CONFIG = WhisperConfig(
    vocab_size=100,
    d_model=SHAPE.hidden,
    encoder_layers=1,
    decoder_layers=SHAPE.decoder_layers,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    max_source_positions=SHAPE.positions,
    max_target_positions=SHAPE.most_tokens,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=3,
)


def listen(model: WhisperForConditionalGeneration, tokens: int, batch: int) -> tuple[torch.Tensor, EncoderDecoderCache]:
    """One window of sound, and so many tokens of text one after the other; returns what is held for the next."""
    with torch.no_grad():
        encoded = model.get_encoder()(torch.zeros(batch, CONFIG.num_mel_bins, 2 * SHAPE.positions)).last_hidden_state
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for _ in range(tokens):
            ids = torch.zeros(batch, 1, dtype=torch.long)
            model.model.decoder(input_ids=ids, encoder_hidden_states=encoded, past_key_values=cache, use_cache=True)
    return encoded, cache


def live(meter: Meter) -> int:
    return sum(block.size_bytes for block in meter.live.values())


@pytest.mark.parametrize(("tokens", "batch"), [(1, 1), (20, 1), (20, 3)])
def test_formula_trace_and_measurement_agree_to_the_byte(tokens: int, batch: int) -> None:
    model = WhisperForConditionalGeneration(CONFIG).eval()
    with FreshMeter() as meter:
        held = listen(model, tokens, batch)
        measured = live(meter)
    with trace.fake(device="cpu") as session:
        model = WhisperForConditionalGeneration(CONFIG).eval()
        before = live(session.meter)
        traced_held = listen(model, tokens, batch)
        traced = live(session.meter) - before
    assert whisper_cache(SHAPE, tokens, batch, width=4).total == measured == traced
    del held, traced_held


def test_a_window_costs_the_same_however_little_is_said_in_it_and_text_adds_to_one_part() -> None:
    quiet, full = (whisper_cache(WhisperShape(), tokens) for tokens in (1, 448))
    assert (full - quiet)["cross_attention"] == (full - quiet)["encoder_output"] == 0
    assert quiet["cross_attention"] > 3 * full["self_attention"]


def test_streams_add_up_and_an_old_window_that_is_kept_costs_its_sound_again() -> None:
    one = whisper_stream(WhisperShape(), 448, 1)
    assert whisper_stream(WhisperShape(), 448, 16) == 16 * one
    both = whisper_stream(WhisperShape(), 448, 1, reset_first=False)
    assert both / one == pytest.approx(1.77, abs=0.01)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: whisper_cache(WhisperShape(), 449), "449 tokens in a window"),
        (lambda: whisper_cache(WhisperShape(), 0), "tokens is 0"),
        (lambda: whisper_cache(WhisperShape(), 1, batch=0), "batch is 0"),
        (lambda: whisper_cache(WhisperShape(), 1, width=16), "width is 16"),
        (lambda: whisper_stream(WhisperShape(), 1, 0), "streams is 0"),
        (lambda: WhisperShape(hidden=0), "hidden is 0"),
    ],
)
def test_bad_input_is_told(call, told: str) -> None:
    with pytest.raises(WorkbookError, match=told):
        call()
