"""`workbook grade`: a whole class, to gradebook, feedback and summary; interrupted anywhere, it goes on from there.

OUT/results/<slug>.json     one learner, written whole or not at all: what a second run does not do again
OUT/executed/<slug>.ipynb   the notebook as it ran
OUT/feedback/<slug>.html    for the learner
OUT/gradebook.csv, gradebook_long.csv, manual.csv, summary.html, manifest.json, ...: see `publish`
OUT/reference.json          the worked lab, run: see `stored_reference`
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import secrets
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from ..catalog.errors import WorkbookError, unknown_name
from ..course import notebook as nb
from . import executors, roster, stored_reference
from . import publish as publishing
from .check import one_lab
from .intake import submissions as intake
from .judging.marking import Marked, blank, fingerprint, not_submitted
from .judging.reference import SPARE_S, WALL_S, Reference, ReferenceFailedError, find_checks, modules, prepare, versions
from .judging.results import GRADED, NOT_SUBMITTED, Result, from_json
from .reports import gradebook, manual
from .sandbox import levels
from .sandbox.isolation import Limits
from .sandbox.worker import Worker
from .text import one_line

ALL_GRADED, REFERENCE_FAILED, ATTENTION, NOT_WRITTEN, INTERRUPTED = 0, 1, 3, 4, 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Options:
    """How to grade; see `workbook grade --help`. `spare_s` and `wall_s` are the time limits (`reference.prepare`).

    `roster` is the table of the class, `due` a policy's file, `format` an LMS (canvas, moodle), `gradebook` its export,
    `assignment` the column there.
    """

    seed: str | None = None
    jobs: int = 2
    only: tuple[str, ...] = ()
    force: bool = False
    strict: bool = False
    trust_learners: bool = False
    checks: Path | None = None
    cluster: str | None = None
    roster: Path | None = None
    due: Path | None = None
    format: str | None = None
    gradebook: Path | None = None
    assignment: str | None = None
    spare_s: float = SPARE_S
    wall_s: float = WALL_S


def grade(lab: str, submissions: Path, out: Path, root: Path, options: Options | None = None) -> int:
    """Grade every submission, write everything below `out`: 0 all graded, 1 the reference fails, 3 some need attention.

    130 after Ctrl-C, and 4 when `out` cannot be written: what was done is there, and the same command goes on.
    WorkbookError for unusable input.
    """
    try:
        return _graded(lab, submissions, out, root, options or Options())
    except OSError as error:
        if not _is_unwritable(error, out):
            raise
        why = error.strerror or type(error).__name__
        rest = "what is there is whole: make room or allow writing, and the same command goes on"
        print(f"workbook: {out} cannot be written ({why.lower()}); {rest}", file=sys.stderr)
        return NOT_WRITTEN


def _is_unwritable(error: OSError, out: Path) -> bool:
    """Whether the results could not be written, as against a file that could not be read or is not there."""
    inside = isinstance(error.filename, str) and Path(error.filename).absolute().is_relative_to(out.absolute())
    return error.errno in _NO_ROOM or (error.errno in _FORBIDDEN and inside)


def _graded(lab: str, submissions: Path, out: Path, root: Path, options: Options) -> int:
    path = one_lab(lab, root)
    checks = find_checks(options.checks, path.stem) if options.checks else None
    wanted = publishing.wanted(path.stem, options.due, options.format, options.gradebook, options.assignment)
    members = roster.read(options.roster) if options.roster else []
    with _folder(out) as before, contextlib.ExitStack() as cleanup:
        taken_in = out / ".submissions"
        cleanup.callback(shutil.rmtree, taken_in, ignore_errors=True)
        everybody = intake.find(submissions, path.stem, taken_in)
        if options.roster:
            everybody = roster.placed(everybody, members, options.roster.name)
        manual.filled_rows(out / "manual.csv")  # a slip in it is reported now
        level = levels.best(options.trust_learners)
        print(f"sandbox: {level}", file=sys.stderr)
        seed = options.seed or before.get("seed") or str(secrets.randbelow(10**15))
        try:
            reference = _reference(path, seed, checks, level, out, options)
        except ReferenceFailedError as error:
            print(f"workbook: {error}\nNobody was graded.", file=sys.stderr)
            return REFERENCE_FAILED
        manifest = _manifest(reference, level, before, options)
        _store(out / "manifest.json", manifest)
        return _grade(everybody, reference, level, out, options, manifest, wanted)


def _reference(
    path: Path, seed: str, checks: Path | None, level: levels.SandboxLevel, out: Path, options: Options
) -> Reference:
    """The worked lab with this seed: what `out` holds of an earlier run, as long as nothing has changed.

    Without a sandbox nothing is stored: a learner's code could read there what it is compared with.
    """
    stored, limits = out / "reference.json", (options.spare_s, options.wall_s)

    def run() -> Reference:
        print("the worked lab is run with the inputs of this class; the learners come after it", file=sys.stderr)
        with Worker(level, modules(nb.read(path))) as worker:
            return prepare(worker, path, seed, checks, *limits)

    if options.force or not level.is_sandbox:
        stored.unlink(missing_ok=True)
    if not level.is_sandbox:
        return run()
    fingerprint = stored_reference.fingerprint(path, checks, seed, *limits, Limits(), level)
    return stored_reference.load_or_prepare(stored, fingerprint, run)


def _grade(
    everybody: list[intake.LearnerNotebook],
    reference: Reference,
    level: levels.SandboxLevel,
    out: Path,
    options: Options,
    manifest: dict,
    wanted: publishing.Wanted,
) -> int:
    blanks = [blank(reference, one, one.slug) for one in everybody]
    manual.merged(blanks, out / "manual.csv")  # a row that belongs nowhere is reported now, not after an hour
    wanted.require(blanks)
    known = {} if options.force else {slug: result.fingerprint for slug, result in _stored(out).items()}
    absent = {one.slug: not_submitted(reference, one) for one in everybody if one.is_absent}
    selected = [one for one in _selected(everybody, options.only) if not one.is_absent]
    work = [(one, one.slug) for one in wanted.graded(selected) if known.get(one.slug) != fingerprint(reference, one)]
    interrupted = False
    try:
        with _Progress(len(work)) as progress:
            for marked in progress.until_done(_marked(work, reference, level, options, progress)):
                _keep(marked, out)
    except KeyboardInterrupt:
        interrupted = True
    stored, handed_in = _stored(out) | absent, {one.slug: one for one in wanted.graded(everybody)}
    results = [stored[slug] for slug in handed_in if slug in stored]
    manifest["finished"] = _now()
    results, said = publishing.publish(results, blanks, handed_in, reference, out, wanted, manifest)
    _store(out / "manifest.json", manifest | {"learners": len(results), "due": bool(wanted.policy)})
    if interrupted:
        done = f"{len(results)} of {len(everybody)} learners are graded"
        print(f"\ninterrupted: {done}; the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    return _print_outcome(results, len(work) + len(absent), said, out)


def _marked(
    work: executors.Work, reference: Reference, level: levels.SandboxLevel, options: Options, progress: _Progress
) -> executors.MarkedOnes:
    if options.cluster and work:
        return executors.cluster(work, reference, level, options.cluster, options.strict)
    return executors.local(work, reference, level, options.jobs, options.strict, progress.started)


def _keep(marked: Marked, out: Path) -> None:
    slug = marked.result.slug
    if marked.executed is not None:
        (out / "executed").mkdir(exist_ok=True)
        nb.write(out / "executed" / f"{slug}.ipynb", marked.executed)
    _store(out / "results" / f"{slug}.json", asdict(marked.result))


def _stored(out: Path) -> dict[str, Result]:
    """By slug, each whole result of earlier runs."""
    found = {}
    for path in (out / "results").glob("*.json"):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # of another version: graded again
            result = from_json(json.loads(path.read_text(encoding="utf-8")))
            found[result.slug] = result
    return found


def _selected(everybody: list[intake.LearnerNotebook], only: tuple[str, ...]) -> list[intake.LearnerNotebook]:
    learners = [one.learner for one in everybody]
    for name in only:
        if name not in learners:
            raise unknown_name("learner", name, learners)
    return [one for one in everybody if not only or one.learner in only]


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[dict]:
    """`out`, made if need be and ours alone while we grade; the manifest of the run before, or {}."""
    for folder in (out / "results", out / "feedback"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            what, do = f"{out} is a file, or holds one called {folder.name}", "name another folder with --out"
            raise WorkbookError(what, "a folder for the results", do) from None
    with open(out / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"{out} is being written by another `workbook grade`"
            do = "wait for it, or name another folder with --out"
            raise WorkbookError(what, "a folder of this run's own", do) from None
        for leftover in [*out.glob(".*.tmp"), *out.glob("*/.*.tmp")]:  # of a run that was killed while it wrote
            leftover.unlink(missing_ok=True)
        before = {}
        with contextlib.suppress(OSError, ValueError):
            before = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
        yield before


def _manifest(reference: Reference, level: levels.SandboxLevel, before: dict, options: Options) -> dict:
    same = before.get("reference") == reference.digest
    return {
        "lab": reference.lab,
        "title": reference.title,
        "seed": reference.seed,
        "sandbox": str(level),
        "strict": options.strict,
        "private_checks": options.checks is not None,
        "reference": reference.digest,
        "due": before.get("due", False),  # whether what was published last had deductions
        "versions": versions(),
        "started": before.get("started") if same else _now(),
        "finished": None,
    }


class _Progress:
    """A bar with the time that is left, and whose notebook is being graded; nothing where no person looks on."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self.bar = tqdm(total=total, unit="lab", disable=None if total else True)
        self.now: list[str] = []

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def started(self, notebook: intake.LearnerNotebook) -> None:
        """A worker begins with it."""
        self.now.append(one_line(notebook.learner, 24))
        self.bar.set_postfix_str(", ".join(self.now))

    def until_done(self, marked: executors.MarkedOnes) -> Iterator[Marked]:
        """Each as it comes, counted."""
        with contextlib.closing(marked):
            for one in marked:
                name = one_line(one.result.learner, 24)
                if name in self.now:
                    self.now.remove(name)
                self.bar.set_postfix_str(", ".join(self.now), refresh=False)
                self.bar.update()
                yield one


def _print_outcome(results: list[Result], graded_now: int, said: list[str], out: Path) -> int:
    others = [result for result in results if result.status not in (GRADED, NOT_SUBMITTED)]
    absent = [one_line(result.learner, 60) for result in results if result.status == NOT_SUBMITTED]
    before = len(results) - graded_now
    print(f"{len(results)} learners" + (f", {before} of them graded before" if before > 0 else ""))
    if absent:
        more = f" and {len(absent) - 20} more" if len(absent) > 20 else ""
        print(f"  {len(absent)} handed in nothing: {', '.join(absent[:20])}{more}")
    for result in others[:20]:
        print(f"  {result.status}: {one_line(result.learner, 60)}: {one_line('; '.join(result.reasons), 200)}")
    if len(others) > 20:
        print(f"  and {len(others) - 20} more: see manual.csv")
    for line in said:
        print(one_line(line, 300) if not line.startswith("  ") else f"  {one_line(line, 300)}")
    print(f"{out / 'gradebook.csv'}\n{out / 'summary.html'}")
    return ATTENTION if others else ALL_GRADED


def _store(path: Path, values: dict) -> None:
    gradebook.store(path, json.dumps(values, indent=1) + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
