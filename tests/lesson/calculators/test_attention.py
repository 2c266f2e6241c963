"""The attention calculator: values worked by hand, crossings that hold when tried, and its door in the terminal."""

import json

import pytest

from helpers.catalog import WorkbookError
from helpers.cli import main
from helpers.lesson.calculators import attention, attention_answer
from helpers.lesson.calculators.attention_layer import PHASES, kernels_of
from helpers.techniques.attention import counts
from helpers.techniques.attention.masks import Window

CALCULATOR = attention()


def test_values_worked_by_hand():
    """Llama-3-8B over 4,096 tokens in BF16 on an H100: 3.35 TB/s, 989.4 TFLOP/s."""
    figures = attention_answer("h100").figures
    matrix, q, kv, mask = 32 * 4096**2 * 2, 4096 * 4096 * 2, 4096 * 1024 * 2, 4096**2
    assert figures["matrix_bytes"] == matrix
    assert figures["naive_bytes"] == 2 * matrix + mask
    assert figures["tiled_bytes"] == q + 32 * 4096 * 4
    assert figures["tiles_visited"] == 32 * 33 // 2
    assert figures["naive_moved_bytes"] == 6 * matrix + 2 * mask + 6 * q + 2 * kv + 2 * 4096
    assert figures["tiled_moved_bytes"] == 2 * q + 2 * kv + 32 * 4096 * 4
    of_tiles = 32 * 528 * 128 * 2 * 128 * 2  # heads, tiles, keys of one, with their values, of 128 BF16 numbers
    assert figures["tiled_moved_bytes_without_cache"] == 2 * q + of_tiles + 32 * 4096 * 4
    assert figures["tiled_seconds"] == pytest.approx(4 * 32 * 128 * 528 * 128**2 / 989.4e12, rel=1e-3)
    weights = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    assert figures["linear_seconds"] == pytest.approx(2 * 4096 * weights / 989.4e12, rel=1e-3)


@pytest.mark.parametrize("gpu", ["h100", "t4", "rtx-4090"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("batch", [1, 16])
def test_the_lines_cross_where_it_says(gpu, phase, batch):
    asked = {"gpu": gpu, "phase": phase, "number_format": "fp16", "batch": batch}
    answer = attention_answer(**asked)
    for name, crossed in answer.breaks.items():
        if crossed and crossed[0] > 128:
            there = attention_answer(sequence=crossed[0], **asked).seconds
            assert there[name] == pytest.approx(there["linear layers"], rel=0.03)
            assert crossed[1] == pytest.approx(there[name], rel=0.03)
        else:
            ends = [attention_answer(sequence=tokens, **asked).seconds for tokens in (128, 131_072)]
            assert {took[name] >= took["linear layers"] for took in ends} == {bool(crossed)}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("window", [0, 1000])
def test_the_truth_of_traffic_lies_between(phase, window):
    """Every tensor once is the least; with no cache and tiles as large as the sequence it is the same."""
    answer = attention_answer("a100", phase=phase, window=window, sequence=3000)
    assert answer.moved["tiled"] <= answer.moved["tiles"]
    if phase != "decode":
        assert answer.moved["tiles"] < answer.moved["naive"]
    small = attention_answer("a100", sequence=100, heads=4, kv_heads=4)
    assert small.moved["tiled"] == small.moved["tiles"]


@pytest.mark.parametrize(("phase", "passes"), [("forward", 4), ("training", 11)])
def test_without_a_mask_the_matrix_is_moved_less_often(phase, passes):
    """Masking moves it once each way, in forward and in backward. No tile is skipped."""
    answer = attention_answer("h100", mask="none", phase=phase)
    of_queries = answer.moved["naive"] - passes * answer.call.matrix_bytes
    assert 0 < of_queries < answer.call.matrix_bytes / 2
    assert answer.figures["tiles_visited"] == 32**2
    masked = attention_answer("h100", phase=phase)
    assert answer.peaks["naive"] == masked.peaks["naive"] - 4096**2 - (4096 if phase == "training" else 0)
    assert f"written {passes // 2 if phase == 'forward' else 4} times" in str(answer)


def test_a_window_is_no_use_with_the_matrix():
    without, narrow = (attention_answer("h100", sequence=32_768, window=window) for window in (0, 1024))
    assert narrow.seconds["naive"] == without.seconds["naive"]
    assert narrow.seconds["tiled"] < without.seconds["tiled"] / 8


def test_decode_reads_the_cache_that_the_window_leaves():
    answer = attention_answer("h100", phase="decode", sequence=32_768, window=1024, batch=4)
    assert answer.call.keys == 1024
    assert answer.moved["tiled"] == pytest.approx(4 * 2 * 1024 * 1024 * 2, rel=0.01)
    assert "32,768 tokens" in answer.title
    assert "--sequence 32768" in answer.command
    assert "--window 1024" in answer.command
    assert answer.asked_call.mask == Window(1024)


def test_training_is_forward_and_backward():
    forward, training = (attention_answer("h100", phase=phase) for phase in ("forward", "training"))
    assert forward.figures["naive_bytes"] == forward.call.naive_peak_bytes
    assert training.figures["tiled_bytes"] == training.call.saved_bytes
    both = counts.sum_of(counts.naive(training.call)).bytes + counts.sum_of(counts.naive_backward(training.call)).bytes
    assert training.moved["naive"] == both
    assert training.seconds["linear layers"] == pytest.approx(3 * forward.seconds["linear layers"])
    assert sum(work.flops for work in kernels_of(training.call, "training")["tiled"]) == pytest.approx(
        3.5 * sum(work.flops for work in kernels_of(training.call, "forward")["tiled"])
    )


def test_its_command_gives_the_same_answer(capsys):
    for start in (
        {},
        {"gpu": "t4", "number_format": "fp16", "window": 512, "phase": "training", "kv_heads": 32},
        {"mask": "none"},
    ):
        answer = CALCULATOR.answer(**start)
        assert main(answer.command.split()[1:]) == 0
        assert capsys.readouterr().out.strip() == str(answer)
        assert main([*answer.command.split()[1:], "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(answer.figures))


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"sequence": 0}, "sequence is 0"),
        ({"heads": 12}, "kv_heads that divide heads"),
        ({"window": -1}, "window is -1"),
        ({"phase": "prefill"}, "unknown phase"),
        ({"mask": "window"}, "unknown mask"),
        ({"number_format": "nf4"}, "unknown number format"),
        ({"gpu": "t4"}, "no rate for matrix products in bf16"),
        ({"gpu": "h1000"}, "unknown device"),
    ],
)
def test_what_it_does_not_know(wrong, expected):
    with pytest.raises(WorkbookError, match=expected):
        attention_answer(**{"gpu": "h100", **wrong})


@pytest.mark.parametrize(
    ("gpu", "number_format", "mask", "window", "naive", "tiled"),
    [
        ("h100", "bf16", "none", 0, 5620, 26_600),
        ("t4", "fp16", "causal", 0, 5420, 53_100),
        ("b200", "bf16", "causal", 0, 3880, 53_100),
        ("h100", "bf16", "causal", 0, 3680, 53_100),
        ("h100", "bf16", "causal", 512, 3680, None),
    ],
)
def test_chapter_11_says_where_the_lines_cross(gpu, number_format, mask, window, naive, tiled):
    figures = attention_answer(gpu, number_format=number_format, mask=mask, window=window).figures
    assert (figures["naive_break_even"], figures["tiled_break_even"]) == (naive, tiled)
