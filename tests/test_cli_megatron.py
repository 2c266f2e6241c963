"""`workbook estimate megatron`: in words and in bytes."""

import json

from helpers.cli import main
from helpers.memory.step.ranks.megatron import MegatronSetup, train

ASKED = ["estimate", "megatron", "--model", "llama-3-70b", "--tensor-parallel", "8", "--pipeline", "4"]
SETUP = MegatronSetup("llama-3-70b", tensor_parallel=8, pipeline=4)


def test_in_words(capsys):
    assert main([*ASKED, "--gpu", "h100"]) == 0
    said = capsys.readouterr().out
    for words in ("TP 8 x PP 4 x DP 1", "stage 4", "activations", "the NVIDIA H100"):
        assert words in said


def test_in_bytes(capsys):
    assert main([*ASKED, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peak_bytes"] == train(SETUP).peak_bytes == sum(found["parts"].values())
    assert len(found["stage_peaks_bytes"]) == 4
    assert found["verdict"] is None


def test_a_bad_layout_is_told(capsys):
    assert main([*ASKED, "--pipeline", "64"]) == 2
    assert "a layer for each stage" in capsys.readouterr().err
