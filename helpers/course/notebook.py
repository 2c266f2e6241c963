"""Notebook files: found by chapter, read with an error for people, written whole or not at all."""

from __future__ import annotations

import ast
import os
import posixpath
import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ..catalog.errors import WorkbookError, unknown_name

KEPT_CELL_METADATA = frozenset({"cellView", "deletable", "editable", "jupyter", "nbgrader", "tags", "workbook"})
KEPT_METADATA = frozenset({"kernelspec", "language_info", "workbook"})
CHAPTERS, CLEARED, LABS = "notebooks", "labs/chapters", "labs"  # a chapter, its copy for learners, a learner's lab
COMPANIONS, APPENDIX = f"{CHAPTERS}/deeper", f"{CHAPTERS}/A_*.ipynb"  # deeper sections; the one appendix
BOOK = (CHAPTERS, COMPANIONS, APPENDIX)
CLEARED_BOOK = tuple(place.replace(CHAPTERS, CLEARED, 1) for place in BOOK)
NUMBERED = re.compile(r"(?:\d\d|A)_[^/]*\.ipynb")
IGNORE_TAG = "nbval-ignore-output"
RAISES_TAGS = frozenset({"raises-exception", "nbval-raises-exception"})


def read(path: Path) -> NotebookNode:
    """The notebook in `path`, as format 4. WorkbookError when there is none that can be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # missing or repeated cell ids: lint says so where it matters
            notebook = nbformat.read(path, as_version=4)
        if any(not isinstance(cell.source, str) for cell in notebook.cells):
            raise TypeError("a cell's source is not text")
        return notebook
    except Exception as error:  # nbformat raises a dozen types on broken files
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise unreadable(path, reason) from None


def unreadable(path: Path, reason: str) -> WorkbookError:
    """The error for a file that is no notebook."""
    expected, do = "a Jupyter notebook (.ipynb, format 4)", "open it in JupyterLab and save it, or fetch it again"
    return WorkbookError(f"cannot read {path}: {reason}", expected, do)


def text(notebook: NotebookNode) -> str:
    """The notebook as it is stored: sorted keys, one space of indent, a newline at the end."""
    return nbformat.writes(notebook) + "\n"


def write(path: Path, notebook: NotebookNode) -> bool:
    """Store `notebook` in one step, so that a crash leaves the old file whole. False when nothing changed."""
    new = text(notebook)
    if path.exists() and path.read_text(encoding="utf-8") == new:
        return False
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(new)
        os.chmod(name, path.stat().st_mode if path.exists() else 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return True


def find(name: str, root: Path, folders: Iterable[str]) -> list[Path]:
    """The notebooks called `name`: a path, a file's stem, a chapter's exact number ('02', not '2'), or 'A'.

    >>> find("02", root, ["notebooks", "solutions"])            # doctest: +SKIP
    [.../notebooks/02_training_step.ipynb, .../solutions/02_training_step.ipynb]
    """
    if name.endswith(".ipynb"):
        found = [path for path in (Path(name), root / name) if path.is_file()][:1]
    else:
        found = [path for path in find_all(root, folders) if name in _names(path)]
    if not found:
        names = sorted({known for path in find_all(root, folders) for known in _names(path)})
        raise unknown_name("notebook", name, names) if names else none_there(root, folders)
    return found


def find_all(root: Path, folders: Iterable[str]) -> list[Path]:
    """Every numbered notebook (`NN_*.ipynb`) in `folders` under `root`, sorted within each folder.

    A pattern in place of a folder stands for the files that it matches: `find_all(root, BOOK)` is chapters, companions
    and the appendix.
    """
    patterns = (folder if "*" in folder else f"{folder}/[0-9][0-9]_*.ipynb" for folder in folders)
    return [path for pattern in patterns for path in sorted(root.glob(pattern))]


def root_of(path: Path) -> Path:
    """The clone of the notebook at `path`: the folder above notebooks/, notebooks/deeper/, solutions/ or labs/."""
    return path.parent.parent.parent if is_companion(path) else path.parent.parent


def is_chapter(path: Path) -> bool:
    """Whether `path` is a chapter's, and neither a companion's nor the appendix's."""
    return path.parent.name == CHAPTERS and not is_appendix(path)


def is_companion(path: Path) -> bool:
    """Whether `path` is that of a chapter's companion, notebooks/deeper/NN_name.ipynb."""
    return path.parent.name == "deeper"


def is_appendix(path: Path) -> bool:
    """Whether `path` is the appendix's."""
    return path.name.startswith("A_")


def in_book(path: Path) -> bool:
    """Whether `path` is a chapter's, a companion's or the appendix's, and not a lab's."""
    return is_chapter(path) or is_companion(path) or is_appendix(path)


def home(path: str, workspace: str = "") -> str:
    """Where a learner opens what the book or a lab has at `path`, of the clone or of `workspace` in it; else `path`.

    >>> home("notebooks/02_x.ipynb"), home("notebooks/deeper/02_x.ipynb"), home("labs/02_x.ipynb")
    ('labs/chapters/02_x.ipynb', 'labs/chapters/deeper/02_x.ipynb', 'labs/02_x.ipynb')
    >>> home("notebooks/02_x.ipynb", "workspace"), home("labs/02_x.ipynb", "workspace")
    ('workspace/chapters/02_x.ipynb', 'workspace/labs/02_x.ipynb')
    """
    for source in (CLEARED, CHAPTERS, LABS):
        folder, name = posixpath.split(path.removeprefix(f"{source}/"))
        if path.startswith(f"{source}/") and folder in ("", "deeper") and NUMBERED.fullmatch(name):
            cleared = "chapters" if workspace else CLEARED
            return posixpath.join(workspace, LABS if source == LABS else cleared, folder, name)
    return path


def none_there(root: Path, folders: Iterable[str]) -> WorkbookError:
    """The error for a root without a single notebook in `folders`."""
    expected = f"NN_name.ipynb in {' or '.join(folder for folder in folders if folder not in (COMPANIONS, APPENDIX))}"
    return WorkbookError(f"{root} holds no notebooks", expected, "run this in the workbook's top folder")


def code_cells(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """The code cells that have a source, numbered from 1 as a fresh run numbers them."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip())
    return enumerate(cells, start=1)


def tags(cell: NotebookNode) -> frozenset[str]:
    """The cell's tags; empty when it has none."""
    return frozenset(cell.metadata.get("tags", ()))


def statements(cell: NotebookNode) -> list[ast.stmt]:
    """A cell's statements, none of prose or other languages; a magic or a shell line is the call that it becomes."""
    if cell.cell_type != "code":
        return []
    plain = re.sub(r"(?m)^([ \t]*)[%!].*$", r"\1magic()", cell.source)
    try:
        return ast.parse(plain).body
    except SyntaxError:
        return []


def first_line(source: str) -> str:
    """The first line that is neither blank nor a comment (else the first line), cut to eighty characters."""
    lines = [line.strip() for line in source.splitlines() if line.strip()] or [""]
    return next((line for line in lines if not line.startswith("#")), lines[0])[:80]


def stream(outputs: Iterable[Mapping], name: str) -> str:
    """What a code cell with these outputs wrote to "stdout" or "stderr"."""
    return "".join(output["text"] for output in outputs if output.get("name") == name)


def _names(path: Path) -> tuple[str, str]:
    """The stem and the chapter's number."""
    return path.stem, path.stem.partition("_")[0]
