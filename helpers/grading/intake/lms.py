"""What an LMS's name for a learner's folder or file says: whose it is, and when it came.

How sure each of these is, since no LMS documents its names:

Moodle       Name_123_assignsubmission_file/... or ..._file_lab.ipynb; 123 is the participant in this assignment. Seen.
Canvas       lovelaceada_123_456_lab.ipynb, lovelaceada_LATE_123_456_lab.ipynb or anon_Ab12C_456_lab.ipynb: the user's
             number, then the upload's. Seen.
Blackboard   Lab 02_alovelace_attempt_2026-10-01-12-00-00_lab.ipynb, and a .txt without the last part for each attempt.
             Seen in nbgrader's documentation and in a dozen scripts. A user name with an underscore is guessed.
Brightspace  "123-456 - Ada Lovelace - Oct 1, 2026 1200 PM/lab.ipynb", or all of that and " - lab.ipynb" as one file;
             "01 October 2026" where the site is set so. Seen in scripts. That 123 is the learner's own is a guess.
Gradescope   submission_123/lab.ipynb, and submission_metadata.yml, which names its submitters. Seen in otter-grader and
             other readers of it.
Classroom    "Ada Lovelace - 02_lab.ipynb" in a folder of Drive, where each learner got a copy. A guess from use: no
             documentation was found.

An archive of Moodle or Canvas gives each file the time of the download (read in Moodle's zip_writer and in issue 2219
of canvas-lms), so nothing here says when their learners handed in. The other times are the site's or the
instructor's; they have no zone and are taken in this machine's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ..text import one_line
from .files import moment

GRADESCOPE = "submission_metadata.yml"

_MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_[a-z]+(_.*)?", re.DOTALL)
_CANVAS = re.compile(
    r"(?:(?:late_)?(?P<anonymous>anon_[^\W_]+)|(?P<name>[^\W\d]\w*?)_(?:late_)?(?P<number>\d+))_(?P<upload>\d+)_.+",
    re.IGNORECASE | re.DOTALL,
)
# The first attempt counts: what follows it is the learner's own file name, which can be made to look like another's.
_BLACKBOARD = re.compile(r"(?P<head>.+?)_attempt_(?P<time>\d{4}(?:-\d\d){5})(?:_.+|\.txt)?", re.DOTALL)
_BRIGHTSPACE = re.compile(
    r"(?P<number>\d+)-\d+ - (?P<name>.+?) - (?P<time>[^-]*\b\d{4} \d{3,4}(?: ?[AP]M)?)(?: - .+)?",
    re.IGNORECASE | re.DOTALL,
)
_TIME = re.compile(
    r"(?:(?P<month>[a-z]{3})[a-z]*\.? (?P<day>\d\d?)|(?P<day_first>\d\d?) (?P<month_second>[a-z]{3})[a-z]*\.?),?"
    r" (?P<year>\d{4}) (?P<hour>\d\d?)(?P<minute>\d\d)(?: ?(?P<half>[ap])m)?",
    re.IGNORECASE,
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_SUBMISSION = re.compile(r"submission_\d+")


@dataclass(frozen=True)
class Owner:
    """A learner, as an LMS's name for a folder or file has them; each part '' where it does not say.

    `handed_in` is UTC in ISO 8601. `group` is how many handed this in together.
    """

    name: str
    number: str = ""
    email: str = ""
    handed_in: str = ""
    group: int = 1


Submitters = Mapping[str, tuple[Owner, ...]]


def owners(tops: Collection[str], folders: Collection[str], submitters: Submitters) -> dict[str, tuple[Owner, ...]]:
    """The owners of each folder or file at the top of a class, where its name is an LMS's; the others are left out.

    `folders` are those of `tops` that are folders; `submitters` is what Gradescope says (see `gradescope`).
    """
    found = {top: owners for top, owners in submitters.items() if top in tops}
    found |= {top: (owner,) for top, owner in _blackboard(tops).items()}
    found |= {top: (owner,) for top in tops if (owner := _moodle(top) or _brightspace(top))}
    files = set(tops) - set(folders) - set(found)
    return found | {top: (owner,) for top, owner in _canvas(files).items()}


def is_one_learners(folder: str) -> bool:
    """True for the name of a folder in which an LMS puts what one learner handed in."""
    return bool(_MOODLE.fullmatch(folder) or _BRIGHTSPACE.fullmatch(folder) or _SUBMISSION.fullmatch(folder))


def classroom(file: str, lab: str) -> Owner | None:
    """The owner of a file named 'NAME - LAB.ipynb', as Google Classroom names each learner's copy.

    >>> classroom("Ada Lovelace - Copy of 02_lab (1).ipynb", "02_lab").name
    'Ada Lovelace'
    """
    name, dash, title = file.partition(" - ")
    is_copy = dash and name.strip() and lab.lower() in title.lower() and title.lower().endswith(".ipynb")
    return Owner(re.sub("^copy of ", "", name.strip(), flags=re.IGNORECASE)) if is_copy else None


def _moodle(top: str) -> Owner | None:
    match = _MOODLE.fullmatch(top)
    if match is None:
        return None
    name, number = match["name"], match["number"]
    return Owner(f"{name} {number}" if name == "Participant" else name, number)  # as its grading worksheet says


def _canvas(files: Iterable[str]) -> dict[str, Owner]:
    """Owners of the files that Canvas named; none unless all of them agree with how it numbers.

    Uploads have numbers of their own, and a user's number has one name: smith_2024_10_lab and jones_2024_10_lab
    are dates.
    """
    matches = {file: match for file in files if (match := _CANVAS.fullmatch(file))}
    users = {
        file: Owner(match["name"] or match["anonymous"], match["number"] or match["anonymous"])
        for file, match in matches.items()
    }
    uploads = {match["upload"] for match in matches.values()}
    numbers = {owner.number for owner in users.values()}
    return users if len(uploads) == len(matches) and len(numbers) == len(set(users.values())) else {}


def _blackboard(tops: Iterable[str]) -> dict[str, Owner]:
    matches = {top: match for top in tops if (match := _BLACKBOARD.fullmatch(top))}
    names = _user_names({match["head"] for match in matches.values()})
    return {top: Owner(names[one["head"]], handed_in=_dashed(one["time"])) for top, one in matches.items()}


def _user_names(heads: set[str]) -> dict[str, str]:
    """The user names at the ends of these texts, ASSIGNMENT_USER each; both parts may hold underscores.

    What all texts have in common is the assignment's. Different texts give different names, whatever they are.

    >>> sorted(_user_names({"Lab_02_ada", "Lab_02_j_doe"}).values())
    ['ada', 'j_doe']
    """
    if len({head.rpartition("_")[0] for head in heads}) == 1:
        return {head: head.rpartition("_")[2] or head for head in heads}
    common = os.path.commonprefix(list(heads)).rfind("_") + 1  # noqa: RUF071 - of characters, as is meant here
    return {head: head[common:] or head for head in heads}


def _dashed(text: str) -> str:
    try:
        return moment(datetime.strptime(text, "%Y-%m-%d-%H-%M-%S"))
    except (ValueError, OverflowError):
        return ""


def _brightspace(top: str) -> Owner | None:
    match = _BRIGHTSPACE.fullmatch(top)
    return Owner(match["name"], match["number"], handed_in=_written_out(match["time"])) if match else None


def _written_out(text: str) -> str:
    """The time that Brightspace writes as 'Oct 1, 2026 1200 PM' or '01 October 2026 1200 PM', in UTC; '' for others."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return ""
    month, day = match["month"] or match["month_second"], match["day"] or match["day_first"]
    hour = int(match["hour"])
    if match["half"]:
        hour = hour % 12 + 12 * (match["half"].lower() == "p")
    try:
        time = datetime(int(match["year"]), _MONTHS.index(month.lower()) + 1, int(day), hour, int(match["minute"]))
        return moment(time)
    except (ValueError, OverflowError):  # a month of another language, the 31st of June
        return ""


def gradescope(metadata: bytes) -> Submitters:
    """By folder, the submitters that Gradescope's file names; nothing where it cannot be read."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Ruby's own types, which the file may hold, are nothing that we need."""

    Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    try:
        stored = yaml.load(metadata, Loader=Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    entries = stored.items() if isinstance(stored, Mapping) else ()
    found = {str(top): _submitters(one) for top, one in entries if isinstance(one, Mapping)}
    return {top: owners for top, owners in found.items() if owners}


def _submitters(stored: Mapping) -> tuple[Owner, ...]:
    people = stored.get(":submitters")
    people = [one for one in people if isinstance(one, Mapping)] if isinstance(people, list) else []
    handed_in = _stated(stored.get(":created_at"))
    texts = [[_scalar(one.get(key)) for key in (":name", ":sid", ":email")] for one in people]
    return tuple(
        Owner(name or email or number, number, email, handed_in, len(texts))
        for name, number, email in texts
        if name or email or number
    )


def _scalar(value: object) -> str:
    """A text or a number as one line; '' for what is neither: written out, a list of aliases can fill the memory."""
    return one_line(str(value), 200) if isinstance(value, str | int) else ""


def _stated(time: object) -> str:
    """A time as YAML or a text has it; one without a zone is UTC."""
    try:
        found = time if isinstance(time, datetime) else datetime.fromisoformat(str(time).replace(" UTC", "+00:00"))
        return moment(found if found.tzinfo else found.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return ""
