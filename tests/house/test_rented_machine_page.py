"""docs/rented-machine.md keeps its promises: its commands exist, what it says of chapters is what they say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from helpers.cli import _parser
from setup_env.torch_build import CUDA_BYTES, OLDEST_TORCH

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/rented-machine.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
BLOCK = r"```\w*\n(.*?)```"
BLOCKS = "\n".join(re.findall(BLOCK, PAGE, re.DOTALL))
INLINE = re.findall(r"`([^`]+)`", re.sub(BLOCK, "", PAGE, flags=re.DOTALL))
TOLD = re.split(r"\n|&&|;", "\n".join([BLOCKS, *INLINE]))
COMMANDS = sorted({told.partition("#")[0].strip() for told in TOLD if told.strip().startswith("workbook ")})
MAKES = sorted({told.strip() for told in TOLD if re.search(r"(^|[= ])make ", told) and "git" not in told})
ROW = re.compile(r"^\| (\d\d) \| (.+?) \| not measured \|$", re.MULTILINE)


def chapters() -> dict[str, str]:
    """What each chapter's first cell says of time, by its number."""
    found = {}
    for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"):
        head = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        found[path.name[:2]] = head.partition("|---|---|---|\n")[2].split("|")[1].strip()
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_spelled_as_the_command_line_has_them(command: str) -> None:
    assert _parser().parse_args(shlex.split(command)[1:]).run


def test_there_are_commands_to_try() -> None:
    assert {"workbook doctor", "workbook record", "workbook build 02"} <= set(COMMANDS)
    assert len(MAKES) > 3


@pytest.mark.parametrize("command", MAKES)
def test_make_has_the_target_and_the_switch(command: str) -> None:
    words = shlex.split(command)
    target, *switches = [word for word in words[words.index("make") + 1 :] if word not in ("-C", "workbook")][:2]
    assert re.search(rf"(?m)^{target}:", MAKEFILE)
    assert all(re.search(rf"\b{word.partition('=')[0]}\b", MAKEFILE) for word in switches if "=" in word)


def test_every_chapter_costs_what_it_says_itself() -> None:
    assert dict(ROW.findall(PAGE)) == chapters()


def test_the_figures_are_those_of_the_setup() -> None:
    assert f"needs {CUDA_BYTES // 2**30}" in PAGE
    assert "torch of {}.{} or later".format(*OLDEST_TORCH) in " ".join(PAGE.split())


def test_it_stays_a_page() -> None:
    assert PAGE.count("\n") - len(ROW.findall(PAGE)) < 112  # without a row for each chapter
    assert not [line for line in PAGE.splitlines() if len(line) > 120 and not line.startswith("|")]


def test_nobody_is_told_to_open_the_machine_to_everybody() -> None:
    assert "0.0.0.0" not in BLOCKS
    assert re.findall(r"(\w+) start JupyterLab with `--ip=0.0.0.0`", PAGE) == ["Never"]
