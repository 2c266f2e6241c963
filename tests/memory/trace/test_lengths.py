"""Batches of several lengths: a real run on a CPU to the byte, and what the order of lengths reserves."""

import pytest

from helpers.catalog import Adapter, TrainSetup, WorkbookError
from helpers.cli import main
from helpers.memory import measure, trace
from helpers.memory.measure.steps import build_model, run_of

LENGTHS = (96, 160, 128, 320)


def setup_of(**choices):
    return TrainSetup("tiny-llama", **{"precision": "bf16", "micro_batch": 2, "sequence": 16, **choices})


@pytest.mark.parametrize("how", [{}, {"checkpointing": "full", "micro_batches": 2}], ids=str)
def test_a_real_run_has_the_peak_of_its_longest_batch(how):
    setup = setup_of(**how)
    run = run_of(setup, build_model(setup, "cpu"), "cpu", lengths=LENGTHS)
    real = measure.step(run.step, run.model, run.optimizers)
    found = trace.train(setup, on="cpu", lengths=LENGTHS)
    batches = sum(
        -(-8 * 2 * tokens // 512) * 512 for tokens in LENGTHS
    )  # made before: the meter need not have seen them
    assert found.peak_bytes - real.peak_bytes in range(batches + 1)
    alone = trace.train(setup_of(**how, sequence=max(LENGTHS)), on="cpu")
    assert found.peak_bytes == pytest.approx(alone.peak_bytes, abs=batches)


def test_lengths_that_grow_reserve_more_than_the_longest_first():
    """Blocks that were cached for short batches suit no long one; those of a long one are split for short ones."""
    setup = setup_of(micro_batch=64)
    growing, falling, alone = (
        trace.train(setup, lengths=lengths).peak_reserved_bytes for lengths in (LENGTHS, LENGTHS[::-1], LENGTHS[-1:])
    )
    assert growing > 1.05 * alone
    assert falling == pytest.approx(alone, rel=0.03)


def test_adapters_run_them_too():
    pytest.importorskip("peft")
    setup = setup_of(adapter=Adapter(rank=4))
    one, several = (trace.train(setup, on="cpu", lengths=lengths).peak_bytes for lengths in ((320,), LENGTHS))
    assert several == pytest.approx(one, rel=0.005)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"lengths": (8, 0)}, "a length is 0"),
        ({"lengths": (8, 2.5)}, "a length is 2.5"),
        ({"lengths": (8, 9), "in_backward": True}, "in the backward"),
        ({"lengths": (8, 9), "precision": "megatron-bf16"}, "Megatron"),
    ],
)
def test_lengths_of_no_run(how, words):
    lengths = how.pop("lengths")
    with pytest.raises(WorkbookError, match=words):
        trace.train(setup_of(**how), lengths=lengths)


def test_the_command_takes_them_between_commas(capsys):
    tiny = ["trace", "train", "--model", "tiny-llama", "--micro-batch", "2", "--precision", "bf16"]
    assert main([*tiny, "--sequence", "96,320"]) == 0
    assert "2 × 96, 320 tokens" in capsys.readouterr().out
    assert main([*tiny, "--sequence", "96,"]) == 2
    assert "is not a whole number" in capsys.readouterr().err
    assert main([*tiny, "--sequence", "96,320", "--ranks", "2", "--zero", "3"]) == 2
    assert "pass one length" in capsys.readouterr().err
