"""What a listing shows of a folder or a zip, and what it refuses to give."""

from __future__ import annotations

import os
import shutil
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog.errors import WorkbookError
from helpers.grading.intake import archives, files
from helpers.grading.intake.archives import class_archive
from helpers.grading.intake.files import Folder, Refused, SubmittedFile
from helpers.grading.intake.submissions import find
from tests.grading.broken_archives import of, zipped
from tests.grading.broken_files import put

LAB_ENTRY = SubmittedFile(("ada", "work", "lab.ipynb"))


@pytest.fixture
def root(tmp_path):
    """A class of one, and a secret that lies outside."""
    put(tmp_path / "class/ada/work/lab.ipynb", b"{}")
    put(tmp_path / "outside/work/lab.ipynb", b"secret")
    return tmp_path / "class"


@pytest.fixture
def folder(root):
    opened = Folder(root)
    yield opened
    opened.close()


def test_a_listing_shows_folders_and_files(folder):
    assert folder.entries == [SubmittedFile(("ada",), True), SubmittedFile(("ada", "work"), True), LAB_ENTRY]
    assert folder.contents(LAB_ENTRY) == b"{}"


def link_the_file(root):
    (root / "ada/work/lab.ipynb").unlink()
    (root / "ada/work/lab.ipynb").symlink_to(root.parent / "outside/work/lab.ipynb")


def link_the_folder(root):
    shutil.rmtree(root / "ada/work")
    (root / "ada/work").symlink_to(root.parent / "outside/work")


def link_the_learner(root):
    shutil.rmtree(root / "ada")
    (root / "ada").symlink_to(root.parent / "outside")


def put_a_fifo(root):
    (root / "ada/work/lab.ipynb").unlink()
    os.mkfifo(root / "ada/work/lab.ipynb")


def grow(root):
    put(root / "ada/work/lab.ipynb", bytes(2000))


@pytest.mark.parametrize("change", [link_the_file, link_the_folder, link_the_learner, put_a_fifo, grow, shutil.rmtree])
def test_what_was_changed_since_it_was_listed_is_refused(root, folder, monkeypatch, change):
    monkeypatch.setattr(files, "MOST_FILE_BYTES", 1000)
    assert folder.contents(LAB_ENTRY) == b"{}"
    change(root)
    with pytest.raises(Refused, match=r"cannot be read|not a regular file|more than"):
        folder.contents(LAB_ENTRY)


def test_a_file_that_grows_while_it_is_read_is_refused(root, folder, monkeypatch):
    monkeypatch.setattr(files, "MOST_FILE_BYTES", 1000)
    facts = os.stat(root / "ada/work/lab.ipynb")
    grow(root)
    monkeypatch.setattr(os, "fstat", lambda descriptor: facts)
    with pytest.raises(Refused, match="more than"):
        folder.contents(LAB_ENTRY)


def test_a_folder_or_file_that_may_not_be_opened_is_a_reason(root, monkeypatch):
    """As an ordinary user meets it; root may open everything, so the refusal is played."""
    put(root / "bob/lab.ipynb", b"{}")
    put(root / "cleo.ipynb", b"{}")
    opened = os.open

    def refuse(path, flags, *rest, **more):
        if path in ("work", "cleo.ipynb"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    reasons = {one.learner: one.reason for one in find(root, "05_numbers", root.parent / "into")}
    assert reasons == {
        "ada": "work cannot be read (permission denied)",
        "bob": "",
        "cleo": "cleo.ipynb cannot be read (permission denied)",
    }


def test_links_are_listed_and_never_followed(root):
    (root / "bob").symlink_to(root.parent / "outside")
    (root / "ada/loop").symlink_to(root)
    found = {entry.parts: entry.problem for entry in Folder(root).entries}
    assert found["bob",] == found["ada", "loop"] == files.LINK
    assert len(found) == 5


@pytest.fixture
def small(monkeypatch):
    """Limits of 5 files a learner and 20 in all."""
    for name, number in ("files.MOST_FILES", 5), ("submissions.MOST_FILES", 5), ("files.MOST_ENTRIES", 20):
        monkeypatch.setattr(f"helpers.grading.intake.{name}", number)
    monkeypatch.setattr("helpers.grading.intake.submissions.MOST_ENTRIES", 20)


def test_a_learner_with_very_many_files_does_not_hide_the_others(root, small):
    for number in range(30):
        put(root / f"aaa/{number % 3}/{number}.txt", b"")
        put(root / f"bbb/data/{number}.txt", b"")
    put(root / "bbb/lab.ipynb", b"{}")
    found = {one.learner: one for one in find(root, "05_numbers", root.parent / "into")}
    assert "no notebook" in found["aaa"].reason
    assert found["bbb"].warnings == ("only 5 of the files were looked at",)
    assert not found["ada"].reason


@pytest.mark.parametrize("around", ["submitted", "spring", "spring/submitted"])
def test_nor_where_the_class_lies_in_a_folder_of_its_own(tmp_path, small, around):
    if around == "submitted":
        put(tmp_path / "class/source/x/x.ipynb", b"{}")
    for number in range(8):
        put(tmp_path / "class" / around / f"{number}.ipynb", b"{}")
    for number in range(12):
        put(tmp_path / "class" / around / "flood" / f"{number}.txt", b"{}")
    found = find(tmp_path / "class", "05_numbers", tmp_path / "into")
    assert [one.learner for one in found if not one.path] == ["flood"]
    assert len(found) == 9


def test_a_chain_of_folders_ends(tmp_path):
    tmp_path.joinpath(*["d"] * 60).mkdir(parents=True)
    assert len(Folder(tmp_path).entries) == files.MOST_DEPTH + 1


def test_a_class_of_very_many_files_is_told(root, small):
    for number in range(17):
        put(root / f"{number}.ipynb", b"{}")
    assert find(root, "05_numbers", root.parent / "into")
    put(root / "bob.ipynb", b"{}")
    with pytest.raises(WorkbookError, match="more than 20 files"):
        find(root, "05_numbers", root.parent / "into")


def test_a_folder_below_very_many_is_not_entered(root):
    put(root / "ada" / "/".join(["deeper"] * 12) / "lab.ipynb", b"{}")
    problems = [entry.problem for entry in Folder(root).entries if entry.problem]
    assert problems == [files.TOO_DEEP]
    assert max(len(entry.parts) for entry in Folder(root).entries) == files.MOST_DEPTH + 1


def test_all_that_an_archive_unpacks_to_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_UNPACKED_BYTES", 1500)
    of("a.ipynb", "b.ipynb", "c.ipynb")(tmp_path / "class.zip", bytes(1000))
    reasons = [one.reason for one in find(tmp_path / "class.zip", "05_numbers", tmp_path / "into")]
    assert reasons[:2] == ["", ""]
    assert "unpack it yourself" in reasons[2]


def test_a_file_that_unpacks_to_more_than_it_says_is_refused(tmp_path, monkeypatch):
    of("a.ipynb")(tmp_path / "class.zip", bytes(1000))
    opened = class_archive(tmp_path / "class.zip")
    monkeypatch.setattr(archives, "MOST_FILE_BYTES", 999)
    with pytest.raises(Refused, match="more than"):
        opened.contents(opened.entries[0])


def test_a_huge_table_of_contents_is_not_read(tmp_path, monkeypatch):
    zipped(*((f"{number}.ipynb", b"") for number in range(50)))(tmp_path / "class.zip", b"")
    monkeypatch.setattr(archives, "MOST_DIRECTORY_BYTES", 2000)
    with pytest.raises(WorkbookError, match="table of contents"):
        class_archive(tmp_path / "class.zip")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def packed(scratch):
    with zipfile.ZipFile(scratch / "right.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("ada/lab.ipynb", b"{}" * 50)
        file.writestr("bob/lab.ipynb", b"[]" * 50)
    return (scratch / "right.zip").read_bytes()


@settings(max_examples=150)
@given(st.data())
def test_a_zip_with_any_bytes_replaced_gives_rows_or_is_told(scratch, packed, data):
    changed = bytearray(packed)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    put(scratch / "class.zip", bytes(changed))
    try:
        rows = find(scratch / "class.zip", "05_numbers", scratch / "into")
    except WorkbookError:
        return
    for row in rows:
        assert bool(row.path) != bool(row.reason)
        row.learner.encode()
