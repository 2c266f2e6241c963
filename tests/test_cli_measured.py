"""`workbook measured`: rows out of a log, a list that `accuracy --measured` reads, and what is refused."""

from __future__ import annotations

import json

import pytest

from helpers.cli import main
from tests.cli_errors import require_told

LOG = """\
INFO [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-8B', dtype=torch.bfloat16
INFO [gpu_model_runner.py:4820] Model loading took 15.27 GiB memory and 15.038281 seconds
"""


@pytest.fixture
def log(tmp_path) -> str:
    file = tmp_path / "vllm.log"
    file.write_text(LOG)
    return str(file)


def test_the_prediction_stands_beside(log, capsys) -> None:
    assert main(["measured", log, "--gpu", "h100"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert "15.27       15.27 GiB" in line


def test_accuracy_reads_what_it_prints(log, tmp_path, capsys) -> None:
    assert main(["measured", log, log, "--gpu", "h100", "--json"]) == 0
    printed = capsys.readouterr().out
    assert len(json.loads(printed)) == 2
    runs = tmp_path / "runs.json"
    runs.write_text(printed)
    assert main(["accuracy", "--measured", str(runs)]) == 0
    assert "engine, weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["no-such.log"], "cannot read no-such.log"),
        ([], "LOG"),
        (["README.md"], "with a size in it"),
        (["README.md", "--gpu", "h1000"], "with a size in it"),
    ],
)
def test_bad_input_is_told(argv, told, capsys) -> None:
    require_told(["measured", *argv], told, capsys)
