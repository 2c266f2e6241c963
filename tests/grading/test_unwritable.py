"""A disk that is full or may not be written: a line that says so, exit code 4, and nothing lost."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.grading import batch, executors
from helpers.grading.batch import NOT_WRITTEN, Options, grade
from helpers.grading.judging.marking import Marked
from tests.grading.test_batch import handed_in, scores
from tests.grading.test_publish import marked, reference

__all__ = ["handed_in"]


@pytest.fixture
def quick(monkeypatch):
    """No kernel runs and none is shut in: everybody's marks are made up. The learners that were graded, in order."""
    graded = []

    def local(work, *_):
        for one, _ in work:
            graded.append(one.learner)
            yield Marked(marked(one), None)

    monkeypatch.setattr(batch.levels, "best", lambda trust_learners: batch.levels.BUBBLEWRAP)
    monkeypatch.setattr(executors, "local", local)
    monkeypatch.setattr(batch, "fingerprint", lambda *_: "")
    monkeypatch.setattr(batch, "_reference", lambda *_: reference())
    return graded


def full_after(monkeypatch, count: int, number: int) -> None:
    """From the `count`-th file on, the disk takes no more."""
    left = iter(range(count))
    replace = os.replace

    def refuse(source, target):
        if next(left, None) is None:
            raise OSError(number, os.strerror(number), str(source), None, str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("count", [0, 1, 3, 6, 9])
def test_wherever_writing_fails_the_same_command_goes_on(
    built_root, handed_in, tmp_path, monkeypatch, capsys, quick, count, number
):
    out = tmp_path / "out"
    with monkeypatch.context() as full:
        full_after(full, count, number)
        assert grade("05", handed_in, out, built_root, Options(seed="3")) == NOT_WRITTEN
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"workbook: {out} cannot be written ({os.strerror(number).lower()}); what is there is whole")
    kept = [json.loads(path.read_text())["learner"] for path in (out / "results").glob("*.json")]
    assert len(kept) == max(0, min(3, count - 1)), "the manifest is written first"
    assert not list(out.rglob("*.tmp"))
    assert not (out / ".submissions").exists()
    quick.clear()
    assert grade("05", handed_in, out, built_root) == 0
    assert sorted(quick) == sorted({"ada", "ben", "cleo"} - set(kept)), "what was kept is not graded again"
    assert len(scores(out)) == 3


def test_leftovers_of_a_run_that_was_killed_while_it_wrote_are_gone(built_root, handed_in, tmp_path, quick):
    out = tmp_path / "out"
    for name in (".gradebook.csv.1.tmp", "results/.ada.json.1.tmp", "executed/.ada-x.tmp"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("half")
    (out / "notes.tmp").write_text("mine")
    assert grade("05", handed_in, out, built_root, Options(seed="3")) == 0
    assert [path.name for path in out.rglob("*.tmp")] == ["notes.tmp"]


def test_a_file_in_the_place_of_the_results_is_told(handed_in, tmp_path, built_root):
    (tmp_path / "out").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/results").write_text("")
    for out in (tmp_path / "out", tmp_path / "other", tmp_path / "out/deeper"):
        with pytest.raises(WorkbookError, match="is a file, or holds one"):
            grade("05", handed_in, out, built_root)


def test_a_fault_that_has_nothing_to_do_with_the_results_is_no_full_disk(monkeypatch, tmp_path):
    def fail(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "/etc/shadow")

    monkeypatch.setattr(batch, "one_lab", fail)
    with pytest.raises(PermissionError):
        grade("05", tmp_path, tmp_path / "out", tmp_path)


def test_a_folder_where_nothing_can_be_made_is_told_by_the_command(tmp_path, monkeypatch, capsys):
    mkdir = Path.mkdir

    def refuse(path, *rest, **more):
        if path.is_relative_to(tmp_path / "out"):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        mkdir(path, *rest, **more)

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert main(["grade", "02", str(tmp_path), "--out", str(tmp_path / "out")]) == 4
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "(read-only file system)" in told
