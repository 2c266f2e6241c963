"""Take the submissions in: a private copy of each learner's notebook, or the reason why there is none.

Accepted: a folder of notebooks, a folder per learner, nbgrader's `submitted/` or the course around it, one notebook,
and a zip of any of them, as an LMS makes it too (see `lms`). Only the notebook is taken, never what lies beside it.
Where a learner handed in a zip and no notebook, the notebook in it is taken; a zip in that zip is not opened.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...catalog.errors import WorkbookError
from ..text import one_line
from .archives import Archive, class_archive, with_zips_opened
from .files import MOST_ENTRIES, MOST_FILES, Contents, Folder, OneFile, Refused, SubmittedFile
from .owners import NOTEBOOK, Submission, by_learner, copy_of, is_archive, is_notebook

MOST_NOTEBOOKS = 20  # of one learner that are looked into
MOST_ATTEMPTS = 100  # of one learner
MOST_NAMED = 3  # in a sentence

_SOURCE = re.compile(rb'"source"\s*:\s*"solutions/([^"/\\]{1,200})\.ipynb"')
THIS_LAB, NAMED_SO, SAYS_NOTHING, ANOTHER_LAB = range(4)
UNLIKE = 2
Listing = Archive | Folder | OneFile


@dataclass(frozen=True)
class LearnerNotebook:
    """One learner's notebook, taken in; or the reason why there is none.

    `path` is our copy of the notebook, or None; then `reason` says why, in a sentence for a person. `digest` is
    the SHA-256 of its bytes, '' if none. `number` is the LMS's own for the learner and `email` their address, each ''
    where nothing says. `handed_in` is the chosen file's time (UTC, ISO 8601; '' unknown). `folder` is what the LMS
    called the learner's folder, or file, as it came: what feedback is sent back under. `slug` is safe as a file's
    name and depends on nobody else. `attempts` are all of them, oldest first, where the LMS gave several: this one is
    the latest that holds a notebook. `notes` are for the instructor, who should look. `is_absent`: nothing was handed
    in, and the learner is known from the roster alone.
    """

    learner: str
    path: Path | None
    reason: str = ""
    warnings: tuple[str, ...] = ()
    digest: str = ""
    number: str = ""
    email: str = ""
    handed_in: str = ""
    folder: str = ""
    slug: str = ""
    attempts: tuple[LearnerNotebook, ...] = ()
    notes: tuple[str, ...] = ()
    is_absent: bool = False


def find(submissions: Path, lab: str, into: Path) -> list[LearnerNotebook]:
    """Every learner's submission for `lab`, sorted by learner; no two learners have the same name.

    `lab` is the lab's file stem: where a learner handed in several notebooks, it tells which. The copies are
    written below `into`, under names of ours. WorkbookError when `submissions` is missing, is something else
    or holds nothing; whatever is wrong with one learner's files is that learner's `reason`.

    >>> find(Path("class.zip"), "05_numbers", Path("out/notebooks"))       # doctest: +SKIP
    [LearnerNotebook(learner='Ada Lovelace', path=PosixPath('out/notebooks/0001.ipynb'), ...), ...]
    """
    if into.resolve().is_relative_to(submissions.resolve()):
        raise _unusable(submissions, f"holds {into}, where the results are to go")
    listing = _opened(submissions)
    try:
        if len(listing.entries) > MOST_ENTRIES:
            raise _unusable(submissions, f"holds more than {MOST_ENTRIES:,} files")
        everybody = by_learner(listing.entries, lab, listing.contents)
        if not everybody:
            raise _unusable(submissions, "holds no submissions")
        into.mkdir(parents=True, exist_ok=True)
        return [_learner(own, lab, listing, into, f"{position:04d}") for position, own in enumerate(everybody, start=1)]
    finally:
        listing.close()


def _learner(own: Submission, lab: str, listing: Listing, into: Path, name: str) -> LearnerNotebook:
    """The latest attempt that holds a notebook, else the latest, with all of them in it."""
    if not own.earlier:
        return _taken(own, own, choose(own, lab, listing.contents), listing, into / f"{name}{NOTEBOOK}")
    tries = [*own.earlier, own][-MOST_ATTEMPTS:]
    attempts = tuple(
        _taken(own, one, choose(one, lab, listing.contents), listing, into / f"{name}-{number}{NOTEBOOK}")
        for number, one in enumerate(tries, start=1)
    )
    latest = next((one for one in reversed(attempts) if one.path), attempts[-1])
    which = "the last" if latest is attempts[-1] else f"number {attempts.index(latest) + 1}, the last with a notebook,"
    warning = f"it was handed in {len(own.earlier) + 1} times; {which} is graded"
    return replace(latest, warnings=(*latest.warnings, warning), attempts=attempts)


def _taken(
    own: Submission, attempt: Submission, choice: ChosenNotebook, listing: Listing, path: Path
) -> LearnerNotebook:
    """One attempt of the learner whom `own` names."""
    if choice.entry is not None:
        path.write_bytes(choice.contents)
    time = attempt.handed_in
    return LearnerNotebook(
        learner=own.learner,
        path=path if choice.entry else None,
        reason=choice.reason,
        warnings=(*own.warnings, *choice.warnings),
        digest=choice.digest,
        number=own.number,
        email=own.email,
        handed_in=time if time is not None else listing.modified(choice.entry) if choice.entry else "",
        folder=attempt.top(choice.entry),
        slug=own.slug,
    )


def _opened(submissions: Path) -> Listing:
    """The listing of a folder, a zip or one notebook; the path itself may be a link."""
    try:
        if submissions.is_dir():
            return Folder(submissions)
        if submissions.is_file() and submissions.suffix.lower() == ".zip":
            return class_archive(submissions)
    except OSError as error:
        raise _unusable(submissions, f"cannot be read ({error.strerror})") from None
    if not submissions.exists():
        raise _unusable(submissions, "does not exist")
    if submissions.suffix.lower() != NOTEBOOK or not submissions.is_file():
        raise _unusable(submissions, "is neither a folder, nor a zip, nor a notebook")
    return OneFile(submissions)


def _unusable(submissions: Path, why: str) -> WorkbookError:
    expected = "a folder of notebooks, a folder per learner, the LMS's zip of them, or one .ipynb"
    return WorkbookError(f"{submissions} {why}", expected, "give the path of what you downloaded or collected")


@dataclass(frozen=True)
class ChosenNotebook:
    """The chosen notebook, its bytes and digest; or the reason why there is nothing to grade. Warnings either way.

    `entry` is the file that was handed in: the notebook, or the zip that it is in.
    """

    entry: SubmittedFile | None = None
    contents: bytes = b""
    digest: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    """`says` is the lab that it says it is. `order` puts the best first; it begins with the kind and the unlikeness."""

    entry: SubmittedFile
    digest: str
    says: str
    order: tuple

    @property
    def kind(self) -> int:
        return self.order[0]

    @property
    def is_another_lab(self) -> bool:
        """True when neither its mark nor its name is this lab's."""
        return self.kind == ANOTHER_LAB and self.order[1] == UNLIKE


def choose(own: Submission, lab: str, contents: Contents) -> ChosenNotebook:
    """The learner's notebook for `lab`, a file's stem such as '02_where_training_memory_goes'.

    `contents` gives an entry's bytes or raises Refused. A folder called like the lab (nbgrader's layout) is the only
    place to look. Of several notebooks that could be it, the one named like the lab and the newest copy is taken,
    with a warning that names them; one that says it is another lab is not taken.
    """
    entries = _for_lab(own, lab)
    packed_in: dict[SubmittedFile, SubmittedFile] = {}
    if not any(is_notebook(entry) for entry in entries):
        entries, contents, packed_in = with_zips_opened(entries, contents)
    notebooks = sorted(filter(is_notebook, entries), key=lambda entry: (_unlikeness(entry, lab), entry.parts))
    candidates, best_contents, refused = _looked_into(own, notebooks[:MOST_NOTEBOOKS], lab, contents)
    if not candidates:
        return ChosenNotebook(reason=next(iter(refused), "") or _nothing(own, entries))
    best = min(candidates, key=lambda one: one.order)
    if best.is_another_lab:
        return ChosenNotebook(reason=f"{own.shown(best.entry)} says that it is the lab {one_line(best.says, 80)!r}")
    doubts = [*_doubts(own, best, candidates), *(f"passed over: {one}" for one in refused[:MOST_NAMED])]
    if len(notebooks) > MOST_NOTEBOOKS:
        doubts.append(f"only {MOST_NOTEBOOKS} of {len(notebooks)} notebooks were looked into")
    if len(own.entries) > MOST_FILES:
        doubts.append(f"only {MOST_FILES:,} of the files were looked at")
    handed_in = packed_in.get(best.entry, best.entry)
    return ChosenNotebook(handed_in, best_contents, best.digest, warnings=tuple(doubts))


def _for_lab(own: Submission, lab: str) -> list[SubmittedFile]:
    entries = own.entries[:MOST_FILES]
    return [entry for entry in entries if own.within(entry)[:1] == (lab,)] if lab in own.folders() else entries


def _looked_into(
    own: Submission, notebooks: Sequence[SubmittedFile], lab: str, contents: Contents
) -> tuple[list[_Candidate], bytes, list[str]]:
    """The notebooks that can be read, the contents of the best of them alone (each may have 20 MB), the refusals."""
    candidates: list[_Candidate] = []
    best_contents, refused = b"", []
    for entry in notebooks:
        try:
            if entry.problem:
                raise Refused(entry.problem)
            found = contents(entry)
        except Refused as problem:
            refused.append(f"{own.shown(entry)} {problem}")
            continue
        candidate = _candidate(entry, found, lab)
        if all(candidate.order < other.order for other in candidates):
            best_contents = found
        candidates.append(candidate)
    return candidates, best_contents, refused


def _candidate(entry: SubmittedFile, contents: bytes, lab: str) -> _Candidate:
    mark = _SOURCE.search(contents)
    says = mark[1].decode("utf-8", "replace") if mark else ""
    unlikeness = _unlikeness(entry, lab)
    kind = SAYS_NOTHING if unlikeness == UNLIKE else NAMED_SO
    if says:  # its number is enough: an older revision of the course may have called the lab otherwise
        kind = THIS_LAB if says == lab or _number(says) == _number(lab) else ANOTHER_LAB
    # Of two files of one path in an archive the later counts, as it does when it is unpacked.
    order = (kind, unlikeness, -copy_of(entry.name)[1], len(entry.parts), entry.parts, -entry.position)
    return _Candidate(entry, hashlib.sha256(contents).hexdigest(), says, order)


def _unlikeness(entry: SubmittedFile, lab: str) -> int:
    """0: named as the lab is, or a copy of it; 1: the name holds the lab's name or begins with its number; 2: no."""
    original = copy_of(entry.name)[0].lower()
    if original == lab.lower():
        return 0
    holds = lab.lower() in original or re.search(rf"(^|lab)[ _-]*{re.escape(_number(lab))}(?!\d)", original)
    return 1 if holds else UNLIKE


def _number(lab: str) -> str:
    return lab.partition("_")[0]


def _doubts(own: Submission, best: _Candidate, candidates: Sequence[_Candidate]) -> Iterator[str]:
    rivals = [one for one in candidates if one.kind == best.kind and one.digest != best.digest]
    chosen = own.shown(best.entry)
    if rivals:
        names = ", ".join(repr(own.shown(one.entry)) for one in rivals[:MOST_NAMED])
        more = f" and {len(rivals) - MOST_NAMED} more" if len(rivals) > MOST_NAMED else ""
        yield f"{chosen!r} was graded; {names}{more} could be the lab too"
    if best.kind == ANOTHER_LAB:
        yield f"{chosen!r} says that it is the lab {one_line(best.says, 80)!r}: is it the right file?"


def _nothing(own: Submission, entries: Sequence[SubmittedFile]) -> str:
    """Why there is no notebook, as far as what is there instead can tell."""
    for entry in entries:
        if entry.problem:
            return f"{own.shown(entry)} {entry.problem}"
    for entry in entries:
        name = own.shown(entry)
        if is_archive(entry):
            return f"{name} is an archive: unpack it and hand in the {NOTEBOOK}"  # no zip, or in one
        if NOTEBOOK in entry.name.lower():
            return f"{name} is a folder, not a notebook" if entry.is_folder else f"{name} must be named {NOTEBOOK}"
    names = [own.shown(entry) for entry in entries if not entry.is_folder]
    among = f": there are {', '.join(names[:MOST_NAMED])}" if names else ": there are no files"
    return f"no notebook ({NOTEBOOK}) was handed in{among}{' and more' if len(names) > MOST_NAMED else ''}"
