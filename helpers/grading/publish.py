"""What people read and LMSs import, all of it written from the results that there are: nothing is graded here.

Points given by hand come first, then the due date; every table and page has the points that are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ..catalog.errors import WorkbookError
from .intake.submissions import LearnerNotebook
from .judging.reference import Reference
from .judging.results import Result
from .lms import feedback_zip, gradebooks
from .lms.export import Export
from .reports import changes, feedback, gradebook, handed_in, late, manual, similar, summary


@dataclass(frozen=True)
class Wanted:
    """What is published beyond the usual: the due policy, the LMS's table to fill in, or what kind to make."""

    policy: late.Policy | None = None
    export: Export | None = None
    kind: str | None = None
    assignment: str | None = None

    def require(self, blanks: Sequence[Result]) -> None:
        """WorkbookError for what does not fit this class, before anybody is graded: the LMS's points, a name of two."""
        if self.export and blanks:
            self.export.require_points(blanks[0].points)
        if self.policy:
            late.with_lateness(blanks, {}, self.policy)


def wanted(
    lab: str,
    due: Path | None = None,
    kind: str | None = None,
    export: Path | None = None,
    assignment: str | None = None,
) -> Wanted:
    """The files behind these options, read. WorkbookError for one that cannot be used, before anybody is graded."""
    if assignment and not (kind or export):
        do = "add --format canvas, or --gradebook EXPORT.csv"
        raise WorkbookError("--assignment names a column of no table", "--format or --gradebook beside it", do)
    policy = late.read(due) if due else None
    table = gradebooks.read_export(export, lab, kind, assignment) if export else None
    return Wanted(policy, table, table.kind if table else kind, assignment)


def publish(
    results: Sequence[Result],
    waiting: Sequence[Result],
    everybody: Mapping[str, LearnerNotebook],
    reference: Reference,
    out: Path,
    wanted: Wanted,
    facts: Mapping[str, object],
) -> tuple[list[Result], list[str]]:
    """Write it all into `out`: the results with what a person and the due date changed, and the lines to print.

    `waiting` are the learners who are not graded yet; `everybody` has, by slug, what each handed in; `facts` are the
    manifest's, for the summary.
    """
    results = [_known(one, everybody.get(one.slug)) for one in results]
    results = manual.merged(results, out / "manual.csv", waiting)
    said = []
    if wanted.policy:
        results, strangers = _judged(results, waiting, everybody, wanted.policy, wanted.export)
        said += [f"the due policy names {name!r}, and nobody here is called so" for name in strangers]
    gradebook.write(results, out)
    manual.write(results, out, waiting)
    feedback.write(results, out, lab=reference.lab, title=reference.title)
    feedback_zip.write({one.slug: everybody[one.slug].folder for one in results if one.slug in everybody}, out)
    if wanted.kind:
        title = wanted.assignment or reference.title
        said += gradebooks.write(results, out, wanted.kind, wanted.export, title)
    summary.write(results, out, facts, similar.write(results, out, reference.notebook))
    digests = {slug: one.digest for slug, one in everybody.items()}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    said += changes.told(changes.record(results, waiting, digests, reference.digest, out, now))
    return results, said


def _known(result: Result, notebook: LearnerNotebook | None) -> Result:
    """The result with the number and e-mail that are known today; they are no part of what was graded."""
    return replace(result, number=notebook.number, email=notebook.email) if notebook else result


def _judged(
    results: Sequence[Result],
    waiting: Sequence[Result],
    everybody: Mapping[str, LearnerNotebook],
    policy: late.Policy,
    export: Export | None,
) -> tuple[list[Result], list[str]]:
    """Each result with its lateness, and whom the policy names although nobody is called so."""
    stated = gradebooks.stated_times(export, results, policy.zone) if export else {}
    times = handed_in.times(
        {one.slug: everybody[one.slug] for one in results if one.slug in everybody}, stated, policy.due
    )
    return late.with_lateness(results, times, policy), late.unplaced(policy, [*results, *waiting])
