"""Models that are no decoders: a vision encoder, a text encoder, an encoder-decoder, traced as they are measured."""

import pytest
import torch

from helpers.memory import measure, trace

transformers = pytest.importorskip("transformers")


def vit():
    config = transformers.ViTConfig(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, num_hidden_layers=2, image_size=64, num_labels=10
    )
    return transformers.ViTForImageClassification(config)


def bert():
    config = transformers.BertConfig(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, num_hidden_layers=2, vocab_size=500,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def whisper():
    config = transformers.WhisperConfig(
        d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=500, max_source_positions=100, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def images(size):
    return lambda: {"pixel_values": torch.zeros(4, 3, size, size), "labels": torch.zeros(4, dtype=torch.long)}


def words():
    ids = torch.zeros(4, 32, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def sound():
    return {"input_features": torch.zeros(2, 80, 200), "labels": torch.zeros(2, 16, dtype=torch.long)}


@pytest.mark.parametrize(
    ("build", "batch"), [(vit, images(64)), (bert, words), (whisper, sound)], ids=["vit", "bert", "whisper"]
)
def test_a_step_is_traced_as_it_is_measured(build, batch):
    def run(model):
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step():
            model(**batch()).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, optimizer

    real = build()
    step, optimizer = run(real)
    measured = measure.step(step, real, optimizer)
    with trace.fake("cpu"):
        model = build()
        step, optimizer = run(model)
        found = trace.record(step, model, optimizer)
    assert found.peak_bytes == measured.peak_bytes
    assert found.parts == measured.parts


def test_a_model_that_reads_values_while_it_is_built_is_traced():
    """Each layer of a Swin is dropped as often as a value of a linspace says."""
    config = transformers.SwinConfig(
        embed_dim=32, depths=[1, 1], num_heads=[2, 4], window_size=4, image_size=32, num_labels=10, drop_path_rate=0.1
    )
    with trace.fake():
        model = transformers.SwinForImageClassification(config)
        found = trace.record(lambda: model(**images(32)()).loss.backward(), model)
    assert found.parts["parameters"] >= 4 * sum(p.numel() for p in model.parameters())
    assert [layer.blocks[0].drop_path.drop_prob for layer in model.swin.encoder.layers[1:]] == [pytest.approx(0.1)]
