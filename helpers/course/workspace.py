"""`workbook workspace`: a learner's own copies of chapters and labs, which git ignores and nothing overwrites.

    workspace/START.md        the page that `make lab` opens, written anew each time
    workspace/chapters/       cleared; what somebody wrote in stays, what nobody touched follows the repository;
                              companions are in deeper/ of it
    workspace/labs/
    workspace/.progress.json  see `lesson.notes`

`git pull` changes notebooks/ and labs/, never these, so it meets no conflict.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from ..catalog.errors import WorkbookError, unknown_name
from ..lesson.notes import FOLDER
from . import notebook as nb
from .address import stamped_with, with_badge
from .copies import as_given, cleared, is_touched, relinked
from .notebook import BOOK, CHAPTERS, LABS, home, in_book
from .release import has_answers
from .start_page import write_start_page


@dataclass(frozen=True)
class LearnerCopy:
    """One learner's copy: its name in the workspace, where it lies, and how it would be given today."""

    name: str
    path: Path
    given: NotebookNode

    @property
    def is_touched(self) -> bool:
        """Whether somebody wrote in it; a file that nobody can read may be somebody's, too."""
        try:
            return is_touched(nb.read(self.path))
        except WorkbookError:
            return True

    @property
    def is_behind(self) -> bool:
        """Whether the repository has another text than the copy was made from."""
        try:
            mine = nb.read(self.path).metadata.get("workbook", {})
        except WorkbookError:
            return True
        return mine.get("version") != self.given.metadata["workbook"]["version"]


def workspace(root: Path, fresh: Sequence[str] = ()) -> int:
    """Make the copies that are missing, renew those that nobody touched, name those that are behind; 0.

    `fresh` names copies that are begun again: '02' (chapter, companion and lab), 'labs/02', a file. What is written in
    them is moved aside, never deleted. WorkbookError for another name, and where the folder cannot be written.
    """
    copies = list(_copies(root))
    if not copies:
        raise nb.none_there(root, [CHAPTERS, LABS])
    try:
        for one in _named(copies, fresh, root):
            _move_aside(one, root)
        states = [_bring_up_to_date(one) for one in copies]
        write_start_page(root)
    except OSError as error:
        what = f"{root / FOLDER} cannot be written: {error.strerror or error}"
        raise WorkbookError(what, "a folder of your own", "copy the clone to a place where you may write") from None
    new, renewed = states.count("new"), states.count("renewed")
    counts = f"{new} new, {renewed} brought up to date, {len(copies) - new - renewed} as they were"
    print(f"{FOLDER}/: {len(copies)} notebooks ({counts})")
    for one, state in zip(copies, states, strict=True):
        if state == "behind":
            print(f"! {FOLDER}/{one.name} holds your changes, and the repository has a newer text. Yours was kept.")
            print(f"  To begin again with the new text: workbook workspace --fresh {one.name.partition('_')[0]}")
    return 0


def own_lab(root: Path, name: str) -> Path:
    """The learner's copy of the lab called `name`: in workspace/, else in labs/; that with answers before the other."""
    places = [path for path in (root / FOLDER / LABS / name, root / LABS / name) if path.is_file()]
    if len(places) > 1 and not _answered(places[0]) and _answered(places[1]):
        return places[1]
    return places[0] if places else root / LABS / name


def _copies(root: Path) -> Iterator[LearnerCopy]:
    for path in nb.find_all(root, [*BOOK, LABS]):
        source = path.relative_to(root).as_posix()
        target = home(source, FOLDER)
        given = nb.read(path)
        written = not in_book(path) and has_answers(given)
        if in_book(path):
            given = cleared(given, source)
            source = home(source)
        given.cells[0].source = with_badge(given.cells[0].source, "")  # which would lead away from what is written here
        for cell in given.cells:
            if cell.cell_type == "markdown":
                cell.source = relinked(cell.source, source, target, stamped_with(given), FOLDER)
        yield LearnerCopy(target.removeprefix(f"{FOLDER}/"), root / target, _marked(given, written))


def _marked(given: NotebookNode, written: bool) -> NotebookNode:
    """With what tells later whether the copy was touched, and whether it is behind.

    A lab in which somebody wrote before there was a workspace is theirs from the start.
    """
    given.metadata.get("workbook", {}).pop("given", None)
    version = hashlib.sha256(nb.text(given).encode()).hexdigest()[:16]
    as_given(given).metadata["workbook"]["version"] = version
    if written:
        given.metadata["workbook"]["given"] = "with answers"
    return given


def _bring_up_to_date(one: LearnerCopy) -> str:
    """What became of it: "new", "renewed", "as it was", or "behind" where it was kept for what is written in it."""
    if not one.path.exists():
        one.path.parent.mkdir(parents=True, exist_ok=True)
        nb.write(one.path, copy.deepcopy(one.given))
        return "new"
    if not one.is_behind:
        return "as it was"
    if one.is_touched:
        return "behind"
    nb.write(one.path, copy.deepcopy(one.given))
    return "renewed"


def _named(copies: Sequence[LearnerCopy], names: Sequence[str], root: Path) -> Iterator[LearnerCopy]:
    for name in names:
        found = [one for one in copies if name in _names(one) or Path(name).resolve() == one.path.resolve()]
        if not found:
            raise unknown_name("copy", name, sorted({known for one in copies for known in _names(one)}))
        yield from found


def _names(one: LearnerCopy) -> tuple[str, ...]:
    folder, _, stem = one.name.removesuffix(".ipynb").rpartition("/")
    number = stem.partition("_")[0]
    return number, stem, f"{folder}/{number}", f"{folder}/{stem}"


def _move_aside(one: LearnerCopy, root: Path) -> None:
    """Give a copy in which somebody wrote another name, one that is free."""
    if not one.path.exists() or not one.is_touched:
        return
    number = 1
    while (aside := one.path.with_name(f"{one.path.stem}-mine-{number}.ipynb")).exists():
        number += 1
    os.rename(one.path, aside)
    print(f"{one.path.relative_to(root)}: yours is now {aside.name}")


def _answered(path: Path) -> bool:
    try:
        return has_answers(nb.read(path))
    except WorkbookError:
        return True
