"""Take the submissions in: a private copy of each learner's notebook, or the reason why there is none.

Accepted: a folder of notebooks, a folder per learner, nbgrader's `submitted/` or the course around it, one notebook,
and a zip of any of them, as Moodle and Canvas make it too. Only the notebook is taken, never what lies beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.catalog.errors import WorkbookError
from helpers.course.grade.archive import Archive
from helpers.course.grade.choice import Choice, choose
from helpers.course.grade.listing import MOST_ENTRIES, Folder, OneFile
from helpers.course.grade.owners import NOTEBOOK, Belongings, belongings


@dataclass(frozen=True)
class Submission:
    """What one learner handed in.

    `path` is our copy of the notebook, or None; then `reason` says why, in a sentence for a person. `digest` is
    the SHA-256 of its bytes, '' if none. `number` is what the LMS calls the learner, where it says.
    """

    learner: str
    path: Path | None
    reason: str = ""
    warnings: tuple[str, ...] = ()
    digest: str = ""
    number: str = ""


def find(submissions: Path, lab: str, into: Path) -> list[Submission]:
    """Every learner's submission for `lab`, sorted by learner; no two learners have the same name.

    `lab` is the lab's file stem: where a learner handed in several notebooks, it tells which. The copies are
    written below `into`, under names of ours. WorkbookError when `submissions` is missing, is something else
    or holds nothing; whatever is wrong with one learner's files is that learner's `reason`.

    >>> find(Path("class.zip"), "05_numbers", Path("out/notebooks"))       # doctest: +SKIP
    [Submission(learner='Ada Lovelace', path=PosixPath('out/notebooks/0001.ipynb'), ...), ...]
    """
    if into.resolve().is_relative_to(submissions.resolve()):
        raise _unusable(submissions, f"holds {into}, where the results are to go")
    listing = _opened(submissions)
    try:
        if len(listing.entries) > MOST_ENTRIES:
            raise _unusable(submissions, f"holds more than {MOST_ENTRIES:,} files")
        everybody = belongings(listing.entries, lab)
        if not everybody:
            raise _unusable(submissions, "holds no submissions")
        into.mkdir(parents=True, exist_ok=True)
        return [
            _taken(own, choose(own, lab, listing.contents), into / f"{position:04d}{NOTEBOOK}")
            for position, own in enumerate(everybody, start=1)
        ]
    finally:
        listing.close()


def _taken(own: Belongings, choice: Choice, path: Path) -> Submission:
    if not choice.reason:
        path.write_bytes(choice.contents)
    return Submission(
        own.learner,
        None if choice.reason else path,
        choice.reason,
        (*own.warnings, *choice.warnings),
        choice.digest,
        own.number,
    )


def _opened(submissions: Path) -> Archive | Folder | OneFile:
    """The listing of a folder, a zip or one notebook; the path itself may be a link."""
    try:
        if submissions.is_dir():
            return Folder(submissions)
        if submissions.is_file() and submissions.suffix.lower() == ".zip":
            return Archive(submissions)
    except OSError as error:
        raise _unusable(submissions, f"cannot be read ({error.strerror})") from None
    if not submissions.exists():
        raise _unusable(submissions, "does not exist")
    if submissions.suffix.lower() != NOTEBOOK or not submissions.is_file():
        raise _unusable(submissions, "is neither a folder, nor a zip, nor a notebook")
    return OneFile(submissions)


def _unusable(submissions: Path, why: str) -> WorkbookError:
    return WorkbookError(
        f"{submissions} {why}",
        "a folder of notebooks, a folder per learner, the LMS's zip of them, or one .ipynb",
        "give the path of what you downloaded or collected",
    )
