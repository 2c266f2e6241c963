"""What people read and LMSs import, all of it written from the results that there are: nothing is graded here.

Points given by hand come first, then the due date; every table and page has the points that are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ..catalog.errors import WorkbookError
from . import attempts
from .intake.submissions import LearnerNotebook
from .judging.reference import Reference
from .judging.results import ATTENTION, GRADED, Result
from .reports import changes, feedback, gradebook, late, manual, similar, summary
from .reports import handed_in as handing_in
from .upload import feedback_zip, gradebooks
from .upload.export import Export


@dataclass(frozen=True)
class Wanted:
    """What is published beyond the usual: the due policy, the LMS's table to fill in, or what kind to make."""

    policy: late.LatePolicy | None = None
    export: Export | None = None
    kind: str | None = None
    assignment: str | None = None

    def graded(self, everybody: Sequence[LearnerNotebook]) -> Sequence[LearnerNotebook]:
        """What is graded for these learners: the last attempt of each, or with the policy's `best` every one."""
        return attempts.every_attempt(everybody) if self.policy and self.policy.attempts == late.BEST else everybody

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
    blanks: Sequence[Result],
    handed_in: Mapping[str, LearnerNotebook],
    reference: Reference,
    out: Path,
    wanted: Wanted,
    facts: Mapping[str, object],
) -> tuple[list[Result], list[str]]:
    """Write it all into `out`: each learner's result that counts, and the lines to print.

    `results` are of the notebooks in `handed_in` (by slug; several of a learner where every attempt was graded);
    `blanks` are the whole class, in order; `facts` are the manifest's, for the summary.
    """
    results = [_known(one, handed_in[one.slug]) for one in results]
    times = _times(results, blanks, handed_in, wanted)
    which = attempts.best(_judged(results, times, wanted))
    times = {slug: times[attempt] for slug, attempt in which.items() if attempt in times}
    results, everybody = attempts.chosen(results, handed_in, which)
    waiting = [one for one in blanks if one.slug not in everybody]
    results = _judged(manual.merged(results, out / "manual.csv", waiting), times, wanted)
    said = _about_time(results, blanks, wanted, facts)
    gradebook.write(results, out)
    manual.write(results, out, waiting)
    feedback.write(results, out, lab=reference.lab, title=reference.title)
    feedback_zip.write({slug: one.folder for slug, one in everybody.items()}, out)
    if wanted.kind:
        title = wanted.assignment or reference.title
        said += gradebooks.write(results, out, wanted.kind, wanted.export, title)
    summary.write(results, out, facts, similar.write(results, out, reference.notebook, which))
    digests = {slug: one.digest for slug, one in everybody.items()}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    said += changes.told(changes.record(results, waiting, digests, reference.digest, out, now))
    return results, said


def _known(result: Result, notebook: LearnerNotebook) -> Result:
    """The result with what is known of the learner today, which is no part of what was graded."""
    result = replace(result, number=notebook.number, email=notebook.email)
    if not notebook.notes:
        return result
    status = ATTENTION if result.status == GRADED else result.status
    return replace(result, status=status, reasons=(*result.reasons, *notebook.notes))


def _times(
    results: Sequence[Result], blanks: Sequence[Result], handed_in: Mapping[str, LearnerNotebook], wanted: Wanted
) -> dict[str, datetime | str]:
    """By slug, when each was handed in, as far as it is known; nothing without a due policy."""
    if not wanted.policy:
        return {}
    stated = gradebooks.stated_times(wanted.export, blanks, wanted.policy.zone) if wanted.export else {}
    return handing_in.times({one.slug: handed_in[one.slug] for one in results}, stated, wanted.policy.due)


def _about_time(
    results: Sequence[Result], blanks: Sequence[Result], wanted: Wanted, facts: Mapping[str, object]
) -> list[str]:
    """What the instructor should hear of the due date: names of nobody, times that nobody knows, a policy left out."""
    if wanted.policy:
        unknown = [f"{count} learner{'s' * (count > 1)}: {words}" for words, count in late.unknown(results).items()]
        return [*late.unplaced(wanted.policy, blanks), *unknown]
    return ["the run before deducted for being late, and this one has no --due"] if facts.get("due") else []


def _judged(results: Sequence[Result], times: Mapping[str, datetime | str], wanted: Wanted) -> list[Result]:
    return late.with_lateness(results, times, wanted.policy) if wanted.policy else list(results)
