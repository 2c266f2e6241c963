"""The site's console: a line in, what the terminal prints out."""

from __future__ import annotations

import shlex

import pytest

from helpers.cli import main
from helpers.cli.console import run
from helpers.course.site.tools import TRIES


@pytest.mark.parametrize("line", [line for line in TRIES if "--help" not in line])
def test_a_line_prints_what_the_terminal_prints(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 0
    assert run(f"workbook {line}") == run(line) == (capsys.readouterr().out, 0)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "an empty line"),
        ("workbook", "an empty line"),
        ("estimat train", "did you mean 'estimate'"),
        ("explain-oom /etc/hostname", "unknown command of this console"),
        ("estimate train --model 'x", "quotation"),
        ("estimate train --model gpt22", "unknown model"),
        ("estimate train --model gpt2 --nonsense", "--nonsense"),
        ("estimate " + "x" * 3000, "2,000 at most"),
        ("plan train llama-3.1-8b --tokens 1e9 --cards h100=8 --write folder", "--write needs files"),
        ("plan train llama-3.1-8b --tokens 1e9 --cards h100=8 --confirm", "--confirm needs files or PyTorch"),
    ],
)
def test_a_bad_line_is_told(line: str, told: str) -> None:
    text, code = run(line)
    assert code == 2
    assert told in text
    assert "do:" in text


def test_help_is_printed() -> None:
    text, code = run("estimate train --help")
    assert code == 0
    assert "--micro-batch" in text
