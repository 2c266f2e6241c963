"""The rules of the house: one function each, and beside it a text that breaks it.

A rule takes a file's path (relative to the root) and text, and yields what is wrong. `test_rules.py` runs
each over the repository, and over its counter-example, which must be found: a rule that cannot fail guards
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.house.imports import imported

Rule = Callable[[Path, str], Iterator[str]]

EVERYTHING = {"catalog", "memory", "questions", "techniques", "watch", "lesson", "course", "grading", "small_lm", "cli"}
MAY_IMPORT = {
    "catalog": set(),
    "small_lm": {"catalog"},
    "memory": {"catalog"},
    "questions": {"catalog", "memory"},
    "techniques": {"catalog", "memory"},
    "watch": {"catalog", "memory"},
    "lesson": {"catalog", "memory", "questions", "techniques", "watch", "small_lm"},
    "course": EVERYTHING - {"grading", "cli"},
    "grading": EVERYTHING - {"cli"},
    "cli": EVERYTHING,
    "magic": {"catalog", "memory"},
    "__init__": set(),
}


@dataclass(frozen=True)
class Guarded:
    """A rule with the path and the text that show it red."""

    rule: Rule
    path: str
    broken: str


def imports_go_one_way(path: Path, source: str) -> Iterator[str]:
    """catalog <- memory <- techniques <- lesson <- course <- grading <- cli, also for imports inside functions."""
    if path.suffix != ".py" or path.parts[0] != "helpers":
        return
    room = path.parts[1].removesuffix(".py")
    if room not in MAY_IMPORT:
        yield f"room {room!r} has no place in the order; add it to MAY_IMPORT"
        return
    for name in imported(path, source):
        first, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if first == "helpers" and other in EVERYTHING - {room} - MAY_IMPORT[room]:
            yield f"{room} imports {name}"


def no_star_import(path: Path, source: str) -> Iterator[str]:
    if path.suffix == ".py":
        yield from (name for name in imported(path, source) if name.endswith(".*"))


# Spelled in two parts so that this file does not break its own rules.
INDEX_OPTIONS = ("--index" + "-url", "--extra-index" + "-url", "--find" + "-links")
MACHINE_PATH = re.compile(r"(?<![\w.:/}])/(?:root|home/\w+|Users/\w+|opt|work)/[\w.]+")


def no_package_index(path: Path, text: str) -> Iterator[str]:
    """Where packages come from is the user's own configuration; naming an index here would override it."""
    yield from (word for word in INDEX_OPTIONS if word in text)


def no_machine_path(path: Path, text: str) -> Iterator[str]:
    """A path of the machine it was written on means nothing to anybody else."""
    if path.parent.name != "course":  # whose own rule about paths needs examples
        yield from MACHINE_PATH.findall(text)


def no_code_from_a_model(path: Path, text: str) -> Iterator[str]:
    """A config becomes Transformers' own in one place, where what it would have run is dropped."""
    if path.suffix != ".py" or path.parts[0] != "helpers":
        return
    if path.name != "by_transformers.py":
        yield from re.findall(r"AutoConfig\b|\bfor_model\(", text)
    yield from re.findall(r"trust_remote_code['\"]?\s*[=:]\s*(?!False)\w+", text)
    for call in re.findall(r"\.from_pretrained\(.*", text):
        if not re.search(r"trust_remote_code=False|\*\*how\b", call):
            yield f"{call} without trust_remote_code=False"


def no_clutter(path: Path, text: str) -> Iterator[str]:
    """Plans, backups and legacy copies live in git's history, not in the tree."""
    if re.search(r"(^legacy_|_old\.|\.bak$|\.orig$|^(PLAN|TODO)\b)", path.name):
        yield f"{path.name} is a leftover"


def what_a_newcomer_runs_comes_first(path: Path, text: str) -> Iterator[str]:
    """CI runs `make env check test` with Chromium and bubblewrap out of reach, and only then installs them."""
    if path != Path(".ci/run"):
        return
    hidden = re.search(r"^bare=\$\(\.ci/hide bwrap chromium\b.*\)$", text, re.MULTILINE)
    lanes = re.search(r'^for name in env check test; do lane "\$name" env PATH="\$bare" make ', text, re.MULTILINE)
    installs = re.search(r"\bapt-get |\bpip install\b", text)
    if not (hidden and lanes and installs and hidden.end() < lanes.start() < installs.start()):
        yield "make env check test do not run first, with the programs hidden that are installed after them"


RULES = (
    Guarded(imports_go_one_way, "helpers/catalog/x.py", "def f():\n    from ..memory import budget\n"),
    Guarded(imports_go_one_way, "helpers/memory/x.py", "import helpers.lesson.drawing.plots\n"),
    Guarded(imports_go_one_way, "helpers/watch/x.py", "from ..techniques import scheduling\n"),
    Guarded(imports_go_one_way, "helpers/lesson/x.py", "from helpers import course\n"),
    Guarded(imports_go_one_way, "helpers/course/x.py", "from ..grading import batch\n"),
    Guarded(imports_go_one_way, "helpers/attic/x.py", ""),
    Guarded(imports_go_one_way, "helpers/__init__.py", "from . import catalog\n"),
    Guarded(no_star_import, "helpers/memory/x.py", "from math import *\n"),
    Guarded(no_package_index, "README.md", "pip install torch --index" + "-url https://example.org/torch"),
    Guarded(no_machine_path, "NOTES.md", "see /home" + "/someone/notes"),
    Guarded(no_code_from_a_model, "helpers/memory/x.py", "from transformers import AutoConfig\n"),
    Guarded(no_code_from_a_model, "helpers/memory/x.py", "model.from_pretrained(folder)\n"),
    Guarded(no_code_from_a_model, "helpers/memory/x.py", "how = {'trust_remote_code': True}\n"),
    Guarded(no_clutter, "helpers/memory/budget_old.py", ""),
    Guarded(
        what_a_newcomer_runs_comes_first,
        ".ci/run",
        "apt-get install chromium\nbare=$(.ci/hide bwrap chromium)\n"
        'for name in env check test; do lane "$name" env PATH="$bare" make "$name"; done\n',
    ),
    Guarded(what_a_newcomer_runs_comes_first, ".ci/run", "make env check test\napt-get install chromium\n"),
)
