"""docs/grading.md keeps its promises: its commands exist, it tells every flag, its links and paths lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from helpers.cli import _parser
from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.grading.judging.reference import find_checks, load_checks
from helpers.grading.judging.results import ATTENTION, GRADED, UNREADABLE
from helpers.grading.reports import late
from helpers.grading.sample_class import _CLASS
from helpers.lesson import asked, draw

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/grading.md").read_text(encoding="utf-8")
BLOCK = r"```\w*\n(.*?)```"
INLINE = re.findall(r"`([^`]+)`", re.sub(BLOCK, "", GUIDE, flags=re.DOTALL))
TOLD = "\n".join([*re.findall(BLOCK, GUIDE, re.DOTALL), *INLINE]).replace("&&", "\n")
COMMANDS = sorted({told.strip() for told in re.findall(r"workbook [a-z][^#\n]*", TOLD)})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_spelled_as_the_command_line_has_them(command: str) -> None:
    assert _parser().parse_args(shlex.split(command)[1:]).run


def test_there_are_commands_to_try() -> None:
    assert len(COMMANDS) > 8


def test_every_flag_of_grade_is_told_and_no_other() -> None:
    arguments = _parser().parse_args(["grade", "02", "x", "--out", "y"])
    flags = {f"--{name.replace('_', '-')}" for name in vars(arguments)} - {"--run", "--lab", "--submissions"}
    told = set(re.findall(r"--[a-z][a-z-]+", GUIDE))
    assert told - flags == {"--nbgrader", "--profile", "--daemonize", "--show"}
    assert flags <= told


def test_what_it_names_is_there() -> None:
    assert all(f"`{status}`" in GUIDE for status in (GRADED, ATTENTION, UNREADABLE))
    paths = {path for path in INLINE if re.match(r"(helpers|labs|solutions|requirements)\S*$", path)}
    assert len(paths) > 4
    assert not [path for path in paths if not list(ROOT.glob(path))]


def test_its_due_policy_can_be_read(tmp_path) -> None:
    [policy] = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "due.toml").write_text(policy, encoding="utf-8")
    found = late.read(tmp_path / "due.toml")
    assert (found.percent(9), found.attempts, len(found.extensions), len(found.handed_in)) == (50, "best", 2, 1)
    assert not [key for key in late.KEYS if key not in GUIDE]


def test_its_private_check_is_one(tmp_path, capsys):
    told = re.findall(r"```json\n(.*?)```\n+```python\n(.*?)```", GUIDE, re.DOTALL)
    cells = [v4.new_code_cell(source, metadata=json.loads(metadata)) for metadata, source in told]
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / "02_exam.ipynb")
    [path] = (ROOT / "solutions").glob("02_*.ipynb")
    worked = nb.read(path)
    asking, check = load_checks(find_checks(tmp_path, path.stem), worked).cells
    assert (lab_cells.is_ask(asking), lab_cells.points(check)) == (True, 2)
    [right] = [cell.source for cell in worked.cells if lab_cells.grade_id(cell) == "state-bytes"]
    _asked_and_checked(right, asking.source, check.source)
    assert len(re.findall(r"frozen parameters: [\d,]+ bytes", capsys.readouterr().out)) == 3
    with pytest.raises(AssertionError, match="nothing trains here"):
        _asked_and_checked(right.replace('"gradients": 2', '"gradients": 1 + 2'), asking.source, check.source)


def _asked_and_checked(answer: str, asking: str, check: str) -> None:
    names = {"asked": asked, "draw": draw}
    for source in (answer, asking, check):
        exec(source, names)


def test_the_sample_class_is_as_told() -> None:
    perfect = [learner for learner, _, cost, _ in _CLASS if not range(9)[cost]]
    assert (len(_CLASS), len(perfect)) == (20, 7)
    assert "twenty submissions, seven of them perfect" in " ".join(GUIDE.split())
