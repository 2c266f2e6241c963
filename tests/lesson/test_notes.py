"""Notes of progress: taken in a copy under workspace/ alone, and never in the way of a lesson."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helpers.lesson import claims, compare, machine, notes, predict

NOTHING = {"chapters": {}, "labs": {}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, and this process as the kernel of its copy of chapter 02."""
    chapters = tmp_path / "workspace/chapters"
    chapters.mkdir(parents=True)
    monkeypatch.chdir(chapters)
    monkeypatch.setenv("JPY_SESSION_NAME", str(chapters / "02_where.ipynb"))
    monkeypatch.setattr(notes, "_said", set())
    return chapters.parent


def chapter(folder: Path) -> dict:
    return notes.read(folder)["chapters"].get("02", {})


def test_a_guess_and_how_far_off_it_was_are_noted(folder):
    guess = predict("the peak", "GiB", guess=3)
    assert chapter(folder) == {"predictions": {"the peak": {"guess": 3, "unit": "GiB"}}}
    compare(2 * 2**30, "GiB", you=guess, formula=2**30)
    assert chapter(folder)["predictions"]["the peak"]["off"] == 0.5


def test_a_guess_may_be_changed_until_its_answer_was_shown(folder):
    predict("the peak", "GiB", guess=3)
    compare(2**30, you=predict("the peak", "GiB", guess=2))
    compare(2**30, you=predict("the peak", "GiB", guess=1))
    assert chapter(folder)["predictions"]["the peak"] == {"guess": 2, "unit": "GiB", "off": 1.0}


def test_a_truth_of_0_ends_a_question_without_a_share(folder):
    for guess in (2, 3):
        compare(0, you=predict("the peak", "%", guess=guess))
    assert chapter(folder)["predictions"]["the peak"] == {"guess": 2, "unit": "%", "off": None}


def test_no_guess_is_no_note(folder):
    compare(2**30, you=predict("the peak", "GiB"))
    assert not (folder / notes.FILE).exists()


def test_a_verdict_and_the_first_screen_are_noted(folder):
    claim = next(iter(claims.ledger().values()))
    claims.trial(claim.id, "in words", you=claims.read(claim.id, guess=claim.verdict))
    claims.trial(claim.id, "in words", you=claims.read(claim.id))
    machine()
    assert chapter(folder)["verdicts"] == {claim.id: {"guess": claim.verdict, "right": True}}
    assert chapter(folder)["opened"]


def test_elsewhere_nothing_is_noted(folder, tmp_path, monkeypatch):
    """In notebooks/, in another folder, without a session; and by what a notebook starts: a test, a grader."""
    other = tmp_path / "notebooks"
    other.mkdir()
    places = [
        (folder / "chapters", ""),
        (other, str(other / "02_where.ipynb")),
        (other, str(folder / "chapters/02_where.ipynb")),
        (folder / "chapters", str(folder / "chapters/mine.ipynb")),
        (folder / "chapters", "02_where.ipynb"),
    ]
    for place, session in places:
        monkeypatch.chdir(place)
        monkeypatch.setenv("JPY_SESSION_NAME", session)
        predict("x", guess=1)
    monkeypatch.delenv("JPY_SESSION_NAME")
    predict("x", guess=1)
    assert not list(tmp_path.rglob("*progress*"))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"chapters": []}', '{"chapters": {"02": 3}}', '{"chapters": {"02": {"predictions": 3}}}'],
)
def test_a_broken_file_is_a_line_once_and_stays_as_it_is(folder, text, capsys):
    (folder / notes.FILE).write_text(text)
    for _ in range(2):
        compare(2**30, you=predict("x", guess=1))
    said = capsys.readouterr().out
    assert said.count("Your progress is not noted") == 1
    assert "may be deleted" in said
    assert (folder / notes.FILE).read_text() == text


def test_where_nothing_can_be_written_it_is_a_line(folder, capsys):
    """A folder in the file's place stops even root."""
    (folder / notes.FILE).mkdir()
    predict("x", guess=1)
    assert "Your progress is not noted" in capsys.readouterr().out
    shutil.rmtree(folder / notes.FILE)


def test_a_workspace_that_is_gone_is_no_error(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(folder)
    predict("x", guess=1)
    notes.checked(folder, "02", {})
    assert capsys.readouterr().out == "Your guess, x: 1 MiB\n"


def test_what_was_tried_once_stays_tried(folder):
    row = {"title": "1 One", "earned": 0, "points": 2}
    notes.checked(folder, "05", {"one": {**row, "tried": True}})
    notes.checked(folder, "05", {"one": {**row, "tried": False, "earned": 1}})
    kept = notes.read(folder)["labs"]["05"]["questions"]["one"]
    assert kept == {**row, "tried": True, "earned": 1}
    assert json.loads((folder / notes.FILE).read_text())["chapters"] == {}
