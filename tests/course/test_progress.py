"""`workbook progress`: what was noted, chapter by chapter, and each guess of one."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from helpers.cli import main
from helpers.course.progress import chapters
from helpers.course.start_page import start_page
from helpers.lesson import notes

ROOT = Path(__file__).resolve().parents[2]
NOTED = {
    "chapters": {
        "02": {
            "opened": "2026-11-23",
            "predictions": {
                "the peak": {"guess": 3, "unit": "GiB", "off": 0.5},
                "the rest": {"guess": 1, "unit": "MiB", "off": -0.1},
                "not yet": {"guess": 2, "unit": "MiB"},
                "of nothing": {"guess": 2, "unit": "%", "off": None},
            },
            "verdicts": {"adam-12": {"guess": "holds", "right": False}},
        },
        "03": {"opened": "2026-11-23"},
    },
    "labs": {"02": {"checked": "2026-11-23", "questions": {"a": {"title": "1 · One", "earned": 2, "points": 3}}}},
}


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "read", lambda folder: NOTED)
    monkeypatch.setattr("helpers.course.start_page.renew_start_page", lambda root: None)
    monkeypatch.chdir(ROOT)


def test_every_chapter_is_there_with_its_header_and_what_it_asks():
    found = {one.number: one for one in chapters(ROOT, {"chapters": {}, "labs": {}})}
    assert found.keys() == {path.name[:2] for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    for one in found.values():
        assert one.title
        assert {"time", "needs"} <= one.header.keys()
        assert (one.said, one.asked > 0) == ("", True)
        assert one.lab is None or (one.lab.points > 0 and one.lab.header["time"])


def test_a_predict_of_somebody_elses_is_no_question(tmp_path):
    cell = 'guess = predict("peak", unit="MiB", guess=None)\nread = claims.read("accum", guess=None)\nmodel.predict(3)'
    cells = [v4.new_markdown_cell("# 99 · A chapter"), v4.new_code_cell(cell)]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / "notebooks" / "99_a_chapter.ipynb")
    assert [one.asked for one in chapters(tmp_path, {"chapters": {}, "labs": {}})] == [2]


def test_how_far(noted, capsys):
    assert main(["progress"]) == 0
    said = {line[:2]: line.split("  ") for line in capsys.readouterr().out.splitlines()}
    assert "guesses, typically 30 % off" in " ".join(said["02"])
    assert "5 of " in " ".join(said["02"])
    assert said["02"][-1].strip() == "2 of 20 points"
    assert "opened" in " ".join(said["03"])
    assert [part.strip() for part in said["05"] if part.strip()] == ["05 Quantization", "–", "–"]


def test_one_chapter_guess_by_guess(noted, capsys):
    assert main(["progress", "02"]) == 0
    said = capsys.readouterr().out
    for line in (
        "  the peak: 3 GiB, off by +50.00 %",
        "  not yet: 2 MiB, not compared yet",
        "  of nothing: 2 %, compared",
        "  claim adam-12: holds, the cases say otherwise",
        "lab 02: 2 of 20 points on 2026-11-23",
        "  1 · One: 2 of 3",
    ):
        assert line in said.splitlines(), said
    assert main(["progress", "03"]) == 0
    assert capsys.readouterr().out == "03 The allocator: opened\n"
    assert main(["progress", "77"]) == 2


def test_as_json_it_is_a_list_of_chapters_with_all_that_was_noted(noted, capsys):
    assert main(["progress", "--json"]) == 0
    told = {one["chapter"]: one for one in json.loads(capsys.readouterr().out)}
    assert len(told) == len(chapters(ROOT, NOTED))
    assert (told["02"]["typical_off"], told["02"]["opened"], told["05"]["opened"]) == (0.3, True, False)
    assert told["02"]["guesses"] == NOTED["chapters"]["02"]["predictions"]
    assert (told["02"]["lab"]["earned"], told["02"]["lab"]["points"], told["05"]["lab"]["earned"]) == (2, 20, None)
    assert main(["progress", "02", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [told["02"]]


def test_the_start_page_says_it_too(noted):
    page = start_page(ROOT)
    assert "guesses, typically 30 % off |" in page
    assert "**2** of 20 points |" in page


def test_a_broken_file_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "solutions").mkdir()
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/.progress.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    assert main(["progress"]) == 2
    assert "delete that file to begin anew" in capsys.readouterr().err
    assert "Begin with chapter 00" in start_page(tmp_path)
