"""Whatever reaches another process beside the collectives is refused, and what does not goes on."""

from __future__ import annotations

import gzip
import importlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from helpers.memory.measure import CollectivesAlone

WAYS = {
    "a file": lambda folder: (folder / "new").write_text("3"),
    "a file that is there": lambda folder: os.close(os.open(folder / "there", os.O_WRONLY)),
    "a packed file": lambda folder: gzip.open(folder / "new", "wb").close(),
    "a folder's name": lambda folder: (folder / "3").mkdir(),
    "a link": lambda folder: (folder / "link").symlink_to("3"),
    "a date": lambda folder: os.utime(folder / "there", (3, 3)),
    "a socket": lambda folder: socket.socket(socket.AF_UNIX).close(),
    "a process": lambda folder: subprocess.run(["true"], check=True),
    "a store": lambda folder: dist.HashStore().set("mine", "3"),
    "a file by another thread": lambda folder: in_a_thread(lambda: (folder / "new").write_text("3")),
}


def in_a_thread(work):
    problems = []

    def caught():
        try:
            work()
        except PermissionError as error:
            problems.append(error)

    thread = threading.Thread(target=caught)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "there").write_text("2")
    return tmp_path


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_way_beside_the_collectives_is_refused_while_it_is_open(folder, way):
    with CollectivesAlone(), pytest.raises(PermissionError, match="by collectives alone"):
        way(folder)
    assert {path.name for path in folder.iterdir()} == {"there"}
    assert (folder / "there").read_text() == "2"
    way(folder)


def test_reading_goes_on_and_an_import_that_cannot_keep_its_cache(folder, monkeypatch):
    Path(folder / "module_of_mine.py").write_text("THREE = 3")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with CollectivesAlone():
        assert importlib.import_module("module_of_mine").THREE == 3
        assert (folder / "there").read_text() == "2"
    assert not (folder / "__pycache__").exists()


def group_within():
    with CollectivesAlone():
        groups = [dist.new_group([0, 1]) for _ in range(3)]
        objects = [None, None]
        dist.all_gather_object(objects, "x" * 5000, group=groups[0])
        dist.barrier(groups[1])
    return len(objects[1])


def test_new_groups_and_collectives_go_on(ranks2):
    assert ranks2.run(group_within) == [5000, 5000]
