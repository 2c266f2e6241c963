"""`workbook release --nbgrader FOLDER`: the labs as a course that nbgrader runs.

    source/LAB/LAB.ipynb     the worked lab
    release/LAB/LAB.ipynb    its twin in labs/, which learners get
    nbgrader_config.py       written once, then yours
    README.md                the commands, in order

An assignment of nbgrader's is called as the lab's file is: 02_where_training_memory_goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..catalog.errors import WorkbookError
from . import notebook as nb
from .release import released

CONFIG_NAME = "nbgrader_config.py"
CONFIG = '''"""nbgrader's settings for this course, written once by `workbook release --nbgrader`, then yours."""

import os
import sys
from pathlib import Path

c = get_config()

# The labs import `helpers`: here it is, should the kernels not have the workbook installed.
WORKBOOK = {root!r}
sys.path.append(WORKBOOK)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [WORKBOOK, os.environ.get("PYTHONPATH")]))

c.CourseDirectory.course_id = "gpu-memory-workbook"
c.CourseDirectory.root = str(Path(__file__).resolve().parent)

# nbgrader clears the outputs, which are the targets, and writes stubs of its own. This puts the workbook's lab back.
c.GenerateAssignment.force = True
c.GenerateAssignment.post_convert_hook = "helpers.course.nbgrader_course.write_twins"

# Seconds for one cell. The checks take two at most, labs on several ranks somewhat more.
c.Execute.timeout = 60
'''
README = """# The labs, for nbgrader

nbgrader runs what learners wrote with your rights: your files, your network, no limit on memory. It runs the checks in
the kernel of the answers, which can see and replace them, and an answer that raises an error on one input loses all
parts of its question. `workbook grade` does none of this. Use nbgrader for people you trust, or in a container.

In this folder, with the workbook's environment active and `requirements-nbgrader.txt` installed in it:

```bash
nbgrader generate_assignment {example}    # fills gradebook.db; needed once for each lab
                                          # hand out release/{example}/
                                          # collect into submitted/LEARNER/{example}/
nbgrader autograde {example}
nbgrader generate_feedback {example}      # feedback/LEARNER/{example}/
nbgrader export                           # grades.csv
```

Or grade the same folder with the workbook: `workbook grade {number} submitted --out grades`.

After the labs have changed: `workbook release --nbgrader` with this folder again, then `nbgrader generate_assignment`.
Submissions, gradebook and settings stay as they are.
"""


def write_course(root: Path, folder: Path) -> None:
    """Write the course of all labs in `root`/solutions into `folder`, which is new, empty or such a course.

    What nbgrader or the instructor put there stays. WorkbookError for a folder of something else, for a root
    without labs, and for a solution that cannot be released; nothing is written then.
    """
    _require_course_or_nothing(folder)
    labs = {path: nb.read(path) for path in nb.find_all(root, ["solutions"])}
    if not labs:
        raise nb.none_there(root, ["solutions"])
    twins = {path: released(lab, f"solutions/{path.name}") for path, lab in labs.items()}
    for path, lab in labs.items():
        _write(folder / "source" / path.stem / path.name, lab)
        _write(folder / "release" / path.stem / path.name, twins[path])
        print(f"✓ {folder / 'release' / path.stem}")
    first = min(labs).stem
    (folder / "README.md").write_text(README.format(example=first, number=first.partition("_")[0]), encoding="utf-8")
    config = folder / CONFIG_NAME
    if not config.exists():
        config.write_text(CONFIG.format(root=str(root.resolve())), encoding="utf-8")


def write_twins(assignment: str, student: str, notebooks: Sequence[str]) -> None:
    """nbgrader's hook after `generate_assignment`: release/ holds what the workbook releases, not its own version.

    `notebooks` are the paths FOLDER/source/LAB/LAB.ipynb that it converted; the other two are not needed.
    """
    for source in map(Path, notebooks):
        twin = source.parents[2] / "release" / source.parent.name / source.name
        _write(twin, released(nb.read(source), f"solutions/{source.name}"))


def _write(path: Path, notebook: nb.NotebookNode) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nb.write(path, notebook)


def _require_course_or_nothing(folder: Path) -> None:
    other = folder.exists() and not folder.is_dir()
    if other or (folder.is_dir() and any(folder.iterdir()) and not (folder / CONFIG_NAME).exists()):
        what, expected = f"{folder} holds something else", f"a new or empty folder, or a course with {CONFIG_NAME}"
        raise WorkbookError(what, expected, "name another folder: workbook release --nbgrader FOLDER")
