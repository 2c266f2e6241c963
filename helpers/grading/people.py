"""Who is who: one learner as two lists write them, found by number, then e-mail, then name.

Lists spell names in their own way: "Ada Lovelace", "Lovelace, Ada", and in a file's name of Canvas "lovelaceada".
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Keys = set[str]


@dataclass(frozen=True)
class Person:
    """A learner as one list has them. `numbers` are what an LMS may call them: its own number, an ID, a login."""

    name: str
    numbers: tuple[str, ...] = ()
    email: str = ""


def matched(rows: Sequence[Person], people: Sequence[Person], strict: bool = True) -> dict[int, int]:
    """By the position in `rows`, the position in `people` of the same learner; nobody is found twice.

    First those who share a number, then an e-mail, then a login (files are often called after one), then a name: each
    only where no other row and no other person has it. With
    `strict` a different number is a different person: right within one assignment, and wrong between two of Moodle's,
    which numbers its participants anew in each. Different e-mails are different people unless their number is one.
    """
    found: dict[int, int] = {}
    for keys in (_numbers, _emails, _logins, name_keys_of):
        left = [at for at in range(len(rows)) if at not in found]
        free = [at for at in range(len(people)) if at not in found.values()]
        owner, asked = _unique(people, free, keys), _unique(rows, left, keys)
        for at in left:
            mine = {owner[key] for key in keys(rows[at]) if key in owner and asked.get(key) == at}
            if len(mine) == 1 and not _differ(rows[at], people[one := mine.pop()], strict):
                found[at] = one
    return found


def called(text: str, people: Sequence[Person]) -> list[int]:
    """The positions of those whom `text`, a number, an e-mail or a name, can mean.

    >>> called("lovelace, ada", [Person("Ada Lovelace"), Person("Alan Turing")])
    [0]
    """
    for keys, wanted in ((_numbers, {text}), (_emails, {text.casefold()}), (name_keys_of, name_keys(text))):
        if found := [at for at, person in enumerate(people) if keys(person) & wanted]:
            return found
    return []


def name_keys(name: str) -> Keys:
    """Spellings of a name that are equal for the same one: words in any order, accents and case left out.

    >>> sorted(name_keys("Lovelace, Ada") & name_keys("Ada LOVELACE"))
    ['ada lovelace', 'lovelaceada']
    >>> name_keys("lovelaceada") <= name_keys("Lovelace, Ada")
    True
    """
    decomposed = unicodedata.normalize("NFKD", name)
    words = re.findall(r"\w+", "".join(one for one in decomposed if not unicodedata.combining(one)).casefold())
    last_first = words if "," in name else [*words[-1:], *words[:-1]]
    return {" ".join(sorted(words)), "".join(last_first)} if words else set()


def name_keys_of(person: Person) -> Keys:
    """The spellings of this person's name."""
    return name_keys(person.name)


def _numbers(person: Person) -> Keys:
    return {number for number in person.numbers if number}


def _emails(person: Person) -> Keys:
    return {person.email.casefold()} - {""}


def _logins(person: Person) -> Keys:
    return {one.casefold() for one in (*_numbers(person), person.name) if one}


def _unique(people: Sequence[Person], among: Iterable[int], keys: Callable[[Person], Keys]) -> dict[str, int]:
    """By key, the only one who has it."""
    having = [(key, at) for at in among for key in keys(people[at])]
    count = Counter(key for key, _ in having)
    return {key: at for key, at in having if count[key] == 1}


def _differ(one: Person, other: Person, strict: bool) -> bool:
    """True where an e-mail, or with `strict` the numbers, say that these are two people."""
    emails = bool(_emails(one) and _emails(other) and _emails(one) != _emails(other))
    numbers = bool(_numbers(one) and _numbers(other) and not _numbers(one) & _numbers(other))
    shares_email = bool(_emails(one) & _emails(other))
    shares_number = bool(_numbers(one) & _numbers(other))
    return (emails and not shares_number) or (strict and numbers and not shares_email)
