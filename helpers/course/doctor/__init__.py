"""`workbook doctor`: what this machine is, what each chapter needs of it, and what to fix.

`machine` gathers facts and never raises; `needs` reads what the notebooks ask for; `verdicts` holds one against
the other, `rented` adds what goes wrong on rented and shared machines only; `report` prints. Standard library, and
psutil and packaging where they are there: the doctor must work where nothing else does.

    from helpers.course.doctor import doctor
    doctor(root)                    # prints; 0 when every chapter can run, 1 when one cannot
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from helpers.course.doctor import machine as machines
from helpers.course.doctor import needs as wanted
from helpers.course.doctor import report
from helpers.course.doctor.problem import Problem, without_repeats
from helpers.course.doctor.rented import hindrances
from helpers.course.doctor.report import Judged
from helpers.course.doctor.verdicts import troubles, unmet

NOTABLE = ("torch", "transformers", "ipywidgets", "jupyterlab", "nbval", "bitsandbytes")

__all__ = ["doctor", "examine"]


def doctor(root: Path, as_json: bool = False) -> int:
    """Print the examination of this machine for the workbook in `root`: 0 when every chapter can run, else 1."""
    chapters = wanted.chapters(root)
    names = dict.fromkeys([*NOTABLE, *wanted.together(one.needs for one in chapters).packages])
    found = machines.gather(root, names)
    judged, fixes = examine(found, chapters)
    if as_json:
        print(json.dumps(report.as_json(found, judged, fixes)))
    else:
        print(report.printable(report.text(found, judged, fixes), sys.stdout.encoding))
    return 1 if any(problems for _, problems in judged) else 0


def examine(machine: machines.Machine, chapters: tuple[wanted.Chapter, ...]) -> tuple[Judged, tuple[Problem, ...]]:
    """Each chapter with what is in its way, and everything that is to be fixed, most important first."""
    judged = tuple((one, _unreadable(one) or unmet(one.needs, machine)) for one in chapters)
    every = wanted.together(one.needs for one in chapters)
    broken = [replace(problem, what=f"{one.number} {problem.what}") for one in chapters for problem in _unreadable(one)]
    return judged, without_repeats((*unmet(every, machine), *broken, *troubles(every, machine), *hindrances(machine)))


def _unreadable(chapter: wanted.Chapter) -> tuple[Problem, ...]:
    if not chapter.problem:
        return ()
    do = "see what changed with `git diff --stat`; `git checkout` of that file brings the original back"
    return (Problem(chapter.problem, do),)
