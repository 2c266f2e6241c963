"""feedback.zip: every page under the name that the LMS knows its learner by."""

from __future__ import annotations

import doctest
import zipfile
from pathlib import Path

import pytest

from helpers.grading.upload import feedback_zip


def write(tmp_path: Path, **folders: str) -> dict[str, str]:
    for slug in folders:
        (tmp_path / "feedback").mkdir(exist_ok=True)
        (tmp_path / f"feedback/{slug}.html").write_text(f"page of {slug}")
    feedback_zip.write(folders, tmp_path)
    with zipfile.ZipFile(tmp_path / "feedback.zip") as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("José Ñandú_7_assignsubmission_file", "José Ñandú_7_assignsubmission_file/feedback.html"),
        ("Ada_7_assignsubmission_file_lab.ipynb", "Ada_7_assignsubmission_file_lab.ipynb.html"),
        ("lovelaceada_123_456_lab.IPYNB", "lovelaceada_123_456_lab.IPYNB.html"),
        ("lovelaceada_123_456_lab.zip", "lovelaceada_123_456_lab.zip.html"),
        ("123-456 - Ada - Oct 1, 2026 1200 PM", "123-456 - Ada - Oct 1, 2026 1200 PM/feedback.html"),
        ("ada.lovelace", "ada.lovelace/feedback.html"),
    ],
)
def test_a_folder_gets_a_page_and_a_file_a_page_beside_it(tmp_path, folder, name):
    assert write(tmp_path, ada=folder) == {name: "page of ada"}


@pytest.mark.parametrize("folder", ["", "..", ".", "a/b", "a\\b", "C:x", "a\nb", "\x00"])
def test_no_name_leads_anywhere_else(tmp_path, folder):
    assert write(tmp_path, ada=folder, ben="ben") == {"ben/feedback.html": "page of ben"}
    assert feedback_zip.write({"ada": folder}, tmp_path) == ["ada"]


def test_nobody_gets_anothers_page(tmp_path):
    """Two of one name, which no LMS makes: neither page may go to both."""
    assert len(write(tmp_path, ada="same", ben="same")) == 1


def test_the_same_pages_are_the_same_bytes(tmp_path):
    write(tmp_path, ada="ada", ben="ben")
    before = (tmp_path / "feedback.zip").read_bytes()
    write(tmp_path, ben="ben", ada="ada")
    assert (tmp_path / "feedback.zip").read_bytes() == before
    with zipfile.ZipFile(tmp_path / "feedback.zip") as archive:
        assert {info.date_time[0] for info in archive.infolist()} == {1980}


def test_a_page_that_is_not_there_is_left_out(tmp_path):
    assert feedback_zip.write({"ada": "ada"}, tmp_path) == ["ada"]
    assert doctest.testmod(feedback_zip).failed == 0
