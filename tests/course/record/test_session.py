"""A session writes after each experiment, goes on where it stopped, skips, reports, and keeps to its time."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.course.record import listing, record, session
from helpers.course.record.experiments import Experiment
from helpers.course.record.target import MeasuredFigure
from helpers.memory.accuracy.recordings import read, read_all
from helpers.memory.allocator import compare_with_snapshot
from tests.course.record.rehearsal import MADE, rehearsed

GIB = 2**30


def figures(*values, label="case"):
    return [MeasuredFigure(label, "held", "bytes", {"kind": "none"}, (value,)) for value in values]


class Table:
    """Experiments by name that note when they run; `does` is called with the target and gives the figures."""

    def __init__(self, monkeypatch) -> None:
        self.ran: list[str] = []
        self.experiments: list[Experiment] = []
        monkeypatch.setattr(session, "chosen", lambda names=(): self.experiments)

    def add(self, name, does=lambda target: figures(7), needs=0):
        def run(target):
            self.ran.append(name)
            return does(target)

        self.experiments.append(Experiment(name, "a test", lambda sizes: needs, run))


@pytest.fixture
def table(monkeypatch):
    return Table(monkeypatch)


@pytest.fixture
def recorded_into(tmp_path):
    """Records into a folder of its own; gives the exit code and what was said."""

    def run(**options):
        said: list[str] = []
        with rehearsed(**options.pop("gpu", {})) as target:
            code = record(tmp_path, target=target, say=said.append, **options)
        return code, "\n".join(said)

    run.path = tmp_path / "rehearsal.json"
    return run


def test_each_is_written_with_its_setup_and_provenance(table, recorded_into):
    table.add("01/a", lambda target: figures(7, 8))
    assert recorded_into() == (
        0,
        "a rehearsal on this CPU, 16.00 GiB free\n✓ 01/a: 2 figures, 0 s\n"
        f"wrote {recorded_into.path.parent.name}/rehearsal.json",
    )
    entries = read(recorded_into.path).entries
    assert [(entry.experiment, entry.value, entry.made) for entry in entries] == [("01/a", 7, MADE), ("01/a", 8, MADE)]
    assert json.loads(recorded_into.path.read_text())["entries"][0]["driver"] == "580.65"


def test_it_goes_on_where_it_stopped_and_force_begins_again(table, recorded_into):
    values = itertools.count(1)
    table.add("01/a", lambda target: figures(next(values)))
    recorded_into()
    table.add("02/b")
    assert "– 01/a: recorded already" in recorded_into()[1]
    assert table.ran == ["01/a", "02/b"]
    recorded_into(force=True)
    found = read(recorded_into.path)
    assert [entry.value for entry in found.of("01/a")] == [2]
    assert found.experiments == ("01/a", "02/b")


def test_an_interruption_keeps_what_was_done(table, recorded_into):
    def interrupted(target):
        raise KeyboardInterrupt

    table.add("01/a")
    table.add("02/b", interrupted)
    code, said = recorded_into()
    assert (code, read(recorded_into.path).experiments) == (130, ("01/a",))
    assert "the same command goes on" in said
    table.experiments[1] = Experiment("02/b", "", lambda sizes: 0, lambda target: figures(3))
    assert recorded_into()[0] == 0
    assert read(recorded_into.path).experiments == ("01/a", "02/b")
    assert not list(recorded_into.path.parent.glob(".*")), "a half-written file was left"


def test_a_failure_is_told_writes_nothing_and_the_others_go_on(table, recorded_into):
    def too_large(target):
        yield figures(5)[0]
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.91 GiB.\nmore lines")

    def misused(target):
        raise WorkbookError("bitsandbytes is missing", "it", "pip install it")

    table.add("01/a", too_large)
    table.add("02/b", misused)
    table.add("03/c")
    code, said = recorded_into()
    assert code == 1
    assert "✗ 01/a: OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB.\n" in said
    assert "✗ 02/b: bitsandbytes is missing; pip install it\n" in said
    assert "failed: 01/a, 02/b; nothing of them was written" in said
    assert read(recorded_into.path).experiments == ("03/c",)


def test_a_failure_holds_no_tensor_alive(table, recorded_into):
    seen = []

    def too_large(target):
        kept = torch.ones(2**20)
        raise torch.OutOfMemoryError(f"{kept.numel()} values")

    table.add("01/a", too_large)
    table.add("02/b", lambda target: seen.append(target.gpu.memory().allocated) or figures(1))
    assert recorded_into()[0] == 1
    assert seen == [0]


def test_what_does_not_fit_is_skipped_with_the_reason(table, recorded_into):
    table.add("01/a", needs=3 * GIB)
    table.add("02/b", needs=2 * GIB)
    code, said = recorded_into(gpu={"free_bytes": 2 * GIB})
    assert (code, table.ran) == (0, ["02/b"])
    assert "– 01/a: skipped, it needs 3.00 GiB and 2.00 GiB are free" in said
    assert read(recorded_into.path).experiments == ("02/b",)


def test_nothing_is_begun_that_would_end_late(table, recorded_into):
    """The clock ticks 40 seconds at each look; an experiment is begun, seen to run, and ended."""
    ticks = itertools.count(step=40)
    for name in ("01/a", "02/b", "03/c"):
        table.add(name)
    code, said = recorded_into(minutes=5, clock=lambda: next(ticks))
    assert (code, table.ran) == (0, ["01/a"])
    assert "time is up before 02/b, 03/c; the same command goes on" in said
    assert recorded_into()[0] == 0
    assert read(recorded_into.path).experiments == ("01/a", "02/b", "03/c")


def test_a_number_that_cannot_be_is_not_written(table, recorded_into):
    table.add("01/a", lambda target: figures(0))
    code, said = recorded_into()
    assert code == 1
    assert "values is (0,)" in said
    assert not recorded_into.path.exists()


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_minutes_above_zero(minutes, tmp_path):
    with pytest.raises(WorkbookError, match="minutes is"), rehearsed() as target:
        record(tmp_path, minutes=minutes, target=target)


def test_histories_lie_beside_and_replay(tmp_path):
    """The real thing, in two calls: snapshots in files of a few kilobytes."""
    for names in (["03/snapshot-cat"], ["03/snapshot-random"]):
        with rehearsed() as target:
            assert record(tmp_path, names, target=target, say=lambda line: None) == 0
    (found,) = read_all(tmp_path)
    files = sorted(path.name for path in (tmp_path / "rehearsal.snapshots").iterdir())
    assert files == ["03-snapshot-cat-0.json.gz", "03-snapshot-random-0.json.gz"]
    for entry in found.entries:
        assert compare_with_snapshot(found.snapshot(entry)).replay.peak_reserved_bytes == entry.value


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_refuses_and_writes_nothing(tmp_path, capsys):
    assert main(["record", "--out", str(tmp_path / "new")]) == 2
    told = capsys.readouterr()
    assert "only what was measured" in told.err
    assert "docs/rented-machine.md" in told.err
    assert not (tmp_path / "new").exists()


def test_list_needs_no_gpu_and_says_what_is_recorded(tmp_path, capsys):
    with rehearsed() as target:
        record(tmp_path, ["03/snapshot-cat"], target=target, say=lambda line: None)
    assert main(["record", "--list", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == listing(tmp_path).splitlines()
    where = {line.split()[0]: line.split()[-1] for line in lines[1:]}
    assert where["03/snapshot-cat"] == "rehearsal"
    assert where["01/roofline"] == "–"
    assert lines[3].split()[:3] == ["03/snapshot-train", "03", "13.9"]


def test_an_unknown_experiment_is_refused_before_the_gpu_is_asked(tmp_path, capsys):
    assert main(["record", "--only", "01/bandwith", "--out", str(tmp_path)]) == 2
    assert "did you mean '01/bandwidth'?" in capsys.readouterr().err
