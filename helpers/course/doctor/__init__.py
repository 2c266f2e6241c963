"""`workbook doctor`: what this machine is, what each chapter needs of it, and what to fix.

`machine` gathers facts and never raises, with `packages` and `nvidia_smi`; `needs` reads what the notebooks ask for;
`verdicts` compares the two; `report` prints. Standard library, and psutil and packaging where they are installed: the
doctor must work where nothing else does.

    from helpers.course.doctor import doctor
    doctor(root)                    # prints; 0 when every chapter can run, 1 when one cannot
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from . import machine as machines
from . import report
from .needs import ChapterNeeds, chapters, together
from .report import Judged
from .verdicts import Problem, troubles, unmet, without_repeats

NOTABLE = ("torch", "transformers", "ipywidgets", "bitsandbytes", "torchao")
RESTORE = "see what changed with `git diff --stat`; `git checkout` of that file brings the original back"
IN_A_CLONE = ("jupyterlab", "nbval")  # nobody needs them without notebooks


def doctor(root: Path | None, as_json: bool = False) -> int:
    """Print the examination of this machine for the workbook's clone in `root`: 0 when every chapter can run, else 1.

    Without a clone the machine and the packages are examined, and no chapter.
    """
    known = chapters(root) if root else ()
    needed = together(chapter.needs for chapter in known).packages
    found = machines.gather(root, dict.fromkeys([*NOTABLE, *(IN_A_CLONE if root else ()), *needed]))
    judged, fixes = examine(found, known)
    if as_json:
        print(json.dumps(report.as_json(found, judged, fixes)))
    else:
        print(report.printable(report.text(found, judged, fixes), sys.stdout.encoding))
    return 1 if any(problems for _, problems in judged) else 0


def examine(machine: machines.Machine, known: tuple[ChapterNeeds, ...]) -> tuple[Judged, tuple[Problem, ...]]:
    """Each chapter with what is in its way, and everything that is to be fixed, most important first."""
    judged = tuple(
        (one, (Problem(one.problem, RESTORE),) if one.problem else unmet(one.needs, machine)) for one in known
    )
    every = together(one.needs for one in known)
    unreadable = (Problem(f"{one.number} {one.problem}", RESTORE) for one in known if one.problem)
    return judged, without_repeats((*unmet(every, machine), *unreadable, *troubles(every, machine)))
