"""Whose is which file: what folders and LMSs call them, and the learner's name that it gives."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from ..text import one_line
from . import lms
from .files import LINK, SPECIAL, SUBMITTED, Contents, Refused, SubmittedFile

MOST_NAME_CHARACTERS = 120
NOTEBOOK = ".ipynb"
_BESIDE_SUBMITTED = frozenset({"source", "release", "nbgrader_config.py", "gradebook.db"})

# Before the name: Colab. After it: browsers (1), Canvas -1, Jupyter -Copy1, desktops copy 2.
_COPY_OF = re.compile(r"^copy of ", re.IGNORECASE)
_COPY = re.compile(r"(?: ?\((\d{1,4})\)|-(\d{1,4})|[ _-]{1,3}copy[ _-]?\(?(\d{0,4})\)?)$", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(zip|7z|rar|tar|tgz|gz|bz2|xz)$", re.IGNORECASE)
_ENDING = re.compile(rf"(\.ipynb.*|{_ARCHIVE.pattern})$", re.IGNORECASE | re.DOTALL)
# Such a name is a slug already: in lower case, since Ada.html and ada.html are one file on some systems.
_PLAIN = re.compile(r"[a-z0-9]+(?:[._@+-][a-z0-9]+)*", re.ASCII)
_HASHED = re.compile(r"-[a-z2-7]{8}$")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.ASCII)  # no file's name on Windows
MOST_SLUG_CHARACTERS = 60


@dataclass
class Submission:
    """What one learner handed in at one time, the files not yet looked into.

    `number` and `email` are as the LMS says, or ''. `handed_in` is the time that it says (UTC), '' where it says none,
    and None where the file's own time is the best that there is. `depth` is how many leading parts of an entry's path
    are not the learner's; `above` how many of them are not even the learner's folder. `earlier` are the attempts
    before this one, oldest first.
    """

    learner: str
    number: str
    above: int
    depth: int
    email: str = ""
    handed_in: str | None = None
    slug: str = ""
    entries: list[SubmittedFile] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    earlier: list[Submission] = field(default_factory=list)

    def within(self, entry: SubmittedFile) -> tuple[str, ...]:
        """The entry's path as the learner made it; empty for the learner's folder itself."""
        return entry.parts[self.depth :]

    def folders(self) -> set[str]:
        """The names of the learner's own folders."""
        return _folders(self.entries, self.depth)

    def top(self, chosen: SubmittedFile | None) -> str:
        """What the LMS called the learner's folder, or the chosen file where there is no folder of theirs."""
        return (chosen or self.entries[0]).parts[self.above]

    def shown(self, entry: SubmittedFile) -> str:
        """The entry's path for a person to read."""
        return one_line("/".join(self.within(entry)) or entry.name, MOST_NAME_CHARACTERS)


def by_learner(entries: Sequence[SubmittedFile], lab: str, contents: Contents) -> list[Submission]:
    """Each learner's latest attempt, by name. No two have the same: namesakes carry the LMS's number or a count.

    A class wrapped in one folder more, or in nbgrader's `submitted/`, is unwrapped. Loose files that look like
    nobody's submission (a README, a conftest.py) are left out. `contents` gives a file's bytes or raises Refused: only
    the list of submitters that Gradescope adds is opened.
    """
    entries, depth = _unwrapped(entries, lab)
    folders = _folders(entries, depth)
    submitters = _submitters(entries, depth, contents)
    owners = lms.owners({entry.parts[depth] for entry in entries}, folders, submitters or {})
    found: dict[tuple, dict[str, Submission]] = {}
    for entry in entries:
        top = entry.parts[depth]
        for own in owners.get(top) or _by_its_name(entry, top, top in folders, lab):
            # One name is one learner, whichever way its accents are spelt; the LMS's number, where there is one, too.
            key = (own.name, own.number) if top in owners else (_composed(own.name), top in folders)
            attempts = found.setdefault(key, {})
            new = _submission(own, depth, top in folders, dated=top in owners)
            attempts.setdefault(own.handed_in, new).entries.append(entry)
    everybody = _told_apart(map(_latest, found.values()))
    _warn(everybody, lab, submitters is None)
    return everybody


def slug(name: str, number: str = "") -> str:
    """A file's name for a learner: the same whoever else is in the class, and no two learners' the same.

    A name in lower-case ASCII is its own. Any other keeps what is readable of it, and a hash of the whole (40 bits)
    tells it from others that look so.

    >>> slug("ada.lovelace"), slug("Ada Lovelace"), slug("李雷", "17")
    ('ada.lovelace', 'Ada-Lovelace-q3brfo56', 'learner-qoy76dq4')
    """
    name = _composed(name)
    is_plain = _PLAIN.fullmatch(name) and not _HASHED.search(name) and not _RESERVED.fullmatch(name)
    if is_plain and not number and len(name) <= MOST_SLUG_CHARACTERS:
        return name
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^A-Za-z0-9.@+_]+", "-", letters)[: MOST_SLUG_CHARACTERS - 9].strip("-._+@") or "learner"
    whole = hashlib.sha256(f"{name}\0{number}".encode("utf-8", "surrogatepass")).digest()
    return f"{readable}-{base64.b32encode(whole[:5]).decode().lower()}"


def is_notebook(entry: SubmittedFile) -> bool:
    """True for what is named as a notebook and is no folder."""
    return not entry.is_folder and entry.name.lower().endswith(NOTEBOOK)


def is_archive(entry: SubmittedFile) -> bool:
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


def _unwrapped(entries: Sequence[SubmittedFile], lab: str, depth: int = 0) -> tuple[list[SubmittedFile], int]:
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


def _is_somebodys(folder: str, entries: Sequence[SubmittedFile], depth: int, lab: str) -> bool:
    """True when a lone folder is a learner's, not one around the class."""
    notebooks = [entry for entry in entries if is_notebook(entry)]
    copies = (entry for entry in notebooks if len(entry.parts) == depth + 1 and copy_of(entry.name)[0] == lab)
    return lms.is_one_learners(folder) or len(notebooks) < 2 or lab in _folders(entries, depth) or any(copies)


def _folders(entries: Iterable[SubmittedFile], depth: int) -> set[str]:
    """The names of the folders at this depth; an archive need not list them."""
    return {
        entry.parts[depth]
        for entry in entries
        if len(entry.parts) > depth + 1 or (len(entry.parts) == depth + 1 and entry.is_folder)
    }


def _looks_handed_in(entry: SubmittedFile) -> bool:
    return bool(_ENDING.search(entry.name)) or entry.problem in (LINK, SPECIAL)


def _submitters(entries: Sequence[SubmittedFile], depth: int, contents: Contents) -> lms.Submitters | None:
    """By folder, the submitters that Gradescope's file names; {} without such a file, None for an unusable one."""
    for entry in entries:
        if entry.parts[depth:] == (lms.GRADESCOPE,) and not entry.is_folder:
            try:
                return None if entry.problem else lms.gradescope(contents(entry)) or None
            except Refused:
                return None
    return {}


def _warn(everybody: Sequence[Submission], lab: str, is_nobody_named: bool) -> None:
    """Add what may be wrong about whose is which."""
    for own in everybody:
        if is_nobody_named:
            own.warnings.append(f"{lms.GRADESCOPE} cannot be read: it names the learners")
        if len(everybody) > 1 and not own.number and copy_of(own.learner)[0].lower() == lab.lower():
            own.warnings.append("nothing in the file's name says whose it is")


def _by_its_name(entry: SubmittedFile, top: str, is_folder: bool, lab: str) -> Iterator[lms.Owner]:
    """The owner of what no LMS has named: who the folder or the file is called after, if it looks handed in."""
    if is_folder or _looks_handed_in(entry):
        yield (not is_folder and lms.classroom(top, lab)) or lms.Owner(_ENDING.sub("", top))


def _submission(own: lms.Owner, depth: int, in_folder: bool, dated: bool) -> Submission:
    """What one owner handed in, without its entries; `dated`: the file's own time says nothing."""
    new = Submission(_readable(own.name), own.number, depth, depth + in_folder, own.email)
    new.slug, new.handed_in = slug(own.name, own.number), own.handed_in if dated else None
    if own.group > 1:
        new.warnings.append(f"a group of {own.group} handed this in together")
    return new


def _latest(attempts: dict[str, Submission]) -> Submission:
    """The last of one learner's attempts, with the others in it."""
    *earlier, last = (attempts[time] for time in sorted(attempts))
    last.earlier = earlier
    return last


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _readable(name: str) -> str:
    return one_line(_composed(name), MOST_NAME_CHARACTERS) or "(no name)"


def _told_apart(found: Iterable[Submission]) -> list[Submission]:
    """Sorted by name, each name and each slug once."""
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
            own.slug = own.slug if own.number else slug(own.learner)
            own.warnings.append(f"{times[name]} submissions came under the name {name!r}; this is {own.learner!r}")
        elif (original := copy_of(name)[0]) != name and original in times:
            own.warnings.append(f"it may be a second copy of the submission of {original!r}")
    slugs: set[str] = set()
    for own in everybody:
        while own.slug.lower() in slugs:  # a name that was made to have another's hash
            own.slug += "x"
        slugs.add(own.slug.lower())
    return sorted(everybody, key=_by_name)


def _by_name(own: Submission) -> tuple[str, ...]:
    return own.learner.casefold(), own.learner, own.number
