"""Which of a learner's files is the lab: found by what it says in its metadata, then by its name.

The file is searched for its mark, not parsed: that is for a process with limits. A mark inside a cell's text does
not count, since JSON writes the quotes there with backslashes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from helpers.course.grade.listing import MOST_FILES, Entry, Refused
from helpers.course.grade.owners import NOTEBOOK, Belongings, copy_of, is_archive, is_notebook
from helpers.course.grade.plain import one_line

MOST_NOTEBOOKS = 20  # of one learner that are looked into
MOST_NAMED = 3  # in a sentence

_SOURCE = re.compile(rb'"source"\s*:\s*"solutions/([^"/\\]{1,200})\.ipynb"')
THIS_LAB, NAMED_SO, SAYS_NOTHING, ANOTHER_LAB = range(4)
UNLIKE = 2


@dataclass(frozen=True)
class Choice:
    """The chosen notebook's bytes and digest; or the reason why there is nothing to grade. Warnings either way."""

    contents: bytes = b""
    digest: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    """`says` is the lab that it says it is. `order` puts the best first; it begins with the kind and the unlikeness."""

    entry: Entry
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


def choose(own: Belongings, lab: str, contents: Callable[[Entry], bytes]) -> Choice:
    """The learner's notebook for `lab`, a file's stem such as '02_where_training_memory_goes'.

    `contents` gives an entry's bytes or raises Refused. A folder called like the lab (nbgrader's layout) is the only
    place to look. Of several notebooks that could be it, the one named like the lab and the newest copy is taken,
    with a warning that names them; one that says it is another lab is not taken.
    """
    entries = _for_lab(own, lab)
    notebooks = sorted(filter(is_notebook, entries), key=lambda entry: (_unlikeness(entry, lab), entry.parts))
    candidates, best_contents, refused = _looked_into(own, notebooks[:MOST_NOTEBOOKS], lab, contents)
    if not candidates:
        return Choice(reason=next(iter(refused), "") or _nothing(own, entries))
    best = min(candidates, key=lambda one: one.order)
    if best.is_another_lab:
        return Choice(reason=f"{own.shown(best.entry)} says that it is the lab {one_line(best.says, 80)!r}")
    doubts = [*_doubts(own, best, candidates), *(f"passed over: {one}" for one in refused[:MOST_NAMED])]
    if len(notebooks) > MOST_NOTEBOOKS:
        doubts.append(f"only {MOST_NOTEBOOKS} of {len(notebooks)} notebooks were looked into")
    if len(own.entries) > MOST_FILES:
        doubts.append(f"only {MOST_FILES:,} of the files were looked at")
    return Choice(best_contents, best.digest, warnings=tuple(doubts))


def _for_lab(own: Belongings, lab: str) -> list[Entry]:
    entries = own.entries[:MOST_FILES]
    return [entry for entry in entries if own.within(entry)[:1] == (lab,)] if lab in own.folders() else entries


def _looked_into(
    own: Belongings, notebooks: Sequence[Entry], lab: str, contents: Callable[[Entry], bytes]
) -> tuple[list[_Candidate], bytes, list[str]]:
    """The notebooks that can be read, the contents of the best of them alone (each may have 20 MB), the refusals."""
    candidates, best_contents, refused = [], b"", []
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


def _candidate(entry: Entry, contents: bytes, lab: str) -> _Candidate:
    mark = _SOURCE.search(contents)
    says = mark[1].decode("utf-8", "replace") if mark else ""
    unlikeness = _unlikeness(entry, lab)
    kind = SAYS_NOTHING if unlikeness == UNLIKE else NAMED_SO
    if says:  # its number is enough: an older revision of the course may have called the lab otherwise
        kind = THIS_LAB if says == lab or _number(says) == _number(lab) else ANOTHER_LAB
    # Of two files of one path in an archive the later counts, as it does when it is unpacked.
    order = (kind, unlikeness, -copy_of(entry.name)[1], len(entry.parts), entry.parts, -entry.position)
    return _Candidate(entry, hashlib.sha256(contents).hexdigest(), says, order)


def _unlikeness(entry: Entry, lab: str) -> int:
    """0: named as the lab is, or a copy of it; 1: the name holds the lab's name or begins with its number; 2: no."""
    original = copy_of(entry.name)[0].lower()
    if original == lab.lower():
        return 0
    holds = lab.lower() in original or re.search(rf"(^|lab)[ _-]*{re.escape(_number(lab))}(?!\d)", original)
    return 1 if holds else UNLIKE


def _number(lab: str) -> str:
    return lab.partition("_")[0]


def _doubts(own: Belongings, best: _Candidate, candidates: Sequence[_Candidate]) -> Iterator[str]:
    rivals = [one for one in candidates if one.kind == best.kind and one.digest != best.digest]
    chosen = own.shown(best.entry)
    if rivals:
        names = ", ".join(repr(own.shown(one.entry)) for one in rivals[:MOST_NAMED])
        more = f" and {len(rivals) - MOST_NAMED} more" if len(rivals) > MOST_NAMED else ""
        yield f"{chosen!r} was graded; {names}{more} could be the lab too"
    if best.kind == ANOTHER_LAB:
        yield f"{chosen!r} says that it is the lab {one_line(best.says, 80)!r}: is it the right file?"


def _nothing(own: Belongings, entries: Sequence[Entry]) -> str:
    """Why there is no notebook, as far as what is there instead can tell."""
    for entry in entries:
        if entry.problem:
            return f"{own.shown(entry)} {entry.problem}"
    for entry in entries:
        name = own.shown(entry)
        if is_archive(entry):
            return f"{name} is an archive: unpack it and hand in the {NOTEBOOK}"
        if NOTEBOOK in entry.name.lower():
            return f"{name} is a folder, not a notebook" if entry.is_folder else f"{name} must be named {NOTEBOOK}"
    names = [own.shown(entry) for entry in entries if not entry.is_folder]
    among = f": there are {', '.join(names[:MOST_NAMED])}" if names else ": there are no files"
    return f"no notebook ({NOTEBOOK}) was handed in{among}{' and more' if len(names) > MOST_NAMED else ''}"
