"""When each notebook was handed in, as far as anybody can know; a due date must not be judged by the wrong clock.

The times in a zip are no help where an LMS made it. Moodle's zips and Canvas's carry the time of the *download*
(moodle/files/classes/local/archive_writer/zip_writer.php and canvas-lms/lib/content_zipper.rb set none, so their
libraries write the present). What is known instead: Moodle's grading worksheet has a column with the time, and Canvas
writes LATE into the name of a file that came after its own due date. Copied files have the time of the copying: a time
that more than half of a class share is nobody's.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from ..intake.submissions import LearnerNotebook

UNKNOWN = "it is not known when this was handed in"
COPIED = "this file has a time that most of the class share, which is when they were copied"
MOODLE = "Moodle's zip does not say when this was handed in; its grading worksheet does (--gradebook)"
CANVAS_LATE = "Canvas marks this as late and does not say by how much"
TOGETHER = timedelta(minutes=2)  # copying a class takes less, and handing in more
_CANVAS = re.compile(r"(?:(?P<late>late_)?anon_[^_]+|\w+?_(?P<named_late>late_)?\d+)_\d+_", re.IGNORECASE)


def times(
    everybody: Mapping[str, LearnerNotebook], stated: Mapping[str, datetime], due: datetime
) -> dict[str, datetime | str]:
    """By slug, when it was handed in, or the words why that is unknown; who handed in nothing is left out.

    `stated` is what the LMS's own table says. Whom Canvas does not mark as late handed in by `due`.
    """
    handed_in = {slug: one for slug, one in everybody.items() if one.folder}
    found = {slug: stated.get(slug) or _time(one, due) for slug, one in handed_in.items()}
    of_files = [found[slug] for slug, one in handed_in.items() if slug not in stated and not _by_lms(one)]
    copied = _shared([time for time in of_files if isinstance(time, datetime)])
    return found | {slug: COPIED for slug, time in found.items() if time in copied and slug not in stated}


def _shared(times: Sequence[datetime]) -> set[datetime]:
    """Those that lie together with more than half of all."""
    ordered = sorted(times)
    near = {
        time: bisect_right(ordered, time + TOGETHER) - bisect_left(ordered, time - TOGETHER) for time in set(ordered)
    }
    return {time for time, count in near.items() if 1 < count > len(ordered) / 2}


def _by_lms(one: LearnerNotebook) -> bool:
    return "_assignsubmission_" in one.folder or bool(one.number and _CANVAS.match(one.folder))


def _time(one: LearnerNotebook, due: datetime) -> datetime | str:
    if "_assignsubmission_" in one.folder:
        return MOODLE
    if one.number and (canvas := _CANVAS.match(one.folder)):
        return CANVAS_LATE if canvas["late"] or canvas["named_late"] else due
    try:
        return datetime.fromisoformat(one.handed_in)
    except ValueError:
        return UNKNOWN
