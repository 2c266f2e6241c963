"""What a learner has done, noted beside their copies: chapters opened, guesses and how far off, points of labs.

    workspace/.progress.json
    {"chapters": {"02": {"opened": "2026-11-23",
                         "predictions": {"peak of one step": {"guess": 90, "unit": "MiB", "off": 0.12}},
                         "verdicts": {"adam-12": {"guess": "holds", "right": false}}}},
     "labs": {"02": {"checked": "2026-11-23", "questions": {"moments": {"title": "1 Moments", "earned": 2, "points": 3,
                                                                       "tried": true}}}}}

The file is the learner's own and goes nowhere. Notes are taken in copies under workspace/ alone: elsewhere, in grading
and in tests, each function here returns at once. None raises: where notes cannot be taken, one line says so.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from datetime import date
from math import isfinite
from pathlib import Path

FOLDER, FILE = "workspace", ".progress.json"
_said: set[str] = set()


def read(folder: Path) -> dict:
    """The notes in a workspace; empty without any. ValueError for a file that holds something else, OSError as ever."""
    path = folder / FILE
    if not path.exists():
        return {"chapters": {}, "labs": {}}
    notes = json.loads(path.read_text(encoding="utf-8"))
    for part in ("chapters", "labs"):
        if not isinstance(notes, dict) or not _is_table(notes.setdefault(part, {})):
            raise ValueError("it holds no progress")
    return notes


def opened() -> None:
    """A chapter's setup cell has run."""
    _note_in_chapter(lambda chapter: chapter.setdefault("opened", date.today().isoformat()))


def predicted(question: str, unit: str, guess: float | None) -> None:
    """A number was committed to. It may be changed until its answer has been shown."""
    if guess is not None:
        _note_in_chapter(lambda chapter: _keep_first(chapter, "predictions", question, {"guess": guess, "unit": unit}))


def compared(question: str, off: float | None) -> None:
    """The answer to a question was shown: the guess was `off` by this share of it; None where the answer is 0."""
    off = off if off is not None and isfinite(off) else None
    _note_in_chapter(lambda chapter: _table(chapter, "predictions").get(question, {}).setdefault("off", off))


def judged(claim: str, guess: str, right: bool) -> None:
    """A verdict on a claim met the evidence."""
    _note_in_chapter(lambda chapter: _keep_first(chapter, "verdicts", claim, {"guess": guess, "right": right}))


def checked(folder: Path, lab: str, questions: Mapping[str, Mapping]) -> None:
    """`workbook check` has run on the lab with this number: what each question earned; kept where there is a workspace.

    A question that was once tried stays so.
    """

    def update(notes: dict) -> None:
        entry = _table(notes["labs"], lab)
        before = _table(entry, "questions")
        entry["checked"] = date.today().isoformat()
        for key, row in questions.items():
            tried = row["tried"] or before.get(key, {}).get("tried", False)
            before[key] = {**row, "tried": tried}

    if folder.is_dir():
        _note(folder, update)


def _note_in_chapter(update: Callable[[dict], object]) -> None:
    place = _place()
    if place is not None:
        folder, number = place
        _note(folder, lambda notes: update(_table(notes["chapters"], number)))


def _place() -> tuple[Path, str] | None:
    """The workspace and the number of the chapter that runs this; None for whatever is no copy in a workspace.

    Jupyter's server tells a kernel the notebook that it was started for. What a kernel starts inherits that, and works
    in another folder.
    """
    session = os.environ.get("JPY_SESSION_NAME", "")
    number = re.match(r"\d\d(?=_)", os.path.basename(session))
    if not number:
        return None
    folder = Path(session).parent
    if (folder.name, folder.parent.name) != ("chapters", FOLDER) or not _is_here(folder):
        return None
    return folder.parent, number[0]


def _is_here(folder: Path) -> bool:
    try:
        return folder.samefile(Path.cwd())
    except OSError:
        return False


def _note(folder: Path, update: Callable[[dict], object]) -> None:
    """Read, update, write whole; a line where that is impossible."""
    try:
        notes = read(folder)
        before = json.dumps(notes)
        update(notes)
        if json.dumps(notes) != before:
            _write(folder / FILE, json.dumps(notes, indent=1, ensure_ascii=False) + "\n")
    except Exception as problem:  # a note must never stop a lesson, whatever somebody made of the file
        why = problem.strerror if isinstance(problem, OSError) else problem
        said = f"(Your progress is not noted: {FOLDER}/{FILE}: {why}. A broken file may be deleted.)"
        if said not in _said:
            _said.add(said)
            print(said)


def _write(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".progress-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _keep_first(chapter: dict, part: str, key: str, entry: dict) -> None:
    """An answer that was shown ends it: what was said before that stays."""
    known = _table(chapter, part)
    if not {"off", "right"} & known.get(key, {}).keys():
        known[key] = entry


def _table(holder: dict, key: str) -> dict:
    return holder.setdefault(key, {})


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(entry, dict) for entry in value.values())
