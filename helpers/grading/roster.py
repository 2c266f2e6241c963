"""`--roster class.csv`: who is in the class, so that whoever handed in nothing has a row, and strangers are named.

Columns are known by what exports and hand-made tables call them; capitals, spaces and marks do not count:

name     Student (Canvas), Full name (Moodle's worksheet), Name (Gradescope), or First name and Last name or Surname
number   ID, SIS User ID (Canvas), Identifier, ID number (Moodle), OrgDefinedId (Brightspace), Student ID
         (Blackboard), SID (Gradescope), Number
email    Email, Email address, Mail
login    Login, SIS Login ID (Canvas), Username (Moodle, Brightspace, Blackboard), User

Canvas's rows for the points and for its test student, and what Brightspace and Moodle write before a number (# and
Participant), are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..catalog.errors import WorkbookError
from .intake.owners import slug
from .intake.submissions import LearnerNotebook
from .people import Person, called, matched
from .text import one_line
from .upload import csv_cells

NOTHING = "nothing was handed in"
NAME_CHARS = 120
_FIRST, _LAST = ("firstname", "givenname", "forename", "first"), ("lastname", "surname", "familyname", "last")
_KNOWN = {
    "name": ("student", "fullname", "name", "studentname", "learner"),
    "first": _FIRST,
    "last": _LAST,
    "number": (
        "id",
        "identifier",
        "number",
        "studentid",
        "sid",
        "studentnumber",
        "orgdefinedid",
        "idnumber",
        "sisuserid",
    ),
    "email": ("email", "emailaddress", "mail"),
    "login": ("login", "loginid", "sisloginid", "username", "user"),
}
_EXPECTED = "a name, a number, an e-mail or a login: columns such as Student, ID, Email, Username"
_NOBODY = re.compile(r"points possible|student, test|test student", re.IGNORECASE)  # rows that Canvas adds
_BEFORE_NUMBER = re.compile(r"^(#|participant )\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Member:
    """One row: its line in the file, and each of what it says, '' or () where it says nothing."""

    line: int
    name: str
    numbers: tuple[str, ...] = ()
    email: str = ""
    login: str = ""

    @property
    def shown(self) -> str:
        """What to call them."""
        return self.name or self.email or self.login or self.numbers[0]

    @property
    def person(self) -> Person:
        """To be found in other lists: by any number, and by whatever a folder can be called."""
        bare = tuple(number.lstrip("0") for number in self.numbers)  # as a spreadsheet leaves 00123
        return Person(self.name, (*self.numbers, *bare, self.login, self.email), self.email)


def read(path: Path) -> list[Member]:
    """The members of a class. WorkbookError names the line of a row that does not fit, or that is there twice."""
    table = csv_cells.read(path)
    lines = [table.text.count("\n", 0, spans[0][0]) + 1 for spans in table.spans]
    rows = [(line, [one_line(cell, NAME_CHARS) for cell in row]) for line, row in zip(lines, table.rows, strict=True)]
    rows = [(line, row) for line, row in rows if any(row)]
    if not rows:
        raise WorkbookError(f"{path} is empty", _EXPECTED, "export the class as CSV, or write such a table")
    columns = _columns(rows[0][1])
    if not columns:
        what = f"{path}, line {rows[0][0]}: its columns are {one_line(', '.join(rows[0][1]), 200)}"
        raise WorkbookError(what, _EXPECTED, "name one of the columns so")
    members = [member for line, row in rows[1:] if (member := _member(line, row, columns))]
    if not members:
        raise WorkbookError(f"{path} has nobody below its first line", "a row for each learner", "export it again")
    _require_once(path, members)
    return members


def placed(everybody: Sequence[LearnerNotebook], roster: Sequence[Member], name: str) -> list[LearnerNotebook]:
    """`everybody` with the numbers and e-mails that the roster adds, and whoever it has besides, by name.

    A learner is found by number, then e-mail, then login, then name, each where only one of both lists has it. Who is
    not found there, or whose number and name are two people's, has a note. `name` is the file's.
    """
    people = [member.person for member in roster]
    rows = [_row(one) for one in everybody]
    found = matched(rows, people, strict=False)
    by_name = matched([Person(one.learner) for one in everybody], [Person(one.name) for one in people])
    disagree = {at for at, to in found.items() if by_name.get(at, to) != to}
    placed = [
        _stranger(one, _why(at, rows, found, by_name, roster, name))
        if at not in found or at in disagree
        else _known(one, roster[found[at]])
        for at, one in enumerate(everybody)
    ]
    there = {found[at] for at in found if at not in disagree}
    absent = [member for at, member in enumerate(roster) if at not in there]
    return sorted([*placed, *_absent(absent, everybody)], key=lambda one: (one.learner.casefold(), one.learner))


def _columns(header: Sequence[str]) -> dict[str, list[int]]:
    """By field, the positions of its columns, the best known name first; empty where nobody could be told by them."""
    names = [re.sub(r"[\W_]+", "", cell.casefold()) for cell in header]
    found = {field: [names.index(one) for one in known if one in names] for field, known in _KNOWN.items()}
    columns = {field: places for field, places in found.items() if places}
    return columns if columns.keys() - {"first"} else {}


def _member(line: int, row: Sequence[str], columns: dict[str, list[int]]) -> Member | None:
    """What the row says; None for one that is nobody's."""

    def cells(field: str) -> list[str]:
        return [row[at] for at in columns.get(field, ()) if at < len(row) and row[at]]

    whole = " ".join([*cells("first")[:1], *cells("last")[:1]])
    name = next(iter(cells("name")), "") or whole
    numbers = tuple(dict.fromkeys(_BEFORE_NUMBER.sub("", cell) for cell in cells("number")))
    email, login = (next(iter(cells(field)), "") for field in ("email", "login"))
    login = _BEFORE_NUMBER.sub("", login)
    if _NOBODY.fullmatch(name) or not (name or numbers or email or login):
        return None
    return Member(line, name, tuple(filter(None, numbers)), email, login)


def _require_once(path: Path, members: Sequence[Member]) -> None:
    """WorkbookError for a number, an e-mail or a login of two rows, or a name that nothing tells from another's."""
    seen: dict[tuple[str, str], Member] = {}
    for member in members:
        for key in _keys(member):
            before = seen.setdefault(key, member)
            if before is not member:
                what = f"{path}, line {member.line}: {key[1]!r} stands on line {before.line} already"
                raise WorkbookError(what, "one row for each learner", "delete one of the two, or tell them apart")


def _keys(member: Member) -> Iterator[tuple[str, str]]:
    yield from ((f"number {at}", number) for at, number in enumerate(member.numbers))
    yield from ((field, one.casefold()) for field in ("email", "login") if (one := getattr(member, field)))
    if not (member.numbers or member.email or member.login):
        yield "name", member.name


def _row(one: LearnerNotebook) -> Person:
    """A submission, to be found in the roster: a folder may be called by a number with its zeros lost."""
    bare = (one.number.lstrip("0"), one.learner.lstrip("0") if one.learner.isdigit() else "")
    return Person(one.learner, (one.number, *bare), one.email)


def _known(one: LearnerNotebook, member: Member) -> LearnerNotebook:
    return replace(one, number=one.number or next(iter(member.numbers), member.login), email=one.email or member.email)


def _stranger(one: LearnerNotebook, why: str) -> LearnerNotebook:
    return replace(one, notes=(*one.notes, why))


def _why(
    at: int, rows: Sequence[Person], found: dict[int, int], by_name: dict[int, int], roster: Sequence[Member], file: str
) -> str:
    """Why this submission is nobody's of the roster, for the instructor."""
    if at in found:
        one, other = roster[found[at]], roster[by_name[at]]
        return f"in {file} the number is that of {one.shown!r} (line {one.line}), the name that of line {other.line}"
    could = [
        f"{roster[to].shown!r} (line {roster[to].line})"
        for to in called(rows[at].name, [Person(member.name, member.person.numbers) for member in roster])
    ]
    return f"in {file} it could be {' or '.join(could[:3])}" if could else f"nobody in {file} is called so"


def _absent(members: Sequence[Member], everybody: Sequence[LearnerNotebook]) -> Iterator[LearnerNotebook]:
    """A row for each who handed in nothing; neither name nor slug is another's."""
    names = {one.learner for one in everybody}
    slugs = {one.slug.lower() for one in everybody}
    for member in members:
        number = next(iter(member.numbers), member.login)
        own = member.shown
        while own in names:
            own = f"{own} ({number or member.email or f'line {member.line}'})"
        page = slug(member.shown, number or member.email)
        while page.lower() in slugs:
            page += "x"
        names.add(own)
        slugs.add(page.lower())
        yield LearnerNotebook(own, None, NOTHING, number=number, email=member.email, slug=page, is_absent=True)
