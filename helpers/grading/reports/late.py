"""The due date: who handed in late, what it costs, and the sentence that says so to learner and instructor.

A policy is one small TOML file; `due` alone is needed.

    due = 2026-10-01T23:59:00+02:00     # or a date without its offset, and zone = "Europe/Berlin"
    grace_minutes = 15
    percent_per_day = 10                # of the points earned, for each day begun
    percent_by_day = [10, 25, 50, 100]  # instead: one day, two, three, four and more
    most_percent = 50                   # never more than this
    attempts = "latest"                 # or "best": of several, the one with the most points after the deduction

    [extensions]                        # by number, e-mail or name: another date, or so many days more
    "Ada Lovelace" = 2026-10-05T23:59:00+02:00
    "12345" = 3

    [handed_in]                         # where the time that was found is wrong, or none was
    "alan@example.org" = 2026-10-02T08:00:00+02:00

Where nobody knows when a notebook was handed in, that is said, and nothing is deducted (`handed_in` finds out).
"""

from __future__ import annotations

import math
import re
import tomllib
import zoneinfo
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, NoReturn

from ...catalog.errors import WorkbookError
from ..judging.results import Result
from ..people import Person, called

LATEST, BEST = "latest", "best"
A_TIME = "a date, a time and its zone, such as 2026-10-01T23:59:00+02:00"
KEYS = (
    *("due", "zone", "grace_minutes", "percent_per_day", "percent_by_day"),
    *("most_percent", "attempts", "extensions", "handed_in"),
)


@dataclass(frozen=True)
class LatePolicy:
    """When work is due and what a day costs. `extensions` and `handed_in` are by what the file calls a learner."""

    due: datetime
    grace: timedelta = timedelta()
    percent_by_day: tuple[float, ...] = ()
    percent_per_day: float = 0.0
    most_percent: float = 100.0
    attempts: str = LATEST
    extensions: Mapping[str, datetime] = field(default_factory=dict)
    handed_in: Mapping[str, datetime] = field(default_factory=dict)
    zone: tzinfo = UTC

    def percent(self, days: int) -> float:
        """What so many days begun take off, in per cent.

        >>> LatePolicy(datetime.now(UTC), percent_per_day=10, most_percent=25).percent(3)
        25
        """
        if days < 1:
            return 0.0
        table = self.percent_by_day
        full = table[min(days, len(table)) - 1] if table else self.percent_per_day * days
        return min(full, self.most_percent)


@dataclass(frozen=True)
class Lateness:
    """How late a learner was: days begun after the due date (0: in time), per cent and points taken off, in words.

    `note` is a sentence for learner and instructor, '' where there is nothing to say. Where it is not known when the
    notebook was handed in, the note is for the instructor alone.
    """

    days: int = 0
    percent: float = 0.0
    taken: float = 0.0
    note: str = ""
    is_known: bool = True


def lateness(result: Result) -> Lateness | None:
    """What `with_lateness` found for this learner; None where no policy was given."""
    stored = result.extra.get("late")
    return Lateness(**stored) if stored else None


def final_score(result: Result) -> float:
    """The points that count: those earned, less what being late takes off."""
    found = lateness(result)
    return result.score - (found.taken if found else 0.0)


def with_lateness(results: Sequence[Result], times: Mapping[str, datetime | str], policy: LatePolicy) -> list[Result]:
    """`results`, each with its lateness. `times` has a slug's time of handing in, or the words why it is unknown.

    Who is not in `times` handed nothing in: there is nothing to deduct from, and nothing to say. WorkbookError for a
    learner's name in the policy that means two.
    """
    extended = _by_slug(policy.extensions, results)
    stated = _by_slug(policy.handed_in, results)
    rows = []
    for one in results:
        late = Lateness()
        if one.slug in times or one.slug in stated:
            due = extended.get(one.slug, policy.due)
            late = _late(one.score, stated.get(one.slug) or times[one.slug], due, policy)
        rows.append(replace(one, extra={**one.extra, "late": asdict(late)}))
    return rows


def unplaced(policy: LatePolicy, results: Sequence[Result]) -> list[str]:
    """A line for each name in the policy that nobody here has: a slip, or somebody who has not handed in."""
    people = [person(one) for one in results]
    strangers = [name for name in {**policy.extensions, **policy.handed_in} if not called(name, people)]
    return [f"the due policy names {name!r}, and nobody here is called so" for name in strangers]


def unknown(results: Sequence[Result]) -> dict[str, int]:
    """By the words why it is not known when they handed in, how many learners."""
    found = [lateness(one) for one in results]
    return dict(Counter(one.note for one in found if one and not one.is_known))


def person(result: Result) -> Person:
    """Whose result it is, to be found in other lists."""
    return Person(result.learner, (result.number,), result.email)


def _late(score: float, at: datetime | str, due: datetime, policy: LatePolicy) -> Lateness:
    if isinstance(at, str):
        return Lateness(note=f"{at}: nothing is deducted", is_known=False)
    local = due.astimezone(policy.zone)
    extension = f", with an extension to {local.day} {local:%B %H:%M}" if due != policy.due else ""
    after = at.astimezone(UTC) - due.astimezone(UTC)  # two times of one zone are subtracted as if clocks never change
    if after <= timedelta():
        return Lateness()
    if after <= policy.grace:
        late, grace = (math.ceil(one / timedelta(minutes=1)) for one in (after, policy.grace))
        return Lateness(note=f"{late} minute{'s' * (late > 1)} late, within the {grace} that are free{extension}")
    days = math.ceil(after / timedelta(days=1))
    percent = policy.percent(days)
    less = f"{percent:g} % less" if percent else "nothing is deducted"
    note = f"{days} day{'' if days == 1 else 's'} late{extension}: {less}"
    return Lateness(days, percent, round(score * percent / 100, 4), note)


def _by_slug(named: Mapping[str, datetime], results: Sequence[Result]) -> dict[str, datetime]:
    people, found = [person(one) for one in results], {}
    for name, value in named.items():
        places = called(name, people)
        learners = sorted({results[at].learner for at in places})  # of one learner there may be several attempts
        if len(learners) > 1:
            what = f"{name!r} in the due policy can be {' or '.join(learners[:3])}"
            raise WorkbookError(what, "one learner", "write their number or e-mail instead")
        found.update({results[at].slug: value for at in places})
    return found


def read(path: Path) -> LatePolicy:
    """The policy at `path`. WorkbookError names the line and what is expected there."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = tomllib.loads(text)
    except OSError as error:
        do = "give the path of the TOML file with the due date"
        raise WorkbookError(f"{path} cannot be read ({error.strerror})", "a due policy", do) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        why = str(error).replace("end of document", f"line {len(text.splitlines())}, the end")
        raise WorkbookError(f"{path}: {why}", "TOML, UTF-8", "correct the line: docs/grading.md has one") from None
    return _Reader(path, text, found).policy()


@dataclass(frozen=True)
class _Reader:
    """The file's values, each checked; an error names the line that the value stands on."""

    path: Path
    text: str
    found: dict[str, Any]

    def policy(self) -> LatePolicy:
        for key in self.found:
            if key not in KEYS:
                self.refuse(key, f"unknown key {key!r}", ", ".join(KEYS))
        if "percent_per_day" in self.found and "percent_by_day" in self.found:
            self.refuse("percent_by_day", "percent_per_day stands there too", "one of the two")
        zone = self.zone()
        due = self.time("due", self.found.get("due"), zone)
        return LatePolicy(
            due=due,
            grace=timedelta(minutes=self.number("grace_minutes", 0, 10_000)),
            percent_by_day=self.table(),
            percent_per_day=self.number("percent_per_day", 0),
            most_percent=self.number("most_percent", 100),
            attempts=self.attempts(),
            extensions={name: self.extended(name, due, value, zone) for name, value in self.by_name("extensions")},
            handed_in={name: self.time(name, value, zone) for name, value in self.by_name("handed_in")},
            zone=zone or due.tzinfo or UTC,
        )

    def refuse(self, key: str, what: str, expected: str) -> NoReturn:
        spelled = re.compile(rf"""\s*\[?["']?{re.escape(key)}["']?\s*[\]=]""")
        line = next((at for at, line in enumerate(self.text.splitlines(), 1) if spelled.match(line)), None)
        where = f"{self.path}, line {line}" if line else str(self.path)
        raise WorkbookError(f"{where}: {what}", expected, "correct the file, and grade again")

    def zone(self) -> tzinfo | None:
        name = self.found.get("zone")
        if name is None:
            return None
        try:
            return zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, TypeError, ValueError, OSError):
            self.refuse("zone", f"zone is {name!r}", "a name such as Europe/Berlin or America/New_York")

    def time(self, key: str, value: object, zone: tzinfo | None) -> datetime:
        if not isinstance(value, datetime):
            self.refuse(key, f"{key} is {'missing' if value is None else repr(str(value))}", A_TIME)
        if value.tzinfo is None and zone is None:
            self.refuse(key, f"{key} is {value} of no zone", f'{A_TIME}, or a line zone = "Europe/Berlin"')
        return value if value.tzinfo else value.replace(tzinfo=zone)

    def number(self, key: str, default: float, most: float = 100) -> float:
        return self.checked(key, self.found.get(key, default), most)

    def checked(self, key: str, value: object, most: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            self.refuse(key, f"{key} is {value!r}", f"a number from 0 to {most:g}")
        return value

    def table(self) -> tuple[float, ...]:
        values = self.found.get("percent_by_day", [])
        if not isinstance(values, list) or ("percent_by_day" in self.found and not values):
            self.refuse("percent_by_day", f"percent_by_day is {values!r}", "a list such as [10, 25, 50, 100]")
        return tuple(self.checked("percent_by_day", value, 100) for value in values)

    def attempts(self) -> str:
        value = self.found.get("attempts", LATEST)
        if value not in (LATEST, BEST):
            self.refuse("attempts", f"attempts is {value!r}", f'"{LATEST}" or "{BEST}"')
        return value

    def by_name(self, key: str) -> list[tuple[str, object]]:
        table = self.found.get(key, {})
        if not isinstance(table, dict):
            self.refuse(key, f"{key} is {table!r}", f'a table: [{key}], and below it a line for each, "Name" = …')
        return list(table.items())

    def extended(self, name: str, due: datetime, value: object, zone: tzinfo | None) -> datetime:
        if isinstance(value, datetime):
            return self.time(name, value, zone)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1000:
            self.refuse(name, f"the extension of {name!r} is {value!r}", f"{A_TIME}, or a number of days")
        return due + timedelta(days=value)
