"""Padded, padding-free and packed batches: what TRL's collator makes of the same lengths, and real masks on a CPU."""

import pytest
import torch

from helpers.catalog import TrainSetup, WorkbookError
from helpers.catalog.batches import PADDING_FREE, batch_of, packed
from helpers.memory import budget, measure
from helpers.memory.measure.steps import build_model


def test_rows_and_tokens():
    """The collator's own example in trl/trainer/sft_trainer.py: [1, 2, 3] and [4, 5], as (2, 3) and as (1, 5)."""
    padded, free = batch_of((3, 2)), batch_of((3, 2), PADDING_FREE)
    assert ((padded.rows, padded.tokens), (free.rows, free.tokens)) == ((2, 3), (1, 5))
    assert (padded.empty_percent, free.empty_percent) == (pytest.approx(100 / 6), 0)
    assert packed(4096, 2).tokens == 8192


@pytest.mark.parametrize(
    ("batch", "masked"),
    [
        (batch_of((5, 5)), False),  # Transformers leaves a mask out that hides nothing
        (batch_of((5, 4)), True),
        (batch_of((5,)), False),
        (batch_of((5, 5), PADDING_FREE), True),  # positions begin again
        (batch_of((5,), PADDING_FREE), False),
        (packed(64, 1), True),
    ],
)
def test_when_attention_is_given_a_mask(batch, masked):
    assert batch.masked is masked


def real_step(setup, **given):
    net = build_model(setup, "cpu")
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    ids = torch.randint(0, 99, (setup.micro_batch, setup.sequence))

    def step():
        net(input_ids=ids, labels=ids, use_cache=False, **given).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return measure.step(step, net, optimizer)


def test_a_padded_batch_is_a_real_one():
    batch = batch_of((250, 180, 90))
    setup = TrainSetup("tiny-qwen3", "bf16", "adamw-fused", batch.rows, batch.tokens, masked=batch.masked)
    lengths = torch.tensor((250, 180, 90))
    mask = (torch.arange(250)[None] < lengths[:, None]).long()
    measured = real_step(setup, attention_mask=mask)
    assert budget.train(setup).peak_bytes == pytest.approx(measured.peak_bytes, rel=0.001)
    assert budget.train(setup).saved_bytes == pytest.approx(measured.saved_bytes, rel=0.001)


def test_a_row_of_several_sequences_is_a_real_one():
    """Transformers makes the mask from positions that begin again. Without it the row would keep far less."""
    batch = batch_of((250, 180, 90), PADDING_FREE)
    setup = TrainSetup("tiny-qwen3", "bf16", "adamw-fused", batch.rows, batch.tokens, masked=batch.masked)
    positions = torch.cat([torch.arange(length) for length in (250, 180, 90)])[None]
    measured = real_step(setup, position_ids=positions)
    assert budget.train(setup).peak_bytes == pytest.approx(measured.peak_bytes, rel=0.001)
    assert budget.train(setup).saved_bytes == pytest.approx(measured.saved_bytes, rel=0.002)


@pytest.mark.parametrize("lengths", [(), (300, 0), (300, "many")])
def test_lengths_that_are_none(lengths):
    with pytest.raises(WorkbookError):
        batch_of(lengths)
