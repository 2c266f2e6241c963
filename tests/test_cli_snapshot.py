"""`workbook snapshot`: in words, in bytes, and what it refuses."""

import gzip
import json
import pickle

import pytest

from helpers.cli import main
from helpers.memory.accuracy.published import FOLDER
from helpers.memory.allocator import MIB, alloc, free
from tests.memory.allocator.snapshots import snapshot_of

STEPS = [alloc("a", 30 * MIB), alloc("b", 20 * MIB), free("a"), alloc("c", 4 * MIB), free("b")]


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "run.pickle"
    made.write_bytes(pickle.dumps(snapshot_of(STEPS)))
    return str(made)


def test_in_words(path, capsys):
    assert main(["snapshot", path, "--settings", "max_split_size_mb:20"]) == 0
    said = capsys.readouterr().out
    for words in (
        "GPU 0: 5 requests; the history begins with an empty allocator",
        "equal: 5 events, 3 allocations by address",
        "peak in tensors    50.00 MiB   at request 1",
        "70.00 MiB  max_split_size_mb:20",
    ):
        assert words in said


def test_in_bytes(path, capsys):
    assert main(["snapshot", path, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["replays_exactly"] is True
    assert found["peak_allocated_bytes"] == 50 * MIB
    assert found["reserved_with_bytes"]["expandable_segments:True"] == 60 * MIB


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nowhere.pickle",), "cannot read"),
        (("PATH", "--device", "3"), "no history of device 3"),
        (("PATH", "--settings", "max_split:3"), "max_split"),
    ],
)
def test_what_is_wrong_is_told(path, words, told, capsys):
    assert main(["snapshot", *(path if word == "PATH" else word for word in words)]) == 2
    assert told in capsys.readouterr().err


def test_a_published_history_that_the_repository_ships(capsys):
    assert main(["snapshot", str(FOLDER / "transformer-step.snapshot")]) == 0
    said = capsys.readouterr().out
    assert "equal: 7544 events, 3853 allocations by address, 65 calls to the driver, every final block" in said
    assert "peak reserved     750.00 MiB" in said


def test_what_is_packed_and_no_history_is_refused(tmp_path, capsys):
    path = tmp_path / "run.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(snapshot_of(STEPS))))
    assert main(["snapshot", str(path)]) == 2
    assert "no packed snapshot" in capsys.readouterr().err
