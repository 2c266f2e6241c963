"""One call of `workbook record`: run what is missing, write after each experiment, keep to the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...catalog.errors import WorkbookError
from ...memory.accuracy.recordings import Entry, Recording, read, read_all, replace_whole, snapshots_folder, write
from ...memory.allocator import pack
from ...memory.breakdown import GIB, format_bytes
from .experiments import Experiment, chosen
from .target import FULL_SIZE, ExperimentSizes, Gpu, MeasuredFigure, Target

Say = Callable[[str], object]
INTERRUPTED = 130
AGAIN = "the same command goes on where this one stopped"


@dataclass
class RecordingSession:
    """Where it writes and what came of each experiment: names, in order."""

    target: Target
    folder: Path
    recording: Recording
    say: Say
    done: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def record(
    folder: Path,
    names: Sequence[str] = (),
    force: bool = False,
    minutes: float = 10,
    target: Target | None = None,
    say: Say = print,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run what `folder` does not hold yet of this device, or with `force` all of it.

    Returns 0, 1 when an experiment failed, and 130 after Ctrl-C, which keeps what was done.
    `names` picks experiments. No experiment is begun that would end after `minutes` if it took as long as the longest
    so far. WorkbookError without a GPU, before anything is written.
    """
    if not minutes > 0:
        raise WorkbookError(f"minutes is {minutes:g}", "more than 0", "leave it out for 10")
    wanted = chosen(names)
    target = target or Target(Gpu())
    session = RecordingSession(target, folder, _so_far(target, folder), say)
    say(f"{session.recording.machine.title}, {format_bytes(target.gpu.free_bytes())} free")
    pending = [one for one in wanted if force or one.name not in session.recording.experiments]
    for one in wanted:
        if one not in pending:
            say(f"– {one.name}: recorded already")
    try:
        _run_all(session, pending, 60 * minutes, clock)
    except KeyboardInterrupt:
        say(f"interrupted; {AGAIN}")
        return INTERRUPTED
    return _end(session)


def listing(folder: Path, sizes: ExperimentSizes = FULL_SIZE) -> str:
    """Each experiment with its chapter, what it needs, and on which devices it is recorded. Needs no GPU."""
    found = read_all(folder)
    lines = [f"{'experiment':<22}{'chapter':>8}{'GiB':>7}  {'what':<62}recorded on"]
    for one in chosen():
        where = ", ".join(recording.machine.name for recording in found if recording.of(one.name)) or "–"
        chapter = one.name.partition("/")[0]
        lines.append(f"{one.name:<22}{chapter:>8}{one.needs(sizes) / GIB:>7.1f}  {one.what:<62}{where}")
    return "\n".join(lines)


def _so_far(target: Target, folder: Path) -> Recording:
    machine = target.gpu.machine()
    path = folder / f"{machine.name}.json"
    return replace(read(path), machine=machine) if path.exists() else Recording(machine, (), str(folder))


def _run_all(
    session: RecordingSession, pending: Sequence[Experiment], limit_s: float, clock: Callable[[], float]
) -> None:
    start, longest = clock(), 0.0
    for at, one in enumerate(pending):
        begun = clock()
        if begun - start + longest > limit_s:
            session.say(f"time is up before {', '.join(other.name for other in pending[at:])}; {AGAIN}")
            return
        if _has_room(session, one):
            _run(session, one, clock)
        longest = max(longest, clock() - begun)


def _has_room(session: RecordingSession, one: Experiment) -> bool:
    session.target.gpu.clear()
    needs, free = one.needs(session.target.sizes), session.target.gpu.free_bytes()
    if needs > free:
        session.say(f"– {one.name}: skipped, it needs {format_bytes(needs)} and {format_bytes(free)} are free")
    return needs <= free


def _run(session: RecordingSession, one: Experiment, clock: Callable[[], float]) -> None:
    """Run one experiment and write its entries; a failure is told and leaves the file as it was."""
    begun = clock()
    try:
        figures = list(one.run(session.target))
        _keep(session, one, figures)
    except Exception as problem:  # any: a missing package, an out-of-memory error, a driver's mood
        session.say(f"✗ {one.name}: {_told(problem)}")
        session.failed.append(one.name)
    else:
        session.say(f"✓ {one.name}: {len(figures)} figures, {clock() - begun:.0f} s")
        session.done.append(one.name)


def _told(problem: Exception) -> str:
    if isinstance(problem, WorkbookError):
        return f"{problem.what}; {problem.do}"
    return f"{type(problem).__name__}: {(str(problem).strip().splitlines() or [''])[0]}"


def _keep(session: RecordingSession, one: Experiment, figures: Sequence[MeasuredFigure]) -> None:
    """Histories first, then the file that names them, so that it never names one that is not there."""
    made, device = session.target.gpu.made(), session.recording.machine.name
    entries = []
    for number, figure in enumerate(figures):
        fields, name = dict(vars(figure)), ""
        if (history := fields.pop("history")) is not None:
            name = f"{one.name.replace('/', '-')}-{number}.json.gz"
            replace_whole(snapshots_folder(session.folder, device) / name, pack(history))
        entries.append(Entry(one.name, made=made, snapshot=name, **fields))
    others = tuple(entry for entry in session.recording.entries if entry.experiment != one.name)
    recording = replace(session.recording, entries=(*others, *entries))
    write(recording, session.folder)
    session.recording = recording


def _end(session: RecordingSession) -> int:
    if session.failed:
        session.say(f"failed: {', '.join(session.failed)}; nothing of them was written")
    if session.done:
        session.say(f"wrote {session.folder.name}/{session.recording.machine.name}.json")
    return 1 if session.failed else 0
