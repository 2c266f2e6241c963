"""Whose is which file: what folders and LMSs call them, and the learner's name that it gives.

Moodle names Name_123_assignsubmission_file/... (or one file Name_123_assignsubmission_file_lab.ipynb), where 123
is the participant's number in this assignment. Canvas names lovelaceada_123_456_lab.ipynb, or
lovelaceada_LATE_123_456_lab.ipynb, or anon_Ab12C_456_lab.ipynb: the user's number, then the upload's.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from ..text import one_line
from .files import LINK, SPECIAL, SUBMITTED, Entry

MOST_NAME_CHARACTERS = 120
NOTEBOOK = ".ipynb"
_BESIDE_SUBMITTED = frozenset({"source", "release", "nbgrader_config.py", "gradebook.db"})

_MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_[a-z]+(_.*)?", re.DOTALL)
_CANVAS = re.compile(
    r"(?:(?:late_)?(?P<anonymous>anon_[^\W_]+)|(?P<name>[^\W\d]\w*?)_(?:late_)?(?P<number>\d+))_(?P<upload>\d+)_.+",
    re.IGNORECASE | re.DOTALL,
)
# Before the name: Colab. After it: browsers (1), Canvas -1, Jupyter -Copy1, desktops copy 2.
_COPY_OF = re.compile(r"^copy of ", re.IGNORECASE)
_COPY = re.compile(r"(?: ?\((\d{1,4})\)|-(\d{1,4})|[ _-]{1,3}copy[ _-]?\(?(\d{0,4})\)?)$", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(zip|7z|rar|tar|tgz|gz|bz2|xz)$", re.IGNORECASE)
_ENDING = re.compile(rf"(\.ipynb.*|{_ARCHIVE.pattern})$", re.IGNORECASE | re.DOTALL)


@dataclass
class Submission:
    """What one learner handed in, the files not yet looked into. `number` is the LMS's own for the learner, or ''.

    `depth` is how many leading parts of an entry's path are not the learner's; `above` how many of them are not even
    the learner's folder.
    """

    learner: str
    number: str
    above: int
    depth: int
    entries: list[Entry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def within(self, entry: Entry) -> tuple[str, ...]:
        """The entry's path as the learner made it; empty for the learner's folder itself."""
        return entry.parts[self.depth :]

    def folders(self) -> set[str]:
        """The names of the learner's own folders."""
        return _folders(self.entries, self.depth)

    def top(self, chosen: Entry | None) -> str:
        """What the LMS called the learner's folder, or the chosen file where there is no folder of theirs."""
        return (chosen or self.entries[0]).parts[self.above]

    def shown(self, entry: Entry) -> str:
        """The entry's path for a person to read."""
        return one_line("/".join(self.within(entry)) or entry.name, MOST_NAME_CHARACTERS)


def by_learner(entries: Sequence[Entry], lab: str) -> list[Submission]:
    """Each learner's, by name. No two have the same: namesakes carry the LMS's number or a count, and a warning.

    A class wrapped in one folder more, or in nbgrader's `submitted/`, is unwrapped. Loose files that look like
    nobody's submission (a README, a conftest.py) are left out.
    """
    entries, depth = _unwrapped(entries, lab)
    folders = _folders(entries, depth)
    canvas = _canvas_names({entry.parts[depth] for entry in entries} - folders)
    found: dict[tuple, Submission] = {}
    for entry in entries:
        top = entry.parts[depth]
        name, number = _moodle_name(top) or canvas.get(top) or (_ENDING.sub("", top), "")
        if number or top in folders or _looks_handed_in(entry):
            # The LMS's number is one learner, whatever comes after it; without one, a folder or a file is.
            key = (name, number) if number else (top, top in folders)
            own = Submission(_readable(name), number, depth, depth + (top in folders))
            found.setdefault(key, own).entries.append(entry)
    return _told_apart(found.values())


def is_notebook(entry: Entry) -> bool:
    """True for what is named as a notebook and is no folder."""
    return not entry.is_folder and entry.name.lower().endswith(NOTEBOOK)


def is_archive(entry: Entry) -> bool:
    """True for what is named as a packed file."""
    return not entry.is_folder and bool(_ARCHIVE.search(entry.name))


def copy_of(name: str) -> tuple[str, int]:
    """A file's name without its ending and its copy's number, and the number: 0 for an original.

    >>> copy_of("lab (2).ipynb"), copy_of("Copy of lab.ipynb"), copy_of("lab-Copy1.ipynb")
    (('lab', 2), ('lab', 1), ('lab', 1))
    """
    stem = name[: -len(NOTEBOOK)] if name.lower().endswith(NOTEBOOK) else name
    whole, stem = stem, _COPY_OF.sub("", stem)
    match = _COPY.search(stem)
    if match is None:
        return stem, int(stem != whole)
    digits = next(filter(None, match.groups()), "1")
    return stem[: match.start()], int(digits)


def _unwrapped(entries: Sequence[Entry], lab: str, depth: int = 0) -> tuple[list[Entry], int]:
    """The class's entries, and how many folders lie around all of them."""
    entries = [entry for entry in entries if len(entry.parts) > depth]
    folders = _folders(entries, depth)
    if SUBMITTED in folders and (len(folders) == 1 or _BESIDE_SUBMITTED & {entry.parts[depth] for entry in entries}):
        inside = [entry for entry in entries if entry.parts[depth] == SUBMITTED and len(entry.parts) > depth + 1]
        return inside, depth + 1
    loose = any(_looks_handed_in(entry) for entry in entries if entry.parts[depth] not in folders)
    if loose or len(folders) != 1 or _is_somebodys(next(iter(folders)), entries, depth + 1, lab):
        return entries, depth
    return _unwrapped(entries, lab, depth + 1)


def _is_somebodys(folder: str, entries: Sequence[Entry], depth: int, lab: str) -> bool:
    """True when a lone folder is a learner's, not one around the class."""
    notebooks = [entry for entry in entries if is_notebook(entry)]
    copies = (entry for entry in notebooks if len(entry.parts) == depth + 1 and copy_of(entry.name)[0] == lab)
    return bool(_moodle_name(folder)) or len(notebooks) < 2 or lab in _folders(entries, depth) or any(copies)


def _folders(entries: Iterable[Entry], depth: int) -> set[str]:
    """The names of the folders at this depth; an archive need not list them."""
    return {
        entry.parts[depth]
        for entry in entries
        if len(entry.parts) > depth + 1 or (len(entry.parts) == depth + 1 and entry.is_folder)
    }


def _looks_handed_in(entry: Entry) -> bool:
    return bool(_ENDING.search(entry.name)) or entry.problem in (LINK, SPECIAL)


def _moodle_name(top: str) -> tuple[str, str] | None:
    match = _MOODLE.fullmatch(top)
    if match is None:
        return None
    name, number = match["name"], match["number"]
    return (f"{name} {number}" if name == "Participant" else name), number  # as its grading worksheet says


def _canvas_names(files: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Name and number for the files that Canvas named; none unless all of them agree with how it numbers.

    Uploads have numbers of their own, and a user's number has one name: smith_2024_10_lab and jones_2024_10_lab
    are dates.
    """
    matches = {file: match for file in files if (match := _CANVAS.fullmatch(file))}
    users = {
        file: (match["name"] or match["anonymous"], match["number"] or match["anonymous"])
        for file, match in matches.items()
    }
    uploads = {match["upload"] for match in matches.values()}
    numbers = {number for _, number in users.values()}
    return users if len(uploads) == len(matches) and len(numbers) == len(set(users.values())) else {}


def _readable(name: str) -> str:
    return one_line(unicodedata.normalize("NFC", name), MOST_NAME_CHARACTERS) or "(no name)"


def _told_apart(found: Iterable[Submission]) -> list[Submission]:
    """Sorted by name, each name once."""
    everybody = sorted(found, key=_by_name)
    times = Counter(own.learner for own in everybody)
    taken = {name for name in times if times[name] == 1}
    for own in everybody:
        name = own.learner
        if times[name] > 1:
            counted = (f"{name} ({n})" for n in count(2))
            first = f"{name} ({own.number})" if own.number else name
            own.learner = next(one for one in chain([first], counted) if one not in taken)
            taken.add(own.learner)
            own.warnings.append(f"{times[name]} submissions came under the name {name!r}; this is {own.learner!r}")
        elif (original := copy_of(name)[0]) != name and original in times:
            own.warnings.append(f"it may be a second copy of the submission of {original!r}")
    return sorted(everybody, key=_by_name)


def _by_name(own: Submission) -> tuple[str, ...]:
    return own.learner.casefold(), own.learner, own.number
