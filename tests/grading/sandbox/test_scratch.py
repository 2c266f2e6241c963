"""Folders of our own: gone at the end, swept when their owner was killed, and nobody else's touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.grading.sandbox import scratch
from tests.house.tree import ROOT

HOLD = """
import sys, time
from pathlib import Path
from helpers.grading.sandbox import scratch
scratch.PLACE = Path(sys.argv[1])
with scratch.scratch() as folder:
    (folder / "deep").mkdir()
    (folder / "deep/link").symlink_to(sys.argv[1])
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(scratch, "PLACE", tmp_path / "tmp")
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def test_a_folder_is_private_and_gone_at_the_end(place):
    with scratch.scratch() as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o777 == 0o700
        assert scratch.sweep() == []
        assert folder.is_dir(), "its owner is here"
    assert list(place.iterdir()) == []


def test_what_a_killed_owner_leaves_is_swept_and_a_living_ones_is_not(place):
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(place)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    left = Path(owner.stdout.readline().strip())
    (place / "precious").write_text("linked to from the folder")
    assert scratch.sweep() == []
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert left.is_dir()
    assert scratch.sweep() == [left]
    assert [one.name for one in place.iterdir()] == ["precious"]


def others_folder(place: Path) -> None:
    (place / "wb-other").mkdir()
    (place / "wb-other" / scratch.OWNER).touch()
    os.chown(place / "wb-other", 61185, -1)


def link_to_one(place: Path) -> None:
    (place.parent / "elsewhere").mkdir()
    (place.parent / "elsewhere" / scratch.OWNER).touch()
    (place / "wb-link").symlink_to(place.parent / "elsewhere")


def linked_lock(place: Path) -> None:
    (place / "wb-linked").mkdir()
    (place / "wb-linked" / scratch.OWNER).symlink_to("/dev/null")


LEFT_ALONE = {
    "another user's": others_folder,
    "a link": link_to_one,
    "a lock that is a link": linked_lock,
    "no word of its owner": lambda place: (place / "wb-unknown").mkdir(),
    "a file": lambda place: (place / "wb-file").touch(),
    "being made": lambda place: (place / "wb.new-x").mkdir(),
    "another name": lambda place: (place / "wbx").mkdir(),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_not_known_to_be_ours_and_abandoned_is_left_alone(place, name):
    if name == "another user's" and os.geteuid():
        pytest.skip("only root can make a file another user's")
    LEFT_ALONE[name](place)
    before = sorted(place.rglob("*"))
    assert scratch.sweep() == []
    assert sorted(place.rglob("*")) == before
